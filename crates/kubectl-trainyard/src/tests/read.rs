//! Results of waiting, checks before a suspension, and the pods of a job.

use mpi_operator::Mpi;
use pytorch_operator::PyTorch;
use serde_json::json;
use training_testkit::builders::{MPI, PYTORCH};

use super::Scene;
use crate::control::{Action, check};
use crate::job::{Job, main_container, members};
use crate::wait::{End, end};

fn scene() -> Scene<PyTorch> {
    Scene::new(&PYTORCH, |job| job.run_policy("backoffLimit", 0))
}

fn ends(job: &Job) -> Option<End> {
    end(job.uid(), Some(job))
}

#[test]
fn waiting_ends_when_the_job_fails_or_is_deleted() {
    let mut scene = scene();
    assert_eq!(ends(&scene.job()), None);
    scene
        .world
        .edit(|job| job["spec"]["runPolicy"]["suspend"] = json!(true));
    scene.settle();
    assert_eq!(ends(&scene.job()), None, "a suspended job has not finished");
    scene
        .world
        .edit(|job| job["spec"]["runPolicy"]["suspend"] = json!(false));
    scene.settle();
    scene.fail("pt-master-0", 1, "Error", "");
    scene.settle();
    assert_eq!(ends(&scene.job()), Some(End::Failed));
    let job = scene.job();
    assert_eq!(end(job.uid(), None), Some(End::Deleted));
    assert_eq!(end("another", Some(&job)), Some(End::Deleted));
    let codes = [End::Succeeded, End::Failed, End::Deleted, End::TimedOut].map(End::code);
    assert_eq!(codes, [0, 1, 1, 124]);
}

#[test]
fn a_job_that_succeeded_ends_waiting() {
    let mut scene = scene();
    let done = json!({ "phase": "Succeeded", "containerStatuses": [
        { "name": "pytorch", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": { "terminated": { "exitCode": 0 } } },
    ] });
    for pod in ["pt-master-0", "pt-worker-0", "pt-worker-1"] {
        scene.set_status(pod, done.clone());
    }
    scene.settle();
    assert_eq!(ends(&scene.job()), Some(End::Succeeded));
}

#[test]
fn an_mpi_job_evicted_under_the_published_operator_has_not_failed() {
    let scene: Scene<Mpi> = Scene::new(&MPI, |job| job);
    let mut job = scene.job();
    let failed = json!({ "type": "Failed", "status": "True", "reason": "MPIJobEvicted", "message": "1/2 workers are evicted" });
    job.value["status"]["conditions"] = json!([failed]);
    assert_eq!(ends(&job), None);
    job.value["status"]["completionTime"] = json!("2026-01-01T00:00:00Z");
    assert_eq!(ends(&job), Some(End::Failed));
}

#[test]
fn suspend_resume_and_restart_are_checked_first() {
    let mut scene = scene();
    let running = scene.job();
    assert_eq!(check(&running, Action::Suspend).unwrap(), None);
    let text = check(&running, Action::Resume).unwrap();
    assert_eq!(text.as_deref(), Some("pt is not suspended"));
    scene
        .world
        .edit(|job| job["spec"]["runPolicy"]["suspend"] = json!(true));
    let mut suspended = scene.job();
    assert_eq!(check(&suspended, Action::Resume).unwrap(), None);
    assert!(check(&suspended, Action::Suspend).unwrap().is_some());
    suspended.value["metadata"]["labels"] = json!({ "kueue.x-k8s.io/queue-name": "gpus" });
    let error = check(&suspended, Action::Resume).unwrap_err().to_string();
    assert!(
        error.starts_with("Kueue manages pt in queue gpus"),
        "{error}"
    );
    let error = check(&suspended, Action::Restart).unwrap_err().to_string();
    assert_eq!(
        error,
        "pt is suspended and has no pods: it starts from its current spec once it is resumed"
    );
    assert_eq!(check(&running, Action::Restart).unwrap(), None);
    let mut failed = self::scene();
    failed.fail("pt-master-0", 1, "Error", "");
    failed.settle();
    let error = check(&failed.job(), Action::Suspend)
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("pt has finished (FAILED)"), "{error}");
}

#[test]
fn pods_are_those_that_the_job_owns_by_rank_with_the_launcher_first() {
    let scene: Scene<Mpi> = Scene::new(&MPI, |job| job);
    let job = scene.job();
    let mut pods: Vec<serde_json::Value> = scene.pods.values().cloned().collect();
    let mut launcher = pods[0].clone();
    launcher["metadata"]["name"] = json!("pt-launcher-x7k2p");
    launcher["metadata"]["labels"]["training.kubeflow.org/job-role"] = json!("launcher");
    launcher["metadata"]["ownerReferences"] =
        json!([{ "apiVersion": "batch/v1", "kind": "Job", "name": "pt-launcher", "uid": "j" }]);
    pods.push(launcher);
    let mut foreign = pods[0].clone();
    foreign["metadata"]["ownerReferences"][0]["uid"] = json!("another");
    pods.push(foreign);
    let pods = pods
        .into_iter()
        .map(|pod| serde_json::from_value(pod).unwrap());
    let members = members(&job, pods.collect());
    let ranks: Vec<&str> = members.iter().map(|m| m.rank.as_str()).collect();
    assert_eq!(ranks, ["launcher", "worker-0", "worker-1"]);
    let main = main_container(&job, &members[1].pod);
    assert_eq!(main.as_deref(), Some("any"));
}
