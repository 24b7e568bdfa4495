//! Who is told what a feed sees.

use kube_runtime::watcher;

use crate::key::{JobKey, Scope};

/// What a feed tells about.
pub trait Listener: Send + Sync + 'static {
    /// A job should be looked at.
    fn wake(&self, key: JobKey);
    /// A child of a job is gone: a name that was taken may be free.
    fn freed(&self, key: JobKey);
    /// A job is gone.
    fn forget(&self, key: &JobKey);
    /// A job can't be read; it is set aside.
    fn unreadable(&self, metadata: &kube::core::ObjectMeta, error: &str);
    /// A list is complete, or a list or watch broke with an error.
    fn watching(&self, feed: &'static str, scope: &Scope, error: Option<&watcher::Error>);
    /// What is known of a kind changed: these jobs should be looked at.
    fn offered(&self, jobs: Vec<JobKey>) {
        for key in jobs {
            self.wake(key);
        }
    }
    /// A watch has said nothing for so long that what it should tell may be old; or it speaks again.
    fn silent(&self, feed: &'static str, scope: &Scope, silent: bool);
}
