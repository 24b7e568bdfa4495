//! The children of all jobs, by owner: what the watch showed, and what we wrote ourselves but the watch has not shown yet.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use training_core::Uid;

use super::child::Child;
use super::kids::Kids;
use super::lately::{KEPT, Lately};
use super::slim::Owned;
use crate::caller::Deleted;
use crate::key::{JobKey, Scope};

/// How long a write of ours counts without the watch showing it.
pub const UNSEEN: Duration = KEPT;

/// An index of one type of child.
#[derive(Debug)]
pub struct Index<V> {
    inner: Mutex<Inner<V>>,
}

#[derive(Debug)]
struct Inner<V> {
    owners: HashMap<Uid, Kids<V>>,
    /// The next state of a scope, while its first list or a relist is coming in.
    incoming: HashMap<Scope, HashMap<Uid, Kids<V>>>,
    /// Scopes of which a list is still to come, and the jobs of which this was asked.
    awaited: HashMap<Scope, HashSet<JobKey>>,
    /// Created by us and not shown by the watch yet.
    unseen: HashMap<Uid, Instant>,
    /// Gone, as an answer to a delete of ours or the watch said; late news of them is no news.
    gone: Lately<Gone>,
    /// Whose deletion we asked for, and the watch has not shown yet.
    asked: HashSet<Uid>,
    /// Owners that lost a child that we didn't delete: they may be gone themselves, which another watch tells.
    bereft: Lately<()>,
}

/// What is known of an object that is gone.
#[derive(Clone, Copy, Debug)]
struct Gone {
    /// As of this version. A watch is selected by a label, so it also loses what only loses its label; such an object comes back
    /// at a later version, and what is really gone has none.
    version: u64,
}

impl<V> Default for Index<V> {
    fn default() -> Self {
        let inner = Inner {
            owners: HashMap::new(),
            incoming: HashMap::new(),
            awaited: HashMap::new(),
            unseen: HashMap::new(),
            gone: Lately::default(),
            asked: HashSet::new(),
            bereft: Lately::default(),
        };
        Self {
            inner: Mutex::new(inner),
        }
    }
}

impl<V: Child> Index<V> {
    /// A list of a scope is to come.
    pub fn expect(&self, scope: &Scope) {
        let mut inner = self.inner.lock();
        inner.awaited.insert(scope.clone(), HashSet::new());
    }

    /// Whether all children of a job are known. If not, the end of the list that is still to come returns the job as well.
    pub fn is_known(&self, key: &JobKey) -> bool {
        let mut inner = self.inner.lock();
        let mut awaited = inner.awaited.iter_mut();
        let Some((_, asked)) = awaited.find(|(scope, _)| scope.covers(key)) else {
            return true;
        };
        asked.insert(key.clone());
        false
    }

    /// A list begins: what it holds replaces everything in its scope, once it is complete.
    pub fn begin_list(&self, scope: &Scope) {
        self.inner
            .lock()
            .incoming
            .insert(scope.clone(), HashMap::new());
    }

    /// One object of a list.
    pub fn listed(&self, scope: &Scope, owned: Owned<V>) {
        if let Some(incoming) = self.inner.lock().incoming.get_mut(scope) {
            place(incoming, owned);
        }
    }

    /// The list is complete. Returns the jobs whose children changed, those whose children vanished included: a relist may
    /// hide deletions.
    pub fn end_list(&self, scope: &Scope, now: Instant) -> Vec<JobKey> {
        let inner = &mut *self.inner.lock();
        let Some(mut next) = inner.incoming.remove(scope) else {
            return Vec::new();
        };
        inner.unseen.retain(|_, since| now < *since + UNSEEN);
        // The list may have swallowed what would have been shown. It costs a question more for those that are still shown.
        inner.asked.clear();
        inner.gone.sweep(now);
        for (owner, kids) in &inner.owners {
            if !scope.covers(&kids.key) {
                next.insert(*owner, kids.clone());
                continue;
            }
            for child in kids.all() {
                let listed = next.get(owner).and_then(|k| k.get(child.uid()));
                let newer = listed.is_some_and(|l| l.version() < child.version());
                // What we made after the list was taken, and what we know from later than the list, stays.
                if newer || listed.is_none() && inner.unseen.contains_key(&child.uid()) {
                    place(
                        &mut next,
                        Owned {
                            key: kids.key.clone(),
                            owner: *owner,
                            view: child.clone(),
                        },
                    );
                }
            }
        }
        next.retain(|_, kids| {
            let back = |c: &V, gone: &Gone| c.version() > gone.version;
            let there = |c: &V| inner.gone.get(c.uid()).is_none_or(|gone| back(c, gone));
            kids.retain(there);
            !kids.is_empty()
        });
        let mut changed = inner.awaited.remove(scope).unwrap_or_default();
        for (owner, kids) in inner.owners.iter().chain(&next) {
            let (before, after) = (inner.owners.get(owner), next.get(owner));
            if !same(before, after) {
                changed.insert(kids.key.clone());
            }
        }
        inner.owners = next;
        changed.into_iter().collect()
    }

