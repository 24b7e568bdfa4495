//! `make demo`: runs a real training job on a real local cluster, from nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cluster::{self, Cluster};
use crate::image::{self, Build};
use crate::{paths, process};

/// The cluster of the demo.
const NAME: &str = "demo";
/// The namespace of the operators.
pub const SYSTEM: &str = "trainyard-system";
/// The demo fails after this time; two slow cores need about a minute.
const LIMIT: Duration = Duration::from_mins(10);

/// A demo.
struct Demo {
    /// Its name on the command line.
    name: &'static str,
    operator: &'static str,
    /// The kind, as kubectl names it.
    kind: &'static str,
    job: &'static str,
    /// A description of the replicas.
    replicas: &'static str,
    /// The expected words in the logs, and how often.
    proof: (Said, usize),
    /// The object whose log is shown.
    first: &'static str,
    /// The files to apply, in this order; the job is the last.
    files: &'static [&'static str],
}

/// Log output that proves that every rank took part.
enum Said {
    /// Each pod prints it.
    ByPods(&'static str),
    /// One pod prints it for all: the text precedes each host's name, which ends the line.
    OfHosts(&'static str),
}

/// Demos with the same name run one after the other.
const DEMOS: [Demo; 7] = [
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
        name: "jax",
        operator: "jax-operator",
        kind: "jaxjob",
        job: "regression",
        replicas: "2 workers",
        proof: (Said::ByPods(" of 2 on regression-worker-"), 2),
        first: "regression-worker-0",
        files: &["examples/jax/train.yaml"],
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
    Demo {
        name: "spark",
        operator: "spark-operator",
        kind: "sparkapplication",
        job: "spark-pi",
        replicas: "a driver and 2 executors, all of it Java",
        proof: (Said::ByPods("Pi is roughly "), 1),
        first: "spark-pi-driver",
        files: &[
            "manifests/spark-operator/jobs/rbac.yaml",
            "examples/spark/pi.yaml",
        ],
    },
    Demo {
        name: "spark",
        operator: "spark-operator",
        kind: "sparkapplication",
        job: "clouds",
        replicas: "a driver and 2 executors",
        proof: (Said::OfHosts("points came from "), 2),
        first: "clouds-driver",
        files: &[
            "manifests/spark-operator/jobs/rbac.yaml",
            "examples/spark/clouds.yaml",
        ],
    },
];

/// Runs the demos with this name.
pub fn run(name: &str) -> Result<(), String> {
    let demos = named(name);
    let Some(last) = demos.last() else {
        let mut names: Vec<&str> = DEMOS.iter().map(|demo| demo.name).collect();
        names.dedup();
        return Err(format!(
            "there is no demo {name}; there are {}",
            names.join(", ")
        ));
    };
    let begun = Instant::now();
    let cluster = prepare(last.operator, &images(&demos)?)?;
    for demo in &demos {
        show(&cluster, demo)?;
    }
    say(&format!("done in {} s", begun.elapsed().as_secs()));
    farewell(&cluster, last);
    Ok(())
}

fn named(name: &str) -> Vec<&'static Demo> {
    DEMOS.iter().filter(|demo| demo.name == name).collect()
}

/// Returns the workload images in the demos' files.
fn images(demos: &[&Demo]) -> Result<Vec<String>, String> {
    let mut images = Vec::new();
    for file in demos.iter().flat_map(|demo| demo.files) {
        let path = paths::root().join(file);
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let named = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix("image: "));
        images.extend(named.map(str::to_owned));
    }
    images.sort_unstable();
    images.dedup();
    Ok(images)
}

/// Starts a cluster with the operator and these workload images.
fn prepare(operator: &str, images: &[String]) -> Result<Cluster, String> {
    let cluster = thread::scope(|s| {
        let binary = s.spawn(|| image::binaries(&[operator]));
        let cluster = cluster::up_with(NAME, images);
        binary
            .join()
            .unwrap_or_else(|_| Err("building the operator panicked".to_owned()))
            .and(cluster)
    })?;
    say("deploying the operator from the image that was just built");
    deploy(&cluster, operator, Build::Shipped)?;
    Ok(cluster)
}

fn show(cluster: &Cluster, demo: &Demo) -> Result<(), String> {
    remove(cluster, demo)?;
    for file in demo.files {
        say(&format!("applying {file}"));
        process::run(&mut cluster.kubectl(["apply", "-f", file]))?;
    }
    say(&format!("the job has {}", demo.replicas));
    let succeeded = follow(cluster, demo);
    say("the log of rank 0:");
    // For display only: the job's status decides success.
    let _ = process::run(&mut cluster.kubectl(["logs", demo.first]));
    say("what the job says of itself:");
    let _ = process::run(&mut cluster.kubectl(["get", demo.kind, demo.job, "-o", "wide"]));
    let selector = demo.selector();
    let _ = process::run(&mut cluster.kubectl(["get", "pods", "-l", &selector, "-o", "wide"]));
    succeeded?;
    ranks(cluster, demo)
}

/// Deletes the job of a former run. Retries while the API server doesn't serve a newly installed kind yet.
fn remove(cluster: &Cluster, demo: &Demo) -> Result<(), String> {
    let delete = [
        "delete",
        demo.kind,
        demo.job,
        "--ignore-not-found",
        "--wait",
    ];
    let mut removed = process::quiet(&mut cluster.kubectl(delete));
    for _ in 0..10 {
        if removed.is_ok() {
            break;
        }
        thread::sleep(Duration::from_secs(1));
        removed = process::quiet(&mut cluster.kubectl(delete));
    }
    removed.map(drop)
}

