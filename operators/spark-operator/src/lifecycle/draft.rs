//! The plan under construction.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use training_api::ConditionType;
use training_core::conditions;
use training_core::plan::draft::{clean, shorten};
use training_core::{ForgedPod, Note, PodPhase, Uid};

use super::observed::{Driver, Executor, Object, Observed};
use super::step::{Plan, Step};
use crate::api::{
    DriverInfo, RestartPolicy, SparkApplication, SparkApplicationSpec, SparkApplicationStatus,
    State,
};
use crate::digest::{self, Change, Recorded, SpecDigest};
use crate::submission::Settings;
use crate::submission::conf::driver_pod_name;

/// Operator settings that the life cycle depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// How long a driver may be missing after its submission. Units: seconds.
    pub grace: i64,
    /// How long a driver may wait for its image, volumes or configuration. Units: seconds.
    pub most_waiting: i64,
    /// The maximum number of executors listed in a status.
    pub most_executors: usize,
    /// The default time to live. Units: seconds.
    pub time_to_live: Option<i64>,
    /// An edit that only changes where executors run applies to new executors, instead of starting a new run.
    pub partial_restart: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            grace: 10,
            most_waiting: 600,
            most_executors: 1000,
            time_to_live: None,
            partial_restart: false,
        }
    }
}

/// The longest message of a status. Units: bytes.
const MESSAGE: usize = 4096;
/// The maximum bytes of a condition's message.
const CONDITION: usize = 1024;
/// The retry interval for transient obstacles. Units: seconds.
pub(super) const SLOW: i64 = 30;
/// How long a pod may exist past its deletion deadline before it is reported. Units: seconds.
const LATE: i64 = 30;

/// The input of a decision.
#[derive(Clone, Copy, Debug)]
pub struct PlanInput<'a> {
    /// The application.
    pub app: &'a SparkApplication,
    /// The digest of its stored spec.
    pub digest: &'a SpecDigest,
    /// The observed state of its pods and objects.
    pub observed: &'a Observed,
    /// Settings of submissions.
    pub settings: &'a Settings,
    /// Settings of the life cycle.
    pub rules: &'a Rules,
    /// Whole seconds, because a status stores times in whole seconds, and a finer one would never equal it.
    pub now: Timestamp,
}

/// A plan under construction.
pub(super) struct Draft<'a> {
    pub(super) input: PlanInput<'a>,
    pub(super) spec: &'a SparkApplicationSpec,
    pub(super) status: SparkApplicationStatus,
    pub(super) plan: Plan,
}

