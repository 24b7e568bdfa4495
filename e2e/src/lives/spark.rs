//! Life cycles of a `SparkApplication`: S-13.

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::{Value, json};
use training_testkit::builders::{Job, SPARK};
use training_testkit::kubelet::State;
use training_testkit::wait::{HANG, Seen, eventually};
use training_testkit::{SPARK_APP_NAME, SPARK_ROLE};

use super::StepRunner;

/// The status's state of a running driver.
const RUNNING: &str = "RUNNING";
/// The label with a pod's submission.
const SUBMISSION: &str = "sparkoperator.k8s.io/submission-id";
/// Labels that Spark copies from a driver to its executors.
const SHARED: [&str; 4] = [
    SPARK_APP_NAME,
    "sparkoperator.k8s.io/launched-by-spark-operator",
    SUBMISSION,
    "spark-app-selector",
];

/// A life cycle of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SparkLife {
    /// An executor appears and disappears, and the driver succeeds.
    Succeeds,
    /// The driver fails while an executor runs, and the next driver succeeds.
    Retried,
    /// Suspended while it runs, resumed, succeeds.
    Suspended,
    /// The spec is edited while the driver runs; the driver of the new spec succeeds.
    Edited,
    /// S-07: the user restarts it while the driver runs; the next driver succeeds.
    Restarted,
    /// The driver fails without a retry.
    Fails,
    /// S-14: the driver is evicted by its kubelet, and the next driver succeeds.
    Evicted,
    /// S-14: the driver's node is lost and its pod removed, and the next driver succeeds.
    NodeLost,
    /// The operator deletes it a second after its success.
    TimeToLive,
    /// The user deletes it while it runs.
    Deleted,
}

impl SparkLife {
    /// Every life cycle of a sweep.
    pub const ALL: [Self; 10] = [
        Self::Succeeds,
        Self::Retried,
        Self::Suspended,
        Self::Edited,
        Self::Restarted,
        Self::Fails,
        Self::Evicted,
        Self::NodeLost,
        Self::TimeToLive,
        Self::Deleted,
    ];

    pub(super) fn job(self, name: &str) -> Job {
        let app = SPARK
            .job(name)
            .set("/spec/type", "Python")
            .set("/spec/mode", "cluster")
            .set("/spec/image", "trainyard.test/spark:1")
            .set("/spec/sparkVersion", "4.0.1")
            .set("/spec/mainApplicationFile", "local:///opt/spark/pi.py")
            .set("/spec/driver", json!({ "cores": 1, "memory": "512m" }))
            .set(
                "/spec/executor",
                json!({ "cores": 1, "instances": 1, "memory": "512m" }),
            );
        match self {
            Self::Retried | Self::Evicted | Self::NodeLost => app.set(
                "/spec/restartPolicy",
                json!({ "type": "OnFailure", "onFailureRetries": 1, "onFailureRetryInterval": 1 }),
            ),
            Self::TimeToLive => app.set("/spec/timeToLiveSeconds", 1),
            Self::Succeeds
            | Self::Suspended
            | Self::Edited
            | Self::Restarted
            | Self::Fails
            | Self::Deleted => app,
        }
    }

    pub(super) async fn run(self, actor: &StepRunner<'_>) -> Result<()> {
        let actions = Actions(actor);
        let first = actions.submitted(None).await?;
        actions.runs().await?;
        match self {
            Self::Succeeds => {
                actions.executor_runs().await?;
                actions.executor(&State::Succeeded).await?;
                actions.until_executor("COMPLETED").await?;
                actions.executor_goes().await?;
            }
            Self::TimeToLive => {
                actions.driver(&State::Succeeded).await?;
                actor.until_gone().await?;
                return actor.until_all_is_gone().await;
            }
            Self::Deleted => {
                actor.delete(&DeleteParams::background()).await?;
                actor.until_gone().await?;
                return actor.until_all_is_gone().await;
            }
            Self::Fails => {
                actions.driver(&failed()).await?;
                return actions.until_state("FAILED").await;
            }
            Self::Retried => {
                actions.executor_runs().await?;
                actions.driver(&failed()).await?;
            }
            Self::Evicted => actions.driver(&State::Evicted).await?,
            Self::NodeLost => actor.lose_node_of("driver", |_| true, |_| true).await?,
            Self::Suspended => {
                actor.suspend(true).await?;
                actions.until_state("SUSPENDED").await?;
                actor.suspend(false).await?;
            }
            Self::Restarted => actor.request_restart().await?,
            Self::Edited => {
                actor
                    .merge(&json!({ "spec": { "arguments": ["10"] } }))
                    .await?;
            }
        }
        if self != Self::Succeeds {
            actions.submitted(Some(first)).await?;
            actions.runs().await?;
        }
        actions.driver(&State::Succeeded).await?;
        actions.until_state("COMPLETED").await
    }
}

