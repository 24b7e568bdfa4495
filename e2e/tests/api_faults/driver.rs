//! Drives one job through its life cycle during a fault, and a healthy job beside it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use e2e::lives::has_succeeded;
use e2e::{World, read};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::ApiResource;
use serde_json::json;
use training_testkit::builders::{Job, MPI, PYTORCH, SPARK, pytorch_job};
use training_testkit::control_plane::ControlPlane;
use training_testkit::kubelet::{SeenPod, State, lockstep};
use training_testkit::operator::{OperatorProcess, Options};
use training_testkit::proxy::{Action, Answer, Effect, Proxy, Record, Rule};
use training_testkit::wait::{HANG, Seen, eventually};

use super::campaign::on;
use super::life::{Life, WORKERS};

/// The job that the fault hits: a master and two workers, where its kind has them.
pub const JOB: &str = "pt";
/// The pod that fails while the job runs, where its kind has it.
pub const WORKER: &str = "pt-worker-1";
/// The healthy job in the other namespace.
const CANARY: &str = "canary";
/// A request with a lost answer may be sent again, and once more, but not without end.
const SAME_POSTS: usize = 3;

/// A phase of the job's life cycle.
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
    /// All phases in order.
    pub const ALL: [Self; 3] = [Self::Creating, Self::Running, Self::Finishing];
}

/// The test environment of one fault.
pub struct FaultTest {
    /// The kind and the life cycle of the jobs.
    pub life: Life,
    /// The namespace that the fault affects.
    pub world: World,
    canary: World,
    /// The operator's only way to the API server.
    pub proxy: Proxy,
    kubeconfig: PathBuf,
    operator: Option<OperatorProcess>,
    options: Vec<(&'static str, String)>,
    output: Option<PathBuf>,
    workers: u32,
    /// The pod that failed last.
    victim: String,
    /// The failed pod's uid.
    failed: String,
    /// The number of failures by pod.
    failures: BTreeMap<String, u32>,
    submitted: String,
}

/// Whether the error says that the object doesn't exist.
fn is_gone(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(kube::Error::Api(status)) if status.code == 404)
}

impl FaultTest {
    /// Prepares two namespaces and a proxy for `PyTorchJob`s, without an operator. `None` on a cluster with a kubelet of its own.
    pub async fn set_up(name: &str) -> Result<Option<Self>> {
        Self::of(Life(PYTORCH), name).await
    }

    /// Same as [`Self::set_up`] for any kind.
    pub async fn of(life: Life, name: &str) -> Result<Option<Self>> {
        Self::on(ControlPlane::shared().await?, life, name).await
    }

    /// Same as [`Self::of`] on a prepared control plane.
    pub async fn on(
        control: &'static ControlPlane,
        life: Life,
        name: &str,
    ) -> Result<Option<Self>> {
        control.install(life.0.operator).await?;
        let Some(world) = World::made(life.0, control, name, lockstep()).await? else {
            return Ok(None);
        };
        let canary = World::made(life.0, control, "canary", life.canary_script()).await?;
        let (proxy, kubeconfig) = world.proxy().await?;
        Ok(canary.map(|canary| Self {
            life,
            world,
            canary,
            proxy,
            kubeconfig,
            operator: None,
            options: Vec::new(),
            output: None,
            workers: WORKERS,
            victim: life.victim().to_owned(),
            failed: String::new(),
            failures: BTreeMap::new(),
            submitted: String::new(),
        }))
    }

    /// Sends the requests of the operator, which starts later, through another proxy.
    pub async fn go_through(&mut self, proxy: Proxy) -> Result<()> {
        let token = self.world.control.token(&self.life.0.user()).await?;
        proxy.write_kubeconfig(&self.kubeconfig, &token)?;
        self.proxy = proxy;
        Ok(())
    }

    /// Sets a flag of the operator, which starts later.
    pub fn flag(mut self, name: &'static str, value: &str) -> Self {
        self.options.push((name, value.to_owned()));
        self
    }

