//! The status driver: plays scheduler and kubelet for every pod of a namespace, and the controller of Jobs for launchers.
//!
//! All pods of a job start to run in one burst, a while after the last of them was seen, and succeed in one burst a while after
//! that. It watches metadata alone: what state a pod is in it knows by itself.
//!
//! A launcher's Job gets its pod as soon as it is seen. It is told that the pod is there, that it is ready, and that it has
//! succeeded; only that pod ends, because workers serve until somebody deletes them. The real controller would do the same for
//! everybody who is measured, but it waits a second before it looks at what its pods have become, and sends no more than twenty
//! requests a second: nothing else could be seen beside that.

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

/// Patches under way at once.
const IN_FLIGHT: usize = 32;
/// The label that tells the job's pods from others, of the kinds that have replicas.
pub const JOB_NAME: &str = "training.kubeflow.org/job-name";
/// The label that tells a launcher's pod from its workers'.
pub const JOB_ROLE: &str = "training.kubeflow.org/job-role";

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
    /// It serves until somebody deletes it.
    serves: bool,
}

/// The pods of one job by name.
#[derive(Default)]
struct Group {
    pods: HashMap<String, Pod>,
    /// The name of the launcher's Job.
    launcher: Option<String>,
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
    /// True if this is the state that it comes to next.
    fn goes_to(&self, next: State) -> bool {
        match next {
            State::Pending => false,
            State::Running => self.state == State::Pending,
            State::Succeeded => self.state == State::Running && !self.serves,
        }
    }
}

impl Driver {
    /// A line of the Jobs' watch; answers a new Job.
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

    /// Makes the pod of a new Job.
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

    /// Says how far a Job has come.
    async fn tell(&self, name: &str, status: Value) -> Result<()> {
        let _place = self.gate.acquire().await?;
        let path = format!("{}/{name}/status", Resource::Job.path(&self.namespace));
        let ask = Ask::patch(json!({ "status": status }).to_string());
        self.api.must(Method::PATCH, &path, ask).await?;
        Ok(())
    }

    /// Folds an event; answers the job that somebody must look after now.
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

    /// True if there is something to do for a job and nobody does it yet.
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

    /// The state that the pods of a job should come to next.
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

/// The pod that the controller of Jobs makes for a Job, without the finalizer by which that counts its pods.
pub fn pod_of(batch: &Value) -> Value {
    let (meta, template) = (&batch["metadata"], &batch["spec"]["template"]);
    let (name, uid) = (&meta["name"], &meta["uid"]);
    // It has a random end there; this one is as good as random.
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

/// What the controller of Jobs says when the launcher's pod has come to a state.
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
