//! What holds when nothing moves any more, and which failures a job has to answer for.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::job::{is_finished, is_true};
use crate::{REPLICA_INDEX, REPLICA_TYPE};

/// What is wrong with a job and its pods, once the operator has had its time.
pub(super) fn at_rest(job: &Value, pods: &[&Value]) -> Vec<String> {
    let mut wrong = Vec::new();
    let policy = &job["spec"]["runPolicy"];
    let ours = policy["managedBy"]
        .as_str()
        .is_none_or(|by| by == "kubeflow.org/training-operator");
    let leaving = !job["metadata"]["deletionTimestamp"].is_null();
    if leaving || !ours {
        return wrong;
    }
    for (role, replicas) in roles(job) {
        let label = role.to_lowercase();
        let finished = indices(
            job["status"]["finishedIndices"][&label]
                .as_str()
                .unwrap_or_default(),
        );
        let own: Vec<(u64, &Value)> = pods
            .iter()
            .filter_map(|pod| place(pod).filter(|(of, _)| *of == label))
            .map(|(_, at)| at)
            .collect();
        let count = |key: &str| {
            job["status"]["replicaStatuses"][&role][key]
                .as_i64()
                .unwrap_or_default()
        };
        let counts = [count("active"), count("succeeded"), count("failed")];
        if counts.iter().any(|n| *n < 0) || counts.iter().sum::<i64>() > replicas {
            wrong.push(format!("I-18: {role} counts {counts:?} of {replicas}"));
        }
        let idle = policy["suspend"] == true || is_true(job, "Stalled");
        if is_finished(job) || idle {
            continue;
        }
        let there: BTreeSet<u64> = own.iter().map(|(index, _)| *index).collect();
        let wanted: BTreeSet<u64> = (0..replicas.unsigned_abs()).collect();
        let covered: BTreeSet<u64> = there.union(&finished).copied().collect();
        if covered != wanted || !there.is_subset(&wanted) {
            wrong.push(format!(
                "I-03: {role} has the indices {there:?}, finished {finished:?}, of {replicas}"
            ));
        }
        let in_phase = |phase: &str| {
            let of_phase = own
                .iter()
                .filter(|(_, pod)| pod["status"]["phase"] == phase);
            of_phase.map(|(index, _)| *index).collect::<BTreeSet<_>>()
        };
        let signed = |set: &BTreeSet<u64>| i64::try_from(set.len()).unwrap_or(i64::MAX);
        let succeeded = in_phase("Succeeded").union(&finished).copied().collect();
        let expected = [
            signed(&in_phase("Running").difference(&finished).copied().collect()),
            signed(&succeeded),
            signed(&in_phase("Failed").difference(&finished).copied().collect()),
        ];
        if counts != expected {
            wrong.push(format!(
                "I-18: {role} counts {counts:?} (active, succeeded, failed), and there are {expected:?}"
            ));
        }
    }
    wrong
}

/// Whether a pod failed in a way that counts: not one that others ended for their own reasons.
pub(super) fn counts_as_failure(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    let disrupted = conditions.is_some_and(|list| {
        list.iter().any(|c| {
            c["type"] == "DisruptionTarget"
                && c["status"] == "True"
                && c["reason"] != "TerminationByKubelet"
        })
    });
    pod["status"]["phase"] == "Failed" && !disrupted
}

/// I-15: what counts restarts never goes down.
pub(super) fn restarts(before: &Value, now: &Value) -> Vec<String> {
    let counters = [
        "restarts",
        "countedFailures",
        "containerRestarts",
        "attempt",
    ];
    let fell = counters.into_iter().filter(|counter| {
        let of = |job: &Value| job["status"][counter].as_i64().unwrap_or_default();
        of(now) < of(before)
    });
    fell.map(|counter| {
        format!(
            "I-15: {counter} fell from {} to {}",
            before["status"][counter], now["status"][counter]
        )
    })
    .collect()
}

/// The roles of a job with their replicas; one where none are written.
fn roles(job: &Value) -> Vec<(String, i64)> {
    let specs = job["spec"].as_object().into_iter().flatten();
    let maps = specs.filter(|(key, _)| key.ends_with("ReplicaSpecs"));
    maps.filter_map(|(_, map)| map.as_object())
        .flatten()
        .map(|(role, spec)| (role.clone(), spec["replicas"].as_i64().unwrap_or(1)))
        .collect()
}

