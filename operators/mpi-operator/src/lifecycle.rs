//! The life cycle of a job: it creates the job's own objects, then the workers, then the launcher, whose end is the job's.
//!
//! The launcher is a `batch/v1` Job, whose controller retries it. A worker is only a host: a lost one is recreated under its name,
//! where the launcher's next attempt finds it.
//!
//! - `config`: the Secret, ConfigMap and Services
//! - `workers`: creates and replaces the workers
//! - `launcher`: creates and changes the launcher's Job
//! - `followed`: runs that the training operator started
//! - `ends`: the end of the job, and restarts of all its pods
//! - `report`: conditions, counts and events of a run

mod config;
mod ends;
mod followed;
mod launcher;
mod report;
mod workers;

use std::collections::BTreeMap;

use kube::ResourceExt as _;
use serde_json::{Value, json};
use training_api::{CleanPodPolicy, ConditionType, ReplicaStatus};
use training_core::plan::draft::shorten;
use training_core::plan::{edits, failing, finished, gang, lost, progress, restart, suspended};
use training_core::restart::RestartScope;
use training_core::{
    BatchEnd, BatchPod, BatchView, Census, Draft, DurableState, Framework as _, JobCx, Lifecycle,
    Note, ObjectKind, ObjectView, Observed, PodPhase, RoleSet, Slot, SlotState, SpecError, Step,
    Uid, Urgency, pod, verdict::JobMessage,
};

use crate::api::{LAUNCHER, MPIJob, Origin, WORKER};
use crate::common::{Common, Gate};
use crate::framework::{KIND, Mpi, ttl_deletes_job};
use crate::names::LAUNCHER_BARE;
use crate::pods;
use crate::setup::Setup;
use crate::{bare, hosts, init};

impl Lifecycle for Mpi {
    fn advance(
        &self,
        cx: &JobCx<'_, MPIJob>,
        observed: &Observed,
        draft: &mut Draft,
    ) -> Result<(), SpecError> {
        let setup = Setup::of(cx.job)?;
        let reconcile = Reconcile::new(self, cx, &setup, observed, draft);
        let resumes = draft.state.holds(ConditionType::Suspended);
        if resumes && reconcile.still_launches() {
            // The Job was never suspended, for instance because of a conflict. Its pod belongs to the former run and would occupy
            // the former group, so it stops before the job resumes.
            return self.rest(cx, observed, draft);
        }
        reconcile.record_created(draft);
        if resumes {
            suspended::resume(self, cx, observed, draft);
        }
        if draft.starts {
            gang::begin(cx, observed, draft);
        } else {
            gang::take_over(cx, observed, draft);
        }
        if draft.state.started.is_none()
            && !gang::blocks_start(self.gang_conventions(cx), observed, draft)
        {
            draft.state.started = Some(draft.now);
            draft.urgency(Urgency::Parallel);
        }
        let census = reconcile.census(cx.roles, draft);
        if reconcile.ends(&census, draft) {
            return Ok(());
        }
        let retried = reconcile.has_failed_again(draft);
        reconcile.count(&census, draft);
        reconcile.remember_restarts(draft);
        reconcile.record_gate_event(draft);
        reconcile.report_missing_pod(draft);
        reconcile.report_gate_trouble(draft);
        let recreated = draft.state.recreated;
        let requested = restart::is_requested(cx, draft);
        let follows = !reconcile.has_followed_to_its_end(draft);
        reconcile.replace_failed(&census, draft);
        if draft.state.is_finished() {
            return Ok(());
        }
        if requested && follows && !restart::is_requested(cx, draft) {
            // A failure has restarted all workers, and the launcher follows them.
            reconcile.retire_launcher(draft);
            return Ok(());
        }
        // A failure in the same snapshot is counted first.
        if requested && follows && recreated == draft.state.recreated {
            restart::on_request(self, cx, observed, draft);
            reconcile.retire_launcher(draft);
            return Ok(());
        }
        lost::delete_given_up(reconcile.launchers(), observed.rules, draft);
        if let Some(pod) = reconcile.followed {
            reconcile.follow(pod, &census, draft);
            return Ok(());
        }
        reconcile.renew_foreign(draft);
        edits::notice(self, cx, observed, draft);
        let Some(secret) = reconcile.secret(&census, retried, draft) else {
            return Ok(());
        };
        let common = reconcile.common(&secret);
        if draft.starts {
            reconcile.record_replaced_variables(&common, draft)?;
        }
        if reconcile.ensure_objects(&common, &census, draft) {
            reconcile.ensure_pods(&common, &census, draft)?;
        } else {
            draft.requeue = true;
        }
        reconcile.record_running(&census, draft);
        Ok(())
    }

