//! The cache of jobs: as text, within a memory limit.

use std::sync::Arc;

use crate::scene::{pt, typed};
use crate::server::{CHILD, JOB, JOBS, STATUS, worker_with};
use pytorch_operator::PyTorchJob;
use serde_json::{Value, json};
use training_api::JobStatus;
use training_runtime::cache::Cache;
use training_runtime::controller::Reconciler as _;
use training_runtime::feed::jobs::{Jobs, Opened};
use training_runtime::key::{JobKey, Scope};

const ENV: &str = "/spec/pytorchReplicaSpecs/Worker/template/spec/containers/0/env";

fn key(name: &str) -> JobKey {
    JobKey::new("ns1", name)
}

/// A job at this version, with a variable of this many bytes.
fn job(name: &str, version: &str, bytes: usize) -> PyTorchJob {
    let env = json!([{ "name": "LARGE", "value": "x".repeat(bytes) }]);
    let mut job = typed(pt(1).set(ENV, env).annotation("team", "a"));
    job.metadata.name = Some(name.to_owned());
    job.metadata.resource_version = Some(version.to_owned());
    job
}

fn room(bytes: usize) -> Arc<Cache> {
    Arc::new(Cache::new(bytes))
}

#[test]
fn a_large_job_is_the_same_when_it_is_asked_for() {
    let jobs = Jobs::new(room(200_000));
    for (name, bytes) in [("small", 10), ("large", 100_000)] {
        let job = job(name, "1", bytes);
        assert!(jobs.apply(job.clone()));
        assert_eq!(jobs.get(&key(name)).as_deref(), Some(&job), "{name}");
        assert!(
            !jobs.apply(job),
            "applying the same object again changes nothing"
        );
    }
    assert_eq!(jobs.uncached(), 0);
}

#[test]
fn jobs_for_which_there_is_no_room_are_known_and_not_kept() {
    let jobs = Jobs::new(room(250_000));
    for name in ["a", "b", "c"] {
        jobs.apply(job(name, "1", 100_000));
    }
    assert_eq!((jobs.len(), jobs.uncached()), (3, 1));
    assert!(jobs.contains(&key("c")));
    assert_eq!(jobs.get(&key("c")), None);
    // The space that one job frees serves the next.
    jobs.remove(&key("a"));
    assert!(jobs.apply(job("c", "2", 100_000)));
    assert_eq!((jobs.len(), jobs.uncached()), (2, 0));
    assert!(
        jobs.apply(job("c", "3", 100_000)),
        "its own room is free for it"
    );
    assert_eq!(jobs.uncached(), 0);
}

#[test]
fn a_list_of_what_is_kept_takes_no_further_room() {
    let jobs = Jobs::new(room(250_000));
    let scope = Scope::new(None);
    for version in ["1", "1", "2"] {
        jobs.begin_list(&scope);
        for name in ["a", "b"] {
            jobs.listed(&scope, job(name, version, 100_000));
        }
        jobs.end_list(&scope);
        if version == "1" {
            assert_eq!((jobs.len(), jobs.uncached()), (2, 0));
        }
    }
    // While versions are replaced, the old and the new ones exist for a moment.
    assert_eq!((jobs.len(), jobs.uncached()), (2, 2));
}

#[test]
fn a_job_that_was_in_use_a_moment_ago_is_not_decoded_again() {
    let jobs = Jobs::new(room(200_000));
    let scope = Scope::new(None);
    let open = || {
        let Opened::Cached(job) = jobs.open(&key("a")) else {
            panic!("it is cached");
        };
        jobs.close(&key("a"));
        job
    };
    for version in ["1", "2"] {
        jobs.apply(job("a", version, 10));
        let first = open();
        assert_eq!(first.metadata.resource_version.as_deref(), Some(version));
        assert!(Arc::ptr_eq(&first, &open()));
    }
    jobs.begin_list(&scope);
    jobs.listed(&scope, job("a", "3", 10));
    jobs.end_list(&scope);
    assert_eq!(open().metadata.resource_version.as_deref(), Some("3"));
    jobs.remove(&key("a"));
    assert!(matches!(jobs.open(&key("a")), Opened::NotFound));
}

#[test]
fn a_job_that_was_read_again_is_gone_if_a_list_that_began_before_lacks_it() {
    let jobs = Jobs::new(room(200_000));
    let scope = Scope::new(None);
    jobs.apply(job("a", "1", 10));
    jobs.begin_list(&scope);
    assert_eq!(jobs.reread(&key("a"), job("a", "2", 10)), Some(true));
    assert_eq!(jobs.reread(&key("a"), job("a", "2", 10)), Some(false));
    assert_eq!(version_of(&jobs, "a").as_deref(), Some("2"));
    assert_eq!(jobs.end_list(&scope), (vec![], vec![key("a")]));
    assert_eq!(jobs.reread(&key("a"), job("a", "3", 10)), None);
    assert!(jobs.is_empty());
}

fn version_of(jobs: &Jobs<PyTorchJob>, name: &str) -> Option<String> {
    let job = jobs.get(&key(name))?;
    job.metadata.resource_version.clone()
}

