//! A controller of one kind: its reconciler, its queue, and the events from its feeds.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use futures::future::BoxFuture;
use kube::core::ObjectMeta;
use kube_runtime::watcher;
use parking_lot::Mutex;
use tokio::task::JoinError;
use tokio::time::Instant;

use crate::admin::Health;
use crate::dispatcher::Dispatcher;
use crate::feed::namespaces::Namespaces;
use crate::feed::{Listener, key_of};
use crate::key::{JobKey, Scope};
use crate::metrics::KindPhases;

/// Reconciles the objects of one kind.
pub trait Reconciler: Send + Sync + 'static {
    /// Reconciles an object once. Returns when to requeue it. Reconciles of one object never overlap.
    fn reconcile(self: Arc<Self>, key: JobKey) -> BoxFuture<'static, Option<Instant>>;
    /// Handles a panic of a reconcile. Returns when to retry the object; others go on.
    fn panicked(&self, key: &JobKey, error: &JoinError) -> Instant;
    /// Returns true if an object exists and is readable.
    fn knows(&self, key: &JobKey) -> bool;
    /// Drops the state of an object that is gone, or no longer served.
    fn forget(&self, key: &JobKey);
    /// Called when a child of the object is gone, and its name is free.
    fn child_deleted(&self, key: &JobKey);
    /// Reports an object of the kind that can't be read.
    fn unreadable(&self, metadata: &ObjectMeta, error: &str);
    /// Returns how many objects are in memory, by kind.
    fn held(&self) -> Vec<(&'static str, usize)>;
    /// Returns the objects of the kind in their phases.
    fn phases(&self) -> KindPhases;
}

/// A reconciler and its queue. Feeds report to it.
pub struct Controller {
    /// Reconciles the objects.
    pub(crate) reconciler: Arc<dyn Reconciler>,
    /// Queues their keys.
    pub(crate) dispatcher: Dispatcher,
    health: Health,
    caches: Mutex<Caches>,
    /// The served namespaces, if fewer than the watched ones.
    served: Option<Arc<Namespaces>>,
    outside: Mutex<HashMap<JobKey, Option<Unreadable>>>,
    /// Kubernetes' own namespaces that have objects, each of which was logged once.
    ignored: Mutex<HashSet<Arc<str>>>,
    /// Namespaces whose caches have not synced yet, and their waiting objects.
    incomplete: Mutex<HashMap<Scope, HashSet<JobKey>>>,
}

/// The prefix of Kubernetes' own namespaces. No operator serves them: its guard policy refuses every write there, but doesn't apply
/// to objects that were stored before it, or in an install without it.
const OF_KUBERNETES: &str = "kube-";

/// The metadata of an unreadable object in an unserved namespace, and the error.
type Unreadable = (ObjectMeta, String);

#[derive(Default)]
struct Caches {
    /// Every cache.
    all: BTreeSet<&'static str>,
    /// Caches that are stale or not synced; a cache is ready once it is ready in every scope.
    missing: HashSet<(&'static str, Scope)>,
}

impl Controller {
    pub(crate) fn new(
        reconciler: Arc<dyn Reconciler>,
        health: Health,
        served: Option<Arc<Namespaces>>,
    ) -> Self {
        Self {
            reconciler,
            dispatcher: Dispatcher::default(),
            health,
            caches: Mutex::default(),
            served,
            outside: Mutex::default(),
            ignored: Mutex::default(),
            incomplete: Mutex::default(),
        }
    }

    /// Holds the objects of a namespace with watches of its own until its caches have synced.
    pub(crate) fn hold(&self, scope: &Scope) {
        if scope.namespace().is_some() {
            let mut incomplete = self.incomplete.lock();
            incomplete.entry(scope.clone()).or_default();
        }
    }

    /// Wakes the waiting objects of a namespace whose caches have synced.
    pub(crate) fn release(&self, scope: &Scope) {
        let waiting = self.incomplete.lock().remove(scope);
        for key in waiting.into_iter().flatten() {
            self.dispatcher.enqueue(key);
        }
    }

    /// Returns true if the caches of an object's namespace have synced. Otherwise the object waits until they have.
    pub(crate) fn is_complete(&self, key: &JobKey) -> bool {
        let mut incomplete = self.incomplete.lock();
        let mut all = incomplete.iter_mut();
        let Some((_, waiting)) = all.find(|(scope, _)| scope.covers(key)) else {
            return true;
        };
        waiting.insert(key.clone());
        false
    }

