//! The life cycle of a job, reconcile by reconcile, in a simulated cluster.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::scene::{give_up, give_up_at_limit, job};
use mpi_operator::Mpi;
use training_core::{ObjectKind, PodPhase, Step, Trouble};
use training_testkit::scene::Scene;
use training_testkit::world::{Move, World};

const LAUNCHER: &str = "pi-launcher";

fn world_of(change: impl FnOnce(&mut Value)) -> World<Mpi> {
    World::new(Mpi::default(), job(change))
}

fn world() -> World<Mpi> {
    world_of(|_| ())
}

/// The launcher's Job creates a pod, which runs.
fn launch(world: &mut World<Mpi>) {
    world.batch_moves(LAUNCHER);
    world.change_batch_pod(|p| {
        p.phase = PodPhase::Running;
        p.ready = true;
    });
}

/// The launcher's container exits with 3, and the kubelet restarts it.
fn restart_launcher(world: &mut World<Mpi>) {
    world.change_batch_pod(|p| {
        p.restarts = 1;
        p.trouble = Some(Box::new(Trouble {
            reason: "Error".to_owned(),
            message: "no such input".to_owned(),
            exit_code: Some(3),
            ..Trouble::default()
        }));
    });
    world.settle();
}

/// Terminating pods are gone, and the operator has seen it.
fn let_go(world: &mut World<Mpi>) {
    for _ in 0..world.pod_names().len() {
        world.happen(Move::Gone(0));
    }
    world.settle();
}

/// A job with running workers and a running launcher.
fn running(change: impl FnOnce(&mut Value)) -> World<Mpi> {
    let mut world = world_of(change);
    world.settle();
    world.run_all();
    world.settle();
    launch(&mut world);
    world.settle();
    world
}

fn counts(world: &World<Mpi>, role: &str) -> Value {
    world.status_json()["replicaStatuses"][role].clone()
}

fn condition(world: &World<Mpi>, type_: &str) -> Value {
    let status = world.status_json();
    let all = status["conditions"].as_array().unwrap();
    all.iter()
        .find(|c| c["type"] == type_)
        .cloned()
        .unwrap_or_default()
}

fn script(world: &World<Mpi>) -> String {
    let config = world.object(ObjectKind::ConfigMap, "pi-config").unwrap();
    config["data"]["discover_hosts.sh"]
        .as_str()
        .unwrap()
        .to_owned()
}

fn hostfile(world: &World<Mpi>) -> String {
    let config = world.object(ObjectKind::ConfigMap, "pi-config").unwrap();
    config["data"]["hostfile"].as_str().unwrap().to_owned()
}

fn suspend(world: &mut World<Mpi>, suspend: bool) {
    world.set("/spec/runPolicy/suspend", json!(suspend));
}

fn is_suspended(world: &World<Mpi>) -> bool {
    let job = world.object(ObjectKind::Job, LAUNCHER).unwrap();
    job["spec"]["suspend"] == true
}

#[test]
fn what_pods_mount_is_made_first_and_the_name_of_the_secret_is_stored_before_them() {
    let mut world = world();
    world.settle();
    assert_eq!(
        world.writes,
        [
            "create Service pi",
            "create ConfigMap pi-config",
            "create Secret pi-ssh",
            "status",
            "create pod pi-worker-0",
            "create pod pi-worker-1",
            "create Job pi-launcher",
        ]
    );
    assert_eq!(world.conditions(), ["Created=True"]);
    assert_eq!(world.status_json()["madeOnce"]["secret"], "pi-ssh");
    assert_eq!(
        (counts(&world, "Launcher"), counts(&world, "Worker")),
        (json!({}), json!({}))
    );
    assert!(world.status_json()["startTime"].is_string());
    assert_eq!(
        world.events(),
        ["Normal MPIJobCreated: MPIJob ns1/pi is created."]
    );
}

#[test]
fn a_job_goes_through_its_life_in_the_published_words() {
    let mut world = running(|job| job["spec"]["runPolicy"]["cleanPodPolicy"] = json!("Running"));
    assert_eq!(world.conditions(), ["Created=True", "Running=True"]);
    assert_eq!(
        condition(&world, "Running")["message"],
        "MPIJob ns1/pi is running."
    );
    assert_eq!(
        (counts(&world, "Launcher"), counts(&world, "Worker")),
        (json!({"active": 1}), json!({"active": 2}))
    );
    assert_eq!(world.status_json()["ready"], "3/3");
    world.tick(5);
    let end = world.now;
    world.complete_batch(LAUNCHER);
    world.tick(3);
    world.settle();
    assert_eq!(
        world.conditions(),
        ["Created=True", "Running=False", "Succeeded=True"]
    );
    assert_eq!(condition(&world, "Running")["reason"], "MPIJobRunning");
    assert_eq!(
        condition(&world, "Succeeded")["message"],
        "MPIJob ns1/pi successfully completed."
    );
    assert_eq!(
        world.status_json()["completionTime"],
        end.to_string(),
        "the Job's own"
    );
    assert_eq!(
        (counts(&world, "Launcher"), counts(&world, "Worker")),
        (json!({"succeeded": 1}), json!({}))
    );
    assert_eq!(
        world.events(),
        [
            "Normal MPIJobCreated: MPIJob ns1/pi is created.",
            "Normal MPIJobRunning: MPIJob ns1/pi is running",
            "Normal MPIJobSucceeded: MPIJob ns1/pi successfully completed.",
        ]
    );
    let_go(&mut world);
    assert_eq!(
        world.pod_names(),
        Vec::<&str>::new(),
        "workers that ran are gone"
    );
    assert_eq!(
        world.object_names(),
        [
            "Service pi",
            "ConfigMap pi-config",
            "Job pi-launcher",
            "Secret pi-ssh"
        ]
    );
}

#[test]
fn a_job_runs_once_its_launcher_and_all_of_its_workers_do() {
    let mut world = world();
    world.settle();
    launch(&mut world);
    world.settle();
    assert_eq!(world.conditions(), ["Created=True"]);
    assert_eq!(counts(&world, "Launcher"), json!({"active": 1}));
    world.run(&["pi-worker-0"]);
    world.settle();
    assert_eq!(world.conditions(), ["Created=True"]);
    world.run(&["pi-worker-1"]);
    world.settle();
    assert_eq!(world.conditions(), ["Created=True", "Running=True"]);
}

