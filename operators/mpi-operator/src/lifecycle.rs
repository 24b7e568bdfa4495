//! The life cycle of a job: it creates the job's own objects, then the workers, then the launcher, whose end is the job's.
//!
//! The launcher is a `batch/v1` Job, whose controller retries it. A worker is only a host: a lost one is recreated under its name,
//! where the launcher's next attempt finds it.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec, Toleration};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use training_api::{CleanPodPolicy, ConditionType, LastFailure, ReplicaStatus};
use training_core::health::{self, Finding};
use training_core::plan::creates::Creates;
use training_core::plan::draft::shorten;
use training_core::plan::gang::PodCreation;
use training_core::plan::{edits, failing, finished, gang, lost, progress, restart, suspended};
use training_core::reasons::FailureReason;
use training_core::restart::{Decision, RestartScope, decide};
use training_core::{
    BatchEnd, BatchPod, BatchView, Cause, Census, Digest, Draft, DurableState, FailureCause,
    Framework as _, JobCx, Lifecycle, Note, Object, ObjectKind, ObjectView, Observed, PodPhase,
    RankFailure, RoleSet, Slot, SlotState, SpecError, Step, Transition, Uid, Urgency, Verdict,
    gang::Gang, pod, verdict::JobMessage,
};

use crate::api::{LAUNCHER, MPIJob, Origin, WORKER};
use crate::common::{Common, Gate};
use crate::framework::{KIND, Mpi, ttl_deletes_job};
use crate::names::{self, LAUNCHER_BARE, SECRET};
use crate::pods::{self, WORKER_LABEL};
use crate::setup::Setup;
use crate::{bare, gate_trouble, hosts, init, objects};

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
/// The reason of a Job whose pods failed too often.
const BACKOFF_LIMIT: &str = "BackoffLimitExceeded";
/// The time in which a Job creates a pod that is due, unless something refuses it. Unit: seconds.
const LAUNCHER_POD_TIMEOUT: i64 = 30;
/// The time in which a launcher may follow a worker that exited with 0. Until then the worker is not recreated. Unit: seconds.
const WORKER_EXIT_GRACE: i64 = 10;
/// The Job controller's backoff after the first failed pod. Each later one doubles it. Unit: seconds.
const FIRST_BACKOFF: i64 = 10;
/// Its longest backoff. Unit: seconds.
const MAX_BACKOFF: i64 = 600;
/// Status key: the uid of the launcher's Job.
const LAUNCHER_UID: &str = "launcher";
/// Status key: the hash of the template that the launcher's Job was created from.
const LAUNCHER_TEMPLATE: &str = "launcherTemplate";
/// Status key: the uid of the launcher's Job, or of the followed launcher, from before a restart of all pods. It is deleted.
const LAUNCHER_FORMER: &str = "formerLauncher";
/// Status key: the pod whose init container's report was recorded as an event.
const GATE_TOLD: &str = "gateTold";

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

impl<'a> Reconcile<'a> {
    fn record_created(&self, draft: &mut Draft) {
        if draft.transitions.contains(&Transition::Created) {
            let message = self.mpi.message(self.cx, &JobMessage::Created);
            let note = Note::normal(format!("{KIND}Created"), message);
            draft.notes.push(note);
        }
    }

    /// Records, at the start of a run, which variables of the templates the operator overrides.
    fn record_replaced_variables(
        &self,
        common: &Common<'_>,
        draft: &mut Draft,
    ) -> Result<(), SpecError> {
        let mut replaced = pods::launcher_template(common)?.replaced;
        if self.setup.workers.is_some() {
            replaced
                .extend(pods::worker(common, 0, draft.state.attempt(WORKER_LABEL, 0))?.replaced);
        }
        progress::record_replaced_variables(replaced, draft);
        Ok(())
    }

    /// Ends the job with the followed launcher unless its failure is retried, with the messages of the operator that started it.
    /// Returns true if the job ended.
    fn ends_as(&self, pod: &BatchPod, draft: &mut Draft) -> bool {
        match pod.pod.phase {
            PodPhase::Succeeded => self.succeed(&BatchView::default(), None, draft),
            PodPhase::Failed if !pod.pod.terminating => {
                let role = LAUNCHER.to_owned();
                let cause = match decide(self.setup.launcher.restart, &pod.pod) {
                    Decision::Fail => FailureCause::Replicas { role, count: 1 },
                    Decision::FailPermanently => FailureCause::PermanentExit { role },
                    Decision::Replace => return false,
                };
                self.fail_followed(pod, &cause, draft);
            }
            _ => return false,
        }
        true
    }

    fn fail_followed(&self, pod: &BatchPod, cause: &FailureCause, draft: &mut Draft) {
        draft.remember_failure_of(&pod.name, self.cx.namespace, &pod.pod);
        failing::fail(self.mpi, self.cx, self.observed, cause, draft);
        draft.state.ready = Some(format!("0/{}", self.cx.roles.total()));
        let failed = BatchView {
            failed: 1,
            ..BatchView::default()
        };
        self.last_counts(&failed, 0, draft);
    }

