//! The jobs that were in use last, decoded.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::key::JobKey;

/// Maximum number of jobs.
const MAX_JOBS: usize = 128;
/// Maximum memory of all jobs together.
///
/// Units: bytes, by estimate.
const MAX_MEMORY: usize = 2 * 1024 * 1024;
/// A larger job is not kept.
///
/// Units: bytes, by estimate.
const MAX_JOB_MEMORY: usize = MAX_MEMORY / 16;

/// Decoded jobs, the last used one at the end. A job that starts or ends is reconciled several times within a second; this
/// decodes it once.
#[derive(Debug)]
pub(super) struct Decoded<J> {
    jobs: VecDeque<(JobKey, Arc<J>, usize)>,
    memory: usize,
}

impl<J> Default for Decoded<J> {
    fn default() -> Self {
        Self {
            jobs: VecDeque::new(),
            memory: 0,
        }
    }
}

impl<J> Decoded<J> {
    /// Removes and returns a job.
    pub(super) fn take(&mut self, key: &JobKey) -> Option<Arc<J>> {
        // Few enough for a linear search, most likely near the end.
        let at = self.jobs.iter().rposition(|(of, ..)| of == key)?;
        let (_, job, memory) = self.jobs.remove(at)?;
        self.memory -= memory;
        Some(job)
    }

    /// Keeps a job in place of its former version, and drops those that were used longest ago.
    pub(super) fn keep(&mut self, key: JobKey, job: Arc<J>, memory: usize) {
        drop(self.take(&key));
        if memory > MAX_JOB_MEMORY {
            return;
        }
        self.jobs.push_back((key, job, memory));
        self.memory += memory;
        while self.jobs.len() > MAX_JOBS || self.memory > MAX_MEMORY {
            let Some((.., memory)) = self.jobs.pop_front() else {
                break;
            };
            self.memory -= memory;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: usize) -> JobKey {
        JobKey::new("team", &n.to_string())
    }

    #[test]
    fn the_jobs_that_were_used_last_are_kept_within_the_limits() {
        for (memory, most) in [(1, MAX_JOBS), (MAX_JOB_MEMORY, 16), (MAX_JOB_MEMORY + 1, 0)] {
            let mut decoded = Decoded::default();
            for n in 0..1000 {
                decoded.keep(key(n), Arc::new(n), memory);
                // The first one stays in use.
                let first = decoded.take(&key(0));
                assert_eq!(first.is_some(), most > 0, "{n} of {memory}");
                if let Some(first) = first {
                    decoded.keep(key(0), first, memory);
                }
            }
            assert_eq!(decoded.jobs.len(), most);
            assert_eq!(decoded.memory, most * memory);
            for (n, kept) in [(0, most > 0), (1, false), (999, most > 0)] {
                assert_eq!(decoded.take(&key(n)).is_some(), kept, "{n} of {memory}");
            }
        }
    }

    #[test]
    fn a_newer_version_replaces_the_former_one() {
        let mut decoded = Decoded::default();
        decoded.keep(key(1), Arc::new("old"), 10);
        decoded.keep(key(1), Arc::new("new"), 20);
        assert_eq!(decoded.memory, 20);
        assert_eq!(decoded.take(&key(1)).as_deref(), Some(&"new"));
        assert_eq!((decoded.take(&key(1)), decoded.memory), (None, 0));
    }
}
