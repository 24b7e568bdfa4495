//! The operator as a process of its own, which can be killed.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kube::config::Kubeconfig;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use crate::control_plane::target_directory;
use crate::wait::{HANG, Seen, eventually};

/// Where the operators are that shall be tested, instead of the target directory.
const BINARIES_VARIABLE: &str = "TRAINYARD_OPERATOR_BIN_DIR";

/// How to start an operator.
#[derive(Clone, Debug)]
pub struct Options {
    /// The binary's name.
    pub binary: String,
    /// Who it is and where its API server is.
    pub kubeconfig: PathBuf,
    /// The namespace that it serves; all of them when empty.
    pub namespace: String,
    /// Further flags.
    pub flags: Vec<String>,
    /// The file that its output goes to; a restart appends.
    pub log: PathBuf,
    /// Where its output goes instead, never to be read: a full device, say.
    pub output: Option<PathBuf>,
}

impl Options {
    /// An operator without election, with backoff short enough for tests.
    pub fn new(binary: &str, kubeconfig: &Path, namespace: &str, log: &Path) -> Self {
        let flags = [
            "--leader-elect=false",
            "--backoff-base=50ms",
            "--backoff-cap=1s",
        ];
        Self {
            binary: binary.to_owned(),
            kubeconfig: kubeconfig.to_owned(),
            namespace: namespace.to_owned(),
            flags: flags.map(str::to_owned).to_vec(),
            log: log.to_owned(),
            output: None,
        }
    }

    /// Elects by this lease: how long it lasts, how soon a leader without answers gives up, and how often the others try.
    #[must_use]
    pub fn elects(self, lease: &str, [duration, renew, retry]: [&str; 3]) -> Self {
        self.flag("leader-elect", "true")
            .flag("leader-election-id", lease)
            .flag("leader-election-namespace", LEASE_NAMESPACE)
            .flag("lease-duration", duration)
            .flag("lease-renew-deadline", renew)
            .flag("lease-retry-period", retry)
    }

    /// Sets a flag, in place of an earlier setting of the same flag.
    #[must_use]
    pub fn flag(mut self, name: &str, value: &str) -> Self {
        let start = format!("--{name}=");
        self.flags.retain(|flag| !flag.starts_with(&start));
        self.flags.push(format!("{start}{value}"));
        self
    }
}

/// Where the shipped role allows a lease to be.
pub const LEASE_NAMESPACE: &str = "trainyard-system";

/// Ports of operators under test: this one and so many from it on.
const FIRST_PORT: u32 = 12_000;
const PORTS: u32 = 18_000;
/// How often an operator may lose a port between the choice of it and the start.
const LOST_PORTS: usize = 5;
/// What the log says then.
const PORT_TAKEN: &str = "Address already in use";

/// A running operator; it ends when this is dropped.
#[derive(Debug)]
pub struct OperatorProcess {
    options: Options,
    child: Child,
    health: SocketAddr,
    metrics: SocketAddr,
    starts: usize,
}

impl OperatorProcess {
    /// Starts it and waits until `/readyz` answers 200.
    pub async fn start(options: Options) -> Result<Self> {
        let operator = Self::spawn(options)?;
        operator.ready().await
    }

    /// Starts it and does not wait: for operators that are not expected to become ready.
    ///
    /// Call it on the thread of the test: where possible the kernel is asked to kill the operator
    /// when the thread that started it ends, so that a killed test leaves nothing running.
    pub fn spawn(options: Options) -> Result<Self> {
        let (health, metrics) = (free_address()?, free_address()?);
        let child = launch(&options, health, metrics)?;
        Ok(Self {
            options,
            child,
            health,
            metrics,
            starts: 1,
        })
    }

    async fn ready(mut self) -> Result<Self> {
        self.until_ready().await?;
        Ok(self)
    }

    /// Launches it with two ports of its own.
    fn launch_anew(&mut self) -> Result<()> {
        (self.health, self.metrics) = (free_address()?, free_address()?);
        self.child = launch(&self.options, self.health, self.metrics)?;
        Ok(())
    }

