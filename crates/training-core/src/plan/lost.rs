//! Pods on lost nodes. By default the operator waits for them. With a time limit set, it replaces them like after any other
//! disruption, and deletes them without their kubelet's confirmation. The Job controller replaces pods of a Job.
//!
//! This is dangerous. The old processes may still run, so a rank may run twice.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::draft::Draft;
use crate::model::census::{Census, SlotState};
use crate::model::health::lost_since;
use crate::model::names;
use crate::model::notes::Note;
use crate::model::object::BatchPod;
use crate::model::observed::{Blocked, Observed};
use crate::model::rules::Rules;
use crate::model::step::{Deletion, Step};
use crate::model::uid::Uid;
use crate::model::verdict::{RankFailure, Verdict};
use crate::model::view::PodView;

/// Whether to give up a lost pod.
enum Fate {
    /// The pod is not lost, or there is no time limit.
    Kept,
    /// Not before this time.
    Until(Timestamp),
    /// The pod has been lost for too long, since this time.
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

/// Treats lost pods that are given up and not yet terminating as disrupted.
pub fn give_up(census: &Census<'_>, rules: Rules, draft: &mut Draft, verdict: Verdict) -> Verdict {
    let (mut failures, otherwise) = match verdict {
        Verdict::Retry(failures) => (failures, None),
        Verdict::Progressing { running } => (Vec::new(), Some(running)),
        end @ (Verdict::Succeeded | Verdict::Failed(_)) => return end,
    };
    for slot in census.slots.iter().filter(|s| s.state == SlotState::Live) {
        let Some(pod) = slot.pod.filter(|p| !p.terminating) else {
            continue;
        };
        match fate(pod, rules, draft.now) {
            Fate::Kept => {}
            Fate::Until(at) => draft.requeue_after(at, 0),
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

/// Deletes given-up pods that are not replicas. Their owners replace them.
pub fn delete_given_up<'a>(
    pods: impl IntoIterator<Item = &'a BatchPod>,
    rules: Rules,
    draft: &mut Draft,
) {
    for made in pods.into_iter().filter(|made| !made.pod.terminating) {
        match fate(&made.pod, rules, draft.now) {
            Fate::Kept => {}
            Fate::Until(at) => draft.requeue_after(at, 0),
            Fate::GivenUp(_) => draft.steps.push(Step::DeletePod {
                name: made.name.to_string(),
                uid: made.pod.uid,
                how: Deletion::Graceful,
            }),
        }
    }
}

/// Forces the deletion of given-up pods that are stuck terminating. `owner` is the job's own uid.
pub(super) fn remove(job: &str, owner: Option<Uid>, observed: &Observed, draft: &mut Draft) {
    let own = observed.pods.iter().map(|pod| (None, pod));
    let made = observed
        .batch_pods
        .iter()
        .map(|made| (Some(made), &made.pod));
    for (made, pod) in own.chain(made).filter(|(_, pod)| pod.terminating) {
        let since = match fate(pod, observed.rules, draft.now) {
            Fate::Kept => continue,
            Fate::Until(at) => {
                draft.requeue_after(at, 0);
                continue;
            }
            Fate::GivenUp(since) => since,
        };
        let replica = || names::replica(job, &pod.role, pod.index);
        let name = made.map_or_else(replica, |made| made.name.to_string());
        let node = pod.trouble.as_deref().map_or("", |t| t.node.as_str());
        let of_a_job = made.is_some_and(|made| Some(made.batch) != owner);
        // After a rejection, the deletion doesn't happen, so its event is not repeated.
        let refused = observed.stall.as_ref().map(|stall| stall.blocks) == Some(Blocked::Change);
        if !(of_a_job && refused) {
            draft.notes.push(Note::warning(
                "LostPodDeleted",
                format!(
                    "Pod {name} on node {node}, lost since {since}, is deleted by force; if that node still runs, so does the pod"
                ),
            ));
        }
        draft.steps.push(Step::DeletePod {
            name,
            uid: pod.uid,
            how: if of_a_job {
                Deletion::ForcedAsFailed
            } else {
                Deletion::Forced
            },
        });
    }
}
