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
use training_testkit::world::Fate;
use world::{Deed, World};

/// Likely actions have more numbers. Zeros are a harmless one, for shrinking.
fn deed() -> impl Strategy<Value = Deed> {
    any::<(u8, u8, u8)>().prop_map(|(kind, pick, more)| {
        let even = more.is_multiple_of(2);
        match kind % 64 {
            0..=9 => Deed::FullPass,
            10..=19 => Deed::Pass(Fate::Whole, even),
            20..=24 => Deed::Pass(Fate::CrashAfter(u32::from(pick % 8)), even),
            25..=29 => Deed::Pass(Fate::LostAfter(u32::from(pick % 8)), even),
            30..=34 => Deed::Deliver(pick % 3, more % 4, more / 4 % 4),
            35 => Deed::Watch(pick),
            36..=40 => Deed::Runs,
            41..=44 => Deed::Ends(pick % 3),
            45..=46 => Deed::Executor(pick),
            47..=50 => Deed::Gone(pick),
            51 => Deed::Vanish,
            52 => Deed::Lose(pick),
            53 => Deed::TakeDriver(even),
            54 => Deed::TakeObject(pick),
            55 => Deed::Refuse(pick % 4),
            56 => Deed::Suspend(even),
            57 => Deed::Suspend(false),
            58 => Deed::Edit(pick % 3),
            59 => Deed::Crash,
            _ => Deed::Time(more % 40),
        }
    })
}

/// A move of a kubelet, a driver or a user between reconciles.
fn phase(kind: u8, pick: u8, more: u8) -> Deed {
    match kind % 16 {
        0..=3 => Deed::Runs,
        4..=6 => Deed::Ends(pick),
        7..=8 => Deed::Executor(pick),
        9..=10 => Deed::Gone(pick),
        11 => Deed::Vanish,
        12 => Deed::Suspend(more.is_multiple_of(2)),
        13 => Deed::Edit(pick % 3),
        14 => Deed::Lose(pick),
        _ => Deed::Time(more % 40),
    }
}

/// Late, reordered, repeated or lost watch events, with reconciles in between.
fn disturbance(kind: u8, pick: u8, more: u8) -> Deed {
    match kind % 4 {
        0 => Deed::Deliver(pick % 2, more % 3, more / 4 % 3),
        1 => Deed::Watch(pick),
        _ => Deed::Pass(Fate::Whole, more.is_multiple_of(2)),
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
        deeds in vec((deed(), 0..CLOCKS.len()), 1..30),
    ) {
        let mut world = World::of(policy, interval, ttl);
        for (deed, clock) in deeds {
            world.set_clock(CLOCKS[clock]);
            world.happen(deed);
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
        deeds in vec(deed(), 1..60),
        policy in prop::sample::select(&["Never", "Always", "OnFailure"][..]),
    ) {
        let mut world = World::new(policy);
        for deed in deeds {
            world.happen(deed);
            prop_assert!(world.breaches.is_empty(), "{:?} after {deed:?}: {:?}", world.breaches, world.writes);
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
            for deed in [
                Deed::Suspend(flip.is_multiple_of(2)),
                Deed::Deliver(1, 2, 2),
                Deed::Pass(Fate::Whole, flip.is_multiple_of(3)),
                Deed::Runs,
                Deed::Executor(flip),
                Deed::Gone(flip),
            ] {
                world.happen(deed);
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
    for deed in [
        Deed::FullPass,
        Deed::Edit(1),
        Deed::FullPass,
        Deed::Vanish,
        Deed::FullPass,
        Deed::FullPass,
        Deed::Edit(2),
        Deed::Pass(Fate::Whole, false),
        Deed::FullPass,
        Deed::Gone(0),
        Deed::FullPass,
    ] {
        world.happen(deed);
        assert!(
            world.breaches.is_empty(),
            "{:?} after {deed:?}",
            world.breaches
        );
    }
}

#[test]
fn cs8_no_state_that_some_moves_lead_to_breaks_a_law_or_keeps_the_application_from_its_rest() {
    // Under `Always`, an application never comes to rest.
    let new = ["Never", "OnFailure"].map(|policy| World::new(policy).into_start());
    // A running application is many actions away from a new one.
    let running = new.clone().map(|mut world| {
        for deed in [Deed::FullPass, Deed::FullPass, Deed::Runs, Deed::FullPass] {
            world.happen(deed);
        }
        world
    });
    let starts = [running, new].concat();
    let explored = explore(&starts, states()).unwrap_or_else(|why| panic!("{why}"));
    eprintln!("{explored:?}");
    assert!(explored.states >= states(), "{explored:?}");
}
