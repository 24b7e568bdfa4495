//! Pods that fail, are killed or are removed, and how the job reports it.

use anyhow::Result;
use e2e::pods::{
    Row, Site, UNTIL_GO, Weight, attempt, container, created, delete, failed, no_longer_running,
    pair, running, said, shell, succeeded,
};
use e2e::read;
use kube::api::EvictParams;
use serde_json::{Value, json};
use training_testkit::job::{Condition, condition, counters, is_true};

use super::out_of_reach;

/// The conditions of a job that succeeded.
fn well(name: &str) -> [Condition; 3] {
    [created(name), no_longer_running(name), succeeded(name)]
}

#[tokio::test]
async fn a_worker_killed_under_on_failure_is_started_again_in_its_pod() -> Result<()> {
    let site = Site::open("inplace", Weight::Light).await?;
    if out_of_reach(&site) {
        return Ok(());
    }
    let job = pair("pt", shell(UNTIL_GO), shell(UNTIL_GO));
    site.jobs.create(&job.build()).await?;
    site.until_running("pt", 2).await?;
    let before = site.pod("pt-worker-0").await?;
    site.cluster.kill(container(&before)?)?;
    site.until("pt", "restarted and ready", |job| {
        job["status"]["restarts"] == 1 && job["status"]["ready"] == "2/2"
    })
    .await?;
    let after = site.pod("pt-worker-0").await?;
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    let main = &after["status"]["containerStatuses"][0];
    assert_eq!(main["restartCount"], 1, "{main}");
    assert_eq!(main["lastState"]["terminated"]["exitCode"], 137, "{main}");
    // The pod never failed, so neither did the job; but the status shows the restart.
    let job = site
        .assert_reads(
            "pt",
            &[created("pt"), running("pt")],
            &Row::new("Running", "2/2", 1, "PyTorchJobRunning"),
        )
        .await?;
    let failure = &job["status"]["lastFailure"];
    assert_eq!(failure["pod"], "pt-worker-0", "{failure}");
    assert_eq!(failure["exitCode"], 137, "{failure}");
    let events = site.events("pt", "ContainerRestarted").await?;
    let told = said(&events, "Warning", "ContainerRestarted")?;
    assert!(told.contains("exit code 137"), "{told}");
    site.go().await?;
    site.until_true("pt", "Succeeded").await?;
    site.assert_reads(
        "pt",
        &well("pt"),
        &Row::new("Succeeded", "2/2", 1, "PyTorchJobSucceeded"),
    )
    .await?;
    assert_eq!(site.summary()["Pod/pt-worker-0"].creates, 1);
    site.finish("exit code 137, one restart by the kubelet, the same pod")
        .await
}

#[tokio::test]
async fn a_container_that_fails_once_is_started_again_in_its_pod() -> Result<()> {
    let site = Site::open("once", Weight::Light).await?;
    // As published, restarts are those of running pods: a pod that ends at once has none.
    let mut worker = shell("[ -e /once/done ] || { touch /once/done; exit 1; }; sleep 5");
    worker["volumes"] = json!([{ "name": "once", "emptyDir": {} }]);
    worker["containers"][0]["volumeMounts"] = json!([{ "name": "once", "mountPath": "/once" }]);
    site.jobs
        .create(&pair("pt", shell(UNTIL_GO), worker).build())
        .await?;
    site.until("pt", "restarted and the worker done", |job| {
        job["status"]["restarts"] == 1 && counters(job, "Worker").get("succeeded") == Some(&1)
    })
    .await?;
    site.go().await?;
    site.until_true("pt", "Succeeded").await?;
    site.assert_reads(
        "pt",
        &well("pt"),
        &Row::new("Succeeded", "2/2", 1, "PyTorchJobSucceeded"),
    )
    .await?;
    let worker = site.pod("pt-worker-0").await?;
    assert_eq!(worker["status"]["containerStatuses"][0]["restartCount"], 1);
    assert_eq!(attempt(&worker), "0.0");
    assert_eq!(site.summary()["Pod/pt-worker-0"].creates, 1);
    site.finish("one restart by the kubelet, the same pod")
        .await
}

