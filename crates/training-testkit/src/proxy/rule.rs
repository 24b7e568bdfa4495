//! How the proxy breaks requests.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::{Mutex, OwnedMutexGuard, mpsc, oneshot, watch};

use super::class::Call;

/// Whether a request that gets a wrong response still takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The API server executes it; only the response differs.
    With,
    /// It doesn't reach the API server.
    Without,
}

/// A response that replaces the API server's.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The HTTP status.
    pub code: u16,
    /// The machine-readable cause, such as `AlreadyExists`.
    pub reason: String,
    /// The human-readable cause.
    pub message: String,
    /// The value of `Retry-After`, valid or not.
    pub retry_after: Option<String>,
}

impl Answer {
    /// A response in the API server's format.
    pub fn new(code: u16, reason: &str, message: &str) -> Self {
        Self {
            code,
            reason: reason.into(),
            message: message.into(),
            retry_after: None,
        }
    }

    /// The `Status` object of the body.
    pub fn body(&self) -> Value {
        let mut body = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "code": self.code, "reason": self.reason, "message": self.message,
        });
        // A validation error also names the field in its details.
        let invalid = self.message.split_once(" is invalid: ");
        if let Some((field, why)) = invalid.and_then(|(_, said)| said.split_once(": ")) {
            let cause = json!({ "reason": "FieldValueInvalid", "field": field, "message": why });
            body["details"] = json!({ "causes": [cause] });
        }
        body
    }
}

/// What happens to a request to which a rule applies.
#[derive(Clone, Debug)]
pub enum Action {
    /// Resets the connection; the request doesn't reach the API server.
    ResetBefore,
    /// Lets the API server execute the request, then resets the connection.
    ResetAfter,
    /// Sends another response.
    Answer(Effect, Answer),
    /// Sends another response with code 200, for example an empty list.
    Reply(Value),
    /// Changes the request: adds this to the query, as in `resourceVersion=7&resourceVersionMatch=Exact`.
    AddQuery(String),
    /// Changes a parameter of the query, for example to a smaller page size.
    SetQuery(&'static str, String),
    /// Cuts the API server's response in the middle of its body.
    CutAnswer,
    /// Sends the API server's response with a content length that is too large.
    WrongLength,
    /// Sends the API server's response with another body.
    AlterAnswer(Change),
    /// Sends the API server's response one byte at a time, with this pause in between.
    Trickle(Duration),
    /// Accepts the request and never responds.
    Silence(Effect),
    /// Delays the request.
    Delay(Duration),
    /// Delays the request by a random time in this range.
    DelayBetween(Duration, Duration),
    /// Closes the connection after the API server's response.
    CloseAfter,
    /// Holds the request until the gate opens.
    Hold(Gate),
    /// Lets the API server execute the request, notifies the test, and holds the response until the test releases it.
    Announce(mpsc::UnboundedSender<Applied>),
    /// Like [`Action::Announce`], but one request after the other: the next one is forwarded only after the test has released the
    /// previous one. This lets a test stop the operator between two concurrent writes.
    AnnounceInTurn(mpsc::UnboundedSender<Applied>, SerialLock),
    /// Ends the stream properly after this many events.
    CloseWatchAfter(usize),
    /// Drops the event with this number, counted from one.
    DropEvent(usize),
    /// Duplicates the event with this number, counted from one.
    DuplicateEvent(usize),
    /// Drops every n-th event.
    DropEvery(usize),
    /// Drops every event that the filter matches.
    DropWhere(Filter),
    /// Inserts these bytes before the event with this number, counted from one: an event of the test's own, with its newline, or
    /// invalid bytes.
    InjectEvent(usize, Bytes),
    /// Delays every event by this much after its arrival.
    DelayEvents(Duration),
    /// Holds events until the gate opens.
    HoldEvents(Gate),
    /// Sends every event this many times.
    RepeatEvents(usize),
    /// Sends events as altered by this change.
    AlterEvents(Change),
    /// Answers the watch and then sends nothing, not even its end.
    StallWatch,
}

/// A lock that forwards one request at a time.
#[derive(Clone, Debug, Default)]
pub struct SerialLock(Arc<Mutex<()>>);

impl SerialLock {
    pub(crate) async fn wait(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.0).lock_owned().await
    }
}

/// A barrier that a test opens once and for all.
#[derive(Clone, Debug)]
pub struct Gate(watch::Sender<bool>);

impl Gate {
    /// Creates a closed gate.
    pub fn closed() -> Self {
        Self(watch::Sender::new(false))
    }

    /// Lets everything through.
    pub fn open(&self) {
        self.0.send_replace(true);
    }

    pub(crate) async fn passed(&self) {
        // The gate itself holds a sender, so the wait ends only when it opens.
        let _ = self.0.subscribe().wait_for(|open| *open).await;
    }
}