    /// Waits until `/readyz` answers 200. A process that lost a port to another test is launched again with other ports.
    ///
    /// # Errors
    /// When the process ends meanwhile, or the hang limit passes; with the end of its log.
    pub async fn until_ready(&mut self) -> Result<()> {
        for _ in 0..LOST_PORTS {
            let Some(status) = self.ready_or_ended().await? else {
                return Ok(());
            };
            let tail = self.log_tail();
            if !tail.contains(PORT_TAKEN) {
                bail!("the operator ended with {status}:\n{tail}");
            }
            self.launch_anew()?;
        }
        bail!("a port was taken {LOST_PORTS} times:\n{}", self.log_tail())
    }

    async fn ready_or_ended(&mut self) -> Result<Option<ExitStatus>> {
        let health = self.health;
        let child = &mut self.child;
        let outcome = eventually("/readyz to be 200", HANG, async || {
            if let Some(status) = child.try_wait()? {
                return Ok(Seen::Yes(Some(status)));
            }
            let (code, body) = get(health, "/readyz").await?;
            Ok(if code == 200 {
                Seen::Yes(None)
            } else {
                Seen::NotYet(format!("{code} {body}"))
            })
        })
        .await;
        outcome.map_err(|error| anyhow::anyhow!("{error}; its log ends:\n{}", self.log_tail()))
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How often it was started.
    pub fn starts(&self) -> usize {
        self.starts
    }

    /// SIGKILL; returns when the process is gone.
    pub fn kill9(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// SIGTERM; returns how it ended, or fails if it has not ended after `limit`.
    pub async fn terminate(&mut self, limit: Duration) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        let end = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            anyhow::ensure!(
                Instant::now() < end,
                "still running {limit:?} after SIGTERM"
            );
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// SIGSTOP: the process stands still and holds what it holds.
    pub fn freeze(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// SIGCONT: the process goes on as if no time had passed.
    pub fn thaw(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(self.handle()?, signal)?;
        Ok(())
    }

    /// From now on it gets no more descriptors than this.
    pub fn limit_descriptors(&self, most: u64) -> Result<()> {
        let limit = Rlimit {
            current: Some(most),
            ..getrlimit(Resource::Nofile)
        };
        prlimit(Some(self.handle()?), Resource::Nofile, limit)?;
        Ok(())
    }

    fn handle(&self) -> Result<Pid> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        pid.context("a process without an id")
    }

    /// Starts it again with the same options, after it has ended, and does not wait until it is
    /// ready.
    pub fn respawn(&mut self) -> Result<()> {
        anyhow::ensure!(self.has_ended()?, "respawn of a running operator");
        self.launch_anew()?;
        self.starts += 1;
        Ok(())
    }

    /// Starts it again with the same options, after it has ended, and waits until it is ready.
    pub async fn restart(&mut self) -> Result<()> {
        self.respawn()?;
        self.until_ready().await
    }

    /// Whether the process has ended by itself.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// The status and body of a path of the probe port.
    pub async fn probe(&self, path: &str) -> Result<(u16, String)> {
        get(self.health, path).await
    }

    /// Where its probes are.
    pub fn health_address(&self) -> SocketAddr {
        self.health
    }

    /// Where its metrics are.
    pub fn metrics_address(&self) -> SocketAddr {
        self.metrics
    }

    /// The text of `/metrics`.
    pub async fn metrics(&self) -> Result<String> {
        Ok(get(self.metrics, "/metrics").await?.1)
    }

    /// Whether its metrics say that it leads, or that it doesn't.
    pub async fn says_it_leads(&self, leads: bool) -> Result<bool> {
        let wanted = format!("trainyard_leader {}", u8::from(leads));
        Ok(self.metrics().await?.lines().any(|line| line == wanted))
    }

    /// Waits until it leads, or doesn't any more.
    pub async fn until_leads(&self, leads: bool) -> Result<()> {
        eventually("the leader to change", HANG, async || {
            Ok(if self.says_it_leads(leads).await? {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("leads: {}", !leads))
            })
        })
        .await
    }

    /// Resident memory. Units: bytes, now and at the highest so far.
    pub fn memory(&self) -> Result<(u64, u64)> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace()
                .next()?
                .parse::<u64>()
                .ok()
                .map(|kib| kib * 1024)
        };
        field("VmRSS:")
            .zip(field("VmHWM:"))
            .context("no memory figures of the process")
    }

    /// Everything that it has written so far, over all its starts.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.options.log).unwrap_or_default()
    }

    /// Fails if any start of it panicked.
    pub fn assert_no_panic(&self) -> Result<()> {
        let log = self.log();
        let line = log.lines().find(|line| line.contains("panicked at"));
        anyhow::ensure!(
            line.is_none(),
            "the operator panicked: {}",
            line.unwrap_or_default()
        );
        Ok(())
    }

    /// I-50: it has no connection but to its API server and from those who ask its own two ports, and listens on no other.
    pub fn assert_connections(&self) -> Result<()> {
        let server = server(&self.options.kubeconfig)?;
        let ports = [self.health.port(), self.metrics.port()];
        let process = PathBuf::from("/proc").join(self.pid().to_string());
        // A process that has ended has none.
        let Ok(files) = fs::read_dir(process.join("fd")) else {
            return Ok(());
        };
        let sockets: BTreeSet<String> = files
            .flatten()
            .filter_map(|file| fs::read_link(file.path()).ok())
            .filter_map(|to| {
                let inode = to.to_str()?.strip_prefix("socket:[")?;
                Some(inode.strip_suffix(']')?.to_owned())
            })
            .collect();
        let mut wrong = Vec::new();
        for table in ["tcp", "tcp6", "udp", "udp6"] {
            let table = fs::read_to_string(process.join("net").join(table)).unwrap_or_default();
            wrong.extend(strangers(&table, &sockets, server, &ports));
        }
        anyhow::ensure!(wrong.is_empty(), "I-50: {}", wrong.join("\n"));
        Ok(())
    }

    /// The last lines that it has written.
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

