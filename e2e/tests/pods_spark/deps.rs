//! An application downloads its dependencies over HTTP, and scales up and down while it runs.

use anyhow::{Context as _, Result, ensure};
use e2e::pods::spark::{state, until_go};
use e2e::pods::{Site, Weight, after, eventually};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use training_testkit::wait::Seen;

const SERVER: &str = include_str!("repository.py");
const PROGRAM: &str = include_str!("elastic.py");

/// Serves a Maven repository, with other files beside it.
async fn serve(site: &Site) -> Result<()> {
    site.file("repository", "repository.py", SERVER).await?;
    let pod: Pod = serde_json::from_value(json!({
        "metadata": { "name": "repository", "labels": { "app": "repository" } },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "volumes": [{ "name": "program", "configMap": { "name": "repository" } }],
            "containers": [{
                "name": "server",
                "image": "trainyard/python:1",
                "imagePullPolicy": "IfNotPresent",
                "command": ["python3", "/program/repository.py"],
                "volumeMounts": [{ "name": "program", "mountPath": "/program" }],
                "readinessProbe": {
                    "httpGet": { "path": "/words.txt", "port": 8000 }, "periodSeconds": 1,
                },
                "resources": { "requests": { "cpu": "10m", "memory": "32Mi" } },
            }],
        },
    }))?;
    site.pods().create(&PostParams::default(), &pod).await?;
    let service: Service = serde_json::from_value(json!({
        "metadata": { "name": "repository" },
        "spec": { "selector": { "app": "repository" }, "ports": [{ "port": 8000 }] },
    }))?;
    Api::<Service>::namespaced(site.client.clone(), &site.namespace)
        .create(&PostParams::default(), &service)
        .await?;
    site.until_http("services/repository:8000", "/words.txt", &["whistle"])
        .await?;
    Ok(())
}

fn application() -> Value {
    let mut app = until_go("elastic", 1);
    let spec = &mut app["spec"];
    spec["mainApplicationFile"] = json!("local:///mnt/programs/elastic.py");
    spec["deps"] = json!({
        "repositories": ["http://repository:8000/maven"],
        "packages": ["com.example:greeting:1.0"],
        "pyFiles": ["http://repository:8000/signals.py"],
        "files": ["http://repository:8000/words.txt"],
    });
    spec["dynamicAllocation"] = json!({
        "enabled": true, "initialExecutors": 1, "minExecutors": 1, "maxExecutors": 2,
    });
    spec["sparkConf"] = json!({
        "spark.dynamicAllocation.executorIdleTimeout": "3s",
        "spark.dynamicAllocation.shuffleTracking.timeout": "3s",
    });
    app
}

/// The number of executors that the status shows in this state.
fn count(app: &Value, wanted: &str) -> usize {
    let all = app["status"]["executorState"].as_object();
    let states = all.into_iter().flat_map(|all| all.values());
    states.filter(|state| **state == wanted).count()
}

#[tokio::test]
async fn what_it_depends_on_comes_over_http_and_executors_come_and_go_with_the_work() -> Result<()>
{
    let site = Site::spark("spark-elastic", Weight::Heavy).await?;
    serve(&site).await?;
    site.file("programs", "elastic.py", PROGRAM).await?;
    site.jobs.create(&application()).await?;
    let mut grew = Vec::new();
    site.until_app("elastic", "running on two executors", |app| {
        count(app, "RUNNING") == 2
    })
    .await?;
    grew.extend(site.spark_pods("elastic", "executor").await?);
    ensure!(grew.len() == 2, "{} executors", grew.len());

    // The work is done, and one executor is enough.
    let app = site
        .until_app("elastic", "running on one executor", |app| {
            count(app, "RUNNING") == 1
        })
        .await?;
    ensure!(state(&app) == "RUNNING", "{}", app["status"]);
    eventually("one executor's pod", async || {
        let pods = site.spark_pods("elastic", "executor").await?;
        let phase = |pod: &&Value| pod["status"]["phase"] == "Running";
        let running = pods.iter().filter(phase).count();
        Ok(if running == 1 {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{running}"))
        })
    })
    .await?;
    site.go().await?;
    let app = site.until_completed("elastic").await?;
    let states = app["status"]["executorState"].as_object();
    let states = states.context("no executors")?;
    // An executor that was removed too early has a successor.
    ensure!(states.len() >= 2, "{states:?}");
    // Under load a driver kills an executor that it has asked to stop, which then ends with 143.
    if states.values().any(|state| state == "FAILED") {
        let events = site.events("elastic", "SparkExecutorFailed").await?;
        let mut failed = events.iter().filter(|e| e.1 == "SparkExecutorFailed");
        let killed = failed.all(|event| event.2.contains("ExitCode: 143"));
        ensure!(killed, "{events:?}");
    }

    let log = site.log("elastic-driver").await?;
    for words in [
        "the driver's classes say: all aboard",
        "an executor's jar says: all aboard",
        "an executor's module says: green",
        "an executor's file says: whistle",
    ] {
        ensure!(log.contains(words), "no {words:?} in {log}");
    }
    let hosts = after(&log, "hosts: ")?.to_owned();
    site.until_no_executors("elastic").await?;
    site.finish(&format!("from 1 to 2 and back; {hosts} hosts worked"))
        .await
}
