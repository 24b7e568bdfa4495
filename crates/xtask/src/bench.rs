//! `make bench`: compares each shipped binary with a floor client on a real API server. It doesn't need root.

use std::{env, fs};

use crate::image::{self, Build, PLUGIN};
use crate::{paths, process};

/// The benchmark program.
const BENCH: &str = "training-bench";

/// Builds everything as shipped and runs the bench. The bench's own variables pass through.
pub fn run() -> Result<(), String> {
    let node = process::built("e2e/cluster/build")?;
    // Built separately: together with the bench they would get the bench's features and differ from the shipped ones.
    // Builds all of them for any choice: results belong to a build, and the table shows those of every kind.
    image::binaries(image::OPERATORS)?;
    image::plugin(image::Build::Shipped)?;
    // Like the operators, whose dependencies the bench shares.
    let bench = ["build", "--locked", "--release", "-p", BENCH];
    process::run(&mut image::static_cargo(bench))?;
    let binaries = paths::binaries(Build::Shipped);
    let small = image::plugin_path(Build::Shipped);
    let copy = binaries.join(PLUGIN);
    // Cargo's own file of this name is a hard link, which a copy would write through.
    let _ = fs::remove_file(&copy);
    fs::copy(&small, &copy).map_err(|e| format!("{}: {e}", small.display()))?;
    let mut bench = process::command(binaries.join(BENCH), [] as [&str; 0]);
    // As in the shipped Deployments; the floor client gets it too.
    bench
        .env("MALLOC_ARENA_MAX", "1")
        .env("MALLOC_MMAP_THRESHOLD_", "131072")
        .env("TRAINYARD_NODE", node);
    if env::var_os("TRAINYARD_OPERATOR_BIN_DIR").is_none() {
        bench.env("TRAINYARD_OPERATOR_BIN_DIR", binaries);
    }
    process::run(&mut bench)
}
