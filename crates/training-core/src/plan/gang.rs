//! The gang of a job: its groups are there before its first pod, stay through every restart, and go once at its end.

use k8s_openapi::jiff::SignedDuration;
use kube::ResourceExt;
use serde_json::{Map, Value, json};
use training_api::{ConditionType, labels as keys};

use super::draft::Draft;
use super::need::need;
use crate::kind::framework::{Framework, Habits, JobCx, TrainingJob};
use crate::model::census::{Census, SlotState};
use crate::model::error::SpecError;
use crate::model::group::{GroupKind, GroupView, Offer};
use crate::model::notes::Note;
use crate::model::observed::Observed;
use crate::model::provider::{Provider, Run};
use crate::model::step::{Step, Urgency};
use crate::model::view::PodView;
use crate::render::gang::{Gang, GangState, KUEUE_QUEUE, Need, Owner, Wanted, scheduler_of};
use crate::render::pod::owner;

/// A scheduler that has not answered for so long is told about.
const PATIENCE: SignedDuration = SignedDuration::from_secs(30);

/// Whether pods may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// They may.
    Open,
    /// Not yet.
    Closed,
}

/// A run begins: who schedules it is what the operator is set to, unless its pods are there already and say otherwise.
pub fn begin<J: TrainingJob>(cx: &JobCx<'_, J>, seen: &Observed, draft: &mut Draft) {
    let known = draft.memory.gang.clone().unwrap_or_default();
    let provider = of_pods(seen, draft).map(|p| named(p, cx, seen, draft));
    let provider = provider.unwrap_or_else(|| seen.gang.provider.clone());
    remember(draft, known.next(provider));
}

/// A run that another operator began is scheduled as its pods say.
pub fn take_over<J: TrainingJob>(cx: &JobCx<'_, J>, seen: &Observed, draft: &mut Draft) {
    if draft.memory.gang.is_none() && draft.memory.made_from.is_none() {
        begin(cx, seen, draft);
    }
}

/// The provider with the scheduler that pods of the run name, where that is not their template's own.
fn named<J: TrainingJob>(
    provider: Provider,
    cx: &JobCx<'_, J>,
    seen: &Observed,
    draft: &Draft,
) -> Provider {
    if !matches!(provider, Provider::SchedulerPlugins(_)) {
        return provider;
    }
    let given = |pod: &&PodView| {
        let role = cx.roles.by_label(&pod.role);
        role.is_some_and(|(_, role)| scheduler_of(role).is_none())
    };
    let mut names = present(seen, draft).filter(given);
    match names.find_map(|pod| pod.scheduler.as_deref()) {
        Some(name) => Provider::SchedulerPlugins(name.as_str().into()),
        None => provider,
    }
}

/// Who schedules the pods of the present run; `None` where there are none.
fn of_pods(seen: &Observed, draft: &Draft) -> Option<Provider> {
    let marks: Vec<_> = present(seen, draft).map(|p| p.mark).collect();
    let set = &seen.gang.provider;
    let marked = marks.iter().find_map(|mark| Provider::of_mark(*mark, set));
    (!marks.is_empty()).then(|| marked.unwrap_or_default())
}

/// The pods of the present run.
fn present<'a>(seen: &'a Observed, draft: &Draft) -> impl Iterator<Item = &'a PodView> {
    let attempt = draft.memory.gang_attempt;
    seen.pods.iter().filter(move |p| p.attempt.gang >= attempt)
}

/// It is stored before the first group: another operator, set otherwise, would not look for it.
fn remember(draft: &mut Draft, run: Run) {
    let run = Some(run).filter(|r| !r.is_plain());
    if draft.memory.gang != run {
        draft.memory.gang = run;
        draft.urgency(Urgency::First);
    }
}

/// True while a scheduler that lets jobs start has not let this one. Such a job has not started.
pub fn holds_back(habits: Habits, seen: &Observed, draft: &Draft) -> bool {
    let Some(run) = draft
        .memory
        .gang
        .as_ref()
        .filter(|_| habits == Habits::Training)
    else {
        return false;
    };
    let behaviour = run.provider.behaviour();
    let admitted = |kind: &GroupKind| {
        let group = seen.groups.iter().find(|g| g.kind == *kind && !g.leaving);
        group.is_some_and(|g| behaviour.read(g) == GangState::Admitted)
    };
    behaviour.holds_back() && seen.pods.is_empty() && !run.provider.kinds().iter().all(admitted)
}

