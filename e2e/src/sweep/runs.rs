//! All runs of a sweep, and their figures.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures::future::join_all;
use tokio::sync::Mutex;

use super::change::Change;
use super::ending::Ending;
use super::operators::{Setting, Successor};
use super::point::{COUNTS, Cut, Key, Plan, Restart};
use super::stage::{Run, Stage};
use crate::lives::Life;

/// The number of undisturbed runs per life cycle: differences between them are normal.
const UNDISTURBED: usize = 3;
/// The number of runs after which a stage is replaced. Each start of an operator meets the jobs of all of its runs.
const RUNS_PER_STAGE: usize = 20;
/// CS-2: the second kill is within so many writes after the restart.
const SOON: usize = 3;
/// CS-4: the ages of stale lists, in writes.
const AGES: [usize; 3] = [1, 2, 4];
/// How often a run is retried whose write did not occur: counts may be stored in one write or in two.
const TRIES: usize = 3;
/// The number of failures after which a sweep stops, since a defect shows in many runs.
const MOST_FAILURES: usize = 10;

/// The figures of a sweep.
#[derive(Debug, Default)]
pub struct Figures {
    /// Requests with a cut, by life cycle.
    points: BTreeMap<String, BTreeSet<Key>>,
    /// The number of runs by cut.
    cuts: BTreeMap<Cut, usize>,
    /// The number of kills in these runs.
    kills: usize,
    /// The number of runs without a cut.
    undisturbed: usize,
    /// Plans whose request did not occur after all retries.
    pub missed: Vec<Missed>,
    /// Failures, with the plans that replay them.
    pub failures: Vec<String>,
    took: Duration,
}

/// A plan whose request did not occur after all retries.
#[derive(Clone, Debug)]
pub struct Missed {
    /// The plan as text.
    pub plan: String,
    /// Whether every undisturbed run has the request: whether one occurs that only some have is chance.
    pub is_regular: bool,
}

impl Figures {
    /// Returns the number of runs with a cut.
    pub fn runs(&self) -> usize {
        self.cuts.values().sum()
    }

    fn count_point(&mut self, plan: &Plan) {
        let points = self.points.entry(plan.life.to_string()).or_default();
        points.insert(plan.key.clone());
    }

    fn count_run(&mut self, plan: &Plan) {
        *self.cuts.entry(plan.cut).or_default() += 1;
        self.kills += plan.kills();
    }

    /// Returns the number of requests with a cut.
    pub fn points(&self) -> usize {
        self.points.values().map(BTreeSet::len).sum()
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (life, points) in &self.points {
            writeln!(f, "  {life}: {} points", points.len())?;
        }
        let cuts: Vec<String> = self
            .cuts
            .iter()
            .map(|(cut, runs)| format!("{cut} {runs}"))
            .collect();
        write!(
            f,
            "sweep: {} lives, {} points, {} runs with all their cuts ({}), {} kills, {} undisturbed runs, \
             {} not met again, {} failures, {:.0} s",
            self.points.len(),
            self.points(),
            self.runs(),
            cuts.join(", "),
            self.kills,
            self.undisturbed,
            self.missed.len(),
            self.failures.len(),
            self.took.as_secs_f64()
        )
    }
}

/// The results of a life cycle's undisturbed runs.
struct Learned {
    life: Life,
    ending: Ending,
    keys: BTreeSet<Key>,
    reads: BTreeSet<Key>,
    /// The writes of each run, in order.
    orders: Vec<Vec<Key>>,
}

impl Learned {
    /// Returns true if every undisturbed run has the request.
    fn always_has(&self, key: &Key) -> bool {
        self.reads.contains(key) || self.orders.iter().all(|order| order.contains(key))
    }

    /// Returns how many writes follow a write at least: counts may be stored together with other changes.
    fn follow(&self, key: &Key) -> usize {
        let follow = self.orders.iter().map(|order| {
            let mut order = order.iter().skip_while(|other| *other != key);
            order.next();
            order.filter(|other| other.what != COUNTS).count()
        });
        follow.min().unwrap_or_default()
    }
}

