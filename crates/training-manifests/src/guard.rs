//! Where an operator of the whole cluster may not write, whatever its role says: a `ValidatingAdmissionPolicy` on its own
//! account, and one that keeps jobs from being submitted there.
//!
//! A `ClusterRole` can't leave a namespace out. A policy can: a stolen token, or a defect of ours, then makes no pod where the
//! cluster's own secrets and accounts are.

use serde_json::{Value, json};
use training_core::grants;

use crate::install::{Scope, labels};
use crate::operator::{Kind, Operator};

const API: &str = "admissionregistration.k8s.io/v1";
/// CEL: true in the namespaces of Kubernetes itself.
const OF_KUBERNETES: &str = "request.namespace.startsWith('kube-')";

/// The resources that an operator writes in its own namespace: its lease, and events.
pub const OWN: &[&str] = &["leases", "events"];

/// Both policies with their bindings.
pub fn policies(operator: &Operator) -> Vec<Value> {
    let mut objects = writes(operator).to_vec();
    for kind in &operator.kinds {
        objects.extend(submissions(operator, kind));
    }
    objects
}

/// Verbs that change nothing.
const READS: [&str; 3] = ["get", "list", "watch"];

/// What the operator's account may not write.
fn writes(operator: &Operator) -> [Value; 2] {
    let own = Scope::Cluster.namespace();
    let account = format!("system:serviceaccount:{own}:{}", operator.name);
    let own_kinds = operator.kinds.iter().map(|kind| {
        let plural = &kind.plural;
        let resources = [
            plural.clone(),
            format!("{plural}/status"),
            format!("{plural}/finalizers"),
        ];
        rule(&kind.group, &resources)
    });
    let mut rules: Vec<Value> = own_kinds.collect();
    let options = operator.options.iter().flat_map(|(_, grants)| grants);
    let granted = operator
        .rights
        .iter()
        .chain(options)
        .copied()
        .chain(grants::OWN_NAMESPACE)
        .filter(|grant| grant.verbs.iter().any(|verb| !READS.contains(verb)));
    rules.extend(granted.map(|grant| {
        let resources: Vec<String> = grant.resources.iter().map(|r| (*r).to_owned()).collect();
        rule(grant.group, &resources)
    }));
    let own_only = format!("['{}']", OWN.join("', '"));
    pair(
        operator,
        &format!("trainyard-{}-writes", operator.name),
        &json!({
            "failurePolicy": "Fail",
            "matchConstraints": { "resourceRules": rules },
            "matchConditions": [{
                "name": "by-the-operator",
                "expression": format!("request.userInfo.username == '{account}'"),
            }],
            "validations": [
                {
                    "expression": format!("!{OF_KUBERNETES}"),
                    "message": "the operator writes nothing in the namespaces of Kubernetes itself",
                    "reason": "Forbidden",
                },
                {
                    "expression": format!(
                        "request.namespace != '{own}' || request.resource.resource in {own_only}"
                    ),
                    "message": "in its own namespace the operator writes its lease and events only",
                    "reason": "Forbidden",
                },
            ],
        }),
    )
}

/// Jobs that nobody would run are refused when they are submitted.
fn submissions(operator: &Operator, kind: &Kind) -> [Value; 2] {
    let own = Scope::Cluster.namespace();
    let mut rule = rule(&kind.group, std::slice::from_ref(&kind.plural));
    rule["operations"] = json!(["CREATE"]);
    pair(
        operator,
        &format!("trainyard-{}-namespaces", kind.plural),
        &json!({
            "failurePolicy": "Fail",
            "matchConstraints": { "resourceRules": [rule] },
            "validations": [{
                "expression": format!("!{OF_KUBERNETES} && request.namespace != '{own}'"),
                "message": format!(
                    "{} don't run in the namespaces of Kubernetes itself or of the operator: use another one",
                    kind.plural
                ),
                "reason": "Forbidden",
            }],
        }),
    )
}

fn rule(group: &str, resources: &[String]) -> Value {
    json!({
        "apiGroups": [group],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE", "DELETE"],
        "resources": resources,
        "scope": "Namespaced",
    })
}

fn pair(operator: &Operator, name: &str, spec: &Value) -> [Value; 2] {
    let metadata = json!({ "name": name, "labels": labels(operator) });
    [
        json!({
            "apiVersion": API, "kind": "ValidatingAdmissionPolicy", "metadata": metadata, "spec": spec,
        }),
        json!({
            "apiVersion": API, "kind": "ValidatingAdmissionPolicyBinding", "metadata": metadata,
            "spec": { "policyName": name, "validationActions": ["Deny"] },
        }),
    ]
}
