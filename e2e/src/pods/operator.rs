//! The deployed operator.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, LogParams};
use kube::{Client, ResourceExt as _};
use serde_json::Value;
use training_testkit::builders::{Kind, PYTORCH};
use training_testkit::wait::Seen;

use super::{OPERATORS, eventually};
use crate::read;

/// Returns the pods of the deployed operator of a kind.
pub async fn operator_pods(client: &Client, kind: &Kind) -> Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), OPERATORS);
    let ours = format!("app.kubernetes.io/name={}", kind.operator);
    let ours = ListParams::default().labels(&ours);
    let list = pods.list(&ours).await?.items;
    ensure!(!list.is_empty(), "no operator is deployed");
    Ok(list)
}

/// Returns the pod of the deployed operator of `PyTorchJob`, once it is ready.
pub async fn ready_operator(client: &Client) -> Result<Value> {
    eventually("a ready operator", async || {
        let pods: Vec<Value> = operator_pods(client, &PYTORCH)
            .await?
            .into_iter()
            .map(serde_json::to_value)
            .collect::<serde_json::Result<_>>()?;
        let ready = pods.iter().find(|pod| {
            pod["status"]["containerStatuses"][0]["ready"] == true
                && pod["metadata"]["deletionTimestamp"].is_null()
        });
        Ok(ready.map_or_else(
            || Seen::NotYet(format!("{:?}", read::names(&pods))),
            |pod| Seen::Yes(pod.clone()),
        ))
    })
    .await
}

/// Asserts that the operator neither panicked nor sent a request that its role doesn't allow.
pub async fn assert_operator_content(client: &Client, kind: &Kind) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), OPERATORS);
    for pod in operator_pods(client, kind).await? {
        // It may be terminating, or not exist yet: then the other pod's log is read.
        let Ok(log) = pods.logs(&pod.name_any(), &LogParams::default()).await else {
            continue;
        };
        for line in log.lines() {
            // RBAC's wording. A terminating namespace also forbids writes, which is no defect.
            let denied = line.contains("forbidden: User");
            ensure!(
                !denied && !line.contains("panicked"),
                "{}: {line}",
                pod.name_any()
            );
        }
    }
    Ok(())
}
