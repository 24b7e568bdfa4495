//! Runs of one application.

use e2e::refusal::{Refusal, until_accepted, until_refused};
use e2e::{World, read};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use training_testkit::kubelet::{bind, lockstep};

use super::*;

#[tokio::test]
async fn i_32_an_application_runs_to_its_end_by_nine_writes() -> Result<()> {
    let Some(stage) = Stage::open("spark-life").await? else {
        return Ok(());
    };
    let since = stage.control.audit()?.mark().await?;
    stage.apply(&pi()).await?;
    let app = stage.until(State::Submitted).await?;
    let status = app.status.context("no status")?;
    let id = status.submission_id.clone().context("no submission id")?;
    let driver = stage.driver().await?;
    ensure!(driver.labels()["sparkoperator.k8s.io/submission-id"] == id);
    ensure!(status.driver_info.pod_name.as_deref() == Some(DRIVER));
    ensure!(
        status.driver_info.web_ui_address.is_some(),
        "{:?}",
        status.driver_info
    );
    ensure!(stage.names::<ConfigMap>().await?.len() == 2);
    ensure!(stage.names::<Service>().await?.len() == 2);

    stage.runs(DRIVER).await?;
    stage.until(State::Running).await?;
    stage.ends(DRIVER, "driver", 0, "").await?;
    let app = stage.until(State::Completed).await?;
    let status = app.status.context("no status")?;
    ensure!(status.termination_time.is_some() && status.execution_attempts == Some(1));

    // The other objects of the run are deleted at its end.
    eventually("nothing to be left but the driver", HANG, async || {
        let maps = stage.names::<ConfigMap>().await?;
        let services = stage.names::<Service>().await?;
        Ok(if maps.is_empty() && services.is_empty() {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{maps:?}, {services:?}"))
        })
    })
    .await?;
    let wrote = stage.wrote(since).await?;
    let of = |resource: &str, verb: &str| {
        wrote
            .iter()
            .filter(|e| e.resource == resource && e.verb == verb)
            .count()
    };
    let creates = ["pods", "configmaps", "services"].map(|r| of(r, "create"));
    ensure!(creates == [1, 2, 2], "{wrote:#?}");
    ensure!(of("sparkapplications", "patch") == 4, "{wrote:#?}");
    let events = of("events", "create") + of("events", "patch");
    let deletes = ["configmaps", "services"].map(|r| of(r, "delete"));
    ensure!(deletes == [2, 2], "{wrote:#?}");
    ensure!(wrote.len() == 9 + 4 + events, "{wrote:#?}");
    stage.assert_clean().await
}

#[tokio::test]
async fn a_service_of_somebody_else_in_the_ui_s_place_does_not_stop_a_run() -> Result<()> {
    let Some(stage) = Stage::open("spark-beside").await? else {
        return Ok(());
    };
    let theirs: Service = serde_json::from_value(json!({
        "metadata": { "name": "pi-ui-svc" }, "spec": { "ports": [{ "port": 80 }] },
    }))?;
    let services = stage.api::<Service>();
    let before = services.create(&PostParams::default(), &theirs).await?;
    stage.apply(&pi()).await?;
    stage.until(State::Submitted).await?;
    stage.runs(DRIVER).await?;
    let app = stage.until(State::Running).await?;
    let status = app.status.context("no status")?;
    let text = status.application_state.error_message;
    let text = text.context("no message")?;
    ensure!(
        text.contains("can't create the Service pi-ui-svc"),
        "{text}"
    );
    stage.ends(DRIVER, "driver", 0, "").await?;
    stage.until(State::Completed).await?;
    let after = services.get("pi-ui-svc").await?;
    ensure!(after == before, "{after:?}");
    stage.assert_clean().await
}

