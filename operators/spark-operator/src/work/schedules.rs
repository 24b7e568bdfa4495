//! One look at one schedule: which of its runs are there, which are to go, and whether one is due.

use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::jiff::Timestamp;
use k8s_openapi::jiff::tz::TimeZone;
use kube::api::{DeleteParams, PropagationPolicy};
use kube::core::Request as Build;
use kube::{Resource, ResourceExt as _};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::task::JoinError;
use tokio::time::Instant;
use training_core::patch::merge_patch;
use training_core::slim::slim_meta;
use training_core::{Note, Stored, Uid};
use training_runtime::caller::{Caller, Failure, encode};
use training_runtime::controller::{Controller, Reconciler, panicked};
use training_runtime::events::EventSink;
use training_runtime::fault::Fault;
use training_runtime::feed::index::Index;
use training_runtime::feed::jobs::Jobs;
use training_runtime::feed::slim::Owned;
use training_runtime::feed::{self, Source};
use training_runtime::key::{JobKey, Scope};
use training_runtime::look::{Ended, Frame, Rhythm, now};
use training_runtime::metrics::Metrics;
use training_runtime::retry::{Backoff, Jitter};
use training_runtime::told::Told;

use super::apps::{Times, tell_unreadable};
use super::known::{Of, Versioned, versioned};
use crate::api::{
    ScheduledSparkApplication, ScheduledSparkApplicationStatus, SparkApplication, State,
};
use crate::label;
use crate::schedule::{Around, Plan, Precision, Run, plan, run};

impl Stored for ScheduledSparkApplication {
    type Status = ScheduledSparkApplicationStatus;

    fn set_status(&mut self, status: ScheduledSparkApplicationStatus) {
        self.status = Some(status);
    }

    fn has_ended(&self) -> bool {
        false
    }

    fn shrink(&mut self) {}
}

/// An application that a schedule has made, as it is watched.
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

/// A run as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    uid: Uid,
    leaving: bool,
    run: Run,
}

impl Of for Kept {
    fn uid(&self) -> Uid {
        self.uid
    }
    fn name(&self) -> &str {
        &self.run.name
    }
    fn leave(&mut self) {
        self.leaving = true;
    }
}

fn kept(app: &SlimApp) -> Option<Owned<Versioned<Kept>>> {
    let meta = &app.metadata;
    let is_it = |o: &&OwnerReference| {
        (o.api_version.as_str(), o.kind.as_str())
            == (label::API_VERSION, "ScheduledSparkApplication")
    };
    let owner = meta.owner_references.iter().flatten().find(is_it)?;
    let created = meta.creation_timestamp.as_ref();
    let view = Kept {
        uid: meta.uid.as_deref().and_then(Uid::parse)?,
        leaving: meta.deletion_timestamp.is_some(),
        run: Run {
            name: meta.name.clone()?,
            created: created.map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            state: app.status.application_state.state.clone(),
        },
    };
    versioned(meta, (&owner.name, &owner.uid), view)
}

/// The applications of schedules.
pub type Runs = Index<Versioned<Kept>>;

/// Watches the applications of schedules. Never returns.
pub async fn watch_runs(
    (source, scope): (Source, Scope),
    runs: Arc<Runs>,
    listener: Arc<Controller>,
    synced: watch::Sender<bool>,
) {
    let place = (source, scope, label::SCHEDULED_APP_NAME.to_owned());
    feed::watch("runs", place, runs, kept, listener, synced).await;
}

/// Everything that looks at schedules need.
pub struct Schedules {
    /// The schedules.
    pub jobs: Arc<Jobs<ScheduledSparkApplication>>,
    /// Their applications.
    pub runs: Arc<Runs>,
    /// What sends requests.
    pub caller: Arc<Caller>,
    /// The operator's zone.
    pub local: TimeZone,
    /// What the names of runs are counted in.
    pub precision: Precision,
    /// Earliest next attempts of those whose look failed.
    pub backoff: Backoff<JobKey>,
    /// Where events go.
    pub events: EventSink,
    /// Where counts go.
    pub metrics: Arc<Metrics>,
    /// The times to keep to.
    pub times: Times,
    /// So that not all are looked at together.
    pub jitter: Mutex<Jitter>,
}

impl Schedules {
    async fn pass(self: Arc<Self>, key: JobKey) -> Option<Instant> {
        let frame = Frame {
            deadline: self.times.deadline,
            backoff: &self.backoff,
            metrics: &self.metrics,
        };
        let forget = || self.forget(&key);
        let open = match frame.open(&self.jobs, &self.caller, &key, forget).await {
            Ok(open) => open,
            Err(next) => return next,
        };
        let looking = self.look(&key, &open.job);
        frame.run(&key, &open.job.metadata, looking).await
    }

