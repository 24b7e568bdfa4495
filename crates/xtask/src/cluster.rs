//! The local cluster, built from `e2e/cluster` and `e2e/image`.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;

use crate::{paths, process};

/// The cluster that `make cluster` starts.
pub const DEFAULT: &str = "dev";
/// If this variable is set, no cluster is started: everything runs against the cluster of that kubeconfig.
pub const OWN: &str = "TRAINYARD_KUBECONFIG";

/// A running cluster.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Its name; `None` for the user's own cluster.
    pub name: Option<String>,
    /// Its kubeconfig.
    pub kubeconfig: PathBuf,
    /// The program that runs its components.
    pub node: PathBuf,
}

impl Cluster {
    /// Returns a kubectl command against this cluster.
    pub fn kubectl<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = process::command(&self.node, ["kubectl"]);
        command
            .args(args)
            .env("KUBECONFIG", &self.kubeconfig)
            // Keeps kubectl's discovery cache of our clusters out of the home directory.
            .env("KUBECACHEDIR", paths::target().join("discovery"));
        command
    }

    /// Waits until a deployment is rolled out, for at most two minutes.
    pub fn rolled_out(&self, namespace: &str, deployment: &str) -> Result<(), String> {
        let what = format!("deployment/{deployment}");
        let args = ["rollout", "status", &what, "--timeout", "120s"];
        process::run(&mut self.kubectl(["-n", namespace].into_iter().chain(args)))
    }

    /// Imports image archives. This isn't possible for the user's own cluster: its nodes pull from their own registry.
    pub fn load(&self, files: &[&str]) -> Result<(), String> {
        let Some(name) = &self.name else {
            return Ok(());
        };
        let state = state(name).display().to_string();
        let mut args = vec!["cluster", "load", "--state", &state];
        args.extend(files);
        process::quiet(&mut process::command(&self.node, args)).map(drop)
    }
}

/// The state directory of a cluster.
fn state(name: &str) -> PathBuf {
    paths::cache().join("clusters").join(name)
}

/// The path of a cluster's kubeconfig.
pub fn kubeconfig(name: &str) -> PathBuf {
    paths::target()
        .join("cluster")
        .join(name)
        .join("kubeconfig")
}

/// Lists missing packages, or installs them where that needs no confirmation.
pub fn prerequisites() -> Result<(), String> {
    let script = paths::root().join("e2e/cluster/prerequisites");
    let install = process::may_install().then_some("--install");
    process::run(&mut process::command(script, install))
}

/// Starts a cluster with all workload images unless it is running; builds its prerequisites first.
pub fn up(name: &str) -> Result<Cluster, String> {
    up_with(name, &[])
}

/// Like [`up`], but with only these workload images.
pub fn up_with(name: &str, images: &[String]) -> Result<Cluster, String> {
    if let Some(own) = std::env::var_os(OWN) {
        eprintln!("cluster: {OWN} is set: using that cluster, starting none");
        return Ok(Cluster {
            name: None,
            kubeconfig: own.into(),
            node: process::built("e2e/cluster/build")?.into(),
        });
    }
    prerequisites()?;
    // The two builds are independent; one compiles, the other unpacks.
    let (node, archives) = thread::scope(|s| {
        let archives = s.spawn(|| workloads(images));
        let node = process::built("e2e/cluster/build");
        (
            node,
            archives
                .join()
                .unwrap_or_else(|_| Err("building the images panicked".to_owned())),
        )
    });
    let (node, archives) = (node?, archives?);
    let (state, cache) = (
        state(name).display().to_string(),
        paths::cache().display().to_string(),
    );
    let kubeconfig = kubeconfig(name);
    let shown = kubeconfig.display().to_string();
    let mut up = process::command(&node, ["cluster", "up", "--name", name]);
    up.args(["--state", &state, "--cache", &cache, "--kubeconfig", &shown]);
    if images.is_empty() {
        // All images are unpacked once, for every cluster to come.
        let key = key()?;
        let mut seed = process::command(&node, ["cluster", "seed", "--cache", &cache]);
        process::run(seed.args(["--key", &key]).args(archives))?;
        up.args(["--key", &key]);
    }
    process::run(&mut up)?;
    let cluster = Cluster {
        name: Some(name.to_owned()),
        kubeconfig,
        node: node.into(),
    };
    import(&cluster, &state, images)?;
    Ok(cluster)
}

