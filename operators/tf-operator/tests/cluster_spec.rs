//! `TF_CONFIG` byte by byte, written by hand from the published contract.

use std::collections::BTreeMap;

use crate::scene::{KIND, Scene, of, pt, typed, world};
use serde_json::{Value, json};
use tf_operator::TensorFlow;
use training_core::Framework;
use training_testkit::builders::Job;
use training_testkit::scene::first_pods;

/// The pods of a job's first plan, by name.
fn pods(framework: &TensorFlow, job: Job) -> BTreeMap<String, Value> {
    let pods = first_pods(framework, &typed(job)).into_iter();
    pods.map(|p| (p.metadata.name.clone().unwrap(), json!(p)))
        .collect()
}

/// The variables of a pod's container, as `NAME=value`.
fn env(pod: &Value, container: usize) -> Vec<String> {
    let vars = pod["spec"]["containers"][container]["env"].as_array();
    vars.into_iter()
        .flatten()
        .map(|e| {
            format!(
                "{}={}",
                e["name"].as_str().unwrap(),
                e["value"].as_str().unwrap()
            )
        })
        .collect()
}

/// The `TF_CONFIG` of each pod that has it.
fn told(job: Job) -> BTreeMap<String, String> {
    let pods = pods(&TensorFlow::default(), job);
    pods.into_iter()
        .filter_map(|(name, pod)| {
            let vars = env(&pod, 0);
            assert!(vars.len() < 2, "one variable only: {vars:?}");
            let value = vars.first()?.strip_prefix("TF_CONFIG=").unwrap().to_owned();
            Some((name, value))
        })
        .collect()
}

fn golden_job() -> Job {
    of(&[("Chief", 1), ("PS", 1), ("Worker", 2)])
}

