//! The invariants of a settled cluster, and the failures that count against a job.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::job::{is_finished, is_true};
use crate::{JOB_ROLE, REPLICA_INDEX, REPLICA_TYPE};

/// The values of `managedBy` in our jobs.
const OURS: [&str; 2] = [
    "kubeflow.org/training-operator",
    "kubeflow.org/mpi-operator",
];
/// The role of an MPIJob whose pods a Job creates.
const LAUNCHER: &str = "Launcher";

/// Checks a job and its objects after the operator has settled.
pub(super) fn at_rest(job: &Value, objects: &[(&str, &Value)]) -> Vec<String> {
    let mut wrong = Vec::new();
    let policy = &job["spec"]["runPolicy"];
    let ours = policy["managedBy"]
        .as_str()
        .is_none_or(|by| OURS.contains(&by));
    let terminating = !job["metadata"]["deletionTimestamp"].is_null();
    if terminating || !ours {
        return wrong;
    }
    let pods: Vec<&Value> = objects
        .iter()
        .filter(|(kind, _)| *kind == "Pod")
        .map(|(_, pod)| *pod)
        .collect();
    let is_mpi = job["spec"]["mpiReplicaSpecs"].is_object();
    if policy["suspend"] == true && !is_finished(job) {
        wrong.extend(still_there(&pods));
    }
    wrong.extend(topology(job, objects));
    if is_finished(job) && !is_mpi {
        wrong.extend(kept(policy["cleanPodPolicy"].as_str(), objects));
    }
    for (role, replicas) in roles(job) {
        if is_mpi && role == LAUNCHER {
            wrong.extend(launcher(job, objects));
            continue;
        }
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

/// I-18: returns the objects that an ended job keeps against its clean-up policy.
fn kept(policy: Option<&str>, objects: &[(&str, &Value)]) -> Option<String> {
    let takes = |kind: &str, object: &Value| {
        let phase = object["status"]["phase"].as_str().unwrap_or_default();
        let ended = matches!(phase, "Succeeded" | "Failed");
        match (policy, kind) {
            (Some("All"), "Pod" | "Service") => true,
            (Some("Running"), "Pod") => !ended,
            _ => false,
        }
    };
    let left: Vec<&Value> = objects
        .iter()
        .filter(|(kind, object)| {
            object["metadata"]["deletionTimestamp"].is_null() && takes(kind, object)
        })
        .map(|(_, object)| &object["metadata"]["name"])
        .collect();
    let policy = policy.unwrap_or_default();
    (!left.is_empty()).then(|| format!("I-18: ended, and cleanPodPolicy {policy} left {left:?}"))
}

/// I-28: returns the objects that a deleted job has left behind.
pub(super) fn left_over(objects: &[(&str, &Value)]) -> Vec<String> {
    let stays = |(_, object): &&(&str, &Value)| object["metadata"]["deletionTimestamp"].is_null();
    let left = objects.iter().filter(stays);
    left.map(|(kind, object)| {
        format!(
            "I-28: the job is gone, and has left {kind} {}",
            object["metadata"]["name"]
        )
    })
    .collect()
}

/// Returns the value of a variable of a pod's containers.
fn env<'a>(pod: &'a Value, name: &str) -> Option<&'a str> {
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    let mut env = containers.filter_map(|c| c["env"].as_array()).flatten();
    env.find(|variable| variable["name"] == name)?["value"].as_str()
}

/// I-09: the pods of a job that was never edited agree on its topology.
fn topology(job: &Value, objects: &[(&str, &Value)]) -> Vec<String> {
    let mut wrong = Vec::new();
    let edited = job["metadata"]["generation"].as_i64() > Some(1);
    let grows = job["spec"]["enableDynamicWorker"] == true;
    if edited || grows {
        return wrong;
    }
    let pods: Vec<&Value> = objects
        .iter()
        .filter(|(kind, pod)| *kind == "Pod" && place(pod).is_some())
        .map(|(_, pod)| *pod)
        .collect();
    let is_master = |pod: &Value| place(pod).is_some_and(|(role, _)| role == "master");
    let cluster = |pod: &Value| -> Option<String> {
        let config: Value = serde_json::from_str(env(pod, "TF_CONFIG")?).ok()?;
        Some(config["cluster"].to_string())
    };
    let same = |name: &str, of: &dyn Fn(&Value) -> Option<String>| {
        let values: BTreeSet<String> = pods.iter().filter_map(|pod| of(pod)).collect();
        (values.len() > 1).then(|| format!("I-09: {name} is {values:?}"))
    };
    for name in [
        "WORLD_SIZE",
        "MASTER_PORT",
        "PET_NNODES",
        "WORKER_PORT",
        "WORKER_ADDRS",
    ] {
        wrong.extend(same(name, &|pod| env(pod, name).map(str::to_owned)));
    }
    wrong.extend(same("MASTER_ADDR", &|pod| {
        let address = env(pod, "MASTER_ADDR").filter(|_| !is_master(pod));
        address.map(str::to_owned)
    }));
    wrong.extend(same("the cluster", &cluster));
    let ranks: Vec<u64> = pods
        .iter()
        .filter_map(|pod| env(pod, "RANK")?.parse().ok())
        .collect();
    let different: BTreeSet<u64> = ranks.iter().copied().collect();
    let total: i64 = roles(job).iter().map(|(_, replicas)| replicas).sum();
    let all = i64::try_from(ranks.len()).is_ok_and(|there| there == total);
    let gaps = all && different != (0..total.unsigned_abs()).collect();
    if different.len() != ranks.len() || gaps {
        wrong.push(format!("I-09: the ranks are {ranks:?} of {total}"));
    }
    wrong
}

