//! A fresh control plane for one run, and the processes that use it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use e2e::peers::process::{Flags, PeerProcess, USER};
use http::Method;
use serde_json::json;
use training_testkit::builders::Kind;
use training_testkit::control_plane::{ADMIN, ControlPlane, Options, User};
use training_testkit::manifest;
use training_testkit::operator::{self, OperatorProcess};

use crate::child::Helper;
use crate::counts::{self, Counts, DRIVER, FLOOR, GROUP, LOAD};
use crate::drive::Script;
use crate::http::{Api, Ask, CORE};
use crate::kind;
use crate::machine;
use crate::store::{Figures, Side};

/// How long a process may take to become ready.
pub const START: Duration = Duration::from_mins(2);

/// etcd with fsync, kube-apiserver, the operator's manifests, users and a namespace.
pub struct Stage {
    /// The control plane.
    pub control: ControlPlane,
    /// The load generator's client.
    pub api: Api,
    /// The kind of the jobs.
    pub kind: Kind,
    /// The namespace of the jobs.
    pub namespace: String,
    server: Vec<u32>,
}

/// Whether the API server writes an audit log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audit {
    /// Enabled, to count requests.
    On,
    /// Disabled, to measure time.
    Off,
}

impl Stage {
    /// Starts everything except the clients, with what the measured one needs.
    pub async fn start(kind: Kind, audit: Audit, side: Side) -> Result<Self> {
        let before = machine::descendants(std::process::id());
        let user = |name: &str| User {
            name: name.to_owned(),
            groups: vec![GROUP.to_owned()],
        };
        let control = ControlPlane::start(Options {
            audit: audit == Audit::On,
            fsync: true,
            users: [FLOOR, LOAD, DRIVER, USER].map(user).to_vec(),
            ..Options::default()
        })
        .await?;
        let mut server = machine::descendants(std::process::id());
        server.retain(|pid| !before.contains(pid));
        match side {
            Side::Floor | Side::Ours => control.install(kind.operator).await?,
            Side::Go | Side::Tuned => kind::peer(&kind)?.install(&control).await?,
        }
        manifest::apply(&control.client(ADMIN).await?, counts::objects(&kind)).await?;
        let api = Api::new(&control.kubeconfig(LOAD).await?).await?;
        let stage = Self {
            control,
            api,
            kind,
            namespace: String::new(),
            server,
        };
        let stage = stage.namespace("bench").await?;
        stage.until_counted().await?;
        Ok(stage)
    }

    /// Returns the same stage with another, new namespace.
    pub async fn namespace(mut self, name: &str) -> Result<Self> {
        let body = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        let path = format!("{CORE}/namespaces");
        self.api
            .must(Method::POST, &path, Ask::write(body.to_string()))
            .await?;
        name.clone_into(&mut self.namespace);
        Ok(self)
    }

