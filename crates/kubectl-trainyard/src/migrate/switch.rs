//! Stops another operator, and starts it again. Jobs are not touched.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authorization::v1::ResourceAttributes;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::Selector;
use serde_json::{Value, json};

use super::{Found, place};
use crate::cluster::{Cluster, explain};
use crate::control::MANAGER;
use crate::job::Job;
use crate::others;
use crate::out::{self, Line};

/// On a Deployment that was scaled to zero: its former replicas.
const REPLICAS: &str = "trainyard.dev/migrated-replicas";
/// The time in which an operator's pods end, or become available.
const TIMEOUT: Duration = Duration::from_mins(2);
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Scales the other operator to zero, waits until its pods have finished, and sets the failure policy of its webhooks to `Ignore`.
///
/// If separate Deployments answer the webhooks, they stop last: until then, no pod may be created without them.
pub async fn stop(cluster: &Cluster, found: &Found) -> Result<()> {
    let (controllers, webhooks) = found.in_order();
    stop_all(cluster, &controllers).await?;
    for configuration in &found.webhooks {
        if configuration.ignore(cluster).await? {
            say(format!(
                "{}: failurePolicy set to Ignore",
                configuration.describe()
            ))?;
        }
    }
    stop_all(cluster, &webhooks).await
}

/// Does the reverse of [`stop`] in the reverse order.
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
    let is_stopped = |d: &&Deployment| d.annotations().contains_key(REPLICAS);
    let mut all = found.deployments.iter();
    if !all.any(|d| is_stopped(&d) || d.spec.replicas != Some(0)) {
        bail!("migrate has stopped no Deployment: scale up the one to start");
    }
    for deployment in found.deployments.iter().filter(is_stopped) {
        check_permissions(cluster, found, deployment).await?;
    }
    let (controllers, webhooks) = found.in_order();
    start_all(cluster, &webhooks).await?;
    for configuration in &found.webhooks {
        if configuration.restore(cluster).await? {
            say(format!(
                "{}: failurePolicy restored",
                configuration.describe()
            ))?;
        }
    }
    start_all(cluster, &controllers).await
}

impl Found {
    /// Returns the Deployments that stop before the failure policies change, and those that stop afterwards.
    fn in_order(&self) -> (Vec<&Deployment>, Vec<&Deployment>) {
        let is_webhook = |d: &&Deployment| others::of(d).is_some_and(|of| of.is_webhook());
        let all = self.deployments.iter();
        let (webhooks, controllers): (Vec<_>, Vec<_>) = all.partition(is_webhook);
        if webhooks.is_empty() {
            return (Vec::new(), controllers);
        }
        (controllers, webhooks)
    }
}

async fn stop_all(cluster: &Cluster, deployments: &[&Deployment]) -> Result<()> {
    for deployment in deployments {
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
    for deployment in deployments {
        until_stopped(cluster, deployment).await?;
        say(format!("Deployment {}: stopped", place(deployment)))?;
    }
    Ok(())
}

async fn start_all(cluster: &Cluster, deployments: &[&Deployment]) -> Result<()> {
    for deployment in deployments {
        let at = place(deployment);
        let Some(replicas) = deployment.annotations().get(REPLICAS) else {
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
        say(format!("Deployment {at}: scaled to {replicas}"))?;
    }
    for deployment in deployments {
        let was_stopped = deployment.annotations().contains_key(REPLICAS);
        if deployment.spec.replicas == Some(0) && !was_stopped {
            say(format!(
                "Deployment {}: not started, because migrate has not stopped it",
                place(deployment)
            ))?;
            continue;
        }
        until_available(cluster, deployment).await?;
        say(format!("Deployment {}: available", place(deployment)))?;
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

async fn get(cluster: &Cluster, deployment: &Deployment) -> Result<Deployment> {
    let namespace = deployment.namespace().unwrap_or_default();
    let api = cluster.api_in::<Deployment>(&namespace);
    api.get(&deployment.name_any()).await.map_err(explain)
}

/// Checks that the ServiceAccount of the other operator may write the status of jobs: this project's manifests replace roles and
/// bindings of the same name.
async fn check_permissions(
    cluster: &Cluster,
    found: &Found,
    deployment: &Deployment,
) -> Result<()> {
    let Some(of) = others::of(deployment).filter(|of| !of.is_webhook()) else {
        return Ok(());
    };
    if found.kinds.is_empty() {
        return Ok(());
    }
    let namespace = deployment.namespace().unwrap_or_default();
    let pod = deployment.spec.template.spec.as_ref();
    let account = pod.and_then(|pod| pod.service_account_name.as_deref());
    let account = account.unwrap_or("default");
    // It may serve only some namespaces.
    let (jobs, _) = cluster.jobs().await?;
    let mut places = BTreeSet::from([""]);
    places.extend(jobs.iter().map(Job::namespace));
    let flags = of.flags();
    let named = flags
        .iter()
        .filter(|flag| flag.to_lowercase().contains("namespace"));
    places.extend(named.flat_map(|flag| flag.split(['=', ',']).skip(1)));
    for place in places {
        for kind in &found.kinds {
            let status = ResourceAttributes {
                group: Some(kind.resource.group.clone()),
                resource: Some(kind.resource.plural.clone()),
                subresource: Some("status".to_owned()),
                verb: Some("update".to_owned()),
                namespace: Some(place.to_owned()),
                ..ResourceAttributes::default()
            };
            if cluster.may(&namespace, account, status).await? {
                return Ok(());
            }
        }
    }
    bail!(
        "ServiceAccount {namespace}/{account} may not update the status of jobs: apply the ClusterRole and ClusterRoleBinding of Deployment {} again, then repeat this",
        place(deployment)
    )
}

/// Waits until no pod of a Deployment that was scaled to zero runs. Terminating ones still write.
async fn until_stopped(cluster: &Cluster, deployment: &Deployment) -> Result<()> {
    let namespace = deployment.namespace().unwrap_or_default();
    let selector = deployment.spec.selector.clone();
    let selector: Selector = selector
        .try_into()
        .with_context(|| format!("the selector of Deployment {}", place(deployment)))?;
    let pods = cluster.api_in::<Pod>(&namespace);
    // A ReplicaSet keeps evicted pods.
    let active = "status.phase!=Succeeded,status.phase!=Failed";
    let selected = ListParams::default().labels_from(&selector).fields(active);
    let begin = tokio::time::Instant::now();
    loop {
        if get(cluster, deployment).await?.spec.replicas != Some(0) {
            bail!(
                "Deployment {} was scaled up again: pause what manages it, such as Argo CD or Flux, then repeat this",
                place(deployment)
            );
        }
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
    let begin = tokio::time::Instant::now();
    loop {
        let status = get(cluster, deployment).await?.status.unwrap_or_default();
        if status.available_replicas.unwrap_or(0) > 0 {
            return Ok(());
        }
        if begin.elapsed() >= TIMEOUT {
            bail!(
                "Deployment {} has no available pod: kubectl -n {namespace} describe pods; then repeat this",
                place(deployment)
            );
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
