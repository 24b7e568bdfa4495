//! Operator images: one static file in an otherwise empty file system.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{paths, process};

/// Every operator there is.
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
    /// As they are shipped: images, demonstrations, benchmarks and the deep tests.
    Shipped,
    /// For the tests: in a seventh of the time, and what overflows or breaks an assertion of its own panics.
    Checked,
}

/// Cargo, for static programs: an image of one needs neither a C library nor a shell.
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

/// Builds the binary of every operator named, as it is shipped.
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
    archive(&paths::binaries(how).join(operator), &reference, out)
}

/// Packs one static program as a docker-archive.
pub fn archive(binary: &Path, reference: &str, out: &Path) -> Result<(), String> {
    let tool = process::built("e2e/image/build")?;
    let (binary, out) = (binary.display().to_string(), out.display().to_string());
    process::run(&mut process::command(
        tool,
        [
            "operator", "--binary", &binary, "--name", reference, "--out", &out,
        ],
    ))
}

/// Builds and packs an operator under the version that the manifests name.
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
