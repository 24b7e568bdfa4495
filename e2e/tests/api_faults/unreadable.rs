//! A resource that the operator may not read blocks nothing else.

use anyhow::Result;
use e2e::World;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::api::Api;
use serde_json::{Value, json};
use training_testkit::builders::{PYTORCH, pytorch_job};
use training_testkit::job::Jobs;
use training_testkit::kubelet::lockstep;
use training_testkit::namespace::Namespace;
use training_testkit::operator::{OperatorProcess, Options};
use training_testkit::proxy::{Action, Answer, Effect, Rule};
use training_testkit::wait::{HANG, Seen, eventually};

#[tokio::test]
async fn a_namespace_that_cant_be_read_keeps_no_other_from_being_served() -> Result<()> {
    let Some(world) = World::start("readable", lockstep()).await? else {
        return Ok(());
    };
    let other = Namespace::create(world.control, "unreadable").await?;
    let (proxy, kubeconfig) = world.proxy().await?;
    let name = other.name.clone();
    let denied = Action::Answer(
        Effect::Without,
        Answer::new(403, "Forbidden", "you may not"),
    );
    let rule = Rule::new("unreadable", denied, move |call| {
        call.namespace == name && matches!(call.verb, "list" | "watch")
    });
    proxy.add(&rule);
    let both = format!("{},{}", world.namespace(), other.name);
    let log = world.file("operator.log");
    let options = Options::new(world.kind.operator, &kubeconfig, &both, &log);
    let mut operator = OperatorProcess::spawn(options)?;
    let job = pytorch_job("pt").master().workers(1).build();
    world.jobs.create(&job).await?;
    let waits = Jobs::of(world.client.clone(), &other.name, &PYTORCH.resource());
    waits.create(&job).await?;
    world.kubelet.until_pods(world.namespace(), "pt", 2).await?;
    world.kubelet.all_running(world.namespace(), "pt").await?;
    world.jobs.until_true("pt", "Running").await?;
    anyhow::ensure!(rule.hits() > 0, "it could be read");
    let stored = waits.get("pt").await?;
    assert_eq!(
        stored["status"],
        Value::Null,
        "nothing is known of its pods"
    );
    let (code, body) = operator.probe("/readyz").await?;
    assert_eq!(code, 503, "{body}");
    for feed in ["jobs", "pods", "services"] {
        let missing = format!("{feed} (namespaces: {})", other.name);
        anyhow::ensure!(body.contains(&missing), "{body}");
    }
    let metrics = operator.metrics().await?;
    for (namespace, up) in [(world.namespace(), 1), (&*other.name, 0)] {
        let series = format!(r#"trainyard_watch_up{{watch="pods",namespace="{namespace}"}} {up}"#);
        anyhow::ensure!(metrics.contains(&series), "no {series} in\n{metrics}");
    }
    proxy.clear_rules();
    waits.until_true("pt", "Created").await?;
    operator.until_ready().await?;
    world.kubelet.all_succeeded(world.namespace(), "pt").await?;
    world.jobs.until_true("pt", "Succeeded").await?;
    world.assert_clean(&operator).await
}

/// Only autoscalers can't be read: jobs train, and an elastic job gets its autoscaler as soon as they can.
#[tokio::test]
async fn autoscalers_that_cant_be_read_keep_no_job_from_training() -> Result<()> {
    let Some(world) = World::start("unscaled", lockstep()).await? else {
        return Ok(());
    };
    let (proxy, kubeconfig) = world.proxy().await?;
    let denied = Action::Answer(
        Effect::Without,
        Answer::new(403, "Forbidden", "you may not"),
    );
    let rule = Rule::new("unscaled", denied, |call| {
        call.resource == "horizontalpodautoscalers" && matches!(call.verb, "list" | "watch")
    });
    proxy.add(&rule);
    let log = world.file("operator.log");
    let options = Options::new(world.kind.operator, &kubeconfig, world.namespace(), &log);
    let mut operator = OperatorProcess::spawn(options)?;
    let hpas: Api<HorizontalPodAutoscaler> =
        Api::namespaced(world.client.clone(), world.namespace());
    let metrics = json!([{
        "type": "Resource",
        "resource": { "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 80 } },
    }]);
    let elastic = json!({ "minReplicas": 1, "maxReplicas": 3, "metrics": metrics });
    let grows = pytorch_job("grows").workers(2);
    let grows = grows.set("/spec/elasticPolicy", elastic).build();
    let plain = pytorch_job("plain").master().workers(1).build();
    for (name, job) in [("grows", grows), ("plain", plain)] {
        world.jobs.create(&job).await?;
        world.kubelet.until_pods(world.namespace(), name, 2).await?;
        world.kubelet.all_running(world.namespace(), name).await?;
        world.jobs.until_true(name, "Running").await?;
    }
    anyhow::ensure!(rule.hits() > 0, "they could be read");
    assert_eq!(hpas.get_opt("grows").await?, None);
    let (code, body) = operator.probe("/readyz").await?;
    assert_eq!(code, 503, "{body}");
    assert!(body.contains("autoscalers"), "{body}");
    proxy.clear_rules();
    eventually("the autoscaler", HANG, async || {
        Ok(match hpas.get_opt("grows").await? {
            Some(_) => Seen::Yes(()),
            None => Seen::NotYet("none".to_owned()),
        })
    })
    .await?;
    operator.until_ready().await?;
    for name in ["grows", "plain"] {
        world.kubelet.all_succeeded(world.namespace(), name).await?;
        world.jobs.until_true(name, "Succeeded").await?;
    }
    world.assert_clean(&operator).await
}