/// Returns an executor as the driver creates it, with the driver as its owner and the driver's labels.
pub fn executor(driver: &Pod, name: &str, id: u32) -> Result<Pod> {
    let labels = SHARED.iter().map(|key| {
        let value = driver.labels().get(*key).cloned();
        ((*key).to_owned(), value.unwrap_or_default().into())
    });
    let mut labels: serde_json::Map<String, Value> = labels.collect();
    labels.insert(SPARK_ROLE.to_owned(), "executor".into());
    labels.insert("spark-exec-id".to_owned(), id.to_string().into());
    let mut application = serde_json::to_value(&driver.owner_references()[0])?;
    application["controller"] = json!(false);
    let owner = json!({
        "apiVersion": "v1", "kind": "Pod", "name": driver.name_any(), "uid": driver.uid(), "controller": true,
    });
    Ok(serde_json::from_value(json!({
        "metadata": { "name": name, "labels": labels, "ownerReferences": [owner, application] },
        "spec": { "containers": [{ "name": "spark-kubernetes-executor", "image": "trainyard.test/spark:1" }] },
    }))?)
}

fn failed() -> State {
    State::Failed {
        exit_code: 3,
        message: String::new(),
    }
}

/// Returns the state of an application.
pub(super) fn state(app: &Value) -> &str {
    let state = &app["status"]["applicationState"]["state"];
    state.as_str().unwrap_or_default()
}

/// Actions and waits that are specific to this kind.
struct Actions<'a>(&'a StepRunner<'a>);

impl StepRunner<'_> {
    /// The driver runs, and the status says so.
    pub(super) async fn run_driver(&self) -> Result<()> {
        let actions = Actions(self);
        actions.submitted(None).await?;
        actions.runs().await
    }
}

impl Actions<'_> {
    async fn runs(&self) -> Result<()> {
        self.driver(&State::Running).await?;
        self.until_state(RUNNING).await
    }

    fn driver_name(&self) -> String {
        self.0.full("driver")
    }

    fn executor_name(&self) -> String {
        self.0.full("exec-1")
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.0.world.client.clone(), self.0.world.namespace())
    }

    async fn until_state(&self, wanted: &str) -> Result<()> {
        self.0.until(wanted, |app| state(app) == wanted).await
    }

    /// Waits until a submission other than the former one is recorded and its driver has a node. Returns the submission's id.
    async fn submitted(&self, former: Option<String>) -> Result<String> {
        let id = |app: &Value| app["status"]["submissionID"].as_str().map(str::to_owned);
        let jobs = &self.0.world.jobs;
        let app = jobs
            .until(self.0.name, "submitted", |app| {
                state(app) == "SUBMITTED" && id(app).is_some() && id(app) != former
            })
            .await?;
        let id = id(&app).context("no submission")?;
        let label = SUBMISSION;
        let of_it = self.pods().get(&self.driver_name()).await?;
        anyhow::ensure!(
            of_it.labels().get(label) == Some(&id),
            "the status names the submission {id}, and the driver {:?}",
            of_it.labels().get(label)
        );
        self.until_bound(&self.driver_name(), of_it.uid()).await?;
        Ok(id)
    }

    async fn until_bound(&self, name: &str, uid: Option<String>) -> Result<()> {
        let world = self.0.world;
        eventually(&format!("{name} to have a node"), HANG, async || {
            let pods = world.kubelet.pods(world.namespace(), self.0.name);
            let bound = |pod: &training_testkit::kubelet::SeenPod| {
                pod.name == name && pod.bound && uid.as_ref() == Some(&pod.uid)
            };
            Ok(if pods.iter().any(bound) {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{pods:?}"))
            })
        })
        .await
    }

    async fn driver(&self, state: &State) -> Result<()> {
        self.0.set("driver", state).await
    }

    async fn executor(&self, state: &State) -> Result<()> {
        self.0.set("exec-1", state).await
    }

    /// Creates a running executor as the driver would, with the driver as its owner and the driver's labels.
    async fn executor_runs(&self) -> Result<()> {
        let driver = self.pods().get(&self.driver_name()).await?;
        let pod = executor(&driver, &self.executor_name(), 1)?;
        let made = self.pods().create(&PostParams::default(), &pod).await?;
        self.until_bound(&self.executor_name(), made.uid()).await?;
        self.executor(&State::Running).await?;
        self.until_executor(RUNNING).await
    }

    async fn until_executor(&self, wanted: &str) -> Result<()> {
        let name = self.executor_name();
        self.0
            .until("with its executor recorded", |app| {
                app["status"]["executorState"][&name] == wanted
            })
            .await
    }

    /// Deletes the executor as the driver would.
    async fn executor_goes(&self) -> Result<()> {
        let world = self.0.world;
        world
            .kubelet
            .disappear(world.namespace(), &self.executor_name())
            .await
    }
}