    /// Leaves a run that the training operator started alone until its launcher ends. A retry becomes a run of this operator.
    fn follow(&self, pod: &BatchPod, census: &Census<'a>, draft: &mut Draft) {
        let (cx, observed) = (self.cx, self.observed);
        if pod.pod.phase == PodPhase::Failed && !pod.pod.terminating {
            let charged = u32::from(!pod.pod.disrupted);
            let spent = draft.state.counted_failures.saturating_add(charged);
            let limit = cx.job.spec.run_policy.backoff_limit.filter(|l| *l >= 0);
            if charged > 0 && limit.is_some_and(|l| i64::from(spent) > i64::from(l)) {
                return self.fail_followed(pod, &FailureCause::BackoffLimit, draft);
            }
            draft.state.counted_failures = spent;
            draft.remember_failure_of(&pod.name, cx.namespace, &pod.pod);
            return self.restart_followed(LAUNCHER, FailureReason::of(&pod.pod), draft);
        }
        progress::end_at_deadline(self.mpi, cx, observed, draft);
        if draft.state.is_finished() {
            return;
        }
        if !draft.state.replicas.is_empty() {
            // The followed launcher can't reach a worker of this operator.
            return self.recreate_all(draft);
        }
        let is_missing = |slot: &Slot<'_>| slot.pod.is_none();
        if pod.pod.phase == PodPhase::Pending && self.workers(census).any(is_missing) {
            // It would wait for that worker for ever. A running one fails without it, or is elastic and goes on.
            return self.restart_followed(WORKER, FailureReason::DISRUPTED, draft);
        }
        let uid = pod.pod.uid.to_string();
        draft.state.made_once.insert(LAUNCHER_BARE.to_owned(), uid);
        self.record_running(census, draft);
    }

    /// Restarts a run that the training operator started.
    fn restart_followed(&self, role: &str, why: FailureReason, draft: &mut Draft) {
        draft.state.recreated = draft.state.recreated.saturating_add(1);
        let message = self.mpi.message(self.cx, &JobMessage::Restarting { role });
        let reason = format!("{KIND}Restarting");
        draft.set(ConditionType::Restarting, true, &reason, &message);
        draft.notes.push(Note::warning(reason, message));
        draft.transitions.push(Transition::Restarted(why));
        self.recreate_all(draft);
    }

    /// Returns true if the followed launcher has failed, or its time is over.
    fn has_followed_to_its_end(&self, draft: &Draft) -> bool {
        let failed = |pod: &BatchPod| pod.pod.phase == PodPhase::Failed && !pod.pod.terminating;
        self.followed
            .is_some_and(|pod| failed(pod) || progress::is_overdue(self.cx, draft))
    }

    /// Recreates all pods, as this operator's.
    fn recreate_all(&self, draft: &mut Draft) {
        draft.state.next_gang_attempt(self.observed.newest_gang());
        draft.state.made_once.remove(LAUNCHER_BARE);
        edits::renew(self.mpi, self.cx, draft);
        gang::begin(self.cx, self.observed, draft);
        draft.urgency(Urgency::First);
    }

    /// Leaves the launcher's Job to the former run. It is deleted once this is stored, and its end no longer counts.
    fn retire_launcher(&self, draft: &mut Draft) {
        let made_once = &mut draft.state.made_once;
        made_once.remove(LAUNCHER_BARE);
        let known = made_once.remove(LAUNCHER_UID);
        let bare = self.followed.map(|pod| pod.pod.uid);
        let present = self.batch_uid().or(bare).map(|uid| uid.to_string());
        if let Some(uid) = present.or(known) {
            made_once.insert(LAUNCHER_FORMER.to_owned(), uid);
        }
    }

    /// Recreates workers that the training operator left without a launcher, because they have no keys.
    fn renew_foreign(&self, draft: &mut Draft) {
        let left = self.setup.origin == Origin::V1
            && self.batch.is_none()
            && bare::is_untouched(&draft.state);
        if left && !self.observed.pods.is_empty() {
            self.recreate_all(draft);
        }
    }

    /// Ends the job when its launcher has ended. Returns true if it has.
    fn ends(&self, census: &Census<'a>, draft: &mut Draft) -> bool {
        if self.batch.is_some() {
            // It was created after the last pod of the former one had ended.
            draft.state.made_once.remove(LAUNCHER_FORMER);
        }
        if let Some(pod) = self.followed {
            if !self.ends_as(pod, draft) {
                return false;
            }
        } else if let Some((_, batch)) = self.batch {
            match &batch.end {
                Some(BatchEnd::Complete { at }) => self.succeed(batch, *at, draft),
                Some(BatchEnd::Failed { reason, message }) => {
                    self.fail(batch, reason, message, draft);
                }
                None => return false,
            }
        } else {
            let policy = &self.cx.job.spec.run_policy;
            let known = draft.state.made_once.get(LAUNCHER_UID);
            let known = known.and_then(|uid| Uid::parse(uid));
            let seen_to_go = |uid| self.observed.gone.contains(&uid);
            if policy.ttl_seconds_after_finished.is_none() || known.is_none_or(seen_to_go) {
                return false;
            }
            // Only a finished Job is deleted by its TTL. A new one would run the program again.
            let text = "the launcher's Job went at the end of its time to live before anybody saw how it ended; \
                        it is not run again";
            self.fail(&BatchView::default(), "LauncherGone", text, draft);
        }
        if draft.state.is_finished() {
            self.warn_of_workers(census, draft);
        }
        true
    }

