//! `MPIJob` with real MPI over SSH: checks on which hosts ranks run, not only that the job succeeded. One test program, so that the
//! scenarios run in parallel.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use e2e::pods::{Site, Weight, eventually};
use e2e::read;
use serde_json::{Value, json};
use training_testkit::builders::MPI;
use training_testkit::wait::Seen;

#[path = "pods_mpi/elastic.rs"]
mod elastic;
#[path = "pods_mpi/grid.rs"]
mod grid;
#[path = "pods_mpi/late.rs"]
mod late;
#[path = "pods_mpi/poisson.rs"]
mod poisson;
#[path = "pods_mpi/published.rs"]
mod published;

/// An MPI implementation: its image, and what its launcher needs.
#[derive(Clone, Copy, Debug)]
struct Mpi {
    /// Its name in tests.
    name: &'static str,
    /// Its name in jobs.
    implementation: &'static str,
    image: &'static str,
    /// The command that starts ranks, followed by their number.
    mpirun: &'static str,
    /// Whether nothing runs as root.
    rootless: bool,
}

const OPEN_MPI_5: Mpi = Mpi {
    name: "openmpi5",
    implementation: "OpenMPI",
    image: "trainyard/openmpi:1",
    mpirun: "mpirun --bind-to none",
    rootless: true,
};
const OPEN_MPI_4: Mpi = Mpi {
    name: "openmpi4",
    implementation: "OpenMPI",
    image: "trainyard/openmpi4:1",
    mpirun: "mpirun --allow-run-as-root --bind-to none",
    rootless: false,
};
/// Open MPI 4 in an image that leaves Debian's settings of SSH as they are: `StrictModes yes`, and unknown hosts are refused.
const OPEN_MPI_4_DEBIAN: Mpi = Mpi {
    name: "openmpi4-debian",
    image: "trainyard/openmpi4-debian:1",
    ..OPEN_MPI_4
};
const MPICH: Mpi = Mpi {
    name: "mpich",
    implementation: "MPICH",
    image: "trainyard/mpich:1",
    mpirun: "mpirun",
    rootless: false,
};
const INTEL: Mpi = Mpi {
    name: "intel",
    implementation: "Intel",
    image: "trainyard/intelmpi:1",
    mpirun: "mpirun",
    rootless: false,
};

impl Mpi {
    /// A job of two hosts with one rank each, as short as possible: everything else is a default. Its launcher runs a shell script, in
    /// which `mpirun` is this implementation's.
    fn job(&self, name: &str, script: &str) -> Value {
        let pod = |command: Option<Value>| {
            let mut container = json!({
                "name": "main", "image": self.image, "imagePullPolicy": "IfNotPresent",
                "resources": { "requests": { "cpu": "20m", "memory": "64Mi" } },
            });
            if let Some(command) = command {
                container["command"] = command;
            }
            // A shell as PID 1 ignores SIGTERM.
            let mut spec = json!({ "containers": [container], "terminationGracePeriodSeconds": 1 });
            if self.rootless {
                spec["securityContext"] = json!({ "runAsUser": 1000 });
            }
            json!({ "spec": spec })
        };
        let server = json!(["/usr/sbin/sshd", "-De", "-f", "/home/mpiuser/.sshd_config"]);
        let script = script.replace("mpirun", self.mpirun);
        let mut job = json!({
            "apiVersion": "kubeflow.org/v2beta1",
            "kind": "MPIJob",
            "metadata": { "name": name },
            "spec": {
                "mpiImplementation": self.implementation,
                // Only for a job that hangs.
                "runPolicy": { "cleanPodPolicy": "Running", "activeDeadlineSeconds": 900 },
                "mpiReplicaSpecs": {
                    "Launcher": { "replicas": 1, "template": pod(Some(json!(["sh", "-c", script]))) },
                    "Worker": { "replicas": 2, "template": pod(self.rootless.then_some(server)) },
                },
            },
        });
        if self.rootless {
            job["spec"]["sshAuthMountPath"] = json!("/home/mpiuser/.ssh");
        }
        job
    }
}

async fn site(prefix: &str, weight: Weight) -> Result<Site> {
    Site::of(MPI, prefix, weight).await
}

/// The launcher's pods, oldest first.
async fn launchers(site: &Site, job: &str) -> Result<Vec<Value>> {
    let mut pods = read::pods(&site.client, &site.namespace, job).await?;
    let launcher = format!("{job}-launcher-");
    pods.retain(|pod| read::name(pod).starts_with(&launcher));
    let made = |pod: &Value| {
        pod["metadata"]["creationTimestamp"]
            .as_str()
            .map(str::to_owned)
    };
    pods.sort_by_key(made);
    Ok(pods)
}

/// The log of the launcher's newest pod.
async fn log(site: &Site, job: &str) -> Result<String> {
    let pods = launchers(site, job).await?;
    let last = pods.last().context("no launcher")?;
    site.log(&read::name(last)).await
}

/// The launcher's Job has no failure and used no retry.
async fn assert_first_attempt(site: &Site, job: &str) -> Result<()> {
    let pods = launchers(site, job).await?;
    ensure!(pods.len() == 1, "{:?}", read::names(&pods));
    let restarts = &pods[0]["status"]["containerStatuses"][0]["restartCount"];
    ensure!(*restarts == 0, "restarted {restarts} times in place");
    let batch = site.kubectl(&["get", "job", &format!("{job}-launcher"), "-o", "json"])?;
    let batch: Value = serde_json::from_str(&batch)?;
    let failed = batch["status"]["failed"].as_i64().unwrap_or(0);
    ensure!(failed == 0, "{failed} attempts failed");
    Ok(())
}

/// The hosts that the ranks of the last run have reported.
fn hosts(log: &str) -> BTreeSet<String> {
    let last_run = log.rfind("rank 0 of").map_or("", |at| &log[at..]);
    let lines = last_run.lines().filter(|line| line.starts_with("rank "));
    lines
        .filter_map(|line| line.rsplit_once(" on "))
        .map(|(_, host)| host.to_owned())
        .collect()
}

/// Checks that the ranks of the last run ran on exactly these hosts.
fn assert_ranks_on<T: AsRef<str>>(log: &str, expected: &[T]) -> Result<()> {
    let (hosts, expected) = (hosts(log), expected.iter().map(|h| h.as_ref().to_owned()));
    let expected: BTreeSet<String> = expected.collect();
    ensure!(
        hosts == expected,
        "ranks on {hosts:?}, not {expected:?}: {log}"
    );
    Ok(())
}

/// The names of a job's first workers.
fn workers(job: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{job}-worker-{n}")).collect()
}

/// Waits until the launcher's newest pod has printed this.
async fn until_printed(site: &Site, job: &str, what: &str) -> Result<String> {
    eventually(&format!("{what:?} of {job}"), async || {
        let log = log(site, job).await.unwrap_or_default();
        Ok(if log.contains(what) {
            Seen::Yes(log)
        } else {
            Seen::NotYet(log)
        })
    })
    .await
}

/// A patch that suspends or resumes a job.
fn suspended(suspended: bool) -> Value {
    json!({ "spec": { "runPolicy": { "suspend": suspended } } })
}