#[tokio::test]
async fn a_claim_that_is_there_is_used_and_outlives_the_run() -> Result<()> {
    let Some(stage) = Stage::open("spark-claim").await? else {
        return Ok(());
    };
    let theirs: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": { "name": "data" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    }))?;
    let claims = stage.api::<PersistentVolumeClaim>();
    let before = claims.create(&PostParams::default(), &theirs).await?;
    let mut app = pi();
    let prefix = "spark.kubernetes.driver.volumes.persistentVolumeClaim.data";
    app["spec"]["sparkConf"] = json!({
        format!("{prefix}.mount.path"): "/data", format!("{prefix}.options.claimName"): "data",
        format!("{prefix}.options.storageClass"): "fast", format!("{prefix}.options.sizeLimit"): "1Gi",
    });
    stage.apply(&app).await?;
    stage.until(State::Submitted).await?;
    stage.ends(DRIVER, "driver", 0, "").await?;
    stage.until(State::Completed).await?;
    let after = claims.get("data").await?;
    ensure!(
        after.metadata.uid == before.metadata.uid && after.spec == before.spec,
        "{after:?}"
    );
    ensure!(after.metadata.deletion_timestamp.is_none(), "it goes");
    stage.assert_clean().await
}

#[tokio::test]
async fn executors_are_followed_and_go_with_their_run() -> Result<()> {
    let Some(stage) = Stage::open("spark-executors").await? else {
        return Ok(());
    };
    stage.apply(&pi()).await?;
    stage.until(State::Submitted).await?;
    stage.runs(DRIVER).await?;
    let executors = stage.makes_executors(2).await?;
    for name in &executors {
        stage.runs(name).await?;
    }
    let app = stage
        .until_app("2/2 executors", |app| {
            let status = app.status.as_ref();
            status.and_then(|s| s.executors.as_deref()) == Some("2/2")
        })
        .await?;
    ensure!(app.status.context("no status")?.executor_state.len() == 2);
    // A driver that ends deletes its executors; a lost one can't.
    stage
        .ends(
            DRIVER,
            "driver",
            1,
            "java.lang.OutOfMemoryError: Java heap space",
        )
        .await?;
    let app = stage.until(State::Failed).await?;
    let text = app.status.and_then(|s| s.application_state.error_message);
    let text = text.context("no message")?;
    ensure!(
        text.contains("ExitCode: 1") && text.contains("Java heap space"),
        "{text}"
    );
    for name in &executors {
        stage.until_gone(name).await?;
    }
    stage.assert_clean().await
}

#[tokio::test]
async fn a_failed_run_is_followed_by_one_with_another_id() -> Result<()> {
    let Some(stage) = Stage::open("spark-again").await? else {
        return Ok(());
    };
    let mut app = pi();
    app["spec"]["restartPolicy"] =
        json!({ "type": "OnFailure", "onFailureRetries": 1, "onFailureRetryInterval": 1 });
    stage.apply(&app).await?;
    let first = stage
        .until(State::Submitted)
        .await?
        .status
        .and_then(|s| s.submission_id);
    let former = stage.driver().await?.uid();
    stage.ends(DRIVER, "driver", 3, "").await?;
    let again = stage
        .until_app("another submission", |app| {
            let status = app.status.as_ref();
            status.is_some_and(|s| {
                s.submission_id != first && s.application_state.state == State::Submitted
            })
        })
        .await?;
    ensure!(stage.driver().await?.uid() != former);
    ensure!(again.status.context("no status")?.execution_attempts == Some(2));
    ensure!(
        stage.names::<ConfigMap>().await?.len() == 2,
        "what the former run had is gone"
    );
    stage.ends(DRIVER, "driver", 3, "").await?;
    stage.until(State::Failed).await?;
    stage.assert_clean().await
}

#[tokio::test]
async fn a_missing_service_account_is_tried_again_as_the_policy_says() -> Result<()> {
    let Some(stage) = Stage::open("spark-account").await? else {
        return Ok(());
    };
    let mut app = pi();
    app["spec"]["driver"]["serviceAccount"] = json!("late");
    app["spec"]["restartPolicy"] = json!({
        "type": "OnFailure", "onSubmissionFailureRetries": 100, "onSubmissionFailureRetryInterval": 1,
    });
    stage.apply(&app).await?;
    let app = stage
        .until_app("a counted attempt", |app| {
            app.status
                .as_ref()
                .is_some_and(|s| s.submission_attempts >= Some(1))
        })
        .await?;
    let status = app.status.context("no status")?;
    let text = status.application_state.error_message.unwrap_or_default();
    ensure!(text.contains("serviceaccount \"late\" not found"), "{text}");
    let stalled = status.conditions.iter().find(|c| c.type_ == "Stalled");
    let stalled = stalled.context("not stalled")?;
    ensure!(
        stalled.status == "True"
            && stalled.reason.as_deref() == Some("SubmissionRefused")
            && stalled.message.as_deref() == Some(&text),
        "{stalled:?}"
    );
    ensure!(
        status.application_state.state == State::New,
        "{:?}",
        status.application_state.state
    );
    let account = ServiceAccount {
        metadata: kube::core::ObjectMeta {
            name: Some("late".to_owned()),
            ..Default::default()
        },
        ..Default::default()
    };
    stage.api().create(&PostParams::default(), &account).await?;
    let app = stage.until(State::Submitted).await?;
    let conditions = app.status.context("no status")?.conditions;
    ensure!(conditions.is_empty(), "{conditions:?}");
    stage.assert_clean().await
}

