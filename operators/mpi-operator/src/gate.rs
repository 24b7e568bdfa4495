//! The launcher's init container: it delays the launcher until every host answers, so that `mpirun` doesn't fail because of a slow
//! worker. It gives up after a timeout: a host that still doesn't answer may be meant to be silent.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use futures::StreamExt as _;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

/// The pause after the first check of a host; it doubles after each check.
const PAUSE: Duration = Duration::from_millis(500);
/// The longest pause: checking a thousand hosts twice a second would load the cluster's DNS.
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// The timeout for a connection's greeting.
const GREETING: Duration = Duration::from_secs(3);
/// Hosts that are checked concurrently.
const AT_ONCE: usize = 64;
/// The first bytes that an SSH server sends. Source: RFC 4253, 4.2.
const BANNER: &[u8] = b"SSH-";

/// Which hosts to wait for, and how long.
#[derive(clap::Args, Clone, Debug)]
pub struct GateArgs {
    /// The file that lists the hosts
    #[arg(long, default_value = "/etc/mpi/hostfile")]
    pub hostfile: PathBuf,

    /// The launcher's own host, which is skipped
    #[arg(long)]
    pub own: Option<String>,

    /// A name that must only resolve
    #[arg(long = "resolves")]
    pub resolves: Vec<String>,

    /// A port at which a host's SSH server may answer
    #[arg(long = "port", default_values_t = [22, 2222])]
    pub ports: Vec<u16>,

    /// Stop waiting when one host answers
    #[arg(long)]
    pub any: bool,

    /// Seconds to wait for all hosts together, also for those whose names don't resolve
    #[arg(long, default_value_t = 600)]
    pub unresolved: u64,

    /// Seconds of these to wait for the SSH server of a host that resolves
    #[arg(long, default_value_t = 60)]
    pub silent: u64,

    /// File in which the kubelet finds the hosts that were given up
    #[arg(long, default_value = "/dev/termination-log")]
    pub report: PathBuf,
}

/// Why the gate gave up on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenUp {
    /// Its name doesn't resolve.
    Unresolved,
    /// No SSH server answers.
    Silent,
}

impl fmt::Display for GivenUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unresolved => "its name does not resolve",
            Self::Silent => "no SSH server answers there",
        })
    }
}

/// Waits for a job's hosts, and returns those that it gave up on.
///
/// # Errors
/// If the file that lists the hosts can't be read.
#[expect(
    clippy::print_stdout,
    reason = "a container's output is its log, and people wait for these lines"
)]
pub async fn wait(args: &GateArgs) -> anyhow::Result<Vec<(String, GivenUp)>> {
    let text = std::fs::read_to_string(&args.hostfile)
        .with_context(|| format!("read {}", args.hostfile.display()))?;
    let hosts = waited_for(&text, args.own.as_deref());
    println!("waiting for {} hosts", hosts.len());
    let limits = Limits {
        deadline: Instant::now() + Duration::from_secs(args.unresolved),
        silent: Duration::from_secs(args.silent),
    };
    let search = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let turns = Semaphore::new(AT_ONCE);
    let gate = Gate {
        limits,
        search: &search,
        turns: &turns,
    };
    let given_up_names: Vec<_> = futures::stream::iter(args.resolves.clone())
        .map(|name| gate.check_host(name, None, || true))
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let ports = Some(args.ports.as_slice());
    // All hosts are checked concurrently, so that silent ones don't delay the others.
    let all = hosts.len().max(1);
    let mut looks = futures::stream::iter(hosts)
        .map(|host| {
            // A job that is scaled down has fewer hosts after a while.
            let still = {
                let host = host.clone();
                move || is_listed(&args.hostfile, &host)
            };
            gate.check_host(host, ports, still)
        })
        .buffer_unordered(all);
    let mut given_up = Vec::new();
    for (host, end) in given_up_names {
        given_up.extend(end.err().map(|why| (host, why)));
    }
    while let Some((host, end)) = looks.next().await {
        match end {
            Ok(HostState::NoHost) => println!("{host} is no longer a host of the job"),
            Ok(HostState::Answers) => {
                println!("{host} answers");
                if args.any {
                    given_up.clear();
                    break;
                }
            }
            Err(why) => given_up.push((host, why)),
        }
    }
    given_up.sort_by(|a, b| a.0.cmp(&b.0));
    for (host, why) in &given_up {
        println!("not waiting for {host} any longer: {why}");
    }
    Ok(given_up)
}

