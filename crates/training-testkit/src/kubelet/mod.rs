//! A scripted scheduler and kubelet.
//!
//! It binds pods as soon as it sees them. Their states come from a script, by role, index and incarnation, or from the test itself,
//! in bursts over all pods of a job ("lockstep"). It finishes terminating bound pods as a kubelet does: they stay in the API until
//! it removes them.

mod node;
mod pod;
mod script;
mod status;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::future::join_all;
use futures::{StreamExt as _, TryStreamExt as _};
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Client, ResourceExt};
use kube_runtime::watcher::{self, Event, watcher};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::task::{AbortHandle, JoinHandle};

pub use node::bind;
pub use pod::{Replica, SeenPod};
pub use script::{Act, Script, Step, lockstep, run_and_succeed};
pub use status::{State, now};

use crate::wait::{HANG, Seen, eventually};
use pod::SlimPod;

/// A running scripted scheduler and kubelet; dropping it stops it.
#[derive(Debug)]
pub struct Kubelet {
    shared: Arc<Shared>,
    tasks: Vec<JoinHandle<()>>,
    heart: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    client: Client,
    /// The node that pods are bound to, if any.
    node: Mutex<Option<String>>,
    script: Script,
    pods: Mutex<BTreeMap<(String, String), Entry>>,
    /// The number of pods seen, by name.
    incarnations: Mutex<HashMap<(String, String), u32>>,
    finishes_deletes: AtomicBool,
    finishing: Mutex<HashSet<String>>,
    /// The reasons of disruptions, by uid.
    disrupted: Mutex<HashMap<String, String>>,
    busy: AtomicUsize,
    addresses: AtomicUsize,
    errors: Mutex<Vec<String>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("pods", &self.pods)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Entry {
    pod: SeenPod,
    life: AbortHandle,
}

impl Kubelet {
    /// Runs for the pods of these namespaces, and binds them to its own node.
    pub async fn start(client: Client, namespaces: &[&str], script: Script) -> Result<Self> {
        let node = format!("scripted-{}", std::process::id());
        Self::start_on(client, namespaces, script, &node).await
    }

    /// Runs on a node with this name.
    pub async fn start_on(
        client: Client,
        namespaces: &[&str],
        script: Script,
        node: &str,
    ) -> Result<Self> {
        let kubelet = Self::play(&client, namespaces, script, Some(node.to_owned()));
        kubelet.start_heartbeats().await?;
        Ok(kubelet)
    }

    /// Makes the node report that it is ready, and keep reporting.
    pub async fn start_heartbeats(&self) -> Result<()> {
        let Some(node) = self.node() else {
            bail!("pods without a node");
        };
        let client = self.shared.client.clone();
        node::register(&client, &node)
            .await
            .context("can't register the node")?;
        let heart = tokio::spawn(node::heartbeats(client, node));
        self.beat(Some(heart));
        Ok(())
    }

    /// Makes the node unresponsive, as if cut off: it reports nothing and ignores deletions, but its processes run on.
    pub fn stop_heartbeats(&self) {
        self.beat(None);
        self.finish_deletes(false);
    }

    fn beat(&self, heart: Option<JoinHandle<()>>) {
        if let Some(old) = std::mem::replace(&mut *self.heart.lock(), heart) {
            old.abort();
        }
    }

    /// The node that pods are bound to, if any.
    pub fn node(&self) -> Option<String> {
        self.shared.node.lock().clone()
    }

    /// Binds further pods to another node, which something else keeps alive.
    pub fn bind_to(&self, node: &str) {
        *self.shared.node.lock() = Some(node.to_owned());
    }

    /// Runs for the pods of these namespaces without binding them, which saves a request per pod in measurements. A deleted pod is
    /// gone immediately.
    pub fn start_unbound(client: &Client, namespaces: &[&str], script: Script) -> Self {
        Self::play(client, namespaces, script, None)
    }

