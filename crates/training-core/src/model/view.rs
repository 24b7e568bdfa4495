//! The cached form of pods and services: only the fields that decisions need.

use std::fmt;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

use crate::model::group::Mark;
use crate::model::trouble::Trouble;
use crate::model::uid::Uid;

/// The phase of a pod. An unrecognized value reads as [`PodPhase::Unknown`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodPhase {
    /// Accepted, not all containers started.
    #[default]
    Pending,
    /// At least one container runs.
    Running,
    /// All containers succeeded.
    Succeeded,
    /// All containers ended and at least one failed, or the pod was evicted.
    Failed,
    /// Anything else.
    Unknown,
}

impl PodPhase {
    /// Reads `status.phase`.
    pub fn parse(text: &str) -> Self {
        match text {
            "" | "Pending" => Self::Pending,
            "Running" => Self::Running,
            "Succeeded" => Self::Succeeded,
            "Failed" => Self::Failed,
            _ => Self::Unknown,
        }
    }

    /// Returns true if no container of the pod runs or will run.
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// The attempt for which a pod was created. An older attempt compares as less.
///
/// Shape: `<gang>.<replica>`, e.g. `0.2`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attempt {
    /// The attempt of the whole gang.
    pub gang: u32,
    /// The attempt of this replica within the gang attempt.
    pub replica: u32,
}

impl Attempt {
    /// Parses the annotation. A missing or invalid annotation reads as attempt `0.0`, so that pods of another operator are never
    /// deleted for lack of one.
    pub fn parse(text: Option<&str>) -> Self {
        text.and_then(|t| t.split_once('.'))
            .and_then(|(g, r)| {
                Some(Self {
                    gang: g.parse().ok()?,
                    replica: r.parse().ok()?,
                })
            })
            .unwrap_or_default()
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.gang, self.replica)
    }
}

/// One pod, in about a hundred bytes, without a heap allocation while it is healthy.
///
/// Its name is not stored: only pods with the derived name count (see [`crate::model::names`]).
#[derive(Clone, Debug, PartialEq)]
pub struct PodView {
    /// The pod's uid, the precondition of its deletion.
    pub uid: Uid,
    /// The last seen resource version. A lower one is stale.
    pub version: u64,
    /// The replica type in lower case; shared between all pods of that type.
    pub role: Arc<str>,
    /// The replica's index.
    pub index: u32,
    /// The attempt it was made for.
    pub attempt: Attempt,
    /// Its phase.
    pub phase: PodPhase,
    /// The `Ready` condition is true.
    pub ready: bool,
    /// It has a deletion timestamp.
    pub terminating: bool,
    /// The gang scheduler's mark on the pod.
    pub mark: Mark,
    /// The pod's scheduler, if it carries the mark of scheduler-plugins, which runs under any name. Shared between pods and no
    /// wider than a pointer.
    pub scheduler: Option<Arc<String>>,
    /// The `DisruptionTarget` condition is true: preemption, API-initiated eviction, or a taint.
    pub disrupted: bool,
    /// The exit code of the main container, once it has terminated.
    pub exit_code: Option<i32>,
    /// The sum of in-place restarts of all containers.
    pub restarts: u32,
    /// Since when a pending pod has a node but waits for its volumes and network, or when a succeeded one ended. In seconds after 1970
    /// (fits until 2106). Every pod passes through both, so the field is inline.
    pub since: Option<u32>,
    /// The pod's problem, if any.
    pub trouble: Option<Box<Trouble>>,
}

impl PodView {
    /// Returns a replica's pod as just created, of the first attempt and without a gang mark.
    pub fn new(uid: Uid, version: u64, role: Arc<str>, index: u32) -> Self {
        Self {
            uid,
            version,
            role,
            index,
            attempt: Attempt::default(),
            phase: PodPhase::Pending,
            ready: false,
            terminating: false,
            mark: Mark::None,
            scheduler: None,
            disrupted: false,
            exit_code: None,
            restarts: 0,
            since: None,
            trouble: None,
        }
    }

    /// Returns since when the pod has a node but waits for its volumes and network, if it does.
    pub fn starts_since(&self) -> Option<Timestamp> {
        self.since_in(PodPhase::Pending)
    }

    /// Returns when the pod ended, if it succeeded.
    pub fn succeeded_at(&self) -> Option<Timestamp> {
        self.since_in(PodPhase::Succeeded)
    }

    fn since_in(&self, phase: PodPhase) -> Option<Timestamp> {
        let since = self.since.filter(|_| self.phase == phase)?;
        Timestamp::from_second(since.into()).ok()
    }

    /// Returns true if no field that decisions or the status depend on differs. The resource version may.
    pub fn same_for_decisions(&self, other: &Self) -> bool {
        self.uid == other.uid
            && self.phase == other.phase
            && self.ready == other.ready
            && self.terminating == other.terminating
            && self.disrupted == other.disrupted
            && self.exit_code == other.exit_code
            && self.restarts == other.restarts
            && self.attempt == other.attempt
            && self.since == other.since
            && self.trouble == other.trouble
    }
}

/// A replica's service.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceView {
    /// Its uid.
    pub uid: Uid,
    /// The resource version at which it was seen.
    pub version: u64,
    /// The replica type in lower case.
    pub role: Arc<str>,
    /// The replica's index.
    pub index: u32,
    /// It has a deletion timestamp.
    pub terminating: bool,
}

#[cfg(test)]
mod tests {
    use super::{Attempt, PodView};

    #[test]
    fn a_pod_takes_at_most_160_bytes() {
        assert!(size_of::<PodView>() <= 160, "{}", size_of::<PodView>());
    }

    #[test]
    fn a_pod_without_a_readable_attempt_is_the_first_one() {
        for text in [None, Some(""), Some("1"), Some("1.x"), Some("-1.0")] {
            assert_eq!(Attempt::parse(text), Attempt::default(), "{text:?}");
        }
        assert_eq!(Attempt::parse(Some("2.3")).to_string(), "2.3");
    }
}
