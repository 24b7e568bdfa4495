//! `MPIJob` against a real API server: storage through either version, the requests of a life cycle, and crashes of the operator at any
//! moment. The Job controller is real; the tests play kubelet.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::read;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use training_testkit::audit::{Entry, Mark, Tally};
use training_testkit::auditor::Auditor;
use training_testkit::builders::{Kind, MPI};
use training_testkit::control_plane::{ADMIN, ControlPlane};
use training_testkit::job::{Jobs, is_true};
use training_testkit::namespace::Namespace;
use training_testkit::operator::{OperatorProcess, Options};
use training_testkit::wait::{HANG, Seen, eventually};

#[path = "api_mpi/inputs.rs"]
mod inputs;

const LAUNCHER: &str = "pi-launcher";
/// A stage is over when nothing has happened for this long.
const QUIET: Duration = Duration::from_millis(1500);

/// A namespace with an operator.
struct Stage {
    control: &'static ControlPlane,
    client: Client,
    jobs: Jobs,
    operator: OperatorProcess,
    auditor: Auditor,
    // Dropped last.
    namespace: Namespace,
}

/// The control plane with the operator's rights and kinds; `None` on a cluster with its own kubelet and Job controller.
async fn installed() -> Result<Option<&'static ControlPlane>> {
    let control = ControlPlane::shared().await?;
    if !control.can().play_kubelet {
        e2e::skip("this cluster has a kubelet of its own");
        return Ok(None);
    }
    control.install(MPI.operator).await?;
    Ok(Some(control))
}

impl Stage {
    async fn open(prefix: &str) -> Result<Option<Self>> {
        let Some(control) = installed().await? else {
            return Ok(None);
        };
        let namespace = Namespace::create(control, prefix).await?;
        let client = control.client(ADMIN).await?;
        let auditor = Auditor::start(client.clone(), &namespace.name, &MPI.resource()).await?;
        let kubeconfig: PathBuf = control.kubeconfig(&MPI.user()).await?;
        let log = control.scratch().join(format!("{}.log", namespace.name));
        let options = Options::new(MPI.operator, &kubeconfig, &namespace.name, &log);
        Ok(Some(Self {
            control,
            jobs: Jobs::of(client.clone(), &namespace.name, &MPI.resource()),
            operator: OperatorProcess::start(options).await?,
            auditor,
            client,
            namespace,
        }))
    }

    fn name(&self) -> &str {
        &self.namespace.name
    }

