//! `make bench`: compares each operator with a floor client, which does the minimum that any client must do, on a real API server.
//!
//! ```text
//!   main      chooses, paces, keeps results      metric    the metrics
//!   stage     a fresh control plane per run      counts    requests per client, by flow schemas
//!   floor     the floor client                   bodies    its request bodies, the operator's own
//!   kind      the kinds of jobs                  size      the size of runs
//!   drive     simulates the kubelet              load      creates jobs and watches them
//!   runs      timed runs                         life      the run that counts requests
//!   scale     a full store                       template  texts with placeholders
//!   event     the cost of finding a pod, without a server
//!   why       kubectl trainyard why, and its requests alone
//!   application, submitter                       the bodies of a SparkApplication, and its floor client
//!   submission, killed                           comparison with spark-submit; runs with a killed operator
//!   machine, stats, report, store                figures, statistics, table and files
//! ```

// `side` and `size` are common names here.
#![allow(clippy::similar_names)]
// The figures of these tests are exact.
#![cfg_attr(test, allow(clippy::float_cmp))]

mod application;
mod bodies;
mod child;
mod counts;
mod drive;
mod event;
mod floor;
mod http;
mod killed;
mod kind;
mod life;
mod load;
mod machine;
mod metric;
mod report;
mod runs;
mod scale;
mod size;
mod stage;
mod stats;
mod store;
mod submission;
mod submitter;
mod template;
mod why;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::json;
use training_testkit::builders::Kind;
use training_testkit::control_plane::{target_directory, workspace};
use training_testkit::operator;

use crate::drive::Script;
use crate::metric::{ALL, Metric};
use crate::report::Row;
use crate::size::{Setting, Size};
use crate::store::{Record, Store};
use crate::submission::UNMEASURED;

/// The size: `reduced` (the default), `full` or `smoke`.
const SIZE: &str = "BENCH";
/// Letters of the table's rows to measure; empty for all.
const ONLY: &str = "BENCH_ONLY";
/// Words for the kinds of jobs to measure, such as `tf,xgboost`; empty for all.
const KIND: &str = "BENCH_KIND";
/// If set, only the comparison with the published Go operators is measured.
const PEERS: &str = "BENCH_PEERS";
/// If set, earlier results of the selected metrics are deleted.
const FRESH: &str = "BENCH_FRESH";
/// The time limit of a pair.
const PAIR: Duration = Duration::from_mins(15);
/// After this multiple of the budget no run starts, even for unmeasured metrics.
const AT_MOST: u32 = 2;
/// The number of failed runs after which a metric is skipped.
const FAULTS: usize = 3;

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let local = tokio::task::LocalSet::new();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        [] => local.block_on(&runtime, bench()),
        [role, kubeconfig, kind, rest @ ..] => {
            let helper = helper(role, Path::new(kubeconfig), kind::named(kind)?, rest);
            local.block_on(&runtime, helper)
        }
        other => bail!("unknown arguments: {other:?}; run it by `make bench`"),
    }
}

/// Runs this program as one of its own child processes.
async fn helper(role: &str, kubeconfig: &Path, kind: Kind, rest: &[&str]) -> Result<()> {
    match (role, rest) {
        ("floor", [namespace]) => {
            let mut told = child::told();
            tokio::select! {
                result = floor(kubeconfig, kind, namespace) => result,
                _ = told.recv() => Ok(()),
            }
        }
        ("drive", [namespace, run, succeed, hold]) => {
            let script = Script {
                run_after: Duration::from_millis(run.parse()?),
                succeed_after: Duration::from_millis(succeed.parse()?),
                hold: *hold == "hold",
            };
            drive::run(kubeconfig, kind, namespace, script).await
        }
        ("requests", paths) => why::requests(kubeconfig, paths).await,
        ("read", []) => scale::reader(kubeconfig, &kind).await,
        other => bail!("unknown arguments: {other:?}"),
    }
}

