//! The in-memory key of a job.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

/// The namespaces of all keys, each text once: every job has a key per type of child.
static NAMESPACES: Mutex<BTreeSet<Arc<str>>> = Mutex::new(BTreeSet::new());

/// A job by namespace and name. A recreated job has the same key and another uid.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobKey {
    /// Namespace.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
}

impl JobKey {
    /// Creates a key.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: shared(namespace, &mut NAMESPACES.lock()),
            name: name.into(),
        }
    }
}

/// Returns the text of a namespace that all keys share. Removes unused ones now and then.
fn shared(namespace: &str, all: &mut BTreeSet<Arc<str>>) -> Arc<str> {
    if let Some(known) = all.get(namespace) {
        return Arc::clone(known);
    }
    if all.len().is_power_of_two() {
        all.retain(|known| Arc::strong_count(known) > 1);
    }
    let new = Arc::from(namespace);
    all.insert(Arc::clone(&new));
    new
}

/// The scope of a watch: one namespace, or all.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scope(Option<Arc<str>>);

impl Scope {
    /// Covers one namespace, or all if `None`.
    pub fn new(namespace: Option<&str>) -> Self {
        Self(namespace.map(Into::into))
    }

    /// Returns the namespace, if it is one.
    pub fn namespace(&self) -> Option<&str> {
        self.0.as_deref()
    }

    /// Returns true if the scope includes this job.
    pub fn covers(&self, key: &JobKey) -> bool {
        self.0
            .as_deref()
            .is_none_or(|namespace| namespace == &*key.namespace)
    }
}

impl fmt::Display for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Debug for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_namespace_share_its_text() {
        let (one, two) = (JobKey::new("team", "a"), JobKey::new("team", "b"));
        assert!(Arc::ptr_eq(&one.namespace, &two.namespace));
        assert_eq!(one, JobKey::new("team", "a"));
        assert_ne!(one, JobKey::new("other", "a"));
    }

    #[test]
    fn unused_namespaces_are_removed() {
        let mut all = BTreeSet::new();
        let kept = shared("kept", &mut all);
        for n in 0..10_000 {
            shared(&format!("short-lived-{n}"), &mut all);
            assert!(all.len() <= 4, "{}", all.len());
        }
        assert!(Arc::ptr_eq(&kept, &shared("kept", &mut all)));
    }
}
