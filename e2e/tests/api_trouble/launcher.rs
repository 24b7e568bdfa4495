//! What prevents the launcher of an `MPIJob` from starting or from being deleted. The real Job controller creates its pod.

use std::time::Instant;

use k8s_openapi::api::core::v1::ResourceQuota;
use training_testkit::builders::MPI;
use training_testkit::job::Jobs;
use training_testkit::kubelet::SeenPod;

use super::*;

const IMAGE: &str = "registry.test/mpi-operator:1";
const GATE: &str = "trainyard-wait-for-hosts";

/// Starts a job with one running worker, and returns its launcher's pod.
async fn launched(world: &World) -> Result<SeenPod> {
    let job = MPI.job("pi").role("Launcher", 1).workers(1);
    launch(world, &world.jobs, &job.build()).await
}

async fn launch(world: &World, jobs: &Jobs, job: &Value) -> Result<SeenPod> {
    jobs.create(job).await?;
    let launcher = next_launcher(world, None).await?;
    let (kubelet, namespace) = (&world.kubelet, world.namespace());
    kubelet
        .set(namespace, "pi-worker-0", &State::Running)
        .await?;
    Ok(launcher)
}

/// Waits until the launcher has another pod than this one, on a node.
async fn next_launcher(world: &World, old: Option<&SeenPod>) -> Result<SeenPod> {
    eventually("a launcher's pod", HANG, async || {
        let pods = world.kubelet.pods(world.namespace(), "pi");
        let worker = pods.iter().any(|p| p.name == "pi-worker-0" && p.bound);
        let launcher = pods.iter().find(|p| {
            let other = old.is_none_or(|old| p.uid != old.uid);
            p.name.starts_with("pi-launcher-") && p.bound && other
        });
        Ok(match launcher.filter(|_| worker) {
            Some(pod) => Seen::Yes(pod.clone()),
            None => Seen::NotYet(format!("{pods:?}")),
        })
    })
    .await
}

async fn until_stalled(world: &World, reason: &str) -> Result<String> {
    let stalled = |job: &Value| {
        let by = |c: training_testkit::job::Condition| c.reason == reason;
        is_true(job, "Stalled") && job::condition(job, "Stalled").is_ok_and(by)
    };
    let what = format!("stalled by {reason}");
    let job = world.jobs.until("pi", &what, stalled).await?;
    Ok(job::condition(&job, "Stalled")?.message)
}

async fn until_mended(world: &World) -> Result<()> {
    let mended = |job: &Value| job::condition(job, "Stalled").is_ok_and(|c| c.status == "False");
    world.jobs.until("pi", "going on", mended).await.map(drop)
}

/// The launcher runs and succeeds.
async fn ends_well(world: &World, launcher: &SeenPod) -> Result<()> {
    let (kubelet, namespace) = (&world.kubelet, world.namespace());
    kubelet
        .set(namespace, &launcher.name, &State::Running)
        .await?;
    world.jobs.until_true("pi", "Running").await?;
    kubelet
        .set(namespace, &launcher.name, &State::Succeeded)
        .await?;
    world.jobs.until_true("pi", "Succeeded").await.map(drop)
}

