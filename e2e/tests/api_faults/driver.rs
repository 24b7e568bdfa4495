//! One job led through its life while something is wrong, and a healthy one beside it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use e2e::{World, look};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use training_testkit::builders::{Job, pytorch_job};
use training_testkit::job::{counters, is_true};
use training_testkit::kubelet::{lockstep, run_and_succeed};
use training_testkit::operator::{OperatorProcess, Options};
use training_testkit::proxy::{Action, Answer, Effect, Proxy, Rule};
use training_testkit::wait::{HANG, Seen, eventually};

/// The job that everything happens to: a master and two workers.
pub const JOB: &str = "pt";
/// The pod that fails while the job runs.
pub const WORKER: &str = "pt-worker-1";
const RANKS: [&str; 3] = ["pt-master-0", "pt-worker-0", WORKER];
/// The healthy job in the other namespace.
const CANARY: &str = "canary";
/// One request with a lost answer may be sent again, and once more; but never without end.
const SAME_POSTS: usize = 3;

/// Where in its life the job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The operator starts, and the job is submitted.
    Creating,
    /// A worker fails and is replaced.
    Running,
    /// All pods succeed, and everything is cleaned up.
    Finishing,
}

impl Phase {
    /// All of them, in their order.
    pub const ALL: [Self; 3] = [Self::Creating, Self::Running, Self::Finishing];
}

/// Whether faults strike again and again, as in `make test-deep`.
pub fn deep() -> bool {
    std::env::var_os("TRAINYARD_DEEP").is_some()
}

/// The world of one fault.
pub struct Trial {
    /// The namespace that the fault is in.
    pub world: World,
    canary: World,
    /// The operator's only way to the API server.
    pub proxy: Proxy,
    kubeconfig: PathBuf,
    operator: Option<OperatorProcess>,
    options: Vec<(&'static str, String)>,
    /// The uid of the worker that failed.
    failed: String,
    submitted: String,
}

impl Trial {
    /// Two namespaces and a proxy; no operator yet. `None` on a cluster where somebody else runs the pods.
    pub async fn set_up(name: &str) -> Result<Option<Self>> {
        let Some(world) = World::start(name, lockstep()).await? else {
            return Ok(None);
        };
        let canary = World::start("canary", run_and_succeed(50, 200)).await?;
        let (proxy, kubeconfig) = world.proxy().await?;
        Ok(canary.map(|canary| Self {
            world,
            canary,
            proxy,
            kubeconfig,
            operator: None,
            options: Vec::new(),
            failed: String::new(),
            submitted: String::new(),
        }))
    }

    /// Sets a flag of the operator that is started later.
    pub fn flag(mut self, name: &'static str, value: &str) -> Self {
        self.options.push((name, value.to_owned()));
        self
    }

    /// The namespace that the fault is in.
    pub fn namespace(&self) -> &str {
        self.world.namespace()
    }

    /// The operator.
    pub fn operator(&self) -> Result<&OperatorProcess> {
        self.operator.as_ref().context("no operator yet")
    }

    /// Starts the operator for both namespaces, and submits the healthy job.
    pub async fn start(&mut self) -> Result<()> {
        let mut options: Options = self.world.options(&self.kubeconfig);
        options.namespace = format!("{},{}", self.namespace(), self.canary.namespace());
        for (name, value) in &self.options {
            options = options.flag(name, value);
        }
        self.operator = Some(OperatorProcess::start(options).await?);
        let canary = pytorch_job(CANARY).master().workers(1).build();
        self.canary.jobs.create(&canary).await?;
        Ok(())
    }

    /// The job as it is submitted: failed workers are replaced, and at the end everything goes.
    pub fn job() -> Job {
        pytorch_job(JOB)
            .master()
            .workers(2)
            .restart_policy("Worker", "ExitCode")
            .run_policy("cleanPodPolicy", "All")
            .run_policy("backoffLimit", 3)
    }

