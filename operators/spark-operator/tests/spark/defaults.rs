//! Defaults for unset fields of an application.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::{Value, json};
use spark_operator::api::SparkApplicationSpec;
use spark_operator::defaults;

fn spec(more: &Value) -> SparkApplicationSpec {
    let mut spec = json!({
        "sparkVersion": "4.0.5", "mainApplicationFile": "local:///a.py", "driver": {}, "executor": {},
    });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    serde_json::from_value(spec).unwrap()
}

fn filled(more: &Value) -> SparkApplicationSpec {
    defaults::apply(&spec(more), &BTreeMap::new()).into_owned()
}

#[test]
fn an_application_without_a_word_gets_the_published_defaults() {
    let out = filled(&json!({}));
    assert_eq!(out.type_.as_deref(), Some("Scala"));
    assert_eq!(out.mode.as_deref(), Some("cluster"));
    let policy = out.restart_policy.unwrap();
    assert_eq!(policy.type_.as_deref(), Some("Never"));
    assert_eq!(policy.on_failure_retry_interval, None);
    assert_eq!(policy.on_submission_failure_retry_interval, None);
    assert_eq!(
        (out.driver.pod.cores, out.driver.pod.memory.as_deref()),
        (Some(1), Some("1g"))
    );
    assert_eq!(
        (out.executor.pod.cores, out.executor.pod.memory.as_deref()),
        (Some(1), Some("1g"))
    );
    assert_eq!(out.executor.instances, Some(1));
}

#[test]
fn what_is_said_stays_and_is_not_copied() {
    let full = filled(
        &json!({ "type": "R", "restartPolicy": { "type": "Always", "onFailureRetryInterval": 7 } }),
    );
    assert!(matches!(
        defaults::apply(&full, &BTreeMap::new()),
        Cow::Borrowed(_)
    ));
    let policy = full.restart_policy.unwrap();
    assert_eq!(policy.on_failure_retry_interval, Some(7));
    assert_eq!(policy.on_submission_failure_retry_interval, Some(5));
    assert_eq!(full.type_.as_deref(), Some("R"));
}

#[test]
fn properties_count_as_said() {
    let keys = [
        "spark.driver.cores",
        "spark.driver.memory",
        "spark.executor.cores",
        "spark.executor.memory",
        "spark.executor.instances",
    ];
    let conf: BTreeMap<String, String> = keys
        .iter()
        .map(|k| ((*k).to_owned(), "2".to_owned()))
        .collect();
    let of = |spec: &SparkApplicationSpec| {
        (
            spec.driver.pod.cores,
            spec.driver.pod.memory.clone(),
            spec.executor.pod.cores,
            spec.executor.pod.memory.clone(),
            spec.executor.instances,
        )
    };
    let unset = (None, None, None, None, None);
    assert_eq!(of(&filled(&json!({ "sparkConf": conf }))), unset);
    let plain = spec(&json!({}));
    assert_eq!(
        of(&defaults::apply(&plain, &conf)),
        unset,
        "for all applications"
    );
}

#[test]
fn with_dynamic_allocation_the_number_of_executors_stays_open() {
    let out = filled(&json!({ "dynamicAllocation": { "enabled": true } }));
    assert_eq!(out.executor.instances, None);
    assert_eq!(
        out.dynamic_allocation.unwrap().shuffle_tracking_enabled,
        Some(true)
    );
    let out = filled(&json!({ "sparkConf": { "spark.dynamicAllocation.enabled": "true" } }));
    assert_eq!(out.executor.instances, None);
    let out = filled(&json!({ "dynamicAllocation": { "enabled": false } }));
    assert_eq!(out.executor.instances, Some(1));
    assert_eq!(
        out.dynamic_allocation.unwrap().shuffle_tracking_enabled,
        None
    );
}
