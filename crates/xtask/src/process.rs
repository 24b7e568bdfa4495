//! Runs other programs.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Returns a command that runs in the repository's root.
pub fn command<S: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    args: impl IntoIterator<Item = S>,
) -> Command {
    let mut command = Command::new(program);
    command.args(args).current_dir(crate::paths::root());
    command
}

/// Runs a command with our standard output and error.
pub fn run(command: &mut Command) -> Result<(), String> {
    let shown = show(command);
    let status = command.status().map_err(|e| format!("{shown}: {e}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{shown}: {status}"))
    }
}

/// Runs a command and returns its standard output; it has our standard error.
pub fn output(command: &mut Command) -> Result<String, String> {
    let shown = show(command);
    let out = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("{shown}: {e}"))?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    if out.status.success() {
        Ok(text)
    } else {
        Err(format!("{shown}: {}\n{text}", out.status))
    }
}

/// Runs a command quietly; the error contains its output.
pub fn quiet(command: &mut Command) -> Result<String, String> {
    let shown = show(command);
    let out = command.output().map_err(|e| format!("{shown}: {e}"))?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    if out.status.success() {
        return Ok(text);
    }
    Err(format!(
        "{shown}: {}\n{text}{}",
        out.status,
        String::from_utf8_lossy(&out.stderr)
    ))
}

/// Runs one of our scripts, which builds a program if needed and prints its path.
pub fn built(script: &str) -> Result<String, String> {
    let script = crate::paths::root().join(script);
    Ok(output(&mut command(&script, [] as [&str; 0]))?
        .trim()
        .to_owned())
}

/// Returns a go command with the flags of our builds.
pub fn go<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    command(crate::paths::root().join("e2e/go"), args)
}

/// Returns the path of a tool from crates.io, which it installs into the cache first if needed.
///
/// It is built without optimization: the tools run for seconds.
pub fn cargo_tool(name: &str, version: &str, options: &[&str]) -> Result<PathBuf, String> {
    let root = crate::paths::cache().join(format!("{name}-{version}"));
    let tool = root.join("bin").join(name);
    if !tool.exists() {
        let args = [
            "install",
            "--quiet",
            "--locked",
            "--debug",
            name,
            "--version",
            version,
        ];
        quiet(
            command("cargo", args)
                .env("CARGO_PROFILE_DEV_DEBUG", "false")
                .args(options)
                .arg("--root")
                .arg(&root),
        )?;
    }
    Ok(tool)
}

/// Returns whether this process is root on Debian: then it installs missing packages without asking.
pub fn may_install() -> bool {
    let root = quiet(&mut command("id", ["-u"])).is_ok_and(|id| id.trim() == "0");
    root && Path::new("/etc/debian_version").exists()
}

fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|w| w.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}
