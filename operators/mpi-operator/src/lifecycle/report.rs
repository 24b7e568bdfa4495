//! What the status and events say about a run.

use k8s_openapi::jiff::Timestamp;
use training_api::{ConditionType, ReplicaStatus};
use training_core::health::{self, Finding};
use training_core::plan::draft::shorten;
use training_core::plan::progress;
use training_core::{
    BatchPod, BatchView, Cause, Census, Draft, Framework as _, Note, PodPhase, SpecError,
    Transition, Urgency, verdict::JobMessage,
};

use super::workers::runs;
use super::{Reconcile, number};
use crate::api::{LAUNCHER, WORKER};
use crate::common::Common;
use crate::framework::KIND;
use crate::gate_trouble;
use crate::pods::{self, WORKER_LABEL};

/// The time in which a Job creates a pod that is due, unless something refuses it. Unit: seconds.
const LAUNCHER_POD_TIMEOUT: i64 = 30;
/// The Job controller's backoff after the first failed pod. Each later one doubles it. Unit: seconds.
const FIRST_BACKOFF: i64 = 10;
/// Its longest backoff. Unit: seconds.
const MAX_BACKOFF: i64 = 600;
/// Status key: the pod whose init container's report was recorded as an event.
const GATE_TOLD: &str = "gateTold";

impl<'a> Reconcile<'a> {
    /// Records the event of a job that was first seen in this reconcile.
    pub(super) fn record_created(&self, draft: &mut Draft) {
        if draft.transitions.contains(&Transition::Created) {
            let message = self.mpi.message(self.cx, &JobMessage::Created);
            let note = Note::normal(format!("{KIND}Created"), message);
            draft.notes.push(note);
        }
    }

    /// Records, at the start of a run, which variables of the templates the operator overrides.
    pub(super) fn record_replaced_variables(
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

    /// Replaces the message of the recorded failure if the operator's own init container failed.
    pub(super) fn explain_gate(&self, pod: &BatchPod, draft: &mut Draft) {
        if !gate_trouble::is_caused_by_gate(&pod.pod) {
            return;
        }
        let image = self.mpi.gate_image.as_deref();
        let said = gate_trouble::describe(pod, Cause::RunContainerError, image);
        if let Some(last) = &mut draft.state.last_failure {
            last.message = Some(shorten(&said, 1024));
        }
    }

    /// Reports a launcher without a pod, also before a retry. The Job controller creates the pod and explains failures only on the
    /// Job.
    pub(super) fn report_missing_pod(&self, draft: &mut Draft) {
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
    pub(super) fn report_gate_trouble(&self, draft: &mut Draft) {
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

    /// Stores the counts of launcher and workers, and how many are ready.
    pub(super) fn count(&self, census: &Census<'a>, draft: &mut Draft) {
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
    pub(super) fn record_gate_event(&self, draft: &mut Draft) {
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

    /// Sets Running once the launcher and all workers run.
    pub(super) fn record_running(&self, census: &Census<'a>, draft: &mut Draft) {
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

    /// Records a restart of the launcher's container while its pod exists: usually the kubelet restarts it in place.
    pub(super) fn remember_restarts(&self, draft: &mut Draft) {
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
