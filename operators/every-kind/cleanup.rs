//! Clean-up after the end of a job, its TTL, and what scaling down removes.

use super::ranks::{each, scale, stored, succeed, worker};
use crate::scene::{CHIEF, CHIEF_DECIDES, KIND, Scene, pt, world};
use serde_json::json;
use training_core::PodPhase;
use training_testkit::world::Move;

/// Pods and services left after a job ends with these phases of worker 0 and worker 1.
fn left(policy: Option<&str>, well: bool) -> (Vec<String>, Vec<String>) {
    let mut job = pt(3).restart_policy("Worker", "Never");
    if let Some(policy) = policy {
        job = job.run_policy("cleanPodPolicy", policy);
    }
    let mut world = world(job);
    world.settle();
    world.run(&[CHIEF, worker(0), worker(1)]);
    world.settle();
    world.finish(worker(0));
    world.settle();
    if well {
        succeed(&mut world);
    } else {
        world.fail(worker(1), 1);
    }
    world.settle();
    while world.pods().any(|(_, p)| p.terminating) {
        world.happen(Move::Gone(0));
        world.settle();
    }
    let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
    (
        owned(world.pod_names()),
        owned(world.services().into_iter().collect()),
    )
}

#[test]
fn the_policy_decides_what_stays_after_the_end() {
    let all = [CHIEF, worker(0), worker(1), worker(2)];
    // If all pods decide, all have ended.
    let ended = if CHIEF_DECIDES {
        &[CHIEF, worker(0)][..]
    } else {
        &all
    };
    let rows: [(Option<&str>, bool, &[&str]); 9] = [
        (None, true, &all),
        (Some("None"), true, &all),
        (Some("None"), false, &all),
        (Some("Running"), true, ended),
        (Some("Running"), false, &[worker(0), worker(1)]),
        (Some("All"), true, &[]),
        (Some("All"), false, &[]),
        (Some(""), true, &[]),
        (Some("Sometimes"), true, &[]),
    ];
    for (policy, succeed, stays) in rows {
        let stays: Vec<String> = stays.iter().map(|s| (*s).to_owned()).collect();
        assert_eq!(
            left(policy, succeed),
            (stays.clone(), stays),
            "{policy:?} {succeed}"
        );
    }
}

#[test]
fn i_21_the_end_is_stored_before_anything_is_cleaned_up() {
    let mut world = world(pt(1).run_policy("cleanPodPolicy", "All"));
    world.settle();
    world.run_all();
    world.settle();
    succeed(&mut world);
    world.writes.clear();
    world.settle();
    assert_eq!(world.writes[0], "status");
    assert_eq!(world.writes.iter().filter(|w| *w == "status").count(), 1);
    assert_eq!(world.writes.len(), 5);
}

#[test]
fn i_29_services_whose_pods_are_gone_already_go_as_well() {
    let mut world = world(pt(1).run_policy("cleanPodPolicy", "All"));
    world.settle();
    world.run_all();
    if !CHIEF_DECIDES {
        // Its success counts once the operator has seen it.
        world.finish(worker(0));
        world.settle();
    }
    succeed(&mut world);
    world.happen(Move::Vanish(1));
    world.settle();
    assert_eq!(world.services().len(), 0);
}

#[test]
fn i_23_b_089_a_job_goes_after_its_time_to_live_and_not_before() {
    for (ttl, wait) in [(0, 1), (3, 4), (180, 181)] {
        let mut world = world(pt(1).run_policy("ttlSecondsAfterFinished", ttl));
        world.settle();
        world.run_all();
        succeed(&mut world);
        world.settle();
        let wake = world.plan().requeue_at.unwrap();
        assert_eq!((wake - world.now).get_seconds(), wait);
        world.tick(wait - 1);
        assert!(world.plan().is_idle());
        world.tick(1);
        world.settle();
        assert!(world.job().is_none(), "ttl {ttl}");
    }
}

#[test]
fn b_089_i_45_the_longest_time_to_live_and_an_end_in_the_future_are_waited_for() {
    let mut world = world(pt(1).run_policy("ttlSecondsAfterFinished", i32::MAX));
    world.settle();
    world.run_all();
    succeed(&mut world);
    world.settle();
    world.tick(-100);
    assert!(world.plan().is_idle());
    assert!(world.plan().requeue_at.is_some_and(|at| at > world.now));
}

#[test]
fn a_job_that_another_operator_ended_without_a_time_still_goes() {
    let mut world = world(pt(1).run_policy("ttlSecondsAfterFinished", 5));
    world.set(
        "/status",
        json!({"conditions": [
            {"type": "Failed", "status": "True", "reason": format!("{}Failed", KIND.name), "message": "m",
             "lastTransitionTime": "1970-01-01T00:00:00Z"},
        ]}),
    );
    world.view_all();
    assert_eq!(world.plan().steps, [training_core::Step::DeleteJob]);
}

