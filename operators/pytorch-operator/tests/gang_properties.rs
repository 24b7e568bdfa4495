//! For any sequence of events: groups exist before pods, outlive restarts, and are deleted at the end.

use crate::histories::{cases, history};
use crate::scene::{el, pt, world};
use proptest::prelude::*;
use serde_json::json;
use training_core::{Availabilities, Provider};
use training_testkit::builders::Job;

const PROVIDERS: [&str; 4] = ["native", "volcano", "scheduler-plugins", "none"];

fn provider(at: usize) -> Provider {
    Provider::parse(PROVIDERS[at]).unwrap()
}

fn job() -> impl Strategy<Value = Job> {
    let shape = prop_oneof![
        Just(pt(2)),
        Just(pt(1)),
        Just(el(3, json!({"minReplicas": 1, "maxReplicas": 4}))),
    ];
    let restart = prop::sample::select(&["OnFailure", "ExitCode", "Never"][..]);
    let clean = prop::sample::select(&["None", "Running", "All"][..]);
    let min = prop::option::weighted(0.4, 1..6i32);
    let scope = prop::sample::select(&["Replica", "Gang"][..]);
    (shape, restart, clean, min, scope, any::<bool>()).prop_map(
        |(mut job, restart, clean, min, scope, suspended)| {
            job = job
                .restart_policy("Worker", restart)
                .run_policy("cleanPodPolicy", clean)
                .run_policy("suspend", suspended)
                .run_policy("backoffLimit", 20)
                .annotation("trainyard.dev/restart-scope", scope);
            match min {
                Some(min) => job.run_policy("schedulingPolicy", json!({"minAvailable": min})),
                None => job,
            }
        },
    )
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn i_10_groups_come_before_pods_and_go_at_the_end_in_every_history(
        job in job(), set in 0..4usize, history in history(),
    ) {
        let mut world = world(job);
        world.gang.offers = Availabilities::all();
        world.gang.provider = provider(set);
        world.providers = (0..4).map(provider).collect();
        for step in history {
            world.happen(step);
            prop_assert!(world.breaches.is_empty(), "{:?} after {:?}", world.breaches, step);
        }
        world.run_until_settled(false);
        prop_assert!(world.breaches.is_empty(), "{:?} at rest", world.breaches);
        world.run_until_settled(true);
        prop_assert!(world.breaches.is_empty(), "{:?} at the end", world.breaches);
    }
}
