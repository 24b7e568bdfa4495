//! A plan under construction.

use std::fmt::Write as _;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use training_api::{ConditionType, JobStatus, LastFailure};

use crate::model::conditions;
use crate::model::durable_state::{DurableState, JobState};
use crate::model::health::explain_failure;
use crate::model::names;
use crate::model::notes::Note;
use crate::model::patch::merge_patch;
use crate::model::restart::not_before;
use crate::model::step::{Deletion, Plan, StatusWrite, Step, Transition, Urgency};
use crate::model::view::PodView;

/// A plan under construction.
#[derive(Debug)]
pub struct Draft {
    /// The new durable state.
    pub state: DurableState,
    /// The current second.
    pub now: Timestamp,
    /// The steps, deletes first.
    pub steps: Vec<Step>,
    /// Events to record once the status is stored.
    pub notes: Vec<Note>,
    /// Transitions to count once the status is stored.
    pub transitions: Vec<Transition>,
    /// Requeue as soon as the plan is executed.
    pub requeue: bool,
    /// The latest time to requeue.
    pub requeue_at: Option<Timestamp>,
    /// What stalls the job: a reason and a message.
    pub stall: Option<(&'static str, String)>,
    /// This reconcile starts or resumes the job.
    pub starts: bool,
    /// The new state follows from what the steps create. It is not stored before the next reconcile, unless the job is stalled.
    pub withheld: bool,
    urgency: Urgency,
}

impl Draft {
    pub(crate) fn new(state: DurableState, now: Timestamp) -> Self {
        Self {
            state,
            now,
            steps: Vec::new(),
            notes: Vec::new(),
            transitions: Vec::new(),
            requeue: false,
            requeue_at: None,
            stall: None,
            starts: false,
            withheld: false,
            urgency: Urgency::Batched,
        }
    }

    /// Sets a condition: see [`conditions::set`].
    pub fn set(&mut self, type_: ConditionType, holds: bool, reason: &str, message: &str) {
        conditions::set(
            &mut self.state.conditions,
            type_,
            holds,
            reason,
            message,
            self.now,
        );
    }

    /// Sets the completion time to now, or to the start time if the clock was set back.
    pub fn complete(&mut self) {
        let start = self.state.started.unwrap_or(self.now);
        self.state.completed = Some(self.now.max(start));
    }

    /// Raises the urgency of the status write to at least this.
    pub fn urgency(&mut self, urgency: Urgency) {
        self.urgency = self.urgency.max(urgency);
    }

    /// Requeues no later than `seconds` after `start`.
    pub fn requeue_after(&mut self, start: Timestamp, seconds: i64) {
        // A time beyond the calendar never comes.
        if let Ok(at) = start.checked_add(SignedDuration::from_secs(seconds)) {
            self.requeue_at = Some(self.requeue_at.map_or(at, |w| w.min(at)));
        }
    }

    /// Deletes a replica's pod, unless it is already terminating.
    pub fn delete_pod(&mut self, job: &str, pod: &PodView) {
        if !pod.terminating {
            self.steps.push(Step::DeletePod {
                name: names::replica(job, &pod.role, pod.index),
                uid: pod.uid,
                how: Deletion::Graceful,
            });
        }
    }

    /// Records the last failed pod.
    pub fn remember_failure(&mut self, job: &str, namespace: &str, pod: &PodView) {
        let name = names::replica(job, &pod.role, pod.index);
        self.remember_failure_of(&name, namespace, pod);
    }

    /// Records the last failed pod, for a pod whose name is not a replica's.
    pub fn remember_failure_of(&mut self, name: &str, namespace: &str, pod: &PodView) {
        if let Some(code) = pod.exit_code.filter(|c| *c != 0) {
            let explained = pod.trouble.as_deref().and_then(|t| t.exit_code);
            let code = explained.unwrap_or(code);
            self.notes.push(Note::normal(
                "ExitedWithCode",
                format!("Pod: {namespace}.{name} exited with code {code}"),
            ));
        }
        let mut message = self.store_last_failure(name.to_owned(), pod);
        if let Some(at) = self.next_attempt(&pod.role, pod.index) {
            // Writing to a String can't fail.
            let _ = write!(message, "; next attempt at {at}");
        }
        self.notes
            .push(Note::warning("PodFailed", format!("Pod {name}: {message}")));
    }

    /// Returns when the backoff allows this replica's next pod; `None` means now.
    pub fn next_attempt(&self, role: &str, index: u32) -> Option<Timestamp> {
        let own = self.state.replicas.get(&(role.to_owned(), index));
        let due = not_before(own).max(not_before(self.state.gang_restart.as_ref()));
        due.filter(|at| *at > self.now)
    }

    /// Records how the container ended that the kubelet restarted last in this pod.
    pub fn remember_restart(&mut self, job: &str, pod: &PodView) {
        let name = names::replica(job, &pod.role, pod.index);
        self.remember_restart_of(&name, pod);
    }

    /// Records the same for a pod whose name is not a replica's.
    pub fn remember_restart_of(&mut self, name: &str, pod: &PodView) {
        let message = self.store_last_failure(name.to_owned(), pod);
        self.notes.push(Note::warning(
            "ContainerRestarted",
            format!("Pod {name}: restarted in place after {message}"),
        ));
    }

