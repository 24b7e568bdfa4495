//! Published behaviour of restarts, limits, clean-up, TTL, suspension and managedBy, one test each.

use super::ranks::{succeed, worker};
use crate::scene::{CHIEF, CHIEF_DECIDES, CHIEF_ROLE, KIND, KindWorld, Scene, pt, world};
use serde_json::json;
use training_testkit::builders::Job;
use training_testkit::world::Move;

fn running(job: Job) -> KindWorld {
    world(job).started()
}

fn last(world: &KindWorld) -> (String, String, String) {
    let c = world.status().conditions.pop().unwrap();
    (c.type_, c.reason.unwrap(), c.message.unwrap())
}

/// Lets terminating pods go, then counts the remaining pods and services.
fn left(world: &mut KindWorld) -> (usize, usize) {
    world.settle();
    while world.pods().any(|(_, p)| p.terminating) {
        world.happen(Move::Gone(0));
        world.settle();
    }
    (world.pod_names().len(), world.services().len())
}

#[test]
fn low_exit_codes_are_permanent_and_those_of_signals_are_tried_again() {
    for (code, again) in [(1, false), (2, false), (3, false), (130, true), (138, true)] {
        let mut world = running(pt(1).restart_policy("Worker", "ExitCode"));
        let old = world.pod(worker(0)).unwrap().uid;
        world.fail(worker(0), code);
        world.settle();
        let replaced = world.pod(worker(0)).unwrap().uid != old;
        assert_eq!(
            (replaced, last(&world).0 == "Failed"),
            (again, !again),
            "{code}"
        );
    }
}

#[test]
fn a_pod_with_a_retryable_code_goes() {
    let mut world = running(pt(1).restart_policy("Worker", "ExitCode"));
    world.sticky = true;
    world.fail(worker(0), 130);
    world.settle();
    assert!(world.pod(worker(0)).unwrap().terminating);
}

#[test]
fn a_permanent_code_fails_the_job_in_the_published_words() {
    let mut world = running(pt(2).restart_policy("Worker", "ExitCode"));
    world.fail(worker(1), 1);
    world.settle();
    assert_eq!(
        last(&world),
        (
            "Failed".to_owned(),
            format!("{}Failed", KIND.name),
            "job \"pt\" is failing because \"Worker\" replica(s) failed.".to_owned()
        )
    );
}

#[test]
fn restarts_in_place_add_up_to_the_backoff_limit_and_everything_goes() {
    let job = pt(4)
        .run_policy("backoffLimit", 4)
        .run_policy("cleanPodPolicy", "All");
    let mut world = running(job);
    for at in 0..4 {
        world.change(worker(at), |p| p.restarts = 1);
    }
    assert_eq!(left(&mut world), (0, 0));
    let message = "Job pt has failed because it has reached the specified backoff limit";
    assert_eq!(last(&world).2, message);
}

#[test]
fn the_backoff_limit_counts_restarts_and_not_starts() {
    for (limit, restarts, ends) in [(0, 0, false), (3, 2, false), (3, 3, true)] {
        let mut world = running(pt(1).run_policy("backoffLimit", limit));
        world.change(worker(0), |p| p.restarts = restarts);
        world.settle();
        assert_eq!(
            last(&world).0 == "Failed",
            ends,
            "limit {limit}, {restarts} restarts"
        );
    }
}

#[test]
fn a_deadline_that_has_passed_takes_everything_along_and_none_touches_nothing() {
    for (deadline, later, ends) in [
        (Some(2), 1, false),
        (Some(2), 2, true),
        (Some(0), 0, true),
        (None, 1_000_000, false),
    ] {
        let mut job = pt(1).run_policy("cleanPodPolicy", "All");
        if let Some(deadline) = deadline {
            job = job.run_policy("activeDeadlineSeconds", deadline);
        }
        let mut world = running(job);
        world.tick(later);
        let expected = if ends { (0, 0) } else { (2, 2) };
        assert_eq!(left(&mut world), expected, "{deadline:?} after {later} s");
        assert_eq!(last(&world).0 == "Failed", ends);
    }
}

#[test]
fn a_finished_job_keeps_what_its_policy_says() {
    // If all pods decide, all have ended.
    let ended = if CHIEF_DECIDES { (1, 1) } else { (3, 3) };
    let rows = [
        ("All", false, (0, 0)),
        ("Running", false, ended),
        ("Running", true, (3, 3)),
        ("None", false, (3, 3)),
        ("None", true, (3, 3)),
    ];
    for (policy, all_ended, expected) in rows {
        let mut world = running(pt(2).run_policy("cleanPodPolicy", policy));
        if all_ended {
            world.finish(worker(0));
            world.finish(worker(1));
        }
        succeed(&mut world);
        assert_eq!(
            left(&mut world),
            expected,
            "{policy}, workers ended: {all_ended}"
        );
    }
}

