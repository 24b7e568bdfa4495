//! Decides whether and when to retry.
//!
//! Source: the published rules. The backoff grows with consecutive failures and starts at the failure. The published operator
//! starts it at the last submission, so it never waits after a long run.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::api::{RestartPolicy, SparkApplicationStatus};
use crate::defaults::RETRY_INTERVAL;

/// The longest backoff: a month. A longer one is a mistake, and must not overflow.
const MAX_BACKOFF: i64 = 31 * 24 * 3600;

/// The decision after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// No retry.
    Never,
    /// Retry at this time.
    At(Timestamp),
}

/// Decides after a failed run.
pub fn after_failed_run(policy: &RestartPolicy, status: &SparkApplicationStatus) -> Retry {
    // Without our count, use the published one: every submission that led to a driver.
    let failed = status.failed_runs.or(status.execution_attempts);
    decide(
        policy,
        failed.unwrap_or(1),
        policy.on_failure_retries,
        policy.on_failure_retry_interval,
        status,
    )
}

/// Decides after a failed submission.
pub fn after_failed_submission(policy: &RestartPolicy, status: &SparkApplicationStatus) -> Retry {
    let failed = status.failed_submissions.or(status.submission_attempts);
    decide(
        policy,
        failed.unwrap_or(1),
        policy.on_submission_failure_retries,
        policy.on_submission_failure_retry_interval,
        status,
    )
}

/// True if a successful application runs again.
pub fn after_success(policy: &RestartPolicy) -> bool {
    policy.type_.as_deref() == Some("Always")
}

fn decide(
    policy: &RestartPolicy,
    failed: i32,
    retries: Option<i32>,
    interval: Option<i64>,
    status: &SparkApplicationStatus,
) -> Retry {
    let may = match policy.type_.as_deref() {
        Some("Always") => true,
        Some("OnFailure") => retries.is_some_and(|most| failed <= most),
        Some(_) | None => false,
    };
    if !may {
        return Retry::Never;
    }
    let failures = i64::from(failed.max(1));
    let seconds = interval
        .unwrap_or(RETRY_INTERVAL)
        .max(0)
        .saturating_mul(failures);
    let since = status.last_failure_time.as_ref();
    let since = since.or(status.last_submission_attempt_time.as_ref());
    let since = since.map_or(Timestamp::UNIX_EPOCH, |time| time.0);
    let wait = SignedDuration::from_secs(seconds.min(MAX_BACKOFF));
    Retry::At(since.saturating_add(wait).unwrap_or(Timestamp::MAX))
}
