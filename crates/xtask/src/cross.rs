//! Programs for arm64 from an amd64 machine: by the compiler of the checkout if it has the standard library for arm64, else by
//! Debian's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{paths, process};

/// The target triple.
pub const TRIPLE: &str = "aarch64-unknown-linux-gnu";
/// The C compiler, which also links.
const CC: &str = "aarch64-linux-gnu-gcc";
/// Runs a program for arm64.
const EMULATOR: &str = "qemu-aarch64-static";
/// Debian's compiler.
pub const DEBIANS: &str = "/usr/bin/rustc";
/// The compiler of the checkout, and Debian's.
const COMPILERS: [&str; 2] = ["rustc", DEBIANS];
/// Debian's package of the C library. The cross compiler's own is older and gets no security updates.
const LIBC: &str = "libc6-dev:arm64";
/// Downloads and unpacks it. It is not installed, because that upgrades other packages of the machine.
const DOWNLOAD: &str = "apt-get download -q libc6-dev:arm64 && dpkg-deb -x *.deb .";
/// Tells apt of it.
const ADD: &str = "dpkg --add-architecture arm64 && apt-get update -q";
/// Its directory has this prefix, then its version.
const PREFIX: &str = "libc-";
/// Where the package has its libraries.
const LIBRARIES: &str = "usr/lib/aarch64-linux-gnu";
/// Installs what is missing.
const INSTALL: &str = "dpkg --add-architecture arm64 && apt-get update -q && apt-get install -y -q --no-install-recommends \
    rustc-web libstd-rust-web-dev:arm64 gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static";

/// Returns the compiler that has the standard library for arm64.
pub fn compiler() -> Option<&'static str> {
    let has = |rustc: &&str| {
        let library = ["--print", "target-libdir", "--target", TRIPLE];
        let library = process::quiet(&mut process::command(rustc, library));
        library.is_ok_and(|path| Path::new(path.trim()).is_dir())
    };
    COMPILERS.into_iter().find(has)
}

fn has(program: &str) -> bool {
    process::quiet(&mut process::command("which", [program])).is_ok()
}

/// Installs what is missing, or returns an error with the command that does.
pub fn prerequisites() -> Result<(), String> {
    let complete = || compiler().is_some() && has(CC);
    if !(complete() && has(EMULATOR)) && process::may_install() {
        process::run(&mut process::command("sh", ["-c", INSTALL]))?;
    }
    if complete() {
        return download_libc();
    }
    Err(format!(
        "a compiler or the standard library for arm64 is missing; set ARCHITECTURES=amd64, or install them: {INSTALL}"
    ))
}

/// Downloads the version of Debian's C library that apt would install, unless it is downloaded. Where apt has none, the cross
/// compiler's own is used.
fn download_libc() -> Result<(), String> {
    let mut version = candidate();
    if version.is_none() && process::may_install() {
        process::run(&mut process::command("sh", ["-c", ADD]))?;
        version = candidate();
    }
    let former = libc();
    let Some(version) = version else {
        if former.is_none() {
            eprintln!("apt has no {LIBC}: programs for arm64 get the cross compiler's C library");
        }
        return Ok(());
    };
    // Another version has another path, so that cargo links again.
    let directory = target().join(format!("{PREFIX}{version}"));
    if directory.is_dir() {
        return Ok(());
    }
    let new = target().join("new-libc");
    for old in former.iter().map(|(_, path)| path).chain([&new]) {
        let _ = fs::remove_dir_all(old);
    }
    fs::create_dir_all(&new).map_err(|e| format!("{}: {e}", new.display()))?;
    let mut download = process::command("sh", ["-c", DOWNLOAD]);
    process::run(download.current_dir(&new)).map_err(|why| {
        format!("{LIBC} can't be downloaded: {why}; run `{ADD}` first, or set ARCHITECTURES=amd64")
    })?;
    fs::rename(&new, &directory).map_err(|e| format!("{}: {e}", directory.display()))
}

/// Returns the version of Debian's C library that apt would install.
fn candidate() -> Option<String> {
    let mut policy = process::command("apt-cache", ["policy", LIBC]);
    let policy = process::quiet(policy.env("LC_ALL", "C")).ok()?;
    let mut lines = policy.lines();
    let version = lines.find_map(|line| line.trim().strip_prefix("Candidate: "))?;
    (version != "(none)").then(|| version.to_owned())
}

/// Returns the version and the directory of Debian's C library.
fn libc() -> Option<(String, PathBuf)> {
    let entries = fs::read_dir(target()).ok()?;
    entries.flatten().find_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        Some((name.strip_prefix(PREFIX)?.to_owned(), entry.path()))
    })
}

/// Returns the version of Debian's C library and the directory of its documents; `None` if the cross compiler's own is used.
pub fn debians_libc() -> Option<(String, PathBuf)> {
    libc().map(|(version, path)| (version, path.join("usr/share/doc/libc6-dev")))
}

/// Returns rustc's flags for linking.
pub fn flags() -> Vec<String> {
    let Some((_, path)) = libc() else {
        return Vec::new();
    };
    let libraries = path.join(LIBRARIES);
    ["B", "L"]
        .map(|flag| format!("-Clink-arg=-{flag}{}", libraries.display()))
        .to_vec()
}

/// Cargo's target directory for arm64. Another compiler would replace what is built for this machine.
pub fn target() -> PathBuf {
    paths::target().join("cross")
}

/// Sets the compilers of a cargo command.
pub fn set(cargo: &mut Command) {
    cargo
        .env("CARGO_BUILD_TARGET", TRIPLE)
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", CC)
        .env("CC_aarch64_unknown_linux_gnu", CC)
        .env("CARGO_TARGET_DIR", target());
    if let Some(compiler) = compiler() {
        cargo.env("RUSTC", compiler);
    }
}

/// Starts a program under emulation, if there is an emulator.
pub fn start(program: &Path) -> Result<(), String> {
    if !has(EMULATOR) {
        eprintln!(
            "{} was not started: there is no {EMULATOR}",
            program.display()
        );
        return Ok(());
    }
    let mut emulator = process::command(EMULATOR, [program]);
    process::quiet(emulator.arg("--version")).map(drop)
}
