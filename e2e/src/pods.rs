//! Jobs with real containers: the cluster and the shared tools of the pod-level tests.
//!
//! Containers with [`UNTIL_GO`] run until the test calls [`Site::go`].

mod cluster;
mod operator;
mod reads;
mod shapes;
pub mod spark;
mod volume;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use kube::Client;
use kube::api::{Api, LogParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};
use training_testkit::auditor::{Auditor, Summary};
use training_testkit::builders::{KINDS, Kind, PYTORCH};
use training_testkit::job::{Jobs, is_finished, is_true};
use training_testkit::wait::{self, Seen};

pub use self::cluster::Cluster;
pub use self::operator::{assert_operator_content, operator_pods, ready_operator};
pub use self::reads::{Event, Row, after, said, table};
pub use self::shapes::{
    MASTER, WORKER, active, attempt, container, created, delete, example, failed,
    no_longer_running, pair, pair_of, running, shell, shell_of, succeeded,
};
pub use self::volume::Volume;
use crate::read;

/// The namespace of the operators.
pub const OPERATORS: &str = "trainyard-system";
/// A script that succeeds as soon as the name `go` resolves.
pub const UNTIL_GO: &str = "until getent hosts go; do sleep 0.2; done";

/// The limit of a wait. Training on two slow cores in parallel with other tests takes a minute.
const PATIENCE: Duration = Duration::from_mins(5);
/// The polling interval, long enough to leave the CPU to containers.
const PAUSE: Duration = Duration::from_millis(100);

/// Limits parallel light tests.
static LIGHT: Semaphore = Semaphore::const_new(6);
/// Limits training to one job at a time.
static HEAVY: Semaphore = Semaphore::const_new(1);

/// The load of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// A few shells.
    Light,
    /// A framework in several containers.
    Heavy,
}

/// A namespace on the cluster, for one test.
pub struct Site {
    /// The cluster.
    pub cluster: Cluster,
    /// The user's client.
    pub client: Client,
    /// The kind under test.
    pub kind: Kind,
    /// The jobs of the namespace, of this kind.
    pub jobs: Jobs,
    /// Checks the invariants of jobs that consist only of pods and services.
    auditor: Option<Auditor>,
    /// The namespace's name.
    pub namespace: String,
    /// The jobs whose failure [`Site::assert_why`] has checked.
    explained: Mutex<BTreeSet<String>>,
    begun: Instant,
    _turn: SemaphorePermit<'static>,
}

impl Site {
    /// Waits for the test's turn and creates its namespace, for `PyTorchJobs`.
    pub async fn open(prefix: &str, weight: Weight) -> Result<Self> {
        Self::of(PYTORCH, prefix, weight).await
    }

    /// Does the same for jobs of any kind.
    pub async fn of(kind: Kind, prefix: &str, weight: Weight) -> Result<Self> {
        let turns = match weight {
            Weight::Light => &LIGHT,
            Weight::Heavy => &HEAVY,
        };
        let turn = turns.acquire().await?;
        let cluster = Cluster::given()?;
        let client = cluster.client().await?;
        let namespace = format!("{prefix}-{}", std::process::id());
        let object = serde_json::from_value(json!({ "metadata": { "name": namespace } }))?;
        Api::<Namespace>::all(client.clone())
            .create(&PostParams::default(), &object)
            .await?;
        let auditor = if KINDS.contains(&kind) {
            Some(Auditor::start(client.clone(), &namespace, &kind.resource()).await?)
        } else {
            None
        };
        Ok(Self {
            jobs: Jobs::of(client.clone(), &namespace, &kind.resource()),
            kind,
            cluster,
            client,
            auditor,
            namespace,
            explained: Mutex::default(),
            begun: Instant::now(),
            _turn: turn,
        })
    }

    /// Enforces Pod Security level `restricted` in the namespace.
    pub async fn enforce_restricted(&self) -> Result<()> {
        let labels = json!({ "pod-security.kubernetes.io/enforce": "restricted" });
        let change = json!({ "metadata": { "labels": labels } });
        Api::<Namespace>::all(self.client.clone())
            .patch(
                &self.namespace,
                &PatchParams::default(),
                &Patch::Merge(&change),
            )
            .await?;
        Ok(())
    }

    /// Returns the API of the namespace's pods.
    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Returns a pod as JSON.
    pub async fn pod(&self, name: &str) -> Result<Value> {
        Ok(serde_json::to_value(self.pods().get(name).await?)?)
    }

    /// Counts creations and deletions of each object so far.
    pub fn summary(&self) -> Summary {
        let auditor = self.auditor.as_ref();
        auditor.map(Auditor::summary).unwrap_or_default()
    }

    /// Returns the log of a pod's main container.
    pub async fn log(&self, pod: &str) -> Result<String> {
        let container = Some(self.kind.container.to_owned()).filter(|c| !c.is_empty());
        let parameters = LogParams {
            container,
            ..LogParams::default()
        };
        Ok(self.pods().logs(pod, &parameters).await?)
    }

