//! Failed pods under each restart policy, and how restarts are counted, delayed and reported.

use super::ranks::{by_role, counts, each, index, succeed, worker};
use crate::scene::{CHIEF, CHIEF_DECIDES, FAILED, KIND, KindWorld, Scene, pt, world};
use k8s_openapi::jiff::SignedDuration;
use training_core::{PodPhase, Transition, Trouble};
use training_testkit::world::{Move, ReconcileEnd};

/// Returns the last condition after worker 1 ended in this way, and whether it was recreated.
fn after(policy: &str, code: Option<i32>) -> (String, bool) {
    let mut world = world(pt(2).restart_policy("Worker", policy));
    world.settle();
    world.run_all();
    world.settle();
    let old = world.pod(worker(1)).unwrap().uid;
    world.end(worker(1), PodPhase::Failed, code);
    world.settle();
    let again = world.pod(worker(1)).is_some_and(|p| p.uid != old);
    let last = world.status().conditions.pop().unwrap();
    (
        format!("{}={}: {}", last.type_, last.status, last.message.unwrap()),
        again,
    )
}

#[test]
fn the_policy_decides_what_a_failed_pod_means() {
    let restarting = "Restarting=True: job pt is restarting because Worker replica(s) failed.";
    let failed = &*format!("Failed=True: {FAILED}");
    let permanent = "Failed=True: job \"pt\" is failing because \"Worker\" replica(s) failed.";
    let rows = [
        ("OnFailure", Some(1), restarting, true),
        ("OnFailure", None, restarting, true),
        ("Always", Some(1), restarting, true),
        ("Never", Some(1), failed, false),
        ("Never", Some(137), failed, false),
        ("Never", None, failed, false),
        ("ExitCode", Some(0), permanent, false),
        ("ExitCode", Some(1), permanent, false),
        ("ExitCode", Some(127), permanent, false),
        ("ExitCode", Some(128), restarting, true),
        ("ExitCode", Some(130), restarting, true),
        ("ExitCode", Some(137), restarting, true),
        ("ExitCode", None, restarting, true),
    ];
    for (policy, code, condition, again) in rows {
        assert_eq!(
            after(policy, code),
            (condition.to_owned(), again),
            "{policy} {code:?}"
        );
    }
}

#[test]
fn an_end_always_has_its_time() {
    for (policy, code) in [("Never", 1), ("ExitCode", 1)] {
        let mut world = world(pt(1).restart_policy("Worker", policy));
        world.settle();
        world.run_all();
        world.fail(worker(0), code);
        world.tick(3);
        world.settle();
        assert_eq!(world.durable_state().completed, Some(world.now), "{policy}");
    }
}

#[test]
fn b_126_the_success_of_who_decides_wins_over_a_failure_in_the_same_snapshot() {
    let mut world = world(pt(2).restart_policy("Worker", "Never"));
    world.settle();
    world.run_all();
    world.fail(worker(0), 1);
    world.finish(CHIEF);
    world.settle();
    // If all pods decide, the failure does.
    let end = if CHIEF_DECIDES {
        "Succeeded=True"
    } else {
        "Failed=True"
    };
    assert_eq!(world.conditions().last().unwrap(), end);
}

#[test]
fn i_22_a_failure_is_stored_before_its_pod_goes() {
    let mut world = world(pt(1));
    world.settle();
    world.run_all();
    world.settle();
    world.fail(worker(0), 137);
    world.writes.clear();
    world.settle();
    assert_eq!(
        world.writes,
        [
            "status",
            "status",
            &*format!("delete pod {}", worker(0)),
            &*format!("create pod {}", worker(0)),
        ]
    );
    assert_eq!(world.durable_state().counted_failures, 1);
}

#[test]
fn a_restart_is_over_when_every_replica_runs_in_its_present_attempt() {
    let mut world = world(pt(2));
    world.settle();
    world.run_all();
    world.settle();
    world.fail(worker(0), 1);
    world.settle();
    assert_eq!(world.conditions(), ["Created=True", "Restarting=True"]);
    assert_eq!(
        world.status_json()["replicaAttempts"][format!("worker-{}", index(0))]["attempt"],
        1
    );
    world.run(&[worker(0)]);
    world.settle();
    assert_eq!(world.conditions(), ["Created=True", "Running=True"]);
    assert_eq!(world.pod(worker(0)).unwrap().attempt.to_string(), "0.1");
    assert_eq!(world.pod(worker(1)).unwrap().attempt.to_string(), "0.0");
    let restarts = world
        .transitions
        .iter()
        .filter(|t| matches!(t, Transition::Restarted(_)))
        .count();
    assert_eq!(
        (restarts, world.status_json()["restarts"].as_i64()),
        (1, Some(1))
    );
}

