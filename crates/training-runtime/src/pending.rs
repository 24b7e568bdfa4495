//! Collects the events of a reconcile.

use std::sync::Arc;

use kube::Resource;
use training_core::Note;

use crate::cli::EventMode;
use crate::events::{EventSink, Regarding};
use crate::executor::Done;

/// Maximum names that a folded event lists; it counts the rest.
const MAX_NAMES: usize = 12;

/// The notes of a reconcile. They are posted when the reconcile ends, however it ends: events are for people, and their requests would
/// delay the recreation of pods.
pub struct PendingNotes<'a> {
    events: &'a EventSink,
    notes: Vec<(Arc<Regarding>, Note)>,
}

impl<'a> PendingNotes<'a> {
    /// Creates an empty collection.
    pub fn new(events: &'a EventSink) -> Self {
        let notes = Vec::new();
        Self { events, notes }
    }

    /// Adds notes about a job.
    pub fn note<J: Resource<DynamicType = ()>>(&mut self, job: &J, notes: Vec<Note>) {
        if notes.is_empty() {
            return;
        }
        let about = Arc::new(Regarding::of::<J>(job.meta()));
        let notes = notes.into_iter().map(|note| (Arc::clone(&about), note));
        self.notes.extend(notes);
    }
}

impl Drop for PendingNotes<'_> {
    fn drop(&mut self) {
        for (about, note) in self.notes.drain(..) {
            self.events.post(&about, note);
        }
    }
}

/// Returns the notes for created and deleted objects: one per object, or one per kind of change.
pub fn folded(done: &Done, mode: EventMode) -> Vec<Note> {
    let changes = [
        ("SuccessfulDeletePod", "Deleted pod", &done.deleted_pods),
        (
            "SuccessfulDeleteService",
            "Deleted service",
            &done.deleted_services,
        ),
        (
            "SuccessfulDeletePodGroup",
            "Deleted PodGroup",
            &done.deleted_groups,
        ),
        ("SuccessfulCreatePod", "Created pod", &done.created_pods),
        (
            "SuccessfulCreateService",
            "Created service",
            &done.created_services,
        ),
    ];
    let changes = changes
        .into_iter()
        .filter(|(_, _, names)| !names.is_empty());
    match mode {
        EventMode::Off => Vec::new(),
        EventMode::Full => changes
            .flat_map(|(reason, text, names)| {
                names
                    .iter()
                    .map(move |n| Note::normal(reason, format!("{text}: {n}")))
            })
            .collect(),
        EventMode::Folded => changes
            .map(|(reason, text, names)| Note::normal(reason, fold(text, names)))
            .collect(),
    }
}

fn fold(text: &str, names: &[String]) -> String {
    match names {
        [one] => format!("{text}: {one}"),
        few if few.len() <= MAX_NAMES => format!("{text}s: {}", few.join(", ")),
        many => format!(
            "{text}s: {} and {} more",
            many[..MAX_NAMES].join(", "),
            many.len() - MAX_NAMES
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(pods: usize) -> Done {
        Done {
            created_pods: (0..pods).map(|n| format!("j-worker-{n}")).collect(),
            ..Done::default()
        }
    }

    fn texts(pods: usize, mode: EventMode) -> Vec<String> {
        folded(&done(pods), mode)
            .into_iter()
            .map(|n| n.message)
            .collect()
    }

    #[test]
    fn many_creations_are_one_event_unless_all_are_wanted() {
        assert_eq!(texts(1, EventMode::Folded), ["Created pod: j-worker-0"]);
        assert_eq!(
            texts(2, EventMode::Folded),
            ["Created pods: j-worker-0, j-worker-1"]
        );
        assert!(texts(100, EventMode::Folded)[0].ends_with("j-worker-11 and 88 more"));
        assert_eq!(
            texts(2, EventMode::Full),
            ["Created pod: j-worker-0", "Created pod: j-worker-1"]
        );
        assert!(texts(2, EventMode::Off).is_empty() && texts(0, EventMode::Full).is_empty());
    }
}
