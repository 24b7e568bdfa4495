//! What is committed is what the types say, and what is installed keeps its promises.

// Clippy takes only functions marked as tests for tests, not their helpers.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};
use training_manifests::install::{self, OWN_IMAGE_ARGUMENT, Scope};
use training_manifests::{admission, differing, guard, operator, rights, yaml};

#[test]
fn generated_files_are_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap();
    let differing = differing(root).unwrap();
    assert!(
        differing.is_empty(),
        "run `cargo run -p training-manifests -- generate`: {differing:?}"
    );
}

#[test]
fn yaml_says_what_the_objects_say() {
    for operator in operator::all().unwrap() {
        let text = yaml::document(&operator.crd).unwrap();
        let read: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(whole(&read), whole(&operator.crd));
    }
}

/// Floats that are whole become integers.
fn whole(value: &Value) -> Value {
    match value {
        Value::Object(object) => object
            .iter()
            .map(|(key, value)| (key.clone(), whole(value)))
            .collect(),
        Value::Array(items) => items.iter().map(whole).collect(),
        Value::Number(number) => match number.as_f64() {
            #[allow(clippy::cast_possible_truncation)]
            Some(float) if number.is_f64() && float.fract() == 0.0 => json!(float as i64),
            _ => value.clone(),
        },
        other => other.clone(),
    }
}

/// Every right as `group/resource verb`.
fn grants(objects: &[Value], kind: &str) -> BTreeSet<String> {
    let mut grants = BTreeSet::new();
    let strings = |value: &Value| -> Vec<String> {
        value
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item.as_str().unwrap().to_owned())
            .collect()
    };
    for object in objects.iter().filter(|object| object["kind"] == kind) {
        for rule in object["rules"].as_array().unwrap() {
            for group in strings(&rule["apiGroups"]) {
                for resource in strings(&rule["resources"]) {
                    for verb in strings(&rule["verbs"]) {
                        grants.insert(format!("{group}/{resource} {verb}"));
                    }
                }
            }
        }
    }
    grants
}

/// The rights of the one kind whose jobs have more than pods and services. It may not read a Secret.
fn of_kind(kind: &str) -> &'static [&'static str] {
    match kind {
        "MPIJob" => &[
            "/configmaps create",
            "/configmaps delete",
            "/configmaps get",
            "/configmaps list",
            "/configmaps patch",
            "/configmaps watch",
            "/secrets create",
            "/services patch",
            "batch/jobs create",
            "batch/jobs delete",
            "batch/jobs get",
            "batch/jobs list",
            "batch/jobs patch",
            "batch/jobs watch",
            "batch/jobs/status patch",
        ],
        _ => &[],
    }
}

#[test]
fn mt_62_the_operator_may_do_only_what_it_needs() {
    for operator in operator::all().unwrap() {
        let objects = rights::of_operator(&operator, Scope::Cluster);
        let own = format!("{}/{}", operator.group, operator.plural);
        let expected: BTreeSet<String> = [
            "/pods create",
            "/pods delete",
            "/pods get",
            "/pods list",
            "/pods watch",
            "/services create",
            "/services delete",
            "/services get",
            "/services list",
            "/services watch",
            "/events create",
            "/events patch",
        ]
        .into_iter()
        .map(str::to_owned)
        .chain(
            ["create", "delete", "get", "list", "patch", "watch"]
                .map(|verb| format!("autoscaling/horizontalpodautoscalers {verb}"))
                .into_iter()
                // No other kind can have one.
                .filter(|_| operator.kind == "PyTorchJob"),
        )
        .chain(
            of_kind(&operator.kind)
                .iter()
                .map(|right| (*right).to_owned()),
        )
        .chain(["delete", "list", "watch"].map(|verb| format!("{own} {verb}")))
        .chain([
            format!("{own}/status patch"),
            format!("{own}/finalizers update"),
        ])
        .collect();
        assert_eq!(grants(&objects, "ClusterRole"), expected);
        let lease =
            ["create", "get", "update"].map(|verb| format!("coordination.k8s.io/leases {verb}"));
        assert_eq!(grants(&objects, "Role"), BTreeSet::from(lease));
    }
}

#[test]
fn a_namespaced_install_has_the_same_rights_in_one_namespace_only() {
    for operator in operator::all().unwrap() {
        let cluster = rights::of_operator(&operator, Scope::Cluster);
        let namespaced = rights::of_operator(&operator, Scope::Namespace);
        assert!(
            namespaced
                .iter()
                .all(|o| !o["kind"].as_str().unwrap().starts_with("Cluster"))
        );
        let everything: BTreeSet<String> = grants(&cluster, "ClusterRole")
            .union(&grants(&cluster, "Role"))
            .cloned()
            .collect();
        assert_eq!(grants(&namespaced, "Role"), everything);
    }
}

