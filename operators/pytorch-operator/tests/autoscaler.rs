//! An elastic job with metrics has an autoscaler while it runs, and only then.

use crate::scene::{KindWorld, Scene, el, pt, world};
use serde_json::{Value, json};
use training_core::{Action as _, Blocked, Step};

fn metrics(percent: u32) -> Value {
    json!([{"type": "Resource", "resource": {"name": "cpu",
        "target": {"type": "Utilization", "averageUtilization": percent}}}])
}

fn scaled(policy: Value) -> KindWorld {
    let mut policy = policy;
    policy["metrics"] = metrics(80);
    world(el(2, policy))
}

/// Returns the autoscaler that the first plan creates.
fn made(world: &KindWorld) -> Value {
    let steps = world.plan().steps;
    let Some(Step::CreateAutoscaler(made)) = steps.last() else {
        panic!("{:?} is not the last step", steps.last());
    };
    serde_json::to_value(made).unwrap()
}

fn bounds(world: &KindWorld) -> Option<(Option<i32>, i32)> {
    world.autoscaler().map(|a| (a.min, a.max))
}

#[test]
fn it_is_the_published_one() {
    let mut made = made(&scaled(json!({"minReplicas": 1, "maxReplicas": 3})));
    let annotations = made["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("annotations");
    assert_eq!(annotations.unwrap().as_object().unwrap().len(), 1);
    assert_eq!(
        made,
        json!({
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {
                "name": "el",
                "namespace": "ns1",
                "labels": {
                    "training.kubeflow.org/operator-name": "pytorchjob-controller",
                    "training.kubeflow.org/job-name": "el",
                },
                "ownerReferences": [{
                    "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "el",
                    "uid": "00000000-0000-0000-0000-000000000007",
                    "controller": true, "blockOwnerDeletion": true,
                }],
            },
            "spec": {
                "minReplicas": 1,
                "maxReplicas": 3,
                "metrics": metrics(80),
                "scaleTargetRef": {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "el"},
            },
        })
    );
}

#[test]
fn one_bound_stands_for_both_and_none_for_the_present_workers() {
    for (policy, min, max) in [
        (json!({"minReplicas": 2}), 2, 2),
        (json!({"maxReplicas": 5}), 5, 5),
        (json!({}), 2, 2),
    ] {
        let spec = made(&scaled(policy))["spec"].clone();
        assert_eq!(
            (&spec["minReplicas"], &spec["maxReplicas"]),
            (&json!(min), &json!(max))
        );
    }
}

#[test]
fn a_job_without_metrics_has_none() {
    for job in [pt(2), el(2, json!({"minReplicas": 1, "maxReplicas": 3}))] {
        let mut world = world(job);
        world.settle();
        assert_eq!(world.autoscaler(), None);
    }
}

#[test]
fn it_follows_the_spec_and_goes_with_the_metrics() {
    let mut world = scaled(json!({"minReplicas": 1, "maxReplicas": 3}));
    world.settle();
    let first = world.autoscaler().unwrap().clone();
    world.set("/spec/elasticPolicy/maxReplicas", json!(5));
    world.settle();
    assert_eq!(bounds(&world), Some((Some(1), 5)));
    world.set("/spec/elasticPolicy/metrics", metrics(50));
    world.settle();
    let last = world.autoscaler().unwrap().clone();
    assert_eq!(last.uid, first.uid, "it is changed, not made again");
    assert_ne!(last.digest, first.digest);
    let pods: Vec<String> = world
        .writes
        .iter()
        .filter(|w| w.contains("pod"))
        .cloned()
        .collect();
    assert_eq!(pods.len(), 2, "pods have nothing to do with it: {pods:?}");
    world.set("/spec/elasticPolicy/metrics", Value::Null);
    world.settle();
    assert_eq!(world.autoscaler(), None);
}

#[test]
fn a_job_whose_spec_becomes_invalid_keeps_it() {
    let mut world = scaled(json!({"minReplicas": 1, "maxReplicas": 3}));
    world.settle();
    let before = world.autoscaler().cloned();
    assert!(before.is_some());
    world.set("/spec/pytorchReplicaSpecs/Worker/replicas", json!(0));
    world.run_until_settled(false);
    assert_eq!(world.breaches, Vec::<String>::new());
    assert_eq!(world.autoscaler(), before.as_ref());
    world.set("/spec/pytorchReplicaSpecs/Worker/replicas", json!(2));
    world.set("/spec/elasticPolicy/maxReplicas", json!(5));
    world.settle();
    assert_eq!(bounds(&world), Some((Some(1), 5)));
}

#[test]
fn what_somebody_does_to_it_is_undone() {
    let mut world = scaled(json!({"minReplicas": 1, "maxReplicas": 3}));
    world.settle();
    world.happen(training_testkit::world::Move::Autoscaler(2));
    assert_eq!(bounds(&world), Some((Some(1), 4)));
    world.settle();
    assert_eq!(bounds(&world), Some((Some(1), 3)));
    world.happen(training_testkit::world::Move::Autoscaler(0));
    assert_eq!(world.autoscaler(), None);
    world.settle();
    assert_eq!(bounds(&world), Some((Some(1), 3)));
}

#[test]
fn its_own_controllers_writes_change_nothing() {
    let mut world = scaled(json!({"minReplicas": 1, "maxReplicas": 3}));
    world.settle();
    let writes = world.writes.len();
    world.happen(training_testkit::world::Move::Autoscaler(1));
    world.settle();
    assert_eq!(world.writes.len(), writes);
}

#[test]
fn it_goes_on_suspension_and_is_back_on_resume() {
    let mut world = scaled(json!({"minReplicas": 1, "maxReplicas": 3}));
    world.settle();
    world.set("/spec/runPolicy/suspend", json!(true));
    world.settle();
    assert_eq!(world.autoscaler(), None);
    world.set("/spec/runPolicy/suspend", json!(false));
    world.run_until_settled(false);
    assert_eq!(bounds(&world), Some((Some(1), 3)));
    assert_eq!(world.breaches, Vec::<String>::new());
}

#[test]
fn it_goes_at_the_end_whatever_the_clean_up_policy() {
    for (policy, code) in [("None", 0), ("None", 1), ("All", 0)] {
        let mut world = {
            let policy_of_workers =
                json!({"minReplicas": 1, "maxReplicas": 3, "metrics": metrics(80)});
            world(
                el(2, policy_of_workers)
                    .run_policy("cleanPodPolicy", policy)
                    .restart_policy("Worker", "Never"),
            )
        };
        world.settle();
        world.run_all();
        world.settle();
        if code == 0 {
            world.finish("el-worker-0");
        } else {
            world.fail("el-worker-0", code);
        }
        world.settle();
        assert!(world.durable_state().is_finished());
        assert_eq!(world.autoscaler(), None, "{policy} {code}");
        let end = world
            .writes
            .iter()
            .position(|w| w == "delete autoscaler")
            .unwrap();
        let stored = world.writes.iter().rposition(|w| w == "status").unwrap();
        assert!(stored < end, "the end is stored first: {:?}", world.writes);
    }
}

#[test]
fn a_taken_name_keeps_neither_pods_nor_their_replacements() {
    let mut world = scaled(json!({"minReplicas": 1, "maxReplicas": 3}));
    world.taken = true;
    world.reconciles(6);
    assert_eq!(world.pod_names(), ["el-worker-0", "el-worker-1"]);
    assert_eq!(world.conditions(), ["Stalled=True", "Created=True"]);
    world.run_all();
    world.reconciles(6);
    world.fail("el-worker-1", 137);
    world.reconciles(12);
    assert!(
        world
            .writes
            .iter()
            .filter(|w| *w == "create pod el-worker-1")
            .count()
            == 2
    );
    world.taken = false;
    world.run_until_settled(false);
    assert_eq!(bounds(&world), Some((Some(1), 3)));
    assert!(!world.conditions().contains(&"Stalled=True".to_owned()));
}

#[test]
fn only_steps_about_the_autoscaler_wait_for_it() {
    let steps = scaled(json!({})).plan().steps;
    let waiting = |blocked| steps.iter().filter(|s| s.waits_for(blocked)).count();
    assert_eq!(
        (waiting(Blocked::Autoscaler), waiting(Blocked::All)),
        (1, 5)
    );
}

#[test]
fn metrics_without_a_number_of_workers_are_told_to_have_no_effect() {
    let mut world = world(
        el(2, json!({"metrics": metrics(80)}))
            .set("/spec/pytorchReplicaSpecs/Worker/replicas", Value::Null),
    );
    world.settle();
    let told = world
        .notes
        .iter()
        .any(|n| n.message.contains("metrics has no effect"));
    assert!(told, "{:?}", world.notes);
}
