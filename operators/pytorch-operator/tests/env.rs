//! The environment of every role and rank, written by hand from the published contract.

use crate::scene::{el, pt, typed, without_master};
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use pytorch_operator::PyTorch;
use serde_json::json;
use training_testkit::builders::Job;
use training_testkit::scene::first_pods;

/// Returns the pods that the first plan of a job creates.
fn pods(job: Job) -> Vec<Pod> {
    first_pods(&PyTorch::default(), &typed(job))
}

fn spec(pods: &[Pod], name: &str) -> PodSpec {
    let pod = pods
        .iter()
        .find(|p| p.metadata.name.as_deref() == Some(name));
    pod.unwrap_or_else(|| panic!("no pod {name}"))
        .spec
        .clone()
        .unwrap()
}

/// Returns the variables of a container, in order.
fn env(pods: &[Pod], name: &str, container: usize) -> Vec<(String, String)> {
    let container = &spec(pods, name).containers[container];
    let vars = container.env.iter().flatten();
    vars.map(|e| (e.name.clone(), e.value.clone().unwrap_or_default()))
        .collect()
}

fn expected(vars: &[(&str, &str)]) -> Vec<(String, String)> {
    vars.iter()
        .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
        .collect()
}

#[test]
fn i_09_a_master_and_two_workers_find_each_other_by_the_published_variables() {
    let pods = pods(pt(2));
    for (name, rank) in [
        ("pt-master-0", "0"),
        ("pt-worker-0", "1"),
        ("pt-worker-1", "2"),
    ] {
        let golden = [
            ("PYTHONUNBUFFERED", "1"),
            ("MASTER_PORT", "23456"),
            ("PET_MASTER_PORT", "23456"),
            ("MASTER_ADDR", "pt-master-0"),
            ("PET_MASTER_ADDR", "pt-master-0"),
            ("WORLD_SIZE", "3"),
            ("RANK", rank),
            ("PET_NODE_RANK", rank),
            ("PET_NPROC_PER_NODE", "auto"),
            ("PET_NNODES", "3"),
        ];
        assert_eq!(env(&pods, name, 0), expected(&golden), "{name}");
    }
}

#[test]
fn four_processes_per_node_multiply_the_world_and_nothing_else() {
    let pods = pods(pt(2).set("/spec/nprocPerNode", "4"));
    for (name, rank) in [
        ("pt-master-0", "0"),
        ("pt-worker-0", "1"),
        ("pt-worker-1", "2"),
    ] {
        let golden = [
            ("PYTHONUNBUFFERED", "1"),
            ("MASTER_PORT", "23456"),
            ("PET_MASTER_PORT", "23456"),
            ("MASTER_ADDR", "pt-master-0"),
            ("PET_MASTER_ADDR", "pt-master-0"),
            ("WORLD_SIZE", "12"),
            ("RANK", rank),
            ("PET_NODE_RANK", rank),
            ("PET_NPROC_PER_NODE", "4"),
            ("PET_NNODES", "3"),
        ];
        assert_eq!(env(&pods, name, 0), expected(&golden), "{name}");
    }
}

#[test]
fn only_a_number_of_processes_multiplies_the_world() {
    for (nproc, world) in [
        ("auto", "3"),
        ("cpu", "3"),
        ("gpu", "3"),
        ("1", "3"),
        ("+2", "6"),
        ("08", "24"),
    ] {
        let pods = pods(pt(2).set("/spec/nprocPerNode", nproc));
        let env = env(&pods, "pt-worker-1", 0);
        assert!(
            env.contains(&("WORLD_SIZE".to_owned(), world.to_owned())),
            "{nproc}: {env:?}"
        );
        assert!(
            env.contains(&("PET_NPROC_PER_NODE".to_owned(), nproc.to_owned())),
            "{env:?}"
        );
    }
}

#[test]
fn b_052_an_elastic_job_without_a_master_gets_torchruns_variables_only() {
    let policy =
        json!({"minReplicas": 1, "maxReplicas": 3, "maxRestarts": 5, "rdzvBackend": "c10d"});
    let pods = pods(el(2, policy));
    for name in ["el-worker-0", "el-worker-1"] {
        let golden = [
            ("PYTHONUNBUFFERED", "1"),
            ("PET_NPROC_PER_NODE", "auto"),
            ("PET_RDZV_ENDPOINT", "el-worker-0:23456"),
            ("PET_RDZV_BACKEND", "c10d"),
            ("PET_NNODES", "1:3"),
            ("PET_MAX_RESTARTS", "5"),
        ];
        assert_eq!(env(&pods, name, 0), expected(&golden), "{name}");
        assert_eq!(spec(&pods, name).init_containers, None, "{name}");
    }
}

#[test]
fn b_052_without_master_and_elasticity_worker_zero_takes_the_masters_part() {
    let pods = pods(without_master("nm", 2));
    for (name, rank) in [("nm-worker-0", "0"), ("nm-worker-1", "1")] {
        let golden = [
            ("PYTHONUNBUFFERED", "1"),
            ("MASTER_PORT", "23456"),
            ("PET_MASTER_PORT", "23456"),
            ("MASTER_ADDR", "nm-worker-0"),
            ("PET_MASTER_ADDR", "nm-worker-0"),
            ("WORLD_SIZE", "2"),
            ("RANK", rank),
            ("PET_NODE_RANK", rank),
            ("PET_NPROC_PER_NODE", "auto"),
            ("PET_NNODES", "2"),
        ];
        assert_eq!(env(&pods, name, 0), expected(&golden), "{name}");
        assert_eq!(spec(&pods, name).init_containers, None, "{name}");
    }
}

