//! The group objects of gangs: whether the cluster serves their kinds, and those of our jobs.
//!
//! A kind is watched once a job needs it: the configured one from the start, another one for runs that began under another setting.
//! Discovery of an unserved kind is retried, and nothing else waits for it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{Hash as _, Hasher};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResourceList;
use kube::Client;
use kube_runtime::watcher::{self, Event};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use training_core::{Availabilities, Availability, Group, GroupKind, GroupView, Uid};

use super::child::Child;
use super::follow::{Source, WatchStream};
use super::index::Index;
use super::listener::Listener;
use super::slim::{Owned, OwnerKind, controller};
use crate::key::{JobKey, Scope};

/// The first delay before discovery of an unserved kind is retried; it doubles each time.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// Failed discoveries before jobs report it: a single one may fail while an API server starts.
const FAILURES: u32 = 3;
/// The longest such delay.
const MAX_WAIT: Duration = Duration::from_secs(30);

impl Child for GroupView {
    fn uid(&self) -> Uid {
        self.uid
    }
    fn version(&self) -> u64 {
        self.version
    }
    fn same_slot(&self, other: &Self) -> bool {
        self.kind == other.kind
    }
    fn hash_slot<H: Hasher>(&self, state: &mut H) {
        self.kind.kind().hash(state);
    }
    fn same_for_decisions(&self, other: &Self) -> bool {
        GroupView::same_for_decisions(self, other)
    }
    fn mark_terminating(&mut self, version: u64) {
        self.terminating = true;
        self.version = self.version.max(version);
    }
}

/// Returns the group as a child of a job; `None` if it has no owner, one of another kind, or another name than the job.
pub fn group_view(
    seen: &Group,
    kind: GroupKind,
    owner_kind: OwnerKind,
) -> Option<Owned<GroupView>> {
    let meta = &seen.metadata;
    let owner = controller(meta)?;
    let ours = owner_kind.owns(owner) && meta.name.as_ref() == Some(&owner.name);
    if !ours {
        return None;
    }
    Some(Owned {
        key: JobKey::new(meta.namespace.as_deref().unwrap_or_default(), &owner.name),
        owner: Uid::parse(&owner.uid)?,
        view: seen_view(seen, kind, owner_kind)?,
    })
}

/// Returns the view of a group. Without the label that groups are watched by, the view has no template hash, so that the group is
/// patched and gets the label.
pub fn seen_view(seen: &Group, kind: GroupKind, owner_kind: OwnerKind) -> Option<GroupView> {
    let mut view = seen.view(kind)?;
    view.digest = view.digest.filter(|_| owner_kind.watches(&seen.metadata));
    Some(view)
}

/// Returns false if the watch may not show changes of a group.
pub fn is_shown(group: &GroupView) -> bool {
    group.digest.is_some()
}

/// The state of all groups.
#[derive(Debug, Default)]
pub struct Groups {
    indices: [Index<GroupView>; 4],
    inner: Mutex<Inner>,
    wanted: watch::Sender<Vec<GroupKind>>,
}

#[derive(Debug, Default)]
struct Inner {
    /// The availability of each kind in each watched scope.
    known: BTreeMap<(GroupKind, Option<String>), Availability>,
    /// The combined availability of each kind over all its scopes.
    offers: Availabilities,
    /// Jobs that wait for a kind.
    waiting: HashSet<JobKey>,
    /// Whether the cluster serves Kueue.
    kueue: Option<bool>,
    /// The kinds of groups that were searched by name, by job and its uid.
    sought: HashMap<JobKey, (Uid, Vec<GroupKind>)>,
}

impl Groups {
    /// Returns the groups of one kind.
    pub fn of_kind(&self, kind: GroupKind) -> &Index<GroupView> {
        &self.indices[kind.at()]
    }

    /// Returns the groups of a job.
    pub fn of(&self, owner: Uid) -> Vec<GroupView> {
        self.indices
            .iter()
            .flat_map(|index| index.of(owner))
            .collect()
    }

    /// Returns the availability of the kinds.
    pub fn offers(&self) -> Availabilities {
        self.inner.lock().offers.clone()
    }

    /// Returns whether the cluster serves Kueue, if known.
    pub fn kueue(&self) -> Option<bool> {
        self.inner.lock().kueue
    }

    /// Starts to watch a kind that a job needs. The job is requeued once the kind's availability is known.
    pub fn want(&self, kind: GroupKind, job: &JobKey) {
        let mut inner = self.inner.lock();
        if !matches!(inner.offers.of(kind), Availability::Served(_)) {
            inner.waiting.insert(job.clone());
        }
        drop(inner);
        self.watch(kind);
    }

