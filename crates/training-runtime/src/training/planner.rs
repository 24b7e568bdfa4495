//! Jobs of replicas: what is known of one, and how its steps become requests. A [`Framework`](training_core::Framework) decides.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio::time::Instant;
use training_api::JobStatus;
use training_core::provider::{Run, Setting};
use training_core::{
    Action as _, JobState as _, Lifecycle, ObjectKind, Observed, Plan, Provider, Rules, SecretView,
    Step, Stored as _, TrainingJob, Uid, is_managed_elsewhere, plan,
};

use crate::cli::EventMode;
use crate::executor::{self, Executor};
use crate::fault::Fault;
use crate::key::JobKey;
use crate::metrics::{self, Metrics};
use crate::pending::folded;
use crate::worker::{LastReconcile, Outcome, PlanOf, Planner, Subject};

/// How jobs of replicas are reconciled.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How events about created and deleted children are recorded.
    pub events: EventMode,
    /// What decisions depend on.
    pub rules: Rules,
    /// Who schedules the gangs of runs that start now.
    pub gang: Provider,
}

/// The planner of a framework's jobs.
pub struct TrainingPlanner<F: Lifecycle> {
    /// The framework.
    pub framework: F,
    /// Sends requests, and knows the children.
    pub executor: Executor,
    /// Where counts go.
    pub metrics: Arc<Metrics>,
    /// How jobs are reconciled.
    pub settings: Settings,
    secrets: Mutex<HashMap<JobKey, (Uid, SecretView)>>,
}

impl<F: Lifecycle> TrainingPlanner<F> {
    /// A planner that knows no Secret yet.
    pub fn new(
        framework: F,
        executor: Executor,
        metrics: Arc<Metrics>,
        settings: Settings,
    ) -> Self {
        Self {
            framework,
            executor,
            metrics,
            settings,
            secrets: Mutex::default(),
        }
    }

    /// Starts the watches of the kinds of groups that a job has or may have. The job is requeued once their availability is known.
    fn watch_groups_of(&self, key: &JobKey, job: &F::Job) {
        if is_managed_elsewhere::<F>(job) {
            return;
        }
        // Jobs that ended under a former scheduler must not need rights that nothing else needs.
        let run = job.status().and_then(|status| {
            let run = status.gang_scheduler.as_deref()?;
            (!status.durable_state().is_finished()).then(|| Run::parse(run))
        });
        let run = run.unwrap_or_default();
        let set = self.settings.gang.kinds().iter().copied();
        for kind in set.chain(run.kinds()) {
            self.executor.children().groups.want(kind, key);
        }
    }

    fn observe_objects(
        &self,
        subject: Subject<'_, F::Job>,
        failing: bool,
        observed: &mut Observed,
    ) {
        let Subject { key, uid, object } = subject;
        let children = self.executor.children();
        observed.objects = children.objects.of(uid);
        let made = || observed.objects.iter().filter(|o| o.batch.is_some());
        if F::OWN_METRICS.is_some()
            && let Some(launcher) = made().next()
        {
            self.metrics.launches(&key.namespace, &launcher.name);
        }
        let stored = object.status().map(|status| status.made_once.values());
        let stored = stored.into_iter().flatten();
        let named: Vec<Uid> = stored.filter_map(|text| Uid::parse(text)).collect();
        // The pods of a Job that is gone may still be terminating.
        let batches = children.batches(uid, &named);
        let pods = batches
            .into_iter()
            .flat_map(|of| children.batch_pods.of(of));
        (observed.forged_pods, observed.batch_pods) = pods.partition(|pod| pod.forged);
        let jobs = children.objects.of_kind(ObjectKind::Job);
        observed.gone = named
            .into_iter()
            .filter(|uid| jobs.recently_gone(*uid))
            .collect();
        observed.failing = failing;
        let secrets = self.secrets.lock();
        if let Some((_, secret)) = secrets.get(key).filter(|(of, _)| *of == uid) {
            observed.secret = secret.clone();
        }
    }

    /// The operator never reads Secrets: it remembers the answers to its creates.
    fn remember_secrets(&self, subject: Subject<'_, F::Job>, outcome: &executor::Outcome) {
        if outcome.secret.is_none() && outcome.taken.is_none() {
            return;
        }
        let mut secrets = self.secrets.lock();
        let (of, known) = secrets.entry(subject.key.clone()).or_default();
        if *of != subject.uid {
            (*of, *known) = (subject.uid, SecretView::default());
        }
        if let Some(name) = &outcome.secret {
            known.made = Some(name.as_str().into());
        }
        if outcome.taken.is_some() {
            known.taken = known.taken.saturating_add(1);
        }
    }
}

