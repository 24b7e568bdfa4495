//! The status driver: simulates scheduler and kubelet for every pod of a namespace, and the Job controller for launchers.
//!
//! All pods of a job start to run in one burst after the last of them was seen and a delay, and succeed in one burst after another
//! delay. It watches only metadata, since it sets the pods' states itself.
//!
//! It creates the pod of a launcher's Job as soon as it sees the Job, and writes into the Job's status that the pod exists, is ready,
//! and has succeeded. Only that pod ends; workers run until they are deleted. The real controller would do the same for both
//! clients, but it syncs its pods only after a second and sends at most twenty requests a second, which would hide any difference.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Result;
use futures::future::{LocalBoxFuture, try_join_all};
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::spawn_local;
use tokio::time::sleep;
use training_testkit::builders::Kind;

use crate::bodies::{Resource, now};
use crate::child;
use crate::floor::{Event, launchers, next_of, version};
use crate::http::{Api, Ask, METADATA, Watch};
use crate::kind;

/// The maximum number of parallel patches.
const IN_FLIGHT: usize = 32;
/// The label with the job's name on pods of kinds that have replicas.
pub const JOB_NAME: &str = "training.kubeflow.org/job-name";
/// The label that distinguishes a launcher's pod from workers.
pub const JOB_ROLE: &str = "training.kubeflow.org/job-role";

/// The timing of the pods' life cycle.
#[derive(Clone, Copy, Debug)]
pub struct Script {
    /// The delay between the last pod seen and all running.
    pub run_after: Duration,
    /// The delay between all running and all succeeded.
    pub succeed_after: Duration,
    /// Whether pods run until the driver receives `go`.
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
    /// Whether it runs until it is deleted.
    serves: bool,
}

