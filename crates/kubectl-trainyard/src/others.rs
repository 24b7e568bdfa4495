//! The operators of other projects for the same kinds, known by their images.

use k8s_openapi::api::apps::v1::Deployment;

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
/// The flag of the Go training operator that restricts its kinds.
const SCHEME: &str = "--enable-scheme=";

/// Returns the name of the other operator that a Deployment runs, and the kinds that it serves.
pub fn of(deployment: &Deployment) -> Option<(&'static str, Vec<String>)> {
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
        Some(if enabled.is_empty() {
            (*name, kinds.iter().map(|&kind| kind.to_owned()).collect())
        } else {
            (*name, enabled)
        })
    })
}
