//! Training that resumes from its checkpoint: with another number of workers, and after a restart of all.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use e2e::pods::{
    MASTER, Row, Site, WORKER, Weight, attempt, container, created, eventually, no_longer_running,
    said, succeeded,
};
use e2e::read;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use training_testkit::builders::pytorch_job;
use training_testkit::job::Condition;
use training_testkit::wait::Seen;

use super::out_of_reach;

const SCRIPT: &str = include_str!("resumable.py");
/// Enough steps for more than the first checkpoint.
const STEPS: u32 = 20;

/// Stores the script, and returns a pod that runs it with its checkpoints on this volume.
async fn trainer(site: &Site, program: &str, mut volume: Value) -> Result<Value> {
    let script = json!({ "metadata": { "name": "script" }, "data": { "resumable.py": SCRIPT } });
    Api::<ConfigMap>::namespaced(site.client.clone(), &site.namespace)
        .create(&PostParams::default(), &serde_json::from_value(script)?)
        .await?;
    volume["name"] = json!("checkpoints");
    Ok(json!({
        // Python as PID 1 ignores SIGTERM.
        "terminationGracePeriodSeconds": 1,
        "containers": [{
            "name": "pytorch",
            "image": "trainyard/pytorch1-cpu:1",
            "imagePullPolicy": "IfNotPresent",
            "command": [program, "/script/resumable.py"],
            "env": [
                { "name": "CHECKPOINTS", "value": "/checkpoints" },
                { "name": "OMP_NUM_THREADS", "value": "1" },
                // How often torchrun looks for new workers, in seconds.
                { "name": "PET_MONITOR_INTERVAL", "value": "1" },
            ],
            "resources": {
                "requests": { "cpu": "100m", "memory": "128Mi" }, "limits": { "memory": "1Gi" },
            },
            "volumeMounts": [
                { "name": "script", "mountPath": "/script" },
                { "name": "checkpoints", "mountPath": "/checkpoints" },
            ],
        }],
        "volumes": [{ "name": "script", "configMap": { "name": "script" } }, volume],
    }))
}

/// The number after a word of a line.
fn number(line: &str, word: &str) -> Option<u32> {
    let mut words = line.split_whitespace().skip_while(|w| *w != word);
    words.nth(1)?.parse().ok()
}

/// The steps that rank 0 reports in a world of this size; each checkpoint is written before the report.
fn steps(log: &str, world: u32) -> Vec<u32> {
    let lines = log.lines().filter(|line| line.starts_with("step "));
    let ours = lines.filter(|line| number(line, "world") == Some(world));
    ours.filter_map(|line| number(line, "step")).collect()
}

/// The steps from which processes started in a world of this size.
fn beginnings(log: &str, world: u32) -> Vec<u32> {
    let of = format!("/{world} on ");
    let lines = log.lines().filter(|line| line.starts_with("rank "));
    let ours = lines.filter(|line| line.contains(&of) && line.contains(" from step "));
    ours.filter_map(|line| number(line, "step")).collect()
}

/// The concatenated logs of these pods.
async fn logs(site: &Site, pods: &[&str]) -> Result<String> {
    let mut all = String::new();
    for pod in pods {
        all.push_str(&site.log(pod).await?);
    }
    Ok(all)
}

/// Waits until the training has made some steps in a world of this size, and returns the last of them.
async fn until_trains(site: &Site, pods: &[&str], world: u32, from: u32) -> Result<u32> {
    eventually(&format!("{STEPS} steps of {world} ranks"), async || {
        let log = logs(site, pods).await?;
        Ok(match steps(&log, world).last() {
            Some(step) if *step >= from + STEPS => Seen::Yes(*step),
            _ => Seen::NotYet(log),
        })
    })
    .await
}

