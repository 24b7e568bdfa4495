//! The real Kueue decides when a job may run, and preempts it for another one.

mod sdk;
#[path = "pods_kueue/spark.rs"]
mod spark;

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use e2e::pods::{Site, UNTIL_GO, Weight, active, eventually, example, pair_of, shell_of};
use e2e::read;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use training_testkit::builders::{Kind, MPI, PYTORCH};
use training_testkit::control_plane::workspace;
use training_testkit::job::{condition, conditions, is_true};
use training_testkit::manifest;
use training_testkit::wait::{Seen, holds_for};

/// Long enough to see that something does not happen.
const STAYS: Duration = Duration::from_secs(2);
/// The queue in each namespace.
const QUEUE: &str = "queue";

fn resource(kind: &str, plural: &str) -> ApiResource {
    let kind = GroupVersionKind::gvk("kueue.x-k8s.io", "v1beta2", kind);
    ApiResource::from_gvk_with_plural(&kind, plural)
}

/// CPU and memory for one job of two small pods.
const SMALL: [&str; 2] = ["25m", "1Gi"];

/// A namespace with a queue that has room for one job.
struct Queue {
    site: Site,
}

impl Queue {
    /// Sets up a queue for jobs of two small pods; `None` without Kueue.
    async fn open(kind: Kind, prefix: &str) -> Result<Option<Self>> {
        let prefix = format!("kueue-{prefix}-{}", kind.container);
        let site = Site::of(kind, &prefix, Weight::Light).await?;
        Self::of(site, SMALL).await
    }

    /// Sets up a queue in a namespace, with this much CPU and memory.
    async fn of(site: Site, room: [&str; 2]) -> Result<Option<Self>> {
        if !site.cluster.is_open() && !has_kueue(&site).await? {
            e2e::skip("this cluster has no Kueue");
            return Ok(None);
        }
        let queue = Self { site };
        queue.until_kueue_is_ready().await?;
        // Kueue manages jobs of namespaces with this label.
        let labels = json!({ "metadata": { "labels": { "trainyard.dev/kueue": "true" } } });
        let namespaces: Api<k8s_openapi::api::core::v1::Namespace> =
            Api::all(queue.site.client.clone());
        let change = Patch::Merge(&labels);
        namespaces
            .patch(queue.name(), &PatchParams::default(), &change)
            .await?;
        queue.make(room).await?;
        Ok(Some(queue))
    }

    /// The name of the namespace and of the queue's cluster-scoped objects.
    fn name(&self) -> &str {
        &self.site.namespace
    }

    async fn until_kueue_is_ready(&self) -> Result<()> {
        let deployments: Api<k8s_openapi::api::apps::v1::Deployment> =
            Api::namespaced(self.site.client.clone(), "kueue-system");
        eventually("Kueue", async || {
            let status = deployments.get("kueue-controller-manager").await?.status;
            let available = status.and_then(|s| s.available_replicas).unwrap_or(0);
            Ok(if available > 0 {
                Seen::Yes(())
            } else {
                Seen::NotYet(available.to_string())
            })
        })
        .await?;
        Ok(())
    }

    async fn make(&self, [cpu, memory]: [&str; 2]) -> Result<()> {
        let name = self.name();
        let pods_of_one_job = json!([
            { "name": "cpu", "nominalQuota": cpu },
            { "name": "memory", "nominalQuota": memory },
        ]);
        for (kind, plural, mut object) in [
            (
                "ResourceFlavor",
                "resourceflavors",
                json!({ "spec": {
                    "nodeLabels": { "kubernetes.io/os": "linux" },
                    "tolerations": [toleration()],
                }}),
            ),
            (
                "ClusterQueue",
                "clusterqueues",
                json!({ "spec": {
                    "namespaceSelector": {
                        "matchLabels": { "kubernetes.io/metadata.name": name },
                    },
                    "preemption": { "withinClusterQueue": "LowerPriority" },
                    "resourceGroups": [{
                        "coveredResources": ["cpu", "memory"],
                        "flavors": [{ "name": name, "resources": pods_of_one_job }],
                    }],
                }}),
            ),
            (
                "WorkloadPriorityClass",
                "workloadpriorityclasses",
                json!({ "value": 1000 }),
            ),
        ] {
            object["metadata"] = json!({ "name": name });
            let api = Api::all_with(self.site.client.clone(), &resource(kind, plural));
            create(&api, kind, object).await?;
        }
        let queue = json!({ "metadata": { "name": QUEUE }, "spec": { "clusterQueue": name } });
        let queues = resource("LocalQueue", "localqueues");
        let api = Api::namespaced_with(self.site.client.clone(), name, &queues);
        create(&api, "LocalQueue", queue).await
    }

