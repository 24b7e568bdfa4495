//! Gang schedulers against a real API server: those of other projects with their CRDs, and the one of Kubernetes.
//!
//! No scheduler runs. The tests write what a scheduler would write, and check objects, labels, waits and deletions.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use e2e::{World, read};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use training_core::GroupKind;
use training_testkit::builders::{Job, Kind, MPI, PYTORCH};
use training_testkit::control_plane::ADMIN;
use training_testkit::job::condition;
use training_testkit::kubelet::lockstep;
use training_testkit::manifest;
use training_testkit::operator::OperatorProcess;
use training_testkit::wait::{HANG, Seen, eventually, holds_for};

/// The file of the CRD of Volcano's `PodGroup`. Its module is Apache 2.0.
const VOLCANO: (&str, &str) = (
    "volcano.sh/volcano@v1.15.0",
    "config/crd/volcano/bases/scheduling.volcano.sh_podgroups.yaml",
);
/// The same of scheduler-plugins. Its module is Apache 2.0.
const PLUGINS: (&str, &str) = (
    "sigs.k8s.io/scheduler-plugins@v0.34.7",
    "config/crd/bases/scheduling.x-k8s.io_podgroups.yaml",
);

/// Installs a CRD from its project's Go module; the local cluster needs Go anyway.
async fn install_crd(world: &World, (module, file): (&str, &str)) -> Result<()> {
    let mut command = Command::new("go");
    command.args(["mod", "download", "-json", module]);
    let output = command.current_dir(world.control.scratch()).output();
    let output = output.context("go is needed to fetch the CRDs of schedulers")?;
    let answer: Value = serde_json::from_slice(&output.stdout)?;
    let dir = answer["Dir"].as_str();
    let dir = dir.with_context(|| format!("can't download {module}: {answer}"))?;
    let objects = manifest::documents(&PathBuf::from(dir).join(file))?;
    manifest::apply(&world.control.client(ADMIN).await?, objects).await
}

/// Starts an operator for a gang scheduler with exactly the shipped rights.
async fn operator(world: &World, provider: &str) -> Result<OperatorProcess> {
    world.grant_gang(provider).await?;
    let kubeconfig = world.control.kubeconfig(&world.kind.user()).await?;
    OperatorProcess::start(world.options(&kubeconfig).flag("gang", provider)).await
}

fn groups(client: &Client, namespace: &str, kind: GroupKind) -> Api<DynamicObject> {
    let resource = kind.resource(kind.versions()[0]);
    Api::namespaced_with(client.clone(), namespace, &resource)
}

impl Groups<'_> {
    fn api(&self, kind: GroupKind) -> Api<DynamicObject> {
        groups(&self.0.client, self.0.namespace(), kind)
    }

    async fn until(
        &self,
        kind: GroupKind,
        what: &str,
        good: impl Fn(Option<&DynamicObject>) -> bool,
    ) -> Result<Option<DynamicObject>> {
        let api = self.api(kind);
        eventually(what, HANG, async || {
            let seen = api.get_opt("pt").await?;
            Ok(if good(seen.as_ref()) {
                Seen::Yes(seen)
            } else {
                Seen::NotYet(format!("{seen:?}"))
            })
        })
        .await
    }

    async fn there(&self, kind: GroupKind) -> Result<DynamicObject> {
        let seen = self.until(kind, "a group", |g| g.is_some()).await?;
        seen.context("none")
    }

    async fn gone(&self, kind: GroupKind) -> Result<()> {
        self.until(kind, "no group", |g| g.is_none()).await?;
        Ok(())
    }

    /// The job runs and succeeds, and its group is deleted.
    async fn go_with_the_job(&self, kind: GroupKind) -> Result<()> {
        let (world, namespace) = (self.0, self.0.namespace());
        world.kubelet.all_running(namespace, "pt").await?;
        world.jobs.until_true("pt", "Running").await?;
        world.kubelet.all_succeeded(namespace, "pt").await?;
        world.jobs.until_true("pt", "Succeeded").await?;
        self.gone(kind).await
    }

    /// Waits for a new group in place of this one.
    async fn renewed(&self, kind: GroupKind, before: &DynamicObject) -> Result<()> {
        let other = |g: Option<&DynamicObject>| g.is_some_and(|g| g.uid() != before.uid());
        self.until(kind, "a new group", other).await?;
        Ok(())
    }
}

