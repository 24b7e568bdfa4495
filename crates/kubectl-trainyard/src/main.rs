//! `kubectl trainyard`: a kubectl plugin for the jobs of every kind.
//!
//! - [`cli`]: arguments; [`complete`]: shell completion; [`out`]: output
//! - [`kinds`]: the kinds, from the operators' types
//! - [`job`]: a job and its pods; [`state`]: its state; [`why`]: the explanation of the state; [`next`]: what happens next; none of them does I/O
//! - [`cluster`]: reads from the API server
//! - [`wait`], [`logs`], [`run`], [`control`], [`tree`], [`history`], [`top`], [`preflight`], [`migrate`]: the verbs that use the cluster;
//!   [`others`]: other projects' operators
//! - [`render`]: the objects that an operator would create, from its own plan; [`diff`]: how they change with a manifest;
//!   [`defaults`]: the defaults of the CRD; [`flags`]: the flags of the operator

mod cli;
mod cluster;
mod complete;
mod control;
mod defaults;
mod diff;
mod flags;
mod history;
mod job;
mod kinds;
mod logs;
mod migrate;
mod next;
mod others;
mod out;
mod preflight;
mod render;
mod run;
mod state;
#[cfg(test)]
mod tests;
mod time;
mod top;
mod tree;
mod wait;
mod why;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::jiff::Timestamp;

use crate::cli::{Cli, Target, Verb};
use crate::cluster::Cluster;
use crate::control::Action;
use crate::job::Job;
use crate::out::{Line, Output, ProgressMode, Style};
use crate::why::{Facts, Report};

/// The exit code of usage and API errors.
const ERROR: u8 = 2;
/// The number of jobs that are explained at once.
const TOGETHER: usize = 8;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut args = std::env::args_os();
    let result = if complete::is_requested(&args.next().unwrap_or_default()) {
        let words: Vec<String> = args.map(|word| word.to_string_lossy().into()).collect();
        complete::print(&words).await.map(|()| 0)
    } else {
        dispatch(Cli::parse()).await
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            out::note(&format!("error: {error:#}"));
            ExitCode::from(ERROR)
        }
    }
}

/// True if the reader of the output closed it, as `head` does.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<std::io::Error>();
    io.is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

async fn dispatch(Cli { target, verb }: Cli) -> Result<u8> {
    let (cluster, job) = match &verb {
        Verb::Render {
            filename,
            operator,
            output,
        } => return render::print(&target, filename, operator, *output).await,
        Verb::Run {
            filename,
            timeout,
            selection,
        } => return run::run(&target, filename, *timeout, selection).await,
        Verb::Diff { filename, operator } => {
            return diff::print(&target, filename, operator).await;
        }
        Verb::Preflight { output } => {
            return preflight::print(&Cluster::connect(&target).await?, *output).await;
        }
        Verb::Migrate {
            from, apply, undo, ..
        } => {
            let action = match (apply, undo) {
                (true, _) => migrate::Action::Apply,
                (_, true) => migrate::Action::Undo,
                (false, false) => migrate::Action::Show,
            };
            let cluster = Cluster::connect(&target).await?;
            return migrate::run(cluster, *from, target.namespace.as_deref(), action)
                .await
                .map(|()| 0);
        }
        Verb::Why { job: None, output } => return attention(&target, *output).await,
        Verb::Top {
            all_namespaces,
            output,
        } => {
            let mut cluster = Cluster::connect(&target).await?;
            if *all_namespaces {
                cluster.namespace.clear();
            }
            return top::print(&cluster, *output).await.map(|()| 0);
        }
        Verb::Why { job: Some(job), .. }
        | Verb::Wait { job, .. }
        | Verb::Logs { job, .. }
        | Verb::Suspend { job }
        | Verb::Resume { job }
        | Verb::Restart { job }
        | Verb::History { job, .. }
        | Verb::Tree { job } => {
            let cluster = Cluster::connect(&target).await?;
            let job = cluster.find(job).await?;
            (cluster, job)
        }
    };
    match verb {
        Verb::Why { output, .. } => {
            let report = build_report(&cluster, &job).await?;
            match output.data() {
                Some(format) => out::print_data(&report, format)?,
                None => out::print(&report.lines())?,
            }
        }
        Verb::Wait { timeout, .. } => {
            wait::check(&job)?;
            let end = wait::until_finished(&cluster, &job, timeout, ProgressMode::OneLine).await?;
            wait::print_result(&cluster, &job, end).await?;
            return Ok(end.code());
        }
        Verb::Logs {
            selection, follow, ..
        } => {
            if follow {
                wait::check(&job)?;
                let finished = wait::until_finished(&cluster, &job, None, ProgressMode::Silent);
                logs::follow(&cluster, &job, &selection, finished).await?;
            } else {
                logs::print(&cluster, &job, &selection).await?;
            }
        }
        Verb::Suspend { .. } => control::request(&cluster, &job, Action::Suspend).await?,
        Verb::Resume { .. } => control::request(&cluster, &job, Action::Resume).await?,
        Verb::Restart { .. } => control::request(&cluster, &job, Action::Restart).await?,
        Verb::Tree { .. } => tree::print(&cluster, &job).await?,
        Verb::History { output, .. } => history::print(&cluster, &job, output).await?,
        Verb::Run { .. }
        | Verb::Diff { .. }
        | Verb::Render { .. }
        | Verb::Migrate { .. }
        | Verb::Preflight { .. }
        | Verb::Top { .. } => {}
    }
    Ok(0)
}

/// Reads what explains a job's state and builds the report.
async fn build_report(cluster: &Cluster, job: &Job) -> Result<Report> {
    let related = cluster.related(job).await?;
    Ok(why::report(&Facts {
        job,
        pods: &related.pods,
        events: &related.events,
        groups: &related.groups,
        workload: related.workload.as_ref(),
        unreadable: &related.unreadable,
        now: Timestamp::now(),
    }))
}

/// Prints the jobs of the namespace that need attention.
async fn attention(target: &Target, output: Output) -> Result<u8> {
    let cluster = Cluster::connect(target).await?;
    let (jobs, unreadable) = cluster.jobs().await?;
    let now = Timestamp::now();
    let reports = why::attention(&jobs, now);
    let reports = reports.into_iter().map(async |(job, state)| {
        anyhow::Ok(match output {
            Output::Wide => build_report(&cluster, job).await?,
            Output::Text | Output::Json | Output::Yaml => why::summary(job, &state, now),
        })
    });
    let reports = stream::iter(reports).buffered(TOGETHER);
    let reports: Vec<Report> = reports.try_collect().await?;
    if let Some(format) = output.data() {
        out::print_data(&reports, format)?;
        return Ok(0);
    }
    let lines = |report: &Report| match output {
        Output::Wide => report.lines(),
        Output::Text | Output::Json | Output::Yaml => vec![report.headline()],
    };
    let mut lines: Vec<Line> = reports.iter().flat_map(lines).collect();
    let others = jobs.len() - reports.len();
    lines.push(Line::new(
        Style::Faint,
        match (reports.len(), others) {
            (0, 0) => format!("no jobs in namespace {}", cluster.namespace),
            (0, n) => format!(
                "none of the {n} jobs in namespace {} needs attention",
                cluster.namespace
            ),
            (_, n) => format!("{n} other jobs need no attention"),
        },
    ));
    lines.extend(out::not_shown(&unreadable));
    out::print(&lines)?;
    Ok(0)
}