#[test]
fn b_141_fewer_workers_remove_the_highest_first_with_their_services() {
    let mut world = world(pt(3));
    world.settle();
    world.run_all();
    world.settle();
    world.happen(scale(1));
    world.writes.clear();
    world.settle();
    assert_eq!(
        world
            .writes
            .iter()
            .filter(|w| w.starts_with("delete"))
            .cloned()
            .collect::<Vec<_>>(),
        [
            each("delete pod", &[worker(2), worker(1)]),
            each("delete service", &[worker(1), worker(2)]),
        ]
        .concat()
    );
    world.happen(Move::Gone(0));
    world.happen(Move::Gone(0));
    world.settle();
    assert_eq!(world.pod_names(), [CHIEF, worker(0)]);
    assert_eq!(world.status_json()["ready"], "2/2");
    world.happen(scale(0));
    world.settle();
    if KIND.name == "PyTorchJob" {
        assert_eq!(
            world.conditions(),
            ["Stalled=True", "Created=True", "Running=True"],
            "a job without pods is refused, also without the CRD's rule"
        );
        assert_eq!(world.pod_names(), [CHIEF, worker(0)]);
        return;
    }
    world.happen(Move::Gone(0));
    world.settle();
    assert_eq!(world.conditions().last().unwrap(), "Running=True");
    assert_eq!(world.pod_names(), [CHIEF], "no worker is left");
    assert_eq!(world.services().len(), 1);
}

#[test]
fn a_replica_that_was_removed_runs_again_when_it_comes_back() {
    let mut world = world(pt(2)).started();
    world.finish(worker(1));
    world.settle();
    world.happen(scale(1));
    world.settle();
    world.run_until_settled(false);
    assert_eq!(world.pod_names(), [CHIEF, worker(0)]);
    world.happen(scale(2));
    world.settle();
    let phase = world.pod(worker(1)).map(|p| p.phase);
    assert_eq!(phase, Some(PodPhase::Pending));
}

#[test]
fn i_42_pods_of_another_operator_are_taken_over_as_they_are() {
    let mut world = world(pt(2));
    world.settle();
    world.run_all();
    world.settle();
    let pods = world.pod_names().join(" ");
    for name in pods.split(' ') {
        // As if they lacked our annotation.
        world.change(name, |p| p.attempt = training_core::Attempt::parse(None));
    }
    world.set(
        "/status",
        json!({
            "conditions": [
                {"type": "Running", "status": "True", "reason": format!("{}Running", KIND.name), "message": "It runs.",
                 "lastUpdateTime": "1970-01-10T00:00:00Z", "lastTransitionTime": "1970-01-10T00:00:00Z"},
            ],
            "replicaStatuses": stored([1, 0, 0], [2, 0, 0]),
            "startTime": "1970-01-10T00:00:00Z", "lastReconcileTime": "1970-01-10T00:00:05Z",
        }),
    );
    world.writes.clear();
    world.settle();
    assert_eq!(world.writes, ["status"]);
    assert_eq!(world.conditions(), ["Created=True", "Running=True"]);
    let status = world.status_json();
    assert_eq!(status["startTime"], "1970-01-10T00:00:00Z");
    assert_eq!(status["lastReconcileTime"], serde_json::Value::Null);
    world.end(worker(0), PodPhase::Failed, None);
    world.settle();
    assert_eq!(world.pod(worker(0)).unwrap().attempt.to_string(), "0.1");
}

#[test]
fn a_job_that_ended_under_another_operator_is_not_written_to() {
    let mut world = world(pt(2));
    world.settle();
    world.run_all();
    world.settle();
    let ended = |kind: &str| {
        json!({
            "conditions": [
                {"type": kind, "status": "True", "reason": format!("{}Ended", KIND.name), "message": "It is over.",
                 "lastUpdateTime": "1970-01-10T00:00:00Z", "lastTransitionTime": "1970-01-10T00:00:00Z"},
            ],
            "replicaStatuses": stored([0, 1, 0], [0, 0, 2]),
            "startTime": "1970-01-10T00:00:00Z", "lastReconcileTime": "1970-01-10T00:00:05Z",
        })
    };
    // The other operator doesn't always store a completion time.
    for kind in ["Succeeded", "Failed"] {
        world.set("/status", ended(kind));
        world.writes.clear();
        world.settle();
        assert_eq!(world.writes, Vec::<String>::new(), "{kind}");
    }
}
