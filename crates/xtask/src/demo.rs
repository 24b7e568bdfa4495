//! `make demo`: a real training job on a real local cluster, from nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cluster::{self, Cluster};
use crate::{image, paths, process};

/// The cluster of the demo.
const NAME: &str = "demo";
const OPERATOR: &str = "pytorch-operator";
const JOB: &str = "ddp";
/// A hang ends the demo; two slow cores need about a minute.
const LIMIT: Duration = Duration::from_mins(10);

/// Runs the demo.
pub fn run() -> Result<(), String> {
    let begun = Instant::now();
    let cluster = thread::scope(|s| {
        let binary = s.spawn(|| image::binaries(&[OPERATOR]));
        let cluster = cluster::up(NAME);
        binary
            .join()
            .unwrap_or_else(|_| Err("building the operator panicked".to_owned()))
            .and(cluster)
    })?;
    say("deploying the operator from the image that was just built");
    deploy(&cluster, OPERATOR)?;
    say("applying examples/pytorch/ddp.yaml: 1 master and 2 workers");
    process::quiet(&mut cluster.kubectl([
        "delete",
        "pytorchjob",
        JOB,
        "--ignore-not-found",
        "--wait",
    ]))?;
    process::run(&mut cluster.kubectl(["apply", "-f", "examples/pytorch/ddp.yaml"]))?;
    let succeeded = follow(&cluster);
    say("the log of rank 0:");
    // Shown for what it is worth: the job's end is judged by its status.
    let _ = process::run(&mut cluster.kubectl(["logs", "ddp-master-0"]));
    say("what the job says of itself:");
    let _ = process::run(&mut cluster.kubectl(["get", "pytorchjob", JOB, "-o", "wide"]));
    let _ = process::run(&mut cluster.kubectl([
        "get",
        "pods",
        "-l",
        "training.kubeflow.org/job-name=ddp",
        "-o",
        "wide",
    ]));
    succeeded?;
    ranks(&cluster)?;
    say(&format!("done in {} s", begun.elapsed().as_secs()));
    farewell(&cluster);
    Ok(())
}

/// Packs, loads and deploys an operator with the generated manifests.
pub fn deploy(cluster: &Cluster, operator: &str) -> Result<(), String> {
    let work = paths::target()
        .join("deploy")
        .join(cluster.name.as_deref().unwrap_or("own"));
    fs::create_dir_all(&work).map_err(|e| format!("{}: {e}", work.display()))?;
    let manifests = work.join(operator);
    copy(&paths::root().join("manifests").join(operator), &manifests)?;
    if cluster.name.is_some() {
        // A tag of its own per build, so that a new build is a new rollout.
        let tag = format!(
            "{}-{}",
            env!("CARGO_PKG_VERSION"),
            fingerprint(&paths::release_binary(operator))?
        );
        let archive = work.join(format!("{operator}.tar"));
        image::pack(operator, &tag, &archive)?;
        cluster.load(&[&archive.display().to_string()])?;
        let file = manifests.join("kustomization.yaml");
        let text = fs::read_to_string(&file).map_err(|e| e.to_string())?;
        let images = format!("images:\n- name: trainyard/{operator}\n  newTag: {tag}\n");
        fs::write(&file, text + &images).map_err(|e| e.to_string())?;
    }
    let manifests = manifests.display().to_string();
    process::quiet(&mut cluster.kubectl([
        "apply",
        "--server-side",
        "--force-conflicts",
        "-k",
        &manifests,
    ]))?;
    let deployment = format!("deployment/{operator}");
    process::run(&mut cluster.kubectl([
        "-n",
        "trainyard-system",
        "rollout",
        "status",
        &deployment,
        "--timeout",
        "120s",
    ]))
}

/// Changes whenever the file does.
fn fingerprint(file: &Path) -> Result<String, String> {
    let sum = process::quiet(&mut process::command("sha256sum", [file]))?;
    Ok(sum.chars().take(12).collect())
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let _ = fs::remove_dir_all(to);
    process::quiet(&mut process::command("cp", [Path::new("-r"), from, to])).map(drop)
}

/// Prints a line whenever something changed, until the job has ended.
fn follow(cluster: &Cluster) -> Result<(), String> {
    let begun = Instant::now();
    let mut last = String::new();
    while begun.elapsed() < LIMIT {
        let job = get(cluster, &["get", "pytorchjob", JOB, "-o", "json"])?;
        let conditions = job["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let state = conditions
            .last()
            .and_then(|c| c["type"].as_str())
            .unwrap_or("-")
            .to_owned();
        let ready = job["status"]["ready"].as_str().unwrap_or("-").to_owned();
        let pods = get(
            cluster,
            &[
                "get",
                "pods",
                "-l",
                "training.kubeflow.org/job-name=ddp",
                "-o",
                "json",
            ],
        )?;
        let phases: Vec<String> = pods["items"]
            .as_array()
            .into_iter()
            .flatten()
            .map(phase)
            .collect();
        let line = format!("{state:<10} ready {ready}  {}", phases.join("  "));
        if line != last {
            eprintln!("  {:>4} s  {line}", begun.elapsed().as_secs());
            last = line;
        }
        match state.as_str() {
            "Succeeded" => return Ok(()),
            "Failed" => {
                let message = conditions
                    .last()
                    .and_then(|c| c["message"].as_str())
                    .unwrap_or_default();
                return Err(format!("the job failed: {message}"));
            }
            _ => thread::sleep(Duration::from_millis(500)),
        }
    }
    Err(format!("the job did not end within {} s", LIMIT.as_secs()))
}

fn phase(pod: &Value) -> String {
    let name = pod["metadata"]["name"].as_str().unwrap_or("?");
    format!("{name}={}", pod["status"]["phase"].as_str().unwrap_or("?"))
}

/// Every rank says where it ran; three different hosts make it a distributed run.
fn ranks(cluster: &Cluster) -> Result<(), String> {
    let selector = "training.kubeflow.org/job-name=ddp";
    let text = process::quiet(&mut cluster.kubectl([
        "logs",
        "-l",
        selector,
        "--tail=-1",
        "-c",
        "pytorch",
    ]))?;
    let mut hosts: Vec<&str> = text
        .lines()
        .filter(|l| l.starts_with("rank "))
        .filter_map(|l| l.split(" on ").nth(1)?.split_whitespace().next())
        .collect();
    hosts.sort_unstable();
    hosts.dedup();
    if hosts.len() == 3 {
        Ok(())
    } else {
        Err(format!(
            "three hosts were expected in the logs, not {hosts:?}"
        ))
    }
}

fn get(cluster: &Cluster, args: &[&str]) -> Result<Value, String> {
    let text = process::quiet(&mut cluster.kubectl(args.iter().copied()))?;
    serde_json::from_str(&text).map_err(|e| format!("kubectl printed no JSON: {e}"))
}

fn farewell(cluster: &Cluster) {
    let kubectl: PathBuf = cluster.node.with_file_name("kubectl");
    eprintln!(
        "
The cluster is still up. To look around:
  export KUBECONFIG={}
  {} get pytorchjobs,pods,services
  {} describe pytorchjob ddp
To clean up:
  make demo-down",
        cluster.kubeconfig.display(),
        kubectl.display(),
        kubectl.display(),
    );
}

/// Says what is being done.
pub fn say(text: &str) {
    eprintln!("demo: {text}");
}
