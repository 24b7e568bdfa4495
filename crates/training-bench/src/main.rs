//! `make bench`: the operator beside a floor client that does the least that any client must do, on a real API server.
//!
//! ```text
//!   main      chooses, paces, keeps results      metric    what there is to measure
//!   stage     a fresh control plane per run      counts    requests per client, by flow schemas
//!   floor     the floor client                   bodies    what it writes: the operator's own bodies
//!   drive     plays the kubelet                  load      makes jobs, sees what becomes of them
//!   runs      timed runs                         life      the run that counts
//!   scale     a full store                       stats, report, store
//! ```

// A side and a size are about all there is here.
#![allow(clippy::similar_names)]
// The figures of these tests are exact.
#![cfg_attr(test, allow(clippy::float_cmp))]

mod bodies;
mod child;
mod counts;
mod drive;
mod floor;
mod http;
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

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::json;
use training_testkit::control_plane::{target_directory, workspace};
use training_testkit::operator;

use crate::drive::Script;
use crate::metric::{ALL, Metric};
use crate::size::Size;
use crate::store::Store;

/// `reduced` (the default), `full` or `smoke`.
const SIZE: &str = "BENCH";
/// Letters of the table's rows to measure; empty for all.
const ONLY: &str = "BENCH_ONLY";
/// With any value, earlier results are thrown away.
const FRESH: &str = "BENCH_FRESH";
/// Longest time one pair may take.
const PAIR: Duration = Duration::from_mins(15);
/// After so many times the budget nothing is begun any more, measured or not.
const AT_MOST: u32 = 2;
/// Runs of one metric that may fail before it is given up.
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
        ["floor", kubeconfig, namespace] => local.block_on(&runtime, async {
            let mut told = child::told();
            tokio::select! {
                result = floor::run(Path::new(kubeconfig), namespace) => result,
                _ = told.recv() => Ok(()),
            }
        }),
        ["drive", kubeconfig, namespace, run, succeed, hold] => {
            let script = Script {
                run_after: Duration::from_millis(run.parse()?),
                succeed_after: Duration::from_millis(succeed.parse()?),
                hold: *hold == "hold",
            };
            local.block_on(
                &runtime,
                drive::run(Path::new(kubeconfig), namespace, script),
            )
        }
        ["read", kubeconfig] => local.block_on(&runtime, scale::reader(Path::new(kubeconfig))),
        other => bail!("unknown arguments: {other:?}; run it by `make bench`"),
    }
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

async fn bench() -> Result<()> {
    let named = variable(SIZE);
    let size = Size::named(&named)
        .with_context(|| format!("{SIZE} is {named:?}, not reduced, full or smoke"))?;
    let store = Store::open(
        &target_directory()?,
        size.name,
        &operator::find(stage::OPERATOR)?,
    )?;
    if std::env::var_os(FRESH).is_some() {
        store.clear()?;
    }
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
    say(&format!(
        "{} run; results are kept in {}",
        size.name,
        store.dir().display()
    ));
    measure(&size, &store, begun, &say).await?;
    finish(&size, &store, &say)?;
    let only = variable(ONLY);
    for metric in ALL.into_iter().filter(|metric| metric.is_wanted(&only)) {
        ensure!(
            !store.read(metric.name())?.pairs.is_empty(),
            "{} has no result",
            metric.name()
        );
    }
    Ok(())
}

async fn measure(size: &Size, store: &Store, begun: Instant, say: &dyn Fn(&str)) -> Result<()> {
    let only = variable(ONLY);
    let wanted: Vec<Metric> = ALL
        .into_iter()
        .filter(|metric| metric.is_wanted(&only))
        .collect();
    ensure!(!wanted.is_empty(), "{ONLY} is {only:?}, which names no row");
    let mut failed: Vec<Metric> = Vec::new();
    for round in 1..=size.pairs.max(size.long_pairs) {
        for metric in &wanted {
            let mut record = store.read(metric.name())?;
            while record.pairs.len() < round
                && !metric.is_complete(&record, size)
                && !failed.contains(metric)
            {
                // Everything is measured once, even if that takes longer.
                let late = begun.elapsed() > size.budget && !record.pairs.is_empty();
                if late || begun.elapsed() > size.budget * AT_MOST {
                    say(&format!(
                        "{}: no time for more than {} pairs",
                        metric.name(),
                        record.pairs.len()
                    ));
                    failed.push(*metric);
                    break;
                }
                say(&format!(
                    "{}: pair {} of {}",
                    metric.name(),
                    record.pairs.len() + 1,
                    metric.pairs(size)
                ));
                let run = tokio::time::timeout(PAIR, metric.run(size, &mut record, say)).await;
                if let Err(error) = run.unwrap_or_else(|_| Err(anyhow::anyhow!("a hang"))) {
                    say(&format!("{}: {error:#}", metric.name()));
                    record.faults.push(format!("{error:#}"));
                    if record.faults.len() >= FAULTS {
                        failed.push(*metric);
                    }
                }
                store.write(metric.name(), &record)?;
            }
        }
    }
    Ok(())
}

/// Writes the table: to the terminal, as JSON, and, if the run was large enough to speak of, into the page.
fn finish(size: &Size, store: &Store, say: &dyn Fn(&str)) -> Result<()> {
    let rows = report::rows(store)?;
    let table = report::table(&rows);
    eprintln!("\n{table}");
    let mut faults = Vec::new();
    for metric in ALL {
        for fault in store.read(metric.name())?.faults {
            say(&format!("{}: a run did not count: {fault}", metric.name()));
            faults.push(format!("{}: {fault}", metric.name()));
        }
    }
    let machine = machine::describe();
    let outcomes: Vec<_> = rows
        .iter()
        .map(|row| json!({ "row": row, "outcome": row.outcome() }))
        .collect();
    let results = json!({
        "size": size.name, "date": bodies::now(), "machine": machine, "rows": outcomes, "faults": faults,
    });
    let file = store.dir().join("results.json");
    std::fs::write(&file, serde_json::to_vec_pretty(&results)?)?;
    say(&format!("results: {}", file.display()));
    if size.name == "smoke" {
        say("a smoke run says nothing about speed; docs/performance.md is left as it is");
        return Ok(());
    }
    let page = workspace().join("docs/performance.md");
    let note = format!(
        "\nMeasured {} on {machine}; {} run.\n\n{table}\n{}",
        bodies::now(),
        size.name,
        unmade(&faults)
    );
    std::fs::write(
        &page,
        report::insert(&std::fs::read_to_string(&page)?, &note)?,
    )?;
    say("the table is in docs/performance.md");
    Ok(())
}

fn unmade(faults: &[String]) -> String {
    if faults.is_empty() {
        return "In every run that counts, all jobs succeeded, each had exactly its four pods, and no pod was made twice.\n\n"
            .to_owned();
    }
    format!(
        "{} runs did not count, because a check of theirs failed; in all others, all jobs succeeded, each had exactly its \
         four pods, and no pod was made twice.\n\n",
        faults.len()
    )
}