/// Writes the hosts that were given up to the container's termination message, which the operator records as an event. An error is
/// harmless.
pub fn report(file: &Path, given_up: &[(String, GivenUp)]) {
    /// Hosts that the message names; a termination message has at most 4 KiB.
    const MAX_NAMES: usize = 10;
    if given_up.is_empty() {
        return;
    }
    let named: Vec<String> = given_up
        .iter()
        .take(MAX_NAMES)
        .map(|(host, why)| format!("{host}: {why}"))
        .collect();
    let more = given_up.len() - named.len();
    let more = if more > 0 {
        format!(", and {more} more")
    } else {
        String::new()
    };
    let text = format!("the launcher begins without {}{more}", named.join(", "));
    // Nobody handles an error here, and the launcher must start anyway.
    let _ = std::fs::write(file, text);
}

/// The state of a host when the gate stops waiting for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HostState {
    /// It answers.
    Answers,
    /// The host file no longer lists it.
    NoHost,
}

#[derive(Clone, Copy, Debug)]
struct Limits {
    /// For all hosts.
    deadline: Instant,
    silent: Duration,
}

/// Returns the hosts of a host file, without the slots.
fn hosts(text: &str) -> impl Iterator<Item = &str> {
    let host = |line: &str| line.find([' ', '\t', ':']).unwrap_or(line.len());
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(move |line| &line[..host(line)])
}

/// Returns the distinct hosts to wait for, without `own`.
fn waited_for(text: &str, own: Option<&str>) -> BTreeSet<String> {
    let others = hosts(text).filter(|host| Some(*host) != own);
    others.map(str::to_owned).collect()
}

/// Returns false only if the host file is readable and no longer lists the host.
fn is_listed(hostfile: &Path, host: &str) -> bool {
    std::fs::read_to_string(hostfile).map_or(true, |text| hosts(&text).any(|listed| listed == host))
}

/// What all checks share.
#[derive(Clone, Copy, Debug)]
struct Gate<'a> {
    limits: Limits,
    /// The content of `resolv.conf`.
    search: &'a str,
    /// Limits concurrent checks; a waiting host holds no permit.
    turns: &'a Semaphore,
}

impl Gate<'_> {
    /// Checks one host until it answers at one of the ports, or resolves if no ports are given, or is no longer a host of the job.
    async fn check_host(
        self,
        host: String,
        ports: Option<&[u16]>,
        still: impl Fn() -> bool,
    ) -> (String, Result<HostState, GivenUp>) {
        let name = absolute(&host, self.search);
        let mut silent_at = None;
        let mut pauses = pauses();
        loop {
            let (resolves, answers) = self.ask(&name, ports).await;
            if answers {
                return (host, Ok(HostState::Answers));
            }
            if !still() {
                return (host, Ok(HostState::NoHost));
            }
            let now = Instant::now();
            let until = if resolves || silent_at.is_some() {
                *silent_at.get_or_insert(self.limits.deadline.min(now + self.limits.silent))
            } else {
                self.limits.deadline
            };
            if now >= until {
                let why = match silent_at {
                    Some(_) => GivenUp::Silent,
                    None => GivenUp::Unresolved,
                };
                return (host, Err(why));
            }
            let pause = pauses.next().unwrap_or(MAX_PAUSE);
            sleep(pause.min(until - now)).await;
        }
    }

    /// Checks once whether the name resolves and whether an SSH server answers.
    async fn ask(self, name: &str, ports: Option<&[u16]>) -> (bool, bool) {
        // The semaphore is never closed.
        let _turn = self.turns.acquire().await;
        let found: Vec<_> = match lookup_host((name, 0)).await {
            Ok(found) => found.collect(),
            Err(_) => Vec::new(),
        };
        for address in &found {
            for port in ports.into_iter().flatten() {
                let mut at = *address;
                at.set_port(*port);
                if sends_greeting(at).await {
                    return (true, true);
                }
            }
        }
        (!found.is_empty(), ports.is_none() && !found.is_empty())
    }
}

