//! What is known of applications' pods and other objects: what the watches show, and what we wrote ourselves.

use std::borrow::Cow;
use std::hash::{Hash as _, Hasher};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResource;
use kube::Resource;
use kube::core::{NamespaceResourceScope, ObjectMeta};
use tokio::sync::watch;
use tokio::time::Instant;
use training_core::Uid;
use training_runtime::caller::Deleted;
use training_runtime::controller::Controller;
use training_runtime::feed::child::Child;
use training_runtime::feed::index::Index;
use training_runtime::feed::slim::Owned;
use training_runtime::feed::{self, Source};
use training_runtime::key::{JobKey, Scope};

use crate::course::look::{Owner, Pod, Thing};
use crate::course::mask::Mask;
use crate::course::seen::{Driver, Executor, Kind, Object, Seen};
use crate::label;

/// Something of an application, in a version.
#[derive(Clone, Debug)]
pub struct Versioned<V> {
    version: u64,
    /// It.
    pub view: V,
}

/// What can be kept of an application's children.
pub trait Of: Clone + PartialEq + Send {
    /// Its uid.
    fn uid(&self) -> Uid;
    /// Its name.
    fn name(&self) -> &str;
    /// Marks that deletion was asked for.
    fn leave(&mut self);
}

impl<V: Of> Child for Versioned<V> {
    fn uid(&self) -> Uid {
        self.view.uid()
    }
    fn version(&self) -> u64 {
        self.version
    }
    fn same_place(&self, other: &Self) -> bool {
        self.view.name() == other.view.name()
    }
    fn hash_place<H: Hasher>(&self, state: &mut H) {
        self.view.name().hash(state);
    }
    fn same_for_decisions(&self, other: &Self) -> bool {
        self.view == other.view
    }
    fn leave(&mut self, version: u64) {
        self.view.leave();
        self.version = self.version.max(version);
    }
}

/// A pod of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum RunPod {
    /// The driver.
    Driver(Box<Driver>),
    /// An executor.
    Executor(Box<Executor>),
}

impl Of for RunPod {
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
    fn leave(&mut self) {
        match self {
            Self::Driver(driver) => driver.leaving = true,
            Self::Executor(executor) => executor.leaving = true,
        }
    }
}

impl Of for Object {
    fn uid(&self) -> Uid {
        self.uid
    }
    fn name(&self) -> &str {
        &self.name
    }
    fn leave(&mut self) {
        self.leaving = true;
    }
}

/// Everything that is known.
#[derive(Debug, Default)]
pub struct Known {
    /// Drivers and executors.
    pub pods: Arc<Index<Versioned<RunPod>>>,
    things: [Arc<Index<Versioned<Object>>>; Kind::ALL.len()],
}

/// Something as it is kept, of an owner with this name and uid.
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

/// A pod as it is kept; `None` if it is no application's.
pub fn run_pod(pod: &Pod) -> Option<Owned<Versioned<RunPod>>> {
    let view = match pod.driver() {
        Some(driver) => RunPod::Driver(Box::new(driver)),
        None => RunPod::Executor(Box::new(pod.executor()?)),
    };
    let Owner { name, uid } = pod.owner()?;
    versioned(pod.meta(), (name, uid), view)
}

/// Another object as it is kept; `None` if it is of no application's run.
pub fn run_thing<K: Resource<DynamicType = ()>>(
    thing: &Thing<K>,
    kind: Kind,
) -> Option<Owned<Versioned<Object>>> {
    let view = thing.object(kind)?;
    let Owner { name, uid } = thing.owner()?;
    versioned(thing.meta(), (name, uid), view)
}

/// True if the watch shows this pod.
pub fn is_watched(pod: &Pod) -> bool {
    let labels = pod.meta().labels.as_ref();
    labels.is_some_and(|l| l.get(label::LAUNCHED_BY).is_some_and(|v| v == "true"))
}

