//! The receiver of a feed's events.

use kube_runtime::watcher;

use crate::key::{JobKey, Scope};

/// Receives the events of feeds.
pub trait Listener: Send + Sync + 'static {
    /// Queues a job.
    fn enqueue(&self, key: JobKey);
    /// A child of a job is gone: a taken name may be free.
    fn child_deleted(&self, key: JobKey);
    /// A job is gone.
    fn forget(&self, key: &JobKey);
    /// A job is unreadable and set aside.
    fn unreadable(&self, metadata: &kube::core::ObjectMeta, error: &str);
    /// A list is complete, or a list or watch failed with an error.
    fn watching(&self, feed: &'static str, scope: &Scope, error: Option<&watcher::Error>);
    /// The availability of a kind changed: queues these jobs.
    fn offered(&self, jobs: Vec<JobKey>) {
        for key in jobs {
            self.enqueue(key);
        }
    }
    /// A watch has been silent for so long that its cache may be stale; or it receives data again.
    fn silent(&self, feed: &'static str, scope: &Scope, silent: bool);
}
