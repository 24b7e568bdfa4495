//! The decision function. It never fails, panics or reads the clock. The same input gives the same plan, byte for byte.
//!
//! The code asks its questions in the order in which they matter.

pub mod advice;
mod autoscaler;
mod counts;
pub mod creates;
pub mod draft;
pub mod edits;
pub mod failing;
pub mod finished;
pub mod gang;
pub mod lost;
mod need;
pub mod progress;
pub mod restart;
mod running;
mod stalled;
pub mod suspended;

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use kube::{Resource, ResourceExt};
use training_api::{ConditionType, JobStatus};

use self::draft::{Draft, shorten};
use crate::kind::check;
use crate::kind::framework::{Framework, JobCx, Stored as _, TrainingJob};
use crate::model::census::{Census, SlotState};
use crate::model::durable_state::{DurableState, JobState};
use crate::model::error::SpecError;
use crate::model::notes::{ForgedPod, Note};
use crate::model::object::BatchPod;
use crate::model::observed::Observed;
use crate::model::roles::RoleSet;
use crate::model::step::{Plan, Transition, Urgency};
use crate::model::uid::Uid;
use crate::model::verdict::JobMessage;
use crate::render::pod;

/// What the plan does in each phase of a job's life cycle. A kind overrides the methods where its jobs differ.
pub trait Lifecycle: Framework + Sized {
    /// Reconciles a job that is neither finished nor suspended: reads the state of its pods and creates what is missing.
    ///
    /// # Errors
    /// As [`Framework::roles`].
    fn advance(
        &self,
        cx: &JobCx<'_, Self::Job>,
        observed: &Observed,
        draft: &mut Draft,
    ) -> Result<(), SpecError> {
        advance(self, cx, observed, draft)
    }

    /// Reconciles a suspended job.
    ///
    /// # Errors
    /// As [`Framework::roles`].
    fn rest(
        &self,
        cx: &JobCx<'_, Self::Job>,
        observed: &Observed,
        draft: &mut Draft,
    ) -> Result<(), SpecError> {
        suspended::decide(self, cx, observed, draft);
        Ok(())
    }

    /// Reconciles an unfinished job whose spec can't be read: its deadline still counts.
    fn expire(&self, cx: &JobCx<'_, Self::Job>, observed: &Observed, draft: &mut Draft) {
        progress::end_at_deadline(self, cx, observed, draft);
    }

    /// Reconciles a finished job.
    fn clean_up(&self, job: &Self::Job, observed: &Observed, draft: &mut Draft) {
        finished::decide(draft, job, observed);
    }
}

/// Decides what to do for one job from its observed state.
///
/// `now` must be in whole seconds: the status stores whole seconds, so a finer time would never equal the stored one.
pub fn plan<F: Lifecycle>(
    framework: &F,
    job: &F::Job,
    observed: &Observed,
    now: Timestamp,
) -> Plan<JobStatus> {
    Plan {
        forged: observed.forged_pods.iter().map(forged).collect(),
        ..decide(framework, job, observed, now)
    }
}

/// The Warning of a pod that the controller of Jobs didn't create.
fn forged(pod: &BatchPod) -> ForgedPod {
    let text = format!(
        "pod {} names the launcher's Job as its owner, but the Job did not create it: the operator ignores it. \
         Find out who created it, and delete it",
        pod.name
    );
    ForgedPod {
        uid: pod.pod.uid,
        note: Note::warning("UnknownLauncherPod", text),
    }
}

