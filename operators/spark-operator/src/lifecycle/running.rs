//! The present run: follows its driver and executors.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use training_core::plan::draft::shorten;
use training_core::reasons::FailureReason;
use training_core::{Note, PodPhase};

use super::draft::{Draft, incremented, later};
use super::executors;
use super::observed::{Driver, Kind, Waiting};
use super::optional::cause;
use super::slim::NOT_STARTING;
use crate::api::State;

/// The usual maximum time to set up volumes and network. Units: seconds.
const STARTING: i64 = 120;
/// The longest quoted message, so that the remedy fits behind it. Units: bytes.
const MAX_QUOTE: usize = 1024;
/// The maximum number of a driver's mounted objects that a message names.
const MAX_NAMES: usize = 8;

impl Draft<'_> {
    /// Updates the state from the driver and the executors of the present run.
    pub(super) fn follow(&mut self) {
        self.track();
        let id = self.status.submission_id.as_deref().unwrap_or_default();
        let Some(driver) = self.drivers().find(|d| d.submission_id == id).cloned() else {
            return self.driver_missing();
        };
        let driver = &driver;
        let name = driver.name.clone();
        let starts = matches!(driver.phase, PodPhase::Pending | PodPhase::Running);
        if starts && driver.end.is_none() {
            self.create_missing_optional(driver);
        }
        self.record_web_ui(driver);
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
                self.set_message(disruption_of(driver));
            }
            return;
        }
        match to {
            State::Succeeding => {
                self.status.application_state.error_message = None;
                self.record_event(Note::normal(
                    "SparkDriverCompleted",
                    format!("Driver {name} completed"),
                ));
                self.status
                    .termination_time
                    .get_or_insert(Time(self.input.now));
            }
            State::Failing => {
                self.record_event(Note::warning(
                    "SparkDriverFailed",
                    format!("Driver {name} failed"),
                ));
                return self.fail(failure(driver));
            }
            State::Running => {
                self.record_event(Note::normal(
                    "SparkDriverRunning",
                    format!("Driver {name} is running"),
                ));
                self.set_message(disruption_of(driver));
            }
            _ => {
                let text = format!("Driver {name} in unknown state");
                self.record_event(Note::warning("SparkDriverUnknown", text));
            }
        }
        self.enter(to);
    }

    /// Handles a driver that doesn't start: reports why it waits, and fails the run if it can't start.
    fn pending(&mut self, driver: &Driver) {
        let limit = |reason: &str| match reason {
            "InvalidImageName" => Some(0),
            "ErrImagePull" | "ImagePullBackOff" | "CreateContainerConfigError" | NOT_STARTING => {
                Some(self.input.rules.most_waiting)
            }
            _ => None,
        };
        let until = driver.waiting.as_ref().and_then(|waiting| {
            let seconds = limit(&waiting.reason)?;
            Some(later(waiting.since, seconds))
        });
        // Every pod starts without volumes and network.
        let reported = |waiting: &&Waiting| {
            let from = later(waiting.since, STARTING);
            let over = until.is_some_and(|until| until <= self.input.now);
            waiting.reason != NOT_STARTING || from <= self.input.now || over
        };
        let Some(waiting) = driver.waiting.as_ref().filter(reported) else {
            if let Some(waiting) = &driver.waiting {
                let from = later(waiting.since, STARTING);
                self.requeue_at(until.map_or(from, |until| until.min(from)));
            }
            if self.status.application_state.state == State::Submitted {
                self.set_message(None);
            }
            return;
        };
        let mut text = format!(
            "driver pod {}: {}: {}",
            driver.name,
            waiting.reason,
            shorten(&waiting.message, MAX_QUOTE)
        );
        if waiting.reason == NOT_STARTING {
            text.push_str(&self.mounted(driver));
        }
        match until {
            Some(until) if until <= self.input.now => {
                let note = format!("Driver {} failed", driver.name);
                self.record_event(Note::warning("SparkDriverFailed", note));
                // Otherwise it could still start, and run beside the next driver.
                self.delete_pod(&driver.name, driver.uid, driver.terminating);
                self.fail(text);
            }
            _ => {
                self.set_waiting(match waiting.reason.as_str() {
                    // The kubelet alternates between both.
                    "ErrImagePull" => "ImagePullBackOff",
                    reason => reason,
                });
                self.set_message(Some(text));
                if let Some(until) = until {
                    self.requeue_at(until);
                }
            }
        }
    }

    /// Names the ConfigMaps and Secrets that users must create for the driver, and how to find the missing one: the operator may
    /// not read them.
    fn mounted(&self, driver: &Driver) -> String {
        // The names of another operator's objects are unknown.
        let ours = driver.digest.is_some();
        let submission = ours
            .then(|| self.build(&driver.submission_id).ok())
            .flatten();
        let volumes = submission.and_then(|submission| submission.driver.spec?.volumes);
        let ours = |name: &str| {
            let mut objects = self.input.observed.objects.iter();
            objects.any(|o| o.kind == Kind::ConfigMap && o.name == name)
        };
        let named = volumes.iter().flatten().filter_map(|volume| {
            let (kind, name, optional) = match (&volume.config_map, &volume.secret) {
                (Some(map), _) => ("ConfigMap", &map.name, map.optional),
                (_, Some(secret)) => ("Secret", secret.secret_name.as_ref()?, secret.optional),
                _ => return None,
            };
            let theirs = optional != Some(true) && !ours(name);
            theirs.then(|| format!("{kind} {name}"))
        });
        let mut named: Vec<String> = named.collect();
        let more = named.len().saturating_sub(MAX_NAMES);
        if more > 0 {
            named.truncate(MAX_NAMES);
            named.push(format!("and {more} more"));
        }
        let pod = &driver.name;
        let which = match &named[..] {
            [] => String::new(),
            named => format!("; it mounts {}, which must exist", named.join(", ")),
        };
        format!("{which}; see the events of `kubectl describe pod {pod}`")
    }

    /// Handles a missing driver of the present run.
    fn driver_missing(&mut self) {
        let rules = self.input.rules;
        let since = self.status.last_submission_attempt_time.as_ref();
        let until = since.map(|time| later(time.0, rules.grace));
        if self.status.application_state.state == State::Submitted
            && let Some(until) = until.filter(|until| *until > self.input.now)
        {
            return self.requeue_at(until);
        }
        let pod = self.status.driver_info.pod_name.clone().unwrap_or_default();
        let text = format!(
            "Driver pod {pod} not found after grace period {}, marking application as Failing",
            duration(rules.grace)
        );
        self.record_event(Note::warning("SparkDriverNotFound", text));
        self.plan.unobserved_child = Some(pod).filter(|pod| !pod.is_empty());
        // If a node is lost, nobody observes how its pods end.
        let state = &self.status.application_state;
        let disruption = state.error_message.as_deref().and_then(cause);
        let why = match disruption.filter(|_| state.state == State::Running) {
            Some(disruption) => format!("driver pod not found; {disruption}"),
            None => DRIVER_NOT_FOUND.to_owned(),
        };
        self.fail(why);
    }

    /// Fails the present run.
    fn fail(&mut self, why: String) {
        let now = Time(self.input.now);
        let status = &mut self.status;
        status.failed_runs = Some(incremented(status.failed_runs));
        status.last_failure_time = Some(now.clone());
        status.termination_time.get_or_insert(now);
        status.application_state.error_message = Some(why);
        self.enter(State::Failing);
    }

    pub(super) fn track(&mut self) {
        let asked = self.spec.executor.instances;
        let most = self.input.rules.most_executors;
        let notes = executors::track(
            &mut self.status,
            &self.input.observed.executors,
            asked,
            most,
        );
        self.plan.notes.extend(notes);
    }
}

