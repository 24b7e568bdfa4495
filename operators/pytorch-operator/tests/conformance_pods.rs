//! Published behaviour of defaults, pods, services and variables, one test for each.

// What fails here fails a test.
#![allow(clippy::unwrap_used, clippy::panic)]

mod scene;

use scene::{KindWorld, Scene, el, pt, typed, without_master, world};
use serde_json::{Value, json};
use training_core::{Observed, Step, plan};
use training_testkit::builders::Job;
use training_testkit::world::Move;

const MASTER: &str = "/spec/pytorchReplicaSpecs/Master";
const WORKER: &str = "/spec/pytorchReplicaSpecs/Worker";

/// The pods and services that the first plan makes, by `Kind name`.
fn made(job: Job) -> std::collections::BTreeMap<String, Value> {
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    let framework = pytorch_operator::PyTorch::default();
    let plan = plan(&framework, &typed(job), &Observed::default(), now);
    let mut made = std::collections::BTreeMap::new();
    for step in plan.steps {
        let value = match step {
            Step::CreatePod(pod) => serde_json::to_value(pod).unwrap(),
            Step::CreateService(service) => serde_json::to_value(service).unwrap(),
            other => panic!("{other:?}"),
        };
        let name = value["metadata"]["name"].as_str().unwrap();
        made.insert(format!("{} {name}", value["kind"].as_str().unwrap()), value);
    }
    made
}

fn variable(pod: &Value, name: &str) -> Option<String> {
    let env = pod["spec"]["containers"][0]["env"].as_array().unwrap();
    let found = env.iter().find(|e| e["name"] == name)?;
    Some(found["value"].as_str().unwrap().to_owned())
}

fn writes(world: &KindWorld, verb: &str) -> Vec<String> {
    let mut writes: Vec<String> = world
        .writes
        .iter()
        .filter(|w| w.starts_with(verb))
        .cloned()
        .collect();
    writes.sort();
    writes
}

#[test]
fn an_absent_number_of_replicas_is_one() {
    let job = pt(1)
        .set(&format!("{MASTER}/replicas"), Value::Null)
        .set(&format!("{WORKER}/replicas"), Value::Null);
    let names: Vec<String> = made(job).into_keys().collect();
    let expected = [
        "Pod pt-master-0",
        "Pod pt-worker-0",
        "Service pt-master-0",
        "Service pt-worker-0",
    ];
    assert_eq!(names, expected);
}

#[test]
fn an_absent_restart_policy_is_on_failure_and_always_is_kept() {
    for (told, policy) in [
        (Value::Null, "OnFailure"),
        (json!(""), "OnFailure"),
        (json!("Always"), "Always"),
    ] {
        let made = made(pt(1).set(&format!("{WORKER}/restartPolicy"), told.clone()));
        assert_eq!(
            made["Pod pt-worker-0"]["spec"]["restartPolicy"], policy,
            "{told}"
        );
    }
}

#[test]
fn the_default_port_comes_after_the_users_and_only_where_it_is_missing() {
    let ours = |number: i32| json!({"name": "pytorchjob-port", "containerPort": number});
    let own = json!({"name": "custom", "containerPort": 9000});
    let rows = [
        (Value::Null, json!([ours(23456)])),
        (json!([own]), json!([own, ours(23456)])),
        (json!([ours(8080)]), json!([ours(8080)])),
    ];
    for (told, expected) in rows {
        let made = made(pt(1).set(&format!("{WORKER}/template/spec/containers/0/ports"), told));
        assert_eq!(
            made["Pod pt-worker-0"]["spec"]["containers"][0]["ports"],
            expected
        );
        let number = |port: &Value| {
            port.get("containerPort")
                .or_else(|| port.get("port"))
                .cloned()
        };
        let of = |ports: &Value| {
            ports
                .as_array()
                .unwrap()
                .iter()
                .map(number)
                .collect::<Vec<_>>()
        };
        let service = &made["Service pt-worker-0"]["spec"]["ports"];
        assert_eq!(of(service), of(&expected), "the service has the same ports");
    }
}

