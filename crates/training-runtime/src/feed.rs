//! Watches fill indexes and wake jobs. Each watch runs in its own task with its own stream and backoff, so that a missing kind or
//! permission does not slow the others.

pub mod autoscaler;
pub mod child;
mod decoded;
mod ended;
mod follow;
pub mod group;
pub mod guarded;
pub mod index;
pub mod jobs;
mod listener;
pub mod namespaces;
pub mod object;
mod recent;
mod siblings;
pub mod slim;

use std::fmt::Debug;
use std::sync::Arc;

use kube::Resource;
use kube::core::NamespaceResourceScope;
use kube_runtime::watcher::Event;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::Instant;
use training_core::{
    AutoscalerView, BatchPod, Framework, ObjectKind, PodView, ServiceView, Stored, Uid,
};

use crate::key::{JobKey, Scope};
use autoscaler::{SlimAutoscaler, autoscaler_view};
use child::Child;
pub use follow::Source;
use follow::WatchStream;
use guarded::Guarded;
use index::Index;
use jobs::Jobs;
pub use listener::Listener;
use object::{Objects, SlimBatch, SlimConfigMap, SlimWholeService, Whole, object_view};
use slim::{Owned, OwnerKind, Roles, SlimPod, SlimService, batch_pod_view, pod_view, service_view};

/// Watches the jobs of one namespace, or of all. Never returns.
pub async fn watch_jobs<J: Stored>(
    feed: &'static str,
    source: Source,
    scope: Scope,
    jobs: Arc<Jobs<J>>,
    listener: Arc<impl Listener>,
    synced: watch::Sender<bool>,
) {
    // Decode one by one behind [`Guarded`]: an unreadable object must not hide the others.
    let mut events: WatchStream<Guarded<J>> = WatchStream::namespaced(feed, &source, &scope, None);
    loop {
        match events.next(&*listener).await {
            Ok(Event::Init) => jobs.begin_list(&scope),
            Ok(Event::InitApply(Guarded(Ok(job)))) => jobs.listed(&scope, job),
            Ok(Event::InitApply(Guarded(Err(invalid)))) => {
                listener.unreadable(&invalid.metadata, &invalid.error);
            }
            Ok(Event::InitDone) => {
                let (there, gone) = jobs.end_list(&scope);
                for key in &gone {
                    listener.forget(key);
                }
                for key in there {
                    listener.enqueue(key);
                }
                synced.send_replace(true);
                listener.watching(feed, &scope, None);
            }
            Ok(Event::Apply(Guarded(Ok(job)))) => {
                let key = Jobs::<J>::key(&job);
                if jobs.apply(job) {
                    listener.enqueue(key);
                }
            }
            Ok(Event::Apply(Guarded(Err(invalid)))) => {
                jobs.remove(&key_of(&invalid.metadata));
                listener.unreadable(&invalid.metadata, &invalid.error);
            }
            Ok(Event::Delete(Guarded(job))) => {
                let key = job.map_or_else(
                    |invalid| key_of(&invalid.metadata),
                    |job| Jobs::<J>::key(&job),
                );
                jobs.remove(&key);
                listener.forget(&key);
            }
            Err(error) => listener.watching(feed, &scope, Some(&error)),
        }
    }
}

pub(crate) fn key_of(meta: &kube::core::ObjectMeta) -> JobKey {
    JobKey::new(
        meta.namespace.as_deref().unwrap_or_default(),
        meta.name.as_deref().unwrap_or_default(),
    )
}

/// Returns the kind of a framework's jobs, the owner of their children.
pub fn owner_kind<F: Framework>() -> OwnerKind {
    // Both are compile-time constants of the derive; leak them once per process instead of cloning per object.
    fn constant(text: std::borrow::Cow<'static, str>) -> &'static str {
        match text {
            std::borrow::Cow::Borrowed(text) => text,
            std::borrow::Cow::Owned(text) => Box::leak(text.into_boxed_str()),
        }
    }
    OwnerKind {
        group: constant(F::Job::group(&())),
        kind: constant(F::Job::kind(&())),
        container: F::CONTAINER,
        controller: F::CONTROLLER,
        also: F::ALSO_WATCHED,
    }
}

/// Whether an object belongs to a job.
enum Seen {
    /// Not to a job of ours.
    Foreign,
    /// To a job of ours; holds the job to enqueue, if a decision may depend on the change.
    Ours(Option<JobKey>),
}

/// The target of a watch's objects.
trait Sink<K>: Send {
    fn begin_list(&mut self);
    fn listed(&mut self, object: &K);
    /// Returns the jobs to enqueue.
    fn end_list(&mut self) -> Vec<JobKey>;
    fn apply(&mut self, object: &K) -> Seen;
    /// Returns the former job of an object that does not belong to us, or no longer.
    fn remove_foreign(&mut self, object: &K) -> Option<JobKey>;
    /// Returns the object's job.
    fn deleted(&mut self, object: &K) -> Option<JobKey>;
}

/// A sink into one index.
struct IndexSink<'a, V, R> {
    index: &'a Index<V>,
    scope: &'a Scope,
    read: R,
    /// Returns true for objects whose last state is kept after their deletion, in case no reconcile has seen it yet.
    lasts: fn(&V) -> bool,
}

