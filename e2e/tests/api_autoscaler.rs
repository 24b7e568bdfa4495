//! The autoscaler of an elastic job, against a real API server.

use anyhow::Result;
use e2e::World;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use training_testkit::builders::pytorch_job;
use training_testkit::job::{condition, is_true};
use training_testkit::kubelet::lockstep;
use training_testkit::wait::{HANG, Seen, eventually};

/// The API server stores the quantity as `1500m`.
fn metrics(quantity: &str) -> Value {
    json!([
        {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}},
        {"type": "Pods", "pods": {"metric": {"name": "rate"}, "target": {"type": "AverageValue", "averageValue": quantity}}},
    ])
}

fn elastic() -> Value {
    pytorch_job("el")
        .workers(2)
        .set(
            "/spec/elasticPolicy",
            json!({"minReplicas": 1, "maxReplicas": 3, "metrics": metrics("1.5")}),
        )
        .build()
}

fn autoscalers(world: &World) -> Api<HorizontalPodAutoscaler> {
    Api::namespaced(world.client.clone(), world.namespace())
}

/// Waits until the job's autoscaler meets the condition.
async fn until(
    world: &World,
    what: &str,
    good: impl Fn(Option<&HorizontalPodAutoscaler>) -> bool,
) -> Result<Option<HorizontalPodAutoscaler>> {
    let api = autoscalers(world);
    eventually(what, HANG, async || {
        let seen = api.get_opt("el").await?;
        Ok(if good(seen.as_ref()) {
            Seen::Yes(seen)
        } else {
            Seen::NotYet(format!("{:?}", seen.map(|s| s.spec)))
        })
    })
    .await
}

async fn until_there(world: &World) -> Result<HorizontalPodAutoscaler> {
    let seen = until(world, "an autoscaler", |a| a.is_some()).await?;
    seen.ok_or_else(|| anyhow::anyhow!("none"))
}

async fn until_gone(world: &World) -> Result<()> {
    until(world, "no autoscaler", |a| a.is_none()).await?;
    Ok(())
}

