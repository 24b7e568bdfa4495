//! One look at one job: observe, plan, execute.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::Resource;
use parking_lot::Mutex;
use tokio::time::Instant;
use training_api::JobStatus;
use training_core::provider::{Run, Setting};
use training_core::{
    AutoscalerView, BatchPod, Blocked, JobState as _, Lifecycle, Note, ObjectKind, Observed, Plan,
    PodView, Provider, Rules, SecretView, ServiceView, Stall, Step, TrainingJob, Transition, Uid,
    Urgency, is_managed_elsewhere, plan,
};

use crate::cli::EventMode;
use crate::events::EventSink;
use crate::executor::{Executor, Outcome, Refusal};
use crate::fault::Fault;
use crate::feed::group::Groups;
use crate::feed::index::Index;
use crate::feed::jobs::JobsOf;
use crate::feed::object::Objects;
use crate::key::JobKey;
use crate::look::{Counts, Ended, Frame, Rhythm, now};
use crate::metrics::{self, Metrics};
use crate::retry::{Backoff, Jitter};
use crate::told::{Told, folded};

/// A decision, its write and the look at what follows from it are one pass; more rounds than this never make sense.
const ROUNDS: usize = 8;

/// The times that a pass keeps to.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Longest pass.
    pub deadline: Duration,
    /// Longest wait of a status that holds nothing but counts.
    pub status_delay: Duration,
    /// A job that nothing happens to is looked at again after about this time.
    pub safety_period: Duration,
    /// How events are told.
    pub events: EventMode,
    /// What decisions depend on.
    pub rules: Rules,
    /// Who schedules gangs of runs that begin now.
    pub gang: Provider,
}

/// Everything a pass needs.
pub struct Worker<F: Lifecycle> {
    /// The framework.
    pub framework: F,
    /// The jobs.
    pub jobs: Arc<JobsOf<F>>,
    /// Their pods.
    pub pods: Arc<Index<PodView>>,
    /// Their services.
    pub services: Arc<Index<ServiceView>>,
    /// Their autoscalers.
    pub autoscalers: Arc<Index<AutoscalerView>>,
    /// The pods that Jobs of theirs have made.
    pub batch_pods: Arc<Index<BatchPod>>,
    /// Their further objects.
    pub objects: Arc<Objects>,
    /// The objects that stand for their gangs.
    pub groups: Arc<Groups>,
    /// The writer.
    pub executor: Executor,
    /// Earliest next attempts of jobs whose pass failed.
    pub backoff: Backoff<JobKey>,
    /// Where events go.
    pub events: EventSink,
    /// Where counts go.
    pub metrics: Arc<Metrics>,
    /// The times to keep to.
    pub settings: Settings,
    /// What nobody needs to survive a restart: it would come about again.
    pub passing: Passing,
}

/// Memory of the process alone.
#[derive(Debug)]
pub struct Passing {
    stalls: Mutex<HashMap<JobKey, (Uid, Stall)>>,
    waiting: Counts,
    secrets: Mutex<HashMap<JobKey, (Uid, SecretView)>>,
    failed_in: Mutex<HashMap<JobKey, FailedIn>>,
    jitter: Mutex<Jitter>,
}

impl Passing {
    /// Empty, with a seed for the spread of safety passes.
    pub fn new(seed: u64) -> Self {
        Self {
            stalls: Mutex::default(),
            waiting: Counts::default(),
            secrets: Mutex::default(),
            failed_in: Mutex::default(),
            jitter: Mutex::new(Jitter::new(seed)),
        }
    }
}

impl<F: Lifecycle> Worker<F> {
    /// Looks at a job once; answers when it wants to be looked at again.
    pub async fn pass(self: Arc<Self>, key: JobKey) -> Option<Instant> {
        let frame = Frame {
            deadline: self.settings.deadline,
            backoff: &self.backoff,
            metrics: &self.metrics,
        };
        let forget = || self.forget(&key);
        let open = match frame
            .open(&self.jobs, &self.executor.caller, &key, forget)
            .await
        {
            Ok(open) => open,
            Err(next) => return next,
        };
        let job = &open.job;
        let state = FailedIn::of(&**job, now());
        let known = self.passing.failed_in.lock().get(&key).copied();
        let cuts_in = known.is_some_and(|known| known != state);
        let looking = Box::pin(self.look_anew(&key, job, cuts_in));
        let next = frame.run(&key, job.meta(), looking).await?;
        let mut known = self.passing.failed_in.lock();
        if self.backoff.failures(&key) == 0 {
            known.remove(&key);
            return Some(next);
        }
        known.insert(key.clone(), state);
        let deadline = deadline(&**job).filter(|_| !state.overdue);
        Some(deadline.map_or(next, |at| next.min(self.wake(Some(at)))))
    }

