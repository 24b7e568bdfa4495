//! What keeps pods from running or from going, in the words of the cluster, and what to do about it.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::notes::{Entry, Severity};
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

fn container(trouble: &Trouble) -> String {
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
        return match pod
            .starting
            .filter(|_| pod.phase == PodPhase::Pending && !pod.leaving)
        {
            Some(since) => Timestamp::from_second(since.into()).map_or(Finding::Nothing, |since| {
                after(since, Cause::PodNotStarting)
            }),
            None => Finding::Nothing,
        };
    };
    if trouble.cause == Some(Cause::NodeLost) {
        return Finding::Is(Cause::NodeLost);
    }
    if pod.leaving {
        return match trouble
            .gone_by
            .map(|by| after(by, Cause::PodStuckTerminating))
        {
            // The cluster took it off a node that doesn't carry that out.
            Some(Finding::Is(_)) if pod.disrupted && !pod.phase.has_ended() => {
                Finding::Is(Cause::NodeLost)
            }
            Some(finding) => finding,
            None => Finding::Nothing,
        };
    }
    match (trouble.cause, trouble.since) {
        _ if pod.phase.has_ended() => Finding::Nothing,
        (Some(cause), Some(since)) => after(since, cause),
        (Some(cause), None) => Finding::Is(cause),
        (None, Some(since)) => match since.checked_add(SETTLED) {
            Ok(at) if at > now => Finding::Recovering(at),
            Ok(_) | Err(_) => Finding::Nothing,
        },
        (None, None) => Finding::Nothing,
    }
}

/// Since when a pod is lost, if it is: its node doesn't answer, or it is long overdue and has not ended.
pub fn lost_since(pod: &PodView, now: Timestamp) -> Option<Timestamp> {
    let trouble = pod.trouble.as_deref()?;
    if trouble.forced || pod.phase.has_ended() {
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
    let silent = Trouble::default();
    let trouble = pod.trouble.as_deref().unwrap_or(&silent);
    let code = trouble.exit_code.or(pod.exit_code);
    let said = Some(trouble.message.trim()).filter(|m| !m.is_empty());
    // What the kubelet says of the whole pod says more than the signal that ended the container.
    let of_pod = of_pod(&trouble.reason);
    let what = match (of_pod, code) {
        (Some(meaning), _) => Some(meaning.to_owned()),
        (None, Some(code)) => Some(explain(code, &trouble.reason)),
        (None, None) => None,
    };
    let place = match (trouble.container.is_empty(), trouble.node.as_str()) {
        (true, "") => String::new(),
        (true, node) => format!(" (node {node})"),
        (false, "") => format!(" ({})", container(trouble)),
        (false, node) => format!(" ({} on node {node})", container(trouble)),
    };
    match (what, said) {
        (Some(what), Some(said)) if of_pod.is_some() => format!("{what}{place}: {said}"),
        (Some(what), Some(said)) => format!("{what}{place}; last words: {said}"),
        (Some(what), None) => format!("{what}{place}"),
        (None, Some(said)) => format!("{said}{place}"),
        (None, None) if pod.disrupted => {
            format!("the cluster took the pod away: preemption, eviction or a tainted node{place}")
        }
        (None, None) => format!("the pod failed without saying why{place}"),
    }
}

/// What the kubelet's word for a pod that it ended itself means. Source: the reasons of the kubelet of Kubernetes 1.37.
fn of_pod(reason: &str) -> Option<&'static str> {
    Some(match reason {
        "Evicted" => {
            "evicted, because the node ran out of something; ask for what the pod needs in resources.requests, or use less"
        }
        "DeadlineExceeded" => "ran longer than the activeDeadlineSeconds of the pod template",
        "NodeLost" => "given up, because its node was not heard of any more",
        "NodeShutdown" | "Terminated" => "ended, because its node was shut down",
        "OutOfcpu"
        | "OutOfmemory"
        | "OutOfpods"
        | "OutOfephemeral-storage"
        | "NodeAffinity"
        | "UnexpectedAdmissionError"
        | "Preempting" => "its node refused it",
        _ => return None,
    })
}

/// What an exit code usually means, and what to do.
pub fn explain(code: i32, reason: &str) -> String {
    let meaning = match (code, reason) {
        (_, "OOMKilled") => {
            "used more memory than its limit and was killed; raise the memory limit or use less"
        }
        (_, "StartError" | "ContainerCannotRun") => {
            "could not be started; check command, working directory and mounts"
        }
        (0, _) => "ended well, but another container of the pod did not",
        (1, _) => "the program reported an error; its log says which",
        (2, _) => "the program was called wrongly, or reported an error",
        (126, _) => "the command could not be executed",
        (127, _) => "the command was not found in the image",
        (134, _) => "aborted itself (SIGABRT)",
        (137, _) => {
            "was killed (SIGKILL), usually for using too much memory or at the end of its grace period"
        }
        (139, _) => "crashed on a bad memory access (SIGSEGV)",
        (143, _) => "was asked to stop (SIGTERM)",
        (129..=255, _) => {
            return match signal(code - 128) {
                Some(name) => format!("exit code {code}: ended by signal {} ({name})", code - 128),
                None => format!("exit code {code}: ended by signal {}", code - 128),
            };
        }
        _ => return format!("exit code {code}"),
    };
    format!("exit code {code}: {meaning}")
}

/// The names of signals that end programs. Source: signal(7) for x86-64 and arm64.
fn signal(number: i32) -> Option<&'static str> {
    Some(match number {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS, often too little /dev/shm",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        _ => return None,
    })
}
