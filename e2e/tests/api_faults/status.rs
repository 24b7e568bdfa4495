//! F-10 to F-24 and F-70 to F-72: what the API server answers.

use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::{Value, json};
use training_testkit::job::{condition, counters, is_true};
use training_testkit::proxy::{Action, Answer, Effect, Filter, Gate};
use training_testkit::wait::holds_for;

use super::campaign::{lasting, on, requests, targets, writes};
use super::driver::{JOB, Phase, Trial, WORKER, deep};

fn all(phase: Phase) -> Vec<(&'static str, &'static str)> {
    targets(phase).to_vec()
}

fn answer(effect: Effect, code: u16, reason: &str, message: &str) -> Action {
    Action::Answer(effect, Answer::new(code, reason, message))
}

/// Overload, with a wish for how long to stay away.
fn overload(retry_after: Option<&str>) -> Action {
    let mut answer = Answer::new(429, "TooManyRequests", "too many requests");
    answer.retry_after = retry_after.map(str::to_owned);
    Action::Answer(Effect::Without, answer)
}

#[tokio::test]
async fn f_10_a_server_that_asks_for_a_second_gets_it() -> Result<()> {
    requests("f10", &[], all, || overload(Some("1"))).await
}

#[tokio::test]
async fn f_10_a_server_that_asks_for_time_in_no_way_we_know_is_asked_again() -> Result<()> {
    for (name, wish) in [
        ("f10none", None),
        ("f10minus", Some("-5")),
        ("f10text", Some("soon")),
    ] {
        requests(name, &[], writes, || overload(wish)).await?;
    }
    Ok(())
}

/// One request is answered so; the job goes on when the wait is over.
async fn long_wish(name: &str, seconds: &str, phase: Phase) -> Result<()> {
    let Some(mut trial) = Trial::set_up(name).await? else {
        return Ok(());
    };
    for now in Phase::ALL {
        let target = if now == Phase::Creating {
            ("create", "pods")
        } else {
            ("patch", "pytorchjobs/status")
        };
        let rule = on(trial.namespace(), target, overload(Some(seconds))).nth(1);
        if now == phase {
            trial.rule(std::slice::from_ref(&rule));
        }
        trial.begin(now).await?;
        trial.end(now).await?;
        if now == phase {
            trial.until_hit(&[rule], 1).await?;
            let records = trial.proxy.records();
            let asked: Vec<_> = records.iter().filter(|r| r.code == Some(429)).collect();
            anyhow::ensure!(asked.len() == 1, "{asked:?}");
            // Not a time, but an order: the wish is kept before the same is asked again.
            let refused = asked[0];
            let again = records.iter().find(|r| {
                r.at > refused.at
                    && r.code != Some(429)
                    && r.call.name == refused.call.name
                    && r.call.verb == refused.call.verb
            });
            let waited = again.map(|again| again.at - refused.at);
            anyhow::ensure!(
                waited.is_some_and(|waited| waited >= Duration::from_secs(20)),
                "asked again after {waited:?}"
            );
        }
    }
    trial.assert_clean().await
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
    requests("f11", &[], all, || {
        answer(Effect::Without, 500, "InternalError", "something broke")
    })
    .await
}

#[tokio::test]
async fn f_12_a_failure_with_effect_makes_no_second_object() -> Result<()> {
    requests("f12", &[], writes, || {
        answer(
            Effect::With,
            500,
            "InternalError",
            "etcdserver: request timed out",
        )
    })
    .await
}

#[tokio::test]
async fn f_13_one_answer_that_the_server_is_away_is_waited_for() -> Result<()> {
    requests("f13", &[], all, || {
        answer(Effect::Without, 503, "ServiceUnavailable", "away")
    })
    .await
}

#[tokio::test]
async fn f_13_a_server_that_stays_away_is_asked_slowly() -> Result<()> {
    let away = Duration::from_secs(if deep() { 60 } else { 3 });
    lasting(
        "f13long",
        writes,
        || answer(Effect::Without, 503, "ServiceUnavailable", "away"),
        2,
        away,
    )
    .await
}

#[tokio::test]
async fn f_14_f_71_a_timeout_with_effect_puts_no_create_on_the_wire_again_and_again() -> Result<()>
{
    requests("f14", &[], writes, || {
        answer(
            Effect::With,
            504,
            "Timeout",
            "the server did not answer in time",
        )
    })
    .await
}

