//! Jobs in the API server, and waiting for their status.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use serde_json::Value;

use crate::builders::pytorch_jobs;
use crate::wait::{HANG, Seen, eventually};

/// The jobs of one kind in one namespace.
#[derive(Clone, Debug)]
pub struct Jobs {
    api: Api<DynamicObject>,
}

/// A condition of a job, without its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// `Created`, `Running`, …
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// The machine-readable cause.
    pub reason: String,
    /// The human-readable cause.
    pub message: String,
}

impl Condition {
    /// A condition for comparisons.
    pub fn new(kind: &str, status: &str, reason: &str, message: &str) -> Self {
        Self {
            kind: kind.into(),
            status: status.into(),
            reason: reason.into(),
            message: message.into(),
        }
    }
}

impl Jobs {
    /// The `PyTorchJob` objects of a namespace.
    pub fn pytorch(client: Client, namespace: &str) -> Self {
        Self::of(client, namespace, &pytorch_jobs())
    }

    /// The jobs of any kind in a namespace.
    pub fn of(client: Client, namespace: &str, resource: &ApiResource) -> Self {
        Self {
            api: Api::namespaced_with(client, namespace, resource),
        }
    }

    /// Creates a job and returns it as stored.
    pub async fn create(&self, manifest: &Value) -> Result<Value> {
        let object: DynamicObject = serde_json::from_value(manifest.clone())?;
        let stored = self.api.create(&PostParams::default(), &object).await?;
        Ok(serde_json::to_value(stored)?)
    }

    /// The job as it is now.
    pub async fn get(&self, name: &str) -> Result<Value> {
        Ok(serde_json::to_value(self.api.get(name).await?)?)
    }

    /// Returns all jobs.
    pub async fn list(&self) -> Result<Vec<Value>> {
        let list = self.api.list(&ListParams::default()).await?;
        let jobs = list.items.into_iter().map(serde_json::to_value);
        Ok(jobs.collect::<Result<_, _>>()?)
    }

    /// Applies a merge patch to the job.
    pub async fn merge(&self, name: &str, change: &Value) -> Result<Value> {
        let stored = self
            .api
            .patch(name, &PatchParams::default(), &Patch::Merge(change))
            .await?;
        Ok(serde_json::to_value(stored)?)
    }

    /// Deletes the job with background propagation.
    pub async fn delete(&self, name: &str) -> Result<()> {
        self.delete_with(name, &DeleteParams::background()).await
    }

    /// Deletes the job with any parameters.
    pub async fn delete_with(&self, name: &str, parameters: &DeleteParams) -> Result<()> {
        self.api.delete(name, parameters).await?;
        Ok(())
    }

    /// Returns true if the job exists.
    pub async fn exists(&self, name: &str) -> Result<bool> {
        Ok(self.api.get_opt(name).await?.is_some())
    }

    /// Waits until the predicate holds for the job.
    pub async fn until(
        &self,
        name: &str,
        what: &str,
        looks: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        eventually(&format!("{name} {what}"), HANG, async || {
            let job = self.get(name).await?;
            Ok(if looks(&job) {
                Seen::Yes(job)
            } else {
                Seen::NotYet(job["status"].to_string())
            })
        })
        .await
    }

    /// Waits until a condition is `True`.
    pub async fn until_true(&self, name: &str, condition: &str) -> Result<Value> {
        self.until(name, condition, |job| is_true(job, condition))
            .await
    }
}

/// The conditions of a job in their order.
pub fn conditions(job: &Value) -> Vec<Condition> {
    let text = |of: &Value| of.as_str().unwrap_or_default().to_owned();
    let list = job["status"]["conditions"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    list.iter()
        .map(|c| Condition {
            kind: text(&c["type"]),
            status: text(&c["status"]),
            reason: text(&c["reason"]),
            message: text(&c["message"]),
        })
        .collect()
}

/// One condition of a job.
pub fn condition(job: &Value, kind: &str) -> Result<Condition> {
    conditions(job)
        .into_iter()
        .find(|c| c.kind == kind)
        .with_context(|| format!("no condition {kind} in {}", job["status"]))
}

/// Returns true if a condition is `True`.
pub fn is_true(job: &Value, kind: &str) -> bool {
    conditions(job)
        .iter()
        .any(|c| c.kind == kind && c.status == "True")
}

/// Returns true if the job has ended.
pub fn is_finished(job: &Value) -> bool {
    is_true(job, "Succeeded") || is_true(job, "Failed")
}

/// The non-zero counters of a role: `active`, `succeeded`, `failed`.
pub fn counters(job: &Value, role: &str) -> BTreeMap<String, i64> {
    let status = job["status"]["replicaStatuses"][role].as_object();
    ["active", "succeeded", "failed"]
        .into_iter()
        .filter_map(|key| Some((key.to_owned(), status?.get(key)?.as_i64()?)))
        .filter(|(_, count)| *count != 0)
        .collect()
}