    /// The end of a test: everything settles, without violations.
    async fn assert_clean(&self) -> Result<()> {
        let ending = e2e::Ending {
            kind: MPI,
            control: self.control,
            auditor: &self.auditor,
            namespace: self.name(),
        };
        ending.assert_clean(&self.operator).await
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), self.name())
    }

    /// Whether this is a request of the operator in this namespace.
    fn asks(&self, entry: &Entry) -> bool {
        !entry.is_watch() && entry.namespace == self.name()
    }

    /// The operator's requests since then.
    async fn asked(&self, since: Mark) -> Result<Vec<Entry>> {
        let mut all = self.control.audit()?.by_user(since, &MPI.user()).await?;
        all.retain(|entry| self.asks(entry));
        Ok(all)
    }

    /// The names of the objects of a kind that a job owns.
    async fn owned<K>(&self) -> Result<Vec<String>>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + std::fmt::Debug,
    {
        let list = self.api::<K>().list(&ListParams::default()).await?;
        let ours = |object: &&K| object.owner_references().iter().any(|o| o.kind == "MPIJob");
        let mut names: Vec<String> = list
            .items
            .iter()
            .filter(ours)
            .map(kube::ResourceExt::name_any)
            .collect();
        names.sort_unstable();
        Ok(names)
    }

    /// All objects of the job, by kind.
    async fn all(&self) -> Result<BTreeMap<&'static str, Vec<String>>> {
        Ok([
            ("services", self.owned::<Service>().await?),
            ("configmaps", self.owned::<ConfigMap>().await?),
            ("secrets", self.owned::<Secret>().await?),
            ("pods", self.owned::<Pod>().await?),
            ("jobs", self.owned::<Job>().await?),
        ]
        .into())
    }

    async fn until_all(&self, wanted: &BTreeMap<&'static str, Vec<String>>) -> Result<()> {
        eventually("all objects", HANG, async || {
            let all = self.all().await?;
            Ok(if all == *wanted {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{all:?}"))
            })
        })
        .await
    }

    async fn patch_status<K>(&self, name: &str, status: &impl Serialize) -> Result<()>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + std::fmt::Debug,
    {
        let change = Patch::Merge(json!({ "status": status }));
        let api = self.api::<K>();
        api.patch_status(name, &PatchParams::default(), &change)
            .await?;
        Ok(())
    }

    /// Makes these pods run and be ready.
    async fn run(&self, pods: &[&str]) -> Result<()> {
        let status =
            json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] });
        let burst = pods
            .iter()
            .map(|pod| self.patch_status::<Pod>(pod, &status));
        futures::future::try_join_all(burst).await.map(drop)
    }

    /// The launcher's pod, which the Job controller creates, runs.
    async fn launch(&self) -> Result<()> {
        let pod = self.launcher().await?;
        self.run(&[&pod]).await
    }

    async fn launcher(&self) -> Result<String> {
        let launchers = ListParams::default().labels("training.kubeflow.org/job-role=launcher");
        eventually("the launcher's pod", HANG, async || {
            let pods = self.api::<Pod>().list(&launchers).await?.items;
            Ok(match pods.first() {
                Some(pod) => Seen::Yes(pod.name_any()),
                None => Seen::NotYet("none".to_owned()),
            })
        })
        .await
    }

    /// The launcher's program succeeds.
    async fn complete(&self) -> Result<()> {
        let pod = self.launcher().await?;
        let ended = json!({ "terminated": { "exitCode": 0 } });
        let status = json!({
            "phase": "Succeeded",
            "conditions": [{ "type": "Ready", "status": "False" }],
            "containerStatuses": [{ "name": "any", "image": "any", "imageID": "", "ready": false, "restartCount": 0, "state": ended }],
        });
        self.patch_status::<Pod>(&pod, &status).await
    }
}

fn pi(workers: u32) -> Value {
    let template = json!({ "spec": { "containers": [{ "name": "any", "image": "any" }] } });
    json!({
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": { "name": "pi" },
        "spec": {
            "runPolicy": { "cleanPodPolicy": "Running" },
            "mpiReplicaSpecs": {
                "Launcher": { "replicas": 1, "template": template },
                "Worker": { "replicas": workers, "template": template },
            },
        },
    })
}

fn whole(workers: u32) -> BTreeMap<&'static str, Vec<String>> {
    let names = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
    [
        ("services", names(&["pi"])),
        ("configmaps", names(&["pi-config"])),
        ("secrets", names(&["pi-ssh"])),
        (
            "pods",
            (0..workers).map(|i| format!("pi-worker-{i}")).collect(),
        ),
        ("jobs", names(&[LAUNCHER])),
    ]
    .into()
}

/// A job with every field of both versions.
fn full(version: &str) -> Value {
    let mut job = pi(2);
    job["apiVersion"] = json!(format!("kubeflow.org/{version}"));
    job["metadata"]["name"] = json!(format!("full-{version}"));
    let spec = &mut job["spec"];
    spec["slotsPerWorker"] = json!(3);
    spec["runLauncherAsWorker"] = json!(true);
    spec["mpiImplementation"] = json!("MPICH");
    spec["launcherCreationPolicy"] = json!("WaitForWorkersReady");
    spec["sshAuthMountPath"] = json!("/home/me/.ssh");
    spec["cleanPodPolicy"] = json!("All");
    spec["mainContainer"] = json!("any");
    spec["runPolicy"] = json!({
        "cleanPodPolicy": "Running", "ttlSecondsAfterFinished": 7, "activeDeadlineSeconds": 8, "backoffLimit": 9,
        "suspend": true, "managedBy": "kubeflow.org/mpi-operator",
        "schedulingPolicy": {
            "minAvailable": 2, "queue": "q", "priorityClass": "p", "scheduleTimeoutSeconds": 5, "minResources": { "cpu": "1" },
        },
    });
    job
}

