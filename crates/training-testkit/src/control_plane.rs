//! A real API server for the tests of one binary.
//!
//! It is the light mode of the local cluster: etcd and kube-apiserver as child processes on free ports of 127.0.0.1. They exit when
//! our end of a pipe closes, which the kernel does however this process ends. With `TRAINYARD_KUBECONFIG` set, the tests use that
//! cluster instead; [`Capabilities`] says what can't be tested there.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};
use hyper::body::Body;
use hyper_util::client::legacy::connect::Connect;
use hyper_util::rt::TokioExecutor;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::client::ConfigExt as _;
use kube::client::retry::RetryPolicy;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use tokio::sync::{OnceCell, oneshot};
use tower::retry::RetryLayer;
use tower::{BoxError, ServiceBuilder};

use crate::audit::AuditLog;
use crate::builders::{KINDS, MPI, SPARK_OPERATOR, operator_user};
use crate::manifest;

/// May do everything.
pub const ADMIN: &str = "admin";
/// May do everything, under another name, so that the audit log distinguishes it from the test itself.
pub const DRIVER: &str = "driver";
/// The service account of the `PyTorchJob` operator in the shipped manifests.
pub const PYTORCH_OPERATOR: &str = "system:serviceaccount:trainyard-system:pytorch-operator";

/// The cluster to use instead of starting one.
const KUBECONFIG_VARIABLE: &str = "TRAINYARD_KUBECONFIG";
/// Go's `GOGC`: the API server collects garbage less often, because that took a tenth of its time. Unit: percent.
const HEAP_GROWTH: &str = "500";
/// The path of the light mode's program, if built elsewhere.
const NODE_VARIABLE: &str = "TRAINYARD_NODE";
/// The file with the errors of the light mode's program, in the directory of the control plane.
const LOG: &str = "light.log";

/// The start timeout. Two seconds is normal; a concurrent build slows it down.
const START: Duration = Duration::from_mins(3);
/// The age at which leftover test files are deleted.
const STALE: Duration = Duration::from_hours(1);

/// What to start.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Start kube-controller-manager: garbage collection, quotas, namespace deletion.
    pub controller_manager: bool,
    /// Extra flags for kube-controller-manager.
    pub controller_manager_flags: Vec<String>,
    /// Write an audit log.
    pub audit: bool,
    /// Let etcd sync to disk.
    pub fsync: bool,
    /// Users in addition to [`ADMIN`], [`DRIVER`] and [`PYTORCH_OPERATOR`].
    pub users: Vec<User>,
}

/// A user of the API server.
#[derive(Clone, Debug)]
pub struct User {
    /// The name in RBAC.
    pub name: String,
    /// The groups; those of a `ServiceAccount` are implied.
    pub groups: Vec<String>,
}

/// What a control plane allows a test to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// It has an audit log.
    pub audit: bool,
    /// It has garbage collection, quotas and namespace deletion.
    pub controllers: bool,
    /// It has no other scheduler or kubelet, so the scripted one may run.
    pub play_kubelet: bool,
}

/// A running API server.
#[derive(Debug)]
pub struct ControlPlane {
    dir: PathBuf,
    can: Capabilities,
    process: Option<Process>,
    audit: AuditLog,
    installed: tokio::sync::Mutex<std::collections::BTreeSet<String>>,
}

#[derive(Debug)]
struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    /// Set before we stop it.
    stopping: Arc<AtomicBool>,
}

static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
static STARTED: AtomicU32 = AtomicU32::new(0);