#[tokio::test]
async fn a_worker_killed_under_exit_code_is_replaced() -> Result<()> {
    let site = Site::open("sigkill", Weight::Light).await?;
    if out_of_reach(&site) {
        return Ok(());
    }
    let job = pair("pt", shell(UNTIL_GO), shell(UNTIL_GO)).restart_policy("Worker", "ExitCode");
    site.jobs.create(&job.build()).await?;
    site.until_running("pt", 2).await?;
    let worker = site.pod("pt-worker-0").await?;
    site.cluster.kill(container(&worker)?)?;
    let new = site.until_replaced(&worker).await?;
    assert_eq!(attempt(&new), "0.1");
    site.until_running("pt", 2).await?;
    site.until("pt", "ready", |job| job["status"]["ready"] == "2/2")
        .await?;
    // Restarting ends when every replica runs again.
    site.assert_reads(
        "pt",
        &[created("pt"), running("pt")],
        &Row::new("Running", "2/2", 1, "PyTorchJobRunning"),
    )
    .await?;
    site.go().await?;
    site.until_true("pt", "Succeeded").await?;
    let job = site
        .assert_reads(
            "pt",
            &well("pt"),
            &Row::new("Succeeded", "2/2", 1, "PyTorchJobSucceeded"),
        )
        .await?;
    let failure = &job["status"]["lastFailure"];
    assert_eq!(failure["pod"], "pt-worker-0", "{failure}");
    assert_eq!(failure["exitCode"], 137, "{failure}");
    assert_eq!(job["status"]["countedFailures"], 1, "{}", job["status"]);
    let churn = site.summary()["Pod/pt-worker-0"];
    assert_eq!((churn.creates, churn.deletes), (2, 1));
    assert_eq!(site.summary()["Pod/pt-master-0"].creates, 1);

    let events = site.events("pt", "PyTorchJobSucceeded").await?;
    let exit = format!("Pod: {}.pt-worker-0 exited with code 137", site.namespace);
    assert_eq!(said(&events, "Normal", "ExitedWithCode")?, exit);
    let told = said(&events, "Warning", "PodFailed")?;
    assert!(
        told.starts_with("Pod pt-worker-0: exit code 137: was killed (SIGKILL)"),
        "{told}"
    );
    assert_eq!(
        said(&events, "Warning", "PyTorchJobRestarting")?,
        "job pt is restarting because Worker replica(s) failed."
    );
    site.finish(&format!("{}", failure["message"])).await
}

#[tokio::test]
async fn a_permanent_exit_code_fails_the_job_with_its_last_words() -> Result<()> {
    let site = Site::open("exit", Weight::Light).await?;
    // All to one stream: the runtime reads stdout and stderr in any order.
    let worker = shell("exec >&2; echo step 1; echo step 2; echo 'the data set is gone'; exit 1");
    let job = pair("pt", shell(UNTIL_GO), worker).restart_policy("Worker", "ExitCode");
    site.jobs.create(&job.build()).await?;
    let job = site.until_true("pt", "Failed").await?;
    let message = r#"job "pt" is failing because "Worker" replica(s) failed."#;
    assert_eq!(condition(&job, "Failed")?, failed(message));
    let row = site.row("pt")?;
    assert_eq!(row.state, "Failed");
    assert_eq!(row.reason, "PyTorchJobFailed");
    assert_eq!(row.restarts, "0");
    let failure = &job["status"]["lastFailure"];
    assert_eq!(failure["pod"], "pt-worker-0", "{failure}");
    assert_eq!(failure["exitCode"], 1, "{failure}");
    assert!(!job["status"]["completionTime"].is_null(), "{failure}");
    assert_eq!(site.summary()["Pod/pt-worker-0"].creates, 1);
    let cause = "exit 1 in pt-worker-0: step 1 step 2 the data set is gone";
    site.assert_why("pt", "FAILED", &[cause])?;

    let events = site.events("pt", "PyTorchJobFailed").await?;
    assert_eq!(said(&events, "Warning", "PyTorchJobFailed")?, message);
    let text = site.describe("pt")?;
    let told = said(&events, "Warning", "PodFailed")?;
    for words in ["exit code 1", "step 2", "the data set is gone"] {
        assert!(told.contains(words), "{told}");
        assert!(text.contains(words), "{text}");
    }
    site.finish(&format!("{failure}")).await
}

#[tokio::test]
async fn a_worker_deleted_by_a_user_is_made_again_once() -> Result<()> {
    let site = Site::open("deleted", Weight::Light).await?;
    let policies = ["OnFailure", "Never"];
    let name = |policy: &str| format!("pt-{}", policy.to_lowercase());
    for policy in policies {
        // A counted failure would end this job at once.
        let job = pair(&name(policy), shell(UNTIL_GO), shell(UNTIL_GO))
            .restart_policy("Worker", policy)
            .run_policy("backoffLimit", 0);
        site.jobs.create(&job.build()).await?;
    }
    for policy in policies {
        let name = name(policy);
        site.until_running(&name, 2).await?;
        let worker = site.pod(&format!("{name}-worker-0")).await?;
        delete(&site.pods(), &read::name(&worker)).await?;
        site.until_replaced(&worker).await?;
        let pods = site.until_running(&name, 2).await?;
        assert!(pods.iter().all(|pod| attempt(pod) == "0.0"), "{pods:?}");
    }
    site.go().await?;
    for policy in policies {
        let name = name(policy);
        site.until_true(&name, "Succeeded").await?;
        let job = site
            .assert_reads(
                &name,
                &well(&name),
                &Row::new("Succeeded", "2/2", 0, "PyTorchJobSucceeded"),
            )
            .await?;
        assert_eq!(job["status"]["lastFailure"], Value::Null);
        let summary = site.summary();
        assert_eq!(summary[&format!("Pod/{name}-worker-0")].creates, 2);
        assert_eq!(summary[&format!("Pod/{name}-master-0")].creates, 1);
        let events = site.events(&name, "PyTorchJobSucceeded").await?;
        assert!(events.iter().all(|e| e.0 == "Normal"), "{events:?}");
        let made = |e: &&e2e::pods::Event| e.1 == "SuccessfulCreatePod";
        let again = events.iter().rfind(made).map(|e| e.2.as_str());
        let expected = format!("Created pod: {name}-worker-0");
        assert_eq!(again, Some(expected.as_str()), "{events:?}");
    }
    site.finish("re-created once, under OnFailure and under Never")
        .await
}

