//! Random histories of applications, with lagging watches, lost responses and foreign objects that take names.

// A panic here fails a test.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../../every-kind/histories.rs"]
#[allow(dead_code)]
mod histories;
#[path = "spark/made.rs"]
mod made;
#[path = "spark/scene.rs"]
#[allow(dead_code)]
mod scene;
mod world;

use histories::cases;
use proptest::collection::vec;
use proptest::prelude::*;
use training_testkit::explore::{explore, states};
use training_testkit::world::ReconcileEnd;
use world::{Action, World};

/// Likely actions have more numbers. Zeros are a harmless one, for shrinking.
fn action() -> impl Strategy<Value = Action> {
    any::<(u8, u8, u8)>().prop_map(|(kind, pick, more)| {
        let even = more.is_multiple_of(2);
        match kind % 64 {
            0..=9 => Action::FullPass,
            10..=19 => Action::Pass(ReconcileEnd::Whole, even),
            20..=24 => Action::Pass(ReconcileEnd::CrashAfter(u32::from(pick % 8)), even),
            25..=29 => Action::Pass(ReconcileEnd::LostAfter(u32::from(pick % 8)), even),
            30..=34 => Action::Deliver(pick % 3, more % 4, more / 4 % 4),
            35 => Action::Watch(pick),
            36..=40 => Action::Runs,
            41..=44 => Action::Ends(pick % 3),
            45..=46 => Action::Executor(pick),
            47..=50 => Action::Gone(pick),
            51 => Action::Vanish,
            52 => Action::Lose(pick),
            53 => Action::TakeDriver(even),
            54 => Action::TakeObject(pick),
            55 => Action::Refuse(pick % 4),
            56 => Action::Suspend(even),
            57 => Action::Suspend(false),
            58 => Action::Edit(pick % 3),
            59 => Action::Crash,
            _ => Action::Time(more % 40),
        }
    })
}

/// A move of a kubelet, a driver or a user between reconciles.
fn phase(kind: u8, pick: u8, more: u8) -> Action {
    match kind % 16 {
        0..=3 => Action::Runs,
        4..=6 => Action::Ends(pick),
        7..=8 => Action::Executor(pick),
        9..=10 => Action::Gone(pick),
        11 => Action::Vanish,
        12 => Action::Suspend(more.is_multiple_of(2)),
        13 => Action::Edit(pick % 3),
        14 => Action::Lose(pick),
        _ => Action::Time(more % 40),
    }
}

/// Late, reordered, repeated or lost watch events, with reconciles in between.
fn disturbance(kind: u8, pick: u8, more: u8) -> Action {
    match kind % 4 {
        0 => Action::Deliver(pick % 2, more % 3, more / 4 % 3),
        1 => Action::Watch(pick),
        _ => Action::Pass(ReconcileEnd::Whole, more.is_multiple_of(2)),
    }
}

/// Wrong clock times, followed by correct ones.
const CLOCKS: [i64; 5] = [
    0,
    -62_135_596_800,
    253_402_207_100,
    1_780_000_000,
    1_780_000_600,
];

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn i_44_lost_repeated_and_reordered_events_never_change_where_an_application_comes_to_rest(
        policy in prop::sample::select(&["Never", "Always", "OnFailure"][..]),
        phases in vec((any::<(u8, u8, u8)>(), vec(any::<(u8, u8, u8)>(), 0..6)), 1..16),
    ) {
        let (mut calm, mut rough) = (World::new(policy), World::new(policy));
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
            prop_assert_eq!(rough.standing(), calm.standing(), "after {:?}", phase);
        }
    }

    #[test]
    fn i_45_neither_extreme_numbers_nor_clocks_that_jump_make_a_pass_panic_or_loop(
        interval in prop::sample::select(&[0, 1, i64::MAX / 2, i64::MAX][..]),
        ttl in prop::sample::select(&[None, Some(0), Some(i64::MAX)][..]),
        policy in prop::sample::select(&["Never", "Always", "OnFailure"][..]),
        actions in vec((action(), 0..CLOCKS.len()), 1..30),
    ) {
        let mut world = World::of(policy, interval, ttl);
        for (action, clock) in actions {
            world.set_clock(CLOCKS[clock]);
            world.happen(action);
            // An idle plan that requests an immediate reconcile is a violation.
            world.full_pass();
            prop_assert!(world.breaches.is_empty(), "{:?}: {:?}", world.breaches, world.writes);
        }
    }
}

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn i_01_to_i_31_hold_in_every_history_of_an_application(
        actions in vec(action(), 1..60),
        policy in prop::sample::select(&["Never", "Always", "OnFailure"][..]),
    ) {
        let mut world = World::new(policy);
        for action in actions {
            world.happen(action);
            prop_assert!(world.breaches.is_empty(), "{:?} after {action:?}: {:?}", world.breaches, world.writes);
        }
        world.run_until_settled(policy != "Always");
        prop_assert!(world.breaches.is_empty(), "{:?} at rest: {:?}", world.breaches, world.writes);
    }
}

