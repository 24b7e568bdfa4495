//! The published Python SDK, unmodified, as its users use it. `e2e/sdk/jobs.py` says what it
//! does and judges what comes back.

mod sdk;

use anyhow::Result;
use e2e::pods::{Site, Weight, shell_of};
use serde_json::{Map, Value, json};
use training_testkit::builders::{Kind, PYTORCH};

/// A namespace for one scenario.
async fn site(kind: Kind, scenario: &str, weight: Weight) -> Result<Site> {
    let scenario = scenario.replace('_', "-");
    Site::of(kind, &format!("sdk-{}-{scenario}", kind.container), weight).await
}

/// Runs a scenario in a namespace of its own.
async fn scenario(kind: Kind, name: &'static str, weight: Weight) -> Result<()> {
    let site = site(kind, name, weight).await?;
    let saw = sdk::run(&kind, name, &site.namespace).await?;
    site.finish(&saw).await
}

async fn follows_lists_updates_suspends_and_deletes_a_job(kind: Kind) -> Result<()> {
    scenario(kind, "life", Weight::Light).await
}

async fn tells_jobs_that_fail_wait_or_belong_to_others(kind: Kind) -> Result<()> {
    scenario(kind, "endings", Weight::Light).await
}

async fn reads_jobs_that_were_applied_without_a_run_policy(kind: Kind) -> Result<()> {
    let site = site(kind, "bare", Weight::Light).await?;
    let least = json!({ "Master": { "template": { "spec": shell_of(&kind, "true") } } });
    let replicas = Map::from_iter([(kind.replica_map.to_owned(), least)]);
    let job = |name: &str, policy: Option<Value>| {
        let mut spec = replicas.clone();
        spec.extend(policy.map(|policy| ("runPolicy".to_owned(), policy)));
        json!({
            "apiVersion": "kubeflow.org/v1", "kind": kind.name,
            "metadata": { "name": name }, "spec": spec,
        })
    };
    let policy = json!({ "cleanPodPolicy": "All" });
    site.jobs.create(&job("no-policy", None)).await?;
    site.jobs.create(&job("with-policy", Some(policy))).await?;
    let saw = sdk::run(&kind, "bare", &site.namespace).await?;
    site.finish(&saw).await
}

#[tokio::test]
async fn the_sdk_makes_a_job_of_a_python_function_and_reads_its_logs() -> Result<()> {
    scenario(PYTORCH, "from_function", Weight::Heavy).await
}

/// What the SDK does with jobs of a kind.
macro_rules! the_sdk {
    ($kind:ident: $($does:ident)*) => {
        $(
            #[tokio::test]
            async fn $does() -> anyhow::Result<()> {
                super::$does(training_testkit::builders::$kind).await
            }
        )*
    };
}

mod the_sdk_with_a_pytorch_job {
    the_sdk!(PYTORCH:
        follows_lists_updates_suspends_and_deletes_a_job
        tells_jobs_that_fail_wait_or_belong_to_others
        reads_jobs_that_were_applied_without_a_run_policy);
}

mod the_sdk_with_a_tf_job {
    the_sdk!(TENSORFLOW:
        follows_lists_updates_suspends_and_deletes_a_job
        tells_jobs_that_fail_wait_or_belong_to_others
        reads_jobs_that_were_applied_without_a_run_policy);
}

mod the_sdk_with_an_xgboost_job {
    the_sdk!(XGBOOST:
        follows_lists_updates_suspends_and_deletes_a_job
        tells_jobs_that_fail_wait_or_belong_to_others
        reads_jobs_that_were_applied_without_a_run_policy);
}
