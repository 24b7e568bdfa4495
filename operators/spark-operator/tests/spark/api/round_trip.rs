//! Stored objects survive a round trip through our types: every field keeps its value.

use serde_json::{Value, json};
use spark_operator::api::{
    ExecutorState, Role, ScheduleState, ScheduledSparkApplication, SparkApplication,
    SparkApplicationSpec, State,
};

use super::{APPLICATION, schema};

/// Returns a value for every field of a schema.
fn filled(name: &str, schema: &Value) -> Value {
    if let Some(word) = schema["enum"].as_array().and_then(|e| e.last()) {
        return word.clone();
    }
    if schema["x-kubernetes-int-or-string"] == true {
        return json!("7");
    }
    match schema["type"].as_str().unwrap_or_default() {
        "object" => {
            if let Some(properties) = schema["properties"].as_object() {
                let fields = properties.iter().map(|(k, v)| (k.clone(), filled(k, v)));
                return Value::Object(fields.collect());
            }
            json!({ "key": filled(name, &schema["additionalProperties"]) })
        }
        "array" => json!([filled(name, &schema["items"])]),
        "integer" => schema["minimum"]
            .as_i64()
            .filter(|m| *m > 0)
            .map_or(json!(3), |m| json!(m)),
        "number" => json!(0.5),
        "boolean" => json!(true),
        "string" if schema["format"] == "date-time" => json!("2026-05-01T10:00:00Z"),
        "string" => json!(name),
        // Any value.
        _ => json!({ "key": "value" }),
    }
}

/// Collects the paths at which two values differ.
fn differences(path: &str, a: &Value, b: &Value, all: &mut Vec<String>) {
    match (a, b) {
        (Value::Object(x), Value::Object(y)) => {
            for key in x.keys().chain(y.keys().filter(|k| !x.contains_key(*k))) {
                differences(&format!("{path}.{key}"), &a[key], &b[key], all);
            }
        }
        (Value::Array(x), Value::Array(y)) if x.len() == y.len() => {
            for (at, (x, y)) in x.iter().zip(y).enumerate() {
                differences(&format!("{path}[{at}]"), x, y, all);
            }
        }
        _ if a != b => all.push(format!("{path}: {a} {b}")),
        _ => {}
    }
}

#[test]
fn every_field_survives() {
    let root = schema(&APPLICATION);
    let (spec, status) = (
        filled("spec", &root["spec"]),
        filled("status", &root["status"]),
    );
    let stored = json!({
        "apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication",
        "metadata": { "name": "a" }, "spec": spec, "status": status,
    });
    let typed: SparkApplication = serde_json::from_value(stored.clone()).unwrap();
    assert_eq!(typed.spec.volumes.len(), 1);
    for role in [Role::Driver, Role::Executor] {
        let template = typed.spec.role(role).template.as_ref().unwrap();
        assert_eq!(template.unread(""), Vec::<String>::new(), "{role:?}");
    }
    let mut all = Vec::new();
    differences(
        "",
        &stored,
        &serde_json::to_value(&typed).unwrap(),
        &mut all,
    );
    assert_eq!(all, Vec::<String>::new());

    let stored = json!({
        "apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "ScheduledSparkApplication", "metadata": { "name": "a" },
        "spec": {
            "schedule": "@daily", "timeZone": "UTC", "template": spec, "suspend": true, "concurrencyPolicy": "Odd",
            "successfulRunHistoryLimit": 2, "failedRunHistoryLimit": 3,
        },
        "status": {
            "lastRun": "2026-05-01T10:00:00Z", "nextRun": "2026-05-02T10:00:00Z", "lastRunName": "a-1",
            "pastSuccessfulRunNames": ["a-1"], "pastFailedRunNames": ["a-2"], "scheduleState": "Scheduled", "reason": "r",
            "computedFrom": "@daily",
        },
    });
    let typed: ScheduledSparkApplication = serde_json::from_value(stored.clone()).unwrap();
    let mut all = Vec::new();
    differences(
        "",
        &stored,
        &serde_json::to_value(&typed).unwrap(),
        &mut all,
    );
    assert_eq!(all, Vec::<String>::new());
}

/// Returns the smallest value that a schema allows with an element in every list: only required fields, and the objects that
/// contain them.
fn hollow(name: &str, schema: &Value) -> Value {
    let required = |field: &str| {
        let list = schema["required"].as_array();
        list.is_some_and(|list| list.iter().any(|f| f == field))
    };
    match schema["type"].as_str().unwrap_or_default() {
        "object" => {
            let fields = schema["properties"].as_object().into_iter().flatten();
            let fields = fields.filter(|(key, child)| {
                required(key) || ["object", "array"].iter().any(|t| child["type"] == *t)
            });
            Value::Object(fields.map(|(k, v)| (k.clone(), hollow(k, v))).collect())
        }
        "array" => json!([hollow(name, &schema["items"])]),
        "integer" => json!(schema["minimum"].as_i64().unwrap_or(0)),
        _ => filled(name, schema),
    }
}

