//! Parses the output of Rust and Go test programs into single tests with their results.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

/// The prefix of the line that a test prints, with the reason, if it can't run on this cluster. Only `e2e::skip` prints it.
const SKIPPED: &str = "test skipped: ";

/// One test.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// The test program.
    pub program: String,
    /// Its path in the program.
    pub name: String,
    /// How it ended.
    pub verdict: Verdict,
    /// How long it took.
    pub took: Duration,
    /// Where its output is, if it failed.
    pub log: Option<PathBuf>,
}

impl Case {
    /// Whether it failed.
    pub fn failed(&self) -> bool {
        matches!(self.verdict, Verdict::Failed(_))
    }
}

/// How a test ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It passed.
    Passed,
    /// It failed, with the assertion.
    Failed(String),
    /// It did not run, with the reason.
    Skipped(String),
}

impl Verdict {
    /// Returns the verdict on a test that returned. A test that only reported that it can't run here is skipped, not passed.
    pub fn of(passed: bool, output: &str) -> Self {
        if !passed {
            return Self::Failed(assertion(output));
        }
        match output
            .lines()
            .find_map(|line| line.trim().strip_prefix(SKIPPED))
        {
            Some(why) => Self::Skipped(why.to_owned()),
            None => Self::Passed,
        }
    }
}

/// An event in the output of a Rust test program.
#[derive(Debug, PartialEq)]
pub enum Event {
    /// A test begins.
    Begins(String),
    /// A test ended.
    Ends {
        name: String,
        verdict: Verdict,
        output: String,
    },
    /// All tests ended.
    Over,
}

/// The prefix of every libtest JSON line.
const BEGIN: &str = r#"{ "type": ""#;

/// Reads one line of libtest's JSON; `None` for anything else, such as output of a process that a test started.
pub fn event(line: &str) -> Option<Event> {
    // Another process with the same output may have written the beginning of the line.
    let line = &line[line.find(BEGIN)?..];
    let value: Value = serde_json::from_str(line).ok()?;
    let text = |key: &str| value[key].as_str().unwrap_or_default();
    match (text("type"), text("event")) {
        ("suite", "ok" | "failed") => Some(Event::Over),
        ("test", "started") => Some(Event::Begins(text("name").to_owned())),
        ("test", end @ ("ok" | "failed" | "ignored")) => {
            let output = text("stdout").to_owned();
            let verdict = match end {
                "ignored" => Verdict::Skipped(format!("ignored {}", text("message"))),
                // If a test should have panicked and did not, only the message says so.
                "failed" if !output.contains(PANICKED) && !text("message").is_empty() => {
                    Verdict::Failed(text("message").to_owned())
                }
                _ => Verdict::of(end == "ok", &output),
            };
            Some(Event::Ends {
                name: text("name").to_owned(),
                verdict,
                output,
            })
        }
        _ => None,
    }
}

/// Reads the output of `cargo test --doc`, whose tests are compiled one by one.
pub fn documented(log: &str) -> Vec<Case> {
    let of = |line: &str| {
        let (name, end) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
        let verdict = match end {
            "ok" => Verdict::Passed,
            "FAILED" => Verdict::Failed("see the log".to_owned()),
            "ignored" => Verdict::Skipped("ignored".to_owned()),
            _ => return None,
        };
        Some(Case {
            program: "documentation".to_owned(),
            name: name.to_owned(),
            verdict,
            took: Duration::ZERO,
            log: None,
        })
    };
    log.lines().filter_map(of).collect()
}

/// Reads the output of `go test -json`: the tests, and the output of each.
pub fn go(log: &str) -> Vec<(Case, String)> {
    let mut outputs: BTreeMap<(String, String), String> = BTreeMap::new();
    let mut cases = Vec::new();
    for value in log
        .lines()
        .filter_map(|l| serde_json::from_str::<Value>(l).ok())
    {
        let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
        let key = (text("Package"), text("Test"));
        let verdict = match text("Action").as_str() {
            "output" => {
                outputs.entry(key).or_default().push_str(&text("Output"));
                continue;
            }
            "pass" => Verdict::Passed,
            "skip" => Verdict::Skipped("skipped by the test".to_owned()),
            "fail" => Verdict::Failed(String::new()),
            _ => continue,
        };
        let output = outputs.remove(&key).unwrap_or_default();
        let verdict = match verdict {
            Verdict::Failed(_) => Verdict::Failed(last_lines(&output)),
            other => other,
        };
        let (program, name) = key;
        // A package has its own verdict, which counts if it failed outside of its tests.
        let failed_inside = cases.iter().any(|(c, _): &(Case, String)| {
            c.program == program && matches!(c.verdict, Verdict::Failed(_))
        });
        if name.is_empty() && (!matches!(verdict, Verdict::Failed(_)) || failed_inside) {
            continue;
        }
        let took = Duration::from_secs_f64(value["Elapsed"].as_f64().unwrap_or(0.0).max(0.0));
        let case = Case {
            program,
            name,
            verdict,
            took,
            log: None,
        };
        cases.push((case, output));
    }
    cases
}

