//! Two replicas of which one works. Each has a proxy of its own, which tells what it asked for.

use std::time::{Duration, Instant};

use anyhow::Result;
use e2e::World;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, DeleteParams};
use tokio::sync::Mutex;
use training_testkit::builders::pytorch_job;
use training_testkit::job::counters;
use training_testkit::kubelet::lockstep;
use training_testkit::operator::OperatorProcess;
use training_testkit::proxy::{Action, Call, Gate, Proxy, Rule};
use training_testkit::wait::{HANG, Seen, eventually, holds_for};

/// The shipped ratios, scaled down so that a takeover does not take a test's time.
const LEASE: Duration = Duration::from_secs(3);
const RENEW: &str = "2s";
const RETRY: &str = "500ms";
/// Where the shipped role allows the lease to be.
const LEASE_NAMESPACE: &str = "trainyard-system";
const LEASE_NAME: &str = "pytorch-operator.trainyard.dev";

/// There is one lease, so that these tests take turns.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

struct Replica {
    proxy: Proxy,
    process: OperatorProcess,
}

impl Replica {
    async fn start(world: &World) -> Result<Self> {
        let (proxy, kubeconfig) = world.proxy().await?;
        let options = world
            .options(&kubeconfig)
            .flag("leader-elect", "true")
            .flag("leader-election-id", LEASE_NAME)
            .flag("leader-election-namespace", LEASE_NAMESPACE)
            .flag("lease-duration", &format!("{}s", LEASE.as_secs()))
            .flag("lease-renew-deadline", RENEW)
            .flag("lease-retry-period", RETRY);
        Ok(Self {
            process: OperatorProcess::start(options).await?,
            proxy,
        })
    }

    /// A standby holds no watch but that of the lease.
    fn works(&self) -> bool {
        self.proxy
            .records()
            .iter()
            .any(|record| record.call.is("watch", "pytorchjobs"))
    }

    fn job_writes(&self) -> Vec<String> {
        let records = self.proxy.records();
        let writes = records.iter().filter(|record| record.call.is_job_write());
        writes
            .map(|record| format!("{} → {:?}", record.call, record.code))
            .collect()
    }
}

/// Two replicas; the first of them leads.
async fn pair(world: &World) -> Result<(Replica, Replica)> {
    let leases: Api<Lease> = Api::namespaced(world.client.clone(), LEASE_NAMESPACE);
    // The test before may have left it to a process that was killed.
    match leases.delete(LEASE_NAME, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => {}
        outcome => {
            outcome?;
        }
    }
    let first = Replica::start(world).await?;
    until_works(&first).await?;
    let second = Replica::start(world).await?;
    assert!(!second.works(), "{:?}", second.proxy.counts());
    Ok((first, second))
}

async fn until_works(replica: &Replica) -> Result<Duration> {
    let begin = Instant::now();
    eventually("the replica to lead", HANG, async || {
        let works = replica.works();
        Ok(if works {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{:?}", replica.proxy.counts()))
        })
    })
    .await?;
    Ok(begin.elapsed())
}

async fn running_job(world: &World) -> Result<()> {
    world
        .jobs
        .create(&pytorch_job("pt").master().workers(2).build())
        .await?;
    world.kubelet.until_pods(world.namespace(), "pt", 3).await?;
    world.kubelet.all_running(world.namespace(), "pt").await?;
    let active = |job: &serde_json::Value| counters(job, "Worker").get("active") == Some(&2);
    world.jobs.until("pt", "with all active", active).await?;
    Ok(())
}

/// The end of each test: the job succeeds under whoever leads, and everything was made once.
async fn finish(world: &World, replicas: [&Replica; 2]) -> Result<()> {
    world.kubelet.all_succeeded(world.namespace(), "pt").await?;
    world.jobs.until_true("pt", "Succeeded").await?;
    let summary = world.auditor.summary();
    assert!(
        summary
            .values()
            .all(|churn| churn.creates == 1 && churn.deletes == 0),
        "{summary:?}"
    );
    for replica in replicas {
        replica.proxy.assert_guarded()?;
        world.assert_clean(&replica.process).await?;
    }
    Ok(())
}

#[tokio::test]
async fn f50_a_killed_leader_is_followed_by_the_standby() -> Result<()> {
    let _turn = ONE_AT_A_TIME.lock().await;
    let Some(world) = World::start("killed", lockstep()).await? else {
        return Ok(());
    };
    let (mut first, second) = pair(&world).await?;
    running_job(&world).await?;
    assert!(second.job_writes().is_empty(), "{:?}", second.job_writes());
    first.process.kill9()?;
    let took = until_works(&second).await?;
    eprintln!("takeover {took:?} after SIGKILL, with a lease of {LEASE:?}");
    // Back again, it waits.
    first.proxy.clear_records();
    first.process.restart().await?;
    finish(&world, [&first, &second]).await?;
    assert!(first.job_writes().is_empty(), "{:?}", first.job_writes());
    assert!(!first.works());
    Ok(())
}

