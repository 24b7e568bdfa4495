//! Published behaviour of defaults, pods, services and variables, one test each.

use super::ranks::{chief_spec, each, replicas, scale, worker};
use crate::scene::{
    CHIEF, CHIEF_ROLE, KIND, KindWorld, RESTART, Scene, WORKER, framework, pt, typed, world,
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use training_core::{Observed, Step, plan};
use training_testkit::builders::Job;
use training_testkit::scene::{by_name, first_objects};
use training_testkit::world::Move;

/// The pods and services of the first plan, by `Kind name`.
fn made(job: Job) -> BTreeMap<String, Value> {
    by_name(first_objects(&framework(), &typed(job)))
}

/// The key of a pod in that map.
fn pod(name: &str) -> String {
    format!("Pod {name}")
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
fn b_004_an_absent_number_of_replicas_is_one() {
    let job = pt(1)
        .set(&format!("{}/replicas", chief_spec()), Value::Null)
        .set(&format!("{WORKER}/replicas"), Value::Null);
    let names: Vec<String> = made(job).into_keys().collect();
    // The first pod of each role.
    let pods = BTreeSet::from([CHIEF, "pt-worker-0"])
        .into_iter()
        .collect::<Vec<_>>();
    assert_eq!(
        names,
        ["Pod", "Service"].map(|kind| each(kind, &pods)).concat()
    );
}

#[test]
fn an_absent_restart_policy_is_the_kinds_and_always_is_kept() {
    for (told, policy) in [
        (Value::Null, RESTART),
        (json!(""), RESTART),
        (json!("Always"), "Always"),
    ] {
        let made = made(pt(1).set(&format!("{WORKER}/restartPolicy"), told.clone()));
        assert_eq!(
            made[&pod(worker(0))]["spec"]["restartPolicy"],
            policy,
            "{told}"
        );
    }
}

#[test]
fn b_114_the_default_port_comes_after_the_users_and_only_where_it_is_missing() {
    let ours = |number: i32| json!({"name": KIND.port.0, "containerPort": number});
    let own = json!({"name": "custom", "containerPort": 9000});
    let rows = [
        (Value::Null, json!([ours(KIND.port.1)])),
        (json!([own]), json!([own, ours(KIND.port.1)])),
        (json!([ours(8080)]), json!([ours(8080)])),
    ];
    for (told, expected) in rows {
        let made = made(pt(1).set(&format!("{WORKER}/template/spec/containers/0/ports"), told));
        assert_eq!(
            made[&pod(worker(0))]["spec"]["containers"][0]["ports"],
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
        let service = &made[&format!("Service {}", worker(0))]["spec"]["ports"];
        assert_eq!(of(service), of(&expected), "the service has the same ports");
    }
}

#[test]
fn the_chief_speaks_for_the_job_and_no_worker_beside_it() {
    let made = made(pt(2));
    let role = |name: &str| {
        made[&pod(name)]["metadata"]["labels"]["training.kubeflow.org/job-role"].clone()
    };
    assert_eq!(role(CHIEF), "master");
    assert_eq!(
        (role(worker(0)), role(worker(1))),
        (Value::Null, Value::Null)
    );
}

#[test]
fn every_replica_gets_one_pod_and_one_service() {
    for (job, replicas) in [(pt(1), 2), (pt(4), 5), (pt(6), 7)] {
        let made = made(job);
        let count = |kind: &str| made.keys().filter(|k| k.starts_with(kind)).count();
        assert_eq!((count("Pod "), count("Service ")), (replicas, replicas));
    }
}

#[test]
fn exactly_what_is_missing_is_made() {
    let mut world = world(pt(4));
    world.settle();
    let missing = [CHIEF, worker(1), worker(3)];
    for pod in missing {
        let at = world.pod_names().iter().position(|n| *n == pod).unwrap();
        world.happen(Move::Vanish(u8::try_from(at).unwrap()));
        let at = world.services().iter().position(|n| *n == pod).unwrap();
        world.happen(Move::DropService(u8::try_from(at).unwrap()));
    }
    world.writes.clear();
    world.settle();
    assert_eq!(
        writes(&world, "create"),
        ["create pod", "create service"]
            .map(|verb| each(verb, &missing))
            .concat()
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
fn i_24_every_object_belongs_to_its_job_by_all_five_fields() {
    let owner = json!([{
        "apiVersion": "kubeflow.org/v1", "kind": KIND.name, "name": "pt",
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
    for (name, role) in [(worker(0), "Worker"), (CHIEF, CHIEF_ROLE)] {
        let made = &made[&pod(name)]["metadata"];
        let found = [
            &made["labels"]["team"],
            &made["labels"]["app"],
            &made["annotations"]["note"],
        ];
        // The template is that of only one role.
        let expected = if role == "Worker" {
            [&json!("a"), &json!("b"), &json!("c")]
        } else {
            [&Value::Null; 3]
        };
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn b_038_b_039_what_has_no_effect_in_a_template_is_told() {
    let labels = json!({"training.kubeflow.org/job-role": "master"});
    let metadata = json!({"name": "mine", "labels": labels});
    let mut world = world(pt(1).set(&format!("{WORKER}/template/metadata"), metadata));
    world.settle();
    let path = format!("spec.{}[Worker].template.metadata", KIND.replica_map);
    let expected = [
        format!(
            "Warning SettingIgnored: {path}.labels: training.kubeflow.org/job-role is the operator's own, and its value is used"
        ),
        format!(
            "Warning SettingIgnored: {path}: pods get their names from the job, and live in its namespace"
        ),
    ];
    assert_eq!(world.events(), expected);
}

#[test]
fn names_have_the_replica_type_in_lower_case() {
    let mut job = pt(0).build();
    let map = job["spec"][KIND.replica_map].as_object_mut().unwrap();
    let spec = map.remove("Worker").unwrap();
    map.insert("WORKER".to_owned(), spec);
    map["WORKER"]["replicas"] = json!(replicas(2));
    let job: crate::scene::Resource = serde_json::from_value(job).unwrap();
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    let plan = plan(&framework(), &job, &Observed::default(), now);
    let names = plan.steps.iter().filter_map(|step| match step {
        Step::CreatePod(pod) => pod.metadata.name.clone(),
        _ => None,
    });
    assert_eq!(names.collect::<Vec<_>>(), [CHIEF, worker(0), worker(1)]);
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
            made[&pod(worker(0))]["spec"]["restartPolicy"],
            pods,
            "{told}"
        );
    }
}

#[test]
fn a_failed_container_of_a_gang_fails_its_pod_so_that_all_restart() {
    for (policy, pods) in [
        ("ExitCode", "Never"),
        ("Never", "Never"),
        ("Always", "Always"),
        ("OnFailure", "Never"),
    ] {
        let job = pt(1).restart_policy("Worker", policy);
        let made = made(job.annotation("trainyard.dev/restart-scope", "Gang"));
        assert_eq!(
            made[&pod(worker(0))]["spec"]["restartPolicy"],
            pods,
            "{policy}"
        );
    }
    // A pod with several containers would not fail before the last one has ended.
    let container = |name: &str| json!({ "name": name, "image": "train:1" });
    let both = json!([container(KIND.container), container("log")]);
    let job = pt(1).restart_policy("Worker", "OnFailure");
    let job = job.set(&format!("{WORKER}/template/spec/containers"), both);
    let made = made(job.annotation("trainyard.dev/restart-scope", "Gang"));
    assert_eq!(made[&pod(worker(0))]["spec"]["restartPolicy"], "OnFailure");
}

#[test]
fn workers_lowered_from_three_to_two_lose_the_last_and_raised_again_get_it_back() {
    let mut world = world(pt(3));
    world.settle();
    world.run_all();
    world.settle();
    world.writes.clear();
    world.happen(scale(2));
    world.settle();
    assert_eq!(
        writes(&world, "delete"),
        ["delete pod", "delete service"]
            .map(|verb| each(verb, &[worker(2)]))
            .concat()
    );
    world.happen(Move::Gone(0));
    world.settle();
    world.writes.clear();
    world.happen(scale(4));
    world.settle();
    assert_eq!(
        writes(&world, "create"),
        ["create pod", "create service"]
            .map(|verb| each(verb, &[worker(2), worker(3)]))
            .concat()
    );
}
