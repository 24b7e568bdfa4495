//! What the pods of a run are made from, in a short form, so that an edit which running pods can't follow is noticed: also by
//! an operator that was not there when it happened.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The name under which the generation is stored.
const GENERATION: &str = "generation";
/// What the name of a part begins with that is a field of the spec, and no role.
pub(crate) const FIELD: char = '.';
/// The field that stands for the number of replicas.
pub(crate) const REPLICAS: &str = ".replicas";

/// Digests of the parts of a spec that reach pods.
///
/// Shape in the status: `generation=3,.replicas=00000003,Master=0a1b2c3d,Worker=4e5f6071`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mould {
    /// The job's generation then. While it is the same nothing was edited, and nothing needs to be looked at.
    pub generation: i64,
    /// Digests by part: the key of a role, or the name of a field behind a dot.
    pub parts: BTreeMap<String, u32>,
}

impl Mould {
    /// Reads what [`Mould`] prints; `None` where it is something else.
    pub fn parse(text: &str) -> Option<Self> {
        let mut mould = Self::default();
        for entry in text.split(',') {
            let (part, value) = entry.split_once('=')?;
            if part == GENERATION {
                mould.generation = value.parse().ok()?;
            } else {
                let digest = u32::from_str_radix(value, 16).ok()?;
                mould.parts.insert(part.to_owned(), digest);
            }
        }
        Some(mould)
    }

    /// The parts that pods which were made from this one lack in `next`. A role that came or went concerns its own pods only,
    /// and those are made or removed.
    pub(crate) fn lacks<'a>(&'a self, next: &'a Self) -> BTreeSet<&'a str> {
        let counts = |part: &str| {
            let stayed = self.parts.contains_key(part) && next.parts.contains_key(part);
            stayed || part.starts_with(FIELD) && part != REPLICAS
        };
        let all = self.parts.keys().chain(next.parts.keys());
        all.map(String::as_str)
            .filter(|part| self.parts.get(*part) != next.parts.get(*part) && counts(part))
            .collect()
    }
}

impl fmt::Display for Mould {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{GENERATION}={}", self.generation)?;
        for (part, digest) in &self.parts {
            write!(f, ",{part}={digest:08x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Mould;

    #[test]
    fn a_mould_can_be_read_back_and_anything_else_is_none() {
        let text = "generation=3,Master=0a1b2c3d,Worker=00000001";
        let mould = Mould::parse(text).unwrap();
        assert_eq!((mould.generation, mould.parts["Worker"]), (3, 1));
        assert_eq!(mould.to_string(), text);
        for odd in ["", "x", "Worker=zz", "generation=-"] {
            assert_eq!(Mould::parse(odd), None, "{odd}");
        }
    }
}