fn last_lines(output: &str) -> String {
    let lines: Vec<&str> = output
        .lines()
        .filter(|l| !l.trim().is_empty() && !l.starts_with("---") && !l.starts_with("==="))
        .collect();
    lines[lines.len().saturating_sub(6)..].join("\n")
}

const PANICKED: &str = " panicked at ";

/// The assertion that failed: the message of the last panic, or the error that the test returned.
pub fn assertion(output: &str) -> String {
    let lines: Vec<&str> = output.lines().collect();
    let error = lines.iter().rposition(|l| l.starts_with("Error: "));
    let begin = error.or_else(|| lines.iter().rposition(|l| l.contains(PANICKED)));
    let Some(begin) = begin else {
        return last_lines(output);
    };
    let ends = |line: &&&str| {
        let line = line.trim_start().to_lowercase();
        line.starts_with("stack backtrace:") || line.starts_with("note: run with")
    };
    let message: Vec<&str> = lines[begin..]
        .iter()
        .take_while(|line| !ends(line))
        .map(|line| line.trim_end())
        .filter(|line| !line.is_empty())
        .take(12)
        .collect();
    message.join("\n")
}

/// Formats the tests of one stage as `JUnit` XML.
pub fn junit(stage: &str, cases: &[Case]) -> String {
    let count = |of: fn(&Verdict) -> bool| cases.iter().filter(|c| of(&c.verdict)).count();
    let seconds: f64 = cases.iter().map(|c| c.took.as_secs_f64()).sum();
    let mut out = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" skipped=\"{}\" time=\"{seconds:.3}\">\n",
        escaped(stage),
        cases.len(),
        count(|v| matches!(v, Verdict::Failed(_))),
        count(|v| matches!(v, Verdict::Skipped(_))),
    );
    for case in cases {
        let end = match &case.verdict {
            Verdict::Passed => "/>".to_owned(),
            Verdict::Failed(why) => format!("><failure>{}</failure></testcase>", escaped(why)),
            Verdict::Skipped(why) => {
                format!("><skipped message=\"{}\"/></testcase>", escaped(why))
            }
        };
        // Writing to a String can't fail.
        let _ = writeln!(
            out,
            "  <testcase classname=\"{}\" name=\"{}\" time=\"{:.3}\"{end}",
            escaped(&case.program),
            escaped(&case.name),
            case.took.as_secs_f64()
        );
    }
    out + "</testsuite>\n"
}

