//! Restarts all replicas of a job together: after a failure, or because the user requests it.

use kube::Resource;
use training_api::{ConditionType, labels};

use super::draft::Draft;
use super::{edits, gang};
use crate::kind::framework::{Framework, JobCx, TrainingJob};
use crate::model::durable_state::DurableState;
use crate::model::notes::Note;
use crate::model::observed::Observed;
use crate::model::reasons::FailureReason;
use crate::model::step::{Transition, Urgency};
use crate::model::template_hashes::TemplateHashes;

/// Starts a new gang attempt. It makes the pods outdated, and the next reconcile replaces them.
pub fn all<F: Framework>(
    framework: &F,
    cx: &JobCx<'_, F::Job>,
    observed: &Observed,
    draft: &mut Draft,
) {
    draft.state.next_gang_attempt(observed.newest_gang());
    edits::renew(framework, cx, draft);
    gang::begin(cx, observed, draft);
    draft.state.recreated = draft.state.recreated.saturating_add(cx.roles.total());
}

/// Returns true if the user requests a restart of all replicas that the present run has not followed. A run that starts now follows it.
pub fn is_requested<J: TrainingJob>(cx: &JobCx<'_, J>, draft: &Draft) -> bool {
    let request = edits::request(cx);
    let hashes = draft.state.made_from.as_ref();
    let followed = hashes.and_then(TemplateHashes::request);
    !draft.starts && request.is_some() && request != followed
}

/// Stores the request as followed: the run that starts after this needs no restart.
pub(super) fn store_restart_request<J: TrainingJob>(cx: &JobCx<'_, J>, state: &mut DurableState) {
    if let Some(hashes) = &mut state.made_from {
        hashes.set_request(edits::request(cx));
    }
}

/// Restarts all replicas, as the user requests.
///
/// The status stores the request, with the hashes of the new run, before any pod is deleted. So each request restarts the job once. It
/// costs nothing of the backoff limit.
pub fn on_request<F: Framework>(
    framework: &F,
    cx: &JobCx<'_, F::Job>,
    observed: &Observed,
    draft: &mut Draft,
) {
    all(framework, cx, observed, draft);
    draft
        .transitions
        .push(Transition::Restarted(FailureReason::REQUESTED));
    if let Some(last) = &mut draft.state.gang_restart {
        // The backoff is for failures: the pods of this restart don't wait for it.
        last.settled = last.attempt;
    }
    let kind = F::Job::kind(&());
    let message = format!(
        "{kind} {} is restarting because its annotation {} has a new value.",
        cx.name,
        labels::RESTART_REQUEST
    );
    let reason = format!("{kind}Restarting");
    draft.set(ConditionType::Restarting, true, &reason, &message);
    draft.notes.push(Note::normal(reason, message));
    draft.urgency(Urgency::First);
}
