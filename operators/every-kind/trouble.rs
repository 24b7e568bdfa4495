//! The condition Stalled and its event, for problems that don't end the job, and when they stay silent.

use super::ranks::worker;
use crate::scene::{CHIEF, CHIEF_DECIDES, KIND, KindWorld, Scene, pt, world};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::json;
use training_core::{Cause, PodPhase, PodView, Trouble};
use training_testkit::world::Move;

/// A world whose pods are created and wait for their kubelets.
fn started(workers: u32) -> KindWorld {
    let mut world = world(pt(workers));
    world.settle();
    world.writes.clear();
    world.notes.clear();
    world
}

fn waits(cause: Cause, message: &str) -> Box<Trouble> {
    Box::new(Trouble {
        reason: cause.reason().to_owned(),
        message: message.to_owned(),
        container: KIND.container.to_owned(),
        node: "n1".to_owned(),
        cause: Some(cause),
        ..Trouble::default()
    })
}

fn trouble(world: &mut KindWorld, pod: &str, cause: Cause, message: &str) {
    world.change(pod, |p| p.trouble = Some(waits(cause, message)));
}

fn mended(pod: &mut PodView) {
    pod.trouble = None;
    pod.since = None;
    pod.phase = PodPhase::Running;
    pod.ready = true;
}

fn stalled(world: &KindWorld) -> (String, String, String) {
    let status = world.status();
    let first = status.conditions.first().unwrap();
    assert_eq!(first.type_, "Stalled", "{:?}", world.conditions());
    let text = |t: &Option<String>| t.clone().unwrap_or_default();
    (
        first.status.clone(),
        text(&first.reason),
        text(&first.message),
    )
}

fn status_writes(world: &KindWorld) -> usize {
    world.writes.iter().filter(|w| *w == "status").count()
}

/// Seconds until the operator's next requeue.
fn looks_again_in(world: &mut KindWorld) -> Option<i64> {
    world.view_all();
    let wake = world.plan().requeue_at?;
    Some(world.now.duration_until(wake).as_secs())
}

fn ago(world: &KindWorld, seconds: i64) -> Timestamp {
    world.now - SignedDuration::from_secs(seconds)
}

#[test]
fn every_cause_is_said_once_with_what_to_do_and_taken_back_when_it_is_mended() {
    for cause in Cause::ALL {
        let mut world = started(1);
        let long_ago = ago(&world, 600);
        world.change(worker(0), |p| {
            p.trouble = Some(waits(cause, "the cluster's own words."));
            if let Some(trouble) = &mut p.trouble {
                trouble.since = Some(long_ago);
                trouble.gone_by = Some(long_ago);
            }
            p.terminating = cause == Cause::PodStuckTerminating;
            if matches!(cause, Cause::NodeLost | Cause::PodStuckTerminating) {
                p.phase = PodPhase::Running;
            }
        });
        world.writes.clear();
        world.settle();
        let (status, reason, message) = stalled(&world);
        assert_eq!((status.as_str(), reason.as_str()), ("True", cause.reason()));
        assert!(
            message.starts_with(&format!("Pod {}: ", worker(0))),
            "{message}"
        );
        assert!(
            message.ends_with(&format!("{}.", cause.hint())),
            "{message}"
        );
        assert_eq!(status_writes(&world), 1, "{cause:?}: {:?}", world.writes);
        assert_eq!(
            world.events(),
            [format!("Warning {}: {message}", cause.reason())]
        );
        // The job runs with the deciding pod, which is not terminating.
        let last = if cause == Cause::NodeLost && !CHIEF_DECIDES {
            "Running=True"
        } else {
            "Created=True"
        };
        assert_eq!(world.conditions().last().unwrap(), last, "{cause:?}");

        world.writes.clear();
        world.change(worker(0), |p| {
            mended(p);
            p.terminating = false;
        });
        world.settle();
        assert_eq!(stalled(&world).0, "False", "{cause:?}");
        assert_eq!(status_writes(&world), 1, "{cause:?}");
    }
}

#[test]
fn the_status_says_in_one_word_why_a_job_waits_while_it_does() {
    let mut world = started(1);
    let waiting = |world: &KindWorld| world.status().waiting;
    assert_eq!(waiting(&world), None);
    trouble(&mut world, worker(0), Cause::ImagePullBackOff, "not found");
    world.settle();
    assert_eq!(waiting(&world).as_deref(), Some("ImagePullBackOff"));
    world.change(worker(0), mended);
    world.settle();
    assert_eq!(stalled(&world).0, "False");
    assert_eq!(waiting(&world), None);
}

