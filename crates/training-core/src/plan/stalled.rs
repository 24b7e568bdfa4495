//! The `Stalled` condition: why the job doesn't continue. It reports what the API server rejected, else what pods wait for, else
//! that nothing can end the job.
//!
//! Status writes are expensive for everybody. So the message stays the same while the problem does: it quotes the cluster as of the
//! first time, and updates the number of pods only after a while.

use std::borrow::Cow;
use std::fmt::Write as _;

use k8s_openapi::jiff::SignedDuration;
use training_api::{ConditionType, JobCondition};

use super::draft::{Draft, shorten};
use crate::kind::framework::{JobCx, TrainingJob};
use crate::model::conditions;
use crate::model::error::SpecError;
use crate::model::health::{Finding, find};
use crate::model::names;
use crate::model::notes::Note;
use crate::model::observed::Observed;
use crate::model::step::Urgency;
use crate::model::trouble::{Cause, Trouble};
use crate::model::view::PodView;

/// A message stays unchanged for this long, even if other pods become affected.
const REWORD_AFTER: SignedDuration = SignedDuration::from_secs(30);
/// The longest quote from the cluster in a message. Units: bytes.
const MAX_QUOTE: usize = 320;
/// The longest message. Units: bytes.
const MAX_MESSAGE: usize = 1024;
/// The maximum number of pods that a message names. It counts the others.
const MAX_NAMES: usize = 3;

/// The reason for a job that nothing can end.
const ENDLESS: &str = "NeverEnds";

/// Sets, updates or clears the condition.
pub(super) fn report<J: TrainingJob>(
    cx: &JobCx<'_, J>,
    observed: &Observed,
    endless: Option<&str>,
    draft: &mut Draft,
) {
    let known = draft
        .state
        .conditions
        .iter()
        .find(|c| c.holds(ConditionType::Stalled))
        .cloned();
    let is_known = |reason: &str| {
        known
            .as_ref()
            .is_some_and(|c| c.reason.as_deref() == Some(reason))
    };
    if let Some(stall) = &observed.stall {
        if !is_known(stall.reason) {
            begin(draft, stall.reason, &shorten(&stall.message, MAX_MESSAGE));
            draft.urgency(Urgency::Parallel);
        }
    } else if let Some((reason, message)) = draft.stall.take() {
        if !is_known(reason) {
            begin(draft, reason, &shorten(&message, MAX_MESSAGE));
            draft.urgency(Urgency::Parallel);
        } else if reason == INVALID_SPEC {
            restate(draft, &shorten(&message, MAX_MESSAGE));
        }
    } else if let Some(sentence) = of_pods(cx, observed, known.as_ref(), draft) {
        match &known {
            Some(condition) if is_known(sentence.reason) => reword(draft, condition, &sentence),
            Some(_) | None => begin(draft, sentence.reason, &sentence.whole),
        }
    } else if let Some(message) = endless {
        if !is_known(ENDLESS) {
            begin(draft, ENDLESS, &shorten(message, MAX_MESSAGE));
            draft.urgency(Urgency::Parallel);
        }
    } else if let Some(condition) = known {
        let reason = condition.reason.as_deref().unwrap_or("Resolved");
        draft.set(ConditionType::Stalled, false, reason, "The job continues.");
        draft.urgency(Urgency::Parallel);
    }
}

/// The reason for a job with an invalid spec.
const INVALID_SPEC: &str = "InvalidSpec";

/// Reports an invalid spec of a running job.
pub(super) fn by_spec(draft: &mut Draft, error: &SpecError) {
    let rest =
        "; running pods continue, and the job follows its spec again once the field is fixed";
    let message = shorten(&error.to_string(), MAX_MESSAGE - rest.len()) + rest;
    draft.stall = Some((INVALID_SPEC, message));
}

/// Does the same if the replicas can't be read from the spec.
pub(super) fn refuse(draft: &mut Draft, error: &SpecError) {
    by_spec(draft, error);
    let Some((reason, message)) = draft.stall.take() else {
        return;
    };
    let mut conditions = draft.state.conditions.iter();
    let known = conditions
        .find(|c| c.holds(ConditionType::Stalled))
        .cloned();
    if known.as_ref().and_then(|c| c.reason.as_deref()) == Some(reason) {
        restate(draft, &message);
    } else {
        begin(draft, reason, &message);
        draft.urgency(Urgency::Parallel);
    }
}

