//! Jobs and worlds for the tests of this directory.

use serde_json::{Value, json};

use mpi_operator::{MPIJob, Mpi};
use training_core::BatchEnd;
use training_testkit::builders::{self, MPI};
#[allow(unused_imports)]
pub use training_testkit::scene::Scene;
use training_testkit::scene::placed;
use training_testkit::world::World;

/// A job with a launcher and two workers, modified.
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

/// A world of one job of the kind.
pub type KindWorld = World<Mpi>;

/// The framework used by the tests.
pub fn framework() -> Mpi {
    Mpi::default()
}

/// The job `pi` with this number of workers.
pub fn pi(workers: u32) -> builders::Job {
    placed(MPI.job("pi").role("Launcher", 1).workers(workers))
}

/// Jobs of every shape, for random histories.
pub fn shapes() -> Vec<builders::Job> {
    let ready = "WaitForWorkersReady";
    vec![
        pi(2),
        pi(1).set("/spec/launcherCreationPolicy", ready),
        pi(1).set("/spec/runLauncherAsWorker", true),
        pi(2).set("/spec/submittedAs", "v1"),
        pi(1).set("/spec/mpiImplementation", "MPICH"),
    ]
}

/// The typed job.
pub fn typed(job: builders::Job) -> MPIJob {
    serde_json::from_value(job.build()).unwrap()
}

/// A world before the operator's first reconcile of the job.
pub fn world(job: builders::Job) -> KindWorld {
    let mut world = World::new(framework(), typed(job));
    world.scale = "/spec/mpiReplicaSpecs/Worker/replicas";
    let image = "/spec/mpiReplicaSpecs/Launcher/template/spec/containers";
    world.edits = vec![
        ("/spec/slotsPerWorker", json!(2)),
        ("/spec/runLauncherAsWorker", json!(true)),
        (image, json!([{ "name": "any", "image": "other" }])),
    ];
    world
}

/// The launcher's Job fails for good.
pub fn give_up(world: &mut KindWorld, reason: &str, message: &str) {
    let end = BatchEnd::Failed {
        reason: reason.to_owned(),
        message: message.to_owned(),
    };
    world.change_batch("pi-launcher", |b| b.end = Some(end));
}

/// The launcher's Job fails because its pods failed too often.
pub fn give_up_at_limit(world: &mut KindWorld) {
    let text = "Job has reached the specified backoff limit";
    give_up(world, "BackoffLimitExceeded", text);
}