async fn floor(kubeconfig: &Path, kind: Kind, namespace: &str) -> Result<()> {
    if kind::submits(&kind) {
        submitter::run(kubeconfig, namespace).await
    } else {
        floor::run(kubeconfig, kind, namespace).await
    }
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

/// A kind of jobs with its stored results.
struct Subject {
    setting: Setting,
    store: Store,
}

impl Subject {
    fn open(target: &Path, kind: Kind, size: Size) -> Result<Self> {
        let binary = operator::find(kind.operator)?;
        Ok(Self {
            setting: Setting::new(kind, size),
            store: Store::open(target, size.name, kind::word(&kind), &binary)?,
        })
    }

    /// Forgets results that could not be measured last time, so that they are retried.
    fn forget_the_unmeasured(&self) -> Result<()> {
        for metric in ALL {
            let mut record = self.store.read(metric.name())?;
            let all = record.pairs.len();
            record
                .pairs
                .retain(|pair| !pair.floor.contains_key(UNMEASURED));
            if record.pairs.len() < all {
                self.store.write(metric.name(), &record)?;
            }
        }
        Ok(())
    }

    fn faults(&self) -> Result<Vec<String>> {
        let mut faults = Vec::new();
        for metric in ALL {
            let name = format!("{} {}", self.setting.kind.name, metric.name());
            let of = self.store.read(metric.name())?.faults;
            faults.extend(of.iter().map(|fault| format!("{name}: {fault}")));
        }
        Ok(faults)
    }
}

async fn bench() -> Result<()> {
    let named = variable(SIZE);
    let peers = std::env::var_os(PEERS).is_some();
    let size = Size::named(&named)
        .with_context(|| format!("{SIZE} is {named:?}, not reduced, full or smoke"))?;
    let chosen = kind::chosen(&variable(KIND)).context(KIND)?;
    let target = target_directory()?;
    // All kinds, because the table shows the results of each.
    let subjects = kind::KINDS
        .into_iter()
        .map(|kind| Subject::open(&target, kind, size))
        .collect::<Result<Vec<_>>>()?;
    let begun = Instant::now();
    let say = |text: &str| {
        let seconds = begun.elapsed().as_secs();
        eprintln!(
            "[{} +{}:{:02}] {text}",
            bodies::now(),
            seconds / 60,
            seconds % 60
        );
    };
    let measured = subjects
        .iter()
        .filter(|subject| chosen.contains(&subject.setting.kind));
    for subject in measured.clone() {
        if std::env::var_os(FRESH).is_some() {
            if peers {
                let none = Record::default();
                subject.store.write(Metric::Peers.name(), &none)?;
            } else {
                subject.store.clear()?;
            }
        }
        subject.forget_the_unmeasured()?;
        let (kind, dir) = (subject.setting.kind.name, subject.store.dir());
        say(&format!(
            "{kind}: {} run; results are kept in {}",
            size.name,
            dir.display()
        ));
    }
    let only = variable(ONLY);
    let mut tasks: Vec<Task<'_>> = if peers {
        measured.filter_map(Task::beside_peers).collect()
    } else {
        measured
            .flat_map(|subject| Task::all(subject, &only))
            .collect()
    };
    ensure!(
        !tasks.is_empty(),
        "{ONLY}={only} and {KIND} choose nothing that is measured"
    );
    if peers {
        for task in &tasks {
            // Before any run, because it takes minutes.
            kind::peer(&task.subject.setting.kind)?.built()?;
        }
    }
    measure(&size, &mut tasks, begun, &say).await?;
    if peers {
        beside_peers(&size, &subjects, &say)?;
    } else {
        finish(&size, &subjects, &say)?;
    }
    for task in &tasks {
        let measured = !task.record()?.pairs.is_empty();
        ensure!(measured, "{} has no result", task.name());
    }
    Ok(())
}

/// One metric of one kind.
struct Task<'a> {
    subject: &'a Subject,
    metric: Metric,
    given_up: bool,
}

impl<'a> Task<'a> {
    /// Returns the selected metrics of a kind.
    fn all(subject: &'a Subject, only: &str) -> Vec<Self> {
        let wanted = ALL
            .into_iter()
            .filter(|metric| metric.is_wanted(&subject.setting, only));
        wanted.map(|metric| Self::new(subject, metric)).collect()
    }

    /// Returns the comparison of a kind with its Go operator, if it is measured.
    fn beside_peers(subject: &'a Subject) -> Option<Self> {
        let peers = Metric::Peers;
        let is_of = peers.is_of(&subject.setting.kind);
        is_of.then(|| Self::new(subject, peers))
    }

    fn new(subject: &'a Subject, metric: Metric) -> Self {
        Self {
            subject,
            metric,
            given_up: false,
        }
    }

    fn name(&self) -> String {
        format!("{} {}", self.subject.setting.kind.name, self.metric.name())
    }

    fn record(&self) -> Result<Record> {
        self.subject.store.read(self.metric.name())
    }

    /// Runs until there are so many pairs or the time is over.
    async fn until(&mut self, pairs: usize, begun: Instant, say: &dyn Fn(&str)) -> Result<()> {
        let size = &self.subject.setting.size;
        let mut record = self.record()?;
        while record.pairs.len() < pairs.min(self.metric.pairs(size)) && !self.given_up {
            // Every metric is measured once, even if that takes longer.
            let late = begun.elapsed() > size.budget && !record.pairs.is_empty();
            if late || begun.elapsed() > size.budget * AT_MOST {
                let (name, done) = (self.name(), record.pairs.len());
                say(&format!("{name}: no time for more than {done} pairs"));
                self.given_up = true;
            } else {
                self.pair(&mut record, say).await?;
            }
        }
        Ok(())
    }

    async fn pair(&mut self, record: &mut Record, say: &dyn Fn(&str)) -> Result<()> {
        let (name, setting) = (self.name(), &self.subject.setting);
        let (next, of) = (record.pairs.len() + 1, self.metric.pairs(&setting.size));
        say(&format!("{name}: pair {next} of {of}"));
        let run = tokio::time::timeout(PAIR, self.metric.run(setting, record, say)).await;
        if let Err(error) = run.unwrap_or_else(|_| Err(anyhow::anyhow!("a hang"))) {
            say(&format!("{name}: {error:#}"));
            record.faults.push(format!("{error:#}"));
            self.given_up = record.faults.len() >= FAULTS;
        }
        self.subject.store.write(self.metric.name(), record)
    }
}

