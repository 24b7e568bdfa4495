//! Lives of jobs that end the same way however often the operator dies meanwhile.
//!
//! The kubelet does each step only when the job's stored status shows the step before. So what an
//! operator never saw because it was dead is the same as what it saw late, and two runs of a life
//! can be compared object by object.

use anyhow::Result;
use futures::future::try_join_all;
use serde_json::Value;
use tokio::sync::mpsc::UnboundedSender;
use training_testkit::builders::{Job, pytorch_job};
use training_testkit::job::{counters, is_true};
use training_testkit::kubelet::State;
use training_testkit::wait::{HANG, Seen, eventually};

use crate::{World, look};

/// What happens to a job of one master and two workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// All succeed; everything stays.
    Plain,
    /// All succeed; everything goes.
    CleanAll,
    /// The master succeeds while the workers run; those go.
    CleanRunning,
    /// A worker exits with 137 and is replaced, then all succeed.
    RetryableExit,
    /// A worker is evicted and replaced, then all succeed.
    Evicted,
    /// A worker fails for good.
    FatalExit,
}

/// Told of what just happened to the pods of a job, at the moment at which it happened.
pub type Happenings = UnboundedSender<String>;

impl Life {
    /// Every kind of life.
    pub const ALL: [Self; 6] = [
        Self::Plain,
        Self::CleanAll,
        Self::CleanRunning,
        Self::RetryableExit,
        Self::Evicted,
        Self::FatalExit,
    ];

    /// The job that lives so.
    pub fn job(self, name: &str) -> Job {
        let job = pytorch_job(name).master().workers(2);
        match self {
            Self::Plain | Self::Evicted => job,
            Self::CleanAll => job.run_policy("cleanPodPolicy", "All"),
            Self::CleanRunning => job.run_policy("cleanPodPolicy", "Running"),
            Self::RetryableExit => job.restart_policy("Worker", "ExitCode"),
            Self::FatalExit => job.restart_policy("Worker", "Never"),
        }
    }

    /// The ends of the names of the pods and services that are left at the end.
    fn left(self) -> &'static [&'static str] {
        match self {
            Self::CleanAll => &[],
            Self::CleanRunning => &["master-0"],
            Self::Plain | Self::RetryableExit | Self::Evicted | Self::FatalExit => {
                &["master-0", "worker-0", "worker-1"]
            }
        }
    }

    /// Creates the job and leads it to its end.
    pub async fn conduct(self, world: &World, name: &str, happenings: &Happenings) -> Result<()> {
        let namespace = world.namespace();
        let happened = || {
            // Nobody needs to listen.
            let _ = happenings.send(name.to_owned());
        };
        world.jobs.create(&self.job(name).build()).await?;
        world.kubelet.until_pods(namespace, name, 3).await?;
        world.kubelet.all_running(namespace, name).await?;
        happened();
        until_all_active(world, name).await?;

        let worker = format!("{name}-worker-1");
        let failure = match self {
            Self::RetryableExit => Some(State::Failed {
                exit_code: 137,
                message: String::new(),
            }),
            Self::FatalExit => Some(State::Failed {
                exit_code: 1,
                message: String::new(),
            }),
            Self::Evicted => Some(State::Evicted),
            Self::Plain | Self::CleanAll | Self::CleanRunning => None,
        };
        if let Some(failure) = failure {
            world.kubelet.set(namespace, &worker, &failure).await?;
            happened();
        }
        if matches!(self, Self::RetryableExit | Self::Evicted) {
            until_replaced(world, name, &worker).await?;
            world
                .kubelet
                .set(namespace, &worker, &State::Running)
                .await?;
            happened();
            until_all_active(world, name).await?;
        }
        if self == Self::FatalExit {
            world.jobs.until_true(name, "Failed").await?;
        } else {
            if self != Self::CleanRunning {
                let workers = [format!("{name}-worker-0"), worker];
                let ends = workers
                    .iter()
                    .map(|w| world.kubelet.set(namespace, w, &State::Succeeded));
                try_join_all(ends).await?;
                happened();
                let ended = |job: &Value| has(job, "Worker", "succeeded", 2);
                world
                    .jobs
                    .until(name, "with both workers succeeded", ended)
                    .await?;
            }
            world
                .kubelet
                .set(namespace, &format!("{name}-master-0"), &State::Succeeded)
                .await?;
            happened();
            world.jobs.until_true(name, "Succeeded").await?;
        }
        let left: Vec<String> = self
            .left()
            .iter()
            .map(|rank| format!("{name}-{rank}"))
            .collect();
        let left: Vec<&str> = left.iter().map(String::as_str).collect();
        look::until_children(&world.client, namespace, name, &left, &left).await
    }
}

fn has(job: &Value, role: &str, counter: &str, count: i64) -> bool {
    counters(job, role).get(counter) == Some(&count)
}

async fn until_all_active(world: &World, name: &str) -> Result<()> {
    let all = |job: &Value| {
        is_true(job, "Running")
            && has(job, "Master", "active", 1)
            && has(job, "Worker", "active", 2)
    };
    world.jobs.until(name, "with all active", all).await?;
    Ok(())
}

async fn until_replaced(world: &World, name: &str, pod: &str) -> Result<()> {
    eventually(&format!("the replacement of {pod}"), HANG, async || {
        let pods = world.kubelet.pods(world.namespace(), name);
        let new = pods
            .iter()
            .any(|seen| seen.name == pod && seen.replica.incarnation > 0 && seen.bound);
        Ok(if new {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{pods:?}"))
        })
    })
    .await
}
