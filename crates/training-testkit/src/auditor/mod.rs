//! An independent watcher that checks the invariants at every event.
//!
//! It has its own connection, which no test breaks, and it knows nothing of the operator but what
//! is in the API.

mod rules;
mod summary;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use futures::{StreamExt as _, TryStreamExt as _};
use kube::api::{Api, DynamicObject};
use kube::core::ApiResource;
use kube::{Client, Resource as _, ResourceExt as _};
use kube_runtime::watcher::{self, Event, watcher};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::task::JoinHandle;

pub use summary::{Churn, Summary, difference};

use crate::job::{is_finished, is_true};
use crate::wait::{HANG, Seen, eventually};
use crate::{JOB_NAME, OPERATOR_NAME, REPLICA_INDEX, REPLICA_TYPE};

/// How long after a user's wish the operator may still act without knowing of it. Its request can
/// cross the user's on the way. Creation times have whole seconds, and a busy machine is slow.
const CROSSING: i64 = 3;

/// A running auditor; it stops when this is dropped.
#[derive(Debug)]
pub struct Auditor {
    state: Arc<Mutex<State>>,
    tasks: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct State {
    /// Pods and services that exist, by kind, namespace and name.
    objects: BTreeMap<(String, String, String), Value>,
    jobs: HashMap<String, Job>,
    /// Creations by owner, for jobs that are seen later than their objects.
    creations: Vec<Creation>,
    churn: BTreeMap<(String, String, String), Churn>,
    violations: BTreeSet<String>,
    events: usize,
    synced: usize,
    /// The last error of a watch.
    trouble: String,
}

#[derive(Debug)]
struct Job {
    last: Value,
    /// The version with which the terminal condition was stored.
    ended: Option<u64>,
    /// When the user's wish to delete it was stored. Units: seconds.
    deleted: Option<i64>,
    /// The version and time since which it is suspended. Units of the time: seconds.
    suspended: Option<(u64, i64)>,
}

#[derive(Debug)]
struct Creation {
    what: String,
    is_pod: bool,
    owner: String,
    version: u64,
    /// Units: seconds.
    at: i64,
}

impl Auditor {
    /// Watches pods, services and these jobs in one namespace, and returns when it sees all that is
    /// there.
    pub async fn start(client: Client, namespace: &str, jobs: &ApiResource) -> Result<Self> {
        let state = Arc::new(Mutex::new(State::default()));
        let core = |kind: &str, plural: &str| {
            ApiResource::from_gvk_with_plural(
                &kube::core::GroupVersionKind::gvk("", "v1", kind),
                plural,
            )
        };
        let kinds = [
            core("Pod", "pods"),
            core("Service", "services"),
            jobs.clone(),
        ];
        let tasks = kinds
            .map(|kind| {
                let api = Api::namespaced_with(client.clone(), namespace, &kind);
                tokio::spawn(watch(api, kind.kind, Arc::clone(&state)))
            })
            .into();
        let auditor = Self { state, tasks };
        eventually("the auditor to see", HANG, async || {
            let synced = auditor.state.lock().synced;
            Ok(if synced >= 3 {
                Seen::Yes(())
            } else {
                Seen::NotYet(synced.to_string())
            })
        })
        .await?;
        Ok(auditor)
    }

    /// How often each object was created and deleted so far.
    pub fn summary(&self) -> Summary {
        let state = self.state.lock();
        let rows = state.churn.iter();
        rows.map(|((kind, _, name), churn)| (format!("{kind}/{name}"), *churn))
            .collect()
    }

    /// How many events it has checked.
    pub fn events(&self) -> usize {
        self.state.lock().events
    }

    /// What it has found wrong so far.
    pub fn violations(&self) -> Vec<String> {
        self.state.lock().violations.iter().cloned().collect()
    }

    /// Waits until no event has come for a while, so that it has seen what the test has seen.
    pub async fn settled(&self) -> Result<()> {
        let quiet = Duration::from_millis(300);
        let mut last = (self.events(), tokio::time::Instant::now());
        eventually("the auditor to be idle", HANG, async || {
            if self.events() != last.0 {
                last = (self.events(), tokio::time::Instant::now());
            }
            let idle = last.1.elapsed() >= quiet;
            Ok(if idle {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{} events", last.0))
            })
        })
        .await
    }

