//! Gangs of MPI jobs: their members, and the pods that carry the gang's label.

use serde_json::{Value, json};

use crate::scene::job;
use mpi_operator::Mpi;
use training_core::{Availabilities, ObjectKind, Provider, Step};
use training_testkit::scene::Scene;
use training_testkit::world::World;

fn world(provider: Provider, change: impl FnOnce(&mut Value)) -> World<Mpi> {
    let needs = json!({ "requests": { "cpu": "2" } });
    let job = job(|job| {
        for role in ["Launcher", "Worker"] {
            let spec = &mut job["spec"]["mpiReplicaSpecs"][role]["template"]["spec"];
            spec["containers"][0]["resources"] = needs.clone();
        }
        change(job);
    });
    let mut world = World::new(Mpi::default(), job);
    world.gang.provider = provider;
    world.gang.offers = Availabilities::all();
    world
}

/// The spec of the first group created.
fn group(world: &mut World<Mpi>) -> Value {
    for _ in 0..6 {
        let made = world.plan().steps.into_iter().find_map(|step| match step {
            Step::CreateGroup { object, .. } => Some(object["spec"].clone()),
            _ => None,
        });
        if let Some(spec) = made {
            return spec;
        }
        world.reconcile();
    }
    panic!("no group: {:?}", world.writes);
}

/// All steps until the job settles.
fn steps(world: &mut World<Mpi>) -> Vec<Step> {
    let mut all = Vec::new();
    for _ in 0..8 {
        world.view_all();
        all.extend(world.plan().steps);
        world.reconcile();
    }
    all
}

/// The spec of the first patch of a group.
fn changed(world: &mut World<Mpi>) -> Value {
    let change = steps(world).into_iter().find_map(|step| match step {
        Step::ChangeGroup { patch, .. } => Some(patch["spec"].clone()),
        _ => None,
    });
    change.unwrap()
}

#[test]
fn i_10_a_gang_is_the_workers_and_the_launcher() {
    let mut volcano = world(Provider::Volcano, |_| ());
    let spec = group(&mut volcano);
    assert_eq!(
        (&spec["minMember"], &spec["minResources"]["cpu"]),
        (&json!(3), &json!("6"))
    );

    let mut said = world(Provider::Volcano, |job| {
        job["spec"]["runPolicy"]["schedulingPolicy"] =
            json!({ "minAvailable": 2, "queue": "q", "priorityClass": "high" });
    });
    let spec = group(&mut said);
    assert_eq!(
        (
            &spec["minMember"],
            &spec["queue"],
            &spec["priorityClassName"]
        ),
        (&json!(2), &json!("q"), &json!("high"))
    );

    let mut plugins = world(Provider::SchedulerPlugins("mine".into()), |_| ());
    assert_eq!(group(&mut plugins)["minMember"], 3);
    plugins.settle();
    let launcher = plugins.object(ObjectKind::Job, "pi-launcher").unwrap();
    let template = &launcher["spec"]["template"];
    assert_eq!(template["spec"]["schedulerName"], "mine");
    assert_eq!(
        template["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"],
        "pi"
    );
}

#[test]
fn a_launcher_that_waits_for_its_workers_is_none_of_those_that_start_together() {
    let mut world = world(Provider::SchedulerPlugins("mine".into()), |job| {
        job["spec"]["launcherCreationPolicy"] = json!("WaitForWorkersReady");
    });
    assert_eq!(group(&mut world)["minMember"], 2);
    world.settle();
    assert_eq!(world.pod_names(), ["pi-worker-0", "pi-worker-1"]);
    world.run_all();
    world.settle();
    assert!(world.object(ObjectKind::Job, "pi-launcher").is_some());
}

#[test]
fn a_launcher_that_was_made_suspended_joins_the_gang_when_it_is_resumed() {
    let mut world = world(Provider::SchedulerPlugins("mine".into()), |job| {
        job["spec"]["runPolicy"]["suspend"] = json!(true);
        job["spec"]["runPolicy"]["ttlSecondsAfterFinished"] = json!(60);
    });
    world.settle();
    world.set("/spec/runPolicy/suspend", json!(false));
    world.settle();
    let launcher = world.object(ObjectKind::Job, "pi-launcher").unwrap();
    assert_eq!(
        launcher["spec"]["template"]["spec"]["schedulerName"],
        "mine"
    );
    assert!(launcher["spec"]["suspend"] != true);
}

#[test]
fn pods_of_a_gang_dont_wait_for_volcanos_word() {
    let mut world = world(Provider::Volcano, |_| ());
    group(&mut world);
    world.settle();
    assert_eq!(world.pod_names(), ["pi-worker-0", "pi-worker-1"]);
    assert!(world.object(ObjectKind::Job, "pi-launcher").is_some());
    assert!(world.status().start_time.is_some());
}

