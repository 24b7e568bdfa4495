//! The kinds of group objects for gangs, whether a cluster serves them, and the cached form of a group and of its mark on pods.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use kube::core::{ApiResource, DynamicResourceScope};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use training_api::labels;

use crate::model::digest::Digest;
use crate::model::uid::Uid;

/// A kind of group object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GroupKind {
    /// Volcano's `PodGroup`.
    Volcano,
    /// The `PodGroup` of scheduler-plugins.
    SchedulerPlugins,
    /// Kubernetes' own `Workload`.
    Workload,
    /// Kubernetes' own `PodGroup`.
    PodGroup,
}

impl GroupKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [
        Self::Volcano,
        Self::SchedulerPlugins,
        Self::Workload,
        Self::PodGroup,
    ];

    /// The index in [`GroupKind::ALL`].
    pub fn at(self) -> usize {
        match self {
            Self::Volcano => 0,
            Self::SchedulerPlugins => 1,
            Self::Workload => 2,
            Self::PodGroup => 3,
        }
    }

    /// API group.
    pub fn group(self) -> &'static str {
        match self {
            Self::Volcano => "scheduling.volcano.sh",
            Self::SchedulerPlugins => "scheduling.x-k8s.io",
            Self::Workload | Self::PodGroup => "scheduling.k8s.io",
        }
    }

    /// The API versions that the operator can write, best first.
    pub fn versions(self) -> &'static [&'static str] {
        match self {
            Self::Volcano => &["v1beta1"],
            Self::SchedulerPlugins => &["v1alpha1"],
            Self::Workload | Self::PodGroup => &["v1beta1", "v1alpha2"],
        }
    }

    /// `kind`.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Workload => "Workload",
            Self::Volcano | Self::SchedulerPlugins | Self::PodGroup => "PodGroup",
        }
    }

    /// The plural resource name.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Workload => "workloads",
            Self::Volcano | Self::SchedulerPlugins | Self::PodGroup => "podgroups",
        }
    }

    /// A unique name for logs, probes and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Volcano => "volcano-podgroups",
            Self::SchedulerPlugins => "scheduler-plugins-podgroups",
            Self::Workload => "workloads",
            Self::PodGroup => "podgroups",
        }
    }
}

/// Whether the cluster serves a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Availability {
    /// Not known yet: not asked, or not answered.
    #[default]
    Unknown,
    /// The cluster serves it in this version, and the cache holds all of its objects.
    Served(&'static str),
    /// The cluster doesn't serve it.
    Missing,
    /// The operator may not read it; the API server's message.
    Denied(String),
    /// The request failed; the error.
    Unanswered(String),
}

/// What the cluster serves of all kinds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Availabilities([Availability; 4]);

impl Availabilities {
    /// Returns what is known of a kind.
    pub fn of(&self, kind: GroupKind) -> &Availability {
        &self.0[kind.at()]
    }

    /// Sets what is known of a kind. Returns true if that changed.
    pub fn set(&mut self, kind: GroupKind, offer: Availability) -> bool {
        let known = &mut self.0[kind.at()];
        let news = *known != offer;
        *known = offer;
        news
    }

    /// All kinds, served in their best version.
    pub fn all() -> Self {
        Self(GroupKind::ALL.map(|kind| Availability::Served(kind.versions()[0])))
    }
}

/// The gang scheduler's mark on a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mark {
    /// None.
    #[default]
    None,
    /// Volcano's annotation.
    Volcano,
    /// The label of scheduler-plugins.
    SchedulerPlugins,
    /// The pod's `schedulingGroup` field of Kubernetes itself.
    Native,
}

impl Mark {
    /// Reads the mark from a pod's field, annotation and label. Groups of other names are not the job's: Volcano, for example,
    /// gives each of its pods a group.
    pub fn read(
        job: &str,
        group: Option<&str>,
        annotation: Option<&str>,
        label: Option<&str>,
    ) -> Self {
        if group == Some(job) {
            Self::Native
        } else if annotation == Some(job) {
            Self::Volcano
        } else if label == Some(job) {
            Self::SchedulerPlugins
        } else {
            Self::None
        }
    }

    /// Reads the mark of a whole pod, whose label names its job.
    pub fn of(pod: &Pod) -> Self {
        let (own, annotations) = (
            pod.metadata.labels.as_ref(),
            pod.metadata.annotations.as_ref(),
        );
        let label = |key: &str| own.and_then(|l| l.get(key)).map(String::as_str);
        let annotation = annotations.and_then(|a| a.get(labels::VOLCANO_GROUP));
        let group = pod.spec.as_ref().and_then(|s| s.scheduling_group.as_ref());
        let group = group.and_then(|g| g.pod_group_name.as_deref());
        Self::read(
            label(labels::JOB_NAME).unwrap_or_default(),
            group,
            annotation.map(String::as_str),
            label(labels::PLUGINS_GROUP),
        )
    }
}