    /// What happens to the job at the beginning of a phase.
    pub async fn begin(&mut self, phase: Phase) -> Result<()> {
        match phase {
            Phase::Creating => {
                self.start().await?;
                let job = self.world.jobs.create(&Self::job().build()).await?;
                let version = job["metadata"]["resourceVersion"].as_str();
                version.unwrap_or_default().clone_into(&mut self.submitted);
                Ok(())
            }
            Phase::Running => {
                let (kubelet, namespace) = (&self.world.kubelet, self.world.namespace());
                let pods = kubelet.pods(namespace, JOB);
                let worker = pods.iter().find(|pod| pod.name == WORKER);
                let uid = &worker.context("no worker")?.uid;
                self.failed.clone_from(uid);
                kubelet.fail(namespace, WORKER, 137).await
            }
            Phase::Finishing => {
                let kubelet = &self.world.kubelet;
                kubelet.all_succeeded(self.namespace(), JOB).await?;
                Ok(())
            }
        }
    }

    /// What must have become of the job at the end of a phase, and what leads to the next.
    pub async fn end(&self, phase: Phase) -> Result<()> {
        let (namespace, jobs) = (self.namespace(), &self.world.jobs);
        match phase {
            Phase::Creating => {
                look::until_children(&self.world.client, namespace, JOB, &RANKS, &RANKS).await?;
                self.world.kubelet.until_pods(namespace, JOB, 3).await?;
                jobs.until_true(JOB, "Created").await?;
                self.until_all_run().await
            }
            Phase::Running => {
                self.until_replaced().await?;
                self.until_all_run().await
            }
            Phase::Finishing => {
                jobs.until_true(JOB, "Succeeded").await?;
                look::until_children(&self.world.client, namespace, JOB, &[], &[]).await
            }
        }
    }

    /// Waits until the worker that failed has a successor on a node.
    pub async fn until_replaced(&self) -> Result<()> {
        eventually("the worker's replacement", HANG, async || {
            let pods = self.world.kubelet.pods(self.namespace(), JOB);
            let worker = pods.iter().find(|pod| pod.name == WORKER);
            let new = worker.is_some_and(|pod| pod.bound && pod.uid != self.failed);
            Ok(if new {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{pods:?}"))
            })
        })
        .await
    }

    /// The uid of the worker's pod.
    pub async fn worker(&self) -> Result<String> {
        let pods: Api<Pod> = Api::namespaced(self.world.client.clone(), self.namespace());
        pods.get(WORKER).await?.metadata.uid.context("no uid")
    }

    /// Waits for another pod of the worker's name.
    pub async fn until_another(&mut self, old: &str) -> Result<()> {
        old.clone_into(&mut self.failed);
        self.until_replaced().await
    }

    /// News that mean nothing.
    pub async fn noise(&self) {
        let pods: Api<Pod> = Api::namespaced(self.world.client.clone(), self.namespace());
        let patch =
            json!({ "metadata": { "annotations": { "noise": fastrand::u64(..).to_string() } } });
        // They may not be there yet, or any more.
        let _ = pods
            .patch(
                "pt-master-0",
                &PatchParams::default(),
                &Patch::Merge(&patch),
            )
            .await;
        let _ = self.world.jobs.merge(JOB, &patch).await;
    }

    async fn until_all_run(&self) -> Result<()> {
        self.world
            .kubelet
            .all_running(self.namespace(), JOB)
            .await?;
        let all = |job: &Value| {
            is_true(job, "Running")
                && counters(job, "Master").get("active") == Some(&1)
                && counters(job, "Worker").get("active") == Some(&2)
        };
        self.world.jobs.until(JOB, "with all active", all).await?;
        Ok(())
    }

    /// Puts rules in place of those that are there.
    pub fn rule(&self, rules: &[Rule]) {
        self.proxy.clear_rules();
        for rule in rules {
            self.proxy.add(rule);
        }
    }