impl<F: Lifecycle> Planner for TrainingPlanner<F> {
    type Object = F::Job;
    type Observed = Observed;
    type Step = Step;

    const CACHES: [&'static str; 3] = ["jobs", "jobs_not_cached", "jobs_waiting"];

    fn observe(&self, subject: Subject<'_, F::Job>, last: LastReconcile) -> Observed {
        let Subject { key, uid, object } = subject;
        self.watch_groups_of(key, object);
        let children = self.executor.children();
        let groups = &children.groups;
        let mut observed = Observed {
            pods: children.pods.of(uid),
            services: children.services.of(uid),
            autoscaler: children.autoscalers.of(uid).pop(),
            autoscaler_unknown: F::AUTOSCALES && !children.autoscalers.is_known(key),
            groups: groups.of(uid),
            sought: groups.sought_of(key, uid),
            gang: Setting {
                provider: self.settings.gang.clone(),
                offers: groups.offers(),
                kueue: groups.kueue(),
            },
            stall: last.stall,
            rules: self.settings.rules,
            ..Observed::default()
        };
        if !F::OBJECTS.is_empty() {
            self.observe_objects(subject, last.failing, &mut observed);
        }
        observed
    }

    fn plan(&self, job: &F::Job, observed: &Observed, now: Timestamp) -> Plan<JobStatus> {
        plan(&self.framework, job, observed, now)
    }

    async fn execute(
        &self,
        subject: Subject<'_, F::Job>,
        steps: &[Step],
        cautious: bool,
    ) -> Outcome {
        let outcome = self
            .executor
            .execute(&**subject.object, steps, cautious)
            .await;
        self.remember_secrets(subject, &outcome);
        if outcome.job_deleted {
            let namespace = &subject.key.namespace;
            self.metrics.job(metrics::Transition::Deleted, namespace);
        }
        Outcome {
            notes: folded(&outcome.done, self.settings.events),
            refusal: outcome.refusal,
            fault: outcome.fault,
            progress: outcome.progress,
            outdated: outcome.found,
        }
    }

    fn status_delay(&self, observed: &Observed, plan: &PlanOf<Self>, delay: Duration) -> Duration {
        let lists = plan.steps.iter().any(Step::batches_with_counts);
        status_delay(delay, if lists { observed.pods.len() } else { 0 })
    }

    /// When a job that has started has to end.
    fn deadline(job: &F::Job) -> Option<Timestamp> {
        let start = job.status()?.start_time.as_ref()?.0;
        let limit = job.run_policy().active_deadline_seconds?;
        let limit = SignedDuration::from_secs(limit.max(0));
        start.checked_add(limit).ok()
    }

    async fn confirm(&self, job: &F::Job) -> Result<(), Fault> {
        self.executor.confirm(job).await
    }

    fn next_confirmation(&self, job: Uid) -> Option<Instant> {
        self.executor.next_confirmation(job)
    }

    fn take_unexpected_deletion(&self, job: Uid) -> bool {
        let children = self.executor.children();
        let pods = children.pods.take_unexpected_deletion(job);
        // Call both: each call resets its flag.
        children.services.take_unexpected_deletion(job) || pods
    }

    fn has_freed(&self, job: Uid, steps: &[Step]) -> bool {
        let exists = |uid| self.executor.children().has_pod(job, uid);
        let mut deleted = steps.iter();
        deleted.any(|step| matches!(step, Step::DeletePod { uid, .. } if !exists(*uid)))
    }

    fn forget(&self, key: &JobKey, last: bool) {
        let children = self.executor.children();
        children.groups.forget(key);
        self.secrets.lock().remove(key);
        children.objects.forget(key);
        if let Some((_, suffix)) = F::OWN_METRICS {
            let launcher = format!("{}{suffix}", key.name);
            self.metrics.forget_launcher(&key.namespace, &launcher);
        }
        if last {
            self.metrics.forget_namespace(&key.namespace);
        }
    }

    fn held(&self) -> Vec<(&'static str, usize)> {
        let children = self.executor.children();
        vec![
            ("pods", children.pods.len()),
            ("services", children.services.len()),
        ]
    }
}

/// How long counts wait where an object that lists so many pods is written with them: a long list is written less often.
fn status_delay(delay: Duration, listed: usize) -> Duration {
    /// So many are listed in no more than what a status takes.
    const FEW: usize = 50;
    delay.saturating_mul(u32::try_from(listed / FEW).unwrap_or(u32::MAX).clamp(1, 50))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lists_many_pods_is_written_less_often() {
        let waits = |pods| status_delay(Duration::from_millis(100), pods).as_millis();
        assert_eq!([0, 8, 99].map(waits), [100, 100, 100]);
        assert_eq!([100, 1_000, 20_000].map(waits), [200, 2_000, 5_000]);
    }
}
