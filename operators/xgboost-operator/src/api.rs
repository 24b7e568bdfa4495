//! The custom resource: `XGBoostJob` in `kubeflow.org/v1`.
//!
//! Source: the published CRD and webhook of the Kubeflow training operator 1.9. What its webhook refused, the schema refuses.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{CustomResource, CustomResourceExt, KubeSchema};
use serde::{Deserialize, Serialize};
use training_api::{JobStatus, ReplicaSpecs, RunPolicy, schema};

/// The field of the spec that holds the replica specs.
pub const REPLICA_MAP: &str = "xgbReplicaSpecs";
/// The replica type of the one pod that runs the tracker.
pub const MASTER: &str = "Master";
/// The replica type of all other pods.
pub const WORKER: &str = "Worker";
/// The container that trains.
pub const CONTAINER: &str = "xgboost";

/// The desired state of an XGBoostJob.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "kubeflow.org",
    version = "v1",
    kind = "XGBoostJob",
    plural = "xgboostjobs",
    singular = "xgboostjob",
    shortname = "xgbj",
    namespaced,
    doc = "A distributed XGBoost or LightGBM training run.",
    status = "JobStatus",
    derive = "Default",
    derive = "PartialEq",
    validation = schema::name_is_dns_label(),
    validation = schema::replica_names_fit(REPLICA_MAP, MASTER),
    validation = schema::replica_names_fit(REPLICA_MAP, WORKER)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = schema::has_type(REPLICA_MAP, MASTER),
    validation = schema::has_one(REPLICA_MAP, MASTER),
    validation = schema::managed_by_stays()
)]
pub struct XGBoostJobSpec {
    /// The pods by replica type: `Master` (exactly one pod) and `Worker`.
    #[x_kube(validation = schema::replica_types_are(&[MASTER, WORKER]))]
    pub xgb_replica_specs: ReplicaSpecs,
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
    schema::finish(&XGBoostJob::crd(), REPLICA_MAP, Some(CONTAINER))
}
