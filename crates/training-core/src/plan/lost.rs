//! Pods on nodes that are gone. By default they are waited for. Where the operator is set to, they are given up after a time:
//! replaced as after any other disruption, and deleted without the word of their kubelet.
//!
//! That is dangerous. Nobody knows whether their processes have ended, so two of one rank may run at once.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::draft::Draft;
use crate::model::census::{Census, SlotState};
use crate::model::health::lost_since;
use crate::model::names;
use crate::model::notes::Note;
use crate::model::observed::Observed;
use crate::model::rules::Rules;
use crate::model::step::{Deletion, Step};
use crate::model::verdict::{RankFailure, Verdict};
use crate::model::view::PodView;

/// Whether a lost pod is given up.
enum Fate {
    /// It is not lost, or waited for as long as it takes.
    Kept,
    /// Not before then.
    Until(Timestamp),
    /// It has been lost since then, and that is too long.
    GivenUp(Timestamp),
}

fn fate(pod: &PodView, rules: Rules, now: Timestamp) -> Fate {
    let Some(limit) = rules.force_lost_after else {
        return Fate::Kept;
    };
    let Some(since) = lost_since(pod, now) else {
        return Fate::Kept;
    };
    match since.checked_add(limit.max(SignedDuration::ZERO)) {
        Ok(at) if at > now => Fate::Until(at),
        Ok(_) => Fate::GivenUp(since),
        Err(_) => Fate::Kept,
    }
}

/// Counts lost pods that are given up and not yet on their way out as disrupted.
pub(super) fn give_up(
    census: &Census<'_>,
    rules: Rules,
    draft: &mut Draft,
    verdict: Verdict,
) -> Verdict {
    let (mut failures, otherwise) = match verdict {
        Verdict::Retry(failures) => (failures, None),
        Verdict::Progressing { running } => (Vec::new(), Some(running)),
        end @ (Verdict::Succeeded | Verdict::Failed(_)) => return end,
    };
    for slot in census.slots.iter().filter(|s| s.state == SlotState::Live) {
        let Some(pod) = slot.pod.filter(|p| !p.leaving) else {
            continue;
        };
        match fate(pod, rules, draft.now) {
            Fate::Kept => {}
            Fate::Until(at) => draft.wake_after(at, 0),
            Fate::GivenUp(_) => failures.push(RankFailure {
                role: slot.role,
                index: slot.index,
                disrupted: true,
            }),
        }
    }
    match otherwise {
        Some(running) if failures.is_empty() => Verdict::Progressing { running },
        Some(_) | None => Verdict::Retry(failures),
    }
}

/// Deletes the given-up pods that are on their way out, but don't go.
pub(super) fn remove(job: &str, seen: &Observed, draft: &mut Draft) {
    for pod in seen.pods.iter().filter(|p| p.leaving) {
        match fate(pod, seen.rules, draft.now) {
            Fate::Kept => {}
            Fate::Until(at) => draft.wake_after(at, 0),
            Fate::GivenUp(since) => {
                let name = names::replica(job, &pod.role, pod.index);
                let node = pod.trouble.as_deref().map_or("", |t| t.node.as_str());
                draft.notes.push(Note::warning(
                    "LostPodDeleted",
                    format!(
                        "Pod {name} on node {node}, lost since {since}, is deleted by force; if that node still runs, so does the pod"
                    ),
                ));
                draft.steps.push(Step::DeletePod {
                    name,
                    uid: pod.uid,
                    how: Deletion::Forced,
                });
            }
        }
    }
}
