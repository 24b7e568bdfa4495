//! The installed CRD in its two versions.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Value, json};

/// The whole CRD; building it is slow without optimisation.
static CRD: LazyLock<Value> =
    LazyLock::new(|| serde_json::to_value(mpi_operator::api::crd().unwrap()).unwrap());

fn versions() -> BTreeMap<String, Value> {
    let versions = CRD["spec"]["versions"].as_array().unwrap();
    versions
        .iter()
        .map(|v| (v["name"].as_str().unwrap().to_owned(), v.clone()))
        .collect()
}

fn spec(version: &Value) -> &Value {
    &version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
}

/// Collects the paths of all properties of a schema.
fn properties(path: &str, schema: &Value, all: &mut Vec<String>) {
    for (name, child) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        all.push(path.clone());
        properties(&path, child, all);
    }
    for key in ["items", "additionalProperties"] {
        if schema[key].is_object() {
            properties(&format!("{path}.{key}"), &schema[key], all);
        }
    }
}

#[test]
fn both_versions_are_served_and_the_newer_one_is_stored() {
    assert_eq!(CRD["metadata"]["name"], "mpijobs.kubeflow.org");
    assert_eq!(CRD["spec"]["scope"], "Namespaced");
    assert_eq!(CRD["spec"]["conversion"], Value::Null, "no webhook");
    assert_eq!(CRD["spec"]["names"]["shortNames"], json!(["mpij"]));
    assert_eq!(CRD["spec"]["names"]["categories"], json!(["trainyard"]));
    for version in versions().values() {
        let selector = &version["subresources"]["scale"]["labelSelectorPath"];
        assert_eq!(*selector, ".status.workerSelector");
        let columns = version["additionalPrinterColumns"].as_array().unwrap();
        let names: Vec<_> = columns.iter().map(|column| &column["name"]).collect();
        let all = ["State", "Ready", "Restarts", "Waiting", "Age", "Reason"];
        assert_eq!(names, all);
    }
    let told: Vec<_> = versions()
        .iter()
        .map(|(name, v)| (name.clone(), v["served"].clone(), v["storage"].clone()))
        .collect();
    assert_eq!(
        told,
        [
            ("v1".to_owned(), json!(true), json!(false)),
            ("v2beta1".to_owned(), json!(true), json!(true)),
        ]
    );
}

#[test]
fn both_versions_have_the_same_properties_so_that_neither_prunes_the_others() {
    let all = versions().into_values().map(|version| {
        let mut all = Vec::new();
        properties("", &version["schema"]["openAPIV3Schema"], &mut all);
        all
    });
    let all: Vec<_> = all.collect();
    assert_eq!(all[0], all[1]);
    assert!(all[0].len() > 500, "{}", all[0].len());
}

#[test]
fn they_differ_in_one_default_alone() {
    let mut versions = versions();
    let (mut v1, v2) = (
        versions.remove("v1").unwrap(),
        versions.remove("v2beta1").unwrap(),
    );
    assert_eq!(spec(&v1)["submittedAs"]["default"], "v1");
    assert_eq!(spec(&v2)["submittedAs"]["default"], "v2beta1");
    let default = "/schema/openAPIV3Schema/properties/spec/properties/submittedAs/default";
    *v1.pointer_mut(default).unwrap() = json!("v2beta1");
    (v1["name"], v1["storage"]) = (json!("v2beta1"), json!(true));
    assert_eq!(v1, v2);
}

#[test]
fn the_published_defaults_are_there() {
    for version in versions().values() {
        let spec = spec(version);
        for (field, default) in [
            ("slotsPerWorker", json!(1)),
            ("runLauncherAsWorker", json!(false)),
            ("mpiImplementation", json!("OpenMPI")),
            ("launcherCreationPolicy", json!("AtStartup")),
            ("sshAuthMountPath", json!("/root/.ssh")),
            ("runPolicy", json!({})),
        ] {
            assert_eq!(spec[field]["default"], default, "{field}");
        }
        assert_eq!(
            spec["launcherCreationPolicy"]["enum"],
            Value::Null,
            "any value is accepted"
        );
        let policy = &spec["runPolicy"]["properties"];
        assert_eq!(policy["suspend"]["default"], false);
        assert_eq!(
            policy["managedBy"]["enum"],
            json!([
                "kubeflow.org/mpi-operator",
                "kubeflow.org/training-operator",
                "kueue.x-k8s.io/multikueue"
            ])
        );
        let queue = &policy["schedulingPolicy"]["properties"]["queue"];
        assert_eq!(
            queue["x-kubernetes-validations"],
            Value::Null,
            "it is mutable"
        );
    }
}

#[test]
fn the_crd_is_small_enough_for_plain_kubectl_apply() {
    let size = CRD.to_string().len();
    assert!(size < 262_144, "{size} bytes");
}
