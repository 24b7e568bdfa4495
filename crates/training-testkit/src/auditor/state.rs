//! What the auditor knows, and what it makes of each event.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::DynamicObject;
use kube::{Resource as _, ResourceExt as _};
use serde_json::Value;

use super::Churn;
use crate::job::{is_finished, is_true};
use crate::{JOB_NAME, JOB_ROLE, OPERATOR_NAME, REPLICA_INDEX, REPLICA_TYPE};

/// How long after a user's wish the operator may still act without knowing of it. Its request can
/// cross the user's on the way. Creation times have whole seconds, and a busy machine is slow.
const CROSSING: i64 = 3;
/// The annotation of a pod that says which attempt it is of.
const ATTEMPT: &str = "trainyard.dev/attempt";
/// The annotation of a job that says what restarts together.
const RESTART_SCOPE: &str = "trainyard.dev/restart-scope";

#[derive(Debug, Default)]
pub(super) struct State {
    /// What jobs own and exists, by kind, namespace and name.
    objects: BTreeMap<(String, String, String), Value>,
    pub(super) jobs: HashMap<String, Job>,
    /// Creations by owner, for jobs that are seen later than their objects.
    pub(super) creations: Vec<Creation>,
    pub(super) churn: BTreeMap<(String, String, String), Churn>,
    /// Pods that failed and are gone, by kind, namespace and name, with the job that they were of.
    failed: BTreeMap<(String, String, String), String>,
    /// The uids of pods that were told to go before they failed: who is stopped fails, and costs nothing.
    stopped: BTreeSet<String>,
    pub(super) violations: BTreeSet<String>,
    pub(super) events: usize,
    pub(super) synced: usize,
    /// The last error of a watch.
    pub(super) trouble: String,
}

#[derive(Debug)]
pub(super) struct Job {
    last: Value,
    /// The version with which the terminal condition was stored.
    ended: Option<u64>,
    /// When the user's wish to delete it was stored. Units: seconds.
    deleted: Option<i64>,
    /// The version and time since which it is suspended. Units of the time: seconds.
    suspended: Option<(u64, i64)>,
    /// How often a pod of it was made again after a failure.
    made_again: i64,
    /// The restarts of all its pods together that are in it already, by the gang's attempt.
    gangs: BTreeSet<String>,
    /// Its object is no more.
    gone: bool,
}

#[derive(Debug)]
pub(super) struct Creation {
    pub(super) what: String,
    is_pod: bool,
    pub(super) owner: String,
    version: u64,
    /// Units: seconds.
    at: i64,
}

impl State {
    pub(super) fn seen(&mut self, kind: &str, object: &DynamicObject) {
        self.events += 1;
        let Ok(value) = serde_json::to_value(object) else {
            return;
        };
        if matches!(kind, "Pod" | "Service" | "ConfigMap" | "Secret" | "Job") {
            self.child(kind, object, value);
        } else {
            self.job(object, value);
        }
    }

    pub(super) fn gone(&mut self, kind: &str, object: &DynamicObject) {
        self.events += 1;
        let key = key(kind, object);
        if let Some(last) = self.objects.remove(&key) {
            self.remember_failure(&key, &last);
            self.churn.entry(key).or_default().deletes += 1;
        }
        if let Some(job) = object.uid().and_then(|uid| self.jobs.get_mut(&uid)) {
            job.gone = true;
        }
    }

    fn remember_failure(&mut self, key: &(String, String, String), last: &Value) {
        let uid = last["metadata"]["uid"].as_str().unwrap_or_default();
        let was_stopped = self.stopped.remove(uid);
        if key.0 == "Pod" && !was_stopped && super::rest::counts_as_failure(last) {
            let owner = &last["metadata"]["ownerReferences"][0]["uid"];
            let owner = owner.as_str().unwrap_or_default().to_owned();
            self.failed.insert(key.clone(), owner);
        }
    }

    /// I-16: a pod takes the place of one that failed.
    ///
    /// Where all pods are restarted together, that is one restart, however many of them had failed.
    fn made_again(&mut self, key: &(String, String, String), owner: &str, attempt: &str) {
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
        // Of an MPIJob it is its launcher's: workers are hosts.
        let limit = limit.filter(|_| job.last["kind"] != "MPIJob");
        if limit.is_some_and(|limit| job.made_again > limit) {
            let wrong = format!(
                "I-16: {} is number {} that was made again after a failure, and the limit is {limit:?}",
                key.2, job.made_again
            );
            self.wrong(&wrong);
        }
    }

