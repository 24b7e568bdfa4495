//! Finds the tests in the sources, so that documents name only existing tests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::tree::files_below;

/// The directories with tests.
const TREES: &[&str] = &["crates", "operators", "e2e"];
/// The prefix of rows in YAML tables that a test reads.
const ROW: &str = "- name: ";

/// The directory of tests that several operators include.
const SHARED: &str = "/every-kind/";

/// All tests by file: Rust functions, and rows of YAML tables.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    files: BTreeMap<PathBuf, Source>,
}

#[derive(Clone, Debug, Default)]
struct Source {
    tests: BTreeSet<String>,
    /// The shared files that the file includes.
    includes: BTreeSet<String>,
    /// Whether the file runs more cases in `make test-deep`.
    deep: bool,
}

impl Sources {
    /// Reads the sources below `root`.
    ///
    /// # Errors
    /// If one can't be read.
    pub fn read(root: &Path) -> anyhow::Result<Self> {
        let mut files = BTreeMap::new();
        for tree in TREES {
            for path in files_below(&root.join(tree))? {
                if !is_source(&path) {
                    continue;
                }
                let text =
                    std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
                let relative = path.strip_prefix(root).unwrap_or(&path).to_owned();
                files.insert(relative, source(&path, &text));
            }
        }
        Ok(Self { files })
    }

    /// Collects the tests of these files.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let files = files
            .iter()
            .map(|(path, text)| (PathBuf::from(path), source(Path::new(path), text)))
            .collect();
        Self { files }
    }

    /// Returns every test with its file.
    pub fn all(&self) -> impl Iterator<Item = (&Path, &str)> {
        self.files.iter().flat_map(|(path, source)| {
            let tests = source.tests.iter();
            tests.map(move |test| (path.as_path(), test.as_str()))
        })
    }

    /// Returns the shared files that tests below `folder` include.
    pub fn included(&self, folder: &str) -> BTreeSet<String> {
        self.files
            .iter()
            .filter(|(path, _)| path.starts_with(folder))
            .flat_map(|(_, source)| source.includes.iter().cloned())
            .collect()
    }

    /// Returns whether the tests of a file run more cases in `make test-deep`.
    pub fn is_deep(&self, path: &Path) -> bool {
        self.files.get(path).is_some_and(|source| source.deep)
    }

    /// Finds the test `source::name`; `aliases` maps short names to files.
    ///
    /// # Errors
    /// If there is no such test.
    pub fn find<'a>(
        &self,
        aliases: &'a BTreeMap<String, PathBuf>,
        named: &'a str,
    ) -> anyhow::Result<(&'a Path, &'a str)> {
        let (source, name) = named
            .split_once("::")
            .with_context(|| format!("{named}: a test is written source::name"))?;
        let path = aliases
            .get(source)
            .with_context(|| format!("{named}: there is no source {source}"))?;
        match self.files.get(path) {
            Some(source) if source.tests.contains(name) => Ok((path, name)),
            Some(_) | None => bail!(
                "{named}: {} has no such test; name the one that holds it now",
                path.display()
            ),
        }
    }
}

fn is_source(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "rs" || e == "yaml")
}

fn source(path: &Path, text: &str) -> Source {
    let is_rust = path.extension().is_some_and(|e| e == "rs");
    Source {
        tests: if is_rust { functions(text) } else { rows(text) },
        includes: text
            .lines()
            .filter(|line| line.trim_start().starts_with("#[path"))
            .filter_map(|line| line.split_once(SHARED)?.1.split('"').next())
            .map(str::to_owned)
            .collect(),
        deep: text.contains("deep") || text.contains("DEEP"),
    }
}

/// Returns the names of test functions.
fn functions(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut marked = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            marked = true;
        } else if let Some((before, rest)) = line.split_once("fn ")
            && marked
            && matches!(before.trim(), "" | "async")
        {
            let name = rest.split(['(', '<']).next().unwrap_or_default();
            found.insert(name.to_owned());
            marked = false;
        }
    }
    found
}

/// Returns the names of a table's rows; none for other documents.
fn rows(text: &str) -> BTreeSet<String> {
    text.lines()
        .skip_while(|line| *line != "rows:")
        .filter_map(|line| line.trim().strip_prefix(ROW))
        .map(|name| name.trim_matches('"').to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_functions_that_are_marked_are_tests() {
        let text = "#[test]\nfn one() {}\nfn help() {}\n#[tokio::test(start_paused = true)]\n#[allow(x)]\nasync fn two() {}\n";
        assert_eq!(
            functions(text).into_iter().collect::<Vec<_>>(),
            ["one", "two"]
        );
    }

    #[test]
    fn rows_are_found_by_their_names() {
        let text = "rows:\n  - name: B-001 a row\n    patch: {}\n  - name: another\n";
        assert_eq!(
            rows(text).into_iter().collect::<Vec<_>>(),
            ["B-001 a row", "another"]
        );
        assert!(rows("containers:\n  - name: main\n").is_empty());
    }

    #[test]
    fn a_test_that_does_not_exist_is_an_error() {
        let sources = Sources::of(&[("a.rs", "#[test]\nfn one() {}\n")]);
        let aliases = BTreeMap::from([("a".to_owned(), PathBuf::from("a.rs"))]);
        assert!(sources.find(&aliases, "a::one").is_ok());
        for wrong in ["a::two", "b::one", "one"] {
            assert!(sources.find(&aliases, wrong).is_err(), "{wrong}");
        }
    }
}
