//! A Go operator as a process beside a light control plane.

mod spark;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, PostParams};
use serde_json::{Value, json};
use training_testkit::control_plane::{ADMIN, ControlPlane, User, built};
use training_testkit::manifest;
use training_testkit::operator::{free_address, get};
use training_testkit::wait::{HANG, Seen, eventually};

use super::SERVED;

/// The user that the Go operators are to the API server.
pub const USER: &str = "peer";
/// Where the training operator's certificates must be; not settable.
const CERTIFICATES: &str = "/tmp/k8s-webhook-server/serving-certs";

/// The longest time in which a started `spark-submit` connects to the submitter.
const CONNECTS: Duration = Duration::from_secs(1);
/// The Secret with them.
const CERTIFICATE: &str = "training-operator-webhook-cert";

/// A published Go operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// `github.com/kubeflow/training-operator`.
    Training,
    /// `github.com/kubeflow/mpi-operator`.
    Mpi,
    /// `github.com/kubeflow/spark-operator`.
    Spark,
}

/// The flags of a Go operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flags {
    /// Its defaults.
    Default,
    /// Several threads, and 1,000 requests a second.
    Tuned,
}

/// A running Go operator; dropping it kills it.
#[derive(Debug)]
pub struct PeerProcess {
    /// Its controller, and its webhook if that is a process of its own.
    children: Vec<Child>,
    log: PathBuf,
    submitter: Option<spark::Submitter>,
    /// Held while it runs: the training operator has a fixed directory, the MPI operator a fixed port.
    _turn: File,
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        for child in &mut self.children {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns the user of the Go operators, who may do everything.
pub fn user() -> User {
    User {
        name: USER.to_owned(),
        groups: vec!["system:masters".to_owned()],
    }
}

impl Peer {
    /// Its name in `e2e/peers`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Training => "training",
            Self::Mpi => "mpi",
            Self::Spark => "spark",
        }
    }

    /// Builds it, unless it is in the cache. Returns its directory.
    pub fn built(self) -> Result<PathBuf> {
        built("e2e/peers/build", &[self.name()])
    }

    /// Applies its CRDs.
    pub async fn install(self, control: &ControlPlane) -> Result<()> {
        let built = self.built()?;
        let files = match self {
            Self::Training => manifest::files(&built.join("manifests/base/crds"))?,
            Self::Mpi => vec![built.join("manifests/base/kubeflow.org_mpijobs.yaml")],
            Self::Spark => manifest::files(&built.join("config/crd/bases"))?,
        };
        let mut objects = Vec::new();
        for file in files {
            objects.extend(manifest::documents(&file)?);
        }
        objects.retain(|object| object["kind"] == "CustomResourceDefinition");
        manifest::apply(&control.client(ADMIN).await?, objects).await
    }

    /// Starts it as [`USER`], and waits until it is ready.
    pub async fn start(self, control: &ControlPlane, flags: Flags) -> Result<PeerProcess> {
        let launch = Launch {
            built: self.built()?,
            kubeconfig: control.kubeconfig(USER).await?,
            control,
            flags,
        };
        let mut process = PeerProcess {
            children: Vec::new(),
            submitter: None,
            _turn: only_one()?,
            log: control.scratch().join(format!("{}.log", self.name())),
        };
        match self {
            Self::Training => process.start_training(&launch).await?,
            Self::Mpi => process.start_mpi(&launch).await?,
            Self::Spark => process.start_spark(&launch).await?,
        }
        Ok(process)
    }
}

/// What a Go operator is started with.
struct Launch<'a> {
    control: &'a ControlPlane,
    built: PathBuf,
    kubeconfig: PathBuf,
    flags: Flags,
}

impl Launch<'_> {
    /// Returns its command, with these arguments if it is tuned.
    fn command(&self, arguments: &[&str], tuned: &[&str]) -> Command {
        let mut command = Command::new("/usr/bin/setpriv");
        command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(self.built.join("operator"))
            .args(arguments);
        if self.flags == Flags::Tuned {
            command
                .args(["--kube-api-qps=1000", "--kube-api-burst=1000"])
                .args(tuned);
        }
        command
    }

    async fn apply(&self, objects: Vec<Value>) -> Result<()> {
        manifest::apply(&self.control.client(ADMIN).await?, objects).await
    }
}

