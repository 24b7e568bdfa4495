//! Names that somebody else has: nothing of another owner is adopted, and the job waits until its name is free.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use kube::Client;
use serde_json::{Value, json};
use training_core::{Framework, Step};
use training_runtime::caller::Caller;
use training_runtime::executor::{Children, Executor};
use training_runtime::feed;
use training_testkit::scripted;
use training_testkit::world::Move;

use crate::scene::{KindWorld, Scene, framework, shapes, world};

/// The uid of the object that has the name.
const THERE: &str = "00000000-0000-0000-0000-00000000000a";
/// The uid of a former job of the same name.
const FORMER: &str = "00000000-0000-0000-0000-000000000006";

/// Creates an object of the job whose name is taken. A Secret's is not waited for: another one is chosen.
fn is_waited_for(step: &Step) -> bool {
    match step {
        Step::CreatePod(_) | Step::CreateService(_) => true,
        Step::CreateObject(object) => object.watched().is_some(),
        _ => false,
    }
}

/// What is made for a job until it rests.
pub fn made(world: &mut KindWorld) -> Vec<Step> {
    let mut made = Vec::new();
    for _ in 0..8 {
        world.view_all();
        let steps = world.plan().steps.into_iter();
        made.extend(steps.filter(is_waited_for));
        world.reconcile();
    }
    made
}

/// The object that a step makes.
pub fn object(step: &Step) -> Value {
    match step {
        Step::CreatePod(pod) => json!(pod),
        Step::CreateService(service) => json!(service),
        Step::CreateObject(object) => json!(object),
        other => panic!("{other:?}"),
    }
}

fn executor<F: Framework>(_: &F, client: Client) -> Executor {
    let (leads, deadline) = (Arc::new(|| true), Duration::from_mins(10));
    let caller = Caller::new(client, leads, deadline, F::OPERATOR);
    Executor::new::<F>(
        Arc::new(caller),
        feed::owner_kind::<F>(),
        Children::default(),
    )
}

/// Executes a step whose object's name is taken. Returns the requests, why the job waits if it does, and whether the object is the
/// job's.
async fn execute(
    world: &KindWorld,
    step: &Step,
    there: Value,
) -> (Vec<String>, Option<&'static str>, bool) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&asked);
    let client = scripted::client(move |what| {
        log.lock().unwrap().push(what.to_owned());
        if what.starts_with("POST ") {
            let exists = json!({
                "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "AlreadyExists", "code": 409, "message": "exists",
            });
            (409, exists)
        } else {
            (200, there.clone())
        }
    });
    let executor = executor(&framework(), client);
    let job = world.job().unwrap();
    let outcome = executor
        .execute(job, std::slice::from_ref(step), false)
        .await;
    let asked = std::mem::take(&mut *asked.lock().unwrap());
    let reason = outcome.refusal.map(|refusal| refusal.stall.reason);
    (asked, reason, outcome.found)
}

#[tokio::test]
async fn b_040_a_taken_name_is_ours_only_with_our_uid_as_owner() {
    for job in shapes() {
        let mut world = world(job);
        let steps = made(&mut world);
        assert!(!steps.is_empty());
        for step in steps {
            let mut ours = object(&step);
            let name = ours["metadata"]["name"].as_str().unwrap().to_owned();
            ours["metadata"]["uid"] = json!(THERE);
            ours["metadata"]["resourceVersion"] = json!("9");
            let mut formers = ours.clone();
            formers["metadata"]["ownerReferences"][0]["uid"] = json!(FORMER);
            let mut nobodys = ours.clone();
            nobodys["metadata"]["ownerReferences"] = json!([]);
            for (there, whose, waits) in [
                (ours, "of a create whose answer was lost", None),
                (
                    formers,
                    "of a former job of this name",
                    Some("NameConflict"),
                ),
                (nobodys, "nobody's", Some("NameConflict")),
            ] {
                let kind = there["kind"].as_str().unwrap().to_owned();
                let (asked, reason, is_ours) = execute(&world, &step, there).await;
                let what = format!("{kind} {name}, {whose}: {asked:?}");
                assert_eq!((reason, is_ours), (waits, waits.is_none()), "{what}");
                // Nothing else is asked: what is there stays as it is.
                let [create, read] = asked.as_slice() else {
                    panic!("{what}")
                };
                assert!(create.starts_with("POST /"), "{what}");
                let read = read.strip_prefix("GET /");
                assert!(
                    read.is_some_and(|path| path.ends_with(&format!("/{name}"))),
                    "{what}"
                );
            }
        }
    }
}

#[test]
fn b_040_a_job_waits_for_a_name_that_somebody_else_has_and_goes_on_when_it_is_free() {
    for job in shapes() {
        let mut world = world(job);
        // The second name that is about to be used.
        world.happen(Move::Take(1));
        let first = |world: &KindWorld| {
            let first = world.status().conditions.swap_remove(0);
            format!(
                "{}={} {}",
                first.type_,
                first.status,
                first.reason.unwrap_or_default()
            )
        };
        for _ in 0..3 {
            world.reconciles(5);
            assert_eq!(first(&world), "Stalled=True NameConflict");
            assert!(!world.durable_state().is_finished());
            assert!(world.writes.iter().all(|w| !w.starts_with("delete")));
            world.tick(3600);
        }
        world.happen(Move::Take(0));
        world.settle();
        assert_eq!(first(&world), "Stalled=False NameConflict");
        world.run_until_settled(false);
        assert_eq!(world.breaches, Vec::<String>::new());
        assert_eq!(world.conditions().last().unwrap(), "Running=True");
    }
}