fn decide<F: Lifecycle>(
    framework: &F,
    job: &F::Job,
    observed: &Observed,
    now: Timestamp,
) -> Plan<JobStatus> {
    if job.meta().deletion_timestamp.is_some() || is_managed_elsewhere::<F>(job) {
        return Plan::default();
    }
    let old = job.status().cloned().unwrap_or_default();
    let state = old.durable_state();
    let mut draft = Draft::new(state, now);
    F::Job::reread(&mut draft.state);
    if draft.state.is_finished() {
        framework.clean_up(job, observed, &mut draft);
        lost::remove(&job.name_any(), Uid::of(job.meta()), observed, &mut draft);
        return draft.into_plan(&old, job.meta().generation);
    }
    let foreign = gang::foreign(observed, &draft);
    // The spec is validated when a run starts. A later edit that makes it invalid neither stops the pods nor prevents a suspend.
    let suspended = job.run_policy().suspend == Some(true);
    let resumes = !suspended && draft.state.holds(ConditionType::Suspended);
    let runs = draft.state.started.is_some() && !resumes;
    match framework.roles(job) {
        Ok(mut roles) => {
            let mut wrong = check::run_policy(job.run_policy()).err();
            if observed.rules.strict && wrong.is_none() {
                wrong = check::strict(job.run_policy(), &roles).err();
            }
            if let Some(error) = within(&roles, observed.rules.max_replicas) {
                match accepted(&draft.state) {
                    _ if !runs => wrong = Some(error),
                    // The job continues with the replicas that it has.
                    Some(accepted) if roles.total() > accepted => {
                        wrong = Some(error);
                        roles.limit(accepted);
                    }
                    // Another operator may have started the job.
                    Some(_) | None => {}
                }
            }
            let cx = JobCx::new(job, &roles);
            unfinished(framework, &cx, observed, &mut draft, runs, wrong);
        }
        Err(error) if runs => {
            let roles = RoleSet::default();
            let cx = JobCx::new(job, &roles);
            if suspended {
                // The error is reported below.
                let _ = framework.rest(&cx, observed, &mut draft);
            } else {
                // The deadline can still be read.
                framework.expire(&cx, observed, &mut draft);
            }
            if !draft.state.is_finished() {
                stalled::refuse(&mut draft, &error);
            }
        }
        Err(error) => invalid(framework, &mut draft, job, observed, &error),
    }
    let state = &draft.state;
    let rests = state.is_finished() || state.holds(ConditionType::Suspended);
    if let Some(provider) = foreign.filter(|_| rests) {
        gang::leave(provider, &mut draft);
    }
    draft.into_plan(&old, job.meta().generation)
}

/// Returns true if `spec.runPolicy.managedBy` names another controller. The operator leaves such a job alone, including its status.
pub fn is_managed_elsewhere<F: Framework>(job: &F::Job) -> bool {
    let manager = job.run_policy().managed_by.as_deref();
    manager.is_some_and(|m| !F::MANAGED_BY.contains(&m))
}

/// Returns the number of replicas that a running job already has, if known. A limit that is lowered later doesn't apply to it.
fn accepted(state: &DurableState) -> Option<u32> {
    let (_, total) = state.ready.as_deref()?.split_once('/')?;
    total.parse().ok()
}

/// Rejects a job with more replicas than the operator allows: one job must not use up the memory for all others.
fn within(roles: &RoleSet<'_>, most: u32) -> Option<SpecError> {
    let total = roles.total();
    let largest = roles.iter().max_by_key(|r| r.replicas);
    largest.filter(|_| total > most).map(|largest| {
        SpecError::new(
            format!("{}.replicas", largest.path),
            format!(
                "{total} replicas are more than this operator runs in one job; use at most {most}"
            ),
        )
    })
}

/// Reconciles a job that has not finished. `error` is the problem in the spec; `runs` is true if the run has started.
fn unfinished<F: Lifecycle>(
    framework: &F,
    cx: &JobCx<'_, F::Job>,
    observed: &Observed,
    draft: &mut Draft,
    runs: bool,
    error: Option<SpecError>,
) {
    let suspended = cx.job.run_policy().suspend == Some(true);
    if let Some(error) = error.as_ref().filter(|_| !runs) {
        return invalid(framework, draft, cx.job, observed, error);
    }
    if !draft.state.holds(ConditionType::Created) {
        created(framework, cx, observed, draft, suspended);
    }
    // A job that has run waits until its template is fixed.
    let ran = [ConditionType::Running, ConditionType::Restarting];
    let ran = ran.into_iter().any(|type_| draft.state.holds(type_));
    if let Some(stall) = observed.stall.as_ref().filter(|s| s.permanent && !ran) {
        let error = SpecError::new(
            "the API server refused an object of the job",
            stall.message.clone(),
        );
        return invalid(framework, draft, cx.job, observed, &error);
    }
    if suspended || !runs {
        restart::store_restart_request(cx, &mut draft.state);
    }
    let outcome = if suspended {
        framework.rest(cx, observed, draft)
    } else {
        framework.advance(cx, observed, draft)
    };
    match outcome.err().or(error) {
        Some(error) if runs => stalled::by_spec(draft, &error),
        Some(error) => invalid(framework, draft, cx.job, observed, &error),
        None => {}
    }
    let endless = (!suspended).then(|| framework.why_endless(cx)).flatten();
    // A job that ends in this reconcile can't be stalled any more.
    if !draft.state.is_finished() {
        stalled::report(cx, observed, endless.as_deref(), draft);
        lost::remove(cx.name, Uid::of(cx.job.meta()), observed, draft);
    }
}