    /// Starts to watch a kind.
    pub fn watch(&self, kind: GroupKind) {
        self.wanted.send_if_modified(|kinds| {
            let news = !kinds.contains(&kind);
            if news {
                kinds.push(kind);
            }
            news
        });
    }

    /// Returns the kinds to watch, which only grow.
    pub fn wanted(&self) -> watch::Receiver<Vec<GroupKind>> {
        self.wanted.subscribe()
    }

    /// Forgets that a job waits, and the searches for its groups.
    pub fn forget(&self, job: &JobKey) {
        let inner = &mut *self.inner.lock();
        inner.waiting.remove(job);
        inner.sought.remove(job);
    }

    /// Records that a group of this kind was searched by name.
    pub fn sought(&self, job: &JobKey, uid: Uid, kind: GroupKind) {
        let inner = &mut *self.inner.lock();
        let entry = inner.sought.entry(job.clone()).or_default();
        if entry.0 != uid {
            *entry = (uid, Vec::new());
        }
        entry.1.push(kind);
    }

    /// Returns the kinds of groups that were searched by name.
    pub fn sought_of(&self, job: &JobKey, uid: Uid) -> Vec<GroupKind> {
        let inner = self.inner.lock();
        let known = inner.sought.get(job).filter(|(of, _)| *of == uid);
        known.map(|(_, kinds)| kinds.clone()).unwrap_or_default()
    }

    /// Records that discovery of a kind failed. Returns the jobs that waited for it, if its availability was unknown before.
    fn unanswered(&self, kind: GroupKind, scope: &Scope, words: String) -> Vec<JobKey> {
        let place = (kind, scope.namespace().map(str::to_owned));
        let known = self.inner.lock().known.get(&place).cloned();
        match known {
            None | Some(Availability::Unknown) => {
                self.offer(kind, scope, Availability::Unanswered(words))
            }
            Some(_) => Vec::new(),
        }
    }

    /// Records the availability of a kind. Returns the jobs that waited for it.
    pub fn offer(&self, kind: GroupKind, scope: &Scope, offer: Availability) -> Vec<JobKey> {
        let inner = &mut *self.inner.lock();
        let place = (kind, scope.namespace().map(str::to_owned));
        inner.known.insert(place, offer);
        let of_kind = inner.known.iter().filter(|((k, _), _)| *k == kind);
        // The worst scope decides for all, as jobs are not distinguished by namespace.
        let rank = |offer: &Availability| match offer {
            Availability::Missing => 0,
            Availability::Denied(_) => 1,
            Availability::Unanswered(_) => 2,
            Availability::Unknown => 3,
            Availability::Served(_) => 4,
        };
        let worst = of_kind
            .map(|(_, offer)| offer)
            .min_by_key(|o| rank(o))
            .cloned();
        if inner.offers.set(kind, worst.unwrap_or_default()) {
            inner.waiting.drain().collect()
        } else {
            Vec::new()
        }
    }
}

/// The API group of Kueue.
const KUEUE: &str = "kueue.x-k8s.io";

/// Runs discovery until the cluster serves Kueue. Never returns.
pub async fn watch_for_kueue(client: Client, groups: Arc<Groups>, asked: watch::Sender<bool>) {
    let mut wait = FIRST_WAIT;
    loop {
        match client.list_api_groups().await {
            Ok(all) => {
                let served = all.groups.iter().any(|group| group.name == KUEUE);
                let known = groups.inner.lock().kueue.replace(served);
                if !served && known != Some(false) {
                    tracing::warn!(
                        group = KUEUE,
                        "gangs are left to Kueue, but the cluster does not serve it: no job is queued"
                    );
                }
                asked.send_replace(true);
                if served {
                    return std::future::pending().await;
                }
            }
            Err(error) => {
                tracing::warn!(%error, "can't discover whether the cluster serves Kueue; retrying");
                // Jobs don't wait for it.
                asked.send_replace(true);
            }
        }
        sleep(wait).await;
        wait = (wait * 2).min(MAX_WAIT);
    }
}

