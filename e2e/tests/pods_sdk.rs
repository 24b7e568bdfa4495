//! The published Python SDK, unmodified, as its users use it. `e2e/sdk/jobs.py` has the scenarios and checks the results.

mod sdk;

use anyhow::Result;
use e2e::pods::{Site, Weight, shell_of};
use serde_json::{Map, Value, json};
use training_testkit::builders::{Kind, MPI, PYTORCH, TENSORFLOW, XGBOOST};

/// A namespace for one scenario.
async fn site(kind: Kind, scenario: &str, weight: Weight) -> Result<Site> {
    let scenario = scenario.replace('_', "-");
    Site::of(kind, &format!("sdk-{}-{scenario}", kind.container), weight).await
}

/// Runs a scenario in a namespace of its own.
async fn scenario(kind: Kind, name: &'static str, weight: Weight) -> Result<()> {
    let site = site(kind, name, weight).await?;
    let saw = sdk::run(&kind, name, &site.namespace).await?;
    if name == "endings" {
        site.assert_why("fails", "FAILED", &["exit 3 in fails-"])?;
    }
    site.finish(&saw).await
}

/// Reads jobs without fields that the SDK's models expect.
async fn reads_bare_jobs(kind: Kind) -> Result<()> {
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

#[tokio::test]
async fn the_sdk_runs_an_mpi_job_and_reads_the_launchers_log() -> Result<()> {
    scenario(MPI, "mpi", Weight::Heavy).await
}

#[tokio::test]
async fn a_python_client_runs_an_mpi_job_of_v2beta1_reads_and_deletes_it() -> Result<()> {
    scenario(MPI, "mpi_v2beta1", Weight::Heavy).await
}

#[tokio::test]
async fn the_sdk_follows_lists_updates_suspends_and_deletes_a_job() -> Result<()> {
    scenario(PYTORCH, "life", Weight::Light).await
}

#[tokio::test]
async fn the_sdk_tells_jobs_that_fail_wait_or_belong_to_others() -> Result<()> {
    scenario(PYTORCH, "endings", Weight::Light).await
}

#[tokio::test]
async fn the_sdk_reads_jobs_that_were_applied_without_a_run_policy() -> Result<()> {
    reads_bare_jobs(PYTORCH).await
}

#[tokio::test]
async fn the_sdk_follows_lists_updates_suspends_and_deletes_a_tf_job() -> Result<()> {
    scenario(TENSORFLOW, "life", Weight::Light).await
}

#[tokio::test]
async fn the_sdk_tells_tf_jobs_that_fail_wait_or_belong_to_others() -> Result<()> {
    scenario(TENSORFLOW, "endings", Weight::Light).await
}

#[tokio::test]
async fn the_sdk_reads_tf_jobs_that_were_applied_without_a_run_policy() -> Result<()> {
    reads_bare_jobs(TENSORFLOW).await
}

#[tokio::test]
async fn the_sdk_follows_lists_updates_suspends_and_deletes_an_xgboost_job() -> Result<()> {
    scenario(XGBOOST, "life", Weight::Light).await
}

#[tokio::test]
async fn the_sdk_tells_xgboost_jobs_that_fail_wait_or_belong_to_others() -> Result<()> {
    scenario(XGBOOST, "endings", Weight::Light).await
}

#[tokio::test]
async fn the_sdk_reads_xgboost_jobs_that_were_applied_without_a_run_policy() -> Result<()> {
    reads_bare_jobs(XGBOOST).await
}
