//! A gang, and the interface of its providers.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::Value;
use training_api::SchedulingPolicy;

use crate::kind::framework::GangConventions;
use crate::model::digest::Digest;
use crate::model::grants::Grant;
use crate::model::group::{GroupKind, GroupView};
use crate::model::notes::Note;
use crate::model::provider::Provider;
use crate::model::roles::{RoleSet, RoleSpec};

/// What a gang needs from its scheduler.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Need {
    /// The minimum number of pods that can start, at least 1.
    pub members: u32,
    /// The resources of that many pods.
    pub resources: BTreeMap<String, Quantity>,
}

/// The scheduler's answer about a gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GangState {
    /// Pods may be created.
    Admitted,
    /// Pods must wait, for this reason.
    Waiting(String),
}

/// A job's gang, with what its objects and pods depend on.
#[derive(Debug)]
pub struct Gang<'a> {
    /// The name of the job and of its group.
    pub job: &'a str,
    /// The job's kind.
    pub owner: Owner,
    /// The roles in rank order.
    pub roles: &'a RoleSet<'a>,
    /// The job's policy.
    pub policy: Option<&'a SchedulingPolicy>,
    /// The minimum number of pods and their resources.
    pub need: Need,
    /// The recorded provider.
    pub provider: &'a Provider,
    /// The observed groups.
    pub groups: &'a [GroupView],
    /// The job's Kueue queue.
    pub queue: Option<&'a str>,
    /// Whether the cluster serves Kueue, if known.
    pub kueue: Option<bool>,
    /// How the published operator of this kind handles gangs.
    pub conventions: GangConventions,
    /// The Volcano queue from an annotation of the job.
    pub annotated_queue: Option<&'a str>,
    /// A template's priority class that takes precedence over those of the roles.
    pub first_class: Option<&'a str>,
}

/// The owner of a group.
#[derive(Clone, Debug)]
pub struct Owner {
    /// API group.
    pub group: String,
    /// Kind.
    pub kind: String,
}

impl<'a> Gang<'a> {
    /// Returns the observed group of this kind.
    pub fn group(&self, kind: GroupKind) -> Option<&'a GroupView> {
        self.groups.iter().find(|g| g.kind == kind)
    }

    /// Returns the priority class of the job: the policy's, else the first of a template in rank order.
    pub fn class(&self) -> Option<&'a str> {
        let own = self.policy.and_then(|p| p.priority_class.as_deref());
        let own = own.filter(|c| !c.is_empty());
        own.or(self.first_class)
            .or_else(|| self.roles.iter().find_map(class_of))
    }

    /// Sets the gang's scheduler in a pod.
    pub(super) fn schedule(&self, spec: &mut PodSpec, scheduler: &str) {
        let own = spec.scheduler_name.as_ref().filter(|own| !own.is_empty());
        if own.is_none() || self.conventions == GangConventions::Mpi {
            spec.scheduler_name = Some(scheduler.to_owned());
        }
    }
}

/// Returns the priority class of a role's template.
pub fn class_of<'a>(role: &RoleSpec<'a>) -> Option<&'a str> {
    let spec = role.template?.spec.as_ref()?;
    spec.priority_class_name
        .as_deref()
        .filter(|c| !c.is_empty())
}

/// Returns the scheduler of a role's template.
pub fn scheduler_of<'a>(role: &RoleSpec<'a>) -> Option<&'a str> {
    let spec = role.template?.spec.as_ref()?;
    spec.scheduler_name.as_deref().filter(|c| !c.is_empty())
}

/// The desired group object.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// Its kind.
    pub kind: GroupKind,
    /// Its whole spec.
    pub spec: Value,
    /// The part of the spec that follows the job while the group exists; null if there is none.
    pub follows: Value,
}

impl Wanted {
    /// Returns the digest of the part that follows the job.
    pub fn digest(&self) -> Digest {
        Digest::of(&self.follows)
    }
}

/// A gang scheduler, as pure functions: it computes the desired objects and reads existing ones.
pub trait GangProvider: Send + Sync {
    /// Returns the desired group object of this kind, in the version that the cluster serves.
    fn wanted(&self, gang: &Gang<'_>, kind: GroupKind, version: &str) -> Wanted;

    /// Marks a pod as a member of the gang.
    fn stamp(&self, gang: &Gang<'_>, role: &RoleSpec<'_>, pod: &mut Pod);

    /// Returns whether pods may be created for this group.
    fn read(&self, _group: &GroupView) -> GangState {
        GangState::Admitted
    }

    /// Returns true if the job's start waits for the scheduler: no pods and no start time before it admits the group.
    fn blocks_start(&self) -> bool {
        false
    }

    /// Explains why these pods can never be scheduled together.
    fn unschedulable_message(&self, _gang: &Gang<'_>) -> Option<String> {
        None
    }

    /// Returns one-time events for users.
    fn advise(&self, gang: &Gang<'_>) -> Vec<Note>;

    /// Returns the RBAC rules that the provider needs.
    fn grants(&self) -> &'static [Grant];
}

/// The verbs for groups.
pub(super) const VERBS: &[&str] = &["create", "delete", "get", "list", "patch", "watch"];

/// Returns the event for a field of the scheduling policy that has no effect under a provider.
pub(super) fn ignored(field: &str, provider: &str) -> Note {
    Note::warning(
        "SettingIgnored",
        format!("spec.runPolicy.schedulingPolicy.{field} has no effect under {provider}"),
    )
}

/// Returns the published warning about templates with their own scheduler, and warnings about pods that bypass scheduling.
pub(super) fn advise_of_schedulers(gang: &Gang<'_>, scheduler: &str) -> Vec<Note> {
    let mut notes = advise_of_nodes(gang);
    if gang
        .roles
        .iter()
        .filter_map(scheduler_of)
        .any(|own| own != scheduler)
    {
        notes.push(match gang.conventions {
            GangConventions::Training => {
                let text = "Another scheduler is specified when gang-scheduling is enabled and it will not be overwritten";
                Note::warning("SetPodTemplateSchedulerName", text)
            }
            GangConventions::Mpi => {
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
