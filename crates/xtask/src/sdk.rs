//! The published Python SDK, in a Python environment of its own that is kept in the cache.

use crate::process;

/// Names what is missing for it, or installs it where that needs no question.
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

/// The Python that has it, made where needed.
pub fn python() -> Result<String, String> {
    process::built("e2e/sdk/build")
}
