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
/// Source: the published contract. Exit codes of 128 and more, and a pod whose main container left no exit code (evicted), are
/// retried under `ExitCode`; all others are permanent. A disruption says nothing about the program: such a pod is replaced under
/// every policy.
pub fn answer(policy: RestartPolicy, pod: &PodView) -> Answer {
    if pod.disrupted {
        return Answer::Replace;
    }
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

/// A pod that ran for so long shows that the job can run: the pace begins anew after it.
const LONG_RUN: SignedDuration = SignedDuration::from_secs(600);

/// Whether a pod that ended, or is about to, ran for long.
pub fn ran_long(pod: &PodView, now: Timestamp) -> bool {
    let Some(trouble) = pod.trouble.as_deref() else {
        return false;
    };
    let end = trouble
        .since
        .filter(|_| pod.phase.has_ended())
        .unwrap_or(now);
    let ran = trouble.ran_since.map(|start| end.duration_since(start));
    ran.is_some_and(|ran| ran >= LONG_RUN)
}

impl ReplicaMemory {
    /// The attempt after this one, and after one that a pod is seen to `carry`.
    #[must_use]
    pub fn next(self, carried: u32, ran_long: bool, now: Timestamp) -> Self {
        let attempt = self.attempt.max(carried);
        Self {
            attempt: attempt.saturating_add(1),
            decided: Some(now),
            settled: if ran_long { attempt } else { self.settled },
        }
    }
}

/// When the replica's next pod may be made; `None` for at once. Computed from stored times alone, so that a restart of the
/// operator neither forgets nor begins it anew.
pub fn not_before(replica: Option<&ReplicaMemory>) -> Option<Timestamp> {
    let replica = replica?;
    let decided = replica.decided?;
    let in_series = replica.attempt.saturating_sub(replica.settled);
    decided.checked_add(pause(in_series)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::view::PodPhase;

    fn failed(exit_code: Option<i32>) -> PodView {
        PodView {
            phase: PodPhase::Failed,
            exit_code,
            ..PodView::new(crate::model::uid::Uid(1), 1, "worker".into(), 0)
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