impl Drop for OperatorProcess {
    fn drop(&mut self) {
        // A frozen process is killed too; one that has ended is left as it is.
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Shown where a test fails, which nobody can look into afterwards.
        #[expect(clippy::print_stdout, reason = "what libtest shows of a failed test")]
        {
            println!("the operator's last words:\n{}", self.log_tail());
        }
    }
}

/// The path of an operator's binary: from the directory that `TRAINYARD_OPERATOR_BIN_DIR` names,
/// else the newest of all builds.
pub fn find(binary: &str) -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os(BINARIES_VARIABLE) {
        let path = Path::new(&dir).join(binary);
        anyhow::ensure!(path.exists(), "{BINARIES_VARIABLE} has no {binary}");
        return Ok(path);
    }
    let target = target_directory()?;
    // Those of `make test` and `make bench` are static, which cargo builds apart.
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    ["release", "debug"]
        .into_iter()
        .flat_map(|profile| [target.join(profile), target.join(&triple).join(profile)])
        .map(|directory| directory.join(binary))
        .filter_map(|path| Some((fs::metadata(&path).ok()?.modified().ok()?, path)))
        .max()
        .map(|(_, path)| path)
        .with_context(|| {
            format!(
                "no {binary} in {}; build it with: cargo build -p {binary}",
                target.display()
            )
        })
}

fn launch(options: &Options, health: SocketAddr, metrics: SocketAddr) -> Result<Child> {
    let binary = find(&options.binary)?;
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(options.output.as_ref().unwrap_or(&options.log))?;
    // setpriv replaces itself by the operator, so that the process id is the operator's.
    let setpriv = Path::new("/usr/bin/setpriv");
    let mut command = if setpriv.exists() {
        let mut command = Command::new(setpriv);
        command.args(["--pdeathsig", "KILL", "--"]).arg(&binary);
        command
    } else {
        Command::new(&binary)
    };
    command.arg(format!("--kubeconfig={}", options.kubeconfig.display()));
    command.arg(format!("--health-probe-bind-address={health}"));
    command.arg(format!("--metrics-bind-address={metrics}"));
    if !options.namespace.is_empty() {
        command.arg(format!("--namespace={}", options.namespace));
    }
    command.args(&options.flags);
    // The cause of an error stands above its backtrace, where the end of a log doesn't show it.
    command.env("RUST_LIB_BACKTRACE", "0");
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    command
        .spawn()
        .with_context(|| format!("can't start {}", binary.display()))
}