/// Returns the pauses between checks of a host.
fn pauses() -> impl Iterator<Item = Duration> {
    std::iter::successors(Some(PAUSE), |last| Some((*last * 2).min(MAX_PAUSE)))
}

/// Makes the name of a Service's host absolute, so that the resolver doesn't query each entry of its search list. Leaves any other
/// name as it is.
fn absolute(host: &str, resolver: &str) -> String {
    let entries = resolver
        .lines()
        .filter_map(|line| line.strip_prefix("search"));
    let mut domains = entries
        .flat_map(str::split_whitespace)
        .filter_map(|entry| entry.trim_end_matches('.').strip_prefix("svc."));
    match domains.next() {
        Some(domain) if host.rsplit('.').next() == Some("svc") => format!("{host}.{domain}."),
        Some(domain) if host.ends_with(&format!(".svc.{domain}")) => format!("{host}."),
        Some(_) | None => host.to_owned(),
    }
}

/// Returns true if an SSH server sends its greeting.
async fn sends_greeting(at: std::net::SocketAddr) -> bool {
    let greeting = async {
        let mut stream = TcpStream::connect(at).await?;
        let mut first = [0; BANNER.len()];
        stream.read_exact(&mut first).await?;
        std::io::Result::Ok(first == BANNER)
    };
    matches!(timeout(GREETING, greeting).await, Ok(Ok(true)))
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    use super::*;

    fn args(hostfile: &Path, ports: &[u16]) -> GateArgs {
        GateArgs {
            hostfile: hostfile.to_owned(),
            own: None,
            resolves: Vec::new(),
            ports: ports.to_vec(),
            any: false,
            unresolved: 0,
            silent: 0,
            report: PathBuf::new(),
        }
    }

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    /// Starts a server that sends this to every client; returns its port.
    async fn server(says: &'static [u8]) -> u16 {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.write_all(says).await;
            }
        });
        port
    }

    #[test]
    fn hosts_are_read_from_every_form_of_a_line() {
        let text =
            "a.pi.ns.svc slots=2\nb.pi.ns.svc:4\n\n# none\na.pi.ns.svc slots=2\nme slots=1\n";
        let hosts = waited_for(text, Some("me"));
        assert_eq!(
            hosts.into_iter().collect::<Vec<_>>(),
            ["a.pi.ns.svc", "b.pi.ns.svc"]
        );
    }

    #[tokio::test]
    async fn a_host_that_greets_as_ssh_at_one_of_the_ports_is_there() {
        let (ssh, http) = (
            server(b"SSH-2.0-test\r\n").await,
            server(b"HTTP/1.1 400\r\n").await,
        );
        let file = file("127.0.0.1 slots=1\n");
        assert_eq!(wait(&args(file.path(), &[http, ssh])).await.unwrap(), []);
        let given_up = wait(&args(file.path(), &[http])).await.unwrap();
        assert_eq!(given_up, [("127.0.0.1".to_owned(), GivenUp::Silent)]);
    }

    #[test]
    fn hosts_of_services_are_asked_for_by_their_whole_names() {
        let resolver = "nameserver 10.96.0.10\nsearch ns.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n";
        for (host, name) in [
            (
                "pi-worker-0.pi.ns.svc",
                "pi-worker-0.pi.ns.svc.cluster.local.",
            ),
            ("a.pi.ns.svc.cluster.local", "a.pi.ns.svc.cluster.local."),
            ("a.pi.ns.svc.other.local", "a.pi.ns.svc.other.local"),
            ("localhost", "localhost"),
        ] {
            assert_eq!(absolute(host, resolver), name);
            assert_eq!(absolute(host, "search example.com\n"), host);
        }
    }

    #[tokio::test]
    async fn hosts_that_do_not_answer_make_no_other_wait() {
        let ssh = server(b"SSH-2.0-test\r\n").await;
        let silent = (2..=1 + 2 * AT_ONCE).map(|n| format!("127.0.0.{n}:1"));
        let silent = silent.collect::<Vec<_>>().join("\n");
        let file = file(&format!("{silent}\nlocalhost:1\n"));
        let args = GateArgs {
            any: true,
            unresolved: 600,
            silent: 600,
            ..args(file.path(), &[ssh])
        };
        let given_up = timeout(Duration::from_secs(20), wait(&args)).await;
        assert_eq!(given_up.unwrap().unwrap(), []);
    }

    #[tokio::test]
    async fn one_deadline_holds_for_all_hosts() {
        let file = file("no-such-host.invalid slots=1\n127.0.0.1:1\n");
        let args = GateArgs {
            unresolved: 1,
            silent: 600,
            ..args(file.path(), &[1])
        };
        let given_up = timeout(Duration::from_mins(1), wait(&args)).await;
        let given_up = given_up.unwrap().unwrap();
        let reasons: Vec<GivenUp> = given_up.iter().map(|(_, why)| *why).collect();
        assert_eq!(reasons, [GivenUp::Silent, GivenUp::Unresolved]);
    }

    #[test]
    fn a_host_is_checked_less_and_less_often_down_to_every_five_seconds() {
        let pauses: Vec<u128> = pauses().take(6).map(|p| p.as_millis()).collect();
        assert_eq!(pauses, [500, 1_000, 2_000, 4_000, 5_000, 5_000]);
    }

    #[tokio::test]
    async fn a_server_that_comes_late_is_waited_for() {
        let port = {
            let free = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
            free.local_addr().unwrap().port()
        };
        let file = file("127.0.0.1:1\n");
        let late = async {
            sleep(Duration::from_millis(700)).await;
            let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.write_all(b"SSH-2.0-late\r\n").await;
            }
        };
        let args = GateArgs {
            unresolved: 60,
            silent: 60,
            ..args(file.path(), &[port])
        };
        tokio::select! {
            given_up = wait(&args) => assert_eq!(given_up.unwrap(), []),
            () = late => unreachable!("it serves for ever"),
        }
    }

    #[tokio::test]
    async fn a_host_that_is_taken_off_the_list_is_not_waited_for_any_more() {
        let file = file("no-such-host.invalid slots=1\nnor-this.invalid slots=1\n");
        let smaller = async {
            sleep(Duration::from_millis(700)).await;
            std::fs::write(file.path(), "# none\n").unwrap();
        };
        let args = GateArgs {
            unresolved: 60,
            ..args(file.path(), &[22])
        };
        let (given_up, ()) = tokio::join!(wait(&args), smaller);
        assert_eq!(given_up.unwrap(), []);
    }

    #[tokio::test]
    async fn names_that_never_resolve_are_given_up_and_told() {
        let file = file("no-such-host.invalid slots=1\n");
        let args = GateArgs {
            resolves: vec!["neither-this.invalid".to_owned(), "localhost".to_owned()],
            ..args(file.path(), &[22])
        };
        let given_up = wait(&args).await.unwrap();
        assert_eq!(
            given_up,
            [
                ("neither-this.invalid".to_owned(), GivenUp::Unresolved),
                ("no-such-host.invalid".to_owned(), GivenUp::Unresolved),
            ]
        );
        let told = tempfile::NamedTempFile::new().unwrap();
        report(told.path(), &given_up);
        let text = std::fs::read_to_string(told.path()).unwrap();
        assert!(
            text.contains("no-such-host.invalid: its name does not resolve"),
            "{text}"
        );
    }

    #[tokio::test]
    async fn one_host_is_enough_for_a_launcher_that_looks_for_its_hosts_itself() {
        let ssh = server(b"SSH-2.0-test\r\n").await;
        let file = file("no-such-host.invalid slots=1\n127.0.0.1 slots=1\n");
        let args = GateArgs {
            any: true,
            ..args(file.path(), &[ssh])
        };
        assert_eq!(wait(&args).await.unwrap(), []);
    }
}
