//! An application that loses executors, observed through its web UI and Prometheus until its TTL expires.

use anyhow::{Context as _, Result, ensure};
use e2e::pods::spark::{state, until_go};
use e2e::pods::{Site, Weight, container, delete, eventually};
use e2e::read;
use k8s_openapi::api::core::v1::Service;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};
use training_testkit::wait::Seen;

/// The port of the Prometheus agent in drivers and executors.
const AGENT: u16 = 8090;
/// How long the application stays after its end. Units: seconds.
const STAYS: u64 = 4;

/// With metrics as in the published examples, from the Prometheus agent and from Spark's UI.
fn measured() -> Value {
    let mut app = until_go("lossy", 2);
    app["spec"]["monitoring"] = json!({
        "exposeDriverMetrics": true,
        "exposeExecutorMetrics": true,
        "prometheus": {
            "jmxExporterJar": "/prometheus/jmx_prometheus_javaagent.jar", "port": AGENT,
        },
    });
    app["spec"]["sparkConf"] = json!({
        "spark.ui.prometheus.enabled": "true",
        "spark.metrics.conf.*.sink.prometheusServlet.class":
            "org.apache.spark.metrics.sink.PrometheusServlet",
        "spark.metrics.conf.*.sink.prometheusServlet.path": "/metrics/prometheus",
    });
    app
}

/// The names of executors that the status shows in this state.
fn in_state(app: &Value, wanted: &str) -> Vec<String> {
    let all = app["status"]["executorState"].as_object();
    let all = all.into_iter().flatten();
    let found = all.filter(|(_, state)| **state == wanted);
    found.map(|(name, _)| name.clone()).collect()
}

/// Waits until another executor runs in place of a lost one, and returns the application.
async fn replaced(site: &Site, lost: &str) -> Result<Value> {
    let app = site
        .until_app("lossy", "running on two others", |app| {
            let running = in_state(app, "RUNNING");
            let others = running.len() == 2 && !running.iter().any(|name| name == lost);
            others && app["status"]["executors"] == "2/2"
        })
        .await?;
    // The status matches the pods.
    let pods = site.spark_pods("lossy", "executor").await?;
    let mut running = pods
        .iter()
        .filter(|pod| pod["status"]["phase"] == "Running");
    let said = in_state(&app, "RUNNING");
    ensure!(
        running.all(|pod| said.contains(&read::name(pod))) && state(&app) == "RUNNING",
        "{said:?}, but there are {:?}",
        read::names(&pods)
    );
    Ok(app)
}

/// The metrics of a driver, of an executor, and through the Service of the web UI.
async fn assert_measured(site: &Site, app: &Value) -> Result<()> {
    let of = |pod: &str| format!("pods/{pod}:{AGENT}");
    let name = format!("app_id=\"lossy\",app_namespace=\"{}\"", site.namespace);
    let driver = of("lossy-driver");
    let driver_says = ["spark_driver_blockmanager", "spark_driver_jvm", &name];
    site.until_http(&driver, "/metrics", &driver_says).await?;
    let executor = in_state(app, "RUNNING").pop().context("no executor")?;
    let executor_says = ["spark_executor_", "executor_id=\"", &name];
    site.until_http(&of(&executor), "/metrics", &executor_says)
        .await?;
    let ui = "services/lossy-ui-svc:4040";
    site.until_http(ui, "/metrics/executors/prometheus", &["metrics_executor_"])
        .await?;
    site.until_http(ui, "/metrics/prometheus/", &["driver_jvm_heap_used"])
        .await?;
    for pod in ["lossy-driver", executor.as_str()] {
        let annotations = &site.pod(pod).await?["metadata"]["annotations"];
        for (key, value) in [("scrape", "true"), ("port", "8090"), ("path", "/metrics")] {
            let found = &annotations[format!("prometheus.io/{key}")];
            ensure!(found == value, "{pod}: {annotations}");
        }
    }
    Ok(())
}