    /// Sets the number of workers of the job, which is submitted later.
    pub fn workers(mut self, workers: u32) -> Self {
        self.workers = workers;
        self
    }

    /// Sets the log file of the operator, which starts later; nothing reads it.
    pub fn output(mut self, path: &str) -> Self {
        self.output = Some(path.into());
        self
    }

    /// Sets flags of the operator, which starts later.
    pub fn flags(self, flags: &[(&'static str, &str)]) -> Self {
        let all = flags.iter();
        all.fold(self, |test, (name, value)| test.flag(name, value))
    }

    /// The namespace that the fault affects.
    pub fn namespace(&self) -> &str {
        self.world.namespace()
    }

    /// The operator's kubeconfig.
    pub fn kubeconfig(&self) -> &std::path::Path {
        &self.kubeconfig
    }

    /// The operator.
    pub fn operator(&self) -> Result<&OperatorProcess> {
        self.operator.as_ref().context("no operator yet")
    }

    /// The operator, mutable.
    pub fn operator_mut(&mut self) -> Result<&mut OperatorProcess> {
        self.operator.as_mut().context("no operator yet")
    }

    /// Starts the operator for both namespaces, and submits the healthy job.
    pub async fn start(&mut self) -> Result<()> {
        self.operator = Some(OperatorProcess::start(self.operator_options()).await?);
        self.canary.jobs.create(&self.life.canary(CANARY)).await?;
        Ok(())
    }

    /// Kills the operator and starts its successor, without waiting until that is ready.
    pub fn replace_operator(&mut self) -> Result<()> {
        self.operator_mut()?.kill()?;
        self.operator = Some(OperatorProcess::spawn(self.operator_options())?);
        Ok(())
    }

    /// The options that start this test's operator.
    pub fn operator_options(&self) -> Options {
        let mut options: Options = self.world.options(&self.kubeconfig);
        options.namespace = format!("{},{}", self.namespace(), self.canary.namespace());
        if self.life.0 == SPARK {
            options = options.flag("driver-pod-creation-grace-period", "1s");
        }
        for (name, value) in &self.options {
            options = options.flag(name, value);
        }
        options.output.clone_from(&self.output);
        options
    }

    /// A `PyTorchJob` that replaces failed workers and deletes everything when it finishes.
    pub fn job() -> Job {
        pytorch_job(JOB)
            .master()
            .workers(2)
            .restart_policy("Worker", "ExitCode")
            .run_policy("cleanPodPolicy", "All")
            .run_policy("backoffLimit", 3)
    }

    /// Runs a whole phase.
    pub async fn run_phase(&mut self, phase: Phase) -> Result<()> {
        self.begin(phase).await?;
        self.end(phase).await
    }

    /// Triggers the event that begins a phase.
    pub async fn begin(&mut self, phase: Phase) -> Result<()> {
        match phase {
            Phase::Creating => {
                self.start().await?;
                let job = self.life.job(self.workers);
                let job = self.world.jobs.create(&job).await?;
                let version = job["metadata"]["resourceVersion"].as_str();
                version.unwrap_or_default().clone_into(&mut self.submitted);
                Ok(())
            }
            Phase::Running => self.fail_next().await,
            Phase::Finishing => {
                let (kubelet, namespace) = (&self.world.kubelet, self.world.namespace());
                for pod in kubelet.pods(namespace, JOB) {
                    let ends = self.life.ends_by_itself(&pod.replica.role);
                    if ends && !pod.is_finished() && !pod.deleting {
                        let ended = kubelet.set(namespace, &pod.name, &State::Succeeded).await;
                        // The other pods may already have finished the job, whose clean-up deletes this pod.
                        ended.or_else(|error| if is_gone(&error) { Ok(()) } else { Err(error) })?;
                    }
                }
                Ok(())
            }
        }
    }

    /// Fails the next pod: one that has not failed yet, if there is one.
    pub async fn fail_next(&mut self) -> Result<()> {
        let all = self.life.victims(self.workers);
        let unhurt = all.iter().find(|name| !self.failures.contains_key(*name));
        let next = unhurt.or(all.first()).context("nothing can fail")?;
        self.victim.clone_from(next);
        let (kubelet, namespace) = (&self.world.kubelet, self.world.namespace());
        let pods = kubelet.pods(namespace, JOB);
        let pod = pods.iter().find(|pod| pod.name == self.victim);
        self.failed.clone_from(&pod.context("no such pod")?.uid);
        kubelet.fail(namespace, &self.victim, 137).await?;
        *self.failures.entry(self.victim.clone()).or_default() += 1;
        Ok(())
    }

    /// Waits for the state of the job at the end of a phase, and checks it.
    pub async fn end(&self, phase: Phase) -> Result<()> {
        let (namespace, jobs, life) = (self.namespace(), &self.world.jobs, self.life);
        match phase {
            Phase::Creating => {
                if self.has_ranks() {
                    self.until_children(&life.ranks(self.workers)).await?;
                }
                let (kubelet, pods) = (&self.world.kubelet, life.pods(self.workers));
                kubelet.until_pods(namespace, JOB, pods).await?;
                jobs.until(JOB, "accepted", |job| life.is_taken_up(job))
                    .await?;
                self.until_all_run().await
            }
            Phase::Running => {
                self.until_replaced().await?;
                self.until_all_run().await
            }
            Phase::Finishing => {
                jobs.until(JOB, "at a good end", has_succeeded).await?;
                if self.has_ranks() {
                    return self.until_children(&[]).await;
                }
                eventually("no pod to be left that is in the way", HANG, async || {
                    let pods = self.world.kubelet.pods(namespace, JOB);
                    Ok(if pods.iter().all(SeenPod::is_finished) {
                        Seen::Yes(())
                    } else {
                        Seen::NotYet(format!("{pods:?}"))
                    })
                })
                .await
            }
        }
    }

    /// Whether each pod has a Service of its name.
    fn has_ranks(&self) -> bool {
        !matches!(self.life.0, MPI | SPARK)
    }

    async fn until_children(&self, ranks: &[String]) -> Result<()> {
        let ranks: Vec<&str> = ranks.iter().map(String::as_str).collect();
        let client = &self.world.client;
        read::until_children(client, self.namespace(), JOB, &ranks, &ranks).await
    }

    /// Whether the failed pod has a replacement on a node.
    pub fn is_replaced(&self) -> bool {
        let pods = self.world.kubelet.pods(self.namespace(), JOB);
        let victim = pods.iter().find(|pod| pod.name == self.victim);
        victim.is_some_and(|pod| pod.bound && pod.uid != self.failed)
    }

    /// Waits until the failed pod has a replacement on a node.
    pub async fn until_replaced(&self) -> Result<()> {
        eventually("the pod's replacement", HANG, async || {
            let pods = self.world.kubelet.pods(self.namespace(), JOB);
            Ok(if self.is_replaced() {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("no new {}: {pods:?}", self.victim))
            })
        })
        .await
    }

    /// Runs the replacement of the failed pod; no other pod changes.
    pub async fn run_replacement(&self) -> Result<()> {
        self.until_replaced().await?;
        let (kubelet, namespace) = (&self.world.kubelet, self.namespace());
        kubelet.set(namespace, &self.victim, &State::Running).await
    }

    /// The uid of the pod that fails first.
    pub async fn worker(&self) -> Result<String> {
        let pods: Api<Pod> = Api::namespaced(self.world.client.clone(), self.namespace());
        let pod = pods.get(self.life.victim()).await?;
        pod.metadata.uid.context("no uid")
    }

    /// Waits for a replacement pod of this name.
    pub async fn until_another(&mut self, old: &str) -> Result<()> {
        self.life.victim().clone_into(&mut self.victim);
        old.clone_into(&mut self.failed);
        self.until_replaced().await
    }

    /// Causes irrelevant events of every watched resource that has an object.
    pub async fn noise(&self) {
        let noise = json!({ "trainyard.test/noise": fastrand::u64(..).to_string() });
        let patch = Patch::Merge(json!({ "metadata": { "annotations": noise } }));
        for plural in self.life.watched() {
            let api = self.objects(&self.life.resource(plural));
            let one = ListParams::default().limit(1);
            // There may be no object yet, or none left.
            let Ok(list) = api.list(&one).await else {
                continue;
            };
            for name in list.items.iter().filter_map(|o| o.metadata.name.as_deref()) {
                let _ = api.patch(name, &PatchParams::default(), &patch).await;
            }
        }
    }

    fn objects(&self, resource: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.world.client.clone(), self.namespace(), resource)
    }

