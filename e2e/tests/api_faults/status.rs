//! F-10 to F-24 and F-70 to F-72: error responses of the API server.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use e2e::for_each_kind;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::{Value, json};
use training_testkit::builders::{
    EVERY_KIND, JAX, KINDS, Kind, MPI, PADDLE, PYTORCH, SPARK, TENSORFLOW, XGBOOST,
};
use training_testkit::is_deep;
use training_testkit::job::{condition, counters, is_true};
use training_testkit::proxy::{Action, Answer, Effect, Filter, Gate};
use training_testkit::wait::{HANG, Seen, eventually, holds_for};

use super::campaign::{lasting, on, requests};
use super::driver::{FaultTest, JOB, Phase, WORKER};
use super::life::{Life, Target, WORKERS};
use super::table::{
    F_10, F_10_MINUS, F_10_NONE, F_10_TEXT, F_11, F_12, F_13, F_14, F_15, F_16, F_18, F_18_STATUS,
    away, conflict, overload, timeout,
};

const LIFE: Life = Life(PYTORCH);

fn writes(phase: Phase) -> Vec<Target> {
    F_14.targets(LIFE, phase)
}

fn status(phase: Phase) -> Vec<Target> {
    F_15.targets(LIFE, phase)
}

fn answer(effect: Effect, code: u16, reason: &str, message: &str) -> Action {
    Action::Answer(effect, Answer::new(code, reason, message))
}

#[tokio::test]
async fn f_10_a_server_that_asks_for_a_second_gets_it() -> Result<()> {
    requests(LIFE, &F_10).await
}

#[tokio::test]
async fn f_10_a_server_that_asks_for_time_in_no_way_we_know_is_asked_again() -> Result<()> {
    for fault in [&F_10_NONE, &F_10_MINUS, &F_10_TEXT] {
        requests(LIFE, fault).await?;
    }
    Ok(())
}

/// One request gets this `Retry-After`; the job goes on after the wait.
async fn long_wish(name: &str, seconds: &str, phase: Phase) -> Result<()> {
    let Some(mut test) = FaultTest::set_up(name).await? else {
        return Ok(());
    };
    for now in Phase::ALL {
        let target = if now == Phase::Creating {
            ("create", "pods")
        } else {
            ("patch", "pytorchjobs/status")
        };
        let rule = on(test.namespace(), target, overload(Some(seconds))).nth(1);
        if now == phase {
            test.rule(std::slice::from_ref(&rule));
        }
        test.run_phase(now).await?;
        if now == phase {
            test.until_hit(&[rule], 1).await?;
            let records = test.proxy.records();
            let asked: Vec<_> = records.iter().filter(|r| r.code == Some(429)).collect();
            anyhow::ensure!(asked.len() == 1, "{asked:?}");
            // The operator must wait that long before it sends the same request again. A pod's Service has its name.
            let refused = asked[0];
            let again = records.iter().find(|r| {
                r.at > refused.at
                    && r.code != Some(429)
                    && r.call.namespace == refused.call.namespace
                    && r.call.to_string() == refused.call.to_string()
            });
            let waited = again.map(|again| again.at - refused.at);
            anyhow::ensure!(
                waited.is_some_and(|waited| waited >= Duration::from_secs(20)),
                "asked again after {waited:?}"
            );
        }
    }
    test.assert_clean().await
}

#[tokio::test]
async fn f_10_f_72_an_hour_is_cut_to_half_a_minute_while_a_job_is_created() -> Result<()> {
    long_wish("f72create", "3600", Phase::Creating).await
}

#[tokio::test]
async fn f_10_f_72_an_hour_is_cut_to_half_a_minute_while_a_job_runs() -> Result<()> {
    long_wish("f72run", "3600", Phase::Running).await
}

#[tokio::test]
async fn f_10_half_a_minute_is_waited() -> Result<()> {
    long_wish("f10thirty", "30", Phase::Creating).await
}

#[tokio::test]
async fn f_11_a_failure_without_effect_is_repeated() -> Result<()> {
    requests(LIFE, &F_11).await
}

#[tokio::test]
async fn f_12_a_failure_with_effect_makes_no_second_object() -> Result<()> {
    requests(LIFE, &F_12).await
}

