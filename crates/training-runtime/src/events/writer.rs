//! The two requests that events need.

use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use crate::fault::{Fault, is_already_exists};

/// Where events are written.
pub trait EventWriter: Send + Sync + 'static {
    /// Makes an event; one that exists already was made by an attempt whose answer got lost.
    ///
    /// # Errors
    /// Whatever kept the request from being answered well.
    fn create(&self, event: &Event) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Sets the count and time of an event.
    ///
    /// # Errors
    /// [`Fault::Missing`] if it has expired; whatever else kept the request from being answered well.
    fn repeat(
        &self,
        namespace: &str,
        name: &str,
        count: i32,
        last: &Time,
    ) -> impl Future<Output = Result<(), Fault>> + Send;
}

/// Events in the API server.
#[derive(Clone)]
pub struct KubeEvents {
    client: Client,
}

impl KubeEvents {
    /// Writes through the client for calls.
    pub fn new(client: Client) -> Self {
        Self { client }
    }
}

impl EventWriter for KubeEvents {
    async fn create(&self, event: &Event) -> Result<(), Fault> {
        let namespace = event.metadata.namespace.as_deref().unwrap_or("default");
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        match api.create(&PostParams::default(), event).await {
            Ok(_) => Ok(()),
            Err(taken) if is_already_exists(&taken) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn repeat(
        &self,
        namespace: &str,
        name: &str,
        count: i32,
        last: &Time,
    ) -> Result<(), Fault> {
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let patch = Patch::Merge(json!({ "count": count, "lastTimestamp": last }));
        api.patch(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }
}
