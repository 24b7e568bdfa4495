//! The timed runs. Each has its own control plane, so that earlier runs have no effect.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::Method;
use serde_json::json;
use tokio::task::{JoinHandle, spawn_local};

use crate::counts::Counts;
use crate::drive::{Script, status};
use crate::http::{Ask, CORE};
use crate::kind;
use crate::load::{Load, Processes};
use crate::machine;
use crate::size::{Setting, Size};
use crate::stage::{Audit, Client, Meter, Stage};
use crate::stats::percentile;
use crate::store::{Figures, Side};

/// The limit of a wait.
pub const HANG: Duration = Duration::from_mins(4);
/// How long to wait after a job's end for events and folded counts.
pub const SETTLE: Duration = Duration::from_secs(2);
/// The usual timing of pods.
pub const USUAL: Script = Script {
    run_after: Duration::from_millis(200),
    succeed_after: Duration::from_secs(1),
    hold: false,
};
/// The timing of pods if only their creation is measured.
pub const SHORT: Script = Script {
    run_after: Duration::from_millis(10),
    succeed_after: Duration::from_millis(10),
    hold: false,
};

/// Returns the names of `count` jobs.
pub fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count)
        .map(|number| format!("{prefix}-{number}"))
        .collect()
}

/// Runs warm-up jobs, lets them settle, and starts to measure.
pub async fn warmed_up(
    load: &Load<'_>,
    size: &Size,
    processes: &mut Processes<'_>,
) -> Result<Meter> {
    let warm = names("warm", size.warm_up);
    load.create_all(&warm).await?;
    load.until_succeeded(&warm, HANG, processes).await?;
    settled(processes.stage, processes.client).await?;
    Meter::begin(processes.stage, processes.client).await
}

/// Waits for events and folded counts. A Go operator may still send its queue of events for minutes.
async fn settled(stage: &Stage, client: &Client) -> Result<()> {
    let begun = Instant::now();
    let mut before = Counts::read(&stage.api).await?;
    loop {
        tokio::time::sleep(SETTLE).await;
        let now = Counts::read(&stage.api).await?;
        let sent = now.since(&before, client.side());
        if sent["writes"] + sent["events"] == 0.0 {
            return Ok(());
        }
        ensure!(begun.elapsed() < HANG, "it still sends requests");
        before = now;
    }
}

/// Runs a closed loop and measures jobs per second, CPU and requests per job, with `crowd` foreign pods in the namespace.
pub async fn pace(side: Side, setting: &Setting, crowd: usize) -> Result<Figures> {
    let size = &setting.size;
    let stage = Stage::start(setting.kind, Audit::Off, side).await?;
    self::crowd(&stage, crowd).await?;
    let load = Load::start(&stage).await?;
    let mut driver = stage.driver(USUAL).await?;
    let mut client = stage.client(side).await?;
    let mut processes = Processes {
        client: &mut client,
        driver: &mut driver,
        stage: &stage,
    };
    let meter = warmed_up(&load, size, &mut processes).await?;
    let (jobs, ends) = load
        .closed_loop("job", size.pace_jobs, size.in_flight, HANG, &mut processes)
        .await?;
    settled(&stage, processes.client).await?;
    let mut figures = meter
        .end(&stage, processes.client, side, number(jobs.len()))
        .await?;
    // The steady part: from the end of the first generation until no more jobs are added.
    let (from, to) = (
        size.in_flight.min(ends.len() / 4),
        size.pace_jobs.min(ends.len()) - 1,
    );
    let time = ends[to].duration_since(ends[from]).as_secs_f64();
    figures.insert("jobs_per_s".to_owned(), number(to - from) / time.max(0.001));
    figures.insert("rss_mb".to_owned(), processes.client.resident()?);
    load.verify(&jobs, 0).await?;
    Ok(figures)
}