#[tokio::test]
async fn f_13_one_answer_that_the_server_is_away_is_waited_for() -> Result<()> {
    requests(LIFE, &F_13).await
}

/// The first and the longest backoff of the operator in these tests; up to half of each is jitter.
const BACKOFF: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(1)];

/// The least pause after this many refusals in a row, counted from zero, where the trouble ends by itself.
pub fn doubling(before: usize) -> Duration {
    let doublings = u32::try_from(before).unwrap_or(u32::MAX);
    let doubled = BACKOFF[0].saturating_mul(2u32.saturating_pow(doublings));
    doubled.min(BACKOFF[1]) / 2
}

/// Same as [`doubling`], where somebody must act first.
pub fn rarely(_before: usize) -> Duration {
    BACKOFF[1] / 2
}

/// The times at which each write to an object of the job was refused with this code.
fn refusals(test: &FaultTest, code: u16) -> BTreeMap<String, Vec<tokio::time::Instant>> {
    let mut refused: BTreeMap<String, Vec<tokio::time::Instant>> = BTreeMap::new();
    for record in test.proxy.records() {
        let ours = record.call.namespace == test.namespace() && record.call.is_job_write();
        if ours && record.code == Some(code) {
            let times = refused.entry(record.call.to_string()).or_default();
            times.push(record.at);
        }
    }
    refused
}

/// Waits until one write has been refused this often with this code.
pub async fn until_refused(test: &FaultTest, code: u16, times: usize) -> Result<()> {
    eventually("a write to be refused again and again", HANG, async || {
        let refused = refusals(test, code);
        let most = refused.values().map(Vec::len).max().unwrap_or_default();
        Ok(if most >= times {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{most} times: {:?}", refused.keys()))
        })
    })
    .await
}

/// No refused request was retried too early. Load only makes pauses longer, so this holds on every machine. Returns the most refusals of
/// one request.
pub fn assert_paced(
    test: &FaultTest,
    code: u16,
    pause: impl Fn(usize) -> Duration,
) -> Result<usize> {
    let refused = refusals(test, code);
    for (what, times) in &refused {
        for (n, pair) in times.windows(2).enumerate() {
            let least = pause(n);
            let pause = pair[1] - pair[0];
            anyhow::ensure!(
                pause >= least,
                "{what}: {pause:?} and not {least:?} before try {} of {}",
                n + 2,
                times.len()
            );
        }
    }
    Ok(refused.values().map(Vec::len).max().unwrap_or_default())
}