    /// A look at a job, once it is sure that what we made is there.
    async fn look_anew(&self, key: &JobKey, job: &F::Job, cuts_in: bool) -> Ended {
        let begun = Instant::now();
        let uid = job.meta().uid.as_deref().and_then(Uid::parse);
        let uid = uid.unwrap_or_default();
        let held = self.backoff.not_before(key).is_some_and(|at| at > begun);
        if !held && let Err(fault) = self.executor.confirm(job).await {
            return Ended::Failed(fault);
        }
        match self.look(key, begun, cuts_in).await {
            Ended::Quiet(at) => {
                let next = self.executor.next_confirmation(uid);
                Ended::Quiet(next.map_or(at, |next| next.min(at)))
            }
            ended => ended,
        }
    }

    /// `cuts_in` says that the job doesn't wait until its backoff is over.
    async fn look(&self, key: &JobKey, begun: Instant, cuts_in: bool) -> Ended {
        let mut held = self.backoff.not_before(key).filter(|at| *at > begun);
        if cuts_in {
            held = None;
        }
        if let Some(at) = held
            && !self.passing.stalls.lock().contains_key(key)
        {
            return Ended::Held(at);
        }
        let mut refused: Option<Instant> = None;
        let mut told = Told::new(&self.events);
        for _ in 0..ROUNDS {
            let Some(job) = self.jobs.get(key) else {
                return Ended::Quiet(self.safety());
            };
            let Some(uid) = job.meta().uid.as_deref().and_then(Uid::parse) else {
                return Ended::Failed(Fault::Bug("the job has no uid".to_owned()));
            };
            self.ask_for_groups(key, &job);
            let seen = self.observe(key, uid, &job);
            let blocked = seen.stall.as_ref().map(|s| s.blocks);
            let stalled = blocked.is_some();
            let mut plan = plan(&self.framework, &job, &seen, now());
            let mut wake = self.wake(plan.wake);
            let planned_creates = plan.steps.iter().any(Step::is_create);
            if let Some(blocked) = blocked
                && (held.is_some() || refused.is_some())
            {
                if held.is_some() && refused.is_none() && is_over(seen.stall.as_ref(), &plan) {
                    self.passing.stalls.lock().remove(key);
                    self.backoff.forget(key);
                    held = None;
                    continue;
                }
                // What was refused is not tried again before its time; everything else goes on.
                plan.steps.retain(|s| !s.waits_for(blocked));
            }
            if let Some(at) = self.may_wait(key, &plan, begun, seen.pods.len()) {
                wake = wake.min(at);
                if plan.steps.iter().all(Step::goes_with_counts) {
                    return Ended::Quiet(wake);
                }
                // Other steps don't wait for counts, nor does what follows from them wait until counts are written.
                plan.status = None;
            }
            if planned_creates && self.is_bereft(uid) {
                match self.executor.caller.is_there(&*job).await {
                    Ok(true) => {}
                    // Its end is about to be told, and what would be made now would be collected with the rest.
                    Ok(false) => return Ended::Quiet(self.safety()),
                    Err(fault) => return Ended::Failed(fault),
                }
            }
            let cautious = blocked.is_some_and(Blocked::keeps_pods);
            let outcome = match self.carry_out(key, &job, &plan, cautious, &mut told).await {
                Ok(outcome) => outcome,
                Err(fault) => return Ended::Failed(fault),
            };
            self.remember_secrets(key, uid, &outcome);
            if outcome.job_deleted {
                self.metrics
                    .job(metrics::Transition::Deleted, &key.namespace);
            }
            if let Some(refusal) = outcome.refusal {
                let stalled = blocked.is_some_and(|b| b == refusal.stall.blocks);
                refused = Some(self.refuse(key, &job, &refusal, stalled, &mut told));
                continue;
            }
            if let Some(fault) = outcome.fault {
                if outcome.progress {
                    // What went wrong by chance doesn't make the next one of a long series wait longer.
                    self.backoff.forget(key);
                }
                return Ended::Failed(fault);
            }
            if outcome.found {
                // It may run already, or have ended: the watch will say nothing that is newer.
                continue;
            }
            if let Some(at) = refused.or(held) {
                // Where all that is left was refused, another look would find the same.
                if plan.again && !plan.is_idle() {
                    continue;
                }
                return Ended::Held(at.min(wake));
            }
            if stalled {
                // Everything that was refused is made, or no longer wanted.
                self.passing.stalls.lock().remove(key);
                self.backoff.forget(key);
                continue;
            }
            self.backoff.forget(key);
            // A plan that created nothing and decided nothing has nothing to follow it.
            let again = plan.again || self.freed_places(uid, &plan);
            if !again || plan.is_idle() && !planned_creates {
                return Ended::Quiet(wake);
            }
        }
        // Something keeps changing under us; it will wake us if it matters, and this bounds what it costs.
        Ended::Quiet(Instant::now() + Duration::from_secs(1))
    }