    fn succeed(&self, batch: &BatchView, at: Option<Timestamp>, draft: &mut Draft) {
        let reason = format!("{KIND}Succeeded");
        let message = self.mpi.message(self.cx, &JobMessage::Succeeded);
        self.never_ran(draft);
        draft.set(ConditionType::Succeeded, true, &reason, &message);
        let start = draft.state.started;
        draft.state.completed = Some(at.unwrap_or(draft.now).max(start.unwrap_or(Timestamp::MIN)));
        draft.state.ready = Some(format!("{0}/{0}", self.cx.roles.total()));
        draft.notes.push(Note::normal(reason, message));
        draft.transitions.push(Transition::Succeeded);
        self.last_counts(batch, 1, draft);
    }

    fn fail(&self, batch: &BatchView, reason: &str, message: &str, draft: &mut Draft) {
        let (namespace, name) = (self.cx.namespace, self.cx.name);
        let mut reason = reason.to_owned();
        let mut message = message.to_owned();
        let failed = |p: &&BatchPod| p.pod.phase == PodPhase::Failed;
        let last = self
            .launchers()
            .filter(failed)
            .max_by_key(|p| p.pod.version);
        // A Job deletes pods whose containers the kubelet restarts, so the message comes from the recorded failure.
        let last_restart = self.last_restart(batch, last, draft);
        if let Some(last) = last.filter(|_| last_restart.is_none()) {
            draft.remember_failure_of(&last.name, namespace, &last.pod);
            self.explain_gate(last, draft);
            if reason == BACKOFF_LIMIT {
                let trouble = last.pod.trouble.as_deref();
                let why = trouble.map_or("", |t| &*t.reason);
                reason = format!("{reason}/{why}");
                let of_pod = trouble.filter(|t| health::is_of_pod(t) && !t.message.is_empty());
                let recorded = draft.state.last_failure.as_ref();
                let said = match of_pod {
                    Some(of_pod) => Some(&of_pod.message),
                    None => recorded.and_then(|recorded| recorded.message.as_ref()),
                };
                message = format!("{message}: {}", said.map_or("", String::as_str));
            }
        } else if let Some(known) = last_restart.filter(|_| reason == BACKOFF_LIMIT) {
            reason = format!("{reason}/{}", known.reason.as_deref().unwrap_or_default());
            message = format!(
                "{message}: {}",
                known.message.as_deref().unwrap_or_default()
            );
        }
        if reason.is_empty() {
            reason = format!("{KIND}Failed");
        }
        if message.is_empty() {
            message = format!("{KIND} {namespace}/{name} has failed");
        }
        let message = shorten(&message, 1024);
        self.never_ran(draft);
        let note = Note::warning(reason.clone(), message.clone());
        failing::end(draft, &reason, &message, note);
        // The minimum, because readiness at the failure depends on when the operator reconciled.
        draft.state.ready = Some(format!("0/{}", self.cx.roles.total()));
        self.last_counts(batch, 0, draft);
    }

    /// Returns the last recorded failure, if it is of the present launcher, and later than the end of the last failed pod.
    fn last_restart(
        &self,
        batch: &BatchView,
        failed: Option<&BatchPod>,
        draft: &Draft,
    ) -> Option<LastFailure> {
        let launcher = format!("{}-", hosts::launcher_name(self.setup.name));
        let recorded = draft.state.last_failure.as_ref()?;
        let at = recorded.time.as_ref().map(|time| time.0);
        let ended = failed.and_then(|p| p.pod.trouble.as_deref()?.since);
        let is_later = match failed {
            None => true,
            Some(failed) => *failed.name != *recorded.pod && ended.is_some() && at > ended,
        };
        let is_present = recorded.pod.starts_with(&launcher) && at >= batch.since;
        (is_present && is_later).then(|| recorded.clone())
    }

    /// Replaces the message of the recorded failure if the operator's own init container failed.
    fn explain_gate(&self, pod: &BatchPod, draft: &mut Draft) {
        if !gate_trouble::is_caused_by_gate(&pod.pod) {
            return;
        }
        let image = self.mpi.gate_image.as_deref();
        let said = gate_trouble::describe(pod, Cause::RunContainerError, image);
        if let Some(last) = &mut draft.state.last_failure {
            last.message = Some(shorten(&said, 1024));
        }
    }

    /// Records a restart of the launcher's container while its pod exists: usually the kubelet restarts it in place.
    fn remember_restarts(&self, draft: &mut Draft) {
        let restarts = self.launchers().map(|p| p.pod.restarts);
        let restarts = restarts.fold(0, u32::saturating_add);
        if restarts <= draft.state.container_restarts {
            return;
        }
        draft.state.container_restarts = restarts;
        let ended = |p: &&BatchPod| {
            let trouble = p.pod.trouble.as_deref();
            !p.pod.phase.has_ended() && trouble.is_some_and(|t| t.exit_code.is_some())
        };
        if let Some(last) = self.launchers().find(ended) {
            draft.remember_restart_of(&last.name, &last.pod);
            self.explain_gate(last, draft);
        }
    }

