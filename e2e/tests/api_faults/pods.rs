//! F-60, F-61, F-65: what nodes, schedulers and collectors do to pods, and odd pod statuses.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use e2e::for_each_kind;
use e2e::lives::has_succeeded;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};
use training_core::GroupKind;
use training_testkit::builders::{EVERY_KIND, KINDS, Kind, MPI, SPARK, TRAINING};
use training_testkit::job::{counters, is_finished};
use training_testkit::kubelet::State;
use training_testkit::proxy::{Action, Gate, Rule};
use training_testkit::wait::{HANG, Seen, eventually, holds_for};

use super::campaign::on;
use super::driver::{FaultTest, JOB, Phase, WORKER};
use super::life::{Life, WORKERS};

/// Something happens to the worker while the job is created, and again while it runs; each time the worker is replaced, and `counted` is
/// how often this counts against the backoff limit. All kinds run in parallel.
async fn befalls(
    name: &str,
    counted: i64,
    happens: impl AsyncFn(&FaultTest) -> Result<()>,
) -> Result<()> {
    let one = |kind| befalls_one(Life(kind), name, counted, &happens);
    for_each_kind(KINDS, one).await
}

async fn befalls_one(
    life: Life,
    name: &str,
    counted: i64,
    happens: &impl AsyncFn(&FaultTest) -> Result<()>,
) -> Result<()> {
    let Some(mut test) = FaultTest::of(life, name).await? else {
        return Ok(());
    };
    test.begin(Phase::Creating).await?;
    test.world
        .kubelet
        .until_pods(test.namespace(), JOB, 3)
        .await?;
    for _ in 0..2 {
        let old = test.worker().await?;
        happens(&test).await?;
        test.until_another(&old).await?;
        test.end(Phase::Creating).await?;
    }
    let job = test.world.jobs.get(JOB).await?;
    let failures = job["status"]["countedFailures"]
        .as_i64()
        .unwrap_or_default();
    assert_eq!(failures, counted, "{}", job["status"]);
    test.run_phase(Phase::Finishing).await?;
    test.assert_worker_made(3);
    test.assert_clean().await
}

#[tokio::test]
async fn f_60_a_pod_that_the_kubelet_evicts_is_replaced_and_counts() -> Result<()> {
    befalls("f60kubelet", 2, async |test| {
        test.world
            .kubelet
            .set(test.namespace(), WORKER, &State::Evicted)
            .await
    })
    .await
}