#[tokio::test]
async fn a_suspended_application_has_nothing_and_resumes_anew() -> Result<()> {
    let Some(stage) = Stage::open("spark-suspend").await? else {
        return Ok(());
    };
    stage.apply(&pi()).await?;
    stage.until(State::Submitted).await?;
    stage.runs(DRIVER).await?;
    stage.until(State::Running).await?;
    let former = stage.driver().await?.uid();
    stage.edit(json!({ "suspend": true })).await?;
    stage.until(State::Suspended).await?;
    ensure!(stage.names::<Pod>().await?.is_empty());
    ensure!(stage.names::<ConfigMap>().await?.is_empty());
    ensure!(stage.names::<Service>().await?.is_empty());
    stage.edit(json!({ "suspend": false })).await?;
    stage.until(State::Submitted).await?;
    ensure!(stage.driver().await?.uid() != former);
    stage.assert_clean().await
}

#[tokio::test]
async fn a_terminating_driver_keeps_what_its_run_needs_until_it_has_ended() -> Result<()> {
    let Some(stage) = Stage::open("spark-order").await? else {
        return Ok(());
    };
    stage.apply(&pi()).await?;
    stage.until(State::Submitted).await?;
    stage.runs(DRIVER).await?;
    stage.until(State::Running).await?;
    let executors = stage.makes_executors(2).await?;
    let pods = stage.api::<Pod>();
    // On a node, whose kubelet would end it, a deleted pod stays. Without a node, the pod garbage collector ends it.
    bind(&pods, DRIVER, None, "n1").await?;
    let audit = stage.control.audit()?;
    let since = audit.mark().await?;
    stage.edit(json!({ "suspend": true })).await?;
    eventually("the driver to terminate", HANG, async || {
        let driver = pods.get(DRIVER).await?;
        Ok(match driver.metadata.deletion_timestamp {
            Some(_) => Seen::Yes(()),
            None => Seen::NotYet(format!("{:?}", driver.status)),
        })
    })
    .await?;
    let asks = |e: &Entry| e.namespace == stage.name() && !e.is_watch();
    let user = operator_user(SPARK_OPERATOR);
    audit.until_quiet(&user, asks, QUIET, HANG).await?;
    let deletes = async || {
        let mut wrote = stage.wrote(since).await?;
        wrote.retain(|e| e.verb.starts_with("delete"));
        anyhow::Ok(wrote)
    };
    let first = deletes().await?;
    let names: Vec<&str> = first.iter().map(|e| e.name.as_str()).collect();
    assert_eq!(names, [DRIVER]);
    for executor in &executors {
        let pod = pods.get(executor).await?;
        ensure!(pod.metadata.deletion_timestamp.is_none(), "{executor}");
    }
    let kept = (
        stage.names::<ConfigMap>().await?.len(),
        stage.names::<Service>().await?.len(),
    );
    assert_eq!(kept, (2, 2));
    let at_once = DeleteParams::default().grace_period(0);
    pods.delete(DRIVER, &at_once).await?;
    stage.until(State::Suspended).await?;
    for executor in &executors {
        stage.until_gone(executor).await?;
    }
    ensure!(stage.names::<ConfigMap>().await?.is_empty());
    ensure!(stage.names::<Service>().await?.is_empty());
    stage.assert_clean().await
}

