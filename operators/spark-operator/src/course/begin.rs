//! Submissions: what to create, record and retry.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use training_core::reasons::FailureReason;
use training_core::{Note, Transition};

use super::again::{self, Again};
use super::beside;
use super::draft::{Course, SLOW, later, more};
use super::seen::{Driver, Kind, Object, Refusal, Refused};
use super::step::{Make, Step};
use crate::api::{DriverInfo, State};
use crate::digest::{self, Change};
use crate::submission::{Inputs, Submission, submit};

/// Why an application waits whose driver, or an object that the driver needs, can't be created.
const REFUSED: &str = "SubmissionRefused";

/// Whether new executors go where the spec says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlacementState {
    Yes,
    /// Once the plan has been carried out.
    Soon,
    /// Only with a new run.
    No,
}

impl Course<'_> {
    /// Submits the application, unless its driver exists.
    pub(super) fn begin(&mut self) {
        let uid = self.ask.app.metadata.uid.clone().unwrap_or_default();
        let former = self.status.submission_id.clone();
        let id = digest::submission_id(&uid, former.as_deref(), self.ask.digest);
        // If no submission is recorded, our driver is what was submitted, even if the spec was edited since. The same holds if
        // the edit only changed where executors run. A terminating driver counts as submitted as well.
        let edited = |d: &Driver| {
            let of = d.digest.as_ref();
            let of = of.filter(|of| of.is_same_run(self.ask.digest));
            of.is_some_and(|of| {
                digest::submission_id(&uid, former.as_deref(), of) == d.submission_id
            })
        };
        let is_it = |d: &&Driver| d.submission_id == id || former.is_none() || edited(d);
        let driver = self.drivers().find(is_it).cloned();
        if let Some(driver) = driver {
            return self.submitted(&driver);
        }
        if !self.remove(|of| of != id) {
            return;
        }
        if let Some(name) = &self.ask.seen.taken {
            let text = format!(
                "the pod {name} is not the application's, and has the name of its driver: delete it, or set spec.driver.podName"
            );
            self.waits("DriverNameTaken");
            return self.wait(&text, self.ask.now);
        }
        if let Some(refused) = self.refused(&id).cloned() {
            if refused.why != Refusal::Passing {
                let text = format!(
                    "failed to submit spark application: failed to run spark-submit: {}",
                    refused.message
                );
                return self.refuse(&text, refused.why);
            }
            if later(refused.at, SLOW) > self.ask.now {
                self.waits(REFUSED);
                return self.wait(&refused.message, refused.at);
            }
        }
        if self.status.failed_submissions.is_some_and(|n| n > 0) {
            match again::submission(&self.policy(), &self.status) {
                Again::Never => return self.go(State::SubmissionFailed),
                Again::At(at) if at > self.ask.now => {
                    self.waits(REFUSED);
                    return self.wake(at);
                }
                Again::At(_) => {}
            }
        }
        match self.made(&id) {
            Ok(made) => self.make(made, &id),
            Err(text) => self.refuse(&text, Refusal::Hopeless),
        }
    }

    /// Records a transient obstacle once, and requeues.
    fn wait(&mut self, text: &str, since: Timestamp) {
        self.wake(later(since, SLOW));
        let error = &mut self.status.application_state.error_message;
        if error.as_deref() != Some(text) {
            *error = Some(text.to_owned());
            let text = format!("failed to submit SparkApplication {}: {text}", self.name());
            self.tell(Note::warning("SparkApplicationSubmissionFailed", text));
        }
    }

    pub(super) fn made(&self, id: &str) -> Result<Submission, String> {
        let digest = self.ask.digest.to_string();
        let inputs = Inputs {
            submission_id: id,
            submitted_at: self.ask.now,
            spec_digest: &digest,
            settings: self.ask.settings,
        };
        submit(self.ask.app, inputs).map_err(|refusal| refusal.to_string())
    }

    /// Makes new executors go where the spec says, if the feature gate allows it.
    ///
    /// The driver reads its template again for each executor. Compares the template itself, not the recorded digest: a change may
    /// have been made but not recorded, and the edit reverted.
    pub(super) fn place(&mut self, change: Change, state: &State) -> PlacementState {
        match change {
            Change::Run => return PlacementState::No,
            Change::Placement if !self.ask.rules.partial_restart => return PlacementState::No,
            Change::Placement | Change::None => {}
        }
        let runs = matches!(state, State::Submitted | State::Running | State::Unknown);
        let edited = self.status.observed_generation != self.generation();
        if !(runs && edited && self.ask.rules.partial_restart) {
            return PlacementState::Yes;
        }
        let name = self.name();
        let id = self.status.submission_id.clone().unwrap_or_default();
        let objects = self.ask.seen.objects.iter();
        let mut objects = objects.filter(|o| o.submission_id == id && !o.terminating);
        let there = objects.find_map(|o| Some((o, o.placement.as_ref()?)));
        let Some((object, placement)) = there else {
            // Created by another operator, or missing: these executors can't be redirected.
            return match change {
                Change::Placement => PlacementState::No,
                Change::None | Change::Run => PlacementState::Yes,
            };
        };
        if placement.digest == self.ask.digest.placement() {
            if change == Change::Placement {
                let text = format!(
                    "SparkApplication {name}: the edit is for executors that are made from now on"
                );
                let reason = "SparkApplicationWebhookFieldsUpdated";
                self.tell(Note::normal(reason, text));
            }
            return PlacementState::Yes;
        }
        match self.made(&id) {
            Ok(made) => {
                self.plan.steps.push(Step::Change {
                    map: Box::new(made.executor_template),
                    uid: object.uid,
                    resource_version: placement.resource_version.clone(),
                });
                self.plan.again = true;
                PlacementState::Soon
            }
            Err(text) => {
                let text = format!("SparkApplication {name}: the edit has no effect: {text}");
                self.tell(Note::warning("SparkApplicationSpecUpdateFailed", text));
                PlacementState::Yes
            }
        }
    }

    /// Creates the missing objects of a submission, the driver last.
    fn make(&mut self, mut made: Submission, id: &str) {
        // A retry may be refused as well, so the application waits until its driver exists.
        let stored = self.ask.app.status.as_ref();
        self.status.waiting = stored.and_then(|status| status.waiting.clone());
        let beside = beside::take(&mut made);
        let seen = self.ask.seen;
        let there = |make: &Make| {
            let (kind, name) = make.id();
            let same = |o: &&Object| (o.kind, &o.name) == (kind, &name);
            seen.objects.iter().find(same)
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
        } = made;
        let maps = [conf, executor_template].into_iter().chain(metrics);
        let claims = claims.into_iter().map(|c| Make::Claim(Box::new(c)));
        let policy = network_policy.map(|p| Make::NetworkPolicy(Box::new(p)));
        let all = groups
            .into_iter()
            .map(|g| Make::Group(Box::new(g)))
            .chain(maps.map(|m| Make::ConfigMap(Box::new(m))))
            .chain([Make::Service(Box::new(driver_service))])
            .chain(claims)
            .chain(policy);
        let all: Vec<Make> = all.collect();
        // Don't wait for terminating objects that the driver doesn't depend on.
        let about_to_go = |o: &Object| o.submission_id != id && !o.terminating;
        if all.iter().filter_map(there).any(in_the_way)
            || beside.iter().filter_map(there).any(about_to_go)
        {
            // Names that don't depend on the submission become free once the former objects are gone.
            return;
        }
        let beside = beside.into_iter().filter(|make| there(make).is_none());
        let beside: Vec<Step> = beside.map(Step::CreateOptional).collect();
        let missing: Vec<Step> = all
            .into_iter()
            .filter(|make| there(make).is_none())
            .map(Step::Make)
            .collect();
        self.plan.steps.extend(missing);
        self.plan.steps.push(Step::CreateDriver(Box::new(driver)));
        self.plan.steps.extend(beside);
        if self.status.failed_submissions.is_none() && self.ask.seen.refused.is_none() {
            self.plan.notes.extend(notes);
        }
        self.plan.again = true;
    }

    /// Returns the refusal of the attempt that is due now, not of attempts already counted.
    fn refused(&self, id: &str) -> Option<&Refused> {
        let attempts = self.status.submission_attempts.unwrap_or(0);
        let refused = self.ask.seen.refused.as_ref();
        refused.filter(|r| r.attempts == attempts && r.submission_id == id)
    }

    /// Counts a refused submission.
    fn refuse(&mut self, text: &str, why: Refusal) {
        let now = Some(Time(self.ask.now));
        self.record(self.ask.digest.to_string(), self.generation());
        let status = &mut self.status;
        status.submission_attempts = Some(more(status.submission_attempts));
        status.failed_submissions = Some(more(status.failed_submissions));
        status.last_submission_attempt_time.clone_from(&now);
        status.last_failure_time = now;
        status.application_state.error_message = Some(text.to_owned());
        let name = self.name();
        if self.status.application_state.state == State::New {
            let text = format!("SparkApplication {name} was added, enqueuing it for submission");
            self.tell(Note::normal("SparkApplicationAdded", text));
        }
        let text = format!("failed to submit SparkApplication {name}: {text}");
        self.tell(Note::warning("SparkApplicationSubmissionFailed", text));
        match (why, again::submission(&self.policy(), &self.status)) {
            (Refusal::Hopeless, _) | (_, Again::Never) => self.go(State::SubmissionFailed),
            (_, Again::At(at)) => {
                self.waits(REFUSED);
                self.wake(at);
            }
        }
    }

    /// Continues after a failed submission. Our operator writes this state when no retries are left; another operator may have
    /// some left.
    pub(super) fn after_submission(&mut self) {
        let ours = self.status.last_failure_time.is_some();
        let again = again::submission(&self.policy(), &self.status);
        if ours || again == Again::Never {
            return self.go(State::Failed);
        }
        let status = &mut self.status;
        status.failed_submissions = status.submission_attempts;
        let last = status.last_submission_attempt_time.clone();
        status.last_failure_time = last;
        let failed = Transition::Restarted(FailureReason::SUBMISSION_FAILED);
        self.plan.transitions.push(failed);
        self.go(State::PendingRerun);
    }

    /// Records the submission, because its driver exists.
    fn submitted(&mut self, driver: &Driver) {
        let digest = driver
            .digest
            .as_ref()
            .unwrap_or(self.ask.digest)
            .to_string();
        let generation = driver.generation.or(self.generation());
        if self.status.spec_digest.is_none() {
            let state = self.status.application_state.state.clone();
            self.take_over(&state);
        }
        self.record(digest, generation);
        let info = self.driver_info(driver);
        let status = &mut self.status;
        status.submission_id = Some(driver.submission_id.clone());
        status.spark_application_id = Some(driver.app_id.clone()).filter(|id| !id.is_empty());
        status.last_submission_attempt_time = Some(Time(self.ask.now));
        status.submission_attempts = Some(more(status.submission_attempts));
        status.execution_attempts = Some(more(status.execution_attempts));
        status.failed_submissions = None;
        status.termination_time = None;
        status.driver_info = info;
        status.application_state.error_message = None;
        self.show(None);
        let text = format!(
            "SparkApplication {} was submitted successfully",
            self.name()
        );
        self.tell(Note::normal("SparkApplicationSubmitted", text));
        self.go(State::Submitted);
        // In the same write, because the requested number of executors is already known.
        self.track();
    }

    pub(super) fn driver_info(&mut self, driver: &Driver) -> DriverInfo {
        let mut info = DriverInfo {
            pod_name: Some(driver.name.clone()),
            ..DriverInfo::default()
        };
        let Ok(made) = self.made(&driver.submission_id) else {
            // An edit made the spec invalid. The next run reports that.
            return info;
        };
        self.status.batch_scheduler = made.batch_scheduler;
        let there = |kind, name: &String| self.object(driver, kind, name);
        let service = made.ui_service.as_ref().map(ResourceExt::name_any);
        if let Some(service) = service.and_then(|name| there(Kind::Service, &name)) {
            if let Some((ip, port)) = &service.address {
                info.web_ui_address = Some(format!("{ip}:{port}"));
                info.web_ui_port = Some(*port);
            }
            info.web_ui_service_name = Some(service.name.clone());
        }
        let ingress = made.ui_ingress.as_ref().map(ResourceExt::name_any);
        if let Some(ingress) = ingress.and_then(|name| there(Kind::Ingress, &name)) {
            info.web_ui_ingress_name = Some(ingress.name.clone());
            info.web_ui_ingress_address = made.ui_url;
        }
        info
    }
}
