//! Checks that the committed files match the types, and that the installed objects meet their guarantees.

// Clippy takes only functions marked as tests for tests, not their helpers.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::LazyLock;

use serde_json::{Value, json};
use training_manifests::install::{self, OWN_IMAGE_ARGUMENT, Scope};
use training_manifests::operator::{self, Operator};
use training_manifests::{admission, differing, guard, rights, yaml};

/// Returns every operator, created once: without optimisation their CRDs take seconds.
fn operators() -> Vec<Operator> {
    static ALL: LazyLock<Vec<Operator>> = LazyLock::new(|| operator::all().unwrap());
    ALL.clone()
}

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
    for operator in operators() {
        for kind in &operator.kinds {
            let text = yaml::document(&kind.crd).unwrap();
            let read: Value = serde_saphyr::from_str(&text).unwrap();
            assert_eq!(whole(&read), whole(&kind.crd));
        }
    }
}

/// Converts integral floats to integers.
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

/// Returns every right as `group/resource verb`.
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

/// Returns rights on a resource.
fn on(resource: &str, verbs: &[&str]) -> Vec<String> {
    let right = |verb: &&str| format!("{resource} {verb}");
    verbs.iter().map(right).collect()
}

const MAKES: &[&str] = &["create", "delete", "get", "list", "watch"];
const MAKES_AND_CHANGES: &[&str] = &["create", "delete", "get", "list", "patch", "watch"];

/// Returns an operator's rights in addition to the common ones. None may read a Secret.
fn of_kind(kind: &str) -> Vec<String> {
    match kind {
        "PyTorchJob" => on("autoscaling/horizontalpodautoscalers", MAKES_AND_CHANGES),
        "MPIJob" => [
            on("/configmaps", MAKES_AND_CHANGES),
            on("/secrets", &["create"]),
            on("/services", &["patch"]),
            on("batch/jobs", MAKES_AND_CHANGES),
            on("batch/jobs/status", &["patch"]),
        ]
        .concat(),
        "SparkApplication" => [
            on("/configmaps", MAKES_AND_CHANGES),
            on("/persistentvolumeclaims", MAKES),
            on("networking.k8s.io/ingresses", MAKES),
            // The applications of schedules.
            on("sparkoperator.k8s.io/sparkapplications", &["create", "get"]),
        ]
        .concat(),
        _ => Vec::new(),
    }
}

#[test]
fn mt_62_mt_16_mt_17_mt_18_i_48_f_77_the_operator_may_do_only_what_it_needs() {
    for operator in operators() {
        let objects = rights::of_operator(&operator, Scope::Cluster);
        let mut expected = on("/events", &["create", "patch"]);
        expected.extend(on("/pods", MAKES));
        expected.extend(on("/services", MAKES));
        expected.extend(of_kind(&operator.main().name));
        for kind in &operator.kinds {
            let own = format!("{}/{}", kind.group, kind.plural);
            expected.extend(on(&own, &["list", "watch"]));
            // The operator doesn't delete schedules.
            let ends = kind.name != "ScheduledSparkApplication";
            expected.extend(on(&own, &["delete"]).into_iter().filter(|_| ends));
            expected.extend(on(&format!("{own}/status"), &["patch"]));
            expected.extend(on(&format!("{own}/finalizers"), &["update"]));
        }
        let expected: BTreeSet<String> = expected.into_iter().collect();
        assert_eq!(grants(&objects, "ClusterRole"), expected);
        let lease = on("coordination.k8s.io/leases", &["create", "get", "update"]);
        assert_eq!(grants(&objects, "Role"), lease.into_iter().collect());
    }
}

