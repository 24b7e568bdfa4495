//! Policies of a whole job: clean-up, limits, suspension, scheduling.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema;

/// When a job ends, what is cleaned up then, and who looks after it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunPolicy {
    /// What is deleted once the job has finished: `None` (default) nothing, `Running` pods that still run and their services,
    /// `All` every pod and service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clean_pod_policy: Option<String>,
    /// Seconds after the completion time at which the finished job itself is deleted. Unset: it is kept.
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
    /// True: no pods exist; the job waits until it is set to false again. Queueing systems drive this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    // In the schema only: what is stored says it, what is decoded keeps "absent" apart.
    #[schemars(extend("default" = false))]
    pub suspend: Option<bool>,
    /// The controller that reconciles the job. Unset or `kubeflow.org/training-operator`: this operator. Anything else: the job
    /// is left alone. It can't be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue"]))]
    pub managed_by: Option<String>,
}

impl RunPolicy {
    /// The clean-up policy with its default and its published reading of unknown values.
    pub fn clean_pod_policy(&self) -> CleanPodPolicy {
        CleanPodPolicy::parse(self.clean_pod_policy.as_deref())
    }
}

/// What is deleted once a job has finished.
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
    /// Reads the stored string. Invariant: never fails; an unknown string, also an empty one, means [`CleanPodPolicy::All`], as
    /// the existing operators read it.
    pub fn parse(value: Option<&str>) -> Self {
        match value {
            None | Some("None") => Self::None,
            Some("Running") => Self::Running,
            Some(_) => Self::All,
        }
    }

    /// True for the three published values and an absent one.
    pub fn is_known(value: Option<&str>) -> bool {
        matches!(value, None | Some("None" | "Running" | "All"))
    }
}

/// How the pods of a job are scheduled together. Used by gang schedulers and by queueing systems.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SchedulingPolicy {
    /// Number of pods that must be schedulable before any starts. Unset: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub min_available: Option<i32>,
    /// The scheduler's queue. It can't be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = schema::queue_stays())]
    pub queue: Option<String>,
    /// Resources that must be free before any pod starts. Unset: summed from the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_resources: Option<BTreeMap<String, Quantity>>,
    /// Name of the priority class of the whole group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class: Option<String>,
    /// Seconds that the scheduler waits for the group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule_timeout_seconds: Option<i32>,
}
