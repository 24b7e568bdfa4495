//! A namespace, a proxy and an operator for sequential runs.

use std::cell::RefCell;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use training_testkit::kubelet::lockstep;
use training_testkit::proxy::{Proxy, Record};
use training_testkit::wait::{HANG, Seen, eventually};

use super::change;
use super::cutter::{CUT, Cutter, RunState, of_a_job};
use super::ending::Ending;
use super::operators::{Operators, Setting};
use super::point::{Key, Keys, Plan, Restart};
use crate::World;
use crate::lives::{Comparison, Life, StepRunner};

/// The quiet period after which a run that is not compared counts as over.
const QUIET: Duration = Duration::from_secs(1);
/// The same for a run that has already reached the expected result. The stage checks all of its runs once more at its end.
const SHORT_QUIET: Duration = Duration::from_millis(150);
/// The quiet period before the final check of all runs of a stage.
const LONG_QUIET: Duration = Duration::from_millis(1_500);
/// The polling interval for the operator's death.
const POLL: Duration = Duration::from_millis(2);
/// The number of requests that a failed run prints.
const LAST_REQUESTS: usize = 60;
/// The pause before each comparison. A comparison costs at least three lists, so none is made while the operator writes.
const PAUSE: Duration = Duration::from_millis(80);

/// The environment of runs. The jobs of earlier runs stay, so that each start of the operator meets
/// them too, and they are compared once more at the end.
pub struct Stage {
    world: World,
    proxy: Proxy,
    operators: Operators,
    setting: Setting,
    past: Vec<Past>,
}

/// A finished run.
struct Past {
    job: String,
    what: String,
    comparison: Comparison,
    /// The number of additional Secrets that are allowed.
    secrets: usize,
    ending: Ending,
}

/// One run.
#[derive(Debug)]
pub struct Run {
    /// Its final state.
    pub ending: Ending,
    /// Its writes.
    pub written: Vec<Key>,
    /// Its reads.
    pub read: Vec<Key>,
    /// Whether all cuts were made. If the request doesn't occur, there is no cut.
    pub cut: bool,
}

impl Stage {
    /// Creates a stage with its own operator; `None` on a cluster with its own kubelet.
    pub async fn start(setting: Setting) -> Result<Option<Self>> {
        let Some(world) = World::of(setting.kind, "sweep", lockstep()).await? else {
            return Ok(None);
        };
        let (proxy, kubeconfig) = world.proxy().await?;
        let operators = Operators::start(&world, &kubeconfig, setting).await?;
        Ok(Some(Self {
            world,
            proxy,
            operators,
            setting,
            past: Vec::new(),
        }))
    }

    /// Returns its number of runs.
    pub fn runs(&self) -> usize {
        self.past.len()
    }

    /// Runs a life cycle without a cut.
    pub async fn undisturbed(&mut self, life: Life) -> Result<Run> {
        Box::pin(self.live(life, None, None)).await
    }

    /// Runs a plan, and compares the result with an undisturbed run.
    pub async fn disturbed(&mut self, plan: &Plan, undisturbed: &Ending) -> Result<Run> {
        Box::pin(self.live(plan.life, Some(plan), Some(undisturbed))).await
    }

    async fn live(
        &mut self,
        life: Life,
        plan: Option<&Plan>,
        undisturbed: Option<&Ending>,
    ) -> Result<Run> {
        let what = plan.map_or_else(|| format!("{life}, undisturbed"), Plan::to_string);
        // Unique in all texts, so that it can be removed from them.
        let job = format!("x{:03}q", self.past.len());
        let (world, proxy, gangs) = (&self.world, &self.proxy, self.setting.gangs);
        world.kubelet.finish_deletes(true);
        if self.setting.reads {
            // The former operator's reads are not part of this run.
            self.operators.kill()?;
            proxy.accept().await?;
        }
        proxy.clear_rules();
        proxy.clear_records();
        let held = life.held(&job);
        let run = RunState::new();
        let actor = StepRunner {
            world,
            name: &job,
            held: held.as_ref(),
            happenings: None,
        };
        let cutter = Cutter::new(
            proxy,
            &mut self.operators,
            &run,
            &actor,
            plan,
            self.setting.reads,
        );
        let late = plan.is_some_and(|p| matches!(p.restart, Restart::After(_)));
        let take = async || Ending::take(world, &job, gangs).await;
        let until_settled = async || {
            // Under load, clean-up may follow a job's end late.
            world.auditor.until_settled().await?;
            until_quiet(&run, QUIET).await
        };
        let whole = async {
            while !run.begun.get() {
                tokio::time::sleep(POLL).await;
            }
            if late {
                live_until_the_cut(life, &actor, &run).await?;
                change::lead_to_end(&actor).await?;
                until_settled().await?;
                return without_terminating_pods(&take).await;
            }
            life.run(&actor).await?;
            match undisturbed {
                None => until_settled().await?,
                Some(undisturbed) => {
                    until_like(&take, life, &run, undisturbed).await?;
                }
            }
            take().await
        };
        let ending = tokio::select! {
            ending = whole => ending,
            end = cutter.run() => end.and_then(|()| anyhow::bail!("nobody watches the writes")),
        };
        if ending.is_err() {
            print_last(&self.proxy.records(), &what);
        }
        let ending = ending.with_context(|| what.clone())?;
        self.proxy.assert_guarded().with_context(|| what.clone())?;
        self.assert_allowed().with_context(|| what.clone())?;
        let mut reads = Keys::default();
        let records = self.proxy.records();
        let read = records
            .iter()
            .filter(|record| !record.call.is_write() && of_a_job(&record.call))
            .map(|record| reads.next(&record.call, &job))
            .collect();
        let expected = undisturbed.filter(|_| !late).unwrap_or(&ending).clone();
        self.past.push(Past {
            job,
            what,
            // A run that was driven to its own end is compared with that.
            comparison: if late {
                Comparison::Exact
            } else {
                life.comparison()
            },
            secrets: run.secrets.get(),
            ending: expected,
        });
        Ok(Run {
            ending,
            written: run.written.take(),
            read,
            cut: run.cut.get(),
        })
    }

