//! The pods of the job `pt`: the chief, which has rank 0, and the workers beside it. The chief is the master or, for a kind without
//! masters, worker 0, so that the other workers have higher indices.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use training_testkit::world::Move;

use crate::scene::{CHIEF, CHIEF_DECIDES, CHIEF_ROLE, KIND, KindWorld, Scene};

const WORKERS: [&str; 8] = [
    "pt-worker-0",
    "pt-worker-1",
    "pt-worker-2",
    "pt-worker-3",
    "pt-worker-4",
    "pt-worker-5",
    "pt-worker-6",
    "pt-worker-7",
];

/// The replicas of the role `Worker` for this number of workers beside the chief.
pub fn replicas(workers: u32) -> u32 {
    KIND.small_roles(workers).1
}

/// The index of a worker beside the chief, counted from 0.
pub fn index(worker: usize) -> usize {
    // A chief of the same role has index 0.
    worker + usize::from(CHIEF_ROLE == "Worker")
}

/// The name of its pod.
pub fn worker(at: usize) -> &'static str {
    WORKERS[index(at)]
}

/// JSON pointer to the replica spec of the chief.
pub fn chief_spec() -> String {
    format!("/spec/{}/{CHIEF_ROLE}", KIND.replica_map)
}

/// Scales the job to this number of workers beside the chief.
pub fn scale(workers: u32) -> Move {
    Move::Scale(u8::try_from(replicas(workers)).unwrap())
}

/// Ends the program successfully: in the deciding pod, or in all that have not ended yet.
pub fn succeed(world: &mut KindWorld) {
    world.finish(CHIEF);
    let pods = world.pods();
    let left: Vec<String> = pods
        .filter(|(_, p)| !CHIEF_DECIDES && !p.phase.has_ended())
        .map(|(name, _)| name.to_owned())
        .collect();
    for pod in left {
        world.finish(&pod);
    }
}

/// A line for each pod: `create pod pt-worker-0`.
pub fn each(what: &str, pods: &[&str]) -> Vec<String> {
    pods.iter().map(|pod| format!("{what} {pod}")).collect()
}

/// Replicas that are active, that succeeded and that failed.
pub type Counts = [i32; 3];

/// Counts by role, in one entry if the chief is a worker.
pub fn by_role(chief: Counts, workers: Counts) -> BTreeMap<String, Counts> {
    let mut roles = BTreeMap::new();
    for (role, counts) in [(CHIEF_ROLE, chief), ("Worker", workers)] {
        let sums: &mut Counts = roles.entry(role.to_owned()).or_default();
        for (sum, count) in sums.iter_mut().zip(counts) {
            *sum += count;
        }
    }
    roles
}

/// The counts in the status.
pub fn counts(world: &KindWorld) -> BTreeMap<String, Counts> {
    let statuses = world.status().replica_statuses.unwrap();
    statuses
        .into_iter()
        .map(|(role, c)| (role, [c.active, c.succeeded, c.failed]))
        .collect()
}

/// [`by_role`] as another operator stores it, without zeros.
pub fn stored(chief: Counts, workers: Counts) -> Value {
    let names = ["active", "succeeded", "failed"];
    let one = |counts: Counts| -> Value {
        let fields = names.iter().zip(counts).filter(|(_, count)| *count > 0);
        fields
            .map(|(name, count)| ((*name).to_owned(), json!(count)))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let roles = by_role(chief, workers).into_iter();
    roles
        .map(|(role, counts)| (role, one(counts)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}
