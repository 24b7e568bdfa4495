//! The planner of schedules: observes their runs, plans and executes.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::jiff::Timestamp;
use k8s_openapi::jiff::tz::TimeZone;
use kube::api::{DeleteParams, PropagationPolicy};
use kube::{Resource, ResourceExt as _};
use serde::Deserialize;
use tokio::sync::watch;
use training_core::patch::merge_patch;
use training_core::slim::slim_meta;
use training_core::{Action, Note, Phase, Plan, Progress, StatusWrite, Stored, Uid, Urgency};
use training_runtime::caller::{Caller, Response};
use training_runtime::controller::Controller;
use training_runtime::fault::Fault;
use training_runtime::feed::index::Index;
use training_runtime::feed::slim::Owned;
use training_runtime::feed::{self, Source};
use training_runtime::key::{JobKey, Scope};
use training_runtime::requests::{ChildRequests, CreateError};
use training_runtime::worker::{LastReconcile, Outcome, PlanOf, Planner, Subject};

use super::cache::{CachedChild, Versioned, versioned};
use crate::api::{
    ScheduledSparkApplication, ScheduledSparkApplicationStatus, SparkApplication, State,
};
use crate::label;
use crate::schedule::{Precision, Run, ScheduleInput, plan, run};

impl Stored for ScheduledSparkApplication {
    type Status = ScheduledSparkApplicationStatus;

    fn status(&self) -> Option<&ScheduledSparkApplicationStatus> {
        self.status.as_ref()
    }

    fn progress(status: &ScheduledSparkApplicationStatus) -> Progress {
        Progress {
            phase: status.phase(),
            ..Progress::default()
        }
    }

    fn phase(&self) -> Phase {
        if self.spec.suspend == Some(true) {
            return Phase::Suspended;
        }
        let phase = self
            .status
            .as_ref()
            .map(ScheduledSparkApplicationStatus::phase);
        phase.unwrap_or_default()
    }

    fn set_status(&mut self, status: ScheduledSparkApplicationStatus) {
        self.status = Some(status);
    }

    fn has_ended(&self) -> bool {
        false
    }

    fn shrink(&mut self) {}
}

/// An application of a schedule, as watched.
#[derive(Resource, Clone, Debug, Default, Deserialize)]
#[resource(inherit = "SparkApplication")]
#[serde(default)]
pub struct SlimApp {
    #[serde(deserialize_with = "slim_meta")]
    metadata: ObjectMeta,
    status: SlimStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SlimStatus {
    application_state: SlimState,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct SlimState {
    state: State,
}

/// A cached run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedRun {
    uid: Uid,
    terminating: bool,
    run: Run,
}

impl CachedChild for CachedRun {
    fn uid(&self) -> Uid {
        self.uid
    }
    fn name(&self) -> &str {
        &self.run.name
    }
    fn mark_terminating(&mut self) {
        self.terminating = true;
    }
}

fn cached_run(app: &SlimApp) -> Option<Owned<Versioned<CachedRun>>> {
    let meta = &app.metadata;
    let is_it = |o: &&OwnerReference| {
        (o.api_version.as_str(), o.kind.as_str())
            == (label::API_VERSION, "ScheduledSparkApplication")
    };
    let owner = meta.owner_references.iter().flatten().find(is_it)?;
    let created = meta.creation_timestamp.as_ref();
    let view = CachedRun {
        uid: Uid::of(meta)?,
        terminating: meta.deletion_timestamp.is_some(),
        run: Run {
            name: meta.name.clone()?,
            created: created.map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            state: app.status.application_state.state.clone(),
        },
    };
    versioned(meta, (&owner.name, &owner.uid), view)
}

/// The applications of schedules.
pub type Runs = Index<Versioned<CachedRun>>;

/// Watches the applications of schedules. Never returns.
pub async fn watch_runs(
    (source, scope): (Source, Scope),
    runs: Arc<Runs>,
    listener: Arc<Controller>,
    synced: watch::Sender<bool>,
) {
    let place = (source, scope, label::SCHEDULED_APP_NAME.to_owned());
    feed::watch("runs", place, runs, cached_run, listener, synced).await;
}

/// The planner of schedules.
pub struct Schedules {
    /// Their applications.
    pub runs: Arc<Runs>,
    /// Sends requests.
    pub caller: Arc<Caller>,
    /// The operator's time zone.
    pub local: TimeZone,
    /// The unit of times in names of runs.
    pub precision: Precision,
}

/// One change to the runs of a schedule.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Delete a run, with its children.
    Delete {
        /// Its name.
        name: String,
        /// The precondition.
        uid: Uid,
    },
    /// Create the run of this name. One that exists already is fine if the schedule owns it.
    Create(String),
}

impl Action for Step {
    fn is_create(&self) -> bool {
        matches!(self, Self::Create(_))
    }
}

