//! Decodes only the needed metadata of watched objects and skips the rest.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use training_api::labels;

/// The prefix of Trainyard's annotations.
const OURS: &str = "trainyard.dev/";

/// Decodes metadata without unused fields, above all the managed fields, which are larger than the rest of a pod.
///
/// # Errors
/// Fails if a field has another type than in the API.
pub fn slim_meta<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let slim = SlimMeta::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: slim.name,
        namespace: slim.namespace,
        uid: slim.uid,
        resource_version: slim.resource_version,
        labels: slim.labels,
        annotations: Some(slim.annotations.0).filter(|kept| !kept.is_empty()),
        owner_references: slim.owner_references,
        creation_timestamp: slim.creation_timestamp,
        deletion_timestamp: slim.deletion_timestamp,
        deletion_grace_period_seconds: slim.deletion_grace_period_seconds,
        ..ObjectMeta::default()
    })
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct SlimMeta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Kept,
    owner_references: Option<Vec<OwnerReference>>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
}

/// The annotations that Trainyard reads. Others may take hundreds of kilobytes.
#[derive(Default)]
struct Kept(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Kept {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Map;
        impl<'de> Visitor<'de> for Map {
            type Value = Kept;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("annotations")
            }
            fn visit_unit<E>(self) -> Result<Kept, E> {
                Ok(Kept::default())
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Kept, A::Error> {
                let mut kept = BTreeMap::new();
                while let Some(key) = map.next_key::<std::borrow::Cow<'de, str>>()? {
                    if key.starts_with(OURS) || key == labels::VOLCANO_GROUP {
                        if let Some(value) = map.next_value::<Option<String>>()? {
                            kept.insert(key.into_owned(), value);
                        }
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(Kept(kept))
            }
        }
        deserializer.deserialize_any(Map)
    }
}
