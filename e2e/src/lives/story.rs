//! The steps of each life cycle.

use anyhow::Result;
use kube::api::{DeleteParams, PropagationPolicy};
use serde_json::{Value, json};
use training_testkit::job::is_true;
use training_testkit::kubelet::State;

use super::actor::count;
use super::{CleanPods, Deletion, DeletionTime, HELD, Life, StepRunner};

const WORKERS: [&str; 2] = ["worker-0", "worker-1"];

impl Life {
    /// Creates the job and drives it to its end.
    pub async fn run(self, actor: &StepRunner<'_>) -> Result<()> {
        actor.create(self.job(actor.world.kind, actor.name)).await?;
        match self {
            Self::Succeeds(policy) => {
                actor.run_all().await?;
                actor.succeed(actor.deciding()).await?;
                actor.until_true("Succeeded").await?;
                let left = match policy {
                    CleanPods::None => actor.ranks(),
                    CleanPods::Running => actor.deciding(),
                    CleanPods::All => &[],
                };
                actor.until_left(left, left).await
            }
            Self::RetryableExit => {
                actor.run_all().await?;
                actor.fails("worker-1", 137).await?;
                replaced(actor).await?;
                succeeds(actor).await
            }
            Self::Evicted => {
                actor.run_all().await?;
                actor.set("worker-1", &State::Evicted).await?;
                replaced(actor).await?;
                succeeds(actor).await
            }
            Self::NodeLost => {
                actor.run_all().await?;
                let lost = actor.full("worker-1");
                let silent = |job: &Value| is_true(job, "Stalled");
                let leaves = |job: &Value| job["status"]["lastFailure"]["pod"] == lost;
                actor.lose_node_of("worker-1", silent, leaves).await?;
                replaced(actor).await?;
                succeeds(actor).await
            }
            Self::BackoffLimit => {
                actor.run_all().await?;
                actor.fails("worker-1", 137).await?;
                replaced(actor).await?;
                actor.fails("worker-1", 137).await?;
                actor.until_true("Failed").await?;
                actor.until_left(&["worker-1"], &["worker-1"]).await
            }
            Self::PermanentExit => {
                actor.run_all().await?;
                actor.fails("worker-1", 1).await?;
                actor.until_true("Failed").await?;
                actor.until_left(actor.ranks(), actor.ranks()).await
            }
            Self::Deadline => {
                actor.run_all().await?;
                // About two seconds from now: the operator has to requeue the job by itself.
                let deadline = actor.age().await? + 1;
                let policy = json!({ "activeDeadlineSeconds": deadline });
                actor
                    .merge(&json!({ "spec": { "runPolicy": policy } }))
                    .await?;
                actor.until_true("Failed").await?;
                actor.until_left(&[], &[]).await
            }
            Self::TimeToLive(_) => {
                actor.run_all().await?;
                actor.succeed(actor.deciding()).await?;
                actor.until_gone().await?;
                actor.until_left(&[], &[]).await
            }
            Self::Suspended => {
                actor.run_all().await?;
                actor.suspend(true).await?;
                suspended(actor).await?;
                actor.suspend(false).await?;
                actor.run_all().await?;
                succeeds(actor).await
            }
            Self::BornSuspended => {
                suspended(actor).await?;
                actor.suspend(false).await?;
                actor.run_all().await?;
                succeeds(actor).await
            }
            Self::Restarted => {
                actor.run_all().await?;
                actor.request_restart().await?;
                for rank in actor.ranks() {
                    actor.until_replaced(rank, 1).await?;
                }
                actor.run_all().await?;
                succeeds(actor).await
            }
            Self::Elastic => elastic(actor).await,
            Self::Deleted(time, deletion) => deleted(actor, time, deletion).await,
            Self::Recreated => recreated(actor).await,
            Self::Mpi(life) => life.run(actor).await,
            Self::Spark(life) => life.run(actor).await,
        }
    }
}

/// Waits until worker 1 is replaced for the first time, and makes all run again.
async fn replaced(actor: &StepRunner<'_>) -> Result<()> {
    actor.until_replaced("worker-1", 1).await?;
    actor.set("worker-1", &State::Running).await?;
    actor.until_all_active().await
}

/// Makes two workers succeed, then the master, or the third worker.
async fn succeeds(actor: &StepRunner<'_>) -> Result<()> {
    actor.succeed(&WORKERS).await?;
    actor
        .until("with both workers succeeded", |job| {
            count(job, "Worker", "succeeded") == 2
        })
        .await?;
    actor.succeed(&[actor.last()]).await?;
    actor.until_true("Succeeded").await?;
    actor.until_left(actor.ranks(), actor.ranks()).await
}

async fn suspended(actor: &StepRunner<'_>) -> Result<()> {
    actor
        .until("suspended without pods", |job| {
            is_true(job, "Suspended")
                && count(job, "Master", "active") == 0
                && count(job, "Worker", "active") == 0
        })
        .await?;
    actor.until_left(&[], &[]).await
}

async fn elastic(actor: &StepRunner<'_>) -> Result<()> {
    actor.run(0, 2).await?;
    actor.scale(4).await?;
    actor.run(0, 4).await?;
    actor.scale(1).await?;
    actor.until_left(&["worker-0"], &["worker-0"]).await?;
    actor.until_active(0, 1).await?;
    actor.succeed(&["worker-0"]).await?;
    actor.until_true("Succeeded").await
}

async fn deleted(actor: &StepRunner<'_>, time: DeletionTime, deletion: Deletion) -> Result<()> {
    match time {
        DeletionTime::Creating => {
            actor.until_held().await?;
            let others = actor.ranks().iter().copied();
            let others: Vec<&str> = others.filter(|rank| *rank != HELD).collect();
            actor.until_left(&others, actor.ranks()).await?;
        }
        DeletionTime::Running => actor.run_all().await?,
        DeletionTime::Finishing => {
            actor.run_all().await?;
            actor.succeed(actor.deciding()).await?;
            actor.until_true("Succeeded").await?;
            actor.until_held().await?;
            actor.until_left(&[HELD], &[]).await?;
        }
    }
    let policy = match deletion {
        Deletion::Background => PropagationPolicy::Background,
        Deletion::Foreground => PropagationPolicy::Foreground,
        Deletion::Orphan => PropagationPolicy::Orphan,
    };
    let parameters = DeleteParams {
        propagation_policy: Some(policy),
        ..DeleteParams::default()
    };
    actor.delete(&parameters).await?;
    if let Some(held) = actor.held {
        held.gate.open();
    }
    actor.until_gone().await?;
    match (time, deletion) {
        (_, Deletion::Background | Deletion::Foreground) => actor.until_left(&[], &[]).await,
        (DeletionTime::Running, Deletion::Orphan) => {
            actor.until_left(actor.ranks(), actor.ranks()).await
        }
        // The held request races with the removal of the owner.
        (DeletionTime::Creating | DeletionTime::Finishing, Deletion::Orphan) => Ok(()),
    }
}

async fn recreated(actor: &StepRunner<'_>) -> Result<()> {
    actor.run_all().await?;
    actor.world.kubelet.finish_deletes(false);
    actor.delete(&DeleteParams::background()).await?;
    actor.until_gone().await?;
    actor.until_left(actor.ranks(), &[]).await?;
    actor.until_all_leave().await?;
    actor
        .create(Life::Recreated.job(actor.world.kind, actor.name))
        .await?;
    actor.until_true("Stalled").await?;
    actor.world.kubelet.finish_deletes(true);
    for rank in actor.ranks() {
        actor.until_replaced(rank, 1).await?;
    }
    actor.run_all().await?;
    succeeds(actor).await
}
