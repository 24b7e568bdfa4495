//! What becomes of an application next: its state, what is made, what is removed, and when to look again.
//!
//! [`plan`] is pure and total. It goes by what is there, never by what happened: whatever was interrupted, the next look finds what
//! is missing. A submission is recorded once its driver is seen, and its id follows from what was recorded before
//! ([`crate::digest::submission_id`]), so that one that was cut off in the middle is the same when it is tried again.
//!
//! - [`seen`]: what is known beside the application
//! - `beside`: what a run goes on without
//! - [`again`]: what is tried again, and when
//! - [`executors`]: what the status says of executors
//! - [`look`]: what is read of pods and other objects, [`mask`]: what is not told of them
//! - [`step`]: what is to be done

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

use training_core::patch::merge_patch;
use training_core::{StatusWrite, Urgency};

use crate::api::{SparkApplicationStatus, State};
use crate::defaults;
use again::Again;
use begin::Placed;
use draft::{Course, follows_its_spec};
use step::Plan;

pub use draft::{Inquiry, Rules};

/// Decides what is to be done for one application.
pub fn plan(inquiry: Inquiry<'_>) -> Plan {
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
        // Somebody's finalizer may keep it for long, and its run must not go on meanwhile.
        course.remove_all();
        return Plan {
            steps: course.plan.steps,
            wake: course.plan.wake,
            ..Plan::default()
        };
    }
    course.tell_impostors();
    course.decide();
    course.cut_message();
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
            Urgency::CanWait
        },
    })
}

impl Course<'_> {
    fn decide(&mut self) {
        let state = self.status.application_state.state.clone();
        let rests = matches!(state, State::Suspending | State::Suspended);
        if self.spec.suspend == Some(true) && !state.is_terminal() && !rests {
            return self.go(State::Suspending);
        }
        if follows_its_spec(&state) {
            let change = self.change(&state);
            let placed = self.place(change, &state);
            if placed == Placed::No {
                // Also here, for it may be suspended before it runs again.
                self.count_anew();
                return self.go(State::Invalidating);
            }
            if placed == Placed::Yes {
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
                Again::At(at) if at <= self.ask.now => self.rerun(),
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
            // Somebody else's word: nobody knows what it asks for.
            State::Other(_) => {}
        }
    }
}
