//! A store full of finished jobs: starting on it, holding it in memory, and doing nothing.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::Method;
use serde::Deserialize;
use tokio::sync::Semaphore;
use training_testkit::builders::Kind;
use training_testkit::operator::OperatorProcess;

use crate::bodies::{Bodies, Gaps, Resource, manifest, now};
use crate::child::{self, Helper};
use crate::counts::{Counts, FLOOR};
use crate::drive::{Script, status};
use crate::floor::version_of;
use crate::http::{Api, Ask, CORE, JSON};
use crate::kind;
use crate::load::{Load, Parties};
use crate::machine::{self, Memory};
use crate::runs::{milliseconds, names, number};
use crate::size::{Setting, Size};
use crate::stage::{Audit, Client, START, Stage};
use crate::store::{Figures, Pair, Record, Side};

/// Objects per page, as the operator asks for them.
const PAGE: usize = 500;
/// Requests under way at once while the store is filled.
const FILLING: usize = 64;
/// When a wait counts as a hang.
const HANG: Duration = Duration::from_mins(4);

/// Measures memory with nothing, starts on half of the store, memory with all of it, and idleness. The first pair holds what was
/// measured once; the others are starts.
pub async fn scale(setting: &Setting, say: &dyn Fn(&str)) -> Result<Record> {
    let size = &setting.size;
    let stage = Stage::start(setting.kind, Audit::Off).await?;
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
    // Not measured: the API server's own caches get warm.
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
        starts.push(Pair {
            floor: [("start_ms".to_owned(), floor)].into(),
            ours,
        });
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
async fn fill(stage: &Stage, numbers: std::ops::Range<usize>) -> Result<()> {
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
    let gaps = Gaps {
        name: &name,
        namespace: space,
        uid: &uid,
        version: &version,
        time: &time,
        ..Gaps::default()
    };
    let path = format!("{jobs}/{name}/status");
    let ended = send(
        Method::PATCH,
        path,
        Ask::patch(bodies.finished.fill(&gaps.values())),
    );
    let made = try_join_all(bodies.births.iter().flatten().map(async |part| {
        let all = part.resource.path(space);
        let body = part.body.fill(&gaps.values());
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

/// How long a raw client takes to read the same lists, its start included. Units: milliseconds.
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

/// Reads the lists that the operator begins with: the raw client, as a process of its own.
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
    // Bounded: no store of ours has more pages.
    for _ in 0..10_000 {
        let next = if token.is_empty() {
            String::new()
        } else {
            format!("&continue={token}")
        };
        let path = format!("{path}?limit={PAGE}{selector}{next}");
        let body = api.must(Method::GET, &path, Ask::read(JSON)).await?;
        let list: List<'_> = serde_json::from_slice(&body)?;
        // Looked at, so that decoding can't be left out.
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

/// Starts the operator on a full store: how long until its first pass, until it has looked at every job, and what it wrote.
async fn begin(stage: &Stage, jobs: usize) -> Result<Figures> {
    let log = stage.log("operator");
    let _ = std::fs::remove_file(&log);
    let before = Counts::read(&stage.api).await?;
    let begun = Instant::now();
    let mut operator = OperatorProcess::spawn(stage.operator().await?)?;
    let first = loop {
        // Passes begin with this line.
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

/// Waits until the operator has passed over so many jobs.
async fn examined(operator: &OperatorProcess, jobs: usize) -> Result<()> {
    let begun = Instant::now();
    loop {
        let text = operator.metrics().await.unwrap_or_default();
        let passes: f64 = text
            .lines()
            .filter(|line| line.starts_with("trainyard_reconciles_total{"))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum();
        if passes >= number(jobs) {
            return Ok(());
        }
        ensure!(
            begun.elapsed() < START,
            "after {START:?} {passes} of {jobs} jobs were looked at"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// What is asked while nothing happens, with some jobs running beside the finished ones.
async fn idle(stage: &Stage, operator: OperatorProcess, size: &Size) -> Result<Figures> {
    let load = Load::start(stage).await?;
    let script = Script {
        run_after: Duration::from_millis(10),
        succeed_after: Duration::from_millis(10),
        hold: true,
    };
    let mut driver = stage.driver(script).await?;
    let mut client = Client::Ours(operator);
    let mut parties = Parties {
        client: &mut client,
        driver: &mut driver,
        stage,
    };
    let jobs = names("idle", size.idle_jobs);
    load.create_all(&jobs).await?;
    load.until("jobs to run", HANG, &mut parties, |load| {
        jobs.iter()
            .all(|job| load.seen(job, |seen| seen.running).unwrap_or(false))
    })
    .await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let before = Counts::read(&stage.api).await?;
    let cpu = machine::cpu(parties.client.pid())?;
    tokio::time::sleep(size.idle).await;
    let cpu = machine::cpu(parties.client.pid())? - cpu;
    let counts = Counts::read(&stage.api).await?.since(&before, Side::Ours);
    parties.driver.tell("go")?;
    load.until_succeeded(&jobs, HANG, &mut parties).await?;
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
