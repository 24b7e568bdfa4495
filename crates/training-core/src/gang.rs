//! Gang scheduling: pods of a job that start together or not at all.
//!
//! A [`GangProvider`] says, as pure functions, which objects stand for a gang, what pods carry, and when they may be made. The law
//! of all providers: the group exists before its first pod, outlives every restart, and is deleted once per end (success,
//! failure, suspension). [`crate::plan()`] keeps it.
//!
//! The provider of a run is recorded in the job's status before its first group ([`Run`]), so that another setting of the
//! operator concerns only runs that begin later.

mod kind;
mod members;
mod native;
mod none;
mod run;
mod scheduler_plugins;
mod view;
mod volcano;

use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use serde_json::Value;
use training_api::SchedulingPolicy;

use crate::digest::Digest;
use crate::grants::Grant;
use crate::notes::Note;
use crate::roles::{RoleSet, RoleSpec};

pub use kind::{GroupKind, Offer, Offers};
pub(crate) use members::{Need, need};
pub use none::KUEUE_QUEUE;
pub use run::Run;
pub use view::{Group, GroupView, Mark, scheduler_of_pod};

/// The scheduler of scheduler-plugins where no other is named. Source: that project's own installation.
pub const PLUGINS_SCHEDULER: &str = "scheduler-plugins-scheduler";

/// Who schedules gangs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Provider {
    /// Nobody: pods are scheduled one by one.
    #[default]
    None,
    /// Volcano.
    Volcano,
    /// The coscheduling plugin, in the scheduler of this name.
    SchedulerPlugins(Arc<str>),
    /// Kubernetes itself.
    Native,
    /// Kueue, through `spec.runPolicy.suspend`.
    Kueue,
}

impl Provider {
    /// Reads what [`Provider`] prints.
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

    /// The kinds of its objects.
    pub fn kinds(&self) -> &'static [GroupKind] {
        self.behaviour().kinds()
    }

    /// The provider of a run whose pods carry this mark.
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

/// How the operator is set, and what the cluster serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// The provider of runs that begin now.
    pub provider: Provider,
    /// What is known of the kinds of groups.
    pub offers: Offers,
    /// Whether the cluster serves Kueue; `None` where nobody has asked.
    pub kueue: Option<bool>,
}

/// What a scheduler says about a gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GangState {
    /// Pods may be made.
    Admitted,
    /// Pods would be in the way.
    Waiting(String),
}

/// What the published operators of a kind do differently about gangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Habits {
    /// Pods wait for Volcano's word; a template's own scheduler is kept; a group's queue is set once.
    Training,
    /// Pods don't wait; every pod gets the gang's scheduler; the queue follows the job, whose annotation names one where its
    /// policy doesn't; the class may be that of a template.
    Mpi,
}

/// One job's gang, as its objects and pods need it.
#[derive(Debug)]
pub struct Gang<'a> {
    /// The job's name, which is its group's as well.
    pub job: &'a str,
    /// What the job is.
    pub owner: Owner,
    /// The roles in rank order.
    pub roles: &'a RoleSet<'a>,
    /// The job's policy.
    pub policy: Option<&'a SchedulingPolicy>,
    /// Fewest pods that make sense together, and what they need.
    pub need: Need,
    /// The recorded provider.
    pub provider: &'a Provider,
    /// The groups as they are.
    pub seen: &'a [GroupView],
    /// The queue of Kueue's that the job is in.
    pub queue: Option<&'a str>,
    /// Whether the cluster serves Kueue, where that is known.
    pub kueue: Option<bool>,
    /// What the published operator does of this job's kind.
    pub habits: Habits,
    /// The queue of Volcano's that an annotation of the job names.
    pub annotated_queue: Option<&'a str>,
    /// The class of a template that comes before those of the roles here.
    pub first_class: Option<&'a str>,
}

/// Who a group is made for.
#[derive(Clone, Debug)]
pub struct Owner {
    /// API group.
    pub group: String,
    /// Kind.
    pub kind: String,
}

impl<'a> Gang<'a> {
    /// The group of this kind as it is.
    pub fn group(&self, kind: GroupKind) -> Option<&'a GroupView> {
        self.seen.iter().find(|g| g.kind == kind)
    }

    /// The class of the job: the policy's, else the first of a template, in rank order.
    pub fn class(&self) -> Option<&'a str> {
        let own = self.policy.and_then(|p| p.priority_class.as_deref());
        let own = own.filter(|c| !c.is_empty());
        own.or(self.first_class)
            .or_else(|| self.roles.iter().find_map(class_of))
    }

    /// Gives a pod the scheduler of the gang.
    fn schedule(&self, spec: &mut PodSpec, scheduler: &str) {
        let own = spec.scheduler_name.as_ref().filter(|own| !own.is_empty());
        if own.is_none() || self.habits == Habits::Mpi {
            spec.scheduler_name = Some(scheduler.to_owned());
        }
    }
}

