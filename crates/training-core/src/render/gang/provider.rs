//! What a gang is, and what a provider answers about it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::Value;
use training_api::SchedulingPolicy;

use crate::kind::framework::Habits;
use crate::model::digest::Digest;
use crate::model::grants::Grant;
use crate::model::group::{GroupKind, GroupView};
use crate::model::notes::Note;
use crate::model::provider::Provider;
use crate::model::roles::{RoleSet, RoleSpec};

/// What a gang asks of its scheduler.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Need {
    /// Fewest pods that make sense together, at least 1.
    pub members: u32,
    /// What so many of them need.
    pub resources: BTreeMap<String, Quantity>,
}

/// What a scheduler says about a gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GangState {
    /// Pods may be made.
    Admitted,
    /// Pods would be in the way.
    Waiting(String),
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
    pub(super) fn schedule(&self, spec: &mut PodSpec, scheduler: &str) {
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
pub fn scheduler_of<'a>(role: &RoleSpec<'a>) -> Option<&'a str> {
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
pub(super) const VERBS: &[&str] = &["create", "delete", "get", "list", "patch", "watch"];

/// Tells of a field of the scheduling policy that a provider has no use for.
pub(super) fn ignored(field: &str, provider: &str) -> Note {
    Note::warning(
        "SettingIgnored",
        format!("spec.runPolicy.schedulingPolicy.{field} has no effect under {provider}"),
    )
}

/// The published warning about templates that name a scheduler of their own, and about pods that no scheduler sees.
pub(super) fn advise_of_schedulers(gang: &Gang<'_>, scheduler: &str) -> Vec<Note> {
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

pub(super) fn advise_of_nodes(gang: &Gang<'_>) -> Vec<Note> {
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
