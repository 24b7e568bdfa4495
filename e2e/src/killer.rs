//! Kills an operator at chosen moments: right after a write was applied and before its response, or right after a change of
//! its pods.

use std::collections::{BTreeSet, HashMap};

use anyhow::Result;
use fastrand::Rng;
use serde_json::Value;
use tokio::sync::mpsc::UnboundedReceiver;
use training_testkit::operator::OperatorProcess;
use training_testkit::proxy::{Applied, Call, Proxy};

/// The number of pods and services of a job with one master and two workers.
const CREATES: usize = 6;
/// The writes that every job has before its last one: its creates, and the conditions `Created` and `Running`.
const EARLY_WRITES: usize = CREATES + 2;
/// The minimum number of deletes of a job that deletes anything at its end: two pods and two services.
const LEAST_DELETES: usize = 4;
/// The number of kills after early writes per job, in addition to one among its creates.
const MORE_KILLS: usize = 3;
/// The share of pod changes that are followed by a kill.
const AFTER_HAPPENINGS: f64 = 0.25;

/// The number of kills so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kills {
    /// Kills right after an applied write of an unfinished job.
    pub after_writes: usize,
    /// Those of them after the job's first create and before its last.
    pub between_creates: usize,
    /// Kills right after a delete of a job that has ended, while others are still to come.
    pub while_cleaning: usize,
    /// Kills right after a change of an unfinished job's pods.
    pub after_happenings: usize,
}

impl Kills {
    /// Returns the kills that hit an unfinished job.
    pub fn total(&self) -> usize {
        self.after_writes + self.after_happenings
    }
}

/// Decides when to kill, kills, and restarts the operator.
pub struct Killer<'a> {
    proxy: &'a Proxy,
    operator: &'a mut OperatorProcess,
    applied: UnboundedReceiver<Applied>,
    happenings: UnboundedReceiver<String>,
    random: Rng,
    jobs: HashMap<String, Progress>,
    kills: &'a mut Kills,
}

/// Whether to kill after a write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KillDecision {
    LetLive,
    BetweenCreates,
    CleaningUp,
    Otherwise,
}

struct Progress {
    writes: usize,
    creates: usize,
    ended: bool,
    /// The number of deletes after its end.
    last_deletes: usize,
    /// The indices of writes that are followed by a kill.
    after: BTreeSet<usize>,
    /// The index of the delete after its end that is followed by a kill.
    after_delete: usize,
}

impl<'a> Killer<'a> {
    /// Creates a killer for this operator behind this proxy; the seed determines its decisions.
    pub fn new(
        proxy: &'a Proxy,
        operator: &'a mut OperatorProcess,
        happenings: UnboundedReceiver<String>,
        seed: u64,
        kills: &'a mut Kills,
    ) -> Self {
        let applied = proxy.announce_in_turn("killer", Call::is_job_write);
        let random = Rng::with_seed(seed);
        Self {
            proxy,
            operator,
            applied,
            happenings,
            random,
            jobs: HashMap::new(),
            kills,
        }
    }

    /// Runs forever; returns only on errors.
    pub async fn run(mut self) -> Result<()> {
        loop {
            tokio::select! {
                Some(write) = self.applied.recv() => {
                    match self.counted(&write) {
                        KillDecision::LetLive => write.release(),
                        KillDecision::CleaningUp => {
                            self.kills.while_cleaning += 1;
                            self.kill(Some(write)).await?;
                        }
                        decision => {
                            self.kills.after_writes += 1;
                            self.kills.between_creates += usize::from(decision == KillDecision::BetweenCreates);
                            self.kill(Some(write)).await?;
                        }
                    }
                }
                Some(job) = self.happenings.recv() => {
                    let unfinished = self.jobs.get(&job).is_some_and(|job| !job.ended);
                    if unfinished && self.random.f64() < AFTER_HAPPENINGS {
                        self.kills.after_happenings += 1;
                        self.kill(None).await?;
                    }
                }
                else => return Ok(()),
            }
        }
    }

    /// Counts a write, and returns whether to kill the operator now.
    fn counted(&mut self, write: &Applied) -> KillDecision {
        if write.code >= 300 {
            return KillDecision::LetLive;
        }
        let random = &mut self.random;
        let job = self
            .jobs
            .entry(job_of(&write.call).to_owned())
            .or_insert_with(|| Progress::planned(random));
        job.writes += 1;
        if write.call.verb == "create" {
            job.creates += 1;
        }
        if job.ended && write.call.verb == "delete" {
            job.last_deletes += 1;
            let hit = job.last_deletes == job.after_delete;
            return if hit {
                KillDecision::CleaningUp
            } else {
                KillDecision::LetLive
            };
        }
        job.ended |= ends(&write.call);
        if job.ended || !job.after.contains(&job.writes) {
            KillDecision::LetLive
        } else if write.call.verb == "create" && job.creates < CREATES {
            KillDecision::BetweenCreates
        } else {
            KillDecision::Otherwise
        }
    }

    async fn kill(&mut self, write: Option<Applied>) -> Result<()> {
        self.operator.kill()?;
        // Data of the dead process on its connections must not reach the API server: closes them before the next write.
        self.proxy.refuse();
        self.proxy.accept().await?;
        drop(write);
        // Also applied, while the operator was killed for another reason.
        while let Ok(write) = self.applied.try_recv() {
            self.counted(&write);
        }
        self.operator.restart().await
    }
}

impl Progress {
    fn planned(random: &mut Rng) -> Self {
        // The creates of a job are among its first writes, so a small index most likely hits one of them. The test asserts how
        // many did.
        let mut after = BTreeSet::from([random.usize(1..CREATES)]);
        while after.len() < 1 + MORE_KILLS {
            after.insert(random.usize(1..=EARLY_WRITES));
        }
        Self {
            writes: 0,
            creates: 0,
            ended: false,
            last_deletes: 0,
            after,
            after_delete: random.usize(1..LEAST_DELETES),
        }
    }
}

/// Returns the job of an object. The tests' jobs have names without a dash.
fn job_of(call: &Call) -> &str {
    call.name.split('-').next().unwrap_or_default()
}

/// Returns whether a write stores the end of a job.
fn ends(call: &Call) -> bool {
    let conditions = call.body["status"]["conditions"].as_array();
    let list = conditions.map_or(&[][..], Vec::as_slice);
    list.iter().any(|condition: &Value| {
        let terminal = condition["type"] == "Succeeded" || condition["type"] == "Failed";
        terminal && condition["status"] == "True"
    })
}
