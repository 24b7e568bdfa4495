//! The closed catalogue of Trainyard's own event and condition reasons.

use crate::model::notes::{Entry, Severity};
use crate::model::trouble::Cause;
use crate::model::view::PodView;

/// Trainyard's own reasons, without those of [`Cause`]. Published reasons are built from the kind's name.
const CATALOGUE: &[Entry] = &[
    Entry {
        reason: "InvalidSpec",
        severity: Severity::Warning,
        meaning: "The spec can't run as it is written; the message names the field and what it accepts. A job that has not started fails. A job that runs goes on with condition Stalled.",
        hint: "Fix the field. A failed job stays failed: submit it again.",
    },
    Entry {
        reason: "NameConflict",
        severity: Severity::Warning,
        meaning: "An object with the name that a pod or service of the job needs belongs to somebody else; or it is the job's own and has lost the labels by which the operator sees it.",
        hint: "Remove or rename that object, put its labels back if it is the job's own, or submit the job under another name. The job goes on by itself then.",
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
        hint: "Raise the quota or wait for other work to end; the job goes on by itself.",
    },
    Entry {
        reason: "PodSecurityDenied",
        severity: Severity::Warning,
        meaning: "The namespace's Pod Security level refuses the job's pods; the message names the rule.",
        hint: "Set the securityContext that the rule asks for and submit again, or change the namespace's level.",
    },
    Entry {
        reason: "AdmissionDenied",
        severity: Severity::Warning,
        meaning: "A policy or webhook of the cluster refuses the job's pods or services; the message is the API server's.",
        hint: "Do what the message asks for and submit again, or have the policy changed; the job goes on by itself then.",
    },
    Entry {
        reason: "Forbidden",
        severity: Severity::Warning,
        meaning: "The operator may not do what the job needs; the message names the verb and the resource.",
        hint: "Apply the operator's current RBAC manifests; the job goes on by itself.",
    },
    Entry {
        reason: "GangWaiting",
        severity: Severity::Warning,
        meaning: "The pods of the job are to start together, and their scheduler has not let them, or the group of the job's former run is not gone yet; the message carries its words.",
        hint: "Wait for other work to end, or lower runPolicy.schedulingPolicy.minAvailable or minResources. kubectl describe podgroup tells more. The job goes on by itself.",
    },
    Entry {
        reason: "GangInvalid",
        severity: Severity::Warning,
        meaning: "The pods of the job can't be scheduled together as the job asks for it, or the API server rejects the object that stands for them; the message names the field.",
        hint: "Correct runPolicy.schedulingPolicy, or submit the job again with templates that agree; the job goes on by itself where that is enough.",
    },
    Entry {
        reason: "SchedulerMissing",
        severity: Severity::Warning,
        meaning: "The operator is set to a gang scheduler whose API the cluster does not serve, or it can't be asked whether it does; the message names it. No pods are made without their group.",
        hint: "Install the scheduler, or switch its API on, and the job goes on by itself; or start the operator with another --gang, and suspend and resume the job.",
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
        meaning: "A pod on a lost node was deleted by force, because the operator is set to do so after a time (--force-delete-lost-after).",
        hint: "Make sure that the node is off: if it still runs, so do the pod's processes, beside their replacement.",
    },
    Entry {
        reason: "BackoffLimitExceeded",
        severity: Severity::Warning,
        meaning: "The job was restarted as often as its backoff limit allows.",
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
        meaning: "The job sets something that runs but can get in its way; the message names it.",
        hint: "Remove it unless you need it.",
    },
    Entry {
        reason: "SettingIgnored",
        severity: Severity::Warning,
        meaning: "The job asks for something that this operator does not do, or not in its present configuration.",
        hint: "The message names the field and the way to get what it asks for.",
    },
    Entry {
        reason: "ChangeRefused",
        severity: Severity::Warning,
        meaning: "The API server refuses a change of an object of the job that is there; the message is its own. The job goes on with the object as it is.",
        hint: "Do what the message asks for: a ConfigMap that lists too many hosts needs fewer workers.",
    },
    Entry {
        reason: "HostsNotAnswering",
        severity: Severity::Warning,
        meaning: "The launcher of an MPIJob has begun without some of its hosts, after it had waited for them; the message names them, and whether their names don't resolve or no SSH server answers there.",
        hint: "Look at the logs of those workers: is sshd started, and at which port? The annotation trainyard.dev/ssh-port says another one, trainyard.dev/launcher-gate: \"false\" leaves the waiting out.",
    },
    Entry {
        reason: "WorkerExited",
        severity: Severity::Warning,
        meaning: "Workers of an MPIJob ended with exit code 0 while its launcher had not ended. The launcher needs its hosts, so they are created again, at growing intervals.",
        hint: "Let the workers' command run until they are deleted, for instance sshd -D.",
    },
    Entry {
        reason: "LauncherPodMissing",
        severity: Severity::Warning,
        meaning: "The launcher's Job of an MPIJob has made no pod for 30 s; before a retry, for 30 s more than the controller of Jobs waits by itself. That controller makes the pod, and says on the Job why it can't.",
        hint: "See what kubectl describe job says: a quota, the Pod Security level or a policy refuses the pod, as a rule. The job goes on by itself.",
    },
    Entry {
        reason: "LauncherGone",
        severity: Severity::Warning,
        meaning: "Kubernetes removed the launcher's Job of an MPIJob at the end of its time to live while no operator was there to see how it ended. The program is not run again.",
        hint: "Look for the program's results. Raise runPolicy.ttlSecondsAfterFinished, so that it outlasts a restart of the operator.",
    },
    Entry {
        reason: "DriverNameTaken",
        severity: Severity::Warning,
        meaning: "Another pod has the name of the application's driver pod.",
        hint: "Remove that pod, or set spec.driver.podName to a free name; the application starts by itself then.",
    },
    Entry {
        reason: "SubmissionRefused",
        severity: Severity::Warning,
        meaning: "The API server refuses the application's driver, or an object that the driver needs; the message is the API server's.",
        hint: "Do what the message asks for. What may pass, such as a quota, is retried until it does; other refusals as often as onSubmissionFailureRetries allows.",
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