#[tokio::test]
async fn the_service_of_the_ui_has_the_port_of_the_merged_configuration() -> Result<()> {
    let Some(stage) = Stage::open("spark-ui-port").await? else {
        return Ok(());
    };
    let mut app = pi();
    app["spec"]["sparkConf"] = json!({ "spark.ui.port": "4555" });
    stage.apply(&app).await?;
    let app = stage.until(State::Submitted).await?;
    let services = stage.api::<Service>();
    let service = services.get("pi-ui-svc").await?;
    let ports = service
        .spec
        .and_then(|spec| spec.ports)
        .context("no ports")?;
    let target = IntOrString::Int(4555);
    assert_eq!(
        (ports[0].port, &ports[0].target_port),
        (4555, &Some(target))
    );
    let driver = app.status.context("no status")?.driver_info;
    assert_eq!(driver.web_ui_port, Some(4555));
    stage.assert_clean().await
}

#[tokio::test]
async fn b_175_an_edit_begins_anew_and_one_of_the_time_to_live_does_not() -> Result<()> {
    let Some(stage) = Stage::open("spark-edit").await? else {
        return Ok(());
    };
    let mut app = pi();
    let selector = json!({ "example.org/disk": "fast" });
    app["spec"]["driver"]["template"] = json!({ "spec": { "nodeSelector": selector } });
    stage.apply(&app).await?;
    stage.until(State::Submitted).await?;
    stage.ends(DRIVER, "driver", 0, "").await?;
    stage.until(State::Completed).await?;
    let former = stage.driver().await?.uid();
    stage.edit(json!({ "timeToLiveSeconds": 3600 })).await?;
    stage
        .until_app("the edit to be seen", |app| {
            let status = app.status.as_ref();
            status.and_then(|s| s.observed_generation) == app.metadata.generation
        })
        .await?;
    ensure!(stage.driver().await?.uid() == former);
    stage.edit(json!({ "arguments": ["10"] })).await?;
    stage.until(State::Submitted).await?;
    let next = stage.driver().await?;
    ensure!(next.uid() != former);
    let chosen = next.spec.and_then(|spec| spec.node_selector);
    ensure!(
        json!(chosen) == selector,
        "{chosen:?}: what had ended had lost its template"
    );
    stage.ends(DRIVER, "driver", 0, "").await?;
    stage.until(State::Completed).await?;
    stage.edit(json!({ "timeToLiveSeconds": 1 })).await?;
    eventually("the application to go", HANG, async || {
        let there = stage.api::<SparkApplication>().get_opt("pi").await?;
        Ok(there.map_or(Seen::Yes(()), |app| {
            Seen::NotYet(format!("{:?}", app.status))
        }))
    })
    .await
}

#[tokio::test]
async fn where_executors_run_is_edited_for_those_that_are_made_later() -> Result<()> {
    let gate = |options: Options| options.flag("feature-gates", "PartialRestart=true");
    let Some(stage) = Stage::with("spark-place", gate).await? else {
        return Ok(());
    };
    stage.apply(&pi()).await?;
    let driver = stage.driver().await?.uid();
    stage.runs(DRIVER).await?;
    stage.until(State::Running).await?;
    let since = stage.control.audit()?.mark().await?;
    let selector = json!({ "pool": "cheap" });
    stage
        .edit(json!({ "executor": { "nodeSelector": selector } }))
        .await?;
    stage
        .until_app("the edit to be seen", |app| {
            let status = app.status.as_ref();
            status.and_then(|s| s.observed_generation) == app.metadata.generation
        })
        .await?;
    // The driver reads the template for each executor that it creates.
    let executors = stage.makes_executors(1).await?;
    let pod = stage.api::<Pod>().get(&executors[0]).await?;
    let chosen = pod.spec.and_then(|spec| spec.node_selector);
    ensure!(json!(chosen) == selector, "{chosen:?}");
    stage.ends(DRIVER, "driver", 0, "").await?;
    let app = stage.until(State::Completed).await?;
    ensure!(stage.driver().await?.uid() == driver, "a new run");
    ensure!(app.status.and_then(|s| s.execution_attempts) == Some(1));
    let wrote = stage.wrote(since).await?;
    let changes = wrote
        .iter()
        .filter(|e| e.verb == "patch" && e.resource == "configmaps");
    let changes = changes.count();
    ensure!((1..3).contains(&changes), "{changes}");
    // A completed application gets no more executors.
    stage
        .edit(json!({ "executor": { "priorityClassName": "low" } }))
        .await?;
    stage
        .until_app("the edit to be seen", |app| {
            let status = app.status.as_ref();
            status.and_then(|s| s.observed_generation) == app.metadata.generation
        })
        .await?;
    ensure!(stage.driver().await?.uid() == driver, "a new run");
    stage.assert_clean().await
}

