//! The end state of a job, comparable between runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::Result;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service};
use k8s_openapi::api::networking::v1::{Ingress, NetworkPolicy};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::{ApiResource, NamespaceResourceScope};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::JOB_NAME;
use crate::auditor::masked;

/// All objects of a job without what differs between runs, as `kind/name` → path → value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot(pub BTreeMap<String, BTreeMap<String, String>>);

/// Fields that differ between equivalent runs.
const MASKED: [&str; 16] = [
    "uid",
    "resourceVersion",
    "generation",
    "namespace",
    "podIP",
    "podIPs",
    "hostIP",
    "hostIPs",
    "nodeName",
    "clusterIP",
    "clusterIPs",
    "creationTimestamp",
    "deletionTimestamp",
    "timestamp",
    "time",
    "webUIAddress",
];

/// The text before the only time in the properties of a submission.
const SUBMIT_TIME: &str = "spark.app.submitTime=";

impl Snapshot {
    /// Reads the job and its objects. A pod with a generated name gets its prefix and a number as its name, as do objects of a
    /// `SparkApplication` whose names change with every submission.
    pub async fn take(
        client: Client,
        namespace: &str,
        jobs: &ApiResource,
        name: &str,
    ) -> Result<Self> {
        let mut snapshot = Self::default();
        let at = (&client, namespace);
        if jobs.kind == "SparkApplication" {
            return Self::of_spark(at, jobs, name).await;
        }
        let of_job = format!("{JOB_NAME}={name}");
        let made_up = snapshot.all::<Pod>(at, &of_job).await?;
        snapshot.all::<Service>(at, &of_job).await?;
        if jobs.kind == "MPIJob" {
            let of_job = format!("app={name}");
            snapshot.all::<Service>(at, &of_job).await?;
            snapshot.all::<ConfigMap>(at, &of_job).await?;
            snapshot.all::<Secret>(at, &of_job).await?;
            snapshot.all::<Job>(at, &of_job).await?;
        }
        snapshot.itself(at, jobs, name).await?;
        for value in snapshot.0.values_mut().flat_map(BTreeMap::values_mut) {
            for (name, called) in &made_up {
                *value = value.replace(name, called);
            }
        }
        Ok(snapshot)
    }

    async fn of_spark(at: (&Client, &str), jobs: &ApiResource, name: &str) -> Result<Self> {
        let mut snapshot = Self::default();
        let of_app = format!("sparkoperator.k8s.io/app-name={name}");
        let mut made_up = snapshot.all::<Pod>(at, &of_app).await?;
        made_up.extend(snapshot.all::<Service>(at, &of_app).await?);
        made_up.extend(snapshot.all::<ConfigMap>(at, &of_app).await?);
        made_up.extend(snapshot.all::<PersistentVolumeClaim>(at, &of_app).await?);
        made_up.extend(snapshot.all::<Ingress>(at, &of_app).await?);
        made_up.extend(snapshot.all::<NetworkPolicy>(at, &of_app).await?);
        made_up.extend(snapshot.all::<PodDisruptionBudget>(at, &of_app).await?);
        let id = snapshot.itself(at, jobs, name).await?;
        let ids: Vec<String> = id.into_iter().collect();
        Ok(snapshot.submitted(&made_up, &ids, at.1))
    }

    /// Masks the submission in names, keys and values.
    fn submitted(self, names: &[(String, String)], ids: &[String], namespace: &str) -> Self {
        let mut digits: BTreeSet<String> = ids.iter().map(|id| id.replace('-', "")).collect();
        // The submission's digits in a name also occur in commands and properties. The ConfigMaps that a driver mounts may be
        // gone.
        let leaves = self.0.values().flatten();
        let mounted = leaves.filter(|(path, _)| path.ends_with("configMap.name"));
        let mounted = mounted.map(|(_, name)| name.trim_matches('"'));
        for name in names.iter().map(|(name, _)| name.as_str()).chain(mounted) {
            let parts = name.split('-').filter(|part| masked(part) != **part);
            digits.extend(parts.map(str::to_owned));
        }
        let plain = |text: &str| {
            let text = without_time(&without_uids(text)).replace(namespace, "NAMESPACE");
            digits
                .iter()
                .fold(text, |text, d| text.replace(d.as_str(), "…"))
        };
        let all = self.0.into_iter().map(|(object, leaves)| {
            let leaves = leaves.into_iter();
            (
                object,
                leaves.map(|(k, v)| (plain(&k), plain(&v))).collect(),
            )
        });
        Self(all.collect())
    }

