//! The rules of an election, and who may write now.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::Instant;

/// The rules of one election.
#[derive(Clone, Debug)]
pub struct ElectionConfig {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// What this process writes as holder; no other process may write the same.
    pub holder: String,
    /// Time without change after which another takes over. At least a second.
    pub lease_duration: Duration,
    /// Time since the last renewal was sent after which this process stops writing.
    pub renew_deadline: Duration,
    /// Time between renewals. A standby looks at least once a second.
    pub retry_period: Duration,
    /// Seed of the jitter between looks.
    pub seed: u64,
}

impl ElectionConfig {
    /// The longest time one request about the Lease may take: a third of the lease, so that two may
    /// fail before it is lost.
    pub fn call_deadline(&self) -> Duration {
        self.lease_duration / 3
    }
}

/// Nanoseconds since the origin that mean "for ever".
const ALWAYS: u64 = u64::MAX;

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) origin: Instant,
    /// Nanoseconds after `origin` until which this process may write; 0: not at all.
    pub(super) until: AtomicU64,
    /// The same by the wall clock, since 1970: that one goes on while the machine is suspended.
    until_wall: AtomicU64,
    wall: fn() -> Duration,
    /// Number of the present term; raised before `until` is, so that a reader who saw the new
    /// `until` also sees the new term.
    pub(super) term: AtomicU64,
    /// The number of the term that is held, for those who wait.
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
    pub(super) fn holds(&self) -> bool {
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
        // Another one may lead by now: nothing is written before the Lease is read and renewed.
        tracing::warn!("the wall clock jumped beyond the lease: not leading any more");
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

    /// Leads for so long after a moment; begins a new term unless one is held.
    pub(super) fn hold(&self, since: Moment, long: Duration) {
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

/// Whether this process may write, now.
#[derive(Clone, Debug)]
pub struct Leadership(pub(super) Arc<Inner>);

impl Leadership {
    pub(super) fn standby() -> Self {
        Self::by(wall)
    }

    /// The same by another wall clock.
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

    /// A leadership that is never acquired.
    #[cfg(test)]
    pub(crate) fn standby_for_tests() -> Self {
        Self::standby()
    }

    /// Leadership without election: held from now on and never lost.
    pub fn always() -> Self {
        let leadership = Self::standby();
        leadership.0.term.store(1, Ordering::SeqCst);
        leadership.0.until.store(ALWAYS, Ordering::SeqCst);
        leadership.0.held.send_replace(Some(1));
        leadership
    }

    /// Whether this process may write at this very moment. Cheap; ask it right before each request.
    pub fn holds(&self) -> bool {
        self.0.holds()
    }

    /// Waits until this process leads and answers the term that begins then.
    pub async fn acquired(&self) -> Term {
        let mut held = self.0.held.subscribe();
        let number = held.wait_for(Option::is_some).await.map(|held| *held);
        let number = match number {
            Ok(held) => held.unwrap_or_default(),
            // The sender lives in `self`, so this can't happen; no term is the safe answer.
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
        // Without a sender nobody leads either.
        let _ = held.wait_for(Option::is_none).await;
    }
}

/// One unbroken time of leading. Work that was begun in a term must not write in a later one.
#[derive(Clone, Debug)]
pub struct Term {
    inner: Arc<Inner>,
    number: u64,
}

impl Term {
    /// Whether this process may write at this very moment, in this term.
    pub fn holds(&self) -> bool {
        // In this order: see `Inner::term`.
        self.inner.holds() && self.inner.term.load(Ordering::SeqCst) == self.number
    }

    /// Waits until this term is over, even if another one has begun since.
    pub async fn lost(&self) {
        let mut held = self.inner.held.subscribe();
        let _ = held.wait_for(|held| *held != Some(self.number)).await;
    }

    /// The how manieth term of this process it is, from one.
    pub fn number(&self) -> u64 {
        self.number
    }
}