    /// Waits until each of these rules has hit so often.
    pub async fn until_hit(&self, rules: &[Rule], times: usize) -> Result<()> {
        eventually("every rule to hit", HANG, async || {
            let missed = rules.iter().find(|rule| rule.hits() < times);
            Ok(match missed {
                None => Seen::Yes(()),
                Some(rule) => Seen::NotYet(format!("{} hit {} times", rule.name(), rule.hits())),
            })
        })
        .await
    }

    /// Makes the watches of the job's namespace start from a list again: what their streams left out is found.
    pub async fn relist(&self) -> Result<()> {
        let namespace = self.namespace().to_owned();
        let rules = ["pytorchjobs", "pods", "services"].map(|resource| {
            let namespace = namespace.clone();
            let expired = Answer::new(410, "Expired", "too old resource version");
            let action = Action::Answer(Effect::Without, expired);
            Rule::new(&format!("relist {resource}"), action, move |call| {
                call.namespace == namespace && call.is("watch", resource)
            })
            .nth(1)
        });
        self.rule(&rules);
        self.proxy.cut().await?;
        self.until_hit(&rules, 1).await?;
        self.proxy.clear_rules();
        Ok(())
    }

    /// The revision at which the job was submitted.
    pub fn submitted(&self) -> &str {
        &self.submitted
    }

    /// The job's pods were made as often as this, and nothing else happened to them.
    pub fn assert_made(&self, expected: &[(&str, u32)]) {
        let made: BTreeMap<String, u32> = self
            .world
            .auditor
            .summary()
            .into_iter()
            .filter_map(|(object, churn)| {
                Some((object.strip_prefix("Pod/")?.into(), churn.creates))
            })
            .collect();
        let expected = expected.iter().map(|(name, n)| ((*name).to_owned(), *n));
        assert_eq!(made, expected.collect::<BTreeMap<_, _>>());
    }

    /// The healthy job ends well.
    pub async fn until_canary(&self) -> Result<()> {
        self.canary.jobs.until_true(CANARY, "Succeeded").await?;
        Ok(())
    }

    /// The end of every trial: the healthy job is through, nobody found anything wrong, and nothing was sent too often.
    pub async fn assert_clean(&mut self) -> Result<()> {
        self.until_canary().await?;
        let operator = self.operator.as_mut().context("no operator yet")?;
        anyhow::ensure!(
            !operator.has_ended()?,
            "the operator ended:\n{}",
            operator.log()
        );
        anyhow::ensure!(operator.starts() == 1, "the operator was started again");
        let operator = self.operator()?;
        self.world.auditor.until_at_rest().await?;
        self.canary.auditor.until_at_rest().await?;
        self.world.assert_clean(operator).await?;
        self.canary.assert_clean(operator).await?;
        self.proxy.assert_guarded()?;
        self.assert_posts()
    }

    /// F-71: nobody sends one create again and again.
    fn assert_posts(&self) -> Result<()> {
        let summary = self.world.auditor.summary();
        let mut posts: BTreeMap<(String, String), usize> = BTreeMap::new();
        for record in self.proxy.records() {
            let call = record.call;
            let refused = record
                .code
                .is_some_and(|code| matches!(code, 403 | 409 | 429 | 503));
            if call.verb == "create" && call.namespace == self.namespace() && !refused {
                *posts.entry((call.resource, call.name)).or_default() += 1;
            }
        }
        for ((resource, name), sent) in posts {
            let kind = if resource == "pods" { "Pod" } else { "Service" };
            let made = summary.get(&format!("{kind}/{name}"));
            let made = made.map_or(1, |churn| churn.creates as usize).max(1);
            anyhow::ensure!(
                resource == "events" || sent <= SAME_POSTS * made,
                "F-71: {resource} {name} was sent {sent} times and made {made} times"
            );
        }
        Ok(())
    }
}
