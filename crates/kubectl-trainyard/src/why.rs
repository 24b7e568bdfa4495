//! Explains a job's state from the job, its pods, events, gang scheduler objects and Kueue Workload. Does no I/O.

use std::cmp::Reverse;

use k8s_openapi::api::core::v1::Event;
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use training_api::JobStatus;
use training_core::health::{Finding, explain_failure, find};
use training_core::plan::draft::clean;
use training_core::{Cause, GroupView, Phase, PodPhase, Trouble, quantity};

use crate::job::{Job, Member};
use crate::kinds::Shape;
use crate::next;
use crate::out::{Line, Style};
use crate::state::{self, LAST_WORDS, QUEUE_LABEL, State, Why};
use crate::time;

/// The maximum number of pod names in a line.
const MAX_NAMES: usize = 3;
/// A job without a status needs attention after this time. Units: seconds.
const NO_STATUS_GRACE: i64 = 30;

/// The input of [`report`].
#[derive(Debug)]
pub struct Facts<'a> {
    /// The job.
    pub job: &'a Job,
    /// Its pods.
    pub pods: &'a [Member],
    /// Its events.
    pub events: &'a [Event],
    /// The objects of its gang scheduler, such as a `PodGroup`.
    pub groups: &'a [GroupView],
    /// Its Kueue Workload.
    pub workload: Option<&'a Value>,
    /// The resources that could not be read, and why.
    pub unreadable: &'a [String],
    /// The current time.
    pub now: Timestamp,
}

/// The explanation of a job's state, as `kubectl trainyard why` prints it.
#[derive(Clone, Debug, Default, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The job.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its kind.
    pub kind: String,
    /// Its state, in capitals.
    pub state: String,
    /// The time of the transition to this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Ready pods or running executors, of the total: `2/3`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<String>,
    /// The cause in a few words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cause: String,
    /// The message from the cluster.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The devices that ready pods hold, and the state of the gang.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<String>,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// The first and the last known failure.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failure>,
    /// The last warning event that adds information.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// What happens next, and when.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub next: Vec<String>,
    /// The resources that could not be read, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<String>,
    #[serde(skip)]
    style: Style,
    #[serde(skip)]
    age: String,
}

/// A failure of a pod or of its main container.
#[derive(Clone, Debug, Default, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// `first` or `last`.
    pub which: &'static str,
    /// When the pod or container ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// The pod.
    pub pod: String,
    /// How it ended, with the termination message.
    pub message: String,
    #[serde(skip)]
    clock: String,
}

/// Explains a job's state.
pub fn report(facts: &Facts<'_>) -> Report {
    let Facts { job, now, .. } = *facts;
    let mut state = state::of(job);
    if let Some(why) = explain_queue(facts, &state).or_else(|| explain_pods(facts, &state)) {
        state.why = Some(why);
    }
    let mut report = summary(job, &state, now);
    report.details = details(facts, &state);
    report.failures = failures(facts);
    report.warning = warning(facts, &report);
    report.next = next::of(job, state.phase, now);
    report.unreadable = facts.unreadable.to_vec();
    report
}

/// Returns the part of the report that needs only the job.
pub fn summary(job: &Job, state: &State, now: Timestamp) -> Report {
    let why = state.why.clone().unwrap_or_default();
    Report {
        name: job.name().to_owned(),
        namespace: job.namespace().to_owned(),
        kind: job.kind.name().to_owned(),
        state: state.text.clone(),
        since: state.since.map(|t| t.to_string()),
        ready: state.ready.clone(),
        cause: clean(&why.cause, usize::MAX),
        message: why.message,
        remedy: why.remedy,
        style: match state.phase {
            Phase::Failed => Style::Bad,
            Phase::Waiting(_) | Phase::NoStatus => Style::Warn,
            Phase::Succeeded => Style::Good,
            Phase::Starting | Phase::Running | Phase::Restarting | Phase::Suspended => Style::Plain,
        },
        age: state.since.map(|t| time::since(t, now)).unwrap_or_default(),
        ..Report::default()
    }
}

