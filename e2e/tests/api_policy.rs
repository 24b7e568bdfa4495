//! The shipped policies on a real API server: their warnings, and the namespaces in which they deny writes.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::{Event, Namespace as NamespaceObject, Pod, Service};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use training_testkit::builders::{
    Job, KINDS, Kind, MPI, PYTORCH, SPARK_OPERATOR, TRAINING, pytorch_job,
};
use training_testkit::control_plane::{
    ADMIN, ControlPlane, PYTORCH_OPERATOR, target_directory, workspace,
};
use training_testkit::job::Jobs;
use training_testkit::kubelet::lockstep;
use training_testkit::manifest;
use training_testkit::namespace::Namespace;
use training_testkit::wait::{HANG, Seen, eventually};

/// The namespace that the operator is installed in.
const OWN: &str = "trainyard-system";

/// Submits a job as a dry run and returns the warnings that come with the answer.
async fn warnings(client: &Client, namespace: &str, job: Job) -> Result<Vec<String>> {
    warnings_of(client, namespace, &PYTORCH, job).await
}

/// Same as [`warnings`] for a job of any kind.
async fn warnings_of(
    client: &Client,
    namespace: &str,
    kind: &Kind,
    job: Job,
) -> Result<Vec<String>> {
    let request = http::Request::post(format!(
        "/apis/{}/{}/namespaces/{namespace}/{}?dryRun=All",
        kind.group, kind.version, kind.plural
    ))
    .header(http::header::CONTENT_TYPE, "application/json")
    .body(serde_json::to_vec(&job.build())?.into())?;
    let answer = client.send(request).await?;
    ensure!(answer.status().is_success(), "{}", answer.status());
    let values = answer.headers().get_all(http::header::WARNING);
    Ok(values
        .iter()
        .map(|v| String::from_utf8_lossy(v.as_bytes()).into_owned())
        .collect())
}

/// The API server reads new policies a moment after they are stored.
async fn until_policies_hold(client: &Client, namespace: &str) -> Result<()> {
    let odd = || job().run_policy("cleanPodPolicy", "Sometimes");
    eventually("the policies to hold", HANG, async || {
        let seen = warnings(client, namespace, odd()).await?;
        let refused = create::<Value>(client, "kube-system", &job().build())
            .await
            .is_err();
        Ok(if !seen.is_empty() && refused {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{seen:?}, refused: {refused}"))
        })
    })
    .await
}

fn job() -> Job {
    pytorch_job("pt").master().workers(1)
}

/// Sends an object as a dry run: policies apply, nothing is stored.
async fn create<T: DeserializeOwned>(
    client: &Client,
    namespace: &str,
    object: &Value,
) -> Result<T> {
    let kind = object["kind"].as_str().unwrap_or_default();
    let plural = match (kind, TRAINING.iter().find(|k| k.name == kind)) {
        (_, Some(kind)) => kind.plural,
        ("Lease", _) => "leases",
        ("Service", _) => "services",
        ("Event", _) => "events",
        ("Secret", _) => "secrets",
        ("NetworkPolicy", _) => "networkpolicies",
        _ => "pods",
    };
    let api = match object["apiVersion"].as_str() {
        None | Some("v1") => "api/v1".to_owned(),
        Some(group) => format!("apis/{group}"),
    };
    let request = http::Request::post(format!("/{api}/namespaces/{namespace}/{plural}?dryRun=All"))
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(serde_json::to_vec(object)?)?;
    Ok(client.request(request).await?)
}

async fn prepared(prefix: &str) -> Result<(&'static ControlPlane, Namespace, Client)> {
    let control = ControlPlane::shared().await?;
    let namespace = Namespace::create(control, prefix).await?;
    let client = control.client(ADMIN).await?;
    until_policies_hold(&client, &namespace.name).await?;
    Ok((control, namespace, client))
}

#[tokio::test]
async fn a_valid_job_is_accepted_without_a_warning() -> Result<()> {
    let (_, namespace, client) = prepared("plain").await?;
    let elastic = pytorch_job("el").workers(2).set(
        "/spec/elasticPolicy",
        json!({"minReplicas": 1, "maxReplicas": 3, "rdzvBackend": "c10d"}),
    );
    for job in [
        job(),
        elastic.clone(),
        elastic.run_policy("managedBy", "kubeflow.org/training-operator"),
    ] {
        assert_eq!(
            warnings(&client, &namespace.name, job).await?,
            Vec::<String>::new()
        );
    }
    Ok(())
}

