//! Runs test programs one by one or in parallel, and kills those that hang.
//!
//! Cargo builds them, but can neither measure a test nor kill one that hangs.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cases::{Case, Event, Verdict, event};
use crate::process;
use crate::stages::Run;

/// How often a program is restarted for the remaining tests after one ended it.
const RESTARTS: usize = 5;
/// How many failed tests are rerun, each alone.
const AGAIN: usize = 5;
/// How long a program may take to exit after its last test.
const ENDS: Duration = Duration::from_mins(1);
/// The polling interval between two lines of a program.
const LOOK: Duration = Duration::from_millis(200);

/// A test program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Package and target.
    pub name: String,
    /// The target.
    pub target: String,
    /// Whether it contains only tests, so that one without tests is a mistake.
    pub is_tests_only: bool,
    /// The executable.
    pub path: PathBuf,
    /// The directory in which cargo would run it.
    pub directory: PathBuf,
}

/// How to run programs.
pub struct How {
    /// Their environment variables.
    pub env: Vec<(&'static str, OsString)>,
    /// The number of parallel tests per program; `None` for the number of processors.
    pub threads: Option<usize>,
    /// The number of parallel programs.
    pub side_by_side: usize,
    /// The targets of programs that run after the others, one by one.
    pub apart: &'static [&'static str],
    /// A test that takes longer hangs.
    pub limit: Duration,
    /// Whether a failed test is rerun alone, to distinguish load from a defect. The run stays red.
    pub again: bool,
    /// Selects tests whose names contain one of these words; empty selects all.
    pub only: Vec<String>,
}

impl Default for How {
    fn default() -> Self {
        Self {
            env: Vec::new(),
            threads: None,
            side_by_side: 1,
            apart: &[],
            limit: Duration::from_mins(10),
            again: false,
            only: Vec::new(),
        }
    }
}

/// Builds the test programs of this cargo command.
pub fn build(run: &Run, cargo: &mut Command) -> Result<Vec<Program>, String> {
    cargo.args(["--no-run", "--message-format=json-render-diagnostics"]);
    let (built, messages) = run.output(cargo)?;
    if !built {
        return Err("the tests don't compile".to_owned());
    }
    Ok(messages.lines().filter_map(program).collect())
}

/// Returns the test program in a cargo message.
fn program(message: &str) -> Option<Program> {
    let value: Value = serde_json::from_str(message).ok()?;
    let is_test = value["profile"]["test"] == true;
    let path = value["executable"].as_str().filter(|_| is_test)?;
    let target = value["target"]["name"].as_str()?.to_owned();
    let kind = value["target"]["kind"][0].as_str()?;
    let directory = Path::new(value["manifest_path"].as_str()?).parent()?;
    let package = directory.file_name()?.to_string_lossy();
    let name = match kind {
        "lib" => package.into_owned(),
        _ => format!("{package}/{target}"),
    };
    Some(Program {
        name,
        target,
        is_tests_only: kind == "test",
        path: path.into(),
        directory: directory.to_path_buf(),
    })
}

/// Runs the programs and records the results of their tests.
pub fn run(run: &Run, programs: &[Program], how: &How) -> Result<(), String> {
    let mut left = VecDeque::new();
    let mut number = 0;
    for program in programs {
        let listed = list(program, how).and_then(|all| {
            let none = all.is_empty() && program.is_tests_only && how.only.is_empty();
            if none {
                Err("it has no tests".to_owned())
            } else {
                Ok(all)
            }
        });
        let all = match listed {
            Ok(all) => all,
            // Continue with the other programs.
            Err(why) => {
                let case = case(program, String::new(), Verdict::Failed(why), Duration::ZERO);
                run.ended(case, "");
                continue;
            }
        };
        let names: Vec<String> = all
            .into_iter()
            .filter(|_| {
                number += 1;
                run.share.has(run.stage, number)
            })
            .collect();
        if !names.is_empty() {
            left.push_back((program, names));
        }
    }
    let (apart, others): (VecDeque<_>, VecDeque<_>) = left
        .into_iter()
        .partition(|(program, _)| how.apart.contains(&program.target.as_str()));
    let ended = run_lists(run, others, how, how.side_by_side);
    ended.and(run_lists(run, apart, how, 1))?;
    if how.again {
        let cases = run.cases();
        let failed = cases.iter().filter(|c| c.failed() && !c.name.is_empty());
        let known = failed
            .filter_map(|case| Some((programs.iter().find(|p| p.name == case.program)?, case)));
        for (program, case) in known.take(AGAIN) {
            alone(run, program, &case.name, how)?;
        }
    }
    Ok(())
}

