//! Writes notes as Kubernetes events, off the critical path.
//!
//! A reconcile hands its notes to an [`EventSink`] and goes on; background tasks write them, one at a time per job.
//! - Events wait while jobs are reconciled, for a short time: a burst of jobs needs the API server for their pods first.
//! - The same note about the same object within an hour increments the count of the existing event.
//! - A job has at most ten writes per minute: nine notes as they come, then one event with the count of the rest of the minute
//!   and its last note. [`EventMode::Full`] turns that limit off.
//! - Events that can't be written are counted (`trainyard_events_total`): none is lost silently.
//! - Leadership is checked right before each request.

mod hold;
mod message;
mod text;
mod worker;
mod writer;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use training_core::notes::Note;

use crate::cli::EventMode;
use crate::leader::Leadership;
use crate::metrics::{EventOutcome, Metrics};

pub use hold::EventHold;
pub use message::{EventConfig, Regarding};
pub use writer::{EventWriter, KubeEvents};

use hold::{Holds, is_filling};
use message::{Message, Posted};
use worker::Worker;

/// Number of writer tasks, so that one slow event does not hold up the events of all jobs.
const WRITERS: u64 = 4;
/// Queue length of each writer; a note takes a few hundred bytes.
const QUEUE: usize = 1024;
/// Queue slots reserved for notes about the end of a job.
const FOR_ENDS: usize = 256;

/// Records events. Cheap to clone; the background tasks end with the last clone.
#[derive(Clone, Debug)]
pub struct EventSink {
    /// One per writer; empty if events are off.
    queues: Vec<mpsc::Sender<Message>>,
    metrics: Arc<Metrics>,
    holds: Arc<watch::Sender<Holds>>,
}

impl EventSink {
    /// Starts the background tasks on the current runtime, unless events are off.
    pub fn spawn(
        config: &EventConfig,
        writer: &(impl EventWriter + Clone),
        leadership: &Leadership,
        metrics: Arc<Metrics>,
    ) -> Self {
        let writers = match config.mode {
            EventMode::Off => 0,
            EventMode::Folded | EventMode::Full => WRITERS,
        };
        let turns = Arc::new(Semaphore::new(1));
        let holds = Arc::new(watch::Sender::new(Holds::default()));
        let start = |at: u64| {
            let (queue, messages) = mpsc::channel(QUEUE);
            let (config, writer) = (config.clone(), writer.clone());
            let (metrics, turns) = (Arc::clone(&metrics), Arc::clone(&turns));
            let worker = Worker::new(at, config, writer, leadership.clone(), metrics, turns);
            tokio::spawn(worker.run(messages, holds.subscribe()));
            queue
        };
        let queues = (0..writers).map(start).collect();
        Self {
            queues,
            metrics,
            holds,
        }
    }

    /// Holds events back, for a short time, while requests of jobs are sent.
    pub fn hold(&self) -> EventHold {
        EventHold::new(&self.holds)
    }

    /// Ends all holds, those to come included.
    pub fn end_holds(&self) {
        self.holds.send_modify(|holds| holds.ended = true);
    }

    /// Returns the queue for an object: its events keep their order.
    fn queue(&self, uid: &str) -> Option<&mpsc::Sender<Message>> {
        let mut hasher = DefaultHasher::new();
        uid.hash(&mut hasher);
        let all = u64::try_from(self.queues.len()).unwrap_or_default();
        let at = hasher.finish().checked_rem(all)?;
        self.queues.get(usize::try_from(at).unwrap_or_default())
    }

    /// Queues a note. Never waits: if the queue is full, the note is only counted.
    pub fn post(&self, regarding: &Arc<Regarding>, note: Note) {
        let Some(queue) = self.queue(&regarding.uid) else {
            return;
        };
        let ends = text::importance(&note.reason) == text::Importance::End;
        let room = ends || queue.capacity() > FOR_ENDS;
        let message = Message::Note(Posted::new(regarding, note));
        if !room || queue.try_send(message).is_err() {
            if self.metrics.events_so_far(EventOutcome::Overflowed) == 0 {
                tracing::warn!("the event queue is full: further events are only counted");
            }
            self.metrics.events(EventOutcome::Overflowed, 1);
        }
        if is_filling(QUEUE - queue.capacity(), QUEUE) {
            self.holds.send_modify(|_| {});
        }
    }

    /// Waits until all notes queued before, sums included, are written or given up, but no longer than `limit`.
    pub async fn flush(&self, limit: Duration) {
        let flushed = self.queues.iter().map(async |queue| {
            let (done, flushed) = oneshot::channel();
            if queue.send(Message::Flush(done)).await.is_ok() {
                // A worker that is gone has nothing left to write.
                let _ = flushed.await;
            }
        });
        let flushed = futures::future::join_all(flushed);
        if tokio::time::timeout(limit, flushed).await.is_err() {
            tracing::warn!("some events were not written in time");
        }
    }
}

#[cfg(test)]
mod tests;
