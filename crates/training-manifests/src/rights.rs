//! Generates roles from grants: least privilege for the operator, and roles for users who submit jobs.

use serde_json::{Value, json};
use training_core::grants::{self, Grant};

use crate::install::{Scope, labels, metadata};
use crate::operator::{Kind, Operator};

const RBAC: &str = "rbac.authorization.k8s.io/v1";

/// Returns the operator's `ServiceAccount`, roles and bindings.
pub fn of_operator(operator: &Operator, scope: Scope) -> Vec<Value> {
    let account = json!([{
        "kind": "ServiceAccount",
        "name": operator.name,
        "namespace": scope.namespace(),
    }]);
    let jobs = jobs(operator);
    let own: Vec<Value> = grants::OWN_NAMESPACE.iter().map(rule).collect();
    let mut objects = vec![json!({
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(operator, scope, operator.name),
    })];
    let own_name = match scope {
        Scope::Cluster => {
            let cluster = json!({ "name": operator.name, "labels": labels(operator) });
            objects.push(role("ClusterRole", &cluster, &jobs));
            objects.push(binding(
                "ClusterRoleBinding",
                &cluster,
                operator.name,
                &account,
            ));
            operator.name.to_owned()
        }
        Scope::Namespace => {
            let local = metadata(operator, scope, operator.name);
            objects.push(role("Role", &local, &jobs));
            objects.push(binding("RoleBinding", &local, operator.name, &account));
            format!("{}-leader", operator.name)
        }
    };
    let own_metadata = metadata(operator, scope, &own_name);
    objects.push(role("Role", &own_metadata, &own));
    objects.push(binding("RoleBinding", &own_metadata, &own_name, &account));
    objects
}

/// Returns the rules for the jobs' namespaces.
fn jobs(operator: &Operator) -> Vec<Value> {
    let own = |suffix: &str, verbs: &dyn Fn(&Kind) -> &'static [&'static str]| {
        let kinds = operator.kinds.iter();
        let rule = |kind: &Kind| {
            json!({
                "apiGroups": [kind.group],
                "resources": [format!("{}{suffix}", kind.plural)],
                "verbs": verbs(kind),
            })
        };
        kinds.map(rule).collect::<Vec<_>>()
    };
    let mut rules = own("", &|kind| kind.verbs);
    rules.extend(own("/status", &|_| grants::OWN_STATUS));
    rules.extend(own("/finalizers", &|_| grants::OWN_FINALIZERS));
    rules.extend(operator.rights.iter().map(|grant| rule(grant)));
    rules
}

/// Returns the additional rights for optional features, each with the path of its file.
pub fn of_options(operator: &Operator, scope: Scope) -> Vec<(String, Vec<Value>)> {
    let account = json!([{
        "kind": "ServiceAccount",
        "name": operator.name,
        "namespace": scope.namespace(),
    }]);
    // A Role can't grant rights on namespaces.
    let fits = |grants: &[&Grant]| {
        scope == Scope::Cluster || grants.iter().all(|g| !g.resources.contains(&"namespaces"))
    };
    let files = operator.options.iter().filter(|(_, grants)| fits(grants));
    let files = files.map(|(file, grants)| {
        let name = format!("{}-{}", operator.name, file.replace('/', "-"));
        let rules: Vec<Value> = grants.iter().map(|grant| rule(grant)).collect();
        let (kind, metadata) = match scope {
            Scope::Cluster => (
                "ClusterRole",
                json!({ "name": name, "labels": labels(operator) }),
            ),
            Scope::Namespace => ("Role", metadata(operator, scope, &name)),
        };
        let binding = binding(&format!("{kind}Binding"), &metadata, &name, &account);
        (file.clone(), vec![role(kind, &metadata, &rules), binding])
    });
    files.collect()
}

/// Returns the account of jobs' own pods, in the jobs' namespace.
pub fn of_job_pods(operator: &Operator) -> Vec<Value> {
    let Some((name, grants)) = operator.account else {
        return Vec::new();
    };
    let metadata = metadata(operator, Scope::Namespace, name);
    let account = json!([{
        "kind": "ServiceAccount", "name": name, "namespace": Scope::Namespace.namespace(),
    }]);
    let rules: Vec<Value> = grants.iter().map(rule).collect();
    vec![
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata }),
        role("Role", &metadata, &rules),
        binding("RoleBinding", &metadata, name, &account),
    ]
}

fn rule(grant: &Grant) -> Value {
    json!({ "apiGroups": [grant.group], "resources": grant.resources, "verbs": grant.verbs })
}

fn role(kind: &str, metadata: &Value, rules: &[Value]) -> Value {
    json!({ "apiVersion": RBAC, "kind": kind, "metadata": metadata, "rules": rules })
}

fn binding(kind: &str, metadata: &Value, role: &str, subjects: &Value) -> Value {
    json!({
        "apiVersion": RBAC,
        "kind": kind,
        "metadata": metadata,
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": kind.trim_end_matches("Binding"),
            "name": role,
        },
        "subjects": subjects,
    })
}

/// Returns the `ClusterRole`s of users: admin, edit and view. They are aggregated to Kubernetes' own roles of these names, and
/// to those of Kubeflow's profiles.
pub fn of_users(operator: &Operator) -> Vec<Value> {
    let kinds = operator.kinds.iter();
    kinds.flat_map(|kind| of_users_of(operator, kind)).collect()
}

fn of_users_of(operator: &Operator, kind: &Kind) -> Vec<Value> {
    let aggregate = |role: &str| {
        json!({
            format!("rbac.authorization.k8s.io/aggregate-to-{role}"): "true",
            format!("rbac.authorization.kubeflow.org/aggregate-to-kubeflow-{role}"): "true",
        })
    };
    let jobs = |verbs: &[&str]| {
        vec![
            json!({ "apiGroups": [kind.group], "resources": [kind.plural], "verbs": verbs }),
            json!({
                "apiGroups": [kind.group],
                "resources": [format!("{}/status", kind.plural)],
                "verbs": ["get"],
            }),
        ]
    };
    let read = ["get", "list", "watch"];
    let write = [
        "create", "delete", "get", "list", "patch", "update", "watch",
    ];
    let write_all = [
        "create",
        "delete",
        "deletecollection",
        "get",
        "list",
        "patch",
        "update",
        "watch",
    ];
    let scale = json!({
        "apiGroups": [kind.group],
        "resources": [format!("{}/scale", kind.plural)],
        "verbs": ["get", "patch", "update"],
    });
    [
        ("admin", &write_all[..]),
        ("edit", &write[..]),
        ("view", &read[..]),
    ]
    .into_iter()
    .map(|(name, verbs)| {
        let mut all = aggregate(name);
        if let (Some(all), Some(own)) = (all.as_object_mut(), labels(operator).as_object()) {
            all.extend(own.clone());
        }
        if name == "edit" {
            // Published in addition, for the role of training administrators.
            all["rbac.authorization.kubeflow.org/aggregate-to-kubeflow-training-admin"] =
                "true".into();
        }
        let metadata =
            json!({ "name": format!("trainyard-{}-{name}", kind.plural), "labels": all });
        let mut rules = jobs(verbs);
        if name != "view" && scalable(kind) {
            rules.push(scale.clone());
        }
        role("ClusterRole", &metadata, &rules)
    })
    .collect()
}

fn scalable(kind: &Kind) -> bool {
    kind.crd
        .pointer("/spec/versions/0/subresources/scale")
        .is_some()
}