#[test]
fn processes_per_node_are_auto_unless_told_in_either_place() {
    let rows = [
        (pt(1), "pt-worker-0", "auto"),
        (el(2, json!({})), "el-worker-0", "auto"),
        (el(2, json!({"nProcPerNode": 3})), "el-worker-0", "3"),
        (pt(1).set("/spec/nprocPerNode", "gpu"), "pt-worker-0", "gpu"),
    ];
    for (job, pod, expected) in rows {
        let made = made(job);
        let told = variable(&made[&format!("Pod {pod}")], "PET_NPROC_PER_NODE");
        assert_eq!(told.as_deref(), Some(expected));
    }
}

#[test]
fn the_master_speaks_for_the_job_and_no_worker_beside_it() {
    let made = made(pt(2));
    let role =
        |pod: &str| made[pod]["metadata"]["labels"]["training.kubeflow.org/job-role"].clone();
    assert_eq!(role("Pod pt-master-0"), "master");
    assert_eq!(
        (role("Pod pt-worker-0"), role("Pod pt-worker-1")),
        (Value::Null, Value::Null)
    );
}

#[test]
fn every_replica_gets_one_pod_and_one_service() {
    for (job, replicas) in [
        (without_master("nm", 1), 1),
        (pt(4), 5),
        (without_master("nm", 6), 6),
    ] {
        let made = made(job);
        let count = |kind: &str| made.keys().filter(|k| k.starts_with(kind)).count();
        assert_eq!((count("Pod "), count("Service ")), (replicas, replicas));
    }
}

#[test]
fn exactly_what_is_missing_is_made() {
    let mut world = world(pt(4));
    world.settle();
    for pod in ["pt-master-0", "pt-worker-1", "pt-worker-3"] {
        let at = world.pod_names().iter().position(|n| *n == pod).unwrap();
        world.happen(Move::Vanish(u8::try_from(at).unwrap()));
        let at = world.services().iter().position(|n| *n == pod).unwrap();
        world.happen(Move::DropService(u8::try_from(at).unwrap()));
    }
    world.writes.clear();
    world.settle();
    assert_eq!(
        writes(&world, "create"),
        [
            "create pod pt-master-0",
            "create pod pt-worker-1",
            "create pod pt-worker-3",
            "create service pt-master-0",
            "create service pt-worker-1",
            "create service pt-worker-3",
        ]
    );
    assert_eq!(writes(&world, "delete"), Vec::<String>::new());
}

#[test]
fn while_all_pods_are_pending_nothing_more_is_made_and_the_job_does_not_run() {
    let mut world = world(pt(4));
    world.settle();
    world.writes.clear();
    for _ in 0..3 {
        world.tick(600);
        world.settle();
    }
    assert_eq!(world.writes, Vec::<String>::new());
    assert_eq!(world.conditions(), ["Created=True"]);
}

#[test]
fn every_object_belongs_to_its_job_by_all_five_fields() {
    let owner = json!([{
        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "pt",
        "uid": "00000000-0000-0000-0000-000000000007", "controller": true, "blockOwnerDeletion": true,
    }]);
    for (name, object) in made(pt(2)) {
        assert_eq!(object["metadata"]["ownerReferences"], owner, "{name}");
    }
}

#[test]
fn labels_and_annotations_of_the_template_are_on_its_pods() {
    let metadata = json!({"labels": {"team": "a", "app": "b"}, "annotations": {"note": "c"}});
    let made = made(pt(1).set(&format!("{WORKER}/template/metadata"), metadata));
    let worker = &made["Pod pt-worker-0"]["metadata"];
    assert_eq!(
        (&worker["labels"]["team"], &worker["labels"]["app"]),
        (&json!("a"), &json!("b"))
    );
    assert_eq!(worker["annotations"]["note"], "c");
    let master = &made["Pod pt-master-0"]["metadata"];
    assert_eq!(
        (&master["labels"]["team"], &master["annotations"]["note"]),
        (&Value::Null, &Value::Null)
    );
}

#[test]
fn names_have_the_replica_type_in_lower_case() {
    let mut job = pt(0).build();
    let map = job["spec"]["pytorchReplicaSpecs"].as_object_mut().unwrap();
    let spec = map.remove("Worker").unwrap();
    map.insert("WORKER".to_owned(), spec);
    map["WORKER"]["replicas"] = json!(2);
    let job = serde_json::from_value(job).unwrap();
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    let plan = plan(
        &pytorch_operator::PyTorch::default(),
        &job,
        &Observed::default(),
        now,
    );
    let names = plan.steps.iter().filter_map(|step| match step {
        Step::CreatePod(pod) => pod.metadata.name.clone(),
        _ => None,
    });
    assert_eq!(
        names.collect::<Vec<_>>(),
        ["pt-master-0", "pt-worker-0", "pt-worker-1"]
    );
}

