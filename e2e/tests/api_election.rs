//! Two replicas with leader election, each behind a proxy that records its requests.
//!
//! Only `make test-deep`, on an otherwise idle machine, asserts how fast a standby takes over; here it is printed.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use e2e::World;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::jiff::SignedDuration;
use kube::api::{Api, DeleteParams};
use tokio::sync::Mutex;
use training_testkit::builders::pytorch_job;
use training_testkit::is_deep;
use training_testkit::kubelet::{State, lockstep};
use training_testkit::operator::{LEASE_NAMESPACE, OperatorProcess};
use training_testkit::proxy::{Action, Call, Gate, Proxy, Rule};
use training_testkit::wait::{HANG, Seen, eventually, holds_for};

/// The shipped ratios, scaled down to keep the tests short.
const LEASE: Duration = Duration::from_secs(6);
const RENEW: &str = "4s";
const RETRY: &str = "500ms";
/// One attempt to acquire the lease, and the start of the watches.
const SLACK: Duration = Duration::from_secs(2);
const LEASE_NAME: &str = "pytorch-operator.trainyard.dev";

/// There is only one lease, so these tests take turns.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

struct Replica {
    proxy: Proxy,
    process: OperatorProcess,
}

impl Replica {
    async fn start(world: &World) -> Result<Self> {
        let (proxy, kubeconfig) = world.proxy().await?;
        let duration = format!("{}s", LEASE.as_secs());
        let options = world
            .options(&kubeconfig)
            .elects(LEASE_NAME, [&duration, RENEW, RETRY]);
        Ok(Self {
            process: OperatorProcess::start(options).await?,
            proxy,
        })
    }

    /// Whether it leads: a standby watches only the lease.
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

/// The stored lease.
async fn lease(world: &World) -> Result<LeaseSpec> {
    let leases: Api<Lease> = Api::namespaced(world.client.clone(), LEASE_NAMESPACE);
    let spec = leases.get(LEASE_NAME).await?.spec;
    spec.context("a lease that says nothing")
}

/// A standby took over in one step, not before the old lease expired.
async fn assert_taken_over(world: &World, old: &LeaseSpec, took: Duration) -> Result<()> {
    let new = lease(world).await?;
    assert_ne!(old.holder_identity, new.holder_identity);
    let steps = |lease: &LeaseSpec| lease.lease_transitions.unwrap_or_default();
    assert_eq!(steps(&new), steps(old) + 1);
    let (renewed, acquired) = (old.renew_time.clone(), new.acquire_time);
    let (renewed, acquired) = renewed.zip(acquired).context("a lease without times")?;
    let free = acquired.0.duration_since(renewed.0);
    assert!(
        free >= SignedDuration::try_from(LEASE)?,
        "free after {free}"
    );
    eprintln!("takeover after {took:?}, {free} after the last renewal; the lease is {LEASE:?}");
    if is_deep() {
        assert!(took <= LEASE + SLACK, "{took:?}");
    }
    Ok(())
}

/// Starts two replicas; the first one leads.
async fn pair(world: &World) -> Result<(Replica, Replica)> {
    let leases: Api<Lease> = Api::namespaced(world.client.clone(), LEASE_NAMESPACE);
    // The previous test may have left it to a process that was killed.
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
    let actor = world.actor("pt");
    actor.create(pytorch_job("pt").master().workers(2)).await?;
    actor.run(1, 2).await
}

/// The end of each test: the job succeeds under the current leader, and every object was created once.
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
    first.process.kill()?;
    let old = lease(&world).await?;
    let took = until_works(&second).await?;
    assert_taken_over(&world, &old, took).await?;
    // After its restart it is the standby.
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
    let old = lease(&world).await?;
    first.proxy.clear_records();
    // While it is frozen, its sockets queue events that would make it write: a status, and the pods of another job.
    let late = world.actor("late");
    late.create(pytorch_job("late").master().workers(2)).await?;
    world.kubelet.all_running(world.namespace(), "pt").await?;
    let took = until_works(&second).await?;
    assert_taken_over(&world, &old, took).await?;
    world.jobs.until_true("pt", "Running").await?;
    late.run(1, 2).await?;
    first.process.thaw()?;
    // Longer than anything that it may have in flight.
    holds_for(LEASE * 2, async || {
        let writes = first.job_writes();
        anyhow::ensure!(writes.is_empty(), "the woken leader wrote: {writes:?}");
        Ok(())
    })
    .await?;
    let asked = first.proxy.counts();
    eprintln!("the woken process asked {asked:?}");
    let records = first.proxy.records();
    let reads_lease = records.iter().any(|r| r.call.is("get", "leases"));
    assert!(reads_lease, "{asked:?}");
    // It stands by.
    first.process.until_leads(false).await?;
    late.all_end_well().await?;
    world.jobs.until_true("late", "Succeeded").await?;
    finish(&world, [&first, &second]).await?;
    assert!(first.job_writes().is_empty(), "{:?}", first.job_writes());
    Ok(())
}

/// A leader that was frozen with a write in flight, and the standby that took over.
struct Zombie {
    first: Replica,
    second: Replica,
    held: Rule,
    gate: Gate,
}

