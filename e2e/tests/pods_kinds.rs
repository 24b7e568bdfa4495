//! Jobs of the kinds beside `PyTorchJob` with real containers: killed, deleted and evicted pods, suspension, and run limits. `PyTorchJob`
//! has test programs of its own, which check more.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::pods::{
    Event, Row, Site, UNTIL_GO, Weight, active, attempt, container, delete, eventually, pair_of,
    said, shell_of,
};
use e2e::read;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::EvictParams;
use serde_json::{Map, Value, json};
use training_testkit::builders::{Job, Kind};
use training_testkit::job::{conditions, is_true};
use training_testkit::wait::{Seen, holds_for};

/// Long enough to see that something does not happen.
const STAYS: Duration = Duration::from_secs(2);
/// How long finished jobs stay in these tests. Units: seconds; long enough to be seen.
const TTL: i64 = 8;

/// A namespace for one test.
async fn site(kind: Kind, prefix: &str) -> Result<Site> {
    Site::of(kind, &format!("{prefix}-{}", kind.container), Weight::Light).await
}

/// A master and a worker that run until the test ends them.
fn waiting(kind: &Kind, name: &str) -> Job {
    let pod = shell_of(kind, UNTIL_GO);
    pair_of(kind, name, pod.clone(), pod)
}

/// Types and statuses of a job's conditions; checks that each has the published reason.
fn states(kind: &Kind, job: &Value) -> Vec<(String, String)> {
    let conditions = conditions(job).into_iter();
    conditions
        .map(|c| {
            assert!(c.reason.starts_with(kind.name), "{c:?}");
            (c.kind, c.status)
        })
        .collect()
}

/// The end of a job without a permanent failure.
async fn ends_well(site: &Site, name: &str, restarts: u32) -> Result<Vec<Event>> {
    let kind = &site.kind;
    let job = site.until_true(name, "Succeeded").await?;
    let expected = [
        ("Created", "True"),
        ("Running", "False"),
        ("Succeeded", "True"),
    ];
    let expected = expected.map(|(kind, status)| (kind.to_owned(), status.to_owned()));
    assert_eq!(states(kind, &job), expected);
    let reason = format!("{}Succeeded", kind.name);
    let row = Row::new("Succeeded", "2/2", restarts, &reason);
    assert_eq!(site.row(name)?, row);
    site.events(name, &reason).await
}

/// How often a pod of these tests was created.
fn made(site: &Site, pod: &str) -> u32 {
    site.summary()[&format!("Pod/{pod}")].creates
}

async fn a_killed_worker_is_started_again_in_its_pod(kind: Kind) -> Result<()> {
    let site = site(kind, "inplace").await?;
    if !site.cluster.is_open() {
        e2e::skip("the processes of this cluster are out of reach");
        return Ok(());
    }
    site.jobs.create(&waiting(&kind, "job").build()).await?;
    site.until_running("job", 2).await?;
    let before = site.pod("job-worker-0").await?;
    site.cluster.kill(container(&before)?)?;
    let job = site
        .until("job", "restarted and ready", |job| {
            job["status"]["restarts"] == 1 && job["status"]["ready"] == "2/2"
        })
        .await?;
    let after = site.pod("job-worker-0").await?;
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    let failure = &job["status"]["lastFailure"];
    assert_eq!(failure["exitCode"], 137, "{failure}");
    site.go().await?;
    let events = ends_well(&site, "job", 1).await?;
    said(&events, "Warning", "ContainerRestarted")?;
    assert_eq!(made(&site, "job-worker-0"), 1);
    site.finish("exit code 137, one restart by the kubelet, the same pod")
        .await
}

async fn a_worker_killed_under_exit_code_is_replaced(kind: Kind) -> Result<()> {
    let site = site(kind, "sigkill").await?;
    if !site.cluster.is_open() {
        e2e::skip("the processes of this cluster are out of reach");
        return Ok(());
    }
    let job = waiting(&kind, "job").restart_policy("Worker", "ExitCode");
    site.jobs.create(&job.build()).await?;
    site.until_running("job", 2).await?;
    let worker = site.pod("job-worker-0").await?;
    site.cluster.kill(container(&worker)?)?;
    let new = site.until_replaced(&worker).await?;
    assert_eq!(attempt(&new), "0.1");
    site.until("job", "ready", |job| {
        job["status"]["ready"] == "2/2" && is_true(job, "Running")
    })
    .await?;
    site.go().await?;
    let events = ends_well(&site, "job", 1).await?;
    let told = said(&events, "Warning", "PodFailed")?;
    let expected = "Pod job-worker-0: exit code 137: was killed (SIGKILL)";
    assert!(told.starts_with(expected), "{told}");
    said(&events, "Warning", &format!("{}Restarting", kind.name))?;
    assert_eq!(made(&site, "job-worker-0"), 2);
    assert_eq!(made(&site, "job-master-0"), 1);
    site.finish(told).await
}

