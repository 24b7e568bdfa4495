//! The background task that writes events.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use k8s_openapi::api::core::v1::{Event, EventSource};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::ObjectMeta;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use training_core::notes::{Note, Severity};

use super::hold::{Holds, is_filling};
use super::message::{EventConfig, Message, Posted, Regarding};
use super::text::{self, Importance};
use super::writer::EventWriter;
use crate::cli::EventMode;
use crate::fault::{Fault, within};
use crate::leader::Leadership;
use crate::metrics::{EventOutcome, Metrics};

/// Notes of one job written as they come within a minute, those on its end included; the tenth write is the sum of the rest.
const PER_MINUTE: usize = 9;

/// The share of notes that concern neither the end nor a suspension or restart. An end has at most three: that the job ended, which
/// limit it hit, and what still runs. Without reserved slots the sum would swallow them exactly when much went wrong before.
const PROGRESS_LIMIT: usize = 6;

/// The share with one more: a suspension or restart, or the first Warning, at the cost of the end. Suspending a gang, or creating many
/// objects, alone takes six.
const STATE_CHANGE_LIMIT: usize = 7;

/// The window of the rate limit.
const WINDOW: Duration = Duration::from_mins(1);

/// How long repeats increment the count of an existing event. API servers keep events for an hour after their last change by
/// default; a little less, so that the event still exists.
const REMEMBERED: Duration = Duration::from_mins(55);

/// Events that a worker remembers for their repeats; 32 bytes each.
const MAX_REMEMBERED: usize = 256;

/// How long a request may keep those of the other workers waiting.
const MAX_TURN: Duration = Duration::from_secs(1);

/// How long an event waits while jobs are reconciled.
const MAX_HOLD: Duration = Duration::from_secs(2);

/// The pause before the only retry.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// An event of ours that should still exist.
struct StoredEvent {
    suffix: u64,
    count: i32,
    at: Instant,
}

/// The events of one job in the last minute.
#[derive(Default)]
struct Recent {
    writes: VecDeque<Instant>,
    /// The last Warning among them.
    warned: Option<Instant>,
    folded: Option<Folded>,
}

/// Notes that wait for their sum.
struct Folded {
    regarding: Arc<Regarding>,
    count: u64,
    /// The note to quote: a sum must not hide an end or a failure behind regular progress.
    first: Note,
    due: Instant,
}

/// Ranks notes for a sum, which quotes the highest and, among equals, the latest.
fn rank(note: &Note) -> (bool, Severity) {
    (
        text::importance(&note.reason) == Importance::End,
        note.severity,
    )
}

pub(super) struct Worker<W> {
    config: EventConfig,
    writer: W,
    leadership: Leadership,
    metrics: Arc<Metrics>,
    /// One permit for all workers: a burst of jobs needs the API server for their pods first.
    turns: Arc<Semaphore>,
    /// Keyed by the hash of object, reason and message, since the texts would take too much memory.
    made: HashMap<u64, StoredEvent>,
    /// Keyed by uid.
    recent: HashMap<String, Recent>,
    /// When to forget idle jobs next.
    tidy: Instant,
    suffix: u64,
    troubled: bool,
}

