//! The life of a `PyTorchJob` against a real API server with a scripted kubelet.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use e2e::look::{self, by_rank};
use e2e::{World, loose};
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use training_testkit::builders::pytorch_job;
use training_testkit::control_plane::{ADMIN, ControlPlane, Options};
use training_testkit::job::{self, Condition, conditions, counters, is_true};
use training_testkit::kubelet::{State, lockstep};
use training_testkit::manifest;
use training_testkit::wait::{HANG, Seen, eventually, holds_for};

const RANKS: [&str; 3] = ["master-0", "worker-0", "worker-1"];

/// Long enough to see that something does not happen.
const STAYS: Duration = Duration::from_secs(2);

fn created() -> Condition {
    Condition::new(
        "Created",
        "True",
        "PyTorchJobCreated",
        "PyTorchJob pt is created.",
    )
}

fn running(status: &str) -> Condition {
    Condition::new(
        "Running",
        status,
        "PyTorchJobRunning",
        "PyTorchJob pt is running.",
    )
}

fn count(job: &Value, role: &str, counter: &str) -> i64 {
    counters(job, role)
        .get(counter)
        .copied()
        .unwrap_or_default()
}

#[tokio::test]
async fn a_job_is_created_runs_and_succeeds() -> Result<()> {
    let Some(world) = World::start("life", lockstep()).await? else {
        return Ok(());
    };
    let operator = world.operator().await?;
    let begin = Instant::now();
    world
        .jobs
        .create(&pytorch_job("pt").master().workers(2).build())
        .await?;

    let job = world.jobs.until_true("pt", "Created").await?;
    assert_eq!(conditions(&job), [created()]);
    let job = world
        .jobs
        .until("pt", "started", |job| {
            job["status"]["startTime"].is_string()
        })
        .await?;
    for (role, label) in [("Master", "master"), ("Worker", "worker")] {
        assert!(counters(&job, role).is_empty(), "{}", job["status"]);
        assert_eq!(
            job["status"]["replicaStatuses"][role]["selector"],
            format!(
                "training.kubeflow.org/job-name=pt,\
                 training.kubeflow.org/operator-name=pytorchjob-controller,\
                 training.kubeflow.org/replica-type={label}"
            )
        );
    }

    world.kubelet.until_pods(world.namespace(), "pt", 3).await?;
    let pods_after = begin.elapsed();
    assert_eq!(world.kubelet.all_running(world.namespace(), "pt").await?, 3);
    let job = world
        .jobs
        .until("pt", "with all active", |job| {
            count(job, "Master", "active") == 1 && count(job, "Worker", "active") == 2
        })
        .await?;
    assert_eq!(conditions(&job), [created(), running("True")]);
    assert_eq!(job["status"]["completionTime"], Value::Null);

    assert_eq!(
        world.kubelet.all_succeeded(world.namespace(), "pt").await?,
        3
    );
    let job = world
        .jobs
        .until("pt", "with all succeeded", |job| {
            is_true(job, "Succeeded") && count(job, "Worker", "succeeded") == 2
        })
        .await?;
    let message = "PyTorchJob pt is successfully completed.";
    assert_eq!(
        conditions(&job),
        [
            created(),
            running("False"),
            Condition::new("Succeeded", "True", "PyTorchJobSucceeded", message),
        ]
    );
    assert!(job["status"]["completionTime"].is_string());
    assert_eq!(count(&job, "Master", "succeeded"), 1);
    assert_eq!(
        (
            count(&job, "Master", "active"),
            count(&job, "Worker", "active")
        ),
        (0, 0)
    );

    // What was made was made once, and with the default policy nothing goes.
    world.assert_clean(&operator).await?;
    let summary = world.auditor.summary();
    assert_eq!(summary.len(), 6, "{summary:?}");
    assert!(
        summary
            .values()
            .all(|churn| churn.creates == 1 && churn.deletes == 0),
        "{summary:?}"
    );
    let (rss, peak) = operator.memory()?;
    eprintln!(
        "1+2 job: three bound pods {pods_after:?} after the job's POST; the operator has {} KiB, at most {} KiB",
        rss / 1024,
        peak / 1024
    );
    Ok(())
}

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
    look::until_children(&world.client, world.namespace(), "pt", &names, &names).await?;
    let pods = look::pods(&world.client, world.namespace(), "pt").await?;
    let services = look::services(&world.client, world.namespace(), "pt").await?;
    for (rank, number) in RANKS.into_iter().zip(0..) {
        golden_pod(by_rank(&pods, "pt", rank)?, &job, rank, number)?;
        golden_service(by_rank(&services, "pt", rank)?, &job, rank)?;
    }
    world.assert_clean(&operator).await
}

