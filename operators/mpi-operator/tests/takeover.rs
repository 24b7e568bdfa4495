//! Jobs of `v1` that the training operator started: their launcher is a bare pod, and they have no keys.

use serde_json::{Value, json};

use crate::scene::job;
use mpi_operator::Mpi;
use training_core::{ObjectKind, PodPhase, Stored as _};
use training_testkit::scene::Scene;
use training_testkit::world::{Move, World};

const LAUNCHER: &str = "pi-launcher";

/// The status that the training operator wrote.
fn published_status() -> Value {
    let condition = |type_: &str, message: &str| {
        json!({
            "type": type_, "status": "True", "reason": format!("MPIJob{type_}"), "message": message,
            "lastTransitionTime": "1970-01-01T00:00:00Z", "lastUpdateTime": "1970-01-01T00:00:00Z",
        })
    };
    json!({
        "conditions": [condition("Created", "MPIJob pi is created."), condition("Running", "MPIJob pi is running.")],
        "replicaStatuses": { "Launcher": { "active": 1 }, "Worker": { "active": 2 } },
        "startTime": "1970-01-01T00:00:00Z",
    })
}

/// Both workers and the launcher run as that operator made them; ours has just started.
fn left_with(launcher: &str, change: impl FnOnce(&mut Value)) -> World<Mpi> {
    let mut world = World::new(
        Mpi::default(),
        job(|job| {
            job["apiVersion"] = json!("kubeflow.org/v1");
            job["spec"]["submittedAs"] = json!("v1");
            job["spec"]["runPolicy"]["cleanPodPolicy"] = json!("Running");
            change(job);
        }),
    );
    world.settle();
    world.run_all();
    world.settle();
    for (kind, name) in [
        (ObjectKind::Job, LAUNCHER),
        (ObjectKind::ConfigMap, "pi-config"),
        (ObjectKind::Service, "pi"),
    ] {
        world.lose_object(kind, name);
    }
    world.lose_secrets();
    world.edit(|job| job["status"] = published_status());
    world.put_own_pod(launcher);
    world.crash();
    world.writes.clear();
    world.notes.clear();
    world.breaches.clear();
    world
}

fn left(change: impl FnOnce(&mut Value)) -> World<Mpi> {
    left_with(LAUNCHER, change)
}

fn is_untouched(world: &World<Mpi>) -> bool {
    world.writes.iter().all(|write| write == "status")
}

fn policy(policy: &'static str) -> impl FnOnce(&mut Value) {
    move |job| {
        for role in ["Launcher", "Worker"] {
            job["spec"]["mpiReplicaSpecs"][role]["restartPolicy"] = json!(policy);
        }
    }
}

fn end_with(world: &mut World<Mpi>, code: i32) {
    world.change_batch_pod(|p| {
        p.phase = if code == 0 {
            PodPhase::Succeeded
        } else {
            PodPhase::Failed
        };
        p.exit_code = Some(code);
        p.ready = false;
    });
    world.settle();
}

#[test]
fn i_42_a_running_launcher_of_the_training_operator_is_followed_to_its_end() {
    let mut world = left(|_| ());
    world.settle();
    assert!(is_untouched(&world), "{:?}", world.writes);
    assert_eq!(world.object_names(), Vec::<String>::new());
    assert_eq!(world.conditions(), ["Created=True", "Running=True"]);
    let status = world.status_json();
    assert_eq!(
        status["replicaStatuses"]["Launcher"],
        json!({ "active": 1 })
    );
    assert_eq!(status["replicaStatuses"]["Worker"], json!({ "active": 2 }));
    assert_eq!(status["ready"], "3/3");
    assert_eq!(status["startTime"], "1970-01-01T00:00:00Z");
    // Also after an operator restart.
    world.crash();
    world.settle();
    assert!(is_untouched(&world), "{:?}", world.writes);

    world.tick(5);
    end_with(&mut world, 0);
    assert_eq!(
        world.conditions(),
        ["Created=True", "Running=False", "Succeeded=True"]
    );
    let status = world.status_json();
    assert_eq!(
        status["replicaStatuses"]["Launcher"],
        json!({ "succeeded": 1 })
    );
    assert_eq!(status["replicaStatuses"]["Worker"], json!({}));
    let message = &status["conditions"][2]["message"];
    assert_eq!(message, "MPIJob ns1/pi successfully completed.");
    let deleted: Vec<_> = world.writes.iter().filter(|w| *w != "status").collect();
    assert_eq!(
        deleted,
        ["delete pod pi-worker-0", "delete pod pi-worker-1"],
        "the launcher has ended"
    );
    assert!(world.breaches.is_empty(), "{:?}", world.breaches);
}

