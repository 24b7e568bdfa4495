//! The invariants of a `SparkApplication`: its status between events, and its objects when settled.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::Value;

use super::kinds::{SPARK, SPARK_ROLE, SUBMISSION};
use super::rules;

/// Returns the application of an executor, which is its second owner: its controller is the driver's pod.
pub(super) fn application(object: &DynamicObject) -> Option<&OwnerReference> {
    let owners = object.owner_references();
    let made_by_driver = owners
        .iter()
        .any(|owner| owner.controller == Some(true) && owner.kind == "Pod");
    let mut owners = owners.iter().filter(|_| made_by_driver);
    owners.find(|owner| owner.kind == SPARK)
}

fn state(app: &Value) -> &str {
    let state = &app["status"]["applicationState"]["state"];
    state.as_str().unwrap_or_default()
}

/// Returns true if an application has ended. An edit of its spec restarts it.
pub(super) fn is_finished(app: &Value) -> bool {
    matches!(state(app), "COMPLETED" | "FAILED")
}

/// Returns true if the operator has recorded that an application is to stop, or has stopped.
pub(super) fn is_suspended(app: &Value) -> bool {
    matches!(state(app), "SUSPENDING" | "SUSPENDED")
}

/// Checks an application and its last change. `before` is the same object at the previous event.
pub(super) fn rules(before: Option<&Value>, now: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    rules::conditions(before, now, &mut wrong);
    wrong.extend(rules::generations(before, now));
    of_a_schedule(now, &mut wrong);
    let status = &now["status"];
    let time = |field: &str| -> Option<Timestamp> { status[field].as_str()?.parse().ok() };
    let (submitted, ended) = (time("lastSubmissionAttemptTime"), time("terminationTime"));
    if is_finished(now) && ended.is_none() {
        wrong.push(format!("I-17: {} without a terminationTime", state(now)));
    }
    if matches!(state(now), "SUBMITTED" | "RUNNING") && ended.is_some() {
        wrong.push(format!("I-17: {} with a terminationTime", state(now)));
    }
    if is_finished(now) && submitted > ended {
        wrong.push("I-17: terminated before it was submitted".to_owned());
    }
    let Some(before) = before else { return wrong };
    let was = &before["status"];
    let edited = now["metadata"]["generation"].as_i64() > was["observedGeneration"].as_i64();
    if is_finished(before) && state(before) != state(now) {
        let anew = state(now) == "INVALIDATING" && edited;
        if !anew {
            wrong.push(format!(
                "I-12: {} became {:?} without an edit of the spec",
                state(before),
                state(now)
            ));
        }
    }
    if is_finished(before)
        && is_finished(now)
        && was["terminationTime"] != status["terminationTime"]
    {
        wrong.push("I-17: terminationTime changed after the end".to_owned());
    }
    // Another spec resets the counts.
    let anew = [state(before), state(now)].contains(&"INVALIDATING");
    for counter in ["executionAttempts", "submissionAttempts"] {
        let of = |status: &Value| status[counter].as_i64().unwrap_or_default();
        if !anew && of(status) < of(was) {
            wrong.push(format!(
                "I-15: {counter} fell from {} to {}",
                of(was),
                of(status)
            ));
        }
    }
    // The recorded submission changes only after the application has left its run.
    let runs = |app: &Value| matches!(state(app), "SUBMITTED" | "RUNNING" | "UNKNOWN");
    if runs(before) && runs(now) && was["submissionID"] != status["submissionID"] {
        wrong.push(format!(
            "I-01: the submission {} became {} while it ran",
            was["submissionID"], status["submissionID"]
        ));
    }
    wrong
}

/// I-02 and I-24: a scheduled run is named after its schedule and a time, and has its schedule's label.
fn of_a_schedule(app: &Value, wrong: &mut Vec<String>) {
    let meta = &app["metadata"];
    let owners = meta["ownerReferences"].as_array().into_iter().flatten();
    let schedule = owners
        .filter(|owner| owner["controller"] == true)
        .find(|owner| owner["kind"] == "ScheduledSparkApplication");
    let Some(schedule) = schedule.and_then(|owner| owner["name"].as_str()) else {
        return;
    };
    let name = meta["name"].as_str().unwrap_or_default();
    let stamp = name
        .strip_prefix(schedule)
        .and_then(|n| n.strip_prefix('-'));
    let is_stamp = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    if !stamp.is_some_and(is_stamp) {
        wrong.push(format!(
            "I-02: a run of the schedule {schedule} is called {name}"
        ));
    }
    if meta["labels"]["sparkoperator.k8s.io/scheduled-app-name"] != schedule {
        wrong.push(format!(
            "I-24: a run of the schedule {schedule} has the labels {}",
            meta["labels"]
        ));
    }
}

