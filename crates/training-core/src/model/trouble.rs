//! Why pods don't run or don't terminate, in the cluster's words, and what to do about it.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::model::notes::{Entry, Severity};

/// The problem of a pod. A healthy pod has none, so it takes no extra memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trouble {
    /// The reason from the cluster: `OOMKilled`, `Error`, `Evicted`, `ErrImagePull`, `Unschedulable`.
    pub reason: String,
    /// The message, truncated and cleaned.
    pub message: String,
    /// The container concerned; empty for the pod itself.
    pub container: String,
    /// The container is an init container.
    pub init: bool,
    /// The container's exit code, if it ended.
    pub exit_code: Option<i32>,
    /// The pod's node; empty if not scheduled.
    pub node: String,
    /// Why the pod doesn't run. `None` for a pod that failed or whose container restarted in place.
    pub cause: Option<Cause>,
    /// Since when, by the cluster's clocks. For a failed pod, when it ended.
    pub since: Option<Timestamp>,
    /// When the container started that ended or is about to be stopped.
    pub ran_since: Option<Timestamp>,
    /// The deletion timestamp, which includes the grace period.
    pub gone_by: Option<Timestamp>,
    /// The pod is being deleted without a grace period, so forcing it again has no effect.
    pub forced: bool,
}

/// Why a pod doesn't run or doesn't terminate, in order of precedence in a job's condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// Its node doesn't respond.
    NodeLost,
    /// It is overdue for deletion.
    PodStuckTerminating,
    /// The image name is invalid.
    InvalidImageName,
    /// The image is not on the node and must not be pulled.
    ErrImageNeverPull,
    /// The image can't be pulled.
    ImagePullBackOff,
    /// A container refers to an object or setting that is missing or not allowed.
    CreateContainerConfigError,
    /// The container runtime can't create a container.
    CreateContainerError,
    /// A container can't be started, usually because of a wrong command.
    RunContainerError,
    /// A container fails repeatedly, with increasing backoff.
    CrashLoopBackOff,
    /// A container waits for a reason that Trainyard doesn't know.
    ContainerWaiting,
    /// It has a node, but its volumes or network are not ready.
    PodNotStarting,
    /// No node fits.
    Unschedulable,
    /// Scheduling gates hold it back.
    SchedulingGated,
}

/// Scheduling takes a moment in every job, so it is a problem only if it lasts.
const PATIENCE_SCHEDULING: SignedDuration = SignedDuration::from_secs(10);
/// Attaching volumes and setting up the network takes seconds; a cloud volume may take a minute.
const PATIENCE_STARTING: SignedDuration = SignedDuration::from_secs(120);
/// The time that a kubelet may take beyond the grace period.
const PATIENCE_GOING: SignedDuration = SignedDuration::from_secs(30);

impl Cause {
    /// All causes.
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

