//! Published behaviour of conditions and counts, one test for each.

use crate::scene::{FAILED, KIND, KindWorld, Scene, pt, world};
use serde_json::json;
use training_core::{JobState, Memory, PodPhase};

fn last(world: &KindWorld) -> String {
    world.conditions().pop().unwrap()
}

#[test]
fn running_and_restarting_take_turns_and_a_failure_stands_last() {
    let mut world = world(pt(2).restart_policy("Worker", "ExitCode"));
    world.settle();
    assert_eq!(world.conditions(), ["Created=True"]);
    world.run_all();
    world.settle();
    assert_eq!(world.conditions(), ["Created=True", "Running=True"]);
    world.fail("pt-worker-0", 130);
    world.settle();
    assert_eq!(world.conditions(), ["Created=True", "Restarting=True"]);
    world.run_all();
    world.settle();
    assert_eq!(world.conditions(), ["Created=True", "Running=True"]);
    world.fail("pt-worker-0", 1);
    world.settle();
    assert_eq!(
        world.conditions(),
        ["Created=True", "Running=False", "Failed=True"]
    );
}

#[test]
fn success_and_failure_are_ends_and_suspension_is_none() {
    let with = |type_: &str| {
        let status = json!({"conditions": [{"type": type_, "status": "True", "reason": "R", "message": "m"}]});
        let status: training_api::JobStatus = serde_json::from_value(status).unwrap();
        let memory: Memory = status.recall();
        memory.is_finished()
    };
    assert!(with("Succeeded") && with("Failed"));
    assert!(!with("Suspended") && !with("Running") && !with("Created") && !with("Restarting"));
}

#[test]
fn a_terminating_pod_that_runs_is_active_and_not_failed() {
    let mut world = world(pt(7).restart_policy("Worker", "Never"));
    world.settle();
    world.run_all();
    world.settle();
    for index in 0..3 {
        world.finish(&format!("pt-worker-{index}"));
    }
    world.change("pt-worker-3", |p| p.leaving = true);
    world.settle();
    let counts = world.status().replica_statuses.unwrap()["Worker"].clone();
    assert_eq!((counts.active, counts.succeeded, counts.failed), (4, 3, 0));
    world.fail("pt-worker-5", 1);
    world.fail("pt-worker-6", 1);
    world.settle();
    let counts = world.status().replica_statuses.unwrap()["Worker"].clone();
    assert_eq!((counts.active, counts.succeeded, counts.failed), (2, 3, 2));
}

#[test]
fn a_job_whose_pods_all_run_says_so_and_when_it_began() {
    let mut world = world(pt(2));
    let began = world.now;
    world.settle();
    world.tick(7);
    world.run_all();
    world.settle();
    let running = world.status().conditions.pop().unwrap();
    assert_eq!(
        (running.type_.as_str(), running.reason.as_deref()),
        ("Running", Some(&*format!("{}Running", KIND.name)))
    );
    assert_eq!(world.memory().started, Some(began));
}

#[test]
fn nothing_is_running_once_it_has_ended() {
    for (code, end) in [(0, "Succeeded=True"), (1, "Failed=True")] {
        let mut world = world(pt(2).restart_policy("Master", "Never"));
        world.settle();
        world.run_all();
        world.settle();
        if code == 0 {
            world.finish("pt-master-0");
        } else {
            world.fail("pt-master-0", code);
        }
        world.settle();
        assert_eq!(world.conditions(), ["Created=True", "Running=False", end]);
        assert_eq!(world.memory().completed, Some(world.now));
    }
}

#[test]
fn a_master_that_ended_well_is_counted_and_ends_the_job() {
    let mut world = world(pt(1));
    world.settle();
    world.run_all();
    world.settle();
    world.finish("pt-master-0");
    world.settle();
    assert_eq!(
        world.status().replica_statuses.unwrap()["Master"].succeeded,
        1
    );
    assert_eq!(last(&world), "Succeeded=True");
}

#[test]
fn a_worker_that_ends_before_its_master_does_not_end_the_job() {
    let mut world = world(pt(2));
    world.settle();
    world.run_all();
    world.settle();
    world.finish("pt-worker-0");
    world.finish("pt-worker-1");
    world.settle();
    assert_eq!(last(&world), "Running=True");
    let counts = world.status().replica_statuses.unwrap();
    assert_eq!(
        (counts["Master"].active, counts["Worker"].succeeded),
        (1, 2)
    );
}

#[test]
fn counts_are_by_role_and_zeros_keep_the_role() {
    let mut world = world(pt(2));
    world.settle();
    let keys = |world: &KindWorld| {
        let counts = world.status().replica_statuses.unwrap();
        counts.into_keys().collect::<Vec<_>>()
    };
    assert_eq!(keys(&world), ["Master", "Worker"]);
    world.run(&["pt-worker-0"]);
    world.settle();
    let counts = world.status().replica_statuses.unwrap();
    assert_eq!((counts["Master"].active, counts["Worker"].active), (0, 1));
    assert_eq!(keys(&world), ["Master", "Worker"]);
}

#[test]
fn a_pod_that_fails_under_never_is_counted_and_fails_the_job_by_name() {
    let mut world = world(pt(2).restart_policy("Worker", "Never"));
    world.settle();
    world.run_all();
    world.settle();
    world.end("pt-worker-1", PodPhase::Failed, Some(1));
    world.settle();
    let failed = world.status().conditions.pop().unwrap();
    assert_eq!(
        failed.reason.as_deref(),
        Some(&*format!("{}Failed", KIND.name))
    );
    assert_eq!(failed.message.as_deref(), Some(FAILED));
    let counts = world.status().replica_statuses.unwrap();
    assert_eq!((counts["Worker"].active, counts["Worker"].failed), (1, 1));
    assert_eq!(world.pod_names().len(), 3, "the default keeps all pods");
}
