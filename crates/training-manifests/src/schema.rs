//! JSON schemas of the kinds, for editors and for checks of manifests without a cluster.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::{Map, Value, json};

use crate::operator::Operator;

/// What the schemas follow: editors know it best.
const DRAFT: &str = "http://json-schema.org/draft-07/schema#";
/// A field whose value is a number or a text, such as a port.
const INT_OR_STRING: &str = "x-kubernetes-int-or-string";
/// An object whose further fields the API server keeps.
const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
/// A whole object within another one, with fields that its schema doesn't list.
const EMBEDDED: &str = "x-kubernetes-embedded-resource";

/// Writes the schema of each served version of each kind below a directory, as `<group>/<kind>_<version>.json`, both in lower case.
///
/// # Errors
/// If a file can't be written, or a CRD has no schema.
pub fn write(directory: &Path, operators: &[Operator]) -> anyhow::Result<()> {
    crate::write_all(directory, &files(operators)?)
}

fn files(operators: &[Operator]) -> anyhow::Result<BTreeMap<PathBuf, String>> {
    let mut files = BTreeMap::new();
    for kind in operators.iter().flat_map(|operator| &operator.kinds) {
        let versions = kind.crd["spec"]["versions"].as_array();
        for version in versions.into_iter().flatten() {
            let name = version["name"].as_str().context("a version has no name")?;
            let schema = &version["schema"]["openAPIV3Schema"];
            let schema = schema.as_object().context("a version has no schema")?;
            let mut schema = converted(schema);
            schema["properties"]["apiVersion"] =
                json!({ "const": format!("{}/{name}", kind.group) });
            schema["properties"]["kind"] = json!({ "const": kind.name });
            schema["properties"]["metadata"] = json!({ "type": "object" });
            schema["required"] = json!(["apiVersion", "kind", "metadata", "spec"]);
            schema["$schema"] = json!(DRAFT);
            let file = format!("{}_{name}.json", kind.name.to_lowercase());
            let text = serde_json::to_string(&schema)? + "\n";
            files.insert(Path::new(&kind.group).join(file), text);
        }
    }
    Ok(files)
}

/// Converts a schema of a CRD. Unknown fields are errors, as for `kubectl apply --validate=strict`.
fn converted(schema: &Map<String, Value>) -> Value {
    let holds = |key: &str| schema.get(key) == Some(&Value::Bool(true));
    let mut out = Map::new();
    for (key, value) in schema {
        let value = match key.as_str() {
            // Rules of CEL, list types, and the like.
            key if key.starts_with("x-kubernetes-") || key == "nullable" => continue,
            "properties" => of_each(value),
            "items" | "additionalProperties" | "not" => of_one(value),
            "anyOf" | "allOf" | "oneOf" => {
                let all = value.as_array().into_iter().flatten();
                Value::Array(all.map(of_one).collect())
            }
            _ => value.clone(),
        };
        out.insert(key.clone(), value);
    }
    let open = holds(PRESERVE) || holds(EMBEDDED) || out.contains_key("additionalProperties");
    if out.contains_key("properties") && !open {
        out.insert("additionalProperties".to_owned(), json!(false));
    }
    if holds(INT_OR_STRING) {
        out.insert("type".to_owned(), json!(["integer", "string"]));
    }
    if holds("nullable")
        && let Some(known) = out.get("type").cloned()
    {
        let mut all = match known {
            Value::Array(all) => all,
            one => vec![one],
        };
        all.push(json!("null"));
        out.insert("type".to_owned(), Value::Array(all));
    }
    Value::Object(out)
}

fn of_one(schema: &Value) -> Value {
    schema.as_object().map_or_else(|| schema.clone(), converted)
}

fn of_each(schemas: &Value) -> Value {
    let all = schemas.as_object().into_iter().flatten();
    Value::Object(all.map(|(key, one)| (key.clone(), of_one(one))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator;

    #[test]
    fn extensions_of_kubernetes_become_json_schema() {
        let schema = json!({
            "type": "object",
            "properties": {
                "port": { "x-kubernetes-int-or-string": true, "anyOf": [{ "type": "integer" }, { "type": "string" }] },
                "labels": { "type": "object", "additionalProperties": { "type": "string" } },
                "parts": { "type": "array", "nullable": true, "items": { "type": "object", "properties": { "a": {} } } },
                "any": { "type": "object", "properties": {}, "x-kubernetes-preserve-unknown-fields": true },
            },
            "x-kubernetes-validations": [{ "rule": "true" }],
        });
        let expected = json!({
            "type": "object",
            "properties": {
                "port": { "type": ["integer", "string"], "anyOf": [{ "type": "integer" }, { "type": "string" }] },
                "labels": { "type": "object", "additionalProperties": { "type": "string" } },
                "parts": {
                    "type": ["array", "null"],
                    "items": { "type": "object", "properties": { "a": {} }, "additionalProperties": false },
                },
                "any": { "type": "object", "properties": {} },
            },
            "additionalProperties": false,
        });
        assert_eq!(of_one(&schema), expected);
    }

    #[test]
    fn every_served_version_of_every_kind_has_a_schema() {
        let files = files(&operator::all().unwrap()).unwrap();
        let names: Vec<String> = files.keys().map(|p| p.display().to_string()).collect();
        let expected = [
            "kubeflow.org/jaxjob_v1.json",
            "kubeflow.org/mpijob_v1.json",
            "kubeflow.org/mpijob_v2beta1.json",
            "kubeflow.org/paddlejob_v1.json",
            "kubeflow.org/pytorchjob_v1.json",
            "kubeflow.org/tfjob_v1.json",
            "kubeflow.org/xgboostjob_v1.json",
            "sparkoperator.k8s.io/scheduledsparkapplication_v1beta2.json",
            "sparkoperator.k8s.io/sparkapplication_v1beta2.json",
        ];
        assert_eq!(names, expected);
    }
}