#[tokio::test]
async fn an_init_container_of_ours_for_another_architecture_is_told_with_its_image_and_ways_out()
-> Result<()> {
    let Some(world) = World::of(MPI, "architecture", lockstep()).await? else {
        return Ok(());
    };
    let kubeconfig = world.control.kubeconfig(&MPI.user()).await?;
    let options = world
        .options(&kubeconfig)
        .flag("launcher-gate-image", IMAGE);
    let operator = OperatorProcess::start(options).await?;
    let first = launched(&world).await?;
    let no_platform = "no matching manifest for linux/arm64/v8 in the manifest list entries";
    let no_exec = "exec /mpi-operator: exec format error";
    let waits = |reason: &str, message: &str| State::InitWaiting {
        reason: reason.to_owned(),
        message: message.to_owned(),
    };
    let failed = State::InitFailed {
        exit_code: 255,
        message: no_exec.to_owned(),
    };
    let back_off = format!("Back-off pulling image \"{IMAGE}\": ErrImagePull: {no_platform}");
    let states = [
        (
            "ImagePullBackOff",
            waits("ErrImagePull", no_platform),
            no_platform,
        ),
        (
            "ImagePullBackOff",
            waits("ImagePullBackOff", &back_off),
            no_platform,
        ),
        (
            "RunContainerError",
            waits("RunContainerError", no_exec),
            no_exec,
        ),
        ("RunContainerError", failed, no_exec),
    ];
    for (reason, state, said) in states {
        world
            .kubelet
            .set(world.namespace(), &first.name, &state)
            .await?;
        let message = until_stalled(&world, reason).await?;
        for words in [
            GATE,
            IMAGE,
            "is not for the node's architecture",
            "--launcher-gate-image",
            "trainyard.dev/launcher-gate: \"false\"",
            "--launcher-gate=false",
            said,
        ] {
            ensure!(message.contains(words), "{words}: {message}");
        }
    }
    // The Job retries it, which alone clears nothing.
    let second = next_launcher(&world, Some(&first)).await?;
    ensure!(is_true(&world.jobs.get("pi").await?, "Stalled"));
    let running = State::Running;
    world
        .kubelet
        .set(world.namespace(), &second.name, &running)
        .await?;
    until_mended(&world).await?;
    ends_well(&world, &second).await?;
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn f60_a_lost_launcher_is_given_up_with_the_right_for_it_and_its_job_makes_another()
-> Result<()> {
    let Some(world) = World::of(MPI, "lost-launcher", lockstep()).await? else {
        return Ok(());
    };
    let kubeconfig = world.control.kubeconfig(&MPI.user()).await?;
    let options = world
        .options(&kubeconfig)
        .flag("force-delete-lost-after", "2s")
        .flag("backoff-cap", "2s")
        .flag("events", "full");
    let operator = OperatorProcess::start(options).await?;
    let old = launched(&world).await?;
    let (kubelet, namespace) = (&world.kubelet, world.namespace());
    kubelet.set(namespace, &old.name, &State::Running).await?;
    world.jobs.until_true("pi", "Running").await?;
    let begin = world.control.audit()?.mark().await?;
    let since = Instant::now();
    // Its node no longer finishes deletions.
    kubelet.finish_deletes(false);
    kubelet.set(namespace, &old.name, &State::NodeLost).await?;
    let message = until_stalled(&world, "Forbidden").await?;
    ensure!(message.contains("pods/status"), "{message}");
    ensure!(
        kubelet
            .pods(namespace, "pi")
            .iter()
            .any(|p| p.uid == old.uid)
    );
    // No repeated attempts.
    tokio::time::sleep(STAYS).await;
    let audit = world.control.audit()?;
    let asked = audit.by_user(begin, &MPI.user()).await?;
    let patches = asked
        .iter()
        .filter(|e| e.namespace == namespace && e.what() == "patch pods/status");
    let tries = patches.count();
    // Each attempt is followed by a backoff of at least a second.
    let most = 2 + usize::try_from(since.elapsed().as_secs())?;
    ensure!((1..=most).contains(&tries), "{tries} of {most} tries");
    world.grant("options/lost-pods").await?;
    let new = next_launcher(&world, Some(&old)).await?;
    eventually("the lost pod to be gone", HANG, async || {
        let pods = kubelet.pods(namespace, "pi");
        Ok(if pods.iter().all(|p| p.uid != old.uid) {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{pods:?}"))
        })
    })
    .await?;
    kubelet.finish_deletes(true);
    until_mended(&world).await?;
    let events = read::events_with(&world.client, namespace, "pi", "LostPodDeleted").await?;
    let told = events.iter().find(|e| e.1 == "LostPodDeleted");
    let told = told.context("no event")?;
    ensure!(
        told.0 == "Warning" && told.2.contains(&old.name),
        "{told:?}"
    );
    ends_well(&world, &new).await?;
    // Unlike in `World::assert_clean`, some requests were denied at first.
    operator.assert_no_panic()?;
    world.kubelet.assert_no_errors()?;
    world.auditor.assert_clean().await
}

/// The launcher's Job has a backoff limit of zero.
#[tokio::test]
async fn f_60_a_launcher_of_v1_whose_node_is_drained_runs_again() -> Result<()> {
    let Some(world) = World::of(MPI, "drained", lockstep()).await? else {
        return Ok(());
    };
    let operator = world.operator().await?;
    let mut v1 = MPI.resource();
    v1.version = "v1".to_owned();
    v1.api_version = "kubeflow.org/v1".to_owned();
    let jobs = Jobs::of(world.client.clone(), world.namespace(), &v1);
    let job = MPI.job("pi").role("Launcher", 1).workers(1);
    let mut job = job.restart_policy("Launcher", "Never").build();
    job["apiVersion"] = json!(v1.api_version);
    let old = launch(&world, &jobs, &job).await?;
    let (kubelet, namespace) = (&world.kubelet, world.namespace());
    kubelet.set(namespace, &old.name, &State::Running).await?;
    world.jobs.until_true("pi", "Running").await?;
    kubelet
        .disrupt(namespace, &old.name, "EvictionByEvictionAPI")
        .await?;
    let new = next_launcher(&world, Some(&old)).await?;
    ends_well(&world, &new).await?;
    world.assert_clean(&operator).await
}

/// The Job counts such a pod as its own and deletes it, because it wants only one pod.
#[tokio::test]
async fn mt_53_a_forged_launcher_is_named_once_and_the_job_goes_on() -> Result<()> {
    let Some(world) = World::of(MPI, "forged-launcher", lockstep()).await? else {
        return Ok(());
    };
    let kubeconfig = world.control.kubeconfig(&MPI.user()).await?;
    let operator = OperatorProcess::start(world.options(&kubeconfig)).await?;
    let launcher = launched(&world).await?;
    let (kubelet, namespace) = (&world.kubelet, world.namespace());
    kubelet
        .set(namespace, &launcher.name, &State::Running)
        .await?;
    world.jobs.until_true("pi", "Running").await?;
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), namespace);
    let real = pods.get(&launcher.name).await?.metadata;
    let mut forged: Pod = serde_json::from_value(json!({
        "metadata": { "name": "forged" },
        "spec": { "containers": [{ "name": "a", "image": "i" }], "restartPolicy": "Never" },
    }))?;
    forged.metadata.labels = real.labels;
    forged.metadata.owner_references = real.owner_references;
    // The controller of Jobs deletes the pod at once, so without this the operator may never see it.
    forged.metadata.finalizers = Some(vec!["test.trainyard.dev/seen".to_owned()]);
    pods.create(&PostParams::default(), &forged).await?;
    let reason = "UnknownLauncherPod";
    read::events_with(&world.client, namespace, "pi", reason).await?;
    let seen = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    pods.patch("forged", &PatchParams::default(), &seen).await?;
    ends_well(&world, &launcher).await?;
    let events = read::events_with(&world.client, namespace, "pi", "MPIJobSucceeded").await?;
    let named: Vec<_> = events.iter().filter(|e| e.1 == reason).collect();
    ensure!(named.len() == 1, "{events:?}");
    ensure!(named[0].2.contains("pod forged "), "{events:?}");
    // No auditor, because the forged pod violates its invariants.
    operator.assert_no_panic()
}

