//! The smaller parts of an application's spec.

use std::collections::BTreeMap;

use k8s_openapi::api::networking::v1::IngressTLS;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An object to mount.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamePath {
    /// Its name.
    pub name: String,
    /// The mount path.
    pub path: String,
}

/// A Secret to mount.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretInfo {
    /// Its name.
    pub name: String,
    /// The mount path.
    pub path: String,
    /// `GCPServiceAccount` and `HadoopDelegationToken` also set the environment variable that points to their file. Other types
    /// are just mounted.
    pub secret_type: String,
}

/// A key of a Secret.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NameKey {
    /// The Secret's name.
    pub name: String,
    /// The key.
    pub key: String,
}

/// An extended resource and its quantity.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuSpec {
    /// The resource's name, e.g. `nvidia.com/gpu`.
    pub name: String,
    /// The quantity. Below 1, the resource is not requested.
    pub quantity: i64,
}

/// A port of a container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodPort {
    /// Its name.
    pub name: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Its number.
    pub container_port: i32,
}

/// Files and packages to fetch for the application. Except for packages, all are URIs with a scheme other than `file`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Dependencies {
    /// Jars on the class path of driver and executors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jars: Vec<String>,
    /// Files in the working directory of executors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// Python files on the Python path.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub py_files: Vec<String>,
    /// Maven coordinates that the driver resolves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub packages: Vec<String>,
    /// Transitive dependencies of the packages to leave out, as `group:artifact`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude_packages: Vec<String>,
    /// Additional Maven repositories.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repositories: Vec<String>,
    /// Archives to unpack in the working directory of executors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub archives: Vec<String>,
}

/// When an application runs again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RestartPolicy {
    /// `Never`, `Always` or `OnFailure`.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Never", "enum" = ["Never", "Always", "OnFailure"]))]
    pub type_: Option<String>,
    /// With `OnFailure`: how often to retry a failed submission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub on_submission_failure_retries: Option<i32>,
    /// With `OnFailure`: how often to retry a failed run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub on_failure_retries: Option<i32>,
    /// Delay before a failed submission is retried, multiplied by the number of tries. Units: seconds. Unset: 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub on_submission_failure_retry_interval: Option<i64>,
    /// Delay before a failed run is retried, multiplied by the number of tries. Units: seconds. Unset: 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub on_failure_retry_interval: Option<i64>,
}

/// Metrics of driver and executors. Has no effect without `prometheus`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MonitoringSpec {
    /// The driver exposes metrics.
    pub expose_driver_metrics: bool,
    /// Executors expose metrics.
    pub expose_executor_metrics: bool,
    /// The text of Spark's `metrics.properties`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics_properties: Option<String>,
    /// The path of that file in the image, instead of its text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics_properties_file: Option<String>,
    /// The exporter that converts JMX to Prometheus metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prometheus: Option<PrometheusSpec>,
}

/// The JMX exporter of Prometheus.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PrometheusSpec {
    /// The path of its jar in the image.
    pub jmx_exporter_jar: String,
    /// Its port. Unset: 8090.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1024, max = 49_151))]
    pub port: Option<i32>,
    /// The name of that port. Unset: `jmx-exporter`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port_name: Option<String>,
    /// The path of its configuration in the image. Takes precedence over `configuration`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_file: Option<String>,
    /// The text of its configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configuration: Option<String>,
}

/// The Service and the Ingress of the web UI.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SparkUiOptions {
    /// The Service's port. Unset: 4040.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_port: Option<i32>,
    /// The name of that port. Unset: `spark-driver-ui-port`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_port_name: Option<String>,
    /// `ClusterIP` (default), `NodePort` or `LoadBalancer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_type: Option<String>,
    /// Annotations of the Service.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub service_annotations: BTreeMap<String, String>,
    /// Labels of the Service.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub service_labels: BTreeMap<String, String>,
    /// Annotations of the Ingress, instead of the operator's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ingress_annotations: BTreeMap<String, String>,
    /// TLS of the Ingress, instead of the operator's.
    #[serde(rename = "ingressTLS", default, skip_serializing_if = "Vec::is_empty")]
    pub ingress_tls: Vec<IngressTLS>,
}

/// An additional Service and Ingress of the driver.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DriverIngressOptions {
    /// The port of driver and Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_port: Option<i32>,
    /// The name of that port. Unset: `driver-ing-<port>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_port_name: Option<String>,
    /// `ClusterIP` (default), `NodePort` or `LoadBalancer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_type: Option<String>,
    /// Annotations of the Service.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub service_annotations: BTreeMap<String, String>,
    /// Labels of the Service.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub service_labels: BTreeMap<String, String>,
    /// The URL of the Ingress. The operator replaces `{{$appName}}`, `{{$appNamespace}}` and `{{$appId}}` in it.
    #[serde(
        rename = "ingressURLFormat",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(max = 1024))]
    pub ingress_url_format: Option<String>,
    /// Annotations of the Ingress, instead of the operator's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ingress_annotations: BTreeMap<String, String>,
    /// TLS of the Ingress, instead of the operator's.
    #[serde(rename = "ingressTLS", default, skip_serializing_if = "Vec::is_empty")]
    pub ingress_tls: Vec<IngressTLS>,
}

/// Dynamic allocation: Spark scales the number of executors with the load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DynamicAllocation {
    /// True: Spark adds and removes executors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// The initial number of executors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial_executors: Option<i32>,
    /// The minimum number of executors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_executors: Option<i32>,
    /// The maximum number of executors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_executors: Option<i32>,
    /// Keep executors while their shuffle data is needed. Unset: true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shuffle_tracking_enabled: Option<bool>,
    /// The longest time to keep executors for their shuffle data. Units: milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shuffle_tracking_timeout: Option<i64>,
}

/// Options for the batch scheduler.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BatchSchedulerOptions {
    /// Its queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// The priority class of the group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// The resources that the group needs to start. Unset: the requests of driver and executors.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub resources: BTreeMap<String, Quantity>,
}