#[test]
fn bindings_name_roles_and_accounts_that_exist() {
    for operator in operator::all().unwrap() {
        for scope in [Scope::Cluster, Scope::Namespace] {
            let objects = rights::of_operator(&operator, scope);
            for binding in objects
                .iter()
                .filter(|o| o["kind"].as_str().unwrap().ends_with("Binding"))
            {
                let role = objects.iter().find(|o| {
                    o["kind"] == binding["roleRef"]["kind"]
                        && o["metadata"]["name"] == binding["roleRef"]["name"]
                });
                assert!(role.is_some(), "{binding}");
                let subject = &binding["subjects"][0];
                let account = objects
                    .iter()
                    .find(|o| o["kind"] == "ServiceAccount")
                    .unwrap();
                assert_eq!(subject["name"], account["metadata"]["name"]);
                assert_eq!(subject["namespace"], account["metadata"]["namespace"]);
            }
        }
    }
}

#[test]
fn mt_65_the_deployment_keeps_to_restricted_pod_security() {
    for operator in operator::all().unwrap() {
        for scope in [Scope::Cluster, Scope::Namespace] {
            let deployment = install::deployment(&operator, scope);
            let pod = &deployment["spec"]["template"]["spec"];
            let container = &pod["containers"][0];
            assert_eq!(container["securityContext"], install::restricted());
            assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
            assert_eq!(pod["serviceAccountName"], operator.name);
            assert!(container["resources"]["limits"].get("memory").is_some());
            for host in ["hostNetwork", "hostPID", "hostIPC"] {
                assert!(pod.get(host).is_none());
            }
            assert_eq!(
                deployment["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"],
                operator.name
            );
        }
    }
}

#[test]
fn the_argument_that_repeats_the_image_is_where_kustomize_looks_for_it() {
    for operator in operator::all()
        .unwrap()
        .iter()
        .filter(|operator| !operator.args.is_empty())
    {
        for scope in [Scope::Cluster, Scope::Namespace] {
            let deployment = install::deployment(operator, scope);
            let container = &deployment["spec"]["template"]["spec"]["containers"][0];
            let argument = container["args"][OWN_IMAGE_ARGUMENT].as_str().unwrap();
            let (_, image) = argument.split_once('=').unwrap();
            assert_eq!(container["image"], image);
        }
    }
}

#[test]
fn mt_66_the_operator_reaches_the_api_server_and_dns_only() {
    for operator in operator::all().unwrap() {
        let policy = install::network_policy(&operator, Scope::Cluster);
        let ports = |direction: &str| -> BTreeSet<u64> {
            policy["spec"][direction]
                .as_array()
                .unwrap()
                .iter()
                .flat_map(|rule| rule["ports"].as_array().unwrap())
                .map(|port| port["port"].as_u64().unwrap())
                .collect()
        };
        assert_eq!(ports("egress"), BTreeSet::from([53, 443, 6443]));
        assert_eq!(ports("ingress"), BTreeSet::from([8080, 8081]));
    }
}

#[test]
fn admission_warns_and_never_refuses() {
    for operator in operator::all().unwrap() {
        let [policy, binding] = admission::policy(&operator);
        assert_eq!(binding["spec"]["validationActions"], json!(["Warn"]));
        assert_eq!(binding["spec"]["policyName"], policy["metadata"]["name"]);
        assert_eq!(policy["spec"]["failurePolicy"], "Ignore");
        assert_eq!(
            policy["spec"]["validations"].as_array().unwrap().len(),
            operator.warnings.len()
        );
    }
}

#[test]
fn mt_64_the_guard_knows_every_resource_that_the_operator_may_write() {
    for operator in operator::all().unwrap() {
        let objects = guard::policies(&operator);
        let rules = objects[0]["spec"]["matchConstraints"]["resourceRules"]
            .as_array()
            .unwrap();
        let guarded = |right: &str| {
            let (group, resource) = right.split_once('/').unwrap();
            rules.iter().any(|rule| {
                rule["apiGroups"][0] == group
                    && rule["resources"]
                        .as_array()
                        .unwrap()
                        .contains(&json!(resource))
            })
        };
        let role = rights::of_operator(&operator, Scope::Cluster);
        for right in grants(&role, "ClusterRole").union(&grants(&role, "Role")) {
            let (resource, verb) = right.split_once(' ').unwrap();
            let writes = !["get", "list", "watch"].contains(&verb);
            assert!(!writes || guarded(resource), "{right}");
        }
        for binding in objects
            .iter()
            .filter(|o| o["kind"] != "ValidatingAdmissionPolicy")
        {
            assert_eq!(binding["spec"]["validationActions"], json!(["Deny"]));
        }
    }
}

#[test]
fn people_get_roles_that_add_to_kubernetes_own() {
    for operator in operator::all().unwrap() {
        let roles = rights::of_users(&operator);
        let names: Vec<&str> = roles
            .iter()
            .map(|role| role["metadata"]["name"].as_str().unwrap())
            .collect();
        let prefix = format!("trainyard-{}", operator.plural);
        assert_eq!(
            names,
            [
                format!("{prefix}-admin"),
                format!("{prefix}-edit"),
                format!("{prefix}-view")
            ]
        );
        let view = grants(&roles[2..], "ClusterRole");
        assert!(view.iter().all(|grant| {
            let verb = grant.rsplit(' ').next().unwrap();
            ["get", "list", "watch"].contains(&verb)
        }));
    }
}

#[test]
fn the_arguments_of_every_operator_fit_together() {
    for operator in operator::all().unwrap() {
        operator.command.debug_assert();
    }
}
