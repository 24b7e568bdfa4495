//! The summary of a run: the table of its stages, its slowest tests, and the failures.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cases::{Case, Verdict};

/// The maximum number of lines, so that the summary fits a terminal.
const LINES: usize = 60;
/// The number of slowest tests to list.
const SLOWEST: usize = 8;
/// The maximum width of a line, in characters.
const WIDTH: usize = 200;

/// Tests of one stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Tests that passed.
    pub passed: usize,
    /// Tests that failed.
    pub failed: usize,
    /// Tests that reported that they can't run.
    pub skipped: usize,
}

impl Count {
    /// Counts tests by result.
    pub fn of(cases: &[Case]) -> Self {
        let mut count = Self::default();
        for case in cases {
            match case.verdict {
                Verdict::Passed => count.passed += 1,
                Verdict::Failed(_) => count.failed += 1,
                Verdict::Skipped(_) => count.skipped += 1,
            }
        }
        count
    }
}

/// How a stage ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It passed.
    Passed,
    /// It failed, with the reason.
    Failed(String),
    /// It did not run, with the reason.
    Skipped(String),
}

impl End {
    /// Returns the result of a stage. A test stage that ran no tests has failed.
    pub fn of(has_tests: bool, result: Result<(), String>, cases: &[Case]) -> Self {
        let count = Count::of(cases);
        match result {
            Err(message) => Self::Failed(message),
            Ok(()) if count.failed > 0 => Self::Failed("tests failed".to_owned()),
            Ok(()) if count.passed > 0 || !has_tests => Self::Passed,
            Ok(()) => match cases.first().map(|case| &case.verdict) {
                Some(Verdict::Skipped(why)) => Self::Skipped(why.clone()),
                _ => Self::Failed("no test was run".to_owned()),
            },
        }
    }
}

/// One line of the table.
#[derive(Clone, Debug)]
pub struct Row {
    /// The stage.
    pub stage: &'static str,
    /// How it ended.
    pub end: End,
    /// Its tests.
    pub cases: Vec<Case>,
    /// How long it took.
    pub took: Duration,
    /// The path of its log.
    pub log: PathBuf,
}

impl Row {
    /// Whether it failed.
    pub fn failed(&self) -> bool {
        matches!(self.end, End::Failed(_))
    }
}

/// A failure.
struct Failure {
    name: String,
    why: String,
    log: PathBuf,
}

/// Renders the table, then all failures or, if there are none, the slowest tests, and the line with the total.
pub fn render(rows: &[Row], took: Duration) -> String {
    let mut out = table(rows, took);
    let failures: Vec<Failure> = rows.iter().flat_map(failures).collect();
    if failures.is_empty() {
        out.push_str(&slowest(rows));
    } else {
        let left = LINES.saturating_sub(out.lines().count() + 4);
        out.push_str("\nfailed:\n");
        for line in fitted(&failures, left) {
            out.push_str(&line);
            out.push('\n');
        }
    }
    let sum = sum(rows);
    // Writing to a String can't fail.
    let _ = writeln!(
        out,
        "\n{} passed, {} failed, {} skipped",
        sum.passed, sum.failed, sum.skipped
    );
    out
}

/// Counts all tests. A stage that failed outside of its tests counts as one failed test, a skipped stage as one skipped test.
fn sum(rows: &[Row]) -> Count {
    let mut sum = Count::default();
    for row in rows {
        let count = Count::of(&row.cases);
        sum.passed += count.passed;
        sum.failed += count.failed + usize::from(row.failed() && count.failed == 0);
        sum.skipped += count.skipped;
    }
    sum
}

