//! The history of jobs in states that the operators' own plans produce.

use pytorch_operator::PyTorch;
use serde_json::{Value, json};
use tf_operator::TensorFlow;
use training_testkit::builders::{PYTORCH, TENSORFLOW};

use super::{Scene, assert_documented, job};
use crate::history::{Entry, entries};
use crate::out::Line;

/// The entries without their times.
fn texts(entries: &[Entry]) -> Vec<String> {
    let text = |e: &Entry| format!("{}: {}", e.what, e.message);
    entries.iter().map(text).collect()
}

fn failed_once() -> Scene<TensorFlow> {
    let mut scene = Scene::new(&TENSORFLOW, |job| {
        job.set("/spec/tfReplicaSpecs/Worker/restartPolicy", "OnFailure")
    });
    scene.run(&["pt-worker-0", "pt-worker-1"]);
    scene.settle();
    scene.fail("pt-worker-1", 137, "OOMKilled", "");
    scene.settle();
    scene
}

#[test]
fn without_events_the_status_tells_the_conditions_the_failure_and_the_attempt() {
    let scene = failed_once();
    let mut job = scene.job();
    job.value["metadata"]["creationTimestamp"] = json!(scene.at(-60));
    let told = texts(&entries(&job, &[]));
    assert!(
        told.first().is_some_and(|first| first == "created: "),
        "{told:?}"
    );
    let has = |part: &str| told.iter().any(|line| line.starts_with(part));
    assert!(has("TFJobCreated: "), "{told:?}");
    assert!(
        has("PodFailed: exit 137 (OOMKilled) in pt-worker-1: "),
        "{told:?}"
    );
    assert!(has("attempt: attempt 2 of worker-1"), "{told:?}");
}

#[test]
fn the_page_shows_a_history() {
    let mut scene: Scene<PyTorch> = Scene::new(&PYTORCH, |job| job);
    let mut job = scene.job();
    job.value["metadata"]["creationTimestamp"] = json!(scene.at(0));
    let mut events = scene.events();
    scene.world.notes.clear();
    scene.world.tick(8);
    scene.run(&["pt-master-0", "pt-worker-0", "pt-worker-1"]);
    scene.settle();
    events.extend(scene.events());
    scene.world.notes.clear();
    scene.world.tick(300);
    scene.fail("pt-worker-1", 137, "OOMKilled", "");
    scene.settle();
    events.extend(scene.events());
    job.value["status"] = scene.job().value["status"].clone();
    let now = scene.world.now;
    let lines: Vec<Line> = entries(&job, &events).iter().map(|e| e.line(now)).collect();
    assert_documented("history ddp", &super::texts(&lines));
}

#[test]
fn what_an_event_tells_is_shown_once() {
    let scene = failed_once();
    let events = scene.events();
    let all = entries(&scene.job(), &events);
    let failures = all.iter().filter(|e| e.what == "PodFailed");
    assert_eq!(failures.count(), 1, "{all:?}");
    assert!(all.is_sorted(), "{all:?}");
}

#[test]
fn an_application_tells_its_submissions_and_its_end() {
    let time = |second: u32| format!("2026-01-01T00:00:{second:02}Z");
    let app: Value = json!({
        "apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication",
        "metadata": { "name": "pi", "creationTimestamp": time(0) }, "spec": {},
        "status": {
            "applicationState": { "state": "FAILED", "errorMessage": "driver container failed" }, "driverInfo": {},
            "lastSubmissionAttemptTime": time(2), "submissionAttempts": 2, "lastFailureTime": time(5), "failedRuns": 2,
            "terminationTime": time(6),
        },
    });
    assert_eq!(
        texts(&entries(&job(app), &[])),
        [
            "created: ",
            "submission: number 2",
            "failure: number 2",
            "FAILED: driver container failed"
        ]
    );
}