    /// Reports a launcher without a pod, also before a retry. The Job controller creates the pod and explains failures only on the
    /// Job.
    fn report_missing_pod(&self, draft: &mut Draft) {
        let Some((view, batch)) = self.batch else {
            return;
        };
        let runs = !batch.suspended && batch.end.is_none() && !view.terminating;
        let Some(since) = self.without_pod_since(batch).filter(|_| runs) else {
            return;
        };
        let timeout = backoff(failures(batch)) + LAUNCHER_POD_TIMEOUT;
        if since.duration_until(draft.now).as_secs() < timeout {
            return draft.requeue_after(since, timeout);
        }
        let text = format!(
            "Job {0} has created no pod for {timeout} s. kubectl describe job {0} shows why; usually a quota or a policy rejects it.",
            view.name
        );
        draft.stall.get_or_insert(("LauncherPodMissing", text));
    }

    /// Returns since when the launcher's Job has had no pod: since its start, or since its last pod failed. `None` if it has one, or
    /// if the time is unknown because a failed pod was deleted.
    fn without_pod_since(&self, batch: &BatchView) -> Option<Timestamp> {
        // If more pods exist, one has just ended or is the next one. If fewer exist, one was deleted.
        let counted = self.launchers().count() == usize::try_from(failures(batch)).ok()?;
        let failed = |p: &BatchPod| p.pod.phase == PodPhase::Failed;
        if !counted || !self.launchers().all(failed) {
            return None;
        }
        let ended = |p: &BatchPod| p.pod.trouble.as_deref().and_then(|t| t.since);
        let ends: Option<Vec<Timestamp>> = self.launchers().map(ended).collect();
        // Without failed pods the start counts, also that of a Job which was resumed after them.
        ends?.into_iter().max().max(batch.since)
    }

    /// Reports a failing init container as the operator's own, so that users don't look for it in the template.
    fn report_gate_trouble(&self, draft: &mut Draft) {
        if self.launching() > 0 {
            return;
        }
        let stalled = ConditionType::Stalled;
        let mut known = draft.state.conditions.iter().filter(|c| c.holds(stalled));
        let known = known.find_map(|c| c.reason.clone());
        let mut found = None;
        for pod in self.active_launchers() {
            match health::find(&pod.pod, draft.now) {
                Finding::Is(cause) if gate_trouble::is_caused_by_gate(&pod.pod) => {
                    found = Some((pod, cause));
                }
                // Something else blocks the launcher now.
                Finding::Is(_) => return,
                Finding::Recovering(at) if gate_trouble::is_caused_by_gate(&pod.pod) => {
                    let told = [Cause::CrashLoopBackOff, Cause::RunContainerError];
                    let told = told
                        .into_iter()
                        .find(|c| known.as_deref() == Some(c.reason()));
                    draft.requeue_after(at, 0);
                    found = told.map(|cause| (pod, cause)).or(found);
                }
                Finding::Nothing | Finding::Until(_) | Finding::Recovering(_) => {}
            }
        }
        let failed = || {
            let its = |p: &&BatchPod| {
                p.pod.phase == PodPhase::Failed && gate_trouble::is_caused_by_gate(&p.pod)
            };
            let failed = self.launchers().filter(its);
            let last = failed.max_by_key(|failed| failed.pod.version)?;
            Some((last, Cause::RunContainerError))
        };
        let Some((pod, cause)) = found.or_else(failed) else {
            return;
        };
        let text = gate_trouble::describe(pod, cause, self.mpi.gate_image.as_deref());
        draft.stall.get_or_insert((cause.reason(), text));
    }

    /// Sets the Running condition of a job that ended without it.
    fn never_ran(&self, draft: &mut Draft) {
        let running = ConditionType::Running.as_str();
        if draft.state.conditions.iter().all(|c| c.type_ != running) {
            let text = format!(
                "{KIND} {}/{} is finished but Running condition was never set.",
                self.cx.namespace, self.cx.name
            );
            draft.set(
                ConditionType::Running,
                false,
                &format!("{KIND}Running"),
                &text,
            );
        }
    }

    /// Writes the final counts. They omit workers, as published.
    fn last_counts(&self, batch: &BatchView, succeeded: i32, draft: &mut Draft) {
        let launcher = ReplicaStatus {
            succeeded,
            failed: number(batch.failed),
            ..ReplicaStatus::default()
        };
        let counts = draft.state.counts.get_or_insert_default();
        counts.insert(LAUNCHER.to_owned(), launcher);
        counts.insert(WORKER.to_owned(), ReplicaStatus::default());
        draft.state.worker_selector = Some(pods::worker_selector(self.setup));
        draft.state.made_from = None;
        draft.urgency(Urgency::First);
    }

    fn warn_of_workers(&self, census: &Census<'a>, draft: &mut Draft) {
        let running = |s: &&Slot<'_>| s.pod.is_some_and(|p| p.phase == PodPhase::Running);
        let active = self.workers(census).filter(running).count();
        if active > 0 && policy_of(self.cx.job, self.observed, draft) == CleanPodPolicy::None {
            draft.notes.push(failing::still_running(active, "worker"));
        }
    }

