//! Checks the guarantees of the CRDs, the rights and the code for tenants of a shared cluster.

// Clippy takes only functions marked as tests for tests, not their helpers.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use serde_json::Value;
use training_manifests::install::Scope;
use training_manifests::operator::{self, Operator};
use training_manifests::rights;

/// Every operator, created once: without optimisation their CRDs take seconds.
static OPERATORS: LazyLock<Vec<Operator>> = LazyLock::new(|| operator::all().unwrap());

fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap()
}

/// Collects every property of a schema, with its path.
fn properties(path: &str, schema: &Value, all: &mut Vec<String>) {
    for (name, child) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        properties(&path, child, all);
        all.push(path);
    }
    for (key, suffix) in [("items", "[]"), ("additionalProperties", ".*")] {
        if schema[key].is_object() {
            properties(&format!("{path}{suffix}"), &schema[key], all);
        }
    }
}

/// The namespace fields of pods, which Kubernetes validates and the operator doesn't interpret.
const OF_PODS: [&str; 6] = [
    // Has no effect; users get a warning.
    "template.metadata.namespace",
    "volumeClaimTemplate.metadata.namespace",
    "volumeClaimTemplate.spec.dataSourceRef.namespace",
    ".namespaces",
    ".namespaceSelector",
    ".storageos.volumeNamespace",
];

#[test]
fn mt_01_no_reference_in_a_job_has_a_namespace() {
    for operator in OPERATORS.iter() {
        for kind in &operator.kinds {
            for version in kind.crd["spec"]["versions"].as_array().unwrap() {
                let mut all = Vec::new();
                let spec = &version["schema"]["openAPIV3Schema"]["properties"]["spec"];
                properties("", spec, &mut all);
                assert!(all.len() > 500, "{}: {}", kind.name, all.len());
                let said = all.iter().filter(|path| {
                    let name = path.rsplit('.').next().unwrap().to_lowercase();
                    name.contains("namespace")
                });
                let beside: Vec<_> = said
                    .filter(|path| !OF_PODS.iter().any(|end| path.ends_with(end)))
                    .filter(|path| {
                        let name = path.rsplit('.').next().unwrap();
                        name != "shareProcessNamespace"
                    })
                    .collect();
                assert!(beside.is_empty(), "{}: {beside:?}", kind.name);
            }
        }
    }
}

/// Returns every right that an operator has in any installation, as `group/resource verb`.
fn rights_of(operator: &Operator) -> BTreeSet<String> {
    let mut objects = Vec::new();
    for scope in [Scope::Cluster, Scope::Namespace] {
        objects.extend(rights::of_operator(operator, scope));
        let options = rights::of_options(operator, scope).into_iter();
        objects.extend(options.flat_map(|(_, objects)| objects));
    }
    let mut all = BTreeSet::new();
    let texts = |value: &Value| -> Vec<String> { serde_json::from_value(value.clone()).unwrap() };
    for rule in objects
        .iter()
        .filter_map(|o| o["rules"].as_array())
        .flatten()
    {
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                for verb in texts(&rule["verbs"]) {
                    all.insert(format!("{group}/{resource} {verb}"));
                }
            }
        }
    }
    all
}

#[test]
fn mt_16_mt_17_mt_18_i_48_no_operator_may_act_for_others_in_pods_or_on_rights() {
    const NEVER: [&str; 12] = [
        "*",
        "/exec",
        "/attach",
        "/portforward",
        "/proxy",
        "/ephemeralcontainers",
        "serviceaccounts",
        "rbac.authorization.k8s.io",
        "admissionregistration.k8s.io",
        "apiextensions.k8s.io",
        "certificates.k8s.io",
        "authentication.k8s.io",
    ];
    for operator in OPERATORS.iter() {
        let rights = rights_of(operator);
        assert!(rights.len() > 20, "{}: {rights:?}", operator.name);
        for right in rights {
            let (what, verb) = right.split_once(' ').unwrap();
            let fine = !NEVER.iter().any(|never| what.contains(never))
                && !["*", "impersonate", "bind", "escalate", "deletecollection"].contains(&verb)
                // Secrets are created, but never read.
                && (what != "/secrets" || verb == "create");
            assert!(fine, "{}: {right}", operator.name);
        }
    }
}

#[test]
fn mt_44_an_operator_keeps_its_lease_where_no_tenant_is() {
    for operator in OPERATORS.iter() {
        let objects = rights::of_operator(operator, Scope::Cluster);
        for object in objects {
            let text = object["rules"].to_string();
            let own = object["metadata"]["namespace"] == "trainyard-system";
            assert!(
                !text.contains("leases") || own,
                "{}: {object}",
                operator.name
            );
        }
    }
}

