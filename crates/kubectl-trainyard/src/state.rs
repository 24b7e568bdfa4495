//! The state of a job, from the job object alone.

use k8s_openapi::jiff::Timestamp;
use spark_operator::api::{
    ScheduledSparkApplicationStatus, SparkApplicationStatus, State as AppState,
};
use training_api::{JobStatus, LastFailure, labels};
use training_core::plan::draft::{clean, shorten, shorten_front};
use training_core::{Cause, DurableState, JobState as _, Phase, reasons};

use crate::job::Job;
use crate::kinds::{Replicas, Shape};

/// The state of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// The phase of its life cycle.
    pub phase: Phase,
    /// The state that is shown, in capitals.
    pub text: String,
    /// The time of the transition to this state.
    pub since: Option<Timestamp>,
    /// Ready pods or running executors, of the total: `2/3`.
    pub ready: Option<String>,
    /// The explanation, if the job has one.
    pub why: Option<Why>,
}

/// The explanation of a job's state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Why {
    /// The cause in a few words.
    pub cause: String,
    /// The message from the cluster; empty if it only repeats the cause.
    pub message: String,
    /// What to do about it.
    pub remedy: Option<String>,
}

impl Why {
    /// Creates an explanation from a reason of the catalogue and its message.
    pub fn from_reason(reason: &str, message: &str) -> Self {
        let (message, remedy) = split_remedy(reason, message);
        Self {
            cause: reason.to_owned(),
            message,
            remedy,
        }
    }
}

/// Returns the remedy for a reason of the catalogue.
pub fn hint(reason: &str) -> Option<&'static str> {
    let mut all = reasons::catalogue();
    let entry = all.find(|entry| entry.reason == reason)?;
    Some(entry.hint.trim_end_matches('.'))
}

/// Splits the remedy from the end of a message.
fn split_remedy(reason: &str, message: &str) -> (String, Option<String>) {
    /// The start of the only remedy that is not in the catalogue. Source: `training_core::plan`.
    const CLAIM: &str = ". Create the PersistentVolumeClaim ";
    let message = message.trim().trim_end_matches('.');
    if let Some((message, rest)) = message.split_once(CLAIM) {
        let remedy = format!("{}{rest}", CLAIM.trim_start_matches(". "));
        return (message.to_owned(), Some(remedy));
    }
    let hint = hint(reason);
    let rest = hint.and_then(|hint| message.strip_suffix(hint));
    let rest = rest.unwrap_or(message).trim_end_matches(['.', ' ']);
    (rest.to_owned(), hint.map(str::to_owned))
}

/// Returns the state of a job.
pub fn of(job: &Job) -> State {
    match job.kind.shape {
        Shape::Replicas(replicas) => training(job, &replicas),
        Shape::Application => application(job),
        Shape::Schedule => schedule(job),
    }
}

/// Returns what the operator of a kind with replica specs stored in the status.
pub fn durable_state(job: &Job, replicas: &Replicas) -> DurableState {
    let mut state = job.status::<JobStatus>().durable_state();
    (replicas.reread)(&mut state);
    state
}

fn training(job: &Job, replicas: &Replicas) -> State {
    let durable = durable_state(job, replicas);
    let failure = durable.last_failure.as_ref();
    let state = |phase, text: &str, why| State {
        phase,
        text: text.to_owned(),
        since: None,
        ready: durable.ready.clone(),
        why,
    };
    let Some((phase, condition)) = Phase::of_conditions(&durable.conditions) else {
        return State {
            since: job.created(),
            ..state(Phase::NoStatus, "NO STATUS", Some(no_status(job)))
        };
    };
    let reason = condition.reason.as_deref().unwrap_or_default();
    let message = condition.message.as_deref().unwrap_or_default();
    let since = condition.last_transition_time.as_ref().map(|t| t.0);
    let why = match phase {
        Phase::Failed => Some(failed(job.kind.name(), reason, message, failure)),
        Phase::Suspended => Some(suspended(job)),
        Phase::Waiting(_) => Some(Why::from_reason(reason, message)),
        Phase::Restarting => {
            let updated = condition.last_update_time.as_ref();
            let failed_since = failure.is_some_and(|f| f.time.as_ref() > updated);
            let requested = message.contains(labels::RESTART_REQUEST) && !failed_since;
            let cause = requested.then(|| "a restart was requested".to_owned());
            cause
                .or_else(|| failure.map(brief_with_output))
                .map(|cause| Why {
                    cause,
                    ..Why::default()
                })
        }
        Phase::NoStatus | Phase::Starting | Phase::Running | Phase::Succeeded => None,
    };
    State {
        since,
        ..state(phase, &phase.as_str().to_ascii_uppercase(), why)
    }
}