#[test]
fn b_149_a_hundred_flips_of_suspend_leave_one_driver() {
    for policy in ["Never", "Always", "OnFailure"] {
        let mut world = World::new(policy);
        for flip in 0..100_u8 {
            for action in [
                Action::Suspend(flip.is_multiple_of(2)),
                Action::Deliver(1, 2, 2),
                Action::Pass(ReconcileEnd::Whole, flip.is_multiple_of(3)),
                Action::Runs,
                Action::Executor(flip),
                Action::Gone(flip),
            ] {
                world.happen(action);
            }
        }
        world.run_until_settled(false);
        assert!(world.breaches.is_empty(), "{policy}: {:?}", world.breaches);
        assert_eq!(world.drivers().len(), 1, "{policy}: {}", world.standing());
    }
}

#[test]
fn a_run_that_begins_before_an_edit_is_seen_is_none_of_what_the_edit_asks_for() {
    let mut world = World::new("Never");
    for action in [
        Action::FullPass,
        Action::Edit(1),
        Action::FullPass,
        Action::Vanish,
        Action::FullPass,
        Action::FullPass,
        Action::Edit(2),
        Action::Pass(ReconcileEnd::Whole, false),
        Action::FullPass,
        Action::Gone(0),
        Action::FullPass,
    ] {
        world.happen(action);
        assert!(
            world.breaches.is_empty(),
            "{:?} after {action:?}",
            world.breaches
        );
    }
}

#[test]
fn a_run_whose_recording_was_not_answered_is_not_submitted_again_when_its_driver_vanishes() {
    let mut world = World::new("Never");
    for action in [
        Action::FullPass,
        // The status with the submission is stored, and its response is lost.
        Action::Pass(ReconcileEnd::LostAfter(0), true),
        Action::Vanish,
        Action::Deliver(0, 2, 0),
        Action::Pass(ReconcileEnd::Whole, true),
    ] {
        world.happen(action);
        assert!(
            world.breaches.is_empty(),
            "{:?} after {action:?}: {:?}",
            world.breaches,
            world.writes
        );
    }
    assert_eq!(world.drivers().len(), 0, "{:?}", world.writes);
}

#[test]
fn cs8_no_state_that_some_moves_lead_to_breaks_a_law_or_keeps_the_application_from_its_rest() {
    // Under `Always`, an application never comes to rest.
    let new = ["Never", "OnFailure"].map(|policy| World::new(policy).into_start());
    // A running application is many actions away from a new one.
    let running = new.clone().map(|mut world| {
        for action in [
            Action::FullPass,
            Action::FullPass,
            Action::Runs,
            Action::FullPass,
        ] {
            world.happen(action);
        }
        world
    });
    let starts = [running, new].concat();
    let explored = explore(&starts, states()).unwrap_or_else(|why| panic!("{why}"));
    eprintln!("{explored:?}");
    assert!(explored.states >= states(), "{explored:?}");
}