/// The groups of the job `pt`.
struct Groups<'a>(&'a World);

fn job(kind: &Kind) -> Job {
    let job = kind.job("pt").workers(1);
    if *kind == MPI {
        job.role("Launcher", 1)
    } else {
        job.master()
    }
}

async fn pods(world: &World) -> Result<Vec<Pod>> {
    let api: Api<Pod> = Api::namespaced(world.client.clone(), world.namespace());
    Ok(api.list(&kube::api::ListParams::default()).await?.items)
}

async fn stalled(world: &World, reason: &str) -> Result<String> {
    let is = |job: &Value| {
        condition(job, "Stalled").is_ok_and(|c| c.status == "True" && c.reason == reason)
    };
    let job = world.jobs.until("pt", reason, is).await?;
    Ok(condition(&job, "Stalled")
        .map(|c| c.message)
        .unwrap_or_default())
}

async fn i_10_volcanos_group_waits_is_let_in_and_goes_with_the_job(kind: Kind) -> Result<()> {
    let Some(world) = World::of(kind, "volcano", lockstep()).await? else {
        return Ok(());
    };
    install_crd(&world, VOLCANO).await?;
    let operator = operator(&world, "volcano").await?;
    let job = job(&kind)
        .run_policy("schedulingPolicy", json!({"queue": "q", "minAvailable": 7}))
        .run_policy("cleanPodPolicy", "None");
    let stored = world.jobs.create(&job.build()).await?;
    let (groups, group) = (Groups(&world), GroupKind::Volcano);

    let made = groups.there(group).await?;
    assert_eq!(
        (&made.data["spec"]["minMember"], &made.data["spec"]["queue"]),
        (&json!(7), &json!("q"))
    );
    assert_eq!(
        stored["metadata"]["uid"],
        json!(made.owner_references()[0].uid)
    );
    holds_for(Duration::from_secs(1), async || {
        let pods = pods(&world).await?;
        anyhow::ensure!(pods.is_empty(), "pods before the group is let in");
        Ok(())
    })
    .await?;
    assert!(
        world.jobs.get("pt").await?["status"]
            .get("startTime")
            .is_none()
    );

    // The published suite does this to a job that can't start.
    world
        .jobs
        .merge(
            "pt",
            &json!({"spec": {"runPolicy": {"schedulingPolicy": {"minAvailable": 2}}}}),
        )
        .await?;
    let fewer = |g: Option<&DynamicObject>| g.is_some_and(|g| g.data["spec"]["minMember"] == 2);
    let changed = groups
        .until(group, "fewer members", fewer)
        .await?
        .context("none")?;
    assert_eq!(changed.uid(), made.uid());

    let phase = json!({"status": {"phase": "Inqueue"}});
    let api = groups.api(group);
    api.patch("pt", &PatchParams::default(), &Patch::Merge(&phase))
        .await?;
    world.kubelet.until_pods(world.namespace(), "pt", 2).await?;
    for pod in pods(&world).await? {
        assert_eq!(pod.annotations()["scheduling.k8s.io/group-name"], "pt");
        assert!(["master", "worker"].contains(&pod.annotations()["volcano.sh/task-spec"].as_str()));
        assert_eq!(scheduler(&pod), Some("volcano"));
    }
    groups.go_with_the_job(group).await?;
    world.assert_clean(&operator).await
}

