//! Who may write: election by a Lease.
//!
//! The election runs on a thread of its own, with its own runtime and connection, so that neither
//! a slow pass nor a slow write costs the leadership. Others hold a [`Leadership`] and ask it right
//! before each request; the answer is computed from the monotonic clock at that moment, so a process
//! that was stopped for a while writes nothing when it wakes.
//!
//! - The deadline counts from *before* the renewing request was sent.
//! - Whether another's lease has expired is judged by how long *we* have not seen it change. Clocks
//!   of different machines are never compared.
//! - Writes carry the resourceVersion, so a lost race is a conflict and never a second leader.
//!
//! A machine that is suspended as a whole stops its monotonic clock as well; what is written then is
//! refused by the preconditions that every write carries.

mod election;
mod store;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use thiserror::Error;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

pub use store::{KubeLeases, LeaseStore};

use election::Election;

/// The election thread could not be started, or ended although nobody asked it to.
#[derive(Debug, Error)]
pub enum ElectionError {
    /// The operating system gave no thread or runtime.
    #[error("start the election thread: {0}")]
    Start(#[from] std::io::Error),
    /// The thread is gone; the process should end, because it can never lead again.
    #[error("the election thread ended by itself: {0}")]
    Ended(String),
}

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
struct Inner {
    origin: Instant,
    /// Nanoseconds after `origin` until which this process may write; 0: not at all.
    until: AtomicU64,
    /// Number of the present term; raised before `until` is, so that a reader who saw the new
    /// `until` also sees the new term.
    term: AtomicU64,
    /// The number of the term that is held, for those who wait.
    held: watch::Sender<Option<u64>>,
}

impl Inner {
    fn holds(&self) -> bool {
        match self.until.load(Ordering::SeqCst) {
            ALWAYS => true,
            until => self.nanos(Instant::now()) < until,
        }
    }

    fn nanos(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.origin).as_nanos();
        u64::try_from(since).unwrap_or(ALWAYS - 1)
    }

    /// Leads until a time; begins a new term unless one is held.
    fn hold(&self, until: Instant) {
        let new = self.held.borrow().is_none();
        if new {
            self.term.fetch_add(1, Ordering::SeqCst);
        }
        self.until.store(self.nanos(until), Ordering::SeqCst);
        if new {
            self.held
                .send_replace(Some(self.term.load(Ordering::SeqCst)));
        }
    }

    fn lose(&self) {
        self.until.store(0, Ordering::SeqCst);
        if self.held.borrow().is_some() {
            self.held.send_replace(None);
        }
    }
}

/// Whether this process may write, now.
#[derive(Clone, Debug)]
pub struct Leadership(Arc<Inner>);

impl Leadership {
    fn standby() -> Self {
        Self(Arc::new(Inner {
            origin: Instant::now(),
            until: AtomicU64::new(0),
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

/// The running election; keeps the thread alive. Dropped without [`ElectionHandle::release`], the
/// process stops leading at once and others take over when the lease expires.
#[derive(Debug)]
pub struct ElectionHandle {
    release: oneshot::Sender<()>,
    ended: oneshot::Receiver<String>,
}

impl ElectionHandle {
    /// Waits for the thread to end by itself, which it should not.
    pub async fn ended(&mut self) -> ElectionError {
        let why = (&mut self.ended).await;
        ElectionError::Ended(why.unwrap_or_else(|_| "it panicked".to_owned()))
    }

    /// Stops leading and clears the holder, so that a standby needn't wait for the lease to expire.
    /// Gives up after `limit`.
    pub async fn release(self, limit: Duration) {
        let Self { release, ended } = self;
        if release.send(()).is_ok() && tokio::time::timeout(limit, ended).await.is_err() {
            tracing::warn!("the lease was not released in time; it will expire");
        }
    }
}

/// Loses the leadership however the election ends, by return or by panic.
struct LoseAtEnd(Leadership);

impl Drop for LoseAtEnd {
    fn drop(&mut self) {
        self.0.0.lose();
    }
}

/// Starts the election on its own thread. `connect` runs there, so that the connection's tasks live
/// there as well.
///
/// # Errors
/// If there is no thread or runtime to be had.
pub fn elect<S, C, E>(
    config: ElectionConfig,
    connect: C,
) -> Result<(Leadership, ElectionHandle), ElectionError>
where
    S: LeaseStore,
    C: FnOnce() -> Result<S, E> + Send + 'static,
    E: std::fmt::Display,
{
    let leadership = Leadership::standby();
    let (release, released) = oneshot::channel();
    let (end, ended) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let lose = LoseAtEnd(leadership.clone());
    std::thread::Builder::new()
        .name("election".to_owned())
        .spawn(move || {
            let lose = lose;
            let why = runtime.block_on(async {
                match connect() {
                    Ok(store) => {
                        Election::new(config, store, lose.0.clone())
                            .run(released)
                            .await;
                        "it was released".to_owned()
                    }
                    Err(error) => error.to_string(),
                }
            });
            drop(lose);
            // Nobody may be waiting.
            let _ = end.send(why);
        })?;
    Ok((leadership, ElectionHandle { release, ended }))
}

#[cfg(test)]
mod tests;
