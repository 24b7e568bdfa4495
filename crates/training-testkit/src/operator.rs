//! The operator as a separate process that tests can kill.

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

/// The directory of the operators under test, instead of the target directory.
const BINARIES_VARIABLE: &str = "TRAINYARD_OPERATOR_BIN_DIR";

/// How to start an operator.
#[derive(Clone, Debug)]
pub struct Options {
    /// The binary's name.
    pub binary: String,
    /// Its identity and the address of its API server.
    pub kubeconfig: PathBuf,
    /// The namespace that it serves; empty for all.
    pub namespace: String,
    /// Further flags.
    pub flags: Vec<String>,
    /// Its log file; a restart appends.
    pub log: PathBuf,
    /// A different output that is never read, for example a full device.
    pub output: Option<PathBuf>,
}

impl Options {
    /// An operator without leader election, with backoff short enough for tests.
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

    /// Enables leader election with this lease: its duration, renew deadline and retry period.
    #[must_use]
    pub fn elects(self, lease: &str, [duration, renew, retry]: [&str; 3]) -> Self {
        self.flag("leader-elect", "true")
            .flag("leader-election-id", lease)
            .flag("leader-election-namespace", LEASE_NAMESPACE)
            .flag("lease-duration", duration)
            .flag("lease-renew-deadline", renew)
            .flag("lease-retry-period", retry)
    }

    /// Sets a flag and replaces an earlier value.
    #[must_use]
    pub fn flag(mut self, name: &str, value: &str) -> Self {
        let start = format!("--{name}=");
        self.flags.retain(|flag| !flag.starts_with(&start));
        self.flags.push(format!("{start}{value}"));
        self
    }
}

/// The namespace in which the shipped role allows leases.
pub const LEASE_NAMESPACE: &str = "trainyard-system";

/// The first port of operators under test, and the number of ports.
const FIRST_PORT: u32 = 12_000;
const PORTS: u32 = 18_000;
/// How often an operator may lose its port to another process before it binds.
const LOST_PORTS: usize = 5;
/// The log message in that case.
const PORT_TAKEN: &str = "Address already in use";

/// A running operator; dropping it kills it.
#[derive(Debug)]
pub struct OperatorProcess {
    options: Options,
    child: Child,
    health: SocketAddr,
    metrics: SocketAddr,
    starts: usize,
}

impl OperatorProcess {
    /// Starts an operator and waits until `/readyz` returns 200.
    pub async fn start(options: Options) -> Result<Self> {
        let operator = Self::spawn(options)?;
        operator.ready().await
    }

    /// Starts an operator without waiting: for operators that are not expected to become ready.
    ///
    /// Call it on the test's thread: where possible the kernel kills the operator when the thread that started it ends, so that a
    /// killed test leaves no process behind.
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

    /// Starts the process with new ports.
    fn launch_anew(&mut self) -> Result<()> {
        (self.health, self.metrics) = (free_address()?, free_address()?);
        self.child = launch(&self.options, self.health, self.metrics)?;
        Ok(())
    }

    /// Waits until `/readyz` returns 200. Restarts a process that lost a port to another test with other ports.
    ///
    /// # Errors
    /// If the process exits meanwhile, or the hang limit expires; with the end of its log.
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

    /// The number of starts.
    pub fn starts(&self) -> usize {
        self.starts
    }

    /// Sends SIGKILL; returns when the process is gone.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Sends SIGTERM; returns the exit status, or fails if the process still runs after `limit`.
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

    /// Sends SIGSTOP: the process stops and keeps its locks and connections.
    pub fn freeze(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Sends SIGCONT: the process continues.
    pub fn thaw(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(self.handle()?, signal)?;
        Ok(())
    }

    /// Limits its file descriptors from now on.
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

    /// Restarts an exited operator with the same options, without waiting until it is ready.
    pub fn respawn(&mut self) -> Result<()> {
        anyhow::ensure!(self.has_ended()?, "respawn of a running operator");
        self.launch_anew()?;
        self.starts += 1;
        Ok(())
    }

    /// Restarts an exited operator with the same options and waits until it is ready.
    pub async fn restart(&mut self) -> Result<()> {
        self.respawn()?;
        self.until_ready().await
    }

    /// Returns true if the process has exited.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Returns the status and body of a path on the probe port.
    pub async fn probe(&self, path: &str) -> Result<(u16, String)> {
        get(self.health, path).await
    }

    /// The address of its probes.
    pub fn health_address(&self) -> SocketAddr {
        self.health
    }

    /// The address of its metrics.
    pub fn metrics_address(&self) -> SocketAddr {
        self.metrics
    }

    /// The text of `/metrics`.
    pub async fn metrics(&self) -> Result<String> {
        Ok(get(self.metrics, "/metrics").await?.1)
    }

    /// The sum of all series of a metric, or the value of a series with its labels. An error without any.
    pub async fn metric(&self, name: &str) -> Result<u64> {
        let text = self.metrics().await?;
        let value = |line: &str| {
            let rest = line.strip_prefix(name)?;
            let ours = rest.starts_with(['{', ' ']);
            let value = ours.then(|| rest.rsplit(' ').next())??;
            value.parse::<u64>().ok()
        };
        let values: Vec<u64> = text.lines().filter_map(value).collect();
        anyhow::ensure!(!values.is_empty(), "no {name} in:\n{text}");
        Ok(values.into_iter().sum())
    }

    /// Returns true if its metrics agree with `leads`.
    pub async fn reports_leader(&self, leads: bool) -> Result<bool> {
        let wanted = format!("trainyard_leader {}", u8::from(leads));
        Ok(self.metrics().await?.lines().any(|line| line == wanted))
    }

    /// Waits until it is the leader, or no longer is.
    pub async fn until_leads(&self, leads: bool) -> Result<()> {
        eventually("the leader to change", HANG, async || {
            Ok(if self.reports_leader(leads).await? {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("leads: {}", !leads))
            })
        })
        .await
    }

