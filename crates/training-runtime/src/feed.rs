//! Watch -> index -> wake-ups. Each watch runs in its own task with its own backoff; a stream of its own keeps a missing kind
//! or right from slowing the others.

pub mod index;
pub mod jobs;
pub mod slim;

use std::fmt::Debug;
use std::sync::Arc;

use futures::{Stream, StreamExt};
use kube::core::DeserializeGuard;
use kube::{Api, Client, Resource};
use kube_runtime::WatchStreamExt;
use kube_runtime::watcher::{self, Config, Event, watcher};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::Instant;
use training_api::labels;
use training_core::{Framework, PodView, ServiceView};

use crate::key::{JobKey, Scope};
use index::{Child, Index};
use jobs::Jobs;
use slim::{Owned, Parent, Roles, SlimPod, SlimService, pod_view, service_view};

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
    /// A watch said something.
    fn heard(&self, feed: &'static str);
    /// A watch is complete, or broke with an error.
    fn watching(&self, feed: &'static str, error: Option<&watcher::Error>);
}

/// One watch's scope: one namespace, or all.
fn api<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

/// The stream of a watch. Initial lists are quorum reads in pages; every reconnect waits, so that a stream that closes at once
/// costs little.
fn stream<K>(
    api: Api<K>,
    selector: Option<String>,
) -> impl Stream<Item = Result<Event<K>, watcher::Error>> + Send
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let config = selector.map_or_else(Config::default, |s| Config::default().labels(&s));
    watcher(api, config).default_backoff()
}

/// Watches the jobs of one namespace, or of all. Never returns.
pub async fn watch_jobs<F: Framework>(
    client: Client,
    scope: Scope,
    jobs: Arc<Jobs<F::Job>>,
    listener: Arc<impl Listener>,
    synced: watch::Sender<bool>,
) {
    // Decoded one by one behind a boundary: an object that can't be read must not hide the others.
    let mut events = stream(
        api::<DeserializeGuard<F::Job>>(&client, scope.namespace()),
        None,
    )
    .boxed();
    let mut broken = false;
    while let Some(event) = events.next().await {
        listener.heard("jobs");
        mend("jobs", &event, &mut broken, listener.as_ref());
        match event {
            Ok(Event::Init) => jobs.begin_list(&scope),
            Ok(Event::InitApply(DeserializeGuard(Ok(job)))) => jobs.listed(&scope, job),
            Ok(Event::InitApply(DeserializeGuard(Err(invalid)))) => {
                listener.unreadable(&invalid.metadata, &invalid.error);
            }
            Ok(Event::InitDone) => {
                let (there, gone) = jobs.end_list(&scope);
                for key in &gone {
                    listener.forget(key);
                }
                for key in there {
                    listener.wake(key);
                }
                synced.send_replace(true);
                listener.watching("jobs", None);
            }
            Ok(Event::Apply(DeserializeGuard(Ok(job)))) => {
                let key = Jobs::<F::Job>::key(&job);
                if jobs.apply(job) {
                    listener.wake(key);
                }
            }
            Ok(Event::Apply(DeserializeGuard(Err(invalid)))) => {
                jobs.remove(&key_of(&invalid.metadata));
                listener.unreadable(&invalid.metadata, &invalid.error);
            }
            Ok(Event::Delete(DeserializeGuard(job))) => {
                let key = job.map_or_else(
                    |invalid| key_of(&invalid.metadata),
                    |job| Jobs::<F::Job>::key(&job),
                );
                jobs.remove(&key);
                listener.forget(&key);
            }
            Err(error) => listener.watching("jobs", Some(&error)),
        }
    }
}

/// Tells of a watch that works again. One that is opened again where it broke has no list that would say so, only changes.
fn mend<K>(
    feed: &'static str,
    event: &Result<Event<K>, watcher::Error>,
    broken: &mut bool,
    listener: &impl Listener,
) {
    match event {
        Ok(Event::Apply(_) | Event::Delete(_)) if *broken => {
            *broken = false;
            listener.watching(feed, None);
        }
        // At the end of its list it is told anyway.
        Ok(Event::InitDone) => *broken = false,
        Ok(Event::Apply(_) | Event::Delete(_) | Event::Init | Event::InitApply(_)) => {}
        Err(_) => *broken = true,
    }
}

fn key_of(meta: &kube::core::ObjectMeta) -> JobKey {
    JobKey::new(
        meta.namespace.as_deref().unwrap_or_default(),
        meta.name.as_deref().unwrap_or_default(),
    )
}

