//! Suspension: no pods, correct counts, and a clean start afterwards.

use super::ranks::{by_role, counts, replicas, stored, succeed, worker};
use crate::scene::{CHIEF, KIND, Scene, WORKER, pt, world};
use serde_json::json;
use std::collections::BTreeMap;
use training_core::PodPhase;
use training_testkit::world::{Move, ReconcileEnd};

fn reasons(world: &crate::scene::KindWorld) -> Vec<String> {
    let line = |c: training_api::JobCondition| {
        let reason = c.reason.unwrap().replace(KIND.name, "Kind");
        format!("{}={} {reason}", c.type_, c.status)
    };
    world.status().conditions.into_iter().map(line).collect()
}

#[test]
fn b_091_a_job_created_suspended_has_nothing_but_its_conditions() {
    let mut world = world(pt(2).run_policy("suspend", true));
    world.settle();
    assert_eq!(
        reasons(&world),
        ["Created=True KindCreated", "Suspended=True KindSuspended"]
    );
    assert_eq!(
        world.status().conditions[1].message.as_deref(),
        Some(&*format!("{} pt is suspended.", KIND.name))
    );
    assert_eq!(
        (
            world.durable_state().started,
            world.pod_names().len(),
            world.services().len()
        ),
        (None, 0, 0)
    );
    world.tick(3600);
    assert!(world.plan().is_idle());
    world.happen(Move::Suspend(false));
    world.settle();
    assert_eq!(
        (world.durable_state().started, world.pod_names().len()),
        (Some(world.now), 3)
    );
    assert_eq!(
        world.durable_state().gang_attempt,
        0,
        "nothing had run before"
    );
}

#[test]
fn a_suspended_job_keeps_its_counts_truthful_until_its_pods_are_gone() {
    let mut world = world(pt(2));
    world.settle();
    world.run_all();
    world.settle();
    let start = world.durable_state().started;
    world.tick(7);
    world.happen(Move::Suspend(true));
    world.writes.clear();
    world.settle();
    assert_eq!(world.writes[0], "status", "the decision is stored first");
    assert_eq!(
        reasons(&world),
        [
            "Created=True KindCreated",
            "Running=False KindSuspended",
            "Suspended=True KindSuspended",
        ]
    );
    assert_eq!((world.services().len(), world.pod_names().len()), (0, 3));
    assert!(world.pods().all(|(_, p)| p.terminating));
    assert_eq!(
        counts(&world),
        by_role([1, 0, 0], [2, 0, 0]),
        "they still run"
    );
    world.happen(Move::Gone(0));
    world.happen(Move::Gone(0));
    world.happen(Move::Gone(0));
    world.settle();
    assert_eq!(counts(&world), by_role([0; 3], [0; 3]));
    assert_eq!(world.durable_state().started, start);
    world.tick(100_000);
    assert!(world.plan().is_idle());
    let told = world
        .events()
        .iter()
        .filter(|e| e.contains("Suspended"))
        .count();
    assert_eq!(told, 1);
}

#[test]
fn active_reaches_zero_only_when_the_pods_of_a_suspended_job_are_gone_whatever_their_phase() {
    let mut world = world(pt(1));
    world.settle();
    world.run_all();
    world.settle();
    world.happen(Move::Suspend(true));
    world.settle();
    world.change(worker(0), |p| p.phase = PodPhase::Failed);
    world.settle();
    let active = |world: &crate::scene::KindWorld| {
        let counts = counts(world).into_iter();
        counts
            .map(|(role, [active, ..])| (role, [active, 0, 0]))
            .collect::<BTreeMap<_, _>>()
    };
    assert_eq!(
        active(&world),
        by_role([1, 0, 0], [1, 0, 0]),
        "both are terminating, one has ended"
    );
    world.happen(Move::Gone(0));
    world.happen(Move::Gone(0));
    world.settle();
    assert_eq!(active(&world), by_role([0; 3], [0; 3]));
}

#[test]
fn a_resumed_job_starts_anew_from_its_present_template() {
    let mut world = world(pt(1));
    world.settle();
    world.run_all();
    world.settle();
    world.happen(Move::Suspend(true));
    world.settle();
    world.tick(60);
    world.set(&format!("{WORKER}/replicas"), json!(replicas(2)));
    world.happen(Move::Suspend(false));
    world.settle();
    assert_eq!(world.durable_state().started, Some(world.now));
    assert_eq!(
        reasons(&world),
        [
            "Created=True KindCreated",
            "Running=False KindSuspended",
            "Suspended=False KindResumed",
        ]
    );
    // The old pods still hold their names and still run, but don't belong to this run.
    assert_eq!(counts(&world), by_role([1, 0, 0], [1, 0, 0]));
    world.happen(Move::Gone(0));
    world.happen(Move::Gone(0));
    world.settle();
    let attempts: Vec<String> = world.pods().map(|(_, p)| p.attempt.to_string()).collect();
    assert_eq!(attempts, ["1.0", "1.0", "1.0"]);
    world.run_all();
    world.settle();
    assert_eq!(
        reasons(&world),
        [
            "Created=True KindCreated",
            "Suspended=False KindResumed",
            "Running=True KindRunning",
        ]
    );
}