    /// I-46: asserts that the role allows all requests.
    fn assert_allowed(&self) -> Result<()> {
        for record in self.proxy.records() {
            let denied = record.code == Some(403) && record.rule.as_deref() != Some(CUT);
            ensure!(!denied, "I-46: {} was denied", record.call);
        }
        Ok(())
    }

    /// Ends the stage: checks all of its runs once more, and returns the failures.
    pub async fn strike(self) -> Result<Vec<String>> {
        let run = RunState::new();
        // Leases are always renewed.
        let counts = || {
            let mut counts = self.proxy.counts();
            counts.retain(|call, _| !call.contains("leases"));
            counts
        };
        let seen = RefCell::new(counts());
        eventually("the operator to rest", HANG, async || {
            let counts = counts();
            if counts != *seen.borrow() {
                run.last.set(tokio::time::Instant::now());
                *seen.borrow_mut() = counts;
            }
            Ok(if run.last.get().elapsed() >= LONG_QUIET {
                Seen::Yes(())
            } else {
                Seen::NotYet("it still asks".into())
            })
        })
        .await?;
        let mut wrong = Vec::new();
        for past in &self.past {
            let ending = Ending::take(&self.world, &past.job, self.setting.gangs).await?;
            let difference = ending.difference(&past.ending, past.comparison, past.secrets);
            if !difference.is_empty() {
                wrong.push(format!("{}, looked at again:\n{difference}", past.what));
            }
        }
        let mut broken = Vec::new();
        for operator in self.operators.members() {
            broken.extend(self.world.assert_clean(operator).await.err());
        }
        for broken in broken {
            let jobs: Vec<String> = self
                .past
                .iter()
                .map(|past| format!("{} is {}", past.job, past.what))
                .collect();
            wrong.push(format!("{broken:#}\nwhere {}", jobs.join("; ")));
        }
        // O5: the only secret of the process.
        let token = self.world.control.token(&self.world.kind.user()).await?;
        if self.operators.members().any(|o| o.log().contains(&token)) {
            wrong.push("I-51: the token is in the log".to_owned());
        }
        Ok(wrong)
    }
}

/// Runs a life cycle until the operator dies. If the write doesn't occur, runs it to its end.
async fn live_until_the_cut(life: Life, actor: &StepRunner<'_>, run: &RunState) -> Result<()> {
    let dies = async {
        while !run.dying.get() {
            tokio::time::sleep(POLL).await;
        }
    };
    tokio::select! {
        biased;
        () = dies => {}
        lived = life.run(actor) => {
            lived?;
            // The very last write may be in flight.
            until_quiet(run, SHORT_QUIET).await?;
        }
    }
    run.abandoned.set(true);
    while run.dying.get() {
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// Prints the last requests of a failed run.
fn print_last(records: &[Record], run: &str) {
    eprintln!("the last requests of {run}:");
    let Some(last) = records.last() else { return };
    let first = records.len().saturating_sub(LAST_REQUESTS);
    for Record { call, code, at, .. } in &records[first..] {
        let before = last.at.duration_since(*at).as_secs_f64();
        eprintln!("  -{before:.3} s {call}: {code:?}");
    }
}

async fn until_quiet(run: &RunState, quiet: Duration) -> Result<()> {
    eventually("the operator to rest", HANG, async || {
        Ok(if run.last.get().elapsed() >= quiet {
            Seen::Yes(())
        } else {
            Seen::NotYet("it still writes".into())
        })
    })
    .await
}

/// Returns the final state once no pod is terminating: a pod that was deleted shortly before its job ended may outlive the last write.
async fn without_terminating_pods(take: impl AsyncFn() -> Result<Ending>) -> Result<Ending> {
    eventually("every terminating pod to end", HANG, async || {
        let ending = take().await?;
        Ok(if ending.has_terminating_pods() {
            Seen::NotYet("pods are terminating".into())
        } else {
            Seen::Yes(ending)
        })
    })
    .await
}

/// Waits until a run has reached the expected result, and no writes follow.
async fn until_like(
    take: impl AsyncFn() -> Result<Ending>,
    life: Life,
    run: &RunState,
    undisturbed: &Ending,
) -> Result<()> {
    let rests = || run.last.get().elapsed() >= SHORT_QUIET && !run.dying.get();
    eventually("the end of the undisturbed run", HANG, async || {
        tokio::time::sleep(PAUSE).await;
        if !rests() {
            return Ok(Seen::NotYet("the operator doesn't rest yet".into()));
        }
        let ending = take().await?;
        let difference = ending.difference(undisturbed, life.comparison(), run.secrets.get());
        Ok(if difference.is_empty() && rests() {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("\n{difference}"))
        })
    })
    .await
}
