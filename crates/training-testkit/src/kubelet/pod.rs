//! The scripted kubelet's view of a pod.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt as _};
use serde::Deserialize;

use crate::{JOB_NAME, JOB_ROLE, REPLICA_INDEX, REPLICA_TYPE, SPARK_APP_NAME, SPARK_ROLE};

/// The fields of a pod that the scripted kubelet reads.
#[derive(Resource, Deserialize, Clone, Debug, Default)]
#[resource(inherit = "k8s_openapi::api::core::v1::Pod")]
pub(super) struct SlimPod {
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: SlimSpec,
    #[serde(default)]
    status: SlimStatus,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
struct SlimSpec {
    node_name: String,
    containers: Vec<SlimContainer>,
    init_containers: Vec<SlimContainer>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
struct SlimContainer {
    name: String,
    image: String,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
struct SlimStatus {
    phase: String,
    container_statuses: Vec<SlimContainerStatus>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
struct SlimContainerStatus {
    restart_count: i32,
}

/// The pod's identity, on which a script's decision depends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replica {
    /// The job's name; empty for a foreign pod.
    pub job: String,
    /// The role as in its label, in lower case.
    pub role: String,
    /// The index within the role.
    pub index: u32,
    /// The number of earlier pods of this name.
    pub incarnation: u32,
}

/// A pod as the scripted kubelet sees it.
#[derive(Clone, Debug)]
pub struct SeenPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its job, role and index.
    pub replica: Replica,
    /// `Pending`, `Running`, `Succeeded` or `Failed`.
    pub phase: String,
    /// It has a node.
    pub bound: bool,
    /// It is terminating.
    pub deleting: bool,
    /// In-place restarts of its first container.
    pub restarts: i32,
    /// The Job controller's finalizer waits for its end.
    pub(super) tracked: bool,
    pub(super) address: String,
    pub(super) containers: Vec<(String, String)>,
    pub(super) init_containers: Vec<(String, String)>,
}

impl SeenPod {
    pub(super) fn new(slim: &SlimPod, incarnation: u32, number: usize) -> Self {
        let label = |key: &str| slim.labels().get(key).cloned().unwrap_or_default();
        let first = |keys: &[&str]| {
            let mut labels = keys.iter().map(|key| label(key));
            labels.find(|value| !value.is_empty()).unwrap_or_default()
        };
        let named = |containers: &[SlimContainer]| {
            containers
                .iter()
                .map(|c| (c.name.clone(), c.image.clone()))
                .collect()
        };
        Self {
            namespace: slim.namespace().unwrap_or_default(),
            name: slim.name_any(),
            uid: slim.uid().unwrap_or_default(),
            replica: Replica {
                job: first(&[JOB_NAME, SPARK_APP_NAME]),
                role: first(&[REPLICA_TYPE, JOB_ROLE, SPARK_ROLE]),
                index: label(REPLICA_INDEX).parse().unwrap_or_default(),
                incarnation,
            },
            phase: String::new(),
            bound: false,
            deleting: false,
            restarts: 0,
            tracked: !slim.finalizers().is_empty(),
            // Nothing connects to it; it must only be a valid address.
            address: format!("10.128.{}.{}", number / 250 % 250, number % 250 + 1),
            containers: named(&slim.spec.containers),
            init_containers: named(&slim.spec.init_containers),
        }
    }

    pub(super) fn update(&mut self, slim: &SlimPod) {
        self.phase.clone_from(&slim.status.phase);
        self.bound = !slim.spec.node_name.is_empty();
        self.deleting = slim.metadata.deletion_timestamp.is_some();
        self.restarts = slim
            .status
            .container_statuses
            .first()
            .map_or(0, |c| c.restart_count);
    }

    /// Returns true if it has ended.
    pub fn is_finished(&self) -> bool {
        matches!(self.phase.as_str(), "Succeeded" | "Failed")
    }
}
