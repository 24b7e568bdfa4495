//! Jobs with real containers: the cluster that the pod-level tests run on, and what they share.
//!
//! A test that lets containers run until it has seen enough gives them [`UNTIL_GO`], and ends them
//! with [`Site::go`].

use std::env;
use std::fmt::Debug;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use kube::api::{Api, DeleteParams, ListParams, LogParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};
use training_testkit::auditor::Auditor;
use training_testkit::builders::{Job, pytorch_job, pytorch_jobs};
use training_testkit::control_plane::{client_from, target_directory};
use training_testkit::job::{Condition, Jobs, counters, is_finished, is_true};
use training_testkit::manifest;
use training_testkit::wait::{self, Seen};

use crate::look;

/// Where the operators are deployed.
pub const OPERATORS: &str = "trainyard-system";
/// The image of small containers.
const PYTHON: &str = "trainyard/python:1";
/// A script that ends well as soon as the test says so: a name begins to resolve.
pub const UNTIL_GO: &str = "until getent hosts go; do sleep 0.2; done";

/// When a wait counts as a hang. Training on two slow cores beside other tests takes a minute.
const PATIENCE: Duration = Duration::from_mins(5);
/// Between two looks. Here containers need the CPU more than the tests do.
const PAUSE: Duration = Duration::from_millis(100);

/// Tests that need little may run so many at a time.
static LIGHT: Semaphore = Semaphore::const_new(6);
/// Frameworks train one job at a time.
static HEAVY: Semaphore = Semaphore::const_new(1);

/// How much a test needs of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// A few shells.
    Light,
    /// A framework in several containers.
    Heavy,
}

/// The cluster, as the one who runs the tests gave it.
#[derive(Clone, Debug)]
pub struct Cluster {
    kubeconfig: PathBuf,
    node: PathBuf,
    state: Option<PathBuf>,
}

impl Cluster {
    /// The cluster of this run.
    pub fn given() -> Result<Self> {
        let path = |name: &str| env::var_os(name).map(PathBuf::from);
        let wanted = |name: &str| {
            path(name).with_context(|| {
                format!("{name} is not set: these tests are run by `cargo xtask test pods`")
            })
        };
        Ok(Self {
            kubeconfig: wanted("TRAINYARD_PODS_KUBECONFIG")?,
            node: wanted("TRAINYARD_NODE")?,
            state: path("TRAINYARD_PODS_STATE"),
        })
    }

    /// Acts as an administrator.
    pub async fn client(&self) -> Result<Client> {
        client_from(&self.kubeconfig).await
    }

    /// What kubectl prints.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.node);
        command
            .arg("kubectl")
            .args(args)
            .env("KUBECONFIG", &self.kubeconfig)
            // It would keep what it discovers in the home directory.
            .env("KUBECACHEDIR", target_directory()?.join("discovery"));
        output(&mut command)
    }

    /// Whether commands can be run inside the node; in a cluster of the user's own they can't.
    pub fn is_open(&self) -> bool {
        self.state.is_some()
    }

    /// The number of a container's first process inside the node.
    pub fn first_process(&self, container: &str) -> Result<String> {
        let id = container.rsplit('/').next().unwrap_or(container);
        // The lowest number: all others are its children.
        let script = r#"
            for pid in $(ls /proc | grep -E '^[0-9]+$' | sort -n); do
                if grep -qs "$0" "/proc/$pid/cgroup"; then echo "$pid"; exit; fi
            done
            echo "no process of $0" >&2; exit 1"#;
        Ok(self.inside(&["sh", "-c", script, id])?.trim().to_owned())
    }

    /// Kills the first process of a container from outside of it, as the kernel would.
    pub fn kill(&self, container: &str) -> Result<()> {
        let pid = self.first_process(container)?;
        self.inside(&["kill", "-9", &pid]).map(drop)
    }

    /// What a command inside the node prints.
    pub fn inside(&self, args: &[&str]) -> Result<String> {
        let state = self.state.as_ref().context("no way into the node")?;
        let mut command = Command::new(&self.node);
        command
            .args(["cluster", "exec", "--state"])
            .arg(state)
            .arg("--")
            .args(args);
        output(&mut command)
    }
}

