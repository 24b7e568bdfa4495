//! Prints the logs of a job's pods, each line with its rank.

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures::{AsyncBufReadExt as _, StreamExt as _};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::Api;
use kube::api::LogParams;
use kube_runtime::WatchStreamExt as _;
use kube_runtime::watcher::{self, Event, watcher};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::cli::LogSelection;
use crate::cluster::{Cluster, explain};
use crate::job::{self, Job, Member};
use crate::out::{self, coloured, has_colours, of_rank};
use crate::wait::{self, End};

/// How long to read logs after the job has finished. Containers may run longer.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// The capacity of the queue of lines to print.
const QUEUE_CAPACITY: usize = 1024;

#[derive(Debug)]
struct Line {
    rank: String,
    text: String,
}

/// Prints lines with their rank as a prefix.
#[derive(Debug)]
struct Printer {
    colours: bool,
    ranks: Vec<String>,
    width: usize,
}

impl Printer {
    fn new() -> Self {
        Self {
            colours: has_colours(),
            ranks: Vec::new(),
            width: 0,
        }
    }

    /// Returns the number of a rank and widens the column for it.
    fn register(&mut self, rank: &str) -> usize {
        self.width = self.width.max(rank.len());
        let number = self.ranks.iter().position(|r| r == rank);
        number.unwrap_or_else(|| {
            self.ranks.push(rank.to_owned());
            self.ranks.len() - 1
        })
    }

    fn format(&mut self, line: &Line) -> String {
        let number = self.register(&line.rank);
        let prefix = format!("{:<1$} | ", line.rank, self.width);
        format!(
            "{}{}",
            coloured(of_rank(number), &prefix, self.colours),
            line.text
        )
    }

    fn print(&mut self, line: &Line) -> Result<()> {
        let text = self.format(line);
        let mut out = io::stdout().lock();
        writeln!(out, "{text}")?;
        Ok(out.flush()?)
    }
}

fn select_pods(job: &Job, pods: Vec<Member>, selection: &LogSelection) -> Result<Vec<Member>> {
    let ranks: Vec<&str> = pods.iter().map(|m| m.rank.as_str()).collect();
    let name = job.name();
    let Some(rank) = &selection.rank else {
        if pods.is_empty() {
            bail!("{name} has no pods: run kubectl trainyard why {name}");
        }
        return Ok(pods);
    };
    if !ranks.contains(&rank.as_str()) {
        bail!("{name} has no pod {rank}: use one of {}", ranks.join(", "));
    }
    Ok(pods.into_iter().filter(|m| m.rank == *rank).collect())
}

fn container(job: &Job, pod: &Pod, selection: &LogSelection) -> Option<String> {
    let selected = selection.container.clone();
    selected.or_else(|| job::main_container(job, pod))
}

/// Prints the existing logs, one pod after another.
pub async fn print(cluster: &Cluster, job: &Job, selection: &LogSelection) -> Result<()> {
    let pods = cluster.pods(job).await.map_err(explain)?;
    if let Some(last) = lost_failure(job, &pods) {
        out::note(&last);
    }
    let pods = select_pods(job, pods, selection)?;
    let mut printer = Printer::new();
    for member in &pods {
        printer.register(&member.rank);
    }
    for member in &pods {
        let params = LogParams {
            container: container(job, &member.pod, selection),
            ..LogParams::default()
        };
        let (send, mut lines) = mpsc::channel(QUEUE_CAPACITY);
        let read = read(
            cluster.api(),
            member.name.clone(),
            params,
            member.rank.clone(),
            send,
        );
        let print = async {
            while let Some(line) = lines.recv().await {
                printer.print(&line)?;
            }
            anyhow::Ok(())
        };
        let (read, print) = tokio::join!(read, print);
        print?;
        if let Err(error) = read {
            out::note(&format!(
                "can't read the log of {}: {:#}",
                member.rank,
                explain(error)
            ));
        }
    }
    Ok(())
}

/// Describes the last failure, if its pod was deleted or replaced.
fn lost_failure(job: &Job, pods: &[Member]) -> Option<String> {
    let last = &job.value["status"]["lastFailure"];
    let (pod, message) = (last["pod"].as_str()?, last["message"].as_str()?);
    let failed = |m: &Member| m.name == pod && m.view.trouble.is_some();
    if pods.iter().any(failed) {
        return None;
    }
    Some(format!(
        "last failure (its log was deleted with the pod): {pod}: {message}"
    ))
}

/// Sends the lines of a container's log to a channel.
async fn read(
    pods: Api<Pod>,
    pod: String,
    params: LogParams,
    rank: String,
    lines: mpsc::Sender<Line>,
) -> kube::Result<()> {
    let mut stream = pin!(pods.log_stream(&pod, &params).await?);
    let mut buffer = Vec::new();
    loop {
        buffer.clear();
        let count = stream.read_until(b'\n', &mut buffer).await;
        if count.map_err(kube::Error::ReadEvents)? == 0 {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&buffer);
        let line = Line {
            rank: rank.clone(),
            text: text.trim_end_matches(['\n', '\r']).to_owned(),
        };
        if lines.send(line).await.is_err() {
            return Ok(());
        }
    }
}

/// Streams the logs of a job's pods.
struct Reader<'a> {
    cluster: &'a Cluster,
    job: &'a Job,
    selection: &'a LogSelection,
    /// The container starts whose logs are read: pod uid, container name and restart count.
    opened: BTreeSet<(String, String, i32)>,
    tasks: JoinSet<()>,
    send: mpsc::Sender<Line>,
}

