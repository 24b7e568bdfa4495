//! Jobs and worlds for the tests in this directory.

use pytorch_operator::{PyTorch, PyTorchJob};
use serde_json::{Value, json};
use training_testkit::builders::{self, Kind, PYTORCH};
#[allow(unused_imports)]
pub use training_testkit::scene::Scene;
use training_testkit::scene::{self, placed};
use training_testkit::world::World;

/// The kind.
pub const KIND: Kind = PYTORCH;
/// Its short name.
pub const SHORT_NAME: &str = "ptj";
/// The custom resource.
pub type Resource = PyTorchJob;
/// JSON pointer to the master's replica spec.
pub const MASTER: &str = "/spec/pytorchReplicaSpecs/Master";
/// The pod of rank 0 of [`pt`].
pub const CHIEF: &str = "pt-master-0";
/// Its role.
pub const CHIEF_ROLE: &str = "Master";
/// The job succeeds with this role.
pub const CHIEF_DECIDES: bool = true;
/// JSON pointer to the workers' replica spec.
pub const WORKER: &str = "/spec/pytorchReplicaSpecs/Worker";
/// The default restart policy.
pub const RESTART: &str = "OnFailure";
/// The number of workers in tests of large jobs.
pub const MANY: u32 = 10_000;
/// A variable that every pod has.
pub const VARIABLE: &str = "RANK";

/// The fields of the spec that only this kind has.
pub const FIELDS: &[&str] = &[
    "spec.elasticPolicy.maxReplicas",
    "spec.elasticPolicy.maxRestarts",
    "spec.elasticPolicy.metrics",
    "spec.elasticPolicy.minReplicas",
    "spec.elasticPolicy.nProcPerNode",
    "spec.elasticPolicy.rdzvBackend",
    "spec.elasticPolicy.rdzvConf[].key",
    "spec.elasticPolicy.rdzvConf[].value",
    "spec.elasticPolicy.rdzvHost",
    "spec.elasticPolicy.rdzvId",
    "spec.elasticPolicy.rdzvPort",
    "spec.elasticPolicy.standalone",
    "spec.nprocPerNode",
];
/// Rows of this kind's own table that the types can't decode.
pub const SET_ASIDE: &[&str] = &["B-066 a number of processes that is no string"];
#[allow(unused_imports)]
pub use pytorch_operator::api::crd;

/// The framework as the tests run it.
pub fn framework() -> PyTorch {
    PyTorch::default()
}

/// The message of a job that failed with one worker.
pub const FAILED: &str = "PyTorchJob pt is failed because 1 Worker replica(s) failed.";

/// A world of one job of the kind.
pub type KindWorld = World<PyTorch>;

/// The job `pt` with one master and this many workers, in namespace `ns1`, which the operator has not seen yet.
pub fn pt(workers: u32) -> builders::Job {
    scene::job(&KIND, workers)
}

/// Jobs of every shape, for property tests.
pub fn shapes() -> Vec<builders::Job> {
    let bounds = json!({"minReplicas": 1, "maxReplicas": 4});
    vec![pt(2), pt(1), without_master("nm", 3), el(3, bounds)]
}

/// The job `el`: workers only, with an elastic policy.
pub fn el(workers: u32, policy: Value) -> builders::Job {
    without_master("el", workers).set("/spec/elasticPolicy", policy)
}

/// A job of workers only.
pub fn without_master(name: &str, workers: u32) -> builders::Job {
    placed(KIND.job(name).workers(workers))
}

/// The typed job.
pub fn typed(job: builders::Job) -> PyTorchJob {
    serde_json::from_value(job.build()).unwrap()
}

/// A world in which the operator is about to observe the job for the first time.
pub fn world(job: builders::Job) -> KindWorld {
    let mut world = World::new(PyTorch::default(), typed(job));
    world.scale = "/spec/pytorchReplicaSpecs/Worker/replicas";
    let cpu = json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}});
    world.edits = vec![
        ("/spec/elasticPolicy/metrics", json!([cpu])),
        ("/spec/elasticPolicy/metrics", Value::Null),
        ("/spec/elasticPolicy/metrics", json!([])),
        ("/spec/elasticPolicy/maxReplicas", json!(5)),
        ("/spec/elasticPolicy/minReplicas", json!(2)),
        ("/spec/nprocPerNode", json!("2")),
        (
            "/spec/pytorchReplicaSpecs/Worker/template/spec/hostNetwork",
            json!(true),
        ),
    ];
    world
}
