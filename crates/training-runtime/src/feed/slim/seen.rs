//! The watched form of pods and services.

use k8s_openapi::api::core::v1::PodSchedulingGroup;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use serde::{Deserialize, Serialize};
use training_core::slim::slim_meta;

/// A watched pod. It always decodes: every field has a default.
#[derive(Resource, Serialize, Deserialize, Clone, Debug, Default)]
#[resource(inherit = "k8s_openapi::api::core::v1::Pod")]
#[serde(default)]
pub struct SlimPod {
    /// Name, uid, labels, owner, attempt.
    #[serde(deserialize_with = "slim_meta")]
    pub metadata: ObjectMeta,
    /// Node and scheduler.
    pub spec: SlimPodSpec,
    /// Phase, conditions, and container states.
    pub status: SlimPodStatus,
}

/// The fields of a pod's spec that are read.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(default, rename_all = "camelCase")]
pub struct SlimPodSpec {
    pub(super) node_name: Option<String>,
    pub(super) scheduler_name: Option<String>,
    pub(super) scheduling_group: Option<PodSchedulingGroup>,
}

/// A watched service.
#[derive(Resource, Serialize, Deserialize, Clone, Debug, Default)]
#[resource(inherit = "k8s_openapi::api::core::v1::Service")]
#[serde(default)]
pub struct SlimService {
    /// Name, uid, labels, owner.
    #[serde(deserialize_with = "slim_meta")]
    pub metadata: ObjectMeta,
}

/// The fields of a pod's status that decisions read.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(default, rename_all = "camelCase")]
pub struct SlimPodStatus {
    pub(super) phase: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) message: Option<String>,
    pub(super) conditions: Option<Vec<SlimCondition>>,
    pub(super) container_statuses: Option<Vec<SlimContainer>>,
    pub(super) init_container_statuses: Option<Vec<SlimContainer>>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct SlimCondition {
    #[serde(rename = "type")]
    pub(super) type_: Option<String>,
    pub(super) status: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) message: Option<String>,
    pub(super) last_transition_time: Option<Time>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct SlimContainer {
    pub(super) name: Option<String>,
    pub(super) restart_count: Option<i64>,
    pub(super) state: Option<SlimState>,
    pub(super) last_state: Option<SlimState>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub(super) struct SlimState {
    pub(super) waiting: Option<SlimWaiting>,
    pub(super) running: Option<SlimRunning>,
    pub(super) terminated: Option<SlimTerminated>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub(super) struct SlimWaiting {
    pub(super) reason: Option<String>,
    pub(super) message: Option<String>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct SlimRunning {
    pub(super) started_at: Option<Time>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct SlimTerminated {
    pub(super) exit_code: Option<i64>,
    pub(super) reason: Option<String>,
    pub(super) message: Option<String>,
    pub(super) started_at: Option<Time>,
    pub(super) finished_at: Option<Time>,
}
