//! The fields of pods and other objects that the life cycle depends on. Deserialization skips all others.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use serde::Deserialize;
use training_api::labels::RESTART_REQUEST;
use training_core::plan::draft::shorten_front;
use training_core::slim::slim_meta;
use training_core::{PodPhase, Uid};

use super::mask::Mask;
use super::observed::{Driver, End, Executor, Kind, Object, Placement, Waiting};
use crate::api::Role;
use crate::digest::SpecDigest;
use crate::label;

/// The longest termination message that is reported. Units: bytes.
const LAST_WORDS: usize = 1024;

/// The application that an object belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its uid.
    pub uid: &'a str,
}

/// Returns the application that owns an object, as its controller if `how` requires that.
fn owner(meta: &ObjectMeta, how: Owns) -> Option<Owner<'_>> {
    let is_application = |o: &&OwnerReference| {
        let group = o.api_version.split_once('/').map_or("", |(g, _)| g);
        let of = (group, o.kind.as_str()) == (label::GROUP, "SparkApplication");
        of && (how == Owns::Any || o.controller == Some(true))
    };
    let owner = meta
        .owner_references
        .iter()
        .flatten()
        .find(is_application)?;
    Some(Owner {
        name: &owner.name,
        uid: &owner.uid,
    })
}

fn label(meta: &ObjectMeta, key: &str) -> String {
    let labels = meta.labels.as_ref();
    labels.and_then(|l| l.get(key)).cloned().unwrap_or_default()
}

fn name(meta: &ObjectMeta) -> String {
    meta.name.clone().unwrap_or_default()
}

fn terminating(meta: &ObjectMeta) -> bool {
    meta.deletion_timestamp.is_some()
}

fn created(meta: &ObjectMeta) -> Timestamp {
    let created = meta.creation_timestamp.as_ref();
    created.map_or(Timestamp::UNIX_EPOCH, |time| time.0)
}

/// How an object is owned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owns {
    Any,
    AsController,
}