async fn measure(
    size: &Size,
    tasks: &mut [Task<'_>],
    begun: Instant,
    say: &dyn Fn(&str),
) -> Result<()> {
    for round in 1..=size.pairs.max(size.long_pairs).max(size.rounds) {
        for task in &mut *tasks {
            task.until(round, begun, say).await?;
        }
    }
    Ok(())
}

/// Writes the table to the terminal, as JSON, and, unless this is a smoke run, into the page.
fn finish(size: &Size, subjects: &[Subject], say: &dyn Fn(&str)) -> Result<()> {
    let (mut kinds, mut faults) = (Vec::new(), Vec::new());
    for subject in subjects {
        let rows = report::rows(&subject.store, &subject.setting)?;
        let unmade = subject.faults()?;
        keep(subject, &rows, &unmade, say)?;
        kinds.push((subject.setting.kind.name, rows));
        faults.extend(unmade);
    }
    let of = |page: &str| report::table(kinds.iter().map(|(kind, rows)| (*kind, &rows[..])), page);
    eprintln!("\n{}", of(""));
    for fault in &faults {
        say(&format!("a run did not count: {fault}"));
    }
    if size.name == "smoke" {
        say("a smoke run says nothing about speed; docs/performance.md is left as it is");
        return Ok(());
    }
    let page = std::fs::read_to_string(page())?;
    let known = kinds.iter().filter(|(_, rows)| report::is_known(rows));
    let known: Vec<&str> = known.map(|(kind, _)| *kind).collect();
    let run = run(size);
    let note = format!(
        "\n{}\n{}\n{}",
        report::origin(&known, kinds.len(), &run, &page, report::TABLE),
        of(&page),
        unmade(&faults)
    );
    publish(&page, report::TABLE, &note, say)
}

/// Writes the table beside the Go operators to the terminal, and, unless this is a smoke run, into the page.
fn beside_peers(size: &Size, subjects: &[Subject], say: &dyn Fn(&str)) -> Result<()> {
    let mut kinds = Vec::new();
    for subject in subjects {
        let kind = subject.setting.kind;
        if Metric::Peers.is_of(&kind) {
            kinds.push((kind, subject.store.read(Metric::Peers.name())?));
        }
    }
    let of = |page: &str| {
        let kinds = kinds.iter().map(|(kind, record)| (kind, record));
        report::peers::table(kinds, page)
    };
    eprintln!("\n{}", of(""));
    for (kind, record) in &kinds {
        for fault in &record.faults {
            say(&format!("a run did not count: {}: {fault}", kind.name));
        }
    }
    let known = kinds.iter().filter(|(_, record)| !record.pairs.is_empty());
    let known: Vec<&str> = known.map(|(kind, _)| kind.name).collect();
    if size.name == "smoke" || known.is_empty() {
        return Ok(());
    }
    let page = std::fs::read_to_string(page())?;
    let origin = report::origin(&known, kinds.len(), &run(size), &page, report::PEERS);
    let note = format!("\n{origin}\n{}\n", of(&page));
    publish(&page, report::PEERS, &note, say)
}

/// Returns the path of the page with the tables.
fn page() -> PathBuf {
    workspace().join("docs/performance.md")
}

/// Describes when, where and how much was measured.
fn run(size: &Size) -> String {
    let (now, machine) = (bodies::now(), machine::describe());
    format!("{now} on {machine}; {} run.", size.name)
}

/// Writes the page with this text between two marks.
fn publish(page: &str, marks: [&str; 2], text: &str, say: &dyn Fn(&str)) -> Result<()> {
    std::fs::write(self::page(), report::insert(page, marks, text)?)?;
    say("the table is in docs/performance.md");
    Ok(())
}

/// Stores the rows of one kind as JSON next to its results.
fn keep(subject: &Subject, rows: &[Row], faults: &[String], say: &dyn Fn(&str)) -> Result<()> {
    let outcomes: Vec<_> = rows
        .iter()
        .map(|row| json!({ "row": row, "outcome": row.outcome() }))
        .collect();
    let Setting { kind, size, .. } = &subject.setting;
    let results = json!({
        "size": size.name, "kind": kind.name, "date": bodies::now(), "machine": machine::describe(),
        "rows": outcomes, "faults": faults,
    });
    let file = subject.store.dir().join("results.json");
    std::fs::write(&file, serde_json::to_vec_pretty(&results)?)?;
    say(&format!("{}: results: {}", kind.name, file.display()));
    Ok(())
}

fn unmade(faults: &[String]) -> String {
    let checked = "all jobs succeeded, each had exactly its four pods (a launcher's Job for its pod, of a SparkApplication its driver), and no pod was made twice.\n\n";
    if faults.is_empty() {
        return format!("In every run that counts, {checked}");
    }
    format!(
        "{} runs did not count, because a check of theirs failed; in all others, {checked}",
        faults.len()
    )
}