/// The published message for a driver's failure, with the disruption or the last output.
fn failure(driver: &Driver) -> String {
    let mut text = match &driver.end {
        Some(end) => format!(
            "driver container failed with ExitCode: {}, Reason: {}",
            end.code, end.reason
        ),
        None => "driver container status missing".to_owned(),
    };
    if let Some(disruption) = disruption_of(driver) {
        text = format!("{text}; {disruption}");
    }
    let last_words = driver.end.as_ref().map(|end| end.message.trim());
    if let Some(last_words) = last_words.filter(|last_words| !last_words.is_empty()) {
        text = format!("{text}\n{last_words}");
    }
    text
}

/// Why a driver was disrupted, or is about to be.
fn disruption_of(driver: &Driver) -> Option<String> {
    let (reason, message) = driver.disruption.as_ref()?;
    let message = shorten(message, MAX_QUOTE);
    Some(format!("{DISRUPTED}{reason}: {message}"))
}

const DISRUPTED: &str = "the pod was taken away: ";
const DRIVER_NOT_FOUND: &str = "driver pod not found";

/// Reads the reason of a run's failure from its message.
pub(super) fn reason_of(error: &str) -> FailureReason {
    let word = |rest: &str| {
        let is_end = |c: char| !c.is_ascii_alphanumeric();
        FailureReason::find(rest.split(is_end).next().unwrap_or_default())
    };
    if let Some((_, rest)) = error.split_once(DISRUPTED) {
        match word(rest) {
            FailureReason::OTHER => FailureReason::DISRUPTED,
            reason => reason,
        }
    } else if error.starts_with(DRIVER_NOT_FOUND) {
        FailureReason::DISRUPTED
    } else {
        let ended = error.split_once(", Reason: ");
        ended.map_or(FailureReason::OTHER, |(_, rest)| word(rest))
    }
}

/// Formats a duration as the published operator does. Units of `seconds`: seconds.
fn duration(seconds: i64) -> String {
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{rest}s"),
        (0, _) => format!("{minutes}m{rest}s"),
        _ => format!("{hours}h{minutes}m{rest}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_of_a_failed_run_has_a_reason() {
        for (error, reason) in [
            (
                "driver container failed with ExitCode: 137, Reason: OOMKilled\nout of memory",
                "OOMKilled",
            ),
            (
                "driver container failed with ExitCode: 1, Reason: Error",
                "Error",
            ),
            (
                "driver container failed with ExitCode: 143, Reason: Error; the pod was taken away: Evicted: disk",
                "Evicted",
            ),
            (
                "driver container status missing; the pod was taken away: DeletionByTaintManager: ",
                "Disrupted",
            ),
            ("driver pod not found", "Disrupted"),
            (
                "driver container failed with ExitCode: 1, Reason: BlueMoon",
                "Other",
            ),
            (
                "driver pod pi-driver: ImagePullBackOff: no such image",
                "Other",
            ),
        ] {
            assert_eq!(reason_of(error).as_str(), reason, "{error}");
        }
    }
}
