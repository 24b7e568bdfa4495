//! The phase of a job's life cycle, as its status gives it.

use k8s_openapi::jiff::Timestamp;
use training_api::condition::holds;
use training_api::{ConditionType, JobCondition, JobStatus};

use crate::model::reasons::WaitingReason;

/// The phase of a job's life cycle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// No operator has written a status.
    #[default]
    NoStatus,
    /// Its pods are created, and don't all run yet.
    Starting,
    /// It runs.
    Running,
    /// It is restarted after a failure or a request.
    Restarting,
    /// It waits: the condition `Stalled`, or an error of a Spark kind.
    Waiting(WaitingReason),
    /// It is suspended.
    Suspended,
    /// It succeeded.
    Succeeded,
    /// It failed.
    Failed,
}

impl Phase {
    /// The phase as a label of metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoStatus => "no_status",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Restarting => "restarting",
            Self::Waiting(_) => "waiting",
            Self::Suspended => "suspended",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
        }
    }

    /// True for `Succeeded` and `Failed`.
    pub fn is_finished(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }

    /// True while it starts, runs or restarts.
    pub fn is_active(self) -> bool {
        matches!(self, Self::Starting | Self::Running | Self::Restarting)
    }

    /// Returns the phase and the condition that determines it: the first one that is true. `None` without conditions.
    pub fn of_conditions(conditions: &[JobCondition]) -> Option<(Self, &JobCondition)> {
        use ConditionType::{Created, Failed, Restarting, Running, Stalled, Succeeded, Suspended};
        let order = [
            Succeeded, Failed, Suspended, Stalled, Restarting, Running, Created,
        ];
        let held = |type_| conditions.iter().find(|c| c.holds(type_));
        let (type_, condition) = order.into_iter().find_map(|t| Some((t, held(t)?)))?;
        let phase = match type_ {
            Succeeded => Self::Succeeded,
            Failed => Self::Failed,
            Suspended => Self::Suspended,
            Stalled => {
                let reason = condition.reason.as_deref().unwrap_or_default();
                Self::Waiting(WaitingReason::find(reason))
            }
            Restarting => Self::Restarting,
            Running => Self::Running,
            Created => Self::Starting,
        };
        Some((phase, condition))
    }
}

/// What a status says about the progress of an object, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The phase.
    pub phase: Phase,
    /// The present run has reached the phase `Running`.
    pub has_run: bool,
    /// When the present run started.
    pub started: Option<Timestamp>,
    /// When the object ended.
    pub ended: Option<Timestamp>,
}

impl Progress {
    /// Reads the status of a job of replicas.
    pub fn of_job(status: &JobStatus) -> Self {
        let conditions = &status.conditions;
        let phase = Phase::of_conditions(conditions).map_or(Phase::NoStatus, |(phase, _)| phase);
        let ran = [ConditionType::Running, ConditionType::Restarting];
        Self {
            phase,
            has_run: ran.into_iter().any(|type_| holds(conditions, type_)),
            started: status.start_time.as_ref().map(|t| t.0),
            ended: status.completion_time.as_ref().map(|t| t.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn conditions(set: &[(ConditionType, bool, &str)]) -> Vec<JobCondition> {
        let each = set.iter().map(|(type_, holds, reason)| JobCondition {
            type_: type_.as_str().to_owned(),
            status: if *holds { "True" } else { "False" }.to_owned(),
            reason: Some((*reason).to_owned()),
            ..JobCondition::default()
        });
        each.collect()
    }

    #[test]
    fn the_first_true_condition_determines_the_phase() {
        use ConditionType::{Created, Failed, Restarting, Running, Stalled, Succeeded, Suspended};
        let of = |set: &[(ConditionType, bool, &str)]| {
            let list = conditions(set);
            Phase::of_conditions(&list).map(|(phase, c)| (phase.as_str(), c.type_.clone()))
        };
        let created = (Created, true, "");
        for (set, phase, type_) in [
            (vec![created], "starting", Created),
            (vec![created, (Running, true, "")], "running", Running),
            (vec![created, (Running, false, "")], "starting", Created),
            (
                vec![(Running, true, ""), (Stalled, true, "NodeLost")],
                "waiting",
                Stalled,
            ),
            (
                vec![created, (Restarting, true, "")],
                "restarting",
                Restarting,
            ),
            (
                vec![(Suspended, true, ""), (Stalled, true, "x")],
                "suspended",
                Suspended,
            ),
            (
                vec![(Stalled, true, "x"), (Failed, true, "")],
                "failed",
                Failed,
            ),
            (
                vec![(Running, false, ""), (Succeeded, true, "")],
                "succeeded",
                Succeeded,
            ),
        ] {
            assert_eq!(
                of(&set),
                Some((phase, type_.as_str().to_owned())),
                "{set:?}"
            );
        }
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[(Created, false, "")]), None);
    }

    #[test]
    fn a_stalled_job_waits_for_a_reason_of_the_catalogue_or_another() {
        let of = |reason| {
            let list = conditions(&[(ConditionType::Stalled, true, reason)]);
            match Phase::of_conditions(&list).unwrap().0 {
                Phase::Waiting(reason) => reason.as_str(),
                other => other.as_str(),
            }
        };
        let reasons = [
            "NodeLost",
            "QuotaExceeded",
            "Unschedulable",
            "Elsewhere",
            "",
        ];
        let shown = [
            "NodeLost",
            "QuotaExceeded",
            "Unschedulable",
            "Other",
            "Other",
        ];
        assert_eq!(reasons.map(of), shown);
    }

    #[test]
    fn progress_is_read_from_a_status() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut status = JobStatus {
            conditions: conditions(&[(ConditionType::Created, true, "")]),
            start_time: Some(Time(at(5))),
            ..JobStatus::default()
        };
        let mut expected = Progress {
            phase: Phase::Starting,
            started: Some(at(5)),
            ..Progress::default()
        };
        assert_eq!(Progress::of_job(&status), expected);
        status.conditions = conditions(&[(ConditionType::Restarting, true, "")]);
        expected.phase = Phase::Restarting;
        expected.has_run = true;
        assert_eq!(Progress::of_job(&status), expected);
        assert_eq!(Progress::of_job(&JobStatus::default()), Progress::default());
    }
}
