//! What is compared between two runs of a life.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Result;
use kube::api::{Api, DynamicObject};
use training_core::GroupKind;
use training_testkit::auditor::{Summary, difference};
use training_testkit::snapshot::Snapshot;

use crate::World;
use crate::lives::Likeness;

/// What stands for a gang of Kubernetes' own.
const GROUPS: [GroupKind; 2] = [GroupKind::Workload, GroupKind::PodGroup];

/// What an object on its way out has.
const LEAVING: &str = ".metadata.deletionTimestamp";

/// How a run ended, without the name of its job.
#[derive(Clone, Debug)]
pub struct Ending {
    /// O1: every object of the job.
    snapshot: Snapshot,
    /// O2: how often each was made and deleted.
    churn: Summary,
}

impl Ending {
    /// As it is now; with the groups of a gang, where jobs are gangs.
    pub async fn take(world: &World, name: &str, gangs: bool) -> Result<Self> {
        let namespace = world.namespace();
        // A Secret is never read: where nobody knows any more whether the first one is the job's, it has another one.
        let plain = |text: &str| {
            let text = text.replace(name, "JOB").replace(namespace, "NAMESPACE");
            text.replace("JOB-ssh-1", "JOB-ssh")
        };
        let client = &world.client;
        let mut snapshot =
            Snapshot::take(client.clone(), namespace, &world.kind.resource(), name).await?;
        for kind in GROUPS.into_iter().filter(|_| gangs) {
            let resource = kind.resource(kind.versions()[0]);
            let groups: Api<DynamicObject> =
                Api::namespaced_with(client.clone(), namespace, &resource);
            if let Some(group) = groups.get_opt(name).await? {
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
        let (of_job, itself) = (format!("/{name}-"), format!("/{name}"));
        let all = world.auditor.summary().into_iter();
        let mut churn = Summary::new();
        for (object, of) in
            all.filter(|(object, _)| object.contains(&of_job) || object.ends_with(&itself))
        {
            let known = churn.entry(plain(&object)).or_default();
            known.creates = known.creates.max(of.creates);
            known.deletes = known.deletes.max(of.deletes);
        }
        Ok(Self { snapshot, churn })
    }

    /// The groups that are left of a gang. One whose deletion was asked for is not: Kubernetes keeps it until its last pod has
    /// ended, and the clean-up policy may leave pods at work.
    pub fn groups(&self) -> Vec<&String> {
        let of_a_gang = |object: &str| {
            GROUPS
                .iter()
                .any(|kind| object.starts_with(&format!("{}/", kind.kind())))
        };
        let all = self.snapshot.0.iter();
        all.filter(|(object, of)| of_a_gang(object) && !of.contains_key(LEAVING))
            .map(|(object, _)| object)
            .collect()
    }

    /// What differs from the ending of an undisturbed run; empty if nothing does.
    pub fn difference(&self, undisturbed: &Self, likeness: Likeness) -> String {
        match likeness {
            Likeness::Exact => {
                let mut text = difference(&undisturbed.churn, &self.churn);
                text += &undisturbed.snapshot.diff(&self.snapshot);
                text
            }
            Likeness::AtMost => self.excess(),
        }
    }

    /// What was made more than once, or deleted more often than it was made.
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
