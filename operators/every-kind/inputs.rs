//! Hostile values in any field of a job: nothing reaches beyond the job's namespace and permissions, and no user text becomes part
//! of another text.

use serde_json::{Value, json};
use training_core::Step;
use training_testkit::builders::Job;
use training_testkit::hostile::{self, HOSTILE};
use training_testkit::scene::{first_objects, first_pods};

use super::gangs::under;
use super::ranks::{chief_spec, each, worker};
use crate::scene::{CHIEF, KIND, Scene, WORKER, framework, pt, typed, world};

fn objects(job: Job) -> Vec<Value> {
    first_objects(&framework(), &typed(job))
}

fn pods(job: Job) -> Vec<Value> {
    let pods = first_pods(&framework(), &typed(job));
    pods.iter()
        .map(|pod| serde_json::to_value(pod).unwrap())
        .collect()
}

fn of_worker(pods: &[Value]) -> &Value {
    let is_it = |pod: &&Value| pod["metadata"]["name"] == worker(0);
    pods.iter().find(is_it).unwrap()
}

/// Events of a job that an operator with this gang scheduler sees for the first time.
fn told(provider: &str, job: Job) -> String {
    let mut world = under(provider, job);
    world.settle();
    world.events().join("\n")
}

#[test]
fn b_095_a_scheduler_that_waits_longer_than_the_job_may_run_is_warned_of() {
    let text = "scheduleTimeoutSeconds: 100 is longer than activeDeadlineSeconds, ";
    for (deadline, warned) in [(99, true), (100, false)] {
        let job = pt(1)
            .run_policy("schedulingPolicy", json!({"scheduleTimeoutSeconds": 100}))
            .run_policy("activeDeadlineSeconds", deadline);
        let told = told("scheduler-plugins", job);
        assert_eq!(told.contains(text), warned, "{deadline}: {told}");
    }
}

#[test]
fn b_096_a_scheduling_policy_without_a_gang_scheduler_is_warned_of() {
    let job = || pt(1).run_policy("schedulingPolicy", json!({"minAvailable": 2}));
    let text = "Warning SettingIgnored: spec.runPolicy.schedulingPolicy";
    for (provider, warned) in [("none", true), ("scheduler-plugins", false)] {
        let told = told(provider, job());
        assert_eq!(told.contains(text), warned, "{provider}: {told}");
    }
}

#[test]
fn b_124_a_node_or_a_scheduler_in_the_template_of_a_gang_is_warned_of() {
    let worker = format!("{WORKER}/template/spec");
    let node = pt(1).set(&format!("{worker}/nodeName"), "n");
    let scheduler = pt(1).set(&format!("{worker}/schedulerName"), "theirs");
    for provider in ["volcano", "scheduler-plugins"] {
        let told_of_node = told(provider, node.clone());
        assert!(
            told_of_node.contains("nodeName: no scheduler sees these pods"),
            "{provider}: {told_of_node}"
        );
        let told_of_scheduler = told(provider, scheduler.clone());
        assert!(
            told_of_scheduler.contains("Warning SetPodTemplateSchedulerName"),
            "{provider}: {told_of_scheduler}"
        );
        let plain = told(provider, pt(1));
        assert!(!plain.contains("Warning"), "{provider}: {plain}");
    }
    // Without a gang both are up to the user.
    for job in [node, scheduler] {
        let told = told("none", job);
        assert!(!told.contains("Warning"), "{told}");
    }
}

#[test]
fn b_127_pods_have_neither_the_templates_host_name_nor_its_subdomain() {
    let template = format!("{WORKER}/template/spec");
    let job = pt(2)
        .set(&format!("{template}/hostname"), "mine")
        .set(&format!("{template}/subdomain"), "theirs")
        .set(&format!("{template}/hostnameOverride"), "other");
    let pods = pods(job);
    assert_eq!(pods.len(), 3);
    for pod in pods {
        for field in ["hostname", "subdomain", "hostnameOverride"] {
            assert_eq!(pod["spec"].get(field), None, "{field}: {pod}");
        }
    }
}

