//! The custom resource: `TFJob` in `kubeflow.org/v1`.
//!
//! Source: the published CRD and webhook of the Kubeflow training operator 1.9. What its webhook refused, the schema refuses.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::{Reason, Rule};
use kube::{CustomResource, CustomResourceExt, KubeSchema};
use serde::{Deserialize, Serialize};
use training_api::{JobStatus, ReplicaSpecs, RunPolicy, schema};

/// The field of the spec that holds the replica specs.
pub const REPLICA_MAP: &str = "tfReplicaSpecs";
/// The replica type that decides how the job ends, if the job has it.
pub const CHIEF: &str = "Chief";
/// An alias of [`CHIEF`].
pub const MASTER: &str = "Master";
/// The replica type of parameter servers.
pub const PS: &str = "PS";
/// The replica type that trains.
pub const WORKER: &str = "Worker";
/// The replica type that evaluates checkpoints.
pub const EVALUATOR: &str = "Evaluator";
/// The published replica types, in rank order.
pub const TYPES: &[&str] = &[CHIEF, MASTER, PS, WORKER, EVALUATOR];
/// The container that trains.
pub const CONTAINER: &str = "tensorflow";
/// The only non-empty success policy: all workers must succeed.
pub const ALL_WORKERS: &str = "AllWorkers";
/// The message about a job with both.
pub const ONE_CHIEF: &str = "must not have more than 1 Chief or Master role";

/// The desired state of a TFJob.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "kubeflow.org",
    version = "v1",
    kind = "TFJob",
    plural = "tfjobs",
    singular = "tfjob",
    shortname = "tfj",
    namespaced,
    doc = "A TensorFlow training run.",
    status = "JobStatus",
    derive = "Default",
    derive = "PartialEq",
    validation = schema::name_is_dns_label(),
    validation = schema::replica_names_fit(REPLICA_MAP, CHIEF),
    validation = schema::replica_names_fit(REPLICA_MAP, MASTER),
    validation = schema::replica_names_fit(REPLICA_MAP, PS),
    validation = schema::replica_names_fit(REPLICA_MAP, WORKER),
    validation = schema::replica_names_fit(REPLICA_MAP, EVALUATOR),
    validation = schema::other_names_fit(REPLICA_MAP, TYPES)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = one_chief(), validation = schema::managed_by_stays())]
pub struct TFJobSpec {
    /// The pods by replica type: `Chief` or `Master`, `PS`, `Worker`, `Evaluator`, case-insensitive. Other types get pods and
    /// services too, but don't affect how the job ends.
    #[x_kube(
        validation = schema::replica_types_name_pods(),
        validation = schema::replica_types_differ()
    )]
    pub tf_replica_specs: ReplicaSpecs,
    /// When a job without `Chief` and `Master` has succeeded: `AllWorkers` with all workers; unset, with worker 0 or with all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success_policy: Option<String>,
    /// If true, workers may come and go: a worker's `TF_CONFIG` lists no other worker, and a worker that fails for good doesn't
    /// fail the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable_dynamic_worker: Option<bool>,
    /// When the job ends, what is cleaned up then, and who manages it.
    // Always present in stored objects: Python clients of this kind can't read a job without it.
    #[serde(default)]
    pub run_policy: RunPolicy,
}

/// The CRD as it is installed.
///
/// # Errors
/// Never: see [`schema::finish`].
pub fn crd() -> Result<CustomResourceDefinition, serde_json::Error> {
    schema::finish(&TFJob::crd(), REPLICA_MAP, Some(CONTAINER))
}

fn one_chief() -> Rule {
    let has = |type_: &str| format!("self.{REPLICA_MAP}.exists(t, t.lowerAscii() == '{type_}')");
    Rule::new(format!("!({} && {})", has("chief"), has("master")))
        .message(ONE_CHIEF)
        .reason(Reason::FieldValueForbidden)
        .field_path(format!(".{REPLICA_MAP}"))
}
