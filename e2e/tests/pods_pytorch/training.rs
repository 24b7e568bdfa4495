//! Jobs that really train.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use e2e::pods::{
    Row, Site, UNTIL_GO, Weight, created, eventually, example, no_longer_running, pair, said,
    shell, succeeded,
};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use training_testkit::job::{conditions, counters};
use training_testkit::manifest;
use training_testkit::wait::{Seen, holds_for};

use super::STAYS;

/// The ranks and hosts that a training script reports.
fn ranks(log: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = log.lines().filter_map(|line| line.strip_prefix("rank "));
    lines.filter_map(|line| {
        line.split_once(" on ")
            .filter(|(rank, _)| !rank.contains(' '))
    })
}

/// The losses and accuracies that rank 0 reports, epoch by epoch.
fn epochs(log: &str) -> Vec<(f64, f64)> {
    let number = |line: &str, word: &str| {
        let mut words = line.split_whitespace().skip_while(|w| *w != word);
        words.nth(1)?.parse().ok()
    };
    let lines = log.lines().filter(|line| line.starts_with("epoch "));
    lines
        .filter_map(|line| Some((number(line, "loss")?, number(line, "accuracy")?)))
        .collect()
}

/// A job's training by its pods' logs: hosts by rank, first and last loss, last accuracy.
async fn trained(site: &Site, pods: &[&str]) -> Result<String> {
    let mut seen = BTreeSet::new();
    let mut hosts = BTreeSet::new();
    let mut learned = Vec::new();
    for pod in pods {
        let log = site.log(pod).await?;
        for (rank, host) in ranks(&log) {
            seen.insert(rank.to_owned());
            hosts.insert(host.to_owned());
            assert_eq!(&host, pod, "{log}");
        }
        learned.extend(epochs(&log));
    }
    let wanted: BTreeSet<String> = (0..pods.len())
        .map(|rank| format!("{rank}/{}", pods.len()))
        .collect();
    assert_eq!(seen, wanted);
    assert_eq!(hosts.len(), pods.len(), "{hosts:?}");
    let (first, _) = *learned.first().context("no epoch was reported")?;
    let (last, accuracy) = *learned.last().context("no epoch was reported")?;
    assert!(last < first, "{learned:?}");
    assert!(accuracy > 0.9, "{learned:?}");
    Ok(format!(
        "{} ranks on {hosts:?}, loss {first} to {last}, accuracy {accuracy}",
        pods.len()
    ))
}

#[tokio::test]
async fn a_distributed_job_trains() -> Result<()> {
    let site = Site::open("ddp", Weight::Heavy).await?;
    site.jobs.create(&example("pytorch/ddp.yaml")?).await?;
    site.until_true("ddp", "Succeeded").await?;
    let saw = trained(&site, &["ddp-master-0", "ddp-worker-0", "ddp-worker-1"]).await?;
    site.assert_reads(
        "ddp",
        &[created("ddp"), no_longer_running("ddp"), succeeded("ddp")],
        &Row::new("Succeeded", "3/3", 0, "PyTorchJobSucceeded"),
    )
    .await?;
    // An undisturbed job has three events.
    let events = site.events("ddp", "PyTorchJobSucceeded").await?;
    assert_eq!(events.len(), 3, "{events:?}");
    said(&events, "Normal", "SuccessfulCreatePod")?;
    said(&events, "Normal", "SuccessfulCreateService")?;
    site.finish(&saw).await
}

/// Only its image is replaced: the cluster has no access to public ones.
#[tokio::test]
async fn the_quickstart_trains() -> Result<()> {
    let site = Site::open("quickstart", Weight::Heavy).await?;
    let mut script = example("quickstart/script.yaml")?;
    script["metadata"]["namespace"] = json!(site.namespace);
    manifest::apply(&site.client, vec![script]).await?;
    let mut job = example("quickstart/job.yaml")?;
    for role in ["Master", "Worker"] {
        let template = &mut job["spec"]["pytorchReplicaSpecs"][role]["template"];
        template["spec"]["containers"][0]["image"] = json!("trainyard/pytorch-cpu:1");
    }
    site.jobs.create(&job).await?;
    site.until_true("quickstart", "Succeeded").await?;
    let saw = trained(&site, &["quickstart-master-0", "quickstart-worker-0"]).await?;
    site.finish(&saw).await
}

#[tokio::test]
async fn a_job_started_by_torchrun_trains() -> Result<()> {
    let site = Site::open("torchrun", Weight::Heavy).await?;
    site.jobs.create(&example("pytorch/simple.yaml")?).await?;
    site.until_true("torchrun", "Succeeded").await?;
    let saw = trained(&site, &["torchrun-master-0", "torchrun-worker-0"]).await?;
    site.finish(&saw).await
}

#[tokio::test]
async fn i_49_a_worker_waits_for_its_masters_name_under_restricted_pod_security() -> Result<()> {
    let site = Site::open("init", Weight::Light).await?;
    site.enforce_restricted().await?;
    let restricted = |script: &str| {
        let mut pod = shell(script);
        pod["securityContext"] = json!({
            "runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": { "type": "RuntimeDefault" },
        });
        pod["containers"][0]["securityContext"] = json!({
            "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] },
        });
        pod
    };
    // Without an address the master has no name either.
    let mut master = restricted(UNTIL_GO);
    master["schedulingGates"] = json!([{ "name": "trainyard.dev/test" }]);
    let worker = restricted("getent hosts $MASTER_ADDR");
    site.jobs
        .create(&pair("pt", master, worker).build())
        .await?;
    let waiting = |pod: &Value| {
        let init = &pod["status"]["initContainerStatuses"][0];
        init["state"]["running"].is_object() && init["restartCount"] == 0
    };
    eventually("a waiting init container", async || {
        let pod = site.pod("pt-worker-0").await?;
        Ok(if waiting(&pod) {
            Seen::Yes(())
        } else {
            Seen::NotYet(pod["status"].to_string())
        })
    })
    .await?;
    holds_for(STAYS, async || {
        let pod = site.pod("pt-worker-0").await?;
        ensure!(waiting(&pod), "{}", pod["status"]);
        Ok(())
    })
    .await?;
    let job = site.jobs.get("pt").await?;
    // A slow machine may take more than the ten seconds after which the init container's wait is reported.
    let told = conditions(&job).into_iter();
    let told: Vec<_> = told.filter(|c| c.kind != "Stalled").collect();
    assert_eq!(told, [created("pt")]);

    let open = Patch::Merge(json!({ "spec": { "schedulingGates": null } }));
    site.pods()
        .patch("pt-master-0", &PatchParams::default(), &open)
        .await?;
    site.until("pt", "done but for the master", |job| {
        counters(job, "Worker").get("succeeded") == Some(&1)
    })
    .await?;
    site.go().await?;
    site.until_true("pt", "Succeeded").await?;
    let pod = site.pod("pt-worker-0").await?;
    let status = &pod["status"]["initContainerStatuses"];
    assert_eq!(status.as_array().map(Vec::len), Some(1), "{status}");
    assert_eq!(status[0]["name"], "init-pytorch");
    assert_eq!(status[0]["state"]["terminated"]["exitCode"], 0, "{status}");
    let image = status[0]["image"].as_str().unwrap_or_default().to_owned();
    assert!(image.contains("trainyard/pytorch-operator:"), "{image}");
    site.finish(&format!("init-pytorch of {image} waited, then completed"))
        .await
}