fn run_lists(
    run: &Run,
    lists: VecDeque<(&Program, Vec<String>)>,
    how: &How,
    side_by_side: usize,
) -> Result<(), String> {
    let (left, errors) = (Mutex::new(lists), Mutex::new(Vec::new()));
    // The first lane takes programs from the front, the others from the back, so that the first programs run in parallel only if no
    // others are left.
    let next = |is_first: bool| {
        let mut left = left.lock().unwrap_or_else(PoisonError::into_inner);
        if is_first {
            left.pop_front()
        } else {
            left.pop_back()
        }
    };
    thread::scope(|scope| {
        for lane in 0..side_by_side.max(1) {
            let (next, errors) = (&next, &errors);
            scope.spawn(move || {
                while let Some((program, names)) = next(lane == 0) {
                    if let Err(why) = to_the_end(run, program, names, how) {
                        let mut errors = errors.lock().unwrap_or_else(PoisonError::into_inner);
                        errors.push(format!("{}: {why}", program.name));
                    }
                }
            });
        }
    });
    let errors = errors.into_inner().unwrap_or_else(PoisonError::into_inner);
    if errors.is_empty() {
        Ok(())
    } else {
        Err(errors.join("\n"))
    }
}

/// Reruns a failed test alone.
fn alone(run: &Run, program: &Program, name: &str, how: &How) -> Result<(), String> {
    let apart = Run::new(run.stage, run.share);
    to_the_end(&apart, program, vec![name.to_owned()], how)?;
    let end = if apart
        .cases()
        .iter()
        .all(|case| case.verdict == Verdict::Passed)
    {
        "passed"
    } else {
        "failed"
    };
    eprintln!("[{}] {} {name} alone: {end}", run.stage, program.name);
    run.note(
        &program.name,
        name,
        &format!("failed in the run; alone: {end}"),
    );
    Ok(())
}

/// Lists the tests of a program.
fn list(program: &Program, how: &How) -> Result<Vec<String>, String> {
    let mut command = Command::new(&program.path);
    command
        .args(&how.only)
        .args(["--list", "--format", "terse"])
        .current_dir(&program.directory);
    let text = process::quiet(&mut command)?;
    let names = text.lines().filter_map(|l| l.strip_suffix(": test"));
    Ok(names.map(str::to_owned).collect())
}

/// Runs tests of a program. If a test ends the program, restarts it for the tests that had not started.
fn to_the_end(
    run: &Run,
    program: &Program,
    mut names: Vec<String>,
    how: &How,
) -> Result<(), String> {
    for _ in 0..RESTARTS {
        let ended = attempt(run, program, &names, how)?;
        names.retain(|name| !ended.contains(name));
        if names.is_empty() {
            return Ok(());
        }
    }
    for name in names {
        let why = format!("not run: the program ended early {RESTARTS} times");
        let case = case(program, name, Verdict::Failed(why), Duration::ZERO);
        run.ended(case, "");
    }
    Ok(())
}

fn case(program: &Program, name: String, verdict: Verdict, took: Duration) -> Case {
    Case {
        program: program.name.clone(),
        name,
        verdict,
        took,
        log: None,
    }
}

/// Why a program was killed.
enum Stop {
    Exited(ExitStatus),
    /// A test took too long.
    Hung,
    /// It didn't exit after its last test.
    Stayed,
}

/// Runs tests of a program once, and returns the names of those that have ended.
fn attempt(
    run: &Run,
    program: &Program,
    names: &[String],
    how: &How,
) -> Result<Vec<String>, String> {
    let mut child = start(run, program, names, how)?;
    let lines = lines(&mut child)?;
    let mut tests = Tests {
        run,
        program,
        begun: BTreeMap::new(),
        ended: Vec::new(),
        failed: 0,
    };
    let (mut over, mut exited) = (None::<Instant>, None::<ExitStatus>);
    let stop = loop {
        if let Ok(line) = lines.recv_timeout(LOOK) {
            if tests.take(&line) {
                over = Some(Instant::now());
            }
            // A program that constantly writes can hang as well.
            if tests.longest() > how.limit {
                break Stop::Hung;
            }
            continue;
        }
        // Reads the program's last output before it counts as ended. A child process may hold the output open.
        if let Some(status) = exited {
            break Stop::Exited(status);
        }
        exited = child.try_wait().map_err(|e| e.to_string())?;
        if exited.is_none() && tests.longest() > how.limit {
            break Stop::Hung;
        }
        if exited.is_none() && over.is_some_and(|over| over.elapsed() > ENDS) {
            break Stop::Stayed;
        }
        thread::sleep(LOOK);
    };
    let why = match stop {
        Stop::Exited(status) => match status.signal() {
            Some(signal) => format!("the program ended by signal {signal}"),
            None => format!("the program ended with {status}"),
        },
        Stop::Hung => format!("killed after the limit of {} s", how.limit.as_secs()),
        Stop::Stayed => format!("killed {} s behind its last test", ENDS.as_secs()),
    };
    if !matches!(stop, Stop::Exited(_)) {
        kill(&mut child);
    }
    tests.cut_off(how.limit, &why);
    let well = match stop {
        Stop::Exited(status) => over.is_none() || status.success() || tests.failed > 0,
        Stop::Hung => true,
        Stop::Stayed => false,
    };
    if well && !tests.ended.is_empty() {
        Ok(tests.ended)
    } else {
        Err(why)
    }
}

