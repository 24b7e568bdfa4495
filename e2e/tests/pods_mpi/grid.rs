//! The abilities of every MPI implementation, each with a job of its own: `make test` runs some of these pairs once, `make test-deep` all
//! of them repeatedly.

use anyhow::{Context as _, Result, ensure};
use e2e::pods::{Site, Weight, eventually};
use e2e::read;
use serde_json::{Value, json};
use training_testkit::is_deep;
use training_testkit::wait::Seen;

use super::{
    INTEL, MPICH, Mpi, OPEN_MPI_4, OPEN_MPI_5, assert_first_attempt, assert_ranks_on, launchers,
    log, poisson, suspended, until_printed, workers,
};

/// How often `make test-deep` runs each pair.
const DEEP_TIMES: u32 = 10;

/// What happens to a job.
#[derive(Clone, Copy, Debug)]
enum Story {
    /// Nothing special; its ranks compute together.
    Plain,
    /// It gets another host while it runs.
    ScaleUp,
    /// It is suspended while ranks run, and resumed.
    Resume,
    /// Its launcher fails and is retried.
    Retry,
    /// The launcher runs ranks as well.
    LauncherWorks,
}

impl Story {
    fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::ScaleUp => "grows",
            Self::Resume => "resumes",
            Self::Retry => "retries",
            Self::LauncherWorks => "works",
        }
    }

    fn weight(self) -> Weight {
        match self {
            Self::Plain => Weight::Heavy,
            Self::ScaleUp | Self::Resume | Self::Retry | Self::LauncherWorks => Weight::Light,
        }
    }

    /// The launcher's script. The name `GO` resolves once the test allows it.
    fn script(self, mpi: &Mpi) -> &'static str {
        match self {
            // Ranks busy-wait for each other, so use as few steps as prove something.
            Self::Plain => "mpirun -n 2 env POINTS=96 python3 /opt/trainyard/poisson.py",
            Self::ScaleUp => {
                r#"mpirun -n 2 /home/mpiuser/pi || exit 1
                echo two are done
                until [ "$(wc -l </etc/mpi/hostfile)" = 3 ]; do sleep 0.2; done
                for host in $(sed 's/[ :].*//' /etc/mpi/hostfile); do
                    until getent hosts "$host"; do sleep 0.2; done
                done
                mpirun -n 3 /home/mpiuser/pi"#
            }
            Self::Resume => {
                "mpirun -n 2 /home/mpiuser/pi && mpirun -n 2 sh -c 'echo at work; until getent hosts GO; do sleep 0.2; done'"
            }
            Self::Retry => "mpirun -n 2 /home/mpiuser/pi && mpirun -n 2 getent hosts GO",
            // Hydra connects to the launcher like to any other host, Open MPI knows that it is local.
            Self::LauncherWorks if mpi.implementation == "OpenMPI" => {
                "mpirun -n 2 /home/mpiuser/pi"
            }
            Self::LauncherWorks => "/usr/sbin/sshd && mpirun -n 2 /home/mpiuser/pi",
        }
    }

    fn job(self, mpi: &Mpi, name: &str) -> Value {
        let script = self.script(mpi).replace("GO", &go(name));
        let mut job = mpi.job(name, &script);
        let spec = &mut job["spec"];
        match self {
            Self::Plain | Self::ScaleUp | Self::Resume => {}
            Self::Retry => {
                spec["runPolicy"]["backoffLimit"] = json!(2);
                spec["mpiReplicaSpecs"]["Launcher"]["restartPolicy"] = json!("Never");
            }
            Self::LauncherWorks => {
                spec["runLauncherAsWorker"] = json!(true);
                spec["mpiReplicaSpecs"]["Worker"]["replicas"] = json!(1);
            }
        }
        job
    }

    /// Runs a job with this story, and returns what happened.
    async fn run(self, site: &Site, mpi: &Mpi, name: &str) -> Result<String> {
        site.jobs.create(&self.job(mpi, name)).await?;
        match self {
            Self::Plain | Self::LauncherWorks => {}
            Self::ScaleUp => {
                let log = until_printed(site, name, "two are done").await?;
                assert_ranks_on(&log, &workers(name, 2))?;
                let three = json!({ "replicas": 3 });
                let change = json!({ "spec": { "mpiReplicaSpecs": { "Worker": three } } });
                site.jobs.merge(name, &change).await?;
            }
            Self::Resume => {
                until_printed(site, name, "at work").await?;
                let before = launchers(site, name).await?;
                site.jobs.merge(name, &suspended(true)).await?;
                site.until_true(name, "Suspended").await?;
                site.until_no_pods(name).await?;
                site.jobs.merge(name, &suspended(false)).await?;
                until_printed(site, name, "at work").await?;
                let after = launchers(site, name).await?;
                ensure!(before[0]["metadata"]["uid"] != after[0]["metadata"]["uid"]);
                site.announce(&go(name)).await?;
            }
            Self::Retry => {
                until_failed_once(site, name).await?;
                site.announce(&go(name)).await?;
            }
        }
        site.until_true(name, "Succeeded").await?;
        let log = log(site, name).await?;
        match self {
            Self::Plain => {
                assert_first_attempt(site, name).await?;
                return poisson::assert_solved_on(&log, &workers(name, 2));
            }
            Self::ScaleUp => assert_ranks_on(&log, &workers(name, 3))?,
            Self::Resume => assert_ranks_on(&log, &workers(name, 2))?,
            Self::Retry => {
                assert_ranks_on(&log, &workers(name, 2))?;
                let attempts = launchers(site, name).await?.len();
                ensure!(attempts == 2, "{attempts} attempts");
                return Ok("2 attempts".to_owned());
            }
            Self::LauncherWorks => {
                let hosts = [format!("{name}-launcher"), format!("{name}-worker-0")];
                assert_ranks_on(&log, &hosts)?;
            }
        }
        assert_first_attempt(site, name).await?;
        Ok("1 attempt".to_owned())
    }
}