#[test]
fn replacements_of_one_replica_come_at_once_then_after_10_20_40_seconds() {
    let mut world = world(pt(1));
    world.settle();
    let mut waits = Vec::new();
    for _ in 0..8 {
        world.run_all();
        world.settle();
        world.fail(worker(0), 137);
        let failed = world.now;
        world.settle();
        while world.pod(worker(0)).is_none() {
            let wake = world.plan().requeue_at.expect("a wait has an end");
            assert!(wake > world.now);
            world.now = wake;
            // An operator restart neither forgets the wait nor starts it again.
            world.crash();
            world.settle();
        }
        waits.push((world.now - failed).get_seconds());
    }
    assert_eq!(waits, [0, 10, 20, 40, 80, 160, 300, 300]);
}

#[test]
fn a_disruption_costs_nothing_but_is_a_new_attempt_also_under_never() {
    let mut world = world(
        pt(1)
            .restart_policy("Worker", "Never")
            .run_policy("backoffLimit", 0),
    );
    world.settle();
    world.run_all();
    world.settle();
    for attempt in ["0.1", "0.2"] {
        world.change(worker(0), |p| (p.terminating, p.disrupted) = (true, true));
        world.settle();
        assert_eq!(counts(&world), by_role([1, 0, 0], [1, 0, 0]), "still there");
        world.end(worker(0), PodPhase::Failed, Some(143));
        world.settle();
        world.happen(Move::Gone(0));
        world.tick(10);
        world.settle();
        assert_eq!(world.pod(worker(0)).unwrap().attempt.to_string(), attempt);
        world.run_all();
        world.settle();
    }
    assert_eq!(world.conditions(), ["Created=True", "Running=True"]);
    assert_eq!(
        (
            world.durable_state().counted_failures,
            world.durable_state().recreated
        ),
        (0, 2)
    );
}

#[test]
fn f_61_a_pod_that_a_disruption_failed_is_replaced_free_of_charge_under_every_policy() {
    for policy in ["Never", "OnFailure", "Always", "ExitCode"] {
        let job = pt(1).restart_policy("Worker", policy);
        let mut world = world(job.run_policy("backoffLimit", 0)).started();
        let old = world.pod(worker(0)).unwrap().uid;
        // Neither the garbage collector nor the node has deleted it yet.
        world.change(worker(0), |p| p.disrupted = true);
        world.fail(worker(0), 1);
        world.settle();
        assert_eq!(
            world.conditions(),
            ["Created=True", "Restarting=True"],
            "{policy}"
        );
        assert_ne!(world.pod(worker(0)).map(|p| p.uid), Some(old));
        assert_eq!(world.durable_state().counted_failures, 0, "{policy}");
    }
}

/// The container of a failed pod that ran for this time.
fn ran_for(seconds: i64, world: &crate::scene::KindWorld) -> Box<Trouble> {
    // A gang's restart waits after a failure.
    let ended = world.now - SignedDuration::from_secs(5);
    Box::new(Trouble {
        since: Some(ended),
        ran_since: Some(ended - SignedDuration::from_secs(seconds)),
        ..Trouble::default()
    })
}

#[test]
fn the_pace_begins_anew_after_a_pod_that_ran_for_ten_minutes() {
    for scope in ["Replica", "Gang"] {
        let mut world = world(pt(1).annotation("trainyard.dev/restart-scope", scope));
        world.settle();
        let mut waits = Vec::new();
        for ran in [5, 5, 5, 599, 600, 5, 5, 5] {
            world.run_all();
            world.settle();
            let trouble = ran_for(ran, &world);
            world.change(worker(0), |p| p.trouble = Some(trouble));
            world.fail(worker(0), 137);
            let failed = world.now;
            world.settle();
            while world.pods().any(|(_, p)| p.terminating) {
                world.happen(Move::Gone(0));
            }
            world.settle();
            while world.pod(worker(0)).is_none() {
                world.now = world.plan().requeue_at.expect("a wait has an end");
                world.crash();
                world.settle();
            }
            waits.push((world.now - failed).get_seconds());
        }
        assert_eq!(waits, [0, 10, 20, 40, 0, 10, 20, 40], "{scope}");
    }
}

