//! How a TFJob ends: the published table of success policies, and the clean-up.

use crate::scene::{KindWorld, Scene, of, world};
use serde_json::json;
use training_core::{Cause, PodPhase, Trouble};
use training_testkit::builders::Job;
use training_testkit::world::Move;

fn running(job: Job) -> KindWorld {
    world(job).started()
}

/// The last condition of a job of four workers after these succeeded and those failed in one reconcile.
fn after(job: Job, well: &[u32], badly: &[u32]) -> String {
    let mut world = running(job);
    for index in well {
        world.finish(&format!("tf-worker-{index}"));
    }
    for index in badly {
        world.fail(&format!("tf-worker-{index}"), 1);
    }
    world.settle();
    let conditions = world.conditions();
    let ended = conditions
        .iter()
        .any(|c| c == "Succeeded=True" || c == "Failed=True");
    assert!(
        !ended || !conditions.contains(&"Running=True".to_owned()),
        "{conditions:?}"
    );
    conditions.last().unwrap().clone()
}

fn four(policy: &str) -> Job {
    let job = of(&[("PS", 1), ("Worker", 4)]).set("/spec/successPolicy", policy);
    job.restart_policy("Worker", "Never")
        .restart_policy("PS", "Never")
}

#[test]
fn without_a_chief_worker_zero_or_all_workers_decide() {
    let (none, all): (&[u32], &[u32]) = (&[], &[0, 1, 2, 3]);
    for (policy, well, badly, last) in [
        ("", none, none, "Running=True"),
        ("", &[2, 3], none, "Running=True"),
        ("", none, &[0][..], "Failed=True"),
        ("", none, &[2, 3], "Failed=True"),
        ("", &[2, 3], &[0, 1], "Failed=True"),
        ("", &[0], none, "Succeeded=True"),
        ("", all, none, "Succeeded=True"),
        // Within one reconcile the decider's success wins.
        ("", &[0], &[1], "Succeeded=True"),
        ("AllWorkers", &[0], none, "Running=True"),
        ("AllWorkers", all, none, "Succeeded=True"),
        ("AllWorkers", &[0], &[1], "Failed=True"),
        ("SomethingElse", &[0], none, "Succeeded=True"),
    ] {
        assert_eq!(
            after(four(policy), well, badly),
            last,
            "{policy} {well:?} {badly:?}"
        );
    }
}

#[test]
fn a_chief_decides_alone_whatever_the_policy() {
    for leader in ["Chief", "Master"] {
        let pod = format!("tf-{}-0", leader.to_lowercase());
        let job = || {
            let job = of(&[(leader, 1), ("PS", 1), ("Worker", 2)]);
            job.set("/spec/successPolicy", "AllWorkers")
                .restart_policy("Worker", "Never")
        };
        let mut world = running(job());
        world.finish("tf-worker-0");
        world.finish("tf-worker-1");
        world.settle();
        assert_eq!(
            world.conditions().last().unwrap(),
            "Running=True",
            "{leader}"
        );
        world.finish(&pod);
        world.settle();
        assert_eq!(
            world.conditions().last().unwrap(),
            "Succeeded=True",
            "{leader}"
        );

        let mut world = running(job());
        world.fail("tf-worker-1", 1);
        world.finish(&pod);
        world.settle();
        assert_eq!(
            world.conditions().last().unwrap(),
            "Succeeded=True",
            "{leader}"
        );
    }
}

#[test]
fn a_failure_of_any_known_role_fails_the_job_in_the_published_words() {
    for (role, pod) in [
        ("Chief", "tf-chief-0"),
        ("PS", "tf-ps-0"),
        ("Evaluator", "tf-evaluator-0"),
        ("Worker", "tf-worker-1"),
    ] {
        let job = of(&[("Chief", 1), ("PS", 1), ("Worker", 2), ("Evaluator", 1)])
            .restart_policy(role, "Never");
        let mut world = running(job);
        world.fail(pod, 1);
        world.settle();
        let last = world.status().conditions.pop().unwrap();
        let said = format!("TFJob ns1/tf has failed because 1 {role} replica(s) failed.");
        assert_eq!((last.type_.as_str(), last.message), ("Failed", Some(said)));
        assert!(world.durable_state().completed.is_some());
    }
}