/// Imports the layers of workload images that a cluster lacks; no names mean all images. A seed lacks small layers that changed.
fn import(cluster: &Cluster, state: &str, images: &[String]) -> Result<(), String> {
    let ctr = |args: &[&str]| {
        let mut all = vec!["cluster", "exec", "--state", state, "--"];
        all.extend(args);
        process::command(&cluster.node, all)
    };
    let have = process::quiet(&mut ctr(&["ctr", "-n", "k8s.io", "content", "ls", "-q"]))?;
    // `up` has created the directory.
    let list = cluster.kubeconfig.with_file_name("content");
    fs::write(&list, have).map_err(|e| e.to_string())?;
    let (tool, cache) = (
        process::built("e2e/image/build")?,
        paths::cache().display().to_string(),
    );
    let list = list.display().to_string();
    let mut stream = process::command(tool, ["stream", "--cache", &cache, "--have", &list])
        .args(images)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| format!("stream the images: {e}"))?;
    let Some(pipe) = stream.stdout.take() else {
        return Err("the image stream has no output".to_owned());
    };
    process::quiet(ctr(&["ctr", "-n", "k8s.io", "images", "import", "-"]).stdin(pipe))?;
    let status = stream.wait().map_err(|e| e.to_string())?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("stream the images: {status}"))
    }
}

/// Builds workload images. Without names: all of them, with their archives, whose paths it returns. With names: only their layers,
/// and it returns no paths, because only a seed reads archives.
pub fn workloads(images: &[String]) -> Result<Vec<String>, String> {
    let tool = process::built("e2e/image/build")?;
    let cache = paths::cache().display().to_string();
    let what = if images.is_empty() {
        "workloads"
    } else {
        "layers"
    };
    let mut build = process::command(&tool, [what, "--cache", &cache]);
    let archives = process::output(build.args(images))?;
    Ok(archives.lines().map(str::to_owned).collect())
}

/// Returns the key of the large layers of all workload images.
fn key() -> Result<String, String> {
    let tool = process::built("e2e/image/build")?;
    let key = process::output(&mut process::command(&tool, ["key", "--heavy"]))?;
    Ok(key.trim().to_owned())
}

/// Removes every trace of a cluster.
pub fn down(name: &str) -> Result<(), String> {
    let node = process::built("e2e/cluster/build")?;
    let state = state(name).display().to_string();
    process::run(&mut process::command(
        node,
        ["cluster", "down", "--name", name, "--state", &state],
    ))?;
    // It may not exist.
    let _ = fs::remove_dir_all(paths::target().join("cluster").join(name));
    Ok(())
}

/// Returns a cluster that was started before, or the user's own.
pub fn running(name: &str) -> Result<Cluster, String> {
    let node = process::built("e2e/cluster/build")?.into();
    Ok(match std::env::var_os(OWN) {
        Some(own) => Cluster {
            name: None,
            kubeconfig: own.into(),
            node,
        },
        None => Cluster {
            name: Some(name.to_owned()),
            kubeconfig: kubeconfig(name),
            node,
        },
    })
}

/// Runs kubectl on this terminal.
pub fn kubectl_interactive(name: &str, args: &[&str]) -> Result<(), String> {
    process::run(&mut running(name)?.kubectl(args.iter().copied()))
}

/// Imports image archives into a running cluster.
pub fn load(name: &str, files: &[&str]) -> Result<(), String> {
    let node = process::built("e2e/cluster/build")?.into();
    Cluster {
        name: Some(name.to_owned()),
        kubeconfig: kubeconfig(name),
        node,
    }
    .load(files)
}

/// Empties the cache; a running cluster keeps its own files until it is stopped.
pub fn clean_cache() -> Result<(), String> {
    let cache = paths::cache();
    let Ok(entries) = fs::read_dir(&cache) else {
        return Ok(());
    };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.file_name().is_some_and(|n| n == "clusters")
            && fs::read_dir(&path).is_ok_and(|mut d| d.next().is_some())
        {
            eprintln!(
                "{}: left alone, clusters are up; take them down first",
                path.display()
            );
            continue;
        }
        let removed = if path.is_dir() {
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        };
        removed.map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(())
}
