//! Pods and jobs that the tests submit, and their expected conditions.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams};
use serde_json::{Value, json};
use training_testkit::builders::{Job, Kind, PYTORCH};
use training_testkit::job::{Condition, counters};
use training_testkit::manifest;

use crate::read;

/// The image of small containers.
const PYTHON: &str = "trainyard/python:1";
/// The JSON pointer of a Master's pod spec.
pub const MASTER: &str = "/spec/pytorchReplicaSpecs/Master/template/spec";
/// The JSON pointer of a Worker's pod spec.
pub const WORKER: &str = "/spec/pytorchReplicaSpecs/Worker/template/spec";
/// The annotation with a pod's attempt.
const ATTEMPT: &str = "trainyard.dev/attempt";

/// Returns a pod with one container that runs a shell script, for a `PyTorchJob`.
pub fn shell(script: &str) -> Value {
    shell_of(&PYTORCH, script)
}

/// Returns the same for a job of any kind.
pub fn shell_of(kind: &Kind, script: &str) -> Value {
    json!({
        // A shell as first process ignores SIGTERM.
        "terminationGracePeriodSeconds": 1,
        "containers": [{
            "name": kind.any_container(),
            "image": PYTHON,
            "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", script],
            "resources": { "requests": { "cpu": "10m", "memory": "16Mi" } },
        }],
    })
}

/// Returns a `PyTorchJob` with one master and one worker with these pods.
pub fn pair(name: &str, master: Value, worker: Value) -> Job {
    pair_of(&PYTORCH, name, master, worker)
}

/// Returns the same for any kind.
pub fn pair_of(kind: &Kind, name: &str, master: Value, worker: Value) -> Job {
    let template = |role: &str| format!("/spec/{}/{role}/template/spec", kind.replica_map);
    kind.job(name)
        .master()
        .workers(1)
        .set(&template("Master"), master)
        .set(&template("Worker"), worker)
}

/// Returns the job's number of active pods, which includes terminating ones.
pub fn active(job: &Value) -> i64 {
    let roles = job["status"]["replicaStatuses"].as_object();
    let of = |role: &String| counters(job, role).get("active").copied().unwrap_or(0);
    roles.into_iter().flat_map(|r| r.keys()).map(of).sum()
}

/// Reads the job in an example file.
pub fn example(file: &str) -> Result<Value> {
    let path = training_testkit::control_plane::workspace()
        .join("examples")
        .join(file);
    let mut documents = manifest::documents(&path)?;
    ensure!(
        documents.len() == 1,
        "{} objects in {file}",
        documents.len()
    );
    documents.pop().context("an empty example")
}

/// Returns the first condition of every job.
pub fn created(name: &str) -> Condition {
    let message = format!("PyTorchJob {name} is created.");
    Condition::new("Created", "True", "PyTorchJobCreated", &message)
}

/// Returns the condition of a running job.
pub fn running(name: &str) -> Condition {
    let message = format!("PyTorchJob {name} is running.");
    Condition::new("Running", "True", "PyTorchJobRunning", &message)
}

/// Returns the condition `Running` of a job that no longer runs.
pub fn no_longer_running(name: &str) -> Condition {
    let message = format!("PyTorchJob {name} is running.");
    Condition::new("Running", "False", "PyTorchJobRunning", &message)
}

/// Returns the condition of a succeeded job.
pub fn succeeded(name: &str) -> Condition {
    let message = format!("PyTorchJob {name} is successfully completed.");
    Condition::new("Succeeded", "True", "PyTorchJobSucceeded", &message)
}

/// Returns the condition of a failed job.
pub fn failed(message: &str) -> Condition {
    Condition::new("Failed", "True", "PyTorchJobFailed", message)
}

/// Returns the id of a pod's main container.
pub fn container(pod: &Value) -> Result<&str> {
    let id = pod["status"]["containerStatuses"][0]["containerID"].as_str();
    id.with_context(|| format!("{} has no container", read::name(pod)))
}

/// Deletes a pod, as `kubectl delete pod` does.
pub async fn delete(pods: &Api<Pod>, name: &str) -> Result<()> {
    pods.delete(name, &DeleteParams::default()).await?;
    Ok(())
}

/// Returns a pod's attempt.
pub fn attempt(pod: &Value) -> &str {
    pod["metadata"]["annotations"][ATTEMPT]
        .as_str()
        .unwrap_or_default()
}