#[test]
fn a_start_without_trouble_is_never_stalled() {
    let mut world = started(2);
    world.change(worker(0), |p| p.since = Some(999_999));
    world.settle();
    world.run_all();
    world.settle();
    world.happen(Move::Finish(0));
    world.happen(Move::Finish(1));
    world.happen(Move::Finish(2));
    world.settle();
    assert_eq!(
        world.conditions(),
        ["Created=True", "Running=False", "Succeeded=True"]
    );
}

#[test]
fn words_that_change_while_the_trouble_does_not_are_not_written() {
    let mut world = started(2);
    trouble(&mut world, worker(1), Cause::ImagePullBackOff, "not found");
    world.settle();
    world.writes.clear();
    world.notes.clear();
    for (seconds, words) in [(1, ""), (40, "timeout"), (300, "not found"), (4000, "x")] {
        world.tick(seconds);
        trouble(&mut world, worker(1), Cause::ImagePullBackOff, words);
        world.settle();
    }
    assert_eq!(world.writes, [] as [&str; 0]);
    assert_eq!(world.events(), [] as [&str; 0]);
    assert!(
        stalled(&world).2.contains(": not found. "),
        "{:?}",
        stalled(&world)
    );
}

#[test]
fn more_pods_in_the_same_trouble_are_told_half_a_minute_later_and_not_as_another_event() {
    let mut world = started(5);
    trouble(&mut world, worker(3), Cause::ImagePullBackOff, "not found");
    world.settle();
    world.writes.clear();
    world.notes.clear();
    for pod in [CHIEF, worker(0), worker(1), worker(4)] {
        trouble(&mut world, pod, Cause::ImagePullBackOff, "not found");
        world.settle();
    }
    assert_eq!(world.writes, [] as [&str; 0]);
    assert_eq!(looks_again_in(&mut world), Some(30));
    world.tick(30);
    world.settle();
    assert_eq!(world.writes, ["status"]);
    assert_eq!(world.events(), [] as [&str; 0]);
    let message = stalled(&world).2;
    let head = &*format!(
        "5 pods ({CHIEF}, {}, {} and 2 more): the image of container {} can't be pulled: not found. ",
        worker(0),
        worker(1),
        KIND.container
    );
    assert!(message.starts_with(head), "{message}");
    assert_eq!(looks_again_in(&mut world), None, "at rest");
}

#[test]
fn a_pod_without_a_node_has_ten_seconds_and_one_without_volumes_two_minutes() {
    for (cause, patience) in [
        (Cause::Unschedulable, 10),
        (Cause::SchedulingGated, 10),
        (Cause::PodNotStarting, 120),
    ] {
        let mut world = started(1);
        let since = world.now;
        world.change(worker(0), |p| {
            if cause == Cause::PodNotStarting {
                p.since = u32::try_from(since.as_second()).ok();
            } else {
                p.trouble = Some(waits(cause, "0/1 nodes are available"));
                p.trouble.as_mut().unwrap().since = Some(since);
            }
        });
        world.settle();
        assert_eq!(world.writes, [] as [&str; 0], "{cause:?}");
        assert_eq!(looks_again_in(&mut world), Some(patience), "{cause:?}");
        world.tick(patience - 1);
        world.settle();
        assert_eq!(world.writes, [] as [&str; 0], "{cause:?}");
        world.tick(1);
        world.settle();
        assert_eq!(stalled(&world).1, cause.reason());
    }
}

#[test]
fn of_several_causes_the_one_that_needs_a_human_first_is_told() {
    let mut world = started(3);
    trouble(&mut world, worker(0), Cause::Unschedulable, "0/1 nodes");
    trouble(
        &mut world,
        worker(1),
        Cause::CreateContainerConfigError,
        "secret \"s\" not found",
    );
    trouble(&mut world, worker(2), Cause::ImagePullBackOff, "not found");
    world.settle();
    assert_eq!(stalled(&world).1, "ImagePullBackOff");
    world.change(worker(2), mended);
    world.settle();
    assert_eq!(stalled(&world).1, "CreateContainerConfigError");
    world.change(worker(1), mended);
    world.settle();
    assert_eq!(stalled(&world).1, "Unschedulable");
}

#[test]
fn f_20_what_the_api_server_refuses_is_told_before_what_pods_wait_for() {
    let mut world = world(pt(2));
    world.refusing = true;
    world.settle();
    assert_eq!(stalled(&world).1, "QuotaExceeded");
    world.refusing = false;
    world.settle();
    trouble(&mut world, worker(0), Cause::ImagePullBackOff, "not found");
    world.settle();
    assert_eq!(stalled(&world).1, "ImagePullBackOff");
}

