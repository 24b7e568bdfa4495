//! `PyTorchJob` with real containers: what trains, what is killed, and what becomes of the job.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::look;
use e2e::pods::{
    Site, UNTIL_GO, Weight, container, created, delete, eventually, example, no_longer_running,
    pair, shell, succeeded,
};
use kube::api::{EvictParams, Patch, PatchParams};
use serde_json::{Value, json};
use training_testkit::job::{Condition, condition, conditions, counters, is_true};
use training_testkit::wait::{Seen, holds_for};

/// Long enough to see that something does not happen.
const STAYS: Duration = Duration::from_secs(2);
const MASTER: &str = "/spec/pytorchReplicaSpecs/Master/template/spec";
const WORKER: &str = "/spec/pytorchReplicaSpecs/Worker/template/spec";
const ATTEMPT: &str = "trainyard.dev/attempt";

fn attempt(pod: &Value) -> &Value {
    &pod["metadata"]["annotations"][ATTEMPT]
}

/// The ranks and hosts that a training script reports.
fn ranks(log: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = log.lines().filter_map(|line| line.strip_prefix("rank "));
    lines.filter_map(|line| {
        line.split_once(" on ")
            .filter(|(rank, _)| !rank.contains(' '))
    })
}

/// The losses and accuracies that rank 0 reports, epoch by epoch.
fn epochs(log: &str) -> Vec<(f64, f64)> {
    let number = |line: &str, word: &str| {
        let mut words = line.split_whitespace().skip_while(|w| *w != word);
        words.nth(1)?.parse().ok()
    };
    let lines = log.lines().filter(|line| line.starts_with("epoch "));
    lines
        .filter_map(|line| Some((number(line, "loss")?, number(line, "accuracy")?)))
        .collect()
}

/// A job's training as told by its pods: hosts by rank, first and last loss, last accuracy.
async fn trained(site: &Site, pods: &[&str]) -> Result<String> {
    let mut seen = BTreeSet::new();
    let mut hosts = BTreeSet::new();
    let mut learned = Vec::new();
    for pod in pods {
        let log = site.log(pod).await?;
        for (rank, host) in ranks(&log) {
            seen.insert(rank.to_owned());
            hosts.insert(host.to_owned());
            assert_eq!(&host, pod, "{log}");
        }
        learned.extend(epochs(&log));
    }
    let wanted: BTreeSet<String> = (0..pods.len())
        .map(|rank| format!("{rank}/{}", pods.len()))
        .collect();
    assert_eq!(seen, wanted);
    assert_eq!(hosts.len(), pods.len(), "{hosts:?}");
    let (first, _) = *learned.first().context("no epoch was reported")?;
    let (last, accuracy) = *learned.last().context("no epoch was reported")?;
    assert!(last < first, "{learned:?}");
    assert!(accuracy > 0.9, "{learned:?}");
    Ok(format!(
        "{} ranks on {hosts:?}, loss {first} to {last}, accuracy {accuracy}",
        pods.len()
    ))
}

/// The cells of a table that kubectl prints for one object, by column. A cell may be empty.
fn table(text: &str) -> Result<Vec<(&str, &str)>> {
    let lines: Vec<&str> = text.lines().collect();
    let [head, row] = lines[..] else {
        anyhow::bail!("two lines were expected:\n{text}");
    };
    let mut cells = Vec::new();
    let mut end = head.len().max(row.len());
    for name in head.split_whitespace().rev() {
        let begin = head.find(name).context("a column without a head")?;
        let cell = row.get(begin..end.min(row.len())).unwrap_or_default();
        cells.insert(0, (name, cell.trim()));
        end = begin;
    }
    Ok(cells)
}

