//! The life of a `PyTorchJob` against a real API server with a scripted kubelet.

#[path = "api_lifecycle/ends.rs"]
mod ends;
#[path = "api_lifecycle/golden.rs"]
mod golden;
#[path = "api_lifecycle/replacements.rs"]
mod replacements;
#[path = "api_lifecycle/waits.rs"]
mod waits;

use std::time::{Duration, Instant};

use anyhow::Result;
use e2e::World;
use serde_json::Value;
use training_testkit::builders::{Job, pytorch_job};
use training_testkit::job::{Condition, conditions, counters, is_true};
use training_testkit::kubelet::lockstep;

/// Long enough to see that something does not happen.
const STAYS: Duration = Duration::from_secs(2);

fn created() -> Condition {
    let message = "PyTorchJob pt is created.";
    Condition::new("Created", "True", "PyTorchJobCreated", message)
}

fn running(status: &str) -> Condition {
    let message = "PyTorchJob pt is running.";
    Condition::new("Running", status, "PyTorchJobRunning", message)
}

fn count(job: &Value, role: &str, counter: &str) -> i64 {
    counters(job, role)
        .get(counter)
        .copied()
        .unwrap_or_default()
}

/// Creates a job of one master and two workers, and runs all of it.
async fn run(world: &World, job: Job) -> Result<()> {
    let actor = world.actor("pt");
    actor.create(job).await?;
    actor.run(1, 2).await
}

/// All of the job's pods run and succeed.
async fn succeeds_after_all(world: &World) -> Result<Value> {
    world.actor("pt").run(1, 2).await?;
    world.kubelet.all_succeeded(world.namespace(), "pt").await?;
    let job = world.jobs.until_true("pt", "Succeeded").await?;
    assert!(
        !is_true(&job, "Restarting") && !is_true(&job, "Failed"),
        "{}",
        job["status"]
    );
    Ok(job)
}

#[tokio::test]
async fn a_job_is_created_runs_and_succeeds() -> Result<()> {
    let Some(world) = World::start("life", lockstep()).await? else {
        return Ok(());
    };
    let operator = world.operator().await?;
    let begin = Instant::now();
    world
        .jobs
        .create(&pytorch_job("pt").master().workers(2).build())
        .await?;

    let job = world.jobs.until_true("pt", "Created").await?;
    assert_eq!(conditions(&job), [created()]);
    let job = world
        .jobs
        .until("pt", "started", |job| {
            job["status"]["startTime"].is_string()
        })
        .await?;
    for (role, label) in [("Master", "master"), ("Worker", "worker")] {
        assert!(counters(&job, role).is_empty(), "{}", job["status"]);
        assert_eq!(
            job["status"]["replicaStatuses"][role]["selector"],
            format!(
                "training.kubeflow.org/job-name=pt,\
                 training.kubeflow.org/operator-name=pytorchjob-controller,\
                 training.kubeflow.org/replica-type={label}"
            )
        );
    }

    world.kubelet.until_pods(world.namespace(), "pt", 3).await?;
    let pods_after = begin.elapsed();
    assert_eq!(world.kubelet.all_running(world.namespace(), "pt").await?, 3);
    let job = world
        .jobs
        .until("pt", "with all active", |job| {
            count(job, "Master", "active") == 1 && count(job, "Worker", "active") == 2
        })
        .await?;
    assert_eq!(conditions(&job), [created(), running("True")]);
    assert_eq!(job["status"]["completionTime"], Value::Null);

    assert_eq!(
        world.kubelet.all_succeeded(world.namespace(), "pt").await?,
        3
    );
    let job = world
        .jobs
        .until("pt", "with all succeeded", |job| {
            is_true(job, "Succeeded") && count(job, "Worker", "succeeded") == 2
        })
        .await?;
    let message = "PyTorchJob pt is successfully completed.";
    assert_eq!(
        conditions(&job),
        [
            created(),
            running("False"),
            Condition::new("Succeeded", "True", "PyTorchJobSucceeded", message),
        ]
    );
    assert!(job["status"]["completionTime"].is_string());
    assert_eq!(count(&job, "Master", "succeeded"), 1);
    assert_eq!(
        (
            count(&job, "Master", "active"),
            count(&job, "Worker", "active")
        ),
        (0, 0)
    );

    // Every object was created once, and with the default policy none is deleted.
    world.assert_clean(&operator).await?;
    let summary = world.auditor.summary();
    assert_eq!(summary.len(), 6, "{summary:?}");
    assert!(
        summary
            .values()
            .all(|churn| churn.creates == 1 && churn.deletes == 0),
        "{summary:?}"
    );
    let (rss, peak) = operator.memory()?;
    eprintln!(
        "1+2 job: three bound pods {pods_after:?} after the job's POST; the operator has {} KiB, at most {} KiB",
        rss / 1024,
        peak / 1024
    );
    Ok(())
}
