//! Jobs and worlds for the tests of this directory.

use jax_operator::{JAX, JAXJob};
use serde_json::json;
use training_testkit::builders::{self, Kind};
#[allow(unused_imports)]
pub use training_testkit::scene::Scene;
use training_testkit::scene::{self, placed};
use training_testkit::world::World;

/// The kind.
pub const KIND: Kind = builders::JAX;
/// Its short name.
pub const SHORT_NAME: &str = "jaxj";
/// The custom resource.
pub type Resource = JAXJob;
/// The pod of rank 0 of [`pt`]: there is no other role.
pub const CHIEF: &str = "pt-worker-0";
/// Its role.
pub const CHIEF_ROLE: &str = "Worker";
/// All processes have to succeed.
pub const CHIEF_DECIDES: bool = false;
/// JSON pointer to the workers' replica spec.
pub const WORKER: &str = "/spec/jaxReplicaSpecs/Worker";
/// The default restart policy.
pub const RESTART: &str = "Never";
/// The most workers with which one job is tested.
pub const MANY: u32 = 10_000;
/// A variable that every pod gets.
pub const VARIABLE: &str = "PROCESS_ID";
/// The message of a job after one worker has failed.
pub const FAILED: &str = "JAXJob pt is failed because 1 Worker replica(s) failed.";
/// Rows of this kind's own table that the types can't decode.
pub const SET_ASIDE: &[&str] = &[];
/// The fields of the spec that only this kind has.
pub const FIELDS: &[&str] = &[];
#[allow(unused_imports)]
pub use jax_operator::api::crd;

/// A world of one job of the kind.
pub type KindWorld = World<JAX>;

/// The framework used by the tests.
pub fn framework() -> JAX {
    JAX
}

/// The job `pt` with one worker and this number of others, in namespace `ns1`, not yet seen by the operator.
pub fn pt(workers: u32) -> builders::Job {
    scene::job(&KIND, workers)
}

/// The job `jx` with this number of workers, in namespace `ns1`, not yet seen by the operator.
pub fn jx(workers: u32) -> builders::Job {
    placed(KIND.job("jx").workers(workers))
}

/// Jobs of every shape, for random histories.
pub fn shapes() -> Vec<builders::Job> {
    vec![jx(3), jx(2), jx(1).restart_policy("Worker", "ExitCode")]
}

/// The typed job.
pub fn typed(job: builders::Job) -> JAXJob {
    serde_json::from_value(job.build()).unwrap()
}

/// A world before the operator's first reconcile of the job.
pub fn world(job: builders::Job) -> KindWorld {
    let mut world = World::new(framework(), typed(job));
    world.scale = "/spec/jaxReplicaSpecs/Worker/replicas";
    world.edits = vec![(
        "/spec/jaxReplicaSpecs/Worker/template/spec/hostNetwork",
        json!(true),
    )];
    world
}