/// Submits a job that is accepted with one warning, which contains this text.
async fn warns(prefix: &str, job: Job, text: &str) -> Result<()> {
    let (_, namespace, client) = prepared(prefix).await?;
    let warnings = warnings(&client, &namespace.name, job).await?;
    let [warning] = warnings.as_slice() else {
        anyhow::bail!("{warnings:?}")
    };
    ensure!(warning.contains(text), "{warning}");
    Ok(())
}

#[tokio::test]
async fn b_038_b_039_b_083_b_084_b_096_b_110_b_127_what_has_no_effect_in_a_job_of_any_kind_is_warned_of()
-> Result<()> {
    let (control, namespace, client) = prepared("anykind").await?;
    let versions = [
        Kind {
            version: "v1",
            ..MPI
        },
        MPI,
    ];
    for kind in KINDS.into_iter().chain(versions) {
        control.install(kind.operator).await?;
        let job = || kind.small_job("pt", 1);
        // The API server reads new policies a moment after they are stored.
        let template = format!("/spec/{}/Worker/template", kind.replica_map);
        let with = |field: &str, value| job().set(&format!("{template}/{field}"), value);
        let replaced = || with("spec/restartPolicy", json!("Never"));
        eventually(
            &format!("the policies of {}", kind.name),
            HANG,
            async || {
                let seen = warnings_of(&client, &namespace.name, &kind, replaced()).await?;
                Ok(if seen.is_empty() {
                    Seen::NotYet("no warning".to_owned())
                } else {
                    Seen::Yes(())
                })
            },
        )
        .await?;
        let mut rows = vec![
            (
                job().run_policy("schedulingPolicy", json!({"minAvailable": 2})),
                "spec.runPolicy.schedulingPolicy has an effect only where the operator runs with a gang scheduler",
            ),
            (replaced(), "restartPolicy within a template is replaced"),
        ];
        let own_label = json!({"labels": {"training.kubeflow.org/job-role": "x", "mine": "y"}});
        let of_template = [
            ("metadata", own_label, "labels of the operator's own"),
            ("metadata", json!({"name": "x"}), "name and namespace"),
            ("metadata", json!({"finalizers": ["e.com/f"]}), "finalizers"),
            ("spec/hostname", json!("x"), "each pod has its own name"),
            ("spec/subdomain", json!("x"), "each pod has its own name"),
            ("spec/hostNetwork", json!(true), "hostNetwork"),
        ];
        rows.extend(of_template.map(|(field, value, text)| (with(field, value), text)));
        let odd = job().run_policy("cleanPodPolicy", "Sometimes");
        if kind == MPI {
            let refused = warnings_of(&client, &namespace.name, &kind, odd).await;
            ensure!(refused.is_err(), "{refused:?}");
        } else {
            rows.push((odd, "is none of None, Running, All and works as All"));
        }
        if kind.name == MPI.name && kind.version == "v1" {
            let odd = job().set("/spec/cleanPodPolicy", "Sometimes");
            rows.push((odd, "spec.cleanPodPolicy: "));
        }
        for (odd, text) in rows {
            let warnings = warnings_of(&client, &namespace.name, &kind, odd).await?;
            let one = matches!(warnings.as_slice(), [warning] if warning.contains(text));
            ensure!(one, "{} {}, {text}: {warnings:?}", kind.name, kind.version);
        }
        let metadata = json!({"labels": {"mine": "y"}, "annotations": {"a": "b"}});
        let fine = with("metadata", metadata).set(&format!("{template}/spec/hostNetwork"), false);
        for fine in [job(), fine] {
            let warnings = warnings_of(&client, &namespace.name, &kind, fine).await?;
            ensure!(warnings.is_empty(), "{}: {warnings:?}", kind.name);
        }
    }
    Ok(())
}

fn elastic(field: &str, value: Value) -> Job {
    pytorch_job("el")
        .workers(1)
        .set(&format!("/spec/elasticPolicy/{field}"), value)
}

#[tokio::test]
async fn the_deprecated_place_of_processes_per_node_is_warned_of() -> Result<()> {
    let text = "spec.elasticPolicy.nProcPerNode is deprecated, use spec.nprocPerNode instead";
    warns("deprecated", elastic("nProcPerNode", json!(2)), text).await
}