    /// Recreates failed workers, and those that ended before the launcher, under their names, because the launcher needs all its hosts.
    /// In `v1` a failure means the same as for the other kinds.
    fn replace_failed(&self, census: &Census<'a>, draft: &mut Draft) {
        let (cx, observed) = (self.cx, self.observed);
        if self.setup.origin == Origin::V1 {
            let verdict = self.mpi.judge(cx, census);
            match lost::give_up(census, observed.rules, draft, verdict) {
                Verdict::Failed(cause) => {
                    if let Some(role) = cause.role() {
                        failing::remember_role(cx, census, role, draft);
                    }
                    failing::fail(self.mpi, cx, observed, &cause, draft);
                }
                Verdict::Retry(failures) => {
                    let failures = failing::batch(cx, census, failures, &mut draft.state);
                    if failures.is_empty() {
                        return;
                    }
                    failing::retry(self.mpi, cx, observed, census, &failures, draft);
                }
                Verdict::Progressing { .. } | Verdict::Succeeded => {}
            }
            return;
        }
        let failed = self
            .workers(census)
            .filter(|s| s.state == SlotState::Failed && !self.may_end_with_launcher(s, draft));
        let failed = failed.map(|slot| RankFailure {
            role: slot.role,
            index: slot.index,
            disrupted: slot.pod.is_some_and(|p| p.disrupted),
        });
        let verdict = Verdict::Retry(failed.collect());
        let Verdict::Retry(failures) = lost::give_up(census, observed.rules, draft, verdict) else {
            return;
        };
        let failures = failing::batch(cx, census, failures, &mut draft.state);
        if failures.is_empty() {
            return;
        }
        let pods = failures.iter();
        let pods = pods.filter_map(|f| census.slot(f.role, f.index).and_then(|s| s.pod));
        let evicted = pods
            .clone()
            .filter(|p| p.trouble.as_ref().is_some_and(|t| t.reason == "Evicted"));
        let evicted = evicted.count();
        if evicted > 0 {
            let text = format!(
                "{evicted}/{} workers are evicted",
                self.setup.worker_count()
            );
            draft.notes.push(Note::warning("MPIJobEvicted", text));
        }
        let (exited, failed): (Vec<_>, Vec<_>) = pods.partition(|p| p.phase == PodPhase::Succeeded);
        if !exited.is_empty() {
            let text = format!(
                "{}/{} workers ended before the launcher; they are created again",
                exited.len(),
                self.setup.worker_count()
            );
            draft.notes.push(Note::warning("WorkerExited", text));
        }
        failing::remember(cx, failed, draft);
        failing::next_attempts(cx, census, &failures, draft);
        failing::remove_unreachable(cx, census, &failures, draft);
        draft.urgency(Urgency::First);
    }

    /// Returns the name of the job's Secret once it exists. Until then this creates the other objects that pods mount and withholds
    /// the status, so that the first status written names the Secret.
    ///
    /// `retried`: the launcher has failed since the last reconcile.
    fn secret(&self, census: &Census<'a>, retried: bool, draft: &mut Draft) -> Option<String> {
        if let Some(name) = draft.state.made_once.get(SECRET).cloned() {
            // Somebody may have deleted it. The operator never reads it, so it requests it again when a run starts.
            if draft.starts || retried {
                let object = Object::Secret(objects::secret(&self.common(&name)));
                draft.steps.push(Step::RecreateSecret(Box::new(object)));
            }
            return Some(name);
        }
        let known = &self.observed.secret;
        // A job of v1 without a Job was started by an operator without keys.
        let keyless = self.setup.origin == Origin::V1 && self.batch.is_none();
        let begun = self.batch.is_some() || !self.observed.pods.is_empty() && !keyless;
        let name = match &known.made {
            Some(name) => name.to_string(),
            // Another operator started the job, under the published name.
            None if begun => names::secret(self.setup.name, 0),
            None => {
                let name = names::secret(self.setup.name, known.taken);
                let common = self.common("");
                self.ensure_objects(&common, census, draft);
                let mut secret = objects::secret(&common);
                secret.metadata.name = Some(name);
                draft
                    .steps
                    .push(Step::CreateObject(Box::new(Object::Secret(secret))));
                // If the creation keeps failing, the status at least shows that the job was seen.
                (draft.withheld, draft.requeue) = (!self.observed.failing, true);
                return None;
            }
        };
        draft
            .state
            .made_once
            .insert(SECRET.to_owned(), name.clone());
        draft.urgency(if begun {
            Urgency::Batched
        } else {
            Urgency::First
        });
        Some(name)
    }

    /// Creates or updates the Services and the ConfigMap. Returns true once all of them exist: pods need them.
    fn ensure_objects(&self, common: &Common<'_>, census: &Census<'a>, draft: &mut Draft) -> bool {
        let mut complete = true;
        let running = self.workers(census).filter(|s| runs(s));
        let running: Vec<u32> = running.map(|s| s.index).collect();
        let services =
            std::iter::once(objects::service(common)).chain(objects::launcher_service(common));
        let config = objects::config(common, running);
        let wanted = services
            .map(|service| Object::Service(Box::new(service)))
            .chain([Object::ConfigMap(config)]);
        for object in wanted {
            let Some(kind) = object.watched() else {
                continue;
            };
            match self.observed.object(kind, &object.name()) {
                None => {
                    complete = false;
                    draft.steps.push(Step::CreateObject(Box::new(object)));
                }
                Some(view) if view.terminating || view.digest == object.digest() => {}
                Some(view) => draft.steps.push(change(view, body(&object, view))),
            }
        }
        complete
    }

