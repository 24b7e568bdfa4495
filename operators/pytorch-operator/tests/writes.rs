//! The operator's requests, their order, and their preconditions.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::scene::{pt, typed};
use crate::server::{
    CHILD, JOB, JOBS, NOTHING, PyTorchWorker, STATUS, Server, executor, pod, worker,
};
use http::Method;
use pytorch_operator::{PyTorch, PyTorchJob};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::time::Instant;
use training_core::{Deletion, Note, Step, Uid};
use training_runtime::key::{JobKey, Scope};

fn stored() -> PyTorchJob {
    let mut job = typed(pt(1));
    job.metadata.resource_version = Some("41".to_owned());
    job
}

fn uid() -> Uid {
    Uid::parse(CHILD).unwrap()
}

/// Returns the pod creation of the job's first plan.
fn first_pod() -> Step {
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    let plan = training_core::plan(
        &PyTorch::default(),
        &stored(),
        &training_core::Observed::default(),
        now,
    );
    let is_pod = |s: &Step| matches!(s, Step::CreatePod(_));
    plan.steps.into_iter().find(is_pod).unwrap()
}

#[tokio::test(start_paused = true)]
async fn events_wait_while_a_job_is_reconciled() {
    let (mut worker, mut server) = worker(stored(), &[]);
    let (events, mut recorder) = crate::server::events();
    Arc::get_mut(&mut worker).unwrap().context.events = events.clone();
    let reconcile = tokio::spawn(worker.reconcile(JobKey::new("ns1", "pt")));
    let first = server.asked().await;
    events.post(&Arc::default(), Note::normal("Reason", "of another job"));
    recorder.silence().await;
    // Also after a reconcile that does not end by itself.
    reconcile.abort();
    assert!(reconcile.await.is_err());
    let event = recorder.asked().await;
    assert_eq!(event.body["message"], "of another job");
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn i_26_a_status_write_names_uid_and_version() {
    let (executor, mut server) = executor();
    let writing = tokio::spawn(async move {
        let patch = json!({"ready": "1/2"});
        executor.caller.write_status(&stored(), &patch).await
    });
    let asked = server.asked().await;
    assert_eq!(
        asked.what,
        "PATCH /apis/kubeflow.org/v1/namespaces/ns1/pytorchjobs/pt/status"
    );
    assert_eq!(
        asked.body,
        json!({"metadata": {"uid": JOB, "resourceVersion": "41"}, "status": {"ready": "1/2"}})
    );
    asked.done(JOB);
    assert_eq!(writing.await.unwrap().unwrap(), "50");
}

#[tokio::test(start_paused = true)]
async fn i_26_every_delete_names_the_uid_that_was_seen() {
    let steps = [
        (
            Step::DeletePod {
                name: "pt-worker-0".to_owned(),
                uid: uid(),
                how: Deletion::Graceful,
            },
            "DELETE /api/v1/namespaces/ns1/pods/pt-worker-0",
            CHILD,
            Value::Null,
        ),
        (
            Step::DeletePod {
                name: "pt-worker-0".to_owned(),
                uid: uid(),
                how: Deletion::Forced,
            },
            "DELETE /api/v1/namespaces/ns1/pods/pt-worker-0",
            CHILD,
            json!(0),
        ),
        (
            Step::DeleteService {
                name: "pt-worker-0".to_owned(),
                uid: uid(),
            },
            "DELETE /api/v1/namespaces/ns1/services/pt-worker-0",
            CHILD,
            Value::Null,
        ),
        (
            Step::DeleteJob,
            "DELETE /apis/kubeflow.org/v1/namespaces/ns1/pytorchjobs/pt",
            JOB,
            Value::Null,
        ),
    ];
    for (step, what, expected, grace) in steps {
        let (executor, mut server) = executor();
        let deleting =
            tokio::spawn(async move { executor.execute(&stored(), &[step], false).await });
        let asked = server.asked().await;
        assert_eq!(asked.what, what);
        assert_eq!(
            asked.body["preconditions"],
            json!({"uid": expected}),
            "{what}"
        );
        assert_eq!(asked.body["gracePeriodSeconds"], grace, "{what}");
        asked.done(expected);
        assert!(deleting.await.unwrap().fault.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn f_60_a_pod_that_a_job_holds_is_told_that_it_has_failed_before_it_is_forced() {
    let (executor, mut server) = executor();
    let step = Step::DeletePod {
        name: "pi-launcher-abcde".to_owned(),
        uid: uid(),
        how: Deletion::ForcedAsFailed,
    };
    let deleting = tokio::spawn(async move { executor.execute(&stored(), &[step], false).await });
    let asked = server.asked().await;
    let pod = "/api/v1/namespaces/ns1/pods/pi-launcher-abcde";
    assert_eq!(asked.what, format!("PATCH {pod}/status"));
    assert_eq!(
        asked.body["metadata"],
        json!({"uid": CHILD}),
        "no other pod"
    );
    assert_eq!(asked.body["status"]["phase"], "Failed");
    let condition = &asked.body["status"]["conditions"][0];
    assert_eq!(
        condition["type"], "DisruptionTarget",
        "a drain costs nothing"
    );
    asked.done(CHILD);
    let asked = server.asked().await;
    assert_eq!(asked.what, format!("DELETE {pod}"));
    assert_eq!(asked.body["gracePeriodSeconds"], 0);
    assert_eq!(asked.body["preconditions"], json!({"uid": CHILD}));
    asked.done(CHILD);
    assert!(deleting.await.unwrap().fault.is_none());
}

/// Rejects a delete with a conflict, and then finds a pod with this uid under its name. Returns whether the delete counts as done.
async fn refused_delete(found: Option<&str>) -> bool {
    let (executor, mut server) = executor();
    let step = Step::DeletePod {
        name: "pt-worker-0".to_owned(),
        uid: uid(),
        how: Deletion::Graceful,
    };
    let deleting = tokio::spawn(async move { executor.execute(&stored(), &[step], false).await });
    let status = |code: u16, reason: &str| json!({"kind": "Status", "status": "Failure", "reason": reason, "code": code, "message": "no"});
    let asked = server.asked().await;
    asked.with(409, &status(409, "Conflict"));
    let asked = server.asked().await;
    assert_eq!(asked.what, "GET /api/v1/namespaces/ns1/pods/pt-worker-0");
    match found {
        Some(uid) => asked.done(uid),
        None => asked.with(404, &status(404, "NotFound")),
    }
    deleting.await.unwrap().fault.is_none()
}

#[tokio::test(start_paused = true)]
async fn f_15_an_object_whose_delete_was_refused_is_gone_only_if_a_look_says_so() {
    assert!(refused_delete(None).await);
    assert!(refused_delete(Some(JOB)).await, "another has its name");
    assert!(!refused_delete(Some(CHILD)).await, "it is still there");
}

#[tokio::test(start_paused = true)]
async fn f_52_without_the_lease_no_request_leaves_the_process() {
    let (executor, mut server) = executor();
    server.leads.store(false, Ordering::Relaxed);
    let working = tokio::spawn(async move {
        let step = Step::DeletePod {
            name: "pt-worker-0".to_owned(),
            uid: uid(),
            how: Deletion::Graceful,
        };
        let status = executor.caller.write_status(&stored(), &json!({})).await;
        let outcome = executor
            .execute(&stored(), &[first_pod(), step], false)
            .await;
        (
            status.map_err(|f| f.as_str()),
            outcome.fault.map(|f| f.as_str()),
        )
    });
    server.silence().await;
    assert_eq!(
        working.await.unwrap(),
        (Err("not_leading"), Some("not_leading"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_created_pod_is_known_before_the_watch_shows_it() {
    let (executor, mut server) = executor();
    let creating =
        tokio::spawn(async move { executor.execute(&stored(), &[first_pod()], false).await });
    server.asked().await.done(CHILD);
    creating.await.unwrap();
    let known = server.children.pods.of(Uid::parse(JOB).unwrap());
    assert_eq!(
        (known.len(), known[0].uid, known[0].version),
        (1, uid(), 50)
    );
}

/// Responds to requests that are in flight together. Deletes and creates of one plan are unordered.
async fn answer_all(server: &mut Server, count: usize) -> Vec<String> {
    let mut asked = Vec::new();
    for _ in 0..count {
        asked.push(server.asked().await);
    }
    let mut what: Vec<String> = asked.iter().map(|a| a.what.clone()).collect();
    what.sort();
    for one in asked {
        one.done(CHILD);
    }
    what
}

#[tokio::test(start_paused = true)]
async fn i_21_nothing_is_cleaned_up_before_the_end_is_stored() {
    let mut job = typed(pt(1).run_policy("cleanPodPolicy", "All"));
    job.metadata.resource_version = Some("41".to_owned());
    let (worker, mut server) = worker(job, &[pod("master", "Succeeded"), pod("worker", "Running")]);
    let reconcile = tokio::spawn(worker.reconcile(JobKey::new("ns1", "pt")));
    let end = server.asked().await;
    assert_eq!(end.what, STATUS);
    let conditions = end.body["status"]["conditions"].as_array().unwrap();
    assert_eq!(conditions.last().unwrap()["type"], "Succeeded");
    server.silence().await;
    end.done(JOB);
    let mut rest = answer_all(&mut server, 2).await;
    rest.retain(|what| what.starts_with("DELETE"));
    assert_eq!(rest.len(), 2, "{rest:?}");
    reconcile.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn i_07_no_pod_goes_before_the_suspension_is_stored() {
    let mut job = typed(pt(1).run_policy("suspend", true));
    job.metadata.resource_version = Some("41".to_owned());
    let (worker, mut server) = worker(job, &[pod("master", "Running"), pod("worker", "Running")]);
    let reconcile = tokio::spawn(worker.reconcile(JobKey::new("ns1", "pt")));
    let decision = server.asked().await;
    assert_eq!(decision.what, STATUS);
    let conditions = decision.body["status"]["conditions"].as_array().unwrap();
    assert_eq!(conditions.last().unwrap()["type"], "Suspended");
    server.silence().await;
    decision.done(JOB);
    let deletes = answer_all(&mut server, 2).await;
    assert_eq!(
        deletes,
        [
            "DELETE /api/v1/namespaces/ns1/pods/pt-master-0",
            "DELETE /api/v1/namespaces/ns1/pods/pt-worker-0"
        ]
    );
    reconcile.abort();
}

#[tokio::test(start_paused = true)]
async fn i_22_a_new_attempt_is_stored_and_then_carried_out_in_the_same_look() {
    let mut job = typed(pt(1));
    job.metadata.resource_version = Some("41".to_owned());
    let (worker, mut server) = worker(job, &[pod("master", "Running"), pod("worker", "Failed")]);
    let reconcile = tokio::spawn(worker.reconcile(JobKey::new("ns1", "pt")));
    let decision = server.asked().await;
    assert_eq!(decision.what, STATUS);
    assert_eq!(
        decision.body["status"]["replicaAttempts"]["worker-0"]["attempt"], 1,
        "{}",
        decision.body
    );
    server.silence().await;
    decision.done(JOB);
    // The following status write may happen in parallel with the deletion.
    let mut seen = Vec::new();
    while !seen
        .iter()
        .any(|w: &String| w.starts_with(Method::DELETE.as_str()))
    {
        seen.extend(answer_all(&mut server, 1).await);
        assert!(seen.len() < 8, "{seen:?}");
    }
    reconcile.abort();
}

#[tokio::test(start_paused = true)]
async fn a_replacement_waits_neither_for_counts_nor_for_the_watch() {
    let mut job = typed(pt(1));
    job.metadata.resource_version = Some("41".to_owned());
    let pods = [pod("master", "Running"), pod("worker", "Failed")];
    let (mut worker, mut server) = worker(job, &pods);
    let times = &mut Arc::get_mut(&mut worker).unwrap().context.times;
    times.status_delay = Duration::from_millis(100);
    let reconcile = tokio::spawn(Arc::clone(&worker).reconcile(JobKey::new("ns1", "pt")));
    let decision = server.asked().await;
    assert_eq!(decision.what, STATUS);
    decision.done(JOB);
    let mut asked = Vec::new();
    loop {
        let next = server.asked().await;
        asked.push(next.what.clone());
        if next.what.starts_with("POST") && next.what.ends_with("/pods") {
            break;
        }
        // The response for a pod that had nothing to terminate: it is already gone.
        let gone = json!({"kind": "PartialObjectMetadata", "metadata": {
            "uid": CHILD, "resourceVersion": "50",
            "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0,
        }});
        next.with(200, &gone);
    }
    asked.retain(|what| !what.ends_with("/services"));
    assert_eq!(
        asked,
        [
            "DELETE /api/v1/namespaces/ns1/pods/pt-worker-0",
            "POST /api/v1/namespaces/ns1/pods"
        ]
    );
    reconcile.abort();
}

/// Returns all requests that are sent before any response.
async fn outstanding(server: &mut Server) -> Vec<crate::server::Asked> {
    let mut all = Vec::new();
    loop {
        let next = tokio::time::timeout(NOTHING, server.handle.next_request()).await;
        let Ok(Some((request, answer))) = next else {
            return all;
        };
        all.push(crate::server::Asked {
            what: format!("{} {}", request.method(), request.uri().path()),
            body: Value::Null,
            answer,
        });
    }
}

/// Responds that these objects were created, each with its own uid.
fn made(asked: Vec<crate::server::Asked>, next: &mut u128) {
    for asked in asked {
        *next += 1;
        asked.done(&training_core::Uid(*next).to_string());
    }
}

#[tokio::test(start_paused = true)]
async fn one_fault_in_fifty_requests_stops_none_of_the_others() {
    let mut job = typed(pt(100));
    job.metadata.resource_version = Some("41".to_owned());
    let (worker, mut server) = worker(job, &[]);
    let reconcile = tokio::spawn(worker.reconcile(JobKey::new("ns1", "pt")));
    let (mut uid, mut creates) = (1_000, 0);
    loop {
        let asked = outstanding(&mut server).await;
        if asked.is_empty() {
            break;
        }
        for asked in asked {
            if !asked.what.starts_with("POST") {
                asked.done(JOB);
                continue;
            }
            creates += 1;
            if creates % 50 == 0 {
                let error =
                    json!({"kind": "Status", "status": "Failure", "code": 500, "message": "away"});
                asked.with(500, &error);
            } else {
                made(vec![asked], &mut uid);
            }
        }
    }
    assert_eq!(creates, 202, "a pod and a service for each of 101 replicas");
    assert!(reconcile.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_delete_that_is_denied_for_ever_stops_no_create() {
    let mut job = typed(pt(2));
    job.metadata.resource_version = Some("41".to_owned());
    // A pod of a replica that the job doesn't have.
    let mut surplus = pod("worker", "Running");
    surplus["metadata"]["name"] = json!("pt-worker-7");
    surplus["metadata"]["labels"]["training.kubeflow.org/replica-index"] = json!("7");
    let (worker, mut server) = worker(job, &[surplus]);
    let reconcile = tokio::spawn(worker.reconcile(JobKey::new("ns1", "pt")));
    let (mut uid, mut creates, mut deletes) = (1_000, 0, 0);
    loop {
        let asked = outstanding(&mut server).await;
        if asked.is_empty() {
            break;
        }
        for asked in asked {
            if asked.what.starts_with("DELETE") {
                deletes += 1;
                let error = json!({"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "admission webhook \"a\" denied the request"});
                asked.with(403, &error);
            } else if asked.what.starts_with("POST") {
                creates += 1;
                made(vec![asked], &mut uid);
            } else {
                asked.done(JOB);
            }
        }
    }
    assert_eq!((deletes, creates), (1, 6));
    reconcile.abort();
}

#[tokio::test(start_paused = true)]
async fn after_a_refusal_a_job_begins_with_one_request_and_doubles() {
    let mut job = typed(pt(100));
    job.metadata.resource_version = Some("41".to_owned());
    let (worker, mut server) = worker(job, &[]);
    let key = JobKey::new("ns1", "pt");
    let refused = tokio::spawn(Arc::clone(&worker).reconcile(key.clone()));
    loop {
        let asked = outstanding(&mut server).await;
        if asked.is_empty() {
            break;
        }
        for asked in asked {
            if asked.what.starts_with("POST") {
                let error = json!({"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "exceeded quota: pods"});
                asked.with(403, &error);
            } else {
                asked.done(JOB);
            }
        }
    }
    assert!(refused.is_finished());
    tokio::time::sleep(NOTHING * 2).await;
    let reconcile = tokio::spawn(worker.reconcile(key));
    let (mut uid, mut windows) = (1_000, Vec::new());
    while windows.len() < 5 {
        let asked = outstanding(&mut server).await;
        assert!(!asked.is_empty(), "{windows:?}");
        let (creates, others): (Vec<_>, Vec<_>) =
            asked.into_iter().partition(|a| a.what.starts_with("POST"));
        for other in others {
            other.done(JOB);
        }
        if !creates.is_empty() {
            windows.push(creates.len());
        }
        made(creates, &mut uid);
    }
    assert_eq!(windows, [1, 2, 4, 8, 16]);
    reconcile.abort();
}

/// A suspended job whose pods still run: its first request is the status write that stores the suspension.
fn suspended(resource_version: &str) -> PyTorchJob {
    let mut job = typed(pt(1).run_policy("suspend", true));
    job.metadata.resource_version = Some(resource_version.to_owned());
    job
}

/// Lets the first status write of this job fail. Returns the time of the retry.
async fn fail_write(worker: &Arc<PyTorchWorker>, server: &mut Server, code: u16) -> Instant {
    let reconcile = tokio::spawn(Arc::clone(worker).reconcile(JobKey::new("ns1", "pt")));
    let write = server.asked().await;
    assert_eq!(write.what, STATUS);
    let error = json!({"kind": "Status", "status": "Failure", "code": code, "message": "no"});
    write.with(code, &error);
    reconcile.await.unwrap().unwrap()
}

#[tokio::test(start_paused = true)]
async fn f_03_f_15_a_job_is_read_after_a_failed_status_write_if_the_watch_shows_no_later_version() {
    for code in [409, 504] {
        let (worker, mut server) = worker(suspended("41"), &[pod("master", "Running")]);
        let key = JobKey::new("ns1", "pt");
        let next = fail_write(&worker, &mut server, code).await;
        // An event doesn't end the backoff.
        let held = tokio::spawn(Arc::clone(&worker).reconcile(key.clone()));
        assert_eq!(held.await.unwrap(), Some(next), "{code}");
        tokio::time::sleep_until(next).await;
        let reconcile = tokio::spawn(Arc::clone(&worker).reconcile(key.clone()));
        let read = server.asked().await;
        assert_eq!(read.what, JOBS, "{code}");
        read.with(200, &json!({"items": [suspended("42")]}));
        let write = server.asked().await;
        assert_eq!(write.body["metadata"]["resourceVersion"], "42", "{code}");
        reconcile.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_is_not_read_after_a_failed_status_write_if_the_watch_shows_a_later_version() {
    for code in [409, 504] {
        let (worker, mut server) = worker(suspended("41"), &[pod("master", "Running")]);
        let next = fail_write(&worker, &mut server, code).await;
        assert!(worker.jobs.apply(suspended("42")));
        tokio::time::sleep_until(next).await;
        let reconcile = tokio::spawn(worker.reconcile(JobKey::new("ns1", "pt")));
        let write = server.asked().await;
        assert_eq!(write.body["metadata"]["resourceVersion"], "42", "{code}");
        reconcile.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_is_not_read_after_a_refused_status_write() {
    let (worker, mut server) = worker(suspended("41"), &[pod("master", "Running")]);
    let next = fail_write(&worker, &mut server, 403).await;
    tokio::time::sleep_until(next).await;
    let reconcile = tokio::spawn(worker.reconcile(JobKey::new("ns1", "pt")));
    assert_eq!(server.asked().await.what, STATUS);
    reconcile.abort();
}

#[tokio::test(start_paused = true)]
async fn a_job_is_read_if_its_reconcile_ended_during_a_status_write() {
    let (worker, mut server) = worker(suspended("41"), &[pod("master", "Running")]);
    let key = JobKey::new("ns1", "pt");
    let ended = tokio::spawn(Arc::clone(&worker).reconcile(key.clone()));
    assert_eq!(server.asked().await.what, STATUS);
    ended.abort();
    assert!(ended.await.is_err());
    let reconcile = tokio::spawn(worker.reconcile(key));
    assert_eq!(server.asked().await.what, JOBS);
    reconcile.abort();
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_faster_than_the_read_of_a_job_counts() {
    let (worker, mut server) = worker(suspended("41"), &[pod("master", "Running")]);
    let next = fail_write(&worker, &mut server, 504).await;
    tokio::time::sleep_until(next).await;
    let jobs = Arc::clone(&worker.jobs);
    let reconcile = tokio::spawn(worker.reconcile(JobKey::new("ns1", "pt")));
    let read = server.asked().await;
    assert_eq!(read.what, JOBS);
    let scope = Scope::new(None);
    jobs.begin_list(&scope);
    jobs.listed(&scope, suspended("42"));
    jobs.end_list(&scope);
    read.with(200, &json!({"items": [suspended("42")]}));
    let write = server.asked().await;
    assert_eq!(write.body["metadata"]["resourceVersion"], "42");
    reconcile.abort();
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_deleted_during_its_read_stays_deleted() {
    let (worker, mut server) = worker(suspended("41"), &[pod("master", "Running")]);
    let key = JobKey::new("ns1", "pt");
    let next = fail_write(&worker, &mut server, 504).await;
    tokio::time::sleep_until(next).await;
    let jobs = Arc::clone(&worker.jobs);
    let reconcile = tokio::spawn(worker.reconcile(key.clone()));
    let read = server.asked().await;
    jobs.remove(&key);
    read.with(200, &json!({"items": [suspended("42")]}));
    reconcile.await.unwrap();
    assert!(!jobs.contains(&key));
    server.silence().await;
}

#[tokio::test(start_paused = true)]
async fn an_edit_does_not_wait_until_the_backoff_is_over() {
    let mut job = suspended("41");
    job.metadata.generation = Some(1);
    let (worker, mut server) = worker(job.clone(), &[pod("master", "Running")]);
    let key = JobKey::new("ns1", "pt");
    let failed = tokio::spawn(Arc::clone(&worker).reconcile(key.clone()));
    let error = json!({"kind": "Status", "status": "Failure", "code": 500, "message": "away"});
    server.asked().await.with(500, &error);
    failed.await.unwrap();
    // An event changes nothing, so the job waits.
    let held = tokio::spawn(Arc::clone(&worker).reconcile(key.clone()));
    held.await.unwrap();
    job.metadata.generation = Some(2);
    job.metadata.resource_version = Some("42".to_owned());
    assert!(worker.jobs.apply(job));
    let reconcile = tokio::spawn(worker.reconcile(key));
    let write = server.asked().await;
    assert_eq!(write.body["metadata"]["resourceVersion"], "42");
    reconcile.abort();
}
