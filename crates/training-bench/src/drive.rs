//! The status driver: plays scheduler and kubelet for every pod of a namespace.
//!
//! All pods of a job start to run in one burst, a while after the last of them was seen, and succeed in one burst a while after
//! that. It watches metadata alone: what state a pod is in it knows by itself.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Result;
use futures::future::try_join_all;
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::spawn_local;
use tokio::time::sleep;
use training_testkit::builders::Kind;

use crate::bodies::{PODS, now};
use crate::child;
use crate::floor::{Event, version};
use crate::http::{Api, Ask, CORE, METADATA, Watch};

/// Patches under way at once.
const IN_FLIGHT: usize = 32;
/// The label that tells the job's pods from others.
const JOB_NAME: &str = "training.kubeflow.org/job-name";

/// How the pods live.
#[derive(Clone, Copy, Debug)]
pub struct Script {
    /// From the last pod seen to all running.
    pub run_after: Duration,
    /// From all running to all succeeded.
    pub succeed_after: Duration,
    /// Running pods stay so until the driver is told `go`.
    pub hold: bool,
}

#[derive(Deserialize)]
struct Slim {
    metadata: Meta,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Meta {
    name: String,
    uid: String,
    #[serde(rename = "resourceVersion")]
    version: String,
    labels: HashMap<String, String>,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Pending,
    Running,
    Succeeded,
}

struct Pod {
    uid: String,
    state: State,
}

/// The pods of one job by name.
#[derive(Default)]
struct Group {
    pods: HashMap<String, Pod>,
    /// A task looks after it.
    busy: bool,
}

struct Driver {
    api: Api,
    kind: Kind,
    namespace: String,
    script: Script,
    hold: Cell<bool>,
    groups: RefCell<HashMap<String, Group>>,
    gate: Semaphore,
}

/// Runs until told to end.
pub async fn run(kubeconfig: &Path, kind: Kind, namespace: &str, script: Script) -> Result<()> {
    let mut told = child::told();
    let driver = Rc::new(Driver {
        api: Api::new(kubeconfig).await?,
        kind,
        namespace: namespace.to_owned(),
        script,
        hold: Cell::new(script.hold),
        groups: RefCell::default(),
        gate: Semaphore::new(IN_FLIGHT),
    });
    let path = format!("{CORE}/namespaces/{namespace}/pods");
    let from = version(&driver.api, &path).await?;
    let selector = "&labelSelector=training.kubeflow.org%2Fjob-name";
    let mut events = driver.api.watch(&path, selector, &from, METADATA).await?;
    child::say("ready")?;
    let (failed, mut fault) = tokio::sync::mpsc::unbounded_channel();
    let look_after = |job: String| {
        let (driver, failed) = (Rc::clone(&driver), failed.clone());
        spawn_local(async move {
            if let Err(error) = driver.look_after(job).await {
                let _ = failed.send(error);
            }
        });
    };
    loop {
        tokio::select! {
            line = events.next() => {
                driver.seen(&line?, &mut events)?.into_iter().for_each(&look_after);
            }
            Some(_) = told.recv() => {
                driver.hold.set(false);
                let jobs: Vec<String> = driver.groups.borrow().keys().cloned().collect();
                jobs.into_iter().filter(|job| driver.claim(job)).for_each(&look_after);
            }
            Some(error) = fault.recv() => return Err(error),
        }
    }
}

impl Driver {
    /// Folds an event; answers the job that somebody must look after now.
    fn seen(&self, line: &[u8], watch: &mut Watch) -> Result<Option<String>> {
        let event: Event<Slim> = serde_json::from_slice(line)?;
        anyhow::ensure!(event.kind != "ERROR", "the watch of pods failed");
        let meta = event.object.metadata;
        watch.seen(&meta.version);
        let Some(job) = meta.labels.get(JOB_NAME) else {
            return Ok(None);
        };
        {
            let mut groups = self.groups.borrow_mut();
            let group = groups.entry(job.clone()).or_default();
            let known = group
                .pods
                .get(&meta.name)
                .is_some_and(|pod| pod.uid == meta.uid);
            match event.kind.as_str() {
                "DELETED" if known => {
                    group.pods.remove(&meta.name);
                }
                "ADDED" | "MODIFIED" if !known => {
                    let pod = Pod {
                        uid: meta.uid,
                        state: State::Pending,
                    };
                    group.pods.insert(meta.name, pod);
                }
                _ => return Ok(None),
            }
        }
        Ok(self.claim(job).then(|| job.clone()))
    }

