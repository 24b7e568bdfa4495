//! Measures start, memory and idleness of the operator with a store full of finished jobs.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::Method;
use serde::Deserialize;
use tokio::sync::Semaphore;
use training_testkit::builders::Kind;
use training_testkit::operator::OperatorProcess;

use crate::bodies::{Bodies, Resource, Values, manifest, now};
use crate::child::{self, Helper};
use crate::counts::{Counts, FLOOR};
use crate::drive::{Script, status};
use crate::floor::version_of;
use crate::http::{Api, Ask, CORE, JSON};
use crate::kind;
use crate::load::{Load, Processes};
use crate::machine::{self, Memory};
use crate::runs::{milliseconds, names, number};
use crate::size::{Setting, Size};
use crate::stage::{Audit, Client, START, Stage};
use crate::store::{Figures, Pair, Record, Side};

/// Objects per page, as in the operator's lists.
const PAGE: usize = 500;
/// The maximum number of parallel requests while the store is filled.
const FILLING: usize = 64;
/// The limit of a wait.
const HANG: Duration = Duration::from_mins(4);

/// Measures memory without jobs, starts with half of the store, memory with all of it, and idleness. The first pair holds the
/// single measurements; the others are starts.
pub async fn scale(setting: &Setting, say: &dyn Fn(&str)) -> Result<Record> {
    let size = &setting.size;
    let stage = Stage::start(setting.kind, Audit::Off, Side::Ours).await?;
    let mut once = Pair::default();
    let mut keep = |name: &str, value: f64| {
        once.ours.insert(name.to_owned(), value);
    };
    let mut operator = OperatorProcess::start(stage.operator().await?).await?;
    tokio::time::sleep(size.rest).await;
    let nothing = machine::memory(operator.pid())?;
    operator.terminate(Duration::from_secs(20)).await?;
    say(&format!("memory with nothing: {nothing:.1?}"));
    for (name, value) in named("nothing", nothing) {
        keep(&name, value);
    }

    let (half, whole) = size.finished;
    fill(&stage, 0..half).await?;
    say(&format!("{half} finished jobs are stored"));
    // Not measured: warms the API server's caches.
    read(&stage).await?;
    let mut starts = Vec::new();
    for number in 0..size.starts {
        let (floor, ours) = if number % 2 == 0 {
            let floor = read(&stage).await?;
            (floor, begin(&stage, half).await?)
        } else {
            let ours = begin(&stage, half).await?;
            (read(&stage).await?, ours)
        };
        say(&format!(
            "start {}: lists {floor:.0} ms, ours {ours:.0?}",
            number + 1
        ));
        let floor = [("start_ms".to_owned(), floor)].into();
        starts.push(Pair::new(floor, ours));
    }

    fill(&stage, half..whole).await?;
    say(&format!("{whole} finished jobs are stored"));
    let operator = OperatorProcess::start(stage.operator().await?).await?;
    examined(&operator, whole).await?;
    tokio::time::sleep(size.rest).await;
    let full = machine::memory(operator.pid())?;
    say(&format!("memory with all of them: {full:.1?}"));
    for (name, value) in named("full", full) {
        keep(&name, value);
    }
    for (name, value) in idle(&stage, operator, size).await? {
        keep(&name, value);
    }
    let mut record = Record {
        pairs: vec![once],
        faults: Vec::new(),
    };
    record.pairs.extend(starts);
    Ok(record)
}

fn named(prefix: &str, memory: Memory) -> [(String, f64); 3] {
    [
        ("rss", memory.rss),
        ("anonymous", memory.anonymous),
        ("peak", memory.peak),
    ]
    .map(|(name, value)| (format!("{prefix}_{name}_mb"), value))
}

/// Stores finished jobs with their finished pods and their services.
pub async fn fill(stage: &Stage, numbers: std::ops::Range<usize>) -> Result<()> {
    let bodies = Bodies::new(&stage.kind)?;
    let gate = Semaphore::new(FILLING);
    stream::iter(numbers)
        .map(|number| store(stage, &bodies, &gate, number))
        .buffer_unordered(FILLING / 4)
        .try_collect()
        .await
}

