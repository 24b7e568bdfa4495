//! The example: four ranks that compute together, while pods are killed or the job is suspended.

use anyhow::{Context as _, Result, ensure};
use e2e::pods::{Site, Weight, after, attempt, container, eventually, example, said};
use e2e::read;
use serde_json::{Value, json};
use training_testkit::builders::{Kind, MPI};
use training_testkit::job::Jobs;
use training_testkit::wait::Seen;

use super::{
    assert_first_attempt, assert_ranks_on, launchers, log, suspended, until_printed, workers,
};

const LAUNCHER: &str = "/spec/mpiReplicaSpecs/Launcher/template/spec/containers/0";

async fn site(prefix: &str) -> Result<Site> {
    super::site(prefix, Weight::Heavy).await
}

/// The example with fewer points and a pause in each step, which gives the test time to act.
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

/// Checks the hosts of the ranks, and returns the line with their solution.
pub(super) fn assert_solved_on<T: AsRef<str>>(log: &str, expected: &[T]) -> Result<String> {
    assert_ranks_on(log, expected)?;
    let solved = log.lines().find(|line| line.starts_with("solved in"));
    Ok(solved.with_context(|| log.to_owned())?.to_owned())
}

/// Waits until the program has made some steps.
async fn until_it_computes(site: &Site, job: &str) -> Result<()> {
    until_printed(site, job, "points,").await.map(drop)
}

#[tokio::test]
async fn the_example_solves_its_equation_on_both_workers_without_root() -> Result<()> {
    let site = site("mpi-poisson").await?;
    site.enforce_restricted().await?;
    site.jobs.create(&example("mpi/poisson.yaml")?).await?;
    let job = site.until_true("poisson", "Succeeded").await?;
    let saw = assert_solved_on(&log(&site, "poisson").await?, &workers("poisson", 2))?;
    assert_eq!(job["status"]["replicaStatuses"]["Launcher"]["succeeded"], 1);
    assert_first_attempt(&site, "poisson").await?;
    let events = site.events("poisson", "MPIJobSucceeded").await?;
    said(&events, "Normal", "MPIJobCreated")?;
    said(&events, "Normal", "MPIJobRunning")?;
    eventually("no worker", async || {
        let left = read::pods(&site.client, &site.namespace, "poisson").await?;
        Ok(if left.len() == 1 {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{:?}", read::names(&left)))
        })
    })
    .await?;
    site.finish(&saw).await
}

#[tokio::test]
async fn the_example_estimates_pi_on_both_workers() -> Result<()> {
    let site = site("mpi-pi").await?;
    site.jobs.create(&example("mpi/pi.yaml")?).await?;
    site.until_true("pi", "Succeeded").await?;
    let log = log(&site, "pi").await?;
    assert_ranks_on(&log, &workers("pi", 2))?;
    let pi: f64 = after(&log, "pi is about ")?.parse()?;
    ensure!((3.1..3.2).contains(&pi), "{log}");
    site.finish(&format!("pi is about {pi}")).await
}

#[tokio::test]
async fn a_worker_that_is_killed_is_made_again_and_the_next_attempt_finds_it() -> Result<()> {
    let site = site("mpi-killed").await?;
    if !site.cluster.is_open() {
        e2e::skip("the processes of this cluster are out of reach");
        return Ok(());
    }
    let mut job = poisson(192, "0.02")?;
    let launcher = job.pointer_mut(LAUNCHER).context("no launcher")?;
    let mpirun = launcher["command"].take();
    // Open MPI 5.0.7 sometimes exits with 0 although it lost a host, so check the program's output.
    let solved = "\"$@\" | tee /tmp/said && grep -q '^solved in' /tmp/said";
    launcher["command"] = json!(["sh", "-c", solved, "sh"]);
    launcher["args"] = mpirun;
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
    ensure!(pods.len() >= 2, "{:?}", read::names(&pods));
    let saw = assert_solved_on(&log(&site, "poisson").await?, &workers("poisson", 2))?;
    site.finish(&format!("killed once, {} attempts, {saw}", pods.len()))
        .await
}

#[tokio::test]
async fn a_job_is_suspended_while_it_computes_and_computes_again_when_it_is_resumed() -> Result<()>
{
    let site = site("mpi-suspend").await?;
    site.jobs.create(&poisson(192, "0.02")?).await?;
    until_it_computes(&site, "poisson").await?;
    site.jobs.merge("poisson", &suspended(true)).await?;
    site.until_true("poisson", "Suspended").await?;
    site.until_no_pods("poisson").await?;
    site.until("poisson", "free of pods", |job| {
        let counts = &job["status"]["replicaStatuses"];
        counts["Launcher"]["active"].is_null() && counts["Worker"]["active"].is_null()
    })
    .await?;
    site.jobs.merge("poisson", &suspended(false)).await?;
    site.until_true("poisson", "Succeeded").await?;
    let saw = assert_solved_on(&log(&site, "poisson").await?, &workers("poisson", 2))?;
    site.finish(&format!("suspended once, {saw}")).await
}

#[tokio::test]
async fn a_job_of_v1_runs_over_ssh_as_well() -> Result<()> {
    let site = site("mpi-v1").await?;
    let mut job = poisson(192, "0")?;
    job["apiVersion"] = json!("kubeflow.org/v1");
    let v1 = Kind {
        version: "v1",
        ..MPI
    };
    let jobs = Jobs::of(site.client.clone(), &site.namespace, &v1.resource());
    let stored = jobs.create(&job).await?;
    assert_eq!(stored["spec"]["submittedAs"], "v1");
    let done = site.until_true("poisson", "Succeeded").await?;
    assert_eq!(done["spec"]["submittedAs"], "v1");
    // In v1 the launcher has the role master.
    let pods = read::pods(&site.client, &site.namespace, "poisson").await?;
    let launcher = pods
        .iter()
        .find(|p| p["metadata"]["labels"]["training.kubeflow.org/job-role"] == "master");
    ensure!(launcher.is_some(), "{:?}", read::names(&pods));
    let saw = assert_solved_on(&log(&site, "poisson").await?, &workers("poisson", 2))?;
    site.finish(&saw).await
}
