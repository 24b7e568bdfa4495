//! The jobs in their last known state.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use kube::ResourceExt;
use parking_lot::Mutex;
use training_core::{Framework, Phase, Size, Stored, Uid};

use super::decoded::Decoded;
use super::ended::{Ended, Packer};
use super::slim::version;
use crate::cache::{Cache, Share};
use crate::events::Regarding;
use crate::key::{JobKey, Scope};

/// The annotation from which existing clients compute their patches; as large as the job, and unused here.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The prefix of the operator's own annotations.
const OURS: &str = "trainyard.dev/";
/// A job that takes more memory needs a slot to be reconciled.
///
/// Units: bytes.
const LARGE: usize = 64 * 1024;
/// Only one job larger than this is reconciled at a time.
///
/// Units: bytes.
const HUGE: usize = 8 * 1024 * 1024;
/// Number of slots for large jobs.
const PLACES: usize = 4;

/// All jobs of one kind.
#[derive(Debug)]
pub struct Jobs<J> {
    inner: Mutex<Inner<J>>,
}

#[derive(Debug)]
struct Inner<J> {
    jobs: HashMap<JobKey, Entry>,
    /// The next state of a scope, while its list arrives.
    incoming: HashMap<Scope, HashMap<JobKey, Entry>>,
    /// Jobs under reconcile.
    open: HashMap<JobKey, Open<J>>,
    /// Jobs that were under reconcile, or changed, a moment ago.
    decoded: Decoded<J>,
    /// Large jobs that found no slot, by namespace.
    waiting: HashMap<Arc<str>, HashSet<JobKey>>,
    packer: Packer,
    cache: Arc<Cache>,
}

/// A job under reconcile.
#[derive(Debug)]
struct Open<J> {
    /// `None` while it is being read.
    job: Option<Arc<J>>,
    /// Estimated, in bytes.
    memory: usize,
}

/// How a job is stored. Small, because a hash map reserves room for up to twice its entries.
#[derive(Clone, Debug)]
enum Entry {
    /// As text, a fraction of the decoded size.
    Text(Arc<JobText>),
    /// Not cached, because the cache is full: it is read for each reconcile. True once a read was tried.
    Uncached(Box<JobMeta>, bool),
    /// Ended, and rarely read.
    Ended(Box<Ended>, Phase),
}

/// A job as text.
#[derive(Debug)]
struct JobText {
    text: Box<str>,
    meta: JobMeta,
    #[expect(dead_code, reason = "returns the share when dropped")]
    share: Share,
}

/// The identity, version and phase of a job, and its memory in bytes.
#[derive(Clone, Copy, Debug)]
struct JobMeta {
    identity: Identity,
    phase: Phase,
    memory: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    uid: Option<Uid>,
    version: u64,
}

impl Identity {
    fn of<J: Stored>(job: &J) -> Self {
        Self {
            uid: Uid::of(job.meta()),
            version: version(job.meta()),
        }
    }
}

impl Entry {
    /// Returns the job; `None` if it is not in memory or can't be decoded.
    fn job<J: Stored>(&self) -> Option<Arc<J>> {
        match self {
            Self::Text(job) => serde_json::from_str(&job.text).ok().map(Arc::new),
            Self::Uncached(..) => None,
            Self::Ended(ended, _) => ended.unpack().map(Arc::new),
        }
    }

    fn is_uncached(&self) -> bool {
        matches!(self, Self::Uncached(..))
    }

    /// Returns what is known of a job that has not ended.
    fn meta(&self) -> Option<&JobMeta> {
        match self {
            Self::Text(job) => Some(&job.meta),
            Self::Uncached(meta, _) => Some(meta),
            Self::Ended(..) => None,
        }
    }

    fn identity(&self) -> Identity {
        match self {
            Self::Text(job) => job.meta.identity,
            Self::Uncached(meta, _) => meta.identity,
            Self::Ended(ended, _) => Identity {
                uid: Some(ended.uid),
                version: ended.version,
            },
        }
    }

    fn phase(&self) -> Phase {
        match self {
            Self::Text(job) => job.meta.phase,
            Self::Uncached(meta, _) => meta.phase,
            Self::Ended(_, phase) => *phase,
        }
    }
}

/// Removes fields that are never read.
fn strip<J: Stored>(job: &mut J) {
    job.meta_mut().managed_fields = None;
    job.annotations_mut().remove(LAST_APPLIED);
}

