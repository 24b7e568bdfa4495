//! What is kept of a pod and of a service: what decisions need, and nothing else.

use std::fmt;
use std::sync::Arc;

use crate::model::group::Mark;
use crate::model::trouble::Trouble;
use crate::model::uid::Uid;

/// The phase of a pod. A word that we don't know reads as [`PodPhase::Unknown`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodPhase {
    /// Accepted, not all containers started.
    #[default]
    Pending,
    /// At least one container runs.
    Running,
    /// All containers ended well.
    Succeeded,
    /// All containers ended, at least one badly; or the pod was evicted.
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

    /// True if no container of the pod runs any more, nor will.
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// The attempt a pod was made for. Ordered: an older attempt is less.
///
/// Shape: `<gang>.<replica>`, e.g. `0.2`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attempt {
    /// The attempt of all pods together.
    pub gang: u32,
    /// The attempt of this replica within the gang's.
    pub replica: u32,
}

impl Attempt {
    /// Reads the annotation. A pod without it, or with one that can't be read, is attempt `0.0`: pods that another operator
    /// left are never deleted for lack of it.
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

/// One pod, in about a hundred bytes, and without a heap allocation while it is healthy.
///
/// Its name is not kept: only pods with the derived name are ours to count (see [`crate::model::names`]).
#[derive(Clone, Debug, PartialEq)]
pub struct PodView {
    /// The pod's uid, the precondition of its deletion.
    pub uid: Uid,
    /// The resource version at which it was seen; a lower one is older news.
    pub version: u64,
    /// The replica type in lower case; shared between all pods of that type.
    pub role: Arc<str>,
    /// The replica's index.
    pub index: u32,
    /// The attempt it was made for.
    pub attempt: Attempt,
    /// Its phase.
    pub phase: PodPhase,
    /// Condition `Ready` holds.
    pub ready: bool,
    /// It has a deletion timestamp.
    pub leaving: bool,
    /// Which gang scheduler's mark it carries.
    pub mark: Mark,
    /// The scheduler that it names, if it carries the mark of scheduler-plugins, which runs under any name. Shared between pods,
    /// and no wider than a pointer.
    pub scheduler: Option<Arc<String>>,
    /// Condition `DisruptionTarget` holds: preemption, eviction through the API, a taint.
    pub disrupted: bool,
    /// Exit code of the terminated main container.
    pub exit_code: Option<i32>,
    /// Sum of the restarts of all containers, in place.
    pub restarts: u32,
    /// It has a node and waits for its volumes and network, since this second after 1970 (which lasts until 2106). Ordinary for
    /// a moment, so it is kept inline.
    pub starting: Option<u32>,
    /// What is wrong with it, if anything.
    pub trouble: Option<Box<Trouble>>,
}

impl PodView {
    /// A replica's pod right after its creation, of the first attempt and without a gang's mark.
    pub fn new(uid: Uid, version: u64, role: Arc<str>, index: u32) -> Self {
        Self {
            uid,
            version,
            role,
            index,
            attempt: Attempt::default(),
            phase: PodPhase::Pending,
            ready: false,
            leaving: false,
            mark: Mark::None,
            scheduler: None,
            disrupted: false,
            exit_code: None,
            restarts: 0,
            starting: None,
            trouble: None,
        }
    }

    /// True if nothing that a decision or the status depends on differs. The resource version may.
    pub fn same_for_decisions(&self, other: &Self) -> bool {
        self.uid == other.uid
            && self.phase == other.phase
            && self.ready == other.ready
            && self.leaving == other.leaving
            && self.disrupted == other.disrupted
            && self.exit_code == other.exit_code
            && self.restarts == other.restarts
            && self.attempt == other.attempt
            && self.starting == other.starting
            && self.trouble == other.trouble
    }
}

/// One service of a replica.
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
    pub leaving: bool,
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
