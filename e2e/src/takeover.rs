//! Stores objects as another operator leaves them, under that operator's field manager.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use kube::ResourceExt as _;
use kube::api::{Api, DynamicObject, PostParams};
use kube::core::GroupVersionKind;
use kube::discovery::pinned_kind;
use serde::Deserialize;
use serde_json::Value;
use training_testkit::control_plane::workspace;
use training_testkit::kubelet::State;

use crate::World;

/// The training operator's name in `managedFields`.
const MANAGER: &str = "manager";
/// The user's name in `managedFields`.
const USER: &str = "kubectl-create";
/// The exit code of a failed pod's last container.
const EXIT_CODE: i32 = 1;

/// A job's existing children.
#[derive(Deserialize)]
struct Children {
    /// The kubelet's phase of each pod.
    pods: BTreeMap<String, String>,
    services: Vec<String>,
}

/// Stores a job, its status and its children from a file; the job has the file's name.
pub async fn leave(world: &World, name: &str) -> Result<()> {
    let job = documents(world, name, &[("job", name)])?;
    let job = job.into_iter().next().context("no job")?;
    let workers = &job["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"];
    let policy = match workers.as_str().unwrap_or_default() {
        "ExitCode" => "Never",
        policy => policy,
    };
    leave_as(world, name, &[("job", name), ("policy", policy)]).await
}

/// Stores a running `MPIJob` of `v1` with this name, clean-up policy and restart policy.
pub async fn leave_mpi(world: &World, name: &str, clean: &str, restart: &str) -> Result<()> {
    let pods = if restart == "ExitCode" {
        "Never"
    } else {
        restart
    };
    let values = [
        ("job", name),
        ("clean", clean),
        ("restart", restart),
        ("pods", pods),
    ];
    leave_as(world, "mpi/running", &values).await
}

/// Stores the objects of a file with these values; `job` is the name.
async fn leave_as(world: &World, file: &str, values: &[(&str, &str)]) -> Result<()> {
    let jobs = jobs(world);
    let mut all = documents(world, file, values)?.into_iter();
    let job: DynamicObject = serde_json::from_value(all.next().context("no job")?)?;
    let name = job.name_any();
    let mut stored = jobs.create(&by(USER), &job).await?;
    let uid = stored.uid().context("no uid")?;
    let children: Children = serde_json::from_value(all.next().context("no children")?)?;
    let values: Vec<(&str, &str)> = values.iter().copied().chain([("uid", &*uid)]).collect();
    let mut objects: Vec<Value> = documents(world, file, &values)?
        .into_iter()
        .skip(2)
        .collect();
    if objects.is_empty() {
        objects = documents(world, "children", &values)?;
        objects.retain(|object| exists(object, &name, &children));
    }
    for object in objects {
        create(world, object).await?;
    }
    world
        .kubelet
        .until_pods(world.namespace(), &name, children.pods.len())
        .await?;
    for (rank, state) in &children.pods {
        let state = match state.as_str() {
            "Pending" => continue,
            "Running" => State::Running,
            "Succeeded" => State::Succeeded,
            "Failed" => State::Failed {
                exit_code: EXIT_CODE,
                message: String::new(),
            },
            other => anyhow::bail!("{name}: no pod is {other}"),
        };
        let pod = format!("{name}-{rank}");
        world.kubelet.set(world.namespace(), &pod, &state).await?;
    }
    // Last, so that no object seems to be created after the job's end.
    stored.data["status"] = job.data["status"].clone();
    jobs.replace_status(&name, &by(MANAGER), &stored).await?;
    Ok(())
}

/// Returns the API of the world's jobs.
fn jobs(world: &World) -> Api<DynamicObject> {
    let resource = world.kind.resource();
    Api::namespaced_with(world.client.clone(), world.namespace(), &resource)
}

/// Writes a job's status as that operator would after ours: only fields of its own types, and the whole object.
pub async fn roll_back(world: &World, name: &str) -> Result<()> {
    let jobs = jobs(world);
    let mut job = jobs.get(name).await?;
    let known = [
        "conditions",
        "replicaStatuses",
        "startTime",
        "completionTime",
        "lastReconcileTime",
    ];
    let status = job.data["status"].as_object_mut().context("no status")?;
    status.retain(|field, _| known.contains(&field.as_str()));
    jobs.replace_status(name, &by(MANAGER), &job).await?;
    Ok(())
}

fn by(manager: &str) -> PostParams {
    PostParams {
        field_manager: Some(manager.to_owned()),
        ..PostParams::default()
    }
}

fn exists(object: &Value, job: &str, children: &Children) -> bool {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let rank = name.strip_prefix(&format!("{job}-")).unwrap_or_default();
    match object["kind"].as_str() {
        Some("Pod") => children.pods.contains_key(rank),
        _ => children.services.iter().any(|service| service == rank),
    }
}

async fn create(world: &World, object: Value) -> Result<()> {
    let object: DynamicObject = serde_json::from_value(object)?;
    let types = object.types.clone().context("an object without a kind")?;
    let (resource, _) = pinned_kind(&world.client, &GroupVersionKind::try_from(&types)?).await?;
    let api: Api<DynamicObject> =
        Api::namespaced_with(world.client.clone(), world.namespace(), &resource);
    api.create(&by(MANAGER), &object)
        .await
        .with_context(|| format!("{} {}", types.kind, object.name_any()))?;
    Ok(())
}

fn documents(world: &World, file: &str, values: &[(&str, &str)]) -> Result<Vec<Value>> {
    let path = directory().join(format!("{file}.yaml"));
    let mut text = std::fs::read_to_string(&path)
        .with_context(|| format!("can't read {}", path.display()))?
        .replace("${namespace}", world.namespace());
    for (name, value) in values {
        text = text.replace(&format!("${{{name}}}"), value);
    }
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text)
        .with_context(|| format!("{} is no YAML", path.display()))?;
    Ok(documents.into_iter().filter(Value::is_object).collect())
}

fn directory() -> PathBuf {
    workspace().join("e2e/tests/data/takeover")
}

/// Returns the names of the jobs with files.
pub fn all() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory())? {
        let file = entry?.file_name();
        let name = file.to_str().and_then(|name| name.strip_suffix(".yaml"));
        names.extend(name.filter(|name| *name != "children").map(str::to_owned));
    }
    names.sort();
    Ok(names)
}
