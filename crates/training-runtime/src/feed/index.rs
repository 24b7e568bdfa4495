//! The children of all jobs, by owner: those that the watch showed, and those that we wrote but the watch has not shown yet.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use training_core::Uid;

use super::child::Child;
use super::recent::{KEPT, Recent};
use super::siblings::Siblings;
use super::slim::Owned;
use crate::caller::Deleted;
use crate::key::{JobKey, Scope};

/// How long a child that we created is kept although the watch has not shown it. After that, a read by name or the next list decides.
pub const CREATE_EXPECTATION_TTL: Duration = KEPT;

/// The number of deleted children that count, per job: a job has one launcher at a time, and anybody may name the job as an owner.
const KEPT_PER_JOB: usize = 8;

/// An index of one type of child.
#[derive(Debug)]
pub struct Index<V> {
    inner: Mutex<Inner<V>>,
}

#[derive(Debug)]
struct Inner<V> {
    owners: HashMap<Uid, Siblings<V>>,
    /// The next state of a scope, while its first list or a relist arrives.
    incoming: HashMap<Scope, HashMap<Uid, Siblings<V>>>,
    /// Scopes whose first list is pending, and the jobs that asked for them.
    awaited: HashMap<Scope, HashSet<JobKey>>,
    /// Children created by us and not shown by the watch yet.
    expected_creates: HashMap<Uid, Instant>,
    /// Children that are gone according to the watch or the answer to our delete; later events about them are stale.
    gone: Recent<DeletedChild>,
    /// Children that we deleted, but that the watch has not shown as gone yet.
    expected_deletes: HashSet<Uid>,
    /// Owners that lost a child that we didn't delete. They may be gone themselves; another watch will show that.
    unexpected_deletions: Recent<()>,
    /// Deleted children that still count, as owner and uid, by job.
    kept: HashMap<JobKey, Vec<(Uid, Uid)>>,
}

/// A deleted object.
#[derive(Clone, Copy, Debug)]
struct DeletedChild {
    /// The version at its deletion. A watch by label also loses objects that only lose the label; such an object returns at a later
    /// version, while a deleted one has none.
    version: u64,
}

impl<V> Default for Index<V> {
    fn default() -> Self {
        let inner = Inner {
            owners: HashMap::new(),
            incoming: HashMap::new(),
            awaited: HashMap::new(),
            expected_creates: HashMap::new(),
            gone: Recent::default(),
            expected_deletes: HashSet::new(),
            unexpected_deletions: Recent::default(),
            kept: HashMap::new(),
        };
        Self {
            inner: Mutex::new(inner),
        }
    }
}

impl<V: Child> Index<V> {
    /// Announces the first list of a scope.
    pub fn expect(&self, scope: &Scope) {
        let mut inner = self.inner.lock();
        inner.awaited.insert(scope.clone(), HashSet::new());
    }

    /// Returns whether all children of a job are known. If not, the end of the pending list also returns this job.
    pub fn is_known(&self, key: &JobKey) -> bool {
        let mut inner = self.inner.lock();
        let mut awaited = inner.awaited.iter_mut();
        let Some((_, asked)) = awaited.find(|(scope, _)| scope.covers(key)) else {
            return true;
        };
        asked.insert(key.clone());
        false
    }

    /// Begins a list. Once complete, it replaces everything in its scope.
    pub fn begin_list(&self, scope: &Scope) {
        self.inner
            .lock()
            .incoming
            .insert(scope.clone(), HashMap::new());
    }

    /// Adds an object of a list.
    pub fn listed(&self, scope: &Scope, owned: Owned<V>) {
        if let Some(incoming) = self.inner.lock().incoming.get_mut(scope) {
            store_child(incoming, owned);
        }
    }

