//! Whether the job ends or starts again, and how: its launcher decides.

use k8s_openapi::jiff::Timestamp;
use training_api::{ConditionType, LastFailure, ReplicaStatus};
use training_core::health;
use training_core::plan::draft::shorten;
use training_core::plan::{edits, failing, gang};
use training_core::{
    BatchEnd, BatchPod, BatchView, Census, Draft, Framework as _, Note, PodPhase, Transition, Uid,
    Urgency, verdict::JobMessage,
};

use super::{LAUNCHER_FORMER, LAUNCHER_UID, Reconcile, number};
use crate::api::{LAUNCHER, WORKER};
use crate::framework::KIND;
use crate::hosts;
use crate::names::LAUNCHER_BARE;
use crate::pods;

/// The reason of a Job whose pods failed too often.
const BACKOFF_LIMIT: &str = "BackoffLimitExceeded";

impl<'a> Reconcile<'a> {
    /// Recreates all pods, as this operator's.
    pub(super) fn recreate_all(&self, draft: &mut Draft) {
        draft.state.next_gang_attempt(self.observed.newest_gang());
        draft.state.made_once.remove(LAUNCHER_BARE);
        edits::renew(self.mpi, self.cx, draft);
        gang::begin(self.cx, self.observed, draft);
        draft.urgency(Urgency::First);
    }

    /// Leaves the launcher's Job to the former run. It is deleted once this is stored, and its end no longer counts.
    pub(super) fn retire_launcher(&self, draft: &mut Draft) {
        let made_once = &mut draft.state.made_once;
        made_once.remove(LAUNCHER_BARE);
        let known = made_once.remove(LAUNCHER_UID);
        let bare = self.followed.map(|pod| pod.pod.uid);
        let present = self.batch_uid().or(bare).map(|uid| uid.to_string());
        if let Some(uid) = present.or(known) {
            made_once.insert(LAUNCHER_FORMER.to_owned(), uid);
        }
    }

    /// Ends the job when its launcher has ended. Returns true if it has.
    pub(super) fn ends(&self, census: &Census<'a>, draft: &mut Draft) -> bool {
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

    pub(super) fn succeed(&self, batch: &BatchView, at: Option<Timestamp>, draft: &mut Draft) {
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

    /// Ends the job as failed, with the Job's reason and message and those of the last failure.
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
    pub(super) fn last_counts(&self, batch: &BatchView, succeeded: i32, draft: &mut Draft) {
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
}