    fn play(client: &Client, namespaces: &[&str], script: Script, node: Option<String>) -> Self {
        let mut tasks = Vec::new();
        let shared = Arc::new(Shared {
            client: client.clone(),
            node: Mutex::new(node),
            script,
            pods: Mutex::default(),
            incarnations: Mutex::default(),
            finishes_deletes: AtomicBool::new(true),
            finishing: Mutex::default(),
            disrupted: Mutex::default(),
            busy: AtomicUsize::new(0),
            addresses: AtomicUsize::new(1),
            errors: Mutex::default(),
        });
        for namespace in namespaces {
            let api: Api<SlimPod> = Api::namespaced(client.clone(), namespace);
            tasks.push(tokio::spawn(Arc::clone(&shared).watch(api)));
        }
        Self {
            shared,
            tasks,
            heart: Mutex::new(None),
        }
    }

    /// The pods of a job, sorted by name.
    pub fn pods(&self, namespace: &str, job: &str) -> Vec<SeenPod> {
        let pods = self.shared.pods.lock();
        let pods = pods.values().map(|entry| &entry.pod);
        pods.filter(|pod| pod.namespace == namespace && pod.replica.job == job)
            .cloned()
            .collect()
    }

    /// Waits until a job has exactly `count` pods that are bound and not terminating.
    pub async fn until_pods(
        &self,
        namespace: &str,
        job: &str,
        count: usize,
    ) -> Result<Vec<SeenPod>> {
        eventually(&format!("{count} pods of {job}"), HANG, async || {
            let pods = self.pods(namespace, job);
            let unbound = self.node().is_none();
            let placed = |pod: &&SeenPod| pod.bound || unbound;
            let there = pods
                .iter()
                .filter(placed)
                .filter(|pod| !pod.deleting)
                .count();
            let whole = there == count && pods.len() == count;
            Ok(if whole {
                Seen::Yes(pods)
            } else {
                Seen::NotYet(format!("{pods:?}"))
            })
        })
        .await
    }

    /// Sets all unfinished pods of a job running in one burst. Returns their number.
    pub async fn all_running(&self, namespace: &str, job: &str) -> Result<usize> {
        self.all(namespace, job, &State::Running).await
    }

    /// Makes all unfinished pods of a job succeed in one burst. Returns their number.
    pub async fn all_succeeded(&self, namespace: &str, job: &str) -> Result<usize> {
        self.all(namespace, job, &State::Succeeded).await
    }

    async fn all(&self, namespace: &str, job: &str, state: &State) -> Result<usize> {
        let pods = self.pods(namespace, job);
        let open: Vec<_> = pods
            .iter()
            .filter(|pod| !pod.is_finished() && !pod.deleting)
            .collect();
        let burst = open
            .iter()
            .map(|pod| self.shared.become_state(pod, state, pod.restarts));
        for outcome in join_all(burst).await {
            outcome?;
        }
        Ok(open.len())
    }

    /// Puts one pod into a state.
    pub async fn set(&self, namespace: &str, pod: &str, state: &State) -> Result<()> {
        let pod = self.pod(namespace, pod)?;
        self.shared.become_state(&pod, state, pod.restarts).await
    }

    /// Fails a pod: its first container exits with this code.
    pub async fn fail(&self, namespace: &str, pod: &str, exit_code: i32) -> Result<()> {
        let state = State::Failed {
            exit_code,
            message: String::new(),
        };
        self.set(namespace, pod, &state).await
    }

    /// Restarts the first container of a pod in place, for the `restarts`-th time in total.
    pub async fn restart_in_place(&self, namespace: &str, pod: &str, restarts: i32) -> Result<()> {
        let pod = self.pod(namespace, pod)?;
        self.shared
            .become_state(&pod, &State::Running, restarts)
            .await
    }

    /// Disrupts a pod for this reason (`PreemptionByScheduler`, `EvictionByEvictionAPI`, `DeletionByTaintManager`) and deletes it.
    pub async fn disrupt(&self, namespace: &str, pod: &str, reason: &str) -> Result<()> {
        let pod = self.pod(namespace, pod)?;
        let state = State::Disrupted {
            reason: reason.to_owned(),
        };
        self.shared.become_state(&pod, &state, pod.restarts).await?;
        let disrupted = (pod.uid.clone(), reason.to_owned());
        self.shared.disrupted.lock().extend([disrupted]);
        self.shared.remove(&pod, None).await
    }

