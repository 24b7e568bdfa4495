//! Fails jobs, and restarts replicas within the limits.

use training_api::{CleanPodPolicy, ConditionType, RestartPolicy};

use super::draft::Draft;
use super::running::has_run;
use super::{finished, restart};
use crate::kind::framework::{Framework, JobCx, TrainingJob};
use crate::model::census::{Census, Slot, SlotState};
use crate::model::durable_state::{DurableState, ReplicaRestarts};
use crate::model::notes::Note;
use crate::model::observed::Observed;
use crate::model::reasons::FailureReason;
use crate::model::restart::{Decision, RestartScope, decide, ran_long};
use crate::model::step::{Transition, Urgency};
use crate::model::verdict::{FailureCause, JobMessage, RankFailure};
use crate::model::view::{Attempt, PodPhase, PodView};

use k8s_openapi::jiff::Timestamp;
use kube::Resource;

/// The maximum number of replicas whose attempts a status stores: about 13 KiB of the status's 32 KiB.
const MAX_ATTEMPTS: usize = 192;

/// Selects the failures for this reconcile; the others wait until earlier replacements exist.
///
/// A replacement carries its attempt itself, so the status no longer needs it.
pub fn batch<J: TrainingJob>(
    cx: &JobCx<'_, J>,
    census: &Census<'_>,
    failures: Vec<RankFailure>,
    state: &mut DurableState,
) -> Vec<RankFailure> {
    let pod = |f: &RankFailure| census.slot(f.role, f.index).and_then(|s| s.pod);
    let pods: Vec<&PodView> = failures.iter().filter_map(pod).collect();
    let gang = cx.restart_scope() == RestartScope::Gang;
    let together = gang && !have_not_begun(cx, &failures, &pods);
    if together || state.replicas.len() + failures.len() <= MAX_ATTEMPTS {
        return failures;
    }
    let gang = state.gang_attempt;
    let keep = |(label, index): &(String, u32), entry: &mut ReplicaRestarts| {
        let slot = cx
            .roles
            .by_label(label)
            .and_then(|(at, _)| census.slot(at, *index));
        let decided = Attempt {
            gang,
            replica: entry.attempt,
        };
        slot.is_some_and(|s| {
            s.state != SlotState::Finished && s.pod.is_none_or(|p| p.attempt < decided)
        })
    };
    // Entries with backoff history are dropped last.
    state
        .replicas
        .retain(|place, entry| entry.settled > 0 || keep(place, entry));
    if state.replicas.len() >= MAX_ATTEMPTS {
        state.replicas.retain(keep);
    }
    let mut room = MAX_ATTEMPTS.saturating_sub(state.replicas.len());
    let mut fits = |failure: &RankFailure| {
        let Some(role) = cx.roles.iter().nth(failure.role) else {
            return false;
        };
        if state
            .replicas
            .contains_key(&(role.label.clone(), failure.index))
        {
            return true;
        }
        let free = room > 0;
        room = room.saturating_sub(1);
        free
    };
    failures.into_iter().filter(|f| fits(f)).collect()
}

