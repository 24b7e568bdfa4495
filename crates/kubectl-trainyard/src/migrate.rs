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
use training_core::{Phase, Severity};
use training_runtime::frame::now;

use self::webhooks::Webhooks;
use crate::cluster::{Cluster, code, explain};
use crate::flags::Flags;
use crate::job::Job;
use crate::kinds::{self, Kind, Shape};
use crate::out::{self, Line, Style};
use crate::state::{self, State};
use crate::{others, render};

/// An operator of another project.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Other {
    /// The Kubeflow training operator.
    #[value(name = "training-operator")]
    Training,
    /// The Kubeflow MPI operator.
    #[value(name = "mpi-operator")]
    Mpi,
    /// The Kubeflow Spark operator.
    #[value(name = "spark-operator")]
    Spark,
}

impl Other {
    fn name(self) -> &'static str {
        match self {
            Self::Training => "training-operator",
            Self::Mpi => "mpi-operator",
            Self::Spark => "spark-operator",
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
    /// The namespace of its Deployments; `None` for all namespaces.
    namespace: Option<String>,
    /// The Deployments that run it.
    deployments: Vec<Deployment>,
    webhooks: Vec<Webhooks>,
    /// The kinds that it serves.
    kinds: Vec<Kind>,
    /// The Deployments of this project's operators for these kinds.
    ours: Vec<Deployment>,
}

/// Shows what needs attention, stops the other operator, or starts it again. A namespace restricts it to the Deployments there.
pub async fn run(
    mut cluster: Cluster,
    other: Other,
    namespace: Option<&str>,
    action: Action,
) -> Result<()> {
    cluster.namespace.clear();
    let found = find(&cluster, other, namespace).await?;
    match action {
        Action::Show => {
            let mut lines = found.lines();
            match unserved(&cluster, other).await {
                Ok(unserved) => {
                    lines.extend(unserved.map(|text| Line::new(Style::Bad, format!("x  {text}"))));
                }
                Err(error) => lines.extend(out::not_shown(&[format!("{error:#}")])),
            }
            lines.extend(attention(&cluster, &found).await?);
            lines.extend(found.steps(1));
            lines.push(Line::plain("Nothing was changed.".to_owned()));
            out::print(&lines)
        }
        Action::Apply => {
            // Other Deployments may serve them.
            if namespace.is_none()
                && let Some(text) = unserved(&cluster, other).await?
            {
                bail!("{text}");
            }
            switch::stop(&cluster, &found).await?;
            out::print(&found.steps(3))
        }
        Action::Undo => switch::start(&cluster, &found).await,
    }
}

async fn find(cluster: &Cluster, other: Other, namespace: Option<&str>) -> Result<Found> {
    let all = cluster.every::<Deployment>().await.map_err(explain)?;
    let name = other.name();
    let (mut deployments, mut served) = (Vec::new(), Vec::new());
    for deployment in &all {
        let is_here = namespace.is_none_or(|n| deployment.namespace().as_deref() == Some(n));
        if let Some(of) = others::of(deployment).filter(|of| is_here && of.name == name) {
            served.extend(of.kinds);
            deployments.push(deployment.clone());
        }
    }
    if deployments.is_empty() {
        let place = namespace.map_or("this cluster".to_owned(), |n| format!("namespace {n}"));
        bail!(
            "no Deployment of {place} has an image named {name}: check --from, --namespace and --context"
        );
    }
    let mut kinds = kinds::all();
    kinds.retain(|kind| served.contains(&kind.name()));
    let is_ours = |deployment: &&Deployment| {
        let mut kinds = kinds.iter();
        kinds.any(|kind| kind.operator.is_run_by(deployment))
    };
    let ours = all.iter().filter(is_ours).cloned().collect();
    Ok(Found {
        other,
        namespace: namespace.map(str::to_owned),
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
    /// Describes the Deployments with their flags, and the webhooks.
    fn lines(&self) -> Vec<Line> {
        let deployments = self.deployments.iter().map(|deployment| {
            let at = place(deployment);
            let replicas = deployment.spec.replicas.unwrap_or(1);
            let Some(of) = others::of(deployment) else {
                return at;
            };
            let (flags, what) = (of.flags().join(" "), of.serves());
            let flags = Some(flags).filter(|flags| !flags.is_empty());
            let flags = flags.map(|flags| format!(", with {flags}"));
            format!(
                "Deployment {at} (replicas: {replicas}) serves {what}{}",
                flags.unwrap_or_default()
            )
        });
        let webhooks = self.webhooks.iter().map(Webhooks::describe_policies);
        deployments.chain(webhooks).map(Line::plain).collect()
    }

    /// Returns what is left to do from this step on.
    fn steps(&self, first: usize) -> Vec<Line> {
        let name = self.other.name();
        let mut own: Vec<&str> = self.kinds.iter().map(|kind| kind.operator.name).collect();
        own.dedup();
        let restricted = self.namespace.as_ref().map(|n| format!(" -n {n}"));
        let mut steps = vec![
            "Push the images, and set them and the flags in the manifests: docs/install.md"
                .to_owned(),
            format!(
                "kubectl trainyard migrate --from {name}{} --apply",
                restricted.unwrap_or_default()
            ),
        ];
        let install = "kubectl apply --server-side --force-conflicts -k manifests";
        steps.extend(own.iter().map(|name| format!("{install}/{name}")));
        if self.other == Other::Spark {
            let jobs = "kubectl apply -k manifests/spark-operator/jobs";
            steps.push(format!(
                "{jobs}, for each namespace of jobs: docs/migrate-spark.md"
            ));
        }
        steps.push("kubectl trainyard preflight".to_owned());
        for deployment in &self.deployments {
            let namespace = deployment.namespace().unwrap_or_default();
            let release = deployment.annotations().get("meta.helm.sh/release-name");
            let step = release.map_or_else(
                || {
                    let name = deployment.name_any();
                    format!("kubectl -n {namespace} delete deployment {name}")
                },
                |release| {
                    format!(
                        "helm -n {namespace} uninstall {release}, once no application runs: docs/migrate-spark.md"
                    )
                },
            );
            if !steps.contains(&step) {
                steps.push(step);
            }
        }
        let whole = self.webhooks.iter().filter(|webhooks| webhooks.is_whole());
        steps.extend(
            whole.map(|webhooks| {
                format!("kubectl delete --ignore-not-found {}", webhooks.describe())
            }),
        );
        let numbered = steps.into_iter().enumerate().skip(first - 1);
        let lines = numbered.map(|(at, step)| Line::plain(format!("{:>2}. {step}", at + 1)));
        let title = Line::new(Style::Strong, "Next:".to_owned());
        std::iter::once(title).chain(lines).collect()
    }
}

/// Names the objects that no operator of this project serves.
async fn unserved(cluster: &Cluster, other: Other) -> Result<Option<String>> {
    for resource in others::unserved(other.name()) {
        let api = cluster.any(&resource);
        let count = match api.list_metadata(&ListParams::default()).await {
            Ok(list) => list.items.len(),
            Err(error) if code(&error) == 404 => 0,
            Err(error) => return Err(explain(error)),
        };
        if count > 0 {
            return Ok(Some(format!(
                "no operator of this project serves {} ({count} objects): delete these, or keep {} for them",
                resource.plural,
                other.name()
            )));
        }
    }
    Ok(None)
}

/// Returns the unfinished jobs that the new operator would warn about or refuse.
async fn attention(cluster: &Cluster, found: &Found) -> Result<Vec<Line>> {
    let (jobs, unreadable) = cluster.jobs().await?;
    let is_served = |job: &&Job| {
        let mut kinds = found.kinds.iter();
        kinds.any(|kind| kind.name() == job.kind.name()) && !state::of(job).phase.is_finished()
    };
    let (mut total, mut concerned, mut drivers) = (0_usize, 0_usize, 0_usize);
    let mut lines = Vec::new();
    for job in jobs.iter().filter(is_served) {
        total += 1;
        let has_driver =
            matches!(job.kind.shape, Shape::Application) && state::of(job).phase.is_active();
        drivers += usize::from(has_driver);
        let of_job = attention_of(job);
        concerned += usize::from(!of_job.is_empty());
        lines.extend(of_job);
    }
    let title = format!("{concerned} of {total} unfinished jobs need attention");
    lines.insert(0, Line::plain(title));
    if drivers > 0 && found.webhooks.iter().any(Webhooks::mutates) {
        let text = format!(
            "!  {drivers} SparkApplications are active: executors that their drivers create after --apply lack the volumes and tolerations that only the webhook adds; wait until they finish"
        );
        lines.insert(1, Line::new(Style::Warn, text));
    }
    lines.extend(out::not_shown(&unreadable));
    Ok(lines)
}

fn attention_of(job: &Job) -> Vec<Line> {
    let State { phase, text, .. } = state::of(job);
    let (kind, namespace, name) = (job.kind.name(), job.namespace(), job.name());
    let title = format!("{kind} {namespace}/{name}  {text}");
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
            Err(error) => return vec![rejected(&title, phase, &error.to_string())],
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
        Err(error) => return vec![rejected(&title, phase, &format!("{error:#}"))],
    };
    let warnings = rendered.notes.iter();
    let warnings = warnings.filter(|note| note.severity == Severity::Warning);
    let mut lines: Vec<Line> = warnings
        .map(|note| {
            let text = format!("!  {title}: {}: {}", note.reason, note.message);
            Line::new(Style::Warn, text)
        })
        .collect();
    lines.extend(
        rendered
            .refused
            .iter()
            .map(|why| rejected(&title, phase, why)),
    );
    lines
}

fn rejected(title: &str, phase: Phase, why: &str) -> Line {
    // Runs that have started are not validated again.
    let text = if phase.is_active() {
        format!("x  {title}: keeps running, but a new run would be rejected: {why}")
    } else {
        format!("x  {title}: would be rejected: {why}")
    };
    Line::new(Style::Bad, text)
}
