//! The children of one job, found by uid and by place without a look at each: a job may have tens of thousands.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};

use training_core::Uid;

use super::child::Child;
use crate::key::JobKey;

/// So many are looked at one by one: that costs no memory, and most jobs have fewer.
const FEW: usize = 32;

/// The children of one job.
#[derive(Clone, Debug)]
pub(super) struct Kids<V> {
    /// The job.
    pub(super) key: JobKey,
    children: Vec<V>,
    /// Where they stand, for more than a few.
    found: Option<Box<Found>>,
}

/// Positions by uid, and by the hash of the place.
#[derive(Clone, Debug, Default)]
struct Found {
    hasher: RandomState,
    uids: HashMap<Uid, usize>,
    places: HashMap<u64, usize>,
}

impl Found {
    fn hash(&self, child: &impl Child) -> u64 {
        let mut state = self.hasher.build_hasher();
        child.hash_place(&mut state);
        state.finish()
    }

    fn insert(&mut self, child: &impl Child, at: usize) {
        let place = self.hash(child);
        self.uids.insert(child.uid(), at);
        self.places.insert(place, at);
    }

    fn forget(&mut self, child: &impl Child) {
        let place = self.hash(child);
        self.uids.remove(&child.uid());
        self.places.remove(&place);
    }
}

impl<V: Child> Kids<V> {
    /// None yet.
    pub(super) fn new(key: JobKey) -> Self {
        Self {
            key,
            children: Vec::with_capacity(1),
            found: None,
        }
    }

    pub(super) fn all(&self) -> &[V] {
        &self.children
    }

    pub(super) fn len(&self) -> usize {
        self.children.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.children.is_empty()
    }

    pub(super) fn get(&self, uid: Uid) -> Option<&V> {
        self.children.get(self.position(uid)?)
    }

    pub(super) fn get_mut(&mut self, uid: Uid) -> Option<&mut V> {
        let at = self.position(uid)?;
        self.children.get_mut(at)
    }

    fn position(&self, uid: Uid) -> Option<usize> {
        match &self.found {
            None => self.children.iter().position(|c| c.uid() == uid),
            Some(found) => found.uids.get(&uid).copied(),
        }
    }

    /// Where the same object stands, or another one in its place.
    fn taken(&self, by: &V) -> Option<usize> {
        let Some(found) = &self.found else {
            let mut children = self.children.iter();
            return children.position(|c| c.uid() == by.uid() || c.same_place(by));
        };
        let same = || {
            let at = *found.places.get(&found.hash(by))?;
            self.children
                .get(at)
                .is_some_and(|c| c.same_place(by))
                .then_some(at)
        };
        found.uids.get(&by.uid()).copied().or_else(same)
    }

    /// Puts a child in its place, unless a newer one stands there; true if a decision may depend on the difference.
    pub(super) fn place(&mut self, view: V) -> bool {
        let Some(at) = self.taken(&view) else {
            if let Some(found) = &mut self.found {
                found.insert(&view, self.children.len());
            }
            self.children.push(view);
            if self.children.len() > FEW && self.found.is_none() {
                self.find_again();
            }
            return true;
        };
        let child = &mut self.children[at];
        if view.version() < child.version() {
            return false;
        }
        let changed = !child.same_for_decisions(&view);
        let former = std::mem::replace(child, view);
        if let Some(found) = &mut self.found
            && (former.uid() != self.children[at].uid() || !former.same_place(&self.children[at]))
        {
            found.forget(&former);
            found.insert(&self.children[at], at);
        }
        changed
    }

    /// True if it was there.
    pub(super) fn remove(&mut self, uid: Uid) -> bool {
        let Some(at) = self.position(uid) else {
            return false;
        };
        let gone = self.children.swap_remove(at);
        if let Some(found) = &mut self.found {
            found.forget(&gone);
            if let Some(moved) = self.children.get(at) {
                found.insert(moved, at);
            }
        }
        true
    }

    pub(super) fn retain(&mut self, keep: impl FnMut(&V) -> bool) {
        let before = self.children.len();
        self.children.retain(keep);
        if self.children.len() != before && self.found.is_some() {
            self.find_again();
        }
    }

    fn find_again(&mut self) {
        let mut found = Box::<Found>::default();
        for (at, child) in self.children.iter().enumerate() {
            found.insert(child, at);
        }
        self.found = Some(found);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use training_core::ServiceView;

    use super::*;

    fn service(uid: u128, index: u32, version: u64) -> ServiceView {
        ServiceView {
            uid: Uid(uid),
            version,
            role: "worker".into(),
            index,
            leaving: false,
        }
    }

    #[test]
    fn one_that_changes_its_place_is_found_in_the_new_one_alone() {
        let mut kids = Kids::new(JobKey::new("ns", "job"));
        for index in 0..40 {
            kids.place(service(u128::from(index), index, 1));
        }
        kids.place(service(7, 100, 2));
        assert!(kids.place(service(1_007, 7, 3)), "its old place is free");
        kids.place(service(1_100, 100, 4));
        assert_eq!((kids.len(), kids.get(Uid(7))), (41, None));
    }

    proptest! {
        /// Many are found as few are, whatever comes and goes.
        #[test]
        fn what_is_found_is_what_a_look_at_each_finds(moves in proptest::collection::vec((0u32..90, 0u128..3, 0u64..9, any::<bool>()), 0..400)) {
            let mut kids = Kids::new(JobKey::new("ns", "job"));
            let mut model: Vec<ServiceView> = Vec::new();
            for (index, generation, version, gone) in moves {
                let view = service(u128::from(index) * 3 + generation, index, version);
                if gone {
                    let there = model.iter().position(|c| c.uid == view.uid);
                    prop_assert_eq!(kids.remove(view.uid), there.is_some());
                    there.map(|at| model.remove(at));
                    continue;
                }
                match model.iter_mut().find(|c| c.index == index) {
                    Some(child) if child.version <= version => *child = view.clone(),
                    Some(_) => {}
                    None => model.push(view.clone()),
                }
                kids.place(view);
            }
            prop_assert_eq!(kids.len(), model.len());
            for child in &model {
                prop_assert_eq!(kids.get(child.uid), Some(child));
            }
        }
    }
}
