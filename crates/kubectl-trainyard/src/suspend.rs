//! Suspends and resumes jobs.

use anyhow::{Result, bail};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::cluster::{Cluster, explain};
use crate::job::Job;
use crate::out::{self, Line};
use crate::state::{self, QUEUE_LABEL};

/// The field manager of this plugin's writes.
pub const MANAGER: &str = "kubectl-trainyard";

/// What to do with a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Suspend it.
    Suspend,
    /// Resume it.
    Resume,
}

/// Returns a message if the job already is as requested, and an error if the action is not possible.
pub fn check(job: &Job, action: Action) -> Result<Option<String>> {
    let name = job.name();
    let state = state::of(job);
    if state.phase.is_finished() {
        bail!(
            "{name} has finished ({}): create it again to run it again",
            state.text
        );
    }
    if let Some(queue) = job.label(QUEUE_LABEL).filter(|_| action == Action::Resume) {
        bail!("Kueue manages {name} in queue {queue}: see kubectl describe localqueue {queue}");
    }
    let suspended = job.is_suspended();
    Ok(match action {
        Action::Suspend if suspended => Some(format!("{name} is already suspended")),
        Action::Resume if !suspended => Some(format!("{name} is not suspended")),
        Action::Suspend | Action::Resume => None,
    })
}

/// Patches the suspend field of the job's kind, unless [`check`] prevents it.
pub async fn set(cluster: &Cluster, job: &Job, action: Action) -> Result<()> {
    if let Some(already) = check(job, action)? {
        return out::print(&[Line::plain(already)]);
    }
    let suspend = action == Action::Suspend;
    let patch = Patch::Merge(json!({
        // The API server rejects the patch if another job has this name now.
        "metadata": { "uid": job.uid() },
        "spec": job.kind.suspend_patch(suspend),
    }));
    let params = PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let api = cluster.any(&job.kind.resource);
    api.patch(job.name(), &params, &patch)
        .await
        .map_err(explain)?;
    let done = if suspend { "suspended" } else { "resumed" };
    out::print(&[Line::plain(format!("{} {done}", job.name()))])
}
