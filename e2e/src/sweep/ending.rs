//! The final state of a run, which is compared between two runs of a life cycle.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Result;
use kube::api::{Api, DynamicObject};
use training_core::GroupKind;
use training_testkit::auditor::{Summary, difference};
use training_testkit::snapshot::Snapshot;

use crate::World;
use crate::lives::Comparison;

/// The objects of a Kubernetes gang.
const GROUPS: [GroupKind; 2] = [GroupKind::Workload, GroupKind::PodGroup];

/// The field of a terminating object.
const LEAVING: &str = ".metadata.deletionTimestamp";

/// The final state of a run, without the name of its job.
#[derive(Clone, Debug)]
pub struct Ending {
    /// O1: every object of the job.
    snapshot: Snapshot,
    /// O2: how often each was created and deleted.
    churn: Summary,
}

impl Ending {
    /// Takes the current state, including gang objects if jobs are gangs. A terminating gang object counts as deleted: Kubernetes keeps
    /// it for some time after the last pod has ended, and the clean-up policy may keep pods running.
    pub async fn take(world: &World, name: &str, gangs: bool) -> Result<Self> {
        let namespace = world.namespace();
        let plain = |text: &str| text.replace(name, "JOB").replace(namespace, "NAMESPACE");
        let client = &world.client;
        let mut snapshot =
            Snapshot::take(client.clone(), namespace, &world.kind.resource(), name).await?;
        for kind in GROUPS.into_iter().filter(|_| gangs) {
            let resource = kind.resource(kind.versions()[0]);
            let groups: Api<DynamicObject> =
                Api::namespaced_with(client.clone(), namespace, &resource);
            let group = groups.get_opt(name).await?;
            if let Some(group) = group.filter(|group| group.metadata.deletion_timestamp.is_none()) {
                snapshot.add(kind.kind(), name, &serde_json::to_value(&group)?);
            }
        }
        let leaves = |leaves: BTreeMap<String, String>| -> BTreeMap<String, String> {
            leaves
                .into_iter()
                .map(|(path, value)| (plain(&path), plain(&value)))
                .collect()
        };
        let snapshot = Snapshot(
            snapshot
                .0
                .into_iter()
                .map(|(object, of)| (plain(&object), leaves(of)))
                .collect(),
        );
        let all = world.auditor.summary_of(name).into_iter();
        let churn = all.map(|(object, churn)| (plain(&object), churn)).collect();
        Ok(Self { snapshot, churn })
    }

    /// Returns the remaining gang objects.
    pub fn groups(&self) -> Vec<&String> {
        let of_a_gang = |object: &str| {
            GROUPS
                .iter()
                .any(|kind| object.starts_with(&format!("{}/", kind.kind())))
        };
        let all = self.snapshot.0.keys();
        all.filter(|object| of_a_gang(object)).collect()
    }

    /// Returns true if a pod is terminating.
    pub fn has_terminating_pods(&self) -> bool {
        let mut all = self.snapshot.0.iter();
        all.any(|(object, of)| object.starts_with("pod/") && of.contains_key(LEAVING))
    }

    /// Returns the differences from an undisturbed run; empty if there are none. Allows so many additional Secrets.
    pub fn difference(&self, undisturbed: &Self, comparison: Comparison, secrets: usize) -> String {
        let this = self.without_more_secrets(undisturbed, secrets);
        match comparison {
            Comparison::Exact => {
                let mut text = difference(&undisturbed.churn, &this.churn);
                text += &undisturbed.snapshot.diff(&this.snapshot);
                text
            }
            Comparison::AtMost => this.excess(),
        }
    }

    /// Removes allowed additional Secrets. The operator never reads Secrets: after a lost response it doesn't know whether the first
    /// one is the job's, and creates another one. That must belong to the job, differ only in its name, and be created and
    /// deleted as often.
    fn without_more_secrets(&self, undisturbed: &Self, most: usize) -> Self {
        let mut this = self.clone();
        let mut room = most;
        for (object, churn) in &self.churn {
            let Some((first, _)) = object.rsplit_once('-') else {
                continue;
            };
            let Some(name) = object.strip_prefix("Secret/") else {
                continue;
            };
            let known = undisturbed.churn.get(first);
            let is_more = !undisturbed.churn.contains_key(object) && known == Some(churn);
            if !is_more || room == 0 {
                continue;
            }
            let first = first.trim_start_matches("Secret/");
            let renamed = |of: &BTreeMap<String, String>| -> BTreeMap<String, String> {
                of.iter()
                    .map(|(path, value)| (path.replace(name, first), value.replace(name, first)))
                    .collect()
            };
            let (of_it, of_first) = (format!("secret/{name}"), format!("secret/{first}"));
            let like_the_first = self.snapshot.0.get(&of_it).map(renamed).as_ref()
                == undisturbed.snapshot.0.get(&of_first);
            if like_the_first {
                room -= 1;
                this.churn.remove(object);
                this.snapshot.0.remove(&of_it);
                for of in this.snapshot.0.values_mut() {
                    *of = renamed(of);
                }
            }
        }
        this
    }

    /// Returns objects that were created more than once, or deleted more often than created.
    fn excess(&self) -> String {
        let mut text = String::new();
        for (object, churn) in &self.churn {
            if churn.creates > 1 || churn.deletes > churn.creates {
                let (made, deleted) = (churn.creates, churn.deletes);
                // Writing to a String can't fail.
                let _ = writeln!(text, "{object}: created {made} and deleted {deleted} times");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use training_testkit::auditor::Churn;

    use super::*;

    /// Returns a state with these Secrets and their owners; pods use the last one.
    fn ending(secrets: &[(&str, &str)]) -> Ending {
        let mut snapshot = Snapshot::default();
        let mut churn = Summary::new();
        for (name, owner) in secrets {
            let owners = json!([{ "kind": "MPIJob", "name": owner }]);
            let secret = json!({ "metadata": { "name": name, "ownerReferences": owners } });
            snapshot.add("secret", name, &secret);
            let once = Churn {
                creates: 1,
                deletes: 0,
            };
            churn.insert(format!("Secret/{name}"), once);
            snapshot.add("pod", "JOB-worker-0", &json!({ "secretName": name }));
        }
        Ending { snapshot, churn }
    }

    #[test]
    fn one_more_secret_is_the_job_s_own_and_comes_of_a_cut() {
        let first = ("JOB-ssh", "JOB");
        let second = ("JOB-ssh-1", "JOB");
        let reference = ending(&[first]);
        let differs = |secrets: &[(&str, &str)], most: usize| {
            let difference = ending(secrets).difference(&reference, Comparison::Exact, most);
            !difference.is_empty()
        };
        assert!(!differs(&[first], 0));
        assert!(!differs(&[first, second], 1));
        assert!(differs(&[first, second], 0), "without a cut");
        assert!(differs(&[first, ("JOB-ssh-1", "other")], 1), "of another");
        assert!(differs(&[second], 1), "instead of the first");
        let third = ("JOB-ssh-2", "JOB");
        assert!(differs(&[first, second, third], 1), "two more");
    }
}
