//! The objects that Spark creates in addition to the pod: ConfigMap, Service, NetworkPolicy.
//!
//! Source: Spark on Kubernetes. The application owns them, so they can be created before the pod that mounts them. Labels
//! identify their submission.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, Service, ServicePort, ServiceSpec};
use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicySpec,
};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use training_core::SpecError;

use super::cx::Cx;
use super::properties::{POD_NAME, Ports, Properties, SUBMIT_TIME, below, list};
use crate::{escape, label, names};

/// The file name of the properties.
pub const PROPERTIES_FILE: &str = "spark.properties";
/// The key of the executors' template. Source: Spark.
pub const TEMPLATE_KEY: &str = "podspec-configmap-key";
/// The maximum size of a ConfigMap's data. Units: bytes. Source: Kubernetes, and Spark's own limit.
const MAX_DATA: usize = 1 << 20;

/// Builds the driver's PodDisruptionBudget, if application and operator enable it.
///
/// Source: the published behaviour. It is named after the driver's pod.
pub fn disruption_budget(cx: &Cx<'_>, properties: &Properties) -> Option<PodDisruptionBudget> {
    let asked = cx.spec.driver_pod_disruption_budget == Some(true);
    if !asked || !cx.inputs.settings.disruption_budget.is_on() {
        return None;
    }
    let mut metadata = metadata(cx, properties.get(POD_NAME).cloned().unwrap_or_default());
    let labels = metadata.labels.get_or_insert_default();
    labels.insert(label::LAUNCHED_BY.to_owned(), "true".to_owned());
    let selector = [(label::APP_NAME, cx.name), (label::ROLE, "driver")];
    let selector = selector.map(|(key, value)| (key.to_owned(), value.to_owned()));
    Some(PodDisruptionBudget {
        metadata,
        spec: Some(PodDisruptionBudgetSpec {
            min_available: Some(IntOrString::Int(1)),
            selector: Some(LabelSelector {
                match_labels: Some(selector.into()),
                ..LabelSelector::default()
            }),
            ..PodDisruptionBudgetSpec::default()
        }),
        status: None,
    })
}

