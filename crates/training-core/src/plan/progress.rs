//! A job that is neither finished nor suspended: judges its pods and creates what is missing.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use k8s_openapi::api::core::v1::ContainerPort;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::Resource;
use training_api::ConditionType;

use super::counts::count;
use super::draft::Draft;
use super::running::{has_run, runs};
use super::{failing, finished, gang, lost, restart};
use crate::kind::framework::{Framework, JobCx, TrainingJob};
use crate::model::census::{Census, Slot, SlotState};
use crate::model::durable_state::DurableState;
use crate::model::error::SpecError;
use crate::model::names;
use crate::model::notes::Note;
use crate::model::observed::Observed;
use crate::model::roles::Rank;
use crate::model::step::{Step, Transition, Urgency};
use crate::model::verdict::{FailureCause, JobMessage, Verdict, container_restarts};
use crate::model::view::{PodPhase, PodView};
use crate::plan::creates::Creates;
use crate::render::gang::Gang;
use crate::render::{pod, service};

pub(super) fn decide<F: Framework>(
    framework: &F,
    cx: &JobCx<'_, F::Job>,
    observed: &Observed,
    census: &Census<'_>,
    draft: &mut Draft,
) -> Result<(), SpecError> {
    let lost = failing::ToleratedFailures::before(cx, &draft.state);
    count::<F>(cx, census, &mut draft.state);
    let in_place = container_restarts(cx.roles, census);
    let known = draft.state.container_restarts;
    draft.state.container_restarts = draft.state.container_restarts.max(in_place);
    if in_place > known {
        failing::remember_restart(cx, census, draft);
    }
    // Success takes precedence over failures elsewhere in the same snapshot. The limits come next.
    let verdict = match (framework.judge(cx, census), limit_reached(cx, draft)) {
        (Verdict::Succeeded, _) => Verdict::Succeeded,
        (_, Some(limit)) => Verdict::Failed(limit),
        (verdict, None) => lost::give_up(census, observed.rules, draft, verdict),
    };
    // Failures in the same snapshot are counted first.
    let mut unrenderable = None;
    if matches!(verdict, Verdict::Progressing { .. }) && restart::is_requested(cx, draft) {
        match replaced(framework, cx, draft) {
            Ok(_) => {
                lost.record_events(cx, census, draft);
                restart::on_request(framework, cx, observed, draft);
                requeue_at_deadline(cx, draft);
                return Ok(());
            }
            // Pods that can't be rendered any more are not replaced.
            Err(error) => unrenderable = Some(error),
        }
    }
    let made = match verdict {
        Verdict::Succeeded => {
            succeed(framework, cx, observed, draft);
            Ok(())
        }
        Verdict::Failed(cause) => {
            if let Some(role) = cause.role() {
                failing::remember_role(cx, census, role, draft);
            }
            if was_seen_to_run(cx, census, &cause, draft) {
                runs(framework, cx, draft);
            }
            failing::fail(framework, cx, observed, &cause, draft);
            Ok(())
        }
        Verdict::Retry(failures) => {
            lost.record_events(cx, census, draft);
            let failures = failing::batch(cx, census, failures, &mut draft.state);
            if failures.is_empty() {
                fill(framework, cx, observed, census, draft)
            } else {
                failing::retry(framework, cx, observed, census, &failures, draft);
                Ok(())
            }
        }
        Verdict::Progressing { running } => {
            lost.record_events(cx, census, draft);
            let restarts = draft.state.holds(ConditionType::Restarting)
                && !has_restarted(framework, cx, census, &draft.state);
            if running && !restarts {
                if !draft.state.holds(ConditionType::Running) && all_run(census) {
                    // No more pods can change this write.
                    draft.urgency(Urgency::Parallel);
                }
                runs(framework, cx, draft);
            }
            fill(framework, cx, observed, census, draft)
        }
    };
    requeue_at_deadline(cx, draft);
    unrenderable.map_or(made, Err)
}

/// Requeues at the deadline, if the job has not ended.
fn requeue_at_deadline<J: TrainingJob>(cx: &JobCx<'_, J>, draft: &mut Draft) {
    let deadline = deadline(cx, draft).filter(|_| !draft.state.is_finished());
    if let Some((started, seconds)) = deadline {
        draft.requeue_after(started, seconds);
    }
}

/// Returns the start time and the seconds until the deadline. A negative deadline counts as none, and is reported.
fn deadline<J: TrainingJob>(cx: &JobCx<'_, J>, draft: &Draft) -> Option<(Timestamp, i64)> {
    let seconds = cx.job.run_policy().active_deadline_seconds;
    draft.state.started.zip(seconds.filter(|s| *s >= 0))
}

/// Ends a job whose deadline has passed, whatever its state.
pub fn end_at_deadline<F: Framework>(
    framework: &F,
    cx: &JobCx<'_, F::Job>,
    observed: &Observed,
    draft: &mut Draft,
) {
    if is_overdue(cx, draft) {
        failing::fail(framework, cx, observed, &FailureCause::Deadline, draft);
    } else {
        requeue_at_deadline(cx, draft);
    }
}

