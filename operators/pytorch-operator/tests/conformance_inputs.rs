//! Bad inputs that got past admission, and edits at odd moments: a defined answer for each.

// What fails here fails a test.
#![allow(clippy::unwrap_used, clippy::panic)]

mod scene;

use scene::{Scene, pt, without_master, world};
use serde_json::{Value, json};
use training_core::{PodPhase, Stall, Step};

const WORKER: &str = "/spec/pytorchReplicaSpecs/Worker";

fn last(world: &scene::KindWorld) -> String {
    world.conditions().pop().unwrap()
}

#[test]
fn b_085_b_087_b_089_limits_below_zero_end_the_job() {
    for field in [
        "backoffLimit",
        "activeDeadlineSeconds",
        "ttlSecondsAfterFinished",
    ] {
        let mut world = world(pt(1).run_policy(field, -5));
        world.settle();
        let end = world.status().conditions.pop().unwrap();
        let words = format!("spec.runPolicy.{field}: -5: should be greater than or equal to 0");
        assert_eq!(end.reason.as_deref(), Some("InvalidSpec"));
        assert_eq!(end.message, Some(words));
        assert_eq!(world.pod_names().len(), 0);
    }
}

#[test]
fn b_068_a_group_of_none_ends_the_job_and_one_of_too_many_has_no_effect() {
    for (available, pods) in [(-1, 0), (0, 0), (100, 2)] {
        let policy = json!({"minAvailable": available});
        let mut world = world(pt(1).run_policy("schedulingPolicy", policy));
        world.settle();
        assert_eq!(world.pod_names().len(), pods, "{available}");
        assert_eq!(last(&world) == "Failed=True", pods == 0, "{available}");
    }
}

#[test]
fn b_120_what_only_the_server_refuses_ends_the_job_in_its_words() {
    let mounts = json!([{"name": "data", "mountPath": "/data"}]);
    let path = format!("{WORKER}/template/spec/containers/0/volumeMounts");
    let world = world(pt(1).set(&path, mounts));
    let job = world.job().unwrap().clone();
    let framework = pytorch_operator::PyTorch::default();
    let mut seen = training_core::Observed::default();
    let first = training_core::plan(&framework, &job, &seen, world.now);
    assert!(
        first.steps.iter().any(Step::is_create),
        "the planner does not repeat all of the server's rules"
    );
    seen.stall = Some(Stall {
        reason: "InvalidSpec",
        message: "spec.containers[0].volumeMounts[0].name: Not found: \"data\"".to_owned(),
        hopeless: true,
        blocks: training_core::Blocked::All,
    });
    let plan = training_core::plan(&framework, &job, &seen, world.now);
    assert!(plan.steps.is_empty());
    let failed = plan.status.unwrap().next.conditions.pop().unwrap();
    assert_eq!(
        (failed.type_.as_str(), failed.reason.as_deref()),
        ("Failed", Some("InvalidSpec"))
    );
    assert!(failed.message.unwrap().contains("Not found"));
}

#[test]
fn b_094_times_in_the_future_are_waited_for() {
    let mut world = world(pt(1).run_policy("activeDeadlineSeconds", 60));
    world.settle();
    world.run_all();
    world.settle();
    // The clock of the operator before was ahead.
    let ahead = (world.now + std::time::Duration::from_secs(30)).to_string();
    world.set("/status/startTime", json!(ahead));
    world.view_all();
    let wake = world.plan().wake.unwrap();
    assert_eq!((wake - world.now).get_seconds(), 90);
    assert_eq!(last(&world), "Running=True");
}

#[test]
fn b_114_b_116_the_users_variables_come_before_ours_and_name_them_in_arguments() {
    let env = json!([{"name": "MINE", "value": "tcp://$(MASTER_ADDR):$(MASTER_PORT)"}]);
    let container = format!("{WORKER}/template/spec/containers/0");
    let job = pt(1).set(&format!("{container}/env"), env).set(
        &format!("{container}/args"),
        json!(["--master=$(MASTER_ADDR)"]),
    );
    let framework = pytorch_operator::PyTorch::default();
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    let plan = training_core::plan(
        &framework,
        &scene::typed(job),
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
fn b_127_host_name_and_subdomain_of_the_template_give_way_to_the_pods_own_name() {
    let job = pt(1)
        .set(&format!("{WORKER}/template/spec/hostname"), "mine")
        .set(&format!("{WORKER}/template/spec/subdomain"), "theirs");
    let mut world = world(job);
    world.settle();
    assert_eq!(world.pod_names(), ["pt-master-0", "pt-worker-0"]);
    assert!(
        world.services().contains("pt-worker-0"),
        "peers are found by services, not by host names"
    );
}

#[test]
fn b_129_a_deadline_within_the_template_fails_its_pod_and_is_told() {
    let mut world = world(pt(1).set(&format!("{WORKER}/template/spec/activeDeadlineSeconds"), 60));
    world.settle();
    world.run_all();
    world.settle();
    world.change("pt-worker-0", |p| {
        p.trouble = Some(Box::new(training_core::Trouble {
            reason: "DeadlineExceeded".to_owned(),
            message: "Pod was active on the node longer than the specified deadline".to_owned(),
            ..training_core::Trouble::default()
        }));
    });
    world.end("pt-worker-0", PodPhase::Failed, None);
    world.settle();
    let failure = world.status().last_failure.unwrap();
    assert_eq!(failure.reason.as_deref(), Some("DeadlineExceeded"));
    assert_eq!(
        last(&world),
        "Restarting=True",
        "the job's own deadline is another one"
    );
}

#[test]
fn b_143_a_role_that_is_added_gets_its_pods() {
    let mut world = world(without_master("nm", 1));
    world.settle();
    world.run_all();
    world.settle();
    let master: Value = pt(0).build()["spec"]["pytorchReplicaSpecs"]["Master"].clone();
    world.edit(|job| job["spec"]["pytorchReplicaSpecs"]["Master"] = master);
    world.writes.clear();
    world.settle();
    let made: Vec<&String> = world
        .writes
        .iter()
        .filter(|w| w.starts_with("create"))
        .collect();
    assert_eq!(
        made,
        ["create service nm-master-0", "create pod nm-master-0"]
    );
    assert!(world.writes.iter().all(|w| !w.starts_with("delete")));
}