impl Schedules {
    async fn step(
        &self,
        subject: Subject<'_, ScheduledSparkApplication>,
        step: &Step,
    ) -> Result<(), Fault> {
        let namespace = subject.object.namespace().unwrap_or_default();
        let requests = ChildRequests {
            caller: &self.caller,
            url: SparkApplication::url_path(&(), Some(&namespace)),
            owner: subject.uid,
            index: &self.runs,
        };
        match step {
            Step::Create(name) => {
                let wanted = run(subject.object, name);
                // A run that exists is left to the watch: it may have lost its label, or be deleted at this moment.
                let existing = |_: &SlimApp| None;
                // The next scheduled time may come before the watch reports it.
                let created =
                    requests.create((name, &wanted), Response::Object, cached_run, existing);
                let ours = |existing: Owned<Versioned<CachedRun>>| existing.owner == subject.uid;
                match created.await {
                    Ok(()) | Err(CreateError::AlreadyExists) => Ok(()),
                    // The same run, created before the status could say so.
                    Err(CreateError::NameConflict { holder, .. })
                        if cached_run(&holder).is_some_and(ours) =>
                    {
                        Ok(())
                    }
                    Err(CreateError::NameConflict { message, .. }) => Err(Fault::Conflict(
                        format!("{message}, and it is not of this schedule"),
                    )),
                    Err(CreateError::RequestFailed(fault) | CreateError::Fault(fault)) => {
                        Err(fault)
                    }
                }
            }
            Step::Delete { name, uid } => {
                let params = DeleteParams {
                    propagation_policy: Some(PropagationPolicy::Background),
                    ..DeleteParams::default()
                };
                requests.delete(name, *uid, params).await.map(drop)
            }
        }
    }
}

/// The event about a run that was refused.
fn refused(step: &Step, fault: &Fault) -> Option<Note> {
    let Step::Create(name) = step else {
        return None;
    };
    let is_reported = matches!(
        fault,
        Fault::Denied { .. } | Fault::Rejected { .. } | Fault::Conflict(_)
    );
    let text = format!("Error creating SparkApplication {name}: {fault}");
    is_reported.then(|| Note::warning("FailedCreateSparkApplication", text))
}

/// The deletions of runs of these names that are not terminating yet.
fn deletions<'a>(runs: &'a [CachedRun], names: &'a [String]) -> impl Iterator<Item = Step> + 'a {
    let mine = |run: &&CachedRun| !run.terminating && names.contains(&run.run.name);
    runs.iter().filter(mine).map(|cached| Step::Delete {
        name: cached.run.name.clone(),
        uid: cached.uid,
    })
}

impl Planner for Schedules {
    type Object = ScheduledSparkApplication;
    type Observed = Vec<CachedRun>;
    type Step = Step;

    const CACHES: [&'static str; 3] = ["schedules", "schedules_not_cached", "schedules_waiting"];

    fn observe(
        &self,
        subject: Subject<'_, ScheduledSparkApplication>,
        _: LastReconcile,
    ) -> Vec<CachedRun> {
        let runs = self.runs.of(subject.uid).into_iter();
        runs.map(|run| run.view).collect()
    }

    fn plan(
        &self,
        schedule: &ScheduledSparkApplication,
        observed: &Vec<CachedRun>,
        now: Timestamp,
    ) -> PlanOf<Self> {
        let runs: Vec<Run> = observed.iter().map(|run| run.run.clone()).collect();
        let input = ScheduleInput {
            now,
            local: &self.local,
            precision: self.precision,
        };
        let decided = plan(schedule, &runs, input);
        let old = schedule.status.clone().unwrap_or_default();
        let value = |status| serde_json::to_value(status).unwrap_or_default();
        let patch = merge_patch(&value(&old), &value(&decided.status));
        let status = patch.map(|patch| StatusWrite {
            next: decided.status,
            patch,
            urgency: Urgency::After,
        });
        let mut steps: Vec<Step> = deletions(observed, &decided.delete).collect();
        steps.extend(decided.create.map(Step::Create));
        let mut old_runs = deletions(observed, &decided.prune).peekable();
        let requeue = old_runs.peek().is_some();
        // Nothing waits for old runs to go, so they go last.
        if steps.is_empty() && status.is_none() {
            steps.extend(old_runs);
        }
        Plan {
            status,
            steps,
            requeue,
            requeue_at: decided.requeue_at,
            ..Plan::default()
        }
    }

    async fn execute(
        &self,
        subject: Subject<'_, ScheduledSparkApplication>,
        steps: &[Step],
        _: bool,
    ) -> Outcome {
        for step in steps {
            if let Err(fault) = self.step(subject, step).await {
                return Outcome {
                    notes: refused(step, &fault).into_iter().collect(),
                    fault: Some(fault),
                    ..Outcome::default()
                };
            }
        }
        Outcome::default()
    }

    /// A run that goes is no sign that its schedule is deleted: users delete runs.
    fn take_unexpected_deletion(&self, _: Uid) -> bool {
        false
    }

    fn forget(&self, _: &JobKey, _: bool) {}

    fn held(&self) -> Vec<(&'static str, usize)> {
        vec![("runs", self.runs.len())]
    }
}
