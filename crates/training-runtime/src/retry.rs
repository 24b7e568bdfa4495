//! The backoff of jobs whose reconcile failed.
//!
//! Two promises: under a permanent error a job has at most ten reconciles in the first minute and one per half a cap (30 s) after it;
//! once the error is gone, the job is retried within one cap. Both hold for any sequence of faults, because each quick retry is
//! allowed only a few times in a row.
//!
//! A wake-up does not shorten a backoff: a reconcile before [`Backoff::not_before`] should do nothing.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::fault::{Absent, Fault};

/// Failures in a row that are retried at once or after the server's delay, before the backoff grows. Three quick retries and the first
/// five doublings are nine reconciles in the first minute.
const QUICK: u32 = 3;

/// The delay after a conflict: long enough for the watch to show the change.
const CONFLICT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(500));

/// Backoff after a bug of ours, in caps: five minutes with the default cap.
const BUG_CAPS: u32 = 5;

/// A small, seedable random number generator for jitter. Not for secrets.
///
/// Source: `SplitMix64` by Steele, Lea and Flood.
#[derive(Clone, Debug)]
pub struct Jitter(u64);

impl Jitter {
    /// Creates a generator whose numbers depend only on the seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a random duration between two, both included.
    pub fn between(&mut self, low: Duration, high: Duration) -> Duration {
        let span = u64::try_from(high.saturating_sub(low).as_nanos()).unwrap_or(u64::MAX);
        let extra = if span == 0 {
            0
        } else {
            self.next() % span.saturating_add(1).max(1)
        };
        low.saturating_add(Duration::from_nanos(extra))
    }

    /// Returns a random duration between half and all of `whole`.
    pub fn half(&mut self, whole: Duration) -> Duration {
        self.between(whole / 2, whole)
    }
}

/// The backoffs of all jobs that currently fail. Other jobs cost nothing here.
#[derive(Debug)]
pub struct Backoff<K> {
    base: Duration,
    cap: Duration,
    state: Mutex<State<K>>,
}

#[derive(Debug)]
struct State<K> {
    jobs: HashMap<K, Entry>,
    jitter: Jitter,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    failures: u32,
    not_before: Instant,
}

impl<K: Hash + Eq + Clone> Backoff<K> {
    /// Creates a backoff that starts at `base`, doubles, and never exceeds `cap` (but five caps after a bug of ours).
    pub fn new(base: Duration, cap: Duration, seed: u64) -> Self {
        let state = State {
            jobs: HashMap::new(),
            jitter: Jitter::new(seed),
        };
        Self {
            base,
            cap: cap.max(base),
            state: Mutex::new(state),
        }
    }

    /// Counts a failure and returns the earliest time of the next attempt.
    pub fn record_failure(&self, key: &K, fault: &Fault, now: Instant) -> Instant {
        let mut state = self.state.lock();
        let State { jobs, jitter } = &mut *state;
        let failures = jobs
            .get(key)
            .map_or(0, |entry| entry.failures)
            .saturating_add(1);
        let not_before = now + self.wait(fault, failures, jitter);
        jobs.insert(
            key.clone(),
            Entry {
                failures,
                not_before,
            },
        );
        not_before
    }

    /// Returns the earliest time of the next attempt, if the last one failed. It may be in the past.
    pub fn not_before(&self, key: &K) -> Option<Instant> {
        self.state
            .lock()
            .jobs
            .get(key)
            .map(|entry| entry.not_before)
    }

    /// Returns the failures in a row so far.
    pub fn failures(&self, key: &K) -> u32 {
        self.state
            .lock()
            .jobs
            .get(key)
            .map_or(0, |entry| entry.failures)
    }

    /// Resets a job's backoff: after a complete reconcile, and when the job is deleted.
    pub fn forget(&self, key: &K) {
        self.state.lock().jobs.remove(key);
    }

    /// Returns how many jobs currently fail.
    pub fn len(&self) -> usize {
        self.state.lock().jobs.len()
    }