/// I-07: returns the pods of a suspended job that are not terminating.
fn still_there(pods: &[&Value]) -> Option<String> {
    let stays = |pod: &&&Value| {
        let phase = pod["status"]["phase"].as_str().unwrap_or_default();
        pod["metadata"]["deletionTimestamp"].is_null() && !matches!(phase, "Succeeded" | "Failed")
    };
    let left: Vec<&Value> = pods
        .iter()
        .filter(stays)
        .map(|p| &p["metadata"]["name"])
        .collect();
    (!left.is_empty()).then(|| format!("I-07: suspended, and it has {left:?}"))
}

/// I-03 and I-18 of an MPIJob's launcher, whose pods a Job creates.
fn launcher(job: &Value, objects: &[(&str, &Value)]) -> Vec<String> {
    let mut wrong = Vec::new();
    let of = |key: &str| {
        let counts = &job["status"]["replicaStatuses"][LAUNCHER];
        counts[key].as_i64().unwrap_or_default()
    };
    let (active, succeeded, failed) = (of("active"), of("succeeded"), of("failed"));
    if !(0..=1).contains(&active) || !(0..=1).contains(&succeeded) || failed < 0 {
        wrong.push(format!(
            "I-18: {LAUNCHER} counts {active}, {succeeded}, {failed}"
        ));
    }
    let batch: Vec<&Value> = objects
        .iter()
        .filter(|(kind, _)| *kind == "Job")
        .map(|(_, batch)| *batch)
        .collect();
    if is_finished(job) || is_true(job, "Stalled") {
        return wrong;
    }
    match batch[..] {
        [batch] => {
            let is = batch["status"]["failed"].as_i64().unwrap_or_default();
            if failed != is {
                wrong.push(format!(
                    "I-18: {failed} launchers failed, and its Job says {is}"
                ));
            }
        }
        [] if is_true(job, "Running") => {
            wrong.push("I-03: it runs, and has no launcher".to_owned());
        }
        [] => {}
        _ => wrong.push(format!("I-03: it has {} launchers", batch.len())),
    }
    wrong
}

/// Returns true if a pod's failure counts: it was not disrupted.
pub(super) fn counts_as_failure(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    let not_its_own = matches!(
        pod["status"]["reason"].as_str(),
        Some("Terminated" | "Preempting")
    );
    let disrupted = conditions.is_some_and(|list| {
        list.iter().any(|c| {
            c["type"] == "DisruptionTarget"
                && c["status"] == "True"
                && (c["reason"] != "TerminationByKubelet" || not_its_own)
        })
    });
    pod["status"]["phase"] == "Failed" && !disrupted
}

/// I-15: restart counters never decrease.
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

/// The roles of a job with their replicas, by default one.
fn roles(job: &Value) -> Vec<(String, i64)> {
    let specs = job["spec"].as_object().into_iter().flatten();
    let maps = specs.filter(|(key, _)| key.ends_with("ReplicaSpecs"));
    maps.filter_map(|(_, map)| map.as_object())
        .flatten()
        .map(|(role, spec)| (role.clone(), spec["replicas"].as_i64().unwrap_or(1)))
        .collect()
}

/// The role and index in a pod's labels.
fn place(pod: &Value) -> Option<(&str, (u64, &Value))> {
    let labels = &pod["metadata"]["labels"];
    let index = labels[REPLICA_INDEX].as_str()?.parse().ok()?;
    // Pods of an MPIJob of v2beta1 have another role label.
    let role = labels[REPLICA_TYPE]
        .as_str()
        .or(labels[JOB_ROLE].as_str())?;
    Some((role, (index, pod)))
}

