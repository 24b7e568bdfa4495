//! Generates manifests and reference documents from the types, the grants and the catalogue of events.
//!
//! - [`operator`]: the data of each operator; a new kind is one more entry
//! - [`install`]: all installed objects except rights
//! - [`rights`]: roles from grants, for the operator and for users
//! - [`admission`]: warnings and refusals at admission
//! - [`guard`]: the policy for namespaces where an operator may not write
//! - [`bundle`]: which object goes into which file, and the kustomizations
//! - [`chart`]: the Helm charts
//! - [`mod@reference`]: the documents in `docs/reference`
//! - [`conformance`]: published behaviour and our tests for it
//! - [`evidence`]: the kinds, level and ids of each test
//! - [`reliability`]: the ids of the reliability programme
//! - [`monitoring`]: alerts and dashboards
//! - [`modules`]: dependencies between modules, without cycles
//! - [`schema`]: JSON schemas of the kinds
//! - [`sources`]: the tests in the sources
//! - [`strict`]: the policy of strict mode
//! - [`tree`]: the files below a directory
//! - [`yaml`]: the YAML writer

pub mod admission;
pub mod bundle;
pub mod chart;
pub mod conformance;
pub mod differences;
pub mod evidence;
pub mod guard;
pub mod install;
pub mod modules;
pub mod monitoring;
pub mod operator;
pub mod reference;
pub mod reliability;
pub mod rights;
pub mod schema;
pub mod sources;
pub mod strict;
pub mod tree;
pub mod yaml;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::tree::files_below;

/// Directories with only generated files, relative to the workspace.
const OWNED: &[&str] = &["manifests"];

/// Returns the content of every generated file, by path relative to the workspace at `root`.
///
/// # Errors
/// If a type can't be written as YAML, which would be a defect of this crate; or if the data of a document doesn't
/// match the tests.
pub fn files(root: &Path) -> anyhow::Result<BTreeMap<PathBuf, String>> {
    let operators = operator::all()?;
    let mut files = bundle::files(&operators)?;
    files.extend(reference::files(&operators)?);
    files.extend(monitoring::files()?);
    files.insert(modules::PAGE.into(), modules::page(root)?);
    files.insert(differences::PAGE.into(), differences::page(root)?);
    documents(root, &operators, &mut files)?;
    Ok(files)
}

/// Adds the documents that name tests. Reports all mistakes in their data at once.
fn documents(
    root: &Path,
    operators: &[operator::Operator],
    files: &mut BTreeMap<PathBuf, String>,
) -> anyhow::Result<()> {
    let manifests: String = files.values().map(String::as_str).collect();
    let sources = sources::Sources::read(root)?;
    let mut wrong = Vec::new();
    let evidence = evidence::Evidence::read(root, operators, &sources, &mut wrong)?;
    wrong.extend(evidence.unknown(&sources).iter().map(|path| {
        format!(
            "{}: {} is in no scope; say of which kinds its tests are",
            evidence::DATA,
            path.display()
        )
    }));
    let conformance = conformance::page(root, &sources, &evidence, &manifests, &mut wrong)?;
    let reliability = reliability::page(root, &sources, &evidence, &manifests, &mut wrong)?;
    reliability::none_is(&wrong)?;
    files.insert("docs/conformance.md".into(), conformance);
    files.insert(reliability::PAGE.into(), reliability);
    Ok(())
}

/// Writes every generated file below `root`.
///
/// # Errors
/// If a file can't be written.
pub fn write(root: &Path) -> anyhow::Result<()> {
    let generated = files(root)?;
    write_all(root, &generated)?;
    for path in surplus(root, &generated)? {
        std::fs::remove_file(root.join(&path)).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Writes files below `root`, with their directories.
fn write_all(root: &Path, files: &BTreeMap<PathBuf, String>) -> anyhow::Result<()> {
    for (path, content) in files {
        let path = root.join(path);
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        std::fs::write(&path, content).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Returns the files below `root` that are missing, differ, or are no longer generated.
///
/// # Errors
/// If the files can't be generated or the directories can't be read.
pub fn differing(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let generated = files(root)?;
    let mut differing: Vec<PathBuf> = generated
        .iter()
        .filter(|(path, content)| {
            std::fs::read_to_string(root.join(path)).ok().as_deref() != Some(content)
        })
        .map(|(path, _)| path.clone())
        .collect();
    differing.extend(surplus(root, &generated)?);
    Ok(differing)
}

/// Returns files in our directories that are no longer generated: leftovers of a renamed file would still be applied.
fn surplus(root: &Path, generated: &BTreeMap<PathBuf, String>) -> anyhow::Result<Vec<PathBuf>> {
    let mut surplus = Vec::new();
    let owned = OWNED.iter().map(|directory| root.join(directory));
    for directory in owned.filter(|directory| directory.is_dir()) {
        for path in files_below(&directory)? {
            if let Ok(path) = path.strip_prefix(root)
                && !generated.contains_key(path)
            {
                surplus.push(path.to_owned());
            }
        }
    }
    surplus.sort();
    Ok(surplus)
}