#[tokio::test]
async fn f_14_f_71_nor_do_timeouts_that_last() -> Result<()> {
    let time = Duration::from_secs(2);
    lasting(
        "f14long",
        writes,
        || {
            answer(
                Effect::With,
                504,
                "Timeout",
                "the server did not answer in time",
            )
        },
        1,
        time,
    )
    .await
}

fn status(_: Phase) -> Vec<(&'static str, &'static str)> {
    vec![("patch", "pytorchjobs/status")]
}

fn conflict() -> Action {
    answer(
        Effect::Without,
        409,
        "Conflict",
        "the object has been modified",
    )
}

#[tokio::test]
async fn f_15_a_conflict_of_a_status_is_decided_anew() -> Result<()> {
    requests("f15", &[], status, conflict).await
}

#[tokio::test]
async fn f_15_five_conflicts_and_conflicts_that_last_count_no_restart() -> Result<()> {
    let time = Duration::from_secs(if deep() { 30 } else { 2 });
    lasting("f15long", status, conflict, 5, time).await
}

#[tokio::test]
async fn f_16_a_name_that_our_own_lost_create_took_is_ours() -> Result<()> {
    let creates = |phase| match phase {
        Phase::Creating => vec![("create", "pods"), ("create", "services")],
        Phase::Running => vec![("create", "pods")],
        Phase::Finishing => vec![("patch", "pytorchjobs/status")],
    };
    requests("f16", &[], creates, || {
        answer(Effect::With, 409, "AlreadyExists", "it exists already")
    })
    .await
}

#[tokio::test]
async fn f_03_f_16_a_pod_that_ran_before_its_lost_create_was_looked_up_counts_as_running()
-> Result<()> {
    let Some(mut trial) = Trial::set_up("f16runs").await? else {
        return Ok(());
    };
    trial.begin(Phase::Creating).await?;
    trial.end(Phase::Creating).await?;
    // It is looked up only when it runs and all counts are written, and the watch has no news of it.
    let lost = on(trial.namespace(), ("create", "pods"), Action::ResetAfter).nth(1);
    let away = answer(Effect::Without, 503, "ServiceUnavailable", "away");
    let silence = Action::DropWhere(Filter::new(|line| {
        let text = String::from_utf8_lossy(line);
        text.contains(WORKER) && !text.contains("\"exitCode\":137")
    }));
    let rules = [
        lost,
        on(trial.namespace(), ("get", "pods"), away),
        on(trial.namespace(), ("watch", "pods"), silence),
    ];
    trial.rule(&rules);
    trial.proxy.cut().await?;
    trial.begin(Phase::Running).await?;
    trial.until_replaced().await?;
    let kubelet = &trial.world.kubelet;
    kubelet.all_running(trial.namespace(), JOB).await?;
    trial.until_hit(&rules, 1).await?;
    let one_less = |job: &Value| counters(job, "Worker").get("active") == Some(&1);
    trial
        .world
        .jobs
        .until(JOB, "with one worker", one_less)
        .await?;
    trial.until_hit(&rules[1..2], 3).await?;
    trial.proxy.clear_rules();
    trial.end(Phase::Running).await?;
    trial.proxy.cut().await?;
    trial.begin(Phase::Finishing).await?;
    trial.end(Phase::Finishing).await?;
    trial.assert_clean().await
}

#[tokio::test]
async fn f_17_a_name_that_somebody_else_took_is_waited_for() -> Result<()> {
    let Some(mut trial) = Trial::set_up("f17").await? else {
        return Ok(());
    };
    let pods: Api<Pod> = Api::namespaced(trial.world.client.clone(), trial.namespace());
    let foreign: Pod = serde_json::from_value(json!({
        "metadata": { "name": WORKER }, "spec": { "containers": [{ "name": "c", "image": "i" }] },
    }))?;
    for phase in [Phase::Creating, Phase::Running] {
        if phase == Phase::Creating {
            pods.create(&PostParams::default(), &foreign).await?;
            trial.begin(phase).await?;
        } else {
            // The name is taken in the moment in which it is free.
            let gate = Gate::closed();
            let held = on(
                trial.namespace(),
                ("create", "pods"),
                Action::Hold(gate.clone()),
            )
            .nth(1);
            trial.rule(std::slice::from_ref(&held));
            trial.begin(phase).await?;
            trial.until_hit(&[held], 1).await?;
            pods.create(&PostParams::default(), &foreign).await?;
            gate.open();
        }
        let job = trial.world.jobs.until_true(JOB, "Stalled").await?;
        assert_eq!(condition(&job, "Stalled")?.reason, "NameConflict");
        let before = pods.get(WORKER).await?.metadata;
        holds_for(Duration::from_secs(1), async || {
            let now = pods.get(WORKER).await?.metadata;
            anyhow::ensure!(now.uid == before.uid && now.owner_references.is_none());
            anyhow::ensure!(now.deletion_timestamp.is_none());
            Ok(())
        })
        .await?;
        let taken = |r: &training_testkit::proxy::Record| {
            r.code == Some(409) && r.call.is("create", "pods")
        };
        anyhow::ensure!(
            trial.proxy.records().iter().any(taken),
            "nothing was refused"
        );
        trial.proxy.clear_records();
        pods.delete(WORKER, &DeleteParams::default().grace_period(0))
            .await?;
        trial.end(phase).await?;
    }
    trial.begin(Phase::Finishing).await?;
    trial.end(Phase::Finishing).await?;
    trial.assert_clean().await
}