/// Creates missing pods and services and deletes surplus ones.
fn fill<F: Framework>(
    framework: &F,
    cx: &JobCx<'_, F::Job>,
    observed: &Observed,
    census: &Census<'_>,
    draft: &mut Draft,
) -> Result<(), SpecError> {
    remove_surplus(cx, observed, census, draft);
    if draft.starts {
        let replaced = replaced(framework, cx, draft)?;
        record_replaced_variables(replaced, draft);
    }
    gang::clear(cx.name, observed, draft);
    let run = draft.state.gang.clone().unwrap_or_default();
    let gang = gang::of(framework, cx, observed, census, &run)?;
    let creation = gang.as_ref().map_or(gang::PodCreation::Allowed, |gang| {
        gang::ensure::<F>(cx, observed, census, gang, draft)
    });
    match creation {
        gang::PodCreation::Allowed => make_missing(framework, cx, census, gang.as_ref(), draft),
        gang::PodCreation::Blocked => Ok(()),
    }
}

/// The published operator checks roles by name. It sees the job running with the deciding role before it fails it for that role or
/// a later one.
fn was_seen_to_run<J: TrainingJob>(
    cx: &JobCx<'_, J>,
    census: &Census<'_>,
    cause: &FailureCause,
    draft: &Draft,
) -> bool {
    let FailureCause::Replicas { role: failed, .. } = cause else {
        return false;
    };
    let decides = cx.roles.iter().enumerate().find(|(_, r)| r.is_master);
    decides.is_some_and(|(at, role)| role.key <= *failed && census.counts[at].running > 0)
        && !draft.state.holds(ConditionType::Restarting)
}

fn succeed<F: Framework>(
    framework: &F,
    cx: &JobCx<'_, F::Job>,
    observed: &Observed,
    draft: &mut Draft,
) {
    has_run(framework, cx, draft);
    let reason = format!("{}Succeeded", F::Job::kind(&()));
    let message = framework.message(cx, &JobMessage::Succeeded);
    draft.set(ConditionType::Succeeded, true, &reason, &message);
    draft.complete();
    draft.state.made_from = None;
    finished::fold(draft);
    draft.state.ready = Some(format!("{0}/{0}", cx.roles.total()));
    draft.notes.push(Note::normal(reason, message));
    draft.transitions.push(Transition::Succeeded);
    if framework.may_outlive_success(cx) {
        failing::warn_of_running_pods(cx.job, observed, draft);
    }
    draft.urgency(Urgency::First);
}

/// Returns the exceeded limit: restarts first, then the deadline. A negative limit counts as none, and is reported.
fn limit_reached<J: TrainingJob>(cx: &JobCx<'_, J>, draft: &Draft) -> Option<FailureCause> {
    let policy = cx.job.run_policy();
    let restarts = i64::from(draft.state.container_restarts);
    // The operator never allows more than the limit, so the limit was lowered since.
    let counted = i64::from(draft.state.counted_failures);
    if policy
        .backoff_limit
        .map(i64::from)
        .filter(|limit| *limit >= 0)
        .is_some_and(|limit| restarts > 0 && restarts >= limit || counted > 0 && counted > limit)
    {
        return Some(FailureCause::BackoffLimit);
    }
    is_overdue(cx, draft).then_some(FailureCause::Deadline)
}

/// Returns true if the job has run longer than `activeDeadlineSeconds`.
pub fn is_overdue<J: TrainingJob>(cx: &JobCx<'_, J>, draft: &Draft) -> bool {
    deadline(cx, draft).is_some_and(|(started, seconds)| {
        let limit = started.checked_add(SignedDuration::from_secs(seconds));
        limit.is_ok_and(|limit| draft.now >= limit)
    })
}

/// Returns true if the replica runs in its current attempt or has ended. A tolerated failure restarts nothing.
fn is_up(slot: &Slot<'_>) -> bool {
    let runs = |p: &PodView| p.phase == PodPhase::Running && !p.terminating;
    matches!(slot.state, SlotState::Finished | SlotState::Failed)
        || slot.state == SlotState::Live && slot.pod.is_some_and(runs)
}

/// Returns true if every replica is up.
fn all_run(census: &Census<'_>) -> bool {
    census.slots.iter().all(is_up)
}

