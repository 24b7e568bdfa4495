//! Watches the operator's writes go by, one after the other, and cuts at the right one.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, sleep};
use training_testkit::proxy::{Action, Answer, Applied, Call, Effect, Gate, Proxy, Rule};

use super::crew::Crew;
use super::point::{Cut, Key, Keys, Plan, Restart};
use crate::lives::Actor;

/// How long the other writes that were begun together with a cut one get to arrive.
const OTHERS: Duration = Duration::from_millis(30);
/// How often a rule is asked whether it has hit.
const POLL: Duration = Duration::from_millis(5);

/// What is known of a run while it goes on.
#[derive(Debug)]
pub(super) struct Diary {
    /// The writes that were executed and answered well, in their order.
    pub written: RefCell<Vec<Key>>,
    /// When something happened last: a write, or a start.
    pub last: Cell<Instant>,
    /// The cut was made, and all that it brings with it is over.
    pub cut: Cell<bool>,
    /// The process is dead or on its way to be.
    pub dying: Cell<bool>,
    /// Nobody goes on with the life.
    pub abandoned: Cell<bool>,
}

impl Diary {
    pub(super) fn new() -> Self {
        Self {
            written: RefCell::default(),
            last: Cell::new(Instant::now()),
            cut: Cell::new(false),
            dying: Cell::new(false),
            abandoned: Cell::new(false),
        }
    }

    fn note(&self) {
        self.last.set(Instant::now());
    }
}

/// One run's cut, and everything that leads to it.
pub(super) struct Cutter<'a> {
    proxy: &'a Proxy,
    crew: &'a mut Crew,
    diary: &'a Diary,
    actor: &'a Actor<'a>,
    plan: Option<&'a Plan>,
    /// What hits before the write is executed.
    before: Option<Rule>,
    /// While it is set, no write passes.
    stopped: Arc<AtomicBool>,
    applied: UnboundedReceiver<Applied>,
    keys: Keys,
}

impl<'a> Cutter<'a> {
    /// Tells the proxy what to do in this run. Rules that are there already come first.
    pub(super) fn new(
        proxy: &'a Proxy,
        crew: &'a mut Crew,
        diary: &'a Diary,
        actor: &'a Actor<'a>,
        plan: Option<&'a Plan>,
    ) -> Self {
        let stopped = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopped);
        // It is never opened: what waits here dies with its author's connection.
        let nothing_passes = Action::Hold(Gate::closed());
        proxy.add(&Rule::new("stopped", nothing_passes, move |call| {
            call.is_job_write() && stop.load(Ordering::SeqCst)
        }));
        let before = plan
            .filter(|plan| plan.cut.comes_before())
            .map(|plan| cut_before(plan, actor.name));
        let held = actor.held.map(|held| &held.rule);
        for rule in before.iter().chain(held) {
            proxy.add(rule);
        }
        let applied = proxy.announce_in_turn("writes", Call::is_job_write);
        Self {
            proxy,
            crew,
            diary,
            actor,
            plan,
            before,
            stopped,
            applied,
            keys: Keys::default(),
        }
    }

    /// Goes on for ever; returns only when something is wrong.
    pub(super) async fn run(mut self) -> Result<()> {
        loop {
            let waits = !self.diary.cut.get();
            tokio::select! {
                Some(write) = self.applied.recv() => self.written(write).await?,
                () = hit(self.before.as_ref()), if waits => self.hit().await?,
                else => return Ok(()),
            }
        }
    }

    /// A write has been executed, and its author waits for the answer.
    async fn written(&mut self, write: Applied) -> Result<()> {
        self.diary.note();
        if write.code >= 300 {
            write.release();
            return Ok(());
        }
        let key = self.keys.next(&write.call, self.actor.name);
        let cut = self
            .plan
            .filter(|plan| plan.key == key && !self.diary.cut.get())
            .map(|plan| plan.cut);
        self.diary.written.borrow_mut().push(key);
        match cut {
            Some(Cut::After) => self.kill(Some(write)).await,
            Some(Cut::Answered) => {
                self.diary.dying.set(true);
                self.stopped.store(true, Ordering::SeqCst);
                write.release();
                sleep(OTHERS).await;
                self.kill(None).await
            }
            Some(Cut::Before | Cut::Reset | Cut::Timeout | Cut::Conflict) | None => {
                write.release();
                Ok(())
            }
        }
    }

    /// The rule that cuts before the write is executed has hit.
    async fn hit(&mut self) -> Result<()> {
        self.before = None;
        self.diary.note();
        self.diary
            .dying
            .set(self.plan.is_some_and(|plan| plan.cut.kills()));
        if self.plan.is_some_and(|plan| plan.cut == Cut::Before) {
            // The others of the same moment pass: this write is the only one that is missing.
            let until = Instant::now() + OTHERS;
            while let Ok(Some(write)) = tokio::time::timeout_at(until, self.applied.recv()).await {
                self.written(write).await?;
            }
            self.kill(None).await
        } else {
            self.diary.cut.set(true);
            Ok(())
        }
    }

    async fn kill(&mut self, write: Option<Applied>) -> Result<()> {
        self.diary.dying.set(true);
        self.crew.kill9()?;
        // What the dead process still had on its connections must not reach the API server: those
        // are ended before the next write gets its turn.
        self.proxy.refuse();
        self.proxy.accept().await?;
        drop(write);
        // Executed too, in the moment before the kill.
        while let Ok(write) = self.applied.try_recv() {
            if write.code < 300 {
                let key = self.keys.next(&write.call, self.actor.name);
                self.diary.written.borrow_mut().push(key);
            }
        }
        self.stopped.store(false, Ordering::SeqCst);
        self.change_the_world().await?;
        self.crew.recover().await?;
        self.diary.note();
        self.diary.dying.set(false);
        self.diary.cut.set(true);
        Ok(())
    }
}

impl Cutter<'_> {
    /// What happens while nobody is looking, and after anybody else has let go of the job.
    async fn change_the_world(&self) -> Result<()> {
        let Some((life, Restart::After(change))) = self.plan.map(|p| (p.life, p.restart)) else {
            return Ok(());
        };
        while !self.diary.abandoned.get() {
            sleep(POLL).await;
        }
        if let Some(held) = self.actor.held {
            held.gate.open();
        }
        change.happen(life, self.actor).await
    }
}

/// What breaks the write of a plan before it is executed, or its answer.
fn cut_before(plan: &Plan, job: &str) -> Rule {
    let action = match plan.cut {
        Cut::Before | Cut::After | Cut::Answered => Action::Hold(Gate::closed()),
        Cut::Reset => Action::ResetAfter,
        Cut::Timeout => Action::Answer(Effect::With, Answer::new(504, "Timeout", "cut")),
        Cut::Conflict => Action::Answer(Effect::Without, Answer::new(409, "Conflict", "cut")),
    };
    let (key, job) = (plan.key.clone(), job.to_owned());
    Rule::new("cut", action, move |call| key.names(call, &job)).nth(plan.key.nth)
}

/// Returns when the rule has hit; without a rule, never.
async fn hit(rule: Option<&Rule>) {
    while rule.is_none_or(|rule| rule.hits() == 0) {
        sleep(POLL).await;
    }
}
