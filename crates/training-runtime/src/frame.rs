//! The frame of every reconcile: its deadline, its outcome and its requeue.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::core::ObjectMeta;
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::Instrument as _;
use training_core::Stored;

use crate::caller::Caller;
use crate::fault::{Absent, Fault};
use crate::feed::jobs::{Jobs, Opened};
use crate::key::JobKey;
use crate::metrics::Metrics;
use crate::retry::{Backoff, Jitter};

/// Delay before a job that found no free slot is retried.
const NO_SLOT_DELAY: Duration = Duration::from_millis(200);
/// The delay grows by [`NO_SLOT_DELAY`] per this many waiting jobs, so that retries cost the same.
const JOBS_PER_STEP: usize = 20;
/// The longest such delay.
const MAX_NO_SLOT_DELAY: Duration = Duration::from_secs(30);
/// Delay before retrying a job whose state at the API server differs from the watch.
pub const STALE_DELAY: Duration = Duration::from_secs(1);

/// How a reconcile ended.
#[derive(Debug)]
pub enum ReconcileResult {
    /// Nothing to do until then.
    RequeueAt(Instant),
    /// Waits for a backoff. Requeue then: at its end, or earlier if the plan asked for that.
    BackoffUntil(Instant),
    /// Failed.
    Failed(Fault),
}

/// The limits of a reconcile, and where its outcome is recorded.
#[derive(Clone, Copy)]
pub struct Frame<'a> {
    /// Time limit of a reconcile.
    pub deadline: Duration,
    /// The backoff of objects whose reconcile failed.
    pub backoff: &'a Backoff<JobKey>,
    /// Counts reconciles.
    pub metrics: &'a Metrics,
}

impl Frame<'_> {
    /// Opens a job, reading it from the API server if necessary. Calls `forget` if it no longer exists.
    ///
    /// # Errors
    /// If the job can't be reconciled now. Holds the time to requeue it, if any.
    pub async fn open<'a, J: Stored>(
        &self,
        jobs: &'a Jobs<J>,
        caller: &Caller,
        key: &'a JobKey,
        forget: impl FnOnce(),
    ) -> Result<Open<'a, J>, Option<Instant>> {
        let (job, tried) = match jobs.open(key) {
            Opened::Cached(job) => (Some(job), false),
            Opened::Uncached(tried) => (None, tried),
            Opened::NoSlot(waiting) => {
                let steps = u32::try_from(waiting / JOBS_PER_STEP).unwrap_or(u32::MAX);
                let wait = (NO_SLOT_DELAY * steps.saturating_add(1)).min(MAX_NO_SLOT_DELAY);
                return Err(Some(Instant::now() + wait));
            }
            Opened::NotFound => {
                forget();
                return Err(None);
            }
        };
        let slot = JobSlot { jobs, key };
        if let Some(job) = job {
            return Ok(Open { job, _slot: slot });
        }
        // This version was read before its last failure.
        let held = self.backoff.not_before(key).filter(|_| tried);
        if held.is_some_and(|at| at > Instant::now()) {
            return Err(held);
        }
        match caller.read_job::<J>(key).await {
            Ok(Some(job)) => {
                if let Some(job) = jobs.insert_read(key, job) {
                    return Ok(Open { job, _slot: slot });
                }
            }
            Ok(None) => {}
            Err(fault) => {
                let failed = std::future::ready(ReconcileResult::Failed(fault));
                if let Some(at) = self.run(key, &ObjectMeta::default(), failed).await {
                    return Err(Some(at));
                }
            }
        }
        // The watch will soon deliver its current state.
        Err(Some(Instant::now() + STALE_DELAY))
    }

    /// Runs a reconcile. Returns when to requeue.
    pub async fn run(
        &self,
        key: &JobKey,
        meta: &ObjectMeta,
        reconcile: impl Future<Output = ReconcileResult>,
    ) -> Option<Instant> {
        let begun = Instant::now();
        let uid = meta.uid.as_deref().unwrap_or_default();
        let span = tracing::info_span!(
            "reconcile",
            job = %key,
            uid,
            generation = meta.generation.unwrap_or_default(),
        );
        let outcome = tokio::time::timeout(self.deadline, reconcile.instrument(span)).await;
        let ended = outcome.unwrap_or(ReconcileResult::Failed(Fault::Deadline {
            limit: self.deadline,
        }));
        let (word, next) = match ended {
            ReconcileResult::RequeueAt(at) => ("done", Some(at)),
            ReconcileResult::BackoffUntil(at) => ("held", Some(at)),
            ReconcileResult::Failed(Fault::NotLeading) => ("not_leading", None),
            ReconcileResult::Failed(fault) => {
                let at = self.backoff.record_failure(key, &fault, Instant::now());
                let wait = at.saturating_duration_since(Instant::now());
                let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
                // Another writer was faster: the job was changed, or deleted together with its pods.
                if matches!(
                    fault,
                    Fault::Conflict(_)
                        | Fault::Missing {
                            what: Absent::Object,
                            ..
                        }
                ) {
                    tracing::debug!(job = %key, uid, %fault, wait_ms, "requeueing");
                } else {
                    tracing::warn!(job = %key, uid, %fault, wait_ms, "the reconcile failed");
                }
                (fault.as_str(), Some(at))
            }
        };
        self.metrics.reconcile(word, begun.elapsed());
        next
    }
}

