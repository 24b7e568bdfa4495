//! The published Python SDK, in its own Python environment in the cache.

use crate::process;

/// Lists missing packages, or installs them where that needs no confirmation.
pub fn prerequisites() -> Result<(), String> {
    let able = ["-c", "import ensurepip, venv"];
    if process::quiet(&mut process::command("python3", able)).is_ok() {
        return Ok(());
    }
    let install = "apt-get update -q && apt-get install -y -q --no-install-recommends python3-venv";
    if !process::may_install() {
        return Err(format!(
            "Python's virtual environments are missing; install them with: {install}"
        ));
    }
    process::run(&mut process::command("sh", ["-c", install]))
}

/// Returns the Python that has it; creates the environment if needed.
pub fn python() -> Result<String, String> {
    process::built("e2e/sdk/build")
}
