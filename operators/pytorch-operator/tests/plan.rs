//! The objects of the smallest distributed job field by field, and its status over its life cycle.

use crate::scene::{Scene, pt, typed, without_master, world};
use pytorch_operator::PyTorch;
use serde_json::{Value, json};
use training_core::{Observed, Transition, plan};
use training_testkit::builders::Job;
use training_testkit::scene::first_objects;

fn objects(job: Job) -> Vec<Value> {
    first_objects(&PyTorch::default(), &typed(job))
}

fn named(objects: &[Value], kind: &str, name: &str) -> Value {
    let fits = |o: &&Value| o["kind"] == kind && o["metadata"]["name"] == name;
    objects
        .iter()
        .find(fits)
        .unwrap_or_else(|| panic!("no {kind} {name}"))
        .clone()
}

fn owner() -> Value {
    json!([{
        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "pt",
        "uid": "00000000-0000-0000-0000-000000000007",
        "controller": true, "blockOwnerDeletion": true,
    }])
}

fn env(rank: &str) -> Value {
    json!([
        {"name": "PYTHONUNBUFFERED", "value": "1"},
        {"name": "MASTER_PORT", "value": "23456"},
        {"name": "PET_MASTER_PORT", "value": "23456"},
        {"name": "MASTER_ADDR", "value": "pt-master-0"},
        {"name": "PET_MASTER_ADDR", "value": "pt-master-0"},
        {"name": "WORLD_SIZE", "value": "3"},
        {"name": "RANK", "value": rank},
        {"name": "PET_NODE_RANK", "value": rank},
        {"name": "PET_NPROC_PER_NODE", "value": "auto"},
        {"name": "PET_NNODES", "value": "3"},
    ])
}

fn container(rank: &str) -> Value {
    json!([{
        "name": "pytorch", "image": "trainyard.test/train:1",
        "ports": [{"name": "pytorchjob-port", "containerPort": 23456}],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "env": env(rank),
    }])
}

#[test]
fn i_11_the_master_pod_has_exactly_these_fields() {
    let golden = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "pt-master-0", "namespace": "ns1",
            "annotations": {"trainyard.dev/attempt": "0.0"},
            "labels": {
                "training.kubeflow.org/operator-name": "pytorchjob-controller",
                "training.kubeflow.org/job-name": "pt",
                "training.kubeflow.org/replica-type": "master",
                "training.kubeflow.org/replica-index": "0",
                "training.kubeflow.org/job-role": "master",
            },
            "ownerReferences": owner(),
        },
        "spec": {"restartPolicy": "OnFailure", "containers": container("0")},
    });
    assert_eq!(named(&objects(pt(2)), "Pod", "pt-master-0"), golden);
}

#[test]
fn i_11_worker_pods_have_exactly_these_fields() {
    let objects = objects(pt(2));
    for (index, rank) in [("0", "1"), ("1", "2")] {
        let name = format!("pt-worker-{index}");
        let mut pod = named(&objects, "Pod", &name);
        let init = pod["spec"]
            .as_object_mut()
            .unwrap()
            .remove("initContainers")
            .unwrap();
        assert_eq!(init.as_array().unwrap().len(), 1);
        assert_eq!(init[0]["name"], "init-pytorch");
        assert_eq!(init[0]["image"], "alpine:3.10");
        assert_eq!(init[0]["imagePullPolicy"], "IfNotPresent");
        assert_eq!(
            init[0]["resources"],
            json!({"limits": {"cpu": "100m", "memory": "20Mi"}, "requests": {"cpu": "50m", "memory": "10Mi"}})
        );
        assert_eq!(init[0]["command"][3], "pt-master-0");
        let golden = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "namespace": "ns1",
                "annotations": {"trainyard.dev/attempt": "0.0"},
                "labels": {
                    "training.kubeflow.org/operator-name": "pytorchjob-controller",
                    "training.kubeflow.org/job-name": "pt",
                    "training.kubeflow.org/replica-type": "worker",
                    "training.kubeflow.org/replica-index": index,
                },
                "ownerReferences": owner(),
            },
            "spec": {"restartPolicy": "OnFailure", "containers": container(rank)},
        });
        assert_eq!(pod, golden);
    }
}

#[test]
fn mt_07_every_replica_has_a_headless_service_of_its_name() {
    let objects = objects(pt(2));
    assert_eq!(objects.len(), 6);
    for (role, index) in [("master", "0"), ("worker", "0"), ("worker", "1")] {
        let name = format!("pt-{role}-{index}");
        let labels = json!({
            "training.kubeflow.org/operator-name": "pytorchjob-controller",
            "training.kubeflow.org/job-name": "pt",
            "training.kubeflow.org/replica-type": role,
            "training.kubeflow.org/replica-index": index,
        });
        let golden = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {
                "name": name, "namespace": "ns1", "labels": labels, "ownerReferences": owner(),
            },
            "spec": {
                "clusterIP": "None", "publishNotReadyAddresses": true, "selector": labels,
                "ports": [{"name": "pytorchjob-port", "port": 23456}],
            },
        });
        assert_eq!(named(&objects, "Service", &name), golden);
    }
}

#[test]
fn b_052_worker_zero_speaks_for_a_job_without_a_master() {
    let objects = objects(without_master("nm", 2));
    let role = |name| {
        named(&objects, "Pod", name)["metadata"]["labels"]["training.kubeflow.org/job-role"].clone()
    };
    assert_eq!(
        (role("nm-worker-0"), role("nm-worker-1")),
        (json!("master"), Value::Null)
    );
}

