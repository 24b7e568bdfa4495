//! Runs the real `spark-submit` in a temporary copy of an image that shares this machine's network.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use training_testkit::control_plane::{built, workspace};

/// The path of the image tool, if it was built elsewhere.
const TOOL_VARIABLE: &str = "TRAINYARD_IMAGE";

/// Reads a line for each submission, and writes one at its end. Packages come from an offline repository.
const RUNNER: &str = r#"
import json, os, pathlib, subprocess, sys

def write(path, data):
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(path).write_bytes(data)

lib = "/root/.m2/repository/com/example/tools/1.0/tools-1.0"
write(lib + ".jar", b"PK\5\6" + bytes(18))
write(lib + ".pom", b"<project><modelVersion>4.0.0</modelVersion><groupId>com.example</groupId>"
      b"<artifactId>tools</artifactId><version>1.0</version></project>")
# Half of the time goes into a compiler that never pays off.
os.environ["SPARK_SUBMIT_OPTS"] = "-XX:TieredStopAtLevel=1"
for line in sys.stdin:
    job = json.loads(line)
    for path, text in job["files"].items():
        write(path, text.encode())
    done = subprocess.run(job["command"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=300)
    print(json.dumps({"code": done.returncode, "output": done.stdout.decode(errors="replace")}), flush=True)
"#;

/// A copy of an image that runs commands one after the other. It ends when this is dropped.
#[derive(Debug)]
pub struct Sandbox {
    child: Child,
    /// `None` when it should end.
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
}

/// The result of a command.
#[derive(Debug)]
pub struct Ended {
    /// Its exit code.
    pub code: i64,
    /// Its whole output.
    pub output: String,
}

fn cache() -> PathBuf {
    let told = std::env::var_os("TRAINYARD_CACHE").map(PathBuf::from);
    let base = std::env::var_os("XDG_CACHE_HOME").map(|dir| PathBuf::from(dir).join("trainyard"));
    let home = || {
        let home = std::env::var_os("HOME").unwrap_or_else(|| "/root".into());
        PathBuf::from(home).join(".cache/trainyard")
    };
    told.or(base).unwrap_or_else(home)
}

fn tool() -> Result<PathBuf> {
    if let Some(told) = std::env::var_os(TOOL_VARIABLE) {
        return Ok(told.into());
    }
    built("e2e/image/build", &[])
}

impl Sandbox {
    /// Opens a copy of an image; builds the image if it is missing.
    pub fn open(image: &str) -> Result<Self> {
        let mut child = Command::new(tool()?)
            .current_dir(workspace())
            .arg("run")
            .arg("--cache")
            .arg(cache())
            .args([image, "python3", "-c", RUNNER])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take().context("no input")?;
        let output = child.stdout.take().context("no output")?;
        Ok(Self {
            child,
            input: Some(input),
            output: BufReader::new(output).lines(),
        })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Runs a command with these files.
    pub fn run(&mut self, command: &[String], files: &BTreeMap<String, String>) -> Result<Ended> {
        let job = json!({ "command": command, "files": files });
        let input = self.input.as_mut().context("it was told to end")?;
        writeln!(input, "{job}")?;
        input.flush()?;
        let line = self.output.next().context("the sandbox ended")??;
        let answer: Value = serde_json::from_str(&line)?;
        Ok(Ended {
            code: answer["code"].as_i64().context("no code")?,
            output: answer["output"].as_str().unwrap_or_default().to_owned(),
        })
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // It ends at the end of its input, and removes its copy of the image.
        drop(self.input.take());
        let end = Instant::now() + Duration::from_secs(30);
        while Instant::now() < end && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
