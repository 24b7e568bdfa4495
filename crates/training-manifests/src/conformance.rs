//! Generates `docs/conformance.md`: published behaviour, our tests for it, and differences.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde::Deserialize;

use crate::evidence::{Evidence, Level, OPERATOR, Test};
use crate::sources::Sources;

/// The published behaviour and our tests.
const DATA: &str = "docs/data/conformance.yaml";
/// The differences and their reasons.
const DIFFERENCES: &str = "docs/compatibility.md";

const INTRODUCTION: &str = "\
<!-- Generated from docs/data/conformance.yaml by `cargo run -p training-manifests -- generate`; don't edit. -->

# Conformance

```sh
cargo test -p tf-operator --test all every_kind::    # most of this page for one kind, in seconds, without a cluster
make test                                            # all of it
```

This page lists, in our own words, the assertions in the tests of the Kubeflow training operator 1.9 for its kinds, of the MPI operator 0.8 for MPIJob,
and of the Spark operator 2.5 for its kinds. For each it names our tests with their kinds and level: without an API server (`unit`), with a real one (`api`), with real pods (`pods`). `make check` compares kinds and levels with the tests. *training* stands for the kinds of `kubeflow.org`, *replicas* for those except MPIJob, *operator* for the process. *Differs* links to the table of differences and their reasons. Invalid inputs are in [reliability](reliability.md#inputs-and-edits).
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
    /// The kinds that the tests cover.
    #[serde(default)]
    kinds: Vec<String>,
    /// The levels of the tests.
    #[serde(default)]
    levels: BTreeSet<Level>,
    #[serde(default)]
    tests: Vec<String>,
    differs: Option<String>,
    absent: Option<String>,
    /// Texts that no generated manifest or flag may contain, so that `absent` stays true.
    #[serde(default)]
    lacks: Vec<String>,
    note: Option<String>,
}

/// Renders the page. Appends mistakes to `wrong`: a row that names a missing test or difference, that has neither
/// tests nor a reason, or whose tests have other kinds or levels.
///
/// # Errors
/// If a file can't be read.
pub fn page(
    root: &Path,
    sources: &Sources,
    evidence: &Evidence,
    manifests: &str,
    wrong: &mut Vec<String>,
) -> anyhow::Result<String> {
    let read =
        |path: &str| std::fs::read_to_string(root.join(path)).with_context(|| path.to_owned());
    let data: Data = serde_saphyr::from_str(&read(DATA)?).context(DATA)?;
    let differences = read(DIFFERENCES)?;
    let world = World {
        sources,
        evidence,
        differences: &differences,
        manifests,
    };
    Ok(world.render(&data, wrong))
}

/// The sources that rows are compared with.
struct World<'a> {
    sources: &'a Sources,
    evidence: &'a Evidence,
    differences: &'a str,
    manifests: &'a str,
}

impl World<'_> {
    fn render(&self, data: &Data, wrong: &mut Vec<String>) -> String {
        let mut body = String::new();
        let (mut same, mut differing, mut absent) = (0, 0, 0);
        let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
        for section in &data.sections {
            let _ = write!(
                body,
                "\n## {}\n\n| Published behaviour | Here | Kinds | Levels | Tests |\n| --- | --- | --- | --- | --- |\n",
                section.title
            );
            for row in &section.rows {
                match (&row.absent, &row.differs) {
                    (Some(_), _) => absent += 1,
                    (None, Some(_)) => differing += 1,
                    (None, None) => same += 1,
                }
                let mut mistakes = Vec::new();
                let line = self.line(row, &data.sources, &mut mistakes);
                wrong.extend(
                    mistakes
                        .iter()
                        .map(|mistake| format!("{DATA}: {}: {mistake}", row.behaviour)),
                );
                let _ = writeln!(body, "{line}");
                for kind in self.evidence.expand(&row.kinds).unwrap_or_default() {
                    *kinds.entry(kind).or_default() += 1;
                }
            }
        }
        let kinds: Vec<String> = kinds
            .iter()
            .map(|(kind, rows)| format!("{kind} {rows}"))
            .collect();
        format!(
            "{INTRODUCTION}\n{same} behaviours are the same, {differing} differ, {absent} concern features that don't exist here. Rows by kind: {}.\n{body}",
            kinds.join(", ")
        )
    }

    fn line(
        &self,
        row: &Row,
        aliases: &BTreeMap<String, PathBuf>,
        wrong: &mut Vec<String>,
    ) -> String {
        let mark = mark(row, self.differences).unwrap_or_else(|error| {
            wrong.push(error.to_string());
            String::new()
        });
        for text in row.lacks.iter().filter(|t| self.manifests.contains(*t)) {
            wrong.push(format!(
                "says that {text} doesn't exist, but the generated files contain it; name the tests"
            ));
        }
        let kinds = self.evidence.expand(&row.kinds).unwrap_or_else(|error| {
            wrong.push(error.to_string());
            BTreeSet::new()
        });
        let (mut tests, mut links) = (Vec::new(), Vec::new());
        for named in &row.tests {
            match self.sources.find(aliases, named) {
                Ok((path, name)) => {
                    tests.push(self.evidence.test(self.sources, path, name));
                    links.push(link((path, name)).unwrap_or_default());
                }
                Err(error) => wrong.push(error.to_string()),
            }
        }
        if row.absent.is_none() {
            agree(&kinds, &row.levels, &tests, wrong);
        }
        let levels: Vec<String> = row.levels.iter().map(ToString::to_string).collect();
        format!(
            "| {} | {mark} | {} | {} | {} |",
            row.behaviour,
            self.evidence.name(&kinds),
            levels.join(", "),
            links.join("<br>")
        )
    }
}

