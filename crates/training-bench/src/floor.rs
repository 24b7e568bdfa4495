//! The floor client: the minimum that a reactive client must do for a job.
//!
//! It watches jobs and pods. For a new job it creates the pods and services that the operator would create and writes `Created`;
//! when all pods run it writes `Running`, when the master has succeeded `Succeeded`. It deletes and recreates failed pods. For an
//! `MPIJob` it first creates the mounted objects, with new keys for every job; it writes the list of hosts when they run,
//! and watches Jobs, because the launcher's Job ends the `MPIJob`. It sends no events, holds no lease, validates nothing, stores
//! only what it needs, and ends at the first error.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use futures::future::try_join_all;
use http::Method;
use serde::Deserialize;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::spawn_local;
use training_testkit::builders::Kind;

use crate::bodies::{Bodies, PODS, Part, Resource, Values, now};
use crate::child;
use crate::http::{Api, Ask, JSON, Watch};
use crate::kind;
use crate::template::Template;

/// The maximum number of parallel requests.
pub const IN_FLIGHT: usize = 64;

/// The suffix of the launcher's Job's name after the job's name.
const LAUNCHER: &str = "-launcher";

/// One line of a watch.
#[derive(Deserialize)]
pub struct Event<T> {
    /// `ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK`, `ERROR`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The object.
    pub object: T,
}

/// The fields of a job that the client reads.
#[derive(Deserialize)]
pub struct SlimJob<'a> {
    /// Its identity.
    #[serde(borrow)]
    pub metadata: SlimMeta<'a>,
    /// Whether it has a status.
    #[serde(default)]
    pub status: Option<serde::de::IgnoredAny>,
}

/// The fields of a pod that the client reads.
#[derive(Deserialize)]
pub struct SlimPod<'a> {
    /// Its identity.
    #[serde(borrow)]
    pub metadata: SlimMeta<'a>,
    /// Its phase.
    #[serde(borrow, default)]
    pub status: SlimStatus<'a>,
}

#[derive(Deserialize)]
struct SlimBatch<'a> {
    #[serde(borrow)]
    metadata: SlimMeta<'a>,
    #[serde(borrow, default)]
    status: SlimEnd<'a>,
}

#[derive(Deserialize, Default)]
struct SlimEnd<'a> {
    #[serde(borrow, default)]
    conditions: Vec<SlimCondition<'a>>,
}

#[derive(Deserialize)]
struct SlimCondition<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
}

/// The metadata that the client reads.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SlimMeta<'a> {
    /// The name.
    #[serde(borrow, default)]
    pub name: Cow<'a, str>,
    /// The uid.
    #[serde(borrow, default)]
    pub uid: Cow<'a, str>,
    /// The resource version.
    #[serde(borrow, default)]
    pub resource_version: Cow<'a, str>,
    /// The labels.
    #[serde(borrow, default)]
    pub labels: SlimLabels<'a>,
}

/// The labels that the client reads.
#[derive(Deserialize, Default)]
pub struct SlimLabels<'a> {
    /// The name of a pod's job.
    #[serde(
        borrow,
        default,
        rename = "training.kubeflow.org/job-name",
        alias = "sparkoperator.k8s.io/app-name"
    )]
    pub job: Cow<'a, str>,
}

/// The pod status fields that the client reads.
#[derive(Deserialize, Default)]
pub struct SlimStatus<'a> {
    /// The phase.
    #[serde(borrow, default)]
    pub phase: Cow<'a, str>,
}

/// The state of one job.
struct Job {
    uid: String,
    version: String,
    stage: Stage,
    /// Phases, by the suffix of the pod's name after the job's name.
    pods: HashMap<String, String>,
    /// Whether all of its objects were created.
    born: bool,
    /// Whether the deciding replica has succeeded.
    ended: bool,
    /// Objects that are referenced or changed later, by the suffix of their names.
    kept: HashMap<String, Identity>,
}

/// An object's identity in a write's response.
#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    resource_version: String,
}

