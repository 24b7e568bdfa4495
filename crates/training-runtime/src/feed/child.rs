//! The common interface of all children of a job.

use std::hash::{Hash as _, Hasher};

use training_core::{PodView, ServiceView, Uid};

/// A child of a job, as an index needs it.
pub trait Child: Clone {
    /// Its uid.
    fn uid(&self) -> Uid;
    /// The resource version at which it was seen.
    fn version(&self) -> u64;
    /// Returns true if both represent the same replica.
    fn same_slot(&self, other: &Self) -> bool;
    /// Hashes the fields that [`Child::same_slot`] compares.
    fn hash_slot<H: Hasher>(&self, state: &mut H);
    /// Returns true if all fields that decisions depend on are equal.
    fn same_for_decisions(&self, other: &Self) -> bool;
    /// Marks the child as terminating, at this version.
    fn mark_terminating(&mut self, version: u64);
    /// Marks the child as deleted, if its last state counts afterwards.
    fn mark_deleted(&mut self) {}
    /// Returns true if it was marked as deleted.
    fn is_deleted(&self) -> bool {
        false
    }
}

impl Child for PodView {
    fn uid(&self) -> Uid {
        self.uid
    }
    fn version(&self) -> u64 {
        self.version
    }
    fn same_slot(&self, other: &Self) -> bool {
        self.index == other.index && self.role == other.role
    }
    fn hash_slot<H: Hasher>(&self, state: &mut H) {
        (self.index, &*self.role).hash(state);
    }
    fn same_for_decisions(&self, other: &Self) -> bool {
        PodView::same_for_decisions(self, other)
    }
    fn mark_terminating(&mut self, version: u64) {
        self.terminating = true;
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
    fn same_slot(&self, other: &Self) -> bool {
        self.index == other.index && self.role == other.role
    }
    fn hash_slot<H: Hasher>(&self, state: &mut H) {
        (self.index, &*self.role).hash(state);
    }
    fn same_for_decisions(&self, other: &Self) -> bool {
        self.uid == other.uid && self.terminating == other.terminating
    }
    fn mark_terminating(&mut self, version: u64) {
        self.terminating = true;
        self.version = self.version.max(version);
    }
}

/// A child that represents a replica and is named after it.
pub trait Replica: Child {
    /// Returns the role in lower case, and the index.
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