/// The class that a role's template names.
pub fn class_of<'a>(role: &RoleSpec<'a>) -> Option<&'a str> {
    let spec = role.template?.spec.as_ref()?;
    spec.priority_class_name
        .as_deref()
        .filter(|c| !c.is_empty())
}

/// The scheduler that a role's template names.
pub(crate) fn scheduler_of<'a>(role: &RoleSpec<'a>) -> Option<&'a str> {
    let spec = role.template?.spec.as_ref()?;
    spec.scheduler_name.as_deref().filter(|c| !c.is_empty())
}

/// What a group should be.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// Its kind.
    pub kind: GroupKind,
    /// Its whole spec.
    pub spec: Value,
    /// The part of the spec that follows the job for as long as the group lives; null where nothing does.
    pub follows: Value,
}

impl Wanted {
    /// Stands for everything that follows.
    pub fn digest(&self) -> Digest {
        Digest::of(&self.follows)
    }
}

/// A scheduler of gangs. Pure: it says what should be, and reads what is there.
pub trait GangProvider: Send + Sync {
    /// The kinds of its objects, in the order in which they are made.
    fn kinds(&self) -> &'static [GroupKind];

    /// What its object of this kind should be, in the version that the cluster serves.
    fn wanted(&self, gang: &Gang<'_>, kind: GroupKind, version: &str) -> Wanted;

    /// Marks a pod as the gang's.
    fn stamp(&self, gang: &Gang<'_>, role: &RoleSpec<'_>, pod: &mut Pod);

    /// Whether pods may be made beside this group.
    fn read(&self, _group: &GroupView) -> GangState {
        GangState::Admitted
    }

    /// Whether the job's start waits for the scheduler: no pods, and no start time, before it says so.
    fn holds_back(&self) -> bool {
        false
    }

    /// What keeps these pods from ever being scheduled together.
    fn objection(&self, _gang: &Gang<'_>) -> Option<String> {
        None
    }

    /// What users should be told once.
    fn advise(&self, gang: &Gang<'_>) -> Vec<Note>;

    /// The rights that it takes.
    fn grants(&self) -> &'static [Grant];
}

/// What is done with groups.
const VERBS: &[&str] = &["create", "delete", "get", "list", "patch", "watch"];

/// Tells of a field of the scheduling policy that a provider has no use for.
fn ignored(field: &str, provider: &str) -> Note {
    Note::warning(
        "SettingIgnored",
        format!("spec.runPolicy.schedulingPolicy.{field} has no effect under {provider}"),
    )
}

/// The published warning about templates that name a scheduler of their own, and about pods that no scheduler sees.
fn advise_of_schedulers(gang: &Gang<'_>, scheduler: &str) -> Vec<Note> {
    let mut notes = advise_of_nodes(gang);
    if gang
        .roles
        .iter()
        .filter_map(scheduler_of)
        .any(|own| own != scheduler)
    {
        notes.push(match gang.habits {
            Habits::Training => {
                let text = "Another scheduler is specified when gang-scheduling is enabled and it will not be overwritten";
                Note::warning("SetPodTemplateSchedulerName", text)
            }
            Habits::Mpi => {
                let text = format!(
                    "spec.mpiReplicaSpecs: a template's own schedulerName has no effect: all pods of the job get {scheduler}, which schedules its gang"
                );
                Note::warning("SettingIgnored", text)
            }
        });
    }
    notes
}

fn advise_of_nodes(gang: &Gang<'_>) -> Vec<Note> {
    let named = |role: &&RoleSpec<'_>| {
        let spec = role.template.and_then(|t| t.spec.as_ref());
        spec.is_some_and(|s| s.node_name.as_ref().is_some_and(|n| !n.is_empty()))
    };
    gang.roles
        .iter()
        .filter(named)
        .map(|role| {
            let text = format!(
                "{}.template.spec.nodeName: no scheduler sees these pods, so they don't wait for the others of the gang",
                role.path
            );
            Note::warning("RiskySetting", text)
        })
        .collect()
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