    /// Asks for the kinds of groups that a job has or may have. They are watched from then on, and it is looked at again once
    /// more is known of them.
    fn ask_for_groups(&self, key: &JobKey, job: &F::Job) {
        if is_managed_elsewhere::<F>(job) {
            return;
        }
        // Jobs that ended under a former scheduler must not ask for rights that nobody needs any more.
        let run = job.status().and_then(|status| {
            let run = status.gang_scheduler.as_deref()?;
            (!status.recall().is_finished()).then(|| Run::parse(run))
        });
        let run = run.unwrap_or_default();
        let set = self.settings.gang.kinds().iter().copied();
        for kind in set.chain(run.kinds()) {
            self.groups.want(kind, key);
        }
    }

    /// Secrets are never read: what is known of one is what became of its creation.
    fn remember_secrets(&self, key: &JobKey, uid: Uid, outcome: &Outcome) {
        if outcome.secret.is_none() && outcome.taken.is_none() {
            return;
        }
        let mut secrets = self.passing.secrets.lock();
        let (of, known) = secrets.entry(key.clone()).or_default();
        if *of != uid {
            (*of, *known) = (uid, SecretView::default());
        }
        if let Some(name) = &outcome.secret {
            known.made = Some(name.as_str().into());
        }
        if outcome.taken.is_some() {
            known.taken = known.taken.saturating_add(1);
        }
    }

    fn observe(&self, key: &JobKey, uid: Uid, job: &F::Job) -> Observed {
        let stall = self
            .passing
            .stalls
            .lock()
            .get(key)
            .filter(|(of, _)| *of == uid)
            .map(|(_, stall)| stall.clone());
        let mut seen = Observed {
            pods: self.pods.of(uid),
            services: self.services.of(uid),
            autoscaler: self.autoscalers.of(uid).pop(),
            autoscaler_unknown: F::AUTOSCALES && !self.autoscalers.is_known(key),
            groups: self.groups.of(uid),
            sought: self.groups.sought_of(key, uid),
            gang: Setting {
                provider: self.settings.gang.clone(),
                offers: self.groups.offers(),
                kueue: self.groups.kueue(),
            },
            stall,
            rules: self.settings.rules,
            ..Observed::default()
        };
        if !F::OBJECTS.is_empty() {
            self.observe_objects(key, uid, job, &mut seen);
        }
        seen
    }

