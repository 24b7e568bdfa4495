//! The harness against a real API server, without any operator: the operators' tests are only as good as the harness.

use std::time::Duration;

use anyhow::Result;
use e2e::log::assert_plain_fields;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use training_testkit::audit::Tally;
use training_testkit::auditor::Auditor;
use training_testkit::builders::{pytorch_job, pytorch_jobs};
use training_testkit::control_plane::{
    ADMIN, ControlPlane, DRIVER, Options, PYTORCH_OPERATOR, client_from,
};
use training_testkit::job::Jobs;
use training_testkit::kubelet::{Act, Kubelet, State, Step, lockstep};
use training_testkit::manifest;
use training_testkit::namespace::Namespace;
use training_testkit::proxy::{Action, Call, Proxy, Rule};
use training_testkit::snapshot::Snapshot;
use training_testkit::wait::{HANG, Seen, eventually};

/// A CRD that accepts any job, and a role that exists without the controller that aggregates the usual ones.
fn stand_ins() -> Result<Vec<Value>> {
    Ok(vec![
        e2e::loose::definition()?,
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": { "name": "stand-in" },
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin",
            },
            "subjects": [{
                "kind": "ServiceAccount", "name": "pytorch-operator",
                "namespace": "trainyard-system",
            }],
        }),
    ])
}

async fn stand_in_plane(options: Options) -> Result<(ControlPlane, Namespace, Client)> {
    let control = ControlPlane::start(options).await?;
    let client = control.client(ADMIN).await?;
    manifest::apply(&client, stand_ins()?).await?;
    let namespace = Namespace::create(&control, "harness").await?;
    Ok((control, namespace, client))
}

