//! A running job survives what isn't its fault.

use e2e::refusal::{Refusal, until_refused};
use training_testkit::builders::TENSORFLOW;

use super::*;

/// A policy that refuses the operator's pods, with the default code of such policies.
async fn refuse_pods(world: &World) -> Result<Refusal> {
    let operator = format!("request.userInfo.username != '{PYTORCH_OPERATOR}'");
    let validation =
        json!({ "expression": operator, "message": "no pods today", "reason": "Invalid" });
    Refusal::of(world, ("", "pods"), validation).await
}

#[tokio::test]
async fn f_24_a_policy_that_refuses_with_the_code_of_a_validation_ends_no_job() -> Result<()> {
    let Some(world) = World::start("policy", lockstep()).await? else {
        return Ok(());
    };
    let policy = refuse_pods(&world).await?;
    let client = world.control.client(PYTORCH_OPERATOR).await?;
    let pod = json!({ "metadata": { "name": "x" }, "spec": { "containers": [{ "name": "a", "image": "b" }] } });
    let pods: Api<Pod> = Api::namespaced(client, world.namespace());
    let refusal = until_refused(&pods, &serde_json::from_value(pod)?).await?;
    // The code of a validation.
    assert_eq!(refusal.code, 422, "{refusal:?}");
    let operator = world.operator().await?;
    world
        .jobs
        .create(&pytorch_job("pt").master().workers(1).build())
        .await?;
    let message = until_stalled(&world, "AdmissionDenied").await?;
    assert!(message.contains("no pods today"), "{message}");
    policy.remove().await?;
    world.kubelet.until_pods(world.namespace(), "pt", 2).await?;
    world.kubelet.all_running(world.namespace(), "pt").await?;
    until_it_goes_on(&world).await?;
    ends_well(&world).await?;
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn a_limit_that_is_lowered_ends_no_job_that_runs() -> Result<()> {
    let Some(world) = World::start("lowered", lockstep()).await? else {
        return Ok(());
    };
    let mut operator = world.operator().await?;
    runs(&world, pytorch_job("pt").master().workers(3), 4).await?;
    operator.terminate(HANG).await?;
    let kubeconfig = world.control.kubeconfig(PYTORCH_OPERATOR).await?;
    let options = world.options(&kubeconfig).flag("max-replicas-per-job", "2");
    let operator = OperatorProcess::start(options).await?;
    stays_untouched(&world).await?;
    ends_well(&world).await?;
    // A job that starts now is refused.
    world
        .jobs
        .create(&pytorch_job("late").master().workers(3).build())
        .await?;
    let late = world.jobs.until_true("late", "Failed").await?;
    let failed = job::condition(&late, "Failed")?;
    assert!(
        failed.message.contains("use at most 2"),
        "{}",
        failed.message
    );
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn an_edit_that_cant_run_stalls_a_job_that_runs_until_it_is_mended() -> Result<()> {
    let Some(world) = World::start("edited", lockstep()).await? else {
        return Ok(());
    };
    let operator = world.operator().await?;
    runs(&world, pytorch_job("pt").master().workers(1), 2).await?;
    // Above the operator's limit; the schema has none.
    let workers =
        |n: i32| json!({ "spec": { "pytorchReplicaSpecs": { "Worker": { "replicas": n } } } });
    world.jobs.merge("pt", &workers(30_000)).await?;
    let message = until_stalled(&world, "InvalidSpec").await?;
    assert!(
        message.starts_with("spec.pytorchReplicaSpecs[Worker].replicas: "),
        "{message}"
    );
    assert_eq!(
        read::pods(&world.client, world.namespace(), "pt")
            .await?
            .len(),
        2
    );
    world.jobs.merge("pt", &workers(1)).await?;
    until_it_goes_on(&world).await?;
    ends_well(&world).await?;
    world.assert_clean(&operator).await
}

/// All pods of a TFJob have a variable that names all hosts; Linux starts no process with a longer one.
#[tokio::test]
async fn a_tf_job_scaled_beyond_the_longest_variable_stalls_and_goes_on() -> Result<()> {
    let Some(world) = World::of(TENSORFLOW, "scaled", lockstep()).await? else {
        return Ok(());
    };
    let operator = world.operator().await?;
    runs(&world, TENSORFLOW.small_job("pt", 1), 2).await?;
    let workers = |n: i32| json!({ "spec": { "tfReplicaSpecs": { "Worker": { "replicas": n } } } });
    world.jobs.merge("pt", &workers(5_000)).await?;
    let message = until_stalled(&world, "InvalidSpec").await?;
    assert!(
        message.contains("ClusterSpecTooLarge: TF_CONFIG"),
        "{message}"
    );
    stays_untouched(&world).await?;
    let pods = read::pods(&world.client, world.namespace(), "pt").await?;
    assert_eq!(pods.len(), 2, "{:?}", read::names(&pods));
    world.jobs.merge("pt", &workers(1)).await?;
    until_it_goes_on(&world).await?;
    ends_well(&world).await?;
    world.assert_clean(&operator).await
}

/// A kubelet ends a pod of a worker that must never be restarted, and reports this reason and message.
async fn ended_by_its_kubelet(prefix: &str, reason: &str, message: &str) -> Result<()> {
    let Some(world) = World::start(prefix, lockstep()).await? else {
        return Ok(());
    };
    let operator = world.operator().await?;
    let job = pytorch_job("pt")
        .master()
        .workers(1)
        .restart_policy("Worker", "Never");
    runs(&world, job.run_policy("backoffLimit", 0), 2).await?;
    let target =
        json!({ "type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet" });
    let status = json!({
        "phase": "Failed", "reason": reason, "message": message,
        "conditions": [target],
        "containerStatuses": [{
            "name": "pytorch", "image": "a", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "terminated": { "exitCode": 143 } },
        }],
    });
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), world.namespace());
    let old = pods.get("pt-worker-0").await?.metadata.uid;
    e2e::set_pod_status(&pods, "pt-worker-0", status).await?;
    eventually("another pod", HANG, async || {
        let pods = world.kubelet.pods(world.namespace(), "pt");
        let mut workers = pods.iter().filter(|pod| pod.name == "pt-worker-0");
        let another = workers.any(|pod| pod.bound && old.as_ref() != Some(&pod.uid));
        Ok(if another {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{pods:?}"))
        })
    })
    .await?;
    world.kubelet.all_running(world.namespace(), "pt").await?;
    let job = world.jobs.until_true("pt", "Running").await?;
    assert_eq!(job["status"]["countedFailures"], Value::Null);
    ends_well(&world).await?;
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn f_60_a_pod_that_the_shutdown_of_its_node_ended_is_replaced_under_never() -> Result<()> {
    let message = "Pod was terminated in response to imminent node shutdown.";
    ended_by_its_kubelet("shutdown", "Terminated", message).await
}

#[tokio::test]
async fn f_60_a_pod_that_a_critical_pod_preempted_on_its_node_is_replaced_under_never() -> Result<()>
{
    let message = "Preempted in order to admit critical pod";
    ended_by_its_kubelet("critical", "Preempting", message).await
}
