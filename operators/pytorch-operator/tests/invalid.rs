//! An invalid spec fails its job for good, with the name of the field, and without creating a pod.

use crate::scene::{Scene, el, pt, typed, without_master, world};
use serde_json::{Value, json};
use training_core::Note;
use training_testkit::builders::Job;

const MASTER: &str = "/spec/pytorchReplicaSpecs/Master";
const WORKER: &str = "/spec/pytorchReplicaSpecs/Worker";

fn with(path: &str, value: impl Into<Value>) -> Job {
    pt(2).set(path, value)
}

fn worker(path: &str, value: impl Into<Value>) -> Job {
    with(&format!("{WORKER}{path}"), value)
}

fn in_other_case(both: bool) -> Job {
    let worker = pt(1).build()["spec"]["pytorchReplicaSpecs"]["Worker"].clone();
    let job = if both { pt(1) } else { pt(0) };
    job.set("/spec/pytorchReplicaSpecs/worker", worker)
}

/// Row of the test plan, job, field.
#[rustfmt::skip]
#[allow(clippy::too_many_lines)]
fn rows() -> Vec<(&'static str, Job, &'static str)> {
    vec![
        (
            "B-006",
            worker("/replicas", -1),
            "spec.pytorchReplicaSpecs[Worker].replicas",
        ),
        (
            "B-010",
            worker("/template", json!({})),
            "spec.pytorchReplicaSpecs[Worker].template.spec",
        ),
        (
            "B-011",
            worker("/template/spec/containers", json!([])),
            "spec.pytorchReplicaSpecs[Worker].template.spec.containers",
        ),
        (
            "B-013",
            worker("/template/spec/containers/0/image", ""),
            "spec.pytorchReplicaSpecs[Worker].template.spec.containers[0].image",
        ),
        (
            "B-014",
            worker("/template/spec/containers/0/name", "main"),
            "spec.pytorchReplicaSpecs[Worker].template.spec.containers",
        ),
        (
            "B-015",
            worker(
                "/template/spec/containers",
                json!([{"name": "pytorch", "image": "a"}, {"name": "pytorch", "image": "b"}]),
            ),
            "spec.pytorchReplicaSpecs[Worker].template.spec.containers[1]",
        ),
        (
            "B-017",
            with("/spec/pytorchReplicaSpecs/Wroker", json!({})),
            "spec.pytorchReplicaSpecs",
        ),
        (
            "B-019",
            in_other_case(true),
            "spec.pytorchReplicaSpecs",
        ),
        (
            "B-030",
            with("/metadata/name", "a".repeat(56)),
            "metadata.name",
        ),
        (
            "B-032",
            with("/metadata/name", "a".repeat(54)).set(&format!("{WORKER}/replicas"), 11),
            "metadata.name",
        ),
        ("B-033", with("/metadata/name", "a.b"), "metadata.name"),
        ("B-034", with("/metadata/name", "1job"), "metadata.name"),
        (
            "B-050 none",
            with(&format!("{MASTER}/replicas"), 0),
            "spec.pytorchReplicaSpecs[Master].replicas",
        ),
        (
            "B-050 two",
            with(&format!("{MASTER}/replicas"), 2),
            "spec.pytorchReplicaSpecs[Master].replicas",
        ),
        (
            "B-051",
            worker("/replicas", i32::MIN),
            "spec.pytorchReplicaSpecs[Worker].replicas",
        ),
        (
            "B-060",
            worker("/replicas", 1_000_000),
            "spec.pytorchReplicaSpecs[Worker].replicas",
        ),
        (
            "B-063 order",
            el(2, json!({"minReplicas": 3, "maxReplicas": 2})),
            "spec.elasticPolicy.minReplicas",
        ),
        (
            "B-063 min",
            el(2, json!({"minReplicas": 0})),
            "spec.elasticPolicy.minReplicas",
        ),
        (
            "B-063 max",
            el(2, json!({"maxReplicas": -1})),
            "spec.elasticPolicy.maxReplicas",
        ),
        (
            "B-065",
            el(2, json!({"nProcPerNode": 2})).set("/spec/nprocPerNode", "2"),
            "spec.elasticPolicy.nProcPerNode",
        ),
        (
            "B-066 zero",
            with("/spec/nprocPerNode", "0"),
            "spec.nprocPerNode",
        ),
        (
            "B-066 negative",
            with("/spec/nprocPerNode", "-1"),
            "spec.nprocPerNode",
        ),
        (
            "B-066 shell",
            with("/spec/nprocPerNode", "1; id"),
            "spec.nprocPerNode",
        ),
        (
            "B-066 signs",
            with("/spec/nprocPerNode", "++1"),
            "spec.nprocPerNode",
        ),
        (
            "B-080",
            worker("/restartPolicy", "Sometimes"),
            "spec.pytorchReplicaSpecs[Worker].restartPolicy",
        ),
        (
            "B-119",
            worker(
                "/template/spec/initContainers",
                json!([{"name": "init-pytorch", "image": "a"}]),
            ),
            "spec.pytorchReplicaSpecs[Worker].template.spec.initContainers",
        ),
    ]
}

#[test]
fn every_invalid_spec_ends_in_a_failure_that_names_the_field() {
    for (id, job, field) in rows() {
        let mut world = world(job);
        world.settle();
        let last = world.status().conditions.pop().unwrap();
        assert_eq!(
            (last.type_.as_str(), last.reason.as_deref()),
            ("Failed", Some("InvalidSpec")),
            "{id}"
        );
        let message = last.message.unwrap();
        assert!(
            message.starts_with(&format!("{field}: ")),
            "{id}: {message}"
        );
        assert_eq!(world.notes, [Note::warning("InvalidSpec", message)], "{id}");
        assert_eq!(world.writes, ["status"], "{id}: one write, no pod");
        assert_eq!(world.durable_state().completed, Some(world.now), "{id}");
        assert_eq!(world.conditions()[0], "Created=True", "{id}");
    }
}

