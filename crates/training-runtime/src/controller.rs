//! What looks after the objects of one kind, and how it hears of them.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use futures::future::BoxFuture;
use kube::core::ObjectMeta;
use kube_runtime::watcher;
use parking_lot::Mutex;
use tokio::task::JoinError;
use tokio::time::Instant;
use training_core::{Note, Stored};

use crate::admin::Health;
use crate::dispatcher::Dispatcher;
use crate::events::EventSink;
use crate::fault::Fault;
use crate::feed::jobs::Jobs;
use crate::feed::namespaces::Namespaces;
use crate::feed::{Listener, key_of};
use crate::key::{JobKey, Scope};
use crate::metrics::Metrics;
use crate::retry::Backoff;

/// Brings the objects of one kind to where they should be.
pub trait Reconciler: Send + Sync + 'static {
    /// Looks at an object once; answers when it wants to be looked at again. Passes of one object never overlap.
    fn pass(self: Arc<Self>, key: JobKey) -> BoxFuture<'static, Option<Instant>>;
    /// A pass panicked: that object rests until then, the others go on.
    fn panicked(&self, key: &JobKey, error: &JoinError) -> Instant;
    /// True if an object is there and can be read.
    fn knows(&self, key: &JobKey) -> bool;
    /// The object is gone: what the process kept about it goes.
    fn forget(&self, key: &JobKey);
    /// A child of the object is gone, and its name is free.
    fn freed(&self, key: &JobKey);
    /// An object of the kind can't be read and is set aside.
    fn unreadable(&self, metadata: &ObjectMeta, error: &str);
    /// How many objects are held in memory, by what they are.
    fn held(&self) -> Vec<(&'static str, usize)>;
}

/// A reconcile of an object panicked: an event says so, and the object rests until the time that is returned.
pub fn panicked<J: Stored>(
    key: &JobKey,
    error: &JoinError,
    jobs: &Jobs<J>,
    backoff: &Backoff<JobKey>,
    metrics: &Metrics,
    events: &EventSink,
) -> Instant {
    metrics.panicked();
    let kind = J::kind(&());
    tracing::error!(job = %key, %kind, %error, "a pass panicked: a defect of the operator");
    if let Some(about) = jobs.regarding(key) {
        let text = format!(
            "a defect of the operator stopped it from looking after this {kind}; it will try again later"
        );
        events.post(&Arc::new(about), Note::warning("InternalError", text));
    }
    let fault = Fault::Bug("a panic".to_owned());
    backoff.record_failure(key, &fault, Instant::now())
}

/// A reconciler and the queue before it: what its feeds tell comes here.
pub struct Controller {
    /// What is asked to look.
    pub(crate) reconciler: Arc<dyn Reconciler>,
    /// Whose turn it is.
    pub(crate) dispatcher: Dispatcher,
    health: Health,
    caches: Mutex<Caches>,
    /// Where not every namespace is served that is watched.
    served: Option<Arc<Namespaces>>,
    outside: Mutex<HashMap<JobKey, Option<Unreadable>>>,
    /// Namespaces whose caches have not been complete yet, and what waits there.
    incomplete: Mutex<HashMap<Scope, HashSet<JobKey>>>,
}

/// What is known of an object in a namespace that is not served, if it can't be read.
type Unreadable = (ObjectMeta, String);

