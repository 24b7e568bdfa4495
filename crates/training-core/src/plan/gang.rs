//! The gang of a job: its groups exist before its first pod, outlive every restart, and are deleted once at its end.

use k8s_openapi::jiff::SignedDuration;
use kube::ResourceExt;
use serde_json::{Map, Value, json};
use training_api::{ConditionType, labels as keys};

use super::draft::Draft;
use super::need::need;
use crate::kind::framework::{Framework, GangConventions, JobCx, TrainingJob};
use crate::model::census::{Census, SlotState};
use crate::model::error::SpecError;
use crate::model::group::{Availability, GroupKind, GroupView};
use crate::model::notes::Note;
use crate::model::observed::Observed;
use crate::model::provider::{Provider, Run};
use crate::model::step::{Step, Urgency};
use crate::model::view::PodView;
use crate::render::gang::{Gang, GangState, KUEUE_QUEUE, Need, Owner, Wanted, scheduler_of};
use crate::render::pod::owner;

/// A scheduler that hasn't responded for this long is reported.
const PATIENCE: SignedDuration = SignedDuration::from_secs(30);

/// Whether pods may be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodCreation {
    /// They may.
    Allowed,
    /// Not yet.
    Blocked,
}

/// Sets the gang scheduler of a new run: the operator's setting, unless the run already has pods with another mark.
pub fn begin<J: TrainingJob>(cx: &JobCx<'_, J>, observed: &Observed, draft: &mut Draft) {
    let known = draft.state.gang.clone().unwrap_or_default();
    let provider = of_pods(observed, draft).map(|p| named(p, cx, observed, draft));
    let provider = provider.unwrap_or_else(|| observed.gang.provider.clone());
    remember(draft, known.next(provider));
}

/// Adopts the gang scheduler of a run that another operator started, by its pods.
pub fn take_over<J: TrainingJob>(cx: &JobCx<'_, J>, observed: &Observed, draft: &mut Draft) {
    if draft.state.gang.is_none() && draft.state.made_from.is_none() {
        begin(cx, observed, draft);
    }
}

/// Adds the scheduler name that the run's pods use, unless it comes from their template.
fn named<J: TrainingJob>(
    provider: Provider,
    cx: &JobCx<'_, J>,
    observed: &Observed,
    draft: &Draft,
) -> Provider {
    if !matches!(provider, Provider::SchedulerPlugins(_)) {
        return provider;
    }
    let given = |pod: &&PodView| {
        let role = cx.roles.by_label(&pod.role);
        role.is_some_and(|(_, role)| scheduler_of(role).is_none())
    };
    let mut names = present(observed, draft).filter(given);
    match names.find_map(|pod| pod.scheduler.as_deref()) {
        Some(name) => Provider::SchedulerPlugins(name.as_str().into()),
        None => provider,
    }
}

/// Returns the gang scheduler of the current run's pods; `None` without pods.
fn of_pods(observed: &Observed, draft: &Draft) -> Option<Provider> {
    let marks: Vec<_> = present(observed, draft).map(|p| p.mark).collect();
    let set = &observed.gang.provider;
    let marked = marks.iter().find_map(|mark| Provider::of_mark(*mark, set));
    (!marks.is_empty()).then(|| marked.unwrap_or_default())
}

/// Returns the pods of the current run.
fn present<'a>(observed: &'a Observed, draft: &Draft) -> impl Iterator<Item = &'a PodView> {
    let attempt = draft.state.gang_attempt;
    observed
        .pods
        .iter()
        .filter(move |p| p.attempt.gang >= attempt)
}

/// Stores the run before creating the first group: an operator with another setting would not look for it.
fn remember(draft: &mut Draft, run: Run) {
    let run = Some(run).filter(|r| !r.is_plain());
    if draft.state.gang != run {
        draft.state.gang = run;
        draft.urgency(Urgency::First);
    }
}

/// Returns true while the gang scheduler has not admitted the job. Such a job has not started.
pub fn blocks_start(conventions: GangConventions, observed: &Observed, draft: &Draft) -> bool {
    let Some(run) = draft
        .state
        .gang
        .as_ref()
        .filter(|_| conventions == GangConventions::Training)
    else {
        return false;
    };
    let behaviour = run.provider.behaviour();
    let admitted = |kind: &GroupKind| {
        let group = observed
            .groups
            .iter()
            .find(|g| g.kind == *kind && !g.terminating);
        group.is_some_and(|g| behaviour.read(g) == GangState::Admitted)
    };
    behaviour.blocks_start()
        && observed.pods.is_empty()
        && !run.provider.kinds().iter().all(admitted)
}

