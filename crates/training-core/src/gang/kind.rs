//! The kinds of objects that stand for gangs, and whether a cluster serves them.

/// A kind of object that stands for a gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GroupKind {
    /// Volcano's `PodGroup`.
    Volcano,
    /// The `PodGroup` of scheduler-plugins.
    SchedulerPlugins,
    /// Kubernetes' own `Workload`.
    Workload,
    /// Kubernetes' own `PodGroup`.
    PodGroup,
}

impl GroupKind {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Volcano,
        Self::SchedulerPlugins,
        Self::Workload,
        Self::PodGroup,
    ];

    /// Its place in [`GroupKind::ALL`].
    pub fn at(self) -> usize {
        match self {
            Self::Volcano => 0,
            Self::SchedulerPlugins => 1,
            Self::Workload => 2,
            Self::PodGroup => 3,
        }
    }

    /// API group.
    pub fn group(self) -> &'static str {
        match self {
            Self::Volcano => "scheduling.volcano.sh",
            Self::SchedulerPlugins => "scheduling.x-k8s.io",
            Self::Workload | Self::PodGroup => "scheduling.k8s.io",
        }
    }

    /// The versions that we can write, best first.
    pub fn versions(self) -> &'static [&'static str] {
        match self {
            Self::Volcano => &["v1beta1"],
            Self::SchedulerPlugins => &["v1alpha1"],
            Self::Workload | Self::PodGroup => &["v1beta1", "v1alpha2"],
        }
    }

    /// `kind`.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Workload => "Workload",
            Self::Volcano | Self::SchedulerPlugins | Self::PodGroup => "PodGroup",
        }
    }

    /// The resource.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Workload => "workloads",
            Self::Volcano | Self::SchedulerPlugins | Self::PodGroup => "podgroups",
        }
    }

    /// A word of its own, for logs, probes and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Volcano => "volcano-podgroups",
            Self::SchedulerPlugins => "scheduler-plugins-podgroups",
            Self::Workload => "workloads",
            Self::PodGroup => "podgroups",
        }
    }
}

/// What is known of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Offer {
    /// Nothing yet: nobody has asked, or the answer is under way.
    #[default]
    Unknown,
    /// The cluster serves it in this version, and all of its objects are known.
    Served(&'static str),
    /// The cluster doesn't serve it.
    Missing,
    /// The operator may not see it, in the API server's words.
    Denied(String),
    /// Nobody could be asked; how that failed.
    Unanswered(String),
}

/// What is known of all kinds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offers([Offer; 4]);

impl Offers {
    /// What is known of a kind.
    pub fn of(&self, kind: GroupKind) -> &Offer {
        &self.0[kind.at()]
    }

    /// Sets what is known of a kind; true if that is news.
    pub fn set(&mut self, kind: GroupKind, offer: Offer) -> bool {
        let known = &mut self.0[kind.at()];
        let news = *known != offer;
        *known = offer;
        news
    }

    /// All kinds in their best version.
    pub fn all() -> Self {
        Self(GroupKind::ALL.map(|kind| Offer::Served(kind.versions()[0])))
    }
}
