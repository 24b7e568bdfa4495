//! What keeps pods from running or from going, in the words of the cluster, and what to do about it.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::model::notes::{Entry, Severity};

/// What a pod in trouble says about itself. A healthy pod has none, so that it costs no memory of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trouble {
    /// A word of the cluster: `OOMKilled`, `Error`, `Evicted`, `ErrImagePull`, `Unschedulable`.
    pub reason: String,
    /// Its text, cut and cleaned.
    pub message: String,
    /// The container that says so; empty for the pod itself.
    pub container: String,
    /// That container runs before the others.
    pub init: bool,
    /// The code with which that container ended, if it did.
    pub exit_code: Option<i32>,
    /// The pod's node; empty before it has one.
    pub node: String,
    /// What keeps the pod from running. Nothing for one that failed, or whose container was restarted in place.
    pub cause: Option<Cause>,
    /// Since when, by the clocks of the cluster; of a pod that failed, when it ended.
    pub since: Option<Timestamp>,
    /// When the container began to run that ended, or that is about to be stopped.
    pub ran_since: Option<Timestamp>,
    /// When the pod should be gone: its deletion timestamp, which has the grace period in it.
    pub gone_by: Option<Timestamp>,
    /// Its deletion leaves no grace: forcing it again would change nothing.
    pub forced: bool,
}

/// What keeps a pod from running, or from going. The order is that in which a job tells them if it has several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// Its node is not heard of any more.
    NodeLost,
    /// It should be gone and is not.
    PodStuckTerminating,
    /// The image's name can't be read.
    InvalidImageName,
    /// The image is not on the node and may not be pulled.
    ErrImageNeverPull,
    /// The image can't be pulled.
    ImagePullBackOff,
    /// A container refers to an object or setting that isn't there, or isn't allowed.
    CreateContainerConfigError,
    /// The container runtime can't make a container.
    CreateContainerError,
    /// A container can't be started: a wrong command, as a rule.
    RunContainerError,
    /// A container ends badly again and again, and waits longer each time.
    CrashLoopBackOff,
    /// A container waits for a reason that we have no name for.
    ContainerWaiting,
    /// It has a node, but its volumes or its network are not there.
    PodNotStarting,
    /// No node takes it.
    Unschedulable,
    /// Somebody's scheduling gates hold it back.
    SchedulingGated,
}

/// Something is wrong only if it lasts: pods look for a place for a moment in every job's life.
const PATIENCE_SCHEDULING: SignedDuration = SignedDuration::from_secs(10);
/// Volumes are attached and networks set up within seconds; a volume of the cloud's may take a minute.
const PATIENCE_STARTING: SignedDuration = SignedDuration::from_secs(120);
/// What a kubelet may take beyond a grace period.
const PATIENCE_GOING: SignedDuration = SignedDuration::from_secs(30);