/// Returns the owner reference to the application.
pub fn owner(cx: &Cx<'_>) -> OwnerReference {
    OwnerReference {
        api_version: label::API_VERSION.to_owned(),
        kind: "SparkApplication".to_owned(),
        name: cx.name.to_owned(),
        uid: cx.app.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Returns the metadata of an object of this submission.
pub fn metadata(cx: &Cx<'_>, name: String) -> ObjectMeta {
    let labels = [
        (label::APP_NAME, cx.name),
        (label::SUBMISSION_ID, cx.inputs.submission_id),
        (label::CREATED_BY, "true"),
    ];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
    ObjectMeta {
        name: Some(name),
        namespace: Some(cx.namespace.to_owned()),
        labels: Some(labels.into()),
        owner_references: Some(vec![owner(cx)]),
        ..ObjectMeta::default()
    }
}

/// Returns the driver's labels from Spark and from properties. The driver's Service selects by all of them.
pub fn driver_labels(cx: &Cx<'_>, properties: &Properties) -> BTreeMap<String, String> {
    let mut labels = below(properties, "spark.kubernetes.driver.label.");
    // As Spark since 4.0, and as the published operator for every version: with 3.5, the API server would refuse such a pod.
    for value in labels.values_mut() {
        *value = value.replace("{{APP_ID}}", cx.app_id);
    }
    for (key, value) in [
        (label::APP_SELECTOR, cx.app_id),
        (label::ROLE, "driver"),
        (label::SPARK_APP_NAME, &names::app_name_label(cx.name)),
        (label::VERSION, &label_value(&cx.spec.spark_version)),
    ] {
        labels.insert(key.to_owned(), value.to_owned());
    }
    labels
}

/// Turns a text into a label value: replaces invalid characters by `-`.
fn label_value(text: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || ".-_".contains(c) {
            c
        } else {
            '-'
        }
    };
    let text: String = text.chars().map(plain).take(names::MAX_LABEL).collect();
    text.trim_matches(|c: char| !c.is_ascii_alphanumeric())
        .to_owned()
}

/// Builds the ConfigMap of the properties. It is immutable, so its name depends on its content.
///
/// # Errors
/// If it exceeds the size of a ConfigMap.
pub fn conf(cx: &Cx<'_>, properties: &Properties) -> Result<ConfigMap, SpecError> {
    let comments = [
        format!("Spark properties of {}/{}", cx.namespace, cx.name),
        format!("Submission {}", cx.inputs.submission_id),
    ];
    let text = escape::file(&comments, properties);
    if text.len() + cx.namespace.len() > MAX_DATA {
        let why = format!(
            "all Spark properties together have {} bytes, and a ConfigMap holds {MAX_DATA}; put long values into files of the image",
            text.len()
        );
        return Err(SpecError::new("spec.sparkConf", why));
    }
    // A submission retried at another time reuses the existing ConfigMap.
    let timeless: Properties = properties
        .iter()
        .filter(|(key, _)| *key != SUBMIT_TIME)
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    let timeless = escape::file(&comments, &timeless);
    let unique = names::hash(&["conf", cx.inputs.submission_id, &timeless], 16);
    let data = [
        (PROPERTIES_FILE, text.as_str()),
        ("spark.kubernetes.namespace", cx.namespace),
    ];
    let data = data.map(|(key, value)| (key.to_owned(), value.to_owned()));
    Ok(ConfigMap {
        metadata: metadata(cx, format!("spark-drv-{unique}-conf-map")),
        data: Some(data.into()),
        immutable: Some(true),
        ..ConfigMap::default()
    })
}

/// Returns the name of the ConfigMap of the executors' template.
pub fn template_name(cx: &Cx<'_>) -> String {
    format!("{}-driver-podspec-conf-map", cx.prefix)
}

/// Builds the headless Service through which executors find the driver. The driver deletes it by its label when it ends.
pub fn driver_service(cx: &Cx<'_>, properties: &Properties, ports: Ports) -> Service {
    let name = names::driver_service(cx.prefix, cx.inputs.submission_id);
    let mut metadata = metadata(cx, name);
    let labels = metadata.labels.get_or_insert_default();
    let own = below(properties, "spark.kubernetes.driver.service.label.");
    // Our labels identify the Service's submission.
    labels.extend(
        own.into_iter()
            .filter(|(key, _)| !key.starts_with(label::OURS)),
    );
    labels.insert(label::APP_SELECTOR.to_owned(), cx.app_id.to_owned());
    let annotations = below(properties, "spark.kubernetes.driver.service.annotation.");
    metadata.annotations = (!annotations.is_empty()).then_some(annotations);
    let said = |key: &str, unless: &str| {
        let said = properties
            .get(key)
            .map(|v| v.trim())
            .filter(|v| !v.is_empty());
        said.unwrap_or(unless).to_owned()
    };
    let families = said("spark.kubernetes.driver.service.ipFamilies", "IPv4");
    let policy = said(
        "spark.kubernetes.driver.service.ipFamilyPolicy",
        "SingleStack",
    );
    let port = |name: &str, port: i32| ServicePort {
        name: Some(name.to_owned()),
        port,
        target_port: Some(IntOrString::Int(port)),
        protocol: Some("TCP".to_owned()),
        ..ServicePort::default()
    };
    let mut all = vec![
        port("driver-rpc-port", ports.rpc),
        port("blockmanager", ports.block_manager_of_service),
        port("spark-ui", ports.ui),
    ];
    all.extend(ports.connect.map(|number| ServicePort {
        app_protocol: cx.version.at_least(4, 2).then(|| "grpc".to_owned()),
        ..port("spark-connect", number)
    }));
    let unready = cx.version.at_least(4, 3).then(|| {
        let key = "spark.kubernetes.driver.service.publishNotReadyAddresses";
        said(key, "false").eq_ignore_ascii_case("true")
    });
    Service {
        metadata,
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            ip_families: Some(list(&families).map(str::to_owned).collect()),
            ip_family_policy: Some(policy),
            ports: Some(all),
            publish_not_ready_addresses: unready,
            selector: Some(driver_labels(cx, properties)),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

const POLICY_STEP: &str = "org.apache.spark.deploy.k8s.features.NetworkPolicyFeatureStep";

/// Builds the NetworkPolicy that only lets pods of the run connect to its executors: Spark's since 4.2, if enabled in the
/// operator.
pub fn network_policy(cx: &Cx<'_>, properties: &Properties) -> Option<NetworkPolicy> {
    let left_out = properties.get("spark.kubernetes.driver.pod.excludedFeatureSteps");
    let left_out = left_out.is_some_and(|steps| list(steps).any(|step| step == POLICY_STEP));
    if !cx.inputs.settings.network_policy.is_on() || !cx.version.at_least(4, 2) || left_out {
        return None;
    }
    let mut metadata = metadata(cx, format!("{}-policy", cx.prefix));
    let run = (label::APP_SELECTOR.to_owned(), cx.app_id.to_owned());
    metadata
        .labels
        .get_or_insert_default()
        .insert(run.0.clone(), run.1.clone());
    let selector = |labels: BTreeMap<String, String>| LabelSelector {
        match_labels: Some(labels),
        ..LabelSelector::default()
    };
    let role = (label::ROLE.to_owned(), "executor".to_owned());
    Some(NetworkPolicy {
        metadata,
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(selector([run.clone(), role].into())),
            ingress: Some(vec![NetworkPolicyIngressRule {
                from: Some(vec![NetworkPolicyPeer {
                    pod_selector: Some(selector([run].into())),
                    ..NetworkPolicyPeer::default()
                }]),
                ports: None,
            }]),
            ..NetworkPolicySpec::default()
        }),
    })
}