    /// Completes a list. Returns the jobs whose children changed or vanished: a relist may hide deletions.
    pub fn end_list(&self, scope: &Scope, now: Instant) -> Vec<JobKey> {
        let inner = &mut *self.inner.lock();
        let Some(mut next) = inner.incoming.remove(scope) else {
            return Vec::new();
        };
        inner
            .expected_creates
            .retain(|_, since| now < *since + CREATE_EXPECTATION_TTL);
        // The list may hide the pending delete events. Those that still arrive only cost one more read.
        inner.expected_deletes.clear();
        inner.gone.sweep(now);
        for (owner, siblings) in &inner.owners {
            if !scope.covers(&siblings.key) {
                next.insert(*owner, siblings.clone());
                continue;
            }
            for child in siblings.all() {
                let listed = next.get(owner).and_then(|k| k.get(child.uid()));
                let newer = listed.is_some_and(|l| l.version() < child.version());
                let counts =
                    child.is_deleted() || inner.expected_creates.contains_key(&child.uid());
                // Keep children that we created after the list was taken, deleted ones that count, and states newer than the list.
                if newer || listed.is_none() && counts {
                    store_child(
                        &mut next,
                        Owned {
                            key: siblings.key.clone(),
                            owner: *owner,
                            view: child.clone(),
                        },
                    );
                }
            }
        }
        next.retain(|_, siblings| {
            let back = |c: &V, gone: &DeletedChild| c.version() > gone.version;
            let there = |c: &V| inner.gone.get(c.uid()).is_none_or(|gone| back(c, gone));
            siblings.retain(there);
            !siblings.is_empty()
        });
        let mut changed = inner.awaited.remove(scope).unwrap_or_default();
        for (owner, siblings) in inner.owners.iter().chain(&next) {
            let (before, after) = (inner.owners.get(owner), next.get(owner));
            if !same(before, after) {
                changed.insert(siblings.key.clone());
            }
        }
        inner.owners = next;
        changed.into_iter().collect()
    }

    /// Stores an object from the watch or an answer. Returns the job to enqueue, if a decision may depend on the change.
    pub fn apply(&self, owned: Owned<V>) -> Option<JobKey> {
        let inner = &mut *self.inner.lock();
        let uid = owned.view.uid();
        inner.expected_creates.remove(&uid);
        if inner.is_gone(uid, owned.view.version()) {
            return None;
        }
        let key = owned.key.clone();
        inner.show(owned).then_some(key)
    }

    /// Stores an object that we created. Wakes no job: the reconcile that created it knows.
    pub fn created(&self, owned: Owned<V>, now: Instant) {
        let inner = &mut *self.inner.lock();
        let uid = owned.view.uid();
        let known = inner
            .owners
            .get(&owned.owner)
            .is_some_and(|k| k.get(uid).is_some());
        if !known && !inner.is_gone(uid, owned.view.version()) {
            inner.expected_creates.insert(uid, now);
            store_child(&mut inner.owners, owned);
        }
    }

    /// Returns the job's children that we created and no watch has shown, and since when.
    pub fn expected_creates(&self, owner: Uid) -> Vec<(V, Instant)> {
        let inner = self.inner.lock();
        if inner.expected_creates.is_empty() {
            return Vec::new();
        }
        let siblings = inner.owners.get(&owner).map(Siblings::all);
        let children = siblings.unwrap_or_default().iter();
        children
            .filter_map(|c| Some((c.clone(), *inner.expected_creates.get(&c.uid())?)))
            .collect()
    }

    /// Stores an object from the answer to our write, whether it was known before or not.
    pub fn written(&self, owned: Owned<V>, now: Instant) {
        self.created(owned.clone(), now);
        let inner = &mut *self.inner.lock();
        if !inner.is_gone(owned.view.uid(), owned.view.version()) {
            store_child(&mut inner.owners, owned);
        }
    }

    /// Stores an object from a read by name. If the watch lost it only with its label, it no longer counts as gone. Returns false if it
    /// is really gone.
    pub fn found(&self, owned: Owned<V>) -> bool {
        let inner = &mut *self.inner.lock();
        let (uid, version) = (owned.view.uid(), owned.view.version());
        // The watch loses an object at its current version, but a deleted object at a version that it never had.
        if inner.gone.get(uid).is_some_and(|g| version < g.version) {
            return false;
        }
        inner.gone.remove(uid);
        inner.expected_creates.remove(&uid);
        inner.show(owned);
        true
    }