/// What users should be told once about how the job is scheduled.
pub(super) fn advise<F: Framework>(
    framework: &F,
    cx: &JobCx<'_, F::Job>,
    seen: &Observed,
) -> Vec<Note> {
    let habits = framework.gang_habits(cx);
    let gang = assemble(cx, seen, &seen.gang.provider, Need::default(), habits);
    let mut notes = gang.provider.behaviour().advise(&gang);
    let policy = cx.job.run_policy();
    let timeout = gang.policy.and_then(|p| p.schedule_timeout_seconds);
    if let (Some(timeout), Some(deadline)) = (timeout, policy.active_deadline_seconds)
        && i64::from(timeout) > deadline
    {
        let text = format!(
            "spec.runPolicy.schedulingPolicy.scheduleTimeoutSeconds: {timeout} is longer than activeDeadlineSeconds, {deadline}: the job ends before its scheduler gives up"
        );
        notes.push(Note::warning("RiskySetting", text));
    }
    notes
}

/// The gang of a run that is scheduled as one.
///
/// # Errors
/// The field of the spec that makes a pod impossible.
pub fn of<'a, F: Framework>(
    framework: &F,
    cx: &'a JobCx<'a, F::Job>,
    seen: &'a Observed,
    census: &Census<'_>,
    run: &'a Run,
) -> Result<Option<Gang<'a>>, SpecError> {
    if run.provider.kinds().is_empty() || cx.roles.total() == 0 {
        return Ok(None);
    }
    let need = need(framework, cx, census)?;
    let habits = framework.gang_habits(cx);
    Ok(Some(assemble(cx, seen, &run.provider, need, habits)))
}

fn assemble<'a, J: TrainingJob>(
    cx: &'a JobCx<'a, J>,
    seen: &'a Observed,
    provider: &'a Provider,
    need: Need,
    habits: Habits,
) -> Gang<'a> {
    Gang {
        job: cx.name,
        owner: Owner {
            group: J::group(&()).into_owned(),
            kind: J::kind(&()).into_owned(),
        },
        roles: cx.roles,
        policy: cx.job.run_policy().scheduling_policy.as_ref(),
        need,
        provider,
        seen: &seen.groups,
        queue: cx.job.labels().get(KUEUE_QUEUE).map(String::as_str),
        kueue: seen.gang.kueue,
        habits,
        first_class: None,
        annotated_queue: cx
            .annotation(keys::VOLCANO_QUEUE)
            .filter(|queue| !queue.is_empty()),
    }
}

/// Makes and changes the groups of a gang. The gate is open once all of them are there and their scheduler has no objection.
pub fn settle<F: Framework>(
    cx: &JobCx<'_, F::Job>,
    seen: &Observed,
    census: &Census<'_>,
    gang: &Gang<'_>,
    draft: &mut Draft,
) -> Gate {
    let behaviour = gang.provider.behaviour();
    if let Some(objection) = behaviour.objection(gang) {
        return hold(draft, census, "GangInvalid", objection);
    }
    let mut all = Vec::new();
    for kind in gang.provider.kinds() {
        match seen.gang.offers.of(*kind) {
            Offer::Served(version) => all.push((*kind, *version)),
            Offer::Unknown => return Gate::Closed,
            Offer::Unanswered(words) => {
                let text = unanswered(gang.provider, *kind, words);
                return hold(draft, census, "SchedulerMissing", text);
            }
            Offer::Denied(words) => return hold(draft, census, "Forbidden", words.clone()),
            Offer::Missing => {
                let text = missing(gang.provider, *kind);
                return hold(draft, census, "SchedulerMissing", text);
            }
        }
    }
    for (kind, version) in all {
        let wanted = behaviour.wanted(gang, kind, version);
        let Some(group) = gang.group(kind) else {
            draft
                .steps
                .push(create::<F>(cx, gang.habits, &wanted, version));
            draft.again = true;
            return Gate::Closed;
        };
        if group.leaving {
            if group.digest.is_none() {
                // Its end would not be seen without our label.
                draft.steps.push(mark::<F>(cx, group, &wanted, version));
            }
            let text = format!(
                "the {} of the former run is being deleted; the job goes on when it is gone",
                kind.kind()
            );
            return hold(draft, census, "GangWaiting", text);
        }
        if !follows(group, &wanted, gang.need.members) {
            draft.steps.push(change::<F>(cx, group, &wanted, version));
        }
        if gang.habits == Habits::Training
            && let GangState::Waiting(why) = behaviour.read(group)
        {
            return wait(draft, census, group, why);
        }
    }
    Gate::Open
}

