//! The jobs themselves: what was stored last, as far as we know.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kube::ResourceExt;
use parking_lot::Mutex;
use training_core::{Framework, Stored, Uid, json_size};

use super::ended::{Ended, Packer};
use super::slim::version;
use crate::cache::{Cache, Share};
use crate::key::{JobKey, Scope};

/// What the existing clients store to compute their patches; as large as the job, and nobody's business here.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// What the operator's own annotations begin with.
const OURS: &str = "trainyard.dev/";
/// A job whose text is longer is kept as text.
///
/// Units: bytes.
const LARGE: usize = 16 * 1024;
/// So many times its text a job takes in memory.
const WHOLE: usize = 4;
/// So many jobs that are not kept whole are reconciled at once.
const OPEN: usize = 4;
/// So many of them may be of one namespace.
const OPEN_IN_NAMESPACE: usize = 2;

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
    /// Jobs that are not kept whole, while they are reconciled; none while one is being read.
    open: HashMap<JobKey, Option<Arc<J>>>,
    /// Jobs that found no place there, by namespace.
    waiting: HashMap<Arc<str>, HashSet<JobKey>>,
    packer: Packer,
    cache: Arc<Cache>,
}

/// A job in memory.
#[derive(Debug)]
enum Kept<J> {
    /// It is small and lives.
    Whole(Arc<J>, Share),
    /// It is large: as text, which takes a fraction of what the job takes.
    Text(Arc<str>, Identity, Share),
    /// The cache is full: it is read when it is reconciled.
    Away(Identity),
    /// It has ended, and hardly anybody asks for it.
    Ended(Box<Ended>),
}

/// Which job it is, and in which version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    uid: Option<Uid>,
    version: u64,
}

impl Identity {
    fn of<J: Stored>(job: &J) -> Self {
        Self {
            uid: job.meta().uid.as_deref().and_then(Uid::parse),
            version: version(job.meta()),
        }
    }
}

impl<J> Clone for Kept<J> {
    fn clone(&self) -> Self {
        match self {
            Self::Whole(job, share) => Self::Whole(Arc::clone(job), share.clone()),
            Self::Text(text, identity, share) => {
                Self::Text(Arc::clone(text), *identity, share.clone())
            }
            Self::Away(identity) => Self::Away(*identity),
            Self::Ended(ended) => Self::Ended(ended.clone()),
        }
    }
}

impl<J: Stored> Kept<J> {
    /// The job; `None` if it is not in memory, or can't be read back.
    fn job(&self) -> Option<Arc<J>> {
        match self {
            Self::Whole(job, _) => Some(Arc::clone(job)),
            Self::Text(text, ..) => serde_json::from_str(text).ok().map(Arc::new),
            Self::Away(_) => None,
            Self::Ended(ended) => ended.unpack().map(Arc::new),
        }
    }

    fn is_away(&self) -> bool {
        matches!(self, Self::Away(_))
    }

    fn identity(&self) -> Identity {
        match self {
            Self::Whole(job, _) => Identity::of(&**job),
            Self::Text(_, identity, _) | Self::Away(identity) => *identity,
            Self::Ended(ended) => Identity {
                uid: Some(ended.uid),
                version: ended.version,
            },
        }
    }
}

impl<J: Stored> Inner<J> {
    /// Keeps a job without what is never read; an ended one without its templates and its users' annotations, and as small as can
    /// be. Also the job itself, if it is not kept whole.
    fn keep(&mut self, mut job: J) -> (Kept<J>, Option<Arc<J>>) {
        job.meta_mut().managed_fields = None;
        job.annotations_mut().remove(LAST_APPLIED);
        if job.has_ended() {
            job.shrink();
            job.annotations_mut().retain(|key, _| key.starts_with(OURS));
            if let Some(ended) = self.packer.pack(&job) {
                return (Kept::Ended(Box::new(ended)), None);
            }
        }
        let identity = Identity::of(&job);
        let size = json_size(&job);
        let job = Arc::new(job);
        if size <= LARGE
            && let Some(share) = self.cache.share(size * WHOLE)
        {
            return (Kept::Whole(job, share), None);
        }
        let Some(share) = self.cache.share(size) else {
            self.cache.warn();
            return (Kept::Away(identity), Some(job));
        };
        // A job that was read can be written.
        let text = serde_json::to_string(&*job).unwrap_or_default();
        (Kept::Text(text.into(), identity, share), Some(job))
    }

    /// The same for a job that is newer than what is known, and may be open.
    fn renew(&mut self, key: &JobKey, job: J) -> Kept<J> {
        let (kept, job) = self.keep(job);
        match (self.open.get_mut(key), job) {
            (Some(Some(open)), Some(job)) => *open = job,
            (Some(_), None) => drop(self.open.remove(key)),
            (Some(None) | None, _) => {}
        }
        kept
    }
}

impl<J> Inner<J> {
    fn waits_no_more(&mut self, key: &JobKey) {
        if let Some(waiting) = self.waiting.get_mut(&key.namespace) {
            waiting.remove(key);
            if waiting.is_empty() {
                self.waiting.remove(&key.namespace);
            }
        }
    }
}