#[test]
fn i_42_a_followed_launcher_or_worker_that_fails_fails_the_job_in_the_published_words() {
    for (launcher, message) in [
        (
            true,
            "MPIJob pi is failed because 1 Launcher replica(s) failed.",
        ),
        (
            false,
            "MPIJob pi is failed because 1 Worker replica(s) failed.",
        ),
    ] {
        let mut world = left(|_| ());
        world.settle();
        if launcher {
            end_with(&mut world, 1);
        } else {
            world.fail("pi-worker-1", 1);
            world.settle();
        }
        let status = world.status_json();
        let failed = &status["conditions"].as_array().unwrap().last().unwrap();
        assert_eq!(
            (&failed["type"], &failed["message"]),
            (&json!("Failed"), &json!(message))
        );
        let made: Vec<_> = world
            .writes
            .iter()
            .filter(|w| w.starts_with("create"))
            .collect();
        assert_eq!(made, Vec::<&String>::new());
        if launcher {
            assert_eq!(
                status["replicaStatuses"]["Launcher"],
                json!({ "failed": 1 })
            );
            assert_eq!(status["lastFailure"]["pod"], LAUNCHER);
        } else {
            assert!(
                world.writes.contains(&"delete pod pi-launcher".to_owned()),
                "it was still running"
            );
        }
    }
}

/// Every object of the present run is ours.
fn is_ours(world: &World<Mpi>) {
    assert!(world.object(ObjectKind::Job, LAUNCHER).is_some());
    assert!(world.batch_pods().all(|(name, _)| name != LAUNCHER));
    assert_eq!(world.status_json()["madeOnce"]["secret"], "pi-ssh");
    assert_eq!(world.status_json()["madeOnce"]["launcherPod"], Value::Null);
    assert!(world.pods().all(|(_, pod)| pod.attempt.gang > 0));
    assert!(world.breaches.is_empty(), "{:?}", world.breaches);
}

fn let_go(world: &mut World<Mpi>) {
    world.let_batch_pods_go();
    for _ in 0..world.pod_names().len() {
        world.happen(Move::Gone(0));
    }
    world.settle();
}

#[test]
fn a_retry_of_what_the_training_operator_began_is_ours() {
    for launcher in [true, false] {
        let mut world = left(policy("ExitCode"));
        world.settle();
        if launcher {
            end_with(&mut world, 137);
        } else {
            world.fail("pi-worker-0", 137);
            world.settle();
            assert!(
                world.object(ObjectKind::Job, LAUNCHER).is_none(),
                "its launcher still exists"
            );
        }
        let_go(&mut world);
        world.settle();
        if !launcher {
            is_ours(&world);
        }
        assert!(world.object(ObjectKind::Job, LAUNCHER).is_some());
        assert_eq!(world.pod_names(), ["pi-worker-0", "pi-worker-1"]);
        world.batch_moves(LAUNCHER);
        world.complete_batch(LAUNCHER);
        world.settle();
        assert_eq!(world.conditions().last().unwrap(), "Succeeded=True");
    }
    let mut world = left(|job| {
        policy("ExitCode")(job);
        job["spec"]["runPolicy"]["backoffLimit"] = json!(0);
    });
    world.settle();
    end_with(&mut world, 137);
    assert_eq!(world.conditions().last().unwrap(), "Failed=True");
}

#[test]
fn a_run_of_the_training_operator_starts_again_as_ours_if_its_launcher_waits_for_a_lost_worker() {
    let mut world = left(policy("Never"));
    world.change_batch_pod(|p| (p.phase, p.ready) = (PodPhase::Pending, false));
    world.settle();
    assert!(is_untouched(&world), "{:?}", world.writes);
    // A kubelet sets the phase of a deleted pod before it removes the pod.
    world.happen(Move::Delete(1));
    world.change("pi-worker-1", |p| p.phase = PodPhase::Succeeded);
    world.settle();
    assert!(is_untouched(&world), "{:?}", world.writes);
    world.happen(Move::Gone(0));
    world.settle();
    let status = world.status_json();
    let last = status["conditions"].as_array().unwrap().last().unwrap();
    let message = "job pi is restarting because Worker replica(s) failed.";
    assert_eq!(
        (&last["type"], &last["message"]),
        (&json!("Restarting"), &json!(message))
    );
    let_go(&mut world);
    world.settle();
    is_ours(&world);
    assert_eq!(world.pod_names(), ["pi-worker-0", "pi-worker-1"]);
}

#[test]
fn a_running_launcher_of_the_training_operator_decides_what_a_lost_worker_or_an_edit_means() {
    for change in ["lost", "more", "fewer"] {
        let mut world = left(|_| ());
        world.settle();
        match change {
            "lost" => world.happen(Move::Vanish(1)),
            "more" => world.set("/spec/mpiReplicaSpecs/Worker/replicas", json!(4)),
            _ => world.set("/spec/mpiReplicaSpecs/Worker/replicas", json!(1)),
        }
        world.settle();
        assert!(is_untouched(&world), "{change}: {:?}", world.writes);
    }
}

