//! Namespaces selected by their labels.

use k8s_openapi::api::core::v1::Namespace as Space;

use super::*;

/// The state of an application in a namespace.
async fn state(stage: &Stage, namespace: &str, name: &str) -> Result<Option<State>> {
    let api: Api<SparkApplication> = Api::namespaced(stage.client.clone(), namespace);
    let status = api.get(name).await?.status;
    Ok(status.map(|status| status.application_state.state))
}

async fn create(stage: &Stage, namespace: &str, name: &str) -> Result<()> {
    let mut app = pi();
    app["metadata"]["name"] = json!(name);
    let app: SparkApplication = serde_json::from_value(app)?;
    let api: Api<SparkApplication> = Api::namespaced(stage.client.clone(), namespace);
    api.create(&PostParams::default(), &app).await?;
    Ok(())
}

async fn until_submitted(stage: &Stage, namespace: &str, name: &str) -> Result<()> {
    eventually(
        &format!("{namespace}/{name} to be submitted"),
        HANG,
        async || {
            let now = state(stage, namespace, name).await?;
            Ok(if now == Some(State::Submitted) {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{now:?}"))
            })
        },
    )
    .await
}

/// Adds a label to a namespace, or removes it.
async fn label(stage: &Stage, namespace: &str, key: &str, value: Option<&str>) -> Result<()> {
    let patch = Patch::Merge(json!({ "metadata": { "labels": { key: value } } }));
    let api: Api<Space> = Api::all(stage.client.clone());
    api.patch(namespace, &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

async fn grant(client: &Client) -> Result<()> {
    let file = workspace().join("manifests/spark-operator/options/namespace-selector.yaml");
    manifest::apply(client, manifest::documents(&file)?).await
}

#[tokio::test]
async fn namespaces_are_served_while_they_have_the_labels_and_named_ones_always() -> Result<()> {
    let control = ControlPlane::shared().await?;
    if !control.can().play_kubelet {
        e2e::skip("this cluster has a kubelet of its own");
        return Ok(());
    }
    grant(&control.client(ADMIN).await?).await?;
    let other = Namespace::create(control, "spark-labelled").await?;
    let other = other.name.as_str();
    let selector = format!("serves in ({other}, nobody)");
    let flags = |options: Options| options.flag("namespace-selector", &selector);
    let Some(stage) = Stage::with("spark-named", flags).await? else {
        return Ok(());
    };
    create(&stage, other, "waits").await?;
    create(&stage, stage.name(), "first").await?;
    until_submitted(&stage, stage.name(), "first").await?;
    ensure!(state(&stage, other, "waits").await?.is_none());

    label(&stage, other, "serves", Some(other)).await?;
    until_submitted(&stage, other, "waits").await?;

    label(&stage, other, "serves", None).await?;
    eventually("the namespace to be left alone", HANG, async || {
        let log = stage.operator.lock().await.log();
        Ok(if log.contains("stopped serving the namespace") {
            Seen::Yes(())
        } else {
            Seen::NotYet("it is served".to_owned())
        })
    })
    .await?;
    create(&stage, other, "late").await?;
    // In a served namespace, this edit would start a new run.
    let edit = Patch::Merge(json!({ "spec": { "executor": { "instances": 3 } } }));
    let apps: Api<SparkApplication> = Api::namespaced(stage.client.clone(), other);
    apps.patch("waits", &PatchParams::default(), &edit).await?;
    create(&stage, stage.name(), "second").await?;
    until_submitted(&stage, stage.name(), "second").await?;
    ensure!(state(&stage, other, "late").await?.is_none());
    ensure!(state(&stage, other, "waits").await? == Some(State::Submitted));

    // The operator also evaluates the labels that exist at its start.
    label(&stage, other, "serves", Some("nobody")).await?;
    stage.operator.lock().await.kill()?;
    stage.operator.lock().await.restart().await?;
    until_submitted(&stage, other, "late").await?;
    stage.assert_clean().await
}

#[tokio::test]
async fn a_selector_that_nobody_can_read_ends_the_operator_with_its_name() -> Result<()> {
    let control = ControlPlane::shared().await?;
    if !control.can().play_kubelet {
        e2e::skip("this cluster has a kubelet of its own");
        return Ok(());
    }
    control.install(SPARK_OPERATOR).await?;
    grant(&control.client(ADMIN).await?).await?;
    let kubeconfig = control.kubeconfig(&operator_user(SPARK_OPERATOR)).await?;
    let log = control.scratch().join("bad-selector.log");
    let options = Options::new(SPARK_OPERATOR, &kubeconfig, "default", &log);
    let options = options.flag("namespace-selector", "spark in yes");
    let mut operator = OperatorProcess::spawn(options)?;
    eventually("the operator to end", HANG, async || {
        Ok(if operator.has_ended()? {
            Seen::Yes(())
        } else {
            Seen::NotYet(operator.log())
        })
    })
    .await?;
    let said = operator.log();
    ensure!(
        said.contains("--namespace-selector can't be read: "),
        "{said}"
    );
    ensure!(said.contains("spark in yes"), "{said}");
    Ok(())
}
