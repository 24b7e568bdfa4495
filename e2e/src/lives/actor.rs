//! The actions and waits of user and kubelet in a life cycle.

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedSender;
use training_testkit::RESTART_REQUEST;
use training_testkit::builders::{Job, MPI, SPARK};
use training_testkit::job::{counters, is_true};
use training_testkit::kubelet::State;
use training_testkit::snapshot::Snapshot;
use training_testkit::wait::{HANG, Seen, eventually};

use super::{Held, is_suspended};
use crate::{World, read};

/// The workers of the usual job that has a master or a launcher.
const WORKERS: usize = 2;

/// Receives the name of a job at the moment when its pods change.
pub type Happenings = UnboundedSender<String>;

/// User and kubelet of one job.
pub struct StepRunner<'a> {
    /// The world of the job.
    pub world: &'a World,
    /// The job's name.
    pub name: &'a str,
    /// The request during which the user acts, if the life cycle has one.
    pub held: Option<&'a Held>,
    /// Receives changes of pods.
    pub happenings: Option<&'a Happenings>,
}

impl StepRunner<'_> {
    fn namespace(&self) -> &str {
        self.world.namespace()
    }

    /// Reports a change of the job's pods.
    fn happened(&self) {
        if let Some(happenings) = self.happenings {
            // There may be no receiver.
            let _ = happenings.send(self.name.to_owned());
        }
    }

    pub(super) fn full(&self, rank: &str) -> String {
        format!("{}-{rank}", self.name)
    }

    /// Creates the job as the user.
    pub async fn create(&self, job: Job) -> Result<()> {
        self.world.jobs.create(&job.build()).await.map(drop)
    }

    pub(crate) async fn merge(&self, change: &Value) -> Result<()> {
        self.world.jobs.merge(self.name, change).await.map(drop)
    }

    /// Suspends or resumes the job as the user.
    pub async fn suspend(&self, suspend: bool) -> Result<()> {
        let suspend = json!({ "suspend": suspend });
        self.change_policy(suspend).await
    }

    /// Requests a restart as the user.
    pub(super) async fn request_restart(&self) -> Result<()> {
        let annotations = json!({ RESTART_REQUEST: "1" });
        self.merge(&json!({ "metadata": { "annotations": annotations } }))
            .await
    }

    /// Changes the run policy, which is at different places in different kinds.
    pub(crate) async fn change_policy(&self, change: Value) -> Result<()> {
        let spec = if self.world.kind == SPARK {
            change
        } else {
            json!({ "runPolicy": change })
        };
        self.merge(&json!({ "spec": spec })).await
    }

    pub(super) async fn scale(&self, workers: usize) -> Result<()> {
        let role = json!({ "Worker": { "replicas": workers } });
        let map = self.world.kind.replica_map;
        self.merge(&json!({ "spec": { map: role } })).await
    }

    /// Deletes the job as the user.
    pub async fn delete(&self, parameters: &DeleteParams) -> Result<()> {
        self.world.jobs.delete_with(self.name, parameters).await
    }

    /// Sets a pod to a state.
    pub(super) async fn set(&self, rank: &str, state: &State) -> Result<()> {
        let kubelet = &self.world.kubelet;
        kubelet
            .set(self.namespace(), &self.full(rank), state)
            .await?;
        self.happened();
        Ok(())
    }

    pub(super) async fn fails(&self, rank: &str, exit_code: i32) -> Result<()> {
        let message = String::new();
        self.set(rank, &State::Failed { exit_code, message }).await
    }

    /// Loses a pod's node: the pod becomes not ready, is deleted but stays terminating, and its object is removed, each when the
    /// status shows the step before.
    pub(super) async fn lose_node_of(
        &self,
        rank: &str,
        silent: impl Fn(&Value) -> bool,
        leaves: impl Fn(&Value) -> bool,
    ) -> Result<()> {
        let (kubelet, namespace, pod) = (&self.world.kubelet, self.namespace(), self.full(rank));
        kubelet.finish_deletes(false);
        kubelet.set(namespace, &pod, &State::NodeLost).await?;
        self.until("with a silent node", silent).await?;
        kubelet
            .disrupt(namespace, &pod, "DeletionByTaintManager")
            .await?;
        self.until("with a pod that leaves", leaves).await?;
        kubelet.disappear(namespace, &pod).await?;
        kubelet.finish_deletes(true);
        self.happened();
        Ok(())
    }

    /// Makes these pods succeed in one burst.
    pub(super) async fn succeed(&self, ranks: &[&str]) -> Result<()> {
        let burst = ranks.iter().map(|rank| self.set(rank, &State::Succeeded));
        try_join_all(burst).await.map(drop)
    }

    /// Makes all pods succeed that end by themselves: in an `MPIJob` only the launcher.
    pub async fn all_end_well(&self) -> Result<()> {
        let (kubelet, namespace) = (&self.world.kubelet, self.namespace());
        if self.world.kind != MPI {
            return kubelet.all_succeeded(namespace, self.name).await.map(drop);
        }
        for pod in kubelet.pods(namespace, self.name) {
            let state = match pod.replica.role.as_str() {
                "launcher" => State::Succeeded,
                _ => State::Running,
            };
            if pod.bound && !pod.is_finished() && !pod.deleting && pod.phase != state.phase() {
                kubelet.set(namespace, &pod.name, &state).await?;
            }
        }
        Ok(())
    }

    /// Returns the pods of the usual job: a master and two workers, or three workers of a kind without a master.
    pub(super) fn ranks(&self) -> &'static [&'static str] {
        if self.masters() == 0 {
            &["worker-0", "worker-1", "worker-2"]
        } else {
            &["master-0", "worker-0", "worker-1"]
        }
    }

    /// Returns the pods whose success decides the job's.
    pub(super) fn deciding(&self) -> &'static [&'static str] {
        let all = self.ranks();
        if self.masters() == 0 { all } else { &all[..1] }
    }

    /// Returns the pod that ends last.
    pub(super) fn last(&self) -> &'static str {
        if self.masters() == 0 {
            "worker-2"
        } else {
            "master-0"
        }
    }

    fn masters(&self) -> i64 {
        let (masters, _) = self.world.kind.small_roles(2);
        masters.into()
    }

    /// Makes all pods of the usual job run, and waits until the status says so.
    pub async fn run_all(&self) -> Result<()> {
        match self.world.kind {
            MPI => self.run_hosts(WORKERS).await,
            SPARK => self.run_driver().await,
            _ => self.run(self.masters(), 3 - self.masters()).await,
        }
    }

    /// Waits until the job is suspended and has no pods.
    pub async fn until_suspended(&self) -> Result<()> {
        self.until("suspended", is_suspended).await?;
        eventually("no pod to be left", HANG, async || {
            let pods = self.world.kubelet.pods(self.namespace(), self.name);
            Ok(if pods.is_empty() {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{pods:?}"))
            })
        })
        .await
    }

    pub(super) async fn until_all_active(&self) -> Result<()> {
        let masters = self.masters();
        self.until_active(masters, 3 - masters).await
    }

    /// Makes all pods run in one burst once they are scheduled, and waits until the status says so.
    pub async fn run(&self, masters: i64, workers: i64) -> Result<()> {
        let pods = usize::try_from(masters + workers)?;
        let kubelet = &self.world.kubelet;
        kubelet
            .until_pods(self.namespace(), self.name, pods)
            .await?;
        kubelet.all_running(self.namespace(), self.name).await?;
        self.happened();
        self.until_active(masters, workers).await
    }

    pub(super) async fn until_active(&self, masters: i64, workers: i64) -> Result<()> {
        self.until_all_run(|job| {
            is_true(job, "Running")
                && count(job, "Master", "active") == masters
                && count(job, "Worker", "active") == workers
        })
        .await
    }

    /// Waits until the status says that all pods run, and runs late pods: an operator with stale lists may create a pod of a former
    /// attempt before the right one.
    pub(super) async fn until_all_run(&self, looks: impl Fn(&Value) -> bool) -> Result<()> {
        let (kubelet, namespace) = (&self.world.kubelet, self.namespace());
        eventually("all pods to be active", HANG, async || {
            let job = self.world.jobs.get(self.name).await?;
            if looks(&job) {
                return Ok(Seen::Yes(()));
            }
            for pod in kubelet.pods(namespace, self.name) {
                if pod.bound && !pod.deleting && pod.phase == "Pending" {
                    // It may be gone already.
                    let _ = kubelet.set(namespace, &pod.name, &State::Running).await;
                }
            }
            Ok(Seen::NotYet(job["status"].to_string()))
        })
        .await
    }

    pub(super) async fn until(&self, what: &str, looks: impl Fn(&Value) -> bool) -> Result<()> {
        self.world
            .jobs
            .until(self.name, what, looks)
            .await
            .map(drop)
    }

    pub(super) async fn until_true(&self, condition: &str) -> Result<()> {
        self.until(condition, |job| is_true(job, condition)).await
    }

    /// Waits until there is a new, scheduled pod of this rank: the `incarnation`-th after the first.
    pub(super) async fn until_replaced(&self, rank: &str, incarnation: u32) -> Result<()> {
        let name = self.full(rank);
        eventually(&format!("a new pod {name}"), HANG, async || {
            let pods = self.world.kubelet.pods(self.namespace(), self.name);
            let new = pods
                .iter()
                .any(|pod| pod.name == name && pod.replica.incarnation == incarnation && pod.bound);
            Ok(if new {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{pods:?}"))
            })
        })
        .await
    }

    /// Waits until all of the job's pods are terminating.
    pub(super) async fn until_all_leave(&self) -> Result<()> {
        eventually("all pods to leave", HANG, async || {
            let pods = self.world.kubelet.pods(self.namespace(), self.name);
            Ok(if pods.iter().all(|pod| pod.deleting) {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{pods:?}"))
            })
        })
        .await
    }

    /// Waits until the job has exactly these pods and services.
    pub async fn until_left(&self, pods: &[&str], services: &[&str]) -> Result<()> {
        let full = |ranks: &[&str]| -> Vec<String> { ranks.iter().map(|r| self.full(r)).collect() };
        let (pods, services) = (full(pods), full(services));
        read::until_children(
            &self.world.client,
            self.namespace(),
            self.name,
            &pods.iter().map(String::as_str).collect::<Vec<_>>(),
            &services.iter().map(String::as_str).collect::<Vec<_>>(),
        )
        .await
    }

    /// Waits until the job is gone.
    pub async fn until_gone(&self) -> Result<()> {
        eventually(&format!("{} to be gone", self.name), HANG, async || {
            Ok(if self.world.jobs.exists(self.name).await? {
                Seen::NotYet("it is there".into())
            } else {
                Seen::Yes(())
            })
        })
        .await
    }

    /// Waits until no object of a deleted job is left: the garbage collector deletes them one after the other.
    pub async fn until_all_is_gone(&self) -> Result<()> {
        let (world, jobs) = (self.world, self.world.kind.resource());
        eventually("all that the job had to be gone", HANG, async || {
            let client = world.client.clone();
            let left = Snapshot::take(client, world.namespace(), &jobs, self.name).await?;
            Ok(if left.0.is_empty() {
                Seen::Yes(())
            } else {
                let left: Vec<&String> = left.0.keys().collect();
                Seen::NotYet(format!("{left:?}"))
            })
        })
        .await?;
        world.auditor.settled().await
    }

    /// Waits until the operator has sent the held request.
    pub(super) async fn until_held(&self) -> Result<&Held> {
        let Some(held) = self.held else {
            anyhow::bail!("this life was begun without the request that it holds");
        };
        eventually("the request to be held", HANG, async || {
            Ok(if held.rule.hits() > 0 {
                Seen::Yes(())
            } else {
                Seen::NotYet("no such request".into())
            })
        })
        .await?;
        Ok(held)
    }

    /// Returns the seconds since the job's start, rounded up.
    pub(super) async fn age(&self) -> Result<i64> {
        let job = self.world.jobs.get(self.name).await?;
        let started = job["status"]["startTime"].as_str().unwrap_or_default();
        let started: k8s_openapi::jiff::Timestamp = started.parse()?;
        let age = k8s_openapi::jiff::Timestamp::now().as_second() - started.as_second();
        ensure!(age >= 0, "started in the future");
        Ok(age + 1)
    }
}

/// Returns a counter of a role.
pub(super) fn count(job: &Value, role: &str, counter: &str) -> i64 {
    counters(job, role)
        .get(counter)
        .copied()
        .unwrap_or_default()
}
