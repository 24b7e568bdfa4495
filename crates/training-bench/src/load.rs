//! The load generator: creates jobs, and watches their progress on its own connections.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::Method;
use serde::Deserialize;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, spawn_local};

use crate::application;
use crate::bodies::{self, Resource};
use crate::child::Helper;
use crate::drive::{JOB_NAME, JOB_ROLE};
use crate::floor::{Event, version};
use crate::http::{Ask, JSON, METADATA, Watch};
use crate::kind;
use crate::stage::{Client, Stage};

/// The maximum number of parallel job creations.
const CREATING: usize = 32;

/// The polling interval of recorded observations. Their times are recorded, so a late poll is harmless; checking a thousand
/// jobs after each of twenty thousand events would disturb the measurement.
const BREATH: Duration = Duration::from_millis(2);

/// The observations of one job.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// When its creation was answered.
    pub created: Option<Instant>,
    /// When the last of its pods appeared. A launcher's Job counts instead of its pod, because the measured client doesn't create that.
    pub complete: Option<Instant>,
    /// Whether its status says that it runs.
    pub running: bool,
    /// When its status said that it succeeded.
    pub succeeded: Option<Instant>,
    /// Whether its status says that it failed, which is an error.
    pub failed: bool,
    /// The uids of each pod name, and when they appeared.
    pub pods: HashMap<String, Vec<(String, Instant)>>,
}

#[derive(Default)]
struct Book {
    /// The number of pods of a job.
    pods: usize,
    jobs: HashMap<String, Seen>,
    fault: Option<String>,
}

/// A running observer that also creates jobs.
pub struct Load<'a> {
    stage: &'a Stage,
    book: Rc<RefCell<Book>>,
    changed: Rc<Notify>,
    tasks: Vec<JoinHandle<()>>,
}

#[derive(Deserialize)]
struct Object {
    metadata: Meta,
    #[serde(default)]
    status: Status,
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

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    conditions: Vec<Condition>,
    /// Applications have a state instead of conditions.
    #[serde(rename = "applicationState")]
    state: State,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct State {
    state: String,
}

#[derive(Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

impl<'a> Load<'a> {
    /// Starts the watches.
    pub async fn start(stage: &'a Stage) -> Result<Self> {
        let book = Rc::new(RefCell::new(Book {
            pods: kind::pods(&stage.kind),
            ..Book::default()
        }));
        let changed = Rc::new(Notify::new());
        let jobs = kind::jobs(&stage.kind, &stage.namespace);
        let path = |resource: Resource| resource.path(&stage.namespace);
        let mut tasks = Vec::new();
        let selector = kind::of_jobs(&stage.kind);
        let mut watches = vec![
            (jobs, "", JSON, fold_job as fn(&mut Book, Event<Object>)),
            (path(Resource::Pod), &selector, METADATA, fold_pod),
        ];
        if kind::launches(&stage.kind) {
            watches.push((path(Resource::Job), "", METADATA, fold_launcher));
        }
        for (path, query, accept, fold) in watches {
            let from = version(&stage.api, &path).await?;
            let watch = stage.api.watch(&path, query, &from, accept).await?;
            let (book, changed) = (Rc::clone(&book), Rc::clone(&changed));
            tasks.push(spawn_local(async move {
                let Err(error) = follow(watch, &book, &changed, fold).await;
                book.borrow_mut().fault = Some(format!("{error:#}"));
                changed.notify_waiters();
            }));
        }
        Ok(Self {
            stage,
            book,
            changed,
            tasks,
        })
    }

    /// Creates one job.
    pub async fn create(&self, name: &str) -> Result<()> {
        let kind = &self.stage.kind;
        let path = kind::jobs(kind, &self.stage.namespace);
        let body = if kind::submits(kind) {
            application::manifest(name)
        } else {
            bodies::manifest(kind, name)
        };
        self.stage
            .api
            .must(Method::POST, &path, Ask::write(body.to_string()))
            .await?;
        self.book
            .borrow_mut()
            .jobs
            .entry(name.to_owned())
            .or_default()
            .created = Some(Instant::now());
        Ok(())
    }

    /// Creates jobs as fast as the API server accepts them.
    pub async fn create_all(&self, names: &[String]) -> Result<()> {
        stream::iter(names)
            .map(|name| self.create(name))
            .buffer_unordered(CREATING)
            .try_collect()
            .await
    }

