//! CRDs without validation, for invalid objects that were stored under an older CRD, for example.

use serde_json::{Value, json};
use training_testkit::builders::{Kind, PYTORCH};

/// Returns the CRD of `PyTorchJob`.
pub fn definition() -> Value {
    definition_of(&PYTORCH)
}

/// Returns a CRD with the names, version and status of the real one, and no schema.
pub fn definition_of(kind: &Kind) -> Value {
    let anything = json!({ "x-kubernetes-preserve-unknown-fields": true });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{}.{}", kind.plural, kind.group),
            // Groups under k8s.io need it.
            "annotations": { "api-approved.kubernetes.io": "unapproved, for tests" },
        },
        "spec": {
            "group": kind.group, "scope": "Namespaced",
            "names": {
                "kind": kind.name, "plural": kind.plural, "singular": kind.name.to_lowercase(),
                "listKind": format!("{}List", kind.name),
            },
            "versions": [{
                "name": kind.version, "served": true, "storage": true,
                "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": {
                    "type": "object", "properties": { "spec": anything, "status": anything },
                }},
            }],
        },
    })
}
