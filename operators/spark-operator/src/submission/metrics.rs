//! Metrics of driver and executors: the JMX exporter of Prometheus.
//!
//! Source: the published behaviour. Has no effect without `spec.monitoring.prometheus`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;

use super::cx::Cx;
use super::object;
use crate::api::{MonitoringSpec, PrometheusSpec, Role};
use crate::names;

/// The mount path of the ConfigMap.
pub const CONF_DIR: &str = "/etc/metrics/conf";
/// The exporter's default port.
pub const PORT: i32 = 8090;
/// The default name of that port.
pub const PORT_NAME: &str = "jmx-exporter";

const PROPERTIES_KEY: &str = "metrics.properties";
const EXPORTER_KEY: &str = "prometheus.yaml";

/// Sends metrics to JMX, including those of the JVMs.
const DEFAULT_PROPERTIES: &str = "*.sink.jmx.class=org.apache.spark.metrics.sink.JmxSink\n\
    driver.source.jvm.class=org.apache.spark.metrics.source.JvmSource\n\
    executor.source.jvm.class=org.apache.spark.metrics.source.JvmSource\n";

/// The labels that all rules of the exporter set.
const LABELS: &str = "      app_namespace: \"$1\"\n      app_id: \"$2\"\n";

/// A rule of the exporter: the bean's name after namespace and id, the attribute, the metric, its type, and an additional label.
type Rule = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    Option<(&'static str, &'static str)>,
);

/// Source: the metrics that the published configuration exports.
const RULES: [Rule; 13] = [
    (
        r"driver\.(BlockManager|DAGScheduler|jvm)\.(\S+)",
        "Value",
        "spark_driver_$3_$4",
        "GAUGE",
        None,
    ),
    (
        r"driver\.(\S+)\.StreamingMetrics\.streaming\.(\S+)",
        "Value",
        "spark_streaming_driver_$4",
        "GAUGE",
        None,
    ),
    (
        r"driver\.spark\.streaming\.(\S+)\.(\S+)",
        "Value",
        "spark_structured_streaming_driver_$4",
        "GAUGE",
        Some(("query_name", "$3")),
    ),
    (
        r"(\S+)\.executor\.(\S+)",
        "Value",
        "spark_executor_$4",
        "GAUGE",
        Some(("executor_id", "$3")),
    ),
    (
        r"driver\.DAGScheduler\.(\S+)",
        "Count",
        "spark_driver_DAGScheduler_$3_count",
        "COUNTER",
        None,
    ),
    (
        r"driver\.HiveExternalCatalog\.(\S+)",
        "Count",
        "spark_driver_HiveExternalCatalog_$3_count",
        "COUNTER",
        None,
    ),
    (
        r"driver\.CodeGenerator\.(\S+)",
        "Count",
        "spark_driver_CodeGenerator_$3_count",
        "COUNTER",
        None,
    ),
    (
        r"driver\.LiveListenerBus\.(\S+)",
        "Count",
        "spark_driver_LiveListenerBus_$3_count",
        "COUNTER",
        None,
    ),
    (
        r"driver\.LiveListenerBus\.(\S+)",
        "Value",
        "spark_driver_LiveListenerBus_$3",
        "GAUGE",
        None,
    ),
    (
        r"(\S+)\.executor\.(\S+)",
        "Count",
        "spark_executor_$4_count",
        "COUNTER",
        Some(("executor_id", "$3")),
    ),
    (
        r"([0-9]+)\.(jvm|NettyBlockTransfer)\.(\S+)",
        "Value",
        "spark_executor_$4_$5",
        "GAUGE",
        Some(("executor_id", "$3")),
    ),
    (
        r"([0-9]+)\.HiveExternalCatalog\.(\S+)",
        "Count",
        "spark_executor_HiveExternalCatalog_$4_count",
        "COUNTER",
        Some(("executor_id", "$3")),
    ),
    (
        r"([0-9]+)\.CodeGenerator\.(\S+)",
        "Count",
        "spark_executor_CodeGenerator_$4_count",
        "COUNTER",
        Some(("executor_id", "$3")),
    ),
];

fn exporter() -> String {
    let head = "lowercaseOutputName: true\nattrNameSnakeCase: true\nrules:\n".to_owned();
    let rules = RULES.map(|(bean, attribute, name, type_, more)| {
        let pattern = format!(r"metrics<name=(\S+)\.(\S+)\.{bean}(?:, type=\S+)?><>{attribute}");
        let more = more.map(|(label, value)| format!("      {label}: \"{value}\"\n"));
        format!(
            "  - pattern: '{pattern}'\n    name: {name}\n    type: {type_}\n    labels:\n{LABELS}{}",
            more.unwrap_or_default()
        )
    });
    head + &rules.concat()
}