/// Recreates failed replicas, or fails the job if the backoff limit is used up.
///
/// It only changes attempt numbers. They make the pods outdated, and the next reconcile replaces those.
pub fn retry<F: Framework>(
    framework: &F,
    cx: &JobCx<'_, F::Job>,
    observed: &Observed,
    census: &Census<'_>,
    failures: &[RankFailure],
    draft: &mut Draft,
) {
    let pod = |f: &RankFailure| census.slot(f.role, f.index).and_then(|s| s.pod);
    let pods: Vec<&PodView> = failures.iter().filter_map(pod).collect();
    let gang = cx.restart_scope() == RestartScope::Gang;
    let together = gang && !have_not_begun(cx, failures, &pods);
    let undisturbed = failures.iter().all(|f| !f.disrupted) && !restart::is_requested(cx, draft);
    if together
        && undisturbed
        && let Some(first) = just_failed(cx, census, &pods, draft.now)
    {
        return draft.requeue_after(first, GRACE);
    }
    let charged = failures.iter().filter(|f| !f.disrupted).count();
    let cost = match gang {
        true if together => u32::from(charged > 0),
        true => 0,
        false => u32::try_from(charged).unwrap_or(u32::MAX),
    };
    let spent = draft.state.counted_failures.saturating_add(cost);
    if let Some(limit) = cx.job.run_policy().backoff_limit.filter(|l| *l >= 0)
        && cost > 0
        && i64::from(spent) > i64::from(limit)
    {
        remember(cx, pods, draft);
        return fail(framework, cx, observed, &FailureCause::BackoffLimit, draft);
    }
    draft.state.counted_failures = spent;
    if together {
        restart::all(framework, cx, observed, draft);
        // The first pod to fail is the likely culprit.
        let first = pods.iter().min_by_key(|pod| ended(pod));
        let reason = first.map_or(FailureReason::OTHER, |pod| FailureReason::of(pod));
        draft.transitions.push(Transition::Restarted(reason));
        let before = draft.state.gang_restart.unwrap_or_default();
        let ran_long = pods.iter().any(|pod| ran_long(pod, draft.now));
        draft.state.gang_restart = Some(before.next(0, ran_long, draft.now));
    } else {
        next_attempts(cx, census, failures, draft);
    }
    remember(cx, pods, draft);
    remove_unreachable(cx, census, failures, draft);
    let role = failures
        .first()
        .and_then(|f| cx.roles.iter().nth(f.role))
        .map_or("", |r| r.key.as_str());
    let message = framework.message(cx, &JobMessage::Restarting { role });
    let reason = format!("{}Restarting", F::Job::kind(&()));
    draft.set(ConditionType::Restarting, true, &reason, &message);
    draft.notes.push(Note::warning(reason, message));
    draft.urgency(Urgency::First);
}

/// How long a gang's restart waits after a failure. Unit: seconds. At the end of a job, one replica may fail because another one has
/// just succeeded, and their kubelets report that in any order.
const GRACE: i64 = 5;

/// Returns when the first pod failed, if that was within the last seconds, others still run, and a failure of those could be retried
/// as well.
fn just_failed<J: TrainingJob>(
    cx: &JobCx<'_, J>,
    census: &Census<'_>,
    failed: &[&PodView],
    now: Timestamp,
) -> Option<Timestamp> {
    let first = failed.iter().map(|pod| ended(pod)).min()?;
    let runs = |slot: &&Slot<'_>| {
        let running = slot.pod.filter(|p| p.phase == PodPhase::Running);
        slot.state == SlotState::Live && running.is_some_and(|p| !p.terminating)
    };
    let retries = |slot: &Slot<'_>| {
        let role = cx.roles.iter().nth(slot.role);
        role.is_some_and(|role| {
            matches!(
                role.restart,
                RestartPolicy::OnFailure | RestartPolicy::Always
            )
        })
    };
    let mut running = census.slots.iter().filter(runs).peekable();
    let age = now.duration_since(first).as_secs();
    // A node's clock may be ahead.
    let recent = (-GRACE..GRACE).contains(&age);
    (recent && running.peek().is_some() && running.all(retries)).then_some(first)
}

/// Returns true if init containers failed before the main containers started, in pods that the kubelet would restart if they were no
/// gang's. Sidecars are init containers, too, and end after them.
fn have_not_begun<J: TrainingJob>(
    cx: &JobCx<'_, J>,
    failures: &[RankFailure],
    pods: &[&PodView],
) -> bool {
    let restarts = |f: &RankFailure| {
        let role = cx.roles.iter().nth(f.role);
        role.is_some_and(|role| role.restart == RestartPolicy::OnFailure)
    };
    let initial =
        |pod: &&PodView| pod.exit_code.is_none() && pod.trouble.as_deref().is_some_and(|t| t.init);
    failures.iter().all(restarts) && pods.len() == failures.len() && pods.iter().all(initial)
}

/// Gives every failed replica the attempt after its pod's.
pub fn next_attempts<J: TrainingJob>(
    cx: &JobCx<'_, J>,
    census: &Census<'_>,
    failures: &[RankFailure],
    draft: &mut Draft,
) {
    let gang = draft.state.gang_attempt;
    for failure in failures {
        let Some(role) = cx.roles.iter().nth(failure.role) else {
            continue;
        };
        let pod = census.slot(failure.role, failure.index);
        let pod = pod.and_then(|s| s.pod);
        let carried = pod
            .filter(|p| p.attempt.gang == gang)
            .map_or(0, |p| p.attempt.replica);
        let ran_long = pod.is_some_and(|p| ran_long(p, draft.now));
        let entry = draft
            .state
            .replicas
            .entry((role.label.clone(), failure.index))
            .or_default();
        *entry = entry.next(carried, ran_long, draft.now);
        draft.state.recreated = draft.state.recreated.saturating_add(1);
        let reason = pod.map_or(FailureReason::OTHER, FailureReason::of);
        draft.transitions.push(Transition::Restarted(reason));
    }
}