#[test]
fn a_suspended_job_loses_all_pods_and_services_under_every_policy() {
    for policy in ["Running", "None", "All"] {
        let mut world = running(pt(2).run_policy("cleanPodPolicy", policy));
        world.finish(worker(0));
        world.happen(Move::Suspend(true));
        assert_eq!(left(&mut world), (0, 0), "{policy}");
        world.tick(3600);
        assert_eq!(left(&mut world), (0, 0), "{policy}: and they stay away");
    }
}

#[test]
fn a_job_that_reached_its_backoff_limit_is_cleaned_up_by_its_policy() {
    for (policy, expected) in [("None", (2, 2)), ("Running", (0, 0)), ("All", (0, 0))] {
        let mut world = running(
            pt(1)
                .run_policy("backoffLimit", 1)
                .run_policy("cleanPodPolicy", policy),
        );
        world.change(worker(0), |p| p.restarts = 1);
        assert_eq!(left(&mut world), expected, "{policy}");
        assert_eq!(last(&world).0, "Failed");
    }
}

#[test]
fn failed_and_succeeded_jobs_go_after_their_time_to_live() {
    for fails in [false, true] {
        let mut world = running(
            pt(1)
                .restart_policy(CHIEF_ROLE, "Never")
                .run_policy("ttlSecondsAfterFinished", 3),
        );
        if fails {
            world.fail(CHIEF, 1);
        } else {
            succeed(&mut world);
        }
        world.settle();
        world.tick(3);
        world.settle();
        assert!(world.job().is_some(), "not before");
        world.tick(1);
        world.settle();
        assert!(world.job().is_none(), "fails {fails}");
    }
}

#[test]
fn without_a_time_to_live_a_finished_job_stays_and_a_running_one_waits_for_nothing() {
    let mut endless = running(pt(1));
    endless.finish(CHIEF);
    endless.settle();
    endless.tick(1_000_000);
    assert!(endless.plan().is_idle());
    assert_eq!(endless.plan().requeue_at, None);
    let mut alive = running(pt(1).run_policy("ttlSecondsAfterFinished", 0));
    assert_eq!(alive.plan().requeue_at, None);
    alive.tick(1_000_000);
    alive.settle();
    assert!(alive.job().is_some());
}

#[test]
fn a_job_that_ended_a_day_ago_goes_at_once() {
    let mut world = running(pt(1));
    succeed(&mut world);
    world.settle();
    world.tick(86_400);
    world.set("/spec/runPolicy/ttlSecondsAfterFinished", json!(180));
    world.settle();
    assert!(world.job().is_none());
}

#[test]
fn suspension_and_resumption_leave_exactly_the_published_conditions() {
    let mut world = running(pt(2));
    let first = world.durable_state().started;
    assert_eq!(world.conditions(), ["Created=True", "Running=True"]);
    world.tick(10);
    world.happen(Move::Suspend(true));
    assert_eq!(left(&mut world), (0, 0));
    assert_eq!(
        world.conditions(),
        ["Created=True", "Running=False", "Suspended=True"]
    );
    assert_eq!(world.durable_state().started, first);
    let counts = world.status().replica_statuses.unwrap();
    assert!(counts.values().all(|c| c.active == 0));
    world.tick(10);
    world.happen(Move::Suspend(false));
    assert_eq!(left(&mut world), (3, 3));
    world.run_all();
    world.settle();
    let reasons: Vec<String> = world
        .status()
        .conditions
        .into_iter()
        .map(|c| {
            format!(
                "{}={} {}",
                c.type_,
                c.status,
                c.reason.unwrap().replace(KIND.name, "Kind")
            )
        })
        .collect();
    assert_eq!(
        reasons,
        [
            "Created=True KindCreated",
            "Suspended=False KindResumed",
            "Running=True KindRunning",
        ]
    );
    assert!(world.durable_state().started > first);
}

#[test]
fn a_job_of_another_cluster_is_left_alone_also_when_it_is_resumed() {
    let job = pt(2)
        .run_policy("suspend", true)
        .run_policy("managedBy", "kueue.x-k8s.io/multikueue");
    let mut world = world(job);
    world.reconciles(3);
    world.happen(Move::Suspend(false));
    world.reconciles(3);
    assert_eq!(world.writes, Vec::<String>::new());
    assert_eq!(world.status_json(), serde_json::Value::Null);
    assert_eq!(world.pod_names().len(), 0);
}
