//! Moves the jobs of another operator to this project's: shows what changes for them, stops the other operator, or starts it again.
//!
//! Jobs are not touched. The other operator is scaled to zero, and its webhooks no longer have to answer; annotations keep how both
//! were before.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt as _;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::ApiResource;
use serde_json::{Value, json};
use training_core::Severity;
use training_runtime::frame::now;

use crate::cluster::{Cluster, explain};
use crate::control::MANAGER;
use crate::flags::Flags;
use crate::job::Job;
use crate::kinds::{self, Kind, Shape};
use crate::out::{self, Line, Style};
use crate::{others, render, state};

/// On a Deployment that was scaled to zero: its former replicas.
const REPLICAS: &str = "trainyard.dev/migrated-replicas";
/// On a webhook configuration: the former failure policies of its webhooks, in their order, separated by commas.
const POLICIES: &str = "trainyard.dev/migrated-failure-policies";
/// The time in which a stopped operator's pods end.
const STOP_TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_secs(1);

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
    /// Only show what would change.
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
    /// The configurations of its webhooks.
    webhooks: Vec<Webhooks>,
    /// The kinds that it serves.
    kinds: Vec<Kind>,
    /// The Deployments of this project's operators for these kinds that are not scaled to zero.
    ours: Vec<String>,
}

/// A configuration of webhooks.
struct Webhooks {
    /// Its resource in words of kubectl.
    resource: &'static str,
    api: ApiResource,
    object: DynamicObject,
}

impl Webhooks {
    /// Returns the webhooks as data.
    fn all(&self) -> &[Value] {
        self.object.data["webhooks"]
            .as_array()
            .map_or(&[], Vec::as_slice)
    }

    /// Returns the namespaces and names of the Services that answer.
    fn services(&self) -> impl Iterator<Item = (&str, &str)> {
        self.all().iter().filter_map(|webhook| {
            let service = &webhook["clientConfig"]["service"];
            Some((service["namespace"].as_str()?, service["name"].as_str()?))
        })
    }

    fn describe(&self) -> String {
        format!("{} {}", self.resource, self.object.name_any())
    }

    /// Returns the configuration with these failure policies, and with or without the annotation of the former ones.
    fn with_policies(&self, policies: &[String], former: Option<&str>) -> Value {
        let mut webhooks = self.all().to_vec();
        for (webhook, policy) in webhooks.iter_mut().zip(policies) {
            webhook["failurePolicy"] = json!(policy);
        }
        json!({
            "metadata": {
                "resourceVersion": self.object.resource_version(),
                "annotations": { POLICIES: former },
            },
            "webhooks": webhooks,
        })
    }
}

/// Prints what would change, stops the other operator, or starts it again.
pub async fn print(mut cluster: Cluster, other: Other, action: Action) -> Result<()> {
    cluster.namespace.clear();
    let found = find(&cluster, other).await?;
    let lines = match action {
        Action::Show => {
            let mut lines = found.lines();
            lines.extend(flags_without_effect(&found));
            lines.extend(changes(&cluster, &found).await?);
            lines.extend(found.steps(1));
            lines.push(Line::plain("nothing was changed".to_owned()));
            lines
        }
        Action::Apply => {
            let mut lines = stop(&cluster, &found).await?;
            lines.extend(found.steps(2));
            lines
        }
        Action::Undo => start(&cluster, &found).await?,
    };
    out::print(&lines)
}

