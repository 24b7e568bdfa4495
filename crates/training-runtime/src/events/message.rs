//! What the background task is given.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use kube::core::ObjectMeta;
use tokio::sync::oneshot;
use training_core::notes::Note;

use crate::cli::EventMode;

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

/// Who writes the events, and how many.
#[derive(Clone, Debug)]
pub struct EventConfig {
    /// The published controller name, such as `pytorchjob-controller`; tools filter on it.
    pub component: String,
    /// How many.
    pub mode: EventMode,
    /// The longest time one request may take.
    pub call_deadline: Duration,
}

pub(super) enum Message {
    Note(Arc<Regarding>, Note),
    Flush(oneshot::Sender<()>),
}
