//! Runs `e2e/sdk/jobs.py`: the published Python SDK, unmodified.

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use tokio::task::spawn_blocking;
use training_testkit::builders::Kind;

/// Runs one scenario with jobs of a kind in a namespace, and returns the last line that it prints. It ends by itself.
pub async fn run(kind: &Kind, scenario: &'static str, namespace: &str) -> Result<String> {
    let path = |name: &str| env::var_os(name).with_context(|| format!("{name} is not set"));
    let mut python = Command::new(path("TRAINYARD_SDK_PYTHON")?);
    python
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("sdk/jobs.py"))
        .args([kind.name, scenario, namespace])
        .env("KUBECONFIG", path("TRAINYARD_PODS_KUBECONFIG")?)
        // A proxy for the internet has no route to the cluster.
        .env("NO_PROXY", "*")
        .stdin(Stdio::null());
    let out = spawn_blocking(move || python.output()).await??;
    let text = String::from_utf8_lossy(&out.stdout);
    let complaint = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "{scenario}: {text}{complaint}");
    Ok(text.lines().last().unwrap_or_default().to_owned())
}
