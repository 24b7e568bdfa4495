//! How jobs end, and which objects they leave.

use anyhow::Result;
use e2e::World;
use e2e::read;
use training_testkit::builders::pytorch_job;
use training_testkit::job::{Condition, conditions};
use training_testkit::kubelet::{State, lockstep};
use training_testkit::wait::holds_for;

use super::{STAYS, count, created, run, running};

#[tokio::test]
async fn a_failed_worker_under_never_fails_the_job() -> Result<()> {
    let Some(world) = World::start("never", lockstep()).await? else {
        return Ok(());
    };
    let operator = world.operator().await?;
    run(
        &world,
        pytorch_job("pt")
            .master()
            .workers(2)
            .restart_policy("Worker", "Never"),
    )
    .await?;
    world
        .kubelet
        .fail(world.namespace(), "pt-worker-1", 1)
        .await?;
    let job = world.jobs.until_true("pt", "Failed").await?;
    let message = "PyTorchJob pt is failed because 1 Worker replica(s) failed.";
    assert_eq!(
        conditions(&job),
        [
            created(),
            running("False"),
            Condition::new("Failed", "True", "PyTorchJobFailed", message),
        ]
    );
    assert!(job["status"]["completionTime"].is_string());
    assert_eq!(count(&job, "Worker", "failed"), 1);
    // With the default policy, running pods keep running.
    holds_for(STAYS, async || {
        let pods = read::pods(&world.client, world.namespace(), "pt").await?;
        anyhow::ensure!(pods.len() == 3, "{:?}", read::names(&pods));
        Ok(())
    })
    .await?;
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn a_finished_job_is_cleaned_up_as_its_policy_says() -> Result<()> {
    let Some(world) = World::start("clean", lockstep()).await? else {
        return Ok(());
    };
    let operator = world.operator().await?;
    for (policy, left) in [
        ("None", &["pt-master-0", "pt-worker-0", "pt-worker-1"][..]),
        ("Running", &["pt-master-0"]),
        ("All", &[]),
    ] {
        let job = pytorch_job("pt")
            .master()
            .workers(2)
            .run_policy("cleanPodPolicy", policy);
        run(&world, job).await?;
        world
            .kubelet
            .set(world.namespace(), "pt-master-0", &State::Succeeded)
            .await?;
        let job = world.jobs.until_true("pt", "Succeeded").await?;
        assert_eq!(count(&job, "Master", "succeeded"), 1, "{policy}");
        read::until_children(&world.client, world.namespace(), "pt", left, left).await?;
        holds_for(STAYS, async || {
            let pods = read::names(&read::pods(&world.client, world.namespace(), "pt").await?);
            anyhow::ensure!(pods == left, "{policy}: {pods:?}");
            Ok(())
        })
        .await?;
        // The next round waits for garbage collection, which proves the owner references.
        world.jobs.delete("pt").await?;
        read::until_children(&world.client, world.namespace(), "pt", &[], &[]).await?;
    }
    world.assert_clean(&operator).await
}
