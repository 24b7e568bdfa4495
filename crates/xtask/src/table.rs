//! Counting tests, and the table at the end.

use std::fmt::Write as _;
use std::time::Duration;

/// Tests of one stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Tests that passed.
    pub passed: u32,
    /// Tests that failed.
    pub failed: u32,
    /// Tests that were not run, and say so.
    pub skipped: u32,
}

impl Count {
    /// Reads what `cargo test` and `go test -v` print, and lines of ours that say `NAME: skipped, WHY`.
    pub fn read(log: &str) -> Self {
        let mut count = Self::default();
        let mut said = 0;
        for line in log.lines().map(str::trim) {
            if let Some(rest) = line.strip_prefix("test result: ") {
                let number = |word: &str| {
                    let before = rest.split(word).next().unwrap_or_default().trim_end();
                    before
                        .rsplit([' ', ';', '.'])
                        .next()
                        .and_then(|n| n.parse().ok())
                        .unwrap_or(0)
                };
                count.passed += number(" passed");
                count.failed += number(" failed");
                count.skipped += number(" ignored");
            } else if line.starts_with("--- PASS:") {
                count.passed += 1;
            } else if line.starts_with("--- FAIL:") {
                count.failed += 1;
            } else if line.starts_with("--- SKIP:") {
                count.skipped += 1;
            } else if line.contains(": skipped, ") {
                said += 1;
            }
        }
        // For cargo a test that can only say so has passed.
        count.passed = count.passed.saturating_sub(said);
        count.skipped += said;
        count
    }
}

/// How a stage ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// All is well.
    Passed(Count),
    /// Something is wrong.
    Failed(Count, String),
    /// Not run, and why.
    Skipped(String),
}

/// One line of the table.
#[derive(Clone, Debug)]
pub struct Row {
    /// The stage.
    pub stage: &'static str,
    /// How it ended.
    pub end: End,
    /// How long it took.
    pub took: Duration,
}

/// The table, and the sum line that CI reads.
pub fn render(rows: &[Row], took: Duration) -> String {
    let mut out = format!(
        "\n{:<14} {:<8} {:>6} {:>6} {:>7} {:>8}\n",
        "stage", "end", "passed", "failed", "skipped", "seconds"
    );
    let mut sum = Count::default();
    for row in rows {
        let (word, count, why) = match &row.end {
            End::Passed(count) => ("ok", *count, ""),
            End::Failed(count, _) => ("FAILED", *count, ""),
            End::Skipped(why) => ("skipped", Count::default(), why.as_str()),
        };
        sum.passed += count.passed;
        sum.failed += count.failed + u32::from(word == "FAILED" && count.failed == 0);
        sum.skipped += count.skipped + u32::from(word == "skipped");
        // Writing to a String can't fail.
        let _ = writeln!(
            out,
            "{:<14} {word:<8} {:>6} {:>6} {:>7} {:>8.1}  {why}",
            row.stage,
            count.passed,
            count.failed,
            count.skipped,
            row.took.as_secs_f64()
        );
    }
    let _ = writeln!(out, "{:<44} {:>8.1}", "altogether", took.as_secs_f64());
    let _ = writeln!(
        out,
        "\n{} passed, {} failed, {} skipped",
        sum.passed, sum.failed, sum.skipped
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_of_both_languages_are_counted() {
        let log = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.1s\n\
                   test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured\n\
                   oom: skipped, no way into the node\n\
                   --- PASS: TestA (0.0s)\n    --- PASS: TestA/b (0.0s)\n--- SKIP: TestC\nok  x 0.1s\n";
        assert_eq!(
            Count::read(log),
            Count {
                passed: 16,
                failed: 2,
                skipped: 3
            }
        );
    }

    #[test]
    fn the_last_line_is_the_sum_and_a_failed_stage_is_never_a_zero() {
        let row = |stage, end| Row {
            stage,
            end,
            took: Duration::from_secs(1),
        };
        let count = Count {
            passed: 4,
            failed: 0,
            skipped: 0,
        };
        let rows = [
            row("a", End::Passed(count)),
            row("b", End::Failed(Count::default(), "x".to_owned())),
            row("c", End::Skipped("no cluster".to_owned())),
        ];
        assert!(render(&rows, Duration::ZERO).ends_with("\n4 passed, 1 failed, 1 skipped\n"));
    }
}