#[tokio::test]
async fn every_field_comes_back_whole_through_both_versions_which_remember_the_first() -> Result<()>
{
    let Some(control) = installed().await? else {
        return Ok(());
    };
    let namespace = Namespace::create(control, "mpi-versions").await?;
    let client = control.client(ADMIN).await?;
    let through = |version: &'static str| {
        let kind = Kind { version, ..MPI };
        Jobs::of(client.clone(), &namespace.name, &kind.resource())
    };
    for (version, other) in [("v1", "v2beta1"), ("v2beta1", "v1")] {
        let sent = full(version);
        let name = sent["metadata"]["name"].as_str().context("no name")?;
        through(version).create(&sent).await?;
        let mut expected = sent["spec"].clone();
        expected["submittedAs"] = json!(version);
        for reader in [version, other] {
            let read = through(reader).get(name).await?;
            assert_eq!(read["spec"], expected, "{version} read as {reader}");
        }
        // A write through the other version keeps it.
        let change = json!({ "spec": { "slotsPerWorker": 4 } });
        let changed = through(other).merge(name, &change).await?;
        expected["slotsPerWorker"] = json!(4);
        assert_eq!(changed["spec"], expected);
        let origin = json!({ "spec": { "submittedAs": other } });
        let refused = through(version)
            .merge(name, &origin)
            .await
            .expect_err("it may not change");
        ensure!(
            format!("{refused:#}").contains("submittedAs is immutable"),
            "{refused:#}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn jobs_that_cant_run_are_refused_in_words_that_name_the_field() -> Result<()> {
    let Some(control) = installed().await? else {
        return Ok(());
    };
    let namespace = Namespace::create(control, "mpi-refused").await?;
    let client = control.client(ADMIN).await?;
    let jobs = Jobs::of(client, &namespace.name, &MPI.resource());
    let rows: [(&str, Value, &str); 9] = [
        (
            "/spec/mpiImplementation",
            json!("LAM"),
            "spec.mpiImplementation",
        ),
        ("/spec/slotsPerWorker", json!(-1), "spec.slotsPerWorker"),
        (
            "/spec/mpiReplicaSpecs/Worker/replicas",
            json!(0),
            "spec.mpiReplicaSpecs",
        ),
        (
            "/spec/mpiReplicaSpecs/Launcher/replicas",
            json!(2),
            "spec.mpiReplicaSpecs",
        ),
        (
            "/spec/mpiReplicaSpecs/Launcher/restartPolicy",
            json!("Always"),
            "restartPolicy",
        ),
        (
            "/spec/runPolicy/managedBy",
            json!("me"),
            "spec.runPolicy.managedBy",
        ),
        (
            "/spec/runPolicy/ttlSecondsAfterFinished",
            json!(-1),
            "spec.runPolicy.ttlSecondsAfterFinished",
        ),
        (
            "/spec/sshAuthMountPath",
            json!("relative"),
            "spec.sshAuthMountPath",
        ),
        ("/metadata/name", json!("1-foo"), "metadata.name"),
    ];
    for (pointer, value, field) in rows {
        let mut job = pi(1);
        let (parent, key) = pointer.rsplit_once('/').context("no parent")?;
        job.pointer_mut(parent).context("no such parent")?[key] = value;
        let refused = jobs.create(&job).await.expect_err(pointer);
        ensure!(
            format!("{refused:#}").contains(field),
            "{pointer}: {refused:#}"
        );
    }
    let mut alone = pi(1);
    alone["spec"]["mpiReplicaSpecs"]
        .as_object_mut()
        .context("no map")?
        .remove("Launcher");
    let refused = jobs.create(&alone).await.expect_err("no launcher");
    ensure!(format!("{refused:#}").contains("Launcher"), "{refused:#}");
    Ok(())
}

#[tokio::test]
async fn an_autoscaler_finds_the_workers_and_the_counts_are_the_published_ones() -> Result<()> {
    let Some(stage) = Stage::open("mpi-scale").await? else {
        return Ok(());
    };
    stage.jobs.create(&pi(2)).await?;
    stage.until_all(&whole(2)).await?;
    stage.run(&["pi-worker-0", "pi-worker-1"]).await?;
    stage.launch().await?;
    stage.jobs.until_true("pi", "Running").await?;
    let counted = |job: &Value| job["status"]["replicaStatuses"]["Worker"]["active"] == 2;
    let job = stage.jobs.until("pi", "counted", counted).await?;
    // Clients compare the whole map.
    let counts = json!({ "Launcher": { "active": 1 }, "Worker": { "active": 2 } });
    assert_eq!(job["status"]["replicaStatuses"], counts);
    let cpu =
        json!({ "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 50 } });
    let autoscaler: HorizontalPodAutoscaler = serde_json::from_value(json!({
        "metadata": { "name": "pi" },
        "spec": {
            "scaleTargetRef": { "apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "name": "pi" },
            "minReplicas": 1, "maxReplicas": 4, "metrics": [{ "type": "Resource", "resource": cpu }],
        },
    }))?;
    let autoscalers: Api<HorizontalPodAutoscaler> = stage.api();
    autoscalers
        .create(&PostParams::default(), &autoscaler)
        .await?;
    // No metrics are served here; the real autoscaler queries them once it knows the pods.
    eventually("the autoscaler to ask for metrics", HANG, async || {
        let status = autoscalers.get("pi").await?.status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let reason = |type_: &str| {
            let found = conditions.iter().find(|c| c.type_ == type_);
            found.and_then(|c| c.reason.clone()).unwrap_or_default()
        };
        let (able, active) = (reason("AbleToScale"), reason("ScalingActive"));
        ensure!(active != "InvalidSelector", "{conditions:?}");
        Ok(
            if able == "SucceededGetScale" && active == "FailedGetResourceMetric" {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{able}, {active}"))
            },
        )
    })
    .await?;
    autoscalers.delete("pi", &DeleteParams::default()).await?;
    stage.complete().await?;
    stage.jobs.until_true("pi", "Succeeded").await?;
    stage.assert_clean().await
}

#[tokio::test]
async fn i_32_a_life_costs_its_creates_and_a_few_status_writes_and_reads_nothing() -> Result<()> {
    let Some(stage) = Stage::open("mpi-life").await? else {
        return Ok(());
    };
    let (audit, user) = (stage.control.audit()?, MPI.user());
    audit
        .until_quiet(&user, |e| stage.asks(e), QUIET, HANG)
        .await?;
    let birth = audit.mark().await?;
    stage.jobs.create(&pi(3)).await?;
    stage.until_all(&whole(3)).await?;
    audit
        .until_quiet(&user, |e| stage.asks(e), QUIET, HANG)
        .await?;
    let made = stage.asked(birth).await?;
    let order: Vec<String> = made
        .iter()
        .filter(|e| e.code == 201)
        .map(Entry::what)
        .collect();
    let at = |what: &str| order.iter().position(|o| o == what);
    for mounted in ["create services", "create configmaps", "create secrets"] {
        ensure!(
            at(mounted).is_some() && at(mounted) < at("create pods"),
            "{order:?}"
        );
    }
    stage
        .run(&["pi-worker-0", "pi-worker-1", "pi-worker-2"])
        .await?;
    stage.launch().await?;
    stage.jobs.until_true("pi", "Running").await?;
    audit
        .until_quiet(&user, |e| stage.asks(e), QUIET, HANG)
        .await?;
    stage.complete().await?;
    let job = stage.jobs.until_true("pi", "Succeeded").await?;
    audit
        .until_quiet(&user, |e| stage.asks(e), QUIET, HANG)
        .await?;
    let life = stage.asked(birth).await?;
    let refused: Vec<_> = life.iter().filter(|entry| entry.code >= 300).collect();
    ensure!(refused.is_empty(), "{refused:#?}");
    let requests: Vec<&Entry> = life.iter().collect();
    let tally = Tally::of(requests.iter().copied());
    eprintln!("life of an MPI job with 3 workers:\n{tally}");
    for entry in &requests {
        let what = entry.what();
        ensure!(
            !what.starts_with("get ") && !what.starts_with("list "),
            "{what}"
        );
    }
    let count = |what: &str| requests.iter().filter(|e| e.what() == what).count();
    for (what, most) in [
        ("create services", 1),
        ("create configmaps", 1),
        ("create secrets", 1),
        ("create pods", 3),
        ("create jobs", 1),
        ("delete pods", 3),
        // All three workers in one patch, unless the machine is slow: the list of running hosts is written with the counts.
        ("patch configmaps", 2),
        ("patch mpijobs/status", 5),
    ] {
        ensure!(
            (1..=most).contains(&count(what)),
            "{} times {what}",
            count(what)
        );
    }
    assert_eq!(
        job["status"]["replicaStatuses"]["Launcher"],
        json!({ "succeeded": 1 })
    );
    let launcher = serde_json::to_value(stage.api::<Job>().get(LAUNCHER).await?)?;
    let completed = &launcher["status"]["completionTime"];
    ensure!(completed.is_string(), "{launcher}");
    assert_eq!(&job["status"]["completionTime"], completed);
    let events = read::events(&stage.client, stage.name(), "pi").await?;
    let reasons: Vec<&str> = events.iter().map(|event| event.1.as_str()).collect();
    for reason in ["MPIJobCreated", "MPIJobRunning", "MPIJobSucceeded"] {
        assert_eq!(
            reasons.iter().filter(|r| **r == reason).count(),
            1,
            "{reasons:?}"
        );
    }
    stage.assert_clean().await
}

#[tokio::test]
async fn what_users_set_for_their_launcher_is_in_its_pod_once() -> Result<()> {
    let Some(stage) = Stage::open("mpi-env").await? else {
        return Ok(());
    };
    for (name, implementation, variable) in [
        ("open", "OpenMPI", "PRTE_MCA_plm_ssh_args"),
        ("hydra", "MPICH", "HYDRA_LAUNCHER_EXTRA_ARGS"),
    ] {
        let mut job = pi(1);
        job["metadata"]["name"] = json!(name);
        job["spec"]["mpiImplementation"] = json!(implementation);
        let launcher = &mut job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"];
        launcher["containers"][0]["env"] = json!([{ "name": variable, "value": "mine" }]);
        stage.jobs.create(&job).await?;
        // The Job controller creates the pod.
        let env = eventually("a launcher", HANG, async || {
            let pods = stage.api::<Pod>().list(&ListParams::default()).await?;
            let begin = format!("{name}-launcher-");
            let launcher = pods.into_iter().find(|p| p.name_any().starts_with(&begin));
            let env = launcher.and_then(|p| p.spec?.containers.remove(0).env);
            Ok(env.map_or(Seen::NotYet("none".to_owned()), Seen::Yes))
        })
        .await?;
        let own = env.iter().filter(|v| v.name == variable);
        let own: Vec<Option<&str>> = own.map(|v| v.value.as_deref()).collect();
        assert_eq!(own, [Some("mine")], "{env:?}");
    }
    stage.assert_clean().await
}

#[tokio::test]
async fn an_operator_that_dies_at_any_moment_makes_nothing_twice() -> Result<()> {
    let Some(mut stage) = Stage::open("mpi-crash").await? else {
        return Ok(());
    };
    let audit = stage.control.audit()?;
    let mut extra_secrets = 0;
    for (round, pause) in [0u64, 5, 8, 11, 14, 17, 20, 24, 28, 35, 50, 80]
        .iter()
        .enumerate()
    {
        let birth = audit.mark().await?;
        stage.jobs.create(&pi(3)).await?;
        tokio::time::sleep(Duration::from_millis(*pause)).await;
        stage.operator.kill()?;
        stage.operator.restart().await?;
        eventually("all objects", HANG, async || {
            let mut all = stage.all().await?;
            // The operator never reads a Secret: if it missed the response to the create, the job gets another one under the next name.
            let secrets = all
                .insert("secrets", vec!["pi-ssh".to_owned()])
                .unwrap_or_default();
            let known = ["pi-ssh", "pi-ssh-1"];
            let fine = !secrets.is_empty() && secrets.iter().all(|s| known.contains(&s.as_str()));
            Ok(if fine && all == whole(3) {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{all:?} {secrets:?}"))
            })
        })
        .await?;
        stage
            .run(&["pi-worker-0", "pi-worker-1", "pi-worker-2"])
            .await?;
        stage.launch().await?;
        stage.jobs.until_true("pi", "Running").await?;
        stage.complete().await?;
        let job = stage.jobs.until_true("pi", "Succeeded").await?;
        let life = stage.asked(birth).await?;
        let made = |what: &str| {
            life.iter()
                .filter(|e| e.what() == what && e.code == 201)
                .count()
        };
        for (what, times) in [
            ("create services", 1),
            ("create configmaps", 1),
            ("create pods", 3),
            ("create jobs", 1),
        ] {
            // The audit log may lack the response to the request during which the operator died.
            ensure!(
                made(what) <= times,
                "round {round}: {} times {what}",
                made(what)
            );
        }
        extra_secrets += made("create secrets").saturating_sub(1);
        for entry in life.iter().filter(|e| e.verb == "delete") {
            ensure!(entry.resource == "pods", "round {round}: {}", entry.what());
        }
        // The pods mount the Secret that the status names.
        let secret = &job["status"]["madeOnce"]["secret"];
        let launcher = stage.api::<Job>().get(LAUNCHER).await?;
        let launcher = serde_json::to_value(launcher)?;
        let volumes = launcher["spec"]["template"]["spec"]["volumes"]
            .as_array()
            .context("no volumes")?;
        let mounted = volumes
            .iter()
            .find(|v| v["name"] == "ssh-auth")
            .context("no keys")?;
        assert_eq!(mounted["secret"]["secretName"], *secret);
        ensure!(is_true(&job, "Succeeded"));
        stage.jobs.delete("pi").await?;
        // No kubelet finishes the deletion of pods.
        let now = DeleteParams::default().grace_period(0);
        stage
            .api::<Pod>()
            .delete_collection(&now, &ListParams::default())
            .await?;
        eventually("nothing", HANG, async || {
            let all = stage.all().await?;
            let left: usize = all.values().map(Vec::len).sum();
            Ok(if left == 0 && !stage.jobs.exists("pi").await? {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{all:?}"))
            })
        })
        .await?;
    }
    eprintln!("12 kills, {extra_secrets} Secrets under another name");
    stage.assert_clean().await
}

#[tokio::test]
async fn f_17_b_041_a_name_that_belongs_to_somebody_else_is_waited_for() -> Result<()> {
    let Some(stage) = Stage::open("mpi-taken").await? else {
        return Ok(());
    };
    let foreign: Service = serde_json::from_value(json!({
        "metadata": { "name": "pi", "labels": { "app": "pi" } },
        "spec": { "ports": [{ "port": 80 }] },
    }))?;
    let services = stage.api::<Service>();
    services.create(&PostParams::default(), &foreign).await?;
    stage.jobs.create(&pi(1)).await?;
    let job = stage.jobs.until_true("pi", "Stalled").await?;
    let stalled = training_testkit::job::condition(&job, "Stalled")?;
    assert_eq!(stalled.reason, "NameConflict");
    let words = "Resource \"pi\" of Kind \"Service\" already exists and is not managed by MPIJob";
    ensure!(stalled.message.starts_with(words), "{stalled:?}");
    ensure!(is_true(&job, "Created"), "{}", job["status"]);
    read::events_with(&stage.client, stage.name(), "pi", "ErrResourceExists").await?;
    assert_eq!(stage.owned::<Pod>().await?, Vec::<String>::new());
    let there = services.get("pi").await?;
    assert_eq!(
        there.spec.context("no spec")?.ports.map(|p| p.len()),
        Some(1),
        "untouched"
    );
    services.delete("pi", &DeleteParams::default()).await?;
    stage.until_all(&whole(1)).await?;
    stage.assert_clean().await
}