    /// Returns true if an object may be reconciled. If its namespace is not served, it waits until it is. Kubernetes' own namespaces
    /// are never served.
    pub(crate) fn admits(&self, key: &JobKey) -> bool {
        self.is_served(key, None)
    }

    fn is_served(&self, key: &JobKey, unreadable: Option<Unreadable>) -> bool {
        if key.namespace.starts_with(OF_KUBERNETES) {
            if unreadable.is_some() || self.reconciler.knows(key) {
                self.log_ignored(key);
            }
            return false;
        }
        let Some(served) = &self.served else {
            return true;
        };
        // Keep the lock during the check: a namespace that becomes served meanwhile must find the waiting object.
        let mut outside = self.outside.lock();
        if served.has(&key.namespace) {
            return true;
        }
        // Ignore objects that are gone or unreadable, though their children may wake them.
        if unreadable.is_some() || self.reconciler.knows(key) {
            outside.insert(key.clone(), unreadable);
        }
        false
    }

    /// Logs an ignored object, once per namespace.
    fn log_ignored(&self, key: &JobKey) {
        if self.ignored.lock().insert(Arc::clone(&key.namespace)) {
            tracing::warn!(
                namespace = &*key.namespace,
                job = %key,
                "jobs in namespaces kube-* are ignored"
            );
        }
    }

    /// Wakes the waiting objects of a namespace that is served from now on.
    pub(crate) fn serve(&self, namespace: &str) {
        let mut outside = self.outside.lock();
        let waiting = outside.extract_if(|key, _| &*key.namespace == namespace);
        let waiting: Vec<_> = waiting.collect();
        drop(outside);
        for (key, unreadable) in waiting {
            match unreadable {
                Some((metadata, error)) => self.reconciler.unreadable(&metadata, &error),
                None => self.dispatcher.enqueue(key),
            }
        }
    }

    /// Sets whether a cache is synced and fresh in a scope. The process is ready once all are.
    pub fn ready(&self, cache: &'static str, scope: &Scope, ready: bool) {
        let mut caches = self.caches.lock();
        caches.all.insert(cache);
        if ready {
            caches.missing.remove(&(cache, scope.clone()));
        } else {
            caches.missing.insert((cache, scope.clone()));
        }
        let missing = caches.missing.iter().filter(|(other, _)| *other == cache);
        let missing: Vec<&Scope> = missing.map(|(_, scope)| scope).collect();
        let namespaces: Option<BTreeSet<&str>> = missing.iter().map(|s| s.namespace()).collect();
        match namespaces.filter(|namespaces| !namespaces.is_empty()) {
            Some(namespaces) => {
                let namespaces: Vec<&str> = namespaces.into_iter().collect();
                self.health.set_unready_in(cache, &namespaces);
            }
            None => self.health.set_ready(cache, missing.is_empty()),
        }
    }

    /// Removes the caches from readiness at the end of a term, as a standby has none.
    pub(crate) fn close(&self) {
        for cache in &self.caches.lock().all {
            self.health.forget(cache);
        }
    }
}

impl Listener for Controller {
    fn enqueue(&self, key: JobKey) {
        self.dispatcher.enqueue(key);
    }

    fn child_deleted(&self, key: JobKey) {
        self.reconciler.child_deleted(&key);
        self.dispatcher.enqueue(key);
    }

    fn forget(&self, key: &JobKey) {
        self.outside.lock().remove(key);
        self.reconciler.forget(key);
        self.dispatcher.forget(key);
    }

    fn unreadable(&self, metadata: &ObjectMeta, error: &str) {
        let unreadable = (metadata.clone(), error.to_owned());
        if self.is_served(&key_of(metadata), Some(unreadable)) {
            self.reconciler.unreadable(metadata, error);
        }
    }

    fn watching(&self, feed: &'static str, scope: &Scope, error: Option<&watcher::Error>) {
        let Some(error) = error else {
            return self.ready(feed, scope, true);
        };
        // If only the watch broke, the cache was complete then, and the watch resumes where it was.
        if matches!(error, watcher::Error::InitialListFailed(_)) {
            self.ready(feed, scope, false);
        }
        let namespace = scope.namespace();
        tracing::warn!(feed, namespace, error = %error, "a watch failed; it is opened again");
    }

