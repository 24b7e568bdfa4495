//! `MPIJob` with real MPI over SSH: what ranks say of the hosts that they run on, not only that the job succeeded.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use e2e::look;
use e2e::pods::{Site, Weight, attempt, container, eventually, example, said};
use serde_json::{Value, json};
use training_testkit::builders::MPI;
use training_testkit::wait::Seen;

const LAUNCHER: &str = "/spec/mpiReplicaSpecs/Launcher/template/spec/containers/0";

async fn site(prefix: &str) -> Result<Site> {
    Site::of(MPI, prefix, Weight::Heavy).await
}

/// The example, on fewer points: every step waits for a moment, so that there is time for what a test does.
fn poisson(points: u32, pause: &str) -> Result<Value> {
    let mut job = example("mpi/poisson.yaml")?;
    let launcher = job.pointer_mut(LAUNCHER).context("no launcher")?;
    let command = launcher["command"].as_array_mut().context("no command")?;
    let at = command
        .iter()
        .position(|word| word == "-n")
        .context("no -n")?;
    for word in ["-x", "POINTS", "-x", "SLEEP_PER_STEP"].iter().rev() {
        command.insert(at, json!(word));
    }
    launcher["env"] = json!([
        { "name": "POINTS", "value": points.to_string() },
        { "name": "SLEEP_PER_STEP", "value": pause },
    ]);
    Ok(job)
}

/// The pods of the launcher, in the order in which they were made.
async fn launchers(site: &Site, job: &str) -> Result<Vec<Value>> {
    let mut pods = look::pods(&site.client, &site.namespace, job).await?;
    pods.retain(|pod| pod["metadata"]["labels"]["training.kubeflow.org/job-role"] == "launcher");
    let made = |pod: &Value| {
        pod["metadata"]["creationTimestamp"]
            .as_str()
            .map(str::to_owned)
    };
    pods.sort_by_key(made);
    Ok(pods)
}

/// What the last of the launcher's pods has printed.
async fn log(site: &Site, job: &str) -> Result<String> {
    let pods = launchers(site, job).await?;
    let last = pods.last().context("no launcher")?;
    site.log(&look::name(last)).await
}

/// The hosts that the ranks of the last run were on.
fn hosts(log: &str) -> BTreeSet<String> {
    let last_run = log.rfind("rank 0 of").map_or("", |at| &log[at..]);
    let lines = last_run.lines().filter(|line| line.starts_with("rank "));
    lines
        .filter_map(|line| line.rsplit_once(" on "))
        .map(|(_, host)| host.to_owned())
        .collect()
}

fn assert_solved_on(log: &str, expected: &[&str]) -> Result<String> {
    let hosts = hosts(log);
    ensure!(
        hosts
            .iter()
            .map(String::as_str)
            .eq(expected.iter().copied()),
        "{hosts:?}: {log}"
    );
    let solved = log.lines().find(|line| line.starts_with("solved in"));
    Ok(solved.with_context(|| log.to_owned())?.to_owned())
}

/// Waits until the program has made some steps.
async fn until_it_computes(site: &Site, job: &str) -> Result<()> {
    eventually("the first steps", async || {
        let log = log(site, job).await.unwrap_or_default();
        Ok(if log.contains("points,") {
            Seen::Yes(())
        } else {
            Seen::NotYet(log)
        })
    })
    .await
}

const BOTH: [&str; 2] = ["poisson-worker-0", "poisson-worker-1"];

#[tokio::test]
async fn the_example_solves_its_equation_on_both_workers_without_root() -> Result<()> {
    let site = site("mpi-poisson").await?;
    site.enforce_restricted().await?;
    site.jobs.create(&example("mpi/poisson.yaml")?).await?;
    let job = site.until_true("poisson", "Succeeded").await?;
    let saw = assert_solved_on(&log(&site, "poisson").await?, &BOTH)?;
    assert_eq!(job["status"]["replicaStatuses"]["Launcher"]["succeeded"], 1);
    let pods = launchers(&site, "poisson").await?;
    assert_eq!(pods.len(), 1, "no attempt was burnt");
    let events = site.events("poisson", "MPIJobSucceeded").await?;
    said(&events, "Normal", "MPIJobCreated")?;
    said(&events, "Normal", "MPIJobRunning")?;
    eventually("no worker", async || {
        let left = look::pods(&site.client, &site.namespace, "poisson").await?;
        Ok(if left.len() == 1 {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{:?}", look::names(&left)))
        })
    })
    .await?;
    site.finish(&saw).await
}

#[tokio::test]
async fn the_launcher_runs_ranks_too_where_it_is_asked_to() -> Result<()> {
    let site = site("mpi-works").await?;
    let mut job = poisson(192, "0")?;
    job["spec"]["runLauncherAsWorker"] = json!(true);
    job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] = json!(1);
    site.jobs.create(&job).await?;
    site.until_true("poisson", "Succeeded").await?;
    let hosts = ["poisson-launcher", "poisson-worker-0"];
    let saw = assert_solved_on(&log(&site, "poisson").await?, &hosts)?;
    site.finish(&saw).await
}

