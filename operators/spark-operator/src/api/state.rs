//! The states of a status. Unknown states are preserved.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The state of an application.
///
/// Source: the published states, with their spelling.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(from = "String", into = "String")]
#[schemars(with = "String")]
pub enum State {
    /// The operator has not handled it yet.
    #[default]
    New,
    /// Its driver was created.
    Submitted,
    /// Its driver runs.
    Running,
    /// It succeeded.
    Completed,
    /// It failed.
    Failed,
    /// Its driver could not be created.
    SubmissionFailed,
    /// It runs again once its old driver is gone.
    PendingRerun,
    /// Its spec changed; the operator deletes its pods and objects.
    Invalidating,
    /// Its driver succeeded.
    Succeeding,
    /// Its driver failed.
    Failing,
    /// It was suspended; the operator deletes its pods and objects.
    Suspending,
    /// It is suspended and has no pods.
    Suspended,
    /// It is about to run again after a suspension.
    Resuming,
    /// The state of its driver is unknown.
    Unknown,
    /// An unpublished state.
    Other(String),
}

impl State {
    /// Every published state.
    pub const ALL: [Self; 14] = [
        Self::New,
        Self::Submitted,
        Self::Running,
        Self::Completed,
        Self::Failed,
        Self::SubmissionFailed,
        Self::PendingRerun,
        Self::Invalidating,
        Self::Succeeding,
        Self::Failing,
        Self::Suspending,
        Self::Suspended,
        Self::Resuming,
        Self::Unknown,
    ];

    /// The published spelling.
    pub fn as_str(&self) -> &str {
        match self {
            Self::New => "",
            Self::Submitted => "SUBMITTED",
            Self::Running => "RUNNING",
            Self::Completed => "COMPLETED",
            Self::Failed => "FAILED",
            Self::SubmissionFailed => "SUBMISSION_FAILED",
            Self::PendingRerun => "PENDING_RERUN",
            Self::Invalidating => "INVALIDATING",
            Self::Succeeding => "SUCCEEDING",
            Self::Failing => "FAILING",
            Self::Suspending => "SUSPENDING",
            Self::Suspended => "SUSPENDED",
            Self::Resuming => "RESUMING",
            Self::Unknown => "UNKNOWN",
            Self::Other(word) => word,
        }
    }

    /// True if the application has ended.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Completed | Self::Failed)
    }
}

impl From<String> for State {
    fn from(word: String) -> Self {
        let known = Self::ALL.into_iter().find(|state| state.as_str() == word);
        known.unwrap_or(Self::Other(word))
    }
}

impl From<State> for String {
    fn from(state: State) -> Self {
        state.as_str().to_owned()
    }
}

/// The state of an executor.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(from = "String", into = "String")]
#[schemars(with = "String")]
pub enum ExecutorState {
    /// Its pod has not started.
    Pending,
    /// Its pod runs.
    Running,
    /// Its pod succeeded.
    Completed,
    /// Its pod failed.
    Failed,
    /// The state of its pod is unknown.
    #[default]
    Unknown,
    /// An unpublished state.
    Other(String),
}

impl ExecutorState {
    /// Every published state.
    pub const ALL: [Self; 5] = [
        Self::Pending,
        Self::Running,
        Self::Completed,
        Self::Failed,
        Self::Unknown,
    ];

    /// The published spelling.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Pending => "PENDING",
            Self::Running => "RUNNING",
            Self::Completed => "COMPLETED",
            Self::Failed => "FAILED",
            Self::Unknown => "UNKNOWN",
            Self::Other(word) => word,
        }
    }
}

impl From<String> for ExecutorState {
    fn from(word: String) -> Self {
        let known = Self::ALL.into_iter().find(|state| state.as_str() == word);
        known.unwrap_or(Self::Other(word))
    }
}

impl From<ExecutorState> for String {
    fn from(state: ExecutorState) -> Self {
        state.as_str().to_owned()
    }
}

/// The state of a schedule.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(from = "String", into = "String")]
#[schemars(with = "String")]
pub enum ScheduleState {
    /// The operator has not handled it yet.
    #[default]
    New,
    /// Published, but never written.
    Validating,
    /// It starts runs on schedule.
    Scheduled,
    /// Its spec is invalid.
    FailedValidation,
    /// An unpublished state.
    Other(String),
}

impl ScheduleState {
    /// Every published state.
    pub const ALL: [Self; 4] = [
        Self::New,
        Self::Validating,
        Self::Scheduled,
        Self::FailedValidation,
    ];

    /// The published spelling.
    pub fn as_str(&self) -> &str {
        match self {
            Self::New => "",
            Self::Validating => "Validating",
            Self::Scheduled => "Scheduled",
            Self::FailedValidation => "FailedValidation",
            Self::Other(word) => word,
        }
    }
}

impl From<String> for ScheduleState {
    fn from(word: String) -> Self {
        let known = Self::ALL.into_iter().find(|state| state.as_str() == word);
        known.unwrap_or(Self::Other(word))
    }
}

impl From<ScheduleState> for String {
    fn from(state: ScheduleState) -> Self {
        state.as_str().to_owned()
    }
}