/// Parses `0-2,5`.
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
        let objects: Vec<(&str, &Value)> = pods.iter().map(|pod| ("Pod", pod)).collect();
        at_rest(job, &objects).join("\n")
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
        assert_eq!(wrong(&job, &[running(1)]), "", "one succeeded and is gone");
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
    fn i_18_what_an_ended_job_keeps_against_its_policy_is_told() {
        let ended = |policy: Option<&str>| {
            let mut status = counts(0, 1, 0);
            status["conditions"] = json!([{ "type": "Succeeded", "status": "True" }]);
            let mut job = job(1, &status);
            job["spec"]["runPolicy"] = json!({ "cleanPodPolicy": policy });
            job
        };
        let service = json!({ "metadata": { "name": "s" } });
        for (policy, phase, kept) in [
            (Some("All"), "Succeeded", true),
            (Some("Running"), "Running", true),
            (Some("Running"), "Succeeded", false),
            (Some("None"), "Running", false),
            (None, "Running", false),
        ] {
            let pod = pod(0, phase);
            let said = at_rest(&ended(policy), &[("Pod", &pod)]).join("\n");
            assert_eq!(said.contains("I-18"), kept, "{policy:?} {phase}: {said}");
        }
        let said = at_rest(&ended(Some("All")), &[("Service", &service)]);
        assert!(said[0].contains("I-18"), "{said:?}");
        let mut terminating = pod(0, "Succeeded");
        terminating["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert!(at_rest(&ended(Some("All")), &[("Pod", &terminating)]).is_empty());
    }

    #[test]
    fn i_07_pods_of_a_suspended_job_are_told() {
        let mut suspended = job(1, &json!({}));
        suspended["spec"]["runPolicy"] = json!({ "suspend": true });
        assert!(wrong(&suspended, &[pod(0, "Running")]).contains("I-07"));
        assert!(!wrong(&suspended, &[pod(0, "Succeeded")]).contains("I-07"));
    }

    #[test]
    fn i_09_pods_that_disagree_on_their_world_are_told() {
        let with = |index: u32, env: &[(&str, &str)]| {
            let mut pod = pod(index, "Running");
            let env = env
                .iter()
                .map(|(name, value)| json!({ "name": name, "value": value }));
            pod["spec"]["containers"] = json!([{ "env": env.collect::<Vec<_>>() }]);
            pod
        };
        let job = job(2, &counts(2, 0, 0));
        let pair = |a: &[(&str, &str)], b: &[(&str, &str)]| [with(0, a), with(1, b)];
        let (first, second) = ([("RANK", "0")], [("RANK", "1")]);
        assert_eq!(wrong(&job, &pair(&first, &second)), "");
        for pods in [
            pair(&first, &first),
            pair(&second, &[("RANK", "2")]),
            pair(&[("WORLD_SIZE", "2")], &[("WORLD_SIZE", "3")]),
            pair(&[("MASTER_ADDR", "a")], &[("MASTER_ADDR", "b")]),
            pair(
                &[("TF_CONFIG", r#"{"cluster":{"worker":["a"]}}"#)],
                &[("TF_CONFIG", r#"{"cluster":{"worker":["b"]}}"#)],
            ),
        ] {
            assert!(wrong(&job, &pods).contains("I-09"), "{pods:?}");
        }
        let mut edited = job.clone();
        edited["metadata"] = json!({ "generation": 2 });
        assert_eq!(
            wrong(&edited, &pair(&first, &first)),
            "",
            "pods of two specs"
        );
    }

    #[test]
    fn i_03_i_18_a_launcher_is_what_its_job_is() {
        let job = |running: &str, failed: u32| {
            json!({
                "spec": { "mpiReplicaSpecs": { "Launcher": { "replicas": 1 } } },
                "status": {
                    "conditions": [{ "type": "Running", "status": running }],
                    "replicaStatuses": { "Launcher": { "failed": failed } },
                },
            })
        };
        let batch = json!({ "status": { "failed": 1 } });
        assert!(at_rest(&job("True", 1), &[("Job", &batch)]).is_empty());
        assert!(at_rest(&job("True", 0), &[("Job", &batch)])[0].contains("I-18"));
        assert!(at_rest(&job("True", 0), &[])[0].contains("I-03"));
        assert!(at_rest(&job("False", 0), &[]).is_empty());
    }

    #[test]
    fn i_28_what_a_job_that_is_gone_has_left_is_told() {
        let (left, mut terminating) = (json!({ "metadata": { "name": "a" } }), json!({}));
        terminating["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(left_over(&[("Pod", &left), ("Pod", &terminating)]).len(), 1);
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
        let mut shut_down = with("Failed", "TerminationByKubelet");
        shut_down["status"]["reason"] = json!("Terminated");
        assert!(!counts_as_failure(&shut_down));
    }
}
