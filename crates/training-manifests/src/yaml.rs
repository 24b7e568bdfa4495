//! Writes YAML in the usual order of manifests: `apiVersion`, `kind` and the like first, all other keys alphabetically.

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::Value;

/// The first line of every generated file.
pub const HEADER: &str =
    "# Generated from the types by `cargo run -p training-manifests -- generate`; don't edit.\n";

const FIRST: &[&str] = &["apiVersion", "kind", "metadata", "name", "type", "spec"];

struct Ordered<'a>(&'a Value);

impl Serialize for Ordered<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Object(object) => {
                let mut entries: Vec<_> = object.iter().collect();
                entries.sort_by_key(|(key, _)| {
                    (
                        FIRST
                            .iter()
                            .position(|first| first == key)
                            .unwrap_or(FIRST.len()),
                        *key,
                    )
                });
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                for (key, value) in entries {
                    map.serialize_entry(key, &Ordered(value))?;
                }
                map.end()
            }
            Value::Array(items) => {
                let mut list = serializer.serialize_seq(Some(items.len()))?;
                for item in items {
                    list.serialize_element(&Ordered(item))?;
                }
                list.end()
            }
            // Bounds in a schema are floats in Kubernetes' types, but are written as integers.
            Value::Number(number) => match number.as_f64() {
                Some(float) if !number.is_i64() && !number.is_u64() && float.fract() == 0.0 => {
                    #[allow(clippy::cast_possible_truncation)] // Bounds of 64-bit integers at most.
                    serializer.serialize_i64(float as i64)
                }
                _ => number.serialize(serializer),
            },
            other => other.serialize(serializer),
        }
    }
}

/// Formats one or more documents with the header.
///
/// # Errors
/// If the YAML writer refuses a value.
pub fn documents(objects: &[Value]) -> anyhow::Result<String> {
    let mut text = HEADER.to_owned();
    for (index, object) in objects.iter().enumerate() {
        if index > 0 {
            text.push_str("---\n");
        }
        text.push_str(&document(object)?);
    }
    Ok(text)
}

/// Formats one document without the header.
///
/// # Errors
/// If the YAML writer refuses a value.
pub fn document(object: &Value) -> anyhow::Result<String> {
    let mut text = serde_saphyr::to_string(&Ordered(object))?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}
