//! The auditor's knowledge, updated by each event.
//!
//! Resource versions give the order of writes, in whatever order the watches report them. Checks across two resources therefore
//! compare versions when the verdict is requested, never the order of events.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::DynamicObject;
use kube::{Resource as _, ResourceExt as _};
use serde_json::Value;

use super::kinds::{self, SPARK};
use super::{Churn, Summary, spark};
use crate::audit::Entry;
use crate::job::{is_finished, is_true};
use crate::{JOB_NAME, REPLICA_INDEX, REPLICA_TYPE};

/// The pod annotation with the attempt.
const ATTEMPT: &str = "trainyard.dev/attempt";
/// The job annotation that says which pods restart together.
const RESTART_SCOPE: &str = "trainyard.dev/restart-scope";

/// Kind, namespace and name.
type Key = (String, String, String);

#[derive(Debug, Default)]
pub(super) struct State {
    /// Existing objects that jobs own.
    objects: BTreeMap<Key, Value>,
    pub(super) jobs: HashMap<String, Job>,
    creations: Vec<Creation>,
    /// Creations and deletions, by an object's name in a summary and its job's name.
    churn: BTreeMap<(Key, String), (Churn, String)>,
    /// Failed pods that are gone, with their job.
    failed: BTreeMap<Key, String>,
    /// The uids of pods that were terminating before they failed: their failure doesn't count.
    stopped: BTreeSet<String>,
    /// Objects that belong to others, and names that an object of a job once had.
    foreign: BTreeSet<Key>,
    own: BTreeSet<Key>,
    /// Children whose job has not been seen yet: watches of different resources are unordered.
    early: Vec<(String, DynamicObject)>,
    /// There is no garbage collection.
    pub(super) uncollected: bool,
    /// The test ends watches of the auditor.
    pub(super) gaps: bool,
    violations: BTreeSet<String>,
    pub(super) events: usize,
    pub(super) synced: usize,
    /// The last error of a watch.
    pub(super) trouble: String,
}

/// A range of versions, open at the end while `to` is unset.
#[derive(Clone, Copy, Debug)]
struct Span {
    from: u64,
    to: Option<u64>,
}

impl Span {
    fn contains(self, version: u64) -> bool {
        self.from < version && self.to.is_none_or(|to| version < to)
    }
}

/// The spans in which a condition held.
#[derive(Clone, Debug, Default)]
struct Spans(Vec<Span>);

impl Spans {
    /// Records that the condition holds, or doesn't, from a version on.
    fn note(&mut self, holds: bool, version: u64) {
        let open = self.0.last_mut().filter(|span| span.to.is_none());
        match (open, holds) {
            (None, true) => self.0.push(Span {
                from: version,
                to: None,
            }),
            (Some(span), false) => span.to = Some(version),
            (Some(_), true) | (None, false) => {}
        }
    }

    fn contains(&self, version: u64) -> bool {
        self.0.iter().any(|span| span.contains(version))
    }
}

#[derive(Debug, Default)]
pub(super) struct Job {
    last: Value,
    /// While a terminal status was stored.
    ended: Spans,
    /// While the user wanted it suspended and the operator had recorded that it is.
    suspended: Spans,
    /// The version in which its deletion was stored.
    deleted: Option<u64>,
    /// The version of the operator's first status write after that. The operator then knew of the deletion, because its writes fail
    /// unless they name the latest version.
    knew: Option<u64>,
    /// The driver names that the application requested.
    drivers: BTreeSet<String>,
    /// How often one of its pods was recreated after a failure.
    made_again: i64,
    /// The full restarts already in that count, by the gang's attempt.
    gangs: BTreeSet<String>,
    /// Its object is gone.
    gone: bool,
}

#[derive(Debug)]
struct Creation {
    what: String,
    kind: String,
    name: String,
    labels: BTreeMap<String, String>,
    owner: OwnerReference,
    version: u64,
}

impl State {
    pub(super) fn seen(&mut self, kind: &str, object: &DynamicObject) {
        self.events += 1;
        let Ok(value) = serde_json::to_value(object) else {
            return;
        };
        if kinds::is_child(kind) {
            self.child(kind, object, value);
        } else {
            self.job(object, value);
        }
    }