impl Reader<'_> {
    /// Starts to read the selected container of a pod, once per start of the container.
    fn open(&mut self, pod: Pod) {
        for member in job::members(self.job, vec![pod]) {
            if self
                .selection
                .rank
                .as_ref()
                .is_some_and(|rank| *rank != member.rank)
            {
                continue;
            }
            let Some(container) = container(self.job, &member.pod, self.selection) else {
                continue;
            };
            let Some(restarts) = restarts_if_started(&member.pod, &container) else {
                continue;
            };
            let uid = member.pod.metadata.uid.clone().unwrap_or_default();
            if self.opened.insert((uid, container.clone(), restarts)) {
                let params = LogParams {
                    container: Some(container),
                    follow: true,
                    ..LogParams::default()
                };
                let read = read(
                    self.cluster.api(),
                    member.name,
                    params,
                    member.rank,
                    self.send.clone(),
                );
                // Ignore errors: the pod may be deleted.
                self.tasks.spawn(async { drop(read.await) });
            }
        }
    }
}

/// Returns the restart count of a container that has started.
fn restarts_if_started(pod: &Pod, container: &str) -> Option<i32> {
    let status = pod.status.as_ref()?;
    let own = status.container_statuses.iter().flatten();
    let init = status.init_container_statuses.iter().flatten();
    let found: &ContainerStatus = own.chain(init).find(|c| c.name == container)?;
    let state = found.state.as_ref()?;
    (state.running.is_some() || state.terminated.is_some()).then_some(found.restart_count)
}

/// Streams logs until `finished` resolves.
pub async fn follow(
    cluster: &Cluster,
    job: &Job,
    selection: &LogSelection,
    finished: impl Future<Output = Result<End>>,
) -> Result<End> {
    let (send, mut lines) = mpsc::channel(QUEUE_CAPACITY);
    let mut reader = Reader {
        cluster,
        job,
        selection,
        opened: BTreeSet::new(),
        tasks: JoinSet::new(),
        send,
    };
    let mut printer = Printer::new();
    let of_job = watcher::Config::default().labels(&job.kind.pod_selector(job.name()));
    let mut pods = pin!(watcher(cluster.api::<Pod>(), of_job).default_backoff());
    let mut finished = pin!(finished);
    let end = loop {
        tokio::select! {
            Some(line) = lines.recv() => printer.print(&line)?,
            event = pods.next() => match event.context("the watch of pods ended")? {
                Ok(Event::Apply(pod) | Event::InitApply(pod)) => reader.open(pod),
                Ok(Event::Init | Event::InitDone | Event::Delete(_)) => {}
                Err(error) => if let Some(error) = wait::permanent_error(error) {
                    return Err(explain(error));
                },
            },
            end = &mut finished => break end?,
        }
    };
    // The watch may have missed containers that started shortly before the job finished.
    for member in cluster.pods(job).await.unwrap_or_default() {
        reader.open(member.pod);
    }
    let Reader {
        mut tasks, send, ..
    } = reader;
    drop(send);
    let rest = async {
        while let Some(line) = lines.recv().await {
            printer.print(&line)?;
        }
        anyhow::Ok(())
    };
    timeout(DRAIN_TIMEOUT, rest).await.unwrap_or(Ok(()))?;
    tasks.abort_all();
    Ok(end)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tests::assert_documented;

    fn line(rank: &str, text: &str) -> Line {
        Line {
            rank: rank.to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn logs_look_as_documented() {
        let mut printer = Printer::new();
        printer.colours = false;
        let said = [
            ("master-0", 1, 71),
            ("worker-0", 1, 69),
            ("worker-1", 1, 70),
        ];
        let lines = said.map(|(rank, epoch, loss)| {
            printer.format(&line(rank, &format!("epoch {epoch}, loss 0.{loss}")))
        });
        assert_documented("logs ddp", &lines);
    }

    #[test]
    fn lines_have_their_rank_in_one_column() {
        let mut printer = Printer::new();
        printer.colours = false;
        printer.register("worker-10");
        assert_eq!(
            printer.format(&line("master-0", "a | b")),
            "master-0  | a | b"
        );
        printer.colours = true;
        assert_eq!(
            printer.format(&line("worker-10", "x")),
            "\u{1b}[36mworker-10 | \u{1b}[0mx"
        );
    }

    #[test]
    fn a_container_is_read_once_per_start() {
        let pod = |state: serde_json::Value, restarts: i32| -> Pod {
            let status = json!({ "containerStatuses": [{
                "name": "pytorch", "image": "", "imageID": "", "ready": false, "restartCount": restarts, "state": state,
            }] });
            serde_json::from_value(json!({ "metadata": {}, "status": status })).unwrap()
        };
        let waits = json!({ "waiting": { "reason": "ContainerCreating" } });
        let runs = json!({ "running": { "startedAt": "2026-01-01T00:00:00Z" } });
        let ended = json!({ "terminated": { "exitCode": 1 } });
        assert_eq!(restarts_if_started(&pod(waits, 0), "pytorch"), None);
        assert_eq!(
            restarts_if_started(&pod(runs.clone(), 0), "pytorch"),
            Some(0)
        );
        assert_eq!(restarts_if_started(&pod(ended, 2), "pytorch"), Some(2));
        assert_eq!(restarts_if_started(&pod(runs, 0), "other"), None);
    }
}
