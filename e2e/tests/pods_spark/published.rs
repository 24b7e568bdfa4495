//! Manifests in the shapes of the published operator's users, unchanged except for image, namespace and size.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use e2e::pods::spark::ChangeLog;
use e2e::pods::{Site, Weight, after, eventually};
use e2e::read;
use e2e::submit::IMAGE;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use training_testkit::manifest;
use training_testkit::wait::Seen;

use super::is_deep;
use super::schedules::schedules;

/// Those whose schedulers this cluster lacks; they are tested with an API server alone.
const OF_SCHEDULERS: [&str; 3] = [
    "spark-pi-volcano",
    "spark-pi-yunikorn",
    "spark-pi-kube-scheduler",
];

const ALL: [&str; 11] = [
    "spark-pi",
    "spark-pi-configmap",
    "spark-pi-custom-resource",
    "spark-pi-dynamic-allocation",
    "spark-pi-pod-template",
    "spark-pi-prometheus",
    "spark-pi-prometheus-servlet",
    "spark-pi-python",
    "spark-pi-scheduled",
    "spark-pi-ttl",
    "spark-pi-volume",
];

/// A user's manifest, except for the namespace, the images and the CPUs: the node has two.
fn written(site: &Site, file: &str) -> Result<Vec<Value>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pods_spark/manifests");
    let mut objects = manifest::documents(&path.join(format!("{file}.yaml")))?;
    for object in &mut objects {
        object["metadata"]["namespace"] = json!(site.namespace);
        let spec = match object["kind"].as_str() {
            Some("SparkApplication") => &mut object["spec"],
            Some("ScheduledSparkApplication") => &mut object["spec"]["template"],
            _ => continue,
        };
        spec["image"] = json!(IMAGE);
        for role in ["driver", "executor"] {
            let of = &mut spec[role];
            of["coreRequest"] = json!("50m");
            let containers = of.pointer_mut("/template/spec/containers");
            for container in containers
                .and_then(Value::as_array_mut)
                .into_iter()
                .flatten()
            {
                if container.get("image").is_some() {
                    container["image"] = json!("trainyard/python:1");
                    // With Always, the node would ask a registry.
                    container["imagePullPolicy"] = json!("IfNotPresent");
                }
            }
        }
    }
    Ok(objects)
}

/// Stores all objects of a file, or lets a dry run decode them strictly, as `kubectl apply` does. Returns the last one.
async fn store(site: &Site, file: &str, dry_run: bool) -> Result<Value> {
    let mut newest = Value::Null;
    for object in written(site, file)? {
        let [version, kind] = ["apiVersion", "kind"].map(|key| object[key].as_str());
        let (version, kind) = (version.unwrap_or_default(), kind.unwrap_or_default());
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let kind = GroupVersionKind::gvk(group, version, kind);
        let resource = ApiResource::from_gvk(&kind);
        let api: Api<DynamicObject> =
            Api::namespaced_with(site.client.clone(), &site.namespace, &resource);
        let wanted: DynamicObject = serde_json::from_value(object.clone())?;
        let stored = if dry_run {
            let strict = PatchParams::apply("user").dry_run().validation_strict();
            let name = read::name(&object);
            api.patch(&name, &strict, &Patch::Apply(&wanted)).await
        } else {
            api.create(&PostParams::default(), &wanted).await
        };
        let stored = serde_json::to_value(stored.with_context(|| file.to_owned())?)?;
        let missing = read::lost(&object["spec"], &stored["spec"], "spec");
        ensure!(missing.is_empty(), "{file}: {missing:?}");
        newest = stored;
    }
    Ok(newest)
}

/// A pod's main container, which has the checked environment and mounts.
fn main_container<'a>(pod: &'a Value, role: &str) -> Result<&'a Value> {
    let all = pod["spec"]["containers"].as_array();
    let name = format!("spark-kubernetes-{role}");
    let mut all = all.into_iter().flatten();
    all.find(|container| container["name"] == *name)
        .with_context(|| format!("no {name} in {}", pod["spec"]))
}

fn has_mount(container: &Value, path: &str) -> bool {
    let mounts = container["volumeMounts"].as_array();
    mounts.is_some_and(|all| all.iter().any(|mount| mount["mountPath"] == path))
}

