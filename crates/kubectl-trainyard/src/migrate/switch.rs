//! Stops another operator, and starts it again. Jobs are not touched.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleBinding, Subject};
use kube::ResourceExt as _;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::Selector;
use serde_json::{Value, json};

use super::{Found, place};
use crate::cluster::{Cluster, explain};
use crate::control::MANAGER;
use crate::out::{self, Line};

/// On a Deployment that was scaled to zero: its former replicas.
const REPLICAS: &str = "trainyard.dev/migrated-replicas";
/// The time in which an operator's pods end, or become available.
const TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Makes the webhooks optional, scales the other operator to zero, and waits until its pods have ended.
pub async fn stop(cluster: &Cluster, found: &Found) -> Result<()> {
    for webhooks in &found.webhooks {
        if webhooks.ignore(cluster).await? {
            say(format!(
                "{}: requests pass when nobody answers",
                webhooks.describe()
            ))?;
        }
    }
    for deployment in &found.deployments {
        let replicas = deployment.spec.replicas.unwrap_or(1);
        if replicas == 0 {
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
        say(format!("Deployment {}: scaled to 0", place(deployment)))?;
    }
    for deployment in &found.deployments {
        until_stopped(cluster, deployment).await?;
        say(format!("Deployment {}: stopped", place(deployment)))?;
    }
    Ok(())
}

/// Scales the other operator to its former replicas, and restores its webhooks.
pub async fn start(cluster: &Cluster, found: &Found) -> Result<()> {
    for ours in &found.ours {
        let at = place(ours);
        let (namespace, name) = at.split_once('/').unwrap_or_default();
        if ours.spec.replicas != Some(0) {
            bail!(
                "Deployment {at} still runs, and two operators must not serve the same jobs: kubectl -n {namespace} scale deployment {name} --replicas=0"
            );
        }
        until_stopped(cluster, ours).await?;
    }
    for deployment in &found.deployments {
        let at = place(deployment);
        let Some(replicas) = deployment.annotations().get(REPLICAS) else {
            let replicas = deployment.spec.replicas.unwrap_or(1);
            say(format!(
                "Deployment {at}: not stopped by migrate (replicas: {replicas})"
            ))?;
            continue;
        };
        let replicas: i32 = replicas
            .parse()
            .with_context(|| format!("Deployment {at} has an invalid annotation {REPLICAS}"))?;
        check_permissions(cluster, deployment).await?;
        let patch = json!({
            "metadata": {
                "resourceVersion": deployment.resource_version(),
                "annotations": { REPLICAS: null },
            },
            "spec": { "replicas": replicas },
        });
        scale(cluster, deployment, patch).await?;
        say(format!("Deployment {at}: scaled to {replicas}"))?;
    }
    for deployment in &found.deployments {
        until_available(cluster, deployment).await?;
    }
    for webhooks in &found.webhooks {
        if webhooks.restore(cluster).await? {
            say(format!("{}: as before", webhooks.describe()))?;
        }
    }
    Ok(())
}

/// Prints a step when it is done.
fn say(text: String) -> Result<()> {
    out::print(&[Line::plain(text)])
}

/// The parameters of this verb's writes.
pub fn manager() -> PatchParams {
    PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    }
}

async fn scale(cluster: &Cluster, deployment: &Deployment, patch: Value) -> Result<()> {
    let namespace = deployment.namespace().unwrap_or_default();
    let api = cluster.api_in::<Deployment>(&namespace);
    let (name, patch) = (deployment.name_any(), Patch::Merge(patch));
    let patched = api.patch(&name, &manager(), &patch).await;
    patched.map(drop).map_err(explain)
}

/// Checks that the ServiceAccount of the other operator is still bound to a role: this project's manifests take over bindings of the
/// same name.
async fn check_permissions(cluster: &Cluster, deployment: &Deployment) -> Result<()> {
    let namespace = deployment.namespace().unwrap_or_default();
    let pod = deployment.spec.template.spec.as_ref();
    let account = pod.and_then(|pod| pod.service_account_name.as_deref());
    let account = account.unwrap_or("default");
    let names = |subjects: &Option<Vec<Subject>>| {
        let mut subjects = subjects.iter().flatten();
        subjects.any(|subject| {
            subject.kind == "ServiceAccount"
                && subject.name == account
                && subject.namespace.as_deref() == Some(&*namespace)
        })
    };
    let everywhere = cluster
        .every::<ClusterRoleBinding>()
        .await
        .map_err(explain)?;
    if everywhere.iter().any(|binding| names(&binding.subjects)) {
        return Ok(());
    }
    let local = cluster.every::<RoleBinding>().await.map_err(explain)?;
    // The lease alone is not enough.
    let elsewhere = |binding: &&RoleBinding| binding.namespace().as_ref() != Some(&namespace);
    if local
        .iter()
        .filter(elsewhere)
        .any(|binding| names(&binding.subjects))
    {
        return Ok(());
    }
    bail!(
        "no ClusterRoleBinding has the ServiceAccount {namespace}/{account} any more: apply the manifests of Deployment {} again, then repeat this",
        place(deployment)
    )
}

/// Waits until no pod of a Deployment that was scaled to zero exists. Terminating ones still write.
async fn until_stopped(cluster: &Cluster, deployment: &Deployment) -> Result<()> {
    let namespace = deployment.namespace().unwrap_or_default();
    let selector = deployment.spec.selector.clone();
    let selector: Selector = selector
        .try_into()
        .with_context(|| format!("the selector of Deployment {}", place(deployment)))?;
    let pods = cluster.api_in::<Pod>(&namespace);
    let selected = ListParams::default().labels_from(&selector);
    let begin = tokio::time::Instant::now();
    loop {
        let count = pods
            .list_metadata(&selected)
            .await
            .map_err(explain)?
            .items
            .len();
        if count == 0 {
            return Ok(());
        }
        if begin.elapsed() >= TIMEOUT {
            bail!(
                "Deployment {} still has {count} pods: kubectl -n {namespace} get pods -l '{selector}'; repeat this when they have ended",
                place(deployment)
            );
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Waits until a Deployment has an available pod.
async fn until_available(cluster: &Cluster, deployment: &Deployment) -> Result<()> {
    let namespace = deployment.namespace().unwrap_or_default();
    let api = cluster.api_in::<Deployment>(&namespace);
    let begin = tokio::time::Instant::now();
    loop {
        let present = api.get(&deployment.name_any()).await.map_err(explain)?;
        let available = present.status.as_ref().and_then(|s| s.available_replicas);
        if present.spec.replicas == Some(0) || available.unwrap_or(0) > 0 {
            return Ok(());
        }
        if begin.elapsed() >= TIMEOUT {
            bail!(
                "Deployment {} has no available pod: kubectl -n {namespace} describe pods; then repeat this, to restore its webhooks",
                place(deployment)
            );
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
