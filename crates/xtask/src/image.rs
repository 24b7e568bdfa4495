//! Operator images: one static file in an otherwise empty file system.

use std::path::{Path, PathBuf};

use crate::{paths, process};

/// Every operator there is.
pub const OPERATORS: &[&str] = &[
    "mpi-operator",
    "pytorch-operator",
    "tf-operator",
    "xgboost-operator",
];

/// Builds the shipped binary of every operator named.
///
/// One invocation and one profile for images, tests and benchmarks, so that figures speak of what is shipped.
pub fn binaries(operators: &[&str]) -> Result<(), String> {
    let triple = paths::triple();
    let mut args = vec!["build", "--release", "--locked", "--target", &triple];
    for operator in operators {
        args.extend(["-p", operator]);
    }
    let mut cargo = process::command("cargo", args);
    // Static, so that the image needs neither a C library nor a shell.
    cargo.env("RUSTFLAGS", "-C target-feature=+crt-static");
    if let Ok(build) = process::quiet(&mut process::command(
        "git",
        ["rev-parse", "--short=12", "HEAD"],
    )) {
        cargo.env("TRAINYARD_BUILD", build.trim());
    }
    process::run(&mut cargo)
}

/// Packs the built binary of an operator as a docker-archive.
pub fn pack(operator: &str, tag: &str, out: &Path) -> Result<(), String> {
    let reference = format!("trainyard/{operator}:{tag}");
    archive(&paths::release_binary(operator), &reference, out)
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
    pack(operator, env!("CARGO_PKG_VERSION"), &out)?;
    eprintln!(
        "{}: trainyard/{operator}:{}",
        out.display(),
        env!("CARGO_PKG_VERSION")
    );
    Ok(out)
}
