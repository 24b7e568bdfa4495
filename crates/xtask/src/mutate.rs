//! Breaks one line of a copy of the sources at a time, and requires that a test fails.
//!
//! This shows that the tests detect defects. [`list::MUTATIONS`] lists the mutations; each names the tests that must fail.
//! The copy is in cargo's target directory and has its own target directory, so that the sources and their builds
//! stay untouched.

mod list;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::cases::{self, Case};
use crate::stages::Run;
use crate::{paths, process};

/// A test that takes longer hangs: a mutation may cause an endless loop.
const LIMIT: Duration = Duration::from_mins(10);

/// One broken line.
struct Mutation {
    /// A short description.
    name: &'static str,
    /// The file.
    file: &'static str,
    /// The original text; it must occur exactly once.
    from: &'static str,
    /// The replacement.
    to: &'static str,
    /// The arguments of `cargo test`; one of these tests must fail.
    tests: &'static [&'static str],
}

/// The result of a mutation.
struct Verdict {
    name: &'static str,
    /// The tests that failed, or why the mutation doesn't count as detected.
    outcome: Result<String, String>,
    took: Duration,
}

/// Runs all mutations, or those whose names contain a word.
pub fn run(words: &[&str]) -> Result<(), String> {
    let chosen: Vec<&Mutation> = list::MUTATIONS
        .iter()
        .filter(|m| words.is_empty() || words.iter().any(|w| m.name.contains(w)))
        .collect();
    if chosen.is_empty() {
        return Err(format!(
            "no mutation has {} in its name",
            words.join(" or ")
        ));
    }
    let verdicts = judged(&chosen)?;
    eprintln!("{}", table(&verdicts));
    match verdicts.iter().filter(|v| v.outcome.is_err()).count() {
        0 => Ok(()),
        survived => Err(format!(
            "{survived} of {} breaks were not noticed",
            verdicts.len()
        )),
    }
}

/// Runs the mutations as a stage, with each mutation as a test.
pub fn stage(run: &Run) -> Result<(), String> {
    let chosen: Vec<&Mutation> = list::MUTATIONS
        .iter()
        .enumerate()
        .filter(|(number, _)| run.share.has(run.stage, *number))
        .map(|(_, mutation)| mutation)
        .collect();
    for verdict in judged(&chosen)? {
        let (end, output) = match verdict.outcome {
            Ok(tests) => (cases::Verdict::Passed, format!("noticed by {tests}")),
            Err(why) => (cases::Verdict::Failed(why.clone()), why),
        };
        let case = Case {
            program: "break".to_owned(),
            name: verdict.name.to_owned(),
            verdict: end,
            took: verdict.took,
            log: None,
        };
        run.ended(case, &output);
    }
    Ok(())
}

fn judged(chosen: &[&Mutation]) -> Result<Vec<Verdict>, String> {
    let tree = paths::target().join("mutate/tree");
    copy(&tree)?;
    sound(&tree, chosen)?;
    Ok(chosen.iter().map(|m| judge(&tree, m)).collect())
}

/// Updates the copy. Unchanged files keep their modification time, so that cargo rebuilds little.
fn copy(tree: &Path) -> Result<(), String> {
    let listed = process::quiet(&mut process::command(
        "git",
        ["ls-files", "--cached", "--others", "--exclude-standard"],
    ))?;
    let wanted: BTreeSet<PathBuf> = listed
        .lines()
        .map(PathBuf::from)
        .filter(|p| paths::root().join(p).is_file())
        .collect();
    for path in &wanted {
        let (from, to) = (paths::root().join(path), tree.join(path));
        let content = fs::read(&from).map_err(|e| format!("{}: {e}", from.display()))?;
        if fs::read(&to).is_ok_and(|old| old == content) {
            continue;
        }
        if let Some(dir) = to.parent() {
            fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        }
        fs::write(&to, content).map_err(|e| format!("{}: {e}", to.display()))?;
    }
    remove_others(tree, tree, &wanted)
}

/// Removes files that the sources no longer have: cargo would still build deleted test programs.
fn remove_others(tree: &Path, dir: &Path, wanted: &BTreeSet<PathBuf>) -> Result<(), String> {
    let entries = fs::read_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            remove_others(tree, &path, wanted)?;
        } else if path.strip_prefix(tree).is_ok_and(|p| !wanted.contains(p)) {
            fs::remove_file(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        }
    }
    Ok(())
}

/// Checks that every test passes without a mutation; otherwise a failure would prove nothing.
fn sound(tree: &Path, chosen: &[&Mutation]) -> Result<(), String> {
    let commands: BTreeSet<&[&str]> = chosen.iter().map(|m| m.tests).collect();
    for tests in commands {
        eprintln!("[mutate] unbroken: cargo test {}", tests.join(" "));
        let (built, output) = cargo_test(tree, tests, &["--no-run"])?;
        if !built {
            return Err(format!(
                "the tests don't compile without a break:\n{output}"
            ));
        }
        let (passed, output) = cargo_test(tree, tests, &[])?;
        if !passed {
            return Err(format!("the tests fail without a break:\n{output}"));
        }
    }
    Ok(())
}