/// Updates the message after another edit that is still invalid.
fn restate(draft: &mut Draft, message: &str) {
    let conditions = &mut draft.state.conditions;
    if conditions::reword(conditions, ConditionType::Stalled, message, draft.now) {
        draft.notes.push(Note::warning(INVALID_SPEC, message));
        draft.urgency(Urgency::Parallel);
    }
}

fn begin(draft: &mut Draft, reason: &'static str, message: &str) {
    draft.set(ConditionType::Stalled, true, reason, message);
    draft.notes.push(Note::warning(reason, message));
}

/// Updates the message if other pods have the same problem: after a delay, and without another event.
fn reword(draft: &mut Draft, condition: &JobCondition, sentence: &Sentence) {
    let message = condition.message.as_deref().unwrap_or_default();
    if message.starts_with(&sentence.head) {
        return;
    }
    let told = condition.last_update_time.as_ref().map(|t| t.0);
    let due = told.and_then(|t| t.checked_add(REWORD_AFTER).ok());
    match due {
        Some(at) if at > draft.now => draft.requeue_after(at, 0),
        Some(_) | None => {
            conditions::reword(
                &mut draft.state.conditions,
                ConditionType::Stalled,
                &sentence.whole,
                draft.now,
            );
        }
    }
}

/// Describes what the pods of a job wait for.
struct Sentence {
    reason: &'static str,
    /// The part that doesn't change while the problem stays the same.
    head: String,
    /// The whole text.
    whole: String,
}

/// A pod with a problem.
struct Case<'a> {
    cause: Cause,
    role: usize,
    /// The name of a pod that is not a replica.
    name: Option<&'a str>,
    pod: &'a PodView,
}

impl Case<'_> {
    fn name(&self, job: &str) -> String {
        let replica = || names::replica(job, &self.pod.role, self.pod.index);
        self.name.map_or_else(replica, str::to_owned)
    }
}

fn of_pods<J: TrainingJob>(
    cx: &JobCx<'_, J>,
    observed: &Observed,
    known: Option<&JobCondition>,
    draft: &mut Draft,
) -> Option<Sentence> {
    let mut cases = Vec::new();
    let mut recovering = Vec::new();
    let own = observed.pods.iter().map(|pod| (None, pod));
    let made = observed.batch_pods.iter().map(|b| (Some(&*b.name), &b.pod));
    for (name, pod) in own.chain(made) {
        if pod.trouble.is_none() && pod.starts_since().is_none() {
            continue;
        }
        let role = cx.roles.by_label(&pod.role);
        let role_at = role.map_or(usize::MAX, |(at, _)| at);
        // A pod that is to be deleted is a problem only if it doesn't terminate. A pod that is not a replica is its owner's
        // business.
        let wanted = name.is_some()
            || role.is_some_and(|(_, r)| pod.index < r.replicas)
                && pod.attempt >= draft.state.attempt(&pod.role, pod.index)
                && !draft.state.has_finished(&pod.role, pod.index);
        if !pod.terminating && !wanted {
            continue;
        }
        let with = |cause| Case {
            cause,
            role: role_at,
            name,
            pod,
        };
        match find(pod, draft.now) {
            Finding::Nothing => {}
            Finding::Until(at) => draft.requeue_after(at, 0),
            Finding::Is(cause) => cases.push(with(cause)),
            Finding::Recovering(at) => recovering.push((at, with(Cause::CrashLoopBackOff))),
        }
    }
    let crashing = [Cause::CrashLoopBackOff, Cause::RunContainerError]
        .into_iter()
        .find(|c| known.and_then(|k| k.reason.as_deref()) == Some(c.reason()));
    if let Some(cause) = crashing {
        for (at, case) in recovering {
            draft.requeue_after(at, 0);
            cases.push(Case { cause, ..case });
        }
    }
    let first = cases.iter().map(|c| c.cause).min()?;
    cases.retain(|c| c.cause == first);
    cases.sort_by_key(|c| (c.role, c.pod.index));
    Some(sentence(cx.name, first, &cases))
}