impl ControlPlane {
    /// The control plane that all tests of this binary share, with every option and the manifests of the `PyTorchJob` operator.
    ///
    /// It is never dropped; the closing pipe ends it together with this process.
    pub async fn shared() -> Result<&'static Self> {
        let shared = SHARED
            .get_or_try_init(|| {
                Self::start(Options {
                    controller_manager: true,
                    audit: true,
                    ..Options::default()
                })
            })
            .await?;
        shared.install("pytorch-operator").await?;
        Ok(shared)
    }

    /// Starts a control plane and waits until it is ready.
    pub async fn start(options: Options) -> Result<Self> {
        // A second installation fails, which is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = scratch_directory()?;
        let audit = AuditLog::at(dir.join("audit.log"), dir.join("kubeconfig"));
        if let Some(kubeconfig) = std::env::var_os(KUBECONFIG_VARIABLE) {
            fs::copy(&kubeconfig, dir.join("kubeconfig"))
                .with_context(|| format!("{KUBECONFIG_VARIABLE} is {}", kubeconfig.display()))?;
            let can = Capabilities {
                audit: false,
                controllers: true,
                play_kubelet: false,
            };
            return Ok(Self {
                dir,
                can,
                process: None,
                audit,
                installed: tokio::sync::Mutex::default(),
            });
        }
        let can = Capabilities {
            audit: options.audit,
            controllers: options.controller_manager,
            play_kubelet: true,
        };
        let process = Some(spawn(&dir, &options).await?);
        Ok(Self {
            dir,
            can,
            process,
            audit,
            installed: tokio::sync::Mutex::default(),
        })
    }

    /// What a test may do with it.
    pub fn can(&self) -> Capabilities {
        self.can
    }

    /// Returns true if this process started it, so that it ends with this process at the latest.
    pub fn is_temporary(&self) -> bool {
        self.process.is_some()
    }

    /// A directory for test files; it is deleted with the control plane, or once it is old.
    pub fn scratch(&self) -> &Path {
        &self.dir
    }

    /// The audit log.
    pub fn audit(&self) -> Result<&AuditLog> {
        anyhow::ensure!(self.can.audit, "this control plane writes no audit log");
        Ok(&self.audit)
    }

    /// The kubeconfig file of a user.
    ///
    /// On a cluster that we did not start, a `ServiceAccount` gets a token from the token API, and everybody else is the user of
    /// the given kubeconfig.
    pub async fn kubeconfig(&self, user: &str) -> Result<PathBuf> {
        let admin = self.dir.join("kubeconfig");
        if user == ADMIN {
            return Ok(admin);
        }
        let own = self.dir.join(format!("kubeconfig-{}", file_name(user)));
        if self.process.is_some() {
            anyhow::ensure!(
                own.exists(),
                "the control plane was started without the user {user}"
            );
            return Ok(own);
        }
        if !user.starts_with("system:serviceaccount:") {
            return Ok(admin);
        }
        let token = self.token(user).await?;
        let mut config = Kubeconfig::read_from(&admin)?;
        for named in &mut config.auth_infos {
            named.auth_info = Some(serde_json::from_value(
                serde_json::json!({ "token": token }),
            )?);
        }
        fs::write(&own, serde_json::to_vec(&config)?)?;
        Ok(own)
    }

    /// The bearer token of a user.
    pub async fn token(&self, user: &str) -> Result<String> {
        if self.process.is_some() {
            let path = self.dir.join(format!("token-{}", file_name(user)));
            let token = fs::read_to_string(&path)
                .with_context(|| format!("the control plane knows no user {user}"))?;
            return Ok(token.trim().to_owned());
        }
        let mut parts = user.split(':').skip(2);
        let (Some(namespace), Some(name)) = (parts.next(), parts.next()) else {
            bail!("{user} is no ServiceAccount, so that a foreign cluster gives no token for it");
        };
        let accounts: Api<ServiceAccount> =
            Api::namespaced(client_from(&self.dir.join("kubeconfig")).await?, namespace);
        let spec = Some(TokenRequestSpec::default());
        let request = TokenRequest {
            spec,
            ..TokenRequest::default()
        };
        let answer = accounts
            .create_token_request(name, &PostParams::default(), &request)
            .await?;
        answer
            .status
            .and_then(|status| status.token)
            .context("a token request without an answer")
    }

    /// A client that acts as a user. Only the calling test may use it: clients belong to the runtime that created them, and every
    /// test has its own.
    pub async fn client(&self, user: &str) -> Result<Client> {
        client_from(&self.kubeconfig(user).await?).await
    }

    /// Installs an operator's CRDs, accounts, roles and policies, once.
    ///
    /// It skips workloads, because the tests run the operator as a process of their own.
    pub async fn install(&self, operator: &str) -> Result<()> {
        let mut installed = self.installed.lock().await;
        if installed.contains(operator) {
            return Ok(());
        }
        self.apply(&workspace().join("manifests").join(operator))
            .await?;
        installed.insert(operator.to_owned());
        Ok(())
    }

    /// Applies the manifests of a directory except workloads.
    pub async fn apply(&self, directory: &Path) -> Result<()> {
        let mut objects = Vec::new();
        for file in manifest::files(directory)? {
            objects.extend(manifest::documents(&file)?);
        }
        // A kustomization is for clients only and not an API object.
        objects
            .retain(|object| object["kind"] != "Deployment" && object["kind"] != "Kustomization");
        manifest::apply(&self.client(ADMIN).await?, objects).await
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        let mut failed = std::thread::panicking();
        if let Some(process) = &mut self.process {
            failed |= matches!(process.child.try_wait(), Ok(Some(_)));
            process.stopping.store(true, Ordering::Relaxed);
            drop(process.stdin.take());
            let end = Instant::now() + Duration::from_secs(10);
            while Instant::now() < end && !matches!(process.child.try_wait(), Ok(Some(_))) {
                std::thread::sleep(Duration::from_millis(10));
            }
            // Has no effect if it has exited, as it should.
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
        // The logs of a failed test or control plane stay.
        if !failed {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

/// A client from a kubeconfig file. It has no timeouts.
pub async fn client_from(kubeconfig: &Path) -> Result<Client> {
    let config = config_from(kubeconfig).await?;
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .layer(RetryLayer::new(retries()?))
        .map_err(BoxError::from)
        .service(connections(config.rustls_https_connector()?));
    Ok(Client::new(service, config.default_namespace))
}

/// Retries 429, 503 and 504: for about a second after a CRD has changed, the API server refuses lists and watches of its kind
/// ("storage is (re)initializing").
fn retries() -> Result<RetryPolicy> {
    const MIN: Duration = Duration::from_millis(50);
    const MAX: Duration = Duration::from_secs(1);
    const RETRIES: u32 = 60;
    Ok(RetryPolicy::new(MIN, MAX, RETRIES, false)?)
}

/// Connections to the API server. It closes idle ones after 90 s, and hyper's pool keeps them just as long, so a request sent in
/// that moment would fail.
pub fn connections<C, B>(connector: C) -> hyper_util::client::legacy::Client<C, B>
where
    C: Connect + Clone,
    B: Body + Send,
    B::Data: Send,
{
    const IDLE: Duration = Duration::from_secs(30);
    hyper_util::client::legacy::Client::builder(TokioExecutor::new())
        .pool_idle_timeout(IDLE)
        .build(connector)
}

/// Reads the client configuration of a kubeconfig file.
pub async fn config_from(kubeconfig: &Path) -> Result<Config> {
    let file = Kubeconfig::read_from(kubeconfig)?;
    Ok(Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?)
}

/// The root of the workspace.
pub fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// The cargo target directory, found from the running test, which is in `target/<profile>/deps`.
pub fn target_directory() -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    let target = test
        .ancestors()
        .nth(3)
        .context("a test outside of a target directory")?;
    Ok(target.to_owned())
}

/// Colons would end a path in a variable that lists several.
fn file_name(user: &str) -> String {
    user.replace([':', '/'], "_")
}

fn scratch_directory() -> Result<PathBuf> {
    let all = target_directory()?.join("testkit");
    fs::create_dir_all(&all)?;
    sweep(&all);
    let number = STARTED.fetch_add(1, Ordering::Relaxed);
    let dir = all.join(format!("{}-{number}", std::process::id()));
    fs::create_dir_all(&dir)?;
    Ok(dir)
}

/// Deletes what earlier test processes left, except recent files that somebody may want to read.
fn sweep(all: &Path) {
    let Ok(entries) = fs::read_dir(all) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let process = name
            .to_string_lossy()
            .split('-')
            .next()
            .unwrap_or_default()
            .to_owned();
        let alive = Path::new("/proc").join(&process).exists();
        let changed = entry
            .metadata()
            .and_then(|m| m.modified())
            .unwrap_or(SystemTime::UNIX_EPOCH);
        let old = changed.elapsed().is_ok_and(|age| age > STALE);
        if old && !alive {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

async fn spawn(dir: &Path, options: &Options) -> Result<Process> {
    let program = tokio::task::spawn_blocking(program).await??;
    let mut command = Command::new(program);
    command
        .arg("light")
        .arg("--dir")
        .arg(dir)
        .arg("--until-stdin-closes");
    for (wanted, flag) in [
        (options.controller_manager, "--controller-manager"),
        (options.audit, "--audit"),
        (options.fsync, "--fsync"),
    ] {
        if wanted {
            command.arg(flag);
        }
    }
    for flag in &options.controller_manager_flags {
        command.arg(format!("--controller-manager-arg={flag}"));
    }
    let operators = KINDS.iter().chain([&MPI]).map(|kind| kind.operator);
    let operators = operators.chain([SPARK_OPERATOR]).map(|operator| User {
        name: operator_user(operator),
        groups: Vec::new(),
    });
    for user in options.users.iter().cloned().chain(operators) {
        let mut value = format!("{}={:032x}", user.name, fastrand::u128(..));
        for group in &user.groups {
            value.push(',');
            value.push_str(group);
        }
        command.arg("--user").arg(value);
    }
    let log = fs::File::create(dir.join(LOG))?;
    command
        .env("GOGC", HEAP_GROWTH)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log);
    let mut child = command.spawn().context("can't start the control plane")?;
    let stdin = child.stdin.take();
    let stdout = child.stdout.take().context("a child without output")?;
    // Created first, so that every error below ends the child too.
    let stopping = Arc::new(AtomicBool::new(false));
    let mut process = Process {
        child,
        stdin,
        stopping: stopping.clone(),
    };
    let directory = dir.to_owned();
    let (ready, is_ready) = oneshot::channel();
    std::thread::spawn(move || {
        let mut ready = Some(ready);
        // Reads to the end: after the pipe closes, another line would kill the program.
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if line.starts_with("ready ")
                && let Some(ready) = ready.take()
            {
                let _ = ready.send(());
            }
        }
        // Tests only notice that their connections are lost.
        if ready.is_none() && !stopping.load(Ordering::Relaxed) {
            eprintln!("the control plane ended; {}", said(&directory));
        }
    });
    let outcome = tokio::time::timeout(START, is_ready).await;
    if !matches!(outcome, Ok(Ok(()))) {
        let _ = process.child.kill();
        let _ = process.child.wait();
        bail!("the control plane did not become ready; {}", said(dir));
    }
    Ok(process)
}

/// The log of a control plane, for an error message.
fn said(dir: &Path) -> String {
    let path = dir.join(LOG);
    let log = fs::read_to_string(&path).unwrap_or_default();
    format!("{} says:\n{log}", path.display())
}

/// Builds the program of the light mode if it doesn't exist.
fn program() -> Result<PathBuf> {
    if let Some(program) = std::env::var_os(NODE_VARIABLE) {
        return Ok(program.into());
    }
    built("e2e/cluster/build", &[])
}

/// Runs a script of the workspace that builds something unless it is in the cache. Returns the path that it prints last.
///
/// # Errors
/// If the script can't be run or fails, or prints nothing.
pub fn built(script: &str, arguments: &[&str]) -> Result<PathBuf> {
    let output = Command::new(workspace().join(script))
        .args(arguments)
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("can't run {script}"))?;
    anyhow::ensure!(output.status.success(), "{script} {arguments:?} failed");
    let text = String::from_utf8(output.stdout)?;
    let last = text.lines().last();
    let last = last.with_context(|| format!("{script} prints no path"))?;
    Ok(last.trim().into())
}