    /// Adds the job's status. Returns the id of its submission, if it has one.
    async fn itself(
        &mut self,
        (client, namespace): (&Client, &str),
        jobs: &ApiResource,
        name: &str,
    ) -> Result<Option<String>> {
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, jobs);
        let Some(job) = api.get_opt(name).await? else {
            return Ok(None);
        };
        let status = &serde_json::to_value(&job)?["status"];
        self.add("job", name, status);
        Ok(status["submissionID"].as_str().map(str::to_owned))
    }

    /// Adds the objects of a kind with a label.
    ///
    /// Returns the generated names and their replacements.
    async fn all<K>(
        &mut self,
        (client, namespace): (&Client, &str),
        labels: &str,
    ) -> Result<Vec<(String, String)>>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Serialize
            + std::fmt::Debug,
    {
        let api: Api<K> = Api::namespaced(client.clone(), namespace);
        let mut objects = api.list(&ListParams::default().labels(labels)).await?.items;
        objects.sort_by_key(K::creation_timestamp);
        let mut made_up = Vec::new();
        for object in objects {
            let mut value = serde_json::to_value(&object)?;
            let mut name = object.name_any();
            if let Some(begin) = object.meta().generate_name.as_deref() {
                let number = made_up.len() + 1;
                made_up.push((name, format!("{begin}…{number}")));
                name = format!("{begin}…{number}");
                value["metadata"]["name"] = name.as_str().into();
            } else if jobs_kind(&value) == "SparkApplication" && masked(&name) != name {
                let begin = masked(&name);
                let kind = K::kind(&()).to_lowercase();
                let called = (1..=self.0.len() + 1)
                    .map(|number| format!("{begin}#{number}"))
                    .find(|called| !self.0.contains_key(&format!("{kind}/{called}")));
                let called = called.unwrap_or_default();
                made_up.push((std::mem::replace(&mut name, called.clone()), called));
                value["metadata"]["name"] = name.as_str().into();
            }
            if let Some(list) = value["status"]["conditions"].as_array_mut() {
                // Whether the Job controller saw a Job while it was briefly suspended is random.
                list.retain(|c| K::kind(&()) != "Job" || c["type"] != "Suspended");
            }
            if K::kind(&()) == "Secret" {
                // Keys are random.
                for of in value["data"]
                    .as_object_mut()
                    .into_iter()
                    .flat_map(|d| d.values_mut())
                {
                    *of = "…".into();
                }
            }
            self.add(&K::kind(&()).to_lowercase(), &name, &value);
        }
        Ok(made_up)
    }

    /// Adds one object.
    pub fn add(&mut self, kind: &str, name: &str, object: &Value) {
        let mut leaves = BTreeMap::new();
        flatten("", object, &mut leaves);
        self.0.insert(format!("{kind}/{name}"), leaves);
    }

    /// Returns the differences, one line each, empty if there are none. `-` is only in `self`, `+` only in `other`.
    #[must_use]
    pub fn diff(&self, other: &Self) -> String {
        let mut text = String::new();
        let objects: BTreeSet<&String> = self.0.keys().chain(other.0.keys()).collect();
        for object in objects {
            match (self.0.get(object), other.0.get(object)) {
                (Some(a), Some(b)) => diff_leaves(object, a, b, &mut text),
                (Some(_), None) => line(&mut text, &format!("- {object}")),
                (None, _) => line(&mut text, &format!("+ {object}")),
            }
        }
        text
    }
}

fn diff_leaves(
    object: &str,
    a: &BTreeMap<String, String>,
    b: &BTreeMap<String, String>,
    text: &mut String,
) {
    let paths: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    for path in paths {
        let (a, b) = (a.get(path), b.get(path));
        if a != b {
            if let Some(a) = a {
                line(text, &format!("- {object} {path} = {a}"));
            }
            if let Some(b) = b {
                line(text, &format!("+ {object} {path} = {b}"));
            }
        }
    }
}

fn line(text: &mut String, what: &str) {
    // Writing to a String can't fail.
    let _ = writeln!(text, "{what}");
}

fn flatten(path: &str, value: &Value, leaves: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(fields) => {
            for (key, field) in fields {
                let path = format!("{path}.{key}");
                if key == "managedFields" {
                    continue;
                }
                // Whether a headless service has an address matters.
                let means_something = field.as_str() == Some("None");
                let time = key.ends_with("Time") || key.ends_with("At");
                if (MASKED.contains(&key.as_str()) || time) && !means_something {
                    leaves.insert(path, "…".into());
                } else {
                    flatten(&path, field, leaves);
                }
            }
        }
        Value::Array(elements) => {
            for (index, element) in elements.iter().enumerate() {
                // Lists of named elements are compared by name, so that an added element is one difference and doesn't shift all
                // that follow. Their order is compared separately.
                let key = ["name", "type"].iter().find_map(|k| element[k].as_str());
                match key {
                    Some(key) if !generated(key) => {
                        leaves.insert(format!("{path}[{index}]"), key.to_owned());
                        flatten(&format!("{path}[{key}]"), element, leaves);
                    }
                    Some(_) => {
                        leaves.insert(format!("{path}[{index}]"), "…".to_owned());
                    }
                    None => flatten(&format!("{path}[{index}]"), element, leaves),
                }
            }
        }
        Value::String(text) if generated(text) => {
            leaves.insert(path.to_owned(), "…".into());
        }
        scalar => {
            leaves.insert(path.to_owned(), scalar.to_string());
        }
    }
}

