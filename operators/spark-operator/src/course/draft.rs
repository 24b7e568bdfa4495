//! The next step of an application in the making.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use training_core::{Note, PodPhase, Uid};

use super::seen::{Driver, Executor, Object, Seen};
use super::step::{Impostor, Plan, Step};
use crate::api::{
    DriverInfo, RestartPolicy, SparkApplication, SparkApplicationSpec, SparkApplicationStatus,
    State,
};
use crate::digest::{self, Change, Recorded, SpecDigest};
use crate::submission::Settings;
use crate::submission::conf::driver_pod_name;

/// Rules of the operator that a course depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// How long a driver may be missing after its submission. Units: seconds.
    pub grace: i64,
    /// How long a driver may wait for its image and for what its containers are made of. Units: seconds.
    pub most_waiting: i64,
    /// Executors that a status lists at most.
    pub most_executors: usize,
    /// The time to live of applications that name none. Units: seconds.
    pub time_to_live: Option<i64>,
    /// An edit of nothing but where executors run reaches those that are made later, instead of beginning a new run.
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
/// How long something that will pass is waited for. Units: seconds.
pub(super) const SLOW: i64 = 30;
/// How long after the end of its time a pod may still be there before that is told. Units: seconds.
const LATE: i64 = 30;

/// What a decision is made of.
#[derive(Clone, Copy, Debug)]
pub struct Inquiry<'a> {
    /// The application.
    pub app: &'a SparkApplication,
    /// Stands for its stored spec.
    pub digest: &'a SpecDigest,
    /// What is there beside it.
    pub seen: &'a Seen,
    /// How submissions are made.
    pub settings: &'a Settings,
    /// How applications are looked after.
    pub rules: &'a Rules,
    /// Whole seconds: a time in a status is stored in whole seconds, and a finer one would never equal it.
    pub now: Timestamp,
}

/// A plan in the making.
pub(super) struct Course<'a> {
    pub(super) ask: Inquiry<'a>,
    pub(super) spec: &'a SparkApplicationSpec,
    pub(super) status: SparkApplicationStatus,
    pub(super) plan: Plan,
}