impl<W: EventWriter> Worker<W> {
    /// Creates worker number `at` of the process.
    pub(super) fn new(
        at: u64,
        config: EventConfig,
        writer: W,
        leadership: Leadership,
        metrics: Arc<Metrics>,
        turns: Arc<Semaphore>,
    ) -> Self {
        // Names differ between processes by their start time, and within one by worker and sequence number.
        let start = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            config,
            writer,
            leadership,
            metrics,
            turns,
            made: HashMap::new(),
            recent: HashMap::new(),
            tidy: Instant::now() + WINDOW,
            // The nanoseconds since 1970 leave three bits free until 2043.
            suffix: u64::try_from(start.as_nanos()).unwrap_or_default() ^ at.rotate_right(3),
            troubled: false,
        }
    }

    pub(super) async fn run(
        mut self,
        mut messages: mpsc::Receiver<Message>,
        mut holds: watch::Receiver<Holds>,
    ) {
        loop {
            let due = self.next_due();
            let timer = async {
                match due {
                    Some(due) => sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                message = messages.recv() => match message {
                    Some(Message::Note(posted)) => {
                        let ready = |holds: &Holds| {
                            !holds.holds() || is_filling(messages.len(), messages.max_capacity())
                        };
                        // The sender is gone at the end of the process.
                        let _ = timeout_at(posted.at + MAX_HOLD, holds.wait_for(ready)).await;
                        self.note(posted).await;
                    }
                    Some(Message::Flush(done)) => {
                        self.sum_up(None).await;
                        // The caller may have given up waiting.
                        let _ = done.send(());
                    }
                    None => return self.sum_up(None).await,
                },
                () = timer => {
                    let now = Instant::now();
                    self.sum_up(Some(now)).await;
                    self.forget_idle(now);
                }
            }
        }
    }

    fn next_due(&self) -> Option<Instant> {
        let sums = self
            .recent
            .values()
            .filter_map(|recent| Some(recent.folded.as_ref()?.due))
            .min();
        // Without jobs there is no reason to wake up.
        let tidy = (!self.recent.is_empty()).then_some(self.tidy);
        sums.into_iter().chain(tidy).min()
    }

    async fn note(&mut self, posted: Posted) {
        let Posted {
            regarding,
            note,
            at: _,
            time,
        } = posted;
        let now = Instant::now();
        if self.config.mode == EventMode::Folded {
            let recent = self.recent.entry(regarding.uid.clone()).or_default();
            recent.forget_before(now);
            let warns = note.severity == Severity::Warning;
            let (places, follows) = match text::importance(&note.reason) {
                Importance::Progress if warns && recent.warned.is_none() => {
                    (STATE_CHANGE_LIMIT, false)
                }
                Importance::Progress => (PROGRESS_LIMIT, true),
                Importance::StateChange => (STATE_CHANGE_LIMIT, false),
                Importance::End => (PER_MINUTE, false),
            };
            let full = recent.writes.len() >= places;
            let waits = full || follows;
            if let Some(folded) = recent.folded.as_mut().filter(|_| waits) {
                folded.count += 1;
                if rank(&note) >= rank(&folded.first) {
                    folded.first = note;
                }
                self.metrics.events(EventOutcome::Folded, 1);
                return;
            }
            if full {
                recent.folded = Some(Folded {
                    regarding,
                    count: 1,
                    first: note,
                    // By then all earlier writes are more than a minute old.
                    due: now + WINDOW,
                });
                self.metrics.events(EventOutcome::Folded, 1);
                return;
            }
            recent.writes.push_back(now);
            if warns {
                recent.warned = Some(now);
            }
        }
        self.write(&regarding, &note, time).await;
    }

    /// Writes the sums that are due, or all of them if `now` is `None`.
    async fn sum_up(&mut self, now: Option<Instant>) {
        let mut due = Vec::new();
        for recent in self.recent.values_mut() {
            let ripe = |folded: &mut Folded| now.is_none_or(|now| folded.due <= now);
            if let Some(folded) = recent.folded.take_if(ripe) {
                recent.writes.push_back(Instant::now());
                due.push(folded);
            }
        }
        for folded in due {
            let Folded {
                regarding,
                count,
                mut first,
                due: _,
            } = folded;
            if count > 1 {
                first.message = format!("{count} more events, above all: {}", first.message);
            }
            self.write(&regarding, &first, Timestamp::now()).await;
        }
    }

    fn forget_idle(&mut self, now: Instant) {
        if now < self.tidy {
            return;
        }
        self.tidy = now + WINDOW;
        self.recent.retain(|_, recent| {
            recent.forget_before(now);
            recent.folded.is_some() || !recent.writes.is_empty()
        });
        self.made
            .retain(|_, made| now.saturating_duration_since(made.at) < REMEMBERED);
    }

    async fn write(&mut self, regarding: &Regarding, note: &Note, time: Timestamp) {
        let message = text::clean(&note.message);
        let reason = text::reason(&note.reason);
        let mut hasher = DefaultHasher::new();
        (&regarding.uid, &reason, &message).hash(&mut hasher);
        let key = hasher.finish();
        let now = Instant::now();
        let known = self
            .made
            .get(&key)
            .filter(|made| now - made.at < REMEMBERED);
        if let Some(&StoredEvent { suffix, count, .. }) = known {
            let count = count.saturating_add(1);
            let name = text::name(&regarding.name, suffix);
            let last = Time(time);
            let answer = self
                .insist(|writer| writer.repeat(&regarding.namespace, &name, count, &last))
                .await;
            match answer {
                Ok(()) => {
                    self.made.insert(
                        key,
                        StoredEvent {
                            suffix,
                            count,
                            at: now,
                        },
                    );
                    return self.metrics.events(EventOutcome::Repeated, 1);
                }
                // It expired or was deleted: create a new one.
                Err(Fault::Missing { .. }) => {
                    self.made.remove(&key);
                }
                Err(fault) => return self.failed(&fault),
            }
        }
        self.suffix = self.suffix.wrapping_add(1);
        let suffix = self.suffix;
        let event = self.event(regarding, note.severity, (reason, message), time, suffix);
        match self.insist(|writer| writer.create(&event)).await {
            Ok(()) => {
                self.remember(
                    key,
                    StoredEvent {
                        suffix,
                        count: 1,
                        at: now,
                    },
                );
                self.troubled = false;
                self.metrics.events(EventOutcome::Posted, 1);
            }
            Err(fault) => self.failed(&fault),
        }
    }

    fn event(
        &self,
        regarding: &Regarding,
        severity: Severity,
        (reason, message): (String, String),
        time: Timestamp,
        suffix: u64,
    ) -> Event {
        let time = Time(time);
        Event {
            metadata: ObjectMeta {
                name: Some(text::name(&regarding.name, suffix)),
                namespace: Some(regarding.namespace.clone()),
                ..ObjectMeta::default()
            },
            involved_object: regarding.reference(),
            type_: Some(severity.as_str().to_owned()),
            reason: Some(reason),
            message: Some(message),
            first_timestamp: Some(time.clone()),
            last_timestamp: Some(time),
            count: Some(1),
            source: Some(EventSource {
                component: Some(self.config.component.clone()),
                ..EventSource::default()
            }),
            reporting_component: Some(self.config.component.clone()),
            // Empty, as in the published recorders: clients compare whole events.
            reporting_instance: Some(String::new()),
            ..Event::default()
        }
    }

    /// Sends a request, and retries once if the network or the server failed.
    async fn insist<'a, F>(&'a self, request: impl Fn(&'a W) -> F) -> Result<(), Fault>
    where
        F: Future<Output = Result<(), Fault>>,
    {
        let mut pause = RETRY_DELAY;
        for last in [false, true] {
            match self.send(request(&self.writer)).await {
                Err(Fault::Throttled { after }) if !last => pause = after,
                Err(Fault::Transient(_) | Fault::Deadline { .. }) if !last => {}
                answer => return answer,
            }
            sleep(pause).await;
        }
        Err(Fault::Bug(
            "an event was neither written nor refused".to_owned(),
        ))
    }

    /// Sends a request when no other worker does. A slow one goes on, and no longer keeps the others waiting.
    async fn send(&self, request: impl Future<Output = Result<(), Fault>>) -> Result<(), Fault> {
        // The semaphore is never closed.
        let turn = self.turns.acquire().await;
        if !self.leadership.may_write() {
            return Err(Fault::NotLeading);
        }
        let mut request = pin!(within(self.config.call_deadline, request));
        if let Ok(answer) = timeout(MAX_TURN, &mut request).await {
            return answer;
        }
        drop(turn);
        request.await
    }

    fn failed(&mut self, fault: &Fault) {
        if *fault == Fault::NotLeading {
            return self.metrics.events(EventOutcome::NotLeading, 1);
        }
        self.metrics.events(EventOutcome::Failed, 1);
        // Log once per outage, so that the log does not fill up as well.
        if !std::mem::replace(&mut self.troubled, true) {
            tracing::warn!(%fault, "an event was not written");
        }
    }

    fn remember(&mut self, key: u64, made: StoredEvent) {
        if self.made.len() >= MAX_REMEMBERED
            && let Some(oldest) = self
                .made
                .iter()
                .min_by_key(|(_, made)| made.at)
                .map(|(k, _)| *k)
        {
            self.made.remove(&oldest);
        }
        self.made.insert(key, made);
    }
}

impl Recent {
    fn forget_before(&mut self, now: Instant) {
        let old = |at: &Instant| now.saturating_duration_since(*at) >= WINDOW;
        while self.writes.front().is_some_and(old) {
            self.writes.pop_front();
        }
        self.warned.take_if(|at| old(at));
    }
}
