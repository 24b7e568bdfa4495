//! The specs of the driver and of the executors.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, Container, EnvFromSource, EnvVar, HostAlias, Lifecycle, PodDNSConfig,
    PodSecurityContext, PodTemplateSpec, SecurityContext, Toleration, VolumeMount,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::part::{GpuSpec, NameKey, NamePath, PodPort, SecretInfo};
use super::template::Template;

/// The two roles of an application's pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The pod that the operator creates.
    Driver,
    /// The pods that the driver creates.
    Executor,
}

impl Role {
    /// The role as written in Spark's properties and in the spec.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Executor => "executor",
        }
    }

    /// The name of the role's Spark container. Source: Spark on Kubernetes.
    pub fn container(self) -> &'static str {
        match self {
            Self::Driver => "spark-kubernetes-driver",
            Self::Executor => "spark-kubernetes-executor",
        }
    }
}

/// What driver and executors have in common.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SparkPodSpec {
    /// The pod template that Spark starts from. The other fields of the role override it. Fields that pods don't have are accepted,
    /// and have no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Box<PodTemplateSpec>>")]
    pub template: Option<Template>,
    /// Cores that Spark assumes; also the CPU request if `coreRequest` is unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub cores: Option<i32>,
    /// The CPU limit, as a Kubernetes quantity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core_limit: Option<String>,
    /// The heap, in Java's notation: `512m`, `2g`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// The container's memory limit, if it differs from the request, in Java's or in Kubernetes' notation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<String>,
    /// Memory in addition to the heap, in Java's notation; a bare number means MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_overhead: Option<String>,
    /// An extended resource, e.g. `nvidia.com/gpu`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuSpec>,
    /// The image, if it differs from the application's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// ConfigMaps to mount.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub config_maps: Vec<NamePath>,
    /// Secrets to mount.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretInfo>,
    /// Environment of the Spark container. If a name occurs twice, the last variable wins, and these come last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
    /// Deprecated: environment by name. Use `env`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env_vars: BTreeMap<String, String>,
    /// Sources of environment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env_from: Vec<EnvFromSource>,
    /// Deprecated: environment from Secrets, by name. Use `env`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env_secret_key_refs: BTreeMap<String, NameKey>,
    /// Labels of the pod.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pod.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Volumes of the application to mount. Spark keeps its scratch data in volumes named `spark-local-dir-…`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volume_mounts: Vec<VolumeMount>,
    /// Replaces the template's affinity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Added to the template's tolerations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// Replaces the pod's security context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_security_context: Option<PodSecurityContext>,
    /// Replaces the security context of the Spark container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_context: Option<SecurityContext>,
    /// The scheduler, if the application names no batch scheduler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler_name: Option<String>,
    /// Containers in addition to the Spark container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sidecars: Vec<Container>,
    /// Containers that run before it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub init_containers: Vec<Container>,
    /// True: the pod uses its node's network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_network: Option<bool>,
    /// Node labels that the role requires. Can't be combined with the application's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Replaces the pod's DNS settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns_config: Option<PodDNSConfig>,
    /// Time between SIGTERM and SIGKILL. Units: seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination_grace_period_seconds: Option<i64>,
    /// The ServiceAccount of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account: Option<String>,
    /// Entries added to the pod's hosts file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_aliases: Vec<HostAlias>,
    /// True: the containers see each other's processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_process_namespace: Option<bool>,
}

/// The driver.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DriverSpec {
    /// The fields in common with executors.
    #[serde(flatten)]
    pub pod: SparkPodSpec,
    /// The name of its pod. Unset: `<application>-driver`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(
        pattern = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
    ))]
    pub pod_name: Option<String>,
    /// The CPU request, as a Kubernetes quantity, if it differs from `cores`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core_request: Option<String>,
    /// Options of its JVM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub java_options: Option<String>,
    /// Replaces the hooks of the Spark container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<Lifecycle>,
    /// The URL of the API server for the driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes_master: Option<String>,
    /// Annotations of the Service through which executors find it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub service_annotations: BTreeMap<String, String>,
    /// Labels of that Service.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub service_labels: BTreeMap<String, String>,
    /// Additional ports of the Spark container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PodPort>,
    /// The pod's priority class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
}

/// The executors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExecutorSpec {
    /// The fields in common with the driver.
    #[serde(flatten)]
    pub pod: SparkPodSpec,
    /// Number of executors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub instances: Option<i32>,
    /// The CPU request, as a Kubernetes quantity, if it differs from `cores`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core_request: Option<String>,
    /// Options of their JVMs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub java_options: Option<String>,
    /// Replaces the hooks of the Spark container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<Lifecycle>,
    /// False: the driver keeps the pods of executors that have ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete_on_termination: Option<bool>,
    /// Additional ports of the Spark container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PodPort>,
    /// The pods' priority class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
}
