//! The cache of applications' pods and objects: from watches, and from our own writes.

use std::borrow::Cow;
use std::hash::{Hash as _, Hasher};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResource;
use kube::Resource;
use kube::core::{NamespaceResourceScope, ObjectMeta};
use tokio::sync::watch;
use training_core::Uid;
use training_runtime::controller::Controller;
use training_runtime::feed::child::Child;
use training_runtime::feed::index::Index;
use training_runtime::feed::slim::Owned;
use training_runtime::feed::{self, Source};
use training_runtime::key::{JobKey, Scope};

use crate::label;
use crate::lifecycle::mask::Mask;
use crate::lifecycle::observed::{Driver, Executor, Kind, Object, Observed};
use crate::lifecycle::slim::{Owner, Pod, RunObject};

/// A cached object, with its resource version.
#[derive(Clone, Debug)]
pub struct Versioned<V> {
    version: u64,
    /// The object.
    pub view: V,
}

/// A child of an application that the cache can hold.
pub trait CachedChild: Clone + PartialEq + Send {
    /// Its uid.
    fn uid(&self) -> Uid;
    /// Its name.
    fn name(&self) -> &str;
    /// Marks it as terminating.
    fn mark_terminating(&mut self);
}

impl<V: CachedChild> Child for Versioned<V> {
    fn uid(&self) -> Uid {
        self.view.uid()
    }
    fn version(&self) -> u64 {
        self.version
    }
    fn same_slot(&self, other: &Self) -> bool {
        self.view.name() == other.view.name()
    }
    fn hash_slot<H: Hasher>(&self, state: &mut H) {
        self.view.name().hash(state);
    }
    fn same_for_decisions(&self, other: &Self) -> bool {
        self.view == other.view
    }
    fn mark_terminating(&mut self, version: u64) {
        self.view.mark_terminating();
        self.version = self.version.max(version);
    }
}

/// A pod of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum CachedPod {
    /// The driver.
    Driver(Box<Driver>),
    /// An executor.
    Executor(Box<Executor>),
}

impl CachedChild for CachedPod {
    fn uid(&self) -> Uid {
        match self {
            Self::Driver(driver) => driver.uid,
            Self::Executor(executor) => executor.uid,
        }
    }
    fn name(&self) -> &str {
        match self {
            Self::Driver(driver) => &driver.name,
            Self::Executor(executor) => &executor.name,
        }
    }
    fn mark_terminating(&mut self) {
        match self {
            Self::Driver(driver) => driver.terminating = true,
            Self::Executor(executor) => executor.terminating = true,
        }
    }
}

impl CachedChild for Object {
    fn uid(&self) -> Uid {
        self.uid
    }
    fn name(&self) -> &str {
        &self.name
    }
    fn mark_terminating(&mut self) {
        self.terminating = true;
    }
}

/// The cache.
#[derive(Debug, Default)]
pub struct Cache {
    /// Drivers and executors.
    pub pods: Arc<Index<Versioned<CachedPod>>>,
    objects: [Arc<Index<Versioned<Object>>>; Kind::ALL.len()],
}

/// Builds a cache entry for an owner with this name and uid.
pub fn versioned<V>(
    meta: &ObjectMeta,
    (name, uid): (&str, &str),
    view: V,
) -> Option<Owned<Versioned<V>>> {
    let version = meta.resource_version.as_deref();
    let version = version.and_then(|v| v.parse().ok()).unwrap_or(0);
    Some(Owned {
        key: JobKey::new(meta.namespace.as_deref().unwrap_or_default(), name),
        owner: Uid::parse(uid)?,
        view: Versioned { version, view },
    })
}

/// Builds the cache entry of a pod; `None` if no application owns it.
pub fn cached_pod(pod: &Pod) -> Option<Owned<Versioned<CachedPod>>> {
    let view = match pod.driver() {
        Some(driver) => CachedPod::Driver(Box::new(driver)),
        None => CachedPod::Executor(Box::new(pod.executor()?)),
    };
    let Owner { name, uid } = pod.owner()?;
    versioned(pod.meta(), (name, uid), view)
}

/// Builds the cache entry of another object; `None` if it doesn't belong to an application's run.
pub fn cached_object<K: Resource<DynamicType = ()>>(
    object: &RunObject<K>,
    kind: Kind,
) -> Option<Owned<Versioned<Object>>> {
    let view = object.object(kind)?;
    let Owner { name, uid } = object.owner()?;
    versioned(object.meta(), (name, uid), view)
}

/// True if the pod matches the watch's selector.
pub fn is_watched(pod: &Pod) -> bool {
    let labels = pod.meta().labels.as_ref();
    labels.is_some_and(|l| l.get(label::LAUNCHED_BY).is_some_and(|v| v == "true"))
}

impl Cache {
    /// Returns the index of one kind.
    pub fn objects_of(&self, kind: Kind) -> &Arc<Index<Versioned<Object>>> {
        &self.objects[kind as usize]
    }