    /// Fails if any invariant was broken.
    pub async fn assert_clean(&self) -> Result<()> {
        self.settled().await?;
        let mut violations = self.violations();
        let state = self.state.lock();
        for creation in &state.creations {
            if !state.jobs.contains_key(&creation.owner) {
                violations.push(format!(
                    "I-24: {} is owned by no job that was seen",
                    creation.what
                ));
            }
        }
        anyhow::ensure!(
            violations.is_empty(),
            "invariants broken:\n{}",
            violations.join("\n")
        );
        Ok(())
    }
}

impl Drop for Auditor {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

async fn watch(api: Api<DynamicObject>, kind: String, state: Arc<Mutex<State>>) {
    let mut events = watcher(api, watcher::Config::default()).boxed();
    let mut synced = false;
    loop {
        let event = events.try_next().await;
        if let Err(error) = &event {
            // A watch that was cut goes on where it was; what was missed shows below.
            state.lock().trouble = format!("{kind}: {error}");
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        }
        let mut state = state.lock();
        match event {
            Ok(Some(Event::Apply(object) | Event::InitApply(object))) => state.seen(&kind, &object),
            Ok(Some(Event::Delete(object))) => state.gone(&kind, &object),
            Ok(Some(Event::InitDone)) if !synced => {
                synced = true;
                state.synced += 1;
            }
            // An auditor that had to list again may have missed an event: no verdict counts.
            Ok(Some(Event::Init)) if synced => {
                let wrong = format!("the auditor was blind for a while ({})", state.trouble);
                state.wrong(&wrong);
            }
            Ok(Some(Event::Init | Event::InitDone)) => {}
            Ok(None) | Err(_) => return,
        }
    }
}

impl State {
    fn seen(&mut self, kind: &str, object: &DynamicObject) {
        self.events += 1;
        let Ok(value) = serde_json::to_value(object) else {
            return;
        };
        if matches!(kind, "Pod" | "Service") {
            self.child(kind, object, value);
        } else {
            self.job(object, value);
        }
    }

    fn gone(&mut self, kind: &str, object: &DynamicObject) {
        self.events += 1;
        let key = key(kind, object);
        if self.objects.remove(&key).is_some() {
            self.churn.entry(key).or_default().deletes += 1;
        }
    }

    fn child(&mut self, kind: &str, object: &DynamicObject, value: Value) {
        let labels = object.labels();
        let owner = object
            .owner_references()
            .iter()
            .find(|owner| owner.controller == Some(true));
        let ours = labels.contains_key(OPERATOR_NAME);
        if !ours && owner.is_none_or(|owner| !self.jobs.contains_key(&owner.uid)) {
            // Somebody else's.
            return;
        }
        let key = key(kind, object);
        let what = format!("{kind} {}", object.name_any());
        let before = self.objects.insert(key.clone(), value);
        if before
            .is_some_and(|before| before["metadata"]["uid"] == object.uid().unwrap_or_default())
        {
            if kind == "Pod" {
                self.one_pod_per_rank(object);
            }
            return;
        }
        self.churn.entry(key).or_default().creates += 1;
        let Some(owner) = owner else {
            self.wrong(&format!("I-24: {what} has no controller"));
            return;
        };
        let label = |name: &str| labels.get(name).map(String::as_str).unwrap_or_default();
        let expected = format!(
            "{}-{}-{}",
            owner.name,
            label(REPLICA_TYPE),
            label(REPLICA_INDEX)
        );
        if object.name_any() != expected {
            self.wrong(&format!("I-02: {what} should be called {expected}"));
        }
        if !ours || label(JOB_NAME) != owner.name {
            self.wrong(&format!(
                "I-24: {what} of job {} has the labels {labels:?}",
                owner.name
            ));
        }
        let creation = Creation {
            what,
            is_pod: kind == "Pod",
            owner: owner.uid.clone(),
            version: version(object),
            at: object
                .creation_timestamp()
                .map_or(0, |time| time.0.as_second()),
        };
        if let Some(job) = self.jobs.get(&creation.owner) {
            let wrong = after_the_end(job, &creation);
            self.violations.extend(wrong);
        }
        self.creations.push(creation);
        if kind == "Pod" {
            self.one_pod_per_rank(object);
        }
    }