/// Returns delete options with a uid precondition and another option.
pub fn deletion(uid: &str, option: &str) -> String {
    format!(r#"{{{option},"preconditions":{{"uid":"{uid}"}}}}"#)
}

/// The last written status of the job.
#[derive(Clone, Copy, PartialEq)]
enum Stage {
    /// A status is being written.
    Writing,
    Created,
    Running,
    Done,
}

struct Floor {
    api: Api,
    kind: Kind,
    namespace: String,
    bodies: Bodies,
    jobs: RefCell<HashMap<String, Job>>,
    gate: Semaphore,
}

/// Runs until standard input ends.
pub async fn run(kubeconfig: &std::path::Path, kind: Kind, namespace: &str) -> Result<()> {
    let api = Api::new(kubeconfig).await?;
    let floor = Rc::new(Floor {
        api,
        kind,
        namespace: namespace.to_owned(),
        bodies: Bodies::new(&kind)?,
        jobs: RefCell::default(),
        gate: Semaphore::new(IN_FLIGHT),
    });
    let jobs = floor.jobs_path("");
    let pods = Resource::Pod.path(namespace);
    let selector = kind::selector(&kind);
    // Starts before the first job, so there is nothing to list.
    let from = version(&floor.api, &jobs).await?;
    let mut job_events = floor.api.watch(&jobs, "", &from, JSON).await?;
    let from = version(&floor.api, &pods).await?;
    let mut pod_events = floor.api.watch(&pods, &selector, &from, JSON).await?;
    let mut batch_events = launchers(&floor.api, &kind, namespace).await?;
    child::say("ready")?;
    let (run, mut fault) = beside();
    loop {
        tokio::select! {
            line = job_events.next() => {
                floor.job(&line?, &mut job_events)?.into_iter().for_each(&run);
            }
            line = pod_events.next() => {
                floor.pod(&line?, &mut pod_events)?.into_iter().for_each(&run);
            }
            line = next_of(&mut batch_events) => {
                floor.batch(&line?, batch_events.as_mut())?.into_iter().for_each(&run);
            }
            Some(error) = fault.recv() => return Err(error),
        }
    }
}

/// Returns a function that runs work in parallel, and the receiver of its errors.
pub fn beside() -> (impl Fn(Work), UnboundedReceiver<anyhow::Error>) {
    let (failed, fault) = unbounded_channel();
    let run = move |work: Work| {
        let failed = failed.clone();
        spawn_local(async move {
            if let Err(error) = work.await {
                let _ = failed.send(error);
            }
        });
    };
    (run, fault)
}

/// Opens a watch of Jobs for the kind that has them.
pub async fn launchers(api: &Api, kind: &Kind, namespace: &str) -> Result<Option<Watch>> {
    if !kind::launches(kind) {
        return Ok(None);
    }
    let path = Resource::Job.path(namespace);
    let from = version(api, &path).await?;
    Ok(Some(api.watch(&path, "", &from, JSON).await?))
}

/// Returns the next line of an optional watch; pends forever without one.
pub async fn next_of(watch: &mut Option<Watch>) -> Result<Bytes> {
    match watch {
        Some(watch) => watch.next().await,
        None => std::future::pending().await,
    }
}

/// Returns a collection's resource version.
pub async fn version(api: &Api, path: &str) -> Result<String> {
    let body = api
        .must(Method::GET, &format!("{path}?limit=1"), Ask::read(JSON))
        .await?;
    version_of(&body)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    resource_version: String,
}

#[derive(Deserialize)]
struct Answer<M> {
    metadata: M,
}

/// Returns the resource version in a write's response.
pub fn version_of(answer: &[u8]) -> Result<String> {
    let answer: Answer<Version> = serde_json::from_slice(answer)?;
    Ok(answer.metadata.resource_version)
}

/// Returns the object's identity in a write's response.
pub fn identity(answer: &[u8]) -> Result<Identity> {
    Ok(serde_json::from_slice::<Answer<_>>(answer)?.metadata)
}

/// Work that runs in parallel.
pub type Work = futures::future::LocalBoxFuture<'static, Result<()>>;

impl Floor {
    fn jobs_path(&self, name: &str) -> String {
        format!("{}{name}", kind::jobs(&self.kind, &self.namespace))
    }

    /// Returns the values for a job's templates.
    fn values<'a>(
        &'a self,
        name: &'a str,
        uid: &'a str,
        version: &'a str,
        time: &'a str,
    ) -> Values<'a> {
        Values {
            name,
            namespace: &self.namespace,
            uid,
            version,
            time,
            ..Values::default()
        }
    }

    /// Handles a line of the jobs' watch: starts new jobs; all other events are caused by our own writes.
    fn job(self: &Rc<Self>, line: &[u8], watch: &mut Watch) -> Result<Option<Work>> {
        let event: Event<SlimJob<'_>> = serde_json::from_slice(line)?;
        let job = event.object;
        anyhow::ensure!(event.kind != "ERROR", "the watch of jobs failed");
        watch.seen(&job.metadata.resource_version);
        if event.kind != "ADDED" || job.status.is_some() {
            return Ok(None);
        }
        let name = job.metadata.name.into_owned();
        let new = Job {
            uid: job.metadata.uid.into_owned(),
            version: job.metadata.resource_version.into_owned(),
            stage: Stage::Writing,
            pods: HashMap::with_capacity(PODS),
            born: false,
            ended: false,
            kept: HashMap::new(),
        };
        self.jobs.borrow_mut().insert(name.clone(), new);
        let floor = Rc::clone(self);
        Ok(Some(Box::pin(async move { floor.start(&name).await })))
    }

    async fn start(self: Rc<Self>, name: &str) -> Result<()> {
        let (uid, version) = {
            let jobs = self.jobs.borrow();
            let job = jobs.get(name).context("a job that was never seen")?;
            (job.uid.clone(), job.version.clone())
        };
        let time = now();
        let values = self.values(name, &uid, &version, &time);
        let births = async {
            for turn in &self.bodies.births {
                try_join_all(turn.iter().map(|part| self.make(name, part, values))).await?;
            }
            if let Some(job) = self.jobs.borrow_mut().get_mut(name) {
                job.born = true;
            }
            Ok(())
        };
        let created = self.status(name, &self.bodies.created, &values, Stage::Created);
        futures::try_join!(births, created)?;
        // The pods may have progressed meanwhile.
        match self.next(name) {
            Some(next) => next.await,
            None => Ok(()),
        }
    }

    /// Creates one object of a job.
    async fn make(&self, name: &str, part: &Part, values: Values<'_>) -> Result<()> {
        // On a thread of the pool, as in the operator: it takes milliseconds.
        let data = match (part.resource, self.bodies.fresh) {
            (Resource::Secret, Some(fresh)) => {
                let data = tokio::task::spawn_blocking(fresh).await?;
                serde_json::to_string(&data.map_err(anyhow::Error::msg)?)?
            }
            _ => String::new(),
        };
        let place = self.gate.acquire().await?;
        let path = part.resource.path(&self.namespace);
        let body = part.body.fill(
            &Values {
                data: &data,
                ..values
            }
            .in_order(),
        );
        let answer = self.api.must(Method::POST, &path, Ask::write(body)).await?;
        drop(place);
        let later = matches!(part.resource, Resource::ConfigMap | Resource::Job);
        if let Some(job) = self.jobs.borrow_mut().get_mut(name).filter(|_| later) {
            job.kept.insert(part.suffix.clone(), identity(&answer)?);
        }
        Ok(())
    }

    /// Handles a line of the Jobs' watch: the launcher's Job may have ended.
    fn batch(self: &Rc<Self>, line: &[u8], watch: Option<&mut Watch>) -> Result<Option<Work>> {
        let event: Event<SlimBatch<'_>> = serde_json::from_slice(line)?;
        anyhow::ensure!(event.kind != "ERROR", "the watch of Jobs failed");
        let batch = event.object;
        if let Some(watch) = watch {
            watch.seen(&batch.metadata.resource_version);
        }
        let complete = batch.status.conditions.iter().any(|c| c.kind == "Complete");
        let Some(name) = batch.metadata.name.strip_suffix(LAUNCHER) else {
            return Ok(None);
        };
        match self.jobs.borrow_mut().get_mut(name) {
            Some(job) if complete && !job.ended => job.ended = true,
            Some(_) | None => return Ok(None),
        }
        Ok(self.next(name))
    }

    /// Handles a line of the pods' watch, which may make the next status due.
    fn pod(self: &Rc<Self>, line: &[u8], watch: &mut Watch) -> Result<Option<Work>> {
        let event: Event<SlimPod<'_>> = serde_json::from_slice(line)?;
        anyhow::ensure!(event.kind != "ERROR", "the watch of pods failed");
        let pod = event.object;
        watch.seen(&pod.metadata.resource_version);
        let Some(suffix) = pod.metadata.name.strip_prefix(&*pod.metadata.labels.job) else {
            return Ok(None);
        };
        if event.kind == "DELETED" || event.kind == "BOOKMARK" {
            return Ok(None);
        }
        let name = &*pod.metadata.labels.job;
        let phase = pod.status.phase.into_owned();
        let failed = phase == "Failed";
        let before = {
            let mut jobs = self.jobs.borrow_mut();
            let Some(job) = jobs.get_mut(name) else {
                return Ok(None);
            };
            job.ended |= suffix == "-master-0" && phase == "Succeeded";
            job.pods.insert(suffix.to_owned(), phase)
        };
        // The deletion of a failed pod causes another event.
        if failed && before.as_deref() != Some("Failed") {
            let (floor, name) = (Rc::clone(self), name.to_owned());
            let (suffix, uid) = (suffix.to_owned(), pod.metadata.uid.into_owned());
            return Ok(Some(Box::pin(async move {
                floor.replace(&name, &suffix, &uid).await
            })));
        }
        Ok(self.next(name))
    }

    /// Returns the due status, if any.
    fn next(self: &Rc<Self>, name: &str) -> Option<Work> {
        let mut jobs = self.jobs.borrow_mut();
        let job = jobs.get_mut(name)?;
        let in_phase = |phase: &str| job.pods.values().filter(|p| *p == phase).count();
        let all_run = in_phase("Running") + in_phase("Succeeded") == PODS;
        let next = match job.stage {
            Stage::Created if job.born && all_run => Stage::Running,
            Stage::Running if job.ended => Stage::Done,
            Stage::Writing | Stage::Created | Stage::Running | Stage::Done => return None,
        };
        job.stage = Stage::Writing;
        let (uid, version, name) = (job.uid.clone(), job.version.clone(), name.to_owned());
        let launcher = job.kept.get(LAUNCHER).cloned().unwrap_or_default();
        let floor = Rc::clone(self);
        Some(Box::pin(async move {
            let (body, changes) = if next == Stage::Running {
                (&floor.bodies.running, &floor.bodies.changes[..])
            } else {
                (&floor.bodies.succeeded, &[][..])
            };
            let time = now();
            let values = Values {
                launcher: &launcher.uid,
                ..floor.values(&name, &uid, &version, &time)
            };
            let changes = try_join_all(changes.iter().map(|part| floor.change(&name, part)));
            futures::try_join!(floor.status(&name, body, &values, next), changes)?;
            match floor.next(&name) {
                Some(next) => next.await,
                None => Ok(()),
            }
        }))
    }

    /// Updates a created object.
    async fn change(&self, name: &str, part: &Part) -> Result<()> {
        let kept = {
            let jobs = self.jobs.borrow();
            let kept = jobs.get(name).and_then(|job| job.kept.get(&part.suffix));
            kept.context("a change of what nobody made")?.clone()
        };
        let values = self.values(name, &kept.uid, &kept.resource_version, "");
        let path = part.resource.path(&self.namespace);
        let path = format!("{path}/{name}{}", part.suffix);
        let _place = self.gate.acquire().await?;
        let ask = Ask::patch(part.body.fill(&values.in_order()));
        self.api.must(Method::PATCH, &path, ask).await?;
        Ok(())
    }

    async fn status(
        &self,
        name: &str,
        body: &Template,
        values: &Values<'_>,
        stage: Stage,
    ) -> Result<()> {
        let path = self.jobs_path(&format!("/{name}/status"));
        let place = self.gate.acquire().await?;
        let answer = self
            .api
            .must(
                Method::PATCH,
                &path,
                Ask::patch(body.fill(&values.in_order())),
            )
            .await?;
        drop(place);
        if let Some(job) = self.jobs.borrow_mut().get_mut(name) {
            job.version = version_of(&answer)?;
            job.stage = stage;
        }
        Ok(())
    }

    /// Deletes and recreates a failed pod.
    async fn replace(&self, name: &str, suffix: &str, uid: &str) -> Result<()> {
        let job_uid = {
            let jobs = self.jobs.borrow();
            jobs.get(name)
                .map(|job| job.uid.clone())
                .unwrap_or_default()
        };
        let mut parts = self.bodies.births.iter().flatten();
        let part = parts
            .find(|part| part.resource == Resource::Pod && part.suffix == suffix)
            .context("a pod that nobody made")?;
        let options = deletion(uid, r#""gracePeriodSeconds":0"#);
        let place = self.gate.acquire().await?;
        let pods = part.resource.path(&self.namespace);
        let path = format!("{pods}/{name}{suffix}");
        self.api
            .must(Method::DELETE, &path, Ask::write(options))
            .await?;
        let body = part
            .body
            .fill(&self.values(name, &job_uid, "", "").in_order());
        self.api.must(Method::POST, &pods, Ask::write(body)).await?;
        drop(place);
        Ok(())
    }
}