fn table(rows: &[Row], took: Duration) -> String {
    let mut out = format!(
        "\n{:<14} {:<8} {:>6} {:>6} {:>7} {:>8}\n",
        "stage", "end", "passed", "failed", "skipped", "seconds"
    );
    for row in rows {
        let (word, why) = match &row.end {
            End::Passed => ("ok", ""),
            End::Failed(why) => ("FAILED", why.lines().next().unwrap_or_default()),
            End::Skipped(why) => ("skipped", why.as_str()),
        };
        let count = Count::of(&row.cases);
        let _ = writeln!(
            out,
            "{:<14} {word:<8} {:>6} {:>6} {:>7} {:>8.1}  {}",
            row.stage,
            count.passed,
            count.failed,
            count.skipped,
            row.took.as_secs_f64(),
            cut(why, 100),
        );
    }
    let _ = writeln!(out, "{:<44} {:>8.1}", "total", took.as_secs_f64());
    out
}

fn slowest(rows: &[Row]) -> String {
    let mut tests: Vec<(&Row, &Case)> = rows
        .iter()
        .flat_map(|row| row.cases.iter().map(move |case| (row, case)))
        .filter(|(_, case)| case.took >= Duration::from_secs(1))
        .collect();
    tests.sort_by_key(|(_, case)| std::cmp::Reverse(case.took));
    let mut out = String::new();
    if !tests.is_empty() {
        out.push_str("\nslowest tests, seconds:\n");
    }
    for (row, case) in tests.iter().take(SLOWEST) {
        let name = format!("{} {} {}", row.stage, case.program, case.name);
        let _ = writeln!(
            out,
            "{:>8.1}  {}",
            case.took.as_secs_f64(),
            cut(&name, WIDTH)
        );
    }
    out
}

/// Returns the failed tests of a stage, or the stage itself if it failed outside of its tests.
fn failures(row: &Row) -> Vec<Failure> {
    let of = |case: &Case| match &case.verdict {
        Verdict::Failed(why) => Some(Failure {
            name: format!("[{}] {} {}", row.stage, case.program, case.name),
            why: why.clone(),
            log: case.log.clone().unwrap_or_else(|| row.log.clone()),
        }),
        _ => None,
    };
    let mut failures: Vec<Failure> = row.cases.iter().filter_map(of).collect();
    if failures.is_empty()
        && let End::Failed(why) = &row.end
    {
        failures.push(Failure {
            name: format!("[{}]", row.stage),
            why: why.clone(),
            log: row.log.clone(),
        });
    }
    failures
}

/// Formats each failure with as much detail as the number of lines allows; names every failure.
fn fitted(failures: &[Failure], lines: usize) -> Vec<String> {
    // Less than three lines leave none for the assertion.
    for of_each in (3..=10).rev() {
        let said: Vec<String> = failures.iter().flat_map(|f| told(f, of_each)).collect();
        if said.len() <= lines {
            return said;
        }
    }
    let one = |f: &Failure| {
        let why = f.why.split_whitespace().collect::<Vec<_>>().join(" ");
        format!("{}: {} ({})", f.name, cut(&why, WIDTH), f.log.display())
    };
    if failures.len() <= lines {
        return failures.iter().map(one).collect();
    }
    // Only the names fit.
    let lines = lines.saturating_sub(1).max(1);
    let names: Vec<&str> = failures.iter().map(|f| f.name.as_str()).collect();
    let mut said: Vec<String> = names
        .chunks(names.len().div_ceil(lines))
        .map(|names| names.join(", "))
        .collect();
    let log = failures.first().map_or(Path::new(""), |f| f.log.as_path());
    let directory = log.parent().unwrap_or(log).display();
    said.push(format!(
        "their assertions are in the logs, as in {directory}"
    ));
    said
}

/// Formats a failure in so many lines: its name, then the assertion, then its log.
fn told(failure: &Failure, lines: usize) -> Vec<String> {
    let log = failure.log.display();
    let why = failure.why.lines().filter(|l| !l.trim().is_empty());
    let mut why: Vec<String> = why.map(str::to_owned).collect();
    // The rest goes into the last line.
    let last = why.split_off(why.len().min(lines - 3));
    if !last.is_empty() {
        why.push(last.join(" "));
    }
    let mut said = vec![failure.name.clone()];
    said.extend(why.iter().map(|l| format!("    {}", cut(l, WIDTH))));
    said.push(format!("    log: {log}"));
    said
}

