//! Whole reports.

use jax_operator::JAX;
use mpi_operator::Mpi;
use paddle_operator::Paddle;
use pytorch_operator::PyTorch;
use serde_json::{Value, json};
use tf_operator::TensorFlow;
use training_core::Lifecycle;
use training_testkit::builders::{
    JAX as JAX_KIND, Kind, MPI, PADDLE, PYTORCH, TENSORFLOW, XGBOOST,
};
use xgboost_operator::XGBoost;

use super::{Scene, assert_documented, job, report_for, texts};
use crate::why::{Facts, attention, report, summary};

const GPUS: &str = "/spec/pytorchReplicaSpecs/Worker/template/spec/containers/0/resources";

fn unplaced(scene: &Scene<PyTorch>, message: &str) -> Value {
    json!({ "phase": "Pending", "conditions": [{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
        "lastTransitionTime": scene.at(0),
    }] })
}

fn scene() -> Scene<PyTorch> {
    Scene::new(&PYTORCH, |job| job)
}

#[test]
fn a_job_that_waits_for_a_node_has_cause_pods_held_devices_and_remedy() {
    let gpus = json!({ "limits": { "nvidia.com/gpu": "8", "cpu": "4" } });
    let mut scene: Scene<PyTorch> = Scene::new(&PYTORCH, |job| job.set(GPUS, gpus));
    scene.run(&["pt-master-0", "pt-worker-0"]);
    let status = unplaced(
        &scene,
        "0/8 nodes are available: 8 Insufficient nvidia.com/gpu.",
    );
    scene.set_status("pt-worker-1", status);
    scene.world.tick(20);
    scene.settle();
    scene.world.tick(360);
    assert_eq!(
        texts(&scene.report().lines()),
        [
            "pt  PyTorchJob  WAITING 6m  ready 2/3  Unschedulable",
            "  x Pod pt-worker-1: no node fits it: 0/8 nodes are available: 8 Insufficient nvidia.com/gpu",
            "    1 ready pod already holds 8 nvidia.com/gpu",
            "  > Add the missing resources, and the job continues automatically; or request less (resources, node selectors, affinity, tolerations), apply the job and restart it",
        ]
    );
    assert_documented("why ddp", &texts(&scene.report().lines()));
}

#[test]
fn a_missing_claim_has_its_own_remedy() {
    let mut scene = scene();
    let status = unplaced(
        &scene,
        "0/1 nodes are available: persistentvolumeclaim \"data\" not found.",
    );
    scene.set_status("pt-worker-1", status);
    scene.world.tick(20);
    scene.settle();
    assert_eq!(
        texts(&scene.report().lines())[1..],
        [
            "  x Pod pt-worker-1: no node fits it: persistentvolumeclaim \"data\" not found",
            "  > Create the PersistentVolumeClaim data in the job's namespace; the job continues automatically",
        ]
    );
}

#[test]
fn a_restarting_job_shows_the_failure_and_the_next_restart() {
    let mut scene: Scene<PyTorch> = Scene::new(&PYTORCH, |job| {
        job.run_policy("backoffLimit", 3)
            .run_policy("activeDeadlineSeconds", 3600)
    });
    scene.run(&["pt-master-0", "pt-worker-0", "pt-worker-1"]);
    scene.settle();
    for _ in 0..2 {
        scene.fail(
            "pt-worker-1",
            137,
            "OOMKilled",
            "DataLoader worker (pid 7) is killed by signal: Killed",
        );
        scene.settle();
    }
    scene.world.tick(5);
    assert_eq!(
        texts(&scene.report().lines()),
        [
            "pt  PyTorchJob  RESTARTING 5s  ready 2/3  exit 137 (OOMKilled) in pt-worker-1: DataLoader worker (pid 7) is killed by signal: Killed",
            "  last failure 13:46:40Z  pt-worker-1  exit code 137: used more memory than its limit and was killed; raise the memory limit or use less (container pytorch on node n1)",
            "    termination message: DataLoader worker (pid 7) is killed by signal: Killed",
            "  next: worker-1 restarts at 13:46:50Z, in 5s",
            "  next: 2 of 3 restarts used (backoffLimit)",
            "  next: the job fails at 14:46:40Z, in 59m, unless it finishes first (activeDeadlineSeconds)",
        ]
    );
    assert_documented("why ddp", &texts(&scene.report().lines()));
}

