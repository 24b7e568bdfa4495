//! What is asked of a child of a job, whatever its kind.

use std::hash::{Hash as _, Hasher};

use training_core::{PodView, ServiceView, Uid};

/// What an index needs to know of a child.
pub trait Child: Clone {
    /// Its uid.
    fn uid(&self) -> Uid;
    /// The resource version at which it was seen.
    fn version(&self) -> u64;
    /// True if both stand for the same replica.
    fn same_place(&self, other: &Self) -> bool;
    /// Hashes what [`Child::same_place`] compares.
    fn hash_place<H: Hasher>(&self, state: &mut H);
    /// True if nothing that a decision depends on differs.
    fn same_for_decisions(&self, other: &Self) -> bool;
    /// Marks that deletion was asked for, at this version.
    fn leave(&mut self, version: u64);
}

impl Child for PodView {
    fn uid(&self) -> Uid {
        self.uid
    }
    fn version(&self) -> u64 {
        self.version
    }
    fn same_place(&self, other: &Self) -> bool {
        self.index == other.index && self.role == other.role
    }
    fn hash_place<H: Hasher>(&self, state: &mut H) {
        (self.index, &*self.role).hash(state);
    }
    fn same_for_decisions(&self, other: &Self) -> bool {
        PodView::same_for_decisions(self, other)
    }
    fn leave(&mut self, version: u64) {
        self.leaving = true;
        self.version = self.version.max(version);
    }
}

impl Child for ServiceView {
    fn uid(&self) -> Uid {
        self.uid
    }
    fn version(&self) -> u64 {
        self.version
    }
    fn same_place(&self, other: &Self) -> bool {
        self.index == other.index && self.role == other.role
    }
    fn hash_place<H: Hasher>(&self, state: &mut H) {
        (self.index, &*self.role).hash(state);
    }
    fn same_for_decisions(&self, other: &Self) -> bool {
        self.uid == other.uid && self.leaving == other.leaving
    }
    fn leave(&mut self, version: u64) {
        self.leaving = true;
        self.version = self.version.max(version);
    }
}

/// A child that stands for a replica, and has its name.
pub trait Replica: Child {
    /// The role in lower case, and the index.
    fn replica(&self) -> (&str, u32);
}

impl Replica for PodView {
    fn replica(&self) -> (&str, u32) {
        (&self.role, self.index)
    }
}

impl Replica for ServiceView {
    fn replica(&self) -> (&str, u32) {
        (&self.role, self.index)
    }
}
