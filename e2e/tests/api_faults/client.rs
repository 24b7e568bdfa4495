//! F-75, F-76, MT-53: concurrency of the client library, and foreign objects.

use std::time::Duration;

use anyhow::Result;
use e2e::read;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use training_testkit::job::counters;
use training_testkit::proxy::{Action, Call, Gate, Rule};
use training_testkit::wait::{HANG, Seen, eventually, holds_for};

use super::driver::{FaultTest, JOB, Phase};

/// Concurrent requests of the operator for one job.
const AT_ONCE: usize = 16;
const WORKERS: u32 = 40;

/// Waits until this many requests of the job are held, and no more; other requests pass the gate.
async fn until_full(test: &FaultTest, held: &Rule) -> Result<()> {
    test.until_hit(std::slice::from_ref(held), AT_ONCE).await?;
    holds_for(Duration::from_secs(1), async || {
        anyhow::ensure!(held.hits() == AT_ONCE, "{} requests at once", held.hits());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn f_75_requests_of_one_job_are_bounded_and_others_go_on_beside_them() -> Result<()> {
    let Some(mut test) = FaultTest::set_up("f75").await? else {
        return Ok(());
    };
    let held = |verb: &'static str, gate: &Gate| {
        let namespace = test.namespace().to_owned();
        let hold = Action::Hold(gate.clone());
        Rule::new(verb, hold, move |call: &Call| {
            call.namespace == namespace && call.verb == verb && call.resource != "events"
        })
    };
    let gate = Gate::closed();
    let creates = held("create", &gate);
    let later = Gate::closed();
    let deletes = held("delete", &later);
    test.rule(std::slice::from_ref(&creates));
    test.start().await?;
    let job = FaultTest::job().role("Worker", WORKERS);
    test.world.jobs.create(&job.build()).await?;
    until_full(&test, &creates).await?;
    // The healthy job finishes while all of this waits.
    test.until_canary().await?;
    gate.open();
    let (kubelet, namespace) = (&test.world.kubelet, test.namespace());
    kubelet.until_pods(namespace, JOB, 41).await?;
    kubelet.all_running(namespace, JOB).await?;
    let all_active = |job: &Value| counters(job, "Worker").get("active") == Some(&WORKERS.into());
    let jobs = &test.world.jobs;
    jobs.until(JOB, "with all active", all_active).await?;
    // Suspending the running job deletes all of its pods at once.
    test.rule(std::slice::from_ref(&deletes));
    let suspend = |suspend: bool| json!({ "spec": { "runPolicy": { "suspend": suspend } } });
    jobs.merge(JOB, &suspend(true)).await?;
    until_full(&test, &deletes).await?;
    later.open();
    jobs.until_true(JOB, "Suspended").await?;
    kubelet.until_pods(namespace, JOB, 0).await?;
    jobs.merge(JOB, &suspend(false)).await?;
    kubelet.until_pods(namespace, JOB, 41).await?;
    kubelet.all_running(namespace, JOB).await?;
    jobs.until(JOB, "with all active again", all_active).await?;
    let made = test.world.auditor.summary();
    for n in 0..WORKERS {
        let pod = format!("Pod/pt-worker-{n}");
        let creates = made.get(&pod).map_or(0, |churn| churn.creates);
        assert_eq!(creates, 2, "{pod}");
    }
    test.assert_clean().await
}

#[tokio::test]
async fn f_76_lists_at_the_start_are_quorum_reads() -> Result<()> {
    let Some(mut test) = FaultTest::set_up("f76").await? else {
        return Ok(());
    };
    for phase in Phase::ALL {
        if phase != Phase::Creating {
            test.relist().await?;
        }
        test.run_phase(phase).await?;
    }
    let records = test.proxy.records();
    let lists: Vec<&str> = records
        .iter()
        .filter(|record| record.call.verb == "list")
        .map(|record| record.call.uri.as_str())
        .collect();
    // Three resources in two namespaces, and two more times in one.
    assert!(lists.len() >= 12, "{lists:?}");
    let cached = lists.iter().find(|uri| uri.contains("resourceVersion"));
    assert_eq!(cached, None, "a list that a cache may answer");
    test.assert_clean().await
}

#[tokio::test]
async fn mt_53_forged_pods_are_nobodys() -> Result<()> {
    let Some(mut test) = FaultTest::set_up("mt53").await? else {
        return Ok(());
    };
    test.run_phase(Phase::Creating).await?;
    let pods: Api<Pod> = Api::namespaced(test.world.client.clone(), test.namespace());
    let real = read::pods(&test.world.client, test.namespace(), JOB).await?;
    let real = &real[0]["metadata"];
    // One pod with all our labels, and one that also names the job as its controller.
    for (name, owners) in [
        ("forged-labels", json!([])),
        ("forged-owner", real["ownerReferences"].clone()),
    ] {
        let forged: Pod = serde_json::from_value(json!({
            "metadata": { "name": name, "labels": real["labels"], "ownerReferences": owners },
            "spec": {
                "containers": [{ "name": "pytorch", "image": "i" }], "restartPolicy": "Never",
            },
        }))?;
        pods.create(&PostParams::default(), &forged).await?;
        e2e::set_pod_status(&pods, name, json!({ "phase": "Failed" })).await?;
    }
    for phase in [Phase::Running, Phase::Finishing] {
        test.begin(phase).await?;
        if phase == Phase::Running {
            test.end(phase).await?;
        }
    }
    let job = test.world.jobs.until_true(JOB, "Succeeded").await?;
    assert_eq!(job["status"]["restarts"], 1, "{}", job["status"]);
    eventually("our pods to be cleaned up", HANG, async || {
        let left = read::names(&read::pods(&test.world.client, test.namespace(), JOB).await?);
        Ok(if left == ["forged-labels", "forged-owner"] {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{left:?}"))
        })
    })
    .await?;
    // To the auditor they look like wrong pods of the operator; it must find nothing else.
    test.world.auditor.settled().await?;
    let about_others: Vec<String> = test.world.auditor.violations();
    let about_others = about_others
        .iter()
        .filter(|wrong| !wrong.contains("forged"));
    assert_eq!(about_others.collect::<Vec<_>>(), Vec::<&String>::new());
    test.until_canary().await?;
    test.operator()?.assert_no_panic()
}
