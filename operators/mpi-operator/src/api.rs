//! The custom resource: `MPIJob` in `kubeflow.org/v2beta1`, which is also served as `kubeflow.org/v1`.
//!
//! Source: the published CRDs of the MPI operator 0.8 (`v2beta1`) and of the Kubeflow training operator 1.9 (`v1`). Each version
//! has the fields of both, so nothing is lost whichever one a client reads or writes. They differ only in the default of
//! `spec.submittedAs`, which records through which version a job was created, because the two give the same fields different
//! meanings.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::{Reason, Rule};
use kube::{CustomResource, CustomResourceExt, KubeSchema};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use training_api::{JobCondition, JobStatus, ReplicaSpecs, RunPolicy, schema};
use training_core::{DurableState, training_job};

/// The field of the spec that holds the replica specs.
pub const REPLICA_MAP: &str = "mpiReplicaSpecs";
/// The replica type that runs `mpirun`.
pub const LAUNCHER: &str = "Launcher";
/// The replica type of the hosts that `mpirun` starts ranks on.
pub const WORKER: &str = "Worker";
/// Default mount path of the SSH keys.
pub const KEY_PATH: &str = "/root/.ssh";
/// The launcher is created immediately.
pub const AT_STARTUP: &str = "AtStartup";
/// The launcher is created when every worker is ready.
pub const WAIT_FOR_WORKERS_READY: &str = "WaitForWorkersReady";
/// The stored version.
pub const V2BETA1: &str = "v2beta1";
/// The version of the training operator.
pub const V1: &str = "v1";
/// The value of `spec.runPolicy.managedBy` that means the MPI operator.
pub const MANAGED_BY_MPI_OPERATOR: &str = "kubeflow.org/mpi-operator";

/// The spec of an MPIJob.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "kubeflow.org",
    version = "v2beta1",
    kind = "MPIJob",
    plural = "mpijobs",
    singular = "mpijob",
    shortname = "mpij",
    namespaced,
    doc = "A program that mpirun starts on several hosts.",
    status = "JobStatus",
    derive = "Default",
    derive = "PartialEq",
    scale(
        spec_replicas_path = ".spec.mpiReplicaSpecs.Worker.replicas",
        status_replicas_path = ".status.replicaStatuses.Worker.active",
        label_selector_path = ".status.workerSelector"
    ),
    validation = schema::name_is_dns_label(),
    validation = launcher_name_fits(),
    validation = schema::replica_names_fit(REPLICA_MAP, WORKER)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = schema::has_type(REPLICA_MAP, LAUNCHER),
    validation = schema::has_one(REPLICA_MAP, LAUNCHER),
    validation = types_of_v1_are_known(),
    validation = workers_are_counted(),
    validation = restart_policies_are_known(),
    validation = clean_pod_policy_is_known(),
    validation = schema::managed_by_stays(),
    validation = origin_stays()
)]
pub struct MPIJobSpec {
    /// Pod templates by replica type: `Launcher` (exactly one), which runs `mpirun`, and `Worker` (optional), on which `mpirun`
    /// starts ranks.
    pub mpi_replica_specs: ReplicaSpecs,
    /// Ranks per host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0), extend("default" = 1))]
    pub slots_per_worker: Option<i32>,
    /// If true, the first ranks run in the launcher's pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = false))]
    pub run_launcher_as_worker: Option<bool>,
    /// The MPI implementation in the image: `OpenMPI`, `Intel` or `MPICH`. It decides the format of the host file and the
    /// launcher's variables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "OpenMPI", "enum" = ["OpenMPI", "Intel", "MPICH"]))]
    pub mpi_implementation: Option<String>,
    /// When the launcher is created: `AtStartup`, together with the workers, or `WaitForWorkersReady`. Any other value means the
    /// latter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "AtStartup"))]
    pub launcher_creation_policy: Option<String>,
    /// Mount path of the job's SSH keys: `.ssh` in the home directory of the user that the pods run as.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^/.*[^/].*$"), extend("default" = "/root/.ssh"))]
    pub ssh_auth_mount_path: Option<String>,
    /// Jobs of `v1` only: what is deleted once the job has finished, if `runPolicy` doesn't set it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clean_pod_policy: Option<String>,
    /// Jobs of `v1` only: the container of a worker in which ranks run. Defaults to the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub main_container: Option<String>,
    /// When the job ends, what is cleaned up then, and which controller reconciles it.
    // Stored jobs always have it: Python clients of v1 can't read a job without it.
    #[serde(default)]
    pub run_policy: RunPolicy,
    /// The API version through which the job was created, which decides the meaning of its fields: `v2beta1` or `v1`. The API
    /// server fills it in; it is immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "v2beta1", "enum" = ["v1", "v2beta1"]))]
    pub submitted_as: Option<String>,
}