// With one kind only: an installed CRD is visible to all tests.
#[tokio::test]
async fn a_scheduler_that_comes_later_is_waited_for_and_its_group_follows_the_job() -> Result<()> {
    let Some(world) = World::start("plugins", lockstep()).await? else {
        return Ok(());
    };
    let operator = operator(&world, "scheduler-plugins").await?;
    let policy = json!({"scheduleTimeoutSeconds": 60});
    let job = job(&PYTORCH).run_policy("schedulingPolicy", policy);
    world.jobs.create(&job.build()).await?;
    let said = stalled(&world, "SchedulerMissing").await?;
    assert!(said.contains("scheduling.x-k8s.io/v1alpha1"), "{said}");
    assert!(pods(&world).await?.is_empty());
    assert!(
        operator.log().contains("does not serve"),
        "it is said at start as well"
    );

    install_crd(&world, PLUGINS).await?;
    let (groups, group) = (Groups(&world), GroupKind::SchedulerPlugins);
    let made = groups.there(group).await?;
    assert_eq!(made.data["spec"]["minMember"], 2);
    assert_eq!(made.data["spec"]["scheduleTimeoutSeconds"], 60);
    world.kubelet.until_pods(world.namespace(), "pt", 2).await?;
    for pod in pods(&world).await? {
        assert_eq!(pod.labels()["scheduling.x-k8s.io/pod-group"], "pt");
        assert_eq!(scheduler(&pod), Some("scheduler-plugins-scheduler"));
    }
    world.kubelet.all_running(world.namespace(), "pt").await?;
    world.jobs.until_true("pt", "Running").await?;

    // A restart keeps the group.
    world
        .kubelet
        .fail(world.namespace(), "pt-worker-0", 137)
        .await?;
    world.jobs.until_true("pt", "Restarting").await?;
    assert_eq!(groups.there(group).await?.uid(), made.uid());

    world
        .jobs
        .merge("pt", &json!({"spec": {"runPolicy": {"suspend": true}}}))
        .await?;
    groups.gone(group).await?;
    world
        .jobs
        .merge("pt", &json!({"spec": {"runPolicy": {"suspend": false}}}))
        .await?;
    groups.renewed(group, &made).await?;
    world.jobs.delete("pt").await?;
    groups.gone(group).await?;
    world.assert_clean(&operator).await?;
    // Runs afterwards, because this test needs the CRD to be missing first.
    an_mpi_jobs_group_of_scheduler_plugins_follows_its_timeout().await
}

async fn an_mpi_jobs_group_of_scheduler_plugins_follows_its_timeout() -> Result<()> {
    let Some(world) = World::of(MPI, "mpi-plugins", lockstep()).await? else {
        return Ok(());
    };
    let operator = operator(&world, "scheduler-plugins").await?;
    world.jobs.create(&job(&MPI).build()).await?;
    let (groups, group) = (Groups(&world), GroupKind::SchedulerPlugins);
    let spec = groups.there(group).await?.data["spec"].clone();
    assert_eq!(
        (&spec["minMember"], &spec["scheduleTimeoutSeconds"]),
        (&json!(2), &json!(0))
    );
    world.kubelet.until_pods(world.namespace(), "pt", 2).await?;
    for pod in pods(&world).await? {
        assert_eq!(pod.labels()["scheduling.x-k8s.io/pod-group"], "pt");
        assert_eq!(scheduler(&pod), Some("scheduler-plugins-scheduler"));
    }
    set_policy(&world, &json!({"scheduleTimeoutSeconds": 7})).await?;
    let later = |g: Option<&DynamicObject>| {
        g.is_some_and(|g| g.data["spec"]["scheduleTimeoutSeconds"] == 7)
    };
    groups.until(group, "a later timeout", later).await?;
    groups.go_with_the_job(group).await?;
    world.assert_clean(&operator).await
}

fn scheduler(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.scheduler_name.as_deref()
}

async fn set_policy(world: &World, policy: &Value) -> Result<()> {
    let change = json!({"spec": {"runPolicy": {"schedulingPolicy": policy}}});
    world.jobs.merge("pt", &change).await.map(drop)
}

