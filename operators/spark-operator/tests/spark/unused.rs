//! Fields that are accepted and have no effect.

use serde_json::{Value, json};
use spark_operator::submission::{BatchSettings, Settings, Switch};

use crate::scene::{json as to_json, submitted, template, try_submit, with};

/// Returns the messages about an application with these fields.
fn told(fields: &[(&str, Value)], settings: &Settings) -> Vec<String> {
    let notes = try_submit(&with(fields), settings).unwrap().notes;
    let notes = notes.into_iter();
    notes
        .map(|note| {
            assert_eq!(note.reason, "SettingIgnored");
            note.message
        })
        .collect()
}

#[test]
fn fields_of_a_template_that_pods_do_not_have_are_named_in_one_event() {
    // The published example has fields of containers in the pod's security context.
    let security = json!({ "capabilities": { "drop": ["ALL"] }, "runAsUser": 185, "allowPrivilegeEscalation": false });
    let pod = json!({ "spec": { "securityContext": security, "containers": [{ "name": "x", "odd": 1 }] } });
    let fields = [("driver/template", pod.clone()), ("executor/template", pod)];
    let made = submitted(&with(&fields));
    let [note] = made.notes.as_slice() else {
        panic!("{:?}", made.notes)
    };
    assert_eq!(note.reason, "SettingIgnored");
    for role in ["driver", "executor"] {
        for field in [
            "spec.securityContext.capabilities",
            "spec.securityContext.allowPrivilegeEscalation",
            "spec.containers[0].odd",
        ] {
            let path = format!("spec.{role}.template.{field}");
            assert!(note.message.contains(&path), "{path}: {}", note.message);
        }
    }
    for pod in [to_json(&made.driver), template(&made)] {
        assert_eq!(pod["spec"]["securityContext"], json!({ "runAsUser": 185 }));
    }
}

#[test]
fn finalizers_and_owners_of_templates_are_told() {
    let owner = json!({ "apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u" });
    let metadata = json!({ "finalizers": ["example.com/f"], "ownerReferences": [owner] });
    for role in ["driver", "executor"] {
        let path = format!("{role}/template/metadata");
        let all = told(&[(path.as_str(), metadata.clone())], &Settings::default());
        let at = format!("spec.{role}.template.metadata");
        assert_eq!(
            all[0],
            format!(
                "{at}.finalizers are ignored: they would block the replacement of a deleted pod until they are removed"
            )
        );
        let owners = format!("{at}.ownerReferences are ignored: ");
        assert!(all[1].starts_with(&owners), "{all:?}");
        assert_eq!(all.len(), 2, "{all:?}");
    }
    let none = json!({ "finalizers": [], "creationTimestamp": null });
    let fields = [("driver/template/metadata", none)];
    assert_eq!(told(&fields, &Settings::default()), [""; 0]);
}

#[test]
fn fields_without_effect_are_named_in_one_event() {
    let fields = [
        ("driverPodDisruptionBudget", json!(true)),
        ("mainApplicationFile", json!("local:///pi.py")),
        ("sparkUIOptions/ingressTLS", json!([{ "hosts": ["h"] }])),
        ("sparkUIOptions/ingressAnnotations", json!({ "a": "b" })),
        ("batchSchedulerOptions", json!({ "queue": "q" })),
        (
            "restartPolicy",
            json!({ "type": "Never", "onFailureRetries": 3, "onFailureRetryInterval": 10 }),
        ),
        ("dynamicAllocation", json!({ "maxExecutors": 3 })),
        ("deps/repositories", json!(["https://example.com"])),
        (
            "volumes",
            json!([{ "name": "used", "emptyDir": {} }, { "name": "lost", "emptyDir": {} }]),
        ),
        (
            "executor/volumeMounts",
            json!([{ "name": "used", "mountPath": "/x" }]),
        ),
        (
            "driver/template",
            json!({
                "metadata": { "name": "n", "labels": { "sparkoperator.k8s.io/x": "y" } },
                "spec": {
                    "restartPolicy": "Always",
                    "containers": [
                        { "name": "other", "image": "kept" },
                        {
                            "name": "spark-kubernetes-driver", "image": "replaced",
                            "resources": { "requests": { "cpu": "1", "example.com/x": "1" } },
                        },
                    ],
                },
            }),
        ),
    ];
    let all = told(&fields, &Settings::default());
    let [one] = all.as_slice() else {
        panic!("{all:?}")
    };
    let mut named: Vec<&str> = one
        .split(' ')
        .filter(|word| word.starts_with("spec."))
        .collect();
    named.sort_unstable();
    let mut expected = [
        "spec.mainClass",
        "spec.driverPodDisruptionBudget",
        "spec.sparkUIOptions.ingressTLS",
        "spec.sparkUIOptions.ingressAnnotations",
        "spec.batchSchedulerOptions",
        "spec.restartPolicy.onFailureRetries",
        "spec.restartPolicy.onFailureRetryInterval",
        "spec.dynamicAllocation",
        "spec.deps.repositories",
        "spec.volumes[1]",
        "spec.driver.template.metadata.name",
        "spec.driver.template.metadata.labels[sparkoperator.k8s.io/x]",
        "spec.driver.template.spec.restartPolicy",
        "spec.driver.template.spec.containers[1].image",
        "spec.driver.template.spec.containers[1].resources.requests.cpu",
    ];
    expected.sort_unstable();
    assert_eq!(named, expected, "{one}");
}

#[test]
fn fields_that_have_an_effect_are_not_told() {
    let mut settings = Settings {
        disruption_budget: Switch::On,
        batch: BatchSettings {
            enabled: Switch::On,
            ..BatchSettings::default()
        },
        ..Settings::default()
    };
    "h".clone_into(&mut settings.web.url_format);
    let fields = [
        ("driverPodDisruptionBudget", json!(true)),
        (
            "sparkUIOptions",
            json!({ "servicePort": 80, "ingressAnnotations": { "a": "b" }, "ingressTLS": [{ "hosts": ["h"] }] }),
        ),
        ("batchScheduler", json!("volcano")),
        (
            "batchSchedulerOptions",
            json!({ "queue": "q", "priorityClassName": "p", "resources": { "cpu": "1" } }),
        ),
        (
            "restartPolicy",
            json!({ "type": "OnFailure", "onFailureRetries": 3, "onFailureRetryInterval": 10 }),
        ),
        (
            "dynamicAllocation",
            json!({ "enabled": true, "maxExecutors": 3 }),
        ),
    ];
    assert_eq!(told(&fields, &settings), [""; 0]);
    let mut of_yunikorn = fields.clone();
    of_yunikorn[2].1 = json!("yunikorn");
    let all = told(&of_yunikorn, &settings);
    let [one] = all.as_slice() else {
        panic!("{all:?}")
    };
    assert!(!one.contains("queue ("), "{one}");
    for field in ["priorityClassName", "resources"] {
        let path = format!("spec.batchSchedulerOptions.{field} (");
        assert!(one.contains(&path), "{one}");
    }
}
