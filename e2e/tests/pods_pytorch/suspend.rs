//! Jobs that are suspended and resumed, as queueing systems do it, and restarted.

use anyhow::Result;
use e2e::pods::{
    Row, Site, UNTIL_GO, Weight, active, attempt, created, eventually, no_longer_running, pair,
    running, said, shell, succeeded,
};
use e2e::read;
use serde_json::{Value, json};
use training_testkit::RESTART_REQUEST;
use training_testkit::job::{Condition, is_true};
use training_testkit::wait::Seen;

/// A pod that uses no resources any more: its containers have ended, and it is about to be removed.
fn is_spent(pod: &Value) -> bool {
    ["Succeeded", "Failed"]
        .map(Value::from)
        .contains(&pod["status"]["phase"])
}

/// A worker that prints this text and terminates slowly, which makes the time in between observable.
fn worker(says: &str) -> Value {
    let mut pod = shell(&format!(
        "trap 'sleep 5; exit 0' TERM; echo $SAYS; {UNTIL_GO}"
    ));
    pod["terminationGracePeriodSeconds"] = json!(30);
    pod["containers"][0]["env"] = json!([{ "name": "SAYS", "value": says }]);
    pod
}

#[tokio::test]
async fn a_suspended_job_has_no_pods_and_is_resumed_from_its_edited_template() -> Result<()> {
    let site = Site::open("suspend", Weight::Light).await?;
    site.jobs
        .create(&pair("pt", shell(UNTIL_GO), worker("before")).build())
        .await?;
    site.until_running("pt", 2).await?;
    let first = site.jobs.get("pt").await?;
    site.until_says("pt-worker-0", "before").await?;
    let suspend = json!({ "spec": { "runPolicy": { "suspend": true } } });
    site.jobs.merge("pt", &suspend).await?;
    let mut terminating = 0;
    eventually("a suspended job without pods", async || {
        // The job is read first: no pod may still run that ran when the status showed none active.
        let job = site.jobs.get("pt").await?;
        let pods = read::pods(&site.client, &site.namespace, "pt").await?;
        if is_true(&job, "Suspended") && active(&job) == 0 {
            // A panic, because an error here would only be retried.
            assert!(pods.iter().all(is_spent), "{pods:?} with {}", job["status"]);
            if pods.is_empty() {
                return Ok(Seen::Yes(()));
            }
        }
        terminating += usize::from(is_true(&job, "Suspended") && active(&job) > 0);
        Ok(Seen::NotYet(job["status"].to_string()))
    })
    .await?;
    assert!(
        terminating > 0,
        "it was never suspended with terminating pods"
    );
    let services = read::services(&site.client, &site.namespace, "pt").await?;
    assert!(services.is_empty(), "{:?}", read::names(&services));
    let message = "PyTorchJob pt is suspended.";
    let stopped = Condition::new("Running", "False", "PyTorchJobSuspended", message);
    let suspended = Condition::new("Suspended", "True", "PyTorchJobSuspended", message);
    site.assert_reads(
        "pt",
        &[created("pt"), stopped, suspended],
        &Row::new("Suspended", "0/2", 0, "PyTorchJobSuspended"),
    )
    .await?;

    // A queue changes the template and resumes the job in one write.
    let edited = json!({ "spec": {
        "runPolicy": { "suspend": false },
        "pytorchReplicaSpecs": { "Worker": { "template": { "spec": worker("after") } } },
    } });
    site.jobs.merge("pt", &edited).await?;
    let pods = site.until_running("pt", 2).await?;
    assert!(pods.iter().all(|pod| attempt(pod) == "1.0"), "{pods:?}");
    eventually("the edited template's words", async || {
        let log = site.log("pt-worker-0").await?;
        assert!(!log.contains("before"), "{log}");
        Ok(if log.contains("after") {
            Seen::Yes(())
        } else {
            Seen::NotYet(log)
        })
    })
    .await?;
    let message = "PyTorchJob pt is resumed.";
    let resumed = Condition::new("Suspended", "False", "PyTorchJobResumed", message);
    site.until("pt", "ready", |job| job["status"]["ready"] == "2/2")
        .await?;
    let job = site
        .assert_reads(
            "pt",
            &[created("pt"), resumed.clone(), running("pt")],
            &Row::new("Running", "2/2", 0, "PyTorchJobRunning"),
        )
        .await?;
    // The deadline starts again.
    assert_ne!(job["status"]["startTime"], first["status"]["startTime"]);

    site.go().await?;
    site.until_true("pt", "Succeeded").await?;
    site.assert_reads(
        "pt",
        &[
            created("pt"),
            resumed,
            no_longer_running("pt"),
            succeeded("pt"),
        ],
        &Row::new("Succeeded", "2/2", 0, "PyTorchJobSucceeded"),
    )
    .await?;
    let events = site.events("pt", "PyTorchJobSucceeded").await?;
    said(&events, "Normal", "PyTorchJobSuspended")?;
    said(&events, "Normal", "PyTorchJobResumed")?;
    said(&events, "Normal", "SuccessfulDeletePod")?;
    site.finish(&format!(
        "a suspended job with active terminating pods was seen {terminating} times"
    ))
    .await
}

#[tokio::test]
async fn a_job_that_is_restarted_on_request_runs_anew_from_its_edited_template() -> Result<()> {
    let site = Site::open("restart", Weight::Light).await?;
    site.jobs
        .create(&pair("pt", shell(UNTIL_GO), worker("before")).build())
        .await?;
    site.until_running("pt", 2).await?;
    let request = json!({
        "metadata": { "annotations": { RESTART_REQUEST: "1" } },
        "spec": { "pytorchReplicaSpecs": { "Worker": { "template": { "spec": worker("after") } } } },
    });
    site.jobs.merge("pt", &request).await?;
    site.until("pt", "restarted", |job| {
        job["status"]["restarts"] == 2 && job["status"]["ready"] == "2/2" && is_true(job, "Running")
    })
    .await?;
    let pods = site.until_running("pt", 2).await?;
    assert!(pods.iter().all(|pod| attempt(pod) == "1.0"), "{pods:?}");
    site.until_says("pt-worker-0", "after").await?;
    site.go().await?;
    let job = site.until_true("pt", "Succeeded").await?;
    assert_eq!(job["status"]["countedFailures"], Value::Null);
    let events = site.events("pt", "PyTorchJobSucceeded").await?;
    said(&events, "Normal", "PyTorchJobRestarting")?;
    site.finish("all pods restarted once").await
}
