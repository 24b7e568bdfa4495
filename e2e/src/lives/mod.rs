//! Lives of jobs that end the same way however often the operator dies meanwhile.
//!
//! The kubelet does each step only when the job's stored status shows the step before. So what an
//! operator never saw because it was dead is the same as what it saw late, and two runs of a life
//! can be compared object by object.

mod actor;
mod mpi;
mod spark;
mod story;

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail};
use serde_json::Value;
use training_testkit::builders::{Job, Kind, MPI, PYTORCH, SPARK};
use training_testkit::job::is_finished;
use training_testkit::proxy::{Action, Call, Gate, Rule};

pub use actor::{Actor, Happenings};
pub use mpi::MpiLife;
pub use spark::SparkLife;

/// What is left of a finished job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CleanPods {
    /// Everything.
    None,
    /// What has ended.
    Running,
    /// Nothing.
    All,
}

/// When the user deletes the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// While one of its pods is still to be made.
    Creating,
    /// While all of its pods run.
    Running,
    /// While one of its pods is still to be cleaned up.
    Finishing,
}

/// How the user deletes the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// The job first, then what it owns.
    Background,
    /// What it owns first.
    Foreground,
    /// Only the job.
    Orphan,
}

/// What happens to a job. Most have one master and two workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// S-01: the master succeeds while the workers run, and the policy says what goes.
    Succeeds(CleanPods),
    /// S-02: a worker exits with 137 and is replaced, then all succeed.
    RetryableExit,
    /// S-03: a worker fails as often as it may, and once more; what runs goes.
    BackoffLimit,
    /// S-04: a worker exits with 1, which is for good.
    PermanentExit,
    /// S-05: the deadline passes while all run; those go.
    Deadline,
    /// S-06: the job is deleted so many seconds after its success.
    TimeToLive(u32),
    /// S-07: suspended while all run, resumed, succeeds.
    Suspended,
    /// S-07: created suspended, resumed, succeeds.
    BornSuspended,
    /// S-08: an elastic job of two workers gets four, then one, which succeeds.
    Elastic,
    /// S-10: the user deletes it.
    Deleted(Moment, Deletion),
    /// S-11: deleted, and made anew under its name while its old pods are still ending.
    Recreated,
    /// A part of S-14: a worker is evicted by its kubelet and replaced, then all succeed.
    Evicted,
    /// A part of S-14: a worker's node is lost; its pod is deleted, removed and replaced, then all succeed.
    NodeLost,
    /// S-12: of an `MPIJob`.
    Mpi(MpiLife),
    /// S-13: of a `SparkApplication`.
    Spark(SparkLife),
}

/// How far a run can be compared with another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Likeness {
    /// The same objects in the same state, made and deleted equally often.
    Exact,
    /// The user's deletion crosses the operator's request: what came through in one run need not in
    /// another. Nothing is made or deleted twice.
    AtMost,
}

impl Life {
    /// Every life of a `PyTorchJob` that a sweep goes through.
    pub const ALL: [Self; 24] = [
        Self::Succeeds(CleanPods::None),
        Self::Succeeds(CleanPods::Running),
        Self::Succeeds(CleanPods::All),
        Self::RetryableExit,
        Self::BackoffLimit,
        Self::PermanentExit,
        Self::Deadline,
        Self::TimeToLive(0),
        Self::TimeToLive(1),
        Self::Suspended,
        Self::BornSuspended,
        Self::Elastic,
        Self::Deleted(Moment::Creating, Deletion::Background),
        Self::Deleted(Moment::Creating, Deletion::Foreground),
        Self::Deleted(Moment::Creating, Deletion::Orphan),
        Self::Deleted(Moment::Running, Deletion::Background),
        Self::Deleted(Moment::Running, Deletion::Foreground),
        Self::Deleted(Moment::Running, Deletion::Orphan),
        Self::Deleted(Moment::Finishing, Deletion::Background),
        Self::Deleted(Moment::Finishing, Deletion::Foreground),
        Self::Deleted(Moment::Finishing, Deletion::Orphan),
        Self::Recreated,
        Self::Evicted,
        Self::NodeLost,
    ];

    /// Those of every test run.
    pub const SHORT: [Self; 7] = [
        Self::Succeeds(CleanPods::None),
        Self::Succeeds(CleanPods::Running),
        Self::Succeeds(CleanPods::All),
        Self::RetryableExit,
        Self::Suspended,
        Self::BornSuspended,
        Self::Elastic,
    ];

    /// Every life of a kind that a sweep goes through.
    pub fn of(kind: Kind) -> Vec<Self> {
        match kind {
            MPI => MpiLife::ALL.map(Self::Mpi).to_vec(),
            SPARK => SparkLife::ALL.map(Self::Spark).to_vec(),
            PYTORCH => Self::ALL.to_vec(),
            // Only a PyTorchJob can be elastic.
            _ => Self::ALL
                .into_iter()
                .filter(|life| *life != Self::Elastic)
                .collect(),
        }
    }

