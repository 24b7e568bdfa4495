//! Measures `kubectl trainyard why` in a namespace with many jobs: its start to its first line, beside a program that sends the same
//! requests.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use http::Method;
use training_testkit::operator;

use crate::child::{self, Helper};
use crate::counts::FLOOR;
use crate::http::{Api, Ask, JSON};
use crate::runs::{milliseconds, number};
use crate::scale::fill;
use crate::size::Setting;
use crate::stage::{Audit, Stage};
use crate::stats::median;
use crate::store::{Figures, Pair, Side};

/// The plugin's binary.
const PLUGIN: &str = "kubectl-trainyard";
/// Jobs in the namespace.
const JOBS: usize = 500;
/// Runs of each program, in turn.
const RUNS: usize = 15;
/// The limit of a run.
const HANG: Duration = Duration::from_secs(30);

/// Compares the medians of [`RUNS`] runs.
pub async fn why(setting: &Setting, say: &dyn Fn(&str)) -> Result<Pair> {
    let stage = Stage::start(setting.kind, Audit::On, Side::Ours).await?;
    fill(&stage, 0..JOBS).await?;
    let kubeconfig = stage.control.kubeconfig(FLOOR).await?;
    let audit = stage.control.audit()?;
    let mark = audit.mark().await?;
    ours(&stage, &kubeconfig).await?;
    let sent = audit.by_user(mark, FLOOR).await?;
    let paths: Vec<String> = sent.into_iter().map(|entry| entry.uri).collect();
    ensure!(paths.len() > 2, "why sent only {paths:?}");
    say(&format!("requests of why: {paths:?}"));
    let (mut of_floor, mut of_ours) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        of_floor.push(floor(&stage, &kubeconfig, &paths).await?);
        of_ours.push(ours(&stage, &kubeconfig).await?);
    }
    let figures = |times: &[f64]| -> Figures {
        let requests = number(paths.len());
        [
            ("why_ms".to_owned(), median(times)),
            ("requests".to_owned(), requests),
        ]
        .into()
    };
    let mut pair = Pair::new(figures(&of_floor), figures(&of_ours));
    let bytes = operator::find(PLUGIN)?.metadata()?.len();
    let size = number(usize::try_from(bytes)?) / 1e6;
    pair.ours.insert("plugin_mb".to_owned(), size);
    say(&format!("why: {:?}", [&pair.floor, &pair.ours]));
    Ok(pair)
}

/// Returns the time from the start of `kubectl trainyard why` to its first line. Units: milliseconds.
async fn ours(stage: &Stage, kubeconfig: &Path) -> Result<f64> {
    let mut command = Command::new(operator::find(PLUGIN)?);
    let job = format!("{}/done-0", stage.kind.plural);
    command.args(["why", &job, "-n", &stage.namespace, "--kubeconfig"]);
    let begun = Instant::now();
    let log = stage.log("why");
    let mut child = Helper::spawn("why", command.arg(kubeconfig), &log)?;
    let line = child.line(HANG).await?;
    let took = milliseconds(begun.elapsed());
    ensure!(line.contains("SUCCEEDED"), "why says {line:?}");
    Ok(took)
}

/// Returns the time from the start of a program to the last response to the same requests. Units: milliseconds.
async fn floor(stage: &Stage, kubeconfig: &Path, paths: &[String]) -> Result<f64> {
    let kubeconfig = kubeconfig.display().to_string();
    let mut args = vec!["requests", &kubeconfig, crate::kind::word(&stage.kind)];
    args.extend(paths.iter().map(String::as_str));
    let begun = Instant::now();
    let mut child = Helper::start(&args, &stage.log("requests"))?;
    child.line(HANG).await?;
    Ok(milliseconds(begun.elapsed()))
}

/// The child process: sends the first request alone, as `why` does to find the job, and the others together.
pub async fn requests(kubeconfig: &Path, paths: &[&str]) -> Result<()> {
    let api = Api::new(kubeconfig).await?;
    let (first, others) = paths.split_first().context("no request")?;
    api.send(Method::GET, first, Ask::read(JSON)).await?;
    let others = others.iter();
    try_join_all(others.map(|path| api.send(Method::GET, path, Ask::read(JSON)))).await?;
    child::say("done")
}