/// Same as [`until_trains`] for three ranks that start together; `None` if they don't connect: this version of gloo may refuse a
/// connection between them, and then they hang as after the loss of a peer.
async fn until_three_train(site: &Site, pods: &[&str], from: u32) -> Result<Option<u32>> {
    eventually(&format!("{STEPS} steps of 3 ranks"), async || {
        let log = logs(site, pods).await?;
        Ok(match steps(&log, 3).last() {
            Some(step) if *step >= from + STEPS => Seen::Yes(Some(*step)),
            None if log.contains("a peer is lost: ") => Seen::Yes(None),
            _ => Seen::NotYet(log),
        })
    })
    .await
}

/// The pods' uids by name.
fn uids(pods: &[Value]) -> BTreeMap<String, Value> {
    let uid = |pod: &Value| (read::name(pod), pod["metadata"]["uid"].clone());
    pods.iter().map(uid).collect()
}

#[tokio::test]
async fn an_elastic_job_that_is_scaled_up_goes_on_from_its_checkpoint() -> Result<()> {
    let site = Site::open("elastic", Weight::Heavy).await?;
    let pod = trainer(&site, "torchrun", json!({ "emptyDir": {} })).await?;
    let job = pytorch_job("pt")
        .workers(2)
        .set(WORKER, pod)
        .set("/spec/nprocPerNode", "1")
        .set(
            "/spec/elasticPolicy",
            json!({
                "minReplicas": 1, "maxReplicas": 3, "maxRestarts": 100, "rdzvBackend": "c10d",
                // How long an incomplete rendezvous waits for another worker, in seconds.
                "rdzvConf": [{ "key": "last_call_timeout", "value": "5" }],
            }),
        );
    site.jobs.create(&job.build()).await?;
    let before = uids(&site.until_running("pt", 2).await?);
    let pods = ["pt-worker-0", "pt-worker-1", "pt-worker-2"];
    let reached = until_trains(&site, &pods[..2], 2, 0).await?;

    let scaled = site.kubectl(&["scale", "pytorchjob", "pt", "--replicas=3"])?;
    assert!(scaled.contains("scaled"), "{scaled}");
    let three = site.until_running("pt", 3).await?;
    let after = uids(&three);
    assert!(before.iter().all(|(name, uid)| after[name] == *uid));
    until_trains(&site, &pods, 3, reached).await?;
    for pod in pods {
        let log = site.log(pod).await?;
        let from = *beginnings(&log, 3).last().context("no third rank")?;
        // The last checkpoint before the scaling, or a later one.
        assert!(from >= reached, "{pod} from {from}, not {reached}: {log}");
    }
    let restarts = |pod: &Value| pod["status"]["containerStatuses"][0]["restartCount"].clone();
    assert!(three.iter().all(|pod| restarts(pod) == 0), "{three:?}");
    site.until("pt", "ready", |job| job["status"]["ready"] == "3/3")
        .await?;
    let qualified = |kind: &str, status: &str, reason: &str, end: &str| {
        let message = format!("PyTorchJob {}/pt {end}", site.namespace);
        Condition::new(kind, status, reason, &message)
    };
    let running = |status: &str| qualified("Running", status, "PyTorchJobRunning", "is running.");
    site.assert_reads(
        "pt",
        &[created("pt"), running("True")],
        &Row::new("Running", "3/3", 0, "PyTorchJobRunning"),
    )
    .await?;

    site.go().await?;
    site.until_true("pt", "Succeeded").await?;
    let done = qualified(
        "Succeeded",
        "True",
        "PyTorchJobSucceeded",
        "successfully completed.",
    );
    site.assert_reads(
        "pt",
        &[created("pt"), running("False"), done],
        &Row::new("Succeeded", "3/3", 0, "PyTorchJobSucceeded"),
    )
    .await?;
    let summary = site.summary();
    assert!(
        summary.values().all(|c| (c.creates, c.deletes) == (1, 0)),
        "{summary:?}"
    );
    let events = site.events("pt", "PyTorchJobSucceeded").await?;
    let made = "Created pod: pt-worker-2";
    assert!(events.iter().any(|e| e.2 == made), "{events:?}");
    site.finish(&format!(
        "three ranks after step {reached} of two, no pod made anew"
    ))
    .await
}

