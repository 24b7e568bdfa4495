//! Replaces the operators of a former revision by today's while their jobs exist: nothing is restarted, recreated or rewritten.
//!
//! `make test-deep` builds the former revision. `TRAINYARD_FORMER` names its checkout, `TRAINYARD_FORMER_BIN_DIR` its binaries.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::World;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, PostParams};
use serde_json::{Value, json};
use training_testkit::audit::Entry;
use training_testkit::builders::{EVERY_KIND, Kind, MPI, SPARK, application};
use training_testkit::control_plane::{ControlPlane, Options, workspace};
use training_testkit::job::is_true;
use training_testkit::kubelet::lockstep;
use training_testkit::operator::OperatorProcess;
use training_testkit::wait::HANG;

/// An operator is done when it has sent no request for this long.
const QUIET: Duration = Duration::from_secs(2);

/// Applies an operator's manifests.
async fn install(world: &World, manifests: &Path) -> Result<()> {
    let directory = manifests.join(world.kind.operator);
    world.control.apply(&directory).await?;
    // A CRD takes effect a little later than it is served.
    tokio::time::sleep(QUIET).await;
    Ok(())
}

fn job(kind: &Kind, name: &str, suspend: bool) -> Value {
    match *kind {
        SPARK => {
            let mut app = application(name);
            app["spec"]["suspend"] = suspend.into();
            app
        }
        _ => kind
            .small_job(name, 2)
            .run_policy("suspend", suspend)
            .build(),
    }
}

fn pods_of(kind: &Kind) -> usize {
    if *kind == SPARK { 1 } else { 3 }
}

/// Whether an operator's status says this of a job, in terms of the other kinds' conditions.
fn says(job: &Value, condition: &str) -> bool {
    let state = job["status"]["applicationState"]["state"].as_str();
    let state = state.unwrap_or_default();
    match condition {
        "Running" if !state.is_empty() => state == "RUNNING",
        "Succeeded" if !state.is_empty() => state == "COMPLETED",
        "Suspended" if !state.is_empty() => state == "SUSPENDED",
        _ => is_true(job, condition),
    }
}

async fn until(world: &World, name: &str, condition: &str) -> Result<()> {
    let job = world
        .jobs
        .until(name, condition, |job| says(job, condition));
    job.await.map(drop)
}

async fn run(world: &World, name: &str) -> Result<()> {
    let (kubelet, namespace) = (&world.kubelet, world.namespace());
    let pods = pods_of(&world.kind);
    kubelet.until_pods(namespace, name, pods).await?;
    kubelet.all_running(namespace, name).await?;
    until(world, name, "Running").await
}

async fn end(world: &World, name: &str) -> Result<()> {
    if world.kind == MPI {
        world.actor(name).launcher_succeeds().await?;
    } else {
        let namespace = world.namespace();
        world.kubelet.all_succeeded(namespace, name).await?;
    }
    until(world, name, "Succeeded").await
}

/// A schedule whose next run is long after the test.
fn schedule() -> Value {
    let template = job(&SPARK, "template", false)["spec"].take();
    json!({
        "apiVersion": "sparkoperator.k8s.io/v1beta2",
        "kind": "ScheduledSparkApplication",
        "metadata": { "name": "yearly" },
        "spec": { "schedule": "0 0 1 1 *", "concurrencyPolicy": "Forbid", "template": template },
    })
}

/// Every object in the namespace from a user or an operator.
async fn everything(world: &World) -> Result<BTreeMap<String, Value>> {
    let mut all = BTreeMap::new();
    let mut kinds = vec![
        world.kind.resource(),
        ApiResource::erase::<Pod>(&()),
        ApiResource::erase::<Service>(&()),
        ApiResource::erase::<ConfigMap>(&()),
        ApiResource::erase::<Secret>(&()),
        ApiResource::erase::<Job>(&()),
    ];
    kinds.extend((world.kind == SPARK).then(schedules));
    for kind in kinds {
        let api: Api<DynamicObject> =
            Api::namespaced_with(world.client.clone(), world.namespace(), &kind);
        for object in api.list(&ListParams::default()).await? {
            let name = format!("{} {}", kind.kind, object.name_any());
            all.insert(name, serde_json::to_value(object)?);
        }
    }
    Ok(all)
}

fn schedules() -> ApiResource {
    ApiResource {
        group: "sparkoperator.k8s.io".to_owned(),
        version: "v1beta2".to_owned(),
        api_version: "sparkoperator.k8s.io/v1beta2".to_owned(),
        kind: "ScheduledSparkApplication".to_owned(),
        plural: "scheduledsparkapplications".to_owned(),
    }
}

async fn until_quiet(world: &World) -> Result<()> {
    let counts = |entry: &Entry| !entry.is_watch() && entry.namespace == world.namespace();
    let audit = world.control.audit()?;
    audit
        .until_quiet(&world.kind.user(), counts, QUIET, HANG)
        .await
}

/// An earlier revision.
struct Former {
    manifests: PathBuf,
    binaries: PathBuf,
}

impl Former {
    fn named() -> Option<Self> {
        let dir = |variable| std::env::var_os(variable).map(PathBuf::from);
        Some(Self {
            manifests: dir("TRAINYARD_FORMER")?.join("manifests"),
            binaries: dir("TRAINYARD_FORMER_BIN_DIR")?,
        })
    }
}

