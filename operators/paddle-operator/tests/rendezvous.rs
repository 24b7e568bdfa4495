//! The variables of PaddlePaddle's processes in both modes, written by hand from the published contract, and how a job ends.

use crate::scene::{KIND, MASTER, Scene, WORKER, collective, framework, pt, typed, world};
use k8s_openapi::api::core::v1::{EnvVar, Pod};
use serde_json::json;
use training_testkit::builders::Job;
use training_testkit::scene::{first_pods, placed};

/// The pods of a job's first plan.
fn pods(job: Job) -> Vec<Pod> {
    first_pods(&framework(), &typed(job))
}

/// The variables of container 0, in order, as `NAME=value`; a field of the pod as `NAME<field`.
fn env(pod: &Pod) -> Vec<String> {
    let text = |var: &EnvVar| match (&var.value, &var.value_from) {
        (Some(value), None) => format!("{}={value}", var.name),
        (None, Some(from)) => {
            let field = from.field_ref.as_ref().unwrap();
            format!("{}<{}", var.name, field.field_path)
        }
        other => panic!("{}: {other:?}", var.name),
    };
    let container = &pod.spec.as_ref().unwrap().containers[0];
    container.env.iter().flatten().map(text).collect()
}

fn names(pods: &[Pod]) -> Vec<&str> {
    let name = |p: &'_ Pod| p.metadata.name.clone();
    assert!(pods.iter().all(|p| name(p).is_some()));
    pods.iter()
        .filter_map(|p| p.metadata.name.as_deref())
        .collect()
}

/// Which pods have the role of the master.
fn masters(pods: &[Pod]) -> Vec<bool> {
    let role = "training.kubeflow.org/job-role";
    pods.iter()
        .map(|p| p.metadata.labels.as_ref().unwrap().contains_key(role))
        .collect()
}

#[test]
fn i_09_golden_a_collective_job_has_the_published_variables_in_order() {
    let pods = pods(collective("pd", 2).set(&format!("{WORKER}/restartPolicy"), ""));
    assert_eq!(names(&pods), ["pd-worker-0", "pd-worker-1"]);
    let common = ["PYTHONUNBUFFERED=1", "PADDLE_JOB_ID=pd", "PADDLE_NNODES=2"];
    let first = [
        "POD_IP_DUMMY<status.podIP",
        "PADDLE_MASTER=$(POD_IP_DUMMY):36543",
    ];
    assert_eq!(env(&pods[0]), [&common[..], &first].concat());
    let second = ["PADDLE_MASTER=pd-worker-0:36543"];
    assert_eq!(env(&pods[1]), [&common[..], &second].concat());
    assert_eq!(masters(&pods), [false, false]);
    let spec = pods[0].spec.as_ref().unwrap();
    assert_eq!(spec.restart_policy.as_deref(), Some("OnFailure"));
    let port = &spec.containers[0].ports.as_ref().unwrap()[0];
    assert_eq!(
        (port.name.as_deref(), port.container_port),
        (Some("master"), 36543)
    );
}

#[test]
fn i_09_golden_parameter_servers_and_trainers_have_the_published_variables_in_order() {
    let job = placed(KIND.job("pp").role("Master", 2).workers(1));
    let pods = pods(job);
    assert_eq!(names(&pods), ["pp-master-0", "pp-master-1", "pp-worker-0"]);
    let common = ["PYTHONUNBUFFERED=1", "PADDLE_JOB_ID=pp", "PADDLE_NNODES=3"];
    let first = [
        "POD_IP_DUMMY<status.podIP",
        "PADDLE_MASTER=$(POD_IP_DUMMY):36543",
        "PADDLE_SERVER_NUM=1",
    ];
    assert_eq!(env(&pods[0]), [&common[..], &first].concat());
    let second = ["PADDLE_MASTER=pp-master-0:36543", "PADDLE_SERVER_NUM=1"];
    assert_eq!(env(&pods[1]), [&common[..], &second].concat());
    let trainer = ["PADDLE_MASTER=pp-master-0:36543", "PADDLE_TRAINER_NUM=1"];
    assert_eq!(env(&pods[2]), [&common[..], &trainer].concat());
    assert_eq!(masters(&pods), [true, true, false]);
}

#[test]
fn the_port_is_that_of_the_role_that_holds_the_rendezvous() {
    let ports = |number: i32| json!([{"name": "master", "containerPort": number}]);
    let with = |job: Job, role: &str, number| {
        let path = format!("{role}/template/spec/containers/0/ports");
        job.set(&path, ports(number))
    };
    let job = with(with(pt(1), MASTER, 8080), WORKER, 9090);
    let address = |pod: &Pod| env(pod)[3..5].join(" ");
    let made = pods(job);
    assert_eq!(
        address(&made[0]),
        "POD_IP_DUMMY<status.podIP PADDLE_MASTER=$(POD_IP_DUMMY):8080"
    );
    assert_eq!(env(&made[1])[3], "PADDLE_MASTER=pt-master-0:8080");
    let made = pods(with(collective("pd", 2), WORKER, 9090));
    assert_eq!(env(&made[1])[3], "PADDLE_MASTER=pd-worker-0:9090");
}

#[test]
fn a_collective_job_succeeds_with_its_last_worker() {
    let mut world = world(collective("pd", 2)).started();
    let running = world.status().conditions.pop().unwrap();
    assert_eq!(
        running.message.as_deref(),
        Some("PaddleJob ns1/pd is running.")
    );
    world.finish("pd-worker-0");
    world.settle();
    assert_eq!(world.conditions(), ["Created=True", "Running=True"]);
    world.finish("pd-worker-1");
    world.settle();
    let last = world.status().conditions.pop().unwrap();
    assert_eq!(last.reason.as_deref(), Some("PaddleJobSucceeded"));
    assert_eq!(
        last.message.as_deref(),
        Some("PaddleJob ns1/pd successfully completed.")
    );
}

#[test]
fn a_job_with_servers_succeeds_with_the_last_of_them() {
    let mut world = world(placed(KIND.job("pp").role("Master", 2).workers(1))).started();
    world.finish("pp-worker-0");
    world.finish("pp-master-1");
    world.settle();
    assert_eq!(world.conditions(), ["Created=True", "Running=True"]);
    world.finish("pp-master-0");
    world.settle();
    let last = world.status().conditions.pop().unwrap();
    assert_eq!(
        last.message.as_deref(),
        Some("PaddleJob pp is successfully completed.")
    );
}

#[test]
fn an_elastic_policy_is_accepted_and_the_user_learns_that_it_has_no_effect() {
    let mut world = world(pt(1).set("/spec/elasticPolicy/maxReplicas", 3));
    world.settle();
    assert_eq!(world.pod_names(), ["pt-master-0", "pt-worker-0"]);
    let text =
        "spec.elasticPolicy has no effect on a PaddleJob: scale its workers with kubectl scale";
    let events = world.events();
    assert!(
        events.contains(&format!("Warning SettingIgnored: {text}")),
        "{events:?}"
    );
}
