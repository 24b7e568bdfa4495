//! The node of the scripted pods.

use std::fmt::Debug;
use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::status::condition;

/// Much shorter than the shortest grace period that a test sets in the node controller.
const HEARTBEAT: Duration = Duration::from_secs(2);

/// Registers a ready node. The pod garbage collector deletes pods that are bound to an unknown node.
pub(super) async fn register(client: &Client, name: &str) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let node = serde_json::from_value(json!({
        "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name } },
    }))?;
    match nodes.create(&PostParams::default(), &node).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => {}
        outcome => {
            outcome?;
        }
    }
    let status = json!({ "status": {
        "conditions": [condition("Ready", "True", Some("KubeletReady"))],
        "capacity": { "cpu": "1000", "memory": "1000Gi", "pods": "100000" },
        "allocatable": { "cpu": "1000", "memory": "1000Gi", "pods": "100000" },
    }});
    nodes
        .patch_status(name, &PatchParams::default(), &Patch::Merge(&status))
        .await?;
    beat(client, name).await
}

/// Sends heartbeats for the node for ever.
pub(super) async fn heartbeats(client: Client, name: String) {
    loop {
        tokio::time::sleep(HEARTBEAT).await;
        // The next one makes up for a failed one.
        let _ = beat(&client, &name).await;
    }
}

async fn beat(client: &Client, name: &str) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": name },
        "spec": {
            "holderIdentity": name, "leaseDurationSeconds": 40,
            "renewTime": Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string(),
        },
    });
    let parameters = PatchParams::apply("scripted-kubelet").force();
    leases
        .patch(name, &parameters, &Patch::Apply(&lease))
        .await?;
    Ok(())
}

/// Binds a pod to a node, as the scheduler does.
///
/// # Errors
/// If the API server refuses it: the pod is bound, or has another uid.
pub async fn bind<K: Clone + DeserializeOwned + Debug>(
    pods: &Api<K>,
    name: &str,
    uid: Option<&str>,
    node: &str,
) -> Result<()> {
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding",
        "metadata": { "name": name, "uid": uid },
        "target": { "apiVersion": "v1", "kind": "Node", "name": node },
    });
    let _: serde_json::Value = pods
        .create_subresource("binding", name, &PostParams::default(), &binding)
        .await?;
    Ok(())
}