#[test]
fn the_replica_policy_becomes_the_pods_and_exit_code_becomes_never() {
    for (told, pods) in [
        ("ExitCode", "Never"),
        ("Never", "Never"),
        ("Always", "Always"),
        ("OnFailure", "OnFailure"),
    ] {
        let made = made(pt(1).restart_policy("Worker", told));
        assert_eq!(
            made["Pod pt-worker-0"]["spec"]["restartPolicy"], pods,
            "{told}"
        );
    }
}

#[test]
fn workers_lowered_from_three_to_two_lose_the_last_and_raised_again_get_it_back() {
    let mut world = world(pt(3));
    world.settle();
    world.run_all();
    world.settle();
    world.writes.clear();
    world.happen(Move::Scale(2));
    world.settle();
    assert_eq!(
        writes(&world, "delete"),
        ["delete pod pt-worker-2", "delete service pt-worker-2"]
    );
    world.happen(Move::Gone(0));
    world.settle();
    world.writes.clear();
    world.happen(Move::Scale(4));
    world.settle();
    assert_eq!(
        writes(&world, "create"),
        [
            "create pod pt-worker-2",
            "create pod pt-worker-3",
            "create service pt-worker-2",
            "create service pt-worker-3",
        ]
    );
}

#[test]
fn a_custom_port_is_in_variables_pod_and_service() {
    let ports = json!([{"name": "pytorchjob-port", "containerPort": 8080}]);
    let made = made(pt(1).set(
        &format!("{MASTER}/template/spec/containers/0/ports"),
        ports.clone(),
    ));
    let pod = &made["Pod pt-master-0"];
    assert_eq!(pod["spec"]["containers"][0]["ports"], ports);
    assert_eq!(
        made["Service pt-master-0"]["spec"]["ports"][0]["port"],
        8080
    );
    for (name, value) in [
        ("MASTER_PORT", "8080"),
        ("PET_MASTER_PORT", "8080"),
        ("MASTER_ADDR", "pt-master-0"),
        ("PET_NPROC_PER_NODE", "auto"),
    ] {
        assert_eq!(variable(pod, name).as_deref(), Some(value), "{name}");
    }
}

#[test]
fn the_rendezvous_is_worker_zeros_service_at_its_own_port() {
    let policy =
        json!({"minReplicas": 1, "maxReplicas": 3, "maxRestarts": 3, "rdzvBackend": "c10d"});
    let ports = json!([{"name": "pytorchjob-port", "containerPort": 8080}]);
    let made =
        made(el(2, policy).set(&format!("{WORKER}/template/spec/containers/0/ports"), ports));
    for pod in ["Pod el-worker-0", "Pod el-worker-1"] {
        for (name, value) in [
            ("PET_RDZV_BACKEND", "c10d"),
            ("PET_NNODES", "1:3"),
            ("PET_RDZV_ENDPOINT", "el-worker-0:8080"),
            ("PET_MAX_RESTARTS", "3"),
        ] {
            assert_eq!(
                variable(&made[pod], name).as_deref(),
                Some(value),
                "{pod} {name}"
            );
        }
    }
}

#[test]
fn without_an_elastic_policy_no_variable_speaks_of_a_rendezvous() {
    for (name, object) in made(pt(2))
        .into_iter()
        .filter(|(n, _)| n.starts_with("Pod "))
    {
        let env = object["spec"]["containers"][0]["env"]
            .as_array()
            .unwrap()
            .clone();
        let of = |prefix: &str| {
            env.iter()
                .any(|e| e["name"].as_str().unwrap().starts_with(prefix))
        };
        assert!(!of("PET_RDZV") && !of("PET_MAX_RESTARTS"), "{name}");
    }
}

#[test]
fn only_workers_of_a_job_with_a_master_get_the_init_container() {
    let inits = |pod: &Value| pod["spec"]["initContainers"].as_array().map_or(0, Vec::len);
    let (with, without) = (made(pt(1)), made(without_master("nm", 1)));
    assert_eq!(inits(&with["Pod pt-worker-0"]), 1);
    assert_eq!(inits(&with["Pod pt-master-0"]), 0);
    assert_eq!(inits(&without["Pod nm-worker-0"]), 0);
}
