//! The operator's cache of one kind of objects: a watch that lags, repeats and loses events, and the responses to its own requests.

use std::collections::{BTreeMap, VecDeque};

use training_core::{AutoscalerView, BatchPod, GroupView, ObjectView, PodView, ServiceView, Uid};

/// An object in a watch.
pub trait Watched: Clone {
    /// Its uid.
    fn uid(&self) -> Uid;
    /// Its resource version.
    fn version(&self) -> u64;
}

macro_rules! watched {
    ($($view:ty),*) => {$(
        impl Watched for $view {
            fn uid(&self) -> Uid {
                self.uid
            }
            fn version(&self) -> u64 {
                self.version
            }
        }
    )*};
}

watched!(PodView, ServiceView, AutoscalerView, GroupView, ObjectView);

impl Watched for BatchPod {
    fn uid(&self) -> Uid {
        self.pod.uid
    }
    fn version(&self) -> u64 {
        self.pod.version
    }
}

/// One event: an object's key, and its new state or the uid of the removed object.
pub type Event<K, V> = (K, Result<V, Uid>);

/// The cache of one watch, and the events in flight to it.
#[derive(Clone, Debug)]
pub struct Feed<K, V> {
    known: BTreeMap<K, V>,
    events: VecDeque<Event<K, V>>,
    /// Removed objects, with the version up to which events about them are outdated.
    gone: BTreeMap<Uid, u64>,
}

impl<K, V> Default for Feed<K, V> {
    fn default() -> Self {
        Self {
            known: BTreeMap::new(),
            events: VecDeque::new(),
            gone: BTreeMap::new(),
        }
    }
}

impl<K: Ord + Clone, V: Watched> Feed<K, V> {
    /// The cache.
    pub fn known(&self) -> &BTreeMap<K, V> {
        &self.known
    }

    /// Sends an event.
    pub fn send(&mut self, key: K, event: Result<V, Uid>) {
        self.events.push_back((key, event));
    }

    /// Delivers the oldest events, at most `most`. Returns the objects that they removed from the cache.
    pub fn deliver(&mut self, most: usize) -> Vec<V> {
        let count = most.min(self.events.len());
        let events: Vec<_> = self.events.drain(..count).collect();
        let removed = events
            .into_iter()
            .filter_map(|(k, event)| self.take(k, event));
        removed.collect()
    }

    /// Delivers the oldest event, which will be delivered again.
    pub fn repeat(&mut self) -> Option<V> {
        let (key, event) = self.events.front().cloned()?;
        self.take(key, event)
    }

    /// Drops the oldest event: the operator misses it until the next list.
    pub fn lose(&mut self) {
        self.events.pop_front();
    }

    /// Replaces the cache and all events in flight with a list.
    pub fn list(&mut self, all: BTreeMap<K, V>) {
        self.events.clear();
        self.known = all;
    }

    /// Updates an object, or removes it, from the response to an own request.
    pub fn answer(&mut self, key: K, now: Option<V>) {
        if let Some(view) = now {
            self.gone.remove(&view.uid());
            self.known.insert(key, view);
        } else if let Some(uid) = self.known.get(&key).map(Watched::uid) {
            self.went(&key, uid);
        }
    }

    /// Removes an object from the response to an own request.
    pub fn went(&mut self, key: &K, uid: Uid) {
        self.gone.insert(uid, u64::MAX);
        if self.known.get(key).is_some_and(|k| k.uid() == uid) {
            self.known.remove(key);
        }
    }

    /// Ignores older versions, and the removal of another object with the same key.
    fn take(&mut self, key: K, event: Result<V, Uid>) -> Option<V> {
        let known = self.known.get(&key);
        match event {
            Ok(view) => {
                let gone = self.gone.get(&view.uid());
                if known.is_none_or(|k| k.version() < view.version())
                    && gone.is_none_or(|last| *last < view.version())
                {
                    self.known.insert(key, view);
                }
                None
            }
            Err(uid) => {
                let last = known.filter(|k| k.uid() == uid)?.version();
                self.gone.entry(uid).or_insert(last);
                self.known.remove(&key)
            }
        }
    }
}
