//! What is known of an application beside itself.

use k8s_openapi::jiff::Timestamp;
use training_core::{PodPhase, Uid};

use crate::digest::SpecDigest;

/// Everything that a decision depends on beside the application.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// Drivers that the application controls, of whatever submission and name.
    pub drivers: Vec<Driver>,
    /// The name of the next driver, where a pod of somebody else has it.
    pub taken: Option<String>,
    /// Executors of whatever submission.
    pub executors: Vec<Executor>,
    /// Further objects of the application.
    pub objects: Vec<Object>,
    /// Stands for the spec of an ended application whose record can't be compared, as this process saw it first.
    pub first: Option<SpecDigest>,
    /// What became of the last attempt to submit, where it was refused.
    pub refused: Option<Refused>,
    /// Objects beside the driver that could not be made, of whatever submission.
    pub withheld: Vec<Withheld>,
}

/// A driver's pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: Uid,
    /// The submission that it is of.
    pub submission_id: String,
    /// The id that Spark knows its run by.
    pub app_id: String,
    /// What it was made from, where it says so.
    pub digest: Option<SpecDigest>,
    /// The generation that it was made from, where it says so.
    pub generation: Option<i64>,
    /// Its phase.
    pub phase: PodPhase,
    /// It has a deletion timestamp.
    pub leaving: bool,
    /// When it should be gone, if it has one.
    pub due: Option<Timestamp>,
    /// How the container that runs Spark ended.
    pub end: Option<End>,
    /// Why it ended, where that was not of its own: eviction, preemption, a lost node. Shape: a reason and a sentence.
    pub taken: Option<(String, String)>,
    /// Why it doesn't start, and since when.
    pub waits: Option<Waits>,
}

/// How a container ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// The exit code.
    pub code: i32,
    /// The reason that the kubelet gives.
    pub reason: String,
    /// Its last words, with what is secret masked.
    pub said: String,
}

/// Why a pod doesn't start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waits {
    /// The reason that the kubelet or the scheduler gives.
    pub reason: String,
    /// Its message.
    pub message: String,
    /// Since when.
    pub since: Timestamp,
}

/// An executor's pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executor {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: Uid,
    /// The submission that it is of.
    pub submission_id: String,
    /// The id that Spark knows its run by.
    pub app_id: String,
    /// Its phase.
    pub phase: PodPhase,
    /// It has a deletion timestamp.
    pub leaving: bool,
    /// When it should be gone, if it has one.
    pub due: Option<Timestamp>,
    /// How its container ended.
    pub end: Option<End>,
    /// The pod's own message, with what is secret masked.
    pub said: String,
    /// When it was made.
    pub created: Timestamp,
}

/// The kinds of objects that are made for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A `v1` `ConfigMap`.
    ConfigMap,
    /// A `v1` Service.
    Service,
    /// A `networking.k8s.io/v1` Ingress.
    Ingress,
    /// A `v1` `PersistentVolumeClaim`.
    Claim,
    /// A `networking.k8s.io/v1` `NetworkPolicy`.
    NetworkPolicy,
    /// A `policy/v1` `PodDisruptionBudget`.
    Budget,
    /// A `scheduling.volcano.sh/v1beta1` `PodGroup`.
    VolcanoGroup,
    /// A `scheduling.x-k8s.io/v1alpha1` `PodGroup`.
    CoschedulingGroup,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::ConfigMap,
        Self::Service,
        Self::Ingress,
        Self::Claim,
        Self::NetworkPolicy,
        Self::Budget,
        Self::VolcanoGroup,
        Self::CoschedulingGroup,
    ];

    /// Its group and version, as `apiVersion` has them.
    pub fn api(self) -> &'static str {
        match self {
            Self::ConfigMap | Self::Service | Self::Claim => "v1",
            Self::Ingress | Self::NetworkPolicy => "networking.k8s.io/v1",
            Self::Budget => "policy/v1",
            Self::VolcanoGroup => "scheduling.volcano.sh/v1beta1",
            Self::CoschedulingGroup => "scheduling.x-k8s.io/v1alpha1",
        }
    }

    /// Its name in URLs.
    pub fn plural(self) -> &'static str {
        match self {
            Self::ConfigMap => "configmaps",
            Self::Service => "services",
            Self::Ingress => "ingresses",
            Self::Claim => "persistentvolumeclaims",
            Self::NetworkPolicy => "networkpolicies",
            Self::Budget => "poddisruptionbudgets",
            Self::VolcanoGroup | Self::CoschedulingGroup => "podgroups",
        }
    }

    /// The URL of its objects in a namespace.
    pub fn url(self, namespace: &str) -> String {
        let (api, plural) = (self.api(), self.plural());
        let root = if api.contains('/') { "apis" } else { "api" };
        format!("/{root}/{api}/namespaces/{namespace}/{plural}")
    }

    /// The kind of a group with this `apiVersion`.
    pub fn of_group(api: &str) -> Self {
        let volcano = Self::VolcanoGroup;
        if api == volcano.api() {
            volcano
        } else {
            Self::CoschedulingGroup
        }
    }
}

/// Where the executors' template puts them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// As [`crate::digest::SpecDigest::placement`] says it.
    pub digest: String,
    /// The version of the object that says so.
    pub resource_version: String,
}

/// An object of the application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: Uid,
    /// The submission that it is of.
    pub submission_id: String,
    /// It has a deletion timestamp.
    pub leaving: bool,
    /// Of a Service: its address and first port.
    pub address: Option<(String, i32)>,
    /// Of the executors' template.
    pub placement: Option<Placement>,
}

/// An attempt to submit that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The submission.
    pub submission_id: String,
    /// `status.submissionAttempts` when it was made. By it an attempt that is counted already is told from the next.
    pub attempts: i32,
    /// What the API server said.
    pub message: String,
    /// When it said so.
    pub at: Timestamp,
    /// What that means.
    pub why: Refusal,
}

/// An object beside the driver that could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Withheld {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// The submission that it is of.
    pub submission_id: String,
    /// What the API server said.
    pub message: String,
    /// When it said so.
    pub at: Timestamp,
}

/// What a refusal means for what comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Something that users have to make is missing: it is tried again as often as the spec allows.
    Counted,
    /// It will pass: quota, overload, a webhook that is away, a right that is missing in a namespace. It is tried again for ever.
    Passing,
    /// It will be refused for ever.
    Hopeless,
}

impl Refusal {
    /// A word for logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counted => "counted",
            Self::Passing => "passing",
            Self::Hopeless => "hopeless",
        }
    }
}
