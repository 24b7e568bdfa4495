//! Decides a schedule's next steps: which application to create, which to delete, and when to reconcile again.
//!
//! [`plan`] is pure and total. The name of a run derives from its scheduled time, so creating a run twice yields one run.

use std::cmp::Reverse;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use k8s_openapi::jiff::Timestamp;
use k8s_openapi::jiff::tz::TimeZone;

use crate::api::{
    ScheduleState, ScheduledSparkApplication, ScheduledSparkApplicationStatus, SparkApplication,
    State,
};
use crate::cron::{self, Schedule};
use crate::{label, names};

/// The default history limit of each outcome. Source: the published behaviour.
const KEPT: i32 = 1;

/// The unit of times in the names of runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Precision {
    /// Nanoseconds, 19 digits.
    #[default]
    Nanos,
    /// Microseconds, 16 digits.
    Micros,
    /// Milliseconds, 13 digits.
    Millis,
    /// Seconds, 10 digits.
    Seconds,
    /// Minutes, 8 digits.
    Minutes,
}

impl Precision {
    /// From the finest to the coarsest.
    pub const ALL: [Self; 5] = [
        Self::Nanos,
        Self::Micros,
        Self::Millis,
        Self::Seconds,
        Self::Minutes,
    ];

    /// Parses the flag's value; empty means the default.
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "" | "nanos" => Some(Self::Nanos),
            "micros" => Some(Self::Micros),
            "millis" => Some(Self::Millis),
            "seconds" => Some(Self::Seconds),
            "minutes" => Some(Self::Minutes),
            _ => None,
        }
    }

    /// Formats a time in this unit, since 1970.
    pub fn stamp(self, at: Timestamp) -> String {
        match self {
            Self::Nanos => at.as_nanosecond().to_string(),
            Self::Micros => at.as_microsecond().to_string(),
            Self::Millis => at.as_millisecond().to_string(),
            Self::Seconds => at.as_second().to_string(),
            Self::Minutes => at.as_second().div_euclid(60).to_string(),
        }
    }

    /// The shortest interval between two runs with different names. Units: seconds.
    fn resolves(self) -> i64 {
        if self == Self::Minutes { 60 } else { 1 }
    }
}

/// Returns the name of the run for a time, with the requested precision, or the finest that fits.
///
/// # Errors
/// If no name that fits distinguishes two runs.
pub fn run_name(
    schedule: &str,
    at: Timestamp,
    asked: Precision,
    least_pause: i64,
) -> Result<String, String> {
    let all = Precision::ALL.into_iter().filter(|p| *p >= asked);
    for precision in all {
        let name = format!("{schedule}-{}", precision.stamp(at));
        if name.len() <= names::MAX_LABEL {
            if precision.resolves() > least_pause {
                break;
            }
            return Ok(name);
        }
    }
    Err(format!(
        "metadata.name \"{schedule}\" is too long: the names of its runs, <name>-<time>, have at most {} characters, and shorter times \
         can't tell runs apart; use at most {} characters",
        names::MAX_LABEL,
        names::MAX_LABEL - if least_pause < 60 { 11 } else { 9 }
    ))
}

/// What to do while runs are active.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concurrency {
    /// Start another run.
    Allow,
    /// Start none.
    Forbid,
    /// Delete the active runs, and start one.
    Replace,
}

impl Concurrency {
    /// Parses the policy; empty means [`Concurrency::Allow`], as documented.
    ///
    /// # Errors
    /// If the value is unknown.
    pub fn parse(word: Option<&str>) -> Result<Self, String> {
        match word {
            None | Some("" | "Allow") => Ok(Self::Allow),
            Some("Forbid") => Ok(Self::Forbid),
            Some("Replace") => Ok(Self::Replace),
            Some(other) => Err(format!(
                "spec.concurrencyPolicy \"{other}\": supported values: \"Allow\", \"Forbid\", \"Replace\""
            )),
        }
    }
}

/// An application that the schedule created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Its name.
    pub name: String,
    /// Its creation time.
    pub created: Timestamp,
    /// Its state.
    pub state: State,
}

/// The other inputs of a decision.
#[derive(Clone, Copy, Debug)]
pub struct ScheduleInput<'a> {
    /// The time, in whole seconds.
    pub now: Timestamp,
    /// The operator's time zone.
    pub local: &'a TimeZone,
    /// The unit of times in names of runs.
    pub precision: Precision,
}

/// The plan, in execution order: deletions, the new run, the status. The status records the run, so it comes last: after an
/// interruption, the operator creates the run of the same name again.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Runs that the new run replaces.
    pub delete: Vec<String>,
    /// Runs beyond the history limits.
    pub prune: Vec<String>,
    /// The name of the run to create. It may exist already, if the schedule owns it.
    pub create: Option<String>,
    /// The status to store.
    pub status: ScheduledSparkApplicationStatus,
    /// When to reconcile again at the latest.
    pub requeue_at: Option<Timestamp>,
}

/// Decides the next steps of a schedule.
pub fn plan(schedule: &ScheduledSparkApplication, runs: &[Run], input: ScheduleInput<'_>) -> Plan {
    let status = schedule.status.clone().unwrap_or_default();
    // A schedule that is being deleted creates no more runs.
    let deleted = schedule.metadata.deletion_timestamp.is_some();
    if deleted || schedule.spec.suspend == Some(true) {
        return Plan {
            status,
            ..Plan::default()
        };
    }
    match read(schedule, input) {
        Ok(ready) => go_on(schedule, &ready, status, runs, input),
        Err(reason) => Plan {
            status: ScheduledSparkApplicationStatus {
                schedule_state: ScheduleState::FailedValidation,
                reason: Some(reason),
                next_run: None,
                computed_from: None,
                ..status
            },
            ..Plan::default()
        },
    }
}

