//! Waits until a job finishes.

use std::pin::pin;
use std::time::Duration;

use anyhow::{Result, bail};
use futures::TryStreamExt as _;
use k8s_openapi::jiff::Timestamp;
use kube_runtime::{WatchStreamExt as _, watcher};
use tokio::time::timeout;
use training_core::Phase;

use crate::cluster::{self, Cluster, code, explain};
use crate::job::Job;
use crate::kinds::Shape;
use crate::out::{self, Progress, ProgressMode};
use crate::state;
use crate::why;

/// The result of waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The job succeeded.
    Succeeded,
    /// The job failed.
    Failed,
    /// The job was deleted before it finished.
    Deleted,
    /// The timeout expired.
    TimedOut,
}

impl End {
    /// Returns the exit code of the program.
    pub fn code(self) -> u8 {
        match self {
            Self::Succeeded => 0,
            Self::Failed | Self::Deleted => 1,
            // The exit code of coreutils' `timeout`.
            Self::TimedOut => 124,
        }
    }
}

/// Returns the result once the job with this uid has finished or is gone. `current` is the job that has its name now.
pub fn end(uid: &str, current: Option<&Job>) -> Option<End> {
    // A new job may have the same name.
    let Some(job) = current.filter(|job| job.uid() == uid) else {
        return Some(End::Deleted);
    };
    match state::of(job).phase {
        Phase::Succeeded => Some(End::Succeeded),
        Phase::Failed => Some(End::Failed),
        _ => None,
    }
}

/// Returns an error for jobs that never finish.
pub fn check(job: &Job) -> Result<()> {
    if matches!(job.kind.shape, Shape::Schedule) {
        let run = job.value["status"]["lastRunName"].as_str();
        let run = run.map(|run| format!(": kubectl trainyard wait sparkapplication/{run}"));
        bail!(
            "a ScheduledSparkApplication never finishes; wait for one of its runs{}",
            run.unwrap_or_default()
        );
    }
    Ok(())
}

/// Shows each change of the job's state until the job finishes or the limit expires.
pub async fn until_finished(
    cluster: &Cluster,
    job: &Job,
    limit: Option<Duration>,
    mode: ProgressMode,
) -> Result<End> {
    let mut progress = Progress::new(mode);
    let watch = follow(cluster, job, &mut progress);
    let end = match limit {
        Some(limit) => timeout(limit, watch).await.unwrap_or(Ok(End::TimedOut)),
        None => watch.await,
    };
    progress.clear();
    end
}

async fn follow(cluster: &Cluster, job: &Job, progress: &mut Progress) -> Result<End> {
    let api = cluster.any(&job.kind.resource);
    let mut states = pin!(watcher::watch_object(api, job.name()).default_backoff());
    loop {
        match states.try_next().await {
            Ok(Some(current)) => {
                let current = current.map(|object| cluster::job(job.kind.clone(), &object));
                let current = current.transpose()?;
                if let Some(current) = &current {
                    progress.show(&headline(current));
                }
                if let Some(end) = end(job.uid(), current.as_ref()) {
                    return Ok(end);
                }
            }
            Ok(None) => bail!("the watch of {} ended", job.name()),
            Err(error) => match permanent_error(error) {
                Some(error) => return Err(explain(error)),
                // The watcher starts again after a backoff.
                None => progress.show(&format!("{}  the watch failed; retrying", job.name())),
            },
        }
    }
}

/// Returns the error if a retry can't help.
pub fn permanent_error(error: watcher::Error) -> Option<kube::Error> {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => {
            [401, 403, 404].contains(&code(&error)).then_some(error)
        }
        watcher::Error::WatchError(_) | watcher::Error::NoResourceVersion => None,
    }
}

/// Formats the job as one line.
pub fn headline(job: &Job) -> String {
    why::summary(job, &state::of(job), Timestamp::now())
        .headline()
        .text
}

/// Prints how the job ended, on standard output. For a failed job that is the whole report.
pub async fn print_result(cluster: &Cluster, job: &Job, end: End) -> Result<()> {
    let name = job.name();
    match end {
        End::Deleted => out::print(&[out::Line::plain(format!("{name} was deleted"))]),
        End::TimedOut => {
            out::note(&format!("timed out; {name} has not finished"));
            Ok(())
        }
        End::Succeeded | End::Failed => {
            // `job` is the state from before the wait.
            let word = format!("{}/{name}", job.kind.name());
            let report = async { crate::build_report(cluster, &cluster.find(&word).await?).await };
            let lines = match report.await {
                Ok(report) if end == End::Failed => report.lines(),
                Ok(report) => vec![report.headline()],
                // The job was deleted after it finished.
                Err(_) => vec![out::Line::plain(format!("{name} {end:?}").to_lowercase())],
            };
            out::print(&lines)
        }
    }
}
