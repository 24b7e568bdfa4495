//! The bodies of answers, passed on frame by frame, and broken where a rule says so.

use std::pin::Pin;

use bytes::{Bytes, BytesMut};
use futures::stream::{self, Stream, StreamExt as _};
use http_body_util::{BodyExt, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use tokio::time::sleep;

use super::rule::{Action, Rule};

/// The error that makes hyper drop a connection in the middle of an answer.
pub(crate) type Broken = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type Body = BoxBody<Bytes, Broken>;

/// A body that is at hand.
pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    http_body_util::Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed()
}

/// The API server's body as it comes: every frame is passed on at once.
pub(crate) fn untouched(body: Incoming) -> Body {
    body.map_err(Broken::from).boxed()
}

/// The first half of a body, and then the end of the connection.
pub(crate) fn cut(bytes: &Bytes) -> Body {
    let half = bytes.slice(..bytes.len() / 2);
    let frames = [Ok(Frame::data(half)), Err(Broken::from("cut"))];
    BodyExt::boxed(StreamBody::new(stream::iter(frames)))
}

type Lines = Pin<Box<dyn Stream<Item = Result<Bytes, Broken>> + Send + Sync>>;

/// How events follow each other in a watch.
#[derive(Clone, Copy)]
pub(crate) enum Framing {
    /// JSON: one event per line.
    Lines,
    /// Protobuf: four bytes of length, the most significant first, before each event.
    Lengths,
}

impl Framing {
    /// Tells by the answer's content type.
    pub(crate) fn of(content_type: &str) -> Self {
        if content_type.contains("protobuf") {
            Self::Lengths
        } else {
            Self::Lines
        }
    }

    /// Where the first event of what has come so far ends.
    fn first(self, data: &[u8]) -> Option<usize> {
        match self {
            Self::Lines => data.iter().position(|byte| *byte == b'\n').map(|at| at + 1),
            Self::Lengths => {
                let length = data
                    .first_chunk::<4>()
                    .map(|bytes| u32::from_be_bytes(*bytes))?;
                let end = 4 + usize::try_from(length).ok()?;
                (data.len() >= end).then_some(end)
            }
        }
    }
}

/// The events of a watch with a rule applied to them.
pub(crate) fn events(body: Incoming, framing: Framing, rule: Rule) -> Body {
    struct Reading {
        body: Incoming,
        rest: BytesMut,
        ready: Vec<Bytes>,
        number: usize,
        ended: bool,
        framing: Framing,
        rule: Rule,
    }
    let reading = Reading {
        body,
        rest: BytesMut::new(),
        ready: Vec::new(),
        number: 0,
        ended: false,
        framing,
        rule,
    };
    let lines: Lines = Box::pin(stream::unfold(reading, |mut at| async move {
        loop {
            if !at.ready.is_empty() {
                let line = at.ready.remove(0);
                return Some((Ok(line), at));
            }
            if at.ended {
                return None;
            }
            if let Some(end) = at.framing.first(&at.rest) {
                let line = at.rest.split_to(end).freeze();
                at.number += 1;
                at.ready = applied(&at.rule, at.number, line).await;
                at.ended = matches!(at.rule.action, Action::CloseWatchAfter(n) if n <= at.number);
                continue;
            }
            match at.body.frame().await? {
                Ok(frame) => {
                    if let Ok(data) = frame.into_data() {
                        at.rest.extend_from_slice(&data);
                    }
                }
                Err(error) => return Some((Err(Broken::from(error)), at)),
            }
        }
    }));
    BodyExt::boxed(StreamBody::new(lines.map(|line| line.map(Frame::data))))
}

/// What becomes of an event.
async fn applied(rule: &Rule, number: usize, line: Bytes) -> Vec<Bytes> {
    let lines = match &rule.action {
        Action::CloseWatchAfter(last) if number >= *last => vec![line],
        Action::DropEvent(n) if number == *n => vec![],
        Action::DuplicateEvent(n) if number == *n => vec![line.clone(), line],
        Action::DelayEvents(time) => {
            sleep(*time).await;
            vec![line]
        }
        Action::HoldEvents(gate) => {
            gate.passed().await;
            vec![line]
        }
        // Not this event, or a rule that did its work before the stream began.
        _ => return vec![line],
    };
    rule.hit();
    lines
}