    /// An object as the watch or an answer shows it. Returns the job to wake, if a decision may depend on the change.
    pub fn apply(&self, owned: Owned<V>) -> Option<JobKey> {
        let inner = &mut *self.inner.lock();
        let uid = owned.view.uid();
        inner.unseen.remove(&uid);
        if inner.is_gone(uid, owned.view.version()) {
            return None;
        }
        let key = owned.key.clone();
        inner.show(owned).then_some(key)
    }

    /// An object that we made ourselves. Nobody is woken: the pass that made it knows.
    pub fn created(&self, owned: Owned<V>, now: Instant) {
        let inner = &mut *self.inner.lock();
        let uid = owned.view.uid();
        let known = inner
            .owners
            .get(&owned.owner)
            .is_some_and(|k| k.get(uid).is_some());
        if !known && !inner.is_gone(uid, owned.view.version()) {
            inner.unseen.insert(uid, now);
            place(&mut inner.owners, owned);
        }
    }

    /// The children of a job that we made and no watch has shown, and since when.
    pub fn unseen(&self, owner: Uid) -> Vec<(V, Instant)> {
        let inner = self.inner.lock();
        if inner.unseen.is_empty() {
            return Vec::new();
        }
        let kids = inner.owners.get(&owner).map(Kids::all);
        let children = kids.unwrap_or_default().iter();
        children
            .filter_map(|c| Some((c.clone(), *inner.unseen.get(&c.uid())?)))
            .collect()
    }

    /// An object as an answer to a write of ours shows it, whether it was known before or not.
    pub fn written(&self, owned: Owned<V>, now: Instant) {
        self.created(owned.clone(), now);
        let inner = &mut *self.inner.lock();
        if !inner.is_gone(owned.view.uid(), owned.view.version()) {
            place(&mut inner.owners, owned);
        }
    }

    /// An object as a read of its name shows it. It counts as gone if the watch lost it with its label, and yet it is there; false
    /// if it is really gone by now.
    pub fn found(&self, owned: Owned<V>) -> bool {
        let inner = &mut *self.inner.lock();
        let (uid, version) = (owned.view.uid(), owned.view.version());
        // The watch loses an object at the version that it then has, and one that is deleted at a version that it never had.
        if inner.gone.get(uid).is_some_and(|g| version < g.version) {
            return false;
        }
        inner.gone.remove(uid);
        inner.unseen.remove(&uid);
        inner.show(owned);
        true
    }

    /// The watch says that an object is gone.
    pub fn deleted(&self, owned: &Owned<V>, now: Instant) -> Option<JobKey> {
        let inner = &mut *self.inner.lock();
        let uid = owned.view.uid();
        // The answer to the create may still be under way: it must not bring the object back.
        inner.bury(uid, owned.view.version(), now);
        inner.unseen.remove(&uid);
        for incoming in inner.incoming.values_mut() {
            remove(incoming, owned.owner, uid);
        }
        let asked = inner.asked.remove(&uid);
        let removed = remove(&mut inner.owners, owned.owner, uid);
        if removed && !asked {
            // Most of these are gone themselves: after a while that is known.
            inner.bereft.insert(owned.owner, (), now);
        }
        removed.then(|| owned.key.clone())
    }

    /// True if the job has lost a child that we didn't delete since this was asked last.
    pub fn take_bereft(&self, owner: Uid) -> bool {
        self.inner.lock().bereft.remove(owner).is_some()
    }

