//! Watch -> index -> wake-ups. Each watch runs in its own task with its own backoff; a stream of its own keeps a missing kind
//! or right from slowing the others.

pub mod autoscaler;
mod ended;
mod follow;
pub mod group;
pub mod guarded;
pub mod index;
pub mod jobs;
pub mod slim;

use std::fmt::Debug;
use std::sync::Arc;

use kube::Resource;
use kube::core::NamespaceResourceScope;
use kube_runtime::watcher::{self, Event};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::Instant;
use training_api::labels;
use training_core::{AutoscalerView, Framework, PodView, ServiceView, Uid};

use crate::key::{JobKey, Scope};
use autoscaler::{SlimAutoscaler, autoscaler_view};
use follow::Follow;
pub use follow::Source;
use guarded::Guarded;
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

/// Watches the jobs of one namespace, or of all. Never returns.
pub async fn watch_jobs<F: Framework>(
    source: Source,
    scope: Scope,
    jobs: Arc<Jobs<F::Job>>,
    listener: Arc<impl Listener>,
    synced: watch::Sender<bool>,
) {
    // Decoded one by one behind a boundary: an object that can't be read must not hide the others.
    let mut events: Follow<Guarded<F::Job>> = Follow::new("jobs", &source, &scope, None);
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
                    listener.wake(key);
                }
                synced.send_replace(true);
                listener.watching("jobs", &scope, None);
            }
            Ok(Event::Apply(Guarded(Ok(job)))) => {
                let key = Jobs::<F::Job>::key(&job);
                if jobs.apply(job) {
                    listener.wake(key);
                }
            }
            Ok(Event::Apply(Guarded(Err(invalid)))) => {
                jobs.remove(&key_of(&invalid.metadata));
                listener.unreadable(&invalid.metadata, &invalid.error);
            }
            Ok(Event::Delete(Guarded(job))) => {
                let key = job.map_or_else(
                    |invalid| key_of(&invalid.metadata),
                    |job| Jobs::<F::Job>::key(&job),
                );
                jobs.remove(&key);
                listener.forget(&key);
            }
            Err(error) => listener.watching("jobs", &scope, Some(&error)),
        }
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
        controller: F::CONTROLLER,
    }
}

/// Watches the pods of the framework's jobs. Never returns.
pub async fn watch_pods<F: Framework>(
    source: Source,
    scope: Scope,
    parent: Parent,
    index: Arc<Index<PodView>>,
    listener: Arc<impl Listener>,
    synced: watch::Sender<bool>,
) {
    let mut roles = Roles::default();
    let view = |pod: &SlimPod| pod_view(pod, parent, &mut roles);
    fold::<F, _, _>("pods", &source, &scope, view, &index, &*listener, &synced).await;
}

/// Watches the services of the framework's jobs. Never returns.
pub async fn watch_services<F: Framework>(
    source: Source,
    scope: Scope,
    parent: Parent,
    index: Arc<Index<ServiceView>>,
    listener: Arc<impl Listener>,
    synced: watch::Sender<bool>,
) {
    let mut roles = Roles::default();
    let view = |service: &SlimService| service_view(service, parent, &mut roles);
    fold::<F, _, _>(
        "services", &source, &scope, view, &index, &*listener, &synced,
    )
    .await;
}

/// Watches the autoscalers of the framework's jobs. Never returns.
pub async fn watch_autoscalers<F: Framework>(
    source: Source,
    scope: Scope,
    parent: Parent,
    index: Arc<Index<AutoscalerView>>,
    listener: Arc<impl Listener>,
    synced: watch::Sender<bool>,
) {
    let view = |seen: &SlimAutoscaler| autoscaler_view(seen, parent);
    fold::<F, _, _>(
        "autoscalers",
        &source,
        &scope,
        view,
        &index,
        &*listener,
        &synced,
    )
    .await;
}

/// Watches the children of one type that the framework's jobs have, and folds them into their index.
async fn fold<F: Framework, K, V: Child>(
    feed: &'static str,
    source: &Source,
    scope: &Scope,
    mut view: impl FnMut(&K) -> Option<Owned<V>>,
    index: &Index<V>,
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
    // The children that this operator's jobs may have: nobody else's ever arrive.
    let selector = format!("{}={}", labels::OPERATOR_NAME, F::CONTROLLER);
    let mut events: Follow<K> = Follow::new(feed, source, scope, Some(selector));
    loop {
        match events.next(listener).await {
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
                listener.watching(feed, scope, None);
            }
            Ok(Event::Apply(object)) => {
                let changed = match view(&object) {
                    Some(owned) => index.apply(owned),
                    None => object
                        .meta()
                        .uid
                        .as_deref()
                        .and_then(Uid::parse)
                        .and_then(|uid| index.disowned(uid)),
                };
                if let Some(key) = changed {
                    listener.wake(key);
                }
            }
            Ok(Event::Delete(object)) => {
                if let Some(owned) = view(&object) {
                    index.deleted(&owned, Instant::now());
                    listener.freed(owned.key);
                }
            }
            Err(error) => listener.watching(feed, scope, Some(&error)),
        }
    }
}
