//! Creations and deletions of objects.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Creations and deletions of an object's name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Churn {
    /// Creations.
    pub creates: u32,
    /// Completed deletions.
    pub deletes: u32,
}

/// The churn of each object, by `kind/name`.
pub type Summary = BTreeMap<String, Churn>;

/// Describes the differences of two summaries, one line each; empty if they are equal.
pub fn difference(reference: &Summary, other: &Summary) -> String {
    let mut text = String::new();
    let names: BTreeSet<&String> = reference.keys().chain(other.keys()).collect();
    for name in names {
        let churn = |of: &Summary| of.get(name).copied().unwrap_or_default();
        let (a, b) = (churn(reference), churn(other));
        if a != b {
            let _ = writeln!(
                text,
                "{name}: created {} and not {} times, deleted {} and not {} times",
                b.creates, a.creates, b.deletes, a.deletes
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delete_that_was_repaired_is_still_a_difference() {
        let once = Churn {
            creates: 1,
            deletes: 0,
        };
        let twice = Churn {
            creates: 2,
            deletes: 1,
        };
        let reference = Summary::from([("Pod/a".into(), once), ("Pod/b".into(), once)]);
        let repaired = Summary::from([("Pod/a".into(), twice), ("Pod/b".into(), once)]);
        assert_eq!(difference(&reference, &reference), "");
        assert_eq!(
            difference(&reference, &repaired),
            "Pod/a: created 2 and not 1 times, deleted 1 and not 0 times\n"
        );
    }

    #[test]
    fn an_object_that_only_one_run_had_is_a_difference() {
        let once = Churn {
            creates: 1,
            deletes: 0,
        };
        let more = Summary::from([("Pod/a".into(), once)]);
        assert!(difference(&Summary::new(), &more).starts_with("Pod/a: created 1 and not 0"));
    }
}