#[test]
fn mt_54_the_roles_for_people_write_no_status() {
    for operator in OPERATORS.iter() {
        let roles = rights::of_users(operator);
        assert!(roles.len() >= 3);
        for rule in roles.iter().filter_map(|r| r["rules"].as_array()).flatten() {
            let status = rule["resources"].to_string().contains("/status");
            assert!(
                !status || rule["verbs"] == serde_json::json!(["get"]),
                "{rule}"
            );
        }
    }
}

#[test]
fn mt_58_no_manifest_asks_for_an_exemption_from_pod_security() {
    let mut namespaces = 0;
    for file in files(&root().join("manifests"), "yaml") {
        let text = fs::read_to_string(&file).unwrap();
        assert!(!text.contains("exemptions"), "{}", file.display());
        for line in text
            .lines()
            .filter(|l| l.contains("pod-security.kubernetes.io/"))
        {
            namespaces += usize::from(line.contains("/enforce:"));
            let level = line.split_once(": ").unwrap().1;
            assert!(
                ["restricted", "latest"].contains(&level),
                "{}: {line}",
                file.display()
            );
        }
    }
    assert!(namespaces >= OPERATORS.len(), "{namespaces}");
}

#[test]
fn mt_63_the_documents_say_what_a_stolen_token_may_do() {
    let page = fs::read_to_string(root().join("docs/security.md")).unwrap();
    assert!(page.contains("## What somebody with its token can do"));
    // The table of rights is generated from the same grants as the roles: see `generated_files_are_up_to_date`.
    let table = fs::read_to_string(root().join("docs/reference/rights.md")).unwrap();
    for operator in OPERATORS.iter() {
        for right in rights::of_operator(operator, Scope::Cluster)
            .iter()
            .filter_map(|o| o["rules"].as_array())
            .flatten()
        {
            for resource in right["resources"].as_array().unwrap() {
                let resource = resource.as_str().unwrap();
                let told = match right["apiGroups"][0].as_str().unwrap() {
                    "" => format!("`{resource}`"),
                    group => match resource.split_once('/') {
                        Some((resource, part)) => format!("`{resource}.{group}/{part}`"),
                        None => format!("`{resource}.{group}`"),
                    },
                };
                assert!(table.contains(&told), "{}: {told}", operator.name);
            }
        }
    }
}

/// Returns files with this suffix below a directory.
fn files(directory: &Path, end: &str) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(files(&path, end));
        } else if path.extension().is_some_and(|e| e == end) {
            all.push(path);
        }
    }
    all
}

#[test]
fn mt_67_every_dependency_is_locked_with_a_checksum_of_the_public_index() {
    let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let mut foreign = 0;
    for package in lock.split("[[package]]").skip(1) {
        let field = |name: &str| {
            let line = package
                .lines()
                .find(|l| l.starts_with(&format!("{name} = ")))?;
            Some(line.split('"').nth(1).unwrap_or_default())
        };
        let Some(source) = field("source") else {
            continue;
        };
        foreign += 1;
        assert_eq!(
            source, "registry+https://github.com/rust-lang/crates.io-index",
            "{package}"
        );
        assert!(
            field("checksum").is_some_and(|sum| sum.len() == 64),
            "{package}"
        );
    }
    assert!(foreign > 100, "{foreign}");
}

#[test]
fn mt_68_no_crate_has_unsafe_code_and_lints_hold_for_all() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    for lint in [
        "unsafe_code = \"forbid\"",
        "unwrap_used = \"deny\"",
        "panic = \"deny\"",
        "todo = \"deny\"",
    ] {
        assert!(manifest.contains(lint), "{lint}");
    }
    let mut sources = 0;
    for part in ["crates", "operators", "e2e"] {
        for file in files(&root().join(part), "toml") {
            if file.file_name().is_some_and(|name| name == "Cargo.toml") {
                let text = fs::read_to_string(&file).unwrap();
                assert!(
                    text.contains("[lints]\nworkspace = true"),
                    "{}",
                    file.display()
                );
            }
        }
    }
    // Shipped code must not disable lints.
    for part in [
        "crates/training-api",
        "crates/training-core",
        "crates/training-runtime",
        "operators",
    ] {
        for file in files(&root().join(part), "rs") {
            let path = file.strip_prefix(root()).unwrap().display().to_string();
            let is_test = path.contains("/tests") || path.contains("every-kind");
            let text = fs::read_to_string(&file).unwrap();
            sources += 1;
            assert!(!text.contains("allow(unsafe"), "{path}");
            for lint in ["unwrap_used", "clippy::panic"] {
                let off = text.contains(&format!("allow({lint})"))
                    || text.contains(&format!(
                        "allow(clippy::{}",
                        lint.trim_start_matches("clippy::")
                    ));
                assert!(is_test || !off, "{path} switches {lint} off");
            }
        }
    }
    assert!(sources > 150, "{sources}");
}
