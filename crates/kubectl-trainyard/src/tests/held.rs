//! What jobs hold and wait for.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use pytorch_operator::PyTorch;
use serde_json::json;
use training_core::quantity::Amount;
use training_testkit::builders::PYTORCH;

use super::{Scene, assert_documented, texts};
use crate::cluster::Usage;
use crate::top::{By, Share, lines, rows};

fn scene() -> Scene<PyTorch> {
    let resources = json!({
        "requests": { "cpu": "1500m", "memory": "1Gi" }, "limits": { "nvidia.com/gpu": "2" },
    });
    Scene::new(&PYTORCH, |job| {
        let at = |role: &str| {
            format!("/spec/pytorchReplicaSpecs/{role}/template/spec/containers/0/resources")
        };
        job.set(&at("Master"), resources.clone())
            .set(&at("Worker"), resources)
    })
}

fn pods(scene: &Scene<PyTorch>) -> Vec<Pod> {
    let pods = scene.pods.values().cloned();
    pods.map(|pod| serde_json::from_value(pod).unwrap())
        .collect()
}

fn share(pods: usize, cpu: &str, memory: &str, devices: &str) -> Share {
    let requests = [
        ("cpu", cpu),
        ("memory", memory),
        ("nvidia.com/gpu", devices),
    ];
    let requests = requests
        .into_iter()
        .filter(|(_, amount)| !amount.is_empty());
    Share {
        pods,
        requests: requests
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .collect(),
    }
}

#[test]
fn pods_with_a_node_hold_their_requests_and_the_others_wait_for_them() {
    let mut scene = scene();
    scene.run(&["pt-master-0", "pt-worker-0"]);
    scene.settle();
    let found = rows(By::Kind, &[scene.job()], pods(&scene), None);
    assert_eq!(found.len(), 1);
    let row = &found[0];
    assert_eq!(
        (row.namespace.as_str(), row.kind.as_str()),
        ("ns1", "PyTorchJob")
    );
    assert_eq!((row.active, row.waiting, row.suspended), (1, 0, 0));
    assert_eq!(row.held, share(2, "3", "2Gi", "4"));
    assert_eq!(row.pending, share(1, "1500m", "1Gi", "2"));
    assert_eq!(row.used, None);
    assert_documented("top", &texts(&lines(&found)));
    let wide = rows(By::Job, &[scene.job()], pods(&scene), None);
    assert_eq!(wide[0].held, row.held);
    let wide = lines(&wide);
    let wide = texts(&wide);
    assert!(
        wide[0].starts_with("NAMESPACE  KIND        JOB  ACTIVE"),
        "{wide:?}"
    );
    assert!(
        wide[1].starts_with("ns1        PyTorchJob  pt   1"),
        "{wide:?}"
    );
}

#[test]
fn what_a_metrics_server_reports_is_added_up_and_rounded() {
    let mut scene = scene();
    scene.run(&["pt-master-0", "pt-worker-0"]);
    scene.settle();
    let amounts = |cpu: &str, memory: &str| {
        let parse = |text: &str| Amount::parse(text).unwrap();
        BTreeMap::from([
            ("cpu".to_owned(), parse(cpu)),
            ("memory".to_owned(), parse(memory)),
        ])
    };
    let usage: Usage = [
        ("pt-master-0", "1200000001n", "1025Ki"),
        ("pt-worker-0", "1n", "1Ki"),
    ]
    .into_iter()
    .map(|(pod, cpu, memory)| (("ns1".to_owned(), pod.to_owned()), amounts(cpu, memory)))
    .collect();
    let found = rows(By::Kind, &[scene.job()], pods(&scene), Some(&usage));
    let expected = [("cpu", "1201m"), ("memory", "2Mi")];
    let expected = expected.map(|(k, v)| (k.to_owned(), v.to_owned()));
    assert_eq!(found[0].used, Some(BTreeMap::from(expected)));
}

#[test]
fn finished_jobs_and_pods_hold_nothing() {
    let mut scene = scene();
    scene.run(&["pt-master-0"]);
    scene.fail("pt-worker-0", 1, "Error", "");
    let found = rows(By::Kind, &[scene.job()], pods(&scene), None);
    assert_eq!((found[0].held.pods, found[0].pending.pods), (1, 1));
    let mut job = scene.job();
    job.value["status"]["conditions"] = json!([{ "type": "Succeeded", "status": "True" }]);
    assert_eq!(rows(By::Kind, &[job], pods(&scene), None), []);
}