/// A pod of this role has the feature that its file is about.
fn assert_shape(file: &str, role: &str, pod: &Value) -> Result<()> {
    let container = main_container(pod, role)?;
    let is_so = match file {
        "spark-pi" => container["securityContext"]["runAsNonRoot"] == true,
        "spark-pi-configmap" => has_mount(container, "/opt/spark/config"),
        "spark-pi-custom-resource" => {
            let limit = if role == "driver" { "1200m" } else { "1" };
            container["resources"]["limits"]["cpu"] == limit
        }
        "spark-pi-pod-template" => {
            let spec = &pod["spec"];
            let env = container["env"].as_array();
            let has_env = env.is_some_and(|all| all.iter().any(|e| e["name"] == "KEY1"));
            let metadata = &pod["metadata"];
            let version = "spark.apache.org/version";
            let is_named = metadata["labels"][version] == "4.0.1"
                && metadata["annotations"][version] == "4.0.1";
            let containers = spec["containers"].as_array().map_or(0, Vec::len);
            let more = if role == "driver" {
                containers == 2 && spec["nodeSelector"]["kubernetes.io/os"] == "linux"
            } else {
                has_mount(container, "/mnt/disk1")
            };
            has_env && is_named && more
        }
        "spark-pi-prometheus" => {
            let ports = container["ports"].as_array();
            has_mount(container, "/etc/metrics/conf")
                && ports.is_some_and(|all| all.iter().any(|p| p["name"] == "jmx-exporter"))
        }
        "spark-pi-prometheus-servlet" if role == "driver" => {
            pod["metadata"]["annotations"]["prometheus.io/port"] == "4040"
        }
        "spark-pi-volume" => {
            let scratch = role == "driver" || has_mount(container, "/scratch");
            has_mount(container, "/tmp") && scratch
        }
        _ => true,
    };
    ensure!(is_so, "{file}: {role}: {pod}");
    Ok(())
}

/// Runs one, and returns its output.
async fn run(site: &Site, changes: &ChangeLog, file: &str) -> Result<String> {
    let mut stored = store(site, file, false).await?;
    let mut app = read::name(&stored);
    if file == "spark-pi-scheduled" {
        // Three minutes would be too long.
        let soon = json!({ "spec": { "schedule": "@every 5s" } });
        schedules(site).merge(file, &soon).await?;
        app = eventually("the first run", async || {
            let status = schedules(site).get(file).await?["status"].clone();
            Ok(match status["lastRunName"].as_str() {
                Some(name) => Seen::Yes(name.to_owned()),
                None => Seen::NotYet(status.to_string()),
            })
        })
        .await?;
        let never_again = json!({ "spec": { "suspend": true } });
        schedules(site).merge(file, &never_again).await?;
        stored = site.jobs.get(&app).await?;
    }
    let name = app.as_str();
    let done = site.until_completed(name).await?;
    ensure!(
        done["status"]["executionAttempts"] == 1,
        "{}",
        done["status"]
    );
    let driver = format!("{name}-driver");
    let log = site.log_of(&driver, "spark-kubernetes-driver").await?;
    let pi = after(&log, "Pi is roughly ")?.to_owned();
    for role in ["driver", "executor"] {
        let entries = changes.up_to(&done).await?;
        let pod = entries.iter().rev().find(|entry| {
            let labels = &entry.object["metadata"]["labels"];
            entry.kind == "Pod"
                && labels["spark-role"] == role
                && labels["sparkoperator.k8s.io/app-name"] == name
        });
        let pod = &pod.with_context(|| format!("{file}: no {role}"))?.object;
        assert_shape(file, role, pod)?;
    }
    if !stored["spec"]["timeToLiveSeconds"].is_null() {
        site.until_no_app(name).await?;
    }
    Ok(format!("{file}: {pi}"))
}

#[tokio::test]
async fn every_published_shape_is_stored_whole() -> Result<()> {
    let site = Site::spark("spark-shapes", Weight::Light).await?;
    let all: Vec<&str> = ALL.into_iter().chain(OF_SCHEDULERS).collect();
    for file in &all {
        store(&site, file, true).await?;
    }
    site.finish(&format!("{} shapes", all.len())).await
}

#[tokio::test]
async fn every_published_shape_comes_to_its_end() -> Result<()> {
    // Each takes half a minute.
    let files: &[&str] = if is_deep() {
        &ALL
    } else {
        &["spark-pi-pod-template"]
    };
    let mut saw = Vec::new();
    for file in files {
        // Some share a ConfigMap's name.
        let site = Site::spark(file, Weight::Heavy).await?;
        let changes = ChangeLog::of(&site);
        let begun = std::time::Instant::now();
        let said = run(&site, &changes, file).await?;
        saw.push(said.clone());
        site.finish(&format!("{said}, {:.0?}", begun.elapsed()))
            .await?;
    }
    ensure!(saw.len() == files.len());
    Ok(())
}
