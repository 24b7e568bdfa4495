//! Kills the operator around every single write of a job's life cycle; the result must be the same as without kills.

use anyhow::{Context as _, Result};
use e2e::lives::{CleanPods, Life, MpiLife, SparkLife};
use e2e::sweep::{Choice, Cut, Figures, Missed, Plan, Restart, Setting, Successor, Sweep, Writes};
use futures::{StreamExt as _, stream};
use training_testkit::builders::{
    JAX, Kind, MPI, PADDLE, PYTORCH, SPARK, TENSORFLOW, TRAINING, XGBOOST,
};
use training_testkit::is_deep;

/// Only these runs: a life cycle, `S-02`; one of another kind, `TFJob/S-02`; one cut of it, `S-02,C1`; or one run, as a failure prints
/// it.
const PLAN: &str = "TRAINYARD_PLAN";
/// The seed of the operator's jitter.
const SEED: &str = "TRAINYARD_SEED";

/// The life cycles whose write classes every test run combines with a standby and with a changed cluster.
const PAIRED: [Life; 4] = [
    Life::Succeeds(CleanPods::All),
    Life::Suspended,
    Life::Mpi(MpiLife::Succeeds),
    Life::Spark(SparkLife::Retried),
];
/// Every life cycle writes pods, Services and the status.
const LEAST_CLASSES: usize = 3;
/// Counts and the list of running hosts may need one write or two, and an event may save a read; one in this many requests may not come
/// again.
const WRITES_PER_MISSED: usize = 8;

/// The kinds, and the life cycle of each for double kills, stale lists and failed reads. It is one of [`short`], so that double kills
/// and stale lists reuse the undisturbed runs of the sweep of that kind.
const EVERY_KIND: [(Kind, Life); 7] = [
    (PYTORCH, Life::Suspended),
    (TENSORFLOW, Life::NodeLost),
    (XGBOOST, Life::Suspended),
    (PADDLE, Life::RetryableExit),
    (JAX, Life::NodeLost),
    (MPI, Life::Mpi(MpiLife::Suspended)),
    (SPARK, Life::Spark(SparkLife::Retried)),
];
/// Runs of each kind in every test run.
const FEW: usize = 2;
/// Runs of all kinds together in a deep run.
const PAIRS: usize = 500;
/// The number of stages of a sweep in a deep run. A run mostly waits.
const MANY_STAGES: usize = 6;
/// The number of stages of a sweep in `make test`. Each stage starts an operator, and other sweeps run in parallel.
const FEW_STAGES: usize = 3;

/// The number of stages of a sweep. In `make test`, a sweep has one stage if its test runs a sweep of every kind in parallel.
fn stages(kinds_in_parallel: bool) -> usize {
    match (is_deep(), kinds_in_parallel) {
        (true, _) => MANY_STAGES,
        (false, false) => FEW_STAGES,
        (false, true) => 1,
    }
}

fn seed() -> Result<u64> {
    match std::env::var(SEED) {
        Ok(text) => text.parse().with_context(|| format!("{SEED} is no number")),
        Err(_) => Ok(1),
    }
}

/// The selected runs; `None` for all.
fn choice() -> Result<Option<Choice>> {
    let text = std::env::var(PLAN).ok();
    text.map(|text| text.parse()).transpose()
}

fn setting(kind: Kind, successor: Successor) -> Result<Setting> {
    Ok(Setting {
        kind,
        seed: seed()?,
        successor,
        gangs: false,
        reads: false,
    })
}

/// Whether the write is to a gang's object, or to a status, which names the scheduler of its run.
fn of_a_group(plan: &Plan) -> bool {
    let resource = plan.key.resource.as_str();
    ["workloads", "podgroups"].contains(&resource) || resource.ends_with("/status")
}

/// The life cycles whose gang writes every test run covers, and the least number of these: two objects are each created and deleted.
fn gangs(kind: Kind) -> (Vec<Life>, usize) {
    match kind {
        PYTORCH => (vec![Life::Succeeds(CleanPods::All), Life::RetryableExit], 8),
        MPI => (vec![Life::Mpi(MpiLife::Succeeds)], 4),
        _ => (vec![Life::Succeeds(CleanPods::All)], 4),
    }
}