/// The kind that the children of a framework's jobs belong to.
pub fn parent<F: Framework>() -> Parent {
    // Both are compile-time constants of the derive; leaked once per process instead of cloned per object.
    fn constant(text: std::borrow::Cow<'static, str>) -> &'static str {
        match text {
            std::borrow::Cow::Borrowed(text) => text,
            std::borrow::Cow::Owned(text) => Box::leak(text.into_boxed_str()),
        }
    }
    Parent {
        api_version: constant(F::Job::api_version(&())),
        kind: constant(F::Job::kind(&())),
        container: F::CONTAINER,
    }
}

/// The children that this operator's jobs may have: nobody else's pods ever arrive.
fn selector<F: Framework>() -> String {
    format!("{}={}", labels::OPERATOR_NAME, F::CONTROLLER)
}

/// Watches the pods of the framework's jobs. Never returns.
pub async fn watch_pods<F: Framework>(
    client: Client,
    scope: Scope,
    parent: Parent,
    index: Arc<Index<PodView>>,
    listener: Arc<impl Listener>,
    synced: watch::Sender<bool>,
) {
    let events = stream(
        api::<SlimPod>(&client, scope.namespace()),
        Some(selector::<F>()),
    );
    let mut roles = Roles::default();
    fold(
        events,
        |pod| pod_view(pod, parent, &mut roles),
        "pods",
        &scope,
        &index,
        &*listener,
        &synced,
    )
    .await;
}

/// Watches the services of the framework's jobs. Never returns.
pub async fn watch_services<F: Framework>(
    client: Client,
    scope: Scope,
    parent: Parent,
    index: Arc<Index<ServiceView>>,
    listener: Arc<impl Listener>,
    synced: watch::Sender<bool>,
) {
    let events = stream(
        api::<SlimService>(&client, scope.namespace()),
        Some(selector::<F>()),
    );
    let mut roles = Roles::default();
    fold(
        events,
        |service| service_view(service, parent, &mut roles),
        "services",
        &scope,
        &index,
        &*listener,
        &synced,
    )
    .await;
}

/// Folds a watch of children into their index.
async fn fold<K: Send, V: Child>(
    events: impl Stream<Item = Result<Event<K>, watcher::Error>> + Send,
    mut view: impl FnMut(&K) -> Option<Owned<V>>,
    feed: &'static str,
    scope: &Scope,
    index: &Index<V>,
    listener: &impl Listener,
    synced: &watch::Sender<bool>,
) {
    let mut events = std::pin::pin!(events);
    let mut broken = false;
    while let Some(event) = events.next().await {
        listener.heard(feed);
        mend(feed, &event, &mut broken, listener);
        match event {
            Ok(Event::Init) => index.begin_list(scope),
            Ok(Event::InitApply(object)) => {
                if let Some(owned) = view(&object) {
                    index.listed(scope, owned);
                }
            }
            Ok(Event::InitDone) => {
                for key in index.end_list(scope, Instant::now()) {
                    listener.wake(key);
                }
                synced.send_replace(true);
                listener.watching(feed, None);
            }
            Ok(Event::Apply(object)) => {
                if let Some(key) = view(&object).and_then(|owned| index.apply(owned)) {
                    listener.wake(key);
                }
            }
            Ok(Event::Delete(object)) => {
                if let Some(owned) = view(&object) {
                    index.deleted(&owned, Instant::now());
                    listener.freed(owned.key);
                }
            }
            Err(error) => listener.watching(feed, Some(&error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    /// Remembers whether the watch was last said to work.
    #[derive(Default)]
    struct Said(Mutex<Vec<bool>>);

    impl Listener for Said {
        fn wake(&self, _: JobKey) {}
        fn freed(&self, _: JobKey) {}
        fn forget(&self, _: &JobKey) {}
        fn unreadable(&self, _: &kube::core::ObjectMeta, _: &str) {}
        fn heard(&self, _: &'static str) {}
        fn watching(&self, _: &'static str, error: Option<&watcher::Error>) {
            self.0.lock().push(error.is_none());
        }
    }

    #[test]
    fn a_watch_that_was_opened_again_is_told_of_at_its_first_change() {
        let said = Said::default();
        let mut broken = false;
        let mut hear = |event: Result<Event<()>, watcher::Error>| {
            mend("jobs", &event, &mut broken, &said);
            said.0.lock().len()
        };
        assert_eq!(hear(Ok(Event::Apply(()))), 0, "it works all the time");
        assert_eq!(hear(Err(watcher::Error::NoResourceVersion)), 0);
        assert_eq!(hear(Ok(Event::Apply(()))), 1);
        assert_eq!(hear(Ok(Event::Delete(()))), 1, "once is enough");
        assert_eq!(hear(Err(watcher::Error::NoResourceVersion)), 1);
        assert_eq!(hear(Ok(Event::Init)), 1, "a list that is not complete");
        assert_eq!(hear(Ok(Event::InitDone)), 1, "told by the list itself");
        assert_eq!(hear(Ok(Event::Apply(()))), 1);
    }
}