/// Nothing can be made. What runs has nothing to wait for.
fn hold(draft: &mut Draft, census: &Census<'_>, reason: &'static str, message: String) -> Gate {
    if census.slots.iter().any(|s| s.state == SlotState::Empty) {
        draft.stall = Some((reason, message));
    }
    Gate::Closed
}

/// The scheduler has not answered. That is ordinary for a moment.
fn wait(draft: &mut Draft, census: &Census<'_>, group: &GroupView, why: String) -> Gate {
    let due = group.since.and_then(|s| s.checked_add(PATIENCE).ok());
    match due {
        Some(at) if at > draft.now => {
            draft.wake_after(at, 0);
            Gate::Closed
        }
        Some(_) | None => hold(draft, census, "GangWaiting", why),
    }
}

fn missing(provider: &Provider, kind: GroupKind) -> String {
    format!(
        "the operator schedules gangs with {provider}, but the cluster does not serve {}",
        spelled(kind)
    )
}

fn unanswered(provider: &Provider, kind: GroupKind, words: &str) -> String {
    format!(
        "the operator schedules gangs with {provider}, but can't learn whether the cluster serves {}; it asks again: {words}",
        spelled(kind)
    )
}

/// A kind with the versions that we can write.
fn spelled(kind: GroupKind) -> String {
    let versions = kind.versions().iter();
    let versions: Vec<String> = versions.map(|v| format!("{}/{v}", kind.group())).collect();
    format!("{} ({})", kind.kind(), versions.join(" or "))
}

/// True if a group is as the job wants it, as far as it follows the job.
fn follows(group: &GroupView, wanted: &Wanted, members: u32) -> bool {
    // One that another operator made has no digest. It gets one, and our label, or nobody would see it again.
    group.digest == Some(wanted.digest())
        && (wanted.follows.is_null() || group.min == Some(members))
}

/// The labels by which a group is watched, and what it was made to follow.
fn marks<F: Framework>(cx: &JobCx<'_, F::Job>, wanted: &Wanted) -> Value {
    json!({
        "labels": {keys::OPERATOR_NAME: F::CONTROLLER, keys::JOB_NAME: cx.name},
        "annotations": {keys::GANG: wanted.digest().to_string()},
    })
}

fn create<F: Framework>(
    cx: &JobCx<'_, F::Job>,
    habits: Habits,
    wanted: &Wanted,
    version: &'static str,
) -> Step {
    let kind = wanted.kind;
    let mut metadata = marks::<F>(cx, wanted);
    metadata["name"] = json!(cx.name);
    metadata["namespace"] = json!(cx.namespace);
    metadata["ownerReferences"] = json!([owner(cx.job)]);
    if matches!(kind, GroupKind::Volcano | GroupKind::SchedulerPlugins)
        && let Some(annotations) = metadata["annotations"].as_object_mut()
    {
        // As published: these schedulers are also configured by annotations, and users write them on the job. Where the queue alone
        // is read from there, it stands in the spec.
        let copied = habits == Habits::Training;
        let of_job = cx.job.annotations().iter().filter(|_| copied);
        let of_job = of_job.map(|(key, value)| (key.clone(), json!(value)));
        let ours = std::mem::take(annotations);
        annotations.extend(of_job.chain(ours));
    }
    Step::CreateGroup {
        kind,
        version,
        object: Box::new(json!({
            "apiVersion": format!("{}/{version}", kind.group()),
            "kind": kind.kind(),
            "metadata": metadata,
            "spec": without_nulls(&wanted.spec),
        })),
    }
}

fn change<F: Framework>(
    cx: &JobCx<'_, F::Job>,
    group: &GroupView,
    wanted: &Wanted,
    version: &'static str,
) -> Step {
    let mut spec = wanted.follows.clone();
    if let Some(resources) = spec.get_mut("minResources").and_then(Value::as_object_mut) {
        // A merge keeps what it does not name.
        for name in &group.resources {
            resources.entry(name.clone()).or_insert(Value::Null);
        }
    }
    patch::<F>(cx, group, wanted, spec, version)
}

/// Gives a group our label, and nothing else.
fn mark<F: Framework>(
    cx: &JobCx<'_, F::Job>,
    group: &GroupView,
    wanted: &Wanted,
    version: &'static str,
) -> Step {
    patch::<F>(cx, group, wanted, Value::Null, version)
}

