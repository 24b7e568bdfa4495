//! F-54, F-55, F-57 to F-59: faults of the process itself, its clock and a second operator.

use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::StreamExt as _;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{Api, ListParams};
use serde_json::Value;
use training_testkit::builders::{
    JAX, Kind, MPI, PADDLE, PYTORCH, SPARK, TENSORFLOW, XGBOOST, pytorch_job,
};
use training_testkit::is_deep;
use training_testkit::job::counters;
use training_testkit::operator::{LEASE_NAMESPACE, OperatorProcess};
use training_testkit::proxy::{Action, Call, Change, Gate, Proxy, Rule};
use training_testkit::wait::{HANG, Seen, eventually, holds_for};

use super::campaign::on;
use super::driver::{FaultTest, JOB, Phase};
use super::life::Life;
use super::outage::LEASE;

/// A full life cycle without network faults.
async fn live(test: &mut FaultTest) -> Result<()> {
    for phase in Phase::ALL {
        test.run_phase(phase).await?;
    }
    Ok(())
}

/// Runs a phase in which neither operator may create a pod before the other one is about to do so as well.
async fn both_at_once(test: &mut FaultTest, twins: &Proxy, phase: Phase) -> Result<()> {
    let gate = Gate::closed();
    let waiting = || Action::Hold(gate.clone());
    let held = [(); 2].map(|()| on(test.namespace(), ("create", "pods"), waiting()));
    test.rule(&held[..1]);
    twins.clear_rules();
    twins.add(&held[1]);
    test.begin(phase).await?;
    test.until_hit(&held, 1).await?;
    gate.open();
    test.end(phase).await
}

/// Two operators without leader election both work: whenever a pod must be created, both are about to create it.
async fn twins(kind: Kind) -> Result<()> {
    let Some(mut test) = FaultTest::of(Life(kind), "f57").await? else {
        return Ok(());
    };
    let (proxy, kubeconfig) = test.world.proxy().await?;
    let mut options = test.operator_options();
    options.kubeconfig = kubeconfig;
    options.log = test.world.file("twin.log");
    let mut twin = OperatorProcess::start(options).await?;
    for phase in [Phase::Creating, Phase::Running] {
        both_at_once(&mut test, &proxy, phase).await?;
    }
    test.run_phase(Phase::Finishing).await?;
    test.assert_life();
    anyhow::ensure!(!twin.has_ended()?, "one of them ended");
    twin.assert_no_panic()?;
    proxy.assert_guarded()?;
    test.assert_clean().await
}

#[tokio::test]
async fn f_57_two_operators_without_election_make_nothing_twice() -> Result<()> {
    twins(PYTORCH).await
}

#[tokio::test]
async fn f_57_two_operators_without_election_make_nothing_of_a_tf_job_twice() -> Result<()> {
    twins(TENSORFLOW).await
}

#[tokio::test]
async fn f_57_two_operators_without_election_make_nothing_of_an_xgboost_job_twice() -> Result<()> {
    twins(XGBOOST).await
}

#[tokio::test]
async fn f_57_two_operators_without_election_make_nothing_of_a_paddle_job_twice() -> Result<()> {
    twins(PADDLE).await
}

#[tokio::test]
async fn f_57_two_operators_without_election_make_nothing_of_a_jax_job_twice() -> Result<()> {
    twins(JAX).await
}

#[tokio::test]
async fn f_57_two_operators_without_election_make_nothing_of_an_mpi_job_twice() -> Result<()> {
    twins(MPI).await
}

#[tokio::test]
async fn f_57_two_operators_without_election_make_nothing_of_a_spark_application_twice()
-> Result<()> {
    twins(SPARK).await
}