#[test]
fn b_064_elasticity_needs_workers() {
    let mut job = pt(1).set("/spec/elasticPolicy", json!({})).build();
    job["spec"]["pytorchReplicaSpecs"]
        .as_object_mut()
        .unwrap()
        .remove("Worker");
    let mut world: crate::scene::KindWorld = training_testkit::world::World::new(
        pytorch_operator::PyTorch::default(),
        serde_json::from_value(job).unwrap(),
    );
    world.settle();
    let message = world.status().conditions.pop().unwrap().message.unwrap();
    assert!(
        message.starts_with("spec.pytorchReplicaSpecs[Worker]: "),
        "{message}"
    );
}

#[test]
fn what_ran_under_the_existing_operator_is_not_refused() {
    let rows: Vec<(&str, Job)> = vec![
        (
            "replicas absent",
            pt(2).set(&format!("{MASTER}/replicas"), Value::Null),
        ),
        ("restart policy empty", worker("/restartPolicy", "")),
        (
            "an odd clean-up policy",
            pt(2).run_policy("cleanPodPolicy", "Sometimes"),
        ),
        ("a device", with("/spec/nprocPerNode", "xla")),
        ("nothing", with("/spec/nprocPerNode", "")),
        (
            "workers outside the bounds",
            el(5, json!({"minReplicas": 1, "maxReplicas": 3})),
        ),
        ("the longest name", with("/metadata/name", "a".repeat(54))),
        ("one letter", without_master("a", 1)),
    ];
    for (id, job) in rows {
        let mut world = world(job);
        world.settle();
        assert_eq!(world.conditions(), ["Created=True"], "{id}");
    }
}

#[test]
fn a_job_that_becomes_invalid_while_it_runs_keeps_its_pods_until_it_is_fixed() {
    let mut world = world(pt(2).run_policy("cleanPodPolicy", "All")).started();
    world.writes.clear();
    world.set("/spec/nprocPerNode", json!("0"));
    world.settle();
    let running = ["Stalled=True", "Created=True", "Running=True"];
    assert_eq!(world.conditions(), running);
    let said =
        |world: &crate::scene::KindWorld| world.status().conditions[0].message.clone().unwrap();
    assert!(said(&world).starts_with("spec.nprocPerNode: \"0\" "));
    assert_eq!(world.writes, ["status"]);
    world.set("/spec/nprocPerNode", json!("-1"));
    world.settle();
    assert!(said(&world).starts_with("spec.nprocPerNode: \"-1\" "));
    world.finish("pt-master-0");
    world.set("/spec/nprocPerNode", json!("1"));
    world.settle();
    assert_eq!(world.conditions().last().unwrap(), "Succeeded=True");
}

#[test]
fn a_job_whose_spec_cant_be_read_any_more_still_ends_at_its_deadline() {
    let mut world = world(pt(1).run_policy("activeDeadlineSeconds", 60)).started();
    let start = world.durable_state().started.unwrap();
    world.set("/spec/nprocPerNode", json!("0"));
    world.settle();
    world.view_all();
    let wake = world.plan().requeue_at.unwrap();
    assert_eq!((wake - start).get_seconds(), 60);
    world.now = wake;
    world.settle();
    let last = world.status().conditions.pop().unwrap();
    assert_eq!(last.type_, "Failed");
    assert!(
        last.message
            .unwrap()
            .ends_with("active longer than specified deadline")
    );
}

#[test]
fn b_119_an_init_container_that_the_operator_renames_fails_no_job_that_runs() {
    let mut world = world(pt(2)).started();
    world.set(
        &format!("{WORKER}/template/spec/initContainers"),
        json!([{"name": "init-pytorch", "image": "a"}]),
    );
    world.settle();
    assert_eq!(world.conditions()[0], "Stalled=True");
    assert_eq!(world.pods().filter(|(_, p)| !p.terminating).count(), 3);
}

#[test]
fn an_elastic_restart_is_over_with_as_many_replicas_as_it_needs() {
    let mut world = world(el(3, json!({"minReplicas": 2, "maxReplicas": 3}))).started();
    world.fail("el-worker-0", 137);
    world.fail("el-worker-1", 137);
    world.settle();
    assert_eq!(world.conditions(), ["Created=True", "Restarting=True"]);
    world.run(&["el-worker-1"]);
    world.settle();
    assert_eq!(world.conditions(), ["Created=True", "Running=True"]);
}

#[test]
fn settings_without_effect_are_told_once() {
    let job = pt(1)
        .run_policy("cleanPodPolicy", "Sometimes")
        .run_policy("schedulingPolicy", json!({"minAvailable": 2}))
        .annotation("trainyard.dev/restart-scope", "gang")
        .set(&format!("{WORKER}/template/spec/restartPolicy"), "Never")
        .set(
            &format!("{WORKER}/template/spec/containers/0/env"),
            json!([{"name": "RANK", "value": "7"}]),
        );
    let mut world = world(job);
    world.settle();
    world.run_all();
    world.settle();
    let reasons: Vec<&str> = world.notes.iter().map(|n| n.reason.as_str()).collect();
    assert_eq!(
        reasons,
        [
            "SetPodTemplateRestartPolicy",
            "SettingIgnored",
            "SettingIgnored",
            "SettingIgnored",
            "EnvReplaced"
        ]
    );
    assert!(world.notes[1].message.contains("Sometimes"));
}

#[test]
fn the_examples_of_this_file_decode() {
    assert_eq!(typed(pt(1)).spec.pytorch_replica_specs.len(), 2);
}