impl PeerProcess {
    async fn start_training(&mut self, launch: &Launch<'_>) -> Result<()> {
        let (health, metrics) = (free_address()?, free_address()?);
        let port = free_address()?.port();
        let mut objects = webhooks(
            &launch.built.join("manifests/base/webhook/manifests.yaml"),
            "validator.training-operator.kubeflow.org",
            ["kubeflow", "training-operator"],
            port,
        )?;
        // For its certificates.
        objects.push(json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": CERTIFICATE, "namespace": "kubeflow" },
        }));
        launch.apply(objects).await?;
        let mut command = launch.command(&[], &["--controller-threads=8"]);
        command
            .arg(format!("--kubeconfig={}", launch.kubeconfig.display()))
            .arg(format!("--health-probe-bind-address={health}"))
            .arg(format!("--metrics-bind-address={metrics}"))
            .arg(format!("--webhook-server-port={port}"));
        self.spawn(command)?;
        self.until_certificates(launch.control).await?;
        self.until_ready(health).await?;
        self.until_served(launch.control).await
    }

    async fn start_mpi(&mut self, launch: &Launch<'_>) -> Result<()> {
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "mpi-operator" } });
        launch.apply(vec![namespace]).await?;
        // A killed one holds it for some time.
        let client = launch.control.client(ADMIN).await?;
        let leases: Api<Lease> = Api::namespaced(client, "mpi-operator");
        leases
            .delete_collection(&DeleteParams::default(), &ListParams::default())
            .await?;
        let tuned = [
            "--threadiness=8",
            "--controller-queue-rate-limit=1000",
            "--controller-queue-burst=1000",
        ];
        let mut command = launch.command(&[], &tuned);
        command.arg(format!("--kubeConfig={}", launch.kubeconfig.display()));
        self.spawn(command)?;
        self.until_leads(launch.control).await
    }

    async fn start_spark(&mut self, launch: &Launch<'_>) -> Result<()> {
        let port = free_address()?.port();
        let mut objects = webhooks(
            &launch.built.join("config/webhook/manifests.yaml"),
            spark::WEBHOOKS,
            [spark::NAMESPACE, spark::SERVICE],
            port,
        )?;
        spark::limit_to_launched(&mut objects);
        launch.apply(objects).await?;
        let scratch = launch.control.scratch();
        let kubeconfig = format!("--kubeconfig={}", launch.kubeconfig.display());
        let health = free_address()?;
        let mut webhook = launch.command(&["webhook", "start"], &[]);
        webhook
            .arg(&kubeconfig)
            .arg(format!("--health-probe-bind-address={health}"))
            .arg(format!("--webhook-port={port}"))
            .arg(format!(
                "--webhook-cert-dir={}",
                scratch.join("spark-webhook").display()
            ))
            .arg(format!("--webhook-svc-name={}", spark::SERVICE))
            .arg(format!("--webhook-svc-namespace={}", spark::NAMESPACE));
        self.spawn(webhook)?;
        self.until_ready(health).await?;
        self.until_trusted(launch.control).await?;
        let text = fs::read_to_string(&launch.kubeconfig)?;
        let submitter = spark::Submitter::start(scratch, &text)?;
        let (host, port) = spark::address(&text)?;
        let health = free_address()?;
        let tuned = [
            "--controller-threads=8",
            "--workqueue-ratelimiter-bucket-qps=1000",
            "--workqueue-ratelimiter-bucket-size=1000",
        ];
        let mut controller = launch.command(&["controller", "start"], &tuned);
        controller
            .arg(&kubeconfig)
            .arg(format!("--health-probe-bind-address={health}"))
            .env("SPARK_HOME", &submitter.home)
            .env("TRAINYARD_SUBMIT_SOCKET", &submitter.socket)
            .env("KUBERNETES_SERVICE_HOST", host)
            .env("KUBERNETES_SERVICE_PORT", port);
        self.spawn(controller)?;
        self.submitter = Some(submitter);
        self.until_ready(health).await
    }

    fn spawn(&mut self, mut command: Command) -> Result<()> {
        let output = File::options().create(true).append(true).open(&self.log)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .context("can't start it")?;
        self.children.push(child);
        Ok(())
    }

    /// Returns true while the Spark operator waits for a submission.
    pub fn is_submitting(&self) -> bool {
        let busy = self.submitter.as_ref().map(|submitter| &submitter.busy);
        busy.is_some_and(|busy| busy.load(Ordering::SeqCst) > 0)
    }

    /// The process id of its controller.
    pub fn pid(&self) -> u32 {
        self.children.last().map_or(0, Child::id)
    }

    /// The process ids of its controller and its webhook.
    pub fn programs(&self) -> Vec<u32> {
        self.children.iter().map(Child::id).collect()
    }

    /// The same with the processes that run `spark-submit` for it.
    pub fn pids(&self) -> Vec<u32> {
        let mut all = self.programs();
        all.extend(self.submitter.iter().flat_map(|of| &of.pids));
        all
    }

    /// Returns true if it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.assert_runs().is_err()
    }

    /// Kills it. What it has submitted comes first, as if it was killed a moment later.
    pub async fn kill(mut self) -> Result<()> {
        for child in &mut self.children {
            child.kill()?;
            child.wait()?;
        }
        eventually("the end of submissions", HANG, async || {
            // One that has just begun connects within this time.
            let submitting = self.is_submitting();
            if self.submitter.is_some() {
                tokio::time::sleep(CONNECTS).await;
            }
            Ok(if submitting || self.is_submitting() {
                Seen::NotYet("spark-submit runs".to_owned())
            } else {
                Seen::Yes(())
            })
        })
        .await
    }

    /// Waits until the Spark operator's webhooks have its certificate.
    async fn until_trusted(&mut self, control: &ControlPlane) -> Result<()> {
        let client = control.client(ADMIN).await?;
        let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
        let validating: Api<ValidatingWebhookConfiguration> = Api::all(client);
        eventually("webhooks with certificates", HANG, async || {
            self.assert_runs()?;
            let mutating = mutating.get(spark::WEBHOOKS).await?.webhooks;
            let validating = validating.get(spark::WEBHOOKS).await?.webhooks;
            let mutating = mutating.into_iter().flatten().map(|w| w.client_config);
            let validating = validating.into_iter().flatten().map(|w| w.client_config);
            let missing = mutating.chain(validating).filter(|c| c.ca_bundle.is_none());
            Ok(match missing.count() {
                0 => Seen::Yes(()),
                missing => Seen::NotYet(format!("{missing} without")),
            })
        })
        .await
        .with_context(|| self.tail())
    }

    /// Copies the certificates that the operator made into its directory, as a mounted Secret would.
    async fn until_certificates(&mut self, control: &ControlPlane) -> Result<()> {
        let client = control.client(ADMIN).await?;
        let secrets: Api<Secret> = Api::namespaced(client, "kubeflow");
        let data = eventually("certificates", HANG, async || {
            self.assert_runs()?;
            let secret = secrets.get(CERTIFICATE).await?;
            let data = secret.data.unwrap_or_default();
            Ok(if data.contains_key("tls.crt") {
                Seen::Yes(data)
            } else {
                Seen::NotYet(format!("{:?}", data.keys()))
            })
        })
        .await
        .with_context(|| self.tail())?;
        fs::create_dir_all(CERTIFICATES)?;
        for (name, bytes) in data {
            fs::write(Path::new(CERTIFICATES).join(name), bytes.0)?;
        }
        Ok(())
    }

    /// Waits for the webhooks of all kinds, which the training operator serves only after it is ready.
    async fn until_served(&mut self, control: &ControlPlane) -> Result<()> {
        let client = control.client(ADMIN).await?;
        let served = SERVED.iter().filter(|(_, peer)| *peer == Peer::Training);
        let parameters = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        for (kind, _) in served {
            let jobs: Api<DynamicObject> =
                Api::namespaced_with(client.clone(), "default", &kind.resource());
            let job = serde_json::from_value(kind.small_job("probe", 1).build())?;
            eventually("webhooks", HANG, async || {
                self.assert_runs()?;
                match jobs.create(&parameters, &job).await {
                    Err(kube::Error::Api(status)) if status.code == 500 => {
                        Ok(Seen::NotYet(status.message))
                    }
                    other => Ok(Seen::Yes(other.map(drop)?)),
                }
            })
            .await
            .with_context(|| self.tail())?;
        }
        Ok(())
    }

    async fn until_ready(&mut self, health: std::net::SocketAddr) -> Result<()> {
        eventually("/readyz to be 200", HANG, async || {
            self.assert_runs()?;
            let (code, body) = get(health, "/readyz").await?;
            Ok(if code == 200 {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{code} {body}"))
            })
        })
        .await
        .with_context(|| self.tail())
    }

    /// The MPI operator has no probe before it leads.
    async fn until_leads(&mut self, control: &ControlPlane) -> Result<()> {
        let client = control.client(ADMIN).await?;
        let leases: Api<Lease> = Api::namespaced(client, "mpi-operator");
        eventually("a lease", HANG, async || {
            self.assert_runs()?;
            let held = leases.list(&ListParams::default()).await?;
            let held = held.iter().any(|lease| {
                let spec = lease.spec.as_ref();
                spec.is_some_and(|spec| spec.holder_identity.is_some())
            });
            Ok(if held {
                Seen::Yes(())
            } else {
                Seen::NotYet("no leader".to_owned())
            })
        })
        .await
        .with_context(|| self.tail())
    }

    fn assert_runs(&mut self) -> Result<()> {
        for child in &mut self.children {
            if let Some(status) = child.try_wait()? {
                bail!("it ended with {status}");
            }
        }
        Ok(())
    }

    /// Returns the end of its log.
    pub fn tail(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

/// Returns the webhooks in a file of an operator under this name, with a Namespace and a Service that lead to a port of this machine.
fn webhooks(file: &Path, name: &str, service: [&str; 2], port: u16) -> Result<Vec<Value>> {
    let [namespace, service] = service;
    let mut all = manifest::documents(file)?;
    for configuration in &mut all {
        configuration["metadata"]["name"] = json!(name);
        let webhooks = configuration["webhooks"].as_array_mut();
        for webhook in webhooks.into_iter().flatten() {
            let to = &mut webhook["clientConfig"]["service"];
            to["name"] = json!(service);
            to["namespace"] = json!(namespace);
            to["port"] = json!(port);
        }
    }
    all.extend([
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } }),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": service, "namespace": namespace },
            "spec": { "type": "ExternalName", "externalName": "localhost", "ports": [{ "port": port }] },
        }),
    ]);
    Ok(all)
}

/// Waits until no other test of this machine runs a Go operator.
fn only_one() -> Result<File> {
    let file = File::create(std::env::temp_dir().join("trainyard-peer.lock"))?;
    file.lock()?;
    // Those of a former run.
    if Path::new(CERTIFICATES).exists() {
        fs::remove_dir_all(CERTIFICATES)?;
    }
    Ok(file)
}