#[test]
fn a_job_that_ended_unseen_says_that_it_was_never_seen_to_run() {
    let mut world = world();
    world.settle();
    world.batch_moves(LAUNCHER);
    world.complete_batch(LAUNCHER);
    world.settle();
    assert_eq!(
        world.conditions(),
        ["Created=True", "Running=False", "Succeeded=True"]
    );
    assert_eq!(
        condition(&world, "Running")["message"],
        "MPIJob ns1/pi is finished but Running condition was never set."
    );
}

#[test]
fn the_script_follows_the_workers_that_run_and_the_file_those_that_are_wanted() {
    let mut world = world();
    world.settle();
    assert_eq!(script(&world), "#!/bin/sh\n");
    world.run(&["pi-worker-1"]);
    world.settle();
    assert_eq!(script(&world), "#!/bin/sh\necho pi-worker-1.pi.ns1.svc\n");
    world.set("/spec/mpiReplicaSpecs/Worker/replicas", json!(3));
    world.settle();
    world.run_all();
    world.settle();
    assert_eq!(script(&world).lines().count(), 4);
    assert_eq!(
        hostfile(&world),
        "pi-worker-0.pi.ns1.svc slots=1\npi-worker-1.pi.ns1.svc slots=1\npi-worker-2.pi.ns1.svc slots=1\n"
    );
    world.set("/spec/mpiReplicaSpecs/Worker/replicas", json!(1));
    world.settle();
    assert_eq!(script(&world), "#!/bin/sh\necho pi-worker-0.pi.ns1.svc\n");
}

#[test]
fn b_141_a_smaller_job_loses_the_last_workers_also_where_the_launcher_works() {
    let mut world = running(|job| {
        job["spec"]["runLauncherAsWorker"] = json!(true);
        job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] = json!(4);
    });
    let before = world.writes.len();
    world.set("/spec/mpiReplicaSpecs/Worker/replicas", json!(2));
    world.sticky = false;
    world.settle();
    let deleted: Vec<_> = world.writes[before..]
        .iter()
        .filter(|w| w.starts_with("delete"))
        .collect();
    assert_eq!(
        deleted,
        ["delete pod pi-worker-3", "delete pod pi-worker-2"]
    );
}

#[test]
fn a_launcher_may_wait_until_every_worker_is_ready() {
    let mut world =
        world_of(|job| job["spec"]["launcherCreationPolicy"] = json!("WaitForWorkersReady"));
    world.settle();
    let launcher = |world: &World<Mpi>| world.object(ObjectKind::Job, LAUNCHER).is_some();
    assert!(!launcher(&world));
    assert_eq!(counts(&world, "Launcher"), Value::Null);
    for pod in ["pi-worker-0", "pi-worker-1"] {
        world.change(pod, |p| p.phase = PodPhase::Running);
    }
    world.settle();
    assert!(!launcher(&world), "a running worker is not ready");
    world.run(&["pi-worker-0"]);
    world.settle();
    assert!(!launcher(&world), "only one worker is ready");
    world.run_all();
    world.settle();
    assert!(launcher(&world));
    assert_eq!(counts(&world, "Launcher"), json!({}));
}

#[test]
fn a_launcher_that_waits_for_its_workers_waits_also_after_a_resume() {
    let mut world = world_of(|job| {
        job["spec"]["launcherCreationPolicy"] = json!("WaitForWorkersReady");
        job["spec"]["runPolicy"]["suspend"] = json!(true);
    });
    world.settle();
    assert!(world.object(ObjectKind::Job, LAUNCHER).is_none());
    suspend(&mut world, false);
    world.settle();
    assert!(world.object(ObjectKind::Job, LAUNCHER).is_none());
    world.run_all();
    world.settle();
    launch(&mut world);
    world.settle();
    suspend(&mut world, true);
    world.settle();
    let_go(&mut world);
    world.batch_moves(LAUNCHER);
    suspend(&mut world, false);
    world.settle();
    assert!(is_suspended(&world), "its workers are not ready");
    world.run_all();
    world.settle();
    assert!(!is_suspended(&world));
}

#[test]
fn a_word_that_nobody_published_waits_too_and_is_told() {
    let mut world = world_of(|job| job["spec"]["launcherCreationPolicy"] = json!("Later"));
    world.settle();
    assert!(world.object(ObjectKind::Job, LAUNCHER).is_none());
    let told = world.events();
    assert!(
        told[0].contains("spec.launcherCreationPolicy \"Later\" is read as WaitForWorkersReady"),
        "{told:?}"
    );
}

#[test]
fn a_clean_up_policy_that_nobody_published_is_told_wherever_v1_sets_it() {
    for (field, run_policy, own) in [
        (
            "spec.runPolicy.cleanPodPolicy",
            json!({"cleanPodPolicy": "Sometimes"}),
            Value::Null,
        ),
        ("spec.cleanPodPolicy", json!({}), json!("Sometimes")),
    ] {
        let mut world = world_of(|job| {
            job["spec"]["submittedAs"] = json!("v1");
            job["spec"]["runPolicy"] = run_policy;
            job["spec"]["cleanPodPolicy"] = own;
        });
        world.settle();
        let text = format!(
            "Warning SettingIgnored: {field} \"Sometimes\" is read as All; use None, Running or All"
        );
        let told = world.events();
        assert!(told.contains(&text), "{told:?}");
    }
}

#[test]
fn b_091_i_07_a_job_made_suspended_has_its_objects_and_a_suspended_launcher_and_no_pod() {
    let mut world = world_of(|job| job["spec"]["runPolicy"]["suspend"] = json!(true));
    world.settle();
    assert_eq!(
        world.conditions(),
        ["Created=True", "Running=False", "Suspended=True"]
    );
    assert_eq!(
        condition(&world, "Suspended")["message"],
        "MPIJob suspended"
    );
    assert_eq!(
        condition(&world, "Running")["message"],
        "MPIJob ns1/pi is suspended."
    );
    assert!(is_suspended(&world));
    assert_eq!(world.pod_names(), Vec::<&str>::new());
    assert_eq!(world.status_json()["startTime"], Value::Null);
    assert_eq!(
        (counts(&world, "Launcher"), counts(&world, "Worker")),
        (json!({}), json!({}))
    );
    assert_eq!(
        world.events(),
        [
            "Normal MPIJobSuspended: MPIJob suspended",
            "Normal MPIJobCreated: MPIJob ns1/pi is created.",
        ]
        .iter()
        .rev()
        .copied()
        .collect::<Vec<_>>()
    );
    world.tick(60);
    suspend(&mut world, false);
    world.settle();
    assert!(!is_suspended(&world));
    assert_eq!(world.pod_names(), ["pi-worker-0", "pi-worker-1"]);
    assert_eq!(
        world.conditions(),
        ["Created=True", "Running=False", "Suspended=False"]
    );
    assert_eq!(condition(&world, "Suspended")["message"], "MPIJob resumed");
}

