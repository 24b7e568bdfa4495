//! Shell completion. kubectl runs `kubectl_complete-trainyard`, a link to this program, with the words after `kubectl trainyard`. It reads one
//! candidate per line, with a description after a tab, and a last line `:DIRECTIVE`.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use clap::{Arg, Command, CommandFactory as _};

use crate::cli::{Cli, Target};
use crate::cluster::Cluster;
use crate::job::Job;
use crate::out::{self, Line};

/// The name of the link.
const LINK: &str = "kubectl_complete-trainyard";
/// The shell completes file names.
const FILES: &str = ":0";
/// The shell completes no file names.
const NO_FILES: &str = ":4";
/// The maximum time for reading the jobs: the user waits for it.
const PATIENCE: Duration = Duration::from_secs(3);

/// What the last word can be.
#[derive(Debug, PartialEq, Eq)]
enum Expected {
    /// One of these words; each has a description, which may be empty.
    Words(Vec<(String, String)>),
    /// A job.
    Job,
    /// A file.
    File,
    /// Anything else.
    Other,
}

/// True if the program was started through the link.
pub fn is_requested(program: &OsStr) -> bool {
    Path::new(program).file_name() == Some(OsStr::new(LINK))
}

/// Prints the candidates for the last word.
pub async fn print(words: &[String]) -> Result<()> {
    let (last, before) = words
        .split_last()
        .map_or(("", words), |(last, before)| (last.as_str(), before));
    let (expected, flags) = expected(before, last);
    let (candidates, directive) = match expected {
        Expected::Words(words) => (words, NO_FILES),
        Expected::Job => (jobs(flags, last).await, NO_FILES),
        Expected::File => (Vec::new(), FILES),
        Expected::Other => (Vec::new(), NO_FILES),
    };
    let fitting = candidates.iter().filter(|(word, _)| word.starts_with(last));
    let mut lines: Vec<Line> = fitting
        .map(|(word, about)| Line::plain(format!("{word}\t{about}")))
        .collect();
    lines.push(Line::plain(directive.to_owned()));
    out::print(&lines)
}

/// Returns what the word after these words can be, and the values of the flags among them, by name.
fn expected(before: &[String], last: &str) -> (Expected, BTreeMap<String, String>) {
    let mut root = Cli::command();
    // Adds the global flags to the verbs.
    root.build();
    let (mut command, mut positions, mut flags) = (&root, 0, BTreeMap::new());
    let mut open: Option<&Arg> = None;
    for word in before {
        if let Some(flag) = open.take() {
            flags.insert(flag.get_id().to_string(), word.clone());
        } else if word.starts_with('-') {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word.as_str(), None),
            };
            let flag = flag(command, name).filter(|flag| flag.get_action().takes_values());
            match (flag, value) {
                (Some(flag), Some(value)) => {
                    flags.insert(flag.get_id().to_string(), value.to_owned());
                }
                (flag, _) => open = flag,
            }
        } else if let Some(verb) = command.find_subcommand(word) {
            command = verb;
        } else {
            positions += 1;
        }
    }
    let expected = if let Some(flag) = open {
        value_of(flag)
    } else if last.starts_with('-') {
        let flags = command.get_arguments().filter_map(|arg| {
            let help = arg.get_help().map(ToString::to_string);
            Some((format!("--{}", arg.get_long()?), help.unwrap_or_default()))
        });
        Expected::Words(flags.collect())
    } else if command.has_subcommands() {
        let verbs = command.get_subcommands().map(|verb| {
            let about = verb.get_about().map(ToString::to_string);
            (verb.get_name().to_owned(), about.unwrap_or_default())
        });
        Expected::Words(verbs.collect())
    } else if command.get_positionals().count() > positions {
        Expected::Job
    } else {
        Expected::Other
    };
    (expected, flags)
}

/// Returns the flag of a command with this name: `--output` or `-o`.
fn flag<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|arg| {
        let long = arg.get_long().map(|long| format!("--{long}"));
        let short = arg.get_short().map(|short| format!("-{short}"));
        [long, short].iter().flatten().any(|own| own == name)
    })
}

