//! A job's objects other than the pods and services of its replicas: their cached form and the changes to them.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use crate::model::digest::Digest;
use crate::model::uid::Uid;
use crate::model::view::PodView;

/// Generates the data of a new Secret, or returns why it can't.
pub type SecretGenerator = fn() -> Result<BTreeMap<String, ByteString>, String>;

/// The kinds of objects that the operator watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKind {
    /// A `v1` Service of the job as a whole.
    Service,
    /// A `v1` `ConfigMap`.
    ConfigMap,
    /// A `batch/v1` Job.
    Job,
}

impl ObjectKind {
    /// The kind as written in manifests.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Service => "Service",
            Self::ConfigMap => "ConfigMap",
            Self::Job => "Job",
        }
    }
}

/// The cached form of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectView {
    /// Its kind.
    pub kind: ObjectKind,
    /// Its name.
    pub name: Box<str>,
    /// Its uid.
    pub uid: Uid,
    /// The last seen resource version.
    pub version: u64,
    /// It has a deletion timestamp.
    pub terminating: bool,
    /// It is deleted, and its last state still counts: see [`BatchView::end`].
    pub gone: bool,
    /// The digest of the fields that follow the job: see [`Object::digest`]. `None` for a Job.
    pub digest: Option<Digest>,
    /// The keys that a merge patch would not remove: a `ConfigMap`'s data, a Service's selector, the node selector of a Job's pods.
    pub keys: Vec<Box<str>>,
    /// The progress of a Job.
    pub batch: Option<Box<BatchView>>,
}

impl ObjectView {
    /// Returns the view of an object that was just created. `None` for a Secret, which is never watched.
    pub fn made(object: &Object, uid: Uid, version: u64) -> Option<Self> {
        let mut view = Self {
            kind: object.watched()?,
            name: object.name().into(),
            uid,
            version,
            terminating: false,
            gone: false,
            digest: object.digest(),
            keys: Vec::new(),
            batch: None,
        };
        match object {
            Object::ConfigMap(config) => view.keys = keys(config.data.as_ref()),
            Object::Service(service) => {
                let spec = service.spec.as_ref();
                view.keys = keys(spec.and_then(|s| s.selector.as_ref()));
            }
            Object::Job(job) => {
                let spec = job.spec.as_ref();
                let pod = spec.and_then(|s| s.template.spec.as_ref());
                view.keys = keys(pod.and_then(|s| s.node_selector.as_ref()));
                view.batch = Some(Box::new(BatchView {
                    suspended: spec.and_then(|s| s.suspend) == Some(true),
                    deadline: spec.and_then(|s| s.active_deadline_seconds),
                    backoff_limit: spec.and_then(|s| s.backoff_limit),
                    ..BatchView::default()
                }));
            }
            Object::Secret(_) => {}
        }
        Some(view)
    }

    /// Returns true if no field that decisions depend on differs.
    pub fn same_for_decisions(&self, other: &Self) -> bool {
        self.uid == other.uid
            && self.terminating == other.terminating
            && self.gone == other.gone
            && self.digest == other.digest
            && self.batch == other.batch
    }
}

/// The progress of a `batch/v1` Job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BatchView {
    /// `spec.suspend`.
    pub suspended: bool,
    /// `spec.activeDeadlineSeconds`. Unit: seconds.
    pub deadline: Option<i64>,
    /// `spec.backoffLimit`.
    pub backoff_limit: Option<i32>,
    /// True if `status.startTime` is set. The Job's template is immutable from then on.
    pub started: bool,
    /// `status.startTime`.
    pub since: Option<Timestamp>,
    /// The number of failed pods.
    pub failed: u32,
    /// The number of failed pods that `failed` doesn't include yet. They may be gone.
    pub uncounted: u32,
    /// How the Job ended, if it has.
    pub end: Option<BatchEnd>,
}

/// How a Job ended.
#[derive(Clone, Debug, PartialEq)]
pub enum BatchEnd {
    /// Condition `Complete`.
    Complete {
        /// Its completion time.
        at: Option<Timestamp>,
    },
    /// Condition `Failed`.
    Failed {
        /// The condition's reason.
        reason: String,
        /// The condition's message.
        message: String,
    },
}

/// A pod that a Job of the training job created, or a pod of the training job whose name is not a replica's. It keeps its name
/// because the name can't be derived.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchPod {
    /// Its name.
    pub name: Box<str>,
    /// The uid of the Job that created the pod, or of the training job if no Job did.
    pub batch: Uid,
    /// The pod.
    pub pod: PodView,
    /// The termination message of an init container that succeeded, if it left one.
    pub said: Option<Box<str>>,
    /// True if the name is not one that the controller of Jobs gives: somebody else created the pod and named the Job as its owner.
    pub forged: bool,
}

/// An object to create. It is serialized as that object.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Object {
    /// A Service.
    Service(Box<Service>),
    /// A `ConfigMap`.
    ConfigMap(ConfigMap),
    /// A Job.
    Job(Box<Job>),
    /// A Secret without data. The data is generated when the Secret is sent, and is not stored anywhere.
    Secret(Secret),
}

impl Object {
    /// Its metadata.
    pub fn meta(&self) -> &ObjectMeta {
        match self {
            Self::Service(object) => &object.metadata,
            Self::ConfigMap(object) => &object.metadata,
            Self::Job(object) => &object.metadata,
            Self::Secret(object) => &object.metadata,
        }
    }

    /// Its name.
    pub fn name(&self) -> String {
        self.meta().name.clone().unwrap_or_default()
    }

    /// The kind as it is written in manifests.
    pub fn kind(&self) -> &'static str {
        self.watched().map_or("Secret", ObjectKind::as_str)
    }

    /// The kind by which it is watched. `None` for a Secret.
    pub fn watched(&self) -> Option<ObjectKind> {
        match self {
            Self::Service(_) => Some(ObjectKind::Service),
            Self::ConfigMap(_) => Some(ObjectKind::ConfigMap),
            Self::Job(_) => Some(ObjectKind::Job),
            Self::Secret(_) => None,
        }
    }

    /// Returns the digest of the fields that follow the job for as long as the object exists. `None` if there are none.
    pub fn digest(&self) -> Option<Digest> {
        match self {
            Self::Service(service) => service
                .spec
                .as_ref()
                .map(|s| service_digest(s.selector.as_ref(), s.publish_not_ready_addresses)),
            Self::ConfigMap(config) => Some(config_digest(config.data.as_ref())),
            Self::Job(_) | Self::Secret(_) => None,
        }
    }
}

/// Returns the keys of a map that a merge patch replaces.
pub fn keys(map: Option<&BTreeMap<String, String>>) -> Vec<Box<str>> {
    let keys = map.into_iter().flatten();
    keys.map(|(key, _)| key.as_str().into()).collect()
}

/// The digest of what decides a Service's endpoints.
pub fn service_digest(
    selector: Option<&BTreeMap<String, String>>,
    unready: Option<bool>,
) -> Digest {
    let selector = selector.filter(|s| !s.is_empty());
    Digest::of(&(selector, unready == Some(true)))
}

/// The digest of a `ConfigMap`'s data.
pub fn config_digest(data: Option<&BTreeMap<String, String>>) -> Digest {
    Digest::of(&data.filter(|d| !d.is_empty()))
}

/// What the operator knows about the Secret of a job whose status doesn't name it yet. The operator never reads the Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecretView {
    /// The name of the Secret that this process created.
    pub made: Option<Box<str>>,
    /// The number of candidate names that were already taken.
    pub taken: u32,
}