/// Returns true if the restart is over: an elastic job needs its minimum number of replicas, any other job those that restarted.
fn has_restarted<F: Framework>(
    framework: &F,
    cx: &JobCx<'_, F::Job>,
    census: &Census<'_>,
    state: &DurableState,
) -> bool {
    if let Some(fewest) = framework.min_replicas(cx) {
        let trains = |s: &&Slot<'_>| s.state != SlotState::Failed && is_up(s);
        let up = census.slots.iter().filter(trains).count();
        return up >= usize::try_from(fewest).unwrap_or(usize::MAX) || all_run(census);
    }
    let restarted = |slot: &&Slot<'_>| {
        let carried = slot.pod.map_or(0, |p| p.attempt.replica);
        let label = cx.roles.iter().nth(slot.role).map_or("", |r| &*r.label);
        state.gang_restart.is_some() || carried.max(state.attempt(label, slot.index).replica) > 0
    };
    let mut restarted = census.slots.iter().filter(restarted).peekable();
    if restarted.peek().is_none() {
        // Another operator restarted some replicas and doesn't say which.
        return all_run(census);
    }
    restarted.all(is_up)
}

fn remove_surplus<J: TrainingJob>(
    cx: &JobCx<'_, J>,
    observed: &Observed,
    census: &Census<'_>,
    draft: &mut Draft,
) {
    for pod in &census.surplus {
        draft.delete_pod(cx.name, pod);
    }
    for service in observed.services.iter().filter(|s| !s.terminating) {
        let wanted = cx
            .roles
            .by_label(&service.role)
            .is_some_and(|(_, r)| service.index < r.replicas);
        if !wanted {
            let name = names::replica(cx.name, &service.role, service.index);
            draft.steps.push(Step::DeleteService {
                name,
                uid: service.uid,
            });
        }
    }
    for slot in census
        .slots
        .iter()
        .filter(|s| s.state == SlotState::Outdated)
    {
        if let Some(pod) = slot.pod {
            draft.delete_pod(cx.name, pod);
        }
    }
}

/// Returns true while a pod from before the last gang restart or suspension may still run: a new replica could join its rendezvous,
/// and would wait there for replicas that are gone.
pub fn meets_former_run(census: &Census<'_>, draft: &Draft) -> bool {
    let at_work =
        |pod: &PodView| pod.attempt.gang < draft.state.gang_attempt && !pod.phase.has_ended();
    census.slots.iter().filter_map(|s| s.pod).any(at_work)
}

fn make_missing<F: Framework>(
    framework: &F,
    cx: &JobCx<'_, F::Job>,
    census: &Census<'_>,
    gang: Option<&Gang<'_>>,
    draft: &mut Draft,
) -> Result<(), SpecError> {
    let met = meets_former_run(census, draft);
    let mut ports_of: BTreeMap<usize, Vec<ContainerPort>> = BTreeMap::new();
    let mut creates = Creates::default();
    for (slot, me) in census.slots.iter().zip(cx.roles.ranks()) {
        if creates.is_full() {
            draft.requeue = true;
            break;
        }
        if !slot.has_service && !slot.service_leaving {
            let ports = match ports_of.entry(slot.role) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(pod::main_ports(framework, cx, me)?),
            };
            let service = service::render::<F>(cx, me, ports);
            creates.add(&service);
            draft.steps.push(Step::CreateService(Box::new(service)));
        }
        if slot.state == SlotState::Empty
            && !met
            && is_due(slot, me, draft)
            && framework.may_start(cx, &me.role.key, census)
        {
            let attempt = draft.state.attempt(&me.role.label, slot.index);
            let mut rendered = pod::render(framework, cx, me, attempt)?;
            if let Some(gang) = gang {
                let behaviour = gang.provider.behaviour();
                behaviour.stamp(gang, me.role, &mut rendered.pod);
            }
            creates.add(&rendered.pod);
            draft.steps.push(Step::CreatePod(Box::new(rendered.pod)));
        }
    }
    Ok(())
}

/// Returns the template variables that the operator replaces.
fn replaced<F: Framework>(
    framework: &F,
    cx: &JobCx<'_, F::Job>,
    draft: &Draft,
) -> Result<Vec<String>, SpecError> {
    let mut all = Vec::new();
    // All replicas of a role have the same variables.
    for me in cx.roles.ranks().filter(|me| me.index == 0) {
        let attempt = draft.state.attempt(&me.role.label, me.index);
        all.extend(pod::render(framework, cx, me, attempt)?.replaced);
    }
    Ok(all)
}

/// Records one event with the replaced template variables when a run starts, because its pods may have to wait for the gang's
/// group.
pub fn record_replaced_variables(replaced: Vec<String>, draft: &mut Draft) {
    let mut names: Vec<String> = Vec::new();
    for name in replaced {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if !names.is_empty() {
        let names = names.join(", ");
        draft.notes.push(Note::warning(
            "EnvReplaced",
            format!("the pod template's {names} gave way to the rendezvous values"),
        ));
    }
}

/// Returns true if the backoff allows this replica's next pod now; otherwise requeues for when it does.
pub fn is_due(slot: &Slot<'_>, me: Rank<'_>, draft: &mut Draft) -> bool {
    let next = draft.next_attempt(&me.role.label, slot.index);
    if let Some(at) = next {
        draft.requeue_after(at, 0);
    }
    next.is_none()
}
