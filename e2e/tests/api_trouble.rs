//! What a user reads when something is wrong: the job reports every problem once, and clears it when it is fixed.
//!
//! The scripted kubelet writes what real schedulers and kubelets write. The API server's refusals are real, and so is the node
//! controller's treatment of pods on a lost node.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::{World, read};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ServiceAccount};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use training_testkit::builders::{Job, pytorch_job};
use training_testkit::control_plane::{ADMIN, ControlPlane, DRIVER, Options, PYTORCH_OPERATOR};
use training_testkit::job::{self, conditions, is_true};
use training_testkit::kubelet::{Kubelet, State, lockstep};
use training_testkit::operator::OperatorProcess;
use training_testkit::wait::{HANG, Seen, eventually, holds_for};

#[path = "api_trouble/kinds.rs"]
mod kinds;
#[path = "api_trouble/launcher.rs"]
mod launcher;
#[path = "api_trouble/running.rs"]
mod running;

/// Long enough to see that something does not happen.
const STAYS: Duration = Duration::from_secs(2);
/// A worker's template.
const TEMPLATE: &str = "/spec/pytorchReplicaSpecs/Worker/template/spec";

fn waiting(reason: &str, message: &str) -> State {
    State::Waiting {
        reason: reason.to_owned(),
        message: message.to_owned(),
    }
}

async fn until_stalled(world: &World, reason: &str) -> Result<String> {
    let job = world
        .jobs
        .until("pt", &format!("stalled by {reason}"), |job| {
            is_true(job, "Stalled")
                && job::condition(job, "Stalled").is_ok_and(|c| c.reason == reason)
        })
        .await?;
    let first = conditions(&job).into_iter().next();
    ensure!(
        first.as_ref().is_some_and(|c| c.kind == "Stalled"),
        "not the first: {first:?}"
    );
    Ok(job::condition(&job, "Stalled")?.message)
}

async fn until_it_goes_on(world: &World) -> Result<Value> {
    let gone_on = |job: &Value| job::condition(job, "Stalled").is_ok_and(|c| c.status == "False");
    world.jobs.until("pt", "going on", gone_on).await
}

/// The number of events of a reason for the job, including repeats.
async fn told(world: &World, reason: &str) -> Result<usize> {
    let events = read::events(&world.client, world.namespace(), "pt").await?;
    Ok(events.iter().filter(|event| event.1 == reason).count())
}

/// Nothing writes to the job for a while.
async fn stays_untouched(world: &World) -> Result<()> {
    let before = world.jobs.get("pt").await?["metadata"]["resourceVersion"].clone();
    holds_for(STAYS, async || {
        let job = world.jobs.get("pt").await?;
        ensure!(
            job["metadata"]["resourceVersion"] == before,
            "{}",
            job["status"]
        );
        Ok(())
    })
    .await
}

async fn ends_well(world: &World) -> Result<Value> {
    world.kubelet.all_running(world.namespace(), "pt").await?;
    world.jobs.until_true("pt", "Running").await?;
    world.actor("pt").all_end_well().await?;
    let job = world.jobs.until_true("pt", "Succeeded").await?;
    ensure!(!is_true(&job, "Stalled"), "{}", job["status"]);
    Ok(job)
}