fn golden_labels(rank: &str) -> Result<Value> {
    let (role, index) = rank.split_once('-').context("a rank without an index")?;
    Ok(look::map(&[
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

/// Creates a 1+2 job and lets all of it run.
async fn run(world: &World, job: training_testkit::builders::Job) -> Result<()> {
    world.jobs.create(&job.build()).await?;
    world.kubelet.until_pods(world.namespace(), "pt", 3).await?;
    world.kubelet.all_running(world.namespace(), "pt").await?;
    world.jobs.until_true("pt", "Running").await?;
    Ok(())
}

/// Waits for the pod that replaces one, and gives it.
async fn replacement(world: &World, rank: &str, old: &str) -> Result<Value> {
    eventually(&format!("a new pod {rank}"), HANG, async || {
        let pods = look::pods(&world.client, world.namespace(), "pt").await?;
        let new = by_rank(&pods, "pt", rank)
            .ok()
            .filter(|pod| pod["metadata"]["uid"] != old);
        Ok(
            new.map_or(Seen::NotYet(format!("{:?}", look::names(&pods))), |pod| {
                Seen::Yes(pod.clone())
            }),
        )
    })
    .await
}

async fn uid(world: &World, rank: &str) -> Result<String> {
    let pods = look::pods(&world.client, world.namespace(), "pt").await?;
    let uid = by_rank(&pods, "pt", rank)?["metadata"]["uid"].as_str();
    Ok(uid.context("a pod without a uid")?.to_owned())
}

async fn succeeds_after_all(world: &World) -> Result<Value> {
    world.kubelet.until_pods(world.namespace(), "pt", 3).await?;
    world.kubelet.all_running(world.namespace(), "pt").await?;
    world
        .jobs
        .until("pt", "running", |j| count(j, "Worker", "active") == 2)
        .await?;
    world.kubelet.all_succeeded(world.namespace(), "pt").await?;
    let job = world.jobs.until_true("pt", "Succeeded").await?;
    assert!(
        !is_true(&job, "Restarting") && !is_true(&job, "Failed"),
        "{}",
        job["status"]
    );
    Ok(job)
}

#[tokio::test]
async fn an_evicted_worker_is_replaced_under_on_failure() -> Result<()> {
    let Some(world) = World::start("evicted", lockstep()).await? else {
        return Ok(());
    };
    let operator = world.operator().await?;
    run(&world, pytorch_job("pt").master().workers(2)).await?;
    let old = uid(&world, "worker-1").await?;
    world
        .kubelet
        .set(world.namespace(), "pt-worker-1", &State::Evicted)
        .await?;
    let new = replacement(&world, "worker-1", &old).await?;
    assert_eq!(
        new["metadata"]["annotations"]["trainyard.dev/attempt"],
        "0.1"
    );
    succeeds_after_all(&world).await?;
    let churn = world.auditor.summary()["Pod/pt-worker-1"];
    assert_eq!((churn.creates, churn.deletes), (2, 1));
    let events = look::events_with(
        &world.client,
        world.namespace(),
        "pt",
        "PyTorchJobSucceeded",
    )
    .await?;
    let restarting = events
        .iter()
        .find(|event| event.1 == "PyTorchJobRestarting");
    assert_eq!(
        restarting.map(|event| (event.0.as_str(), event.2.as_str())),
        Some((
            "Warning",
            "job pt is restarting because Worker replica(s) failed."
        )),
        "{events:?}"
    );
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn a_failed_worker_under_never_fails_the_job() -> Result<()> {
    let Some(world) = World::start("never", lockstep()).await? else {
        return Ok(());
    };
    let operator = world.operator().await?;
    run(
        &world,
        pytorch_job("pt")
            .master()
            .workers(2)
            .restart_policy("Worker", "Never"),
    )
    .await?;
    world
        .kubelet
        .fail(world.namespace(), "pt-worker-1", 1)
        .await?;
    let job = world.jobs.until_true("pt", "Failed").await?;
    let message = "PyTorchJob pt is failed because 1 Worker replica(s) failed.";
    assert_eq!(
        conditions(&job),
        [
            created(),
            running("False"),
            Condition::new("Failed", "True", "PyTorchJobFailed", message),
        ]
    );
    assert!(job["status"]["completionTime"].is_string());
    assert_eq!(count(&job, "Worker", "failed"), 1);
    // With the default policy what runs goes on to run.
    holds_for(STAYS, async || {
        let pods = look::pods(&world.client, world.namespace(), "pt").await?;
        anyhow::ensure!(pods.len() == 3, "{:?}", look::names(&pods));
        Ok(())
    })
    .await?;
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn an_exit_code_decides_between_replacement_and_failure() -> Result<()> {
    let Some(world) = World::start("exitcode", lockstep()).await? else {
        return Ok(());
    };
    let operator = world.operator().await?;
    run(
        &world,
        pytorch_job("pt")
            .master()
            .workers(2)
            .restart_policy("Worker", "ExitCode"),
    )
    .await?;
    let pods = look::pods(&world.client, world.namespace(), "pt").await?;
    assert_eq!(
        by_rank(&pods, "pt", "worker-0")?["spec"]["restartPolicy"],
        "Never"
    );

    let old = uid(&world, "worker-0").await?;
    world
        .kubelet
        .fail(world.namespace(), "pt-worker-0", 137)
        .await?;
    let new = replacement(&world, "worker-0", &old).await?;
    assert_eq!(
        new["metadata"]["annotations"]["trainyard.dev/attempt"],
        "0.1"
    );
    world.kubelet.until_pods(world.namespace(), "pt", 3).await?;
    world.kubelet.all_running(world.namespace(), "pt").await?;
    world
        .jobs
        .until("pt", "running again", |j| count(j, "Worker", "active") == 2)
        .await?;

    world
        .kubelet
        .fail(world.namespace(), "pt-worker-0", 1)
        .await?;
    let job = world.jobs.until_true("pt", "Failed").await?;
    let message = r#"job "pt" is failing because "Worker" replica(s) failed."#;
    assert_eq!(
        conditions(&job).last(),
        Some(&Condition::new(
            "Failed",
            "True",
            "PyTorchJobFailed",
            message
        ))
    );
    assert!(job["status"]["completionTime"].is_string());
    // Events are written beside the status, one after another.
    let place = format!("Pod: {}.pt-worker-0 exited with code", world.namespace());
    eventually("an event for each exit code", HANG, async || {
        let events = look::events(&world.client, world.namespace(), "pt").await?;
        let told = |code: u8| {
            let text = format!("{place} {code}");
            events
                .iter()
                .any(|e| e.1 == "ExitedWithCode" && e.2 == text)
        };
        Ok(if told(137) && told(1) {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{events:?}"))
        })
    })
    .await?;
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn a_finished_job_is_cleaned_up_as_its_policy_says() -> Result<()> {
    let Some(world) = World::start("clean", lockstep()).await? else {
        return Ok(());
    };
    let operator = world.operator().await?;
    for (policy, left) in [
        ("None", &["pt-master-0", "pt-worker-0", "pt-worker-1"][..]),
        ("Running", &["pt-master-0"]),
        ("All", &[]),
    ] {
        let job = pytorch_job("pt")
            .master()
            .workers(2)
            .run_policy("cleanPodPolicy", policy);
        run(&world, job).await?;
        world
            .kubelet
            .set(world.namespace(), "pt-master-0", &State::Succeeded)
            .await?;
        let job = world.jobs.until_true("pt", "Succeeded").await?;
        assert_eq!(count(&job, "Master", "succeeded"), 1, "{policy}");
        look::until_children(&world.client, world.namespace(), "pt", left, left).await?;
        holds_for(STAYS, async || {
            let pods = look::names(&look::pods(&world.client, world.namespace(), "pt").await?);
            anyhow::ensure!(pods == left, "{policy}: {pods:?}");
            Ok(())
        })
        .await?;
        // Garbage collection, which the next round waits for, shows the owner references.
        world.jobs.delete("pt").await?;
        look::until_children(&world.client, world.namespace(), "pt", &[], &[]).await?;
    }
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn f17_a_foreign_pod_in_the_way_is_left_alone_and_waited_for() -> Result<()> {
    let Some(world) = World::start("conflict", lockstep()).await? else {
        return Ok(());
    };
    let operator = world.operator().await?;
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), world.namespace());
    let foreign = serde_json::from_value(json!({
        "metadata": { "name": "pt-worker-0", "labels": { "mine": "yes" } },
        "spec": { "containers": [{ "name": "c", "image": "i" }] },
    }))?;
    pods.create(&PostParams::default(), &foreign).await?;
    world
        .jobs
        .create(&pytorch_job("pt").master().workers(2).build())
        .await?;
    let job = world.jobs.until_true("pt", "Stalled").await?;
    assert_eq!(job::condition(&job, "Stalled")?.reason, "NameConflict");
    assert_eq!(
        conditions(&job).last().map(|c| c.kind.as_str()),
        Some("Created")
    );
    let before = pods.get("pt-worker-0").await?.metadata;
    holds_for(STAYS, async || {
        let now = pods.get("pt-worker-0").await?.metadata;
        anyhow::ensure!(now.uid == before.uid, "the foreign pod was replaced");
        anyhow::ensure!(
            now.deletion_timestamp.is_none(),
            "the foreign pod was deleted"
        );
        anyhow::ensure!(
            now.owner_references.is_none(),
            "the foreign pod was adopted"
        );
        anyhow::ensure!(now.labels == before.labels, "the foreign pod was changed");
        Ok(())
    })
    .await?;
    pods.delete("pt-worker-0", &DeleteParams::default().grace_period(0))
        .await?;
    world.kubelet.until_pods(world.namespace(), "pt", 3).await?;
    let job = succeeds_after_all(&world).await?;
    assert!(!is_true(&job, "Stalled"), "{}", job["status"]);
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn f20_an_exceeded_quota_is_told_and_waited_for() -> Result<()> {
    let Some(world) = World::start("quota", lockstep()).await? else {
        return Ok(());
    };
    if !world.control.can().controllers {
        eprintln!("quota: skipped, nobody counts here");
        return Ok(());
    }
    let operator = world.operator().await?;
    let quotas: Api<ResourceQuota> = Api::namespaced(world.client.clone(), world.namespace());
    let quota = serde_json::from_value(json!({
        "metadata": { "name": "two" }, "spec": { "hard": { "pods": "2" } },
    }))?;
    quotas.create(&PostParams::default(), &quota).await?;
    until_counted(&quotas, "2").await?;
    world
        .jobs
        .create(&pytorch_job("pt").master().workers(2).build())
        .await?;
    let job = world.jobs.until_true("pt", "Stalled").await?;
    let stalled = job::condition(&job, "Stalled")?;
    assert_eq!(stalled.reason, "QuotaExceeded");
    assert!(
        stalled.message.contains("exceeded quota: two"),
        "{}",
        stalled.message
    );
    let pods = look::pods(&world.client, world.namespace(), "pt").await?;
    assert_eq!(pods.len(), 2, "{:?}", look::names(&pods));
    let raise = json!({ "spec": { "hard": { "pods": "5" } } });
    quotas
        .patch("two", &PatchParams::default(), &Patch::Merge(&raise))
        .await?;
    let job = succeeds_after_all(&world).await?;
    assert!(!is_true(&job, "Stalled"), "{}", job["status"]);
    world.assert_clean(&operator).await
}

/// Waits until the quota is enforced: admission goes by its status.
async fn until_counted(quotas: &Api<ResourceQuota>, pods: &str) -> Result<()> {
    eventually("the quota to be counted", HANG, async || {
        let status = quotas.get("two").await?.status.unwrap_or_default();
        let hard = status.hard.unwrap_or_default();
        let counted = hard.get("pods").is_some_and(|quantity| quantity.0 == pods);
        Ok(if counted {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{hard:?}"))
        })
    })
    .await
}

#[tokio::test]
async fn b024_objects_that_cant_be_read_are_set_aside_and_others_served() -> Result<()> {
    // A control plane of its own, because its definition takes anything. It ends with the process.
    let options = Options {
        controller_manager: true,
        ..Options::default()
    };
    let control: &'static ControlPlane = Box::leak(Box::new(ControlPlane::start(options).await?));
    control.install("pytorch-operator").await?;
    manifest::apply(&control.client(ADMIN).await?, vec![loose::definition()]).await?;
    let Some(world) = World::on(control, "poison", lockstep()).await? else {
        return Ok(());
    };
    let poison = |name: &str| {
        pytorch_job(name)
            .set("/spec/pytorchReplicaSpecs", "text")
            .build()
    };
    // Once in the initial list, and once as an event.
    world.jobs.create(&poison("before")).await?;
    let operator = world.operator().await?;
    world.jobs.create(&poison("after")).await?;
    // It reads well and can't be meant.
    world
        .jobs
        .create(&pytorch_job("invalid").role("Master", 2).build())
        .await?;
    run(&world, pytorch_job("pt").master().workers(2)).await?;
    succeeds_after_all(&world).await?;
    let job = world.jobs.until_true("invalid", "Failed").await?;
    let failed = job::condition(&job, "Failed")?;
    assert_eq!(failed.reason, "InvalidSpec");
    assert!(
        failed.message.contains("spec.pytorchReplicaSpecs"),
        "{}",
        failed.message
    );
    for name in ["before", "after"] {
        eventually(&format!("a warning about {name}"), HANG, async || {
            let events = look::events(&world.client, world.namespace(), name).await?;
            let warned = events.iter().any(|event| event.0 == "Warning");
            Ok(if warned {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{events:?}"))
            })
        })
        .await?;
        assert!(
            look::pods(&world.client, world.namespace(), name)
                .await?
                .is_empty()
        );
    }
    world.assert_clean(&operator).await
}