fn cut(text: &str, width: usize) -> String {
    match text.char_indices().nth(width) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(name: &str, verdict: Verdict) -> Case {
        Case {
            program: "e2e/api_x".to_owned(),
            name: name.to_owned(),
            verdict,
            took: Duration::from_secs(2),
            log: Some(PathBuf::from(format!("logs/{name}.log"))),
        }
    }

    fn row(stage: &'static str, result: Result<(), String>, cases: Vec<Case>) -> Row {
        Row {
            stage,
            end: End::of(!cases.is_empty(), result, &cases),
            cases,
            took: Duration::from_secs(1),
            log: PathBuf::from(format!("logs/{stage}.log")),
        }
    }

    fn failed(count: usize) -> Vec<Case> {
        let why = "thread 'x' panicked at x.rs:1:\nassertion `left == right` failed\n  left: 1\n right: 2";
        (0..count)
            .map(|n| case(&format!("a::t{n:03}"), Verdict::Failed(why.to_owned())))
            .collect()
    }

    #[test]
    fn a_stage_of_tests_that_ran_none_has_failed() {
        let skipped = [case("a", Verdict::Skipped("no node".to_owned()))];
        let failed = |end| matches!(end, End::Failed(_));
        assert!(failed(End::of(true, Ok(()), &[])));
        assert_eq!(End::of(false, Ok(()), &[]), End::Passed);
        assert_eq!(
            End::of(true, Ok(()), &skipped),
            End::Skipped("no node".to_owned())
        );
        let one = [case("a", Verdict::Passed)];
        assert_eq!(End::of(true, Ok(()), &one), End::Passed);
        assert!(failed(End::of(true, Err("exit 1".to_owned()), &one)));
        let bad = [case("b", Verdict::Failed(String::new()))];
        assert!(failed(End::of(false, Ok(()), &bad)));
    }

    #[test]
    fn the_last_line_is_the_sum_and_a_failed_stage_is_never_a_zero() {
        let passed = |n| vec![case("a", Verdict::Passed); n];
        let rows = [
            row("a", Ok(()), passed(4)),
            row("b", Err("x".to_owned()), Vec::new()),
            row(
                "c",
                Ok(()),
                vec![case("c", Verdict::Skipped("no cluster".to_owned()))],
            ),
        ];
        assert!(render(&rows, Duration::ZERO).ends_with("\n4 passed, 1 failed, 1 skipped\n"));
    }

    #[test]
    fn the_end_of_a_run_fits_a_terminal_and_names_every_failure() {
        for count in [1, 3, 9, 10, 30, 300] {
            let mut rows: Vec<Row> = (0..22).map(|_| row("fine", Ok(()), Vec::new())).collect();
            rows.push(row("api", Ok(()), failed(count)));
            let said = render(&rows, Duration::ZERO);
            assert!(said.lines().count() <= LINES, "{count}:\n{said}");
            for case in failed(count) {
                assert!(said.contains(&case.name), "{count}: {}\n{said}", case.name);
                let log = case.log.unwrap();
                let whole = said.contains(&log.display().to_string());
                assert!(whole || count > 30, "{count}: {log:?}\n{said}");
            }
            let assertions = said.matches("`left == right`").count();
            assert!(assertions == count || count > 30, "{count}:\n{said}");
        }
    }

    #[test]
    fn few_failures_are_told_with_assertion_and_log() {
        let rows = [
            row("api", Ok(()), failed(3)),
            row("lint", Err("cargo: exit 101".to_owned()), Vec::new()),
        ];
        let said = render(&rows, Duration::ZERO);
        for part in [
            "[api] e2e/api_x a::t002\n",
            "    assertion `left == right` failed\n      left: 1\n     right: 2\n",
            "    log: logs/a::t002.log\n",
            "[lint]\n    cargo: exit 101\n    log: logs/lint.log\n",
        ] {
            assert!(said.contains(part), "{part}\n{said}");
        }
    }
}
