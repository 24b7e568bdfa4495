//! The operator is killed around every single write of a job's life, and nobody can tell afterwards.

use anyhow::{Context as _, Result};
use e2e::lives::{CleanPods, Life, MpiLife};
use e2e::sweep::{Choice, Cut, Figures, Plan, Setting, Successor, Tour};
use training_testkit::builders::{Kind, MPI, PYTORCH};

/// All lives and all cuts, instead of the short ones with the most dangerous cut.
const DEEP: &str = "TRAINYARD_DEEP";
/// Only these runs: a life, `S-02`; one cut of it, `S-02,C1`; or one run, as a failure
/// prints it.
const PLAN: &str = "TRAINYARD_PLAN";
/// The seed of the operator's jitter.
const SEED: &str = "TRAINYARD_SEED";

/// Writes of the seven short lives: pods and services, their deletes, and what the status says.
const LEAST_SHORT: usize = 80;
/// Those of an `MPIJob`, whose other lives wait for the controller of Jobs most of their time.
const SHORT_OF_MPI: [MpiLife; 2] = [MpiLife::Succeeds, MpiLife::Suspended];
/// The writes of those.
const LEAST_OF_MPI: usize = 25;
/// Whose writes of each class are met in every test run by a standby and by a world that has moved on.
const PAIRED: [Life; 3] = [
    Life::Succeeds(CleanPods::All),
    Life::Suspended,
    Life::Mpi(MpiLife::Succeeds),
];
/// Pods, services, the status: what every life writes.
const LEAST_CLASSES: usize = 3;
/// Whose writes about gangs are met in every test run.
const GANGS: [Life; 2] = [Life::Succeeds(CleanPods::All), Life::RetryableExit];
/// Made and deleted in each of two lives, of two kinds.
const LEAST_OF_GROUPS: usize = 8;
/// Counts, and the list of hosts that run, may be stored in one write or in two; of so many writes, one such may not come again.
const WRITES_PER_MISSED: usize = 8;

fn seed() -> Result<u64> {
    match std::env::var(SEED) {
        Ok(text) => text.parse().with_context(|| format!("{SEED} is no number")),
        Err(_) => Ok(1),
    }
}

/// The runs that are wanted, where not all of them are.
fn choice() -> Result<Option<Choice>> {
    let text = std::env::var(PLAN).ok();
    text.map(|text| text.parse()).transpose()
}

/// A write to what stands for a gang, or to a status, which names the scheduler of its run.
fn of_a_group(plan: &Plan) -> bool {
    ["workloads", "podgroups", "pytorchjobs/status"].contains(&plan.key.resource.as_str())
}

/// Whether what is wanted alone is of another kind.
fn is_of_another(choice: Option<&Choice>, kind: Kind) -> bool {
    choice.is_some_and(|choice| choice.life().kind() != kind)
}

/// Those of every test run, and those of a deep one.
fn lives(kind: Kind) -> (Vec<Life>, Vec<Life>) {
    if kind == MPI {
        let all = MpiLife::ALL.map(Life::Mpi).to_vec();
        return (SHORT_OF_MPI.map(Life::Mpi).to_vec(), all);
    }
    (Life::SHORT.to_vec(), Life::ALL.to_vec())
}

/// What came of it, and the least number of runs that make it a sweep.
async fn sweep(kind: Kind, gangs: bool) -> Result<Option<(Figures, usize)>> {
    let choice = choice()?;
    if is_of_another(choice.as_ref(), kind) {
        return Ok(None);
    }
    let setting = Setting {
        kind,
        seed: seed()?,
        successor: Successor::Itself,
        gangs,
    };
    let Some(mut tour) = Tour::begin(setting).await? else {
        return Ok(None);
    };
    let (short, all) = lives(kind);
    let least = if kind == MPI {
        LEAST_OF_MPI
    } else {
        LEAST_SHORT
    };
    let least = if let Some(choice) = choice {
        tour.sweep(&[choice.life()], &Cut::ALL, |plan| choice.wants(plan))
            .await?;
        0
    } else if std::env::var_os(DEEP).is_some() {
        // Whether a resumed job meets its former group is chance.
        let lives = all.into_iter();
        let lives = lives.filter(|life| !(gangs && *life == Life::Suspended));
        let lives: Vec<Life> = lives.collect();
        tour.sweep(&lives, &Cut::ALL, |_| true).await?;
        least * Cut::ALL.len()
    } else if gangs {
        tour.sweep(&GANGS, &[Cut::After], of_a_group).await?;
        LEAST_OF_GROUPS
    } else {
        tour.sweep(&short, &[Cut::After], |_| true).await?;
        least
    };
    Ok(Some((tour.end().await?, least)))
}