    /// An object of a namespace that is no job's, or no longer: somebody took its labels or its owner away. Returns the job that it
    /// was of.
    pub fn disowned(&self, namespace: &str, uid: Uid) -> Option<JobKey> {
        let inner = &mut *self.inner.lock();
        let has = |kids: &Kids<V>| *kids.key.namespace == *namespace && kids.get(uid).is_some();
        let (owner, key) = inner
            .owners
            .iter()
            .find(|(_, kids)| has(kids))
            .map(|(owner, kids)| (*owner, kids.key.clone()))?;
        inner.unseen.remove(&uid);
        for incoming in inner.incoming.values_mut() {
            remove(incoming, owner, uid);
        }
        remove(&mut inner.owners, owner, uid);
        Some(key)
    }

    /// The answer to a delete of ours.
    pub fn answered(&self, owner: Uid, uid: Uid, what: Deleted, now: Instant) {
        match what {
            Deleted::Leaving(version) => self.leaving(owner, uid, version),
            Deleted::Gone => self.gone(owner, uid, now),
        }
    }

    /// The answer to a delete of ours: the object is on its way out.
    pub fn leaving(&self, owner: Uid, uid: Uid, version: u64) {
        let inner = &mut *self.inner.lock();
        if let Some(child) = inner.owners.get_mut(&owner).and_then(|k| k.get_mut(uid)) {
            child.leave(version);
            inner.asked.insert(uid);
        }
    }

    /// The answer to a delete of ours: the object is gone.
    pub fn gone(&self, owner: Uid, uid: Uid, now: Instant) {
        let inner = &mut *self.inner.lock();
        if remove(&mut inner.owners, owner, uid) {
            inner.unseen.remove(&uid);
        }
        inner.bury(uid, u64::MAX, now);
    }

    /// True if an object was seen to go, lately.
    pub fn has_gone(&self, uid: Uid) -> bool {
        self.inner.lock().gone.get(uid).is_some()
    }

    /// Forgets what is left of the jobs of this name.
    pub fn forget(&self, key: &JobKey) {
        let inner = &mut *self.inner.lock();
        inner.owners.retain(|_, kids| kids.key != *key);
    }

    /// The children of a job, in no particular order.
    pub fn of(&self, owner: Uid) -> Vec<V> {
        self.inner
            .lock()
            .owners
            .get(&owner)
            .map(|k| k.all().to_vec())
            .unwrap_or_default()
    }

    /// True if a job has this child.
    pub fn has(&self, owner: Uid, uid: Uid) -> bool {
        let inner = self.inner.lock();
        let kids = inner.owners.get(&owner);
        kids.is_some_and(|k| k.get(uid).is_some())
    }

