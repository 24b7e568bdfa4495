//! A layer for the watch client: it sets deadlines where possible, limits the rate of new watches, and records when a watch
//! receives data.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::BoxError;
use axum::body::HttpBody;
use bytes::Bytes;
use http::{Request, Response, Uri};
use hyper::body::{Frame, SizeHint};
use kube::client::Body;
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};
use tower::{Layer, Service};

use crate::metrics::WatchTimes;

/// Maximum watches opened in a row without a pause. Servers rarely end streams in good order, so a higher rate means that a proxy
/// ends them at once.
const OPENS: u32 = 10;
/// The pause between further openings.
const BETWEEN_OPENS: Duration = Duration::from_millis(500);

/// A layer around the watch connection.
///
/// The deadline of a request covers a list up to its last byte, and a watch up to its response head. After that the watch may be
/// silent, and the layer records its data.
#[derive(Clone, Debug)]
pub struct WatchLayer {
    watches: WatchTimes,
    deadline: Duration,
    opens: Arc<Mutex<HashMap<String, Instant>>>,
}

impl WatchLayer {
    /// Creates a layer that records into `watches`.
    pub fn new(watches: WatchTimes, deadline: Duration) -> Self {
        Self {
            watches,
            deadline,
            opens: Arc::default(),
        }
    }

    /// Returns when a watch of this path may be opened, and counts it as opened.
    fn turn(&self, path: &str, now: Instant) -> Instant {
        let mut opens = self.opens.lock();
        // When the watches opened so far would be over, at the permitted rate.
        let over = opens.entry(path.to_owned()).or_insert(now);
        let begin = now.max(*over);
        *over = begin + BETWEEN_OPENS;
        let ahead = BETWEEN_OPENS * (OPENS - 1);
        begin.checked_sub(ahead).map_or(now, |at| at.max(now))
    }
}

impl<S> Layer<S> for WatchLayer {
    type Service = WatchService<S>;

    fn layer(&self, inner: S) -> WatchService<S> {
        WatchService {
            inner,
            layer: self.clone(),
        }
    }
}

/// A connection with a [`WatchLayer`].
#[derive(Clone, Debug)]
pub struct WatchService<S> {
    inner: S,
    layer: WatchLayer,
}

impl<S, B> Service<Request<Body>> for WatchService<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<RecordedBody<B>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let watched = is_watch(request.uri()).then(|| watched(request.uri()));
        let layer = self.layer.clone();
        // Nothing is sent before the future is polled.
        let answer = self.inner.call(request);
        Box::pin(async move {
            if let Some(path) = &watched {
                sleep_until(layer.turn(path, Instant::now())).await;
            }
            let end = Instant::now() + layer.deadline;
            let answer = timeout_at(end, answer).await.map_err(|_| late())?;
            let answer = answer.map_err(Into::into)?;
            let kind = match watched {
                Some(path) => {
                    if answer.status().is_success() {
                        layer.watches.opened(&path);
                    }
                    BodyKind::Watch(layer.watches, path)
                }
                None => BodyKind::Answer(Box::pin(sleep_until(end))),
            };
            Ok(answer.map(|body| RecordedBody {
                body: Box::pin(body),
                kind,
            }))
        })
    }
}

fn is_watch(uri: &Uri) -> bool {
    uri.query()
        .is_some_and(|query| query.split('&').any(|part| part == "watch=true"))
}

fn late() -> BoxError {
    "no answer within the deadline of a call".into()
}

enum BodyKind {
    Watch(WatchTimes, String),
    Answer(Pin<Box<Sleep>>),
}

/// A body whose data is recorded.
pub struct RecordedBody<B> {
    body: Pin<Box<B>>,
    kind: BodyKind,
}