#[tokio::test]
async fn f_60_an_evicted_worker_is_replaced_free_of_charge() -> Result<()> {
    let site = Site::open("evicted", Weight::Light).await?;
    // A counted failure would end this job at once.
    let job = pair("pt", shell(UNTIL_GO), shell(UNTIL_GO)).run_policy("backoffLimit", 0);
    site.jobs.create(&job.build()).await?;
    site.until_running("pt", 2).await?;
    let worker = site.pod("pt-worker-0").await?;
    site.pods()
        .evict("pt-worker-0", &EvictParams::default())
        .await?;
    site.until_replaced(&worker).await?;
    site.until_running("pt", 2).await?;
    site.go().await?;
    site.until_true("pt", "Succeeded").await?;
    let job = site
        .assert_reads(
            "pt",
            &well("pt"),
            &Row::new("Succeeded", "2/2", 1, "PyTorchJobSucceeded"),
        )
        .await?;
    let status = &job["status"];
    assert_eq!(status["countedFailures"], Value::Null, "{status}");
    assert_eq!(status["lastFailure"]["pod"], "pt-worker-0", "{status}");
    assert_eq!(site.summary()["Pod/pt-worker-0"].creates, 2);
    let events = site.events("pt", "PyTorchJobSucceeded").await?;
    let told = said(&events, "Warning", "PodFailed")?;
    assert!(told.contains("eviction"), "{told}");
    said(&events, "Warning", "PyTorchJobRestarting")?;
    site.finish(told).await
}

#[tokio::test]
async fn a_container_out_of_memory_is_told_so() -> Result<()> {
    let site = Site::open("oom", Weight::Light).await?;
    let mut worker = shell("");
    let main = &mut worker["containers"][0];
    main["command"] = json!(["python3", "-c", "x = b'x' * (256 << 20); print(len(x))"]);
    main["resources"] = json!({ "limits": { "memory": "32Mi" } });
    // After exit code 137 it is retried until the limit is used up; then nothing is left running.
    let again = pair("again", shell(UNTIL_GO), worker.clone())
        .restart_policy("Worker", "ExitCode")
        .run_policy("backoffLimit", 1)
        .run_policy("cleanPodPolicy", "Running");
    let never = pair("never", shell(UNTIL_GO), worker).restart_policy("Worker", "Never");
    site.jobs.create(&again.build()).await?;
    site.jobs.create(&never.build()).await?;
    let ends = [
        (
            "never",
            "PyTorchJob never is failed because 1 Worker replica(s) failed.",
            "0",
            1,
        ),
        (
            "again",
            "Job again has failed because it has reached the specified backoff limit",
            "1",
            2,
        ),
    ];
    for (name, message, restarts, creates) in ends {
        let job = site.until_true(name, "Failed").await?;
        assert_eq!(condition(&job, "Failed")?, failed(message));
        assert!(!is_true(&job, "Running"), "{}", job["status"]);
        let row = site.row(name)?;
        assert_eq!(
            (row.state.as_str(), row.restarts.as_str()),
            ("Failed", restarts)
        );
        let failure = &job["status"]["lastFailure"];
        assert_eq!(failure["reason"], "OOMKilled", "{failure}");
        assert_eq!(failure["exitCode"], 137, "{failure}");
        let cause = format!("exit 137 (OOMKilled) in {name}-worker-0");
        site.assert_why(name, "FAILED", &[&cause])?;
        let events = site.events(name, "PodFailed").await?;
        let told = events.iter().filter(|e| e.1 == "PodFailed");
        assert!(
            told.clone().all(|e| e.2.contains("raise the memory limit")),
            "{events:?}"
        );
        let worker = format!("Pod/{name}-worker-0");
        assert_eq!(site.summary()[&worker].creates, creates);
    }
    let events = site.events("again", "BackoffLimitExceeded").await?;
    said(&events, "Warning", "BackoffLimitExceeded")?;
    site.until_pods("again", &["again-worker-0"]).await?;
    site.finish("OOMKilled, at once under Never, after one more try under ExitCode")
        .await
}
