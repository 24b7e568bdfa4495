//! Jobs and worlds for the tests of this directory.

use serde_json::json;
use training_testkit::builders::{self, Kind, XGBOOST};
#[allow(unused_imports)]
pub use training_testkit::scene::Scene;
use training_testkit::scene::{self, placed};
use training_testkit::world::World;
use xgboost_operator::{XGBoost, XGBoostJob};

/// The kind.
pub const KIND: Kind = XGBOOST;
/// Its short name.
pub const SHORT_NAME: &str = "xgbj";
/// The custom resource.
pub type Resource = XGBoostJob;
/// JSON pointer to the master's replica spec.
pub const MASTER: &str = "/spec/xgbReplicaSpecs/Master";
/// The pod of rank 0 of [`pt`].
pub const CHIEF: &str = "pt-master-0";
/// Its role.
pub const CHIEF_ROLE: &str = "Master";
/// Its success is the job's.
pub const CHIEF_DECIDES: bool = true;
/// JSON pointer to the workers' replica spec.
pub const WORKER: &str = "/spec/xgbReplicaSpecs/Worker";
/// The default restart policy.
pub const RESTART: &str = "Never";
/// The most workers with which one job is tested. A longer list fits into no variable.
pub const MANY: u32 = 3_000;
/// A variable that every pod gets.
pub const VARIABLE: &str = "RANK";
/// The message of a job after one worker has failed.
pub const FAILED: &str = "XGBoostJob pt is failed because 1 Worker replica(s) failed.";

/// A world of one job of the kind.
pub type KindWorld = World<XGBoost>;

/// The fields of the spec that only this kind has.
pub const FIELDS: &[&str] = &[];
/// Rows of this kind's own table that the types can't decode.
pub const SET_ASIDE: &[&str] = &[];
#[allow(unused_imports)]
pub use xgboost_operator::api::crd;

/// The framework used by the tests.
pub fn framework() -> XGBoost {
    XGBoost
}

/// The job `pt` with one master and this number of workers, in namespace `ns1`, not yet seen by the operator.
pub fn pt(workers: u32) -> builders::Job {
    scene::job(&KIND, workers)
}

/// Jobs of every shape, for random histories.
pub fn shapes() -> Vec<builders::Job> {
    let lone = placed(KIND.job("lone").master());
    vec![pt(2), pt(1), lone]
}

/// The typed job.
pub fn typed(job: builders::Job) -> XGBoostJob {
    serde_json::from_value(job.build()).unwrap()
}

/// A world before the operator's first reconcile of the job.
pub fn world(job: builders::Job) -> KindWorld {
    let mut world = World::new(framework(), typed(job));
    world.scale = "/spec/xgbReplicaSpecs/Worker/replicas";
    world.edits = vec![(
        "/spec/xgbReplicaSpecs/Worker/template/spec/hostNetwork",
        json!(true),
    )];
    world
}
