//! Notes become Kubernetes events, off the critical path.
//!
//! A pass hands its notes to an [`EventSink`] and goes on; background tasks write them. Those of one job are written one by one.
//! - The same note about the same object within an hour is counted on the event that exists.
//! - A job has at most ten writes in any minute: nine notes as they come, then one event that counts the rest
//!   of the minute and repeats its last note. With all events wanted ([`EventMode::Full`]) that limit is off.
//! - Whatever can't be written is counted (`trainyard_events_total`): nothing vanishes silently.
//! - Leadership is checked right before each request.

mod message;
mod text;
mod worker;
mod writer;

use std::hash::{DefaultHasher, Hash, Hasher};
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

/// Tasks that write: an event that takes long doesn't keep those of all jobs from being written.
const WRITERS: u64 = 4;
/// Notes that may wait for one of them; a few hundred bytes each.
const QUEUE: usize = 256;
/// So many of these places are for notes about the end of a job.
const FOR_ENDS: usize = 64;

/// Where notes are left to be written. Cheap to clone; the background tasks end with the last one.
#[derive(Clone, Debug)]
pub struct EventSink {
    /// One for each writer; none where no events are wanted.
    queues: Vec<mpsc::Sender<Message>>,
    metrics: Arc<Metrics>,
}

impl EventSink {
    /// Starts the background tasks on the present runtime; without events none is started.
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
        let start = |at: u64| {
            let (queue, messages) = mpsc::channel(QUEUE);
            let (config, writer) = (config.clone(), writer.clone());
            let worker = Worker::new(at, config, writer, leadership.clone(), Arc::clone(&metrics));
            tokio::spawn(worker.run(messages));
            queue
        };
        let queues = (0..writers).map(start).collect();
        Self { queues, metrics }
    }

    /// The queue for what is told of an object: its events keep their order.
    fn queue(&self, uid: &str) -> Option<&mpsc::Sender<Message>> {
        let mut hasher = DefaultHasher::new();
        uid.hash(&mut hasher);
        let all = u64::try_from(self.queues.len()).unwrap_or_default();
        let at = hasher.finish().checked_rem(all)?;
        self.queues.get(usize::try_from(at).unwrap_or_default())
    }

    /// Leaves a note to be written. Never waits: without room the note is only counted.
    pub fn post(&self, regarding: &Arc<Regarding>, note: Note) {
        let Some(queue) = self.queue(&regarding.uid) else {
            return;
        };
        let ends = text::matter(&note.reason) == text::Matter::End;
        let room = ends || queue.capacity() > FOR_ENDS;
        let message = Message::Note(Arc::clone(regarding), note);
        if !room || queue.try_send(message).is_err() {
            if self.metrics.events_so_far(EventOutcome::Overflowed) == 0 {
                tracing::warn!("too many events wait to be written: more are only counted");
            }
            self.metrics.events(EventOutcome::Overflowed, 1);
        }
    }

    /// Waits until everything that was left before is written or given up, sums included, but no
    /// longer than `limit`.
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
