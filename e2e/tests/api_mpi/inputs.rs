//! Odd cases for an MPIJob: a foreign Secret of its name, a launcher that doesn't end, an evicted worker.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::{World, read};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};
use training_testkit::builders::{Job, MPI};
use training_testkit::kubelet::{State, lockstep};
use training_testkit::operator::OperatorProcess;
use training_testkit::wait::{HANG, Seen, eventually, holds_for};

/// Long enough to see that something does not happen.
const STAYS: Duration = Duration::from_secs(2);
const PRIVATE: &str = "ssh-privatekey";

fn job(name: &str) -> Job {
    MPI.job(name).role("Launcher", 1).workers(1)
}

async fn launchers(world: &World, job: &str) -> Result<Vec<Pod>> {
    let api: Api<Pod> = Api::namespaced(world.client.clone(), world.namespace());
    let labels =
        format!("training.kubeflow.org/job-name={job},training.kubeflow.org/job-role=launcher");
    Ok(api
        .list(&ListParams::default().labels(&labels))
        .await?
        .items)
}

/// The Secret that a launcher mounts.
fn mounted(launcher: &Pod) -> Option<String> {
    let volumes = launcher.spec.as_ref()?.volumes.iter().flatten();
    let mut keys = volumes.filter(|v| v.name == "ssh-auth");
    keys.next()?.secret.as_ref()?.secret_name.clone()
}

