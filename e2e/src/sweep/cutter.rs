//! Watches the operator's writes one by one, and cuts at the right one.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, sleep};
use training_testkit::proxy::{Action, Answer, Applied, Call, Effect, Gate, Proxy, Rule};

use super::operators::Operators;
use super::point::{Cut, Key, Keys, Plan, Restart};
use crate::lives::StepRunner;

/// The name of the rule that cuts, and the message of its responses.
pub(super) const CUT: &str = "cut";
/// The name of the rule for writes that pass.
const WRITES: &str = "writes";
/// How long other writes in parallel to a cut one have to arrive.
const OTHERS: Duration = Duration::from_millis(30);
/// The quiet period of an operator with stale lists before it sees the current state.
const STALE: Duration = Duration::from_millis(300);
/// The polling interval of a rule.
const POLL: Duration = Duration::from_millis(5);

/// The state of a run.
#[derive(Debug)]
pub(super) struct RunState {
    /// The executed and successful writes, in order.
    pub written: RefCell<Vec<Key>>,
    /// The time of the last write or start.
    pub last: Cell<Instant>,
    /// Whether the cut and its consequences are complete.
    pub cut: Cell<bool>,
    /// Whether the process is dead, is being killed, or sees stale lists.
    pub dying: Cell<bool>,
    /// Whether the life cycle was abandoned.
    pub abandoned: Cell<bool>,
    /// Whether the operator of this run works.
    pub begun: Cell<bool>,
    /// The number of cuts after which a Secret may exist whose name is not stored.
    pub secrets: Cell<usize>,
}

impl RunState {
    pub(super) fn new() -> Self {
        Self {
            written: RefCell::default(),
            last: Cell::new(Instant::now()),
            cut: Cell::new(false),
            dying: Cell::new(false),
            abandoned: Cell::new(false),
            begun: Cell::new(false),
            secrets: Cell::new(0),
        }
    }

    fn note(&self) {
        self.last.set(Instant::now());
    }

    fn count_secret(&self, is_one: bool) {
        self.secrets.set(self.secrets.get() + usize::from(is_one));
    }
}

/// Executes the cut of a run.
pub(super) struct Cutter<'a> {
    proxy: &'a Proxy,
    operators: &'a mut Operators,
    run: &'a RunState,
    actor: &'a StepRunner<'a>,
    plan: Option<&'a Plan>,
    /// The due cut, if any.
    due: Option<Due>,
    /// The rule that cuts before the request is executed.
    before: Option<Rule>,
    /// The same for the second cut, after the first.
    second: Option<Rule>,
    /// Whether the second cut is due.
    armed: Arc<AtomicBool>,
    /// Blocks all writes while it is set.
    stopped: Arc<AtomicBool>,
    /// The stale view of a restarted operator.
    stale: Option<Stale>,
    /// The store's revision before each write.
    revisions: Vec<String>,
    applied: UnboundedReceiver<Applied>,
    keys: Keys,
    /// Whether the operator must be started for this run.
    anew: bool,
    /// When the operator's process started, or this run.
    alive_since: Instant,
}

/// A pending cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    /// The cut at the plan's key.
    First,
    /// The cut after so many more writes.
    Second(Cut, usize),
}

/// Rules that show an operator an older state.
struct Stale {
    lists: Rule,
    /// The watches of jobs, and of their children.
    watches: [(Rule, Gate); 2],
    old: Arc<AtomicBool>,
}