fn output(command: &mut Command) -> Result<String> {
    let out = command
        .output()
        .with_context(|| format!("can't run {command:?}"))?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr);
        bail!("{command:?}: {}\n{text}{said}", out.status);
    }
    Ok(text)
}

/// A namespace on the cluster, for one test.
pub struct Site {
    /// The cluster.
    pub cluster: Cluster,
    /// Acts as the user.
    pub client: Client,
    /// The jobs of the namespace.
    pub jobs: Jobs,
    /// Checks the invariants.
    pub auditor: Auditor,
    /// The namespace's name.
    pub namespace: String,
    begun: Instant,
    _turn: SemaphorePermit<'static>,
}

impl Site {
    /// A namespace of its own, once it is this test's turn.
    pub async fn open(prefix: &str, weight: Weight) -> Result<Self> {
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
        let auditor = Auditor::start(client.clone(), &namespace, &pytorch_jobs()).await?;
        Ok(Self {
            jobs: Jobs::pytorch(client.clone(), &namespace),
            cluster,
            client,
            auditor,
            namespace,
            begun: Instant::now(),
            _turn: turn,
        })
    }

    /// From now on only restricted pods are admitted.
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

    /// The namespace's pods.
    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// A pod as JSON.
    pub async fn pod(&self, name: &str) -> Result<Value> {
        Ok(serde_json::to_value(self.pods().get(name).await?)?)
    }

    /// What a pod's main container has printed.
    pub async fn log(&self, pod: &str) -> Result<String> {
        let container = Some("pytorch".to_owned());
        let parameters = LogParams {
            container,
            ..LogParams::default()
        };
        Ok(self.pods().logs(pod, &parameters).await?)
    }

    /// Ends all scripts that wait for it.
    pub async fn go(&self) -> Result<()> {
        let service = serde_json::from_value(json!({
            "metadata": { "name": "go" }, "spec": { "ports": [{ "port": 1 }] },
        }))?;
        Api::<Service>::namespaced(self.client.clone(), &self.namespace)
            .create(&PostParams::default(), &service)
            .await?;
        Ok(())
    }

    /// Waits until a job looks as told. A job that ended otherwise is not waited for.
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

    /// Waits until a job is said to run with all of its pods, each of which really runs, and gives
    /// the pods.
    pub async fn until_running(&self, name: &str, pods: usize) -> Result<Vec<Value>> {
        let all = i64::try_from(pods)?;
        let active = |job: &Value, role| counters(job, role).get("active").copied();
        self.until(name, "running with all pods", |job| {
            let sum = active(job, "Master").unwrap_or(0) + active(job, "Worker").unwrap_or(0);
            is_true(job, "Running") && sum == all
        })
        .await?;
        let list = look::pods(&self.client, &self.namespace, name).await?;
        ensure!(list.len() == pods, "{:?}", look::names(&list));
        Ok(list)
    }

    /// Waits for a pod with another uid, and gives it.
    pub async fn until_replaced(&self, old: &Value) -> Result<Value> {
        let (name, uid) = (look::name(old), &old["metadata"]["uid"]);
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

    /// Waits until the waiting reason of a pod's main container is one of these, and gives it.
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
            let names = look::names(&look::pods(&self.client, &self.namespace, job).await?);
            Ok(if names == wanted {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{names:?}"))
            })
        })
        .await
    }

    /// The end of every test: nobody found anything wrong, and the operator was refused nothing.
    pub async fn finish(self, saw: &str) -> Result<()> {
        self.auditor.assert_clean().await?;
        assert_operator_content(&self.client).await?;
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
        // Whatever goes wrong here is no failure of the test.
        let _ = self
            .cluster
            .kubectl(&["delete", "namespace", namespace, "--wait=false"]);
    }
}

/// Waits with the patience that containers need.
pub async fn eventually<T: Debug>(
    what: &str,
    mut look: impl AsyncFnMut() -> Result<Seen<T>>,
) -> Result<T> {
    wait::eventually(what, PATIENCE, async || {
        let seen = look().await;
        if !matches!(seen, Ok(Seen::Yes(_))) {
            tokio::time::sleep(PAUSE).await;
        }
        seen
    })
    .await
}