/// The pods of one job, by name.
#[derive(Default)]
struct Group {
    pods: HashMap<String, Pod>,
    /// The name of the launcher's Job.
    launcher: Option<String>,
    /// Whether a task handles it.
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

/// Runs until standard input ends.
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
    let path = Resource::Pod.path(namespace);
    let from = version(&driver.api, &path).await?;
    let selector = kind::of_jobs(&kind);
    let mut events = driver.api.watch(&path, &selector, &from, METADATA).await?;
    let mut launchers = launchers(&driver.api, &kind, namespace).await?;
    child::say("ready")?;
    let (failed, mut fault) = tokio::sync::mpsc::unbounded_channel();
    let run = |work: LocalBoxFuture<'static, Result<()>>| {
        let failed = failed.clone();
        spawn_local(async move {
            if let Err(error) = work.await {
                let _ = failed.send(error);
            }
        });
    };
    let look_after = |job: String| run(Box::pin(Rc::clone(&driver).look_after(job)));
    loop {
        tokio::select! {
            line = events.next() => {
                driver.seen(&line?, &mut events)?.into_iter().for_each(&look_after);
            }
            line = next_of(&mut launchers) => {
                let new = driver.launcher(&line?, launchers.as_mut())?;
                if let Some(batch) = new {
                    run(Box::pin(Rc::clone(&driver).launch(batch)));
                }
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

impl Pod {
    /// Returns whether this is its next state.
    fn goes_to(&self, next: State) -> bool {
        match next {
            State::Pending => false,
            State::Running => self.state == State::Pending,
            State::Succeeded => self.state == State::Running && !self.serves,
        }
    }
}

impl Driver {
    /// Handles a line of the Jobs' watch; returns a new Job.
    fn launcher(&self, line: &[u8], watch: Option<&mut Watch>) -> Result<Option<Value>> {
        let event: Event<Value> = serde_json::from_slice(line)?;
        anyhow::ensure!(event.kind != "ERROR", "the watch of Jobs failed");
        let batch = event.object;
        let meta = &batch["metadata"];
        if let (Some(watch), Some(version)) = (watch, meta["resourceVersion"].as_str()) {
            watch.seen(version);
        }
        let job = &batch["spec"]["template"]["metadata"]["labels"][JOB_NAME];
        let (Some(job), Some(name)) = (job.as_str(), meta["name"].as_str()) else {
            return Ok(None);
        };
        if event.kind != "ADDED" {
            return Ok(None);
        }
        let mut groups = self.groups.borrow_mut();
        groups.entry(job.to_owned()).or_default().launcher = Some(name.to_owned());
        Ok(Some(batch))
    }

    /// Creates the pod of a new Job.
    async fn launch(self: Rc<Self>, batch: Value) -> Result<()> {
        let name = batch["metadata"]["name"].as_str().unwrap_or_default();
        let path = Resource::Pod.path(&self.namespace);
        let made = async {
            let _place = self.gate.acquire().await?;
            let ask = Ask::write(pod_of(&batch).to_string());
            self.api.must(Method::POST, &path, ask).await
        };
        let started = json!({
            "startTime": now(), "active": 1, "ready": 0, "terminating": 0, "uncountedTerminatedPods": {},
        });
        futures::try_join!(made, self.tell(name, started))?;
        Ok(())
    }

    /// Writes the status of a Job.
    async fn tell(&self, name: &str, status: Value) -> Result<()> {
        let _place = self.gate.acquire().await?;
        let path = format!("{}/{name}/status", Resource::Job.path(&self.namespace));
        let ask = Ask::patch(json!({ "status": status }).to_string());
        self.api.must(Method::PATCH, &path, ask).await?;
        Ok(())
    }

    /// Handles an event; returns the job that now needs a task.
    fn seen(&self, line: &[u8], watch: &mut Watch) -> Result<Option<String>> {
        let event: Event<Slim> = serde_json::from_slice(line)?;
        anyhow::ensure!(event.kind != "ERROR", "the watch of pods failed");
        let meta = event.object.metadata;
        watch.seen(&meta.version);
        let Some(job) = meta.labels.get(kind::job_label(&self.kind)) else {
            return Ok(None);
        };
        let role = meta.labels.get(JOB_ROLE).map(String::as_str);
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
                        serves: kind::launches(&self.kind) && role == Some("worker"),
                    };
                    group.pods.insert(meta.name, pod);
                }
                _ => return Ok(None),
            }
        }
        Ok(self.claim(job).then(|| job.clone()))
    }

    /// Claims a job; returns whether it has work and no other task handles it.
    fn claim(&self, job: &str) -> bool {
        let mut groups = self.groups.borrow_mut();
        let Some(group) = groups.get_mut(job) else {
            return false;
        };
        let whole = group.pods.len() == kind::pods(&self.kind);
        let claimed = whole && !group.busy && self.due(group).is_some();
        group.busy |= claimed;
        claimed
    }

    /// Returns the next state of a job's pods.
    fn due(&self, group: &Group) -> Option<State> {
        let goes_to = |next: State| group.pods.values().any(|pod| pod.goes_to(next));
        if goes_to(State::Running) {
            Some(State::Running)
        } else if goes_to(State::Succeeded) && !self.hold.get() {
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
                let next = if group.pods.len() == kind::pods(&self.kind) {
                    self.due(group)
                } else {
                    None
                };
                group.busy = next.is_some();
                next
            };
            let Some(next) = next else { return Ok(()) };
            let wait = match next {
                State::Running => self.script.run_after,
                State::Pending | State::Succeeded => self.script.succeed_after,
            };
            sleep(wait).await;
            let (burst, launcher) = {
                let mut groups = self.groups.borrow_mut();
                let Some(group) = groups.get_mut(&job) else {
                    return Ok(());
                };
                let due = group.pods.iter_mut().filter(|(_, pod)| pod.goes_to(next));
                let mut burst: Vec<_> = due
                    .map(|(name, pod)| {
                        pod.state = next;
                        (name.clone(), pod.uid.clone())
                    })
                    .collect();
                burst.sort();
                (burst, group.launcher.clone())
            };
            try_join_all(burst.iter().map(|(name, uid)| self.put(name, uid, next))).await?;
            if let Some(launcher) = launcher {
                self.tell(&launcher, of_batch(next)).await?;
            }
        }
    }

    async fn put(&self, name: &str, uid: &str, state: State) -> Result<()> {
        let _place = self.gate.acquire().await?;
        let path = format!("{}/{name}/status", Resource::Pod.path(&self.namespace));
        let body = status(
            kind::container(&self.kind),
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
        // Replaced meanwhile: its successor is handled separately.
        let gone = [StatusCode::NOT_FOUND, StatusCode::CONFLICT].contains(&code);
        anyhow::ensure!(
            code.is_success() || gone,
            "{name}: {code}: {}",
            String::from_utf8_lossy(&answer)
        );
        Ok(())
    }
}

/// Returns the pod that the Job controller would create for a Job, without its tracking finalizer.
pub fn pod_of(batch: &Value) -> Value {
    let (meta, template) = (&batch["metadata"], &batch["spec"]["template"]);
    let (name, uid) = (&meta["name"], &meta["uid"]);
    // The real suffix is random; the uid is random enough.
    let end: String = uid.as_str().unwrap_or_default().chars().take(5).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": format!("{}-{end}", name.as_str().unwrap_or_default()),
            "namespace": meta["namespace"],
            "labels": template["metadata"]["labels"],
            "annotations": template["metadata"]["annotations"],
            "ownerReferences": [{
                "apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid,
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": template["spec"],
    })
}

/// Returns the Job status that the Job controller writes for a state of the launcher's pod.
fn of_batch(state: State) -> Value {
    if state != State::Succeeded {
        return json!({ "ready": 1 });
    }
    let time = now();
    let holds = |kind: &str| {
        json!({
            "type": kind, "status": "True", "reason": "CompletionsReached",
            "message": "Reached expected number of succeeded pods",
            "lastProbeTime": time, "lastTransitionTime": time,
        })
    };
    json!({
        "active": 0, "ready": 0, "succeeded": 1, "completionTime": time,
        "conditions": [holds("SuccessCriteriaMet"), holds("Complete")],
    })
}

/// Returns the kubelet's status for a pod with one container in a phase; a failed one ended with this exit code.
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
