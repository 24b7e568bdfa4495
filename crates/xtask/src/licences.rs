//! Collects the licence texts of an operator's dependencies for its image: the texts in each crate's package, else its SPDX
//! expression, and those of Rust's standard library and of the C library if this machine has them.
//!
//! cargo lists the dependencies and has their sources, so this needs no further tool.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::image::Build;
use crate::{cross, paths, process};

/// The prefixes of licence file names, in upper case.
const NAMES: [&str; 6] = [
    "COPYING",
    "COPYRIGHT",
    "LICENCE",
    "LICENSE",
    "NOTICE",
    "UNLICENSE",
];

/// The name of Rust's standard library.
pub const RUST: &str = "Rust's standard library";
/// The name of the C library.
pub const LIBC: &str = "the GNU C library";
/// In place of the expression of a crate that names a file.
pub const AS_ITS_FILES: &str = "as its files say";

/// A linked component.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// Its name.
    pub name: String,
    /// Its version, if it has one.
    pub version: String,
    /// Its SPDX expression.
    pub expression: String,
    /// Its texts, by file name.
    texts: Vec<(String, String)>,
}

impl Part {
    fn shown(&self) -> String {
        format!("{} {}", self.name, self.version)
            .trim_end()
            .to_owned()
    }
}

/// Returns the path of an operator's licence file, next to its program.
pub fn place(operator: &str, how: Build) -> PathBuf {
    paths::binaries(how).join(format!("{operator}.licences"))
}

/// Writes a program's licence file. Returns what is linked into the program.
pub fn write(program: &str, how: Build, to: &Path) -> Result<Vec<Part>, String> {
    let parts = parts(program, how)?;
    let text = render(program, &parts);
    fs::write(to, text).map_err(|e| format!("{}: {e}", to.display()))?;
    Ok(parts)
}

/// Returns what is linked into a program.
pub fn parts(program: &str, how: Build) -> Result<Vec<Part>, String> {
    let mut parts = crates(program, how)?;
    parts.extend(toolchain(how));
    parts.sort();
    Ok(parts)
}

/// Returns the third-party crates that are linked into an operator.
fn crates(operator: &str, how: Build) -> Result<Vec<Part>, String> {
    let triple = how.triple();
    // Procedural macros are not part of the program.
    let edges = "normal,no-proc-macro";
    let tree = [
        "tree", "--locked", "--target", &triple, "-e", edges, "--prefix", "none", "-f", "{p}",
        "-p", operator,
    ];
    let tree = process::output(&mut process::command("cargo", tree))?;
    let linked: BTreeSet<(&str, &str)> = tree.lines().filter_map(name_and_version).collect();
    let metadata = [
        "metadata",
        "--locked",
        "--format-version=1",
        "--filter-platform",
        &triple,
    ];
    let metadata = process::output(&mut process::command("cargo", metadata))?;
    let metadata: Value = serde_json::from_str(&metadata).map_err(|e| e.to_string())?;
    let text =
        |package: &Value, field: &str| package[field].as_str().unwrap_or_default().to_owned();
    let mut parts = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let (name, version) = (text(package, "name"), text(package, "version"));
        if package["source"].is_null() || !linked.contains(&(&*name, &*version)) {
            continue;
        }
        let manifest = text(package, "manifest_path");
        let directory = Path::new(&manifest).parent().unwrap_or(Path::new("."));
        let mut texts = texts(directory)?;
        let named = text(package, "license_file");
        if !named.is_empty() && texts.iter().all(|(file, _)| *file != named) {
            texts.push((named.clone(), read(&directory.join(&named))?));
        }
        let mut expression = text(package, "license");
        if expression.is_empty() {
            AS_ITS_FILES.clone_into(&mut expression);
        }
        parts.push(Part {
            name,
            version,
            expression,
            texts,
        });
    }
    Ok(parts)
}

/// Parses a line such as `tokio v1.2.3 (*)`.
fn name_and_version(line: &str) -> Option<(&str, &str)> {
    let mut words = line.split_whitespace();
    Some((words.next()?, words.next()?.strip_prefix('v')?))
}

/// Reads the licence texts in a directory.
fn texts(directory: &Path) -> Result<Vec<(String, String)>, String> {
    let shown = |e| format!("{}: {e}", directory.display());
    let mut texts = Vec::new();
    for entry in fs::read_dir(directory).map_err(shown)? {
        let path = entry.map_err(shown)?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let upper = name.to_uppercase();
        // Some crates have a module with such a name.
        let is_text = NAMES.iter().any(|begin| upper.starts_with(begin))
            && path.extension().is_none_or(|e| e != "rs");
        if is_text && path.is_file() {
            texts.push((name, read(&path)?));
        }
    }
    texts.sort();
    Ok(texts)
}

/// Reads a text and normalises white space, so that equal texts compare equal.
fn read(path: &Path) -> Result<String, String> {
    let bytes = fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    Ok(lines.join("\n").trim_matches('\n').to_owned())
}

