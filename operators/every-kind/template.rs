//! Which fields of a template reach the pod, which the operator overrides, and the events about it.

use k8s_openapi::api::core::v1::{EnvVar, Pod};
use serde_json::{Value, json};
use training_testkit::scene::first_pods;

use crate::scene::{KIND, Scene, VARIABLE, WORKER, framework, pt, typed, world};

/// The pods of a job of three whose worker template has this value.
fn pods(path: &str, value: Value) -> Vec<Pod> {
    let job = pt(2).set(&format!("{WORKER}/template{path}"), value);
    let pods = first_pods(&framework(), &typed(job));
    assert_eq!(pods.len(), 3);
    pods
}

/// The pod of the last worker.
fn last(path: &str, value: Value) -> Pod {
    pods(path, value).pop().unwrap()
}

#[test]
fn b_038_b_039_the_templates_name_and_our_labels_in_it_have_no_effect() {
    let meta = json!({
        "name": "mine", "namespace": "other", "finalizers": ["e.com/f"],
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}],
        "labels": {
            "training.kubeflow.org/job-name": "x", "training.kubeflow.org/replica-index": "9",
            "training.kubeflow.org/job-role": "master", "team": "a",
        },
        "annotations": {"trainyard.dev/attempt": "9.9", "note": "b"},
    });
    let pod = last("/metadata", meta).metadata;
    let name = pod.name.unwrap();
    let index = name.rsplit('-').next().unwrap();
    assert_eq!(name, format!("pt-worker-{index}"));
    assert_eq!(pod.namespace.as_deref(), Some("ns1"));
    assert_eq!(pod.finalizers, None);
    let owners: Vec<String> = pod
        .owner_references
        .into_iter()
        .flatten()
        .map(|o| o.kind)
        .collect();
    assert_eq!(owners, [KIND.name]);
    assert_eq!(
        json!(pod.labels),
        json!({
            "training.kubeflow.org/operator-name": KIND.controller,
            "training.kubeflow.org/job-name": "pt",
            "training.kubeflow.org/replica-type": "worker",
            "training.kubeflow.org/replica-index": index,
            "team": "a",
        })
    );
    assert_eq!(
        json!(pod.annotations),
        json!({"trainyard.dev/attempt": "0.0", "note": "b"})
    );
}

#[test]
fn b_038_b_039_b_110_b_127_what_a_template_cannot_set_is_told() {
    let rows = [
        (
            "/metadata",
            json!({"labels": {"training.kubeflow.org/job-role": "x"}}),
            "job-role is the operator's own",
        ),
        (
            "/metadata",
            json!({"name": "mine"}),
            "pods get their names from the job",
        ),
        (
            "/metadata",
            json!({"finalizers": ["e.com/f"]}),
            "metadata.finalizers are ignored",
        ),
        ("/spec/hostNetwork", json!(true), "get in each other's way"),
        ("/spec/hostname", json!("mine"), "each pod has its own name"),
        (
            "/spec/subdomain",
            json!("mine"),
            "each pod has its own name",
        ),
    ];
    for (at, value, said) in rows {
        let mut world = world(pt(2).set(&format!("{WORKER}/template{at}"), value));
        world.settle();
        let mut notes = world.notes.iter().filter(|n| n.message.contains(said));
        let note = notes
            .next()
            .unwrap_or_else(|| panic!("{said}: {:?}", world.notes));
        assert!(notes.next().is_none(), "{said}: {:?}", world.notes);
        let reason = if at.ends_with("hostNetwork") {
            "RiskySetting"
        } else {
            "SettingIgnored"
        };
        assert_eq!(note.reason, reason);
        assert_eq!(world.pod_names().len(), 3);
    }
}

#[test]
fn b_127_every_pod_keeps_its_own_host_name() {
    let pods = pods("/spec", {
        let mut spec = pt(2)
            .build()
            .pointer(&format!("{WORKER}/template/spec"))
            .cloned()
            .unwrap();
        spec["hostname"] = json!("mine");
        spec["subdomain"] = json!("svc");
        spec
    });
    for pod in pods {
        let spec = pod.spec.unwrap();
        assert_eq!((spec.hostname, spec.subdomain), (None, None));
    }
}

/// The variables of the main container of a worker with this value.
fn variables(own: Value) -> Vec<EnvVar> {
    let pod = last("/spec/containers/0/env", own);
    let mut containers = pod.spec.unwrap().containers.into_iter();
    containers.next().unwrap().env.unwrap_or_default()
}

#[test]
fn b_115_an_injected_variable_replaces_the_users_once_and_that_is_told_once() {
    let own = json!([{"name": VARIABLE, "value": "mine"}]);
    let env = variables(own.clone());
    let values: Vec<_> = env
        .iter()
        .filter(|e| e.name == VARIABLE)
        .map(|e| e.value.as_deref())
        .collect();
    assert_eq!(values.len(), 1, "{env:?}");
    assert_ne!(values[0], Some("mine"), "{env:?}");
    // If a queue holds the job, the event comes when the job starts.
    for held in [false, true] {
        let job = pt(2).set(
            &format!("{WORKER}/template/spec/containers/0/env"),
            own.clone(),
        );
        let mut world = world(job.run_policy("suspend", held));
        let told = |notes: &[training_core::Note]| {
            notes.iter().filter(|n| n.reason == "EnvReplaced").count()
        };
        world.settle();
        assert_eq!(told(&world.notes), usize::from(!held));
        world.set("/spec/runPolicy/suspend", json!(false));
        world.settle();
        assert_eq!(told(&world.notes), 1);
    }
}

#[test]
fn b_115_b_116_the_users_variables_come_before_ours_and_may_refer_to_them() {
    let text = format!("$({VARIABLE})");
    let env = variables(json!([{"name": "MINE", "value": text}]));
    assert_eq!(
        (env[0].name.as_str(), env[0].value.as_deref()),
        ("MINE", Some(text.as_str()))
    );
    assert!(env[1..].iter().any(|e| e.name == VARIABLE), "{env:?}");
    let pod = last("/spec/containers/0/args", json!([text]));
    let args = pod.spec.unwrap().containers[0].args.clone();
    assert_eq!(args, Some(vec![text]), "the kubelet expands it");
}