    /// True if there is something to do for a job and nobody does it yet.
    fn claim(&self, job: &str) -> bool {
        let mut groups = self.groups.borrow_mut();
        let Some(group) = groups.get_mut(job) else {
            return false;
        };
        let whole = group.pods.len() == PODS;
        let claimed = whole && !group.busy && self.due(group).is_some();
        group.busy |= claimed;
        claimed
    }

    /// The state that the pods of a job should come to next.
    fn due(&self, group: &Group) -> Option<State> {
        let any = |state: State| group.pods.values().any(|pod| pod.state == state);
        if any(State::Pending) {
            Some(State::Running)
        } else if any(State::Running) && !self.hold.get() {
            Some(State::Succeeded)
        } else {
            None
        }
    }

    async fn look_after(self: Rc<Self>, job: String) -> Result<()> {
        loop {
            let next = {
                let mut groups = self.groups.borrow_mut();
                let Some(group) = groups.get_mut(&job) else {
                    return Ok(());
                };
                let next = if group.pods.len() == PODS {
                    self.due(group)
                } else {
                    None
                };
                group.busy = next.is_some();
                next
            };
            let Some(next) = next else { return Ok(()) };
            let (before, wait) = match next {
                State::Running => (State::Pending, self.script.run_after),
                State::Pending | State::Succeeded => (State::Running, self.script.succeed_after),
            };
            sleep(wait).await;
            let burst: Vec<(String, String)> = {
                let mut groups = self.groups.borrow_mut();
                let pods = groups.get_mut(&job).map(|group| &mut group.pods);
                let due = pods
                    .into_iter()
                    .flatten()
                    .filter(|(_, pod)| pod.state == before);
                let mut burst: Vec<_> = due
                    .map(|(name, pod)| {
                        pod.state = next;
                        (name.clone(), pod.uid.clone())
                    })
                    .collect();
                burst.sort();
                burst
            };
            try_join_all(burst.iter().map(|(name, uid)| self.put(name, uid, next))).await?;
        }
    }

    async fn put(&self, name: &str, uid: &str, state: State) -> Result<()> {
        let _place = self.gate.acquire().await?;
        let path = format!("{CORE}/namespaces/{}/pods/{name}/status", self.namespace);
        let body = status(
            self.kind.container,
            uid,
            if state == State::Running {
                "Running"
            } else {
                "Succeeded"
            },
            0,
        );
        let (code, answer) = self
            .api
            .send(Method::PATCH, &path, Ask::patch(body))
            .await?;
        // Replaced meanwhile: its successor gets its own turn.
        let gone = [StatusCode::NOT_FOUND, StatusCode::CONFLICT].contains(&code);
        anyhow::ensure!(
            code.is_success() || gone,
            "{name}: {code}: {}",
            String::from_utf8_lossy(&answer)
        );
        Ok(())
    }
}

/// What a kubelet says of a pod with one container in a phase; a failed one ended with this code.
pub fn status(container: &str, uid: &str, phase: &str, exit_code: i32) -> String {
    let time = now();
    let ready = if phase == "Running" { "True" } else { "False" };
    let state: Value = match phase {
        "Running" => json!({ "running": { "startedAt": time } }),
        _ => json!({ "terminated": {
            "exitCode": exit_code,
            "reason": if exit_code == 0 { "Completed" } else { "Error" },
            "startedAt": time, "finishedAt": time,
        }}),
    };
    let condition = |kind: &str, status: &str| json!({ "type": kind, "status": status, "lastTransitionTime": time });
    json!({
        "metadata": { "uid": uid },
        "status": {
            "phase": phase,
            "startTime": time,
            "podIP": "10.128.0.1",
            "podIPs": [{ "ip": "10.128.0.1" }],
            "conditions": [
                condition("PodReadyToStartContainers", ready),
                condition("Initialized", "True"),
                condition("Ready", ready),
                condition("ContainersReady", ready),
                condition("PodScheduled", "True"),
            ],
            "containerStatuses": [{
                "name": container, "image": "trainyard.test/train:1", "imageID": "",
                "ready": phase == "Running", "started": phase == "Running", "restartCount": 0,
                "state": state, "lastState": {},
            }],
        },
    })
    .to_string()
}
