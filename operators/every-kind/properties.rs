//! Whatever happens, in whatever order: the laws hold, and a job that is left alone comes to rest.

use crate::histories::{cases, history};
use crate::scene::{framework, shapes, world};
use proptest::prelude::*;
use training_core::{Framework, TrainingJob};
use training_testkit::builders::Job;

fn job() -> impl Strategy<Value = Job> {
    let shape = prop::sample::select(shapes());
    let restart = prop::sample::select(&["OnFailure", "ExitCode", "Never", "Always"][..]);
    let clean = prop::sample::select(&["None", "Running", "All"][..]);
    let limit = prop::option::weighted(0.7, 0..5i32);
    let deadline = prop::option::weighted(0.2, 0..2000i64);
    let ttl = prop::option::weighted(0.2, 0..900i32);
    let scope = prop::sample::select(&["Replica", "Replica", "Gang"][..]);
    (
        shape,
        restart,
        clean,
        limit,
        deadline,
        ttl,
        scope,
        any::<bool>(),
    )
        .prop_map(
            |(mut job, restart, clean, limit, deadline, ttl, scope, suspended)| {
                job = job
                    .restart_policy("Worker", restart)
                    .run_policy("cleanPodPolicy", clean)
                    .run_policy("suspend", suspended)
                    .annotation("trainyard.dev/restart-scope", scope);
                if let Some(limit) = limit {
                    job = job.run_policy("backoffLimit", limit);
                }
                if let Some(deadline) = deadline {
                    job = job.run_policy("activeDeadlineSeconds", deadline);
                }
                if let Some(ttl) = ttl {
                    job = job.run_policy("ttlSecondsAfterFinished", ttl);
                }
                job
            },
        )
}

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn i_01_to_i_31_hold_in_every_history(job in job(), history in history()) {
        let mut world = world(job);
        for step in history {
            world.happen(step);
            prop_assert!(world.breaches.is_empty(), "{:?} after {:?}", world.breaches, step);
        }
        world.come_to_rest(false);
        prop_assert!(world.breaches.is_empty(), "{:?} at rest", world.breaches);
        world.come_to_rest(true);
        prop_assert!(world.breaches.is_empty(), "{:?} at the end", world.breaches);
        let ended = world.memory().is_finished();
        let waits = world.job().is_none_or(|job| {
            let roles = framework().roles(job);
            let decides = roles.is_ok_and(|r| r.iter().any(|r| r.speaks && r.replicas > 0));
            !decides || job.run_policy().suspend == Some(true)
        });
        prop_assert!(ended || waits, "{:?} does not end", world.status());
    }
}
