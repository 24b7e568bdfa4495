//! The custom resource: `JAXJob` in `kubeflow.org/v1`.
//!
//! Source: the published CRD and webhook of the Kubeflow training operator 1.9. What its webhook refused, the schema refuses.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{CustomResource, CustomResourceExt, KubeSchema};
use serde::{Deserialize, Serialize};
use training_api::{JobStatus, ReplicaSpecs, RunPolicy, schema};

/// The name of the kind.
pub const KIND: &str = "JAXJob";
/// The field of the spec that holds the replica specs.
pub const REPLICA_MAP: &str = "jaxReplicaSpecs";
/// The only replica type.
pub const WORKER: &str = "Worker";
/// The container that trains.
pub const CONTAINER: &str = "jax";

/// The desired state of a JAXJob.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "kubeflow.org",
    version = "v1",
    kind = "JAXJob",
    plural = "jaxjobs",
    singular = "jaxjob",
    shortname = "jaxj",
    namespaced,
    doc = "A distributed JAX training run.",
    status = "JobStatus",
    derive = "Default",
    derive = "PartialEq",
    scale(
        spec_replicas_path = ".spec.jaxReplicaSpecs.Worker.replicas",
        status_replicas_path = ".status.replicaStatuses.Worker.active",
        label_selector_path = ".status.replicaStatuses.Worker.selector"
    ),
    validation = schema::name_is_dns_label(),
    validation = schema::replica_names_fit(REPLICA_MAP, WORKER)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = schema::managed_by_stays())]
pub struct JAXJobSpec {
    /// The pods by replica type: `Worker`. Each pod is one JAX process.
    #[x_kube(validation = schema::replica_types_are(&[WORKER]))]
    pub jax_replica_specs: ReplicaSpecs,
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
    schema::finish(&JAXJob::crd(), REPLICA_MAP, Some(CONTAINER))
}
