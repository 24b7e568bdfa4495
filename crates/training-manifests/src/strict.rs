//! The policy of strict mode: a job is stored only if its user may create the objects that the operator creates for it.
//!
//! The operator creates pods with its own rights, so without this policy a user who may create jobs gets pods without the right to
//! create pods. Only admission knows the user.

use serde_json::{Value, json};

use crate::install::{Scope, labels};
use crate::operator::{Kind, Operator};

const API: &str = "admissionregistration.k8s.io/v1";

/// The prefix of Kueue's accounts, whose edits start, stop and place jobs.
const KUEUE: &str = "system:serviceaccount:kueue-system:";

/// Returns the policies of an operator's kinds, with their bindings.
pub fn policies(operator: &Operator) -> Vec<Value> {
    let kinds = operator.kinds.iter();
    kinds.flat_map(|kind| policy(operator, kind)).collect()
}

fn policy(operator: &Operator, kind: &Kind) -> [Value; 2] {
    let name = format!("trainyard-{}-strict", kind.plural);
    let metadata = json!({ "name": name, "labels": labels(operator) });
    let own = Scope::Cluster.namespace();
    let account = format!("system:serviceaccount:{own}:{}", operator.name);
    let spec = json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "resourceRules": [{
            "apiGroups": [kind.group],
            "apiVersions": [kind.version],
            "operations": ["CREATE", "UPDATE"],
            "resources": [kind.plural],
            "scope": "Namespaced",
        }] },
        "matchConditions": [
            {
                "name": "changes-what-runs",
                "expression": "request.operation == 'CREATE' || object.spec != oldObject.spec",
            },
            {
                // It creates the applications of schedules; the policy checks the schedules themselves.
                "name": "not-by-the-operator",
                "expression": format!("request.userInfo.username != '{account}'"),
            },
            {
                "name": "not-by-kueue",
                "expression": format!("!request.userInfo.username.startsWith('{KUEUE}')"),
            },
        ],
        "variables": variables(operator, kind),
        "validations": validations(operator, kind),
    });
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

/// Returns CEL variables with the names of accounts and priority classes in an object.
fn variables(operator: &Operator, kind: &Kind) -> Value {
    let of = |pods: &str, field: &str| format!("variables.{pods}.map(p, p.?{field}.orValue(''))");
    let (mut all, accounts, classes) = if let Some(replicas) = operator.replicas {
        (
            vec![
                (
                    "roles",
                    format!("object.spec.?{}.orValue({{}})", replicas.map),
                ),
                (
                    "pods",
                    "variables.roles.map(r, variables.roles[r].?template.?spec.orValue({}))"
                        .to_owned(),
                ),
            ],
            vec![
                of("pods", "serviceAccountName"),
                of("pods", "serviceAccount"),
            ],
            vec![
                of("pods", "priorityClassName"),
                "[object.spec.?runPolicy.?schedulingPolicy.?priorityClass.orValue('')]".to_owned(),
            ],
        )
    } else {
        let path = if kind.name == "ScheduledSparkApplication" {
            "object.spec.template"
        } else {
            "object.spec"
        };
        (
            vec![
                (
                    "roles",
                    format!("[{path}.?driver.orValue({{}}), {path}.?executor.orValue({{}})]"),
                ),
                (
                    "pods",
                    "variables.roles.map(r, r.?template.?spec.orValue({}))".to_owned(),
                ),
            ],
            vec![
                of("roles", "serviceAccount"),
                of("pods", "serviceAccountName"),
                of("pods", "serviceAccount"),
            ],
            vec![
                of("roles", "priorityClassName"),
                of("pods", "priorityClassName"),
                format!("[{path}.?batchSchedulerOptions.?priorityClassName.orValue('')]"),
            ],
        )
    };
    all.push((
        "accounts",
        format!(
            "({}).filter(a, !(a in ['', 'default']))",
            accounts.join(" + ")
        ),
    ));
    all.push(("classes", classes.join(" + ")));
    let all = all.into_iter();
    all.map(|(name, expression)| json!({ "name": name, "expression": expression }))
        .collect()
}

fn validations(operator: &Operator, kind: &Kind) -> Value {
    let kind = &kind.name;
    let created = operator
        .rights
        .iter()
        .filter(|grant| grant.verbs.contains(&"create"));
    let created = created.flat_map(|grant| grant.resources.iter().map(move |r| (grant.group, *r)));
    let created = created.filter(|(_, resource)| *resource != "events");
    // An expression may check two rights at most, so each right has its own.
    let mut all: Vec<Value> = created
        .map(|(group, resource)| {
            let right = format!("authorizer.group('{group}').resource('{resource}')");
            check(
                &format!("{right}.namespace(request.namespace).check('create').allowed()"),
                &format!(
                    "request.userInfo.username + ' may not create {resource} in the namespace ' + request.namespace + \
                     ', and a {kind} creates them: ask for a role that allows it'"
                ),
            )
        })
        .collect();
    let may_use = |account: &str| {
        format!(
            "authorizer.group('').resource('serviceaccounts').namespace(request.namespace).name({account})\
             .check('impersonate').allowed()"
        )
    };
    let text = format!(
        "request.userInfo.username + ' may not use all of the ServiceAccounts ' + variables.accounts.join(', ') + \
         ', which pods of this {kind} name: leave out serviceAccountName and serviceAccount, or ask for the right to impersonate the \
         account'"
    );
    let first = "variables.accounts[0]";
    all.push(check(
        &format!("variables.accounts.size() == 0 || {}", may_use(first)),
        &text,
    ));
    all.push(check(
        &format!(
            "variables.accounts.all(a, a == {first} || {})",
            may_use("a")
        ),
        &text,
    ));
    all.push(check(
        "variables.classes.all(c, !c.startsWith('system-'))",
        "'priority classes that begin with system- are for the pods of the system: name another one, or none'",
    ));
    all.into()
}

fn check(expression: &str, message: &str) -> Value {
    json!({
        "expression": expression,
        "messageExpression": format!("'strict mode: ' + {message}"),
        "reason": "Forbidden",
    })
}