#[tokio::test]
async fn a_distributed_job_trains_and_kubectl_shows_it() -> Result<()> {
    let site = Site::open("ddp", Weight::Heavy).await?;
    site.jobs.create(&example("pytorch/ddp.yaml")?).await?;
    let job = site.until_true("ddp", "Succeeded").await?;
    assert_eq!(
        conditions(&job),
        [created("ddp"), no_longer_running("ddp"), succeeded("ddp")]
    );
    let saw = trained(&site, &["ddp-master-0", "ddp-worker-0", "ddp-worker-1"]).await?;

    let get = |more: &[&str]| {
        let mut args = vec!["-n", &site.namespace, "get", "pytorchjobs"];
        args.extend(more);
        site.cluster.kubectl(&args)
    };
    let text = get(&[])?;
    let columns = table(&text)?;
    let names: Vec<&str> = columns.iter().map(|column| column.0).collect();
    assert_eq!(names, ["NAME", "STATE", "READY", "RESTARTS", "AGE"]);
    assert_eq!(
        columns[..4],
        [
            ("NAME", "ddp"),
            ("STATE", "Succeeded"),
            ("READY", "3/3"),
            ("RESTARTS", "0"),
        ]
    );
    assert!(
        columns[4].1.ends_with('s') || columns[4].1.ends_with('m'),
        "{columns:?}"
    );
    let text = get(&["-o", "wide"])?;
    assert!(
        table(&text)?.contains(&("REASON", "PyTorchJobSucceeded")),
        "{text}"
    );

    let events =
        look::events_with(&site.client, &site.namespace, "ddp", "PyTorchJobSucceeded").await?;
    let mut reasons: Vec<&str> = events.iter().map(|event| event.1.as_str()).collect();
    reasons.sort_unstable();
    assert_eq!(
        reasons,
        [
            "PyTorchJobSucceeded",
            "SuccessfulCreatePod",
            "SuccessfulCreateService",
        ],
        "{events:?}"
    );
    site.finish(&saw).await
}

#[tokio::test]
async fn a_job_started_by_torchrun_trains() -> Result<()> {
    let site = Site::open("torchrun", Weight::Heavy).await?;
    site.jobs.create(&example("pytorch/simple.yaml")?).await?;
    site.until_true("torchrun", "Succeeded").await?;
    let saw = trained(&site, &["torchrun-master-0", "torchrun-worker-0"]).await?;
    site.finish(&saw).await
}

#[tokio::test]
async fn a_worker_waits_for_its_masters_name_under_restricted_pod_security() -> Result<()> {
    let site = Site::open("init", Weight::Light).await?;
    site.enforce_restricted().await?;
    let restricted = |script: &str| {
        let mut pod = shell(script);
        pod["securityContext"] = json!({
            "runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": { "type": "RuntimeDefault" },
        });
        pod["containers"][0]["securityContext"] = json!({
            "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] },
        });
        pod
    };
    // Without an address the master has no name either.
    let mut master = restricted(UNTIL_GO);
    master["schedulingGates"] = json!([{ "name": "trainyard.dev/test" }]);
    let worker = restricted("getent hosts $MASTER_ADDR");
    site.jobs
        .create(&pair("pt", master, worker).build())
        .await?;
    let waiting = |pod: &Value| {
        let init = &pod["status"]["initContainerStatuses"][0];
        init["state"]["running"].is_object() && init["restartCount"] == 0
    };
    eventually("a waiting init container", async || {
        let pod = site.pod("pt-worker-0").await?;
        Ok(if waiting(&pod) {
            Seen::Yes(())
        } else {
            Seen::NotYet(pod["status"].to_string())
        })
    })
    .await?;
    holds_for(STAYS, async || {
        let pod = site.pod("pt-worker-0").await?;
        ensure!(waiting(&pod), "{}", pod["status"]);
        Ok(())
    })
    .await?;
    let job = site.jobs.get("pt").await?;
    assert_eq!(conditions(&job), [created("pt")]);

    let open = Patch::Merge(json!({ "spec": { "schedulingGates": null } }));
    site.pods()
        .patch("pt-master-0", &PatchParams::default(), &open)
        .await?;
    site.until("pt", "done but for the master", |job| {
        counters(job, "Worker").get("succeeded") == Some(&1)
    })
    .await?;
    site.go().await?;
    site.until_true("pt", "Succeeded").await?;
    let pod = site.pod("pt-worker-0").await?;
    let status = &pod["status"]["initContainerStatuses"];
    assert_eq!(status.as_array().map(Vec::len), Some(1), "{status}");
    assert_eq!(status[0]["name"], "init-pytorch");
    assert_eq!(status[0]["state"]["terminated"]["exitCode"], 0, "{status}");
    let image = status[0]["image"].as_str().unwrap_or_default().to_owned();
    assert!(image.contains("trainyard/pytorch-operator:"), "{image}");
    site.finish(&format!("init-pytorch of {image} waited, then completed"))
        .await
}

