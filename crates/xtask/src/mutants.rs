//! Runs cargo-mutants, which complements [`crate::mutate`] with generated mutations of files that have unit tests.

use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::cases::{Case, Verdict};
use crate::stages::Run;
use crate::{paths, process};

/// The version that is installed into the cache.
const VERSION: &str = "27.1.0";
/// The mutated files: pure functions that the crate's own tests cover.
const FILES: &[&str] = &["model/quantity.rs", "model/restart.rs", "model/indices.rs"];
/// The time limit of a part, in seconds.
const LIMIT: &str = "7200";

/// Runs this part of the mutations; a mutation that no test detects is a failure.
pub fn stage(run: &Run) -> Result<(), String> {
    let tool = process::cargo_tool("cargo-mutants", VERSION, &[])?;
    let out = paths::target().join("mutants");
    fs::create_dir_all(&out).map_err(|e| e.to_string())?;
    let mut cargo = process::command("timeout", ["--kill-after=10", LIMIT]);
    cargo
        .arg(tool)
        .args([
            "mutants",
            "--no-times",
            "--package",
            "training-core",
            "--shard",
        ])
        .arg(run.share.shard())
        .args(["--timeout", "120", "--build-timeout", "1200", "--output"])
        .arg(&out);
    for file in FILES {
        cargo.args(["--file", &format!("crates/training-core/src/{file}")]);
    }
    let ended = run.run(&mut cargo);
    let path = out.join("mutants.out/outcomes.json");
    let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let cases = read(&text)?;
    let failed = cases.iter().any(Case::failed);
    for case in cases {
        run.ended(case, "");
    }
    // It also exits with an error if a mutation was missed.
    if failed { Ok(()) } else { ended }
}

/// Reads the results of cargo-mutants. Mutations that don't compile prove nothing and are skipped.
fn read(outcomes: &str) -> Result<Vec<Case>, String> {
    let value: Value = serde_json::from_str(outcomes).map_err(|e| e.to_string())?;
    let case = |outcome: &Value| {
        let verdict = match outcome["summary"].as_str()? {
            "CaughtMutant" | "Timeout" => Verdict::Passed,
            "MissedMutant" => Verdict::Failed("all tests passed".to_owned()),
            _ => return None,
        };
        let phases = outcome["phase_results"].as_array()?.iter();
        let seconds: f64 = phases.filter_map(|p| p["duration"].as_f64()).sum();
        Some(Case {
            program: "cargo-mutants".to_owned(),
            name: outcome["scenario"]["Mutant"]["name"].as_str()?.to_owned(),
            verdict,
            took: Duration::from_secs_f64(seconds),
            log: None,
        })
    };
    let outcomes = value["outcomes"].as_array().map_or(&[][..], Vec::as_slice);
    Ok(outcomes.iter().filter_map(case).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_break_fails_and_one_that_does_not_compile_counts_nothing() {
        let outcome = |name: &str, summary: &str| {
            format!(
                r#"{{"scenario": {{"Mutant": {{"name": "{name}"}}}}, "summary": "{summary}", "phase_results": [{{"duration": 1.5}}]}}"#
            )
        };
        let all = [
            outcome("a", "CaughtMutant"),
            outcome("b", "MissedMutant"),
            outcome("c", "Unviable"),
        ];
        let baseline = r#"{"scenario": "Baseline", "summary": "Success", "phase_results": []}"#;
        let text = format!(r#"{{"outcomes": [{baseline}, {}]}}"#, all.join(","));
        let cases = read(&text).unwrap();
        let failed: Vec<(&str, bool)> = cases
            .iter()
            .map(|case| (case.name.as_str(), case.failed()))
            .collect();
        assert_eq!(failed, [("a", false), ("b", true)]);
    }
}
