//! Runs the program without a cluster.

// A panic here fails a test.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn plugin(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kubectl-trainyard"))
        .args(args)
        .env_remove("KUBECONFIG")
        .env("HOME", "/nonexistent")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn examples() -> Vec<PathBuf> {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let kinds = std::fs::read_dir(all).unwrap();
    let kinds = kinds.map(|kind| kind.unwrap().path());
    let kinds = kinds.filter(|kind| kind.is_dir());
    let files = kinds.flat_map(|kind| std::fs::read_dir(kind).unwrap());
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.retain(|path| {
        let is_manifest = path.extension().is_some_and(|e| e == "yaml");
        let text = if is_manifest {
            std::fs::read_to_string(path).unwrap()
        } else {
            String::new()
        };
        // Others are scripts, volumes and queues. A schedule has no pods.
        let is_job = text.contains("apiVersion: kubeflow.org/")
            || text.contains("apiVersion: sparkoperator.k8s.io/");
        is_job && !text.contains("kind: ScheduledSparkApplication")
    });
    files.sort();
    files
}

#[test]
fn help_documents_the_exit_codes_of_every_verb() {
    for verb in [
        &["--help"][..],
        &["wait", "--help"],
        &["run", "--help"],
        &["render", "--help"],
    ] {
        let output = plugin(verb);
        let help = text(&output.stdout);
        for code in ["\n  0    ", "\n  1    ", "\n  2    ", "\n  124  "] {
            assert!(help.contains(code), "{help}");
        }
    }
}

#[test]
fn every_example_is_rendered() {
    let examples = examples();
    assert!(examples.len() >= 12, "{examples:?}");
    for path in examples {
        let output = plugin(&["render", "-f", path.to_str().unwrap()]);
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{}: {err}", path.display());
        let out = text(&output.stdout);
        assert!(
            out.starts_with("---\n") && out.contains("\nkind: Pod\n"),
            "{}: {out}",
            path.display()
        );
        let output = plugin(&["render", "-o", "json", "-f", path.to_str().unwrap()]);
        let list: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let count = list["items"].as_array().map(Vec::len);
        assert_eq!(
            count,
            Some(out.lines().filter(|line| *line == "---").count())
        );
    }
}

#[test]
fn a_job_that_the_operator_would_reject_ends_with_1_and_nothing_on_standard_output() {
    let path = std::env::temp_dir().join(format!("refused-{}.json", std::process::id()));
    let job = r#"{ "apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": { "name": "tf" }, "spec": { "tfReplicaSpecs": {} } }"#;
    std::fs::write(&path, job).unwrap();
    let output = plugin(&["render", "-f", path.to_str().unwrap()]);
    std::fs::remove_file(&path).unwrap();
    let err = text(&output.stderr);
    assert_eq!(
        (output.status.code(), output.stdout.len()),
        (Some(1), 0),
        "{err}"
    );
    assert!(
        err.lines()
            .last()
            .unwrap()
            .starts_with("refused: spec.tfReplicaSpecs"),
        "{err}"
    );
}

#[test]
fn through_its_link_it_completes_words_for_kubectl() {
    let link = std::env::temp_dir().join(format!("complete-{}", std::process::id()));
    std::fs::create_dir(&link).unwrap();
    let program = link.join("kubectl_complete-trainyard");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_kubectl-trainyard"), &program).unwrap();
    let complete = |words: &[&str]| {
        let output = Command::new(&program)
            .args(words)
            .env("KUBECONFIG", "/nonexistent")
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        text(&output.stdout).to_owned()
    };
    assert!(complete(&["wh"]).starts_with("why\tExplain"));
    assert!(complete(&["wh"]).ends_with("\n:4\n"));
    assert_eq!(complete(&["why", "-o", "y"]), "yaml\t\n:4\n");
    assert_eq!(complete(&["run", "-f", ""]), ":0\n");
    // No cluster can be reached.
    assert_eq!(complete(&["logs", ""]), ":4\n");
    std::fs::remove_dir_all(&link).unwrap();
}

#[test]
fn errors_end_with_2_and_one_line_that_says_what_to_do() {
    let rows: [(&[&str], &str); 4] = [
        (
            &["why", "ddp"],
            "no cluster is configured: set KUBECONFIG or use --kubeconfig",
        ),
        (
            &["why", "--kubeconfig", "/nonexistent/config"],
            "check --kubeconfig and --context",
        ),
        (
            &["render", "-f", "/nonexistent/job.yaml"],
            "/nonexistent/job.yaml can't be read",
        ),
        (&["run", "-f", "/dev/null"], "it is empty"),
    ];
    for (args, part) in rows {
        let output = plugin(args);
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{err}");
        assert!(
            err.starts_with("error: ") && err.lines().count() == 1 && err.contains(part),
            "{err}"
        );
        assert!(!err.contains('\u{1b}'), "{err:?}");
    }
}
