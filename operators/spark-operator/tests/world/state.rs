//! The world as a state of a state space, with the possible actions.

use serde_json::json;
use spark_operator::lifecycle::observed::Refusal;
use training_testkit::explore::{FIRST_VERSION, Model};
use training_testkit::world::Fate;

use super::World;

/// An action on an application.
#[derive(Clone, Copy, Debug)]
pub enum Deed {
    Pass(Fate, bool),
    FullPass,
    Crash,
    Deliver(u8, u8, u8),
    Watch(u8),
    Runs,
    Ends(u8),
    Executor(u8),
    Gone(u8),
    Vanish,
    Lose(u8),
    TakeDriver(bool),
    TakeObject(u8),
    Refuse(u8),
    Suspend(bool),
    Edit(u8),
    Time(u8),
}

impl World {
    /// Performs an action.
    pub fn happen(&mut self, deed: Deed) {
        match deed {
            Deed::Pass(fate, status_before) => self.reconcile(fate, status_before),
            Deed::FullPass => self.full_pass(),
            Deed::Crash => self.crash(),
            Deed::Deliver(apps, pods, objects) => self.deliver(apps, pods, objects),
            Deed::Watch(what) => self.trouble_watches(what),
            Deed::Runs => self.driver_runs(),
            Deed::Ends(code) => self.driver_ends(i32::from(code % 2)),
            Deed::Executor(pick) => self.executor_moves(pick),
            Deed::Gone(pick) => drop(self.gone(pick)),
            Deed::Vanish => self.driver_vanishes(),
            Deed::Lose(pick) => self.lose_object(pick),
            Deed::TakeDriver(taken) => self.take_driver(taken),
            Deed::TakeObject(pick) => self.take_object(pick),
            Deed::Refuse(why) => {
                self.refuses = [None, Some(Refusal::Counted), Some(Refusal::Transient), None]
                    [usize::from(why)];
            }
            Deed::Suspend(on) => self.edit("suspend", json!(on)),
            Deed::Edit(n) => self.edit("arguments", json!([n.to_string()])),
            Deed::Time(seconds) => self.later(i64::from(seconds)),
        }
    }

    /// Returns the world with versions that allow comparing states: no other number equals them.
    pub fn into_start(mut self) -> Self {
        self.version = FIRST_VERSION;
        self
    }

    /// Describes the state, without its history.
    fn words(&self) -> String {
        let apps = [&self.app, &self.known_app]
            .into_iter()
            .chain(&self.app_news);
        let apps: Vec<String> = apps
            .map(|(app, version)| format!("{app} {version}"))
            .collect();
        format!(
            "{apps:?}{:?}{:?}{:?}",
            (
                &self.pods,
                &self.objects,
                &self.known_pods,
                &self.known_objects
            ),
            (
                self.driver_taken,
                &self.foreign,
                &self.refuses,
                &self.refused,
                &self.missing_objects,
                &self.taken
            ),
            (self.now, self.deleted, &self.drivers, self.since_edit),
        )
    }
}

impl Model for World {
    type Move = Deed;

    fn moves() -> Vec<Deed> {
        let fates = [
            Fate::Whole,
            Fate::CrashAfter(0),
            Fate::CrashAfter(1),
            Fate::CrashAfter(4),
            Fate::LostAfter(0),
            Fate::LostAfter(1),
            Fate::LostAfter(4),
        ];
        let mut moves: Vec<Deed> = fates.map(|fate| Deed::Pass(fate, true)).to_vec();
        moves.extend([
            Deed::Pass(Fate::Whole, false),
            Deed::Deliver(1, 0, 0),
            Deed::Deliver(0, 1, 0),
            Deed::Deliver(0, 0, 1),
            Deed::FullPass,
            // All watches start over with lists.
            Deed::Watch(3),
            Deed::Runs,
            Deed::Ends(0),
            Deed::Ends(1),
            Deed::Executor(0),
            Deed::Gone(0),
            Deed::Vanish,
            Deed::Lose(0),
            Deed::TakeDriver(true),
            Deed::TakeDriver(false),
            Deed::Refuse(1),
            Deed::Refuse(2),
            Deed::Refuse(0),
            Deed::Suspend(true),
            Deed::Suspend(false),
            Deed::Edit(1),
            Deed::Time(10),
        ]);
        moves
    }

    fn happen(&mut self, what: Deed) {
        Self::happen(self, what);
        self.writes.clear();
    }

    fn calm(&mut self) {
        Self::calm(self);
    }

    fn settle(&mut self, finish: bool) -> bool {
        let moved = Self::settle(self, finish);
        self.writes.clear();
        moved
    }

    fn breaches(&self) -> &[String] {
        &self.breaches
    }

    fn words(&self) -> String {
        Self::words(self)
    }
}