/// A job under reconcile, kept in memory until this is dropped.
pub struct Open<'a, J: Stored> {
    /// The job.
    pub job: Arc<J>,
    _slot: JobSlot<'a, J>,
}

/// The slot of a job that is reconciled, or read for a reconcile.
struct JobSlot<'a, J: Stored> {
    jobs: &'a Jobs<J>,
    key: &'a JobKey,
}

impl<J: Stored> Drop for JobSlot<'_, J> {
    fn drop(&mut self) {
        self.jobs.close(self.key);
    }
}

/// Resync times of objects without changes.
#[derive(Clone, Copy)]
pub struct Resync<'a> {
    /// The mean period.
    pub period: Duration,
    /// Spreads the resyncs.
    pub jitter: &'a Mutex<Jitter>,
}

impl Resync<'_> {
    /// Returns the time of the next resync.
    pub fn next_resync(&self) -> Instant {
        let spread = (self.period * 3 / 4, self.period * 5 / 4);
        Instant::now() + self.jitter.lock().between(spread.0, spread.1)
    }

    /// Returns the given time or the next resync, whichever is sooner.
    pub fn requeue_at(&self, at: Option<Timestamp>) -> Instant {
        let resync = self.next_resync();
        let Some(at) = at else { return resync };
        let millis = at.duration_since(Timestamp::now()).as_millis();
        // Slightly after the second, since decisions count whole seconds.
        let millis = u64::try_from(millis.max(0))
            .unwrap_or(u64::MAX)
            .saturating_add(10);
        resync.min(Instant::now() + Duration::from_millis(millis).min(self.period * 2))
    }
}

/// Returns the current second, the precision of times in a status.
pub fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

/// Statuses that only update counts, and since when they wait: more updates may follow at once, and a status write is the most
/// expensive request of a job's life cycle.
#[derive(Debug, Default)]
pub struct Counts(Mutex<HashMap<JobKey, Instant>>);

impl Counts {
    /// Returns the latest time to write this status; `None` if now.
    pub fn wait(
        &self,
        key: &JobKey,
        can_wait: bool,
        begun: Instant,
        longest: Duration,
    ) -> Option<Instant> {
        let mut waiting = self.0.lock();
        if !can_wait {
            waiting.remove(key);
            return None;
        }
        let until = *waiting.entry(key.clone()).or_insert(begun) + longest;
        // A reconcile with thousands of steps takes longer than counts may wait.
        if Instant::now() < until {
            return Some(until);
        }
        waiting.remove(key);
        None
    }

    /// Forgets a waiting status.
    pub fn forget(&self, key: &JobKey) {
        self.0.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn i_36_a_reconcile_that_hangs_ends_at_its_limit_and_comes_again() {
        let backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(1), 1);
        let metrics = Metrics::new("pytorch");
        let frame = Frame {
            deadline: Duration::from_mins(1),
            backoff: &backoff,
            metrics: &metrics,
        };
        let begun = Instant::now();
        let key = JobKey::new("team", "pt");
        let next = frame
            .run(&key, &ObjectMeta::default(), std::future::pending())
            .await;
        assert_eq!(begun.elapsed(), frame.deadline);
        assert!(next.is_some_and(|next| next > Instant::now()), "{next:?}");
    }
}
