//! Jobs that are not kept whole: large ones, and those for which the cache has no room.

// What fails here fails a test.
#![allow(clippy::unwrap_used, clippy::panic)]

mod scene;
mod server;

use std::sync::Arc;

use pytorch_operator::PyTorchJob;
use scene::{pt, typed};
use serde_json::{Value, json};
use server::{CHILD, JOBS, STATUS, worker_with};
use training_runtime::cache::Cache;
use training_runtime::feed::jobs::{Found, Jobs};
use training_runtime::key::{JobKey, Scope};

const ENV: &str = "/spec/pytorchReplicaSpecs/Worker/template/spec/containers/0/env";

fn key(name: &str) -> JobKey {
    JobKey::new("ns1", name)
}

/// A job at a version, with a variable of so many bytes.
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
        assert!(!jobs.apply(job), "the same once more is no news");
    }
    assert_eq!(jobs.away(), 0);
}

#[test]
fn jobs_for_which_there_is_no_room_are_known_and_not_kept() {
    let jobs = Jobs::new(room(250_000));
    for name in ["a", "b", "c"] {
        jobs.apply(job(name, "1", 100_000));
    }
    assert_eq!((jobs.len(), jobs.away()), (3, 1));
    assert!(jobs.contains(&key("c")));
    assert_eq!(jobs.get(&key("c")), None);
    // Room that one gives back serves the next.
    jobs.remove(&key("a"));
    assert!(jobs.apply(job("c", "2", 100_000)));
    assert_eq!((jobs.len(), jobs.away()), (2, 0));
    // A small one takes as little as it can before it is not kept.
    jobs.apply(job("d", "1", 12_000));
    assert_eq!(jobs.away(), 0);
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
            assert_eq!((jobs.len(), jobs.away()), (2, 0));
        }
    }
    // Of new versions both the old and the new are there for a moment.
    assert_eq!((jobs.len(), jobs.away()), (2, 2));
}

#[test]
fn a_job_that_is_read_stays_until_it_is_closed_and_follows_the_watch() {
    let jobs = Jobs::new(room(0));
    let (first, second) = (job("a", "1", 10), job("a", "2", 20));
    jobs.apply(first.clone());
    assert!(matches!(jobs.open(&key("a")), Found::Away));
    assert!(jobs.lend(&key("a"), &Arc::new(first.clone())));
    assert_eq!(jobs.get(&key("a")).as_deref(), Some(&first));
    assert!(jobs.apply(second.clone()));
    assert_eq!(jobs.get(&key("a")).as_deref(), Some(&second));
    assert!(
        !jobs.lend(&key("a"), &Arc::new(first)),
        "the watch knows more"
    );
    let status = second.status.clone().unwrap_or_default();
    jobs.written(&Arc::new(second), status, "3".to_owned());
    let version = jobs
        .get(&key("a"))
        .unwrap()
        .metadata
        .resource_version
        .clone();
    assert_eq!(version.as_deref(), Some("3"));
    jobs.close(&key("a"));
    assert_eq!(jobs.get(&key("a")), None);
    assert!(matches!(jobs.open(&key("b")), Found::Gone));
}

#[test]
fn few_jobs_that_are_not_kept_whole_are_open_at_once_and_fewer_of_one_namespace() {
    let jobs: Jobs<PyTorchJob> = Jobs::new(room(0));
    let of = |namespace: &str, name: &str| {
        let mut job = job(name, "1", 10);
        job.metadata.namespace = Some(namespace.to_owned());
        jobs.apply(job);
        match jobs.open(&JobKey::new(namespace, name)) {
            Found::Busy(waiting) => waiting,
            _ => 0,
        }
    };
    let waiting = ["a", "b", "c", "d", "c"].map(|name| of("ns1", name));
    assert_eq!(waiting, [0, 0, 1, 2, 2]);
    let waiting = ["a", "b", "c"].map(|name| of("ns2", name));
    assert_eq!(waiting, [0, 0, 1]);
    assert_eq!(of("ns3", "a"), 1);
    jobs.close(&key("a"));
    assert_eq!(of("ns3", "b"), 0);
    jobs.remove(&key("d"));
    assert_eq!(of("ns1", "e"), 2, "c and e");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_not_kept_is_read_when_it_is_reconciled() {
    let stored = job("pt", "9", 10);
    let (worker, mut server) = worker_with(stored.clone(), &[], room(0));
    assert_eq!(worker.jobs.away(), 1);
    let pass = tokio::spawn(Arc::clone(&worker).pass(key("pt")));
    let list = server.asked().await;
    assert_eq!(list.what, JOBS);
    list.with(200, &json!({ "items": [stored] }));
    let status = server.asked().await;
    assert_eq!(status.what, STATUS);
    status.done(server::JOB);
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
    pass.await.unwrap();
    assert_eq!(worker.jobs.get(&key("pt")), None, "it is closed again");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_gone_when_it_is_read_is_looked_at_again() {
    let (worker, mut server) = worker_with(job("pt", "9", 10), &[], room(0));
    for answer in [json!({ "items": [] }), Value::Null] {
        let pass = tokio::spawn(Arc::clone(&worker).pass(key("pt")));
        let code = if answer.is_null() { 500 } else { 200 };
        server.asked().await.with(code, &answer);
        assert!(pass.await.unwrap().is_some());
        server.silence().await;
        assert!(matches!(worker.jobs.open(&key("pt")), Found::Away));
        worker.jobs.close(&key("pt"));
    }
}