/// The default reconcile of a job that is neither finished nor suspended.
///
/// # Errors
/// The error names the field of the spec that makes the job impossible to run.
pub fn advance<F: Framework>(
    framework: &F,
    cx: &JobCx<'_, F::Job>,
    observed: &Observed,
    draft: &mut Draft,
) -> Result<(), SpecError> {
    if draft.state.holds(ConditionType::Suspended) {
        suspended::resume(framework, cx, observed, draft);
    }
    if draft.starts {
        gang::begin(cx, observed, draft);
    } else {
        gang::take_over(cx, observed, draft);
    }
    let census = Census::take(cx.roles, observed, &draft.state);
    if draft.state.started.is_none()
        && !gang::blocks_start(framework.gang_conventions(cx), observed, draft)
    {
        draft.state.started = Some(draft.now);
        draft.urgency(Urgency::Parallel);
    }
    forget_former(cx.roles, &mut draft.state);
    remember_finished(&census, cx.roles, &mut draft.state);
    let made = progress::decide(framework, cx, observed, &census, draft);
    // If the job ends in this reconcile, the next one deletes the autoscaler.
    if !draft.state.is_finished() {
        edits::notice(framework, cx, observed, draft);
        autoscaler::ensure(framework, cx, observed, draft);
    }
    made
}

/// Handles the first reconcile of a job: sets its first condition and records the events that users see once.
fn created<F: Framework>(
    framework: &F,
    cx: &JobCx<'_, F::Job>,
    observed: &Observed,
    draft: &mut Draft,
    suspended: bool,
) {
    let kind = F::Job::kind(&());
    let message = framework.message(cx, &JobMessage::Created);
    draft.set(
        ConditionType::Created,
        true,
        &format!("{kind}Created"),
        &message,
    );
    draft.transitions.push(Transition::Created);
    draft.urgency(Urgency::Parallel);
    draft.starts = !suspended;
    for role in cx.roles {
        let ignored_policy = framework.ignored_restart_policy(cx, role);
        draft.notes.extend(pod::advise(role, ignored_policy));
    }
    draft.notes.extend(advice::of_policies(cx));
    draft.notes.extend(framework.advise(cx));
    draft.notes.extend(gang::advise(framework, cx, observed));
}

/// Forgets finished replicas that the spec no longer has. They run again if the job is scaled up again.
fn forget_former(roles: &RoleSet<'_>, state: &mut DurableState) {
    state.finished.retain(|label, indices| {
        let role = roles.by_label(label);
        indices.truncate(role.map_or(0, |(_, role)| role.replicas));
        !indices.is_empty()
    });
}

/// Remembers replicas that succeeded, so that they never run again even if their pods are deleted.
fn remember_finished(census: &Census<'_>, roles: &RoleSet<'_>, state: &mut DurableState) {
    for (slot, rank) in census.slots.iter().zip(roles.ranks()) {
        if slot.state == SlotState::Finished && !state.has_finished(&rank.role.label, slot.index) {
            state
                .finished
                .entry(rank.role.label.clone())
                .or_default()
                .insert(slot.index);
        }
    }
}

/// Fails a job with an invalid spec before its run starts.
fn invalid<F: Framework>(
    framework: &F,
    draft: &mut Draft,
    job: &F::Job,
    observed: &Observed,
    error: &SpecError,
) {
    let kind = F::Job::kind(&());
    if !draft.state.holds(ConditionType::Created) {
        let roles = RoleSet::default();
        let message = framework.message(&JobCx::new(job, &roles), &JobMessage::Created);
        draft.set(
            ConditionType::Created,
            true,
            &format!("{kind}Created"),
            &message,
        );
        draft.transitions.push(Transition::Created);
    }
    draft.steps.clear();
    let message = shorten(&error.to_string(), 1024);
    let (reason, begins) = F::INVALID;
    let note = Note::warning(reason, shorten(&format!("{begins}{message}"), 1024));
    failing::end(draft, "InvalidSpec", &message, note);
    failing::warn_of_running_pods(job, observed, draft);
    if draft.state.counts.is_none() {
        draft.state.counts = Some(BTreeMap::new());
    }
}