/// Escapes text for XML, which allows no control characters.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' => out.push_str("&#10;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_a_test_program_are_read() {
        let begins = r#"{ "type": "test", "event": "started", "name": "a::b" }"#;
        assert_eq!(event(begins), Some(Event::Begins("a::b".to_owned())));
        let end = |line: &str| match event(line) {
            Some(Event::Ends { name, verdict, .. }) => (name, verdict),
            other => panic!("{other:?}"),
        };
        let passed =
            r#"{ "type": "test", "name": "a::b", "event": "ok", "stdout": "saw 3 pods\n" }"#;
        assert_eq!(end(passed), ("a::b".to_owned(), Verdict::Passed));
        let skipped = r#"{ "type": "test", "name": "s", "event": "ok", "stdout": "x\ntest skipped: no node\n" }"#;
        assert_eq!(end(skipped).1, Verdict::Skipped("no node".to_owned()));
        let failed = r#"{ "type": "test", "name": "f", "event": "failed", "stdout": "\nthread 'f' (7) panicked at src/f.rs:4:5:\nassertion `left == right` failed: counts\n  left: 3\n right: 4\nnote: run with `RUST_BACKTRACE=1`\n" }"#;
        assert_eq!(
            end(failed).1,
            Verdict::Failed(
                "thread 'f' (7) panicked at src/f.rs:4:5:\nassertion `left == right` failed: counts\n  left: 3\n right: 4"
                    .to_owned()
            )
        );
        let ignored = r#"{ "type": "test", "name": "i", "event": "ignored" }"#;
        assert!(matches!(end(ignored).1, Verdict::Skipped(_)));
        let should = r#"{ "type": "test", "name": "p", "event": "failed", "stdout": "", "message": "test did not panic as expected" }"#;
        assert_eq!(
            end(should).1,
            Verdict::Failed("test did not panic as expected".to_owned())
        );
        let over = r#"{ "type": "suite", "event": "ok", "passed": 1, "failed": 0, "ignored": 0, "measured": 0, "filtered_out": 0, "exec_time": 0.1 }"#;
        assert_eq!(event(over), Some(Event::Over));
        assert_eq!(event(&format!("half a line{over}\n")), Some(Event::Over));
        for other in ["", "listening", r#"{"level":"INFO"}"#, "{"] {
            assert_eq!(event(other), None, "{other}");
        }
    }

    #[test]
    fn a_test_that_can_not_run_on_a_cluster_always_says_so() {
        let mut files = vec![crate::paths::root().join("e2e")];
        let (mut asked, mut silent) = (0, Vec::new());
        while let Some(path) = files.pop() {
            if path.is_dir() {
                files.extend(std::fs::read_dir(path).unwrap().map(|e| e.unwrap().path()));
                continue;
            }
            if path.extension().is_none_or(|e| e != "rs") {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let lines: Vec<&str> = text.lines().collect();
            for (at, two) in lines.windows(2).enumerate() {
                let asks = two[0].contains("if !") && two[0].contains(".can().");
                asked += usize::from(asks);
                if asks && !two[1].contains("skip(") || two[0].contains(": skipped, ") {
                    silent.push(format!("{}:{}", path.display(), at + 1));
                }
            }
        }
        assert!(asked >= 8, "{asked}");
        assert!(silent.is_empty(), "call e2e::skip: {silent:#?}");
    }

    #[test]
    fn a_failure_that_says_it_was_skipped_stays_a_failure() {
        let verdict = Verdict::of(false, "test skipped: no node\nError: no pod\n");
        assert_eq!(verdict, Verdict::Failed("Error: no pod".to_owned()));
    }

    #[test]
    fn the_assertion_is_found_between_other_output() {
        let returned =
            "INFO x\nError: no pod\n\nCaused by:\n    timed out\n\nStack backtrace:\n   0: x::y\n";
        assert_eq!(
            assertion(returned),
            "Error: no pod\nCaused by:\n    timed out"
        );
        let twice = "thread 'a' panicked at a.rs:1:\nfirst\nthread 'a' panicked at a.rs:2:\nlast\n";
        assert_eq!(assertion(twice), "thread 'a' panicked at a.rs:2:\nlast");
        assert_eq!(assertion("no word of it\n"), "no word of it");
    }

    #[test]
    fn tests_of_go_and_of_the_documentation_are_read() {
        let log = [
            r#"{"Action":"run","Package":"p","Test":"TestA"}"#,
            r#"{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:7: got 3\n"}"#,
            r#"{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0.5}"#,
            r#"{"Action":"fail","Package":"p","Test":"TestB","Elapsed":0}"#,
            r#"{"Action":"skip","Package":"p","Test":"TestC","Elapsed":0}"#,
            r#"{"Action":"fail","Package":"p","Elapsed":1}"#,
            r#"{"Action":"output","Package":"q","Output":"panic in init\n"}"#,
            r#"{"Action":"fail","Package":"q","Elapsed":1}"#,
        ];
        let cases = go(&log.join("\n"));
        let verdicts: Vec<(&str, &Verdict)> = cases
            .iter()
            .map(|(c, _)| (c.name.as_str(), &c.verdict))
            .collect();
        assert_eq!(
            verdicts,
            [
                ("TestA", &Verdict::Passed),
                (
                    "TestB",
                    &Verdict::Failed("    b_test.go:7: got 3".to_owned())
                ),
                ("TestC", &Verdict::Skipped("skipped by the test".to_owned())),
                ("", &Verdict::Failed("panic in init".to_owned())),
            ]
        );
        let cases = documented(
            "running 2 tests\ntest src/a.rs - a (line 3) ... ok\ntest src/b.rs - b (line 4) - compile ... FAILED\ntest result: FAILED. 1 passed; 1 failed\n",
        );
        assert_eq!(cases.len(), 2);
        assert_eq!(cases[0].verdict, Verdict::Passed);
        assert!(matches!(cases[1].verdict, Verdict::Failed(_)));
    }

    #[test]
    fn reports_for_ci_hold_any_text() {
        let case = |name: &str, verdict| Case {
            program: "p".to_owned(),
            name: name.to_owned(),
            verdict,
            took: Duration::from_millis(1500),
            log: None,
        };
        let cases = [
            case("a", Verdict::Passed),
            case("b", Verdict::Failed("<1> & \u{1b}\"2\"".to_owned())),
            case("c", Verdict::Skipped("no node".to_owned())),
        ];
        let xml = junit("unit", &cases);
        assert!(
            xml.contains(
                r#"<testsuite name="unit" tests="3" failures="1" skipped="1" time="4.500">"#
            ),
            "{xml}"
        );
        assert!(
            xml.contains("<failure>&lt;1&gt; &amp;  &quot;2&quot;</failure>"),
            "{xml}"
        );
        assert!(xml.contains(r#"<skipped message="no node"/>"#), "{xml}");
    }
}
