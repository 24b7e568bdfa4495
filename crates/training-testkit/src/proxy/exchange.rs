//! One request and its response, with the rule that applies.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, RETRY_AFTER, TRANSFER_ENCODING,
};
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::rule::{Action, Answer, Applied, Effect, Rule};
use super::stream::{self, Body, Broken, Framing};
use super::{Call, Record, Shared};

pub(super) async fn answer(
    request: Request<Incoming>,
    shared: Arc<Shared>,
) -> Result<Response<Body>, Broken> {
    let (mut head, body) = request.into_parts();
    let bytes = body.collect().await?.to_bytes();
    for hop in [
        HOST,
        CONNECTION,
        CONTENT_LENGTH,
        TRANSFER_ENCODING,
        ACCEPT_ENCODING,
    ] {
        head.headers.remove(hop);
    }
    let request = Request::from_parts(head, Full::new(bytes.clone()));
    let call = Call::of(&request, &bytes);
    let rule = shared
        .rules
        .lock()
        .iter()
        .find(|rule| rule.applies(&call))
        .cloned();
    let id = shared.record(&call, rule.as_ref());
    let answer = match rule {
        None => shared
            .pass_on(request)
            .await
            .map(|answer| answer.map(stream::untouched)),
        Some(rule) => shared.broken(request, call, rule).await,
    };
    if let (Ok(answer), Some(record)) = (&answer, shared.records.lock().get_mut(&id)) {
        record.code = Some(answer.status().as_u16());
    }
    answer
}

impl Shared {
    fn record(&self, call: &Call, rule: Option<&Rule>) -> u64 {
        let record = Record {
            call: call.clone(),
            code: None,
            at: Instant::now(),
            rule: rule.map(|rule| rule.name().to_owned()),
        };
        let id = self.next.fetch_add(1, Ordering::SeqCst);
        self.records.lock().insert(id, record);
        id
    }

