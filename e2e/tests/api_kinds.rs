//! Full life cycles of the kinds beside `PyTorchJob`, each with its shipped operator.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use e2e::lives::{Life, has_succeeded};
use e2e::{World, for_each_kind, read};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use training_testkit::builders::{
    EVERY_KIND, JAX, KINDS, Kind, PADDLE, PYTORCH, TENSORFLOW, TRAINING, XGBOOST,
};
use training_testkit::control_plane::{ADMIN, ControlPlane, Options, workspace};
use training_testkit::job::{Condition, Jobs, conditions, counters, is_true};
use training_testkit::kubelet::lockstep;
use training_testkit::manifest;
use training_testkit::namespace::Namespace;
use training_testkit::operator::{self, OperatorProcess};
use training_testkit::wait::{HANG, Seen, eventually};

/// A condition with a kind's published reason.
fn condition(kind: &Kind, type_: &str, status: &str, message: &str) -> Condition {
    Condition::new(type_, status, &format!("{}{type_}", kind.name), message)
}

/// Three pods are created, run and succeed.
async fn succeeds(world: &World, messages: [&str; 3]) -> Result<()> {
    let kind = world.kind;
    let operator = world.operator().await?;
    let (masters, workers) = kind.small_roles(2);
    let job = kind.small_job("pt", 2).build();
    world.jobs.create(&job).await?;
    let names = if masters > 0 {
        ["pt-master-0", "pt-worker-0", "pt-worker-1"]
    } else {
        ["pt-worker-0", "pt-worker-1", "pt-worker-2"]
    };
    read::until_children(&world.client, world.namespace(), "pt", &names, &names).await?;
    world.kubelet.until_pods(world.namespace(), "pt", 3).await?;
    assert_eq!(world.kubelet.all_running(world.namespace(), "pt").await?, 3);
    world.jobs.until_true("pt", "Running").await?;
    assert_eq!(
        world.kubelet.all_succeeded(world.namespace(), "pt").await?,
        3
    );
    let job = world.jobs.until_true("pt", "Succeeded").await?;
    let [created, running, succeeded] = messages;
    assert_eq!(
        conditions(&job),
        [
            condition(&kind, "Created", "True", created),
            condition(&kind, "Running", "False", running),
            condition(&kind, "Succeeded", "True", succeeded),
        ]
    );
    let succeeded = counters(&job, "Worker").get("succeeded").copied();
    assert_eq!(succeeded, Some(i64::from(workers)));
    let selector = &job["status"]["replicaStatuses"]["Worker"]["selector"];
    let scales = [PADDLE, JAX].contains(&kind).then(|| {
        format!(
            "training.kubeflow.org/job-name=pt,training.kubeflow.org/operator-name={},training.kubeflow.org/replica-type=worker",
            kind.controller
        )
    });
    assert_eq!(*selector, json!(scales));
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn a_tf_job_is_created_runs_and_succeeds() -> Result<()> {
    let Some(world) = World::of(TENSORFLOW, "tflife", lockstep()).await? else {
        return Ok(());
    };
    let name = format!("{}/pt", world.namespace());
    let running = format!("TFJob {name} is running.");
    let succeeded = format!("TFJob {name} successfully completed.");
    succeeds(&world, ["TFJob pt is created.", &running, &succeeded]).await
}

#[tokio::test]
async fn an_xgboost_job_is_created_runs_and_succeeds() -> Result<()> {
    let Some(world) = World::of(XGBOOST, "xgblife", lockstep()).await? else {
        return Ok(());
    };
    let messages = [
        "XGBoostJob pt is created.",
        "XGBoostJob pt is running.",
        "XGBoostJob pt is successfully completed.",
    ];
    succeeds(&world, messages).await
}

#[tokio::test]
async fn a_paddle_job_is_created_runs_and_succeeds() -> Result<()> {
    let Some(world) = World::of(PADDLE, "paddlelife", lockstep()).await? else {
        return Ok(());
    };
    let messages = [
        "PaddleJob pt is created.",
        "PaddleJob pt is running.",
        "PaddleJob pt is successfully completed.",
    ];
    succeeds(&world, messages).await
}

#[tokio::test]
async fn a_jax_job_is_created_runs_and_succeeds() -> Result<()> {
    let Some(world) = World::of(JAX, "jaxlife", lockstep()).await? else {
        return Ok(());
    };
    let name = format!("{}/pt", world.namespace());
    let running = format!("JAXJob {name} is running.");
    let succeeded = format!("JAXJob {name} successfully completed.");
    succeeds(&world, ["JAXJob pt is created.", &running, &succeeded]).await
}

#[tokio::test]
async fn i_28_jobs_of_every_kind_fail_suspend_and_resume_and_go_with_what_they_own() -> Result<()> {
    for kind in KINDS.into_iter().filter(|k| *k != PYTORCH) {
        let Some(world) = World::of(kind, "kindends", lockstep()).await? else {
            return Ok(());
        };
        let operator = world.operator().await?;
        let (masters, workers) = kind.small_roles(2);
        let (masters, workers) = (masters.into(), workers.into());
        let job = kind.small_job("pt", 2).restart_policy("Worker", "ExitCode");
        let actor = world.actor("pt");
        actor
            .create(job.run_policy("cleanPodPolicy", "All"))
            .await?;
        actor.run(masters, workers).await?;
        let suspend = |on: bool| serde_json::json!({"spec": {"runPolicy": {"suspend": on}}});
        world.jobs.merge("pt", &suspend(true)).await?;
        read::until_children(&world.client, world.namespace(), "pt", &[], &[]).await?;
        world.jobs.until_true("pt", "Suspended").await?;
        world.jobs.merge("pt", &suspend(false)).await?;
        actor.run(masters, workers).await?;
        world
            .kubelet
            .fail(world.namespace(), "pt-worker-0", 1)
            .await?;
        let job = world.jobs.until_true("pt", "Failed").await?;
        assert!(!is_true(&job, "Running"), "{}", job["status"]);
        let message = r#"job "pt" is failing because "Worker" replica(s) failed."#;
        assert_eq!(
            conditions(&job).last(),
            Some(&condition(&kind, "Failed", "True", message))
        );
        read::until_children(&world.client, world.namespace(), "pt", &[], &[]).await?;

        let deleted = world.actor("deleted");
        deleted.create(kind.small_job("deleted", 2)).await?;
        deleted.run(masters, workers).await?;
        world.kubelet.finish_deletes(true);
        deleted.delete(&DeleteParams::background()).await?;
        deleted.until_gone().await?;
        read::until_children(&world.client, world.namespace(), "deleted", &[], &[]).await?;
        world.assert_clean(&operator).await?;
    }
    Ok(())
}

/// A control plane with only these kinds.
async fn control_of(kinds: &[Kind]) -> Result<&'static ControlPlane> {
    let options = Options {
        controller_manager: true,
        audit: true,
        ..Options::default()
    };
    // Leaked like the shared one, because a world borrows it for the life of the process.
    let control: &'static ControlPlane = Box::leak(Box::new(ControlPlane::start(options).await?));
    for kind in kinds {
        control.install(kind.operator).await?;
    }
    Ok(control)
}