/// Starts a program in its own process group. It ends with this process, together with its children.
fn start(run: &Run, program: &Program, names: &[String], how: &How) -> Result<Child, String> {
    let setpriv = Path::new("/usr/bin/setpriv");
    let mut command = if setpriv.exists() {
        let mut command = Command::new(setpriv);
        command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(&program.path);
        command
    } else {
        Command::new(&program.path)
    };
    command
        .arg("--exact")
        .args(names)
        .args([
            "-Z",
            "unstable-options",
            "--format",
            "json",
            "--show-output",
        ])
        // For the program, not for cargo: it only enables the JSON option.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_MANIFEST_DIR", &program.directory)
        .envs(how.env.iter().map(|(name, value)| (name, value)))
        .current_dir(&program.directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(run.open()?)
        .process_group(0);
    if let Some(threads) = how.threads {
        command.env("RUST_TEST_THREADS", threads.to_string());
    }
    command
        .spawn()
        .map_err(|e| format!("{}: {e}", program.path.display()))
}

/// Returns the lines of its output as they arrive.
fn lines(child: &mut Child) -> Result<Receiver<String>, String> {
    let output = child.stdout.take().ok_or("a program without output")?;
    let (sender, lines) = channel();
    thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        while output.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            let _ = sender.send(String::from_utf8_lossy(&line).into_owned());
            line.clear();
        }
    });
    Ok(lines)
}

/// Kills a program with its process group.
fn kill(child: &mut Child) {
    let group = format!("-{}", child.id());
    let _ = process::quiet(&mut process::command("kill", ["-KILL", "--", &group]));
    let _ = child.kill();
    let _ = child.wait();
}

/// The tests of a running program.
struct Tests<'a> {
    run: &'a Run,
    program: &'a Program,
    begun: BTreeMap<String, Instant>,
    ended: Vec<String>,
    failed: usize,
}

