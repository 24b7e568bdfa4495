//! Checks that our types can decode everything that the schema accepts: generates instances from the schema and decodes them.

// Clippy takes only functions marked as tests for tests, not their helpers.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;

use jax_operator::JAXJob;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use mpi_operator::MPIJob;
use paddle_operator::PaddleJob;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::select;
use pytorch_operator::{PyTorchJob, api};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use spark_operator::api::{
    ScheduledSparkApplication, SparkApplication, application_crd, scheduled_crd,
};
use tf_operator::TFJob;
use xgboost_operator::XGBoostJob;

/// Generates instances that are valid by types, formats, bounds, enums and required fields of the schema.
fn instances(schema: &Value) -> BoxedStrategy<Value> {
    if let Some(values) = schema["enum"].as_array() {
        return select(values.clone()).boxed();
    }
    if schema["x-kubernetes-int-or-string"] == true {
        let quantities = ["1", "-1Gi", "1.5", ".5", "1e999", "100m", "+3E2"].map(Value::from);
        return prop_oneof![integers(schema), select(quantities.to_vec())].boxed();
    }
    match schema["type"]
        .as_str()
        .expect("every other schema has a type")
    {
        "object" => objects(schema),
        "array" => {
            let min = schema["minItems"]
                .as_u64()
                .map_or(0, |min| usize::try_from(min).unwrap());
            vec(instances(&schema["items"]), min..min + 2)
                .prop_map(Value::from)
                .boxed()
        }
        "string" => strings(schema),
        "integer" => integers(schema),
        "number" => any::<i32>().prop_map(|n| json!(f64::from(n) / 8.0)).boxed(),
        "boolean" => any::<bool>().prop_map(Value::from).boxed(),
        other => panic!("a type that no schema has: {other}"),
    }
}

fn integers(schema: &Value) -> BoxedStrategy<Value> {
    // Integers in the schema are floats in Kubernetes' types.
    #[allow(clippy::cast_possible_truncation)]
    let bound =
        |key: &str, otherwise: i64| schema[key].as_f64().map_or(otherwise, |bound| bound as i64);
    let (min, max) = (bound("minimum", i64::MIN), bound("maximum", i64::MAX));
    prop_oneof![Just(min), Just(max), min..=max]
        .prop_map(Value::from)
        .boxed()
}

fn strings(schema: &Value) -> BoxedStrategy<Value> {
    if schema["format"] == "date-time" {
        let times = [
            "2026-01-02T03:04:05Z",
            "0000-01-01T00:00:00z",
            "9899-12-31t23:59:59.999999999+23:59",
            "2024-02-29T00:00:00.1-00:00",
        ];
        let pattern = schema["pattern"].as_str().expect("times have a pattern");
        assert!(pattern.contains("9[0-8]"), "the samples know the pattern");
        return select(times.map(Value::from).to_vec()).boxed();
    }
    if schema["minLength"] == 1 {
        return "[a-z]{1,8}".prop_map(Value::from).boxed();
    }
    if schema.get("maxLength").is_some() {
        return select(["", "a", "7"].map(Value::from).to_vec()).boxed();
    }
    "[ -~\u{e9}\u{4e2d}\n]{0,6}".prop_map(Value::from).boxed()
}

fn objects(schema: &Value) -> BoxedStrategy<Value> {
    if let Some(values) = schema.get("additionalProperties") {
        return btree_map("[A-Za-z]{1,6}", instances(values), 0..3)
            .prop_map(|map| Value::Object(map.into_iter().collect()))
            .boxed();
    }
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    let properties: BTreeMap<String, BoxedStrategy<Option<Value>>> = schema["properties"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, property)| {
            let values = instances(property);
            let values = if required.iter().any(|field| field == name) {
                values.prop_map(Some).boxed()
            } else {
                // Only some fields: a pod template has more than a thousand.
                proptest::option::weighted(0.3, values).boxed()
            };
            (name.clone(), values)
        })
        .collect();
    let (names, values): (Vec<_>, Vec<_>) = properties.into_iter().unzip();
    values
        .prop_map(move |values| {
            let fields = names.iter().cloned().zip(values);
            Value::Object(
                fields
                    .filter_map(|(name, value)| Some((name, value?)))
                    .collect::<Map<_, _>>(),
            )
        })
        .boxed()
}

/// Decodes instances of a version of a CRD with the kind's types.
fn all_can_be_read<K: DeserializeOwned>(crd: &CustomResourceDefinition, cases: u32) {
    let crd = serde_json::to_value(crd).unwrap();
    for version in crd["spec"]["versions"].as_array().unwrap() {
        let config = ProptestConfig {
            cases,
            failure_persistence: None,
            max_shrink_iters: 200,
            ..ProptestConfig::default()
        };
        let instances = instances(&version["schema"]["openAPIV3Schema"]);
        proptest!(config, |(mut object in instances)| {
            object["metadata"] = json!({ "name": "job" });
            let text = serde_json::to_string(&object).unwrap();
            let read = serde_json::from_str::<K>(&text);
            let error = read.err().map(|e| e.to_string());
            prop_assert!(error.is_none(), "{}: {text}", error.unwrap());
        });
    }
}

#[test]
fn i_43_what_the_schema_accepts_can_be_read() {
    all_can_be_read::<PyTorchJob>(&api::crd().unwrap(), 200);
}

// Their templates are the same as a PyTorchJob's.
#[test]
fn i_43_what_the_schemas_of_the_other_jobs_accept_can_be_read() {
    all_can_be_read::<TFJob>(&tf_operator::api::crd().unwrap(), 25);
    all_can_be_read::<XGBoostJob>(&xgboost_operator::api::crd().unwrap(), 25);
    all_can_be_read::<PaddleJob>(&paddle_operator::api::crd().unwrap(), 25);
    all_can_be_read::<JAXJob>(&jax_operator::api::crd().unwrap(), 25);
    all_can_be_read::<MPIJob>(&mpi_operator::api::crd().unwrap(), 25);
}

#[test]
fn i_43_what_the_schemas_of_spark_accept_can_be_read() {
    let (application, scheduled) = (application_crd().unwrap(), scheduled_crd().unwrap());
    all_can_be_read::<SparkApplication>(&application, 40);
    all_can_be_read::<ScheduledSparkApplication>(&scheduled, 20);
}

#[test]
fn what_we_write_is_what_we_read() {
    let crd = serde_json::to_value(api::crd().unwrap()).unwrap();
    let status = crd
        .pointer("/spec/versions/0/schema/openAPIV3Schema/properties/status")
        .unwrap();
    let config = ProptestConfig {
        cases: 500,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    proptest!(config, |(object in instances(status))| {
        // The first write truncates times to whole seconds and drops empty maps; further round trips change nothing.
        let read: training_api::JobStatus = serde_json::from_value(object).unwrap();
        let written = serde_json::to_value(&read).unwrap();
        let again: training_api::JobStatus = serde_json::from_value(written.clone()).unwrap();
        prop_assert_eq!(serde_json::to_value(&again).unwrap(), written);
    });
}
