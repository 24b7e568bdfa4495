//! Kubernetes' own gang scheduling: a `Workload`, a `PodGroup` made from its template, and a field of the pod.
//!
//! Source: Kubernetes 1.37, `scheduling.k8s.io/v1beta1`, and 1.36, `v1alpha2`. The scheduler accepts a group only if all pods have
//! the group's priority, the same preemption policy and the same scheduler.

use k8s_openapi::api::core::v1::{Pod, PodSchedulingGroup, PodSpec};
use serde_json::{Value, json};

use super::provider::{
    Gang, GangProvider, VERBS, Wanted, advise_of_nodes, class_of, ignored, scheduler_of,
};
use crate::model::grants::Grant;
use crate::model::group::GroupKind;
use crate::model::notes::Note;
use crate::model::roles::RoleSpec;

/// The name of the only template. Every pod of a job is in one group.
const TEMPLATE: &str = "all";

#[derive(Debug)]
pub(super) struct Native;

/// Returns the priority class of the run: that of its group, which is immutable, else the one for the new group.
fn class<'a>(gang: &Gang<'a>) -> Option<&'a str> {
    match gang.group(GroupKind::PodGroup).filter(|g| !g.terminating) {
        Some(group) => group.class.as_deref(),
        None => gang.class(),
    }
}

/// The fields of the group that both objects have.
fn shared(gang: &Gang<'_>, version: &str) -> Value {
    // A single pod is useless without the others, so they are disrupted together too.
    let disruption = match version {
        "v1alpha2" => json!("PodGroup"),
        _ => json!({"all": {}}),
    };
    let mut out = json!({
        "schedulingPolicy": {"gang": {"minCount": gang.need.members}},
        "disruptionMode": disruption,
    });
    if let Some(class) = class(gang) {
        out["priorityClassName"] = json!(class);
    }
    out
}

impl GangProvider for Native {
    fn wanted(&self, gang: &Gang<'_>, kind: GroupKind, version: &str) -> Wanted {
        let mut group = shared(gang, version);
        if kind == GroupKind::Workload {
            group["name"] = json!(TEMPLATE);
            let owner = &gang.owner;
            return Wanted {
                kind,
                spec: json!({
                    "controllerRef": {"apiGroup": owner.group, "kind": owner.kind, "name": gang.job},
                    "podGroupTemplates": [group],
                }),
                // The scheduler reads a template only once, when the group is made from it.
                follows: Value::Null,
            };
        }
        let alpha = version == "v1alpha2";
        if alpha {
            group["podGroupTemplateRef"] = json!({
                "workload": {"workloadName": gang.job, "podGroupTemplateName": TEMPLATE}
            });
        } else {
            group["workloadRef"] = json!({"workloadName": gang.job, "templateName": TEMPLATE});
        }
        // The policy of the older version is immutable.
        let count = || json!({"schedulingPolicy": {"gang": {"minCount": gang.need.members}}});
        let follows = if alpha { Value::Null } else { count() };
        Wanted {
            kind,
            spec: group,
            follows,
        }
    }

    fn stamp(&self, gang: &Gang<'_>, _role: &RoleSpec<'_>, pod: &mut Pod) {
        let spec = pod.spec.get_or_insert_with(PodSpec::default);
        spec.scheduling_group = Some(PodSchedulingGroup {
            pod_group_name: Some(gang.job.to_owned()),
        });
        spec.priority_class_name = class(gang).map(str::to_owned);
        // The API server computes both from the class.
        (spec.preemption_policy, spec.priority) = (None, None);
    }

    fn unschedulable_message(&self, gang: &Gang<'_>) -> Option<String> {
        let mut names = gang.roles.iter().filter(|r| r.replicas > 0);
        let first = names.next()?;
        let name = |role| scheduler_of(role).unwrap_or("default-scheduler");
        let other = names.find(|role| name(role) != name(first))?;
        Some(format!(
            "{}.template.spec.schedulerName is {}, {}.template.spec.schedulerName is {}: one scheduler must have all pods of a group",
            first.path,
            name(first),
            other.path,
            name(other)
        ))
    }

    fn advise(&self, gang: &Gang<'_>) -> Vec<Note> {
        let mut notes = advise_of_nodes(gang);
        let class = class(gang);
        for role in gang.roles {
            if class_of(role).is_some_and(|own| Some(own) != class)
                || class_of(role).is_none() && class.is_some()
            {
                let text = format!(
                    "{}.template.spec.priorityClassName: all pods of the job get {}, because a group has one priority",
                    role.path,
                    class.unwrap_or("no class")
                );
                notes.push(Note::warning("SettingIgnored", text));
            }
            let spec = role.template.and_then(|t| t.spec.as_ref());
            let of_class = [
                (
                    "preemptionPolicy",
                    spec.is_some_and(|s| s.preemption_policy.is_some()),
                ),
                ("priority", spec.is_some_and(|s| s.priority.is_some())),
            ];
            for (field, _) in of_class.into_iter().filter(|(_, set)| *set) {
                let text = format!(
                    "{}.template.spec.{field}: all pods of the job get that of {}, because a group has one priority",
                    role.path,
                    class.unwrap_or("the cluster's default class")
                );
                notes.push(Note::warning("SettingIgnored", text));
            }
        }
        if let Some(policy) = gang.policy {
            let fields = [
                ("queue", policy.queue.is_some()),
                ("minResources", policy.min_resources.is_some()),
                (
                    "scheduleTimeoutSeconds",
                    policy.schedule_timeout_seconds.is_some(),
                ),
            ];
            let unused = fields.into_iter().filter(|(_, set)| *set);
            notes
                .extend(unused.map(|(field, _)| ignored(field, "Kubernetes' own gang scheduling")));
        }
        notes
    }

    fn grants(&self) -> &'static [Grant] {
        &[Grant {
            group: "scheduling.k8s.io",
            resources: &["podgroups", "workloads"],
            verbs: VERBS,
            why: "With --gang=native a job has one of each. get answers one question: who owns a name that is taken.",
        }]
    }
}