fn needs_attention(job: &Job, state: &State, now: Timestamp) -> bool {
    match state.phase {
        Phase::Waiting(_) | Phase::Failed | Phase::Restarting => true,
        Phase::NoStatus => job
            .created()
            .is_some_and(|created| now.duration_since(created).as_secs() >= NO_STATUS_GRACE),
        Phase::Starting | Phase::Running | Phase::Suspended | Phase::Succeeded => false,
    }
}

/// Returns the jobs that need attention, and their states: failed jobs last, otherwise the latest first.
pub fn attention(jobs: &[Job], now: Timestamp) -> Vec<(&Job, State)> {
    let states = jobs.iter().map(|job| (job, state::of(job)));
    let mut found: Vec<_> = states
        .filter(|(job, state)| needs_attention(job, state, now))
        .collect();
    found.sort_by_key(|(_, state)| (state.phase == Phase::Failed, Reverse(state.since)));
    found
}

impl Report {
    /// Returns the first line, which names the cause.
    pub fn headline(&self) -> Line {
        let mut text = format!("{}  {}  {}", self.name, self.kind, self.state);
        if !self.age.is_empty() {
            text = format!("{text} {}", self.age);
        }
        if let Some(ready) = &self.ready {
            let unit = if self.kind == "SparkApplication" {
                "executors"
            } else {
                "ready"
            };
            text = format!("{text}  {unit} {ready}");
        }
        if !self.cause.is_empty() {
            text = format!("{text}  {}", self.cause);
        }
        Line::new(self.style, text)
    }

    /// Returns all lines.
    pub fn lines(&self) -> Vec<Line> {
        let mut lines = vec![self.headline()];
        let mut message = self.message.lines().filter(|line| !line.trim().is_empty());
        if let Some(first) = message.next() {
            lines.push(Line::new(Style::Bad, format!("  x {}", plain(first))));
        }
        lines.extend(message.map(|line| Line::plain(format!("    {}", plain(line)))));
        for text in &self.details {
            lines.push(Line::plain(format!("    {}", plain(text))));
        }
        if let Some(remedy) = &self.remedy {
            lines.push(Line::new(Style::Strong, format!("  > {}", plain(remedy))));
        }
        for failure in &self.failures {
            let Failure {
                which, clock, pod, ..
            } = failure;
            let (exit, output) = match failure.message.split_once(LAST_WORDS) {
                Some((exit, output)) => (exit, Some(output)),
                None => (failure.message.as_str(), None),
            };
            lines.push(Line::plain(format!(
                "  {which} failure {clock}  {pod}  {}",
                plain(exit)
            )));
            if let Some(output) = output {
                lines.push(Line::plain(format!(
                    "    termination message: {}",
                    plain(output)
                )));
            }
        }
        if let Some(warning) = &self.warning {
            lines.push(Line::plain(format!("  warning {}", plain(warning))));
        }
        for text in &self.next {
            lines.push(Line::plain(format!("  next: {text}")));
        }
        for text in &self.unreadable {
            lines.push(Line::new(
                Style::Faint,
                format!("  not shown: {}", plain(text)),
            ));
        }
        lines
    }
}

/// Removes control characters from text of the cluster, because they could control the terminal.
pub fn plain(text: &str) -> String {
    clean(text, usize::MAX)
}

/// Explains why Kueue has not admitted a suspended job.
fn explain_queue(facts: &Facts<'_>, state: &State) -> Option<Why> {
    let queue = facts.job.label(QUEUE_LABEL)?;
    let workload = facts.workload.filter(|_| state.phase == Phase::Suspended)?;
    let own = state.why.clone().unwrap_or_default();
    if workload["spec"]["active"] == false {
        return Some(Why {
            cause: format!("Kueue: the Workload in queue {queue} is deactivated"),
            message: String::new(),
            remedy: Some("Set spec.active of the Workload to true".to_owned()),
        });
    }
    let conditions = workload["status"]["conditions"].as_array()?;
    let false_condition = |type_: &str| {
        let mut all = conditions.iter();
        all.find(|c| c["type"] == type_ && c["status"] == "False")
    };
    let condition = false_condition("QuotaReserved").or_else(|| false_condition("Admitted"))?;
    let text = |key: &str| condition[key].as_str().unwrap_or_default();
    Some(Why {
        cause: format!("Kueue: {} in queue {queue}", text("reason")),
        message: text("message").to_owned(),
        ..own
    })
}

