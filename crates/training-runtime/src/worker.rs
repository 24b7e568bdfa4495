//! The reconcile loop that every kind shares: observe, plan, execute.
//!
//! A [`Planner`] says what is known of an object, what is decided from that, and how a step becomes a request. Everything else is
//! here, once: the order of status and steps, refusals, backoff, events, panics, and what a process remembers between reconciles.

mod next;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::jiff::Timestamp;
use kube::Resource as _;
use kube::core::ObjectMeta;
use parking_lot::Mutex;
use tokio::task::JoinError;
use tokio::time::Instant;
use training_core::{Action, Note, Plan, Stall, StatusWrite, Stored, Transition, Uid, Urgency};

use crate::caller::Caller;
use crate::controller::Reconciler;
use crate::events::{EventSink, Regarding};
use crate::executor::Refusal;
use crate::fault::Fault;
use crate::feed::jobs::Jobs;
use crate::forged::ForgedPods;
use crate::frame::{Counts, Frame, ReconcileResult, Resync, STALE_DELAY, now};
use crate::key::JobKey;
use crate::metrics::{self, KindPhases, Metrics};
use crate::pending::PendingNotes;
use crate::retry::{Backoff, Jitter};
use next::{Next, Round, next};

/// The status of a planner's objects.
pub type StatusOf<P> = <<P as Planner>::Object as Stored>::Status;
/// What a planner decides.
pub type PlanOf<P> = Plan<StatusOf<P>, <P as Planner>::Step>;

/// The object that is reconciled.
#[derive(Debug)]
pub struct Subject<'a, O> {
    /// Its namespace and name.
    pub key: &'a JobKey,
    /// Its uid.
    pub uid: Uid,
    /// The object.
    pub object: &'a Arc<O>,
}

// A derive would ask that the object can be copied.
impl<O> Clone for Subject<'_, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<O> Copy for Subject<'_, O> {}

/// What the loop knows from an object's last reconcile.
#[derive(Debug)]
pub struct LastReconcile {
    /// What the API server refused.
    pub stall: Option<Stall>,
    /// The last reconcile failed.
    pub failing: bool,
}

/// What became of a plan's steps.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Events about what was created and deleted.
    pub notes: Vec<Note>,
    /// What the API server refused, where the loop is to retry it.
    pub refusal: Option<Refusal>,
    /// What went wrong otherwise.
    pub fault: Option<Fault>,
    /// A step has succeeded.
    pub progress: bool,
    /// The plan is outdated: executing it changed what is known.
    pub outdated: bool,
}