/// Checks that the kinds and levels of a row match its tests.
fn agree(
    kinds: &BTreeSet<String>,
    levels: &BTreeSet<Level>,
    tests: &[Test<'_>],
    wrong: &mut Vec<String>,
) {
    if kinds.is_empty() || levels.is_empty() {
        wrong.push("a row names its kinds and levels".to_owned());
    }
    let about: BTreeSet<&String> = tests.iter().flat_map(|test| test.kinds).collect();
    for kind in kinds.iter().filter(|kind| !about.contains(kind)) {
        wrong.push(format!(
            "none of its tests is about {kind}; name one, or remove the kind"
        ));
    }
    for test in tests {
        if test.kinds.is_disjoint(kinds) && !test.kinds.contains(OPERATOR) {
            wrong.push(format!(
                "{} is about none of its kinds; remove it, or add one of {:?}",
                test.name, test.kinds
            ));
        }
    }
    let found: BTreeSet<Level> = tests.iter().map(|test| test.level).collect();
    if found != *levels {
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        wrong.push(format!(
            "its tests are of the levels {}; correct `levels`",
            found.join(", ")
        ));
    }
}

fn mark(row: &Row, differences: &str) -> anyhow::Result<String> {
    let mut mark = match (&row.absent, &row.differs) {
        (Some(why), None) => {
            ensure!(row.tests.is_empty(), "a row without a test here has tests");
            ensure!(
                !row.lacks.is_empty(),
                "a row that says what doesn't exist names in `lacks` what no manifest contains"
            );
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

/// Formats a test with a link to its file, for a page in `docs`.
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
    use crate::evidence::tests::sample;

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
            (
                "{behaviour: a, absent: why, lacks: [x]}",
                Some("not applicable: why"),
            ),
            ("{behaviour: a, absent: why}", None),
            ("{behaviour: a, tests: [x], note: N.}", Some("same. N.")),
            ("{behaviour: a}", None),
            ("{behaviour: a, tests: [x], differs: Odd}", None),
            ("{behaviour: a, tests: [x], absent: why, lacks: [x]}", None),
            (
                "{behaviour: a, differs: Old, absent: why, lacks: [x]}",
                None,
            ),
        ];
        for (text, expected) in rows {
            assert_eq!(
                mark(&row(text), differences).ok().as_deref(),
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn a_row_agrees_with_its_tests_about_kinds_and_levels() {
        let (evidence, sources) = sample();
        let world = World {
            sources: &sources,
            evidence: &evidence,
            differences: "",
            manifests: "kind: Deployment",
        };
        let aliases = BTreeMap::from([
            ("a".to_owned(), "operators/a-operator/tests/x.rs".into()),
            ("b".to_owned(), "operators/b-operator/src/lib.rs".into()),
            ("c".to_owned(), "crates/c/src/lib.rs".into()),
            ("api".to_owned(), "e2e/tests/api_x.rs".into()),
        ]);
        let rows = [
            (
                "{behaviour: x, kinds: [A], levels: [unit], tests: [\"a::b_01_x\"]}",
                None,
            ),
            (
                "{behaviour: x, kinds: [A], levels: [unit], tests: [\"a::b_01_x\", \"c::f_01_x\"]}",
                None,
            ),
            (
                "{behaviour: x, kinds: [both], levels: [api], tests: [\"api::f_02_both\"]}",
                None,
            ),
            ("{behaviour: x, absent: why, lacks: [jaxjobs]}", None),
            (
                "{behaviour: x, tests: [\"a::b_01_x\"]}",
                Some("names its kinds and levels"),
            ),
            (
                "{behaviour: x, kinds: [both], levels: [unit], tests: [\"a::b_01_x\"]}",
                Some("about B"),
            ),
            (
                "{behaviour: x, kinds: [A], levels: [unit], tests: [\"a::b_01_x\", \"b::b_02_x\"]}",
                Some("b_02_x is about none of its kinds"),
            ),
            (
                "{behaviour: x, kinds: [A], levels: [api], tests: [\"a::b_01_x\"]}",
                Some("of the levels unit"),
            ),
            (
                "{behaviour: x, kinds: [A], levels: [api, unit], tests: [\"a::b_01_x\"]}",
                Some("of the levels unit"),
            ),
            (
                "{behaviour: x, kinds: [C], levels: [unit], tests: [\"a::b_01_x\"]}",
                Some("C is neither a kind nor a group"),
            ),
            (
                "{behaviour: x, kinds: [A], levels: [unit], tests: [\"a::gone\"]}",
                Some("has no such test"),
            ),
            (
                "{behaviour: x, absent: why, lacks: [Deployment]}",
                Some("the generated files contain it"),
            ),
        ];
        for (text, expected) in rows {
            let mut wrong = Vec::new();
            world.line(&row(text), &aliases, &mut wrong);
            match expected {
                None => assert_eq!(wrong, Vec::<String>::new(), "{text}"),
                Some(expected) => assert!(
                    wrong.iter().any(|what| what.contains(expected)),
                    "{text}: {wrong:?}"
                ),
            }
        }
    }
}
