//! Backoff limit, deadline, and size limits.

use super::ranks::{succeed, worker};
use crate::scene::{CHIEF, KIND, Scene, WORKER, pt, world};
use serde_json::json;
use training_core::{JobState, PodPhase};
use training_testkit::world::Move;

const BACKOFF: &str = "Job pt has failed because it has reached the specified backoff limit";
const DEADLINE: &str = "Job pt has failed because it was active longer than specified deadline";

fn message(world: &crate::scene::KindWorld) -> String {
    world
        .status()
        .conditions
        .last()
        .and_then(|c| c.message.clone())
        .unwrap_or_default()
}

/// Counts how often worker 0 was recreated before the job failed.
fn replacements(limit: i32, code: i32) -> usize {
    let mut world = world(
        pt(1)
            .restart_policy("Worker", "ExitCode")
            .run_policy("backoffLimit", limit),
    );
    world.settle();
    let mut made = 0;
    for _ in 0..20 {
        world.run_all();
        world.settle();
        world.fail(worker(0), code);
        world.writes.clear();
        world.settle();
        while let (None, Some(wake), false) = (
            world.pod(worker(0)),
            world.plan().requeue_at,
            world.durable_state().is_finished(),
        ) {
            world.now = wake;
            world.settle();
        }
        made += world
            .writes
            .iter()
            .filter(|w| **w == format!("create pod {}", worker(0)))
            .count();
        if world.durable_state().is_finished() {
            assert_eq!(message(&world), BACKOFF);
            assert_eq!(world.durable_state().completed, Some(world.now));
            return made;
        }
    }
    made
}

#[test]
fn i_16_b_086_a_job_ends_with_the_failure_after_its_last_allowed_replacement() {
    for (limit, expected) in [(0, 0), (1, 1), (3, 3)] {
        assert_eq!(replacements(limit, 137), expected, "limit {limit}");
    }
}

#[test]
fn b_085_the_largest_limit_works() {
    assert_eq!(replacements(i32::MAX, 137), 20);
}

#[test]
fn restarts_in_place_end_the_job_when_they_reach_the_limit() {
    let rows: [(i32, &[u32], bool); 7] = [
        (3, &[3], true),
        (3, &[2], false),
        (3, &[1, 2], true),
        (4, &[1, 2], false),
        (0, &[0], false),
        (0, &[1], true),
        (1, &[1], true),
    ];
    for (limit, restarts, ends) in rows {
        let mut world = world(pt(2).run_policy("backoffLimit", limit));
        world.settle();
        world.run_all();
        for (at, count) in restarts.iter().enumerate() {
            world.change(worker(at), |p| p.restarts = *count);
        }
        world.settle();
        assert_eq!(
            message(&world) == BACKOFF,
            ends,
            "limit {limit}, {restarts:?}"
        );
    }
}

#[test]
fn restarts_in_place_are_not_forgotten_when_their_pod_goes() {
    let mut world = world(pt(2).run_policy("backoffLimit", 4));
    world.settle();
    world.run_all();
    world.change(worker(0), |p| p.restarts = 3);
    world.settle();
    world.happen(Move::Vanish(1));
    world.settle();
    assert_eq!(world.status_json()["containerRestarts"], 3);
    assert_eq!(world.status_json()["restarts"], 3);
}

#[test]
fn restarts_in_place_of_a_role_that_never_restarts_do_not_count() {
    let mut world = world(
        pt(1)
            .restart_policy("Worker", "Never")
            .run_policy("backoffLimit", 1),
    );
    world.settle();
    world.run_all();
    world.change(worker(0), |p| p.restarts = 9);
    world.settle();
    assert_eq!(world.conditions(), ["Created=True", "Running=True"]);
}

#[test]
fn b_144_a_limit_lowered_below_the_count_ends_the_job() {
    let mut world = world(pt(1).run_policy("backoffLimit", 5));
    world.settle();
    for _ in 0..2 {
        world.run_all();
        world.fail(worker(0), 1);
        world.settle();
        world.tick(60);
        world.settle();
    }
    world.run_all();
    world.happen(Move::Limit(2));
    world.settle();
    assert_eq!(
        world.conditions().last().map(String::as_str),
        Some("Running=True")
    );
    world.happen(Move::Limit(1));
    world.settle();
    assert_eq!(message(&world), BACKOFF);
}