#[test]
fn mt_03_mt_04_what_is_made_is_in_the_jobs_namespace_and_belongs_to_the_job_alone() {
    let foreign = json!([{
        "apiVersion": "v1", "kind": "Namespace", "name": "other", "uid": "u", "controller": true,
    }]);
    let metadata = json!({"namespace": "other", "name": "mine", "ownerReferences": foreign});
    let objects = objects(pt(1).set(&format!("{WORKER}/template/metadata"), metadata));
    assert_eq!(objects.len(), 4);
    for object in objects {
        let metadata = &object["metadata"];
        assert_eq!(metadata["namespace"], "ns1", "{object}");
        let owners = metadata["ownerReferences"].as_array().unwrap();
        assert_eq!(owners.len(), 1, "{object}");
        let owner = (&owners[0]["kind"], &owners[0]["name"]);
        assert_eq!(owner, (&json!(KIND.name), &json!("pt")));
    }
}

#[test]
fn mt_06_mt_11_mt_12_priority_account_and_tokens_are_passed_on_as_to_any_pod() {
    let template = format!("{WORKER}/template/spec");
    let token = json!([{"name": "token", "projected": {"sources": [
        {"serviceAccountToken": {"audience": "https://kubernetes.default.svc", "path": "token", "expirationSeconds": 600}}]}}]);
    let job = pt(1)
        .set(
            &format!("{template}/priorityClassName"),
            "system-node-critical",
        )
        .set(&format!("{template}/serviceAccountName"), "powerful")
        .set(&format!("{template}/volumes"), token.clone());
    let pods = pods(job);
    let spec = &of_worker(&pods)["spec"];
    assert_eq!(spec["priorityClassName"], "system-node-critical");
    assert_eq!(spec["serviceAccountName"], "powerful");
    assert_eq!(spec["volumes"], token, "only the user's own");
}

#[test]
fn mt_07_services_have_no_address_whatever_the_template_says() {
    let template = format!("{WORKER}/template");
    let annotations =
        json!({"service.beta.kubernetes.io/load-balancer": "true", "externalIPs": "1.2.3.4"});
    let job = pt(1)
        .set(
            &format!("{template}/metadata"),
            json!({"annotations": annotations}),
        )
        .set("/metadata/annotations", annotations);
    let objects = objects(job);
    let services: Vec<_> = objects.iter().filter(|o| o["kind"] == "Service").collect();
    assert_eq!(services.len(), 2);
    for service in services {
        let fields: Vec<&String> = service["spec"].as_object().unwrap().keys().collect();
        let expected = ["clusterIP", "ports", "publishNotReadyAddresses", "selector"];
        assert_eq!(fields, expected, "{service}");
        assert_eq!(service["spec"]["clusterIP"], "None");
        assert_eq!(service["metadata"].get("annotations"), None);
    }
}

/// A job with this text in every free-text field.
fn hostile(text: &str) -> Job {
    let container = json!({
        "name": KIND.container, "image": text, "command": [text], "args": [text, text], "workingDir": text,
        "env": [{"name": "MINE", "value": text}],
        "envFrom": [{"configMapRef": {"name": text}}],
        "volumeMounts": [{"name": "a", "mountPath": text, "subPathExpr": text}],
        "lifecycle": {"preStop": {"exec": {"command": [text]}}},
    });
    let template = json!({
        "metadata": {"annotations": {"mine": text}, "labels": {"mine": text}},
        "spec": {
            "containers": [container], "volumes": [{"name": "a", "configMap": {"name": text}}],
            "serviceAccountName": text, "nodeName": text, "schedulerName": text, "priorityClassName": text,
        },
    });
    let policy = json!({"queue": text, "priorityClass": text});
    pt(2)
        .set(&format!("{}/template", chief_spec()), template.clone())
        .set(&format!("{WORKER}/template"), template)
        .set(
            "/metadata/annotations",
            json!({"mine": text, "trainyard.dev/restart-scope": text}),
        )
        .set("/metadata/labels", json!({"mine": text}))
        .run_policy("schedulingPolicy", policy)
        .run_policy("cleanPodPolicy", text)
}

