//! What keeps pods from running or from going, in the words of the cluster, and what to do about it.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::restart::explain;
use crate::view::{PodPhase, PodView};

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
    /// Since when, by the clocks of the cluster.
    pub since: Option<Timestamp>,
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
    /// A container refers to a Secret, ConfigMap or setting that isn't there, or isn't allowed.
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
/// A container that was restarted and has run for so long is not in a crash loop any more.
const SETTLED: SignedDuration = SignedDuration::from_secs(60);

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
        match self {
            Self::NodeLost => "NodeLost",
            Self::PodStuckTerminating => "PodStuckTerminating",
            Self::InvalidImageName => "InvalidImageName",
            Self::ErrImageNeverPull => "ErrImageNeverPull",
            Self::ImagePullBackOff => "ImagePullBackOff",
            Self::CreateContainerConfigError => "CreateContainerConfigError",
            Self::CreateContainerError => "CreateContainerError",
            Self::RunContainerError => "RunContainerError",
            Self::CrashLoopBackOff => "CrashLoopBackOff",
            Self::ContainerWaiting => "ContainerWaiting",
            Self::PodNotStarting => "PodNotStarting",
            Self::Unschedulable => "Unschedulable",
            Self::SchedulingGated => "SchedulingGated",
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
            "ErrImagePull" | "ImagePullBackOff" | "ImageInspectError" | "RegistryUnavailable"
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
    fn patience(self) -> SignedDuration {
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
                format!("still on {node}, though due to be gone{}", since(trouble.gone_by))
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
                format!("waiting for volumes or network on its node{}", since(trouble.since))
            }
            Self::Unschedulable => "no node takes it".to_owned(),
            Self::SchedulingGated => "held back by scheduling gates".to_owned(),
        }
    }

    /// What to do. The same words stand in the catalogue of reasons.
    pub fn hint(self) -> &'static str {
        match self {
            Self::NodeLost => {
                "Bring the node back, delete its Node object, or taint it node.kubernetes.io/out-of-service; the job waits for that"
            }
            Self::PodStuckTerminating => {
                "Look at its node and at the pod's finalizers; the replacement comes when the pod is gone"
            }
            Self::InvalidImageName => "Correct the image in the template and submit the job again",
            Self::ErrImageNeverPull => {
                "Load the image onto the nodes, or set another imagePullPolicy and submit the job again"
            }
            Self::ImagePullBackOff => {
                "Check name and tag of the image, and imagePullSecrets for a private registry; the job goes on by itself once it can be pulled"
            }
            Self::CreateContainerConfigError => {
                "Create the ConfigMap, Secret or key that is named; the job goes on by itself. A setting that isn't allowed has to be changed in the template"
            }
            Self::CreateContainerError => {
                "Look at the node's container runtime, and at what the template asks for: names, mounts, devices"
            }
            Self::RunContainerError => {
                "Check command, working directory and mounts in the template, and submit the job again"
            }
            Self::CrashLoopBackOff => "Read the log of the container that ended: kubectl logs --previous",
            Self::ContainerWaiting => "kubectl describe pod says more",
            Self::PodNotStarting => {
                "kubectl describe pod names the volume, Secret, ConfigMap or network that is missing; the job goes on by itself once it is there"
            }
            Self::Unschedulable => {
                "Free or add what is lacking, or ask for less: resources, node selectors, affinity, tolerations; the job goes on by itself"
            }
            Self::SchedulingGated => "Whoever set the pod's schedulingGates has to remove them",
        }
    }
}

fn container(trouble: &Trouble) -> String {
    let sort = if trouble.init { "init container" } else { "container" };
    match trouble.container.as_str() {
        "" => format!("a {sort}"),
        name => format!("{sort} {name}"),
    }
}

/// What is wrong with a pod at a certain time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Nothing.
    Nothing,
    /// Nothing yet; look again then.
    Until(Timestamp),
    /// This.
    Is(Cause),
    /// A container was restarted and must prove itself until then: no reason to begin to say so, nor to stop.
    Recovering(Timestamp),
}

