//! What holds for a job of every shape, whatever its pods are: while it is suspended, once it has ended, and when it is deleted.

use serde_json::json;
use training_api::JobStatus;
use training_core::ObjectKind;
use training_testkit::world::{Move, ReconcileEnd};

use crate::scene::{KindWorld, Scene, shapes, world};

fn last(world: &KindWorld) -> String {
    world.conditions().pop().unwrap()
}

/// Worlds of jobs that ended well.
fn ended() -> impl Iterator<Item = KindWorld> {
    shapes().into_iter().map(|job| {
        let mut world = world(job);
        world.run_until_settled(true);
        assert_eq!(world.breaches, Vec::<String>::new());
        assert_eq!(last(&world), "Succeeded=True");
        world.writes.clear();
        world
    })
}

/// Somebody deletes a pod, a service, and every other object of the job.
fn lose(world: &mut KindWorld) {
    world.happen(Move::Vanish(1));
    world.happen(Move::DropService(0));
    for _ in 0..4 {
        world.happen(Move::Lose(1));
    }
}

/// What was asked to go is gone.
fn let_go(world: &mut KindWorld) {
    for _ in 0..8 {
        world.happen(Move::Gone(0));
    }
    world.happen(Move::Batch(1));
    world.settle();
}

/// Nothing that the job has runs a program.
fn is_quiet(world: &KindWorld) -> bool {
    let names = world.object_names();
    let mut jobs = names.iter().filter_map(|name| name.strip_prefix("Job "));
    let suspended = jobs.all(|name| {
        let job = world.object(ObjectKind::Job, name).unwrap();
        job["spec"]["suspend"] == true
    });
    suspended && world.pods().count() + world.batch_pods().count() == 0
}

#[test]
fn b_090_neither_deadline_nor_time_to_live_runs_while_suspended() {
    for job in shapes() {
        let job = job
            .run_policy("activeDeadlineSeconds", 10)
            .run_policy("ttlSecondsAfterFinished", 0);
        let mut world = world(job).started();
        assert_eq!(last(&world), "Running=True");
        world.happen(Move::Suspend(true));
        world.settle();
        let_go(&mut world);
        assert!(is_quiet(&world), "{:?}", world.object_names());
        world.tick(1000);
        world.view_all();
        assert!(world.plan().is_idle());
        assert_eq!(world.plan().requeue_at, None);
        world.happen(Move::Suspend(false));
        world.settle();
        assert_eq!(last(&world), "Suspended=False");
        assert_eq!(
            world.durable_state().started,
            Some(world.now),
            "counted anew"
        );
    }
}

#[test]
fn b_149_a_hundred_flips_leave_one_pod_per_place() {
    for job in shapes() {
        let mut world = world(job);
        for flip in 0..100_u8 {
            world.happen(Move::Suspend(flip.is_multiple_of(2)));
            world.happen(Move::Batch(flip % 4));
            world.happen(Move::Deliver(1, 2, 2));
            world.happen(Move::Pass(ReconcileEnd::Whole, flip.is_multiple_of(3)));
        }
        world.run_until_settled(false);
        // Each replica has its one pod: a law of rest.
        assert_eq!(world.breaches, Vec::<String>::new());
        assert_eq!(last(&world), "Running=True");
        let launchers = world.batch_pods().filter(|(_, p)| !p.phase.has_ended());
        assert!(launchers.count() <= 1);
    }
}

#[test]
fn b_146_nothing_of_an_ended_job_is_made_again() {
    for mut world in ended() {
        lose(&mut world);
        world.happen(Move::Scale(4));
        for edit in 0..3 {
            world.happen(Move::Edit(edit));
        }
        world.set("/spec/runPolicy/backoffLimit", json!(7));
        world.settle();
        // The edits are observed.
        assert_eq!(world.writes, ["status"]);
        // Nor by an operator that starts now.
        world.crash();
        world.settle();
        assert_eq!(world.writes, ["status"]);
    }
}

#[test]
fn b_147_a_completion_time_alone_keeps_a_job_ended() {
    for mut world in ended() {
        world.set("/status/conditions", json!([]));
        lose(&mut world);
        world.crash();
        world.settle();
        assert_eq!(world.writes, Vec::<String>::new());
    }
}

#[test]
fn b_147_a_wiped_status_makes_nothing_again() {
    for ends in [false, true] {
        for job in shapes() {
            let mut world = world(job).started();
            if ends {
                world.run_until_settled(true);
            }
            world.writes.clear();
            world.set("/status", json!({}));
            world.settle();
            let end = if ends {
                "Succeeded=True"
            } else {
                "Running=True"
            };
            assert_eq!(last(&world), end);
            assert!(world.writes.len() <= 3, "{:?}", world.writes);
            assert!(
                world.writes.iter().all(|w| w == "status"),
                "{:?}",
                world.writes
            );
        }
    }
}

#[test]
fn b_145_policies_that_change_after_the_end_are_followed_and_restart_nothing() {
    for mut world in ended() {
        let end = world.durable_state().completed.unwrap();
        world.set("/spec/runPolicy/cleanPodPolicy", json!("All"));
        world.set("/spec/runPolicy/backoffLimit", json!(9));
        world.settle();
        assert!(world.pods().all(|(_, p)| p.terminating));
        assert_eq!(world.services().len(), 0);
        world.set("/spec/runPolicy/ttlSecondsAfterFinished", json!(60));
        world.view_all();
        let wake = world.plan().requeue_at.unwrap();
        assert_eq!((wake - end).get_seconds(), 61);
        assert_eq!(last(&world), "Succeeded=True");
        let other = world.writes.iter().filter(|w| !w.starts_with("delete"));
        assert!(other.eq(["status"]), "{:?}", world.writes);
    }
}

#[test]
fn an_edit_without_effect_is_observed_by_one_write_before_and_after_the_end() {
    for job in shapes() {
        let mut world = world(job).started();
        for queue in ["a", "b"] {
            let before = world.status();
            world.writes.clear();
            world.set(
                "/spec/runPolicy/schedulingPolicy",
                json!({ "queue": queue }),
            );
            world.settle();
            assert_eq!(world.writes, ["status"]);
            let observed = before.observed_generation.map(|seen| seen + 1);
            let expected = JobStatus {
                observed_generation: observed,
                ..before
            };
            assert_eq!(world.status(), expected);
            world.run_until_settled(true);
        }
        assert_eq!(last(&world), "Succeeded=True");
    }
}

#[test]
fn b_152_a_job_that_is_being_deleted_makes_nothing() {
    let delete = |world: &mut KindWorld| {
        world.set("/metadata/deletionTimestamp", json!("1970-01-10T00:00:00Z"));
        world.writes.clear();
    };
    for job in shapes() {
        let (new, running) = (world(job.clone()), world(job).started());
        for mut world in [new, running] {
            delete(&mut world);
            lose(&mut world);
            world.happen(Move::Scale(4));
            world.settle();
            world.crash();
            world.settle();
            assert_eq!(world.writes, Vec::<String>::new());
        }
    }
}
