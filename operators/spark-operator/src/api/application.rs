//! `SparkApplication` and its spec.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Volume;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};
use training_api::schema;

use super::part::{
    BatchSchedulerOptions, Dependencies, DriverIngressOptions, DynamicAllocation, MonitoringSpec,
    RestartPolicy, SparkUiOptions,
};
use super::pod::{DriverSpec, ExecutorSpec, Role, SparkPodSpec};
use super::rule::{
    conf_keys_are_allowed, ingress_ports_are_given, ingress_ports_differ, ingress_urls_are_given,
    ingress_urls_differ, node_selectors_are_apart,
};
use super::status::SparkApplicationStatus;

/// The spec of a Spark application.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "sparkoperator.k8s.io",
    version = "v1beta2",
    kind = "SparkApplication",
    plural = "sparkapplications",
    singular = "sparkapplication",
    shortname = "sparkapp",
    namespaced,
    doc = "A Spark application: a driver and its executors.",
    status = "SparkApplicationStatus",
    derive = "Default",
    derive = "PartialEq",
    validation = schema::name_is_dns_label()
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = node_selectors_are_apart())]
pub struct SparkApplicationSpec {
    /// True: don't submit the application, and end its present run. Changing only this field is not a change that triggers a
    /// rerun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// The language: `Java`, `Python`, `Scala` or `R`. Spark itself decides by the extension of the main file.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Scala", "enum" = ["Java", "Python", "Scala", "R"]))]
    pub type_: Option<String>,
    /// The version of Spark in the image, e.g. `4.0.1`. It decides which settings the driver gets. A version that can't be parsed
    /// counts as the oldest supported one.
    pub spark_version: String,
    /// How the driver runs: `cluster`, in a pod of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "cluster", "enum" = ["cluster"]))]
    pub mode: Option<String>,
    /// The user that Spark impersonates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_user: Option<String>,
    /// The default image of driver and executors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The pull policy of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<String>,
    /// Names of Secrets for pulling the image.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<String>,
    /// The main class of a Java or Scala application. Needed for a jar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub main_class: Option<String>,
    /// The URI of the jar, Python or R file to run, e.g. `local:///opt/spark/app.jar`. It needs a scheme other than `file`.
    pub main_application_file: String,
    /// Arguments of the application.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arguments: Vec<String>,
    /// Spark properties.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[x_kube(validation = conf_keys_are_allowed())]
    pub spark_conf: BTreeMap<String, String>,
    /// Hadoop properties. Each becomes a Spark property with the prefix `spark.hadoop.`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub hadoop_conf: BTreeMap<String, String>,
    /// A ConfigMap of Spark configuration files, mounted at `/etc/spark/conf`. `SPARK_CONF_DIR` points there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spark_config_map: Option<String>,
    /// A ConfigMap of Hadoop configuration files, mounted at `/etc/hadoop/conf`. `HADOOP_CONF_DIR` points there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hadoop_config_map: Option<String>,
    /// Volumes that `volumeMounts` of driver and executors may name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Volume>,
    /// The driver.
    pub driver: DriverSpec,
    /// The executors.
    pub executor: ExecutorSpec,
    /// Files and packages to fetch for the application.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deps: Option<Dependencies>,
    /// When the application runs again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = serde_json::json!({ "type": "Never" })))]
    pub restart_policy: Option<RestartPolicy>,
    /// Node labels that driver and executors require.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Deprecated; has no effect, as published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_retries: Option<i32>,
    /// Deprecated; has no effect, as published. Units: seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_interval: Option<i64>,
    /// The major version of Python, `2` or `3`, for images of Spark up to 4.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["2", "3"]))]
    pub python_version: Option<String>,
    /// The share of memory added for non-heap use, as a decimal, e.g. `0.2`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_overhead_factor: Option<String>,
    /// Metrics of driver and executors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub monitoring: Option<MonitoringSpec>,
    /// The scheduler that gang-schedules driver and executors, e.g. `volcano`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_scheduler: Option<String>,
    /// Options for the batch scheduler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_scheduler_options: Option<BatchSchedulerOptions>,
    /// How long to keep the application after it ends. Units: seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_to_live_seconds: Option<i64>,
    /// The Service and the Ingress of the web UI.
    #[serde(
        rename = "sparkUIOptions",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub spark_ui_options: Option<SparkUiOptions>,
    /// More Services and Ingresses of the driver.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    // The API server limits the cost of rules, and estimates it for the longest list and text.
    #[schemars(length(max = 64))]
    #[x_kube(
        validation = ingress_ports_are_given(),
        validation = ingress_ports_differ(),
        validation = ingress_urls_are_given(),
        validation = ingress_urls_differ()
    )]
    pub driver_ingress_options: Vec<DriverIngressOptions>,
    /// Dynamic allocation: Spark scales the number of executors with the load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dynamic_allocation: Option<DynamicAllocation>,
    /// True: a PodDisruptionBudget protects the driver, if the operator has that enabled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver_pod_disruption_budget: Option<bool>,
}

impl SparkApplicationSpec {
    /// The part of the spec that driver and executors have in common.
    pub fn role(&self, role: Role) -> &SparkPodSpec {
        match role {
            Role::Driver => &self.driver.pod,
            Role::Executor => &self.executor.pod,
        }
    }
}