impl Zombie {
    /// Starts two replicas, with a rule that holds this write of the first one in its proxy.
    async fn rise(
        world: &World,
        write: impl Fn(&Call) -> bool + Send + Sync + 'static,
    ) -> Result<Self> {
        let (first, second) = pair(world).await?;
        let gate = Gate::closed();
        let held = Rule::new("held", Action::Hold(gate.clone()), write).nth(1);
        first.proxy.add(&held);
        Ok(Self {
            first,
            second,
            held,
            gate,
        })
    }

    /// Waits until the write is in flight, and freezes the writer until the standby leads.
    async fn freeze(&self) -> Result<()> {
        eventually("the write to be held", HANG, async || {
            Ok(if self.held.hits() == 1 {
                Seen::Yes(())
            } else {
                Seen::NotYet("no write".into())
            })
        })
        .await?;
        self.first.process.freeze()?;
        until_works(&self.second).await.map(drop)
    }

    /// Releases the write, returns the API server's status code, and thaws the writer.
    async fn wake(&self) -> Result<u16> {
        self.gate.open();
        let code = eventually("the late write to be answered", HANG, async || {
            let records = self.first.proxy.records();
            let late = records
                .iter()
                .find(|record| record.rule.as_deref() == Some("held"));
            Ok(match late.and_then(|record| record.code) {
                Some(code) => Seen::Yes(code),
                None => Seen::NotYet("no answer".into()),
            })
        })
        .await?;
        self.first.proxy.clear_records();
        self.first.process.thaw()?;
        Ok(code)
    }

    /// The thawed process writes nothing for longer than anything that it may have in flight.
    async fn stays_silent(&self) -> Result<()> {
        holds_for(LEASE, async || {
            let writes = self.first.job_writes();
            anyhow::ensure!(writes.is_empty(), "the woken leader wrote: {writes:?}");
            Ok(())
        })
        .await
    }
}

#[tokio::test]
async fn cs3_a_status_that_arrives_after_the_lease_is_refused() -> Result<()> {
    let _turn = ONE_AT_A_TIME.lock().await;
    let Some(world) = World::start("late", lockstep()).await? else {
        return Ok(());
    };
    let running = |call: &Call| {
        let text = call.body["status"].to_string();
        call.is("patch", "pytorchjobs/status") && text.contains("PyTorchJobRunning")
    };
    let zombie = Zombie::rise(&world, running).await?;
    world
        .jobs
        .create(&pytorch_job("pt").master().workers(2).build())
        .await?;
    world.kubelet.until_pods(world.namespace(), "pt", 3).await?;
    world.kubelet.all_running(world.namespace(), "pt").await?;
    zombie.freeze().await?;
    world.actor("pt").run(1, 2).await?;
    let before = world.jobs.get("pt").await?;
    assert_eq!(zombie.wake().await?, 409);
    let after = world.jobs.get("pt").await?;
    assert_eq!(
        before["metadata"]["resourceVersion"],
        after["metadata"]["resourceVersion"]
    );
    zombie.stays_silent().await?;
    finish(&world, [&zombie.first, &zombie.second]).await
}

#[tokio::test]
async fn cs3_a_create_that_arrives_after_the_lease_makes_no_second_pod() -> Result<()> {
    let _turn = ONE_AT_A_TIME.lock().await;
    let Some(world) = World::start("twice", lockstep()).await? else {
        return Ok(());
    };
    let worker = |call: &Call| call.is("create", "pods") && call.name == "pt-worker-1";
    let zombie = Zombie::rise(&world, worker).await?;
    let actor = world.actor("pt");
    actor.create(pytorch_job("pt").master().workers(2)).await?;
    zombie.freeze().await?;
    actor.run(1, 2).await?;
    assert_eq!(zombie.wake().await?, 409);
    zombie.stays_silent().await?;
    finish(&world, [&zombie.first, &zombie.second]).await
}

#[tokio::test]
async fn cs3_a_delete_that_arrives_after_the_lease_does_not_hit_the_successor() -> Result<()> {
    let _turn = ONE_AT_A_TIME.lock().await;
    let Some(world) = World::start("successor", lockstep()).await? else {
        return Ok(());
    };
    let worker = |call: &Call| call.is("delete", "pods") && call.name == "pt-worker-1";
    let zombie = Zombie::rise(&world, worker).await?;
    running_job(&world).await?;
    // The operator must delete the failed pod; the standby does that and creates another one of the same name.
    let failed = State::Evicted;
    world
        .kubelet
        .set(world.namespace(), "pt-worker-1", &failed)
        .await?;
    zombie.freeze().await?;
    eventually("a new pod", HANG, async || {
        let pods = world.kubelet.pods(world.namespace(), "pt");
        let new = pods
            .iter()
            .any(|pod| pod.replica.incarnation == 1 && pod.bound);
        Ok(if new {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{pods:?}"))
        })
    })
    .await?;
    world.actor("pt").run(1, 2).await?;
    assert_eq!(zombie.wake().await?, 409);
    zombie.stays_silent().await?;
    world.kubelet.all_succeeded(world.namespace(), "pt").await?;
    world.jobs.until_true("pt", "Succeeded").await?;
    let churn = world.auditor.summary()["Pod/pt-worker-1"];
    assert_eq!((churn.creates, churn.deletes), (2, 1));
    world.assert_clean(&zombie.first.process).await?;
    world.assert_clean(&zombie.second.process).await
}
