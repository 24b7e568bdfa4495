//! Moves the jobs of another operator to this project's: shows what needs attention, stops the other operator, or starts it again.
//!
//! - [`switch`]: stops and starts; [`webhooks`]: the other operator's webhooks

mod switch;
mod webhooks;

use anyhow::{Result, bail};
use clap::ValueEnum;
use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt as _;
use kube::api::ListParams;
use serde_json::json;
use training_core::Severity;
use training_runtime::frame::now;

use self::webhooks::Webhooks;
use crate::cluster::{Cluster, code, explain};
use crate::flags::Flags;
use crate::job::Job;
use crate::kinds::{self, Kind, Shape};
use crate::out::{self, Line, Style};
use crate::{others, render, state};

/// An operator of another project.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Other {
    /// The Kubeflow training operator.
    TrainingOperator,
    /// The Kubeflow MPI operator.
    MpiOperator,
    /// The Kubeflow Spark operator.
    SparkOperator,
}

impl Other {
    fn name(self) -> &'static str {
        match self {
            Self::TrainingOperator => "training-operator",
            Self::MpiOperator => "mpi-operator",
            Self::SparkOperator => "spark-operator",
        }
    }
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Only show what needs attention.
    Show,
    /// Stop the other operator.
    Apply,
    /// Start the other operator again.
    Undo,
}

/// Another operator in the cluster.
struct Found {
    other: Other,
    /// The Deployments that run it.
    deployments: Vec<Deployment>,
    webhooks: Vec<Webhooks>,
    /// The kinds that it serves.
    kinds: Vec<Kind>,
    /// The Deployments of this project's operators for these kinds.
    ours: Vec<Deployment>,
}

/// Shows what needs attention, stops the other operator, or starts it again.
pub async fn run(mut cluster: Cluster, other: Other, action: Action) -> Result<()> {
    cluster.namespace.clear();
    let found = find(&cluster, other).await?;
    match action {
        Action::Show => {
            let mut lines = found.lines();
            lines.extend(found.flags());
            lines.extend(unserved(&cluster, other).await?);
            lines.extend(attention(&cluster, &found).await?);
            lines.extend(found.steps(1));
            lines.push(Line::plain("Nothing was changed.".to_owned()));
            out::print(&lines)
        }
        Action::Apply => {
            if let Some(line) = unserved(&cluster, other).await?.first() {
                bail!("{}", line.text.trim_start_matches("x  "));
            }
            switch::stop(&cluster, &found).await?;
            out::print(&found.steps(2))
        }
        Action::Undo => switch::start(&cluster, &found).await,
    }
}

async fn find(cluster: &Cluster, other: Other) -> Result<Found> {
    let all = cluster.every::<Deployment>().await.map_err(explain)?;
    let name = other.name();
    let (mut deployments, mut served) = (Vec::new(), Vec::new());
    for deployment in &all {
        if let Some(of) = others::of(deployment).filter(|of| of.name == name) {
            served.extend(of.kinds);
            deployments.push(deployment.clone());
        }
    }
    if deployments.is_empty() {
        bail!("no Deployment of this cluster runs {name}: check --from and --context");
    }
    let mut kinds = kinds::all();
    kinds.retain(|kind| served.iter().any(|of| of.eq_ignore_ascii_case(kind.name())));
    let serves = |deployment: &&Deployment| {
        let mut kinds = kinds.iter();
        kinds.any(|kind| kind.operator.is_run_by(deployment))
    };
    let ours = all.iter().filter(serves).cloned().collect();
    Ok(Found {
        other,
        webhooks: webhooks::of(cluster, name, &deployments).await?,
        deployments,
        kinds,
        ours,
    })
}

/// Returns `namespace/name`.
fn place(deployment: &Deployment) -> String {
    let namespace = deployment.namespace().unwrap_or_default();
    format!("{namespace}/{}", deployment.name_any())
}

impl Found {
    fn lines(&self) -> Vec<Line> {
        let kinds: Vec<&str> = self.kinds.iter().map(Kind::name).collect();
        let deployments = self.deployments.iter().map(|deployment| {
            let replicas = deployment.spec.replicas.unwrap_or(1);
            let what = match others::of(deployment) {
                Some(of) if of.is_webhook() => "webhooks".to_owned(),
                _ => kinds.join(", "),
            };
            let at = place(deployment);
            format!("Deployment {at} (replicas: {replicas}) serves {what}")
        });
        let webhooks = self.webhooks.iter().map(Webhooks::describe);
        deployments.chain(webhooks).map(Line::plain).collect()
    }

    /// Returns the flags of the other operator: which to set here, and which have no effect here.
    fn flags(&self) -> Vec<Line> {
        let mut lines: Vec<Line> = Vec::new();
        for deployment in &self.deployments {
            let Some(of) = others::of(deployment).filter(|of| !of.is_webhook()) else {
                continue;
            };
            let adopted = self.kinds.iter().map(|kind| {
                let name = kind.operator.name;
                (name, kind.operator.adopt(of.container))
            });
            let (known, unknown): (Vec<_>, Vec<_>) =
                adopted.partition(|(_, adopted)| adopted.is_ok());
            for (name, adopted) in known
                .into_iter()
                .filter_map(|(name, a)| Some((name, a.ok()?)))
            {
                if !adopted.same.is_empty() {
                    let flags = adopted.same.join(" ");
                    lines.push(Line::plain(format!("set on {name}: {flags}")));
                }
                if !adopted.without_effect.is_empty() {
                    let flags = adopted.without_effect.join(" ");
                    lines.push(Line::plain(format!("no effect on {name}: {flags}")));
                }
            }
            for (name, error) in unknown
                .into_iter()
                .filter_map(|(name, a)| Some((name, a.err()?)))
            {
                lines.push(Line::new(Style::Warn, format!("!  {name}: {error:#}")));
            }
        }
        let mut seen = std::collections::BTreeSet::new();
        lines.retain(|line| seen.insert(line.text.clone()));
        lines
    }