/// Checks an application and its objects after the operator has settled.
pub(super) fn at_rest(app: &Value, objects: &[(&str, &Value)]) -> Vec<String> {
    let mut wrong = Vec::new();
    let status = &app["status"];
    let terminating = !app["metadata"]["deletionTimestamp"].is_null();
    // The operator leaves applications that another operator has finished alone.
    let foreign = is_finished(app) && status["specDigest"].is_null();
    if terminating || foreign {
        return wrong;
    }
    let pods = || {
        objects
            .iter()
            .filter(|(kind, _)| *kind == "Pod")
            .map(|(_, pod)| *pod)
    };
    let role = |pod: &Value| {
        pod["metadata"]["labels"][SPARK_ROLE]
            .as_str()
            .map(str::to_owned)
    };
    let live = |pod: &&Value| {
        let phase = pod["status"]["phase"].as_str().unwrap_or_default();
        !matches!(phase, "Succeeded" | "Failed")
    };
    let names = |pods: &[&Value]| {
        let names = pods.iter().map(|pod| pod["metadata"]["name"].to_string());
        names.collect::<Vec<_>>().join(", ")
    };
    let current: Vec<&Value> = pods()
        .filter(|pod| pod["metadata"]["labels"][SUBMISSION] == status["submissionID"])
        .collect();
    let drivers: Vec<&Value> = current
        .iter()
        .copied()
        .filter(|pod| role(pod).as_deref() == Some("driver"))
        .collect();
    match state(app) {
        word @ ("SUBMITTED" | "RUNNING" | "UNKNOWN") => {
            let phases: Vec<&str> = drivers
                .iter()
                .filter_map(|pod| pod["status"]["phase"].as_str())
                .collect();
            let fits = match word {
                "SUBMITTED" => phases == ["Pending"],
                "RUNNING" => phases == ["Running"],
                _ => phases.len() == 1,
            };
            if !fits {
                wrong.push(format!(
                    "I-03: {word}, and the drivers of the submission are {phases:?}"
                ));
            }
        }
        word @ ("COMPLETED" | "FAILED") => {
            let left: Vec<&Value> = pods()
                .filter(|pod| role(pod).as_deref() == Some("executor"))
                .filter(live)
                .collect();
            if !left.is_empty() {
                wrong.push(format!("I-03: {word}, and {} still runs", names(&left)));
            }
            wrong.extend(
                objects
                    .iter()
                    .filter(|o| goes_with_its_run(o))
                    .map(|(kind, object)| {
                        let name = &object["metadata"]["name"];
                        format!("I-03: {word}, and the {kind} {name} of its run is left")
                    }),
            );
        }
        "SUSPENDED" => {
            let left: Vec<&Value> = pods().collect();
            if !left.is_empty() {
                wrong.push(format!("I-07: SUSPENDED, and {} is there", names(&left)));
            }
        }
        // The status says what it waits for.
        "" | "PENDING_RERUN" | "FAILING" | "RESUMING"
            if !status["applicationState"]["errorMessage"].is_null() => {}
        word => wrong.push(format!("I-03: {word:?} is no state to rest in")),
    }
    wrong.extend(executors(app, &current));
    if let (Some(seen), Some(generation)) = (
        status["observedGeneration"].as_i64(),
        app["metadata"]["generation"].as_i64(),
    ) && seen != generation
        && !is_suspended(app)
        && !is_finished(app)
    {
        wrong.push(format!("I-19: generation {generation}, observed {seen}"));
    }
    wrong
}

/// Returns true for objects that a run's pods need and that are not terminating. The exporter's settings belong to no run.
fn goes_with_its_run((kind, object): &(&str, &Value)) -> bool {
    let meta = &object["metadata"];
    let of_a_run = !meta["labels"][SUBMISSION].is_null();
    *kind != "Pod" && of_a_run && meta["deletionTimestamp"].is_null()
}

