//! The bodies of responses, forwarded frame by frame, and broken if a rule says so.

use std::collections::VecDeque;
use std::pin::Pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::stream::{self, Stream, StreamExt as _};
use http_body_util::{BodyExt, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::time::{Instant, sleep, sleep_until};

use super::rule::{Action, Rule};

/// The error that makes hyper drop a connection in the middle of a response.
pub(crate) type Broken = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type Body = BoxBody<Bytes, Broken>;

/// A body with this content.
pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    http_body_util::Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed()
}

/// The API server's body, each frame forwarded immediately.
pub(crate) fn untouched(body: Incoming) -> Body {
    body.map_err(Broken::from).boxed()
}

/// The first half of a body, followed by the end of the connection.
pub(crate) fn cut(bytes: &Bytes) -> Body {
    let half = bytes.slice(..bytes.len() / 2);
    let frames = [Ok(Frame::data(half)), Err(Broken::from("cut"))];
    BodyExt::boxed(StreamBody::new(stream::iter(frames)))
}

/// A body of unknown length.
pub(crate) fn short(bytes: Bytes) -> Body {
    let frames = [Ok(Frame::data(bytes))];
    BodyExt::boxed(StreamBody::new(stream::iter(frames)))
}

/// A body one byte at a time.
pub(crate) fn trickle(bytes: Bytes, pause: Duration) -> Body {
    let frames = stream::unfold(bytes, move |mut left| async move {
        if left.is_empty() {
            return None;
        }
        sleep(pause).await;
        let next = left.split_to(1);
        Some((Ok(Frame::data(next)), left))
    });
    BodyExt::boxed(StreamBody::new(Box::pin(frames)))
}

/// A body that never arrives. The API server's is kept open, but not read.
pub(crate) fn stalled(body: Incoming) -> Body {
    let nothing = stream::once(async move {
        let _open = body;
        std::future::pending().await
    });
    BodyExt::boxed(StreamBody::new(Box::pin(nothing)))
}

type Lines = Pin<Box<dyn Stream<Item = Result<Bytes, Broken>> + Send + Sync>>;

/// The framing of events in a watch.
#[derive(Clone, Copy)]
pub(crate) enum Framing {
    /// JSON: one event per line.
    Lines,
    /// Protobuf: a 4-byte big-endian length before each event.
    Lengths,
}

impl Framing {
    /// Chooses the framing from the response's content type.
    pub(crate) fn of(content_type: &str) -> Self {
        if content_type.contains("protobuf") {
            Self::Lengths
        } else {
            Self::Lines
        }
    }

    /// The end of the first complete event in the data.
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

/// Data from the API server, with its arrival time.
type Arrival = (Instant, Result<Bytes, Broken>);

/// The events of a watch with a rule applied to them.
pub(crate) fn events(body: Incoming, framing: Framing, rule: Rule) -> Body {
    struct Playing {
        arrivals: UnboundedReceiver<Arrival>,
        ready: VecDeque<Bytes>,
        number: usize,
        ended: bool,
        rule: Rule,
    }
    // Reads ahead, so that an event's delay counts from its arrival.
    let (sender, arrivals) = mpsc::unbounded_channel();
    tokio::spawn(read(body, framing, sender));
    let playing = Playing {
        arrivals,
        ready: VecDeque::new(),
        number: 0,
        ended: false,
        rule,
    };
    let lines: Lines = Box::pin(stream::unfold(playing, |mut at| async move {
        loop {
            if let Some(line) = at.ready.pop_front() {
                return Some((Ok(line), at));
            }
            if at.ended {
                return None;
            }
            match at.arrivals.recv().await? {
                (_, Err(error)) => return Some((Err(error), at)),
                (when, Ok(line)) => {
                    at.number += 1;
                    at.ready = applied(&at.rule, at.number, when, line).await.into();
                    at.ended =
                        matches!(at.rule.action, Action::CloseWatchAfter(n) if n <= at.number);
                }
            }
        }
    }));
    BodyExt::boxed(StreamBody::new(lines.map(|line| line.map(Frame::data))))
}

/// Reads event by event until either side ends.
async fn read(mut body: Incoming, framing: Framing, sender: UnboundedSender<Arrival>) {
    let mut rest = BytesMut::new();
    loop {
        while let Some(end) = framing.first(&rest) {
            let event = rest.split_to(end).freeze();
            if sender.send((Instant::now(), Ok(event))).is_err() {
                return;
            }
        }
        let frame = tokio::select! {
            frame = body.frame() => frame,
            // The operator is gone; this return closes the API server's watch.
            () = sender.closed() => return,
        };
        match frame {
            None => return,
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    rest.extend_from_slice(&data);
                }
            }
            Some(Err(error)) => {
                // The receiver is gone if this fails.
                let _ = sender.send((Instant::now(), Err(Broken::from(error))));
                return;
            }
        }
    }
}

/// What becomes of one event, given its arrival time.
async fn applied(rule: &Rule, number: usize, when: Instant, line: Bytes) -> Vec<Bytes> {
    match &rule.action {
        Action::CloseWatchAfter(last) if number >= *last => {
            rule.hit();
            vec![line]
        }
        Action::DropEvent(n) if number == *n => {
            rule.hit();
            vec![]
        }
        Action::DropEvery(n) if number.is_multiple_of(*n) => {
            rule.hit();
            vec![]
        }
        Action::DropWhere(filter) if filter.takes(&line) => {
            rule.hit();
            vec![]
        }
        Action::DuplicateEvent(n) if number == *n => {
            rule.hit();
            vec![line.clone(), line]
        }
        Action::InjectEvent(n, event) if number == *n => {
            rule.hit();
            vec![event.clone(), line]
        }
        Action::DelayEvents(time) => {
            rule.hit();
            sleep_until(when + *time).await;
            vec![line]
        }
        Action::HoldEvents(gate) => {
            rule.hit();
            gate.passed().await;
            vec![line]
        }
        Action::RepeatEvents(times) => {
            rule.hit();
            vec![line; *times]
        }
        Action::AlterEvents(change) => match change.of(&line) {
            Some(changed) => {
                rule.hit();
                vec![changed]
            }
            None => vec![line],
        },
        // Another event, or a rule that acted before the stream began.
        _ => vec![line],
    }
}