    /// Reads the observations of a job.
    pub fn seen<T>(&self, name: &str, read: impl FnOnce(&Seen) -> T) -> Option<T> {
        self.book.borrow().jobs.get(name).map(read)
    }

    /// Waits until the observations fulfil a condition.
    pub async fn until(
        &self,
        what: &str,
        limit: Duration,
        processes: &mut Processes<'_>,
        looks: impl Fn(&Self) -> bool,
    ) -> Result<()> {
        let end = Instant::now() + limit;
        loop {
            // Subscribes before the check, so that no change in between is missed.
            let changed = self.changed.notified();
            if looks(self) {
                return Ok(());
            }
            if let Some(fault) = &self.book.borrow().fault {
                bail!("the load generator's watch failed: {fault}");
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let states: Vec<_> = self.unfinished().into_iter().take(3).collect();
                bail!("waited {limit:?} in vain for {what}; for example {states:#?}");
            }
            let step = left.min(Duration::from_secs(1));
            match tokio::time::timeout(step, changed).await {
                Ok(()) => tokio::time::sleep(BREATH).await,
                Err(_) => processes.check()?,
            }
        }
    }

    fn unfinished(&self) -> Vec<(String, Seen)> {
        let book = self.book.borrow();
        let open = book.jobs.iter().filter(|(_, job)| job.succeeded.is_none());
        open.map(|(name, job)| (name.clone(), job.clone()))
            .collect()
    }

    /// Waits until all these jobs have succeeded.
    pub async fn until_succeeded(
        &self,
        names: &[String],
        limit: Duration,
        processes: &mut Processes<'_>,
    ) -> Result<()> {
        let done = |load: &Self, name: &String| {
            load.seen(name, |job| job.succeeded.is_some())
                .unwrap_or(false)
        };
        let rest = RefCell::new(names.to_vec());
        self.until("all jobs to succeed", limit, processes, |load| {
            let mut rest = rest.borrow_mut();
            rest.retain(|name| !done(load, name));
            rest.is_empty()
        })
        .await
    }

    /// Keeps `in_flight` jobs running until `count` of them have succeeded, then lets the rest end. Returns all names, and the
    /// time of each success.
    pub async fn closed_loop(
        &self,
        prefix: &str,
        count: usize,
        in_flight: usize,
        limit: Duration,
        processes: &mut Processes<'_>,
    ) -> Result<(Vec<String>, Vec<Instant>)> {
        let end = Instant::now() + limit;
        let (mut names, mut open, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        let mut creating = stream::FuturesUnordered::new();
        loop {
            let changed = self.changed.notified();
            open.retain(|name: &String| {
                let ended = self.seen(name, |job| job.succeeded).flatten();
                ends.extend(ended);
                ended.is_none()
            });
            while ends.len() < count && open.len() < in_flight {
                let name = format!("{prefix}-{}", names.len());
                names.push(name.clone());
                open.push(name.clone());
                creating.push(async move { self.create(&name).await });
            }
            if open.is_empty() && creating.is_empty() {
                ends.sort();
                return Ok((names, ends));
            }
            ensure!(
                Instant::now() < end,
                "{} of {} jobs in {limit:?}",
                ends.len(),
                names.len()
            );
            if let Some(fault) = &self.book.borrow().fault {
                bail!("the load generator's watch failed: {fault}");
            }
            tokio::select! {
                Some(created) = creating.next() => created?,
                () = changed => tokio::time::sleep(BREATH).await,
                () = tokio::time::sleep(Duration::from_secs(1)) => processes.check()?,
            }
        }
    }

    /// Counts the uids that the pods of these jobs have had.
    pub fn uids(&self, names: &[String]) -> usize {
        let of = |job: &Seen| job.pods.values().map(Vec::len).sum::<usize>();
        names.iter().filter_map(|name| self.seen(name, of)).sum()
    }

    /// Checks the result: every job succeeded without a failure, each has four pods (with a launcher's Job instead of its pod; one for
    /// an application), in total `replaced` more uids than names, and the API server has exactly those pods.
    pub async fn verify(&self, names: &[String], replaced: usize) -> Result<()> {
        let mut pods = 0;
        for name in names {
            let job = self
                .seen(name, Seen::clone)
                .with_context(|| format!("{name} was never seen"))?;
            ensure!(
                job.succeeded.is_some() && !job.failed,
                "{name} did not succeed: {job:?}"
            );
            ensure!(
                job.pods.len() == kind::pods(&self.stage.kind),
                "{name} has the pods {:?}",
                job.pods.keys()
            );
            pods += job.pods.len();
        }
        let uids = self.uids(names);
        ensure!(
            uids == pods + replaced,
            "{uids} pods were made under {pods} names"
        );
        let there = count(self.stage).await?;
        ensure!(there >= pods, "{there} pods are there, not {pods}");
        Ok(())
    }
}

impl Drop for Load<'_> {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// The processes that must run for a wait to make sense.
pub struct Processes<'a> {
    /// The measured client.
    pub client: &'a mut Client,
    /// The status driver.
    pub driver: &'a mut Helper,
    /// The stage, which has their logs.
    pub stage: &'a Stage,
}

impl Processes<'_> {
    fn check(&mut self) -> Result<()> {
        let (name, ended) = if self.driver.has_ended()? {
            ("drive", true)
        } else {
            let name = match self.client {
                Client::Floor(_) => "floor",
                Client::Ours(_) => "operator",
                Client::Go(_) => kind::peer(&self.stage.kind)?.name(),
            };
            (name, self.client.has_ended()?)
        };
        if ended {
            let said = std::fs::read_to_string(self.stage.log(name)).unwrap_or_default();
            // Our own errors have a few lines; an operator's log ends with the cause of its death.
            let said: Vec<&str> = said.lines().collect();
            bail!(
                "{name} ended: {}",
                said[said.len().saturating_sub(8)..].join("\n")
            );
        }
        Ok(())
    }
}

