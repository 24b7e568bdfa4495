//! Whatever happens, in whatever order: the laws hold, and a job that is left alone comes to rest.

use crate::histories::{cases, history};
use crate::scene::{KindWorld, framework, shapes, world};
use k8s_openapi::jiff::Timestamp;
use proptest::collection::vec;
use proptest::prelude::*;
use training_core::{Framework, ObjectKind, TrainingJob};
use training_testkit::builders::Job;
use training_testkit::explore::{FEW_STATES, explore, states};
use training_testkit::world::{Fate, Move};

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

/// What a kind has beside pods and services: one with a Job runs its program there, and its other pods are hosts.
fn hosts<F: Framework>(_: &F) -> &'static [ObjectKind] {
    F::OBJECTS
}

/// Where a job stands, without times.
fn standing(world: &KindWorld) -> String {
    let memory = world.memory();
    let conditions = memory.conditions.iter();
    let conditions: Vec<_> = conditions.map(|c| (&c.type_, &c.status)).collect();
    let pods = world.pods();
    let pods: Vec<_> = pods
        .map(|(name, p)| (name, p.phase, p.attempt, p.leaving))
        .collect();
    let counts = (&memory.counts, memory.counted_failures, memory.recreated);
    let objects = (world.services(), world.object_names());
    format!("{conditions:?} {pods:?} {counts:?} {objects:?}")
}

/// What a kubelet or a user does while the operator is at rest. Pods that were asked to go are let go by one of them.
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

/// Events come late, in another order than those of other watches, twice, or are lost until the next list; and the operator makes
/// passes meanwhile.
fn disturbance(kind: u8, pick: u8, more: u8) -> Move {
    match kind % 4 {
        0 => Move::Deliver(pick % 2, more % 3, more / 4 % 3),
        1 => Move::Watch(pick),
        _ => Move::Pass(Fate::Whole, more.is_multiple_of(2)),
    }
}

/// Times at which clocks stand that are wrong, and the next ones where they are set right.
const CLOCKS: [i64; 6] = [
    0,
    -62_135_596_800,
    253_402_207_100,
    1_000_000_000,
    1_000_000_600,
    999_999_400,
];

/// Numbers beyond anything that makes sense.
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
                world.passes(30);
                world.happen(phase);
            }
            for (kind, pick, more) in disturbances {
                rough.happen(disturbance(kind, pick, more));
            }
            rough.list();
            for world in [&mut calm, &mut rough] {
                world.passes(30);
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
            // An idle plan that asks to be made again at once is a breach.
            world.pass();
            prop_assert!(world.breaches.is_empty(), "{:?} at {}", world.breaches, world.now);
        }
        (world.refusing, world.taken) = (false, false);
        // Names that somebody else had are free again.
        world.happen(Move::Take(0));
        world.passes(100);
        world.view_all();
        let plan = world.plan();
        prop_assert!(plan.is_idle() && !plan.again, "it loops: {plan:?}");
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
        // A launcher may wait for all of its hosts, and one that has ended is none any more.
        let mut pods = world.pods();
        let lost = !hosts(&framework()).is_empty() && pods.any(|(_, p)| p.phase.has_ended());
        prop_assert!(ended || waits || lost, "{:?} does not end", world.status());
    }
}

/// The same world when all of its pods run, and the operator knows.
fn running(mut world: KindWorld) -> KindWorld {
    for _ in 0..8 {
        world.passes(30);
        world.happen(Move::Batch(1));
        world.happen(Move::Batch(3));
        world.happen(Move::Run(0));
    }
    world.passes(30);
    world
}

#[test]
fn cs8_no_state_that_some_moves_lead_to_breaks_a_law_or_keeps_the_job_from_its_rest() {
    // Few states are near one job, and many near jobs of every shape.
    let shapes = shapes().into_iter();
    let shapes = shapes.take(if states() > FEW_STATES { usize::MAX } else { 1 });
    let new = shapes.map(|job| world(job.run_policy("backoffLimit", 1)).into_start());
    // What runs already is many moves away from what is new.
    let starts: Vec<KindWorld> = new.flat_map(|new| [running(new.clone()), new]).collect();
    let explored = explore(&starts, states()).unwrap_or_else(|why| panic!("{why}"));
    eprintln!("{explored:?}");
    assert!(explored.states >= states(), "{explored:?}");
}