    /// Handles a delete event of the watch.
    pub fn deleted(&self, owned: &Owned<V>, now: Instant) -> Option<JobKey> {
        let inner = &mut *self.inner.lock();
        let uid = owned.view.uid();
        // The answer to the create may still be in flight: it must not bring the object back.
        inner.mark_gone(uid, owned.view.version(), now);
        inner.expected_creates.remove(&uid);
        for incoming in inner.incoming.values_mut() {
            remove(incoming, owned.owner, uid);
        }
        let expected = inner.expected_deletes.remove(&uid);
        let removed = remove(&mut inner.owners, owned.owner, uid);
        if removed && !expected {
            // Most of these owners are gone themselves, which is known after a while.
            inner.unexpected_deletions.insert(owned.owner, (), now);
        }
        removed.then(|| owned.key.clone())
    }

    /// Returns true if the job has lost a child that we didn't delete since the last call.
    pub fn take_unexpected_deletion(&self, owner: Uid) -> bool {
        self.inner
            .lock()
            .unexpected_deletions
            .remove(owner)
            .is_some()
    }

    /// Removes an object that belongs to no job, or no longer, because its labels or owner were removed. Returns its former job.
    pub fn remove_foreign(&self, namespace: &str, uid: Uid) -> Option<JobKey> {
        let inner = &mut *self.inner.lock();
        let has = |siblings: &Siblings<V>| {
            *siblings.key.namespace == *namespace && siblings.get(uid).is_some()
        };
        let (owner, key) = inner
            .owners
            .iter()
            .find(|(_, siblings)| has(siblings))
            .map(|(owner, siblings)| (*owner, siblings.key.clone()))?;
        inner.expected_creates.remove(&uid);
        for incoming in inner.incoming.values_mut() {
            remove(incoming, owner, uid);
        }
        remove(&mut inner.owners, owner, uid);
        Some(key)
    }

    /// Handles the answer to our delete.
    pub fn record_delete_response(&self, owner: Uid, uid: Uid, what: Deleted, now: Instant) {
        match what {
            Deleted::Terminating(version) => self.record_terminating(owner, uid, version),
            Deleted::Gone => self.record_gone(owner, uid, now),
        }
    }

    /// Handles the answer to our delete: the object is terminating.
    pub fn record_terminating(&self, owner: Uid, uid: Uid, version: u64) {
        let inner = &mut *self.inner.lock();
        if let Some(child) = inner.owners.get_mut(&owner).and_then(|k| k.get_mut(uid)) {
            child.mark_terminating(version);
            inner.expected_deletes.insert(uid);
        }
    }

    /// Handles the answer to our delete: the object is gone.
    pub fn record_gone(&self, owner: Uid, uid: Uid, now: Instant) {
        let inner = &mut *self.inner.lock();
        if remove(&mut inner.owners, owner, uid) {
            inner.expected_creates.remove(&uid);
        }
        inner.mark_gone(uid, u64::MAX, now);
    }

    /// Returns true if a delete event of the watch, or the answer to our delete, recently said that this child is gone: deleted, or no
    /// longer selected by the watch. False for one that only a list lacks, and for one that [`Self::keep_deleted`] keeps.
    pub fn recently_gone(&self, uid: Uid) -> bool {
        self.inner.lock().gone.get(uid).is_some()
    }

    /// Handles a delete event of the watch for a child whose last state still counts: it stays, marked as deleted, until the job is
    /// forgotten. Drops the first one of too many. The state of a child that we deleted doesn't count.
    pub fn keep_deleted(&self, mut owned: Owned<V>, now: Instant) {
        let child = (owned.owner, owned.view.uid());
        if self.inner.lock().expected_deletes.contains(&child.1) {
            self.deleted(&owned, now);
            return;
        }
        owned.view.mark_deleted();
        let inner = &mut *self.inner.lock();
        inner.expected_creates.remove(&child.1);
        if inner.is_gone(child.1, owned.view.version()) {
            return;
        }
        let kept = inner.kept.entry(owned.key.clone()).or_default();
        kept.retain(|other| *other != child);
        kept.push(child);
        let first = (kept.len() > KEPT_PER_JOB).then(|| kept.remove(0));
        if let Some(first) = first {
            inner.drop_deleted(first);
        }
        inner.show(owned);
    }

    /// Forgets the deleted children of all jobs with this name. Existing children stay: their job may not be listed yet.
    pub fn forget(&self, key: &JobKey) {
        let inner = &mut *self.inner.lock();
        for child in inner.kept.remove(key).into_iter().flatten() {
            inner.drop_deleted(child);
        }
    }

