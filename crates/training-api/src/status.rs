//! What a job reports to its users, and what the operator remembers about it.
//!
//! The first five fields are the published contract. The others are ours and additive: they carry the columns of
//! `kubectl get` and everything that must survive a restart of the operator. Nothing that decides restarts, limits or
//! clean-up lives anywhere else.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::condition::JobCondition;

/// The status of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobStatus {
    /// What has been observed, oldest change first: the last element is the job's state.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<JobCondition>,
    /// Pod counts by replica type as keyed in the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica_statuses: Option<BTreeMap<String, ReplicaStatus>>,
    /// When the job was started, or resumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When the job ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// Written by the existing operators only; kept so that a take-over can remove it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_reconcile_time: Option<Time>,

    /// The generation of the spec that this status follows from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What keeps the job waiting: the reason of `Stalled` while that is True.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<String>,
    /// Ready or finished pods of all pods, e.g. `3/4`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<String>,
    /// Number of restarts so far: pods made again after a failure, and containers restarted in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarts: Option<i32>,
    /// The attempt of the whole gang, from 0; it rises with every restart that concerns all pods, and with every suspension.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<i32>,
    /// Replicas that were made again within the gang's attempt, keyed `<replica type in lower case>-<index>`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub replica_attempts: BTreeMap<String, ReplicaAttempt>,
    /// The last restart of all pods together after a failure, and how many there were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gang_restart: Option<ReplicaAttempt>,
    /// Number of pods made again after failures that count against the backoff limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted_failures: Option<i32>,
    /// Highest sum of in-place container restarts seen so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_restarts: Option<i32>,
    /// Indices that have finished successfully, by replica type in lower case, as ranges: `0-2,5`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub finished_indices: BTreeMap<String, String>,
    /// Digests of what the pods of the present run were made from, by which an edit that they can't follow is noticed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_from: Option<String>,
    /// Who schedules the pods of the present run as one; behind a comma, whose groups of earlier runs are still to be removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gang_scheduler: Option<String>,
    /// Objects that were made once for the job and are never made again, by what they are for: a name or a uid each.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub made_once: BTreeMap<String, String>,
    /// Label selector of the workers, for the scale subresource of kinds that publish none beside the counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_selector: Option<String>,

    /// The last failure of a pod, or of a container that was restarted in its pod, with what it said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<LastFailure>,
}

/// Pod counts of one replica type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaStatus {
    /// Pods in phase Running; it reaches 0 only when they are gone.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub active: i32,
    /// Pods that ended well.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub succeeded: i32,
    /// Pods that ended badly and have not been replaced.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failed: i32,
    /// Label selector of the pods, as the scale subresource wants it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Deprecated; never written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<LabelSelector>,
}

// serde hands over a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(n: &i32) -> bool {
    *n == 0
}

/// How often one replica was made again, and when last.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaAttempt {
    /// The replica's attempt, from 1.
    pub attempt: i32,
    /// When this attempt was decided. The pace of replacements is computed from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
    /// How many of the attempts came before a pod that ran for ten minutes or longer. They don't slow down the next ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled: Option<i32>,
}

/// A pod's failure in the words of its container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastFailure {
    /// The pod's name.
    pub pod: String,
    /// The exit code of the container that ended badly, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// A word: `OOMKilled`, `Error`, `Evicted`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What it means, and the last lines of the container's output, cut and cleaned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When it was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}
