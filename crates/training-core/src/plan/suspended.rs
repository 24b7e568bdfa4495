//! A suspended job has no pods. Its status reports zero active pods only when they are gone: queueing systems release quota on it.

use kube::Resource;
use training_api::{ConditionType, ReplicaStatus};

use super::draft::Draft;
use super::{autoscaler, gang};
use crate::kind::framework::{Framework, JobCx};
use crate::model::names;
use crate::model::notes::Note;
use crate::model::observed::Observed;
use crate::model::step::{Step, Urgency};
use crate::model::verdict::JobMessage;

/// The default reconcile of a suspended job.
pub(crate) fn decide<F: Framework>(
    framework: &F,
    cx: &JobCx<'_, F::Job>,
    observed: &Observed,
    draft: &mut Draft,
) {
    let kind = F::Job::kind(&());
    if !draft.state.holds(ConditionType::Suspended) {
        let reason = format!("{kind}Suspended");
        let message = framework.message(cx, &JobMessage::Suspended);
        draft
            .state
            .conditions
            .retain(|c| c.type_ != ConditionType::Restarting.as_str());
        if draft.state.holds(ConditionType::Running) {
            draft.set(ConditionType::Running, false, &reason, &message);
        }
        draft.set(ConditionType::Suspended, true, &reason, &message);
        draft.notes.push(Note::normal(reason, message));
        // Pods without a start time: the status of the reconcile that created them was never stored.
        if draft.state.started.is_some() || !observed.pods.is_empty() {
            // When the job resumes, leftovers of the former run are outdated and can neither fail nor complete it.
            draft.state.next_gang_attempt(observed.newest_gang());
        }
        draft.state.made_from = None;
        draft.urgency(Urgency::First);
    }
    for pod in &observed.pods {
        draft.delete_pod(cx.name, pod);
    }
    for service in observed.services.iter().filter(|s| !s.terminating) {
        let name = names::replica(cx.name, &service.role, service.index);
        draft.steps.push(Step::DeleteService {
            name,
            uid: service.uid,
        });
    }
    autoscaler::remove(cx.name, observed, draft);
    gang::remove(cx.name, observed, draft);
    // A job that was created suspended has none, as published.
    if draft.state.counts.is_none() && !observed.pods.is_empty() {
        let empty = cx
            .roles
            .iter()
            .map(|role| (role.key.clone(), ReplicaStatus::default()));
        draft.state.counts = Some(empty.collect());
    }
    for (key, shown) in draft.state.counts.iter_mut().flatten() {
        let label = cx.roles.get(key).map(|r| r.label.clone());
        let label = label.unwrap_or_else(|| key.to_ascii_lowercase());
        // Counts existing pods in any phase: quota that is released at 0 must really be free.
        let there = observed.pods.iter().filter(|p| *p.role == *label).count();
        shown.active = i32::try_from(there).unwrap_or(i32::MAX);
    }
    draft.state.ready = Some(format!("0/{}", cx.roles.total()));
}

/// Resumes the job from its current template, with a new start time.
pub fn resume<F: Framework>(
    framework: &F,
    cx: &JobCx<'_, F::Job>,
    observed: &Observed,
    draft: &mut Draft,
) {
    let reason = format!("{}Resumed", F::Job::kind(&()));
    let message = framework.message(cx, &JobMessage::Resumed);
    draft.set(ConditionType::Suspended, false, &reason, &message);
    draft.notes.push(Note::normal(reason, message));
    draft.state.started = Some(draft.now);
    draft.starts = true;
    // This must be stored before the first pod: a pod counts as one of the former run while the status says suspended.
    draft.urgency(Urgency::First);
    if observed
        .pods
        .iter()
        .any(|p| p.attempt.gang >= draft.state.gang_attempt)
    {
        // Another operator suspended the job, and its pods are not gone yet: they belong to the former run.
        draft.state.next_gang_attempt(observed.newest_gang());
    }
}
