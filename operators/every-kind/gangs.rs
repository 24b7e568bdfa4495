//! The groups of a gang scheduler: when they are created, their size, and when they are deleted.

use serde_json::json;
use training_core::provider::Setting;
use training_core::{Availabilities, Provider};
use training_testkit::builders::Job;
use training_testkit::world::Move;

use super::ranks::succeed;
use crate::scene::{KindWorld, Scene, pt, world};

/// The world of a job whose operator uses this gang scheduler.
pub fn under(provider: &str, job: Job) -> KindWorld {
    let mut world = world(job);
    world.gang = Setting {
        provider: Provider::parse(provider).unwrap(),
        offers: Availabilities::all(),
        kueue: None,
    };
    world
}

/// Creates the groups, admits them, and creates the pods.
fn let_in(world: &mut KindWorld) {
    world.settle();
    world.happen(Move::Group(5));
    world.settle();
}

#[test]
fn i_10_groups_come_before_the_first_pod_with_the_declared_minimum() {
    for (provider, groups) in [
        ("volcano", &["create volcano-podgroups"][..]),
        ("scheduler-plugins", &["create scheduler-plugins-podgroups"]),
        ("native", &["create workloads", "create podgroups"]),
    ] {
        let policy = json!({"minAvailable": 2});
        let mut world = under(provider, pt(2).run_policy("schedulingPolicy", policy));
        let_in(&mut world);
        let writes = world.writes.iter();
        let before = writes.take_while(|w| !w.starts_with("create pod "));
        let made: Vec<&String> = before.filter(|w| groups.contains(&w.as_str())).collect();
        assert_eq!(made, groups, "{provider}: {:?}", world.writes);
        let fewest: Vec<u32> = world.groups().filter_map(|g| g.min).collect();
        assert_eq!(fewest, [2], "{provider}");
        assert_eq!(world.pod_names().len(), 3, "{provider}");
    }
}

#[test]
fn i_10_groups_go_once_at_every_end_whatever_the_clean_up_policy() {
    for provider in ["volcano", "scheduler-plugins", "native"] {
        for policy in ["None", "Running", "All"] {
            let mut world = under(provider, pt(1).run_policy("cleanPodPolicy", policy));
            let_in(&mut world);
            world.run_all();
            world.settle();
            assert!(world.groups().count() > 0);
            succeed(&mut world);
            world.settle();
            assert!(world.groups().all(|g| g.terminating), "{provider} {policy}");
            let deletes = world
                .writes
                .iter()
                .filter(|w| w.starts_with("delete") && w.contains("groups"));
            assert_eq!(
                deletes.count(),
                1,
                "{provider} {policy}: {:?}",
                world.writes
            );
        }
    }
}