#[tokio::test]
async fn a_gang_restarts_together_and_goes_on_from_its_checkpoint() -> Result<()> {
    for name in ["gang", "gang-again", "gang-at-last"] {
        let site = Site::open(name, Weight::Heavy).await?;
        if out_of_reach(&site) {
            return Ok(());
        }
        if let Some(saw) = gang_restart(&site).await? {
            return site.finish(&saw).await;
        }
        eprintln!("{}: the ranks did not find each other", site.namespace);
    }
    bail!("three times in a row the ranks did not find each other")
}

/// Returns what happened, or `None` if the training itself did not start.
async fn gang_restart(site: &Site) -> Result<Option<String>> {
    // A directory on the node outlives the pods.
    let path = format!("/var/lib/trainyard-tests/{}", site.namespace);
    let volume = json!({ "hostPath": { "path": path, "type": "DirectoryOrCreate" } });
    let pod = trainer(site, "python3", volume).await?;
    // A restart of all counts once against the limit.
    let job = pytorch_job("pt")
        .master()
        .workers(2)
        .restart_policy("Master", "ExitCode")
        // Left alone, the kubelet would restart the container in its pod.
        .restart_policy("Worker", "OnFailure")
        .set(MASTER, pod.clone())
        .set(WORKER, pod)
        .set("/spec/nprocPerNode", "1")
        .annotation("trainyard.dev/restart-scope", "Gang")
        .run_policy("backoffLimit", 1);
    site.jobs.create(&job.build()).await?;
    let before = site.until_running("pt", 3).await?;
    let pods = ["pt-master-0", "pt-worker-0", "pt-worker-1"];
    let Some(reached) = until_three_train(site, &pods, 0).await? else {
        return Ok(None);
    };

    let victim = read::by_rank(&before, "pt", "worker-1")?;
    site.cluster.kill(container(victim)?)?;
    for pod in &before {
        let new = site.until_replaced(pod).await?;
        assert_eq!(attempt(&new), "1.0");
    }
    let Some(again) = until_three_train(site, &pods, reached).await? else {
        return Ok(None);
    };
    for pod in pods {
        let log = site.log(pod).await?;
        let from = beginnings(&log, 3);
        assert!(from.len() == 1 && from[0] >= reached, "{from:?}: {log}");
    }
    site.go().await?;
    site.until_true("pt", "Succeeded").await?;
    let job = site
        .assert_reads(
            "pt",
            &[created("pt"), no_longer_running("pt"), succeeded("pt")],
            &Row::new("Succeeded", "3/3", 3, "PyTorchJobSucceeded"),
        )
        .await?;
    let status = &job["status"];
    assert_eq!(status["countedFailures"], 1, "{status}");
    assert_eq!(status["lastFailure"]["pod"], "pt-worker-1", "{status}");
    assert_eq!(status["lastFailure"]["exitCode"], 137, "{status}");
    let summary = site.summary();
    for pod in pods {
        let churn = summary[&format!("Pod/{pod}")];
        assert_eq!((churn.creates, churn.deletes), (2, 1), "{pod}");
    }
    let events = site.events("pt", "PyTorchJobSucceeded").await?;
    assert_eq!(
        said(&events, "Warning", "PyTorchJobRestarting")?,
        "job pt is restarting because Worker replica(s) failed."
    );
    let told = said(&events, "Warning", "PodFailed")?;
    assert!(told.starts_with("Pod pt-worker-1: exit code 137"), "{told}");
    site.cluster.inside(&["rm", "-r", &path])?;
    Ok(Some(format!(
        "all three made anew after step {reached}, then on to {again}"
    )))
}