#[tokio::test]
async fn volcanos_group_of_an_mpi_job_follows_it_and_holds_nothing_back() -> Result<()> {
    let Some(world) = World::of(MPI, "mpi-volcano", lockstep()).await? else {
        return Ok(());
    };
    install_crd(&world, VOLCANO).await?;
    let operator = operator(&world, "volcano").await?;
    let job = job(&MPI)
        .annotation("scheduling.volcano.sh/queue-name", "noted")
        .set(
            "/spec/mpiReplicaSpecs/Worker/template/spec/schedulerName",
            "another",
        );
    world.jobs.create(&job.build()).await?;
    let (groups, group) = (Groups(&world), GroupKind::Volcano);
    let made = groups.there(group).await?;
    assert_eq!(
        (&made.data["spec"]["minMember"], &made.data["spec"]["queue"]),
        (&json!(2), &json!("noted"))
    );
    // The group has no status yet.
    world.kubelet.until_pods(world.namespace(), "pt", 2).await?;
    for pod in pods(&world).await? {
        assert_eq!(pod.annotations()["scheduling.k8s.io/group-name"], "pt");
        assert_eq!(scheduler(&pod), Some("volcano"));
    }
    set_policy(&world, &json!({"queue": "told", "minAvailable": 1})).await?;
    let follows = |g: Option<&DynamicObject>| {
        g.is_some_and(|g| g.data["spec"]["queue"] == "told" && g.data["spec"]["minMember"] == 1)
    };
    let changed = groups.until(group, "another queue", follows).await?;
    assert_eq!(changed.context("none")?.uid(), made.uid());
    groups.go_with_the_job(group).await?;
    world.assert_clean(&operator).await
}