    /// Returns the children of a job, in no particular order.
    pub fn of(&self, owner: Uid) -> Vec<V> {
        self.inner
            .lock()
            .owners
            .get(&owner)
            .map(|k| k.all().to_vec())
            .unwrap_or_default()
    }

    /// Returns true if a job has this child.
    pub fn has(&self, owner: Uid, uid: Uid) -> bool {
        let inner = self.inner.lock();
        let siblings = inner.owners.get(&owner);
        siblings.is_some_and(|k| k.get(uid).is_some())
    }

    /// Returns the number of children of all jobs.
    pub fn len(&self) -> usize {
        self.inner.lock().owners.values().map(Siblings::len).sum()
    }

    /// Returns true if there are no children.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<V: Child> Inner<V> {
    /// Stores a child, also in arriving lists; returns true if a decision may depend on the change.
    fn show(&mut self, owned: Owned<V>) -> bool {
        for (_, incoming) in self
            .incoming
            .iter_mut()
            .filter(|(scope, _)| scope.covers(&owned.key))
        {
            store_child(incoming, owned.clone());
        }
        store_child(&mut self.owners, owned)
    }

    /// Drops a child that is marked as deleted, by its owner and its uid.
    fn drop_deleted(&mut self, (owner, uid): (Uid, Uid)) {
        let siblings = self.owners.get(&owner);
        if siblings.is_some_and(|s| s.get(uid).is_some_and(Child::is_deleted)) {
            remove(&mut self.owners, owner, uid);
        }
    }
}

impl<V> Inner<V> {
    fn is_gone(&mut self, uid: Uid, version: u64) -> bool {
        let Some(gone) = self.gone.get(uid) else {
            return false;
        };
        let back = version > gone.version;
        if back {
            self.gone.remove(uid);
        }
        !back
    }

    fn mark_gone(&mut self, uid: Uid, version: u64, now: Instant) {
        let known = self.gone.get(uid).map_or(0, |gone| gone.version);
        let version = version.max(known);
        self.gone.insert(uid, DeletedChild { version }, now);
    }
}

/// Stores a child; returns true if a decision may depend on the change.
fn store_child<V: Child>(owners: &mut HashMap<Uid, Siblings<V>>, owned: Owned<V>) -> bool {
    let siblings = owners
        .entry(owned.owner)
        .or_insert_with(|| Siblings::new(owned.key));
    siblings.store(owned.view)
}

fn remove<V: Child>(owners: &mut HashMap<Uid, Siblings<V>>, owner: Uid, uid: Uid) -> bool {
    let Some(siblings) = owners.get_mut(&owner) else {
        return false;
    };
    let removed = siblings.remove(uid);
    if siblings.is_empty() {
        owners.remove(&owner);
    }
    removed
}

fn same<V: Child>(before: Option<&Siblings<V>>, after: Option<&Siblings<V>>) -> bool {
    let (Some(before), Some(after)) = (before, after) else {
        return before.is_none_or(Siblings::is_empty) && after.is_none_or(Siblings::is_empty);
    };
    let exists = |b: &V| after.get(b.uid()).is_some_and(|a| a.same_for_decisions(b));
    before.len() == after.len() && before.all().iter().all(exists)
}

#[cfg(test)]
mod tests {
    use training_core::{ObjectKind, ObjectView, ServiceView};

    use super::*;

    static ALL: std::sync::LazyLock<Scope> = std::sync::LazyLock::new(|| Scope::new(None));

    fn service(uid: u128, index: u32, version: u64) -> Owned<ServiceView> {
        let view = ServiceView {
            uid: Uid(uid),
            version,
            role: "worker".into(),
            index,
            terminating: false,
        };
        Owned {
            key: JobKey::new("ns", "job"),
            owner: Uid(7),
            view,
        }
    }

    fn uids(index: &Index<ServiceView>) -> Vec<u128> {
        let mut uids: Vec<u128> = index.of(Uid(7)).iter().map(|s| s.uid.0).collect();
        uids.sort_unstable();
        uids
    }

