//! A user's view of a job: kubectl's columns and description, and the events.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use serde_json::Value;
use training_testkit::job::{Condition, conditions, is_true};

use super::{Site, spark};
use crate::read;

/// Type, reason and message.
pub type Event = (String, String, String);

/// A job's line in `kubectl get -o wide`, without name and age.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The last condition's type.
    pub state: String,
    /// Ready or finished pods of all pods.
    pub ready: String,
    /// The number of restarts of containers or pods.
    pub restarts: String,
    /// The reason for which the job waits.
    pub waiting: String,
    /// The last condition's reason.
    pub reason: String,
}

impl Row {
    /// Creates the expected line of a job that waits for nothing.
    pub fn new(state: &str, ready: &str, restarts: u32, reason: &str) -> Self {
        Self {
            state: state.to_owned(),
            ready: ready.to_owned(),
            restarts: restarts.to_string(),
            waiting: String::new(),
            reason: reason.to_owned(),
        }
    }
}

impl Site {
    /// Runs kubectl in the namespace and returns its output.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        let mut all = vec!["-n", &self.namespace];
        all.extend(args);
        self.cluster.kubectl(&all)
    }

    /// Returns a job's line in `kubectl get -o wide`.
    pub fn row(&self, job: &str) -> Result<Row> {
        let text = self.kubectl(&["get", self.kind.plural, job, "-o", "wide"])?;
        let cells = table(&text)?;
        let cell = |name: &str| {
            let found = cells.iter().find(|cell| cell.0 == name);
            found.map(|cell| cell.1.to_owned())
        };
        let row = || {
            Some(Row {
                state: cell("STATE")?,
                ready: cell("READY")?,
                restarts: cell("RESTARTS")?,
                waiting: cell("WAITING")?,
                reason: cell("REASON")?,
            })
        };
        row().with_context(|| format!("a column is missing:\n{text}"))
    }

    /// Returns the output of `kubectl describe` for a job.
    pub fn describe(&self, job: &str) -> Result<String> {
        self.kubectl(&["describe", self.kind.plural, job])
    }

    /// Checks that the first line of `kubectl trainyard why` has a state and a cause. Parts of the cause stand in their order.
    pub fn assert_why(&self, job: &str, state: &str, cause: &[&str]) -> Result<()> {
        let target = format!("{}/{job}", self.kind.plural);
        let line = self.cluster.why(&self.namespace, &target)?;
        let head = format!("{job}  {}  {state} ", self.kind.name);
        let mut rest = line.strip_prefix(&head);
        for part in cause {
            rest = rest.and_then(|rest| Some(rest.split_once(part)?.1));
        }
        ensure!(
            rest.is_some(),
            "why says {line:?}, not {state:?} and {cause:?}"
        );
        if state == "FAILED" {
            let mut explained = self.explained.lock().map_err(|_| anyhow!("poisoned"))?;
            explained.insert(job.to_owned());
        }
        Ok(())
    }

    /// Returns the names of the jobs that have failed.
    pub(super) async fn failed_jobs(&self) -> Result<BTreeSet<String>> {
        let jobs = self.jobs.list().await?;
        let failed = jobs
            .iter()
            .filter(|job| is_true(job, "Failed") || spark::state(job) == "FAILED");
        Ok(failed.map(read::name).collect())
    }

    /// Checks a job's output in the API and in kubectl, and returns it.
    pub async fn assert_reads(
        &self,
        job: &str,
        expected: &[Condition],
        row: &Row,
    ) -> Result<Value> {
        let object = self.jobs.get(job).await?;
        let found = conditions(&object);
        ensure!(found == expected, "{job} has {found:?}, not {expected:?}");
        let shown = self.row(job)?;
        ensure!(
            shown == *row,
            "kubectl shows {shown:?} of {job}, not {row:?}"
        );
        let text = self.describe(job)?;
        for condition in expected {
            ensure!(text.contains(&condition.reason), "{condition:?}: {text}");
        }
        Ok(object)
    }

    /// Returns the events about a job, once there is one with this reason.
    pub async fn events(&self, job: &str, reason: &str) -> Result<Vec<Event>> {
        read::events_with(&self.client, &self.namespace, job, reason).await
    }
}

/// Returns the message of the only event of this type and reason.
pub fn said<'a>(events: &'a [Event], kind: &str, reason: &str) -> Result<&'a str> {
    let mut found = events
        .iter()
        .filter(|event| event.0 == kind && event.1 == reason);
    let first = found
        .next()
        .with_context(|| format!("no {kind} {reason} in {events:?}"))?;
    ensure!(found.next().is_none(), "more than one {reason}: {events:?}");
    Ok(&first.2)
}

/// Returns the text after a word in the last log line with that word.
pub fn after<'a>(log: &'a str, word: &str) -> Result<&'a str> {
    let found = log.lines().rev().find_map(|line| {
        let (_, rest) = line.split_once(word)?;
        rest.split_whitespace().next()
    });
    found.with_context(|| format!("no {word:?} in {log}"))
}

/// Returns the cells of kubectl's table for one object, by column. A cell may be empty.
pub fn table(text: &str) -> Result<Vec<(&str, &str)>> {
    let lines: Vec<&str> = text.lines().collect();
    let [head, row] = lines[..] else {
        bail!("two lines were expected:\n{text}");
    };
    let mut cells = Vec::new();
    let mut end = head.len().max(row.len());
    for name in head.split_whitespace().rev() {
        let begin = head.find(name).context("a column without a head")?;
        let cell = row.get(begin..end.min(row.len())).unwrap_or_default();
        cells.insert(0, (name, cell.trim()));
        end = begin;
    }
    Ok(cells)
}