/// Deletes failed pods that the new attempt doesn't make outdated, because someone wiped the status or changed a pod's attempt.
/// Otherwise they would fail again and again. The deletion follows the status write that counts the failure.
pub fn remove_unreachable<J: TrainingJob>(
    cx: &JobCx<'_, J>,
    census: &Census<'_>,
    failures: &[RankFailure],
    draft: &mut Draft,
) {
    for failure in failures {
        let pod = census.slot(failure.role, failure.index).and_then(|s| s.pod);
        if let Some(pod) = pod.filter(|p| p.attempt >= draft.state.attempt(&p.role, p.index)) {
            draft.delete_pod(cx.name, pod);
        }
    }
}

/// The maximum number of failed pods with an event of their own. The counts include the others.
const MAX_POD_EVENTS: usize = 3;

/// Returns the pod of a slot, if it failed.
fn failed_pod<'a>(slot: &Slot<'a>) -> Option<&'a PodView> {
    slot.pod.filter(|_| slot.state == SlotState::Failed)
}

/// Returns when a failed pod ended, if known.
fn ended(pod: &PodView) -> Timestamp {
    let since = pod.trouble.as_deref().and_then(|t| t.since);
    since.unwrap_or(Timestamp::MAX)
}

/// Records events about failed pods, and stores the likely culprit as the last failure.
pub fn remember<J: TrainingJob>(cx: &JobCx<'_, J>, mut pods: Vec<&PodView>, draft: &mut Draft) {
    // The first pod to fail is the likely culprit: the others may have lost their peer. It comes last, so it stays in the status.
    pods.sort_by_key(|pod| ended(pod));
    pods.truncate(MAX_POD_EVENTS);
    for pod in pods.into_iter().rev() {
        draft.remember_failure(cx.name, cx.namespace, pod);
    }
}

/// Failures that a job tolerates: nothing replaces the replicas, and the job continues.
#[derive(Debug)]
pub(super) struct ToleratedFailures {
    /// How many failed pods of each role the status already counts.
    known: Vec<u32>,
}

impl ToleratedFailures {
    /// Reads the counts before this reconcile updates them.
    pub(super) fn before<J: TrainingJob>(cx: &JobCx<'_, J>, state: &DurableState) -> Self {
        let counts = state.counts.as_ref();
        let known = |key: &String| counts.and_then(|c| c.get(key)).map_or(0, |c| c.failed);
        let known = cx.roles.iter().map(|r| known(&r.key));
        Self {
            known: known.map(|n| u32::try_from(n).unwrap_or(0)).collect(),
        }
    }

    /// Records events about new failures. The status write of the new counts includes them.
    pub(super) fn record_events<J: TrainingJob>(
        self,
        cx: &JobCx<'_, J>,
        census: &Census<'_>,
        draft: &mut Draft,
    ) {
        for ((at, role), known) in cx.roles.iter().enumerate().zip(self.known) {
            let failed = census.of_role(at).filter_map(failed_pod);
            let borne = failed.filter(|pod| decide(role.restart, pod) == Decision::Fail);
            let mut pods: Vec<&PodView> = borne.collect();
            let known = usize::try_from(known).unwrap_or(usize::MAX);
            if pods.len() > known {
                // The status only counts failures, so the pods that ended last are taken for the new ones.
                pods.sort_by_key(|pod| ended(pod));
                remember(cx, pods.split_off(known), draft);
            }
        }
    }
}

/// Records how the container ended that was restarted in place last. The status write of the new restart count includes it.
pub(super) fn remember_restart<J: TrainingJob>(
    cx: &JobCx<'_, J>,
    census: &Census<'_>,
    draft: &mut Draft,
) {
    let ended = |pod: &&PodView| {
        let trouble = pod.trouble.as_deref();
        pod.phase == PodPhase::Running && trouble.is_some_and(|t| t.exit_code.is_some())
    };
    let since = |pod: &&PodView| pod.trouble.as_deref().and_then(|t| t.since);
    let pods = census.slots.iter().filter_map(|s| s.pod);
    if let Some(pod) = pods.filter(ended).max_by_key(since) {
        draft.remember_restart(cx.name, pod);
    }
}