    /// Waits until the flow schemas take effect: before that, requests are counted elsewhere.
    async fn until_counted(&self) -> Result<()> {
        let probe = Api::new(&self.control.kubeconfig(FLOOR).await?).await?;
        let path = format!("{CORE}/namespaces/{}", self.namespace);
        let before = Counts::read(&self.api).await?;
        for _ in 0..100 {
            probe
                .must(Method::GET, &path, Ask::read(crate::http::METADATA))
                .await?;
            let after = Counts::read(&self.api).await?;
            if after.since(&before, Side::Floor)["reads"] > 0.0 {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        anyhow::bail!("the flow schemas don't take effect")
    }

    /// Starts the measured client.
    pub async fn client(&self, side: Side) -> Result<Client> {
        Ok(match side {
            Side::Floor => {
                let kubeconfig = self.control.kubeconfig(FLOOR).await?.display().to_string();
                let word = kind::word(&self.kind);
                Client::Floor(
                    self.helper(&["floor", &kubeconfig, word, &self.namespace])
                        .await?,
                )
            }
            Side::Ours => Client::Ours(OperatorProcess::start(self.operator().await?).await?),
            Side::Go => self.go(Flags::Default).await?,
            Side::Tuned => self.go(Flags::Tuned).await?,
        })
    }

    async fn go(&self, flags: Flags) -> Result<Client> {
        let peer = kind::peer(&self.kind)?;
        Ok(Client::Go(peer.start(&self.control, flags).await?))
    }

    /// Returns the operator's options, as in the shipped Deployment: with election and for all namespaces.
    pub async fn operator(&self) -> Result<operator::Options> {
        let kubeconfig = self.control.kubeconfig(&self.kind.user()).await?;
        let log = self.log("operator");
        let mut options = operator::Options::new(self.kind.operator, &kubeconfig, "", &log);
        options.flags = [
            "--leader-elect=true",
            "--leader-election-namespace=trainyard-system",
        ]
        .map(str::to_owned)
        .to_vec();
        Ok(options)
    }

    /// Starts the status driver.
    pub async fn driver(&self, script: Script) -> Result<Helper> {
        let kubeconfig = self.control.kubeconfig(DRIVER).await?.display().to_string();
        let millis = |time: Duration| time.as_millis().to_string();
        let (run, succeed) = (millis(script.run_after), millis(script.succeed_after));
        let hold = if script.hold { "hold" } else { "go" };
        let word = kind::word(&self.kind);
        self.helper(&[
            "drive",
            &kubeconfig,
            word,
            &self.namespace,
            &run,
            &succeed,
            hold,
        ])
        .await
    }

    /// Starts a child process and waits until it is ready.
    pub async fn helper(&self, args: &[&str]) -> Result<Helper> {
        let log = self.log(args.first().copied().unwrap_or("helper"));
        let mut helper = Helper::start(args, &log)?;
        match helper.line(START).await {
            Ok(line) if line == "ready" => Ok(helper),
            Ok(line) => anyhow::bail!("instead of being ready: {line}"),
            Err(error) => {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                Err(error.context(said))
            }
        }
    }

    /// Returns the log file of a process.
    pub fn log(&self, name: &str) -> PathBuf {
        self.control.scratch().join(format!("{name}.log"))
    }

    /// Returns the CPU time of etcd and the API server. Units: milliseconds.
    pub fn server_cpu(&self) -> Result<f64> {
        self.server.iter().map(|pid| machine::cpu(*pid)).sum()
    }
}

/// The measured client.
pub enum Client {
    /// The floor client.
    Floor(Helper),
    /// The operator.
    Ours(OperatorProcess),
    /// The published one.
    Go(PeerProcess),
}

impl Client {
    /// The side whose requests it sends.
    pub fn side(&self) -> Side {
        match self {
            Self::Floor(_) => Side::Floor,
            Self::Ours(_) => Side::Ours,
            Self::Go(_) => Side::Go,
        }
    }

    /// Its process id; of a Go operator, its controller's.
    pub fn pid(&self) -> u32 {
        match self {
            Self::Floor(helper) => helper.pid(),
            Self::Ours(operator) => operator.pid(),
            Self::Go(operator) => operator.pid(),
        }
    }

    /// Its process ids, with those of a Go operator's webhook and of the processes that run `spark-submit` for it.
    fn pids(&self) -> Vec<u32> {
        let roots = match self {
            Self::Floor(_) | Self::Ours(_) => return vec![self.pid()],
            Self::Go(operator) => operator.pids(),
        };
        let children = roots.iter().flat_map(|pid| machine::descendants(*pid));
        children.chain(roots.iter().copied()).collect()
    }

    /// Returns its CPU time, with that of processes that it started. Units: milliseconds.
    fn cpu(&self) -> Result<f64> {
        match self {
            Self::Floor(_) | Self::Ours(_) => machine::cpu(self.pid()),
            Self::Go(_) => Ok(machine::cpu_with_ended(&self.pids())),
        }
    }

    /// Returns the resident memory of its processes, without `spark-submit`. Units: MB.
    pub fn resident(&self) -> Result<f64> {
        match self {
            Self::Floor(_) | Self::Ours(_) => Ok(machine::memory(self.pid())?.rss),
            Self::Go(operator) => {
                let all = operator.programs();
                all.iter().map(|pid| Ok(machine::memory(*pid)?.rss)).sum()
            }
        }
    }

    /// Returns whether it has ended, which is an error.
    pub fn has_ended(&mut self) -> Result<bool> {
        match self {
            Self::Floor(helper) => helper.has_ended(),
            Self::Ours(operator) => operator.has_ended(),
            Self::Go(operator) => Ok(operator.has_ended()),
        }
    }
}

/// Measures the CPU of all processes over a time span.
pub struct Meter {
    client: f64,
    without_pool: f64,
    server: f64,
    own: f64,
    total: machine::Total,
    counts: Counts,
}

impl Meter {
    /// Starts to measure.
    pub async fn begin(stage: &Stage, client: &Client) -> Result<Self> {
        // First, because the request costs the server CPU.
        let counts = Counts::read(&stage.api).await?;
        Ok(Self {
            client: client.cpu()?,
            without_pool: machine::cpu_without_pool(client.pid())?,
            server: stage.server_cpu()?,
            own: own(stage, client)?,
            total: machine::total()?,
            counts,
        })
    }

    /// Stops, and returns CPU and requests per job, and the share of the machine that others used.
    pub async fn end(
        self,
        stage: &Stage,
        client: &Client,
        side: Side,
        jobs: f64,
    ) -> Result<Figures> {
        let total = machine::total()?;
        let server = stage.server_cpu()? - self.server;
        let mine = client.cpu()? - self.client;
        let known = server + mine + own(stage, client)? - self.own;
        let foreign = (total.busy - self.total.busy - known).max(0.0);
        let mut figures = Counts::read(&stage.api).await?.since(&self.counts, side);
        for sort in ["writes", "events"] {
            if let Some(count) = figures.remove(sort) {
                figures.insert(format!("{sort}_per_job"), count / jobs);
            }
        }
        figures.insert("jobs".to_owned(), jobs);
        figures.insert("all_cpu_ms_per_job".to_owned(), mine / jobs);
        let mut counted = mine;
        if kind::launches(&stage.kind) && !matches!(client, Client::Go(_)) {
            // The operator and the floor client use the pool only to generate keys.
            counted = machine::cpu_without_pool(client.pid())? - self.without_pool;
            let keys = mine - counted;
            anyhow::ensure!(keys > 0.0, "no CPU was used for keys: {keys} ms");
            figures.insert("key_cpu_ms_per_job".to_owned(), keys / jobs);
        }
        figures.insert("cpu_ms_per_job".to_owned(), counted / jobs);
        figures.insert("server_cpu_ms_per_job".to_owned(), server / jobs);
        let all = (total.all - self.total.all).max(1.0);
        figures.insert("foreign_share".to_owned(), foreign / all);
        Ok(figures)
    }
}

/// Returns the CPU time of the load generator and the status driver.
fn own(stage: &Stage, client: &Client) -> Result<f64> {
    let mut helpers = machine::descendants(std::process::id());
    let measured = client.pids();
    helpers.retain(|pid| !stage.server.contains(pid) && !measured.contains(pid));
    // Ignores a helper that has ended meanwhile.
    let helpers: f64 = helpers
        .iter()
        .filter_map(|pid| machine::cpu(*pid).ok())
        .sum();
    Ok(machine::cpu(std::process::id())? + helpers)
}