async fn store(stage: &Stage, bodies: &Bodies, gate: &Semaphore, number: usize) -> Result<()> {
    #[derive(Deserialize)]
    struct Made {
        metadata: Identity,
    }
    #[derive(Deserialize)]
    struct Identity {
        uid: String,
    }
    let send = async |method: Method, path: String, ask: Ask| {
        let _place = gate.acquire().await?;
        stage.api.must(method, &path, ask).await
    };
    let name = format!("done-{number}");
    let space = &stage.namespace;
    let jobs = kind::jobs(&stage.kind, space);
    let body = manifest(&stage.kind, &name).to_string();
    let made = send(Method::POST, jobs.clone(), Ask::write(body)).await?;
    let uid = serde_json::from_slice::<Made>(&made)?.metadata.uid;
    let version = version_of(&made)?;
    let time = now();
    let values = Values {
        name: &name,
        namespace: space,
        uid: &uid,
        version: &version,
        time: &time,
        ..Values::default()
    };
    let path = format!("{jobs}/{name}/status");
    let ended = send(
        Method::PATCH,
        path,
        Ask::patch(bodies.finished.fill(&values.in_order())),
    );
    let made = try_join_all(bodies.births.iter().flatten().map(async |part| {
        let all = part.resource.path(space);
        let body = part.body.fill(&values.in_order());
        let made = send(Method::POST, all.clone(), Ask::write(body)).await?;
        if part.resource == Resource::Pod {
            let uid = serde_json::from_slice::<Made>(&made)?.metadata.uid;
            let path = format!("{all}/{name}{}/status", part.suffix);
            let ended = status(kind::container(&stage.kind), &uid, "Succeeded", 0);
            send(Method::PATCH, path, Ask::patch(ended)).await?;
        }
        anyhow::Ok(())
    }));
    futures::try_join!(ended, made)?;
    Ok(())
}

/// Returns how long a raw client takes to start and read the same lists. Units: milliseconds.
async fn read(stage: &Stage) -> Result<f64> {
    let kubeconfig = stage.control.kubeconfig(FLOOR).await?.display().to_string();
    let begun = Instant::now();
    let word = kind::word(&stage.kind);
    let mut reader = Helper::start(&["read", &kubeconfig, word], &stage.log("read"))?;
    let line = reader.line(START).await?;
    let took = milliseconds(begun.elapsed());
    ensure!(line.starts_with("read "), "{line}");
    Ok(took)
}

/// Runs the raw client, a separate process, which reads the same lists as the operator at its start.
pub async fn reader(kubeconfig: &std::path::Path, kind: &Kind) -> Result<()> {
    let api = Api::new(kubeconfig).await?;
    let jobs = kind::everywhere(kind);
    let (pods, services) = (format!("{CORE}/pods"), format!("{CORE}/services"));
    let selector = kind::selector(kind);
    let (jobs, pods, services) = futures::try_join!(
        pages(&api, &jobs, ""),
        pages(&api, &pods, &selector),
        pages(&api, &services, &selector)
    )?;
    child::say(&format!("read {jobs} {pods} {services}"))
}

async fn pages(api: &Api, path: &str, selector: &str) -> Result<usize> {
    #[derive(Deserialize)]
    struct List<'a> {
        #[serde(default)]
        metadata: Next,
        #[serde(borrow)]
        items: Vec<Item<'a>>,
    }
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Next {
        #[serde(rename = "continue")]
        token: String,
    }
    #[derive(Deserialize)]
    struct Item<'a> {
        #[serde(borrow)]
        metadata: Identity<'a>,
        #[serde(borrow, default)]
        status: Phase<'a>,
    }
    #[derive(Deserialize)]
    struct Identity<'a> {
        uid: &'a str,
    }
    #[derive(Deserialize, Default)]
    struct Phase<'a> {
        #[serde(borrow, default)]
        phase: &'a str,
    }
    let (mut count, mut token) = (0, String::new());
    // Bounded: the store never has more pages.
    for _ in 0..10_000 {
        let next = if token.is_empty() {
            String::new()
        } else {
            format!("&continue={token}")
        };
        let path = format!("{path}?limit={PAGE}{selector}{next}");
        let body = api.must(Method::GET, &path, Ask::read(JSON)).await?;
        let list: List<'_> = serde_json::from_slice(&body)?;
        // Uses the data, so that the compiler can't remove decoding.
        count += list
            .items
            .iter()
            .filter(|i| !i.metadata.uid.is_empty() && i.status.phase != "?")
            .count();
        token = list.metadata.token;
        if token.is_empty() {
            return Ok(count);
        }
    }
    anyhow::bail!("{path} has no end")
}

