//! A cluster as a data structure: it executes plans, suffers disturbances, and checks the laws that every history must keep.
//!
//! ```text
//!   the store     the API server's state: one job, its pods and services, with uids and resource versions
//!   the view      the operator's caches: they lag behind the store, except for the operator's own writes
//!   the moves     actions of kubelets, users and accidents
//!   the laws      checked at every write; collects breaches as text
//! ```
//!
//! It is generic over the framework, so that every kind must keep the same laws.

mod autoscaler;
mod execute;
pub mod feed;
mod group;
mod law;
mod moves;
mod object;
mod state;
mod view;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::Resource;
use serde_json::Value;
use training_core::{
    AutoscalerView, BatchPod, Blocked, DurableState, Framework, GroupKind, GroupView, JobState,
    Lifecycle, Note, Object, ObjectView, Observed, Plan, PodPhase, PodView, Provider, Rules,
    SecretView, ServiceView, Stall, Step, Stored, Transition, Uid,
};

pub use moves::Move;

use execute::{Calls, Interruption};
use object::Place;
use view::{Listed, View};

/// The status of a framework's job.
type StatusOf<F> = <<F as Framework>::Job as Stored>::Status;

/// How a reconcile ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReconcileEnd {
    /// It makes all its calls.
    #[default]
    Whole,
    /// The operator crashes after this number of calls.
    CrashAfter(u32),
    /// The response to the call after this number is lost, which ends the reconcile.
    LostAfter(u32),
}

/// The outcome of one call of a reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// It is executed, and the operator gets the response.
    Answered,
    /// It is executed, but the response is lost.
    Lost,
    /// The operator crashes before it.
    Unsent,
}

impl ReconcileEnd {
    /// Returns the outcome of the call after this number of others.
    pub fn call(self, at: u32) -> Call {
        match self {
            Self::CrashAfter(n) if at >= n => Call::Unsent,
            Self::LostAfter(n) if at >= n => Call::Lost,
            Self::Whole | Self::CrashAfter(_) | Self::LostAfter(_) => Call::Answered,
        }
    }
}

/// The uid of the job. Its objects use their versions as uids, which are larger.
const JOB: Uid = Uid(7);

/// One operator and one job.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a trouble of its own"
)]
pub struct World<F: Lifecycle> {
    framework: F,
    /// The current time, in whole seconds.
    pub now: Timestamp,
    job: Option<F::Job>,
    pods: BTreeMap<String, PodView>,
    services: BTreeMap<String, ServiceView>,
    autoscaler: Option<AutoscalerView>,
    groups: BTreeMap<GroupKind, GroupView>,
    objects: BTreeMap<Place, (ObjectView, Object)>,
    batch_pods: BTreeMap<String, BatchPod>,
    /// The last reconcile failed with a transient error.
    pub failing: bool,
    /// Names of Secrets, and whether they are the job's.
    secrets: BTreeMap<String, bool>,
    /// Names of other owners' objects, as `Kind name`.
    foreign: BTreeSet<String>,
    /// The operator's knowledge of the job's Secret.
    secret: SecretView,
    /// Kinds of groups that the operator has looked up by name.
    sought: Vec<GroupKind>,
    /// The gang schedulers, and the APIs that the cluster serves.
    pub gang: training_core::provider::Setting,
    /// Other gang schedulers that a restarted operator may be configured with.
    pub providers: Vec<Provider>,
    /// Another owner has an autoscaler with the job's name.
    pub taken: bool,
    view: View<F::Job>,
    version: u64,
    /// Terminating pods stay until a move removes them, even if they have ended.
    pub sticky: bool,
    /// The API server refuses all creations.
    pub refusing: bool,
    stall: Option<Stall>,
    /// The operator's settings.
    pub rules: Rules,
    /// Deletes that a crashed operator sent and that have not arrived, with what it had observed.
    in_flight: Vec<(Step, Observed)>,
    /// JSON pointer to the number that scaling changes.
    pub scale: &'static str,
    /// JSON pointers and the values that users may set there.
    pub edits: Vec<(&'static str, Value)>,
    ledger: law::Ledger,
    /// The breaches of laws so far.
    pub breaches: Vec<String>,
    /// The events recorded so far.
    pub notes: Vec<Note>,
    /// The transitions counted so far.
    pub transitions: Vec<Transition>,
    /// Successful writes, as text.
    pub writes: Vec<String>,
}

impl<F: Lifecycle> World<F> {
    /// A world in which the operator has seen the job and nothing has happened.
    pub fn new(framework: F, mut job: F::Job) -> Self {
        job.meta_mut().uid = Some(JOB.to_string());
        job.meta_mut().resource_version = Some("1".to_owned());
        job.meta_mut().generation = Some(1);
        Self {
            framework,
            now: Timestamp::UNIX_EPOCH + SignedDuration::from_secs(1_000_000),
            view: View::new(Some(job.clone())),
            job: Some(job),
            pods: BTreeMap::new(),
            services: BTreeMap::new(),
            autoscaler: None,
            groups: BTreeMap::new(),
            objects: BTreeMap::new(),
            batch_pods: BTreeMap::new(),
            failing: false,
            secrets: BTreeMap::new(),
            foreign: BTreeSet::new(),
            secret: SecretView::default(),
            sought: Vec::new(),
            gang: training_core::provider::Setting::default(),
            providers: Vec::new(),
            taken: false,
            version: 7,
            sticky: false,
            refusing: false,
            stall: None,
            rules: Rules::default(),
            in_flight: Vec::new(),
            scale: "",
            edits: Vec::new(),
            ledger: law::Ledger::default(),
            breaches: Vec::new(),
            notes: Vec::new(),
            transitions: Vec::new(),
            writes: Vec::new(),
        }
    }