    /// Returns everything of an application.
    pub fn of(&self, app: Uid, mask: impl FnOnce() -> Mask) -> Observed {
        let mut observed = Observed::default();
        let pods = self.pods.of(app);
        let has_text = |pod: &Versioned<CachedPod>| match &pod.view {
            CachedPod::Driver(driver) => driver.end.is_some(),
            CachedPod::Executor(executor) => executor.end.is_some() || !executor.message.is_empty(),
        };
        let mask = if pods.iter().any(has_text) {
            mask()
        } else {
            Mask::default()
        };
        for pod in pods {
            match pod.view {
                CachedPod::Driver(driver) => observed.drivers.push(driver.masked(&mask)),
                CachedPod::Executor(executor) => observed.executors.push(executor.masked(&mask)),
            }
        }
        // Sort, so that decisions don't depend on the order of watch events.
        observed.drivers.sort_by(|a, b| a.name.cmp(&b.name));
        observed.executors.sort_by(|a, b| a.name.cmp(&b.name));
        for index in &self.objects {
            let objects = index.of(app).into_iter().map(|held| held.view);
            observed.objects.extend(objects);
        }
        observed
    }

    /// True if pods or objects of an application disappeared without our action since the last call.
    pub fn take_unexpected_deletion(&self, app: Uid) -> bool {
        let objects = self
            .objects
            .iter()
            .map(|index| index.take_unexpected_deletion(app));
        // Call it for all of them, because it clears the flag.
        objects.fold(self.pods.take_unexpected_deletion(app), |any, one| {
            any | one
        })
    }

    /// The number of objects other than pods.
    pub fn object_count(&self) -> usize {
        self.objects.iter().map(|index| index.len()).sum()
    }
}

/// Watches the pods of runs. Never returns.
pub async fn watch_pods(
    source: Source,
    scope: Scope,
    cache: Arc<Cache>,
    listener: Arc<Controller>,
    synced: watch::Sender<bool>,
) {
    let selector = format!("{}=true", label::LAUNCHED_BY);
    let index = Arc::clone(&cache.pods);
    feed::watch(
        "pods",
        (source, scope, selector),
        index,
        cached_pod,
        listener,
        synced,
    )
    .await;
}

/// Watches other objects of runs, of one kind. Never returns.
pub async fn watch_objects<K>(
    kind: Kind,
    feed: &'static str,
    (source, scope): (Source, Scope),
    cache: Arc<Cache>,
    listener: Arc<Controller>,
    synced: watch::Sender<bool>,
) where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + 'static,
{
    let index = Arc::clone(cache.objects_of(kind));
    let read = |object: &RunObject<K>| cached_object(object, kind);
    // Every object of a run has this label. Objects of another operator's run have their own owner.
    let selector = label::SUBMISSION_ID.to_owned();
    feed::watch(
        feed,
        (source, scope, selector),
        index,
        read,
        listener,
        synced,
    )
    .await;
}

/// The first delay before checking again for a kind that the cluster doesn't serve; the delay doubles each time.
const FIRST_WAIT: Duration = Duration::from_secs(10);
/// The longest such delay.
const MAX_WAIT: Duration = Duration::from_mins(5);

/// A pod group of a batch scheduler; only metadata is read.
macro_rules! group {
    ($name:ident) => {
        /// The pod group of a batch scheduler.
        #[derive(Clone, Copy, Debug)]
        pub enum $name {}

        impl Resource for $name {
            type DynamicType = ();
            type Scope = NamespaceResourceScope;

            fn kind((): &()) -> Cow<'_, str> {
                "PodGroup".into()
            }
            fn group((): &()) -> Cow<'_, str> {
                group_and_version(Kind::$name).0.into()
            }
            fn version((): &()) -> Cow<'_, str> {
                group_and_version(Kind::$name).1.into()
            }
            fn plural((): &()) -> Cow<'_, str> {
                Kind::$name.plural().into()
            }
            fn meta(&self) -> &ObjectMeta {
                match *self {}
            }
            fn meta_mut(&mut self) -> &mut ObjectMeta {
                match *self {}
            }
        }
    };
}

group!(VolcanoGroup);
group!(CoschedulingGroup);

fn group_and_version(kind: Kind) -> (&'static str, &'static str) {
    kind.api().split_once('/').unwrap_or(("", kind.api()))
}

/// Watches pod groups of a batch scheduler, once the cluster serves them; nothing else waits for that. Never returns.
pub async fn watch_groups<K>(
    kind: Kind,
    (source, scope): (Source, Scope),
    cache: Arc<Cache>,
    listener: Arc<Controller>,
    synced: watch::Sender<bool>,
) where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + 'static,
{
    let (api, mut wait) = (kind.api(), FIRST_WAIT);
    loop {
        let served = source.client.list_api_group_resources(api).await;
        let is_it = |r: &APIResource| r.name == kind.plural();
        if served
            .as_ref()
            .is_ok_and(|all| all.resources.iter().any(is_it))
        {
            break;
        }
        if wait == FIRST_WAIT {
            tracing::warn!(
                api,
                "the cluster does not serve groups of this batch scheduler"
            );
        }
        synced.send_replace(true);
        listener.ready(api, &scope, true);
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(MAX_WAIT);
    }
    watch_objects::<K>(kind, api, (source, scope), cache, listener, synced).await;
}