/// A pod or Service as an operator would create it.
fn child(job: &Value, kind: &str, role: &str, index: u32) -> Value {
    let name = job["metadata"]["name"].as_str().unwrap_or_default();
    let labels = json!({
        "training.kubeflow.org/operator-name": "pytorchjob-controller",
        "training.kubeflow.org/job-name": name,
        "training.kubeflow.org/replica-type": role,
        "training.kubeflow.org/replica-index": index.to_string(),
    });
    let spec = if kind == "Pod" {
        json!({
            "containers": [{ "name": "pytorch", "image": "i" }, { "name": "side", "image": "i" }],
            "initContainers": [{ "name": "init", "image": "i" }],
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
        })
    } else {
        json!({ "clusterIP": "None", "selector": labels })
    };
    json!({
        "apiVersion": "v1", "kind": kind, "spec": spec,
        "metadata": {
            "name": format!("{name}-{role}-{index}"), "labels": labels,
            "ownerReferences": [{
                "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": name,
                "uid": job["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true,
            }],
        },
    })
}

async fn create(client: &Client, namespace: &str, object: &Value) -> Result<()> {
    let post = PostParams::default();
    if object["kind"] == "Pod" {
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        pods.create(&post, &serde_json::from_value(object.clone())?)
            .await?;
    } else {
        let services: Api<Service> = Api::namespaced(client.clone(), namespace);
        services
            .create(&post, &serde_json::from_value(object.clone())?)
            .await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_kubelet_plays_every_state_and_finishes_deletes() -> Result<()> {
    let options = Options {
        controller_manager: true,
        ..Options::default()
    };
    let (control, namespace, client) = stand_in_plane(options).await?;
    let jobs = Jobs::pytorch(client.clone(), &namespace.name);
    let job = jobs.create(&pytorch_job("j").workers(4).build()).await?;
    let kubelet = Kubelet::start(
        control.client(DRIVER).await?,
        &[&namespace.name],
        lockstep(),
    )
    .await?;
    let auditor = Auditor::start(client.clone(), &namespace.name, &pytorch_jobs()).await?;
    for index in 0..4 {
        create(
            &client,
            &namespace.name,
            &child(&job, "Pod", "worker", index),
        )
        .await?;
        create(
            &client,
            &namespace.name,
            &child(&job, "Service", "worker", index),
        )
        .await?;
    }
    kubelet.until_pods(&namespace.name, "j", 4).await?;
    assert_eq!(kubelet.all_running(&namespace.name, "j").await?, 4);
    let first = Snapshot::take(client.clone(), &namespace.name, &pytorch_jobs(), "j").await?;
    kubelet
        .restart_in_place(&namespace.name, "j-worker-0", 2)
        .await?;
    let failed = State::Failed {
        exit_code: 137,
        message: "killed".into(),
    };
    kubelet.set(&namespace.name, "j-worker-0", &failed).await?;
    kubelet
        .set(&namespace.name, "j-worker-1", &State::Evicted)
        .await?;
    kubelet.disappear(&namespace.name, "j-worker-2").await?;
    disrupt(&kubelet, &namespace.name, "j-worker-3").await?;
    let left = kubelet.until_pods(&namespace.name, "j", 2).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace.name);
    let pod = pods.get("j-worker-0").await?;
    let status = &pod
        .status
        .as_ref()
        .and_then(|s| s.container_statuses.as_ref())
        .unwrap()[0];
    let ended = status
        .state
        .as_ref()
        .and_then(|s| s.terminated.as_ref())
        .unwrap();
    assert_eq!(
        (ended.exit_code, ended.message.as_deref()),
        (137, Some("killed"))
    );
    let last = Snapshot::take(client.clone(), &namespace.name, &pytorch_jobs(), "j").await?;
    let diff = first.diff(&last);
    assert!(
        diff.contains("- pod/j-worker-3\n") && diff.contains("Evicted"),
        "{diff}"
    );
    kubelet.assert_no_errors()?;
    auditor.assert_clean().await?;
    let summary = auditor.summary();
    assert_eq!(
        summary.values().map(|churn| churn.creates).sum::<u32>(),
        8,
        "{summary:?}"
    );
    assert_eq!(
        summary.values().map(|churn| churn.deletes).sum::<u32>(),
        2,
        "{summary:?}"
    );
    eprintln!(
        "{} pods left, {} events audited",
        left.len(),
        auditor.events()
    );
    Ok(())
}

/// A disrupted pod that has a node stays in the API until a kubelet removes it.
async fn disrupt(kubelet: &Kubelet, namespace: &str, pod: &str) -> Result<()> {
    kubelet.finish_deletes(false);
    kubelet.set(namespace, pod, &State::NodeLost).await?;
    kubelet
        .disrupt(namespace, pod, "EvictionByEvictionAPI")
        .await?;
    eventually("the pod to be terminating", HANG, async || {
        let pods = kubelet.pods(namespace, "j");
        let deleting = pods.iter().any(|pod| pod.deleting);
        Ok(if deleting {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{pods:?}"))
        })
    })
    .await?;
    kubelet.finish_deletes(true);
    Ok(())
}

#[tokio::test]
async fn i01_to_i24_the_auditor_sees_what_a_bad_operator_does() -> Result<()> {
    let (_control, namespace, client) = stand_in_plane(Options::default()).await?;
    let jobs = Jobs::pytorch(client.clone(), &namespace.name);
    let job = jobs.create(&pytorch_job("bad").workers(2).build()).await?;
    let auditor = Auditor::start(client.clone(), &namespace.name, &pytorch_jobs()).await?;
    // Two pods of one index, one of them with a wrong name.
    create(&client, &namespace.name, &child(&job, "Pod", "worker", 0)).await?;
    let mut twin = child(&job, "Pod", "worker", 0);
    twin["metadata"]["name"] = json!("bad-twin");
    create(&client, &namespace.name, &twin).await?;
    let mut orphan = child(&job, "Service", "worker", 1);
    orphan["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("ownerReferences");
    create(&client, &namespace.name, &orphan).await?;
    // A finished job without a completion time, and a pod created later.
    let conditions = json!([{
        "type": "Succeeded", "status": "True", "reason": "Done", "message": "m",
        "lastTransitionTime": "2020-01-01T00:00:00Z",
    }]);
    let resource = pytorch_jobs();
    let api: Api<kube::api::DynamicObject> =
        Api::namespaced_with(client.clone(), &namespace.name, &resource);
    let end = json!({ "status": { "conditions": conditions } });
    let merge = kube::api::Patch::Merge(&end);
    api.patch_status("bad", &kube::api::PatchParams::default(), &merge)
        .await?;
    create(&client, &namespace.name, &child(&job, "Pod", "worker", 1)).await?;
    eventually("every violation", HANG, async || {
        let violations = auditor.violations().join("\n");
        let mut ids = ["I-01", "I-02", "I-06", "I-17", "I-24"].iter();
        Ok(match ids.find(|id| !violations.contains(**id)) {
            None => Seen::Yes(()),
            Some(id) => Seen::NotYet(format!("{id} is missing in\n{violations}")),
        })
    })
    .await?;
    auditor.assert_clean().await.unwrap_err();
    Ok(())
}

#[tokio::test]
async fn the_proxy_keeps_credentials_and_streams_and_the_audit_log_agrees() -> Result<()> {
    let options = Options {
        audit: true,
        ..Options::default()
    };
    let (control, namespace, client) = stand_in_plane(options).await?;
    let audit = control.audit()?;
    let start = audit.mark().await?;
    let proxy = Proxy::start(&control.kubeconfig(ADMIN).await?).await?;
    let kubeconfig = control.scratch().join("proxy.kubeconfig");
    proxy.write_kubeconfig(&kubeconfig, &control.token(PYTORCH_OPERATOR).await?)?;
    let through = client_from(&kubeconfig).await?;
    let jobs = Jobs::pytorch(client.clone(), &namespace.name);
    let job = jobs.create(&pytorch_job("j").workers(2).build()).await?;

    // A kubelet behind the proxy sees pods as they are created: the watch isn't delayed.
    let one_step = |_: &training_testkit::kubelet::Replica| {
        vec![Step::after_ms(1, Act::Become(State::Running))]
    };
    let lost = Rule::new("lost", Action::ResetAfter, |call: &Call| {
        call.is("create", "pods")
    })
    .nth(1);
    proxy.add(&lost);
    let mut applied = proxy.announce("applied", |call| call.is("create", "services"));
    let pod = child(&job, "Pod", "worker", 0);
    create(&through, &namespace.name, &pod).await.unwrap_err();
    assert_eq!(lost.hits(), 1);
    let again = create(&through, &namespace.name, &pod).await.unwrap_err();
    assert!(format!("{again:#}").contains("AlreadyExists"), "{again:#}");
    let service = child(&job, "Service", "worker", 0);
    let (made, ()) = tokio::join!(create(&through, &namespace.name, &service), async {
        let write = applied.recv().await.unwrap();
        let services: Api<Service> = Api::namespaced(client.clone(), &namespace.name);
        services.get(&write.call.name).await.unwrap();
        write.release();
    });
    made?;

    let kubelet = Kubelet::start(
        control.client(DRIVER).await?,
        &[&namespace.name],
        std::sync::Arc::new(one_step),
    )
    .await?;
    let pods: Api<Pod> = Api::namespaced(through.clone(), &namespace.name);
    eventually("the pod to run", HANG, async || {
        let phase = pods
            .get("j-worker-0")
            .await?
            .status
            .and_then(|s| s.phase)
            .unwrap_or_default();
        Ok(if phase == "Running" {
            Seen::Yes(())
        } else {
            Seen::NotYet(phase)
        })
    })
    .await?;
    kubelet.assert_no_errors()?;

    let quiet = Duration::from_millis(500);
    audit
        .until_quiet(PYTORCH_OPERATOR, |_| true, quiet, HANG)
        .await?;
    let seen = audit.by_user(start, PYTORCH_OPERATOR).await?;
    let tally = Tally::of(&seen);
    eprintln!("the API server saw from the operator's identity:\n{tally}");
    assert_eq!(tally.0["create pods"], 2);
    assert_eq!(tally.0["create services"], 1);
    let counted: usize = tally.0.values().sum();
    assert_eq!(
        counted,
        proxy.counts().values().sum::<usize>(),
        "{:?}",
        proxy.counts()
    );
    Ok(())
}

#[tokio::test]
async fn the_shipped_manifests_install_and_give_the_operator_its_rights() -> Result<()> {
    let control = ControlPlane::shared().await?;
    let namespace = Namespace::create(control, "shipped").await?;
    let client = control.client(ADMIN).await?;
    let jobs = Jobs::pytorch(client, &namespace.name);
    let job = jobs
        .create(&pytorch_job("j").master().workers(2).build())
        .await?;
    let operator = control.client(PYTORCH_OPERATOR).await?;
    create(&operator, &namespace.name, &child(&job, "Pod", "worker", 0)).await?;
    create(
        &operator,
        &namespace.name,
        &child(&job, "Service", "worker", 0),
    )
    .await?;
    // It may not write the spec of a job.
    let as_operator = Jobs::pytorch(operator, &namespace.name);
    as_operator
        .merge("j", &json!({ "spec": { "nprocPerNode": "2" } }))
        .await
        .unwrap_err();
    Ok(())
}

#[test]
fn a_log_field_in_debug_form_is_found_and_a_quoted_text_is_not() {
    for value in [
        "Some(1)",
        "None",
        r#"["a"]"#,
        "[(1, 2)]",
        r#""a""#,
        "Err(Gone)",
    ] {
        let line = json!({ "message": "m", "spans": [{ "name": "reconcile", "job": value }] });
        let log = format!("Error: plain text\n{line}\n");
        assert!(assert_plain_fields(&log).is_err(), "{value}");
    }
    let line = json!({
        "message": "cleanPodPolicy is None", "error": r#"["a"]"#, "fault": "Some(1)", "job": "a/b", "objects": 3,
    });
    assert_plain_fields(&line.to_string()).unwrap();
}
