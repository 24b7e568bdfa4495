//! A job's status: what users see, and the operator's durable state.
//!
//! The first five fields are the published contract. The others are Trainyard's additions: the columns of `kubectl get`, and
//! everything that must survive a restart of the operator. All state that decides restarts, limits and clean-up is here.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::condition::JobCondition;

/// The status of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobStatus {
    /// The conditions, oldest change first: the last element is the job's state.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<JobCondition>,
    /// Pod counts by replica type as keyed in the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica_statuses: Option<BTreeMap<String, ReplicaStatus>>,
    /// When the job was started or resumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When the job ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// Written by the existing operators only. Kept so that Trainyard can remove it when it takes over a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_reconcile_time: Option<Time>,

    /// The generation of the spec that this status reflects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The reason of the `Stalled` condition while it is True.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<String>,
    /// Ready or succeeded pods of all pods, e.g. `3/4`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<String>,
    /// Number of restarts so far: recreated pods after failures, and containers restarted in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarts: Option<i32>,
    /// The attempt of the whole gang, from 0. Every restart of all pods and every suspension increases it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<i32>,
    /// Replicas recreated within the gang attempt, keyed `<replica type in lower case>-<index>`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub replica_attempts: BTreeMap<String, ReplicaAttempt>,
    /// The last restart of the whole gang after a failure, and the number of such restarts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gang_restart: Option<ReplicaAttempt>,
    /// Number of failures that count against the backoff limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted_failures: Option<i32>,
    /// Highest observed sum of in-place container restarts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_restarts: Option<i32>,
    /// Indices that succeeded, by replica type in lower case, as ranges: `0-2,5`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub finished_indices: BTreeMap<String, String>,
    /// Template hashes of the current run's pods, to detect edits that they can't follow, and the hash of the last restart request
    /// that the run has followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_from: Option<String>,
    /// The gang scheduler of the current run; after a comma, those of earlier runs whose groups are not yet deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gang_scheduler: Option<String>,
    /// Objects that are created once for the job and never again: the name or uid by purpose.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub made_once: BTreeMap<String, String>,
    /// Label selector of the workers, for the scale subresource of kinds that publish none with the counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_selector: Option<String>,

    /// The last failure of a pod, or of a container restarted in place, with its message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<LastFailure>,
}

/// Pod counts of one replica type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaStatus {
    /// Pods in phase Running. In a suspended job, all existing pods: 0 means that they are gone.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub active: i32,
    /// Pods that succeeded.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub succeeded: i32,
    /// Pods that failed and have not been replaced.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failed: i32,
    /// Label selector of the pods, for the scale subresource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Deprecated; never written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<LabelSelector>,
}

// Serde passes a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(n: &i32) -> bool {
    *n == 0
}

/// How often a replica was recreated, and when last.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaAttempt {
    /// The replica's attempt, from 1.
    pub attempt: i32,
    /// When this attempt was decided. The backoff starts here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
    /// How many of the attempts came before a pod that ran for ten minutes or longer. They don't count for the backoff.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled: Option<i32>,
}

/// The last failure of a pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastFailure {
    /// The pod's name.
    pub pod: String,
    /// The exit code of the failed container, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// A reason: `OOMKilled`, `Error`, `Evicted`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What it means, and the last lines of the container's output, truncated and cleaned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When it was observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}