#[test]
fn a_job_that_is_read_stays_until_it_is_closed_and_follows_the_watch() {
    let jobs = Jobs::new(room(0));
    let (mut first, second) = (job("a", "1", 10), job("a", "2", 20));
    jobs.apply(first.clone());
    assert_eq!(
        jobs.insert_read(&key("a"), first.clone()),
        None,
        "nobody asked"
    );
    assert!(matches!(jobs.open(&key("a")), Opened::Uncached(false)));
    let plain = first.clone();
    first.metadata.managed_fields = Some(vec![]);
    let applied = "kubectl.kubernetes.io/last-applied-configuration";
    let annotations = first.metadata.annotations.get_or_insert_default();
    annotations.insert(applied.to_owned(), "{}".to_owned());
    let lent = jobs.insert_read(&key("a"), first.clone());
    assert_eq!(lent.as_deref(), Some(&plain), "as if it had been kept");
    assert_eq!(jobs.get(&key("a")).as_deref(), Some(&plain));
    assert!(jobs.apply(second.clone()));
    assert_eq!(jobs.get(&key("a")).as_deref(), Some(&second));
    assert_eq!(
        jobs.insert_read(&key("a"), first),
        None,
        "the watch knows more"
    );
    let status = second.status.clone().unwrap_or_default();
    jobs.written(&Arc::new(second), status, "3".to_owned());
    assert_eq!(version_of(&jobs, "a").as_deref(), Some("3"));
    jobs.close(&key("a"));
    assert_eq!(jobs.get(&key("a")), None);
    assert!(
        matches!(jobs.open(&key("a")), Opened::Uncached(false)),
        "it is another version"
    );
    jobs.close(&key("a"));
    assert!(matches!(jobs.open(&key("a")), Opened::Uncached(true)));
    assert!(matches!(jobs.open(&key("b")), Opened::NotFound));
}

#[test]
fn a_job_that_loses_its_room_while_it_is_reconciled_stays_until_it_is_closed() {
    let status: JobStatus =
        serde_json::from_value(json!({ "startTime": "2026-11-25T12:00:00Z" })).unwrap();
    let first = job("a", "1", 10);
    let size = serde_json::to_string(&first).unwrap().len();
    let jobs = Jobs::new(room(size));
    jobs.apply(first.clone());
    assert!(matches!(jobs.open(&key("a")), Opened::Cached(_)));
    // The watch doesn't report the operator's own write as a change, so nothing else requeues the job.
    jobs.written(&Arc::new(first), status, "2".to_owned());
    assert_eq!(jobs.uncached(), 1);
    assert_eq!(version_of(&jobs, "a").as_deref(), Some("2"));
    assert!(jobs.apply(job("a", "3", 20)));
    assert_eq!(version_of(&jobs, "a").as_deref(), Some("3"));
    jobs.close(&key("a"));
    assert_eq!(jobs.get(&key("a")), None);
}

#[test]
fn a_list_leaves_a_job_open_but_not_one_that_was_made_again_under_its_name() {
    let jobs = Jobs::new(room(0));
    let scope = Scope::new(None);
    let mut again = job("a", "3", 10);
    again.metadata.uid = Some("00000000-0000-4000-8000-00000000000a".to_owned());
    let list = |job: &PyTorchJob| {
        jobs.begin_list(&scope);
        jobs.listed(&scope, job.clone());
        jobs.end_list(&scope);
    };
    let first = job("a", "1", 10);
    list(&first);
    jobs.open(&key("a"));
    assert!(jobs.insert_read(&key("a"), first.clone()).is_some());
    list(&first);
    assert_eq!(version_of(&jobs, "a").as_deref(), Some("1"));
    list(&again);
    assert_eq!(version_of(&jobs, "a"), None);
}

#[test]
fn small_jobs_need_no_place_and_the_last_places_are_for_namespaces_that_have_none() {
    let jobs: Jobs<PyTorchJob> = Jobs::new(room(0));
    let of = |namespace: &str, name: &str, bytes: usize| {
        let mut job = job(name, "1", bytes);
        job.metadata.namespace = Some(namespace.to_owned());
        jobs.apply(job);
        match jobs.open(&JobKey::new(namespace, name)) {
            Opened::NoSlot(waiting) => waiting,
            _ => 0,
        }
    };
    let large = |namespace: &str, name: &str| of(namespace, name, 100_000);
    let waiting = ["a", "b", "c", "d", "c"].map(|name| large("ns1", name));
    assert_eq!(waiting, [0, 0, 1, 2, 2]);
    let waiting = ["a", "b", "c"].map(|name| large("ns2", name));
    assert_eq!(waiting, [0, 1, 2]);
    assert_eq!(large("ns3", "a"), 0);
    assert_eq!(large("ns4", "a"), 1);
    assert_eq!((jobs.waiting(), of("ns1", "small", 100)), (5, 0));
    jobs.close(&key("a"));
    assert_eq!(large("ns4", "a"), 0);
    jobs.remove(&key("d"));
    assert_eq!(large("ns1", "e"), 2, "c and e");
}

