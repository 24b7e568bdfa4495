//! Decodes each object separately, so that an unreadable one does not hide the others.
//!
//! kube's own guard copies the whole object, managed fields included, before it decodes it; as the watch shows a job at every status
//! write, that was most of the cost of its events. This one skips unused fields while reading.

use std::borrow::Cow;
use std::fmt;

use kube::Resource;
use kube::core::ObjectMeta;
use serde::de::{DeserializeOwned, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, de};
use serde_json::{Map, Value};

/// The annotation from which `kubectl apply` computes its patches; as large as the object itself.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// An object, or the error and metadata of one that can't be decoded.
#[derive(Debug, Clone)]
pub struct Guarded<K>(pub Result<K, Unreadable>);

/// An object that can't be decoded.
#[derive(Debug, Clone)]
pub struct Unreadable {
    /// The decoding error.
    pub error: String,
    /// Its metadata, without managed fields.
    pub metadata: ObjectMeta,
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Guarded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = deserializer.deserialize_map(Tree(Part::Object))?;
        let metadata = object.get("metadata").cloned().unwrap_or_default();
        match K::deserialize(Value::Object(object)) {
            Ok(object) => Ok(Self(Ok(object))),
            Err(error) => Ok(Self(Err(Unreadable {
                error: error.to_string(),
                metadata: ObjectMeta::deserialize(metadata).map_err(de::Error::custom)?,
            }))),
        }
    }
}

impl<K: Resource> Resource for Guarded<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dt: &K::DynamicType) -> Cow<'_, str> {
        K::kind(dt)
    }

    fn group(dt: &K::DynamicType) -> Cow<'_, str> {
        K::group(dt)
    }

    fn version(dt: &K::DynamicType) -> Cow<'_, str> {
        K::version(dt)
    }

    fn plural(dt: &K::DynamicType) -> Cow<'_, str> {
        K::plural(dt)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.as_ref().map_or_else(|e| &e.metadata, K::meta)
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0
            .as_mut()
            .map_or_else(|e| &mut e.metadata, K::meta_mut)
    }
}

/// The map being read.
#[derive(Clone, Copy)]
enum Part {
    Object,
    Metadata,
    Annotations,
}

impl Part {
    /// Returns whether the value of this key is never read.
    fn skips(self, key: &str) -> bool {
        match self {
            Self::Object => false,
            Self::Metadata => key == "managedFields",
            Self::Annotations => key == LAST_APPLIED,
        }
    }

    /// Returns the map of this key, if it has values to skip as well.
    fn inner(self, key: &str) -> Option<Self> {
        match (self, key) {
            (Self::Object, "metadata") => Some(Self::Metadata),
            (Self::Metadata, "annotations") => Some(Self::Annotations),
            _ => None,
        }
    }
}

/// Reads a map without its unused values.
struct Tree(Part);

impl<'de> Visitor<'de> for Tree {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut tree = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if self.0.skips(&key) {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let value = match self.0.inner(&key) {
                Some(part) => map.next_value_seed(OrNull(part))?,
                None => map.next_value()?,
            };
            tree.insert(key, value);
        }
        Ok(tree)
    }
}

/// Reads a map or null.
struct OrNull(Part);

impl<'de> de::DeserializeSeed<'de> for OrNull {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for OrNull {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or null")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Value, A::Error> {
        Tree(self.0).visit_map(map).map(Value::Object)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMap, Pod};
    use kube::core::WatchEvent;
    use serde_json::json;

    use super::*;

    fn read<K: DeserializeOwned>(value: &Value) -> Guarded<K> {
        serde_json::from_str(&value.to_string()).unwrap()
    }

    #[test]
    fn mt_34_an_object_is_read_without_what_nobody_needs() {
        let guarded: Guarded<ConfigMap> = read(&json!({
            "metadata": {
                "name": "a", "uid": "u", "labels": {"b": "c"},
                "annotations": {"keep": "this", LAST_APPLIED: "{}"},
                "managedFields": [{"manager": "x", "fieldsV1": {"f:data": {}}}],
            },
            "data": {"managedFields": "of the user's"},
        }));
        let map = guarded.0.unwrap();
        assert_eq!(map.metadata.name.as_deref(), Some("a"));
        assert_eq!(map.metadata.managed_fields, None);
        assert_eq!(
            map.metadata.annotations,
            Some([("keep".to_owned(), "this".to_owned())].into())
        );
        assert_eq!(
            map.data,
            Some([("managedFields".to_owned(), "of the user's".to_owned())].into())
        );
    }

    #[test]
    fn mt_30_an_object_that_cannot_be_read_tells_its_name_and_why() {
        let guarded: Guarded<Pod> = read(&json!({
            "metadata": {"name": "a", "namespace": "b", "annotations": null},
            "spec": {"containers": "none"},
        }));
        assert_eq!(guarded.meta().name.as_deref(), Some("a"));
        assert_eq!(guarded.meta().namespace.as_deref(), Some("b"));
        let unreadable = guarded.0.unwrap_err();
        assert!(unreadable.error.contains("none"), "{}", unreadable.error);
    }

    #[test]
    fn events_are_read_whatever_comes_first_in_them() {
        for text in [
            r#"{"type":"ADDED","object":{"metadata":{"name":"a"}}}"#,
            r#"{"object":{"metadata":{"name":"a"}},"type":"ADDED"}"#,
        ] {
            let event: WatchEvent<Guarded<ConfigMap>> = serde_json::from_str(text).unwrap();
            let WatchEvent::Added(Guarded(Ok(map))) = event else {
                panic!("{text}")
            };
            assert_eq!(map.metadata.name.as_deref(), Some("a"));
        }
    }
}
