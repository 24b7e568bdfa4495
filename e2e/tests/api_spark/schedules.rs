//! Applications that a schedule creates.

use k8s_openapi::api::networking::v1::Ingress;
use training_testkit::proxy::{Action, Answer, Call, Effect, Rule};

use super::*;

/// How a controller of Ingresses refuses one with the URL of another one.
const TAKEN: &str = "admission webhook \"validate.ingress.example.com\" denied the request: host \"spark.example.com\" and path \"/\" \
                     is already defined in another Ingress";

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

    async fn suspend_schedule(&self) -> Result<()> {
        let held = Patch::Merge(json!({ "spec": { "suspend": true } }));
        let api = self.api::<ScheduledSparkApplication>();
        api.patch("often", &PatchParams::default(), &held).await?;
        Ok(())
    }

    /// Suspends the schedule, which would create applications for ever, so that everything settles.
    async fn end_of_schedule(&self) -> Result<()> {
        self.suspend_schedule().await?;
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

#[tokio::test]
async fn a_run_goes_on_while_the_ingress_of_a_former_one_has_its_url() -> Result<()> {
    let Some((proxy, stage)) = Stage::proxied("spark-url", |options| options).await? else {
        return Ok(());
    };
    let namespace = stage.name().to_owned();
    let refusal = Action::Answer(Effect::Without, Answer::new(400, "BadRequest", TAKEN));
    let rule = Rule::new("taken", refusal, move |call: &Call| {
        call.namespace == namespace && call.is("create", "ingresses")
    });
    let rule = rule.only(2..usize::MAX);
    proxy.add(&rule);
    let mut schedule = every("@every 2s", "Allow");
    schedule["spec"]["template"]["driverIngressOptions"] =
        json!([{ "servicePort": 8080, "ingressURLFormat": "spark.example.com" }]);
    stage.apply(&schedule).await?;
    let runs = stage.until_runs("two runs", |runs| runs.len() >= 2).await?;
    stage.suspend_schedule().await?;
    for run in &runs {
        let name = run.name_any();
        let app = stage.until_one(&name, &State::Submitted).await?;
        let driver = app.status.and_then(|s| s.driver_info.pod_name);
        stage.runs(&driver.context("no driver")?).await?;
        stage.until_one(&name, &State::Running).await?;
    }
    let ingresses = stage.names::<Ingress>().await?;
    ensure!(ingresses.len() == 1, "{ingresses:?}");
    let mut names = runs.iter().map(kube::ResourceExt::name_any);
    let second = names.find(|name| !ingresses.contains(&format!("{name}-ing-8080")));
    let second = second.context("every run has an Ingress")?;
    let told = |app: &SparkApplication| {
        let text = app.status.as_ref();
        let text = text.and_then(|s| s.application_state.error_message.as_deref());
        text.is_some_and(|t| t.contains("can't create the Ingress") && t.contains(TAKEN))
    };
    let app = stage
        .until_of(&second, "to say what it goes on without", told)
        .await?;
    let reason = "FailedCreateIngress";
    e2e::read::events_with(&stage.client, stage.name(), &second, reason).await?;
    let driver = app.status.and_then(|s| s.driver_info.pod_name);
    let driver = driver.context("no driver")?;
    stage.ends(&driver, "driver", 0, "").await?;
    stage.until_one(&second, &State::Completed).await?;
    ensure!(rule.hits() > 0, "no Ingress was refused");
    stage.end_of_schedule().await
}
