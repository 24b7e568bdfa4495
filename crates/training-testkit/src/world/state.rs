//! The world as a state of the search.

use training_core::Lifecycle;

use super::{Move, ReconcileEnd, World};
use crate::explore::{FIRST_VERSION, Model};

impl<F: Lifecycle + Clone> World<F> {
    /// Renumbers versions so that states can be compared: no other number in the world equals them.
    #[must_use]
    pub fn into_start(mut self) -> Self {
        self.version = FIRST_VERSION;
        self
    }
}

impl<F: Lifecycle + Clone> Model for World<F> {
    type Move = Move;

    fn moves() -> Vec<Move> {
        let ends = [
            ReconcileEnd::Whole,
            ReconcileEnd::CrashAfter(0),
            ReconcileEnd::CrashAfter(1),
            ReconcileEnd::CrashAfter(2),
            ReconcileEnd::LostAfter(0),
            ReconcileEnd::LostAfter(1),
        ];
        let mut moves: Vec<Move> = ends.map(|end| Move::Pass(end, true)).to_vec();
        moves.extend([
            Move::Pass(ReconcileEnd::Whole, false),
            Move::Pass(ReconcileEnd::CrashAfter(1), false),
            Move::Deliver(1, 0, 0),
            Move::Deliver(0, 1, 0),
            Move::Deliver(0, 0, 1),
            Move::FullPass,
            // Restarts all watches with lists.
            Move::Watch(2),
            Move::Late(0),
            Move::Run(0),
            Move::Run(1),
            Move::Finish(0),
            Move::Fail(0, 137),
            Move::Fail(1, 1),
            Move::Drain(0),
            Move::Delete(1),
            Move::Gone(0),
            Move::Vanish(0),
            Move::DropService(0),
            Move::Suspend(true),
            Move::Suspend(false),
            Move::Scale(1),
            Move::Scale(2),
            Move::Limit(0),
            Move::Tick(10),
        ]);
        moves.push(Move::RequestRestart(1));
        // Moves of Jobs, and deletions of objects: without effect for a kind without any.
        moves.extend([1, 3, 4, 5, 6, 7].map(Move::Batch));
        moves.push(Move::Lose(0));
        moves
    }

    fn happen(&mut self, what: Move) {
        Self::happen(self, what);
        self.forget_history();
    }

    fn calm(&mut self) {
        Self::calm(self);
    }

    fn settle(&mut self, finish: bool) -> bool {
        let moved = Self::settle(self, finish);
        self.forget_history();
        moved
    }

    fn breaches(&self) -> &[String] {
        &self.breaches
    }

    fn words(&self) -> String {
        let jobs = [&self.job, &self.view.job]
            .into_iter()
            .chain(&self.view.job_news);
        // As text a job omits its unset fields.
        let jobs: Vec<String> = jobs
            .map(|job| serde_json::to_string(job).unwrap_or_default())
            .collect();
        format!(
            "{jobs:?}{:?}{:?}{:?}{:?}",
            (
                &self.pods,
                &self.services,
                &self.autoscaler,
                &self.groups,
                &self.batch_pods
            ),
            (
                &self.objects,
                &self.secrets,
                &self.foreign,
                &self.secret,
                &self.sought,
                &self.gang
            ),
            self.view.words(),
            (
                (
                    self.now,
                    self.failing,
                    self.taken,
                    self.sticky,
                    self.refusing,
                    self.rules
                ),
                (&self.stall, &self.in_flight, &self.ledger),
            ),
        )
    }
}

impl<F: Lifecycle> World<F> {
    fn forget_history(&mut self) {
        self.notes.clear();
        self.transitions.clear();
        self.writes.clear();
    }
}