#[test]
fn a_running_job_that_is_suspended_keeps_its_objects_and_starts_again_with_new_workers() {
    let mut world = running(|_| ());
    let start = world.status_json()["startTime"].clone();
    world.tick(30);
    suspend(&mut world, true);
    world.settle();
    let_go(&mut world);
    assert!(is_suspended(&world));
    assert_eq!(
        world.conditions(),
        ["Created=True", "Running=False", "Suspended=True"]
    );
    assert_eq!(world.pod_names(), Vec::<&str>::new());
    assert_eq!(
        counts(&world, "Launcher"),
        json!({"active": 1}),
        "its pod is not gone yet"
    );
    assert_eq!(world.status_json()["startTime"], start);
    world.batch_moves(LAUNCHER);
    world.settle();
    assert_eq!(counts(&world, "Launcher"), json!({}));
    let before = world.writes.len();
    world.tick(30);
    suspend(&mut world, false);
    world.settle();
    assert_eq!(
        world.writes[before..],
        [
            "status",
            "change Job pi-launcher",
            "create pod pi-worker-0",
            "create pod pi-worker-1",
            "change Job pi-launcher",
        ],
        "the start time is cleared before the template is changed"
    );
    assert_ne!(world.status_json()["startTime"], start);
    let names = world.object_names();
    assert_eq!(names.len(), 4, "{names:?}");
}

#[test]
fn a_requested_restart_replaces_workers_and_launcher_once() {
    for ttl in [None, Some(60)] {
        let mut world =
            running(|job| job["spec"]["runPolicy"]["ttlSecondsAfterFinished"] = json!(ttl));
        let before = world.writes.len();
        world.happen(Move::RequestRestart(1));
        world.reconcile();
        assert_eq!(
            world.writes[before..],
            ["status"],
            "the request is stored first"
        );
        world.settle();
        assert!(world.object(ObjectKind::Job, LAUNCHER).is_none());
        assert_eq!(world.pod_names().len(), 2, "terminating");
        let_go(&mut world);
        assert_eq!(
            (world.pod_names().len(), world.batch_pods().count()),
            (0, 1),
            "the former launcher still runs"
        );
        world.let_batch_pods_go();
        world.settle();
        world.run_all();
        world.settle();
        assert!(world.object(ObjectKind::Job, LAUNCHER).is_some());
        assert_eq!(condition(&world, "Restarting")["status"], "True");
        launch(&mut world);
        world.settle();
        assert_eq!(condition(&world, "Running")["status"], "True");
        let state = world.durable_state();
        assert_eq!((state.gang_attempt, state.counted_failures), (1, 0));
        assert!(!state.made_once.contains_key("formerLauncher"));
        world.happen(Move::RequestRestart(1));
        world.settle();
        assert_eq!(
            world.durable_state().gang_attempt,
            1,
            "the request is handled"
        );
        world.complete_batch(LAUNCHER);
        world.settle();
        assert_eq!(condition(&world, "Succeeded")["status"], "True");
        assert_eq!(world.breaches, Vec::<String>::new());
    }
}

#[test]
fn a_job_that_is_suspended_during_a_restart_resumes_with_its_launcher() {
    let mut world = running(|_| ());
    world.happen(Move::RequestRestart(1));
    world.reconcile();
    suspend(&mut world, true);
    world.settle();
    let_go(&mut world);
    assert!(world.object(ObjectKind::Job, LAUNCHER).is_none());
    assert_eq!(
        counts(&world, "Launcher"),
        json!({"active": 1}),
        "the former one still runs"
    );
    world.let_batch_pods_go();
    world.settle();
    assert!(is_suspended(&world));
    assert_eq!(counts(&world, "Launcher"), json!({}));
    assert!(world.object(ObjectKind::Job, LAUNCHER).is_some());
    suspend(&mut world, false);
    world.settle();
    world.run_all();
    world.settle();
    launch(&mut world);
    world.settle();
    assert_eq!(condition(&world, "Running")["status"], "True");
    assert_eq!(world.breaches, Vec::<String>::new());
}

#[test]
fn a_requested_restart_replaces_the_launcher_also_if_a_failure_restarts_the_workers() {
    for (scope, ttl) in [("Gang", None), ("Gang", Some(60)), ("Replica", Some(60))] {
        let mut world = running(|job| {
            job["spec"]["runPolicy"]["ttlSecondsAfterFinished"] = json!(ttl);
            job["apiVersion"] = json!("kubeflow.org/v1");
            job["spec"]["submittedAs"] = json!("v1");
            job["metadata"]["annotations"] = json!({ "trainyard.dev/restart-scope": scope });
            job["spec"]["mpiReplicaSpecs"]["Worker"]["restartPolicy"] = json!("OnFailure");
        });
        let launcher =
            |world: &World<Mpi>| world.durable_state().made_once.get("launcher").cloned();
        let former = launcher(&world);
        assert!(former.is_some());
        world.happen(Move::RequestRestart(1));
        world.fail("pi-worker-0", 1);
        for _ in 0..3 {
            world.settle();
            let_go(&mut world);
            world.let_batch_pods_go();
        }
        world.settle();
        world.run_all();
        world.settle();
        launch(&mut world);
        world.settle();
        assert_ne!(launcher(&world), former, "{scope}");
        assert_eq!(condition(&world, "Running")["status"], "True");
        assert_eq!(world.durable_state().counted_failures, 1);
        assert_eq!(world.breaches, Vec::<String>::new());
    }
}

#[test]
fn a_failed_container_fails_its_worker_in_a_gang_of_v1() {
    for (version, policy) in [("v1", "Never"), ("v2beta1", "OnFailure")] {
        let mut world = world_of(|job| {
            job["apiVersion"] = json!(format!("kubeflow.org/{version}"));
            job["spec"]["submittedAs"] = json!(version);
            job["metadata"]["annotations"] = json!({ "trainyard.dev/restart-scope": "Gang" });
            job["spec"]["mpiReplicaSpecs"]["Worker"]["restartPolicy"] = json!("OnFailure");
        });
        let mut policies = Vec::new();
        for _ in 0..4 {
            world.view_all();
            for step in world.plan().steps {
                if let Step::CreatePod(pod) = step {
                    policies.extend(pod.spec.unwrap().restart_policy);
                }
            }
            world.reconcile();
        }
        policies.dedup();
        assert_eq!(policies, [policy], "{version}");
    }
}

