//! The name under which everything about a job is kept in memory.

use std::fmt;
use std::sync::Arc;

/// A job by namespace and name. A new job of the same name has the same key and another uid.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobKey {
    /// Namespace.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
}

impl JobKey {
    /// A key from its parts.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

/// What one watch covers: one namespace, or all.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scope(Option<Arc<str>>);

impl Scope {
    /// One namespace, or all.
    pub fn new(namespace: Option<&str>) -> Self {
        Self(namespace.map(Into::into))
    }

    /// The namespace, if it is one.
    pub fn namespace(&self) -> Option<&str> {
        self.0.as_deref()
    }

    /// True if what the watch covers includes this job.
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
