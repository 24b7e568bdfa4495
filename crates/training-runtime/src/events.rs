//! Notes become Kubernetes events, off the critical path.
//!
//! A pass hands its notes to an [`EventSink`] and goes on; a background task writes them one by one.
//! - The same note about the same object within an hour is counted on the event that exists.
//! - A job has at most ten writes in any minute: nine notes as they come, then one event that counts the rest
//!   of the minute and repeats its last note. With all events wanted ([`EventMode::Full`]) that limit is off.
//! - Whatever can't be written is counted (`trainyard_events_total`): nothing vanishes silently.
//! - Leadership is checked right before each request.

mod text;
mod worker;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use kube::core::ObjectMeta;
use tokio::sync::{mpsc, oneshot};
use training_core::notes::Note;

use crate::cli::EventMode;
use crate::leader::Leadership;
use crate::metrics::{EventOutcome, Metrics};

pub use writer::{EventWriter, KubeEvents};

use worker::Worker;

/// Notes that may wait to be written; a few hundred bytes each.
const QUEUE: usize = 1_024;

/// What an event is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Regarding {
    /// Such as `kubeflow.org/v1`.
    pub api_version: String,
    /// Such as `PyTorchJob`.
    pub kind: String,
    /// The namespace, which is the event's own as well.
    pub namespace: String,
    /// The name, which the event's own name begins with.
    pub name: String,
    /// The uid; tells an object from an earlier one of the same name.
    pub uid: String,
    /// The version that was looked at, if it matters.
    pub resource_version: Option<String>,
}

impl Regarding {
    /// An object of a kind, by its metadata.
    pub fn of<K: Resource<DynamicType = ()>>(metadata: &ObjectMeta) -> Self {
        Self {
            api_version: K::api_version(&()).into_owned(),
            kind: K::kind(&()).into_owned(),
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            resource_version: metadata.resource_version.clone(),
        }
    }

    fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some(self.api_version.clone()),
            kind: Some(self.kind.clone()),
            namespace: Some(self.namespace.clone()),
            name: Some(self.name.clone()),
            uid: Some(self.uid.clone()),
            resource_version: self.resource_version.clone(),
            field_path: None,
        }
    }
}

/// Who writes the events, and how many.
#[derive(Clone, Debug)]
pub struct EventConfig {
    /// The published controller name, such as `pytorchjob-controller`; tools filter on it.
    pub component: String,
    /// This process, such as the holder of the lease.
    pub instance: String,
    /// How many.
    pub mode: EventMode,
    /// The longest time one request may take.
    pub call_deadline: Duration,
}

enum Message {
    Note(Arc<Regarding>, Note),
    Flush(oneshot::Sender<()>),
}

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