    pub(super) fn gone(&mut self, kind: &str, object: &DynamicObject) {
        self.events += 1;
        let key = key(kind, object);
        self.early.retain(|(_, child)| child.uid() != object.uid());
        if let Some(last) = self.objects.remove(&key) {
            self.remember_failure(&key, &last);
            self.churn(&key, object).deletes += 1;
        }
        if let Some(job) = object.uid().and_then(|uid| self.jobs.get_mut(&uid)) {
            job.gone = true;
            job.deleted.get_or_insert(version(object));
        }
    }

    /// The creations and deletions of each object so far, optionally of one job.
    pub(super) fn summary(&self, job: Option<&str>) -> Summary {
        let rows = self.churn.iter();
        let rows = rows.filter(|(_, (_, of))| job.is_none_or(|job| job == of));
        let mut summary = Summary::new();
        for (((kind, _, name), _), (churn, _)) in rows {
            let row = summary.entry(format!("{kind}/{name}")).or_default();
            row.creates += churn.creates;
            row.deletes += churn.deletes;
        }
        summary
    }

    fn churn(&mut self, key: &Key, object: &DynamicObject) -> &mut Churn {
        let owner = spark::application(object).or_else(|| controller(object));
        let (of, name) = owner.map_or(("", ""), |owner| (&owner.kind, &owner.name));
        let lasting = kinds::lasting(of, &key.2);
        // Masked names of two jobs may be equal.
        let of_one = if lasting == key.2 { "" } else { name };
        let key = (key.0.clone(), key.1.clone(), lasting);
        let row = self.churn.entry((key, of_one.to_owned()));
        &mut row.or_insert_with(|| (Churn::default(), name.to_owned())).0
    }

    fn remember_failure(&mut self, key: &Key, last: &Value) {
        let uid = last["metadata"]["uid"].as_str().unwrap_or_default();
        let was_stopped = self.stopped.remove(uid);
        if key.0 == "Pod" && !was_stopped && super::rest::counts_as_failure(last) {
            let owner = &last["metadata"]["ownerReferences"][0]["uid"];
            let owner = owner.as_str().unwrap_or_default().to_owned();
            self.failed.insert(key.clone(), owner);
        }
    }

    /// I-16: a pod replaces a failed one.
    ///
    /// A full restart counts once, however many pods had failed.
    fn made_again(&mut self, key: &Key, owner: &str, attempt: &str) {
        if self.failed.remove(key).is_none_or(|of| of != owner) {
            return;
        }
        let Some(job) = self.jobs.get_mut(owner) else {
            return;
        };
        let gang = attempt.split('.').next().unwrap_or_default();
        let together = job.last["metadata"]["annotations"][RESTART_SCOPE] == "Gang";
        if together && !job.gangs.insert(gang.to_owned()) {
            return;
        }
        job.made_again += 1;
        let limit = job.last["spec"]["runPolicy"]["backoffLimit"].as_i64();
        // In an MPIJob the limit is the launcher's: workers are hosts.
        let limit = limit.filter(|_| job.last["kind"] != "MPIJob");
        if limit.is_some_and(|limit| job.made_again > limit) {
            let wrong = format!(
                "I-16: {} is number {} that was made again after a failure, and the limit is {limit:?}",
                key.2, job.made_again
            );
            self.wrong(&wrong);
        }
    }

    /// Violations of the invariants of a settled cluster.
    pub(super) fn restless(&self) -> Vec<String> {
        let jobs = self.jobs.iter();
        jobs.flat_map(|(uid, job)| {
            let objects: Vec<(&str, &Value)> = self
                .objects
                .iter()
                .filter(|(_, object)| is_of(object, uid))
                .map(|((kind, _, _), object)| (kind.as_str(), object))
                .collect();
            let name = &job.last["metadata"]["name"];
            let wrong = if job.gone {
                let collected = if self.uncollected { &[][..] } else { &objects };
                super::rest::left_over(collected)
            } else if job.last["kind"] == SPARK {
                spark::at_rest(&job.last, &objects)
            } else {
                super::rest::at_rest(&job.last, &objects)
            };
            wrong
                .into_iter()
                .map(move |wrong| format!("{wrong} ({name})"))
        })
        .collect()
    }