#[tokio::test]
async fn b_182_b_186_mt_19_keys_are_of_one_job_and_a_secret_that_was_there_is_not_used()
-> Result<()> {
    let Some(world) = World::of(MPI, "mpi-keys", lockstep()).await? else {
        return Ok(());
    };
    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), world.namespace());
    let planted: Secret = serde_json::from_value(json!({
        "metadata": { "name": "one-ssh", "labels": { "app": "one" } },
        "type": "kubernetes.io/ssh-auth",
        "stringData": { PRIVATE: "planted", "ssh-publickey": "planted" },
    }))?;
    secrets.create(&PostParams::default(), &planted).await?;
    let operator = world.operator().await?;
    let mut keys = Vec::new();
    for (name, expected) in [("one", "one-ssh-1"), ("two", "two-ssh")] {
        world.jobs.create(&job(name).build()).await?;
        world.kubelet.until_pods(world.namespace(), name, 2).await?;
        let launcher = launchers(&world, name).await?;
        let launcher = launcher.first().context("no launcher")?;
        assert_eq!(mounted(launcher).as_deref(), Some(expected));
        let volumes = serde_json::to_value(&launcher.spec)?["volumes"].clone();
        let keys_of = volumes.as_array().into_iter().flatten();
        let mode = keys_of
            .filter(|v| v["name"] == "ssh-auth")
            .map(|v| v["secret"]["defaultMode"].clone())
            .next();
        assert_eq!(mode, Some(json!(0o600)), "for exactly /root/.ssh");
        let secret = secrets.get(expected).await?;
        let uid = world.jobs.get(name).await?["metadata"]["uid"].clone();
        assert_eq!(json!(secret.owner_references()[0].uid), uid);
        keys.push(secret.data.context("no keys")?[PRIVATE].0.clone());
    }
    assert_ne!(keys[0], keys[1]);
    let there = secrets.get("one-ssh").await?;
    assert_eq!(there.data.context("no data")?[PRIVATE].0, b"planted");

    // They are deleted with their job, and the next job of the same name has new ones.
    let before = launchers(&world, "two").await?;
    world.jobs.delete("two").await?;
    eventually("the keys to be gone", HANG, async || {
        let gone = secrets.get_opt("two-ssh").await?.is_none();
        Ok(if gone {
            Seen::Yes(())
        } else {
            Seen::NotYet("there".into())
        })
    })
    .await?;
    world.jobs.create(&job("two").build()).await?;
    // The garbage collector may still be deleting the pods of the first job.
    let name = eventually("the successor's launcher", HANG, async || {
        let there = launchers(&world, "two").await?;
        let another = there
            .iter()
            .find(|pod| before.iter().all(|old| old.uid() != pod.uid()));
        Ok(match another {
            Some(pod) => Seen::Yes(mounted(pod).context("no keys")?),
            None => Seen::NotYet(format!("{} launchers", there.len())),
        })
    })
    .await?;
    let again = secrets.get(&name).await?.data.context("no keys")?;
    assert_ne!(again[PRIVATE].0, keys[1]);
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn a_resumed_job_requests_its_secret_again_which_exists_unless_somebody_deleted_it()
-> Result<()> {
    let Some(world) = World::of(MPI, "mpi-renew", lockstep()).await? else {
        return Ok(());
    };
    let (proxy, operator) = world.proxied_operator().await?;
    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), world.namespace());
    let suspend = async |suspend: bool| {
        let change = json!({ "spec": { "runPolicy": { "suspend": suspend } } });
        world.jobs.merge("pi", &change).await?;
        let pods = if suspend { 0 } else { 2 };
        let pods = world.kubelet.until_pods(world.namespace(), "pi", pods);
        pods.await
    };
    world.jobs.create(&job("pi").build()).await?;
    world.kubelet.until_pods(world.namespace(), "pi", 2).await?;
    let first = secrets.get("pi-ssh").await?;
    for (is_deleted, code) in [(false, 409), (true, 201)] {
        suspend(true).await?;
        world.jobs.until_true("pi", "Suspended").await?;
        if is_deleted {
            secrets.delete("pi-ssh", &DeleteParams::default()).await?;
        }
        proxy.clear_records();
        suspend(false).await?;
        // Pods are created in parallel, and keys take their time.
        eventually("an answer", HANG, async || {
            let mut posts = proxy.records();
            posts.retain(|record| record.call.is("create", "secrets"));
            let codes: Vec<_> = posts.iter().map(|record| record.code).collect();
            Ok(if codes == [Some(code)] {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{codes:?}"))
            })
        })
        .await?;
        let secret = secrets.get("pi-ssh").await?;
        assert_eq!(secret.uid() != first.uid(), is_deleted);
    }
    world.kubelet.all_running(world.namespace(), "pi").await?;
    world.actor("pi").launcher_succeeds().await?;
    world.jobs.until_true("pi", "Succeeded").await?;
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn the_list_of_a_hundred_workers_is_written_after_twice_the_status_delay() -> Result<()> {
    const WORKERS: u32 = 100;
    let Some(world) = World::of(MPI, "mpi-many", lockstep()).await? else {
        return Ok(());
    };
    let (proxy, kubeconfig) = world.proxy().await?;
    let options = world.options(&kubeconfig).flag("status-delay", "1s");
    let operator = OperatorProcess::start(options).await?;
    let many = MPI.job("pi").role("Launcher", 1).workers(WORKERS);
    world.jobs.create(&many.build()).await?;
    let all = usize::try_from(WORKERS)? + 1;
    let (kubelet, namespace) = (&world.kubelet, world.namespace());
    kubelet.until_pods(namespace, "pi", all).await?;
    let lists = || {
        let mut writes = proxy.records();
        writes.retain(|record| record.call.is("patch", "configmaps"));
        writes
    };
    // Each of them changes the list.
    for worker in 0..WORKERS {
        let pod = format!("pi-worker-{worker}");
        kubelet.set(namespace, &pod, &State::Running).await?;
        // Together about twice the time of four lists.
        tokio::time::sleep(Duration::from_millis(180)).await;
        if lists().len() > 3 {
            break;
        }
    }
    let lists = lists();
    ensure!(lists.len() > 3, "only {}", lists.len());
    for pair in lists.windows(2) {
        let between = pair[1].at - pair[0].at;
        ensure!(between >= Duration::from_millis(1900), "{between:?}");
    }
    kubelet.all_running(namespace, "pi").await?;
    world.actor("pi").launcher_succeeds().await?;
    world.jobs.until_true("pi", "Succeeded").await?;
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn b_185_there_is_no_second_launcher_until_the_first_is_gone() -> Result<()> {
    let Some(world) = World::of(MPI, "mpi-stuck", lockstep()).await? else {
        return Ok(());
    };
    let operator = world.operator().await?;
    world.jobs.create(&job("pi").build()).await?;
    world.kubelet.until_pods(world.namespace(), "pi", 2).await?;
    world.kubelet.all_running(world.namespace(), "pi").await?;
    world.jobs.until_true("pi", "Running").await?;
    world.kubelet.finish_deletes(false);
    let first = launchers(&world, "pi").await?;
    let first = first.first().context("no launcher")?.clone();
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), world.namespace());
    pods.delete(&first.name_any(), &DeleteParams::default())
        .await?;
    holds_for(STAYS, async || {
        let there = launchers(&world, "pi").await?;
        ensure!(there.len() == 1, "{} launchers", there.len());
        Ok(())
    })
    .await?;
    world.kubelet.finish_deletes(true);
    eventually("another launcher", HANG, async || {
        let there = launchers(&world, "pi").await?;
        let another = there.iter().any(|pod| pod.uid() != first.uid());
        Ok(if another && there.len() == 1 {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{} launchers", there.len()))
        })
    })
    .await?;
    world.kubelet.until_pods(world.namespace(), "pi", 2).await?;
    world.actor("pi").launcher_succeeds().await?;
    world.jobs.until_true("pi", "Succeeded").await?;
    world.assert_clean(&operator).await
}

