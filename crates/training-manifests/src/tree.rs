//! Walks the repository's files.

use std::path::{Path, PathBuf};

use anyhow::Context;

/// Returns all files below a directory, sorted by path.
///
/// # Errors
/// If a directory can't be read.
pub fn files_below(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        let entries =
            std::fs::read_dir(&directory).with_context(|| directory.display().to_string())?;
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                open.push(path);
            } else {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}
