//! The words of a status. A word that nobody published is kept as it is.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What an application is doing.
///
/// Source: the published states, with their spelling.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(from = "String", into = "String")]
#[schemars(with = "String")]
pub enum State {
    /// Nothing was done for it.
    #[default]
    New,
    /// Its driver was made.
    Submitted,
    /// Its driver runs.
    Running,
    /// It ended well.
    Completed,
    /// It ended badly.
    Failed,
    /// Its driver could not be made.
    SubmissionFailed,
    /// It runs again as soon as its old driver is gone.
    PendingRerun,
    /// Its spec was changed: what it has is removed.
    Invalidating,
    /// Its driver ended well.
    Succeeding,
    /// Its driver ended badly.
    Failing,
    /// It is to stop: what it has is removed.
    Suspending,
    /// It waits without pods.
    Suspended,
    /// It is to go on.
    Resuming,
    /// Its driver can't be seen.
    Unknown,
    /// None of the published ones.
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

/// What an executor is doing.
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
    /// Its pod ended well.
    Completed,
    /// Its pod ended badly.
    Failed,
    /// Its pod can't be seen.
    #[default]
    Unknown,
    /// None of the published ones.
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

/// What a schedule is doing.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(from = "String", into = "String")]
#[schemars(with = "String")]
pub enum ScheduleState {
    /// Nothing was done for it.
    #[default]
    New,
    /// Declared, and never written.
    Validating,
    /// It runs at its times.
    Scheduled,
    /// Its spec says nothing that could be followed.
    FailedValidation,
    /// None of the published ones.
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
