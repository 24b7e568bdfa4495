//! The coscheduling plugin of scheduler-plugins: a `PodGroup`, and a label on pods.

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use serde::Serialize;
use serde_json::{Value, json};
use training_api::labels as keys;

use super::provider::{Gang, GangProvider, VERBS, Wanted, advise_of_schedulers, ignored};
use crate::kind::framework::GangConventions;
use crate::model::grants::Grant;
use crate::model::group::GroupKind;
use crate::model::notes::Note;
use crate::model::provider::{PLUGINS_SCHEDULER, Provider};
use crate::model::roles::RoleSpec;

/// The `PodGroup`'s spec, all of which follows the job.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Follows {
    min_member: u32,
    min_resources: Value,
    schedule_timeout_seconds: Option<i32>,
}

#[derive(Debug)]
pub(super) struct SchedulerPlugins;

fn scheduler<'a>(gang: &Gang<'a>) -> &'a str {
    match gang.provider {
        Provider::SchedulerPlugins(name) => name,
        Provider::None | Provider::Volcano | Provider::Native | Provider::Kueue => {
            PLUGINS_SCHEDULER
        }
    }
}

impl GangProvider for SchedulerPlugins {
    fn wanted(&self, gang: &Gang<'_>, kind: GroupKind, _version: &str) -> Wanted {
        let timeout = gang.policy.and_then(|p| p.schedule_timeout_seconds);
        let follows = json!(Follows {
            min_member: gang.need.members,
            min_resources: json!(gang.need.resources),
            schedule_timeout_seconds: match gang.conventions {
                GangConventions::Training => timeout,
                GangConventions::Mpi => Some(timeout.unwrap_or(0)),
            },
        });
        Wanted {
            kind,
            spec: follows.clone(),
            follows,
        }
    }

    fn stamp(&self, gang: &Gang<'_>, _role: &RoleSpec<'_>, pod: &mut Pod) {
        let spec = pod.spec.get_or_insert_with(PodSpec::default);
        gang.schedule(spec, scheduler(gang));
        let labels = pod.metadata.labels.get_or_insert_default();
        labels.insert(keys::PLUGINS_GROUP.to_owned(), gang.job.to_owned());
    }

    fn advise(&self, gang: &Gang<'_>) -> Vec<Note> {
        let mut notes = advise_of_schedulers(gang, scheduler(gang));
        if let Some(policy) = gang.policy {
            let fields = [
                ("queue", policy.queue.is_some()),
                ("priorityClass", policy.priority_class.is_some()),
            ];
            let unused = fields.into_iter().filter(|(_, set)| *set);
            notes.extend(unused.map(|(field, _)| ignored(field, "scheduler-plugins")));
        }
        notes
    }

    fn grants(&self) -> &'static [Grant] {
        &[Grant {
            group: "scheduling.x-k8s.io",
            resources: &["podgroups"],
            verbs: VERBS,
            why: "With --gang=scheduler-plugins a job has one. get answers one question: who owns a name that is taken.",
        }]
    }
}
