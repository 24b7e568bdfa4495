//! How the operator is set, as far as decisions depend on it.

use k8s_openapi::jiff::SignedDuration;

/// Most replicas of one job, unless an operator is set otherwise: twice the size that the operators are measured with.
pub const MOST_REPLICAS: u32 = 20_000;

/// Settings of the operator, the same for all of its jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Most replicas of one job: one job must not take the memory of all others.
    pub most_replicas: u32,
    /// Running pods of a failed job go also where its clean-up policy is `None`.
    pub clean_failed: bool,
    /// Pods of a lost node are given up and deleted by force after this time; `None`: never.
    pub force_lost_after: Option<SignedDuration>,
    /// Strict mode: a job gets nothing that reaches beyond its namespace.
    pub strict: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            most_replicas: MOST_REPLICAS,
            clean_failed: false,
            force_lost_after: None,
            strict: false,
        }
    }
}
