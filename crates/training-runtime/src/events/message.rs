//! Messages to the event writers.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use kube::core::ObjectMeta;
use tokio::sync::oneshot;
use tokio::time::Instant;
use training_core::notes::Note;

use crate::cli::EventMode;

/// The object that an event is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Regarding {
    /// Such as `kubeflow.org/v1`.
    pub api_version: String,
    /// Such as `PyTorchJob`.
    pub kind: String,
    /// The namespace of the object and of the event.
    pub namespace: String,
    /// The name of the object; the event's own name begins with it.
    pub name: String,
    /// The uid; distinguishes an object from an earlier one of the same name.
    pub uid: String,
    /// The observed resource version, if it matters.
    pub resource_version: Option<String>,
}

impl Regarding {
    /// Refers to an object of a kind by its metadata.
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

    pub(super) fn reference(&self) -> ObjectReference {
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

/// Configures the source and number of events.
#[derive(Clone, Debug)]
pub struct EventConfig {
    /// The published controller name, such as `pytorchjob-controller`; tools filter on it.
    pub component: String,
    /// Which events are written.
    pub mode: EventMode,
    /// Time limit of a request.
    pub call_deadline: Duration,
}

pub(super) enum Message {
    Note(Posted),
    Flush(oneshot::Sender<()>),
}

/// A note, and when it was posted.
pub(super) struct Posted {
    pub(super) regarding: Arc<Regarding>,
    pub(super) note: Note,
    pub(super) at: Instant,
    /// The time of the event.
    pub(super) time: Timestamp,
}

impl Posted {
    pub(super) fn new(regarding: &Arc<Regarding>, note: Note) -> Self {
        Self {
            regarding: Arc::clone(regarding),
            note,
            at: Instant::now(),
            time: Timestamp::now(),
        }
    }
}