#[derive(Default)]
struct Caches {
    /// Every one that there is.
    all: BTreeSet<&'static str>,
    /// What is not complete or too old; a cache is ready when it is so in every scope.
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
            incomplete: Mutex::default(),
        }
    }

    /// Nothing of a namespace that is watched by itself is looked at before its caches are complete.
    pub(crate) fn hold(&self, scope: &Scope) {
        if scope.namespace().is_some() {
            let mut incomplete = self.incomplete.lock();
            incomplete.entry(scope.clone()).or_default();
        }
    }

    /// The caches of a namespace are complete: what waits there is looked at.
    pub(crate) fn release(&self, scope: &Scope) {
        let waiting = self.incomplete.lock().remove(scope);
        for key in waiting.into_iter().flatten() {
            self.dispatcher.wake(key);
        }
    }

    /// True if everything is known of an object's namespace. Otherwise the object waits until it is.
    pub(crate) fn is_complete(&self, key: &JobKey) -> bool {
        let mut incomplete = self.incomplete.lock();
        let mut all = incomplete.iter_mut();
        let Some((_, waiting)) = all.find(|(scope, _)| scope.covers(key)) else {
            return true;
        };
        waiting.insert(key.clone());
        false
    }

    /// True if an object is to be looked at. One whose namespace is not served waits until it is.
    pub(crate) fn admits(&self, key: &JobKey) -> bool {
        self.is_served(key, None)
    }

    fn is_served(&self, key: &JobKey, unreadable: Option<Unreadable>) -> bool {
        let Some(served) = &self.served else {
            return true;
        };
        // Held while it is asked: a namespace that is served meanwhile finds what waits.
        let mut outside = self.outside.lock();
        if served.has(&key.namespace) {
            return true;
        }
        // Not what is gone or unreadable, though something of it wakes it.
        if unreadable.is_some() || self.reconciler.knows(key) {
            outside.insert(key.clone(), unreadable);
        }
        false
    }

    /// A namespace is served from now on: what waits there is looked at.
    pub(crate) fn serve(&self, namespace: &str) {
        let mut outside = self.outside.lock();
        let waiting = outside.extract_if(|key, _| &*key.namespace == namespace);
        let waiting: Vec<_> = waiting.collect();
        drop(outside);
        for (key, unreadable) in waiting {
            match unreadable {
                Some((metadata, error)) => self.reconciler.unreadable(&metadata, &error),
                None => self.dispatcher.wake(key),
            }
        }
    }

    /// Sets whether a cache is complete and fresh in a scope. Until all are, the process is not ready.
    pub fn ready(&self, cache: &'static str, scope: &Scope, ready: bool) {
        let mut caches = self.caches.lock();
        caches.all.insert(cache);
        if ready {
            caches.missing.remove(&(cache, scope.clone()));
        } else {
            caches.missing.insert((cache, scope.clone()));
        }
        let all = !caches.missing.iter().any(|(other, _)| *other == cache);
        self.health.set_ready(cache, all);
    }

    /// The term is over: a standby has no caches.
    pub(crate) fn close(&self) {
        for cache in &self.caches.lock().all {
            self.health.forget(cache);
        }
    }
}

impl Listener for Controller {
    fn wake(&self, key: JobKey) {
        self.dispatcher.wake(key);
    }

    fn freed(&self, key: JobKey) {
        self.reconciler.freed(&key);
        self.dispatcher.wake(key);
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
        // Where only the watch broke, the cache is complete as of then, and the watch is opened again where it was.
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
            tracing::info!(feed, namespace = scope.namespace(), "a watch speaks again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Told(Mutex<Vec<String>>);

    impl Reconciler for Told {
        fn pass(self: Arc<Self>, _: JobKey) -> BoxFuture<'static, Option<Instant>> {
            Box::pin(std::future::ready(None))
        }
        fn panicked(&self, _: &JobKey, _: &JoinError) -> Instant {
            Instant::now()
        }
        fn knows(&self, key: &JobKey) -> bool {
            &*key.name != "gone"
        }
        fn forget(&self, _: &JobKey) {}
        fn freed(&self, _: &JobKey) {}
        fn unreadable(&self, metadata: &ObjectMeta, error: &str) {
            let name = metadata.name.as_deref().unwrap_or_default();
            self.0.lock().push(format!("{name}: {error}"));
        }
        fn held(&self) -> Vec<(&'static str, usize)> {
            Vec::new()
        }
    }

    #[test]
    fn a_namespace_whose_caches_are_not_complete_holds_its_own_objects_alone() {
        let told: Arc<dyn Reconciler> = Arc::new(Told::default());
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
        let told = Arc::new(Told::default());
        let served = Arc::new(Namespaces::new(&["named".to_owned()], "a=b"));
        let reconciler: Arc<dyn Reconciler> = Arc::<Told>::clone(&told);
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
}
