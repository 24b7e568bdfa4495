//! `docs/conformance.md`: published behaviour, the tests that hold it here, and what differs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde::Deserialize;

use crate::sources::Sources;

/// What is published, and the tests.
const DATA: &str = "docs/data/conformance.yaml";
/// What differs, and why.
const DIFFERENCES: &str = "docs/compatibility.md";

const INTRODUCTION: &str = "\
<!-- Generated from docs/data/conformance.yaml by `cargo run -p training-manifests -- generate`; don't edit. -->

# Conformance

```sh
cargo test -p tf-operator --test every_kind     # most of this page for one kind, in seconds, without a cluster
make test                                       # all of it
```

What the tests of the Kubeflow training operator 1.9 assert for all its kinds or for PyTorchJob, TFJob and XGBoostJob, in our own words,
what those of the MPI operator 0.8 assert for MPIJob, and those of the Spark operator 2.5 for its kinds; and the tests that hold it here. Those in `operators/every-kind` run for each of the first three. *Differs* links to the table that says how and why. Bad inputs are in [reliability](reliability.md#inputs-and-edits).
";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Data {
    sources: BTreeMap<String, PathBuf>,
    sections: Vec<Section>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Section {
    title: String,
    rows: Vec<Row>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    behaviour: String,
    #[serde(default)]
    tests: Vec<String>,
    differs: Option<String>,
    absent: Option<String>,
    note: Option<String>,
}

/// The page.
///
/// # Errors
/// If a row names a test or a difference that doesn't exist, or neither has tests nor says why.
pub fn page(root: &Path, sources: &Sources) -> anyhow::Result<String> {
    let read =
        |path: &str| std::fs::read_to_string(root.join(path)).with_context(|| path.to_owned());
    let data: Data = serde_saphyr::from_str(&read(DATA)?).context(DATA)?;
    let differences = read(DIFFERENCES)?;
    render(&data, sources, &differences).context(DATA)
}

fn render(data: &Data, sources: &Sources, differences: &str) -> anyhow::Result<String> {
    let mut body = String::new();
    let (mut same, mut differing, mut absent) = (0, 0, 0);
    // All mistakes at once: whoever renames a test may have renamed more.
    let mut wrong = Vec::new();
    for section in &data.sections {
        let _ = write!(
            body,
            "\n## {}\n\n| Published behaviour | Here | Tests |\n| --- | --- | --- |\n",
            section.title
        );
        for row in &section.rows {
            match (&row.absent, &row.differs) {
                (Some(_), _) => absent += 1,
                (None, Some(_)) => differing += 1,
                (None, None) => same += 1,
            }
            let mark = mark(row, differences).unwrap_or_else(|error| {
                wrong.push(format!("{}: {error}", row.behaviour));
                String::new()
            });
            let mut tests = Vec::new();
            for named in &row.tests {
                match sources.find(&data.sources, named).and_then(link) {
                    Ok(link) => tests.push(link),
                    Err(error) => wrong.push(error.to_string()),
                }
            }
            let _ = writeln!(
                body,
                "| {} | {mark} | {} |",
                row.behaviour,
                tests.join("<br>")
            );
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(format!(
        "{INTRODUCTION}\n{same} behaviours are the same, {differing} differ, {absent} concern what doesn't exist here.\n{body}"
    ))
}

fn mark(row: &Row, differences: &str) -> anyhow::Result<String> {
    let mut mark = match (&row.absent, &row.differs) {
        (Some(why), None) => {
            ensure!(row.tests.is_empty(), "a row without a test here has tests");
            format!("not applicable: {why}")
        }
        (None, Some(row)) => {
            ensure!(
                differences
                    .lines()
                    .any(|line| line.starts_with(&format!("| {row} |"))),
                "{DIFFERENCES} has no row that begins with | {row} |"
            );
            format!("[differs](compatibility.md): {row}")
        }
        (None, None) => "same".to_owned(),
        (Some(_), Some(_)) => bail!("a row is either absent or differs"),
    };
    ensure!(
        row.absent.is_some() || !row.tests.is_empty(),
        "a row needs a test, or says why there is none"
    );
    if let Some(note) = &row.note {
        let _ = write!(mark, ". {note}");
    }
    Ok(mark)
}

/// A test with its file, for a page in `docs`.
///
/// # Errors
/// If the file has no name.
pub fn link((path, name): (&Path, &str)) -> anyhow::Result<String> {
    let file = path
        .file_name()
        .and_then(|n| n.to_str())
        .context("a source without a name")?;
    Ok(format!("[{file}](../{}) `{name}`", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(text: &str) -> Row {
        serde_saphyr::from_str(text).unwrap()
    }

    #[test]
    fn a_row_has_tests_or_says_why_not() {
        let differences = "| Old | New | Why |\n";
        let rows = [
            ("{behaviour: a, tests: [x]}", Some("same")),
            (
                "{behaviour: a, tests: [x], differs: Old}",
                Some("[differs](compatibility.md): Old"),
            ),
            ("{behaviour: a, absent: why}", Some("not applicable: why")),
            ("{behaviour: a, tests: [x], note: N.}", Some("same. N.")),
            ("{behaviour: a}", None),
            ("{behaviour: a, tests: [x], differs: Odd}", None),
            ("{behaviour: a, tests: [x], absent: why}", None),
            ("{behaviour: a, differs: Old, absent: why}", None),
        ];
        for (text, expected) in rows {
            assert_eq!(
                mark(&row(text), differences).ok().as_deref(),
                expected,
                "{text}"
            );
        }
    }
}