#[tokio::test]
async fn f_58_a_process_with_few_descriptors_serves_a_large_job() -> Result<()> {
    const LIMIT: u64 = 64;
    const WORKERS: u32 = 60;
    let Some(mut test) = FaultTest::set_up("f58").await? else {
        return Ok(());
    };
    test.start().await?;
    test.operator()?.limit_descriptors(LIMIT)?;
    // Every new connection needs a descriptor: probes, scrapes and calls.
    test.proxy.cut().await?;
    let address = test.operator()?.metrics_address();
    let mut held = Vec::new();
    for _ in 0..LIMIT {
        held.push(tokio::net::TcpStream::connect(address).await?);
    }
    let files = format!("/proc/{}/fd", test.operator()?.pid());
    eventually("no descriptor to be left", HANG, async || {
        let open = std::fs::read_dir(&files)?.count();
        Ok(if u64::try_from(open)? >= LIMIT {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{open} are open"))
        })
    })
    .await?;
    let job = FaultTest::job()
        .role("Worker", WORKERS)
        .restart_policy("Worker", "ExitCode");
    test.world.jobs.create(&job.build()).await?;
    let (kubelet, namespace) = (&test.world.kubelet, test.namespace());
    kubelet.until_pods(namespace, JOB, 61).await?;
    drop(held);
    kubelet.all_running(namespace, JOB).await?;
    let all_active = |job: &Value| counters(job, "Worker").get("active") == Some(&WORKERS.into());
    let jobs = &test.world.jobs;
    jobs.until(JOB, "with all active", all_active).await?;
    kubelet.all_succeeded(namespace, JOB).await?;
    jobs.until_true(JOB, "Succeeded").await?;
    assert_eq!(test.metric("trainyard_panics_total").await?, 0);
    test.assert_clean().await
}

#[tokio::test]
async fn f_58_a_log_that_takes_nothing_ends_no_process() -> Result<()> {
    let Some(mut test) = FaultTest::set_up("f58log").await? else {
        return Ok(());
    };
    test = test.output("/dev/full").flag("log-filter", "debug");
    live(&mut test).await?;
    test.assert_life();
    // Without a log, only this metric shows a panic.
    assert_eq!(test.metric("trainyard_panics_total").await?, 0);
    test.assert_clean().await
}

/// The difference between the clocks of the two replicas.
const SKEW: SignedDuration = SignedDuration::from_mins(10);

/// Shifts all times of a Lease, which looks to the reader as if its own clock were off in the other direction.
fn skewed(by: SignedDuration) -> Change {
    Change::new(move |bytes| {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut moved = String::new();
        let mut rest = text;
        for key in ["\"acquireTime\":\"", "\"renewTime\":\""] {
            let (before, after) = rest.split_once(key)?;
            let (time, after) = after.split_once('"')?;
            let time: Timestamp = time.parse().ok()?;
            moved.push_str(before);
            moved.push_str(key);
            moved.push_str(&(time + by).strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string());
            moved.push('"');
            rest = after;
        }
        moved.push_str(rest);
        Some(moved.into_bytes())
    })
}

/// Rules that shift the times of the lease for its reader.
fn wrong_times(skew: SignedDuration) -> [Rule; 2] {
    let of_lease = |call: &Call| call.resource == "leases";
    let answers = Rule::new("answers", Action::AlterAnswer(skewed(skew)), move |call| {
        of_lease(call) && !call.is_watch()
    });
    let events = Rule::new("events", Action::AlterEvents(skewed(skew)), move |call| {
        of_lease(call) && call.is_watch()
    });
    [answers, events]
}

/// A stored lease.
async fn stored(test: &FaultTest, lease: &str) -> Result<LeaseSpec> {
    let leases: Api<Lease> = Api::namespaced(test.world.client.clone(), LEASE_NAMESPACE);
    let spec = leases.get(lease).await?.spec;
    spec.context("a lease that says nothing")
}