    /// Forwards a request. It completes even if its author dies meanwhile, because it is already on the wire.
    async fn pass_on(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Broken> {
        let mut answer = tokio::spawn((self.upstream)(request)).await??;
        for hop in [CONNECTION, TRANSFER_ENCODING] {
            answer.headers_mut().remove(hop);
        }
        Ok(answer)
    }

    async fn broken(
        &self,
        request: Request<Full<Bytes>>,
        call: Call,
        rule: Rule,
    ) -> Result<Response<Body>, Broken> {
        match rule.action.clone() {
            Action::CutAnswer
            | Action::WrongLength
            | Action::AlterAnswer(_)
            | Action::Trickle(_) => self.garbled(request, &rule).await,
            Action::ResetBefore => {
                rule.hit();
                Err("reset before".into())
            }
            Action::ResetAfter => {
                self.pass_on(request).await?.into_body().collect().await?;
                rule.hit();
                Err("reset after".into())
            }
            Action::Answer(effect, answer) => {
                if effect == Effect::With {
                    self.pass_on(request).await?.into_body().collect().await?;
                }
                rule.hit();
                failure(&answer)
            }
            Action::Reply(body) => {
                rule.hit();
                let reply = Response::builder().header(CONTENT_TYPE, "application/json");
                Ok(reply.body(stream::full(body.to_string()))?)
            }
            Action::AddQuery(query) => {
                rule.hit();
                let mut request = request;
                *request.uri_mut() = with_query(request.uri(), &query)?;
                Ok(self.pass_on(request).await?.map(stream::untouched))
            }
            Action::SetQuery(key, value) => {
                rule.hit();
                let mut request = request;
                *request.uri_mut() = with_parameter(request.uri(), key, &value)?;
                Ok(self.pass_on(request).await?.map(stream::untouched))
            }
            Action::Silence(effect) => {
                // First of all, because its author may time out at any moment.
                rule.hit();
                if effect == Effect::With {
                    self.pass_on(request).await?.into_body().collect().await?;
                }
                std::future::pending().await
            }
            Action::StallWatch => {
                let answer = self.pass_on(request).await?;
                rule.hit();
                Ok(answer.map(stream::stalled))
            }
            Action::Delay(time) => {
                rule.hit();
                tokio::time::sleep(time).await;
                Ok(self.pass_on(request).await?.map(stream::untouched))
            }
            Action::DelayBetween(least, most) => {
                rule.hit();
                let span = most.saturating_sub(least).as_millis();
                let more = fastrand::u64(0..=u64::try_from(span).unwrap_or(u64::MAX));
                tokio::time::sleep(least + Duration::from_millis(more)).await;
                Ok(self.pass_on(request).await?.map(stream::untouched))
            }
            Action::CloseAfter => {
                let mut answer = self.pass_on(request).await?;
                rule.hit();
                let close = HeaderValue::from_static("close");
                answer.headers_mut().insert(CONNECTION, close);
                Ok(answer.map(stream::untouched))
            }
            Action::Hold(gate) => {
                rule.hit();
                gate.passed().await;
                Ok(self.pass_on(request).await?.map(stream::untouched))
            }
            Action::Announce(listener) => self.announced(request, call, &rule, &listener).await,
            Action::AnnounceInTurn(listener, turn) => {
                let _turn = turn.wait().await;
                self.announced(request, call, &rule, &listener).await
            }
            Action::CloseWatchAfter(_)
            | Action::DropEvent(_)
            | Action::DropEvery(_)
            | Action::DropWhere(_)
            | Action::DuplicateEvent(_)
            | Action::InjectEvent(..)
            | Action::DelayEvents(_)
            | Action::RepeatEvents(_)
            | Action::AlterEvents(_)
            | Action::HoldEvents(_) => {
                let answer = self.pass_on(request).await?;
                let kind = answer
                    .headers()
                    .get(CONTENT_TYPE)
                    .and_then(|kind| kind.to_str().ok());
                let framing = Framing::of(kind.unwrap_or_default());
                Ok(answer.map(|body| stream::events(body, framing, rule)))
            }
        }
    }

    /// The API server's response, altered.
    async fn garbled(
        &self,
        request: Request<Full<Bytes>>,
        rule: &Rule,
    ) -> Result<Response<Body>, Broken> {
        // Its author may time out before the first byte.
        let slow = matches!(rule.action, Action::Trickle(_));
        if slow {
            rule.hit();
        }
        let (mut head, bytes) = self.whole(request).await?;
        let (length, body) = match &rule.action {
            Action::CutAnswer => (bytes.len(), stream::cut(&bytes)),
            Action::WrongLength => (bytes.len() + 10, stream::short(bytes)),
            Action::Trickle(pause) => (bytes.len(), stream::trickle(bytes, *pause)),
            Action::AlterAnswer(change) => match change.of(&bytes) {
                Some(changed) => (changed.len(), stream::full(changed)),
                None => return Ok(Response::from_parts(head, stream::full(bytes))),
            },
            _ => return Ok(Response::from_parts(head, stream::full(bytes))),
        };
        if !slow {
            rule.hit();
        }
        head.headers.insert(CONTENT_LENGTH, length.into());
        Ok(Response::from_parts(head, body))
    }

    async fn announced(
        &self,
        request: Request<Full<Bytes>>,
        call: Call,
        rule: &Rule,
        listener: &mpsc::UnboundedSender<Applied>,
    ) -> Result<Response<Body>, Broken> {
        let (head, bytes) = self.whole(request).await?;
        rule.hit();
        let (applied, released) = Applied::new(call, head.status.as_u16());
        // Without a listener there is nothing to wait for.
        if listener.send(applied).is_ok() {
            released.await?;
        }
        Ok(Response::from_parts(head, stream::full(bytes)))
    }

    /// The API server's response with its whole body.
    async fn whole(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<(http::response::Parts, Bytes), Broken> {
        let (head, body) = self.pass_on(request).await?.into_parts();
        Ok((head, body.collect().await?.to_bytes()))
    }
}

fn failure(answer: &Answer) -> Result<Response<Body>, Broken> {
    let mut response = Response::builder()
        .status(answer.code)
        .header(CONTENT_TYPE, "application/json");
    if let Some(time) = &answer.retry_after {
        response = response.header(RETRY_AFTER, time);
    }
    Ok(response.body(stream::full(answer.body().to_string()))?)
}

pub(super) fn with_query(asked: &Uri, more: &str) -> Result<Uri, Broken> {
    let separator = if asked.query().is_some() { '&' } else { '?' };
    Ok(format!("{asked}{separator}{more}").parse()?)
}

pub(super) fn with_parameter(asked: &Uri, key: &str, value: &str) -> Result<Uri, Broken> {
    let others = asked.query().unwrap_or_default().split('&');
    let others = others.filter(|part| !part.is_empty() && part.split('=').next() != Some(key));
    let mut query: Vec<&str> = others.collect();
    let mine = format!("{key}={value}");
    query.push(&mine);
    Ok(format!("{}?{}", asked.path(), query.join("&")).parse()?)
}
