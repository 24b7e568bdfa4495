//! The published Go operators, and ours beside them: both take the same jobs through the same lives, and what differs is listed.

pub mod compare;
pub mod drivers;
pub mod history;
pub mod lives;
pub mod process;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use kube::Client;
use serde_json::Value;
use tokio::time::Instant;
use training_testkit::builders::{JAX, Kind, MPI, PADDLE, PYTORCH, SPARK, TENSORFLOW, XGBOOST};
use training_testkit::control_plane::{ADMIN, ControlPlane, DRIVER, Options, workspace};
use training_testkit::job::Jobs;
use training_testkit::kubelet::{Kubelet, lockstep};
use training_testkit::namespace::Namespace;
use training_testkit::operator;

use crate::corpus;
use crate::submit::server;
use drivers::Drivers;
use history::{History, Recorder, Stage};
use lives::Life;
use process::Peer;

/// `MPIJob` of the training operator.
pub const MPI_V1: Kind = Kind {
    version: "v1",
    controller: "mpijob-controller",
    ..MPI
};

/// The kinds of jobs, each with the Go operator that serves it.
pub const SERVED: [(Kind, Peer); 8] = [
    (PYTORCH, Peer::Training),
    (TENSORFLOW, Peer::Training),
    (XGBOOST, Peer::Training),
    (JAX, Peer::Training),
    (PADDLE, Peer::Training),
    (MPI_V1, Peer::Training),
    (MPI, Peer::Mpi),
    (SPARK, Peer::Spark),
];

/// What rules call the executors of applications.
pub const EXECUTORS: &str = "executors of SparkApplication";

/// How long an operator may usually take until a job is as expected.
const PATIENCE: Duration = Duration::from_mins(1);

/// Returns the kind's name, with its version if Go operators of several versions serve it.
pub fn title(kind: &Kind) -> String {
    if *kind == MPI_V1 {
        "MPIJob v1".to_owned()
    } else {
        kind.name.to_owned()
    }
}

/// Returns the file with what the Go operator does.
pub fn recording(kind: &Kind) -> PathBuf {
    let name = title(kind).to_lowercase().replace(' ', "-");
    workspace().join(format!("e2e/tests/data/peers/{name}.json"))
}

/// Returns the file with the executors of the Go operator's applications.
pub fn executors_recording() -> PathBuf {
    workspace().join("e2e/tests/data/executors.json")
}

/// Reads what the Go operator does.
pub fn recorded(file: &Path) -> Result<History> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("{}: run make peer-recordings", file.display()))?;
    history::read(&text).with_context(|| file.display().to_string())
}

/// Returns the pods and claims that came with the last act.
pub fn executors(mut all: History) -> History {
    let is_executor = |key: &str| key.starts_with("Pod ") || key.starts_with("PersistentVolume");
    for stages in all.0.values_mut() {
        stages.drain(..stages.len().saturating_sub(1));
        for stage in stages {
            stage.objects.retain(|key, _| is_executor(key));
            stage.events.clear();
        }
    }
    all
}

/// Returns one job of each group whose objects are equal except for names, and all jobs without objects.
pub fn distinct(all: &History) -> Result<BTreeSet<String>> {
    let mut names = BTreeMap::new();
    for (name, stages) in &all.0 {
        let has_objects = stages.iter().any(|stage| !stage.objects.is_empty());
        let objects = serde_json::to_string(stages)?;
        let objects = if has_objects {
            objects.replace(name, "JOB")
        } else {
            name.clone()
        };
        names.entry(objects).or_insert_with(|| name.clone());
    }
    Ok(names.into_values().collect())
}

/// Returns the options of a control plane on which a Go operator or ours runs.
pub fn options() -> Options {
    Options {
        controller_manager: true,
        users: vec![process::user()],
        ..Options::default()
    }
}

/// Returns the options of our operator in a namespace.
pub async fn ours(
    control: &ControlPlane,
    kind: &Kind,
    namespace: &str,
) -> Result<operator::Options> {
    let kubeconfig = control.kubeconfig(&kind.user()).await?;
    let log = control.scratch().join(format!("{namespace}.log"));
    let options = operator::Options::new(kind.operator, &kubeconfig, namespace, &log);
    if *kind != SPARK {
        return Ok(options);
    }
    let server = server(&std::fs::read_to_string(&kubeconfig)?)?;
    Ok(options.flag("spark-master", &format!("k8s://{server}")))
}