#[test]
fn a_failed_job_shows_limit_exit_code_and_ttl() {
    let mut scene: Scene<PyTorch> = Scene::new(&PYTORCH, |job| {
        job.run_policy("backoffLimit", 0)
            .run_policy("ttlSecondsAfterFinished", 600)
    });
    scene.run(&["pt-master-0", "pt-worker-0", "pt-worker-1"]);
    scene.settle();
    scene.fail("pt-worker-0", 1, "Error", "ValueError: no data");
    scene.settle();
    scene.world.tick(60);
    assert_eq!(
        texts(&scene.report().lines()),
        [
            "pt  PyTorchJob  FAILED 60s  ready 2/3  BackoffLimitExceeded: exit 1 in pt-worker-0: ValueError: no data",
            "  x Job pt has failed because it has reached the specified backoff limit",
            "  > Read the failing replica's log, or raise runPolicy.backoffLimit and submit again",
            "  last failure 13:46:40Z  pt-worker-0  exit code 1: the program reported an error; its log says which (container pytorch on node n1)",
            "    termination message: ValueError: no data",
            "  warning 13:47:40Z  PodsStillRunning: 2 pods still run, because runPolicy.cleanPodPolicy is None",
            "  next: the job is deleted at 13:56:40Z, in 9m (ttlSecondsAfterFinished)",
        ]
    );
}

#[test]
fn the_first_line_shows_the_last_error_of_the_output() {
    let stack = "Exception in thread \"main\" java.lang.IllegalStateException: x\n\tat A.main(A.java:3)\nCaused by: java.io.IOException: disk full\n\tat B";
    let long = format!("{}the data set is gone", "step ".repeat(40));
    let cases = [
        (
            "step 1\nthe data set is gone",
            "step 1 the data set is gone",
        ),
        (
            &long,
            "…step step step step step step step step step step step step step step step the data set is gone",
        ),
        (
            "Traceback (most recent call last):\n  File \"a.py\", line 3\nValueError: no data\nbye",
            "ValueError: no data bye",
        ),
        (
            "torch.distributed.DistStoreError: timed out",
            "torch.distributed.DistStoreError: timed out",
        ),
        (stack, "java.io.IOException: disk full \tat B"),
        (
            "AnalysisException: no such path\n\tat Errors$.dataPathNotExistError(Errors.scala:1499)",
            "AnalysisException: no such path \tat Errors$.dataPathNotExistError(Errors.scala:1499)",
        ),
        ("ErrorHandler starts", "ErrorHandler starts"),
    ];
    for (output, expected) in cases {
        let mut scene: Scene<PyTorch> =
            Scene::new(&PYTORCH, |job| job.run_policy("backoffLimit", 0));
        scene.run(&["pt-master-0", "pt-worker-0", "pt-worker-1"]);
        scene.settle();
        scene.fail("pt-worker-0", 1, "Error", output);
        scene.settle();
        let line = scene.report().headline().text;
        let expected = expected.replace('\t', " ");
        let cause = format!("  BackoffLimitExceeded: exit 1 in pt-worker-0: {expected}");
        assert!(line.ends_with(&cause), "{line}");
    }
}