#[test]
fn a_resume_that_a_crash_cuts_short_makes_no_pod_twice() {
    for calls in 0..6 {
        let mut world = world(pt(1).run_policy("suspend", true));
        world.settle();
        world.happen(Move::Suspend(false));
        world.view_all();
        world.reconcile_from_cache(ReconcileEnd::CrashAfter(calls), false);
        world.happen(Move::Crash);
        world.settle();
        let attempts: Vec<String> = world.pods().map(|(_, p)| p.attempt.to_string()).collect();
        assert_eq!(attempts, ["0.0", "0.0"], "after {calls} calls");
    }
}

#[test]
fn pods_of_the_former_run_neither_fail_nor_satisfy_the_resumed_job() {
    for phase in [PodPhase::Failed, PodPhase::Succeeded] {
        let mut world = world(
            pt(1)
                .restart_policy("Worker", "Never")
                .run_policy("backoffLimit", 0),
        );
        world.settle();
        world.run_all();
        world.settle();
        world.sticky = true;
        world.happen(Move::Suspend(true));
        world.settle();
        world.happen(Move::Suspend(false));
        world.end(CHIEF, phase, Some(1));
        world.end(worker(0), phase, Some(1));
        world.settle();
        assert_eq!(
            world.conditions().last().map(String::as_str),
            Some("Suspended=False")
        );
        world.run_until_settled(false);
        assert_eq!(world.breaches, Vec::<String>::new());
        assert_eq!(
            world.conditions().last().map(String::as_str),
            Some("Running=True")
        );
    }
}

#[test]
fn finished_pods_go_too_and_their_replicas_run_again() {
    let mut world = world(pt(2));
    world.settle();
    world.run_all();
    world.finish(worker(0));
    world.settle();
    world.happen(Move::Suspend(true));
    world.settle();
    world.happen(Move::Gone(0));
    world.happen(Move::Gone(0));
    world.settle();
    assert_eq!(world.pod_names().len(), 0);
    world.happen(Move::Suspend(false));
    world.settle();
    assert_eq!(world.pod_names(), [CHIEF, worker(0), worker(1)]);
}

#[test]
fn b_091_suspending_a_finished_job_has_no_effect() {
    let mut world = world(pt(1));
    world.settle();
    world.run_all();
    succeed(&mut world);
    world.settle();
    world.happen(Move::Suspend(true));
    world.settle();
    assert_eq!(
        world.conditions().last().map(String::as_str),
        Some("Succeeded=True")
    );
    assert_eq!(world.pod_names().len(), 2);
}

#[test]
fn suspension_ends_a_restart() {
    let mut world = world(pt(1));
    world.settle();
    world.run_all();
    world.settle();
    world.fail(worker(0), 1);
    world.settle();
    world.happen(Move::Suspend(true));
    world.settle();
    assert_eq!(world.conditions(), ["Created=True", "Suspended=True"]);
}

#[test]
fn b_092_i_08_a_job_of_another_controller_is_not_touched() {
    for manager in ["kueue.x-k8s.io/multikueue", "", "somebody"] {
        let mut world = world(pt(1).run_policy("managedBy", manager));
        world.reconciles(3);
        assert_eq!(world.writes, Vec::<String>::new(), "{manager:?}");
    }
    let mut ours = world(pt(1).run_policy("managedBy", "kubeflow.org/training-operator"));
    ours.settle();
    assert_eq!(ours.pod_names().len(), 2);
}

#[test]
fn pods_of_a_job_that_another_operator_suspended_are_of_the_former_run() {
    let status = json!({
        "conditions": [
            {"type": "Created", "status": "True", "reason": format!("{}Created", KIND.name), "message": "m"},
            {"type": "Suspended", "status": "True", "reason": format!("{}Suspended", KIND.name), "message": "m"},
        ],
        "startTime": "1970-01-10T00:00:00Z", "replicaStatuses": stored([0; 3], [0; 3]),
    });
    let mut world = world(pt(1));
    world.settle();
    world.sticky = true;
    world.run_all();
    succeed(&mut world);
    world.set("/status", status);
    world.happen(Move::Delete(0));
    world.happen(Move::Delete(1));
    world.settle();
    assert_eq!(world.durable_state().gang_attempt, 1);
    assert_eq!(
        world.conditions().last().map(String::as_str),
        Some("Suspended=False")
    );
}
