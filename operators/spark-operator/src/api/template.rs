//! Pod templates, with fields that Kubernetes doesn't have.

use std::ops::Deref;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde::de::{self, Deserializer};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The fields of a template's metadata that have an effect or a schema.
pub const METADATA: [&str; 4] = ["annotations", "labels", "name", "namespace"];

/// A pod template. As published, it may have fields that pods don't have: they are stored, and have no effect.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Template {
    // Boxed: the type is over 2 KB even when empty.
    known: Box<PodTemplateSpec>,
    /// The whole template, if it has other fields as well. A schedule passes it on to its applications.
    stored: Option<Value>,
}

impl Template {
    /// Lists the fields that the operator doesn't read, in a template at this path.
    pub fn unread(&self, path: &str) -> Vec<String> {
        let mut all = Vec::new();
        if let Some(stored) = &self.stored {
            let known = serde_json::to_value(&self.known).unwrap_or_default();
            lost(path, stored, &known, &mut all);
        }
        all
    }
}

impl Deref for Template {
    type Target = PodTemplateSpec;

    fn deref(&self) -> &PodTemplateSpec {
        &self.known
    }
}

impl<'de> Deserialize<'de> for Template {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let stored = Value::deserialize(deserializer)?;
        let known = serde_json::from_value(validated(stored.clone())).map_err(de::Error::custom)?;
        let mut template = Self {
            known,
            stored: Some(stored),
        };
        if template.unread("").is_empty() {
            template.stored = None;
        }
        Ok(template)
    }
}

impl Serialize for Template {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.stored {
            Some(stored) => stored.serialize(serializer),
            None => self.known.serialize(serializer),
        }
    }
}

/// Returns the part of a template that the schema validates. Other fields may have values of any type.
fn validated(mut template: Value) -> Value {
    if let Some(Value::Object(metadata)) = template.get_mut("metadata") {
        metadata.retain(|key, _| METADATA.contains(&key.as_str()));
    }
    if let Some(Value::Object(spec)) = template.get_mut("spec") {
        spec.remove("ephemeralContainers");
    }
    template
}

/// Collects the paths of fields that are stored but not known.
fn lost(path: &str, stored: &Value, known: &Value, all: &mut Vec<String>) {
    match (stored, known) {
        (Value::Object(stored), Value::Object(known)) => {
            for (key, value) in stored {
                let path = format!("{path}.{key}");
                match known.get(key) {
                    Some(known) => lost(&path, value, known, all),
                    None if says_nothing(value) => {}
                    None => all.push(path),
                }
            }
        }
        (Value::Array(stored), Value::Array(known)) => {
            for (at, (stored, known)) in stored.iter().zip(known).enumerate() {
                lost(&format!("{path}[{at}]"), stored, known, all);
            }
        }
        _ => {}
    }
}

/// True for what clients write for unset fields.
fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}