impl<'a> Cutter<'a> {
    /// Sets the proxy's rules for this run. Existing rules have precedence.
    pub(super) fn new(
        proxy: &'a Proxy,
        operators: &'a mut Operators,
        run: &'a RunState,
        actor: &'a StepRunner<'a>,
        plan: Option<&'a Plan>,
        anew: bool,
    ) -> Self {
        let stopped = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopped);
        // Never opened: held requests end with the killed process's connection.
        let nothing_passes = Action::Hold(Gate::closed());
        proxy.add(&Rule::new("stopped", nothing_passes.clone(), move |call| {
            call.is_job_write() && stop.load(Ordering::SeqCst)
        }));
        let before = plan
            .filter(|plan| plan.cut.comes_before())
            .map(|plan| cut_before(plan, actor.name));
        let armed = Arc::new(AtomicBool::new(false));
        let again = plan.map(|plan| plan.restart);
        let second = match again {
            Some(Restart::Again(Cut::Before, nth)) => {
                let armed = Arc::clone(&armed);
                let rule = Rule::new("again", nothing_passes, move |call| {
                    call.is_job_write() && armed.load(Ordering::SeqCst)
                });
                Some(rule.nth(nth))
            }
            _ => None,
        };
        let held = actor.held.map(|held| &held.rule);
        for rule in before.iter().chain(&second).chain(held) {
            proxy.add(rule);
        }
        let applied = proxy.announce_in_turn(WRITES, Call::is_job_write);
        Self {
            proxy,
            operators,
            run,
            actor,
            plan,
            due: plan.map(|_| Due::First),
            before,
            second,
            armed,
            stopped,
            stale: None,
            revisions: Vec::new(),
            applied,
            keys: Keys::default(),
            anew,
            alive_since: Instant::now(),
        }
    }

    /// Runs forever; returns only on errors.
    pub(super) async fn run(mut self) -> Result<()> {
        self.begin().await?;
        loop {
            let (waits, stale) = (self.due.is_some(), self.stale.is_some());
            tokio::select! {
                Some(write) = self.applied.recv() => self.written(write).await?,
                () = hit(self.before.as_ref()), if waits => self.hit().await?,
                () = rests(self.run, STALE), if stale => self.show_what_is_new()?,
                else => return Ok(()),
            }
        }
    }

    async fn begin(&mut self) -> Result<()> {
        self.note_revision().await?;
        if self.anew {
            // Its reads are part of the run, and one of them may fail.
            tokio::select! {
                outcome = self.operators.recover() => outcome?,
                end = reconcile(&mut self.applied) => end,
            }
        }
        self.run.note();
        self.run.begun.set(true);
        Ok(())
    }

    /// Records the store's current revision, for a run that shows it again later.
    async fn note_revision(&mut self) -> Result<()> {
        if matches!(self.plan.map(|p| p.restart), Some(Restart::Stale(_))) {
            let world = self.actor.world;
            let pods: Api<Pod> = Api::namespaced(world.client.clone(), world.namespace());
            let list = pods.list(&ListParams::default().limit(1)).await?;
            let revision = list.metadata.resource_version.context("no revision")?;
            self.revisions.push(revision);
        }
        Ok(())
    }

    /// Handles an executed write whose response is pending.
    async fn written(&mut self, write: Applied) -> Result<()> {
        self.run.note();
        if write.code >= 300 {
            write.release();
            return Ok(());
        }
        self.note_revision().await?;
        let key = self.keys.next(&write.call, self.actor.name);
        let cut = match &mut self.due {
            Some(Due::First) => self.plan.filter(|plan| plan.key == key).map(|p| p.cut),
            Some(Due::Second(cut, left)) => {
                *left = left.saturating_sub(1);
                (*left == 0).then_some(*cut)
            }
            None => None,
        };
        self.run.written.borrow_mut().push(key);
        match cut {
            Some(Cut::After) => self.kill(Some(write)).await,
            Some(Cut::Answered) => {
                self.run.dying.set(true);
                self.stopped.store(true, Ordering::SeqCst);
                write.release();
                sleep(OTHERS).await;
                self.kill(None).await
            }
            _ => {
                write.release();
                Ok(())
            }
        }
    }

    /// Handles a hit of the rule that cuts before the request is executed.
    async fn hit(&mut self) -> Result<()> {
        self.before = None;
        self.run.note();
        let cut = match self.due {
            Some(Due::First) => self.plan.map(|plan| plan.cut),
            Some(Due::Second(cut, _)) => Some(cut),
            None => None,
        };
        self.run.dying.set(cut.is_some_and(Cut::kills));
        if cut == Some(Cut::Before) {
            // Parallel writes pass: only this write is missing.
            let until = Instant::now() + OTHERS;
            let due = self.due.take();
            while let Ok(Some(write)) = tokio::time::timeout_at(until, self.applied.recv()).await {
                self.written(write).await?;
            }
            self.due = due;
            self.kill(None).await
        } else {
            let key = self.plan.map(|plan| &plan.key);
            self.run
                .count_secret(key.is_some_and(|key| key.resource == "secrets"));
            self.due = None;
            self.run.cut.set(true);
            Ok(())
        }
    }

    async fn kill(&mut self, write: Option<Applied>) -> Result<()> {
        self.run.dying.set(true);
        self.armed.store(false, Ordering::SeqCst);
        self.operators.kill()?;
        // Data of the dead process on its connections must not reach the API server: closes them before the next write.
        self.proxy.refuse();
        self.proxy.accept().await?;
        drop(write);
        // Also executed, just before the kill.
        while let Ok(write) = self.applied.try_recv() {
            if write.code < 300 {
                self.note_revision().await?;
                let key = self.keys.next(&write.call, self.actor.name);
                self.run.written.borrow_mut().push(key);
            }
        }
        self.run.count_secret(self.may_have_unrecorded_secret());
        self.alive_since = Instant::now();
        self.stopped.store(false, Ordering::SeqCst);
        self.change_the_world().await?;
        let again = self.plan.map(|plan| plan.restart);
        let first = self.due.take() == Some(Due::First);
        match again {
            Some(Restart::Again(cut, nth)) if first => {
                self.due = Some(Due::Second(cut, nth));
                self.before = self.second.take();
                self.armed.store(true, Ordering::SeqCst);
                // The second cut may occur before the operator is ready.
                self.operators.recover_unready()?;
            }
            Some(Restart::Stale(writes)) => {
                self.show_what_was(writes);
                self.operators.recover_unready()?;
            }
            _ => {
                self.operators.recover().await?;
                self.run.cut.set(true);
            }
        }
        self.run.note();
        // A run with stale lists continues until the operator has seen the current state, even if nothing is left to do.
        self.run.dying.set(self.stale.is_some());
        Ok(())
    }

    /// Returns whether the killed process has sent the create of a Secret whose name is not stored: pods and Jobs, which mount it, are
    /// created after that. A create in flight may still be executed.
    fn may_have_unrecorded_secret(&self) -> bool {
        let sent = self.proxy.records();
        let sent = sent.iter().any(|record| {
            record.at >= self.alive_since
                && record.call.is("create", "secrets")
                && record.rule.as_deref() == Some(WRITES)
        });
        let written = self.run.written.borrow();
        let mut creates = written.iter().filter(|key| key.verb == "create");
        sent && !creates.any(|key| matches!(key.resource.as_str(), "pods" | "jobs"))
    }

    /// Makes lists show the state of so many writes ago, and holds watches.
    fn show_what_was(&mut self, writes: usize) {
        let at = self.revisions.len().saturating_sub(1 + writes);
        let at = at.max(last_made(&self.run.written.borrow()));
        let exact = format!(
            "resourceVersion={}&resourceVersionMatch=Exact",
            self.revisions[at]
        );
        let old = Arc::new(AtomicBool::new(true));
        let now = Arc::clone(&old);
        let lists = Rule::new("old lists", Action::AddQuery(exact), move |call| {
            call.verb == "list" && of_a_job(call) && now.load(Ordering::SeqCst)
        });
        let watches = [true, false].map(|of_jobs| {
            let gate = Gate::closed();
            let jobs = self.actor.world.kind.plural;
            let held = Action::HoldEvents(gate.clone());
            let rule = Rule::new("held watches", held, move |call| {
                call.is_watch() && of_a_job(call) && (call.resource == jobs) == of_jobs
            });
            (rule, gate)
        });
        for rule in [&lists, &watches[0].0, &watches[1].0] {
            self.proxy.add(rule);
        }
        self.stale = Some(Stale {
            lists,
            watches,
            old,
        });
    }

    /// Releases the watches of jobs once the operator with stale lists has listed and is idle, and then, when it is idle again, the
    /// other watches.
    fn show_what_is_new(&mut self) -> Result<()> {
        self.run.note();
        let Some(stale) = &self.stale else {
            return Ok(());
        };
        if stale.watches.iter().all(|(rule, _)| rule.hits() == 0) {
            return Ok(());
        }
        anyhow::ensure!(stale.lists.hits() > 0, "no list was an old one");
        let [(_, jobs), (_, others)] = &stale.watches;
        if stale.old.swap(false, Ordering::SeqCst) {
            jobs.open();
        } else {
            others.open();
            self.stale = None;
            self.run.cut.set(true);
            self.run.dying.set(false);
        }
        Ok(())
    }
}

