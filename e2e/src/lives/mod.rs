//! Life cycles of jobs, whose results don't depend on how often the operator is killed.
//!
//! The kubelet does each step only when the job's stored status shows the step before. So a dead operator only sees changes
//! later, and two runs of a life cycle can be compared object by object.

mod actor;
mod mpi;
mod spark;
mod story;

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail};
use serde_json::Value;
use training_testkit::builders::{Job, Kind, MPI, PYTORCH, SPARK};
use training_testkit::job::{is_finished, is_true};
use training_testkit::proxy::{Action, Call, Gate, Rule};

pub use actor::{Happenings, StepRunner};
pub use mpi::MpiLife;
pub use spark::{SparkLife, executor};

/// The replica whose create or delete a life cycle may hold.
const HELD: &str = "worker-1";

/// The clean-up policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CleanPods {
    /// Keeps everything.
    None,
    /// Keeps ended pods.
    Running,
    /// Keeps nothing.
    All,
}

/// When the user deletes the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletionTime {
    /// Before the last of its pods is created.
    Creating,
    /// While all of its pods run.
    Running,
    /// Before the last of its pods is cleaned up.
    Finishing,
}

/// How the user deletes the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// Deletes the job first, then its children.
    Background,
    /// Deletes its children first.
    Foreground,
    /// Deletes only the job.
    Orphan,
}

/// A life cycle of a job. Most jobs have one master and two workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// S-01: the master succeeds while the workers run, under a clean-up policy.
    Succeeds(CleanPods),
    /// S-02: a worker exits with 137 and is replaced, then all succeed.
    RetryableExit,
    /// S-03: a worker exceeds the backoff limit; running pods are deleted.
    BackoffLimit,
    /// S-04: a worker exits with 1, which is permanent.
    PermanentExit,
    /// S-05: the deadline passes while all pods run; they are deleted.
    Deadline,
    /// S-06: the job is deleted so many seconds after its success.
    TimeToLive(u32),
    /// S-07: suspended while all run, resumed, succeeds.
    Suspended,
    /// S-07: created suspended, resumed, succeeds.
    BornSuspended,
    /// S-07: the user restarts it while all run, then all succeed.
    Restarted,
    /// S-08: an elastic job of two workers gets four, then one, which succeeds.
    Elastic,
    /// S-10: the user deletes it.
    Deleted(DeletionTime, Deletion),
    /// S-11: deleted, and recreated under its name while its old pods still terminate.
    Recreated,
    /// S-14: a worker is evicted by its kubelet and replaced, then all succeed.
    Evicted,
    /// S-14: a worker's node is lost; its pod is deleted, removed and replaced, then all succeed.
    NodeLost,
    /// S-12: a life cycle of an `MPIJob`.
    Mpi(MpiLife),
    /// S-13: a life cycle of a `SparkApplication`.
    Spark(SparkLife),
}

/// How strictly two runs can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// The same objects in the same state, created and deleted equally often.
    Exact,
    /// The user's deletion races with the operator's request, which may succeed in one run only. Nothing is created or deleted
    /// twice.
    AtMost,
}

impl Life {
    /// Every life cycle of a `PyTorchJob` in a sweep.
    pub const ALL: [Self; 25] = [
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
        Self::Restarted,
        Self::Elastic,
        Self::Deleted(DeletionTime::Creating, Deletion::Background),
        Self::Deleted(DeletionTime::Creating, Deletion::Foreground),
        Self::Deleted(DeletionTime::Creating, Deletion::Orphan),
        Self::Deleted(DeletionTime::Running, Deletion::Background),
        Self::Deleted(DeletionTime::Running, Deletion::Foreground),
        Self::Deleted(DeletionTime::Running, Deletion::Orphan),
        Self::Deleted(DeletionTime::Finishing, Deletion::Background),
        Self::Deleted(DeletionTime::Finishing, Deletion::Foreground),
        Self::Deleted(DeletionTime::Finishing, Deletion::Orphan),
        Self::Recreated,
        Self::Evicted,
        Self::NodeLost,
    ];

