//! Measures the cost of a decoded event: finding its pod among all pods of its job.
//!
//! Uses the operator's own index in this process, without an API server.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use training_core::{PodPhase, PodView, Uid};
use training_runtime::feed::index::Index;
use training_runtime::feed::slim::Owned;
use training_runtime::key::JobKey;

use crate::runs::number;
use crate::store::{Figures, Pair};

/// Replicas of the large job.
const REPLICAS: u32 = 20_000;
/// Events of one round.
const EVENTS: u32 = 200_000;
/// The number of rounds; the fastest counts, since any disturbance makes a round slower.
const ROUNDS: usize = 5;

/// Compares a job with one replica with one with [`REPLICAS`].
pub fn event(say: &dyn Fn(&str)) -> Result<Pair> {
    let pair = Pair {
        floor: of(1)?,
        ours: of(REPLICAS)?,
    };
    say(&format!("events: {:?}", [&pair.floor, &pair.ours]));
    Ok(pair)
}

/// Returns the figures of a job with so many replicas.
fn of(replicas: u32) -> Result<Figures> {
    let index = Index::default();
    for replica in 0..replicas {
        index.apply(pod(replica, 1, false));
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
            let seen = pod(replica, version + u64::from(n), n % 2 == 0);
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
    ]))
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

fn pod(replica: u32, version: u64, ready: bool) -> Owned<PodView> {
    Owned {
        key: JobKey::new("ns", "job"),
        owner: Uid(1),
        view: PodView {
            phase: PodPhase::Running,
            ready,
            ..PodView::new(
                Uid(u128::from(replica) + 2),
                version,
                "worker".into(),
                replica,
            )
        },
    }
}