fn judge(tree: &Path, mutation: &Mutation) -> Verdict {
    let begun = Instant::now();
    let outcome = broken(tree, mutation);
    let verdict = Verdict {
        name: mutation.name,
        outcome,
        took: begun.elapsed(),
    };
    match &verdict.outcome {
        Ok(tests) => eprintln!("[mutate] {}: noticed by {tests}", verdict.name),
        Err(why) => eprintln!("[mutate] {}: NOT NOTICED: {why}", verdict.name),
    }
    verdict
}

/// Applies the mutation, runs the tests, and reverts it.
fn broken(tree: &Path, mutation: &Mutation) -> Result<String, String> {
    let path = tree.join(mutation.file);
    let whole = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let text = apply(&whole, mutation)?;
    fs::write(&path, text).map_err(|e| e.to_string())?;
    let tested = cargo_test(tree, mutation.tests, &["--no-run"]).and_then(|(builds, output)| {
        if builds {
            cargo_test(tree, mutation.tests, &[])
        } else {
            Err(format!("it does not compile:\n{output}"))
        }
    });
    fs::write(&path, whole).map_err(|e| e.to_string())?;
    match tested? {
        (true, _) => Err("all tests passed".to_owned()),
        (false, output) => failed_tests(&output),
    }
}

fn apply(whole: &str, mutation: &Mutation) -> Result<String, String> {
    match whole.matches(mutation.from).count() {
        1 => Ok(whole.replacen(mutation.from, mutation.to, 1)),
        found => Err(format!(
            "its text occurs {found} times in {}, not once",
            mutation.file
        )),
    }
}

/// Returns the names of the failed tests, from the end of the output.
fn failed_tests(output: &str) -> Result<String, String> {
    let names: BTreeSet<&str> = output
        .lines()
        .filter_map(|l| l.strip_prefix("test ")?.strip_suffix(" ... FAILED"))
        .map(|name| name.rsplit("::").next().unwrap_or(name))
        .collect();
    let names: Vec<&str> = names.into_iter().collect();
    match names.as_slice() {
        [] => Err(format!("no test failed, but the run did:\n{output}")),
        [one] => Ok(format!("`{one}`")),
        [one, rest @ ..] => Ok(format!("`{one}` and {} more", rest.len())),
    }
}

/// Runs `cargo test` in the copy; returns whether it passed, and its output.
fn cargo_test(tree: &Path, tests: &[&str], more: &[&str]) -> Result<(bool, String), String> {
    // Only tests hang; the first compilation may take long. Zero is no limit.
    let limit = if more.contains(&"--no-run") {
        0
    } else {
        LIMIT.as_secs()
    };
    let mut command = Command::new("timeout");
    command
        .args([
            "--kill-after=10",
            &limit.to_string(),
            "cargo",
            "test",
            "--locked",
        ])
        .args(more)
        .args(tests)
        .current_dir(tree)
        .env("CARGO_TARGET_DIR", paths::target().join("mutate/target"))
        // The same histories in each run, so that detection is reproducible.
        .env("PROPTEST_RNG_SEED", "1")
        .env("RUST_BACKTRACE", "0");
    let out = command.output().map_err(|e| format!("timeout: {e}"))?;
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    if out.status.code() == Some(124) {
        return Err("it hangs".to_owned());
    }
    Ok((out.status.success(), text))
}

fn table(verdicts: &[Verdict]) -> String {
    let mut out = String::from("| Break | Noticed by | Seconds |\n| --- | --- | ---: |\n");
    for verdict in verdicts {
        let said = match &verdict.outcome {
            Ok(tests) => tests.clone(),
            Err(why) => format!("**nothing**: {}", why.lines().next().unwrap_or_default()),
        };
        // Writing to a String can't fail.
        let _ = writeln!(
            out,
            "| {} | {said} | {:.0} |",
            verdict.name,
            verdict.took.as_secs_f64()
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_break_still_finds_its_line_and_changes_it() {
        let mut names = BTreeSet::new();
        let mut wrong = Vec::new();
        for mutation in list::MUTATIONS {
            let whole = fs::read_to_string(paths::root().join(mutation.file)).unwrap_or_default();
            match apply(&whole, mutation) {
                Ok(text) if text == whole => wrong.push(format!("{}: no change", mutation.name)),
                Ok(_) => {}
                Err(why) => wrong.push(format!("{}: {why}", mutation.name)),
            }
            if !names.insert(mutation.name) {
                wrong.push(format!("{}: there twice", mutation.name));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(names.len() >= 60, "{} breaks", names.len());
    }

    #[test]
    fn only_tests_that_failed_count() {
        let output = "test a::one ... ok\ntest b::two ... FAILED\ntest three ... FAILED\n";
        assert_eq!(failed_tests(output), Ok("`three` and 1 more".to_owned()));
        assert!(failed_tests("error: it broke\n").is_err());
    }

    #[test]
    fn a_line_that_is_gone_or_there_twice_is_no_break() {
        let mutation = Mutation {
            name: "x",
            file: "f",
            from: "a;",
            to: "b;",
            tests: &[],
        };
        assert_eq!(apply("a; c;", &mutation), Ok("b; c;".to_owned()));
        assert!(apply("c;", &mutation).is_err() && apply("a; a;", &mutation).is_err());
    }
}