async fn follow(
    mut watch: Watch,
    book: &RefCell<Book>,
    changed: &Notify,
    fold: fn(&mut Book, Event<Object>),
) -> Result<std::convert::Infallible> {
    loop {
        let line = watch.next().await?;
        let event: Event<Object> = serde_json::from_slice(&line)?;
        ensure!(event.kind != "ERROR", "{}", String::from_utf8_lossy(&line));
        watch.seen(&event.object.metadata.version);
        if event.kind != "BOOKMARK" {
            fold(&mut book.borrow_mut(), event);
            changed.notify_waiters();
        }
    }
}

fn fold_job(book: &mut Book, event: Event<Object>) {
    let job = book.jobs.entry(event.object.metadata.name).or_default();
    let status = event.object.status;
    let holds = |kind: &str, state: &str| {
        let mut all = status.conditions.iter();
        all.any(|c| c.kind == kind && c.status == "True") || status.state.state == state
    };
    job.running = holds("Running", "RUNNING");
    job.failed |= holds("Failed", "FAILED");
    if job.succeeded.is_none() && holds("Succeeded", "COMPLETED") {
        job.succeeded = Some(Instant::now());
    }
}

fn fold_pod(book: &mut Book, event: Event<Object>) {
    let Meta {
        name,
        uid,
        labels,
        version: _,
    } = event.object.metadata;
    let job = labels.get(JOB_NAME);
    let Some(job) = job.or_else(|| labels.get(application::APP_NAME)) else {
        return;
    };
    let launches = labels.get(JOB_ROLE).is_some_and(|role| role == "launcher");
    if event.kind == "ADDED" && !launches {
        fold_part(book, job, name, uid);
    }
}

/// Counts a launcher's Job as its pod.
fn fold_launcher(book: &mut Book, event: Event<Object>) {
    let meta = event.object.metadata;
    if let Some(job) = meta.labels.get("app").filter(|_| event.kind == "ADDED") {
        fold_part(book, job, meta.name, meta.uid);
    }
}

fn fold_part(book: &mut Book, job: &str, name: String, uid: String) {
    let pods = book.pods;
    let job = book.jobs.entry(job.to_owned()).or_default();
    let now = Instant::now();
    job.pods.entry(name).or_default().push((uid, now));
    if job.complete.is_none() && job.pods.len() == pods {
        job.complete = Some(now);
    }
}

/// Counts the pods of jobs in a namespace.
async fn count(stage: &Stage) -> Result<usize> {
    #[derive(Deserialize)]
    struct List {
        items: Vec<serde::de::IgnoredAny>,
    }
    // From the watch cache, so that counting is cheap.
    let path = format!(
        "{}?resourceVersion=0{}",
        Resource::Pod.path(&stage.namespace),
        kind::of_jobs(&stage.kind)
    );
    let list = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let body = stage.api.must(Method::GET, &path, Ask::read(list)).await?;
    Ok(serde_json::from_slice::<List>(&body)?.items.len())
}
