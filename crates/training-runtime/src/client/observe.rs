//! A layer for every connection: it counts requests and passes on the server's `Retry-After`.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::BoxError;
use axum::body::HttpBody;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Either, Full, Limited};
use kube::client::Body;
use kube::core::Status;
use tower::{Layer, Service};

use crate::metrics::Metrics;

/// The maximum bytes read of an error's body; a `Status` is far smaller.
const ERROR_BODY_LIMIT: usize = 64 * 1024;

/// A layer that counts answers by verb, resource and code, and copies the `Retry-After` header into the `Status`, because kube
/// returns only the body.
#[derive(Clone, Debug)]
pub struct Observe {
    metrics: Arc<Metrics>,
}

impl Observe {
    /// Creates a layer that counts into `metrics`.
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics }
    }
}

impl<S> Layer<S> for Observe {
    type Service = Observed<S>;

    fn layer(&self, inner: S) -> Observed<S> {
        Observed {
            inner,
            metrics: Arc::clone(&self.metrics),
        }
    }
}

/// A connection with an [`Observe`] layer.
#[derive(Clone, Debug)]
pub struct Observed<S> {
    inner: S,
    metrics: Arc<Metrics>,
}

impl<S, B> Service<Request<Body>> for Observed<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Either<B, Full<Bytes>>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (verb, resource) = describe(request.method(), request.uri());
        let metrics = Arc::clone(&self.metrics);
        let answer = self.inner.call(request);
        Box::pin(async move {
            let mut unanswered = Unanswered {
                metrics: Some(metrics),
                verb,
                resource,
            };
            let answer = answer.await;
            unanswered.answered(
                answer
                    .as_ref()
                    .ok()
                    .map(|response| response.status().as_u16()),
            );
            let response = answer?;
            Ok(match retry_after(response.status(), response.headers()) {
                Some(seconds) => with_delay(response, seconds).await,
                None => response.map(Either::Left),
            })
        })
    }
}

/// Counts a request that was dropped at its deadline as unanswered.
struct Unanswered {
    metrics: Option<Arc<Metrics>>,
    verb: &'static str,
    resource: String,
}

impl Unanswered {
    fn answered(&mut self, code: Option<u16>) {
        if let Some(metrics) = self.metrics.take() {
            metrics.request(self.verb, &self.resource, code);
        }
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        self.answered(None);
    }
}

fn retry_after(status: StatusCode, headers: &HeaderMap) -> Option<u32> {
    if status != StatusCode::TOO_MANY_REQUESTS && status != StatusCode::SERVICE_UNAVAILABLE {
        return None;
    }
    // Dates, text and negative numbers are ignored; the caller's own backoff applies.
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()
}

/// Puts the delay into the body, which may not be a `Status`: overload errors are often plain text.
async fn with_delay<B>(response: Response<B>, seconds: u32) -> Response<Either<B, Full<Bytes>>>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let (mut parts, body) = response.into_parts();
    let body = match Limited::new(body, ERROR_BODY_LIMIT).collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => Bytes::new(),
    };
    let mut status: Status = serde_json::from_slice(&body).unwrap_or_else(|_| {
        let text = String::from_utf8_lossy(&body);
        Status::failure(text.trim(), "TooManyRequests").with_code(parts.status.as_u16())
    });
    if status.code == 0 {
        status.code = parts.status.as_u16();
    }
    let details = status
        .details
        .get_or_insert_with(|| kube::core::response::StatusDetails {
            name: String::new(),
            group: String::new(),
            kind: String::new(),
            uid: String::new(),
            causes: Vec::new(),
            retry_after_seconds: 0,
        });
    details.retry_after_seconds = seconds;
    let body = serde_json::to_vec(&status).unwrap_or_default();
    parts.headers.remove(CONTENT_LENGTH);
    parts
        .headers
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Response::from_parts(parts, Either::Right(Full::new(body.into())))
}

/// Returns verb and resource of a request, as in an RBAC rule: `("patch", "pytorchjobs/status")`.
pub(super) fn describe(method: &Method, uri: &Uri) -> (&'static str, String) {
    let mut parts = uri.path().split('/').filter(|part| !part.is_empty());
    let group_parts = match parts.next() {
        Some("api") => 1,
        Some("apis") => 2,
        _ => return ("get", "other".to_owned()),
    };
    let mut rest: Vec<&str> = parts.skip(group_parts).collect();
    // `namespaces/<name>/<resource>…`; two parts or fewer mean the namespace itself.
    if rest.first() == Some(&"namespaces") && rest.len() > 2 {
        rest.drain(..2);
    }
    let named = rest.len() > 1;
    let watches = uri
        .query()
        .is_some_and(|q| q.split('&').any(|p| p == "watch=true"));
    let verb = match *method {
        Method::GET if watches => "watch",
        Method::GET if named => "get",
        Method::GET => "list",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE if named => "delete",
        Method::DELETE => "deletecollection",
        _ => "other",
    };
    let resource = match rest.as_slice() {
        [] => "other".to_owned(),
        [resource] | [resource, _] => (*resource).to_owned(),
        [resource, _, sub, ..] => format!("{resource}/{sub}"),
    };
    (verb, resource)
}