#[tokio::test]
async fn an_autoscaler_lives_as_long_as_its_job_runs() -> Result<()> {
    let Some(world) = World::start("autoscaler", lockstep()).await? else {
        return Ok(());
    };
    let (proxy, operator) = world.proxied_operator().await?;
    let job = world.jobs.create(&elastic()).await?;

    let made = until_there(&world).await?;
    assert_eq!(
        (made.spec.min_replicas, made.spec.max_replicas),
        (Some(1), 3)
    );
    assert_eq!(made.spec.scale_target_ref.kind, "PyTorchJob");
    let owner = &made.owner_references()[0];
    assert_eq!(job["metadata"]["uid"], json!(owner.uid));
    assert_eq!(owner.controller, Some(true));

    // The API server normalizes the quantity, which is no reason to write again.
    world.kubelet.until_pods(world.namespace(), "el", 2).await?;
    world.kubelet.all_running(world.namespace(), "el").await?;
    world.jobs.until_true("el", "Running").await?;
    let patched = |what: &String| what.starts_with("patch") && what.contains("autoscalers");
    assert!(!proxy.counts().keys().any(patched), "{:?}", proxy.counts());

    let wider = json!({"spec": {"elasticPolicy": {"maxReplicas": 5, "metrics": metrics("2")}}});
    world.jobs.merge("el", &wider).await?;
    let changed = until(&world, "the new bound", |a| {
        a.is_some_and(|a| a.spec.max_replicas == 5)
    });
    let changed = changed.await?.ok_or_else(|| anyhow::anyhow!("none"))?;
    assert_eq!(changed.uid(), made.uid());
    assert!(proxy.counts().keys().any(patched), "{:?}", proxy.counts());
    let spec = serde_json::to_value(&changed.spec)?;
    assert_eq!(spec["metrics"][1]["pods"]["target"]["averageValue"], "2");

    // Fields that a job can't ask for belong to users.
    let theirs = json!({"spec": {"maxReplicas": 9, "behavior": {"scaleDown": {"stabilizationWindowSeconds": 60}}}});
    let api = autoscalers(&world);
    api.patch("el", &PatchParams::default(), &Patch::Merge(&theirs))
        .await?;
    let back = until(&world, "the job's bound", |a| {
        a.is_some_and(|a| a.spec.max_replicas == 5)
    });
    let back = back.await?.ok_or_else(|| anyhow::anyhow!("none"))?;
    assert!(back.spec.behavior.is_some());

    world
        .jobs
        .merge("el", &json!({"spec": {"runPolicy": {"suspend": true}}}))
        .await?;
    until_gone(&world).await?;
    world
        .jobs
        .merge("el", &json!({"spec": {"runPolicy": {"suspend": false}}}))
        .await?;
    let again = until_there(&world).await?;
    assert_ne!(again.uid(), made.uid());

    api.delete("el", &DeleteParams::default()).await?;
    let other = until(&world, "another one", |a| {
        a.is_some_and(|a| a.uid() != again.uid())
    });
    other.await?;

    world
        .jobs
        .merge("el", &json!({"spec": {"elasticPolicy": {"metrics": null}}}))
        .await?;
    until_gone(&world).await?;
    world
        .jobs
        .merge(
            "el",
            &json!({"spec": {"elasticPolicy": {"metrics": metrics("2")}}}),
        )
        .await?;
    until_there(&world).await?;

    world.kubelet.until_pods(world.namespace(), "el", 2).await?;
    world.kubelet.all_running(world.namespace(), "el").await?;
    world.kubelet.all_succeeded(world.namespace(), "el").await?;
    world.jobs.until_true("el", "Succeeded").await?;
    until_gone(&world).await?;
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn f_17_an_autoscaler_of_somebody_elses_is_left_alone_and_keeps_no_pod() -> Result<()> {
    let Some(world) = World::start("autoscaler-taken", lockstep()).await? else {
        return Ok(());
    };
    let theirs: HorizontalPodAutoscaler = serde_json::from_value(json!({
        "metadata": {"name": "el"},
        "spec": {"maxReplicas": 7, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}},
    }))?;
    let api = autoscalers(&world);
    let before = api.create(&PostParams::default(), &theirs).await?;
    let operator = world.operator().await?;
    world.jobs.create(&elastic()).await?;
    world.kubelet.until_pods(world.namespace(), "el", 2).await?;
    world.kubelet.all_running(world.namespace(), "el").await?;
    let job = world
        .jobs
        .until("el", "running and stalled", |job| {
            is_true(job, "Running") && is_true(job, "Stalled")
        })
        .await?;
    assert_eq!(condition(&job, "Stalled")?.reason, "NameConflict");

    // Meanwhile the operator replaces a failed pod.
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), world.namespace());
    pods.delete("el-worker-1", &DeleteParams::default().grace_period(0))
        .await?;
    world.kubelet.until_pods(world.namespace(), "el", 2).await?;
    let after = api.get("el").await?;
    assert_eq!((&after.spec, after.uid()), (&before.spec, before.uid()));
    let writers = after
        .managed_fields()
        .iter()
        .filter_map(|f| f.manager.as_deref());
    let writers: Vec<&str> = writers.collect();
    assert!(!writers.contains(&"pytorch-operator"), "{writers:?}");

    api.delete("el", &DeleteParams::default()).await?;
    until(&world, "the job's own", |a| {
        a.is_some_and(|a| a.spec.max_replicas == 3)
    })
    .await?;
    world
        .jobs
        .until("el", "going on", |job| !is_true(job, "Stalled"))
        .await?;
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn metrics_that_the_api_server_rejects_are_said_and_can_be_corrected() -> Result<()> {
    let Some(world) = World::start("autoscaler-odd", lockstep()).await? else {
        return Ok(());
    };
    let operator = world.operator().await?;
    let mut job = elastic();
    job["spec"]["elasticPolicy"]["metrics"] = json!([{"type": "Resource"}]);
    world.jobs.create(&job).await?;
    world.kubelet.until_pods(world.namespace(), "el", 2).await?;
    let job = world.jobs.until_true("el", "Stalled").await?;
    let stalled = condition(&job, "Stalled")?;
    assert_eq!(stalled.reason, "AutoscalerInvalid");
    assert!(
        stalled.message.contains("spec.metrics[0]"),
        "{}",
        stalled.message
    );
    let right = json!({"spec": {"elasticPolicy": {"metrics": metrics("1")}}});
    world.jobs.merge("el", &right).await?;
    until_there(&world).await?;
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn an_autoscaler_that_the_go_operator_made_is_the_jobs_own() -> Result<()> {
    let Some(world) = World::start("autoscaler-old", lockstep()).await? else {
        return Ok(());
    };
    let job = world.jobs.create(&elastic()).await?;
    let theirs: HorizontalPodAutoscaler = serde_json::from_value(json!({
        "metadata": {"name": "el", "ownerReferences": [{
            "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "el", "uid": job["metadata"]["uid"],
            "controller": true, "blockOwnerDeletion": true,
        }]},
        "spec": {
            "minReplicas": 1, "maxReplicas": 3, "metrics": metrics("1.5"),
            "scaleTargetRef": {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "el"},
        },
    }))?;
    let before = autoscalers(&world)
        .create(&PostParams::default(), &theirs)
        .await?;
    let operator = world.operator().await?;
    let after = until(&world, "our mark", |a| {
        a.is_some_and(|a| !a.annotations().is_empty())
    });
    let after = after.await?.ok_or_else(|| anyhow::anyhow!("none"))?;
    assert_eq!(after.uid(), before.uid());
    world
        .jobs
        .merge("el", &json!({"spec": {"runPolicy": {"suspend": true}}}))
        .await?;
    until_gone(&world).await?;
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn jobs_without_metrics_cost_no_request_about_autoscalers() -> Result<()> {
    let Some(world) = World::start("autoscaler-none", lockstep()).await? else {
        return Ok(());
    };
    let (proxy, operator) = world.proxied_operator().await?;
    world
        .jobs
        .create(&pytorch_job("pt").master().workers(1).build())
        .await?;
    world.kubelet.until_pods(world.namespace(), "pt", 2).await?;
    world.kubelet.all_running(world.namespace(), "pt").await?;
    world.kubelet.all_succeeded(world.namespace(), "pt").await?;
    world.jobs.until_true("pt", "Succeeded").await?;
    let mut asked = proxy.counts();
    asked.retain(|what, _| what.contains("horizontalpodautoscalers"));
    let others: Vec<&String> = asked
        .keys()
        .filter(|what| !what.starts_with("list") && !what.starts_with("watch"))
        .collect();
    assert!(!asked.is_empty() && others.is_empty(), "{asked:#?}");
    world.assert_clean(&operator).await
}
