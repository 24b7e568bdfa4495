//! `XGBoostJob` with the real XGBoost and LightGBM: the examples train, predict, and check their configuration.

use anyhow::{Context as _, Result, ensure};
use e2e::pods::{Site, Volume, Weight, after, attempt, container, eventually, example, said};
use e2e::read;
use serde_json::{Value, json};
use training_testkit::builders::XGBOOST;
use training_testkit::wait::Seen;

async fn site(prefix: &str) -> Result<Site> {
    Site::of(XGBOOST, prefix, Weight::Heavy).await
}

/// What each pod of a job of three prints after this word, sorted by rank.
async fn told(site: &Site, job: &str, word: &str) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for rank in ["master-0", "worker-0", "worker-1"] {
        let log = site.log(&format!("{job}-{rank}")).await?;
        all.push(after(&log, word)?.to_owned());
    }
    Ok(all)
}

/// All ranks have the same model, and it is good.
async fn assert_one_good_model(site: &Site, job: &str) -> Result<String> {
    let models = told(site, job, ": model ").await?;
    ensure!(models.iter().all(|m| *m == models[0]), "{models:?}");
    for share in told(site, job, "accuracy ").await? {
        ensure!(share.parse::<f64>()? > 0.9, "{share}");
    }
    Ok(format!("model {} on three ranks", models[0]))
}

#[tokio::test]
async fn a_model_is_trained_on_three_ranks_and_a_second_job_predicts_with_it() -> Result<()> {
    let site = site("xgb-train").await?;
    let _volume = Volume::of_example(&site, "xgboost/volume.yaml").await?;
    site.jobs.create(&example("xgboost/train.yaml")?).await?;
    site.until_true("train", "Succeeded").await?;
    let saw = assert_one_good_model(&site, "train").await?;
    site.jobs.create(&example("xgboost/predict.yaml")?).await?;
    site.until_true("predict", "Succeeded").await?;
    let log = site.log("predict-master-0").await?;
    let line = log
        .lines()
        .find(|line| line.contains("predictions, accuracy"));
    let line = line.with_context(|| log.clone())?;
    site.finish(&format!("{saw}; {line}")).await
}

#[tokio::test]
async fn lightgbm_trains_the_same_model_on_all_ranks_from_the_jobs_variables() -> Result<()> {
    let site = site("xgb-lightgbm").await?;
    site.jobs.create(&example("xgboost/lightgbm.yaml")?).await?;
    site.until_true("lightgbm", "Succeeded").await?;
    let saw = assert_one_good_model(&site, "lightgbm").await?;
    site.finish(&saw).await
}

#[tokio::test]
async fn when_a_rank_is_killed_all_start_again_together_and_train_to_the_end() -> Result<()> {
    let site = site("xgb-gang").await?;
    if !site.cluster.is_open() {
        e2e::skip("the processes of this cluster are out of reach");
        return Ok(());
    }
    let _volume = Volume::of_example(&site, "xgboost/volume.yaml").await?;
    let mut job = example("xgboost/train.yaml")?;
    let annotations = &job["metadata"]["annotations"];
    ensure!(
        annotations["trainyard.dev/restart-scope"] == "Gang",
        "{job}"
    );
    for role in ["Master", "Worker"] {
        let spec = &mut job["spec"]["xgbReplicaSpecs"][role]["template"]["spec"];
        spec["containers"][0]["env"] = json!([
            { "name": "ROUNDS", "value": "10" },
            { "name": "SLEEP_PER_ROUND", "value": "0.5" },
        ]);
    }
    site.jobs.create(&job).await?;
    eventually("the first rounds", async || {
        let log = site.log("train-master-0").await.unwrap_or_default();
        Ok(if log.contains("round 2/") {
            Seen::Yes(())
        } else {
            Seen::NotYet(log)
        })
    })
    .await?;
    let before = read::pods(&site.client, &site.namespace, "train").await?;
    let worker = site.pod("train-worker-1").await?;
    site.cluster.kill(container(&worker)?)?;
    site.until_true("train", "Succeeded").await?;
    let after = read::pods(&site.client, &site.namespace, "train").await?;
    assert_eq!(read::names(&before), read::names(&after));
    let uid = |pod: &Value| pod["metadata"]["uid"].clone();
    for (old, new) in before.iter().zip(&after) {
        assert_ne!(uid(old), uid(new));
        assert_eq!(attempt(new), "1.0", "{}", read::name(new));
    }
    let saw = assert_one_good_model(&site, "train").await?;
    let events = site.events("train", "XGBoostJobSucceeded").await?;
    said(&events, "Warning", "XGBoostJobRestarting")?;
    site.finish(&format!("killed once, all restarted, {saw}"))
        .await
}
