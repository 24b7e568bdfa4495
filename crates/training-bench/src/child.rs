//! The bench's child processes: the floor client, the status driver and the list reader run separately, so that their CPU can
//! be measured separately.
//!
//! A child ends when its standard input does, so that none outlives the bench.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Sends a line from a child to the bench.
pub fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Receives the bench's lines in a child; the process ends with its standard input.
pub fn told() -> UnboundedReceiver<String> {
    let (sender, receiver) = unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
        std::process::exit(0);
    });
    receiver
}

/// A running child; it is killed when this is dropped.
pub struct Helper {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: UnboundedReceiver<String>,
}

impl Helper {
    /// Starts this program with other arguments; its standard error goes to a file.
    pub fn start(args: &[&str], log: &Path) -> Result<Self> {
        let name = args.first().copied().unwrap_or_default();
        let mut command = Command::new(std::env::current_exe()?);
        Self::spawn(name, command.args(args).env("RUST_BACKTRACE", "0"), log)
    }

    /// Starts another program; its standard error goes to a file.
    pub fn spawn(name: &str, command: &mut Command, log: &Path) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(log)?)
            .spawn()
            .with_context(|| format!("can't start {name}"))?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().context("a child without output")?;
        let (sender, lines) = unbounded_channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self {
            name: name.to_owned(),
            child,
            stdin,
            lines,
        })
    }

    /// Returns its next line.
    pub async fn line(&mut self, limit: Duration) -> Result<String> {
        let line = tokio::time::timeout(limit, self.lines.recv()).await;
        let line = line.with_context(|| format!("{} said nothing for {limit:?}", self.name))?;
        line.with_context(|| format!("{} ended", self.name))
    }

    /// Sends it a line.
    pub fn tell(&mut self, line: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("a closed input")?;
        writeln!(stdin, "{line}")?;
        Ok(stdin.flush()?)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns whether it has ended by itself, which is an error.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