#[tokio::test]
async fn f_18_what_is_gone_needs_no_delete_and_no_status() -> Result<()> {
    let gone = |effect, targets: fn(Phase) -> Vec<(&'static str, &'static str)>, name| {
        requests(name, &[], targets, move || {
            answer(effect, 404, "NotFound", "not found")
        })
    };
    let deletes = |phase| match phase {
        Phase::Creating => vec![("patch", "pytorchjobs/status")],
        Phase::Running => vec![("delete", "pods")],
        Phase::Finishing => vec![("delete", "pods"), ("delete", "services")],
    };
    gone(Effect::With, deletes, "f18").await?;
    gone(Effect::Without, status, "f18status").await
}

#[tokio::test]
async fn f_20_a_quota_that_is_exceeded_is_told_and_waited_for() -> Result<()> {
    let Some(mut trial) = Trial::set_up("f20").await? else {
        return Ok(());
    };
    let message = "pods \"pt-worker-1\" is forbidden: exceeded quota: team, requested: pods=1, used: pods=2, limited: pods=2";
    for phase in Phase::ALL {
        let refusal = answer(Effect::Without, 403, "Forbidden", message);
        let first = if phase == Phase::Creating { 3 } else { 1 };
        let rule = on(trial.namespace(), ("create", "pods"), refusal).only(first..usize::MAX);
        trial.rule(std::slice::from_ref(&rule));
        trial.begin(phase).await?;
        if phase != Phase::Finishing {
            let job = trial.world.jobs.until_true(JOB, "Stalled").await?;
            let stalled = condition(&job, "Stalled")?;
            assert_eq!(stalled.reason, "QuotaExceeded");
            assert!(
                stalled.message.contains("exceeded quota: team"),
                "{stalled:?}"
            );
            trial.until_hit(&[rule], 2).await?;
            trial.proxy.clear_rules();
        }
        trial.end(phase).await?;
        let job = trial.world.jobs.get(JOB).await?;
        assert!(!is_true(&job, "Stalled"), "{}", job["status"]);
    }
    trial.assert_clean().await
}

#[tokio::test]
async fn f_24_a_pod_that_can_never_be_made_ends_the_job_once() -> Result<()> {
    for phase in [Phase::Creating, Phase::Running] {
        let Some(mut trial) = Trial::set_up("f24").await? else {
            return Ok(());
        };
        let message = "Pod \"pt-worker-1\" is invalid: spec.containers[0].image: Required value";
        let invalid = answer(Effect::Without, 422, "Invalid", message);
        let rule = on(trial.namespace(), ("create", "pods"), invalid);
        let first = if phase == Phase::Creating { 3 } else { 1 };
        let rule = rule.only(first..usize::MAX);
        if phase == Phase::Running {
            trial.begin(Phase::Creating).await?;
            trial.end(Phase::Creating).await?;
        }
        trial.rule(std::slice::from_ref(&rule));
        trial.begin(phase).await?;
        let job = trial.world.jobs.until_true(JOB, "Failed").await?;
        let failed = condition(&job, "Failed")?;
        assert!(failed.message.contains("Required value"), "{failed:?}");
        let hits = rule.hits();
        assert!((1..=3).contains(&hits), "{hits} tries");
        holds_for(Duration::from_secs(2), async || {
            anyhow::ensure!(rule.hits() == hits, "a hopeless create is tried again");
            Ok(())
        })
        .await?;
        trial.assert_clean().await?;
    }
    Ok(())
}