/// Returns one-time events about how the job is scheduled.
pub(super) fn advise<F: Framework>(
    framework: &F,
    cx: &JobCx<'_, F::Job>,
    observed: &Observed,
) -> Vec<Note> {
    let conventions = framework.gang_conventions(cx);
    let gang = assemble(
        cx,
        observed,
        &observed.gang.provider,
        Need::default(),
        conventions,
    );
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

/// Returns the gang of a run with a gang scheduler.
///
/// # Errors
/// The error names the field of the spec that makes a pod invalid.
pub fn of<'a, F: Framework>(
    framework: &F,
    cx: &'a JobCx<'a, F::Job>,
    observed: &'a Observed,
    census: &Census<'_>,
    run: &'a Run,
) -> Result<Option<Gang<'a>>, SpecError> {
    if run.provider.kinds().is_empty() || cx.roles.total() == 0 {
        return Ok(None);
    }
    let need = need(framework, cx, census)?;
    let conventions = framework.gang_conventions(cx);
    Ok(Some(assemble(
        cx,
        observed,
        &run.provider,
        need,
        conventions,
    )))
}

fn assemble<'a, J: TrainingJob>(
    cx: &'a JobCx<'a, J>,
    observed: &'a Observed,
    provider: &'a Provider,
    need: Need,
    conventions: GangConventions,
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
        groups: &observed.groups,
        queue: cx.job.labels().get(KUEUE_QUEUE).map(String::as_str),
        kueue: observed.gang.kueue,
        conventions,
        first_class: None,
        annotated_queue: cx
            .annotation(keys::VOLCANO_QUEUE)
            .filter(|queue| !queue.is_empty()),
    }
}

/// Creates and updates the groups of a gang. Pods may be created once all of them exist and the scheduler admits them.
pub fn ensure<F: Framework>(
    cx: &JobCx<'_, F::Job>,
    observed: &Observed,
    census: &Census<'_>,
    gang: &Gang<'_>,
    draft: &mut Draft,
) -> PodCreation {
    let behaviour = gang.provider.behaviour();
    if let Some(message) = behaviour.unschedulable_message(gang) {
        return hold(draft, census, "GangInvalid", message);
    }
    let mut all = Vec::new();
    for kind in gang.provider.kinds() {
        match observed.gang.offers.of(*kind) {
            Availability::Served(version) => all.push((*kind, *version)),
            Availability::Unknown => return PodCreation::Blocked,
            Availability::Unanswered(words) => {
                let text = unanswered(gang.provider, *kind, words);
                return hold(draft, census, "SchedulerMissing", text);
            }
            Availability::Denied(words) => return hold(draft, census, "Forbidden", words.clone()),
            Availability::Missing => {
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
                .push(create::<F>(cx, gang.conventions, &wanted, version));
            draft.requeue = true;
            return PodCreation::Blocked;
        };
        if group.terminating {
            if group.digest.is_none() {
                // Without the operator's label, the watch would not show its deletion.
                draft.steps.push(mark::<F>(cx, group, &wanted, version));
            }
            let text = format!(
                "the {} of the former run is being deleted; the job continues when it is gone",
                kind.kind()
            );
            return hold(draft, census, "GangWaiting", text);
        }
        if !follows(group, &wanted, gang.need.members) {
            draft.steps.push(change::<F>(cx, group, &wanted, version));
        }
        if gang.conventions == GangConventions::Training
            && let GangState::Waiting(why) = behaviour.read(group)
        {
            return wait(draft, census, group, why);
        }
    }
    PodCreation::Allowed
}

/// Stalls a job that lacks pods. Running pods have nothing to wait for.
fn hold(
    draft: &mut Draft,
    census: &Census<'_>,
    reason: &'static str,
    message: String,
) -> PodCreation {
    if census.slots.iter().any(|s| s.state == SlotState::Empty) {
        draft.stall = Some((reason, message));
    }
    PodCreation::Blocked
}

/// Waits for the scheduler's answer. Reports it only if it takes too long.
fn wait(draft: &mut Draft, census: &Census<'_>, group: &GroupView, why: String) -> PodCreation {
    let due = group.since.and_then(|s| s.checked_add(PATIENCE).ok());
    match due {
        Some(at) if at > draft.now => {
            draft.requeue_after(at, 0);
            PodCreation::Blocked
        }
        Some(_) | None => hold(draft, census, "GangWaiting", why),
    }
}

fn missing(provider: &Provider, kind: GroupKind) -> String {
    format!(
        "the operator schedules gangs with {provider}, but the cluster does not serve {}",
        kind_with_versions(kind)
    )
}

fn unanswered(provider: &Provider, kind: GroupKind, words: &str) -> String {
    format!(
        "the operator schedules gangs with {provider}, but can't learn whether the cluster serves {}; it asks again: {words}",
        kind_with_versions(kind)
    )
}

/// A kind with the API versions that Trainyard can write.
fn kind_with_versions(kind: GroupKind) -> String {
    let versions = kind.versions().iter();
    let versions: Vec<String> = versions.map(|v| format!("{}/{v}", kind.group())).collect();
    format!("{} ({})", kind.kind(), versions.join(" or "))
}

/// Returns true if the group is up to date, as far as it follows the job.
fn follows(group: &GroupView, wanted: &Wanted, members: u32) -> bool {
    // A group of another operator has no digest. It gets one, and the operator's label, or the watch would not show it.
    group.digest == Some(wanted.digest())
        && (wanted.follows.is_null() || group.min == Some(members))
}

/// The labels by which a group is watched, and its digest.
fn marks<F: Framework>(cx: &JobCx<'_, F::Job>, wanted: &Wanted) -> Value {
    json!({
        "labels": {keys::OPERATOR_NAME: F::CONTROLLER, keys::JOB_NAME: cx.name},
        "annotations": {keys::GANG: wanted.digest().to_string()},
    })
}

fn create<F: Framework>(
    cx: &JobCx<'_, F::Job>,
    conventions: GangConventions,
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
        // As published: users configure these schedulers with annotations on the job too. Where Trainyard reads only the queue from
        // there, it goes into the spec.
        let copied = conventions == GangConventions::Training;
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
        // A merge patch keeps keys that it doesn't name.
        for name in &group.resources {
            resources.entry(name.clone()).or_insert(Value::Null);
        }
    }
    patch::<F>(cx, group, wanted, spec, version)
}