#[test]
fn a_former_launchers_deadline_does_not_end_a_job_whose_spec_cant_be_read_any_more() {
    let mut world = running(|job| job["spec"]["runPolicy"]["activeDeadlineSeconds"] = json!(60));
    world.happen(Move::RequestRestart(1));
    world.reconcile();
    world.set("/spec/slotsPerWorker", json!(-1));
    give_up(
        &mut world,
        "DeadlineExceeded",
        "Job was active longer than specified deadline",
    );
    world.settle();
    assert!(
        !world.durable_state().is_finished(),
        "{:?}",
        world.conditions()
    );
    // Nor does it stand in the way of the next one after its deletion.
    world.lose_ended(LAUNCHER);
    world.set("/spec/slotsPerWorker", json!(1));
    world.settle();
    let_go(&mut world);
    world.settle();
    assert!(world.object(ObjectKind::Job, LAUNCHER).is_some());
}

#[test]
fn where_pods_may_go_follows_the_template_when_a_job_is_resumed() {
    let mut world = world_of(|job| job["spec"]["runPolicy"]["suspend"] = json!(true));
    world.settle();
    for zone in ["a", "b"] {
        world.set(
            "/spec/mpiReplicaSpecs/Launcher/template/spec/nodeSelector",
            json!({ zone: "yes" }),
        );
        world.set(
            "/spec/mpiReplicaSpecs/Launcher/template/spec/tolerations",
            json!([{ "key": zone }]),
        );
        suspend(&mut world, false);
        world.settle();
        let job = world.object(ObjectKind::Job, LAUNCHER).unwrap();
        let spec = &job["spec"]["template"]["spec"];
        assert_eq!(spec["nodeSelector"], json!({ zone: "yes" }));
        assert_eq!(spec["tolerations"], json!([{ "key": zone }]));
        let deleted = world.writes.iter().any(|w| w == "delete Job pi-launcher");
        assert!(!deleted, "it is the same Job");
        launch(&mut world);
        suspend(&mut world, true);
        world.settle();
        let_go(&mut world);
        world.batch_moves(LAUNCHER);
    }
}

#[test]
fn a_suspended_launcher_with_another_program_is_made_anew() {
    let mut world = world_of(|job| job["spec"]["runPolicy"]["suspend"] = json!(true));
    world.settle();
    let image = "/spec/mpiReplicaSpecs/Launcher/template/spec/containers";
    world.set(image, json!([{ "name": "any", "image": "other" }]));
    suspend(&mut world, false);
    world.settle();
    let job = world.object(ObjectKind::Job, LAUNCHER).unwrap();
    assert_eq!(
        job["spec"]["template"]["spec"]["containers"][0]["image"],
        "other"
    );
    assert!(!is_suspended(&world));
}

#[test]
fn a_suspended_launcher_follows_what_its_workers_follow() {
    for (field, value) in [
        ("/spec/sshAuthMountPath", json!("/home/mpi/.ssh")),
        ("/spec/slotsPerWorker", json!(4)),
        ("/spec/mpiImplementation", json!("MPICH")),
        ("/spec/runLauncherAsWorker", json!(true)),
    ] {
        let mut world = world_of(|job| {
            job["spec"]["runPolicy"]["suspend"] = json!(true);
            for field in ["sshAuthMountPath", "slotsPerWorker", "mpiImplementation"] {
                job["spec"][field] = json!(null);
            }
            job["spec"]["runLauncherAsWorker"] = json!(false);
        });
        world.settle();
        world.set(field, value);
        suspend(&mut world, false);
        world.settle();
        let deleted = world.writes.iter().any(|w| w == "delete Job pi-launcher");
        assert!(deleted, "{field}");
        assert!(!is_suspended(&world), "{field}");
    }
}

#[test]
fn a_worker_that_fails_is_made_again_under_its_name_and_the_job_goes_on() {
    let mut world = running(|_| ());
    world.fail("pi-worker-1", 137);
    world.settle();
    assert_eq!(world.pod_names(), ["pi-worker-0", "pi-worker-1"]);
    assert_eq!(world.pod("pi-worker-1").unwrap().phase, PodPhase::Pending);
    assert_eq!(
        world.conditions(),
        ["Created=True", "Running=True"],
        "it stays as published"
    );
    assert_eq!(world.status_json()["restarts"], 1);
    assert_eq!(world.status_json()["lastFailure"]["pod"], "pi-worker-1");
    world.run_all();
    world.complete_batch(LAUNCHER);
    world.settle();
    assert_eq!(world.conditions().last().unwrap(), "Succeeded=True");
}

#[test]
fn a_worker_that_exits_with_zero_is_created_again_while_the_launcher_runs() {
    // The launcher may follow within ten seconds.
    let exits = |world: &mut World<Mpi>| {
        world.finish("pi-worker-1");
        world.settle();
        world.tick(9);
        world.settle();
        assert_eq!(world.pod("pi-worker-1").unwrap().phase, PodPhase::Succeeded);
        assert_eq!(wait(world), Some(1));
        world.tick(1);
        world.settle();
    };
    let mut world = running(|job| job["spec"]["runPolicy"]["backoffLimit"] = json!(0));
    exits(&mut world);
    assert_eq!(world.pod("pi-worker-1").unwrap().phase, PodPhase::Pending);
    assert_eq!(world.conditions(), ["Created=True", "Running=True"]);
    assert_eq!(counts(&world, "Worker"), json!({"active": 1}));
    assert_eq!(world.status_json()["ready"], "2/3");
    assert_eq!(world.status_json()["restarts"], 1);
    assert_eq!(world.status_json()["lastFailure"], Value::Null);
    let told = world.events();
    let text =
        "Warning WorkerExited: 1/2 workers ended before the launcher; they are created again";
    assert!(told.iter().any(|e| e == text), "{told:?}");

    // Its next pods wait as those of a failed worker do.
    for pause in [10, 20] {
        world.run_all();
        world.settle();
        exits(&mut world);
        assert!(world.pod("pi-worker-1").is_none());
        assert_eq!(wait(&mut world), Some(pause));
        world.tick(pause);
        world.settle();
        assert_eq!(world.pod("pi-worker-1").unwrap().phase, PodPhase::Pending);
    }
}

/// The seconds until the next requeue.
fn wait(world: &mut World<Mpi>) -> Option<i64> {
    world.view_all();
    let (now, wake) = (world.now, world.plan().requeue_at);
    wake.map(|at| at.duration_since(now).as_secs())
}

