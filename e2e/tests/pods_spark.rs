//! `SparkApplication` with the real Spark: drivers create executors, and the status shows them. One test program, so that the scenarios
//! run in parallel.

use anyhow::{Context as _, Result, ensure};
use e2e::pods::spark::{has_ended, state};
use e2e::pods::{Site, Weight, after, example};
use serde_json::json;
use training_testkit::is_deep;

#[path = "pods_spark/deps.rs"]
mod deps;
#[path = "pods_spark/executors.rs"]
mod executors;
#[path = "pods_spark/images.rs"]
mod images;
#[path = "pods_spark/lost.rs"]
mod lost;
#[path = "pods_spark/published.rs"]
mod published;
#[path = "pods_spark/schedules.rs"]
mod schedules;
#[path = "pods_spark/suspend.rs"]
mod suspend;

#[tokio::test]
async fn the_example_learns_on_two_executors_whose_driver_made_them() -> Result<()> {
    let site = Site::spark("spark-clouds", Weight::Heavy).await?;
    site.jobs.create(&example("spark/clouds.yaml")?).await?;
    site.until_executors("clouds", "2/2").await?;
    // They belong to the driver, and to the application as well.
    for pod in site.spark_pods("clouds", "executor").await? {
        let owners = pod["metadata"]["ownerReferences"].as_array();
        let of = |kind: &str| owners.is_some_and(|all| all.iter().any(|o| o["kind"] == kind));
        ensure!(of("Pod") && of("SparkApplication"), "{owners:?}");
    }
    let app = site.until_completed("clouds").await?;
    let log = site.log("clouds-driver").await?;
    let hosts = log
        .lines()
        .filter(|line| line.starts_with("points came from clouds-"));
    ensure!(hosts.count() == 2, "{log}");
    let area = after(&log, "the area under the curve is ")?;
    ensure!(area.trim().parse::<f64>()? > 0.9, "{area}");
    let states = app["status"]["executorState"]
        .as_object()
        .context("no executors")?;
    ensure!(states.len() == 2, "{states:?}");
    site.until_no_executors("clouds").await?;
    site.finish(&format!("area {} on two executors", area.trim()))
        .await
}

#[tokio::test]
async fn the_example_extracts_transforms_and_loads() -> Result<()> {
    let site = Site::spark("spark-sales", Weight::Heavy).await?;
    let mut app = example("spark/sales.yaml")?;
    let path = format!("/var/lib/trainyard-examples/sales-{}", site.namespace);
    app["spec"]["volumes"][0]["hostPath"]["path"] = json!(path);
    site.jobs.create(&app).await?;
    site.until_completed("sales").await?;
    let log = site.log("sales-driver").await?;
    ensure!(log.contains("stored 48 sums of 12 months"), "{log}");
    let good: u32 = log
        .lines()
        .find_map(|line| line.split_once(" of 20000 sales are good")?.0.parse().ok())
        .with_context(|| log.clone())?;
    ensure!((19_600..20_000).contains(&good), "{good}");
    if site.cluster.is_open() {
        site.cluster.inside(&["rm", "-r", &path])?;
    }
    site.finish(&format!("{good} sales in 48 sums")).await
}

#[tokio::test]
async fn java_runs_and_a_driver_that_fails_is_tried_again_and_says_why() -> Result<()> {
    let site = Site::spark("spark-java", Weight::Heavy).await?;
    site.jobs.create(&example("spark/pi.yaml")?).await?;
    site.until_completed("spark-pi").await?;
    let log = site.log("spark-pi-driver").await?;
    let pi = after(&log, "Pi is roughly ")?.trim().to_owned();
    ensure!((3.1..3.2).contains(&pi.parse::<f64>()?), "{pi}");

    let mut broken = example("spark/pi.yaml")?;
    broken["metadata"]["name"] = json!("broken");
    broken["spec"]["mainClass"] = json!("NoSuchClass");
    broken["spec"]["restartPolicy"] = json!({
        "type": "OnFailure", "onFailureRetries": 1, "onFailureRetryInterval": 1,
    });
    site.jobs.create(&broken).await?;
    let app = site.until_app("broken", "over", has_ended).await?;
    ensure!(state(&app) == "FAILED", "{}", app["status"]);
    ensure!(app["status"]["executionAttempts"] == 2, "{}", app["status"]);
    let why = app["status"]["applicationState"]["errorMessage"]
        .as_str()
        .unwrap_or_default();
    ensure!(
        why.contains("driver container failed") && why.contains("NoSuchClass"),
        "{why}"
    );
    site.assert_why(
        "broken",
        "FAILED",
        &["driver container failed", "NoSuchClass"],
    )?;
    site.finish(&format!(
        "Pi is roughly {pi}; {}",
        why.lines().next().unwrap_or_default()
    ))
    .await
}