#[test]
fn b_088_a_quiet_job_ends_at_its_deadline_to_the_second() {
    let mut world = world(pt(1).run_policy("activeDeadlineSeconds", 60));
    world.settle();
    world.run_all();
    world.settle();
    let start = world.durable_state().started.unwrap();
    let wake = world.plan().requeue_at.unwrap();
    assert_eq!((wake - start).get_seconds(), 60);
    world.tick(59);
    assert!(world.plan().is_idle());
    world.tick(1);
    world.settle();
    assert_eq!(message(&world), DEADLINE);
    let events = world.events();
    assert!(
        events.contains(&format!("Normal {}Failed: {DEADLINE}", KIND.name)),
        "{events:?}"
    );
    assert!(
        events.contains(
            &"Warning DeadlineExceeded: runPolicy.activeDeadlineSeconds is 60".to_owned()
        )
    );
    assert!(
        events
            .iter()
            .any(|e| e.starts_with("Warning PodsStillRunning: 2 pods still run"))
    );
}

#[test]
fn b_088_a_job_whose_spec_becomes_invalid_ends_at_its_deadline_also_beyond_its_limit() {
    let mut world = world(pt(1).run_policy("activeDeadlineSeconds", 100)).started();
    world.fail(worker(0), 1);
    world.settle();
    assert_eq!(world.durable_state().counted_failures, 1);
    world.set(&format!("{WORKER}/replicas"), json!(-1));
    world.set("/spec/runPolicy/backoffLimit", json!(0));
    world.settle();
    assert!(
        !world.durable_state().is_finished(),
        "{:?}",
        world.conditions()
    );
    let left = world.plan().requeue_at.unwrap() - world.now;
    world.tick(left.get_seconds());
    world.settle();
    assert!(
        world.durable_state().is_finished(),
        "{:?}",
        world.conditions()
    );
    assert_eq!(world.plan().requeue_at, None);
}

#[test]
fn b_087_i_45_a_deadline_beyond_the_calendar_never_comes_and_one_of_zero_is_past() {
    let mut far = world(pt(1).run_policy("activeDeadlineSeconds", i64::MAX));
    far.settle();
    assert_eq!(
        (far.plan().requeue_at, far.conditions()),
        (None, vec!["Created=True".to_owned()])
    );
    let mut now = world(pt(1).run_policy("activeDeadlineSeconds", 0));
    now.settle();
    assert_eq!(
        (message(&now), now.pod_names().len()),
        (DEADLINE.to_owned(), 0)
    );
}

#[test]
fn i_14_an_end_in_the_midst_of_trouble_leaves_no_false_times() {
    let mut world = world(pt(1).run_policy("activeDeadlineSeconds", 60));
    world.refusing = true;
    world.reconciles(3);
    world.tick(1);
    world.refusing = false;
    world.settle();
    assert_eq!(world.conditions(), ["Stalled=False", "Created=True"]);
    let resolved = world.status().conditions[0].last_transition_time.clone();
    world.happen(Move::Vanish(0));
    world.refusing = true;
    world.reconcile();
    world.tick(60);
    world.reconciles(1);
    assert_eq!(
        world.conditions(),
        ["Stalled=False", "Created=True", "Failed=True"]
    );
    assert_eq!(world.status().conditions[0].last_transition_time, resolved);
}

#[test]
fn a_pod_that_still_runs_at_the_backoff_limit_is_told_of() {
    let mut world = world(pt(1).run_policy("backoffLimit", 0));
    world.settle();
    world.run_all();
    world.settle();
    world.fail(worker(0), 1);
    world.settle();
    let events = world.events();
    assert!(
        events
            .iter()
            .any(|e| e.starts_with("Warning PodsStillRunning: 1 pod still runs,")),
        "{events:?}"
    );
    assert!(
        events
            .iter()
            .any(|e| e.starts_with("Warning BackoffLimitExceeded: ")),
        "{events:?}"
    );
}