#[test]
fn a_worker_that_exits_with_zero_has_finished_if_the_launcher_has_or_the_job_is_one_of_v1() {
    let exits = |world: &mut World<Mpi>| {
        world.finish("pi-worker-1");
        world.settle();
        world.tick(60);
        world.settle();
    };
    // The launcher's Job may say later that its pod has ended.
    let mut world = running(|_| ());
    world.change_batch_pod(|p| p.phase = PodPhase::Succeeded);
    exits(&mut world);
    assert_eq!(world.pod("pi-worker-1").unwrap().phase, PodPhase::Succeeded);
    world.complete_batch(LAUNCHER);
    world.settle();
    assert_eq!(world.conditions().last().unwrap(), "Succeeded=True");
    assert_eq!(world.pod("pi-worker-1").unwrap().phase, PodPhase::Succeeded);

    let mut world = running(|job| job["spec"]["submittedAs"] = json!("v1"));
    exits(&mut world);
    assert_eq!(world.pod("pi-worker-1").unwrap().phase, PodPhase::Succeeded);
}

#[test]
fn f_60_b_184_an_evicted_worker_is_told_of_and_is_no_end() {
    let mut world = running(|_| ());
    world.change("pi-worker-0", |p| {
        p.phase = PodPhase::Failed;
        let reason = "Evicted".to_owned();
        p.trouble = Some(Box::new(Trouble {
            reason,
            ..Trouble::default()
        }));
    });
    world.settle();
    let told = world.events();
    assert!(
        told.iter()
            .any(|e| e == "Warning MPIJobEvicted: 1/2 workers are evicted"),
        "{told:?}"
    );
    assert!(world.conditions().iter().all(|c| !c.starts_with("Failed")));
    assert_eq!(world.pod("pi-worker-0").unwrap().phase, PodPhase::Pending);
}

#[test]
fn the_launchers_failure_is_the_jobs_and_names_what_the_last_pod_said() {
    let mut world = running(|_| ());
    let fails = |world: &mut World<Mpi>, message: &str| {
        world.change_batch_pod(|p| {
            p.phase = PodPhase::Failed;
            p.exit_code = Some(1);
            p.trouble = Some(Box::new(Trouble {
                reason: "Error".to_owned(),
                message: message.to_owned(),
                exit_code: Some(1),
                ..Trouble::default()
            }));
        });
    };
    fails(&mut world, "a host is not up yet");
    world.change_batch(LAUNCHER, |b| b.failed = 1);
    world.settle();
    assert_eq!(
        world.conditions(),
        ["Created=True", "Running=True"],
        "the Job tries it again"
    );
    assert_eq!(counts(&world, "Launcher"), json!({"failed": 1}));
    launch(&mut world);
    fails(&mut world, "no route to host");
    world.change_batch(LAUNCHER, |b| b.failed = 2);
    give_up_at_limit(&mut world);
    world.settle();
    assert_eq!(
        world.conditions(),
        ["Created=True", "Running=False", "Failed=True"]
    );
    let failed = condition(&world, "Failed");
    assert_eq!(failed["reason"], "BackoffLimitExceeded/Error");
    assert_eq!(
        failed["message"],
        "Job has reached the specified backoff limit: exit code 1: the program reported an error; its log says which; \
         last words: no route to host"
    );
    assert_eq!(counts(&world, "Launcher"), json!({"failed": 2}));
    assert_eq!(world.status_json()["ready"], "0/3");
    assert!(
        world.status_json()["lastFailure"]["pod"]
            .as_str()
            .unwrap()
            .starts_with("pi-launcher-")
    );
    let told = world.events();
    assert!(told.contains(&"Warning PodsStillRunning: 2 workers still run, because runPolicy.cleanPodPolicy is None".to_owned()), "{told:?}");
    assert_eq!(world.pod_names().len(), 2, "None keeps them");
}

#[test]
fn a_launcher_that_was_restarted_in_its_pod_says_why_when_the_pod_is_gone() {
    let mut world = running(|_| ());
    world.change_batch_pod(|p| {
        p.restarts = 1;
        p.trouble = Some(Box::new(Trouble {
            reason: "Error".to_owned(),
            message: "no such program".to_owned(),
            container: "any".to_owned(),
            exit_code: Some(127),
            ..Trouble::default()
        }));
    });
    world.settle();
    assert_eq!(world.status_json()["restarts"], 1);
    let told = |world: &World<Mpi>| {
        let events = world.events();
        events
            .iter()
            .filter(|e| e.contains("ContainerRestarted"))
            .count()
    };
    assert_eq!(told(&world), 1);
    world.crash();
    world.settle();
    assert_eq!(told(&world), 1);
    // The Job deletes its pod when it ends.
    world.lose_living_batch_pods();
    give_up_at_limit(&mut world);
    world.settle();
    let failed = condition(&world, "Failed");
    assert_eq!(failed["reason"], "BackoffLimitExceeded/Error");
    let said = failed["message"].as_str().unwrap();
    assert!(
        said.starts_with("Job has reached the specified backoff limit: exit code 127: "),
        "{said}"
    );
    assert!(said.ends_with("last words: no such program"), "{said}");
}

#[test]
fn a_launcher_whose_pod_has_not_failed_yet_or_ended_well_says_why_it_restarted() {
    for (phase, terminating) in [(PodPhase::Running, true), (PodPhase::Succeeded, false)] {
        let mut world = running(|_| ());
        restart_launcher(&mut world);
        world.change_batch_pod(|p| (p.phase, p.terminating) = (phase, terminating));
        give_up_at_limit(&mut world);
        world.settle();
        let failed = condition(&world, "Failed");
        assert_eq!(failed["reason"], "BackoffLimitExceeded/Error", "{phase:?}");
        let said = failed["message"].as_str().unwrap();
        assert!(said.contains("exit code 3"), "{phase:?}: {said}");
    }
}

#[test]
fn a_launcher_that_is_gone_says_why_it_failed_and_not_why_an_earlier_one_did() {
    let mut world = running(|_| ());
    world.change_batch_pod(|p| {
        p.phase = PodPhase::Failed;
        p.trouble = Some(Box::new(Trouble {
            reason: "Evicted".to_owned(),
            message: "The node was low on resource: memory.".to_owned(),
            since: Some(Timestamp::UNIX_EPOCH),
            ..Trouble::default()
        }));
    });
    world.change_batch(LAUNCHER, |b| b.failed = 1);
    world.settle();
    world.tick(60);
    launch(&mut world);
    restart_launcher(&mut world);
    world.lose_living_batch_pods();
    assert_eq!(world.batch_pods().count(), 1, "the evicted one is kept");
    give_up_at_limit(&mut world);
    world.settle();
    let failed = condition(&world, "Failed");
    assert_eq!(failed["reason"], "BackoffLimitExceeded/Error");
    assert!(
        failed["message"].as_str().unwrap().contains("exit code 3"),
        "{failed}"
    );
    assert_eq!(world.status_json()["lastFailure"]["exitCode"], 3);
}

