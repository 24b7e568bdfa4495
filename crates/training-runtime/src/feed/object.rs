//! A job's objects other than its pods: job-wide Services, ConfigMaps, Jobs. Published clients select them by the label `app` only,
//! which many others have too: those are decoded, but not kept.

use std::collections::BTreeMap;
use std::hash::{Hash as _, Hasher};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use serde::{Deserialize, Serialize};
use training_core::object::{config_digest, keys, service_digest};
use training_core::{BatchEnd, BatchPod, BatchView, ObjectKind, ObjectView, Uid};

use super::child::Child;
use super::index::Index;
use super::slim::{Owned, OwnerKind, controller, version};
use crate::key::JobKey;

/// The label of these objects.
pub const SELECTOR: &str = "app";

/// Returns the name of a kind's watch and cache.
pub fn feed(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::Service => "services of jobs",
        ObjectKind::ConfigMap => "configmaps",
        ObjectKind::Job => "batch jobs",
    }
}

/// The other objects of all jobs, by kind.
#[derive(Debug, Default)]
pub struct Objects {
    services: Index<ObjectView>,
    configs: Index<ObjectView>,
    jobs: Index<ObjectView>,
}

impl Objects {
    /// Returns the objects of one kind.
    pub fn of_kind(&self, kind: ObjectKind) -> &Index<ObjectView> {
        match kind {
            ObjectKind::Service => &self.services,
            ObjectKind::ConfigMap => &self.configs,
            ObjectKind::Job => &self.jobs,
        }
    }

    /// Forgets the ended Jobs that were kept after their deletion.
    pub fn forget(&self, key: &JobKey) {
        self.jobs.forget(key);
    }

    /// Returns the objects of one job.
    pub fn of(&self, owner: Uid) -> Vec<ObjectView> {
        let kinds = [&self.services, &self.configs, &self.jobs];
        kinds
            .into_iter()
            .flat_map(|index| index.of(owner))
            .collect()
    }
}

/// A watched Service.
#[derive(Resource, Serialize, Deserialize, Clone, Debug, Default)]
#[resource(inherit = "k8s_openapi::api::core::v1::Service")]
#[serde(default)]
pub struct SlimWholeService {
    metadata: ObjectMeta,
    spec: SlimServiceSpec,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(default, rename_all = "camelCase")]
struct SlimServiceSpec {
    selector: Option<BTreeMap<String, String>>,
    publish_not_ready_addresses: Option<bool>,
}

/// A watched ConfigMap.
#[derive(Resource, Serialize, Deserialize, Clone, Debug, Default)]
#[resource(inherit = "k8s_openapi::api::core::v1::ConfigMap")]
#[serde(default)]
pub struct SlimConfigMap {
    metadata: ObjectMeta,
    data: Option<BTreeMap<String, String>>,
}

/// A watched `batch/v1` Job.
#[derive(Resource, Serialize, Deserialize, Clone, Debug, Default)]
#[resource(inherit = "k8s_openapi::api::batch::v1::Job")]
#[serde(default)]
pub struct SlimBatch {
    metadata: ObjectMeta,
    spec: SlimBatchSpec,
    status: SlimBatchStatus,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(default, rename_all = "camelCase")]
struct SlimBatchSpec {
    suspend: Option<bool>,
    active_deadline_seconds: Option<i64>,
    backoff_limit: Option<i32>,
    template: SlimBatchTemplate,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(default)]
struct SlimBatchTemplate {
    spec: SlimBatchPod,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(default, rename_all = "camelCase")]
struct SlimBatchPod {
    node_selector: Option<BTreeMap<String, String>>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(default, rename_all = "camelCase")]
struct SlimBatchStatus {
    start_time: Option<Time>,
    completion_time: Option<Time>,
    failed: Option<i32>,
    uncounted_terminated_pods: Option<SlimUncounted>,
    conditions: Option<Vec<SlimBatchCondition>>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(default)]
struct SlimUncounted {
    failed: Option<Vec<String>>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(default)]
struct SlimBatchCondition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    reason: Option<String>,
    message: Option<String>,
}

/// An object of a watched kind.
pub trait Whole {
    /// The kind.
    const KIND: ObjectKind;
    /// Returns name, uid and owner.
    fn meta(&self) -> &ObjectMeta;
    /// Fills in the fields that only this kind has.
    fn fill_view(&self, view: &mut ObjectView);
}

impl Whole for SlimWholeService {
    const KIND: ObjectKind = ObjectKind::Service;
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn fill_view(&self, view: &mut ObjectView) {
        let Self { spec, .. } = self;
        view.digest = Some(service_digest(
            spec.selector.as_ref(),
            spec.publish_not_ready_addresses,
        ));
        view.keys = keys(spec.selector.as_ref());
    }
}

