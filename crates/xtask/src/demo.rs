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
/// A hang ends the demo; two slow cores need about a minute.
const LIMIT: Duration = Duration::from_mins(10);

/// What there is to show.
struct Demo {
    /// As it is asked for.
    name: &'static str,
    operator: &'static str,
    /// The kind, as kubectl names it.
    kind: &'static str,
    job: &'static str,
    /// In plain words.
    replicas: &'static str,
    /// What is to be read in the logs, so many times.
    proof: (Said, usize),
    /// What has the log that is shown.
    first: &'static str,
    /// What is applied, in this order; the job is the last.
    files: &'static [&'static str],
}

/// Words that prove that every rank took part.
enum Said {
    /// By each pod for itself.
    ByPods(&'static str),
    /// By one for all: the words stand before each host's name, which ends the line.
    OfHosts(&'static str),
}

const DEMOS: [Demo; 4] = [
    Demo {
        name: "pytorch",
        operator: "pytorch-operator",
        kind: "pytorchjob",
        job: "ddp",
        replicas: "1 master and 2 workers",
        proof: (Said::ByPods(" on ddp-"), 3),
        first: "ddp-master-0",
        files: &["examples/pytorch/ddp.yaml"],
    },
    Demo {
        name: "tf",
        operator: "tf-operator",
        kind: "tfjob",
        job: "multiworker",
        replicas: "2 workers",
        proof: (Said::ByPods("2 replicas in sync"), 2),
        first: "multiworker-worker-0",
        files: &["examples/tensorflow/multiworker.yaml"],
    },
    Demo {
        name: "xgboost",
        operator: "xgboost-operator",
        kind: "xgboostjob",
        job: "train",
        replicas: "1 master and 2 workers",
        proof: (Said::ByPods(": model "), 3),
        first: "train-master-0",
        files: &[
            "examples/xgboost/volume.yaml",
            "examples/xgboost/train.yaml",
        ],
    },
    Demo {
        name: "mpi",
        operator: "mpi-operator",
        kind: "mpijob",
        job: "poisson",
        replicas: "a launcher and 2 workers",
        proof: (Said::OfHosts(" on poisson-worker-"), 2),
        first: "job/poisson-launcher",
        files: &["examples/mpi/poisson.yaml"],
    },
];

/// Runs the demo of this name.
pub fn run(name: &str) -> Result<(), String> {
    let demo = DEMOS.iter().find(|demo| demo.name == name);
    let demo = demo.ok_or_else(|| {
        let names: Vec<&str> = DEMOS.iter().map(|demo| demo.name).collect();
        format!("there is no demo {name}; there are {}", names.join(", "))
    })?;
    show(demo)
}

fn show(demo: &Demo) -> Result<(), String> {
    let begun = Instant::now();
    let cluster = thread::scope(|s| {
        let binary = s.spawn(|| image::binaries(&[demo.operator]));
        let cluster = cluster::up(NAME);
        binary
            .join()
            .unwrap_or_else(|_| Err("building the operator panicked".to_owned()))
            .and(cluster)
    })?;
    say("deploying the operator from the image that was just built");
    deploy(&cluster, demo.operator)?;
    process::quiet(&mut cluster.kubectl([
        "delete",
        demo.kind,
        demo.job,
        "--ignore-not-found",
        "--wait",
    ]))?;
    for file in demo.files {
        say(&format!("applying {file}"));
        process::run(&mut cluster.kubectl(["apply", "-f", file]))?;
    }
    say(&format!("the job has {}", demo.replicas));
    let succeeded = follow(&cluster, demo);
    say("the log of rank 0:");
    // Shown for what it is worth: the job's end is judged by its status.
    let _ = process::run(&mut cluster.kubectl(["logs", demo.first]));
    say("what the job says of itself:");
    let _ = process::run(&mut cluster.kubectl(["get", demo.kind, demo.job, "-o", "wide"]));
    let selector = demo.selector();
    let _ = process::run(&mut cluster.kubectl(["get", "pods", "-l", &selector, "-o", "wide"]));
    succeeded?;
    ranks(&cluster, demo)?;
    say(&format!("done in {} s", begun.elapsed().as_secs()));
    farewell(&cluster, demo);
    Ok(())
}

impl Demo {
    /// Selects the pods of the job.
    fn selector(&self) -> String {
        format!("training.kubeflow.org/job-name={}", self.job)
    }
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
fn follow(cluster: &Cluster, demo: &Demo) -> Result<(), String> {
    let selector = demo.selector();
    let begun = Instant::now();
    let mut last = String::new();
    while begun.elapsed() < LIMIT {
        let job = get(cluster, &["get", demo.kind, demo.job, "-o", "json"])?;
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
        let pods = get(cluster, &["get", "pods", "-l", &selector, "-o", "json"])?;
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

/// Every rank has taken part, on as many hosts as there are to be.
fn ranks(cluster: &Cluster, demo: &Demo) -> Result<(), String> {
    let (said, count) = &demo.proof;
    let (Said::ByPods(words) | Said::OfHosts(words)) = said;
    let selector = demo.selector();
    let logs = ["logs", "-l", &selector, "--tail=-1", "--prefix"];
    let text = process::quiet(&mut cluster.kubectl(logs))?;
    let lines = text.lines().filter(|line| line.contains(words));
    let host = |line: &'_ str| -> Option<String> {
        let mut parts = line.split_whitespace();
        let part = match said {
            Said::ByPods(_) => parts.next(),
            Said::OfHosts(_) => parts.next_back(),
        };
        part.map(str::to_owned)
    };
    let mut hosts: Vec<String> = lines.filter_map(host).collect();
    hosts.sort_unstable();
    hosts.dedup();
    if hosts.len() == *count {
        Ok(())
    } else {
        Err(format!(
            "{words:?} was expected of {count} hosts, not of {hosts:?}"
        ))
    }
}

fn get(cluster: &Cluster, args: &[&str]) -> Result<Value, String> {
    let text = process::quiet(&mut cluster.kubectl(args.iter().copied()))?;
    serde_json::from_str(&text).map_err(|e| format!("kubectl printed no JSON: {e}"))
}

fn farewell(cluster: &Cluster, demo: &Demo) {
    let kubectl: PathBuf = cluster.node.with_file_name("kubectl");
    eprintln!(
        "
The cluster is still up. To look around:
  export KUBECONFIG={}
  {} get {},pods,services
  {} describe {} {}
To clean up:
  make demo-down",
        cluster.kubeconfig.display(),
        kubectl.display(),
        demo.kind,
        kubectl.display(),
        demo.kind,
        demo.job,
    );
}

/// Says what is being done.
pub fn say(text: &str) {
    eprintln!("demo: {text}");
}
