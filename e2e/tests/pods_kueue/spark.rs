//! Spark applications in a queue: driver and executors are admitted and preempted together.

use anyhow::{Context as _, Result, ensure};
use e2e::pods::spark::{ChangeLog, Entry, assert_one_run_at_a_time, state, until_go};
use e2e::pods::{Site, Weight};
use e2e::read;
use serde_json::{Value, json};
use training_testkit::is_deep;
use training_testkit::wait::holds_for;

use super::{QUEUE, Queue, STAYS, assert_as_admitted};

/// A driver and two executors request 600m and 1.5Gi.
const ROOM: [&str; 2] = ["700m", "2Gi"];

async fn submit(queue: &Queue, name: &str, priority: Option<&str>) -> Result<()> {
    let mut app = until_go(name, 2);
    app["metadata"]["labels"] = json!({ "kueue.x-k8s.io/queue-name": QUEUE });
    if let Some(class) = priority {
        app["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = class.into();
    }
    queue.site.jobs.create(&app).await?;
    Ok(())
}

/// All pods of an application that runs with two executors, each as Kueue has admitted it.
async fn assert_runs_as_admitted(queue: &Queue, app: &str) -> Result<()> {
    let site = &queue.site;
    site.until_executors(app, "2/2").await?;
    let mut pods = site.spark_pods(app, "driver").await?;
    pods.extend(site.spark_pods(app, "executor").await?);
    ensure!(pods.len() == 3, "{:?}", read::names(&pods));
    assert_as_admitted(&pods);
    Ok(())
}

/// Fails unless an application has no pods and is queued.
async fn assert_waiting(queue: &Queue, app: &str) -> Result<()> {
    for role in ["driver", "executor"] {
        let pods = queue.site.spark_pods(app, role).await?;
        ensure!(pods.is_empty(), "{:?}", read::names(&pods));
    }
    let app = queue.site.jobs.get(app).await?;
    ensure!(state(&app) == "SUSPENDED", "{}", app["status"]);
    ensure!(app["spec"]["suspend"] == true, "{}", app["spec"]);
    Ok(())
}

/// No two applications ran at once, as far as Kueue can see.
fn assert_turns(entries: &[Entry]) -> Result<()> {
    let mut at_work: Vec<&str> = Vec::new();
    for entry in entries.iter().filter(|e| e.kind == "SparkApplication") {
        at_work.retain(|name| *name != entry.name);
        let now = state(&entry.object);
        if !entry.gone && ["SUBMITTED", "RUNNING", "SUCCEEDING"].contains(&now) {
            at_work.push(&entry.name);
        }
        ensure!(at_work.len() <= 1, "{at_work:?} at once");
    }
    Ok(())
}

#[tokio::test]
async fn an_application_gives_way_with_its_executors_and_runs_again_when_there_is_room()
-> Result<()> {
    let site = Site::spark("kueue-spark", Weight::Heavy).await?;
    let Some(queue) = Queue::of(site, ROOM).await? else {
        return Ok(());
    };
    let site = &queue.site;
    let changes = ChangeLog::of(site);
    site.until_go_file().await?;
    submit(&queue, "low", None).await?;
    assert_runs_as_admitted(&queue, "low").await?;

    // There is no room for another one.
    submit(&queue, "next", None).await?;
    let (_, why) = queue
        .until_workload("next", "QuotaReserved", "False")
        .await?;
    site.until_app("next", "suspended", |app| state(app) == "SUSPENDED")
        .await?;
    holds_for(STAYS, async || assert_waiting(&queue, "next").await).await?;

    submit(&queue, "high", Some(queue.name())).await?;
    assert_runs_as_admitted(&queue, "high").await?;
    site.until_app("low", "suspended", |app| state(app) == "SUSPENDED")
        .await?;
    assert_waiting(&queue, "low").await?;
    let (reason, _) = queue.until_workload("low", "Preempted", "True").await?;
    ensure!(reason == "InClusterQueue", "{reason}");
    // Kueue has reverted its changes to the spec.
    let low = site.jobs.get("low").await?;
    for role in ["driver", "executor"] {
        let of = &low["spec"][role];
        ensure!(
            of["nodeSelector"].is_null() && of["tolerations"].is_null(),
            "{of}"
        );
    }
    ensure!(low["status"]["failedRuns"].is_null(), "{}", low["status"]);

    let mut all = vec![("high", 1), ("low", 2)];
    if is_deep() {
        all.push(("next", 1));
    } else {
        // Watching it run as well would take half a minute.
        site.jobs.delete("next").await?;
    }
    site.go().await?;
    let mut last = Value::Null;
    for (app, _) in all.iter().copied() {
        last = site.until_completed(app).await?;
        let (reason, _) = queue.until_workload(app, "Finished", "True").await?;
        ensure!(reason == "Succeeded", "{app}: {reason}");
    }
    let entries = changes.up_to(&last).await?;
    assert_turns(&entries)?;
    for (app, drivers) in all {
        let (states, had) = assert_one_run_at_a_time(&entries, app)?;
        ensure!(had == drivers, "{app} had {had} drivers: {states:?}");
    }
    let driver = site.spark_pods("low", "driver").await?;
    let driver = driver.first().context("no driver of low")?;
    assert_as_admitted(std::slice::from_ref(driver));
    queue
        .finish(&format!(
            "preempted once, resumed, completed; the third waited: {why}"
        ))
        .await
}