    #[tokio::test(start_paused = true)]
    async fn f_32_f_34_i_44_older_and_repeated_news_change_nothing() {
        let index = Index::default();
        assert!(index.apply(service(1, 0, 5)).is_some());
        assert!(index.apply(service(1, 0, 5)).is_none());
        index.record_terminating(Uid(7), Uid(1), 9);
        assert!(
            index.apply(service(1, 0, 6)).is_none(),
            "the watch lags behind our own delete"
        );
        assert!(index.of(Uid(7))[0].terminating);
    }

    fn launcher(uid: u128, version: u64) -> Owned<ObjectView> {
        let view = ObjectView {
            kind: ObjectKind::Job,
            name: format!("launcher-{uid}").into(),
            uid: Uid(uid),
            version,
            terminating: false,
            gone: false,
            digest: None,
            keys: Vec::new(),
            batch: None,
        };
        Owned {
            key: JobKey::new("ns", "job"),
            owner: Uid(7),
            view,
        }
    }

    /// The uids of all launchers, and whether they are gone.
    fn launchers(index: &Index<ObjectView>) -> Vec<(u128, bool)> {
        let mut all: Vec<_> = index.of(Uid(7)).iter().map(|o| (o.uid.0, o.gone)).collect();
        all.sort_unstable();
        all
    }

