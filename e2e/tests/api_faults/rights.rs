//! MT-60 to MT-62: the shipped role is sufficient, every rule is used, and no forbidden right is granted.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result};
use e2e::{World, read};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::{Value, json};
use training_testkit::builders::{PYTORCH, pytorch_job};
use training_testkit::control_plane::{ControlPlane, PYTORCH_OPERATOR, workspace};
use training_testkit::kubelet::lockstep;
use training_testkit::manifest;
use training_testkit::operator::OperatorProcess;
use training_testkit::wait::{HANG, Seen, eventually};

use super::campaign::{all_requests_on, all_watches_on};
use super::driver::{FaultTest, JOB};
use super::life::Life;
use super::server::own;
use super::table::{
    F_03, F_06_JSON, F_12, F_14, F_15, F_16, F_18, F_18_STATUS, F_31, F_37, F_39, Fault,
};

/// The namespace of the operator's own role.
const OWN: &str = "trainyard-system";

type Right = (String, String, String);

/// Verbs, group and resources that the operator's token must not allow.
const FORBIDDEN: &[(&[&str], &str, &[&str])] = &[
    (
        &[
            "get", "list", "watch", "create", "update", "patch", "delete",
        ],
        "",
        &["secrets"],
    ),
    (
        &["get", "list", "create", "update", "patch", "delete"],
        "",
        &["configmaps"],
    ),
    (
        &["create"],
        "",
        &[
            "serviceaccounts/token",
            "pods/exec",
            "pods/attach",
            "pods/portforward",
        ],
    ),
    (
        &["create", "update", "delete"],
        "",
        &["serviceaccounts", "persistentvolumes"],
    ),
    (
        &["impersonate"],
        "",
        &["users", "groups", "serviceaccounts"],
    ),
    (
        &["get", "create", "update"],
        "",
        &["nodes", "nodes/proxy", "pods/proxy", "services/proxy"],
    ),
    (
        &["create", "update", "patch", "delete"],
        "",
        &["namespaces"],
    ),
    (
        &["update", "patch"],
        "",
        &[
            "pods",
            "pods/status",
            "pods/ephemeralcontainers",
            "services",
        ],
    ),
    (&["deletecollection"], "", &["pods", "services", "events"]),
    (
        &["create", "update", "patch", "delete", "bind", "escalate"],
        "rbac.authorization.k8s.io",
        &[
            "roles",
            "rolebindings",
            "clusterroles",
            "clusterrolebindings",
        ],
    ),
    (
        &["create", "update", "patch", "delete"],
        "admissionregistration.k8s.io",
        &[
            "validatingwebhookconfigurations",
            "mutatingwebhookconfigurations",
        ],
    ),
    (
        &["create", "update", "patch", "delete"],
        "apiextensions.k8s.io",
        &["customresourcedefinitions"],
    ),
    (
        &["create", "update", "patch", "deletecollection"],
        "kubeflow.org",
        &["pytorchjobs"],
    ),
    (&["*"], "*", &["*"]),
];

/// The rights that the shipped roles grant, as group, resource and verb.
fn granted() -> Result<BTreeSet<Right>> {
    let mut rights = BTreeSet::new();
    for file in manifest::files(&workspace().join("manifests/pytorch-operator"))? {
        for object in manifest::documents(&file)? {
            let of_operator = object["metadata"]["name"] == "pytorch-operator"
                || object["metadata"]["name"] == "pytorch-operator-leader";
            let role = object["kind"] == "ClusterRole" || object["kind"] == "Role";
            if !role || !of_operator {
                continue;
            }
            for rule in object["rules"].as_array().context("a role without rules")? {
                let list = |key: &str| {
                    let all = rule[key].as_array().into_iter().flatten();
                    all.filter_map(Value::as_str)
                        .map(str::to_owned)
                        .collect::<Vec<_>>()
                };
                for group in list("apiGroups") {
                    for resource in list("resources") {
                        let right = |verb| (group.clone(), resource.clone(), verb);
                        rights.extend(list("verbs").into_iter().map(right));
                    }
                }
            }
        }
    }
    Ok(rights)
}

/// The operator's requests from the audit log, and those that were denied.
fn asked(log: &std::path::Path) -> Result<(BTreeSet<Right>, Vec<String>)> {
    let (mut used, mut denied) = (BTreeSet::new(), Vec::new());
    let text = std::fs::read(log)?;
    for line in text.split(|byte| *byte == b'\n') {
        let line = String::from_utf8_lossy(line);
        if !line.contains(PYTORCH_OPERATOR) {
            continue;
        }
        // The last line may be incomplete.
        let Ok(entry) = serde_json::from_str::<Value>(&line) else {
            continue;
        };
        if entry["user"]["username"] != PYTORCH_OPERATOR {
            continue;
        }
        let reference = &entry["objectRef"];
        let part = |key: &str| reference[key].as_str().unwrap_or_default().to_owned();
        let resource = match part("subresource").as_str() {
            "" => part("resource"),
            subresource => format!("{}/{subresource}", part("resource")),
        };
        let verb = entry["verb"].as_str().unwrap_or_default().to_owned();
        if entry["annotations"]["authorization.k8s.io/decision"] == "forbid" {
            denied.push(format!(
                "{verb} {resource} {}: {}",
                part("name"),
                entry["requestURI"]
            ));
        }
        used.insert((part("apiGroup"), resource, verb));
    }
    Ok((used, denied))
}