#[tokio::test]
async fn a_worker_that_is_killed_is_made_again_and_the_next_attempt_finds_it() -> Result<()> {
    let site = site("mpi-killed").await?;
    if !site.cluster.is_open() {
        eprintln!("mpi-killed: skipped, its processes are out of reach");
        return Ok(());
    }
    let mut job = poisson(192, "0.02")?;
    job["spec"]["runPolicy"]["backoffLimit"] = json!(2);
    job["spec"]["mpiReplicaSpecs"]["Launcher"]["restartPolicy"] = json!("Never");
    site.jobs.create(&job).await?;
    until_it_computes(&site, "poisson").await?;
    let worker = site.pod("poisson-worker-1").await?;
    site.cluster.kill(container(&worker)?)?;
    let again = site.until_replaced(&worker).await?;
    assert_eq!(attempt(&again), "0.1");
    site.until_true("poisson", "Succeeded").await?;
    let pods = launchers(&site, "poisson").await?;
    ensure!(pods.len() >= 2, "{:?}", look::names(&pods));
    let saw = assert_solved_on(&log(&site, "poisson").await?, &BOTH)?;
    site.finish(&format!("killed once, {} attempts, {saw}", pods.len()))
        .await
}

#[tokio::test]
async fn a_job_is_suspended_while_it_computes_and_computes_again_when_it_is_resumed() -> Result<()>
{
    let site = site("mpi-suspend").await?;
    site.jobs.create(&poisson(192, "0.02")?).await?;
    until_it_computes(&site, "poisson").await?;
    let suspend = |suspend: bool| json!({ "spec": { "runPolicy": { "suspend": suspend } } });
    site.jobs.merge("poisson", &suspend(true)).await?;
    site.until_true("poisson", "Suspended").await?;
    site.until_no_pods("poisson").await?;
    site.until("poisson", "free of pods", |job| {
        let counts = &job["status"]["replicaStatuses"];
        counts["Launcher"]["active"].is_null() && counts["Worker"]["active"].is_null()
    })
    .await?;
    site.jobs.merge("poisson", &suspend(false)).await?;
    site.until_true("poisson", "Succeeded").await?;
    let saw = assert_solved_on(&log(&site, "poisson").await?, &BOTH)?;
    site.finish(&format!("suspended once, {saw}")).await
}

#[tokio::test]
async fn a_job_of_v1_runs_over_ssh_as_well() -> Result<()> {
    let site = site("mpi-v1").await?;
    let mut job = poisson(192, "0")?;
    job["apiVersion"] = json!("kubeflow.org/v1");
    let v1 = training_testkit::builders::Kind {
        version: "v1",
        ..MPI
    };
    let jobs =
        training_testkit::job::Jobs::of(site.client.clone(), &site.namespace, &v1.resource());
    let stored = jobs.create(&job).await?;
    assert_eq!(stored["spec"]["submittedAs"], "v1");
    let done = site.until_true("poisson", "Succeeded").await?;
    assert_eq!(done["spec"]["submittedAs"], "v1");
    // In v1 the launcher speaks as master.
    let pods = look::pods(&site.client, &site.namespace, "poisson").await?;
    let launcher = pods
        .iter()
        .find(|p| p["metadata"]["labels"]["training.kubeflow.org/job-role"] == "master");
    let log = site
        .log(&look::name(launcher.context("no launcher")?))
        .await?;
    let saw = assert_solved_on(&log, &BOTH)?;
    site.finish(&saw).await
}

/// The example as root, with the MPI of another image, as short as a manifest can be: everything else is a default.
fn as_root(implementation: &str, image: &str, mpirun: &[&str]) -> Value {
    let pod = |command: Option<Vec<&str>>| {
        let mut container = json!({
            "name": "main", "image": image, "imagePullPolicy": "IfNotPresent",
            "resources": { "requests": { "cpu": "20m", "memory": "64Mi" } },
        });
        if let Some(command) = command {
            container["command"] = json!(command);
        }
        json!({ "spec": { "containers": [container], "terminationGracePeriodSeconds": 1 } })
    };
    let mut command = mpirun.to_vec();
    command.extend(["-n", "2", "python3", "/opt/trainyard/poisson.py"]);
    json!({
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": { "name": "poisson" },
        "spec": {
            "mpiImplementation": implementation,
            "runPolicy": { "cleanPodPolicy": "Running", "activeDeadlineSeconds": 240 },
            "mpiReplicaSpecs": {
                "Launcher": { "replicas": 1, "template": pod(Some(command)) },
                "Worker": { "replicas": 2, "template": pod(None) },
            },
        },
    })
}

/// Runs it twice: what works by chance does not do so for long.
async fn runs_as_root(
    prefix: &str,
    implementation: &str,
    image: &str,
    mpirun: &[&str],
) -> Result<()> {
    let site = site(prefix).await?;
    let mut saw = Vec::new();
    for name in ["one", "two"] {
        let mut job = as_root(implementation, image, mpirun);
        job["metadata"]["name"] = json!(name);
        site.jobs.create(&job).await?;
        site.until_true(name, "Succeeded").await?;
        let hosts = [format!("{name}-worker-0"), format!("{name}-worker-1")];
        saw.push(assert_solved_on(
            &log(&site, name).await?,
            &hosts.each_ref().map(String::as_str),
        )?);
        let pods = launchers(&site, name).await?;
        assert_eq!(pods.len(), 1, "no attempt was burnt");
    }
    site.finish(&saw.join("; ")).await
}

#[tokio::test]
async fn open_mpi_4_runs_as_root() -> Result<()> {
    let mpirun = ["mpirun", "--allow-run-as-root", "--bind-to", "none"];
    runs_as_root("mpi-openmpi4", "OpenMPI", "trainyard/openmpi4:1", &mpirun).await
}

#[tokio::test]
async fn mpich_runs_as_root() -> Result<()> {
    runs_as_root("mpi-mpich", "MPICH", "trainyard/mpich:1", &["mpirun"]).await
}

#[tokio::test]
async fn intel_mpi_runs_as_root() -> Result<()> {
    runs_as_root("mpi-intel", "Intel", "trainyard/intelmpi:1", &["mpirun"]).await
}
