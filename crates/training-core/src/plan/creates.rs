//! Limits how much one plan creates: all its objects are in memory before the first one is sent.

use serde::Serialize;

use crate::model::size::Size;

/// The maximum number of objects per plan; the next reconcile creates more. It bounds the memory of a job with ten thousand pods.
const MAX_OBJECTS: usize = 512;
/// Beyond this memory, a plan creates nothing more. It bounds the memory of a job with large templates and, with the number of
/// parallel reconciles, that of many such jobs.
///
/// Units: bytes.
const MAX_MEMORY: usize = 4 * 1024 * 1024;

/// The objects that a plan creates so far.
#[derive(Debug, Default)]
pub struct Creates {
    objects: usize,
    memory: usize,
}

impl Creates {
    /// Returns true if the remaining objects belong to the next plan.
    pub fn is_full(&self) -> bool {
        self.objects >= MAX_OBJECTS || self.memory >= MAX_MEMORY
    }

    /// Counts one object.
    pub fn add(&mut self, object: &impl Serialize) {
        self.objects += 1;
        self.memory += Size::of(object).memory();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_full_by_number_or_by_size() {
        let mut small = Creates::default();
        let mut large = Creates::default();
        for _ in 0..MAX_OBJECTS - 1 {
            small.add(&"a");
        }
        assert!(!small.is_full());
        small.add(&"a");
        assert!(small.is_full());
        large.add(&"a".repeat(MAX_MEMORY - 3));
        assert!(!large.is_full());
        large.add(&"");
        assert!(large.is_full());
    }
}