    fn child(&mut self, kind: &str, object: &DynamicObject, value: Value) {
        let labels = object.labels();
        let owner = controller(object);
        let executor = spark::application(object);
        let of_known = [owner, executor];
        let of_known = of_known.into_iter().flatten();
        let mut of_known = of_known.filter(|owner| self.jobs.contains_key(&owner.uid));
        if !kinds::is_marked(labels) && of_known.next().is_none() {
            let key = key(kind, object);
            if let Some(known) = self.objects.get_mut(&key) {
                // It is an orphan.
                *known = value;
            } else if owner.is_none_or(|owner| !kinds::is_job(&owner.kind)) {
                self.foreign.insert(key);
            } else {
                self.early.push((kind.to_owned(), object.clone()));
            }
            return;
        }
        self.own.insert(key(kind, object));
        if owner.is_some_and(|owner| owner.kind == "Job") {
            // The Job controller created it.
            return;
        }
        let key = key(kind, object);
        let what = format!("{kind} {}", object.name_any());
        let twice = env_twice(&value);
        if let Some(before) = self.objects.insert(key.clone(), value) {
            if before["metadata"]["uid"] == object.uid().unwrap_or_default() {
                if kind == "Pod" && executor.is_none() {
                    self.one_pod_per_rank(object);
                    let terminating = !before["metadata"]["deletionTimestamp"].is_null();
                    if terminating && before["status"]["phase"] != "Failed" {
                        self.stopped.extend(object.uid());
                    }
                }
                return;
            }
            self.remember_failure(&key, &before);
        }
        self.churn(&key, object).creates += 1;
        if executor.is_some() {
            // A driver created it.
            return;
        }
        let Some(owner) = owner.cloned() else {
            self.wrong(&format!("I-24: {what} has no controller"));
            return;
        };
        for name in twice {
            self.wrong(&format!("I-11: {what} has the variable {name} twice"));
        }
        let attempt = object.annotations().get(ATTEMPT).map(String::as_str);
        self.made_again(&key, &owner.uid, attempt.unwrap_or_default());
        if !kinds::is_labelled(kind, &owner, labels) {
            self.wrong(&format!(
                "I-24: {what} of job {} has the labels {labels:?}",
                owner.name
            ));
        }
        self.creations.push(Creation {
            what,
            kind: kind.to_owned(),
            name: object.name_any(),
            labels: labels.clone(),
            version: version(object),
            owner,
        });
        if kind == "Pod" {
            self.one_pod_per_rank(object);
        }
    }

