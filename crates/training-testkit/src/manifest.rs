//! YAML manifests, applied as a user would apply them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::discovery::{Scope, pinned_kind};
use kube::{Client, ResourceExt};
use serde_json::Value;

use crate::wait::{HANG, Seen, eventually};

/// Returns the objects of a YAML file with any number of documents; skips empty ones.
pub fn documents(path: &Path) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("can't read the manifest {}", path.display()))?;
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text)
        .with_context(|| format!("{} is no YAML", path.display()))?;
    Ok(documents.into_iter().filter(Value::is_object).collect())
}

/// The YAML files of a directory, sorted by name.
pub fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory)
        .with_context(|| format!("no manifests in {}", directory.display()))?
    {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "yaml")
        {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// Applies objects with server-side apply: CRDs first, then namespaces, then the rest in order. Returns when every CRD is served.
pub async fn apply(client: &Client, mut objects: Vec<Value>) -> Result<()> {
    // A stable sort: within a group the author's order may matter.
    objects.sort_by_key(|object| match object["kind"].as_str() {
        Some("CustomResourceDefinition") => 0,
        Some("Namespace") => 1,
        _ => 2,
    });
    for object in objects {
        let what = format!("{} {}", object["kind"], object["metadata"]["name"]);
        apply_one(client, object)
            .await
            .with_context(|| format!("can't apply {what}"))?;
    }
    Ok(())
}

async fn apply_one(client: &Client, object: Value) -> Result<()> {
    let object: DynamicObject = serde_json::from_value(object)?;
    let types = object.types.clone().context("an object without a kind")?;
    let (resource, capabilities) =
        pinned_kind(client, &GroupVersionKind::try_from(&types)?).await?;
    let api: Api<DynamicObject> = match (&capabilities.scope, object.namespace()) {
        (Scope::Namespaced, Some(namespace)) => {
            Api::namespaced_with(client.clone(), &namespace, &resource)
        }
        (Scope::Namespaced, None) => Api::default_namespaced_with(client.clone(), &resource),
        (Scope::Cluster, _) => Api::all_with(client.clone(), &resource),
    };
    let name = object.name_any();
    let parameters = PatchParams::apply("trainyard-test").force();
    api.patch(&name, &parameters, &Patch::Apply(&object))
        .await?;
    if resource.kind == "CustomResourceDefinition" {
        until_served(client, &name).await?;
    }
    Ok(())
}

async fn until_served(client: &Client, name: &str) -> Result<()> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    eventually(&format!("{name} to be established"), HANG, async || {
        let status = definitions.get(name).await?.status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let established = conditions
            .iter()
            .any(|c| c.type_ == "Established" && c.status == "True");
        Ok(if established {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{conditions:?}"))
        })
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_documents_are_left_out() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "# nothing\n---\nkind: A\n---\n---\nkind: B\n").unwrap();
        let kinds: Vec<_> = documents(file.path())
            .unwrap()
            .iter()
            .map(|d| d["kind"].clone())
            .collect();
        assert_eq!(kinds, ["A", "B"]);
    }
}