impl Cause {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::NodeLost,
        Self::PodStuckTerminating,
        Self::InvalidImageName,
        Self::ErrImageNeverPull,
        Self::ImagePullBackOff,
        Self::CreateContainerConfigError,
        Self::CreateContainerError,
        Self::RunContainerError,
        Self::CrashLoopBackOff,
        Self::ContainerWaiting,
        Self::PodNotStarting,
        Self::Unschedulable,
        Self::SchedulingGated,
    ];

    /// The reason of the condition and of the event.
    pub fn reason(self) -> &'static str {
        self.entry().reason
    }

    /// What to do.
    pub fn hint(self) -> &'static str {
        self.entry().hint
    }

    /// Its place in the catalogue of reasons.
    pub fn entry(self) -> Entry {
        let (reason, meaning, hint) = match self {
            Self::NodeLost => (
                "NodeLost",
                "The node of a pod is not heard of any more; the message says which and since when. Its processes may still run.",
                "Bring the node back, delete its Node object, or taint it node.kubernetes.io/out-of-service; the job waits for that",
            ),
            Self::PodStuckTerminating => (
                "PodStuckTerminating",
                "A pod that was told to go is still there 30 s after its grace period. Its replacement can't be made before it is gone.",
                "Look at its node and at the pod's finalizers; the replacement comes when the pod is gone",
            ),
            Self::InvalidImageName => (
                "InvalidImageName",
                "The kubelet can't read the name of a container's image.",
                "Correct the image in the template and submit the job again",
            ),
            Self::ErrImageNeverPull => (
                "ErrImageNeverPull",
                "The image is not on the node, and imagePullPolicy is Never.",
                "Load the image onto the nodes, or set another imagePullPolicy and submit the job again",
            ),
            Self::ImagePullBackOff => (
                "ImagePullBackOff",
                "A container's image can't be pulled, or not at the moment; the message is the registry's. It stands for ErrImagePull as well.",
                "Check name and tag of the image, and imagePullSecrets for a private registry; the job goes on by itself once it can be pulled",
            ),
            Self::CreateContainerConfigError => (
                "CreateContainerConfigError",
                "A container refers to a ConfigMap, Secret or key that is missing, or asks for a setting that is not allowed.",
                "Create the ConfigMap, Secret or key that is named, and the job goes on by itself; a setting that isn't allowed has to be changed in the template",
            ),
            Self::CreateContainerError => (
                "CreateContainerError",
                "The node's container runtime can't make a container.",
                "Look at what the template asks for, such as mounts and devices, and at the node's container runtime",
            ),
            Self::RunContainerError => (
                "RunContainerError",
                "A container was made but can't be started: a command that the image doesn't have, as a rule.",
                "Check command, working directory and mounts in the template, and submit the job again",
            ),
            Self::CrashLoopBackOff => (
                "CrashLoopBackOff",
                "A container ends badly again and again; the kubelet waits longer each time before it starts it anew. It counts as over when the container has run for a minute.",
                "Read the log of the container that ended: kubectl logs --previous",
            ),
            Self::ContainerWaiting => (
                "ContainerWaiting",
                "A container doesn't start, for a reason that the operator has no name for; the message has the kubelet's.",
                "See what kubectl describe pod says",
            ),
            Self::PodNotStarting => (
                "PodNotStarting",
                "A pod has had a node for two minutes, but its volumes or its network are not there: a missing Secret or ConfigMap that is mounted, a volume that can't be attached, no address.",
                "See kubectl describe pod for what is missing; the job goes on by itself once it is there",
            ),
            Self::Unschedulable => (
                "Unschedulable",
                "No node has taken a pod for ten seconds; the message is the scheduler's.",
                "Free or add what is lacking, or ask for less: resources, node selectors, affinity, tolerations; the job goes on by itself",
            ),
            Self::SchedulingGated => (
                "SchedulingGated",
                "The scheduling gates of a pod have held it back for ten seconds.",
                "Whoever set the pod's schedulingGates has to remove them; a queueing system does so when it admits the job",
            ),
        };
        Entry {
            reason,
            severity: Severity::Warning,
            meaning,
            hint,
        }
    }

    /// What a kubelet's word for a waiting container means; `None` for the ordinary steps of a start.
    ///
    /// Words that alternate by themselves mean the same, so that a job's status stays still meanwhile.
    pub fn of_waiting(word: &str) -> Option<Self> {
        match word {
            "" | "ContainerCreating" | "PodInitializing" => None,
            "InvalidImageName" => Some(Self::InvalidImageName),
            "ErrImageNeverPull" => Some(Self::ErrImageNeverPull),
            "ErrImagePull"
            | "ImagePullBackOff"
            | "ImageInspectError"
            | "RegistryUnavailable"
            | "SignatureValidationFailed" => Some(Self::ImagePullBackOff),
            "CreateContainerConfigError" => Some(Self::CreateContainerConfigError),
            "CreateContainerError" | "PreCreateHookError" => Some(Self::CreateContainerError),
            "RunContainerError" | "StartError" | "ContainerCannotRun" | "PreStartHookError"
            | "PostStartHookError" => Some(Self::RunContainerError),
            "CrashLoopBackOff" => Some(Self::CrashLoopBackOff),
            _ => Some(Self::ContainerWaiting),
        }
    }

    /// How long it may last before it is told. Units: time since [`Trouble::since`].
    pub(crate) fn patience(self) -> SignedDuration {
        match self {
            Self::Unschedulable | Self::SchedulingGated => PATIENCE_SCHEDULING,
            Self::PodNotStarting => PATIENCE_STARTING,
            Self::PodStuckTerminating => PATIENCE_GOING,
            Self::NodeLost
            | Self::InvalidImageName
            | Self::ErrImageNeverPull
            | Self::ImagePullBackOff
            | Self::CreateContainerConfigError
            | Self::CreateContainerError
            | Self::RunContainerError
            | Self::CrashLoopBackOff
            | Self::ContainerWaiting => SignedDuration::ZERO,
        }
    }

    /// What is the case, after the name of the pod.
    pub fn describe(self, trouble: &Trouble) -> String {
        let container = container(trouble);
        let since = |at: Option<Timestamp>| at.map(|t| format!(" since {t}")).unwrap_or_default();
        let node = if trouble.node.is_empty() {
            "its node".to_owned()
        } else {
            format!("node {}", trouble.node)
        };
        match self {
            Self::NodeLost => format!("nothing heard from {node}{}", since(trouble.since)),
            Self::PodStuckTerminating => {
                format!(
                    "still on {node}, though due to be gone{}",
                    since(trouble.gone_by)
                )
            }
            Self::InvalidImageName => format!("the image name of {container} is not valid"),
            Self::ErrImageNeverPull => {
                format!("the image of {container} is not on {node} and may not be pulled")
            }
            Self::ImagePullBackOff => format!("the image of {container} can't be pulled"),
            Self::CreateContainerConfigError => {
                format!("{container} refers to something that is missing or not allowed")
            }
            Self::CreateContainerError => format!("{container} can't be created"),
            Self::RunContainerError => format!("{container} can't be started"),
            Self::CrashLoopBackOff => format!("{container} fails again and again"),
            Self::ContainerWaiting => format!("{container} waits ({})", trouble.reason),
            Self::PodNotStarting => {
                format!(
                    "waiting for volumes or network on its node{}",
                    since(trouble.since)
                )
            }
            Self::Unschedulable => "no node takes it".to_owned(),
            Self::SchedulingGated => "held back by scheduling gates".to_owned(),
        }
    }
}

/// The container that a trouble is about, by sort and name.
pub(crate) fn container(trouble: &Trouble) -> String {
    let sort = if trouble.init {
        "init container"
    } else {
        "container"
    };
    match trouble.container.as_str() {
        "" => format!("a {sort}"),
        name => format!("{sort} {name}"),
    }
}
