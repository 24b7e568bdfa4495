//! Finished jobs: compressed in the cache, and reconciled as before.

use std::sync::Arc;

use crate::scene::{pt, typed};
use crate::server::{CHILD, JOB, pod, worker};
use kube::ResourceExt as _;
use pytorch_operator::{PyTorch, PyTorchJob};
use serde_json::json;
use training_api::JobStatus;
use training_core::Stored as _;
use training_runtime::feed::{self, jobs::Jobs, slim};
use training_runtime::key::JobKey;
use training_testkit::builders;

/// An annotation that the operator reads.
const RESTART_SCOPE: &str = "trainyard.dev/restart-scope";

/// A finished job at this version.
fn ended(version: &str, change: impl FnOnce(builders::Job) -> builders::Job) -> PyTorchJob {
    let condition = |name: &str| {
        json!({
            "type": name, "status": "True", "reason": format!("PyTorchJob{name}"), "message": "as it is",
            "lastUpdateTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    let status = json!({
        "conditions": [condition("Created"), condition("Succeeded")],
        "replicaStatuses": {"Master": {"succeeded": 1}, "Worker": {"failed": 2}},
        "startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:00:00Z",
        "ready": "2/2", "restarts": 3, "lastFailure": {"pod": "pt-worker-0", "exitCode": 137},
    });
    let mut job = typed(change(pt(1).set("/status", status).set(
        "/metadata/annotations",
        json!({"team": "a \"b\" ü", RESTART_SCOPE: "Gang"}),
    )));
    job.metadata.resource_version = Some(version.to_owned());
    job
}

#[test]
fn an_ended_job_keeps_all_but_its_templates_and_its_users_annotations() {
    let jobs = Jobs::default();
    let mut job = ended("41", |job| job.run_policy("ttlSecondsAfterFinished", 60));
    assert!(jobs.apply(job.clone()));
    assert!(
        !jobs.apply(job.clone()),
        "applying the same object again changes nothing"
    );
    job.shrink();
    job.annotations_mut().remove("team");
    let key = JobKey::new("ns1", "pt");
    assert_eq!(jobs.get(&key).as_deref(), Some(&job));
    // A second job, which is stored as its differences from the first.
    let mut other = job.clone();
    other.metadata.name = Some("other".to_owned());
    jobs.apply(other.clone());
    let key = JobKey::new("ns1", "other");
    assert_eq!(jobs.get(&key).as_deref(), Some(&other));
    // The operator's own write updates the cached job; a write based on an older version doesn't.
    let known = jobs.get(&key).unwrap();
    let mut status = known.status.clone().unwrap();
    status.ready = Some("0/2".to_owned());
    jobs.written(&known, status.clone(), "50".to_owned());
    jobs.written(&known, JobStatus::default(), "60".to_owned());
    let now = jobs.get(&key).unwrap();
    assert_eq!(now.status, Some(status));
    assert_eq!(now.metadata.resource_version.as_deref(), Some("50"));
}

#[tokio::test(start_paused = true)]
async fn an_ended_job_comes_alive_again_when_a_pod_appears_or_its_time_to_live_is_set() {
    let key = JobKey::new("ns1", "pt");
    let clean = |job: builders::Job| job.run_policy("cleanPodPolicy", "Running");
    let (worker, mut server) = worker(ended("41", clean), &[]);
    Arc::clone(&worker).reconcile(key.clone()).await;
    server.silence().await;

    let seen: slim::SlimPod = serde_json::from_value(pod("worker", "Running")).unwrap();
    let view = slim::pod_view(
        &seen,
        feed::owner_kind::<PyTorch>(),
        &mut slim::Roles::default(),
    );
    server.children.pods.apply(view.unwrap());
    let reconcile = tokio::spawn(Arc::clone(&worker).reconcile(key.clone()));
    let delete = server.asked().await;
    assert_eq!(
        delete.what,
        "DELETE /api/v1/namespaces/ns1/pods/pt-worker-0"
    );
    delete.done(CHILD);
    reconcile.await.unwrap();
    server.silence().await;

    let edited = ended("42", |job| job.run_policy("ttlSecondsAfterFinished", 1));
    assert!(worker.jobs.apply(edited));
    let reconcile = tokio::spawn(Arc::clone(&worker).reconcile(key));
    let delete = server.asked().await;
    assert_eq!(
        delete.what,
        "DELETE /apis/kubeflow.org/v1/namespaces/ns1/pytorchjobs/pt"
    );
    delete.done(JOB);
    reconcile.await.unwrap();
}