#[test]
fn a_followed_launcher_goes_when_its_job_is_suspended_and_the_resume_is_ours() {
    let mut world = left(|_| ());
    world.settle();
    world.set("/spec/runPolicy/suspend", json!(true));
    world.settle();
    assert!(
        world.writes.contains(&"delete pod pi-launcher".to_owned()),
        "{:?}",
        world.writes
    );
    assert_eq!(
        world.object_names(),
        Vec::<String>::new(),
        "it still exists"
    );
    assert_eq!(
        world.status_json()["replicaStatuses"]["Launcher"]["active"],
        1
    );
    // A resume in between waits for its deletion.
    world.set("/spec/runPolicy/suspend", json!(false));
    world.settle();
    assert!(world.object(ObjectKind::Job, LAUNCHER).is_none());
    let_go(&mut world);
    world.settle();
    is_ours(&world);
    assert_eq!(world.conditions().last().unwrap(), "Suspended=False");
}

#[test]
fn a_requested_restart_replaces_a_followed_launcher_once_it_has_ended() {
    let mut world = left(|_| ());
    world.settle();
    world.happen(Move::RequestRestart(1));
    world.settle();
    assert!(
        world.writes.contains(&"delete pod pi-launcher".to_owned()),
        "{:?}",
        world.writes
    );
    for _ in 0..world.pod_names().len() {
        world.happen(Move::Gone(0));
    }
    world.settle();
    assert_eq!(world.pod_names().len(), 0, "the former launcher still runs");
    world.let_batch_pods_go();
    world.settle();
    world.run_all();
    world.settle();
    is_ours(&world);
}

#[test]
fn a_followed_launchers_failure_is_counted_before_a_requested_restart() {
    // With the worker's, there are two failures.
    for (limit, worker_fails) in [(0, false), (1, true)] {
        let mut world = left(|job| {
            policy("ExitCode")(job);
            job["spec"]["runPolicy"]["backoffLimit"] = json!(limit);
            job["metadata"]["annotations"] = json!({ "trainyard.dev/restart-scope": "Gang" });
        });
        world.settle();
        world.happen(Move::RequestRestart(1));
        if worker_fails {
            world.fail("pi-worker-0", 137);
        }
        end_with(&mut world, 137);
        assert_eq!(world.conditions().last().unwrap(), "Failed=True");
    }
}

#[test]
fn a_followed_launcher_that_is_gone_is_made_again_as_ours() {
    let mut world = left(|_| ());
    world.settle();
    world.delete_own_pod(LAUNCHER);
    world.settle();
    let_go(&mut world);
    world.settle();
    is_ours(&world);
}

#[test]
fn b_088_a_followed_launcher_has_its_jobs_deadline() {
    for readable in [true, false] {
        let mut world =
            left(|job| job["spec"]["runPolicy"]["activeDeadlineSeconds"] = json!(2_000_000));
        world.settle();
        if !readable {
            world.set("/spec/slotsPerWorker", json!(-1));
            world.settle();
        }
        assert!(is_untouched(&world), "{:?}", world.writes);
        world.tick(1_000_000);
        world.settle();
        assert_eq!(world.conditions().last().unwrap(), "Failed=True");
        assert!(world.writes.contains(&"delete pod pi-launcher".to_owned()));
    }
}

#[test]
fn mt_53_a_pod_that_takes_the_launchers_name_ends_no_job_of_ours() {
    let forged = |world: &mut World<Mpi>| {
        world.put_own_pod(LAUNCHER);
        end_with(world, 0);
        assert!(!world.conditions().contains(&"Succeeded=True".to_owned()));
    };
    // For a job that has not been started, and one that our operator runs.
    let mut world = World::new(
        Mpi::default(),
        job(|job| job["spec"]["submittedAs"] = json!("v1")),
    );
    forged(&mut world);
    world.settle();
    assert!(world.object(ObjectKind::Job, LAUNCHER).is_some());
    // After a followed launcher that is gone.
    let mut world = left(|_| ());
    world.settle();
    world.delete_own_pod(LAUNCHER);
    forged(&mut world);
    // Under another name.
    let mut world = left_with("pi-other", |_| ());
    end_with(&mut world, 0);
    assert!(!world.conditions().contains(&"Succeeded=True".to_owned()));
    // For a job of v2beta1, which never has a bare launcher.
    let mut world = World::new(Mpi::default(), job(|_| ()));
    world.settle();
    forged(&mut world);
}

/// The published operator sets `Failed` when a worker is evicted, and goes on with the job.
#[test]
fn a_job_with_an_evicted_worker_keeps_its_templates_in_memory() {
    let evicted = |completed: bool| {
        let job = job(|job| {
            job["status"] = published_status();
            let conditions = job["status"]["conditions"].as_array_mut().unwrap();
            conditions.push(json!({
                "type": "Failed", "status": "True", "reason": "MPIJobEvicted", "message": "1/2 workers are evicted",
            }));
            if completed {
                job["status"]["completionTime"] = json!("1970-01-01T00:01:00Z");
            }
        });
        job.has_ended()
    };
    assert!(!evicted(false));
    assert!(evicted(true));
}