impl Cutter<'_> {
    /// Changes the job while no operator runs, after all other actors have stopped.
    async fn change_the_world(&self) -> Result<()> {
        let Some((life, Restart::After(change))) = self.plan.map(|p| (p.life, p.restart)) else {
            return Ok(());
        };
        while !self.run.abandoned.get() {
            sleep(POLL).await;
        }
        if let Some(held) = self.actor.held {
            held.gate.open();
        }
        change.happen_or_next(life, self.actor).await
    }
}

/// Returns the number of writes at the creation of the last object that is deleted by now. Older lists show neither its creation
/// nor its deletion, and its name is free: any operator would create it again.
fn last_made(written: &[Key]) -> usize {
    let same = |a: &Key, b: &Key| (&a.resource, &a.what) == (&b.resource, &b.what);
    let is_gone = |at: usize| {
        let mut later = written[at..].iter();
        later.any(|key| key.verb == "delete" && same(key, &written[at]))
    };
    let mut all = (0..written.len()).rev();
    let last = all.find(|at| written[*at].verb == "create" && is_gone(*at));
    last.map_or(0, |at| at + 1)
}

/// Lets all writes pass.
async fn reconcile(applied: &mut UnboundedReceiver<Applied>) {
    while let Some(write) = applied.recv().await {
        write.release();
    }
}