    /// Returns whether no job currently fails.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn wait(&self, fault: &Fault, failures: u32, jitter: &mut Jitter) -> Duration {
        let quick = failures <= QUICK;
        match fault {
            Fault::Conflict(_)
            | Fault::Missing {
                what: Absent::Object,
                ..
            } if quick => jitter.between(CONFLICT.0, CONFLICT.1),
            Fault::Throttled { after } => {
                // Never earlier than asked; the extra keeps jobs from retrying all at once.
                let asked = jitter.between(*after, after.saturating_add(*after / 4));
                if quick {
                    asked
                } else {
                    asked.max(self.doubled(failures - QUICK, jitter))
                }
            }
            Fault::Conflict(_)
            | Fault::Missing {
                what: Absent::Object,
                ..
            } => self.doubled(failures - QUICK, jitter),
            Fault::Transient(_) | Fault::Deadline { .. } => self.doubled(failures, jitter),
            // A user must act before these can succeed, which takes a while.
            Fault::Denied { .. } | Fault::Rejected { .. } => jitter.half(self.cap),
            Fault::Missing {
                what: Absent::Namespace | Absent::Kind,
                ..
            } => self.cap,
            // The leader's tasks end with its lease; this only bridges the time until then.
            Fault::NotLeading => self.base,
            Fault::Bug(_) => self.cap.saturating_mul(BUG_CAPS),
        }
    }

    /// Returns the `n`-th doubling of the base, counted from one, half of it random.
    fn doubled(&self, n: u32, jitter: &mut Jitter) -> Duration {
        let factor = 2u32.checked_pow(n.saturating_sub(1)).unwrap_or(u32::MAX);
        jitter.half(self.base.saturating_mul(factor).min(self.cap))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Denial;

    const BASE: Duration = Duration::from_secs(2);
    const CAP: Duration = Duration::from_mins(1);
    const MINUTE: Duration = Duration::from_mins(1);

    fn faults() -> Vec<Fault> {
        let text = String::new;
        vec![
            Fault::Conflict(text()),
            Fault::Throttled {
                after: Duration::from_secs(1),
            },
            Fault::Transient(text()),
            Fault::Denied {
                what: Denial::Quota,
                message: text(),
            },
            Fault::Rejected {
                code: 422,
                message: text(),
                field: None,
            },
            Fault::Missing {
                what: Absent::Object,
                message: text(),
            },
            Fault::Missing {
                what: Absent::Kind,
                message: text(),
            },
            Fault::Deadline { limit: CAP },
            Fault::Bug(text()),
        ]
    }

    /// Returns the times of all reconciles in the first ten minutes if every one fails.
    async fn reconciles(seed: u64, mut fault: impl FnMut(usize) -> Fault) -> Vec<Duration> {
        let backoff = Backoff::new(BASE, CAP, seed);
        let start = Instant::now();
        let mut times = Vec::new();
        while start.elapsed() < MINUTE * 10 {
            times.push(start.elapsed());
            let next = backoff.record_failure(&"uid", &fault(times.len()), Instant::now());
            assert!(next > Instant::now());
            tokio::time::sleep_until(next).await;
        }
        times
    }

    fn assert_promise(times: &[Duration], what: &str) {
        let first = times.iter().filter(|t| **t < MINUTE).count();
        assert!(first <= 10, "{what}: {first} attempts in the first minute");
        for pair in times.windows(2).filter(|pair| pair[0] >= MINUTE) {
            assert!(
                pair[1].saturating_sub(pair[0]) >= CAP / 2,
                "{what}: {pair:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn i_33_a_permanent_error_costs_few_passes() {
        for fault in faults() {
            for seed in 0..50 {
                let times = reconciles(seed, |_| fault.clone()).await;
                assert_promise(&times, fault.as_str());
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn i_33_alternating_errors_cost_few_passes_too() {
        let faults = faults();
        for seed in 0..200 {
            let mut pick = Jitter::new(seed);
            let times = reconciles(seed, |_| {
                let index = usize::try_from(pick.next() % faults.len() as u64).unwrap();
                faults[index].clone()
            })
            .await;
            assert!(
                times.iter().filter(|t| **t < MINUTE).count() <= 10,
                "seed {seed}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn waits_stay_within_their_bounds() {
        let now = Instant::now();
        for seed in 0..100 {
            let wait =
                |fault: &Fault| Backoff::new(BASE, CAP, seed).record_failure(&0, fault, now) - now;
            let within = |fault: Fault, low: u64, high: u64| {
                let millis = wait(&fault).as_millis();
                assert!(
                    (low.into()..=high.into()).contains(&millis),
                    "{fault:?}: {millis} ms"
                );
            };
            within(Fault::Conflict(String::new()), 100, 500);
            within(
                Fault::Throttled {
                    after: Duration::from_secs(4),
                },
                4_000,
                5_000,
            );
            within(Fault::Transient(String::new()), 1_000, 2_000);
            within(
                Fault::Denied {
                    what: Denial::Rbac,
                    message: String::new(),
                },
                30_000,
                60_000,
            );
            within(
                Fault::Missing {
                    what: Absent::Kind,
                    message: String::new(),
                },
                60_000,
                60_000,
            );
            within(Fault::Bug(String::new()), 300_000, 300_000);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_success_or_a_deletion_forgets() {
        let backoff = Backoff::new(BASE, CAP, 1);
        for _ in 0..8 {
            backoff.record_failure(&"a", &Fault::Transient(String::new()), Instant::now());
        }
        assert_eq!(backoff.failures(&"a"), 8);
        assert!(
            backoff
                .not_before(&"a")
                .is_some_and(|at| at >= Instant::now() + CAP / 2)
        );
        assert_eq!(backoff.not_before(&"b"), None);
        backoff.forget(&"a");
        assert!(backoff.is_empty());
        let next = backoff.record_failure(&"a", &Fault::Transient(String::new()), Instant::now());
        assert!(next <= Instant::now() + BASE);
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_seed_gives_the_same_waits() {
        let run = |seed| reconciles(seed, |_| Fault::Transient(String::new()));
        let first = run(7).await;
        let again = run(7).await;
        let other = run(8).await;
        // Timers count whole milliseconds from the start of the test, so allow their rounding.
        let close = |a: &[Duration], b: &[Duration]| {
            a.len() == b.len()
                && a.iter()
                    .zip(b)
                    .all(|(a, b)| a.abs_diff(*b) < Duration::from_millis(50))
        };
        assert!(close(&first, &again));
        assert!(!close(&first, &other));
    }
}