    /// Creates and deletes workers and the launcher as the job's spec says.
    fn ensure_pods(
        &self,
        common: &Common<'_>,
        census: &Census<'a>,
        draft: &mut Draft,
    ) -> Result<(), SpecError> {
        let (cx, setup) = (self.cx, self.setup);
        for pod in &census.surplus {
            draft.delete_pod(cx.name, pod);
        }
        for slot in self
            .workers(census)
            .filter(|s| s.state == SlotState::Outdated)
        {
            if let Some(pod) = slot.pod {
                draft.delete_pod(cx.name, pod);
            }
        }
        for pod in bare::pods(cx.job, self.observed) {
            bare::delete(pod, draft);
        }
        if let Some(former) = self.former.filter(|former| !former.terminating) {
            draft.steps.push(delete(former));
        }
        gang::clear(cx.name, self.observed, draft);
        let run = draft.state.gang.clone().unwrap_or_default();
        // A launcher that waits for its workers can't start together with them.
        let workers = || RoleSet::new(setup.workers.iter().cloned().collect());
        let workers = setup.waits_for_workers.then(workers);
        let without = workers.as_ref().map(|roles| {
            let counted = self.census(roles, draft);
            (JobCx::new(cx.job, roles), counted)
        });
        let (of_gang, counted) = without.as_ref().map_or((cx, census), |(cx, c)| (cx, c));
        let mut gang = gang::of(self.mpi, of_gang, self.observed, counted, &run)?;
        if let Some(gang) = &mut gang {
            // Applies also if the launcher is no member.
            gang.first_class = training_core::gang::class_of(&setup.launcher);
        }
        if let Some(gang) = &gang
            && gang::ensure::<Mpi>(of_gang, self.observed, counted, gang, draft)
                == PodCreation::Blocked
        {
            return Ok(());
        }
        let restarts = draft.state.made_once.contains_key(LAUNCHER_FORMER);
        let met = restarts && (self.former.is_some() || self.has_active_former_launcher())
            || progress::meets_former_run(census, draft);
        let mut creates = Creates::default();
        for (slot, me) in census.slots.iter().zip(cx.roles.ranks()) {
            let is_worker = me.role.key == WORKER;
            if !is_worker
                || slot.state != SlotState::Empty
                || met
                || !progress::is_due(slot, me, draft)
            {
                continue;
            }
            let attempt = draft.state.attempt(WORKER_LABEL, slot.index);
            let mut made = pods::worker(common, slot.index, attempt)?.made;
            if let Some(gang) = &gang {
                gang.provider.behaviour().stamp(gang, me.role, &mut made);
            }
            creates.add(&made);
            draft.steps.push(Step::CreatePod(Box::new(made)));
            if creates.is_full() {
                draft.requeue = true;
                return Ok(());
            }
        }
        self.ensure_launcher(common, census, gang.as_ref(), restarts && met, draft)
    }

    /// Returns true if the worker succeeded, and together with the launcher: the launcher's pod has, or may do so shortly after.
    fn may_end_with_launcher(&self, slot: &Slot<'_>, draft: &mut Draft) -> bool {
        let Some(pod) = slot.pod.filter(|p| p.phase == PodPhase::Succeeded) else {
            return false;
        };
        let launcher = self.launchers().any(|p| p.pod.phase == PodPhase::Succeeded);
        let ended = pod.succeeded_at();
        let ended = ended.filter(|at| at.duration_until(draft.now).as_secs() < WORKER_EXIT_GRACE);
        if let Some(at) = ended {
            draft.requeue_after(at, WORKER_EXIT_GRACE);
        }
        launcher || ended.is_some()
    }

    /// Returns true if the launcher runs pods or may create them.
    fn still_launches(&self) -> bool {
        let bare = self.followed.is_some_and(|p| !p.pod.phase.has_ended());
        let batch = self.batch;
        bare || batch.is_some_and(|(view, batch)| {
            !batch.suspended && batch.end.is_none() && !view.terminating
        })
    }

    /// Returns the change of a Job that makes its limits those of the spec, if the user has edited them.
    fn edited_limits(&self, batch: &BatchView) -> Option<Value> {
        let policy = &self.cx.job.spec.run_policy;
        let mut spec = serde_json::Map::new();
        if batch.deadline != policy.active_deadline_seconds {
            let key = "activeDeadlineSeconds".to_owned();
            spec.insert(key, json!(policy.active_deadline_seconds));
        }
        // Without a limit, the API server has set its own.
        if policy.backoff_limit.is_some() && batch.backoff_limit != policy.backoff_limit {
            spec.insert("backoffLimit".to_owned(), json!(policy.backoff_limit));
        }
        let edited = batch.end.is_none() && !spec.is_empty();
        edited.then(|| json!({ "spec": spec }))
    }