#[tokio::test]
async fn f_13_a_server_that_stays_away_is_asked_slowly() -> Result<()> {
    let for_long = Duration::from_secs(if is_deep() { 60 } else { 0 });
    // Three pods are created at once, so each of them is refused six times.
    let times = 18;
    lasting(LIFE, "f13long", writes, away, times, for_long, |test| {
        let most = assert_paced(test, 503, doubling)?;
        anyhow::ensure!(most >= 6, "refused {most} times");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn f_14_f_71_a_timeout_with_effect_puts_no_create_on_the_wire_again_and_again() -> Result<()>
{
    requests(LIFE, &F_14).await
}

#[tokio::test]
async fn f_14_f_71_nor_do_timeouts_that_last() -> Result<()> {
    let time = Duration::from_secs(2);
    lasting(LIFE, "f14long", writes, timeout, 1, time, |_| Ok(())).await
}

#[tokio::test]
async fn f_15_a_conflict_of_a_status_is_decided_anew() -> Result<()> {
    requests(LIFE, &F_15).await
}

#[tokio::test]
async fn f_15_five_conflicts_and_conflicts_that_last_count_no_restart() -> Result<()> {
    let time = Duration::from_secs(if is_deep() { 30 } else { 2 });
    lasting(LIFE, "f15long", status, conflict, 5, time, |_| Ok(())).await
}

#[tokio::test]
async fn f_16_a_name_that_our_own_lost_create_took_is_ours() -> Result<()> {
    requests(LIFE, &F_16).await
}

#[tokio::test]
async fn f_03_f_16_a_pod_that_ran_before_its_lost_create_was_looked_up_counts_as_running()
-> Result<()> {
    let Some(mut test) = FaultTest::set_up("f16runs").await? else {
        return Ok(());
    };
    test.run_phase(Phase::Creating).await?;
    // The operator reads the pod only when it runs and all counts are written; the watch has no events of it.
    let lost = on(test.namespace(), ("create", "pods"), Action::ResetAfter).nth(1);
    let silence = Action::DropWhere(Filter::new(|line| {
        let event = String::from_utf8_lossy(line);
        event.contains(WORKER) && !event.contains("\"exitCode\":137")
    }));
    let rules = [
        lost,
        on(test.namespace(), ("get", "pods"), away()),
        on(test.namespace(), ("watch", "pods"), silence),
    ];
    test.rule(&rules);
    test.proxy.cut().await?;
    test.begin(Phase::Running).await?;
    test.until_replaced().await?;
    let kubelet = &test.world.kubelet;
    kubelet.all_running(test.namespace(), JOB).await?;
    test.until_hit(&rules, 1).await?;
    let one_less = |job: &Value| counters(job, "Worker").get("active") == Some(&1);
    test.world
        .jobs
        .until(JOB, "with one worker", one_less)
        .await?;
    test.until_hit(&rules[1..2], 3).await?;
    test.proxy.clear_rules();
    test.end(Phase::Running).await?;
    test.proxy.cut().await?;
    test.run_phase(Phase::Finishing).await?;
    test.assert_clean().await
}

async fn taken(kind: Kind) -> Result<()> {
    let Some(mut test) = FaultTest::of(Life(kind), "f17").await? else {
        return Ok(());
    };
    let pods: Api<Pod> = Api::namespaced(test.world.client.clone(), test.namespace());
    let foreign: Pod = serde_json::from_value(json!({
        "metadata": { "name": WORKER }, "spec": { "containers": [{ "name": "c", "image": "i" }] },
    }))?;
    for phase in [Phase::Creating, Phase::Running] {
        if phase == Phase::Creating {
            pods.create(&PostParams::default(), &foreign).await?;
            test.begin(phase).await?;
        } else {
            // The name is taken at the moment in which it becomes free.
            let gate = Gate::closed();
            let held = on(
                test.namespace(),
                ("create", "pods"),
                Action::Hold(gate.clone()),
            )
            .nth(1);
            test.rule(std::slice::from_ref(&held));
            test.begin(phase).await?;
            test.until_hit(&[held], 1).await?;
            pods.create(&PostParams::default(), &foreign).await?;
            gate.open();
        }
        let job = test.world.jobs.until_true(JOB, "Stalled").await?;
        assert_eq!(condition(&job, "Stalled")?.reason, "NameConflict");
        let before = pods.get(WORKER).await?.metadata;
        holds_for(Duration::from_secs(1), async || {
            let now = pods.get(WORKER).await?.metadata;
            anyhow::ensure!(now.uid == before.uid && now.owner_references.is_none());
            anyhow::ensure!(now.deletion_timestamp.is_none());
            Ok(())
        })
        .await?;
        let refused = |r: &training_testkit::proxy::Record| {
            r.code == Some(409) && r.call.is("create", "pods")
        };
        anyhow::ensure!(
            test.proxy.records().iter().any(refused),
            "nothing was refused"
        );
        test.proxy.clear_records();
        pods.delete(WORKER, &DeleteParams::default().grace_period(0))
            .await?;
        test.end(phase).await?;
    }
    test.run_phase(Phase::Finishing).await?;
    test.assert_clean().await
}

#[tokio::test]
async fn f_17_a_name_that_somebody_else_took_is_waited_for() -> Result<()> {
    for_each_kind(KINDS, taken).await
}

#[tokio::test]
async fn f_18_what_is_gone_needs_no_delete_and_no_status() -> Result<()> {
    requests(LIFE, &F_18).await?;
    requests(LIFE, &F_18_STATUS).await
}

async fn quota(kind: Kind) -> Result<()> {
    let life = Life(kind);
    let Some(mut test) = FaultTest::of(life, "f20").await? else {
        return Ok(());
    };
    let message = format!(
        "pods \"{}\" is forbidden: exceeded quota: team, requested: pods=1, used: pods=2, limited: pods=2",
        life.victim()
    );
    for phase in Phase::ALL {
        let refusal = answer(Effect::Without, 403, "Forbidden", &message);
        let first = if phase == Phase::Creating {
            life.ranks(WORKERS).len()
        } else {
            1
        };
        let rule = on(test.namespace(), ("create", "pods"), refusal).only(first..usize::MAX);
        test.rule(std::slice::from_ref(&rule));
        test.begin(phase).await?;
        if phase != Phase::Finishing {
            let told = |job: &Value| life.told(job, "Stalled").contains("exceeded quota: team");
            let job = test.world.jobs.until(JOB, "naming it", told).await?;
            // An application has no condition for it.
            if kind != SPARK {
                assert_eq!(condition(&job, "Stalled")?.reason, "QuotaExceeded");
            }
            // An application retries half a minute later.
            let tries = if kind == SPARK { 1 } else { 2 };
            test.until_hit(&[rule], tries).await?;
            test.proxy.clear_rules();
        }
        test.end(phase).await?;
        let job = test.world.jobs.get(JOB).await?;
        assert!(!is_true(&job, "Stalled"), "{}", job["status"]);
        assert!(
            kind != SPARK || life.told(&job, "").is_empty(),
            "{}",
            job["status"]
        );
    }
    test.assert_clean().await
}

#[tokio::test]
async fn f_20_a_quota_that_is_exceeded_is_told_and_waited_for() -> Result<()> {
    for_each_kind(EVERY_KIND, quota).await
}

async fn permanent(kind: Kind) -> Result<()> {
    let life = Life(kind);
    for phase in [Phase::Creating, Phase::Running] {
        let Some(mut test) = FaultTest::of(life, "f24").await? else {
            return Ok(());
        };
        let message = "Pod \"pt-worker-1\" is invalid: spec.containers[0].image: Required value";
        let invalid = answer(Effect::Without, 422, "Invalid", message);
        let rule = on(test.namespace(), ("create", "pods"), invalid);
        // The job's last pod, and then the replacement of another.
        let first = if phase == Phase::Creating {
            life.ranks(WORKERS).len()
        } else {
            1
        };
        let rule = rule.only(first..usize::MAX);
        if phase == Phase::Running {
            test.run_phase(Phase::Creating).await?;
        }
        test.rule(std::slice::from_ref(&rule));
        test.begin(phase).await?;
        let jobs = &test.world.jobs;
        if phase == Phase::Running && kind != SPARK {
            // Running pods stay until the template is fixed.
            let stalled =
                |job: &Value| condition(job, "Stalled").is_ok_and(|c| c.reason == "InvalidSpec");
            let job = jobs.until(JOB, "stalled", stalled).await?;
            assert!(
                condition(&job, "Stalled")?
                    .message
                    .contains("Required value")
            );
            test.proxy.clear_rules();
            test.end(phase).await?;
            test.assert_clean().await?;
            continue;
        }
        let job = jobs.until(JOB, "at a bad end", Life::has_failed).await?;
        let told = life.told(&job, "Failed");
        assert!(told.contains("Required value"), "{}", job["status"]);
        let hits = rule.hits();
        assert!((1..=3).contains(&hits), "{hits} tries");
        holds_for(Duration::from_secs(2), async || {
            anyhow::ensure!(rule.hits() == hits, "a hopeless create is tried again");
            Ok(())
        })
        .await?;
        test.assert_clean().await?;
    }
    Ok(())
}

#[tokio::test]
async fn f_24_a_pod_that_can_never_be_made_ends_the_job_once() -> Result<()> {
    permanent(PYTORCH).await
}

#[tokio::test]
async fn f_24_a_pod_that_can_never_be_made_ends_a_tf_job_once() -> Result<()> {
    permanent(TENSORFLOW).await
}

#[tokio::test]
async fn f_24_a_pod_that_can_never_be_made_ends_an_xgboost_job_once() -> Result<()> {
    permanent(XGBOOST).await
}

#[tokio::test]
async fn f_24_a_pod_that_can_never_be_made_ends_a_paddle_job_once() -> Result<()> {
    permanent(PADDLE).await
}

#[tokio::test]
async fn f_24_a_pod_that_can_never_be_made_ends_a_jax_job_once() -> Result<()> {
    permanent(JAX).await
}

#[tokio::test]
async fn f_24_a_pod_that_can_never_be_made_ends_an_mpi_job_once() -> Result<()> {
    permanent(MPI).await
}

#[tokio::test]
async fn f_24_a_pod_that_can_never_be_made_ends_a_spark_application_once() -> Result<()> {
    permanent(SPARK).await
}
