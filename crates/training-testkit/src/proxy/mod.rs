//! A proxy as the operator's only connection to the API server, for tests that break it.
//!
//! It speaks plain HTTP/1.1 to the operator and TLS to the API server. It forwards the caller's credentials, so the API server and
//! its roles decide what the operator may do. It classifies ([`Call`]) and records every request, and forwards it unless a [`Rule`]
//! applies.

mod class;
mod exchange;
mod rule;
mod socket;
mod stream;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::Connect;
use kube::client::ConfigExt as _;
use parking_lot::Mutex;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

pub use class::Call;
pub use rule::{Action, Answer, Applied, Change, Effect, Filter, Gate, Rule, SerialLock};
use socket::Socket;
use stream::Broken;

use crate::control_plane::{config_from, connections};
use crate::wait::{HANG, Seen, eventually};

/// A request that passed the proxy.
#[derive(Clone, Debug)]
pub struct Record {
    /// The request.
    pub call: Call,
    /// The status of the response that the operator got; `None` without one.
    pub code: Option<u16>,
    /// Its arrival time.
    pub at: Instant,
    /// The rule that applied to it.
    pub rule: Option<String>,
}

/// A running proxy; dropping it ends it.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Mutex<Option<AbortHandle>>,
}

struct Shared {
    upstream: Upstream,
    rules: Mutex<Vec<Rule>>,
    records: Mutex<BTreeMap<u64, Record>>,
    next: AtomicU64,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}

type Sending = futures::future::BoxFuture<'static, Result<Response<Incoming>, Broken>>;
type Upstream = Box<dyn Fn(Request<Full<Bytes>>) -> Sending + Send + Sync>;

impl Proxy {
    /// Starts a proxy for a kubeconfig's API server; it uses only the address and the certificate authority.
    pub async fn start(kubeconfig: &Path) -> Result<Self> {
        let config = config_from(kubeconfig).await?;
        let server = config.cluster_url.clone();
        Self::before(&server, config.rustls_https_connector()?).await
    }

    async fn before<C>(server: &Uri, connector: C) -> Result<Self>
    where
        C: Connect + Clone + Send + Sync + 'static,
    {
        let client: Client<C, Full<Bytes>> = connections(connector);
        let server = server.clone();
        let upstream: Upstream = Box::new(move |mut request| {
            let target = target(&server, request.uri());
            let client = client.clone();
            Box::pin(async move {
                *request.uri_mut() = target?;
                Ok(client.request(request).await?)
            })
        });
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            upstream,
            rules: Mutex::default(),
            records: Mutex::default(),
            next: AtomicU64::default(),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared))).abort_handle();
        Ok(Self {
            address,
            shared,
            accepting: Mutex::new(Some(accepting)),
        })
    }

    /// A proxy for a server without TLS, for the proxy's own tests.
    #[cfg(test)]
    async fn before_plain(server: SocketAddr) -> Result<Self> {
        Self::before(
            &format!("http://{server}").parse()?,
            hyper_util::client::legacy::connect::HttpConnector::new(),
        )
        .await
    }

    /// The address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Writes a kubeconfig for connecting through it.
    pub fn write_kubeconfig(&self, path: &Path, token: &str) -> Result<()> {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "proxy",
            "clusters": [{
                "name": "proxy", "cluster": { "server": format!("http://{}", self.address) },
            }],
            "users": [{ "name": "operator", "user": { "token": token } }],
            "contexts": [{ "name": "proxy", "context": { "cluster": "proxy", "user": "operator" } }],
        });
        std::fs::write(path, serde_json::to_vec_pretty(&config)?)
            .with_context(|| format!("can't write {}", path.display()))
    }

    /// Adds a rule. The first rule that applies to a request wins. Keep a clone to read its hits.
    pub fn add(&self, rule: &Rule) {
        self.shared.rules.lock().push(rule.clone());
    }

    /// Removes all rules; requests on hold stay on hold until their gate opens.
    pub fn clear_rules(&self) {
        self.shared.rules.lock().clear();
    }

    /// Announces every matching write after the API server has executed it and before its author gets the response.
    pub fn announce(
        &self,
        name: &str,
        matches: impl Fn(&Call) -> bool + Send + Sync + 'static,
    ) -> mpsc::UnboundedReceiver<Applied> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.add(&Rule::new(name, Action::Announce(sender), matches));
        receiver
    }

    /// Like [`Proxy::announce`], but one write after the other ([`Action::AnnounceInTurn`]).
    pub fn announce_in_turn(
        &self,
        name: &str,
        matches: impl Fn(&Call) -> bool + Send + Sync + 'static,
    ) -> mpsc::UnboundedReceiver<Applied> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.add(&Rule::new(
            name,
            Action::AnnounceInTurn(sender, SerialLock::default()),
            matches,
        ));
        receiver
    }

    /// Refuses new connections and resets open ones.
    pub fn refuse(&self) {
        if let Some(accepting) = self.accepting.lock().take() {
            accepting.abort();
        }
    }

    /// Resets all open connections. Watches reconnect, and the present rules apply to them.
    pub async fn cut(&self) -> Result<()> {
        self.accept().await
    }

    /// Accepts connections again.
    pub async fn accept(&self) -> Result<()> {
        self.refuse();
        // The port is free once the aborted task has been dropped, which takes a moment.
        let listener = eventually("the proxy's port to be free", HANG, async || {
            Ok(Seen::Yes(TcpListener::bind(self.address).await?))
        })
        .await?;
        let task = tokio::spawn(accept(listener, Arc::clone(&self.shared)));
        *self.accepting.lock() = Some(task.abort_handle());
        Ok(())
    }

    /// The requests so far.
    pub fn records(&self) -> Vec<Record> {
        self.shared.records.lock().values().cloned().collect()
    }

    /// Clears the recorded requests.
    pub fn clear_records(&self) {
        self.shared.records.lock().clear();
    }

    /// Numbers of requests by verb and resource.
    pub fn counts(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for record in self.shared.records.lock().values() {
            let what = Call {
                name: String::new(),
                ..record.call.clone()
            };
            *counts.entry(what.to_string()).or_default() += 1;
        }
        counts
    }

    /// I-26: fails if a write could have hit an object that its author had not seen.
    pub fn assert_guarded(&self) -> Result<()> {
        let records = self.shared.records.lock();
        let unguarded: Vec<String> = records
            .values()
            .filter_map(|record| record.call.unguarded())
            .collect();
        anyhow::ensure!(unguarded.is_empty(), "{}", unguarded.join("\n"));
        Ok(())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.refuse();
    }
}

fn target(server: &Uri, asked: &Uri) -> Result<Uri, Broken> {
    let mut parts = server.clone().into_parts();
    parts.path_and_query = asked.path_and_query().cloned();
    Ok(Uri::from_parts(parts)?)
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // Connections end with this task.
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        // A small response must not wait for the acknowledgement of the previous one.
        let _ = stream.set_nodelay(true);
        connections.spawn(serve(stream, Arc::clone(&shared)));
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    let service = service_fn(|request| exchange::answer(request, Arc::clone(&shared)));
    let server = hyper::server::conn::http1::Builder::new();
    // A rule or a killed operator caused this error.
    let _ = server.serve_connection(Socket::new(stream), service).await;
}
