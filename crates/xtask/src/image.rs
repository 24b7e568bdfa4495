//! Operator images: one static program and its licences in an otherwise empty file system.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::licences::{self, Part};
use crate::{paths, process};

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

/// The kubectl plugin.
pub const PLUGIN: &str = "kubectl-trainyard";

/// How programs are built.
#[derive(Clone, Copy, Debug)]
pub enum Build {
    /// As shipped: for images, demos, benchmarks and the deep tests.
    Shipped,
    /// For the tests: takes a seventh of the time, and panics on overflows and failed debug assertions.
    Checked,
}

/// Returns the directories of this machine that programs are compiled from: the checkout, what is built, and Cargo's own.
pub fn sources() -> Vec<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let all = [Some(paths::root()), Some(paths::target()), home];
    all.into_iter().flatten().collect()
}

/// Returns rustc's flags for static programs, as Cargo encodes them. The programs contain no path of this machine, so that two
/// checkouts give the same bytes.
fn flags() -> String {
    let mut flags = vec!["-Ctarget-feature=+crt-static".to_owned()];
    let remapped = sources().into_iter().enumerate();
    flags.extend(
        remapped.map(|(number, path)| {
            format!("--remap-path-prefix={}=/source-{number}", path.display())
        }),
    );
    flags.join("\x1f")
}

/// Returns a cargo command that builds static programs: their images need neither a C library nor a shell.
pub fn static_cargo<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut cargo = process::command("cargo", args);
    cargo
        .env("CARGO_BUILD_TARGET", paths::triple())
        .env("CARGO_ENCODED_RUSTFLAGS", flags());
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

/// Builds the shipped kubectl plugin. Its profile is its own.
pub fn plugin() -> Result<(), String> {
    let args = ["build", "--locked", "--profile", "plugin", "-p", PLUGIN];
    process::run(&mut static_cargo(args))
}

/// Returns the path of the built plugin.
pub fn plugin_path(how: Build) -> PathBuf {
    let directory = paths::binaries(how);
    match how {
        Build::Shipped => directory.with_file_name("plugin").join(PLUGIN),
        Build::Checked => directory.join(PLUGIN),
    }
}

/// Packs the built binary of an operator as an image archive, under the name in the manifests.
pub fn pack(operator: &str, how: Build, tag: &str, out: &Path) -> Result<(), String> {
    pack_as(operator, how, &format!("trainyard/{operator}:{tag}"), out).map(drop)
}

/// Packs the built binary of an operator as an image archive with this reference. Returns what is linked into it.
pub fn pack_as(
    operator: &str,
    how: Build,
    reference: &str,
    out: &Path,
) -> Result<Vec<Part>, String> {
    let licences = licences::place(operator, how);
    let parts = licences::write(operator, &licences)?;
    let files = [
        (licences, "/licenses/THIRD-PARTY.txt"),
        (paths::root().join("LICENSE"), "/licenses/LICENSE"),
    ];
    let binary = paths::binaries(how).join(operator);
    archive(&binary, &files, reference, out)?;
    Ok(parts)
}

/// Packs one static program with additional files as an image archive, which `docker load` and tools for OCI layouts read.
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