/// Adds only the operator's label to a group.
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

/// Drops nulls: a new object has no fields to remove.
fn without_nulls(value: &Value) -> Value {
    let Value::Object(fields) = value else {
        return value.clone();
    };
    let kept = fields.iter().filter(|(_, v)| !v.is_null());
    let kept: Map<String, Value> = kept.map(|(k, v)| (k.clone(), without_nulls(v))).collect();
    Value::Object(kept)
}

/// Deletes groups that the run doesn't use, and forgets former schedulers that have no groups left.
pub fn clear(job: &str, observed: &Observed, draft: &mut Draft) {
    let run = draft.state.gang.clone().unwrap_or_default();
    let own = run.provider.kinds();
    delete(job, observed, draft, |kind| !own.contains(&kind));
    let gone = |kind: &GroupKind| match observed.gang.offers.of(*kind) {
        Availability::Served(_) => !observed.groups.iter().any(|g| g.kind == *kind),
        // Its objects are gone with it.
        Availability::Missing => true,
        Availability::Unknown | Availability::Unanswered(_) | Availability::Denied(_) => false,
    };
    if let Some(run) = &mut draft.state.gang {
        run.former.retain(|f| !f.kinds().iter().all(gone));
    }
    draft.state.gang.take_if(|run| run.is_plain());
}

/// Deletes all groups of a suspended or finished job. It looks up groups that another operator may have left, and forgets them when
/// they are gone.
pub fn remove(job: &str, observed: &Observed, draft: &mut Draft) {
    delete(job, observed, draft, |_| true);
    let Some(mut run) = draft.state.gang.take() else {
        return;
    };
    run.former.retain(|former| {
        !former
            .kinds()
            .iter()
            .all(|kind| is_gone(*kind, observed, draft))
    });
    draft.state.gang = Some(run).filter(|run| !run.is_plain());
}

/// Returns true if a group that the watch may not show is gone. If unknown, looks it up.
fn is_gone(kind: GroupKind, observed: &Observed, draft: &mut Draft) -> bool {
    let there = observed.groups.iter().any(|g| g.kind == kind);
    match observed.gang.offers.of(kind) {
        Availability::Missing => true,
        Availability::Served(_) if there => {
            draft.requeue |= observed
                .groups
                .iter()
                .any(|g| g.kind == kind && !g.terminating);
            false
        }
        Availability::Served(_) if observed.sought.contains(&kind) => true,
        Availability::Served(version) => {
            draft.steps.push(Step::LookUpGroup { kind, version });
            draft.requeue = true;
            false
        }
        Availability::Unknown | Availability::Unanswered(_) | Availability::Denied(_) => false,
    }
}

/// Returns the gang scheduler of a run that another operator started, unless the watch shows all of its groups.
pub(super) fn foreign(observed: &Observed, draft: &Draft) -> Option<Provider> {
    let state = &draft.state;
    let begun = state.holds(ConditionType::Created) && !state.holds(ConditionType::Suspended);
    if !begun || state.is_finished() || state.gang.is_some() || state.made_from.is_some() {
        return None;
    }
    let provider = of_pods(observed, draft).unwrap_or_else(|| observed.gang.provider.clone());
    let shown = |kind: &GroupKind| observed.groups.iter().any(|g| g.kind == *kind);
    (!provider.kinds().iter().all(shown)).then_some(provider)
}

/// Handles another operator's run that ended before its groups were adopted: stores what to delete before looking it up.
pub(super) fn leave(provider: Provider, draft: &mut Draft) {
    draft.state.gang = Some(Run {
        provider: Provider::None,
        former: vec![provider],
    });
    draft.urgency(Urgency::First);
}

fn delete(job: &str, observed: &Observed, draft: &mut Draft, goes: impl Fn(GroupKind) -> bool) {
    for group in observed
        .groups
        .iter()
        .filter(|g| !g.terminating && goes(g.kind))
    {
        if let Availability::Served(version) = observed.gang.offers.of(group.kind) {
            draft.steps.push(Step::DeleteGroup {
                kind: group.kind,
                version,
                name: job.to_owned(),
                uid: group.uid,
            });
        }
    }
}
