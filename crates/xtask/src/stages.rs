//! Runs stages in parallel as far as their dependencies allow.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::cases::{Case, Verdict, junit};
use crate::deep::Share;
use crate::table::{Count, End, Row};

/// One stage.
#[derive(Clone, Copy)]
pub struct Stage {
    /// Its name.
    pub name: &'static str,
    /// Whether it runs tests: then it fails if none ran.
    pub has_tests: bool,
    /// Stages that must have passed before.
    pub needs: &'static [&'static str],
    /// Stages that must have ended before, passed or not: cargo's lock would make this one wait for them anyway.
    pub after: &'static [&'static str],
    /// What it does.
    pub work: fn(&Run) -> Result<(), String>,
}

/// A stage while it runs: its log, and the tests that have ended so far.
pub struct Run {
    /// The stage's name.
    pub stage: &'static str,
    /// The part of the tests to run; all of them in `make test`.
    pub share: Share,
    cases: Mutex<Vec<Case>>,
}

impl Run {
    /// Creates a run of a stage.
    pub fn new(stage: &'static str, share: Share) -> Self {
        Self {
            stage,
            share,
            cases: Mutex::default(),
        }
    }

    /// Returns the path of its log.
    pub fn log(&self) -> PathBuf {
        logs().join(format!("{}.log", self.stage))
    }

    /// Opens the log for appending.
    pub fn open(&self) -> Result<File, String> {
        let file = File::options().create(true).append(true).open(self.log());
        file.map_err(|e| format!("{}: {e}", self.log().display()))
    }

