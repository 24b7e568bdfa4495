//! The Spark operator: its controller, its webhook, and the `spark-submit` that it calls.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result};
use serde::Deserialize;
use serde_json::{Value, json};
use training_testkit::control_plane::workspace;

use crate::submit::sandbox::Sandbox;
use crate::submit::{IMAGE, SPARK_SUBMIT, server};

/// The namespace of the operator.
pub(super) const NAMESPACE: &str = "spark-operator";
/// The name of its webhook configurations.
pub(super) const WEBHOOKS: &str = "spark-operator-webhook";
/// The Service of its webhook.
pub(super) const SERVICE: &str = "spark-webhook";
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
    /// The processes that run them.
    pub pids: Vec<u32>,
    ends: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Submitter {
    /// Ends the sandboxes, which have copies of the image.
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        // Wakes the thread that listens.
        let _ = UnixStream::connect(&self.socket);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Submitter {
    /// Begins to listen. Submissions use this kubeconfig.
    pub(super) fn start(scratch: &Path, kubeconfig: &str) -> Result<Self> {
        let home = scratch.join("spark-home");
        if home.exists() {
            // That of an operator that was killed.
            std::fs::remove_dir_all(&home)?;
        }
        std::fs::create_dir_all(home.join("bin"))?;
        let program = workspace().join("e2e/peers/spark/spark-submit");
        symlink(program, home.join("bin/spark-submit"))?;
        let socket = home.join("submit.sock");
        let listener = UnixListener::bind(&socket)?;
        let busy = Arc::new(AtomicUsize::new(0));
        let (sender, queue) = std::sync::mpsc::channel();
        let counted = Arc::clone(&busy);
        let ends = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&ends);
        let listens = thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if ended.load(Ordering::SeqCst) {
                    return;
                }
                counted.fetch_add(1, Ordering::SeqCst);
                if sender.send(stream).is_err() {
                    return;
                }
            }
        });
        let queue = Arc::new(std::sync::Mutex::new(queue));
        let (mut pids, mut threads) = (Vec::new(), vec![listens]);
        for _ in 0..SUBMITTERS {
            let mut sandbox = Sandbox::open(IMAGE)?;
            pids.push(sandbox.pid());
            let (queue, busy) = (Arc::clone(&queue), Arc::clone(&busy));
            let ended = Arc::clone(&ends);
            let kubeconfig = kubeconfig.to_owned();
            threads.push(thread::spawn(move || {
                loop {
                    let next = queue.lock().ok().and_then(|queue| queue.recv().ok());
                    let Some(stream) = next else { return };
                    if ended.load(Ordering::SeqCst) {
                        return;
                    }
                    // An operator that was killed does not wait for the answer.
                    let _ = answer(&mut sandbox, &stream, &kubeconfig);
                    busy.fetch_sub(1, Ordering::SeqCst);
                }
            }));
        }
        Ok(Self {
            home,
            socket,
            busy,
            pids,
            ends,
            threads,
        })
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
    // The user of the operator's image.
    let mut command = ["env", "HADOOP_USER_NAME=spark", SPARK_SUBMIT]
        .map(str::to_owned)
        .to_vec();
    command.extend(arguments);
    let ended = sandbox.run(&command, &files)?;
    let answer = json!({ "code": ended.code, "output": ended.output });
    writeln!(stream, "{answer}")?;
    Ok(())
}

/// Returns host and port of the API server, which the operator reads from its environment.
pub(super) fn address(kubeconfig: &str) -> Result<(String, String)> {
    let server = server(kubeconfig)?;
    let address = server.strip_prefix("https://");
    let (host, port) = address
        .and_then(|address| address.trim_end_matches('/').rsplit_once(':'))
        .context("no port")?;
    Ok((host.to_owned(), port.to_owned()))
}

/// Makes the webhook of pods as the operator's chart does: only for those that the operator launched.
pub(super) fn limit_to_launched(configurations: &mut [Value]) {
    let launched = json!({ "sparkoperator.k8s.io/launched-by-spark-operator": "true" });
    let webhooks = configurations
        .iter_mut()
        .filter_map(|configuration| configuration.get_mut("webhooks")?.as_array_mut());
    for webhook in webhooks.flatten() {
        if webhook["clientConfig"]["service"]["path"] == "/mutate--v1-pod" {
            webhook["objectSelector"] = json!({ "matchLabels": launched });
        }
    }
}