async fn deleted_and_evicted_workers_are_replaced_free_of_charge(kind: Kind) -> Result<()> {
    let site = site(kind, "taken").await?;
    for name in ["deleted", "evicted"] {
        // A counted failure would end these jobs at once.
        let job = waiting(&kind, name).run_policy("backoffLimit", 0);
        site.jobs.create(&job.build()).await?;
    }
    for name in ["deleted", "evicted"] {
        site.until_running(name, 2).await?;
        let worker = site.pod(&format!("{name}-worker-0")).await?;
        let of = read::name(&worker);
        if name == "deleted" {
            delete(&site.pods(), &of).await?;
        } else {
            site.pods().evict(&of, &EvictParams::default()).await?;
        }
        site.until_replaced(&worker).await?;
        site.until(name, "ready", |job| job["status"]["ready"] == "2/2")
            .await?;
    }
    site.go().await?;
    let events = ends_well(&site, "deleted", 0).await?;
    assert!(events.iter().all(|e| e.0 == "Normal"), "{events:?}");
    let events = ends_well(&site, "evicted", 1).await?;
    let told = said(&events, "Warning", "PodFailed")?;
    assert!(told.contains("eviction"), "{told}");
    for name in ["deleted", "evicted"] {
        let status = &site.jobs.get(name).await?["status"];
        assert_eq!(status["countedFailures"], Value::Null, "{status}");
        assert_eq!(made(&site, &format!("{name}-worker-0")), 2);
        assert_eq!(made(&site, &format!("{name}-master-0")), 1);
    }
    site.finish(told).await
}

async fn a_suspended_job_has_no_pods_and_is_resumed_from_its_edited_template(
    kind: Kind,
) -> Result<()> {
    let site = site(kind, "suspend").await?;
    let worker = |says: &str| shell_of(&kind, &format!("echo {says}; {UNTIL_GO}"));
    let job = pair_of(&kind, "job", shell_of(&kind, UNTIL_GO), worker("before"));
    site.jobs.create(&job.build()).await?;
    site.until_running("job", 2).await?;
    let suspend = json!({ "spec": { "runPolicy": { "suspend": true } } });
    site.jobs.merge("job", &suspend).await?;
    eventually("a suspended job without pods", async || {
        // The job is read first: no pod may still run that ran when the status showed none active.
        let job = site.jobs.get("job").await?;
        let pods = read::pods(&site.client, &site.namespace, "job").await?;
        let rests = is_true(&job, "Suspended") && active(&job) == 0;
        let runs = |pod: &&Value| pod["status"]["phase"] == "Running";
        // A panic, because an error here would only be retried.
        assert!(!rests || !pods.iter().any(|p| runs(&p)), "{pods:?}");
        Ok(if rests && pods.is_empty() {
            Seen::Yes(())
        } else {
            Seen::NotYet(job["status"].to_string())
        })
    })
    .await?;
    assert_eq!(site.row("job")?.state, "Suspended");
    let template = json!({ "Worker": { "template": { "spec": worker("after") } } });
    let mut spec = Map::from_iter([(kind.replica_map.to_owned(), template)]);
    spec.insert("runPolicy".into(), json!({ "suspend": false }));
    site.jobs.merge("job", &json!({ "spec": spec })).await?;
    let pods = site.until_running("job", 2).await?;
    assert!(pods.iter().all(|pod| attempt(pod) == "1.0"), "{pods:?}");
    site.until_says("job-worker-0", "after").await?;
    site.go().await?;
    let job = site.until_true("job", "Succeeded").await?;
    let suspended = ("Suspended".to_owned(), "False".to_owned());
    assert!(states(&kind, &job).contains(&suspended), "{job}");
    let events = site
        .events("job", &format!("{}Succeeded", kind.name))
        .await?;
    said(&events, "Normal", &format!("{}Suspended", kind.name))?;
    said(&events, "Normal", &format!("{}Resumed", kind.name))?;
    site.finish("suspended without pods, resumed from another template")
        .await
}

