//! The in-memory key of a job.

use std::fmt;
use std::sync::Arc;

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
            namespace: namespace.into(),
            name: name.into(),
        }
    }
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
