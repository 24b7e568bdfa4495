//! Compares rendered objects with the operators' plans.

use jax_operator::JAX;
use k8s_openapi::jiff::Timestamp;
use paddle_operator::Paddle;
use serde_json::{Value, json};
use spark_operator::{Inputs, Settings, digest, submit};
use tf_operator::TensorFlow;
use training_core::Lifecycle;
use training_testkit::builders::{
    JAX as JAX_KIND, Kind, MPI, PADDLE, PYTORCH, TENSORFLOW, XGBOOST, application,
};
use training_testkit::scene;
use xgboost_operator::XGBoost;

use crate::render::{self, Rendered};

const UID: &str = "00000000-0000-0000-0000-000000000000";

fn rendered(manifest: Value) -> Rendered {
    render::of(manifest, "ns1", now()).unwrap()
}

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

fn titles(rendered: &Rendered) -> Vec<String> {
    let title = |o: &Value| format!("{} {}", o["kind"], o["metadata"]["name"]).replace('"', "");
    let mut titles: Vec<String> = rendered.objects.iter().map(title).collect();
    titles.sort();
    titles
}

fn same_as_planned<F: Lifecycle + Default>(kind: &Kind) {
    let stored = scene::job(kind, 2).set("/metadata/uid", UID).build();
    let planned = scene::first_objects(&F::default(), &serde_json::from_value(stored).unwrap());
    assert_eq!(
        rendered(kind.small_job("pt", 2).build()).objects,
        planned,
        "{}",
        kind.name
    );
}

#[test]
fn objects_are_those_of_the_plan() {
    same_as_planned::<TensorFlow>(&TENSORFLOW);
    same_as_planned::<XGBoost>(&XGBOOST);
    same_as_planned::<Paddle>(&PADDLE);
    same_as_planned::<JAX>(&JAX_KIND);
}

#[test]
fn workers_of_a_pytorch_job_have_the_shipped_init_container() {
    let rendered = rendered(PYTORCH.small_job("pt", 1).build());
    let pod = |name: &str| {
        let mut all = rendered.objects.iter();
        all.find(|o| o["kind"] == "Pod" && o["metadata"]["name"] == name)
            .unwrap()
            .clone()
    };
    let init = &pod("pt-worker-0")["spec"]["initContainers"][0];
    assert_eq!(
        init["image"],
        format!("trainyard/pytorch-operator:{}", env!("CARGO_PKG_VERSION"))
    );
    assert_eq!(init["command"][0], "/pytorch-operator");
    assert_eq!(pod("pt-master-0")["spec"]["initContainers"], Value::Null);
}

#[test]
fn an_mpi_job_is_rendered_to_its_launcher_in_both_versions() {
    for version in ["v2beta1", "v1"] {
        let mut manifest = MPI.small_job("pi", 1).build();
        manifest["apiVersion"] = json!(format!("kubeflow.org/{version}"));
        let rendered = rendered(manifest);
        assert_eq!(
            titles(&rendered),
            [
                "ConfigMap pi-config",
                "Job pi-launcher",
                "Pod pi-worker-0",
                "Secret pi-ssh",
                "Service pi",
            ],
            "{version}"
        );
    }
}

#[test]
fn a_spark_application_is_rendered_as_it_is_submitted() {
    let mut stored = application("pi");
    let rendered = rendered(stored.clone());
    assert_eq!(rendered.refused, None);
    stored["metadata"]["namespace"] = json!("ns1");
    stored["metadata"]["uid"] = json!(UID);
    stored["spec"]["restartPolicy"] = json!({ "type": "Never" });
    let spec = digest::spec_digest(&stored["spec"]);
    let app = serde_json::from_value(stored).unwrap();
    let made = submit(
        &app,
        Inputs {
            submission_id: &digest::submission_id(UID, None, &spec),
            submitted_at: now(),
            spec_digest: &spec.to_string(),
            settings: &Settings::default(),
        },
    )
    .unwrap();
    for object in [
        json!(made.driver),
        json!(made.conf),
        json!(made.executor_template),
        json!(made.driver_service),
        json!(made.ui_service),
    ] {
        let same = |o: &&Value| {
            o["kind"] == object["kind"] && o["metadata"]["name"] == object["metadata"]["name"]
        };
        let found = rendered
            .objects
            .iter()
            .find(same)
            .unwrap_or_else(|| panic!("{object}"));
        if object["kind"] != "Pod" {
            assert_eq!(*found, object);
        }
    }
    assert_eq!(rendered.objects.len(), 5);
}

#[test]
fn a_rejected_job_has_the_message_of_the_operator() {
    let none = rendered(PYTORCH.job("pt").build());
    let refused = none.refused.unwrap();
    assert!(refused.starts_with("spec.pytorchReplicaSpecs"), "{refused}");
    assert_eq!(none.objects, [] as [Value; 0]);
    let mut app = application("pi");
    app["spec"]["mainApplicationFile"] = json!("file:///pi.py");
    let refused = rendered(app).refused.unwrap();
    assert!(refused.contains("spec.mainApplicationFile"), "{refused}");
}

#[test]
fn errors_say_what_can_not_be_rendered() {
    let error = |manifest: Value| render::of(manifest, "ns1", now()).unwrap_err().to_string();
    let schedule = json!({ "apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "ScheduledSparkApplication",
        "metadata": { "name": "s" } });
    assert!(error(schedule).starts_with("a ScheduledSparkApplication creates SparkApplications"));
    let elsewhere = PYTORCH
        .small_job("pt", 1)
        .run_policy("managedBy", "kueue.x-k8s.io/multikueue");
    assert!(error(elsewhere.build()).starts_with("spec.runPolicy.managedBy"));
    assert!(
        error(json!({ "apiVersion": "kubeflow.org/v1", "kind": "TFJob" }))
            .contains("metadata.name")
    );
}

#[test]
fn a_suspended_job_has_no_objects_and_an_ignored_setting_is_reported() {
    let suspended = rendered(
        PYTORCH
            .small_job("pt", 1)
            .run_policy("suspend", true)
            .build(),
    );
    assert_eq!(suspended.objects, [] as [Value; 0]);
    assert!(suspended.notes.iter().any(|n| n.reason == "Suspended"));
    let odd = rendered(
        PYTORCH
            .small_job("pt", 1)
            .run_policy("cleanPodPolicy", "Some")
            .build(),
    );
    assert!(
        odd.notes.iter().any(|n| n.reason == "SettingIgnored"),
        "{:?}",
        odd.notes
    );
}
