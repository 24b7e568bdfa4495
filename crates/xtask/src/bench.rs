//! `make bench`: the shipped binaries, each beside a floor client, on a real API server. No root is needed.

use std::env;

use crate::{image, paths, process};

/// The program that measures.
const BENCH: &str = "training-bench";

/// Builds everything in the release profile and runs it. Variables of the bench itself pass through.
pub fn run() -> Result<(), String> {
    let node = process::built("e2e/cluster/build")?;
    // Built alone: together with the bench they would get the bench's features, and would not be
    // what is shipped. All of them, whichever are chosen: results belong to a build, and the table shows those of every kind.
    image::binaries(image::OPERATORS)?;
    let triple = paths::triple();
    process::run(
        process::command(
            "cargo",
            [
                "build",
                "--release",
                "--locked",
                "--target",
                &triple,
                "-p",
                BENCH,
            ],
        )
        // The operators' flags, so that both share what they both need.
        .env("RUSTFLAGS", "-C target-feature=+crt-static"),
    )?;
    let binaries = paths::binaries(image::Build::Shipped);
    let mut bench = process::command(binaries.join(BENCH), [] as [&str; 0]);
    // As the shipped Deployments set it; the floor client gets it too.
    bench
        .env("MALLOC_ARENA_MAX", "1")
        .env("TRAINYARD_NODE", node);
    if env::var_os("TRAINYARD_OPERATOR_BIN_DIR").is_none() {
        bench.env("TRAINYARD_OPERATOR_BIN_DIR", binaries);
    }
    process::run(&mut bench)
}
