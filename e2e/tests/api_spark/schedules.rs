//! Applications that a schedule creates.

use super::*;

fn every(schedule: &str, policy: &str) -> Value {
    let mut template = pi()["spec"].clone();
    template["timeToLiveSeconds"] = json!(3600);
    json!({
        "apiVersion": "sparkoperator.k8s.io/v1beta2",
        "kind": "ScheduledSparkApplication",
        "metadata": { "name": "often" },
        "spec": { "schedule": schedule, "concurrencyPolicy": policy, "template": template },
    })
}

impl Stage {
    async fn until_runs(
        &self,
        what: &str,
        is_it: impl Fn(&[SparkApplication]) -> bool,
    ) -> Result<Vec<SparkApplication>> {
        eventually(what, HANG, async || {
            let mut runs = self
                .api::<SparkApplication>()
                .list(&ListParams::default())
                .await?
                .items;
            runs.sort_by_key(|run| run.creation_timestamp().map(|t| t.0));
            Ok(if is_it(&runs) {
                Seen::Yes(runs)
            } else {
                Seen::NotYet(format!(
                    "{:?}",
                    runs.iter()
                        .map(kube::ResourceExt::name_any)
                        .collect::<Vec<_>>()
                ))
            })
        })
        .await
    }

    /// Suspends the schedule, which would create applications for ever, so that everything settles.
    async fn end_of_schedule(&self) -> Result<()> {
        let held = Patch::Merge(json!({ "spec": { "suspend": true } }));
        let api = self.api::<ScheduledSparkApplication>();
        api.patch("often", &PatchParams::default(), &held).await?;
        self.assert_clean().await
    }
}

#[tokio::test]
async fn a_schedule_makes_applications_and_names_them_in_its_status() -> Result<()> {
    let Some(stage) = Stage::open("spark-schedule").await? else {
        return Ok(());
    };
    stage.apply(&every("@every 2s", "Allow")).await?;
    let runs = stage.until_runs("two runs", |runs| runs.len() >= 2).await?;
    for run in &runs {
        ensure!(run.labels()["sparkoperator.k8s.io/scheduled-app-name"] == "often");
    }
    let schedule: ScheduledSparkApplication = stage.api().get("often").await?;
    let status = schedule.status.context("no status")?;
    ensure!(
        status.last_run_name.is_some() && status.next_run.is_some(),
        "{status:?}"
    );
    stage.end_of_schedule().await
}

#[tokio::test]
async fn forbid_waits_for_the_former_run_and_replace_does_not() -> Result<()> {
    let Some(stage) = Stage::open("spark-policies").await? else {
        return Ok(());
    };
    stage.apply(&every("@every 1s", "Forbid")).await?;
    let runs = stage.until_runs("a run", |runs| !runs.is_empty()).await?;
    let first = runs[0].name_any();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let runs = stage.until_runs("one run", |runs| runs.len() == 1).await?;
    ensure!(runs[0].name_any() == first);
    let patch = Patch::Merge(json!({ "spec": { "concurrencyPolicy": "Replace" } }));
    let api = stage.api::<ScheduledSparkApplication>();
    api.patch("often", &PatchParams::default(), &patch).await?;
    stage
        .until_runs("another run instead", |runs| {
            runs.len() == 1 && runs[0].name_any() != first
        })
        .await?;
    stage.end_of_schedule().await
}

#[tokio::test]
async fn a_schedule_that_can_not_be_followed_says_why_and_recovers() -> Result<()> {
    let Some(stage) = Stage::open("spark-cron").await? else {
        return Ok(());
    };
    stage.apply(&every("not a schedule", "Allow")).await?;
    let api = stage.api::<ScheduledSparkApplication>();
    eventually("the reason", HANG, async || {
        let status = api.get("often").await?.status.unwrap_or_default();
        Ok(if status.reason.is_some() {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{status:?}"))
        })
    })
    .await?;
    let patch = Patch::Merge(json!({ "spec": { "schedule": "@every 1s" } }));
    api.patch("often", &PatchParams::default(), &patch).await?;
    stage.until_runs("a run", |runs| !runs.is_empty()).await?;
    stage.end_of_schedule().await
}
