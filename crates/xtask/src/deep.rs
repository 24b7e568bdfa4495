//! `make test-deep`: repeats the tests of `make test` many times with the shipped binaries, completely or in parts on several
//! machines. Merges the results of the parts.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cases::Verdict;
use crate::image::{self, Build, OPERATORS};
use crate::programs::{self, How};
use crate::stages::{Run, Stage, run as run_stages};
use crate::table::{Count, End, Row, render};
use crate::tests::{
    CRASHES, FAULTS, PEERS, RECORDED, SUBMIT, e2e, go_test, judged, stage, tests, with_pods,
};
use crate::{mutants, mutate, paths, process};

/// The part to run, such as `2/3`; if unset, everything runs.
const DEEP: &str = "DEEP";
/// The number of histories per kind.
const HISTORIES: &str = "100000";
/// The time limit of a test.
const LIMIT: Duration = Duration::from_hours(3);
/// The default revision to upgrade from; `FORMER` overrides it.
const FORMER: &str = "68b9068";
/// The file with the results of a part.
const RESULT: &str = "result.json";

const STAGES: &[Stage] = &[
    stage("node", &[], &[], |_| {
        process::built("e2e/cluster/build").map(drop)
    }),
    stage("binary", &[], &[], |_| image::binaries(OPERATORS)),
    tests("histories", &[], &["binary"], histories),
    tests("crashes", &["node", "binary"], &["histories"], crashes),
    tests("api", &["node", "binary"], &["crashes"], api),
    tests("faults", &["node", "binary"], &["api"], faults),
    tests("peers", &["node", "binary"], &["faults"], peers),
    tests("images", &[], &["peers"], images),
    tests("mpi", &["node", "binary"], &["images"], |run| {
        with_pods(run, &["pods_mpi"], Build::Shipped)
    }),
    tests("spark", &["node", "binary"], &["mpi"], |run| {
        with_pods(run, &["pods_spark", "pods_kueue"], Build::Shipped)
    }),
    tests("upgrade", &["node", "binary"], &["spark"], upgrade),
    tests("mutate", &[], &["upgrade"], mutate::stage),
    tests("mutants", &[], &["mutate"], mutants::stage),
];

/// The tests of a stage that this part runs. Every test is in exactly one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    part: usize,
    parts: usize,
}

impl Share {
    /// Everything.
    pub const ALL: Self = Self { part: 1, parts: 1 };

    /// Reads `part/parts`.
    fn read(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('/').and_then(|(part, parts)| {
            let (part, parts) = (part.parse().ok()?, parts.parse().ok()?);
            (part >= 1 && part <= parts).then_some(Self { part, parts })
        });
        numbers.ok_or(format!("{DEEP}={text} is no part, such as 1/3"))
    }

    /// Returns whether this part runs the test with this number. Stages begin with different parts, so that stages with one test
    /// are spread over all parts.
    pub fn has(self, stage: &str, number: usize) -> bool {
        let offset: usize = stage.bytes().map(usize::from).sum();
        (number + offset) % self.parts == self.part - 1
    }

    /// Formats this part for `cargo mutants`, which counts parts from zero.
    pub fn shard(self) -> String {
        format!("{}/{}", self.part - 1, self.parts)
    }
}

/// Runs the deep stages, or a part of them, and stores the results.
pub fn run() -> Result<(), String> {
    let share = match std::env::var(DEEP) {
        Ok(text) => Share::read(&text)?,
        Err(_) => Share::ALL,
    };
    let commit = commit()?;
    let begun = Instant::now();
    let rows = run_stages(STAGES, share);
    let took = begun.elapsed();
    let dir = paths::target()
        .join("deep")
        .join(format!("part-{}-of-{}", share.part, share.parts));
    let result = result(&rows, share, &commit, took);
    fs::create_dir_all(&dir)
        .and_then(|()| fs::write(dir.join(RESULT), format!("{result:#}\n")))
        .map_err(|e| format!("{}: {e}", dir.display()))?;
    eprintln!(
        "results: {}, merge them with cargo xtask deep-merge",
        dir.display()
    );
    eprintln!("{}", render(&rows, took).trim_end());
    judged(&rows)
}