fn crash(world: &mut KindWorld, restarts: u32, waiting: bool) {
    let now = world.now;
    world.change(worker(0), |p| {
        p.phase = PodPhase::Running;
        p.ready = !waiting;
        p.restarts = restarts;
        p.trouble = Some(waits(Cause::CrashLoopBackOff, "Traceback: no data"));
        let trouble = p.trouble.as_mut().unwrap();
        "Error".clone_into(&mut trouble.reason);
        trouble.exit_code = Some(1);
        trouble.since = Some(now);
        trouble.cause = waiting.then_some(Cause::CrashLoopBackOff);
    });
    world.settle();
}

#[test]
fn a_crash_loop_is_one_trouble_until_the_container_has_run_for_a_minute() {
    let mut world = started(1);
    world.run_all();
    world.settle();
    crash(&mut world, 1, false);
    assert_eq!(
        world.conditions()[0],
        "Created=True",
        "one restart is no loop"
    );
    crash(&mut world, 2, true);
    assert_eq!(stalled(&world).1, "CrashLoopBackOff");
    let said = &*format!(
        "Pod {}: container {} fails repeatedly: exit code 1: the program reported an error",
        worker(0),
        KIND.container
    );
    assert!(stalled(&world).2.starts_with(said), "{:?}", stalled(&world));
    world.tick(20);
    crash(&mut world, 3, false);
    assert_eq!(stalled(&world).0, "True", "it must run for a while first");
    assert_eq!(looks_again_in(&mut world), Some(60));
    world.tick(59);
    crash(&mut world, 4, true);
    world.tick(300);
    crash(&mut world, 5, false);
    let stalls = world
        .notes
        .iter()
        .filter(|n| n.reason == "CrashLoopBackOff");
    assert_eq!(stalls.count(), 1);
    world.tick(60);
    world.settle();
    assert_eq!(stalled(&world).0, "False");
    assert_eq!(looks_again_in(&mut world), None, "at rest");
}

#[test]
fn a_container_restarted_in_place_leaves_how_it_ended_in_the_status() {
    let mut world = started(1);
    world.run_all();
    world.settle();
    world.writes.clear();
    crash(&mut world, 1, false);
    let failure = world.status().last_failure.unwrap();
    assert_eq!(
        (failure.pod.as_str(), failure.exit_code),
        (worker(0), Some(1))
    );
    let said = &*format!(
        "exit code 1: the program reported an error; its log says which (container {} on node n1); last words: Traceback: no data",
        KIND.container
    );
    assert_eq!(failure.message.as_deref(), Some(said));
    assert_eq!(world.writes, ["status"]);
    assert_eq!(
        world.events(),
        [format!(
            "Warning ContainerRestarted: Pod {}: restarted in place after {said}",
            worker(0)
        )]
    );
}

#[test]
fn pods_that_are_to_go_anyway_are_no_trouble_while_they_do() {
    let mut world = started(2);
    world.run_all();
    world.settle();
    world.set("/spec/runPolicy/suspend", json!(true));
    let by = world.now + SignedDuration::from_secs(30);
    world.settle();
    for pod in [CHIEF, worker(0), worker(1)] {
        world.change(pod, |p| {
            p.trouble = Some(waits(Cause::ImagePullBackOff, "not found"));
            p.trouble.as_mut().unwrap().gone_by = Some(by);
        });
    }
    world.settle();
    assert!(
        !world.conditions().contains(&"Stalled=True".to_owned()),
        "{:?}",
        world.conditions()
    );
    assert_eq!(looks_again_in(&mut world), Some(60));
    world.tick(60);
    world.settle();
    assert_eq!(stalled(&world).1, "PodStuckTerminating");
    assert_eq!(world.conditions().last().unwrap(), "Suspended=True");
    for _ in 0..3 {
        world.happen(Move::Gone(0));
    }
    world.settle();
    assert_eq!(stalled(&world).0, "False");
}

#[test]
fn f_60_a_lost_node_is_said_with_its_name_and_time_and_waited_for() {
    let mut world = started(2);
    world.run_all();
    world.settle();
    world.writes.clear();
    let since = ago(&world, 1);
    for pod in [worker(0), worker(1)] {
        world.change(pod, |p| {
            p.ready = false;
            p.trouble = Some(waits(Cause::NodeLost, ""));
            p.trouble.as_mut().unwrap().since = Some(since);
        });
    }
    world.settle();
    let (_, reason, message) = stalled(&world);
    assert_eq!(reason, "NodeLost");
    let head = format!(
        "2 pods ({}, {}): node n1 hasn't reported since {since}. ",
        worker(0),
        worker(1)
    );
    assert!(message.starts_with(&head), "{message}");
    world.tick(100_000);
    world.settle();
    assert_eq!(world.writes, ["status"], "it waits");
    assert_eq!(world.status_json()["ready"], "1/3");
}

