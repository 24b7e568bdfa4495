//! The fields read from pods and other objects, and the secrets masked in them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Service;
use serde_json::{Value, json};
use spark_operator::api::Role;
use spark_operator::lifecycle::mask::Mask;
use spark_operator::lifecycle::observed::{Driver, Executor, Kind};
use spark_operator::lifecycle::slim::{Pod, RunObject};
use training_core::PodPhase;

use super::scene::{UID, set, typed, with};

fn pod(role: &str, fields: &[(&str, Value)]) -> Pod {
    let mut pod = json!({
        "metadata": {
            "name": "pi-1", "uid": "22222222-2222-4222-8222-222222222222",
            "creationTimestamp": "2026-05-28T20:26:40Z",
            "labels": {
                "spark-role": role, "spark-app-selector": "spark-1", "sparkoperator.k8s.io/submission-id": "s-1",
            },
            "annotations": { "trainyard.dev/generation": "7", "trainyard.dev/spec-digest": "1-00ff" },
            "ownerReferences": [
                { "apiVersion": "v1", "kind": "Pod", "name": "other", "uid": "other", "controller": role != "driver" },
                {
                    "apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication", "name": "pi",
                    "uid": UID, "controller": role == "driver",
                },
            ],
        },
        "status": { "phase": "Running" },
    });
    for (path, value) in fields {
        set(&mut pod, path, value.clone());
    }
    serde_json::from_value(pod).unwrap()
}

fn driver(fields: &[(&str, Value)]) -> Driver {
    pod("driver", fields)
        .driver()
        .unwrap()
        .masked(&Mask::default())
}

fn terminated(role: &str, message: &str) -> (&'static str, Value) {
    let ended = json!({ "terminated": { "exitCode": 3, "reason": "Error", "message": message } });
    let sidecar = json!({ "terminated": { "exitCode": 9, "reason": "Error" } });
    (
        "status/containerStatuses",
        json!([
            { "name": "sidecar", "state": sidecar },
            { "name": format!("spark-kubernetes-{role}"), "state": ended },
        ]),
    )
}

#[test]
fn a_driver_is_read_with_what_it_was_made_from() {
    let read = driver(&[]);
    assert!(!read.terminating);
    assert_eq!(
        (read.submission_id.as_str(), read.app_id.as_str()),
        ("s-1", "spark-1")
    );
    assert_eq!(read.generation, Some(7));
    assert_eq!(read.digest.unwrap().to_string(), "1-00ff");
    assert_eq!(read.phase, PodPhase::Running);
    assert_eq!(
        (read.end, read.disruption, read.waiting),
        (None, None, None)
    );
    assert!(driver(&[("metadata/deletionTimestamp", json!("2026-05-28T20:26:40Z"))]).terminating);
    assert_eq!(pod("driver", &[]).role(), Some(Role::Driver));
    assert_eq!(pod("executor", &[]).role(), Some(Role::Executor));
    assert_eq!(pod("neither", &[]).role(), None);
}

#[test]
fn only_its_controller_owns_a_driver_and_any_owner_an_executor() {
    assert_eq!(pod("driver", &[]).owner().unwrap().uid, UID);
    let not = [("metadata/ownerReferences/1/controller", json!(false))];
    assert_eq!(pod("driver", &not).driver(), None, "only one of its owners");
    let executor = pod("executor", &[]);
    assert_eq!(executor.driver(), None);
    assert_eq!(executor.owner().unwrap().uid, UID);
    let Executor { name, created, .. } = executor.executor().unwrap();
    assert_eq!(
        (name.as_str(), created.as_second()),
        ("pi-1", 1_780_000_000)
    );
    for (field, other) in [("apiVersion", "example.org/v1"), ("kind", "SparkConnect")] {
        let path = format!("metadata/ownerReferences/1/{field}");
        let other = pod("executor", &[(path.as_str(), json!(other))]);
        assert_eq!((other.owner(), other.executor()), (None, None), "{field}");
    }
}

#[test]
fn the_container_that_runs_spark_says_how_the_pod_ended() {
    let end = driver(&[terminated("driver", "boom")]).end.unwrap();
    assert_eq!(
        (end.code, end.reason.as_str(), end.message.as_str()),
        (3, "Error", "boom")
    );
    let executor = pod("executor", &[terminated("executor", "boom")]);
    assert_eq!(executor.executor().unwrap().end.unwrap().code, 3);
    assert_eq!(driver(&[terminated("executor", "boom")]).end, None);
}