#[tokio::test]
async fn f_60_a_pod_that_is_preempted_or_evicted_is_replaced_for_nothing() -> Result<()> {
    for reason in ["PreemptionByScheduler", "EvictionByEvictionAPI"] {
        befalls("f60preempted", 0, async |test| {
            test.world
                .kubelet
                .disrupt(test.namespace(), WORKER, reason)
                .await
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn f_60_a_pod_that_does_not_end_is_waited_for() -> Result<()> {
    // The node is lost, the pod is deleted, and its object stays.
    befalls("f60stuck", 0, async |test| {
        let (kubelet, namespace) = (&test.world.kubelet, test.namespace());
        kubelet.finish_deletes(false);
        kubelet.set(namespace, WORKER, &State::Running).await?;
        kubelet.set(namespace, WORKER, &State::NodeLost).await?;
        let old = test.worker().await?;
        kubelet
            .disrupt(namespace, WORKER, "DeletionByTaintManager")
            .await?;
        holds_for(Duration::from_secs(2), async || {
            anyhow::ensure!(test.worker().await? == old, "a second pod of one index");
            let job = test.world.jobs.get(JOB).await?;
            anyhow::ensure!(!is_finished(&job), "{}", job["status"]);
            Ok(())
        })
        .await?;
        kubelet.finish_deletes(true);
        Ok(())
    })
    .await
}

async fn success_stored(kind: Kind) -> Result<()> {
    let Some(mut test) = FaultTest::of(Life(kind), "f61").await? else {
        return Ok(());
    };
    test.run_phase(Phase::Creating).await?;
    let kubelet = &test.world.kubelet;
    kubelet
        .set(test.namespace(), WORKER, &State::Succeeded)
        .await?;
    let stored = |job: &Value| counters(job, "Worker").get("succeeded") == Some(&1);
    test.world
        .jobs
        .until(JOB, "with a success stored", stored)
        .await?;
    kubelet.disappear(test.namespace(), WORKER).await?;
    // Another reconcile that must consider the whole job.
    let worker = "pt-worker-0";
    test.world
        .kubelet
        .fail(test.namespace(), worker, 137)
        .await?;
    eventually("the other worker's replacement", HANG, async || {
        let made = test.world.auditor.summary();
        let creates = made
            .get(&format!("Pod/{worker}"))
            .map_or(0, |churn| churn.creates);
        Ok(if creates == 2 {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{made:?}"))
        })
    })
    .await?;
    test.relist().await?;
    test.world
        .kubelet
        .until_pods(test.namespace(), JOB, 2)
        .await?;
    test.run_phase(Phase::Finishing).await?;
    let ranks = test.life.ranks(WORKERS);
    let made = |rank| (rank, if rank == worker { 2 } else { 1 });
    let made: Vec<_> = ranks.iter().map(String::as_str).map(made).collect();
    test.assert_made(&made);
    test.assert_clean().await
}

#[tokio::test]
async fn f_61_a_rank_whose_success_is_stored_does_not_run_again() -> Result<()> {
    for_each_kind(KINDS, success_stored).await
}

async fn success_unseen(kind: Kind) -> Result<()> {
    let Some(mut test) = FaultTest::of(Life(kind), "f61blind").await? else {
        return Ok(());
    };
    for phase in [Phase::Creating, Phase::Running] {
        if phase == Phase::Creating {
            test.begin(phase).await?;
            test.world
                .kubelet
                .until_pods(test.namespace(), JOB, 3)
                .await?;
        }
        // The pod's end and its deletion are held back; a list then skips both.
        let gate = Gate::closed();
        let deaf: Rule = on(
            test.namespace(),
            ("watch", "pods"),
            Action::HoldEvents(gate.clone()),
        );
        test.rule(std::slice::from_ref(&deaf));
        test.proxy.cut().await?;
        let old = test.worker().await?;
        test.world
            .kubelet
            .set(test.namespace(), WORKER, &State::Succeeded)
            .await?;
        test.world
            .kubelet
            .disappear(test.namespace(), WORKER)
            .await?;
        test.until_hit(&[deaf], 1).await?;
        test.relist().await?;
        gate.open();
        test.until_another(&old).await?;
        test.end(Phase::Creating).await?;
    }
    let job = test.world.jobs.get(JOB).await?;
    assert!(!is_finished(&job), "{}", job["status"]);
    test.run_phase(Phase::Finishing).await?;
    test.assert_worker_made(3);
    test.assert_clean().await
}

#[tokio::test]
async fn f_61_a_success_that_nobody_saw_runs_again_once() -> Result<()> {
    for_each_kind(KINDS, success_unseen).await
}

/// For kinds where the end of one pod is the end of the job.
async fn end_stored(kind: Kind) -> Result<()> {
    let Some(mut test) = FaultTest::of(Life(kind), "f61end").await? else {
        return Ok(());
    };
    for phase in Phase::ALL {
        test.run_phase(phase).await?;
    }
    let (kubelet, namespace) = (&test.world.kubelet, test.namespace());
    let ended = kubelet.pods(namespace, JOB);
    anyhow::ensure!(!ended.is_empty(), "no pod of a job that has ended");
    for pod in ended {
        kubelet.disappear(namespace, &pod.name).await?;
    }
    if kind == MPI {
        // A deletion of finished Jobs removes the launcher's as well.
        let jobs: Api<Job> = Api::namespaced(test.world.client.clone(), namespace);
        let background = DeleteParams::background();
        jobs.delete("pt-launcher", &background).await?;
    }
    eventually("its pods to be gone", HANG, async || {
        let pods = kubelet.pods(namespace, JOB);
        Ok(if pods.is_empty() {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{pods:?}"))
        })
    })
    .await?;
    let auditor = &test.world.auditor;
    let made = || {
        let all = auditor.summary_of(JOB).into_iter();
        all.map(|(object, churn)| (object, churn.creates))
            .collect::<BTreeMap<_, _>>()
    };
    auditor.settled().await?;
    let before = made();
    // The operator lists everything again, and goes on with new events.
    test.relist().await?;
    test.world.jobs.create(&Life(kind).canary("after")).await?;
    test.run_beside("after").await?;
    auditor.settled().await?;
    assert_eq!(made(), before, "it runs again");
    let job = test.world.jobs.get(JOB).await?;
    assert!(has_succeeded(&job), "{}", job["status"]);
    test.assert_clean().await
}

#[tokio::test]
async fn f_61_a_job_whose_end_is_stored_does_not_run_again_without_its_pods() -> Result<()> {
    for_each_kind([MPI, SPARK], end_stored).await
}

/// A pod status that no kubelet writes: the patch, and what happens to the worker.
struct Odd {
    name: &'static str,
    status: Value,
    then: Then,
}

#[derive(PartialEq)]
enum Then {
    /// The pod stays, and the job runs on.
    Stays,
    /// It is replaced.
    Replaced,
}

/// Runs the case for every kind in parallel.
async fn odd(odd: Odd) -> Result<()> {
    for_each_kind(EVERY_KIND, |kind| odd_one(Life(kind), &odd)).await
}

async fn odd_one(life: Life, odd: &Odd) -> Result<()> {
    let Some(mut test) = FaultTest::of(life, odd.name).await? else {
        return Ok(());
    };
    let pods: Api<Pod> = Api::namespaced(test.world.client.clone(), test.namespace());
    let says = Patch::Merge(json!({ "status": odd.status }));
    test.begin(Phase::Creating).await?;
    test.world
        .kubelet
        .until_pods(test.namespace(), JOB, life.pods(WORKERS))
        .await?;
    for phase in [Phase::Creating, Phase::Running] {
        let old = test.worker().await?;
        pods.patch_status(life.victim(), &PatchParams::default(), &says)
            .await?;
        match odd.then {
            Then::Replaced => test.until_another(&old).await?,
            Then::Stays => {
                holds_for(Duration::from_secs(1), async || {
                    let job = test.world.jobs.get(JOB).await?;
                    anyhow::ensure!(!Life::has_ended(&job), "{}", job["status"]);
                    anyhow::ensure!(test.worker().await? == old, "it was replaced");
                    Ok(())
                })
                .await?;
            }
        }
        if phase == Phase::Creating || odd.then == Then::Replaced {
            test.end(Phase::Creating).await?;
        }
    }
    let job = test.world.jobs.get(JOB).await?;
    assert!(!Life::has_failed(&job), "{}", job["status"]);
    test.run_phase(Phase::Finishing).await?;
    test.assert_clean().await
}

#[tokio::test]
async fn f_65_failed_without_a_word_of_the_containers() -> Result<()> {
    // Under ExitCode the exit code decides; without one, the pod may not even have started.
    odd(Odd {
        name: "f65failed",
        status: json!({ "phase": "Failed", "containerStatuses": null }),
        then: Then::Replaced,
    })
    .await
}

#[tokio::test]
async fn f_65_running_and_then_pending_again() -> Result<()> {
    odd(Odd {
        name: "f65pending",
        status: json!({ "phase": "Pending" }),
        then: Then::Stays,
    })
    .await
}

#[tokio::test]
async fn f_65_a_phase_that_nobody_knows() -> Result<()> {
    odd(Odd {
        name: "f65phase",
        status: json!({ "phase": "Dreaming" }),
        then: Then::Stays,
    })
    .await
}

async fn fewer_restarts(kind: Kind) -> Result<()> {
    let Some(mut test) = FaultTest::of(Life(kind), "f65restarts").await? else {
        return Ok(());
    };
    test.begin(Phase::Creating).await?;
    test.world
        .kubelet
        .until_pods(test.namespace(), JOB, 3)
        .await?;
    for (restarts, highest) in [(2, 2), (1, 2), (0, 2)] {
        test.world
            .kubelet
            .restart_in_place(test.namespace(), WORKER, restarts)
            .await?;
        let known = |job: &Value| job["status"]["containerRestarts"] == highest;
        test.world
            .jobs
            .until(JOB, "with its restarts", known)
            .await?;
        test.end(Phase::Creating).await?;
    }
    let job = test.world.jobs.get(JOB).await?;
    assert_eq!(job["status"]["containerRestarts"], 2, "{}", job["status"]);
    test.run_phase(Phase::Finishing).await?;
    test.assert_clean().await
}

#[tokio::test]
async fn f_65_restarts_that_go_down_are_not_forgotten() -> Result<()> {
    for_each_kind(KINDS, fewer_restarts).await
}

async fn no_exit_code(kind: Kind) -> Result<()> {
    let Some(mut test) = FaultTest::of(Life(kind), "f65succeeded").await? else {
        return Ok(());
    };
    test.run_phase(Phase::Creating).await?;
    let pods: Api<Pod> = Api::namespaced(test.world.client.clone(), test.namespace());
    let says = json!({ "phase": "Succeeded", "containerStatuses": null });
    for pod in Life(kind).ranks(WORKERS).iter().rev() {
        e2e::set_pod_status(&pods, pod, says.clone()).await?;
    }
    test.end(Phase::Finishing).await?;
    test.assert_clean().await
}

#[tokio::test]
async fn f_65_succeeded_without_an_exit_code() -> Result<()> {
    // The Job controller reads the launcher's end.
    let kinds = EVERY_KIND.into_iter().filter(|kind| *kind != MPI);
    for_each_kind(kinds, no_exit_code).await
}

/// The status of a node whose clock is an hour ahead: all pods have the same times, and one ends before it began.
fn ahead(kind: Kind, state: &str, finished: Option<&str>) -> Patch<Value> {
    let hour = Timestamp::now() + SignedDuration::from_hours(1);
    let hour = hour.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let how = match finished {
        None => json!({ "running": { "startedAt": hour } }),
        Some(finished) => json!({ "terminated": {
            "exitCode": 137, "reason": "Error", "startedAt": hour, "finishedAt": finished,
        }}),
    };
    Patch::Merge(json!({ "status": {
        "phase": state, "startTime": hour,
        "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": hour }],
        "containerStatuses": [{
            "name": kind.container, "image": "i", "imageID": "", "ready": finished.is_none(),
            "restartCount": 0, "state": how,
        }],
    }}))
}

async fn clock_ahead(kind: Kind) -> Result<()> {
    let Some(mut test) = FaultTest::of(Life(kind), "f66").await? else {
        return Ok(());
    };
    test.begin(Phase::Creating).await?;
    let pods: Api<Pod> = Api::namespaced(test.world.client.clone(), test.namespace());
    let says = async |pod: &str, patch: Patch<Value>| {
        pods.patch_status(pod, &PatchParams::default(), &patch)
            .await
    };
    let hour = Timestamp::now() + SignedDuration::from_hours(2);
    let later = hour.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let now = training_testkit::kubelet::now();
    let ranks = Life(kind).ranks(WORKERS);
    // The second replacement waits for its backoff, from the failure on and not from the node's time.
    for finished in [now, later] {
        let kubelet = &test.world.kubelet;
        kubelet.until_pods(test.namespace(), JOB, 3).await?;
        for pod in &ranks {
            says(pod, ahead(kind, "Running", None)).await?;
        }
        test.until_active().await?;
        let old = test.worker().await?;
        says(WORKER, ahead(kind, "Failed", Some(&finished))).await?;
        test.until_another(&old).await?;
    }
    test.end(Phase::Creating).await?;
    // No repeated work may be left.
    let times = |job: &Value| job["status"].to_string();
    let job = test.world.jobs.get(JOB).await?;
    assert!(!times(&job).contains("\"-"), "{}", job["status"]);
    test.world.auditor.settled().await?;
    test.proxy.clear_records();
    let before = test.metric("trainyard_reconciles_total").await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    // A busy loop reconciles at least five times a second.
    let reconciles = test.metric("trainyard_reconciles_total").await? - before;
    assert!(reconciles < 5, "{reconciles} reconciles without a change");
    let busy = test.proxy.records();
    let busy: Vec<_> = busy.iter().filter(|r| r.call.is_job_write()).collect();
    assert!(busy.len() < 3, "{busy:?}");
    test.run_phase(Phase::Finishing).await?;
    test.assert_worker_made(3);
    test.assert_clean().await
}

#[tokio::test]
async fn f_66_a_node_whose_clock_is_ahead_delays_nothing() -> Result<()> {
    for_each_kind(KINDS, clock_ahead).await
}

async fn group_deleted(kind: Kind) -> Result<()> {
    let Some(test) = FaultTest::of(Life(kind), "f67").await? else {
        return Ok(());
    };
    let mut test = test.flag("gang", "native");
    test.world.grant_gang("native").await?;
    let group = GroupKind::PodGroup;
    let groups: Api<DynamicObject> = Api::namespaced_with(
        test.world.client.clone(),
        test.namespace(),
        &group.resource(group.versions()[0]),
    );
    test.begin(Phase::Creating).await?;
    let pods = test.world.kubelet.until_pods(test.namespace(), JOB, 3);
    let pods: Vec<String> = pods.await?.into_iter().map(|pod| pod.uid).collect();
    test.end(Phase::Creating).await?;
    // The group is deleted while all pods run.
    let before = groups.get(JOB).await?.metadata.uid;
    let now = DeleteParams::default().grace_period(0);
    groups.delete(JOB, &now).await?;
    let strip = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    eventually("another group", HANG, async || {
        let group = groups.get_opt(JOB).await?;
        if let Some(terminating) = group
            .as_ref()
            .filter(|g| g.metadata.deletion_timestamp.is_some())
        {
            // Removes the finalizer that waits for the group's last pod.
            let name = terminating.metadata.name.as_deref().unwrap_or_default();
            groups.patch(name, &PatchParams::default(), &strip).await?;
        }
        let new = group.is_some_and(|group| group.metadata.uid != before);
        Ok(if new {
            Seen::Yes(())
        } else {
            Seen::NotYet("none, or the old one".into())
        })
    })
    .await?;
    let still = test.world.kubelet.pods(test.namespace(), JOB);
    let still: Vec<String> = still.into_iter().map(|pod| pod.uid).collect();
    assert_eq!(still, pods, "running pods were touched");
    test.run_phase(Phase::Finishing).await?;
    test.assert_life();
    test.assert_clean().await
}

#[tokio::test]
async fn f_67_a_group_that_somebody_deletes_is_made_again() -> Result<()> {
    for_each_kind(TRAINING, group_deleted).await
}