#[tokio::test]
async fn what_can_not_be_submitted_fails_once_and_says_which_field() -> Result<()> {
    let Some(stage) = Stage::open("spark-refused").await? else {
        return Ok(());
    };
    let mut app = pi();
    app["spec"]["mainApplicationFile"] = json!("file:///tmp/pi.py");
    app["spec"]["restartPolicy"] = json!({ "type": "Always" });
    stage.apply(&app).await?;
    let app = stage.until(State::Failed).await?;
    let text = app.status.and_then(|s| s.application_state.error_message);
    let text = text.context("no message")?;
    ensure!(
        text.contains("failed to run spark-submit: spec.mainApplicationFile"),
        "{text}"
    );
    stage.assert_clean().await
}

#[tokio::test]
async fn f_17_i_25_a_pod_of_somebody_else_is_never_touched() -> Result<()> {
    let Some(stage) = Stage::open("spark-foreign").await? else {
        return Ok(());
    };
    let pod: Pod = serde_json::from_value(json!({
        "metadata": { "name": DRIVER }, "spec": { "containers": [{ "name": "a", "image": "a" }] },
    }))?;
    let theirs = stage
        .api::<Pod>()
        .create(&PostParams::default(), &pod)
        .await?;
    stage.apply(&pi()).await?;
    let app = stage
        .until_app("the reported conflict", |app| {
            let status = app.status.as_ref().map(|s| &s.application_state);
            status.is_some_and(|s| {
                s.error_message
                    .as_deref()
                    .is_some_and(|m| m.contains(DRIVER))
            })
        })
        .await?;
    ensure!(app.status.context("no status")?.application_state.state == State::New);
    tokio::time::sleep(Duration::from_millis(500)).await;
    ensure!(stage.driver().await?.uid() == theirs.uid());
    stage
        .api::<Pod>()
        .delete(DRIVER, &DeleteParams::default().grace_period(0))
        .await?;
    stage.assert_clean().await
}

#[tokio::test]
async fn b_176_an_operator_that_dies_between_objects_submits_once() -> Result<()> {
    let Some(stage) = Stage::open("spark-crash").await? else {
        return Ok(());
    };
    stage.apply(&pi()).await?;
    stage.until(State::Submitted).await?;
    let former = stage.driver().await?.uid();
    stage.operator.lock().await.kill()?;
    stage.runs(DRIVER).await?;
    stage.operator.lock().await.restart().await?;
    stage.until(State::Running).await?;
    ensure!(stage.driver().await?.uid() == former);
    ensure!(stage.names::<ConfigMap>().await?.len() == 2);
    stage.assert_clean().await
}

/// The stored sizes of an application, as `driver cores, memory, executor cores, memory, instances`.
fn sizes(spec: &Value) -> String {
    let of = |role: &str, field: &str| spec[role][field].to_string();
    let all = [
        of("driver", "cores"),
        of("driver", "memory"),
        of("executor", "cores"),
        of("executor", "memory"),
        of("executor", "instances"),
    ];
    all.join(" ")
}