#[test]
fn a_namespaced_install_has_the_same_rights_in_one_namespace_only() {
    for operator in operators() {
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
    for operator in operators() {
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
fn mt_65_i_49_the_deployment_keeps_to_restricted_pod_security() {
    for operator in operators() {
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
    for operator in operators().iter().filter(|o| !o.args.is_empty()) {
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
fn mt_66_the_operator_reaches_the_ports_of_api_servers_and_dns_only() {
    for operator in operators() {
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
        assert_eq!(ports("egress"), BTreeSet::from([53, 443, 6443, 8443]));
        assert_eq!(ports("ingress"), BTreeSet::from([8080, 8081]));
    }
}

/// Returns true if a policy allows a connection to this protocol and port of an address, which may be a pod's: its namespace and
/// its label `k8s-app`.
fn reaches(policy: &Value, address: &str, pod: Option<[&str; 2]>, port: (&str, u64)) -> bool {
    let is_peer = |peer: &Value| {
        let pods = [
            &peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"],
            &peer["podSelector"]["matchLabels"]["k8s-app"],
        ];
        match peer.pointer("/ipBlock/cidr") {
            Some(cidr) => *cidr == format!("{address}/32"),
            None => pod.is_some_and(|pod| pods[0] == pod[0] && pods[1] == pod[1]),
        }
    };
    let mut rules = policy["spec"]["egress"].as_array().unwrap().iter();
    rules.any(|rule| {
        let mut ports = rule["ports"].as_array().unwrap().iter();
        let to = rule.get("to").and_then(Value::as_array);
        ports.any(|p| p["protocol"] == port.0 && p["port"] == port.1)
            && to.is_none_or(|peers| peers.iter().any(is_peer))
    })
}

#[test]
fn the_narrow_network_policy_allows_the_api_server_and_dns_only() {
    use install::{EXAMPLE_SERVER, EXAMPLE_SERVICE};
    const OTHER: &str = "198.51.100.7";
    const DNS: Option<[&str; 2]> = Some(["kube-system", "kube-dns"]);
    const LOOKALIKE: Option<[&str; 2]> = Some(["team", "kube-dns"]);
    const NEIGHBOUR: Option<[&str; 2]> = Some(["kube-system", "other"]);
    let narrow = install::narrow_egress();
    // The address, its pod, protocol and port, and whether the usual and the narrow policy allow it.
    let connections = [
        // The API server, after and before the translation of its Service.
        (EXAMPLE_SERVER, None, ("TCP", 6443), true, true),
        (EXAMPLE_SERVICE, None, ("TCP", 443), true, true),
        (OTHER, DNS, ("UDP", 53), true, true),
        (OTHER, DNS, ("TCP", 53), true, true),
        (OTHER, None, ("TCP", 443), true, false),
        (OTHER, None, ("TCP", 6443), true, false),
        (OTHER, None, ("TCP", 8443), true, false),
        (OTHER, None, ("UDP", 53), true, false),
        (OTHER, LOOKALIKE, ("UDP", 53), true, false),
        (OTHER, NEIGHBOUR, ("UDP", 53), true, false),
        (OTHER, None, ("TCP", 80), false, false),
        (EXAMPLE_SERVER, None, ("TCP", 2379), false, false),
        (EXAMPLE_SERVER, None, ("UDP", 6443), false, false),
    ];
    for operator in operators() {
        let usual = install::network_policy(&operator, Scope::Cluster);
        for (address, pod, port, usually, narrowly) in connections {
            let allowed = [&usual, &narrow].map(|policy| reaches(policy, address, pod, port));
            assert_eq!(allowed, [usually, narrowly], "{address} {pod:?} {port:?}");
        }
    }
    // Scraping and everything else stay as they are.
    let spec = narrow["spec"].as_object().unwrap();
    assert_eq!(spec.keys().collect::<Vec<_>>(), ["egress"]);
}

#[test]
fn warnings_never_refuse_and_refusals_do() {
    for operator in operators() {
        let checks = operator.kinds.iter().map(|kind| &kind.checks);
        let all: usize = checks.map(|c| c.warnings.len() + c.refusals.len()).sum();
        let (mut seen, objects) = (0, admission::policies(&operator));
        for pair in objects.chunks(2) {
            let [policy, binding] = pair else {
                panic!("a policy without a binding")
            };
            assert_eq!(binding["spec"]["policyName"], policy["metadata"]["name"]);
            let warns = binding["spec"]["validationActions"] == json!(["Warn"]);
            let failure = if warns { "Ignore" } else { "Fail" };
            assert_eq!(policy["spec"]["failurePolicy"], failure);
            seen += policy["spec"]["validations"].as_array().unwrap().len();
        }
        assert_eq!(seen, all, "{}", operator.name);
    }
}

#[test]
fn mt_64_the_guard_knows_every_resource_that_the_operator_may_write() {
    for operator in operators() {
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
fn the_guard_limits_secrets_and_jobs_wherever_the_operator_may_write_them() {
    for operator in operators() {
        let objects = guard::policies(&operator);
        let validations = objects[0]["spec"]["validations"].to_string();
        let role = rights::of_operator(&operator, Scope::Cluster);
        let rights = grants(&role, "ClusterRole");
        for (right, resource) in [("/secrets create", "secrets"), ("batch/jobs patch", "jobs")] {
            let limit = format!("request.resource.resource != '{resource}' || ");
            assert_eq!(
                validations.contains(&limit),
                rights.contains(right),
                "{}: {right}",
                operator.name
            );
        }
    }
}

#[test]
fn people_get_roles_that_add_to_kubernetes_own() {
    for operator in operators() {
        let roles = rights::of_users(&operator);
        let names: Vec<&str> = roles
            .iter()
            .map(|role| role["metadata"]["name"].as_str().unwrap())
            .collect();
        let of = |kind: &operator::Kind| {
            let name = |who: &str| format!("trainyard-{}-{who}", kind.plural);
            ["admin", "edit", "view"].map(name)
        };
        let expected: Vec<String> = operator.kinds.iter().flat_map(of).collect();
        assert_eq!(names, expected);
        let views = roles.iter().skip(2).step_by(3).cloned();
        let view = grants(&views.collect::<Vec<_>>(), "ClusterRole");
        assert!(view.iter().all(|grant| {
            let verb = grant.rsplit(' ').next().unwrap();
            ["get", "list", "watch"].contains(&verb)
        }));
    }
}

#[test]
fn the_arguments_of_every_operator_fit_together() {
    for operator in operators() {
        operator.command.debug_assert();
    }
}

#[test]
fn every_operator_of_its_kinds_accepts_the_flags_of_the_training_operator() {
    for operator in operators() {
        if operator.replicas.is_none() {
            continue;
        }
        let flags = [
            "--metrics-bind-address=:8080",
            "--health-probe-bind-address=:8081",
            "--leader-elect=false",
            "--leader-election-id=1ca428e5.training-operator.kubeflow.org",
            "--enable-scheme=tfjob",
            "--enable-scheme=pytorchjob",
            "--gang-scheduler-name=volcano",
            "--namespace=team-a",
            "--controller-threads=4",
            "--kube-api-qps=50",
            "--kube-api-burst=100",
            "--pytorch-init-container-image=example.com/alpine:3.10",
            "--pytorch-init-container-template-file=/etc/config/initContainer.yaml",
            "--pytorch-init-container-max-tries=100",
            "--mpi-kubectl-delivery-image=example.com/kubectl-delivery:1",
            "--webhook-server-port=9443",
            "--webhook-service-name=training-operator",
            "--webhook-secret-name=training-operator-webhook-cert",
            "--zap-devel=false",
            "--zap-encoder=json",
            "--zap-log-level=info",
            "--zap-stacktrace-level=error",
            "--zap-time-encoding=rfc3339",
        ];
        let words = std::iter::once(operator.name).chain(flags);
        if let Err(error) = operator.command.clone().try_get_matches_from(words) {
            panic!("{}: {error}", operator.name);
        }
    }
}
