//! Notes become Kubernetes events, off the critical path.
//!
//! A pass hands its notes to an [`EventSink`] and goes on; a background task writes them one by one.
//! - The same note about the same object within an hour is counted on the event that exists.
//! - A job has at most ten writes in any minute: nine notes as they come, then one event that counts the rest
//!   of the minute and repeats its last note. With all events wanted ([`EventMode::Full`]) that limit is off.
//! - Whatever can't be written is counted (`trainyard_events_total`): nothing vanishes silently.
//! - Leadership is checked right before each request.

mod message;
mod text;
mod worker;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use training_core::notes::Note;

use crate::cli::EventMode;
use crate::leader::Leadership;
use crate::metrics::{EventOutcome, Metrics};

pub use message::{EventConfig, Regarding};
pub use writer::{EventWriter, KubeEvents};

use message::Message;
use worker::Worker;

/// Notes that may wait to be written; a few hundred bytes each.
const QUEUE: usize = 1_024;

/// Where notes are left to be written. Cheap to clone; the background task ends with the last one.
#[derive(Clone, Debug)]
pub struct EventSink {
    queue: Option<mpsc::Sender<Message>>,
    metrics: Arc<Metrics>,
}

impl EventSink {
    /// Starts the background task on the present runtime; without events none is started.
    pub fn spawn(
        config: EventConfig,
        writer: impl EventWriter,
        leadership: Leadership,
        metrics: Arc<Metrics>,
    ) -> Self {
        if config.mode == EventMode::Off {
            return Self {
                queue: None,
                metrics,
            };
        }
        let (queue, messages) = mpsc::channel(QUEUE);
        let worker = Worker::new(config, writer, leadership, Arc::clone(&metrics));
        tokio::spawn(worker.run(messages));
        Self {
            queue: Some(queue),
            metrics,
        }
    }

    /// Leaves a note to be written. Never waits: without room the note is only counted.
    pub fn post(&self, regarding: &Arc<Regarding>, note: Note) {
        let Some(queue) = &self.queue else { return };
        if queue
            .try_send(Message::Note(Arc::clone(regarding), note))
            .is_err()
        {
            if self.metrics.events_so_far(EventOutcome::Overflowed) == 0 {
                tracing::warn!("too many events wait to be written: more are only counted");
            }
            self.metrics.events(EventOutcome::Overflowed, 1);
        }
    }

    /// Waits until everything that was left before is written or given up, sums included, but no
    /// longer than `limit`.
    pub async fn flush(&self, limit: Duration) {
        let Some(queue) = &self.queue else { return };
        let flushed = async {
            let (done, flushed) = oneshot::channel();
            if queue.send(Message::Flush(done)).await.is_ok() {
                // A worker that is gone has nothing left to write.
                let _ = flushed.await;
            }
        };
        if tokio::time::timeout(limit, flushed).await.is_err() {
            tracing::warn!("some events were not written in time");
        }
    }
}

#[cfg(test)]
mod tests;