fn patch<F: Framework>(
    cx: &JobCx<'_, F::Job>,
    group: &GroupView,
    wanted: &Wanted,
    spec: Value,
    version: &'static str,
) -> Step {
    let mut metadata = marks::<F>(cx, wanted);
    metadata["uid"] = json!(group.uid.to_string());
    metadata["resourceVersion"] = json!(group.version.to_string());
    let mut patch = json!({"metadata": metadata});
    if !spec.is_null() {
        patch["spec"] = spec;
    }
    Step::ChangeGroup {
        kind: group.kind,
        version,
        name: cx.name.to_owned(),
        uid: group.uid,
        patch: Box::new(patch),
    }
}

/// Without what is null: an object that is made has no fields to remove.
fn without_nulls(value: &Value) -> Value {
    let Value::Object(fields) = value else {
        return value.clone();
    };
    let kept = fields.iter().filter(|(_, v)| !v.is_null());
    let kept: Map<String, Value> = kept.map(|(k, v)| (k.clone(), without_nulls(v))).collect();
    Value::Object(kept)
}

/// Removes groups that the run has no use for, and forgets former schedulers that have left nothing.
pub fn clear(job: &str, seen: &Observed, draft: &mut Draft) {
    let run = draft.memory.gang.clone().unwrap_or_default();
    let own = run.provider.kinds();
    delete(job, seen, draft, |kind| !own.contains(&kind));
    let gone = |kind: &GroupKind| match seen.gang.offers.of(*kind) {
        Offer::Served(_) => !seen.groups.iter().any(|g| g.kind == *kind),
        // Its objects went with it.
        Offer::Missing => true,
        Offer::Unknown | Offer::Unanswered(_) | Offer::Denied(_) => false,
    };
    if let Some(run) = &mut draft.memory.gang {
        run.former.retain(|f| !f.kinds().iter().all(gone));
    }
    draft.memory.gang.take_if(|run| run.is_plain());
}

/// A job at rest has no groups. What another operator may have left is looked for, and forgotten when it is gone.
pub fn remove(job: &str, seen: &Observed, draft: &mut Draft) {
    delete(job, seen, draft, |_| true);
    let Some(mut run) = draft.memory.gang.take() else {
        return;
    };
    run.former.retain(|former| {
        !former
            .kinds()
            .iter()
            .all(|kind| is_gone(*kind, seen, draft))
    });
    draft.memory.gang = Some(run).filter(|run| !run.is_plain());
}

/// Whether a group that the watch need not show is gone; where nobody knows, it is looked for.
fn is_gone(kind: GroupKind, seen: &Observed, draft: &mut Draft) -> bool {
    let there = seen.groups.iter().any(|g| g.kind == kind);
    match seen.gang.offers.of(kind) {
        Offer::Missing => true,
        Offer::Served(_) if there => {
            draft.again |= seen.groups.iter().any(|g| g.kind == kind && !g.leaving);
            false
        }
        Offer::Served(_) if seen.sought.contains(&kind) => true,
        Offer::Served(version) => {
            draft.steps.push(Step::FindGroup { kind, version });
            draft.again = true;
            false
        }
        Offer::Unknown | Offer::Unanswered(_) | Offer::Denied(_) => false,
    }
}

/// Who may have made groups for a run that another operator began, so that none of them has our label.
pub(super) fn foreign(seen: &Observed, draft: &Draft) -> Option<Provider> {
    let memory = &draft.memory;
    let begun = memory.holds(ConditionType::Created) && !memory.holds(ConditionType::Suspended);
    if !begun || memory.is_finished() || memory.gang.is_some() || memory.made_from.is_some() {
        return None;
    }
    let provider = of_pods(seen, draft).unwrap_or_else(|| seen.gang.provider.clone());
    let shown = |kind: &GroupKind| seen.groups.iter().any(|g| g.kind == *kind);
    (!provider.kinds().iter().all(shown)).then_some(provider)
}

/// The run of another operator is over before its groups were taken in. What is to be removed is stored before it is looked for.
pub(super) fn leave(provider: Provider, draft: &mut Draft) {
    draft.memory.gang = Some(Run {
        provider: Provider::None,
        former: vec![provider],
    });
    draft.urgency(Urgency::First);
}

fn delete(job: &str, seen: &Observed, draft: &mut Draft, goes: impl Fn(GroupKind) -> bool) {
    for group in seen.groups.iter().filter(|g| !g.leaving && goes(g.kind)) {
        if let Offer::Served(version) = seen.gang.offers.of(group.kind) {
            draft.steps.push(Step::DeleteGroup {
                kind: group.kind,
                version,
                name: job.to_owned(),
                uid: group.uid,
            });
        }
    }
}
