//! The children of one job, indexed by uid and by place: a job may have tens of thousands.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};

use training_core::Uid;

use super::child::Child;
use crate::key::JobKey;

/// Up to this many are searched linearly, which costs no memory; most jobs have fewer.
const FEW: usize = 32;

/// The children of one job.
#[derive(Clone, Debug)]
pub(super) struct Siblings<V> {
    /// The job.
    pub(super) key: JobKey,
    children: Vec<V>,
    /// Their positions, if there are more than `FEW`.
    positions: Option<Box<Positions>>,
}

/// Positions by uid, and by the hash of the place.
#[derive(Clone, Debug, Default)]
struct Positions {
    hasher: RandomState,
    uids: HashMap<Uid, usize>,
    places: HashMap<u64, usize>,
}

impl Positions {
    fn hash(&self, child: &impl Child) -> u64 {
        let mut state = self.hasher.build_hasher();
        child.hash_slot(&mut state);
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

impl<V: Child> Siblings<V> {
    /// Creates an empty set of children.
    pub(super) fn new(key: JobKey) -> Self {
        Self {
            key,
            children: Vec::with_capacity(1),
            positions: None,
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
        match &self.positions {
            None => self.children.iter().position(|c| c.uid() == uid),
            Some(positions) => positions.uids.get(&uid).copied(),
        }
    }

    /// Returns the position of the same object, or of another one in its place.
    fn taken(&self, by: &V) -> Option<usize> {
        let Some(positions) = &self.positions else {
            let mut children = self.children.iter();
            return children.position(|c| c.uid() == by.uid() || c.same_slot(by));
        };
        let same = || {
            let at = *positions.places.get(&positions.hash(by))?;
            self.children
                .get(at)
                .is_some_and(|c| c.same_slot(by))
                .then_some(at)
        };
        positions.uids.get(&by.uid()).copied().or_else(same)
    }

    /// Stores a child, unless its place holds a newer one; returns true if a decision may depend on the change.
    pub(super) fn store(&mut self, view: V) -> bool {
        let Some(at) = self.taken(&view) else {
            if let Some(positions) = &mut self.positions {
                positions.insert(&view, self.children.len());
            }
            self.children.push(view);
            if self.children.len() > FEW && self.positions.is_none() {
                self.rebuild_positions();
            }
            return true;
        };
        let child = &mut self.children[at];
        if view.version() < child.version() {
            return false;
        }
        let changed = !child.same_for_decisions(&view);
        let former = std::mem::replace(child, view);
        if let Some(positions) = &mut self.positions
            && (former.uid() != self.children[at].uid() || !former.same_slot(&self.children[at]))
        {
            positions.forget(&former);
            positions.insert(&self.children[at], at);
        }
        changed
    }

    /// Removes a child; returns true if it existed.
    pub(super) fn remove(&mut self, uid: Uid) -> bool {
        let Some(at) = self.position(uid) else {
            return false;
        };
        let gone = self.children.swap_remove(at);
        if let Some(positions) = &mut self.positions {
            positions.forget(&gone);
            if let Some(moved) = self.children.get(at) {
                positions.insert(moved, at);
            }
        }
        true
    }

    pub(super) fn retain(&mut self, keep: impl FnMut(&V) -> bool) {
        let before = self.children.len();
        self.children.retain(keep);
        if self.children.len() != before && self.positions.is_some() {
            self.rebuild_positions();
        }
    }

    fn rebuild_positions(&mut self) {
        let mut positions = Box::<Positions>::default();
        for (at, child) in self.children.iter().enumerate() {
            positions.insert(child, at);
        }
        self.positions = Some(positions);
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
            terminating: false,
        }
    }

    #[test]
    fn one_that_changes_its_place_is_found_in_the_new_one_alone() {
        let mut siblings = Siblings::new(JobKey::new("ns", "job"));
        for index in 0..40 {
            siblings.store(service(u128::from(index), index, 1));
        }
        siblings.store(service(7, 100, 2));
        assert!(
            siblings.store(service(1_007, 7, 3)),
            "the old place is free"
        );
        siblings.store(service(1_100, 100, 4));
        assert_eq!((siblings.len(), siblings.get(Uid(7))), (41, None));
    }

    proptest! {
        /// The index finds the same children as a linear search, after any sequence of changes.
        #[test]
        fn what_is_found_is_what_a_look_at_each_finds(moves in proptest::collection::vec((0u32..90, 0u128..3, 0u64..9, any::<bool>()), 0..400)) {
            let mut siblings = Siblings::new(JobKey::new("ns", "job"));
            let mut model: Vec<ServiceView> = Vec::new();
            for (index, generation, version, gone) in moves {
                let view = service(u128::from(index) * 3 + generation, index, version);
                if gone {
                    let there = model.iter().position(|c| c.uid == view.uid);
                    prop_assert_eq!(siblings.remove(view.uid), there.is_some());
                    there.map(|at| model.remove(at));
                    continue;
                }
                match model.iter_mut().find(|c| c.index == index) {
                    Some(child) if child.version <= version => *child = view.clone(),
                    Some(_) => {}
                    None => model.push(view.clone()),
                }
                siblings.store(view);
            }
            prop_assert_eq!(siblings.len(), model.len());
            for child in &model {
                prop_assert_eq!(siblings.get(child.uid), Some(child));
            }
        }
    }
}
