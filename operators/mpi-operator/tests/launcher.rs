//! What keeps a launcher's pod from starting or terminating: its init container, and its node.

use k8s_openapi::jiff::SignedDuration;
use serde_json::{Value, json};

use crate::scene::{give_up_at_limit, job};
use mpi_operator::Mpi;
use training_core::{Cause, ObjectKind, PodPhase, Trouble};
use training_testkit::scene::Scene;
use training_testkit::world::World;

const LAUNCHER: &str = "pi-launcher";
const GATE: &str = "trainyard-wait-for-hosts";
const GATE_IMAGE: &str = "registry.test/mpi-operator:1";

fn condition(world: &World<Mpi>, type_: &str) -> Value {
    let status = world.status_json();
    let mut all = status["conditions"].as_array().unwrap().iter();
    all.find(|c| c["type"] == type_)
        .cloned()
        .unwrap_or_default()
}

/// The launcher's pod runs.
fn runs(world: &mut World<Mpi>) {
    world.change_batch_pod(|p| {
        (p.phase, p.ready, p.trouble) = (PodPhase::Running, true, None);
    });
}

/// A world whose launchers wait for their hosts and whose launcher pod was just created.
fn gated(change: impl FnOnce(&mut Value)) -> World<Mpi> {
    let framework = Mpi {
        gate_image: Some(GATE_IMAGE.to_owned()),
        ..Mpi::default()
    };
    let mut world = World::new(framework, job(change));
    world.settle();
    world.run_all();
    world.batch_moves(LAUNCHER);
    world
}

/// Sets the state of an init container of the launcher's pod.
fn init_says(world: &mut World<Mpi>, container: &str, cause: Option<Cause>, message: &str) {
    world.change_batch_pod(|p| {
        p.trouble = Some(Box::new(Trouble {
            cause,
            init: true,
            container: container.to_owned(),
            message: message.to_owned(),
            node: "n1".to_owned(),
            exit_code: (cause != Some(Cause::ImagePullBackOff)).then_some(255),
            ..Trouble::default()
        }));
        if cause.is_none() {
            p.phase = PodPhase::Failed;
        }
    });
}

/// Returns true if this names the container, its image and every remedy.
fn is_told_as_ours(said: &str) -> bool {
    [
        GATE,
        GATE_IMAGE,
        "--launcher-gate-image",
        "trainyard.dev/launcher-gate: \"false\"",
        "--launcher-gate=false",
    ]
    .iter()
    .all(|words| said.contains(words))
}

#[test]
fn an_image_of_the_gate_that_cant_be_pulled_is_told_as_ours() {
    for (container, ours) in [(GATE, true), ("theirs", false)] {
        let mut world = gated(|_| ());
        let said = "\"any\": unauthorized";
        init_says(&mut world, container, Some(Cause::ImagePullBackOff), said);
        world.settle();
        let stalled = condition(&world, "Stalled");
        assert_eq!(stalled["reason"], "ImagePullBackOff");
        let said = stalled["message"].as_str().unwrap();
        assert_eq!(is_told_as_ours(said), ours, "{said}");
        assert!(said.contains("unauthorized"), "{said}");
    }
}

#[test]
fn a_gate_for_another_architecture_is_told_with_its_image_and_what_to_do() {
    let exec = "exec /mpi-operator: exec format error";
    let pull = "no matching manifest for linux/arm64/v8 in the manifest list entries";
    for (cause, said, reason) in [
        (Some(Cause::ImagePullBackOff), pull, "ImagePullBackOff"),
        (Some(Cause::RunContainerError), exec, "RunContainerError"),
        (Some(Cause::CrashLoopBackOff), exec, "CrashLoopBackOff"),
        // A launcher with `restartPolicy: Never`, which its Job retries.
        (None, exec, "RunContainerError"),
    ] {
        let mut world = gated(|_| ());
        init_says(&mut world, GATE, cause, said);
        if cause.is_none() {
            world.change_batch(LAUNCHER, |b| b.failed = 1);
        }
        world.settle();
        let stalled = condition(&world, "Stalled");
        assert_eq!(
            (&stalled["status"], &stalled["reason"]),
            (&json!("True"), &json!(reason))
        );
        let words = stalled["message"].as_str().unwrap();
        assert!(is_told_as_ours(words), "{words}");
        assert!(
            words.contains("is not for the node's architecture"),
            "{words}"
        );
        assert!(
            words.contains("kubernetes.io/arch") && words.contains(said),
            "{words}"
        );
        // The next attempt changes nothing until it runs.
        if cause.is_none() {
            world.batch_moves(LAUNCHER);
            world.writes.clear();
            world.settle();
            assert_eq!(world.writes, [] as [&str; 0]);
            assert_eq!(condition(&world, "Stalled")["status"], "True");
        }
        runs(&mut world);
        world.settle();
        assert_eq!(condition(&world, "Stalled")["status"], "False");
    }
}

#[test]
fn a_gate_that_ended_its_job_is_named_in_the_failure_whether_its_pod_is_gone_or_not() {
    let failure = |gone: bool| {
        let mut world = gated(|_| ());
        let said = "exec /mpi-operator: exec format error";
        if gone {
            init_says(&mut world, GATE, Some(Cause::CrashLoopBackOff), said);
            world.change_batch_pod(|p| p.restarts = 1);
            world.settle();
            world.lose_living_batch_pods();
        } else {
            init_says(&mut world, GATE, None, said);
        }
        world.change_batch(LAUNCHER, |b| b.failed = 1);
        give_up_at_limit(&mut world);
        world.settle();
        let failed = condition(&world, "Failed");
        let words = failed["message"].as_str().unwrap().to_owned();
        assert!(is_told_as_ours(&words) && words.contains(said), "{words}");
        assert!(
            words.starts_with("Job has reached the specified backoff limit: "),
            "{words}"
        );
        words
    };
    assert_eq!(failure(true), failure(false));
}