/// The same with a kill at one write of each class; what comes after it depends on who succeeds.
async fn pairs(kind: Kind, successor: Successor) -> Result<Option<(Figures, usize)>> {
    let choice = choice()?;
    if is_of_another(choice.as_ref(), kind) {
        return Ok(None);
    }
    let setting = Setting {
        kind,
        seed: seed()?,
        successor,
        gangs: false,
    };
    let Some(mut tour) = Tour::begin(setting).await? else {
        return Ok(None);
    };
    let least = if let Some(plan) = choice.as_ref().and_then(Choice::plan) {
        // Which write of its class a pair takes depends on the other lives of its sweep.
        tour.alone(plan).await?;
        1
    } else if let Some(choice) = choice {
        tour.pairs(&[choice.life()], |plan| choice.wants(plan))
            .await?;
        0
    } else {
        let deep = std::env::var_os(DEEP).is_some();
        // Where only the job goes and its pods stay, or where its workers end before their launcher is there, nobody can lead it
        // to another end.
        let endless = |life: &Life| {
            successor == Successor::Itself && (life.orphans() || *life == Life::Mpi(MpiLife::Waits))
        };
        let (_, all) = lives(kind);
        let lives = all
            .into_iter()
            .filter(|life| (deep || PAIRED.contains(life)) && !endless(life));
        let lives: Vec<Life> = lives.collect();
        tour.pairs(&lives, |_| true).await?;
        LEAST_CLASSES * lives.len()
    };
    Ok(Some((tour.end().await?, least)))
}

fn assert_nobody_can_tell(came: Option<(Figures, usize)>) {
    let Some((figures, least)) = came else {
        return;
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
        figures
            .missed
            .iter()
            .all(|plan| plan.contains(":counts:") || plan.contains(":configmaps:")),
        "{:?}",
        figures.missed
    );
}

#[tokio::test]
async fn cs1_killed_around_any_write_a_job_ends_as_if_nothing_had_happened() -> Result<()> {
    assert_nobody_can_tell(sweep(PYTORCH, false).await?);
    Ok(())
}

#[tokio::test]
async fn cs1_whichever_write_kills_the_leader_its_standby_ends_the_job_as_if_nothing_had_happened()
-> Result<()> {
    assert_nobody_can_tell(pairs(PYTORCH, Successor::Standby).await?);
    Ok(())
}

#[tokio::test]
async fn cs1_whatever_happens_while_the_operator_is_dead_the_job_comes_to_its_end() -> Result<()> {
    assert_nobody_can_tell(pairs(PYTORCH, Successor::Itself).await?);
    Ok(())
}

#[tokio::test]
async fn s_09_killed_around_any_write_a_gang_is_neither_leaked_nor_lost() -> Result<()> {
    assert_nobody_can_tell(sweep(PYTORCH, true).await?);
    Ok(())
}

#[tokio::test]
async fn s_12_killed_around_any_write_an_mpi_job_ends_as_if_nothing_had_happened() -> Result<()> {
    assert_nobody_can_tell(sweep(MPI, false).await?);
    Ok(())
}

#[tokio::test]
async fn s_12_whichever_write_kills_the_leader_its_standby_ends_the_mpi_job_as_if_nothing_had_happened()
-> Result<()> {
    assert_nobody_can_tell(pairs(MPI, Successor::Standby).await?);
    Ok(())
}

#[tokio::test]
async fn s_12_whatever_happens_while_the_operator_is_dead_the_mpi_job_comes_to_its_end()
-> Result<()> {
    assert_nobody_can_tell(pairs(MPI, Successor::Itself).await?);
    Ok(())
}
