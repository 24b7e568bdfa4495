//! An application that is suspended while it runs, and resumed while its run still terminates.

use anyhow::{Context as _, Result, ensure};
use e2e::pods::spark::{ChangeLog, assert_one_run_at_a_time, state, until_go};
use e2e::pods::{Site, Weight, after};
use serde_json::json;

#[tokio::test]
async fn suspended_in_the_middle_it_runs_again_only_when_nothing_of_the_old_run_is_left()
-> Result<()> {
    let site = Site::spark("spark-suspend", Weight::Heavy).await?;
    let changes = ChangeLog::of(&site);
    site.until_go_file().await?;
    site.jobs.create(&until_go("paused", 2)).await?;
    let before = site.until_executors("paused", "2/2").await?;
    let suspend = |yes: bool| json!({ "spec": { "suspend": yes } });
    site.jobs.merge("paused", &suspend(true)).await?;
    site.until_app("paused", "suspending", |app| {
        ["SUSPENDING", "SUSPENDED"].contains(&state(app))
    })
    .await?;
    // While the old run still terminates, when a new one could start too early.
    site.jobs.merge("paused", &suspend(false)).await?;
    site.go().await?;
    let app = site.until_completed("paused").await?;

    let entries = changes.up_to(&app).await?;
    let (path, drivers) = assert_one_run_at_a_time(&entries, "paused")?;
    ensure!(drivers == 2, "{drivers} drivers");
    let from = path.iter().position(|state| state == "SUSPENDING");
    let rest = &path[from.context("it was never suspending")?..];
    let expected = [
        "SUSPENDING",
        "SUSPENDED",
        "RESUMING",
        "SUBMITTED",
        "RUNNING",
        "SUCCEEDING",
        "COMPLETED",
    ];
    ensure!(rest == expected, "{path:?}");
    let status = &app["status"];
    ensure!(
        status["submissionID"] != before["status"]["submissionID"],
        "{status}"
    );
    ensure!(
        status["sparkApplicationId"] != before["status"]["sparkApplicationId"],
        "{status}"
    );
    ensure!(status["failedRuns"].is_null(), "{status}");
    let log = site.log("paused-driver").await?;
    after(&log, "sums came from ")?;
    site.until_no_executors("paused").await?;
    site.finish(path.join(", ").trim_start_matches(", ")).await
}
