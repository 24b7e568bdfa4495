//! The present run: what its driver and its executors say.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use training_core::{Note, PodPhase};

use super::beside::cause;
use super::draft::{Course, later, more};
use super::executors;
use super::seen::Driver;
use crate::api::State;

impl Course<'_> {
    /// Looks at the driver and the executors of the present run.
    pub(super) fn follow(&mut self) {
        self.track();
        let id = self.status.submission_id.as_deref().unwrap_or_default();
        let drivers = &self.ask.seen.drivers;
        let Some(driver) = drivers.iter().find(|d| d.submission_id == id) else {
            return self.missing();
        };
        let name = driver.name.clone();
        let starts = matches!(driver.phase, PodPhase::Pending | PodPhase::Running);
        if starts && driver.end.is_none() {
            self.complete(driver);
        }
        let to = match (driver.phase, &driver.end) {
            (PodPhase::Running | PodPhase::Failed, Some(end)) if end.code == 0 => State::Succeeding,
            (PodPhase::Succeeded, _) => State::Succeeding,
            (PodPhase::Running, Some(_)) | (PodPhase::Failed, _) => State::Failing,
            (PodPhase::Running, None) => State::Running,
            (PodPhase::Pending, _) => return self.pending(driver),
            (PodPhase::Unknown, _) => State::Unknown,
        };
        if to == self.status.application_state.state {
            if to == State::Running {
                self.show(taken_away(driver));
            }
            return;
        }
        match to {
            State::Succeeding => {
                self.status.application_state.error_message = None;
                self.tell(Note::normal(
                    "SparkDriverCompleted",
                    format!("Driver {name} completed"),
                ));
                self.status
                    .termination_time
                    .get_or_insert(Time(self.ask.now));
            }
            State::Failing => {
                self.tell(Note::warning(
                    "SparkDriverFailed",
                    format!("Driver {name} failed"),
                ));
                return self.fail(failure(driver));
            }
            State::Running => {
                self.tell(Note::normal(
                    "SparkDriverRunning",
                    format!("Driver {name} is running"),
                ));
                self.show(taken_away(driver));
            }
            _ => {
                let text = format!("Driver {name} in unknown state");
                self.tell(Note::warning("SparkDriverUnknown", text));
            }
        }
        self.go(to);
    }

    /// A driver that doesn't start: what it waits for is said; what it will never get ends the run.
    fn pending(&mut self, driver: &Driver) {
        let Some(waits) = &driver.waits else {
            if self.status.application_state.state == State::Submitted {
                self.show(None);
            }
            return;
        };
        let text = format!(
            "driver pod {}: {}: {}",
            driver.name, waits.reason, waits.message
        );
        let limit = match waits.reason.as_str() {
            "InvalidImageName" => Some(0),
            "ErrImagePull" | "ImagePullBackOff" | "CreateContainerConfigError" => {
                Some(self.ask.rules.most_waiting)
            }
            _ => None,
        };
        let until = limit.map(|seconds| later(waits.since, seconds));
        match until {
            Some(until) if until <= self.ask.now => {
                let note = format!("Driver {} failed", driver.name);
                self.tell(Note::warning("SparkDriverFailed", note));
                // What it lacks may come, and then it would run beside the next one.
                self.delete_pod(&driver.name, driver.uid, driver.leaving);
                self.fail(text);
            }
            _ => {
                self.show(Some(text));
                if let Some(until) = until {
                    self.wake(until);
                }
            }
        }
    }

    /// The driver of the present run is gone.
    fn missing(&mut self) {
        let rules = self.ask.rules;
        let since = self.status.last_submission_attempt_time.as_ref();
        let until = since.map(|time| later(time.0, rules.grace));
        if self.status.application_state.state == State::Submitted
            && let Some(until) = until.filter(|until| *until > self.ask.now)
        {
            return self.wake(until);
        }
        let pod = self.status.driver_info.pod_name.clone().unwrap_or_default();
        let text = format!(
            "Driver pod {pod} not found after grace period {}, marking application as Failing",
            duration(rules.grace)
        );
        self.tell(Note::warning("SparkDriverNotFound", text));
        self.plan.lost = Some(pod).filter(|pod| !pod.is_empty());
        // Of a pod whose node is lost nobody sees the end.
        let state = &self.status.application_state;
        let taken = state.error_message.as_deref().and_then(cause);
        let why = match taken.filter(|_| state.state == State::Running) {
            Some(taken) => format!("driver pod not found; {taken}"),
            None => "driver pod not found".to_owned(),
        };
        self.fail(why);
    }

    /// The present run has failed.
    fn fail(&mut self, why: String) {
        let now = Time(self.ask.now);
        let status = &mut self.status;
        status.failed_runs = Some(more(status.failed_runs));
        status.last_failure_time = Some(now.clone());
        status.termination_time.get_or_insert(now);
        status.application_state.error_message = Some(why);
        self.go(State::Failing);
    }

    pub(super) fn track(&mut self) {
        let asked = self.spec.executor.instances;
        let most = self.ask.rules.most_executors;
        let notes = executors::track(&mut self.status, &self.ask.seen.executors, asked, most);
        self.plan.notes.extend(notes);
    }
}

/// The published text of a driver's failure, with what took it or what it said last.
fn failure(driver: &Driver) -> String {
    let mut text = match &driver.end {
        Some(end) => format!(
            "driver container failed with ExitCode: {}, Reason: {}",
            end.code, end.reason
        ),
        None => "driver container status missing".to_owned(),
    };
    if let Some(taken) = taken_away(driver) {
        text = format!("{text}; {taken}");
    }
    let said = driver.end.as_ref().map(|end| end.said.trim());
    if let Some(said) = said.filter(|said| !said.is_empty()) {
        text = format!("{text}\n{said}");
    }
    text
}

/// What took a driver away, or is about to.
fn taken_away(driver: &Driver) -> Option<String> {
    let (reason, message) = driver.taken.as_ref()?;
    Some(format!("the pod was taken away: {reason}: {message}"))
}

/// A duration as the published operator writes it. Units of `seconds`: seconds.
fn duration(seconds: i64) -> String {
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{rest}s"),
        (0, _) => format!("{minutes}m{rest}s"),
        _ => format!("{hours}h{minutes}m{rest}s"),
    }
}
