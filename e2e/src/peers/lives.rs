//! What happens to jobs: the same for the Go operator and for ours.

use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use training_testkit::builders::{
    Job, Kind, MPI, PADDLE, PYTORCH, SPARK, TENSORFLOW, WITH_MASTER, application,
};
use training_testkit::kubelet::{SeenPod, State};

use super::Stages;
use crate::corpus;
use crate::lives::executor;
use Act::{
    Disappear, Edit, Evict, Executors, Fail, FailFirst, Restart, Run, Succeed, SucceedFirst, Wait,
};

/// What the names of jobs with more than a run and success begin with.
const EVENTFUL: &str = "t-";

/// A job, and what happens to it after it was created.
#[derive(Clone, Debug)]
pub struct Life {
    /// The manifest.
    pub job: Value,
    /// In this order; the operator comes to rest before each.
    pub acts: Vec<Act>,
}

/// One thing that happens to a job.
#[derive(Clone, Debug)]
pub enum Act {
    /// All pods that wait run.
    Run,
    /// The driver of an application creates this many executors, which run. The test creates them, so their spec isn't compared.
    Executors(u32),
    /// Spark's real driver runs for an application, and creates this many executors.
    Drive(u32),
    /// The first pod succeeds: of the master or launcher, or else the first worker's.
    SucceedFirst,
    /// All pods succeed.
    Succeed,
    /// The first pod fails with this exit code.
    FailFirst(i32),
    /// The last pod fails with this exit code.
    Fail(i32),
    /// The kubelet evicts the last pod.
    Evict,
    /// The last pod's container has restarted in place this many times.
    Restart(i32),
    /// The last pod's object disappears.
    Disappear,
    /// The user changes the spec.
    Edit(&'static str, Value),
    /// Time passes.
    Wait(Duration),
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run => f.write_str("pods run"),
            Self::Executors(count) => write!(f, "{count} executors run"),
            Self::Drive(count) => write!(f, "the driver creates {count} executor(s)"),
            Self::SucceedFirst => f.write_str("first pod succeeds"),
            Self::Succeed => f.write_str("pods succeed"),
            Self::FailFirst(code) => write!(f, "first pod exits with {code}"),
            Self::Fail(code) => write!(f, "last pod exits with {code}"),
            Self::Evict => f.write_str("last pod is evicted"),
            Self::Restart(count) => write!(f, "last pod restarts in place ({count})"),
            Self::Disappear => f.write_str("last pod disappears"),
            Self::Edit(what, _) => f.write_str(what),
            Self::Wait(time) => write!(f, "{} s later", time.as_secs()),
        }
    }
}

impl Act {
    /// Makes it happen.
    pub async fn of(
        &self,
        job: &str,
        Stages {
            client,
            jobs,
            kubelet,
            drivers,
            namespace,
            ..
        }: &Stages,
    ) -> Result<()> {
        let namespace = namespace.name.as_str();
        let mut pods = kubelet.pods(namespace, job);
        // Names of a Job's pods are random.
        pods.sort_by_key(|pod| (rank(pod), pod.replica.index, pod.name.clone()));
        pods.retain(|pod| !pod.is_finished() && !pod.deleting);
        let at = |pod: Option<&SeenPod>| pod.map(|pod| pod.name.clone()).context("no pod");
        let failed = |exit_code| State::Failed {
            exit_code,
            message: String::new(),
        };
        let set = async |pod: Option<&SeenPod>, state: State| {
            kubelet.set(namespace, &at(pod)?, &state).await
        };
        match self {
            Self::Run => kubelet.all_running(namespace, job).await.map(drop),
            Self::Executors(count) => {
                let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
                let driver = api.get(&at(pods.first())?).await?;
                for id in 1..=*count {
                    let pod = executor(&driver, &format!("{job}-exec-{id}"), id)?;
                    api.create(&PostParams::default(), &pod).await?;
                }
                let all = usize::try_from(*count)? + 1;
                kubelet.until_pods(namespace, job, all).await?;
                kubelet.all_running(namespace, job).await.map(drop)
            }
            Self::Drive(count) => {
                let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
                // The operator may not be able to submit it.
                let Some(driver) = pods.first() else {
                    return Ok(());
                };
                let driver = api.get(&driver.name).await?;
                let drivers = drivers.as_ref().context("no image of Spark")?;
                drivers.run(client, &driver, *count).await
            }
            Self::Succeed => {
                // The pod that decides is last, so that no other is deleted before it has succeeded.
                for pod in pods.iter().rev() {
                    set(Some(pod), State::Succeeded).await?;
                }
                Ok(())
            }
            Self::SucceedFirst => set(pods.first(), State::Succeeded).await,
            Self::FailFirst(code) => set(pods.first(), failed(*code)).await,
            Self::Fail(code) => set(pods.last(), failed(*code)).await,
            Self::Evict => set(pods.last(), State::Evicted).await,
            Self::Restart(count) => {
                let pod = at(pods.last())?;
                kubelet.restart_in_place(namespace, &pod, *count).await
            }
            Self::Disappear => kubelet.disappear(namespace, &at(pods.last())?).await,
            Self::Edit(_, change) => jobs.merge(job, change).await.map(drop),
            Self::Wait(time) => {
                tokio::time::sleep(*time).await;
                Ok(())
            }
        }
    }
}

