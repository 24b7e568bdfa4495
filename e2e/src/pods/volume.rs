//! The volumes of the examples, each test with one of its own.

use anyhow::Result;
use serde_json::Value;
use training_testkit::control_plane::workspace;
use training_testkit::manifest;

use super::{Cluster, Site};

/// A volume of the cluster that goes when this is dropped.
#[derive(Debug)]
pub struct Volume {
    cluster: Cluster,
    name: String,
}

impl Volume {
    /// Volume and claim of an example's file, for this namespace alone: with a name and a directory of its own.
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
        // It waits for its claim, which goes with the namespace.
        let _ = self
            .cluster
            .kubectl(&["delete", "pv", &self.name, "--wait=false"]);
    }
}
