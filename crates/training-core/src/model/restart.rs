//! What a failed pod means, and at what pace replacements come.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use training_api::RestartPolicy;

use crate::model::memory::ReplicaMemory;
use crate::model::view::PodView;

/// What the restart policy says about a pod that ended badly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A new pod is made.
    Replace,
    /// The job fails: the policy is Never.
    Fail,
    /// The job fails: the exit code is one that a new try would only repeat.
    FailPermanently,
}

/// Reads the restart policy for a failed pod.
///
/// Source: the published contract. Exit codes of 128 and more, and a pod whose main container left no exit code (evicted, node
/// shut down), are retried under `ExitCode`; all others are permanent.
pub fn answer(policy: RestartPolicy, pod: &PodView) -> Answer {
    match policy {
        RestartPolicy::Always | RestartPolicy::OnFailure => Answer::Replace,
        RestartPolicy::Never => Answer::Fail,
        RestartPolicy::ExitCode => match pod.exit_code {
            Some(code) if code < 128 => Answer::FailPermanently,
            Some(_) | None => Answer::Replace,
        },
    }
}

/// The first replacement comes at once, the second after this; every further one after twice as long.
const FIRST_PAUSE: SignedDuration = SignedDuration::from_secs(10);
/// No replacement waits longer. Both figures are those of the kubelet's own container restarts.
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_secs(300);

/// How long the pod of this attempt (from 1) waits after the attempt was decided.
pub fn pause(attempt: u32) -> SignedDuration {
    if attempt <= 1 {
        return SignedDuration::ZERO;
    }
    let doublings = (attempt - 2).min(10);
    (FIRST_PAUSE * (1 << doublings)).min(LONGEST_PAUSE)
}

/// When the replica's next pod may be made; `None` for at once. Computed from stored times alone, so that a restart of the
/// operator neither forgets nor begins it anew.
pub fn not_before(replica: Option<&ReplicaMemory>) -> Option<Timestamp> {
    let replica = replica?;
    let decided = replica.decided?;
    decided.checked_add(pause(replica.attempt)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::view::PodPhase;

    fn failed(exit_code: Option<i32>) -> PodView {
        PodView {
            uid: crate::model::uid::Uid(1),
            version: 1,
            role: "worker".into(),
            index: 0,
            attempt: crate::model::view::Attempt::default(),
            phase: PodPhase::Failed,
            ready: false,
            leaving: false,
            mark: crate::model::group::Mark::None,
            scheduler: None,
            disrupted: false,
            exit_code,
            restarts: 0,
            starting: None,
            trouble: None,
        }
    }

    #[test]
    fn the_exit_code_decides_only_under_its_policy() {
        use Answer::{Fail, FailPermanently, Replace};
        use RestartPolicy::{Always, ExitCode, Never, OnFailure};
        let rows = [
            (Always, Some(1), Replace),
            (OnFailure, Some(1), Replace),
            (Never, Some(137), Fail),
            (ExitCode, Some(0), FailPermanently),
            (ExitCode, Some(1), FailPermanently),
            (ExitCode, Some(127), FailPermanently),
            (ExitCode, Some(128), Replace),
            (ExitCode, Some(130), Replace),
            (ExitCode, Some(138), Replace),
            (ExitCode, None, Replace),
        ];
        for (policy, code, expected) in rows {
            assert_eq!(
                answer(policy, &failed(code)),
                expected,
                "{policy:?} {code:?}"
            );
        }
    }

    #[test]
    fn replacements_come_at_once_then_after_ten_seconds_doubling_to_five_minutes() {
        let seconds: Vec<i64> = [0, 1, 2, 3, 4, 6, 7, 8, 1000, u32::MAX]
            .map(|a| pause(a).as_secs())
            .to_vec();
        assert_eq!(seconds, [0, 0, 10, 20, 40, 160, 300, 300, 300, 300]);
    }
}
