//! The real `spark-submit`, its input, and the normal form for comparing objects.

pub mod arguments;
#[path = "../../operators/spark-operator/tests/spark/submit/recording.rs"]
pub mod recording;
pub mod sandbox;

use anyhow::{Context as _, Result};
use kube::config::Kubeconfig;

/// The path of `spark-submit` in an image of Spark.
pub const SPARK_SUBMIT: &str = "/opt/spark/bin/spark-submit";

/// The image with `spark-submit` of the newest supported version, which is also that of the Spark operator's image.
pub const IMAGE: &str = "trainyard/spark:1";

/// Returns the URL of the API server in a kubeconfig, without a slash at its end.
pub fn server(kubeconfig: &str) -> Result<String> {
    let kubeconfig: Kubeconfig = serde_saphyr::from_str(kubeconfig)?;
    let cluster = kubeconfig.clusters.first().and_then(|c| c.cluster.as_ref());
    let server = cluster.and_then(|c| c.server.clone());
    let server = server.context("no server")?;
    Ok(server.trim_end_matches('/').to_owned())
}