impl Draft<'_> {
    pub(super) fn policy(&self) -> RestartPolicy {
        self.spec.restart_policy.clone().unwrap_or_default()
    }

    pub(super) fn name(&self) -> String {
        self.input.app.name_any()
    }

    /// Returns the name of the application's driver: the recorded name, or the spec's name before anything is recorded.
    fn driver_name(&self) -> String {
        let recorded = self.status.driver_info.pod_name.as_ref();
        let recorded = recorded.filter(|name| !name.is_empty());
        recorded.cloned().unwrap_or_else(|| self.spec_driver_name())
    }

    fn spec_driver_name(&self) -> String {
        driver_pod_name(&self.name(), self.spec)
    }

    /// True if a pod that the application owns counts as its driver. Anyone who may create pods may name any owner, so the name
    /// decides: it is taken from the driver's creation until its deletion.
    pub(super) fn is_own_driver(&self, driver: &Driver) -> bool {
        if driver.name == self.driver_name() {
            return true;
        }
        // The next driver has the spec's name, even while the former name is still recorded.
        let state = &self.status.application_state.state;
        is_before_submission(state) && driver.name == self.spec_driver_name()
    }

    /// Returns the pods that count as drivers.
    pub(super) fn drivers(&self) -> impl Iterator<Item = &Driver> {
        self.input
            .observed
            .drivers
            .iter()
            .filter(|d| self.is_own_driver(d))
    }

    /// Reports pods that claim to be the application's driver but are not.
    pub(super) fn report_forged_drivers(&mut self) {
        let name = self.driver_name();
        let all = self.input.observed.drivers.iter();
        let all = all.filter(|d| !d.terminating && !self.is_own_driver(d)).map(|d| {
            let text = format!(
                "pod {} names this application as its owner and claims to be its driver, whose name is {name}: the operator ignores it. \
                 Find out who created it, and delete it",
                d.name
            );
            ForgedPod {
                uid: d.uid,
                note: Note::warning("UnknownDriverPod", text),
            }
        });
        self.plan.forged = all.collect();
    }

    pub(super) fn generation(&self) -> Option<i64> {
        self.input.app.metadata.generation
    }

    pub(super) fn recorded(&self) -> Recorded<'_> {
        Recorded {
            generation: self.status.observed_generation,
            digest: self.status.spec_digest.as_deref(),
        }
    }

    /// Returns how the spec differs from that of the present run.
    ///
    /// If an ended application has a record of another operator or version, only an edit that this process observed counts.
    pub(super) fn change(&self, state: &State) -> Change {
        let change = digest::change(self.recorded(), self.generation(), self.input.digest);
        let first = self.input.observed.first.as_ref();
        let foreign = digest::is_foreign(self.status.spec_digest.as_deref());
        match first.filter(|_| state.is_terminal() && foreign) {
            Some(first) if !first.is_same_run(self.input.digest) => Change::Run,
            Some(first) if first.placement() != self.input.digest.placement() => Change::Placement,
            Some(_) | None => change,
        }
    }

    /// Records an edit that changes nothing, so that it is compared once, and replaces a digest that can't be compared. Doesn't
    /// touch an application that another operator finished.
    pub(super) fn keep_record(&mut self, state: &State) {
        let unread = self.status.observed_generation != self.generation();
        if self.status.spec_digest.is_none() {
            if state.is_terminal() {
                return;
            }
            self.adopt_counts(state);
        } else if state.is_terminal() && !unread {
            return;
        }
        let known = self.status.spec_digest.as_deref();
        let current = known
            .and_then(SpecDigest::parse)
            .is_some_and(|d| d.is_current());
        if !current || unread {
            self.record_spec(self.input.digest.to_string(), self.generation());
        }
    }

    /// Derives our counts from another operator's: it counts runs, we count failed ones.
    pub(super) fn adopt_counts(&mut self, state: &State) {
        let runs = self.status.execution_attempts.unwrap_or(0);
        let ended = matches!(
            state,
            State::Failing | State::PendingRerun | State::SubmissionFailed
        );
        let failed = if ended { runs } else { runs - 1 };
        if failed > 0 {
            self.status.failed_runs.get_or_insert(failed);
        }
    }

    pub(super) fn reset_counts(&mut self) {
        let status = &mut self.status;
        status.submission_attempts = None;
        status.execution_attempts = None;
        status.last_submission_attempt_time = None;
        status.failed_runs = None;
        status.last_failure_time = None;
        status.spec_digest = None;
        status.observed_generation = None;
    }

    pub(super) fn record_spec(&mut self, digest: String, generation: Option<i64>) {
        self.status.spec_digest = Some(digest);
        self.status.observed_generation = generation;
    }

    /// Truncates the message. It may quote something as long as an object, and the API server rejects an oversized status.
    pub(super) fn truncate_message(&mut self) {
        let text = self.status.application_state.error_message.as_mut();
        if let Some(text) = text.filter(|text| text.len() > MESSAGE) {
            text.truncate(text.floor_char_boundary(MESSAGE));
            text.push('…');
        }
    }

    /// Sets the condition `Stalled` while the application waits for a driver, and removes it otherwise: the published operator has no
    /// conditions.
    pub(super) fn set_stalled(&mut self) {
        let status = &mut self.status;
        let Some(reason) = &status.waiting else {
            let stalled = ConditionType::Stalled.as_str();
            status.conditions.retain(|c| c.type_ != stalled);
            return;
        };
        let message = status.application_state.error_message.as_deref();
        let message = shorten(message.unwrap_or_default(), CONDITION);
        let (all, type_, now) = (
            &mut status.conditions,
            ConditionType::Stalled,
            self.input.now,
        );
        conditions::set(all, type_, true, reason, &message, now);
        conditions::reword(all, type_, &message, now);
    }

    pub(super) fn requeue_at(&mut self, at: Timestamp) {
        let before = self.plan.requeue_at.get_or_insert(at);
        *before = (*before).min(at);
    }

    /// Records in one word what the driver waits for.
    pub(super) fn set_waiting(&mut self, reason: &str) {
        self.status.waiting = Some(clean(reason, 128));
    }

    pub(super) fn record_event(&mut self, note: Note) {
        self.plan.notes.push(note);
    }

    /// Enters a state, and records its published event.
    pub(super) fn enter(&mut self, to: State) {
        let name = self.name();
        let of = |reason: &str, what: &str| {
            Note::warning(reason, format!("SparkApplication {name} {what}"))
        };
        match &to {
            State::PendingRerun => {
                self.record_event(of("SparkApplicationPendingRerun", "is pending rerun"));
            }
            State::Suspending => {
                self.record_event(of("SparkApplicationSuspending", "is suspending"));
            }
            State::Suspended => self.record_event(of("SparkApplicationSuspended", "is suspended")),
            State::Resuming => {
                self.status.termination_time = None;
                self.record_event(of("SparkApplicationResuming", "is resuming"));
            }
            State::Completed => {
                let text = format!("SparkApplication {name} completed");
                self.record_event(Note::normal("SparkApplicationCompleted", text));
            }
            State::Failed => {
                let why = self.status.application_state.error_message.clone();
                let what = format!("failed: {}", why.unwrap_or_default());
                self.record_event(of("SparkApplicationFailed", &what));
                self.status
                    .termination_time
                    .get_or_insert(Time(self.input.now));
            }
            _ => {}
        }
        self.status.application_state.state = to;
        self.plan.requeue = true;
    }

    /// Clears what a run leaves in the status. Keeps the submission id, because the next id derives from it.
    pub(super) fn reset_run(&mut self) {
        // The name identifies the driver's pod while it exists.
        let pod = self.status.driver_info.pod_name.take();
        let pod = pod.filter(|pod| self.input.observed.drivers.iter().any(|d| d.name == *pod));
        let status = &mut self.status;
        status.spark_application_id = None;
        status.termination_time = None;
        status.application_state.error_message = None;
        status.driver_info = DriverInfo {
            pod_name: pod,
            ..DriverInfo::default()
        };
        status.executor_state.clear();
        status.executors = None;
        status.executors_not_listed = None;
        status.failed_submissions = None;
        status.batch_scheduler = None;
    }

    pub(super) fn rerun(&mut self) {
        self.reset_run();
        self.enter(State::PendingRerun);
    }

    /// Deletes the application's pods and the objects of its runs. True if only what the user wants to keep remains.
    pub(super) fn remove_all(&mut self) -> bool {
        self.remove(|_| true)
    }

    /// Deletes pods and objects of the matching submissions, drivers first. True if none of their pods exists any more and all
    /// their other objects are deleted.
    ///
    /// A terminating driver may use its grace period to finish, and needs its executors and its Service for that.
    pub(super) fn remove(&mut self, of: impl Fn(&str) -> bool) -> bool {
        let observed = self.input.observed;
        let mut gone = true;
        let mut needed = false;
        let ours = observed.drivers.iter().filter(|d| of(&d.submission_id));
        let ours: Vec<&Driver> = ours.filter(|d| self.is_own_driver(d)).collect();
        for driver in &ours {
            gone = false;
            self.delete_pod(&driver.name, driver.uid, driver.terminating);
            if let Some(due) = driver.deletion_deadline {
                self.wait_for_pod(&driver.name, due);
            }
            needed |= self.needs_objects(driver);
        }
        // A driver that was never recorded was a submission as well; the next one must not reuse its id.
        let mut ids = ours.iter().map(|d| &d.submission_id);
        if let Some(id) = ids.find(|id| !id.is_empty()) {
            self.status.submission_id = Some(id.clone());
        }
        if needed {
            return false;
        }
        let keeps = self.keeps_executors();
        let executors = observed.executors.iter();
        let executors = executors.filter(|e| of(&e.submission_id));
        for executor in executors.filter(|e| !(keeps && e.phase.has_ended())) {
            gone = false;
            self.delete_pod(&executor.name, executor.uid, executor.terminating);
            if let Some(due) = executor.deletion_deadline {
                self.wait_for_pod(&executor.name, due);
            }
        }
        let objects = observed.objects.iter().filter(|o| of(&o.submission_id));
        let deletions: Vec<Step> = objects.filter_map(deletion).collect();
        if !deletions.is_empty() {
            gone = false;
            self.plan.requeue = true;
            self.plan.steps.extend(deletions);
        }
        gone
    }

    /// True if pods of ended executors stay for inspection. By default Spark deletes them.
    fn keeps_executors(&self) -> bool {
        let key = "spark.kubernetes.executor.deleteOnTermination";
        let asked = self.spec.executor.delete_on_termination;
        let asked = asked.or_else(|| {
            let text = self.spec.spark_conf.get(key);
            let text = text.or_else(|| self.input.settings.defaults.get(key))?;
            text.trim().to_ascii_lowercase().parse().ok()
        });
        asked == Some(false)
    }

    /// True if a driver may still need the objects of its run. False long after its deletion deadline: its node may be lost.
    fn needs_objects(&self, driver: &Driver) -> bool {
        let late = driver
            .deletion_deadline
            .is_some_and(|due| later(due, LATE) <= self.input.now);
        !driver.phase.has_ended() && driver.end.is_none() && !late
    }

    /// Reports a pod that still exists past its deletion deadline.
    pub(super) fn wait_for_pod(&mut self, pod: &str, due: Timestamp) {
        let late = later(due, LATE);
        if self.input.now < late {
            return self.requeue_at(late);
        }
        let text = format!(
            "waits for the pod {pod} to end, which should have ended at {due}: its node may not answer, or a finalizer keeps it"
        );
        self.status.application_state.error_message = Some(text);
    }

    /// Deletes a pod, unless it is terminating.
    pub(super) fn delete_pod(&mut self, name: &str, uid: Uid, terminating: bool) {
        if !terminating {
            let name = name.to_owned();
            self.plan.steps.push(Step::DeletePod { name, uid });
        }
    }

    /// Cleans up an ended application: deletes its objects, keeps pods worth inspecting, and deletes everything after the time to
    /// live.
    pub(super) fn clean_up(&mut self) {
        let spec = self.spec.time_to_live_seconds;
        let ttl = spec.or(self.input.rules.time_to_live.filter(|t| *t > 0));
        if let (Some(ttl), Some(ended)) = (ttl, &self.status.termination_time) {
            let until = later(ended.0, ttl.max(0));
            if ttl <= 0 || until < self.input.now {
                return self.plan.steps.push(Step::DeleteApplication);
            }
            self.requeue_at(later(until, 1));
        }
        // Don't touch an application that another operator finished: that operator reports FAILED for drivers that still run.
        if self.status.spec_digest.is_none() {
            return;
        }
        // Without a driver there never were executors to count.
        if self.status.driver_info.pod_name.is_some() {
            self.track();
        }
        let observed = self.input.observed;
        // A driver that has not started could still start, for an application that has ended.
        let pending = |d: &&Driver| d.phase == PodPhase::Pending;
        let drivers: Vec<&Driver> = observed
            .drivers
            .iter()
            .filter(|d| self.is_own_driver(d))
            .collect();
        for driver in drivers.iter().copied().filter(pending) {
            self.delete_pod(&driver.name, driver.uid, driver.terminating);
        }
        let ended = |e: &Executor| e.phase.has_ended();
        for executor in observed.executors.iter().filter(|e| !ended(e)) {
            self.delete_pod(&executor.name, executor.uid, executor.terminating);
        }
        if !drivers.iter().any(|d| self.needs_objects(d)) {
            self.plan
                .steps
                .extend(observed.objects.iter().filter_map(deletion));
        }
    }
}

/// States in which a change of the spec starts over. In the other states it changes the next submission.
pub(super) fn follows_its_spec(state: &State) -> bool {
    !matches!(
        state,
        State::New
            | State::Suspending
            | State::Suspended
            | State::Resuming
            | State::Invalidating
            | State::Other(_)
    )
}

/// States in which the next pod to create is a driver.
fn is_before_submission(state: &State) -> bool {
    matches!(state, State::New | State::PendingRerun | State::Resuming)
}

pub(super) fn deletion(object: &Object) -> Option<Step> {
    (!object.terminating).then(|| Step::Delete {
        kind: object.kind,
        name: object.name.clone(),
        uid: object.uid,
    })
}

pub(super) fn incremented(count: Option<i32>) -> i32 {
    count.unwrap_or(0).saturating_add(1)
}

pub(super) fn later(since: Timestamp, seconds: i64) -> Timestamp {
    let wait = SignedDuration::from_secs(seconds);
    since.saturating_add(wait).unwrap_or(Timestamp::MAX)
}