fn no_status(job: &Job) -> Why {
    if let Some(manager) = job.other_manager() {
        return Why {
            cause: format!("managed by {manager}"),
            message:
                "spec.runPolicy.managedBy names another controller, so the operator ignores the job"
                    .to_owned(),
            remedy: None,
        };
    }
    not_reconciled(job)
}

fn not_reconciled(job: &Job) -> Why {
    Why {
        cause: "no operator has reconciled it".to_owned(),
        message: String::new(),
        remedy: Some(format!(
            "Check that the {} operator runs and watches namespace {}: kubectl get deployments -A | grep operator",
            job.kind.name(),
            job.namespace()
        )),
    }
}

fn suspended(job: &Job) -> Why {
    let name = job.name();
    match job.label(QUEUE_LABEL) {
        Some(queue) => Why {
            cause: format!("not admitted by Kueue queue {queue}"),
            remedy: Some(format!(
                "Wait until the queue has quota: kubectl describe localqueue {queue}"
            )),
            ..Why::default()
        },
        None => Why {
            cause: "suspend: true in its spec".to_owned(),
            remedy: Some(format!("kubectl trainyard resume {name}")),
            ..Why::default()
        },
    }
}

/// The label that names a job's Kueue queue. Source: Kueue.
pub const QUEUE_LABEL: &str = "kueue.x-k8s.io/queue-name";

/// Explains why a job with replica specs failed.
fn failed(kind: &str, reason: &str, message: &str, failure: Option<&LastFailure>) -> Why {
    // The published condition has the same reason for all failures; only the message differs.
    let published = reason == format!("{kind}Failed");
    let specific = if message.contains("reached the specified backoff limit") {
        "BackoffLimitExceeded"
    } else if message.contains("active longer than specified deadline") {
        "DeadlineExceeded"
    } else if published {
        ""
    } else {
        reason
    };
    // A pod failure is not the cause of these.
    let no_pod = ["DeadlineExceeded", "InvalidSpec", "LauncherGone"].contains(&specific);
    let cause = match (specific, failure.filter(|_| !no_pod)) {
        ("", None) => shorten(message, 100),
        ("", Some(failure)) => brief_with_output(failure),
        (specific, None) => specific.to_owned(),
        (specific, Some(failure)) => format!("{specific}: {}", brief_with_output(failure)),
    };
    let reason = specific.split('/').next().unwrap_or_default();
    let remedy = hint(reason).or_else(|| hint("PodFailed").filter(|_| failure.is_some()));
    Why {
        cause,
        message: message.to_owned(),
        remedy: remedy.map(str::to_owned),
    }
}

/// Formats a failure in a few words: `exit 137 (OOMKilled) in ddp-worker-0`.
pub fn brief(failure: &LastFailure) -> String {
    let pod = &failure.pod;
    let reason = failure.reason.as_deref().filter(|r| *r != "Error");
    match (failure.exit_code, reason) {
        (Some(code), Some(reason)) => format!("exit {code} ({reason}) in {pod}"),
        (Some(code), None) => format!("exit {code} in {pod}"),
        (None, Some(reason)) => format!("{reason} in {pod}"),
        (None, None) => format!("{pod} failed"),
    }
}

/// Adds what the container printed at its end: `exit 1 in ddp-worker-0: ValueError: no data`.
fn brief_with_output(failure: &LastFailure) -> String {
    let message = failure.message.as_deref().unwrap_or_default();
    match message.split_once(LAST_WORDS) {
        Some((_, output)) => format!("{}: {}", brief(failure), key_part(output)),
        None => brief(failure),
    }
}

/// What separates an explanation from the container's output in messages. Source: `training_core::health`.
pub const LAST_WORDS: &str = "; last words: ";

