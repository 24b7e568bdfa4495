//! Stages that run side by side as far as they depend on each other.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Instant;

use crate::table::{Count, End, Row};

/// One stage.
#[derive(Clone, Copy)]
pub struct Stage {
    /// Its name.
    pub name: &'static str,
    /// Stages that must have ended well before.
    pub needs: &'static [&'static str],
    /// Stages that must have ended before, however: cargo would make this one wait for its lock anyway.
    pub after: &'static [&'static str],
    /// What it does.
    pub work: fn(&Stage) -> Result<End, String>,
}

impl Stage {
    /// Where what it prints goes.
    pub fn log(&self) -> PathBuf {
        crate::paths::target()
            .join("test-logs")
            .join(format!("{}.log", self.name))
    }

    /// Runs a command; what it prints goes into the stage's log.
    ///
    /// # Errors
    /// If it fails; the log says why.
    pub fn run(&self, command: &mut Command) -> Result<(), String> {
        let open = || File::options().create(true).append(true).open(self.log());
        let (out, err) = (
            open().map_err(|e| e.to_string())?,
            open().map_err(|e| e.to_string())?,
        );
        let status = command
            .stdout(out)
            .stderr(err)
            .status()
            .map_err(|e| e.to_string())?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("{}: {status}", command.get_program().display()))
        }
    }

    /// Tests that ran so far.
    pub fn count(&self) -> Count {
        let mut text = Vec::new();
        let read = File::open(self.log()).and_then(|mut f| f.read_to_end(&mut text));
        if read.is_ok() {
            Count::read(&String::from_utf8_lossy(&text))
        } else {
            Count::default()
        }
    }
}

/// Runs the stages; each begins when those before it have ended well.
pub fn run(stages: &[Stage]) -> Vec<Row> {
    let ended: Mutex<BTreeMap<&'static str, Row>> = Mutex::default();
    let changed = Condvar::new();
    // Nothing panics while holding it; if it did, what was stored is still true.
    let lock = || {
        ended
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    };
    thread::scope(|scope| {
        for stage in stages {
            let (lock, changed) = (&lock, &changed);
            scope.spawn(move || {
                let known = |name: &&str| stages.iter().any(|s| s.name == *name);
                let needs: Vec<&str> = stage.needs.iter().copied().filter(known).collect();
                let before: Vec<&str> = needs
                    .iter()
                    .copied()
                    .chain(stage.after.iter().copied().filter(known))
                    .collect();
                let mut done: MutexGuard<'_, _> = lock();
                while !before.iter().all(|name| done.contains_key(name)) {
                    done = changed
                        .wait(done)
                        .unwrap_or_else(std::sync::PoisonError::into_inner);
                }
                let failed = |name: &&&str| {
                    matches!(
                        done.get(**name).map(|r: &Row| &r.end),
                        Some(End::Failed(..))
                    )
                };
                let broken = needs.iter().find(failed).map(|name| (*name).to_owned());
                drop(done);
                let row = match broken {
                    Some(name) => failed_before(stage, &name),
                    None => work(stage),
                };
                lock().insert(stage.name, row);
                changed.notify_all();
            });
        }
    });
    let mut rows = std::mem::take(&mut *lock());
    stages.iter().filter_map(|s| rows.remove(s.name)).collect()
}

fn failed_before(stage: &Stage, name: &str) -> Row {
    let why = format!("{name} failed before");
    eprintln!("[{}] not run: {why}", stage.name);
    Row {
        stage: stage.name,
        end: End::Failed(Count::default(), why),
        took: std::time::Duration::ZERO,
    }
}

fn work(stage: &Stage) -> Row {
    eprintln!("[{}] begins", stage.name);
    let begun = Instant::now();
    let _ = fs::create_dir_all(crate::paths::target().join("test-logs"));
    let _ = fs::remove_file(stage.log());
    let end = (stage.work)(stage).unwrap_or_else(|message| End::Failed(stage.count(), message));
    let took = begun.elapsed();
    match &end {
        End::Passed(count) if count.passed > 0 => {
            eprintln!(
                "[{}] ok, {} tests, {:.1} s",
                stage.name,
                count.passed,
                took.as_secs_f64()
            );
        }
        End::Passed(_) => eprintln!("[{}] ok, {:.1} s", stage.name, took.as_secs_f64()),
        End::Skipped(why) => eprintln!("[{}] skipped: {why}", stage.name),
        End::Failed(_, message) => {
            eprintln!(
                "[{}] FAILED after {:.1} s: {message}",
                stage.name,
                took.as_secs_f64()
            );
            eprintln!("{}", tail(stage));
        }
    }
    Row {
        stage: stage.name,
        end,
        took,
    }
}

/// The end of a failed stage's log, and before it what went wrong, wherever in the log that stands.
fn tail(stage: &Stage) -> String {
    let text = fs::read(stage.log()).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().filter(|line| !is_frame(line)).collect();
    let from = lines.len().saturating_sub(60);
    format!(
        "--- from {}\n{}\n--- its end\n{}\n---",
        stage.log().display(),
        causes(&lines).join("\n"),
        lines[from..].join("\n")
    )
}

/// A line of a backtrace.
fn is_frame(line: &str) -> bool {
    let line = line.trim_start();
    let number = line.split(": ").next().unwrap_or_default();
    line.starts_with("at ")
        || line == "Stack backtrace:"
        || (line.contains(": ") && number.parse::<u32>().is_ok())
}

/// What panicked and which tests returned errors, with a few lines of each.
fn causes<'a>(lines: &[&'a str]) -> Vec<&'a str> {
    let begins = |line: &str| line.contains(" panicked at ") || line.starts_with("Error: ");
    let (mut causes, mut left) = (Vec::new(), 0);
    for line in lines {
        if begins(line) {
            left = 12;
        }
        if left > 0 {
            causes.push(*line);
            left -= 1;
        }
        if causes.len() >= 200 {
            break;
        }
    }
    causes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_went_wrong_is_found_between_frames_and_other_output() {
        let log = "---- a stdout ----\nError: no pod\nStack backtrace:\n   0: x::y\n             at ./a.rs:1\n\
                   thread 'b' panicked at src/b.rs:2:\nleft: 1\n  12: z\nok";
        let lines: Vec<&str> = log.lines().filter(|line| !is_frame(line)).collect();
        assert_eq!(
            causes(&lines),
            [
                "Error: no pod",
                "thread 'b' panicked at src/b.rs:2:",
                "left: 1",
                "ok"
            ]
        );
        assert_eq!(causes(&["all is well", "done"]), Vec::<&str>::new());
    }
}
