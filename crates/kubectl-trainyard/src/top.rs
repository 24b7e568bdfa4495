//! Shows what the jobs of a namespace, or of all, hold and wait for.

use std::collections::BTreeMap;

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use serde::Serialize;
use training_core::Phase;
use training_core::quantity::{self, Amount, Amounts};

use crate::cluster::{Cluster, Usage};
use crate::job::{self, Job, Member};
use crate::kinds::{self, Shape};
use crate::out::{self, Line, Output};
use crate::state;

/// The unfinished jobs of a kind in a namespace, or one of them, and their pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The namespace.
    pub namespace: String,
    /// The kind.
    pub kind: String,
    /// The job, if this row is about one.
    #[serde(skip)]
    pub job: Option<String>,
    /// Jobs that start, run or restart.
    pub active: usize,
    /// Jobs that wait, or have no status.
    pub waiting: usize,
    /// Suspended jobs.
    pub suspended: usize,
    /// The requests of pods that have a node.
    pub held: Share,
    /// The requests of pods that have none.
    pub pending: Share,
    /// What the pods use, if a metrics server answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used: Option<BTreeMap<String, String>>,
}

/// Pods and the sum of their requests, as the scheduler counts them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Share {
    /// The number of pods.
    pub pods: usize,
    /// Quantities by resource.
    pub requests: BTreeMap<String, String>,
}

/// Sums while pods are counted.
#[derive(Default)]
struct Sums {
    row: Row,
    held: Amounts,
    pending: Amounts,
    used: Amounts,
}

/// What each row is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// A kind in a namespace.
    Kind,
    /// A job.
    Job,
}

/// Prints a row for each kind in each namespace, or, if the output is wide, for each job.
pub async fn print(cluster: &Cluster, output: Output) -> Result<()> {
    let (jobs, mut unreadable) = cluster.jobs().await?;
    let pods = cluster.all_pods(&mut unreadable).await?;
    let usage = cluster.usage().await;
    let by = match output {
        Output::Wide => By::Job,
        Output::Text | Output::Json | Output::Yaml => By::Kind,
    };
    let rows = rows(by, &jobs, pods, usage.as_ref());
    if let Some(format) = output.data() {
        return out::print_data(&rows, format);
    }
    let mut lines = lines(&rows);
    lines.extend(out::not_shown(&unreadable));
    out::print(&lines)
}

/// Counts unfinished jobs and their pods. A schedule has none of its own.
pub fn rows(by: By, jobs: &[Job], pods: Vec<Pod>, usage: Option<&Usage>) -> Vec<Row> {
    let mut by_label: BTreeMap<(String, String), Vec<Pod>> = BTreeMap::new();
    let names = kinds::pod_labels();
    for pod in pods {
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let labels = pod.metadata.labels.clone().unwrap_or_default();
        for (key, value) in labels {
            let selector = format!("{key}={value}");
            if names.contains(key.as_str()) {
                let of_job = by_label.entry((namespace.clone(), selector)).or_default();
                of_job.push(pod.clone());
            }
        }
    }
    let mut sums: BTreeMap<(String, String, Option<String>), Sums> = BTreeMap::new();
    for job in jobs {
        let phase = state::of(job).phase;
        if phase.is_finished() || matches!(job.kind.shape, Shape::Schedule) {
            continue;
        }
        let kind = job.kind.name().to_owned();
        let name = (by == By::Job).then(|| job.name().to_owned());
        let sum = sums.entry((job.namespace().to_owned(), kind, name));
        let sum = sum.or_default();
        match phase {
            Phase::Suspended => sum.row.suspended += 1,
            phase if phase.is_active() => sum.row.active += 1,
            _ => sum.row.waiting += 1,
        }
        let selector = job.kind.pod_selector(job.name());
        let of_job = by_label.remove(&(job.namespace().to_owned(), selector));
        for member in job::members(job, of_job.unwrap_or_default()) {
            sum.count(&member, usage);
        }
    }
    let rows = sums.into_iter().map(|((namespace, kind, job), sum)| Row {
        namespace,
        kind,
        job,
        held: share(sum.row.held.pods, sum.held),
        pending: share(sum.row.pending.pods, sum.pending),
        used: usage.map(|_| texts(sum.used)),
        ..sum.row
    });
    rows.collect()
}