#[tokio::test]
async fn pods_that_no_node_takes_are_said_after_a_while_and_not_at_once() -> Result<()> {
    let Some(mut world) = World::start("unplaced", lockstep()).await? else {
        return Ok(());
    };
    let driver = world.control.client(DRIVER).await?;
    world.kubelet = Kubelet::start_unbound(&driver, &[world.namespace()], lockstep());
    let operator = world.operator().await?;
    let namespace = world.namespace();
    // The API server itself sets the condition of gated pods.
    let gated = pytorch_job("pt").master().workers(2).set(
        &format!("{TEMPLATE}/schedulingGates"),
        json!([{ "name": "example.com/wait" }]),
    );
    world.jobs.create(&gated.build()).await?;
    world.kubelet.until_pods(namespace, "pt", 3).await?;
    until_stalled(&world, "SchedulingGated").await?;
    // On a slow machine the first pod may be due a second earlier.
    let both = "2 pods (pt-worker-0, pt-worker-1): held back by scheduling gates";
    let told =
        |job: &Value| job::condition(job, "Stalled").is_ok_and(|c| c.message.starts_with(both));
    world.jobs.until("pt", "naming both", told).await?;
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), namespace);
    for pod in ["pt-worker-0", "pt-worker-1"] {
        let open = json!({ "spec": { "schedulingGates": [] } });
        pods.patch(pod, &PatchParams::default(), &Patch::Merge(&open))
            .await?;
    }
    // The API server's condition stays until the scheduler writes, as with a real one.
    let unschedulable = State::Unschedulable {
        message: "0/1 nodes are available: 1 Insufficient cpu.".to_owned(),
    };
    for pod in ["pt-worker-0", "pt-worker-1"] {
        world.kubelet.set(namespace, pod, &unschedulable).await?;
    }
    let message = until_stalled(&world, "Unschedulable").await?;
    assert!(
        message.contains("1 Insufficient cpu. Add the missing resources"),
        "{message}"
    );
    ends_well(&world).await?;

    // Every pod is without a node for a moment.
    world.jobs.delete("pt").await?;
    read::until_children(&world.client, namespace, "pt", &[], &[]).await?;
    world
        .jobs
        .create(&pytorch_job("pt").master().workers(2).build())
        .await?;
    world.kubelet.until_pods(namespace, "pt", 3).await?;
    for pod in ["pt-master-0", "pt-worker-0", "pt-worker-1"] {
        world.kubelet.set(namespace, pod, &unschedulable).await?;
    }
    let job = ends_well(&world).await?;
    assert!(
        job::condition(&job, "Stalled").is_err(),
        "{}",
        job["status"]
    );
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn a_crash_loop_and_a_failed_init_container_are_told_with_code_and_last_words() -> Result<()>
{
    let Some(world) = World::start("crashes", lockstep()).await? else {
        return Ok(());
    };
    let operator = world.operator().await?;
    let namespace = world.namespace();
    // Under ExitCode a failed init container ends its pod; under OnFailure the kubelet would retry it.
    let job = pytorch_job("pt")
        .master()
        .workers(2)
        .restart_policy("Worker", "ExitCode")
        .set(
            &format!("{TEMPLATE}/initContainers"),
            json!([{ "name": "prepare", "image": "i" }]),
        );
    world.jobs.create(&job.build()).await?;
    world.kubelet.until_pods(namespace, "pt", 3).await?;
    for pod in ["pt-master-0", "pt-worker-0"] {
        world.kubelet.set(namespace, pod, &State::Running).await?;
    }
    world.jobs.until_true("pt", "Running").await?;
    world
        .kubelet
        .restart_in_place(namespace, "pt-master-0", 1)
        .await?;
    let job = world
        .jobs
        .until("pt", "restarted once", |job| job["status"]["restarts"] == 1)
        .await?;
    assert!(
        job::condition(&job, "Stalled").is_err(),
        "{}",
        job["status"]
    );
    assert_eq!(job["status"]["lastFailure"]["pod"], "pt-master-0");

    let noise = "epoch 3\u{1b}[31m\u{0}".repeat(2_000);
    let crash = State::CrashLoop {
        exit_code: 137,
        reason: "OOMKilled".to_owned(),
        message: format!("{noise}out of memory\n")
            .chars()
            .take(4_000)
            .chain("the end".chars())
            .collect(),
    };
    world.kubelet.set(namespace, "pt-master-0", &crash).await?;
    let message = until_stalled(&world, "CrashLoopBackOff").await?;
    for words in [
        "Pod pt-master-0",
        "exit code 137",
        "used more memory than its limit",
        "on node scripted-",
    ] {
        assert!(message.contains(words), "{words}: {message}");
    }
    assert!(
        message.len() <= 1024 && !message.contains(char::is_control),
        "{message}"
    );
    // A restart alone doesn't clear the condition.
    world
        .kubelet
        .restart_in_place(namespace, "pt-master-0", 2)
        .await?;
    world
        .jobs
        .until("pt", "restarted twice", |job| {
            job["status"]["restarts"] == 2
        })
        .await?;
    assert!(is_true(&world.jobs.get("pt").await?, "Stalled"));

    let init = State::InitFailed {
        exit_code: 3,
        message: "no data set at /data".to_owned(),
    };
    world.kubelet.set(namespace, "pt-worker-1", &init).await?;
    let job = world
        .jobs
        .until("pt", "with a failed worker 1", |job| {
            job["status"]["lastFailure"]["pod"] == "pt-worker-1"
        })
        .await?;
    let failure = &job["status"]["lastFailure"];
    assert_eq!(failure["exitCode"], 3, "{failure}");
    let text = failure["message"].as_str().unwrap_or_default();
    assert!(
        text.starts_with("exit code 3 (init container prepare on node scripted-")
            && text.ends_with("last words: no data set at /data"),
        "{text}"
    );
    let events = read::events_with(&world.client, namespace, "pt", "PodFailed").await?;
    let told = events.iter().find(|event| event.1 == "PodFailed");
    assert!(
        told.is_some_and(|e| e.0 == "Warning" && e.2 == format!("Pod pt-worker-1: {text}")),
        "{events:?}"
    );
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn b097_b121_what_the_cluster_does_not_have_is_said_and_the_job_goes_on_once_it_does()
-> Result<()> {
    let Some(world) = World::start("missing", lockstep()).await? else {
        return Ok(());
    };
    if !world.control.can().controllers {
        e2e::skip("nobody admits pods here");
        return Ok(());
    }
    let operator = world.operator().await?;
    let class = format!("{}-class", world.namespace());
    let job = pytorch_job("pt")
        .workers(2)
        .set(&format!("{TEMPLATE}/priorityClassName"), class.as_str())
        .set(&format!("{TEMPLATE}/serviceAccountName"), "trainer");
    world.jobs.create(&job.build()).await?;
    let message = until_stalled(&world, "AdmissionDenied").await?;
    assert!(
        message.contains(&class) || message.contains("\"trainer\" not found"),
        "{message}"
    );
    let accounts: Api<ServiceAccount> = Api::namespaced(world.client.clone(), world.namespace());
    let account = serde_json::from_value(json!({ "metadata": { "name": "trainer" } }))?;
    accounts.create(&PostParams::default(), &account).await?;
    let classes: Api<PriorityClass> = Api::all(world.client.clone());
    let object = serde_json::from_value(json!({ "metadata": { "name": class }, "value": 7 }))?;
    classes.create(&PostParams::default(), &object).await?;
    world.kubelet.until_pods(world.namespace(), "pt", 2).await?;
    until_it_goes_on(&world).await?;
    ends_well(&world).await?;
    classes
        .delete(&class, &kube::api::DeleteParams::default())
        .await?;
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn f24_a_pod_that_can_never_be_made_ends_the_job_with_the_servers_words() -> Result<()> {
    let Some(world) = World::start("rejected", lockstep()).await? else {
        return Ok(());
    };
    let operator = world.operator().await?;
    let mount = json!([{ "name": "nowhere", "mountPath": "/data" }]);
    let job = pytorch_job("pt")
        .workers(2)
        .set(&format!("{TEMPLATE}/containers/0/volumeMounts"), mount);
    world.jobs.create(&job.build()).await?;
    let job = world.jobs.until_true("pt", "Failed").await?;
    let failed = job::condition(&job, "Failed")?;
    assert_eq!(failed.reason, "InvalidSpec");
    assert!(
        failed.message.contains("volumeMounts[0].name"),
        "{}",
        failed.message
    );
    assert!(job["status"]["completionTime"].is_string());
    stays_untouched(&world).await?;
    world.assert_clean(&operator).await
}

/// A control plane whose node controller considers a node lost after some seconds of silence, with two nodes: it would blame itself for
/// the loss of all nodes. It ends with the process.
async fn impatient() -> Result<&'static ControlPlane> {
    let options = Options {
        controller_manager: true,
        controller_manager_flags: [
            "--node-monitor-grace-period=12s",
            "--node-monitor-period=1s",
        ]
        .map(str::to_owned)
        .to_vec(),
        ..Options::default()
    };
    let control: &'static ControlPlane = Box::leak(Box::new(ControlPlane::start(options).await?));
    control.install("pytorch-operator").await?;
    Ok(control)
}

/// A job whose pods tolerate a lost node only briefly.
fn restless() -> Job {
    let leave = |taint: &str| json!({ "key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 2 });
    let tolerations = json!([
        leave("node.kubernetes.io/not-ready"),
        leave("node.kubernetes.io/unreachable")
    ]);
    pytorch_job("pt")
        .workers(2)
        .set(&format!("{TEMPLATE}/tolerations"), tolerations)
        .set(&format!("{TEMPLATE}/terminationGracePeriodSeconds"), 1)
}

/// Creates the job `pt`, and waits until its pods run.
async fn runs(world: &World, job: Job, pods: usize) -> Result<()> {
    world.jobs.create(&job.build()).await?;
    let (kubelet, namespace) = (&world.kubelet, world.namespace());
    kubelet.until_pods(namespace, "pt", pods).await?;
    kubelet.all_running(namespace, "pt").await?;
    let all = format!("{pods}/{pods}");
    let all_ready = |job: &Value| job["status"]["ready"] == *all && is_true(job, "Running");
    world.jobs.until("pt", "all ready", all_ready).await?;
    Ok(())
}

/// Waits until the node controller has removed a node's taints.
async fn until_untainted(world: &World, node: &str) -> Result<()> {
    let nodes: Api<Node> = Api::all(world.client.clone());
    eventually(&format!("{node} without taints"), HANG, async || {
        let taints = nodes.get(node).await?.spec.and_then(|s| s.taints);
        Ok(match taints {
            Some(taints) if !taints.is_empty() => Seen::NotYet(format!("{taints:?}")),
            _ => Seen::Yes(()),
        })
    })
    .await
}

#[tokio::test]
async fn f60_a_lost_node_is_told_and_waited_for_or_given_up_where_the_operator_is_set_to()
-> Result<()> {
    let control = impatient().await?;
    let Some(world) = World::on(control, "lost", lockstep()).await? else {
        return Ok(());
    };
    let driver = control.client(DRIVER).await?;
    let spare = Kubelet::start_on(driver, &[], lockstep(), "spare").await?;
    let node = world.kubelet.node().context("no node")?;
    let operator = world.operator().await?;
    runs(&world, restless(), 2).await?;
    let old = read::pods(&world.client, world.namespace(), "pt").await?;
    world.kubelet.stop_heartbeats();
    let message = until_stalled(&world, "NodeLost").await?;
    assert!(
        message.starts_with(&format!(
            "2 pods (pt-worker-0, pt-worker-1): node {node} hasn't reported since "
        )) || message.starts_with(&format!(
            "Pod pt-worker-0: node {node} hasn't reported since "
        )) || message.starts_with(&format!(
            "Pod pt-worker-1: node {node} hasn't reported since "
        )),
        "{message}"
    );
    assert!(message.contains("out-of-service"), "{message}");
    // The taint manager deletes the pods. Their kubelet is silent, so they stay, and nothing replaces them.
    eventually("the cluster to delete the pods", HANG, async || {
        let pods = read::pods(&world.client, world.namespace(), "pt").await?;
        let all = pods
            .iter()
            .all(|p| p["metadata"]["deletionTimestamp"].is_string());
        Ok(if all {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{pods:?}"))
        })
    })
    .await?;
    holds_for(STAYS, async || {
        let pods = read::pods(&world.client, world.namespace(), "pt").await?;
        let uids = |pods: &[Value]| {
            pods.iter()
                .map(|p| p["metadata"]["uid"].clone())
                .collect::<Vec<_>>()
        };
        ensure!(uids(&pods) == uids(&old), "{:?}", read::names(&pods));
        Ok(())
    })
    .await?;
    // The node is back and finishes the deletions, and the job goes on.
    world.kubelet.start_heartbeats().await?;
    until_untainted(&world, &node).await?;
    world.kubelet.finish_deletes(true);
    until_it_goes_on(&world).await?;
    world.kubelet.until_pods(world.namespace(), "pt", 2).await?;
    let job = ends_well(&world).await?;
    assert_eq!(
        job["status"]["countedFailures"],
        Value::Null,
        "{}",
        job["status"]
    );
    operator.assert_no_panic()?;
    drop(operator);

    // Now with an operator that force-deletes lost pods.
    world.jobs.delete("pt").await?;
    read::until_children(&world.client, world.namespace(), "pt", &[], &[]).await?;
    let kubeconfig = control.kubeconfig(PYTORCH_OPERATOR).await?;
    let options = world
        .options(&kubeconfig)
        // Long after the tolerated 2 s: the cluster deletes pods by name, and a deletion that is due now can hit a replacement.
        .flag("force-delete-lost-after", "10s")
        // Otherwise lost pods that are given up within a minute would share a summary event.
        .flag("events", "full");
    let operator = OperatorProcess::start(options).await?;
    runs(&world, restless(), 2).await?;
    world.kubelet.stop_heartbeats();
    world.kubelet.bind_to("spare");
    let events =
        read::events_with(&world.client, world.namespace(), "pt", "LostPodDeleted").await?;
    let warned = events
        .iter()
        .find(|e| e.1 == "LostPodDeleted")
        .context("no event")?;
    assert!(
        warned.0 == "Warning" && warned.2.contains(&node),
        "{warned:?}"
    );
    eventually("the pods to be replaced elsewhere", HANG, async || {
        let pods = read::pods(&world.client, world.namespace(), "pt").await?;
        let moved = pods.len() == 2 && pods.iter().all(|p| p["spec"]["nodeName"] == "spare");
        Ok(if moved {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{pods:?}"))
        })
    })
    .await?;
    let job = ends_well(&world).await?;
    assert_eq!(
        conditions(&job).last().map(|c| c.kind.as_str()),
        Some("Succeeded")
    );
    drop(spare);
    world.assert_clean(&operator).await
}

/// The kubelet's own eviction, with its message.
#[tokio::test]
async fn f60_an_eviction_is_told_with_its_reason_and_node() -> Result<()> {
    let Some(world) = World::start("evicted", lockstep()).await? else {
        return Ok(());
    };
    let operator = world.operator().await?;
    let client = world.control.client(ADMIN).await?;
    world
        .jobs
        .create(&pytorch_job("pt").workers(2).build())
        .await?;
    let first = world.kubelet.until_pods(world.namespace(), "pt", 2).await?;
    world.kubelet.all_running(world.namespace(), "pt").await?;
    world
        .kubelet
        .set(world.namespace(), "pt-worker-1", &State::Evicted)
        .await?;
    let job = world
        .jobs
        .until("pt", "with an evicted pod", |job| {
            job["status"]["lastFailure"].is_object()
        })
        .await?;
    let failure = &job["status"]["lastFailure"];
    assert_eq!(failure["reason"], "Evicted");
    let text = failure["message"].as_str().unwrap_or_default();
    for words in [
        "resources.requests",
        "(node scripted-",
        "low on resource: memory",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    read::events_with(&client, world.namespace(), "pt", "PodFailed").await?;
    eventually("a new pt-worker-1", HANG, async || {
        let pods = world.kubelet.until_pods(world.namespace(), "pt", 2).await?;
        let name = "pt-worker-1";
        let is_new = |pod: &training_testkit::kubelet::SeenPod| {
            first.iter().all(|former| former.uid != pod.uid)
        };
        Ok(if pods.iter().any(|pod| pod.name == name && is_new(pod)) {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{pods:?}"))
        })
    })
    .await?;
    ends_well(&world).await?;
    world.assert_clean(&operator).await
}
