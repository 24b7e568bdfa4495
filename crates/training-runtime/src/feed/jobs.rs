//! The jobs themselves: what was stored last, as far as we know.

use std::collections::HashMap;
use std::sync::Arc;

use kube::ResourceExt;
use parking_lot::Mutex;
use training_core::{Framework, JobState, TrainingJob};

use super::slim::version;
use crate::key::{JobKey, Scope};

/// What the existing clients store to compute their patches; as large as the job, and nobody's business here.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// All jobs of one kind.
#[derive(Debug)]
pub struct Jobs<J> {
    inner: Mutex<Inner<J>>,
}

#[derive(Debug)]
struct Inner<J> {
    jobs: HashMap<JobKey, Arc<J>>,
    /// The next state of a scope, while its list is coming in.
    incoming: HashMap<Scope, HashMap<JobKey, Arc<J>>>,
}

impl<J> Default for Jobs<J> {
    fn default() -> Self {
        Self {
            inner: Mutex::new(Inner {
                jobs: HashMap::new(),
                incoming: HashMap::new(),
            }),
        }
    }
}

impl<J: TrainingJob> Jobs<J> {
    /// The key of a job.
    pub fn key(job: &J) -> JobKey {
        JobKey::new(
            job.meta().namespace.as_deref().unwrap_or_default(),
            job.meta().name.as_deref().unwrap_or_default(),
        )
    }

    /// A list begins.
    pub fn begin_list(&self, scope: &Scope) {
        self.inner
            .lock()
            .incoming
            .insert(scope.clone(), HashMap::new());
    }

    /// One job of a list.
    pub fn listed(&self, scope: &Scope, job: J) {
        let job = Arc::new(pruned(job));
        if let Some(incoming) = self.inner.lock().incoming.get_mut(scope) {
            incoming.insert(Self::key(&job), job);
        }
    }

    /// The list is complete: returns every job in its scope that is there, and every one that is gone.
    pub fn end_list(&self, scope: &Scope) -> (Vec<JobKey>, Vec<JobKey>) {
        let inner = &mut *self.inner.lock();
        let Some(mut next) = inner.incoming.remove(scope) else {
            return Default::default();
        };
        for (key, job) in &inner.jobs {
            if !scope.covers(key) {
                next.insert(key.clone(), Arc::clone(job));
                continue;
            }
            // A list may be older than our own last write to the same job.
            let stale = next.get(key).is_some_and(|n| {
                n.meta().uid == job.meta().uid && version(n.meta()) < version(job.meta())
            });
            if stale {
                next.insert(key.clone(), Arc::clone(job));
            }
        }
        let gone = inner
            .jobs
            .keys()
            .filter(|k| !next.contains_key(*k))
            .cloned()
            .collect();
        inner.jobs = next;
        let there = inner
            .jobs
            .keys()
            .filter(|k| scope.covers(k))
            .cloned()
            .collect();
        (there, gone)
    }

    /// A job as the watch shows it; true if it is news.
    pub fn apply(&self, job: J) -> bool {
        let job = Arc::new(pruned(job));
        let key = Self::key(&job);
        let inner = &mut *self.inner.lock();
        let older = |known: &Arc<J>| {
            known.meta().uid == job.meta().uid && version(job.meta()) <= version(known.meta())
        };
        if inner.jobs.get(&key).is_some_and(older) {
            return false;
        }
        for (_, incoming) in inner
            .incoming
            .iter_mut()
            .filter(|(scope, _)| scope.covers(&key))
        {
            incoming.insert(key.clone(), Arc::clone(&job));
        }
        inner.jobs.insert(key, job);
        true
    }

    /// A job is gone, or can't be read any more.
    pub fn remove(&self, key: &JobKey) {
        let inner = &mut *self.inner.lock();
        for incoming in inner.incoming.values_mut() {
            incoming.remove(key);
        }
        inner.jobs.remove(key);
    }

    /// Our own status write was answered: the job is now at this version, with this status.
    pub fn written(&self, written: &Arc<J>, status: J::Status, resource_version: String) {
        let key = Self::key(written);
        let inner = &mut *self.inner.lock();
        let Some(known) = inner.jobs.get_mut(&key) else {
            return;
        };
        // Only on top of exactly what the write was based on; otherwise the watch has been faster and knows more.
        let base = known.meta().uid == written.meta().uid
            && known.meta().resource_version == written.meta().resource_version;
        if base {
            let mut next = J::clone(known);
            next.set_status(status);
            next.meta_mut().resource_version = Some(resource_version);
            *known = Arc::new(pruned(next));
        }
    }

    /// A job.
    pub fn get(&self, key: &JobKey) -> Option<Arc<J>> {
        self.inner.lock().jobs.get(key).cloned()
    }

    /// Number of jobs.
    pub fn len(&self) -> usize {
        self.inner.lock().jobs.len()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if a namespace still has a job.
    pub fn any_in(&self, namespace: &str) -> bool {
        self.inner
            .lock()
            .jobs
            .keys()
            .any(|k| &*k.namespace == namespace)
    }
}

/// Drops what is never read. A finished job keeps its policy and its status.
fn pruned<J: TrainingJob>(mut job: J) -> J {
    job.meta_mut().managed_fields = None;
    job.annotations_mut().remove(LAST_APPLIED);
    if job.status().is_some_and(|s| s.recall().is_finished()) {
        job.shrink();
    }
    job
}

/// The jobs of a framework.
pub type JobsOf<F> = Jobs<<F as Framework>::Job>;