#[test]
fn where_several_roles_failed_the_first_by_name_is_named() {
    let all = [
        ("Chief", "tf-chief-0"),
        ("Evaluator", "tf-evaluator-0"),
        ("PS", "tf-ps-0"),
        ("Worker", "tf-worker-0"),
    ];
    for first in 0..all.len() {
        let roles = all.map(|(role, _)| (role, 1));
        let job = all.iter().fold(of(&roles), |job, (role, _)| {
            job.restart_policy(role, "Never")
        });
        let mut world = running(job);
        for (_, pod) in &all[first..] {
            world.fail(pod, 1);
        }
        world.settle();
        let last = world.status().conditions.pop().unwrap();
        let said = format!(
            "TFJob ns1/tf has failed because 1 {} replica(s) failed.",
            all[first].0
        );
        assert_eq!(last.message, Some(said));
    }

    // Pods are judged before roles, so a permanent exit code ends the job there.
    let job = of(&[("Chief", 1), ("Worker", 1)])
        .restart_policy("Chief", "Never")
        .restart_policy("Worker", "ExitCode");
    let mut world = running(job);
    world.fail("tf-chief-0", 1);
    world.fail("tf-worker-0", 1);
    world.settle();
    let last = world.status().conditions.pop().unwrap();
    let said = "job \"tf\" is failing because \"Worker\" replica(s) failed.";
    assert_eq!(last.message.as_deref(), Some(said));
}

#[test]
fn a_job_runs_before_it_fails_also_where_both_are_seen_in_one_look() {
    let ran = ["Created=True", "Running=False", "Failed=True"];
    let failed = ["Created=True", "Failed=True"];
    for (roles, fails, conditions) in [
        // The decider comes first.
        (&["Chief", "Worker"][..], "tf-worker-0", &ran[..]),
        (&["Chief", "PS", "Worker"], "tf-ps-0", &ran),
        (&["Master", "Worker"], "tf-worker-0", &ran),
        (&["PS", "Worker"], "tf-worker-1", &ran),
        // The role that failed comes before the decider.
        (
            &["Evaluator", "Master", "Worker"],
            "tf-evaluator-0",
            &failed,
        ),
        (&["PS", "Worker"], "tf-ps-0", &failed),
    ] {
        let roles: Vec<(&str, u32)> = roles
            .iter()
            .map(|role| (*role, if *role == "Worker" { 2 } else { 1 }))
            .collect();
        let job = roles.iter().fold(of(&roles), |job, (role, _)| {
            job.restart_policy(role, "Never")
        });
        let mut world = world(job);
        world.settle();
        world.run_all();
        world.fail(fails, 1);
        world.settle();
        assert_eq!(world.conditions(), conditions, "{roles:?}: {fails}");
    }
}

#[test]
fn a_job_whose_deciding_role_has_no_replicas_is_said_to_never_end() {
    for (roles, says) in [
        (
            &[("Chief", 0), ("Worker", 1)][..],
            "spec.tfReplicaSpecs[Chief].replicas is 0, and no other role decides when the job ends: set it to 1, or leave the Chief out, and the Workers decide",
        ),
        (
            &[("Master", 0), ("PS", 1)],
            "spec.tfReplicaSpecs[Master].replicas is 0, and no other role decides when the job ends: set it to at least 1",
        ),
        (
            &[("PS", 1), ("Worker", 0)],
            "spec.tfReplicaSpecs[Worker].replicas is 0, and no other role decides when the job ends: set it to at least 1",
        ),
    ] {
        let mut world = running(of(roles));
        let stalled = &world.status().conditions[0];
        assert_eq!(
            (
                stalled.type_.as_str(),
                stalled.status.as_str(),
                stalled.reason.as_deref()
            ),
            ("Stalled", "True", Some("NeverEnds")),
            "{roles:?}"
        );
        assert_eq!(stalled.message.as_deref(), Some(says));
        world.tick(3600);
        world.settle();
        let told = world.events().into_iter();
        let told: Vec<String> = told.filter(|e| e.contains("NeverEnds")).collect();
        assert_eq!(told, [format!("Warning NeverEnds: {says}")]);
        assert!(
            !world.durable_state().is_finished(),
            "nothing ran, so nothing succeeded"
        );
    }
}