impl<J: Stored> Inner<J> {
    /// Stores a job without unused fields; an ended one packed, without templates and user annotations. Also returns the job, unless it
    /// has ended.
    fn keep(&mut self, mut job: J) -> (Entry, Option<J>) {
        strip(&mut job);
        if job.has_ended() {
            job.shrink();
            job.annotations_mut().retain(|key, _| key.starts_with(OURS));
            if let Some(ended) = self.packer.pack(&job) {
                return (Entry::Ended(Box::new(ended), job.phase()), None);
            }
        }
        // A job that was decoded can be encoded.
        let text = serde_json::to_string(&job).unwrap_or_default();
        let meta = JobMeta {
            identity: Identity::of(&job),
            phase: job.phase(),
            memory: Size::of_text(text.as_bytes()).memory(),
        };
        let entry = if let Some(share) = self.cache.share(text.len()) {
            let text = text.into_boxed_str();
            Entry::Text(Arc::new(JobText { text, meta, share }))
        } else {
            self.cache.warn();
            Entry::Uncached(Box::new(meta), false)
        };
        (entry, Some(job))
    }

    /// Stores a newer version of a job, also if it is under reconcile.
    fn renew(&mut self, key: &JobKey, job: J) -> &Entry {
        // Free its old share first: the new version may need it.
        self.jobs.remove(key);
        self.decoded.take(key);
        let (entry, job) = self.keep(job);
        let job = job.map(Arc::new);
        match (entry.meta(), job, self.open.get_mut(key)) {
            (Some(meta), Some(job), Some(open)) => {
                open.job = Some(job);
                open.memory = meta.memory;
            }
            (Some(meta), Some(job), None) if !entry.is_uncached() => {
                self.decoded.keep(key.clone(), job, meta.memory);
            }
            (.., None) => {}
            (.., Some(_)) => drop(self.open.remove(key)),
        }
        self.jobs.entry(key.clone()).insert_entry(entry).into_mut()
    }
}

impl<J> Inner<J> {
    /// Returns true if a job of this size may be reconciled. The more slots a namespace holds, the more it leaves free.
    fn has_slot(&self, key: &JobKey, memory: usize) -> bool {
        if memory <= LARGE {
            return true;
        }
        let (mut all, mut of_namespace) = (0, 0);
        for (open, Open { memory: other, .. }) in &self.open {
            if *other > HUGE && memory > HUGE {
                return false;
            }
            if *other > LARGE {
                all += 1;
                of_namespace += usize::from(open.namespace == key.namespace);
            }
        }
        all + of_namespace < PLACES
    }

    fn stop_waiting(&mut self, key: &JobKey) {
        if let Some(waiting) = self.waiting.get_mut(&key.namespace) {
            waiting.remove(key);
            if waiting.is_empty() {
                self.waiting.remove(&key.namespace);
            }
        }
    }
}

/// The result of opening a job for a reconcile.
#[derive(Debug)]
pub enum Opened<J> {
    /// In memory, until closed.
    Cached(Arc<J>),
    /// Must be read, then inserted or closed. True if this version was opened before.
    Uncached(bool),
    /// No slot is free for this large job; holds how many jobs of its namespace wait.
    NoSlot(usize),
    /// It does not exist.
    NotFound,
}