training_job!(
    MPIJob,
    mpi_replica_specs,
    |_: &mut MPIJob| (),
    forget_eviction
);

/// Drops the Failed condition that the published operator sets when a worker is evicted. That operator goes on with the job:
/// without a completion time it has not ended.
fn forget_eviction(state: &mut DurableState) {
    if state.completed.is_none() {
        let evicted =
            |c: &JobCondition| c.type_ == "Failed" && c.reason.as_deref() == Some("MPIJobEvicted");
        state.conditions.retain(|c| !evicted(c));
    }
}

/// The API version that decides the meaning of a job's fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// The MPI operator's.
    #[default]
    V2beta1,
    /// The training operator's.
    V1,
}

impl MPIJobSpec {
    /// The version through which the job was created; the stored version by default.
    pub fn origin(&self) -> Origin {
        match self.submitted_as.as_deref() {
            Some(V1) => Origin::V1,
            Some(_) | None => Origin::V2beta1,
        }
    }
}

/// The CRD as it is installed, with both versions.
///
/// # Errors
/// Never: see [`schema::finish`].
pub fn crd() -> Result<CustomResourceDefinition, serde_json::Error> {
    let crd = schema::finish(&MPIJob::crd(), REPLICA_MAP, None)?;
    let mut crd = serde_json::to_value(crd)?;
    schema::with_fields_of_launchers(&mut crd);
    let Some(versions) = crd
        .pointer_mut("/spec/versions")
        .and_then(Value::as_array_mut)
    else {
        return serde_json::from_value(crd);
    };
    for version in versions.iter_mut() {
        own_run_policy(version);
    }
    let v1: Vec<Value> = versions.iter().map(as_v1).collect();
    versions.extend(v1);
    serde_json::from_value(crd)
}

const SPEC: &str = "/schema/openAPIV3Schema/properties/spec/properties";

/// Describes this kind's meaning of the shared run policy, where it differs.
fn own_run_policy(version: &mut Value) {
    let Some(policy) = version.pointer_mut(&format!("{SPEC}/runPolicy/properties")) else {
        return;
    };
    let says = [
        (
            "activeDeadlineSeconds",
            "Seconds that the launcher's Job may be active; the job fails then.",
        ),
        (
            "backoffLimit",
            "How often the launcher is tried again before the job fails. Unset: 6, or 0 for a job of `v1` that is not to be restarted.",
        ),
        (
            "cleanPodPolicy",
            "What is deleted once the job has finished: `None` (default) nothing, `Running` workers that still run, `All` every worker.",
        ),
        (
            "ttlSecondsAfterFinished",
            "Seconds after the end at which everything that belongs to the finished job is deleted, but for the job itself. A job of `v1` \
             goes as well. Unset: nothing is.",
        ),
        (
            "managedBy",
            "The controller that reconciles the job. Unset, `kubeflow.org/mpi-operator` or `kubeflow.org/training-operator`: this \
             operator. Anything else: the job is left alone. It can't be changed.",
        ),
    ];
    for (field, text) in says {
        if let Some(field) = policy.get_mut(field).and_then(Value::as_object_mut) {
            field.insert("description".to_owned(), json!(text));
        }
    }
    if let Some(field) = policy.get_mut("managedBy").and_then(Value::as_object_mut) {
        let values = json!([
            MANAGED_BY_MPI_OPERATOR,
            training_api::labels::MANAGED_BY_TRAINING_OPERATOR,
            training_api::labels::MANAGED_BY_MULTIKUEUE
        ]);
        field.insert("enum".to_owned(), values);
    }
    // The published kind allows changes of the queue.
    if let Some(queue) = policy
        .pointer_mut("/schedulingPolicy/properties/queue")
        .and_then(Value::as_object_mut)
    {
        queue.remove("x-kubernetes-validations");
        queue.insert("description".to_owned(), json!("The scheduler's queue."));
    }
}