/// Returns a number for the role: those that decide about a job come first.
fn rank(pod: &SeenPod) -> u32 {
    match pod.replica.role.as_str() {
        "chief" | "master" | "launcher" | "driver" => 0,
        "worker" => 1,
        _ => 2,
    }
}

impl Life {
    fn of(job: Job, acts: impl Into<Vec<Act>>) -> Self {
        Self {
            job: job.build(),
            acts: acts.into(),
        }
    }

    /// The job's name.
    pub fn name(&self) -> &str {
        self.job["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// Returns true if Spark's real driver runs.
    pub fn has_driver(&self) -> bool {
        self.acts.iter().any(|act| matches!(act, Act::Drive(_)))
    }

    /// Returns true if it is no manifest of the corpus.
    pub fn is_eventful(&self) -> bool {
        self.name().starts_with(EVENTFUL)
    }
}

/// Every manifest of the corpus, each of which runs and succeeds, and the lives in which more happens.
pub fn all(kind: &Kind) -> Result<Vec<Life>> {
    let corpus = if *kind == SPARK {
        corpus::submittable()?
    } else {
        corpus::of(kind)?
    };
    let corpus = corpus.into_iter().filter(|job| !ends_by_time(job));
    let mut lives: Vec<Life> = corpus
        .map(|job| Life {
            job,
            acts: vec![Act::Run, Act::Succeed],
        })
        .collect();
    lives.extend(eventful(kind));
    Ok(lives)
}

/// The applications of the corpus, each of which creates an executor.
pub fn with_executors() -> Result<Vec<Life>> {
    let all = corpus::submittable()?.into_iter();
    Ok(all
        .map(|job| Life {
            job,
            acts: vec![Act::Run, Act::Drive(1)],
        })
        .collect())
}

/// Returns true if it depends on the speed of the test when a job ends or is deleted.
fn ends_by_time(job: &Value) -> bool {
    const LONG: i64 = 600;
    let policy = &job["spec"]["runPolicy"];
    let limits = ["activeDeadlineSeconds", "ttlSecondsAfterFinished"].map(|limit| &policy[limit]);
    limits.iter().any(|limit| {
        limit
            .as_i64()
            .is_some_and(|seconds| (0..LONG).contains(&seconds))
    })
}

/// The lives of a kind of training job in which something fails, ends, is suspended or edited.
fn eventful(kind: &Kind) -> Vec<Life> {
    if *kind == SPARK {
        return of_applications();
    }
    let mut lives = failing(kind);
    if *kind != MPI {
        lives.extend(by_exit_code(kind));
    }
    lives.extend(limited(kind));
    lives.extend(suspended(kind));
    lives.extend(cleaned(kind));
    lives.extend(of_kind(kind));
    lives
}

/// A job with a master or launcher and two workers, or with three workers.
fn small(kind: &Kind, name: &str) -> Job {
    kind.small_job(&named(name), 2)
}

/// The same with this restart policy.
fn restarting(kind: &Kind, name: &str, policy: &str) -> Job {
    let job = small(kind, name).restart_policy("Worker", policy);
    if kind.name == MPI.name {
        job.restart_policy("Launcher", policy)
    } else if WITH_MASTER.contains(kind) {
        job.restart_policy("Master", policy)
    } else {
        job
    }
}

/// A job that fails with its first pod. The Job controller would retry a launcher at a time of its own.
fn unforgiving(kind: &Kind, name: &str) -> Job {
    let job = restarting(kind, name, "Never");
    if *kind == MPI {
        job.run_policy("backoffLimit", 0)
    } else {
        job
    }
}

fn failing(kind: &Kind) -> Vec<Life> {
    let job = |name, policy| restarting(kind, name, policy);
    vec![
        Life::of(job("never", "Never"), [Run, Fail(1), Succeed]),
        Life::of(job("never-137", "Never"), [Run, Fail(137), Succeed]),
        Life::of(unforgiving(kind, "first-never"), [Run, FailFirst(1)]),
        Life::of(job("evicted", "OnFailure"), [Run, Evict, Run, Succeed]),
        Life::of(
            job("disappears", "OnFailure"),
            [Run, Disappear, Run, Succeed],
        ),
    ]
}

fn by_exit_code(kind: &Kind) -> Vec<Life> {
    let job = |name, policy| restarting(kind, name, policy);
    // The second replacement comes later.
    let later = Wait(Duration::from_secs(11));
    vec![
        Life::of(
            job("exit-retryable", "ExitCode"),
            [Run, Fail(137), Run, Fail(143), later, Run, Succeed],
        ),
        Life::of(job("exit-permanent", "ExitCode"), [Run, Fail(1), Succeed]),
        Life::of(
            job("exit-first", "ExitCode"),
            [Run, FailFirst(137), Run, Succeed],
        ),
        Life::of(
            job("exit-too-often", "ExitCode").run_policy("backoffLimit", 1),
            [Run, Fail(137), Run, Fail(137), Run, Fail(137)],
        ),
        Life::of(job("always", "Always"), [Run, Restart(1), Fail(1), Run]),
    ]
}

fn limited(kind: &Kind) -> Vec<Life> {
    let edit = |what, field: &str, value: u32| {
        Edit(what, json!({ "spec": { "runPolicy": { field: value } } }))
    };
    let deadline = edit(
        "user sets a deadline that has passed",
        "activeDeadlineSeconds",
        1,
    );
    let ttl = edit("user sets a TTL of 0", "ttlSecondsAfterFinished", 0);
    vec![
        Life::of(
            small(kind, "in-place").run_policy("backoffLimit", 3),
            [Run, Restart(1), Restart(2), Succeed],
        ),
        Life::of(
            small(kind, "in-place-too-often").run_policy("backoffLimit", 2),
            [Run, Restart(1), Restart(2), Restart(3)],
        ),
        Life::of(small(kind, "late"), [Run, deadline]),
        Life::of(small(kind, "short-lived"), [Run, Succeed, ttl]),
    ]
}

fn suspended(kind: &Kind) -> Vec<Life> {
    let policy = |suspend: bool| json!({ "spec": { "runPolicy": { "suspend": suspend } } });
    let suspend = || Edit("user suspends it", policy(true));
    let resume = || Edit("user resumes it", policy(false));
    vec![
        Life::of(
            small(kind, "born-suspended").run_policy("suspend", true),
            [resume(), Run, Succeed],
        ),
        Life::of(
            small(kind, "suspended"),
            [Run, suspend(), resume(), Run, Succeed],
        ),
        Life::of(
            small(kind, "suspended-twice"),
            [suspend(), resume(), suspend(), resume(), Run],
        ),
        Life::of(
            small(kind, "elsewhere").run_policy("managedBy", "kueue.x-k8s.io/multikueue"),
            [],
        ),
    ]
}

fn cleaned(kind: &Kind) -> Vec<Life> {
    let mut lives = vec![Life::of(
        small(kind, "first-succeeds"),
        [Run, SucceedFirst, Succeed],
    )];
    for clean in ["None", "Running", "All"] {
        let name = format!("clean-{}", clean.to_lowercase());
        let job = |job: Job| job.run_policy("cleanPodPolicy", clean);
        lives.extend([
            Life::of(job(small(kind, &name)), [Run, SucceedFirst, Succeed]),
            Life::of(
                job(unforgiving(kind, &format!("failed-{name}"))),
                [Run, FailFirst(1)],
            ),
        ]);
    }
    lives
}

/// The lives that only some kinds have.
fn of_kind(kind: &Kind) -> Vec<Life> {
    let job = |name: &str| kind.job(&named(name));
    let mut lives = Vec::new();
    if WITH_MASTER.contains(kind) {
        let role = match kind.name {
            "TFJob" => "Chief",
            _ => "Master",
        };
        lives.push(Life::of(job("alone").role(role, 1), [Run, Succeed]));
    }
    if [PYTORCH, PADDLE].contains(kind) {
        let workers = job("workers").workers(2);
        lives.push(Life::of(workers, [Run, SucceedFirst, Succeed]));
    }
    if *kind == TENSORFLOW {
        let cluster = job("cluster").role("Chief", 1).role("PS", 2);
        let cluster = cluster.role("Worker", 2).role("Evaluator", 1);
        let all = job("all-workers").workers(2);
        let dynamic = job("dynamic").workers(2).role("PS", 1);
        lives.extend([
            Life::of(cluster, [Run, SucceedFirst, Succeed]),
            Life::of(
                all.set("/spec/successPolicy", "AllWorkers"),
                [Run, SucceedFirst, Succeed],
            ),
            Life::of(
                dynamic.set("/spec/enableDynamicWorker", true),
                [Run, scale(kind, 3), Run, scale(kind, 1), Succeed],
            ),
        ]);
    }
    if *kind == PYTORCH {
        let elastic = job("elastic").workers(2).set(
            "/spec/elasticPolicy",
            json!({
                "minReplicas": 1, "maxReplicas": 4, "rdzvBackend": "c10d",
                "metrics": [{ "type": "Resource", "resource": {
                    "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 80 },
                } }],
            }),
        );
        lives.push(Life::of(
            elastic,
            [Run, scale(kind, 3), Run, scale(kind, 1), Fail(1), Run],
        ));
    }
    lives
}

/// The lives of applications. A driver's evicted or vanished pod, and one that failed, is replaced or not by the restart policy.
fn of_applications() -> Vec<Life> {
    let job = |name: &str| {
        let name = named(name);
        let spec = application(&name)["spec"].clone();
        SPARK.job(&name).set("/spec", spec)
    };
    let restarting = |name: &str, policy: &str| {
        job(name).set(
            "/spec/restartPolicy",
            json!({
                "type": policy, "onFailureRetries": 1, "onFailureRetryInterval": 1,
                "onSubmissionFailureRetries": 1, "onSubmissionFailureRetryInterval": 1,
            }),
        )
    };
    let later = || Wait(Duration::from_secs(5));
    let suspend = |suspend: bool| {
        let what = if suspend {
            "user suspends it"
        } else {
            "user resumes it"
        };
        Edit(what, json!({ "spec": { "suspend": suspend } }))
    };
    let edit = || {
        Edit(
            "user changes the arguments",
            json!({ "spec": { "arguments": ["10"] } }),
        )
    };
    let ttl = Edit(
        "user sets a TTL of 1 s",
        json!({ "spec": { "timeToLiveSeconds": 1 } }),
    );
    let bad =
        json!({ "spark.kubernetes.driver.volumes.configMap.settings.mount.path": "/etc/settings" });
    vec![
        Life::of(job("executors"), [Run, Executors(2), Succeed]),
        Life::of(job("executor-fails"), [Run, Executors(2), Fail(1), Succeed]),
        Life::of(job("executor-evicted"), [Run, Executors(1), Evict, Succeed]),
        Life::of(
            job("executor-goes"),
            [Run, Executors(1), Disappear, Succeed],
        ),
        Life::of(job("fails"), [Run, FailFirst(1)]),
        Life::of(
            job("fails-with-executors"),
            [Run, Executors(2), FailFirst(137), Succeed],
        ),
        Life::of(job("fails-early"), [FailFirst(1)]),
        Life::of(job("evicted"), [Run, Evict]),
        Life::of(job("disappears"), [Run, Disappear]),
        Life::of(
            restarting("on-failure", "OnFailure"),
            [Run, FailFirst(1), later(), Run, FailFirst(1), later()],
        ),
        Life::of(
            restarting("on-failure-evicted", "OnFailure"),
            [Run, Evict, later(), Run, Succeed],
        ),
        Life::of(
            restarting("on-failure-disappears", "OnFailure"),
            [Run, Disappear, later(), Run, Succeed],
        ),
        Life::of(
            restarting("always", "Always"),
            [Run, Succeed, later(), Run, FailFirst(1), later(), Run],
        ),
        Life::of(
            job("refused").set("/spec/sparkConf", bad.clone()),
            [later()],
        ),
        Life::of(
            restarting("refused-twice", "OnFailure").set("/spec/sparkConf", bad),
            [later(), later()],
        ),
        Life::of(
            job("born-suspended").set("/spec/suspend", true),
            [suspend(false), Run, Succeed],
        ),
        Life::of(
            job("suspended"),
            [Run, suspend(true), suspend(false), Run, Succeed],
        ),
        Life::of(
            job("suspended-late"),
            [Run, Succeed, suspend(true), suspend(false)],
        ),
        Life::of(job("edited"), [Run, edit(), Run, Succeed]),
        Life::of(job("edited-late"), [Run, Succeed, edit(), Run]),
        Life::of(job("short-lived"), [Run, Succeed, ttl]),
    ]
}

/// Returns a name that is no part of any message.
fn named(life: &str) -> String {
    format!("{EVENTFUL}{life}")
}

fn scale(kind: &Kind, workers: u32) -> Act {
    let what = match workers {
        3 => "user sets 3 workers",
        _ => "user sets 1 worker",
    };
    let change = json!({ "spec": { kind.replica_map: { "Worker": { "replicas": workers } } } });
    Act::Edit(what, change)
}
