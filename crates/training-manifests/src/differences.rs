//! Generates `docs/reference/differences.md`: what differs from the published Go operators, and why.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use serde_json::{Map, Value};

/// The page.
pub const PAGE: &str = "docs/reference/differences.md";
/// The differences and their reasons.
const DATA: &str = "docs/data/differences.yaml";
/// What the Go operators do, by kind.
const RECORDINGS: &str = "e2e/tests/data/peers";
/// The modules of the Go operators.
const PEERS: [(&str, &str); 3] = [
    ("training", "training-operator"),
    ("mpi", "mpi-operator"),
    ("spark", "spark-operator"),
];
/// In place of a value that one side doesn't have.
pub const ABSENT: &str = "(absent)";

/// Why some things differ. Patterns may contain `*`; an absent one matches everything.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The reason, for users.
    pub why: String,
    /// The kinds of jobs, such as `PyTorchJob` and `MPIJob v1`; all if empty.
    #[serde(default)]
    pub kinds: Vec<String>,
    /// The names of the jobs; all if empty.
    #[serde(default)]
    pub jobs: Vec<String>,
    /// What happened to the job just before; anything if empty.
    #[serde(default)]
    pub acts: Vec<String>,
    /// The Go operator's behaviour is random, so that they may also be equal.
    #[serde(default)]
    pub sometimes: bool,
    /// They differ only for jobs that ours takes over from the running Go operator.
    #[serde(default)]
    pub taken_over: bool,
    /// What differs.
    pub differ: Vec<Pattern>,
}

/// What differs for one reason.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pattern {
    /// The kind of the object; `job` for the job itself; `event`; `end` if one operator refuses the job or never comes to rest.
    pub object: String,
    /// The object's name, in which `JOB` stands for the job's.
    #[serde(default)]
    pub name: Option<String>,
    /// The field; of an event, its type, reason, object and message.
    #[serde(default)]
    pub path: Option<String>,
    /// The Go operator's value, or [`ABSENT`].
    #[serde(default)]
    pub peer: Option<String>,
    /// Ours, or [`ABSENT`].
    #[serde(default)]
    pub ours: Option<String>,
}

/// Reads the differences of the workspace.
///
/// # Errors
/// If the file is missing, or isn't in its form.
pub fn read(root: &Path) -> Result<Vec<Rule>> {
    let text = fs::read_to_string(root.join(DATA)).context(DATA)?;
    serde_saphyr::from_str(&text).context(DATA)
}

/// Returns the page.
///
/// # Errors
/// If a file that it is made from is missing, or isn't in its form.
pub fn page(root: &Path) -> Result<String> {
    let mut versions = Vec::new();
    for (peer, name) in PEERS {
        let file = format!("e2e/peers/{peer}/go.mod");
        let text = fs::read_to_string(root.join(&file)).context(file.clone())?;
        let module = format!("github.com/kubeflow/{name}");
        let version = |line: &str| Some(line.split_once(&module)?.1.split_once(" v")?.1.to_owned());
        let version = text.lines().find_map(version).context(file)?;
        let version = version.split_whitespace().next().unwrap_or_default();
        versions.push(format!("{name} {version}"));
    }
    let mut jobs = 0;
    for entry in fs::read_dir(root.join(RECORDINGS)).context(RECORDINGS)? {
        let text = fs::read_to_string(entry?.path())?;
        jobs += serde_json::from_str::<Map<String, Value>>(&text)?.len();
    }
    let mut out = format!(
        "<!-- Generated from {DATA} by `cargo run -p training-manifests -- generate`; don't edit. -->

# Differences found by tests

The published Go operators ({}, built from their modules) and ours took {jobs} jobs through the same lives, each on its own API server:
the valid manifests of the conformance tests and the examples (with at most 20 replicas, and without limits of less than ten minutes), and
jobs whose pods fail, restart, are evicted or disappear, and which are suspended, resumed, edited, or end by a limit. After each step,
pods, services, other objects and statuses are compared field by field, without times, addresses and the contents of Secrets, and so are
events, with `--events=full`. For executors, Spark's own driver runs with what
each operator gave it, and the Go operator's webhook has changed its executors; `make test` compares one of each group that is alike for the Go
operator, `make test-deep` all. `make test` fails if anything differs that this page doesn't list. [Compatibility](../compatibility.md) also
lists what these jobs don't show.

`make peers` builds the Go operators, `make peer-recordings` records what they do. Names of jobs are digests of their manifests (`m-…`), or
those of [lives](../../e2e/src/peers/lives.rs) (`t-…`).

| Why | Kinds and jobs | What: the Go operator → ours |
| --- | --- | --- |
",
        versions.join(", ")
    );
    for rule in read(root)? {
        ensure!(
            !rule.why.contains('|'),
            "{DATA}: a reason has a column of its own"
        );
        let mut about = match &rule.kinds[..] {
            [] => "all".to_owned(),
            kinds => kinds.join(", "),
        };
        if !rule.jobs.is_empty() {
            write!(about, ": {}", rule.jobs.join(", "))?;
        }
        if rule.taken_over {
            about.push_str(", when taken over");
        }
        let what: Vec<String> = rule.differ.iter().map(line).collect();
        writeln!(out, "| {} | {about} | {} |", rule.why, what.join("<br>"))?;
    }
    Ok(out)
}

/// Returns a pattern as text of a table.
fn line(pattern: &Pattern) -> String {
    let path = pattern.path.as_deref().unwrap_or_default();
    let mut out = pattern.object.clone();
    if let Some(name) = &pattern.name {
        let _ = write!(out, " {}", code(name));
    }
    if !path.is_empty() {
        let _ = write!(out, " {}", code(path));
    }
    let value = |value: &Option<String>| match value.as_deref() {
        None => "…".to_owned(),
        Some(ABSENT) => "none".to_owned(),
        Some(text) => code(text),
    };
    if pattern.peer.is_some() || pattern.ours.is_some() {
        let _ = write!(out, ": {} → {}", value(&pattern.peer), value(&pattern.ours));
    }
    out
}

fn code(text: &str) -> String {
    format!("`{}`", text.trim().replace('|', "\\|"))
}
