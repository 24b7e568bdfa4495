//! Reports about applications in states that their operator's plan produces.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use spark_operator::lifecycle::observed::Observed;
use spark_operator::lifecycle::slim::Pod;
use spark_operator::lifecycle::step::Step;
use spark_operator::lifecycle::{self, PlanInput, Rules};
use spark_operator::{Settings, SparkApplication, digest};
use training_testkit::builders::application;

use super::{assert_documented, job, report_for, texts};
use crate::job::Job;

/// An operator, its application `pi`, and the driver pod.
struct Scene {
    app: SparkApplication,
    digest: digest::SpecDigest,
    driver: Option<Value>,
    now: Timestamp,
}

impl Scene {
    fn new(change: impl FnOnce(&mut Value)) -> Self {
        let mut app = application("pi");
        app["metadata"]["namespace"] = json!("ns1");
        app["metadata"]["uid"] = json!("00000000-0000-0000-0000-000000000007");
        change(&mut app);
        let mut scene = Self {
            digest: digest::spec_digest(&app["spec"]),
            app: serde_json::from_value(app).unwrap(),
            driver: None,
            now: "2026-01-01T12:00:00Z".parse().unwrap(),
        };
        scene.settle();
        scene
    }

    fn settle(&mut self) {
        for _ in 0..10 {
            let driver = self
                .driver
                .clone()
                .map(|d| serde_json::from_value::<Pod>(d).unwrap());
            let observed = Observed {
                drivers: driver.and_then(|d| d.driver()).into_iter().collect(),
                ..Observed::default()
            };
            let plan = lifecycle::plan(PlanInput {
                app: &self.app,
                digest: &self.digest,
                observed: &observed,
                settings: &Settings::default(),
                rules: &Rules::default(),
                now: self.now,
            });
            let mut changed = plan.status.is_some();
            for step in plan.steps {
                match step {
                    Step::CreateDriver(pod) => {
                        let mut pod = json!(pod);
                        pod["metadata"]["uid"] = json!("00000000-0000-0000-0000-000000000008");
                        self.driver = Some(pod);
                        changed = true;
                    }
                    Step::DeletePod { .. } => {
                        self.driver = None;
                        changed = true;
                    }
                    _ => {}
                }
            }
            if let Some(write) = plan.status {
                self.app.status = Some(write.next);
            }
            if !changed {
                break;
            }
        }
    }

    fn set_status(&mut self, status: Value) {
        self.driver.as_mut().unwrap()["status"] = status;
        self.settle();
    }

    fn tick(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
    }

    fn job(&self) -> Job {
        job(serde_json::to_value(&self.app).unwrap())
    }

    fn lines(&self) -> Vec<String> {
        let lines = report_for(&self.job(), self.driver.clone(), &[], self.now).lines();
        texts(&lines).into_iter().map(str::to_owned).collect()
    }
}

fn ended(code: i32, message: &str) -> Value {
    let ended = json!({ "exitCode": code, "reason": "Error", "message": message, "finishedAt": "2026-01-01T12:00:00Z" });
    json!({ "phase": if code == 0 { "Succeeded" } else { "Failed" }, "containerStatuses": [{
        "name": "spark-kubernetes-driver", "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": { "terminated": ended },
    }] })
}

#[test]
fn an_unschedulable_driver_has_a_remedy() {
    let mut scene = Scene::new(|_| ());
    scene.set_status(json!({ "phase": "Pending", "conditions": [{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available",
        "lastTransitionTime": "2026-01-01T12:00:00Z",
    }] }));
    scene.tick(60);
    assert_eq!(
        scene.lines(),
        [
            "pi  SparkApplication  SUBMITTED 60s  executors 0/2  Unschedulable",
            "  x driver pod pi-driver: Unschedulable: 0/1 nodes are available",
            "  > Add the missing resources, and the job continues automatically; or request less (resources, node selectors, affinity, tolerations), apply the job and restart it",
        ]
    );
}

