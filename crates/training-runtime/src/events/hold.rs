//! Holds events back while jobs are reconciled.

use std::sync::Arc;

use tokio::sync::watch;

/// What keeps events from being written at once.
#[derive(Debug, Default)]
pub(super) struct Holds {
    /// The number of holds.
    count: usize,
    /// The process stops, and must write all events before its end.
    pub(super) ended: bool,
}

impl Holds {
    /// Returns true if events wait.
    pub(super) fn holds(&self) -> bool {
        self.count > 0 && !self.ended
    }
}

/// Holds events back until it is dropped, for a short time.
#[derive(Debug)]
pub struct EventHold(Arc<watch::Sender<Holds>>);

impl EventHold {
    pub(super) fn new(holds: &Arc<watch::Sender<Holds>>) -> Self {
        holds.send_if_modified(|holds| {
            holds.count += 1;
            false
        });
        Self(Arc::clone(holds))
    }
}

impl Drop for EventHold {
    fn drop(&mut self) {
        // Only the last one wakes the writers.
        self.0.send_if_modified(|holds| {
            holds.count -= 1;
            holds.count == 0
        });
    }
}

/// Returns true if a queue of this length may overflow, and is written although events are held back.
pub(super) fn is_filling(length: usize, capacity: usize) -> bool {
    length > capacity / 2
}
