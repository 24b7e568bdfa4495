//! What a user who may create pods or applications can't do: pass off a pod as an application's driver, or create an Ingress that the
//! administrator doesn't allow.

use k8s_openapi::api::core::v1::Event;
use k8s_openapi::api::networking::v1::Ingress;

use super::*;

/// Creates a failed pod with the labels and the owner of `pi`'s driver.
async fn forge(stage: &Stage, name: &str) -> Result<()> {
    let app = stage.app().await?;
    let status = app.status.unwrap_or_default();
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {
            "name": name,
            "labels": {
                "spark-role": "driver", "spark-app-selector": "spark-1", "sparkoperator.k8s.io/app-name": "pi",
                "sparkoperator.k8s.io/launched-by-spark-operator": "true",
                "sparkoperator.k8s.io/submission-id": status.submission_id.as_deref().unwrap_or("any"),
            },
            "ownerReferences": [{
                "apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication", "name": "pi",
                "uid": app.metadata.uid, "controller": true,
            }],
        },
        "spec": { "containers": [{ "name": "spark-kubernetes-driver", "image": "i" }], "restartPolicy": "Never" },
    }))?;
    stage.api().create(&PostParams::default(), &pod).await?;
    stage.ends(name, "driver", 1, "").await
}

/// The events about pods that claim to be drivers: text and count.
async fn told(stage: &Stage) -> Result<Vec<(String, i32)>> {
    let events = stage.api::<Event>().list(&ListParams::default()).await?;
    let events = events.items.into_iter();
    let events = events.filter(|e| e.reason.as_deref() == Some("UnknownDriverPod"));
    Ok(events
        .map(|e| (e.message.unwrap_or_default(), e.count.unwrap_or(1)))
        .collect())
}

async fn until_told(stage: &Stage, count: usize) -> Result<Vec<(String, i32)>> {
    eventually("events about forged drivers", HANG, async || {
        let told = told(stage).await?;
        Ok(if told.len() == count {
            Seen::Yes(told)
        } else {
            Seen::NotYet(format!("{told:?}"))
        })
    })
    .await
}

#[tokio::test]
async fn mt_53_a_pod_that_claims_to_be_a_driver_is_told_of_once_and_never_taken_for_one()
-> Result<()> {
    let Some(stage) = Stage::open("spark-forged").await? else {
        return Ok(());
    };
    // While the status has no driver yet, only its name identifies the driver.
    stage.operator.lock().await.kill()?;
    stage.apply(&pi()).await?;
    forge(&stage, "forged-early").await?;
    stage.operator.lock().await.restart().await?;
    let app = stage.until(State::Submitted).await?;
    let info = app.status.context("no status")?.driver_info;
    ensure!(info.pod_name.as_deref() == Some(DRIVER), "{info:?}");
    let said = until_told(&stage, 1).await?;
    ensure!(said[0].0.contains("pod forged-early "), "{said:?}");
    ensure!(said[0].0.contains(DRIVER), "{said:?}");

    // While it runs, the forged pod has even the recorded submission's id.
    forge(&stage, "a-forged-one").await?;
    stage.runs(DRIVER).await?;
    stage.until(State::Running).await?;
    until_told(&stage, 2).await?;
    stage.edit(json!({ "suspend": true })).await?;
    stage.until_gone(DRIVER).await?;
    stage.until(State::Suspended).await?;
    stage.edit(json!({ "suspend": false })).await?;
    stage.driver().await?;
    stage.until(State::Submitted).await?;
    stage.runs(DRIVER).await?;
    stage.ends(DRIVER, "driver", 0, "").await?;
    stage.until(State::Completed).await?;
    for forged in ["forged-early", "a-forged-one"] {
        let pod = stage.api::<Pod>().get(forged).await?;
        ensure!(pod.metadata.deletion_timestamp.is_none(), "{forged}");
    }
    let said = told(&stage).await?;
    ensure!(
        said.len() == 2 && said.iter().all(|(_, count)| *count == 1),
        "{said:?}"
    );
    // No auditor, because the forged pods violate its invariants.
    stage.operator.lock().await.assert_no_panic()
}

#[tokio::test]
async fn mt_08_an_ingress_beyond_what_the_administrator_allows_fails_its_application() -> Result<()>
{
    let limits = |options: Options| {
        options
            .flag("ingress-allowed-host-suffixes", "spark.example.com")
            .flag("ingress-allowed-classes", "internal")
            .flag("ingress-allowed-annotations", "example.com/")
    };
    let Some(stage) = Stage::with("spark-limits", limits).await? else {
        return Ok(());
    };
    let class = "kubernetes.io/ingress.class";
    let url = "{{$appName}}.spark.example.com";
    let door = |url: &str, key: &str, value: &str| json!([{ "servicePort": 8080, "ingressURLFormat": url, "ingressAnnotations": { key: value } }]);
    for (name, door, said) in [
        (
            "host",
            door("evil.org", class, "internal"),
            "--ingress-allowed-host-suffixes",
        ),
        (
            "class",
            door(url, class, "public"),
            "--ingress-allowed-classes",
        ),
        (
            "annotation",
            door(url, "other.org/a", "b"),
            "--ingress-allowed-annotations",
        ),
        (
            "snippet",
            door(url, "example.com/server-snippets", "b"),
            "remove the annotation",
        ),
    ] {
        let mut app = application(name);
        app["spec"]["driverIngressOptions"] = door;
        stage.apply(&app).await?;
        let app = stage.until_one(name, &State::Failed).await?;
        let status = app.status.context("no status")?;
        let text = status.application_state.error_message.unwrap_or_default();
        ensure!(text.contains("spec.driverIngressOptions[0]."), "{text}");
        ensure!(text.contains(said), "{text}");
    }
    let mut app = pi();
    app["spec"]["driverIngressOptions"] = door(url, class, "internal");
    stage.apply(&app).await?;
    stage.until(State::Submitted).await?;
    let ingress = eventually("the Ingress", HANG, async || {
        let there = stage.api::<Ingress>().get_opt("pi-ing-8080").await?;
        Ok(there.map_or(Seen::NotYet("none".to_owned()), Seen::Yes))
    })
    .await?;
    ensure!(ingress.annotations()[class] == "internal", "{ingress:?}");
    let made = stage.names::<Ingress>().await?;
    ensure!(made == ["pi-ing-8080"], "{made:?}");
    stage.assert_clean().await
}