/// A standby with a wrong clock waits as long as any other, and leads when the leader is gone, even if its clock jumps meanwhile.
async fn wrong_clock(name: &str, skew: SignedDuration) -> Result<()> {
    let Some(mut test) = FaultTest::set_up(name).await? else {
        return Ok(());
    };
    let lease = test.namespace().to_owned();
    test = test.flags(&LEASE).flag("leader-election-id", &lease);
    let (standby_proxy, kubeconfig) = test.world.proxy().await?;
    test.begin(Phase::Creating).await?;
    test.until_leads(true).await?;
    test.end(Phase::Creating).await?;
    let mut options = test.operator_options();
    options.kubeconfig = kubeconfig;
    options.log = test.world.file("standby.log");
    let told = |rules: &[Rule]| rules.iter().map(Rule::hits).sum::<usize>();
    let wrong = wrong_times(skew);
    for rule in &wrong {
        standby_proxy.add(rule);
    }
    let standby = OperatorProcess::start(options).await?;
    // Longer than the lease lasts, with the wrong time and after the jump back to the right one.
    for _ in 0..2 {
        holds_for(Duration::from_secs(5), async || {
            anyhow::ensure!(
                !standby.reports_leader(true).await?,
                "a standby leads beside the leader"
            );
            Ok(())
        })
        .await?;
        anyhow::ensure!(told(&wrong) > 0, "no wrong time was served");
        standby_proxy.clear_rules();
        standby_proxy.cut().await?;
    }
    // The wrong time again when it matters.
    test.operator()?.freeze()?;
    let old = stored(&test, &lease).await?;
    let wrong = wrong_times(skew);
    for rule in &wrong {
        standby_proxy.add(rule);
    }
    standby_proxy.cut().await?;
    eventually("the standby to lead", HANG, async || {
        Ok(if standby.reports_leader(true).await? {
            Seen::Yes(())
        } else {
            Seen::NotYet("it waits".into())
        })
    })
    .await?;
    anyhow::ensure!(told(&wrong) > 0, "no wrong time was served in the end");
    let new = stored(&test, &lease).await?;
    assert_ne!(old.holder_identity, new.holder_identity);
    let times = old.renew_time.zip(new.acquire_time);
    let (renewed, acquired) = times.context("a lease without times")?;
    let free = acquired.0.duration_since(renewed.0);
    let promised = i64::from(old.lease_duration_seconds.context("no duration")?);
    anyhow::ensure!(
        free >= SignedDuration::from_secs(promised),
        "free after {free}"
    );
    test.run_phase(Phase::Running).await?;
    test.operator()?.thaw()?;
    test.run_phase(Phase::Finishing).await?;
    test.assert_life();
    standby.assert_no_panic()?;
    standby_proxy.assert_guarded()?;
    test.assert_clean().await
}

#[tokio::test]
async fn f_55_a_standby_whose_clock_is_slow_waits_its_time() -> Result<()> {
    wrong_clock("f55slow", SKEW).await
}

#[tokio::test]
async fn f_55_a_standby_whose_clock_is_fast_waits_its_time() -> Result<()> {
    wrong_clock("f55fast", -SKEW).await
}

/// The lease duration, renew deadline and retry period: as shipped in deep runs, otherwise in nearly the same ratio, so that several
/// leases pass. Units: seconds.
fn lease_times() -> [u64; 3] {
    if is_deep() { [15, 10, 2] } else { [9, 6, 1] }
}