/// Looks at one pod.
pub fn find(pod: &PodView, now: Timestamp) -> Finding {
    let after = |since: Timestamp, cause: Cause| match since.checked_add(cause.patience()) {
        Ok(at) if at > now => Finding::Until(at),
        Ok(_) | Err(_) => Finding::Is(cause),
    };
    let Some(trouble) = pod.trouble.as_deref() else {
        return match pod.starting.filter(|_| pod.phase == PodPhase::Pending && !pod.leaving) {
            Some(since) => Timestamp::from_second(since.into())
                .map_or(Finding::Nothing, |since| after(since, Cause::PodNotStarting)),
            None => Finding::Nothing,
        };
    };
    if trouble.cause == Some(Cause::NodeLost) {
        return Finding::Is(Cause::NodeLost);
    }
    if pod.leaving {
        return match trouble.gone_by.map(|by| after(by, Cause::PodStuckTerminating)) {
            // The cluster took it off a node that doesn't carry that out.
            Some(Finding::Is(_)) if pod.disrupted && !ended(pod) => Finding::Is(Cause::NodeLost),
            Some(finding) => finding,
            None => Finding::Nothing,
        };
    }
    match (trouble.cause, trouble.since) {
        _ if ended(pod) => Finding::Nothing,
        (Some(cause), Some(since)) => after(since, cause),
        (Some(cause), None) => Finding::Is(cause),
        (None, Some(since)) => match since.checked_add(SETTLED) {
            Ok(at) if at > now => Finding::Recovering(at),
            Ok(_) | Err(_) => Finding::Nothing,
        },
        (None, None) => Finding::Nothing,
    }
}

fn ended(pod: &PodView) -> bool {
    matches!(pod.phase, PodPhase::Succeeded | PodPhase::Failed)
}

/// Since when a pod is lost, if it is: its node doesn't answer, or it is long overdue and has not ended.
pub fn lost_since(pod: &PodView, now: Timestamp) -> Option<Timestamp> {
    let trouble = pod.trouble.as_deref()?;
    if trouble.forced || ended(pod) {
        return None;
    }
    match find(pod, now) {
        Finding::Is(Cause::NodeLost) => trouble.since.or(trouble.gone_by),
        Finding::Is(Cause::PodStuckTerminating) => trouble.gone_by,
        Finding::Is(_) | Finding::Nothing | Finding::Until(_) | Finding::Recovering(_) => None,
    }
}

/// What ended a pod or a container of it, with its last words: place, code, meaning, what to do.
pub fn obituary(pod: &PodView) -> String {
    let none = Trouble::default();
    let trouble = pod.trouble.as_deref().unwrap_or(&none);
    let code = trouble.exit_code.or(pod.exit_code);
    let ended = match code {
        Some(code) => Some(explain(code, &trouble.reason)),
        None => of_pod(&trouble.reason).map(str::to_owned),
    };
    let said = Some(trouble.message.trim()).filter(|m| !m.is_empty());
    let what = match (ended, said) {
        (Some(e), Some(s)) if code.is_some() => format!("{e}; last words: {s}"),
        (Some(e), Some(s)) => format!("{e}; {s}"),
        (Some(e), None) => e,
        (None, Some(s)) => s.to_owned(),
        (None, None) if pod.disrupted => {
            "the cluster took the pod away: preemption, eviction or a tainted node".to_owned()
        }
        (None, None) => "the pod failed without saying why".to_owned(),
    };
    let at = match (trouble.container.is_empty(), trouble.node.as_str()) {
        (true, "") => String::new(),
        (true, node) => format!("on node {node}: "),
        (false, "") => format!("{}: ", container(trouble)),
        (false, node) => format!("{} on node {node}: ", container(trouble)),
    };
    format!("{at}{what}")
}

/// What the kubelet's word for a pod that it ended itself means. Source: the reasons of the kubelet of Kubernetes 1.37.
fn of_pod(reason: &str) -> Option<&'static str> {
    Some(match reason {
        "Evicted" => {
            "evicted, because the node ran out of something; ask for what the pod needs in resources.requests, or use less"
        }
        "DeadlineExceeded" => "ran longer than the activeDeadlineSeconds of the pod template",
        "NodeShutdown" | "Terminated" => "ended, because its node was shut down",
        "OutOfcpu" | "OutOfmemory" | "OutOfpods" | "OutOfephemeral-storage" | "NodeAffinity"
        | "UnexpectedAdmissionError" | "Preempting" => "its node refused it",
        _ => return None,
    })
}
