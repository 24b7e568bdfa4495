//! Manifests in the shapes of the existing operators' users, unchanged except for image and size.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use e2e::pods::{Site, Weight};
use e2e::read;
use serde_json::{Value, json};
use training_testkit::builders::{Kind, MPI};
use training_testkit::job::{self, Jobs};
use training_testkit::manifest;

use super::{
    INTEL, MPICH, Mpi, OPEN_MPI_4, OPEN_MPI_4_DEBIAN, OPEN_MPI_5, assert_first_attempt,
    assert_ranks_on, launchers, log, workers,
};

/// A user's manifest, except for the images and the requests: several such jobs and those of other tests share a node with two CPUs.
fn written(file: &str, mpi: &Mpi) -> Result<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pods_mpi/manifests");
    let mut objects = manifest::documents(&path.join(file))?;
    let mut job = objects.pop().with_context(|| format!("no job in {file}"))?;
    for role in ["Launcher", "Worker"] {
        let containers =
            &mut job["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]["containers"];
        for container in containers.as_array_mut().into_iter().flatten() {
            container["image"] = json!(mpi.image);
            // With Always, the node would ask a registry.
            container["imagePullPolicy"] = json!("IfNotPresent");
            if container["resources"]["limits"].is_object() {
                container["resources"]["requests"] = json!({ "cpu": "20m", "memory": "64Mi" });
            }
        }
    }
    Ok(job)
}

/// Stores a manifest without losing a field, runs it in its first attempt, and returns the job and the launcher's log.
async fn runs(site: &Site, file: &str, mpi: &Mpi) -> Result<(Value, String)> {
    let job = written(file, mpi)?;
    let version = job["apiVersion"].as_str().unwrap_or_default();
    let version = if version.ends_with("/v1") {
        "v1"
    } else {
        MPI.version
    };
    let kind = Kind { version, ..MPI };
    let jobs = Jobs::of(site.client.clone(), &site.namespace, &kind.resource());
    let stored = jobs.create(&job).await?;
    let lost = read::lost(&job["spec"], &stored["spec"], "spec");
    ensure!(lost.is_empty(), "{file}: {lost:?}");
    let name = job["metadata"]["name"].as_str().context("no name")?;
    let done = site.until_true(name, "Succeeded").await?;
    assert_first_attempt(site, name).await?;
    Ok((done, log(site, name).await?))
}

/// Same as [`runs`], with ranks on both workers.
async fn runs_on_two(file: &str, mpi: &Mpi) -> Result<()> {
    let prefix = format!("mpi-{}", file.trim_end_matches(".yaml"));
    let site = super::site(&prefix, Weight::Light).await?;
    let (done, log) = runs(&site, file, mpi).await?;
    let name = done["metadata"]["name"].as_str().context("no name")?;
    assert_ranks_on(&log, &workers(name, 2))?;
    site.finish("ranks on both").await
}

#[tokio::test]
async fn pi_runs_with_open_mpi_and_no_root() -> Result<()> {
    runs_on_two("pi-openmpi.yaml", &OPEN_MPI_5).await
}

#[tokio::test]
async fn pi_runs_with_open_mpi_and_root() -> Result<()> {
    runs_on_two("pi-root.yaml", &OPEN_MPI_5).await
}

#[tokio::test]
async fn pi_runs_with_intel_mpi_an_entry_point_and_a_probe() -> Result<()> {
    runs_on_two("pi-intel.yaml", &INTEL).await
}

#[tokio::test]
async fn pi_runs_with_mpich_an_entry_point_and_a_probe() -> Result<()> {
    runs_on_two("pi-mpich.yaml", &MPICH).await
}

#[tokio::test]
async fn a_benchmark_runs_with_the_options_of_horovod() -> Result<()> {
    runs_on_two("benchmark.yaml", &OPEN_MPI_4).await
}

#[tokio::test]
async fn a_job_of_v1_runs_with_its_policy_beside_the_run_policy() -> Result<()> {
    let site = super::site("mpi-mnist-v1", Weight::Light).await?;
    // Published images of Horovod leave the server's settings alone, too.
    let (done, log) = runs(&site, "mnist-v1.yaml", &OPEN_MPI_4_DEBIAN).await?;
    assert_ranks_on(&log, &workers("mnist", 2))?;
    ensure!(done["spec"]["submittedAs"] == "v1", "{}", done["spec"]);
    // That policy takes effect: only the launcher's pods are left.
    let launcher = read::names(&launchers(&site, "mnist").await?);
    let launcher: Vec<&str> = launcher.iter().map(String::as_str).collect();
    site.until_pods("mnist", &launcher).await?;
    site.finish("ranks on both, and both are gone").await
}

#[tokio::test]
async fn a_launcher_that_fails_in_its_pod_again_and_again_says_why_at_the_end() -> Result<()> {
    let site = super::site("mpi-words", Weight::Light).await?;
    let mut job = OPEN_MPI_5.job("pi", "echo no such input >&2; exit 3");
    let spec = &mut job["spec"];
    spec["runPolicy"]["backoffLimit"] = json!(1);
    let launcher = &mut spec["mpiReplicaSpecs"]["Launcher"];
    launcher["restartPolicy"] = json!("OnFailure");
    launcher["template"]["spec"]["containers"][0]["terminationMessagePolicy"] =
        json!("FallbackToLogsOnError");
    site.jobs.create(&job).await?;
    let done = site.until_true("pi", "Failed").await?;
    let failed = job::condition(&done, "Failed")?;
    ensure!(
        failed.reason == "BackoffLimitExceeded/Error"
            && failed.message.contains("exit code 3")
            && failed.message.contains("no such input"),
        "{failed:?}"
    );
    let cause = [
        "BackoffLimitExceeded: exit 3 in pi-launcher-",
        ": no such input",
    ];
    site.assert_why("pi", "FAILED", &cause)?;
    site.finish(&failed.message).await
}

#[tokio::test]
async fn a_worker_runs_in_the_nodes_network() -> Result<()> {
    let site = super::site("mpi-host", Weight::Light).await?;
    let (_, log) = runs(&site, "host-network.yaml", &OPEN_MPI_5).await?;
    let worker = site.pod("on-host-worker-0").await?;
    let node = worker["spec"]["nodeName"].as_str().context("no node")?;
    ensure!(worker["status"]["podIP"] == worker["status"]["hostIP"]);
    assert_ranks_on(&log, &[node])?;
    site.finish(&format!("ranks on {node}")).await
}