#[test]
fn i_09_golden_every_pod_is_told_of_all_roles() {
    let cluster = r#"{"chief":["tf-chief-0.ns1.svc:2222"],"ps":["tf-ps-0.ns1.svc:2222"],"worker":["tf-worker-0.ns1.svc:2222","tf-worker-1.ns1.svc:2222"]}"#;
    let expected = [
        ("tf-chief-0", r#"{"type":"chief","index":0}"#),
        ("tf-ps-0", r#"{"type":"ps","index":0}"#),
        ("tf-worker-0", r#"{"type":"worker","index":0}"#),
        ("tf-worker-1", r#"{"type":"worker","index":1}"#),
    ]
    .map(|(pod, task)| {
        let config = format!(r#"{{"cluster":{cluster},"task":{task},"environment":"cloud"}}"#);
        (pod.to_owned(), config)
    });
    assert_eq!(told(golden_job()), expected.into());
}

#[test]
fn golden_workers_that_come_and_go_are_told_of_themselves_and_the_servers() {
    let expected = [
        (
            "tf-chief-0",
            r#"{"cluster":{"worker":{},"ps":[]},"task":{"type":"chief","index":0}}"#,
        ),
        (
            "tf-ps-0",
            r#"{"cluster":{"worker":{},"ps":["tf-ps-0.ns1.svc:2222"]},"task":{"type":"ps","index":0}}"#,
        ),
        (
            "tf-worker-0",
            r#"{"cluster":{"worker":{"0":"tf-worker-0.ns1.svc:2222"},"ps":["tf-ps-0.ns1.svc:2222"]},"task":{"type":"worker","index":0}}"#,
        ),
        (
            "tf-worker-1",
            r#"{"cluster":{"worker":{"1":"tf-worker-1.ns1.svc:2222"},"ps":["tf-ps-0.ns1.svc:2222"]},"task":{"type":"worker","index":1}}"#,
        ),
    ]
    .map(|(pod, config)| (pod.to_owned(), config.to_owned()));
    let job = golden_job().set("/spec/enableDynamicWorker", true);
    assert_eq!(told(job), expected.into());
}

#[test]
fn golden_a_dynamic_worker_without_servers_is_told_null() {
    let job = of(&[("Worker", 2)]).set("/spec/enableDynamicWorker", true);
    assert_eq!(
        told(job)["tf-worker-1"],
        r#"{"cluster":{"worker":{"1":"tf-worker-1.ns1.svc:2222"},"ps":null},"task":{"type":"worker","index":1}}"#
    );
}

#[test]
fn golden_an_evaluator_is_in_the_cluster() {
    let config = &told(of(&[("Chief", 1), ("Evaluator", 1)]))["tf-evaluator-0"];
    assert_eq!(
        config,
        r#"{"cluster":{"chief":["tf-chief-0.ns1.svc:2222"],"evaluator":["tf-evaluator-0.ns1.svc:2222"]},"task":{"type":"evaluator","index":0},"environment":"cloud"}"#
    );
}

#[test]
fn golden_the_domain_of_the_cluster_ends_the_addresses() {
    let framework = TensorFlow {
        cluster_domain: Some("cluster.local".to_owned()),
    };
    let pods = pods(&framework, of(&[("PS", 1), ("Worker", 1)]));
    assert_eq!(
        env(&pods["tf-ps-0"], 0),
        [
            r#"TF_CONFIG={"cluster":{"ps":["tf-ps-0.ns1.svc.cluster.local:2222"],"worker":["tf-worker-0.ns1.svc.cluster.local:2222"]},"task":{"type":"ps","index":0},"environment":"cloud"}"#
        ]
    );
}

#[test]
fn a_job_of_one_pod_is_told_nothing() {
    for (roles, tells) in [
        (&[("Worker", 1)][..], false),
        (&[("PS", 1)], false),
        (&[("Chief", 1)], false),
        (&[("Worker", 0), ("PS", 1)], false),
        // Of the types known to TensorFlow.
        (&[("Worker", 1), ("Extra", 3)], false),
        (&[("Worker", 1), ("PS", 1)], true),
        (&[("Worker", 1), ("Chief", 1)], true),
        (&[("Worker", 2)], true),
    ] {
        assert_eq!(!told(of(roles)).is_empty(), tells, "{roles:?}");
    }
}

#[test]
fn other_spellings_mean_the_same_and_unknown_types_are_served() {
    let worker = of(&[("Worker", 1)]).build()["spec"][KIND.replica_map]["Worker"].clone();
    let job =
        of(&[("pS", 1), ("WORKER", 1)]).set(&format!("/spec/{}/Extra", KIND.replica_map), worker);
    assert_eq!(
        told(job)["tf-worker-0"],
        r#"{"cluster":{"extra":["tf-extra-0.ns1.svc:2222"],"ps":["tf-ps-0.ns1.svc:2222"],"worker":["tf-worker-0.ns1.svc:2222"]},"task":{"type":"worker","index":0},"environment":"cloud"}"#
    );
}

#[test]
fn a_role_without_pods_is_an_empty_list() {
    let config = &told(of(&[("PS", 2), ("Worker", 0)]))["tf-ps-1"];
    assert!(config.contains(r#""worker":[]"#), "{config}");
}

#[test]
fn each_role_has_its_own_port_and_only_the_first_container_of_the_name_is_told() {
    let ports = json!([{"name": "tfjob-port", "containerPort": 3333}]);
    let containers = json!([
        {"name": "log", "image": "l"},
        {"name": "tensorflow", "image": "i", "ports": ports,
         "env": [{"name": "TF_CONFIG", "value": "mine"}, {"name": "A", "value": "$(TF_CONFIG)"}]},
    ]);
    let job = pt(1).set(
        &format!("{}/template/spec/containers", crate::scene::WORKER),
        containers,
    );
    let pods = pods(&TensorFlow::default(), job);
    let worker = &pods["pt-worker-0"];
    assert_eq!(env(worker, 0), [""; 0]);
    assert_eq!(
        env(worker, 1),
        [
            "A=$(TF_CONFIG)",
            r#"TF_CONFIG={"cluster":{"master":["pt-master-0.ns1.svc:2222"],"worker":["pt-worker-0.ns1.svc:3333"]},"task":{"type":"worker","index":0},"environment":"cloud"}"#
        ]
    );
}

#[test]
fn b_061_a_cluster_that_no_variable_can_hold_ends_the_job_before_any_pod() {
    let mut world = world(of(&[("PS", 1), ("Worker", 5000)]));
    world.settle();
    let message = world.status().conditions.pop().unwrap().message.unwrap();
    assert!(
        message.starts_with("spec.tfReplicaSpecs: ClusterSpecTooLarge: TF_CONFIG would have "),
        "{message}"
    );
    assert_eq!(world.writes, ["status"]);
    // Dynamic workers need no list of each other.
    let job = of(&[("PS", 1), ("Worker", 5000)]).set("/spec/enableDynamicWorker", true);
    let mut world = crate::scene::world(job);
    world.reconcile();
    assert_eq!(world.conditions(), ["Created=True"]);
}

#[test]
fn every_chief_or_master_is_labelled_as_such_and_of_workers_only_the_first_where_there_is_none() {
    for (roles, labelled) in [
        (
            &[("Chief", 2), ("Worker", 2)][..],
            &["tf-chief-0", "tf-chief-1"][..],
        ),
        (
            &[("Master", 3), ("PS", 1)],
            &["tf-master-0", "tf-master-1", "tf-master-2"],
        ),
        (&[("PS", 1), ("Worker", 3)], &["tf-worker-0"]),
        (&[("PS", 2), ("Evaluator", 1)], &[]),
    ] {
        let pods = pods(&TensorFlow::default(), of(roles));
        let label =
            |pod: &Value| pod["metadata"]["labels"]["training.kubeflow.org/job-role"] == "master";
        let marked: Vec<&str> = pods
            .iter()
            .filter(|(_, pod)| label(pod))
            .map(|(name, _)| name.as_str())
            .collect();
        assert_eq!(marked, labelled, "{roles:?}");
    }
}

#[test]
fn chief_or_master_speaks_for_the_job_else_worker_zero_else_nobody() {
    for (roles, speaker) in [
        (&[("Chief", 1), ("Worker", 1)][..], Some("Chief")),
        (&[("Worker", 1), ("Master", 1)], Some("Master")),
        (&[("PS", 1), ("Worker", 2)], Some("Worker")),
        (&[("PS", 1), ("Evaluator", 1)], None),
    ] {
        let job = typed(of(roles));
        let set = TensorFlow::default().roles(&job).unwrap();
        let is_master = set.iter().find(|r| r.is_master).map(|r| r.key.as_str());
        assert_eq!(is_master, speaker, "{roles:?}");
    }
}
