//! A definition of `PyTorchJob` that takes anything, for objects that got in although they should
//! not: under an older definition, say.

use serde_json::{Value, json};

/// The definition; it has the names, the version and the status of the real one, and no schema.
pub fn definition() -> Value {
    let anything = json!({ "x-kubernetes-preserve-unknown-fields": true });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "pytorchjobs.kubeflow.org" },
        "spec": {
            "group": "kubeflow.org", "scope": "Namespaced",
            "names": {
                "kind": "PyTorchJob", "plural": "pytorchjobs", "singular": "pytorchjob",
                "listKind": "PyTorchJobList",
            },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": {
                    "type": "object", "properties": { "spec": anything, "status": anything },
                }},
            }],
        },
    })
}