/// The role label and index of a pod.
fn place(pod: &Value) -> Option<(&str, (u64, &Value))> {
    let labels = &pod["metadata"]["labels"];
    let index = labels[REPLICA_INDEX].as_str()?.parse().ok()?;
    Some((labels[REPLICA_TYPE].as_str()?, (index, pod)))
}

/// The numbers of `0-2,5`.
fn indices(text: &str) -> BTreeSet<u64> {
    let parts = text.split(',').filter(|part| !part.is_empty());
    parts
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(first.parse::<u64>().ok()?..=last.parse::<u64>().ok()?)
        })
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(index: u32, phase: &str) -> Value {
        json!({
            "metadata": { "labels": { REPLICA_TYPE: "worker", REPLICA_INDEX: index.to_string() } },
            "status": { "phase": phase },
        })
    }

    fn job(workers: u32, status: &Value) -> Value {
        json!({
            "spec": { "pytorchReplicaSpecs": { "Worker": { "replicas": workers } } },
            "status": status,
        })
    }

    fn counts(active: u32, succeeded: u32, failed: u32) -> Value {
        json!({ "replicaStatuses": { "Worker": {
            "active": active, "succeeded": succeeded, "failed": failed,
        }}})
    }

    fn wrong(job: &Value, pods: &[Value]) -> String {
        at_rest(job, &pods.iter().collect::<Vec<_>>()).join("\n")
    }

    #[test]
    fn i_03_missing_and_surplus_indices_are_told() {
        let job = job(2, &counts(2, 0, 0));
        let running = |index| pod(index, "Running");
        assert_eq!(wrong(&job, &[running(0), running(1)]), "");
        assert!(wrong(&job, &[running(0), running(2)]).contains("I-03"));
        assert!(wrong(&job, &[running(0)]).contains("I-03"));
        assert!(wrong(&job, &[running(0), running(1), running(2)]).contains("I-03"));
        let mut finished = counts(1, 1, 0);
        finished["finishedIndices"] = json!({ "worker": "0" });
        let job = self::job(2, &finished);
        assert_eq!(wrong(&job, &[running(1)]), "", "one ended well and is gone");
    }

    #[test]
    fn i_18_counts_that_are_not_those_of_the_pods_are_told() {
        let pods = [pod(0, "Running"), pod(1, "Succeeded"), pod(2, "Pending")];
        assert_eq!(wrong(&job(3, &counts(1, 1, 0)), &pods), "");
        for (active, succeeded, failed) in [(0, 1, 0), (1, 0, 0), (1, 1, 1), (2, 1, 0)] {
            let job = job(3, &counts(active, succeeded, failed));
            assert!(wrong(&job, &pods).contains("I-18"), "{job}");
        }
        let mut over = counts(3, 1, 0);
        over["conditions"] = json!([{ "type": "Succeeded", "status": "True" }]);
        assert!(
            wrong(&job(3, &over), &[]).contains("I-18"),
            "also at the end"
        );
    }

    #[test]
    fn what_nobody_asks_for_is_not_missed() {
        let mut suspended = job(2, &json!({}));
        suspended["spec"]["runPolicy"] = json!({ "suspend": true });
        let mut elsewhere = job(2, &json!({}));
        elsewhere["spec"]["runPolicy"] = json!({ "managedBy": "kueue.x-k8s.io/multikueue" });
        let stalled = json!({ "conditions": [{ "type": "Stalled", "status": "True" }] });
        for job in [suspended, elsewhere, job(2, &stalled)] {
            assert_eq!(wrong(&job, &[]), "");
        }
        assert!(wrong(&job(2, &json!({})), &[]).contains("I-03"));
    }

    #[test]
    fn i_15_a_count_that_falls_is_told() {
        let with = |restarts: i32| job(1, &json!({ "restarts": restarts }));
        assert!(restarts(&with(1), &with(2)).is_empty());
        assert_eq!(
            restarts(&with(2), &with(1)),
            ["I-15: restarts fell from 2 to 1"]
        );
        assert_eq!(restarts(&with(2), &job(1, &json!({}))).len(), 1);
    }

    #[test]
    fn i_16_what_others_ended_is_no_failure() {
        let with = |phase: &str, reason: &str| {
            let mut pod = pod(0, phase);
            pod["status"]["conditions"] =
                json!([{ "type": "DisruptionTarget", "status": "True", "reason": reason }]);
            pod
        };
        assert!(counts_as_failure(&pod(0, "Failed")));
        assert!(!counts_as_failure(&pod(0, "Running")));
        assert!(!counts_as_failure(&with("Failed", "PreemptionByScheduler")));
        assert!(counts_as_failure(&with("Failed", "TerminationByKubelet")));
    }
}