#[tokio::test]
async fn a_launcher_beyond_the_quota_stalls_its_job_until_the_quota_is_raised() -> Result<()> {
    let Some(world) = World::of(MPI, "launcher-quota", lockstep()).await? else {
        return Ok(());
    };
    let operator = world.operator().await?;
    let quotas: Api<ResourceQuota> = Api::namespaced(world.client.clone(), world.namespace());
    let quota = serde_json::from_value(json!({
        "metadata": { "name": "one" }, "spec": { "hard": { "pods": "1" } },
    }))?;
    quotas.create(&PostParams::default(), &quota).await?;
    eventually("the quota to be counted", HANG, async || {
        let status = quotas.get("one").await?.status.unwrap_or_default();
        Ok(match status.hard {
            Some(_) => Seen::Yes(()),
            None => Seen::NotYet("not yet".into()),
        })
    })
    .await?;
    // So the worker comes first.
    let job = MPI.job("pi").role("Launcher", 1).workers(1);
    let job = job.set("/spec/launcherCreationPolicy", "WaitForWorkersReady");
    world.jobs.create(&job.build()).await?;
    let (kubelet, namespace) = (&world.kubelet, world.namespace());
    kubelet.until_pods(namespace, "pi", 1).await?;
    kubelet.all_running(namespace, "pi").await?;
    let message = until_stalled(&world, "LauncherPodMissing").await?;
    ensure!(
        message.starts_with("Job pi-launcher has created no pod for 30 s."),
        "{message}"
    );
    let raise = json!({ "spec": { "hard": { "pods": "5" } } });
    quotas
        .patch("one", &PatchParams::default(), &Patch::Merge(&raise))
        .await?;
    let launcher = next_launcher(&world, None).await?;
    until_mended(&world).await?;
    ends_well(&world, &launcher).await?;
    world.assert_clean(&operator).await
}