/// The web UI answers at the address in the status, and shows the application.
async fn assert_shown(site: &Site, app: &Value) -> Result<()> {
    let info = &app["status"]["driverInfo"];
    ensure!(info["webUIServiceName"] == "lossy-ui-svc", "{info}");
    ensure!(info["webUIPort"] == 4040, "{info}");
    let address = info["webUIAddress"].as_str().unwrap_or_default();
    ensure!(address.ends_with(":4040"), "{info}");
    let ui = "services/lossy-ui-svc:4040";
    let id = app["status"]["sparkApplicationId"]
        .as_str()
        .context("no id")?;
    let path = format!("/api/v1/applications/{id}/executors");
    site.until_http(ui, &path, &["\"isActive\" : true"]).await?;
    site.until_http(ui, "/jobs/", &["lossy", "Completed Jobs"])
        .await?;
    Ok(())
}

#[tokio::test]
async fn executors_that_are_lost_are_made_again_and_all_of_it_is_measured_until_its_time_is_over()
-> Result<()> {
    let site = Site::spark("spark-lossy", Weight::Heavy).await?;
    site.until_go_file().await?;
    site.jobs.create(&measured()).await?;
    let app = site.until_executors("lossy", "2/2").await?;
    let id = app["status"]["submissionID"].clone();
    assert_shown(&site, &app).await?;
    assert_measured(&site, &app).await?;

    // The kernel kills one, where the cluster allows it: it fails visibly.
    let first = in_state(&app, "RUNNING");
    let [killed, deleted] = first.as_slice() else {
        anyhow::bail!("{}", app["status"]);
    };
    if site.cluster.is_open() {
        let pod = site.pod(killed).await?;
        site.cluster.kill(container(&pod)?)?;
    } else {
        delete(&site.pods(), killed).await?;
    }
    let app = replaced(&site, killed).await?;
    let found = &app["status"]["executorState"][killed];
    if site.cluster.is_open() {
        ensure!(found == "FAILED", "{}", app["status"]);
    }
    // Its event may be part of a minute's summary event.
    if super::is_deep() && site.cluster.is_open() {
        let events = site.events("lossy", "SparkExecutorFailed").await?;
        let told = events.iter().any(|event| {
            event.1 == "SparkExecutorFailed"
                && event.2.contains(killed)
                && event.2.contains("failed with ExitCode: 137")
        });
        ensure!(told, "{events:?}");
    }
    // The other one is deleted.
    delete(&site.pods(), deleted).await?;
    let app = replaced(&site, deleted).await?;
    let all = app["status"]["executorState"].as_object();
    ensure!(all.is_some_and(|all| all.len() == 4), "{}", app["status"]);

    site.go().await?;
    let app = site.until_completed("lossy").await?;
    let status = &app["status"];
    ensure!(status["submissionID"] == id, "it was submitted again");
    ensure!(status["executionAttempts"] == 1, "{status}");
    let log = site.log("lossy-driver").await?;
    let rounds = log.lines().find(|line| line.ends_with("rounds were right"));
    let rounds = rounds.context("no round was right")?.to_owned();

    // At the end the UI's Service is deleted; the driver stays, with its log.
    let services: Api<Service> = Api::namespaced(site.client.clone(), &site.namespace);
    eventually("the Service of the UI to be gone", async || {
        Ok(match services.get_opt("lossy-ui-svc").await? {
            None => Seen::Yes(()),
            Some(_) => Seen::NotYet("it is there".to_owned()),
        })
    })
    .await?;
    ensure!(site.pods().get_opt("lossy-driver").await?.is_some());
    // It has ended, and gets a TTL only now.
    let stays = json!({ "spec": { "timeToLiveSeconds": STAYS } });
    site.jobs.merge("lossy", &stays).await?;
    site.until_no_app("lossy").await?;
    eventually("all of it to be gone", async || {
        let pods = site.pods().list(&ListParams::default()).await?.items.len();
        let there = services.list(&ListParams::default()).await?;
        let names: Vec<_> = there
            .items
            .iter()
            .map(kube::ResourceExt::name_any)
            .collect();
        // `go` belongs to the test.
        Ok(if pods == 0 && names == ["go"] {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{pods} pods, {names:?}"))
        })
    })
    .await?;
    site.finish(&rounds).await
}
