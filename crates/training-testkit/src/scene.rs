//! A world in the vocabulary of the operators' test tables, by pod name.

// A panic here fails a test.
#![allow(clippy::panic, clippy::unwrap_used, clippy::missing_panics_doc)]

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use training_core::{
    DurableState, Lifecycle, Note, Observed, PodPhase, Severity, Step, Stored as _, plan,
};

use crate::builders::{Job, Kind};
use crate::world::{Move, World};

/// The job `pt` of this kind with one master and this number of workers, or with one worker more for a kind without masters, in
/// namespace `ns1`, not yet seen by an operator.
pub fn job(kind: &Kind, workers: u32) -> Job {
    placed(kind.small_job("pt", workers))
}

/// A job with the metadata that the API server sets.
pub fn placed(job: Job) -> Job {
    job.set("/metadata/namespace", "ns1")
        .set("/metadata/uid", "00000000-0000-0000-0000-000000000007")
        .set("/spec/runPolicy", json!({}))
}

/// The pods and services of a job's first plan, in its order.
pub fn first_objects<F: Lifecycle>(framework: &F, job: &F::Job) -> Vec<Value> {
    let object = |step| match step {
        Step::CreatePod(pod) => json!(pod),
        Step::CreateService(service) => json!(service),
        other => panic!("{other:?}"),
    };
    first_steps(framework, job).map(object).collect()
}

/// The pods of a job's first plan.
pub fn first_pods<F: Lifecycle>(framework: &F, job: &F::Job) -> Vec<Pod> {
    let pod = |step| match step {
        Step::CreatePod(pod) => Some(*pod),
        _ => None,
    };
    first_steps(framework, job).filter_map(pod).collect()
}

fn first_steps<F: Lifecycle>(framework: &F, job: &F::Job) -> impl Iterator<Item = Step> {
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    let plan = plan(framework, job, &Observed::default(), now);
    plan.steps.into_iter()
}

/// Objects by `Kind name`.
pub fn by_name(objects: Vec<Value>) -> BTreeMap<String, Value> {
    objects.into_iter().map(|o| (title(&o), o)).collect()
}

/// Returns `Kind name`.
pub fn title(object: &Value) -> String {
    let name = object["metadata"]["name"].as_str().unwrap();
    format!("{} {name}", object["kind"].as_str().unwrap())
}

/// What the tables do to a world, by pod name.
pub trait Scene {
    /// Reconciles until the operator has nothing to write.
    fn settle(&mut self);
    /// Creates and runs the job's first pods until they are ready and the operator has seen it.
    #[must_use]
    fn started(self) -> Self;
    /// Makes these pods running and ready.
    fn run(&mut self, pods: &[&str]);
    /// Makes all pods running and ready.
    fn run_all(&mut self);
    /// Makes a pod succeed.
    fn finish(&mut self, pod: &str);
    /// Fails a pod: its main container exits with this code.
    fn fail(&mut self, pod: &str, code: i32);
    /// The conditions as `Type=Status`.
    fn conditions(&self) -> Vec<String>;
    /// The status as JSON.
    fn status_json(&self) -> Value;
    /// The events so far as `Severity Reason: message`.
    fn events(&self) -> Vec<String>;
    /// The names of the pods.
    fn pod_names(&self) -> Vec<&str>;
    /// The job's durable state.
    fn durable_state(&self) -> DurableState;
}

impl<F: Lifecycle> Scene for World<F> {
    fn settle(&mut self) {
        self.reconciles(20);
        assert_eq!(self.breaches, Vec::<String>::new());
    }

    fn started(mut self) -> Self {
        self.settle();
        self.run_all();
        self.settle();
        // A Job makes its pod, which runs.
        self.happen(Move::Batch(1));
        self.happen(Move::Batch(3));
        self.settle();
        self
    }

    fn run(&mut self, pods: &[&str]) {
        for pod in pods {
            assert!(self.pod(pod).is_some(), "no pod {pod}");
            self.change(pod, |p| {
                p.phase = PodPhase::Running;
                p.ready = true;
            });
        }
    }

    fn run_all(&mut self) {
        let names: Vec<String> = self.pods().map(|(n, _)| n.to_owned()).collect();
        self.run(&names.iter().map(String::as_str).collect::<Vec<_>>());
    }

    fn finish(&mut self, pod: &str) {
        self.end(pod, PodPhase::Succeeded, Some(0));
    }

    fn fail(&mut self, pod: &str, code: i32) {
        self.end(pod, PodPhase::Failed, Some(code));
    }

    fn conditions(&self) -> Vec<String> {
        let status = self.status();
        status
            .conditions
            .iter()
            .map(|c| format!("{}={}", c.type_, c.status))
            .collect()
    }

    fn status_json(&self) -> Value {
        serde_json::to_value(self.job().and_then(|j| j.status().cloned())).unwrap_or_default()
    }

    fn events(&self) -> Vec<String> {
        let line = |n: &Note| {
            let severity = match n.severity {
                Severity::Normal => "Normal",
                Severity::Warning => "Warning",
            };
            format!("{severity} {}: {}", n.reason, n.message)
        };
        self.notes.iter().map(line).collect()
    }

    fn pod_names(&self) -> Vec<&str> {
        self.pods().map(|(n, _)| n).collect()
    }

    fn durable_state(&self) -> DurableState {
        self.durable_state()
    }
}
