//! Under any events in any order the laws hold, and an undisturbed job settles.

use crate::histories::{cases, history};
use crate::scene::{KindWorld, framework, shapes, world};
use k8s_openapi::jiff::Timestamp;
use proptest::collection::vec;
use proptest::prelude::*;
use training_core::{Framework, ObjectKind, TrainingJob};
use training_testkit::builders::Job;
use training_testkit::explore::{FEW_STATES, explore, states};
use training_testkit::world::{Move, ReconcileEnd};

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

/// The kinds of objects beside pods and services. A kind with a Job runs its program there, and its other pods are hosts.
fn hosts<F: Framework>(_: &F) -> &'static [ObjectKind] {
    F::OBJECTS
}

/// The job's state, without times.
fn standing(world: &KindWorld) -> String {
    let state = world.durable_state();
    let conditions = state.conditions.iter();
    let conditions: Vec<_> = conditions.map(|c| (&c.type_, &c.status)).collect();
    let pods = world.pods();
    let pods: Vec<_> = pods
        .map(|(name, p)| (name, p.phase, p.attempt, p.terminating))
        .collect();
    let counts = (&state.counts, state.counted_failures, state.recreated);
    let objects = (world.services(), world.object_names());
    format!("{conditions:?} {pods:?} {counts:?} {objects:?}")
}

/// A move of a kubelet or a user between reconciles. Some moves let terminating pods go.
fn phase(kind: u8, pick: u8, more: u8) -> Move {
    match kind % 16 {
        0..=4 => Move::Run(pick),
        5 => Move::Finish(pick),
        6..=8 => Move::Fail(pick, [1, 137, 143][usize::from(more % 3)]),
        9 => Move::Drain(pick),
        10 => Move::Delete(pick),
        11..=12 => Move::Gone(pick),
        13 => Move::Suspend(more.is_multiple_of(2)),
        14 => Move::Scale(pick % 4),
        _ => Move::Batch(pick),
    }
}

/// Delays, duplicates, reorders or drops (until the next list) watch events, interleaved with reconciles.
fn disturbance(kind: u8, pick: u8, more: u8) -> Move {
    match kind % 4 {
        0 => Move::Deliver(pick % 2, more % 3, more / 4 % 3),
        1 => Move::Watch(pick),
        _ => Move::Pass(ReconcileEnd::Whole, more.is_multiple_of(2)),
    }
}

/// Wrong clock times, each followed by a corrected one.
const CLOCKS: [i64; 6] = [
    0,
    -62_135_596_800,
    253_402_207_100,
    1_000_000_000,
    1_000_000_600,
    999_999_400,
];

/// Extreme numbers.
fn extreme() -> impl Strategy<Value = i64> {
    let large = [0, 1, i64::from(i32::MAX), i64::MAX / 2, i64::MAX];
    prop::sample::select(large.to_vec())
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn i_44_lost_repeated_and_reordered_events_never_change_where_a_job_comes_to_rest(
        job in job(),
        phases in vec((any::<(u8, u8, u8)>(), vec(any::<(u8, u8, u8)>(), 0..6)), 1..12),
    ) {
        let (mut calm, mut rough) = (world(job.clone()), world(job));
        for ((kind, pick, more), disturbances) in phases {
            let phase = phase(kind, pick, more);
            for world in [&mut calm, &mut rough] {
                world.reconciles(30);
                world.happen(phase);
            }
            for (kind, pick, more) in disturbances {
                rough.happen(disturbance(kind, pick, more));
            }
            rough.list();
            for world in [&mut calm, &mut rough] {
                world.reconciles(30);
                prop_assert!(world.breaches.is_empty(), "{:?} after {phase:?}", world.breaches);
            }
            prop_assert_eq!(standing(&rough), standing(&calm), "after {:?}", phase);
        }
    }

    #[test]
    fn i_45_neither_extreme_numbers_nor_clocks_that_jump_make_a_pass_panic_or_loop(
        job in job(), deadline in extreme(), ttl in extreme(), limit in extreme(),
        history in vec((any::<(u8, u8, u8)>(), 0..CLOCKS.len()), 1..30),
    ) {
        let int = |n: i64| i32::try_from(n).unwrap_or(i32::MAX);
        let job = job
            .run_policy("activeDeadlineSeconds", deadline)
            .run_policy("ttlSecondsAfterFinished", int(ttl))
            .run_policy("backoffLimit", int(limit));
        let mut world = world(job);
        for ((kind, pick, more), clock) in history {
            world.now = Timestamp::from_second(CLOCKS[clock]).unwrap();
            world.happen(Move::drawn(kind, pick, more));
            // An idle plan that asks for an immediate requeue is a breach.
            world.reconcile();
            prop_assert!(world.breaches.is_empty(), "{:?} at {}", world.breaches, world.now);
        }
        (world.refusing, world.taken) = (false, false);
        // Releases names that other owners held.
        world.happen(Move::Take(0));
        world.reconciles(100);
        world.view_all();
        let plan = world.plan();
        prop_assert!(plan.is_idle() && !plan.requeue, "it loops: {plan:?}");
    }
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
        world.run_until_settled(false);
        prop_assert!(world.breaches.is_empty(), "{:?} at rest", world.breaches);
        world.run_until_settled(true);
        prop_assert!(world.breaches.is_empty(), "{:?} at the end", world.breaches);
        let ended = world.durable_state().is_finished();
        let waits = world.job().is_none_or(|job| {
            let roles = framework().roles(job);
            let decides = roles.is_ok_and(|r| r.iter().any(|r| r.is_master && r.replicas > 0));
            !decides || job.run_policy().suspend == Some(true)
        });
        // A launcher may wait for all its hosts, and an ended pod is no longer one.
        let mut pods = world.pods();
        let lost = !hosts(&framework()).is_empty() && pods.any(|(_, p)| p.phase.has_ended());
        prop_assert!(ended || waits || lost, "{:?} does not end", world.status());
    }
}

/// Runs all pods of the world and lets the operator see it.
fn running(mut world: KindWorld) -> KindWorld {
    for _ in 0..8 {
        world.reconciles(30);
        world.happen(Move::Batch(1));
        world.happen(Move::Batch(3));
        world.happen(Move::Run(0));
    }
    world.reconciles(30);
    world
}

#[test]
fn cs8_no_state_that_some_moves_lead_to_breaks_a_law_or_keeps_the_job_from_its_rest() {
    // Few states lie near one job, many near jobs of every shape.
    let shapes = shapes().into_iter();
    let shapes = shapes.take(if states() > FEW_STATES { usize::MAX } else { 1 });
    let new = shapes.map(|job| world(job.run_policy("backoffLimit", 1)).into_start());
    // A running job is many moves away from a new one.
    let starts: Vec<KindWorld> = new.flat_map(|new| [running(new.clone()), new]).collect();
    let explored = explore(&starts, states()).unwrap_or_else(|why| panic!("{why}"));
    eprintln!("{explored:?}");
    assert!(explored.states >= states(), "{explored:?}");
}