#[test]
fn a_resumed_job_leaves_the_gate_out_where_it_was_switched_off_meanwhile() {
    let gate = |world: &World<Mpi>| {
        let job = world.object(ObjectKind::Job, LAUNCHER).unwrap();
        let init = &job["spec"]["template"]["spec"]["initContainers"];
        init.as_array().is_some_and(|all| !all.is_empty())
    };
    for switched in [true, false] {
        let mut world = gated(|_| ());
        assert!(gate(&world));
        world.set("/spec/runPolicy/suspend", json!(true));
        world.settle();
        world.batch_moves(LAUNCHER);
        world.settle();
        if switched {
            world.edit(|job| {
                job["metadata"]["annotations"] = json!({ "trainyard.dev/launcher-gate": "false" });
            });
        }
        world.writes.clear();
        world.set("/spec/runPolicy/suspend", json!(false));
        world.settle();
        assert_eq!(gate(&world), !switched);
        let anew = world.writes.iter().any(|w| w == "create Job pi-launcher");
        assert_eq!(anew, switched, "{:?}", world.writes);
        assert!(world.breaches.is_empty(), "{:?}", world.breaches);
    }
}

/// The node of the launcher's pod stops responding.
fn lose_launcher(world: &mut World<Mpi>, terminating: bool) {
    let now = world.now;
    world.change_batch_pod(|p| {
        (p.ready, p.terminating, p.disrupted) = (false, terminating, terminating);
        p.trouble = Some(Box::new(Trouble {
            cause: Some(Cause::NodeLost),
            node: "n1".to_owned(),
            since: Some(now),
            gone_by: terminating.then_some(now),
            ..Trouble::default()
        }));
    });
    world.settle();
}

#[test]
fn f_60_a_lost_launcher_is_forced_only_where_the_operator_is_set_to_and_its_job_makes_it_again() {
    for terminating in [false, true] {
        let mut world = World::new(Mpi::default(), job(|_| ()));
        world.rules.force_lost_after = Some(SignedDuration::from_secs(600));
        world.settle();
        world.run_all();
        world.batch_moves(LAUNCHER);
        runs(&mut world);
        world.settle();
        let old = world.batch_pods().next().unwrap().0.to_owned();
        lose_launcher(&mut world, terminating);
        assert_eq!(condition(&world, "Stalled")["reason"], "NodeLost");
        world.writes.clear();
        world.tick(599);
        world.settle();
        assert_eq!(world.writes, [] as [&str; 0], "{terminating}");
        world.tick(1);
        world.settle();
        let deletes = || vec![format!("delete pod {old}"); if terminating { 1 } else { 2 }];
        let pods: Vec<_> = world
            .writes
            .iter()
            .filter(|w| *w != "status")
            .cloned()
            .collect();
        assert_eq!(pods, deletes(), "it is deleted gracefully first");
        assert_eq!(world.batch_pods().count(), 0);
        let told = world.notes.iter().filter(|n| n.reason == "LostPodDeleted");
        assert_eq!(told.count(), 1, "{:?}", world.events());
        // Its Job creates a new pod, and the job goes on.
        world.batch_moves(LAUNCHER);
        runs(&mut world);
        world.settle();
        assert_eq!(condition(&world, "Stalled")["status"], "False");
        world.complete_batch(LAUNCHER);
        world.settle();
        assert_eq!(world.conditions().last().unwrap(), "Succeeded=True");
        assert!(world.breaches.is_empty(), "{:?}", world.breaches);
    }
    // By default the operator waits for it.
    let mut world = World::new(Mpi::default(), job(|_| ()));
    world.settle();
    world.run_all();
    world.batch_moves(LAUNCHER);
    runs(&mut world);
    world.settle();
    lose_launcher(&mut world, true);
    world.writes.clear();
    world.tick(100_000);
    world.settle();
    assert_eq!(world.writes, [] as [&str; 0]);
}

#[test]
fn f_60_a_lost_worker_is_given_up_as_a_replica_of_any_other_kind_is() {
    for origin in ["v1", "v2beta1"] {
        let mut world = World::new(
            Mpi::default(),
            job(|job| {
                job["spec"]["submittedAs"] = json!(origin);
                job["spec"]["runPolicy"]["backoffLimit"] = json!(0);
                job["spec"]["mpiReplicaSpecs"]["Worker"]["restartPolicy"] = json!("OnFailure");
            }),
        );
        world.rules.force_lost_after = Some(SignedDuration::from_secs(600));
        world.sticky = true;
        world.settle();
        world.run_all();
        world.batch_moves(LAUNCHER);
        world.settle();
        let (now, old) = (world.now, world.pod("pi-worker-1").unwrap().uid);
        world.change("pi-worker-1", |p| {
            p.ready = false;
            p.trouble = Some(Box::new(Trouble {
                cause: Some(Cause::NodeLost),
                since: Some(now),
                ..Trouble::default()
            }));
        });
        world.settle();
        world.tick(600);
        world.settle();
        let new = world.pod("pi-worker-1").unwrap();
        assert!(
            new.uid != old && new.attempt.to_string() == "0.1",
            "{origin}: {new:?}"
        );
        assert_eq!(world.durable_state().counted_failures, 0, "{origin}");
        assert!(world.breaches.is_empty(), "{:?}", world.breaches);
    }
}