async fn i_10_kubernetes_own_groups_come_before_pods_and_go_at_every_end(kind: Kind) -> Result<()> {
    let Some(world) = World::of(kind, "native", lockstep()).await? else {
        return Ok(());
    };
    let operator = operator(&world, "native").await?;
    world
        .jobs
        .create(&job(&kind).run_policy("cleanPodPolicy", "None").build())
        .await?;
    world.kubelet.until_pods(world.namespace(), "pt", 2).await?;
    let groups = Groups(&world);
    let workload = groups.there(GroupKind::Workload).await?;
    let made = groups.there(GroupKind::PodGroup).await?;
    assert_eq!(workload.data["spec"]["controllerRef"]["kind"], kind.name);
    let spec = &made.data["spec"];
    assert_eq!(spec["schedulingPolicy"]["gang"]["minCount"], 2);
    assert_eq!(spec["disruptionMode"], json!({"all": {}}));
    for pod in pods(&world).await? {
        let group = pod.spec.and_then(|s| s.scheduling_group);
        assert_eq!(group.and_then(|g| g.pod_group_name).as_deref(), Some("pt"));
    }
    world.kubelet.all_running(world.namespace(), "pt").await?;
    world.jobs.until_true("pt", "Running").await?;

    // Suspended and resumed within a second: the old objects must be gone before new ones are created.
    world
        .jobs
        .merge("pt", &json!({"spec": {"runPolicy": {"suspend": true}}}))
        .await?;
    world.jobs.until_true("pt", "Suspended").await?;
    world
        .jobs
        .merge("pt", &json!({"spec": {"runPolicy": {"suspend": false}}}))
        .await?;
    groups.renewed(GroupKind::PodGroup, &made).await?;
    groups.renewed(GroupKind::Workload, &workload).await?;
    world.kubelet.until_pods(world.namespace(), "pt", 2).await?;
    world.kubelet.all_running(world.namespace(), "pt").await?;
    world.jobs.until_true("pt", "Running").await?;
    let resumed = format!("{}Resumed", kind.name);
    read::events_with(&world.client, world.namespace(), "pt", &resumed).await?;

    world.kubelet.all_succeeded(world.namespace(), "pt").await?;
    world.jobs.until_true("pt", "Succeeded").await?;
    groups.gone(GroupKind::PodGroup).await?;
    groups.gone(GroupKind::Workload).await?;
    assert_eq!(pods(&world).await?.len(), 2, "the clean-up policy is None");
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn b_041_a_group_of_somebody_else_is_left_alone() -> Result<()> {
    let Some(world) = World::start("foreign-group", lockstep()).await? else {
        return Ok(());
    };
    let operator = operator(&world, "native").await?;
    let theirs = json!({
        "apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": {"name": "pt"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 5}}}
    });
    let groups = Groups(&world);
    let api = groups.api(GroupKind::PodGroup);
    let theirs = api
        .create(&PostParams::default(), &serde_json::from_value(theirs)?)
        .await?;
    world.jobs.create(&job(&PYTORCH).build()).await?;
    let said = stalled(&world, "NameConflict").await?;
    assert!(said.contains("it belongs to no job"), "{said}");
    assert!(pods(&world).await?.is_empty());
    assert_eq!(groups.there(GroupKind::PodGroup).await?.uid(), theirs.uid());
    api.delete("pt", &kube::api::DeleteParams::default())
        .await?;
    groups.renewed(GroupKind::PodGroup, &theirs).await?;
    world.kubelet.until_pods(world.namespace(), "pt", 2).await?;
    world.jobs.delete("pt").await?;
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn a_run_keeps_its_scheduler_when_the_operator_is_set_otherwise() -> Result<()> {
    let Some(world) = World::start("kept-gang", lockstep()).await? else {
        return Ok(());
    };
    let mut first = operator(&world, "native").await?;
    world.jobs.create(&job(&PYTORCH).build()).await?;
    world.kubelet.until_pods(world.namespace(), "pt", 2).await?;
    world.kubelet.all_running(world.namespace(), "pt").await?;
    world.jobs.until_true("pt", "Running").await?;
    first.kill()?;

    let kubeconfig = world.control.kubeconfig(&world.kind.user()).await?;
    let second = OperatorProcess::start(world.options(&kubeconfig).flag("gang", "none")).await?;
    world
        .kubelet
        .disappear(world.namespace(), "pt-worker-0")
        .await?;
    let api: Api<Pod> = Api::namespaced(world.client.clone(), world.namespace());
    let pod = eventually("the pod again, in its gang", HANG, async || {
        let pod = api.get_opt("pt-worker-0").await?;
        Ok(match pod {
            Some(pod) if pod.metadata.deletion_timestamp.is_none() => Seen::Yes(pod),
            other => Seen::NotYet(format!("{:?}", other.map(|p| p.metadata))),
        })
    })
    .await?;
    let group = pod.spec.and_then(|s| s.scheduling_group);
    assert_eq!(group.and_then(|g| g.pod_group_name).as_deref(), Some("pt"));
    let groups = Groups(&world);
    groups.there(GroupKind::PodGroup).await?;

    world
        .jobs
        .merge("pt", &json!({"spec": {"runPolicy": {"suspend": true}}}))
        .await?;
    groups.gone(GroupKind::PodGroup).await?;
    groups.gone(GroupKind::Workload).await?;
    world
        .jobs
        .merge("pt", &json!({"spec": {"runPolicy": {"suspend": false}}}))
        .await?;
    world.kubelet.until_pods(world.namespace(), "pt", 2).await?;
    for pod in pods(&world).await? {
        assert!(pod.spec.is_some_and(|s| s.scheduling_group.is_none()));
    }
    world.jobs.delete("pt").await?;
    world.assert_clean(&second).await
}

/// The tests of every kind under a gang scheduler.
macro_rules! gangs {
    ($kind:ident) => {
        #[tokio::test]
        async fn i_10_volcanos_group_waits_is_let_in_and_goes_with_the_job() -> anyhow::Result<()> {
            let kind = training_testkit::builders::$kind;
            super::i_10_volcanos_group_waits_is_let_in_and_goes_with_the_job(kind).await
        }

        #[tokio::test]
        async fn i_10_kubernetes_own_groups_come_before_pods_and_go_at_every_end()
        -> anyhow::Result<()> {
            let kind = training_testkit::builders::$kind;
            super::i_10_kubernetes_own_groups_come_before_pods_and_go_at_every_end(kind).await
        }
    };
}

mod pytorch_job {
    gangs!(PYTORCH);
}

mod tf_job {
    gangs!(TENSORFLOW);
}

mod xgboost_job {
    gangs!(XGBOOST);
}

mod mpi_job {
    #[tokio::test]
    async fn i_10_kubernetes_own_groups_come_before_pods_and_go_at_every_end() -> anyhow::Result<()>
    {
        let kind = training_testkit::builders::MPI;
        super::i_10_kubernetes_own_groups_come_before_pods_and_go_at_every_end(kind).await
    }
}