impl<K, V, R> Sink<K> for IndexSink<'_, V, R>
where
    K: Resource<DynamicType = ()>,
    V: Child + Send,
    R: FnMut(&K) -> Option<Owned<V>> + Send,
{
    fn begin_list(&mut self) {
        self.index.begin_list(self.scope);
    }

    fn listed(&mut self, object: &K) {
        if let Some(owned) = (self.read)(object) {
            self.index.listed(self.scope, owned);
        }
    }

    fn end_list(&mut self) -> Vec<JobKey> {
        self.index.end_list(self.scope, Instant::now())
    }

    fn apply(&mut self, object: &K) -> Seen {
        (self.read)(object).map_or(Seen::Foreign, |owned| Seen::Ours(self.index.apply(owned)))
    }

    fn remove_foreign(&mut self, object: &K) -> Option<JobKey> {
        let uid = Uid::of(object.meta())?;
        let namespace = object.meta().namespace.as_deref();
        self.index
            .remove_foreign(namespace.unwrap_or_default(), uid)
    }

    fn deleted(&mut self, object: &K) -> Option<JobKey> {
        let owned = (self.read)(object)?;
        let key = owned.key.clone();
        if (self.lasts)(&owned.view) {
            self.index.keep_deleted(owned, Instant::now());
        } else {
            self.index.deleted(&owned, Instant::now());
        }
        Some(key)
    }
}

/// Two indexes that share a watch; each object is in one of them.
impl<K, A: Sink<K>, B: Sink<K>> Sink<K> for (A, B) {
    fn begin_list(&mut self) {
        self.0.begin_list();
        self.1.begin_list();
    }

    fn listed(&mut self, object: &K) {
        self.0.listed(object);
        self.1.listed(object);
    }

    fn end_list(&mut self) -> Vec<JobKey> {
        let mut all = self.0.end_list();
        all.extend(self.1.end_list());
        all
    }

    fn apply(&mut self, object: &K) -> Seen {
        match self.0.apply(object) {
            Seen::Foreign => self.1.apply(object),
            ours @ Seen::Ours(_) => ours,
        }
    }

    fn remove_foreign(&mut self, object: &K) -> Option<JobKey> {
        let first = self.0.remove_foreign(object);
        self.1.remove_foreign(object).or(first)
    }

    fn deleted(&mut self, object: &K) -> Option<JobKey> {
        let first = self.0.deleted(object);
        self.1.deleted(object).or(first)
    }
}

/// Watches the pods of the framework's jobs. Never returns.
pub async fn watch_pods<F: Framework>(
    source: Source,
    scope: Scope,
    owner_kind: OwnerKind,
    (index, batch): (Arc<Index<PodView>>, Arc<Index<BatchPod>>),
    listener: Arc<impl Listener>,
    synced: watch::Sender<bool>,
) {
    let selector = owner_kind.selector();
    let (mut roles, mut batch_roles) = (Roles::default(), Roles::default());
    let own = IndexSink {
        index: &index,
        scope: &scope,
        read: |pod: &SlimPod| pod_view(pod, owner_kind, &mut roles),
        lasts: |_| false,
    };
    if !F::OBJECTS.contains(&ObjectKind::Job) {
        return fold("pods", &source, &scope, selector, own, &*listener, &synced).await;
    }
    let made = IndexSink {
        index: &batch,
        scope: &scope,
        read: |pod: &SlimPod| batch_pod_view(pod, owner_kind, &mut batch_roles),
        lasts: |_| false,
    };
    let both = (own, made);
    fold("pods", &source, &scope, selector, both, &*listener, &synced).await;
}

