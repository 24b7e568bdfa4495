//! The deployed operator itself: its rights, and its crashes.

use std::collections::BTreeMap;

use anyhow::Result;
use e2e::pods::{
    OPERATORS, Site, UNTIL_GO, Weight, container, created, no_longer_running, pair, ready_operator,
    shell, succeeded,
};
use e2e::read;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::Client;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::{Value, json};
use training_testkit::control_plane::PYTORCH_OPERATOR;
use training_testkit::job::conditions;

/// Verb, group, resource and subresource of granted rights.
const NEEDED: &[(&str, &str, &str, &str)] = &[
    ("list", "kubeflow.org", "pytorchjobs", ""),
    ("watch", "kubeflow.org", "pytorchjobs", ""),
    ("patch", "kubeflow.org", "pytorchjobs", "status"),
    ("create", "", "pods", ""),
    ("delete", "", "services", ""),
    ("create", "", "events", ""),
];

/// The same of rights that it must not have.
const REFUSED: &[(&str, &str, &str, &str)] = &[
    ("get", "", "secrets", ""),
    ("list", "", "secrets", ""),
    ("create", "", "pods", "exec"),
    ("get", "", "pods", "log"),
    ("patch", "", "pods", ""),
    ("deletecollection", "", "pods", ""),
    ("get", "", "nodes", ""),
    ("get", "", "configmaps", ""),
    ("create", "", "serviceaccounts", "token"),
    ("impersonate", "", "users", ""),
    ("impersonate", "", "serviceaccounts", ""),
    ("create", "rbac.authorization.k8s.io", "roles", ""),
    ("escalate", "rbac.authorization.k8s.io", "clusterroles", ""),
    (
        "create",
        "rbac.authorization.k8s.io",
        "clusterrolebindings",
        "",
    ),
    ("update", "kubeflow.org", "pytorchjobs", ""),
    ("create", "kubeflow.org", "pytorchjobs", ""),
    ("create", "batch", "jobs", ""),
    ("*", "*", "*", ""),
];

/// The authorizer's answer, as in `kubectl auth can-i --as`.
async fn may(client: &Client, right: (&str, &str, &str, &str)) -> Result<bool> {
    let (verb, group, resource, subresource) = right;
    let review = serde_json::from_value(json!({ "metadata": {}, "spec": {
        "user": PYTORCH_OPERATOR,
        "groups": [
            "system:serviceaccounts", format!("system:serviceaccounts:{OPERATORS}"),
            "system:authenticated",
        ],
        "resourceAttributes": {
            "namespace": "default", "verb": verb, "group": group,
            "resource": resource, "subresource": subresource,
        },
    }}))?;
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    let answer = reviews.create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

#[tokio::test]
async fn mt_65_i_49_the_operator_is_restricted_and_may_do_only_what_it_needs() -> Result<()> {
    // One test at a time: the other one kills the operator.
    let site = Site::open("rights", Weight::Heavy).await?;
    let client = &site.client;
    let namespace = Api::<Namespace>::all(client.clone()).get(OPERATORS).await?;
    let labels = namespace.metadata.labels.unwrap_or_default();
    let level = labels.get("pod-security.kubernetes.io/enforce");
    assert_eq!(level.map(String::as_str), Some("restricted"));

    let pod = ready_operator(client).await?;
    assert_eq!(pod["spec"]["serviceAccountName"], "pytorch-operator");
    let security = &pod["spec"]["containers"][0]["securityContext"];
    assert_eq!(security["readOnlyRootFilesystem"], true, "{security}");
    let mut user = "out of sight".to_owned();
    if site.cluster.is_open() {
        let pid = site.cluster.first_process(container(&pod)?)?;
        let status = format!("/proc/{pid}/status");
        let status = site.cluster.inside(&["cat", &status])?;
        let of = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default().trim().to_owned()
        };
        of("Uid:")
            .split_whitespace()
            .next()
            .unwrap_or_default()
            .clone_into(&mut user);
        assert_eq!(user, "65532");
        assert_eq!(of("CapEff:"), "0000000000000000");
        assert_eq!(of("NoNewPrivs:"), "1");
    }

    let mut wrong = Vec::new();
    for right in NEEDED {
        if !may(client, *right).await? {
            wrong.push(("lacks", right));
        }
    }
    for right in REFUSED {
        if may(client, *right).await? {
            wrong.push(("has", right));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
    let saw = format!(
        "{} rights granted, {} refused, user {user}",
        NEEDED.len(),
        REFUSED.len()
    );
    site.finish(&saw).await
}

fn uids(pods: &[Value]) -> BTreeMap<String, Value> {
    let uid = |pod: &Value| (read::name(pod), pod["metadata"]["uid"].clone());
    pods.iter().map(uid).collect()
}

#[tokio::test]
async fn a_running_job_outlives_its_operator() -> Result<()> {
    let site = Site::open("outlives", Weight::Heavy).await?;
    let running = pair("pt", shell(UNTIL_GO), shell(UNTIL_GO)).workers(2);
    let worker = "/spec/pytorchReplicaSpecs/Worker/template/spec";
    let running = running.set(worker, shell(UNTIL_GO)).build();
    site.jobs.create(&running).await?;
    let before = uids(&site.until_running("pt", 3).await?);

    let pod = ready_operator(&site.client).await?;
    let operators: Api<Pod> = Api::namespaced(site.client.clone(), OPERATORS);
    operators
        .delete(&read::name(&pod), &DeleteParams::default().grace_period(0))
        .await?;
    // An operator that has finished a new job has also seen all other objects.
    let small = |name: &str| pair(name, shell("true"), shell("true")).build();
    site.jobs.create(&small("second")).await?;
    site.until_true("second", "Succeeded").await?;
    let next = ready_operator(&site.client).await?;
    assert_ne!(read::name(&next), read::name(&pod));
    assert_eq!(uids(&site.until_running("pt", 3).await?), before);

    let mut saw = "its pod was deleted".to_owned();
    if site.cluster.is_open() {
        site.cluster.kill(container(&next)?)?;
        site.jobs.create(&small("third")).await?;
        site.until_true("third", "Succeeded").await?;
        let again = ready_operator(&site.client).await?;
        assert_eq!(read::name(&again), read::name(&next));
        assert_ne!(container(&again)?, container(&next)?);
        assert_eq!(uids(&site.until_running("pt", 3).await?), before);
        saw.push_str(", its process killed");
    } else {
        saw.push_str(", its process is out of reach");
    }

    site.go().await?;
    let job = site.until_true("pt", "Succeeded").await?;
    assert_eq!(
        conditions(&job),
        [created("pt"), no_longer_running("pt"), succeeded("pt")]
    );
    let summary = site.summary();
    for (object, churn) in &summary {
        assert_eq!((churn.creates, churn.deletes), (1, 0), "{object}");
    }
    site.finish(&format!("{saw}; {} objects, each made once", summary.len()))
        .await
}