#[test]
fn a_job_that_may_end_again_is_not_stalled_any_more() {
    let mut world = running(of(&[("PS", 1), ("Worker", 0)]));
    world.set(&format!("{}/replicas", crate::scene::WORKER), json!(1));
    world.settle();
    world.run_all();
    world.settle();
    assert_eq!(
        world.conditions(),
        ["Stalled=False", "Created=True", "Running=True"]
    );
    world.finish("tf-worker-0");
    world.settle();
    assert_eq!(world.conditions().last().unwrap(), "Succeeded=True");
}

#[test]
fn what_pods_wait_for_is_said_before_that_nothing_ends_the_job() {
    let mut world = running(of(&[("PS", 1), ("Worker", 0)]));
    let since = world.now;
    world.change("tf-ps-0", |p| {
        p.phase = PodPhase::Pending;
        p.ready = false;
        p.trouble = Some(Box::new(Trouble {
            cause: Some(Cause::InvalidImageName),
            since: Some(since),
            ..Trouble::default()
        }));
    });
    world.settle();
    let reason = world.status().conditions[0].reason.clone();
    assert_eq!(reason.as_deref(), Some("InvalidImageName"));
}

#[test]
fn a_chief_with_a_retryable_code_is_made_again() {
    let mut world = running(of(&[("Chief", 1), ("Worker", 1)]).restart_policy("Chief", "ExitCode"));
    world.fail("tf-chief-0", 130);
    world.settle();
    assert_eq!(world.conditions(), ["Created=True", "Restarting=True"]);
    assert!(world.pod("tf-chief-0").is_some());
}

#[test]
fn running_and_succeeded_name_the_namespace() {
    let mut world = running(of(&[("Worker", 2)]));
    world.finish("tf-worker-0");
    world.settle();
    let said: Vec<String> = world
        .status()
        .conditions
        .into_iter()
        .filter_map(|c| c.message)
        .collect();
    assert_eq!(
        said,
        [
            "TFJob tf is created.",
            "TFJob ns1/tf is running.",
            "TFJob ns1/tf successfully completed."
        ]
    );
}

#[test]
fn dynamic_workers_may_be_lost_as_long_as_somebody_can_end_the_job_well() {
    let job = |roles: &[(&str, u32)]| {
        of(roles)
            .set("/spec/enableDynamicWorker", true)
            .restart_policy("Worker", "Never")
    };
    let mut world = running(job(&[("PS", 1), ("Worker", 3)]));
    world.fail("tf-worker-1", 1);
    world.settle();
    assert_eq!(world.conditions(), ["Created=True", "Running=True"]);
    world.finish("tf-worker-0");
    world.settle();
    assert_eq!(world.conditions().last().unwrap(), "Succeeded=True");

    // No pod is left that could.
    let mut world = running(job(&[("PS", 1), ("Worker", 2)]));
    world.fail("tf-worker-0", 1);
    world.settle();
    assert_eq!(world.conditions().last().unwrap(), "Running=True");
    world.finish("tf-worker-1");
    world.settle();
    assert_eq!(world.conditions().last().unwrap(), "Failed=True");

    // A chief can.
    let mut world = running(job(&[("Chief", 1), ("Worker", 1)]));
    world.fail("tf-worker-0", 1);
    world.settle();
    assert_eq!(world.conditions().last().unwrap(), "Running=True");

    // Parameter servers are not workers.
    let mut world = running(job(&[("PS", 1), ("Worker", 2)]).restart_policy("PS", "Never"));
    world.fail("tf-ps-0", 1);
    world.settle();
    assert_eq!(world.conditions().last().unwrap(), "Failed=True");
}