/// A write that the API server has executed while its author still waits for the response.
#[derive(Debug)]
pub struct Applied {
    /// The write.
    pub call: Call,
    /// The API server's status code.
    pub code: u16,
    answer: oneshot::Sender<()>,
}

impl Applied {
    pub(crate) fn new(call: Call, code: u16) -> (Self, oneshot::Receiver<()>) {
        let (answer, wait) = oneshot::channel();
        (Self { call, code, answer }, wait)
    }

    /// Sends the response. Dropping this instead resets the connection, and the response is lost.
    pub fn release(self) {
        // The author may have died meanwhile, which these tests intend.
        let _ = self.answer.send(());
    }
}

/// Selects events by their bytes; each event of a JSON watch is one line.
#[derive(Clone)]
pub struct Filter(Arc<Takes>);

type Takes = dyn Fn(&[u8]) -> bool + Send + Sync;

impl Filter {
    /// Selects the events for which the function returns true.
    pub fn new(takes: impl Fn(&[u8]) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(takes))
    }

    pub(crate) fn takes(&self, event: &[u8]) -> bool {
        (self.0)(event)
    }
}

impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Filter")
    }
}

/// Changes the bytes of a body or an event, or leaves them unchanged.
#[derive(Clone)]
pub struct Change(Arc<Changes>);

type Changes = dyn Fn(&[u8]) -> Option<Vec<u8>> + Send + Sync;

impl Change {
    /// Replaces the bytes with what the function returns, if anything.
    pub fn new(changes: impl Fn(&[u8]) -> Option<Vec<u8>> + Send + Sync + 'static) -> Self {
        Self(Arc::new(changes))
    }

    /// Replaces every occurrence of a text.
    pub fn text(from: &str, to: &str) -> Self {
        let (from, to) = (from.to_owned(), to.to_owned());
        Self::new(move |bytes| {
            let text = std::str::from_utf8(bytes).ok()?;
            text.contains(&from)
                .then(|| text.replace(&from, &to).into_bytes())
        })
    }

    pub(crate) fn of(&self, bytes: &[u8]) -> Option<Bytes> {
        (self.0)(bytes).map(Bytes::from)
    }
}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Change")
    }
}

type Matches = dyn Fn(&Call) -> bool + Send + Sync;

/// Which requests to break, and how.
#[derive(Clone)]
pub struct Rule {
    name: String,
    matches: Arc<Matches>,
    /// Which of the matching requests, counted from one.
    which: Range<usize>,
    pub(crate) action: Action,
    seen: Arc<AtomicUsize>,
    hits: Arc<AtomicUsize>,
}

impl Rule {
    /// Breaks every request that matches.
    pub fn new(
        name: &str,
        action: Action,
        matches: impl Fn(&Call) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.to_owned(),
            matches: Arc::new(matches),
            which: 1..usize::MAX,
            action,
            seen: Arc::default(),
            hits: Arc::default(),
        }
    }

    /// Breaks only every n-th request that matches.
    #[must_use]
    pub fn every(mut self, n: usize) -> Self {
        let (matches, seen) = (Arc::clone(&self.matches), AtomicUsize::new(0));
        self.matches = Arc::new(move |call| {
            matches(call) && (seen.fetch_add(1, Ordering::SeqCst) + 1).is_multiple_of(n)
        });
        self
    }

    /// Breaks only the n-th request that matches, counted from one.
    #[must_use]
    pub fn nth(self, n: usize) -> Self {
        self.only(n..n.saturating_add(1))
    }

    /// Breaks only the first `n` requests that match.
    #[must_use]
    pub fn first(self, n: usize) -> Self {
        self.only(1..n.saturating_add(1))
    }

    /// Breaks only these of the requests that match, counted from one.
    #[must_use]
    pub fn only(mut self, which: Range<usize>) -> Self {
        self.which = which;
        self
    }

    /// How often it was applied. A test whose rule never hit tests nothing, so assert this.
    pub fn hits(&self) -> usize {
        self.hits.load(Ordering::SeqCst)
    }

    /// The rule's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns true if it applies to a request; counts matches.
    pub(crate) fn applies(&self, call: &Call) -> bool {
        if !(self.matches)(call) {
            return false;
        }
        let number = self.seen.fetch_add(1, Ordering::SeqCst) + 1;
        self.which.contains(&number)
    }

    /// Counts a hit, at the moment when the rule changes the traffic.
    pub(crate) fn hit(&self) {
        self.hits.fetch_add(1, Ordering::SeqCst);
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule")
            .field("name", &self.name)
            .field("action", &self.action)
            .field("hits", &self.hits())
            .finish_non_exhaustive()
    }
}