fn lose(world: &mut KindWorld, pod: &str, terminating: bool) {
    let now = world.now;
    world.change(pod, |p| {
        p.ready = false;
        p.terminating = terminating;
        p.disrupted = terminating;
        p.trouble = Some(waits(Cause::NodeLost, ""));
        let trouble = p.trouble.as_mut().unwrap();
        trouble.since = Some(now);
        trouble.gone_by = terminating.then_some(now);
    });
    world.settle();
}

#[test]
fn f_60_a_lost_pod_is_forced_only_where_the_operator_is_set_to_and_only_after_its_time() {
    for terminating in [false, true] {
        let mut world = started(2);
        world.rules.force_lost_after = Some(SignedDuration::from_secs(600));
        world.sticky = true;
        world.run_all();
        world.settle();
        lose(&mut world, worker(0), terminating);
        let old = world.pod(worker(0)).unwrap().uid;
        world.writes.clear();
        assert_eq!(looks_again_in(&mut world), Some(600), "{terminating}");
        world.tick(599);
        world.settle();
        assert_eq!(world.writes, [] as [&str; 0], "{terminating}");
        world.tick(1);
        world.settle();
        let delete = format!("delete pod {}", worker(0));
        let deletes = world.writes.iter().filter(|w| **w == delete);
        // A pod that is not terminating yet is deleted gracefully first.
        assert_eq!(
            deletes.count(),
            if terminating { 1 } else { 2 },
            "{:?}",
            world.writes
        );
        let new = world.pod(worker(0)).unwrap();
        assert!(
            new.uid != old && new.attempt.to_string() == "0.1",
            "{new:?}"
        );
        assert_eq!(
            world.durable_state().counted_failures,
            0,
            "a lost node is no failure of the job"
        );
        let told = world.notes.iter().filter(|n| n.reason == "LostPodDeleted");
        assert_eq!(told.count(), 1, "{:?}", world.events());
        assert_eq!(stalled(&world).0, "False");
    }
}

#[test]
fn a_pod_that_was_forced_and_stays_is_not_forced_again() {
    let mut world = started(1);
    world.rules.force_lost_after = Some(SignedDuration::from_secs(10));
    world.sticky = true;
    world.run_all();
    world.settle();
    lose(&mut world, worker(0), true);
    // A finalizer blocks the deletion.
    world.change(worker(0), |p| p.trouble.as_mut().unwrap().forced = true);
    world.settle();
    world.writes.clear();
    world.tick(1000);
    world.settle();
    assert_eq!(world.writes, [] as [&str; 0]);
    assert_eq!(stalled(&world).0, "True");
}

#[test]
fn mt_23_what_a_pod_says_harms_no_terminal_and_stays_short() {
    let mut world = started(1);
    let noise = "\u{1b}[31m\u{7}\u{202e}x".repeat(10_000);
    trouble(&mut world, worker(0), Cause::ContainerWaiting, &noise);
    world.settle();
    let message = stalled(&world).2;
    assert!(message.len() <= 1024, "{}", message.len());
    assert!(
        !message.contains(|c: char| c.is_control() || c == '\u{202e}'),
        "{message}"
    );
    assert!(message.ends_with("Run kubectl describe pod."), "{message}");
}

#[test]
fn a_claim_that_is_missing_is_named_with_what_to_do() {
    let mut world = started(1);
    let said = "0/3 nodes are available: persistentvolumeclaim \"data\" not found. not found";
    trouble(&mut world, worker(0), Cause::Unschedulable, said);
    world.settle();
    assert_eq!(
        stalled(&world).2,
        format!(
            "Pod {}: no node fits it: persistentvolumeclaim \"data\" not found. \
             Create the PersistentVolumeClaim data in the job's namespace; the job continues automatically.",
            worker(0)
        )
    );
}

#[test]
fn what_to_do_stands_at_the_end_however_much_is_said() {
    let mut world = started(1);
    let said = "some words ".repeat(90);
    trouble(&mut world, worker(0), Cause::ImagePullBackOff, &said);
    world.settle();
    let message = stalled(&world).2;
    assert!(
        message.contains("some words… ") || message.contains("words some… "),
        "{message}"
    );
    assert!(
        message.ends_with(&format!("{}.", Cause::ImagePullBackOff.hint())),
        "{message}"
    );
}
