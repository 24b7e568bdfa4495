//! `TFJob` with the real TensorFlow: the examples train, and their pods check their configuration.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::pods::{Site, UNTIL_GO, Volume, Weight, after, eventually, example, said};
use e2e::read;
use serde_json::{Value, json};
use training_testkit::builders::TENSORFLOW;
use training_testkit::job::{counters, is_true};
use training_testkit::wait::{Seen, holds_for};

/// Long enough to see that something does not happen.
const STAYS: Duration = Duration::from_secs(2);

async fn site(prefix: &str) -> Result<Site> {
    Site::of(TENSORFLOW, prefix, Weight::Heavy).await
}

/// The accuracy that a pod reports last.
fn accuracy(log: &str) -> Result<f64> {
    Ok(after(log, "accuracy ")?.parse()?)
}

#[tokio::test]
async fn two_workers_train_one_network_with_multi_worker_mirrored_strategy() -> Result<()> {
    let site = site("tf-mirrored").await?;
    site.jobs
        .create(&example("tensorflow/multiworker.yaml")?)
        .await?;
    site.until_true("multiworker", "Succeeded").await?;
    let mut weights = Vec::new();
    for pod in ["multiworker-worker-0", "multiworker-worker-1"] {
        let log = site.log(pod).await?;
        ensure!(log.contains("2 replicas in sync"), "{log}");
        ensure!(accuracy(&log)? > 0.9, "{log}");
        weights.push(after(&log, "weights ")?.to_owned());
    }
    assert_eq!(weights[0], weights[1]);
    site.finish(&format!("weights {weights:?}")).await
}

#[tokio::test]
async fn a_chief_trains_on_workers_with_a_parameter_server_and_the_rest_goes_at_its_end()
-> Result<()> {
    let site = site("tf-ps").await?;
    let name = "parameter-server";
    site.jobs
        .create(&example("tensorflow/parameter_server.yaml")?)
        .await?;
    let job = site.until_true(name, "Succeeded").await?;
    let log = site.log("parameter-server-chief-0").await?;
    ensure!(accuracy(&log)? > 0.9, "{log}");
    // They would have waited for ever.
    site.until_pods(name, &["parameter-server-chief-0"]).await?;
    for role in ["PS", "Worker"] {
        assert_eq!(counters(&job, role).get("failed"), None, "{job}");
    }
    site.finish(&format!("accuracy {}", accuracy(&log)?)).await
}

#[tokio::test]
async fn an_evaluator_measures_what_the_chief_has_written() -> Result<()> {
    let site = site("tf-evaluator").await?;
    let _volume = Volume::of_example(&site, "tensorflow/volume.yaml").await?;
    site.jobs
        .create(&example("tensorflow/evaluator.yaml")?)
        .await?;
    site.until_true("evaluator", "Succeeded").await?;
    let log = site.log("evaluator-chief-0").await?;
    let measured: f64 = after(&log, "the evaluator has measured ")?.parse()?;
    ensure!(measured > 0.9, "{log}");
    site.until_pods("evaluator", &["evaluator-chief-0"]).await?;
    site.finish(&format!("measured {measured}")).await
}

#[tokio::test]
async fn with_all_workers_a_job_waits_for_the_last_of_them() -> Result<()> {
    let site = site("tf-all").await?;
    let mut job = example("tensorflow/multiworker.yaml")?;
    ensure!(job["spec"]["successPolicy"] == "AllWorkers", "{job}");
    let container =
        &mut job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0];
    let script = format!(
        "python3 /opt/trainyard/multiworker.py && case $(hostname) in *-1) {UNTIL_GO};; esac"
    );
    container["command"] = json!(["sh", "-c", script]);
    site.jobs.create(&job).await?;
    let first = |job: &Value| counters(job, "Worker").get("succeeded") == Some(&1);
    site.until("multiworker", "done with one worker", first)
        .await?;
    holds_for(STAYS, async || {
        let job = site.jobs.get("multiworker").await?;
        ensure!(!is_true(&job, "Succeeded"), "{}", job["status"]);
        Ok(())
    })
    .await?;
    site.go().await?;
    let job = site.until_true("multiworker", "Succeeded").await?;
    assert_eq!(counters(&job, "Worker").get("succeeded"), Some(&2));
    site.finish("worker 0 ended, then worker 1, then the job")
        .await
}

#[tokio::test]
async fn workers_come_and_go_while_the_others_train_on() -> Result<()> {
    let site = site("tf-dynamic").await?;
    site.jobs
        .create(&example("tensorflow/dynamic.yaml")?)
        .await?;
    let pods = site.until_running("dynamic", 3).await?;
    let uid = |pods: &[Value], name: &str| -> Result<Value> {
        let pod = pods.iter().find(|pod| read::name(pod) == name);
        let pod = pod.with_context(|| format!("no pod {name}"))?;
        Ok(pod["metadata"]["uid"].clone())
    };
    let steps = async |pod: &str| -> Result<u64> {
        eventually(&format!("steps of {pod}"), async || {
            let log = site.log(pod).await.unwrap_or_default();
            Ok(match after(&log, " steps of ").and_then(number) {
                Ok(steps) => Seen::Yes(steps),
                Err(_) => Seen::NotYet(log),
            })
        })
        .await
    };
    let workers =
        |count: u32| json!({ "spec": { "tfReplicaSpecs": { "Worker": { "replicas": count } } } });
    let before = steps("dynamic-worker-0").await?;
    site.jobs.merge("dynamic", &workers(3)).await?;
    let three = site.until_running("dynamic", 4).await?;
    let joined = eventually("the new worker's first step", async || {
        let log = site.log("dynamic-worker-2").await.unwrap_or_default();
        Ok(match after(&log, "joining at step ").and_then(number) {
            Ok(step) => Seen::Yes(step),
            Err(_) => Seen::NotYet(log),
        })
    })
    .await?;
    ensure!(joined >= before, "it began anew: {joined} after {before}");

    site.jobs.merge("dynamic", &workers(1)).await?;
    site.until_pods("dynamic", &["dynamic-ps-0", "dynamic-worker-0"])
        .await?;
    let then = steps("dynamic-worker-0").await?;
    eventually("more steps of the last worker", async || {
        let now = steps("dynamic-worker-0").await?;
        Ok(if now > then {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{now} after {then}"))
        })
    })
    .await?;
    let last = read::pods(&site.client, &site.namespace, "dynamic").await?;
    for name in ["dynamic-ps-0", "dynamic-worker-0"] {
        assert_eq!(uid(&pods, name)?, uid(&three, name)?);
        assert_eq!(uid(&pods, name)?, uid(&last, name)?);
    }
    site.go().await?;
    site.until_true("dynamic", "Succeeded").await?;
    let events = site.events("dynamic", "TFJobSucceeded").await?;
    ensure!(events.iter().all(|e| e.0 == "Normal"), "{events:?}");
    let told = said(&events, "Normal", "TFJobSucceeded")?.to_owned();
    site.finish(&format!("joined at step {joined}; {told}"))
        .await
}

fn number(text: &str) -> Result<u64> {
    Ok(text.trim_end_matches(',').parse()?)
}
