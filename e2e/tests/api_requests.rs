//! The requests that a job costs, from the API server's audit log. One test, because the log distinguishes users and not tests; the
//! operator of each kind is a user of its own.

use std::time::Duration;

use anyhow::{Context as _, Result};
use e2e::{World, for_each_kind};
use training_testkit::audit::{Entry, Tally};
use training_testkit::builders::{KINDS, Kind};
use training_testkit::job::{counters, is_true};
use training_testkit::kubelet::lockstep;
use training_testkit::wait::HANG;

/// A stage is over when nothing has happened for this long.
const QUIET: Duration = Duration::from_millis(1500);

/// I-31 asks for a minute; it may be shorter in development.
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

async fn whole_life(kind: Kind) -> Result<()> {
    let Some(world) = World::of(kind, "requests", lockstep()).await? else {
        return Ok(());
    };
    let (name, user) = (kind.name, kind.user());
    let audit = world.control.audit()?;
    let begin = audit.mark().await?;
    let operator = world.operator().await?;
    audit.until_quiet(&user, asks, QUIET, HANG).await?;
    let start = audit.by_user(begin, &user).await?;
    eprintln!("start of the operator of {name}s:\n{}", Tally::of(&start));
    assert!(start.iter().all(|entry| entry.code < 300), "{start:#?}");

    let birth = audit.mark().await?;
    let namespace = world.namespace();
    // The default policy of a TFJob differs: it deletes pods that still run at the end.
    let job = kind.small_job("pt", 3).run_policy("cleanPodPolicy", "None");
    world.jobs.create(&job.build()).await?;
    world.kubelet.until_pods(namespace, "pt", 4).await?;
    world.jobs.until_true("pt", "Created").await?;
    audit.until_quiet(&user, asks, QUIET, HANG).await?;
    world.kubelet.all_running(namespace, "pt").await?;
    world.jobs.until_true("pt", "Running").await?;
    audit.until_quiet(&user, asks, QUIET, HANG).await?;
    world.kubelet.all_succeeded(namespace, "pt").await?;
    let job = world.jobs.until_true("pt", "Succeeded").await?;
    let told = format!("{name}Succeeded");
    e2e::read::events_with(&world.client, namespace, "pt", &told).await?;
    audit.until_quiet(&user, asks, QUIET, HANG).await?;

    let life = audit.by_user(birth, &user).await?;
    let (watches, requests): (Vec<_>, Vec<_>) = life.iter().partition(|entry| entry.is_watch());
    let mut tally = Tally::of(requests.iter().copied());
    eprintln!(
        "life of a {name} of four pods:\n{tally}{:6}  watches opened",
        watches.len()
    );
    let refused: Vec<_> = life.iter().filter(|entry| entry.code >= 300).collect();
    assert!(refused.is_empty(), "{refused:#?}");
    // I-30.
    let elsewhere = requests.iter().find(|entry| entry.namespace != namespace);
    assert_eq!(elsewhere, None);
    // I-32: one write for each of three states. Where pods start one after another, as on a slow machine, two more are allowed.
    let writes = tally.0.remove(&format!("patch {}/status", kind.plural));
    assert!(matches!(writes, Some(3..=5)), "{requests:#?}");
    let expected = Tally::expected(&[
        ("create pods", 4),
        ("create services", 4),
        ("create events", 3),
    ]);
    assert_eq!(tally, expected, "{requests:#?}");
    assert!(is_true(&job, "Succeeded"));
    // The result is complete: saving writes loses nothing.
    let job = world.jobs.get("pt").await?;
    assert_eq!(
        counters(&job, "Worker").get("succeeded").copied(),
        Some(i64::from(kind.small_roles(3).1)),
        "{}",
        job["status"]
    );
    let events = e2e::read::events(&world.client, namespace, "pt").await?;
    let mut reasons: Vec<&str> = events.iter().map(|event| event.1.as_str()).collect();
    reasons.sort_unstable();
    let succeeded = format!("{name}Succeeded");
    let mut expected = [
        succeeded.as_str(),
        "SuccessfulCreatePod",
        "SuccessfulCreateService",
    ];
    expected.sort_unstable();
    assert_eq!(reasons, expected);

    let idle = audit.mark().await?;
    let time = idle_time()?;
    tokio::time::sleep(time).await;
    let asked = audit.by_user(idle, &user).await?;
    let asked: Vec<_> = asked.into_iter().filter(asks).collect();
    let (rss, peak) = operator.memory()?;
    eprintln!(
        "{name}s, idle for {time:?}: {} requests; {} KiB resident, at most {} KiB",
        asked.len(),
        rss / 1024,
        peak / 1024
    );
    assert!(asked.is_empty(), "{asked:#?}");
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn i_30_i_31_i_32_i_35_a_whole_life_costs_its_creates_few_status_writes_and_three_events_and_then_nothing()
-> Result<()> {
    for_each_kind(KINDS, whole_life).await
}