async fn find(cluster: &Cluster, other: Other) -> Result<Found> {
    let all = cluster.every::<Deployment>().await.map_err(explain)?;
    let name = other.name();
    let (mut deployments, mut served) = (Vec::new(), Vec::new());
    for deployment in &all {
        let Some((_, kinds)) = others::of(deployment).filter(|(of, _)| *of == name) else {
            continue;
        };
        deployments.push(deployment.clone());
        served.extend(kinds);
    }
    if deployments.is_empty() {
        bail!("no Deployment of this cluster runs {name}: check --from and --context");
    }
    let mut kinds = kinds::all();
    kinds.retain(|kind| served.iter().any(|of| of.eq_ignore_ascii_case(kind.name())));
    let ours = all.iter().filter(|deployment| {
        let mut kinds = kinds.iter();
        deployment.spec.replicas != Some(0) && kinds.any(|kind| kind.operator.is_run_by(deployment))
    });
    let ours = ours.map(place).collect();
    let webhooks = webhooks_of(cluster, &deployments).await?;
    Ok(Found {
        other,
        deployments,
        webhooks,
        kinds,
        ours,
    })
}

/// Finds the configurations whose Services select pods of these Deployments.
async fn webhooks_of(cluster: &Cluster, deployments: &[Deployment]) -> Result<Vec<Webhooks>> {
    let mut services = Vec::new();
    for deployment in deployments {
        let namespace = deployment.namespace().unwrap_or_default();
        let template = deployment.spec.template.metadata.as_ref();
        let labels = template.and_then(|m| m.labels.clone());
        let labels: BTreeMap<String, String> = labels.unwrap_or_default();
        let all: Vec<Service> = cluster.list_in(&namespace, "").await.map_err(explain)?;
        let selects = |service: &Service| {
            let selector = service.spec.as_ref().and_then(|s| s.selector.as_ref());
            selector.is_some_and(|selector| {
                !selector.is_empty() && selector.iter().all(|(k, v)| labels.get(k) == Some(v))
            })
        };
        let own = all.into_iter().filter(selects);
        services.extend(own.map(|service| (namespace.clone(), service.name_any())));
    }
    let mut found = Vec::new();
    for (resource, api) in [
        (
            "validatingwebhookconfiguration",
            ApiResource::erase::<ValidatingWebhookConfiguration>(&()),
        ),
        (
            "mutatingwebhookconfiguration",
            ApiResource::erase::<MutatingWebhookConfiguration>(&()),
        ),
    ] {
        for object in cluster.every_of(&api).await.map_err(explain)? {
            let webhooks = Webhooks {
                resource,
                api: api.clone(),
                object,
            };
            let is_own = |(namespace, name): (&str, &str)| {
                services.iter().any(|(n, s)| n == namespace && s == name)
            };
            if webhooks.services().any(is_own) {
                found.push(webhooks);
            }
        }
    }
    Ok(found)
}

fn place(deployment: &Deployment) -> String {
    let namespace = deployment.namespace().unwrap_or_default();
    format!("{namespace}/{}", deployment.name_any())
}

impl Found {
    fn lines(&self) -> Vec<Line> {
        let names: Vec<&str> = self.kinds.iter().map(Kind::name).collect();
        let deployments = self.deployments.iter().map(|deployment| {
            let replicas = deployment.spec.replicas.unwrap_or(1);
            let at = place(deployment);
            format!(
                "Deployment {at} (replicas: {replicas}) serves {}",
                names.join(", ")
            )
        });
        let webhooks = self.webhooks.iter().map(Webhooks::describe);
        deployments.chain(webhooks).map(Line::plain).collect()
    }

    /// Returns what is left to do from this step on.
    fn steps(&self, first: usize) -> Vec<Line> {
        let command = format!("kubectl trainyard migrate --from {}", self.other.name());
        let mut steps = vec![format!("{command} --apply   # stops it; jobs keep running")];
        let mut operators: Vec<&str> = self.kinds.iter().map(|kind| kind.operator.name).collect();
        operators.dedup();
        let install = "kubectl apply --server-side --force-conflicts -k manifests";
        steps.extend(operators.iter().map(|name| format!("{install}/{name}")));
        steps.push("kubectl trainyard preflight".to_owned());
        for deployment in &self.deployments {
            let namespace = deployment.namespace().unwrap_or_default();
            let name = deployment.name_any();
            let delete = format!("kubectl -n {namespace} delete deployment {name}");
            steps.push(format!(
                "{delete}   # until then, {command} --undo goes back"
            ));
        }
        for webhooks in &self.webhooks {
            steps.push(format!("kubectl delete {}", webhooks.describe()));
        }
        let numbered = steps.into_iter().enumerate().skip(first - 1);
        let lines = numbered.map(|(at, step)| Line::plain(format!("{:>2}. {step}", at + 1)));
        let title = Line::new(Style::Strong, "next:".to_owned());
        std::iter::once(title).chain(lines).collect()
    }
}

