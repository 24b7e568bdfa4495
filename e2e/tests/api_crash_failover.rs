//! CS-6 and the second form of CS-4: two replicas alternate as leader while many jobs run.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::World;
use e2e::lives::{CleanPods, Life};
use e2e::sweep::Ending;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use training_testkit::is_deep;
use training_testkit::kubelet::lockstep;
use training_testkit::operator::OperatorProcess;
use training_testkit::proxy::{Action, Call, Proxy, Rule};
use training_testkit::wait::{HANG, Seen, eventually};

/// Short, but a replica that pauses for a second or two keeps it.
const LEASE: [&str; 3] = ["4s", "3s", "300ms"];
/// Jobs that run at the same time.
const AT_ONCE: usize = 6;
/// The writes to jobs that a leader makes before its fault.
const WRITES: usize = 4;
/// An undisturbed job has settled when it has not changed for this long.
const QUIET: Duration = Duration::from_secs(1);

/// The life cycles of the jobs, in turn.
const LIVES: [Life; 5] = [
    Life::Succeeds(CleanPods::All),
    Life::RetryableExit,
    Life::Suspended,
    Life::Evicted,
    Life::Elastic,
];

/// A fault that costs a leader its lease.
#[derive(Clone, Copy, Debug)]
enum Blow {
    /// SIGKILL; a later restart.
    Kill,
    /// SIGSTOP, then SIGCONT.
    Freeze,
    /// No network for a while.
    CutOff,
    /// SIGTERM: it releases the lease; a later restart.
    Terminate,
}

/// A series of faults of leaders.
#[derive(Clone, Copy, Debug)]
struct Storm {
    /// Applied in turn.
    blows: &'static [Blow],
    /// The maximum number of faults.
    most: usize,
    /// The delay after a leader's last awaited write.
    pause: Duration,
}

impl Storm {
    /// Each fault once; in a deep run until all jobs are done.
    fn of(blows: &'static [Blow], pause: Duration) -> Self {
        let deep = is_deep();
        Self {
            blows,
            most: if deep { usize::MAX } else { blows.len() },
            pause: if deep { pause } else { Duration::ZERO },
        }
    }
}

struct Replica {
    proxy: Proxy,
    process: OperatorProcess,
}

impl Replica {
    async fn start(world: &World, lag: Option<Duration>) -> Result<Self> {
        let (proxy, kubeconfig) = world.proxy().await?;
        if let Some(lag) = lag {
            let of_jobs = |call: &Call| call.is_watch() && call.resource != "leases";
            proxy.add(&Rule::new("lag", Action::DelayEvents(lag), of_jobs));
        }
        let options = world.options(&kubeconfig);
        let options = options.elects(world.namespace(), LEASE);
        Ok(Self {
            process: OperatorProcess::start(options).await?,
            proxy,
        })
    }

    /// The times of its successful writes to jobs.
    fn wrote(&self) -> Vec<tokio::time::Instant> {
        let records = self.proxy.records().into_iter();
        let good = |code: Option<u16>| code.is_some_and(|code| code < 300);
        records
            .filter(|record| record.call.is_job_write() && good(record.code))
            .map(|record| record.at)
            .collect()
    }

    async fn until_wrote(&self, writes: usize) -> Result<()> {
        let before = self.wrote().len();
        eventually("the leader to write", HANG, async || {
            let since = self.wrote().len() - before;
            Ok(if since >= writes {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{since} writes"))
            })
        })
        .await
    }

    async fn strike(&mut self, blow: Blow) -> Result<()> {
        match blow {
            Blow::Kill => self.process.kill(),
            Blow::Freeze => self.process.freeze(),
            Blow::CutOff => {
                self.proxy.refuse();
                Ok(())
            }
            Blow::Terminate => {
                let ended = self.process.terminate(HANG).await?;
                ensure!(ended.success(), "{ended}");
                Ok(())
            }
        }
    }

    async fn restore(&mut self, blow: Blow) -> Result<()> {
        match blow {
            Blow::Kill | Blow::Terminate => self.process.restart().await,
            Blow::Freeze => self.process.thaw(),
            Blow::CutOff => self.proxy.accept().await,
        }
    }
}

/// How each life cycle ends with a single replica without faults.
async fn undisturbed() -> Result<Option<Vec<Ending>>> {
    let Some(world) = World::start("calm", lockstep()).await? else {
        return Ok(None);
    };
    let operator = world.operator().await?;
    let mut endings = Vec::new();
    for (n, life) in LIVES.into_iter().enumerate() {
        let name = name(n);
        life.run(&world.actor(&name)).await?;
    }
    tokio::time::sleep(QUIET).await;
    for n in 0..LIVES.len() {
        endings.push(Ending::take(&world, &name(n), false).await?);
    }
    world.assert_clean(&operator).await?;
    Ok(Some(endings))
}