/// Explains what the pods wait for, if the job's status does not: the operator may be down, and Spark manages its executors itself.
fn explain_pods(facts: &Facts<'_>, state: &State) -> Option<Why> {
    let is_explained = state.why.is_some() && state.phase != Phase::NoStatus;
    if is_explained || state.phase.is_finished() || state.phase == Phase::Suspended {
        return None;
    }
    let found = facts
        .pods
        .iter()
        .filter_map(|member| match find(&member.view, facts.now) {
            Finding::Is(cause) => Some((cause, member)),
            Finding::Nothing | Finding::Until(_) | Finding::Recovering(_) => None,
        });
    let mut found: Vec<(Cause, &Member)> = found.collect();
    let first = found.iter().map(|(cause, _)| *cause).min()?;
    found.retain(|(cause, _)| *cause == first);
    let (_, member) = found.first()?;
    let none = Trouble::default();
    let trouble = member.view.trouble.as_deref().unwrap_or(&none);
    let names: Vec<&str> = found.iter().map(|(_, m)| m.name.as_str()).collect();
    let mut message = format!("{}: {}", join_names(&names), first.describe(trouble));
    let detail = trouble.message.trim();
    if !detail.is_empty() {
        message = format!("{message}: {detail}");
    }
    Some(Why {
        cause: first.reason().to_owned(),
        message,
        remedy: Some(first.hint().to_owned()),
    })
}

