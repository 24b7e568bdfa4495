//! Gang scheduling: pods of a job that start together or not at all.
//!
//! A [`GangProvider`] defines, with pure functions, a gang's group objects, the marks on its pods, and when pods may be created.
//! All providers obey one rule: the group exists before its first pod, outlives every restart, and is deleted once per end
//! (success, failure, suspension). [`crate::plan()`] enforces it.
//!
//! The job's status records the provider of a run before its first group ([`crate::model::provider::Run`]), so a new setting of the
//! operator only affects later runs.

mod native;
mod none;
mod provider;
mod scheduler_plugins;
mod volcano;

use crate::model::grants::Grant;
use crate::model::provider::Provider;

pub use none::KUEUE_QUEUE;
pub use provider::{Gang, GangProvider, GangState, Need, Owner, Wanted, class_of, scheduler_of};

impl Provider {
    /// Returns the provider's implementation.
    pub fn behaviour(&self) -> &dyn GangProvider {
        match self {
            Self::None => &none::None,
            Self::Kueue => &none::Kueue,
            Self::Volcano => &volcano::Volcano,
            Self::SchedulerPlugins(_) => &scheduler_plugins::SchedulerPlugins,
            Self::Native => &native::Native,
        }
    }
}

/// The RBAC rules of all providers, by the provider's name.
pub fn all_grants() -> [(&'static str, &'static [Grant]); 3] {
    [
        ("volcano", volcano::Volcano.grants()),
        (
            "scheduler-plugins",
            scheduler_plugins::SchedulerPlugins.grants(),
        ),
        ("native", native::Native.grants()),
    ]
}