#[test]
fn a_job_whose_spec_cant_be_read_any_more_is_suspended_and_frees_its_quota() {
    let mut world = running(|_| ());
    world.set("/spec/slotsPerWorker", json!(-1));
    world.set("/spec/runPolicy", json!({ "suspend": true }));
    world.settle();
    assert_eq!(condition(&world, "Suspended")["status"], "True");
    assert_eq!(condition(&world, "Stalled")["reason"], "InvalidSpec");
    assert_eq!(
        counts(&world, "Worker"),
        json!({"active": 2}),
        "still there"
    );
    let_go(&mut world);
    world.lose_living_batch_pods();
    world.settle();
    assert_eq!(counts(&world, "Worker"), json!({}));
    assert_eq!(counts(&world, "Launcher"), json!({}));
    let launcher = world.object(ObjectKind::Job, LAUNCHER).unwrap();
    assert_eq!(launcher["spec"]["suspend"], true);
}

#[test]
fn a_launcher_whose_pod_nobody_can_make_stalls_the_job_after_thirty_seconds() {
    let mut world = world();
    world.settle();
    world.run_all();
    world.settle();
    let start = world.now;
    world.change_batch(LAUNCHER, |b| (b.started, b.since) = (true, Some(start)));
    world.settle();
    world.view_all();
    assert_eq!(
        world.plan().requeue_at.map(|at| (at - start).get_seconds()),
        Some(30)
    );
    world.tick(30);
    world.settle();
    let stalled = condition(&world, "Stalled");
    assert_eq!(
        (&stalled["status"], &stalled["reason"]),
        (&json!("True"), &json!("LauncherPodMissing"))
    );
    let said = stalled["message"].as_str().unwrap();
    assert!(said.contains("kubectl describe job pi-launcher"), "{said}");
    launch(&mut world);
    world.settle();
    assert_eq!(condition(&world, "Stalled")["status"], "False");
}

#[test]
fn a_launcher_whose_pod_is_gone_before_its_job_counts_it_is_not_reported_as_missing() {
    let mut world = running(|_| ());
    let start = world.now;
    world.change_batch(LAUNCHER, |b| b.since = Some(start));
    world.settle();
    world.tick(60);
    // The Job controller lists a pod as uncounted, lets it go, and counts it.
    world.change_batch(LAUNCHER, |b| b.uncounted = 1);
    world.lose_living_batch_pods();
    world.settle();
    assert_ne!(condition(&world, "Stalled")["status"], "True");
    world.change_batch(LAUNCHER, |b| (b.uncounted, b.failed) = (0, 1));
    world.settle();
    assert_ne!(condition(&world, "Stalled")["status"], "True");
}

#[test]
fn a_retry_whose_pod_nobody_can_make_stalls_the_job_when_the_jobs_own_backoff_is_over() {
    let mut world = running(|_| ());
    for (failed, patience) in (1..).zip([40, 50, 70, 110, 190, 350, 630]) {
        let end = world.now;
        world.change_batch_pod(|p| {
            (p.phase, p.ready) = (PodPhase::Failed, false);
            p.trouble = Some(Box::new(Trouble {
                since: Some(end),
                ..Trouble::default()
            }));
        });
        world.settle();
        world.view_all();
        assert_eq!(
            world.plan().requeue_at,
            None,
            "{failed}: the Job counts it first"
        );
        world.change_batch(LAUNCHER, |b| b.failed = failed);
        world.settle();
        world.view_all();
        let wake = world.plan().requeue_at;
        assert_eq!(wake.map(|at| (at - end).get_seconds()), Some(patience));
        world.tick(patience - 1);
        world.settle();
        assert_ne!(condition(&world, "Stalled")["status"], "True", "{failed}");
        world.tick(1);
        world.settle();
        let stalled = condition(&world, "Stalled");
        assert_eq!(
            (&stalled["status"], &stalled["reason"]),
            (&json!("True"), &json!("LauncherPodMissing")),
            "{failed}"
        );
        launch(&mut world);
        world.settle();
        assert_eq!(condition(&world, "Stalled")["status"], "False", "{failed}");
    }
}

#[test]
fn a_job_that_fails_without_a_word_has_the_published_ones() {
    let mut world = running(|_| ());
    give_up(&mut world, "", "");
    world.settle();
    let failed = condition(&world, "Failed");
    assert_eq!(
        (&failed["reason"], &failed["message"]),
        (&json!("MPIJobFailed"), &json!("MPIJob ns1/pi has failed"))
    );
}

#[test]
fn a_launcher_that_somebody_deletes_is_made_again_unless_it_may_have_ended() {
    let mut world = running(|_| ());
    world.lose_object(ObjectKind::Job, LAUNCHER);
    world.settle();
    assert!(world.object(ObjectKind::Job, LAUNCHER).is_some());

    // Recreated even with a TTL, if the Job was seen to go before its end.
    let with_ttl = || running(|job| job["spec"]["runPolicy"]["ttlSecondsAfterFinished"] = json!(0));
    let mut world = with_ttl();
    world.lose_object(ObjectKind::Job, LAUNCHER);
    world.settle();
    assert!(world.object(ObjectKind::Job, LAUNCHER).is_some());
    assert!(!world.conditions().contains(&"Failed=True".to_owned()));

    let mut world = with_ttl();
    world.lose_object(ObjectKind::Job, LAUNCHER);
    world.crash();
    world.settle();
    assert!(
        world.object(ObjectKind::Job, LAUNCHER).is_none(),
        "the program does not run twice"
    );
    assert_eq!(condition(&world, "Failed")["reason"], "LauncherGone");
}

#[test]
fn i_04_b_185_a_launcher_is_not_made_again_while_a_pod_of_the_former_one_runs() {
    let mut world = running(|_| ());
    world.lose_batch(LAUNCHER);
    world.settle();
    assert!(world.object(ObjectKind::Job, LAUNCHER).is_none());
    world.lose_living_batch_pods();
    world.settle();
    assert!(world.object(ObjectKind::Job, LAUNCHER).is_some());
}

#[test]
fn a_job_says_that_it_was_seen_although_its_secret_can_not_be_made() {
    let mut world = world_of(|_| ());
    let status = |world: &mut World<Mpi>| world.plan().status.is_some();
    assert!(!status(&mut world), "it is stored with the Secret's name");
    world.failing = true;
    assert!(status(&mut world));
}

