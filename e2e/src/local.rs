//! The local cluster from outside: its commands, and its traces on the host.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use training_testkit::control_plane::target_directory;

/// The image on every node, whose process does nothing and never ends.
const PAUSE: &str = "docker.io/trainyard/pause:1";
/// The limit of a wait.
const PATIENCE: Duration = Duration::from_mins(3);
/// The polling interval.
const PAUSE_BETWEEN: Duration = Duration::from_millis(20);

/// The node program, with a separate home directory.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    home: PathBuf,
}

impl Program {
    /// Returns the program of this run.
    pub fn given(test: &str) -> Result<Self> {
        let path = env::var_os("TRAINYARD_NODE").context(
            "TRAINYARD_NODE is not set: these tests are run by `cargo xtask test clusters`",
        )?;
        let home = target_directory()?.join("cluster-tests").join(test);
        let _ = fs::remove_dir_all(&home);
        fs::create_dir_all(&home)?;
        Ok(Self {
            path: path.into(),
            home,
        })
    }

    /// Returns a directory for files of this test.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Returns a command of the program.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.path);
        command
            .args(args)
            .env("HOME", &self.home)
            // A node marks its processes with a variable of this name.
            .env_remove("TRAINYARD_NODE")
            .env_remove("KUBECONFIG");
        command
    }

    /// Runs a command and returns its output.
    pub fn run(&self, args: &[&str]) -> Result<String> {
        output(&mut self.command(args))
    }
}

fn output(command: &mut Command) -> Result<String> {
    let out = command.stdin(Stdio::null()).output()?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr);
        bail!("{command:?}: {}\n{text}{said}", out.status);
    }
    Ok(text)
}

/// A cluster by name; it is stopped when this is dropped.
#[derive(Debug)]
pub struct Local {
    /// Its name.
    pub name: String,
    program: Program,
    state: PathBuf,
    kubeconfig: PathBuf,
}

impl Local {
    /// Returns a stopped cluster; removes leftovers of an earlier run.
    pub fn new(program: &Program, name: &str) -> Result<Self> {
        let local = Self {
            name: name.to_owned(),
            program: program.clone(),
            state: cache()?.join("clusters").join(name),
            kubeconfig: program.home.join(name).join("kubeconfig"),
        };
        local.down()?;
        Ok(local)
    }

    /// Starts it; returns its output and the duration.
    pub fn up(&self) -> Result<(String, Duration)> {
        let begun = Instant::now();
        let mut command = self
            .program
            .command(&["cluster", "up", "--name", &self.name]);
        command.arg("--state").arg(&self.state);
        command.arg("--kubeconfig").arg(&self.kubeconfig);
        command.arg("--cache").arg(cache()?);
        Ok((output(&mut command)?, begun.elapsed()))
    }

    /// Removes every trace of it.
    pub fn down(&self) -> Result<String> {
        let mut command = self
            .program
            .command(&["cluster", "down", "--name", &self.name]);
        output(command.arg("--state").arg(&self.state))
    }

    /// Returns whether its components respond.
    pub fn is_healthy(&self) -> bool {
        self.program
            .run(&["cluster", "status", "--name", &self.name])
            .is_ok()
    }

    /// Returns its traces on this host, one line each.
    pub fn leftovers(&self) -> Result<Vec<String>> {
        let mut command = self
            .program
            .command(&["cluster", "leftovers", "--name", &self.name]);
        let out = command.arg("--cache").arg(cache()?).output()?;
        let text = String::from_utf8(out.stdout)?;
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        ensure!(
            out.status.success() == lines.is_empty(),
            "{}: {lines:?}",
            out.status
        );
        Ok(lines)
    }

    /// Asserts that no trace of it is left, including files.
    pub fn assert_gone(&self) -> Result<()> {
        let left = self.leftovers()?;
        ensure!(left.is_empty(), "{} left {left:#?}", self.name);
        for path in [&self.state, &self.kubeconfig] {
            ensure!(!path.exists(), "{} is still there", path.display());
        }
        Ok(())
    }

