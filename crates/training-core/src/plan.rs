//! The one decision function. It is total: it never fails, never panics, never asks the time; the same input gives the same
//! plan, byte for byte.
//!
//! The order of questions is the order of the code.

mod advice;
pub mod failing;
pub mod finished;
pub mod gang;
mod lost;
pub mod progress;
mod stalled;
pub mod suspended;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::{Resource, ResourceExt};
use training_api::{ConditionType, JobStatus, LastFailure, ReplicaStatus};

use crate::autoscaler;
use crate::census::{Census, Count};
use crate::check;
use crate::conditions;
use crate::error::SpecError;
use crate::framework::{Framework, JobCx, JobState, TrainingJob};
use crate::memory::Memory;
use crate::mould;
use crate::names;
use crate::notes::Note;
use crate::observed::Observed;
use crate::patch::merge_patch;
use crate::pod;
use crate::roles::RoleSet;
use crate::step::{Deletion, Plan, StatusWrite, Step, Transition, Urgency};
use crate::trouble::obituary;
use crate::verdict::Saying;
use crate::view::PodView;

/// Decides what is to be done for one job, from what was seen of it.
///
/// `now` is in whole seconds: a time in a status is stored in whole seconds, and a finer one would never equal it.
pub fn plan<F: Framework>(
    framework: &F,
    job: &F::Job,
    seen: &Observed,
    now: Timestamp,
) -> Plan<JobStatus> {
    if job.meta().deletion_timestamp.is_some() || is_managed_elsewhere::<F>(job) {
        return Plan::default();
    }
    let old = job.status().cloned().unwrap_or_default();
    let memory = old.recall();
    let mut draft = Draft::new(memory, now);
    framework.reread(&mut draft.memory);
    if draft.memory.is_finished() {
        framework.clean_up(job, seen, &mut draft);
        lost::remove(&job.name_any(), seen, &mut draft);
        return draft.into_plan(&old);
    }
    let foreign = gang::foreign(seen, &draft);
    match framework
        .roles(job)
        .and_then(|r| within(r, seen.rules.most_replicas))
        .and_then(|r| check::run_policy(job.run_policy()).map(|()| r))
    {
        Ok(roles) => {
            let cx = JobCx::new(job, &roles);
            unfinished(framework, &cx, seen, &mut draft);
        }
        Err(error) => invalid(framework, &mut draft, job, seen, &error),
    }
    let memory = &draft.memory;
    let rests = memory.is_finished() || memory.holds(ConditionType::Suspended);
    if let Some(provider) = foreign.filter(|_| rests) {
        gang::leave(provider, &mut draft);
    }
    draft.into_plan(&old)
}

/// True if `spec.runPolicy.managedBy` names another controller. Such a job is not touched at all, not even its status.
pub fn is_managed_elsewhere<F: Framework>(job: &F::Job) -> bool {
    let manager = job.run_policy().managed_by.as_deref();
    manager.is_some_and(|m| !F::MANAGED_BY.contains(&m))
}

