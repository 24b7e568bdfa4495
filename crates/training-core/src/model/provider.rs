//! The gang scheduler: the operator's setting, and the one that a run started with, as recorded in the job's status.

use std::fmt;
use std::sync::Arc;

use crate::model::group::{Availabilities, GroupKind, Mark};

/// The default scheduler name of scheduler-plugins. Source: that project's own installation.
pub const PLUGINS_SCHEDULER: &str = "scheduler-plugins-scheduler";

/// A gang scheduler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Provider {
    /// None: pods are scheduled one by one.
    #[default]
    None,
    /// Volcano.
    Volcano,
    /// The coscheduling plugin in the scheduler of this name.
    SchedulerPlugins(Arc<str>),
    /// Kubernetes itself.
    Native,
    /// Kueue, through `spec.runPolicy.suspend`.
    Kueue,
}

impl Provider {
    /// Parses the printed form.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "none" => Some(Self::None),
            "volcano" => Some(Self::Volcano),
            "native" => Some(Self::Native),
            "kueue" => Some(Self::Kueue),
            "scheduler-plugins" => Some(Self::SchedulerPlugins(PLUGINS_SCHEDULER.into())),
            other => other
                .strip_prefix("scheduler-plugins/")
                .filter(|name| !name.is_empty())
                .map(|name| Self::SchedulerPlugins(name.into())),
        }
    }

    /// The kinds of the provider's group objects.
    pub fn kinds(&self) -> &'static [GroupKind] {
        match self {
            Self::None | Self::Kueue => &[],
            Self::Volcano => &[GroupKind::Volcano],
            Self::SchedulerPlugins(_) => &[GroupKind::SchedulerPlugins],
            Self::Native => &[GroupKind::Workload, GroupKind::PodGroup],
        }
    }

    /// Returns the provider of a run whose pods carry this mark.
    pub fn of_mark(mark: Mark, set: &Self) -> Option<Self> {
        match (mark, set) {
            (Mark::None, _) => None,
            (Mark::Volcano, _) => Some(Self::Volcano),
            (Mark::Native, _) => Some(Self::Native),
            (Mark::SchedulerPlugins, Self::SchedulerPlugins(_)) => Some(set.clone()),
            (Mark::SchedulerPlugins, _) => Some(Self::SchedulerPlugins(PLUGINS_SCHEDULER.into())),
        }
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Volcano => f.write_str("volcano"),
            Self::Native => f.write_str("native"),
            Self::Kueue => f.write_str("kueue"),
            Self::SchedulerPlugins(name) => write!(f, "scheduler-plugins/{name}"),
        }
    }
}

/// The operator's setting, and what the cluster serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// The provider for new runs.
    pub provider: Provider,
    /// Whether the cluster serves each kind of group.
    pub offers: Availabilities,
    /// Whether the cluster serves Kueue; `None` if not yet checked.
    pub kueue: Option<bool>,
}

/// The gang scheduler of the current run, and those of earlier runs whose groups are not yet deleted.
///
/// Shape in the status: `native`, or `native,volcano` while groups of an earlier run under Volcano may exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// The provider of the current run.
    pub provider: Provider,
    /// Providers of earlier runs.
    pub former: Vec<Provider>,
}

impl Run {
    /// Parses the printed form. An invalid provider reads as [`Provider::None`].
    pub fn parse(text: &str) -> Self {
        let mut all = text.split(',').filter_map(Provider::parse);
        Self {
            provider: all.next().unwrap_or_default(),
            former: all.collect(),
        }
    }

    /// Returns the next run, under this provider.
    #[must_use]
    pub fn next(self, provider: Provider) -> Self {
        let mut former = self.former;
        former.push(self.provider);
        former.retain(|f| f.kinds() != provider.kinds() && !f.kinds().is_empty());
        former.dedup();
        Self { provider, former }
    }

    /// The kinds of all groups that may exist.
    pub fn kinds(&self) -> impl Iterator<Item = GroupKind> + '_ {
        let former = self.former.iter().flat_map(Provider::kinds);
        self.provider.kinds().iter().chain(former).copied()
    }

    /// Returns true if the status needs no record of this run.
    pub fn is_plain(&self) -> bool {
        self.provider.kinds().is_empty() && self.former.is_empty()
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.provider)?;
        for former in &self.former {
            write!(f, ",{former}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_can_be_read_back() {
        for text in ["volcano", "native,volcano", "none,scheduler-plugins/mine"] {
            assert_eq!(Run::parse(text).to_string(), text);
        }
        assert!(Run::parse("odd").is_plain());
    }

    #[test]
    fn what_an_earlier_run_may_have_left_is_remembered_and_nothing_else() {
        let next = |from: &str, to: &str| {
            let to = Provider::parse(to).unwrap();
            Run::parse(from).next(to).to_string()
        };
        assert_eq!(next("volcano", "native"), "native,volcano");
        assert_eq!(next("volcano", "volcano"), "volcano");
        assert_eq!(next("none", "volcano"), "volcano");
        assert_eq!(next("native,volcano", "volcano"), "volcano,native");
        assert_eq!(next("volcano", "none"), "none,volcano");
        assert_eq!(
            next("scheduler-plugins/a", "scheduler-plugins/b"),
            "scheduler-plugins/b"
        );
    }
}