    async fn look(&self, key: &JobKey, schedule: &Arc<ScheduledSparkApplication>) -> Ended {
        let held = self.backoff.not_before(key);
        if let Some(at) = held.filter(|at| *at > Instant::now()) {
            return Ended::Held(at);
        }
        let rhythm = Rhythm {
            period: self.times.safety_period,
            jitter: &self.jitter,
        };
        let uid = schedule.metadata.uid.as_deref().and_then(Uid::parse);
        let Some(uid) = uid else {
            return Ended::Failed(Fault::Bug("the schedule has no uid".to_owned()));
        };
        if schedule.metadata.deletion_timestamp.is_some() {
            return Ended::Quiet(rhythm.safety());
        }
        let there: Vec<Kept> = self.runs.of(uid).into_iter().map(|r| r.view).collect();
        let runs: Vec<Run> = there.iter().map(|kept| kept.run.clone()).collect();
        let around = Around {
            now: now(),
            local: &self.local,
            precision: self.precision,
        };
        let plan = plan(schedule, &runs, around);
        let wake = rhythm.wake(plan.wake);
        match self.carry_out(schedule, uid, &there, plan).await {
            Ok(()) => {
                self.backoff.forget(key);
                Ended::Quiet(wake)
            }
            Err(fault) => Ended::Failed(fault),
        }
    }

    async fn carry_out(
        &self,
        schedule: &Arc<ScheduledSparkApplication>,
        uid: Uid,
        there: &[Kept],
        plan: Plan,
    ) -> Result<(), Fault> {
        let namespace = schedule.namespace().unwrap_or_default();
        let url = SparkApplication::url_path(&(), Some(&namespace));
        self.delete(uid, &url, there, &plan.delete).await?;
        if let Some(name) = &plan.create {
            self.make(schedule, uid, &url, name).await?;
        }
        let old = schedule.status.clone().unwrap_or_default();
        let value = |status| serde_json::to_value(status).unwrap_or_default();
        if let Some(patch) = merge_patch(&value(&old), &value(&plan.status)) {
            let version = self.caller.write_status(&**schedule, &patch).await?;
            self.jobs.written(schedule, plan.status, version);
        }
        // The last: nothing waits for it.
        self.delete(uid, &url, there, &plan.prune).await
    }

    /// Deletes runs by their names, with what is theirs.
    async fn delete(
        &self,
        uid: Uid,
        url: &str,
        there: &[Kept],
        names: &[String],
    ) -> Result<(), Fault> {
        let going = there
            .iter()
            .filter(|k| !k.leaving && names.contains(&k.run.name));
        for Kept { uid: of, run, .. } in going {
            let params = DeleteParams {
                propagation_policy: Some(PropagationPolicy::Background),
                ..DeleteParams::default()
            };
            let what = self.caller.delete(url, &run.name, *of, params).await?;
            self.runs.answered(uid, *of, what, Instant::now());
        }
        Ok(())
    }

    async fn make(
        &self,
        schedule: &ScheduledSparkApplication,
        uid: Uid,
        url: &str,
        name: &str,
    ) -> Result<(), Fault> {
        let body = encode(&run(schedule, name)).map_err(Failure::into_fault)?;
        let request = Build::new(url).create(&self.caller.post(), body);
        let fault = match self.caller.ask::<SlimApp>(request).await {
            Ok(made) => {
                // The next time may come before the watch shows it.
                if let Some(owned) = kept(&made) {
                    self.runs.created(owned, Instant::now());
                }
                return Ok(());
            }
            Err(Failure::Exists(message)) => {
                let there = self.caller.find::<SlimApp>(url, name).await?;
                // The same run, made before the status could say so.
                if there
                    .as_ref()
                    .and_then(kept)
                    .is_some_and(|k| k.owner == uid)
                {
                    return Ok(());
                }
                Fault::Conflict(format!("{message}, and it is not of this schedule"))
            }
            Err(Failure::Fault(fault)) => fault,
        };
        if matches!(
            fault,
            Fault::Denied { .. } | Fault::Rejected { .. } | Fault::Conflict(_)
        ) {
            let text = format!("Error creating SparkApplication {name}: {fault}");
            let mut told = Told::new(&self.events);
            told.note(
                schedule,
                vec![Note::warning("FailedCreateSparkApplication", text)],
            );
        }
        Err(fault)
    }
}

impl Reconciler for Schedules {
    fn pass(self: Arc<Self>, key: JobKey) -> BoxFuture<'static, Option<Instant>> {
        Box::pin(Self::pass(self, key))
    }

    fn panicked(&self, key: &JobKey, error: &JoinError) -> Instant {
        panicked(
            key,
            error,
            &self.jobs,
            &self.backoff,
            &self.metrics,
            &self.events,
        )
    }

    fn knows(&self, key: &JobKey) -> bool {
        self.jobs.contains(key)
    }

    fn forget(&self, key: &JobKey) {
        self.backoff.forget(key);
    }

    fn freed(&self, _: &JobKey) {}

    fn unreadable(&self, metadata: &ObjectMeta, error: &str) {
        tell_unreadable::<ScheduledSparkApplication>(&self.events, metadata, error);
    }

    fn held(&self) -> Vec<(&'static str, usize)> {
        vec![
            ("schedules", self.jobs.len()),
            ("schedules_not_cached", self.jobs.away()),
            ("schedules_waiting", self.jobs.waiting()),
            ("runs", self.runs.len()),
        ]
    }
}
