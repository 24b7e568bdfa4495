//! Conditions of a job and the published rules of their list.
//!
//! Users' tools compare whole lists, and `kubectl get` shows the type of the last element, so order carries meaning.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The types of condition that a job may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConditionType {
    /// Something that is not an end keeps the job from going on. Ours; healthy jobs never have it.
    Stalled,
    /// The operator has seen the job.
    Created,
    /// The pods that decide the job's end run.
    Running,
    /// Pods are being replaced after a failure.
    Restarting,
    /// The job waits without pods.
    Suspended,
    /// The job has ended well.
    Succeeded,
    /// The job has ended badly.
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

/// One observation about a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobCondition {
    /// `Created`, `Running`, `Restarting`, `Suspended`, `Succeeded`, `Failed` or `Stalled`.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// A stable word for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// A sentence for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When the condition was last set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Time>,
    /// When `status` last flipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
}

impl JobCondition {
    /// True if the condition has this type and holds.
    pub fn holds(&self, type_: ConditionType) -> bool {
        self.type_ == type_.as_str() && self.status == "True"
    }
}

/// True if a condition of this type holds in the list.
pub fn holds(conditions: &[JobCondition], type_: ConditionType) -> bool {
    conditions.iter().any(|c| c.holds(type_))
}