#[test]
fn b_115_variables_that_give_way_to_ours_are_told_once() {
    let mut world = world_of(|job| {
        let spec = &mut job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"];
        spec["containers"][0]["env"] = json!([{"name": "OMPI_MCA_plm_rsh_args", "value": "-v"}]);
    });
    world.settle();
    let told = world.events();
    let about = told.iter().filter(|e| e.contains("EnvReplaced"));
    assert_eq!(
        about.collect::<Vec<_>>(),
        [
            "Warning EnvReplaced: the pod template's OMPI_MCA_plm_rsh_args gave way to the rendezvous values"
        ]
    );
}

#[test]
fn i_23_b_089_at_the_end_of_its_time_to_live_the_job_alone_stays() {
    let mut world = running(|job| job["spec"]["runPolicy"]["ttlSecondsAfterFinished"] = json!(60));
    world.complete_batch(LAUNCHER);
    world.settle();
    world.tick(60);
    world.settle();
    assert_eq!(world.object_names().len(), 4);
    world.tick(1);
    world.settle();
    assert_eq!(
        world.object_names(),
        ["Secret pi-ssh"],
        "it may be somebody else's"
    );
    let_go(&mut world);
    assert_eq!(world.pod_names(), Vec::<&str>::new());
    assert!(world.job().is_some());

    for (ttl_deletes_job, origin) in [(true, "v2beta1"), (false, "v1")] {
        let of = job(|job| {
            job["spec"]["runPolicy"]["ttlSecondsAfterFinished"] = json!(60);
            job["spec"]["submittedAs"] = json!(origin);
        });
        let mut world = World::new(
            Mpi {
                ttl_deletes_job,
                ..Mpi::default()
            },
            of,
        );
        world.settle();
        world.batch_moves(LAUNCHER);
        world.complete_batch(LAUNCHER);
        world.settle();
        world.tick(61);
        world.settle();
        assert!(world.job().is_none(), "{origin}");
    }
}

#[test]
fn the_clean_up_policy_decides_about_workers_alone() {
    for (policy, left) in [("None", 3), ("Running", 1), ("All", 0)] {
        let mut world = running(|job| {
            job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] = json!(3);
            job["spec"]["runPolicy"]["cleanPodPolicy"] = json!(policy);
        });
        world.finish("pi-worker-2");
        world.settle();
        world.complete_batch(LAUNCHER);
        world.settle();
        let_go(&mut world);
        assert_eq!(world.pod_names().len(), left, "{policy}");
        assert!(world.object(ObjectKind::Job, LAUNCHER).is_some());
    }
}

#[test]
fn b_182_a_name_that_somebodys_secret_has_is_left_to_it() {
    let mut world = world();
    world.take_secret_name("pi-ssh");
    world.settle();
    assert_eq!(world.status_json()["madeOnce"]["secret"], "pi-ssh-1");
    let job = world.object(ObjectKind::Job, LAUNCHER).unwrap();
    let volumes = job["spec"]["template"]["spec"]["volumes"]
        .as_array()
        .unwrap();
    assert_eq!(volumes[0]["secret"]["secretName"], "pi-ssh-1");
}

#[test]
fn i_42_a_job_that_another_operator_began_keeps_its_keys() {
    let mut world = running(|_| ());
    let mut status = world.status_json();
    status.as_object_mut().unwrap().remove("madeOnce");
    world.edit(|job| job["status"] = status);
    world.crash();
    world.settle();
    assert_eq!(world.status_json()["madeOnce"]["secret"], "pi-ssh");
    assert_eq!(world.object_names().len(), 4, "no second Secret");
}

#[test]
fn what_cant_be_made_is_told_before_anything_else_is_known_of_the_job() {
    let mut world = world();
    world.refusing = true;
    world.reconciles(3);
    assert_eq!(world.conditions(), ["Stalled=True", "Created=True"]);
    world.refusing = false;
    world.settle();
    assert_eq!(world.conditions(), ["Stalled=False", "Created=True"]);
    assert_eq!(world.pod_names().len(), 2);
}

#[test]
fn b_153_objects_that_were_changed_or_lost_become_what_they_should_be() {
    let mut world = running(|_| ());
    world.lose_object(ObjectKind::Service, "pi");
    world.lose_object(ObjectKind::ConfigMap, "pi-config");
    world.settle();
    assert_eq!(script(&world).lines().count(), 3);
    world.set("/spec/runLauncherAsWorker", json!(true));
    world.settle();
    let service = world.object(ObjectKind::Service, "pi").unwrap();
    assert_eq!(service["spec"]["publishNotReadyAddresses"], true);
    assert!(hostfile(&world).starts_with("pi-launcher.pi.ns1.svc slots=1\n"));
}

#[test]
fn a_job_without_workers_runs_its_launcher_alone() {
    let mut world = running(|job| {
        job["spec"]["mpiReplicaSpecs"]
            .as_object_mut()
            .unwrap()
            .remove("Worker");
    });
    assert_eq!(world.conditions(), ["Created=True", "Running=True"]);
    assert_eq!(hostfile(&world), "");
    world.complete_batch(LAUNCHER);
    world.settle();
    assert_eq!(world.conditions().last().unwrap(), "Succeeded=True");
}

#[test]
fn of_a_job_of_v1_a_worker_that_fails_is_the_jobs_failure() {
    let v1 = |policy: &'static str| {
        running(move |job| {
            job["spec"]["submittedAs"] = json!("v1");
            job["spec"]["mpiReplicaSpecs"]["Worker"]["restartPolicy"] = json!(policy);
        })
    };
    let mut world = v1("Never");
    world.fail("pi-worker-0", 1);
    world.settle();
    let failed = condition(&world, "Failed");
    assert_eq!(
        failed["message"],
        "MPIJob pi is failed because 1 Worker replica(s) failed."
    );
    let mut world = v1("ExitCode");
    world.fail("pi-worker-0", 137);
    world.settle();
    assert!(world.conditions().iter().all(|c| !c.starts_with("Failed")));
    assert_eq!(world.pod_names().len(), 2);
}

#[test]
fn b_092_i_08_jobs_of_other_controllers_are_left_alone_and_both_own_names_are_ours() {
    for (manager, ours) in [
        ("kubeflow.org/mpi-operator", true),
        ("kubeflow.org/training-operator", true),
        ("kueue.x-k8s.io/multikueue", false),
        ("somebody.else/controller", false),
    ] {
        let mut world = world_of(|job| job["spec"]["runPolicy"]["managedBy"] = json!(manager));
        world.settle();
        assert_eq!(!world.writes.is_empty(), ours, "{manager}");
    }
}

