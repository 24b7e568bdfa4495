//! The life cycle of an application: decides its next state, which objects to create and delete, and when to reconcile again.
//!
//! [`plan`] is pure and total. It decides from observed state, never from past actions, so a reconcile after an interruption
//! finds what is missing. A submission is recorded once its driver is observed. Its id derives from recorded state
//! ([`crate::digest::submission_id`]), so retrying an interrupted submission yields the same id.
//!
//! - [`observed`]: the observed state of an application's pods and objects
//! - `submitting`, `running`: what happens before and during a run
//! - `optional`: objects that a run doesn't depend on
//! - [`retry`]: retries and their backoff
//! - [`executors`]: executors in the status
//! - [`slim`]: the fields read from pods and other objects, [`mask`]: secrets to hide from them
//! - [`step`]: the plan

mod draft;
pub mod executors;
pub mod mask;
pub mod observed;
mod optional;
pub mod retry;
mod running;
pub mod slim;
pub mod step;
mod submitting;

use training_api::labels::RESTART_REQUEST;
use training_core::patch::merge_patch;
use training_core::reasons::FailureReason;
use training_core::{Note, StatusWrite, Transition, Urgency};

use crate::api::{SparkApplicationStatus, State};
use crate::{defaults, label};
use draft::{Draft, follows_its_spec};
use observed::Driver;
use retry::Retry;
use step::Plan;
use submitting::PlacementState;

pub use draft::{PlanInput, Rules};

/// Decides the next steps for one application.
pub fn plan(input: PlanInput<'_>) -> Plan {
    let app = input.app;
    let old = app.status.clone().unwrap_or_default();
    let spec = defaults::apply(&app.spec, &input.settings.defaults);
    let mut draft = Draft {
        input,
        spec: &spec,
        status: old.clone(),
        plan: Plan::default(),
    };
    if app.metadata.deletion_timestamp.is_some() {
        // A finalizer may keep the application for long, and its run must not continue meanwhile.
        draft.remove_all();
        return Plan {
            steps: draft.plan.steps,
            requeue_at: draft.plan.requeue_at,
            ..Plan::default()
        };
    }
    draft.report_forged_drivers();
    draft.decide();
    draft.truncate_message();
    draft.set_stalled();
    let Draft {
        status, mut plan, ..
    } = draft;
    plan.status = written(&old, status);
    plan
}

fn written(
    old: &SparkApplicationStatus,
    next: SparkApplicationStatus,
) -> Option<StatusWrite<SparkApplicationStatus>> {
    let value = |status| serde_json::to_value(status).unwrap_or_default();
    let patch = merge_patch(&value(old), &value(&next))?;
    let decides = old.application_state != next.application_state
        || old.submission_id != next.submission_id
        || old.last_failure_time != next.last_failure_time;
    Some(StatusWrite {
        next,
        patch,
        urgency: if decides {
            Urgency::First
        } else {
            Urgency::Batched
        },
    })
}

impl Draft<'_> {
    fn decide(&mut self) {
        // Whoever still waits says so below.
        self.status.waiting = None;
        let state = self.status.application_state.state.clone();
        let rests = matches!(state, State::Suspending | State::Suspended);
        if self.spec.suspend == Some(true) && !state.is_terminal() && !rests {
            return self.enter(State::Suspending);
        }
        if self.is_restart_requested(&state) {
            let requested = Transition::Restarted(FailureReason::REQUESTED);
            self.plan.transitions.push(requested);
            self.reset_counts();
            return self.enter(State::Invalidating);
        }
        if follows_its_spec(&state) {
            let change = self.change(&state);
            let placed = self.apply_placement(change, &state);
            if placed == PlacementState::No {
                // Also here, because it may be suspended before it runs again.
                self.reset_counts();
                return self.enter(State::Invalidating);
            }
            if placed == PlacementState::Yes {
                self.keep_record(&state);
            }
        }
        match state {
            State::New | State::PendingRerun | State::Resuming => self.submit(),
            State::Submitted | State::Running | State::Unknown => self.follow(),
            State::Succeeding => {
                if retry::after_success(&self.policy()) {
                    self.status.failed_runs = None;
                    self.rerun();
                } else {
                    self.enter(State::Completed);
                }
            }
            State::Failing => match retry::after_failed_run(&self.policy(), &self.status) {
                Retry::Never => self.enter(State::Failed),
                Retry::At(at) if at <= self.input.now => {
                    let error = self.status.application_state.error_message.as_deref();
                    let reason = running::reason_of(error.unwrap_or_default());
                    self.plan.transitions.push(Transition::Restarted(reason));
                    self.rerun();
                }
                Retry::At(at) => self.requeue_at(at),
            },
            State::SubmissionFailed => self.continue_after_failed_submission(),
            State::Invalidating => {
                if self.remove_all() {
                    self.reset_run();
                    self.reset_counts();
                    self.enter(State::PendingRerun);
                }
            }
            State::Suspending => {
                if self.remove_all() {
                    let ended = self.status.termination_time.clone();
                    self.reset_run();
                    self.status.termination_time = ended;
                    self.enter(State::Suspended);
                }
            }
            State::Suspended => {
                if self.remove_all() && self.spec.suspend != Some(true) {
                    self.enter(State::Resuming);
                }
            }
            State::Completed | State::Failed => self.clean_up(),
            // An unpublished state: its meaning is unknown.
            State::Other(_) => {}
        }
    }

    /// Returns true if the user requests a restart, and the present run's driver was created before that.
    fn is_restart_requested(&mut self, state: &State) -> bool {
        let Some(request) = label::restart_request(self.input.app) else {
            return false;
        };
        let id = self.status.submission_id.as_deref().unwrap_or_default();
        let is_former =
            |d: &&Driver| d.submission_id == id && d.restart_request.as_ref() != Some(&request);
        let Some(driver) = self.drivers().find(is_former) else {
            return false;
        };
        let ended = driver.phase.has_ended() || driver.end.is_some();
        let restarts = match state {
            State::Submitted | State::Running | State::Unknown => !ended,
            // The result of a run that has ended counts, unless it is retried.
            State::Failing => retry::after_failed_run(&self.policy(), &self.status) != Retry::Never,
            _ => false,
        };
        if restarts {
            let text = format!(
                "SparkApplication {} is restarting because its annotation {RESTART_REQUEST} has a new value",
                self.name()
            );
            self.record_event(Note::normal("SparkApplicationRestarting", text));
        }
        restarts
    }
}
