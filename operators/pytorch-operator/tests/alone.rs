//! Published behaviour that only PyTorch has: elasticity, its variables, its init container, Workers without a Master.

use crate::scene::{MASTER, Scene, WORKER, el, framework, pt, typed, without_master, world};
use serde_json::{Value, json};
use training_core::Step;
use training_testkit::builders::Job;
use training_testkit::scene::{by_name, first_objects};
use training_testkit::world::Move;

/// Returns the pods and services that the first plan creates, by `Kind name`.
fn made(job: Job) -> std::collections::BTreeMap<String, Value> {
    by_name(first_objects(&framework(), &typed(job)))
}

fn variable(pod: &Value, name: &str) -> Option<String> {
    let env = pod["spec"]["containers"][0]["env"].as_array().unwrap();
    let found = env.iter().find(|e| e["name"] == name)?;
    Some(found["value"].as_str().unwrap().to_owned())
}

#[test]
fn an_elastic_job_grows_without_touching_its_running_pods() {
    let mut world = world(el(2, json!({"minReplicas": 1, "maxReplicas": 3})));
    world.settle();
    world.run_all();
    world.settle();
    world.happen(Move::Scale(3));
    world.writes.clear();
    world.settle();
    let made: Vec<&String> = world.writes.iter().filter(|w| *w != "status").collect();
    assert_eq!(
        made,
        ["create service el-worker-2", "create pod el-worker-2"]
    );
}

#[test]
fn an_elastic_jobs_only_worker_decides_its_end() {
    let mut world = world(el(1, json!({"minReplicas": 1, "maxReplicas": 1})));
    world.settle();
    world.run_all();
    world.settle();
    world.finish("el-worker-0");
    world.settle();
    assert_eq!(
        world.conditions(),
        ["Created=True", "Running=False", "Succeeded=True"]
    );
}

#[test]
fn one_running_worker_of_four_makes_the_job_run() {
    for missing in [false, true] {
        let mut world = world(without_master("nm", 4));
        world.settle();
        world.run(&["nm-worker-0"]);
        if missing {
            // The API server rejects creates for now.
            world.refusing = true;
            world.happen(Move::Vanish(3));
        }
        world.reconciles(3);
        assert_eq!(
            world.conditions().pop().unwrap(),
            "Running=True",
            "missing {missing}"
        );
    }
}

#[test]
fn b_114_b_116_the_users_variables_come_before_ours_and_name_them_in_arguments() {
    let env = json!([{"name": "MINE", "value": "tcp://$(MASTER_ADDR):$(MASTER_PORT)"}]);
    let container = format!("{WORKER}/template/spec/containers/0");
    let job = pt(1).set(&format!("{container}/env"), env).set(
        &format!("{container}/args"),
        json!(["--master=$(MASTER_ADDR)"]),
    );
    let framework = framework();
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    let plan = training_core::plan(
        &framework,
        &typed(job),
        &training_core::Observed::default(),
        now,
    );
    let pod = plan
        .steps
        .into_iter()
        .find_map(|s| match s {
            Step::CreatePod(pod) if pod.metadata.name.as_deref() == Some("pt-worker-0") => {
                Some(pod)
            }
            _ => None,
        })
        .unwrap();
    let main = &pod.spec.as_ref().unwrap().containers[0];
    let names: Vec<&str> = main.env.iter().flatten().map(|e| e.name.as_str()).collect();
    assert_eq!((names[0], names[1]), ("MINE", "PYTHONUNBUFFERED"));
    assert_eq!(
        main.env.as_ref().unwrap()[0].value.as_deref(),
        Some("tcp://$(MASTER_ADDR):$(MASTER_PORT)"),
        "verbatim: the kubelet fills in"
    );
    assert_eq!(main.args.as_ref().unwrap(), &["--master=$(MASTER_ADDR)"]);
    let ports = main.ports.as_ref().unwrap();
    assert_eq!(
        (ports.len(), ports[0].container_port),
        (1, 23456),
        "the default port is added"
    );
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