/// Returns the pod's scheduler if the operator must keep its name: scheduler-plugins may run under any name.
pub fn scheduler_of_pod(pod: &Pod) -> Option<Arc<String>> {
    let named = pod.spec.as_ref().and_then(|s| s.scheduler_name.clone());
    named
        .filter(|name| !name.is_empty() && Mark::of(pod) == Mark::SchedulerPlugins)
        .map(Arc::new)
}

/// The cached form of a group. A job has one per kind.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupView {
    /// Its kind.
    pub kind: GroupKind,
    /// Its uid.
    pub uid: Uid,
    /// The last seen resource version.
    pub version: u64,
    /// The digest of what it was created from; `None` if another operator created it, or if it lost the label by which it is
    /// watched.
    pub digest: Option<Digest>,
    /// The stored minimum number of pods, which anybody may have changed.
    pub min: Option<u32>,
    /// Its priority class, where its pods must have the same.
    pub class: Option<String>,
    /// The names of the requested resources.
    pub resources: Vec<String>,
    /// `status.phase`, where it has one.
    pub phase: Option<String>,
    /// The last message of its scheduler.
    pub message: Option<String>,
    /// The creation time.
    pub since: Option<Timestamp>,
    /// It has a deletion timestamp.
    pub terminating: bool,
}

impl GroupView {
    /// Returns true if no field that decisions depend on differs. Schedulers repeat their messages all the time.
    pub fn same_for_decisions(&self, other: &Self) -> bool {
        self.uid == other.uid
            && self.digest == other.digest
            && self.min == other.min
            && self.class == other.class
            && self.phase == other.phase
            && self.terminating == other.terminating
    }
}

/// A group object with only the fields that decisions need. It always decodes.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub struct Group {
    /// Name, uid, owner, and the digest annotation.
    pub metadata: ObjectMeta,
    spec: GroupSpec,
    status: GroupStatus,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(default, rename_all = "camelCase")]
struct GroupSpec {
    min_member: Option<i64>,
    min_resources: Option<BTreeMap<String, Value>>,
    scheduling_policy: Option<Policy>,
    priority_class_name: Option<String>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(default)]
struct Policy {
    gang: Option<MinCount>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(default, rename_all = "camelCase")]
struct MinCount {
    min_count: Option<i64>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(default)]
struct GroupStatus {
    phase: Option<String>,
    conditions: Option<Vec<GroupCondition>>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(default)]
struct GroupCondition {
    message: Option<String>,
}

impl Resource for Group {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(of: &ApiResource) -> Cow<'_, str> {
        of.kind.as_str().into()
    }
    fn group(of: &ApiResource) -> Cow<'_, str> {
        of.group.as_str().into()
    }
    fn version(of: &ApiResource) -> Cow<'_, str> {
        of.version.as_str().into()
    }
    fn api_version(of: &ApiResource) -> Cow<'_, str> {
        of.api_version.as_str().into()
    }
    fn plural(of: &ApiResource) -> Cow<'_, str> {
        of.plural.as_str().into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl GroupKind {
    /// Returns the API resource of the kind in one of its versions.
    pub fn resource(self, version: &str) -> ApiResource {
        ApiResource {
            group: self.group().to_owned(),
            version: version.to_owned(),
            api_version: format!("{}/{version}", self.group()),
            kind: self.kind().to_owned(),
            plural: self.plural().to_owned(),
        }
    }
}

impl Group {
    /// Returns the cached form; `None` without a uid.
    pub fn view(&self, kind: GroupKind) -> Option<GroupView> {
        let (meta, spec) = (&self.metadata, &self.spec);
        let made_from = meta.annotations.as_ref().and_then(|a| a.get(labels::GANG));
        let gang = spec
            .scheduling_policy
            .as_ref()
            .and_then(|p| p.gang.as_ref());
        let min = spec.min_member.or(gang.and_then(|g| g.min_count));
        let said = self.status.conditions.iter().flatten().rev();
        let said = said.filter_map(|c| c.message.as_ref());
        let version = meta.resource_version.as_deref();
        Some(GroupView {
            kind,
            uid: Uid::of(meta)?,
            version: version.and_then(|v| v.parse().ok()).unwrap_or(0),
            digest: made_from.and_then(|d| Digest::parse(d)),
            min: min.and_then(|n| u32::try_from(n).ok()),
            class: spec.priority_class_name.clone().filter(|c| !c.is_empty()),
            resources: spec
                .min_resources
                .iter()
                .flatten()
                .map(|(name, _)| name.clone())
                .collect(),
            phase: self.status.phase.clone(),
            message: said.into_iter().find(|m| !m.is_empty()).cloned(),
            since: meta.creation_timestamp.as_ref().map(|t| t.0),
            terminating: meta.deletion_timestamp.is_some(),
        })
    }
}