/// A name that appears nowhere else, not even in part.
fn name(number: usize) -> String {
    format!("x{number:03}q")
}

/// Runs this many jobs while one leader after another fails.
async fn storm(jobs: usize, storm: Storm, lag: Option<Duration>) -> Result<()> {
    let Some(endings) = undisturbed().await? else {
        return Ok(());
    };
    let Some(world) = World::start("failover", lockstep()).await? else {
        return Ok(());
    };
    let mut leader = Replica::start(&world, None).await?;
    leader.process.until_leads(true).await?;
    let mut standby = Replica::start(&world, lag).await?;
    let lived = stream::iter(0..jobs).map(|number| {
        let world = &world;
        async move {
            let (name, life) = (name(number), LIVES[number % LIVES.len()]);
            let actor = world.actor(&name);
            let led = life.run(&actor).await;
            led.with_context(|| format!("{name} ({life})"))
        }
    });
    let mut struck: BTreeMap<String, usize> = BTreeMap::new();
    let mut slowest = Duration::ZERO;
    {
        let lived = lived.buffer_unordered(AT_ONCE).try_collect::<Vec<()>>();
        let strike = async {
            for blow in storm.blows.iter().cycle().take(storm.most) {
                leader.until_wrote(WRITES).await?;
                tokio::time::sleep(storm.pause).await;
                let begun = Instant::now();
                leader.strike(*blow).await?;
                standby.process.until_leads(true).await?;
                slowest = slowest.max(begun.elapsed());
                *struck.entry(format!("{blow:?}")).or_default() += 1;
                leader.restore(*blow).await?;
                std::mem::swap(&mut leader, &mut standby);
            }
            anyhow::Ok(())
        };
        let mut lived = std::pin::pin!(lived);
        tokio::select! {
            lived = &mut lived => drop(lived?),
            end = strike => {
                end?;
                lived.await?;
            }
        }
    }
    let changes: usize = struck.values().sum();
    eprintln!(
        "failover: {jobs} jobs, {changes} changes of the leader ({struck:?}), the slowest took {slowest:?}"
    );
    ensure!(changes >= storm.blows.len(), "{struck:?}");
    // The last fault may still hold a replica.
    for replica in [&mut leader, &mut standby] {
        replica.process.thaw()?;
        replica.proxy.accept().await?;
    }
    for number in 0..jobs {
        let expected = &endings[number % LIVES.len()];
        let (name, life) = (name(number), LIVES[number % LIVES.len()]);
        eventually(
            &format!("{name} ({life}) to end as without a fault"),
            HANG,
            async || {
                let ending = Ending::take(&world, &name, false).await?;
                let difference = ending.difference(expected, life.comparison(), 0);
                Ok(if difference.is_empty() {
                    Seen::Yes(())
                } else {
                    Seen::NotYet(difference)
                })
            },
        )
        .await?;
    }
    // Writers never overlap: the writer changes no more often than the leader.
    let mut writes: Vec<(tokio::time::Instant, usize)> = Vec::new();
    for (who, replica) in [&leader, &standby].into_iter().enumerate() {
        writes.extend(replica.wrote().into_iter().map(|at| (at, who)));
        replica.proxy.assert_guarded()?;
        replica.process.assert_no_panic()?;
    }
    writes.sort_unstable();
    let turns = writes.windows(2).filter(|two| two[0].1 != two[1].1).count();
    ensure!(
        turns <= changes + 1,
        "{turns} turns of the writer with {changes} changes of the leader"
    );
    world.auditor.assert_clean().await
}

#[tokio::test]
async fn cs6_with_leaders_that_die_freeze_and_are_cut_off_no_job_loses_or_doubles_anything()
-> Result<()> {
    let blows = &[Blow::Kill, Blow::Freeze, Blow::CutOff];
    let jobs = if is_deep() { 200 } else { 20 };
    storm(jobs, Storm::of(blows, Duration::from_secs(5)), None).await
}

#[tokio::test]
async fn cs4_with_a_replica_that_lags_behind_no_job_loses_or_doubles_anything() -> Result<()> {
    let storm_of = Storm::of(&[Blow::Terminate; 3], Duration::from_secs(3));
    let ages: &[(u64, usize)] = if is_deep() {
        &[(1, 40), (10, 20), (60, 5)]
    } else {
        &[(1, 10)]
    };
    for (lag, jobs) in ages {
        storm(*jobs, storm_of, Some(Duration::from_secs(*lag))).await?;
    }
    Ok(())
}