#[test]
fn the_operator_can_be_set_to_clean_up_failed_jobs() {
    for (clean_failed, left) in [(false, 3), (true, 1)] {
        let mut world = world(pt(2).run_policy("activeDeadlineSeconds", 60));
        world.rules.clean_failed = clean_failed;
        world.settle();
        world.run_all();
        world.finish(worker(0));
        world.settle();
        world.tick(60);
        world.settle();
        world.run_until_settled(false);
        assert_eq!(world.conditions().last().unwrap(), "Failed=True");
        assert_eq!(
            (world.pod_names().len(), world.services().len()),
            (left, left)
        );
        let warned = world.notes.iter().any(|n| n.reason == "PodsStillRunning");
        assert_eq!(warned, !clean_failed);
    }
    // A job that succeeded keeps its pods.
    let mut world = world(pt(2));
    world.rules.clean_failed = true;
    world.settle();
    world.run_all();
    succeed(&mut world);
    world.settle();
    assert_eq!(world.pod_names().len(), 3);
}

#[test]
fn a_job_that_becomes_invalid_while_it_runs_says_so_and_goes_on_to_its_end() {
    let mut world = world(pt(1)).started();
    world.set("/spec/runPolicy/backoffLimit", (-1).into());
    world.settle();
    assert_eq!(
        world.conditions(),
        ["Stalled=True", "Created=True", "Running=True"]
    );
    let stalled = world.status().conditions[0].clone();
    let said = stalled.message.unwrap();
    assert_eq!(stalled.reason.as_deref(), Some("InvalidSpec"));
    assert!(said.starts_with("spec.runPolicy.backoffLimit: "), "{said}");
    let told = world.notes.iter().filter(|n| n.reason == "InvalidSpec");
    assert_eq!(told.count(), 1);
    let mut fixed = world.clone();
    world.finish(worker(0));
    succeed(&mut world);
    world.settle();
    assert_eq!(world.conditions().last().unwrap(), "Succeeded=True");
    fixed.set("/spec/runPolicy/backoffLimit", 3.into());
    fixed.settle();
    assert_eq!(
        fixed.conditions(),
        ["Stalled=False", "Created=True", "Running=True"]
    );
}

#[test]
fn a_limit_that_the_operator_lowers_does_not_concern_jobs_that_run() {
    let mut world = world(pt(3)).started();
    world.rules.max_replicas = 2;
    world.crash();
    world.settle();
    assert_eq!(world.conditions(), ["Created=True", "Running=True"]);
    world.fail(worker(1), 137);
    world.settle();
    assert_eq!(world.pod(worker(1)).unwrap().attempt.to_string(), "0.1");
    // The job exceeds the limit but goes on with the pods that it has.
    world.run_all();
    world.settle();
    world.set(&format!("{WORKER}/replicas"), i32::MAX.into());
    world.settle();
    let stalled = world.status().conditions[0].clone();
    assert_eq!(stalled.reason.as_deref(), Some("InvalidSpec"));
    assert_eq!(
        (stalled.status.as_str(), world.pod_names().len()),
        ("True", 4)
    );
    assert_eq!(world.status_json()["ready"], "4/4");
    world.fail(worker(0), 137);
    world.settle();
    assert_eq!(world.pod(worker(0)).unwrap().attempt.to_string(), "0.1");
}

#[test]
fn mt_06_strict_mode_runs_no_job_with_a_priority_class_of_the_system() {
    let template = format!("{WORKER}/template/spec/priorityClassName");
    let of_worker = format!(
        "spec.{}[Worker].template.spec.priorityClassName: ",
        KIND.replica_map
    );
    let gang = "/spec/runPolicy/schedulingPolicy/priorityClass";
    for (path, class, refused) in [
        (
            template.as_str(),
            "system-node-critical",
            Some(of_worker.as_str()),
        ),
        (
            gang,
            "system-cluster-critical",
            Some("spec.runPolicy.schedulingPolicy.priorityClass: "),
        ),
        (&template, "high", None),
        (gang, "high", None),
    ] {
        let mut world = world(pt(1).set(path, class));
        world.rules.strict = true;
        world.settle();
        let said = message(&world);
        assert_eq!(world.pod_names().is_empty(), refused.is_some(), "{said}");
        if let Some(field) = refused {
            assert_eq!(world.conditions(), ["Created=True", "Failed=True"]);
            assert!(
                said.starts_with(field) && said.contains(class) && said.contains("--strict"),
                "{said}"
            );
        }
    }
}

