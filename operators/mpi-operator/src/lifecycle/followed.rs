//! Runs that the training operator started: their launcher is a pod of the job itself.

use training_api::ConditionType;
use training_core::plan::{failing, progress};
use training_core::reasons::FailureReason;
use training_core::restart::{Decision, decide};
use training_core::{
    BatchPod, BatchView, Census, Draft, FailureCause, Framework as _, Note, PodPhase, Slot,
    Transition, verdict::JobMessage,
};

use super::Reconcile;
use crate::api::{LAUNCHER, Origin, WORKER};
use crate::bare;
use crate::framework::KIND;
use crate::names::LAUNCHER_BARE;

impl<'a> Reconcile<'a> {
    /// Ends the job with the followed launcher unless its failure is retried, with the messages of the operator that started it.
    /// Returns true if the job ended.
    pub(super) fn ends_as(&self, pod: &BatchPod, draft: &mut Draft) -> bool {
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
    pub(super) fn follow(&self, pod: &BatchPod, census: &Census<'a>, draft: &mut Draft) {
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
    pub(super) fn has_followed_to_its_end(&self, draft: &Draft) -> bool {
        let failed = |pod: &BatchPod| pod.pod.phase == PodPhase::Failed && !pod.pod.terminating;
        self.followed
            .is_some_and(|pod| failed(pod) || progress::is_overdue(self.cx, draft))
    }

    /// Recreates workers that the training operator left without a launcher, because they have no keys.
    pub(super) fn renew_foreign(&self, draft: &mut Draft) {
        let left = self.setup.origin == Origin::V1
            && self.batch.is_none()
            && bare::is_untouched(&draft.state);
        if left && !self.observed.pods.is_empty() {
            self.recreate_all(draft);
        }
    }
}
