//! Where things are.

use std::env;
use std::path::{Path, PathBuf};

use crate::image::Build;

/// The top of the repository.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

/// Cargo's target directory.
pub fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// What is made once per machine: the cluster's program, image layers, imported images.
pub fn cache() -> PathBuf {
    if let Some(told) = env::var_os("TRAINYARD_CACHE") {
        return told.into();
    }
    let base = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home =
        || PathBuf::from(env::var_os("HOME").unwrap_or_else(|| "/root".into())).join(".cache");
    base.unwrap_or_else(home).join("trainyard")
}

/// The one target that operators are built for: a static program needs no other file in its image.
pub fn triple() -> String {
    format!("{}-unknown-linux-gnu", env::consts::ARCH)
}

/// Where static programs are, by how they are built.
pub fn binaries(build: Build) -> PathBuf {
    target().join(triple()).join(match build {
        Build::Shipped => "release",
        Build::Checked => "debug",
    })
}
