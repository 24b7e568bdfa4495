//! How a pod is, at a certain time: what is wrong with it, since when it is lost, and what ended it.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::model::trouble::{Cause, Trouble, container};
use crate::model::view::{PodPhase, PodView};

/// A container that was restarted and has run for so long is not in a crash loop any more.
const SETTLED: SignedDuration = SignedDuration::from_secs(60);

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

/// Since when a pod is lost, if it is: its node doesn't answer, or it is long overdue.
pub fn lost_since(pod: &PodView, now: Timestamp) -> Option<Timestamp> {
    let trouble = pod.trouble.as_deref()?;
    if trouble.forced {
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
