//! Bounds list pages by size.
//!
//! The API server bounds a page only by its number of objects, and an object may exceed a megabyte. A page that grows too large is
//! dropped while it arrives, and requested again with fewer objects.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::BoxError;
use axum::body::HttpBody;
use bytes::{Bytes, BytesMut};
use http::{Method, Request, Response, Uri};
use http_body_util::{BodyExt as _, Either, Full};
use kube::client::Body;
use parking_lot::Mutex;
use tower::{Layer, Service, ServiceExt as _};
use training_core::Size;

use super::watch_layer::watched;

/// Maximum bytes of a page with more than one object.
const MAX_BYTES: usize = 4 * 1024 * 1024;
/// Maximum memory of its objects, in bytes.
const MAX_MEMORY: usize = 32 * 1024 * 1024;

/// A layer that bounds the list pages of the watch connection.
#[derive(Clone, Debug, Default)]
pub struct Pages {
    /// Objects per page, for lists whose pages were too large.
    limits: Arc<Mutex<HashMap<String, u32>>>,
}

impl<S> Layer<S> for Pages {
    type Service = Paged<S>;

    fn layer(&self, inner: S) -> Paged<S> {
        Paged {
            inner,
            pages: self.clone(),
        }
    }
}

impl Pages {
    /// Returns how many objects to request.
    fn limit(&self, list: &str, asked: u32) -> u32 {
        let limits = self.limits.lock();
        limits.get(list).map_or(asked, |limit| asked.min(*limit))
    }

    /// Doubles the limit of the next page if this one, of `limit` objects, was small.
    fn fitted(&self, list: &str, limit: u32, asked: u32, size: Size) {
        if limit >= asked || size.text > MAX_BYTES / 4 || size.memory() > MAX_MEMORY / 4 {
            return;
        }
        let mut limits = self.limits.lock();
        if limit * 2 >= asked {
            limits.remove(list);
        } else {
            limits.insert(list.to_owned(), limit * 2);
        }
    }

    fn too_large(&self, list: &str, limit: u32) {
        self.limits.lock().insert(list.to_owned(), limit);
    }
}

/// A connection with a [`Pages`] layer.
#[derive(Clone, Debug)]
pub struct Paged<S> {
    inner: S,
    pages: Pages,
}

impl<S, B> Service<Request<Body>> for Paged<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: HttpBody<Data = Bytes, Error = BoxError> + Send + 'static,
{
    type Response = Response<Either<B, Full<Bytes>>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Some(asked) = page(&request) else {
            let answer = self.inner.call(request);
            return Box::pin(async move { Ok(answer.await?.map(Either::Left)) });
        };
        let (mut inner, pages) = (self.inner.clone(), self.pages.clone());
        Box::pin(async move {
            let list = watched(request.uri());
            let mut limit = pages.limit(&list, asked);
            loop {
                let again = with_limit(&request, limit)?;
                let (parts, body) = inner.ready().await?.call(again).await?.into_parts();
                if !parts.status.is_success() {
                    return Ok(Response::from_parts(parts, Either::Left(body)));
                }
                let Some((page, size)) = read(body, limit > 1).await? else {
                    limit = (limit / 2).max(1);
                    pages.too_large(&list, limit);
                    continue;
                };
                pages.fitted(&list, limit, asked, size);
                return Ok(Response::from_parts(parts, Either::Right(Full::new(page))));
            }
        })
    }
}

/// Reads a page and its size; `None` if it is too large.
async fn read<B>(body: B, bounded: bool) -> Result<Option<(Bytes, Size)>, BoxError>
where
    B: HttpBody<Data = Bytes, Error = BoxError>,
{
    let (mut page, mut size) = (BytesMut::new(), Size::default());
    let mut body = std::pin::pin!(body);
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            size += Size::of_text(&data);
            if bounded && (size.text > MAX_BYTES || size.memory() > MAX_MEMORY) {
                return Ok(None);
            }
            page.extend_from_slice(&data);
        }
    }
    Ok(Some((page.freeze(), size)))
}

/// Returns the limit of a request for a page; `None` for any other request.
fn page(request: &Request<Body>) -> Option<u32> {
    if *request.method() != Method::GET {
        return None;
    }
    let mut parts = request.uri().query()?.split('&');
    parts.find_map(|part| part.strip_prefix("limit=")?.parse().ok())
}

