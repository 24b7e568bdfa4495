//! The volumes of the examples; each test has its own.

use anyhow::Result;
use serde_json::Value;
use training_testkit::control_plane::workspace;
use training_testkit::manifest;

use super::{Cluster, Site};

/// A volume of the cluster that is deleted when this is dropped.
#[derive(Debug)]
pub struct Volume {
    cluster: Cluster,
    name: String,
}

impl Volume {
    /// Creates volume and claim of an example's file for this namespace, with a unique name and directory.
    pub async fn of_example(site: &Site, file: &str) -> Result<Self> {
        let mut objects = manifest::documents(&workspace().join("examples").join(file))?;
        let name = site.namespace.clone();
        for object in &mut objects {
            if object["kind"] == "PersistentVolume" {
                object["metadata"]["name"] = name.as_str().into();
                let path = &mut object["spec"]["hostPath"]["path"];
                *path = format!("{}/{name}", path.as_str().unwrap_or_default()).into();
            } else {
                object["metadata"]["namespace"] = name.as_str().into();
                object["spec"]["volumeName"] = Value::from(name.as_str());
            }
        }
        manifest::apply(&site.client, objects).await?;
        Ok(Self {
            cluster: site.cluster.clone(),
            name,
        })
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // Its deletion waits for its claim, which is deleted with the namespace.
        let _ = self
            .cluster
            .kubectl(&["delete", "pv", &self.name, "--wait=false"]);
    }
}
