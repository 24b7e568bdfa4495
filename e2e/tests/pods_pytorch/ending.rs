//! What a finished or deleted job leaves.

use anyhow::{Result, ensure};
use e2e::pods::{Site, UNTIL_GO, Weight, eventually, pair, shell};
use e2e::read;
use training_testkit::wait::{Seen, holds_for};

use super::STAYS;

#[tokio::test]
async fn pods_are_cleaned_up_as_the_policy_says() -> Result<()> {
    let site = Site::open("clean", Weight::Light).await?;
    let policies = [
        ("All", "all", &[][..]),
        ("Running", "running", &["running-master-0"][..]),
        ("None", "none", &["none-master-0", "none-worker-0"][..]),
    ];
    for (policy, name, _) in policies {
        // The master succeeds while its worker runs.
        let job = pair(name, shell(UNTIL_GO), shell("sleep 600"));
        let job = job.run_policy("cleanPodPolicy", policy);
        site.jobs.create(&job.build()).await?;
    }
    for (_, name, _) in policies {
        site.until_running(name, 2).await?;
    }
    site.go().await?;
    for (_, name, left) in policies {
        site.until_true(name, "Succeeded").await?;
        site.until_pods(name, left).await?;
    }
    holds_for(STAYS, async || {
        for (_, name, left) in policies {
            let pods = read::names(&read::pods(&site.client, &site.namespace, name).await?);
            ensure!(pods == left, "{name}: {pods:?}");
        }
        Ok(())
    })
    .await?;
    site.finish("All leaves nothing, Running the completed master, None both")
        .await
}

#[tokio::test]
async fn i_28_a_deleted_job_takes_its_pods_and_services_along() -> Result<()> {
    let site = Site::open("gone", Weight::Light).await?;
    site.jobs
        .create(&pair("pt", shell(UNTIL_GO), shell(UNTIL_GO)).build())
        .await?;
    site.until_running("pt", 2).await?;
    let said = site.cluster.kubectl(&[
        "-n",
        &site.namespace,
        "delete",
        "pytorchjob",
        "pt",
        "--wait=false",
    ])?;
    eventually("nothing of the job", async || {
        let pods = read::pods(&site.client, &site.namespace, "pt").await?;
        let services = read::services(&site.client, &site.namespace, "pt").await?;
        Ok(if pods.is_empty() && services.is_empty() {
            Seen::Yes(())
        } else {
            let names = (read::names(&pods), read::names(&services));
            Seen::NotYet(format!("{names:?}"))
        })
    })
    .await?;
    let summary = site.summary();
    assert!(
        summary.values().all(|churn| churn.creates == 1),
        "{summary:?}"
    );
    site.finish(&format!("{}: pods and services collected", said.trim()))
        .await
}
