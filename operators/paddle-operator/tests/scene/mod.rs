//! Jobs and worlds for the tests of this directory.

use paddle_operator::{Paddle, PaddleJob};
use serde_json::json;
use training_testkit::builders::{self, Kind, PADDLE};
#[allow(unused_imports)]
pub use training_testkit::scene::Scene;
use training_testkit::scene::{self, placed};
use training_testkit::world::World;

/// The kind.
pub const KIND: Kind = PADDLE;
/// Its short name.
pub const SHORT_NAME: &str = "pdj";
/// The custom resource.
pub type Resource = PaddleJob;
/// JSON pointer to the master's replica spec.
pub const MASTER: &str = "/spec/paddleReplicaSpecs/Master";
/// The pod of rank 0 of [`pt`].
pub const CHIEF: &str = "pt-master-0";
/// Its role.
pub const CHIEF_ROLE: &str = "Master";
/// Its success is the job's.
pub const CHIEF_DECIDES: bool = true;
/// JSON pointer to the workers' replica spec.
pub const WORKER: &str = "/spec/paddleReplicaSpecs/Worker";
/// The default restart policy.
pub const RESTART: &str = "OnFailure";
/// The most workers with which one job is tested.
pub const MANY: u32 = 10_000;
/// A variable that every pod gets.
pub const VARIABLE: &str = "PADDLE_NNODES";
/// The message of a job after one worker has failed.
pub const FAILED: &str = "PaddleJob pt is failed because 1 Worker replica(s) failed.";

/// A world of one job of the kind.
pub type KindWorld = World<Paddle>;

/// The fields of the spec that only this kind has.
pub const FIELDS: &[&str] = &[
    "spec.elasticPolicy.maxReplicas",
    "spec.elasticPolicy.maxRestarts",
    "spec.elasticPolicy.metrics",
    "spec.elasticPolicy.minReplicas",
];
/// Rows of this kind's own table that the types can't decode.
pub const SET_ASIDE: &[&str] = &[];
#[allow(unused_imports)]
pub use paddle_operator::api::crd;

/// The framework used by the tests.
pub fn framework() -> Paddle {
    Paddle
}

/// The job `pt` with one master and this number of workers, in namespace `ns1`, not yet seen by the operator.
pub fn pt(workers: u32) -> builders::Job {
    scene::job(&KIND, workers)
}

/// A job of workers only.
pub fn collective(name: &str, workers: u32) -> builders::Job {
    placed(KIND.job(name).workers(workers))
}

/// Jobs of every shape, for random histories.
pub fn shapes() -> Vec<builders::Job> {
    let servers = placed(KIND.job("servers").role("Master", 2).workers(1));
    vec![pt(2), pt(1), servers, collective("pd", 2)]
}

/// The typed job.
pub fn typed(job: builders::Job) -> PaddleJob {
    serde_json::from_value(job.build()).unwrap()
}

/// A world before the operator's first reconcile of the job.
pub fn world(job: builders::Job) -> KindWorld {
    let mut world = World::new(framework(), typed(job));
    world.scale = "/spec/paddleReplicaSpecs/Worker/replicas";
    world.edits = vec![(
        "/spec/paddleReplicaSpecs/Worker/template/spec/hostNetwork",
        json!(true),
    )];
    world
}
