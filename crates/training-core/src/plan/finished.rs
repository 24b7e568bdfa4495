//! A finished job: applies the clean-up policy, folds the counts, and deletes the job when its TTL expires.

use std::collections::HashSet;

use kube::ResourceExt;
use training_api::{CleanPodPolicy, ConditionType};

use super::draft::Draft;
use super::{autoscaler, gang};
use crate::kind::framework::TrainingJob;
use crate::model::durable_state::DurableState;
use crate::model::names;
use crate::model::observed::Observed;
use crate::model::rules::Rules;
use crate::model::step::Step;
use crate::model::view::PodPhase;

/// The default reconcile of a finished job.
pub(crate) fn decide<J: TrainingJob>(draft: &mut Draft, job: &J, observed: &Observed) {
    if draft.state.holds(ConditionType::Succeeded) {
        fold(draft);
    }
    autoscaler::remove(&job.name_any(), observed, draft);
    gang::remove(&job.name_any(), observed, draft);
    clean_up(draft, job, observed);
    if is_over(draft, job.run_policy().ttl_seconds_after_finished) {
        draft.steps.push(Step::DeleteJob);
    }
}

/// Counts pods that still ran when the job succeeded as succeeded.
pub(super) fn fold(draft: &mut Draft) {
    for count in draft.state.counts.iter_mut().flat_map(|c| c.values_mut()) {
        count.succeeded = count.succeeded.saturating_add(count.active);
        count.active = 0;
    }
}

/// Returns the end time from the conditions: jobs of the existing operator may lack a completion time.
fn ended_by_condition(draft: &Draft) -> Option<k8s_openapi::jiff::Timestamp> {
    let ends = |c: &&training_api::JobCondition| {
        c.holds(ConditionType::Failed) || c.holds(ConditionType::Succeeded)
    };
    draft
        .state
        .conditions
        .iter()
        .find(ends)?
        .last_transition_time
        .as_ref()
        .map(|t| t.0)
}

/// The clean-up policy of a finished job: its own, or a stricter one for failed jobs if the operator's settings say so.
pub(super) fn policy<J: TrainingJob>(
    job: &J,
    state: &DurableState,
    rules: Rules,
) -> CleanPodPolicy {
    stricter(job.run_policy().clean_pod_policy(), state, rules)
}

/// The same for a policy that is stored elsewhere.
pub fn stricter(own: CleanPodPolicy, state: &DurableState, rules: Rules) -> CleanPodPolicy {
    match own {
        CleanPodPolicy::None if rules.clean_failed && state.holds(ConditionType::Failed) => {
            CleanPodPolicy::Running
        }
        own => own,
    }
}

/// Returns true if the policy deletes a pod in this phase.
pub fn takes(policy: CleanPodPolicy, phase: PodPhase) -> bool {
    match policy {
        CleanPodPolicy::None => false,
        CleanPodPolicy::Running => !phase.has_ended(),
        CleanPodPolicy::All => true,
    }
}

/// Returns true if the TTL of a finished job has expired; otherwise requeues for when it does.
pub fn is_over(draft: &mut Draft, ttl: Option<i32>) -> bool {
    let Some(ttl) = ttl else {
        return false;
    };
    let Some(ended) = draft.state.completed.or_else(|| ended_by_condition(draft)) else {
        return false;
    };
    // The TTL expires strictly after its last second.
    let after = i64::from(ttl.max(0)) + 1;
    let due = ended
        .checked_add(k8s_openapi::jiff::SignedDuration::from_secs(after))
        .is_ok_and(|at| at <= draft.now);
    if !due {
        draft.requeue_after(ended, after);
    }
    due
}

fn clean_up<J: TrainingJob>(draft: &mut Draft, job: &J, observed: &Observed) {
    let policy = policy(job, &draft.state, observed.rules);
    let name = job.name_any();
    let goes = |phase: PodPhase| takes(policy, phase);
    if policy == CleanPodPolicy::None {
        return;
    }
    for pod in observed.pods.iter().filter(|p| goes(p.phase)) {
        draft.delete_pod(&name, pod);
    }
    // A service stays only as long as its pod stays.
    let stays = observed.pods.iter().filter(|p| !goes(p.phase));
    let stays: HashSet<(&str, u32)> = stays.map(|p| (&*p.role, p.index)).collect();
    for service in observed.services.iter().filter(|s| !s.terminating) {
        if !stays.contains(&(&*service.role, service.index)) {
            draft.steps.push(Step::DeleteService {
                name: names::replica(&name, &service.role, service.index),
                uid: service.uid,
            });
        }
    }
}
