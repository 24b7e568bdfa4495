//! Jobs that wait for something, report what it is, and go on by themselves.

use anyhow::{Result, ensure};
use e2e::pods::{
    MASTER, Row, Site, UNTIL_GO, WORKER, Weight, created, eventually, no_longer_running, pair,
    said, shell, succeeded,
};
use k8s_openapi::api::core::v1::{ConfigMap, Node, ResourceQuota};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use training_testkit::job::{Condition, condition, conditions, is_true};
use training_testkit::wait::{Seen, holds_for};

use super::STAYS;

const MISSING: &str = "trainyard.test/missing:1";

/// Waits until a job is stalled for this reason, and checks that it shows everywhere: as first condition, as an event, in kubectl's
/// description and its column WAITING. Returns the message.
async fn until_stalled(site: &Site, job: &str, reason: &str) -> Result<String> {
    let object = eventually(&format!("{job} stalled with {reason}"), async || {
        let object = site.jobs.get(job).await?;
        let first = conditions(&object).into_iter().next();
        let holds = first.is_some_and(|c| {
            (c.kind.as_str(), c.status.as_str(), c.reason.as_str()) == ("Stalled", "True", reason)
        });
        Ok(if holds {
            Seen::Yes(object)
        } else {
            Seen::NotYet(object["status"].to_string())
        })
    })
    .await?;
    let events = site.events(job, reason).await?;
    said(&events, "Warning", reason)?;
    let stalled = condition(&object, "Stalled")?;
    let text = site.describe(job)?;
    // kubectl wraps long lines.
    for word in [reason, "Stalled"] {
        assert!(text.contains(word), "{text}");
    }
    let row = site.row(job)?;
    assert_ne!(row.state, "Stalled", "the last condition is the state");
    assert_eq!(row.waiting, reason, "the column WAITING of {row:?}");
    site.assert_why(job, "WAITING", &[reason])?;
    Ok(stalled.message)
}