#[test]
fn a_failure_says_when_its_replacement_comes() {
    let mut world = world(pt(1)).started();
    for waits in [false, true] {
        world.notes.clear();
        world.fail(worker(0), 1);
        world.settle();
        let told = world.events();
        let told = told.iter().find(|e| e.starts_with("Warning PodFailed: "));
        let next = told.and_then(|t| t.split_once("; next attempt at "));
        let due = next.map(|(_, at)| at.parse().unwrap());
        assert_eq!(due, world.plan().requeue_at.filter(|_| waits), "{told:?}");
        assert_eq!(world.pod(worker(0)).is_none(), waits);
        let said = world.status().last_failure.unwrap().message.unwrap();
        assert!(!said.contains("next attempt"), "{said}");
        world.run_all();
        world.settle();
    }
}

#[test]
fn a_restart_is_over_when_the_replicas_that_restarted_run() {
    let mut world = world(pt(3));
    world.settle();
    world.run(&[CHIEF, worker(0), worker(1)]);
    world.settle();
    world.fail(worker(0), 137);
    world.settle();
    assert_eq!(world.conditions(), ["Created=True", "Restarting=True"]);
    // Worker 2 has never run, which is unrelated to the restart.
    world.run(&[worker(0)]);
    world.settle();
    assert_eq!(world.conditions(), ["Created=True", "Running=True"]);
}

#[test]
fn what_a_drained_pod_still_achieves_counts() {
    let mut world = world(pt(1));
    world.settle();
    world.run_all();
    world.settle();
    world.change(CHIEF, |p| (p.terminating, p.disrupted) = (true, true));
    world.settle();
    succeed(&mut world);
    world.settle();
    assert_eq!(
        world.conditions().last().map(String::as_str),
        Some("Succeeded=True")
    );
}

#[test]
fn b_153_a_deleted_pod_is_made_again_free_of_charge_and_a_finished_one_never() {
    let mut world = world(pt(2));
    world.settle();
    world.run_all();
    world.settle();
    world.change(worker(0), |p| p.terminating = true);
    world.settle();
    assert_eq!(counts(&world), by_role([1, 0, 0], [2, 0, 0]));
    world.end(worker(0), PodPhase::Failed, Some(143));
    world.settle();
    assert_eq!(
        world.conditions(),
        ["Created=True", "Running=True"],
        "not a failure"
    );
    world.happen(Move::Gone(0));
    world.settle();
    assert_eq!(
        world.pod(worker(0)).map(|p| p.phase),
        Some(PodPhase::Pending)
    );
    assert_eq!(world.durable_state().counted_failures, 0);
    world.finish(worker(1));
    world.settle();
    world.happen(Move::Vanish(2));
    world.settle();
    assert_eq!(world.pod_names(), [CHIEF, worker(0)]);
    assert_eq!(
        world.status_json()["finishedIndices"]["worker"],
        index(1).to_string()
    );
    let services: Vec<&str> = world.services().into_iter().collect();
    assert_eq!(services, [CHIEF, worker(0), worker(1)]);
}

#[test]
fn b_153_a_deleted_service_is_made_again() {
    let mut world = world(pt(1));
    world.settle();
    world.happen(Move::DropService(0));
    world.writes.clear();
    world.settle();
    assert_eq!(world.writes, each("create service", &[CHIEF]));
}

#[test]
fn a_gang_restarts_together_and_its_finished_replicas_run_again() {
    let job = pt(3).annotation("trainyard.dev/restart-scope", "Gang");
    let mut world = world(job.run_policy("backoffLimit", 1));
    world.settle();
    world.run_all();
    world.finish(worker(0));
    world.settle();
    world.fail(worker(1), 1);
    world.settle();
    world.happen(Move::Gone(0));
    world.happen(Move::Gone(0));
    world.settle();
    let attempts: Vec<String> = world.pods().map(|(_, p)| p.attempt.to_string()).collect();
    assert_eq!(attempts, ["1.0"; 4]);
    assert_eq!(world.conditions(), ["Created=True", "Restarting=True"]);
    world.run_all();
    world.settle();
    world.fail(worker(1), 1);
    world.fail(worker(2), 1);
    world.settle();
    assert_eq!(
        world.conditions().last().map(String::as_str),
        Some("Failed=True")
    );
    assert_eq!(
        world.durable_state().counted_failures,
        1,
        "all failures of a gang attempt count once"
    );
}