/// The name that a job waits for.
fn go(job: &str) -> String {
    format!("{job}-go")
}

/// Waits until a pod of the launcher has failed.
async fn until_failed_once(site: &Site, job: &str) -> Result<()> {
    eventually("a failed launcher", async || {
        let pods = launchers(site, job).await?;
        let failed = pods.iter().find(|pod| pod["status"]["phase"] == "Failed");
        Ok(match failed {
            Some(pod) => {
                // It failed in the intended place.
                let log = site.log(&read::name(pod)).await?;
                assert_ranks_on(&log, &workers(job, 2))?;
                Seen::Yes(())
            }
            None => Seen::NotYet(format!("{:?}", read::names(&pods))),
        })
    })
    .await
}

/// Runs one story with these implementations, or in a deep run with more of them and repeatedly.
async fn told(story: Story, of: &[Mpi], deep: &[Mpi]) -> Result<()> {
    let (more, times) = if is_deep() {
        (deep, DEEP_TIMES)
    } else {
        (&[][..], 1)
    };
    for mpi in of.iter().chain(more) {
        let prefix = format!("mpi-{}-{}", story.name(), mpi.name);
        let site = super::site(&prefix, story.weight()).await?;
        let mut saw = Vec::new();
        for time in 0..times {
            let name = format!("pi-{time}");
            let seen = story.run(&site, mpi, &name).await;
            saw.push(seen.with_context(|| format!("{prefix}, job {name}"))?);
            site.jobs.delete(&name).await?;
        }
        site.finish(&saw.join("; ")).await?;
    }
    Ok(())
}

// In addition, each implementation runs a manifest in its published shape.
#[tokio::test]
async fn open_mpi_4_runs_as_root() -> Result<()> {
    told(Story::Plain, &[OPEN_MPI_4], &[]).await
}

#[tokio::test]
async fn open_mpi_5_runs_without_root() -> Result<()> {
    told(Story::Plain, &[OPEN_MPI_5], &[]).await
}

#[tokio::test]
async fn mpich_runs_as_root() -> Result<()> {
    told(Story::Plain, &[MPICH], &[]).await
}

#[tokio::test]
async fn intel_mpi_runs_as_root() -> Result<()> {
    told(Story::Plain, &[INTEL], &[]).await
}

#[tokio::test]
async fn ranks_run_on_a_host_that_came_while_the_launcher_ran() -> Result<()> {
    let (now, deep) = ([OPEN_MPI_5, MPICH], [OPEN_MPI_4, INTEL]);
    told(Story::ScaleUp, &now, &deep).await
}

#[tokio::test]
async fn ranks_run_on_new_hosts_after_a_suspension() -> Result<()> {
    let (now, deep) = ([OPEN_MPI_5, MPICH], [OPEN_MPI_4, INTEL]);
    told(Story::Resume, &now, &deep).await
}

#[tokio::test]
async fn ranks_run_on_the_same_hosts_when_the_launcher_is_tried_again() -> Result<()> {
    let (now, deep) = ([OPEN_MPI_5, MPICH], [OPEN_MPI_4, INTEL]);
    told(Story::Retry, &now, &deep).await
}

#[tokio::test]
async fn ranks_run_in_the_launcher_too_where_it_is_asked_to() -> Result<()> {
    let (now, deep) = ([OPEN_MPI_5, MPICH], [OPEN_MPI_4, INTEL]);
    told(Story::LauncherWorks, &now, &deep).await
}
