//! Operator images: one static program and its licences in an otherwise empty file system.

use std::env::consts;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::licences::{self, Part};
use crate::{cross, paths, process};

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

/// Cargo's variable for rustc's flags.
const FLAGS: &str = "CARGO_ENCODED_RUSTFLAGS";

/// The kubectl plugin.
pub const PLUGIN: &str = "kubectl-trainyard";

/// How programs are built.
#[derive(Clone, Copy, Debug)]
pub enum Build {
    /// As shipped: for images, demos, benchmarks and the deep tests.
    Shipped,
    /// As shipped, for arm64, from an amd64 machine.
    Arm64,
    /// For the tests: takes a seventh of the time, and panics on overflows and failed debug assertions.
    Checked,
}

impl Build {
    /// Returns the target triple of its programs.
    pub fn triple(self) -> String {
        match self {
            Self::Shipped | Self::Checked => paths::triple(),
            Self::Arm64 => cross::TRIPLE.to_owned(),
        }
    }

    /// Returns the architecture's name in images.
    pub fn architecture(self) -> &'static str {
        match (self, consts::ARCH) {
            (Self::Arm64, _) | (_, "aarch64") => "arm64",
            (_, "x86_64") => "amd64",
            (_, other) => other,
        }
    }

    /// Returns the compiler of its programs.
    pub fn compiler(self) -> &'static str {
        match self {
            Self::Shipped | Self::Checked => "rustc",
            Self::Arm64 => cross::compiler().unwrap_or("rustc"),
        }
    }

    /// Returns a cargo command for its programs.
    fn cargo<S: AsRef<OsStr>>(self, args: impl IntoIterator<Item = S>) -> Command {
        let mut cargo = static_cargo(args);
        if let Self::Arm64 = self {
            cross::set(&mut cargo);
            cargo.env(FLAGS, flags(cross::flags()));
        }
        cargo
    }
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
fn flags(others: Vec<String>) -> String {
    let mut flags = others;
    flags.push("-Ctarget-feature=+crt-static".to_owned());
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
        .env(FLAGS, flags(Vec::new()));
    if let Ok(build) = process::quiet(&mut process::command(
        "git",
        ["rev-parse", "--short=12", "HEAD"],
    )) {
        cargo.env("TRAINYARD_BUILD", build.trim());
    }
    cargo
}

/// Builds the shipped binaries of the named operators for this machine.
pub fn binaries(operators: &[&str]) -> Result<(), String> {
    binaries_for(Build::Shipped, operators)
}

/// Builds the shipped binaries of the named operators.
pub fn binaries_for(how: Build, operators: &[&str]) -> Result<(), String> {
    let mut args = vec!["build", "--locked", "--release"];
    for operator in operators {
        args.extend(["-p", operator]);
    }
    process::run(&mut how.cargo(args))
}

/// Builds the shipped kubectl plugin. Its profile is its own.
pub fn plugin(how: Build) -> Result<(), String> {
    let args = ["build", "--locked", "--profile", "plugin", "-p", PLUGIN];
    process::run(&mut how.cargo(args))
}

/// Returns the path of the built plugin.
pub fn plugin_path(how: Build) -> PathBuf {
    let directory = paths::binaries(how);
    match how {
        Build::Shipped | Build::Arm64 => directory.with_file_name("plugin").join(PLUGIN),
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
    let parts = licences::write(operator, how, &licences)?;
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

/// Joins the archives of one image for several architectures. The result is an OCI image layout.
pub fn join(archives: &[PathBuf], reference: &str, out: &Path) -> Result<(), String> {
    let tool = process::built("e2e/image/build")?;
    let mut join = process::command(tool, ["index", "--name", reference, "--out"]);
    process::run(join.arg(out).args(archives))
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