#[test]
fn last_words_that_are_cut_begin_with_an_ellipsis() {
    let long = "ä".repeat(1000) + "!";
    let said = driver(&[terminated("driver", &long)]).end.unwrap().message;
    assert_eq!(said, format!("…{}!", "ä".repeat(510)));
}

#[test]
fn the_cause_of_a_failure_stands_before_its_stack_and_is_not_cut_off() {
    let cause = "Exception in thread \"main\" java.lang.IllegalArgumentException: no such file";
    let stack = "\tat org.apache.spark.SparkContext.<init>(SparkContext.scala:700)\n".repeat(20);
    let end =
        "26/11/23 02:00:00 INFO ShutdownHookManager: Deleting directory /tmp/spark-x\n".repeat(5);
    let long = format!("{cause}\n{stack}\t... 20 more\n{end}bye");
    let said = driver(&[terminated("driver", &long)]).end.unwrap().message;
    assert_eq!(said, format!("{cause}\nbye"));
    let short = format!("{cause}\n\tat somewhere");
    let said = driver(&[terminated("driver", &short)]).end.unwrap().message;
    assert_eq!(said, short, "a text that fits is unchanged");
    let said = driver(&[terminated("driver", &stack)]).end.unwrap().message;
    assert_eq!(said.len(), 1024, "a stack alone is better than nothing");
}

#[test]
fn a_container_of_another_name_is_known_by_its_annotation() {
    let ended = (
        "status/containerStatuses",
        json!([
            {"name": "main", "state": {"terminated": {"exitCode": 3, "reason": "Error"}}},
            {"name": "spark-kubernetes-driver", "state": {"terminated": {"exitCode": 0}}},
        ]),
    );
    let code = |fields: &[(&str, Value)]| driver(fields).end.unwrap().code;
    assert_eq!(code(std::slice::from_ref(&ended)), 0);
    let named = (
        "metadata/annotations",
        json!({"trainyard.dev/spark-container": "main"}),
    );
    assert_eq!(code(&[ended, named]), 3);
}

#[test]
fn mt_23_colours_and_carriage_returns_are_left_out() {
    let said = driver(&[terminated("driver", "\u{1b}[31mred\r\n\tline\0")]);
    assert_eq!(
        said.masked(&Mask::default()).end.unwrap().message,
        "[31mred\n\tline"
    );
}

#[test]
fn i_51_mt_25_last_words_do_not_tell_what_the_spec_keeps_secret() {
    let app = typed(&with(&[
        (
            "sparkConf",
            json!({"spark.hadoop.fs.s3a.secret.key": "hunter22", "spark.app.token": "abc", "spark.ui.port": "4040"}),
        ),
        ("hadoopConf", json!({"fs.azure.Password": "hunter2"})),
        (
            "driver/env",
            json!([{"name": "DB_PASSWORD", "value": "swordfish"}, {"name": "PLAIN", "value": "plain"}]),
        ),
        ("executor/envVars", json!({"API_TOKEN": "tok-12345"})),
        (
            "driver/template",
            json!({"spec": {"containers": [{"name": "a", "env": [{"name": "API_TOKEN", "value": "templated"}]}]}}),
        ),
        (
            "driver/sidecars",
            json!([{"name": "b", "env": [{"name": "PASSWORD", "value": "beside"}]}]),
        ),
    ]));
    let defaults = [("spark.ssl.keyPassword".to_owned(), "for-all".to_owned())];
    let mask = Mask::of(&app.spec, &BTreeMap::from(defaults));
    let pod = pod(
        "driver",
        &[terminated(
            "driver",
            "hunter22 hunter2 swordfish tok-12345 templated beside for-all abc plain 4040",
        )],
    );
    let said = pod.driver().unwrap().masked(&mask).end.unwrap().message;
    let hidden = "*********(redacted)";
    assert_eq!(said, format!("{} abc plain 4040", [hidden; 7].join(" ")));
}