    /// Runs a command; its output goes into the stage's log.
    ///
    /// # Errors
    /// If it fails; the log says why.
    pub fn run(&self, command: &mut Command) -> Result<(), String> {
        let status = command
            .stdout(self.open()?)
            .stderr(self.open()?)
            .status()
            .map_err(|e| e.to_string())?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("{}: {status}", command.get_program().display()))
        }
    }

    /// Runs a command and returns whether it succeeded and its standard output; its errors go into the stage's log.
    pub fn output(&self, command: &mut Command) -> Result<(bool, String), String> {
        let out = command
            .stderr(self.open()?)
            .output()
            .map_err(|e| e.to_string())?;
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        Ok((out.status.success(), text))
    }

    /// Records a test's result and output. A failure is printed at once, and gets its own log.
    pub fn ended(&self, mut case: Case, output: &str) {
        let (end, why) = match &case.verdict {
            Verdict::Passed => ("passed", String::new()),
            Verdict::Failed(why) => ("FAILED", why.clone()),
            Verdict::Skipped(why) => ("skipped", why.clone()),
        };
        let title = format!("{} {} {end}", case.program, case.name);
        let took = case.took.as_secs_f64();
        let said = format!("=== {title} {took:.1} s {why}\n{output}\n");
        // In one write, because other programs write into the same file.
        if let Ok(mut log) = self.open() {
            let _ = log.write_all(said.as_bytes());
        }
        if case.failed() {
            eprintln!("[{}] {title}", self.stage);
            let name = format!("{} {}", case.program, case.name);
            let name = name.replace(|c: char| !c.is_ascii_alphanumeric() && c != '_', ".");
            let file = format!("{}.log", name.chars().take(200).collect::<String>());
            let path = logs().join(self.stage).join(file);
            let written = fs::create_dir_all(logs().join(self.stage))
                .and_then(|()| File::options().create(true).append(true).open(&path))
                .and_then(|mut file| file.write_all(said.as_bytes()));
            if written.is_ok() {
                case.log = Some(path);
            }
        }
        self.lock().push(case);
    }

    /// Records a test that another run has reported.
    pub fn keep(&self, case: Case) {
        self.lock().push(case);
    }

    /// The tests that have ended so far.
    pub fn cases(&self) -> Vec<Case> {
        self.lock().clone()
    }

    /// Records that a program can't run here as skipped.
    pub fn skip(&self, program: &str, why: &str) {
        eprintln!("[{}] {program}: skipped, {why}", self.stage);
        let case = Case {
            program: program.to_owned(),
            name: String::new(),
            verdict: Verdict::Skipped(why.to_owned()),
            took: Duration::ZERO,
            log: None,
        };
        self.ended(case, "");
    }

    /// Adds a line to the assertion of a test that failed.
    pub fn note(&self, program: &str, name: &str, line: &str) {
        let mut cases = self.lock();
        let case = cases
            .iter_mut()
            .find(|case| case.program == program && case.name == name);
        if let Some(Verdict::Failed(why)) = case.map(|case| &mut case.verdict) {
            *why = format!("{line}\n{why}");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Case>> {
        // Nothing panics while holding it; if it did, the stored results would still be valid.
        self.cases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The directory of all logs.
pub fn logs() -> PathBuf {
    crate::paths::target().join("test-logs")
}

/// Runs the stages; each starts when the stages that it needs have passed.
pub fn run(stages: &[Stage], share: Share) -> Vec<Row> {
    let ended: Mutex<BTreeMap<&'static str, Row>> = Mutex::default();
    let changed = Condvar::new();
    let lock = || ended.lock().unwrap_or_else(PoisonError::into_inner);
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
                    done = changed.wait(done).unwrap_or_else(PoisonError::into_inner);
                }
                let failed = |name: &&&str| done.get(**name).is_some_and(Row::failed);
                let broken = needs.iter().find(failed).map(|name| (*name).to_owned());
                drop(done);
                let row = match broken {
                    Some(name) => failed_before(stage, &name),
                    None => work(stage, share),
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
    let why = format!("not run: {name} failed before");
    eprintln!("[{}] {why}", stage.name);
    Row {
        stage: stage.name,
        end: End::Failed(why),
        cases: Vec::new(),
        took: Duration::ZERO,
        log: logs().join(format!("{name}.log")),
    }
}

fn work(stage: &Stage, share: Share) -> Row {
    eprintln!("[{}] begins", stage.name);
    let begun = Instant::now();
    let run = Run::new(stage.name, share);
    let junits = logs().join("junit");
    let _ = fs::create_dir_all(&junits);
    let _ = fs::remove_file(run.log());
    let _ = fs::remove_dir_all(logs().join(stage.name));
    // Others wait for this stage, so it must end even if it panics.
    let result = catch_unwind(AssertUnwindSafe(|| (stage.work)(&run)))
        .unwrap_or_else(|_| Err("the stage itself panicked".to_owned()));
    let cases = std::mem::take(&mut *run.lock());
    // A part may have none of a stage's tests; the merge checks that all parts together have some.
    let has_tests = stage.has_tests && share == Share::ALL;
    let result = result.map_err(|why| {
        let log = fs::read(run.log()).unwrap_or_default();
        format!("{why}\n{}", causes(&String::from_utf8_lossy(&log)))
    });
    let end = End::of(has_tests, result, &cases);
    let report = junits.join(format!("{}.xml", stage.name));
    if cases.is_empty() {
        let _ = fs::remove_file(report);
    } else {
        let _ = fs::write(report, junit(stage.name, &cases));
    }
    let row = Row {
        stage: stage.name,
        end,
        took: begun.elapsed(),
        log: run.log(),
        cases,
    };
    eprintln!("{}", told(&row));
    row
}

/// Returns the first errors of a log; without errors, its last lines.
fn causes(log: &str) -> String {
    let lines: Vec<&str> = log.lines().filter(|l| !l.trim().is_empty()).collect();
    let begins =
        |l: &str| l.starts_with("error") || l.starts_with("Error: ") || l.contains("panicked at ");
    let first = lines.iter().position(|l| begins(l));
    let from = first.unwrap_or(lines.len().saturating_sub(5));
    lines[from..]
        .iter()
        .take(5)
        .copied()
        .collect::<Vec<_>>()
        .join("\n")
}

/// Formats the result of a stage. The end of the run repeats the causes in short.
fn told(row: &Row) -> String {
    let (name, took) = (row.stage, row.took.as_secs_f64());
    let count = Count::of(&row.cases);
    match &row.end {
        End::Passed if count.passed > 0 => {
            format!("[{name}] ok, {} tests, {took:.1} s", count.passed)
        }
        End::Passed => format!("[{name}] ok, {took:.1} s"),
        End::Skipped(why) => format!("[{name}] skipped: {why}"),
        End::Failed(why) if count.failed > 0 => {
            format!(
                "[{name}] FAILED, {} tests, {took:.1} s: {why}",
                count.failed
            )
        }
        End::Failed(why) => {
            let text = fs::read(&row.log).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<&str> = text.lines().collect();
            let end = lines[lines.len().saturating_sub(40)..].join("\n");
            let log = row.log.display();
            let why = why.lines().next().unwrap_or_default();
            format!("[{name}] FAILED after {took:.1} s: {why}\n--- the end of {log}\n{end}\n---")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn stage(name: &'static str, work: fn(&Run) -> Result<(), String>) -> Stage {
        Stage {
            name,
            has_tests: false,
            needs: &[],
            after: &[],
            work,
        }
    }

    #[test]
    fn the_first_error_of_a_log_is_found_and_else_its_end() {
        let log = "Compiling a\nerror[E1]: no such thing\n --> src/a.rs:1\nmore\n".to_owned()
            + &"x\n".repeat(50);
        assert!(causes(&log).starts_with("error[E1]: no such thing\n --> src/a.rs:1\nmore"));
        assert_eq!(causes("a\n\nb\n"), "a\nb");
        assert_eq!(causes(""), "");
    }

    #[test]
    fn what_does_not_need_the_failed_stage_still_runs() {
        let needing = |name, needs: &'static [&'static str], after| Stage {
            needs,
            after,
            ..stage(name, |_| Ok(()))
        };
        let stages = [
            stage("xtask-panics", |_| panic!("on purpose")),
            needing("xtask-needs", &["xtask-panics"], &[]),
            needing("xtask-follows", &[], &["xtask-needs"]),
            Stage {
                has_tests: true,
                ..stage("xtask-tests-nothing", |_| Ok(()))
            },
        ];
        let rows = run(&stages, Share::ALL);
        let failed: Vec<bool> = rows.iter().map(Row::failed).collect();
        assert_eq!(failed, [true, true, false, true]);
        assert_eq!(rows[3].end, End::Failed("no test was run".to_owned()));
    }
}
