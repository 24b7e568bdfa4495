//! Kills the operator again and again; the result must be the same as without kills.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use e2e::World;
use e2e::killer::{Killer, Kills};
use e2e::lives::{CleanPods, Happenings, Life, StepRunner};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use tokio::sync::mpsc;
use training_testkit::auditor::{Summary, difference};
use training_testkit::builders::pytorch_jobs;
use training_testkit::control_plane::PYTORCH_OPERATOR;
use training_testkit::kubelet::lockstep;
use training_testkit::snapshot::Snapshot;
use training_testkit::wait::HANG;

const JOBS: usize = 20;
/// Enough concurrent jobs that a kill hits several stages.
const AT_ONCE: usize = 4;
const LEAST_KILLS: usize = 60;
const LEAST_BETWEEN_CREATES: usize = 15;
/// Seven of the jobs have something to clean up when they finish.
const LEAST_WHILE_CLEANING: usize = 4;

/// The life cycles that succeed or fail without user action.
const LIVES: [Life; 6] = [
    Life::Succeeds(CleanPods::None),
    Life::Succeeds(CleanPods::All),
    Life::Succeeds(CleanPods::Running),
    Life::RetryableExit,
    Life::Evicted,
    Life::PermanentExit,
];

/// The compared result: how often each object was created and deleted, and how each job ended.
struct Outcome {
    summary: Summary,
    jobs: BTreeMap<String, Snapshot>,
}

fn seed() -> Result<u64> {
    match std::env::var("TRAINYARD_SEED") {
        Ok(text) => text.parse().context("TRAINYARD_SEED is no number"),
        Err(_) => Ok(fastrand::u64(..)),
    }
}

/// Runs all jobs to completion, waits until everything settles, and collects the result.
async fn live(world: &World, happenings: &Happenings) -> Result<Outcome> {
    let names: Vec<(String, Life)> = (0..JOBS)
        .map(|n| (format!("job{n:02}"), LIVES[n % LIVES.len()]))
        .collect();
    stream::iter(&names)
        .map(|(name, life)| async move {
            let actor = StepRunner {
                world,
                name,
                held: None,
                happenings: Some(happenings),
            };
            let led = life.run(&actor).await;
            led.with_context(|| format!("{name} ({life})"))
        })
        .buffer_unordered(AT_ONCE)
        .try_collect::<Vec<()>>()
        .await?;
    let audit = world.control.audit()?;
    audit
        .until_quiet(
            PYTORCH_OPERATOR,
            |entry| !entry.is_watch(),
            Duration::from_secs(2),
            HANG,
        )
        .await?;
    world.auditor.assert_clean().await?;
    let mut jobs = BTreeMap::new();
    for (name, _) in names {
        let client = world.client.clone();
        let snapshot = Snapshot::take(client, world.namespace(), &pytorch_jobs(), &name).await?;
        jobs.insert(name, snapshot);
    }
    Ok(Outcome {
        summary: world.auditor.summary(),
        jobs,
    })
}

#[tokio::test]
async fn cs1_killed_after_any_write_it_ends_as_if_nothing_had_happened() -> Result<()> {
    let seed = seed()?;
    eprintln!("TRAINYARD_SEED={seed}");

    let begin = Instant::now();
    let Some(calm) = World::start("calm", lockstep()).await? else {
        return Ok(());
    };
    // Also behind a proxy, so that killing is the only difference.
    let (proxy, operator) = calm.proxied_operator().await?;
    let (nobody, _) = mpsc::unbounded_channel();
    let reference = live(&calm, &nobody).await?;
    calm.assert_clean(&operator).await?;
    proxy.assert_guarded()?;
    drop(operator);
    let undisturbed = begin.elapsed();

    let begin = Instant::now();
    let Some(world) = World::start("crash", lockstep()).await? else {
        return Ok(());
    };
    let (proxy, mut operator) = world.proxied_operator().await?;
    let (happenings, heard) = mpsc::unbounded_channel();
    let mut kills = Kills::default();
    let outcome = {
        let killer = Killer::new(&proxy, &mut operator, heard, seed, &mut kills);
        tokio::select! {
            outcome = live(&world, &happenings) => outcome?,
            end = killer.run() => {
                end?;
                anyhow::bail!("the killer stopped");
            }
        }
    };
    eprintln!(
        "{JOBS} jobs: undisturbed {undisturbed:?}; with {} kills {:?}\n{kills:?}, {} starts",
        kills.total(),
        begin.elapsed(),
        operator.starts()
    );

    let mut differences = difference(&reference.summary, &outcome.summary);
    for (name, snapshot) in &reference.jobs {
        differences += &snapshot.diff(&outcome.jobs[name]);
    }
    assert!(differences.is_empty(), "seed {seed}:\n{differences}");
    world.assert_clean(&operator).await?;
    proxy.assert_guarded()?;
    assert!(kills.total() >= LEAST_KILLS, "seed {seed}: {kills:?}");
    assert!(
        kills.between_creates >= LEAST_BETWEEN_CREATES,
        "seed {seed}: {kills:?}"
    );
    assert!(
        kills.while_cleaning >= LEAST_WHILE_CLEANING,
        "seed {seed}: {kills:?}"
    );
    Ok(())
}
