//! The roles of a job in rank order.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use training_api::RestartPolicy;

/// One role, with the kind's defaults applied in memory only.
#[derive(Clone, Debug)]
pub struct RoleSpec<'a> {
    /// The replica type as keyed in the spec, e.g. `Worker`.
    pub key: String,
    /// The replica type in lower case: the label value, and part of every name.
    pub label: String,
    /// Number of replicas.
    pub replicas: u32,
    /// The restart policy.
    pub restart: RestartPolicy,
    /// The pod template; absent for a finished job, whose templates are dropped from memory.
    pub template: Option<&'a PodTemplateSpec>,
    /// The role represents the job: its pods carry the label `job-role=master`.
    pub is_master: bool,
    /// It represents the job only because the usual role is missing, and only with its replica 0.
    pub is_fallback_master: bool,
    /// Its pods serve others until the job ends: one that succeeds before that is replaced like one that failed.
    pub is_host: bool,
    /// Path of the role in the spec, for messages.
    pub path: String,
}

/// The roles of a job in global rank order.
#[derive(Clone, Debug, Default)]
pub struct RoleSet<'a> {
    roles: Vec<RoleSpec<'a>>,
}

impl<'a> RoleSet<'a> {
    /// `roles` must be in global rank order.
    pub fn new(roles: Vec<RoleSpec<'a>>) -> Self {
        Self { roles }
    }

    /// The roles in rank order.
    pub fn iter(&self) -> std::slice::Iter<'_, RoleSpec<'a>> {
        self.roles.iter()
    }

    /// Returns a role by its key in the spec.
    pub fn get(&self, key: &str) -> Option<&RoleSpec<'a>> {
        self.roles.iter().find(|r| r.key == key)
    }

    /// Returns a role and its position by its label.
    pub fn by_label(&self, label: &str) -> Option<(usize, &RoleSpec<'a>)> {
        self.roles
            .iter()
            .enumerate()
            .find(|(_, r)| r.label == label)
    }

    /// Returns the replicas of all roles together.
    pub fn total(&self) -> u32 {
        self.roles
            .iter()
            .map(|r| r.replicas)
            .fold(0, u32::saturating_add)
    }

    /// Reduces the largest roles until the total is at most `most`.
    pub fn limit(&mut self, most: u32) {
        while self.total() > most {
            let over = self.total() - most;
            if let Some(largest) = self.roles.iter_mut().max_by_key(|r| r.replicas) {
                largest.replicas = largest.replicas.saturating_sub(over);
            }
        }
    }

    /// Returns every replica in global rank order.
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