/// Returns the part of a program's output that fits into a line: from its last error or exception on, otherwise the end.
fn key_part(output: &str) -> String {
    /// Units: bytes.
    const LIMIT: usize = 100;
    let output = clean(output.trim(), usize::MAX);
    let ends = ["Error", "Exception"].into_iter().flat_map(|name| {
        let found = output.match_indices(name);
        found.map(|(at, name)| output.split_at(at + name.len()))
    });
    // A name in a stack frame goes on: `dataPathNotExistError(QueryCompilationErrors.scala:1499)`.
    let whole_words = ends.filter(|(_, rest)| rest.is_empty() || rest.starts_with([':', ' ']));
    let last = whole_words.max_by_key(|(before, _)| before.len());
    let start = last.map(|(before, _)| before.rfind(' ').map_or(0, |space| space + 1));
    match start.and_then(|start| output.get(start..)) {
        Some(error) => shorten(error, LIMIT),
        None => shorten_front(&output, LIMIT),
    }
}

fn application(job: &Job) -> State {
    let status: SparkApplicationStatus = job.status();
    let error = status.application_state.error_message.as_deref();
    let error = error.map(str::trim).filter(|text| !text.is_empty());
    let mut why = error.map(spark_error);
    if let Some(why) = why.as_mut().filter(|why| why.remedy.is_none()) {
        why.remedy = status.waiting.as_deref().and_then(hint).map(str::to_owned);
    }
    let app_state = &status.application_state.state;
    let phase = status.phase();
    let time =
        |time: Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>| time.map(|t| t.0);
    let submitted = time(status.last_submission_attempt_time.as_ref());
    let since = match app_state {
        AppState::Completed | AppState::Failed => time(status.termination_time.as_ref()),
        AppState::Failing | AppState::SubmissionFailed => time(status.last_failure_time.as_ref()),
        AppState::New => job.created(),
        AppState::Suspending | AppState::Suspended => None,
        _ => submitted,
    };
    State {
        phase,
        text: match (app_state, phase) {
            (AppState::New, Phase::NoStatus) => "NO STATUS".to_owned(),
            (AppState::New, _) => "NEW".to_owned(),
            (app_state, _) => app_state.as_str().to_owned(),
        },
        since,
        ready: status.executors.clone(),
        why: match phase {
            Phase::NoStatus => Some(not_reconciled(job)),
            Phase::Suspended => Some(suspended(job)),
            Phase::Succeeded => None,
            _ => why,
        },
    }
}

/// Explains a SparkApplication's `errorMessage`.
fn spark_error(text: &str) -> Why {
    /// The prefixes of published messages.
    const PREFIXES: [&str; 2] = [
        "failed to submit spark application: ",
        "failed to run spark-submit: ",
    ];
    let mut rest = text;
    for prefix in PREFIXES {
        rest = rest.strip_prefix(prefix).unwrap_or(rest);
    }
    let first = rest.lines().next().unwrap_or_default();
    // The message of a waiting driver: `driver pod NAME: REASON: message`.
    let waiting = first.strip_prefix("driver pod ");
    let waiting = waiting.and_then(|rest| {
        let (_, rest) = rest.split_once(": ")?;
        rest.split_once(": ")
    });
    if let Some((reason, _)) = waiting {
        let cause = Cause::ALL.into_iter().find(|c| c.reason() == reason);
        let hint = cause.or_else(|| Cause::of_waiting(reason)).map(Cause::hint);
        return Why {
            cause: reason.to_owned(),
            message: text.to_owned(),
            remedy: hint.map(str::to_owned),
        };
    }
    let output = rest.lines().skip(1).collect::<Vec<_>>().join("\n");
    let first = shorten(first, 160);
    let cause = match output.trim() {
        "" => first,
        output => format!("{first}: {}", key_part(output)),
    };
    Why {
        cause,
        message: output,
        remedy: None,
    }
}

fn schedule(job: &Job) -> State {
    let status: ScheduledSparkApplicationStatus = job.status();
    let text = status.schedule_state.as_str().to_ascii_uppercase();
    let phase = if job.is_suspended() {
        Phase::Suspended
    } else {
        status.phase()
    };
    let (text, why) = match phase {
        Phase::Suspended => ("SUSPENDED".to_owned(), Some(suspended(job))),
        Phase::NoStatus => ("NO STATUS".to_owned(), Some(not_reconciled(job))),
        Phase::Waiting(_) => {
            let cause = shorten(status.reason.as_deref().unwrap_or_default(), 160);
            let why = Why {
                cause,
                message: String::new(),
                remedy: Some("Fix the spec; the operator reconciles it at once".to_owned()),
            };
            (text, Some(why))
        }
        _ => (text, None),
    };
    State {
        phase,
        text,
        since: None,
        ready: None,
        why,
    }
}
