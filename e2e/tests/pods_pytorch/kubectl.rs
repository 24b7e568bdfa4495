//! Typical uses of kubectl, and their output.

use anyhow::Result;
use e2e::pods::{Site, UNTIL_GO, Weight, pair, shell, table};

#[tokio::test]
async fn kubectl_lists_describes_waits_for_and_reads_a_job() -> Result<()> {
    let site = Site::open("kubectl", Weight::Light).await?;
    let says = |word: &str| shell(&format!("echo this is the {word}; {UNTIL_GO}"));
    let job = pair("pt", says("master"), says("worker"));
    site.jobs.create(&job.build()).await?;
    let waited = site.kubectl(&[
        "wait",
        "--for=condition=Running",
        "--timeout=300s",
        "pytorchjob/pt",
    ])?;
    assert!(waited.contains("condition met"), "{waited}");
    site.until("pt", "ready", |job| job["status"]["ready"] == "2/2")
        .await?;

    let text = site.kubectl(&["get", "pytorchjobs"])?;
    let cells = table(&text)?;
    let heads: Vec<&str> = cells.iter().map(|cell| cell.0).collect();
    assert_eq!(
        heads,
        ["NAME", "STATE", "READY", "RESTARTS", "WAITING", "AGE"]
    );
    let values: Vec<&str> = cells.iter().map(|cell| cell.1).collect();
    assert_eq!(values[..5], ["pt", "Running", "2/2", "0", ""]);
    assert!(values[5].ends_with(['s', 'm']), "{text}");
    let text = site.kubectl(&["get", "pytorchjobs", "-o", "wide"])?;
    assert!(
        table(&text)?.contains(&("REASON", "PyTorchJobRunning")),
        "{text}"
    );

    for role in ["master", "worker"] {
        site.until_says(&format!("pt-{role}-0"), &format!("the {role}"))
            .await?;
    }
    let selector = "training.kubeflow.org/job-name=pt";
    let logs = site.kubectl(&["logs", "-l", selector, "--prefix"])?;
    for line in [
        "[pod/pt-master-0/pytorch] this is the master",
        "[pod/pt-worker-0/pytorch] this is the worker",
    ] {
        assert!(logs.lines().any(|l| l == line), "{logs}");
    }
    let logs = site.kubectl(&["logs", "pt-worker-0"])?;
    assert_eq!(logs, "this is the worker\n");

    site.go().await?;
    let waited = site.kubectl(&[
        "wait",
        "--for=condition=Succeeded",
        "--timeout=300s",
        "pytorchjob/pt",
    ])?;
    assert!(waited.contains("condition met"), "{waited}");
    site.events("pt", "PyTorchJobSucceeded").await?;
    let text = site.describe("pt")?;
    let (_, events) = text.split_once("Events:").unwrap_or((&text, ""));
    for reason in [
        "SuccessfulCreatePod",
        "SuccessfulCreateService",
        "PyTorchJobSucceeded",
    ] {
        assert!(events.contains(reason), "{text}");
    }
    assert!(
        events.contains("Created pods: pt-master-0, pt-worker-0"),
        "{text}"
    );
    for line in [
        "Last Transition Time:",
        "Message:",
        "PyTorchJob pt is successfully completed.",
        "Completion Time:",
        "Ready:",
        "Restarts:",
    ] {
        assert!(text.contains(line), "{text}");
    }
    site.finish("get, get -o wide, describe, logs by label and by pod, wait")
        .await
}