/// Copies a request with another limit.
fn with_limit(request: &Request<Body>, limit: u32) -> Result<Request<Body>, BoxError> {
    let uri = request.uri();
    let query = uri.query().unwrap_or_default().split('&').map(|part| {
        if part.starts_with("limit=") {
            format!("limit={limit}")
        } else {
            part.to_owned()
        }
    });
    let query: Vec<String> = query.collect();
    let mut parts = uri.clone().into_parts();
    let path = format!("{}?{}", uri.path(), query.join("&"));
    parts.path_and_query = Some(path.parse()?);
    let mut again = Request::builder()
        .method(request.method())
        .uri(Uri::from_parts(parts)?)
        .version(request.version())
        .body(Body::empty())?;
    *again.headers_mut() = request.headers().clone();
    *again.extensions_mut() = request.extensions().clone();
    Ok(again)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::StatusCode;

    use super::*;

    /// Answers with pages of `object`, and records the requested limits.
    #[derive(Clone, Default)]
    struct Server {
        object: Arc<Mutex<String>>,
        asked: Arc<Mutex<Vec<u32>>>,
    }

    impl Server {
        async fn list(&self, pages: &Pages, query: &str) -> Response<Bytes> {
            let server = self.clone();
            let inner = tower::service_fn(move |request: Request<Body>| {
                let limit = page(&request).unwrap();
                server.asked.lock().push(limit);
                let page = server.object.lock().repeat(limit.try_into().unwrap());
                let body = Full::new(Bytes::from(page));
                let body = body.map_err(|never: Infallible| match never {});
                async move { Ok::<_, BoxError>(Response::new(body)) }
            });
            let uri = format!("/apis/kubeflow.org/v1/pytorchjobs?{query}");
            let request = Request::get(uri).body(Body::empty()).unwrap();
            let answer = pages.layer(inner).oneshot(request).await.unwrap();
            let (parts, body) = answer.into_parts();
            Response::from_parts(parts, body.collect().await.unwrap().to_bytes())
        }

        fn asked(&self) -> Vec<u32> {
            std::mem::take(&mut *self.asked.lock())
        }
    }

    #[tokio::test]
    async fn a_page_that_is_too_large_is_asked_for_with_fewer_objects() {
        let (server, pages) = (Server::default(), Pages::default());
        *server.object.lock() = " ".repeat(100_000);
        let page = server.list(&pages, "limit=200&continue=next").await;
        assert_eq!(page.body().len(), 25 * 100_000);
        assert_eq!(server.asked(), [200, 100, 50, 25]);
        server.list(&pages, "limit=200").await;
        assert_eq!(server.asked(), [25], "the next page keeps the limit");
        server.list(&pages, "limit=200&labelSelector=a").await;
        assert_eq!(server.asked()[0], 200, "each list has its own limit");
    }

    #[tokio::test]
    async fn pages_grow_again_once_objects_are_small() {
        let (server, pages) = (Server::default(), Pages::default());
        *server.object.lock() = " ".repeat(1_000_000);
        server.list(&pages, "limit=200").await;
        assert_eq!(server.asked(), [200, 100, 50, 25, 12, 6, 3]);
        *server.object.lock() = " ".repeat(1_000);
        for _ in 0..8 {
            server.list(&pages, "limit=200").await;
        }
        assert_eq!(server.asked(), [3, 6, 12, 24, 48, 96, 192, 200]);
    }

    #[tokio::test]
    async fn one_object_is_read_whatever_its_size() {
        let (server, pages) = (Server::default(), Pages::default());
        *server.object.lock() = " ".repeat(MAX_BYTES + 1);
        let page = server.list(&pages, "limit=4").await;
        assert_eq!(page.body().len(), MAX_BYTES + 1);
        assert_eq!(page.status(), StatusCode::OK);
        assert_eq!(server.asked(), [4, 2, 1]);
    }

    #[tokio::test]
    async fn short_objects_that_take_much_memory_make_a_page_too_large() {
        let (server, pages) = (Server::default(), Pages::default());
        *server.object.lock() = "{},".repeat(20_000);
        let page = server.list(&pages, "limit=16").await;
        assert_eq!(page.body().len(), 4 * 60_000);
        assert_eq!(server.asked(), [16, 8, 4]);
    }

    #[test]
    fn a_request_keeps_the_rest_of_its_query() {
        let uri = "/api/v1/pods?labelSelector=a%3Db&limit=200&continue=x";
        let request = Request::get(uri).body(Body::empty()).unwrap();
        let again = with_limit(&request, 7).unwrap();
        let query = "labelSelector=a%3Db&limit=7&continue=x";
        assert_eq!(again.uri().query(), Some(query));
        let watch = Request::get("/api/v1/pods?watch=true").body(Body::empty());
        assert_eq!(page(&watch.unwrap()), None);
    }
}
