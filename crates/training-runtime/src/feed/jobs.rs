//! The jobs themselves: what was stored last, as far as we know.

use std::collections::HashMap;
use std::sync::Arc;

use kube::ResourceExt;
use parking_lot::Mutex;
use training_core::{Framework, Stored, Uid};

use super::ended::{Ended, Packer};
use super::slim::version;
use crate::key::{JobKey, Scope};

/// What the existing clients store to compute their patches; as large as the job, and nobody's business here.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// What the operator's own annotations begin with.
const OURS: &str = "trainyard.dev/";

/// All jobs of one kind.
#[derive(Debug)]
pub struct Jobs<J> {
    inner: Mutex<Inner<J>>,
}

#[derive(Debug)]
struct Inner<J> {
    jobs: HashMap<JobKey, Kept<J>>,
    /// The next state of a scope, while its list is coming in.
    incoming: HashMap<Scope, HashMap<JobKey, Kept<J>>>,
    packer: Packer,
}

/// A job in memory: whole while it lives, and small from its end on, when hardly anybody asks for it.
#[derive(Debug)]
enum Kept<J> {
    Whole(Arc<J>),
    Ended(Box<Ended>),
}

impl<J> Clone for Kept<J> {
    fn clone(&self) -> Self {
        match self {
            Self::Whole(job) => Self::Whole(Arc::clone(job)),
            Self::Ended(ended) => Self::Ended(ended.clone()),
        }
    }
}

impl<J: Stored> Kept<J> {
    /// Keeps a job without what is never read; an ended one without its templates and its users' annotations, and as small as can be.
    fn new(mut job: J, packer: &mut Packer) -> Self {
        job.meta_mut().managed_fields = None;
        job.annotations_mut().remove(LAST_APPLIED);
        if !job.has_ended() {
            return Self::Whole(Arc::new(job));
        }
        job.shrink();
        job.annotations_mut().retain(|key, _| key.starts_with(OURS));
        packer
            .pack(&job)
            .map_or_else(|| Self::Whole(Arc::new(job)), |e| Self::Ended(Box::new(e)))
    }

    /// The job; `None` only if it can't be read back.
    fn job(&self) -> Option<Arc<J>> {
        match self {
            Self::Whole(job) => Some(Arc::clone(job)),
            Self::Ended(ended) => ended.unpack().map(Arc::new),
        }
    }

    /// What tells it from another of its name.
    fn uid(&self) -> Option<Uid> {
        match self {
            Self::Whole(job) => job.meta().uid.as_deref().and_then(Uid::parse),
            Self::Ended(ended) => Some(ended.uid),
        }
    }

    fn version(&self) -> u64 {
        match self {
            Self::Whole(job) => version(job.meta()),
            Self::Ended(ended) => ended.version,
        }
    }
}

impl<J> Default for Jobs<J> {
    fn default() -> Self {
        Self {
            inner: Mutex::new(Inner {
                jobs: HashMap::new(),
                incoming: HashMap::new(),
                packer: Packer::default(),
            }),
        }
    }
}

impl<J: Stored> Jobs<J> {
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
        let key = Self::key(&job);
        let inner = &mut *self.inner.lock();
        if let Some(incoming) = inner.incoming.get_mut(scope) {
            incoming.insert(key, Kept::new(job, &mut inner.packer));
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
                next.insert(key.clone(), job.clone());
                continue;
            }
            // A list may be older than our own last write to the same job.
            let stale = next
                .get(key)
                .is_some_and(|n| n.uid() == job.uid() && n.version() < job.version());
            if stale {
                next.insert(key.clone(), job.clone());
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
        let key = Self::key(&job);
        let inner = &mut *self.inner.lock();
        let (uid, seen) = (
            job.meta().uid.as_deref().and_then(Uid::parse),
            version(job.meta()),
        );
        let older = |known: &Kept<J>| known.uid() == uid && seen <= known.version();
        if inner.jobs.get(&key).is_some_and(older) {
            return false;
        }
        let job = Kept::new(job, &mut inner.packer);
        for (_, incoming) in inner
            .incoming
            .iter_mut()
            .filter(|(scope, _)| scope.covers(&key))
        {
            incoming.insert(key.clone(), job.clone());
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
        let (uid, base) = (
            written.meta().uid.as_deref().and_then(Uid::parse),
            version(written.meta()),
        );
        if known.uid() == uid && known.version() == base {
            let mut next = J::clone(written);
            next.set_status(status);
            next.meta_mut().resource_version = Some(resource_version);
            *known = Kept::new(next, &mut inner.packer);
        }
    }

    /// A job.
    pub fn get(&self, key: &JobKey) -> Option<Arc<J>> {
        let kept = self.inner.lock().jobs.get(key).cloned();
        kept?.job()
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

/// The jobs of a framework.
pub type JobsOf<F> = Jobs<<F as Framework>::Job>;
