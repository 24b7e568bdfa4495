//! A plan in the making.

use std::fmt::Write as _;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use training_api::{ConditionType, JobStatus, LastFailure};

use crate::model::conditions;
use crate::model::health::obituary;
use crate::model::memory::{JobState, Memory};
use crate::model::names;
use crate::model::notes::Note;
use crate::model::patch::merge_patch;
use crate::model::restart::not_before;
use crate::model::step::{Deletion, Plan, StatusWrite, Step, Transition, Urgency};
use crate::model::view::PodView;

/// A plan in the making.
#[derive(Debug)]
pub struct Draft {
    /// What will be remembered.
    pub memory: Memory,
    /// The present second.
    pub now: Timestamp,
    /// What to do, deletes first.
    pub steps: Vec<Step>,
    /// What to tell, once the status is stored.
    pub notes: Vec<Note>,
    /// What to count, once the status is stored.
    pub transitions: Vec<Transition>,
    /// Look again as soon as this is carried out.
    pub again: bool,
    /// When to look again at the latest.
    pub wake: Option<Timestamp>,
    /// What keeps the job from going on, as a reason and a message.
    pub stall: Option<(&'static str, String)>,
    /// This is the pass that starts the job, or resumes it.
    pub starts: bool,
    /// What is remembered follows from what these steps make, and is not stored before the next look, unless something keeps
    /// the job from going on.
    pub withheld: bool,
    urgency: Urgency,
}

impl Draft {
    pub(crate) fn new(memory: Memory, now: Timestamp) -> Self {
        Self {
            memory,
            now,
            steps: Vec::new(),
            notes: Vec::new(),
            transitions: Vec::new(),
            again: false,
            wake: None,
            stall: None,
            starts: false,
            withheld: false,
            urgency: Urgency::CanWait,
        }
    }

    /// Sets a condition: see [`conditions::set`].
    pub fn set(&mut self, type_: ConditionType, holds: bool, reason: &str, message: &str) {
        conditions::set(
            &mut self.memory.conditions,
            type_,
            holds,
            reason,
            message,
            self.now,
        );
    }

    /// The job ends now, and never before it started: the clock may have been set back since.
    pub fn complete(&mut self) {
        let start = self.memory.started.unwrap_or(self.now);
        self.memory.completed = Some(self.now.max(start));
    }

    /// The status goes at least so soon.
    pub fn urgency(&mut self, urgency: Urgency) {
        self.urgency = self.urgency.max(urgency);
    }

    /// Look again so long after this time at the latest.
    pub fn wake_after(&mut self, start: Timestamp, seconds: i64) {
        // A time beyond the calendar never comes.
        if let Ok(at) = start.checked_add(SignedDuration::from_secs(seconds)) {
            self.wake = Some(self.wake.map_or(at, |w| w.min(at)));
        }
    }

    /// Deletes a replica's pod, unless it is on its way out.
    pub fn delete_pod(&mut self, job: &str, pod: &PodView) {
        if !pod.leaving {
            self.steps.push(Step::DeletePod {
                name: names::replica(job, &pod.role, pod.index),
                uid: pod.uid,
                how: Deletion::Orderly,
            });
        }
    }

    /// Records what the last failed pod said.
    pub fn remember_failure(&mut self, job: &str, namespace: &str, pod: &PodView) {
        let name = names::replica(job, &pod.role, pod.index);
        self.remember_failure_of(&name, namespace, pod);
    }

    /// The same of a pod that is no replica by its name.
    pub fn remember_failure_of(&mut self, name: &str, namespace: &str, pod: &PodView) {
        if let Some(code) = pod.exit_code.filter(|c| *c != 0) {
            self.notes.push(Note::normal(
                "ExitedWithCode",
                format!("Pod: {namespace}.{name} exited with code {code}"),
            ));
        }
        let mut message = self.bury(name.to_owned(), pod);
        if let Some(at) = self.next_attempt(&pod.role, pod.index) {
            // A String takes everything.
            let _ = write!(message, "; next attempt at {at}");
        }
        self.notes
            .push(Note::warning("PodFailed", format!("Pod {name}: {message}")));
    }

    /// When the pace of replacements lets this replica's next pod come, if not at once.
    pub fn next_attempt(&self, role: &str, index: u32) -> Option<Timestamp> {
        let own = self.memory.replicas.get(&(role.to_owned(), index));
        let due = not_before(own).max(not_before(self.memory.gang_restart.as_ref()));
        due.filter(|at| *at > self.now)
    }

    /// Records how the container ended that the kubelet has restarted last, in its pod.
    pub fn remember_restart(&mut self, job: &str, pod: &PodView) {
        let name = names::replica(job, &pod.role, pod.index);
        self.remember_restart_of(&name, pod);
    }

    /// The same of a pod that is no replica by its name.
    pub fn remember_restart_of(&mut self, name: &str, pod: &PodView) {
        let message = self.bury(name.to_owned(), pod);
        self.notes.push(Note::warning(
            "ContainerRestarted",
            format!("Pod {name}: restarted in place after {message}"),
        ));
    }

    fn bury(&mut self, name: String, pod: &PodView) -> String {
        let message = clean(&obituary(pod), 1024);
        let trouble = pod.trouble.as_deref();
        let reason = trouble.map(|t| clean(&t.reason, 128));
        self.memory.last_failure = Some(LastFailure {
            pod: name,
            exit_code: trouble.and_then(|t| t.exit_code).or(pod.exit_code),
            reason: reason.filter(|r| !r.is_empty()),
            message: Some(message.clone()),
            time: Some(Time(self.now)),
        });
        message
    }

    /// `generation` is that of the spec.
    pub(crate) fn into_plan(self, old: &JobStatus, generation: Option<i64>) -> Plan<JobStatus> {
        if self.withheld && !self.memory.holds(ConditionType::Stalled) {
            return Plan {
                steps: self.steps,
                again: self.again,
                wake: self.wake,
                ..Plan::default()
            };
        }
        let mut next = old.report(&self.memory);
        conditions::keep_times(&mut next.conditions, &old.conditions);
        if next != *old {
            next.observed_generation = generation;
        }
        // Most plans change nothing. Serialising a status of ours can't fail; if it ever did, nothing is written rather than
        // something wrong.
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
            again: self.again || decided,
            wake: self.wake,
        }
    }
}

/// As [`clean`], and a text that is cut ends with an ellipsis behind a whole word.
pub fn shorten(text: &str, limit: usize) -> String {
    const MARK: char = '…';
    let cut = clean(text, limit);
    if cut.len() == clean(text, usize::MAX).len() {
        return cut;
    }
    let kept = clean(&cut, limit.saturating_sub(MARK.len_utf8()));
    // One word alone is cut where it has to be.
    let words = kept.rsplit_once(' ').map_or(&*kept, |(words, _)| words);
    format!(
        "{}{MARK}",
        words.trim_end_matches([' ', ',', '.', ':', ';'])
    )
}

/// Cuts a text at a character boundary and replaces control characters, so that nothing a pod says can harm a terminal or read
/// otherwise than it is written.
///
/// Units: `limit` in bytes.
pub fn clean(text: &str, limit: usize) -> String {
    let mut out = String::with_capacity(text.len().min(limit));
    for c in text.chars() {
        let c = match c {
            // Marks that turn the direction of what follows, or that nobody sees.
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
    use super::shorten;

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
}