    fn observe_objects(&self, key: &JobKey, uid: Uid, job: &F::Job, seen: &mut Observed) {
        seen.objects = self.objects.of(uid);
        let made = || seen.objects.iter().filter(|o| o.batch.is_some());
        if F::OWN_METRICS.is_some()
            && let Some(launcher) = made().next()
        {
            self.metrics.launches(&key.namespace, &launcher.name);
        }
        let stored = job.status().map(|status| status.made_once.values());
        let stored = stored.into_iter().flatten();
        let named: Vec<Uid> = stored.filter_map(|text| Uid::parse(text)).collect();
        // The pods of a Job that is gone may still be on their way out.
        let batches = self.executor.children().batches(uid, &named);
        let pods = batches.into_iter().flat_map(|of| self.batch_pods.of(of));
        seen.batch_pods = pods.collect();
        let jobs = self.objects.of_kind(ObjectKind::Job);
        seen.gone = named
            .into_iter()
            .filter(|uid| jobs.has_gone(*uid))
            .collect();
        seen.failing = self.backoff.failures(key) > 0;
        let secrets = self.passing.secrets.lock();
        if let Some((_, secret)) = secrets.get(key).filter(|(of, _)| *of == uid) {
            seen.secret = secret.clone();
        }
    }

    /// Whether children of a job went without us since this was asked last.
    fn is_bereft(&self, job: Uid) -> bool {
        let (pods, services) = (self.pods.take_bereft(job), self.services.take_bereft(job));
        pods || services
    }

    /// Whether a pod that a plan deleted is gone already, so that its place can be filled at once.
    fn freed_places(&self, job: Uid, plan: &Plan<JobStatus>) -> bool {
        let there = |uid| self.executor.children().has_pod(job, uid);
        plan.steps
            .iter()
            .any(|step| matches!(step, Step::DeletePod { uid, .. } if !there(*uid)))
    }

    /// When a status that holds nothing but counts is written at the latest.
    fn may_wait(
        &self,
        key: &JobKey,
        plan: &Plan<JobStatus>,
        begun: Instant,
        pods: usize,
    ) -> Option<Instant> {
        // What is told with a status must not be told again when the same status is planned again beside other steps.
        let silent = plan.notes.is_empty() && plan.transitions.is_empty();
        let can_wait = plan
            .status
            .as_ref()
            .is_some_and(|s| s.urgency == Urgency::CanWait)
            && (plan.steps.is_empty() || silent);
        let lists = plan.steps.iter().any(Step::goes_with_counts);
        let longest = patience(self.settings.status_delay, if lists { pods } else { 0 });
        self.passing.waiting.wait(key, can_wait, begun, longest)
    }

    /// Executes a plan in its order: a decision is stored before anything acts on it; what is no decision goes beside.
    async fn carry_out(
        &self,
        key: &JobKey,
        job: &Arc<F::Job>,
        plan: &Plan<JobStatus>,
        cautious: bool,
        told: &mut Told<'_>,
    ) -> Result<Outcome, Fault> {
        let first = plan
            .status
            .as_ref()
            .is_some_and(|s| s.urgency == Urgency::First);
        let act = self.executor.execute(&**job, &plan.steps, cautious);
        let (stored, outcome) = if first {
            self.store(key, job, plan, told).await?;
            (Ok(()), act.await)
        } else {
            futures::join!(self.store(key, job, plan, told), act)
        };
        told.note(&**job, folded(&outcome.done, self.settings.events));
        stored.map(|()| outcome)
    }

    async fn store(
        &self,
        key: &JobKey,
        job: &Arc<F::Job>,
        plan: &Plan<JobStatus>,
        told: &mut Told<'_>,
    ) -> Result<(), Fault> {
        let Some(write) = &plan.status else {
            told.note(&**job, plan.notes.clone());
            return Ok(());
        };
        let version = self
            .executor
            .caller
            .write_status(&**job, &write.patch)
            .await?;
        self.jobs.written(job, write.next.clone(), version);
        for transition in &plan.transitions {
            let counted = match transition {
                Transition::Created => metrics::Transition::Created,
                Transition::Succeeded => metrics::Transition::Successful,
                Transition::Failed => metrics::Transition::Failed,
                Transition::Restarted => metrics::Transition::Restarted,
            };
            self.metrics.job(counted, &key.namespace);
        }
        for note in &plan.notes {
            tracing::info!(job = %key, reason = note.reason, message = note.message, "told");
        }
        told.note(&**job, plan.notes.clone());
        Ok(())
    }

