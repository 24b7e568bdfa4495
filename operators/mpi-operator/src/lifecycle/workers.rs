//! The workers: hosts, which are created under the same names again.

use training_api::CleanPodPolicy;
use training_core::plan::creates::Creates;
use training_core::plan::gang::PodCreation;
use training_core::plan::{failing, gang, lost, progress};
use training_core::{
    Census, Draft, Framework as _, JobCx, Note, PodPhase, RankFailure, RoleSet, Slot, SlotState,
    SpecError, Step, Urgency, Verdict,
};

use super::{LAUNCHER_FORMER, Reconcile, delete, policy_of};
use crate::api::{Origin, WORKER};
use crate::bare;
use crate::common::Common;
use crate::framework::Mpi;
use crate::pods::{self, WORKER_LABEL};

/// The time in which a launcher may follow a worker that exited with 0. Until then the worker is not recreated. Unit: seconds.
const WORKER_EXIT_GRACE: i64 = 10;

impl<'a> Reconcile<'a> {
    /// Records an event if workers go on after the job's end.
    pub(super) fn warn_of_workers(&self, census: &Census<'a>, draft: &mut Draft) {
        let running = |s: &&Slot<'_>| s.pod.is_some_and(|p| p.phase == PodPhase::Running);
        let active = self.workers(census).filter(running).count();
        if active > 0 && policy_of(self.cx.job, self.observed, draft) == CleanPodPolicy::None {
            draft.notes.push(failing::still_running(active, "worker"));
        }
    }

    /// Recreates failed workers, and those that ended before the launcher, under their names, because the launcher needs all its hosts.
    /// In `v1` a failure means the same as for the other kinds.
    pub(super) fn replace_failed(&self, census: &Census<'a>, draft: &mut Draft) {
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

    /// Creates and deletes workers and the launcher as the job's spec says.
    pub(super) fn ensure_pods(
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
}

/// Returns true if the worker's pod runs and is not terminating.
pub(super) fn runs(slot: &Slot<'_>) -> bool {
    slot.pod
        .is_some_and(|p| p.phase == PodPhase::Running && !p.terminating)
}
