//! The plainest client of the API server: pooled connections, a token, bytes in and bytes out.
//!
//! The floor client, the status driver and the load generator all use it. It stands on the same TLS and HTTP crates as the
//! operators' client, without the layers that kube puts on top.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::ConfigExt as _;
use serde::Deserialize;
use training_testkit::control_plane::config_from;

/// Whole objects.
pub const JSON: &str = "application/json";
/// An object's metadata alone.
pub const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
/// The body of a patch that says what differs.
pub const MERGE_PATCH: &str = "application/merge-patch+json";

/// Where the jobs are.
pub const JOBS: &str = "/apis/kubeflow.org/v1";
/// Where pods and services are.
pub const CORE: &str = "/api/v1";

/// A client that acts as one user.
pub struct Api {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    base: String,
    authorization: HeaderValue,
}

/// What a kubeconfig of ours holds of its user.
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
    /// Opens nothing yet; connections come with the first requests.
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
            client: Client::builder(TokioExecutor::new()).build(connector),
            base: config
                .cluster_url
                .to_string()
                .trim_end_matches('/')
                .to_owned(),
            authorization,
        })
    }

    /// Sends one request and reads its whole answer.
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

    /// Opens a watch from a resource version on.
    pub async fn watch(
        &self,
        path: &str,
        query: &str,
        from: &str,
        accept: &'static str,
    ) -> Result<Lines> {
        // An hour: longer than any run, so that a watch that ends is a fault.
        let path = format!(
            "{path}?watch=true&allowWatchBookmarks=true&timeoutSeconds=3600&resourceVersion={from}{query}"
        );
        let response = self.open(Method::GET, &path, Ask::read(accept)).await?;
        anyhow::ensure!(
            response.status().is_success(),
            "watch {path}: {}",
            response.status()
        );
        Ok(Lines {
            body: response.into_body(),
            buffer: BytesMut::new(),
        })
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

/// What a request carries, and what its answer should be.
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

    /// A body in JSON; of the answer the metadata is enough.
    pub fn write(body: impl Into<Bytes>) -> Self {
        Self {
            accept: METADATA,
            content_type: Some(JSON),
            body: body.into(),
        }
    }

    /// A merge patch; of the answer the metadata is enough.
    pub fn patch(body: impl Into<Bytes>) -> Self {
        Self {
            accept: METADATA,
            content_type: Some(MERGE_PATCH),
            body: body.into(),
        }
    }
}

/// The lines of a watch, one event each.
pub struct Lines {
    body: Incoming,
    buffer: BytesMut,
}

impl Lines {
    /// The next line; an end is a fault.
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
            let frame = self.body.frame().await.context("a watch ended")??;
            if let Ok(data) = frame.into_data() {
                self.buffer.extend_from_slice(&data);
            }
        }
    }
}
