//! The durable state of a job, in the form that decisions use. It is stored only in the job's status.

use std::collections::BTreeMap;
use std::fmt::Debug;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use training_api::condition::holds;
use training_api::{
    ConditionType, JobCondition, JobStatus, LastFailure, ReplicaAttempt, ReplicaStatus,
};

use crate::model::indices::IndexSet;
use crate::model::provider::Run;
use crate::model::template_hashes::TemplateHashes;
use crate::model::view::Attempt;

/// The durable state of one job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DurableState {
    /// The conditions, in their published order.
    pub conditions: Vec<JobCondition>,
    /// Counts by replica type as keyed in the spec; `None` before the first reconcile.
    pub counts: Option<BTreeMap<String, ReplicaStatus>>,
    /// The start time of the current run.
    pub started: Option<Timestamp>,
    /// When the job ended.
    pub completed: Option<Timestamp>,
    /// The attempt of the whole gang.
    pub gang_attempt: u32,
    /// Replicas recreated within the gang attempt, by (role label, index).
    pub replicas: BTreeMap<(String, u32), ReplicaRestarts>,
    /// Restarts of the whole gang after failures: their number, and when the last one was decided.
    pub gang_restart: Option<ReplicaRestarts>,
    /// Indices of succeeded replicas, by role label.
    pub finished: BTreeMap<String, IndexSet>,
    /// Failures that count against the backoff limit.
    pub counted_failures: u32,
    /// Pods recreated after a failure or a disruption.
    pub recreated: u32,
    /// The highest observed sum of in-place container restarts.
    pub container_restarts: u32,
    /// Ready or succeeded replicas, and all replicas.
    pub ready: Option<String>,
    /// Template hashes of the current run's pods; `None` if another operator started the run.
    pub made_from: Option<TemplateHashes>,
    /// The gang scheduler of the current run; `None` if there is none.
    pub gang: Option<Run>,
    /// Objects that are created once per job and never again: the name or uid by purpose.
    pub made_once: BTreeMap<String, String>,
    /// The label selector of the workers, if the counts have none.
    pub worker_selector: Option<String>,
    /// The last failure.
    pub last_failure: Option<LastFailure>,
}

/// How often a replica was recreated within the gang attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaRestarts {
    /// The attempt, from 1.
    pub attempt: u32,
    /// When this attempt was decided.
    pub decided: Option<Timestamp>,
    /// How many of the attempts came before a pod that ran for long. They don't count for the backoff.
    pub settled: u32,
}

impl DurableState {
    /// Returns true if the job has ended, by any durable sign.
    pub fn is_finished(&self) -> bool {
        self.completed.is_some()
            || self.holds(ConditionType::Succeeded)
            || self.holds(ConditionType::Failed)
    }

    /// Returns true if the condition of this type is true.
    pub fn holds(&self, type_: ConditionType) -> bool {
        holds(&self.conditions, type_)
    }

    /// Returns the reason of the `Stalled` condition if the job has not ended.
    fn waits_for(&self) -> Option<String> {
        let mut conditions = self.conditions.iter();
        let stalled = conditions.find(|c| c.holds(ConditionType::Stalled))?;
        stalled.reason.clone().filter(|_| !self.is_finished())
    }

    /// Returns a replica's current attempt.
    pub fn attempt(&self, role_label: &str, index: u32) -> Attempt {
        // The map's key is an owned string. Most jobs have no entry, so the lookup costs nothing for them.
        let replica = if self.replicas.is_empty() {
            0
        } else {
            self.replicas
                .get(&(role_label.to_owned(), index))
                .map_or(0, |r| r.attempt)
        };
        Attempt {
            gang: self.gang_attempt,
            replica,
        }
    }

    /// Returns true if the replica succeeded.
    pub fn has_finished(&self, role_label: &str, index: u32) -> bool {
        self.finished
            .get(role_label)
            .is_some_and(|set| set.contains(index))
    }

    /// Starts a new gang attempt, above all that pods carry, the highest of which is `newest`. It resets what single replicas did, but
    /// not what counts against limits.
    pub fn next_gang_attempt(&mut self, newest: u32) {
        self.gang_attempt = self.gang_attempt.max(newest).saturating_add(1);
        self.replicas.clear();
        self.finished.clear();
    }
}

fn number(value: Option<i32>) -> u32 {
    value.and_then(|v| u32::try_from(v).ok()).unwrap_or(0)
}

/// Omits zero, so healthy jobs don't have the field.
fn unless_zero(value: u32) -> Option<i32> {
    (value > 0).then(|| i32::try_from(value).unwrap_or(i32::MAX))
}

