//! Defaults for unset fields of an application. Source: the published defaults.
//!
//! The schema has the unconditional ones too. This applies all of them to a copy, for objects stored without them or by another
//! operator. The stored spec is never written.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::api::{RestartPolicy, SparkApplicationSpec};

/// The default retry interval. Units: seconds.
pub const RETRY_INTERVAL: i64 = 5;

/// True if Spark adds and removes executors by itself.
pub fn allocates_dynamically(spec: &SparkApplicationSpec) -> bool {
    match &spec.dynamic_allocation {
        Some(block) => block.enabled == Some(true),
        None => spec
            .spark_conf
            .get("spark.dynamicAllocation.enabled")
            .is_some_and(|flag| flag.trim().eq_ignore_ascii_case("true")),
    }
}

/// Returns the spec with its defaults. The operator's default properties count as set.
pub fn apply<'a>(
    spec: &'a SparkApplicationSpec,
    operator: &BTreeMap<String, String>,
) -> Cow<'a, SparkApplicationSpec> {
    let mut out = Cow::Borrowed(spec);
    let said = |key: &str| spec.spark_conf.contains_key(key) || operator.contains_key(key);
    if spec.type_.as_ref().is_none_or(String::is_empty) {
        out.to_mut().type_ = Some("Scala".to_owned());
    }
    if spec.mode.as_ref().is_none_or(String::is_empty) {
        out.to_mut().mode = Some("cluster".to_owned());
    }
    restarts(&mut out);
    if spec.driver.pod.cores.is_none() && !said("spark.driver.cores") {
        out.to_mut().driver.pod.cores = Some(1);
    }
    if spec.driver.pod.memory.is_none() && !said("spark.driver.memory") {
        out.to_mut().driver.pod.memory = Some("1g".to_owned());
    }
    if spec.executor.pod.cores.is_none() && !said("spark.executor.cores") {
        out.to_mut().executor.pod.cores = Some(1);
    }
    if spec.executor.pod.memory.is_none() && !said("spark.executor.memory") {
        out.to_mut().executor.pod.memory = Some("1g".to_owned());
    }
    if allocates_dynamically(spec) {
        if let Some(block) = &spec.dynamic_allocation
            && block.shuffle_tracking_enabled.is_none()
        {
            let mut block = block.clone();
            block.shuffle_tracking_enabled = Some(true);
            out.to_mut().dynamic_allocation = Some(block);
        }
    } else if spec.executor.instances.is_none() && !said("spark.executor.instances") {
        out.to_mut().executor.instances = Some(1);
    }
    out
}

fn restarts(out: &mut Cow<'_, SparkApplicationSpec>) {
    let mut policy = out.restart_policy.clone().unwrap_or_default();
    let type_ = policy.type_.take().filter(|t| !t.is_empty());
    let type_ = type_.unwrap_or_else(|| "Never".to_owned());
    if type_ != "Never" {
        policy
            .on_failure_retry_interval
            .get_or_insert(RETRY_INTERVAL);
        policy
            .on_submission_failure_retry_interval
            .get_or_insert(RETRY_INTERVAL);
    }
    let policy = RestartPolicy {
        type_: Some(type_),
        ..policy
    };
    if out.restart_policy.as_ref() != Some(&policy) {
        out.to_mut().restart_policy = Some(policy);
    }
}