async fn a_job_fails_at_its_deadline(kind: Kind) -> Result<()> {
    let site = site(kind, "deadline").await?;
    for policy in ["None", "Running"] {
        let job = waiting(&kind, &policy.to_lowercase()).run_policy("cleanPodPolicy", policy);
        site.jobs.create(&job.build()).await?;
    }
    for name in ["none", "running"] {
        site.until_running(name, 2).await?;
        let begun = time(&site.jobs.get(name).await?["status"]["startTime"])?;
        let deadline = Timestamp::now().as_second() - begun.as_second() + 2;
        let limit = json!({ "spec": { "runPolicy": { "activeDeadlineSeconds": deadline } } });
        site.jobs.merge(name, &limit).await?;
        let job = site.until_true(name, "Failed").await?;
        site.assert_why(name, "FAILED", &["DeadlineExceeded"])?;
        let due = begun.checked_add(SignedDuration::from_secs(deadline))?;
        assert!(time(&job["status"]["completionTime"])? >= due, "{job}");
        let events = site.events(name, "DeadlineExceeded").await?;
        let told = said(&events, "Warning", "DeadlineExceeded")?;
        let expected = format!("runPolicy.activeDeadlineSeconds is {deadline}");
        assert_eq!(told, expected);
    }
    site.until_no_pods("running").await?;
    holds_for(STAYS, async || {
        let pods = read::pods(&site.client, &site.namespace, "none").await?;
        ensure!(pods.len() == 2, "{:?}", read::names(&pods));
        Ok(())
    })
    .await?;
    let events = site.events("none", "PodsStillRunning").await?;
    let still = said(&events, "Warning", "PodsStillRunning")?.to_owned();
    site.finish(&still).await
}

async fn a_worker_that_fails_again_and_again_uses_up_the_backoff_limit(kind: Kind) -> Result<()> {
    let site = site(kind, "backoff").await?;
    let worker = shell_of(&kind, "echo 'no such bucket' >&2; exit 3");
    let job = pair_of(&kind, "job", shell_of(&kind, UNTIL_GO), worker)
        .run_policy("backoffLimit", 2)
        .run_policy("cleanPodPolicy", "All");
    site.jobs.create(&job.build()).await?;
    let job = site.until_true("job", "Failed").await?;
    site.until_no_pods("job").await?;
    let cause = "BackoffLimitExceeded: exit 3 in job-worker-0: no such bucket";
    site.assert_why("job", "FAILED", &[cause])?;
    let failure = job["status"]["lastFailure"].to_string();
    assert!(failure.contains("no such bucket"), "{failure}");
    let events = site.events("job", "BackoffLimitExceeded").await?;
    let hint = said(&events, "Warning", "BackoffLimitExceeded")?.to_owned();
    assert!(hint.contains("runPolicy.backoffLimit is 2"), "{hint}");
    assert_eq!(made(&site, "job-worker-0"), 1);
    site.finish(&hint).await
}

async fn an_ended_job_is_deleted_with_all_its_objects_at_the_end_of_its_ttl(
    kind: Kind,
) -> Result<()> {
    let site = site(kind, "ttl").await?;
    let done = shell_of(&kind, "true");
    let job = pair_of(&kind, "job", done.clone(), done).run_policy("ttlSecondsAfterFinished", TTL);
    site.jobs.create(&job.build()).await?;
    let job = site.until_true("job", "Succeeded").await?;
    let completed = time(&job["status"]["completionTime"])?;
    eventually("no job", async || {
        Ok(if site.jobs.exists("job").await? {
            Seen::NotYet("it is there".to_owned())
        } else {
            Seen::Yes(())
        })
    })
    .await?;
    let due = completed.checked_add(SignedDuration::from_secs(TTL))?;
    assert!(Timestamp::now() >= due, "it went before {due}");
    site.until_no_pods("job").await?;
    eventually("no services", async || {
        let services = read::services(&site.client, &site.namespace, "job").await?;
        Ok(if services.is_empty() {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{:?}", read::names(&services)))
        })
    })
    .await?;
    site.finish("the job, its pods and services are gone").await
}

/// A time in a status.
fn time(value: &Value) -> Result<Timestamp> {
    Ok(value.as_str().context("no time")?.parse()?)
}

/// Repeats these tests for both kinds.
macro_rules! with_both {
    ($($what:ident)*) => {
        mod tf_job {
            $(
                #[tokio::test]
                async fn $what() -> anyhow::Result<()> {
                    super::$what(training_testkit::builders::TENSORFLOW).await
                }
            )*
        }

        mod xgboost_job {
            $(
                #[tokio::test]
                async fn $what() -> anyhow::Result<()> {
                    super::$what(training_testkit::builders::XGBOOST).await
                }
            )*
        }
    };
}

with_both!(
    a_killed_worker_is_started_again_in_its_pod
    a_worker_killed_under_exit_code_is_replaced
    deleted_and_evicted_workers_are_replaced_free_of_charge
    a_suspended_job_has_no_pods_and_is_resumed_from_its_edited_template
    a_job_fails_at_its_deadline
    a_worker_that_fails_again_and_again_uses_up_the_backoff_limit
    an_ended_job_is_deleted_with_all_its_objects_at_the_end_of_its_ttl
);
