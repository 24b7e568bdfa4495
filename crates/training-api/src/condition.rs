//! Conditions of a job, and the published rules of their list.
//!
//! Users' tools compare whole lists, and `kubectl get` shows the type of the last element, so the order matters.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The condition types of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConditionType {
    /// A problem stalls the job without ending it. Trainyard's own type; healthy jobs never have it.
    Stalled,
    /// The operator has observed the job.
    Created,
    /// The pods that decide the job's outcome are running.
    Running,
    /// Failed pods are being replaced.
    Restarting,
    /// The job waits without pods.
    Suspended,
    /// The job succeeded.
    Succeeded,
    /// The job failed.
    Failed,
}

impl ConditionType {
    /// The published spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stalled => "Stalled",
            Self::Created => "Created",
            Self::Running => "Running",
            Self::Restarting => "Restarting",
            Self::Suspended => "Suspended",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }
}

/// A condition of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobCondition {
    /// `Created`, `Running`, `Restarting`, `Suspended`, `Succeeded`, `Failed` or `Stalled`.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// A stable reason for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// A message for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When the condition was last set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Time>,
    /// When `status` last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
}

impl JobCondition {
    /// Returns true if the condition has this type and is true.
    pub fn holds(&self, type_: ConditionType) -> bool {
        self.type_ == type_.as_str() && self.status == "True"
    }
}

/// Returns true if the list has a true condition of this type.
pub fn holds(conditions: &[JobCondition], type_: ConditionType) -> bool {
    conditions.iter().any(|c| c.holds(type_))
}
