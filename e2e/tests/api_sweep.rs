//! The operator is killed around every single write of a job's life, and nobody can tell afterwards.

use anyhow::{Context as _, Result};
use e2e::lives::Life;
use e2e::sweep::{Choice, Cut, Figures, Key, Tour};

/// All lives and all cuts, instead of the short ones with the most dangerous cut.
const DEEP: &str = "TRAINYARD_DEEP";
/// Only these runs: a life, `S-02`; one cut of it, `S-02,C1`; or one run, as a failure prints it.
const PLAN: &str = "TRAINYARD_PLAN";
/// The seed of the operator's jitter.
const SEED: &str = "TRAINYARD_SEED";

/// Writes of the seven short lives: pods and services, their deletes, and what the status says.
const LEAST_SHORT: usize = 80;
/// Counts may be stored in one write or in two; of so many writes, one such may not come again.
const WRITES_PER_MISSED: usize = 8;

fn seed() -> Result<u64> {
    match std::env::var(SEED) {
        Ok(text) => text.parse().with_context(|| format!("{SEED} is no number")),
        Err(_) => Ok(1),
    }
}

/// What came of it, and the least number of runs that make it a sweep.
async fn sweep() -> Result<Option<(Figures, usize)>> {
    let Some(mut tour) = Tour::begin(seed()?).await? else {
        return Ok(None);
    };
    let all = |_: &Key| true;
    let least = if let Ok(text) = std::env::var(PLAN) {
        let choice: Choice = text.parse()?;
        let wanted = |key: &Key| choice.wants(key);
        tour.sweep(&choice.lives(), &choice.cuts(), wanted).await?;
        1
    } else if std::env::var_os(DEEP).is_some() {
        tour.sweep(&Life::ALL, &Cut::ALL, all).await?;
        LEAST_SHORT * Cut::ALL.len()
    } else {
        tour.sweep(&Life::SHORT, &[Cut::After], all).await?;
        LEAST_SHORT
    };
    Ok(Some((tour.end().await?, least)))
}

#[tokio::test]
async fn cs1_killed_around_any_write_a_job_ends_as_if_nothing_had_happened() -> Result<()> {
    let Some((figures, least)) = sweep().await? else {
        return Ok(());
    };
    eprintln!("{figures}");
    for missed in &figures.missed {
        eprintln!("  not met again: {missed}");
    }
    assert!(
        figures.failures.is_empty(),
        "{}",
        figures.failures.join("\n\n")
    );
    assert!(figures.runs() >= least, "{} runs", figures.runs());
    let most = figures.runs().div_ceil(WRITES_PER_MISSED);
    assert!(figures.missed.len() <= most, "{:?}", figures.missed);
    assert!(
        figures.missed.iter().all(|plan| plan.contains(":counts:")),
        "{:?}",
        figures.missed
    );
    Ok(())
}