/// The pods of the deployed operator.
pub async fn operator_pods(client: &Client) -> Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), OPERATORS);
    let ours = ListParams::default().labels("app.kubernetes.io/name=pytorch-operator");
    let list = pods.list(&ours).await?.items;
    ensure!(!list.is_empty(), "no operator is deployed");
    Ok(list)
}

/// The deployed operator's pod, once it is ready.
pub async fn ready_operator(client: &Client) -> Result<Value> {
    eventually("a ready operator", async || {
        let pods: Vec<Value> = operator_pods(client)
            .await?
            .into_iter()
            .map(serde_json::to_value)
            .collect::<serde_json::Result<_>>()?;
        let ready = pods.iter().find(|pod| {
            pod["status"]["containerStatuses"][0]["ready"] == true
                && pod["metadata"]["deletionTimestamp"].is_null()
        });
        Ok(ready.map_or_else(
            || Seen::NotYet(format!("{:?}", look::names(&pods))),
            |pod| Seen::Yes(pod.clone()),
        ))
    })
    .await
}

/// The operator neither panicked nor asked for anything that its role doesn't grant.
pub async fn assert_operator_content(client: &Client) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), OPERATORS);
    for pod in operator_pods(client).await? {
        // It may be going just now, or not be there yet: then the other one's log is read.
        let Ok(log) = pods.logs(&pod.name_any(), &LogParams::default()).await else {
            continue;
        };
        for line in log.lines() {
            // So RBAC says it. A namespace that is going away forbids, too, and is no defect.
            let denied = line.contains("forbidden: User") || line.contains(" cannot ");
            ensure!(
                !denied && !line.contains("panicked"),
                "{}: {line}",
                pod.name_any()
            );
        }
    }
    Ok(())
}

/// A pod with one container that runs a shell script.
pub fn shell(script: &str) -> Value {
    json!({
        // A shell as first process ignores SIGTERM.
        "terminationGracePeriodSeconds": 1,
        "containers": [{
            "name": "pytorch",
            "image": PYTHON,
            "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", script],
            "resources": { "requests": { "cpu": "10m", "memory": "16Mi" } },
        }],
    })
}

/// A job of one master and one worker with these pods.
pub fn pair(name: &str, master: Value, worker: Value) -> Job {
    pytorch_job(name)
        .master()
        .workers(1)
        .set("/spec/pytorchReplicaSpecs/Master/template/spec", master)
        .set("/spec/pytorchReplicaSpecs/Worker/template/spec", worker)
}

/// The job in an example file.
pub fn example(file: &str) -> Result<Value> {
    let path = training_testkit::control_plane::workspace()
        .join("examples")
        .join(file);
    let mut documents = manifest::documents(&path)?;
    ensure!(
        documents.len() == 1,
        "{} objects in {file}",
        documents.len()
    );
    documents.pop().context("an empty example")
}

/// The first condition of every job.
pub fn created(name: &str) -> Condition {
    let message = format!("PyTorchJob {name} is created.");
    Condition::new("Created", "True", "PyTorchJobCreated", &message)
}

/// The condition of a job that has run.
pub fn no_longer_running(name: &str) -> Condition {
    let message = format!("PyTorchJob {name} is running.");
    Condition::new("Running", "False", "PyTorchJobRunning", &message)
}

/// The condition of a job that ended well.
pub fn succeeded(name: &str) -> Condition {
    let message = format!("PyTorchJob {name} is successfully completed.");
    Condition::new("Succeeded", "True", "PyTorchJobSucceeded", &message)
}

/// The id of a pod's main container.
pub fn container(pod: &Value) -> Result<&str> {
    let id = pod["status"]["containerStatuses"][0]["containerID"].as_str();
    id.with_context(|| format!("{} has no container", look::name(pod)))
}

/// Asks for a pod's deletion, as `kubectl delete pod` does.
pub async fn delete(pods: &Api<Pod>, name: &str) -> Result<()> {
    pods.delete(name, &DeleteParams::default()).await?;
    Ok(())
}
