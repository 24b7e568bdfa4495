//! The provider that a run began with, as it is recorded in the job's status.

use std::fmt;

use super::{GroupKind, Provider};

/// Who schedules the present run, and whose groups of earlier runs are still to be removed.
///
/// Shape in the status: `native`, or `native,volcano` while groups of an earlier run under Volcano may be left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// The provider of the run.
    pub provider: Provider,
    /// Providers of earlier runs.
    pub former: Vec<Provider>,
}

impl Run {
    /// Reads what [`Run`] prints; what can't be read counts as nobody.
    pub fn parse(text: &str) -> Self {
        let mut all = text.split(',').filter_map(Provider::parse);
        Self {
            provider: all.next().unwrap_or_default(),
            former: all.collect(),
        }
    }

    /// The next run, under this provider.
    #[must_use]
    pub fn next(self, provider: Provider) -> Self {
        let mut former = self.former;
        former.push(self.provider);
        former.retain(|f| f.kinds() != provider.kinds() && !f.kinds().is_empty());
        former.dedup();
        Self { provider, former }
    }

    /// The kinds of all groups that may be there.
    pub fn kinds(&self) -> impl Iterator<Item = GroupKind> + '_ {
        let former = self.former.iter().flat_map(Provider::kinds);
        self.provider.kinds().iter().chain(former).copied()
    }

    /// True if there is nothing to remember.
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
