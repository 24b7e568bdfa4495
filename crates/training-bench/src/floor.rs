//! The floor client: the least that a reactive client must do for a job, and nothing else.
//!
//! It watches jobs and pods. For a new job it creates the pods and services that the operator would create and writes `Created`;
//! when all pods run it writes `Running`, when the master has succeeded `Succeeded`; a failed pod is deleted and made again. It
//! sends no events, holds no lease, checks nothing, remembers nothing that it doesn't need, and gives up at the first error.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use http::Method;
use serde::Deserialize;
use tokio::sync::Semaphore;
use tokio::task::spawn_local;
use training_testkit::builders::Kind;

use crate::bodies::{Bodies, Gaps, PODS, now};
use crate::child;
use crate::http::{Api, Ask, CORE, JSON, Watch};
use crate::kind;

/// Requests under way at once; the same as the operator's.
const IN_FLIGHT: usize = 64;

/// One line of a watch.
#[derive(Deserialize)]
pub struct Event<T> {
    /// `ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK`, `ERROR`.
    #[serde(rename = "type")]
    pub kind: String,
    /// What it is about.
    pub object: T,
}

#[derive(Deserialize)]
struct SlimJob<'a> {
    #[serde(borrow)]
    metadata: SlimMeta<'a>,
    #[serde(default)]
    status: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct SlimPod<'a> {
    #[serde(borrow)]
    metadata: SlimMeta<'a>,
    #[serde(borrow, default)]
    status: SlimStatus<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SlimMeta<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    uid: Cow<'a, str>,
    #[serde(borrow, default)]
    resource_version: Cow<'a, str>,
    #[serde(borrow, default)]
    labels: SlimLabels<'a>,
}

#[derive(Deserialize, Default)]
struct SlimLabels<'a> {
    #[serde(borrow, default, rename = "training.kubeflow.org/job-name")]
    job: Cow<'a, str>,
}

#[derive(Deserialize, Default)]
struct SlimStatus<'a> {
    #[serde(borrow, default)]
    phase: Cow<'a, str>,
}

/// What is known of one job.
struct Job {
    uid: String,
    version: String,
    stage: Stage,
    /// Phases by what follows the job's name in the pod's.
    pods: HashMap<String, String>,
}

/// The status that the job has.
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

/// Runs until told to end.
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
    let pods = floor.path("pods", "");
    let selector = kind::selector(&kind);
    // It starts before the first job, so that there is nothing to list.
    let from = version(&floor.api, &jobs).await?;
    let mut job_events = floor.api.watch(&jobs, "", &from, JSON).await?;
    let from = version(&floor.api, &pods).await?;
    let mut pod_events = floor.api.watch(&pods, &selector, &from, JSON).await?;
    child::say("ready")?;
    let (failed, mut fault) = tokio::sync::mpsc::unbounded_channel();
    let run = |work: Work| {
        let failed = failed.clone();
        spawn_local(async move {
            if let Err(error) = work.await {
                let _ = failed.send(error);
            }
        });
    };
    loop {
        tokio::select! {
            line = job_events.next() => {
                floor.job(&line?, &mut job_events)?.into_iter().for_each(run);
            }
            line = pod_events.next() => {
                floor.pod(&line?, &mut pod_events)?.into_iter().for_each(run);
            }
            Some(error) = fault.recv() => return Err(error),
        }
    }
}

/// The collection's resource version.
pub async fn version(api: &Api, path: &str) -> Result<String> {
    #[derive(Deserialize)]
    struct List {
        metadata: Version,
    }
    let body = api
        .must(Method::GET, &format!("{path}?limit=1"), Ask::read(JSON))
        .await?;
    let list: List = serde_json::from_slice(&body)?;
    Ok(list.metadata.resource_version)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    resource_version: String,
}

/// The resource version that a write's answer names.
pub fn version_of(answer: &[u8]) -> Result<String> {
    #[derive(Deserialize)]
    struct Answer {
        metadata: Version,
    }
    Ok(serde_json::from_slice::<Answer>(answer)?
        .metadata
        .resource_version)
}

type Work = futures::future::LocalBoxFuture<'static, Result<()>>;

impl Floor {
    fn path(&self, resource: &str, name: &str) -> String {
        format!("{CORE}/namespaces/{}/{resource}{name}", self.namespace)
    }

    fn jobs_path(&self, name: &str) -> String {
        format!("{}{name}", kind::jobs(&self.kind, &self.namespace))
    }