struct Ready {
    times: Schedule,
    concurrency: Concurrency,
    /// What the next time is computed from.
    from: String,
}

fn read(schedule: &ScheduledSparkApplication, input: ScheduleInput<'_>) -> Result<Ready, String> {
    let spec = &schedule.spec;
    let name = spec.time_zone.as_deref().filter(|z| !z.is_empty());
    let name = name.unwrap_or(cron::LOCAL);
    let zone = cron::zone(name, input.local).map_err(|why| format!("Invalid timezone: {why}"))?;
    let times = Schedule::parse(&spec.schedule, &zone, input.local)?;
    let concurrency = Concurrency::parse(spec.concurrency_policy.as_deref())?;
    let own = schedule.metadata.name.as_deref().unwrap_or_default();
    run_name(own, input.now, input.precision, times.least_pause())?;
    Ok(Ready {
        times,
        concurrency,
        from: format!("{name} {}", spec.schedule.trim()),
    })
}

fn go_on(
    schedule: &ScheduledSparkApplication,
    ready: &Ready,
    mut status: ScheduledSparkApplicationStatus,
    runs: &[Run],
    input: ScheduleInput<'_>,
) -> Plan {
    let now = input.now;
    status.schedule_state = ScheduleState::Scheduled;
    status.reason = None;
    // A time that another operator computed stays valid until it comes.
    let edited = status
        .computed_from
        .as_ref()
        .is_some_and(|from| *from != ready.from);
    if edited || status.next_run.is_none() {
        status.next_run = ready.times.next(now).map(Time);
    }
    status.computed_from = Some(ready.from.clone());

    let (mut delete, mut prune, mut create) = (Vec::new(), Vec::new(), None);
    let due = status
        .next_run
        .as_ref()
        .map(|time| time.0)
        .filter(|at| *at <= now);
    if let Some(at) = due {
        let own = schedule.metadata.name.as_deref().unwrap_or_default();
        // The name fits, as checked before: the time has as many digits as the present time.
        let due = run_name(own, at, input.precision, ready.times.least_pause()).ok();
        // A run created before the status recorded it is this run, not an active one.
        let made = runs.iter().any(|run| Some(&run.name) == due.as_ref());
        let others = runs.iter().filter(|run| Some(&run.name) != due.as_ref());
        let active = others.filter(|run| !run.state.is_terminal());
        let active: Vec<String> = active.map(|run| run.name.clone()).collect();
        // This run stands for all missed ones.
        status.next_run = ready.times.next(now).map(Time);
        if made || active.is_empty() || ready.concurrency != Concurrency::Forbid {
            if ready.concurrency == Concurrency::Replace {
                delete = active;
            }
            create = due;
        }
    }
    if let Some(name) = &create {
        status.last_run = Some(Time(now));
        status.last_run_name = Some(name.clone());
    }
    let spec = &schedule.spec;
    let (kept, gone) = history(runs, &State::Completed, spec.successful_run_history_limit);
    status.past_successful_run_names = kept;
    prune.extend(gone);
    let (kept, gone) = history(runs, &State::Failed, spec.failed_run_history_limit);
    status.past_failed_run_names = kept;
    prune.extend(gone);
    // A run may have ended before the status recorded it. If it were pruned, it would be created a second time.
    prune.retain(|name| create.as_ref() != Some(name));
    Plan {
        requeue_at: status.next_run.as_ref().map(|time| time.0),
        status,
        delete,
        prune,
        create,
    }
}

/// Returns the runs of an outcome to keep, newest first, and the others.
fn history(runs: &[Run], outcome: &State, limit: Option<i32>) -> (Vec<String>, Vec<String>) {
    let mut all: Vec<&Run> = runs.iter().filter(|run| run.state == *outcome).collect();
    all.sort_by_key(|run| (Reverse(run.created), Reverse(run.name.clone())));
    let limit = usize::try_from(limit.unwrap_or(KEPT)).unwrap_or(0);
    let mut kept: Vec<String> = all.into_iter().map(|run| run.name.clone()).collect();
    let gone = kept.split_off(limit.min(kept.len()));
    (kept, gone)
}

/// Builds the application of one run.
pub fn run(schedule: &ScheduledSparkApplication, name: &str) -> SparkApplication {
    let meta = &schedule.metadata;
    let own = meta.name.clone().unwrap_or_default();
    let mut labels = meta.labels.clone().unwrap_or_default();
    labels.insert(label::SCHEDULED_APP_NAME.to_owned(), own.clone());
    SparkApplication {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: meta.namespace.clone(),
            labels: Some(labels),
            owner_references: Some(vec![OwnerReference {
                api_version: label::API_VERSION.to_owned(),
                kind: "ScheduledSparkApplication".to_owned(),
                name: own,
                uid: meta.uid.clone().unwrap_or_default(),
                controller: None,
                block_owner_deletion: Some(true),
            }]),
            ..ObjectMeta::default()
        },
        spec: schedule.spec.template.clone(),
        status: None,
    }
}