    fn store_last_failure(&mut self, name: String, pod: &PodView) -> String {
        let message = shorten(&explain_failure(pod), 1024);
        let trouble = pod.trouble.as_deref();
        let reason = trouble.map(|t| clean(&t.reason, 128));
        self.state.last_failure = Some(LastFailure {
            pod: name,
            exit_code: trouble.and_then(|t| t.exit_code).or(pod.exit_code),
            reason: reason.filter(|r| !r.is_empty()),
            message: Some(message.clone()),
            time: Some(Time(self.now)),
        });
        message
    }

    /// `generation` is the generation of the job's spec.
    pub(crate) fn into_plan(self, old: &JobStatus, generation: Option<i64>) -> Plan<JobStatus> {
        if self.withheld && !self.state.holds(ConditionType::Stalled) {
            return Plan {
                steps: self.steps,
                requeue: self.requeue,
                requeue_at: self.requeue_at,
                ..Plan::default()
            };
        }
        let mut next = old.report(&self.state);
        conditions::keep_times(&mut next.conditions, &old.conditions);
        // Clients that compare the two wait for a job that was edited, even if the edit changes nothing. A status of another operator
        // has none.
        if next != *old || old.observed_generation.is_some() {
            next.observed_generation = generation;
        }
        // Most plans change nothing. Serializing a status can't fail; if it did, writing nothing is better than writing something
        // wrong.
        let patch = (next != *old)
            .then(|| {
                let (before, after) = (serde_json::to_value(old), serde_json::to_value(&next));
                before.ok().zip(after.ok())
            })
            .flatten()
            .and_then(|(before, after)| merge_patch(&before, &after));
        let urgency = self.urgency;
        let decided = patch.is_some() && urgency == Urgency::First;
        Plan {
            status: patch.map(|patch| StatusWrite {
                next,
                patch,
                urgency,
            }),
            steps: self.steps,
            notes: self.notes,
            transitions: self.transitions,
            requeue: self.requeue || decided,
            requeue_at: self.requeue_at,
            ..Plan::default()
        }
    }
}

/// The longest rest of a word that is dropped with the text before it. Units: bytes.
const LONG_WORD: usize = 32;
/// Stands where a text is truncated.
const MARK: char = '…';

/// Like [`clean`], but a truncated text ends with an ellipsis after a whole word.
pub fn shorten(text: &str, limit: usize) -> String {
    let cut = clean(text, limit);
    if cut.len() == clean(text, usize::MAX).len() {
        return cut;
    }
    let kept = clean(&cut, limit.saturating_sub(MARK.len_utf8()));
    // A single word is cut at the limit.
    let words = kept.rsplit_once(' ').map_or(&*kept, |(words, _)| words);
    format!(
        "{}{MARK}",
        words.trim_end_matches([' ', ',', '.', ':', ';'])
    )
}

/// Returns the end of a text. A truncated text begins with an ellipsis before a whole word, unless the word that is cut is very long.
///
/// Units: `limit` in bytes.
pub fn shorten_front(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    let kept = limit.saturating_sub(MARK.len_utf8());
    let (head, tail) = text.split_at(text.ceil_char_boundary(text.len() - kept));
    let words = if head.ends_with(char::is_whitespace) {
        tail
    } else {
        let rest = tail.split_once(char::is_whitespace);
        let rest = rest.filter(|(cut, _)| cut.len() <= LONG_WORD);
        rest.map_or(tail, |(_, words)| words)
    };
    format!("{MARK}{}", words.trim_start())
}

/// Truncates a text at a character boundary and replaces control characters, so that no pod's message can harm a terminal or hide
/// its content.
///
/// Units: `limit` in bytes.
pub fn clean(text: &str, limit: usize) -> String {
    let mut out = String::with_capacity(text.len().min(limit));
    for c in text.chars() {
        let c = match c {
            // Characters that change the text direction or are invisible.
            '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}' => ' ',
            c if c.is_control() => ' ',
            c => c,
        };
        if out.len() + c.len_utf8() > limit {
            break;
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{shorten, shorten_front};

    #[test]
    fn a_text_that_is_cut_ends_with_an_ellipsis_behind_a_whole_word() {
        assert_eq!(shorten("one two three", 13), "one two three");
        assert_eq!(shorten("one two three", 12), "one two…");
        assert_eq!(shorten("one two, three", 12), "one two…");
        assert_eq!(shorten("abcdefgh", 6), "abc…");
        for limit in 3..40 {
            let cut = shorten("ein Wörtchen über die Länge 語語語 hinaus", limit);
            assert!(cut.len() <= limit, "{limit}: {cut}");
        }
    }

    #[test]
    fn a_text_that_is_cut_in_front_begins_with_an_ellipsis_before_a_whole_word() {
        assert_eq!(shorten_front("one two three", 13), "one two three");
        assert_eq!(shorten_front("one two three", 12), "…two three");
        assert_eq!(shorten_front("one two\nthree", 10), "…three");
        assert_eq!(shorten_front("one two three", 8), "…three");
        assert_eq!(shorten_front("abcdefgh", 6), "…fgh");
        let noise = "x".repeat(100) + " end";
        assert_eq!(shorten_front(&noise, 80), format!("…{}", &noise[27..]));
        for limit in 3..40 {
            let cut = shorten_front("ein Wörtchen über die Länge 語語語 hinaus", limit);
            assert!(cut.len() <= limit, "{limit}: {cut}");
        }
    }
}