/// An operator works without the CRDs of the other kinds.
#[tokio::test]
async fn each_operator_runs_alone() -> Result<()> {
    for kind in KINDS {
        let control = control_of(&[kind]).await?;
        let Some(world) = World::made(kind, control, "alone", lockstep()).await? else {
            return Ok(());
        };
        let operator = world.operator().await?;
        let actor = world.actor("pt");
        let (masters, workers) = kind.small_roles(1);
        actor.create(kind.small_job("pt", 1)).await?;
        actor.run(masters.into(), workers.into()).await?;
        world.jobs.until_true("pt", "Running").await?;
        world.assert_clean(&operator).await?;
    }
    Ok(())
}

async fn same_name(kind: Kind) -> Result<()> {
    let Some(world) = World::of(PYTORCH, "twokinds", lockstep()).await? else {
        return Ok(());
    };
    world.control.install(kind.operator).await?;
    let first = world.operator().await?;
    let actor = world.actor("pt");
    actor.create(PYTORCH.job("pt").master().workers(1)).await?;
    actor.run(1, 1).await?;

    let kubeconfig = world.control.kubeconfig(&kind.user()).await?;
    let (namespace, log) = (world.namespace(), world.file("second.log"));
    let options = operator::Options::new(kind.operator, &kubeconfig, namespace, &log);
    let second = OperatorProcess::start(options).await?;
    let others = Jobs::of(world.client.clone(), namespace, &kind.resource());
    let job = if kind == JAX {
        kind.job("pt").workers(1)
    } else {
        kind.small_job("pt", 1)
    };
    others.create(&job.build()).await?;
    let waits = |job: &Value| {
        let mut conditions = conditions(job).into_iter();
        conditions.any(|c| {
            c.reason == "NameConflict" && c.message.contains("it belongs to PyTorchJob pt")
        })
    };
    others.until("pt", "waiting for its names", waits).await?;
    let mut pods = read::pods(&world.client, namespace, "pt").await?;
    // The launcher of an MPIJob has a name of its own.
    let owner = |pod: &Value| pod["metadata"]["ownerReferences"][0]["kind"].clone();
    pods.retain(|pod| owner(pod) != "Job");
    assert_eq!(read::names(&pods), ["pt-master-0", "pt-worker-0"]);
    for pod in &pods {
        assert_eq!(owner(pod), PYTORCH.name, "{pod}");
    }
    world.kubelet.all_succeeded(namespace, "pt").await?;
    world.jobs.until_true("pt", "Succeeded").await?;
    others.delete("pt").await?;
    second.assert_no_panic()?;
    world.assert_clean(&first).await
}