    /// The kind whose life it is, where it is not told.
    pub fn usual_kind(self) -> Kind {
        match self {
            Self::Mpi(_) => MPI,
            Self::Spark(_) => SPARK,
            _ => PYTORCH,
        }
    }

    /// The job of a kind that lives so.
    pub fn job(self, kind: Kind, name: &str) -> Job {
        let job = kind.small_job(name, 2);
        // Of a TFJob another policy is the default.
        let job = if kind == PYTORCH {
            job
        } else {
            job.run_policy("cleanPodPolicy", "None")
        };
        match self {
            Self::Succeeds(CleanPods::None)
            | Self::Evicted
            | Self::NodeLost
            | Self::Suspended
            | Self::Recreated
            | Self::Deleted(Moment::Creating | Moment::Running, _) => job,
            Self::Succeeds(CleanPods::Running) => job.run_policy("cleanPodPolicy", "Running"),
            Self::Succeeds(CleanPods::All) | Self::Deleted(Moment::Finishing, _) => {
                job.run_policy("cleanPodPolicy", "All")
            }
            Self::RetryableExit | Self::PermanentExit => job.restart_policy("Worker", "ExitCode"),
            Self::BackoffLimit => job
                .restart_policy("Worker", "ExitCode")
                .run_policy("cleanPodPolicy", "Running")
                .run_policy("backoffLimit", 1),
            Self::Deadline => job
                .run_policy("cleanPodPolicy", "Running")
                // Far away until all run, so that the slowest machine gets there.
                .run_policy("activeDeadlineSeconds", 100_000),
            Self::TimeToLive(seconds) => job.run_policy("ttlSecondsAfterFinished", seconds),
            Self::BornSuspended => job.run_policy("suspend", true),
            Self::Elastic => kind
                .job(name)
                .workers(2)
                .set("/spec/elasticPolicy/minReplicas", 1)
                .set("/spec/elasticPolicy/maxReplicas", 4),
            Self::Mpi(life) => life.job(name),
            Self::Spark(life) => life.job(name),
        }
    }

    /// How far two runs of it are comparable.
    pub fn likeness(self) -> Likeness {
        match self {
            Self::Deleted(Moment::Creating, _)
            | Self::Deleted(Moment::Finishing, Deletion::Orphan) => Likeness::AtMost,
            _ => Likeness::Exact,
        }
    }

    /// Whether what the job had outlives it, because the user wants it so.
    pub fn orphans(self) -> bool {
        matches!(self, Self::Deleted(_, Deletion::Orphan))
    }

    /// The request in whose middle the user acts: it waits in the proxy until then.
    pub fn held(self, name: &str) -> Option<Held> {
        let verb = match self {
            Self::Deleted(Moment::Creating, _) => "create",
            Self::Deleted(Moment::Finishing, _) => "delete",
            _ => return None,
        };
        let gate = Gate::closed();
        let pod = format!("{name}-worker-1");
        let rule = Rule::new("held", Action::Hold(gate.clone()), move |call: &Call| {
            call.is(verb, "pods") && call.name == pod
        });
        Some(Held { rule, gate })
    }
}

/// Whether a job of any kind has ended, and the operator knows its present spec.
pub(crate) fn has_ended(job: &Value) -> bool {
    if job["kind"] == SPARK.name {
        let known = job["status"]["observedGeneration"] == job["metadata"]["generation"];
        return known && matches!(spark::state(job), "COMPLETED" | "FAILED");
    }
    is_finished(job)
}

/// A request that waits in the proxy.
#[derive(Clone, Debug)]
pub struct Held {
    /// What holds it.
    pub rule: Rule,
    /// What lets it through.
    pub gate: Gate,
}

impl fmt::Display for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Succeeds(policy) => write!(f, "S-01-{policy:?}"),
            Self::RetryableExit => f.write_str("S-02"),
            Self::BackoffLimit => f.write_str("S-03"),
            Self::PermanentExit => f.write_str("S-04"),
            Self::Deadline => f.write_str("S-05"),
            Self::TimeToLive(seconds) => write!(f, "S-06-{seconds}s"),
            Self::Suspended => f.write_str("S-07"),
            Self::BornSuspended => f.write_str("S-07-Born"),
            Self::Elastic => f.write_str("S-08"),
            Self::Deleted(moment, deletion) => write!(f, "S-10-{moment:?}-{deletion:?}"),
            Self::Recreated => f.write_str("S-11"),
            Self::Evicted => f.write_str("S-14-Evicted"),
            Self::NodeLost => f.write_str("S-14-NodeLost"),
            Self::Mpi(life) => write!(f, "S-12-{life:?}"),
            Self::Spark(life) => write!(f, "S-13-{life:?}"),
        }
    }
}

impl FromStr for Life {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let all = [PYTORCH, MPI, SPARK].map(Self::of);
        match all
            .into_iter()
            .flatten()
            .find(|life| life.to_string() == text)
        {
            Some(life) => Ok(life),
            None => bail!("there is no life {text}"),
        }
    }
}
