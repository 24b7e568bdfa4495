//! Reports about jobs in states that the operators' own plans produce.

mod happened;
mod held;
mod read;
mod rendered;
mod said;
mod spark;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use training_core::{Lifecycle, PodView, Step};
use training_runtime::feed::slim::any_pod_view;
use training_testkit::builders::{self, Kind};
use training_testkit::scene;
use training_testkit::world::World;

use crate::job::{Job, members};
use crate::kinds;
use crate::out::Line;
use crate::why::{Facts, Report, report};

/// Parses a job of any kind.
pub fn job(value: Value) -> Job {
    let kind = kinds::of_manifest(&value).unwrap();
    Job { kind, value }
}

/// The texts of lines.
pub fn texts(lines: &[Line]) -> Vec<&str> {
    lines.iter().map(|line| line.text.as_str()).collect()
}

/// The plugin's page. Its outputs are those of tests.
const PAGE: &str = include_str!("../../../docs/kubectl.md");

/// Checks that the page shows this output. There the job `pt` is called `ddp`.
pub fn assert_documented<T: AsRef<str>>(command: &str, output: &[T]) {
    let mut block = format!("$ kubectl trainyard {command}\n");
    for line in output {
        let line = line.as_ref();
        let line = match line.strip_prefix("pt ") {
            Some(rest) => format!("ddp {rest}"),
            None => line.to_owned(),
        };
        let line = line.replace("pt-", "ddp-").replace(" pt ", " ddp ");
        block += line.replace("/pt ", "/ddp ").trim_end();
        block.push('\n');
    }
    block += "```";
    assert!(PAGE.contains(&block), "docs/kubectl.md lacks\n{block}");
}

/// An operator, its job `pt` in `ns1`, and the job's pods with a status as from a kubelet.
pub struct Scene<F: Lifecycle> {
    /// The operator.
    pub world: World<F>,
    pods: BTreeMap<String, Value>,
}

impl<F: Lifecycle + Default> Scene<F> {
    /// Creates a job and its pods.
    pub fn new(kind: &Kind, change: impl FnOnce(builders::Job) -> builders::Job) -> Self {
        let manifest = change(scene::job(kind, 2)).build();
        let mut scene = Self {
            world: World::new(F::default(), serde_json::from_value(manifest).unwrap()),
            pods: BTreeMap::new(),
        };
        scene.settle();
        scene
    }

    /// Reconciles until the plan is idle.
    pub fn settle(&mut self) {
        for _ in 0..20 {
            self.world.view_all();
            let plan = self.world.plan();
            for step in &plan.steps {
                if let Step::CreatePod(pod) = step {
                    let name = pod.metadata.name.clone().unwrap();
                    self.pods.insert(name, json!(pod));
                }
            }
            if plan.is_idle() {
                break;
            }
            self.world.reconcile();
        }
    }

    /// Sets a pod's status. The operator has not reconciled it yet.
    pub fn set_status(&mut self, pod: &str, status: Value) {
        let object = self.pods.get_mut(pod).unwrap();
        object["status"] = status;
        object["spec"]["nodeName"] = json!("n1");
        let view = any_pod_view(
            &serde_json::from_value(object.clone()).unwrap(),
            F::CONTAINER,
        );
        self.world.change(pod, |old| {
            *old = PodView {
                uid: old.uid,
                version: old.version,
                role: old.role.clone(),
                index: old.index,
                attempt: old.attempt,
                ..view
            };
        });
    }

    /// Sets pods to running and ready.
    pub fn run(&mut self, pods: &[&str]) {
        let at = self.at(0);
        let container = container::<F>();
        for pod in pods {
            self.set_status(pod, json!({
                "phase": "Running", "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": at }],
                "containerStatuses": [{ "name": container, "image": "", "imageID": "", "ready": true, "restartCount": 0,
                    "state": { "running": { "startedAt": at } } }],
            }));
        }
    }

    /// Sets a pod to failed.
    pub fn fail(&mut self, pod: &str, code: i32, reason: &str, message: &str) {
        let ended = json!({ "exitCode": code, "reason": reason, "message": message, "finishedAt": self.at(0) });
        self.set_status(pod, json!({
            "phase": "Failed",
            "containerStatuses": [{ "name": container::<F>(), "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": { "terminated": ended } }],
        }));
    }

    /// The current time plus seconds.
    pub fn at(&self, seconds: i64) -> String {
        (self.world.now + SignedDuration::from_secs(seconds)).to_string()
    }

    /// The stored job.
    pub fn job(&self) -> Job {
        job(serde_json::to_value(self.world.job().unwrap()).unwrap())
    }

    /// The report about the job.
    pub fn report(&self) -> Report {
        report_for(
            &self.job(),
            self.pods.values().cloned(),
            &self.events(),
            self.world.now,
        )
    }

    /// The events that the operator recorded, all at the current time.
    pub fn events(&self) -> Vec<Event> {
        let notes = self.world.notes.iter();
        let event = |note: &training_core::Note| {
            let value = json!({
                "metadata": {}, "involvedObject": {}, "type": note.severity.as_str(), "reason": note.reason,
                "message": note.message, "firstTimestamp": self.at(0), "lastTimestamp": self.at(0),
            });
            serde_json::from_value(value).unwrap()
        };
        notes.map(event).collect()
    }
}

fn container<F: Lifecycle>() -> &'static str {
    if F::CONTAINER.is_empty() {
        "any"
    } else {
        F::CONTAINER
    }
}

/// Builds a report from these pods and events.
pub fn report_for(
    job: &Job,
    pods: impl IntoIterator<Item = Value>,
    events: &[Event],
    now: Timestamp,
) -> Report {
    let pods: Vec<Pod> = pods
        .into_iter()
        .map(|pod| serde_json::from_value(pod).unwrap())
        .collect();
    report(&Facts {
        job,
        pods: &members(job, pods),
        events,
        groups: &[],
        workload: None,
        unreadable: &[],
        now,
    })
}
