//! The CRDs as installed.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Value, json};
use training_api::schema;

use super::application::SparkApplication;
use super::scheduled::ScheduledSparkApplication;

/// The API server requires this annotation on CRDs of groups under `k8s.io`. Source: the published CRDs.
const APPROVED: (&str, &str) = (
    "api-approved.kubernetes.io",
    "https://github.com/kubeflow/spark-operator/pull/1298",
);

/// The category under which `kubectl get` lists the kinds of this group.
const CATEGORY: &str = "spark";

/// Fields of Kubernetes' own types. Kubernetes' reference describes them.
const EMBEDDED: &[&str] = &[
    "affinity",
    "conditions",
    "dnsConfig",
    "env",
    "envFrom",
    "hostAliases",
    "ingressTLS",
    "initContainers",
    "lifecycle",
    "podSecurityContext",
    "securityContext",
    "sidecars",
    "template",
    "tolerations",
    "volumeMounts",
    "volumes",
];

/// The CRD of `SparkApplication`.
///
/// # Errors
/// Never for a CRD that `kube` derived: it converts the schema to JSON and back.
pub fn application_crd() -> Result<CustomResourceDefinition, serde_json::Error> {
    let columns = [
        ("Suspend", "boolean", ".spec.suspend"),
        ("Status", "string", ".status.applicationState.state"),
        ("Attempts", "string", ".status.executionAttempts"),
        ("Start", "string", ".status.lastSubmissionAttemptTime"),
        ("Finish", "string", ".status.terminationTime"),
        ("Waiting", "string", ".status.waiting"),
        ("Age", "date", ".metadata.creationTimestamp"),
    ];
    finish(&SparkApplication::crd(), &columns, "/spec/properties")
}

/// The CRD of `ScheduledSparkApplication`.
///
/// # Errors
/// As [`application_crd`].
pub fn scheduled_crd() -> Result<CustomResourceDefinition, serde_json::Error> {
    let columns = [
        ("Schedule", "string", ".spec.schedule"),
        ("TimeZone", "string", ".spec.timeZone"),
        ("Suspend", "string", ".spec.suspend"),
        ("Last Run", "date", ".status.lastRun"),
        ("Last Run Name", "string", ".status.lastRunName"),
        ("Age", "date", ".metadata.creationTimestamp"),
    ];
    finish(
        &ScheduledSparkApplication::crd(),
        &columns,
        "/spec/properties/template/properties",
    )
}

fn finish(
    crd: &CustomResourceDefinition,
    columns: &[(&str, &str, &str)],
    application: &str,
) -> Result<CustomResourceDefinition, serde_json::Error> {
    let mut crd = serde_json::to_value(crd)?;
    crd["metadata"]["annotations"] = json!({ APPROVED.0: APPROVED.1 });
    crd["spec"]["names"]["categories"] = json!([CATEGORY, schema::CATEGORY]);
    let columns: Vec<Value> = columns
        .iter()
        .map(|(name, type_, path)| json!({ "name": name, "type": type_, "jsonPath": path }))
        .collect();
    let versions = crd
        .pointer_mut("/spec/versions")
        .and_then(Value::as_array_mut);
    for version in versions.into_iter().flatten() {
        version["additionalPrinterColumns"] = json!(columns);
        let Some(schema) = version.pointer_mut("/schema/openAPIV3Schema") else {
            continue;
        };
        schema::tidy(schema);
        embedded(schema);
        schema::bound_lists(schema);
        // Rules may refer to the name only if the schema declares it.
        let metadata = json!({ "type": "object", "properties": { "name": { "type": "string" } } });
        schema["properties"]["metadata"] = metadata;
        for time in [
            "lastSubmissionAttemptTime",
            "terminationTime",
            "lastRun",
            "nextRun",
        ] {
            // The existing operator writes null for unset times, and accepts null.
            if let Some(time) = schema.pointer_mut(&format!("/properties/status/properties/{time}"))
            {
                time["nullable"] = json!(true);
            }
        }
        for role in ["driver", "executor"] {
            let at = format!("/properties{application}/{role}/properties/template");
            if let Some(template) = schema.pointer_mut(&at) {
                pod_template(template);
            }
        }
    }
    serde_json::from_value(crd)
}

/// Drops the descriptions inside embedded types, but keeps those of the fields themselves.
fn embedded(schema: &mut Value) {
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        for (name, property) in properties {
            if EMBEDDED.contains(&name.as_str()) {
                schema::strip_descriptions(property);
            }
            embedded(property);
        }
    }
    for key in ["items", "additionalProperties"] {
        if let Some(child) = schema.get_mut(key) {
            embedded(child);
        }
    }
}

/// Makes a pod template's fields optional, and accepts unknown ones at every depth: Spark adds containers, names and images, so
/// nothing in it is required. Only types of known fields are validated, so that the template can be parsed. The existing operator
/// accepts any object here.
fn pod_template(template: &mut Value) {
    let strings = json!({ "type": "object", "additionalProperties": { "type": "string" } });
    // The fields that `template::METADATA` names.
    template["properties"]["metadata"] = json!({
        "type": "object",
        "properties": {
            "annotations": strings,
            "labels": strings,
            "name": { "type": "string" },
            "namespace": { "type": "string" },
        },
    });
    if let Some(Value::Object(spec)) = template.pointer_mut("/properties/spec/properties") {
        // A pod can't be created with them.
        spec.remove("ephemeralContainers");
    }
    open(template);
}

fn open(schema: &mut Value) {
    let Some(object) = schema.as_object_mut() else {
        return;
    };
    object.remove("required");
    let is_object = object.get("type").and_then(Value::as_str) == Some("object");
    if is_object && !object.contains_key("additionalProperties") {
        // It doesn't hold for the schemas of properties, so each has it.
        object.insert("x-kubernetes-preserve-unknown-fields".into(), true.into());
    }
    for (_, child) in object
        .get_mut("properties")
        .and_then(Value::as_object_mut)
        .into_iter()
        .flatten()
    {
        open(child);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(child) = object.get_mut(key) {
            open(child);
        }
    }
}
