//! Reads process and machine statistics from the kernel.

use std::fs;

use anyhow::{Context as _, Result};

/// The unit of CPU times in `/proc`, in milliseconds; it is the same on every supported Linux.
const TICK: f64 = 10.0;

/// Returns the CPU time of a process without its ended children. Units: milliseconds.
pub fn cpu(pid: u32) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))
        .with_context(|| format!("process {pid} is gone"))?;
    ticks(&text)
        .map(|ticks| ticks * TICK)
        .context("an odd /proc/stat")
}

/// Returns the CPU time of processes and their ended children. Units: milliseconds.
pub fn cpu_with_ended(pids: &[u32]) -> f64 {
    // A process that ends now is counted by its parent in the next reading.
    let lines = pids
        .iter()
        .filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/stat")).ok());
    let ticks = lines.filter_map(|line| Some(ticks(&line)? + ticks_of_children(&line)?));
    ticks.sum::<f64>() * TICK
}

/// The name of tokio's blocking pool threads.
const POOL: &str = "tokio-rt-worker";

/// Returns the same without the threads of its pool. Those come and go, so their own times can't be summed up. Units: milliseconds.
pub fn cpu_without_pool(pid: u32) -> Result<f64> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"))
        .with_context(|| format!("process {pid} is gone"))?;
    // Only threads of the pool end meanwhile.
    let lines = threads
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("stat")).ok());
    let lines = lines.filter(|line| !line.contains(&format!("({POOL})")));
    let sum = lines.map(|line| ticks(&line)).sum::<Option<f64>>();
    sum.map(|ticks| ticks * TICK).context("an odd /proc/stat")
}

/// Returns utime + stime of a `/proc/PID/stat` line.
fn ticks(line: &str) -> Option<f64> {
    two_fields(line, 11)
}

/// Returns cutime + cstime, the times of ended children.
fn ticks_of_children(line: &str) -> Option<f64> {
    two_fields(line, 13)
}

/// Returns the sum of two fields.
fn two_fields(line: &str, at: usize) -> Option<f64> {
    // The name may contain blanks and brackets; the fields follow the last bracket.
    let fields: Vec<&str> = line.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u32>().ok().map(f64::from);
    Some(number(at)? + number(at + 1)?)
}

/// Returns whether a process has had children that ended: their page faults are never zero.
pub fn has_had_children(pid: u32) -> Result<bool> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))
        .with_context(|| format!("process {pid} is gone"))?;
    faults_of_children(&text)
        .map(|faults| faults > 0)
        .context("an odd /proc/stat")
}

/// Returns the page faults of ended children in a `/proc/PID/stat` line.
fn faults_of_children(line: &str) -> Option<u64> {
    let fields = line.rsplit_once(')')?.1.split_whitespace();
    fields.skip(8).map(|field| field.parse().ok()).next()?
}

/// Returns the name of a process.
pub fn name(pid: u32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim().to_owned())
}

fn parent(pid: u32) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(1)?
        .parse()
        .ok()
}

/// Returns the descendants of a process, without itself.
pub fn descendants(root: u32) -> Vec<u32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let all: Vec<(u32, u32)> = all
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, parent(pid)?)))
        .collect();
    let mut found = vec![root];
    let mut at = 0;
    while let Some(of) = found.get(at).copied() {
        found.extend(
            all.iter()
                .filter(|(_, parent)| *parent == of)
                .map(|(pid, _)| *pid),
        );
        at += 1;
    }
    found.split_off(1)
}

/// The CPU time of all processors. Units: milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Total {
    /// Time not idle, including time stolen by other virtual machines.
    pub busy: f64,
    /// The total.
    pub all: f64,
}

/// Returns the CPU time of the machine since it started.
pub fn total() -> Result<Total> {
    let text = fs::read_to_string("/proc/stat")?;
    sum(&text).context("an odd /proc/stat")
}