    /// Remembers what was refused, so that the plan can say it. Returns when it may be tried again.
    fn refuse(
        &self,
        key: &JobKey,
        job: &F::Job,
        refusal: &Refusal,
        stalled: bool,
        told: &mut Told<'_>,
    ) -> Instant {
        let uid = job.meta().uid.as_deref().and_then(Uid::parse);
        tracing::warn!(job = %key, reason = refusal.stall.reason, message = refusal.stall.message, "refused");
        if !stalled {
            told.note(
                job,
                vec![Note::warning(refusal.event, refusal.text.clone())],
            );
        }
        self.passing.stalls.lock().insert(
            key.clone(),
            (uid.unwrap_or_default(), refusal.stall.clone()),
        );
        self.backoff
            .record_failure(key, &refusal.fault, Instant::now())
    }

    /// Forgets what the process kept about a job.
    pub fn forget(&self, key: &JobKey) {
        self.backoff.forget(key);
        self.groups.forget(key);
        self.passing.stalls.lock().remove(key);
        self.passing.waiting.forget(key);
        self.passing.secrets.lock().remove(key);
        self.passing.failed_in.lock().remove(key);
        if !F::OBJECTS.is_empty() {
            self.objects.forget(key);
        }
        if let Some((_, suffix)) = F::OWN_METRICS {
            let launcher = format!("{}{suffix}", key.name);
            self.metrics.forget_launcher(&key.namespace, &launcher);
        }
        if !self.jobs.any_in(&key.namespace) {
            self.metrics.forget_namespace(&key.namespace);
        }
    }

    /// A child of a job is gone: if its name was what the job waited for, it needn't wait any longer.
    pub fn freed(&self, key: &JobKey) {
        if !F::OBJECTS.is_empty() && !self.jobs.contains(key) {
            self.objects.forget(key);
        }
        if self
            .passing
            .stalls
            .lock()
            .get(key)
            .is_some_and(|(_, stall)| stall.reason == "NameConflict")
        {
            self.backoff.forget(key);
        }
    }

    fn wake(&self, at: Option<Timestamp>) -> Instant {
        self.rhythm().wake(at)
    }

    fn safety(&self) -> Instant {
        self.rhythm().safety()
    }

    fn rhythm(&self) -> Rhythm<'_> {
        Rhythm {
            period: self.settings.safety_period,
            jitter: &self.passing.jitter,
        }
    }
}

/// In what state of a job its last pass failed. A user's edit, a suspension above all, and the job's deadline don't wait until the
/// backoff is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FailedIn {
    generation: Option<i64>,
    overdue: bool,
}

impl FailedIn {
    fn of<J: TrainingJob<Status = JobStatus>>(job: &J, now: Timestamp) -> Self {
        Self {
            generation: job.meta().generation,
            overdue: deadline(job).is_some_and(|at| at <= now),
        }
    }
}

/// When a job that has started has to end.
fn deadline<J: TrainingJob<Status = JobStatus>>(job: &J) -> Option<Timestamp> {
    let start = job.status()?.start_time.as_ref()?.0;
    let limit = job.run_policy().active_deadline_seconds?;
    let limit = SignedDuration::from_secs(limit.max(0));
    start.checked_add(limit).ok()
}

/// True if the name that was taken is not wanted any more: what has it is the job's own, and is seen again.
fn is_over(stall: Option<&Stall>, plan: &Plan<JobStatus>) -> bool {
    stall.is_some_and(|stall| {
        stall.reason == "NameConflict" && !plan.steps.iter().any(|s| s.waits_for(stall.blocks))
    })
}

/// How long counts wait where an object that lists so many pods is written with them: what is long is written less often.
fn patience(delay: Duration, listed: usize) -> Duration {
    /// So many are listed in no more than what a status takes.
    const FEW: usize = 50;
    delay.saturating_mul(u32::try_from(listed / FEW).unwrap_or(u32::MAX).clamp(1, 50))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lists_many_pods_is_written_less_often() {
        let waits = |pods| patience(Duration::from_millis(100), pods).as_millis();
        assert_eq!([0, 8, 99].map(waits), [100, 100, 100]);
        assert_eq!([100, 1_000, 20_000].map(waits), [200, 2_000, 5_000]);
    }
}