#[test]
fn a_launcher_that_began_without_a_host_is_told_of_once() {
    let mut world = running(|_| ());
    world.batch_pod_says("pi-worker-1.pi.ns1.svc: no SSH server answers there");
    world.settle();
    world.crash();
    world.settle();
    let told = world.events();
    let told: Vec<_> = told
        .iter()
        .filter(|e| e.contains("HostsNotAnswering"))
        .collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].ends_with("pi-worker-1.pi.ns1.svc: no SSH server answers there"));
}

#[test]
fn a_job_that_cant_run_fails_with_the_published_event() {
    let mut world = world_of(|job| job["spec"]["mpiImplementation"] = json!("LAM"));
    world.settle();
    assert_eq!(world.conditions(), ["Created=True", "Failed=True"]);
    assert_eq!(condition(&world, "Failed")["reason"], "InvalidSpec");
    let told = world.events();
    let words = "Warning ValidationError: Found validation errors: spec.mpiImplementation: \"LAM\": supported values";
    assert!(told.iter().any(|e| e.starts_with(words)), "{told:?}");
}

#[test]
fn a_launcher_that_was_never_suspended_stops_before_its_job_resumes() {
    let mut world = running(|_| ());
    suspend(&mut world, true);
    world.settle();
    // The patch met a conflict, and the user resumes the job before the operator retries.
    world.change_batch(LAUNCHER, |b| b.suspended = false);
    suspend(&mut world, false);
    world.writes.clear();
    world.reconciles(1);
    assert_eq!(world.conditions().last().unwrap(), "Suspended=True");
    assert_eq!(world.writes, ["status", "change Job pi-launcher"]);
    assert!(is_suspended(&world));
    world.settle();
    assert!(!is_suspended(&world));
    assert!(
        world.conditions().contains(&"Suspended=False".to_owned()),
        "{:?}",
        world.conditions()
    );
}

#[test]
fn a_launcher_that_had_failed_once_holds_no_quota_while_the_job_is_suspended() {
    let mut world = running(|job| job["spec"]["runPolicy"]["ttlSecondsAfterFinished"] = json!(60));
    world.change_batch_pod(|p| p.phase = PodPhase::Failed);
    world.change_batch(LAUNCHER, |b| b.failed = 1);
    launch(&mut world);
    world.settle();
    suspend(&mut world, true);
    world.settle();
    let_go(&mut world);
    world.lose_living_batch_pods();
    world.settle();
    assert_eq!(counts(&world, "Launcher")["active"], Value::Null);
    // A Job with an outdated template is recreated, even with a TTL: the operator itself deleted it.
    let image = "/spec/mpiReplicaSpecs/Launcher/template/spec/containers";
    world.set(image, json!([{ "name": "any", "image": "other" }]));
    suspend(&mut world, false);
    world.settle();
    assert!(
        world.conditions().iter().all(|c| !c.starts_with("Failed")),
        "{:?}",
        world.conditions()
    );
    let job = world.object(ObjectKind::Job, LAUNCHER).unwrap();
    assert_eq!(
        job["spec"]["template"]["spec"]["containers"][0]["image"],
        "other"
    );
    assert!(!is_suspended(&world));
}

#[test]
fn what_the_published_operator_calls_failed_for_an_eviction_goes_on() {
    let mut world = running(|job| job["spec"]["runPolicy"]["cleanPodPolicy"] = json!("All"));
    let mut status = world.status_json();
    let evicted = json!({ "type": "Failed", "status": "True", "reason": "MPIJobEvicted", "message": "1/2 workers are evicted" });
    status["conditions"].as_array_mut().unwrap().push(evicted);
    world.edit(|job| job["status"] = status);
    world.crash();
    world.reconciles(20);
    // The only terminal condition that may be withdrawn: the next status write removes it.
    world.breaches.retain(|b| b != "Failed did not last");
    world.settle();
    assert_eq!(world.pod_names().len(), 2);
    world.complete_batch(LAUNCHER);
    world.settle();
    assert_eq!(world.conditions().last().unwrap(), "Succeeded=True");
}

#[test]
fn pods_wait_for_what_they_mount_and_are_found_by() {
    let mut world = running(|_| ());
    world.happen(Move::Vanish(0));
    world.lose_object(ObjectKind::ConfigMap, "pi-config");
    let before = world.writes.len();
    world.settle();
    let made: Vec<_> = world.writes[before..]
        .iter()
        .filter(|w| w.starts_with("create"))
        .collect();
    assert_eq!(
        made,
        ["create ConfigMap pi-config", "create pod pi-worker-0"]
    );
}

#[test]
fn a_secret_that_somebody_deleted_is_made_again_where_a_run_begins() {
    let renewed = |world: &World<Mpi>| world.object_names().contains(&"Secret pi-ssh".to_owned());
    // On resume.
    let mut world = running(|_| ());
    suspend(&mut world, true);
    world.settle();
    let_go(&mut world);
    world.batch_moves(LAUNCHER);
    world.lose_secrets();
    world.settle();
    assert!(!renewed(&world), "a suspended job needs no Secret");
    suspend(&mut world, false);
    world.settle();
    assert!(renewed(&world));
    assert_eq!(world.status_json()["madeOnce"]["secret"], "pi-ssh");
    // When the launcher is retried; it is requested once.
    let mut world = running(|_| ());
    world.lose_secrets();
    world.settle();
    assert!(!renewed(&world), "the operator never reads it");
    world.change_batch_pod(|p| p.phase = PodPhase::Failed);
    world.change_batch(LAUNCHER, |b| b.failed = 1);
    world.settle();
    assert!(renewed(&world));
    world.lose_secrets();
    world.settle();
    assert!(!renewed(&world));
}

#[test]
fn edits_that_running_pods_cant_follow_are_told() {
    for (field, value) in [
        ("slotsPerWorker", json!(4)),
        ("mpiImplementation", json!("MPICH")),
        ("sshAuthMountPath", json!("/home/mpi/.ssh")),
    ] {
        let mut world = running(|job| {
            for field in ["slotsPerWorker", "mpiImplementation", "sshAuthMountPath"] {
                job["spec"][field] = json!(null);
            }
        });
        world.set(&format!("/spec/{field}"), value);
        world.settle();
        let told = world.events();
        let told: Vec<_> = told
            .iter()
            .filter(|e| e.contains("EditNotApplied"))
            .collect();
        assert_eq!(told.len(), 1, "{field}: {told:?}");
        assert!(
            told[0].contains(&format!("spec.{field}: only new pods follow this edit")),
            "{told:?}"
        );
    }
}