#[test]
fn a_failed_run_shows_its_termination_message_and_the_next_attempt() {
    let mut scene = Scene::new(|app| {
        app["spec"]["restartPolicy"] =
            json!({ "type": "OnFailure", "onFailureRetries": 2, "onFailureRetryInterval": 30 });
    });
    scene.set_status(json!({ "phase": "Running" }));
    scene.set_status(ended(1, "java.lang.OutOfMemoryError: Java heap space"));
    scene.tick(10);
    assert_eq!(
        scene.lines(),
        [
            "pi  SparkApplication  FAILING 10s  executors 0/2  driver container failed with ExitCode: 1, Reason: Error: java.lang.OutOfMemoryError: Java heap space",
            "  x java.lang.OutOfMemoryError: Java heap space",
            "  last failure 12:00:00Z  pi-driver  exit code 1: the program reported an error; its log says which (container spark-kubernetes-driver)",
            "    termination message: java.lang.OutOfMemoryError: Java heap space",
            "  next: the next attempt starts at 12:00:30Z, in 20s",
        ]
    );
    assert_documented("why pi", &scene.lines());
}

#[test]
fn a_rejection_by_the_operator_is_the_cause() {
    let scene = Scene::new(|app| app["spec"]["mainApplicationFile"] = json!("file:///pi.py"));
    let lines = scene.lines();
    assert!(
        lines[0].starts_with("pi  SparkApplication  FAILED 0s  spec.mainApplicationFile"),
        "{lines:?}"
    );
}

#[test]
fn a_completed_application_shows_its_ttl() {
    let mut scene = Scene::new(|app| app["spec"]["timeToLiveSeconds"] = json!(120));
    scene.set_status(json!({ "phase": "Running" }));
    scene.set_status(ended(0, ""));
    assert_eq!(
        scene.lines(),
        [
            "pi  SparkApplication  COMPLETED 0s  executors 0/2",
            "  next: the application is deleted at 12:02:00Z, in 2m (timeToLiveSeconds)",
        ]
    );
}

#[test]
fn a_suspended_application_and_one_without_a_status() {
    let scene = Scene::new(|app| app["spec"]["suspend"] = json!(true));
    assert_eq!(
        scene.lines(),
        [
            "pi  SparkApplication  SUSPENDED  suspend: true in its spec",
            "  > kubectl trainyard resume pi",
        ]
    );
    let mut new = scene.job();
    new.value["status"] = Value::Null;
    new.value["metadata"]["creationTimestamp"] = json!("2026-01-01T11:59:00Z");
    let line = report_for(&new, [], &[], scene.now).headline().text;
    assert_eq!(
        line,
        "pi  SparkApplication  NO STATUS 60s  no operator has reconciled it"
    );
}

#[test]
fn a_schedule_shows_its_next_run_or_why_it_has_none() {
    let of = |status: Value| {
        let schedule = json!({
            "apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "ScheduledSparkApplication",
            "metadata": { "name": "nightly", "namespace": "ns1" }, "spec": {}, "status": status,
        });
        let now = "2026-01-01T12:00:00Z".parse().unwrap();
        let lines = report_for(&job(schedule), [], &[], now).lines();
        texts(&lines)
            .into_iter()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let next = json!({ "scheduleState": "Scheduled", "nextRun": "2026-01-01T13:00:00Z" });
    assert_eq!(
        of(next),
        [
            "nightly  ScheduledSparkApplication  SCHEDULED",
            "  next: the next run starts at 13:00:00Z, in 60m",
        ]
    );
    let wrong = json!({ "scheduleState": "FailedValidation", "reason": "schedule: five fields" });
    assert_eq!(
        of(wrong),
        [
            "nightly  ScheduledSparkApplication  FAILEDVALIDATION  schedule: five fields",
            "  > Fix the spec; the operator reconciles it at once",
        ]
    );
}
