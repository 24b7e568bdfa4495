//! The kinds of objects that stand for gangs, whether a cluster serves them, and what is kept of such an object and of its pods.

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

/// A kind of object that stands for a gang.
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
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Volcano,
        Self::SchedulerPlugins,
        Self::Workload,
        Self::PodGroup,
    ];

    /// Its place in [`GroupKind::ALL`].
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

    /// The versions that we can write, best first.
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

    /// The resource.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Workload => "workloads",
            Self::Volcano | Self::SchedulerPlugins | Self::PodGroup => "podgroups",
        }
    }

    /// A word of its own, for logs, probes and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Volcano => "volcano-podgroups",
            Self::SchedulerPlugins => "scheduler-plugins-podgroups",
            Self::Workload => "workloads",
            Self::PodGroup => "podgroups",
        }
    }
}

/// What is known of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Offer {
    /// Nothing yet: nobody has asked, or the answer is under way.
    #[default]
    Unknown,
    /// The cluster serves it in this version, and all of its objects are known.
    Served(&'static str),
    /// The cluster doesn't serve it.
    Missing,
    /// The operator may not see it, in the API server's words.
    Denied(String),
    /// Nobody could be asked; how that failed.
    Unanswered(String),
}

/// What is known of all kinds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offers([Offer; 4]);

impl Offers {
    /// What is known of a kind.
    pub fn of(&self, kind: GroupKind) -> &Offer {
        &self.0[kind.at()]
    }

    /// Sets what is known of a kind; true if that is news.
    pub fn set(&mut self, kind: GroupKind, offer: Offer) -> bool {
        let known = &mut self.0[kind.at()];
        let news = *known != offer;
        *known = offer;
        news
    }

    /// All kinds in their best version.
    pub fn all() -> Self {
        Self(GroupKind::ALL.map(|kind| Offer::Served(kind.versions()[0])))
    }
}

/// Which scheduler's mark a pod carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mark {
    /// None.
    #[default]
    None,
    /// Volcano's annotation.
    Volcano,
    /// The label of scheduler-plugins.
    SchedulerPlugins,
    /// The field of Kubernetes itself.
    Native,
}

impl Mark {
    /// The mark of a pod of this job, from its field, annotation and label. Groups of other names are not the job's: Volcano, for
    /// one, gives every pod of its own a group.
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

    /// The same of a whole pod, whose label says which job it is of.
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

/// The scheduler that a pod names, if its name is to be kept: that of scheduler-plugins may be any.
pub fn scheduler_of_pod(pod: &Pod) -> Option<Arc<String>> {
    let named = pod.spec.as_ref().and_then(|s| s.scheduler_name.clone());
    named
        .filter(|name| !name.is_empty() && Mark::of(pod) == Mark::SchedulerPlugins)
        .map(Arc::new)
}

/// What is kept of a group. A job has one per kind.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupView {
    /// Its kind.
    pub kind: GroupKind,
    /// Its uid.
    pub uid: Uid,
    /// The resource version at which it was seen.
    pub version: u64,
    /// What it was made to follow; `None` where another operator made it, or it has lost the label by which it is watched.
    pub digest: Option<Digest>,
    /// The fewest pods that it holds together, as stored, which anybody may have changed.
    pub min: Option<u32>,
    /// Its priority class, where pods must have the same.
    pub class: Option<String>,
    /// The names of the resources that it asks for.
    pub resources: Vec<String>,
    /// `status.phase`, where it has one.
    pub phase: Option<String>,
    /// What its scheduler last said about it.
    pub message: Option<String>,
    /// When it was made.
    pub since: Option<Timestamp>,
    /// It has a deletion timestamp.
    pub leaving: bool,
}

impl GroupView {
    /// True if nothing that a decision depends on differs: schedulers repeat themselves all the time.
    pub fn same_for_decisions(&self, other: &Self) -> bool {
        self.uid == other.uid
            && self.digest == other.digest
            && self.min == other.min
            && self.class == other.class
            && self.phase == other.phase
            && self.leaving == other.leaving
    }
}

/// An object of one of the kinds as it is read: the few fields that decisions need. It can't fail to decode.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub struct Group {
    /// Name, uid, owner, and what it was made to follow.
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
    conditions: Option<Vec<Said>>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(default)]
struct Said {
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
    /// The kind as an address, in one of its versions.
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
    /// What is kept of it; `None` without a uid.
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
            uid: Uid::parse(meta.uid.as_deref()?)?,
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
            leaving: meta.deletion_timestamp.is_some(),
        })
    }
}
