//! The connections to the API server.
//!
//! There are three clients, so that none waits for another: one for watches, without a read timeout, as a watch may be quiet; one
//! for all other requests; and one that renews the lease, on the election's own thread. kube's retries are off in all of them: they
//! would send one create up to fifteen times and sleep for as long as a server asks. Only [`crate::retry`] retries.
//!
//! In a pod, kube reads the service account's token and the cluster's CA again every minute, so rotation needs no code here.

mod connection;
mod observe;
mod pages;
mod watch_layer;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use http::header::USER_AGENT;
use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use thiserror::Error;
use tower::buffer::BufferLayer;

use crate::cli::RuntimeArgs;
use crate::metrics::Metrics;

pub use connection::{Connection, builder};
pub use observe::Observe;
use pages::Pages;
pub use watch_layer::{WatchLayer, what};

/// A request gives up a silent connection after this time, even if its deadline is later.
const READ_TIMEOUT: Duration = Duration::from_secs(20);

/// Time limit for opening a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum queued requests of watches and their lists.
const WATCHES: usize = 1024;

/// The API server's address or credentials can't be determined.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The kubeconfig is missing or invalid.
    #[error("read the kubeconfig: {0}")]
    Kubeconfig(#[from] KubeconfigError),
    /// There is neither a kubeconfig nor a pod's service account.
    #[error("find the API server: no usable kubeconfig ({kubeconfig}) and not in a pod ({pod})")]
    Nowhere {
        /// Why no kubeconfig was found.
        kubeconfig: KubeconfigError,
        /// Why the process is not in a pod.
        pod: InClusterError,
    },
    /// The name or version has characters that a header can't hold.
    #[error("the user agent \"{0}\" can't be sent")]
    UserAgent(String),
    /// The credentials or certificates can't be used.
    #[error("set up the connection: {0}")]
    Client(#[from] kube::Error),
}

/// The identity of this process in audit logs and in the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The holder of the lease: pod (or host), process id and build. A container that restarts in its pod is the same holder and
    /// continues at once: its predecessor is certainly gone.
    pub holder: String,
    /// The `User-Agent` of every request: `<name>/<version> (<build>)`.
    pub user_agent: String,
}

impl Identity {
    /// Returns the identity of this process. `name` is the operator's; `build` distinguishes two builds of one version.
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

/// The clients of one process.
#[derive(Clone)]
pub struct Clients {
    /// For watches and their lists; a watch may be silent for any time.
    pub watching: Client,
    /// For every other request; each must have its own deadline.
    pub calling: Client,
    /// For the lease; open it on the election's thread.
    pub lease: LazyClient,
}

/// A client that is not open yet.
///
/// A [`Client`] has a task on the runtime that built it. The lease's client must run on the election's thread, or a slow reconcile
/// would delay renewal.
#[derive(Clone)]
pub struct LazyClient {
    config: Config,
    metrics: Arc<Metrics>,
}

impl LazyClient {
    /// Opens the connection; needs a tokio runtime.
    ///
    /// # Errors
    /// If credentials or certificates can't be used.
    pub fn open(self) -> Result<Client, ConnectError> {
        let Self { config, metrics } = self;
        Ok(builder(config)?.with_layer(&Observe::new(metrics)).build())
    }
}

/// Installs the crypto provider of every TLS connection. Call it first; further calls do nothing.
pub fn install_crypto_provider() {
    // The only error is that a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Finds the API server and sets up the clients. Sends nothing yet.
///
/// # Errors
/// If there is no configuration, or its credentials can't be used. The process should exit: a restart reads them again.
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
    let recipe = |config| LazyClient {
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
        // If KUBECONFIG names a file, don't fall back to the service account.
        Err(error) if std::env::var_os("KUBECONFIG").is_some_and(|value| !value.is_empty()) => {
            Err(error.into())
        }
        Err(kubeconfig) => {
            Config::incluster().map_err(|pod| ConnectError::Nowhere { kubeconfig, pod })
        }
    }
}

/// Builds the client of watches. A watch may be silent, so the connection has no timeout of its own; see [`WatchLayer`].
fn watching(
    mut config: Config,
    deadline: Duration,
    metrics: &Arc<Metrics>,
) -> Result<Client, ConnectError> {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = None;
    let builder = builder(config)?
        .with_layer(&Observe::new(Arc::clone(metrics)))
        .with_layer(&WatchLayer::new(metrics.watches().clone(), deadline))
        // A list may be sent more than once, which clones its connection.
        .with_layer(&BufferLayer::new(WATCHES))
        .with_layer(&Pages::default());
    Ok(builder.build())
}

fn limited(mut config: Config, limit: Duration) -> Config {
    config.connect_timeout = Some(limit.min(CONNECT_TIMEOUT));
    config.read_timeout = Some(limit);
    config.write_timeout = Some(limit);
    // Otherwise the idle time of a pooled connection counts against the next answer.
    config.reset_reader_on_write = true;
    config
}

#[cfg(test)]
mod tests;
