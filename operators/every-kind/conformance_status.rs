//! Published behaviour of conditions and counts, one test each.

use super::ranks::{by_role, counts, succeed, worker};
use crate::scene::{CHIEF, CHIEF_DECIDES, CHIEF_ROLE, FAILED, KIND, KindWorld, Scene, pt, world};
use serde_json::json;
use training_core::{DurableState, JobState, PodPhase};

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
    world.fail(worker(0), 130);
    world.settle();
    assert_eq!(world.conditions(), ["Created=True", "Restarting=True"]);
    world.run_all();
    world.settle();
    assert_eq!(world.conditions(), ["Created=True", "Running=True"]);
    world.fail(worker(0), 1);
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
        let state: DurableState = status.durable_state();
        state.is_finished()
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
        world.finish(worker(index));
    }
    world.change(worker(3), |p| p.terminating = true);
    world.settle();
    assert_eq!(counts(&world), by_role([1, 0, 0], [4, 3, 0]));
    world.fail(worker(5), 1);
    world.fail(worker(6), 1);
    world.settle();
    assert_eq!(counts(&world), by_role([1, 0, 0], [2, 3, 2]));
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
    assert_eq!(world.durable_state().started, Some(began));
}

#[test]
fn nothing_is_running_once_it_has_ended() {
    for (code, end) in [(0, "Succeeded=True"), (1, "Failed=True")] {
        let mut world = world(pt(2).restart_policy(CHIEF_ROLE, "Never"));
        world.settle();
        world.run_all();
        world.settle();
        if code == 0 {
            succeed(&mut world);
        } else {
            world.fail(CHIEF, code);
        }
        world.settle();
        assert_eq!(world.conditions(), ["Created=True", "Running=False", end]);
        assert_eq!(world.durable_state().completed, Some(world.now));
    }
}

#[test]
fn a_chief_that_ended_well_is_counted_and_who_decides_ends_the_job() {
    let mut world = world(pt(1));
    world.settle();
    world.run_all();
    world.settle();
    world.finish(CHIEF);
    world.settle();
    assert_eq!(counts(&world)[CHIEF_ROLE][1], 1);
    assert_eq!(last(&world) == "Succeeded=True", CHIEF_DECIDES);
    succeed(&mut world);
    world.settle();
    let all = i32::from(!CHIEF_DECIDES);
    let ended = by_role([0, 1, 0], [0, all, 0]);
    assert_eq!(counts(&world)[CHIEF_ROLE][1], ended[CHIEF_ROLE][1]);
    assert_eq!(last(&world), "Succeeded=True");
}

#[test]
fn a_worker_that_ends_before_its_chief_does_not_end_the_job() {
    let mut world = world(pt(2));
    world.settle();
    world.run_all();
    world.settle();
    world.finish(worker(0));
    world.finish(worker(1));
    world.settle();
    assert_eq!(last(&world), "Running=True");
    assert_eq!(counts(&world), by_role([1, 0, 0], [0, 2, 0]));
}

#[test]
fn counts_are_by_role_and_zeros_keep_the_role() {
    let mut world = world(pt(2));
    world.settle();
    assert_eq!(counts(&world), by_role([0; 3], [0; 3]));
    world.run(&[worker(0)]);
    world.settle();
    assert_eq!(counts(&world), by_role([0; 3], [1, 0, 0]));
}

#[test]
fn a_pod_that_fails_under_never_is_counted_and_fails_the_job_by_name() {
    let mut world = world(pt(2).restart_policy("Worker", "Never"));
    world.settle();
    world.run_all();
    world.settle();
    world.end(worker(1), PodPhase::Failed, Some(1));
    world.settle();
    let failed = world.status().conditions.pop().unwrap();
    assert_eq!(
        failed.reason.as_deref(),
        Some(&*format!("{}Failed", KIND.name))
    );
    assert_eq!(failed.message.as_deref(), Some(FAILED));
    assert_eq!(counts(&world), by_role([1, 0, 0], [1, 0, 1]));
    assert_eq!(world.pod_names().len(), 3, "the default keeps all pods");
}