    /// I-01 and I-04: at any time an index has at most one pod in the API, whatever its phase.
    fn one_pod_per_rank(&mut self, object: &DynamicObject) {
        let rank = |value: &Value| {
            let labels = &value["metadata"]["labels"];
            let owner = value["metadata"]["ownerReferences"][0]["uid"].clone();
            (
                owner,
                // These distinguish orphaned pods.
                labels[JOB_NAME].clone(),
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
        let known = self.jobs.remove(&uid);
        let before = known.as_ref().map(|job| &job.last);
        let is_spark = value["kind"] == SPARK;
        let wrong = if is_spark {
            spark::rules(before, &value)
        } else {
            super::rules::job(before, &value)
        };
        for wrong in wrong {
            self.violations.insert(format!("{wrong} ({name})"));
        }
        let (ended, suspended) = if is_spark {
            (spark::is_finished(&value), spark::is_suspended(&value))
        } else {
            let wish = value["spec"]["runPolicy"]["suspend"] == true;
            (is_finished(&value), wish && is_true(&value, "Suspended"))
        };
        let mut job = known.unwrap_or_default();
        let now = version(object);
        job.ended.note(ended, now);
        job.suspended.note(suspended, now);
        if job.deleted.is_some() && job.last["status"] != value["status"] {
            job.knew.get_or_insert(now);
        }
        if object.meta().deletion_timestamp.is_some() {
            job.deleted.get_or_insert(now);
        }
        job.drivers.extend(kinds::driver_name(&value));
        job.last = value;
        self.jobs.insert(uid.clone(), job);
        let of_job =
            |(_, child): &(String, DynamicObject)| controller(child).is_some_and(|o| o.uid == uid);
        let early = std::mem::take(&mut self.early).into_iter();
        let (known, early): (Vec<_>, Vec<_>) = early.partition(of_job);
        self.early = early;
        for (kind, child) in known {
            self.seen(&kind, &child);
        }
    }

    pub(super) fn wrong(&mut self, what: &str) {
        self.violations.insert(what.to_owned());
    }

    /// I-25 and I-27: objects changed or deleted that never were a job's, and jobs replaced as a whole.
    pub(super) fn meddled(&self, asked: &[Entry]) -> Vec<String> {
        let changed = asked.iter().filter(|entry| {
            let changes = ["update", "patch", "delete"].contains(&entry.verb.as_str());
            changes && entry.code < 300
        });
        let mut wrong = Vec::new();
        for entry in changed {
            let key = |kind: &str| (kind.to_owned(), entry.namespace.clone(), entry.name.clone());
            let foreign = kinds::of_plural(&entry.resource).map(key);
            if foreign.is_some_and(|key| self.foreign.contains(&key) && !self.own.contains(&key)) {
                wrong.push(format!(
                    "I-25: {} {}, which is no job's",
                    entry.what(),
                    entry.name
                ));
            }
            let jobs = entry.resource.ends_with("jobs") && entry.resource != "jobs"
                || entry.resource.ends_with("sparkapplications");
            if jobs && entry.verb == "update" && entry.subresource.is_empty() {
                wrong.push(format!("I-27: {} {}", entry.what(), entry.name));
            }
        }
        wrong
    }

    /// All violations. Once every event has been seen, an unseen owner never existed: I-24.
    pub(super) fn verdict(&self, complete: bool) -> BTreeSet<String> {
        let mut wrong = self.violations.clone();
        for creation in &self.creations {
            match self.jobs.get(&creation.owner.uid) {
                Some(job) => wrong.extend(ill_timed_or_named(job, creation)),
                None if complete => {
                    let what = &creation.what;
                    wrong.insert(format!("I-24: {what} is owned by no job that was seen"));
                }
                None => {}
            }
        }
        wrong
    }
}

/// Returns the variables that a container of a pod has more than once.
fn env_twice(object: &Value) -> BTreeSet<String> {
    let lists = ["initContainers", "containers"].map(|list| object["spec"][list].as_array());
    let mut twice = BTreeSet::new();
    for container in lists.into_iter().flatten().flatten() {
        let mut names = BTreeSet::new();
        let env = container["env"].as_array().into_iter().flatten();
        let again = env
            .filter_map(|variable| variable["name"].as_str())
            .filter(|name| !names.insert(*name));
        twice.extend(again.map(str::to_owned));
    }
    twice
}

/// Returns true if a job with this uid owns the object.
fn is_of(object: &Value, uid: &str) -> bool {
    let owners = object["metadata"]["ownerReferences"].as_array();
    owners.is_some_and(|owners| owners.iter().any(|owner| owner["uid"] == uid))
}

fn controller(object: &DynamicObject) -> Option<&OwnerReference> {
    let mut owners = object.owner_references().iter();
    owners.find(|owner| owner.controller == Some(true))
}

/// I-02, and I-05 to I-07: objects with wrong names, or created although the job needed none.
fn ill_timed_or_named(job: &Job, creation: &Creation) -> Vec<String> {
    let Creation { what, version, .. } = creation;
    let mut wrong = Vec::new();
    let names = kinds::names(
        &creation.kind,
        &creation.owner,
        &creation.labels,
        &job.drivers,
    );
    if !names.allow(&creation.name) {
        wrong.push(format!("I-02: {what} should be called {names:?}"));
    }
    if job.ended.contains(*version) {
        wrong.push(format!("I-06: {what} was created after the job's end"));
    }
    // A request may overlap with the user's, and watches may overlap. The operator's next status write shows what it knew of the
    // deletion.
    if job.knew.is_some_and(|knew| knew < *version) {
        wrong.push(format!("I-05: {what} was created for a deleted job"));
    }
    // Nothing overlaps here: the operator itself has recorded that the job is suspended.
    if creation.kind == "Pod" && job.suspended.contains(*version) {
        wrong.push(format!("I-07: {what} was created for a suspended job"));
    }
    wrong
}

fn key(kind: &str, object: &DynamicObject) -> Key {
    (
        kind.to_owned(),
        object.namespace().unwrap_or_default(),
        object.name_any(),
    )
}

/// Versions of one API server are comparable numbers (part of the API since Kubernetes 1.35).
fn version(object: &DynamicObject) -> u64 {
    object
        .resource_version()
        .and_then(|version| version.parse().ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::OPERATOR_NAME;

    fn object(value: Value) -> DynamicObject {
        serde_json::from_value(value).unwrap()
    }

    /// A job that may restart once.
    fn job(state: &mut State, scope: &str) {
        state.seen(
            "PyTorchJob",
            &object(json!({
                "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob",
                "metadata": {
                    "name": "pt", "namespace": "ns", "uid": "job", "resourceVersion": "1",
                    "annotations": { RESTART_SCOPE: scope },
                },
                "spec": { "runPolicy": { "backoffLimit": 1 } },
            })),
        );
    }

    fn pod(index: u32, attempt: &str, phase: &str, terminating: bool) -> DynamicObject {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": format!("pt-worker-{index}"), "namespace": "ns",
                "uid": format!("{index}-{attempt}"), "resourceVersion": "2",
                "labels": {
                    OPERATOR_NAME: "pytorchjob-controller", JOB_NAME: "pt",
                    REPLICA_TYPE: "worker", REPLICA_INDEX: index.to_string(),
                },
                "annotations": { ATTEMPT: attempt },
                "ownerReferences": [{
                    "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "pt",
                    "uid": "job", "controller": true,
                }],
            },
            "status": { "phase": phase },
        });
        if terminating {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        object(pod)
    }

    /// Returns the violations after two pods failed or were stopped, as given, and were recreated.
    fn made_again(scope: &str, stopped: bool) -> Vec<String> {
        let mut state = State::default();
        job(&mut state, scope);
        for index in 0..2 {
            state.seen("Pod", &pod(index, "0.0", "Running", false));
            state.seen("Pod", &pod(index, "0.0", "Running", stopped));
            state.seen("Pod", &pod(index, "0.0", "Failed", stopped));
            state.gone("Pod", &pod(index, "0.0", "Failed", true));
        }
        for index in 0..2 {
            state.seen("Pod", &pod(index, "1.0", "Pending", false));
        }
        let about = |wrong: &&String| wrong.starts_with("I-16");
        state.violations.iter().filter(about).cloned().collect()
    }

    #[test]
    fn i_16_each_pod_that_failed_costs_one_and_a_gang_one_for_all() {
        assert_eq!(made_again("Replica", false).len(), 1);
        assert!(made_again("Gang", false).is_empty());
    }

    #[test]
    fn i_16_who_was_stopped_before_it_failed_costs_nothing() {
        assert!(made_again("Replica", true).is_empty());
    }

    fn named(kind: &str, name: &str, version: u64, more: &Value) -> DynamicObject {
        let mut value = json!({
            "apiVersion": "v1", "kind": kind,
            "metadata": {
                "name": name, "namespace": "ns", "uid": format!("{name}-{version}"),
                "resourceVersion": version.to_string(),
                "labels": {
                    OPERATOR_NAME: "pytorchjob-controller", JOB_NAME: "pt",
                    REPLICA_TYPE: "worker", REPLICA_INDEX: "0",
                },
                "ownerReferences": [{
                    "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "pt",
                    "uid": "job", "controller": true,
                }],
            },
        });
        merge(&mut value, more);
        object(value)
    }

    fn merge(to: &mut Value, from: &Value) {
        match from {
            Value::Object(fields) if to.is_object() => {
                for (name, value) in fields {
                    merge(&mut to[name], value);
                }
            }
            other => *to = other.clone(),
        }
    }

    fn worker(version: u64) -> DynamicObject {
        named("Pod", "pt-worker-0", version, &json!({}))
    }

    /// The job at a version.
    fn at(version: u64, more: &Value) -> DynamicObject {
        let mut value = json!({
            "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob",
            "metadata": {
                "name": "pt", "namespace": "ns", "uid": "job", "resourceVersion": version.to_string(),
            },
            "spec": {}, "status": {},
        });
        merge(&mut value, more);
        object(value)
    }

    fn ids(state: &State) -> Vec<String> {
        let wrong = state.verdict(true).into_iter();
        let mut ids: Vec<String> = wrong.map(|w| w[..4].to_owned()).collect();
        ids.dedup();
        ids
    }

    fn terminating() -> Value {
        json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } })
    }

    #[test]
    fn i_01_i_04_two_pods_of_one_index_are_told() {
        let both = |phase: &str| {
            let mut state = State::default();
            state.seen("PyTorchJob", &at(1, &json!({})));
            let first = named(
                "Pod",
                "pt-worker-0",
                2,
                &json!({ "status": { "phase": phase } }),
            );
            state.seen("Pod", &first);
            state.seen("Pod", &named("Pod", "pt-worker-00", 3, &json!({})));
            ids(&state)
        };
        assert_eq!(both("Running"), ["I-01", "I-02"]);
        assert_eq!(both("Failed"), ["I-02", "I-04"]);
    }

    #[test]
    fn a_child_that_is_seen_before_its_job_counts_once_the_job_is_seen() {
        let mut state = State::default();
        // A Service of an MPIJob has none of the labels that mark children.
        let meta = |name: &str, uid: &str| json!({ "name": name, "namespace": "ns", "uid": uid, "resourceVersion": "1" });
        let mut service =
            json!({ "apiVersion": "v1", "kind": "Service", "metadata": meta("pi", "service") });
        service["metadata"]["labels"] = json!({ "app": "pi" });
        service["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "name": "pi", "uid": "job", "controller": true,
        }]);
        state.seen("Service", &object(service));
        assert!(state.summary(None).is_empty());
        let job = json!({ "apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": meta("pi", "job"), "spec": {} });
        state.seen("MPIJob", &object(job));
        let made = Churn {
            creates: 1,
            deletes: 0,
        };
        assert_eq!(
            state.summary(None),
            Summary::from([("Service/pi".to_owned(), made)])
        );
    }

    #[test]
    fn i_02_i_24_wrong_names_owners_and_labels_are_told() {
        let made = |more: &Value| {
            let mut state = State::default();
            state.seen("PyTorchJob", &at(1, &json!({})));
            state.seen("Pod", &named("Pod", "pt-worker-0", 2, more));
            ids(&state)
        };
        assert!(made(&json!({})).is_empty());
        assert_eq!(
            made(&json!({ "metadata": { "name": "pt-worker-1" } })),
            ["I-02"]
        );
        assert_eq!(
            made(&json!({ "metadata": { "ownerReferences": [] } })),
            ["I-24"]
        );
        assert_eq!(
            made(&json!({ "metadata": { "labels": { JOB_NAME: "x" } } })),
            ["I-24"]
        );
        let mut state = State::default();
        state.seen("Pod", &worker(2));
        assert_eq!(ids(&state), ["I-24"], "a job that nobody saw");
    }

    #[test]
    fn i_05_what_is_made_after_the_operator_knew_of_a_deletion_is_told() {
        let crossing = |steps: &[(&str, DynamicObject)]| {
            let mut state = State::default();
            state.seen("PyTorchJob", &at(1, &json!({})));
            state.seen("PyTorchJob", &at(5, &terminating()));
            for (what, object) in steps {
                let kind = object.types.as_ref().unwrap().kind.clone();
                match *what {
                    "seen" => state.seen(&kind, object),
                    _ => state.gone(&kind, object),
                }
            }
            ids(&state)
        };
        assert!(
            crossing(&[("seen", worker(6))]).is_empty(),
            "requests cross"
        );
        let replaced = [
            ("seen", worker(2)),
            ("gone", worker(6)),
            ("seen", worker(7)),
        ];
        assert!(crossing(&replaced).is_empty(), "so do watches");
        let mut stored = terminating();
        stored["status"] = json!({ "restarts": 1 });
        let stored = at(6, &stored);
        assert_eq!(
            crossing(&[("seen", stored.clone()), ("seen", worker(7))]),
            ["I-05"]
        );
        assert_eq!(
            crossing(&[("seen", worker(7)), ("seen", stored)]),
            ["I-05"],
            "late watch"
        );
    }

    #[test]
    fn i_06_i_07_what_is_made_after_the_end_or_for_a_suspended_job_is_told() {
        let done = json!({ "status": {
            "completionTime": "2026-01-01T00:00:00Z",
            "conditions": [{ "type": "Failed", "status": "True", "reason": "A", "message": "m" }],
        }});
        let rests = json!({
            "spec": { "runPolicy": { "suspend": true } },
            "status": { "conditions": [
                { "type": "Suspended", "status": "True", "reason": "A", "message": "m" },
            ]},
        });
        for (news, id) in [(&done, "I-06"), (&rests, "I-07")] {
            let made = |version: u64| {
                let mut state = State::default();
                state.seen("PyTorchJob", &at(1, &json!({})));
                // The order in which the watches deliver it.
                state.seen("Pod", &worker(version));
                state.seen("PyTorchJob", &at(5, news));
                ids(&state)
            };
            assert!(made(4).is_empty(), "{id}");
            assert_eq!(made(6), [id]);
        }
        let mut state = State::default();
        state.seen("PyTorchJob", &at(5, &rests));
        state.seen("PyTorchJob", &at(8, &json!({})));
        state.seen("Pod", &worker(9));
        assert!(ids(&state).is_empty(), "resumed");
    }

    #[test]
    fn i_06_an_application_that_was_edited_runs_again() {
        let app = |version: u64, generation: u32, word: &str| {
            object(json!({
                "apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": SPARK,
                "metadata": {
                    "name": "pi", "namespace": "ns", "uid": "app", "generation": generation,
                    "resourceVersion": version.to_string(),
                },
                "status": {
                    "applicationState": { "state": word }, "observedGeneration": 1,
                    "terminationTime": "2026-01-01T00:00:00Z",
                },
            }))
        };
        let driver = |version: u64| {
            object(json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {
                    "name": "pi-driver", "namespace": "ns", "uid": format!("d{version}"),
                    "resourceVersion": version.to_string(),
                    "labels": {
                        kinds::SPARK_NAME: "pi", kinds::SUBMISSION: "one",
                        "sparkoperator.k8s.io/launched-by-spark-operator": "true",
                    },
                    "ownerReferences": [{
                        "apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": SPARK, "name": "pi",
                        "uid": "app", "controller": true,
                    }],
                },
            }))
        };
        let run = |made: u64| {
            let mut state = State::default();
            state.seen(SPARK, &app(5, 1, "COMPLETED"));
            state.seen("Pod", &driver(made));
            state.seen(SPARK, &app(8, 2, "INVALIDATING"));
            ids(&state)
        };
        assert_eq!(run(6), ["I-06"]);
        assert!(run(9).is_empty());
    }

    #[test]
    fn i_11_a_variable_that_a_container_has_twice_is_told() {
        let mut state = State::default();
        state.seen("PyTorchJob", &at(1, &json!({})));
        let env = json!([{ "name": "RANK", "value": "0" }, { "name": "RANK", "value": "1" }]);
        let spec = json!({ "spec": { "containers": [{ "env": env }] } });
        state.seen("Pod", &named("Pod", "pt-worker-0", 2, &spec));
        assert_eq!(ids(&state), ["I-11"]);
    }

    #[test]
    fn i_25_i_27_requests_for_what_is_no_job_s_are_told() {
        let entry = |verb: &str, resource: &str, name: &str| Entry {
            user: "op".into(),
            user_agent: String::new(),
            verb: verb.into(),
            resource: resource.into(),
            subresource: String::new(),
            namespace: "ns".into(),
            name: name.into(),
            code: 200,
            uri: String::new(),
        };
        let mut state = State::default();
        state.seen("PyTorchJob", &at(1, &json!({})));
        state.seen("Pod", &worker(2));
        let theirs = json!({ "metadata": { "ownerReferences": [], "labels": null } });
        state.seen("Pod", &named("Pod", "theirs", 3, &theirs));
        let asked = |entries: &[Entry]| state.meddled(entries);
        assert!(asked(&[entry("delete", "pods", "pt-worker-0")]).is_empty());
        assert!(asked(&[entry("get", "pods", "theirs")]).is_empty());
        assert!(asked(&[entry("delete", "pods", "theirs")])[0].starts_with("I-25"));
        assert!(asked(&[entry("update", "pytorchjobs", "pt")])[0].starts_with("I-27"));
    }

    #[test]
    fn i_28_objects_of_a_job_that_is_gone_are_told_at_rest() {
        let mut state = State::default();
        state.seen("PyTorchJob", &at(1, &json!({})));
        state.seen("Pod", &worker(2));
        state.gone("PyTorchJob", &at(3, &json!({})));
        assert!(state.restless()[0].starts_with("I-28"));
        state.gone("Pod", &worker(4));
        assert!(state.restless().is_empty());
    }
}
