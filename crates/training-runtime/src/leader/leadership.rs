//! The settings of an election, and the check whether this process may write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::Instant;

/// The settings of one election.
#[derive(Clone, Debug)]
pub struct ElectionConfig {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// The holder that this process writes; must be unique per process.
    pub holder: String,
    /// Time without change after which another process takes over. At least a second.
    pub lease_duration: Duration,
    /// Time since the last renewal was sent after which this process stops writing.
    pub renew_deadline: Duration,
    /// Time between renewals. A standby reads the Lease at least once a second.
    pub retry_period: Duration,
    /// Seed of the jitter between attempts.
    pub seed: u64,
}

impl ElectionConfig {
    /// Returns the time limit of one request for the Lease: a third of the lease, so that two may fail before it is lost.
    pub fn call_deadline(&self) -> Duration {
        self.lease_duration / 3
    }
}

/// Nanoseconds since the origin that mean "forever".
const ALWAYS: u64 = u64::MAX;

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) origin: Instant,
    /// Nanoseconds after `origin` until which this process may write; 0: not at all.
    pub(super) until: AtomicU64,
    /// The same by the wall clock, since 1970: it goes on while the machine is suspended.
    until_wall: AtomicU64,
    wall: fn() -> Duration,
    /// Number of the current term; raised before `until`, so that a reader who sees the new `until` also sees the new term.
    pub(super) term: AtomicU64,
    /// The number of the held term, for waiting tasks.
    pub(super) held: watch::Sender<Option<u64>>,
}

/// A moment by both clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    at: Instant,
    wall: Duration,
}

fn wall() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}

impl Inner {
    pub(super) fn may_write(&self) -> bool {
        let until = self.until.load(Ordering::SeqCst);
        if until == ALWAYS {
            return true;
        }
        if self.nanos(Instant::now()) >= until {
            return false;
        }
        if nanos((self.wall)()) < self.until_wall.load(Ordering::SeqCst) {
            return true;
        }
        // Another process may lead by now: write nothing before the Lease is read and renewed.
        tracing::warn!("the wall clock jumped beyond the lease; this replica stops leading");
        self.lose();
        false
    }

    pub(super) fn now(&self) -> Moment {
        Moment {
            at: Instant::now(),
            wall: (self.wall)(),
        }
    }

    pub(super) fn nanos(&self, at: Instant) -> u64 {
        nanos(at.saturating_duration_since(self.origin))
    }

    /// Extends leadership until `long` after a moment; begins a new term unless one is held.
    pub(super) fn extend(&self, since: Moment, long: Duration) {
        let new = self.held.borrow().is_none();
        if new {
            self.term.fetch_add(1, Ordering::SeqCst);
        }
        self.until_wall
            .store(nanos(since.wall + long), Ordering::SeqCst);
        self.until
            .store(self.nanos(since.at + long), Ordering::SeqCst);
        if new {
            self.held
                .send_replace(Some(self.term.load(Ordering::SeqCst)));
        }
    }

    pub(super) fn lose(&self) {
        self.until.store(0, Ordering::SeqCst);
        if self.held.borrow().is_some() {
            self.held.send_replace(None);
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(ALWAYS - 1)
}

/// Whether this process may write now.
#[derive(Clone, Debug)]
pub struct Leadership(pub(super) Arc<Inner>);

impl Leadership {
    pub(super) fn standby() -> Self {
        Self::by(wall)
    }

    /// Like `standby`, with another wall clock.
    pub(super) fn by(wall: fn() -> Duration) -> Self {
        Self(Arc::new(Inner {
            origin: Instant::now(),
            until: AtomicU64::new(0),
            until_wall: AtomicU64::new(0),
            wall,
            term: AtomicU64::new(0),
            held: watch::Sender::new(None),
        }))
    }

    /// Returns a leadership that is never acquired.
    #[cfg(test)]
    pub(crate) fn standby_for_tests() -> Self {
        Self::standby()
    }

    /// Returns a leadership without election: held from now on and never lost.
    pub fn always() -> Self {
        let leadership = Self::standby();
        leadership.0.term.store(1, Ordering::SeqCst);
        leadership.0.until.store(ALWAYS, Ordering::SeqCst);
        leadership.0.held.send_replace(Some(1));
        leadership
    }

    /// Returns whether this process may write at this very moment. Cheap; call it right before each request.
    pub fn may_write(&self) -> bool {
        self.0.may_write()
    }

    /// Waits until this process leads, and returns the term that begins.
    pub async fn acquired(&self) -> Term {
        let mut held = self.0.held.subscribe();
        let number = held.wait_for(Option::is_some).await.map(|held| *held);
        let number = match number {
            Ok(held) => held.unwrap_or_default(),
            // The sender lives in `self`, so this can't happen; no term is the safe result.
            Err(_) => std::future::pending().await,
        };
        Term {
            inner: Arc::clone(&self.0),
            number,
        }
    }

    /// Waits until this process does not lead.
    pub async fn lost(&self) {
        let mut held = self.0.held.subscribe();
        // Without a sender no process leads either.
        let _ = held.wait_for(Option::is_none).await;
    }
}

/// An unbroken period of leadership. Work begun in one term must not write in a later one.
#[derive(Clone, Debug)]
pub struct Term {
    inner: Arc<Inner>,
    number: u64,
}

impl Term {
    /// Returns whether this process may write at this very moment, in this term.
    pub fn may_write(&self) -> bool {
        // In this order: see `Inner::term`.
        self.inner.may_write() && self.inner.term.load(Ordering::SeqCst) == self.number
    }

    /// Waits until this term is over, even if another one has begun since.
    pub async fn lost(&self) {
        let mut held = self.inner.held.subscribe();
        let _ = held.wait_for(|held| *held != Some(self.number)).await;
    }

    /// Returns the number of this term in this process, from one.
    pub fn number(&self) -> u64 {
        self.number
    }
}
