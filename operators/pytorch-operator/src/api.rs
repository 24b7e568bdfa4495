//! The custom resource: `PyTorchJob` in `kubeflow.org/v1`.
//!
//! Source: the published CRD and webhook of the Kubeflow training operator 1.9. Fields have their published meaning. The schema
//! rejects what the webhook rejected, so no webhook is needed.

use k8s_openapi::api::autoscaling::v2::MetricSpec;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::{Reason, Rule};
use kube::{CustomResource, CustomResourceExt, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use training_api::{JobStatus, ReplicaSpecs, RunPolicy, schema};

/// The kind's name.
pub const KIND: &str = "PyTorchJob";
/// The field of the spec that holds the replica specs.
pub const REPLICA_MAP: &str = "pytorchReplicaSpecs";
/// The replica type whose one pod coordinates the others.
pub const MASTER: &str = "Master";
/// The replica type of all other pods.
pub const WORKER: &str = "Worker";
/// The container that trains. Other containers of a pod are the user's helpers.
pub const CONTAINER: &str = "pytorch";
/// The init container that makes workers wait until their master's name resolves.
pub const INIT_CONTAINER: &str = "init-pytorch";

/// The pattern of `nprocPerNode`: a device, or a number above 0.
pub const NPROC: &str = r"^([A-Za-z][A-Za-z0-9_.-]*|\+?0*[1-9][0-9]{0,8})?$";

/// The spec of a PyTorchJob.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "kubeflow.org",
    version = "v1",
    kind = "PyTorchJob",
    plural = "pytorchjobs",
    singular = "pytorchjob",
    shortname = "ptj",
    namespaced,
    doc = "A distributed PyTorch training run.",
    status = "JobStatus",
    derive = "Default",
    derive = "PartialEq",
    scale(
        spec_replicas_path = ".spec.pytorchReplicaSpecs.Worker.replicas",
        status_replicas_path = ".status.replicaStatuses.Worker.active",
        label_selector_path = ".status.replicaStatuses.Worker.selector"
    ),
    validation = schema::name_is_dns_label(),
    validation = schema::replica_names_fit(REPLICA_MAP, MASTER),
    validation = schema::replica_names_fit(REPLICA_MAP, WORKER)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = schema::has_one(REPLICA_MAP, MASTER),
    validation = schema::has_some(REPLICA_MAP, WORKER),
    validation = init_container_is_free(),
    validation = schema::managed_by_stays(),
    validation = elastic_has_workers(),
    validation = nproc_is_set_once()
)]
pub struct PyTorchJobSpec {
    /// The pods by replica type: `Master` (at most one pod) and `Worker`. Either may be left out.
    #[x_kube(validation = schema::replica_types_are(&[MASTER, WORKER]))]
    pub pytorch_replica_specs: ReplicaSpecs,
    /// Lets the number of workers change while the job runs. Unset: it is fixed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elastic_policy: Option<ElasticPolicy>,
    /// Processes per pod: `auto` (default), `cpu`, `gpu`, another device that PyTorch knows, or a number. `torchrun` reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 63),
        regex(pattern = NPROC)
    )]
    pub nproc_per_node: Option<String>,
    /// Limits, clean-up, suspension and scheduling of the whole job.
    // Always present in stored objects: Python clients of this kind can't read a job without it.
    #[serde(default)]
    pub run_policy: RunPolicy,
}

/// How the number of workers may change, and how `torchrun` finds its peers.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = bounds_are_in_order())]
pub struct ElasticPolicy {
    /// Minimum number of workers with which training continues. Unset: the maximum, or the number of workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub min_replicas: Option<i32>,
    /// Maximum number of workers. Unset: the minimum, or the number of workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_replicas: Option<i32>,
    /// The rendezvous backend: `c10d` (default), `etcd`, `etcd-v2` or one that the image brings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdzv_backend: Option<String>,
    /// The port of the rendezvous. Unset: the worker's port named `pytorchjob-port`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 65535))]
    pub rdzv_port: Option<i32>,
    /// The host of the rendezvous. Unset: the first worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdzv_host: Option<String>,
    /// The name of the rendezvous.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdzv_id: Option<String>,
    /// Settings of the rendezvous backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdzv_conf: Option<Vec<RdzvConf>>,
    /// True: a rendezvous within one pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standalone: Option<bool>,
    /// Deprecated in favour of `spec.nprocPerNode`: processes per pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub n_proc_per_node: Option<i32>,
    /// How often `torchrun` restarts its processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_restarts: Option<i32>,
    /// Metrics of a `HorizontalPodAutoscaler` with the job's name, which the operator creates to keep the number of workers between
    /// the bounds. Unset: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Vec<MetricSpec>>,
}

/// One setting of the rendezvous backend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RdzvConf {
    /// The setting's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Its value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// Returns the installed CRD.
///
/// # Errors
/// Never: see [`schema::finish`].
pub fn crd() -> Result<CustomResourceDefinition, serde_json::Error> {
    schema::finish(&PyTorchJob::crd(), REPLICA_MAP, Some(CONTAINER))
}

fn elastic_has_workers() -> Rule {
    Rule::new(format!(
        "!has(self.elasticPolicy) || '{WORKER}' in self.{REPLICA_MAP}"
    ))
    .message("Worker must be configured if elastic policy is used")
    .reason(Reason::FieldValueRequired)
    .field_path(format!(".{REPLICA_MAP}['{WORKER}']"))
}

fn nproc_is_set_once() -> Rule {
    Rule::new(
        "!has(self.nprocPerNode) || !has(self.elasticPolicy) || !has(self.elasticPolicy.nProcPerNode)",
    )
    .message("must not be used with spec.nprocPerNode")
    .reason(Reason::FieldValueForbidden)
    .field_path(".elasticPolicy.nProcPerNode")
}

fn bounds_are_in_order() -> Rule {
    Rule::new(
        "!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
    )
    .message("minReplicas must not be greater than maxReplicas")
    .field_path(".minReplicas")
}

/// Workers of jobs with a master get the operator's init container. A user's container of that name would make their pods invalid.
fn init_container_is_free() -> Rule {
    let pod = format!("self.{REPLICA_MAP}['{WORKER}'].template.spec");
    Rule::new(format!(
        "!('{MASTER}' in self.{REPLICA_MAP}) || {} || \
         (!(has({pod}.initContainers) && {pod}.initContainers.exists(c, c.name == '{INIT_CONTAINER}')) && \
         !{pod}.containers.exists(c, c.name == '{INIT_CONTAINER}'))",
        schema::no_containers(REPLICA_MAP, WORKER)
    ))
    .message(
        "the operator adds an init container with name init-pytorch to these pods; choose another name for yours",
    )
    .reason(Reason::FieldValueForbidden)
    .field_path(format!(".{REPLICA_MAP}['{WORKER}'].template.spec.initContainers"))
}
