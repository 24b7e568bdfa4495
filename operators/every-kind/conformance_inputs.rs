//! Defined behaviour for bad inputs that passed admission, and for edits at unusual moments.

use super::ranks::worker;
use crate::scene::{CHIEF, Scene, WORKER, framework, pt, world};
use serde_json::json;
use training_core::{Action as _, PodPhase, Stall, Step};

fn last(world: &crate::scene::KindWorld) -> String {
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
    let framework = framework();
    let mut observed = training_core::Observed::default();
    let first = training_core::plan(&framework, &job, &observed, world.now);
    assert!(
        first.steps.iter().any(Step::is_create),
        "the planner repeats only some of the server's rules"
    );
    observed.stall = Some(Stall {
        reason: "InvalidSpec",
        message: "spec.containers[0].volumeMounts[0].name: Not found: \"data\"".to_owned(),
        permanent: true,
        blocks: training_core::Blocked::All,
    });
    let plan = training_core::plan(&framework, &job, &observed, world.now);
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
    // The previous operator's clock was ahead.
    let ahead = (world.now + std::time::Duration::from_secs(30)).to_string();
    world.set("/status/startTime", json!(ahead));
    world.view_all();
    let wake = world.plan().requeue_at.unwrap();
    assert_eq!((wake - world.now).get_seconds(), 90);
    assert_eq!(last(&world), "Running=True");
}

#[test]
fn b_127_host_name_and_subdomain_of_the_template_give_way_to_the_pods_own_name() {
    let job = pt(1)
        .set(&format!("{WORKER}/template/spec/hostname"), "mine")
        .set(&format!("{WORKER}/template/spec/subdomain"), "theirs");
    let mut world = world(job);
    world.settle();
    assert_eq!(world.pod_names(), [CHIEF, worker(0)]);
    assert!(
        world.services().contains(worker(0)),
        "peers are found by services, not by host names"
    );
}

#[test]
fn b_129_a_deadline_within_the_template_fails_its_pod_and_is_told() {
    let mut world = world(pt(1).set(&format!("{WORKER}/template/spec/activeDeadlineSeconds"), 60));
    world.settle();
    world.run_all();
    world.settle();
    world.change(worker(0), |p| {
        p.trouble = Some(Box::new(training_core::Trouble {
            reason: "DeadlineExceeded".to_owned(),
            message: "Pod was active on the node longer than the specified deadline".to_owned(),
            ..training_core::Trouble::default()
        }));
    });
    world.end(worker(0), PodPhase::Failed, None);
    world.settle();
    let failure = world.status().last_failure.unwrap();
    assert_eq!(failure.reason.as_deref(), Some("DeadlineExceeded"));
    assert_eq!(
        last(&world),
        "Restarting=True",
        "the job has a separate deadline"
    );
}
