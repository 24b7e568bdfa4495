//! Deploys Kueue on a local cluster with its own manifests; `e2e/kueue` builds it from its published module.

use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use crate::cluster::Cluster;
use crate::{cluster, image, paths, process};

/// A job of a kind that Kueue manages.
const JOB: &str = "examples/pytorch/simple.yaml";

/// Returns the directory of its program and its manifests; builds them if needed.
pub fn built() -> Result<PathBuf, String> {
    process::built("e2e/kueue/build").map(PathBuf::from)
}

/// Deploys Kueue. [`ready`] waits for it.
///
/// Install the CRDs of its kinds before; Kueue polls for missing ones only now and then.
pub fn deploy(cluster: &Cluster) -> Result<(), String> {
    let dir = built()?;
    let version = dir.join("version");
    let version =
        fs::read_to_string(&version).map_err(|e| format!("{}: {e}", version.display()))?;
    let reference = format!("trainyard/kueue:{}", version.trim());
    let work = paths::target().join("deploy");
    fs::create_dir_all(&work).map_err(|e| format!("{}: {e}", work.display()))?;
    let archive = work.join("kueue.tar");
    image::archive(&dir.join("manager"), &[], &reference, &archive)?;
    cluster.load(&[&archive.display().to_string()])?;
    let manifests = dir.join("config/trainyard").display().to_string();
    let apply = ["apply", "--server-side", "--force-conflicts", "-k"];
    process::quiet(&mut cluster.kubectl(apply.into_iter().chain([manifests.as_str()]))).map(drop)
}

/// `make kueue`: deploys Kueue on a running cluster, and waits for it.
pub fn install(name: &str) -> Result<(), String> {
    let cluster = cluster::running(name)?;
    if cluster.name.is_none() {
        let own = cluster::OWN;
        return Err(format!(
            "{own} is set; this Kueue is for local clusters, whose nodes can be given its image"
        ));
    }
    deploy(&cluster)?;
    ready(&cluster)
}

/// Waits until Kueue's webhooks answer: until then no job can be created. Its Service works only a moment after the rollout.
pub fn ready(cluster: &Cluster) -> Result<(), String> {
    cluster.rolled_out("kueue-system", "kueue-controller-manager")?;
    let job = paths::root().join(JOB).display().to_string();
    let create = ["create", "--dry-run=server", "-f", job.as_str()];
    let mut tries = 60;
    loop {
        match process::quiet(&mut cluster.kubectl(create)) {
            Err(error) if tries > 0 && error.contains("webhook") => tries -= 1,
            end => return end.map(drop),
        }
        sleep(Duration::from_secs(1));
    }
}