/// Returns the application's metrics settings, if complete.
fn asked<'a>(cx: &Cx<'a>) -> Option<(&'a MonitoringSpec, &'a PrometheusSpec)> {
    let monitoring = cx.spec.monitoring.as_ref()?;
    Some((monitoring, monitoring.prometheus.as_ref()?))
}

fn exposed<'a>(cx: &Cx<'a>, role: Role) -> Option<(&'a MonitoringSpec, &'a PrometheusSpec)> {
    asked(cx).filter(|(monitoring, _)| match role {
        Role::Driver => monitoring.expose_driver_metrics,
        Role::Executor => monitoring.expose_executor_metrics,
    })
}

fn given(text: Option<&String>) -> Option<&String> {
    text.filter(|t| !t.is_empty())
}

/// Adds Spark's metrics properties, which override the user's.
pub fn properties(cx: &Cx<'_>, to: &mut BTreeMap<String, String>) {
    let Some((monitoring, _)) = asked(cx) else {
        return;
    };
    let namespace = format!("{}.{}", cx.namespace, cx.name);
    to.insert("spark.metrics.namespace".to_owned(), namespace);
    let file = given(monitoring.metrics_properties_file.as_ref());
    let file = file.map_or_else(|| format!("{CONF_DIR}/{PROPERTIES_KEY}"), Clone::clone);
    to.insert("spark.metrics.conf".to_owned(), file);
}

/// The annotations through which Prometheus finds a pod.
pub fn annotations(cx: &Cx<'_>, role: Role) -> BTreeMap<String, String> {
    let Some((_, prometheus)) = exposed(cx, role) else {
        return BTreeMap::new();
    };
    let port = prometheus.port.unwrap_or(PORT).to_string();
    [
        ("prometheus.io/scrape", "true"),
        ("prometheus.io/port", &port),
        ("prometheus.io/path", "/metrics"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

/// The options of a role's JVMs, with the exporter after the user's.
pub fn java_options(cx: &Cx<'_>, role: Role, own: Option<&str>) -> Option<String> {
    let Some((_, prometheus)) = exposed(cx, role) else {
        return own.map(str::to_owned);
    };
    let own_file = format!("{CONF_DIR}/{EXPORTER_KEY}");
    let file = given(prometheus.config_file.as_ref()).unwrap_or(&own_file);
    let port = prometheus.port.unwrap_or(PORT);
    let agent = format!("-javaagent:{}={port}:{file}", prometheus.jmx_exporter_jar);
    Some(match own.filter(|o| !o.is_empty()) {
        Some(own) => format!("{own} {agent}"),
        None => agent,
    })
}

/// What metrics add to a role's Spark container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// The name of the ConfigMap.
    pub config_map: String,
    /// The name of its volume.
    pub volume: String,
    /// The exporter's port.
    pub port: i32,
    /// The name of that port.
    pub port_name: String,
}

/// Returns the additions to a role's Spark container; `None` if both files are in the image, as published.
pub fn mounted(cx: &Cx<'_>, role: Role) -> Option<Mounted> {
    let (monitoring, prometheus) = exposed(cx, role)?;
    has_config_map(monitoring, prometheus).then(|| {
        let config_map = config_map_name(cx);
        Mounted {
            volume: names::config_map_volume(&config_map),
            config_map,
            port: prometheus.port.unwrap_or(PORT),
            port_name: given(prometheus.port_name.as_ref())
                .map_or_else(|| PORT_NAME.to_owned(), Clone::clone),
        }
    })
}

fn has_config_map(monitoring: &MonitoringSpec, prometheus: &PrometheusSpec) -> bool {
    given(monitoring.metrics_properties_file.as_ref()).is_none()
        || given(prometheus.config_file.as_ref()).is_none()
}

fn config_map_name(cx: &Cx<'_>) -> String {
    format!("{}-prom-conf", cx.name)
}

/// Builds the ConfigMap. All submissions share it.
pub fn config_map(cx: &Cx<'_>) -> Option<ConfigMap> {
    let (monitoring, prometheus) = asked(cx)?;
    if !has_config_map(monitoring, prometheus) {
        return None;
    }
    let mut data = BTreeMap::new();
    if given(monitoring.metrics_properties_file.as_ref()).is_none() {
        let text = given(monitoring.metrics_properties.as_ref());
        let text = text.map_or_else(|| DEFAULT_PROPERTIES.to_owned(), Clone::clone);
        data.insert(PROPERTIES_KEY.to_owned(), text);
    }
    if given(prometheus.config_file.as_ref()).is_none() {
        let text = given(prometheus.configuration.as_ref());
        data.insert(
            EXPORTER_KEY.to_owned(),
            text.map_or_else(exporter, Clone::clone),
        );
    }
    let mut metadata = object::metadata(cx, config_map_name(cx));
    if let Some(labels) = &mut metadata.labels {
        // It outlives the submission.
        labels.remove(crate::label::SUBMISSION_ID);
    }
    Some(ConfigMap {
        metadata,
        data: Some(data),
        ..ConfigMap::default()
    })
}