    /// Suspends the job: as published, the launcher's Job exists and is suspended, and no workers exist.
    fn rest(
        &self,
        cx: &JobCx<'_, MPIJob>,
        observed: &Observed,
        draft: &mut Draft,
    ) -> Result<(), SpecError> {
        let setup = match Setup::of(cx.job) {
            Ok(setup) => setup,
            Err(error) => {
                self.stop(cx, observed, draft);
                return Err(error);
            }
        };
        let reconcile = Reconcile::new(self, cx, &setup, observed, draft);
        reconcile.record_created(draft);
        let census = reconcile.census(cx.roles, draft);
        if reconcile.ends(&census, draft) {
            return Ok(());
        }
        self.stop(cx, observed, draft);
        if let Some((view, batch)) = reconcile.batch {
            reconcile.remember_launcher(view, batch, draft);
        }
        let there = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
        let bare = bare::pods(cx.job, observed).any(|p| !p.pod.phase.has_ended());
        let living = observed
            .batch_pods
            .iter()
            .filter(|p| !p.pod.phase.has_ended());
        let living = living.count();
        let counts = draft.state.counts.get_or_insert_default();
        if reconcile.batch.is_some() || !setup.waits_for_workers || living > 0 {
            // Every pod that has not ended counts: quota released at 0 must really be free.
            counts.entry(LAUNCHER.to_owned()).or_default().active = there(living);
        }
        let workers = counts.entry(WORKER.to_owned()).or_default();
        *workers = ReplicaStatus {
            active: there(observed.pods.len()),
            ..ReplicaStatus::default()
        };
        draft.state.worker_selector = Some(pods::worker_selector(&setup));
        draft.state.ready = Some(format!("0/{}", cx.roles.total()));
        if bare {
            // The objects that it mounts stay until it is gone.
            return Ok(());
        }
        let Some(secret) = reconcile.secret(&census, false, draft) else {
            return Ok(());
        };
        let common = reconcile.common(&secret);
        let complete = reconcile.ensure_objects(&common, &census, draft);
        draft.requeue |= !complete;
        let gone = reconcile.former.is_none() && !reconcile.has_active_former_launcher();
        if complete && reconcile.batch.is_none() && gone && !setup.waits_for_workers {
            reconcile.create_launcher(&common, true, None, draft)?;
        }
        Ok(())
    }

    /// The launcher's Job has the deadline.
    fn expire(&self, cx: &JobCx<'_, MPIJob>, observed: &Observed, draft: &mut Draft) {
        if bare::followed(cx.job, observed, draft).is_some() {
            return progress::end_at_deadline(self, cx, observed, draft);
        }
        let former = former_of(&draft.state);
        let launcher = launcher_of(cx.name, observed).filter(|(view, _)| Some(view.uid) != former);
        let Some((_, batch)) = launcher else {
            return;
        };
        if let Some(BatchEnd::Failed { reason, message }) = &batch.end
            && reason == DEADLINE
        {
            let message = shorten(message, 1024);
            let note = Note::warning(reason.clone(), message.clone());
            failing::end(draft, reason, &message, note);
            let launcher = ReplicaStatus {
                failed: number(batch.failed),
                ..ReplicaStatus::default()
            };
            let workers = (WORKER.to_owned(), ReplicaStatus::default());
            draft.state.counts = Some([(LAUNCHER.to_owned(), launcher), workers].into());
            let ready = draft.state.ready.take();
            let total = ready.as_deref().and_then(|ready| ready.split_once('/'));
            draft.state.ready = total.map(|(_, total)| format!("0/{total}"));
        }
    }

    /// Deletes workers as the clean-up policy says, and everything that belongs to the job once its TTL has expired.
    fn clean_up(&self, job: &MPIJob, observed: &Observed, draft: &mut Draft) {
        let name = job.name_any();
        gang::remove(&name, observed, draft);
        let policy = policy_of(job, observed, draft);
        let over = finished::is_over(draft, job.spec.run_policy.ttl_seconds_after_finished);
        if over && ttl_deletes_job(self, job) {
            draft.steps.push(Step::DeleteJob);
            return;
        }
        for pod in &observed.pods {
            if over || finished::takes(policy, pod.phase) {
                draft.delete_pod(&name, pod);
            }
        }
        for pod in bare::pods(job, observed) {
            if over || finished::takes(policy, pod.pod.phase) {
                bare::delete(pod, draft);
            }
        }
        for object in observed.objects.iter().filter(|o| !o.terminating) {
            let ended = object.batch.as_ref().is_none_or(|b| b.end.is_some());
            let all = policy == CleanPodPolicy::All && job.spec.origin() == Origin::V1;
            let launcher =
                object.kind == ObjectKind::Job && (all || !ended && policy != CleanPodPolicy::None);
            if over || launcher {
                draft.steps.push(delete(object));
            }
        }
    }
}

