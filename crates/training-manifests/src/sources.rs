//! The tests in the sources, so that documents name only tests that exist.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// Where tests are.
const TREES: &[&str] = &["crates", "operators", "e2e"];
/// Rows of tables that a test reads begin so.
const ROW: &str = "- name: ";

/// Every test by its file: functions of Rust, rows of tables in YAML.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    files: BTreeMap<PathBuf, BTreeSet<String>>,
}

impl Sources {
    /// Reads the sources below `root`.
    ///
    /// # Errors
    /// If one can't be read.
    pub fn read(root: &Path) -> anyhow::Result<Self> {
        let mut files = BTreeMap::new();
        let mut open: Vec<PathBuf> = TREES.iter().map(|tree| root.join(tree)).collect();
        while let Some(directory) = open.pop() {
            let entries =
                std::fs::read_dir(&directory).with_context(|| directory.display().to_string())?;
            for entry in entries {
                let path = entry?.path();
                if path.is_dir() {
                    open.push(path);
                    continue;
                }
                let find = match path.extension().and_then(|e| e.to_str()) {
                    Some("rs") => functions,
                    Some("yaml") => rows,
                    _ => continue,
                };
                let text =
                    std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
                let found = find(&text);
                if !found.is_empty() {
                    let path = path.strip_prefix(root).unwrap_or(&path).to_owned();
                    files.insert(path, found);
                }
            }
        }
        Ok(Self { files })
    }

    /// Every test with its file.
    pub fn all(&self) -> impl Iterator<Item = (&Path, &str)> {
        self.files
            .iter()
            .flat_map(|(path, tests)| tests.iter().map(move |t| (path.as_path(), t.as_str())))
    }

    /// Finds the test that `source::name` means, where `aliases` has the file's short name.
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
            Some(tests) if tests.contains(name) => Ok((path, name)),
            Some(_) | None => bail!("{named}: {} has no such test", path.display()),
        }
    }
}

/// The names of functions that are marked as tests.
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

/// The names of a table's rows.
fn rows(text: &str) -> BTreeSet<String> {
    text.lines()
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
    }

    #[test]
    fn a_test_that_does_not_exist_is_an_error() {
        let path = PathBuf::from("a.rs");
        let sources = Sources {
            files: BTreeMap::from([(path.clone(), BTreeSet::from(["one".to_owned()]))]),
        };
        let aliases = BTreeMap::from([("a".to_owned(), path)]);
        assert!(sources.find(&aliases, "a::one").is_ok());
        for wrong in ["a::two", "b::one", "one"] {
            assert!(sources.find(&aliases, wrong).is_err(), "{wrong}");
        }
    }
}