/// Refuses more replicas than the operator is set to bear: one job must not take the memory of all others.
fn within(roles: RoleSet<'_>, most: u32) -> Result<RoleSet<'_>, SpecError> {
    let total = roles.total();
    match roles.iter().max_by_key(|r| r.replicas) {
        Some(largest) if total > most => Err(SpecError::new(
            format!("{}.replicas", largest.path),
            format!(
                "{total} replicas are more than this operator runs in one job; use at most {most}"
            ),
        )),
        Some(_) | None => Ok(roles),
    }
}

fn unfinished<F: Framework>(
    framework: &F,
    cx: &JobCx<'_, F::Job>,
    seen: &Observed,
    draft: &mut Draft,
) {
    let suspended = cx.job.run_policy().suspend == Some(true);
    if !draft.memory.holds(ConditionType::Created) {
        created(framework, cx, seen, draft, suspended);
    }
    if let Some(stall) = seen.stall.as_ref().filter(|s| s.hopeless) {
        let error = SpecError::new(
            "the API server refused an object of the job",
            stall.message.clone(),
        );
        return invalid(framework, draft, cx.job, seen, &error);
    }
    let outcome = if suspended {
        framework.rest(cx, seen, draft)
    } else {
        framework.advance(cx, seen, draft)
    };
    if let Err(error) = outcome {
        invalid(framework, draft, cx.job, seen, &error);
    }
    let endless = (!suspended).then(|| framework.endless(cx)).flatten();
    // A job that ends in this very pass is not kept from anything any more.
    if !draft.memory.is_finished() {
        stalled::report(cx, seen, endless.as_deref(), draft);
        lost::remove(cx.name, seen, draft);
    }
}

/// The common course of a job that is neither finished nor suspended.
///
/// # Errors
/// The field of the spec that makes the job impossible to run.
pub fn advance<F: Framework>(
    framework: &F,
    cx: &JobCx<'_, F::Job>,
    seen: &Observed,
    draft: &mut Draft,
) -> Result<(), SpecError> {
    if draft.memory.holds(ConditionType::Suspended) {
        suspended::resume(framework, cx, seen, draft);
    }
    if draft.starts {
        gang::begin(cx, seen, draft);
    } else {
        gang::take_over(cx, seen, draft);
    }
    let census = Census::take(cx.roles, seen, &draft.memory);
    if draft.memory.started.is_none() && !gang::holds_back(framework.gang_habits(cx), seen, draft) {
        draft.memory.started = Some(draft.now);
        draft.urgency(Urgency::Beside);
    }
    remember_finished(&census, cx.roles, &mut draft.memory);
    progress::decide(framework, cx, seen, &census, draft)?;
    // A job that ends in this very pass loses it in the next.
    if !draft.memory.is_finished() {
        mould::notice(framework, cx, seen, draft);
        autoscaler::settle(framework, cx, seen, draft);
    }
    Ok(())
}

/// The first look at a job: its first condition, and everything that users should be told once.
fn created<F: Framework>(
    framework: &F,
    cx: &JobCx<'_, F::Job>,
    seen: &Observed,
    draft: &mut Draft,
    suspended: bool,
) {
    let kind = F::Job::kind(&());
    let message = framework.say(cx, &Saying::Created);
    draft.set(
        ConditionType::Created,
        true,
        &format!("{kind}Created"),
        &message,
    );
    draft.transitions.push(Transition::Created);
    draft.urgency(Urgency::Beside);
    draft.starts = !suspended;
    for role in cx.roles {
        draft.notes.extend(pod::advise(role));
    }
    draft.notes.extend(advice::of_policies(cx));
    draft.notes.extend(framework.advise(cx));
    draft.notes.extend(gang::advise(framework, cx, seen));
}

/// A replica that ended well is remembered, so that it is never run again even when its pod is removed.
fn remember_finished(census: &Census<'_>, roles: &RoleSet<'_>, memory: &mut Memory) {
    for (slot, rank) in census.slots.iter().zip(roles.ranks()) {
        if slot.state == crate::census::SlotState::Finished
            && !memory.has_finished(&rank.role.label, slot.index)
        {
            memory
                .finished
                .entry(rank.role.label.clone())
                .or_default()
                .insert(slot.index);
        }
    }
}

/// Ends a job whose spec can't run.
fn invalid<F: Framework>(
    framework: &F,
    draft: &mut Draft,
    job: &F::Job,
    seen: &Observed,
    error: &SpecError,
) {
    let kind = F::Job::kind(&());
    if !draft.memory.holds(ConditionType::Created) {
        let roles = RoleSet::default();
        let message = framework.say(&JobCx::new(job, &roles), &Saying::Created);
        draft.set(
            ConditionType::Created,
            true,
            &format!("{kind}Created"),
            &message,
        );
        draft.transitions.push(Transition::Created);
    }
    draft.steps.clear();
    let message = clean(&error.to_string(), 1024);
    let (reason, begins) = F::INVALID;
    let note = Note::warning(reason, clean(&format!("{begins}{message}"), 1024));
    failing::end(draft, "InvalidSpec", &message, note);
    failing::warn_of_running_pods(job, seen, draft);
    if draft.memory.counts.is_none() {
        draft.memory.counts = Some(BTreeMap::new());
    }
}

/// A plan in the making.
#[derive(Debug)]
pub struct Draft {
    /// What will be remembered.
    pub memory: Memory,
    /// The present second.
    pub now: Timestamp,
    /// What to do, deletes first.
    pub steps: Vec<Step>,
    /// What to tell, once the status is stored.
    pub notes: Vec<Note>,
    /// What to count, once the status is stored.
    pub transitions: Vec<Transition>,
    /// Look again as soon as this is carried out.
    pub again: bool,
    /// When to look again at the latest.
    pub wake: Option<Timestamp>,
    /// What keeps the job from going on, as a reason and a message.
    pub stall: Option<(&'static str, String)>,
    /// This is the pass that starts the job, or resumes it.
    pub starts: bool,
    /// What is remembered follows from what these steps make, and is not stored before the next look, unless something keeps
    /// the job from going on.
    pub withheld: bool,
    urgency: Urgency,
}

impl Draft {
    fn new(memory: Memory, now: Timestamp) -> Self {
        Self {
            memory,
            now,
            steps: Vec::new(),
            notes: Vec::new(),
            transitions: Vec::new(),
            again: false,
            wake: None,
            stall: None,
            starts: false,
            withheld: false,
            urgency: Urgency::CanWait,
        }
    }

    /// Sets a condition: see [`conditions::set`].
    pub fn set(&mut self, type_: ConditionType, holds: bool, reason: &str, message: &str) {
        conditions::set(
            &mut self.memory.conditions,
            type_,
            holds,
            reason,
            message,
            self.now,
        );
    }

    /// The job ends now, and never before it started: the clock may have been set back since.
    pub fn complete(&mut self) {
        let start = self.memory.started.unwrap_or(self.now);
        self.memory.completed = Some(self.now.max(start));
    }

    /// The status goes at least so soon.
    pub fn urgency(&mut self, urgency: Urgency) {
        self.urgency = self.urgency.max(urgency);
    }

    /// Look again so long after this time at the latest.
    pub fn wake_after(&mut self, start: Timestamp, seconds: i64) {
        // A time beyond the calendar never comes.
        if let Ok(at) = start.checked_add(SignedDuration::from_secs(seconds)) {
            self.wake = Some(self.wake.map_or(at, |w| w.min(at)));
        }
    }

    /// Deletes a replica's pod, unless it is on its way out.
    pub fn delete_pod(&mut self, job: &str, pod: &PodView) {
        if !pod.leaving {
            self.steps.push(Step::DeletePod {
                name: names::replica(job, &pod.role, pod.index),
                uid: pod.uid,
                how: Deletion::Orderly,
            });
        }
    }

    /// Records what the last failed pod said.
    pub fn remember_failure(&mut self, job: &str, namespace: &str, pod: &PodView) {
        let name = names::replica(job, &pod.role, pod.index);
        self.remember_failure_of(&name, namespace, pod);
    }

    /// The same of a pod that is no replica by its name.
    pub fn remember_failure_of(&mut self, name: &str, namespace: &str, pod: &PodView) {
        if let Some(code) = pod.exit_code.filter(|c| *c != 0) {
            self.notes.push(Note::normal(
                "ExitedWithCode",
                format!("Pod: {namespace}.{name} exited with code {code}"),
            ));
        }
        let message = self.bury(name.to_owned(), pod);
        self.notes
            .push(Note::warning("PodFailed", format!("Pod {name}: {message}")));
    }

    /// Records how the container ended that the kubelet has restarted last, in its pod.
    pub fn remember_restart(&mut self, job: &str, pod: &PodView) {
        let name = names::replica(job, &pod.role, pod.index);
        let message = self.bury(name.clone(), pod);
        self.notes.push(Note::warning(
            "ContainerRestarted",
            format!("Pod {name}: restarted in place after {message}"),
        ));
    }

    fn bury(&mut self, name: String, pod: &PodView) -> String {
        let message = clean(&obituary(pod), 1024);
        let trouble = pod.trouble.as_deref();
        let reason = trouble.map(|t| clean(&t.reason, 128));
        self.memory.last_failure = Some(LastFailure {
            pod: name,
            exit_code: trouble.and_then(|t| t.exit_code).or(pod.exit_code),
            reason: reason.filter(|r| !r.is_empty()),
            message: Some(message.clone()),
            time: Some(Time(self.now)),
        });
        message
    }

    fn into_plan(self, old: &JobStatus) -> Plan<JobStatus> {
        if self.withheld && !self.memory.holds(ConditionType::Stalled) {
            return Plan {
                steps: self.steps,
                again: self.again,
                wake: self.wake,
                ..Plan::default()
            };
        }
        let mut next = old.report(&self.memory);
        conditions::keep_times(&mut next.conditions, &old.conditions);
        // Most plans change nothing. Serialising a status of ours can't fail; if it ever did, nothing is written rather than
        // something wrong.
        let patch = (next != *old)
            .then(|| {
                let (before, after) = (serde_json::to_value(old), serde_json::to_value(&next));
                before.ok().zip(after.ok())
            })
            .flatten()
            .and_then(|(before, after)| merge_patch(&before, &after));
        let urgency = self.urgency;
        let decided = patch.is_some() && urgency == Urgency::First;
        Plan {
            status: patch.map(|patch| StatusWrite {
                next,
                patch,
                urgency,
            }),
            steps: self.steps,
            notes: self.notes,
            transitions: self.transitions,
            again: self.again || decided,
            wake: self.wake,
        }
    }
}

/// The counts of the roles as the status shows them; types that left the spec keep theirs.
pub(crate) fn count<F: Framework>(
    cx: &JobCx<'_, F::Job>,
    census: &Census<'_>,
    memory: &mut Memory,
) {
    let counts = memory.counts.get_or_insert_with(BTreeMap::new);
    for (role, count) in cx.roles.iter().zip(&census.counts) {
        let selector = F::SELECTORS.then(|| pod::selector::<F>(cx.name, &role.label));
        counts.insert(role.key.clone(), shown(*count, selector));
    }
    memory.ready = Some(format!("{}/{}", census.ready(), cx.roles.total()));
}

fn shown(count: Count, selector: Option<String>) -> ReplicaStatus {
    let number = |n: u32| i32::try_from(n).unwrap_or(i32::MAX);
    ReplicaStatus {
        active: number(count.active),
        succeeded: number(count.succeeded),
        failed: number(count.failed),
        selector,
        label_selector: None,
    }
}

/// Cuts a text at a character boundary and replaces control characters, so that nothing a pod says can harm a terminal or read
/// otherwise than it is written.
///
/// Units: `limit` in bytes.
pub fn clean(text: &str, limit: usize) -> String {
    let mut out = String::with_capacity(text.len().min(limit));
    for c in text.chars() {
        let c = match c {
            // Marks that turn the direction of what follows, or that nobody sees.
            '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}' => ' ',
            c if c.is_control() => ' ',
            c => c,
        };
        if out.len() + c.len_utf8() > limit {
            break;
        }
        out.push(c);
    }
    out
}