/// Returns the same version as `v1`. Both have the same properties, or reading through one would lose what the other knows.
fn as_v1(version: &Value) -> Value {
    let mut v1 = version.clone();
    v1["name"] = json!(V1);
    v1["storage"] = json!(false);
    if let Some(origin) = v1.pointer_mut(&format!("{SPEC}/submittedAs")) {
        origin["default"] = json!(V1);
    }
    v1
}

/// Limits the job's name so that `<job>-launcher` and `<job>-worker-0` are valid host names.
fn launcher_name_fits() -> Rule {
    Rule::new("oldSelf.hasValue() || self.metadata.name.size() <= 54")
        .message(
            "metadata.name may have at most 54 characters, because <metadata.name>-launcher names a host and may have 63",
        )
        .reason(Reason::FieldValueInvalid)
        .field_path(".metadata.name")
        .optional_old_self(true)
}

/// Allows only two replica types in `v1`. `v2beta1` ignores other types, as published.
fn types_of_v1_are_known() -> Rule {
    Rule::new(format!(
        "self.?submittedAs.orValue('{V2BETA1}') != '{V1}' || \
         self.{REPLICA_MAP}.all(t, t in ['{LAUNCHER}', '{WORKER}'])"
    ))
    .message("supported replica types: \"Launcher\", \"Worker\"")
    .reason(Reason::FieldValueInvalid)
    .field_path(format!(".{REPLICA_MAP}"))
}

/// Treats an unset number of workers as none in `v1`. `v2beta1` requires at least one worker.
fn workers_are_counted() -> Rule {
    let workers = format!("self.{REPLICA_MAP}['{WORKER}']");
    Rule::new(format!(
        "!('{WORKER}' in self.{REPLICA_MAP}) || self.?submittedAs.orValue('{V2BETA1}') == '{V1}' || \
         {workers}.?replicas.orValue(0) >= 1"
    ))
    .message("must be greater than or equal to 1; leave Worker out for a job without workers")
    .reason(Reason::FieldValueInvalid)
    .field_path(format!(".{REPLICA_MAP}['{WORKER}'].replicas"))
}

/// Allows two of the four restart policies in `v2beta1`.
fn restart_policies_are_known() -> Rule {
    Rule::new(format!(
        "self.?submittedAs.orValue('{V2BETA1}') == '{V1}' || \
         self.{REPLICA_MAP}.all(t, !(t in ['{LAUNCHER}', '{WORKER}']) || \
         self.{REPLICA_MAP}[t].?restartPolicy.orValue('') in ['', 'Never', 'OnFailure'])"
    ))
    .message("restartPolicy: supported values: \"Never\", \"OnFailure\"")
    .reason(Reason::FieldValueInvalid)
    .field_path(format!(".{REPLICA_MAP}"))
}

/// Accepts any value in `v1`: an unknown one means `All`, as in its operator.
fn clean_pod_policy_is_known() -> Rule {
    Rule::new(format!(
        "self.?submittedAs.orValue('{V2BETA1}') == '{V1}' || \
         self.?runPolicy.cleanPodPolicy.orValue('None') in ['All', 'None', 'Running']"
    ))
    .message("supported values: \"All\", \"None\", \"Running\"")
    .reason(Reason::FieldValueInvalid)
    .field_path(".runPolicy.cleanPodPolicy")
}

fn origin_stays() -> Rule {
    // Each side is compared with a constant: the API server can't estimate the cost of comparing two values of unbounded length.
    let v1 =
        |object: &str| format!("(has({object}.submittedAs) && {object}.submittedAs == '{V1}')");
    Rule::new(format!("{} == {}", v1("self"), v1("oldSelf")))
    .message("spec.submittedAs is immutable: a job keeps the meaning of the version that it was made through")
    .reason(Reason::FieldValueForbidden)
    .field_path(".submittedAs")
}
