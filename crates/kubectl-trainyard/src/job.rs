//! A job and its pods.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::Value;
use spark_operator::label;
use training_api::labels;
use training_core::{PodView, names};
use training_runtime::feed::slim::any_pod_view;

use crate::kinds::{Kind, Shape};

/// A job of any kind.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its kind.
    pub kind: Kind,
    /// The stored object.
    pub value: Value,
}

impl Job {
    /// Returns a string field of the metadata; empty if it is absent.
    fn meta(&self, field: &str) -> &str {
        self.value["metadata"][field].as_str().unwrap_or_default()
    }

    /// Returns `metadata.name`.
    pub fn name(&self) -> &str {
        self.meta("name")
    }

    /// Returns `metadata.namespace`.
    pub fn namespace(&self) -> &str {
        self.meta("namespace")
    }

    /// Returns `metadata.uid`.
    pub fn uid(&self) -> &str {
        self.meta("uid")
    }

    /// Returns the creation timestamp.
    pub fn created(&self) -> Option<Timestamp> {
        self.meta("creationTimestamp").parse().ok()
    }

    /// Returns the value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.value["metadata"]["labels"][key].as_str()
    }

    /// Deserializes the job; returns the default if that fails.
    pub fn read<T: DeserializeOwned + Default>(&self) -> T {
        serde_json::from_value(self.value.clone()).unwrap_or_default()
    }

    /// Deserializes the status; returns the default if that fails.
    pub fn status<T: DeserializeOwned + Default>(&self) -> T {
        serde_json::from_value(self.value["status"].clone()).unwrap_or_default()
    }

    /// Returns `spec.runPolicy`, or for Spark kinds the spec.
    pub fn policy(&self) -> &Value {
        match self.kind.shape {
            Shape::Replicas(_) => &self.value["spec"]["runPolicy"],
            Shape::Application | Shape::Schedule => &self.value["spec"],
        }
    }

    /// Returns the other controller that `spec.runPolicy.managedBy` names, if any.
    pub fn other_manager(&self) -> Option<&str> {
        let Shape::Replicas(replicas) = self.kind.shape else {
            return None;
        };
        let manager = self.policy()["managedBy"].as_str();
        manager.filter(|manager| !replicas.managers.contains(manager))
    }

    /// True if the spec suspends the job.
    pub fn is_suspended(&self) -> bool {
        self.policy()["suspend"] == true
    }
}

/// A pod of a job.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// Its role and index: `worker-1`, `launcher`, `driver`, `executor-2`.
    pub rank: String,
    /// The sort key.
    position: (u8, u32),
    /// Its state, as the operators see it.
    pub view: PodView,
    /// The stored object.
    pub pod: Pod,
}

/// Returns the pods that a job owns, sorted by rank. A pod with the job's labels but another owner does not count.
pub fn members(job: &Job, pods: Vec<Pod>) -> Vec<Member> {
    let mut all: Vec<Member> = pods
        .into_iter()
        .filter(|pod| is_owned(job, pod))
        .map(|pod| member(job, pod))
        .collect();
    all.sort_by(|a, b| (a.position, &a.name).cmp(&(b.position, &b.name)));
    all
}

fn is_owned(job: &Job, pod: &Pod) -> bool {
    let owners = pod.metadata.owner_references.iter().flatten();
    let own = |o: &OwnerReference| o.uid == job.uid();
    // The owner of an MPIJob's launcher pods is the Job `NAME-launcher`.
    let launcher = |o: &OwnerReference| {
        let name = o.name.strip_prefix(job.name());
        o.kind == "Job" && name == Some("-launcher")
    };
    owners.into_iter().any(|o| own(o) || launcher(o))
}

fn member(job: &Job, pod: Pod) -> Member {
    let name = pod.metadata.name.clone().unwrap_or_default();
    let own = pod.metadata.labels.as_ref();
    let label = |key: &str| own.and_then(|l| l.get(key)).map(String::as_str);
    let role = label(labels::REPLICA_TYPE)
        .or(label(label::ROLE))
        .or(label(labels::JOB_ROLE));
    // Not from the label: the indices of MPIJob workers may include the launcher there.
    let index = names::index(&name).unwrap_or(0);
    let (rank, position) = match role {
        Some(role @ ("launcher" | "driver")) => (role.to_owned(), (0, 0)),
        Some(role) => (format!("{role}-{index}"), (order(role), index)),
        None => (name.clone(), (u8::MAX, 0)),
    };
    let main = match job.kind.shape {
        Shape::Replicas(replicas) => replicas.container,
        // The pod template may rename the container: any container that failed counts.
        Shape::Application | Shape::Schedule => "",
    };
    let slim = serde_json::to_value(&pod).and_then(serde_json::from_value);
    Member {
        name,
        rank,
        position,
        view: any_pod_view(&slim.unwrap_or_default(), main),
        pod,
    }
}

/// Returns the sort key of a role: leading roles come first.
fn order(role: &str) -> u8 {
    match role {
        "chief" | "master" => 1,
        "worker" | "executor" => 2,
        _ => 3,
    }
}

/// Returns the name of the container that runs the job's program.
pub fn main_container(job: &Job, pod: &Pod) -> Option<String> {
    let annotations = pod.metadata.annotations.as_ref();
    let annotated = [label::CONTAINER, label::DEFAULT_CONTAINER]
        .into_iter()
        .find_map(|key| annotations.and_then(|a| a.get(key)));
    let containers = pod.spec.as_ref().map(|s| s.containers.as_slice());
    let containers = containers.unwrap_or_default();
    let by_kind = match job.kind.shape {
        Shape::Replicas(replicas) => containers.iter().find(|c| c.name == replicas.container),
        Shape::Application | Shape::Schedule => {
            let ours = |name: &str| name.starts_with("spark-kubernetes-");
            containers.iter().find(|c| ours(&c.name))
        }
    };
    let found = by_kind.or(containers.first()).map(|c| &c.name);
    annotated.or(found).cloned()
}