/// What the kubelet reports of a container that failed now.
fn failed_now(world: &KindWorld) -> Trouble {
    Trouble {
        since: Some(world.now),
        ..Trouble::default()
    }
}

#[test]
fn a_gang_restarts_some_seconds_after_a_failure_unless_the_job_ends_meanwhile() {
    let mut world = world(pt(2).annotation("trainyard.dev/restart-scope", "Gang"));
    world.settle();
    world.run_all();
    world.settle();
    let trouble = failed_now(&world);
    world.fail_as(worker(1), Some(1), trouble);
    world.settle();
    world.view_all();
    let failed = world.now;
    assert_eq!(
        world
            .plan()
            .requeue_at
            .map(|at| (at - failed).get_seconds()),
        Some(5)
    );
    assert_eq!(world.durable_state().counted_failures, 0);
    let mut ends = world.clone();
    world.tick(5);
    world.settle();
    assert_eq!(world.durable_state().counted_failures, 1);
    if CHIEF_DECIDES {
        ends.finish(CHIEF);
        ends.settle();
        assert_eq!(
            ends.conditions().last().map(String::as_str),
            Some("Succeeded=True")
        );
    }
}

#[test]
fn a_gang_restarts_at_once_where_waiting_gains_nothing() {
    type Change = fn(&mut KindWorld, &mut Trouble);
    let rows: [(&str, i32, bool, Change); 8] = [
        ("OnFailure", 1, true, |_, _| {}),
        ("OnFailure", 1, true, |w, t| {
            t.since = Some(w.now - SignedDuration::from_secs(4));
        }),
        ("OnFailure", 1, false, |w, t| {
            t.since = Some(w.now - SignedDuration::from_secs(5));
        }),
        // A node's clock that is too far ahead.
        ("OnFailure", 1, false, |w, t| {
            t.since = Some(w.now + SignedDuration::from_secs(6));
        }),
        ("OnFailure", 1, false, |_, t| t.since = None),
        ("OnFailure", 1, false, |w, _| {
            w.change(worker(1), |p| p.disrupted = true);
        }),
        ("OnFailure", 1, false, |w, _| {
            w.happen(Move::RequestRestart(1));
        }),
        // The other Worker would fail the job for good.
        ("ExitCode", 137, false, |_, _| {}),
    ];
    for (row, (policy, code, waits, change)) in rows.into_iter().enumerate() {
        let job = pt(2).annotation("trainyard.dev/restart-scope", "Gang");
        let mut world = world(job.restart_policy("Worker", policy));
        world.settle();
        world.run_all();
        world.settle();
        let mut trouble = failed_now(&world);
        change(&mut world, &mut trouble);
        world.fail_as(worker(1), Some(code), trouble);
        world.settle();
        assert_eq!(
            world.durable_state().gang_attempt,
            u32::from(!waits),
            "row {row}"
        );
    }
}

#[test]
fn a_gang_restarts_when_a_pod_fails_whose_sidecar_ended_last() {
    let job = pt(2).annotation("trainyard.dev/restart-scope", "Gang");
    let mut world = world(job.restart_policy("Worker", "OnFailure"));
    world.settle();
    let trouble = Trouble {
        init: true,
        ..Trouble::default()
    };
    world.fail_as(worker(1), Some(0), trouble);
    world.settle();
    assert_eq!(world.durable_state().gang_attempt, 1);
}

#[test]
fn a_gang_does_not_restart_when_an_init_container_fails_that_the_kubelet_would_restart() {
    for (policy, is_alone, counted) in [("OnFailure", true, 0), ("ExitCode", false, 1)] {
        let job = pt(2).annotation("trainyard.dev/restart-scope", "Gang");
        let mut world = world(job.restart_policy("Worker", policy));
        world.settle();
        let all = u32::try_from(world.pod_names().len()).unwrap();
        let trouble = Trouble {
            init: true,
            ..failed_now(&world)
        };
        world.fail_as(worker(1), None, trouble);
        world.settle();
        assert_eq!(world.durable_state().counted_failures, counted, "{policy}");
        let recreated = if is_alone { 1 } else { all };
        assert_eq!(world.durable_state().recreated, recreated, "{policy}");
    }
}