/// With a twentieth of a CPU, an idle leader keeps its lease, and a busy one creates nothing twice.
#[tokio::test]
async fn f_54_a_twentieth_of_a_processor_costs_no_lease() -> Result<()> {
    let Some(mut test) = FaultTest::set_up("f54").await? else {
        return Ok(());
    };
    let lease = test.namespace().to_owned();
    let [lasts, deadline, retry] = lease_times();
    for (flag, seconds) in [
        ("lease-duration", lasts),
        ("lease-renew-deadline", deadline),
        ("lease-retry-period", retry),
    ] {
        test = test.flag(flag, &format!("{seconds}s"));
    }
    test = test
        .flag("leader-elect", "true")
        .flag("leader-election-namespace", LEASE_NAMESPACE)
        .flag("leader-election-id", &lease);
    test.start().await?;
    test.until_leads(true).await?;
    test.until_canary().await?;
    // It would lead as soon as the lease isn't renewed in time.
    let (standby_proxy, kubeconfig) = test.world.proxy().await?;
    let mut options = test.operator_options();
    options.kubeconfig = kubeconfig;
    options.log = test.world.file("standby.log");
    let mut standby = OperatorProcess::start(options).await?;
    let operator = test.operator()?;
    let slowly = async {
        loop {
            operator.thaw()?;
            tokio::time::sleep(Duration::from_millis(5)).await;
            operator.freeze()?;
            tokio::time::sleep(Duration::from_millis(95)).await;
        }
    };
    let idle = async {
        let before = stored(&test, &lease).await?;
        standby_proxy.clear_records();
        holds_for(
            Duration::from_secs(lasts * if is_deep() { 4 } else { 2 }),
            async || {
                anyhow::ensure!(!standby.reports_leader(true).await?, "the lease was lost");
                Ok(())
            },
        )
        .await?;
        let records = standby_proxy.records();
        let asked = |verb| {
            let of_lease = records.iter().filter(|r| r.call.resource == "leases");
            of_lease.filter(|r| r.call.verb == verb).count()
        };
        anyhow::ensure!(asked("get") >= 3, "the standby did not look for it");
        anyhow::ensure!(asked("update") == 0, "the standby wrote the lease");
        let after = stored(&test, &lease).await?;
        let holder = |spec: &LeaseSpec| (spec.holder_identity.clone(), spec.lease_transitions);
        anyhow::ensure!(holder(&after) == holder(&before), "another leads");
        anyhow::ensure!(after.renew_time > before.renew_time, "nobody renewed it");
        // A leader that gave up at its deadline, before the standby noticed, has lost it as well.
        let log = operator.log();
        anyhow::ensure!(log.contains("leading"), "it never led");
        anyhow::ensure!(!log.contains("stops leading"), "the lease was lost");
        standby.kill()?;
        test.world.jobs.create(&FaultTest::job().build()).await?;
        test.end(Phase::Creating).await
    };
    let outcome: Result<()> = tokio::select! {
        outcome = idle => outcome,
        outcome = slowly => outcome,
    };
    outcome?;
    test.operator()?.thaw()?;
    test.run_phase(Phase::Running).await?;
    test.run_phase(Phase::Finishing).await?;
    test.assert_life();
    test.assert_clean().await
}

/// Two thousand jobs in deep runs, because they take minutes to create.
#[tokio::test]
async fn f_59_thousands_of_pods_and_jobs_at_the_start_fit_the_shipped_limit() -> Result<()> {
    // The memory limit of the shipped Deployment.
    const LIMIT: u64 = 256 << 20;
    let number = if is_deep() { 2000 } else { 40 };
    let Some(mut test) = FaultTest::set_up("f59").await? else {
        return Ok(());
    };
    let jobs = &test.world.jobs;
    let made = futures::stream::iter(0..number).map(async |n| {
        let job = pytorch_job(&format!("many-{n}")).master().workers(4);
        jobs.create(&job.run_policy("backoffLimit", 3).build())
            .await
    });
    let mut made = made.buffer_unordered(32);
    while let Some(job) = made.next().await {
        job?;
    }
    drop(made);
    // The first operator creates the pods; the second one starts with all of them.
    test.start().await?;
    let pods: Api<Pod> = Api::namespaced(test.world.client.clone(), test.namespace());
    eventually("all pods", HANG * 4, async || {
        let list = pods.list(&ListParams::default()).await?;
        let there = list
            .items
            .iter()
            .filter(|pod| pod.metadata.labels.is_some())
            .count();
        Ok(if there == number * 5 {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{there} pods"))
        })
    })
    .await?;
    test.until_canary().await?;
    let operator = test.operator_mut()?;
    operator.kill()?;
    operator.restart().await?;
    let job = pytorch_job("last").master().build();
    test.world.jobs.create(&job).await?;
    test.world.jobs.until_true("last", "Created").await?;
    let (_, most) = test.operator()?.memory()?;
    println!("{} MiB at the most", most >> 20);
    anyhow::ensure!(most < LIMIT, "{} MiB", most >> 20);
    test.operator()?.assert_no_panic()
}