impl<B> HttpBody for RecordedBody<B>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = self.body.as_mut().poll_frame(cx);
        match (&mut self.kind, &frame) {
            (BodyKind::Watch(watches, path), Poll::Ready(None | Some(Ok(_)))) => {
                watches.received(path);
            }
            (BodyKind::Answer(end), Poll::Pending) => {
                if end.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Some(Err(late())));
                }
            }
            (BodyKind::Watch(..), Poll::Pending | Poll::Ready(Some(Err(_))))
            | (BodyKind::Answer(_), Poll::Ready(_)) => {}
        }
        frame.map(|frame| frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Returns the path and label selector that a request watches or lists.
pub(super) fn watched(uri: &Uri) -> String {
    let query = uri.query().unwrap_or_default().as_bytes();
    let mut pairs = form_urlencoded::parse(query);
    let selector = pairs.find(|(key, _)| key == "labelSelector");
    what(uri.path(), selector.as_ref().map(|(_, labels)| &**labels))
}

/// Names a watch by path and selector, since two watches may share a path.
pub fn what(path: &str, selector: Option<&str>) -> String {
    match selector {
        Some(selector) => format!("{path}?{selector}"),
        None => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use http_body_util::{BodyExt as _, StreamBody};
    use tower::ServiceExt as _;

    use super::*;

    const PODS: &str = "/api/v1/pods";

    fn request(query: &str) -> Request<Body> {
        let uri = format!("{PODS}?{query}");
        Request::builder().uri(uri).body(Body::empty()).unwrap()
    }

    fn trickle() -> impl HttpBody<Data = Bytes, Error = BoxError> {
        let bytes = stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Some((Ok(Frame::data(Bytes::from_static(b" "))), ()))
        });
        StreamBody::new(bytes)
    }

    #[tokio::test(start_paused = true)]
    async fn f_35_a_watch_that_ends_at_once_is_opened_twice_a_second() {
        let layer = WatchLayer::new(WatchTimes::default(), Duration::from_secs(30));
        let start = Instant::now();
        let mut opened = Vec::new();
        while start.elapsed() < Duration::from_secs(10) {
            tokio::time::sleep_until(layer.turn(PODS, Instant::now())).await;
            opened.push(start.elapsed());
        }
        assert!((25..=31).contains(&opened.len()), "{opened:?}");
        assert_eq!(opened[9], Duration::ZERO, "the first ones do not wait");
        assert_eq!(layer.turn("/another", Instant::now()), Instant::now());
        tokio::time::sleep(Duration::from_mins(1)).await;
        assert_eq!(layer.turn(PODS, Instant::now()), Instant::now());
    }

    #[tokio::test(start_paused = true)]
    async fn f_04_f_05_a_list_ends_by_our_deadline_and_a_watch_may_be_silent() {
        let limit = Duration::from_secs(30);
        let silent = tower::service_fn(async |_: Request<Body>| {
            std::future::pending::<Result<Response<String>, BoxError>>().await
        });
        let layer = WatchLayer::new(WatchTimes::default(), limit);
        for query in ["limit=500", "watch=true"] {
            let start = Instant::now();
            let answer = layer.layer(silent).oneshot(request(query)).await;
            assert!(answer.is_err());
            assert_eq!(start.elapsed(), limit, "{query}");
        }
        let slow =
            tower::service_fn(async |_: Request<Body>| Ok::<_, BoxError>(Response::new(trickle())));
        let start = Instant::now();
        let answer = layer.layer(slow).oneshot(request("limit=500")).await;
        assert!(answer.unwrap().into_body().collect().await.is_err());
        assert_eq!(start.elapsed(), limit);
        let answer = layer.layer(slow).oneshot(request("watch=true")).await;
        let mut body = answer.unwrap().into_body();
        for _ in 0..100 {
            body.frame().await.unwrap().unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn f_36_a_watch_is_open_when_it_is_answered_and_heard_with_every_byte() {
        let watches = WatchTimes::default();
        let wanted = watches.want("pods", None, PODS);
        let slow =
            tower::service_fn(async |_: Request<Body>| Ok::<_, BoxError>(Response::new(trickle())));
        let layer = WatchLayer::new(watches, Duration::from_secs(30));
        let answer = layer.layer(slow).oneshot(request("watch=true")).await;
        let mut body = answer.unwrap().into_body();
        tokio::time::advance(Duration::from_secs(9)).await;
        assert_eq!(wanted.age(), Duration::from_secs(9), "a head is no news");
        body.frame().await.unwrap().unwrap();
        assert_eq!(wanted.age(), Duration::ZERO);
    }
}