/// A life cycle that uses all of the role's rights.
async fn whole_life(world: &World) -> Result<()> {
    let kubeconfig = world.control.kubeconfig(PYTORCH_OPERATOR).await?;
    let options = world
        .options(&kubeconfig)
        .flag("leader-elect", "true")
        .flag("leader-election-id", "pytorch-operator.trainyard.dev")
        .flag("leader-election-namespace", OWN)
        .flag("lease-duration", "3s")
        .flag("lease-renew-deadline", "2s")
        .flag("lease-retry-period", "500ms")
        .flag("events", "full");
    let mut operator = OperatorProcess::start(options).await?;
    let namespace = world.namespace();
    // A foreign pod has the name, so the operator must read its owner.
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), namespace);
    let services: Api<k8s_openapi::api::core::v1::Service> =
        Api::namespaced(world.client.clone(), namespace);
    let pod = json!({
        "metadata": { "name": "pt-worker-0" }, "spec": { "containers": [{ "name": "c", "image": "i" }] },
    });
    let service = json!({
        "metadata": { "name": "one-master-0" }, "spec": { "clusterIP": "None" },
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?)
        .await?;
    services
        .create(&PostParams::default(), &serde_json::from_value(service)?)
        .await?;
    let job = FaultTest::job()
        .run_policy("ttlSecondsAfterFinished", 0)
        .build();
    world.jobs.create(&job).await?;
    let gone = DeleteParams::default().grace_period(0);
    world.jobs.until_true(JOB, "Stalled").await?;
    pods.delete("pt-worker-0", &gone).await?;
    world
        .jobs
        .create(&pytorch_job("one").master().build())
        .await?;
    world.jobs.until_true("one", "Stalled").await?;
    services.delete("one-master-0", &gone).await?;
    read::until_children(
        &world.client,
        namespace,
        "one",
        &["one-master-0"],
        &["one-master-0"],
    )
    .await?;
    world.kubelet.until_pods(namespace, JOB, 3).await?;
    world.kubelet.all_running(namespace, JOB).await?;
    world.jobs.until_true(JOB, "Running").await?;
    // Repeated equal events are counted on one object.
    for _ in 0..3 {
        suspend(world, true, "Suspended", 0).await?;
        suspend(world, false, "Created", 3).await?;
    }
    world.kubelet.all_running(namespace, JOB).await?;
    world.jobs.until_true(JOB, "Running").await?;
    world.kubelet.all_succeeded(namespace, JOB).await?;
    eventually("the job to be deleted", HANG, async || {
        Ok(match world.jobs.get(JOB).await {
            Err(_) => Seen::Yes(()),
            Ok(job) => Seen::NotYet(job["status"].to_string()),
        })
    })
    .await?;
    autoscaled(world).await?;
    // A graceful end, which releases the lease.
    operator.terminate(Duration::from_secs(20)).await?;
    operator.assert_no_panic()
}

async fn suspend(world: &World, suspend: bool, condition: &str, pods: usize) -> Result<()> {
    let change = json!({ "spec": { "runPolicy": { "suspend": suspend } } });
    world.jobs.merge(JOB, &change).await?;
    world.jobs.until_true(JOB, condition).await?;
    world
        .kubelet
        .until_pods(world.namespace(), JOB, pods)
        .await?;
    Ok(())
}