impl Tests<'_> {
    /// Handles a line of the program's output; returns whether all tests have ended.
    fn take(&mut self, line: &str) -> bool {
        match event(line) {
            Some(Event::Begins(name)) => {
                self.begun.insert(name, Instant::now());
            }
            Some(Event::Ends {
                name,
                verdict,
                output,
            }) => self.end(name, verdict, &output),
            Some(Event::Over) => return true,
            None => {}
        }
        false
    }

    fn end(&mut self, name: String, verdict: Verdict, output: &str) {
        let begun = self.begun.remove(&name);
        let took = begun.map_or(Duration::ZERO, |begun| begun.elapsed());
        self.failed += usize::from(matches!(verdict, Verdict::Failed(_)));
        self.ended.push(name.clone());
        self.run
            .ended(case(self.program, name, verdict, took), output);
    }

    /// Returns how long the oldest running test has run.
    fn longest(&self) -> Duration {
        let begun = self.begun.values().min();
        begun.map_or(Duration::ZERO, Instant::elapsed)
    }

    /// Fails the running tests after the program has ended.
    fn cut_off(&mut self, limit: Duration, why: &str) {
        let running: Vec<(String, Duration)> = self
            .begun
            .iter()
            .map(|(name, begun)| (name.clone(), begun.elapsed()))
            .collect();
        for (name, took) in running {
            let why = if took > limit {
                why.to_owned()
            } else {
                format!("cut off: {why}")
            };
            let output = format!("{why}; what it printed is lost with the program");
            self.end(name, Verdict::Failed(why), &output);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::deep::Share;
    use crate::image::OPERATORS;
    use crate::paths;

    const PASSES: &str = "table::tests::a_stage_of_tests_that_ran_none_has_failed";
    const PLAYS: &str = "programs::tests::what_fails_is_skipped_hangs_or_crashes_is_told_apart";
    /// The part that the test plays when it runs itself.
    const PART: &str = "XTASK_TEST_PART";

    /// Returns this program as another target.
    fn itself(target: &str) -> Program {
        Program {
            name: target.to_owned(),
            target: target.to_owned(),
            is_tests_only: false,
            path: std::env::current_exe().unwrap(),
            directory: crate::paths::root(),
        }
    }

    /// Runs this program like any other, with a test that plays a part.
    fn play(part: &str) -> Vec<(String, Verdict)> {
        let program = itself("xtask");
        let how = How {
            env: vec![(PART, part.into())],
            // One by one, by name: the passing test has not started when the other ends the program.
            threads: Some(1),
            limit: Duration::from_secs(if part == "hangs" { 5 } else { 600 }),
            ..How::default()
        };
        std::fs::create_dir_all(crate::stages::logs()).unwrap();
        let run = Run::new("xtask-runner", Share::ALL);
        let names = [PLAYS, PASSES].map(str::to_owned).to_vec();
        to_the_end(&run, &program, names, &how).unwrap();
        let mut ends: Vec<(String, Verdict)> = run
            .cases()
            .into_iter()
            .map(|case| (case.name, case.verdict))
            .collect();
        ends.sort_by_key(|(name, _)| name != PASSES);
        ends
    }

    #[test]
    fn every_file_with_tests_of_an_operator_is_in_its_program() {
        let mut files = 0;
        for operator in OPERATORS {
            let tests = paths::root().join("operators").join(operator).join("tests");
            let Ok(program) = fs::read_to_string(tests.join("all.rs")) else {
                continue;
            };
            for entry in fs::read_dir(tests).unwrap().flatten() {
                let name = entry.file_name().into_string().unwrap();
                if let Some(module) = name.strip_suffix(".rs").filter(|module| *module != "all") {
                    assert!(
                        program.contains(&format!("mod {module};")),
                        "{operator}: {name}"
                    );
                    files += 1;
                }
            }
        }
        assert!(files > 20, "{files}");
    }

    #[test]
    fn what_fails_is_skipped_hangs_or_crashes_is_told_apart() {
        match std::env::var(PART).as_deref() {
            Ok("fails") => assert_eq!(1, 2, "on purpose"),
            Ok("is skipped") => eprintln!("test skipped: on purpose"),
            Ok("hangs") => thread::sleep(Duration::from_mins(10)),
            Ok("crashes") => std::process::exit(3),
            Ok(other) => println!("plays {other}"),
            Err(_) => {
                let second = |part: &str| {
                    let ends = play(part);
                    // The other test passed in any case.
                    assert_eq!(ends[0], (PASSES.to_owned(), Verdict::Passed), "{part}");
                    assert_eq!(ends.len(), 2, "{part}");
                    ends[1].1.clone()
                };
                let why = |part: &str| match second(part) {
                    Verdict::Failed(why) => why,
                    other => panic!("{part}: {other:?}"),
                };
                assert_eq!(second("well"), Verdict::Passed);
                assert_eq!(
                    second("is skipped"),
                    Verdict::Skipped("on purpose".to_owned())
                );
                let assertion = why("fails");
                assert!(
                    assertion.contains("failed: on purpose\n  left: 1\n right: 2"),
                    "{assertion}"
                );
                assert_eq!(why("hangs"), "killed after the limit of 5 s");
                assert_eq!(
                    why("crashes"),
                    "cut off: the program ended with exit status: 3"
                );
            }
        }
    }

    #[test]
    fn programs_that_run_apart_run_after_the_others() {
        let how = How {
            apart: &["apart"],
            only: vec![PASSES.to_owned()],
            ..How::default()
        };
        std::fs::create_dir_all(crate::stages::logs()).unwrap();
        let stage = Run::new("xtask-apart", Share::ALL);
        run(&stage, &["apart", "first", "second"].map(itself), &how).unwrap();
        let cases = stage.cases();
        let order: Vec<&str> = cases.iter().map(|case| case.program.as_str()).collect();
        assert_eq!(order, ["first", "second", "apart"]);
    }

    #[test]
    fn a_message_of_cargo_names_a_program() {
        let message = |kind: &str, test: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/x/e2e/Cargo.toml","target":{{"kind":["{kind}"],"name":"api_gang"}},"profile":{{"test":{test}}},"executable":"/t/api_gang-1"}}"#
            )
        };
        let found = program(&message("test", true)).unwrap();
        assert_eq!(found.name, "e2e/api_gang");
        assert!(found.is_tests_only && found.directory.ends_with("e2e"));
        assert_eq!(program(&message("lib", true)).unwrap().name, "e2e");
        assert_eq!(program(&message("bin", false)), None);
        assert_eq!(program("   Compiling x"), None);
    }
}