    /// The reason of the condition and event.
    pub fn reason(self) -> &'static str {
        self.entry().reason
    }

    /// What to do about it.
    pub fn hint(self) -> &'static str {
        self.entry().hint
    }

    /// Its entry in the catalogue of reasons.
    pub fn entry(self) -> Entry {
        let (reason, meaning, hint) = match self {
            Self::NodeLost => (
                "NodeLost",
                "The node of a pod no longer reports its status; the message names the node and the time. The pod's processes may still run.",
                "Bring the node back, delete its Node object, or taint it node.kubernetes.io/out-of-service; the job waits until then",
            ),
            Self::PodStuckTerminating => (
                "PodStuckTerminating",
                "A pod still exists 30 s after its grace period. Its replacement can't be created before it is gone.",
                "Check its node and the pod's finalizers; the replacement is created when the pod is gone",
            ),
            Self::InvalidImageName => (
                "InvalidImageName",
                "The kubelet can't read the name of a container's image.",
                "Correct the image in the template, apply the job and restart it",
            ),
            Self::ErrImageNeverPull => (
                "ErrImageNeverPull",
                "The image is not on the node, and imagePullPolicy is Never.",
                "Load the image onto the nodes, or set another imagePullPolicy, apply the job and restart it",
            ),
            Self::ImagePullBackOff => (
                "ImagePullBackOff",
                "A container's image can't be pulled, or not at present; the message is the registry's. This includes ErrImagePull.",
                "Check the image's name and tag, and imagePullSecrets for a private registry; the job continues automatically once the image can be pulled",
            ),
            Self::CreateContainerConfigError => (
                "CreateContainerConfigError",
                "A container refers to a missing ConfigMap, Secret or key, or requests a setting that is not allowed.",
                "Create the named ConfigMap, Secret or key, and the job continues automatically; a setting that isn't allowed must be changed in the template",
            ),
            Self::CreateContainerError => (
                "CreateContainerError",
                "The node's container runtime can't create a container.",
                "Check what the template requests, such as mounts and devices, and the node's container runtime",
            ),
            Self::RunContainerError => (
                "RunContainerError",
                "A container was created but can't be started, usually because the image doesn't have its command.",
                "Check command, working directory and mounts in the template, apply the job and restart it",
            ),
            Self::CrashLoopBackOff => (
                "CrashLoopBackOff",
                "A container fails repeatedly; the kubelet waits longer each time before it restarts the container. The problem counts as solved when the container has run for a minute.",
                "Read the log of the container that ended: kubectl logs --previous",
            ),
            Self::ContainerWaiting => (
                "ContainerWaiting",
                "A container doesn't start, for a reason that the operator doesn't know; the message names it.",
                "Run kubectl describe pod",
            ),
            Self::PodNotStarting => (
                "PodNotStarting",
                "A pod has had a node for two minutes, but its volumes or its network are not ready: a mounted Secret or ConfigMap is missing, a volume can't be attached, or there is no free address.",
                "Run kubectl describe pod to see what is missing; the job continues automatically once it is available",
            ),
            Self::Unschedulable => (
                "Unschedulable",
                "A pod has been unschedulable for ten seconds; the message is the scheduler's.",
                "Add the missing resources, and the job continues automatically; or request less (resources, node selectors, affinity, tolerations), apply the job and restart it",
            ),
            Self::SchedulingGated => (
                "SchedulingGated",
                "Scheduling gates have held a pod back for ten seconds.",
                "Whoever set the pod's schedulingGates must remove them; a queueing system does so when it admits the job",
            ),
        };
        Entry {
            reason,
            severity: Severity::Warning,
            meaning,
            hint,
        }
    }

    /// Maps the kubelet's reason for a waiting container to a cause; `None` for the normal steps of a start.
    ///
    /// Reasons that alternate map to the same cause, so that the job's status doesn't change with them.
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

    /// How long the problem may last before the job reports it, counted from [`Trouble::since`].
    pub(crate) fn delay(self) -> SignedDuration {
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

    /// Describes the problem. The text follows the pod's name.
    pub fn describe(self, trouble: &Trouble) -> String {
        let container = container(trouble);
        let since = |at: Option<Timestamp>| at.map(|t| format!(" since {t}")).unwrap_or_default();
        let node = if trouble.node.is_empty() {
            "its node".to_owned()
        } else {
            format!("node {}", trouble.node)
        };
        match self {
            Self::NodeLost => format!("{node} hasn't reported{}", since(trouble.since)),
            Self::PodStuckTerminating => {
                let ended = trouble
                    .gone_by
                    .map(|t| format!(", though its grace period ended at {t}"));
                format!("still exists on {node}{}", ended.unwrap_or_default())
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
            Self::CrashLoopBackOff => format!("{container} fails repeatedly"),
            Self::ContainerWaiting => format!("{container} waits ({})", trouble.reason),
            Self::PodNotStarting => {
                format!(
                    "waiting for volumes or network on its node{}",
                    since(trouble.since)
                )
            }
            Self::Unschedulable => "no node fits it".to_owned(),
            Self::SchedulingGated => "held back by scheduling gates".to_owned(),
        }
    }
}

/// The container concerned, by type and name.
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
