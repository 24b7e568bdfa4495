//! Whole lives of the kinds beside `PyTorchJob`, each with its own operator as it is shipped.

use anyhow::Result;
use e2e::{World, look};
use serde_json::Value;
use training_testkit::builders::{KINDS, Kind, PYTORCH, TENSORFLOW, XGBOOST};
use training_testkit::control_plane::{ControlPlane, Options};
use training_testkit::job::{Condition, conditions, counters, is_true};
use training_testkit::kubelet::lockstep;

/// A condition with the published reason of a kind.
fn condition(kind: &Kind, type_: &str, status: &str, message: &str) -> Condition {
    Condition::new(type_, status, &format!("{}{type_}", kind.name), message)
}

/// One master and two workers are made, run and succeed.
async fn succeeds(world: &World, messages: [&str; 3]) -> Result<()> {
    let kind = world.kind;
    let operator = world.operator().await?;
    let job = kind.job("pt").master().workers(2).build();
    world.jobs.create(&job).await?;
    let names = ["pt-master-0", "pt-worker-0", "pt-worker-1"];
    look::until_children(&world.client, world.namespace(), "pt", &names, &names).await?;
    assert_eq!(world.kubelet.all_running(world.namespace(), "pt").await?, 3);
    world.jobs.until_true("pt", "Running").await?;
    assert_eq!(
        world.kubelet.all_succeeded(world.namespace(), "pt").await?,
        3
    );
    let job = world.jobs.until_true("pt", "Succeeded").await?;
    let [created, running, succeeded] = messages;
    assert_eq!(
        conditions(&job),
        [
            condition(&kind, "Created", "True", created),
            condition(&kind, "Running", "False", running),
            condition(&kind, "Succeeded", "True", succeeded),
        ]
    );
    assert_eq!(counters(&job, "Worker").get("succeeded"), Some(&2));
    assert_eq!(
        job["status"]["replicaStatuses"]["Worker"]["selector"],
        Value::Null
    );
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn a_tf_job_is_created_runs_and_succeeds() -> Result<()> {
    let Some(world) = World::of(TENSORFLOW, "tflife", lockstep()).await? else {
        return Ok(());
    };
    let name = format!("{}/pt", world.namespace());
    let running = format!("TFJob {name} is running.");
    let succeeded = format!("TFJob {name} successfully completed.");
    succeeds(&world, ["TFJob pt is created.", &running, &succeeded]).await
}

#[tokio::test]
async fn an_xgboost_job_is_created_runs_and_succeeds() -> Result<()> {
    let Some(world) = World::of(XGBOOST, "xgblife", lockstep()).await? else {
        return Ok(());
    };
    let messages = [
        "XGBoostJob pt is created.",
        "XGBoostJob pt is running.",
        "XGBoostJob pt is successfully completed.",
    ];
    succeeds(&world, messages).await
}

#[tokio::test]
async fn jobs_of_every_kind_fail_suspend_and_resume_and_go_with_what_they_own() -> Result<()> {
    for kind in KINDS.into_iter().filter(|k| *k != PYTORCH) {
        let Some(world) = World::of(kind, "kindends", lockstep()).await? else {
            return Ok(());
        };
        let operator = world.operator().await?;
        let job = kind
            .job("pt")
            .master()
            .workers(2)
            .restart_policy("Worker", "ExitCode");
        let actor = world.actor("pt");
        actor
            .create(job.run_policy("cleanPodPolicy", "All"))
            .await?;
        actor.run(1, 2).await?;
        let suspend = |on: bool| serde_json::json!({"spec": {"runPolicy": {"suspend": on}}});
        world.jobs.merge("pt", &suspend(true)).await?;
        look::until_children(&world.client, world.namespace(), "pt", &[], &[]).await?;
        world.jobs.until_true("pt", "Suspended").await?;
        world.jobs.merge("pt", &suspend(false)).await?;
        actor.run(1, 2).await?;
        world
            .kubelet
            .fail(world.namespace(), "pt-worker-0", 1)
            .await?;
        let job = world.jobs.until_true("pt", "Failed").await?;
        assert!(!is_true(&job, "Running"), "{}", job["status"]);
        let message = r#"job "pt" is failing because "Worker" replica(s) failed."#;
        assert_eq!(
            conditions(&job).last(),
            Some(&condition(&kind, "Failed", "True", message))
        );
        look::until_children(&world.client, world.namespace(), "pt", &[], &[]).await?;
        world.assert_clean(&operator).await?;
    }
    Ok(())
}

/// Where the other kinds are not installed, an operator misses nothing.
#[tokio::test]
async fn each_operator_runs_alone() -> Result<()> {
    for kind in KINDS {
        // Leaked, as the shared one is: a world borrows it for as long as the process lives.
        let control: &'static ControlPlane = Box::leak(Box::new(
            ControlPlane::start(Options {
                controller_manager: true,
                audit: true,
                ..Options::default()
            })
            .await?,
        ));
        control.install(kind.operator).await?;
        let Some(world) = World::made(kind, control, "alone", lockstep()).await? else {
            return Ok(());
        };
        let operator = world.operator().await?;
        let actor = world.actor("pt");
        actor.create(kind.job("pt").master().workers(1)).await?;
        actor.run(1, 1).await?;
        world.jobs.until_true("pt", "Running").await?;
        world.assert_clean(&operator).await?;
    }
    Ok(())
}