impl Whole for SlimConfigMap {
    const KIND: ObjectKind = ObjectKind::ConfigMap;
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn fill_view(&self, view: &mut ObjectView) {
        view.digest = Some(config_digest(self.data.as_ref()));
        view.keys = keys(self.data.as_ref());
    }
}

impl Whole for SlimBatch {
    const KIND: ObjectKind = ObjectKind::Job;
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn fill_view(&self, view: &mut ObjectView) {
        let status = &self.status;
        view.keys = keys(self.spec.template.spec.node_selector.as_ref());
        let conditions = status.conditions.iter().flatten();
        let end = conditions
            .filter(|c| c.status == "True")
            .find_map(|c| match c.type_.as_str() {
                "Complete" => Some(BatchEnd::Complete {
                    at: status.completion_time.as_ref().map(|t| t.0),
                }),
                "Failed" => Some(BatchEnd::Failed {
                    reason: c.reason.clone().unwrap_or_default(),
                    message: c.message.clone().unwrap_or_default(),
                }),
                _ => None,
            });
        view.batch = Some(Box::new(BatchView {
            suspended: self.spec.suspend == Some(true),
            deadline: self.spec.active_deadline_seconds,
            backoff_limit: self.spec.backoff_limit,
            started: status.start_time.is_some(),
            since: status.start_time.as_ref().map(|t| t.0),
            failed: status
                .failed
                .and_then(|n| u32::try_from(n).ok())
                .unwrap_or(0),
            uncounted: status
                .uncounted_terminated_pods
                .as_ref()
                .and_then(|pods| pods.failed.as_ref())
                .and_then(|uids| u32::try_from(uids.len()).ok())
                .unwrap_or(0),
            end,
        }));
    }
}

/// Returns the object as a child of a job; `None` if it has no owner or one of another kind.
pub fn object_view<K: Whole>(seen: &K, owner_kind: OwnerKind) -> Option<Owned<ObjectView>> {
    let meta = seen.meta();
    let owner = controller(meta).filter(|owner| owner_kind.owns(owner))?;
    let mut view = ObjectView {
        kind: K::KIND,
        name: meta.name.as_deref()?.into(),
        uid: Uid::of(meta)?,
        version: version(meta),
        terminating: meta.deletion_timestamp.is_some(),
        gone: false,
        digest: None,
        keys: Vec::new(),
        batch: None,
    };
    seen.fill_view(&mut view);
    Some(Owned {
        key: JobKey::new(meta.namespace.as_deref().unwrap_or_default(), &owner.name),
        owner: Uid::parse(&owner.uid)?,
        view,
    })
}

impl Child for ObjectView {
    fn uid(&self) -> Uid {
        self.uid
    }
    fn version(&self) -> u64 {
        self.version
    }
    fn same_slot(&self, other: &Self) -> bool {
        self.name == other.name
    }
    fn hash_slot<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
    fn same_for_decisions(&self, other: &Self) -> bool {
        ObjectView::same_for_decisions(self, other)
    }
    fn mark_terminating(&mut self, version: u64) {
        self.terminating = true;
        self.version = self.version.max(version);
    }
    fn mark_deleted(&mut self) {
        self.terminating = true;
        self.gone = true;
    }
    fn is_deleted(&self) -> bool {
        self.gone
    }
}

