//! Submissions: what to create, record and retry.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use training_core::reasons::FailureReason;
use training_core::{Note, Transition};

use super::draft::{Draft, SLOW, incremented, later};
use super::observed::{Driver, Kind, Object, Refusal, Refused};
use super::optional;
use super::retry::{self, Retry};
use super::step::{NewObject, Step};
use crate::api::{DriverInfo, State};
use crate::digest::{self, Change};
use crate::submission::{Inputs, Submission, submit};

/// Why an application waits whose driver, or an object that the driver needs, can't be created.
const REFUSED: &str = "SubmissionRefused";

/// Whether new executors go where the spec says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlacementState {
    Yes,
    /// Once the plan has been executed.
    Soon,
    /// Only with a new run.
    No,
}

impl Draft<'_> {
    /// Submits the application, unless its driver exists.
    pub(super) fn submit(&mut self) {
        let uid = self.input.app.metadata.uid.clone().unwrap_or_default();
        let former = self.status.submission_id.clone();
        let id = digest::submission_id(&uid, former.as_deref(), self.input.digest);
        // If no submission is recorded, our driver is what was submitted, even if the spec was edited since. The same holds if
        // the edit only changed where executors run. A terminating driver counts as submitted as well.
        let edited = |d: &Driver| {
            let of = d.digest.as_ref();
            let of = of.filter(|of| of.is_same_run(self.input.digest));
            of.is_some_and(|of| {
                digest::submission_id(&uid, former.as_deref(), of) == d.submission_id
            })
        };
        let is_submitted = |d: &&Driver| d.submission_id == id || former.is_none() || edited(d);
        let driver = self.drivers().find(is_submitted).cloned();
        if let Some(driver) = driver {
            return self.record_submission(&driver);
        }
        if !self.remove(|of| of != id) {
            return;
        }
        if let Some(name) = &self.input.observed.taken_name {
            let text = format!(
                "the pod {name} is not the application's, and has the name of its driver: delete it, or set spec.driver.podName"
            );
            self.set_waiting("DriverNameTaken");
            return self.wait_for_obstacle(&text, self.input.now);
        }
        if let Some(refused) = self.refused(&id).cloned() {
            if refused.why != Refusal::Transient {
                let text = format!(
                    "failed to submit spark application: failed to run spark-submit: {}",
                    refused.message
                );
                return self.count_refusal(&text, refused.why);
            }
            if later(refused.at, SLOW) > self.input.now {
                self.set_waiting(REFUSED);
                return self.wait_for_obstacle(&refused.message, refused.at);
            }
        }
        if self.status.failed_submissions.is_some_and(|n| n > 0) {
            match retry::after_failed_submission(&self.policy(), &self.status) {
                Retry::Never => return self.enter(State::SubmissionFailed),
                Retry::At(at) if at > self.input.now => {
                    self.set_waiting(REFUSED);
                    return self.requeue_at(at);
                }
                Retry::At(_) => {}
            }
        }
        match self.build(&id) {
            Ok(submission) => self.create_missing(submission, &id),
            Err(text) => self.count_refusal(&text, Refusal::Permanent),
        }
    }

    /// Records a transient obstacle once, and requeues.
    fn wait_for_obstacle(&mut self, text: &str, since: Timestamp) {
        self.requeue_at(later(since, SLOW));
        let error = &mut self.status.application_state.error_message;
        if error.as_deref() != Some(text) {
            *error = Some(text.to_owned());
            let text = format!("failed to submit SparkApplication {}: {text}", self.name());
            self.record_event(Note::warning("SparkApplicationSubmissionFailed", text));
        }
    }

    pub(super) fn build(&self, id: &str) -> Result<Submission, String> {
        let digest = self.input.digest.to_string();
        let inputs = Inputs {
            submission_id: id,
            submitted_at: self.input.now,
            spec_digest: &digest,
            settings: self.input.settings,
        };
        submit(self.input.app, inputs).map_err(|refusal| refusal.to_string())
    }

    /// Makes new executors go where the spec says, if the feature gate allows it.
    ///
    /// The driver reads its template again for each executor. Compares the template itself, not the recorded digest: a change may
    /// have been made but not recorded, and the edit reverted.
    pub(super) fn apply_placement(&mut self, change: Change, state: &State) -> PlacementState {
        match change {
            Change::Run => return PlacementState::No,
            Change::Placement if !self.input.rules.partial_restart => return PlacementState::No,
            Change::Placement | Change::None => {}
        }
        let runs = matches!(state, State::Submitted | State::Running | State::Unknown);
        let edited = self.status.observed_generation != self.generation();
        if !(runs && edited && self.input.rules.partial_restart) {
            return PlacementState::Yes;
        }
        let name = self.name();
        let id = self.status.submission_id.clone().unwrap_or_default();
        let objects = self.input.observed.objects.iter();
        let mut objects = objects.filter(|o| o.submission_id == id && !o.terminating);
        let existing = objects.find_map(|o| Some((o, o.placement.as_ref()?)));
        let Some((object, placement)) = existing else {
            // Created by another operator, or missing: these executors can't be redirected.
            return match change {
                Change::Placement => PlacementState::No,
                Change::None | Change::Run => PlacementState::Yes,
            };
        };
        if placement.digest == self.input.digest.placement() {
            if change == Change::Placement {
                let text = format!(
                    "SparkApplication {name}: the edit is for executors that are made from now on"
                );
                let reason = "SparkApplicationWebhookFieldsUpdated";
                self.record_event(Note::normal(reason, text));
            }
            return PlacementState::Yes;
        }
        match self.build(&id) {
            Ok(submission) => {
                self.plan.steps.push(Step::Change {
                    map: Box::new(submission.executor_template),
                    uid: object.uid,
                    resource_version: placement.resource_version.clone(),
                });
                self.plan.requeue = true;
                PlacementState::Soon
            }
            Err(text) => {
                let text = format!("SparkApplication {name}: the edit has no effect: {text}");
                self.record_event(Note::warning("SparkApplicationSpecUpdateFailed", text));
                PlacementState::Yes
            }
        }
    }

    /// Creates the missing objects of a submission, the driver last.
    fn create_missing(&mut self, mut submission: Submission, id: &str) {
        // A retry may be refused as well, so the application waits until its driver exists.
        let stored = self.input.app.status.as_ref();
        self.status.waiting = stored.and_then(|status| status.waiting.clone());
        let optional = optional::take(&mut submission);
        let observed = self.input.observed;
        let existing = |object: &NewObject| {
            let (kind, name) = object.id();
            let same = |o: &&Object| (o.kind, &o.name) == (kind, &name);
            observed.objects.iter().find(same)
        };
        let in_the_way = |o: &Object| o.terminating || o.submission_id != id;
        let Submission {
            driver,
            conf,
            executor_template,
            metrics,
            driver_service,
            claims,
            network_policy,
            groups,
            notes,
            ..
        } = submission;
        let maps = [conf, executor_template].into_iter().chain(metrics);
        let claims = claims.into_iter().map(|c| NewObject::Claim(Box::new(c)));
        let policy = network_policy.map(|p| NewObject::NetworkPolicy(Box::new(p)));
        let all = groups
            .into_iter()
            .map(|g| NewObject::Group(Box::new(g)))
            .chain(maps.map(|m| NewObject::ConfigMap(Box::new(m))))
            .chain([NewObject::Service(Box::new(driver_service))])
            .chain(claims)
            .chain(policy);
        let all: Vec<NewObject> = all.collect();
        // Don't wait for terminating objects that the driver doesn't depend on.
        let about_to_go = |o: &Object| o.submission_id != id && !o.terminating;
        if all.iter().filter_map(existing).any(in_the_way)
            || optional.iter().filter_map(existing).any(about_to_go)
        {
            // Names that don't depend on the submission become free once the former objects are gone.
            return;
        }
        let optional = optional
            .into_iter()
            .filter(|object| existing(object).is_none());
        let optional: Vec<Step> = optional.map(Step::CreateOptional).collect();
        let missing: Vec<Step> = all
            .into_iter()
            .filter(|object| existing(object).is_none())
            .map(Step::Create)
            .collect();
        self.plan.steps.extend(missing);
        self.plan.steps.push(Step::CreateDriver(Box::new(driver)));
        self.plan.steps.extend(optional);
        if self.status.failed_submissions.is_none() && self.input.observed.refused.is_none() {
            self.plan.notes.extend(notes);
        }
        self.plan.requeue = true;
    }

    /// Returns the refusal of the attempt that is due now, not of attempts already counted.
    fn refused(&self, id: &str) -> Option<&Refused> {
        let attempts = self.status.submission_attempts.unwrap_or(0);
        let refused = self.input.observed.refused.as_ref();
        refused.filter(|r| r.attempts == attempts && r.submission_id == id)
    }

    /// Counts a refused submission.
    fn count_refusal(&mut self, text: &str, why: Refusal) {
        let now = Some(Time(self.input.now));
        self.record_spec(self.input.digest.to_string(), self.generation());
        let status = &mut self.status;
        status.submission_attempts = Some(incremented(status.submission_attempts));
        status.failed_submissions = Some(incremented(status.failed_submissions));
        status.last_submission_attempt_time.clone_from(&now);
        status.last_failure_time = now;
        status.application_state.error_message = Some(text.to_owned());
        let name = self.name();
        if self.status.application_state.state == State::New {
            let text = format!("SparkApplication {name} was added, enqueuing it for submission");
            self.record_event(Note::normal("SparkApplicationAdded", text));
        }
        let text = format!("failed to submit SparkApplication {name}: {text}");
        self.record_event(Note::warning("SparkApplicationSubmissionFailed", text));
        match (
            why,
            retry::after_failed_submission(&self.policy(), &self.status),
        ) {
            (Refusal::Permanent, _) | (_, Retry::Never) => self.enter(State::SubmissionFailed),
            (_, Retry::At(at)) => {
                self.set_waiting(REFUSED);
                self.requeue_at(at);
            }
        }
    }

    /// Continues after a failed submission. Our operator writes this state when no retries are left; another operator may have
    /// some left.
    pub(super) fn continue_after_failed_submission(&mut self) {
        let ours = self.status.last_failure_time.is_some();
        let retry = retry::after_failed_submission(&self.policy(), &self.status);
        if ours || retry == Retry::Never {
            return self.enter(State::Failed);
        }
        let status = &mut self.status;
        status.failed_submissions = status.submission_attempts;
        let last = status.last_submission_attempt_time.clone();
        status.last_failure_time = last;
        let failed = Transition::Restarted(FailureReason::SUBMISSION_FAILED);
        self.plan.transitions.push(failed);
        self.enter(State::PendingRerun);
    }

    /// Records the submission, because its driver exists.
    fn record_submission(&mut self, driver: &Driver) {
        let digest = driver
            .digest
            .as_ref()
            .unwrap_or(self.input.digest)
            .to_string();
        let generation = driver.generation.or(self.generation());
        if self.status.spec_digest.is_none() {
            let state = self.status.application_state.state.clone();
            self.adopt_counts(&state);
        }
        self.record_spec(digest, generation);
        let info = self.driver_info(driver);
        let status = &mut self.status;
        status.submission_id = Some(driver.submission_id.clone());
        status.spark_application_id = Some(driver.app_id.clone()).filter(|id| !id.is_empty());
        status.last_submission_attempt_time = Some(Time(self.input.now));
        status.submission_attempts = Some(incremented(status.submission_attempts));
        status.execution_attempts = Some(incremented(status.execution_attempts));
        status.failed_submissions = None;
        status.termination_time = None;
        status.driver_info = info;
        status.application_state.error_message = None;
        self.set_message(None);
        let text = format!(
            "SparkApplication {} was submitted successfully",
            self.name()
        );
        self.record_event(Note::normal("SparkApplicationSubmitted", text));
        self.enter(State::Submitted);
        // In the same write, because the requested number of executors is already known.
        self.track();
    }

    pub(super) fn driver_info(&mut self, driver: &Driver) -> DriverInfo {
        let mut info = DriverInfo {
            pod_name: Some(driver.name.clone()),
            ..DriverInfo::default()
        };
        let Ok(submission) = self.build(&driver.submission_id) else {
            // An edit made the spec invalid. The next run reports that.
            return info;
        };
        self.status.batch_scheduler = submission.batch_scheduler;
        let existing = |kind, name: &String| self.object(driver, kind, name);
        let service = submission.ui_service.as_ref().map(ResourceExt::name_any);
        if let Some(service) = service.and_then(|name| existing(Kind::Service, &name)) {
            if let Some((ip, port)) = &service.address {
                info.web_ui_address = Some(format!("{ip}:{port}"));
                info.web_ui_port = Some(*port);
            }
            info.web_ui_service_name = Some(service.name.clone());
        }
        let ingress = submission.ui_ingress.as_ref().map(ResourceExt::name_any);
        if let Some(ingress) = ingress.and_then(|name| existing(Kind::Ingress, &name)) {
            info.web_ui_ingress_name = Some(ingress.name.clone());
            info.web_ui_ingress_address = submission.ui_url;
        }
        info
    }
}
