//! Submissions: what is made, what is recorded, and what is tried again.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use training_core::Note;

use super::again::{self, Again};
use super::beside;
use super::draft::{Course, SLOW, later, more};
use super::seen::{Driver, Kind, Object, Refusal, Refused};
use super::step::{Make, Step};
use crate::api::{DriverInfo, State};
use crate::digest::{self, Change};
use crate::submission::{Inputs, Submission, submit};

/// Whether executors that are still to be made go where the spec says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placed {
    Yes,
    /// When what is planned is done.
    Soon,
    /// Only with another run.
    No,
}

impl Course<'_> {
    /// Submits, unless that was done already.
    pub(super) fn begin(&mut self) {
        let uid = self.ask.app.metadata.uid.clone().unwrap_or_default();
        let former = self.status.submission_id.clone();
        let id = digest::submission_id(&uid, former.as_deref(), self.ask.digest);
        // Where nothing is recorded, a driver of ours is what was submitted: the spec may have been edited since. So it is where the
        // edit was one of where executors run. One that is on its way out was submitted as well.
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
                return self.wait(&refused.message, refused.at);
            }
        }
        if self.status.failed_submissions.is_some_and(|n| n > 0) {
            match again::submission(&self.policy(), &self.status) {
                Again::Never => return self.go(State::SubmissionFailed),
                Again::At(at) if at > self.ask.now => return self.wake(at),
                Again::At(_) => {}
            }
        }
        match self.made(&id) {
            Ok(made) => self.make(made, &id),
            Err(text) => self.refuse(&text, Refusal::Hopeless),
        }
    }

    /// Something that will pass is in the way. It is told once, and it is looked at again some time later.
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

    /// Sees to it that executors which are still to be made go where the spec says, if the gate for that is open.
    ///
    /// A driver reads its template again for each executor. What the template says is judged by itself, not by what is recorded: a
    /// change may have been made and not been recorded, and the edit been taken back.
    pub(super) fn place(&mut self, change: Change, state: &State) -> Placed {
        match change {
            Change::Run => return Placed::No,
            Change::Placement if !self.ask.rules.partial_restart => return Placed::No,
            Change::Placement | Change::None => {}
        }
        let runs = matches!(state, State::Submitted | State::Running | State::Unknown);
        let edited = self.status.observed_generation != self.generation();
        if !(runs && edited && self.ask.rules.partial_restart) {
            return Placed::Yes;
        }
        let name = self.name();
        let id = self.status.submission_id.clone().unwrap_or_default();
        let objects = self.ask.seen.objects.iter();
        let mut objects = objects.filter(|o| o.submission_id == id && !o.leaving);
        let there = objects.find_map(|o| Some((o, o.placement.as_ref()?)));
        let Some((object, placement)) = there else {
            // One that another operator has made, or none at all: nothing leads to these executors.
            return match change {
                Change::Placement => Placed::No,
                Change::None | Change::Run => Placed::Yes,
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
            return Placed::Yes;
        }
        match self.made(&id) {
            Ok(made) => {
                self.plan.steps.push(Step::Change {
                    map: Box::new(made.executor_template),
                    uid: object.uid,
                    resource_version: placement.resource_version.clone(),
                });
                self.plan.again = true;
                Placed::Soon
            }
            Err(text) => {
                let text = format!("SparkApplication {name}: the edit has no effect: {text}");
                self.tell(Note::warning("SparkApplicationSpecUpdateFailed", text));
                Placed::Yes
            }
        }
    }

    /// What of a submission is not there yet, the driver last.
    fn make(&mut self, mut made: Submission, id: &str) {
        let beside = beside::take(&mut made);
        let seen = self.ask.seen;
        let there = |make: &Make| {
            let (kind, name) = make.id();
            let same = |o: &&Object| (o.kind, &o.name) == (kind, &name);
            seen.objects.iter().find(same)
        };
        let in_the_way = |o: &Object| o.leaving || o.submission_id != id;
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
        // Of what the driver runs without, one that is on its way out is not waited for.
        let about_to_go = |o: &Object| o.submission_id != id && !o.leaving;
        if all.iter().filter_map(there).any(in_the_way)
            || beside.iter().filter_map(there).any(about_to_go)
        {
            // Names that don't change with the submission are free when the former objects are gone.
            return;
        }
        let beside = beside.into_iter().filter(|make| there(make).is_none());
        let beside: Vec<Step> = beside.map(Step::MakeBeside).collect();
        let missing: Vec<Step> = all
            .into_iter()
            .filter(|make| there(make).is_none())
            .map(Step::Make)
            .collect();
        self.plan.steps.extend(missing);
        self.plan.steps.push(Step::MakeDriver(Box::new(driver)));
        self.plan.steps.extend(beside);
        if self.status.failed_submissions.is_none() && self.ask.seen.refused.is_none() {
            self.plan.notes.extend(notes);
        }
        self.plan.again = true;
    }

    /// The refusal of the attempt that is due now; those that are counted already are over.
    fn refused(&self, id: &str) -> Option<&Refused> {
        let attempts = self.status.submission_attempts.unwrap_or(0);
        let refused = self.ask.seen.refused.as_ref();
        refused.filter(|r| r.attempts == attempts && r.submission_id == id)
    }

    /// Counts a submission that was refused.
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
            (_, Again::At(at)) => self.wake(at),
        }
    }

    /// A submission failed. Ours is written when nothing is left to be tried; another operator's may have tries left.
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
        self.go(State::PendingRerun);
    }

    /// The driver is there: that is what was submitted.
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
        // With the same write: how many executors it is to have is known already.
        self.track();
    }

    pub(super) fn driver_info(&mut self, driver: &Driver) -> DriverInfo {
        let mut info = DriverInfo {
            pod_name: Some(driver.name.clone()),
            ..DriverInfo::default()
        };
        let Ok(made) = self.made(&driver.submission_id) else {
            // It was edited since, into something that can't run; that is told when it is to run again.
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
