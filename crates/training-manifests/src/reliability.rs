//! The tables of `docs/reliability.md`: ids, what holds, and the tests that have the ids in their names.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde::Deserialize;

use crate::sources::Sources;

/// The page, of which only the tables are generated.
pub const PAGE: &str = "docs/reliability.md";
/// What holds.
const DATA: &str = "docs/data/reliability.yaml";
const BEGIN: &str = "<!-- Generated from docs/data/reliability.yaml by `cargo run -p training-manifests -- generate`; don't edit. -->";
const END: &str = "<!-- The end of what is generated. -->";
/// What ids begin with.
const PREFIXES: [&str; 6] = ["f", "i", "b", "mt", "cs", "s"];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Data {
    sources: BTreeMap<String, PathBuf>,
    tables: Vec<Table>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    title: String,
    rows: Vec<Row>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    ids: Vec<String>,
    holds: String,
    #[serde(default)]
    also: Vec<String>,
}

/// The page with its tables as they should be.
///
/// # Errors
/// If an id has no test, or a test's id is not in the data.
pub fn page(root: &Path, sources: &Sources) -> anyhow::Result<String> {
    let read =
        |path: &str| std::fs::read_to_string(root.join(path)).with_context(|| path.to_owned());
    let data: Data = serde_saphyr::from_str(&read(DATA)?).context(DATA)?;
    let tables = tables(&data, sources).context(DATA)?;
    let page = read(PAGE)?;
    let (before, rest) = page
        .split_once(BEGIN)
        .with_context(|| format!("{PAGE} lacks {BEGIN}"))?;
    let (_, after) = rest
        .split_once(END)
        .with_context(|| format!("{PAGE} lacks {END}"))?;
    Ok(format!("{before}{BEGIN}\n{tables}\n{END}{after}"))
}

fn tables(data: &Data, sources: &Sources) -> anyhow::Result<String> {
    let mut found: BTreeMap<String, BTreeSet<&Path>> = BTreeMap::new();
    for (path, name) in sources.all() {
        for id in ids(name) {
            found.entry(id).or_default().insert(path);
        }
    }
    let mut wrong = Vec::new();
    let mut known = BTreeSet::new();
    let mut text = String::new();
    for table in &data.tables {
        let _ = write!(
            text,
            "\n## {}\n\n| Id | What holds | Tested in |\n| --- | --- | --- |\n",
            table.title
        );
        for row in &table.rows {
            let mut paths = BTreeSet::new();
            for named in &row.also {
                match sources.find(&data.sources, named) {
                    Ok((path, _)) => {
                        paths.insert(path);
                    }
                    Err(error) => wrong.push(error.to_string()),
                }
            }
            for id in &row.ids {
                if !known.insert(canonical(id)) {
                    wrong.push(format!("{id} is there twice"));
                }
                match found.get(&canonical(id)) {
                    Some(tests) => paths.extend(tests),
                    None if row.also.is_empty() => wrong.push(format!("{id} has no test")),
                    None => {}
                }
            }
            let links: Vec<String> = paths.iter().map(|path| link(path)).collect();
            let _ = writeln!(
                text,
                "| {} | {} | {} |",
                row.ids.join(", "),
                row.holds,
                links.join(", ")
            );
        }
    }
    for (id, paths) in found.iter().filter(|(id, _)| !known.contains(*id)) {
        let first = paths
            .first()
            .map(|p| p.display().to_string())
            .unwrap_or_default();
        wrong.push(format!("{id} is tested in {first} and is in no row"));
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(text)
}

/// A source for a page in `docs`: with its folder, because several files are called `tests.rs`.
fn link(path: &Path) -> String {
    let parts: Vec<_> = path
        .components()
        .map(|c| c.as_os_str().to_string_lossy().into_owned())
        .filter(|part| {
            !matches!(
                part.as_str(),
                "src" | "tests" | "crates" | "operators" | "data"
            )
        })
        .collect();
    let short = parts[parts.len().saturating_sub(2)..].join("/");
    format!("[{short}](../{})", path.display())
}

/// `CS-1` and `cs_01` are one id.
fn canonical(id: &str) -> String {
    let (prefix, number) = id.split_once('-').unwrap_or((id, "0"));
    let number: u32 = number.parse().unwrap_or(0);
    format!("{}-{number:03}", prefix.to_uppercase())
}

/// The ids that a test's name begins with: `f_10_f_72_…`, `i31_i32_…`, `i_01_to_i_31_…`; a row's: `B-021 …`.
fn ids(name: &str) -> Vec<String> {
    if let Some(first) = name.split(' ').next()
        && let Some((prefix, number)) = first.split_once('-')
        && PREFIXES.contains(&prefix.to_lowercase().as_str())
        && number.parse::<u32>().is_ok()
    {
        return vec![canonical(first)];
    }
    let mut ids = Vec::new();
    let mut words = name.split('_').peekable();
    while let Some(word) = words.next() {
        let letters = word.trim_end_matches(|c: char| c.is_ascii_digit());
        let number = match &word[letters.len()..] {
            // `f_10`: the number is the next word.
            "" => words.peek().copied().unwrap_or_default(),
            digits => digits,
        };
        if word == "to" && !ids.is_empty() {
            continue;
        }
        if !PREFIXES.contains(&letters)
            || number.is_empty()
            || !number.bytes().all(|b| b.is_ascii_digit())
        {
            break;
        }
        ids.push(canonical(&format!("{letters}-{number}")));
        if letters.len() == word.len() {
            words.next();
        }
    }
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_what_names_begin_with() {
        let rows: [(&str, &[&str]); 9] = [
            ("f_10_f_72_the_header", &["F-010", "F-072"]),
            ("f50_a_killed_leader", &["F-050"]),
            ("i31_i32_a_life", &["I-031", "I-032"]),
            ("i_01_to_i_31_hold", &["I-001", "I-031"]),
            ("cs1_killed", &["CS-001"]),
            ("B-021 a quantity", &["B-021"]),
            ("a_job_of_10_pods", &[]),
            ("mt_64_b_9_s", &["MT-064", "B-009"]),
            ("i_said_so", &[]),
        ];
        for (name, expected) in rows {
            assert_eq!(ids(name), expected, "{name}");
        }
    }
}