#[tokio::test]
async fn b_063_workers_outside_the_elastic_bounds_are_warned_of() -> Result<()> {
    let text = "is outside the bounds of spec.elasticPolicy";
    warns("bounds", elastic("minReplicas", json!(2)), text).await
}

/// One object of each type that the operator creates.
fn objects(namespace: &str) -> Vec<Value> {
    let metadata = json!({"name": "x", "namespace": namespace});
    vec![
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata,
               "spec": {"containers": [{"name": "a", "image": "b", "securityContext": {
                    "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": true,
                    "seccompProfile": {"type": "RuntimeDefault"}}}]}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata,
               "spec": {"clusterIP": "None", "ports": [{"port": 1}]}}),
        json!({"apiVersion": "v1", "kind": "Event", "metadata": metadata, "reason": "Test",
               "involvedObject": {"kind": "PyTorchJob", "name": "x", "namespace": namespace}}),
    ]
}

/// The kinds of these objects that the client may create there.
async fn may_make(client: &Client, namespace: &str) -> Result<Vec<String>> {
    let mut may = Vec::new();
    for object in objects(namespace) {
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        match create::<Value>(client, namespace, &object).await {
            Ok(_) => may.push(kind),
            Err(error) => {
                let status = match error.downcast_ref::<kube::Error>() {
                    Some(kube::Error::Api(status)) => status.clone(),
                    _ => return Err(error),
                };
                ensure!(
                    status.code == 403,
                    "{kind}: {} {}",
                    status.code,
                    status.message
                );
                ensure!(
                    status.message.contains("ValidatingAdmissionPolicy"),
                    "{kind} was refused by something else: {}",
                    status.message
                );
            }
        }
    }
    Ok(may)
}

#[tokio::test]
async fn mt_64_the_operators_account_writes_neither_in_kube_namespaces_nor_in_its_own() -> Result<()>
{
    let (control, namespace, admin) = prepared("guarded").await?;
    // Not only kube-system: any namespace with that prefix.
    let other = json!({"metadata": {"name": format!("kube-{}", namespace.name)}});
    let namespaces: Api<NamespaceObject> = Api::all(admin.clone());
    let other = namespaces
        .create(&PostParams::default(), &serde_json::from_value(other)?)
        .await?;
    let operator = control.client(PYTORCH_OPERATOR).await?;
    let expected: [(&str, &[&str]); 5] = [
        (&namespace.name, &["Pod", "Service", "Event"]),
        ("default", &["Pod", "Service", "Event"]),
        ("kube-system", &[]),
        (&other.name_any(), &[]),
        (OWN, &["Event"]),
    ];
    for (place, may) in expected {
        assert_eq!(may_make(&operator, place).await?, may, "{place}");
        // The policy applies only to the operator's account.
        assert_eq!(
            may_make(&admin, place).await?,
            ["Pod", "Service", "Event"],
            "{place}"
        );
    }
    // Its lease stays where it was.
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "pytorch-operator.trainyard.dev.test", "namespace": OWN}, "spec": {}});
    create::<Value>(&operator, OWN, &lease)
        .await
        .context("the lease")?;
    namespaces
        .delete(&other.name_any(), &DeleteParams::default())
        .await?;
    Ok(())
}

#[tokio::test]
async fn mt_64_what_exists_in_kube_namespaces_is_not_deleted_by_the_operator() -> Result<()> {
    let (control, namespace, admin) = prepared("kept").await?;
    let operator = control.client(PYTORCH_OPERATOR).await?;
    for (place, goes) in [("kube-system", false), (namespace.name.as_str(), true)] {
        let mut service: Service = serde_json::from_value(objects(place).remove(1))?;
        service.metadata.name = Some(format!("kept-{}", namespace.name));
        let services: Api<Service> = Api::namespaced(admin.clone(), place);
        services.create(&PostParams::default(), &service).await?;
        let as_operator: Api<Service> = Api::namespaced(operator.clone(), place);
        let deleted = as_operator
            .delete(&service.name_any(), &DeleteParams::default())
            .await;
        assert_eq!(deleted.is_ok(), goes, "{place}: {deleted:?}");
        assert_eq!(
            services.get_opt(&service.name_any()).await?.is_none(),
            goes,
            "{place}"
        );
        if !goes {
            services
                .delete(&service.name_any(), &DeleteParams::default())
                .await?;
        }
    }
    Ok(())
}

