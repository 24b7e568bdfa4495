//! Suspends, resumes and restarts jobs.

use anyhow::{Result, bail};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use training_api::labels;

use crate::cluster::{Cluster, explain};
use crate::job::Job;
use crate::kinds::Shape;
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
    /// Restart all its pods.
    Restart,
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
    match (action, job.kind.shape) {
        (Action::Restart, Shape::Schedule) => bail!(
            "{name} is a schedule and has no pods: restart the SparkApplication of its run, {}",
            last_run(job)
        ),
        (Action::Restart, _) if job.other_manager().is_some() => {
            bail!(
                "spec.runPolicy.managedBy of {name} names another controller, which restarts no job"
            )
        }
        (Action::Restart, _) if suspended => {
            bail!(
                "{name} is suspended and has no pods: it starts from its current spec once it is resumed"
            )
        }
        (Action::Suspend, _) if suspended => Ok(Some(format!("{name} is already suspended"))),
        (Action::Resume, _) if !suspended => Ok(Some(format!("{name} is not suspended"))),
        (Action::Suspend | Action::Resume | Action::Restart, _) => Ok(None),
    }
}

/// Returns the name of a schedule's last run.
fn last_run(job: &Job) -> &str {
    let last = job.value["status"]["lastRunName"].as_str();
    last.unwrap_or("once it exists")
}

/// Patches the job, unless [`check`] prevents it.
pub async fn request(cluster: &Cluster, job: &Job, action: Action) -> Result<()> {
    if let Some(already) = check(job, action)? {
        return out::print(&[Line::plain(already)]);
    }
    let params = PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let patch = Patch::Merge(patch(job, action, Timestamp::now()));
    let api = cluster.any(&job.kind.resource);
    api.patch(job.name(), &params, &patch)
        .await
        .map_err(explain)?;
    let done = match action {
        Action::Suspend => "suspended",
        Action::Resume => "resumed",
        Action::Restart => "restart requested",
    };
    out::print(&[Line::plain(format!("{} {done}", job.name()))])
}

fn patch(job: &Job, action: Action, now: Timestamp) -> Value {
    // The API server rejects the patch if another job has this name now.
    let mut metadata = json!({ "uid": job.uid() });
    let suspend = match action {
        Action::Suspend => true,
        Action::Resume => false,
        Action::Restart => {
            metadata["annotations"] = json!({ labels::RESTART_REQUEST: now.to_string() });
            return json!({ "metadata": metadata });
        }
    };
    json!({ "metadata": metadata, "spec": job.kind.suspend_patch(suspend) })
}