/// Returns the tested commit; fails if the tree has changes.
fn commit() -> Result<String, String> {
    let git = |args: &[&str]| process::quiet(&mut process::command("git", args));
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?.trim().to_owned();
    match git(&["status", "--porcelain"])?.trim() {
        "" => Ok(commit),
        _ => Ok(format!("{commit} with changes")),
    }
}

fn result(rows: &[Row], share: Share, commit: &str, took: Duration) -> Value {
    let stages = rows.iter().map(|row| {
        let (end, why) = match &row.end {
            End::Passed => ("passed", ""),
            End::Failed(why) => ("failed", why.as_str()),
            End::Skipped(why) => ("skipped", why.as_str()),
        };
        let cases = row.cases.iter().map(|case| {
            let (end, why) = match &case.verdict {
                Verdict::Passed => ("passed", ""),
                Verdict::Failed(why) => ("failed", why.as_str()),
                Verdict::Skipped(why) => ("skipped", why.as_str()),
            };
            json!({
                "program": case.program, "name": case.name, "end": end, "why": why,
                "seconds": case.took.as_secs_f64(),
            })
        });
        json!({
            "stage": row.stage, "end": end, "why": why, "seconds": row.took.as_secs_f64(),
            "tests": cases.collect::<Vec<Value>>(),
        })
    });
    json!({
        "commit": commit, "part": share.part, "parts": share.parts, "seconds": took.as_secs_f64(),
        "stages": stages.collect::<Vec<Value>>(),
    })
}

/// Merges the results of all parts into one Markdown table.
pub fn merge(dirs: &[&str]) -> Result<(), String> {
    let read = |dir: &&str| {
        let path = PathBuf::from(dir).join(RESULT);
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
    };
    let parts: Vec<Value> = dirs.iter().map(read).collect::<Result<_, String>>()?;
    eprintln!("{}", merged(&parts)?);
    Ok(())
}

