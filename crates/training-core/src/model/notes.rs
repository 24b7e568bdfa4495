//! What users are told as events: a closed catalogue of reasons with their severity and a hint.

/// The severity of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Something went as it should.
    Normal,
    /// Someone should look.
    Warning,
}

impl Severity {
    /// The `type` of a Kubernetes event.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// One event about a job, not yet written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Note {
    /// Severity.
    pub severity: Severity,
    /// The event's reason, `PascalCase`, stable.
    pub reason: String,
    /// The event's text; cut and cleaned when it is written.
    pub message: String,
}

impl Note {
    /// A note of severity Normal.
    pub fn normal(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Normal,
            reason: reason.into(),
            message: message.into(),
        }
    }

    /// A note of severity Warning.
    pub fn warning(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Warning,
            reason: reason.into(),
            message: message.into(),
        }
    }
}

/// A catalogue entry for a reason of ours: what the user sees, why, and what to do.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The reason.
    pub reason: &'static str,
    /// Severity.
    pub severity: Severity,
    /// What it means.
    pub meaning: &'static str,
    /// The next thing a human should do.
    pub hint: &'static str,
}