    /// Returns what is left to do from this step on.
    fn steps(&self, first: usize) -> Vec<Line> {
        let command = format!("kubectl trainyard migrate --from {}", self.other.name());
        let mut steps = vec![format!("{command} --apply")];
        let mut operators: Vec<&str> = self.kinds.iter().map(|kind| kind.operator.name).collect();
        operators.dedup();
        let install = "kubectl apply --server-side --force-conflicts -k manifests";
        steps.extend(operators.iter().map(|name| format!("{install}/{name}")));
        steps.push("kubectl trainyard preflight".to_owned());
        for deployment in &self.deployments {
            let namespace = deployment.namespace().unwrap_or_default();
            let name = deployment.name_any();
            steps.push(format!("kubectl -n {namespace} delete deployment {name}"));
        }
        let whole = self.webhooks.iter().filter(|webhooks| webhooks.is_whole());
        steps.extend(whole.map(|webhooks| format!("kubectl delete {}", webhooks.describe())));
        let numbered = steps.into_iter().enumerate().skip(first - 1);
        let lines = numbered.map(|(at, step)| Line::plain(format!("{:>2}. {step}", at + 1)));
        let title = Line::new(Style::Strong, "Next:".to_owned());
        std::iter::once(title).chain(lines).collect()
    }
}

/// Returns the kinds with objects that no operator of this project serves.
async fn unserved(cluster: &Cluster, other: Other) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for resource in others::unserved(other.name()) {
        let api = cluster.any(&resource);
        let found = match api.list_metadata(&ListParams::default()).await {
            Ok(list) => list.items.len(),
            Err(error) if [403, 404].contains(&code(&error)) => 0,
            Err(error) => return Err(explain(error)),
        };
        if found > 0 {
            let kind = &resource.kind;
            let text = format!(
                "x  {kind}: no operator of this project serves the {found} objects: delete them, or keep {} for their namespaces",
                other.name()
            );
            lines.push(Line::new(Style::Bad, text));
        }
    }
    Ok(lines)
}

/// Returns the unfinished jobs that the new operator would warn about or refuse.
async fn attention(cluster: &Cluster, found: &Found) -> Result<Vec<Line>> {
    let (jobs, unreadable) = cluster.jobs().await?;
    let is_served = |job: &&Job| {
        let mut kinds = found.kinds.iter();
        kinds.any(|kind| kind.name() == job.kind.name()) && !state::of(job).phase.is_finished()
    };
    let (mut total, mut concerned) = (0_usize, 0_usize);
    let mut lines = Vec::new();
    for job in jobs.iter().filter(is_served) {
        total += 1;
        let of_job = attention_of(job);
        concerned += usize::from(!of_job.is_empty());
        lines.extend(of_job);
    }
    let title = format!("{concerned} of {total} unfinished jobs get warnings or would be refused");
    lines.insert(0, Line::plain(title));
    lines.extend(out::not_shown(&unreadable));
    Ok(lines)
}

fn attention_of(job: &Job) -> Vec<Line> {
    let title = format!(
        "{} {}/{}  {}",
        job.kind.name(),
        job.namespace(),
        job.name(),
        state::of(job).text
    );
    if job.other_manager().is_some() {
        return Vec::new();
    }
    let mut manifest = job.value.clone();
    let mut kind = job.kind.clone();
    if matches!(kind.shape, Shape::Schedule) {
        // Its runs are SparkApplications.
        manifest["spec"] = manifest["spec"]["template"].take();
        manifest["kind"] = json!("SparkApplication");
        match kinds::of_manifest(&manifest) {
            Ok(application) => kind = application,
            Err(error) => return vec![refused(&title, &error.to_string())],
        }
    }
    // A suspended job is checked as well.
    if let Some(policy) = manifest.pointer_mut(match kind.shape {
        Shape::Replicas(_) => "/spec/runPolicy",
        Shape::Application | Shape::Schedule => "/spec",
    }) && let Some(policy) = policy.as_object_mut()
    {
        policy.remove("suspend");
    }
    let rendered = Flags::shipped(&kind, "")
        .and_then(|flags| render::of(manifest, job.namespace(), &flags, now()));
    let rendered = match rendered {
        Ok(rendered) => rendered,
        Err(error) => return vec![refused(&title, &format!("{error:#}"))],
    };
    let warnings = rendered.notes.iter();
    let warnings = warnings.filter(|note| note.severity == Severity::Warning);
    let mut lines: Vec<Line> = warnings
        .map(|note| {
            let text = format!("!  {title}: {}: {}", note.reason, note.message);
            Line::new(Style::Warn, text)
        })
        .collect();
    lines.extend(rendered.refused.iter().map(|why| refused(&title, why)));
    lines
}

fn refused(title: &str, why: &str) -> Line {
    // Runs that have started are not validated again.
    Line::new(
        Style::Bad,
        format!("x  {title}: refused when it starts: {why}"),
    )
}
