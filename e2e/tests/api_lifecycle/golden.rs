//! Compares pods and Services with the published ones, field by field.

use anyhow::{Context as _, Result};
use e2e::World;
use e2e::read::{self, by_rank};
use serde_json::{Value, json};
use training_testkit::builders::pytorch_job;
use training_testkit::kubelet::lockstep;

const RANKS: [&str; 3] = ["master-0", "worker-0", "worker-1"];

#[tokio::test]
async fn pods_and_services_are_the_published_ones() -> Result<()> {
    let Some(world) = World::start("golden", lockstep()).await? else {
        return Ok(());
    };
    let operator = world.operator().await?;
    let job = world
        .jobs
        .create(&pytorch_job("pt").master().workers(2).build())
        .await?;
    let names = ["pt-master-0", "pt-worker-0", "pt-worker-1"];
    read::until_children(&world.client, world.namespace(), "pt", &names, &names).await?;
    let pods = read::pods(&world.client, world.namespace(), "pt").await?;
    let services = read::services(&world.client, world.namespace(), "pt").await?;
    for (rank, number) in RANKS.into_iter().zip(0..) {
        golden_pod(by_rank(&pods, "pt", rank)?, &job, rank, number)?;
        golden_service(by_rank(&services, "pt", rank)?, &job, rank)?;
    }
    world.assert_clean(&operator).await
}

fn golden_labels(rank: &str) -> Result<Value> {
    let (role, index) = rank.split_once('-').context("a rank without an index")?;
    Ok(read::map(&[
        (
            "training.kubeflow.org/operator-name",
            "pytorchjob-controller",
        ),
        ("training.kubeflow.org/job-name", "pt"),
        ("training.kubeflow.org/replica-type", role),
        ("training.kubeflow.org/replica-index", index),
    ]))
}

fn golden_owners(job: &Value) -> Value {
    json!([{
        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "pt",
        "uid": job["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true,
    }])
}

fn golden_pod(pod: &Value, job: &Value, rank: &str, number: u32) -> Result<()> {
    let (metadata, spec) = (&pod["metadata"], &pod["spec"]);
    let mut labels = golden_labels(rank)?;
    if rank == "master-0" {
        labels["training.kubeflow.org/job-role"] = json!("master");
    }
    assert_eq!(metadata["labels"], labels, "{rank}");
    assert_eq!(
        metadata["annotations"],
        json!({ "trainyard.dev/attempt": "0.0" }),
        "{rank}"
    );
    assert_eq!(metadata["ownerReferences"], golden_owners(job), "{rank}");
    assert_eq!(metadata["finalizers"], Value::Null, "{rank}");
    assert_eq!(spec["restartPolicy"], "OnFailure", "{rank}");
    assert_eq!(spec["schedulerName"], "default-scheduler", "{rank}");

    let containers = spec["containers"].as_array().context("no containers")?;
    assert_eq!(containers.len(), 1, "{rank}");
    let container = &containers[0];
    let number = number.to_string();
    let env: Vec<Value> = [
        ("PYTHONUNBUFFERED", "1"),
        ("MASTER_PORT", "23456"),
        ("PET_MASTER_PORT", "23456"),
        ("MASTER_ADDR", "pt-master-0"),
        ("PET_MASTER_ADDR", "pt-master-0"),
        ("WORLD_SIZE", "3"),
        ("RANK", &number),
        ("PET_NODE_RANK", &number),
        ("PET_NPROC_PER_NODE", "auto"),
        ("PET_NNODES", "3"),
    ]
    .map(|(name, value)| json!({ "name": name, "value": value }))
    .to_vec();
    assert_eq!(container["env"], json!(env), "{rank}");
    assert_eq!(container["name"], "pytorch", "{rank}");
    assert_eq!(container["image"], "trainyard.test/train:1", "{rank}");
    assert_eq!(
        container["ports"],
        json!([{ "name": "pytorchjob-port", "containerPort": 23456, "protocol": "TCP" }]),
        "{rank}"
    );
    assert_eq!(
        container["terminationMessagePolicy"], "FallbackToLogsOnError",
        "{rank}"
    );

    if rank == "master-0" {
        assert_eq!(spec["initContainers"], Value::Null, "{rank}");
        return Ok(());
    }
    let init = spec["initContainers"]
        .as_array()
        .context("no init containers")?;
    assert_eq!(init.len(), 1, "{rank}");
    let init = &init[0];
    assert_eq!(init["name"], "init-pytorch", "{rank}");
    assert_eq!(init["image"], "alpine:3.10", "{rank}");
    assert_eq!(init["imagePullPolicy"], "IfNotPresent", "{rank}");
    assert_eq!(
        init["resources"],
        json!({
            "limits": { "cpu": "100m", "memory": "20Mi" },
            "requests": { "cpu": "50m", "memory": "10Mi" },
        }),
        "{rank}"
    );
    let command: Vec<&str> = init["command"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let all = command.join(" ");
    assert!(
        all.starts_with("sh -c") && all.contains("nslookup"),
        "{rank}: {all}"
    );
    assert!(
        all.contains("pt-master-0") && all.contains("waiting for master"),
        "{rank}: {all}"
    );
    assert_eq!(init["env"], Value::Null, "{rank}");
    let security = &init["securityContext"];
    assert_eq!(security["allowPrivilegeEscalation"], false, "{rank}");
    assert_eq!(security["runAsNonRoot"], true, "{rank}");
    assert_eq!(
        security["capabilities"],
        json!({ "drop": ["ALL"] }),
        "{rank}"
    );
    assert_eq!(
        security["seccompProfile"],
        json!({ "type": "RuntimeDefault" }),
        "{rank}"
    );
    Ok(())
}

fn golden_service(service: &Value, job: &Value, rank: &str) -> Result<()> {
    let (metadata, spec) = (&service["metadata"], &service["spec"]);
    let labels = golden_labels(rank)?;
    assert_eq!(metadata["labels"], labels, "{rank}");
    assert_eq!(metadata["ownerReferences"], golden_owners(job), "{rank}");
    assert_eq!(metadata["finalizers"], Value::Null, "{rank}");
    assert_eq!(spec["selector"], labels, "{rank}");
    assert_eq!(
        (&spec["type"], &spec["clusterIP"]),
        (&json!("ClusterIP"), &json!("None")),
        "{rank}"
    );
    assert_eq!(spec["publishNotReadyAddresses"], true, "{rank}");
    assert_eq!(
        spec["ports"],
        json!([{
            "name": "pytorchjob-port", "port": 23456, "protocol": "TCP", "targetPort": 23456,
        }]),
        "{rank}"
    );
    Ok(())
}