#[test]
fn mt_06_strict_mode_tells_of_a_priority_class_in_a_job_that_runs_and_lets_it_go_on() {
    let template = format!("{WORKER}/template/spec/priorityClassName");
    let mut world = world(pt(1).set(&template, "system-node-critical")).started();
    world.rules.strict = true;
    world.crash();
    world.settle();
    assert_eq!(
        world.conditions(),
        ["Stalled=True", "Created=True", "Running=True"]
    );
    assert_eq!(world.pod_names().len(), 2);
}

#[test]
fn b_060_the_ceiling_is_the_operators() {
    for (most, runs) in [(4, true), (3, false)] {
        let mut world = world(pt(3));
        world.rules.max_replicas = most;
        world.settle();
        assert_eq!(world.pod_names().len() == 4, runs, "at most {most}");
    }
}

#[test]
fn b_060_more_replicas_than_the_operator_bears_end_the_job_without_taking_memory() {
    for replicas in [20_001, 1_000_000, i32::MAX] {
        let mut world = world(pt(1).set(&format!("{WORKER}/replicas"), replicas));
        world.settle();
        let said = message(&world);
        assert!(
            said.starts_with(&format!("spec.{}[Worker].replicas: ", KIND.replica_map)),
            "{said}"
        );
        assert_eq!(world.pod_names().len(), 0);
    }
}

#[test]
fn i_20_the_status_of_a_thousand_restarted_workers_stays_small_and_all_come_back() {
    let mut world = world(pt(1_000));
    world.reconciles(60);
    assert_eq!(world.pod_names().len(), 1_001);
    world.run_all();
    world.settle();
    let names: Vec<String> = world.pods().map(|(n, _)| n.to_owned()).collect();
    for name in names.iter().filter(|n| *n != CHIEF) {
        world.fail(name, 137);
    }
    let mut largest = 0;
    for _ in 0..400 {
        world.reconciles(1);
        largest = largest.max(world.status_json().to_string().len());
        if world.plan().is_idle() {
            break;
        }
    }
    assert_eq!(
        world.durable_state().counted_failures,
        1_000,
        "every failure counts once"
    );
    assert!(
        world
            .pods()
            .all(|(n, p)| p.phase != PodPhase::Failed && (n == CHIEF || p.attempt.replica == 1))
    );
    assert!((1_000..=32 * 1024).contains(&largest), "{largest} bytes");
    assert_eq!(world.pod_names().len(), 1_001);
}

#[test]
fn i_20_thousands_of_workers_that_fail_at_once_fit_into_one_status() {
    let mut world = world(pt(crate::scene::MANY));
    world.reconciles(60);
    let names: Vec<String> = world.pods().map(|(n, _)| n.to_owned()).collect();
    for name in names.iter().filter(|n| *n != CHIEF) {
        world.fail(name, 137);
    }
    world.reconcile();
    let size = world.status_json().to_string().len();
    assert!((10_000..=32 * 1024).contains(&size), "{size} bytes");
}

#[test]
fn i_20_the_indices_of_ten_thousand_scattered_successes_stay_small() {
    let mut state = training_core::DurableState::default();
    let set = state.finished.entry("worker".to_owned()).or_default();
    (0..10_000).step_by(2).for_each(|index| set.insert(index));
    let status = training_api::JobStatus::default().report(&state);
    assert!(status.finished_indices["worker"].len() <= 8 * 1024);
    assert!(status.durable_state().has_finished("worker", 1_000));
}