/// A pod.
#[derive(Resource, Clone, Debug, Default, Deserialize)]
#[resource(inherit = "k8s_openapi::api::core::v1::Pod")]
#[serde(default)]
pub struct Pod {
    #[serde(deserialize_with = "slim_meta")]
    metadata: ObjectMeta,
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    phase: String,
    reason: String,
    message: String,
    conditions: Vec<Condition>,
    container_statuses: Vec<Container>,
    init_container_statuses: Vec<Container>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Condition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    reason: String,
    message: String,
    last_transition_time: Option<Time>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Container {
    name: String,
    state: ContainerState,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ContainerState {
    waiting: Option<WaitingState>,
    terminated: Option<Terminated>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct WaitingState {
    reason: String,
    message: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Terminated {
    exit_code: i32,
    reason: String,
    message: String,
}

/// Waiting reasons that every container has briefly.
const BRIEF: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// The reason for a pod that has a node but no volumes or no network. Container statuses don't distinguish that from an ordinary
/// start.
pub const NOT_STARTING: &str = "PodNotStarting";

impl Pod {
    /// Its Spark role; `None` if it has none.
    pub fn role(&self) -> Option<Role> {
        match label(&self.metadata, label::ROLE).as_str() {
            "driver" => Some(Role::Driver),
            "executor" => Some(Role::Executor),
            _ => None,
        }
    }

    /// The application that owns it. Only a driver must be controlled by it.
    pub fn owner(&self) -> Option<Owner<'_>> {
        match self.role()? {
            Role::Driver => owner(&self.metadata, Owns::AsController),
            Role::Executor => owner(&self.metadata, Owns::Any),
        }
    }

    /// Converts the pod of a driver; `None` for other pods. Messages are not masked yet.
    pub fn driver(&self) -> Option<Driver> {
        let meta = &self.metadata;
        if self.role() != Some(Role::Driver) || self.owner().is_none() {
            return None;
        }
        let annotation = |key| meta.annotations.as_ref().and_then(|a| a.get(key));
        Some(Driver {
            name: name(meta),
            uid: Uid::of(meta)?,
            submission_id: label(meta, label::SUBMISSION_ID),
            app_id: label(meta, label::APP_SELECTOR),
            digest: annotation(label::SPEC_DIGEST).and_then(|d| SpecDigest::parse(d)),
            generation: annotation(label::GENERATION).and_then(|g| g.parse().ok()),
            restart_request: annotation(RESTART_REQUEST).cloned(),
            phase: PodPhase::parse(&self.status.phase),
            terminating: terminating(meta),
            deletion_deadline: meta.deletion_timestamp.as_ref().map(|time| time.0),
            end: self.end(Role::Driver),
            disruption: self.disruption(),
            waiting: self.waiting(),
        })
    }

    /// Converts the pod of an executor; `None` for other pods. Messages are not masked yet.
    pub fn executor(&self) -> Option<Executor> {
        let meta = &self.metadata;
        let submission_id = label(meta, label::SUBMISSION_ID);
        if self.role() != Some(Role::Executor) || self.owner().is_none() || submission_id.is_empty()
        {
            return None;
        }
        Some(Executor {
            name: name(meta),
            uid: Uid::of(meta)?,
            submission_id,
            app_id: label(meta, label::APP_SELECTOR),
            phase: PodPhase::parse(&self.status.phase),
            terminating: terminating(meta),
            deletion_deadline: meta.deletion_timestamp.as_ref().map(|time| time.0),
            end: self.end(Role::Executor),
            message: self.status.message.clone(),
            created: created(meta),
        })
    }

    /// How the Spark container ended.
    fn end(&self, role: Role) -> Option<End> {
        let annotations = self.metadata.annotations.as_ref();
        let own = annotations.and_then(|a| a.get(label::CONTAINER));
        let name = own.map_or(role.container(), String::as_str);
        let spark = |c: &&Container| c.name == name;
        let container = self.status.container_statuses.iter().find(spark)?;
        let ended = container.state.terminated.as_ref()?;
        Some(End {
            code: ended.exit_code,
            reason: ended.reason.clone(),
            message: ended.message.clone(),
        })
    }

    /// Why the pod was disrupted, if it was.
    fn disruption(&self) -> Option<(String, String)> {
        let target = |c: &&Condition| c.type_ == "DisruptionTarget" && c.status == "True";
        if let Some(target) = self.status.conditions.iter().find(target) {
            return Some((target.reason.clone(), target.message.clone()));
        }
        let reason = &self.status.reason;
        let failed = self.status.phase == "Failed" && !reason.is_empty();
        failed.then(|| (reason.clone(), self.status.message.clone()))
    }

    /// Why it doesn't start.
    fn waiting(&self) -> Option<Waiting> {
        let status = &self.status;
        let condition = |type_: &str| status.conditions.iter().find(move |c| c.type_ == type_);
        let since = |condition: Option<&Condition>| {
            let time = condition.and_then(|c| c.last_transition_time.as_ref());
            time.map_or(created(&self.metadata), |time| time.0)
        };
        let scheduled = condition("PodScheduled");
        if let Some(not) = scheduled.filter(|c| c.status == "False") {
            return Some(Waiting {
                reason: not.reason.clone(),
                message: not.message.clone(),
                since: since(scheduled),
            });
        }
        // A container doesn't report since when it waits. It can't be longer than since the containers before it ended.
        let initialized = condition("Initialized").filter(|c| c.status == "True");
        let of = |list: &[Container], begun| {
            let mut waiting = list.iter().filter_map(|c| c.state.waiting.as_ref());
            let waiting = waiting.find(|w| is_unusual(w))?;
            Some(Waiting {
                reason: waiting.reason.clone(),
                message: waiting.message.clone(),
                since: since(begun),
            })
        };
        of(&status.init_container_statuses, scheduled)
            .or_else(|| of(&status.container_statuses, initialized.or(scheduled)))
            .or_else(|| {
                // While an image is pulled, this condition is true, however long that takes.
                let ready = condition("PodReadyToStartContainers");
                let not = ready.filter(|c| c.status == "False" && scheduled.is_some())?;
                Some(Waiting {
                    reason: NOT_STARTING.to_owned(),
                    message: "it has a node, but its volumes or its network are not ready"
                        .to_owned(),
                    since: since(Some(not)),
                })
            })
    }
}

fn is_unusual(waiting: &WaitingState) -> bool {
    !waiting.reason.is_empty() && !BRIEF.contains(&waiting.reason.as_str())
}

impl Driver {
    /// Masks secrets in its termination message, and truncates it.
    #[must_use]
    pub fn masked(mut self, mask: &Mask) -> Self {
        self.end = self.end.map(|end| end.masked(mask));
        self
    }
}

impl Executor {
    /// As [`Driver::masked`].
    #[must_use]
    pub fn masked(mut self, mask: &Mask) -> Self {
        self.end = self.end.map(|end| end.masked(mask));
        self.message = last_words(&self.message, mask);
        self
    }
}

impl End {
    fn masked(mut self, mask: &Mask) -> Self {
        self.message = last_words(&self.message, mask);
        self
    }
}

/// Returns the end of a text with secrets masked.
fn last_words(text: &str, mask: &Mask) -> String {
    if text.is_empty() {
        return String::new();
    }
    let mut text = mask.apply(text);
    // Drop terminal colors and carriage returns.
    text.retain(|c| !c.is_control() || matches!(c, '\n' | '\t'));
    if text.len() > LAST_WORDS {
        let telling: Vec<&str> = text.lines().filter(|line| !is_noise(line)).collect();
        let telling = telling.join("\n");
        // A deep stack may leave nothing else.
        if !telling.trim().is_empty() {
            text = telling;
        }
    }
    shorten_front(&text, LAST_WORDS)
}

/// True for frames of a Java stack and for Spark's shutdown messages, which hide the error.
fn is_noise(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("at ") || line.starts_with("... ") || line.contains(" ShutdownHookManager: ")
}

/// Another object of a run.
#[derive(Deserialize)]
#[serde(default, bound = "")]
pub struct RunObject<K> {
    #[serde(deserialize_with = "slim_meta")]
    metadata: ObjectMeta,
    spec: ServiceSpec,
    #[serde(skip)]
    of: PhantomData<fn() -> K>,
}

impl<K> Default for RunObject<K> {
    fn default() -> Self {
        Self {
            metadata: ObjectMeta::default(),
            spec: ServiceSpec::default(),
            of: PhantomData,
        }
    }
}

impl<K> fmt::Debug for RunObject<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.metadata.fmt(f)
    }
}

impl<K> Clone for RunObject<K> {
    fn clone(&self) -> Self {
        Self {
            metadata: self.metadata.clone(),
            spec: self.spec.clone(),
            of: PhantomData,
        }
    }
}

impl<K: Resource<DynamicType = ()>> Resource for RunObject<K> {
    type DynamicType = ();
    type Scope = K::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        K::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        K::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        K::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        K::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// The fields read from a Service; empty for other kinds.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ServiceSpec {
    #[serde(rename = "clusterIP")]
    cluster_ip: String,
    ports: Vec<Port>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Port {
    port: i32,
}

impl<K> RunObject<K> {
    /// The application that controls it.
    pub fn owner(&self) -> Option<Owner<'_>> {
        owner(&self.metadata, Owns::AsController)
    }

    /// Converts an object of a run; `None` if it belongs to none, even if someone made an application its owner.
    pub fn object(&self, kind: Kind) -> Option<Object> {
        let meta = &self.metadata;
        let submission_id = label(meta, label::SUBMISSION_ID);
        if self.owner().is_none() || submission_id.is_empty() {
            return None;
        }
        let port = self.spec.ports.first().map(|p| p.port);
        let annotations = meta.annotations.as_ref();
        let placement = annotations.and_then(|a| a.get(label::PLACEMENT));
        let ip = Some(&self.spec.cluster_ip).filter(|ip| !ip.is_empty() && *ip != "None");
        Some(Object {
            kind,
            name: name(meta),
            uid: Uid::of(meta)?,
            submission_id,
            terminating: terminating(meta),
            address: ip.cloned().zip(port).filter(|_| kind == Kind::Service),
            placement: placement.map(|digest| Placement {
                digest: digest.clone(),
                resource_version: meta.resource_version.clone().unwrap_or_default(),
            }),
        })
    }
}