#[test]
fn huge_jobs_are_reconciled_one_after_the_other() {
    let jobs: Jobs<PyTorchJob> = Jobs::new(room(0));
    for name in ["a", "b"] {
        // The JSON is short, but takes megabytes in memory.
        let tolerations: Vec<_> = (0..30_000).map(|_| json!({})).collect();
        let template = "/spec/pytorchReplicaSpecs/Worker/template/spec/tolerations";
        let mut job = typed(pt(1).set(template, json!(tolerations)));
        job.metadata.name = Some(name.to_owned());
        jobs.apply(job);
    }
    jobs.apply(job("large", "1", 100_000));
    assert!(matches!(jobs.open(&key("a")), Opened::Uncached(_)));
    assert!(matches!(jobs.open(&key("b")), Opened::NoSlot(1)));
    assert!(matches!(jobs.open(&key("large")), Opened::Uncached(_)));
    jobs.close(&key("a"));
    assert!(matches!(jobs.open(&key("b")), Opened::Uncached(_)));
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_not_kept_is_read_when_it_is_reconciled() {
    let stored = job("pt", "9", 10);
    let (worker, mut server) = worker_with(stored.clone(), &[], room(0));
    assert_eq!(worker.jobs.uncached(), 1);
    let reconcile = tokio::spawn(Arc::clone(&worker).reconcile(key("pt")));
    let list = server.asked().await;
    assert_eq!(list.what, JOBS);
    list.with(200, &json!({ "items": [stored] }));
    let status = server.asked().await;
    assert_eq!(status.what, STATUS);
    status.done(crate::server::JOB);
    let mut made = Vec::new();
    while made.len() < 4 {
        let create = server.asked().await;
        if create.what != STATUS {
            made.push(create.what.clone());
        }
        create.done(CHILD);
    }
    made.sort();
    let of = |kind: &str| format!("POST /api/v1/namespaces/ns1/{kind}");
    let (pods, services) = (of("pods"), of("services"));
    assert_eq!(
        made,
        [&pods, &pods, &services, &services].map(String::clone)
    );
    server.silence().await;
    reconcile.await.unwrap();
    assert_eq!(worker.jobs.get(&key("pt")), None, "it is closed again");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_gone_when_it_is_read_is_looked_at_again() {
    let (worker, mut server) = worker_with(job("pt", "9", 10), &[], room(0));
    let reconcile = tokio::spawn(Arc::clone(&worker).reconcile(key("pt")));
    let list = server.asked().await;
    list.with(200, &json!({ "items": [] }));
    assert!(reconcile.await.unwrap().is_some());
    server.silence().await;
    assert!(matches!(
        worker.jobs.open(&key("pt")),
        Opened::Uncached(true)
    ));
}

#[tokio::test(start_paused = true)]
async fn a_job_that_cannot_be_read_is_read_again_after_its_backoff_or_when_it_has_changed() {
    let (worker, mut server) = worker_with(job("pt", "9", 10), &[], room(0));
    let reconcile = tokio::spawn(Arc::clone(&worker).reconcile(key("pt")));
    server.asked().await.with(500, &Value::Null);
    let next = reconcile.await.unwrap();
    assert!(next.is_some());
    let woken = Arc::clone(&worker).reconcile(key("pt")).await;
    assert_eq!(woken, next, "without a request");
    worker.jobs.apply(job("pt", "10", 10));
    let reconcile = tokio::spawn(Arc::clone(&worker).reconcile(key("pt")));
    server.asked().await.with(500, &Value::Null);
    let next = reconcile.await.unwrap().unwrap();
    tokio::time::sleep_until(next).await;
    let reconcile = tokio::spawn(Arc::clone(&worker).reconcile(key("pt")));
    let list = server.asked().await;
    list.with(200, &json!({ "items": [] }));
    reconcile.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_reconcile_panics_hears_of_it_also_where_it_is_not_in_memory() {
    for bytes in [1_000_000, 0] {
        let (mut worker, _) = worker_with(job("pt", "9", 10), &[], room(bytes));
        assert_eq!(worker.jobs.uncached(), usize::from(bytes == 0));
        let (events, mut server) = crate::server::events();
        Arc::get_mut(&mut worker).unwrap().context.events = events;
        let panic: tokio::task::JoinError = tokio::spawn(async { panic!("a defect") })
            .await
            .unwrap_err();
        worker.panicked(&key("pt"), &panic);
        assert_eq!(worker.context.backoff.failures(&key("pt")), 1);
        let asked = server.asked().await;
        assert_eq!(asked.what, "POST /api/v1/namespaces/ns1/events");
        let about = &asked.body["involvedObject"];
        assert_eq!(
            *about,
            json!({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "namespace": "ns1",
                "name": "pt", "uid": JOB, "resourceVersion": "9"})
        );
        assert_eq!(asked.body["reason"], "InternalError");
        assert!(
            asked.body["message"]
                .as_str()
                .unwrap()
                .contains("this PyTorchJob")
        );
    }
}