#[tokio::test]
async fn a_container_that_fails_once_is_restarted_in_place() -> Result<()> {
    let site = Site::open("inplace", Weight::Light).await?;
    let mut worker = shell("[ -e /once/done ] || { touch /once/done; exit 1; }; exit 0");
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
    let job = site.until_true("pt", "Succeeded").await?;
    assert_eq!(job["status"]["restarts"], 1, "{}", job["status"]);
    let worker = site.pod("pt-worker-0").await?;
    assert_eq!(worker["status"]["containerStatuses"][0]["restartCount"], 1);
    assert_eq!(attempt(&worker), "0.0");
    assert_eq!(site.auditor.summary()["Pod/pt-worker-0"].creates, 1);
    site.finish("one restart by the kubelet, the same pod")
        .await
}

#[tokio::test]
async fn a_killed_worker_is_replaced_and_the_job_goes_on() -> Result<()> {
    let site = Site::open("sigkill", Weight::Light).await?;
    if !site.cluster.is_open() {
        eprintln!("sigkill: skipped, the processes of this cluster are out of reach");
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
    site.go().await?;
    let job = site.until_true("pt", "Succeeded").await?;
    let status = &job["status"];
    assert_eq!(status["restarts"], 1, "{status}");
    assert_eq!(status["lastFailure"]["pod"], "pt-worker-0", "{status}");
    assert_eq!(status["lastFailure"]["exitCode"], 137, "{status}");
    assert!(!is_true(&job, "Restarting"), "{status}");
    let churn = site.auditor.summary()["Pod/pt-worker-0"];
    assert_eq!((churn.creates, churn.deletes), (2, 1));
    assert_eq!(site.auditor.summary()["Pod/pt-master-0"].creates, 1);
    let events =
        look::events_with(&site.client, &site.namespace, "pt", "PyTorchJobSucceeded").await?;
    let exit = format!("Pod: {}.pt-worker-0 exited with code 137", site.namespace);
    assert!(events.iter().any(|event| event.2 == exit), "{events:?}");
    site.finish(&format!("{}", status["lastFailure"]["message"]))
        .await
}

#[tokio::test]
async fn a_permanent_exit_code_fails_the_job_with_its_last_words() -> Result<()> {
    let site = Site::open("exit", Weight::Light).await?;
    let worker = shell("echo step 1; echo step 2; echo 'the data set is gone' >&2; exit 1");
    let job = pair("pt", shell(UNTIL_GO), worker).restart_policy("Worker", "ExitCode");
    site.jobs.create(&job.build()).await?;
    let job = site.until_true("pt", "Failed").await?;
    let message = r#"job "pt" is failing because "Worker" replica(s) failed."#;
    assert_eq!(
        condition(&job, "Failed")?,
        Condition::new("Failed", "True", "PyTorchJobFailed", message)
    );
    assert_eq!(
        conditions(&job).last().map(|c| c.kind.clone()).as_deref(),
        Some("Failed")
    );
    let failure = &job["status"]["lastFailure"];
    assert_eq!(failure["pod"], "pt-worker-0", "{failure}");
    assert_eq!(failure["exitCode"], 1, "{failure}");
    let said = failure["message"].as_str().unwrap_or_default();
    assert!(
        said.contains("step 2") && said.contains("the data set is gone"),
        "{said}"
    );
    assert_eq!(site.auditor.summary()["Pod/pt-worker-0"].creates, 1);
    site.finish(&format!("{failure}")).await
}

#[tokio::test]
async fn a_worker_deleted_by_a_user_is_made_again_once() -> Result<()> {
    let site = Site::open("deleted", Weight::Light).await?;
    let policies = ["OnFailure", "Never"];
    let name = |policy: &str| format!("pt-{}", policy.to_lowercase());
    for policy in policies {
        let job = pair(&name(policy), shell(UNTIL_GO), shell(UNTIL_GO));
        let job = job.restart_policy("Worker", policy);
        site.jobs.create(&job.build()).await?;
    }
    for policy in policies {
        let name = name(policy);
        site.until_running(&name, 2).await?;
        let worker = site.pod(&format!("{name}-worker-0")).await?;
        delete(&site.pods(), &look::name(&worker)).await?;
        site.until_replaced(&worker).await?;
        let pods = site.until_running(&name, 2).await?;
        assert!(pods.iter().all(|pod| attempt(pod) == "0.0"), "{pods:?}");
    }
    site.go().await?;
    for policy in policies {
        let name = name(policy);
        let job = site.until_true(&name, "Succeeded").await?;
        assert_eq!(
            conditions(&job),
            [created(&name), no_longer_running(&name), succeeded(&name)]
        );
        let summary = site.auditor.summary();
        assert_eq!(summary[&format!("Pod/{name}-worker-0")].creates, 2);
        assert_eq!(summary[&format!("Pod/{name}-master-0")].creates, 1);
    }
    site.finish("re-created once, under OnFailure and under Never")
        .await
}

#[tokio::test]
async fn an_evicted_worker_is_replaced_free_of_charge() -> Result<()> {
    let site = Site::open("evicted", Weight::Light).await?;
    // A failure that is charged would end this job at once.
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
    let job = site.until_true("pt", "Succeeded").await?;
    let status = &job["status"];
    let charged = status["countedFailures"].as_i64().unwrap_or(0);
    assert_eq!(charged, 0, "{status}");
    assert_eq!(site.auditor.summary()["Pod/pt-worker-0"].creates, 2);
    site.finish(&format!("restarts {}, none charged", status["restarts"]))
        .await
}

#[tokio::test]
async fn a_container_out_of_memory_is_told_so() -> Result<()> {
    let site = Site::open("oom", Weight::Light).await?;
    let mut worker = shell("");
    let main = &mut worker["containers"][0];
    main["command"] = json!(["python3", "-c", "x = b'x' * (256 << 20); print(len(x))"]);
    main["resources"] = json!({ "limits": { "memory": "32Mi" } });
    let job = pair("pt", shell(UNTIL_GO), worker).restart_policy("Worker", "Never");
    site.jobs.create(&job.build()).await?;
    let job = site.until_true("pt", "Failed").await?;
    let failure = &job["status"]["lastFailure"];
    assert_eq!(failure["reason"], "OOMKilled", "{failure}");
    assert_eq!(failure["exitCode"], 137, "{failure}");
    assert_eq!(
        condition(&job, "Failed")?.message,
        "PyTorchJob pt is failed because 1 Worker replica(s) failed."
    );
    site.finish(&format!("{}", failure["message"])).await
}

#[tokio::test]
async fn a_job_whose_images_are_missing_waits() -> Result<()> {
    let site = Site::open("image", Weight::Light).await?;
    let job = pair("pt", shell(UNTIL_GO), shell(UNTIL_GO))
        .set(
            &format!("{MASTER}/containers/0/image"),
            "trainyard.test/missing:1",
        )
        .set(&format!("{MASTER}/containers/0/imagePullPolicy"), "Never")
        .set(
            &format!("{WORKER}/containers/0/image"),
            "trainyard.test/missing:1",
        );
    site.jobs.create(&job.build()).await?;
    let never = site
        .until_waits_for("pt-master-0", &["ErrImageNeverPull"])
        .await?;
    let pull = site
        .until_waits_for("pt-worker-0", &["ErrImagePull", "ImagePullBackOff"])
        .await?;
    holds_for(STAYS, async || {
        let job = site.jobs.get("pt").await?;
        let status = &job["status"];
        ensure!(conditions(&job) == [created("pt")], "{status}");
        ensure!(status["ready"] == "0/2", "{status}");
        Ok(())
    })
    .await?;
    site.finish(&format!("Created and 0/2 under {never} and {pull}"))
        .await
}

#[tokio::test]
async fn pods_are_cleaned_up_as_the_policy_says() -> Result<()> {
    let site = Site::open("clean", Weight::Light).await?;
    let policies = [
        ("All", "all", &[][..]),
        ("Running", "running", &["running-master-0"][..]),
        ("None", "none", &["none-master-0", "none-worker-0"][..]),
    ];
    for (policy, name, _) in policies {
        // The master ends well while its worker runs on.
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
            let pods = look::names(&look::pods(&site.client, &site.namespace, name).await?);
            ensure!(pods == left, "{name}: {pods:?}");
        }
        Ok(())
    })
    .await?;
    site.finish("All leaves nothing, Running the completed master, None both")
        .await
}