    /// The job as stored; `None` once it is deleted.
    pub fn job(&self) -> Option<&F::Job> {
        self.job.as_ref()
    }

    /// The stored status.
    pub fn status(&self) -> StatusOf<F> {
        self.job
            .as_ref()
            .and_then(|j| j.status().cloned())
            .unwrap_or_default()
    }

    /// The durable state in the stored status.
    pub fn durable_state(&self) -> DurableState {
        self.status().durable_state()
    }

    /// The stored pods by name.
    pub fn pods(&self) -> impl Iterator<Item = (&str, &PodView)> {
        self.pods.iter().map(|(name, view)| (name.as_str(), view))
    }

    /// The names of the stored services.
    pub fn services(&self) -> BTreeSet<&str> {
        self.services.keys().map(String::as_str).collect()
    }

    /// The stored autoscaler of the job.
    pub fn autoscaler(&self) -> Option<&AutoscalerView> {
        self.autoscaler.as_ref()
    }

    /// The stored groups of the job's gang.
    pub fn groups(&self) -> impl Iterator<Item = &GroupView> {
        self.groups.values()
    }

    /// A stored pod.
    pub fn pod(&self, name: &str) -> Option<&PodView> {
        self.pods.get(name)
    }

    /// The operator's plan from its present caches.
    pub fn plan(&self) -> Plan<StatusOf<F>> {
        let Some(job) = &self.view.job else {
            return Plan::default();
        };
        training_core::plan(&self.framework, job, &self.observed(), self.now)
    }

    fn observed(&self) -> Observed {
        Observed {
            pods: self.view.pods.known().values().cloned().collect(),
            services: self.view.services.known().values().cloned().collect(),
            autoscaler: self.view.autoscaler.known().get(&()).cloned(),
            autoscaler_unknown: false,
            groups: self.view.groups.known().values().cloned().collect(),
            sought: self.sought.clone(),
            gang: self.gang.clone(),
            objects: self.view.objects.known().values().cloned().collect(),
            batch_pods: self.view.batch_pods.known().values().cloned().collect(),
            forged_pods: Vec::new(),
            secret: self.secret.clone(),
            gone: self.view.gone.clone(),
            failing: self.failing,
            stall: self.stall.clone(),
            rules: self.rules,
        }
    }

    /// Delivers all events to the operator.
    pub fn view_all(&mut self) {
        self.view.deliver_all();
    }

    /// Delivers all events, then reconciles once.
    pub fn reconcile(&mut self) {
        self.view.deliver_all();
        self.reconcile_from_cache(ReconcileEnd::Whole, true);
    }

    /// Reconciles with all events delivered, until the operator has nothing to write or `most` is reached.
    pub fn reconciles(&mut self, most: usize) {
        for _ in 0..most {
            self.view.deliver_all();
            let plan = self.plan();
            if plan.is_idle() {
                break;
            }
            self.execute_plan(plan, ReconcileEnd::Whole, true);
        }
    }

    /// Reconciles once from the operator's caches. A status that may be written beside the steps is written before or after them.
    pub fn reconcile_from_cache(&mut self, end: ReconcileEnd, status_before: bool) {
        let plan = self.plan();
        self.law_of_waking(&plan);
        self.execute_plan(plan, end, status_before);
    }

