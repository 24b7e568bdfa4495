//! Tests that need two roles: one is removed or added while the other stays.
//!
//! Kinds with a master include this file in addition to the directory.

use crate::scene::{KIND, Scene, pt, world};
use serde_json::Value;
use training_testkit::world::Move;

#[test]
fn b_142_a_role_that_is_removed_takes_its_pods_with_it() {
    let mut world = world(pt(2));
    world.settle();
    world.run_all();
    world.settle();
    world.edit(|job| {
        job["spec"][KIND.replica_map]
            .as_object_mut()
            .unwrap()
            .remove("Worker");
    });
    world.settle();
    assert_eq!(
        world.services().into_iter().collect::<Vec<_>>(),
        ["pt-master-0"]
    );
    assert_eq!(world.pods().filter(|(_, p)| !p.terminating).count(), 1);
    let active = |world: &crate::scene::KindWorld| {
        let counts = world.status().replica_statuses.unwrap();
        counts["Worker"].active
    };
    assert_eq!(active(&world), 2, "they still run");
    world.happen(Move::Gone(0));
    world.happen(Move::Gone(0));
    world.settle();
    assert_eq!(active(&world), 0, "a queue releases their quota");
}

#[test]
fn b_143_a_role_that_is_added_gets_its_pods() {
    let mut world = world(pt(1).without("Worker"));
    world.settle();
    world.run_all();
    world.settle();
    let worker: Value = pt(1).build()["spec"][KIND.replica_map]["Worker"].clone();
    world.edit(|job| job["spec"][KIND.replica_map]["Worker"] = worker);
    world.writes.clear();
    world.settle();
    let made: Vec<&String> = world
        .writes
        .iter()
        .filter(|w| w.starts_with("create"))
        .collect();
    assert_eq!(
        made,
        ["create service pt-worker-0", "create pod pt-worker-0"]
    );
    assert!(world.writes.iter().all(|w| !w.starts_with("delete")));
}