#[tokio::test]
async fn b_042_a_job_of_another_kind_with_the_same_name_waits_and_the_first_is_left_alone()
-> Result<()> {
    let others = TRAINING.into_iter().filter(|kind| *kind != PYTORCH);
    for_each_kind(others, same_name).await
}

/// Extends the CRD as a later version might: one more field in spec and status.
async fn extend_definition(client: &Client, kind: &Kind) -> Result<()> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let name = format!("{}.{}", kind.plural, kind.group);
    let mut definition = serde_json::to_value(definitions.get(&name).await?)?;
    let versions = definition["spec"]["versions"].as_array_mut();
    for version in versions.context("no versions")? {
        let schema = &mut version["schema"]["openAPIV3Schema"];
        for part in ["spec", "status"] {
            schema["properties"][part]["properties"]["tomorrow"] = json!({
                "type": "object", "x-kubernetes-preserve-unknown-fields": true,
            });
        }
    }
    let definition = serde_json::from_value(definition)?;
    definitions
        .replace(&name, &PostParams::default(), &definition)
        .await
        .context("the definition")?;
    Ok(())
}

async fn newer_definition(control: &'static ControlPlane, kind: Kind) -> Result<()> {
    let Some(world) = World::made(kind, control, "newer", lockstep()).await? else {
        return Ok(());
    };
    let operator = world.operator().await?;
    let actor = world.actor("pt");
    actor.create(Life::shortest(kind).job(kind, "pt")).await?;
    actor.run_all().await?;

    // The API server rebuilds its cache of the kind, which may end the auditor's own watch of it.
    world.auditor.expect_gaps();
    extend_definition(&control.client(ADMIN).await?, &kind).await?;
    let api: Api<DynamicObject> =
        Api::namespaced_with(world.client.clone(), world.namespace(), &kind.resource());
    let there =
        |job: &Value| job["spec"]["tomorrow"]["a"] == 1 && job["status"]["tomorrow"]["b"] == 2;
    eventually("the new fields to be stored", HANG, async || {
        let spec = json!({ "spec": { "tomorrow": { "a": 1 } } });
        world.jobs.merge("pt", &spec).await?;
        let status = Patch::Merge(json!({ "status": { "tomorrow": { "b": 2 } } }));
        api.patch_status("pt", &PatchParams::default(), &status)
            .await?;
        let job = world.jobs.get("pt").await?;
        Ok(if there(&job) {
            Seen::Yes(())
        } else {
            Seen::NotYet(job.to_string())
        })
    })
    .await?;
    actor.suspend(true).await?;
    actor.until_suspended().await?;
    actor.suspend(false).await?;
    actor.run_all().await?;
    actor.all_end_well().await?;
    let job = world.jobs.until("pt", "at its end", has_succeeded).await?;
    assert!(there(&job), "{job}");
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn b_157_i_27_fields_of_a_newer_definition_survive_what_the_operator_writes() -> Result<()> {
    // Not the shared one: while its CRD changes, the API server refuses lists of a kind.
    let control = control_of(&EVERY_KIND).await?;
    for_each_kind(EVERY_KIND, |kind| newer_definition(control, kind)).await
}

#[tokio::test]
async fn published_examples_pass_strict_decoding_and_are_stored_whole() -> Result<()> {
    let control = ControlPlane::shared().await?;
    for kind in TRAINING {
        control.install(kind.operator).await?;
    }
    let namespace = Namespace::create(control, "published").await?;
    let client = control.client(ADMIN).await?;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/api_kinds/published.yaml");
    let mut jobs = manifest::documents(&path)?;
    let kinds: BTreeSet<_> = jobs.iter().map(|job| job["kind"].as_str()).collect();
    assert_eq!(kinds.len(), TRAINING.len());
    // Nothing else tests these.
    for file in manifest::files(&workspace().join("examples/gpu"))? {
        let own = manifest::documents(&file)?.into_iter();
        jobs.extend(own.filter(|object| object["kind"] != "ConfigMap"));
    }
    for job in &jobs {
        let [version, kind] = ["apiVersion", "kind"].map(|key| job[key].as_str());
        let (group, version) = version
            .and_then(|v| v.split_once('/'))
            .context("no group")?;
        let kind = GroupVersionKind::gvk(group, version, kind.context("no kind")?);
        let resource = ApiResource::from_gvk(&kind);
        let api: Api<DynamicObject> =
            Api::namespaced_with(client.clone(), &namespace.name, &resource);
        let name = read::name(job);
        let apply = async |job: &Value| {
            let strict = PatchParams::apply("user").dry_run().validation_strict();
            api.patch(&name, &strict, &Patch::Apply(job)).await
        };
        let stored = serde_json::to_value(apply(job).await.with_context(|| name.clone())?)?;
        let lost = read::lost(&job["spec"], &stored["spec"], "spec");
        ensure!(lost.is_empty(), "{name}: {lost:?}");
        let mut unknown = job.clone();
        unknown["spec"]["noSuchField"] = json!(1);
        ensure!(apply(&unknown).await.is_err(), "{name}");
    }
    Ok(())
}
