//! Objects that a job has beside the pods and services of its replicas: what is kept of them, and what becomes of them.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;

use crate::model::digest::Digest;
use crate::model::uid::Uid;
use crate::model::view::PodView;

/// Makes what a fresh Secret holds, or says why it can't.
pub type FreshSecret = fn() -> Result<BTreeMap<String, ByteString>, String>;

/// The kinds of objects that are watched.
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
    /// As it is written in manifests.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Service => "Service",
            Self::ConfigMap => "ConfigMap",
            Self::Job => "Job",
        }
    }
}

/// What is kept of such an object.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectView {
    /// Its kind.
    pub kind: ObjectKind,
    /// Its name.
    pub name: Box<str>,
    /// Its uid.
    pub uid: Uid,
    /// The resource version at which it was seen.
    pub version: u64,
    /// It has a deletion timestamp.
    pub leaving: bool,
    /// Stands for what of it follows the job: see [`Object::digest`]. None of a Job follows.
    pub digest: Option<Digest>,
    /// The keys of what a merge would not remove: a `ConfigMap`'s data, a Service's selector, the node selector of a Job's pods.
    pub keys: Vec<Box<str>>,
    /// How far a Job has come.
    pub batch: Option<Box<BatchView>>,
}

impl ObjectView {
    /// The view of an object that was just made; `None` of a Secret, which is never watched.
    pub fn made(object: &Object, uid: Uid, version: u64) -> Option<Self> {
        let mut view = Self {
            kind: object.watched()?,
            name: object.name().into(),
            uid,
            version,
            leaving: false,
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
                let spec = job.spec.as_ref().and_then(|s| s.template.spec.as_ref());
                view.keys = keys(spec.and_then(|s| s.node_selector.as_ref()));
                view.batch = Some(Box::new(BatchView {
                    suspended: job.spec.as_ref().and_then(|s| s.suspend) == Some(true),
                    ..BatchView::default()
                }));
            }
            Object::Secret(_) => {}
        }
        Some(view)
    }

    /// True if nothing that a decision depends on differs.
    pub fn same_for_decisions(&self, other: &Self) -> bool {
        self.uid == other.uid
            && self.leaving == other.leaving
            && self.digest == other.digest
            && self.batch == other.batch
    }
}

/// How far a `batch/v1` Job has come.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BatchView {
    /// `spec.suspend`.
    pub suspended: bool,
    /// `status.startTime` is set: its template can't be changed.
    pub started: bool,
    /// That time.
    pub since: Option<Timestamp>,
    /// Its failed pods.
    pub failed: u32,
    /// How it ended, if it has.
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

/// A pod that a Job of the job has made, or one of the job's own that is no replica by its name. The name is kept: it can't be
/// derived.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchPod {
    /// Its name.
    pub name: Box<str>,
    /// The Job that made it; the uid of the job itself where no Job did.
    pub batch: Uid,
    /// The pod.
    pub pod: PodView,
    /// What an init container left to be told although it ended well.
    pub said: Option<Box<str>>,
}

/// An object to be made.
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    /// A Service.
    Service(Box<Service>),
    /// A `ConfigMap`.
    ConfigMap(ConfigMap),
    /// A Job.
    Job(Box<Job>),
    /// A Secret without data: that is made when it is sent, and kept nowhere.
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

    /// The kind under which it is watched; Secrets never are.
    pub fn watched(&self) -> Option<ObjectKind> {
        match self {
            Self::Service(_) => Some(ObjectKind::Service),
            Self::ConfigMap(_) => Some(ObjectKind::ConfigMap),
            Self::Job(_) => Some(ObjectKind::Job),
            Self::Secret(_) => None,
        }
    }

    /// Stands for what of the object follows its job for as long as it lives; `None` where nothing does.
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

/// The keys of a map that a merge patch is to replace.
pub fn keys(map: Option<&BTreeMap<String, String>>) -> Vec<Box<str>> {
    let keys = map.into_iter().flatten();
    keys.map(|(key, _)| key.as_str().into()).collect()
}

/// Stands for whom a Service leads to.
pub fn service_digest(
    selector: Option<&BTreeMap<String, String>>,
    unready: Option<bool>,
) -> Digest {
    let selector = selector.filter(|s| !s.is_empty());
    Digest::of(&(selector, unready == Some(true)))
}

/// Stands for what a `ConfigMap` holds.
pub fn config_digest(data: Option<&BTreeMap<String, String>>) -> Digest {
    Digest::of(&data.filter(|d| !d.is_empty()))
}

/// What is known of the Secret of a job whose status doesn't name it yet. It is never read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecretView {
    /// The name of the one that this process made.
    pub made: Option<Box<str>>,
    /// So many of its names were taken.
    pub taken: u32,
}