/// A Secret that is valid for each of the types in use.
fn secret(namespace: &str, of_type: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": of_type,
        "metadata": {
            "name": "x", "namespace": namespace,
            "annotations": { "kubernetes.io/service-account.name": "default" },
        },
        "stringData": { "ssh-privatekey": "x" },
    })
}

#[tokio::test]
async fn the_account_of_mpi_operator_creates_no_secrets_but_keys() -> Result<()> {
    let (control, namespace, admin) = prepared("keys").await?;
    control.install(MPI.operator).await?;
    let operator = control.client(&MPI.user()).await?;
    let refused = "creates Secrets of type kubernetes.io/ssh-auth only";
    let place = namespace.name.as_str();
    eventually("the guard of mpi-operator to hold", HANG, async || {
        let answer = create::<Value>(&operator, place, &secret(place, "Opaque")).await;
        Ok(match answer {
            Err(error) if error.to_string().contains(refused) => Seen::Yes(()),
            other => Seen::NotYet(format!("{other:?}")),
        })
    })
    .await?;
    let token = secret(place, "kubernetes.io/service-account-token");
    let error = create::<Value>(&operator, place, &token).await.err();
    let error = error.context("it may request tokens")?.to_string();
    ensure!(error.contains(refused), "{error}");
    create::<Value>(&operator, place, &secret(place, "kubernetes.io/ssh-auth")).await?;
    // The policy applies only to the operator's account.
    create::<Value>(&admin, place, &token).await?;
    Ok(())
}

#[tokio::test]
async fn the_account_of_mpi_operator_changes_and_deletes_no_jobs_but_launchers() -> Result<()> {
    let (control, namespace, admin) = prepared("launchers").await?;
    control.install(MPI.operator).await?;
    let place = namespace.name.as_str();
    // A real owner: the garbage collector deletes objects whose owner doesn't exist.
    let owners = Jobs::of(admin.clone(), place, &MPI.resource());
    let owner = owners.create(&MPI.small_job("mpi", 1).build()).await?;
    let owner = json!([{
        "apiVersion": owner["apiVersion"], "kind": MPI.name, "name": "mpi",
        "uid": owner["metadata"]["uid"], "controller": true,
    }]);
    let jobs: Api<BatchJob> = Api::namespaced(admin, place);
    for (name, owner) in [("launcher", owner), ("other", json!([]))] {
        let job = json!({
            "metadata": { "name": name, "ownerReferences": owner },
            "spec": { "suspend": true, "template": { "spec": {
                "restartPolicy": "Never", "containers": [{ "name": "c", "image": "i" }],
            }}},
        });
        jobs.create(&PostParams::default(), &serde_json::from_value(job)?)
            .await?;
    }
    let operator: Api<BatchJob> = Api::namespaced(control.client(&MPI.user()).await?, place);
    let params = PatchParams::default();
    let label = Patch::Merge(json!({ "metadata": { "labels": { "a": "b" } } }));
    let status = Patch::Merge(json!({ "status": { "startTime": null } }));
    let refused = "only Jobs whose controller is of kind MPIJob";
    eventually("the guard of mpi-operator to hold", HANG, async || {
        Ok(match operator.patch("other", &params, &label).await {
            Err(error) if error.to_string().contains(refused) => Seen::Yes(()),
            other => Seen::NotYet(format!("{other:?}")),
        })
    })
    .await?;
    for (name, may) in [("other", false), ("launcher", true)] {
        let changed = operator.patch(name, &params, &label).await;
        assert_eq!(changed.is_ok(), may, "{name}: {changed:?}");
        let changed = operator.patch_status(name, &params, &status).await;
        assert_eq!(changed.is_ok(), may, "{name}: {changed:?}");
        let deleted = operator.delete(name, &DeleteParams::background()).await;
        assert_eq!(deleted.is_ok(), may, "{name}: {deleted:?}");
    }
    Ok(())
}