/// An elastic job with metrics has an autoscaler, which follows edits and is deleted with the job.
async fn autoscaled(world: &World) -> Result<()> {
    let hpas: Api<k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler> =
        Api::namespaced(world.client.clone(), world.namespace());
    let foreign = json!({
        "metadata": { "name": "grows" },
        "spec": { "maxReplicas": 2, "scaleTargetRef": {
            "apiVersion": "apps/v1", "kind": "Deployment", "name": "nothing",
        }},
    });
    hpas.create(&PostParams::default(), &serde_json::from_value(foreign)?)
        .await?;
    let metrics = json!([{
        "type": "Resource",
        "resource": { "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 80 } },
    }]);
    let elastic = json!({ "minReplicas": 1, "maxReplicas": 3, "metrics": metrics });
    let job = pytorch_job("grows")
        .workers(2)
        .set("/spec/elasticPolicy", elastic)
        .build();
    world.jobs.create(&job).await?;
    world
        .kubelet
        .until_pods(world.namespace(), "grows", 2)
        .await?;
    world.jobs.until_true("grows", "Stalled").await?;
    hpas.delete("grows", &DeleteParams::default()).await?;
    let until_max = async |max: i32| {
        eventually("the autoscaler", HANG, async || {
            let there = hpas.get("grows").await?.spec.max_replicas;
            Ok(if there == max {
                Seen::Yes(())
            } else {
                Seen::NotYet(there.to_string())
            })
        })
        .await
    };
    until_max(3).await?;
    world
        .jobs
        .merge(
            "grows",
            &json!({ "spec": { "elasticPolicy": { "maxReplicas": 4 } } }),
        )
        .await?;
    until_max(4).await?;
    world
        .kubelet
        .all_running(world.namespace(), "grows")
        .await?;
    world.jobs.until_true("grows", "Running").await?;
    world
        .kubelet
        .all_succeeded(world.namespace(), "grows")
        .await?;
    world.jobs.until_true("grows", "Succeeded").await?;
    eventually("the autoscaler to be gone", HANG, async || {
        Ok(match hpas.get_opt("grows").await? {
            None => Seen::Yes(()),
            Some(_) => Seen::NotYet("still there".into()),
        })
    })
    .await
}

#[tokio::test]
async fn mt_60_mt_61_the_role_is_enough_and_none_of_it_is_idle() -> Result<()> {
    let Some(world) = World::start("rights", lockstep()).await? else {
        return Ok(());
    };
    whole_life(&world).await?;
    world.control.audit()?.mark().await?;
    let (used, denied) = asked(&world.control.scratch().join("audit.log"))?;
    assert_eq!(
        denied,
        Vec::<String>::new(),
        "MT-60: asked for and not granted"
    );
    let granted = granted()?;
    anyhow::ensure!(granted.len() > 15, "{granted:?}");
    // The API server's admission checks these on the operator's behalf, where that check is enabled; no request shows it.
    let by_admission = |right: &&Right| right.1.ends_with("/finalizers") && right.2 == "update";
    let idle: Vec<&Right> = granted
        .iter()
        .filter(|right| !used.contains(*right) && !by_admission(right))
        .collect();
    assert_eq!(idle, Vec::<&Right>::new(), "MT-61: granted and never used");
    Ok(())
}

#[tokio::test]
async fn mt_62_what_the_operator_must_not_do_it_may_not() -> Result<()> {
    let control = ControlPlane::shared().await?;
    let client = control
        .client(training_testkit::control_plane::ADMIN)
        .await?;
    let reviews: Api<SubjectAccessReview> = Api::all(client);
    let may = async |namespace: &str, verb: &str, group: &str, resource: &str| {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let review = serde_json::from_value(json!({ "metadata": {}, "spec": {
            "user": PYTORCH_OPERATOR,
            "groups": [
                "system:serviceaccounts", format!("system:serviceaccounts:{OWN}"), "system:authenticated",
            ],
            "resourceAttributes": {
                "namespace": namespace, "verb": verb, "group": group,
                "resource": resource, "subresource": subresource,
            },
        }}))?;
        let answer = reviews.create(&PostParams::default(), &review).await?;
        anyhow::Ok(answer.status.is_some_and(|status| status.allowed))
    };
    // Proves that the check works: the operator has the rights that it needs.
    anyhow::ensure!(may("team", "create", "", "pods").await?);
    let mut allowed = Vec::new();
    for namespace in ["team", "kube-system", OWN] {
        for (verbs, group, resources) in FORBIDDEN {
            for verb in *verbs {
                for resource in *resources {
                    if may(namespace, verb, group, resource).await? {
                        allowed.push(format!("{verb} {group}/{resource} in {namespace}"));
                    }
                }
            }
        }
        if namespace != OWN && may(namespace, "update", "coordination.k8s.io", "leases").await? {
            allowed.push(format!("update leases in {namespace}"));
        }
    }
    assert_eq!(allowed, Vec::<String>::new());
    Ok(())
}

/// Faults after which the operator sends reads, creates or deletes that it needs only then.
const TROUBLE: [&Fault; 8] = [
    &F_03,
    &F_06_JSON,
    &F_12,
    &F_14,
    &F_15,
    &F_16,
    &F_18,
    &F_18_STATUS,
];

#[tokio::test]
async fn mt_60_no_fault_makes_the_operator_ask_for_more() -> Result<()> {
    // A separate audit log, without the deliberate requests of other tests.
    let Some(control) = own().await? else {
        return Ok(());
    };
    let life = Life(PYTORCH);
    all_requests_on(control, life, &TROUBLE).await?;
    all_watches_on(control, life, &[&F_31, &F_37, &F_39]).await?;
    control.audit()?.mark().await?;
    let (used, denied) = asked(&control.scratch().join("audit.log"))?;
    assert_eq!(denied, Vec::<String>::new());
    // Proves that the log covers these life cycles: after a lost answer the operator reads the pod.
    let looked = (String::new(), "pods".to_owned(), "get".to_owned());
    anyhow::ensure!(used.contains(&looked), "{used:?}");
    Ok(())
}