/// The life cycles of every test run, and the least number of their writes.
fn short(kind: Kind) -> (Vec<Life>, usize) {
    match kind {
        PYTORCH => (Life::SHORT.to_vec(), 60),
        TENSORFLOW => (vec![Life::Succeeds(CleanPods::Running), Life::NodeLost], 16),
        XGBOOST => (vec![Life::Evicted, Life::Suspended], 24),
        PADDLE => (vec![Life::RetryableExit, Life::Restarted], 20),
        JAX => (vec![Life::NodeLost], 10),
        MPI => {
            let lives = [MpiLife::Succeeds, MpiLife::Suspended, MpiLife::Restarted];
            (lives.map(Life::Mpi).to_vec(), 40)
        }
        _ => {
            // Every life cycle of an application begins like these.
            let lives = [
                SparkLife::Retried,
                SparkLife::Suspended,
                SparkLife::Edited,
                SparkLife::Restarted,
            ];
            (lives.map(Life::Spark).to_vec(), 55)
        }
    }
}

/// Whether a choice includes a sweep of this kind with cuts around writes and such a restart.
fn is_wanted(choice: Option<&Choice>, kind: Kind, of: impl Fn(Option<Restart>) -> bool) -> bool {
    choice.is_none_or(|choice| {
        let reads = choice.cut().is_some_and(|cut| !Cut::ALL.contains(&cut));
        choice.kind() == kind && !reads && of(choice.restart())
    })
}

/// Returns the figures, and the least number of runs that a sweep must have.
async fn sweep(kind: Kind, gangs: bool) -> Result<Option<(Figures, usize)>> {
    let choice = choice()?;
    if !is_wanted(choice.as_ref(), kind, |restart| {
        restart.is_none_or(|restart| restart == Restart::Same)
    }) {
        return Ok(None);
    }
    let setting = Setting {
        gangs,
        ..setting(kind, Successor::Itself)?
    };
    let Some(mut running) = Sweep::begin(stages(gangs), setting).await? else {
        return Ok(None);
    };
    let (short, least) = short(kind);
    let least = if let Some(choice) = choice {
        running
            .run(&[choice.life()], &Cut::ALL, Writes::All, |plan| {
                choice.wants(plan)
            })
            .await?;
        0
    } else if is_deep() {
        // Whether a resumed job finds its former group is chance.
        let by_chance = [Life::Suspended, Life::Mpi(MpiLife::Suspended)];
        let lives = Life::of(kind).into_iter();
        let lives = lives.filter(|life| !(gangs && by_chance.contains(life)));
        let lives: Vec<Life> = lives.collect();
        running
            .run(&lives, &Cut::ALL, Writes::All, |_| true)
            .await?;
        least * Cut::ALL.len()
    } else if gangs {
        let (lives, least) = self::gangs(kind);
        running
            .run(&lives, &[Cut::After], Writes::All, of_a_group)
            .await?;
        least
    } else {
        running
            .run(&short, &[Cut::After], Writes::New, |_| true)
            .await?;
        least
    };
    Ok(Some((running.end().await?, least)))
}

