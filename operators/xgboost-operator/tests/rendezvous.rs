//! The variables of XGBoost and LightGBM, written by hand from the published contract, and which role decides how a job ends.

use crate::scene::{KIND, Scene, framework, pt, typed, world};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use training_testkit::builders::Job;
use training_testkit::scene::{first_pods, placed};

/// The pods of a job's first plan.
fn pods(job: Job) -> Vec<Pod> {
    first_pods(&framework(), &typed(job))
}

/// The variables of a container, in order, as `NAME=value`.
fn env(pod: &Pod, container: usize) -> Vec<String> {
    let container = &pod.spec.as_ref().unwrap().containers[container];
    let vars = container.env.iter().flatten();
    vars.map(|e| format!("{}={}", e.name, e.value.as_deref().unwrap()))
        .collect()
}

#[test]
fn i_09_golden_every_pod_of_a_master_and_two_workers_has_the_published_variables_in_order() {
    let job = placed(KIND.job("xgb").master().workers(2));
    let pods = pods(job);
    let names: Vec<&str> = pods
        .iter()
        .map(|p| p.metadata.name.as_deref().unwrap())
        .collect();
    assert_eq!(names, ["xgb-master-0", "xgb-worker-0", "xgb-worker-1"]);
    for (pod, rank) in pods.iter().zip(0..) {
        let rank = format!("RANK={rank}");
        assert_eq!(
            env(pod, 0),
            [
                "MASTER_PORT=9999",
                "MASTER_ADDR=xgb-master-0",
                "WORLD_SIZE=3",
                &rank,
                "PYTHONUNBUFFERED=1",
                "WORKER_PORT=9999",
                "WORKER_ADDRS=xgb-worker-0,xgb-worker-1",
            ]
        );
    }
}

#[test]
fn golden_a_master_alone_is_told_of_no_workers() {
    for job in [placed(KIND.job("xgb").master()), pt(0)] {
        let pods = pods(job);
        assert_eq!(pods.len(), 1);
        let vars = env(&pods[0], 0);
        assert_eq!(vars.len(), 5);
        assert_eq!(vars[2..4], ["WORLD_SIZE=1", "RANK=0"]);
    }
}

#[test]
fn every_container_is_told_and_ports_of_the_users_are_used() {
    let ports = json!([{"name": "xgboostjob-port", "containerPort": 1234}]);
    let containers = |ports: &serde_json::Value| json!([{"name": "log", "image": "l"}, {"name": "xgboost", "image": "i", "ports": ports}]);
    let job = pt(1)
        .set(
            &format!("{}/template/spec/containers", crate::scene::MASTER),
            containers(&ports),
        )
        .set(
            &format!("{}/template/spec/containers", crate::scene::WORKER),
            containers(&json!([])),
        );
    for pod in pods(job) {
        assert_eq!(env(&pod, 0), env(&pod, 1));
        assert_eq!(env(&pod, 0)[0], "MASTER_PORT=1234");
        assert_eq!(env(&pod, 0)[5], "WORKER_PORT=9999");
    }
}

#[test]
fn the_master_speaks_for_the_job() {
    let role = "training.kubeflow.org/job-role";
    let spoken: Vec<bool> = pods(pt(2))
        .iter()
        .map(|p| p.metadata.labels.as_ref().unwrap().contains_key(role))
        .collect();
    assert_eq!(spoken, [true, false, false]);
}

#[test]
fn b_056_a_job_without_a_master_or_with_two_ends_with_the_field() {
    let two = pt(1).set(&format!("{}/replicas", crate::scene::MASTER), 2);
    for (job, field) in [
        (
            pt(1).without("Master"),
            "spec.xgbReplicaSpecs[Master]: Required value",
        ),
        (two, "spec.xgbReplicaSpecs[Master].replicas: must be 1"),
    ] {
        let mut world = world(job);
        world.settle();
        let message = world.status().conditions.pop().unwrap().message.unwrap();
        assert!(message.starts_with(field), "{message}");
        assert_eq!(world.writes, ["status"]);
    }
}

#[test]
fn an_ended_job_has_run_also_where_nobody_saw_it() {
    for (ends_well, last) in [(true, "Succeeded=True"), (false, "Failed=True")] {
        let mut world = world(pt(1).restart_policy("Master", "Never"));
        world.settle();
        if ends_well {
            world.finish("pt-master-0");
        } else {
            world.fail("pt-master-0", 1);
        }
        world.settle();
        assert_eq!(world.conditions(), ["Created=True", "Running=False", last]);
    }
}

#[test]
fn workers_that_end_do_not_end_the_job_and_the_master_does() {
    let mut world = world(pt(2));
    world.settle();
    world.run_all();
    world.settle();
    world.finish("pt-worker-0");
    world.finish("pt-worker-1");
    world.settle();
    assert_eq!(world.conditions(), ["Created=True", "Running=True"]);
    world.finish("pt-master-0");
    world.settle();
    let last = world.status().conditions.pop().unwrap();
    assert_eq!(
        last.message.as_deref(),
        Some("XGBoostJob pt is successfully completed.")
    );
    assert_eq!(last.reason.as_deref(), Some("XGBoostJobSucceeded"));
}

#[test]
fn a_drained_worker_is_made_again_and_does_not_fail_the_job() {
    let mut world = world(pt(1).restart_policy("Worker", "OnFailure"));
    world.settle();
    world.run_all();
    world.settle();
    world.end("pt-worker-0", training_core::PodPhase::Failed, None);
    world.settle();
    assert_eq!(world.conditions().last().unwrap(), "Restarting=True");
    assert!(world.pod("pt-worker-0").is_some());
}
