//! Measures the cost of a decoded event: finding its pod among all pods of its job; and that of a listed pod.
//!
//! Uses the operator's own index in this process, without an API server.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tokio::time::Instant as Now;
use training_core::{PodPhase, PodView, Uid};
use training_runtime::feed::index::Index;
use training_runtime::feed::slim::Owned;
use training_runtime::key::{JobKey, Scope};

use crate::runs::number;
use crate::store::{Figures, Pair};

/// Replicas of the large job.
const REPLICAS: u32 = 20_000;
/// Events of one round, and pods of its lists.
const EVENTS: u32 = 200_000;
/// Lists of one round.
const LISTS: u32 = EVENTS / REPLICAS;
/// The number of rounds; the fastest counts, since any disturbance makes a round slower.
const ROUNDS: usize = 5;

/// Compares a job with one replica with one with [`REPLICAS`], and lists of as many jobs with one of one job.
pub fn event(say: &dyn Fn(&str)) -> Result<Pair> {
    let pair = Pair::new(of(1)?, of(REPLICAS)?);
    say(&format!("events: {:?}", [&pair.floor, &pair.ours]));
    Ok(pair)
}

/// Returns the figures of a job with so many replicas.
fn of(replicas: u32) -> Result<Figures> {
    let index = Index::default();
    for replica in 0..replicas {
        index.apply(pod(1, replica, 1, false));
    }
    ensure!(
        index.len() == usize::try_from(replicas)?,
        "pods are missing"
    );
    let mut version = 1;
    let changed = fastest(|| {
        version += 1;
        let mut random = fastrand::Rng::with_seed(version);
        (0..EVENTS).fold(0, |woken, n| {
            let replica = random.u32(0..replicas);
            let seen = pod(1, replica, version + u64::from(n), n % 2 == 0);
            woken + usize::from(index.apply(seen).is_some())
        })
    })?;
    let foreign = fastest(|| {
        let of = |n: u32| Uid(u128::MAX - u128::from(n));
        (0..EVENTS)
            .filter(|n| index.remove_foreign("ns", of(*n)).is_none())
            .count()
    })?;
    Ok(Figures::from([
        ("changed_ns".to_owned(), changed),
        ("foreign_ns".to_owned(), foreign),
        ("listed_ns".to_owned(), listed(replicas)?),
    ]))
}

/// Returns nanoseconds per pod of a list of [`REPLICAS`] pods, of jobs with so many replicas.
fn listed(replicas: u32) -> Result<f64> {
    let index = Index::default();
    let all = Scope::new(None);
    fastest(|| {
        (0..LISTS)
            .map(|_| {
                index.begin_list(&all);
                for n in 0..REPLICAS {
                    index.listed(&all, pod(n / replicas, n % replicas, 1, false));
                }
                index.end_list(&all, Now::now());
                index.len()
            })
            .sum()
    })
}

/// Returns nanoseconds per event. Fails if the events changed nothing.
fn fastest(mut round: impl FnMut() -> usize) -> Result<f64> {
    let mut best: Option<Duration> = None;
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        let counted = round();
        let took = begun.elapsed();
        ensure!(counted > 0, "nothing was counted");
        best = Some(best.map_or(took, |best| best.min(took)));
    }
    let best = best.context("no round")?;
    Ok(best.as_secs_f64() * 1e9 / number(usize::try_from(EVENTS)?))
}

fn pod(job: u32, replica: u32, version: u64, ready: bool) -> Owned<PodView> {
    let uid = (u128::from(job) << 32) + u128::from(replica);
    Owned {
        key: JobKey::new("ns", &format!("job-{job}")),
        owner: Uid(u128::MAX / 2 + u128::from(job)),
        view: PodView {
            phase: PodPhase::Running,
            ready,
            ..PodView::new(Uid(uid), version, "worker".into(), replica)
        },
    }
}
