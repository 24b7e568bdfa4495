//! CRDs without validation, for invalid objects that were stored under an older CRD, for example.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use training_testkit::builders::{Kind, PYTORCH};
use training_testkit::control_plane::workspace;
use training_testkit::manifest;

/// Returns the CRD of `PyTorchJob`.
pub fn definition() -> Result<Value> {
    definition_of(&PYTORCH)
}

/// Returns a CRD with the names, version and status of the real one, and no schema.
pub fn definition_of(kind: &Kind) -> Result<Value> {
    let crd = workspace()
        .join("manifests")
        .join(kind.operator)
        .join("crd.yaml");
    let real = manifest::documents(&crd)?;
    let is_it = |crd: &&Value| crd["spec"]["names"]["plural"] == kind.plural;
    let real = real.iter().find(is_it).context(kind.plural)?;
    let anything = json!({ "x-kubernetes-preserve-unknown-fields": true });
    Ok(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{}.{}", kind.plural, kind.group),
            // Groups under k8s.io need it.
            "annotations": { "api-approved.kubernetes.io": "unapproved, for tests" },
        },
        "spec": {
            "group": kind.group, "scope": "Namespaced",
            // Other names would end all watches twice when the real one replaces it: at the update, and when they are accepted.
            "names": real["spec"]["names"],
            "versions": [{
                "name": kind.version, "served": true, "storage": true,
                "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": {
                    "type": "object", "properties": { "spec": anything, "status": anything },
                }},
            }],
        },
    }))
}
