//! What is created again after a failure, and what is not.

use anyhow::{Context as _, Result};
use e2e::World;
use e2e::read::{self, by_rank};
use serde_json::Value;
use training_testkit::builders::pytorch_job;
use training_testkit::control_plane::PYTORCH_OPERATOR;
use training_testkit::job::{Condition, conditions};
use training_testkit::kubelet::{State, lockstep};
use training_testkit::operator::OperatorProcess;
use training_testkit::wait::{HANG, Seen, eventually};

use super::{run, succeeds_after_all};

async fn replacement(world: &World, rank: &str, old: &str) -> Result<Value> {
    eventually(&format!("a new pod {rank}"), HANG, async || {
        let pods = read::pods(&world.client, world.namespace(), "pt").await?;
        let new = by_rank(&pods, "pt", rank)
            .ok()
            .filter(|pod| pod["metadata"]["uid"] != old);
        Ok(
            new.map_or(Seen::NotYet(format!("{:?}", read::names(&pods))), |pod| {
                Seen::Yes(pod.clone())
            }),
        )
    })
    .await
}

async fn uid(world: &World, rank: &str) -> Result<String> {
    let pods = read::pods(&world.client, world.namespace(), "pt").await?;
    let uid = by_rank(&pods, "pt", rank)?["metadata"]["uid"].as_str();
    Ok(uid.context("a pod without a uid")?.to_owned())
}

#[tokio::test]
async fn an_evicted_worker_is_replaced_under_on_failure() -> Result<()> {
    let Some(world) = World::start("evicted", lockstep()).await? else {
        return Ok(());
    };
    let operator = world.operator().await?;
    run(&world, pytorch_job("pt").master().workers(2)).await?;
    let old = uid(&world, "worker-1").await?;
    world
        .kubelet
        .set(world.namespace(), "pt-worker-1", &State::Evicted)
        .await?;
    let new = replacement(&world, "worker-1", &old).await?;
    assert_eq!(
        new["metadata"]["annotations"]["trainyard.dev/attempt"],
        "0.1"
    );
    succeeds_after_all(&world).await?;
    let churn = world.auditor.summary()["Pod/pt-worker-1"];
    assert_eq!((churn.creates, churn.deletes), (2, 1));
    let events = read::events_with(
        &world.client,
        world.namespace(),
        "pt",
        "PyTorchJobSucceeded",
    )
    .await?;
    let restarting = events
        .iter()
        .find(|event| event.1 == "PyTorchJobRestarting");
    assert_eq!(
        restarting.map(|event| (event.0.as_str(), event.2.as_str())),
        Some((
            "Warning",
            "job pt is restarting because Worker replica(s) failed."
        )),
        "{events:?}"
    );
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn an_exit_code_decides_between_replacement_and_failure() -> Result<()> {
    let Some(world) = World::start("exitcode", lockstep()).await? else {
        return Ok(());
    };
    // Both exit codes come within a minute; otherwise the second would only count in a summary event.
    let kubeconfig = world.control.kubeconfig(PYTORCH_OPERATOR).await?;
    let options = world.options(&kubeconfig).flag("events", "full");
    let operator = OperatorProcess::start(options).await?;
    run(
        &world,
        pytorch_job("pt")
            .master()
            .workers(2)
            .restart_policy("Worker", "ExitCode"),
    )
    .await?;
    let pods = read::pods(&world.client, world.namespace(), "pt").await?;
    assert_eq!(
        by_rank(&pods, "pt", "worker-0")?["spec"]["restartPolicy"],
        "Never"
    );

    let old = uid(&world, "worker-0").await?;
    world
        .kubelet
        .fail(world.namespace(), "pt-worker-0", 137)
        .await?;
    let new = replacement(&world, "worker-0", &old).await?;
    assert_eq!(
        new["metadata"]["annotations"]["trainyard.dev/attempt"],
        "0.1"
    );
    world.actor("pt").run(1, 2).await?;

    world
        .kubelet
        .fail(world.namespace(), "pt-worker-0", 1)
        .await?;
    let job = world.jobs.until_true("pt", "Failed").await?;
    let message = r#"job "pt" is failing because "Worker" replica(s) failed."#;
    assert_eq!(
        conditions(&job).last(),
        Some(&Condition::new(
            "Failed",
            "True",
            "PyTorchJobFailed",
            message
        ))
    );
    assert!(job["status"]["completionTime"].is_string());
    // Events are written in parallel to the status, one after another.
    let place = format!("Pod: {}.pt-worker-0 exited with code", world.namespace());
    eventually("an event for each exit code", HANG, async || {
        let events = read::events(&world.client, world.namespace(), "pt").await?;
        let told = |code: u8| {
            let text = format!("{place} {code}");
            events
                .iter()
                .any(|e| e.1 == "ExitedWithCode" && e.2 == text)
        };
        Ok(if told(137) && told(1) {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{events:?}"))
        })
    })
    .await?;
    world.assert_clean(&operator).await
}
