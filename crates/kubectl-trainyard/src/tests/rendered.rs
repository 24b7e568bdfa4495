//! Compares rendered objects with the operators' plans.

use anyhow::Result;
use jax_operator::JAX;
use k8s_openapi::jiff::Timestamp;
use paddle_operator::Paddle;
use serde_json::{Value, json};
use spark_operator::{Inputs, Settings, digest, submit};
use tf_operator::TensorFlow;
use training_core::Lifecycle;
use training_testkit::builders::{
    EVERY_KIND, JAX as JAX_KIND, Kind, MPI, PADDLE, PYTORCH, SPARK, TENSORFLOW, TRAINING, XGBOOST,
    application,
};
use training_testkit::scene;
use xgboost_operator::XGBoost;

use crate::flags::{self, Flags};
use crate::kinds;
use crate::render::{self, Rendered};

const UID: &str = "00000000-0000-0000-0000-000000000000";

fn rendered(manifest: Value) -> Rendered {
    with_flags(manifest, "").unwrap()
}

fn with_flags(manifest: Value, flags: &str) -> Result<Rendered> {
    let flags = Flags::shipped(&kinds::of_manifest(&manifest)?, flags)?;
    render::of(manifest, "ns1", &flags, now())
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
    let error = |manifest: Value| with_flags(manifest, "").unwrap_err().to_string();
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

#[test]
fn the_flags_of_the_operator_change_the_objects() {
    let titles_with = |kind: &Kind, flags: &str| {
        titles(&with_flags(kind.small_job("pt", 1).build(), flags).unwrap())
    };
    for kind in TRAINING {
        let plain = titles_with(&kind, "");
        for (flags, groups) in [
            ("--gang=volcano", &["PodGroup pt"][..]),
            ("-gang-scheduler-name volcano", &["PodGroup pt"]),
            ("--gang=scheduler-plugins", &["PodGroup pt"]),
            ("--gang=native", &["PodGroup pt", "Workload pt"]),
        ] {
            let mut expected = plain.clone();
            expected.extend(groups.iter().map(|title| (*title).to_owned()));
            expected.sort();
            assert_eq!(titles_with(&kind, flags), expected, "{} {flags}", kind.name);
        }
        let refused = with_flags(kind.small_job("pt", 4).build(), "--max-replicas-per-job=2");
        let refused = refused.unwrap().refused.unwrap();
        assert!(refused.contains("use at most 2"), "{refused}");
    }
    let property = "--default-conf='spark.a=b c'";
    let conf = with_flags(application("pi"), property).unwrap();
    assert!(json!(conf.objects).to_string().contains("b c"));
    let image = with_flags(
        PYTORCH.small_job("pt", 1).build(),
        "--pytorch-init-container-image=mine",
    );
    assert!(
        json!(image.unwrap().objects)
            .to_string()
            .contains(r#""image":"mine""#)
    );
}

#[test]
fn invalid_flags_are_named() {
    for kind in EVERY_KIND {
        let job = if kind == SPARK {
            application("pi")
        } else {
            kind.small_job("pt", 1).build()
        };
        let error = |flags: &str| with_flags(job.clone(), flags).unwrap_err().to_string();
        assert_eq!(
            error("--gangs=volcano"),
            "invalid operator flags: unexpected argument '--gangs' found"
        );
        assert!(error("--strict='").contains("close it"));
    }
}

/// The variables and the file of a Deployment count like its flags.
#[test]
fn flags_are_read_from_a_deployment() {
    let deployment = |container: Value| {
        let volumes = json!([{ "name": "c", "configMap": { "name": "init" } }]);
        let spec = json!({ "containers": [{ "name": "sidecar", "command": ["/sidecar"] }, container], "volumes": volumes });
        let deployment = json!({
            "metadata": { "name": "mine", "namespace": "team-a" },
            "spec": { "selector": {}, "template": { "spec": spec } },
        });
        serde_json::from_value(deployment).unwrap()
    };
    let container = json!({
        "name": "any", "command": ["/pytorch-operator"], "args": ["--max-replicas-per-job=3", "--namespace=$(POD_NAMESPACE)"],
        "env": [
            { "name": "TRAINYARD_MAX_REPLICAS_PER_JOB", "value": "2" },
            { "name": "TRAINYARD_GANG", "value": "volcano" },
            { "name": "POD_NAMESPACE", "valueFrom": { "fieldRef": { "fieldPath": "metadata.namespace" } } },
        ],
        "volumeMounts": [{ "name": "c", "mountPath": "/etc/config" }],
    });
    let deployment = deployment(container);
    let operator = |kind: &str| {
        let all = kinds::all();
        all.iter().find(|k| k.name() == kind).unwrap().operator
    };
    let settings = operator("PyTorchJob").settings(&deployment).unwrap();
    assert_eq!(settings.namespaces, ["team-a"]);
    let other = Flags::of_deployment(&operator("MPIJob"), &deployment).unwrap_err();
    assert_eq!(
        other.to_string(),
        "Deployment mine does not run mpi-operator: name that of mpi-operator"
    );
    let mut flags = Flags::of_deployment(&operator("PyTorchJob"), &deployment).unwrap();
    let [mount] = <[flags::Mount; 1]>::try_from(flags::mounts(&deployment)).unwrap();
    assert_eq!((&*mount.path, &*mount.config), ("/etc/config", "init"));
    let template = "- {name: mine, image: any}";
    let config = json!({ "data": { "initContainer.yaml": template } });
    flags.add(&mount, serde_json::from_value(config).unwrap());
    let render = |workers| {
        let job = PYTORCH.small_job("pt", workers).build();
        render::of(job, "ns1", &flags, now()).unwrap()
    };
    let rendered = render(2);
    assert!(titles(&rendered).contains(&"PodGroup pt".to_owned()));
    assert!(
        json!(rendered.objects)
            .to_string()
            .contains(r#""name":"mine""#)
    );
    let refused = render(3).refused.unwrap();
    assert!(refused.contains("use at most 3"), "{refused}");
}
