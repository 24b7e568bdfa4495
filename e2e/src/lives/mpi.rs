//! Life cycles of an `MPIJob`: S-12.

use anyhow::Result;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::api::{Api, DeleteParams};
use training_testkit::builders::{Job, MPI};
use training_testkit::job::is_true;
use training_testkit::kubelet::{SeenPod, State};
use training_testkit::wait::{HANG, Seen, eventually};

use super::StepRunner;
use super::actor::count;

/// Longer than a standby on a busy machine needs to take over: otherwise the launcher's Job could be gone before any operator sees how it ended.
const TIME_TO_LIVE: u32 = 10;

/// A life cycle of a job with a launcher and two workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MpiLife {
    /// The launcher succeeds, and the workers are deleted.
    Succeeds,
    /// The launcher's pod fails, its Job creates another one, and that succeeds; the workers stay.
    Retried,
    /// The launcher's pod fails at the backoff limit; the workers are deleted.
    Fails,
    /// A worker fails and is recreated, then the launcher succeeds.
    WorkerReplaced,
    /// The launcher waits for its workers.
    Waits,
    /// Suspended while all run, resumed, succeeds.
    Suspended,
    /// Created suspended, resumed, succeeds.
    BornSuspended,
    /// S-07: the user restarts it while all run; the next launcher succeeds.
    Restarted,
    /// Two workers are scaled to three, then to one, while all run.
    Scaled,
    /// All objects except the job itself are deleted some seconds after its success.
    TimeToLive,
    /// The same for a job of `v1`, which is deleted itself.
    V1TimeToLive,
    /// The user deletes it while all run.
    Deleted,
}

impl MpiLife {
    /// Every life cycle of a sweep.
    pub const ALL: [Self; 12] = [
        Self::Succeeds,
        Self::Retried,
        Self::Fails,
        Self::WorkerReplaced,
        Self::Waits,
        Self::Suspended,
        Self::BornSuspended,
        Self::Restarted,
        Self::Scaled,
        Self::TimeToLive,
        Self::V1TimeToLive,
        Self::Deleted,
    ];

    pub(super) fn job(self, name: &str) -> Job {
        let job = MPI
            .job(name)
            .role("Launcher", 1)
            .workers(2)
            .restart_policy("Launcher", "Never")
            .run_policy("cleanPodPolicy", "Running");
        match self {
            Self::Succeeds
            | Self::WorkerReplaced
            | Self::Suspended
            | Self::Restarted
            | Self::Scaled
            | Self::Deleted => job,
            Self::Retried => job.run_policy("cleanPodPolicy", "None"),
            Self::Fails => job.run_policy("backoffLimit", 0),
            Self::Waits => job.set("/spec/launcherCreationPolicy", "WaitForWorkersReady"),
            Self::BornSuspended => job.run_policy("suspend", true),
            Self::TimeToLive => job.run_policy("ttlSecondsAfterFinished", TIME_TO_LIVE),
            Self::V1TimeToLive => job
                .set("/spec/submittedAs", "v1")
                .run_policy("ttlSecondsAfterFinished", TIME_TO_LIVE),
        }
    }

    pub(super) async fn run(self, actor: &StepRunner<'_>) -> Result<()> {
        let actions = Actions(actor);
        if self == Self::Waits {
            actions.until_workers(2).await?;
            actions.until_launchers(0).await?;
            actor.set("worker-0", &State::Running).await?;
            actor.set("worker-1", &State::Running).await?;
        }
        if self == Self::BornSuspended {
            actions.suspended().await?;
            actor.suspend(false).await?;
        }
        actions.run(2).await?;
        match self {
            Self::Succeeds | Self::Waits | Self::BornSuspended => {
                actions.succeed().await?;
                actions.until_workers(0).await
            }
            Self::Retried => {
                actor.launcher_fails().await?;
                actor
                    .until("with a failed launcher", |job| {
                        count(job, "Launcher", "failed") == 1
                    })
                    .await?;
                actions.until_launchers(1).await?;
                actions.succeed().await?;
                actions.until_workers(2).await
            }
            Self::Fails => {
                actor.launcher_fails().await?;
                actor.until_true("Failed").await?;
                actions.until_workers(0).await
            }
            Self::WorkerReplaced => {
                actor.fails("worker-1", 137).await?;
                actor.until_replaced("worker-1", 1).await?;
                actor.set("worker-1", &State::Running).await?;
                actions.until_active(2).await?;
                actions.succeed().await?;
                actions.until_workers(0).await
            }
            Self::Suspended => {
                actor.suspend(true).await?;
                actions.suspended().await?;
                actor.suspend(false).await?;
                actions.run(2).await?;
                actions.succeed().await?;
                actions.until_workers(0).await
            }
            Self::Restarted => {
                let former = actions.pods("launcher");
                actor.request_restart().await?;
                actor.until_replaced("worker-0", 1).await?;
                actor.until_replaced("worker-1", 1).await?;
                actions.until_others_launch(&former).await?;
                actions.run(2).await?;
                actions.succeed().await?;
                actions.until_workers(0).await
            }
            Self::Scaled => {
                actor.scale(3).await?;
                actions.run(3).await?;
                actor.scale(1).await?;
                actions.until_workers(1).await?;
                actions.until_active(1).await?;
                actions.succeed().await?;
                actions.until_workers(0).await
            }
            Self::TimeToLive => {
                actions.succeed().await?;
                actions.until_workers(0).await?;
                actions.until_launchers(0).await?;
                actor.until_nothing_is_left().await
            }
            Self::V1TimeToLive => {
                actor.launcher_succeeds().await?;
                actor.until_gone().await?;
                actions.until_workers(0).await?;
                actor.until_nothing_is_left().await
            }
            Self::Deleted => {
                actor.delete(&DeleteParams::background()).await?;
                actor.until_gone().await?;
                actions.until_workers(0).await?;
                actions.until_launchers(0).await?;
                actor.until_nothing_is_left().await
            }
        }
    }
}