/// Fails the job because of failed replicas or a limit, with the published messages.
pub fn fail<F: Framework>(
    framework: &F,
    cx: &JobCx<'_, F::Job>,
    observed: &Observed,
    cause: &FailureCause,
    draft: &mut Draft,
) {
    let kind = F::Job::kind(&());
    let name = cx.name;
    if matches!(cause, FailureCause::Replicas { .. }) {
        has_run(framework, cx, draft);
    }
    let message = match cause {
        FailureCause::Replicas { role, count } => framework.message(
            cx,
            &JobMessage::Failed {
                role,
                count: *count,
            },
        ),
        FailureCause::PermanentExit { role } => {
            format!("job \"{name}\" is failing because \"{role}\" replica(s) failed.")
        }
        FailureCause::BackoffLimit => {
            format!("Job {name} has failed because it has reached the specified backoff limit")
        }
        FailureCause::Deadline => {
            format!("Job {name} has failed because it was active longer than specified deadline")
        }
        FailureCause::InvalidSpec(message) => message.clone(),
    };
    let finer = match cause {
        FailureCause::BackoffLimit => Some((
            "BackoffLimitExceeded",
            cx.job.run_policy().backoff_limit.map_or(0, i64::from),
        )),
        FailureCause::Deadline => Some((
            "DeadlineExceeded",
            cx.job.run_policy().active_deadline_seconds.unwrap_or(0),
        )),
        FailureCause::Replicas { .. }
        | FailureCause::PermanentExit { .. }
        | FailureCause::InvalidSpec(_) => None,
    };
    let reason = format!("{kind}Failed");
    // The published severities: Normal for a limit or failed replicas, Warning for a permanent exit code.
    let note = match cause {
        FailureCause::PermanentExit { .. } => Note::warning(reason.clone(), message.clone()),
        FailureCause::InvalidSpec(_) => Note::warning("InvalidSpec", message.clone()),
        FailureCause::Replicas { .. } | FailureCause::BackoffLimit | FailureCause::Deadline => {
            Note::normal(reason.clone(), message.clone())
        }
    };
    end(draft, &reason, &message, note);
    if let Some((reason, limit)) = finer {
        let hint = match cause {
            FailureCause::Deadline => format!("runPolicy.activeDeadlineSeconds is {limit}"),
            _ => format!("runPolicy.backoffLimit is {limit}; read the failing replica's log"),
        };
        draft.notes.push(Note::warning(reason, hint));
    }
    warn_of_running_pods(cx.job, observed, draft);
}

/// Records the pods that failed the job.
pub fn remember_role<J: TrainingJob>(
    cx: &JobCx<'_, J>,
    census: &Census<'_>,
    role: &str,
    draft: &mut Draft,
) {
    let of_role = |s: &&Slot<'_>| cx.roles.iter().nth(s.role).is_some_and(|r| r.key == role);
    let slots = census.slots.iter().filter(of_role);
    remember(cx, slots.filter_map(failed_pod).collect(), draft);
}

/// Ends the job: condition, completion time, events.
pub fn end(draft: &mut Draft, reason: &str, message: &str, note: Note) {
    draft.set(ConditionType::Failed, true, reason, message);
    draft.complete();
    draft.state.made_from = None;
    draft.transitions.push(Transition::Failed);
    draft.notes.push(note);
    draft.urgency(Urgency::First);
}

/// Warns that pods of an ended job still hold their resources because the clean-up policy keeps them.
pub(super) fn warn_of_running_pods<J: TrainingJob>(
    job: &J,
    observed: &Observed,
    draft: &mut Draft,
) {
    let running = observed
        .pods
        .iter()
        .filter(|p| p.phase == PodPhase::Running);
    let active = running.count();
    if active > 0 && finished::policy(job, &draft.state, observed.rules) == CleanPodPolicy::None {
        draft.notes.push(still_running(active, "pod"));
    }
}

/// Returns the warning that so many pods of an ended job still run.
pub fn still_running(count: usize, noun: &str) -> Note {
    let verb = if count == 1 {
        " still runs"
    } else {
        "s still run"
    };
    Note::warning(
        "PodsStillRunning",
        format!("{count} {noun}{verb}, because runPolicy.cleanPodPolicy is None"),
    )
}