impl<J> Jobs<J> {
    /// Creates an empty store that uses this cache.
    pub fn new(cache: Arc<Cache>) -> Self {
        Self {
            inner: Mutex::new(Inner {
                jobs: HashMap::new(),
                incoming: HashMap::new(),
                open: HashMap::new(),
                decoded: Decoded::default(),
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
    /// Returns the key of a job.
    pub fn key(job: &J) -> JobKey {
        JobKey::new(
            job.meta().namespace.as_deref().unwrap_or_default(),
            job.meta().name.as_deref().unwrap_or_default(),
        )
    }

    /// Returns the event reference of a job, whether the job is in memory or not.
    pub fn regarding(&self, key: &JobKey) -> Option<Regarding> {
        let Identity { uid, version } = self.inner.lock().jobs.get(key)?.identity();
        Some(Regarding {
            api_version: J::api_version(&()).into_owned(),
            kind: J::kind(&()).into_owned(),
            namespace: key.namespace.to_string(),
            name: key.name.to_string(),
            uid: uid.unwrap_or_default().to_string(),
            resource_version: Some(version.to_string()),
        })
    }

    /// Begins a list.
    pub fn begin_list(&self, scope: &Scope) {
        self.inner
            .lock()
            .incoming
            .insert(scope.clone(), HashMap::new());
    }

    /// Adds a job of a list.
    pub fn listed(&self, scope: &Scope, job: J) {
        let key = Self::key(&job);
        let inner = &mut *self.inner.lock();
        if inner.incoming.contains_key(scope) {
            // An unchanged job takes no additional memory while the list arrives.
            let identity = Identity::of(&job);
            let known = inner.jobs.get(&key);
            let known = known.filter(|k| k.identity() == identity && !k.is_uncached());
            let job = known.cloned().unwrap_or_else(|| inner.keep(job).0);
            if let Some(incoming) = inner.incoming.get_mut(scope) {
                incoming.insert(key, job);
            }
        }
    }

    /// Completes a list. Returns every job in its scope, and every one that is gone.
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
            // A list may be older than our own last write to the job.
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
        let jobs = &inner.jobs;
        inner.open.retain(|key, open| {
            let Some(entry) = jobs.get(key) else {
                return false;
            };
            let (now, was) = (entry.identity(), open.job.as_deref().map(Identity::of));
            match was {
                // A job recreated under the same name is another job.
                Some(was) if was.uid != now.uid => false,
                Some(was) if was.version < now.version => {
                    let (job, meta) = (entry.job(), entry.meta());
                    open.memory = meta.map_or(0, |meta| meta.memory);
                    open.job = job.filter(|_| meta.is_some());
                    open.job.is_some()
                }
                Some(_) | None => true,
            }
        });
        inner.waiting.retain(|_, waiting| {
            waiting.retain(|key| jobs.contains_key(key));
            !waiting.is_empty()
        });
        let there = inner
            .jobs
            .keys()
            .filter(|k| scope.covers(k))
            .cloned()
            .collect();
        (there, gone)
    }

    /// Stores a job from the watch; returns true if it is new or newer.
    pub fn apply(&self, job: J) -> bool {
        let key = Self::key(&job);
        let inner = &mut *self.inner.lock();
        let seen = Identity::of(&job);
        let older = |known: &Entry| {
            let known = known.identity();
            known.uid == seen.uid && seen.version <= known.version
        };
        if inner.jobs.get(&key).is_some_and(older) {
            return false;
        }
        let entry = inner.renew(&key, job).clone();
        for (scope, incoming) in &mut inner.incoming {
            if scope.covers(&key) {
                incoming.insert(key.clone(), entry.clone());
            }
        }
        true
    }

    /// Stores a job that was read again, also for the reconcile that read it. Returns whether it is newer than the stored version; `None` if
    /// the job is gone or was recreated.
    pub fn reread(&self, key: &JobKey, read: J) -> Option<bool> {
        let inner = &mut *self.inner.lock();
        let (known, seen) = (inner.jobs.get(key)?.identity(), Identity::of(&read));
        if known.uid != seen.uid {
            return None;
        }
        let newer = known.version < seen.version;
        if newer {
            // A list that is arriving may be later and lack the job, so the job is not added there.
            inner.renew(key, read);
        }
        Some(newer)
    }

    /// Removes a job that is gone or no longer readable.
    pub fn remove(&self, key: &JobKey) {
        let inner = &mut *self.inner.lock();
        for incoming in inner.incoming.values_mut() {
            incoming.remove(key);
        }
        inner.jobs.remove(key);
        inner.open.remove(key);
        inner.decoded.take(key);
        inner.stop_waiting(key);
    }

    /// Stores the result of our own status write: the new version and status.
    pub fn written(&self, written: &Arc<J>, status: J::Status, resource_version: String) {
        let key = Self::key(written);
        let inner = &mut *self.inner.lock();
        // Only if the write was based on the stored version; otherwise the watch was faster and has a newer state.
        let based = Identity::of(&**written);
        if inner
            .jobs
            .get(&key)
            .is_some_and(|known| known.identity() == based)
        {
            let mut next = J::clone(written);
            next.set_status(status);
            next.meta_mut().resource_version = Some(resource_version);
            inner.renew(&key, next);
        }
    }

    /// Returns a job, if it is in memory.
    pub fn get(&self, key: &JobKey) -> Option<Arc<J>> {
        let entry = {
            let inner = self.inner.lock();
            if let Some(job) = inner.open.get(key).and_then(|open| open.job.as_ref()) {
                return Some(Arc::clone(job));
            }
            inner.jobs.get(key).cloned()
        };
        entry?.job()
    }

    /// Returns true if a job of this name exists, cached or not.
    pub fn contains(&self, key: &JobKey) -> bool {
        self.inner.lock().jobs.contains_key(key)
    }

    /// Opens a job for a reconcile. It stays in memory until closed; only a few large ones may be open at once.
    pub fn open(&self, key: &JobKey) -> Opened<J> {
        let inner = &mut *self.inner.lock();
        let Some(entry) = inner.jobs.get(key) else {
            return Opened::NotFound;
        };
        let Some(&JobMeta {
            identity, memory, ..
        }) = entry.meta()
        else {
            return entry.job().map_or(Opened::NotFound, Opened::Cached);
        };
        if !inner.has_slot(key, memory) {
            let waiting = inner.waiting.entry(Arc::clone(&key.namespace));
            let waiting = waiting.or_default();
            waiting.insert(key.clone());
            return Opened::NoSlot(waiting.len());
        }
        inner.stop_waiting(key);
        let decoded = inner.decoded.take(key);
        let decoded = decoded.filter(|job| Identity::of(&**job) == identity);
        let entry = inner.jobs.get_mut(key);
        let job = decoded.or_else(|| entry.as_ref()?.job());
        let open = Open {
            job: job.clone(),
            memory,
        };
        inner.open.insert(key.clone(), open);
        match (job, entry) {
            (Some(job), _) => Opened::Cached(job),
            (None, Some(Entry::Uncached(_, tried))) => {
                Opened::Uncached(std::mem::replace(tried, true))
            }
            (None, _) => Opened::Uncached(false),
        }
    }

    /// Stores a job that was read. `None` if the job no longer exists, or is newer than what was read.
    pub fn insert_read(&self, key: &JobKey, mut job: J) -> Option<Arc<J>> {
        let inner = &mut *self.inner.lock();
        let (entry, read) = (inner.jobs.get_mut(key)?, Identity::of(&job));
        let open = inner.open.get_mut(key)?;
        let known = entry.identity();
        if known.uid != read.uid || known.version > read.version {
            return None;
        }
        if known.version < read.version {
            let meta = JobMeta {
                identity: read,
                phase: job.phase(),
                memory: open.memory,
            };
            *entry = Entry::Uncached(Box::new(meta), true);
        }
        strip(&mut job);
        let job = Arc::new(job);
        open.job = Some(Arc::clone(&job));
        Some(job)
    }

    /// Ends the reconcile of a job.
    pub fn close(&self, key: &JobKey) {
        let inner = &mut *self.inner.lock();
        let Some(Open {
            job: Some(job),
            memory,
        }) = inner.open.remove(key)
        else {
            return;
        };
        let current = |entry: &&Entry| entry.identity() == Identity::of(&*job);
        if let Some(Entry::Text(_)) = inner.jobs.get(key).filter(current) {
            inner.decoded.keep(key.clone(), job, memory);
        }
    }

    /// Returns the number of uncached jobs, which are read for each reconcile because the cache is full.
    pub fn uncached(&self) -> usize {
        let inner = self.inner.lock();
        inner
            .jobs
            .values()
            .filter(|entry| entry.is_uncached())
            .count()
    }

    /// Returns the number of large jobs that wait for a slot.
    pub fn waiting(&self) -> usize {
        self.inner.lock().waiting.values().map(HashSet::len).sum()
    }

    /// Returns the number of jobs.
    pub fn len(&self) -> usize {
        self.inner.lock().jobs.len()
    }

    /// Returns the number of jobs by namespace and phase.
    pub fn phases(&self) -> BTreeMap<(Arc<str>, Phase), usize> {
        let mut phases = BTreeMap::new();
        for (key, entry) in &self.inner.lock().jobs {
            let of = (Arc::clone(&key.namespace), entry.phase());
            *phases.entry(of).or_default() += 1;
        }
        phases
    }

    /// Returns true if there are no jobs.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if a namespace still has a job.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_of_the_map_takes_at_most_48_bytes() {
        assert!(size_of::<(JobKey, Entry)>() <= 48);
    }
}