    /// Resident memory in bytes: current and peak.
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

    /// Its log so far, over all starts.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.options.log).unwrap_or_default()
    }

    /// Fails if it panicked in any start.
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

    /// I-50: its only connections are to its API server, to its collector of traces (an address, no name) and from clients of its two
    /// ports, and it listens on no other port.
    pub fn assert_connections(&self) -> Result<()> {
        let mut servers = vec![server(&self.options.kubeconfig)?];
        let mut flags = self.options.flags.iter();
        if let Some(url) = flags.find_map(|flag| flag.strip_prefix("--otlp-endpoint=")) {
            servers.push(address(url)?);
        }
        let ports = [self.health.port(), self.metrics.port()];
        let process = PathBuf::from("/proc").join(self.pid().to_string());
        // An exited process has none.
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
            wrong.extend(strangers(&table, &sockets, &servers, &ports));
        }
        anyhow::ensure!(wrong.is_empty(), "I-50: {}", wrong.join("\n"));
        Ok(())
    }

    /// The last lines of its log.
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

impl Drop for OperatorProcess {
    fn drop(&mut self) {
        // This also kills a frozen process; it has no effect on an exited one.
        let _ = self.child.kill();
        let _ = self.child.wait();
        // libtest shows it if the test fails, when the process can no longer be inspected.
        #[expect(clippy::print_stdout, reason = "what libtest shows of a failed test")]
        {
            println!("the operator's last log lines:\n{}", self.log_tail());
        }
    }
}

/// Finds an operator's binary: in the directory that `TRAINYARD_OPERATOR_BIN_DIR` names, or else the newest build.
pub fn find(binary: &str) -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os(BINARIES_VARIABLE) {
        let path = Path::new(&dir).join(binary);
        anyhow::ensure!(path.exists(), "{BINARIES_VARIABLE} has no {binary}");
        return Ok(path);
    }
    let target = target_directory()?;
    // `make test` and `make bench` build static binaries, which cargo puts in a separate directory.
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
    // setpriv execs the operator, so the process id is the operator's.
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
    // A backtrace would push the cause of an error out of the log's tail.
    command.env("RUST_LIB_BACKTRACE", "0");
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    command
        .spawn()
        .with_context(|| format!("can't start {}", binary.display()))
}

/// The address of a kubeconfig's API server.
fn server(kubeconfig: &Path) -> Result<SocketAddr> {
    let config = Kubeconfig::read_from(kubeconfig)?;
    let cluster = config.clusters.first().and_then(|c| c.cluster.as_ref());
    let server = cluster.and_then(|cluster| cluster.server.as_ref());
    // A test's proxy has no TLS.
    address(server.context("a kubeconfig without a server")?)
}

/// The address in a URL without a path.
fn address(url: &str) -> Result<SocketAddr> {
    let (_, address) = url.split_once("://").unwrap_or(("", url));
    address
        .trim_end_matches('/')
        .parse()
        .with_context(|| format!("{url} is no address"))
}

/// The lines of a `/proc/net` table for a process's sockets that connect to anything but its servers, or listen on anything but its
/// ports.
fn strangers(
    table: &str,
    sockets: &BTreeSet<String>,
    servers: &[SocketAddr],
    ports: &[u16],
) -> Vec<String> {
    const INODE: usize = 9;
    let port = |address: &str| u16::from_str_radix(address.rsplit(':').next()?, 16).ok();
    // The kernel prints the address in memory order.
    let shown = |server: &SocketAddr| match server.ip() {
        IpAddr::V4(ip) => {
            let ip = u32::from_le_bytes(ip.octets());
            format!("{ip:08X}:{:04X}", server.port())
        }
        IpAddr::V6(_) => String::new(),
    };
    let servers: Vec<String> = servers.iter().map(shown).collect();
    let lines = table.lines().skip(1).filter(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let inode = fields.get(INODE);
        let ours = inode.is_some_and(|inode| sockets.contains(*inode));
        let own = || port(fields[1]).is_some_and(|port| ports.contains(&port));
        ours && !own() && !servers.iter().any(|server| fields[2] == server)
    });
    lines.map(str::to_owned).collect()
}

/// Finds a free address: ports below 32768 are not ephemeral ports, and processes pick at random.
///
/// # Errors
/// If no port is free.
pub fn free_address() -> Result<SocketAddr> {
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

/// Sends one HTTP/1.0 request, which needs no client: the response ends with the connection. Returns the code and the body.
pub async fn get(address: SocketAddr, path: &str) -> Result<(u16, String)> {
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
            strangers(&table, &sockets, &[server], &[8080]).len()
        };
        assert_eq!(
            strange("0100007F:C000", "0100007F:192B", 7),
            0,
            "the server"
        );
        assert_eq!(
            strange("0100007F:1F90", "0100007F:C000", 7),
            0,
            "a client of its metrics"
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
