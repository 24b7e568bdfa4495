//! The variables of JAX processes, written by hand from the published contract, and how a job ends.

use crate::scene::{Scene, WORKER, framework, jx, typed, world};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use training_testkit::builders::Job;
use training_testkit::scene::first_pods;

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
fn i_09_golden_both_processes_have_the_published_variables_in_order() {
    let pods = pods(jx(2).set(&format!("{WORKER}/restartPolicy"), ""));
    let names: Vec<&str> = pods
        .iter()
        .map(|p| p.metadata.name.as_deref().unwrap())
        .collect();
    assert_eq!(names, ["jx-worker-0", "jx-worker-1"]);
    for (pod, id) in pods.iter().zip(0..) {
        assert_eq!(
            env(pod, 0),
            [
                "PYTHONUNBUFFERED=1",
                "COORDINATOR_PORT=6666",
                "COORDINATOR_ADDRESS=jx-worker-0",
                "NUM_PROCESSES=2",
                &format!("PROCESS_ID={id}"),
            ]
        );
        let spec = pod.spec.as_ref().unwrap();
        assert_eq!(spec.restart_policy.as_deref(), Some("Never"));
        let port = &spec.containers[0].ports.as_ref().unwrap()[0];
        assert_eq!(
            (port.name.as_deref(), port.container_port),
            (Some("jaxjob-port"), 6666)
        );
    }
}

#[test]
fn every_container_gets_the_variables_and_a_port_of_the_user_is_used() {
    let containers = json!([
        {"name": "log", "image": "l"},
        {"name": "jax", "image": "i", "ports": [{"name": "jaxjob-port", "containerPort": 1234}]},
    ]);
    for pod in pods(jx(2).set(&format!("{WORKER}/template/spec/containers"), containers)) {
        assert_eq!(env(&pod, 0), env(&pod, 1));
        assert_eq!(env(&pod, 0)[1], "COORDINATOR_PORT=1234");
    }
}

#[test]
fn process_0_has_the_role_of_the_master() {
    let role = "training.kubeflow.org/job-role";
    let roles: Vec<bool> = pods(jx(3))
        .iter()
        .map(|p| p.metadata.labels.as_ref().unwrap().contains_key(role))
        .collect();
    assert_eq!(roles, [true, false, false]);
}

#[test]
fn the_job_succeeds_with_its_last_process() {
    let mut world = world(jx(2)).started();
    let of_worker =
        |world: &crate::scene::KindWorld| world.status_json()["replicaStatuses"]["Worker"].clone();
    let selector = "training.kubeflow.org/job-name=jx,training.kubeflow.org/operator-name=jaxjob-controller,training.kubeflow.org/replica-type=worker";
    assert_eq!(
        of_worker(&world),
        json!({"active": 2, "selector": selector})
    );
    let last = world.status().conditions.pop().unwrap();
    assert_eq!(last.message.as_deref(), Some("JAXJob ns1/jx is running."));
    world.finish("jx-worker-0");
    world.settle();
    assert_eq!(world.conditions(), ["Created=True", "Running=True"]);
    world.finish("jx-worker-1");
    world.settle();
    let last = world.status().conditions.pop().unwrap();
    assert_eq!(last.reason.as_deref(), Some("JAXJobSucceeded"));
    assert_eq!(
        last.message.as_deref(),
        Some("JAXJob ns1/jx successfully completed.")
    );
    assert_eq!(
        of_worker(&world),
        json!({"succeeded": 2, "selector": selector})
    );
}

#[test]
fn a_failed_process_fails_the_job_under_never_and_is_replaced_under_on_failure() {
    let world_of = |policy: &str| {
        let mut world = world(jx(2).restart_policy("Worker", policy)).started();
        world.fail("jx-worker-1", 1);
        world.settle();
        world
    };
    let failed = world_of("Never").status().conditions.pop().unwrap();
    assert_eq!(
        failed.message.as_deref(),
        Some("JAXJob jx is failed because 1 Worker replica(s) failed.")
    );
    let restarted = world_of("OnFailure");
    assert_eq!(restarted.conditions(), ["Created=True", "Restarting=True"]);
    assert_eq!(restarted.pod_names(), ["jx-worker-0", "jx-worker-1"]);
}

#[test]
fn a_job_without_processes_says_that_it_can_not_end() {
    let mut world = world(jx(0));
    world.settle();
    assert_eq!(world.pod_names(), Vec::<&str>::new());
    let text = "spec.jaxReplicaSpecs[Worker].replicas is 0, and no other role decides when the job ends: set it to at least 1";
    let events = world.events();
    assert!(events.iter().any(|e| e.ends_with(text)), "{events:?}");
}

#[test]
fn b_094_a_job_of_another_cluster_is_left_alone() {
    let mut world = world(jx(2).run_policy("managedBy", "kueue.x-k8s.io/multikueue"));
    world.settle();
    assert_eq!(world.writes, Vec::<String>::new());
}
