//! The closed catalogue of Trainyard's own event and condition reasons.

use crate::model::notes::{Entry, Severity};
use crate::model::trouble::Cause;
use crate::model::view::PodView;

/// Trainyard's own reasons, without those of [`Cause`]. Published reasons are built from the kind's name.
const CATALOGUE: &[Entry] = &[
    Entry {
        reason: "InvalidSpec",
        severity: Severity::Warning,
        meaning: "The spec can't run as it is written; the message names the field and what it accepts. A job that has not started fails. A running job continues with the condition Stalled.",
        hint: "Fix the field. A failed job stays failed: submit it again.",
    },
    Entry {
        reason: "NameConflict",
        severity: Severity::Warning,
        meaning: "An object with the name that a pod or service of the job needs belongs to another owner; or it is the job's own, but lacks the labels by which the operator selects it.",
        hint: "Remove or rename that object, put its labels back if it is the job's own, or submit the job under another name. The job then continues automatically.",
    },
    Entry {
        reason: "AutoscalerInvalid",
        severity: Severity::Warning,
        meaning: "The API server rejects the HorizontalPodAutoscaler that spec.elasticPolicy.metrics asks for; the message names the field. The job trains without it.",
        hint: "Correct spec.elasticPolicy.metrics of the running job, or remove it.",
    },
    Entry {
        reason: "QuotaExceeded",
        severity: Severity::Warning,
        meaning: "A resource quota of the namespace refuses the job's pods or services; the message is the API server's.",
        hint: "Raise the quota, or wait until other workloads end; the job then continues automatically.",
    },
    Entry {
        reason: "PodSecurityDenied",
        severity: Severity::Warning,
        meaning: "The namespace's Pod Security level refuses the job's pods; the message names the rule.",
        hint: "Set the securityContext that the rule requires and submit the job again, or change the namespace's level.",
    },
    Entry {
        reason: "AdmissionDenied",
        severity: Severity::Warning,
        meaning: "A policy or webhook of the cluster rejects the job's pods or services; the message is the API server's.",
        hint: "Follow the message and submit the job again, or have the policy changed; the job then continues automatically.",
    },
    Entry {
        reason: "Forbidden",
        severity: Severity::Warning,
        meaning: "The operator lacks a permission that the job needs; the message names the verb and the resource.",
        hint: "Apply the operator's current RBAC manifests; the job then continues automatically.",
    },
    Entry {
        reason: "GangWaiting",
        severity: Severity::Warning,
        meaning: "The scheduler has not admitted the job's gang, or the group of the job's former run still exists; the message says which.",
        hint: "Wait until other workloads end, or lower runPolicy.schedulingPolicy.minAvailable or minResources. For details, run kubectl describe podgroup. The job continues automatically.",
    },
    Entry {
        reason: "GangInvalid",
        severity: Severity::Warning,
        meaning: "The job's gang can't be scheduled as requested, or the API server rejects its group object; the message names the field.",
        hint: "Correct runPolicy.schedulingPolicy, and the job continues automatically; or submit the job again with templates that agree.",
    },
    Entry {
        reason: "SchedulerMissing",
        severity: Severity::Warning,
        meaning: "The cluster does not serve the API of the operator's gang scheduler, or does not answer whether it does; the message names the API. No pods are created without their group.",
        hint: "Install the scheduler or enable its API, and the job continues automatically; or start the operator with another --gang, and suspend and resume the job.",
    },
    Entry {
        reason: "PodFailed",
        severity: Severity::Warning,
        meaning: "A pod failed; the message explains its exit code and carries its last lines.",
        hint: "Read the pod's log. Exit code 137 means killed, usually for using more memory than its limit.",
    },
    Entry {
        reason: "ContainerRestarted",
        severity: Severity::Warning,
        meaning: "The kubelet restarted a container in its pod; the message explains how it had ended and carries its last lines.",
        hint: "Read the log of the container that ended: kubectl logs --previous. These restarts count against runPolicy.backoffLimit.",
    },
    Entry {
        reason: "LostPodDeleted",
        severity: Severity::Warning,
        meaning: "The operator force-deleted a pod on a lost node, because it runs with --force-delete-lost-after.",
        hint: "Make sure that the node is off: while it runs, the pod's processes may run too, beside their replacements.",
    },
    Entry {
        reason: "BackoffLimitExceeded",
        severity: Severity::Warning,
        meaning: "The job has been restarted as often as its backoff limit allows.",
        hint: "Read the failing replica's log, or raise runPolicy.backoffLimit and submit again.",
    },
    Entry {
        reason: "DeadlineExceeded",
        severity: Severity::Warning,
        meaning: "The job ran longer than runPolicy.activeDeadlineSeconds.",
        hint: "Raise runPolicy.activeDeadlineSeconds and submit again.",
    },
    Entry {
        reason: "PodsStillRunning",
        severity: Severity::Warning,
        meaning: "The job has ended but its clean-up policy is None, so its pods still run and hold their resources.",
        hint: "Set runPolicy.cleanPodPolicy to Running or All, or delete the job. The operator's flag --clean-failed-jobs does it for all failed jobs.",
    },
    Entry {
        reason: "EnvReplaced",
        severity: Severity::Warning,
        meaning: "The pod template sets a variable that the rendezvous needs; the operator's value replaced it.",
        hint: "Remove the variable from the template.",
    },
    Entry {
        reason: "EditNotApplied",
        severity: Severity::Warning,
        meaning: "The job was edited in a way that its existing pods can't follow. Only new pods do.",
        hint: "Restart the job to recreate its pods: kubectl trainyard restart. Or submit a new one.",
    },
    Entry {
        reason: "NeverEnds",
        severity: Severity::Warning,
        meaning: "The role that decides when the job ends has no replicas; the message names it. The existing pods run on.",
        hint: "Raise the replicas of that role, or leave it out where another one may decide. Or delete the job when it is no longer needed.",
    },
    Entry {
        reason: "RiskySetting",
        severity: Severity::Warning,
        meaning: "The job has a setting that works but can cause problems; the message names it.",
        hint: "Remove it unless you need it.",
    },
    Entry {
        reason: "SettingIgnored",
        severity: Severity::Warning,
        meaning: "The job requests something that this operator does not support, or not in its current configuration.",
        hint: "The message names the field and the alternative.",
    },
    Entry {
        reason: "ChangeRefused",
        severity: Severity::Warning,
        meaning: "The API server rejects an update of one of the job's objects; the message is the API server's. The job continues with the unchanged object.",
        hint: "Follow the message: a ConfigMap that lists too many hosts needs fewer workers.",
    },
    Entry {
        reason: "HostsNotAnswering",
        severity: Severity::Warning,
        meaning: "The launcher of an MPIJob has started without some of its hosts, after waiting for them; the message names them, and says whether their names don't resolve or no SSH server answers.",
        hint: "Check the logs of those workers: does sshd run, and on which port? Set another port with the annotation trainyard.dev/ssh-port, or turn off the waiting with trainyard.dev/launcher-gate: \"false\".",
    },
    Entry {
        reason: "WorkerExited",
        severity: Severity::Warning,
        meaning: "Workers of an MPIJob exited with code 0 before its launcher finished. The launcher needs its hosts, so the operator recreates them, at growing intervals.",
        hint: "Let the workers' command run until they are deleted, for instance sshd -D.",
    },
    Entry {
        reason: "LauncherPodMissing",
        severity: Severity::Warning,
        meaning: "The launcher's Job of an MPIJob has created no pod for 30 s; before a retry, for 30 s more than the Job controller's own backoff. The Job controller creates the pod, and reports on the Job why it can't.",
        hint: "Run kubectl describe job: usually a quota, the Pod Security level or a policy rejects the pod. The job continues automatically.",
    },
    Entry {
        reason: "LauncherGone",
        severity: Severity::Warning,
        meaning: "Kubernetes removed the launcher's Job of an MPIJob at the end of its time to live while no operator ran, so its result is unknown. The program does not run again.",
        hint: "Look for the program's results. Raise runPolicy.ttlSecondsAfterFinished, so that it outlasts a restart of the operator.",
    },
    Entry {
        reason: "DriverNameTaken",
        severity: Severity::Warning,
        meaning: "Another pod has the name of the application's driver pod.",
        hint: "Remove that pod, or set spec.driver.podName to a free name; the application then starts automatically.",
    },
    Entry {
        reason: "SubmissionRefused",
        severity: Severity::Warning,
        meaning: "The API server rejects the application's driver, or an object that the driver needs; the message is the API server's.",
        hint: "Follow the message. Temporary rejections, for instance by a quota, are retried until they pass; others as often as onSubmissionFailureRetries allows.",
    },
    Entry {
        reason: "InternalError",
        severity: Severity::Warning,
        meaning: "A defect of the operator, not of the job. Other jobs are not affected.",
        hint: "Report it with the operator's log.",
    },
];