#[test]
fn a_lost_dynamic_worker_is_told_once_and_remembered() {
    let job = of(&[("PS", 1), ("Worker", 4)]).set("/spec/enableDynamicWorker", true);
    let mut world = running(job.restart_policy("Worker", "Never"));
    let told = |world: &KindWorld| {
        let failed = world.events().into_iter();
        failed.filter(|e| e.contains("PodFailed")).count()
    };
    world.fail("tf-worker-1", 3);
    world.settle();
    assert_eq!(world.conditions().last().unwrap(), "Running=True");
    let events = world.events();
    let code = "Normal ExitedWithCode: Pod: ns1.tf-worker-1 exited with code 3";
    assert!(events.iter().any(|e| e == code), "{events:?}");
    assert_eq!(told(&world), 1, "{events:?}");
    let last = world.status().last_failure.unwrap();
    assert_eq!(
        (last.pod.as_str(), last.exit_code),
        ("tf-worker-1", Some(3))
    );

    // Neither another reconcile nor an operator restart records it again.
    world.tick(3600);
    world.settle();
    world.crash();
    world.settle();
    assert_eq!(told(&world), 1);

    world.fail("tf-worker-2", 4);
    world.settle();
    assert_eq!(told(&world), 2);
}

#[test]
fn a_restart_is_over_although_a_worker_was_lost_for_good() {
    let job = of(&[("PS", 1), ("Worker", 3)]).set("/spec/enableDynamicWorker", true);
    let mut world = running(job.restart_policy("Worker", "Never"));
    world.fail("tf-worker-2", 1);
    world.settle();
    world.happen(Move::Drain(1));
    world.settle();
    assert_eq!(world.conditions().last().unwrap(), "Restarting=True");
    world.happen(Move::Gone(0));
    world.settle();
    world.happen(Move::Run(0));
    world.settle();
    assert_eq!(world.conditions().last().unwrap(), "Running=True");
}

#[test]
fn dynamic_workers_go_from_two_to_three_to_one_without_harm_to_the_others() {
    let mut world = running(of(&[("PS", 1), ("Worker", 2)]).set("/spec/enableDynamicWorker", true));
    world.writes.clear();
    world.set(&format!("{}/replicas", crate::scene::WORKER), json!(3));
    world.settle();
    world.run_all();
    world.settle();
    assert_eq!(
        world.pod_names(),
        ["tf-ps-0", "tf-worker-0", "tf-worker-1", "tf-worker-2"]
    );
    world.set(&format!("{}/replicas", crate::scene::WORKER), json!(1));
    world.settle();
    let gone: Vec<&String> = world
        .writes
        .iter()
        .filter(|w| w.starts_with("delete pod"))
        .collect();
    assert_eq!(gone, ["delete pod tf-worker-2", "delete pod tf-worker-1"]);
    assert_eq!(world.conditions().last().unwrap(), "Running=True");
    assert!(
        world.notes.iter().all(|n| n.reason != "EditNotApplied"),
        "{:?}",
        world.notes
    );
}