impl Mpi {
    /// Ends the run of a suspended job: deletes the workers and suspends the launcher's Job.
    fn stop(&self, cx: &JobCx<'_, MPIJob>, observed: &Observed, draft: &mut Draft) {
        if !draft.state.holds(ConditionType::Suspended) {
            let reason = format!("{KIND}Suspended");
            let message = self.message(cx, &JobMessage::Suspended);
            let paused = self.message(cx, &JobMessage::Paused);
            draft.set(ConditionType::Running, false, &reason, &paused);
            // Clients show the last condition.
            draft.set(ConditionType::Suspended, true, &reason, &message);
            draft.notes.push(Note::normal(reason, message));
            let runs = !observed.pods.is_empty() || bare::pods(cx.job, observed).next().is_some();
            if draft.state.started.is_some() || runs {
                // What is left of the run is outdated when the job resumes.
                draft.state.next_gang_attempt(observed.newest_gang());
            }
            draft.state.made_from = None;
            draft.state.made_once.remove(LAUNCHER_BARE);
            draft.urgency(Urgency::First);
        }
        for pod in &observed.pods {
            draft.delete_pod(cx.name, pod);
        }
        for pod in bare::pods(cx.job, observed) {
            bare::delete(pod, draft);
        }
        gang::remove(cx.name, observed, draft);
        let launcher = launcher_of(cx.name, observed);
        if let Some((view, batch)) = launcher.filter(|(view, _)| !view.terminating) {
            if former_of(&draft.state) == Some(view.uid) {
                draft.steps.push(delete(view));
            } else if !batch.suspended {
                let suspend = json!({"spec": {"suspend": true}});
                draft.steps.push(change(view, suspend));
            }
        }
        // Every remaining pod counts: quota released at 0 must really be free.
        let living = observed
            .batch_pods
            .iter()
            .filter(|p| !p.pod.phase.has_ended());
        for (role, there) in [(LAUNCHER, living.count()), (WORKER, observed.pods.len())] {
            let counts = draft.state.counts.as_mut();
            if let Some(shown) = counts.and_then(|c| c.get_mut(role)) {
                shown.active = i32::try_from(there).unwrap_or(i32::MAX);
            }
        }
    }
}

/// Finds the launcher's Job.
fn launcher_of<'a>(job: &str, observed: &'a Observed) -> Option<(&'a ObjectView, &'a BatchView)> {
    let view = observed.object(ObjectKind::Job, &hosts::launcher_name(job))?;
    Some((view, view.batch.as_deref()?))
}

/// Returns the uid of the launcher's Job that a restart of all pods replaces.
fn former_of(state: &DurableState) -> Option<Uid> {
    let uid = state.made_once.get(LAUNCHER_FORMER)?;
    Uid::parse(uid)
}

/// The reason of a Job that was active for too long.
const DEADLINE: &str = "DeadlineExceeded";
/// Status key: the uid of the launcher's Job.
const LAUNCHER_UID: &str = "launcher";
/// Status key: the uid of the launcher's Job, or of the followed launcher, from before a restart of all pods. It is deleted.
const LAUNCHER_FORMER: &str = "formerLauncher";

type Cx<'a> = JobCx<'a, MPIJob>;

/// One reconcile of a job.
struct Reconcile<'a> {
    mpi: &'a Mpi,
    cx: &'a Cx<'a>,
    setup: &'a Setup<'a>,
    observed: &'a Observed,
    /// The launcher's Job.
    batch: Option<(&'a ObjectView, &'a BatchView)>,
    /// The launcher's Job from before a restart of all pods.
    former: Option<&'a ObjectView>,
    /// The launcher of a run that the training operator started.
    followed: Option<&'a BatchPod>,
}

impl<'a> Reconcile<'a> {
    fn new(
        mpi: &'a Mpi,
        cx: &'a Cx<'a>,
        setup: &'a Setup<'a>,
        observed: &'a Observed,
        draft: &Draft,
    ) -> Self {
        let former = former_of(&draft.state);
        let found = launcher_of(setup.name, observed);
        let is_former = |view: &ObjectView| Some(view.uid) == former;
        Self {
            mpi,
            cx,
            setup,
            observed,
            batch: found.filter(|(view, _)| !is_former(view)),
            former: found
                .map(|(view, _)| view)
                .filter(|view| is_former(view) && !view.gone),
            followed: bare::followed(cx.job, observed, draft),
        }
    }