impl Known {
    /// What is kept of objects of a kind.
    pub fn things(&self, kind: Kind) -> &Arc<Index<Versioned<Object>>> {
        &self.things[kind as usize]
    }

    /// Everything of an application.
    pub fn of(&self, app: Uid, mask: impl FnOnce() -> Mask) -> Seen {
        let mut seen = Seen::default();
        let pods = self.pods.of(app);
        let speaks = |pod: &Versioned<RunPod>| match &pod.view {
            RunPod::Driver(driver) => driver.end.is_some(),
            RunPod::Executor(executor) => executor.end.is_some() || !executor.said.is_empty(),
        };
        let mask = if pods.iter().any(speaks) {
            mask()
        } else {
            Mask::default()
        };
        for pod in pods {
            match pod.view {
                RunPod::Driver(driver) => seen.drivers.push(driver.masked(&mask)),
                RunPod::Executor(executor) => seen.executors.push(executor.masked(&mask)),
            }
        }
        // Decisions don't depend on the order in which things came.
        seen.drivers.sort_by(|a, b| a.name.cmp(&b.name));
        seen.executors.sort_by(|a, b| a.name.cmp(&b.name));
        for index in &self.things {
            let things = index.of(app).into_iter().map(|held| held.view);
            seen.objects.extend(things);
        }
        seen
    }

    /// What became of a pod that was to be deleted.
    pub fn deleted_pod(&self, app: Uid, pod: Uid, what: Deleted) {
        self.pods.answered(app, pod, what, Instant::now());
    }

    /// The same of another object.
    pub fn deleted_thing(&self, app: Uid, kind: Kind, thing: Uid, what: Deleted) {
        let index = self.things(kind);
        index.answered(app, thing, what, Instant::now());
    }

    /// Whether pods or objects of an application went without us since this was asked last.
    pub fn take_bereft(&self, app: Uid) -> bool {
        let things = self.things.iter().map(|index| index.take_bereft(app));
        // All of them: what is asked is forgotten.
        things.fold(self.pods.take_bereft(app), |any, one| any | one)
    }

    /// Objects other than pods.
    pub fn len_of_things(&self) -> usize {
        self.things.iter().map(|index| index.len()).sum()
    }
}

/// Watches the pods of runs. Never returns.
pub async fn watch_pods(
    source: Source,
    scope: Scope,
    known: Arc<Known>,
    listener: Arc<Controller>,
    synced: watch::Sender<bool>,
) {
    let selector = format!("{}=true", label::LAUNCHED_BY);
    let index = Arc::clone(&known.pods);
    feed::watch(
        "pods",
        (source, scope, selector),
        index,
        run_pod,
        listener,
        synced,
    )
    .await;
}

/// Watches other objects of runs, of one kind. Never returns.
pub async fn watch_things<K>(
    kind: Kind,
    feed: &'static str,
    (source, scope): (Source, Scope),
    known: Arc<Known>,
    listener: Arc<Controller>,
    synced: watch::Sender<bool>,
) where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + 'static,
{
    let index = Arc::clone(known.things(kind));
    let read = |thing: &Thing<K>| run_thing(thing, kind);
    // Every object of a run has it; what a run of another operator left has an owner of its own.
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

/// How long it takes until a kind that isn't served is asked for again; each further time takes twice as long.
const FIRST_WAIT: Duration = Duration::from_secs(10);
/// The longest of these times.
const LONGEST_WAIT: Duration = Duration::from_mins(5);

/// A group of a batch scheduler, of which nothing is read but metadata.
macro_rules! group {
    ($name:ident) => {
        /// The group of a batch scheduler.
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

/// Watches groups of a batch scheduler, once the cluster serves them: nothing else waits for that. Never returns.
pub async fn watch_groups<K>(
    kind: Kind,
    (source, scope): (Source, Scope),
    known: Arc<Known>,
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
        wait = (wait * 2).min(LONGEST_WAIT);
    }
    watch_things::<K>(kind, api, (source, scope), known, listener, synced).await;
}