#[test]
fn a_requested_restart_replaces_all_pods_once_and_costs_nothing_of_the_backoff_limit() {
    let mut world = world(pt(2).run_policy("backoffLimit", 0));
    world.settle();
    world.run_all();
    world.settle();
    world.notes.clear();
    world.writes.clear();
    world.happen(Move::RequestRestart(1));
    world.reconcile();
    assert_eq!(world.writes, ["status"], "the request is stored first");
    let kind = KIND.name;
    let told = format!(
        "Normal {kind}Restarting: {kind} pt is restarting because its annotation trainyard.dev/restart-request has a new value."
    );
    assert_eq!(world.events(), [told]);
    for still_there in [3, 2, 1] {
        world.settle();
        assert_eq!(world.pod_names().len(), still_there);
        world.happen(Move::Gone(0));
    }
    world.settle();
    let attempts: Vec<String> = world.pods().map(|(_, p)| p.attempt.to_string()).collect();
    assert_eq!(attempts, ["1.0"; 3]);
    assert_eq!(world.conditions(), ["Created=True", "Restarting=True"]);
    world.run_all();
    world.settle();
    assert_eq!(world.conditions(), ["Created=True", "Running=True"]);
    let status = world.status();
    assert_eq!((status.restarts, status.counted_failures), (Some(3), None));
    world.crash();
    world.settle();
    world.happen(Move::RequestRestart(1));
    world.settle();
    assert_eq!(
        world.durable_state().gang_attempt,
        1,
        "the request is handled"
    );
    world.happen(Move::RequestRestart(2));
    world.settle();
    assert_eq!(world.durable_state().gang_attempt, 2);
}

#[test]
fn a_restart_requested_before_the_run_starts_or_while_it_is_suspended_is_only_noted() {
    let mut world = world(pt(1).annotation("trainyard.dev/restart-request", "0"));
    world.settle();
    assert_eq!(world.durable_state().gang_attempt, 0);
    world.happen(Move::Suspend(true));
    world.settle();
    world.happen(Move::Gone(0));
    world.happen(Move::Gone(0));
    let attempt = world.durable_state().gang_attempt;
    world.happen(Move::RequestRestart(1));
    world.settle();
    world.happen(Move::Suspend(false));
    world.settle();
    world.run_all();
    world.settle();
    let state = world.durable_state();
    assert_eq!((state.gang_attempt, state.recreated), (attempt, 0));
}

#[test]
fn a_restart_request_never_runs_a_finished_job_again() {
    let mut world = world(pt(1).run_policy("cleanPodPolicy", "None"));
    world.settle();
    succeed(&mut world);
    world.settle();
    let before = world.status();
    world.happen(Move::RequestRestart(1));
    world.settle();
    assert_eq!(world.status(), before);
}

#[test]
fn a_requested_restart_does_not_wait_for_the_backoff_of_failures() {
    let mut world = world(pt(1).annotation("trainyard.dev/restart-scope", "Gang"));
    world.settle();
    for failure in 1..=3 {
        world.run_all();
        world.settle();
        world.fail(worker(0), 1);
        world.settle();
        world.happen(Move::Gone(0));
        world.settle();
        if failure < 3 {
            world.tick(300);
            world.settle();
        }
    }
    assert_eq!(world.pod_names().len(), 0, "the backoff");
    world.happen(Move::RequestRestart(1));
    world.settle();
    assert_eq!(world.pod_names().len(), 2, "in the same second");
}

#[test]
fn a_requested_restart_leaves_failures_of_the_same_moment_to_the_backoff_limit() {
    let mut world = world(pt(1).run_policy("backoffLimit", 0));
    world.settle();
    world.run_all();
    world.settle();
    world.fail(worker(0), 1);
    world.happen(Move::RequestRestart(1));
    world.settle();
    assert_eq!(
        world.conditions().last().map(String::as_str),
        Some("Failed=True")
    );
    assert_eq!(world.status().last_failure.unwrap().pod, worker(0));
}

#[test]
fn no_replica_starts_beside_one_that_still_runs_from_before_a_restart_of_all() {
    let job = pt(2).annotation("trainyard.dev/restart-scope", "Gang");
    let mut world = world(job.restart_policy("Worker", "ExitCode"));
    world.settle();
    world.run_all();
    world.settle();
    world.fail(worker(1), 137);
    for still_there in [2, 1] {
        world.settle();
        let attempts: Vec<String> = world.pods().map(|(_, p)| p.attempt.to_string()).collect();
        assert_eq!(attempts, vec!["0.0"; still_there]);
        world.happen(Move::Gone(0));
    }
    world.settle();
    let attempts: Vec<String> = world.pods().map(|(_, p)| p.attempt.to_string()).collect();
    assert_eq!(attempts, ["1.0"; 3]);
}

