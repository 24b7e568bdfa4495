//! The health of a pod at a given time: what is wrong with it, since when it is lost, and why it ended.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::model::trouble::{Cause, Trouble, container};
use crate::model::view::PodView;

/// A restarted container that has run for this long is no longer in a crash loop.
const SETTLED: SignedDuration = SignedDuration::from_secs(60);

/// The problem of a pod at a given time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Nothing.
    Nothing,
    /// Nothing yet. Check again at this time.
    Until(Timestamp),
    /// A problem with this cause.
    Is(Cause),
    /// A container restarted and counts as recovering until this time. Neither set nor clear the condition for it.
    Recovering(Timestamp),
}

/// Checks one pod.
pub fn find(pod: &PodView, now: Timestamp) -> Finding {
    let after = |since: Timestamp, cause: Cause| match since.checked_add(cause.delay()) {
        Ok(at) if at > now => Finding::Until(at),
        Ok(_) | Err(_) => Finding::Is(cause),
    };
    let Some(trouble) = pod.trouble.as_deref() else {
        let starts = pod.starts_since().filter(|_| !pod.terminating);
        return starts.map_or(Finding::Nothing, |since| {
            after(since, Cause::PodNotStarting)
        });
    };
    if trouble.cause == Some(Cause::NodeLost) {
        return Finding::Is(Cause::NodeLost);
    }
    if pod.terminating {
        return match trouble
            .gone_by
            .map(|by| after(by, Cause::PodStuckTerminating))
        {
            // The cluster evicted the pod, but its node doesn't carry out the deletion.
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

/// Returns since when a pod is lost: its node doesn't respond, or its deletion is long overdue.
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

/// Explains why a pod or one of its containers ended: container and node, exit code, its meaning, the termination message.
pub fn explain_failure(pod: &PodView) -> String {
    let silent = Trouble::default();
    let trouble = pod.trouble.as_deref().unwrap_or(&silent);
    let code = trouble.exit_code.or(pod.exit_code);
    let said = Some(trouble.message.trim()).filter(|m| !m.is_empty());
    // The kubelet's reason for the whole pod says more than the signal that ended the container.
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

/// Returns true if the kubelet ended the whole pod: its reason and message say more than the container's.
pub fn is_of_pod(trouble: &Trouble) -> bool {
    of_pod(&trouble.reason).is_some()
}

/// Explains the kubelet's reason for ending a pod. Source: the reasons of the kubelet of Kubernetes 1.37.
fn of_pod(reason: &str) -> Option<&'static str> {
    Some(match reason {
        "Evicted" => {
            "evicted, because the node ran out of something; ask for what the pod needs in resources.requests, or use less"
        }
        "DeadlineExceeded" => "ran longer than the activeDeadlineSeconds of the pod template",
        "NodeLost" => "given up, because its node no longer reported",
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

/// Explains what an exit code usually means, and what to do.
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
