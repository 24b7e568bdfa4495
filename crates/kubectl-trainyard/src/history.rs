//! Shows what has happened to a job, in order: from its status and its events.

use anyhow::Result;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use spark_operator::api::{ScheduledSparkApplicationStatus, SparkApplicationStatus};
use training_api::JobCondition;
use training_core::ReplicaRestarts;

use crate::cluster::Cluster;
use crate::job::Job;
use crate::kinds::{Replicas, Shape};
use crate::out::{self, Line, Output, Style};
use crate::state;
use crate::time;
use crate::why::{last_seen, plain};

/// Something that has happened to a job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Entry {
    /// When. For a repeated event, the last time.
    pub time: Timestamp,
    /// What, in one or two words: the reason of an event or of a condition.
    pub what: String,
    /// The details.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// How often, if it is a repeated event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<i32>,
    /// Whether it is a Warning.
    pub warning: bool,
}

impl Entry {
    fn new(time: Timestamp, what: &str, message: impl Into<String>) -> Self {
        Self {
            time,
            what: what.to_owned(),
            message: message.into(),
            count: None,
            warning: false,
        }
    }

    /// Returns the line of output.
    pub fn line(&self, now: Timestamp) -> Line {
        let mut text = format!("{}  {}", time::clock(self.time, now), plain(&self.what));
        if !self.message.is_empty() {
            text = format!("{text}  {}", plain(&self.message));
        }
        if let Some(count) = self.count {
            text = format!("{text} ({count} times)");
        }
        let style = if self.warning {
            Style::Warn
        } else {
            Style::Plain
        };
        Line::new(style, text)
    }
}

/// Prints the entries of a job, the first one first.
pub async fn print(cluster: &Cluster, job: &Job, output: Output) -> Result<()> {
    let related = cluster.related(job).await?;
    let entries = entries(job, &related.events);
    if let Some(format) = output.data() {
        return out::print_data(&entries, format);
    }
    let now = Timestamp::now();
    let mut lines: Vec<Line> = entries.iter().map(|entry| entry.line(now)).collect();
    lines.extend(out::not_shown(&related.unreadable));
    out::print(&lines)
}

/// Returns what the status and the events tell, in order.
pub fn entries(job: &Job, events: &[Event]) -> Vec<Entry> {
    let mut all: Vec<Entry> = events.iter().filter_map(of_event).collect();
    let stored = match job.kind.shape {
        Shape::Replicas(replicas) => training(job, &replicas),
        Shape::Application => application(&job.status()),
        Shape::Schedule => schedule(&job.status()),
    };
    // Most of the status has an event of its own, as long as the cluster keeps it.
    let is_told = |entry: &Entry| {
        all.iter()
            .any(|e| e.what == entry.what && !e.what.is_empty())
    };
    let stored: Vec<Entry> = stored.into_iter().filter(|e| !is_told(e)).collect();
    all.extend(stored);
    all.extend(job.created().map(|at| Entry::new(at, "created", "")));
    all.sort();
    all
}

fn of_event(event: &Event) -> Option<Entry> {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    Some(Entry {
        time: last_seen(event)?,
        what: text(&event.reason),
        message: text(&event.message),
        count: event.count.filter(|count| *count > 1),
        warning: event.type_.as_deref() == Some("Warning"),
    })
}

fn training(job: &Job, replicas: &Replicas) -> Vec<Entry> {
    let state = state::durable_state(job, replicas);
    let mut all: Vec<Entry> = state.conditions.iter().filter_map(of_condition).collect();
    let attempt = |who: String, restarts: &ReplicaRestarts| {
        // The first attempt has the number 0.
        let text = format!("attempt {} of {who}", restarts.attempt.saturating_add(1));
        Some(Entry::new(restarts.decided?, "attempt", text))
    };
    let gang = state.gang_restart.as_ref();
    all.extend(gang.and_then(|m| attempt("all pods".to_owned(), m)));
    let replicas = state.replicas.iter();
    all.extend(replicas.filter_map(|((role, index), m)| attempt(format!("{role}-{index}"), m)));
    if let Some(failure) = &state.last_failure {
        let message = failure.message.clone().unwrap_or_default();
        let text = format!("{}: {message}", state::brief(failure));
        let time = failure.time.as_ref();
        all.extend(time.map(|at| Entry {
            warning: true,
            ..Entry::new(at.0, "PodFailed", text)
        }));
    }
    all
}

fn of_condition(condition: &JobCondition) -> Option<Entry> {
    let at = condition.last_transition_time.as_ref()?.0;
    let reason = condition.reason.as_deref().unwrap_or_default();
    let message = condition.message.clone().unwrap_or_default();
    Some(Entry::new(at, reason, message))
}

fn application(status: &SparkApplicationStatus) -> Vec<Entry> {
    let number = |count: Option<i32>| count.map_or(String::new(), |n| format!("number {n}"));
    let entry = |time: &Option<Time>, what: &str, message: String| {
        Some(Entry::new(time.as_ref()?.0, what, message))
    };
    let state = &status.application_state;
    let error = state.error_message.clone().unwrap_or_default();
    [
        entry(
            &status.last_submission_attempt_time,
            "submission",
            number(status.submission_attempts),
        ),
        entry(
            &status.last_failure_time,
            "failure",
            number(status.failed_runs.or(status.failed_submissions)),
        ),
        entry(&status.termination_time, state.state.as_str(), error),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn schedule(status: &ScheduledSparkApplicationStatus) -> Vec<Entry> {
    let name = status.last_run_name.clone().unwrap_or_default();
    let last = status.last_run.as_ref();
    let last = last.map(|at| Entry::new(at.0, "run", name));
    last.into_iter().collect()
}
