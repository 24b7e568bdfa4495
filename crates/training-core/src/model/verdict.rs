//! What the pods say about a job's end, and the published words for it.

use training_api::RestartPolicy;

use crate::model::census::{Census, SlotState};
use crate::model::restart::{Answer, answer};
use crate::model::roles::{RoleSet, RoleSpec};
use crate::model::view::PodView;

/// The judgement of one snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The job goes on.
    Progressing {
        /// The role that decides has a running pod of the present attempt.
        running: bool,
    },
    /// The job has ended well.
    Succeeded,
    /// Replicas failed and are made again.
    Retry(Vec<RankFailure>),
    /// The job has ended badly.
    Failed(FailureCause),
}

/// One replica that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankFailure {
    /// Place of its role in the [`RoleSet`].
    pub role: usize,
    /// Its index.
    pub index: u32,
    /// Preempted, evicted through the API or by a taint: costs nothing of the backoff limit.
    pub disrupted: bool,
}

/// Why a job has ended badly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailureCause {
    /// Replicas of a role failed and may not be restarted.
    Replicas {
        /// The role's key in the spec.
        role: String,
        /// How many.
        count: u32,
    },
    /// An exit code that a restart would only repeat.
    PermanentExit {
        /// The role's key in the spec.
        role: String,
    },
    /// Restarted as often as allowed.
    BackoffLimit,
    /// Ran longer than allowed.
    Deadline,
    /// The spec can't run.
    InvalidSpec(String),
}

impl FailureCause {
    /// The role whose replicas ended the job, if it was one.
    pub fn role(&self) -> Option<&str> {
        match self {
            Self::Replicas { role, .. } | Self::PermanentExit { role } => Some(role),
            Self::BackoffLimit | Self::Deadline | Self::InvalidSpec(_) => None,
        }
    }
}

/// A state of a job that has a published message.
#[derive(Clone, Debug)]
pub enum Saying<'a> {
    /// Condition Created.
    Created,
    /// Condition Suspended, True.
    Suspended,
    /// Condition Suspended, False.
    Resumed,
    /// Condition Running, False, of a suspended job.
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
        /// How many of them.
        count: u32,
    },
}

/// The messages that name the job alone.
pub fn say_short(kind: &str, name: &str, what: &Saying<'_>) -> String {
    match what {
        Saying::Created => format!("{kind} {name} is created."),
        Saying::Suspended | Saying::Paused => format!("{kind} {name} is suspended."),
        Saying::Resumed => format!("{kind} {name} is resumed."),
        Saying::Running => format!("{kind} {name} is running."),
        Saying::Succeeded => format!("{kind} {name} is successfully completed."),
        Saying::Restarting { role } => {
            format!("job {name} is restarting because {role} replica(s) failed.")
        }
        Saying::Failed { role, count } => {
            format!("{kind} {name} is failed because {count} {role} replica(s) failed.")
        }
    }
}

/// The messages that name the job with its namespace.
pub fn say_qualified(kind: &str, namespace: &str, name: &str, what: &Saying<'_>) -> String {
    match what {
        Saying::Running => format!("{kind} {namespace}/{name} is running."),
        Saying::Succeeded => format!("{kind} {namespace}/{name} successfully completed."),
        Saying::Created
        | Saying::Suspended
        | Saying::Resumed
        | Saying::Paused
        | Saying::Restarting { .. }
        | Saying::Failed { .. } => say_short(kind, name, what),
    }
}

/// How many of the deciding role's replicas must end well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enough {
    /// All of them.
    All,
    /// Any one.
    Any,
}

/// One role decides: the job succeeds with it, runs with it, and fails as the restart policies of all roles say.
///
/// In one snapshot the success of the deciding role wins over the failure of any other replica.
pub fn role_decides(
    roles: &RoleSet<'_>,
    census: &Census<'_>,
    decider: &str,
    enough: Enough,
) -> Verdict {
    let deciding = roles.iter().enumerate().find(|(_, r)| r.key == decider);
    if let Some((at, role)) = deciding {
        let succeeded = census.counts[at].succeeded;
        let done = match enough {
            Enough::All => succeeded >= role.replicas,
            Enough::Any => succeeded > 0,
        };
        if done && role.replicas > 0 {
            return Verdict::Succeeded;
        }
    }
    failures(roles, census).unwrap_or_else(|| progressing(roles, census, decider))
}

/// Why a job can't end whose deciding role has no replicas; `None` if it has some. `workers` is the role that decides where the
/// other one is left out.
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
        "{path}.replicas is 0, and nobody else decides when the job ends: {way}"
    ))
}

/// The job goes on, and runs with this role.
pub fn progressing(roles: &RoleSet<'_>, census: &Census<'_>, decider: &str) -> Verdict {
    let deciding = roles.iter().position(|r| r.key == decider);
    Verdict::Progressing {
        running: deciding.is_some_and(|at| census.counts[at].running > 0),
    }
}

/// What the failed replicas mean under the restart policies of their roles; `None` where none failed.
pub fn failures(roles: &RoleSet<'_>, census: &Census<'_>) -> Option<Verdict> {
    failures_but(roles, census, |_| false)
}

/// As [`failures`], but that replicas of some roles may be lost for good without ending the job.
///
/// Where several roles end it, the published order says which one is named: exit codes that a restart would only repeat come
/// first, then roles by their names.
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
                match answer(role.restart, pod) {
                    Answer::Replace => retries.push(failure),
                    Answer::Fail if expendable(role) => {}
                    Answer::Fail => {
                        let role = role.key.clone();
                        let count = census.counts[at].failed;
                        ends.push((1, FailureCause::Replicas { role, count }));
                        break;
                    }
                    Answer::FailPermanently => {
                        let role = role.key.clone();
                        ends.push((0, FailureCause::PermanentExit { role }));
                        break;
                    }
                }
            } else if slot.state == SlotState::Live && pod.leaving && pod.disrupted {
                // Its replacement belongs to a new attempt, so that disruptions are paced and shown.
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

/// Sum of in-place container restarts over the pods whose kubelet restarts count against the backoff limit.
///
/// Source: the published rule, pods in phase Running of roles that restart at all.
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