/// Creates foreign pods without any job's labels.
async fn crowd(stage: &Stage, count: usize) -> Result<()> {
    let path = format!("{CORE}/namespaces/{}/pods", stage.namespace);
    stream::iter(0..count)
        .map(async |number| {
            let body = json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": { "name": format!("other-{number}"), "labels": { "app": "other" } },
                "spec": { "containers": [{ "name": "main", "image": "trainyard.test/other:1" }] },
            });
            stage
                .api
                .must(Method::POST, &path, Ask::write(body.to_string()))
                .await
        })
        .buffer_unordered(64)
        .try_for_each(async |_| Ok(()))
        .await
}

/// Measures latencies: one job at a time, small bursts, and, if the kind has that row, replacements of failed pods.
pub async fn latency(side: Side, setting: &Setting) -> Result<Figures> {
    let size = &setting.size;
    let stage = Stage::start(setting.kind, Audit::Off, side).await?;
    let load = Load::start(&stage).await?;
    let mut client = stage.client(side).await?;
    let mut driver = stage.driver(SHORT).await?;
    let mut processes = Processes {
        client: &mut client,
        driver: &mut driver,
        stage: &stage,
    };
    let meter = warmed_up(&load, size, &mut processes).await?;
    let mut all = Vec::new();
    let mut figures = Figures::new();

    let ones = names("one", size.ones);
    for name in &ones {
        load.create_all(std::slice::from_ref(name)).await?;
        load.until_succeeded(std::slice::from_ref(name), HANG, &mut processes)
            .await?;
        // Lets the watch event of the last status and an event arrive.
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    spread(&mut figures, "one", &load, &ones)?;
    all.extend(ones);

    let mut hundreds = Vec::new();
    for round in 0..size.hundred.1 {
        let jobs = names(&format!("hundred-{round}"), size.hundred.0);
        load.create_all(&jobs).await?;
        load.until_succeeded(&jobs, HANG, &mut processes).await?;
        tokio::time::sleep(SETTLE).await;
        hundreds.extend(jobs);
    }
    spread(&mut figures, "hundred", &load, &hundreds)?;
    all.extend(hundreds);

    let mut jobs = all.len();
    if setting.shows("f") {
        // Stops it before its successor starts: both would drive the same pods.
        drop(driver);
        driver = stage
            .driver(Script {
                hold: true,
                ..SHORT
            })
            .await?;
        let mut processes = Processes {
            client: &mut client,
            driver: &mut driver,
            stage: &stage,
        };
        let failing = names("failing", size.failing_jobs);
        let times = replacements(&load, &stage, &failing, &mut processes).await?;
        figures.insert("failed_p50".to_owned(), percentile(&times, 50.0));
        figures.insert("failed_p99".to_owned(), percentile(&times, 99.0));
        load.verify(&failing, times.len()).await?;
        jobs += failing.len();
    }
    load.verify(&all, 0).await?;
    settled(&stage, &client).await?;
    figures.extend(meter.end(&stage, &client, side, number(jobs)).await?);
    Ok(figures)
}

/// Fails the workers of running jobs one by one; returns how long each replacement took. Units: milliseconds.
async fn replacements(
    load: &Load<'_>,
    stage: &Stage,
    jobs: &[String],
    processes: &mut Processes<'_>,
) -> Result<Vec<f64>> {
    load.create_all(jobs).await?;
    load.until("jobs to run", HANG, processes, |load| {
        jobs.iter()
            .all(|job| load.seen(job, |seen| seen.running).unwrap_or(false))
    })
    .await?;
    let mut times = Vec::new();
    for (job, index) in jobs
        .iter()
        .flat_map(|job| (0..3).map(move |index| (job, index)))
    {
        // Each replica fails only once: its first replacement comes at once, later ones have a backoff.
        tokio::time::sleep(Duration::from_millis(250)).await;
        let pod = format!("{job}-worker-{index}");
        let uids = || {
            load.seen(job, |seen| seen.pods.get(&pod).cloned())
                .flatten()
                .unwrap_or_default()
        };
        let uid = uids()
            .last()
            .map(|(uid, _)| uid.clone())
            .context("a pod that was never seen")?;
        let path = format!("{CORE}/namespaces/{}/pods/{pod}/status", stage.namespace);
        stage
            .api
            .must(
                Method::PATCH,
                &path,
                Ask::patch(status(kind::container(&stage.kind), &uid, "Failed", 137)),
            )
            .await?;
        let failed = Instant::now();
        load.until("a failed pod to be replaced", HANG, processes, |_| {
            uids().len() > 1
        })
        .await?;
        let seen = uids().last().map_or(failed, |(_, seen)| *seen);
        times.push(milliseconds(seen.saturating_duration_since(failed)));
    }
    tokio::time::sleep(Duration::from_millis(250)).await;
    processes.driver.tell("go")?;
    load.until_succeeded(jobs, HANG, processes).await?;
    Ok(times)
}

/// Creates many jobs at once, and measures how long until each has its pods and all have ended.
pub async fn burst(side: Side, setting: &Setting) -> Result<Figures> {
    let size = &setting.size;
    let stage = Stage::start(setting.kind, Audit::Off, side).await?;
    let load = Load::start(&stage).await?;
    let mut client = stage.client(side).await?;
    let mut driver = stage.driver(USUAL).await?;
    let mut processes = Processes {
        client: &mut client,
        driver: &mut driver,
        stage: &stage,
    };
    let meter = warmed_up(&load, size, &mut processes).await?;
    let jobs = names("job", size.thousand);
    let brood = Brood::watch(processes.client.pid());
    let begun = Instant::now();
    load.create_all(&jobs).await?;
    load.until_succeeded(&jobs, HANG, &mut processes).await?;
    let took = begun.elapsed();
    let children = brood.end()?;
    tokio::time::sleep(SETTLE).await;
    let mut figures = meter
        .end(&stage, processes.client, side, number(jobs.len()))
        .await?;
    spread(&mut figures, "thousand", &load, &jobs)?;
    let last = jobs
        .iter()
        .filter_map(|job| load.seen(job, |seen| seen.complete).flatten())
        .max();
    let made = last.map_or(took, |last| last.saturating_duration_since(begun));
    for (name, time) in [("thousand_per_s", took), ("thousand_made_per_s", made)] {
        figures.insert(name.to_owned(), number(jobs.len()) / time.as_secs_f64());
    }
    figures.insert("thousand_seconds".to_owned(), took.as_secs_f64());
    figures.insert("children".to_owned(), number(children));
    load.verify(&jobs, 0).await?;
    if kind::submits(&setting.kind) {
        tokio::time::sleep(size.rest).await;
        let memory = machine::memory(client.pid())?;
        figures.insert("after_rss_mb".to_owned(), memory.rss);
        figures.insert("after_peak_mb".to_owned(), memory.peak);
    }
    Ok(figures)
}

/// Polls for children of a process.
struct Brood {
    pid: u32,
    most: Rc<Cell<usize>>,
    task: JoinHandle<()>,
}

impl Brood {
    fn watch(pid: u32) -> Self {
        let most = Rc::new(Cell::new(0));
        let seen = Rc::clone(&most);
        let task = spawn_local(async move {
            loop {
                seen.set(seen.get().max(machine::descendants(pid).len()));
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        Self { pid, most, task }
    }

    /// Returns the maximum number of parallel children; children that came and went between two polls count as one.
    fn end(self) -> Result<usize> {
        let unseen = usize::from(machine::has_had_children(self.pid)?);
        Ok(self.most.get().max(unseen))
    }
}

impl Drop for Brood {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Records the times from a job's creation to its last pod. Units: milliseconds.
fn spread(figures: &mut Figures, name: &str, load: &Load<'_>, jobs: &[String]) -> Result<()> {
    let mut times = Vec::with_capacity(jobs.len());
    for job in jobs {
        let seen = load
            .seen(job, |seen| seen.created.zip(seen.complete))
            .flatten();
        let (created, complete) = seen.with_context(|| format!("{job} was not seen whole"))?;
        times.push(milliseconds(complete.saturating_duration_since(created)));
    }
    for percent in [50, 99] {
        figures.insert(
            format!("{name}_p{percent}"),
            percentile(&times, f64::from(percent)),
        );
    }
    Ok(())
}

/// Converts a duration to milliseconds.
pub fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Converts a count to a float.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
pub fn number(count: usize) -> f64 {
    count as f64
}
