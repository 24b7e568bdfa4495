//! How much one plan creates: it is in memory as a whole before the first of its objects is sent.

use serde::Serialize;

use crate::model::size::Size;

/// Most objects that one plan creates; more follow in the next pass. Bounds the memory of a job of ten thousand pods.
const MOST: usize = 512;
/// A plan whose objects take more memory creates nothing further. Bounds the memory of a job with large templates, and with the
/// number of jobs that are reconciled at once that of many.
///
/// Units: bytes.
const MOST_MEMORY: usize = 4 * 1024 * 1024;

/// The objects that a plan creates so far.
#[derive(Debug, Default)]
pub struct Creates {
    objects: usize,
    memory: usize,
}

impl Creates {
    /// True if the rest is for the next plan.
    pub fn is_full(&self) -> bool {
        self.objects >= MOST || self.memory >= MOST_MEMORY
    }

    /// One more.
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
        for _ in 0..MOST - 1 {
            small.add(&"a");
        }
        assert!(!small.is_full());
        small.add(&"a");
        assert!(small.is_full());
        large.add(&"a".repeat(MOST_MEMORY - 3));
        assert!(!large.is_full());
        large.add(&"");
        assert!(large.is_full());
    }
}
