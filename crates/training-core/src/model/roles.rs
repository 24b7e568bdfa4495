//! The roles of a job: what is run, how often, in which order.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use training_api::RestartPolicy;

/// One role with the defaults of its kind applied, in memory only.
#[derive(Clone, Debug)]
pub struct RoleSpec<'a> {
    /// The replica type as keyed in the spec, e.g. `Worker`.
    pub key: String,
    /// The replica type in lower case: label value and part of every name.
    pub label: String,
    /// Number of replicas.
    pub replicas: u32,
    /// What happens when a pod fails.
    pub restart: RestartPolicy,
    /// The pod's template; absent for a finished job, whose templates are dropped from memory.
    pub template: Option<&'a PodTemplateSpec>,
    /// This role speaks for the job: its pods carry the label `job-role=master`.
    pub speaks: bool,
    /// It does so in place of one that the job doesn't have, and by its index 0 alone.
    pub stands_in: bool,
    /// Path of the role in the spec, for messages.
    pub path: String,
}

/// The roles of a job in global rank order.
#[derive(Clone, Debug, Default)]
pub struct RoleSet<'a> {
    roles: Vec<RoleSpec<'a>>,
}

impl<'a> RoleSet<'a> {
    /// Roles in global rank order.
    pub fn new(roles: Vec<RoleSpec<'a>>) -> Self {
        Self { roles }
    }

    /// The roles in rank order.
    pub fn iter(&self) -> std::slice::Iter<'_, RoleSpec<'a>> {
        self.roles.iter()
    }

    /// A role by its key in the spec.
    pub fn get(&self, key: &str) -> Option<&RoleSpec<'a>> {
        self.roles.iter().find(|r| r.key == key)
    }

    /// A role and its place by its label.
    pub fn by_label(&self, label: &str) -> Option<(usize, &RoleSpec<'a>)> {
        self.roles
            .iter()
            .enumerate()
            .find(|(_, r)| r.label == label)
    }

    /// Replicas of all roles together.
    pub fn total(&self) -> u32 {
        self.roles
            .iter()
            .map(|r| r.replicas)
            .fold(0, u32::saturating_add)
    }

    /// Takes replicas from the largest roles until there are no more than so many of all roles.
    pub fn limit(&mut self, most: u32) {
        while self.total() > most {
            let over = self.total() - most;
            if let Some(largest) = self.roles.iter_mut().max_by_key(|r| r.replicas) {
                largest.replicas = largest.replicas.saturating_sub(over);
            }
        }
    }

    /// Every replica in global rank order.
    pub fn ranks(&self) -> impl Iterator<Item = Rank<'_>> {
        self.roles
            .iter()
            .scan(0u32, |first, role| {
                let base = *first;
                *first = base.saturating_add(role.replicas);
                Some((base, role))
            })
            .flat_map(|(base, role)| {
                (0..role.replicas).map(move |index| Rank {
                    role,
                    index,
                    rank: base + index,
                })
            })
    }
}

impl<'r, 'a> IntoIterator for &'r RoleSet<'a> {
    type Item = &'r RoleSpec<'a>;
    type IntoIter = std::slice::Iter<'r, RoleSpec<'a>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// One replica of a job.
#[derive(Clone, Copy, Debug)]
pub struct Rank<'a> {
    /// Its role.
    pub role: &'a RoleSpec<'a>,
    /// Its index within the role, from 0.
    pub index: u32,
    /// Its global rank, from 0.
    pub rank: u32,
}