/// Watches the groups of one kind that belong to the framework's jobs. Never returns.
pub async fn watch_groups(
    source: Source,
    scope: Scope,
    owner_kind: OwnerKind,
    kind: GroupKind,
    groups: Arc<Groups>,
    listener: Arc<impl Listener>,
    synced: watch::Sender<bool>,
) {
    let feed = kind.as_str();
    let mut wait = FIRST_WAIT;
    let mut told = false;
    let mut failures = 0;
    // No job waits yet.
    groups.offer(kind, &scope, Availability::Unknown);
    loop {
        match served(&source.client, kind).await {
            Ok(Some(version)) => {
                (wait, told, failures) = (FIRST_WAIT, false, 0);
                let watching = Watching {
                    kind,
                    version,
                    owner_kind,
                    groups: &groups,
                    scope: &scope,
                };
                watching.follow(&source, &*listener, &synced).await;
            }
            Ok(None) => {
                failures = 0;
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!(
                        kind = kind.kind(),
                        group = kind.group(),
                        versions = kind.versions().join(", "),
                        "the cluster does not serve a kind that gangs need: their jobs wait"
                    );
                }
                let index = groups.of_kind(kind);
                index.begin_list(&scope);
                let mut affected = index.end_list(&scope, Instant::now());
                affected.extend(groups.offer(kind, &scope, Availability::Missing));
                listener.offered(affected);
                synced.send_replace(true);
                listener.watching(feed, &scope, None);
            }
            Err(error) => {
                tracing::warn!(feed, %error, "can't discover what the cluster serves; retrying");
                failures += 1;
                if failures >= FAILURES {
                    listener.offered(groups.unanswered(kind, &scope, error.to_string()));
                    synced.send_replace(true);
                }
            }
        }
        sleep(wait).await;
        wait = (wait * 2).min(MAX_WAIT);
    }
}

/// Returns the best version of a kind that the cluster serves.
async fn served(client: &Client, kind: GroupKind) -> Result<Option<&'static str>, kube::Error> {
    for version in kind.versions() {
        let path = format!("{}/{version}", kind.group());
        match client.list_api_group_resources(&path).await {
            Ok(APIResourceList { resources, .. }) => {
                if resources.iter().any(|r| r.name == kind.plural()) {
                    return Ok(Some(version));
                }
            }
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// One watch of a served kind.
struct Watching<'a> {
    kind: GroupKind,
    version: &'static str,
    owner_kind: OwnerKind,
    groups: &'a Groups,
    scope: &'a Scope,
}

impl Watching<'_> {
    /// Returns when the kind is no longer served.
    async fn follow(
        &self,
        source: &Source,
        listener: &impl Listener,
        synced: &watch::Sender<bool>,
    ) {
        let (feed, scope) = (self.kind.as_str(), self.scope);
        let index = self.groups.of_kind(self.kind);
        let selector = self.owner_kind.selector();
        let resource = self.kind.resource(self.version);
        let mut events: WatchStream<Group> =
            WatchStream::dynamic(feed, source, scope, Some(selector), &resource);
        loop {
            match events.next(listener).await {
                Ok(Event::Init) => index.begin_list(scope),
                Ok(Event::InitApply(seen)) => {
                    if let Some(owned) = self.view(&seen) {
                        index.listed(scope, owned);
                    }
                }
                Ok(Event::InitDone) => {
                    let mut affected = index.end_list(scope, Instant::now());
                    affected.extend(self.offer(Availability::Served(self.version)));
                    listener.offered(affected);
                    synced.send_replace(true);
                    listener.watching(feed, scope, None);
                }
                Ok(Event::Apply(seen)) => {
                    let meta = &seen.metadata;
                    let namespace = meta.namespace.as_deref().unwrap_or_default();
                    let changed = match self.view(&seen) {
                        Some(owned) => index.apply(owned),
                        None => Uid::of(meta).and_then(|uid| index.remove_foreign(namespace, uid)),
                    };
                    listener.offered(changed.into_iter().collect());
                }
                Ok(Event::Delete(seen)) => {
                    if let Some(owned) = self.view(&seen) {
                        index.deleted(&owned, Instant::now());
                        listener.child_deleted(owned.key);
                    }
                }
                Err(error) => match refusal(&error) {
                    Some((404, _)) => return,
                    // List again if the watch had synced: only a list tells whether the permission is really gone.
                    Some((403, _)) if matches!(error, watcher::Error::WatchStartFailed(_)) => {
                        listener.watching(feed, scope, Some(&error));
                        return;
                    }
                    Some((403, words)) => {
                        listener.offered(self.offer(Availability::Denied(words)));
                        synced.send_replace(true);
                        listener.watching(feed, scope, Some(&error));
                    }
                    Some(_) | None => listener.watching(feed, scope, Some(&error)),
                },
            }
        }
    }

    fn view(&self, seen: &Group) -> Option<Owned<GroupView>> {
        group_view(seen, self.kind, self.owner_kind)
    }

    fn offer(&self, offer: Availability) -> Vec<JobKey> {
        self.groups.offer(self.kind, self.scope, offer)
    }
}

/// Returns code and message of a rejected list or watch.
fn refusal(error: &watcher::Error) -> Option<(u16, String)> {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => {
            Some((status.code, status.message.clone()))
        }
        watcher::Error::InitialListFailed(_)
        | watcher::Error::WatchStartFailed(_)
        | watcher::Error::WatchError(_)
        | watcher::Error::WatchFailed(_)
        | watcher::Error::NoResourceVersion => None,
    }
}
