//! A minimal client of the API server: pooled connections, a token, bytes in and bytes out.
//!
//! The floor client, the status driver and the load generator use it. It uses the same TLS and HTTP crates as the
//! operators' client, without kube's layers.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use kube::client::ConfigExt as _;
use serde::Deserialize;
use training_testkit::control_plane::{config_from, connections};

/// Whole objects.
pub const JSON: &str = "application/json";
/// Only an object's metadata.
pub const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
/// The content type of a merge patch.
pub const MERGE_PATCH: &str = "application/merge-patch+json";

/// The path of pods and services.
pub const CORE: &str = "/api/v1";
/// The path of Jobs.
pub const BATCH: &str = "/apis/batch/v1";

/// A client that acts as one user.
#[derive(Clone)]
pub struct Api {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    base: String,
    authorization: HeaderValue,
}

/// The user in our kubeconfig.
#[derive(Deserialize)]
struct Kubeconfig {
    users: Vec<NamedUser>,
}

#[derive(Deserialize)]
struct NamedUser {
    user: User,
}

#[derive(Deserialize)]
struct User {
    token: String,
}

impl Api {
    /// Creates a client; connections are opened by the first requests.
    pub async fn new(kubeconfig: &Path) -> Result<Self> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let config = config_from(kubeconfig).await?;
        let file: Kubeconfig = serde_json::from_slice(&std::fs::read(kubeconfig)?)
            .context("the kubeconfig of the light mode is JSON")?;
        let user = file.users.into_iter().next().context("no user")?.user;
        let mut authorization = HeaderValue::try_from(format!("Bearer {}", user.token))?;
        authorization.set_sensitive(true);
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        let connector = config.rustls_https_connector_with_connector(connector)?;
        Ok(Self {
            client: connections(connector),
            base: config
                .cluster_url
                .to_string()
                .trim_end_matches('/')
                .to_owned(),
            authorization,
        })
    }

    /// Sends one request and reads its whole response.
    pub async fn send(&self, method: Method, path: &str, ask: Ask) -> Result<(StatusCode, Bytes)> {
        let response = self.open(method, path, ask).await?;
        let status = response.status();
        Ok((status, response.into_body().collect().await?.to_bytes()))
    }

    /// Sends one request that must succeed.
    pub async fn must(&self, method: Method, path: &str, ask: Ask) -> Result<Bytes> {
        let what = format!("{method} {path}");
        let (status, body) = self.send(method, path, ask).await?;
        if !status.is_success() {
            let body = String::from_utf8_lossy(&body);
            bail!(
                "{what}: {status}: {}",
                body.chars().take(400).collect::<String>()
            );
        }
        Ok(body)
    }

    /// Opens a watch at a resource version.
    pub async fn watch(
        &self,
        path: &str,
        query: &str,
        from: &str,
        accept: &'static str,
    ) -> Result<Watch> {
        let mut watch = Watch {
            api: self.clone(),
            path: format!("{path}?watch=true&allowWatchBookmarks=true&timeoutSeconds=3600{query}"),
            accept,
            version: from.to_owned(),
            body: None,
            buffer: BytesMut::new(),
            opened: 0,
        };
        watch.open().await?;
        Ok(watch)
    }

    async fn open(&self, method: Method, path: &str, ask: Ask) -> Result<http::Response<Incoming>> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header(AUTHORIZATION, self.authorization.clone())
            .header(ACCEPT, HeaderValue::from_static(ask.accept))
            .header(USER_AGENT, HeaderValue::from_static("training-bench"));
        if let Some(content_type) = ask.content_type {
            request = request.header(CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        Ok(self
            .client
            .request(request.body(Full::new(ask.body))?)
            .await?)
    }
}

/// A request's body, and the form of its response.
pub struct Ask {
    accept: &'static str,
    content_type: Option<&'static str>,
    body: Bytes,
}

impl Ask {
    /// No body.
    pub fn read(accept: &'static str) -> Self {
        Self {
            accept,
            content_type: None,
            body: Bytes::new(),
        }
    }

    /// A JSON body; the response contains only metadata.
    pub fn write(body: impl Into<Bytes>) -> Self {
        Self {
            accept: METADATA,
            content_type: Some(JSON),
            body: body.into(),
        }
    }

    /// A JSON body; the response contains the whole object.
    pub fn write_and_read(body: impl Into<Bytes>) -> Self {
        Self {
            accept: JSON,
            ..Self::write(body)
        }
    }

    /// A merge patch; the response contains only metadata.
    pub fn patch(body: impl Into<Bytes>) -> Self {
        Self {
            accept: METADATA,
            content_type: Some(MERGE_PATCH),
            body: body.into(),
        }
    }
}

/// A watch that is reopened where it ended. The API server ends watches of a newly installed CRD.
pub struct Watch {
    api: Api,
    path: String,
    accept: &'static str,
    version: String,
    body: Option<Incoming>,
    buffer: BytesMut,
    opened: u32,
}

/// How often a watch may end or be deferred before it counts as broken.
const MOST_OPENED: u32 = 50;
/// The delay before a deferred watch is opened again.
const PUT_OFF: Duration = Duration::from_millis(100);

impl Watch {
    /// Records the last seen resource version.
    pub fn seen(&mut self, version: &str) {
        self.version.clear();
        self.version.push_str(version);
    }

    async fn open(&mut self) -> Result<()> {
        let path = format!("{}&resourceVersion={}", self.path, self.version);
        let response = loop {
            self.opened += 1;
            anyhow::ensure!(
                self.opened <= MOST_OPENED,
                "the watch ends again and again: {}",
                self.path
            );
            let ask = Ask::read(self.accept);
            let response = self.api.open(Method::GET, &path, ask).await?;
            // The API server answers 429 while it loads the objects of a new CRD into its cache.
            if response.status() != StatusCode::TOO_MANY_REQUESTS {
                break response;
            }
            tokio::time::sleep(PUT_OFF).await;
        };
        anyhow::ensure!(
            response.status().is_success(),
            "watch {path}: {}",
            response.status()
        );
        self.body = Some(response.into_body());
        self.buffer.clear();
        Ok(())
    }

    /// Returns the next line, which is one event.
    pub async fn next(&mut self) -> Result<Bytes> {
        let mut searched = 0;
        loop {
            if let Some(at) = self.buffer[searched..]
                .iter()
                .position(|byte| *byte == b'\n')
            {
                return Ok(self.buffer.split_to(searched + at + 1).freeze());
            }
            searched = self.buffer.len();
            let body = self
                .body
                .as_mut()
                .context("a watch that was never opened")?;
            if let Some(Ok(frame)) = body.frame().await {
                if let Ok(data) = frame.into_data() {
                    self.buffer.extend_from_slice(&data);
                }
            } else {
                // If a stream breaks in the middle of an event, the next one starts with the whole event.
                tokio::time::sleep(Duration::from_millis(20)).await;
                self.open().await?;
                searched = 0;
            }
        }
    }
}
