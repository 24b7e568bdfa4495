//! Pods that name an owner which did not create them.

use std::collections::{BTreeSet, HashMap};

use parking_lot::Mutex;
use training_core::{ForgedPod, Note, Uid};

use crate::key::JobKey;

/// The forged pods of each job that users were warned of. A restart of the operator forgets them, and warns once more.
#[derive(Debug, Default)]
pub struct ForgedPods(Mutex<HashMap<JobKey, BTreeSet<Uid>>>);

impl ForgedPods {
    /// Takes all forged pods of a job, and returns the Warnings of those that are new.
    pub fn warn(&self, job: &JobKey, all: Vec<ForgedPod>) -> Vec<Note> {
        let uids: BTreeSet<Uid> = all.iter().map(|pod| pod.uid).collect();
        let mut known = self.0.lock();
        let before = if uids.is_empty() {
            known.remove(job)
        } else {
            known.insert(job.clone(), uids)
        };
        let before = before.unwrap_or_default();
        let new = all.into_iter().filter(|pod| !before.contains(&pod.uid));
        new.map(|pod| pod.note).collect()
    }

    /// Forgets a job.
    pub fn forget(&self, job: &JobKey) {
        self.0.lock().remove(job);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mt_53_each_forged_pod_is_warned_of_once_per_job_and_again_after_it_was_gone() {
        let forged = |uid: u128| ForgedPod {
            uid: Uid(uid),
            note: Note::warning("UnknownLauncherPod", uid.to_string()),
        };
        let all = ForgedPods::default();
        let (a, b) = (JobKey::new("ns", "a"), JobKey::new("ns", "b"));
        let warn = |job: &JobKey, uids: &[u128]| {
            let notes = all.warn(job, uids.iter().copied().map(forged).collect());
            let texts = notes.into_iter().map(|note| note.message);
            texts.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(warn(&a, &[1]), "1");
        assert_eq!(warn(&a, &[1, 2]), "2");
        assert_eq!(warn(&b, &[1]), "1");
        assert_eq!(warn(&a, &[2]), "");
        assert_eq!(warn(&a, &[1, 2]), "1");
        all.forget(&a);
        assert_eq!(warn(&a, &[2]), "2");
    }
}
