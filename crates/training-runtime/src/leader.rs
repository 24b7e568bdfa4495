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
//! - A machine that is suspended as a whole stops its monotonic clock as well. So the wall clock must not have jumped beyond the
//!   deadline either; if it has, the term is over, and a new one begins with a renewal.
//!
//! What remains is a write that was sent before the process stopped, and arrives later: it is refused by the preconditions that
//! every write carries.

mod election;
mod leadership;
mod store;

use std::time::Duration;

use thiserror::Error;
use tokio::sync::oneshot;

pub use leadership::{ElectionConfig, Leadership, Term};
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
