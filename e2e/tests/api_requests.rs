//! What a job costs the API server, by its own audit log. One test, because the log tells users
//! apart and not tests.

use std::time::Duration;

use anyhow::{Context as _, Result};
use e2e::World;
use training_testkit::audit::{Entry, Tally};
use training_testkit::builders::pytorch_job;
use training_testkit::control_plane::PYTORCH_OPERATOR;
use training_testkit::job::{counters, is_true};
use training_testkit::kubelet::lockstep;
use training_testkit::wait::HANG;

/// How long nothing may happen for a stage to count as over.
const QUIET: Duration = Duration::from_millis(1500);

/// I-31 asks for a minute; shorter while developing.
fn idle_time() -> Result<Duration> {
    let seconds = match std::env::var("TRAINYARD_IDLE_SECONDS") {
        Ok(text) => text
            .parse()
            .context("TRAINYARD_IDLE_SECONDS is no number")?,
        Err(_) => 60,
    };
    Ok(Duration::from_secs(seconds))
}

fn asks(entry: &Entry) -> bool {
    !entry.is_watch()
}

#[tokio::test]
async fn i_30_i_31_i_32_i_35_a_whole_life_costs_its_creates_few_status_writes_and_three_events_and_then_nothing()
-> Result<()> {
    let Some(world) = World::start("requests", lockstep()).await? else {
        return Ok(());
    };
    let audit = world.control.audit()?;
    let begin = audit.mark().await?;
    let operator = world.operator().await?;
    audit
        .until_quiet(PYTORCH_OPERATOR, asks, QUIET, HANG)
        .await?;
    let start = audit.by_user(begin, PYTORCH_OPERATOR).await?;
    eprintln!("start of the operator:\n{}", Tally::of(&start));
    assert!(start.iter().all(|entry| entry.code < 300), "{start:#?}");

    let birth = audit.mark().await?;
    let namespace = world.namespace();
    world
        .jobs
        .create(&pytorch_job("pt").master().workers(3).build())
        .await?;
    world.kubelet.until_pods(namespace, "pt", 4).await?;
    world.jobs.until_true("pt", "Created").await?;
    audit
        .until_quiet(PYTORCH_OPERATOR, asks, QUIET, HANG)
        .await?;
    world.kubelet.all_running(namespace, "pt").await?;
    world.jobs.until_true("pt", "Running").await?;
    audit
        .until_quiet(PYTORCH_OPERATOR, asks, QUIET, HANG)
        .await?;
    world.kubelet.all_succeeded(namespace, "pt").await?;
    let job = world.jobs.until_true("pt", "Succeeded").await?;
    audit
        .until_quiet(PYTORCH_OPERATOR, asks, QUIET, HANG)
        .await?;

    let life = audit.by_user(birth, PYTORCH_OPERATOR).await?;
    let (watches, requests): (Vec<_>, Vec<_>) = life.iter().partition(|entry| entry.is_watch());
    let mut tally = Tally::of(requests.iter().copied());
    eprintln!(
        "life of a 1+3 job:\n{tally}{:6}  watches opened",
        watches.len()
    );
    let refused: Vec<_> = life.iter().filter(|entry| entry.code >= 300).collect();
    assert!(refused.is_empty(), "{refused:#?}");
    // I-30.
    let elsewhere = requests.iter().find(|entry| entry.namespace != namespace);
    assert_eq!(elsewhere, None);
    // I-32: one write for each of three states. Where pods start one after another, as on a slow machine, two more are allowed.
    let writes = tally.0.remove("patch pytorchjobs/status");
    assert!(matches!(writes, Some(3..=5)), "{requests:#?}");
    let expected = Tally::expected(&[
        ("create pods", 4),
        ("create services", 4),
        ("create events", 3),
    ]);
    assert_eq!(tally, expected, "{requests:#?}");
    assert!(is_true(&job, "Succeeded"));
    // Nothing was saved by leaving the result out.
    let job = world.jobs.get("pt").await?;
    assert_eq!(
        counters(&job, "Worker").get("succeeded"),
        Some(&3),
        "{}",
        job["status"]
    );
    let events = e2e::look::events(&world.client, namespace, "pt").await?;
    let mut reasons: Vec<&str> = events.iter().map(|event| event.1.as_str()).collect();
    reasons.sort_unstable();
    assert_eq!(
        reasons,
        [
            "PyTorchJobSucceeded",
            "SuccessfulCreatePod",
            "SuccessfulCreateService"
        ]
    );

    let idle = audit.mark().await?;
    let time = idle_time()?;
    tokio::time::sleep(time).await;
    let asked = audit.by_user(idle, PYTORCH_OPERATOR).await?;
    let asked: Vec<_> = asked.into_iter().filter(asks).collect();
    let (rss, peak) = operator.memory()?;
    eprintln!(
        "idle for {time:?}: {} requests; {} KiB resident, at most {} KiB",
        asked.len(),
        rss / 1024,
        peak / 1024
    );
    assert!(asked.is_empty(), "{asked:#?}");
    world.assert_clean(&operator).await
}
