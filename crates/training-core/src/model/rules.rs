//! The operator's settings that decisions depend on.

use k8s_openapi::jiff::SignedDuration;

/// The default maximum number of replicas per job: twice the size that the operators are measured with.
pub const MAX_REPLICAS: u32 = 20_000;

/// Settings of the operator, common to all of its jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The maximum number of replicas per job: one job must not use up the memory for all others.
    pub max_replicas: u32,
    /// Delete running pods of a failed job even if its clean-up policy is `None`.
    pub clean_failed: bool,
    /// After this time, replace pods of a lost node and force their deletion; `None`: never.
    pub force_lost_after: Option<SignedDuration>,
    /// Strict mode: rejects jobs that reach beyond their namespace.
    pub strict: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            max_replicas: MAX_REPLICAS,
            clean_failed: false,
            force_lost_after: None,
            strict: false,
        }
    }
}