    /// Number of children of all jobs.
    pub fn len(&self) -> usize {
        self.inner.lock().owners.values().map(Kids::len).sum()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<V: Child> Inner<V> {
    /// Puts a child in its place, also in the lists that are coming in; true if a decision may depend on the difference.
    fn show(&mut self, owned: Owned<V>) -> bool {
        for (_, incoming) in self
            .incoming
            .iter_mut()
            .filter(|(scope, _)| scope.covers(&owned.key))
        {
            place(incoming, owned.clone());
        }
        place(&mut self.owners, owned)
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

    fn bury(&mut self, uid: Uid, version: u64, now: Instant) {
        let known = self.gone.get(uid).map_or(0, |gone| gone.version);
        let version = version.max(known);
        self.gone.insert(uid, Gone { version }, now);
    }
}

/// Puts a child in its place; true if a decision may depend on the difference.
fn place<V: Child>(owners: &mut HashMap<Uid, Kids<V>>, owned: Owned<V>) -> bool {
    let kids = owners
        .entry(owned.owner)
        .or_insert_with(|| Kids::new(owned.key));
    kids.place(owned.view)
}

fn remove<V: Child>(owners: &mut HashMap<Uid, Kids<V>>, owner: Uid, uid: Uid) -> bool {
    let Some(kids) = owners.get_mut(&owner) else {
        return false;
    };
    let removed = kids.remove(uid);
    if kids.is_empty() {
        owners.remove(&owner);
    }
    removed
}

fn same<V: Child>(before: Option<&Kids<V>>, after: Option<&Kids<V>>) -> bool {
    let (Some(before), Some(after)) = (before, after) else {
        return before.is_none_or(Kids::is_empty) && after.is_none_or(Kids::is_empty);
    };
    let is_there = |b: &V| after.get(b.uid()).is_some_and(|a| a.same_for_decisions(b));
    before.len() == after.len() && before.all().iter().all(is_there)
}

#[cfg(test)]
mod tests {
    use training_core::ServiceView;

    use super::*;

    static ALL: std::sync::LazyLock<Scope> = std::sync::LazyLock::new(|| Scope::new(None));

    fn service(uid: u128, index: u32, version: u64) -> Owned<ServiceView> {
        let view = ServiceView {
            uid: Uid(uid),
            version,
            role: "worker".into(),
            index,
            leaving: false,
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
        index.leaving(Uid(7), Uid(1), 9);
        assert!(
            index.apply(service(1, 0, 6)).is_none(),
            "the watch is behind our own delete"
        );
        assert!(index.of(Uid(7))[0].leaving);
    }

    #[tokio::test(start_paused = true)]
    async fn what_we_made_survives_a_list_taken_before_it() {
        let index = Index::default();
        index.begin_list(&ALL);
        index.created(service(1, 0, 5), Instant::now());
        index.listed(&ALL, service(2, 1, 4));
        index.end_list(&ALL, Instant::now());
        assert_eq!(uids(&index), [1, 2]);
        tokio::time::advance(UNSEEN + Duration::from_secs(1)).await;
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
        index.leaving(Uid(7), Uid(1), 10);
        index.apply(service(2, 1, 8));
        index.gone(Uid(7), Uid(2), Instant::now());
        index.begin_list(&ALL);
        index.listed(&ALL, service(1, 0, 3));
        index.listed(&ALL, service(2, 1, 3));
        index.end_list(&ALL, Instant::now());
        assert_eq!(uids(&index), [1]);
        assert!(index.of(Uid(7))[0].leaving);
    }

    #[tokio::test(start_paused = true)]
    async fn f_43_a_successor_of_the_same_name_takes_the_place() {
        let index = Index::default();
        index.apply(service(1, 0, 5));
        assert!(index.apply(service(2, 0, 8)).is_some());
        assert_eq!(uids(&index), [2]);
        assert!(
            index.deleted(&service(1, 0, 7), Instant::now()).is_none(),
            "late news of the predecessor"
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
        assert!(index.apply(service(1, 0, 4)).is_none(), "late news");
        assert!(index.apply(service(1, 0, 7)).is_some(), "labelled again");
        assert_eq!(uids(&index), [1]);

        index.deleted(&service(1, 0, 8), Instant::now());
        index.begin_list(&ALL);
        index.listed(&ALL, service(1, 0, 9));
        index.end_list(&ALL, Instant::now());
        assert_eq!(uids(&index), [1], "labelled again while nobody watched");
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
        index.gone(Uid(7), Uid(1), Instant::now());
        assert!(!index.found(service(1, 0, 6)), "we deleted it");

        index.begin_list(&ALL);
        assert!(index.found(service(2, 1, 9)));
        index.end_list(&ALL, Instant::now());
        assert_eq!(
            uids(&index),
            [2],
            "found while a list that lacks it came in"
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
                index.leaving(owner, service(1, 0, 5).view.uid(), 6);
            }
            assert!(index.deleted(&service(1, 0, 7), Instant::now()).is_some());
            assert_eq!(index.take_bereft(owner), !deletes);
            assert!(!index.take_bereft(owner));
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
                tokio::time::advance(UNSEEN / 4).await;
            }
        }
        assert!(index.inner.lock().bereft.len() <= 5_000);
        assert!(index.take_bereft(Uid(9_999)), "the last one is known");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_comes_after_the_watch_adds_nothing() {
        let index = Index::default();
        index.apply(service(1, 0, 6));
        index.created(service(1, 0, 5), Instant::now());
        assert_eq!(index.of(Uid(7))[0].version, 6);
        index.begin_list(&ALL);
        index.end_list(&ALL, Instant::now());
        assert!(index.is_empty(), "it was not kept as unseen");
    }
}