    /// Waits until a pod's log contains a word.
    pub async fn until_says(&self, pod: &str, word: &str) -> Result<()> {
        eventually(&format!("{word} in the log of {pod}"), async || {
            let log = self.log(pod).await?;
            Ok(if log.contains(word) {
                Seen::Yes(())
            } else {
                Seen::NotYet(log)
            })
        })
        .await
    }

    /// Ends all scripts that wait for the name `go`.
    pub async fn go(&self) -> Result<()> {
        self.announce("go").await
    }

    /// Makes a name resolve in the namespace.
    pub async fn announce(&self, name: &str) -> Result<()> {
        let service = serde_json::from_value(json!({
            "metadata": { "name": name }, "spec": { "ports": [{ "port": 1 }] },
        }))?;
        Api::<Service>::namespaced(self.client.clone(), &self.namespace)
            .create(&PostParams::default(), &service)
            .await?;
        Ok(())
    }

    /// Waits until a job fulfils a condition; fails if it ends before.
    pub async fn until(
        &self,
        name: &str,
        what: &str,
        looks: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let job = eventually(&format!("{name} {what}"), async || {
            let job = self.jobs.get(name).await?;
            Ok(if looks(&job) || is_finished(&job) {
                Seen::Yes(job)
            } else {
                Seen::NotYet(job["status"].to_string())
            })
        })
        .await?;
        ensure!(
            looks(&job),
            "{name} never was {what}, it has ended: {}",
            job["status"]
        );
        Ok(job)
    }

    /// Waits until a condition of a job is `True`.
    pub async fn until_true(&self, name: &str, condition: &str) -> Result<Value> {
        self.until(name, condition, |job| is_true(job, condition))
            .await
    }

    /// Waits until a job's status says that it runs and all of its pods really run, and returns the pods.
    pub async fn until_running(&self, name: &str, pods: usize) -> Result<Vec<Value>> {
        let all = i64::try_from(pods)?;
        self.until(name, "running with all pods", |job| {
            is_true(job, "Running") && active(job) == all
        })
        .await?;
        let list = read::pods(&self.client, &self.namespace, name).await?;
        ensure!(list.len() == pods, "{:?}", read::names(&list));
        Ok(list)
    }

    /// Waits for a pod with another uid, and returns it.
    pub async fn until_replaced(&self, old: &Value) -> Result<Value> {
        let (name, uid) = (read::name(old), &old["metadata"]["uid"]);
        eventually(&format!("a new pod {name}"), async || {
            let pod = self.pod(&name).await?;
            Ok(if pod["metadata"]["uid"] == *uid {
                Seen::NotYet(pod["status"].to_string())
            } else {
                Seen::Yes(pod)
            })
        })
        .await
    }

    /// Waits until the waiting reason of a pod's main container is one of these, and returns it.
    pub async fn until_waits_for(&self, pod: &str, reasons: &[&str]) -> Result<String> {
        eventually(&format!("{pod} waiting for {reasons:?}"), async || {
            let status = &self.pod(pod).await?["status"];
            let reason = &status["containerStatuses"][0]["state"]["waiting"]["reason"];
            Ok(match reason.as_str() {
                Some(reason) if reasons.contains(&reason) => Seen::Yes(reason.to_owned()),
                _ => Seen::NotYet(status.to_string()),
            })
        })
        .await
    }

    /// Waits until a job has no pods.
    pub async fn until_no_pods(&self, job: &str) -> Result<()> {
        self.until_pods(job, &[]).await
    }

    /// Waits until a job has exactly these pods.
    pub async fn until_pods(&self, job: &str, wanted: &[&str]) -> Result<()> {
        eventually(&format!("the pods {wanted:?}"), async || {
            let names = read::names(&read::pods(&self.client, &self.namespace, job).await?);
            Ok(if names == wanted {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{names:?}"))
            })
        })
        .await
    }

    /// Ends a test: checks that the auditor found no violation, that no request of the operator was forbidden, and that
    /// [`Site::assert_why`] was called for every job that has failed.
    pub async fn finish(self, saw: &str) -> Result<()> {
        let failed = self.failed_jobs().await?;
        let explained = self
            .explained
            .lock()
            .map_err(|_| anyhow!("poisoned"))?
            .clone();
        ensure!(
            failed.is_subset(&explained),
            "{failed:?} have failed, of which only {explained:?} were explained"
        );
        if let Some(auditor) = &self.auditor {
            auditor.assert_clean().await?;
        }
        assert_operator_content(&self.client, &self.kind).await?;
        eprintln!("{}: {:.1?}, {saw}", self.namespace, self.begun.elapsed());
        Ok(())
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}: the test failed", self.namespace);
        }
        let namespace = self.namespace.as_str();
        // A failure of the clean-up doesn't fail the test.
        let _ = self
            .cluster
            .kubectl(&["delete", "namespace", namespace, "--wait=false"]);
    }
}

/// Waits with a limit that suits containers.
pub async fn eventually<T: Debug>(
    what: &str,
    mut poll: impl AsyncFnMut() -> Result<Seen<T>>,
) -> Result<T> {
    wait::eventually(what, PATIENCE, async || {
        let seen = poll().await;
        if !matches!(seen, Ok(Seen::Yes(_))) {
            tokio::time::sleep(PAUSE).await;
        }
        seen
    })
    .await
}
