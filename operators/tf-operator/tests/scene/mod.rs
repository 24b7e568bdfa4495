//! Jobs and worlds for the tests of this directory.

use serde_json::json;
use tf_operator::{TFJob, TensorFlow};
use training_testkit::builders::{self, Kind, TENSORFLOW};
#[allow(unused_imports)]
pub use training_testkit::scene::Scene;
use training_testkit::scene::{self, placed};
use training_testkit::world::World;

/// The kind.
pub const KIND: Kind = TENSORFLOW;
/// Its short name.
pub const SHORT_NAME: &str = "tfj";
/// The custom resource.
pub type Resource = TFJob;
/// The pod of rank 0 of [`pt`].
pub const CHIEF: &str = "pt-master-0";
/// Its role.
pub const CHIEF_ROLE: &str = "Master";
/// Its success is the job's.
pub const CHIEF_DECIDES: bool = true;
/// JSON pointer to the workers' replica spec.
pub const WORKER: &str = "/spec/tfReplicaSpecs/Worker";
/// The default restart policy.
pub const RESTART: &str = "Never";
/// The most workers with which one job is tested. A longer list fits into no variable.
pub const MANY: u32 = 3_000;
/// A variable that every pod gets.
pub const VARIABLE: &str = "TF_CONFIG";
/// The message of a job after one worker has failed.
pub const FAILED: &str = "TFJob ns1/pt has failed because 1 Worker replica(s) failed.";

/// A world of one job of the kind.
pub type KindWorld = World<TensorFlow>;

/// The fields of the spec that only this kind has.
pub const FIELDS: &[&str] = &["spec.enableDynamicWorker", "spec.successPolicy"];
/// Rows of this kind's own table that the types can't decode.
pub const SET_ASIDE: &[&str] = &["a number as success policy"];
#[allow(unused_imports)]
pub use tf_operator::api::crd;

/// The framework used by the tests.
pub fn framework() -> TensorFlow {
    TensorFlow::default()
}

/// The job `pt` with one master and this number of workers, in namespace `ns1`, not yet seen by the operator.
pub fn pt(workers: u32) -> builders::Job {
    scene::job(&KIND, workers)
}

/// The job `tf` with these roles.
pub fn of(roles: &[(&str, u32)]) -> builders::Job {
    let job = KIND.job("tf");
    placed(roles.iter().fold(job, |job, (role, n)| job.role(role, *n)))
}

/// Jobs of every shape, for random histories.
pub fn shapes() -> Vec<builders::Job> {
    let servers = of(&[("PS", 1), ("Worker", 2), ("Evaluator", 1)]);
    let dynamic = of(&[("Worker", 3)]).set("/spec/enableDynamicWorker", true);
    let all = of(&[("Worker", 2)]).set("/spec/successPolicy", "AllWorkers");
    vec![
        pt(2),
        pt(1),
        of(&[("Chief", 1), ("PS", 2)]),
        servers,
        dynamic,
        all,
    ]
}

/// The typed job.
pub fn typed(job: builders::Job) -> TFJob {
    serde_json::from_value(job.build()).unwrap()
}

/// A world before the operator's first reconcile of the job.
pub fn world(job: builders::Job) -> KindWorld {
    let mut world = World::new(framework(), typed(job));
    world.scale = "/spec/tfReplicaSpecs/Worker/replicas";
    world.edits = vec![
        ("/spec/successPolicy", json!("AllWorkers")),
        ("/spec/enableDynamicWorker", json!(true)),
        (
            "/spec/tfReplicaSpecs/Worker/template/spec/hostNetwork",
            json!(true),
        ),
    ];
    world
}
