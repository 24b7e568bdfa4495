//! A set of replica indices, small in memory and in status.

use std::fmt::{self, Write as _};

/// A set of indices, kept as sorted, disjoint, non-adjacent ranges.
///
/// Shape: `0-2,5` for {0, 1, 2, 5}; empty for none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexSet {
    ranges: Vec<(u32, u32)>,
}

impl IndexSet {
    /// Parses the printed form. It ignores invalid parts: a damaged entry must not stop a job.
    pub fn parse(text: &str) -> Self {
        let mut set = Self::default();
        for part in text.split(',').filter(|p| !p.is_empty()) {
            let (low, high) = part.split_once('-').unwrap_or((part, part));
            if let (Ok(low), Ok(high)) = (low.trim().parse::<u32>(), high.trim().parse::<u32>())
                && low <= high
            {
                set.insert_range(low, high);
            }
        }
        set
    }

    /// Returns true if the set contains the index.
    pub fn contains(&self, index: u32) -> bool {
        let at = self.ranges.partition_point(|(_, high)| *high < index);
        self.ranges.get(at).is_some_and(|(low, _)| *low <= index)
    }

    /// Adds one index.
    pub fn insert(&mut self, index: u32) {
        self.insert_range(index, index);
    }

    /// Removes the indices from `limit` on.
    pub fn truncate(&mut self, limit: u32) {
        self.ranges.retain(|(low, _)| *low < limit);
        if let Some((_, high)) = self.ranges.last_mut() {
            *high = (*high).min(limit.saturating_sub(1));
        }
    }

    /// Number of indices below `limit`.
    pub fn count_below(&self, limit: u32) -> u32 {
        self.ranges
            .iter()
            .filter(|(low, _)| *low < limit)
            .map(|(low, high)| high.min(&(limit - 1)) - low + 1)
            .sum()
    }

    /// Prints the set, truncated after the last range that fits into `limit` bytes.
    ///
    /// The pods themselves, while they exist, still show the rest.
    pub fn print_within(&self, limit: usize) -> String {
        let mut text = self.to_string();
        if text.len() > limit {
            // One byte more, to keep a range that ends exactly at the limit.
            let end = text.as_bytes()[..=limit].iter().rposition(|b| *b == b',');
            text.truncate(end.unwrap_or(0));
        }
        text
    }

    /// Returns true if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    fn insert_range(&mut self, low: u32, high: u32) {
        let (mut low, mut high) = (low, high);
        self.ranges.retain(|(l, h)| {
            let touches = *l <= high.saturating_add(1) && low <= h.saturating_add(1);
            if touches {
                low = low.min(*l);
                high = high.max(*h);
            }
            !touches
        });
        let at = self.ranges.partition_point(|(l, _)| *l < low);
        self.ranges.insert(at, (low, high));
    }
}

impl fmt::Display for IndexSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (low, high)) in self.ranges.iter().enumerate() {
            if at > 0 {
                f.write_char(',')?;
            }
            if low == high {
                write!(f, "{low}")?;
            } else {
                write!(f, "{low}-{high}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::IndexSet;

    #[test]
    fn neighbours_become_one_range() {
        let mut set = IndexSet::default();
        for index in [5, 0, 2, 1] {
            set.insert(index);
        }
        assert_eq!(set.to_string(), "0-2,5");
    }

    #[test]
    fn a_damaged_entry_keeps_what_can_be_read() {
        assert_eq!(IndexSet::parse("1-3,x,9-2,7").to_string(), "1-3,7");
    }

    #[test]
    fn a_long_set_is_cut_between_two_ranges() {
        let set = IndexSet::parse("1,3,5-7,90");
        let cut: Vec<String> = [0, 1, 4, 6, 7, 10, 99]
            .map(|limit| set.print_within(limit))
            .to_vec();
        assert_eq!(
            cut,
            ["", "1", "1,3", "1,3", "1,3,5-7", "1,3,5-7,90", "1,3,5-7,90"]
        );
    }

    proptest! {
        #[test]
        fn it_behaves_as_a_set_and_survives_printing(indices in proptest::collection::vec(0u32..40, 0..30), limit in 0u32..50) {
            let mut set = IndexSet::default();
            let model: BTreeSet<u32> = indices.iter().copied().collect();
            for index in indices {
                set.insert(index);
            }
            prop_assert_eq!(&IndexSet::parse(&set.to_string()), &set);
            for index in 0..50 {
                prop_assert_eq!(set.contains(index), model.contains(&index));
            }
            prop_assert_eq!(set.count_below(limit) as usize, model.range(..limit).count());
            set.truncate(limit);
            for index in 0..50 {
                prop_assert_eq!(set.contains(index), index < limit && model.contains(&index));
            }
        }
    }
}