    /// Submits a job that runs until the test ends it.
    async fn submit(&self, job: &str, priority: Option<&str>) -> Result<()> {
        let mut object = pair_until_go(&self.site.kind, job);
        object["metadata"]["labels"] = json!({ "kueue.x-k8s.io/queue-name": QUEUE });
        if let Some(class) = priority {
            object["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = class.into();
        }
        self.site.jobs.create(&object).await?;
        Ok(())
    }

    /// Waits until a job's workload has this condition and status, and returns its reason and message.
    async fn until_workload(
        &self,
        job: &str,
        kind: &str,
        status: &str,
    ) -> Result<(String, String)> {
        let resource = resource("Workload", "workloads");
        let workloads: Api<DynamicObject> =
            Api::namespaced_with(self.site.client.clone(), self.name(), &resource);
        let uid = self.site.jobs.get(job).await?["metadata"]["uid"].clone();
        eventually(&format!("workload of {job}: {kind}={status}"), async || {
            let all = workloads.list(&kube::api::ListParams::default()).await?;
            let of_job = |w: &&DynamicObject| {
                let owners = w.metadata.owner_references.iter().flatten();
                owners.into_iter().any(|owner| owner.uid == uid)
            };
            let Some(workload) = all.items.iter().find(of_job) else {
                return Ok(Seen::NotYet("none".to_owned()));
            };
            let conditions = &workload.data["status"]["conditions"];
            let found = conditions
                .as_array()
                .into_iter()
                .flatten()
                .find(|c| c["type"] == kind && c["status"] == status);
            let text = |c: &Value, key: &str| c[key].as_str().unwrap_or_default().to_owned();
            Ok(match found {
                Some(c) => Seen::Yes((text(c, "reason"), text(c, "message"))),
                None => Seen::NotYet(conditions.to_string()),
            })
        })
        .await
    }

    async fn pods(&self, job: &str) -> Result<Vec<Value>> {
        read::pods(&self.site.client, self.name(), job).await
    }

    /// Fails unless the job is suspended and has neither pods nor anything active.
    async fn assert_waiting(&self, job: &str) -> Result<()> {
        let pods = self.pods(job).await?;
        ensure!(pods.is_empty(), "{:?}", read::names(&pods));
        let job = self.site.jobs.get(job).await?;
        ensure!(
            is_true(&job, "Suspended") && active(&job) == 0,
            "{}",
            job["status"]
        );
        Ok(())
    }

    /// Kueue edits templates only of jobs without pods, so no event reports an edit that came too late.
    async fn assert_no_edit_missed(&self, job: &str) -> Result<()> {
        let events = read::events(&self.site.client, self.name(), job).await?;
        let missed = events.iter().find(|event| event.1 == "EditNotApplied");
        ensure!(missed.is_none(), "{missed:?}");
        Ok(())
    }

    /// Kueue has copied the job's own message at its end.
    async fn assert_finished_well(&self, job: &str) -> Result<()> {
        let said = condition(&self.site.jobs.get(job).await?, "Succeeded")?;
        let (reason, message) = self.until_workload(job, "Finished", "True").await?;
        assert_eq!((reason.as_str(), message), ("Succeeded", said.message));
        self.assert_no_edit_missed(job).await
    }

    /// The end of every test.
    async fn finish(self, saw: &str) -> Result<()> {
        let (name, cluster) = (self.name().to_owned(), self.site.cluster.clone());
        self.site.finish(saw).await?;
        // Cluster-scoped objects outlive the namespace. Their name is unique.
        for kind in ["clusterqueue", "resourceflavor", "workloadpriorityclass"] {
            cluster.kubectl(&["delete", kind, &name, "--wait=false"])?;
        }
        Ok(())
    }
}

/// A job of two pods that runs until the test ends it.
fn pair_until_go(kind: &Kind, name: &str) -> Value {
    let pod = shell_of(kind, UNTIL_GO);
    if *kind != MPI {
        return pair_of(kind, name, pod.clone(), pod).build();
    }
    let role = |mut pod: Value, replicas: u32| {
        pod["containers"][0]["name"] = json!("main");
        json!({ "replicas": replicas, "template": { "spec": pod } })
    };
    json!({
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        // Its worker has no SSH server.
        "metadata": { "name": name, "annotations": { "trainyard.dev/launcher-gate": "false" } },
        "spec": {
            "runPolicy": { "cleanPodPolicy": "Running" },
            "mpiReplicaSpecs": {
                "Launcher": role(pod, 1),
                "Worker": role(shell_of(kind, "sleep 3600"), 1),
            },
        },
    })
}

async fn has_kueue(site: &Site) -> Result<bool> {
    let queues = Api::<DynamicObject>::all_with(
        site.client.clone(),
        &resource("ClusterQueue", "clusterqueues"),
    );
    match queues.list(&kube::api::ListParams::default()).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Retries, because Kueue reports itself available a moment before its webhooks listen.
async fn create(api: &Api<DynamicObject>, kind: &str, mut object: Value) -> Result<()> {
    object["apiVersion"] = "kueue.x-k8s.io/v1beta2".into();
    object["kind"] = kind.into();
    let object: DynamicObject = serde_json::from_value(object)?;
    eventually(kind, async || {
        match api.create(&PostParams::default(), &object).await {
            Ok(_) => Ok(Seen::Yes(())),
            Err(kube::Error::Api(status)) if status.message.contains("failed calling webhook") => {
                Ok(Seen::NotYet(status.message))
            }
            Err(error) => Err(error).with_context(|| kind.to_owned()),
        }
    })
    .await
}

fn toleration() -> Value {
    json!({ "key": "trainyard.dev/test", "operator": "Exists", "effect": "NoSchedule" })
}

/// The pods have what Kueue added to the templates.
fn assert_as_admitted(pods: &[Value]) {
    for pod in pods {
        let spec = &pod["spec"];
        assert_eq!(spec["nodeSelector"]["kubernetes.io/os"], "linux", "{spec}");
        let tolerations = spec["tolerations"].as_array().into_iter().flatten();
        assert_eq!(tolerations.filter(|t| **t == toleration()).count(), 1);
        let queue = &pod["metadata"]["labels"]["kueue.x-k8s.io/local-queue-name"];
        assert_eq!(queue, QUEUE, "{}", pod["metadata"]);
    }
}

fn moment(value: &Value) -> Result<&str> {
    value.as_str().context("no time")
}

async fn two_jobs_with_a_quota_for_one_run_one_after_the_other(kind: Kind) -> Result<()> {
    let Some(queue) = Queue::open(kind, "turns").await? else {
        return Ok(());
    };
    let site = &queue.site;
    queue.submit("first", None).await?;
    let pods = site.until_running("first", 2).await?;
    assert_as_admitted(&pods);

    queue.submit("second", None).await?;
    site.until_true("second", "Suspended").await?;
    let (_, why) = queue
        .until_workload("second", "QuotaReserved", "False")
        .await?;
    holds_for(STAYS, async || queue.assert_waiting("second").await).await?;
    let waiting = site.jobs.get("second").await?;
    assert_eq!(waiting["spec"]["runPolicy"]["suspend"], true);
    assert!(waiting["status"]["startTime"].is_null(), "{waiting}");

    site.go().await?;
    let first = site.until_true("first", "Succeeded").await?;
    let second = site.until_true("second", "Succeeded").await?;
    let pods = queue.pods("second").await?;
    assert_eq!(
        read::names(&pods),
        ["second-master-0", "second-worker-0"],
        "{pods:?}"
    );
    assert_as_admitted(&pods);
    let end = moment(&first["status"]["completionTime"])?;
    for pod in &pods {
        assert!(moment(&pod["metadata"]["creationTimestamp"])? >= end);
    }
    assert_eq!(condition(&second, "Suspended")?.status, "False");
    let last = conditions(&second).pop().context("no condition")?;
    assert_eq!(
        (last.kind.as_str(), last.status.as_str()),
        ("Succeeded", "True")
    );
    for job in ["first", "second"] {
        queue.assert_finished_well(job).await?;
    }
    for (object, churn) in site.summary() {
        assert_eq!((churn.creates, churn.deletes), (1, 0), "{object}");
    }
    queue.finish(&format!("the second waited: {why}")).await
}

async fn a_job_gives_way_to_one_of_higher_priority_and_ends_well_later(kind: Kind) -> Result<()> {
    let Some(queue) = Queue::open(kind, "gives-way").await? else {
        return Ok(());
    };
    let site = &queue.site;
    queue.submit("low", None).await?;
    let before = site.until_running("low", 2).await?;
    queue.submit("high", Some(queue.name())).await?;

    // No job may replace pods that still run: Kueue waits until `active` is 0, which must be true.
    eventually("low without pods", async || {
        let high = queue.pods("high").await?;
        // Read after the other job's pods, so this job's state is at least as new.
        let low = site.jobs.get("low").await?;
        let pods = queue.pods("low").await?;
        let alive = |pod: &&Value| {
            let phase = pod["status"]["phase"].as_str();
            !matches!(phase, Some("Succeeded" | "Failed"))
        };
        let alive = pods.iter().filter(alive).count();
        if active(&low) == 0 && is_true(&low, "Suspended") || !high.is_empty() {
            // A panic, because an error here would only be retried.
            assert_eq!(alive, 0, "{pods:?} beside {high:?}, {}", low["status"]);
        }
        Ok(if pods.is_empty() && is_true(&low, "Suspended") {
            Seen::Yes(())
        } else {
            Seen::NotYet(low["status"].to_string())
        })
    })
    .await?;
    site.until_running("high", 2).await?;
    queue.assert_waiting("low").await?;
    let low = site.jobs.get("low").await?;
    let stopped = condition(&low, "Suspended")?;
    assert_eq!(stopped.message, format!("{} low is suspended.", kind.name));
    assert_eq!(condition(&low, "Running")?.status, "False");
    assert_eq!(low["status"]["restarts"].as_i64().unwrap_or(0), 0);
    // Kueue has reverted its changes to the templates.
    for role in ["Master", "Worker"] {
        let spec = &low["spec"][kind.replica_map][role]["template"]["spec"];
        assert!(
            spec["nodeSelector"].is_null() && spec["tolerations"].is_null(),
            "{spec}"
        );
    }
    let (reason, _) = queue.until_workload("low", "Preempted", "True").await?;
    assert_eq!(reason, "InClusterQueue");

    site.go().await?;
    site.until_true("high", "Succeeded").await?;
    let low = site.until_true("low", "Succeeded").await?;
    assert_eq!(condition(&low, "Suspended")?.status, "False");
    assert_eq!(low["status"]["restarts"].as_i64().unwrap_or(0), 0);
    let after = queue.pods("low").await?;
    assert_eq!(read::names(&after), read::names(&before));
    assert_as_admitted(&after);
    for (old, new) in before.iter().zip(&after) {
        assert_ne!(old["metadata"]["uid"], new["metadata"]["uid"]);
    }
    for job in ["high", "low"] {
        queue.assert_finished_well(job).await?;
    }
    let summary = site.summary();
    for pod in read::names(&before) {
        let churn = summary[&format!("Pod/{pod}")];
        assert_eq!((churn.creates, churn.deletes), (2, 1), "{pod}");
    }
    queue.finish("preempted once, resumed, succeeded").await
}

#[tokio::test]
async fn an_mpi_job_gives_way_to_one_of_higher_priority_and_ends_well_later() -> Result<()> {
    let Some(queue) = Queue::open(MPI, "mpi").await? else {
        return Ok(());
    };
    let site = &queue.site;
    queue.submit("low", None).await?;
    let before = site.until_running("low", 2).await?;
    assert_as_admitted(&before);
    queue.submit("high", Some(queue.name())).await?;
    let high = site.until_running("high", 2).await?;
    assert_as_admitted(&high);
    queue.assert_waiting("low").await?;
    let low = site.jobs.get("low").await?;
    assert_eq!(condition(&low, "Suspended")?.message, "MPIJob suspended");
    // Kueue has reverted its changes to the templates.
    for role in ["Launcher", "Worker"] {
        let spec = &low["spec"]["mpiReplicaSpecs"][role]["template"]["spec"];
        assert!(spec["nodeSelector"].is_null(), "{spec}");
    }

    site.go().await?;
    site.until_true("high", "Succeeded").await?;
    site.until_true("low", "Succeeded").await?;
    let after = queue.pods("low").await?;
    let launcher = |pods: &[Value]| {
        let mut pods = pods.iter();
        pods.find(|pod| read::name(pod).contains("-launcher-"))
            .cloned()
    };
    let launcher_again = launcher(&after).context("no launcher")?;
    assert_as_admitted(std::slice::from_ref(&launcher_again));
    let launcher_before = launcher(&before).context("no launcher before")?;
    assert_ne!(
        launcher_again["metadata"]["uid"], launcher_before["metadata"]["uid"],
        "another run, another pod"
    );
    for job in ["high", "low"] {
        queue.assert_finished_well(job).await?;
    }
    queue.finish("preempted once, resumed, succeeded").await
}

#[tokio::test]
async fn the_example_trains_after_its_queue_has_admitted_it() -> Result<()> {
    let site = Site::of(PYTORCH, "kueue-example", Weight::Heavy).await?;
    let Some(queue) = Queue::of(site, SMALL).await? else {
        return Ok(());
    };
    let site = &queue.site;
    let file = workspace().join("examples/pytorch/queue.yaml");
    let mut objects = manifest::documents(&file)?;
    // Cluster-scoped objects get a unique name.
    let name = format!("{}-example", queue.name());
    for object in &mut objects {
        if object["kind"] == "LocalQueue" {
            object["metadata"]["namespace"] = json!(queue.name());
            object["spec"]["clusterQueue"] = json!(name);
        } else {
            object["metadata"]["name"] = json!(name);
        }
        if let Some(flavor) = object.pointer_mut("/spec/resourceGroups/0/flavors/0/name") {
            *flavor = json!(name);
        }
    }
    manifest::apply(&site.client, objects).await?;
    site.jobs.create(&example("pytorch/queued.yaml")?).await?;
    let job = site.until_true("queued", "Succeeded").await?;
    let suspended = condition(&job, "Suspended").context("Kueue did not suspend it")?;
    assert_eq!(suspended.status, "False", "{job}");
    let log = site.log("queued-master-0").await?;
    ensure!(log.contains("rank 0/2 done"), "{log}");
    let cluster = site.cluster.clone();
    queue.finish("trained after it was admitted").await?;
    for kind in ["clusterqueue", "resourceflavor"] {
        cluster.kubectl(&["delete", kind, &name, "--wait=false"])?;
    }
    Ok(())
}

#[tokio::test]
async fn the_sdk_puts_a_job_into_a_queue() -> Result<()> {
    let Some(queue) = Queue::open(PYTORCH, "sdk").await? else {
        return Ok(());
    };
    let saw = sdk::run(&PYTORCH, "queued", queue.name()).await?;
    let (reason, _) = queue.until_workload("queued", "Finished", "True").await?;
    if reason != "Succeeded" {
        bail!("Kueue says that it ended with {reason}");
    }
    queue.finish(&saw).await
}

/// The tests of every kind with Kueue.
macro_rules! queues {
    ($kind:ident) => {
        #[tokio::test]
        async fn two_jobs_with_a_quota_for_one_run_one_after_the_other() -> anyhow::Result<()> {
            let kind = training_testkit::builders::$kind;
            super::two_jobs_with_a_quota_for_one_run_one_after_the_other(kind).await
        }

        #[tokio::test]
        async fn a_job_gives_way_to_one_of_higher_priority_and_ends_well_later()
        -> anyhow::Result<()> {
            let kind = training_testkit::builders::$kind;
            super::a_job_gives_way_to_one_of_higher_priority_and_ends_well_later(kind).await
        }
    };
}

mod pytorch {
    queues!(PYTORCH);
}

mod tensorflow {
    queues!(TENSORFLOW);
}

mod xgboost {
    queues!(XGBOOST);
}