/// Which writes of its life cycles a sweep cuts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// Every write of each life cycle.
    All,
    /// Those of all undisturbed runs that no earlier life cycle has after the same changes: most life cycles begin alike, and whether
    /// counts take one write more is chance.
    New,
}

/// Returns the changes before a write in each of these runs that has it: no creates, which run in parallel, and no counts, which may be
/// stored with other changes.
fn histories<'a>(orders: &'a [Vec<Key>], key: &Key) -> BTreeSet<BTreeSet<&'a Key>> {
    let changes = |order: &'a Vec<Key>| {
        let before = order.iter().take_while(|other| *other != key);
        let changes = before.filter(|other| other.verb != "create" && other.what != COUNTS);
        changes.collect()
    };
    let orders = orders.iter().filter(|order| order.contains(key));
    orders.map(changes).collect()
}

/// Returns true if one of the earlier life cycles has the write after the same changes.
fn has_met(earlier: &[Arc<Learned>], learned: &Learned, key: &Key) -> bool {
    let own = histories(&learned.orders, key);
    let mut earlier = earlier.iter();
    earlier.any(|other| !histories(&other.orders, key).is_disjoint(&own))
}

/// What undisturbed runs have shown, by kind, gangs and reads; the sweeps of this process share it. The successor is not in the key,
/// because nobody kills the operator in these runs.
type Known = BTreeMap<(&'static str, bool, bool), Lessons>;
type Lessons = Arc<Mutex<Vec<Arc<Learned>>>>;

async fn known(setting: Setting) -> Lessons {
    static KNOWN: Mutex<Known> = Mutex::const_new(Known::new());
    let key = (setting.kind.name, setting.gangs, setting.reads);
    KNOWN.lock().await.entry(key).or_default().clone()
}

/// A running sweep.
pub struct Sweep {
    setting: Setting,
    begun: Instant,
    stages: Vec<Stage>,
    figures: RefCell<Figures>,
}

impl Sweep {
    /// Creates so many stages, which run in parallel; `None` on a cluster with its own kubelet.
    pub async fn begin(stages: usize, setting: Setting) -> Result<Option<Self>> {
        let begun = Instant::now();
        let stages = join_all((0..stages).map(|_| Stage::start(setting))).await;
        let stages: Option<Vec<Stage>> = stages.into_iter().collect::<Result<_>>()?;
        Ok(stages.map(|stages| Self {
            setting,
            begun,
            stages,
            figures: RefCell::default(),
        }))
    }

    /// R1: runs each life cycle undisturbed, and then with each of these cuts at each of these writes, if the run is selected.
    pub async fn run(
        &mut self,
        lives: &[Life],
        cuts: &[Cut],
        writes: Writes,
        wanted: impl Fn(&Plan) -> bool,
    ) -> Result<()> {
        let learned = self.learn(lives).await?;
        for cut in cuts {
            let plans = learned.iter().enumerate().flat_map(|(at, of)| {
                let earlier = &learned[..at];
                let is_new = move |key: &Key| !has_met(earlier, of, key);
                let is_cut =
                    move |key: &&Key| writes == Writes::All || of.always_has(key) && is_new(key);
                of.keys.iter().filter(is_cut).map(move |key| Plan {
                    life: of.life,
                    cut: *cut,
                    key: key.clone(),
                    restart: Restart::Same,
                })
            });
            self.replay(plans.filter(&wanted).collect(), Vec::new(), &learned)
                .await?;
            // Prints progress, since all cuts together take long.
            let figures = self.figures.borrow();
            eprintln!(
                "{cut}: {} runs, {} failures so far, {:.0} s",
                figures.cuts.get(cut).copied().unwrap_or_default(),
                figures.failures.len(),
                self.begun.elapsed().as_secs_f64()
            );
        }
        Ok(())
    }

    /// R2 or R3, depending on the stages: one kill in each life cycle at one write of each class. Over all life cycles, every class
    /// meets every type of kill, and every change.
    pub async fn pairs(&mut self, lives: &[Life], wanted: impl Fn(&Plan) -> bool) -> Result<()> {
        let learned = self.learn(lives).await?;
        let successor = self.setting.successor;
        let plans = learned.iter().enumerate().flat_map(|(at, learned)| {
            let mut classes: BTreeMap<(&str, &str), Vec<&Key>> = BTreeMap::new();
            for key in &learned.keys {
                classes.entry(key.class()).or_default().push(key);
            }
            let classes = classes.into_values().enumerate();
            classes.map(move |(class, keys)| Plan {
                life: learned.life,
                cut: Cut::KILLS[(at + class) % Cut::KILLS.len()],
                key: keys[at % keys.len()].clone(),
                restart: match successor {
                    Successor::Standby => Restart::Standby,
                    Successor::Itself => {
                        Restart::After(Change::ALL[(at + class) % Change::ALL.len()])
                    }
                },
            })
        });
        self.replay(plans.filter(wanted).collect(), Vec::new(), &learned)
            .await
    }

    /// CS-2: a second kill within the first writes after the restart, at most so many of all such pairs. Returns the number of runs.
    pub async fn doubles(&mut self, lives: &[Life], most: usize) -> Result<usize> {
        let learned = self.learn(lives).await?;
        let mut plans = Vec::new();
        for learned in &learned {
            for key in &learned.keys {
                for cut in Cut::KILLS {
                    // A write that was not executed is repeated. The number of writes after an executed one depends on parallel writes,
                    // and a restarted operator may store two changes in one write: a plan may not be met.
                    let likely = match cut {
                        Cut::Before => 1,
                        _ => learned.follow(key).min(SOON),
                    };
                    plans.extend((1..=likely).flat_map(|nth| {
                        Cut::KILLS.map(|again| Plan {
                            life: learned.life,
                            cut,
                            key: key.clone(),
                            restart: Restart::Again(again, nth),
                        })
                    }));
                }
            }
        }
        self.shuffle(&mut plans);
        self.replay_some(plans, most, &learned).await
    }

    /// CS-4: an operator that is killed after a write restarts with a state before some writes, at most so many of all such runs,
    /// those after a delete first. Returns the number of runs.
    pub async fn stale(&mut self, lives: &[Life], most: usize) -> Result<usize> {
        let learned = self.learn(lives).await?;
        let plans = learned.iter().flat_map(|learned| {
            let keys = learned.keys.iter();
            keys.flat_map(|key| {
                AGES.map(|age| Plan {
                    life: learned.life,
                    cut: Cut::After,
                    key: key.clone(),
                    restart: Restart::Stale(age),
                })
            })
        });
        let mut plans: Vec<Plan> = plans.collect();
        self.shuffle(&mut plans);
        plans.sort_by_key(|plan| plan.key.verb != "delete");
        self.replay_some(plans, most, &learned).await
    }

    /// CS-7: each read of a life cycle fails once in each way, at most so many of all such runs. Returns the number of runs.
    pub async fn reads(&mut self, lives: &[Life], most: usize) -> Result<usize> {
        let learned = self.learn(lives).await?;
        let plans = learned.iter().flat_map(|learned| {
            learned.reads.iter().flat_map(|key| {
                Cut::READS.map(|cut| Plan {
                    life: learned.life,
                    cut,
                    key: key.clone(),
                    restart: Restart::Same,
                })
            })
        });
        let mut plans: Vec<Plan> = plans.collect();
        self.shuffle(&mut plans);
        self.replay_some(plans, most, &learned).await
    }

    /// Shuffles plans with the seed.
    fn shuffle(&self, plans: &mut [Plan]) {
        fastrand::Rng::with_seed(self.setting.seed).shuffle(plans);
    }

    /// Runs the first plans, at most so many; the others replace plans that are not met.
    async fn replay_some(
        &mut self,
        mut plans: Vec<Plan>,
        most: usize,
        learned: &[Arc<Learned>],
    ) -> Result<usize> {
        let spare = plans.split_off(most.min(plans.len()));
        let wanted = plans.len();
        self.replay(plans, spare, learned).await?;
        Ok(wanted)
    }

    /// Runs only this plan.
    pub async fn alone(&mut self, plan: Plan) -> Result<()> {
        let learned = self.learn(&[plan.life]).await?;
        self.replay(vec![plan], Vec::new(), &learned).await
    }

    /// Returns the results and writes of undisturbed runs of each life cycle. Makes only those runs that no sweep with such a setting has
    /// made.
    async fn learn(&mut self, lives: &[Life]) -> Result<Vec<Arc<Learned>>> {
        let known = known(self.setting).await;
        // Holds the lock during the runs, so that other sweeps wait for them and don't repeat them.
        let mut known = known.lock().await;
        let new: Vec<Life> = lives
            .iter()
            .copied()
            .filter(|life| !known.iter().any(|of| of.life == *life))
            .collect();
        let new = self.live_undisturbed(&new).await?;
        known.extend(new.into_iter().map(Arc::new));
        let of = |life: &Life| known.iter().find(|of| of.life == *life).cloned();
        let all: Option<Vec<_>> = lives.iter().map(of).collect();
        all.context("a life that nobody lived")
    }

    /// Runs each life cycle undisturbed a few times.
    async fn live_undisturbed(&mut self, lives: &[Life]) -> Result<Vec<Learned>> {
        let work: Vec<(usize, Life)> = (0..UNDISTURBED)
            .flat_map(|_| lives.iter().copied().enumerate())
            .collect();
        let setting = self.setting;
        let learned: RefCell<Vec<Vec<Run>>> =
            RefCell::new(lives.iter().map(|_| Vec::new()).collect());
        let figures = &self.figures;
        each(&mut self.stages, work, async |stage, (at, life)| {
            let run = stage.undisturbed(life).await?;
            figures.borrow_mut().undisturbed += 1;
            learned.borrow_mut()[at].push(run);
            renew(stage, setting, figures).await
        })
        .await?;
        let mut all = Vec::new();
        for (life, runs) in lives.iter().zip(learned.into_inner()) {
            let first = runs.first().context("a life that nobody lived")?;
            for run in &runs {
                let difference = run.ending.difference(&first.ending, life.comparison(), 0);
                anyhow::ensure!(
                    difference.is_empty(),
                    "{life} differs from run to run:\n{difference}"
                );
            }
            let left = first.ending.groups();
            anyhow::ensure!(
                life.orphans() || left.is_empty(),
                "{life} leaves {left:?} behind"
            );
            let keys = runs.iter().flat_map(|run| run.written.iter().cloned());
            // A read that occurs only once followed a slow response, and may not recur.
            let mut reads: BTreeSet<Key> = first.read.iter().cloned().collect();
            for run in &runs {
                reads.retain(|key| run.read.contains(key));
            }
            all.push(Learned {
                life: *life,
                ending: first.ending.clone(),
                keys: keys.collect(),
                reads,
                orders: runs.iter().map(|run| run.written.clone()).collect(),
            });
        }
        Ok(all)
    }

    /// Runs all of these plans. Spare plans replace those that are not met.
    async fn replay(
        &mut self,
        plans: Vec<Plan>,
        spare: Vec<Plan>,
        learned: &[Arc<Learned>],
    ) -> Result<()> {
        let (setting, figures) = (self.setting, &self.figures);
        let spare = &RefCell::new(VecDeque::from(spare));
        each(&mut self.stages, plans, async |stage, plan| {
            let mut next = Some(plan);
            while let Some(plan) = next.take() {
                if figures.borrow().failures.len() >= MOST_FAILURES {
                    return Ok(());
                }
                let of = learned.iter().find(|learned| learned.life == plan.life);
                let of = of.context("a life that nobody lived")?;
                figures.borrow_mut().count_point(&plan);
                match meet(stage, &plan, &of.ending).await {
                    Ok(true) => figures.borrow_mut().count_run(&plan),
                    Ok(false) => {
                        figures.borrow_mut().missed.push(Missed {
                            plan: plan.to_string(),
                            is_regular: of.always_has(&plan.key),
                        });
                        next = spare.borrow_mut().pop_front();
                    }
                    Err(error) => {
                        let text = format!(
                            "TRAINYARD_SEED={} TRAINYARD_PLAN={}/{plan}\n{error:#}",
                            setting.seed, setting.kind.name
                        );
                        eprintln!("{text}");
                        figures.borrow_mut().failures.push(text);
                        // The next run must not meet its leftovers.
                        return replace(stage, setting).await.map(drop);
                    }
                }
                renew(stage, setting, figures).await?;
            }
            Ok(())
        })
        .await
    }

    /// Checks all stages once more, and returns the figures.
    pub async fn end(self) -> Result<Figures> {
        let mut figures = self.figures.into_inner();
        for wrong in join_all(self.stages.into_iter().map(Stage::strike)).await {
            figures.failures.extend(wrong?);
        }
        figures.took = self.begun.elapsed();
        Ok(figures)
    }
}

/// Runs a plan a few times; returns whether all its cuts were made in one of the runs.
async fn meet(stage: &mut Stage, plan: &Plan, ending: &Ending) -> Result<bool> {
    for _ in 0..TRIES {
        if stage.disturbed(plan, ending).await?.cut {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Distributes all work to the stages.
async fn each<W>(
    stages: &mut [Stage],
    work: Vec<W>,
    action: impl AsyncFn(&mut Stage, W) -> Result<()>,
) -> Result<()> {
    let left = RefCell::new(VecDeque::from(work));
    let (left, action) = (&left, &action);
    let workers = stages.iter_mut().map(|stage| async move {
        loop {
            let next = left.borrow_mut().pop_front();
            match next {
                Some(work) => action(stage, work).await?,
                None => return anyhow::Ok(()),
            }
        }
    });
    join_all(workers).await.into_iter().collect()
}

/// Replaces a stage that has had enough runs.
async fn renew(stage: &mut Stage, setting: Setting, figures: &RefCell<Figures>) -> Result<()> {
    if stage.runs() >= RUNS_PER_STAGE {
        let wrong = replace(stage, setting).await?.strike().await?;
        figures.borrow_mut().failures.extend(wrong);
    }
    Ok(())
}

/// Creates another stage, and returns the former one.
async fn replace(stage: &mut Stage, setting: Setting) -> Result<Stage> {
    let new = Stage::start(setting).await?.context("no stage any more")?;
    Ok(std::mem::replace(stage, new))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(writes: &[&str]) -> Vec<Key> {
        let key = |write: &&str| {
            let (verb, what) = write.split_once(' ').unwrap_or((write, ""));
            Key {
                verb: verb.to_owned(),
                resource: "pods".to_owned(),
                what: what.to_owned(),
                nth: 1,
            }
        };
        writes.iter().map(key).collect()
    }

    #[test]
    fn a_write_is_new_after_other_changes_whatever_the_order_of_creates() {
        let first = [order(&[
            "create a",
            "create b",
            "patch Running",
            "delete a",
        ])];
        let second = [order(&[
            "create b",
            "create a",
            "patch Running",
            "patch Suspended",
            "delete a",
        ])];
        let is_new = |write: &str| {
            let key = &order(&[write])[0];
            histories(&first, key).is_disjoint(&histories(&second, key))
        };
        for (write, new) in [
            ("create a", false),
            ("create b", false),
            ("patch Running", false),
            ("patch Suspended", true),
            ("delete a", true),
        ] {
            assert_eq!(is_new(write), new, "{write}");
        }
    }
}