#[tokio::test]
async fn what_an_application_leaves_open_is_stored_where_the_policy_is_installed() -> Result<()> {
    let Some(stage) = Stage::open("spark-defaults").await? else {
        return Ok(());
    };
    let file = workspace().join("manifests/spark-operator/options/defaults.yaml");
    let mut policy = manifest::documents(&file)?;
    // Leaves the applications of other tests unchanged.
    let here = json!({ "matchLabels": { "kubernetes.io/metadata.name": stage.name() } });
    policy[1]["spec"]["matchResources"] = json!({ "namespaceSelector": here });
    manifest::apply(&stage.client, policy).await?;
    let api = stage.api::<SparkApplication>();
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let stored = async |driver: Value, executor: Value, more: Value| -> Result<String> {
        let mut app = pi();
        app["spec"]["driver"] = driver;
        app["spec"]["executor"] = executor;
        for (field, value) in more.as_object().into_iter().flatten() {
            app["spec"][field] = value.clone();
        }
        let app: SparkApplication = serde_json::from_value(app)?;
        let stored = api.create(&dry, &app).await?;
        Ok(sizes(&serde_json::to_value(&stored.spec)?))
    };
    // The API server reads new policies a moment after they are stored.
    let all = r#"1 "1g" 1 "1g" 1"#;
    eventually("the defaults", HANG, async || {
        let stored = stored(json!({}), json!({}), json!({})).await?;
        Ok(if stored == all {
            Seen::Yes(())
        } else {
            Seen::NotYet(stored)
        })
    })
    .await?;
    let (driver, executor) = (
        json!({ "cores": 2, "memory": "2g" }),
        json!({ "cores": 3, "memory": "3g", "instances": 4 }),
    );
    let none = r#"2 "2g" 3 "3g" 4"#;
    ensure!(stored(driver, executor, json!({})).await? == none);
    let properties = json!({ "sparkConf": {
        "spark.driver.memory": "5g", "spark.executor.cores": "2", "spark.executor.instances": "7",
    } });
    let left = stored(json!({}), json!({}), properties).await?;
    ensure!(left == r#"1 null null "1g" null"#, "{left}");
    for dynamic in [
        json!({ "dynamicAllocation": { "enabled": true } }),
        json!({ "sparkConf": { "spark.dynamicAllocation.enabled": " True" } }),
    ] {
        let left = stored(json!({}), json!({}), dynamic).await?;
        ensure!(left == r#"1 "1g" 1 "1g" null"#, "{left}");
    }
    let off = json!({ "dynamicAllocation": { "enabled": false } });
    ensure!(stored(json!({}), json!({}), off).await? == all);
    // Edits stay as their author made them.
    stage.apply(&pi()).await?;
    stage
        .edit(json!({ "driver": { "cores": null, "memory": null } }))
        .await?;
    let spec = serde_json::to_value(&stage.app().await?.spec)?;
    ensure!(
        sizes(&spec) == r#"null null 1 "512m" 2"#,
        "{}",
        sizes(&spec)
    );
    stage.assert_clean().await
}

#[tokio::test]
async fn executors_get_the_memory_limit_of_their_application_where_the_policy_is_installed()
-> Result<()> {
    let flags = |options: Options| options.flag("memory-limit-policy", "true");
    let Some(stage) = Stage::with("spark-limit", flags).await? else {
        return Ok(());
    };
    let file = workspace().join("manifests/spark-operator/options/executor-memory-limit.yaml");
    manifest::apply(&stage.client, manifest::documents(&file)?).await?;
    let mut app = pi();
    app["spec"]["executor"]["memoryLimit"] = json!("2g");
    stage.apply(&app).await?;
    stage.until(State::Submitted).await?;
    // The API server reads new policies a moment after they are stored.
    eventually("an executor with a limit", HANG, async || {
        let name = stage.makes_executors(1).await?.remove(0);
        let pod = stage.api::<Pod>().get(&name).await?;
        let spec = pod.spec.context("no spec")?;
        let limits = spec.containers[0]
            .resources
            .as_ref()
            .and_then(|r| r.limits.as_ref());
        let limit = limits.and_then(|l| l.get("memory")).map(|q| q.0.clone());
        if limit.as_deref() == Some("2Gi") {
            return Ok(Seen::Yes(()));
        }
        stage
            .api::<Pod>()
            .delete(&name, &DeleteParams::default())
            .await?;
        Ok(Seen::NotYet(format!("{limit:?}")))
    })
    .await
}

#[tokio::test]
async fn a_driver_that_pod_security_forbids_is_counted_as_a_failed_submission() -> Result<()> {
    let Some(stage) = Stage::open("spark-security").await? else {
        return Ok(());
    };
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(stage.client.clone());
    let level =
        json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": "restricted" } } });
    let how = PatchParams::default();
    namespaces
        .patch(stage.name(), &how, &Patch::Merge(&level))
        .await?;
    let mut app = pi();
    app["spec"]["restartPolicy"] = json!({
        "type": "OnFailure", "onSubmissionFailureRetries": 1, "onSubmissionFailureRetryInterval": 1,
    });
    stage.apply(&app).await?;
    let app = stage.until(State::Failed).await?;
    let status = app.status.context("no status")?;
    ensure!(status.submission_attempts == Some(2), "{status:?}");
    let text = status
        .application_state
        .error_message
        .context("no message")?;
    ensure!(text.contains("violates PodSecurity \"restricted"), "{text}");
    stage.assert_clean().await
}

#[tokio::test]
async fn f_24_a_driver_that_a_policy_denies_is_counted_as_a_failed_submission() -> Result<()> {
    let Some(world) = World::of(SPARK, "spark-denied", lockstep()).await? else {
        return Ok(());
    };
    let validation = json!({
        "expression": "object.metadata.?labels['spark-role'].orValue('') != 'driver'",
        "message": "no drivers today", "reason": "Invalid",
    });
    let _policy = Refusal::of(&world, ("", "pods"), validation).await?;
    let driver = json!({
        "metadata": { "name": "x", "labels": { "spark-role": "driver" } },
        "spec": { "containers": [{ "name": "a", "image": "b" }] },
    });
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), world.namespace());
    until_refused(&pods, &serde_json::from_value(driver)?).await?;
    let operator = world.operator().await?;
    let mut app = application("pi");
    app["spec"]["restartPolicy"] = json!({
        "type": "OnFailure", "onSubmissionFailureRetries": 1, "onSubmissionFailureRetryInterval": 1,
    });
    world.jobs.create(&app).await?;
    let failed = |job: &Value| job["status"]["applicationState"]["state"] == "FAILED";
    let app = world.jobs.until("pi", "failed", failed).await?;
    let status = &app["status"];
    ensure!(status["submissionAttempts"] == 2, "{status}");
    let text = status["applicationState"]["errorMessage"].as_str();
    ensure!(
        text.is_some_and(|text| text.contains("no drivers today")),
        "{status}"
    );
    world.assert_clean(&operator).await
}

