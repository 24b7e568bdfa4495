//! The launcher's Job, created from the spec and changed with it.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec, Toleration};
use serde_json::{Value, json};
use training_core::{
    BatchView, Census, Digest, Draft, Object, ObjectView, Slot, SlotState, SpecError, Step,
    Urgency, gang::Gang,
};

use super::{LAUNCHER_UID, Reconcile, change, delete, number, replacing};
use crate::api::LAUNCHER;
use crate::common::Common;
use crate::objects;
use crate::pods;

/// Status key: the hash of the template that the launcher's Job was created from.
const LAUNCHER_TEMPLATE: &str = "launcherTemplate";

impl<'a> Reconcile<'a> {
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

    /// Creates, resumes or recreates the launcher's Job as the spec says.
    pub(super) fn ensure_launcher(
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
    pub(super) fn remember_launcher(
        &self,
        view: &ObjectView,
        batch: &BatchView,
        draft: &mut Draft,
    ) {
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

    /// Creates the launcher's Job, and stores the hash of its template.
    pub(super) fn create_launcher(
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
    pub(super) fn has_failed_again(&self, draft: &Draft) -> bool {
        let counts = draft.state.counts.as_ref();
        let known = counts.and_then(|c| c.get(LAUNCHER)).map_or(0, |c| c.failed);
        let failed = self.batch.map_or(0, |(_, batch)| number(batch.failed));
        failed > known
    }

    /// Returns true if the launcher runs pods or may create them.
    pub(super) fn still_launches(&self) -> bool {
        let bare = self.followed.is_some_and(|p| !p.pod.phase.has_ended());
        let batch = self.batch;
        bare || batch.is_some_and(|(view, batch)| {
            !batch.suspended && batch.end.is_none() && !view.terminating
        })
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
