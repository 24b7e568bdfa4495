//! The Spark operator: its controller, its webhook, and the `spark-submit` that it calls.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context as _, Result};
use serde::Deserialize;
use serde_json::{Value, json};
use training_testkit::control_plane::workspace;
use training_testkit::manifest;

use crate::submit::sandbox::Sandbox;

/// The namespace of the operator.
pub(super) const NAMESPACE: &str = "spark-operator";
/// The name of its webhook configurations.
pub(super) const WEBHOOKS: &str = "spark-operator-webhook";
/// The Service of its webhook.
pub(super) const SERVICE: &str = "spark-webhook";
/// The image with the `spark-submit` of the Spark version that the operator's own image has.
const IMAGE: &str = "trainyard/spark:1";
/// The number of submissions at a time.
const SUBMITTERS: usize = 2;

/// What the operator asks for.
#[derive(Deserialize)]
struct Submission {
    arguments: Vec<String>,
    files: BTreeMap<String, String>,
}

/// Runs `spark-submit` for the operator.
#[derive(Debug)]
pub(super) struct Submitter {
    /// The operator's `SPARK_HOME`.
    pub home: PathBuf,
    /// Where it listens.
    pub socket: PathBuf,
    /// The submissions that run or wait.
    pub busy: Arc<AtomicUsize>,
}

impl Submitter {
    /// Begins to listen. Submissions use this kubeconfig.
    pub(super) fn start(scratch: &Path, kubeconfig: &str) -> Result<Self> {
        let home = scratch.join("spark-home");
        std::fs::create_dir_all(home.join("bin"))?;
        let program = workspace().join("e2e/peers/spark/spark-submit");
        symlink(program, home.join("bin/spark-submit"))?;
        let socket = scratch.join("submit.sock");
        let listener = UnixListener::bind(&socket)?;
        let busy = Arc::new(AtomicUsize::new(0));
        let (sender, queue) = std::sync::mpsc::channel();
        let counted = Arc::clone(&busy);
        // These threads end with the process.
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                counted.fetch_add(1, Ordering::SeqCst);
                if sender.send(stream).is_err() {
                    return;
                }
            }
        });
        let queue = Arc::new(std::sync::Mutex::new(queue));
        for _ in 0..SUBMITTERS {
            let mut sandbox = Sandbox::open(IMAGE)?;
            let (queue, busy) = (Arc::clone(&queue), Arc::clone(&busy));
            let kubeconfig = kubeconfig.to_owned();
            thread::spawn(move || {
                loop {
                    let next = queue.lock().ok().and_then(|queue| queue.recv().ok());
                    let Some(stream) = next else { return };
                    // An operator that was killed does not wait for the answer.
                    let _ = answer(&mut sandbox, &stream, &kubeconfig);
                    busy.fetch_sub(1, Ordering::SeqCst);
                }
            });
        }
        Ok(Self { home, socket, busy })
    }
}

fn answer(sandbox: &mut Sandbox, mut stream: &UnixStream, kubeconfig: &str) -> Result<()> {
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    let Submission {
        arguments,
        mut files,
    } = serde_json::from_str(&line)?;
    files.insert("/root/.kube/config".to_owned(), kubeconfig.to_owned());
    let mut command = vec!["/opt/spark/bin/spark-submit".to_owned()];
    command.extend(arguments);
    let ended = sandbox.run(&command, &files)?;
    let answer = json!({ "code": ended.code, "output": ended.output });
    writeln!(stream, "{answer}")?;
    Ok(())
}

/// Returns host and port of the API server, which the operator reads from its environment.
pub(super) fn server(kubeconfig: &str) -> Result<(String, String)> {
    let kubeconfig: kube::config::Kubeconfig = serde_saphyr::from_str(kubeconfig)?;
    let cluster = kubeconfig.clusters.first().and_then(|c| c.cluster.as_ref());
    let server = cluster.and_then(|c| c.server.as_deref());
    let address = server.and_then(|server| server.strip_prefix("https://"));
    let (host, port) = address
        .and_then(|address| address.rsplit_once(':'))
        .context("no server")?;
    Ok((host.to_owned(), port.trim_end_matches('/').to_owned()))
}

/// Returns the operator's webhooks, and a Service that leads to this machine.
pub(super) fn webhooks(built: &Path, port: u16) -> Result<Vec<Value>> {
    let mut all = manifest::documents(&built.join("config/webhook/manifests.yaml"))?;
    for configuration in &mut all {
        configuration["metadata"]["name"] = json!(WEBHOOKS);
        for webhook in configuration["webhooks"]
            .as_array_mut()
            .into_iter()
            .flatten()
        {
            let service = &mut webhook["clientConfig"]["service"];
            service["name"] = json!(SERVICE);
            service["namespace"] = json!(NAMESPACE);
            service["port"] = json!(port);
            if service["path"] == "/mutate--v1-pod" {
                // As in the operator's chart.
                let launched = json!({ "sparkoperator.k8s.io/launched-by-spark-operator": "true" });
                webhook["objectSelector"] = json!({ "matchLabels": launched });
            }
        }
    }
    all.extend([
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } }),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": SERVICE, "namespace": NAMESPACE },
            "spec": { "type": "ExternalName", "externalName": "localhost", "ports": [{ "port": port }] },
        }),
    ]);
    Ok(all)
}
