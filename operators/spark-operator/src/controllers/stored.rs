//! The cached form of an application, with the digest of its stored spec.

use std::borrow::Cow;

use kube::Resource;
use kube::core::{NamespaceResourceScope, ObjectMeta};
use serde::de::{self, Deserializer};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use training_core::{Progress, Stored};

use crate::api::{SparkApplication, SparkApplicationStatus};
use crate::digest::{self, SpecDigest};

/// An application and the digest of its spec. The digest is of the API server's JSON, because typed values may not round-trip.
#[derive(Clone, Debug)]
pub struct CachedApplication {
    /// The application.
    pub object: SparkApplication,
    /// The digest of its spec.
    pub digest: SpecDigest,
}

/// A compacted application with its digest. The API server never returns this form.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Packed<A> {
    packed_digest: String,
    application: A,
}

impl<'de> Deserialize<'de> for CachedApplication {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        if value.get("packedDigest").is_some() {
            let packed: Packed<_> = serde_json::from_value(value).map_err(de::Error::custom)?;
            let digest = SpecDigest::parse(&packed.packed_digest);
            return Ok(Self {
                object: packed.application,
                digest: digest.ok_or_else(|| de::Error::custom("no digest"))?,
            });
        }
        let digest = digest::spec_digest(&value["spec"]);
        let object = serde_json::from_value(value).map_err(de::Error::custom)?;
        Ok(Self { object, digest })
    }
}

impl Serialize for CachedApplication {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let packed = Packed {
            packed_digest: self.digest.to_string(),
            application: &self.object,
        };
        packed.serialize(serializer)
    }
}

impl Resource for CachedApplication {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        SparkApplication::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        SparkApplication::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        SparkApplication::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        SparkApplication::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        self.object.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.object.meta_mut()
    }
}

impl Stored for CachedApplication {
    type Status = SparkApplicationStatus;

    fn status(&self) -> Option<&SparkApplicationStatus> {
        self.object.status.as_ref()
    }

    fn progress(status: &SparkApplicationStatus) -> Progress {
        status.progress()
    }

    fn set_status(&mut self, status: SparkApplicationStatus) {
        self.object.status = Some(status);
    }

    /// An edit that was not reconciled yet may start it over, and then all of it is needed.
    fn has_ended(&self) -> bool {
        self.object.status.as_ref().is_some_and(|status| {
            let reconciled = status.observed_generation == self.object.metadata.generation;
            status.application_state.state.is_terminal()
                && (reconciled || status.spec_digest.is_none())
        })
    }

    fn shrink(&mut self) {
        let spec = &mut self.object.spec;
        for pod in [&mut spec.driver.pod, &mut spec.executor.pod] {
            pod.template = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(spec: &Value) -> CachedApplication {
        at(spec, &json!({"applicationState": {"state": "COMPLETED"}}))
    }

    fn at(spec: &Value, status: &Value) -> CachedApplication {
        let stored = json!({
            "apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication",
            "metadata": {"name": "pi", "generation": 2}, "spec": spec, "status": status,
        });
        serde_json::from_value(stored).unwrap()
    }

    #[test]
    fn one_that_was_edited_after_its_end_is_kept_whole() {
        let spec = json!({
            "mainApplicationFile": "local:///pi.py", "sparkVersion": "4.0.0", "driver": {}, "executor": {},
        });
        for (generation, ended) in [(2, true), (1, false)] {
            let status = json!({
                "applicationState": {"state": "FAILED"}, "specDigest": "1-00", "observedGeneration": generation,
            });
            assert_eq!(at(&spec, &status).has_ended(), ended, "{generation}");
        }
        assert!(!at(&spec, &json!({"applicationState": {"state": "RUNNING"}})).has_ended());
    }

    #[test]
    fn what_is_put_away_keeps_the_digest_of_what_was_stored() {
        let template = json!({"spec": {"containers": [{"name": "x", "unknown": "field"}]}});
        let spec = json!({
            "mainApplicationFile": "local:///pi.py", "sparkVersion": "4.0.0", "driver": {"template": template}, "executor": {},
        });
        let mut app = read(&spec);
        assert_eq!(app.digest, digest::spec_digest(&spec));
        assert!(app.has_ended());
        app.shrink();
        let text = serde_json::to_vec(&app).unwrap();
        let back: CachedApplication = serde_json::from_slice(&text).unwrap();
        assert_eq!(back.digest, app.digest);
        assert_eq!(back.object, app.object);
        assert_eq!(back.object.spec.driver.pod.template, None);
    }
}