    #[tokio::test(start_paused = true)]
    async fn forgetting_a_job_drops_its_deleted_children_alone() {
        let (index, key) = (Index::default(), JobKey::new("ns", "job"));
        for uid in [1, 2, 3] {
            index.apply(launcher(uid, 5));
        }
        index.keep_deleted(launcher(1, 6), Instant::now());
        index.keep_deleted(launcher(3, 6), Instant::now());
        // Its label was removed and is back.
        index.apply(launcher(3, 7));
        assert_eq!(launchers(&index), [(1, true), (2, false), (3, false)]);
        for _ in 0..2 {
            index.forget(&key);
            let left = [(2, false), (3, false)];
            assert_eq!(launchers(&index), left, "its job may not be listed yet");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_deleted_child_that_counts_survives_a_list_unless_we_deleted_it() {
        let index = Index::default();
        for uid in [1, 2] {
            index.apply(launcher(uid, 5));
        }
        index.record_terminating(Uid(7), Uid(2), 6);
        for uid in [1, 2] {
            index.keep_deleted(launcher(uid, 7), Instant::now());
        }
        index.begin_list(&ALL);
        index.end_list(&ALL, Instant::now());
        assert_eq!(launchers(&index), [(1, true)]);
    }

    #[tokio::test(start_paused = true)]
    async fn few_deleted_children_of_a_job_count() {
        let index = Index::default();
        for uid in 1..=20 {
            index.apply(launcher(uid, 5));
            index.keep_deleted(launcher(uid, 6), Instant::now());
        }
        let left: Vec<_> = (13..=20).map(|uid| (uid, true)).collect();
        assert_eq!(launchers(&index), left);
    }

    #[tokio::test(start_paused = true)]
    async fn what_we_made_survives_a_list_taken_before_it() {
        let index = Index::default();
        index.begin_list(&ALL);
        index.created(service(1, 0, 5), Instant::now());
        index.listed(&ALL, service(2, 1, 4));
        index.end_list(&ALL, Instant::now());
        assert_eq!(uids(&index), [1, 2]);
        tokio::time::advance(CREATE_EXPECTATION_TTL + Duration::from_secs(1)).await;
        index.begin_list(&ALL);
        let woken = index.end_list(&ALL, Instant::now());
        assert_eq!(uids(&index), [] as [u128; 0]);
        assert_eq!(
            woken,
            [JobKey::new("ns", "job")],
            "a relist hid the deletions"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn f_41_a_list_from_an_older_revision_does_not_undo_what_is_known() {
        let index = Index::default();
        index.apply(service(1, 0, 9));
        index.record_terminating(Uid(7), Uid(1), 10);
        index.apply(service(2, 1, 8));
        index.record_gone(Uid(7), Uid(2), Instant::now());
        index.begin_list(&ALL);
        index.listed(&ALL, service(1, 0, 3));
        index.listed(&ALL, service(2, 1, 3));
        index.end_list(&ALL, Instant::now());
        assert_eq!(uids(&index), [1]);
        assert!(index.of(Uid(7))[0].terminating);
    }

    #[tokio::test(start_paused = true)]
    async fn f_43_a_successor_of_the_same_name_takes_the_place() {
        let index = Index::default();
        index.apply(service(1, 0, 5));
        assert!(index.apply(service(2, 0, 8)).is_some());
        assert_eq!(uids(&index), [2]);
        assert!(
            index.deleted(&service(1, 0, 7), Instant::now()).is_none(),
            "a stale event of the predecessor"
        );
        assert_eq!(uids(&index), [2]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_comes_after_the_deletion_brings_nothing_back() {
        let index = Index::default();
        index.apply(service(1, 0, 5));
        index.deleted(&service(1, 0, 6), Instant::now());
        index.created(service(1, 0, 5), Instant::now());
        assert!(index.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_watch_lost_with_its_label_comes_back_with_it() {
        let index = Index::default();
        index.apply(service(1, 0, 5));
        index.deleted(&service(1, 0, 6), Instant::now());
        assert!(index.apply(service(1, 0, 4)).is_none(), "a stale event");
        assert!(index.apply(service(1, 0, 7)).is_some(), "labelled again");
        assert_eq!(uids(&index), [1]);

        index.deleted(&service(1, 0, 8), Instant::now());
        index.begin_list(&ALL);
        index.listed(&ALL, service(1, 0, 9));
        index.end_list(&ALL, Instant::now());
        assert_eq!(uids(&index), [1], "labelled again with the watch down");
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_tells_what_lost_its_label_from_what_is_gone() {
        let index = Index::default();
        index.apply(service(1, 0, 5));
        index.deleted(&service(1, 0, 6), Instant::now());
        assert!(!index.found(service(1, 0, 5)), "read before it was deleted");
        assert!(index.is_empty());
        assert!(index.found(service(1, 0, 6)), "its label was taken then");
        assert_eq!(uids(&index), [1]);
        index.record_gone(Uid(7), Uid(1), Instant::now());
        assert!(!index.found(service(1, 0, 6)), "we deleted it");

        index.begin_list(&ALL);
        assert!(index.found(service(2, 1, 9)));
        index.end_list(&ALL, Instant::now());
        assert_eq!(
            uids(&index),
            [2],
            "found while a list that lacks it arrived"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_list_of_one_namespace_leaves_the_others_alone() {
        let index = Index::default();
        let mut other = service(2, 0, 5);
        (other.key, other.owner) = (JobKey::new("elsewhere", "job"), Uid(8));
        index.apply(service(1, 0, 5));
        index.apply(other);
        let here = Scope::new(Some("ns"));
        index.begin_list(&here);
        assert_eq!(
            index.end_list(&here, Instant::now()),
            [JobKey::new("ns", "job")]
        );
        assert_eq!((index.of(Uid(7)).len(), index.of(Uid(8)).len()), (0, 1));
    }

    #[test]
    fn a_job_is_bereft_once_of_a_child_that_went_without_us() {
        let owner = service(1, 0, 5).owner;
        for deletes in [false, true] {
            let index = Index::default();
            index.apply(service(1, 0, 5));
            if deletes {
                index.record_terminating(owner, service(1, 0, 5).view.uid(), 6);
            }
            assert!(index.deleted(&service(1, 0, 7), Instant::now()).is_some());
            assert_eq!(index.take_unexpected_deletion(owner), !deletes);
            assert!(!index.take_unexpected_deletion(owner));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn jobs_that_are_gone_themselves_are_not_kept_for_ever() {
        let index = Index::default();
        for job in 0..10_000 {
            let mut lost = service(job, 0, 5);
            lost.owner = Uid(job);
            index.apply(lost.clone());
            index.deleted(&lost, Instant::now());
            if job % 500 == 0 {
                tokio::time::advance(KEPT / 4).await;
            }
        }
        assert!(index.inner.lock().unexpected_deletions.len() <= 5_000);
        assert!(
            index.take_unexpected_deletion(Uid(9_999)),
            "the last one is known"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_comes_after_the_watch_adds_nothing() {
        let index = Index::default();
        index.apply(service(1, 0, 6));
        index.created(service(1, 0, 5), Instant::now());
        assert_eq!(index.of(Uid(7))[0].version, 6);
        index.begin_list(&ALL);
        index.end_list(&ALL, Instant::now());
        assert!(index.is_empty(), "it was not kept as an expected create");
    }
}