impl Sums {
    fn count(&mut self, member: &Member, usage: Option<&Usage>) {
        let Some(spec) = member.pod.spec.as_ref() else {
            return;
        };
        if member.view.phase.has_ended() {
            return;
        }
        let (share, requests) = if spec.node_name.is_some() {
            (&mut self.row.held, &mut self.held)
        } else {
            (&mut self.row.pending, &mut self.pending)
        };
        share.pods += 1;
        quantity::add(requests, &quantity::of_pod(spec), 1);
        let namespace = member.pod.metadata.namespace.clone().unwrap_or_default();
        let used = usage.and_then(|usage| usage.get(&(namespace, member.name.clone())));
        if let Some(used) = used {
            quantity::add(&mut self.used, used, 1);
        }
    }
}

fn share(pods: usize, requests: Amounts) -> Share {
    Share {
        pods,
        requests: texts(requests),
    }
}

fn texts(amounts: Amounts) -> BTreeMap<String, String> {
    let text = |(name, amount)| (name, rounded(amount));
    amounts.into_iter().map(text).collect()
}

/// Returns a quantity without digits that nobody reads: a metrics server counts billionths of a CPU and KiB.
fn rounded(amount: Amount) -> String {
    let text = amount.to_quantity().0;
    let scaled = |unit: &str, by: u64, larger: &str| {
        let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
        Some(format!("{}{larger}", number.div_ceil(by)))
    };
    scaled("n", 1_000_000, "m")
        .or_else(|| scaled("u", 1_000, "m"))
        .or_else(|| scaled("Ki", 1_024, "Mi"))
        .unwrap_or(text)
}

/// Returns the lines of output.
pub fn lines(rows: &[Row]) -> Vec<Line> {
    if rows.is_empty() {
        return vec![Line::plain("no unfinished jobs".to_owned())];
    }
    out::table(&table(rows)).map(Line::plain).collect()
}

/// Returns the cells, with a header.
fn table(rows: &[Row]) -> Vec<Vec<String>> {
    let has_usage = rows.iter().any(|row| row.used.is_some());
    let mut header = vec!["NAMESPACE", "KIND"];
    header.extend(rows.iter().any(|row| row.job.is_some()).then_some("JOB"));
    header.extend([
        "ACTIVE",
        "WAITING",
        "SUSPENDED",
        "PODS",
        "CPU",
        "MEMORY",
        "DEVICES",
        "PENDING",
        "CPU",
        "MEMORY",
        "DEVICES",
    ]);
    if has_usage {
        header.extend(["USED CPU", "USED MEMORY"]);
    }
    let mut all = vec![header.into_iter().map(str::to_owned).collect()];
    for row in rows {
        let mut cells = vec![row.namespace.clone(), row.kind.clone()];
        cells.extend(row.job.clone());
        cells.extend([row.active, row.waiting, row.suspended].map(|n| n.to_string()));
        for share in [&row.held, &row.pending] {
            cells.push(share.pods.to_string());
            cells.extend(["cpu", "memory"].map(|name| cell(&share.requests, name)));
            cells.push(devices(&share.requests));
        }
        if has_usage {
            let used = row.used.clone().unwrap_or_default();
            cells.extend(["cpu", "memory"].map(|name| cell(&used, name)));
        }
        all.push(cells);
    }
    all
}

fn cell(amounts: &BTreeMap<String, String>, name: &str) -> String {
    let amount = amounts.get(name).map_or("0", String::as_str);
    amount.to_owned()
}

/// Joins the amounts of devices, whose names have a domain.
fn devices(amounts: &BTreeMap<String, String>) -> String {
    let devices = amounts.iter().filter(|(name, _)| name.contains('/'));
    let texts: Vec<String> = devices.map(|(name, n)| format!("{n} {name}")).collect();
    if texts.is_empty() {
        "-".to_owned()
    } else {
        texts.join(", ")
    }
}
