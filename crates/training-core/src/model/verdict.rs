//! What the pods say about a job's outcome, and the published messages for it.

use training_api::RestartPolicy;

use crate::model::census::{Census, SlotState};
use crate::model::restart::{Decision, decide};
use crate::model::roles::{RoleSet, RoleSpec};
use crate::model::view::PodView;

/// The verdict on one snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The job continues.
    Progressing {
        /// The deciding role has a running pod of the current attempt.
        running: bool,
    },
    /// The job succeeded.
    Succeeded,
    /// Replicas failed and are recreated.
    Retry(Vec<RankFailure>),
    /// The job failed.
    Failed(FailureCause),
}

/// A failed replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankFailure {
    /// The index of its role in the [`RoleSet`].
    pub role: usize,
    /// Its index.
    pub index: u32,
    /// The pod was disrupted: preempted, or evicted through the API or by a taint. It doesn't count against the backoff limit.
    pub disrupted: bool,
}

/// Why a job failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailureCause {
    /// Replicas of a role failed and must not be restarted.
    Replicas {
        /// The role's key in the spec.
        role: String,
        /// The number of failed replicas.
        count: u32,
    },
    /// A permanent exit code, which a restart would only repeat.
    PermanentExit {
        /// The role's key in the spec.
        role: String,
    },
    /// The backoff limit is reached.
    BackoffLimit,
    /// The deadline has passed.
    Deadline,
    /// The spec is invalid.
    InvalidSpec(String),
}

impl FailureCause {
    /// The role whose replicas failed the job, if any.
    pub fn role(&self) -> Option<&str> {
        match self {
            Self::Replicas { role, .. } | Self::PermanentExit { role } => Some(role),
            Self::BackoffLimit | Self::Deadline | Self::InvalidSpec(_) => None,
        }
    }
}

/// A state of a job with a published message.
#[derive(Clone, Debug)]
pub enum JobMessage<'a> {
    /// Condition Created.
    Created,
    /// Condition Suspended, True.
    Suspended,
    /// Condition Suspended, False.
    Resumed,
    /// Condition Running, False, for a suspended job.
    Paused,
    /// Condition Running.
    Running,
    /// Condition Succeeded.
    Succeeded,
    /// Condition Restarting.
    Restarting {
        /// The role's key in the spec.
        role: &'a str,
    },
    /// Condition Failed for failed replicas.
    Failed {
        /// The role's key in the spec.
        role: &'a str,
        /// The number of failed replicas.
        count: u32,
    },
}

/// The messages with the job's name only.
pub fn short_message(kind: &str, name: &str, what: &JobMessage<'_>) -> String {
    match what {
        JobMessage::Created => format!("{kind} {name} is created."),
        JobMessage::Suspended | JobMessage::Paused => format!("{kind} {name} is suspended."),
        JobMessage::Resumed => format!("{kind} {name} is resumed."),
        JobMessage::Running => format!("{kind} {name} is running."),
        JobMessage::Succeeded => format!("{kind} {name} is successfully completed."),
        JobMessage::Restarting { role } => {
            format!("job {name} is restarting because {role} replica(s) failed.")
        }
        JobMessage::Failed { role, count } => {
            format!("{kind} {name} is failed because {count} {role} replica(s) failed.")
        }
    }
}

/// The messages with the job's namespace and name.
pub fn qualified_message(kind: &str, namespace: &str, name: &str, what: &JobMessage<'_>) -> String {
    match what {
        JobMessage::Running => format!("{kind} {namespace}/{name} is running."),
        JobMessage::Succeeded => format!("{kind} {namespace}/{name} successfully completed."),
        JobMessage::Created
        | JobMessage::Suspended
        | JobMessage::Resumed
        | JobMessage::Paused
        | JobMessage::Restarting { .. }
        | JobMessage::Failed { .. } => short_message(kind, name, what),
    }
}

/// How many replicas of the deciding role must succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuccessPolicy {
    /// All of them.
    All,
    /// Any one.
    Any,
}

