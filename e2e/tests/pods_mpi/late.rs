//! A worker whose image becomes available late, from a registry.

use anyhow::{Result, ensure};
use e2e::pods::{Site, Weight, eventually};
use e2e::read;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{LogParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use training_testkit::job::condition;
use training_testkit::wait::Seen;

use super::{OPEN_MPI_5, assert_first_attempt, assert_ranks_on, launchers, log, workers};

/// The node uses this registry without TLS, because it is local.
const REGISTRY: &str = "127.0.0.1:5000";
const GATE: &str = "trainyard-wait-for-hosts";
const PUSH: &str = include_str!("late.py");

/// Starts a registry in the node's network.
async fn registry(site: &Site) -> Result<()> {
    let settings = format!(
        "version: 0.1\nlog: {{level: info}}\nhttp: {{addr: '{REGISTRY}'}}\nstorage: {{filesystem: {{rootdirectory: /tmp/registry}}}}\n"
    );
    let run = "printf %s \"$SETTINGS\" >/tmp/settings && exec docker-registry serve /tmp/settings";
    let pod: Pod = serde_json::from_value(json!({
        "metadata": { "name": "registry" },
        "spec": {
            "hostNetwork": true,
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "registry", "image": "trainyard/registry:1", "imagePullPolicy": "IfNotPresent",
                "command": ["sh", "-c", run],
                "env": [{ "name": "SETTINGS", "value": settings }],
                "readinessProbe": {
                    "httpGet": { "host": "127.0.0.1", "port": 5000, "path": "/v2/" }, "periodSeconds": 1,
                },
            }],
        },
    }))?;
    site.pods().create(&PostParams::default(), &pod).await?;
    eventually("a registry", async || {
        let status = site.pod("registry").await?["status"].clone();
        Ok(if status["containerStatuses"][0]["ready"] == true {
            Seen::Yes(())
        } else {
            Seen::NotYet(status.to_string())
        })
    })
    .await
}

/// Waits until the launcher's init container has reached the first worker, and returns the launcher.
async fn until_gate_waits(site: &Site, job: &str) -> Result<Value> {
    let own = LogParams {
        container: Some(GATE.to_owned()),
        ..LogParams::default()
    };
    eventually("a gate that has met one of two hosts", async || {
        let pods = launchers(site, job).await?;
        let Some(pod) = pods.first() else {
            return Ok(Seen::NotYet("no launcher".to_owned()));
        };
        let log = site.pods().logs(&read::name(pod), &own).await?;
        let met = format!("{job}-worker-0.{job}.{}.svc answers", site.namespace);
        Ok(if log.contains(&met) {
            Seen::Yes(pod.clone())
        } else {
            Seen::NotYet(log)
        })
    })
    .await
}

#[tokio::test]
async fn a_worker_whose_image_is_pulled_late_costs_the_launcher_no_attempt() -> Result<()> {
    let site = super::site("mpi-late", Weight::Light).await?;
    if !site.cluster.is_open() {
        e2e::skip("its node pulls from elsewhere");
        return Ok(());
    }
    registry(&site).await?;
    // Never pulled before, even by a node that has run this test.
    let name = format!("{}/openmpi", site.namespace);
    let late = format!("{REGISTRY}/{name}:1");
    let mut job = OPEN_MPI_5.job("pi", "mpirun -n 2 /home/mpiuser/pi");
    // The first attempt must succeed.
    job["spec"]["runPolicy"]["backoffLimit"] = json!(0);
    let worker = &mut job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"];
    worker["containers"][0]["image"] = json!(late);
    site.jobs.create(&job).await?;

    // One of the workers needn't wait.
    site.until_waits_for("pi-worker-0", &["ErrImagePull", "ImagePullBackOff"])
        .await?;
    let here = json!({ "spec": { "containers": [{ "name": "main", "image": OPEN_MPI_5.image }] } });
    site.pods()
        .patch(
            "pi-worker-0",
            &PatchParams::default(),
            &Patch::Strategic(here),
        )
        .await?;
    let launcher = until_gate_waits(&site, "pi").await?;
    site.until_waits_for("pi-worker-1", &["ErrImagePull", "ImagePullBackOff"])
        .await?;
    let names = |job: &Value| {
        let stalled = condition(job, "Stalled");
        stalled.is_ok_and(|c| c.status == "True" && c.message.contains("pi-worker-1"))
    };
    site.until("pi", "stalled by its second worker", names)
        .await?;

    let from = format!("docker.io/{}", OPEN_MPI_5.image);
    let layer = site
        .cluster
        .inside(&["python3", "-c", PUSH, &from, &late])?;
    site.until_true("pi", "Succeeded").await?;
    assert_first_attempt(&site, "pi").await?;
    let same = launchers(&site, "pi").await?;
    ensure!(same[0]["metadata"]["uid"] == launcher["metadata"]["uid"]);
    assert_ranks_on(&log(&site, "pi").await?, &workers("pi", 2))?;
    // The image came from the registry, not from the node's cache.
    let served = site.log("registry").await?;
    let asked = format!("GET /v2/{name}/blobs/{}", layer.trim());
    ensure!(served.contains(&asked), "no {asked}: {served}");
    site.finish("the launcher waited").await
}
