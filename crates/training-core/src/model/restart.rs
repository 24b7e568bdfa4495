//! How the restart policy treats failed pods, and the backoff between replacements.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use training_api::RestartPolicy;

use crate::model::durable_state::ReplicaRestarts;
use crate::model::roles::RoleSpec;
use crate::model::view::PodView;

/// What restarts when a replica fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RestartScope {
    /// The failed replica.
    #[default]
    Replica,
    /// All replicas together.
    Gang,
}

impl RestartScope {
    /// Returns the restart policy of a role's pods.
    ///
    /// Under `OnFailure` the kubelet restarts a failed container in its pod, and the other replicas of a gang would go on without
    /// it. So the pod itself has to fail. With several containers it would not fail before the last one has ended, so it keeps
    /// `OnFailure`; sidecars that are init containers don't count.
    pub fn for_pod(self, role: &RoleSpec<'_>) -> &'static str {
        let spec = role.template.and_then(|t| t.spec.as_ref());
        let alone = spec.is_some_and(|spec| spec.containers.len() == 1);
        match (self, role.restart) {
            (Self::Gang, RestartPolicy::OnFailure) if alone => RestartPolicy::Never.for_pod(),
            (Self::Replica | Self::Gang, policy) => policy.for_pod(),
        }
    }
}

/// The restart policy's decision about a failed pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Create a new pod.
    Replace,
    /// Fail the job: the policy is `Never`.
    Fail,
    /// Fail the job: the exit code is permanent, so a retry would only repeat it.
    FailPermanently,
}

/// Applies the restart policy to a failed pod.
///
/// Source: the published contract. `ExitCode` retries exit codes of 128 and more, and pods whose main container has no exit code
/// (evicted). All other codes are permanent. A disruption says nothing about the program, so every policy replaces a disrupted pod.
pub fn decide(policy: RestartPolicy, pod: &PodView) -> Decision {
    if pod.disrupted {
        return Decision::Replace;
    }
    match policy {
        RestartPolicy::Always | RestartPolicy::OnFailure => Decision::Replace,
        RestartPolicy::Never => Decision::Fail,
        RestartPolicy::ExitCode => match pod.exit_code {
            Some(code) if code < 128 => Decision::FailPermanently,
            Some(_) | None => Decision::Replace,
        },
    }
}

/// The backoff before the second replacement. The first has none; each later one doubles it.
const FIRST_BACKOFF: SignedDuration = SignedDuration::from_secs(10);
/// The maximum backoff. Both values are those of the kubelet's container restarts.
const MAX_BACKOFF: SignedDuration = SignedDuration::from_secs(300);

/// Returns how long to wait, after deciding this attempt (from 1), before creating its pod.
pub fn backoff(attempt: u32) -> SignedDuration {
    if attempt <= 1 {
        return SignedDuration::ZERO;
    }
    let doublings = (attempt - 2).min(10);
    (FIRST_BACKOFF * (1 << doublings)).min(MAX_BACKOFF)
}

/// A pod that ran for this long shows that the job can run, so it resets the backoff.
const LONG_RUN: SignedDuration = SignedDuration::from_secs(600);

/// Returns true if a pod that has ended, or is about to, ran for ten minutes.
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

impl ReplicaRestarts {
    /// Returns the attempt after this one and after the one that a pod carries (`carried`).
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

/// Returns when the replica's next pod may be created; `None` means now. The result depends on stored times only, so a restart of
/// the operator neither drops nor resets the backoff.
pub fn not_before(replica: Option<&ReplicaRestarts>) -> Option<Timestamp> {
    let replica = replica?;
    let decided = replica.decided?;
    let in_series = replica.attempt.saturating_sub(replica.settled);
    decided.checked_add(backoff(in_series)).ok()
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
        use Decision::{Fail, FailPermanently, Replace};
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
                decide(policy, &failed(code)),
                expected,
                "{policy:?} {code:?}"
            );
        }
    }

    #[test]
    fn replacements_come_at_once_then_after_ten_seconds_doubling_to_five_minutes() {
        let seconds: Vec<i64> = [0, 1, 2, 3, 4, 6, 7, 8, 1000, u32::MAX]
            .map(|a| backoff(a).as_secs())
            .to_vec();
        assert_eq!(seconds, [0, 0, 10, 20, 40, 160, 300, 300, 300, 300]);
    }
}
