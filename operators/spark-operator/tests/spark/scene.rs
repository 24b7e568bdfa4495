//! Sample applications and their objects, as JSON.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use spark_operator::api::SparkApplication;
use spark_operator::submission::{Inputs, Refusal, Settings, Submission, submit};

/// The id of all submissions here.
pub const SID: &str = "0f1e2d3c-4b5a-8697-8899-aabbccddeeff";
/// The id that Spark gives them.
pub const APP_ID: &str = "spark-0f1e2d3c4b5a86978899aabbccddeeff";
/// The uid of all applications here.
pub const UID: &str = "11111111-1111-4111-8111-111111111111";

/// An application `spark-pi` in `default` with this spec.
pub fn application(spec: &Value) -> Value {
    json!({
        "apiVersion": "sparkoperator.k8s.io/v1beta2",
        "kind": "SparkApplication",
        "metadata": { "name": "spark-pi", "namespace": "default", "uid": UID, "generation": 1 },
        "spec": spec,
    })
}

/// The minimal spec.
pub fn least() -> Value {
    json!({
        "sparkVersion": "4.0.5", "image": "example/spark", "mainClass": "Main",
        "mainApplicationFile": "local:///main.jar", "driver": {}, "executor": {},
    })
}

/// The minimal application, with these fields set; paths use `/`.
pub fn with(fields: &[(&str, Value)]) -> Value {
    let mut spec = least();
    for (path, value) in fields {
        set(&mut spec, path, value.clone());
    }
    application(&spec)
}

/// Sets a field, and creates the objects that contain it.
pub fn set(to: &mut Value, path: &str, value: Value) {
    let mut at = to;
    for part in path.split('/') {
        at = match part.parse::<usize>() {
            Ok(index) if at.is_array() => &mut at[index],
            _ => &mut at[part],
        };
    }
    *at = value;
}

pub fn typed(application: &Value) -> SparkApplication {
    serde_json::from_value(application.clone()).unwrap()
}

pub fn try_submit(application: &Value, settings: &Settings) -> Result<Submission, Refusal> {
    submit(
        &typed(application),
        Inputs {
            submission_id: SID,
            submitted_at: Timestamp::from_millisecond(1_755_000_000_123).unwrap(),
            spec_digest: "1-0123",
            settings,
        },
    )
}

pub fn submitted(application: &Value) -> Submission {
    try_submit(application, &Settings::default()).unwrap()
}

pub fn refused(application: &Value) -> String {
    try_submit(application, &Settings::default())
        .unwrap_err()
        .to_string()
}

pub fn json<T: serde::Serialize>(object: &T) -> Value {
    serde_json::to_value(object).unwrap()
}

/// The driver's Spark container.
pub fn container(made: &Submission) -> Value {
    let pod = json(&made.driver);
    let all = pod["spec"]["containers"].as_array().unwrap();
    all.iter()
        .find(|c| c["name"] == "spark-kubernetes-driver")
        .unwrap()
        .clone()
}

/// The executors' template.
pub fn template(made: &Submission) -> Value {
    let data = made.executor_template.data.as_ref().unwrap();
    serde_json::from_str(&data["podspec-configmap-key"]).unwrap()
}

/// Returns names and values of a container's variables.
pub fn env(container: &Value) -> Vec<(String, Value)> {
    let list = container["env"].as_array().cloned().unwrap_or_default();
    let pair = |v: Value| {
        let value = if v["valueFrom"].is_null() {
            v["value"].clone()
        } else {
            v["valueFrom"].clone()
        };
        (v["name"].as_str().unwrap().to_owned(), value)
    };
    list.into_iter().map(pair).collect()
}

/// The names in a list of objects.
pub fn names(list: &Value) -> Vec<String> {
    let list = list.as_array().cloned().unwrap_or_default();
    list.iter()
        .map(|v| v["name"].as_str().unwrap_or_default().to_owned())
        .collect()
}