#[tokio::test]
async fn f51_a_leader_that_is_told_to_end_hands_over_at_once() -> Result<()> {
    let _turn = ONE_AT_A_TIME.lock().await;
    let Some(world) = World::start("told", lockstep()).await? else {
        return Ok(());
    };
    let (mut first, second) = pair(&world).await?;
    running_job(&world).await?;
    let begin = Instant::now();
    let status = first.process.terminate(Duration::from_secs(10)).await?;
    let ended = begin.elapsed();
    assert!(status.success(), "{status}");
    until_works(&second).await?;
    eprintln!(
        "ended {ended:?} after SIGTERM, takeover after {:?}",
        begin.elapsed()
    );
    first.process.restart().await?;
    finish(&world, [&first, &second]).await
}

#[tokio::test]
async fn f52_a_leader_that_wakes_after_its_lease_writes_nothing() -> Result<()> {
    let _turn = ONE_AT_A_TIME.lock().await;
    let Some(world) = World::start("frozen", lockstep()).await? else {
        return Ok(());
    };
    let (first, second) = pair(&world).await?;
    world
        .jobs
        .create(&pytorch_job("pt").master().workers(2).build())
        .await?;
    world.kubelet.until_pods(world.namespace(), "pt", 3).await?;
    world.jobs.until_true("pt", "Created").await?;
    first.process.freeze()?;
    first.proxy.clear_records();
    // Events that would make it write wait in its sockets while it stands still.
    world.kubelet.all_running(world.namespace(), "pt").await?;
    let took = until_works(&second).await?;
    world.jobs.until_true("pt", "Running").await?;
    first.process.thaw()?;
    // Longer than anything that it may have in hand.
    holds_for(LEASE * 2, async || {
        let writes = first.job_writes();
        anyhow::ensure!(writes.is_empty(), "the woken leader wrote: {writes:?}");
        Ok(())
    })
    .await?;
    eprintln!(
        "takeover {took:?} after SIGSTOP; the woken process asked {:?}",
        first.proxy.counts()
    );
    finish(&world, [&first, &second]).await?;
    assert!(first.job_writes().is_empty(), "{:?}", first.job_writes());
    Ok(())
}

#[tokio::test]
async fn cs3_a_write_that_arrives_after_the_lease_is_refused() -> Result<()> {
    let _turn = ONE_AT_A_TIME.lock().await;
    let Some(world) = World::start("late", lockstep()).await? else {
        return Ok(());
    };
    let (first, second) = pair(&world).await?;
    world
        .jobs
        .create(&pytorch_job("pt").master().workers(2).build())
        .await?;
    world.kubelet.until_pods(world.namespace(), "pt", 3).await?;
    world.jobs.until_true("pt", "Created").await?;
    // The write about the running pods is on its way, and stays there.
    let gate = Gate::closed();
    let status = |call: &Call| call.is("patch", "pytorchjobs/status");
    let held = Rule::new("held", Action::Hold(gate.clone()), status).nth(1);
    first.proxy.add(&held);
    world.kubelet.all_running(world.namespace(), "pt").await?;
    eventually("the write to be held", HANG, async || {
        Ok(if held.hits() == 1 {
            Seen::Yes(())
        } else {
            Seen::NotYet("no write".into())
        })
    })
    .await?;
    first.process.freeze()?;
    until_works(&second).await?;
    world.jobs.until_true("pt", "Running").await?;
    let before = world.jobs.get("pt").await?;
    gate.open();
    let code = eventually("the late write to be answered", HANG, async || {
        let records = first.proxy.records();
        let late = records
            .iter()
            .find(|record| record.rule.as_deref() == Some("held"));
        Ok(match late.and_then(|record| record.code) {
            Some(code) => Seen::Yes(code),
            None => Seen::NotYet("no answer".into()),
        })
    })
    .await?;
    assert_eq!(code, 409);
    let after = world.jobs.get("pt").await?;
    assert_eq!(
        before["metadata"]["resourceVersion"],
        after["metadata"]["resourceVersion"]
    );
    first.proxy.clear_records();
    first.process.thaw()?;
    finish(&world, [&first, &second]).await?;
    assert!(first.job_writes().is_empty(), "{:?}", first.job_writes());
    Ok(())
}
