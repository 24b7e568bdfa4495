//! The operators of other projects for the same kinds, known by their images.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Container;
use kube::core::{ApiResource, GroupVersionKind};

use crate::flags;

/// Parts of the names of their images, their names and their kinds. Source: their published manifests and charts.
const OTHERS: [(&str, &str, &[&str]); 5] = [
    (
        "/training-operator",
        "training-operator",
        &[
            "PyTorchJob",
            "TFJob",
            "XGBoostJob",
            "MPIJob",
            "JAXJob",
            "PaddleJob",
        ],
    ),
    ("mpioperator/mpi-operator", "mpi-operator", &["MPIJob"]),
    ("kubeflow/mpi-operator", "mpi-operator", &["MPIJob"]),
    ("kubeflow/spark-operator", "spark-operator", &SPARK),
    (
        "googlecloudplatform/spark-operator",
        "spark-operator",
        &SPARK,
    ),
];
const SPARK: [&str; 2] = ["SparkApplication", "ScheduledSparkApplication"];
/// Kinds of theirs that no operator of this project serves: the operator, group, version, kind and plural.
const UNSERVED: [(&str, &str, &str, &str, &str); 2] = [
    (
        "spark-operator",
        "sparkoperator.k8s.io",
        "v1alpha1",
        "SparkConnect",
        "sparkconnects",
    ),
    ("training-operator", "kubeflow.org", "v1", "MXJob", "mxjobs"),
];
/// The flag of the Go training operator that restricts its kinds.
const SCHEME: &str = "--enable-scheme=";

/// Another operator in a Deployment.
#[derive(Clone, Debug, PartialEq)]
pub struct Served<'a> {
    /// Its name, such as `training-operator`.
    pub name: &'static str,
    /// The kinds that it serves. Case doesn't matter.
    pub kinds: Vec<String>,
    /// Its container.
    pub container: &'a Container,
}

impl Served<'_> {
    /// Returns true if it only answers webhooks.
    pub fn is_webhook(&self) -> bool {
        let mut args = self.container.args.iter().flatten();
        args.next().is_some_and(|first| first == "webhook")
    }
}

/// Returns the other operator that a Deployment runs.
pub fn of(deployment: &Deployment) -> Option<Served<'_>> {
    if flags::is_ours(deployment) {
        return None;
    }
    flags::containers(deployment).find_map(|container| {
        let image = container.image.as_deref().unwrap_or_default();
        let (_, name, kinds) = OTHERS.iter().find(|(part, ..)| image.contains(part))?;
        let words = container.command.iter().chain(&container.args).flatten();
        let enabled: Vec<String> = words
            .filter_map(|word| {
                format!("--{}", word.trim_start_matches('-'))
                    .strip_prefix(SCHEME)
                    .map(str::to_owned)
            })
            .flat_map(|list| list.split(',').map(str::to_owned).collect::<Vec<_>>())
            .collect();
        let all = || kinds.iter().map(|&kind| kind.to_owned()).collect();
        Some(Served {
            name,
            kinds: if enabled.is_empty() { all() } else { enabled },
            container,
        })
    })
}

/// Returns the resources of an operator that no operator of this project serves.
pub fn unserved(name: &str) -> Vec<ApiResource> {
    let own = UNSERVED.iter().filter(|(of, ..)| *of == name);
    own.map(|(_, group, version, kind, plural)| {
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
    })
    .collect()
}
