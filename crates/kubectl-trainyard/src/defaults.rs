//! Applies the defaults of the CRD schema, as the API server does when it stores a job.

use anyhow::{Context as _, Result};
use serde_json::{Map, Value};

use crate::kinds::Kind;

/// Returns the manifest with the defaults of its CRD version.
pub fn stored(kind: &Kind, mut manifest: Value) -> Result<Value> {
    let definition = (kind.definition)()?;
    let mut versions = definition.spec.versions.iter();
    let version = versions.find(|v| v.name == kind.resource.version);
    let version = version
        .with_context(|| format!("{} has no version {}", kind.name(), kind.resource.version))?;
    let schema = version
        .schema
        .as_ref()
        .and_then(|s| s.open_api_v3_schema.as_ref());
    fill(&mut manifest, &serde_json::to_value(schema)?);
    Ok(manifest)
}

/// Sets the default of every field that is absent or null. Source: the Kubernetes documentation of defaulting.
fn fill(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(object) => {
            let none = Map::new();
            let properties = schema["properties"].as_object().unwrap_or(&none);
            for (key, schema) in properties {
                if let Some(default) = schema.get("default")
                    && object.get(key).is_none_or(Value::is_null)
                {
                    object.insert(key.clone(), default.clone());
                }
            }
            for (key, inner) in object {
                let of = properties
                    .get(key)
                    .unwrap_or(&schema["additionalProperties"]);
                fill(inner, of);
            }
        }
        Value::Array(items) => {
            for item in items {
                fill(item, &schema["items"]);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_are_filled_in_at_every_depth_and_replace_nothing() {
        let schema = json!({ "properties": {
            "a": { "default": 1 }, "b": { "default": 2 },
            "deep": { "properties": { "c": { "default": "x" } } },
            "map": { "additionalProperties": { "properties": { "d": { "default": true } } } },
            "list": { "items": { "properties": { "e": { "default": [] } } } },
            "absent": { "properties": { "f": { "default": 1 } } },
        } });
        let mut value = json!({ "a": 7, "b": null, "deep": {}, "map": { "k": {} }, "list": [{}, { "e": [1] }] });
        fill(&mut value, &schema);
        let filled = json!({
            "a": 7, "b": 2, "deep": { "c": "x" }, "map": { "k": { "d": true } }, "list": [{ "e": [] }, { "e": [1] }],
        });
        assert_eq!(value, filled);
    }

    #[test]
    fn defaults_depend_on_the_version_of_an_mpi_job() {
        for version in ["v1", "v2beta1"] {
            let manifest = json!({ "apiVersion": format!("kubeflow.org/{version}"), "kind": "MPIJob", "spec": {} });
            let kind = crate::kinds::of_manifest(&manifest).unwrap();
            let spec = stored(&kind, manifest).unwrap()["spec"].clone();
            let spec = spec.as_object().unwrap();
            assert!(spec.values().any(|v| v == version), "{spec:?}");
        }
    }
}