/// Finishes a job that goes on, and checks that only the condition's message is left of the problem; the column WAITING is empty.
async fn goes_on(site: &Site, job: &str, reason: &str) -> Result<()> {
    site.until(job, "not stalled, and ready", |object| {
        !is_true(object, "Stalled") && object["status"]["ready"] == "2/2"
    })
    .await?;
    site.go().await?;
    site.until_true(job, "Succeeded").await?;
    let over = Condition::new("Stalled", "False", reason, "The job continues.");
    let object = site
        .assert_reads(
            job,
            &[over, created(job), no_longer_running(job), succeeded(job)],
            &Row::new("Succeeded", "2/2", 0, "PyTorchJobSucceeded"),
        )
        .await?;
    let status = &object["status"];
    assert_eq!(status["lastFailure"], Value::Null, "{status}");
    for (name, churn) in site.summary() {
        assert_eq!((churn.creates, churn.deletes), (1, 0), "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn a_job_whose_image_can_not_be_pulled_says_so_and_goes_on_once_it_can() -> Result<()> {
    let site = Site::open("image", Weight::Light).await?;
    let job = pair("pt", shell(UNTIL_GO), shell(UNTIL_GO))
        .set(&format!("{WORKER}/containers/0/image"), MISSING);
    site.jobs.create(&job.build()).await?;
    let told = until_stalled(&site, "pt", "ImagePullBackOff").await?;
    for word in ["pt-worker-0", "pytorch", MISSING] {
        assert!(told.contains(word), "{told}");
    }
    let mended = json!({ "spec": { "containers": [
        { "name": "pytorch", "image": shell("")["containers"][0]["image"] },
    ] } });
    site.pods()
        .patch(
            "pt-worker-0",
            &PatchParams::default(),
            &Patch::Strategic(&mended),
        )
        .await?;
    goes_on(&site, "pt", "ImagePullBackOff").await?;
    site.finish(&told).await
}

#[tokio::test]
async fn a_job_whose_image_may_not_be_pulled_waits_and_says_so() -> Result<()> {
    let site = Site::open("never", Weight::Light).await?;
    let job = pair("pt", shell(UNTIL_GO), shell(UNTIL_GO))
        .set(&format!("{MASTER}/containers/0/image"), MISSING)
        .set(&format!("{MASTER}/containers/0/imagePullPolicy"), "Never");
    site.jobs.create(&job.build()).await?;
    let told = until_stalled(&site, "pt", "ErrImageNeverPull").await?;
    assert!(told.contains("pt-master-0"), "{told}");
    holds_for(STAYS, async || {
        let row = site.row("pt")?;
        ensure!(row.state == "Created", "{row:?}");
        ensure!(row.reason == "PyTorchJobCreated", "{row:?}");
        Ok(())
    })
    .await?;
    site.finish(&told).await
}

#[tokio::test]
async fn b_118_a_job_that_needs_a_missing_config_map_goes_on_when_it_is_made() -> Result<()> {
    let site = Site::open("config", Weight::Light).await?;
    let mut worker = shell(&format!("echo rate $RATE; {UNTIL_GO}"));
    worker["containers"][0]["env"] = json!([{
        "name": "RATE", "valueFrom": { "configMapKeyRef": { "name": "settings", "key": "rate" } },
    }]);
    site.jobs
        .create(&pair("pt", shell(UNTIL_GO), worker).build())
        .await?;
    let told = until_stalled(&site, "pt", "CreateContainerConfigError").await?;
    for word in ["pt-worker-0", "settings"] {
        assert!(told.contains(word), "{told}");
    }
    let settings = json!({ "metadata": { "name": "settings" }, "data": { "rate": "0.1" } });
    Api::<ConfigMap>::namespaced(site.client.clone(), &site.namespace)
        .create(&PostParams::default(), &serde_json::from_value(settings)?)
        .await?;
    goes_on(&site, "pt", "CreateContainerConfigError").await?;
    let log = site.log("pt-worker-0").await?;
    assert_eq!(log.lines().next(), Some("rate 0.1"));
    site.finish(&told).await
}

#[tokio::test]
async fn a_job_beyond_its_quota_goes_on_when_that_is_lifted() -> Result<()> {
    let site = Site::open("quota", Weight::Light).await?;
    let quotas: Api<ResourceQuota> = Api::namespaced(site.client.clone(), &site.namespace);
    let quota = json!({ "metadata": { "name": "one" }, "spec": { "hard": { "pods": "1" } } });
    quotas
        .create(&PostParams::default(), &serde_json::from_value(quota)?)
        .await?;
    // The quota takes effect once its use is counted.
    eventually("a quota that holds", async || {
        let status = quotas.get("one").await?.status.unwrap_or_default();
        Ok(match status.used.filter(|used| !used.is_empty()) {
            Some(_) => Seen::Yes(()),
            None => Seen::NotYet(format!("{:?}", status.hard)),
        })
    })
    .await?;
    site.jobs
        .create(&pair("pt", shell(UNTIL_GO), shell(UNTIL_GO)).build())
        .await?;
    let told = until_stalled(&site, "pt", "QuotaExceeded").await?;
    assert!(told.contains("exceeded quota: one"), "{told}");
    quotas.delete("one", &DeleteParams::default()).await?;
    goes_on(&site, "pt", "QuotaExceeded").await?;
    site.finish(&told).await
}

#[tokio::test]
async fn a_job_that_no_node_takes_says_so_and_goes_on_when_one_does() -> Result<()> {
    let site = Site::open("place", Weight::Light).await?;
    let label = format!("trainyard.dev/{}", site.namespace);
    let mut worker = shell(UNTIL_GO);
    worker["nodeSelector"] = json!({ &label: "here" });
    site.jobs
        .create(&pair("pt", shell(UNTIL_GO), worker).build())
        .await?;
    let told = until_stalled(&site, "pt", "Unschedulable").await?;
    for word in ["pt-worker-0", "node"] {
        assert!(told.contains(word), "{told}");
    }
    let nodes: Api<Node> = Api::all(site.client.clone());
    let node = nodes.list(&ListParams::default()).await?.items[0].name_any();
    let labelled = |value: Value| json!({ "metadata": { "labels": { &label: value } } });
    let set = async |value: Value| {
        let patch = Patch::Merge(labelled(value));
        nodes.patch(&node, &PatchParams::default(), &patch).await
    };
    set(json!("here")).await?;
    let went_on = goes_on(&site, "pt", "Unschedulable").await;
    set(Value::Null).await?;
    went_on?;
    site.finish(&told).await
}