/// Where the API server of a kubeconfig is.
fn server(kubeconfig: &Path) -> Result<SocketAddr> {
    let config = Kubeconfig::read_from(kubeconfig)?;
    let cluster = config.clusters.first().and_then(|c| c.cluster.as_ref());
    let server = cluster.and_then(|cluster| cluster.server.as_ref());
    let server = server.context("a kubeconfig without a server")?;
    // A proxy of a test speaks without TLS.
    let (_, address) = server.split_once("://").unwrap_or(("", server));
    address
        .trim_end_matches('/')
        .parse()
        .with_context(|| format!("{server} is no address"))
}

/// The lines of a table of `/proc/net` that are sockets of a process and lead to others than its server, or listen on others than
/// its ports.
fn strangers(
    table: &str,
    sockets: &BTreeSet<String>,
    server: SocketAddr,
    ports: &[u16],
) -> Vec<String> {
    const INODE: usize = 9;
    let port = |address: &str| u16::from_str_radix(address.rsplit(':').next()?, 16).ok();
    // The address stands there as the kernel has it in memory.
    let server = match server.ip() {
        IpAddr::V4(ip) => {
            let ip = u32::from_le_bytes(ip.octets());
            format!("{ip:08X}:{:04X}", server.port())
        }
        IpAddr::V6(_) => String::new(),
    };
    let lines = table.lines().skip(1).filter(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let inode = fields.get(INODE);
        let ours = inode.is_some_and(|inode| sockets.contains(*inode));
        let own = || port(fields[1]).is_some_and(|port| ports.contains(&port));
        ours && !own() && fields[2] != server
    });
    lines.map(str::to_owned).collect()
}

/// An address that nobody listens on: the ports below 32768 are not given out to connections, and processes draw at random.
fn free_address() -> Result<SocketAddr> {
    for _ in 0..PORTS {
        let port = u16::try_from(FIRST_PORT + fastrand::u32(..PORTS))?;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        if TcpListener::bind(address).is_ok() {
            return Ok(address);
        }
    }
    bail!(
        "no port is free between {FIRST_PORT} and {}",
        FIRST_PORT + PORTS
    )
}

/// One HTTP/1.0 request, which needs no client: the answer ends with the connection.
async fn get(address: SocketAddr, path: &str) -> Result<(u16, String)> {
    let ask = async {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        anyhow::Ok(answer)
    };
    let answer = timeout(Duration::from_secs(5), ask)
        .await
        .context("no answer in 5 s")??;
    let (head, body) = answer.split_once("\r\n\r\n").context("half an answer")?;
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    Ok((code.context("an answer without a status")?, body.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i_50_connections_to_others_are_told() {
        let row = |local: &str, remote: &str, inode: u32| {
            format!(
                "   0: {local} {remote} 01 00000000:00000000 00:00000000 00000000 0 0 {inode} 1\n"
            )
        };
        let server: SocketAddr = "127.0.0.1:6443".parse().unwrap();
        let sockets = BTreeSet::from(["7".to_owned()]);
        let strange = |local: &str, remote: &str, inode: u32| {
            let table = format!("head\n{}", row(local, remote, inode));
            strangers(&table, &sockets, server, &[8080]).len()
        };
        assert_eq!(
            strange("0100007F:C000", "0100007F:192B", 7),
            0,
            "the server"
        );
        assert_eq!(
            strange("0100007F:1F90", "0100007F:C000", 7),
            0,
            "who asks for metrics"
        );
        assert_eq!(
            strange("0100007F:C000", "08080808:01BB", 7),
            1,
            "somebody else"
        );
        assert_eq!(
            strange("0100007F:1F91", "00000000:0000", 7),
            1,
            "another port to listen on"
        );
        assert_eq!(
            strange("0100007F:C000", "08080808:01BB", 8),
            0,
            "another process"
        );
    }
}
