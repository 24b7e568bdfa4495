//! Gangs of MPI jobs: who is a member, and what carries the gang's mark.

// What fails here fails a test.
#![allow(clippy::unwrap_used, clippy::panic)]

use serde_json::{Value, json};

mod scene;

use mpi_operator::Mpi;
use scene::job;
use training_core::{ObjectKind, Offers, Provider, Step};
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
    world.gang.offers = Offers::all();
    world
}

/// The spec of the group that is made first.
fn group(world: &mut World<Mpi>) -> Value {
    for _ in 0..6 {
        let made = world.plan().steps.into_iter().find_map(|step| match step {
            Step::CreateGroup { object, .. } => Some(object["spec"].clone()),
            _ => None,
        });
        if let Some(spec) = made {
            return spec;
        }
        world.pass();
    }
    panic!("no group: {:?}", world.writes);
}

#[test]
fn a_gang_is_the_workers_and_the_launcher() {
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