/// A namespace in which an operator takes jobs through their lives.
pub struct Stages {
    kind: Kind,
    client: Client,
    jobs: Jobs,
    kubelet: Kubelet,
    /// How long an operator may take until a job is as expected.
    pub patience: Duration,
    /// Runs the drivers of applications, if that is wanted.
    pub drivers: Option<Drivers>,
    // Dropped last, after its watchers.
    namespace: Namespace,
}

impl Stages {
    /// Creates the namespace.
    pub async fn on(control: &ControlPlane, kind: Kind) -> Result<Self> {
        let namespace = Namespace::create(control, "peers").await?;
        let client = control.client(ADMIN).await?;
        let driver = control.client(DRIVER).await?;
        let kubelet = Kubelet::start(driver, &[&namespace.name], lockstep()).await?;
        let jobs = Jobs::of(client.clone(), &namespace.name, &kind.resource());
        Ok(Self {
            kind,
            client,
            jobs,
            kubelet,
            patience: PATIENCE,
            drivers: None,
            namespace,
        })
    }

    /// Returns the namespace's name.
    pub fn namespace(&self) -> &str {
        &self.namespace.name
    }

    /// Takes all jobs through their lives at the same time, one act after the other, and returns what became of each. Calls
    /// `meanwhile` with the number of each act while the operator deals with it; 0 is the creation. Then waits until nothing changes,
    /// and some time for `expected` to be true of each job's stages: the operator may be slow.
    pub async fn play(
        &self,
        lives: &[Life],
        mut meanwhile: impl AsyncFnMut(usize) -> Result<()>,
        expected: impl Fn(&str, &[Stage]) -> bool,
    ) -> Result<History> {
        let manifests: Vec<Value> = lives.iter().map(|life| life.job.clone()).collect();
        corpus::create_named(&self.client, &[self.namespace()], &manifests).await?;
        let names = lives.iter().map(|life| life.name().to_owned()).collect();
        let mut recorder = Recorder::new(&self.client, self.namespace(), &self.kind, names);
        let mut history = History::default();
        for life in lives {
            if let Err(error) = self.jobs.create(&life.job).await {
                history.add(life.name(), Stage::refused(&refusal(error)?));
            }
        }
        let mut lives: Vec<&Life> = lives
            .iter()
            .filter(|life| !history.0.contains_key(life.name()))
            .collect();
        let mut number = 0;
        loop {
            meanwhile(number).await?;
            let (stages, restless) = self
                .settled(&mut recorder, &history, &lives, number, &expected)
                .await?;
            for (name, stage) in stages {
                recorder.keep(&name);
                history.add(&name, stage);
            }
            lives.retain(|life| life.acts.len() > number && !restless.contains(life.name()));
            if lives.is_empty() {
                return Ok(history);
            }
            let acts = lives.iter().map(async |life| {
                let (name, act) = (life.name(), &life.acts[number]);
                let done = act.of(name, self);
                done.await.with_context(|| format!("{name}: {act}"))
            });
            try_join_all(acts).await?;
            number += 1;
        }
    }

    /// Waits for rest after the act with this number, and some time for the rest of each job to be as expected. Returns each job's
    /// stage, and the jobs that don't come to rest, which are deleted.
    async fn settled(
        &self,
        recorder: &mut Recorder,
        history: &History,
        lives: &[&Life],
        number: usize,
        expected: &impl Fn(&str, &[Stage]) -> bool,
    ) -> Result<(BTreeMap<String, Stage>, BTreeSet<String>)> {
        let mut restless = BTreeSet::new();
        let mut end = None;
        loop {
            for name in recorder.until_settled().await? {
                self.jobs.delete(&name).await?;
                restless.insert(name);
            }
            let mut stages = BTreeMap::new();
            let mut all_expected = true;
            for life in lives {
                let act = match number {
                    0 => "created".to_owned(),
                    number => life.acts[number - 1].to_string(),
                };
                let stage = if restless.contains(life.name()) {
                    Stage::restless(&act)
                } else {
                    recorder.stage(life.name(), &act)
                };
                let mut so_far = history.0.get(life.name()).cloned().unwrap_or_default();
                so_far.push(stage.clone());
                all_expected &= expected(life.name(), &so_far);
                stages.insert(life.name().to_owned(), stage);
            }
            // An operator on a busy machine may rest in between.
            let end = *end.get_or_insert_with(|| Instant::now() + self.patience);
            if all_expected || Instant::now() > end {
                return Ok((stages, restless));
            }
        }
    }
}

/// Returns the API server's answer to a refused object.
fn refusal(error: anyhow::Error) -> Result<String> {
    match error.downcast::<kube::Error>()? {
        kube::Error::Api(status) if (400..500).contains(&status.code) => Ok(status.message),
        other => Err(other.into()),
    }
}
