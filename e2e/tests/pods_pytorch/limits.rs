//! The limits of a run: its deadline, its backoff limit, and its TTL after it has finished.

use anyhow::{Context as _, Result, ensure};
use e2e::pods::{
    Row, Site, UNTIL_GO, Weight, created, eventually, failed, no_longer_running, pair, said, shell,
};
use e2e::read;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use training_testkit::job::condition;
use training_testkit::wait::{Seen, holds_for};

use super::STAYS;

/// How long finished jobs stay in these tests. Units: seconds; long enough to be seen.
const TTL: i64 = 8;

/// A time in a status.
fn time(value: &Value) -> Result<Timestamp> {
    let text = value.as_str().context("no time")?;
    Ok(text.parse()?)
}

#[tokio::test]
async fn a_job_fails_at_its_deadline_and_says_what_still_runs() -> Result<()> {
    let site = Site::open("deadline", Weight::Light).await?;
    for policy in ["None", "Running"] {
        let job = pair(&policy.to_lowercase(), shell(UNTIL_GO), shell(UNTIL_GO))
            .run_policy("cleanPodPolicy", policy);
        site.jobs.create(&job.build()).await?;
    }
    for name in ["none", "running"] {
        site.until_running(name, 2).await?;
        // In two seconds, however long the pods took to start.
        let begun = time(&site.jobs.get(name).await?["status"]["startTime"])?;
        let deadline = Timestamp::now().as_second() - begun.as_second() + 2;
        let limit = json!({ "spec": { "runPolicy": { "activeDeadlineSeconds": deadline } } });
        site.jobs.merge(name, &limit).await?;
        let job = site.until_true(name, "Failed").await?;
        site.assert_why(name, "FAILED", &["DeadlineExceeded"])?;
        let status = &job["status"];
        let due = begun.checked_add(SignedDuration::from_secs(deadline))?;
        assert!(time(&status["completionTime"])? >= due, "{status}");
        let row = site.row(name)?;
        assert_eq!((row.state, row.restarts), ("Failed".into(), "0".into()));
        assert_eq!(row.reason, "PyTorchJobFailed");
        let message =
            format!("Job {name} has failed because it was active longer than specified deadline");
        let events = site.events(name, "DeadlineExceeded").await?;
        assert_eq!(said(&events, "Normal", "PyTorchJobFailed")?, message);
        assert_eq!(
            said(&events, "Warning", "DeadlineExceeded")?,
            format!("runPolicy.activeDeadlineSeconds is {deadline}")
        );
        let text = site.describe(name)?;
        assert!(text.contains(&message), "{text}");
    }
    // Running leaves no pods; None keeps all of them running, and the status says so.
    site.until_no_pods("running").await?;
    holds_for(STAYS, async || {
        let pods = read::pods(&site.client, &site.namespace, "none").await?;
        ensure!(pods.len() == 2, "{:?}", read::names(&pods));
        Ok(())
    })
    .await?;
    let events = site.events("none", "PodsStillRunning").await?;
    let still = said(&events, "Warning", "PodsStillRunning")?.to_owned();
    assert!(still.contains("cleanPodPolicy is None"), "{still}");
    site.finish(&still).await
}

#[tokio::test]
async fn a_worker_that_fails_again_and_again_uses_up_the_backoff_limit() -> Result<()> {
    let site = Site::open("backoff", Weight::Light).await?;
    // The kubelet restarts the container again and again, with a backoff of some seconds except for the first time.
    let worker = shell("echo 'no such bucket' >&2; exit 3");
    let job = pair("pt", shell(UNTIL_GO), worker)
        .run_policy("backoffLimit", 3)
        .run_policy("cleanPodPolicy", "All");
    site.jobs.create(&job.build()).await?;
    let job = site.until_true("pt", "Failed").await?;
    site.until_no_pods("pt").await?;
    let cause = "BackoffLimitExceeded: exit 3 in pt-worker-0: no such bucket";
    site.assert_why("pt", "FAILED", &[cause])?;
    let message = "Job pt has failed because it has reached the specified backoff limit";
    // The Stalled condition keeps its message: which pod, and why.
    let stalled = condition(&job, "Stalled")?;
    assert_eq!(
        (stalled.status.as_str(), stalled.reason.as_str()),
        ("False", "CrashLoopBackOff")
    );
    for words in ["pt-worker-0", "exit code 3", "no such bucket"] {
        assert!(stalled.message.contains(words), "{stalled:?}");
    }
    // The number of ready pods at that moment is chance.
    let ready = site.row("pt")?.ready;
    site.assert_reads(
        "pt",
        &[
            stalled,
            created("pt"),
            no_longer_running("pt"),
            failed(message),
        ],
        &Row::new("Failed", &ready, 3, "PyTorchJobFailed"),
    )
    .await?;
    assert_eq!(site.summary()["Pod/pt-worker-0"].creates, 1);
    let events = site.events("pt", "BackoffLimitExceeded").await?;
    assert_eq!(said(&events, "Normal", "PyTorchJobFailed")?, message);
    let hint = said(&events, "Warning", "BackoffLimitExceeded")?.to_owned();
    assert!(hint.contains("runPolicy.backoffLimit is 3"), "{hint}");
    site.finish(&hint).await
}

#[tokio::test]
async fn an_ended_job_is_deleted_with_all_its_objects_at_the_end_of_its_ttl() -> Result<()> {
    let site = Site::open("ttl", Weight::Light).await?;
    // The TTL starts when the job finishes: of these two, one succeeded and one failed.
    let well = pair("well", shell("true"), shell("true"))
        .run_policy("ttlSecondsAfterFinished", TTL)
        .build();
    let badly = pair("badly", shell("exit 1"), shell(UNTIL_GO))
        .restart_policy("Master", "Never")
        .run_policy("ttlSecondsAfterFinished", TTL)
        .build();
    site.jobs.create(&well).await?;
    site.jobs.create(&badly).await?;
    // At once: each of them exists only for a while.
    let (well, badly) = tokio::try_join!(
        site.until_true("well", "Succeeded"),
        site.until_true("badly", "Failed")
    )?;
    for (name, job) in [("well", well), ("badly", badly)] {
        let completed = time(&job["status"]["completionTime"])?;
        eventually("no job", async || {
            let jobs = site.kubectl(&["get", "pytorchjobs", "-o", "name"])?;
            let there = jobs.lines().any(|line| line.ends_with(&format!("/{name}")));
            Ok(if there {
                Seen::NotYet(jobs)
            } else {
                Seen::Yes(())
            })
        })
        .await?;
        let due = completed.checked_add(SignedDuration::from_secs(TTL))?;
        assert!(Timestamp::now() >= due, "{name} went before {due}");
        site.until_no_pods(name).await?;
        eventually("no services", async || {
            let services = read::services(&site.client, &site.namespace, name).await?;
            Ok(if services.is_empty() {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{:?}", read::names(&services)))
            })
        })
        .await?;
    }
    site.finish("the jobs, their pods and services are gone")
        .await
}