/// Returns whether a read is about jobs and their children, not about leases or the server.
pub(super) fn of_a_job(call: &Call) -> bool {
    !call.resource.is_empty() && !matches!(call.resource.as_str(), "leases" | "events")
}

/// Returns the rule that breaks a plan's request before it is executed, or its response.
fn cut_before(plan: &Plan, job: &str) -> Rule {
    let action = match plan.cut {
        Cut::Before | Cut::After | Cut::Answered => Action::Hold(Gate::closed()),
        Cut::Reset if plan.key.is_read() => Action::ResetBefore,
        Cut::Reset => Action::ResetAfter,
        Cut::Silence => Action::Silence(Effect::Without),
        Cut::Refused(code) => {
            let reason = match code {
                403 => "Forbidden",
                410 => "Expired",
                429 => "TooManyRequests",
                _ => "InternalError",
            };
            Action::Answer(Effect::Without, Answer::new(code, reason, CUT))
        }
        Cut::Timeout => Action::Answer(Effect::With, Answer::new(504, "Timeout", CUT)),
        Cut::Conflict => Action::Answer(Effect::Without, Answer::new(409, "Conflict", CUT)),
    };
    let (key, job) = (plan.key.clone(), job.to_owned());
    Rule::new(CUT, action, move |call| key.names(call, &job)).nth(plan.key.nth)
}

/// Waits until the rule has hit; forever without a rule.
async fn hit(rule: Option<&Rule>) {
    while rule.is_none_or(|rule| rule.hits() == 0) {
        sleep(POLL).await;
    }
}

/// Waits until the operator has written nothing for so long.
async fn rests(run: &RunState, quiet: Duration) {
    while run.last.get().elapsed() < quiet {
        sleep(POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_not_older_than_what_was_made_and_is_gone() {
        let key = |verb: &str, what: &str| Key {
            verb: verb.to_owned(),
            resource: "pods".to_owned(),
            what: what.to_owned(),
            nth: 1,
        };
        let (create, delete) = (|what| key("create", what), |what| key("delete", what));
        assert_eq!(last_made(&[create("a"), create("b")]), 0);
        assert_eq!(last_made(&[create("a"), create("b"), delete("a")]), 1);
        // An object that exists again may be hidden.
        assert_eq!(last_made(&[create("a"), delete("a"), create("a")]), 1);
    }
}