    async fn until_all_run(&self) -> Result<()> {
        let kubelet = &self.world.kubelet;
        kubelet.all_running(self.namespace(), JOB).await?;
        self.until_active().await
    }

    /// Runs all pods of another job in the namespace, and waits for its status.
    pub async fn run_beside(&self, name: &str) -> Result<()> {
        let (kubelet, namespace) = (&self.world.kubelet, self.namespace());
        kubelet
            .until_pods(namespace, name, self.life.pods(1))
            .await?;
        kubelet.all_running(namespace, name).await?;
        let runs = |job: &_| self.life.runs(job, 1);
        self.world.jobs.until(name, "with all active", runs).await?;
        Ok(())
    }

    /// Waits until the status counts all pods as active.
    pub async fn until_active(&self) -> Result<()> {
        let all = |job: &_| self.life.runs(job, self.workers);
        self.world.jobs.until(JOB, "with all active", all).await?;
        Ok(())
    }

    /// The sum of all series of one of the operator's metrics.
    pub async fn metric(&self, name: &str) -> Result<u64> {
        self.operator()?.metric(name).await
    }

    /// Replaces all current rules.
    pub fn rule(&self, rules: &[Rule]) {
        self.proxy.clear_rules();
        for rule in rules {
            self.proxy.add(rule);
        }
    }