fn recall_attempt(entry: &ReplicaAttempt) -> ReplicaRestarts {
    ReplicaRestarts {
        attempt: number(Some(entry.attempt)),
        decided: entry.time.as_ref().map(|t| t.0),
        settled: number(entry.settled),
    }
}

fn report_attempt(entry: ReplicaRestarts) -> ReplicaAttempt {
    ReplicaAttempt {
        attempt: i32::try_from(entry.attempt).unwrap_or(i32::MAX),
        time: entry.decided.map(Time),
        settled: unless_zero(entry.settled),
    }
}

/// The maximum bytes for the finished indices of all roles. It keeps the whole status below 32 KiB.
const FINISHED_BYTES: usize = 8 * 1024;

fn report_finished(finished: &BTreeMap<String, IndexSet>) -> BTreeMap<String, String> {
    let mut left = FINISHED_BYTES;
    let mut out = BTreeMap::new();
    for (role, set) in finished {
        let text = set.print_within(left);
        left -= text.len();
        if !text.is_empty() {
            out.insert(role.clone(), text);
        }
    }
    out
}

/// A status that stores a job's durable state.
pub trait JobState:
    Clone + Debug + Default + PartialEq + Serialize + DeserializeOwned + Send + Sync
{
    /// Reads the durable state.
    fn durable_state(&self) -> DurableState;
    /// Returns the status with this state. Invariant: `report(state).durable_state() == state` for every field that decisions use.
    #[must_use]
    fn report(&self, state: &DurableState) -> Self;
}

impl JobState for JobStatus {
    fn durable_state(&self) -> DurableState {
        let restarts = number(self.restarts);
        let container_restarts = number(self.container_restarts);
        DurableState {
            conditions: self.conditions.clone(),
            counts: self.replica_statuses.clone(),
            started: self.start_time.as_ref().map(|t| t.0),
            completed: self.completion_time.as_ref().map(|t| t.0),
            gang_attempt: number(self.attempt),
            replicas: self
                .replica_attempts
                .iter()
                .filter_map(|(key, entry)| {
                    let (role, index) = key.rsplit_once('-')?;
                    Some((
                        (role.to_owned(), index.parse().ok()?),
                        recall_attempt(entry),
                    ))
                })
                .collect(),
            gang_restart: self.gang_restart.as_ref().map(recall_attempt),
            finished: self
                .finished_indices
                .iter()
                .map(|(role, text)| (role.clone(), IndexSet::parse(text)))
                .collect(),
            counted_failures: number(self.counted_failures),
            recreated: restarts.saturating_sub(container_restarts),
            container_restarts,
            ready: self.ready.clone(),
            made_from: self.made_from.as_deref().and_then(TemplateHashes::parse),
            gang: self
                .gang_scheduler
                .as_deref()
                .map(Run::parse)
                .filter(|r| !r.is_plain()),
            made_once: self.made_once.clone(),
            worker_selector: self.worker_selector.clone(),
            last_failure: self.last_failure.clone(),
        }
    }

    fn report(&self, state: &DurableState) -> Self {
        let restarts = state.recreated.saturating_add(state.container_restarts);
        Self {
            conditions: state.conditions.clone(),
            replica_statuses: state.counts.clone(),
            start_time: state.started.map(Time),
            completion_time: state.completed.map(Time),
            // The existing operator's heartbeat, which Trainyard doesn't use. The next write removes it; a job that ended under the
            // existing operator gets no write only for that.
            last_reconcile_time: self
                .last_reconcile_time
                .clone()
                .filter(|_| state.is_finished()),
            // The plan sets it.
            observed_generation: self.observed_generation,
            waiting: state.waits_for(),
            ready: state.ready.clone(),
            // A column shows it, so 0 is written too, but not as the only change of a job that ended under the existing operator.
            restarts: (restarts > 0 || self.restarts.is_some() || !state.is_finished())
                .then(|| i32::try_from(restarts).unwrap_or(i32::MAX)),
            attempt: unless_zero(state.gang_attempt),
            replica_attempts: state
                .replicas
                .iter()
                .map(|((role, index), entry)| (format!("{role}-{index}"), report_attempt(*entry)))
                .collect(),
            gang_restart: state.gang_restart.map(report_attempt),
            counted_failures: unless_zero(state.counted_failures),
            container_restarts: unless_zero(state.container_restarts),
            made_from: state.made_from.as_ref().map(ToString::to_string),
            finished_indices: report_finished(&state.finished),
            gang_scheduler: state.gang.as_ref().map(ToString::to_string),
            made_once: state.made_once.clone(),
            worker_selector: state.worker_selector.clone(),
            last_failure: state.last_failure.clone(),
        }
    }
}
