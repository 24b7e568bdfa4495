//! The custom resources.

mod crd;
mod round_trip;

use std::sync::LazyLock;

use serde_json::Value;
use spark_operator::api::{application_crd, scheduled_crd};

/// Built once, because it takes a while without optimization.
static APPLICATION: LazyLock<Value> =
    LazyLock::new(|| serde_json::to_value(application_crd().unwrap()).unwrap());
static SCHEDULED: LazyLock<Value> =
    LazyLock::new(|| serde_json::to_value(scheduled_crd().unwrap()).unwrap());

/// The properties of the schema.
fn schema(crd: &Value) -> &Value {
    &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
}
