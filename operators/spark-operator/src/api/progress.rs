//! How far an application or a schedule is, from its status.

use training_core::reasons::WaitingReason;
use training_core::{Phase, Progress};

use super::scheduled::ScheduledSparkApplicationStatus;
use super::state::{ScheduleState, State};
use super::status::SparkApplicationStatus;

impl SparkApplicationStatus {
    /// Returns the phase. An application with an error waits until it runs: for its next run, or for what the error names.
    pub fn phase(&self) -> Phase {
        let error = self.application_state.error_message.as_deref();
        let is_wrong = error.is_some_and(|text| !text.trim().is_empty());
        let waits = |reason| Phase::Waiting(WaitingReason::find(reason));
        match &self.application_state.state {
            State::Completed => Phase::Succeeded,
            State::Failed => Phase::Failed,
            State::Suspending | State::Suspended => Phase::Suspended,
            State::Failing => waits("PodFailed"),
            State::SubmissionFailed => waits("SubmissionRefused"),
            State::New
            | State::Submitted
            | State::PendingRerun
            | State::Resuming
            | State::Invalidating
                if is_wrong =>
            {
                waits(self.waiting.as_deref().unwrap_or_default())
            }
            State::New => Phase::NoStatus,
            State::Submitted | State::Resuming | State::Invalidating => Phase::Starting,
            State::PendingRerun => Phase::Restarting,
            State::Running | State::Succeeding | State::Unknown | State::Other(_) => Phase::Running,
        }
    }

    /// Reads the progress of the application. Only its first run since the last change of the spec counts as a start.
    pub fn progress(&self) -> Progress {
        let state = &self.application_state.state;
        let is_before = matches!(state, State::New | State::Submitted | State::Resuming);
        let is_rerun = self.execution_attempts > Some(1);
        // A run that nobody saw start says nothing about its start.
        let is_unseen = matches!(state, State::Succeeding | State::Unknown);
        let submitted = self.last_submission_attempt_time.as_ref();
        Progress {
            phase: self.phase(),
            has_run: is_rerun || !is_before,
            started: submitted.filter(|_| !is_unseen).map(|t| t.0),
            ended: self.termination_time.as_ref().map(|t| t.0),
        }
    }
}

impl ScheduledSparkApplicationStatus {
    /// Returns the phase of a schedule that is not suspended. It runs while it starts runs.
    pub fn phase(&self) -> Phase {
        match self.schedule_state {
            ScheduleState::New => Phase::NoStatus,
            ScheduleState::FailedValidation => Phase::Waiting(WaitingReason::find("InvalidSpec")),
            ScheduleState::Validating | ScheduleState::Scheduled | ScheduleState::Other(_) => {
                Phase::Running
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn status(state: &str, more: &Value) -> SparkApplicationStatus {
        let mut status = json!({"applicationState": {"state": state}});
        for (key, value) in more.as_object().unwrap() {
            status[key] = value.clone();
        }
        if let Some(error) = more.get("error") {
            status["applicationState"]["errorMessage"] = error.clone();
        }
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn every_state_has_a_phase() {
        let all = State::ALL.map(|state| {
            let phase = status(state.as_str(), &json!({})).phase().as_str();
            (state.as_str().to_owned(), phase)
        });
        let all: Vec<(&str, &str)> = all.iter().map(|(s, p)| (s.as_str(), *p)).collect();
        assert_eq!(
            all,
            [
                ("", "no_status"),
                ("SUBMITTED", "starting"),
                ("RUNNING", "running"),
                ("COMPLETED", "succeeded"),
                ("FAILED", "failed"),
                ("SUBMISSION_FAILED", "waiting"),
                ("PENDING_RERUN", "restarting"),
                ("INVALIDATING", "starting"),
                ("SUCCEEDING", "running"),
                ("FAILING", "waiting"),
                ("SUSPENDING", "suspended"),
                ("SUSPENDED", "suspended"),
                ("RESUMING", "starting"),
                ("UNKNOWN", "running"),
            ]
        );
    }

    #[test]
    fn an_application_with_an_error_waits_for_it() {
        let more = json!({"error": "driver pod d: Unschedulable: 0/1", "waiting": "Unschedulable"});
        let waits = Phase::Waiting(WaitingReason::find("Unschedulable"));
        assert_eq!(status("SUBMITTED", &more).phase(), waits);
        assert_eq!(status("RUNNING", &more).phase(), Phase::Running);
    }
}