/// What became of a job that is to be reconciled.
#[derive(Debug)]
pub enum Found<J> {
    /// It is in memory; one that is not kept whole until it is closed.
    Here(Arc<J>),
    /// It has to be read, and then lent or closed.
    Away,
    /// As many as may be are being reconciled, and so many of its namespace wait.
    Busy(usize),
    /// There is none.
    Gone,
}

impl<J> Jobs<J> {
    /// Without any, and with room in this cache.
    pub fn new(cache: Arc<Cache>) -> Self {
        Self {
            inner: Mutex::new(Inner {
                jobs: HashMap::new(),
                incoming: HashMap::new(),
                open: HashMap::new(),
                waiting: HashMap::new(),
                packer: Packer::default(),
                cache,
            }),
        }
    }
}

impl<J> Default for Jobs<J> {
    fn default() -> Self {
        Self::new(Arc::default())
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
        if inner.incoming.contains_key(scope) {
            // What is kept already takes no further room while the list comes in.
            let identity = Identity::of(&job);
            let known = inner.jobs.get(&key);
            let known = known.filter(|k| k.identity() == identity && !k.is_away());
            let job = known.cloned().unwrap_or_else(|| inner.keep(job).0);
            if let Some(incoming) = inner.incoming.get_mut(scope) {
                incoming.insert(key, job);
            }
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
            let known = job.identity();
            let stale = next.get(key).is_some_and(|next| {
                let next = next.identity();
                next.uid == known.uid && next.version < known.version
            });
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
        inner.open.retain(|key, _| inner.jobs.contains_key(key));
        for waiting in inner.waiting.values_mut() {
            waiting.retain(|key| inner.jobs.contains_key(key));
        }
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
        let seen = Identity::of(&job);
        let older = |known: &Kept<J>| {
            let known = known.identity();
            known.uid == seen.uid && seen.version <= known.version
        };
        if inner.jobs.get(&key).is_some_and(older) {
            return false;
        }
        let job = inner.renew(&key, job);
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
        inner.open.remove(key);
        inner.waits_no_more(key);
    }

    /// Our own status write was answered: the job is now at this version, with this status.
    pub fn written(&self, written: &Arc<J>, status: J::Status, resource_version: String) {
        let key = Self::key(written);
        let inner = &mut *self.inner.lock();
        // Only on top of exactly what the write was based on; otherwise the watch has been faster and knows more.
        let based = Identity::of(&**written);
        if inner
            .jobs
            .get(&key)
            .is_some_and(|known| known.identity() == based)
        {
            let mut next = J::clone(written);
            next.set_status(status);
            next.meta_mut().resource_version = Some(resource_version);
            let next = inner.renew(&key, next);
            inner.jobs.insert(key, next);
        }
    }

    /// A job, as far as it is in memory.
    pub fn get(&self, key: &JobKey) -> Option<Arc<J>> {
        let kept = {
            let inner = self.inner.lock();
            if let Some(Some(open)) = inner.open.get(key) {
                return Some(Arc::clone(open));
            }
            inner.jobs.get(key).cloned()
        };
        kept?.job()
    }

    /// True if there is a job of this name, wherever it is kept.
    pub fn contains(&self, key: &JobKey) -> bool {
        self.inner.lock().jobs.contains_key(key)
    }

    /// A job that is to be reconciled. One that is not kept whole stays in memory until it is closed; few of them at once, and
    /// fewer of one namespace.
    pub fn open(&self, key: &JobKey) -> Found<J> {
        let inner = &mut *self.inner.lock();
        let Some(kept) = inner.jobs.get(key) else {
            return Found::Gone;
        };
        if matches!(kept, Kept::Whole(..) | Kept::Ended(_)) {
            let job = kept.job();
            inner.waits_no_more(key);
            return job.map_or(Found::Gone, Found::Here);
        }
        let of_namespace = inner.open.keys().filter(|k| k.namespace == key.namespace);
        if inner.open.len() >= OPEN || of_namespace.count() >= OPEN_IN_NAMESPACE {
            let waiting = inner.waiting.entry(Arc::clone(&key.namespace));
            let waiting = waiting.or_default();
            waiting.insert(key.clone());
            return Found::Busy(waiting.len());
        }
        let job = kept.job();
        inner.open.insert(key.clone(), job.clone());
        inner.waits_no_more(key);
        job.map_or(Found::Away, Found::Here)
    }

    /// Lends a job that was read. False if there is no such job any more, or one that is newer than what was read.
    pub fn lend(&self, key: &JobKey, job: &Arc<J>) -> bool {
        let inner = &mut *self.inner.lock();
        let (Some(kept), read) = (inner.jobs.get_mut(key), Identity::of(&**job)) else {
            return false;
        };
        let known = kept.identity();
        if known.uid != read.uid || known.version > read.version {
            return false;
        }
        if known.version < read.version {
            *kept = Kept::Away(read);
        }
        inner.open.insert(key.clone(), Some(Arc::clone(job)));
        true
    }

    /// A job is not being reconciled any more.
    pub fn close(&self, key: &JobKey) {
        self.inner.lock().open.remove(key);
    }

    /// Number of jobs that are read when they are reconciled, because the cache is full.
    pub fn away(&self) -> usize {
        let inner = self.inner.lock();
        inner.jobs.values().filter(|kept| kept.is_away()).count()
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
