//! What the proxy does to the requests that it is told to break.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::{Mutex, OwnedMutexGuard, mpsc, oneshot, watch};

use super::class::Call;

/// Whether a request that is answered wrongly takes effect all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It reaches the API server; only the answer is another.
    With,
    /// It ends in the proxy.
    Without,
}

/// An answer in place of the API server's.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The HTTP status.
    pub code: u16,
    /// The machine-readable cause, such as `AlreadyExists`.
    pub reason: String,
    /// The human-readable cause.
    pub message: String,
    /// The value of `Retry-After`, whatever it is.
    pub retry_after: Option<String>,
}

impl Answer {
    /// An answer as API servers give it.
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
        // A validation names the field also where programs look for it.
        let invalid = self.message.split_once(" is invalid: ");
        if let Some((field, why)) = invalid.and_then(|(_, said)| said.split_once(": ")) {
            let cause = json!({ "reason": "FieldValueInvalid", "field": field, "message": why });
            body["details"] = json!({ "causes": [cause] });
        }
        body
    }
}

/// What happens to a request that a rule applies to.
#[derive(Clone, Debug)]
pub enum Action {
    /// The connection is reset; the API server never hears of the request.
    ResetBefore,
    /// The API server does what it is asked, and the connection is reset in place of the answer.
    ResetAfter,
    /// Another answer.
    Answer(Effect, Answer),
    /// Another answer with code 200: an empty list, say.
    Reply(Value),
    /// Something else is asked: this is added to the query, as in
    /// `resourceVersion=7&resourceVersionMatch=Exact`.
    AddQuery(String),
    /// The query asks for another value of this parameter: smaller pages, say.
    SetQuery(&'static str, String),
    /// The API server's own answer, cut in the middle of its body.
    CutAnswer,
    /// The API server's own answer under a length that is greater than it has bytes.
    WrongLength,
    /// The API server's own answer with another body.
    AlterAnswer(Change),
    /// The API server's own answer, one byte at a time with this pause between two.
    Trickle(Duration),
    /// The request is taken, and never answered.
    Silence(Effect),
    /// The request waits before it is passed on.
    Delay(Duration),
    /// The request waits before it is passed on, each time so long by chance.
    DelayBetween(Duration, Duration),
    /// The API server's own answer, after which the connection is closed.
    CloseAfter,
    /// The request waits before it is passed on until the gate is opened.
    Hold(Gate),
    /// The API server does what it is asked; the test is told, and the answer waits for it.
    Announce(mpsc::UnboundedSender<Applied>),
    /// The same, one request after the other: the next one is not passed on before the test has
    /// dealt with the one before. So a test can stop the operator between two writes that it makes
    /// at once.
    AnnounceInTurn(mpsc::UnboundedSender<Applied>, Turn),
    /// The stream ends properly after this many events.
    CloseWatchAfter(usize),
    /// The event with this number is left out, counted from one.
    DropEvent(usize),
    /// The event with this number comes twice, counted from one.
    DuplicateEvent(usize),
    /// Every n-th event is left out.
    DropEvery(usize),
    /// Every event that the filter takes is left out.
    DropWhere(Filter),
    /// These bytes come before the event with this number, counted from one: an event of the test's
    /// own, with its newline, or something that is none.
    InjectEvent(usize, Bytes),
    /// Every event comes this much later than it came from the API server.
    DelayEvents(Duration),
    /// Events wait until the gate is opened.
    HoldEvents(Gate),
    /// Every event comes this many times.
    RepeatEvents(usize),
    /// Every event that is changed by this comes as changed.
    AlterEvents(Change),
    /// The watch is answered, and then nothing comes, not even its end.
    StallWatch,
}

/// Whose turn it is to be passed on.
#[derive(Clone, Debug, Default)]
pub struct Turn(Arc<Mutex<()>>);

impl Turn {
    pub(crate) async fn wait(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.0).lock_owned().await
    }
}

/// A barrier that a test opens, once and for good.
#[derive(Clone, Debug)]
pub struct Gate(watch::Sender<bool>);

impl Gate {
    /// A closed one.
    pub fn closed() -> Self {
        Self(watch::Sender::new(false))
    }

    /// Lets everything through.
    pub fn open(&self) {
        self.0.send_replace(true);
    }

    pub(crate) async fn passed(&self) {
        // We hold a sender ourselves, so that this ends only by opening.
        let _ = self.0.subscribe().wait_for(|open| *open).await;
    }
}

/// A write that the API server has executed while its author still waits for the answer.
#[derive(Debug)]
pub struct Applied {
    /// The write.
    pub call: Call,
    /// What the API server answered.
    pub code: u16,
    answer: oneshot::Sender<()>,
}

impl Applied {
    pub(crate) fn new(call: Call, code: u16) -> (Self, oneshot::Receiver<()>) {
        let (answer, wait) = oneshot::channel();
        (Self { call, code, answer }, wait)
    }

    /// Gives the answer. Dropping this instead resets the connection, and the answer is lost.
    pub fn release(self) {
        // The author may have died meanwhile, which is what these are for.
        let _ = self.answer.send(());
    }
}

/// Chooses events by their bytes; those of a JSON watch are one line of text.
#[derive(Clone)]
pub struct Filter(Arc<Takes>);

type Takes = dyn Fn(&[u8]) -> bool + Send + Sync;

impl Filter {
    /// Takes the events for which the function is true.
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

/// Changes the bytes of a body or an event, or leaves them as they are.
#[derive(Clone)]
pub struct Change(Arc<Changes>);

type Changes = dyn Fn(&[u8]) -> Option<Vec<u8>> + Send + Sync;

impl Change {
    /// Puts what the function returns in place of what it is given.
    pub fn new(changes: impl Fn(&[u8]) -> Option<Vec<u8>> + Send + Sync + 'static) -> Self {
        Self(Arc::new(changes))
    }

    /// Puts text in place of text, wherever it stands.
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

/// Which requests are broken, and how.
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

    /// How often it was applied. A test whose rule never hit has tested nothing: assert it.
    pub fn hits(&self) -> usize {
        self.hits.load(Ordering::SeqCst)
    }

    /// The name that it was made with.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it applies to a request; counts.
    pub(crate) fn applies(&self, call: &Call) -> bool {
        if !(self.matches)(call) {
            return false;
        }
        let number = self.seen.fetch_add(1, Ordering::SeqCst) + 1;
        self.which.contains(&number)
    }

    /// Counts a hit: called at the moment at which the rule does something to the traffic.
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
