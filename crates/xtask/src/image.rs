//! Operator images: one static program and its licences in an otherwise empty file system.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{licences, paths, process};

/// All operators.
pub const OPERATORS: &[&str] = &[
    "jax-operator",
    "mpi-operator",
    "paddle-operator",
    "pytorch-operator",
    "spark-operator",
    "tf-operator",
    "xgboost-operator",
];

/// How programs are built.
#[derive(Clone, Copy, Debug)]
pub enum Build {
    /// As shipped: for images, demos, benchmarks and the deep tests.
    Shipped,
    /// For the tests: takes a seventh of the time, and panics on overflows and failed debug assertions.
    Checked,
}

/// Returns a cargo command that builds static programs: their images need neither a C library nor a shell.
pub fn static_cargo<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut cargo = process::command("cargo", args);
    cargo
        .env("CARGO_BUILD_TARGET", paths::triple())
        .env("RUSTFLAGS", "-C target-feature=+crt-static");
    if let Ok(build) = process::quiet(&mut process::command(
        "git",
        ["rev-parse", "--short=12", "HEAD"],
    )) {
        cargo.env("TRAINYARD_BUILD", build.trim());
    }
    cargo
}

/// Builds the shipped binaries of the named operators.
pub fn binaries(operators: &[&str]) -> Result<(), String> {
    let mut args = vec!["build", "--locked", "--release"];
    for operator in operators {
        args.extend(["-p", operator]);
    }
    process::run(&mut static_cargo(args))
}

/// Packs the built binary of an operator as a docker-archive.
pub fn pack(operator: &str, how: Build, tag: &str, out: &Path) -> Result<(), String> {
    let reference = format!("trainyard/{operator}:{tag}");
    let licences = licences::place(operator, how);
    licences::write(operator, &licences)?;
    let files = [
        (licences, "/licenses/THIRD-PARTY.txt"),
        (paths::root().join("LICENSE"), "/licenses/LICENSE"),
    ];
    let binary = paths::binaries(how).join(operator);
    archive(&binary, &files, &reference, out)
}

/// Packs one static program with additional files as a docker-archive.
pub fn archive(
    binary: &Path,
    files: &[(PathBuf, &str)],
    reference: &str,
    out: &Path,
) -> Result<(), String> {
    let tool = process::built("e2e/image/build")?;
    let mut pack = process::command(tool, ["operator", "--name", reference]);
    pack.arg("--binary").arg(binary).arg("--out").arg(out);
    for (from, to) in files {
        pack.arg("--file").arg(format!("{}={to}", from.display()));
    }
    process::run(&mut pack)
}

/// Builds and packs an operator with the version in the manifests.
pub fn operator(operator: &str, out: &str) -> Result<PathBuf, String> {
    binaries(&[operator])?;
    let out = PathBuf::from(out);
    pack(operator, Build::Shipped, env!("CARGO_PKG_VERSION"), &out)?;
    eprintln!(
        "{}: trainyard/{operator}:{}",
        out.display(),
        env!("CARGO_PKG_VERSION")
    );
    Ok(out)
}