#[test]
fn a_deadline_and_an_invalid_spec_are_causes() {
    let mut late: Scene<PyTorch> =
        Scene::new(&PYTORCH, |job| job.run_policy("activeDeadlineSeconds", 60));
    late.world.tick(61);
    late.settle();
    let line = late.report().headline().text;
    assert_eq!(
        line,
        "pt  PyTorchJob  FAILED 0s  ready 0/3  DeadlineExceeded"
    );
    let invalid: Scene<PyTorch> =
        Scene::new(&PYTORCH, |job| job.without("Worker").without("Master"));
    let report = invalid.report();
    assert_eq!(
        report.headline().text,
        "pt  PyTorchJob  FAILED 0s  InvalidSpec"
    );
    assert!(
        report.message.starts_with("spec.pytorchReplicaSpecs"),
        "{}",
        report.message
    );
}

#[test]
fn the_first_and_the_last_failure_are_shown() {
    let mut scene = scene();
    scene.run(&["pt-master-0", "pt-worker-0", "pt-worker-1"]);
    scene.fail("pt-worker-0", 139, "Error", "");
    let job = scene.job();
    let pods: Vec<Value> = scene.pods.values().cloned().collect();
    let first = scene.world.now;
    scene.world.tick(300);
    let mut later = job.value.clone();
    later["status"]["lastFailure"] = json!({
        "pod": "pt-master-0", "exitCode": 1, "message": "exit code 1", "time": scene.at(0),
    });
    let failures = report_for(&super::job(later), pods, &[], scene.world.now).failures;
    let found: Vec<_> = failures.iter().map(|f| (f.which, f.pod.as_str())).collect();
    assert_eq!(found, [("first", "pt-worker-0"), ("last", "pt-master-0")]);
    assert_eq!(failures[0].time, Some(first.to_string()));
}