/// The parts of an object that must not change. The selector of an MPIJob's workers has moved in the status to where its scale
/// subresource finds it.
fn settled(kind: &Kind, object: &Value) -> Value {
    let mut object = object.clone();
    if *kind == MPI && object["kind"] == kind.name {
        object["metadata"]["managedFields"].take();
        object["metadata"]["resourceVersion"].take();
        if let Some(status) = object["status"].as_object_mut() {
            status.remove("workerSelector");
            status.remove("observedGeneration");
        }
        let counts = object["status"]["replicaStatuses"].as_object_mut();
        for (_, counts) in counts.into_iter().flatten() {
            counts
                .as_object_mut()
                .map(|counts| counts.remove("selector"));
        }
    }
    object
}

/// With one control plane and one kind: one job waits, one runs, one has finished.
async fn upgraded(kind: Kind, former: &Former) -> Result<()> {
    let control = ControlPlane::start(Options {
        controller_manager: true,
        audit: true,
        ..Options::default()
    });
    let control: &'static ControlPlane = Box::leak(Box::new(control.await?));
    control.install(kind.operator).await?;
    let Some(mut world) = World::made(kind, control, "upgrade", lockstep()).await? else {
        return Ok(());
    };
    install(&world, &former.manifests).await?;
    let kubeconfig = control.kubeconfig(&kind.user()).await?;
    let mut options = world.options(&kubeconfig);
    let binary = former.binaries.join(kind.operator);
    options.binary = binary
        .to_str()
        .context("a path that is no text")?
        .to_owned();
    let mut operator = OperatorProcess::start(options).await?;
    for name in ["ended", "running", "waiting"] {
        let job = job(&kind, name, name == "waiting");
        world.jobs.create(&job).await?;
    }
    if kind == SPARK {
        let api: Api<DynamicObject> =
            Api::namespaced_with(world.client.clone(), world.namespace(), &schedules());
        let schedule = serde_json::from_value(schedule())?;
        api.create(&PostParams::default(), &schedule).await?;
    }
    until(&world, "waiting", "Suspended").await?;
    run(&world, "ended").await?;
    end(&world, "ended").await?;
    run(&world, "running").await?;
    until_quiet(&world).await?;
    operator.terminate(Duration::from_secs(20)).await?;

    install(&world, &workspace().join("manifests")).await?;
    // The change of the CRD ended all watches of jobs.
    world.auditor = e2e::auditor(control, world.namespace(), &kind).await?;
    let (mut before, mark) = (everything(&world).await?, control.audit()?.mark().await?);
    let operator = world.operator().await?;
    until_quiet(&world).await?;
    let after = everything(&world).await?;
    let mut asked = control.audit()?.by_user(mark, &kind.user()).await?;
    asked.retain(|entry| entry.namespace == world.namespace());
    asked.retain(|entry| !["get", "list", "watch"].contains(&entry.verb.as_str()));
    let asked: Vec<String> = asked.iter().map(Entry::what).collect();
    // The objects of a finished application's run stayed before, and are deleted now.
    let goes = |name: &str, object: &Value| {
        let of = object["metadata"]["ownerReferences"][0]["name"].as_str();
        kind == SPARK && of == Some("ended") && !name.starts_with("Pod ")
    };
    before.retain(|name, object| !goes(name, object));
    for (name, was) in &before {
        let (was, is) = (
            settled(&kind, was),
            after.get(name).map(|o| settled(&kind, o)),
        );
        ensure!(is.as_ref() == Some(&was), "{name}: {was} became {is:?}");
    }
    ensure!(before.len() == after.len(), "{:?}", after.keys());
    let expected: &[&str] = match kind {
        MPI => &["patch mpijobs/status"],
        SPARK => &["delete services", "delete configmaps"],
        _ => &[],
    };
    ensure!(
        asked.iter().all(|what| expected.contains(&what.as_str())) && asked.len() <= 4,
        "{asked:?}"
    );

    end(&world, "running").await?;
    let resume = if kind == SPARK {
        json!({ "spec": { "suspend": false } })
    } else {
        json!({ "spec": { "runPolicy": { "suspend": false } } })
    };
    world.jobs.merge("waiting", &resume).await?;
    run(&world, "waiting").await?;
    end(&world, "waiting").await?;
    world.assert_clean(&operator).await?;

    // And back: the stored objects are valid under the former CRD as well.
    drop(operator);
    let stored = everything(&world).await?;
    install(&world, &former.manifests).await?;
    let back = everything(&world).await?;
    ensure!(stored.keys().eq(back.keys()), "{:?}", back.keys());
    let touched = json!({ "metadata": { "annotations": { "touched": "yes" } } });
    for name in ["ended", "running", "waiting"] {
        world.jobs.merge(name, &touched).await?;
    }
    Ok(())
}

#[tokio::test]
async fn an_upgrade_beneath_jobs_of_every_kind_restarts_and_rewrites_nothing() -> Result<()> {
    let Some(former) = Former::named() else {
        e2e::skip("TRAINYARD_FORMER and TRAINYARD_FORMER_BIN_DIR name no former revision");
        return Ok(());
    };
    for kind in EVERY_KIND {
        if !former.manifests.join(kind.operator).exists() {
            eprintln!("the former revision has no {}", kind.name);
            continue;
        }
        upgraded(kind, &former).await.context(kind.name)?;
    }
    Ok(())
}