/// The message of the policy against every `NetworkPolicy`.
const NO_POLICIES: &str = "no network policies today";

#[tokio::test]
async fn an_application_whose_network_policy_is_refused_gets_no_driver_and_says_why() -> Result<()>
{
    let Some(world) = World::of(SPARK, "spark-policy", lockstep()).await? else {
        return Ok(());
    };
    world.grant("options/network-policy").await?;
    let validation = json!({ "expression": "false", "message": NO_POLICIES });
    let resource = ("networking.k8s.io", "networkpolicies");
    let policy = Refusal::of(&world, resource, validation).await?;
    let any = json!({ "metadata": { "name": "any" }, "spec": { "podSelector": {} } });
    let any: NetworkPolicy = serde_json::from_value(any)?;
    let policies: Api<NetworkPolicy> = Api::namespaced(world.client.clone(), world.namespace());
    until_refused(&policies, &any).await?;
    let kubeconfig = world.control.kubeconfig(&world.kind.user()).await?;
    let options = world.options(&kubeconfig).flag("network-policy", "true");
    let operator = OperatorProcess::start(options).await?;
    let with_policy = |name: &str| {
        let mut app = application(name);
        app["spec"]["sparkVersion"] = json!("4.2.0");
        app
    };
    world.jobs.create(&with_policy("refused")).await?;
    let has_failed = |app: &Value| app["status"]["applicationState"]["state"] == "FAILED";
    let app = world.jobs.until("refused", "to fail", has_failed).await?;
    let text = &app["status"]["applicationState"]["errorMessage"];
    let text = text.as_str().unwrap_or_default();
    ensure!(text.contains(NO_POLICIES), "{text}");
    let reason = "SparkApplicationSubmissionFailed";
    let namespace = world.namespace();
    let events = read::events_with(&world.client, namespace, "refused", reason).await?;
    let told =
        |event: &(String, String, String)| event.1 == reason && event.2.contains(NO_POLICIES);
    ensure!(events.iter().any(told), "{events:?}");
    world.auditor.settled().await?;
    let made = world.auditor.summary();
    ensure!(!made.contains_key("Pod/refused-driver"), "{made:?}");

    policy.remove().await?;
    until_accepted(&policies, &any).await?;
    world.jobs.create(&with_policy("allowed")).await?;
    world.kubelet.until_pods(namespace, "allowed", 1).await?;
    let policies: Api<NetworkPolicy> = Api::namespaced(world.client.clone(), namespace);
    let policies = policies.list(&ListParams::default()).await?.items;
    ensure!(policies.len() == 1, "{policies:?}");
    world.auditor.settled().await?;
    let made = world.auditor.summary();
    ensure!(made.contains_key("Pod/allowed-driver"), "{made:?}");
    world.assert_clean(&operator).await
}