impl Child for BatchPod {
    fn uid(&self) -> Uid {
        self.pod.uid
    }
    fn version(&self) -> u64 {
        self.pod.version
    }
    fn same_slot(&self, other: &Self) -> bool {
        self.name == other.name
    }
    fn hash_slot<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
    fn same_for_decisions(&self, other: &Self) -> bool {
        self.pod.same_for_decisions(&other.pod) && self.said == other.said
    }
    fn mark_terminating(&mut self, version: u64) {
        self.pod.terminating = true;
        self.pod.version = self.pod.version.max(version);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use training_core::Object;

    use super::*;

    const OWNER_KIND: OwnerKind = OwnerKind {
        group: "kubeflow.org",
        kind: "MPIJob",
        container: "",
        controller: "mpi-operator",
        also: &["mpijob-controller"],
    };

    fn batch(change: impl FnOnce(&mut Value)) -> Option<Owned<ObjectView>> {
        let mut value = json!({
            "metadata": {
                "name": "pi-launcher", "namespace": "ns", "uid": "0b9f3c1e-00aa-4bcd-8eff-000012345678", "resourceVersion": "42",
                "ownerReferences": [{
                    "apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "name": "pi", "controller": true,
                    "uid": "11111111-00aa-4bcd-8eff-000012345678"
                }]
            },
            "spec": {"suspend": true, "activeDeadlineSeconds": 60, "backoffLimit": 6, "template": {}},
            "status": {}
        });
        change(&mut value);
        let slim: SlimBatch = serde_json::from_value(value).unwrap();
        object_view(&slim, OWNER_KIND)
    }

    #[test]
    fn a_job_is_somebodys_by_its_owner_in_whatever_version() {
        let owned = batch(|_| ()).unwrap();
        assert_eq!(owned.key, JobKey::new("ns", "pi"));
        let view = owned.view.batch.unwrap();
        assert!(view.suspended);
        assert_eq!((view.deadline, view.backoff_limit), (Some(60), Some(6)));
        let v1 =
            batch(|o| o["metadata"]["ownerReferences"][0]["apiVersion"] = json!("kubeflow.org/v1"));
        assert!(v1.is_some());
        for (field, other) in [("apiVersion", "other.io/v2beta1"), ("kind", "TFJob")] {
            assert!(batch(|o| o["metadata"]["ownerReferences"][0][field] = json!(other)).is_none());
        }
        assert!(
            batch(|o| o["metadata"]["ownerReferences"][0]["controller"] = json!(false)).is_none()
        );
    }

    #[test]
    fn a_jobs_end_is_read_from_its_final_conditions_alone() {
        let end = |type_: &str, status: &str| {
            let view = batch(|o| {
                o["status"] = json!({
                    "startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:00:09Z", "failed": 2,
                    "conditions": [{"type": type_, "status": status, "reason": "r", "message": "m"}]
                });
            });
            let view = view.unwrap().view.batch.unwrap();
            assert!(view.started && view.failed == 2);
            view.end
        };
        let at = "2026-01-01T00:00:09Z".parse().ok();
        assert_eq!(end("Complete", "True"), Some(BatchEnd::Complete { at }));
        let (reason, message) = ("r".to_owned(), "m".to_owned());
        assert_eq!(
            end("Failed", "True"),
            Some(BatchEnd::Failed { reason, message })
        );
        for early in ["FailureTarget", "SuccessCriteriaMet", "Suspended"] {
            assert_eq!(end(early, "True"), None);
        }
        assert_eq!(end("Failed", "False"), None);
    }

    #[test]
    fn failed_pods_that_a_job_has_not_counted_yet_are_read() {
        let uncounted = |pods: Value| {
            let view = batch(|o| o["status"] = json!({"uncountedTerminatedPods": pods}));
            view.unwrap().view.batch.unwrap().uncounted
        };
        assert_eq!(
            uncounted(json!({"failed": ["a", "b"], "succeeded": ["c"]})),
            2
        );
        assert_eq!(uncounted(json!({"succeeded": ["c"]})), 0);
        assert_eq!(uncounted(Value::Null), 0);
    }

    #[test]
    fn a_service_and_a_config_map_are_as_they_were_made_until_somebody_changes_them() {
        use k8s_openapi::api::core::v1::{ConfigMap, Service};
        let owner = json!([{"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "name": "pi", "controller": true,
            "uid": "11111111-00aa-4bcd-8eff-000012345678"}]);
        let meta = json!({"name": "pi", "uid": "0b9f3c1e-00aa-4bcd-8eff-000012345678", "ownerReferences": owner});
        let service = |unready: Value| json!({"metadata": meta, "spec": {"selector": {"a": "b"}, "publishNotReadyAddresses": unready, "clusterIP": "None"}});
        let digest = |value: Value| {
            let seen: SlimWholeService = serde_json::from_value(value).unwrap();
            object_view(&seen, OWNER_KIND).unwrap().view.digest
        };
        let made: Service = serde_json::from_value(service(json!(false))).unwrap();
        assert_eq!(
            digest(service(Value::Null)),
            Object::Service(Box::new(made)).digest()
        );
        assert_ne!(digest(service(json!(true))), digest(service(Value::Null)));

        let config = json!({"metadata": meta, "data": {"hostfile": "a"}});
        let made: ConfigMap = serde_json::from_value(config.clone()).unwrap();
        let seen: SlimConfigMap = serde_json::from_value(config).unwrap();
        let view = object_view(&seen, OWNER_KIND).unwrap().view;
        assert_eq!(view.digest, Object::ConfigMap(made).digest());
        assert_eq!(view.keys, ["hostfile".into()]);
    }
}