    fn batch_uid(&self) -> Option<Uid> {
        self.batch.map(|(view, _)| view.uid)
    }

    fn common(&self, secret: &'a str) -> Common<'a> {
        let asked = self.cx.annotation(init::GATE) != Some("false");
        let image = self.mpi.gate_image.as_deref().filter(|_| asked);
        Common {
            setup: self.setup,
            owner: pod::owner(self.cx.job),
            secret,
            domain: &self.mpi.domain,
            gate: image.map(|image| Gate {
                image,
                port: self.cx.annotation(init::SSH_PORT),
            }),
            scope: match self.setup.origin {
                Origin::V1 => self.cx.restart_scope(),
                Origin::V2beta1 => RestartScope::Replica,
            },
        }
    }

    /// The pods of the launcher's present Job, or the followed launcher.
    fn launchers(&self) -> impl Iterator<Item = &'a BatchPod> {
        let batch = self.batch_uid();
        let pods = self.observed.batch_pods.iter();
        pods.filter(move |pod| Some(pod.batch) == batch)
            .chain(self.followed)
    }

    /// The launchers that have not ended. A suspended Job keeps the ended ones.
    fn active_launchers(&self) -> impl Iterator<Item = &'a BatchPod> {
        self.launchers().filter(|p| !p.pod.phase.has_ended())
    }

    /// Counts the launcher's running pods.
    fn launching(&self) -> u32 {
        let running = self
            .launchers()
            .filter(|p| p.pod.phase == PodPhase::Running);
        u32::try_from(running.count()).unwrap_or(u32::MAX)
    }

    /// Returns true if a pod of a deleted launcher's Job has not ended: two launchers must never run at once.
    fn has_active_former_launcher(&self) -> bool {
        let batch = self.batch_uid();
        let mut pods = self.observed.batch_pods.iter();
        pods.any(|p| Some(p.batch) != batch && !p.pod.phase.has_ended())
    }

    /// Counts pods by slot. The launcher's slot is live while its Job exists, because the Job manages the launcher's pod.
    fn census(&self, roles: &RoleSet<'_>, draft: &Draft) -> Census<'a> {
        let mut census = Census::take(roles, self.observed, &draft.state);
        if (self.batch.is_some() || self.followed.is_some())
            && let Some(at) = roles.iter().position(|r| r.key == LAUNCHER)
        {
            let slots = census.slots.iter_mut();
            for slot in slots.filter(|s| s.role == at) {
                slot.state = SlotState::Live;
            }
        }
        census
    }

    fn workers<'c>(&self, census: &'c Census<'a>) -> impl Iterator<Item = &'c Slot<'a>> {
        let at = self.cx.roles.iter().position(|r| r.key == WORKER);
        census.slots.iter().filter(move |s| Some(s.role) == at)
    }
}

fn policy_of(job: &MPIJob, observed: &Observed, draft: &Draft) -> CleanPodPolicy {
    let own = job.spec.run_policy.clean_pod_policy.as_deref();
    // A job of v1 may set it outside the run policy.
    let own = own.or(job.spec.clean_pod_policy.as_deref());
    finished::stricter(CleanPodPolicy::parse(own), &draft.state, observed.rules)
}

fn number(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// Patches an object only in the version that was seen.
fn change(view: &ObjectView, mut patch: Value) -> Step {
    patch["metadata"] = json!({
        "uid": view.uid.to_string(),
        "resourceVersion": view.version.to_string(),
    });
    Step::ChangeObject {
        kind: view.kind,
        name: view.name.to_string(),
        subresource: None,
        patch: Box::new(patch),
    }
}

fn delete(view: &ObjectView) -> Step {
    Step::DeleteObject {
        kind: view.kind,
        name: view.name.to_string(),
        uid: view.uid,
    }
}

/// Replaces a map: a merge patch keeps keys that it doesn't name.
fn replacing(map: Option<&BTreeMap<String, String>>, view: &ObjectView) -> Value {
    let mut all: serde_json::Map<String, Value> = view
        .keys
        .iter()
        .map(|key| (key.to_string(), Value::Null))
        .collect();
    for (key, value) in map.into_iter().flatten() {
        all.insert(key.clone(), json!(value));
    }
    Value::Object(all)
}
