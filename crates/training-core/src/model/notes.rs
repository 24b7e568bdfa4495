//! Events for users, and the entries of the closed catalogue of reasons.

use super::uid::Uid;

/// The severity of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Nothing is wrong.
    Normal,
    /// Someone should look at it.
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

/// An event about a job, not yet written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Note {
    /// Severity.
    pub severity: Severity,
    /// The event's reason, `PascalCase`, stable.
    pub reason: String,
    /// The message; truncated and cleaned when it is written.
    pub message: String,
}

impl Note {
    /// Returns a note of severity Normal.
    pub fn normal(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Normal,
            reason: reason.into(),
            message: message.into(),
        }
    }

    /// Returns a note of severity Warning.
    pub fn warning(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Warning,
            reason: reason.into(),
            message: message.into(),
        }
    }
}

/// A pod that names an owner which did not create it: the operator ignores it, and warns of it once.
#[derive(Clone, Debug, PartialEq)]
pub struct ForgedPod {
    /// Its uid.
    pub uid: Uid,
    /// The Warning.
    pub note: Note,
}

/// The catalogue entry of one of Trainyard's own reasons.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The reason.
    pub reason: &'static str,
    /// Severity.
    pub severity: Severity,
    /// What it means.
    pub meaning: &'static str,
    /// What a human should do next.
    pub hint: &'static str,
}
