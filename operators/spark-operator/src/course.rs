//! The life cycle of an application: decides its next state, which objects to create and delete, and when to reconcile again.
//!
//! [`plan`] is pure and total. It decides from observed state, never from past actions, so a reconcile after an interruption
//! finds what is missing. A submission is recorded once its driver is observed. Its id derives from recorded state
//! ([`crate::digest::submission_id`]), so retrying an interrupted submission yields the same id.
//!
//! - [`seen`]: the observed state of an application's pods and objects
//! - `beside`: objects that a run doesn't depend on
//! - [`again`]: retries and their backoff
//! - [`executors`]: executors in the status
//! - [`look`]: the fields read from pods and other objects, [`mask`]: secrets to hide from them
//! - [`step`]: the plan

pub mod again;
mod begin;
mod beside;
mod draft;
pub mod executors;
mod follow;
pub mod look;
pub mod mask;
pub mod seen;
pub mod step;

use training_api::labels::RESTART_REQUEST;
use training_core::patch::merge_patch;
use training_core::reasons::FailureReason;
use training_core::{Note, StatusWrite, Transition, Urgency};

use crate::api::{SparkApplicationStatus, State};
use crate::{defaults, label};
use again::Again;
use begin::PlacementState;
use draft::{Course, follows_its_spec};
use seen::Driver;
use step::Plan;

pub use draft::{PlanInput, Rules};

/// Decides the next steps for one application.
pub fn plan(inquiry: PlanInput<'_>) -> Plan {
    let app = inquiry.app;
    let old = app.status.clone().unwrap_or_default();
    let spec = defaults::apply(&app.spec, &inquiry.settings.defaults);
    let mut course = Course {
        ask: inquiry,
        spec: &spec,
        status: old.clone(),
        plan: Plan::default(),
    };
    if app.metadata.deletion_timestamp.is_some() {
        // A finalizer may keep the application for long, and its run must not continue meanwhile.
        course.remove_all();
        return Plan {
            steps: course.plan.steps,
            wake: course.plan.wake,
            ..Plan::default()
        };
    }
    course.report_forged_drivers();
    course.decide();
    course.cut_message();
    course.set_stalled();
    let Course {
        status, mut plan, ..
    } = course;
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

impl Course<'_> {
    fn decide(&mut self) {
        // Whoever still waits says so below.
        self.status.waiting = None;
        let state = self.status.application_state.state.clone();
        let rests = matches!(state, State::Suspending | State::Suspended);
        if self.spec.suspend == Some(true) && !state.is_terminal() && !rests {
            return self.go(State::Suspending);
        }
        if self.restarts(&state) {
            let requested = Transition::Restarted(FailureReason::REQUESTED);
            self.plan.transitions.push(requested);
            self.count_anew();
            return self.go(State::Invalidating);
        }
        if follows_its_spec(&state) {
            let change = self.change(&state);
            let placed = self.place(change, &state);
            if placed == PlacementState::No {
                // Also here, because it may be suspended before it runs again.
                self.count_anew();
                return self.go(State::Invalidating);
            }
            if placed == PlacementState::Yes {
                self.keep_record(&state);
            }
        }
        match state {
            State::New | State::PendingRerun | State::Resuming => self.begin(),
            State::Submitted | State::Running | State::Unknown => self.follow(),
            State::Succeeding => {
                if again::after_success(&self.policy()) {
                    self.status.failed_runs = None;
                    self.rerun();
                } else {
                    self.go(State::Completed);
                }
            }
            State::Failing => match again::run(&self.policy(), &self.status) {
                Again::Never => self.go(State::Failed),
                Again::At(at) if at <= self.ask.now => {
                    let error = self.status.application_state.error_message.as_deref();
                    let reason = follow::reason_of(error.unwrap_or_default());
                    self.plan.transitions.push(Transition::Restarted(reason));
                    self.rerun();
                }
                Again::At(at) => self.wake(at),
            },
            State::SubmissionFailed => self.after_submission(),
            State::Invalidating => {
                if self.remove_all() {
                    self.reset();
                    self.count_anew();
                    self.go(State::PendingRerun);
                }
            }
            State::Suspending => {
                if self.remove_all() {
                    let ended = self.status.termination_time.clone();
                    self.reset();
                    self.status.termination_time = ended;
                    self.go(State::Suspended);
                }
            }
            State::Suspended => {
                if self.remove_all() && self.spec.suspend != Some(true) {
                    self.go(State::Resuming);
                }
            }
            State::Completed | State::Failed => self.rest(),
            // An unpublished state: its meaning is unknown.
            State::Other(_) => {}
        }
    }

    /// Returns true if the user requests a restart, and the present run's driver was created before that.
    fn restarts(&mut self, state: &State) -> bool {
        let Some(request) = label::restart_request(self.ask.app) else {
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
            State::Failing => again::run(&self.policy(), &self.status) != Again::Never,
            _ => false,
        };
        if restarts {
            let text = format!(
                "SparkApplication {} is restarting because its annotation {RESTART_REQUEST} has a new value",
                self.name()
            );
            self.tell(Note::normal("SparkApplicationRestarting", text));
        }
        restarts
    }
}