    fn execute_plan(&mut self, plan: Plan<StatusOf<F>>, end: ReconcileEnd, status_before: bool) {
        let observed = self.observed();
        let mut calls = Calls { end, made: 0 };
        let interrupted = self
            .execute(plan, &observed, &mut calls, status_before)
            .err();
        if !matches!(
            interrupted,
            Some(Interruption::Refused | Interruption::Taken(_))
        ) {
            self.stall = None;
        }
        match interrupted {
            Some(Interruption::Crash) => self.crash(),
            Some(Interruption::Refused) => {
                self.stall = Some(Stall {
                    reason: "QuotaExceeded",
                    message: "exceeded quota".to_owned(),
                    permanent: false,
                    blocks: Blocked::All,
                });
            }
            Some(Interruption::Taken(blocks)) => {
                self.stall = Some(Stall {
                    reason: "NameConflict",
                    message: "already exists".to_owned(),
                    permanent: false,
                    blocks,
                });
            }
            // The outcome of a lost call is unknown: the next reconcile uses what the watches have delivered by then.
            Some(Interruption::Lost | Interruption::Conflict) | None => {}
        }
    }

    /// Restarts the operator with full lists and no other state.
    pub fn crash(&mut self) {
        self.stall = None;
        self.failing = false;
        self.sought.clear();
        self.secret = SecretView::default();
        self.view = View::new(None);
        self.view.list(self.listed());
    }

    /// What a list returns now.
    fn listed(&self) -> Listed<F::Job> {
        let objects = self.objects.iter();
        Listed {
            job: self.job.clone(),
            pods: self.pods.clone(),
            services: self.services.clone(),
            autoscaler: self.autoscaler.clone(),
            groups: self.shown_groups(),
            objects: objects
                .map(|(at, (v, _))| (at.clone(), v.clone()))
                .collect(),
            batch_pods: self.batch_pods.clone(),
        }
    }

    /// Restarts the operator's watches with lists.
    pub fn list(&mut self) {
        let listed = self.listed();
        self.view.list(listed);
    }

    fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    /// Stores a changed job and sends an event to the operator's watch.
    fn store_job(&mut self, mut job: F::Job) {
        job.meta_mut().resource_version = Some(self.next_version().to_string());
        self.job = Some(job.clone());
        self.view.news_of_job(Some(job));
    }

    /// Sets a pod's deletion timestamp; an ended pod is removed immediately.
    fn ask_to_go(&mut self, name: &str) {
        let ended = self.pod(name).is_some_and(|p| {
            matches!(
                p.phase,
                PodPhase::Succeeded | PodPhase::Failed | PodPhase::Pending
            )
        });
        if ended && !self.sticky {
            self.vanish(name);
        } else {
            self.change(name, |p| p.terminating = true);
        }
    }

    /// Removes a pod's object.
    fn vanish(&mut self, name: &str) {
        if let Some(pod) = self.pods.remove(name) {
            self.view.pods.send(name.to_owned(), Err(pod.uid));
        }
    }

    /// Sets a service's deletion timestamp if the world is sticky; otherwise removes it immediately.
    fn ask_service_to_go(&mut self, name: &str) {
        if !self.sticky {
            return self.drop_service(name);
        }
        let version = self.next_version();
        if let Some(service) = self.services.get_mut(name) {
            (service.terminating, service.version) = (true, version);
            self.view
                .services
                .send(name.to_owned(), Ok(service.clone()));
        }
    }

    fn drop_service(&mut self, name: &str) {
        if let Some(service) = self.services.remove(name) {
            self.view.services.send(name.to_owned(), Err(service.uid));
        }
    }

    /// Changes a pod as its kubelet would.
    pub fn change(&mut self, name: &str, change: impl FnOnce(&mut PodView)) {
        let version = self.next_version();
        if let Some(pod) = self.pods.get_mut(name) {
            change(pod);
            pod.version = version;
            self.view.pods.send(name.to_owned(), Ok(pod.clone()));
        }
    }

    /// Changes the stored job as a user would. Refuses a change that can't be decoded.
    pub fn edit(&mut self, change: impl FnOnce(&mut Value)) {
        let Some(job) = &self.job else { return };
        let Ok(mut value) = serde_json::to_value(job) else {
            return;
        };
        let before = value["spec"].clone();
        change(&mut value);
        if value["spec"] != before {
            let generation = value["metadata"]["generation"].as_i64().unwrap_or(0);
            value["metadata"]["generation"] = (generation + 1).into();
        }
        if let Ok(job) = serde_json::from_value(value) {
            self.store_job(job);
        }
    }

    /// Advances the clock.
    pub fn tick(&mut self, seconds: i64) {
        let wait = SignedDuration::from_secs(seconds);
        self.now = self.now.saturating_add(wait).unwrap_or(Timestamp::MAX);
    }
}
