//! Schedules, reconcile by reconcile.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use k8s_openapi::jiff::tz::TimeZone;
use serde_json::{Value, json};
use spark_operator::api::{ScheduleState, ScheduledSparkApplication, State};
use spark_operator::schedule::{Plan, Precision, Run, ScheduleInput, plan, run, run_name};

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn scheduled(fields: &[(&str, Value)], status: &Value) -> ScheduledSparkApplication {
    let mut spec = json!({
        "schedule": "*/10 * * * *", "timeZone": "UTC",
        "template": { "sparkVersion": "4.0.5", "mainApplicationFile": "local:///a.py", "driver": {}, "executor": {} },
    });
    for (field, value) in fields {
        spec[field] = value.clone();
    }
    serde_json::from_value(json!({
        "apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "ScheduledSparkApplication",
        "metadata": { "name": "nightly", "namespace": "ns", "uid": "u", "labels": { "team": "x" } },
        "spec": spec, "status": status,
    }))
    .unwrap()
}

fn reconcile(schedule: &ScheduledSparkApplication, runs: &[Run], now: &str) -> Plan {
    let input = ScheduleInput {
        now: at(now),
        local: &TimeZone::UTC,
        precision: Precision::Seconds,
    };
    plan(schedule, runs, input)
}

/// A schedule whose next run is due at noon.
fn due(fields: &[(&str, Value)]) -> ScheduledSparkApplication {
    let status = json!({
        "scheduleState": "Scheduled", "nextRun": "2026-05-01T12:00:00Z", "computedFrom": "UTC */10 * * * *",
    });
    scheduled(fields, &status)
}

fn a_run(name: &str, created: &str, state: State) -> Run {
    Run {
        name: name.to_owned(),
        created: at(created),
        state,
    }
}

fn next(plan: &Plan) -> Option<Timestamp> {
    plan.status.next_run.as_ref().map(|time| time.0)
}

#[test]
fn a_new_schedule_waits_for_its_time() {
    let plan = reconcile(&scheduled(&[], &json!({})), &[], "2026-05-01T11:55:03Z");
    assert_eq!(plan.status.schedule_state, ScheduleState::Scheduled);
    assert_eq!(next(&plan), Some(at("2026-05-01T12:00:00Z")));
    assert_eq!(
        (plan.create, plan.requeue_at),
        (None, Some(at("2026-05-01T12:00:00Z")))
    );
}

#[test]
fn i_02_at_its_time_a_run_is_made_under_the_name_of_that_time() {
    let schedule = due(&[]);
    let first = reconcile(&schedule, &[], "2026-05-01T12:00:02Z");
    assert_eq!(first.create.as_deref(), Some("nightly-1777636800"));
    assert_eq!(next(&first), Some(at("2026-05-01T12:10:00Z")));
    assert_eq!(
        first.status.last_run.as_ref().map(|t| t.0),
        Some(at("2026-05-01T12:00:02Z"))
    );
    assert_eq!(first.status.last_run_name, first.create);
    // An operator that ended before it wrote the status computes the same name.
    let again = reconcile(&schedule, &[], "2026-05-01T12:03:00Z");
    assert_eq!(again.create, first.create);
}

#[test]
fn whatever_was_missed_one_run_catches_up() {
    let plan = reconcile(&due(&[]), &[], "2026-05-03T09:01:00Z");
    assert_eq!(plan.create.as_deref(), Some("nightly-1777636800"));
    assert_eq!(next(&plan), Some(at("2026-05-03T09:10:00Z")));
}

#[test]
fn a_run_that_goes_on_counts_by_the_policy() {
    let old = a_run("nightly-1", "2026-05-01T11:50:00Z", State::Running);
    let done = a_run("nightly-0", "2026-05-01T11:40:00Z", State::Completed);
    for (policy, runs, made, deleted) in [
        (json!("Allow"), vec![old.clone()], true, vec![]),
        (Value::Null, vec![old.clone()], true, vec![]),
        (json!(""), vec![old.clone()], true, vec![]),
        (json!("Forbid"), vec![old.clone()], false, vec![]),
        (json!("Forbid"), vec![done.clone()], true, vec![]),
        (
            json!("Replace"),
            vec![old.clone(), done.clone()],
            true,
            vec!["nightly-1"],
        ),
        (json!("Replace"), vec![done], true, vec![]),
    ] {
        let plan = reconcile(
            &due(&[("concurrencyPolicy", policy.clone())]),
            &runs,
            "2026-05-01T12:00:00Z",
        );
        assert_eq!(plan.create.is_some(), made, "{policy}");
        assert_eq!(plan.delete, deleted, "{policy}");
        assert_eq!(next(&plan), Some(at("2026-05-01T12:10:00Z")), "{policy}");
        if !made {
            assert_eq!(plan.status.last_run, None);
        }
    }
}

