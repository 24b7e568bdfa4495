//! The job's autoscaler in the world: its creation, changes and loss.

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::{Resource, ResourceExt};
use training_core::{AutoscalerView, Blocked, Digest, JobCx, Lifecycle, Step, TrainingJob, Uid};

use super::World;
use super::execute::Interruption;

/// The annotation with the hash of an autoscaler's inputs.
const MADE_FROM: &str = "trainyard.dev/autoscaler";

fn view(of: &HorizontalPodAutoscaler, uid: Uid, version: u64) -> AutoscalerView {
    AutoscalerView {
        uid,
        version,
        digest: of
            .annotations()
            .get(MADE_FROM)
            .and_then(|d| Digest::parse(d)),
        min: of.spec.min_replicas,
        max: of.spec.max_replicas,
        terminating: false,
    }
}

impl<F: Lifecycle> World<F> {
    /// Executes a call about the autoscaler. Returns true if it changed something.
    pub(super) fn call_autoscaler(&mut self, step: Step) -> Result<bool, Interruption> {
        match step {
            Step::CreateAutoscaler(made) if self.job.is_some() => {
                if self.taken {
                    return Err(Interruption::Taken(Blocked::Autoscaler));
                }
                // A name that the job's own autoscaler already has is a conflict and changes nothing.
                if self.autoscaler.is_none() {
                    let version = self.next_version();
                    self.law_of_new_autoscaler(&made);
                    self.writes.push("create autoscaler".to_owned());
                    self.store_autoscaler(view(&made, Uid(u128::from(version)), version));
                    return Ok(true);
                }
            }
            Step::ChangeAutoscaler { uid, version, to } => {
                let meant = |a: &AutoscalerView| a.uid == uid && a.version == version;
                if !self.autoscaler.as_ref().is_some_and(meant) {
                    return Err(Interruption::Conflict);
                }
                let version = self.next_version();
                self.writes.push("change autoscaler".to_owned());
                self.store_autoscaler(view(&to, uid, version));
                return Ok(true);
            }
            Step::DeleteAutoscaler { uid, .. } => {
                if self.autoscaler.as_ref().is_some_and(|a| a.uid == uid) {
                    self.writes.push("delete autoscaler".to_owned());
                    self.drop_autoscaler();
                    return Ok(true);
                }
            }
            Step::CreateAutoscaler(_)
            | Step::CreatePod(_)
            | Step::CreateService(_)
            | Step::CreateObject(_)
            | Step::RecreateSecret(_)
            | Step::ChangeObject { .. }
            | Step::DeleteObject { .. }
            | Step::LookUpGroup { .. }
            | Step::CreateGroup { .. }
            | Step::ChangeGroup { .. }
            | Step::DeleteGroup { .. }
            | Step::DeletePod { .. }
            | Step::DeleteService { .. }
            | Step::DeleteJob => {}
        }
        Ok(false)
    }

    fn store_autoscaler(&mut self, now: AutoscalerView) {
        self.view.autoscaler.send((), Ok(now.clone()));
        self.autoscaler = Some(now);
    }

    pub(super) fn drop_autoscaler(&mut self) {
        if let Some(gone) = self.autoscaler.take() {
            self.view.autoscaler.send((), Err(gone.uid));
        }
    }

    /// Disturbs the autoscaler: deletes it, writes its status, edits it, or takes or frees its name.
    pub(super) fn happen_to_autoscaler(&mut self, what: u8) {
        match what % 4 {
            0 => self.drop_autoscaler(),
            3 => self.taken = !self.taken && self.autoscaler.is_none(),
            kind => {
                let version = self.next_version();
                if let Some(mut now) = self.autoscaler.clone() {
                    now.version = version;
                    now.max += i32::from(kind == 2);
                    self.store_autoscaler(now);
                }
            }
        }
    }

    fn law_of_new_autoscaler(&mut self, made: &HorizontalPodAutoscaler) {
        let Some(job) = self.view.job.clone() else {
            return;
        };
        let meta = &made.metadata;
        let owners = meta.owner_references.as_deref().unwrap_or_default();
        let owned = matches!(owners, [o] if Some(&o.uid) == job.meta().uid.as_ref()
            && o.controller == Some(true) && o.name == job.name_any());
        if !owned || made.name_any() != job.name_any() {
            self.breaches
                .push(format!("the autoscaler is not the job's: {meta:?}"));
        }
        if self.durable_state().is_finished() || job.run_policy().suspend == Some(true) {
            self.breaches
                .push("an autoscaler was made for a job at rest".to_owned());
        }
    }

    /// In a settled world the autoscaler is as requested. A job whose spec became invalid keeps the one that it has.
    pub(super) fn law_of_autoscaler_at_rest(&self, job: &F::Job) -> Option<String> {
        let quiet = self.durable_state().is_finished() || job.run_policy().suspend == Some(true);
        let wanted = if quiet {
            None
        } else {
            let roles = self.framework.roles(job).ok()?;
            let wanted = self.framework.autoscaling(&JobCx::new(job, &roles));
            wanted.map(|w| (Some(w.min), w.max))
        };
        let there = self.autoscaler.as_ref().map(|a| (a.min, a.max));
        let waits = self.taken && there.is_none();
        (there != wanted && !waits)
            .then(|| format!("the autoscaler is {there:?} instead of {wanted:?}"))
    }
}