fn value_of(flag: &Arg) -> Expected {
    if ["filename", "kubeconfig"].contains(&flag.get_id().as_str()) {
        return Expected::File;
    }
    let values = flag.get_possible_values();
    let words = values
        .iter()
        .map(|value| (value.get_name().to_owned(), String::new()));
    match values.len() {
        0 => Expected::Other,
        _ => Expected::Words(words.collect()),
    }
}

/// Returns the jobs of the namespace. An error must not disturb the shell's line: no jobs are returned.
async fn jobs(mut flags: BTreeMap<String, String>, last: &str) -> Vec<(String, String)> {
    let target = Target {
        namespace: flags.remove("namespace"),
        context: flags.remove("context"),
        kubeconfig: flags.remove("kubeconfig").map(PathBuf::from),
    };
    let read = async { Cluster::connect(&target).await?.jobs().await };
    match tokio::time::timeout(PATIENCE, read).await {
        Ok(Ok((jobs, _))) => job_words(&jobs, last.contains('/')),
        _ => Vec::new(),
    }
}

/// Returns `NAME`, or `KIND/NAME` if asked for or if jobs of several kinds have that name, with the kind as the description.
fn job_words(jobs: &[Job], with_kind: bool) -> Vec<(String, String)> {
    let mut words: Vec<(String, String)> = jobs
        .iter()
        .map(|job| {
            let (name, kind) = (job.name(), job.kind.name());
            let is_shared = jobs.iter().filter(|other| other.name() == name).count() > 1;
            let word = if with_kind || is_shared {
                format!("{}/{name}", kind.to_ascii_lowercase())
            } else {
                name.to_owned()
            };
            (word, kind.to_owned())
        })
        .collect();
    words.sort();
    words
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn after(line: &str) -> (Expected, BTreeMap<String, String>) {
        let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let last = words.pop().unwrap();
        expected(&words, &last)
    }

    fn words(line: &str) -> Vec<String> {
        match after(line).0 {
            Expected::Words(words) => words.into_iter().map(|(word, _)| word).collect(),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn verbs_flags_and_formats_are_completed() {
        let verbs = words("");
        assert!(verbs.contains(&"why".to_owned()) && verbs.contains(&"logs".to_owned()));
        assert_eq!(words("-n team-a "), verbs);
        let flags = words("logs ddp -");
        for flag in ["--rank", "--follow", "--namespace"] {
            assert!(flags.contains(&flag.to_owned()), "{flags:?}");
        }
        assert_eq!(words("why -o "), ["text", "wide", "json", "yaml"]);
        assert_eq!(words("render --output "), ["json", "yaml"]);
    }

    #[test]
    fn a_job_is_completed_once_and_a_file_by_the_shell() {
        let (expected, flags) = after("why -n team-a --context=prod d");
        assert_eq!(expected, Expected::Job);
        assert_eq!(flags["namespace"], "team-a");
        assert_eq!(flags["context"], "prod");
        assert_eq!(after("logs --follow ").0, Expected::Job);
        assert_eq!(after("why ddp ").0, Expected::Other);
        assert_eq!(after("logs ddp --rank ").0, Expected::Other);
        assert_eq!(after("run -f ").0, Expected::File);
        assert_eq!(after("render ").0, Expected::Other);
        assert_eq!(after("why --kubeconfig ").0, Expected::File);
    }

    #[test]
    fn a_name_that_several_kinds_have_is_completed_with_its_kind() {
        let job = |kind: &str, name: &str| {
            crate::tests::job(json!({
                "apiVersion": "kubeflow.org/v1", "kind": kind, "metadata": { "name": name },
            }))
        };
        let jobs = [job("TFJob", "a"), job("PyTorchJob", "a"), job("TFJob", "b")];
        let of = |with_kind: bool| -> Vec<String> {
            let words = job_words(&jobs, with_kind).into_iter();
            words.map(|(word, _)| word).collect()
        };
        assert_eq!(of(false), ["b", "pytorchjob/a", "tfjob/a"]);
        assert_eq!(of(true), ["pytorchjob/a", "tfjob/a", "tfjob/b"]);
    }
}
