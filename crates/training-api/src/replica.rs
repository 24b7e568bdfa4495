//! The replicas of one role.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Replica specs by replica type as spelled by the user, e.g. `Master`, `Worker`.
pub type ReplicaSpecs = BTreeMap<String, ReplicaSpec>;

/// The number of pods of one role, and their template.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaSpec {
    /// Number of pods. Unset: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<i32>,
    /// The pod template. The `restartPolicy` of the replica spec replaces the template's.
    // Boxed: the type is over 2 KB even when empty, and finished jobs drop it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<Box<PodTemplateSpec>>,
    /// How to handle a failed pod of this role: `Always`, `OnFailure`, `Never` or `ExitCode` (exit codes 1–127 are permanent,
    /// 128–255 are retried).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["", "Always", "OnFailure", "Never", "ExitCode"]))]
    pub restart_policy: Option<String>,
}

/// How to handle a failed pod of a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartPolicy {
    /// The kubelet restarts containers in place, even after success.
    Always,
    /// The kubelet restarts failed containers in place; a failed pod is recreated.
    OnFailure,
    /// A failed pod stays and fails the job.
    Never,
    /// Exit codes of 128 and more are retried with a new pod; others fail the job.
    ExitCode,
}

impl RestartPolicy {
    /// Parses the stored value. `None` if it is absent or empty (the kind's default applies), `Some(Err)` if it is unknown.
    pub fn parse(value: Option<&str>) -> Option<Result<Self, String>> {
        match value {
            None | Some("") => None,
            Some("Always") => Some(Ok(Self::Always)),
            Some("OnFailure") => Some(Ok(Self::OnFailure)),
            Some("Never") => Some(Ok(Self::Never)),
            Some("ExitCode") => Some(Ok(Self::ExitCode)),
            Some(other) => Some(Err(other.to_owned())),
        }
    }

    /// Returns the restart policy for the pod itself.
    pub fn for_pod(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::OnFailure => "OnFailure",
            Self::Never | Self::ExitCode => "Never",
        }
    }
}
