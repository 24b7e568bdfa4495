//! The job of the tables.

use serde_json::{Value, json};

use mpi_operator::MPIJob;

/// A launcher and two workers, changed.
pub fn job(change: impl FnOnce(&mut Value)) -> MPIJob {
    let template = json!({ "spec": { "containers": [{ "name": "any", "image": "any" }] } });
    let mut job = json!({
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": { "name": "pi", "namespace": "ns1", "uid": "00000000-0000-0000-0000-000000000007" },
        "spec": {
            "runPolicy": {},
            "mpiReplicaSpecs": {
                "Launcher": { "replicas": 1, "template": template },
                "Worker": { "replicas": 2, "template": template },
            },
        },
    });
    change(&mut job);
    serde_json::from_value(job).unwrap()
}
