//! The custom resource: `PaddleJob` in `kubeflow.org/v1`.
//!
//! Source: the published CRD and webhook of the Kubeflow training operator 1.9. What its webhook refused, the schema refuses.

use k8s_openapi::api::autoscaling::v2::MetricSpec;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{CustomResource, CustomResourceExt, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use training_api::{JobStatus, ReplicaSpecs, RunPolicy, schema};

/// The name of the kind.
pub const KIND: &str = "PaddleJob";
/// The field of the spec that holds the replica specs.
pub const REPLICA_MAP: &str = "paddleReplicaSpecs";
/// The replica type of parameter servers. A job without it is collective.
pub const MASTER: &str = "Master";
/// The replica type of trainers.
pub const WORKER: &str = "Worker";
/// The container that trains.
pub const CONTAINER: &str = "paddle";

/// The desired state of a PaddleJob.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "kubeflow.org",
    version = "v1",
    kind = "PaddleJob",
    plural = "paddlejobs",
    singular = "paddlejob",
    shortname = "pdj",
    namespaced,
    doc = "A distributed PaddlePaddle training run.",
    status = "JobStatus",
    derive = "Default",
    derive = "PartialEq",
    scale(
        spec_replicas_path = ".spec.paddleReplicaSpecs.Worker.replicas",
        status_replicas_path = ".status.replicaStatuses.Worker.active",
        label_selector_path = ".status.replicaStatuses.Worker.selector"
    ),
    validation = schema::name_is_dns_label(),
    validation = schema::replica_names_fit(REPLICA_MAP, MASTER),
    validation = schema::replica_names_fit(REPLICA_MAP, WORKER)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = schema::managed_by_stays())]
pub struct PaddleJobSpec {
    /// The pods by replica type: `Worker` alone (collective mode), or `Master` (parameter servers) and `Worker`.
    #[x_kube(validation = schema::replica_types_are(&[MASTER, WORKER]))]
    pub paddle_replica_specs: ReplicaSpecs,
    /// Accepted for compatibility; it has no effect. Scale the workers with `kubectl scale` or an autoscaler of your own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elastic_policy: Option<ElasticPolicy>,
    /// When the job ends, what is cleaned up then, and who manages it.
    // Always present in stored objects: Python clients of this kind can't read a job without it.
    #[serde(default)]
    pub run_policy: RunPolicy,
}

/// Bounds of the number of workers, as published. None of them has an effect.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ElasticPolicy {
    /// Fewest workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_replicas: Option<i32>,
    /// Most workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_replicas: Option<i32>,
    /// Most restarts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_restarts: Option<i32>,
    /// Metrics of an autoscaler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Vec<MetricSpec>>,
}

/// The CRD as it is installed.
///
/// # Errors
/// Never: see [`schema::finish`].
pub fn crd() -> Result<CustomResourceDefinition, serde_json::Error> {
    schema::finish(&PaddleJob::crd(), REPLICA_MAP, Some(CONTAINER))
}
