//! Forbids namespaces to a cluster-wide operator: a `ValidatingAdmissionPolicy` refuses writes of its account there, and another
//! one refuses jobs there.
//!
//! A `ClusterRole` can't exclude a namespace, but a policy can. So a stolen token or a defect of the operator can't create pods
//! with the cluster's own secrets and accounts. A `ClusterRole` can't select by type or owner either: the policy limits Secrets to
//! SSH keys, and Jobs to those of the operator's kind.

use serde_json::{Value, json};
use training_core::grants;

use crate::install::{Scope, labels};
use crate::operator::{Kind, Operator};

const API: &str = "admissionregistration.k8s.io/v1";
/// A CEL expression that is true in Kubernetes' own namespaces.
const OF_KUBERNETES: &str = "request.namespace.startsWith('kube-')";

/// The resources that an operator may write in its own namespace: its lease, and events.
pub const OWN: &[&str] = &["leases", "events"];

/// Returns the limits on rights that RBAC can't narrow: a resource, a CEL expression that is true for what the operator writes there,
/// and the message for anything else.
fn narrowed(operator: &Operator) -> [(&'static str, String, String); 2] {
    let kind = &operator.main().name;
    [
        (
            "secrets",
            "object.type == 'kubernetes.io/ssh-auth'".to_owned(),
            "the operator creates Secrets of type kubernetes.io/ssh-auth only".to_owned(),
        ),
        (
            "jobs",
            format!(
                "request.operation == 'CREATE' || oldObject.metadata.?ownerReferences.orValue([])\
                 .exists(o, o.kind == '{kind}' && o.?controller.orValue(false))"
            ),
            format!(
                "the operator changes and deletes only Jobs whose controller is of kind {kind}"
            ),
        ),
    ]
}

/// Returns both policies with their bindings.
pub fn policies(operator: &Operator) -> Vec<Value> {
    let mut objects = writes(operator).to_vec();
    for kind in &operator.kinds {
        objects.extend(submissions(operator, kind));
    }
    objects
}

/// Read-only verbs.
const READS: [&str; 3] = ["get", "list", "watch"];

/// Returns the policy that refuses writes of the operator's account.
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
    let mut validations = vec![
        json!({
            "expression": format!("!{OF_KUBERNETES}"),
            "message": "the operator writes nothing in the namespaces of Kubernetes itself",
            "reason": "Forbidden",
        }),
        json!({
            "expression": format!(
                "request.namespace != '{own}' || request.resource.resource in {own_only}"
            ),
            "message": "in its own namespace the operator writes its lease and events only",
            "reason": "Forbidden",
        }),
    ];
    let limits = narrowed(operator).into_iter();
    let limits = limits.filter(|(resource, ..)| {
        let mut rights = operator.rights.iter();
        rights.any(|grant| grant.resources.contains(resource))
    });
    validations.extend(limits.map(|(resource, unless, message)| {
        json!({
            "expression": format!("request.resource.resource != '{resource}' || {unless}"),
            "message": message,
            "reason": "Forbidden",
        })
    }));
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
            "validations": validations,
        }),
    )
}

/// Returns the policy that refuses jobs at submission that the operator could not run.
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
