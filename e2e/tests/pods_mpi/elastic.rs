//! A launcher that runs `discover_hosts.sh` before each round, as elastic launchers do, while workers are added and removed.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use e2e::pods::{Site, Weight, eventually};
use e2e::read;
use serde_json::{Value, json};
use training_testkit::wait::Seen;

use super::{OPEN_MPI_5, assert_first_attempt, hosts, launchers, log, workers};

/// A round that meets a terminating host fails or hangs, which elastic launchers must survive.
const ROUNDS: &str = r#"
    until getent hosts go; do
        sh /etc/mpi/discover_hosts.sh | sed 's/$/ slots=1/' >/tmp/hosts
        [ -s /tmp/hosts ] || { sleep 0.2; continue; }
        echo round begins
        timeout -k 5 40 mpirun --hostfile /tmp/hosts -n "$(wc -l </tmp/hosts)" /home/mpiuser/pi &&
            echo round ends
        sleep 0.3
    done"#;

/// The hosts of the last successful round.
fn last_round(log: &str) -> BTreeSet<String> {
    let done = log.rfind("round ends").map_or("", |at| &log[..at]);
    let begun = done.rfind("round begins").map_or("", |at| &done[at..]);
    hosts(begun)
}

/// Waits for a round on exactly these hosts.
async fn until_round_on(site: &Site, expected: &BTreeSet<String>) -> Result<()> {
    eventually(&format!("a round on {expected:?}"), async || {
        let log = log(site, "grows").await?;
        let found = last_round(&log);
        Ok(if found == *expected {
            Seen::Yes(())
        } else {
            let since = log.rfind("round ends").map_or(&*log, |at| &log[at..]);
            Seen::NotYet(format!("{found:?}, then {since}"))
        })
    })
    .await
}

/// The workers' pods by name, with what distinguishes them from earlier pods of that name.
async fn incarnations(site: &Site) -> Result<Vec<(String, Value)>> {
    let mut pods = read::pods(&site.client, &site.namespace, "grows").await?;
    pods.retain(|pod| read::name(pod).contains("-worker-"));
    let uid = |pod: &Value| (read::name(pod), pod["metadata"]["uid"].clone());
    Ok(pods.iter().map(uid).collect())
}

async fn follows(prefix: &str, launcher_works: bool) -> Result<()> {
    let site = super::site(prefix, Weight::Light).await?;
    let mut job = OPEN_MPI_5.job("grows", ROUNDS);
    job["spec"]["runLauncherAsWorker"] = json!(launcher_works);
    job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] = json!(1);
    site.jobs.create(&job).await?;
    let on = |count: usize| -> BTreeSet<String> {
        let launcher = launcher_works.then(|| "grows-launcher".to_owned());
        workers("grows", count)
            .into_iter()
            .chain(launcher)
            .collect()
    };
    until_round_on(&site, &on(1)).await?;
    let one = incarnations(&site).await?;
    let launcher = launchers(&site, "grows").await?;

    site.kubectl(&["scale", "mpijob", "grows", "--replicas=3"])?;
    until_round_on(&site, &on(3)).await?;
    let three = incarnations(&site).await?;
    ensure!(three.len() == 3 && three[0] == one[0], "{one:?} {three:?}");

    site.kubectl(&["scale", "mpijob", "grows", "--replicas=2"])?;
    until_round_on(&site, &on(2)).await?;
    let two = incarnations(&site).await?;
    // The last one may still be terminating.
    ensure!(two[..2] == three[..2], "{three:?} {two:?}");
    site.until("grows", "of two workers", |job| {
        job["status"]["replicaStatuses"]["Worker"]["active"] == 2
    })
    .await?;
    let two = incarnations(&site).await?;
    ensure!(two == three[..2], "{three:?} {two:?}");

    site.go().await?;
    site.until_true("grows", "Succeeded").await?;
    assert_first_attempt(&site, "grows").await?;
    let same = launchers(&site, "grows").await?;
    let uid = |pods: &[Value]| pods.first().map(|pod| pod["metadata"]["uid"].clone());
    ensure!(uid(&same) == uid(&launcher), "another launcher");
    let log = log(&site, "grows").await?;
    let rounds = log.matches("round begins").count();
    let failed = rounds - log.matches("round ends").count();
    let last = last_round(&log);
    let last = last.last().context("no round")?;
    site.finish(&format!(
        "{rounds} rounds, {failed} of them met a host that went, last {last}"
    ))
    .await
}

#[tokio::test]
async fn ranks_follow_the_hosts_that_the_script_names_up_and_down() -> Result<()> {
    follows("mpi-elastic", false).await
}

#[tokio::test]
async fn the_last_worker_goes_also_where_the_launcher_runs_ranks() -> Result<()> {
    follows("mpi-elastic-works", true).await
}
