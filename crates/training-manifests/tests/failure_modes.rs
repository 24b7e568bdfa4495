//! Checks that every reason has an entry in `docs/failure-modes.md`, and that every entry has a reason.

// Clippy takes only functions marked as tests for tests, not their helpers.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use training_core::reasons;

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap().to_owned()
}

fn page() -> String {
    fs::read_to_string(root().join("docs/failure-modes.md")).unwrap()
}

/// Returns the headings with one reason each, with the text below them.
fn entries(page: &str) -> Vec<(&str, &str)> {
    page.split("\n### ")
        .skip(1)
        .map(|entry| {
            let (reason, text) = entry.split_once('\n').unwrap();
            (reason, text.split("\n## ").next().unwrap())
        })
        .collect()
}

/// Returns the reasons in the table of published reasons.
fn published(page: &str) -> BTreeSet<String> {
    let (_, table) = page.split_once("## Published reasons").unwrap();
    let table = table.split("\n## ").next().unwrap();
    let rows = table.lines().filter(|l| l.starts_with("| `"));
    rows.filter_map(|row| row.split('|').nth(1))
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .map(str::to_owned)
        .collect()
}

/// Returns the sources of operators and their libraries, without tests.
fn sources() -> Vec<String> {
    fn collect(dir: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, found);
            } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests.rs") {
                let text = fs::read_to_string(&path).unwrap();
                found.push(text.split("#[cfg(test)]").next().unwrap().to_owned());
            }
        }
    }
    let mut found = Vec::new();
    for dir in ["crates/training-core/src", "crates/training-runtime/src"] {
        collect(&root().join(dir), &mut found);
    }
    for operator in fs::read_dir(root().join("operators")).unwrap() {
        let source = operator.unwrap().path().join("src");
        // `every-kind` contains only tests.
        if source.is_dir() {
            collect(&source, &mut found);
        }
    }
    found
}

fn is_reason(text: &str) -> bool {
    text.len() > 5
        && text.starts_with(|c: char| c.is_ascii_uppercase())
        && text.chars().all(|c| c.is_ascii_alphanumeric())
}

/// Returns the string literals that the code uses as reasons of events and conditions.
fn said() -> BTreeSet<String> {
    let mut said = BTreeSet::new();
    for text in sources() {
        for start in ["Note::normal(", "Note::warning(", "reason: ", "refuse("] {
            for (at, _) in text.match_indices(start) {
                let rest = &text[at + start.len()..];
                // The reason is the first argument, if that is a string literal.
                let literal = rest.trim_start().strip_prefix('"');
                let word = literal.and_then(|l| l.split('"').next());
                said.extend(word.filter(|w| is_reason(w)).map(str::to_owned));
            }
        }
    }
    said
}

#[test]
fn every_reason_of_ours_has_an_entry_and_no_entry_is_stale() {
    let page = page();
    let known: BTreeSet<&str> = reasons::catalogue().map(|e| e.reason).collect();
    let written: BTreeSet<&str> = entries(&page).iter().map(|(reason, _)| *reason).collect();
    let missing: Vec<_> = known.difference(&written).collect();
    let stale: Vec<_> = written.difference(&known).collect();
    assert!(
        missing.is_empty() && stale.is_empty(),
        "docs/failure-modes.md lacks {missing:?}, and has {stale:?} for nothing"
    );
}

#[test]
fn an_entry_says_what_is_seen_why_and_what_to_do() {
    for (reason, text) in entries(&page()) {
        for part in ["- **See**: ", "- **Why**: ", "- **Do**: "] {
            assert!(text.contains(part), "{reason} lacks {part}");
        }
    }
}

#[test]
fn every_reason_that_the_code_says_is_in_the_catalogue_or_published() {
    let page = page();
    let (published, said) = (published(&page), said());
    let known: BTreeSet<String> = reasons::catalogue().map(|e| e.reason.to_owned()).collect();
    assert!(said.len() > 15, "the search finds too little: {said:?}");
    let unknown: Vec<_> = said
        .iter()
        .filter(|r| !known.contains(*r) && !published.contains(*r))
        .collect();
    assert!(unknown.is_empty(), "{unknown:?} are documented nowhere");
}

#[test]
fn every_published_reason_on_the_page_is_said_by_the_code() {
    let text = sources().concat();
    for reason in published(&page()) {
        // Some reasons are built from the kind's name.
        let literal = match reason.strip_prefix("PyTorchJob") {
            Some(end) => format!("{{}}{end}\""),
            None => format!("\"{reason}\""),
        };
        let built = literal.replace("{}", "{kind}");
        assert!(
            text.contains(&literal) || text.contains(&built),
            "nothing says {reason}"
        );
    }
}

#[test]
fn reasons_are_unique() {
    let all: Vec<&str> = reasons::catalogue().map(|e| e.reason).collect();
    let once: BTreeSet<&str> = all.iter().copied().collect();
    assert_eq!(all.len(), once.len(), "{all:?}");
}