/// Renders the kustomizations and components at these paths, as a user's own kustomization would combine them.
fn rendered(resources: &[String], components: &[&str]) -> Result<Vec<Value>> {
    let directory = target_directory()?.join(format!("kustomize-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    // Kustomize takes no absolute paths.
    std::os::unix::fs::symlink(workspace().join("manifests"), directory.join("manifests"))?;
    let file = json!({ "resources": resources, "components": components });
    std::fs::write(directory.join("kustomization.yaml"), file.to_string())?;
    let node = std::env::var_os("TRAINYARD_NODE").context("TRAINYARD_NODE is not set")?;
    let output = Command::new(node)
        .args(["kubectl", "kustomize"])
        .arg(&directory)
        .output()?;
    std::fs::remove_dir_all(&directory)?;
    ensure!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout)?;
    Ok(serde_saphyr::from_multiple(&text)?)
}

#[tokio::test]
async fn the_component_of_the_api_server_changes_the_egress_of_all_operators_and_nothing_else()
-> Result<()> {
    let (_, namespace, client) = prepared("egress").await?;
    let component = workspace().join("manifests/api-server");
    let patch = manifest::documents(&component.join("egress.yaml"))?;
    let egress = &patch.first().context("an empty patch")?["spec"]["egress"];
    let operators = TRAINING.iter().map(|kind| kind.operator);
    let mut resources: Vec<String> = operators
        .chain([SPARK_OPERATOR])
        .map(|operator| format!("manifests/{operator}/namespaced"))
        .collect();
    // One cluster-wide install as well.
    resources.push(format!("manifests/{}", PYTORCH.operator));
    let mut expected = rendered(&resources, &[])?;
    let mut policies = 0;
    for policy in &mut expected {
        if policy["kind"] != "NetworkPolicy" {
            continue;
        }
        assert_ne!(policy["spec"]["egress"], *egress);
        policy["spec"]["egress"] = egress.clone();
        policies += 1;
        // The API server accepts it.
        let mut applied = policy.clone();
        applied["metadata"]["namespace"] = json!(namespace.name);
        create::<Value>(&client, &namespace.name, &applied).await?;
    }
    assert_eq!(policies, resources.len());
    assert_eq!(rendered(&resources, &["manifests/api-server"])?, expected);
    Ok(())
}

#[tokio::test]
async fn mt_09_mt_10_jobs_are_refused_where_the_operator_may_not_write() -> Result<()> {
    let (control, namespace, client) = prepared("refused").await?;
    for kind in TRAINING {
        control.install(kind.operator).await?;
        // In the operator's own namespace it would run with the operator's own account.
        let map = kind.replica_map;
        let account = format!("/spec/{map}/Worker/template/spec/serviceAccountName");
        let job = kind.small_job("pt", 1).set(&account, kind.operator);
        let job = job.build();
        eventually("the policies of this kind to hold", HANG, async || {
            let answer = create::<Value>(&client, "kube-system", &job).await;
            Ok(match answer {
                Err(_) => Seen::Yes(()),
                Ok(job) => Seen::NotYet(job.to_string()),
            })
        })
        .await?;
        for (place, accepted) in [
            ("kube-system", false),
            ("kube-public", false),
            (OWN, false),
            ("default", true),
            (namespace.name.as_str(), true),
        ] {
            let answer = create::<Value>(&client, place, &job).await;
            let place = format!("{} in {place}", kind.name);
            assert_eq!(answer.is_ok(), accepted, "{place}: {answer:?}");
            if let Err(error) = answer {
                assert!(
                    error.to_string().contains("use another one"),
                    "{place}: {error}"
                );
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_stored_spec_stays_as_it_was_submitted() -> Result<()> {
    let Some(world) = e2e::World::start("spec", lockstep()).await? else {
        return Ok(());
    };
    let operator = world.operator().await?;
    // Only the CRD's defaults are added, at once.
    let stored = world
        .jobs
        .create(
            &pytorch_job("pt")
                .master()
                .workers(2)
                .set("/spec/pytorchReplicaSpecs/Master/replicas", Value::Null)
                .build(),
        )
        .await?;
    world.kubelet.until_pods(world.namespace(), "pt", 3).await?;
    world.kubelet.all_running(world.namespace(), "pt").await?;
    world.jobs.until_true("pt", "Running").await?;
    world.kubelet.all_succeeded(world.namespace(), "pt").await?;
    let job = world.jobs.until_true("pt", "Succeeded").await?;
    assert_eq!(job["spec"], stored["spec"]);
    assert_eq!(job["metadata"]["generation"], 1);
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), world.namespace());
    assert_eq!(pods.list(&ListParams::default()).await?.items.len(), 3);
    let events: Api<Event> = Api::namespaced(world.client.clone(), world.namespace());
    assert!(events.list(&ListParams::default()).await.is_ok());
    world.assert_clean(&operator).await
}