#[test]
fn a_run_that_was_made_before_the_status_said_so_is_this_one() {
    let own = a_run("nightly-1777636800", "2026-05-01T12:00:00Z", State::New);
    for policy in ["Allow", "Forbid", "Replace"] {
        let plan = reconcile(
            &due(&[("concurrencyPolicy", json!(policy))]),
            std::slice::from_ref(&own),
            "2026-05-01T12:00:00Z",
        );
        assert_eq!(plan.create.as_ref(), Some(&own.name), "{policy}");
        assert!(plan.delete.is_empty(), "{policy}: {:?}", plan.delete);
        assert_eq!(plan.status.last_run_name.as_ref(), Some(&own.name));
    }
}

#[test]
fn a_run_that_ended_before_the_status_said_so_is_not_made_twice() {
    for state in [State::Completed, State::Failed] {
        let own = a_run("nightly-1777636800", "2026-05-01T12:00:00Z", state);
        let none = ["successfulRunHistoryLimit", "failedRunHistoryLimit"].map(|f| (f, json!(0)));
        let mut schedule = due(&none);
        let plan = reconcile(
            &schedule,
            std::slice::from_ref(&own),
            "2026-05-01T12:00:09Z",
        );
        assert_eq!(plan.create.as_ref(), Some(&own.name));
        assert!(plan.prune.is_empty(), "{:?}", plan.prune);
        // Once the status records the run, the run is pruned.
        schedule.status = Some(plan.status);
        let plan = reconcile(
            &schedule,
            std::slice::from_ref(&own),
            "2026-05-01T12:00:10Z",
        );
        assert_eq!((plan.create, plan.prune), (None, vec![own.name]));
    }
}

#[test]
fn a_suspended_schedule_is_left_as_it_is() {
    let schedule = due(&[("suspend", json!(true))]);
    let plan = reconcile(&schedule, &[], "2026-05-01T12:00:00Z");
    assert_eq!(
        plan,
        Plan {
            status: schedule.status.unwrap(),
            ..Plan::default()
        }
    );
}

#[test]
fn i_31_at_rest_a_schedule_asks_for_nothing_until_its_next_time() {
    let noon = "2026-05-01T12:00:00Z";
    for fields in [
        vec![],
        vec![("concurrencyPolicy", json!("Forbid"))],
        vec![("concurrencyPolicy", json!("Replace"))],
        vec![("successfulRunHistoryLimit", json!(0))],
        vec![("schedule", json!("0 18 * * *"))],
        vec![("schedule", json!("0 0 30 2 *"))],
        vec![("schedule", json!("* * *"))],
        vec![("timeZone", json!("Nowhere"))],
        vec![("suspend", json!(true))],
    ] {
        let mut schedule = due(&fields);
        let mut runs = vec![
            a_run("nightly-1", "2026-05-01T11:50:00Z", State::Running),
            a_run("nightly-0", "2026-05-01T11:40:00Z", State::Completed),
            a_run("nightly-a", "2026-05-01T11:30:00Z", State::Completed),
            a_run("nightly-b", "2026-05-01T11:20:00Z", State::Failed),
            a_run("nightly-c", "2026-05-01T11:10:00Z", State::Failed),
        ];
        // All that is asked for is done.
        let plan = reconcile(&schedule, &runs, noon);
        let goes = |run: &Run| plan.delete.contains(&run.name) || plan.prune.contains(&run.name);
        runs.retain(|run| !goes(run));
        runs.extend(plan.create.map(|name| a_run(&name, noon, State::New)));
        schedule.status = Some(plan.status);
        for now in [noon, "2026-05-01T12:00:01Z", "2026-05-01T12:09:59Z"] {
            let rest = Plan {
                status: schedule.status.clone().unwrap(),
                requeue_at: plan.requeue_at,
                ..Plan::default()
            };
            assert_eq!(
                reconcile(&schedule, &runs, now),
                rest,
                "{fields:?} at {now}"
            );
        }
    }
}

#[test]
fn i_28_a_run_goes_with_its_schedule_and_one_that_is_being_deleted_makes_none() {
    let noon = "2026-05-01T12:00:00Z";
    let mut schedule = due(&[]);
    let plan = reconcile(&schedule, &[], noon);
    let made = run(&schedule, &plan.create.unwrap()).metadata;
    let owners = made.owner_references.unwrap_or_default();
    let uids: Vec<&str> = owners.iter().map(|owner| owner.uid.as_str()).collect();
    assert_eq!(uids, ["u"], "the garbage collector asks for no other");
    assert_eq!(made.finalizers, None);
    schedule.metadata.deletion_timestamp = Some(Time(at(noon)));
    let rest = Plan {
        status: schedule.status.clone().unwrap(),
        ..Plan::default()
    };
    assert_eq!(reconcile(&schedule, &[], noon), rest);
}