#[test]
fn a_pod_that_was_taken_away_says_by_whom() {
    for (fields, expected) in [
        (
            vec![
                ("status/phase", json!("Failed")),
                ("status/reason", json!("Evicted")),
                ("status/message", json!("disk")),
            ],
            ("Evicted", "disk"),
        ),
        (
            vec![(
                "status/conditions",
                json!([{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "for a"}]),
            )],
            ("PreemptionByScheduler", "for a"),
        ),
    ] {
        let taken = driver(&fields).disruption.unwrap();
        assert_eq!((taken.0.as_str(), taken.1.as_str()), expected);
    }
    assert_eq!(
        driver(&[("status/phase", json!("Failed"))]).disruption,
        None
    );
}

#[test]
fn a_pod_that_does_not_start_says_why_and_since_when() {
    let scheduled = |status: &str, reason: &str| {
        json!([{
            "type": "PodScheduled", "status": status, "reason": reason, "message": "0/3 nodes",
            "lastTransitionTime": "2026-05-28T20:27:40Z",
        }])
    };
    let waiting = |reason: &str| json!([{"name": "any", "state": {"waiting": {"reason": reason, "message": "no"}}}]);
    let waits = driver(&[("status/conditions", scheduled("False", "Unschedulable"))])
        .waiting
        .unwrap();
    assert_eq!(
        (waits.reason.as_str(), waits.message.as_str()),
        ("Unschedulable", "0/3 nodes")
    );
    assert_eq!(waits.since.as_second(), 1_780_000_060);
    for list in ["status/containerStatuses", "status/initContainerStatuses"] {
        let waits = driver(&[
            (list, waiting("ImagePullBackOff")),
            ("status/conditions", scheduled("True", "")),
        ]);
        let waits = waits.waiting.unwrap();
        assert_eq!(
            (waits.reason.as_str(), waits.since.as_second()),
            ("ImagePullBackOff", 1_780_000_060)
        );
        assert_eq!(
            driver(&[(list, waiting("ContainerCreating"))]).waiting,
            None
        );
    }
}

#[test]
fn a_pod_without_volumes_or_network_waits_for_them_and_one_that_pulls_its_image_does_not() {
    let conditions = |ready: &str| {
        let of = |type_: &str, status: &str, second: u32| {
            json!({
                "type": type_, "status": status,
                "lastTransitionTime": format!("2026-05-28T20:27:{second}Z"),
            })
        };
        json!([
            of("PodReadyToStartContainers", ready, 41),
            of("PodScheduled", "True", 40)
        ])
    };
    let creating = json!([{"name": "any", "state": {"waiting": {"reason": "ContainerCreating"}}}]);
    let of = |ready: &str, status: &Value| {
        driver(&[
            ("status/conditions", conditions(ready)),
            ("status/containerStatuses", status.clone()),
        ])
        .waiting
    };
    let waits = of("False", &creating).unwrap();
    assert_eq!(
        (waits.reason.as_str(), waits.since.as_second()),
        ("PodNotStarting", 1_780_000_061)
    );
    assert_eq!(of("True", &creating), None);
    let wrong = json!([{"name": "any", "state": {"waiting": {"reason": "InvalidImageName"}}}]);
    assert_eq!(of("False", &wrong).unwrap().reason, "InvalidImageName");
}

#[test]
fn services_have_addresses_and_headless_ones_none() {
    let thing_with = |ip: &str, labels: Value| -> RunObject<Service> {
        serde_json::from_value(json!({
            "metadata": {
                "name": "ui", "uid": "22222222-2222-4222-8222-222222222222", "labels": labels,
                "ownerReferences": [{
                    "apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication", "name": "pi", "uid": UID,
                    "controller": true,
                }],
            },
            "spec": { "clusterIP": ip, "ports": [{ "port": 4040, "targetPort": 4041 }] },
        }))
        .unwrap()
    };
    let thing = |ip: &str| thing_with(ip, json!({"sparkoperator.k8s.io/submission-id": "s-1"}));
    let object = thing("10.0.0.7").object(Kind::Service).unwrap();
    assert_eq!(object.address, Some(("10.0.0.7".to_owned(), 4040)));
    assert_eq!(thing("None").object(Kind::Service).unwrap().address, None);
    assert_eq!(thing("10.0.0.7").owner().unwrap().uid, UID);
    let users = thing_with("10.0.0.7", json!({}));
    assert_eq!(users.object(Kind::Service), None, "it is of no submission");
}