impl Course<'_> {
    pub(super) fn policy(&self) -> RestartPolicy {
        self.spec.restart_policy.clone().unwrap_or_default()
    }

    pub(super) fn name(&self) -> String {
        self.ask.app.name_any()
    }

    /// The name that a driver of the application has: the recorded one, or before anything is recorded the one that the spec asks for.
    fn driver_name(&self) -> String {
        let recorded = self.status.driver_info.pod_name.as_ref();
        let recorded = recorded.filter(|name| !name.is_empty());
        recorded.cloned().unwrap_or_else(|| self.asked_name())
    }

    fn asked_name(&self) -> String {
        driver_pod_name(&self.name(), self.spec)
    }

    /// True if a pod that the application owns counts as its driver. Whoever may create pods may name any owner, so the name decides:
    /// it is taken from the moment the driver is created until it is gone.
    pub(super) fn counts(&self, driver: &Driver) -> bool {
        if driver.name == self.driver_name() {
            return true;
        }
        // The next driver has the name that the spec asks for, also while the former one's is still recorded.
        let state = &self.status.application_state.state;
        is_before_submission(state) && driver.name == self.asked_name()
    }

    /// The drivers that count.
    pub(super) fn drivers(&self) -> impl Iterator<Item = &Driver> {
        self.ask.seen.drivers.iter().filter(|d| self.counts(d))
    }

    /// Names the pods that claim to be drivers of the application and are not.
    pub(super) fn tell_impostors(&mut self) {
        let name = self.driver_name();
        let all = self.ask.seen.drivers.iter();
        let all = all.filter(|d| !d.leaving && !self.counts(d)).map(|d| {
            let text = format!(
                "pod {} names this application as its owner and claims to be its driver, whose name is {name}: the operator ignores it. \
                 Find out who created it, and delete it",
                d.name
            );
            Impostor {
                uid: d.uid,
                note: Note::warning("UnknownDriverPod", text),
            }
        });
        self.plan.impostors = all.collect();
    }

    pub(super) fn generation(&self) -> Option<i64> {
        self.ask.app.metadata.generation
    }

    pub(super) fn recorded(&self) -> Recorded<'_> {
        Recorded {
            generation: self.status.observed_generation,
            digest: self.status.spec_digest.as_deref(),
        }
    }

    /// In what the spec differs from that of the present run.
    ///
    /// Of an application that has ended with a record of another operator, or of another version, an edit is one that this process saw.
    pub(super) fn change(&self, state: &State) -> Change {
        let change = digest::change(self.recorded(), self.generation(), self.ask.digest);
        let first = self.ask.seen.first.as_ref();
        let foreign = digest::is_foreign(self.status.spec_digest.as_deref());
        match first.filter(|_| state.is_terminal() && foreign) {
            Some(first) if !first.is_same_run(self.ask.digest) => Change::Run,
            Some(first) if first.placement() != self.ask.digest.placement() => Change::Placement,
            Some(_) | None => change,
        }
    }

    /// An edit that changes nothing is looked at once; a digest that can't be compared is replaced by one that can. What another
    /// operator has finished is not written to.
    pub(super) fn keep_record(&mut self, state: &State) {
        let unread = self.status.observed_generation != self.generation();
        if self.status.spec_digest.is_none() {
            if state.is_terminal() {
                return;
            }
            self.take_over(state);
        } else if state.is_terminal() && !unread {
            return;
        }
        let known = self.status.spec_digest.as_deref();
        let current = known
            .and_then(SpecDigest::parse)
            .is_some_and(|d| d.is_current());
        if !current || unread {
            self.record(self.ask.digest.to_string(), self.generation());
        }
    }

    /// Counts of another operator that ours go on from: it counts runs, and ours counts those that failed.
    pub(super) fn take_over(&mut self, state: &State) {
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

    pub(super) fn count_anew(&mut self) {
        let status = &mut self.status;
        status.submission_attempts = None;
        status.execution_attempts = None;
        status.last_submission_attempt_time = None;
        status.failed_runs = None;
        status.last_failure_time = None;
        status.spec_digest = None;
        status.observed_generation = None;
    }

    pub(super) fn record(&mut self, digest: String, generation: Option<i64>) {
        self.status.spec_digest = Some(digest);
        self.status.observed_generation = generation;
    }

    /// A message quotes what it speaks of, which may be as long as an object may be; a status that is too long is never stored.
    pub(super) fn cut_message(&mut self) {
        let text = self.status.application_state.error_message.as_mut();
        if let Some(text) = text.filter(|text| text.len() > MESSAGE) {
            text.truncate(text.floor_char_boundary(MESSAGE));
            text.push('…');
        }
    }

    pub(super) fn wake(&mut self, at: Timestamp) {
        let before = self.plan.wake.get_or_insert(at);
        *before = (*before).min(at);
    }

    pub(super) fn tell(&mut self, note: Note) {
        self.plan.notes.push(note);
    }

    /// Enters a state, and tells what is published of it.
    pub(super) fn go(&mut self, to: State) {
        let name = self.name();
        let of = |reason: &str, what: &str| {
            Note::warning(reason, format!("SparkApplication {name} {what}"))
        };
        match &to {
            State::PendingRerun => {
                self.tell(of("SparkApplicationPendingRerun", "is pending rerun"));
            }
            State::Suspending => self.tell(of("SparkApplicationSuspending", "is suspending")),
            State::Suspended => self.tell(of("SparkApplicationSuspended", "is suspended")),
            State::Resuming => {
                self.status.termination_time = None;
                self.tell(of("SparkApplicationResuming", "is resuming"));
            }
            State::Completed => {
                let text = format!("SparkApplication {name} completed");
                self.tell(Note::normal("SparkApplicationCompleted", text));
            }
            State::Failed => {
                let why = self.status.application_state.error_message.clone();
                let what = format!("failed: {}", why.unwrap_or_default());
                self.tell(of("SparkApplicationFailed", &what));
                self.status
                    .termination_time
                    .get_or_insert(Time(self.ask.now));
            }
            _ => {}
        }
        self.status.application_state.state = to;
        self.plan.again = true;
    }

    /// What a run leaves in the status goes; the id of its submission stays, because the next one's follows from it.
    pub(super) fn reset(&mut self) {
        // While the driver's pod is there, its name is what it is known by.
        let pod = self.status.driver_info.pod_name.take();
        let pod = pod.filter(|pod| self.ask.seen.drivers.iter().any(|d| d.name == *pod));
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
        self.reset();
        self.go(State::PendingRerun);
    }

    /// Deletes the application's pods and what its runs left. True if nothing is there any more but what keeps itself.
    pub(super) fn remove_all(&mut self) -> bool {
        self.remove(|_| true)
    }

    /// Deletes what is of such submissions, the drivers first. True if none of their pods is there any more, and every other object
    /// of theirs has been deleted.
    ///
    /// A driver that is told to go may use its grace period to come to a good end, for which it needs its executors and its Service.
    pub(super) fn remove(&mut self, of: impl Fn(&str) -> bool) -> bool {
        let seen = self.ask.seen;
        let mut gone = true;
        let mut drives = false;
        let ours = seen.drivers.iter().filter(|d| of(&d.submission_id));
        let ours: Vec<&Driver> = ours.filter(|d| self.counts(d)).collect();
        for driver in &ours {
            gone = false;
            self.delete_pod(&driver.name, driver.uid, driver.leaving);
            if let Some(due) = driver.due {
                self.wait_for(&driver.name, due);
            }
            drives |= self.drives(driver);
        }
        // A driver that was never recorded was a submission as well: the next one must not have its id.
        let mut ids = ours.iter().map(|d| &d.submission_id);
        if let Some(id) = ids.find(|id| !id.is_empty()) {
            self.status.submission_id = Some(id.clone());
        }
        if drives {
            return false;
        }
        let keeps = self.keeps_executors();
        let executors = seen.executors.iter();
        let executors = executors.filter(|e| of(&e.submission_id));
        for executor in executors.filter(|e| !(keeps && e.phase.has_ended())) {
            gone = false;
            self.delete_pod(&executor.name, executor.uid, executor.leaving);
            if let Some(due) = executor.due {
                self.wait_for(&executor.name, due);
            }
        }
        let objects = seen.objects.iter().filter(|o| of(&o.submission_id));
        let deletions: Vec<Step> = objects.filter_map(deletion).collect();
        if !deletions.is_empty() {
            gone = false;
            self.plan.again = true;
            self.plan.steps.extend(deletions);
        }
        gone
    }

    /// True if executors that have ended are to stay, for those who look for what they did. Spark's own default is that they don't.
    fn keeps_executors(&self) -> bool {
        let key = "spark.kubernetes.executor.deleteOnTermination";
        let said = self.spec.executor.delete_on_termination;
        let said = said.or_else(|| {
            let text = self.spec.spark_conf.get(key);
            let text = text.or_else(|| self.ask.settings.defaults.get(key))?;
            text.trim().to_ascii_lowercase().parse().ok()
        });
        said == Some(false)
    }

    /// True if a driver may still need what its run has. One that should have ended long ago is given up: its node may be lost.
    fn drives(&self, driver: &Driver) -> bool {
        let late = driver
            .due
            .is_some_and(|due| later(due, LATE) <= self.ask.now);
        !driver.phase.has_ended() && driver.end.is_none() && !late
    }

    /// A pod that doesn't go although its time is over is named.
    pub(super) fn wait_for(&mut self, pod: &str, due: Timestamp) {
        let late = later(due, LATE);
        if self.ask.now < late {
            return self.wake(late);
        }
        let text = format!(
            "waits for the pod {pod} to end, which should have ended at {due}: its node may not answer, or a finalizer keeps it"
        );
        self.status.application_state.error_message = Some(text);
    }

    /// Deletes a pod, unless somebody does already.
    pub(super) fn delete_pod(&mut self, name: &str, uid: Uid, leaving: bool) {
        if !leaving {
            let name = name.to_owned();
            self.plan.steps.push(Step::DeletePod { name, uid });
        }
    }

    /// It has ended: what its run had goes, the pods that tell something stay, and at the end of its time all of it goes.
    pub(super) fn rest(&mut self) {
        let spec = self.spec.time_to_live_seconds;
        let ttl = spec.or(self.ask.rules.time_to_live.filter(|t| *t > 0));
        if let (Some(ttl), Some(ended)) = (ttl, &self.status.termination_time) {
            let until = later(ended.0, ttl.max(0));
            if ttl <= 0 || until < self.ask.now {
                return self.plan.steps.push(Step::DeleteApplication);
            }
            self.wake(later(until, 1));
        }
        // What another operator has finished is left as it is: it says FAILED of drivers that run on.
        if self.status.spec_digest.is_none() {
            return;
        }
        self.track();
        let seen = self.ask.seen;
        // A driver that never started would start in the end, for an application that has ended.
        let unborn = |d: &&Driver| d.phase == PodPhase::Pending;
        let drivers: Vec<&Driver> = seen.drivers.iter().filter(|d| self.counts(d)).collect();
        for driver in drivers.iter().copied().filter(unborn) {
            self.delete_pod(&driver.name, driver.uid, driver.leaving);
        }
        let ended = |e: &Executor| e.phase.has_ended();
        for executor in seen.executors.iter().filter(|e| !ended(e)) {
            self.delete_pod(&executor.name, executor.uid, executor.leaving);
        }
        if !drivers.iter().any(|d| self.drives(d)) {
            self.plan
                .steps
                .extend(seen.objects.iter().filter_map(deletion));
        }
    }
}

/// States in which a change of the spec begins all anew. In the others it changes what is submitted next.
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

/// States in which the next thing that is made is a driver.
fn is_before_submission(state: &State) -> bool {
    matches!(state, State::New | State::PendingRerun | State::Resuming)
}

pub(super) fn deletion(object: &Object) -> Option<Step> {
    (!object.leaving).then(|| Step::Delete {
        kind: object.kind,
        name: object.name.clone(),
        uid: object.uid,
    })
}

pub(super) fn more(count: Option<i32>) -> i32 {
    count.unwrap_or(0).saturating_add(1)
}

pub(super) fn later(since: Timestamp, seconds: i64) -> Timestamp {
    let wait = SignedDuration::from_secs(seconds);
    since.saturating_add(wait).unwrap_or(Timestamp::MAX)
}
