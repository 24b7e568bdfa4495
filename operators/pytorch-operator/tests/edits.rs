//! Edits of a running job: the operator reports what its pods can't follow, and changes no pod.

use crate::scene::{KindWorld, Scene, el, pt, world};
use serde_json::{Value, json};
use training_testkit::builders::Job;
use training_testkit::world::Move;

const WORKER: &str = "/spec/pytorchReplicaSpecs/Worker";
const IMAGE: &str = "/spec/pytorchReplicaSpecs/Worker/template/spec/containers/0/image";

fn running(job: Job) -> KindWorld {
    world(job).started()
}

fn elastic(policy: Value) -> Job {
    el(2, policy)
}

/// Returns the events about edits.
fn said(world: &KindWorld) -> Vec<&str> {
    let notes = world.notes.iter();
    notes
        .filter(|n| n.reason == "EditNotApplied")
        .map(|n| n.message.as_str())
        .collect()
}

#[test]
fn b_140_an_edit_that_pods_cannot_follow_is_said_once_and_changes_no_pod() {
    let bounds = json!({"minReplicas": 1, "maxReplicas": 3});
    for (job, at, value, field) in [
        (
            pt(2),
            IMAGE,
            json!("train:2"),
            "spec.pytorchReplicaSpecs[Worker].template",
        ),
        (pt(2), "/spec/nprocPerNode", json!("4"), "spec.nprocPerNode"),
        (
            pt(2),
            "/spec/elasticPolicy",
            json!({}),
            "spec.elasticPolicy",
        ),
        (
            pt(2),
            &*format!("{WORKER}/restartPolicy"),
            json!("Always"),
            "spec.pytorchReplicaSpecs[Worker].template",
        ),
        (
            elastic(bounds),
            "/spec/elasticPolicy/maxReplicas",
            json!(5),
            "spec.elasticPolicy",
        ),
    ] {
        let mut world = running(job);
        let before = world.writes.clone();
        world.set(at, value);
        world.settle();
        world.happen(Move::Touch);
        world.settle();
        let said = said(&world);
        assert_eq!(said.len(), 1, "{at}");
        assert!(said[0].starts_with(field), "{at}: {}", said[0]);
        assert_eq!(world.writes[before.len()..], ["status"], "{at}");
    }
}

#[test]
fn b_141_a_changed_number_of_pods_is_said_unless_the_job_is_elastic() {
    let mut rigid = running(pt(2));
    rigid.set(&format!("{WORKER}/replicas"), json!(3));
    rigid.settle();
    assert!(said(&rigid)[0].starts_with("the number of replicas"));
    assert_eq!(rigid.pod_names().len(), 4);
    let mut elastic = running(elastic(json!({"minReplicas": 1, "maxReplicas": 3})));
    elastic.set(&format!("{WORKER}/replicas"), json!(3));
    elastic.settle();
    assert_eq!(said(&elastic), [""; 0]);
    assert_eq!(elastic.pod_names().len(), 3);
}

#[test]
fn b_145_edits_that_the_operator_itself_follows_are_observed_but_not_reported() {
    for (at, value) in [
        ("/spec/runPolicy/backoffLimit", json!(7)),
        ("/spec/runPolicy/cleanPodPolicy", json!("All")),
        ("/spec/runPolicy/ttlSecondsAfterFinished", json!(60)),
    ] {
        let mut world = running(pt(2));
        let writes = world.writes.len();
        world.set(at, value);
        world.settle();
        assert_eq!(
            (said(&world).len(), &world.writes[writes..]),
            (0, &["status".to_owned()][..]),
            "{at}"
        );
    }
    let cpu = json!([{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization"}}}]);
    let mut world = running(elastic(json!({"maxReplicas": 3})));
    world.set("/spec/elasticPolicy/metrics", cpu);
    world.settle();
    assert_eq!(said(&world), [""; 0]);
    assert!(world.autoscaler().is_some());
}

#[test]
fn an_edit_is_noticed_by_an_operator_that_was_away_when_it_happened() {
    let mut world = running(pt(2));
    world.set(IMAGE, json!("train:2"));
    world.crash();
    world.settle();
    assert_eq!(said(&world).len(), 1);
    world.crash();
    world.settle();
    assert_eq!(said(&world).len(), 1, "what was said is stored");
}

#[test]
fn pods_that_are_made_anew_follow_so_nothing_is_said() {
    let mut world = running(pt(2));
    world.set("/spec/runPolicy/suspend", json!(true));
    world.set(IMAGE, json!("train:2"));
    world.settle();
    assert_eq!(world.durable_state().made_from, None);
    world.set(IMAGE, json!("train:3"));
    world.settle();
    world.set("/spec/runPolicy/suspend", json!(false));
    world.run_until_settled(false);
    assert_eq!(said(&world), [""; 0]);
    world.set(IMAGE, json!("train:4"));
    world.settle();
    assert_eq!(said(&world).len(), 1);

    // A restart of all pods applies earlier edits.
    let mut gang = running(pt(2).annotation("trainyard.dev/restart-scope", "Gang"));
    gang.fail("pt-worker-0", 137);
    gang.set(IMAGE, json!("train:2"));
    gang.settle();
    gang.run_until_settled(false);
    assert_eq!(said(&gang), [""; 0]);
}

#[test]
fn a_job_that_another_operator_started_costs_no_write_for_its_record() {
    let mut world = running(pt(2));
    world.edit(|job| {
        let status = job["status"].as_object_mut().unwrap();
        status.retain(|key, _| !["madeFrom", "observedGeneration"].contains(&key.as_str()));
    });
    let writes = world.writes.len();
    world.settle();
    world.set(IMAGE, json!("train:2"));
    world.settle();
    assert_eq!(world.writes.len(), writes);
}

#[test]
fn the_record_comes_with_the_first_write_and_goes_with_the_last() {
    let mut world = world(pt(2));
    world.reconcile();
    assert!(world.durable_state().made_from.is_some());
    assert_eq!(world.writes.iter().filter(|w| *w == "status").count(), 1);
    world.settle();
    world.run_all();
    world.finish("pt-master-0");
    world.settle();
    assert!(world.durable_state().is_finished() && world.durable_state().made_from.is_none());
}

#[test]
fn a_role_that_comes_or_goes_concerns_its_own_pods_only() {
    let mut world = running(pt(2));
    world.edit(|job| {
        let roles = job["spec"]["pytorchReplicaSpecs"].as_object_mut().unwrap();
        roles.remove("Worker");
    });
    world.settle();
    let said = said(&world);
    assert_eq!(said.len(), 1);
    assert!(said[0].starts_with("the number of replicas: "), "{said:?}");
}
