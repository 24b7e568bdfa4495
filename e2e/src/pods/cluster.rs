//! The cluster of pod-level tests, and access to its node.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use kube::Client;
use training_testkit::control_plane::{client_from, target_directory};
use training_testkit::operator::find;

/// The given cluster.
#[derive(Clone, Debug)]
pub struct Cluster {
    kubeconfig: PathBuf,
    node: PathBuf,
    state: Option<PathBuf>,
}

impl Cluster {
    /// Returns the cluster of this run.
    pub fn given() -> Result<Self> {
        let path = |name: &str| env::var_os(name).map(PathBuf::from);
        let wanted = |name: &str| {
            path(name).with_context(|| {
                format!("{name} is not set: these tests are run by `cargo xtask test pods`")
            })
        };
        Ok(Self {
            kubeconfig: wanted("TRAINYARD_PODS_KUBECONFIG")?,
            node: wanted("TRAINYARD_NODE")?,
            state: path("TRAINYARD_PODS_STATE"),
        })
    }

    /// Returns an administrator's client.
    pub async fn client(&self) -> Result<Client> {
        client_from(&self.kubeconfig).await
    }

    /// Runs kubectl and returns its output.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.node);
        command
            .arg("kubectl")
            .args(args)
            .env("KUBECONFIG", &self.kubeconfig)
            // Keeps its discovery cache out of the home directory.
            .env("KUBECACHEDIR", target_directory()?.join("discovery"));
        output(&mut command)
    }

    /// Explains a job as `kubectl trainyard why` does, and returns the first line.
    pub fn why(&self, namespace: &str, job: &str) -> Result<String> {
        let mut command = Command::new(find("kubectl-trainyard")?);
        command
            .args(["why", job, "-n", namespace, "--kubeconfig"])
            .arg(&self.kubeconfig);
        let text = output(&mut command)?;
        Ok(text.lines().next().unwrap_or_default().to_owned())
    }

    /// Returns whether commands can run inside the node, which is impossible on the user's own cluster.
    pub fn is_open(&self) -> bool {
        self.state.is_some()
    }

    /// Returns the id of a container's first process inside the node, if the container has its own process namespace.
    pub fn first_process(&self, container: &str) -> Result<String> {
        let id = container.rsplit('/').next().unwrap_or(container);
        // The one with the id 1 in the container. Ids in the node wrap around, so the lowest need not be the first.
        let script = r#"
            for dir in /proc/[0-9]*; do
                if grep -qs "$0" "$dir/cgroup" && grep -qsE '^NSpid:.*[[:space:]]1$' "$dir/status"
                then echo "${dir#/proc/}"; exit; fi
            done
            echo "no process of $0" >&2; exit 1"#;
        Ok(self.inside(&["sh", "-c", script, id])?.trim().to_owned())
    }

    /// Kills the first process of a container from outside, as the kernel would.
    pub fn kill(&self, container: &str) -> Result<()> {
        let pid = self.first_process(container)?;
        self.inside(&["kill", "-9", &pid]).map(drop)
    }

    /// Runs a command inside the node and returns its output.
    pub fn inside(&self, args: &[&str]) -> Result<String> {
        let state = self.state.as_ref().context("no way into the node")?;
        let mut command = Command::new(&self.node);
        command
            .args(["cluster", "exec", "--state"])
            .arg(state)
            .arg("--")
            .args(args);
        output(&mut command)
    }
}

fn output(command: &mut Command) -> Result<String> {
    let out = command
        .output()
        .with_context(|| format!("can't run {command:?}"))?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr);
        bail!("{command:?}: {}\n{text}{said}", out.status);
    }
    Ok(text)
}
