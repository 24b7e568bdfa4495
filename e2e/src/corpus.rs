//! The valid manifests of the conformance tests and the examples.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::Client;
use kube::api::{Api, PostParams};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use training_core::Digest;
use training_testkit::builders::{Kind, MPI, SPARK};
use training_testkit::control_plane::workspace;
use training_testkit::manifest;
use training_testkit::validation::{Row, Table};

/// The maximum replicas of a role.
const MOST_REPLICAS: u64 = 20;

/// Returns the valid manifests of a kind in its version. Names are digests of the contents, so they stay when others are added.
pub fn of(kind: &Kind) -> Result<Vec<Value>> {
    let all = if *kind == SPARK {
        applications(|_| true)?
    } else if kind.name == MPI.name {
        valid(&Table::mpi(kind.version)?)?
    } else {
        valid(&Table::read(kind)?)?
    };
    with_examples(kind, all)
}

/// Returns the applications that can be submitted.
pub fn submittable() -> Result<Vec<Value>> {
    let refusals = workspace().join("operators/spark-operator/tests/data/submit/refusals.json");
    let refusals: Value = serde_json::from_slice(&std::fs::read(refusals)?)?;
    with_examples(&SPARK, applications(|name| refusals[name].is_null())?)
}

fn with_examples(kind: &Kind, mut all: Vec<Value>) -> Result<Vec<Value>> {
    let version = kind.resource().api_version;
    for entry in std::fs::read_dir(workspace().join("examples"))? {
        let directory = entry?.path();
        if !directory.is_dir() {
            continue;
        }
        for file in manifest::files(&directory)? {
            let documents = manifest::documents(&file)?.into_iter();
            all.extend(documents.filter(|d| d["kind"] == kind.name && d["apiVersion"] == version));
        }
    }
    all.retain(|job| !is_large(job));
    let mut named = BTreeMap::new();
    for mut job in all {
        job["apiVersion"] = json!(version);
        job["kind"] = json!(kind.name);
        let metadata = job["metadata"].as_object_mut().context("no metadata")?;
        for field in ["name", "namespace", "generateName"] {
            metadata.remove(field);
        }
        let name = format!("m-{:08x}", Digest::of(&job).short());
        job["metadata"]["name"] = json!(name);
        named.insert(name, job);
    }
    Ok(named.into_values().collect())
}

/// Returns those of the applications whose submission is compared with `spark-submit`.
fn applications(wanted: impl Fn(&str) -> bool) -> Result<Vec<Value>> {
    let mut all = Vec::new();
    let submit = "operators/spark-operator/tests/data/submit/applications";
    for file in std::fs::read_dir(workspace().join(submit))? {
        let file = file?.path();
        if !wanted(&file.file_stem().unwrap_or_default().to_string_lossy()) {
            continue;
        }
        let found: Value = serde_json::from_slice(&std::fs::read(file)?)?;
        let mut spec = found["spec"].clone();
        if spec["sparkVersion"].is_null() {
            spec["sparkVersion"] = json!("4.0.1");
        }
        all.push(json!({ "metadata": found["metadata"], "spec": spec }));
    }
    Ok(all)
}

/// Returns true if some number in a manifest asks for more pods than a test needs.
fn is_large(job: &Value) -> bool {
    match job {
        Value::Object(fields) => fields.iter().any(|(key, value)| {
            key == "replicas" && value.as_u64().is_some_and(|n| n > MOST_REPLICAS)
                || is_large(value)
        }),
        _ => false,
    }
}

/// Returns the objects of a table that the API server accepts.
fn valid(table: &Table) -> Result<Vec<Value>> {
    let alone = |row: &&Row| row.refused.is_none() && row.update.is_none() && row.scale.is_none();
    let rows = table.rows.iter().filter(alone);
    rows.map(|row| table.object(row)).collect()
}

/// Creates the service accounts and priority classes that manifests name, unless they exist.
pub async fn create_named(client: &Client, namespaces: &[&str], jobs: &[Value]) -> Result<()> {
    let (mut accounts, mut classes) = (BTreeSet::new(), BTreeSet::new());
    for job in jobs {
        collect("serviceaccount", job, &mut accounts);
        collect("priorityclass", job, &mut classes);
    }
    accounts.remove("default");
    let params = PostParams::default();
    for name in accounts {
        let account: ServiceAccount = named(&name)?;
        for namespace in namespaces.iter().copied() {
            let api: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
            unless_it_exists(api.create(&params, &account).await)?;
        }
    }
    classes.retain(|name| !name.starts_with("system-"));
    for name in classes {
        let api: Api<PriorityClass> = Api::all(client.clone());
        unless_it_exists(api.create(&params, &named(&name)?).await)?;
    }
    Ok(())
}

fn unless_it_exists<T>(created: kube::Result<T>) -> Result<()> {
    match created {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        created => Ok(created.map(drop)?),
    }
}

fn named<T: DeserializeOwned>(name: &str) -> Result<T> {
    Ok(serde_json::from_value(
        json!({ "metadata": { "name": name }, "value": 0 }),
    )?)
}

/// Collects the values of fields and properties with this word in their names.
fn collect(word: &str, value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value.as_str() {
                    Some(name) if key.to_lowercase().contains(word) => {
                        names.insert(name.to_owned());
                    }
                    _ => collect(word, value, names),
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                collect(word, item, names);
            }
        }
        _ => {}
    }
}
