//! The world as a state of a state space, with the possible actions.

use serde_json::json;
use spark_operator::lifecycle::observed::Refusal;
use training_testkit::explore::{FIRST_VERSION, Model};
use training_testkit::world::ReconcileEnd;

use super::World;

/// An action on an application.
#[derive(Clone, Copy, Debug)]
pub enum Action {
    Pass(ReconcileEnd, bool),
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
    pub fn happen(&mut self, action: Action) {
        match action {
            Action::Pass(end, status_before) => self.reconcile(end, status_before),
            Action::FullPass => self.full_pass(),
            Action::Crash => self.crash(),
            Action::Deliver(apps, pods, objects) => self.deliver(apps, pods, objects),
            Action::Watch(what) => self.trouble_watches(what),
            Action::Runs => self.driver_runs(),
            Action::Ends(code) => self.driver_ends(i32::from(code % 2)),
            Action::Executor(pick) => self.executor_moves(pick),
            Action::Gone(pick) => drop(self.gone(pick)),
            Action::Vanish => self.driver_vanishes(),
            Action::Lose(pick) => self.lose_object(pick),
            Action::TakeDriver(taken) => self.take_driver(taken),
            Action::TakeObject(pick) => self.take_object(pick),
            Action::Refuse(why) => {
                self.refuses = [None, Some(Refusal::Counted), Some(Refusal::Transient), None]
                    [usize::from(why)];
            }
            Action::Suspend(on) => self.edit("suspend", json!(on)),
            Action::Edit(n) => self.edit("arguments", json!([n.to_string()])),
            Action::Time(seconds) => self.later(i64::from(seconds)),
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
                &self.taken,
                self.outdated
            ),
            (self.now, self.deleted, &self.drivers, self.since_edit),
        )
    }
}

impl Model for World {
    type Move = Action;

    fn moves() -> Vec<Action> {
        let ends = [
            ReconcileEnd::Whole,
            ReconcileEnd::CrashAfter(0),
            ReconcileEnd::CrashAfter(1),
            ReconcileEnd::CrashAfter(4),
            ReconcileEnd::LostAfter(0),
            ReconcileEnd::LostAfter(1),
            ReconcileEnd::LostAfter(4),
        ];
        let mut moves: Vec<Action> = ends.map(|end| Action::Pass(end, true)).to_vec();
        moves.extend([
            Action::Pass(ReconcileEnd::Whole, false),
            Action::Deliver(1, 0, 0),
            Action::Deliver(0, 1, 0),
            Action::Deliver(0, 0, 1),
            Action::FullPass,
            // All watches start over with lists.
            Action::Watch(3),
            Action::Runs,
            Action::Ends(0),
            Action::Ends(1),
            Action::Executor(0),
            Action::Gone(0),
            Action::Vanish,
            Action::Lose(0),
            Action::TakeDriver(true),
            Action::TakeDriver(false),
            Action::Refuse(1),
            Action::Refuse(2),
            Action::Refuse(0),
            Action::Suspend(true),
            Action::Suspend(false),
            Action::Edit(1),
            Action::Time(10),
        ]);
        moves
    }

    fn happen(&mut self, what: Action) {
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