    /// Returns the ids and names of its processes.
    pub fn processes(&self) -> Result<Vec<(u32, String)>> {
        let lines = self.leftovers()?;
        let processes = lines.iter().filter_map(|l| l.strip_prefix("process "));
        processes
            .map(|line| {
                let (pid, args) = line.split_once(' ').unwrap_or((line, ""));
                Ok((pid.parse()?, component(args).to_owned()))
            })
            .collect()
    }

    /// Runs kubectl and returns its output.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        let mut command = self.program.command(&["kubectl"]);
        // Kubectl's discovery cache would go below the home directory.
        command.env("KUBECACHEDIR", self.program.home.join("discovery"));
        output(command.args(args).env("KUBECONFIG", &self.kubeconfig))
    }

    /// Creates a pod that does nothing, and waits until it runs.
    pub fn run_pod(&self, name: &str) -> Result<()> {
        let image = format!("--image={PAUSE}");
        self.kubectl(&["run", name, &image, "--image-pull-policy=Never"])?;
        let running = "--for=jsonpath={.status.phase}=Running";
        let pod = format!("pod/{name}");
        self.kubectl(&["wait", running, &pod, "--timeout=60s"])?;
        Ok(())
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        // Without effect where the test has done so.
        let _ = self.down();
    }
}

/// Returns the component of a node's process from its command line.
fn component(args: &str) -> &str {
    let mut words = args
        .split(' ')
        .map(|word| word.rsplit('/').next().unwrap_or(word));
    match (words.next(), words.next(), words.next()) {
        (Some("trainyard-node"), Some("cluster"), Some(part))
        | (Some("trainyard-node"), Some(part), _)
        | (Some(part), _, _) => part,
        _ => args,
    }
}

/// Returns the nodes' shared cache directory.
fn cache() -> Result<PathBuf> {
    let path = |name: &str| env::var_os(name).map(PathBuf::from);
    path("TRAINYARD_CACHE")
        .or_else(|| Some(path("XDG_CACHE_HOME")?.join("trainyard")))
        .or_else(|| Some(path("HOME")?.join(".cache/trainyard")))
        .context("neither TRAINYARD_CACHE nor HOME is set")
}

/// Kills processes with one call.
pub fn kill(pids: &[u32]) -> Result<()> {
    let mut command = Command::new("kill");
    command.arg("-9").args(pids.iter().map(u32::to_string));
    let out = command.output()?;
    // The kernel ends a node with its first process, so some of these may be gone already.
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    ensure!(
        out.status.success() || said.contains("No such process"),
        "{command:?}: {said}"
    );
    Ok(())
}

/// The host's network, mounts, control groups, firewall and settings.
///
/// Ignores objects with the names of other clusters, which may start and stop meanwhile.
#[derive(Debug, PartialEq, Eq)]
pub struct Host {
    facts: BTreeMap<&'static str, BTreeSet<String>>,
}

impl Host {
    /// Reads the host's current state for a test of these clusters.
    pub fn read(ours: &[&str]) -> Result<Self> {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
        let mounts = fs::read_to_string("/proc/mounts")?;
        let rules = output(Command::new("nft").args(["list", "ruleset"]))?;
        let mut settings = BTreeSet::new();
        for setting in [
            "kernel/panic",
            "kernel/panic_on_oops",
            "vm/overcommit_memory",
            "vm/panic_on_oom",
            "net/ipv4/ip_forward",
            "net/netfilter/nf_conntrack_max",
        ] {
            // A machine without connection tracking has no such setting.
            let value = fs::read_to_string(Path::new("/proc/sys").join(setting));
            settings.insert(format!("{setting} {}", value.unwrap_or_default().trim()));
        }
        Ok(Self {
            facts: BTreeMap::from([
                ("links", links(ours)?),
                ("mounts", lines(&mounts)),
                ("control groups", groups(&mounts, ours)),
                ("firewall", lines(&rules)),
                ("settings", settings),
            ]),
        })
    }