    fn ensure_launcher(
        &self,
        common: &Common<'_>,
        census: &Census<'a>,
        gang: Option<&Gang<'_>>,
        met: bool,
        draft: &mut Draft,
    ) -> Result<(), SpecError> {
        let ready = |s: &Slot<'_>| {
            s.state == SlotState::Live && s.pod.is_some_and(|p| p.ready && !p.terminating)
        };
        let may_run = !self.setup.waits_for_workers || self.workers(census).all(ready);
        let Some((view, batch)) = self.batch else {
            // A launcher would start its ranks on hosts that are about to go.
            if may_run && !met && !self.has_active_former_launcher() {
                return self.create_launcher(common, false, gang, draft);
            }
            return Ok(());
        };
        self.remember_launcher(view, batch, draft);
        if let Some(limits) = self.edited_limits(batch).filter(|_| !view.terminating) {
            draft.steps.push(change(view, limits));
            draft.requeue = true;
            return Ok(());
        }
        if view.terminating || !batch.suspended || !may_run || self.has_active_former_launcher() {
            return Ok(());
        }
        let made_from = draft.state.made_once.get(LAUNCHER_TEMPLATE);
        if made_from.is_some_and(|old| *old != self.launcher_digest(common, gang)) {
            // The Job's template is immutable, so the Job is recreated once none of its pods is left.
            if self.active_launchers().next().is_none() {
                // The status is written before the deletion: a Job that disappears unrecorded may have run.
                draft.state.made_once.remove(LAUNCHER_UID);
                draft.urgency(Urgency::First);
                draft.steps.push(delete(view));
                draft.requeue = true;
            }
            return Ok(());
        }
        if batch.started {
            // Only a Job that has not started lets its template be changed.
            let mut step = change(view, json!({"status": {"startTime": null}}));
            if let Step::ChangeObject { subresource, .. } = &mut step {
                *subresource = Some("status");
            }
            draft.steps.push(step);
            draft.requeue = true;
            return Ok(());
        }
        let template = self.stamped(pods::launcher_template(common)?.made, gang);
        draft.steps.push(change(view, resumed(&template, view)));
        Ok(())
    }

    /// Remembers the Job's uid, so that a launcher that has run doesn't run again when its Job is gone. This is written immediately
    /// if the Job has a TTL, otherwise with the next counts.
    fn remember_launcher(&self, view: &ObjectView, batch: &BatchView, draft: &mut Draft) {
        let ttl = self.cx.job.spec.run_policy.ttl_seconds_after_finished;
        let may_run = !view.terminating && (!batch.suspended || batch.started);
        if !may_run || ttl.is_none() && self.launching() == 0 {
            return;
        }
        let uid = view.uid.to_string();
        draft.state.made_once.insert(LAUNCHER_UID.to_owned(), uid);
    }

    /// Hashes the fields of the launcher's template that an existing Job can't adopt.
    fn launcher_digest(&self, common: &Common<'_>, gang: Option<&Gang<'_>>) -> String {
        let mut template = self.setup.launcher.template.cloned().unwrap_or_default();
        if let Some(meta) = &mut template.metadata {
            (meta.labels, meta.annotations) = (None, None);
        }
        if let Some(spec) = &mut template.spec {
            spec.node_selector = None;
            spec.tolerations = None;
            spec.scheduling_gates = None;
        }
        let setup = self.setup;
        let ranks = (
            setup.implementation.as_str(),
            setup.slots,
            setup.launcher_works,
        );
        // A pod gets its gang's fields at creation or never.
        let gang = gang.map(|gang| gang.provider.to_string());
        // A change of the init container that waits for the hosts applies to the next run.
        let gate = common.gate.as_ref().map(|gate| gate.image);
        Digest::of(&(template, gang, ranks, setup.key_path, setup.main, gate)).to_string()
    }

    /// Adds the gang's labels and fields to the launcher's template.
    fn stamped(&self, template: PodTemplateSpec, gang: Option<&Gang<'_>>) -> PodTemplateSpec {
        let Some(gang) = gang else {
            return template;
        };
        // A gang stamps pods.
        let mut pod = Pod {
            metadata: template.metadata.unwrap_or_default(),
            spec: template.spec,
            status: None,
        };
        let behaviour = gang.provider.behaviour();
        behaviour.stamp(gang, &self.setup.launcher, &mut pod);
        PodTemplateSpec {
            metadata: Some(pod.metadata),
            spec: pod.spec,
        }
    }

    fn create_launcher(
        &self,
        common: &Common<'_>,
        suspended: bool,
        gang: Option<&Gang<'_>>,
        draft: &mut Draft,
    ) -> Result<(), SpecError> {
        let mut job: Job =
            objects::launcher_job(common, &self.cx.job.spec.run_policy, suspended)?.made;
        if let Some(spec) = &mut job.spec {
            spec.template = self.stamped(std::mem::take(&mut spec.template), gang);
        }
        let digest = self.launcher_digest(common, gang);
        let made_once = &mut draft.state.made_once;
        let known = made_once.insert(LAUNCHER_TEMPLATE.to_owned(), digest.clone());
        if known != Some(digest) {
            draft.urgency(Urgency::First);
        }
        // The status shows the launcher as soon as it is created.
        let counts = draft.state.counts.get_or_insert_default();
        counts.entry(LAUNCHER.to_owned()).or_default();
        draft
            .steps
            .push(Step::CreateObject(Box::new(Object::Job(Box::new(job)))));
        Ok(())
    }

    /// Returns true if more pods of the launcher's Job have failed than the status counts.
    fn has_failed_again(&self, draft: &Draft) -> bool {
        let counts = draft.state.counts.as_ref();
        let known = counts.and_then(|c| c.get(LAUNCHER)).map_or(0, |c| c.failed);
        let failed = self.batch.map_or(0, |(_, batch)| number(batch.failed));
        failed > known
    }

    /// Counts the launcher's running pods.
    fn launching(&self) -> u32 {
        let running = self
            .launchers()
            .filter(|p| p.pod.phase == PodPhase::Running);
        u32::try_from(running.count()).unwrap_or(u32::MAX)
    }

    fn count(&self, census: &Census<'a>, draft: &mut Draft) {
        let (cx, setup) = (self.cx, self.setup);
        let at = cx.roles.iter().position(|r| r.key == WORKER);
        let workers = at.map(|at| census.counts[at]).unwrap_or_default();
        let counts = draft.state.counts.get_or_insert_default();
        if self.batch.is_some() || self.followed.is_some() {
            let launcher = ReplicaStatus {
                active: number(self.launching()),
                failed: number(self.batch.map_or(0, |(_, batch)| batch.failed)),
                ..ReplicaStatus::default()
            };
            counts.insert(LAUNCHER.to_owned(), launcher);
        } else {
            counts.remove(LAUNCHER);
        }
        let shown = ReplicaStatus {
            active: number(workers.active),
            succeeded: number(workers.succeeded),
            failed: number(workers.failed),
            ..ReplicaStatus::default()
        };
        counts.insert(WORKER.to_owned(), shown);
        draft.state.worker_selector = Some(pods::worker_selector(setup));
        let up = self.launchers().filter(|p| p.pod.ready).count();
        let up = workers.ready.saturating_add(u32::from(up > 0));
        draft.state.ready = Some(format!("{up}/{}", cx.roles.total()));
    }

    /// Records an event about a launcher that started without some of its hosts.
    fn record_gate_event(&self, draft: &mut Draft) {
        let said = |p: &'a BatchPod| Some((p, p.said.as_deref()?));
        let Some((pod, said)) = self.launchers().find_map(said) else {
            return;
        };
        let told = draft
            .state
            .made_once
            .insert(GATE_TOLD.to_owned(), pod.name.to_string());
        if told.as_deref() != Some(&*pod.name) {
            let text = format!("Pod {}: {said}", pod.name);
            draft.notes.push(Note::warning("HostsNotAnswering", text));
            draft.urgency(Urgency::Parallel);
        }
    }

    fn record_running(&self, census: &Census<'a>, draft: &mut Draft) {
        if self.launching() > 0
            && self.workers(census).all(runs)
            && !draft.state.holds(ConditionType::Running)
        {
            let reason = format!("{KIND}Running");
            let message = self.mpi.message(self.cx, &JobMessage::Running);
            draft.set(ConditionType::Running, true, &reason, &message);
            let told = message.trim_end_matches('.').to_owned();
            draft.notes.push(Note::normal(reason, told));
            draft.urgency(Urgency::Parallel);
        }
    }
}

