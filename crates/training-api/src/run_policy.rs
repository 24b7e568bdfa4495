//! Policies of the whole job: clean-up, limits, suspension, scheduling.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema;

/// Limits, clean-up, suspension and scheduling of the whole job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunPolicy {
    /// What to delete once the job has finished: `None` (default) nothing, `Running` running pods and their services, `All` all
    /// pods and services.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clean_pod_policy: Option<String>,
    /// Seconds after the completion time at which the finished job itself is deleted. Unset: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: Option<i32>,
    /// Seconds after the start time at which an unfinished job fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub active_deadline_seconds: Option<i64>,
    /// Number of restarts after which the job fails. Unset: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub backoff_limit: Option<i32>,
    /// How the pods are scheduled together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduling_policy: Option<SchedulingPolicy>,
    /// True: the job has no pods and waits until this is false again. Queueing systems set this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    // Only in the schema: the API server stores the default, but the decoded value can still be absent.
    #[schemars(extend("default" = false))]
    pub suspend: Option<bool>,
    /// The controller that reconciles the job. Unset or `kubeflow.org/training-operator`: this operator. Any other value: this
    /// operator ignores the job. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue"]))]
    pub managed_by: Option<String>,
}

impl RunPolicy {
    /// Returns the clean-up policy, with its default and the published meaning of unknown values.
    pub fn clean_pod_policy(&self) -> CleanPodPolicy {
        CleanPodPolicy::parse(self.clean_pod_policy.as_deref())
    }
}

/// What to delete once a job has finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CleanPodPolicy {
    /// Nothing.
    None,
    /// Pods in phase Running or Pending, and their services.
    Running,
    /// Every pod and every service.
    All,
}

impl CleanPodPolicy {
    /// Parses the stored value. Invariant: never fails. Unknown values, including the empty string, mean [`CleanPodPolicy::All`],
    /// as with the existing operators.
    pub fn parse(value: Option<&str>) -> Self {
        match value {
            None | Some("None") => Self::None,
            Some("Running") => Self::Running,
            Some(_) => Self::All,
        }
    }

    /// Returns true for the three published values and an absent one.
    pub fn is_known(value: Option<&str>) -> bool {
        matches!(value, None | Some("None" | "Running" | "All"))
    }
}

/// How the pods of a job are scheduled together. Gang schedulers and queueing systems read it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SchedulingPolicy {
    /// Number of pods that must be schedulable before any starts. Unset: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub min_available: Option<i32>,
    /// The scheduler's queue. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = schema::queue_stays())]
    pub queue: Option<String>,
    /// Resources that must be free before any pod starts. Unset: the sum of the pods' requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_resources: Option<BTreeMap<String, Quantity>>,
    /// The priority class of the whole group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class: Option<String>,
    /// Seconds that the scheduler waits for the group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule_timeout_seconds: Option<i32>,
}