#[test]
fn b_018_other_spellings_of_a_role_mean_the_same() {
    let mut job = pt(1).build();
    let map = job["spec"]["pytorchReplicaSpecs"].as_object_mut().unwrap();
    let worker = map.remove("Worker").unwrap();
    map.insert("worker".to_owned(), worker);
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    let job = serde_json::from_value(job).unwrap();
    let plan = plan(&PyTorch::default(), &job, &Observed::default(), now);
    assert_eq!(plan.steps.len(), 4);
    let counts = plan.status.unwrap().next.replica_statuses.unwrap();
    assert_eq!(counts.keys().collect::<Vec<_>>(), ["Master", "Worker"]);
}

fn replica(role: &str, counts: &Value) -> Value {
    let mut out = counts.clone();
    out["selector"] = json!(format!(
        "training.kubeflow.org/job-name=pt,training.kubeflow.org/operator-name=pytorchjob-controller,training.kubeflow.org/replica-type={role}"
    ));
    out
}

#[test]
fn the_status_tells_a_whole_life_in_the_published_words() {
    let mut world = world(pt(2));
    world.settle();
    let (start, began) = (world.now.to_string(), world.now);
    let created = json!({
        "type": "Created", "status": "True", "reason": "PyTorchJobCreated",
        "message": "PyTorchJob pt is created.", "lastUpdateTime": start, "lastTransitionTime": start,
    });
    // The hashes are stored in clusters: other values would look like an edit of every running job.
    let made_from = ".replicas=2962302e,Master=3d5ffdb5,Worker=3d5ffdb5";
    let made_from = format!("generation=1,{made_from}");
    let golden = json!({
        "conditions": [created], "startTime": start, "observedGeneration": 1, "ready": "0/3", "restarts": 0, "madeFrom": made_from,
        "replicaStatuses": {"Master": replica("master", &json!({})), "Worker": replica("worker", &json!({}))},
    });
    assert_eq!(world.status_json(), golden);

    world.tick(5);
    world.run_all();
    world.settle();
    let ran = world.now.to_string();
    let mut running = json!({
        "type": "Running", "status": "True", "reason": "PyTorchJobRunning",
        "message": "PyTorchJob pt is running.", "lastUpdateTime": ran, "lastTransitionTime": ran,
    });
    let golden = json!({
        "conditions": [created, running], "startTime": start, "observedGeneration": 1, "ready": "3/3", "restarts": 0, "madeFrom": made_from,
        "replicaStatuses": {
            "Master": replica("master", &json!({"active": 1})),
            "Worker": replica("worker", &json!({"active": 2})),
        },
    });
    assert_eq!(world.status_json(), golden);

    world.tick(5);
    world.finish("pt-master-0");
    world.settle();
    let end = world.now.to_string();
    running["status"] = json!("False");
    running["lastTransitionTime"] = json!(end);
    let succeeded = json!({
        "type": "Succeeded", "status": "True", "reason": "PyTorchJobSucceeded",
        "message": "PyTorchJob pt is successfully completed.", "lastUpdateTime": end, "lastTransitionTime": end,
    });
    let golden = json!({
        "conditions": [created, running, succeeded], "startTime": start, "completionTime": end, "observedGeneration": 1, "ready": "3/3", "restarts": 0,
        "replicaStatuses": {
            "Master": replica("master", &json!({"succeeded": 1})),
            "Worker": replica("worker", &json!({"succeeded": 2})),
        },
        "finishedIndices": {"master": "0"},
    });
    assert_eq!(world.status_json(), golden);
    assert_eq!(
        world.events(),
        ["Normal PyTorchJobSucceeded: PyTorchJob pt is successfully completed."]
    );
    assert_eq!(
        world.transitions,
        [Transition::Created, Transition::Succeeded]
    );
    assert_eq!(world.writes.iter().filter(|w| *w == "status").count(), 3);
    assert_eq!((world.now - began).get_seconds(), 10);
}

#[test]
fn a_job_without_a_master_succeeds_with_all_of_its_workers_and_says_its_namespace() {
    let mut world = world(without_master("nm", 2));
    world.settle();
    world.run_all();
    world.settle();
    world.finish("nm-worker-1");
    world.settle();
    assert_eq!(world.conditions(), ["Created=True", "Running=True"]);
    assert_eq!(
        world.status().conditions[1].message.as_deref(),
        Some("PyTorchJob ns1/nm is running.")
    );
    world.finish("nm-worker-0");
    world.settle();
    assert_eq!(
        world.conditions(),
        ["Created=True", "Running=False", "Succeeded=True"]
    );
    let message = world.status().conditions[2].message.clone();
    assert_eq!(
        message.as_deref(),
        Some("PyTorchJob ns1/nm successfully completed.")
    );
}

#[test]
fn an_elastic_job_succeeds_with_its_first_worker() {
    let mut world = world(crate::scene::el(
        2,
        json!({"minReplicas": 1, "maxReplicas": 3}),
    ));
    world.settle();
    world.run_all();
    world.finish("el-worker-1");
    world.settle();
    assert_eq!(
        world.conditions().last().map(String::as_str),
        Some("Succeeded=True")
    );
}

#[test]
fn running_needs_a_pod_of_the_present_run() {
    let mut world = world(pt(1));
    world.settle();
    world.run(&["pt-worker-0"]);
    world.settle();
    assert_eq!(world.conditions(), ["Created=True"], "the master decides");
    world.run(&["pt-master-0"]);
    world.settle();
    assert_eq!(world.conditions(), ["Created=True", "Running=True"]);
}