/// Puts the worker into a state, and waits for another one.
async fn until_recreated(world: &World, state: &State) -> Result<()> {
    let (kubelet, namespace) = (&world.kubelet, world.namespace());
    kubelet.set(namespace, "pi-worker-0", state).await?;
    eventually("another worker", HANG, async || {
        let pods = kubelet.pods(namespace, "pi");
        let new = pods
            .iter()
            .any(|p| p.name == "pi-worker-0" && p.replica.incarnation == 1 && p.bound);
        Ok(if new {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{pods:?}"))
        })
    })
    .await
}

#[tokio::test]
async fn a_worker_that_exits_with_zero_is_recreated_if_the_launcher_goes_on() -> Result<()> {
    let Some(world) = World::of(MPI, "mpi-exited", lockstep()).await? else {
        return Ok(());
    };
    let operator = world.operator().await?;
    let (kubelet, namespace) = (&world.kubelet, world.namespace());
    world.jobs.create(&job("pi").build()).await?;
    kubelet.until_pods(namespace, "pi", 2).await?;
    kubelet.all_running(namespace, "pi").await?;
    world.jobs.until_true("pi", "Running").await?;
    until_recreated(&world, &State::Succeeded).await?;
    read::events_with(&world.client, namespace, "pi", "WorkerExited").await?;
    kubelet.all_running(namespace, "pi").await?;
    let again = |job: &Value| job["status"]["ready"] == "2/2" && job["status"]["restarts"] == 1;
    world.jobs.until("pi", "with its worker", again).await?;
    // Both end together, the worker a little earlier.
    kubelet
        .set(namespace, "pi-worker-0", &State::Succeeded)
        .await?;
    world.actor("pi").launcher_succeeds().await?;
    let job = world.jobs.until_true("pi", "Succeeded").await?;
    ensure!(job["status"]["restarts"] == 1, "{}", job["status"]);
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn b_184_the_limits_of_a_job_hold_also_where_a_worker_was_evicted() -> Result<()> {
    let Some(world) = World::of(MPI, "mpi-evicted", lockstep()).await? else {
        return Ok(());
    };
    let operator = world.operator().await?;
    let job = job("pi")
        .restart_policy("Launcher", "Never")
        .run_policy("backoffLimit", 0)
        .run_policy("cleanPodPolicy", "Running");
    world.jobs.create(&job.build()).await?;
    world.kubelet.until_pods(world.namespace(), "pi", 2).await?;
    world.kubelet.all_running(world.namespace(), "pi").await?;
    world.jobs.until_true("pi", "Running").await?;
    until_recreated(&world, &State::Evicted).await?;
    let job = world.jobs.get("pi").await?;
    ensure!(
        !training_testkit::job::is_finished(&job),
        "{}",
        job["status"]
    );
    world.actor("pi").launcher_fails().await?;
    let job = world.jobs.until_true("pi", "Failed").await?;
    let reason = training_testkit::job::condition(&job, "Failed")?.reason;
    ensure!(reason.starts_with("BackoffLimitExceeded"), "{reason}");
    eventually("no worker", HANG, async || {
        let pods = world.kubelet.pods(world.namespace(), "pi");
        let left: Vec<&str> = pods
            .iter()
            .filter(|p| p.replica.role == "worker")
            .map(|p| p.name.as_str())
            .collect();
        Ok(if left.is_empty() {
            Seen::Yes(())
        } else {
            Seen::NotYet(left.join(", "))
        })
    })
    .await?;
    world.assert_clean(&operator).await
}

/// Checks that need only the manifest.
#[tokio::test]
async fn b_180_b_181_b_183_what_a_job_can_ask_for_is_checked_before_it_is_stored() -> Result<()> {
    let Some(world) = World::of(MPI, "mpi-asked", lockstep()).await? else {
        return Ok(());
    };
    let operator = world.operator().await?;
    let path = "/spec/sshAuthMountPath";
    let mount = "/spec/mpiReplicaSpecs/Worker/template/spec/containers/0/volumeMounts";
    let volumes = "/spec/mpiReplicaSpecs/Worker/template/spec/volumes";
    let (implementation, keys) = ("/spec/mpiImplementation", "spec.sshAuthMountPath");
    let supported = "supported values: \"OpenMPI\", \"Intel\", \"MPICH\"";
    let refused = [
        (
            job("b180").set(implementation, "LAM"),
            "spec.mpiImplementation",
            supported,
        ),
        (job("b181a").set(path, ""), keys, "should match"),
        (job("b181b").set(path, "relative"), keys, "should match"),
        (job("b181c").set(path, "/"), keys, "should match"),
    ];
    for (job, field, text) in refused {
        let job = job.build();
        let error = world.jobs.create(&job).await.expect_err("it was stored");
        let Some(kube::Error::Api(status)) = error.downcast_ref::<kube::Error>() else {
            return Err(error);
        };
        let mut causes = status.details.iter().flat_map(|d| &d.causes);
        let first = causes.next().map(|c| c.field.as_str());
        assert_eq!((status.code, first), (422, Some(field)));
        ensure!(status.message.contains(text), "{}", status.message);
    }
    // Equal to a user's mount: the job fails with a message.
    let taken = job("b181d")
        .set(path, "/keys")
        .set(volumes, json!([{ "name": "mine", "emptyDir": {} }]))
        .set(mount, json!([{ "name": "mine", "mountPath": "/keys" }]));
    world.jobs.create(&taken.build()).await?;
    let failed = world.jobs.until_true("b181d", "Failed").await?;
    let said = training_testkit::job::condition(&failed, "Failed")?;
    ensure!(
        said.message.contains("volumeMounts[0].mountPath"),
        "{said:?}"
    );
    // As published: any other value waits for the workers.
    let odd = job("b183").set("/spec/launcherCreationPolicy", "Sometimes");
    world.jobs.create(&odd.build()).await?;
    world
        .kubelet
        .until_pods(world.namespace(), "b183", 1)
        .await?;
    let stored: Value = world.jobs.get("b183").await?;
    assert_eq!(stored["spec"]["launcherCreationPolicy"], "Sometimes");
    world.kubelet.all_running(world.namespace(), "b183").await?;
    world
        .kubelet
        .until_pods(world.namespace(), "b183", 2)
        .await?;
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn b_062_hosts_that_no_config_map_can_hold_end_the_job_before_any_pod() -> Result<()> {
    let Some(world) = World::of(MPI, "mpi-hosts", lockstep()).await? else {
        return Ok(());
    };
    let operator = world.operator().await?;
    // A line of the host file has more than a hundred characters.
    let name = "h".repeat(48);
    let large = MPI.job(&name).role("Launcher", 1).workers(12_000);
    world.jobs.create(&large.build()).await?;
    let failed = world.jobs.until_true(&name, "Failed").await?;
    let said = training_testkit::job::condition(&failed, "Failed")?;
    ensure!(said.reason == "InvalidSpec", "{said:?}");
    ensure!(said.message.contains("1048576"), "{said:?}");
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), world.namespace());
    ensure!(pods.list(&ListParams::default()).await?.items.is_empty());
    let configs: Api<ConfigMap> = Api::namespaced(world.client.clone(), world.namespace());
    ensure!(configs.get_opt(&format!("{name}-config")).await?.is_none());
    world.assert_clean(&operator).await
}