impl Demo {
    /// Returns the label selector of the job's pods.
    fn selector(&self) -> String {
        if self.is_spark() {
            return format!("sparkoperator.k8s.io/app-name={}", self.job);
        }
        format!("training.kubeflow.org/job-name={}", self.job)
    }

    /// Whether the kind has a state instead of conditions.
    fn is_spark(&self) -> bool {
        self.kind == "sparkapplication"
    }

    /// Returns a job's state, its readiness, and why it failed.
    fn state(&self, job: &Value) -> [String; 3] {
        let status = &job["status"];
        let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
        if self.is_spark() {
            let state = &status["applicationState"];
            let message = text(&state["errorMessage"]);
            let state = match text(&state["state"]).as_str() {
                "COMPLETED" => "Succeeded".to_owned(),
                "FAILED" => "Failed".to_owned(),
                other => other.to_owned(),
            };
            return [state, text(&status["executors"]), message];
        }
        let last = status["conditions"].as_array().and_then(|c| c.last());
        let last = last.unwrap_or(&Value::Null);
        [
            text(&last["type"]),
            text(&status["ready"]),
            text(&last["message"]),
        ]
    }
}

/// Packs, loads and deploys an operator with the generated manifests.
pub fn deploy(cluster: &Cluster, operator: &str, how: Build) -> Result<(), String> {
    let work = paths::target()
        .join("deploy")
        .join(cluster.name.as_deref().unwrap_or("own"));
    fs::create_dir_all(&work).map_err(|e| format!("{}: {e}", work.display()))?;
    let manifests = work.join(operator);
    copy(&paths::root().join("manifests").join(operator), &manifests)?;
    if cluster.name.is_some() {
        // A separate tag per build, so that a new build causes a new rollout.
        let tag = format!(
            "{}-{}",
            env!("CARGO_PKG_VERSION"),
            fingerprint(&paths::binaries(how).join(operator))?
        );
        let archive = work.join(format!("{operator}.tar"));
        image::pack(operator, how, &tag, &archive)?;
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
    cluster.rolled_out(SYSTEM, operator)
}

/// Returns a value that changes with the file.
fn fingerprint(file: &Path) -> Result<String, String> {
    let sum = process::quiet(&mut process::command("sha256sum", [file]))?;
    Ok(sum.chars().take(12).collect())
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let _ = fs::remove_dir_all(to);
    process::quiet(&mut process::command("cp", [Path::new("-r"), from, to])).map(drop)
}

/// Prints a line for each change until the job has ended.
fn follow(cluster: &Cluster, demo: &Demo) -> Result<(), String> {
    let selector = demo.selector();
    let begun = Instant::now();
    let mut last = String::new();
    let mut shown = false;
    while begun.elapsed() < LIMIT {
        let job = get(cluster, &["get", demo.kind, demo.job, "-o", "json"])?;
        let [state, ready, message] = demo.state(&job);
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
        if demo.is_spark() && state == "RUNNING" && !shown {
            shown = web_ui(cluster, demo);
        }
        match state.as_str() {
            "Succeeded" if demo.is_spark() && !shown => {
                return Err("the web UI never answered".to_owned());
            }
            "Succeeded" => return Ok(()),
            "Failed" => return Err(format!("the job failed: {message}")),
            _ => thread::sleep(Duration::from_millis(500)),
        }
    }
    Err(format!("the job did not end within {} s", LIMIT.as_secs()))
}

/// Returns whether the web UI answers through its Service, and prints the answer.
fn web_ui(cluster: &Cluster, demo: &Demo) -> bool {
    let service = format!("{}-ui-svc", demo.job);
    let path =
        format!("/api/v1/namespaces/default/services/{service}:4040/proxy/api/v1/applications");
    // It starts to listen some time after the driver starts.
    let Ok(answer) = get(cluster, &["get", "--raw", &path]) else {
        return false;
    };
    let app = &answer[0];
    if !app["name"].is_string() {
        return false;
    }
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let version = text(&app["attempts"][0]["appSparkVersion"]);
    eprintln!(
        "          the web UI behind {service} shows {} on Spark {version}",
        text(&app["name"])
    );
    true
}

fn phase(pod: &Value) -> String {
    let name = pod["metadata"]["name"].as_str().unwrap_or("?");
    format!("{name}={}", pod["status"]["phase"].as_str().unwrap_or("?"))
}

/// Checks that every rank took part, on the expected number of hosts.
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

/// Prints progress.
pub fn say(text: &str) {
    eprintln!("demo: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_demo_needs_the_images_of_its_files_only() {
        let of = |name: &str| images(&named(name)).unwrap();
        assert_eq!(of("pytorch"), ["trainyard/pytorch-cpu:1"]);
        assert_eq!(of("mpi"), ["trainyard/openmpi:1"]);
        assert_eq!(
            of("spark"),
            ["trainyard/spark:1"],
            "two demos have one image"
        );
        for demo in &DEMOS {
            assert_eq!(of(demo.name).len(), 1, "{}", demo.name);
        }
    }
}