/// Decides for the objects of one kind, and turns steps into requests.
pub trait Planner: Send + Sync + Sized + 'static {
    /// The objects.
    type Object: Stored<Status: Clone + Send + Sync>;
    /// What is known of an object's children.
    type Observed: Send + Sync;
    /// One change.
    type Step: Action + Send + Sync;

    /// What the metrics call objects in memory, objects that are read when they are reconciled, and objects that wait for memory.
    const CACHES: [&'static str; 3];
    /// A decision, its write and what follows from it are one reconcile; more rounds than this make no sense.
    const ROUNDS: usize = 8;
    /// Events say how the new status differs from the stored one, so they may wait with a status of counts.
    const NOTES_WAIT: bool = false;

    /// Returns what is known of an object's children, from memory alone.
    fn observe(&self, subject: Subject<'_, Self::Object>, last: LastReconcile) -> Self::Observed;

    /// Decides. Pure.
    fn plan(
        &self,
        object: &Self::Object,
        observed: &Self::Observed,
        now: Timestamp,
    ) -> PlanOf<Self>;

    /// Executes steps. `cautious`: send one request first, then two, then four, because creates were refused before.
    fn execute(
        &self,
        subject: Subject<'_, Self::Object>,
        steps: &[Self::Step],
        cautious: bool,
    ) -> impl Future<Output = Outcome> + Send;

    /// How long the status of such a plan may wait for more counts, where `delay` is set.
    fn status_delay(
        &self,
        _observed: &Self::Observed,
        _plan: &PlanOf<Self>,
        delay: Duration,
    ) -> Duration {
        delay
    }

    /// When an object has to end, which its backoff must not delay.
    fn deadline(_object: &Self::Object) -> Option<Timestamp> {
        None
    }

    /// Reads children that were created a while ago and that no watch has shown.
    ///
    /// # Errors
    /// If the API server doesn't answer.
    fn confirm(&self, _object: &Self::Object) -> impl Future<Output = Result<(), Fault>> + Send {
        std::future::ready(Ok(()))
    }

    /// When [`Self::confirm`] has something to read.
    fn next_confirmation(&self, _object: Uid) -> Option<Instant> {
        None
    }

    /// Reads a child that [`Plan::unobserved_child`] names. True if it exists, and is known from now on.
    ///
    /// # Errors
    /// If the read fails.
    fn find(
        &self,
        _subject: Subject<'_, Self::Object>,
        _name: &str,
    ) -> impl Future<Output = Result<bool, Fault>> + Send {
        std::future::ready(Ok(false))
    }

    /// True if an object has lost children that the operator didn't delete since this was last asked: it may be deleted itself.
    fn take_unexpected_deletion(&self, object: Uid) -> bool;

    /// True if deletions of these steps have made room for what the next plan creates.
    fn has_freed(&self, _object: Uid, _steps: &[Self::Step]) -> bool {
        false
    }

    /// A status was stored. `stored` returns the object with it, if the object is still in memory; that may decode it.
    fn stored(
        &self,
        _subject: Subject<'_, Self::Object>,
        _write: &StatusWrite<StatusOf<Self>>,
        _stored: impl FnOnce() -> Option<Arc<Self::Object>>,
    ) {
    }

    /// An object is deleted, or no longer served: what the process kept about it goes. `last` says that no other one of its namespace
    /// is left.
    fn forget(&self, key: &JobKey, last: bool);

    /// A child is gone and its name is free. `known` says whether its owner is in the cache, whose list may be pending.
    fn child_deleted(&self, _key: &JobKey, _known: bool) {}

    /// Numbers of cached children, by metric label.
    fn held(&self) -> Vec<(&'static str, usize)>;
}

/// The times that reconciles keep to.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// The longest reconcile.
    pub deadline: Duration,
    /// The longest wait of a status that holds nothing but counts.
    pub status_delay: Duration,
    /// An object without any change is reconciled again after about this time.
    pub safety_period: Duration,
}

/// What the loop uses.
pub struct Context {
    /// Sends requests.
    pub caller: Arc<Caller>,
    /// Where events go.
    pub events: EventSink,
    /// Where counts go.
    pub metrics: Arc<Metrics>,
    /// The earliest next attempts of objects whose reconcile failed.
    pub backoff: Backoff<JobKey>,
    /// The times to keep to.
    pub times: Times,
    /// Spreads the reconciles of objects without any change.
    pub jitter: Mutex<Jitter>,
}

/// Reconciles the objects of one kind.
pub struct Worker<P: Planner> {
    /// What is particular to the kind.
    pub planner: P,
    /// The objects.
    pub jobs: Arc<Jobs<P::Object>>,
    /// What the loop uses.
    pub context: Context,
    state: ProcessState,
}

/// The state of this process. It is lost at a restart and rebuilt by later reconciles.
#[derive(Debug, Default)]
struct ProcessState {
    stalls: Mutex<HashMap<JobKey, (Uid, Stall)>>,
    failed: Mutex<HashMap<JobKey, FailedState>>,
    waiting: Counts,
    forged: ForgedPods,
    /// Versions of objects on which a status write was based that conflicted, or whose response was lost. A plan from such a version could
    /// repeat steps. Any later version contains the write, or made it conflict. A write that the API server executes even after the read
    /// is not covered.
    outdated: Mutex<HashMap<JobKey, Option<String>>>,
}

impl ProcessState {
    fn forget(&self, key: &JobKey) {
        self.stalls.lock().remove(key);
        self.failed.lock().remove(key);
        self.waiting.forget(key);
        self.forged.forget(key);
        self.outdated.lock().remove(key);
    }
}

impl<P: Planner> Worker<P> {
    /// A worker that has not reconciled anything yet.
    pub fn new(planner: P, jobs: Arc<Jobs<P::Object>>, context: Context) -> Self {
        Self {
            planner,
            jobs,
            context,
            state: ProcessState::default(),
        }
    }

    /// Reconciles an object once. Returns when it is due again, if ever.
    pub async fn reconcile(self: Arc<Self>, key: JobKey) -> Option<Instant> {
        let _hold = self.context.events.hold();
        let frame = Frame {
            deadline: self.context.times.deadline,
            backoff: &self.context.backoff,
            metrics: &self.context.metrics,
        };
        let forget = || self.forget_all(&key);
        let open = match frame
            .open(&self.jobs, &self.context.caller, &key, forget)
            .await
        {
            Ok(open) => open,
            Err(next) => return next,
        };
        let object = &open.job;
        let failing = FailedState::of::<P>(object, now());
        let known = self.state.failed.lock().get(&key).copied();
        let changed = known.is_some_and(|known| known != failing);
        let attempt = Box::pin(self.attempt(&key, object, changed));
        let next = frame.run(&key, object.meta(), attempt).await?;
        let mut failed = self.state.failed.lock();
        if self.context.backoff.failures(&key) == 0 {
            failed.remove(&key);
            return Some(next);
        }
        failed.insert(key.clone(), failing);
        // The attempt may have stored the start, from which the deadline counts.
        let stored = self.jobs.get(&key);
        let object = stored.as_deref().unwrap_or(object);
        let deadline = P::deadline(object).filter(|_| !failing.overdue);
        Some(deadline.map_or(next, |at| next.min(self.resync().requeue_at(Some(at)))))
    }

    /// `changed`: ignore the backoff, because the spec changed or the deadline passed.
    async fn attempt(&self, key: &JobKey, object: &P::Object, changed: bool) -> ReconcileResult {
        let begun = Instant::now();
        let waits = self
            .context
            .backoff
            .not_before(key)
            .filter(|at| *at > begun);
        let held = waits.filter(|_| !changed);
        if let Some(at) = held
            && !self.state.stalls.lock().contains_key(key)
        {
            return ReconcileResult::BackoffUntil(at);
        }
        match self.refresh(key, object).await {
            Ok(true) => {}
            // The watch is about to report it.
            Ok(false) => return ReconcileResult::RequeueAt(self.resync().next_resync()),
            Err(fault) => return ReconcileResult::Failed(fault),
        }
        if waits.is_none()
            && let Err(fault) = self.planner.confirm(object).await
        {
            return ReconcileResult::Failed(fault);
        }
        match self.rounds(key, begun, held).await {
            ReconcileResult::RequeueAt(at) => {
                let uid = Uid::of(object.meta()).unwrap_or_default();
                let next = self.planner.next_confirmation(uid);
                ReconcileResult::RequeueAt(next.map_or(at, |next| next.min(at)))
            }
            ended => ended,
        }
    }

    /// Reads an object if its version is one on which a failed status write was based. Returns false if it is gone.
    async fn refresh(&self, key: &JobKey, object: &P::Object) -> Result<bool, Fault> {
        let Some(base) = self.state.outdated.lock().get(key).cloned() else {
            return Ok(true);
        };
        if base == object.meta().resource_version {
            let read = self.context.caller.read_job::<P::Object>(key).await?;
            match read.and_then(|read| self.jobs.reread(key, read)) {
                Some(true) => tracing::info!("read a newer version from the API server"),
                Some(false) => {}
                None => return Ok(false),
            }
        }
        self.state.outdated.lock().remove(key);
        Ok(true)
    }

    async fn rounds(
        &self,
        key: &JobKey,
        begun: Instant,
        mut held: Option<Instant>,
    ) -> ReconcileResult {
        let mut refused: Option<Instant> = None;
        let mut searched = false;
        let mut told = PendingNotes::new(&self.context.events);
        for _ in 0..P::ROUNDS {
            let Some(object) = self.jobs.get(key) else {
                return ReconcileResult::RequeueAt(self.requeue_missing(key));
            };
            let Some(uid) = Uid::of(object.meta()) else {
                return ReconcileResult::Failed(Fault::Bug("the object has no uid".to_owned()));
            };
            let subject = Subject {
                key,
                uid,
                object: &object,
            };
            let last = self.last_reconcile(key, uid);
            let stall = last.stall.clone();
            let observed = self.planner.observe(subject, last);
            let mut plan = self.planner.plan(&object, &observed, now());
            if let Some(name) = plan.unobserved_child.take().filter(|_| !searched) {
                searched = true;
                match self.planner.find(subject, &name).await {
                    Ok(true) => continue,
                    Ok(false) => {}
                    Err(fault) => return ReconcileResult::Failed(fault),
                }
            }
            let forged = std::mem::take(&mut plan.forged);
            told.note(&*object, self.state.forged.warn(key, forged));
            let mut requeue_at = self.resync().requeue_at(plan.requeue_at);
            let creates = plan.steps.iter().any(Action::is_create);
            if let Some(stall) = &stall
                && (held.is_some() || refused.is_some())
            {
                if held.is_some() && refused.is_none() && is_over(stall, &plan.steps) {
                    self.recover(key);
                    held = None;
                    continue;
                }
                // Refused steps wait for their retry; everything else goes on.
                plan.steps.retain(|step| !step.waits_for(stall.blocks));
            }
            if let Some(at) = self.may_wait(key, &observed, &plan, begun) {
                requeue_at = requeue_at.min(at);
                if plan.steps.iter().all(Action::batches_with_counts) {
                    return ReconcileResult::RequeueAt(requeue_at);
                }
                // Other steps don't wait for counts, nor does what follows from them.
                plan.status = None;
                plan.notes.clear();
            }
            match self.is_deleted(&object, uid, creates).await {
                Ok(false) => {}
                Ok(true) => return ReconcileResult::RequeueAt(self.resync().next_resync()),
                Err(fault) => return ReconcileResult::Failed(fault),
            }
            let cautious = stall.as_ref().is_some_and(|s| s.blocks.blocks_pods());
            let outcome = match self.execute_plan(subject, &plan, cautious, &mut told).await {
                Ok(outcome) => outcome,
                Err(fault) => return ReconcileResult::Failed(fault),
            };
            if let Some(refusal) = &outcome.refusal {
                let known = stall
                    .as_ref()
                    .is_some_and(|s| s.blocks == refusal.stall.blocks);
                refused = Some(self.refuse(subject, refusal, known, &mut told));
            }
            let round = Round {
                refused: outcome.refusal.is_some(),
                fault: outcome.fault,
                outdated: outcome.outdated,
                retry_at: refused.or(held),
                stalled: stall.is_some(),
                requeue: plan.requeue,
                freed: !plan.requeue && self.planner.has_freed(uid, &plan.steps),
                idle: plan.is_idle(),
                creates,
            };
            let goes_on = round.retry_at.is_none() && !round.outdated;
            match next(round) {
                Next::Failed(fault) => {
                    if outcome.progress {
                        // Some steps succeeded, so one random fault must not lengthen the backoff.
                        self.context.backoff.forget(key);
                    }
                    return ReconcileResult::Failed(fault);
                }
                Next::Held(at) => return ReconcileResult::BackoffUntil(at.min(requeue_at)),
                Next::Recovered => self.recover(key),
                Next::Again => {
                    if goes_on {
                        self.context.backoff.forget(key);
                    }
                }
                Next::Done => {
                    self.context.backoff.forget(key);
                    return ReconcileResult::RequeueAt(requeue_at);
                }
            }
        }
        // Something keeps changing the object; each change requeues it, and this bounds what it costs.
        ReconcileResult::RequeueAt(Instant::now() + Duration::from_secs(1))
    }

    /// Returns when to requeue an object that is not in memory. It is gone, or the cache has no room for the version that was just read.
    fn requeue_missing(&self, key: &JobKey) -> Instant {
        if self.jobs.contains(key) {
            return Instant::now() + STALE_DELAY;
        }
        self.resync().next_resync()
    }

    /// True if an object that is about to create children is deleted, as lost children suggest. The watch is about to say so, and the
    /// garbage collector would delete the new children.
    async fn is_deleted(&self, object: &P::Object, uid: Uid, creates: bool) -> Result<bool, Fault> {
        if !creates || !self.planner.take_unexpected_deletion(uid) {
            return Ok(false);
        }
        Ok(!self.context.caller.exists(object).await?)
    }

    fn last_reconcile(&self, key: &JobKey, uid: Uid) -> LastReconcile {
        let stalls = self.state.stalls.lock();
        let stall = stalls.get(key).filter(|(of, _)| *of == uid);
        LastReconcile {
            stall: stall.map(|(_, stall)| stall.clone()),
            failing: self.context.backoff.failures(key) > 0,
        }
    }

    /// When a status that holds nothing but counts is written at the latest; `None` if now.
    fn may_wait(
        &self,
        key: &JobKey,
        observed: &P::Observed,
        plan: &PlanOf<P>,
        begun: Instant,
    ) -> Option<Instant> {
        let status = plan.status.as_ref();
        let counts = status.is_some_and(|s| s.urgency == Urgency::Batched);
        // The same status is planned again after the steps, and must not bring the same events again.
        let silent = P::NOTES_WAIT || plan.notes.is_empty() && plan.transitions.is_empty();
        let can_wait = counts && (plan.steps.is_empty() || silent);
        let delay = self
            .planner
            .status_delay(observed, plan, self.context.times.status_delay);
        self.state.waiting.wait(key, can_wait, begun, delay)
    }

    /// Executes a plan: a decision is stored before any step, a report after all of them, counts beside them.
    async fn execute_plan(
        &self,
        subject: Subject<'_, P::Object>,
        plan: &PlanOf<P>,
        cautious: bool,
        told: &mut PendingNotes<'_>,
    ) -> Result<Outcome, Fault> {
        let urgency = plan.status.as_ref().map(|status| status.urgency);
        let execute = self.planner.execute(subject, &plan.steps, cautious);
        let (stored, mut outcome) = match urgency {
            Some(Urgency::First) => {
                self.store(subject, plan, told).await?;
                (Ok(()), execute.await)
            }
            Some(Urgency::After) => {
                let outcome = execute.await;
                let complete = outcome.refusal.is_none() && outcome.fault.is_none();
                let stored = if complete {
                    self.store(subject, plan, told).await
                } else {
                    Ok(())
                };
                (stored, outcome)
            }
            Some(Urgency::Batched | Urgency::Parallel) | None => {
                futures::join!(self.store(subject, plan, told), execute)
            }
        };
        told.note(&**subject.object, std::mem::take(&mut outcome.notes));
        stored.map(|()| outcome)
    }

    async fn store(
        &self,
        subject: Subject<'_, P::Object>,
        plan: &PlanOf<P>,
        told: &mut PendingNotes<'_>,
    ) -> Result<(), Fault> {
        let Subject { key, object, .. } = subject;
        if let Some(write) = &plan.status {
            // Before the request: the reconcile's deadline may end it at any time.
            let base = object.meta().resource_version.clone();
            self.state.outdated.lock().insert(key.clone(), base);
            let caller = &self.context.caller;
            let answer = caller.write_status(&**object, &write.patch).await;
            let outdated =
                |fault: &Fault| fault.outcome_unknown() || matches!(fault, Fault::Conflict(_));
            if !answer.as_ref().is_err_and(outdated) {
                self.state.outdated.lock().remove(key);
            }
            let version = answer?;
            self.jobs.written(object, write.next.clone(), version);
            self.planner.stored(subject, write, || self.jobs.get(key));
            self.count(subject, plan, &write.next);
            for note in &plan.notes {
                tracing::info!(job = %key, reason = note.reason, message = note.message, "event");
            }
        }
        told.note(&**object, plan.notes.clone());
        Ok(())
    }

    /// Counts what a stored status changes.
    fn count(&self, subject: Subject<'_, P::Object>, plan: &PlanOf<P>, next: &StatusOf<P>) {
        let metrics = &self.context.metrics;
        let kind = P::Object::kind(&());
        for transition in &plan.transitions {
            metrics.job(counted(*transition), &subject.key.namespace);
            if let Transition::Restarted(reason) = transition {
                metrics.restarted(&kind, *reason);
            }
        }
        let before = subject.object.status().map(P::Object::progress);
        let after = P::Object::progress(next);
        metrics.progressed(&kind, &before.unwrap_or_default(), &after, now());
    }

    /// Remembers a refusal, so that the next plan can publish it. Returns the time of the retry.
    fn refuse(
        &self,
        subject: Subject<'_, P::Object>,
        refusal: &Refusal,
        known: bool,
        told: &mut PendingNotes<'_>,
    ) -> Instant {
        let Subject { key, uid, object } = subject;
        let Stall {
            reason, message, ..
        } = &refusal.stall;
        tracing::warn!(job = %key, reason, message, "refused");
        if !known {
            let note = Note::warning(refusal.event, refusal.text.clone());
            told.note(&**object, vec![note]);
        }
        let stall = (uid, refusal.stall.clone());
        self.state.stalls.lock().insert(key.clone(), stall);
        self.context
            .backoff
            .record_failure(key, &refusal.fault, Instant::now())
    }

    fn recover(&self, key: &JobKey) {
        self.state.stalls.lock().remove(key);
        self.context.backoff.forget(key);
    }

    fn forget_all(&self, key: &JobKey) {
        self.context.backoff.forget(key);
        self.state.forget(key);
        self.planner.forget(key, !self.jobs.any_in(&key.namespace));
    }

    fn resync(&self) -> Resync<'_> {
        Resync {
            period: self.context.times.safety_period,
            jitter: &self.context.jitter,
        }
    }
}