#[test]
fn what_never_ends_by_itself_goes_at_the_end_as_the_policy_says() {
    for (policy, left) in [
        (None, 4),
        (Some("None"), 4),
        (Some("Running"), 1),
        (Some("All"), 0),
    ] {
        let mut job = of(&[("Chief", 1), ("PS", 1), ("Worker", 1), ("Evaluator", 1)]);
        if let Some(policy) = policy {
            job = job.run_policy("cleanPodPolicy", policy);
        }
        let mut world = running(job);
        world.finish("tf-chief-0");
        world.settle();
        assert_eq!(world.conditions().last().unwrap(), "Succeeded=True");
        let stays = world.pods().filter(|(_, p)| !p.terminating).count();
        assert_eq!(stays, left, "{policy:?}");
        let said = world
            .events()
            .iter()
            .filter(|e| e.starts_with("Warning PodsStillRunning: 3 pods"))
            .count();
        assert_eq!(
            said,
            usize::from(left == 4),
            "{policy:?}: {:?}",
            world.events()
        );
    }
}

#[test]
fn b_053_chief_and_master_together_end_the_job() {
    let mut world = world(of(&[("Chief", 1), ("Master", 1)]));
    world.settle();
    let message = world.status().conditions.pop().unwrap().message.unwrap();
    assert_eq!(
        message,
        "spec.tfReplicaSpecs: must not have more than 1 Chief or Master role"
    );
    assert_eq!(world.writes, ["status"]);
}

#[test]
fn b_017_pods_of_a_role_that_tensorflow_does_not_have_run_and_do_not_count() {
    let mut world = running(of(&[("Worker", 1), ("Wroker", 1)]).restart_policy("Wroker", "Never"));
    let warned = "Warning RiskySetting: spec.tfReplicaSpecs[Wroker]: TensorFlow has no such role";
    assert!(
        world.events().iter().any(|e| e.starts_with(warned)),
        "{:?}",
        world.events()
    );
    world.fail("tf-wroker-0", 1);
    world.settle();
    assert_eq!(world.conditions().last().unwrap(), "Running=True");
    assert_eq!(
        world.status_json()["replicaStatuses"]["Wroker"]["failed"],
        1
    );
    world.finish("tf-worker-0");
    world.settle();
    assert_eq!(world.conditions().last().unwrap(), "Succeeded=True");
}

#[test]
fn b_054_b_055_b_093_odd_values_run_with_a_warning() {
    for (job, said) in [
        (
            of(&[("Chief", 2)]),
            "RiskySetting: spec.tfReplicaSpecs[Chief].replicas: TensorFlow knows one Chief only",
        ),
        (
            of(&[("Worker", 1), ("Evaluator", 2)]),
            "RiskySetting: spec.tfReplicaSpecs[Evaluator].replicas: TensorFlow knows one Evaluator only",
        ),
        (
            of(&[("PS", 2)]),
            "RiskySetting: spec.tfReplicaSpecs: no role can complete this job; add a Chief, a Master or a Worker",
        ),
        (
            of(&[("Worker", 2)]).set("/spec/successPolicy", "Any"),
            "SettingIgnored: spec.successPolicy \"Any\" is read as the empty one; use AllWorkers or leave it out",
        ),
        (
            of(&[("Chief", 1)]).set("/spec/successPolicy", "AllWorkers"),
            "SettingIgnored: spec.successPolicy has no effect beside a Chief, which decides the job's end",
        ),
    ] {
        let mut world = world(job);
        world.settle();
        assert_eq!(world.conditions(), ["Created=True"], "{said}");
        let told = world
            .events()
            .iter()
            .filter(|e| **e == format!("Warning {said}"))
            .count();
        assert_eq!(told, 1, "{said}: {:?}", world.events());
    }
}

#[test]
fn a_drained_pod_of_any_role_is_made_again_also_under_never() {
    for pod in ["tf-ps-0", "tf-worker-0", "tf-worker-1"] {
        let job = of(&[("PS", 1), ("Worker", 2)])
            .restart_policy("Worker", "Never")
            .restart_policy("PS", "Never");
        let mut world = running(job);
        world.change(pod, |p| {
            p.terminating = true;
            p.disrupted = true;
        });
        world.settle();
        assert_eq!(
            world.conditions(),
            ["Created=True", "Restarting=True"],
            "{pod}"
        );
    }
}
