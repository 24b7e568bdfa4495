//! The published Python SDK, unmodified, as its users use it. `e2e/sdk/pytorchjob.py` says what it
//! does and judges what comes back.

mod sdk;

use anyhow::Result;
use e2e::pods::{Site, Weight, shell};
use serde_json::{Value, json};

/// Runs a scenario in a namespace of its own.
async fn scenario(name: &'static str, weight: Weight) -> Result<()> {
    let site = Site::open(&format!("sdk-{}", name.replace('_', "-")), weight).await?;
    let saw = sdk::run(name, &site.namespace).await?;
    site.finish(&saw).await
}

#[tokio::test]
async fn the_sdk_makes_a_job_of_a_python_function_and_reads_its_logs() -> Result<()> {
    scenario("from_function", Weight::Heavy).await
}

#[tokio::test]
async fn the_sdk_follows_lists_updates_suspends_and_deletes_a_job() -> Result<()> {
    scenario("life", Weight::Light).await
}

#[tokio::test]
async fn the_sdk_tells_jobs_that_fail_wait_or_belong_to_others() -> Result<()> {
    scenario("endings", Weight::Light).await
}

#[tokio::test]
async fn the_sdk_reads_jobs_that_were_applied_without_a_run_policy() -> Result<()> {
    let site = Site::open("sdk-bare", Weight::Light).await?;
    let least = json!({ "Master": { "template": { "spec": shell("true") } } });
    let job = |name: &str, more: &Value| {
        let mut spec = more.clone();
        spec["pytorchReplicaSpecs"] = least.clone();
        json!({
            "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob",
            "metadata": { "name": name }, "spec": spec,
        })
    };
    let policy = json!({ "runPolicy": { "cleanPodPolicy": "All" } });
    site.jobs.create(&job("no-policy", &json!({}))).await?;
    site.jobs.create(&job("with-policy", &policy)).await?;
    let saw = sdk::run("bare", &site.namespace).await?;
    site.finish(&saw).await
}
