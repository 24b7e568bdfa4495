//! The documents as a book with search: mdBook builds the pages that `docs/SUMMARY.md` lists, with the files that they link to.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::{paths, process};

/// The version that is installed into the cache.
const VERSION: &str = "0.5.4";
/// The list of pages. The first one is copied to `index.html`: its links have to be relative to the book's root.
const SUMMARY: &str = "docs/SUMMARY.md";
/// Pages keep their names, so that links to a README.md lead to it.
const SETTINGS: &str = r#"[book]
title = "Trainyard"
description = "Kubernetes operators for distributed training"
language = "en"
src = "src"

[build]
build-dir = "html"
use-default-preprocessors = false

[output.html]
no-section-label = true

[output.html.print]
enable = false
"#;

/// Builds the book below cargo's target directory, checks its links, and returns the path of its first page.
pub fn build() -> Result<PathBuf, String> {
    let dir = paths::target().join("book");
    if dir.exists() {
        fs::remove_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    }
    for (path, text) in sources(&paths::root())? {
        write(&dir.join("src").join(path), &text)?;
    }
    write(&dir.join("book.toml"), SETTINGS.as_bytes())?;
    let options = ["--no-default-features", "--features", "search"];
    let tool = process::cargo_tool("mdbook", VERSION, &options)?;
    process::quiet(process::command(tool, ["build"]).arg(&dir))?;
    let html = dir.join("html");
    let dead = dead_links(&html)?;
    if dead.is_empty() {
        return Ok(html.join("index.html"));
    }
    Err(format!("dead links in the book:\n{}", dead.join("\n")))
}

fn write(path: &Path, text: &[u8]) -> Result<(), String> {
    let parent = path.parent().unwrap_or(path);
    fs::create_dir_all(parent)
        .and_then(|()| fs::write(path, text))
        .map_err(|e| format!("{}: {e}", path.display()))
}

/// Returns the book's pages and the files that they link to, by path in the repository.
fn sources(root: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>, String> {
    let read = |path: &Path| {
        let full = root.join(path);
        fs::read(&full).map_err(|e| format!("{}: {e}", full.display()))
    };
    let text = |path: &Path| read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let summary = Path::new(SUMMARY);
    let mut listed = text(summary)?;
    let mut pages = BTreeSet::new();
    for link in links(&listed.clone()) {
        let page = resolve(summary, link);
        listed = listed.replace(&format!("({link})"), &format!("({})", page.display()));
        pages.insert(page);
    }
    let mut all = BTreeMap::from([(PathBuf::from("SUMMARY.md"), listed.into_bytes())]);
    for page in &pages {
        let content = text(page)?;
        for link in links(&content) {
            let path = link.split('#').next().unwrap_or_default();
            let target = resolve(page, path);
            if path.is_empty() || link.contains(':') || pages.contains(&target) {
                continue;
            }
            if target
                .extension()
                .is_some_and(|extension| extension == "md")
            {
                return Err(format!(
                    "{} links to {}, which {SUMMARY} does not list",
                    page.display(),
                    target.display()
                ));
            }
            if root.join(&target).is_file() {
                all.insert(target.clone(), read(&target)?);
            }
        }
        all.insert(page.clone(), content.into_bytes());
    }
    Ok(all)
}

/// Returns the targets of a document's links.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1);
    targets.filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
}

/// Returns the path of a link's target, relative to what the document's path is relative to.
fn resolve(document: &Path, link: &str) -> PathBuf {
    let mut path = document.parent().unwrap_or(Path::new("")).to_owned();
    for part in Path::new(link).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            Component::CurDir => {}
            other => path.push(other),
        }
    }
    path
}

/// Returns the links of HTML pages that lead to no file or to no element.
fn dead_links(html: &Path) -> Result<Vec<String>, String> {
    let mut pages = BTreeMap::new();
    for page in paths::files_below(html)?.into_iter().map(PathBuf::from) {
        if page
            .extension()
            .is_some_and(|extension| extension == "html")
        {
            let path = html.join(&page);
            let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            pages.insert(page, text);
        }
    }
    let mut dead = Vec::new();
    for (page, text) in &pages {
        // This page stands for any address, and has links from the root.
        if page.as_os_str() == "404.html" {
            continue;
        }
        for link in attributes(text, "href").chain(attributes(text, "src")) {
            if link.contains(':') {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() {
                page.clone()
            } else {
                resolve(page, path)
            };
            let exists = match pages.get(&target) {
                Some(text) => anchor.is_empty() || attributes(text, "id").any(|id| id == anchor),
                None => html.join(&target).is_file(),
            };
            if !exists {
                dead.push(format!("{}: {link}", page.display()));
            }
        }
    }
    Ok(dead)
}

/// Returns the values of an attribute in a page.
fn attributes<'a>(text: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let begin = format!(" {name}=\"");
    let parts: Vec<&str> = text.split(&*begin).skip(1).collect();
    parts
        .into_iter()
        .filter_map(|rest| rest.split_once('"').map(|(value, _)| value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_in_the_book_once() {
        let root = paths::root();
        let sources = sources(&root).unwrap();
        let listed = process::quiet(&mut process::command("git", ["ls-files", "*.md"])).unwrap();
        for page in listed.lines().filter(|page| *page != SUMMARY) {
            assert!(sources.contains_key(Path::new(page)), "{page}");
            let summary = String::from_utf8_lossy(&sources[Path::new("SUMMARY.md")]);
            assert_eq!(summary.matches(&format!("]({page})")).count(), 1, "{page}");
        }
        assert!(!sources.contains_key(Path::new(SUMMARY)));
        assert!(sources.contains_key(Path::new("operators/every-kind/validation.yaml")));
    }

    #[test]
    fn a_link_to_no_file_or_no_heading_is_dead() {
        let dir = tempfile::tempdir().unwrap();
        let page = |links: &str| format!("<h1 id=\"top\">a</h1>{links}");
        let good =
            "<a href=\"b/c.html#top\">b</a> <a href=\"#top\">a</a> <a href=\"https://x\">x</a>";
        write(&dir.path().join("a.html"), page(good).as_bytes()).unwrap();
        write(
            &dir.path().join("b/c.html"),
            page("<a href=\"../a.html\">a</a>").as_bytes(),
        )
        .unwrap();
        assert_eq!(dead_links(dir.path()).unwrap(), Vec::<String>::new());
        let bad =
            "<a href=\"b/d.html\">d</a> <a href=\"b/c.html#bottom\">c</a> <img src=\"e.png\">";
        write(&dir.path().join("a.html"), page(bad).as_bytes()).unwrap();
        assert_eq!(
            dead_links(dir.path()).unwrap(),
            [
                "a.html: b/d.html",
                "a.html: b/c.html#bottom",
                "a.html: e.png"
            ]
        );
    }
}