    /// A line of the jobs' watch: a new job is started, everything else is our own echo.
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
        let gaps = Gaps {
            name,
            namespace: &self.namespace,
            uid: &uid,
            version: &version,
            time: &time,
        };
        let (pods, services) = (self.path("pods", ""), self.path("services", ""));
        let pods = self.bodies.pods.iter().map(|(_, body)| (&pods, body));
        let services = self.bodies.services.iter().map(|body| (&services, body));
        // As the operator orders them: a service, then its pod.
        let creates = services.zip(pods).flat_map(|(service, pod)| [service, pod]);
        let creates = try_join_all(creates.map(async |(path, body)| {
            let _place = self.gate.acquire().await?;
            self.api
                .must(Method::POST, path, Ask::write(body.body(&gaps)))
                .await
        }));
        let created = self.status(name, &self.bodies.created, &gaps, Stage::Created);
        futures::try_join!(creates, created)?;
        // The pods may have gone on meanwhile.
        match self.next(name) {
            Some(next) => next.await,
            None => Ok(()),
        }
    }

    /// A line of the pods' watch: the job may go on.
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
            job.pods.insert(suffix.to_owned(), phase)
        };
        // A failed pod that is being deleted is told of once more.
        if failed && before.as_deref() != Some("Failed") {
            let (floor, name) = (Rc::clone(self), name.to_owned());
            let (suffix, uid) = (suffix.to_owned(), pod.metadata.uid.into_owned());
            return Ok(Some(Box::pin(async move {
                floor.replace(&name, &suffix, &uid).await
            })));
        }
        Ok(self.next(name))
    }

    /// The status that is due, if any.
    fn next(self: &Rc<Self>, name: &str) -> Option<Work> {
        let mut jobs = self.jobs.borrow_mut();
        let job = jobs.get_mut(name)?;
        let in_phase = |phase: &str| job.pods.values().filter(|p| *p == phase).count();
        let master = job.pods.get("-master-0").is_some_and(|p| p == "Succeeded");
        let next = match job.stage {
            Stage::Created if in_phase("Running") + in_phase("Succeeded") == PODS => Stage::Running,
            Stage::Running if master => Stage::Done,
            Stage::Writing | Stage::Created | Stage::Running | Stage::Done => return None,
        };
        job.stage = Stage::Writing;
        let (uid, version, name) = (job.uid.clone(), job.version.clone(), name.to_owned());
        let floor = Rc::clone(self);
        Some(Box::pin(async move {
            let body = if next == Stage::Running {
                &floor.bodies.running
            } else {
                &floor.bodies.succeeded
            };
            let time = now();
            let gaps = Gaps {
                name: &name,
                namespace: &floor.namespace,
                uid: &uid,
                version: &version,
                time: &time,
            };
            floor.status(&name, body, &gaps, next).await?;
            match floor.next(&name) {
                Some(next) => next.await,
                None => Ok(()),
            }
        }))
    }

    async fn status(
        &self,
        name: &str,
        body: &crate::bodies::Template,
        gaps: &Gaps<'_>,
        stage: Stage,
    ) -> Result<()> {
        let path = self.jobs_path(&format!("/{name}/status"));
        let place = self.gate.acquire().await?;
        let answer = self
            .api
            .must(Method::PATCH, &path, Ask::patch(body.body(gaps)))
            .await?;
        drop(place);
        if let Some(job) = self.jobs.borrow_mut().get_mut(name) {
            job.version = version_of(&answer)?;
            job.stage = stage;
        }
        Ok(())
    }

    /// A failed pod is deleted and made again.
    async fn replace(&self, name: &str, suffix: &str, uid: &str) -> Result<()> {
        let job_uid = {
            let jobs = self.jobs.borrow();
            jobs.get(name)
                .map(|job| job.uid.clone())
                .unwrap_or_default()
        };
        let body = &self
            .bodies
            .pods
            .iter()
            .find(|(known, _)| known == suffix)
            .context("a pod that nobody made")?
            .1;
        let options = format!(r#"{{"gracePeriodSeconds":0,"preconditions":{{"uid":"{uid}"}}}}"#);
        let place = self.gate.acquire().await?;
        let path = self.path("pods", &format!("/{name}{suffix}"));
        self.api
            .must(Method::DELETE, &path, Ask::write(options))
            .await?;
        let gaps = Gaps {
            name,
            namespace: &self.namespace,
            uid: &job_uid,
            version: "",
            time: "",
        };
        let path = self.path("pods", "");
        self.api
            .must(Method::POST, &path, Ask::write(body.body(&gaps)))
            .await?;
        drop(place);
        Ok(())
    }
}