/// Returns the flags of the other operator that do nothing here, or that can't be read.
fn flags_without_effect(found: &Found) -> Vec<Line> {
    let mut lines = Vec::new();
    for kind in &found.kinds {
        for deployment in &found.deployments {
            let text = match kind.operator.settings_of_other(deployment) {
                Ok(settings) if settings.without_effect.is_empty() => continue,
                Ok(settings) => format!(
                    "{} ignores {}",
                    kind.operator.name,
                    settings.without_effect.join(", ")
                ),
                Err(error) => format!("{}: {error:#}", kind.operator.name),
            };
            let line = Line::new(Style::Warn, format!("!  flags: {text}"));
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
    }
    lines
}

/// Returns what would change for jobs that have not finished.
async fn changes(cluster: &Cluster, found: &Found) -> Result<Vec<Line>> {
    let (jobs, unreadable) = cluster.jobs().await?;
    let is_served = |job: &&Job| {
        let mut kinds = found.kinds.iter();
        kinds.any(|kind| kind.name() == job.kind.name()) && !state::of(job).phase.is_finished()
    };
    let jobs: Vec<Job> = jobs.iter().filter(is_served).cloned().collect();
    let mut lines = Vec::new();
    let mut changed = 0;
    for job in &jobs {
        let of_job = changes_of(job)?;
        changed += usize::from(!of_job.is_empty());
        lines.extend(of_job);
    }
    let total = jobs.len();
    let title = format!("unfinished jobs: {total}, of which {changed} would change");
    lines.insert(0, Line::plain(title));
    lines.extend(out::not_shown(&unreadable));
    Ok(lines)
}

fn changes_of(job: &Job) -> Result<Vec<Line>> {
    // Its runs are SparkApplications.
    if matches!(job.kind.shape, Shape::Schedule) || job.other_manager().is_some() {
        return Ok(Vec::new());
    }
    let flags = Flags::shipped(&job.kind, "")?;
    let rendered = render::of(job.value.clone(), job.namespace(), &flags, now())?;
    let title = format!(
        "{} {}/{}  {}",
        job.kind.name(),
        job.namespace(),
        job.name(),
        state::of(job).text
    );
    let warnings = rendered.notes.iter();
    let warnings = warnings.filter(|note| note.severity == Severity::Warning);
    let mut lines: Vec<Line> = warnings
        .map(|note| {
            let text = format!("!  {title}: {}: {}", note.reason, note.message);
            Line::new(Style::Warn, text)
        })
        .collect();
    let refused = rendered.refused.iter();
    lines.extend(refused.map(|why| Line::new(Style::Bad, format!("x  {title}: refused: {why}"))));
    Ok(lines)
}

/// Makes the webhooks optional, and scales the other operator to zero.
async fn stop(cluster: &Cluster, found: &Found) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for webhooks in &found.webhooks {
        if webhooks.object.annotations().contains_key(POLICIES) {
            continue;
        }
        let policy = |webhook: &Value| webhook["failurePolicy"].as_str().map(str::to_owned);
        let former: Vec<String> = webhooks
            .all()
            .iter()
            // The API server's default.
            .map(|webhook| policy(webhook).unwrap_or_else(|| "Fail".to_owned()))
            .collect();
        let ignore = vec!["Ignore".to_owned(); former.len()];
        let patch = webhooks.with_policies(&ignore, Some(&former.join(",")));
        update(cluster, webhooks, patch).await?;
        lines.push(Line::plain(format!(
            "{} no longer refuses requests when nobody answers",
            webhooks.describe()
        )));
    }
    for deployment in &found.deployments {
        let replicas = deployment.spec.replicas.unwrap_or(1);
        let at = place(deployment);
        if replicas == 0 {
            lines.push(Line::plain(format!("Deployment {at} is already stopped")));
            continue;
        }
        let patch = json!({
            "metadata": {
                "resourceVersion": deployment.resource_version(),
                "annotations": { REPLICAS: replicas.to_string() },
            },
            "spec": { "replicas": 0 },
        });
        scale(cluster, deployment, patch).await?;
        until_stopped(cluster, deployment).await?;
        lines.push(Line::plain(format!("Deployment {at} is stopped")));
    }
    Ok(lines)
}