#[tokio::test]
async fn a_suspended_job_has_no_pods_and_ends_well_once_resumed() -> Result<()> {
    let site = Site::open("suspend", Weight::Light).await?;
    // Leaving takes a while, so that the time in between can be looked at.
    let mut worker = shell(&format!("trap 'sleep 2; exit 0' TERM; {UNTIL_GO}"));
    worker["terminationGracePeriodSeconds"] = json!(30);
    site.jobs
        .create(&pair("pt", shell(UNTIL_GO), worker).build())
        .await?;
    site.until_running("pt", 2).await?;
    let suspend = |suspend: bool| json!({ "spec": { "runPolicy": { "suspend": suspend } } });
    site.jobs.merge("pt", &suspend(true)).await?;
    let mut leaving = 0;
    eventually("a suspended job without pods", async || {
        // The job first: nothing may still run that did so when it said that none was active.
        let job = site.jobs.get("pt").await?;
        let pods = look::pods(&site.client, &site.namespace, "pt").await?;
        let active: i64 = ["Master", "Worker"]
            .into_iter()
            .filter_map(|role| counters(&job, role).get("active").copied())
            .sum();
        if is_true(&job, "Suspended") && active == 0 {
            // A pod whose containers have ended uses nothing, and is removed a moment later.
            let ended = |pod: &Value| {
                ["Succeeded", "Failed"]
                    .map(Value::from)
                    .contains(&pod["status"]["phase"])
            };
            // A panic, because an error here would only be looked at again.
            assert!(pods.iter().all(ended), "{pods:?} with {}", job["status"]);
            if pods.is_empty() {
                return Ok(Seen::Yes(()));
            }
        }
        leaving += usize::from(is_true(&job, "Suspended") && active > 0);
        Ok(Seen::NotYet(job["status"].to_string()))
    })
    .await?;
    assert!(leaving > 0, "it never was suspended with pods that leave");
    let job = site.jobs.get("pt").await?;
    assert_eq!(condition(&job, "Running")?.status, "False");
    assert_eq!(
        condition(&job, "Suspended")?,
        Condition::new(
            "Suspended",
            "True",
            "PyTorchJobSuspended",
            "PyTorchJob pt is suspended."
        )
    );

    site.jobs.merge("pt", &suspend(false)).await?;
    site.until_running("pt", 2).await?;
    site.go().await?;
    let job = site.until_true("pt", "Succeeded").await?;
    assert!(!is_true(&job, "Suspended"), "{}", job["status"]);
    site.finish(&format!(
        "{leaving} looks at a suspended job with active pods on their way out"
    ))
    .await
}

#[tokio::test]
async fn a_deleted_job_takes_its_pods_and_services_along() -> Result<()> {
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
        let pods = look::pods(&site.client, &site.namespace, "pt").await?;
        let services = look::services(&site.client, &site.namespace, "pt").await?;
        Ok(if pods.is_empty() && services.is_empty() {
            Seen::Yes(())
        } else {
            let names = (look::names(&pods), look::names(&services));
            Seen::NotYet(format!("{names:?}"))
        })
    })
    .await?;
    let summary = site.auditor.summary();
    assert!(
        summary.values().all(|churn| churn.creates == 1),
        "{summary:?}"
    );
    site.finish(&format!("{}: pods and services collected", said.trim()))
        .await
}