/// Returns one table of all parts. Every part must be there once, all of the same commit, and each stage must have a passed test.
fn merged(parts: &[Value]) -> Result<String, String> {
    let commits: BTreeSet<&str> = parts.iter().filter_map(|p| p["commit"].as_str()).collect();
    let [commit] = commits.iter().collect::<Vec<_>>()[..] else {
        return Err(format!("the parts are of different commits: {commits:?}"));
    };
    let total = parts.len() as u64;
    let numbers: BTreeSet<u64> = parts.iter().filter_map(|p| p["part"].as_u64()).collect();
    let whole = parts.iter().all(|p| p["parts"] == total);
    if !whole || numbers != (1..=total).collect() {
        return Err(format!(
            "of {total} results not each is another part of {total}: {numbers:?}"
        ));
    }
    let mut out = format!("Commit {commit}.\n\n| Stage | Passed | Failed | Skipped | Seconds |\n");
    out.push_str("| --- | ---: | ---: | ---: | ---: |\n");
    let (mut sum, mut wrong) = (Count::default(), Vec::new());
    let mut slow: Vec<(u64, String)> = Vec::new();
    for stage in STAGES {
        let mut count = Count::default();
        let mut seconds = 0.0;
        for row in parts
            .iter()
            .filter_map(|p| p["stages"].as_array())
            .flatten()
        {
            if row["stage"] != stage.name {
                continue;
            }
            seconds += row["seconds"].as_f64().unwrap_or(0.0);
            let tests = row["tests"].as_array().map_or(&[][..], Vec::as_slice);
            let before = count.failed;
            for test in tests {
                let name = format!(
                    "{} {} {}",
                    stage.name,
                    text(test, "program"),
                    text(test, "name")
                );
                match text(test, "end") {
                    "passed" => count.passed += 1,
                    "skipped" => count.skipped += 1,
                    _ => {
                        count.failed += 1;
                        wrong.push(format!("{name}: {}", text(test, "why")));
                    }
                }
                let took = Duration::from_secs_f64(test["seconds"].as_f64().unwrap_or(0.0));
                slow.push((took.as_secs(), name));
            }
            if text(row, "end") == "failed" && count.failed == before {
                wrong.push(format!("{}: {}", stage.name, text(row, "why")));
            }
        }
        if stage.has_tests && count.passed == 0 {
            wrong.push(format!("{}: no test passed in any part", stage.name));
        }
        sum.passed += count.passed;
        sum.failed += count.failed;
        sum.skipped += count.skipped;
        // Writing to a String can't fail.
        let _ = writeln!(
            out,
            "| `{}` | {} | {} | {} | {seconds:.0} |",
            stage.name, count.passed, count.failed, count.skipped
        );
    }
    let each: Vec<f64> = parts.iter().filter_map(|p| p["seconds"].as_f64()).collect();
    let longest = each.iter().copied().fold(0.0, f64::max);
    let _ = writeln!(
        out,
        "| total, in {total} parts, the longest of which took {longest:.0} | {} | {} | {} | {:.0} |\n",
        sum.passed,
        sum.failed,
        sum.skipped,
        each.iter().sum::<f64>(),
    );
    slow.sort_unstable_by(|a, b| b.cmp(a));
    for (seconds, name) in slow.iter().take(10) {
        let _ = writeln!(out, "- {seconds} s: `{name}`");
    }
    if wrong.is_empty() {
        Ok(out)
    } else {
        Err(format!("{out}\nfailed:\n{}", wrong.join("\n")))
    }
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// Runs fifty times as many random histories of a simulated world: every test in a program or module whose name ends in `properties`.
fn histories(run: &Run) -> Result<(), String> {
    const NAME: &str = "properties";
    let mut args = vec!["test", "--locked", "--release", "--tests"];
    for operator in OPERATORS {
        args.extend(["-p", operator]);
    }
    let programs = programs::build(run, &mut process::command("cargo", args))?;
    let (whole, others): (Vec<_>, Vec<_>) = programs.into_iter().partition(|p| p.target == NAME);
    for (programs, only) in [(whole, vec![]), (others, vec![format!("{NAME}::")])] {
        let how = How {
            env: vec![("PROPTEST_CASES", HISTORIES.into())],
            side_by_side: 2,
            limit: LIMIT,
            only,
            ..How::default()
        };
        programs::run(run, &programs, &how)?;
    }
    Ok(())
}

/// Runs the crash test with ten seeds.
fn crashes(run: &Run) -> Result<(), String> {
    for seed in (1..=10).filter(|seed| run.share.has(run.stage, *seed)) {
        let apart = Run::new(run.stage, Share::ALL);
        let how = How {
            env: vec![("TRAINYARD_SEED", seed.to_string().into())],
            ..deep(1)
        };
        e2e(&apart, &[CRASHES], Build::Shipped, how)?;
        for mut case in apart.cases() {
            case.name = format!("{} with seed {seed}", case.name);
            run.keep(case);
        }
    }
    Ok(())
}

/// Returns how to run tests of the API level.
fn deep(side_by_side: usize) -> How {
    How {
        env: vec![("TRAINYARD_DEEP", "1".into())],
        side_by_side,
        limit: LIMIT,
        ..How::default()
    }
}

/// Runs all tests of the API level with all of their cases, mainly the sweeps with every cut in every life cycle.
fn api(run: &Run) -> Result<(), String> {
    let how = How {
        apart: &[RECORDED],
        ..deep(2)
    };
    e2e(run, &["api_"], Build::Shipped, how)
}

/// Repeats the faults in every phase of a job's life cycle.
fn faults(run: &Run) -> Result<(), String> {
    let how = How {
        threads: Some(6),
        ..deep(1)
    };
    e2e(run, &[FAULTS], Build::Shipped, how)
}

/// Runs the published Go operators, compares them with their recordings, and takes over from them. Compares all executors.
fn peers(run: &Run) -> Result<(), String> {
    let how = How {
        threads: Some(1),
        ..deep(1)
    };
    e2e(run, &[PEERS, SUBMIT], Build::Shipped, how)
}

/// Replaces the operators of a former revision while jobs run.
fn upgrade(run: &Run) -> Result<(), String> {
    if !run.share.has(run.stage, 1) {
        return Ok(());
    }
    let revision = std::env::var("FORMER").unwrap_or_else(|_| FORMER.to_owned());
    let tree = paths::target().join("former").join(&revision);
    if !tree.exists() {
        let mut add = process::command("git", ["worktree", "add", "--detach", "--force"]);
        process::run(add.arg(&tree).arg(&revision))?;
    }
    let target = tree.join("target");
    let mut build = process::command("cargo", ["build", "--locked", "--release", "--bins"]);
    let build = build.current_dir(&tree).env("CARGO_TARGET_DIR", &target);
    process::run(build)?;
    let how = How {
        env: vec![
            ("TRAINYARD_FORMER", tree.into()),
            ("TRAINYARD_FORMER_BIN_DIR", target.join("release").into()),
        ],
        ..deep(1)
    };
    e2e(run, &["upgrade"], Build::Shipped, how)
}

/// Builds image layers twice and compares them.
fn images(run: &Run) -> Result<(), String> {
    if !run.share.has(run.stage, 1) {
        return Ok(());
    }
    let dir = paths::root().join("e2e/image");
    let cache = paths::cache();
    let args = ["-tags", "deep", "-run", "RealBuild", "-timeout", "2h", "."];
    go_test(run, &dir, &args, &[("TRAINYARD_IMAGE_CACHE", &cache)])
}

#[cfg(test)]
mod part_tests {
    use super::*;
    use crate::cases::Case;

    #[test]
    fn every_test_is_in_exactly_one_part() {
        for parts in 1..=4 {
            for number in 0..20 {
                let with =
                    (1..=parts).filter(|part| Share { part: *part, parts }.has("api", number));
                assert_eq!(with.count(), 1, "{number} of {parts}");
            }
        }
        assert_eq!(Share::read("2/3"), Ok(Share { part: 2, parts: 3 }));
        for wrong in ["", "0/3", "4/3", "1", "a/b"] {
            assert!(Share::read(wrong).is_err(), "{wrong}");
        }
    }

    /// The result of a part in which each stage ran one test.
    fn part(number: usize, parts: usize, commit: &str, verdict: &Verdict) -> Value {
        let case = Case {
            program: "p".to_owned(),
            name: "n".to_owned(),
            verdict: verdict.clone(),
            took: Duration::from_secs(3),
            log: None,
        };
        let row = |stage: &Stage| {
            let cases = if stage.has_tests {
                vec![case.clone()]
            } else {
                Vec::new()
            };
            Row {
                stage: stage.name,
                end: End::of(false, Ok(()), &cases),
                cases,
                took: Duration::from_secs(5),
                log: PathBuf::new(),
            }
        };
        let rows: Vec<Row> = STAGES.iter().map(row).collect();
        let share = Share {
            part: number,
            parts,
        };
        result(&rows, share, commit, Duration::from_secs(7))
    }

    #[test]
    fn parts_are_merged_if_they_are_all_there_and_of_one_commit() {
        let passed = Verdict::Passed;
        let good = [part(1, 2, "abc", &passed), part(2, 2, "abc", &passed)];
        let table = merged(&good).unwrap();
        assert!(table.starts_with("Commit abc."), "{table}");
        assert!(
            table.contains("| `histories` | 2 | 0 | 0 | 10 |"),
            "{table}"
        );
        assert!(merged(&[part(1, 2, "abc", &passed), part(2, 2, "abd", &passed)]).is_err());
        assert!(merged(&[part(1, 2, "abc", &passed), part(1, 2, "abc", &passed)]).is_err());
        assert!(merged(&[part(1, 2, "abc", &passed)]).is_err());
        let failed = Verdict::Failed("left: 1".to_owned());
        let why = merged(&[part(1, 1, "abc", &failed)]).unwrap_err();
        assert!(why.contains("api p n: left: 1"), "{why}");
        let skipped = Verdict::Skipped("no node".to_owned());
        let why = merged(&[part(1, 1, "abc", &skipped)]).unwrap_err();
        assert!(why.contains("api: no test passed in any part"), "{why}");
    }
}