    /// I-01 and I-04: an index has one pod in the API, whatever its phase, until that is gone.
    fn one_pod_per_rank(&mut self, object: &DynamicObject) {
        let rank = |value: &Value| {
            let labels = &value["metadata"]["labels"];
            let owner = value["metadata"]["ownerReferences"][0]["uid"].clone();
            (
                owner,
                labels[REPLICA_TYPE].clone(),
                labels[REPLICA_INDEX].clone(),
            )
        };
        let here = key("Pod", object);
        let Some(mine) = self.objects.get(&here).map(&rank) else {
            return;
        };
        let same: Vec<(String, bool)> = self
            .objects
            .iter()
            .filter(|(key, value)| key.0 == "Pod" && key.1 == here.1 && rank(value) == mine)
            .map(|((_, _, name), value)| {
                let phase = value["status"]["phase"].as_str().unwrap_or_default();
                (name.clone(), !matches!(phase, "Succeeded" | "Failed"))
            })
            .collect();
        if same.len() > 1 {
            let live = same.iter().filter(|(_, live)| *live).count();
            let id = if live > 1 { "I-01" } else { "I-04" };
            self.wrong(&format!("{id}: one index has the pods {same:?}"));
        }
    }

    fn job(&mut self, object: &DynamicObject, value: Value) {
        let (uid, name) = (object.uid().unwrap_or_default(), object.name_any());
        let before = self.jobs.get(&uid);
        for wrong in rules::job(before.map(|job| &job.last), &value) {
            self.violations.insert(format!("{wrong} ({name})"));
        }
        let suspended =
            value["spec"]["runPolicy"]["suspend"] == true && is_true(&value, "Suspended");
        let now = k8s_openapi::jiff::Timestamp::now().as_second();
        let job = Job {
            ended: before
                .and_then(|job| job.ended)
                .or_else(|| is_finished(&value).then(|| version(object))),
            deleted: object
                .meta()
                .deletion_timestamp
                .as_ref()
                .map(|time| time.0.as_second()),
            suspended: suspended.then(|| {
                before
                    .and_then(|job| job.suspended)
                    .unwrap_or((version(object), now))
            }),
            last: value,
        };
        let late: Vec<String> = self
            .creations
            .iter()
            .filter(|creation| creation.owner == uid)
            .flat_map(|creation| after_the_end(&job, creation))
            .collect();
        self.violations.extend(late);
        self.jobs.insert(uid, job);
    }

    fn wrong(&mut self, what: &str) {
        self.violations.insert(what.to_owned());
    }
}

/// I-05, I-06, I-07: what was created although the job wanted nothing any more. Versions tell what
/// was stored first, whatever order the watches tell it in.
fn after_the_end(job: &Job, creation: &Creation) -> Vec<String> {
    let mut wrong = Vec::new();
    if job.ended.is_some_and(|version| version < creation.version) {
        wrong.push(format!(
            "I-06: {} was created after the job's end",
            creation.what
        ));
    }
    if job.deleted.is_some_and(|at| creation.at > at + CROSSING) {
        wrong.push(format!(
            "I-05: {} was created for a deleted job",
            creation.what
        ));
    }
    let suspended = job
        .suspended
        .is_some_and(|(version, at)| creation.version > version && creation.at > at + CROSSING);
    if suspended && creation.is_pod {
        wrong.push(format!(
            "I-07: {} was created for a suspended job",
            creation.what
        ));
    }
    wrong
}

fn key(kind: &str, object: &DynamicObject) -> (String, String, String) {
    (
        kind.to_owned(),
        object.namespace().unwrap_or_default(),
        object.name_any(),
    )
}

/// Versions of one API server are comparable numbers (Kubernetes 1.35 made that part of the API).
fn version(object: &DynamicObject) -> u64 {
    object
        .resource_version()
        .and_then(|version| version.parse().ok())
        .unwrap_or_default()
}