    /// What is not yet as it must be in the end.
    pub(super) fn restless(&self) -> Vec<String> {
        let there = self.jobs.iter().filter(|(_, job)| !job.gone);
        there
            .flat_map(|(uid, job)| {
                let pods: Vec<&Value> = self
                    .objects
                    .iter()
                    .filter(|(key, pod)| {
                        key.0 == "Pod" && pod["metadata"]["ownerReferences"][0]["uid"] == **uid
                    })
                    .map(|(_, pod)| pod)
                    .collect();
                super::rest::at_rest(&job.last, &pods)
            })
            .collect()
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
        if owner.is_some_and(|owner| owner.kind == "Job") {
            // Made by the controller of such objects.
            return;
        }
        let key = key(kind, object);
        let what = format!("{kind} {}", object.name_any());
        if let Some(before) = self.objects.insert(key.clone(), value) {
            if before["metadata"]["uid"] == object.uid().unwrap_or_default() {
                if kind == "Pod" {
                    self.one_pod_per_rank(object);
                    let leaving = !before["metadata"]["deletionTimestamp"].is_null();
                    if leaving && before["status"]["phase"] != "Failed" {
                        self.stopped.extend(object.uid());
                    }
                }
                return;
            }
            self.remember_failure(&key, &before);
        }
        self.churn.entry(key.clone()).or_default().creates += 1;
        let Some(owner) = owner else {
            self.wrong(&format!("I-24: {what} has no controller"));
            return;
        };
        let attempt = object.annotations().get(ATTEMPT).map(String::as_str);
        self.made_again(&key, &owner.uid, attempt.unwrap_or_default());
        let name = object.name_any();
        let expected = names(kind, owner, labels);
        if !expected.contains(&name) {
            self.wrong(&format!("I-02: {what} should be called {expected:?}"));
        }
        if !is_labelled(kind, owner, labels) {
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
                // Pods that were left without an owner are told apart by this.
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
        let before = self.jobs.get(&uid);
        for wrong in super::rules::job(before.map(|job| &job.last), &value) {
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
            made_again: before.map_or(0, |job| job.made_again),
            gangs: before.map_or_else(BTreeSet::new, |job| job.gangs.clone()),
            gone: false,
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

    pub(super) fn wrong(&mut self, what: &str) {
        self.violations.insert(what.to_owned());
    }
}

/// I-02: what an object of a job can be called.
fn names(kind: &str, owner: &OwnerReference, labels: &BTreeMap<String, String>) -> Vec<String> {
    let label = |name: &str| labels.get(name).map(String::as_str).unwrap_or_default();
    let full = |ends: &[&str]| ends.iter().map(|end| owner.name.clone() + end).collect();
    match (owner.kind.as_str(), kind) {
        ("MPIJob", "Service") => full(&["", "-launcher"]),
        ("MPIJob", "ConfigMap") => full(&["-config"]),
        // Another one where nobody knows any more whether the first one is the job's: it is never read.
        ("MPIJob", "Secret") => full(&["-ssh", "-ssh-1"]),
        ("MPIJob", "Job") => full(&["-launcher"]),
        _ => {
            // Pods of an MPIJob of v2beta1 have another label for it.
            let role = [REPLICA_TYPE, JOB_ROLE].map(label);
            let role = role.into_iter().find(|role| !role.is_empty());
            let role = role.unwrap_or_default();
            vec![format!("{}-{role}-{}", owner.name, label(REPLICA_INDEX))]
        }
    }
}

/// I-24: whether an object has the labels by which it is found.
fn is_labelled(kind: &str, owner: &OwnerReference, labels: &BTreeMap<String, String>) -> bool {
    if owner.kind == "MPIJob" && kind != "Pod" {
        return labels.get("app") == Some(&owner.name);
    }
    labels.contains_key(OPERATOR_NAME) && labels.get(JOB_NAME) == Some(&owner.name)
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> DynamicObject {
        serde_json::from_value(value).unwrap()
    }

    /// A job that may be restarted once.
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

    fn pod(index: u32, attempt: &str, phase: &str, leaving: bool) -> DynamicObject {
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
        if leaving {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        object(pod)
    }

    /// What is wrong after two pods failed or were stopped, as told, and were made again.
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
}