#[test]
fn b_124_the_gangs_scheduler_overwrites_that_of_a_template() {
    for (provider, scheduler) in [
        (Provider::Volcano, "volcano"),
        (Provider::SchedulerPlugins("mine".into()), "mine"),
    ] {
        let mut world = world(provider, |job| {
            for role in ["Launcher", "Worker"] {
                let spec = &mut job["spec"]["mpiReplicaSpecs"][role]["template"]["spec"];
                spec["schedulerName"] = json!("another");
            }
        });
        let mut given = Vec::new();
        for step in steps(&mut world) {
            if let Step::CreatePod(pod) = step {
                given.push(pod.spec.unwrap().scheduler_name.unwrap());
            }
        }
        assert_eq!(given, [scheduler; 2]);
        let launcher = world.object(ObjectKind::Job, "pi-launcher").unwrap();
        let template = &launcher["spec"]["template"];
        assert_eq!(template["spec"]["schedulerName"], scheduler);
    }
}

#[test]
fn the_queue_is_that_of_the_policy_else_of_the_annotation_and_follows_the_job() {
    let annotated = |job: &mut Value| {
        job["metadata"]["annotations"] = json!({ "scheduling.volcano.sh/queue-name": "noted" });
    };
    let mut noted = world(Provider::Volcano, annotated);
    assert_eq!(group(&mut noted)["queue"], "noted");
    let mut both = world(Provider::Volcano, |job| {
        annotated(job);
        job["spec"]["runPolicy"]["schedulingPolicy"] = json!({ "queue": "told" });
    });
    assert_eq!(group(&mut both)["queue"], "told");
    both.settle();
    both.set("/spec/runPolicy/schedulingPolicy/queue", json!("other"));
    assert_eq!(changed(&mut both)["queue"], "other");
}

#[test]
fn the_group_of_a_job_of_v1_alone_has_the_jobs_annotations() {
    for (origin, copied) in [("v2beta1", Value::Null), ("v1", json!("b"))] {
        let mut world = world(Provider::Volcano, |job| {
            job["spec"]["submittedAs"] = json!(origin);
            job["metadata"]["annotations"] = json!({ "a": "b" });
        });
        let group = steps(&mut world).into_iter().find_map(|step| match step {
            Step::CreateGroup { object, .. } => Some(object),
            _ => None,
        });
        assert_eq!(
            group.unwrap()["metadata"]["annotations"]["a"],
            copied,
            "{origin}"
        );
    }
}

#[test]
fn a_later_timeout_reaches_the_group_of_scheduler_plugins() {
    let mut world = world(Provider::SchedulerPlugins("mine".into()), |job| {
        job["spec"]["runPolicy"]["schedulingPolicy"] = json!({ "minAvailable": 3 });
    });
    assert_eq!(group(&mut world)["scheduleTimeoutSeconds"], 0);
    world.settle();
    let timeout = "/spec/runPolicy/schedulingPolicy/scheduleTimeoutSeconds";
    world.set(timeout, json!(7));
    assert_eq!(changed(&mut world)["scheduleTimeoutSeconds"], 7);
}

#[test]
fn the_class_of_a_group_is_the_policys_else_the_launchers_else_the_workers() {
    let classes =
        |when: &str, policy: Option<&str>, launcher: Option<&str>, worker: Option<&str>| {
            let mut world = world(Provider::Volcano, |job| {
                for (role, class) in [("Launcher", launcher), ("Worker", worker)] {
                    let spec = &mut job["spec"]["mpiReplicaSpecs"][role]["template"]["spec"];
                    spec["priorityClassName"] = json!(class);
                }
                job["spec"]["launcherCreationPolicy"] = json!(when);
                job["spec"]["runPolicy"]["schedulingPolicy"] = json!({ "priorityClass": policy });
            });
            group(&mut world)["priorityClassName"].clone()
        };
    // Also if the launcher comes later and is no member.
    for when in ["AtStartup", "WaitForWorkersReady"] {
        assert_eq!(
            classes(when, Some("p"), Some("l"), Some("w")),
            "p",
            "{when}"
        );
        assert_eq!(classes(when, None, Some("l"), Some("w")), "l", "{when}");
        assert_eq!(classes(when, None, None, Some("w")), "w", "{when}");
        assert_eq!(classes(when, None, None, None), Value::Null, "{when}");
    }
}

#[test]
fn a_job_of_v1_waits_for_volcano_as_published() {
    let mut world = world(Provider::Volcano, |job| {
        job["spec"]["submittedAs"] = json!("v1");
        job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["schedulerName"] =
            json!("own");
    });
    group(&mut world);
    world.settle();
    assert!(world.pod_names().is_empty(), "{:?}", world.pod_names());
    assert!(world.status().start_time.is_none());
}