    /// Asserts that the host's state is unchanged.
    pub fn assert_as(&self, before: &Self) -> Result<()> {
        for (what, now) in &self.facts {
            let was = before.facts.get(what).cloned().unwrap_or_default();
            let new: Vec<&String> = now.difference(&was).collect();
            let lost: Vec<&String> = was.difference(now).collect();
            ensure!(
                new.is_empty() && lost.is_empty(),
                "{what} of the host changed: {new:?} are new, {lost:?} are gone"
            );
        }
        Ok(())
    }
}

fn links(ours: &[&str]) -> Result<BTreeSet<String>> {
    let mut links = BTreeSet::new();
    for entry in fs::read_dir("/sys/class/net")? {
        let path = entry?.path();
        let alias = fs::read_to_string(path.join("ifalias")).unwrap_or_default();
        let other = alias.trim().strip_prefix("trainyard:");
        if other.is_none_or(|name| ours.contains(&name)) {
            links.insert(path.display().to_string());
        }
    }
    Ok(links)
}

fn groups(mounts: &str, ours: &[&str]) -> BTreeSet<String> {
    let hierarchies = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (path, kind) = (words.next()?, words.next()?);
        kind.starts_with("cgroup").then_some(path)
    });
    let mut groups = BTreeSet::new();
    for entry in hierarchies
        .filter_map(|path| fs::read_dir(path).ok())
        .flatten()
        .flatten()
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        let other = name.strip_prefix("trainyard-");
        if other.is_none_or(|name| ours.contains(&name)) {
            groups.insert(entry.path().display().to_string());
        }
    }
    groups
}

/// A control plane in light mode.
#[derive(Debug)]
pub struct LightCluster {
    child: Child,
    dir: PathBuf,
}

impl LightCluster {
    /// Starts a control plane.
    pub fn start(program: &Program, name: &str) -> Result<Self> {
        let dir = program.home.join(name);
        fs::create_dir_all(&dir)?;
        let log = fs::File::create(dir.join("light.log"))?;
        let mut command = program.command(&["light", "--controller-manager", "--dir"]);
        let child = command.arg(&dir).stdin(Stdio::null()).stdout(log).spawn()?;
        Ok(Self { child, dir })
    }

    /// Waits until it reports that it is ready.
    pub fn until_ready(&mut self) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            let log = fs::read_to_string(self.dir.join("light.log"))?;
            if log.starts_with("ready ") && log.ends_with('\n') {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended with {status}: {log}", self.dir.display());
            }
            ensure!(Instant::now() < end, "{} hangs: {log}", self.dir.display());
            sleep(PAUSE_BETWEEN);
        }
    }

    /// Returns its API server's health.
    pub fn health(&self, program: &Program) -> Result<String> {
        let mut command = program.command(&["kubectl", "get", "--raw", "/readyz"]);
        output(command.env("KUBECONFIG", self.dir.join("kubeconfig")))
    }

    /// Returns the ids of its processes except the first one.
    pub fn parts(&self) -> Result<Vec<u32>> {
        let mark = format!("TRAINYARD_LIGHT={}", self.dir.display());
        let mut parts = Vec::new();
        for entry in fs::read_dir("/proc")?.flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse() else {
                continue;
            };
            // A process that has just ended has no environment.
            let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
            if environment.split(|b| *b == 0).any(|v| v == mark.as_bytes()) {
                parts.push(pid);
            }
        }
        Ok(parts)
    }

    /// Kills its first process, and waits until all of its processes have ended.
    pub fn kill(&mut self) -> Result<Duration> {
        let begun = Instant::now();
        self.child.kill()?;
        self.child.wait()?;
        loop {
            let parts = self.parts()?;
            if parts.is_empty() {
                return Ok(begun.elapsed());
            }
            ensure!(begun.elapsed() < PATIENCE, "{parts:?} live on");
            sleep(PAUSE_BETWEEN);
        }
    }
}

impl Drop for LightCluster {
    fn drop(&mut self) {
        // Without effect where the test has done so.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