/// All of Trainyard's own reasons: the catalogue and the causes.
pub fn catalogue() -> impl Iterator<Item = Entry> {
    CATALOGUE
        .iter()
        .copied()
        .chain(Cause::ALL.map(Cause::entry))
}

/// Why a job waits: a reason of the [`catalogue`], or another one. A byte, because every job in memory has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaitingReason(u8);

impl WaitingReason {
    /// Finds a reason by its name.
    pub fn find(name: &str) -> Self {
        let found = catalogue().position(|entry| entry.reason == name);
        Self(found.and_then(|at| at.try_into().ok()).unwrap_or(u8::MAX))
    }

    /// Its name; `Other` if it is not in the catalogue.
    pub fn as_str(self) -> &'static str {
        let entry = catalogue().nth(self.0.into());
        entry.map_or(OTHER, |entry| entry.reason)
    }
}

/// The name of reasons that are not known.
const OTHER: &str = "Other";

/// Why a pod failed or a job was restarted, from a fixed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FailureReason(&'static str);

impl FailureReason {
    /// No failure: the user requested a restart.
    pub const REQUESTED: Self = Self("Requested");
    /// The cluster took the pod away: preemption, an eviction through the API, a taint.
    pub const DISRUPTED: Self = Self("Disrupted");
    /// The container exited with an error.
    pub const ERROR: Self = Self("Error");
    /// The API server refused the driver of a Spark application.
    pub const SUBMISSION_FAILED: Self = Self("SubmissionFailed");
    /// A reason that is not known.
    pub const OTHER: Self = Self(OTHER);