/// Joins the first names and counts the others.
fn join_names(names: &[&str]) -> String {
    let shown = names.iter().take(MAX_NAMES).copied().collect::<Vec<_>>();
    match names.len().saturating_sub(MAX_NAMES) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Describes the devices that a waiting job holds, and the state of its gang.
fn details(facts: &Facts<'_>, state: &State) -> Vec<String> {
    let mut details = Vec::new();
    let waits = matches!(state.phase, Phase::Waiting(_));
    if waits {
        details.extend(held_devices(facts.pods));
    }
    if (waits || state.phase.is_active()) && state.text != "RUNNING" {
        for group in facts.groups {
            let status = [group.phase.as_deref(), group.message.as_deref()];
            let status: Vec<&str> = status.into_iter().flatten().collect();
            if !status.is_empty() {
                let kind = group.kind.kind();
                details.push(format!(
                    "{kind} {}: {}",
                    facts.job.name(),
                    status.join(": ")
                ));
            }
        }
    }
    details
}

fn held_devices(pods: &[Member]) -> Option<String> {
    let mut sum = quantity::Amounts::new();
    let mut count = 0;
    for member in pods.iter().filter(|m| m.view.ready) {
        let spec = member.pod.spec.as_ref()?;
        let mut amounts = quantity::of_pod(spec);
        // Resources with a domain prefix are devices.
        amounts.retain(|name, _| name.contains('/'));
        count += i32::from(!amounts.is_empty());
        quantity::add(&mut sum, &amounts, 1);
    }
    if count == 0 {
        return None;
    }
    let sum: Vec<String> = sum
        .into_iter()
        .map(|(name, amount)| format!("{} {name}", amount.to_quantity().0))
        .collect();
    let pods = if count == 1 {
        "1 ready pod already holds".to_owned()
    } else {
        format!("{count} ready pods already hold")
    };
    Some(format!("{pods} {}", sum.join(", ")))
}

fn failures(facts: &Facts<'_>) -> Vec<Failure> {
    type Seen = (Option<Timestamp>, String, String);
    let of_pods = facts
        .pods
        .iter()
        .filter(|m| m.view.phase == PodPhase::Failed);
    let of_pods = of_pods.map(|m| -> Seen {
        let ended = m.view.trouble.as_deref().and_then(|t| t.since);
        (ended, m.name.clone(), explain_failure(&m.view))
    });
    let of_events = facts.events.iter().filter(|event| {
        let reason = event.reason.as_deref().unwrap_or_default();
        ["PodFailed", "ContainerRestarted"].contains(&reason)
    });
    // The messages have the form `Pod NAME: how it ended; next attempt at TIME`.
    let of_events = of_events.filter_map(|event| -> Option<Seen> {
        let message = event.message.as_deref()?.strip_prefix("Pod ")?;
        let (pod, message) = message.split_once(": ")?;
        let message = message.split("; next attempt at ").next()?;
        Some((first_seen(event), pod.to_owned(), message.to_owned()))
    });
    let mut all: Vec<Seen> = of_pods.chain(of_events).collect();
    all.sort();
    let status: JobStatus = match facts.job.kind.shape {
        Shape::Replicas(_) => facts.job.status(),
        Shape::Application | Shape::Schedule => JobStatus::default(),
    };
    let stored = status.last_failure.map(|f| -> Seen {
        let time = f.time.map(|t| t.0);
        (time, f.pod, f.message.unwrap_or_default())
    });
    let last = stored.or_else(|| all.last().cloned());
    let first = all.into_iter().find(|(time, ..)| time.is_some());
    // Skip the first failure if it is the last one, described by an event within 60 s.
    let first = first.filter(|(time, pod, _)| {
        let is_other =
            |(other, name, _): &Seen| name != pod || other > &time.and_then(|t| time::after(t, 60));
        last.as_ref().is_some_and(is_other)
    });
    let failure = |which, (time, pod, message): Seen| Failure {
        which,
        time: time.map(|t| t.to_string()),
        clock: time.map(|t| time::clock(t, facts.now)).unwrap_or_default(),
        pod,
        message,
    };
    let first = first.map(|seen| failure("first", seen));
    first
        .into_iter()
        .chain(last.map(|seen| failure("last", seen)))
        .collect()
}

fn first_seen(event: &Event) -> Option<Timestamp> {
    let time = event.first_timestamp.as_ref().map(|t| t.0);
    time.or(event.event_time.as_ref().map(|t| t.0)).or(event
        .metadata
        .creation_timestamp
        .as_ref()
        .map(|t| t.0))
}

/// Returns when an event was last seen.
pub fn last_seen(event: &Event) -> Option<Timestamp> {
    let last = event.last_timestamp.as_ref().map(|t| t.0);
    last.or(first_seen(event))
}

/// Returns the last warning event that adds information to the report.
fn warning(facts: &Facts<'_>, report: &Report) -> Option<String> {
    let kind = facts.job.kind.name();
    let published = ["Failed", "Restarting"].map(|end| format!("{kind}{end}"));
    let adds_information = |event: &&Event| {
        let reason = event.reason.as_deref().unwrap_or_default();
        event.type_.as_deref() == Some("Warning")
            && !reason.is_empty()
            && !report.cause.contains(reason)
            && !published.iter().any(|p| p == reason)
            && !["PodFailed", "ContainerRestarted"].contains(&reason)
    };
    let event = facts
        .events
        .iter()
        .filter(adds_information)
        .max_by_key(|e| last_seen(e))?;
    let message = event.message.as_deref().unwrap_or_default();
    // The events of SparkApplications repeat their status.
    let reported = [&report.cause, &report.message];
    if reported
        .iter()
        .any(|t| !t.is_empty() && message.contains(t.as_str()))
    {
        return None;
    }
    let at = last_seen(event).map(|t| time::clock(t, facts.now));
    let reason = event.reason.as_deref().unwrap_or_default();
    Some(format!("{}  {reason}: {message}", at.unwrap_or_default()))
}