/// Scales the other operator to its former replicas, and restores its webhooks.
async fn start(cluster: &Cluster, found: &Found) -> Result<Vec<Line>> {
    if let Some(ours) = found.ours.first() {
        let (namespace, name) = ours.split_once('/').unwrap_or_default();
        bail!(
            "Deployment {ours} still runs, and two operators must not serve the same jobs: kubectl -n {namespace} scale deployment {name} --replicas=0"
        );
    }
    let mut lines = Vec::new();
    for deployment in &found.deployments {
        let at = place(deployment);
        let Some(replicas) = deployment.annotations().get(REPLICAS) else {
            lines.push(Line::plain(format!(
                "Deployment {at} was not stopped by migrate"
            )));
            continue;
        };
        let replicas: i32 = replicas
            .parse()
            .with_context(|| format!("Deployment {at} has an invalid annotation {REPLICAS}"))?;
        let patch = json!({
            "metadata": {
                "resourceVersion": deployment.resource_version(),
                "annotations": { REPLICAS: null },
            },
            "spec": { "replicas": replicas },
        });
        scale(cluster, deployment, patch).await?;
        lines.push(Line::plain(format!(
            "Deployment {at} has {replicas} replicas again"
        )));
    }
    for webhooks in &found.webhooks {
        let annotations = webhooks.object.annotations();
        let Some(former) = annotations.get(POLICIES) else {
            continue;
        };
        let former: Vec<String> = former.split(',').map(str::to_owned).collect();
        let patch = webhooks.with_policies(&former, None);
        update(cluster, webhooks, patch).await?;
        lines.push(Line::plain(format!("{} is as before", webhooks.describe())));
    }
    Ok(lines)
}

fn manager() -> PatchParams {
    PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    }
}

async fn update(cluster: &Cluster, webhooks: &Webhooks, patch: Value) -> Result<()> {
    let api = cluster.any(&webhooks.api);
    let name = webhooks.object.name_any();
    let patched = api.patch(&name, &manager(), &Patch::Merge(patch)).await;
    patched.map(drop).map_err(explain)
}

async fn scale(cluster: &Cluster, deployment: &Deployment, patch: Value) -> Result<()> {
    let namespace = deployment.namespace().unwrap_or_default();
    let api = cluster.api_in::<Deployment>(&namespace);
    let patch = Patch::Merge(patch);
    let patched = api.patch(&deployment.name_any(), &manager(), &patch).await;
    patched.map(drop).map_err(explain)
}

/// Waits until a Deployment that was scaled to zero has no pods.
async fn until_stopped(cluster: &Cluster, deployment: &Deployment) -> Result<()> {
    let (namespace, name) = (
        deployment.namespace().unwrap_or_default(),
        deployment.name_any(),
    );
    let api = cluster.api_in::<Deployment>(&namespace);
    let begin = tokio::time::Instant::now();
    loop {
        let status = api.get(&name).await.map_err(explain)?.status;
        let pods = status.and_then(|status| status.replicas).unwrap_or(0);
        if pods == 0 {
            return Ok(());
        }
        if begin.elapsed() >= STOP_TIMEOUT {
            bail!(
                "Deployment {namespace}/{name} still has {pods} pods: kubectl -n {namespace} get pods; install nothing before they have ended"
            );
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