#[test]
fn the_last_failure_is_told_once_with_its_words() {
    let mut world = world(pt(1));
    world.settle();
    world.run_all();
    world.settle();
    world.notes.clear();
    world.change(worker(0), |p| {
        p.trouble = Some(Box::new(Trouble {
            reason: "OOMKilled".to_owned(),
            message: "CUDA\u{1b}[31m error".to_owned(),
            container: KIND.container.to_owned(),
            node: "n1".to_owned(),
            ..Trouble::default()
        }));
    });
    world.fail(worker(0), 137);
    world.settle();
    let said = format!(
        "exit code 137: used more memory than its limit and was killed; raise the memory limit or use less (container {} on node n1); last words: CUDA [31m error",
        KIND.container
    );
    assert_eq!(
        world.events(),
        [
            format!(
                "Normal ExitedWithCode: Pod: ns1.{} exited with code 137",
                worker(0)
            ),
            format!("Warning PodFailed: Pod {}: {said}", worker(0)),
            format!(
                "Warning {}Restarting: job pt is restarting because Worker replica(s) failed.",
                KIND.name
            ),
        ]
    );
    let failure = world.status().last_failure.unwrap();
    assert_eq!(
        (failure.pod.as_str(), failure.exit_code),
        (worker(0), Some(137))
    );
    assert_eq!(
        (failure.reason.as_deref(), failure.message.as_deref()),
        (Some("OOMKilled"), Some(&*said))
    );
}

#[test]
fn of_several_failures_the_first_in_time_is_the_one_that_stays() {
    let mut world = world(pt(2).annotation("trainyard.dev/restart-scope", "Gang"));
    world.settle();
    world.run_all();
    world.settle();
    let now = world.now;
    for (pod, seconds) in [(CHIEF, 1), (worker(0), 9), (worker(1), 2)] {
        world.change(pod, |p| {
            p.trouble = Some(Box::new(Trouble {
                since: Some(now - SignedDuration::from_secs(seconds)),
                ..Trouble::default()
            }));
        });
        world.fail(pod, 1);
    }
    world.settle();
    assert_eq!(world.status().last_failure.unwrap().pod, worker(0));
}

#[test]
fn b_147_a_wiped_status_or_a_changed_attempt_never_makes_a_loop() {
    for attempt in ["7.3", "0.9", "4294967295.4294967295"] {
        for scope in ["Replica", "Gang"] {
            let mut world = world(pt(1).annotation("trainyard.dev/restart-scope", scope));
            world.settle();
            world.run_all();
            world.change(worker(0), |p| {
                p.attempt = training_core::Attempt::parse(Some(attempt));
            });
            world.settle();
            world.fail(worker(0), 1);
            world.writes.clear();
            world.reconciles(10);
            assert_eq!(
                world.durable_state().counted_failures,
                1,
                "{attempt} {scope}"
            );
            // A full restart waits for the chief; a high attempt waits as long as any.
            world.happen(Move::Gone(0));
            world.tick(300);
            world.reconciles(10);
            assert_eq!(
                world.pod(worker(0)).map(|p| p.phase),
                Some(PodPhase::Pending),
                "{attempt} {scope}"
            );
            assert!(world.writes.len() < 12, "{:?}", world.writes);
        }
    }
}

#[test]
fn i_22_a_failure_is_counted_once_whenever_the_operator_dies() {
    for call in 0..6 {
        for lost in [false, true] {
            let mut world = world(pt(1));
            world.settle();
            world.run_all();
            world.settle();
            world.fail(worker(0), 137);
            for _ in 0..2 {
                world.happen(Move::Deliver(9, 9, 9));
                let end = if lost {
                    ReconcileEnd::LostAfter(call)
                } else {
                    ReconcileEnd::CrashAfter(call)
                };
                world.happen(Move::Pass(end, true));
            }
            world.settle();
            assert_eq!(world.durable_state().counted_failures, 1, "call {call}");
            assert_eq!(world.pod(worker(0)).unwrap().attempt.to_string(), "0.1");
        }
    }
}