/// Returns true if the worker's pod runs and is not terminating.
fn runs(slot: &Slot<'_>) -> bool {
    slot.pod
        .is_some_and(|p| p.phase == PodPhase::Running && !p.terminating)
}

/// Returns how many pods of the launcher's Job have failed, also those that the Job controller has yet to count.
fn failures(batch: &BatchView) -> u32 {
    batch.failed.saturating_add(batch.uncounted)
}

/// Returns the seconds for which the Job controller may wait before it creates the next pod after so many failed ones.
fn backoff(failed: u32) -> i64 {
    let Some(doublings) = failed.checked_sub(1) else {
        return 0;
    };
    (FIRST_BACKOFF << doublings.min(10)).min(MAX_BACKOFF)
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

/// Returns the patch for an existing Service or ConfigMap.
fn body(object: &Object, view: &ObjectView) -> Value {
    match object {
        Object::Service(service) => {
            let spec = service.spec.as_ref();
            let unready = spec.and_then(|s| s.publish_not_ready_addresses);
            json!({"spec": {
                "selector": replacing(spec.and_then(|s| s.selector.as_ref()), view),
                "publishNotReadyAddresses": unready == Some(true),
            }})
        }
        Object::ConfigMap(config) => json!({"data": replacing(config.data.as_ref(), view)}),
        Object::Job(_) | Object::Secret(_) => json!({}),
    }
}

/// Returns the patch that resumes a suspended Job. It updates the scheduling fields of the template, as far as they are mutable in
/// a Job that has not started.
fn resumed(template: &PodTemplateSpec, view: &ObjectView) -> Value {
    let meta = template.metadata.clone().unwrap_or_default();
    let spec = template.spec.clone().unwrap_or_default();
    let tolerations: Option<Vec<Toleration>> = spec.tolerations;
    json!({"spec": {
        "suspend": false,
        "template": {
            "metadata": {"labels": meta.labels, "annotations": meta.annotations},
            "spec": {
                "nodeSelector": replacing(spec.node_selector.as_ref(), view),
                "tolerations": tolerations,
                "schedulingGates": spec.scheduling_gates,
            },
        },
    }})
}
