//! The life cycle of an application, from its submission to its end.

use std::collections::BTreeSet;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use serde_json::{Value, json};
use spark_operator::api::{ExecutorState, SparkApplicationStatus, State};
use spark_operator::digest::spec_digest;
use spark_operator::lifecycle::observed::{
    Driver, End, Kind, MissingObject, Object, Observed, Refusal, Refused, Waiting,
};
use spark_operator::lifecycle::step::{Plan, Step};
use spark_operator::lifecycle::{PlanInput, Rules, plan};
use spark_operator::submission::{Settings, Switch};
use spark_operator::{SparkApplication, label};
use training_core::{PodPhase, StatusWrite, Uid, Urgency};

use super::made;
use super::scene::{set, typed, with};

/// An API server with a single application, and no other clients.
struct World {
    app: Value,
    observed: Observed,
    now: Timestamp,
    rules: Rules,
    settings: Settings,
    /// The refusal of the next drivers.
    refuses: Option<(Refusal, &'static str)>,
    /// The kind of objects that can't be created beside drivers, and the message.
    withholds: Option<(Kind, &'static str)>,
    /// Every state that was written, in order.
    states: Vec<String>,
    events: Vec<String>,
    /// The submissions of all drivers ever created.
    drivers: Vec<String>,
    /// The new contents of changed ConfigMaps.
    changed: Vec<String>,
    /// True if the API server refuses the next change of a ConfigMap.
    refuses_changes: bool,
    deleted: bool,
    uids: u128,
    wake: Option<Timestamp>,
}

impl World {
    fn new(fields: &[(&str, Value)]) -> Self {
        Self {
            app: with(fields),
            observed: Observed::default(),
            now: Timestamp::from_second(1_780_000_000).unwrap(),
            rules: Rules::default(),
            settings: Settings::default(),
            refuses: None,
            withholds: None,
            states: Vec::new(),
            events: Vec::new(),
            drivers: Vec::new(),
            changed: Vec::new(),
            refuses_changes: false,
            deleted: false,
            uids: 1,
            wake: None,
        }
    }

    fn app(&self) -> SparkApplication {
        typed(&self.app)
    }

    fn plan(&self) -> Plan {
        plan(PlanInput {
            app: &self.app(),
            digest: &spec_digest(&self.app["spec"]),
            observed: &self.observed,
            settings: &self.settings,
            rules: &self.rules,
            now: self.now,
        })
    }

    fn uid(&mut self) -> Uid {
        self.uids += 1;
        Uid(self.uids)
    }

    /// Executes one plan, or only its first requests; then the process is killed and loses its state.
    fn reconcile(&mut self, killed_after: Option<usize>) -> bool {
        let plan = self.plan();
        self.wake = plan.requeue_at;
        let idle = plan.status.is_none() && plan.steps.is_empty();
        let first = |s: &StatusWrite<_>| s.urgency == Urgency::First;
        let mut left = killed_after.unwrap_or(usize::MAX);
        let mut sends = || {
            left = left.saturating_sub(1);
            left > 0
        };
        if let Some(write) = plan
            .status
            .as_ref()
            .filter(|s| first(s))
            .filter(|_| sends())
        {
            self.store(&write.next);
        }
        let mut refused = false;
        for step in plan.steps {
            if refused || !sends() {
                break;
            }
            refused = !self.execute(step);
        }
        if let Some(write) = plan.status.filter(|s| !first(s)).filter(|_| sends()) {
            self.store(&write.next);
        }
        if killed_after.is_some() {
            self.observed.refused = None;
        } else {
            self.events.extend(plan.notes.into_iter().map(|n| n.reason));
        }
        idle || refused
            && self
                .refuses
                .is_some_and(|(why, _)| why == Refusal::Transient)
    }

    fn store(&mut self, status: &SparkApplicationStatus) {
        let before = self.state();
        self.app["status"] = serde_json::to_value(status).unwrap();
        let after = self.state();
        if after != before {
            self.states.push(after.as_str().to_owned());
        }
    }

    fn execute(&mut self, step: Step) -> bool {
        match step {
            Step::CreateOptional(make) if self.withholds.is_some_and(|(k, _)| k == make.id().0) => {
                let (kind, name) = make.id();
                self.observed.missing_objects.retain(|w| w.name != name);
                self.observed.missing_objects.push(MissingObject {
                    kind,
                    name,
                    submission_id: make.submission_id().to_owned(),
                    message: self.withholds.map_or("", |(_, text)| text).to_owned(),
                    at: self.now,
                });
            }
            Step::Create(make) | Step::CreateOptional(make) => {
                let uid = self.uid();
                self.observed.objects.push(made::object(&make, uid));
            }
            Step::CreateDriver(pod) => {
                if let Some((why, message)) = self.refuses {
                    self.observed.refused = Some(Refused {
                        submission_id: pod.labels()[label::SUBMISSION_ID].clone(),
                        attempts: self.status()["submissionAttempts"]
                            .as_i64()
                            .map_or(0, |n| i32::try_from(n).unwrap()),
                        message: message.to_owned(),
                        at: self.now,
                        why,
                    });
                    return false;
                }
                let same = |d: &Driver| d.name == pod.name_any();
                assert!(
                    !self.observed.drivers.iter().any(same),
                    "two drivers at once"
                );
                let uid = self.uid();
                let driver = made::driver(&pod, uid);
                self.drivers.push(driver.submission_id.clone());
                self.observed.drivers.push(driver);
            }
            Step::Change {
                map,
                uid,
                resource_version,
            } => {
                if std::mem::take(&mut self.refuses_changes) {
                    return false;
                }
                let mut objects = self.observed.objects.iter_mut();
                let there = objects.find(|o| o.uid == uid).unwrap();
                let before = there.placement.as_ref().unwrap();
                assert_eq!(before.resource_version, resource_version);
                there.placement =
                    made::placement(&map, resource_version.parse::<u32>().unwrap() + 1);
                let data = map.data.as_ref().unwrap();
                self.changed.push(data["podspec-configmap-key"].clone());
            }
            Step::DeletePod { uid, .. } => {
                for driver in self.observed.drivers.iter_mut().filter(|d| d.uid == uid) {
                    driver.terminating = true;
                }
                for executor in self.observed.executors.iter_mut().filter(|e| e.uid == uid) {
                    executor.terminating = true;
                }
            }
            Step::Delete { uid, .. } => self.observed.objects.retain(|o| o.uid != uid),
            Step::DeleteApplication => self.deleted = true,
        }
        true
    }

    /// Reconciles until nothing is left to do.
    fn settle(&mut self) {
        for _ in 0..30 {
            if self.reconcile(None) || self.deleted {
                return;
            }
        }
        panic!("it never comes to rest: {:?}", self.states);
    }

    fn status(&self) -> &Value {
        &self.app["status"]
    }

    fn state(&self) -> State {
        self.app()
            .status
            .unwrap_or_default()
            .application_state
            .state
    }

    fn error(&self) -> String {
        let text = self.status()["applicationState"]["errorMessage"].as_str();
        text.unwrap_or_default().to_owned()
    }

    fn driver(&mut self) -> &mut Driver {
        self.observed.drivers.last_mut().expect("a driver")
    }

    fn driver_runs(&mut self) {
        self.driver().phase = PodPhase::Running;
        self.settle();
    }

    fn driver_ends(&mut self, code: i32) {
        let driver = self.driver();
        driver.phase = if code == 0 {
            PodPhase::Succeeded
        } else {
            PodPhase::Failed
        };
        driver.end = Some(End {
            code,
            reason: if code == 0 { "Completed" } else { "Error" }.to_owned(),
            message: String::new(),
        });
        self.settle();
    }

    /// Removes terminating pods.
    fn pods_go(&mut self) {
        self.observed.drivers.retain(|d| !d.terminating);
        self.observed.executors.retain(|e| !e.terminating);
        self.settle();
    }

    fn executor(&mut self, name: &str, phase: PodPhase) {
        let uid = self.uid();
        let driver = self.driver().clone();
        self.observed.executors.retain(|e| e.name != name);
        let executor = made::executor(&driver, name, uid, phase, self.now);
        self.observed.executors.push(executor);
    }

    fn later(&mut self, seconds: i64) {
        self.now = self
            .now
            .checked_add(SignedDuration::from_secs(seconds))
            .unwrap();
        self.settle();
    }

    fn edit(&mut self, path: &str, value: Value) {
        set(&mut self.app["spec"], path, value);
        let generation = self.app["metadata"]["generation"].as_i64().unwrap();
        self.app["metadata"]["generation"] = json!(generation + 1);
        self.settle();
    }

    fn said(&self, reason: &str) -> usize {
        self.events.iter().filter(|e| *e == reason).count()
    }
}

fn running(fields: &[(&str, Value)]) -> World {
    let mut world = World::new(fields);
    world.settle();
    world.driver_runs();
    world
}

fn on_failure(retries: i32) -> (&'static str, Value) {
    let policy = json!({
        "type": "OnFailure", "onFailureRetries": retries, "onFailureRetryInterval": 10,
        "onSubmissionFailureRetries": retries, "onSubmissionFailureRetryInterval": 10,
    });
    ("restartPolicy", policy)
}

#[test]
fn an_undisturbed_application_goes_through_its_states_once() {
    let mut world = World::new(&[]);
    let first = world.plan();
    assert!(
        matches!(&first.steps[..], [.., Step::CreateDriver(_), Step::CreateOptional(ui)] if ui.id().1 == "spark-pi-ui-svc"),
        "the driver comes last, with the objects it doesn't depend on"
    );
    assert_eq!(
        first.status, None,
        "a submission is recorded once its driver is there"
    );
    world.settle();
    world.driver_runs();
    world.driver_ends(0);
    assert_eq!(
        world.states,
        ["SUBMITTED", "RUNNING", "SUCCEEDING", "COMPLETED"]
    );
    let status = world.status();
    assert_eq!(status["submissionID"], json!(world.drivers[0]));
    assert_eq!(
        status["sparkApplicationId"],
        json!(format!("spark-{}", world.drivers[0].replace('-', "")))
    );
    assert_eq!(status["submissionAttempts"], 1);
    assert_eq!(status["executionAttempts"], 1);
    assert_eq!(status["driverInfo"]["podName"], "spark-pi-driver");
    assert_eq!(status["driverInfo"]["webUIServiceName"], "spark-pi-ui-svc");
    assert_eq!(status["driverInfo"]["webUIAddress"], "10.0.0.7:4040");
    assert_eq!(status["driverInfo"]["webUIPort"], 4040);
    assert_eq!(status["terminationTime"], "2026-05-28T20:26:40Z");
    assert_eq!(
        world.events,
        [
            "SparkApplicationSubmitted",
            "SparkDriverRunning",
            "SparkDriverCompleted",
            "SparkApplicationCompleted"
        ]
    );
    assert_eq!(world.drivers.len(), 1);
    assert!(
        world.plan().steps.is_empty(),
        "the driver and its logs stay"
    );
}

#[test]
fn a_driver_that_is_missing_fails_its_run_after_the_grace_period() {
    let mut world = World::new(&[]);
    world.settle();
    world.observed.drivers.clear();
    world.settle();
    assert_eq!(world.state(), State::Submitted);
    assert!(world.wake.is_some(), "it is looked at again without news");
    world.later(9);
    assert_eq!(world.state(), State::Submitted);
    world.later(1);
    assert_eq!(world.states, ["SUBMITTED", "FAILING", "FAILED"]);
    assert_eq!(world.error(), "driver pod not found");
    assert_eq!(world.said("SparkDriverNotFound"), 1);

    let mut world = running(&[]);
    world.observed.drivers.clear();
    world.settle();
    assert_eq!(
        world.state(),
        State::Failed,
        "one that ran is not waited for"
    );
}

#[test]
fn i_23_the_end_of_the_time_to_live_deletes_an_ended_application() {
    for (spec, operator, after, deleted) in [
        (None, None, 1_000_000, false),
        (Some(60), None, 60, false),
        (Some(60), None, 61, true),
        (None, Some(60), 61, true),
        (None, Some(0), 61, false),
        (Some(0), Some(1000), 0, true),
        (Some(-1), Some(1000), 0, true),
        (Some(i64::MAX), None, 1_000_000, false),
    ] {
        let spec = spec.map(|ttl: i64| ("timeToLiveSeconds", json!(ttl)));
        let mut world = World::new(spec.as_slice());
        world.rules.time_to_live = operator;
        world.settle();
        world.driver_runs();
        assert!(!world.deleted, "it runs");
        world.driver_ends(0);
        world.later(after);
        assert_eq!(
            world.deleted, deleted,
            "{spec:?} {operator:?} after {after} s"
        );
        if !deleted
            && (operator.is_some_and(|t| t > 0) || world.app["spec"]["timeToLiveSeconds"].is_i64())
        {
            assert!(
                world.wake.is_some(),
                "it is looked at again when its time is over"
            );
        }
    }
}

#[test]
fn executors_are_followed_and_told_and_those_that_vanish_are_not_forgotten() {
    let mut world = running(&[("executor/instances", json!(2))]);
    world.executor("exec-1", PodPhase::Pending);
    world.executor("exec-2", PodPhase::Running);
    world.settle();
    assert_eq!(
        world.status()["executorState"],
        json!({"exec-1": "PENDING", "exec-2": "RUNNING"})
    );
    assert_eq!(world.status()["executors"], "1/2");
    assert_eq!(world.said("SparkExecutorRunning"), 1);
    world.executor("exec-1", PodPhase::Failed);
    world.settle();
    world.observed.executors.clear();
    world.settle();
    assert_eq!(
        world.status()["executorState"],
        json!({"exec-1": "FAILED", "exec-2": "UNKNOWN"})
    );
    // An executor of another submission doesn't count.
    world.executor("exec-9", PodPhase::Running);
    world.observed.executors[0].submission_id = "another".to_owned();
    world.settle();
    assert_eq!(world.status()["executorState"]["exec-9"], Value::Null);
    world.driver_ends(0);
    assert_eq!(world.state(), State::Completed);
}

#[test]
fn b_172_i_20_a_status_lists_live_executors_first_and_says_how_many_it_leaves_out() {
    let mut world = running(&[]);
    world.rules.most_executors = 2;
    for (name, phase) in [
        ("exec-1", PodPhase::Succeeded),
        ("exec-2", PodPhase::Failed),
        ("exec-3", PodPhase::Running),
    ] {
        world.executor(name, phase);
    }
    world.settle();
    assert_eq!(
        world.status()["executorState"],
        json!({"exec-2": "FAILED", "exec-3": "RUNNING"})
    );
    assert_eq!(world.status()["executorsNotListed"], 1);
    // The status fits into an object, whatever the limit.
    world.rules.most_executors = usize::MAX;
    for n in 0..3000 {
        world.executor(&format!("exec-{n}-{}", "x".repeat(50)), PodPhase::Running);
    }
    let status = world.plan().status.unwrap().next;
    assert!(serde_json::to_vec(&status).unwrap().len() < 140 * 1024);
    assert!(status.executors_not_listed > Some(0));
    assert!(
        status
            .executor_state
            .values()
            .all(|s| *s == ExecutorState::Running)
    );
}

#[test]
fn always_runs_again_once_the_old_driver_and_executors_are_gone() {
    let mut world = running(&[("restartPolicy", json!({"type": "Always"}))]);
    world.executor("exec-1", PodPhase::Running);
    world.driver_ends(0);
    assert_eq!(world.state(), State::PendingRerun);
    assert!(world.driver().terminating);
    // Its name identifies it until it is gone.
    let known = json!({ "podName": "spark-pi-driver" });
    assert_eq!(world.status()["driverInfo"], known);
    assert_eq!(world.status()["terminationTime"], Value::Null);
    world.observed.drivers.clear();
    world.settle();
    assert_eq!(
        world.state(),
        State::PendingRerun,
        "an executor is still there"
    );
    world.pods_go();
    assert_eq!(world.state(), State::Submitted);
    assert_eq!(world.drivers.len(), 2);
    assert_ne!(world.drivers[0], world.drivers[1]);
    assert_eq!(world.status()["executionAttempts"], 2);
    let old = |o: &&Object| o.submission_id != world.drivers[1];
    assert_eq!(
        world.observed.objects.iter().find(old),
        None,
        "leftovers of the first run"
    );
}

#[test]
fn a_failed_run_is_tried_again_as_often_and_as_late_as_the_policy_says() {
    let mut world = running(&[on_failure(2)]);
    for failure in 1..=2 {
        world.later(1000);
        world.driver_ends(3);
        assert_eq!(world.state(), State::Failing);
        assert_eq!(
            world.error(),
            "driver container failed with ExitCode: 3, Reason: Error"
        );
        world.later(10 * failure - 1);
        assert_eq!(world.state(), State::Failing, "failure {failure}");
        world.later(1);
        world.pods_go();
        assert_eq!(world.state(), State::Submitted);
        world.driver_runs();
    }
    world.driver_ends(3);
    assert_eq!(world.state(), State::Failed);
    assert_eq!(world.status()["executionAttempts"], 3);
    assert!(world.error().contains("driver container failed"));
    assert!(
        !world.driver().terminating,
        "the last driver's log can be read"
    );
    let known: BTreeSet<&str> = world.states.iter().map(String::as_str).collect();
    let published = ["FAILED", "FAILING", "PENDING_RERUN", "RUNNING", "SUBMITTED"];
    assert_eq!(known, published.into());
}

#[test]
fn without_retries_or_with_never_a_failed_run_is_the_end() {
    for policy in [
        json!({"type": "Never", "onFailureRetries": 5}),
        json!({"type": "OnFailure"}),
        json!(null),
    ] {
        let mut world = running(&[("restartPolicy", policy)]);
        world.driver_ends(1);
        assert_eq!(world.state(), State::Failed);
    }
}

#[test]
fn a_submission_that_lacks_something_is_counted_and_tried_again_and_the_state_stays() {
    let mut world = World::new(&[on_failure(2)]);
    world.refuses = Some((Refusal::Counted, "serviceaccount \"spark\" not found"));
    world.settle();
    for tried in 1..=2 {
        assert_eq!(world.state(), State::New);
        assert_eq!(world.status()["submissionAttempts"], tried);
        assert!(world.error().contains("failed to run spark-submit"));
        assert!(world.error().contains("serviceaccount"));
        world.later(10 * tried - 1);
        assert_eq!(world.status()["submissionAttempts"], tried, "too early");
        assert_eq!(world.status()["waiting"], "SubmissionRefused");
        world.later(1);
    }
    assert_eq!(world.states, ["SUBMISSION_FAILED", "FAILED"]);
    assert_eq!(world.status()["submissionAttempts"], 3);
    assert_eq!(world.said("SparkApplicationSubmissionFailed"), 3);
    assert_eq!(world.said("SparkApplicationFailed"), 1);
    assert!(world.status()["terminationTime"].is_string());
    assert!(world.observed.drivers.is_empty());
    assert_eq!(world.status()["executors"], Value::Null, "none could run");
    assert_eq!(world.status()["waiting"], Value::Null);

    // Retries succeed once the missing object exists.
    let mut world = World::new(&[on_failure(2)]);
    world.refuses = Some((Refusal::Counted, "serviceaccount \"spark\" not found"));
    world.settle();
    world.refuses = None;
    world.later(10);
    assert_eq!(world.state(), State::Submitted);
    assert_eq!(world.error(), "");
    assert_eq!(world.status()["failedSubmissions"], Value::Null);
}

#[test]
fn what_will_pass_is_waited_for_and_counts_nothing() {
    let mut world = World::new(&[]);
    world.refuses = Some((Refusal::Transient, "exceeded quota: pods"));
    world.settle();
    world.settle();
    assert_eq!(world.state(), State::New);
    assert_eq!(world.error(), "exceeded quota: pods");
    assert_eq!(world.status()["waiting"], "SubmissionRefused");
    let since = world.status()["conditions"][0]["lastTransitionTime"].clone();
    let stalled = |message: &str, updated: &Value| {
        json!([{
            "type": "Stalled", "status": "True", "reason": "SubmissionRefused", "message": message,
            "lastTransitionTime": since, "lastUpdateTime": updated,
        }])
    };
    assert_eq!(
        world.status()["conditions"],
        stalled("exceeded quota: pods", &since)
    );
    assert_eq!(world.status()["submissionAttempts"], Value::Null);
    assert_eq!(world.said("SparkApplicationSubmissionFailed"), 1);
    world.later(60);
    let maps = world
        .observed
        .objects
        .iter()
        .filter(|o| o.kind == Kind::ConfigMap);
    assert_eq!(maps.count(), 2, "another try makes no more of them");
    world.refuses = Some((Refusal::Transient, "exceeded quota: memory"));
    world.later(30);
    // Unchanged until the retry's outcome is known.
    assert_eq!(
        world.status()["conditions"],
        stalled("exceeded quota: pods", &since)
    );
    world.settle();
    let updated = world.status()["conditions"][0]["lastUpdateTime"].clone();
    assert_ne!(updated, since);
    assert_eq!(
        world.status()["conditions"],
        stalled("exceeded quota: memory", &updated)
    );
    world.refuses = None;
    world.later(29);
    assert_eq!(world.state(), State::New, "slowly");
    world.later(1);
    assert_eq!(world.state(), State::Submitted);
    assert_eq!(world.error(), "");
    // As the published status, which has no conditions.
    assert_eq!(world.status()["conditions"], Value::Null);
}

#[test]
fn what_can_never_run_fails_at_once_whatever_the_policy() {
    for (fields, refuses) in [
        (vec![on_failure(5), ("driver/memory", json!("lots"))], None),
        (
            vec![on_failure(5)],
            Some((Refusal::Permanent, "Invalid value")),
        ),
    ] {
        let mut world = World::new(&fields);
        world.refuses = refuses;
        world.settle();
        assert_eq!(world.states, ["SUBMISSION_FAILED", "FAILED"]);
        assert!(
            world.error().contains("failed to run spark-submit"),
            "{}",
            world.error()
        );
        assert_eq!(world.drivers.len(), 0);
        // An edit starts over.
        world.refuses = None;
        world.edit("driver/memory", json!("1g"));
        assert_eq!(world.state(), State::Submitted);
        assert_eq!(world.status()["submissionAttempts"], 1);
    }
}

#[test]
fn a_suspended_application_has_no_pods_and_resumes_with_a_new_submission() {
    let mut world = running(&[on_failure(1)]);
    world.executor("exec-1", PodPhase::Running);
    world.edit("suspend", json!(true));
    assert_eq!(world.state(), State::Suspending);
    world.edit("suspend", json!(false));
    assert_eq!(world.state(), State::Suspending, "its pods are still there");
    world.pods_go();
    assert!(world.observed.executors[0].terminating);
    world.pods_go();
    assert_eq!(world.state(), State::Submitted);
    assert_eq!(
        world.states,
        [
            "SUBMITTED",
            "RUNNING",
            "SUSPENDING",
            "SUSPENDED",
            "RESUMING",
            "SUBMITTED"
        ]
    );
    for reason in ["Suspending", "Suspended", "Resuming"] {
        assert_eq!(
            world.said(&format!("SparkApplication{reason}")),
            1,
            "{reason}"
        );
    }
    assert_eq!(world.drivers.len(), 2);
    // Resuming doesn't use up a retry.
    world.driver_runs();
    world.driver_ends(1);
    world.later(10);
    world.pods_go();
    assert_eq!(world.state(), State::Submitted);
}

#[test]
fn a_new_application_that_is_suspended_submits_nothing_and_an_ended_one_stays_ended() {
    let mut world = World::new(&[("suspend", json!(true))]);
    world.settle();
    assert_eq!(world.states, ["SUSPENDING", "SUSPENDED"]);
    assert_eq!(world.drivers.len(), 0);
    // Edits during a suspension change the next submission.
    world.edit("executor/instances", json!(7));
    assert_eq!(world.state(), State::Suspended);
    world.edit("suspend", json!(false));
    assert_eq!(world.state(), State::Submitted);
    world.driver_runs();
    world.driver_ends(0);
    world.edit("suspend", json!(true));
    assert_eq!(world.state(), State::Completed);
}

#[test]
fn b_175_an_edit_begins_anew_in_any_state_but_one_of_ttl_suspend_or_labels_never() {
    for ended in [false, true] {
        let mut world = running(&[("restartPolicy", json!({"type": "Never"}))]);
        if ended {
            world.driver_ends(0);
        }
        let before = world.states.len();
        world.edit("timeToLiveSeconds", json!(1_000_000));
        world.app["metadata"]["labels"] = json!({"a": "b"});
        world.settle();
        assert_eq!(world.states.len(), before, "{:?}", world.states);
        world.edit("arguments", json!(["1000"]));
        assert_eq!(world.states[before..], ["INVALIDATING"]);
        world.pods_go();
        assert_eq!(
            world.states[before..],
            ["INVALIDATING", "PENDING_RERUN", "SUBMITTED"]
        );
        assert_eq!(world.status()["submissionAttempts"], 1, "counted again");
        assert_eq!(world.status()["executionAttempts"], 1);
        assert_eq!(world.drivers.len(), 2);
        assert_ne!(world.drivers[0], world.drivers[1]);
    }
}

fn request_restart(world: &mut World, value: &str) {
    world.app["metadata"]["annotations"] = json!({ "trainyard.dev/restart-request": value });
    world.settle();
}

#[test]
fn a_requested_restart_begins_a_new_submission_once() {
    let mut world = running(&[("restartPolicy", json!({"type": "Never"}))]);
    let before = world.states.len();
    request_restart(&mut world, "1");
    assert_eq!(world.states[before..], ["INVALIDATING"]);
    assert_eq!(world.said("SparkApplicationRestarting"), 1);
    world.pods_go();
    let states = ["INVALIDATING", "PENDING_RERUN", "SUBMITTED"];
    assert_eq!(world.states[before..], states);
    assert_eq!(world.status()["executionAttempts"], 1, "counted again");
    assert_ne!(world.drivers[0], world.drivers[1]);
    world.driver_runs();
    request_restart(&mut world, "1");
    assert_eq!(world.state(), State::Running, "the request is handled");
    // A run that has ended counts, also if the request comes before its end is seen.
    world.app["metadata"]["annotations"] = json!({ "trainyard.dev/restart-request": "2" });
    world.driver_ends(0);
    assert_eq!(world.state(), State::Completed);
    request_restart(&mut world, "3");
    assert_eq!((world.state(), world.drivers.len()), (State::Completed, 2));
}

#[test]
fn a_restart_requested_before_the_submission_or_while_suspended_is_only_noted() {
    let mut world = World::new(&[("suspend", json!(true))]);
    world.settle();
    request_restart(&mut world, "1");
    world.edit("suspend", json!(false));
    assert_eq!(world.state(), State::Submitted);
    assert_eq!(world.said("SparkApplicationRestarting"), 0);
    assert_eq!(world.drivers.len(), 1);
}

#[test]
fn a_requested_restart_ends_the_wait_for_a_retry() {
    let mut world = running(&[on_failure(1)]);
    world.driver_ends(1);
    assert_eq!(world.state(), State::Failing);
    request_restart(&mut world, "1");
    world.pods_go();
    assert_eq!(world.state(), State::Submitted);
    assert_eq!(world.status()["failedRuns"], json!(null));
    // Without a retry, the failure stands.
    let mut world = running(&[("restartPolicy", json!({"type": "Never"}))]);
    world.app["metadata"]["annotations"] = json!({ "trainyard.dev/restart-request": "1" });
    world.driver_ends(1);
    assert_eq!((world.state(), world.drivers.len()), (State::Failed, 1));
}

#[test]
fn a_pod_of_somebody_else_in_the_driver_s_place_is_told_once_and_waited_for() {
    let mut world = World::new(&[]);
    world.observed.taken_name = Some("spark-pi-driver".to_owned());
    world.settle();
    world.settle();
    assert_eq!(world.state(), State::New);
    assert!(
        world.error().contains("spark-pi-driver"),
        "{}",
        world.error()
    );
    assert_eq!(world.said("SparkApplicationSubmissionFailed"), 1);
    assert!(world.wake.is_some(), "no watch reports when it goes");
    world.observed.taken_name = None;
    world.settle();
    assert_eq!(world.state(), State::Submitted);
    assert_eq!(world.error(), "");
}

#[test]
fn a_driver_that_goes_before_it_was_recorded_was_submitted() {
    let mut world = World::new(&[on_failure(1)]);
    world.reconcile(Some(usize::MAX));
    world.driver().terminating = true;
    world.settle();
    assert_eq!(world.state(), State::Submitted);
    world.observed.drivers.clear();
    world.later(10);
    assert_eq!(world.state(), State::Failing);
    world.later(10);
    assert_eq!(world.state(), State::Submitted);
    assert_ne!(world.drivers[0], world.drivers[1]);
}

#[test]
fn a_driver_goes_whatever_the_next_one_is_called() {
    let mut world = running(&[]);
    world.edit("driver/podName", json!("another"));
    assert_eq!(world.state(), State::Invalidating);
    assert!(world.driver().terminating);
    world.pods_go();
    assert_eq!(world.status()["driverInfo"]["podName"], "another");
}

#[test]
fn where_executors_run_can_be_edited_without_a_new_run() {
    let mut world = running(&[on_failure(1)]);
    world.rules.partial_restart = true;
    let drivers = world.drivers.len();
    world.edit("executor/nodeSelector", json!({ "pool": "b" }));
    assert_eq!(
        (world.state(), world.drivers.len()),
        (State::Running, drivers)
    );
    assert_eq!(world.said("SparkApplicationWebhookFieldsUpdated"), 1);
    let [template] = &world.changed[..] else {
        panic!("{:?}", world.changed);
    };
    assert!(template.contains(r#""pool": "b""#), "{template}");
    assert_eq!(world.status()["observedGeneration"], 2);
    // Whatever happens between the change and its record, both are made in the end.
    for (nth, priority) in [(1, "low"), (2, "lower"), (3, "lowest")] {
        set(
            &mut world.app["spec"],
            "executor/priorityClassName",
            json!(priority),
        );
        world.app["metadata"]["generation"] = json!(2 + nth);
        match nth {
            1 => _ = world.reconcile(Some(1)),
            2 => _ = world.reconcile(Some(2)),
            _ => world.refuses_changes = true,
        }
        world.reconcile(None);
        world.settle();
        assert!(world.changed.last().unwrap().contains(priority), "{nth}");
        assert_eq!(world.status()["observedGeneration"], 2 + nth);
    }
    assert_eq!(world.changed.len(), 4, "each once");
    assert_eq!(world.said("SparkApplicationWebhookFieldsUpdated"), 4);
    // An edit that is reverted before it was recorded is reverted in the template as well.
    let spec = world.app["spec"].clone();
    set(
        &mut world.app["spec"],
        "executor/priorityClassName",
        json!("high"),
    );
    world.app["metadata"]["generation"] = json!(6);
    world.reconcile(Some(2));
    assert!(world.changed.last().unwrap().contains("high"));
    assert_eq!(world.status()["observedGeneration"], 5);
    world.app["spec"] = spec;
    world.app["metadata"]["generation"] = json!(7);
    world.settle();
    assert!(world.changed.last().unwrap().contains("lowest"));
    assert_eq!(world.status()["observedGeneration"], 7);
    // Events in the meantime are not missed.
    set(
        &mut world.app["spec"],
        "executor/priorityClassName",
        json!("high"),
    );
    world.app["metadata"]["generation"] = json!(8);
    world.driver_ends(3);
    assert_eq!(world.state(), State::Failing);
    world.later(10);
    world.pods_go();
    world.driver_runs();
    assert_eq!(
        (world.state(), world.drivers.len()),
        (State::Running, drivers + 1)
    );
    let drivers = world.drivers.len();
    // Combined with any other change, it counts as an ordinary edit.
    set(
        &mut world.app["spec"],
        "executor/schedulerName",
        json!("other"),
    );
    world.edit("executor/cores", json!(2));
    assert_eq!(world.state(), State::Invalidating);
    world.pods_go();
    assert_eq!(world.drivers.len(), drivers + 1);
    world.rules.partial_restart = false;
    world.edit("executor/tolerations", json!([{ "key": "spot" }]));
    assert_eq!(world.state(), State::Invalidating, "the gate is shut");
}

#[test]
fn where_executors_run_needs_a_new_run_where_no_template_of_ours_is() {
    let mut world = running(&[]);
    world.rules.partial_restart = true;
    for object in &mut world.observed.objects {
        object.placement = None;
    }
    world.edit("executor/nodeSelector", json!({ "pool": "b" }));
    assert_eq!(world.state(), State::Invalidating);
    assert_eq!(world.said("SparkApplicationWebhookFieldsUpdated"), 0);
}

#[test]
fn a_driver_whose_record_is_missing_stays_when_only_its_executors_are_to_go_elsewhere() {
    let mut world = running(&[on_failure(1)]);
    world.rules.partial_restart = true;
    world.driver_ends(3);
    world.later(10);
    world.observed.drivers.retain(|d| !d.terminating);
    // Creates the next driver without recording it.
    for _ in 0..10 {
        if world.drivers.len() < 2 {
            world.reconcile(None);
        }
    }
    let (state, made) = (world.state(), world.drivers.len());
    assert_eq!((state, made), (State::PendingRerun, 2));
    world.edit("executor/nodeSelector", json!({ "pool": "b" }));
    assert_eq!((world.state(), world.drivers.len()), (State::Submitted, 2));
    assert!(!world.driver().terminating);
    assert!(world.changed.last().unwrap().contains("pool"));
}

#[test]
fn a_driver_that_never_started_goes_with_its_run() {
    let mut world = World::new(&[]);
    world.settle();
    let since = world.now;
    world.driver().waiting = Some(Waiting {
        reason: "CreateContainerConfigError".to_owned(),
        message: "secret \"s\" not found".to_owned(),
        since,
    });
    world.later(600);
    assert_eq!(world.state(), State::Failed);
    assert!(
        world.driver().terminating,
        "else it runs when the secret comes"
    );
    assert_ne!(
        world.observed.objects,
        [],
        "it may begin to run in this moment"
    );
    world.pods_go();
    assert_eq!(world.observed.objects, []);
}

#[test]
fn i_05_an_application_that_is_being_deleted_takes_its_run_along() {
    let mut world = running(&[]);
    world.executor("exec-1", PodPhase::Running);
    world.app["metadata"]["deletionTimestamp"] = json!("2026-05-28T20:26:40Z");
    world.reconcile(None);
    assert!(world.driver().terminating && !world.observed.executors[0].terminating);
    world.observed.drivers.clear();
    world.reconcile(None);
    assert!(world.observed.executors[0].terminating);
    assert_eq!(world.observed.objects, []);
    assert_eq!(world.plan(), Plan::default());
}

#[test]
fn a_driver_that_is_told_to_go_keeps_what_its_run_has_until_it_has_ended() {
    let told = |world: &mut World, suspends: bool| {
        if suspends {
            world.edit("suspend", json!(true));
            State::Suspending
        } else {
            world.edit("arguments", json!(["2"]));
            State::Invalidating
        }
    };
    for suspends in [true, false] {
        // The driver ends within its grace period, and its pod still exists.
        let mut world = running(&[]);
        world.executor("exec-1", PodPhase::Running);
        let objects = world.observed.objects.clone();
        let state = told(&mut world, suspends);
        assert_eq!(world.state(), state);
        assert!(world.driver().terminating && !world.observed.executors[0].terminating);
        assert_eq!(world.observed.objects, objects);
        world.driver_ends(0);
        assert!(world.observed.executors[0].terminating);
        assert_eq!(
            (world.state(), &world.observed.objects[..]),
            (state, &[][..])
        );
        world.pods_go();
        let next = if suspends {
            State::Suspended
        } else {
            State::Submitted
        };
        assert_eq!(world.state(), next);

        // The driver never ends: its node may be lost, and its executors must not run forever.
        let mut world = running(&[]);
        world.executor("exec-1", PodPhase::Running);
        told(&mut world, suspends);
        let due = world.now;
        world.driver().deletion_deadline = Some(due);
        world.later(29);
        assert!(!world.observed.executors[0].terminating);
        world.later(1);
        assert!(world.observed.executors[0].terminating);
        assert_eq!(world.observed.objects, []);
    }
}

#[test]
fn executors_that_are_not_to_be_deleted_survive_a_new_run_once_they_have_ended() {
    let key = "spark.kubernetes.executor.deleteOnTermination";
    for (fields, stays) in [
        (vec![("executor/deleteOnTermination", json!(false))], true),
        (vec![("sparkConf", json!({ key: "False" }))], true),
        // The field overrides the property, as for the driver.
        (
            vec![
                ("executor/deleteOnTermination", json!(true)),
                ("sparkConf", json!({ key: "false" })),
            ],
            false,
        ),
        (vec![], false),
    ] {
        let mut world = running(&[&[on_failure(1)], &fields[..]].concat());
        world.executor("exec-1", PodPhase::Failed);
        world.executor("exec-2", PodPhase::Running);
        world.driver_ends(1);
        world.later(10);
        assert!(world.observed.executors[1].terminating, "it still runs");
        world.pods_go();
        assert_eq!(world.drivers.len(), 2, "{fields:?}");
        let left: Vec<&str> = world
            .observed
            .executors
            .iter()
            .map(|e| e.name.as_str())
            .collect();
        assert_eq!(
            left,
            if stays { vec!["exec-1"] } else { vec![] },
            "{fields:?}"
        );
        // It doesn't belong to the new run.
        assert_eq!(world.status()["executorState"], Value::Null);
    }
}

#[test]
fn an_application_is_suspended_when_nothing_of_its_run_is_left() {
    let mut world = running(&[]);
    world.edit("suspend", json!(true));
    world.observed.drivers.clear();
    let entered = |plan: &Plan| {
        let next = plan
            .status
            .as_ref()
            .map(|s| &s.next.application_state.state);
        next == Some(&State::Suspended)
    };
    while !entered(&world.plan()) {
        assert!(!world.reconcile(None), "{:?}", world.states);
    }
    assert_eq!(
        world.observed.objects,
        [],
        "the state is stored before steps"
    );
}

#[test]
fn a_pod_that_does_not_go_is_named() {
    let mut world = running(&[]);
    world.edit("arguments", json!(["2"]));
    let now = world.now;
    world.driver().deletion_deadline = Some(now);
    world.later(29);
    assert_eq!(
        (world.state(), world.error()),
        (State::Invalidating, String::new())
    );
    world.later(1);
    assert!(
        world
            .error()
            .starts_with("waits for the pod spark-pi-driver to end"),
        "{}",
        world.error()
    );
    world.pods_go();
    assert_eq!(
        (world.state(), world.error()),
        (State::Submitted, String::new())
    );
}

#[test]
fn a_message_that_is_too_long_is_cut() {
    let mut world = World::new(&[("driver/memory", json!("ä".repeat(100_000)))]);
    world.settle();
    assert_eq!(world.state(), State::Failed);
    let text = world.error();
    assert!(text.len() < 4200 && text.ends_with('…'), "{}", text.len());
}

#[test]
fn runs_of_another_operator_count_also_where_it_had_suspended_them() {
    let mut world = left_by_another("SUSPENDED", &json!({"executionAttempts": 4}));
    world.settle();
    assert_eq!(world.state(), State::Submitted);
    world.driver_runs();
    world.driver_ends(1);
    assert_eq!(
        world.state(),
        State::Failed,
        "its three retries are used up"
    );
}

#[test]
fn names_that_do_not_change_are_waited_for() {
    let mut world = running(&[("restartPolicy", json!({"type": "Always"}))]);
    world.driver_ends(0);
    // The Service of the web UI has a finalizer.
    let uid = world.uid();
    let submission_id = world.drivers[0].clone();
    world.observed.objects.push(Object {
        kind: Kind::Service,
        name: "spark-pi-ui-svc".to_owned(),
        uid,
        submission_id,
        terminating: true,
        address: None,
        placement: None,
    });
    world.pods_go();
    assert_eq!(world.state(), State::Submitted, "the run does without");
    assert_eq!(
        world.status()["driverInfo"]["webUIServiceName"],
        Value::Null
    );
    world.observed.objects.retain(|o| o.uid != uid);
    world.driver_runs();
    let info = &world.status()["driverInfo"];
    assert_eq!(info["webUIServiceName"], "spark-pi-ui-svc");
    assert_eq!(info["webUIAddress"], "10.0.0.7:4040");
    // Objects that the driver needs are waited for.
    let metrics = json!({"exposeDriverMetrics": true, "exposeExecutorMetrics": false, "prometheus": {"jmxExporterJar": "/exporter.jar"}});
    world.edit("monitoring", metrics);
    let uid = world.uid();
    world.observed.objects.push(Object {
        kind: Kind::ConfigMap,
        name: "spark-pi-prom-conf".to_owned(),
        uid,
        submission_id: world.drivers[1].clone(),
        terminating: true,
        address: None,
        placement: None,
    });
    world.pods_go();
    assert_eq!(world.state(), State::PendingRerun);
    world.observed.objects.retain(|o| o.uid != uid);
    world.settle();
    assert_eq!(world.state(), State::Submitted);
}

/// An application with all objects that a run doesn't depend on.
fn seen_from_outside() -> World {
    let ports = json!([
        {"servicePort": 8080, "ingressURLFormat": "a.example.org"}, {"servicePort": 8081, "ingressURLFormat": "b.example.org"},
    ]);
    let mut world = World::new(&[
        ("driverIngressOptions", ports),
        ("driverPodDisruptionBudget", json!(true)),
    ]);
    "{{$appName}}.example.org".clone_into(&mut world.settings.web.url_format);
    world.settings.disruption_budget = Switch::On;
    world
}

#[test]
fn a_run_goes_on_without_what_is_refused_beside_its_driver() {
    for (kind, reason, missing) in [
        (Kind::Service, "FailedCreateService", 3),
        (Kind::Ingress, "FailedCreateIngress", 3),
        (Kind::Budget, "FailedCreatePodDisruptionBudget", 1),
    ] {
        let mut world = seen_from_outside();
        world.withholds = Some((kind, "the host is defined already"));
        world.settle();
        assert_eq!(
            world.state(),
            State::Submitted,
            "{kind:?} {}",
            world.error()
        );
        assert!(
            world.error().contains("the host is defined already"),
            "{}",
            world.error()
        );
        assert_eq!(
            world.error().contains("more objects"),
            missing > 1,
            "{}",
            world.error()
        );
        assert_eq!(world.said(reason), 1);
        assert_eq!(world.observed.missing_objects.len(), missing);
        world.driver_runs();
        assert_eq!(world.state(), State::Running);
        assert!(
            world.error().starts_with("can't create the "),
            "{}",
            world.error()
        );
        assert!(
            world.wake.is_some(),
            "no watch reports when it would be accepted"
        );
        world.later(60);
        assert_eq!(world.said(reason), 1, "it is reported once");
        assert!(
            world
                .observed
                .missing_objects
                .iter()
                .all(|w| w.at == world.now),
            "it is tried again"
        );
        // Then the API server accepts it.
        world.withholds = None;
        world.later(30);
        assert_eq!(
            (world.state(), world.error()),
            (State::Running, String::new())
        );
        assert_eq!(
            world
                .observed
                .objects
                .iter()
                .filter(|o| o.kind == kind)
                .count(),
            missing + usize::from(kind == Kind::Service)
        );
        let info = &world.status()["driverInfo"];
        assert_eq!(info["webUIAddress"], "10.0.0.7:4040");
        assert_eq!(info["webUIIngressAddress"], "http://spark-pi.example.org");
        let counted = [
            &world.status()["submissionAttempts"],
            &world.status()["failedRuns"],
        ];
        assert_eq!(counted, [&json!(1), &Value::Null]);
    }
    // A run that ends meanwhile ends normally.
    let mut world = seen_from_outside();
    world.withholds = Some((Kind::Ingress, "no"));
    world.settle();
    world.driver_runs();
    let mut lost = running(&[]);
    lost.app = world.app.clone();
    lost.observed = world.observed.clone();
    lost.observed.drivers.clear();
    lost.settle();
    assert_eq!(lost.error(), "driver pod not found");
    world.driver_ends(0);
    assert_eq!(
        (world.state(), world.error()),
        (State::Completed, String::new())
    );
}

#[test]
fn a_long_refusal_beside_a_driver_keeps_what_follows_from_it() {
    let refusal: &'static str = "word ".repeat(1000).leak();
    let mut world = seen_from_outside();
    world.withholds = Some((Kind::Ingress, refusal));
    world.settle();
    let remedy = "…: the application runs without, and the operator tries again";
    let text = world.error();
    assert!(text.ends_with(remedy), "{text}");
    // As a new process tells it.
    world.app["status"]["applicationState"]["errorMessage"] = Value::Null;
    let notes = world.plan().notes;
    let [note] = notes.as_slice() else {
        panic!("{notes:?}")
    };
    assert_eq!(note.reason, "FailedCreateIngress");
    assert!(note.message.ends_with(remedy), "{note:?}");
    // The API server accepts no longer message of an event.
    assert!(note.message.len() <= 1024, "{}", note.message.len());
}

#[test]
fn a_long_message_of_a_waiting_driver_keeps_the_remedy() {
    let mut world = World::new(&[("sparkConfigMap", json!("mine"))]);
    world.settle();
    let since = world.now;
    world.driver().waiting = Some(Waiting {
        reason: "PodNotStarting".to_owned(),
        message: "word ".repeat(1000),
        since,
    });
    world.later(120);
    let text = world.error();
    assert!(
        text.contains("word…; it mounts ConfigMap mine, which must exist; see the events of"),
        "{text}"
    );
}

#[test]
fn the_web_ui_of_a_driver_that_ends_right_after_its_creation_is_recorded() {
    let mut world = World::new(&[]);
    let creates = world.plan().steps.len();
    // The process is killed before it creates the Service of the web UI.
    world.reconcile(Some(creates));
    world.reconcile(None);
    assert_eq!(world.state(), State::Submitted);
    let service = |world: &World| world.status()["driverInfo"]["webUIServiceName"].clone();
    world.driver().phase = PodPhase::Running;
    world.reconcile(None);
    assert_eq!(
        service(&world),
        Value::Null,
        "it is created in this reconcile"
    );
    world.driver_ends(0);
    assert_eq!(world.state(), State::Completed);
    assert_eq!(service(&world), "spark-pi-ui-svc");
}

#[test]
fn what_somebody_removed_beside_a_driver_is_made_again_but_nothing_for_another_operator_s_run() {
    let mut world = seen_from_outside();
    world.settle();
    world.driver_runs();
    let mut before: Vec<_> = world
        .observed
        .objects
        .iter()
        .map(|o| o.name.clone())
        .collect();
    let beside = |o: &Object| {
        matches!(o.kind, Kind::Ingress | Kind::Budget)
            || !o.name.ends_with("-driver-svc") && o.kind == Kind::Service
    };
    world.observed.objects.retain(|o| !beside(o));
    let there = world.observed.objects.len();
    assert_eq!(before.len() - there, 7);
    world.settle();
    let mut now: Vec<_> = world
        .observed
        .objects
        .iter()
        .map(|o| o.name.clone())
        .collect();
    before.sort();
    now.sort();
    assert_eq!(now, before);
    world.observed.objects.retain(|o| !beside(o));
    world.driver().digest = None;
    world.settle();
    assert_eq!(world.observed.objects.len(), there);
}

#[test]
fn a_driver_waits_for_its_network_policy() {
    let mut world = World::new(&[("sparkVersion", json!("4.2.0"))]);
    world.settings.network_policy = Switch::On;
    let steps = world.plan().steps;
    let at = |it: fn(&Step) -> bool| steps.iter().position(it).unwrap();
    let policy = at(|s| matches!(s, Step::Create(m) if m.id().0 == Kind::NetworkPolicy));
    assert!(policy < at(|s| matches!(s, Step::CreateDriver(_))));
}

#[test]
fn b_176_a_driver_whose_record_was_lost_is_taken_for_what_was_submitted() {
    let mut world = World::new(&[]);
    // The whole submission is created; the process is killed before it writes the status; then the spec is edited.
    world.reconcile(Some(usize::MAX));
    let made = world.driver().submission_id.clone();
    world.app["spec"]["arguments"] = json!(["5"]);
    world.app["metadata"]["generation"] = json!(2);
    world.reconcile(None);
    assert_eq!(world.status()["submissionID"], json!(made));
    assert_eq!(world.drivers.len(), 1);
    // The driver's own record reveals the edit.
    world.settle();
    assert_eq!(world.state(), State::Invalidating);
}

#[test]
fn a_driver_that_gets_no_image_fails_its_run_in_time_and_says_why_before() {
    for (reason, limit) in [
        ("InvalidImageName", Some(0)),
        ("ImagePullBackOff", Some(600)),
        ("CreateContainerConfigError", Some(600)),
        ("Unschedulable", None),
    ] {
        let mut world = World::new(&[]);
        world.settle();
        let since = world.now;
        world.driver().waiting = Some(Waiting {
            reason: reason.to_owned(),
            message: "for reasons".to_owned(),
            since,
        });
        world.settle();
        let text = format!("driver pod spark-pi-driver: {reason}: for reasons");
        assert_eq!(world.error(), text);
        if limit != Some(0) {
            assert_eq!(world.state(), State::Submitted);
            assert_eq!(world.status()["waiting"], reason);
            let stalled = &world.status()["conditions"][0];
            assert_eq!(
                (&stalled["type"], &stalled["reason"]),
                (&json!("Stalled"), &json!(reason))
            );
            assert_eq!(stalled["message"], text);
            world.later(599);
            assert_eq!(world.state(), State::Submitted);
        }
        world.later(1);
        let expected = if limit.is_some() {
            State::Failed
        } else {
            State::Submitted
        };
        assert_eq!(world.state(), expected, "{reason}");
        assert_eq!(world.error(), text);
        let waits = &world.status()["waiting"];
        assert_eq!(waits.is_null(), limit.is_some(), "{reason}: {waits}");
        let stalled = &world.status()["conditions"];
        assert_eq!(stalled.is_null(), limit.is_some(), "{reason}: {stalled}");
    }
}

#[test]
fn a_driver_whose_volume_is_missing_says_so_and_fails_its_run_in_time() {
    let volumes = json!([
        {"name": "a", "secret": {"secretName": "key"}}, {"name": "b", "configMap": {"name": "site"}},
        {"name": "c", "configMap": {"name": "may-be", "optional": true}}, {"name": "d", "emptyDir": {}},
    ]);
    let names = ["a", "b", "c", "d"];
    let mounts = names.map(|name| json!({"name": name, "mountPath": format!("/{name}")}));
    let waiting = || {
        let mut world = World::new(&[
            ("volumes", volumes.clone()),
            ("driver/volumeMounts", json!(mounts)),
        ]);
        world.settle();
        let since = world.now;
        world.driver().waiting = Some(Waiting {
            reason: "PodNotStarting".to_owned(),
            message: "no volumes".to_owned(),
            since,
        });
        world.settle();
        world
    };
    let mut world = waiting();
    world.later(119);
    assert_eq!(world.error(), "", "every pod takes some time");
    assert!(world.wake.is_some(), "no watch reports an idle pod");
    world.later(1);
    assert_eq!(
        (world.state(), world.error().as_str()),
        (
            State::Submitted,
            "driver pod spark-pi-driver: PodNotStarting: no volumes; it mounts Secret key, ConfigMap site, which must exist; \
             see the events of `kubectl describe pod spark-pi-driver`"
        )
    );
    world.later(479);
    assert_eq!(world.state(), State::Submitted);
    world.later(1);
    assert_eq!(world.state(), State::Failed);
    assert!(world.error().contains("Secret key"), "{}", world.error());
    assert!(
        world.driver().terminating,
        "else it runs when the Secret comes"
    );
    // The Secret is created in time.
    let mut world = waiting();
    world.later(200);
    world.driver().waiting = None;
    world.settle();
    assert_eq!(world.error(), "");
    // A limit shorter than the ordinary start-up time also applies.
    let mut world = waiting();
    world.rules.most_waiting = 60;
    world.later(60);
    assert_eq!(world.state(), State::Failed);
}

#[test]
fn drivers_are_judged_by_the_container_that_runs_spark() {
    let end = |code| {
        Some(End {
            code,
            reason: "OOMKilled".to_owned(),
            message: "last words".to_owned(),
        })
    };
    for (phase, ended, state, error) in [
        (PodPhase::Running, end(0), "COMPLETED", ""),
        (PodPhase::Failed, end(0), "COMPLETED", ""),
        (PodPhase::Succeeded, None, "COMPLETED", ""),
        (
            PodPhase::Running,
            end(137),
            "FAILED",
            "driver container failed with ExitCode: 137, Reason: OOMKilled\nlast words",
        ),
        (
            PodPhase::Failed,
            None,
            "FAILED",
            "driver container status missing",
        ),
        (PodPhase::Unknown, None, "UNKNOWN", ""),
    ] {
        let mut world = running(&[]);
        world.driver().phase = phase;
        world.driver().end = ended;
        world.settle();
        assert_eq!(world.state().as_str(), state, "{phase:?}");
        assert_eq!(world.error(), error);
    }
    let mut world = running(&[]);
    world.driver().disruption = Some((
        "Evicted".to_owned(),
        "the node was low on memory".to_owned(),
    ));
    world.driver_ends(137);
    assert!(
        world
            .error()
            .contains("Evicted: the node was low on memory"),
        "{}",
        world.error()
    );
}

#[test]
fn f_60_a_driver_whose_node_is_lost_says_so_and_its_loss_counts() {
    let mut world = running(&[on_failure(1)]);
    world.driver().disruption = Some((
        "DeletionByTaintManager".to_owned(),
        "the node does not answer".to_owned(),
    ));
    world.driver().terminating = true;
    world.settle();
    let cause = "the pod was taken away: DeletionByTaintManager: the node does not answer";
    assert_eq!(
        (world.state().as_str(), world.error()),
        ("RUNNING", cause.to_owned())
    );
    assert_eq!(world.drivers.len(), 1, "it may still run");
    world.observed.drivers.clear();
    world.settle();
    assert_eq!(world.status()["failedRuns"], 1);
    assert_eq!(world.error(), format!("driver pod not found; {cause}"));
    world.later(1000);
    assert_eq!(world.drivers.len(), 2);
}

/// An application as the published operator leaves it.
fn left_by_another(state: &str, more: &Value) -> World {
    let mut world = World::new(&[on_failure(3)]);
    let mut status = json!({
        "applicationState": {"state": state}, "driverInfo": {"podName": "spark-pi-driver"},
        "submissionID": "e1c2e1b4-1111-4222-8333-444444444444", "sparkApplicationId": "spark-old",
        "submissionAttempts": 1, "executionAttempts": 1, "lastSubmissionAttemptTime": "2026-05-28T20:26:00Z",
        "terminationTime": null,
    });
    let more = more.as_object().cloned().unwrap_or_default();
    status.as_object_mut().unwrap().extend(more);
    world.app["status"] = status;
    world
}

fn its_driver(world: &mut World, phase: PodPhase) {
    let uid = world.uid();
    world.observed.drivers.push(Driver {
        name: "spark-pi-driver".to_owned(),
        uid,
        submission_id: "e1c2e1b4-1111-4222-8333-444444444444".to_owned(),
        app_id: "spark-old".to_owned(),
        digest: None,
        generation: None,
        restart_request: None,
        phase,
        terminating: false,
        deletion_deadline: None,
        end: None,
        disruption: None,
        waiting: None,
    });
}

#[test]
fn what_another_operator_left_goes_on_where_it_was() {
    // Ended applications are not touched at all.
    for state in ["COMPLETED", "FAILED"] {
        let mut world = left_by_another(state, &json!({"terminationTime": "2026-05-28T20:26:30Z"}));
        // That operator reports FAILED for drivers that still run and have executors.
        its_driver(&mut world, PodPhase::Running);
        world.executor("exec-1", PodPhase::Running);
        let plan = world.plan();
        assert_eq!((plan.status, plan.steps), (None, vec![]), "{state}");
    }
    for state in ["SUBMITTED", "RUNNING", "UNKNOWN"] {
        let mut world = left_by_another(state, &json!({}));
        its_driver(&mut world, PodPhase::Running);
        world.settle();
        assert_eq!(world.state(), State::Running, "{state}");
        assert_eq!(world.drivers.len(), 0, "nothing is submitted again");
        assert_eq!(world.status()["submissionAttempts"], 1);
        world.executor("exec-1", PodPhase::Running);
        world.driver_ends(0);
        assert_eq!(world.state(), State::Completed);
        assert!(
            world.observed.executors[0].terminating,
            "it is ours since then"
        );
    }
    for (state, states) in [
        ("SUCCEEDING", vec!["COMPLETED"]),
        ("FAILING", vec!["PENDING_RERUN", "SUBMITTED"]),
        ("PENDING_RERUN", vec!["SUBMITTED"]),
        ("INVALIDATING", vec!["PENDING_RERUN", "SUBMITTED"]),
        ("RESUMING", vec!["SUBMITTED"]),
        ("SUSPENDED", vec!["RESUMING", "SUBMITTED"]),
        ("SUSPENDING", vec!["SUSPENDED", "RESUMING", "SUBMITTED"]),
        ("SUBMISSION_FAILED", vec!["PENDING_RERUN", "SUBMITTED"]),
    ] {
        let mut world = left_by_another(state, &json!({}));
        if !["SUCCEEDING", "SUBMISSION_FAILED"].contains(&state) {
            its_driver(&mut world, PodPhase::Running);
        }
        world.settle();
        world.pods_go();
        assert_eq!(world.states, states, "{state}");
    }
    let mut world = left_by_another("SUBMISSION_FAILED", &json!({"submissionAttempts": 4}));
    world.settle();
    assert_eq!(world.states, ["FAILED"], "its tries are used up");
    // Runs of the other operator count: two of three retries are used up.
    let mut world = left_by_another("RUNNING", &json!({"executionAttempts": 3}));
    its_driver(&mut world, PodPhase::Running);
    world.settle();
    world.driver_ends(1);
    world.later(1000);
    world.pods_go();
    assert_eq!(world.state(), State::Submitted);
    world.driver_runs();
    world.driver_ends(1);
    assert_eq!(world.state(), State::Failed);
    assert_eq!(world.status()["executionAttempts"], 4);
    let mut world = left_by_another("FAILING", &json!({"executionAttempts": 4}));
    its_driver(&mut world, PodPhase::Failed);
    world.settle();
    assert_eq!(world.states, ["FAILED"], "so are its runs");
}

#[test]
fn an_edit_of_what_another_operator_has_ended_begins_anew_if_it_was_seen() {
    let ended = json!({"terminationTime": "2026-05-28T20:26:30Z"});
    let of_another_version = json!({
        "terminationTime": "2026-05-28T20:26:30Z", "specDigest": "1-0123", "observedGeneration": 1,
    });
    for status in [&ended, &of_another_version] {
        for state in ["COMPLETED", "FAILED"] {
            // The edit happened while no operator ran, so the previous spec is unknown.
            let mut world = left_by_another(state, status);
            world.edit("arguments", json!(["2"]));
            assert_eq!(world.states, [""; 0], "{state}");
            // The edit happens while the operator runs.
            let mut world = left_by_another(state, status);
            world.observed.first = Some(spec_digest(&world.app["spec"]));
            world.settle();
            world.edit("timeToLiveSeconds", json!(1_000_000_000));
            assert_eq!(world.states, [""; 0], "{state}");
            let mut world = left_by_another(state, status);
            world.observed.first = Some(spec_digest(&world.app["spec"]));
            world.edit("arguments", json!(["2"]));
            assert_eq!(
                world.states,
                ["INVALIDATING", "PENDING_RERUN", "SUBMITTED"],
                "{state}"
            );
            world.driver_runs();
            world.driver_ends(0);
            world.settle();
            assert_eq!(world.states.len(), 6, "once: {:?}", world.states);
        }
    }
}

#[test]
fn an_unknown_state_is_left_alone() {
    let mut world = left_by_another("REHEARSING", &json!({}));
    its_driver(&mut world, PodPhase::Running);
    let plan = world.plan();
    assert_eq!((plan.status, plan.steps), (None, vec![]));
}

#[test]
fn an_ended_application_gives_back_what_holds_resources() {
    let mut world = running(&[]);
    world.executor("exec-1", PodPhase::Running);
    world.executor("exec-2", PodPhase::Succeeded);
    let id = world.driver().submission_id.clone();
    for (n, kind) in [Kind::Claim, Kind::VolcanoGroup, Kind::Budget]
        .into_iter()
        .enumerate()
    {
        let uid = world.uid();
        world.observed.objects.push(Object {
            kind,
            name: n.to_string(),
            uid,
            submission_id: id.clone(),
            terminating: false,
            address: None,
            placement: None,
        });
    }
    world.driver_ends(0);
    assert_eq!(world.state(), State::Completed);
    assert_eq!(world.observed.objects, []);
    assert!(!world.driver().terminating, "it has the log");
    assert!(world.observed.executors[0].terminating && !world.observed.executors[1].terminating);
}

/// A pod that a user created: it claims everything that a driver has, and that it has failed.
fn forged(world: &mut World, name: &str) -> Uid {
    let uid = world.uid();
    let status = world.status();
    let id = status["submissionID"].as_str().unwrap_or("any").to_owned();
    world.observed.drivers.insert(
        0,
        Driver {
            name: name.to_owned(),
            uid,
            submission_id: id,
            app_id: "spark-forged".to_owned(),
            digest: Some(spec_digest(&world.app["spec"])),
            generation: None,
            restart_request: None,
            phase: PodPhase::Failed,
            terminating: false,
            deletion_deadline: None,
            end: None,
            disruption: None,
            waiting: None,
        },
    );
    uid
}

fn is_left_alone(world: &World, forged: Uid) -> bool {
    let mut drivers = world.observed.drivers.iter();
    drivers.any(|d| d.uid == forged && !d.terminating)
}

#[test]
fn mt_53_a_pod_with_another_name_is_not_taken_for_what_was_submitted() {
    let mut world = World::new(&[]);
    let pod = forged(&mut world, "forged");
    world.settle();
    assert_eq!((world.state(), world.drivers.len()), (State::Submitted, 1));
    assert_eq!(world.status()["driverInfo"]["podName"], "spark-pi-driver");
    assert!(is_left_alone(&world, pod));
}

#[test]
fn mt_53_a_pod_with_another_name_neither_ends_a_run_nor_keeps_it_from_ending() {
    for named in [&[][..], &[("driver/podName", json!("mine"))]] {
        let mut world = running(named);
        let pod = forged(&mut world, "forged");
        world.settle();
        assert_eq!(world.state(), State::Running);
        world.edit("suspend", json!(true));
        world.pods_go();
        assert_eq!(world.state(), State::Suspended);
        assert!(is_left_alone(&world, pod));
        world.edit("suspend", json!(false));
        assert_eq!((world.state(), world.drivers.len()), (State::Submitted, 2));
        world.driver_runs();
        world.driver_ends(0);
        assert_eq!(world.state(), State::Completed);
        assert!(is_left_alone(&world, pod));
    }
}

#[test]
fn mt_53_a_pod_of_another_submission_is_no_driver_whatever_its_name() {
    let mut world = running(&[]);
    // The driver is gone, and a foreign pod has its name.
    world.driver().phase = PodPhase::Succeeded;
    world.driver().submission_id = "another".to_owned();
    world.settle();
    assert_eq!(world.error(), "driver pod not found");
}

#[test]
fn mt_53_a_pod_that_claims_to_be_a_driver_is_told_of_by_its_name() {
    let mut world = running(&[]);
    assert_eq!(world.plan().forged, []);
    let pod = forged(&mut world, "forged");
    let told = world.plan().forged;
    assert_eq!(told.len(), 1);
    assert_eq!(
        (told[0].uid, told[0].note.reason.as_str()),
        (pod, "UnknownDriverPod")
    );
    let text = &told[0].note.message;
    assert!(
        text.contains("pod forged ") && text.contains("spark-pi-driver"),
        "{text}"
    );
}

#[test]
fn a_former_driver_goes_also_where_the_next_one_is_to_have_another_name() {
    let mut world = running(&[on_failure(1)]);
    world.driver_ends(3);
    world.now = world
        .now
        .checked_add(SignedDuration::from_secs(10))
        .unwrap();
    while world.state() != State::PendingRerun {
        world.reconcile(None);
    }
    world.edit("driver/podName", json!("mine"));
    assert!(world.driver().terminating);
    world.pods_go();
    assert_eq!((world.state(), world.drivers.len()), (State::Submitted, 2));
    assert_eq!(world.driver().name, "mine");
}