/// Returns the value with numbers wherever the schema allows them.
fn with_numbers(value: Value) -> Value {
    match value {
        Value::String(text) if text == "7" => json!(7),
        Value::Array(items) => items.into_iter().map(with_numbers).collect(),
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(k, v)| (k, with_numbers(v)));
            Value::Object(fields.collect())
        }
        other => other,
    }
}

#[test]
fn what_the_schema_admits_can_be_read() {
    let root = schema(&APPLICATION);
    for spec in [
        hollow("spec", &root["spec"]),
        with_numbers(filled("spec", &root["spec"])),
    ] {
        let template = &spec["driver"]["template"]["spec"];
        assert!(template["containers"][0].is_object(), "{template}");
        let read: Result<SparkApplicationSpec, _> = serde_json::from_value(spec);
        assert!(read.is_ok(), "{read:?}");
    }
}

#[test]
fn fields_of_templates_that_pods_do_not_have_survive_and_are_named() {
    let template = json!({
        "metadata": {
            "labels": { "a": "b" }, "creationTimestamp": null, "finalizers": "odd", "generation": "odd", "annotations": {},
        },
        "spec": {
            "securityContext": { "capabilities": { "drop": ["ALL"] }, "runAsUser": 185, "allowPrivilegeEscalation": false },
            "containers": [{ "name": "a" }, { "name": "b", "env": [{ "name": "X", "valueFrom": { "odd": 1 } }] }],
            "ephemeralContainers": "odd", "priority": null, "unset": {}, "no": [],
        },
        "status": { "phase": "Running" },
    });
    let spec = json!({
        "sparkVersion": "4.0.5", "mainApplicationFile": "x", "driver": { "template": template }, "executor": {},
    });
    let typed: SparkApplicationSpec = serde_json::from_value(spec.clone()).unwrap();
    assert_eq!(serde_json::to_value(&typed).unwrap(), spec);
    let template = typed.driver.pod.template.unwrap();
    let mut unread = template.unread("t");
    unread.sort();
    let expected = [
        "t.metadata.finalizers",
        "t.metadata.generation",
        "t.spec.containers[1].env[0].valueFrom.odd",
        "t.spec.ephemeralContainers",
        "t.spec.securityContext.allowPrivilegeEscalation",
        "t.spec.securityContext.capabilities",
        "t.status",
    ];
    assert_eq!(unread, expected);
    let pod = template.spec.as_ref().unwrap();
    let context = pod.security_context.as_ref().unwrap();
    assert_eq!(context.run_as_user, Some(185));
    assert_eq!(pod.containers.len(), 2);
}

#[test]
fn a_status_of_the_existing_operator_is_read_with_its_nulls() {
    let status = json!({
        "driverInfo": {}, "lastSubmissionAttemptTime": null, "terminationTime": null,
        "applicationState": { "state": "SUBMITTED" }, "executorState": { "a": "PENDING", "b": "LOST" },
    });
    let app = json!({
        "apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication", "metadata": { "name": "a" },
        "spec": { "sparkVersion": "4.0.5", "mainApplicationFile": "x", "driver": {}, "executor": {} },
        "status": status,
    });
    let app: SparkApplication = serde_json::from_value(app).unwrap();
    let status = app.status.unwrap();
    assert_eq!(status.application_state.state, State::Submitted);
    assert_eq!(status.termination_time, None);
    assert_eq!(status.executor_state["a"], ExecutorState::Pending);
    assert_eq!(
        status.executor_state["b"],
        ExecutorState::Other("LOST".to_owned())
    );
}

#[test]
fn every_published_word_is_known_and_others_stay_as_they_are() {
    for state in State::ALL {
        let text = serde_json::to_value(&state).unwrap();
        assert_eq!(text, state.as_str());
        assert_eq!(serde_json::from_value::<State>(text).unwrap(), state);
        assert_eq!(
            state.is_terminal(),
            ["COMPLETED", "FAILED"].contains(&state.as_str())
        );
    }
    let odd: State = serde_json::from_value(json!("PAUSED")).unwrap();
    assert_eq!((odd.as_str(), odd.is_terminal()), ("PAUSED", false));
    assert_eq!(serde_json::to_value(odd).unwrap(), "PAUSED");
    for state in ExecutorState::ALL {
        assert_eq!(ExecutorState::from(state.as_str().to_owned()), state);
    }
    for state in ScheduleState::ALL {
        assert_eq!(ScheduleState::from(state.as_str().to_owned()), state);
    }
    assert_eq!(
        ScheduleState::from("x".to_owned()),
        ScheduleState::Other("x".to_owned())
    );
}