#[test]
fn the_cause_comes_from_pods_if_the_status_has_none() {
    let mut scene = scene();
    let waits = json!({ "waiting": { "reason": "ErrImagePull", "message": "not found" } });
    let status = json!({ "phase": "Pending", "containerStatuses": [
        { "name": "pytorch", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": waits },
    ] });
    for pod in ["pt-master-0", "pt-worker-0", "pt-worker-1"] {
        scene.set_status(pod, status.clone());
    }
    assert_eq!(
        texts(&scene.report().lines()),
        [
            "pt  PyTorchJob  STARTING 0s  ready 0/3  ImagePullBackOff",
            "  x pt-master-0, pt-worker-0, pt-worker-1: the image of container pytorch can't be pulled: not found",
            "  > Check the image's name and tag, and imagePullSecrets for a private registry; the job continues automatically once the image can be pulled",
        ]
    );
}

/// Checks the headline of a job whose worker has an image that can't be pulled.
fn check_stalled<F: Lifecycle + Default>(kind: &Kind) {
    let mut scene: Scene<F> = Scene::new(kind, |job| job);
    let container = super::container::<F>();
    let waits = json!({ "waiting": { "reason": "ImagePullBackOff", "message": "not found" } });
    scene.set_status("pt-worker-1", json!({ "phase": "Pending", "containerStatuses": [
        { "name": container, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": waits },
    ] }));
    scene.settle();
    let line = scene.report().headline().text;
    let expected = format!("pt  {}  WAITING 0s  ready 0/3  ImagePullBackOff", kind.name);
    assert_eq!(line, expected);
}

#[test]
fn the_first_line_names_the_cause_for_every_kind() {
    check_stalled::<PyTorch>(&PYTORCH);
    check_stalled::<TensorFlow>(&TENSORFLOW);
    check_stalled::<XGBoost>(&XGBOOST);
    check_stalled::<Paddle>(&PADDLE);
    check_stalled::<JAX>(&JAX_KIND);
    check_stalled::<Mpi>(&MPI);
}

#[test]
fn a_suspended_job_shows_how_to_resume_it() {
    let mut scene = scene();
    scene
        .world
        .edit(|job| job["spec"]["runPolicy"]["suspend"] = json!(true));
    scene.settle();
    assert_eq!(
        texts(&scene.report().lines()),
        [
            "pt  PyTorchJob  SUSPENDED 0s  ready 0/3  suspend: true in its spec",
            "  > kubectl trainyard resume pt",
        ]
    );
    let mut queued = scene.job();
    queued.value["metadata"]["labels"] = json!({ "kueue.x-k8s.io/queue-name": "gpus" });
    let workload = json!({ "status": { "conditions": [{
        "type": "QuotaReserved", "status": "False", "reason": "Pending",
        "message": "couldn't assign flavors to pod set worker: insufficient unused quota for nvidia.com/gpu",
    }] } });
    let report = report(&Facts {
        job: &queued,
        pods: &[],
        events: &[],
        groups: &[],
        workload: Some(&workload),
        unreadable: &["events, because you may not list them".to_owned()],
        now: scene.world.now,
    });
    assert_eq!(
        texts(&report.lines()),
        [
            "pt  PyTorchJob  SUSPENDED 0s  ready 0/3  Kueue: Pending in queue gpus",
            "  x couldn't assign flavors to pod set worker: insufficient unused quota for nvidia.com/gpu",
            "  > Wait until the queue has quota: kubectl describe localqueue gpus",
            "  not shown: events, because you may not list them",
        ]
    );
}

#[test]
fn a_job_without_a_status_needs_attention() {
    let scene = scene();
    let mut new = scene.job();
    new.value["status"] = json!({});
    new.value["metadata"]["creationTimestamp"] = json!(scene.at(-40));
    let line = |job: &crate::job::Job| report_for(job, [], &[], scene.world.now).headline().text;
    assert_eq!(
        line(&new),
        "pt  PyTorchJob  NO STATUS 40s  no operator has reconciled it"
    );
    let jobs = [new.clone(), scene.job()];
    let attention = attention(&jobs, scene.world.now);
    assert_eq!(attention.len(), 1);
    new.value["spec"]["runPolicy"]["managedBy"] = json!("kueue.x-k8s.io/multikueue");
    assert_eq!(
        line(&new),
        "pt  PyTorchJob  NO STATUS 40s  managed by kueue.x-k8s.io/multikueue"
    );
}

#[test]
fn waiting_jobs_come_before_failed_jobs() {
    let mut waits = scene();
    let status = unplaced(&waits, "no room");
    waits.set_status("pt-worker-1", status);
    waits.world.tick(20);
    waits.settle();
    let mut failed: Scene<PyTorch> = Scene::new(&PYTORCH, |job| job.run_policy("backoffLimit", 0));
    failed.fail("pt-master-0", 1, "Error", "");
    failed.settle();
    let fine = scene();
    let jobs = [failed.job(), fine.job(), waits.job()];
    let words: Vec<String> = attention(&jobs, waits.world.now)
        .iter()
        .map(|(job, state)| summary(job, state, waits.world.now))
        .map(|a| format!("{} {}", a.state, a.cause))
        .collect();
    assert_eq!(
        words,
        [
            "WAITING Unschedulable",
            "FAILED BackoffLimitExceeded: exit 1 in pt-master-0"
        ]
    );
}

#[test]
fn control_characters_are_removed() {
    let mut scene = scene();
    let status = unplaced(&scene, "no \u{1b}[2Jroom");
    scene.set_status("pt-worker-1", status);
    scene.world.tick(20);
    let lines = scene.report().lines();
    assert!(
        texts(&lines).iter().all(|text| !text.contains('\u{1b}')),
        "{lines:?}"
    );
    let mut job = scene.job().value;
    job["status"]["conditions"] =
        json!([{ "type": "Failed", "status": "True", "message": "a\u{1b}[2Jb" }]);
    let lines = report_for(&self::job(job), [], &[], scene.world.now).lines();
    assert!(
        texts(&lines).iter().all(|text| !text.contains('\u{1b}')),
        "{lines:?}"
    );
}