    fn silent(&self, feed: &'static str, scope: &Scope, silent: bool) {
        self.ready(feed, scope, !silent);
        if silent {
            tracing::warn!(
                feed,
                namespace = scope.namespace(),
                "a watch has been silent for too long"
            );
        } else {
            tracing::info!(
                feed,
                namespace = scope.namespace(),
                "a watch receives data again"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Recorded(Mutex<Vec<String>>);

    impl Reconciler for Recorded {
        fn reconcile(self: Arc<Self>, _: JobKey) -> BoxFuture<'static, Option<Instant>> {
            Box::pin(std::future::ready(None))
        }
        fn panicked(&self, _: &JobKey, _: &JoinError) -> Instant {
            Instant::now()
        }
        fn knows(&self, key: &JobKey) -> bool {
            &*key.name != "gone"
        }
        fn forget(&self, _: &JobKey) {}
        fn child_deleted(&self, _: &JobKey) {}
        fn unreadable(&self, metadata: &ObjectMeta, error: &str) {
            let name = metadata.name.as_deref().unwrap_or_default();
            self.0.lock().push(format!("{name}: {error}"));
        }
        fn held(&self) -> Vec<(&'static str, usize)> {
            Vec::new()
        }
        fn phases(&self) -> KindPhases {
            KindPhases::default()
        }
    }

    #[test]
    fn a_namespace_whose_caches_are_not_complete_holds_its_own_objects_alone() {
        let told: Arc<dyn Reconciler> = Arc::new(Recorded::default());
        let controller = Controller::new(told, Health::new(&[]), None);
        let (calm, blind) = (Scope::new(Some("calm")), Scope::new(Some("blind")));
        controller.hold(&calm);
        controller.hold(&blind);
        controller.hold(&Scope::new(None));
        let key = |namespace: &str| JobKey::new(namespace, "a");
        assert!(!controller.is_complete(&key("calm")) && !controller.is_complete(&key("blind")));
        assert_eq!(controller.dispatcher.depth(), 0);
        controller.release(&calm);
        assert_eq!(controller.dispatcher.depth(), 1, "it has waited");
        assert!(controller.is_complete(&key("calm")) && !controller.is_complete(&key("blind")));
        controller.release(&blind);
        assert!(controller.is_complete(&key("blind")));
    }

    fn unreadable(namespace: &str, name: &str) -> ObjectMeta {
        ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        }
    }

    #[test]
    fn what_is_in_a_namespace_that_is_not_served_waits_for_it_unless_it_is_gone() {
        let told = Arc::new(Recorded::default());
        let served = Arc::new(Namespaces::new(&["named".to_owned()], "a=b"));
        let reconciler: Arc<dyn Reconciler> = Arc::<Recorded>::clone(&told);
        let controller = Controller::new(reconciler, Health::new(&[]), Some(Arc::clone(&served)));
        let key = |namespace: &str, name: &str| JobKey::new(namespace, name);
        assert!(controller.admits(&key("named", "a")));
        for name in ["waits", "goes", "mended"] {
            assert!(!controller.admits(&key("other", name)));
        }
        assert!(!controller.admits(&key("third", "waits")));
        assert!(!controller.admits(&key("other", "gone")));
        Listener::forget(&controller, &key("other", "goes"));
        for (namespace, name) in [("named", "bad"), ("other", "worse"), ("third", "worst")] {
            Listener::unreadable(&controller, &unreadable(namespace, name), "no spec");
        }
        assert_eq!(*told.0.lock(), ["bad: no spec"]);
        controller.serve("other");
        assert_eq!(controller.dispatcher.depth(), 2);
        assert_eq!(*told.0.lock(), ["bad: no spec", "worse: no spec"]);
        controller.serve("other");
        assert_eq!(controller.dispatcher.depth(), 2);
    }

    #[test]
    fn objects_in_kube_namespaces_are_ignored_even_if_these_are_named() {
        let named = ["kube-system".to_owned(), "kubeflow".to_owned()];
        for served in [None, Some(Arc::new(Namespaces::new(&named, "a=b")))] {
            let told = Arc::new(Recorded::default());
            let reconciler: Arc<dyn Reconciler> = Arc::<Recorded>::clone(&told);
            let controller = Controller::new(reconciler, Health::new(&[]), served);
            assert!(controller.admits(&JobKey::new("kubeflow", "a")));
            for namespace in ["kube-system", "kube-public", "kube-a"] {
                assert!(!controller.admits(&JobKey::new(namespace, "a")));
                assert!(!controller.admits(&JobKey::new(namespace, "b")));
                Listener::unreadable(&controller, &unreadable(namespace, "bad"), "no spec");
                controller.serve(namespace);
            }
            assert_eq!(*told.0.lock(), Vec::<String>::new());
            assert_eq!(controller.dispatcher.depth(), 0);
            assert_eq!(controller.ignored.lock().len(), 3, "each is logged once");
        }
    }
}
