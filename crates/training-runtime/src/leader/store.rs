//! The three requests an election needs.

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::PostParams;
use kube::{Api, Client};

use crate::fault::{Fault, is_already_exists};

/// Where the Lease is kept.
pub trait LeaseStore: 'static {
    /// The Lease, if there is one.
    ///
    /// # Errors
    /// Whatever kept the request from being answered.
    fn get(&self) -> impl Future<Output = Result<Option<Lease>, Fault>>;

    /// Makes the Lease.
    ///
    /// # Errors
    /// [`Fault::Conflict`] if there is one already.
    fn create(&self, lease: &Lease) -> impl Future<Output = Result<Lease, Fault>>;

    /// Replaces the Lease as it was read.
    ///
    /// # Errors
    /// [`Fault::Conflict`] if it changed since it was read, [`Fault::Missing`] if it is gone.
    fn replace(&self, lease: &Lease) -> impl Future<Output = Result<Lease, Fault>>;
}

/// The Lease in the API server.
#[derive(Clone, Debug)]
pub struct KubeLeases {
    api: Api<Lease>,
    name: String,
}

impl KubeLeases {
    /// The Lease of a name.
    pub fn new(client: Client, namespace: &str, name: &str) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            name: name.to_owned(),
        }
    }
}

impl LeaseStore for KubeLeases {
    async fn get(&self) -> Result<Option<Lease>, Fault> {
        Ok(self.api.get_opt(&self.name).await?)
    }

    async fn create(&self, lease: &Lease) -> Result<Lease, Fault> {
        let answer = self.api.create(&PostParams::default(), lease).await;
        answer.map_err(|error| match error {
            taken if is_already_exists(&taken) => Fault::Conflict(taken.to_string()),
            other => other.into(),
        })
    }

    async fn replace(&self, lease: &Lease) -> Result<Lease, Fault> {
        Ok(self
            .api
            .replace(&self.name, &PostParams::default(), lease)
            .await?)
    }
}
