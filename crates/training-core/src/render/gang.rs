//! Gang scheduling: pods of a job that start together or not at all.
//!
//! A [`GangProvider`] says, as pure functions, which objects stand for a gang, what pods carry, and when they may be made. The law
//! of all providers: the group exists before its first pod, outlives every restart, and is deleted once per end (success,
//! failure, suspension). [`crate::plan()`] keeps it.
//!
//! The provider of a run is recorded in the job's status before its first group ([`crate::model::provider::Run`]), so that another setting of the
//! operator concerns only runs that begin later.

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
    /// What it does.
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

/// Every right that some provider takes, by the provider's name.
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
