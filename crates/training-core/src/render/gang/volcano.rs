//! Volcano: a `PodGroup` that the scheduler admits to its queue before the pods are created.

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use serde::Serialize;
use serde_json::{Value, json};
use training_api::labels;

use super::provider::{
    Gang, GangProvider, GangState, VERBS, Wanted, advise_of_schedulers, ignored,
};
use crate::kind::framework::GangConventions;
use crate::model::grants::Grant;
use crate::model::group::{GroupKind, GroupView};
use crate::model::notes::Note;
use crate::model::roles::RoleSpec;

const SCHEDULER: &str = "volcano";
/// The default queue. Source: the published contract, and Volcano's own default.
const QUEUE: &str = "default";

/// The part of Volcano's `PodGroup` that follows the job.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Follows<'a> {
    min_member: u32,
    min_resources: Value,
    priority_class_name: Option<&'a str>,
    /// Set only if the queue follows the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<&'a str>,
}

#[derive(Debug)]
pub(super) struct Volcano;

impl GangProvider for Volcano {
    fn wanted(&self, gang: &Gang<'_>, kind: GroupKind, _version: &str) -> Wanted {
        let of_policy = gang.policy.and_then(|p| p.priority_class.as_deref());
        let queue = gang.policy.and_then(|p| p.queue.as_deref());
        let queue = queue.filter(|q| !q.is_empty());
        let (class, queue, follows_job) = match gang.conventions {
            GangConventions::Training => (of_policy.filter(|c| !c.is_empty()), queue, false),
            GangConventions::Mpi => (gang.class(), queue.or(gang.annotated_queue), true),
        };
        let queue = queue.unwrap_or(QUEUE);
        let follows = json!(Follows {
            min_member: gang.need.members,
            min_resources: json!(gang.need.resources),
            priority_class_name: class,
            queue: follows_job.then_some(queue),
        });
        let mut spec = follows.clone();
        // Otherwise the queue is set once, and the group's own queue counts afterwards.
        spec["queue"] = json!(queue);
        Wanted {
            kind,
            spec,
            follows,
        }
    }

    fn stamp(&self, gang: &Gang<'_>, role: &RoleSpec<'_>, pod: &mut Pod) {
        let spec = pod.spec.get_or_insert_with(PodSpec::default);
        gang.schedule(spec, SCHEDULER);
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(labels::VOLCANO_GROUP.to_owned(), gang.job.to_owned());
        if gang.conventions == GangConventions::Training {
            annotations.insert(labels::VOLCANO_TASK.to_owned(), role.label.clone());
        }
    }

    fn read(&self, group: &GroupView) -> GangState {
        match group.phase.as_deref() {
            None | Some("" | "Pending") => {
                let said = group.message.as_deref().unwrap_or_default();
                let colon = if said.is_empty() { "" } else { ": " };
                GangState::Waiting(format!(
                    "Volcano has not let the group into its queue yet{colon}{said}"
                ))
            }
            Some(_) => GangState::Admitted,
        }
    }

    fn blocks_start(&self) -> bool {
        true
    }

    fn advise(&self, gang: &Gang<'_>) -> Vec<Note> {
        let mut notes = advise_of_schedulers(gang, SCHEDULER);
        if gang
            .policy
            .is_some_and(|p| p.schedule_timeout_seconds.is_some())
        {
            notes.push(ignored("scheduleTimeoutSeconds", "Volcano"));
        }
        notes
    }

    fn grants(&self) -> &'static [Grant] {
        &[Grant {
            group: "scheduling.volcano.sh",
            resources: &["podgroups"],
            verbs: VERBS,
            why: "With --gang=volcano a job has one. get answers one question: who owns a name that is taken.",
        }]
    }
}
