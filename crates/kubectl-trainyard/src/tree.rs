//! Shows a job and the objects that it owns.

use std::collections::BTreeSet;

use anyhow::Result;
use futures::future::join_all;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::batch;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service};
use k8s_openapi::api::networking::v1::{Ingress, NetworkPolicy};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::ListParams;
use kube::core::{ApiResource, GroupVersionKind, ObjectMeta};
use spark_operator::SparkApplication;
use training_core::GroupKind;

use crate::cluster::{Cluster, code, explain};
use crate::job::Job;
use crate::out::{self, Line};
use crate::state;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Node {
    kind: String,
    name: String,
    uid: String,
    /// The uids of its owners.
    owners: Vec<String>,
    /// True if the object has the job's label.
    labelled: bool,
    /// Text after the name.
    note: String,
}

/// Returns the resources that jobs may own, apart from pods. A gang scheduler's CRD has at most one of the listed versions.
fn resources() -> Vec<ApiResource> {
    let mut all = vec![
        ApiResource::erase::<SparkApplication>(&()),
        ApiResource::erase::<batch::v1::Job>(&()),
        ApiResource::erase::<Service>(&()),
        ApiResource::erase::<ConfigMap>(&()),
        ApiResource::erase::<Secret>(&()),
        ApiResource::erase::<PersistentVolumeClaim>(&()),
        ApiResource::erase::<HorizontalPodAutoscaler>(&()),
        ApiResource::erase::<Ingress>(&()),
        ApiResource::erase::<NetworkPolicy>(&()),
        ApiResource::erase::<PodDisruptionBudget>(&()),
    ];
    for kind in GroupKind::ALL {
        all.extend(kind.versions().iter().map(|version| kind.resource(version)));
    }
    let kueue = ["v1beta2", "v1beta1"];
    let kueue = kueue.map(|version| GroupVersionKind::gvk("kueue.x-k8s.io", version, "Workload"));
    all.extend(kueue.iter().map(ApiResource::from_gvk));
    all
}

/// Prints the tree.
pub async fn print(cluster: &Cluster, job: &Job) -> Result<()> {
    let mut nodes = Vec::new();
    let mut unreadable = BTreeSet::new();
    let resources = resources();
    let requests = resources.iter().map(async |resource| {
        let result = cluster
            .any(resource)
            .list_metadata(&ListParams::default())
            .await;
        (resource, result)
    });
    let (results, pods) = tokio::join!(join_all(requests), async {
        cluster.api::<Pod>().list(&ListParams::default()).await
    });
    match pods {
        Ok(list) => nodes.extend(list.items.iter().map(|pod| pod_node(job, pod))),
        Err(error) if code(&error) == 403 => {
            unreadable.insert("pods".to_owned());
        }
        Err(error) => return Err(explain(error)),
    }
    for (resource, result) in results {
        match result {
            Ok(list) => nodes.extend(
                list.items
                    .iter()
                    .map(|object| node(job, &resource.kind, &object.metadata, String::new())),
            ),
            // The CRD is not installed.
            Err(error) if code(&error) == 404 => {}
            Err(error) if code(&error) == 403 => {
                unreadable.insert(resource.plural.clone());
            }
            Err(error) => return Err(explain(error)),
        }
    }
    let mut lines = lines(job, &nodes);
    if !unreadable.is_empty() {
        let unreadable: Vec<String> = unreadable.into_iter().collect();
        lines.push(format!(
            "not shown: {}, because you may not list them",
            unreadable.join(", ")
        ));
    }
    let lines: Vec<Line> = lines.into_iter().map(Line::plain).collect();
    out::print(&lines)
}

fn node(job: &Job, kind: &str, meta: &ObjectMeta, note: String) -> Node {
    let labels = meta.labels.iter().flatten();
    let mut labels = labels.map(|(key, value)| format!("{key}={value}"));
    let owners = meta.owner_references.iter().flatten();
    Node {
        kind: kind.to_owned(),
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
        owners: owners.map(|o| o.uid.clone()).collect(),
        labelled: labels.any(|label| label == job.kind.pod_selector(job.name())),
        note,
    }
}

fn pod_node(job: &Job, pod: &Pod) -> Node {
    let status = pod.status.as_ref();
    let phase = status.and_then(|s| s.phase.clone()).unwrap_or_default();
    let node_name = pod.spec.as_ref().and_then(|s| s.node_name.as_deref());
    let on = node_name.map(|n| format!(" on {n}")).unwrap_or_default();
    node(job, "Pod", &pod.metadata, format!("  {phase}{on}"))
}

/// Formats the tree. Objects that have the job's label but not its owner reference come last.
fn lines(job: &Job, nodes: &[Node]) -> Vec<String> {
    let state = state::of(job);
    let mut lines = vec![format!(
        "{}/{}  {}",
        job.kind.name(),
        job.name(),
        state.text
    )];
    let mut shown = BTreeSet::from([job.uid()]);
    push_children(job.uid(), 1, nodes, &mut shown, &mut lines);
    for node in nodes {
        if node.labelled && shown.insert(&node.uid) {
            lines.push(format!(
                "  {}  (has the job's label, but is not owned by it)",
                title(node)
            ));
        }
    }
    lines
}

fn push_children<'a>(
    owner: &str,
    depth: usize,
    nodes: &'a [Node],
    shown: &mut BTreeSet<&'a str>,
    lines: &mut Vec<String>,
) {
    let mut children: Vec<&Node> = nodes
        .iter()
        // An executor has two owners, its driver and its application: show it below the first one.
        .filter(|node| node.owners.first().is_some_and(|first| first == owner))
        .collect();
    children.sort_by_key(|node| (&node.kind, &node.name));
    for child in children {
        if shown.insert(&child.uid) {
            lines.push(format!("{}{}", "  ".repeat(depth), title(child)));
            push_children(&child.uid, depth + 1, nodes, shown, lines);
        }
    }
}

fn title(node: &Node) -> String {
    format!("{}/{}{}", node.kind, node.name, node.note)
}
