//! Checks that the tests leave no process, mount, network device or control group behind.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::stages::Run;
use crate::{paths, process};

/// Terminating processes may need this time.
const PATIENCE: Duration = Duration::from_secs(10);

/// Fails if the tests' cluster left anything behind, or a process of this checkout's tests still runs.
pub fn check(run: &Run, name: &str) -> Result<(), String> {
    let node = process::built("e2e/cluster/build")?;
    let args = ["cluster", "leftovers", "--name", name];
    run.run(&mut process::command(&node, args))?;
    let begun = Instant::now();
    loop {
        let left = processes();
        if left.is_empty() {
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            return Err(format!(
                "processes of the tests are left:\n{}",
                left.join("\n")
            ));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Returns control planes and operators that tests of this checkout started: their arguments contain our target directory.
fn processes() -> Vec<String> {
    let target = paths::target().display().to_string();
    let ours = ["trainyard-node", "-operator"];
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let command = fs::read(entry.path().join("cmdline")).ok()?;
            let words: Vec<String> = command
                .split(|b| *b == 0)
                .map(|w| String::from_utf8_lossy(w).into_owned())
                .collect();
            let program = Path::new(words.first()?)
                .file_name()?
                .to_string_lossy()
                .into_owned();
            let told = words.iter().any(|w| w.contains(&target));
            // The user's own clusters have their state directory elsewhere.
            (told && ours.iter().any(|name| program.ends_with(name))).then(|| {
                format!(
                    "{}: {}",
                    entry.file_name().to_string_lossy(),
                    words.join(" ")
                )
            })
        })
        .collect()
}
