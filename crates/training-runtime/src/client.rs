//! The connections to the API server.
//!
//! Three logical clients, so that none waits for another: one watches and has no read timeout, as a
//! quiet watch is a good one; one makes the calls; one renews the lease, on the election's own thread.
//! kube's retries are off in all of them: they would send one create up to fifteen times and sleep for
//! as long as a server says. Retrying is the business of [`crate::retry`] alone.
//!
//! In a pod, kube reads the service account's token and the cluster's CA again every minute, so
//! rotation needs nothing from us.

mod attend;
mod observe;
mod pages;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use http::header::USER_AGENT;
use kube::client::ClientBuilder;
use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use thiserror::Error;
use tower::buffer::BufferLayer;

use crate::cli::RuntimeArgs;
use crate::metrics::Metrics;

pub use attend::{Attend, what};
pub use observe::Observe;
use pages::Pages;

/// A silent connection is given up for a call after this time, even if the call may take longer.
const READ_TIMEOUT: Duration = Duration::from_secs(20);

/// The longest time a connection may take to open.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Requests of watches and their lists that may wait for the connection.
const WATCHES: usize = 1024;

/// The API server can't even be addressed.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The kubeconfig is missing or wrong.
    #[error("read the kubeconfig: {0}")]
    Kubeconfig(#[from] KubeconfigError),
    /// There is neither a kubeconfig nor a pod's service account.
    #[error("find the API server: no usable kubeconfig ({kubeconfig}) and not in a pod ({pod})")]
    Nowhere {
        /// Why there is no kubeconfig.
        kubeconfig: KubeconfigError,
        /// Why this is no pod.
        pod: InClusterError,
    },
    /// The name or version has characters that a header can't carry.
    #[error("the user agent \"{0}\" can't be sent")]
    UserAgent(String),
    /// The credentials or certificates can't be used.
    #[error("set up the connection: {0}")]
    Client(#[from] kube::Error),
}

/// Who this process is, for audit logs and for the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The holder of the lease: pod (or host), process id and build. A container that restarts in its
    /// pod is the same holder as before and goes on at once: its predecessor is certainly gone.
    pub holder: String,
    /// The `User-Agent` of every request: `<name>/<version> (<build>)`.
    pub user_agent: String,
}

impl Identity {
    /// The identity of this process. `name` is the operator's, `build` tells two builds of one version
    /// apart.
    pub fn new(name: &str, version: &str, build: &str) -> Self {
        let told = ["POD_NAME", "HOSTNAME"]
            .into_iter()
            .find_map(|key| std::env::var(key).ok());
        let host = told
            .or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok())
            .map(|host| host.trim().to_owned())
            .filter(|host| !host.is_empty())
            .unwrap_or_else(|| "unknown-host".to_owned());
        Self {
            holder: format!("{host}_{}_{build}", std::process::id()),
            user_agent: format!("{name}/{version} ({build})"),
        }
    }
}

/// The connections of one process.
#[derive(Clone)]
pub struct Clients {
    /// For watches and their lists: a watch may be silent for as long as it likes.
    pub watching: Client,
    /// For every other request; each must still run under its own deadline.
    pub calling: Client,
    /// For the lease; to be opened on the election's thread.
    pub lease: Recipe,
}

/// A connection that is still to be opened.
///
/// A [`Client`] has a task on the runtime it was made on. The lease's must live on the election's
/// thread, or a slow pass would delay its renewal.
#[derive(Clone)]
pub struct Recipe {
    config: Config,
    metrics: Arc<Metrics>,
}

impl Recipe {
    /// Opens the connection; needs a tokio runtime.
    ///
    /// # Errors
    /// If credentials or certificates can't be used.
    pub fn open(self) -> Result<Client, ConnectError> {
        let Self { config, metrics } = self;
        let builder = ClientBuilder::try_from(config)?;
        Ok(builder.with_layer(&Observe::new(metrics)).build())
    }
}

/// Chooses the cryptography of every TLS connection. To be called first thing; more calls do nothing.
pub fn install_crypto_provider() {
    // The only error is that a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Finds the API server and sets up the clients. Nothing is sent yet.
///
/// # Errors
/// If there is no configuration, or its credentials can't be used. The process should end: a restart
/// reads it again.
pub async fn connect(
    args: &RuntimeArgs,
    identity: &Identity,
    metrics: &Arc<Metrics>,
) -> Result<Clients, ConnectError> {
    install_crypto_provider();
    let mut config = find(args.kubeconfig.as_deref()).await?;
    let agent = HeaderValue::from_str(&identity.user_agent)
        .map_err(|_| ConnectError::UserAgent(identity.user_agent.clone()))?;
    config.headers.push((USER_AGENT, agent));
    config.default_retry = false;
    let recipe = |config| Recipe {
        config,
        metrics: Arc::clone(metrics),
    };
    Ok(Clients {
        watching: watching(config.clone(), args.call_deadline, metrics)?,
        calling: recipe(limited(
            config.clone(),
            args.call_deadline.min(READ_TIMEOUT),
        ))
        .open()?,
        lease: recipe(limited(config, args.lease_duration / 3)),
    })
}

async fn find(kubeconfig: Option<&Path>) -> Result<Config, ConnectError> {
    let options = KubeConfigOptions::default();
    if let Some(path) = kubeconfig {
        let file = Kubeconfig::read_from(path)?;
        return Ok(Config::from_custom_kubeconfig(file, &options).await?);
    }
    match Config::from_kubeconfig(&options).await {
        Ok(config) => Ok(config),
        // Who names a file means that file, not whatever else there is.
        Err(error) if std::env::var_os("KUBECONFIG").is_some_and(|value| !value.is_empty()) => {
            Err(error.into())
        }
        Err(kubeconfig) => {
            Config::incluster().map_err(|pod| ConnectError::Nowhere { kubeconfig, pod })
        }
    }
}

/// A watch may be silent, so no time limit of the connection itself can hold; see [`Attend`].
fn watching(
    mut config: Config,
    deadline: Duration,
    metrics: &Arc<Metrics>,
) -> Result<Client, ConnectError> {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = None;
    let builder = ClientBuilder::try_from(config)?
        .with_layer(&Observe::new(Arc::clone(metrics)))
        .with_layer(&Attend::new(metrics.watches().clone(), deadline))
        // A list may be sent more than once, for which its connection is cloned.
        .with_layer(&BufferLayer::new(WATCHES))
        .with_layer(&Pages::default());
    Ok(builder.build())
}

fn limited(mut config: Config, limit: Duration) -> Config {
    config.connect_timeout = Some(limit.min(CONNECT_TIMEOUT));
    config.read_timeout = Some(limit);
    config.write_timeout = Some(limit);
    // Without this, the time a pooled connection was idle counts against the next answer.
    config.reset_reader_on_write = true;
    config
}

#[cfg(test)]
mod tests;