/// The kind of the job that owns an object.
fn jobs_kind(object: &Value) -> &str {
    let owners = object["metadata"]["ownerReferences"].as_array();
    // An executor's first owner is its driver.
    let last = owners.and_then(|owners| owners.last());
    last.and_then(|owner| owner["kind"].as_str())
        .unwrap_or_default()
}

/// Replaces every uid in a text by `…`.
fn without_uids(text: &str) -> String {
    const LENGTH: usize = 36;
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let uid = rest.get(..LENGTH).filter(|begin| is_uid(begin));
        let taken = if uid.is_some() {
            out.push('…');
            LENGTH
        } else {
            out.push(first);
            first.len_utf8()
        };
        rest = &rest[taken..];
    }
    out
}

/// Removes the time from the properties of a submission.
fn without_time(text: &str) -> String {
    let Some((before, after)) = text.split_once(SUBMIT_TIME) else {
        return text.to_owned();
    };
    let after = after.trim_start_matches(|c: char| c.is_ascii_digit());
    format!("{before}{SUBMIT_TIME}…{after}")
}

/// The token volume of the `ServiceAccount` admission has a random name; so has anything with a uid in place of a name.
fn generated(text: &str) -> bool {
    text.starts_with("kube-api-access-") || is_uid(text)
}

/// For example `01234567-89ab-cdef-0123-456789abcdef`.
fn is_uid(text: &str) -> bool {
    let parts: Vec<usize> = text.split('-').map(str::len).collect();
    parts == [8, 4, 4, 4, 12] && text.chars().all(|c| c == '-' || c.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn snapshot(object: &Value) -> Snapshot {
        let mut snapshot = Snapshot::default();
        snapshot.add("pod", "a", object);
        snapshot
    }

    #[test]
    fn what_every_run_makes_anew_is_no_difference() {
        let object = |n: u32| {
            json!({
                "metadata": {
                    "uid": format!("u{n}"), "resourceVersion": n.to_string(),
                    "managedFields": [n], "ownerReferences": [{"name": "j", "uid": n}],
                },
                "spec": { "volumes": [{"name": format!("kube-api-access-{n}")}] },
                "labels": { "of": format!("01234567-89ab-cdef-0123-{n:012x}") },
                "status": { "startTime": n, "podIP": n, "conditions": [
                    {"type": "Ready", "status": "True", "lastTransitionTime": n},
                ]},
            })
        };
        assert_eq!(snapshot(&object(1)).diff(&snapshot(&object(2))), "");
    }

    #[test]
    fn a_difference_names_object_path_and_both_values() {
        let a = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let b = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
        assert_eq!(
            snapshot(&a).diff(&snapshot(&b)),
            "- pod/a .status.conditions[Ready].status = \"True\"\n\
             + pod/a .status.conditions[Ready].status = \"False\"\n"
        );
    }

    #[test]
    fn what_every_submission_makes_anew_is_no_difference() {
        let taken = |id: u8, namespace: &str, cores: u8| {
            let uid = format!("01234567-89ab-4def-8123-{id:012x}");
            let digits = format!("{id:016x}");
            let name = format!("pi-{digits}-driver-svc");
            let mut snapshot = Snapshot::default();
            snapshot.add(
                "service",
                "pi-…-driver-svc#1",
                &json!({
                    "volumes": [{ "name": "a", "configMap": { "name": format!("spark-drv-{:016x}-conf-map", id + 77) } }],
                    "spec": { "selector": { "spark-app-selector": format!("spark-{}", uid.replace('-', "")) } },
                    "data": { "spark.properties": format!(
                        "# Submission {uid}\nspark.app.submitTime={id}7\nspark.driver.host={name}.{namespace}.svc\n\
                         spark.driver.cores={cores}\n"
                    ) },
                }),
            );
            snapshot.submitted(&[(name.clone(), name)], &[uid], namespace)
        };
        assert_eq!(taken(1, "a-1", 1).diff(&taken(2, "a-2", 1)), "");
        assert_ne!(taken(1, "a-1", 1).diff(&taken(2, "a-2", 2)), "");
    }

    #[test]
    fn the_address_of_a_headless_service_is_compared() {
        let (a, b) = (
            json!({"clusterIP": "None"}),
            json!({"clusterIP": "10.0.0.1"}),
        );
        assert_ne!(snapshot(&a), snapshot(&b));
    }

    #[test]
    fn a_missing_object_is_one_line() {
        assert_eq!(snapshot(&json!({})).diff(&Snapshot::default()), "- pod/a\n");
    }
}
