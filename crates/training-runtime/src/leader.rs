//! Leader election with a Lease.
//!
//! The election runs on its own thread, with its own runtime and connection, so that neither a slow reconcile nor a slow write costs
//! the lease. Writers check a [`Leadership`] right before each request; it consults the monotonic clock at that moment, so a process
//! that was stopped for a while writes nothing when it resumes.
//!
//! - The deadline counts from *before* the renewal request was sent.
//! - Another holder's lease expires once *we* have not seen it change for its duration. Clocks of different machines are never compared.
//! - Writes carry the resourceVersion, so a lost race is a conflict and never a second leader.
//! - Suspending the whole machine stops its monotonic clock as well. So the term also ends if the wall clock jumps beyond the
//!   deadline; a new term begins with a renewal.
//!
//! One case remains: a write sent before the process stopped may arrive later. The preconditions of every write reject it.

mod election;
mod leadership;
mod store;

use std::time::Duration;

use thiserror::Error;
use tokio::sync::oneshot;

pub use leadership::{ElectionConfig, Leadership, Term};
pub use store::{KubeLeases, LeaseStore};

use election::Election;

/// The election thread could not be started, or ended unexpectedly.
#[derive(Debug, Error)]
pub enum ElectionError {
    /// The operating system provided no thread or runtime.
    #[error("start the election thread: {0}")]
    Start(#[from] std::io::Error),
    /// The thread is gone; the process should exit, because it can never lead again.
    #[error("the election thread ended unexpectedly: {0}")]
    Ended(String),
}

/// A running election; keeps its thread alive. If dropped without [`ElectionHandle::release`], the process stops leading at once, and
/// others take over when the lease expires.
#[derive(Debug)]
pub struct ElectionHandle {
    release: oneshot::Sender<()>,
    ended: oneshot::Receiver<String>,
}

impl ElectionHandle {
    /// Waits for the thread to end by itself, which it never should.
    pub async fn ended(&mut self) -> ElectionError {
        let why = (&mut self.ended).await;
        ElectionError::Ended(why.unwrap_or_else(|_| "it panicked".to_owned()))
    }

    /// Stops leading and clears the holder, so that a standby need not wait for the lease to expire. Gives up after `limit`.
    pub async fn release(self, limit: Duration) {
        let Self { release, ended } = self;
        if release.send(()).is_ok() && tokio::time::timeout(limit, ended).await.is_err() {
            tracing::warn!("the lease was not released in time; it will expire");
        }
    }
}

/// Ends the leadership when the election ends, by return or by panic.
struct LoseAtEnd(Leadership);

impl Drop for LoseAtEnd {
    fn drop(&mut self) {
        self.0.0.lose();
    }
}

/// Starts the election on its own thread. `connect` runs there, so that the connection's tasks do too.
///
/// # Errors
/// If no thread or runtime is available.
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
            // The receiver may be gone.
            let _ = end.send(why);
        })?;
    Ok((leadership, ElectionHandle { release, ended }))
}

#[cfg(test)]
mod tests;