    /// Waits until each of these rules has hit this often.
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

    /// Causes events on every watch until each of these watch rules has hit.
    pub async fn until_heard(&self, rules: &[Rule]) -> Result<()> {
        eventually("every rule for a watch to hit", HANG, async || {
            let Some(missed) = rules.iter().find(|rule| rule.hits() == 0) else {
                return Ok(Seen::Yes(()));
            };
            self.noise().await;
            Ok(Seen::NotYet(format!("{} hit nothing", missed.name())))
        })
        .await
    }

    /// Resets all connections, and waits until every watch that these rules match is open again.
    pub async fn reopen(&self, rules: &[Rule]) -> Result<()> {
        let begun = tokio::time::Instant::now();
        self.proxy.cut().await?;
        eventually("the watches to be open again", HANG, async || {
            let records = self.proxy.records();
            let opened = |rule: &Rule| {
                let by = |r: &Record| r.rule.as_deref() == Some(rule.name()) && r.code.is_some();
                records.iter().any(|r| r.at >= begun && by(r))
            };
            Ok(match rules.iter().find(|rule| !opened(rule)) {
                None => Seen::Yes(()),
                Some(rule) => Seen::NotYet(format!("{} applies to none", rule.name())),
            })
        })
        .await
    }

    /// Makes the watches of the job's namespace list again, which finds what their streams left out.
    pub async fn relist(&self) -> Result<()> {
        let expired = |resource: &'static str| {
            let expired = Answer::new(410, "Expired", "too old resource version");
            let action = Action::Answer(Effect::Without, expired);
            on(self.namespace(), ("watch", resource), action).nth(1)
        };
        let rules: Vec<Rule> = self.life.watched().into_iter().map(expired).collect();
        self.rule(&rules);
        self.proxy.cut().await?;
        self.until_hit(&rules, 1).await?;
        self.proxy.clear_rules();
        Ok(())
    }

    /// Waits until the operator has listed a resource of the job's namespace since the records were cleared.
    pub async fn until_listed(&self, resource: &str) -> Result<()> {
        eventually(&format!("a list of {resource}"), HANG, async || {
            let records = self.proxy.records();
            // A list of a single object doesn't come from a watch.
            let listed = |r: &Record| {
                r.call.is("list", resource)
                    && r.call.name.is_empty()
                    && r.call.namespace == self.namespace()
                    && r.code == Some(200)
            };
            Ok(if records.iter().any(listed) {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{:?}", self.proxy.counts()))
            })
        })
        .await
    }

    /// A resource version from before the job.
    pub async fn old_version(&self) -> Result<String> {
        let pods = self.objects(&self.life.resource("pods"));
        let list = pods.list(&ListParams::default()).await?;
        list.metadata
            .resource_version
            .context("a list without a version")
    }

    /// The resource version at which the job was submitted.
    pub fn submitted(&self) -> &str {
        &self.submitted
    }

    /// Each of the job's pods was created once, plus once per failure.
    pub fn assert_life(&self) {
        let ranks = self.life.ranks(self.workers);
        let made = |name: &String| 1 + self.failures.get(name).copied().unwrap_or_default();
        let made: Vec<(&str, u32)> = ranks.iter().map(|r| (r.as_str(), made(r))).collect();
        self.assert_made(&made);
    }

    /// The pod that fails first was created this often, and each other pod of the job once.
    pub fn assert_worker_made(&self, times: u32) {
        let ranks = self.life.ranks(self.workers);
        let made = |rank| (rank, if rank == self.life.victim() { times } else { 1 });
        let made: Vec<_> = ranks.iter().map(|rank| made(rank.as_str())).collect();
        self.assert_made(&made);
    }

    /// The job's pods were created this often, and nothing else happened to them.
    pub fn assert_made(&self, expected: &[(&str, u32)]) {
        let made: BTreeMap<String, u32> = self
            .world
            .auditor
            .summary_of(JOB)
            .into_iter()
            .filter_map(|(object, churn)| {
                Some((object.strip_prefix("Pod/")?.into(), churn.creates))
            })
            .collect();
        let expected = expected.iter().map(|(name, n)| ((*name).to_owned(), *n));
        assert_eq!(made, expected.collect::<BTreeMap<_, _>>());
    }

    /// The healthy job succeeds.
    pub async fn until_canary(&self) -> Result<()> {
        let jobs = &self.canary.jobs;
        jobs.until(CANARY, "at a good end", has_succeeded).await?;
        Ok(())
    }

    /// The end of every test: the healthy job has succeeded, no violations, and no request was sent too often.
    pub async fn assert_clean(&mut self) -> Result<()> {
        self.assert_clean_but_for(None).await
    }

    /// Same as [`Self::assert_clean`], except that a fault may force the operator to violate one invariant.
    pub async fn assert_clean_but_for(&mut self, excused: Option<&str>) -> Result<()> {
        self.until_canary().await?;
        let operator = self.operator.as_mut().context("no operator yet")?;
        anyhow::ensure!(
            !operator.has_ended()?,
            "the operator ended:\n{}",
            operator.log()
        );
        anyhow::ensure!(operator.starts() == 1, "the operator was started again");
        let operator = self.operator()?;
        for world in [&self.world, &self.canary] {
            world.auditor.until_settled().await?;
            let found = world.assert_clean(operator).await;
            let wrong = world.auditor.violations();
            let excused = excused.is_some_and(|id| wrong.iter().all(|w| w.starts_with(id)));
            // The auditor is checked last, so here everything else is in order.
            if wrong.is_empty() || !excused {
                found?;
            }
        }
        self.proxy.assert_guarded()?;
        self.assert_posts()
    }

    /// F-71: no create is sent again and again.
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
            let kind = match resource.as_str() {
                "pods" => "Pod",
                "configmaps" => "ConfigMap",
                "secrets" => "Secret",
                "jobs" => "Job",
                _ => "Service",
            };
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