#[test]
fn mt_20_mt_21_mt_22_no_text_of_a_users_becomes_a_part_of_another_text() {
    for text in HOSTILE {
        let made = objects(hostile(text));
        assert_eq!(made.len(), 6, "{text:?}");
        let places = hostile::places(&made, text);
        assert!(places.iter().any(|p| p.path.contains("args")), "{text:?}");
        let parts: Vec<_> = places.iter().filter(|p| !p.whole).collect();
        assert!(parts.is_empty(), "{text:?}: {parts:?}");
        // The operator's own containers contain none of it, except in variables that every container gets.
        for pod in made.iter().filter(|o| o["kind"] == "Pod") {
            let own = pod["spec"]["initContainers"].as_array().cloned();
            let places = hostile::places(&own.unwrap_or_default(), text);
            assert!(places.is_empty(), "{text:?}: {places:?}");
        }
    }
}

#[test]
fn mt_27_selectors_and_the_labels_that_they_select_are_the_operators_own() {
    let keys = ["operator-name", "job-name", "replica-type", "replica-index"];
    let labels: Value = keys
        .iter()
        .map(|key| (format!("training.kubeflow.org/{key}"), json!("another")))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let plain = objects(pt(1));
    let changed = objects(
        pt(1)
            .set(
                &format!("{WORKER}/template/metadata"),
                json!({"labels": labels}),
            )
            .set("/metadata/labels", labels),
    );
    for (plain, changed) in plain.iter().zip(&changed) {
        assert_eq!(plain["metadata"]["labels"], changed["metadata"]["labels"]);
        assert_eq!(plain["spec"]["selector"], changed["spec"]["selector"]);
    }
    for service in changed.iter().filter(|o| o["kind"] == "Service") {
        let selector = &service["spec"]["selector"];
        assert_eq!(selector["training.kubeflow.org/job-name"], "pt");
        assert_eq!(selector.as_object().unwrap().len(), 4, "{selector}");
    }
}

#[test]
fn mt_55_no_annotation_of_a_job_changes_what_its_pods_may_do() {
    let annotations = json!({
        "trainyard.dev/restart-scope": "Replica", "trainyard.dev/attempt": "7.7", "trainyard.dev/policy": "x",
        "trainyard.dev/restart-request": "x", "trainyard.dev/epoch": "1", "trainyard.dev/go": "x", "trainyard.dev/stop": "x",
        "trainyard.dev/launcher-gate": "false", "trainyard.dev/ssh-port": "1", "trainyard.dev/unknown": "true",
        "scheduling.volcano.sh/queue-name": "q", "kubectl.kubernetes.io/default-container": "x",
        "container.apparmor.security.beta.kubernetes.io/pytorch": "unconfined",
    });
    assert_eq!(
        objects(pt(1)),
        objects(pt(1).set("/metadata/annotations", annotations))
    );
}

#[test]
fn the_restart_scope_changes_nothing_but_the_restart_policy_of_pods() {
    let on_failure = || pt(1).restart_policy("Worker", "OnFailure");
    let mut expected = objects(on_failure());
    for object in &mut expected {
        if object["spec"]["restartPolicy"] == "OnFailure" {
            object["spec"]["restartPolicy"] = json!("Never");
        }
    }
    let gang = on_failure().annotation("trainyard.dev/restart-scope", "Gang");
    assert_eq!(objects(gang), expected);
    assert_ne!(objects(on_failure()), expected);
}

#[test]
fn mt_50_nothing_but_pods_and_services_of_derived_names_is_made() {
    let mut world = world(hostile("x"));
    let mut made = Vec::new();
    for _ in 0..4 {
        world.view_all();
        for step in world.plan().steps {
            made.push(match step {
                Step::CreatePod(pod) => format!("Pod {}", pod.metadata.name.unwrap()),
                Step::CreateService(service) => {
                    format!("Service {}", service.metadata.name.unwrap())
                }
                other => panic!("{other:?}"),
            });
        }
        world.reconcile();
    }
    made.sort_unstable();
    let expected = ["Pod", "Service"].map(|kind| each(kind, &[CHIEF, worker(0), worker(1)]));
    assert_eq!(made, expected.concat());
}