/// Watches the other objects of one kind that belong to the framework's jobs. Never returns.
pub async fn watch_objects(
    kind: ObjectKind,
    source: Source,
    scope: Scope,
    owner_kind: OwnerKind,
    objects: Arc<Objects>,
    listener: Arc<impl Listener>,
    synced: watch::Sender<bool>,
) {
    let place = (&source, &scope, &*listener, &synced);
    match kind {
        ObjectKind::Service => watch_whole::<SlimWholeService>(place, owner_kind, &objects).await,
        ObjectKind::ConfigMap => watch_whole::<SlimConfigMap>(place, owner_kind, &objects).await,
        ObjectKind::Job => watch_whole::<SlimBatch>(place, owner_kind, &objects).await,
    }
}

async fn watch_whole<K>(
    (source, scope, listener, synced): (&Source, &Scope, &impl Listener, &watch::Sender<bool>),
    owner_kind: OwnerKind,
    objects: &Objects,
) where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Whole
        + Clone
        + DeserializeOwned
        + Debug
        + Send
        + Sync
        + 'static,
{
    let sink = IndexSink {
        index: objects.of_kind(K::KIND),
        scope,
        read: |seen: &K| object_view(seen, owner_kind),
        // A finished Job may be deleted the moment it finishes.
        lasts: |seen| seen.batch.as_ref().is_some_and(|b| b.end.is_some()),
    };
    let selector = object::SELECTOR.to_owned();
    fold(
        object::feed(K::KIND),
        source,
        scope,
        selector,
        sink,
        listener,
        synced,
    )
    .await;
}

/// Watches the services of the framework's jobs. Never returns.
pub async fn watch_services(
    source: Source,
    scope: Scope,
    owner_kind: OwnerKind,
    index: Arc<Index<ServiceView>>,
    listener: Arc<impl Listener>,
    synced: watch::Sender<bool>,
) {
    let mut roles = Roles::default();
    let read = |service: &SlimService| service_view(service, owner_kind, &mut roles);
    let place = (source, scope, owner_kind.selector());
    watch("services", place, index, read, listener, synced).await;
}

/// Watches the `HorizontalPodAutoscaler`s of the framework's jobs. Never returns.
pub async fn watch_autoscalers(
    source: Source,
    scope: Scope,
    owner_kind: OwnerKind,
    index: Arc<Index<AutoscalerView>>,
    listener: Arc<impl Listener>,
    synced: watch::Sender<bool>,
) {
    let read = |seen: &SlimAutoscaler| autoscaler_view(seen, owner_kind);
    let place = (source, scope, owner_kind.selector());
    watch("autoscalers", place, index, read, listener, synced).await;
}

/// Watches the objects of a kind that match a selector, and indexes what `read` returns. Never returns.
pub async fn watch<K, V>(
    feed: &'static str,
    (source, scope, selector): (Source, Scope, String),
    index: Arc<Index<V>>,
    read: impl FnMut(&K) -> Option<Owned<V>> + Send,
    listener: Arc<impl Listener>,
    synced: watch::Sender<bool>,
) where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + DeserializeOwned
        + Debug
        + Send
        + 'static,
    V: Child + Send,
{
    let sink = IndexSink {
        index: &index,
        scope: &scope,
        read,
        lasts: |_| false,
    };
    fold(feed, &source, &scope, selector, sink, &*listener, &synced).await;
}

async fn fold<K>(
    feed: &'static str,
    source: &Source,
    scope: &Scope,
    selector: String,
    mut sink: impl Sink<K>,
    listener: &impl Listener,
    synced: &watch::Sender<bool>,
) where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + DeserializeOwned
        + Debug
        + Send
        + 'static,
{
    let mut events: WatchStream<K> = WatchStream::namespaced(feed, source, scope, Some(selector));
    loop {
        match events.next(listener).await {
            Ok(Event::Init) => sink.begin_list(),
            Ok(Event::InitApply(object)) => sink.listed(&object),
            Ok(Event::InitDone) => {
                for key in sink.end_list() {
                    listener.enqueue(key);
                }
                synced.send_replace(true);
                listener.watching(feed, scope, None);
            }
            Ok(Event::Apply(object)) => {
                let changed = match sink.apply(&object) {
                    Seen::Foreign => sink.remove_foreign(&object),
                    Seen::Ours(changed) => changed,
                };
                if let Some(key) = changed {
                    listener.enqueue(key);
                }
            }
            Ok(Event::Delete(object)) => {
                if let Some(key) = sink.deleted(&object) {
                    listener.child_deleted(key);
                }
            }
            Err(error) => listener.watching(feed, scope, Some(&error)),
        }
    }
}
