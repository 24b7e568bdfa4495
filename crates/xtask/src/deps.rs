//! Licences, sources and banned crates, checked by cargo-deny as `deny.toml` says.

use crate::{paths, process};

/// Pinned, so that upgrades are deliberate.
const VERSION: &str = "0.20.2";

/// Checks the whole graph.
pub fn check() -> Result<(), String> {
    let root = paths::cache().join(format!("cargo-deny-{VERSION}"));
    let program = root.join("bin/cargo-deny");
    if !program.exists() {
        let install = ["install", "--quiet", "--locked", "--version", VERSION];
        let mut install = process::command("cargo", install);
        process::run(install.arg("--root").arg(&root).arg("cargo-deny"))?;
    }
    let checks = ["check", "licenses", "bans", "sources"];
    process::run(&mut process::command(program, checks))
}