/// Same as [`sweep`] with a kill at one write of each class; the rest depends on the successor.
async fn pairs(kind: Kind, successor: Successor) -> Result<Option<(Figures, usize)>> {
    let choice = choice()?;
    if !is_wanted(choice.as_ref(), kind, |restart| match restart {
        None => true,
        Some(Restart::Standby) => successor == Successor::Standby,
        Some(Restart::After(_)) => successor == Successor::Itself,
        Some(Restart::Same | Restart::Again(..) | Restart::Stale(_)) => false,
    }) {
        return Ok(None);
    }
    let Some(mut running) = Sweep::begin(stages(false), setting(kind, successor)?).await? else {
        return Ok(None);
    };
    let least = if let Some(plan) = choice.as_ref().and_then(Choice::plan) {
        // Which write of its class a pair takes depends on the other life cycles of its sweep.
        running.alone(plan).await?;
        1
    } else if let Some(choice) = choice {
        running
            .pairs(&[choice.life()], |plan| choice.wants(plan))
            .await?;
        0
    } else {
        let deep = is_deep();
        // These can't end differently: only the job is deleted and its pods stay, or the workers end before the launcher exists.
        let endless = |life: &Life| {
            successor == Successor::Itself && (life.orphans() || *life == Life::Mpi(MpiLife::Waits))
        };
        let lives = Life::of(kind)
            .into_iter()
            .filter(|life| (deep || PAIRED.contains(life)) && !endless(life));
        let lives: Vec<Life> = lives.collect();
        running.pairs(&lives, |_| true).await?;
        LEAST_CLASSES * lives.len()
    };
    Ok(Some((running.end().await?, least)))
}

/// Which runs of a life cycle are sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sample {
    /// CS-2.
    Doubles,
    /// CS-4.
    Stale,
    /// CS-7.
    Reads,
}

impl Sample {
    fn holds(self, plan: &Plan) -> bool {
        match self {
            Self::Doubles => matches!(plan.restart, Restart::Again(..)),
            Self::Stale => matches!(plan.restart, Restart::Stale(_)),
            Self::Reads => plan.restart == Restart::Same && Cut::READS.contains(&plan.cut),
        }
    }
}

/// Samples one life cycle of each kind: all kinds in parallel, or in a deep run more of each, or all, one kind after another.
async fn samples(of: Sample) -> Result<()> {
    let all = EVERY_KIND.map(|(kind, life)| Box::pin(sample(of, kind, life)));
    let at_once = if is_deep() { 1 } else { EVERY_KIND.len() };
    let mut all = stream::iter(all).buffer_unordered(at_once);
    while let Some(came) = all.next().await {
        assert_nobody_can_tell(came?);
    }
    Ok(())
}

async fn sample(of: Sample, kind: Kind, life: Life) -> Result<Option<(Figures, usize)>> {
    let choice = choice()?;
    let setting = Setting {
        reads: of == Sample::Reads,
        ..setting(kind, Successor::Itself)?
    };
    if let Some(choice) = choice {
        let plan = choice.plan().filter(|plan| of.holds(plan));
        let Some(plan) = plan.filter(|_| choice.kind() == kind) else {
            return Ok(None);
        };
        let Some(mut running) = Sweep::begin(1, setting).await? else {
            return Ok(None);
        };
        running.alone(plan).await?;
        return Ok(Some((running.end().await?, 1)));
    }
    let deep = is_deep();
    let Some(mut running) = Sweep::begin(stages(true), setting).await? else {
        return Ok(None);
    };
    let most = match of {
        _ if !deep => FEW,
        Sample::Doubles => PAIRS / EVERY_KIND.len(),
        Sample::Stale | Sample::Reads => usize::MAX,
    };
    let wanted = match of {
        Sample::Doubles => running.doubles(&[life], most).await?,
        Sample::Stale => running.stale(&[life], most).await?,
        Sample::Reads => running.reads(&[life], most).await?,
    };
    eprintln!("{of:?} of {}:", kind.name);
    let figures = running.end().await?;
    // When all runs are wanted, none is left to replace one that did not come again.
    let missed = if most == usize::MAX {
        figures.missed.len()
    } else {
        0
    };
    assert!(wanted >= FEW, "{wanted} runs of {}", kind.name);
    Ok(Some((figures, wanted - missed)))
}