fn sum(text: &str) -> Option<Total> {
    let line = text.lines().find(|line| line.starts_with("cpu "))?;
    let numbers: Vec<f64> = line
        .split_whitespace()
        .skip(1)
        .filter_map(|n| n.parse().ok())
        .collect();
    // user nice system idle iowait irq softirq steal; user already includes the guest times that follow.
    let all: f64 = numbers.iter().take(8).sum();
    let idle = numbers.get(3)? + numbers.get(4)?;
    Some(Total {
        busy: (all - idle) * TICK,
        all: all * TICK,
    })
}

/// Resident memory of a process. Units: MB, a million bytes each.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Memory {
    /// The current size.
    pub rss: f64,
    /// The part without a backing file.
    pub anonymous: f64,
    /// The maximum so far.
    pub peak: f64,
}

/// Returns the resident memory of a process.
pub fn memory(pid: u32) -> Result<Memory> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace()
            .next()?
            .parse::<f64>()
            .ok()
            .map(|kib| kib * 1024.0 / 1e6)
    };
    let read = || {
        Some(Memory {
            rss: field("VmRSS:")?,
            anonymous: field("RssAnon:")?,
            peak: field("VmHWM:")?,
        })
    };
    read().context("no memory figures")
}

/// Describes the machine in one line.
pub fn describe() -> String {
    let model = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = model
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or("unknown processor", |(_, name)| name.trim())
        .to_owned();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let memory = memory
        .lines()
        .find_map(|line| {
            line.strip_prefix("MemTotal:")?
                .split_whitespace()
                .next()?
                .parse::<f64>()
                .ok()
        })
        .unwrap_or(0.0);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!(
        "{cores} cores of {model}, {:.0} GiB, Linux {}",
        memory / 1024.0 / 1024.0,
        kernel.trim()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_times_are_found_behind_an_odd_name() {
        let line = "42 (a) b (c) S 1 42 42 0 -1 4194560 100 0 0 0 170 30 5 6 20 0 4 0 1 2 3";
        assert_eq!(ticks(line), Some(200.0));
        assert_eq!(ticks_of_children(line), Some(11.0));
        assert_eq!(faults_of_children(line), Some(0));
        assert_eq!(ticks("42 (x"), None);
    }

    #[test]
    fn children_leave_a_trace_when_they_have_ended() {
        let ended = std::process::Command::new("true").status().unwrap();
        assert!(ended.success());
        let me = std::process::id();
        assert!(has_had_children(me).unwrap());
        let own = cpu(me).unwrap();
        assert!(cpu_with_ended(&[me]) >= own);
        assert!(name(me).unwrap().starts_with("training"));
    }

    #[test]
    fn what_the_pool_does_is_not_counted() {
        let me = std::process::id();
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.build().unwrap();
        let before = (cpu(me).unwrap(), cpu_without_pool(me).unwrap());
        let busy = runtime.spawn_blocking(|| {
            let used = || ticks(&fs::read_to_string("/proc/thread-self/stat").unwrap());
            // This may take long on a busy machine.
            while used().unwrap() < 10.0 {}
            fs::read_to_string("/proc/thread-self/comm").unwrap()
        });
        let name = runtime.block_on(busy).unwrap();
        assert_eq!(name.trim(), POOL);
        let (all, own) = (cpu(me).unwrap(), cpu_without_pool(me).unwrap());
        assert!(own - before.1 < all - before.0, "{own} of {all} {before:?}");
    }

    #[test]
    fn stolen_time_is_busy_and_waiting_is_not() {
        let text = "cpu  10 1 5 100 20 2 3 4 50 60\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(
            sum(text),
            Some(Total {
                busy: 250.0,
                all: 1450.0
            })
        );
    }

    #[test]
    fn this_process_has_used_cpu_and_memory_and_has_a_parent() {
        let me = std::process::id();
        assert!(cpu(me).unwrap() >= 0.0);
        let memory = memory(me).unwrap();
        assert!(memory.rss > 0.0 && memory.anonymous <= memory.rss && memory.rss <= memory.peak);
        let parent = parent(me).unwrap();
        assert!(descendants(parent).contains(&me));
        let total = total().unwrap();
        assert!(total.busy <= total.all);
    }
}
