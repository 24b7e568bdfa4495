//! Template hashes of a run's pods, to detect edits that running pods can't follow, even if the operator was down during the edit.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The key of the generation in the stored form.
const GENERATION: &str = "generation";
/// The prefix of parts that are a field of the spec and not a role.
pub(crate) const FIELD: char = '.';
/// The part for the number of replicas.
pub(crate) const REPLICAS: &str = ".replicas";

/// The part for the restart request that the run has followed.
const REQUEST: &str = "restart-request";

/// Hashes of the parts of a spec that pods depend on, and of the user's restart request.
///
/// Shape in the status: `generation=3,.replicas=00000003,Master=0a1b2c3d,Worker=4e5f6071`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TemplateHashes {
    /// The job's generation when the hashes were taken. While it is unchanged, there is no edit to look for.
    pub generation: i64,
    /// Hashes by part: a role's key, or a dot and a field name.
    pub parts: BTreeMap<String, u32>,
}

impl TemplateHashes {
    /// Parses the printed form; `None` if it is invalid.
    pub fn parse(text: &str) -> Option<Self> {
        let mut template_hashes = Self::default();
        for entry in text.split(',') {
            let (part, value) = entry.split_once('=')?;
            if part == GENERATION {
                template_hashes.generation = value.parse().ok()?;
            } else {
                let digest = u32::from_str_radix(value, 16).ok()?;
                template_hashes.parts.insert(part.to_owned(), digest);
            }
        }
        Some(template_hashes)
    }

    /// Returns the hash of the restart request that the run has followed.
    pub(crate) fn request(&self) -> Option<u32> {
        self.parts.get(REQUEST).copied()
    }

    /// Stores the hash of the restart request that the run has followed.
    pub(crate) fn set_request(&mut self, request: Option<u32>) {
        match request {
            Some(hash) => self.parts.insert(REQUEST.to_owned(), hash),
            None => self.parts.remove(REQUEST),
        };
    }

    /// Returns the parts whose change in `next` existing pods don't follow. A role that was added or removed only affects its own
    /// pods, and those are created or deleted.
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

impl fmt::Display for TemplateHashes {
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
    use super::TemplateHashes;

    #[test]
    fn template_hashes_can_be_read_back_and_anything_else_is_none() {
        let text = "generation=3,Master=0a1b2c3d,Worker=00000001";
        let template_hashes = TemplateHashes::parse(text).unwrap();
        assert_eq!(
            (template_hashes.generation, template_hashes.parts["Worker"]),
            (3, 1)
        );
        assert_eq!(template_hashes.to_string(), text);
        for odd in ["", "x", "Worker=zz", "generation=-"] {
            assert_eq!(TemplateHashes::parse(odd), None, "{odd}");
        }
    }
}