    /// Removes a pod's object immediately.
    pub async fn disappear(&self, namespace: &str, pod: &str) -> Result<()> {
        let pod = self.pod(namespace, pod)?;
        self.shared.remove(&pod, Some(0)).await
    }

    /// Sets whether terminating bound pods are removed. If not, they stay, as on an unresponsive node.
    pub fn finish_deletes(&self, finish: bool) {
        self.shared.finishes_deletes.store(finish, Ordering::SeqCst);
        if finish {
            let pods: Vec<_> = self
                .shared
                .pods
                .lock()
                .values()
                .map(|entry| entry.pod.clone())
                .collect();
            for pod in pods.into_iter().filter(|pod| pod.deleting) {
                Arc::clone(&self.shared).finish(pod);
            }
        }
    }

    /// Returns true if no step of a script is pending and no patch is in flight.
    pub fn is_idle(&self) -> bool {
        self.shared.busy.load(Ordering::SeqCst) == 0
    }

    /// Fails if any step of the script failed.
    pub fn assert_no_errors(&self) -> Result<()> {
        let errors = self.shared.errors.lock();
        anyhow::ensure!(
            errors.is_empty(),
            "the scripted kubelet: {}",
            errors.join("; ")
        );
        Ok(())
    }

    fn pod(&self, namespace: &str, name: &str) -> Result<SeenPod> {
        let pods = self.shared.pods.lock();
        match pods.get(&(namespace.to_owned(), name.to_owned())) {
            Some(entry) => Ok(entry.pod.clone()),
            None => bail!("the scripted kubelet knows no pod {namespace}/{name}"),
        }
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        self.beat(None);
        for entry in self.shared.pods.lock().values() {
            entry.life.abort();
        }
    }
}

impl Shared {
    async fn watch(self: Arc<Self>, api: Api<SlimPod>) {
        let mut events = watcher(api, watcher::Config::default()).boxed();
        loop {
            match events.try_next().await {
                Ok(Some(Event::Apply(pod) | Event::InitApply(pod))) => self.seen(&pod),
                Ok(Some(Event::Delete(pod))) => self.gone(&pod),
                Ok(Some(Event::Init | Event::InitDone)) => {}
                Ok(None) => return,
                // The watch resumes where it was.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    fn seen(self: &Arc<Self>, slim: &SlimPod) {
        let key = (slim.namespace().unwrap_or_default(), slim.name_any());
        let mut pods = self.pods.lock();
        let mut pod = match pods.get(&key) {
            Some(entry) if Some(&entry.pod.uid) == slim.metadata.uid.as_ref() => entry.pod.clone(),
            _ => {
                let mut incarnations = self.incarnations.lock();
                let count = incarnations.entry(key.clone()).or_default();
                let incarnation = *count;
                *count += 1;
                let number = self.addresses.fetch_add(1, Ordering::Relaxed);
                SeenPod::new(slim, incarnation, number)
            }
        };
        pod.update(slim);
        if pod.deleting && pod.bound && self.finishes_deletes.load(Ordering::SeqCst) {
            Arc::clone(self).finish(pod.clone());
        }
        match pods.get_mut(&key) {
            Some(entry) if entry.pod.uid == pod.uid => entry.pod = pod,
            other => {
                if let Some(old) = other {
                    old.life.abort();
                }
                let life = tokio::spawn(Arc::clone(self).live(pod.clone())).abort_handle();
                pods.insert(key, Entry { pod, life });
            }
        }
    }

    fn gone(&self, slim: &SlimPod) {
        let key = (slim.namespace().unwrap_or_default(), slim.name_any());
        let mut pods = self.pods.lock();
        let same = pods
            .get(&key)
            .is_some_and(|e| Some(&e.pod.uid) == slim.metadata.uid.as_ref());
        if same && let Some(entry) = pods.remove(&key) {
            entry.life.abort();
        }
    }

    /// Runs one pod: binds it, then applies the script's steps.
    async fn live(self: Arc<Self>, pod: SeenPod) {
        let _busy = Busy::new(Arc::clone(&self));
        let node = self.node.lock().clone();
        if let Some(node) = node
            && !pod.bound
            && let Err(error) = bind(&self.api(&pod), &pod.name, Some(&pod.uid), &node).await
        {
            self.note(&pod, &error);
            return;
        }
        for step in (self.script)(&pod.replica) {
            tokio::time::sleep(step.after).await;
            let outcome = match &step.act {
                Act::Become(state) => self.become_state(&pod, state, 0).await,
                Act::Disappear => self.remove(&pod, Some(0)).await,
                Act::Delete => self.remove(&pod, None).await,
            };
            if let Err(error) = outcome {
                self.note(&pod, &error);
                return;
            }
        }
    }

    fn note(&self, pod: &SeenPod, error: &anyhow::Error) {
        // Something else may have deleted the pod meanwhile, which is no error.
        let passed = error.downcast_ref::<kube::Error>().is_some_and(
            |e| matches!(e, kube::Error::Api(s) if s.is_not_found() || s.is_conflict()),
        );
        if !passed {
            self.errors.lock().push(format!("{}: {error:#}", pod.name));
        }
    }

    fn api(&self, pod: &SeenPod) -> Api<SlimPod> {
        Api::namespaced(self.client.clone(), &pod.namespace)
    }

    async fn become_state(&self, pod: &SeenPod, state: &State, restarts: i32) -> Result<()> {
        self.write(pod, status::patch(pod, state, restarts)).await
    }

    async fn write(&self, pod: &SeenPod, patch: Value) -> Result<()> {
        let (how, patch) = (PatchParams::default(), Patch::Merge(patch));
        self.api(pod).patch_status(&pod.name, &how, &patch).await?;
        Ok(())
    }

    /// Ends a pod's containers by a signal. The reason of a disruption stays.
    async fn end(&self, pod: &SeenPod) -> Result<()> {
        let (exit_code, message) = (143, String::new());
        let ended = State::Failed { exit_code, message };
        let mut patch = status::patch(pod, &ended, pod.restarts);
        let disrupted = self.disrupted.lock().get(&pod.uid).cloned();
        if let (Some(reason), Some(conditions)) =
            (disrupted, patch["status"]["conditions"].as_array_mut())
        {
            conditions.push(status::condition("DisruptionTarget", "True", Some(&reason)));
        }
        self.write(pod, patch).await
    }

    async fn remove(&self, pod: &SeenPod, grace: Option<u32>) -> Result<()> {
        let parameters = DeleteParams {
            grace_period_seconds: grace,
            preconditions: Some(Preconditions {
                uid: Some(pod.uid.clone()),
                ..Preconditions::default()
            }),
            ..DeleteParams::default()
        };
        self.api(pod).delete(&pod.name, &parameters).await?;
        Ok(())
    }

    /// Removes a pod after its containers have ended, once.
    fn finish(self: Arc<Self>, pod: SeenPod) {
        if !self.finishing.lock().insert(pod.uid.clone()) {
            return;
        }
        tokio::spawn(async move {
            let _busy = Busy::new(Arc::clone(&self));
            let outcome = async {
                if pod.tracked && !pod.is_finished() {
                    // Its Job must see how its containers ended before it is removed.
                    self.end(&pod).await?;
                }
                self.remove(&pod, Some(0)).await
            };
            if let Err(error) = outcome.await {
                self.note(&pod, &error);
            }
        });
    }
}

/// Counts as work until dropped, however its task ends.
struct Busy(Arc<Shared>);

impl Busy {
    fn new(shared: Arc<Shared>) -> Self {
        shared.busy.fetch_add(1, Ordering::SeqCst);
        Self(shared)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::SeqCst);
    }
}
