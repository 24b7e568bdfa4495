//! Paths of the repository and its build results.

use std::env;
use std::path::{Path, PathBuf};

use crate::cross;
use crate::image::Build;

/// The repository's root.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

/// Cargo's target directory.
pub fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The cache of the machine: the cluster's program, image layers, imported images.
pub fn cache() -> PathBuf {
    if let Some(told) = env::var_os("TRAINYARD_CACHE") {
        return told.into();
    }
    let base = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home =
        || PathBuf::from(env::var_os("HOME").unwrap_or_else(|| "/root".into())).join(".cache");
    base.unwrap_or_else(home).join("trainyard")
}

/// The target triple of this machine's operators: a static program needs no other file in its image.
pub fn triple() -> String {
    format!("{}-unknown-linux-gnu", env::consts::ARCH)
}

/// The directory of static programs for a build.
pub fn binaries(build: Build) -> PathBuf {
    let (target, profile) = match build {
        Build::Shipped => (target(), "release"),
        Build::Arm64 => (cross::target(), "release"),
        Build::Checked => (target(), "debug"),
    };
    target.join(build.triple()).join(profile)
}

/// Returns all files below a directory, relative to it and in order.
pub fn files_below(directory: &Path) -> Result<Vec<String>, String> {
    let found = crate::process::output(
        crate::process::command("find", [".", "-type", "f"]).current_dir(directory),
    )?;
    let found = found.lines().map(|line| line.trim_start_matches("./"));
    let mut files: Vec<String> = found.map(str::to_owned).collect();
    files.sort();
    Ok(files)
}