impl<P: Planner> Reconciler for Worker<P> {
    fn reconcile(self: Arc<Self>, key: JobKey) -> BoxFuture<'static, Option<Instant>> {
        Box::pin(Self::reconcile(self, key))
    }

    fn panicked(&self, key: &JobKey, error: &JoinError) -> Instant {
        self.context.metrics.panicked();
        let kind = P::Object::kind(&());
        tracing::error!(job = %key, %kind, %error, "a reconcile panicked: a defect of the operator");
        if let Some(about) = self.jobs.regarding(key) {
            let text = format!(
                "a defect of the operator stopped it from looking after this {kind}; it will try again later"
            );
            let note = Note::warning("InternalError", text);
            self.context.events.post(&Arc::new(about), note);
        }
        let fault = Fault::Bug("a panic".to_owned());
        self.context
            .backoff
            .record_failure(key, &fault, Instant::now())
    }

    fn knows(&self, key: &JobKey) -> bool {
        self.jobs.contains(key)
    }

    fn forget(&self, key: &JobKey) {
        self.forget_all(key);
    }

    fn child_deleted(&self, key: &JobKey) {
        self.planner.child_deleted(key, self.jobs.contains(key));
        let stalls = self.state.stalls.lock();
        let stall = stalls.get(key).map(|(_, stall)| stall.reason);
        if stall == Some(NAME_CONFLICT) {
            self.context.backoff.forget(key);
        }
    }

    fn unreadable(&self, metadata: &ObjectMeta, error: &str) {
        let about = Regarding::of::<P::Object>(metadata);
        let kind = P::Object::kind(&());
        tracing::warn!(
            %kind,
            namespace = about.namespace,
            name = about.name,
            error,
            "an object can't be read and is set aside"
        );
        let text = format!("the {kind} can't be read and is set aside: {error}");
        let note = Note::warning("InvalidSpec", text);
        self.context.events.post(&Arc::new(about), note);
    }

    fn held(&self) -> Vec<(&'static str, usize)> {
        let [here, away, waiting] = P::CACHES;
        let mut all = vec![
            (here, self.jobs.len()),
            (away, self.jobs.uncached()),
            (waiting, self.jobs.waiting()),
        ];
        all.extend(self.planner.held());
        all
    }

    fn phases(&self) -> KindPhases {
        KindPhases {
            kind: P::Object::kind(&()).into_owned(),
            counts: self.jobs.phases(),
        }
    }
}

/// The generation and deadline state at the last failed reconcile. If either differs now, the backoff is skipped: edits, above all
/// suspensions, take effect at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FailedState {
    generation: Option<i64>,
    overdue: bool,
}

impl FailedState {
    fn of<P: Planner>(object: &P::Object, now: Timestamp) -> Self {
        Self {
            generation: object.meta().generation,
            overdue: P::deadline(object).is_some_and(|at| at <= now),
        }
    }
}

/// The reason of a stall by a name that another object has.
const NAME_CONFLICT: &str = "NameConflict";

/// True if no step wants the name any more: the object that has it is the owner's own, and is seen again.
fn is_over<T: Action>(stall: &Stall, steps: &[T]) -> bool {
    stall.reason == NAME_CONFLICT && !steps.iter().any(|step| step.waits_for(stall.blocks))
}

fn counted(transition: Transition) -> metrics::Transition {
    match transition {
        Transition::Created => metrics::Transition::Created,
        Transition::Succeeded => metrics::Transition::Successful,
        Transition::Failed => metrics::Transition::Failed,
        Transition::Restarted(_) => metrics::Transition::Restarted,
    }
}