fn assert_nobody_can_tell(came: Option<(Figures, usize)>) {
    let Some((figures, least)) = came else {
        return;
    };
    eprintln!("{figures}");
    for missed in &figures.missed {
        eprintln!("  not met again: {missed:?}");
    }
    assert!(
        figures.failures.is_empty(),
        "{}",
        figures.failures.join("\n\n")
    );
    assert!(
        figures.runs() >= least,
        "{} runs, not met: {:?}",
        figures.runs(),
        figures.missed
    );
    // Which writes follow a restart is chance; another run has replaced such a run.
    let mut missed = figures.missed.clone();
    missed.retain(|missed| missed.is_regular && !missed.plan.contains(",Again-"));
    // A short sweep may have one of each sort.
    let most = figures.runs().div_ceil(WRITES_PER_MISSED).max(2);
    assert!(missed.len() <= most, "{missed:?}");
    // A group's own controller writes as well, so a patch may conflict and come again.
    let again = ",patch:podgroups::2";
    let by_chance = [
        ":counts:",
        ":configmaps:",
        again,
        ",get:",
        ",list:",
        ",watch:",
    ];
    let of_chance = |missed: &Missed| by_chance.iter().any(|part| missed.plan.contains(part));
    assert!(missed.iter().all(of_chance), "{missed:?}");
}

#[tokio::test]
async fn cs1_s_01_to_s_14_killed_around_any_write_a_job_ends_as_if_nothing_had_happened()
-> Result<()> {
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
async fn cs1_s_01_to_s_14_killed_around_any_write_a_tf_job_that_loses_a_node_ends_as_if_nothing_had_happened()
-> Result<()> {
    assert_nobody_can_tell(sweep(TENSORFLOW, false).await?);
    Ok(())
}

#[tokio::test]
async fn cs1_s_01_to_s_14_killed_around_any_write_an_xgboost_job_with_an_evicted_pod_ends_as_if_nothing_had_happened()
-> Result<()> {
    assert_nobody_can_tell(sweep(XGBOOST, false).await?);
    Ok(())
}

#[tokio::test]
async fn cs1_s_01_to_s_14_killed_around_any_write_a_paddle_job_whose_worker_is_replaced_ends_as_if_nothing_had_happened()
-> Result<()> {
    assert_nobody_can_tell(sweep(PADDLE, false).await?);
    Ok(())
}

#[tokio::test]
async fn cs1_s_01_to_s_14_killed_around_any_write_a_jax_job_that_loses_a_node_ends_as_if_nothing_had_happened()
-> Result<()> {
    assert_nobody_can_tell(sweep(JAX, false).await?);
    Ok(())
}

#[tokio::test]
async fn s_09_killed_around_any_write_a_gang_is_neither_leaked_nor_lost() -> Result<()> {
    let at_once = if is_deep() { 1 } else { TRAINING.len() };
    let all = TRAINING.map(|kind| Box::pin(sweep(kind, true)));
    let mut all = stream::iter(all).buffer_unordered(at_once);
    while let Some(came) = all.next().await {
        assert_nobody_can_tell(came?);
    }
    Ok(())
}

#[tokio::test]
async fn cs1_s_12_killed_around_any_write_an_mpi_job_ends_as_if_nothing_had_happened() -> Result<()>
{
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

#[tokio::test]
async fn cs1_s_13_killed_around_any_write_an_application_ends_as_if_nothing_had_happened()
-> Result<()> {
    assert_nobody_can_tell(sweep(SPARK, false).await?);
    Ok(())
}

#[tokio::test]
async fn s_13_whichever_write_kills_the_leader_its_standby_ends_the_application_as_if_nothing_had_happened()
-> Result<()> {
    assert_nobody_can_tell(pairs(SPARK, Successor::Standby).await?);
    Ok(())
}

#[tokio::test]
async fn s_13_whatever_happens_while_the_operator_is_dead_the_application_comes_to_its_end()
-> Result<()> {
    assert_nobody_can_tell(pairs(SPARK, Successor::Itself).await?);
    Ok(())
}

#[tokio::test]
async fn cs2_i_26_killed_again_within_three_writes_after_its_restart_the_job_ends_as_if_nothing_had_happened()
-> Result<()> {
    samples(Sample::Doubles).await
}

#[tokio::test]
async fn cs4_an_operator_that_comes_back_to_old_lists_changes_nothing_that_is_newer() -> Result<()>
{
    samples(Sample::Stale).await
}

#[tokio::test]
async fn cs7_whichever_read_fails_once_the_job_ends_as_if_nothing_had_happened() -> Result<()> {
    samples(Sample::Reads).await
}