    /// The life cycles of every test run.
    pub const SHORT: [Self; 7] = [
        Self::Succeeds(CleanPods::None),
        Self::Succeeds(CleanPods::Running),
        Self::Succeeds(CleanPods::All),
        Self::RetryableExit,
        Self::Suspended,
        Self::BornSuspended,
        Self::Elastic,
    ];

    /// Returns every life cycle of a kind in a sweep.
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

    /// Returns the shortest life cycle of a kind that succeeds.
    pub fn shortest(kind: Kind) -> Self {
        match kind {
            MPI => Self::Mpi(MpiLife::Succeeds),
            SPARK => Self::Spark(SparkLife::Succeeds),
            _ => Self::Succeeds(CleanPods::None),
        }
    }

    /// Returns the default kind of the life cycle.
    pub fn usual_kind(self) -> Kind {
        match self {
            Self::Mpi(_) => MPI,
            Self::Spark(_) => SPARK,
            _ => PYTORCH,
        }
    }

    /// Returns the job of a kind for this life cycle.
    pub fn job(self, kind: Kind, name: &str) -> Job {
        let job = kind.small_job(name, 2);
        // A TFJob's default policy differs.
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
            | Self::Restarted
            | Self::Recreated
            | Self::Deleted(DeletionTime::Creating | DeletionTime::Running, _) => job,
            Self::Succeeds(CleanPods::Running) => job.run_policy("cleanPodPolicy", "Running"),
            Self::Succeeds(CleanPods::All) | Self::Deleted(DeletionTime::Finishing, _) => {
                job.run_policy("cleanPodPolicy", "All")
            }
            Self::RetryableExit | Self::PermanentExit => job.restart_policy("Worker", "ExitCode"),
            Self::BackoffLimit => job
                .restart_policy("Worker", "ExitCode")
                .run_policy("cleanPodPolicy", "Running")
                .run_policy("backoffLimit", 1),
            Self::Deadline => job
                .run_policy("cleanPodPolicy", "Running")
                // Far away until all pods run, so that slow machines reach that.
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

    /// Returns how strictly two runs can be compared.
    pub fn comparison(self) -> Comparison {
        match self {
            Self::Deleted(DeletionTime::Creating, _)
            | Self::Deleted(DeletionTime::Finishing, Deletion::Orphan) => Comparison::AtMost,
            _ => Comparison::Exact,
        }
    }

    /// Returns whether the user's deletion orphans the job's children.
    pub fn orphans(self) -> bool {
        matches!(self, Self::Deleted(_, Deletion::Orphan))
    }

    /// Returns the request that the proxy holds until the user acts.
    pub fn held(self, name: &str) -> Option<Held> {
        let verb = match self {
            Self::Deleted(DeletionTime::Creating, _) => "create",
            Self::Deleted(DeletionTime::Finishing, _) => "delete",
            _ => return None,
        };
        let gate = Gate::closed();
        let pod = format!("{name}-{HELD}");
        let rule = Rule::new("held", Action::Hold(gate.clone()), move |call: &Call| {
            call.is(verb, "pods") && call.name == pod
        });
        Some(Held { rule, gate })
    }
}

/// Returns whether a job of any kind has ended, and the operator has observed its current spec.
pub(crate) fn has_ended(job: &Value) -> bool {
    if job["kind"] == SPARK.name {
        let known = job["status"]["observedGeneration"] == job["metadata"]["generation"];
        return known && matches!(spark::state(job), "COMPLETED" | "FAILED");
    }
    is_finished(job)
}

/// True if a job of any kind has succeeded.
pub fn has_succeeded(job: &Value) -> bool {
    is_true(job, "Succeeded") || spark::state(job) == "COMPLETED"
}

/// True if a job of any kind is suspended.
fn is_suspended(job: &Value) -> bool {
    is_true(job, "Suspended") || spark::state(job) == "SUSPENDED"
}

/// A request that the proxy holds.
#[derive(Clone, Debug)]
pub struct Held {
    /// The rule that holds it.
    pub rule: Rule,
    /// The gate that releases it.
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
            Self::Restarted => f.write_str("S-07-Restarted"),
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
