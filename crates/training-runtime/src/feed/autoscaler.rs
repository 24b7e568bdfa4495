//! The watched form of `HorizontalPodAutoscaler`s. There are few, but their controller writes their status every 15 seconds: only the
//! fields that decisions read are kept, and other changes wake no job.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Serialize};
use std::hash::Hasher;
use training_api::labels;
use training_core::{AutoscalerView, Digest, Uid};

use super::child::Child;
use super::slim::{Owned, OwnerKind, controller, version};
use crate::key::JobKey;

/// A watched `HorizontalPodAutoscaler`.
#[derive(Resource, Serialize, Deserialize, Clone, Debug, Default)]
#[resource(inherit = "k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler")]
#[serde(default)]
pub struct SlimAutoscaler {
    /// Its name, uid, owner, and template hash.
    pub metadata: ObjectMeta,
    /// Its minimum and maximum.
    pub spec: SlimSpec,
}

/// The minimum and maximum of an autoscaler.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default)]
#[serde(default, rename_all = "camelCase")]
pub struct SlimSpec {
    min_replicas: Option<i32>,
    max_replicas: i32,
}

/// Returns the autoscaler as a child of a job; `None` if it has no owner, one of another kind, or another name than the job.
pub fn autoscaler_view(
    seen: &SlimAutoscaler,
    owner_kind: OwnerKind,
) -> Option<Owned<AutoscalerView>> {
    let meta = &seen.metadata;
    let owner = controller(meta)?;
    let ours = owner_kind.owns(owner) && meta.name.as_ref() == Some(&owner.name);
    if !ours {
        return None;
    }
    let annotations = meta.annotations.as_ref();
    let made_from = annotations.and_then(|a| a.get(labels::AUTOSCALER));
    Some(Owned {
        key: JobKey::new(meta.namespace.as_deref().unwrap_or_default(), &owner.name),
        owner: Uid::parse(&owner.uid)?,
        view: AutoscalerView {
            uid: Uid::of(meta)?,
            version: version(meta),
            digest: made_from.and_then(|text| Digest::parse(text)),
            min: seen.spec.min_replicas,
            max: seen.spec.max_replicas,
            terminating: meta.deletion_timestamp.is_some(),
        },
    })
}

impl Child for AutoscalerView {
    fn uid(&self) -> Uid {
        self.uid
    }
    fn version(&self) -> u64 {
        self.version
    }
    fn same_slot(&self, _: &Self) -> bool {
        true
    }
    fn hash_slot<H: Hasher>(&self, _: &mut H) {}
    fn same_for_decisions(&self, other: &Self) -> bool {
        AutoscalerView::same_for_decisions(self, other)
    }
    fn mark_terminating(&mut self, version: u64) {
        self.terminating = true;
        self.version = self.version.max(version);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const OWNER_KIND: OwnerKind = OwnerKind {
        group: "kubeflow.org",
        kind: "PyTorchJob",
        container: "pytorch",
        controller: "pytorchjob-controller",
        also: &[],
    };

    fn seen(change: impl FnOnce(&mut Value)) -> Option<AutoscalerView> {
        let mut value = json!({
            "metadata": {
                "name": "el", "namespace": "ns", "uid": "0b9f3c1e-00aa-4bcd-8eff-000012345678", "resourceVersion": "42",
                "annotations": {"trainyard.dev/autoscaler": "00000000000000ff"},
                "ownerReferences": [{
                    "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "el", "controller": true,
                    "uid": "11111111-00aa-4bcd-8eff-000012345678"
                }]
            },
            "spec": {"minReplicas": 1, "maxReplicas": 3, "metrics": [], "scaleTargetRef": {}},
            "status": {"currentReplicas": 2}
        });
        change(&mut value);
        let slim: SlimAutoscaler = serde_json::from_value(value).unwrap();
        autoscaler_view(&slim, OWNER_KIND).map(|owned| owned.view)
    }

    #[test]
    fn an_autoscaler_is_a_jobs_by_its_owner_and_its_name() {
        let view = seen(|_| ()).unwrap();
        assert_eq!((view.min, view.max, view.version), (Some(1), 3, 42));
        assert_eq!(view.digest, Digest::parse("ff"));
        assert!(seen(|a| a["metadata"]["name"] = json!("other")).is_none());
        assert!(seen(|a| a["metadata"]["ownerReferences"] = json!([])).is_none());
        assert!(seen(|a| a["metadata"]["ownerReferences"][0]["kind"] = json!("TFJob")).is_none());
    }

    #[test]
    fn one_that_another_operator_made_for_the_job_is_the_jobs_too() {
        let view = seen(|a| a["metadata"]["annotations"] = json!(null)).unwrap();
        assert_eq!(view.digest, None);
    }

    #[test]
    fn its_own_controllers_writes_wake_nobody() {
        let before = seen(|_| ()).unwrap();
        let after = seen(|a| {
            a["status"]["currentReplicas"] = json!(3);
            a["metadata"]["resourceVersion"] = json!("43");
        });
        assert!(Child::same_for_decisions(&before, &after.unwrap()));
        let edited = seen(|a| a["spec"]["maxReplicas"] = json!(9)).unwrap();
        assert!(!Child::same_for_decisions(&before, &edited));
    }
}
