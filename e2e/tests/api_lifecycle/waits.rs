//! What a job waits for, and what it does not wait for.

use anyhow::Result;
use e2e::{World, for_each_kind, read};
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use training_testkit::builders::{Kind, MPI, TRAINING, pytorch_job};
use training_testkit::job::{self, conditions, is_true};
use training_testkit::kubelet::lockstep;
use training_testkit::operator::OperatorProcess;
use training_testkit::proxy::{Action, Answer, Effect, Rule};
use training_testkit::wait::{HANG, Seen, eventually, holds_for};

use super::{STAYS, succeeds_after_all};

#[tokio::test]
async fn f17_a_foreign_pod_in_the_way_is_left_alone_and_waited_for() -> Result<()> {
    let Some(world) = World::start("conflict", lockstep()).await? else {
        return Ok(());
    };
    let operator = world.operator().await?;
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), world.namespace());
    let foreign = serde_json::from_value(json!({
        "metadata": { "name": "pt-worker-0", "labels": { "mine": "yes" } },
        "spec": { "containers": [{ "name": "c", "image": "i" }] },
    }))?;
    pods.create(&PostParams::default(), &foreign).await?;
    world
        .jobs
        .create(&pytorch_job("pt").master().workers(2).build())
        .await?;
    let job = world.jobs.until_true("pt", "Stalled").await?;
    assert_eq!(job::condition(&job, "Stalled")?.reason, "NameConflict");
    assert_eq!(
        conditions(&job).last().map(|c| c.kind.as_str()),
        Some("Created")
    );
    let before = pods.get("pt-worker-0").await?.metadata;
    holds_for(STAYS, async || {
        let now = pods.get("pt-worker-0").await?.metadata;
        anyhow::ensure!(now.uid == before.uid, "the foreign pod was replaced");
        anyhow::ensure!(
            now.deletion_timestamp.is_none(),
            "the foreign pod was deleted"
        );
        anyhow::ensure!(
            now.owner_references.is_none(),
            "the foreign pod was adopted"
        );
        anyhow::ensure!(now.labels == before.labels, "the foreign pod was changed");
        Ok(())
    })
    .await?;
    pods.delete("pt-worker-0", &DeleteParams::default().grace_period(0))
        .await?;
    let job = succeeds_after_all(&world).await?;
    assert!(!is_true(&job, "Stalled"), "{}", job["status"]);
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn f20_an_exceeded_quota_is_told_and_waited_for() -> Result<()> {
    let Some(world) = World::start("quota", lockstep()).await? else {
        return Ok(());
    };
    if !world.control.can().controllers {
        e2e::skip("nobody counts here");
        return Ok(());
    }
    let operator = world.operator().await?;
    let quotas: Api<ResourceQuota> = Api::namespaced(world.client.clone(), world.namespace());
    let quota = serde_json::from_value(json!({
        "metadata": { "name": "two" }, "spec": { "hard": { "pods": "2" } },
    }))?;
    quotas.create(&PostParams::default(), &quota).await?;
    until_counted(&quotas, "2").await?;
    world
        .jobs
        .create(&pytorch_job("pt").master().workers(2).build())
        .await?;
    let job = world.jobs.until_true("pt", "Stalled").await?;
    let stalled = job::condition(&job, "Stalled")?;
    assert_eq!(stalled.reason, "QuotaExceeded");
    assert!(
        stalled.message.contains("exceeded quota: two"),
        "{}",
        stalled.message
    );
    let pods = read::pods(&world.client, world.namespace(), "pt").await?;
    assert_eq!(pods.len(), 2, "{:?}", read::names(&pods));
    let raise = json!({ "spec": { "hard": { "pods": "5" } } });
    quotas
        .patch("two", &PatchParams::default(), &Patch::Merge(&raise))
        .await?;
    let job = succeeds_after_all(&world).await?;
    assert!(!is_true(&job, "Stalled"), "{}", job["status"]);
    world.assert_clean(&operator).await
}

/// Every create fails, and the next attempt would be in an hour.
async fn ends_during_backoff(kind: Kind) -> Result<()> {
    let Some(world) = World::of(kind, "backoff", lockstep()).await? else {
        return Ok(());
    };
    let (proxy, kubeconfig) = world.proxy().await?;
    let failed = Answer::new(500, "InternalError", "etcdserver: leader changed");
    let fails = Action::Answer(Effect::Without, failed);
    let rule = Rule::new("creates", fails, |call| {
        call.verb == "create" && ["pods", "services"].contains(&call.resource.as_str())
    });
    proxy.add(&rule);
    let options = world
        .options(&kubeconfig)
        .flag("backoff-base", "1h")
        .flag("backoff-cap", "1h");
    let operator = OperatorProcess::start(options).await?;
    let workers = 40;
    world
        .jobs
        .create(&kind.small_job("pauses", workers).build())
        .await?;
    let failing = eventually("a create to fail", HANG, async || {
        Ok(if rule.hits() > 0 {
            Seen::Yes(())
        } else {
            Seen::NotYet("none".to_owned())
        })
    });
    failing.await?;
    let suspend = json!({ "spec": { "runPolicy": { "suspend": true } } });
    world.jobs.merge("pauses", &suspend).await?;
    world.jobs.until_true("pauses", "Suspended").await?;
    // Sixteen requests at a time, of which a few in a row stop the others.
    anyhow::ensure!(rule.hits() <= 2 * 16, "{} creates failed", rule.hits());
    if kind == MPI {
        // As published, its time begins once its objects exist.
        return world.assert_clean(&operator).await;
    }
    let late = kind
        .small_job("late", 1)
        .run_policy("activeDeadlineSeconds", 2);
    world.jobs.create(&late.build()).await?;
    let late = world.jobs.until_true("late", "Failed").await?;
    let message = job::condition(&late, "Failed")?.message;
    assert!(
        message.contains("active longer than specified deadline"),
        "{message}"
    );
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn neither_a_suspension_nor_a_deadline_waits_until_a_backoff_is_over() -> Result<()> {
    for_each_kind(TRAINING, ends_during_backoff).await
}

/// Waits until the quota's status counts the pods, as admission goes by it.
async fn until_counted(quotas: &Api<ResourceQuota>, pods: &str) -> Result<()> {
    eventually("the quota to be counted", HANG, async || {
        let status = quotas.get("two").await?.status.unwrap_or_default();
        let hard = status.hard.unwrap_or_default();
        let counted = hard.get("pods").is_some_and(|quantity| quantity.0 == pods);
        Ok(if counted {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{hard:?}"))
        })
    })
    .await
}
