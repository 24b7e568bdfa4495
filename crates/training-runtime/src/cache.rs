//! The memory limit of cached jobs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The memory budget for jobs.
///
/// Units: bytes, by estimate.
#[derive(Debug)]
pub struct Cache {
    size: usize,
    taken: AtomicUsize,
    /// Whether the log has warned already.
    full: AtomicBool,
}

/// A share of the budget, returned when it is dropped.
#[derive(Clone, Debug)]
pub struct Share(#[expect(dead_code, reason = "returns the share when dropped")] Arc<Part>);

#[derive(Debug)]
struct Part {
    cache: Arc<Cache>,
    bytes: usize,
}

impl Default for Cache {
    /// Returns an unlimited cache.
    fn default() -> Self {
        Self::new(usize::MAX)
    }
}

impl Cache {
    /// Creates a cache of this size.
    pub fn new(size: usize) -> Self {
        Self {
            size,
            taken: AtomicUsize::new(0),
            full: AtomicBool::new(false),
        }
    }

    /// Reserves a share of the budget; `None` if too little is left.
    pub fn share(self: &Arc<Self>, bytes: usize) -> Option<Share> {
        let add = |taken: usize| taken.checked_add(bytes).filter(|sum| *sum <= self.size);
        self.taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .ok()?;
        let cache = Arc::clone(self);
        Some(Share(Arc::new(Part { cache, bytes })))
    }

    /// Logs that a job did not fit, once until half of the cache is free again.
    pub fn warn(&self) {
        if !self.full.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                bytes = self.size,
                "the cache of jobs is full: further jobs are read whenever they are reconciled; raise --job-cache-mib and the memory limit"
            );
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let before = self.cache.taken.fetch_sub(self.bytes, Ordering::Relaxed);
        if before - self.bytes <= self.cache.size / 2 {
            self.cache.full.store(false, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_can_be_taken_again() {
        let cache = Arc::new(Cache::new(100));
        let most = cache.share(90).unwrap();
        let same = most.clone();
        assert!(cache.share(11).is_none());
        drop(most);
        assert!(cache.share(11).is_none(), "a copy holds it");
        drop(same);
        assert!(cache.share(100).is_some());
        assert!(cache.share(101).is_none());
    }
}