    /// Every reason: first those of the kubelet and the container runtimes, then Trainyard's.
    pub const ALL: [Self; 18] = [
        Self("OOMKilled"),
        Self("Evicted"),
        Self("NodeLost"),
        Self("NodeShutdown"),
        Self("Terminated"),
        Self("DeadlineExceeded"),
        Self("Preempting"),
        Self("UnexpectedAdmissionError"),
        Self("OutOfcpu"),
        Self("OutOfmemory"),
        Self("StartError"),
        Self("ContainerCannotRun"),
        Self("ContainerStatusUnknown"),
        Self::ERROR,
        Self::DISRUPTED,
        Self::REQUESTED,
        Self::SUBMISSION_FAILED,
        Self::OTHER,
    ];

    /// Finds a reason by its name.
    pub fn find(name: &str) -> Self {
        let known = Self::ALL.into_iter().find(|known| known.0 == name);
        known.unwrap_or(Self::OTHER)
    }

    /// Returns why a pod failed.
    pub fn of(pod: &PodView) -> Self {
        let trouble = pod.trouble.as_deref();
        let exit_code = trouble.and_then(|t| t.exit_code).or(pod.exit_code);
        let reason = trouble.map_or("", |t| &t.reason);
        Self::from_end(reason, exit_code, pod.disrupted)
    }

    /// A reason of the kubelet says more than a disruption, and a disruption more than the exit code that it causes.
    fn from_end(reason: &str, exit_code: Option<i32>, disrupted: bool) -> Self {
        match Self::find(reason) {
            Self::ERROR | Self::OTHER if disrupted => Self::DISRUPTED,
            Self::OTHER if reason.is_empty() && exit_code.is_some() => Self::ERROR,
            reason => reason,
        }
    }

    /// Its name.
    pub fn as_str(self) -> &'static str {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_of_the_catalogue_has_a_byte_of_its_own() {
        for entry in catalogue() {
            assert_eq!(WaitingReason::find(entry.reason).as_str(), entry.reason);
        }
        assert!(catalogue().count() < usize::from(u8::MAX));
    }

    #[test]
    fn failed_pods_have_a_reason_from_a_fixed_set() {
        for (reason, code, disrupted, shown) in [
            ("OOMKilled", Some(137), false, "OOMKilled"),
            ("Error", Some(1), false, "Error"),
            ("", Some(1), false, "Error"),
            ("Error", Some(143), true, "Disrupted"),
            ("", None, true, "Disrupted"),
            ("Evicted", Some(137), true, "Evicted"),
            ("NodeLost", None, true, "NodeLost"),
            ("BlueMoon", Some(3), false, "Other"),
            ("", None, false, "Other"),
        ] {
            let reason_of = FailureReason::from_end(reason, code, disrupted);
            assert_eq!(reason_of.as_str(), shown, "{reason} {code:?}");
        }
    }
}