/// Returns the components of the compiler and the machine: a static program contains the C library.
fn toolchain(how: Build) -> Vec<Part> {
    let rustc = |args: &[&str]| {
        let shown = process::quiet(&mut process::command(how.compiler(), args));
        shown.unwrap_or_default()
    };
    let (sysroot, version) = (rustc(&["--print", "sysroot"]), rustc(&["--version"]));
    let rust = Path::new(sysroot.trim()).join("share/doc/rust/licenses");
    let mut of_rust = vec![rust.join("Apache-2.0.txt"), rust.join("MIT.txt")];
    let mut packages = vec!["libc6-dev", "libc6"];
    if let Build::Arm64 = how {
        of_rust.push("/usr/share/doc/libstd-rust-web-dev/copyright".into());
        packages.insert(0, "libc6-dev-arm64-cross");
    }
    let some = |paths: &[PathBuf]| -> Vec<(String, String)> {
        let named = |path: &PathBuf| {
            let name = path.file_name()?.to_string_lossy().into_owned();
            Some((name, read(path).ok()?))
        };
        paths.iter().filter_map(named).collect()
    };
    let copyright = |package: &&str| PathBuf::from(format!("/usr/share/doc/{package}/copyright"));
    let mut copyrights: Vec<PathBuf> = packages.iter().map(copyright).collect();
    let of_libc = ["-W", "-f=${Version}", packages[0]];
    let mut of_libc =
        process::quiet(&mut process::command("dpkg-query", of_libc)).unwrap_or_default();
    if let (Build::Arm64, Some((version, documents))) = (how, cross::debians_libc()) {
        of_libc = version;
        copyrights.insert(0, documents.join("copyright"));
    }
    let mut libc = some(&copyrights);
    libc.truncate(1);
    vec![
        Part {
            name: RUST.to_owned(),
            version: version
                .split_whitespace()
                .nth(1)
                .unwrap_or_default()
                .to_owned(),
            expression: "MIT OR Apache-2.0".to_owned(),
            texts: some(&of_rust),
        },
        Part {
            name: LIBC.to_owned(),
            version: of_libc,
            expression: "LGPL-2.1-or-later".to_owned(),
            texts: libc,
        },
    ]
}

/// Renders the file: all components, and each text once.
fn render(operator: &str, parts: &[Part]) -> String {
    let rule = "=".repeat(79);
    let mut users: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut order = Vec::new();
    for part in parts {
        for (file, text) in &part.texts {
            let of = users.entry(text).or_default();
            if of.is_empty() {
                order.push(text.as_str());
            }
            of.push(format!("{} ({file})", part.shown()));
        }
    }
    let numbers: BTreeMap<&str, usize> = order
        .iter()
        .enumerate()
        .map(|(n, text)| (*text, n + 1))
        .collect();
    let mut out = format!(
        "Software of others in {operator}, and its licences. Each text stands once, below the list.\n\n"
    );
    for part in parts {
        let texts = part.texts.iter().map(|(_, text)| numbers[text.as_str()]);
        let texts: BTreeSet<usize> = texts.collect();
        let texts: Vec<String> = texts.iter().map(usize::to_string).collect();
        let texts = match texts.len() {
            0 => "no text".to_owned(),
            1 => format!("text {}", texts[0]),
            _ => format!("texts {}", texts.join(", ")),
        };
        // Writing to a String can't fail.
        let _ = writeln!(out, "{}: {}; {texts}", part.shown(), part.expression);
    }
    for text in order {
        let _ = write!(out, "\n{rule}\nText {}, of:\n", numbers[text]);
        for user in &users[text] {
            let _ = writeln!(out, "  {user}");
        }
        let _ = writeln!(out, "{rule}\n\n{text}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(name: &str, texts: &[(&str, &str)]) -> Part {
        let texts = texts
            .iter()
            .map(|(file, text)| ((*file).to_owned(), (*text).to_owned()));
        Part {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            expression: "MIT".to_owned(),
            texts: texts.collect(),
        }
    }

    #[test]
    fn each_text_stands_once_with_all_who_use_it() {
        let parts = [
            part("a", &[("LICENSE", "Do as you like.")]),
            part(
                "b",
                &[("COPYING", "Do as you like."), ("NOTICE", "Thanks to c.")],
            ),
            part("c", &[]),
        ];
        let text = render("some-operator", &parts);
        assert_eq!(text.matches("Do as you like.").count(), 1);
        assert!(
            text.contains("\n  a 1.0.0 (LICENSE)\n  b 1.0.0 (COPYING)\n"),
            "{text}"
        );
        assert!(text.contains("\nb 1.0.0: MIT; texts 1, 2\n"), "{text}");
        assert!(text.contains("\nc 1.0.0: MIT; no text\n"), "{text}");
    }

    #[test]
    fn what_is_linked_into_an_operator_has_its_licences() {
        let parts = crates("jax-operator", Build::Shipped).unwrap();
        let names: BTreeSet<&str> = parts.iter().map(|p| &*p.name).collect();
        for linked in ["tokio", "rustls", "ring", "kube-client"] {
            assert!(names.contains(linked), "{linked}: {names:?}");
        }
        for not in ["training-core", "jax-operator", "serde_derive", "proptest"] {
            assert!(!names.contains(not), "{not}");
        }
        assert!(parts.iter().all(|p| !p.expression.is_empty()));
        let with = parts.iter().filter(|p| !p.texts.is_empty()).count();
        assert!(with * 10 > parts.len() * 9, "{with} of {}", parts.len());
        let mut again = crates("jax-operator", Build::Shipped).unwrap();
        again.reverse();
        again.sort();
        let mut sorted = parts;
        sorted.sort();
        assert_eq!(
            render("a", &sorted),
            render("a", &again),
            "the same bytes each time"
        );
    }
}
