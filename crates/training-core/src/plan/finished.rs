//! A job that has ended: clean up by policy, fold the counts, and delete it at the end of its time to live.

use std::collections::HashSet;

use kube::ResourceExt;
use training_api::{CleanPodPolicy, ConditionType};

use super::draft::Draft;
use super::{autoscaler, gang};
use crate::kind::framework::TrainingJob;
use crate::model::memory::Memory;
use crate::model::names;
use crate::model::observed::Observed;
use crate::model::rules::Rules;
use crate::model::step::Step;
use crate::model::view::PodPhase;

/// The common look at a job that has ended.
pub(crate) fn decide<J: TrainingJob>(draft: &mut Draft, job: &J, seen: &Observed) {
    if draft.memory.holds(ConditionType::Succeeded) {
        fold(draft);
    }
    autoscaler::remove(&job.name_any(), seen, draft);
    gang::remove(&job.name_any(), seen, draft);
    clean_up(draft, job, seen);
    if is_over(draft, job.run_policy().ttl_seconds_after_finished) {
        draft.steps.push(Step::DeleteJob);
    }
}

/// What still ran when the job succeeded counts as succeeded.
pub(super) fn fold(draft: &mut Draft) {
    for count in draft.memory.counts.iter_mut().flat_map(|c| c.values_mut()) {
        count.succeeded = count.succeeded.saturating_add(count.active);
        count.active = 0;
    }
}

/// Jobs of the existing operator may have ended without a completion time.
fn ended_by_condition(draft: &Draft) -> Option<k8s_openapi::jiff::Timestamp> {
    let ends = |c: &&training_api::JobCondition| {
        c.holds(ConditionType::Failed) || c.holds(ConditionType::Succeeded)
    };
    draft
        .memory
        .conditions
        .iter()
        .find(ends)?
        .last_transition_time
        .as_ref()
        .map(|t| t.0)
}

/// The clean-up policy of an ended job: the job's own, which the operator's setting makes stricter for failed ones.
pub(super) fn policy<J: TrainingJob>(job: &J, memory: &Memory, rules: Rules) -> CleanPodPolicy {
    stricter(job.run_policy().clean_pod_policy(), memory, rules)
}

/// The same of a policy that stands elsewhere.
pub fn stricter(own: CleanPodPolicy, memory: &Memory, rules: Rules) -> CleanPodPolicy {
    match own {
        CleanPodPolicy::None if rules.clean_failed && memory.holds(ConditionType::Failed) => {
            CleanPodPolicy::Running
        }
        own => own,
    }
}

/// Whether a policy takes a pod in this phase.
pub fn takes(policy: CleanPodPolicy, phase: PodPhase) -> bool {
    match policy {
        CleanPodPolicy::None => false,
        CleanPodPolicy::Running => !phase.has_ended(),
        CleanPodPolicy::All => true,
    }
}

/// The end of an ended job's time to live, once it is over; wakes at it before.
pub fn is_over(draft: &mut Draft, ttl: Option<i32>) -> bool {
    let Some(ttl) = ttl else {
        return false;
    };
    let Some(ended) = draft.memory.completed.or_else(|| ended_by_condition(draft)) else {
        return false;
    };
    // Due strictly after the last second of its time to live.
    let after = i64::from(ttl.max(0)) + 1;
    let due = ended
        .checked_add(k8s_openapi::jiff::SignedDuration::from_secs(after))
        .is_ok_and(|at| at <= draft.now);
    if !due {
        draft.wake_after(ended, after);
    }
    due
}

fn clean_up<J: TrainingJob>(draft: &mut Draft, job: &J, seen: &Observed) {
    let policy = policy(job, &draft.memory, seen.rules);
    let name = job.name_any();
    let goes = |phase: PodPhase| takes(policy, phase);
    if policy == CleanPodPolicy::None {
        return;
    }
    for pod in seen.pods.iter().filter(|p| goes(p.phase)) {
        draft.delete_pod(&name, pod);
    }
    // A service stays only with a pod that stays; services whose pod is already gone go as well.
    let stays = seen.pods.iter().filter(|p| !goes(p.phase));
    let stays: HashSet<(&str, u32)> = stays.map(|p| (&*p.role, p.index)).collect();
    for service in seen.services.iter().filter(|s| !s.leaving) {
        if !stays.contains(&(&*service.role, service.index)) {
            draft.steps.push(Step::DeleteService {
                name: names::replica(&name, &service.role, service.index),
                uid: service.uid,
            });
        }
    }
}
