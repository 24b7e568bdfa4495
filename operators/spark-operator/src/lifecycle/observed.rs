//! The observed state of an application's pods and objects.

use k8s_openapi::jiff::Timestamp;
use training_core::{PodPhase, Uid};

use crate::digest::SpecDigest;

/// Everything that a decision depends on in addition to the application.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// Drivers that the application controls, of any submission and name.
    pub drivers: Vec<Driver>,
    /// The name of the next driver, if a foreign pod has it.
    pub taken_name: Option<String>,
    /// Executors of any submission.
    pub executors: Vec<Executor>,
    /// Other objects of the application.
    pub objects: Vec<Object>,
    /// The first digest that this process saw of an ended application whose record can't be compared.
    pub first: Option<SpecDigest>,
    /// The last attempt to submit, if it was refused.
    pub refused: Option<Refused>,
    /// Objects that the driver doesn't depend on and that could not be created, of any submission.
    pub missing_objects: Vec<MissingObject>,
}

/// A driver's pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: Uid,
    /// Its submission.
    pub submission_id: String,
    /// The id that Spark gave the run.
    pub app_id: String,
    /// The digest of the spec it was created from, if known.
    pub digest: Option<SpecDigest>,
    /// The generation of the spec it was created from, if known.
    pub generation: Option<i64>,
    /// The restart request that it was created after.
    pub restart_request: Option<String>,
    /// Its phase.
    pub phase: PodPhase,
    /// True if it is terminating.
    pub terminating: bool,
    /// The deletion deadline, if it is terminating.
    pub deletion_deadline: Option<Timestamp>,
    /// How the Spark container ended.
    pub end: Option<End>,
    /// Why it was disrupted: eviction, preemption, a lost node. Shape: a reason and a message.
    pub disruption: Option<(String, String)>,
    /// Why it doesn't start, and since when.
    pub waiting: Option<Waiting>,
}

/// How a container ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// The exit code.
    pub code: i32,
    /// The reason that the kubelet gives.
    pub reason: String,
    /// The termination message, with secrets masked.
    pub message: String,
}

/// Why a pod doesn't start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The reason that the kubelet or the scheduler gives.
    pub reason: String,
    /// Its message.
    pub message: String,
    /// When the wait began.
    pub since: Timestamp,
}

/// An executor's pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executor {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: Uid,
    /// Its submission.
    pub submission_id: String,
    /// The id that Spark gave the run.
    pub app_id: String,
    /// Its phase.
    pub phase: PodPhase,
    /// True if it is terminating.
    pub terminating: bool,
    /// The deletion deadline, if it is terminating.
    pub deletion_deadline: Option<Timestamp>,
    /// How its container ended.
    pub end: Option<End>,
    /// The pod's own message, with secrets masked.
    pub message: String,
    /// Its creation time.
    pub created: Timestamp,
}

/// The kinds of objects that a run creates.
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
    /// All kinds.
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

    /// The `apiVersion`.
    pub fn api(self) -> &'static str {
        match self {
            Self::ConfigMap | Self::Service | Self::Claim => "v1",
            Self::Ingress | Self::NetworkPolicy => "networking.k8s.io/v1",
            Self::Budget => "policy/v1",
            Self::VolcanoGroup => "scheduling.volcano.sh/v1beta1",
            Self::CoschedulingGroup => "scheduling.x-k8s.io/v1alpha1",
        }
    }

    /// The plural name in URLs.
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

    /// The kind of a pod group with this `apiVersion`.
    pub fn of_group(api: &str) -> Self {
        let volcano = Self::VolcanoGroup;
        if api == volcano.api() {
            volcano
        } else {
            Self::CoschedulingGroup
        }
    }
}

/// Where the executors' template places them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The digest, as in [`crate::digest::SpecDigest::placement`].
    pub digest: String,
    /// The resource version of the template's ConfigMap.
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
    /// Its submission.
    pub submission_id: String,
    /// True if it is terminating.
    pub terminating: bool,
    /// Of a Service: its address and first port.
    pub address: Option<(String, i32)>,
    /// Of the executors' template: where it places them.
    pub placement: Option<Placement>,
}

/// A refused attempt to submit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The submission.
    pub submission_id: String,
    /// `status.submissionAttempts` at the attempt. It distinguishes a counted attempt from the next.
    pub attempts: i32,
    /// The API server's message.
    pub message: String,
    /// The time of the refusal.
    pub at: Timestamp,
    /// What the refusal means.
    pub why: Refusal,
}

/// An object that the driver doesn't depend on and that could not be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingObject {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// Its submission.
    pub submission_id: String,
    /// The API server's message.
    pub message: String,
    /// The time of the refusal.
    pub at: Timestamp,
}

/// What a refusal means for the next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Users must create something that is missing: retried as often as the spec allows.
    Counted,
    /// A transient refusal: quota, overload, an unavailable webhook, a right missing in a namespace. Retried forever.
    Transient,
    /// Permanent: never retried.
    Permanent,
}

impl Refusal {
    /// The name in logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counted => "counted",
            Self::Transient => "transient",
            Self::Permanent => "permanent",
        }
    }
}