/// Lets one role decide: the job succeeds with it, runs with it, and fails as the restart policies of all roles say.
///
/// The success of the deciding role takes precedence over the failure of any other replica in the same snapshot.
pub fn role_decides(
    roles: &RoleSet<'_>,
    census: &Census<'_>,
    decider: &str,
    enough: SuccessPolicy,
) -> Verdict {
    let deciding = roles.iter().enumerate().find(|(_, r)| r.key == decider);
    if let Some((at, role)) = deciding {
        let succeeded = census.counts[at].succeeded;
        let done = match enough {
            SuccessPolicy::All => succeeded >= role.replicas,
            SuccessPolicy::Any => succeeded > 0,
        };
        if done && role.replicas > 0 {
            return Verdict::Succeeded;
        }
    }
    failures(roles, census).unwrap_or_else(|| progressing(roles, census, decider))
}

/// Explains why a job can't end if its deciding role has no replicas; `None` if it has some. `workers` is the role that decides in
/// jobs without the other one.
pub fn no_replica_decides(
    roles: &RoleSet<'_>,
    decider: &RoleSpec<'_>,
    workers: &str,
) -> Option<String> {
    if decider.replicas > 0 {
        return None;
    }
    let (path, key) = (&decider.path, &decider.key);
    let way = if roles.get(workers).is_some_and(|w| w.replicas > 0) {
        format!("set it to 1, or leave the {key} out, and the {workers}s decide")
    } else {
        "set it to at least 1".to_owned()
    };
    Some(format!(
        "{path}.replicas is 0, and no other role decides when the job ends: {way}"
    ))
}

/// The job continues, and is running if this role runs.
pub fn progressing(roles: &RoleSet<'_>, census: &Census<'_>, decider: &str) -> Verdict {
    let deciding = roles.iter().position(|r| r.key == decider);
    Verdict::Progressing {
        running: deciding.is_some_and(|at| census.counts[at].running > 0),
    }
}

/// Applies the restart policies to the failed replicas; `None` if none failed.
pub fn failures(roles: &RoleSet<'_>, census: &Census<'_>) -> Option<Verdict> {
    failures_but(roles, census, |_| false)
}

/// Like [`failures`], but replicas of expendable roles may fail for good without failing the job.
///
/// If several roles fail the job, the published order decides which one is named: permanent exit codes first, then roles by name.
pub fn failures_but(
    roles: &RoleSet<'_>,
    census: &Census<'_>,
    expendable: impl Fn(&RoleSpec<'_>) -> bool,
) -> Option<Verdict> {
    let mut retries = Vec::new();
    let mut ends = Vec::new();
    for (at, role) in roles.iter().enumerate() {
        for slot in census.of_role(at) {
            let Some(pod) = slot.pod else { continue };
            let failure = RankFailure {
                role: at,
                index: slot.index,
                disrupted: pod.disrupted,
            };
            if slot.state == SlotState::Failed {
                match decide(role.restart, pod) {
                    Decision::Replace => retries.push(failure),
                    Decision::Fail if expendable(role) => {}
                    Decision::Fail => {
                        let role = role.key.clone();
                        let count = census.counts[at].failed;
                        ends.push((1, FailureCause::Replicas { role, count }));
                        break;
                    }
                    Decision::FailPermanently => {
                        let role = role.key.clone();
                        ends.push((0, FailureCause::PermanentExit { role }));
                        break;
                    }
                }
            } else if slot.state == SlotState::Live && pod.terminating && pod.disrupted {
                // The replacement belongs to a new attempt, so that disruptions are subject to the backoff and visible.
                retries.push(failure);
            }
        }
    }
    ends.sort_by(|(at, a), (other, b)| (at, a.role()).cmp(&(other, b.role())));
    if let Some((_, cause)) = ends.into_iter().next() {
        return Some(Verdict::Failed(cause));
    }
    (!retries.is_empty()).then_some(Verdict::Retry(retries))
}

/// Sums the in-place container restarts that count against the backoff limit.
///
/// Source: the published rule. Pods in phase Running, of roles whose policy is not `Never`.
pub fn container_restarts(roles: &RoleSet<'_>, census: &Census<'_>) -> u32 {
    let counts = |at: usize| {
        roles
            .iter()
            .nth(at)
            .is_some_and(|r| r.restart != RestartPolicy::Never)
    };
    let running = |pod: &&PodView| pod.phase == crate::model::view::PodPhase::Running;
    census
        .slots
        .iter()
        .filter(|s| counts(s.role))
        .filter_map(|s| s.pod)
        .filter(running)
        .map(|p| p.restarts)
        .fold(0, u32::saturating_add)
}
