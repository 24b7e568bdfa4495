//! What happens to a job next, and when, from its spec and status.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use spark_operator::SparkApplication;
use spark_operator::api::{ScheduledSparkApplicationStatus, State as AppState};
use spark_operator::defaults;
use spark_operator::lifecycle::retry::{self, Retry};
use training_api::RunPolicy;
use training_core::{Phase, ReplicaRestarts, restart};

use crate::job::Job;
use crate::kinds::{Replicas, Shape};
use crate::state;
use crate::time;

/// The maximum number of replicas to list.
const MAX_REPLICAS: usize = 3;

/// Describes what happens next, and when.
pub fn of(job: &Job, phase: Phase, now: Timestamp) -> Vec<String> {
    match job.kind.shape {
        Shape::Replicas(replicas) => training(job, &replicas, phase, now),
        Shape::Application => application(job, now),
        Shape::Schedule => schedule(job, now),
    }
}

fn training(job: &Job, replicas: &Replicas, phase: Phase, now: Timestamp) -> Vec<String> {
    let state = state::durable_state(job, replicas);
    let policy: RunPolicy = serde_json::from_value(job.policy().clone()).unwrap_or_default();
    let mut next = Vec::new();
    if phase.is_finished() {
        // By default the TTL deletes the objects of an MPIJob of v2beta1, but not the MPIJob.
        let ttl = policy
            .ttl_seconds_after_finished
            .filter(|_| job.kind.name() != "MPIJob");
        let ends = ttl.zip(state.completed);
        let at = ends.and_then(|(ttl, ended)| time::after(ended, ttl.into()));
        next.extend(at.map(|at| {
            format!(
                "the job is deleted {} (ttlSecondsAfterFinished)",
                time::upcoming(at, now)
            )
        }));
        return next;
    }
    if phase == Phase::Suspended {
        return next;
    }
    let due = |m: &ReplicaRestarts| restart::not_before(Some(m)).filter(|at| *at > now);
    if let Some(at) = state.gang_restart.as_ref().and_then(due) {
        next.push(format!("all pods restart {}", time::upcoming(at, now)));
    }
    for ((role, index), replica) in state.replicas.iter().take(MAX_REPLICAS) {
        if let Some(at) = due(replica) {
            next.push(format!(
                "{role}-{index} restarts {}",
                time::upcoming(at, now)
            ));
        }
    }
    if let Some(limit) = policy.backoff_limit {
        let used = state
            .counted_failures
            .saturating_add(state.container_restarts);
        if used > 0 {
            next.push(format!("{used} of {limit} restarts used (backoffLimit)"));
        }
    }
    let deadline = policy.active_deadline_seconds.zip(state.started);
    let at = deadline.and_then(|(seconds, start)| time::after(start, seconds));
    next.extend(at.map(|at| {
        format!(
            "the job fails {}, unless it finishes first (activeDeadlineSeconds)",
            time::upcoming(at, now)
        )
    }));
    next
}

fn application(job: &Job, now: Timestamp) -> Vec<String> {
    let app: SparkApplication = job.read();
    let status = app.status.clone().unwrap_or_default();
    let spec = defaults::apply(&app.spec, &BTreeMap::new());
    let policy = spec.restart_policy.clone().unwrap_or_default();
    let retry = match &status.application_state.state {
        AppState::Failing => retry::after_failed_run(&policy, &status),
        AppState::New | AppState::PendingRerun
            if status.failed_submissions.is_some_and(|n| n > 0) =>
        {
            retry::after_failed_submission(&policy, &status)
        }
        AppState::Completed | AppState::Failed => {
            let ends = spec
                .time_to_live_seconds
                .zip(status.termination_time.as_ref());
            let at = ends.and_then(|(ttl, ended)| time::after(ended.0, ttl));
            let text = at.map(|at| {
                format!(
                    "the application is deleted {} (timeToLiveSeconds)",
                    time::upcoming(at, now)
                )
            });
            return text.into_iter().collect();
        }
        _ => return Vec::new(),
    };
    match retry {
        Retry::At(at) => vec![format!(
            "the next attempt starts {}",
            time::upcoming(at, now)
        )],
        Retry::Never => Vec::new(),
    }
}

fn schedule(job: &Job, now: Timestamp) -> Vec<String> {
    let status: ScheduledSparkApplicationStatus = job.status();
    let at = status.next_run.filter(|_| !job.is_suspended());
    let at = at.map(|at| format!("the next run starts {}", time::upcoming(at.0, now)));
    at.into_iter().collect()
}