/// I-18: the executor states match the executors' pods.
fn executors(app: &Value, current: &[&Value]) -> Vec<String> {
    let status = &app["status"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let listed: BTreeMap<String, String> = status["executorState"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, state)| (name.clone(), text(state)))
        .collect();
    let there: BTreeMap<String, &str> = current
        .iter()
        .filter(|pod| pod["metadata"]["labels"][SPARK_ROLE] == "executor")
        .map(|pod| {
            let state = match pod["status"]["phase"].as_str().unwrap_or_default() {
                "Pending" => "PENDING",
                "Running" => "RUNNING",
                "Succeeded" => "COMPLETED",
                "Failed" => "FAILED",
                _ => "UNKNOWN",
            };
            (text(&pod["metadata"]["name"]), state)
        })
        .collect();
    let mut wrong = Vec::new();
    let all_listed = status["executorsNotListed"].is_null();
    for (name, state) in &there {
        match listed.get(name) {
            None if all_listed => wrong.push(format!("I-18: the executor {name} is not listed")),
            Some(said) if said != state => {
                wrong.push(format!(
                    "I-18: the executor {name} is {said}, and its pod {state}"
                ));
            }
            Some(_) | None => {}
        }
    }
    for (name, said) in &listed {
        let lives = matches!(said.as_str(), "PENDING" | "RUNNING");
        if lives && !there.contains_key(name) {
            wrong.push(format!(
                "I-18: the executor {name} is {said}, and has no pod"
            ));
        }
    }
    let running = listed.values().filter(|state| *state == "RUNNING").count();
    let said = text(&status["executors"]);
    let said = said.split('/').next().unwrap_or_default().to_owned();
    if all_listed && !said.is_empty() && said != running.to_string() {
        wrong.push(format!(
            "I-18: {said} executors run, and {running} are listed so"
        ));
    }
    wrong
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TIME: &str = "2026-01-01T00:00:00Z";

    fn app(state: &str, more: &Value) -> Value {
        let mut status = json!({
            "applicationState": { "state": state }, "submissionID": "one", "specDigest": "2-a",
            "observedGeneration": 1, "executionAttempts": 1,
        });
        for (field, value) in more.as_object().into_iter().flatten() {
            status[field] = value.clone();
        }
        json!({ "metadata": { "name": "pi", "generation": 1 }, "kind": SPARK, "status": status })
    }

    fn ended(state: &str) -> Value {
        app(state, &json!({ "terminationTime": TIME }))
    }

    fn pod(name: &str, role: &str, submission: &str, phase: &str) -> Value {
        json!({
            "metadata": { "name": name, "labels": { SPARK_ROLE: role, SUBMISSION: submission } },
            "status": { "phase": phase },
        })
    }

    fn rest(app: &Value, pods: &[Value]) -> String {
        let objects: Vec<(&str, &Value)> = pods.iter().map(|pod| ("Pod", pod)).collect();
        at_rest(app, &objects).join("\n")
    }

    #[test]
    fn an_ordinary_life_of_an_application_breaks_nothing() {
        let mut edited = ended("INVALIDATING");
        edited["metadata"]["generation"] = json!(2);
        let life = [
            app("SUBMITTED", &json!({})),
            app("RUNNING", &json!({})),
            ended("SUCCEEDING"),
            ended("COMPLETED"),
            edited,
            app("PENDING_RERUN", &json!({ "executionAttempts": null })),
        ];
        for pair in life.windows(2) {
            assert_eq!(rules(Some(&pair[0]), &pair[1]), Vec::<String>::new());
        }
    }

    #[test]
    fn i_01_i_04_each_broken_invariant_of_an_application_is_told_by_its_id() {
        let other = json!({ "submissionID": "two" });
        let fewer = json!({ "executionAttempts": 0 });
        let later = json!({ "terminationTime": "2026-01-02T00:00:00Z" });
        let mut stray = app("", &json!({}));
        stray["metadata"]["ownerReferences"] = json!([
            { "kind": "ScheduledSparkApplication", "name": "nightly", "controller": true },
        ]);
        for (before, now, id) in [
            (ended("COMPLETED"), app("RUNNING", &json!({})), "I-12"),
            (ended("FAILED"), ended("COMPLETED"), "I-12"),
            (ended("FAILED"), ended("INVALIDATING"), "I-12"),
            (
                app("RUNNING", &json!({})),
                app("FAILED", &json!({})),
                "I-17",
            ),
            (ended("FAILED"), app("FAILED", &later), "I-17"),
            (app("", &json!({})), ended("RUNNING"), "I-17"),
            (app("RUNNING", &json!({})), app("RUNNING", &fewer), "I-15"),
            (app("RUNNING", &json!({})), app("RUNNING", &other), "I-01"),
            (stray.clone(), stray.clone(), "I-02"),
            (stray.clone(), stray, "I-24"),
        ] {
            let wrong = rules(Some(&before), &now);
            assert!(
                wrong.iter().any(|w| w.starts_with(id)),
                "{id}: {wrong:?} for {now}"
            );
        }
    }

    #[test]
    fn i_03_a_run_has_one_driver_whose_phase_is_the_state_s() {
        let driver = |phase| pod("pi-driver", "driver", "one", phase);
        assert_eq!(rest(&app("RUNNING", &json!({})), &[driver("Running")]), "");
        assert!(rest(&app("RUNNING", &json!({})), &[]).contains("I-03"));
        assert!(rest(&app("SUBMITTED", &json!({})), &[driver("Running")]).contains("I-03"));
        let old = pod("pi-driver", "driver", "old", "Running");
        assert!(rest(&app("RUNNING", &json!({})), &[old]).contains("I-03"));
        assert!(rest(&app("SUCCEEDING", &json!({})), &[]).contains("I-03"));
        let executor = pod("pi-exec-1", "executor", "one", "Running");
        let said = json!({ "executorState": { "pi-exec-1": "RUNNING" } });
        assert!(rest(&app("COMPLETED", &said), &[executor]).contains("I-03"));
    }

    #[test]
    fn i_03_what_a_run_is_seen_through_goes_at_its_end() {
        let object =
            |labels: Value| json!({ "metadata": { "name": "pi-ui-svc", "labels": labels } });
        let service = object(json!({ SUBMISSION: "one" }));
        let mut terminating = service.clone();
        terminating["metadata"]["deletionTimestamp"] = json!(TIME);
        let exporter = object(json!({}));
        let rests = |app: &Value, kind, object| at_rest(app, &[(kind, object)]).is_empty();
        for state in ["COMPLETED", "FAILED"] {
            assert!(!rests(&ended(state), "Service", &service), "{state}");
            assert!(rests(&ended(state), "Service", &terminating), "{state}");
            assert!(rests(&ended(state), "ConfigMap", &exporter), "{state}");
        }
        let driver = pod("pi-driver", "driver", "one", "Running");
        let objects = [("Pod", &driver), ("Service", &service)];
        assert!(at_rest(&app("RUNNING", &json!({})), &objects).is_empty());
    }

    #[test]
    fn i_07_a_suspended_application_has_no_pods() {
        let driver = pod("pi-driver", "driver", "one", "Succeeded");
        assert_eq!(rest(&app("SUSPENDED", &json!({})), &[]), "");
        assert!(rest(&app("SUSPENDED", &json!({})), &[driver]).contains("I-07"));
    }

    #[test]
    fn i_18_executors_are_what_their_pods_are() {
        let pods = [
            pod("pi-driver", "driver", "one", "Running"),
            pod("pi-exec-1", "executor", "one", "Running"),
            pod("pi-exec-2", "executor", "one", "Failed"),
        ];
        let says = |one: &str, two: &str, count: &str| {
            let states = json!({ "pi-exec-1": one, "pi-exec-2": two });
            app(
                "RUNNING",
                &json!({ "executorState": states, "executors": count }),
            )
        };
        assert_eq!(rest(&says("RUNNING", "FAILED", "1/2"), &pods), "");
        for wrong in [
            says("PENDING", "FAILED", "0/2"),
            says("RUNNING", "RUNNING", "2/2"),
            says("RUNNING", "FAILED", "2/2"),
        ] {
            assert!(rest(&wrong, &pods).contains("I-18"), "{wrong}");
        }
        assert!(rest(&app("RUNNING", &json!({})), &pods).contains("is not listed"));
        assert!(rest(&says("RUNNING", "FAILED", "1/2"), &pods[..1]).contains("has no pod"));
    }

    #[test]
    fn i_19_an_application_at_rest_has_acted_on_its_last_spec() {
        let driver = [pod("pi-driver", "driver", "one", "Running")];
        let mut edited = app("RUNNING", &json!({}));
        edited["metadata"]["generation"] = json!(2);
        assert!(rest(&edited, &driver).contains("I-19"));
    }
}