/// Actions and waits that are specific to this kind.
struct Actions<'a>(&'a StepRunner<'a>);

impl Actions<'_> {
    fn pods(&self, role: &str) -> Vec<SeenPod> {
        let world = self.0.world;
        let mut pods = world.kubelet.pods(world.namespace(), self.0.name);
        pods.retain(|pod| pod.replica.role == role);
        pods
    }

    async fn until(&self, role: &str, wanted: usize, counted: fn(&SeenPod) -> bool) -> Result<()> {
        eventually(&format!("{wanted} pods of the {role}"), HANG, async || {
            let pods = self.pods(role);
            let there = pods.iter().filter(|pod| counted(pod)).count();
            Ok(
                if there == wanted && pods.iter().all(|pod| pod.bound && !pod.deleting) {
                    Seen::Yes(())
                } else {
                    Seen::NotYet(format!("{pods:?}"))
                },
            )
        })
        .await
    }

    /// Waits until there are so many workers, all scheduled.
    async fn until_workers(&self, wanted: usize) -> Result<()> {
        self.until("worker", wanted, |_| true).await
    }

    /// Waits until there are so many launchers that have not ended, all scheduled.
    async fn until_launchers(&self, wanted: usize) -> Result<()> {
        self.until("launcher", wanted, |pod| !pod.is_finished())
            .await
    }

    /// Waits until these launchers are gone, and another one exists.
    async fn until_others_launch(&self, former: &[SeenPod]) -> Result<()> {
        eventually("another launcher", HANG, async || {
            let pods = self.pods("launcher");
            let is_former = |pod: &SeenPod| former.iter().any(|f| f.uid == pod.uid);
            Ok(if pods.is_empty() || pods.iter().any(is_former) {
                Seen::NotYet(format!("{pods:?}"))
            } else {
                Seen::Yes(())
            })
        })
        .await
    }

    /// Waits until the status says that the launcher and so many workers run, and the script lists these workers.
    async fn until_active(&self, workers: usize) -> Result<()> {
        let wanted = i64::try_from(workers)?;
        self.0
            .until_all_run(|job| {
                is_true(job, "Running")
                    && count(job, "Launcher", "active") == 1
                    && count(job, "Worker", "active") == wanted
            })
            .await?;
        let world = self.0.world;
        let configs: Api<ConfigMap> = Api::namespaced(world.client.clone(), world.namespace());
        eventually("a script of the workers that run", HANG, async || {
            let config = configs.get(&format!("{}-config", self.0.name)).await?;
            let script = config.data.unwrap_or_default().remove("discover_hosts.sh");
            let script = script.unwrap_or_default();
            Ok(if script.matches("echo").count() == workers {
                Seen::Yes(())
            } else {
                Seen::NotYet(script)
            })
        })
        .await
    }

    /// Makes launcher and workers run, and waits until the status says so.
    async fn run(&self, workers: usize) -> Result<()> {
        self.until_workers(workers).await?;
        self.until_launchers(1).await?;
        let (world, name) = (self.0.world, self.0.name);
        world.kubelet.all_running(world.namespace(), name).await?;
        self.until_active(workers).await
    }

    async fn succeed(&self) -> Result<()> {
        if self
            .pods("launcher")
            .iter()
            .any(|pod| pod.phase == "Pending")
        {
            self.0.launcher(&State::Running).await?;
        }
        self.0.launcher_succeeds().await?;
        self.0.until_true("Succeeded").await
    }

    async fn suspended(&self) -> Result<()> {
        self.0
            .until("suspended without pods", |job| {
                is_true(job, "Suspended")
                    && count(job, "Launcher", "active") == 0
                    && count(job, "Worker", "active") == 0
            })
            .await?;
        self.until_workers(0).await?;
        self.until_launchers(0).await
    }
}

impl StepRunner<'_> {
    /// Makes launcher and workers run, and waits until the status says so.
    pub(super) async fn run_hosts(&self, workers: usize) -> Result<()> {
        Actions(self).run(workers).await
    }

    /// Waits until its ConfigMap, Secret and Service are gone.
    pub(crate) async fn until_nothing_is_left(&self) -> Result<()> {
        let (client, namespace) = (&self.world.client, self.world.namespace());
        let configs: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        let services: Api<Service> = Api::namespaced(client.clone(), namespace);
        eventually("nothing to be left", HANG, async || {
            let config = configs.get_opt(&format!("{}-config", self.name)).await?;
            let service = services.get_opt(self.name).await?;
            Ok(if config.is_none() && service.is_none() {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{} {}", config.is_some(), service.is_some()))
            })
        })
        .await
    }

    /// Sets the launcher's pod to a state.
    async fn launcher(&self, state: &State) -> Result<()> {
        let kubelet = &self.world.kubelet;
        let pods = kubelet.pods(self.world.namespace(), self.name).into_iter();
        for pod in pods.filter(|pod| pod.replica.role == "launcher" && !pod.is_finished()) {
            kubelet.set(&pod.namespace, &pod.name, state).await?;
        }
        Ok(())
    }

    /// Makes the launcher succeed.
    pub async fn launcher_succeeds(&self) -> Result<()> {
        self.launcher(&State::Succeeded).await
    }

    /// Makes the launcher fail.
    pub async fn launcher_fails(&self) -> Result<()> {
        let message = String::new();
        let exit_code = 1;
        self.launcher(&State::Failed { exit_code, message }).await
    }
}