#[test]
fn b_067_a_full_elastic_policy_is_passed_on_verbatim_and_in_order() {
    let policy = json!({
        "minReplicas": 2, "maxReplicas": 5, "maxRestarts": 3, "rdzvBackend": "etcd-v2",
        "rdzvHost": "localhost", "rdzvPort": 1234, "rdzvId": "run 7; $(id)", "standalone": true,
        "rdzvConf": [{"key": "timeout", "value": "90"}, {"key": "a b", "value": "\n"}],
        "nProcPerNode": 8,
    });
    let golden = [
        ("PYTHONUNBUFFERED", "1"),
        ("PET_RDZV_ENDPOINT", "localhost:1234"),
        ("PET_RDZV_BACKEND", "etcd-v2"),
        ("PET_NNODES", "2:5"),
        ("PET_MAX_RESTARTS", "3"),
        ("PET_NPROC_PER_NODE", "8"),
        ("PET_RDZV_ID", "run 7; $(id)"),
        ("PET_RDZV_CONF", "timeout=90,a b=\n"),
        ("PET_STANDALONE", ""),
    ];
    assert_eq!(
        env(&pods(el(2, policy)), "el-worker-1", 0),
        expected(&golden)
    );
}

#[test]
fn an_empty_rendezvous_configuration_adds_nothing() {
    let env = env(
        &pods(el(2, json!({"rdzvConf": [], "standalone": false}))),
        "el-worker-0",
        0,
    );
    let names: Vec<&str> = env.iter().map(|(n, _)| n.as_str()).collect();
    assert_eq!(
        names,
        [
            "PYTHONUNBUFFERED",
            "PET_NPROC_PER_NODE",
            "PET_RDZV_ENDPOINT",
            "PET_RDZV_BACKEND",
            "PET_NNODES"
        ]
    );
}

#[test]
fn a_missing_elastic_bound_is_the_other_one_or_the_number_of_workers() {
    let rows = [
        (json!({}), "2:2"),
        (json!({"minReplicas": 1}), "1:1"),
        (json!({"maxReplicas": 4}), "4:4"),
        (json!({"minReplicas": 1, "maxReplicas": 4}), "1:4"),
    ];
    for (policy, nodes) in rows {
        let env = env(&pods(el(2, policy)), "el-worker-0", 0);
        assert!(
            env.contains(&("PET_NNODES".to_owned(), nodes.to_owned())),
            "{env:?}"
        );
    }
}

#[test]
fn a_master_with_elastic_workers_gets_both_blocks() {
    let job = pt(2).set(
        "/spec/elasticPolicy",
        json!({"minReplicas": 1, "maxReplicas": 2}),
    );
    let golden = [
        ("PYTHONUNBUFFERED", "1"),
        ("MASTER_PORT", "23456"),
        ("PET_MASTER_PORT", "23456"),
        ("MASTER_ADDR", "pt-master-0"),
        ("PET_MASTER_ADDR", "pt-master-0"),
        ("WORLD_SIZE", "3"),
        ("RANK", "2"),
        ("PET_NODE_RANK", "2"),
        ("PET_NPROC_PER_NODE", "auto"),
        ("PET_RDZV_ENDPOINT", "pt-worker-0:23456"),
        ("PET_RDZV_BACKEND", "c10d"),
        ("PET_NNODES", "1:2"),
    ];
    assert_eq!(env(&pods(job), "pt-worker-1", 0), expected(&golden));
}

#[test]
fn b_111_the_users_number_for_our_port_is_used_everywhere() {
    let port = json!([{"name": "pytorchjob-port", "containerPort": 8080}]);
    let job = pt(1).set(
        "/spec/pytorchReplicaSpecs/Master/template/spec/containers/0/ports",
        port,
    );
    let pods = pods(job);
    let env = env(&pods, "pt-worker-0", 0);
    for name in ["MASTER_PORT", "PET_MASTER_PORT"] {
        assert!(
            env.contains(&(name.to_owned(), "8080".to_owned())),
            "{env:?}"
        );
    }
}

#[test]
fn b_115_an_injected_variable_replaces_the_users_in_every_container_once() {
    let containers = json!([
        {"name": "side", "image": "s", "env": [{"name": "RANK", "value": "9"}]},
        {"name": "pytorch", "image": "t", "env": [
            {"name": "WORLD_SIZE", "value": "1"}, {"name": "MINE", "value": "$(RANK)"}, {"name": "RANK", "value": "9"},
        ]},
    ]);
    let job = pt(1).set(
        "/spec/pytorchReplicaSpecs/Worker/template/spec/containers",
        containers,
    );
    let pods = pods(job);
    for container in [0, 1] {
        let env = env(&pods, "pt-worker-0", container);
        let ranks: Vec<_> = env.iter().filter(|(n, _)| n == "RANK").collect();
        assert_eq!(
            ranks,
            [&("RANK".to_owned(), "1".to_owned())],
            "container {container}"
        );
    }
    let main = env(&pods, "pt-worker-0", 1);
    assert_eq!(
        main[0],
        ("MINE".to_owned(), "$(RANK)".to_owned()),
        "the user's own come first"
    );
    assert_eq!(main.len(), 11);
}

#[test]
fn workers_of_a_master_wait_for_its_name_after_the_users_own_init_containers() {
    let own = json!([{"name": "fetch", "image": "f"}]);
    let job = pt(1).set(
        "/spec/pytorchReplicaSpecs/Worker/template/spec/initContainers",
        own,
    );
    let pods = pods(job);
    let names: Vec<String> = spec(&pods, "pt-worker-0")
        .init_containers
        .unwrap()
        .into_iter()
        .map(|c| c.name)
        .collect();
    assert_eq!(names, ["fetch", "init-pytorch"]);
    assert_eq!(spec(&pods, "pt-master-0").init_containers, None);
}