fn sentence(job: &str, cause: Cause, cases: &[Case<'_>]) -> Sentence {
    let speaker = cases.first().map(|c| trouble_of(c.pod)).unwrap_or_default();
    let names: Vec<String> = cases.iter().take(MAX_NAMES).map(|c| c.name(job)).collect();
    let mut head = match cases.len() {
        1 => format!("Pod {}", names.join(", ")),
        n if n <= MAX_NAMES => format!("{n} pods ({})", names.join(", ")),
        n => format!("{n} pods ({} and {} more)", names.join(", "), n - MAX_NAMES),
    };
    // Writing to a String can't fail.
    let _ = write!(head, ": {}", cause.describe(&speaker));
    let quoted = quote(cause, cases.first().map(|c| c.pod));
    let claim = missing_claim(&quoted).filter(|_| cause == Cause::Unschedulable);
    let (mut rest, hint) = match claim {
        Some(name) => (
            format!(": persistentvolumeclaim \"{name}\" not found"),
            format!(
                "Create the PersistentVolumeClaim {name} in the job's namespace; the job continues automatically"
            ),
        ),
        None if quoted.is_empty() => (String::new(), cause.hint().to_owned()),
        None => (format!(": {quoted}"), cause.hint().to_owned()),
    };
    let stop = if rest.ends_with('…') { "" } else { "." };
    let _ = write!(rest, "{stop} {hint}.");
    // The hint is never truncated.
    let head = shorten(&head, MAX_MESSAGE.saturating_sub(rest.len()));
    let whole = format!("{head}{rest}");
    Sentence {
        reason: cause.reason(),
        head,
        whole,
    }
}

/// Returns the claim that the scheduler did not find.
fn missing_claim(said: &str) -> Option<&str> {
    let (_, rest) = said.split_once("persistentvolumeclaim \"")?;
    let (name, rest) = rest.split_once('"')?;
    rest.starts_with(" not found").then_some(name)
}

/// Returns a pod's problem. If a pod only starts slowly, nothing but `since` is set.
fn trouble_of(pod: &PodView) -> Cow<'_, Trouble> {
    let since = pod.starts_since();
    pod.trouble.as_deref().map_or_else(
        || {
            Cow::Owned(Trouble {
                since,
                ..Trouble::default()
            })
        },
        Cow::Borrowed,
    )
}

/// Quotes the cluster's message about the problem.
fn quote(cause: Cause, pod: Option<&PodView>) -> String {
    let Some((pod, trouble)) = pod.and_then(|p| Some((p, p.trouble.as_deref()?))) else {
        return String::new();
    };
    let text = match cause {
        Cause::CrashLoopBackOff | Cause::RunContainerError if trouble.exit_code.is_some() => {
            crate::model::health::explain_failure(pod)
        }
        Cause::NodeLost | Cause::PodStuckTerminating => String::new(),
        Cause::CrashLoopBackOff
        | Cause::RunContainerError
        | Cause::InvalidImageName
        | Cause::ErrImageNeverPull
        | Cause::ImagePullBackOff
        | Cause::CreateContainerConfigError
        | Cause::CreateContainerError
        | Cause::ContainerWaiting
        | Cause::PodNotStarting
        | Cause::Unschedulable
        | Cause::SchedulingGated => trouble.message.clone(),
    };
    let text = shorten(text.trim(), MAX_QUOTE);
    text.trim_end_matches(['.', ' ']).to_owned()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::{MAX_MESSAGE, by_spec};
    use crate::model::durable_state::DurableState;
    use crate::model::error::SpecError;
    use crate::plan::draft::Draft;

    #[test]
    fn a_long_error_in_the_spec_does_not_cut_the_remedy() {
        let mut draft = Draft::new(DurableState::default(), Timestamp::UNIX_EPOCH);
        let error = SpecError::new("spec.x", "not a number ".repeat(200));
        by_spec(&mut draft, &error);
        let (_, message) = draft.stall.unwrap();
        assert!(message.len() <= MAX_MESSAGE, "{}", message.len());
        assert!(
            message.contains("… ") || message.contains("…;"),
            "{message}"
        );
        assert!(message.ends_with("once the field is fixed"), "{message}");
    }
}
