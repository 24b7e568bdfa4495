//! Checks that the links in the documents lead to a file and a heading.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use pulldown_cmark::{Event, Parser, Tag, TagEnd};
use training_manifests::tree::files_below;

/// A document's links and the anchors of its headings.
#[derive(Default)]
struct Document {
    links: Vec<String>,
    anchors: BTreeSet<String>,
}

impl Document {
    fn read(text: &str) -> Self {
        let mut document = Self::default();
        let mut heading: Option<String> = None;
        for event in Parser::new(text) {
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    let text = heading.take().unwrap_or_default();
                    document.anchors.insert(anchor(&text));
                }
                Event::Start(Tag::Link { dest_url, .. }) => {
                    document.links.push(dest_url.to_string());
                }
                Event::Text(text) | Event::Code(text) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&text);
                    }
                }
                _ => {}
            }
        }
        document
    }
}

/// Returns the anchor of a heading, as code hosts make it.
fn anchor(heading: &str) -> String {
    let kept = heading
        .chars()
        .filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// Returns the documents of the repository, by path relative to its root.
fn documents(root: &Path) -> BTreeMap<PathBuf, Document> {
    let mut paths = Vec::new();
    for directory in ["crates", "docs", "e2e", "examples", "operators"] {
        paths.extend(files_below(&root.join(directory)).unwrap());
    }
    let top = std::fs::read_dir(root).unwrap();
    paths.extend(top.map(|entry| entry.unwrap().path()));
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    let read = paths.into_iter().map(|path| {
        let text = std::fs::read_to_string(&path).unwrap();
        let path = path.strip_prefix(root).unwrap().to_owned();
        (path, Document::read(&text))
    });
    read.collect()
}

/// Returns what is wrong with a link of a document.
fn fault(
    root: &Path,
    documents: &BTreeMap<PathBuf, Document>,
    of: &Path,
    link: &str,
) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = if path.is_empty() {
        of.to_owned()
    } else {
        let full = root.join(of.parent()?).join(path).canonicalize();
        match full {
            Ok(full) => full.strip_prefix(root).ok()?.to_owned(),
            Err(_) => return Some(format!("{}: {link}: no such file", of.display())),
        }
    };
    let is_known = |document: &Document| anchor.is_empty() || document.anchors.contains(anchor);
    if documents.get(&target).is_none_or(is_known) {
        return None;
    }
    Some(format!("{}: {link}: no such heading", of.display()))
}

#[test]
fn links_lead_to_a_file_and_a_heading() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let root = root.canonicalize().unwrap();
    let documents = documents(&root);
    assert!(documents.len() > 50, "{}", documents.len());
    let links = documents
        .iter()
        .flat_map(|(path, document)| document.links.iter().map(move |link| (path, link)));
    let faults: Vec<String> = links
        .filter_map(|(path, link)| fault(&root, &documents, path, link))
        .collect();
    assert!(faults.is_empty(), "{faults:#?}");
    let index = Path::new("docs/index.md");
    for dead in ["nowhere.md", "install.md#nowhere", "#nowhere"] {
        assert!(fault(&root, &documents, index, dead).is_some(), "{dead}");
    }
}
