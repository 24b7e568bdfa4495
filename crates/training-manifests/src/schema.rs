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
    with(schema, true)
}

/// `strict` schemas say which fields an object may have. Those within `anyOf` and the like only add conditions.
fn with(schema: &Map<String, Value>, strict: bool) -> Value {
    let holds = |key: &str| schema.get(key) == Some(&Value::Bool(true));
    let of = |value: &Value, strict: bool| {
        let object = value.as_object();
        object.map_or_else(|| value.clone(), |schema| with(schema, strict))
    };
    let mut out = Map::new();
    for (key, value) in schema {
        let value = match key.as_str() {
            // Rules of CEL, list types, and the like.
            key if key.starts_with("x-kubernetes-") || key == "nullable" => continue,
            "anyOf" | "oneOf" if holds(INT_OR_STRING) => continue,
            "properties" => {
                let all = value.as_object().into_iter().flatten();
                Value::Object(
                    all.map(|(key, one)| (key.clone(), of(one, strict)))
                        .collect(),
                )
            }
            "items" | "additionalProperties" => of(value, strict),
            "not" => of(value, false),
            "anyOf" | "allOf" | "oneOf" => {
                let all = value.as_array().into_iter().flatten();
                Value::Array(all.map(|one| of(one, false)).collect())
            }
            _ => value.clone(),
        };
        out.insert(key.clone(), value);
    }
    let open = holds(PRESERVE) || holds(EMBEDDED) || out.contains_key("additionalProperties");
    if strict && out.contains_key("properties") && !open {
        out.insert("additionalProperties".to_owned(), json!(false));
    }
    if holds(INT_OR_STRING) {
        out.insert("type".to_owned(), json!(["integer", "string"]));
    }
    if holds("nullable") {
        if let Some(known) = out.get_mut("type") {
            let mut all = match known.take() {
                Value::Array(all) => all,
                one => vec![one],
            };
            all.push(json!("null"));
            *known = Value::Array(all);
        }
        if let Some(Value::Array(values)) = out.get_mut("enum") {
            values.push(Value::Null);
        }
    }
    Value::Object(out)
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
                "policy": { "type": "string", "nullable": true, "enum": ["A"] },
                "labels": { "type": "object", "additionalProperties": { "type": "string" } },
                "parts": { "type": "array", "nullable": true, "items": { "type": "object", "properties": { "a": {} } } },
                "any": { "type": "object", "properties": {}, "x-kubernetes-preserve-unknown-fields": true },
            },
            "x-kubernetes-validations": [{ "rule": "true" }],
            "anyOf": [{ "properties": { "any": { "minProperties": 1 } } }],
        });
        let expected = json!({
            "type": "object",
            "properties": {
                "port": { "type": ["integer", "string"] },
                "policy": { "type": ["string", "null"], "enum": ["A", null] },
                "labels": { "type": "object", "additionalProperties": { "type": "string" } },
                "parts": {
                    "type": ["array", "null"],
                    "items": { "type": "object", "properties": { "a": {} }, "additionalProperties": false },
                },
                "any": { "type": "object", "properties": {} },
            },
            "additionalProperties": false,
            "anyOf": [{ "properties": { "any": { "minProperties": 1 } } }],
        });
        assert_eq!(converted(schema.as_object().unwrap()), expected);
    }

    /// Returns the first field that a schema doesn't know.
    fn unknown(schema: &Value, value: &Value, path: &str) -> Option<String> {
        match value {
            Value::Object(fields) => fields.iter().find_map(|(key, value)| {
                let path = format!("{path}.{key}");
                let of = &schema["properties"][key];
                match &schema["additionalProperties"] {
                    _ if !of.is_null() => unknown(of, value, &path),
                    Value::Bool(false) => Some(path),
                    other => unknown(other, value, &path),
                }
            }),
            Value::Array(values) => {
                let mut values = values.iter();
                values.find_map(|value| unknown(&schema["items"], value, path))
            }
            _ => None,
        }
    }

    #[test]
    fn schemas_know_the_fields_of_all_examples_and_no_others() {
        let files = files(&operator::all().unwrap()).unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut paths = crate::tree::files_below(&root.join("examples")).unwrap();
        paths.retain(|path| {
            path.extension()
                .is_some_and(|extension| extension == "yaml")
        });
        let mut known = 0;
        for path in paths {
            let text = std::fs::read_to_string(&path).unwrap();
            let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
            for mut document in documents {
                let kind = document["kind"].as_str().unwrap().to_lowercase();
                let version = document["apiVersion"].as_str().unwrap().to_owned();
                let Some((group, version)) = version.split_once('/') else {
                    continue;
                };
                let Some(schema) =
                    files.get(&Path::new(group).join(format!("{kind}_{version}.json")))
                else {
                    continue;
                };
                let schema: Value = serde_json::from_str(schema).unwrap();
                assert_eq!(unknown(&schema, &document, ""), None, "{}", path.display());
                document["spec"]["Typo"] = json!(1);
                let typo = unknown(&schema, &document, "");
                assert_eq!(typo.as_deref(), Some(".spec.Typo"), "{}", path.display());
                known += 1;
            }
        }
        assert!(known > 10, "{known}");
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