#[test]
fn an_edit_counts_at_once() {
    let plan = reconcile(
        &due(&[("schedule", json!("0 18 * * *"))]),
        &[],
        "2026-05-01T12:00:00Z",
    );
    assert_eq!(plan.create, None);
    assert_eq!(next(&plan), Some(at("2026-05-01T18:00:00Z")));
    let plan = reconcile(
        &due(&[("timeZone", json!("Asia/Kolkata"))]),
        &[],
        "2026-05-01T12:00:00Z",
    );
    assert_eq!(
        (plan.create.as_deref(), next(&plan)),
        (None, Some(at("2026-05-01T12:10:00Z")))
    );
    // A time that another operator computed stays valid until it comes.
    let theirs = json!({ "scheduleState": "Scheduled", "nextRun": "2026-05-01T13:00:00Z" });
    let plan = reconcile(&scheduled(&[], &theirs), &[], "2026-05-01T12:00:00Z");
    assert_eq!(next(&plan), Some(at("2026-05-01T13:00:00Z")));
}

#[test]
fn what_cannot_be_followed_is_told_and_forgotten_when_it_is_mended() {
    for (field, value, expected) in [
        (
            "timeZone",
            json!("Nowhere"),
            "Invalid timezone: unknown time zone Nowhere",
        ),
        ("schedule", json!("* * *"), "expected exactly 5 fields"),
        (
            "concurrencyPolicy",
            json!("Maybe"),
            "supported values: \"Allow\", \"Forbid\", \"Replace\"",
        ),
    ] {
        let plan = reconcile(&due(&[(field, value)]), &[], "2026-05-01T12:00:00Z");
        assert_eq!(plan.status.schedule_state, ScheduleState::FailedValidation);
        assert!(
            plan.status.reason.as_ref().unwrap().contains(expected),
            "{:?}",
            plan.status.reason
        );
        assert_eq!((plan.create, plan.requeue_at), (None, None));
        let mut mended = due(&[]);
        mended.status = Some(plan.status);
        let plan = reconcile(&mended, &[], "2026-05-01T12:00:00Z");
        assert_eq!(plan.status.schedule_state, ScheduleState::Scheduled);
        assert_eq!(
            (plan.status.reason.as_deref(), next(&plan)),
            (None, Some(at("2026-05-01T12:10:00Z")))
        );
    }
}

#[test]
fn old_runs_go_by_their_outcome() {
    let runs = [
        a_run("a", "2026-05-01T10:00:00Z", State::Completed),
        a_run("b", "2026-05-01T11:00:00Z", State::Completed),
        a_run("c", "2026-05-01T10:30:00Z", State::Failed),
        a_run("d", "2026-05-01T10:10:00Z", State::Failed),
        a_run("e", "2026-05-01T09:00:00Z", State::Failing),
    ];
    let now = "2026-05-01T11:59:00Z";
    let plan = reconcile(&due(&[]), &runs, now);
    assert_eq!(plan.status.past_successful_run_names, ["b"]);
    assert_eq!(plan.status.past_failed_run_names, ["c"]);
    assert_eq!(plan.prune, ["a", "d"]);
    let limits = [
        ("successfulRunHistoryLimit", json!(5)),
        ("failedRunHistoryLimit", json!(0)),
    ];
    let plan = reconcile(&due(&limits), &runs, now);
    assert_eq!(plan.status.past_successful_run_names, ["b", "a"]);
    assert_eq!(plan.prune, ["c", "d"]);
}

#[test]
fn names_get_coarser_until_they_fit() {
    let noon = at("2026-05-01T12:00:00Z");
    let digits = |precision| run_name("x", noon, precision, 60).unwrap().len() - 2;
    assert_eq!(Precision::ALL.map(digits), [19, 16, 13, 10, 8]);
    let of = |length: usize, pause| run_name(&"n".repeat(length), noon, Precision::Nanos, pause);
    assert_eq!(of(43, 60).unwrap().len(), 63);
    assert_eq!(of(44, 60).unwrap().len(), 44 + 1 + 16);
    assert_eq!(of(52, 15).unwrap().len(), 63);
    assert_eq!(of(53, 60).unwrap().len(), 53 + 1 + 8);
    // Minutes don't distinguish runs that are seconds apart.
    assert!(of(53, 15).unwrap_err().contains("at most 52 characters"));
    assert!(of(55, 60).unwrap_err().contains("at most 54 characters"));
    for (word, precision) in [("", Precision::Nanos), ("seconds", Precision::Seconds)] {
        assert_eq!(Precision::parse(word), Some(precision));
    }
    assert_eq!(Precision::parse("hours"), None);
}

#[test]
fn i_24_a_run_belongs_to_its_schedule() {
    let made = run(&due(&[]), "nightly-7");
    let made = serde_json::to_value(&made).unwrap();
    assert_eq!(
        made["metadata"],
        json!({
            "name": "nightly-7", "namespace": "ns",
            "labels": { "team": "x", "sparkoperator.k8s.io/scheduled-app-name": "nightly" },
            "ownerReferences": [{
                "apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "ScheduledSparkApplication", "name": "nightly", "uid": "u",
                "blockOwnerDeletion": true,
            }],
        })
    );
    assert_eq!(made["spec"]["sparkVersion"], "4.0.5");
}