/// Starts the operator on a full store; measures the time to its first reconcile and until every job is reconciled, and counts writes.
async fn begin(stage: &Stage, jobs: usize) -> Result<Figures> {
    let log = stage.log("operator");
    let _ = std::fs::remove_file(&log);
    let before = Counts::read(&stage.api).await?;
    let begun = Instant::now();
    let mut operator = OperatorProcess::spawn(stage.operator().await?)?;
    let first = loop {
        // Reconciles start after this line.
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        if text.contains("caches are complete") {
            break begun.elapsed();
        }
        ensure!(begun.elapsed() < START, "the operator's caches don't fill");
        ensure!(!operator.has_ended()?, "the operator ended: {text}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    examined(&operator, jobs).await?;
    let all = begun.elapsed();
    let cpu = machine::cpu(operator.pid())?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let counts = Counts::read(&stage.api).await?.since(&before, Side::Ours);
    let peak = machine::memory(operator.pid())?.peak;
    operator.terminate(Duration::from_secs(20)).await?;
    let figures = [
        ("start_ms", milliseconds(first)),
        ("examined_ms", milliseconds(all)),
        ("cpu_ms", cpu),
        ("peak_mb", peak),
        ("writes", counts["writes"]),
        ("events", counts["events"]),
        ("reads", counts["reads"]),
    ];
    Ok(figures.map(|(name, value)| (name.to_owned(), value)).into())
}

/// Waits until the operator has reconciled so many jobs.
async fn examined(operator: &OperatorProcess, jobs: usize) -> Result<()> {
    let begun = Instant::now();
    loop {
        let text = operator.metrics().await.unwrap_or_default();
        let reconciles: f64 = text
            .lines()
            .filter(|line| line.starts_with("trainyard_reconciles_total{"))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum();
        if reconciles >= number(jobs) {
            return Ok(());
        }
        ensure!(
            begun.elapsed() < START,
            "after {START:?} {reconciles} of {jobs} jobs were looked at"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Counts requests of the idle operator, with some running and many finished jobs.
async fn idle(stage: &Stage, operator: OperatorProcess, size: &Size) -> Result<Figures> {
    let load = Load::start(stage).await?;
    let script = Script {
        run_after: Duration::from_millis(10),
        succeed_after: Duration::from_millis(10),
        hold: true,
    };
    let mut driver = stage.driver(script).await?;
    let mut client = Client::Ours(operator);
    let mut processes = Processes {
        client: &mut client,
        driver: &mut driver,
        stage,
    };
    let jobs = names("idle", size.idle_jobs);
    load.create_all(&jobs).await?;
    load.until("jobs to run", HANG, &mut processes, |load| {
        jobs.iter()
            .all(|job| load.seen(job, |seen| seen.running).unwrap_or(false))
    })
    .await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let before = Counts::read(&stage.api).await?;
    let cpu = machine::cpu(processes.client.pid())?;
    tokio::time::sleep(size.idle).await;
    let cpu = machine::cpu(processes.client.pid())? - cpu;
    let counts = Counts::read(&stage.api).await?.since(&before, Side::Ours);
    processes.driver.tell("go")?;
    load.until_succeeded(&jobs, HANG, &mut processes).await?;
    load.verify(&jobs, 0).await?;
    let asked = ["writes", "events", "reads", "leases", "watches"];
    let mut figures = Figures::new();
    for sort in asked {
        let count = counts
            .get(sort)
            .copied()
            .context("a sort that is not counted")?;
        figures.insert(format!("idle_{sort}"), count);
    }
    figures.insert("idle_seconds".to_owned(), size.idle.as_secs_f64());
    figures.insert("idle_jobs".to_owned(), number(jobs.len()));
    figures.insert(
        "idle_cpu_ms_per_s".to_owned(),
        cpu / size.idle.as_secs_f64(),
    );
    Ok(figures)
}
