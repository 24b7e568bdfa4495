//! Takes over the published operator's applications in every state: they go on, and nothing is submitted twice.

use super::*;

/// The published operator's submission id.
const SUBMISSION: &str = "e1c2e1b4-1111-4222-8333-444444444444";
/// The Spark application id of that submission's driver.
const SPARK_ID: &str = "spark-9f8e7d6c5b4a";
/// A time long ago.
const LONG_AGO: &str = "2026-05-28T20:26:00Z";

/// An application as the published operator left it.
struct Left {
    state: &'static str,
    /// The last phase of its driver; `None` if there is no driver.
    driver: Option<&'static str>,
    /// Additional fields of its status.
    status: Value,
    /// Additional fields of its spec.
    spec: Value,
    /// The state that it reaches by itself.
    becomes: State,
    /// The number of drivers that this takes.
    drivers: usize,
    /// `submissionAttempts` and `executionAttempts` in that state.
    attempts: (i32, i32),
}

fn left(
    state: &'static str,
    driver: Option<&'static str>,
    becomes: State,
    drivers: usize,
    attempts: (i32, i32),
) -> Left {
    Left {
        state,
        driver,
        status: json!({}),
        spec: json!({}),
        becomes,
        drivers,
        attempts,
    }
}

fn all() -> Vec<Left> {
    let ended = json!({ "terminationTime": "2026-05-28T20:26:30Z" });
    let with = |status: &Value, left: Left| Left {
        status: status.clone(),
        ..left
    };
    let suspended = |left: Left| Left {
        spec: json!({ "suspend": true }),
        ..left
    };
    vec![
        with(
            &ended,
            left("COMPLETED", Some("Succeeded"), State::Completed, 0, (1, 1)),
        ),
        with(
            &ended,
            left("FAILED", Some("Failed"), State::Failed, 0, (1, 1)),
        ),
        with(&ended, left("COMPLETED", None, State::Completed, 0, (1, 1))),
        left("SUBMITTED", Some("Pending"), State::Submitted, 0, (1, 1)),
        left("SUBMITTED", Some("Running"), State::Running, 0, (1, 1)),
        left("RUNNING", Some("Running"), State::Running, 0, (1, 1)),
        left("UNKNOWN", Some("Running"), State::Running, 0, (1, 1)),
        left("RUNNING", Some("Succeeded"), State::Completed, 0, (1, 1)),
        left("SUCCEEDING", Some("Succeeded"), State::Completed, 0, (1, 1)),
        left("FAILING", Some("Failed"), State::Submitted, 1, (2, 2)),
        with(
            &json!({ "submissionAttempts": 4, "executionAttempts": 4 }),
            left("FAILING", Some("Failed"), State::Failed, 0, (4, 4)),
        ),
        left("PENDING_RERUN", Some("Failed"), State::Submitted, 1, (2, 2)),
        left("INVALIDATING", Some("Running"), State::Submitted, 1, (1, 1)),
        suspended(left(
            "SUSPENDING",
            Some("Running"),
            State::Suspended,
            0,
            (1, 1),
        )),
        suspended(left("SUSPENDED", None, State::Suspended, 0, (1, 1))),
        left("SUSPENDED", None, State::Submitted, 1, (2, 2)),
        left("RESUMING", None, State::Submitted, 1, (2, 2)),
        with(
            &json!({ "executionAttempts": 0 }),
            left("SUBMISSION_FAILED", None, State::Submitted, 1, (2, 1)),
        ),
        with(
            &json!({ "submissionAttempts": 4, "executionAttempts": 0 }),
            left("SUBMISSION_FAILED", None, State::Failed, 0, (4, 0)),
        ),
    ]
}

impl Left {
    fn name(&self, number: usize) -> String {
        format!("{}-{number}", self.state.to_lowercase().replace('_', "-"))
    }

    /// Stores it and its objects as the published operator would.
    async fn store(&self, stage: &Stage, name: &str) -> Result<()> {
        let mut app = pi();
        app["metadata"]["name"] = json!(name);
        app["spec"]["restartPolicy"] = json!({
            "type": "OnFailure", "onFailureRetries": 3, "onFailureRetryInterval": 1,
            "onSubmissionFailureRetries": 3, "onSubmissionFailureRetryInterval": 1,
        });
        merge(&mut app["spec"], &self.spec);
        stage.apply(&app).await?;
        let apps = stage.api::<SparkApplication>();
        let uid = apps.get(name).await?.uid().context("no uid")?;
        if let Some(phase) = self.driver {
            stage.leave_driver(name, &uid, phase).await?;
        }
        let mut status = json!({
            "applicationState": { "state": self.state },
            "driverInfo": {
                "podName": format!("{name}-driver"), "webUIServiceName": format!("{name}-ui-svc"),
                "webUIAddress": "10.0.0.9:4040", "webUIPort": 4040,
            },
            "submissionID": SUBMISSION, "sparkApplicationId": SPARK_ID, "lastSubmissionAttemptTime": LONG_AGO,
            "submissionAttempts": 1, "executionAttempts": 1, "terminationTime": null,
        });
        merge(&mut status, &self.status);
        stage.status_of(name, &status).await
    }
}

fn merge(to: &mut Value, more: &Value) {
    for (key, value) in more.as_object().into_iter().flatten() {
        to[key] = value.clone();
    }
}

impl Stage {
    async fn status_of(&self, name: &str, status: &Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "status": status }));
        let params = PatchParams {
            field_manager: Some("spark-operator".to_owned()),
            ..PatchParams::default()
        };
        let apps = self.api::<SparkApplication>();
        apps.patch_status(name, &params, &patch).await?;
        Ok(())
    }

    /// Creates a driver, its Service and ConfigMap, and the Service of its UI, as the published operator and `spark-submit` do.
    async fn leave_driver(&self, name: &str, uid: &str, phase: &str) -> Result<()> {
        let labels = json!({
            "sparkoperator.k8s.io/app-name": name, "sparkoperator.k8s.io/submission-id": SUBMISSION,
            "sparkoperator.k8s.io/launched-by-spark-operator": "true", "spark-role": "driver",
            "spark-app-selector": SPARK_ID, "spark-app-name": name,
        });
        let app = json!({
            "apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication", "name": name, "uid": uid,
            "controller": true, "blockOwnerDeletion": true,
        });
        let driver = format!("{name}-driver");
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "name": driver, "labels": labels, "ownerReferences": [app] },
            "spec": { "restartPolicy": "Never", "containers": [{ "name": "spark-kubernetes-driver", "image": "spark" }] },
        }))?;
        let post = PostParams::default();
        let made = self.api::<Pod>().create(&post, &pod).await?;
        let owner = json!({
            "apiVersion": "v1", "kind": "Pod", "name": driver, "uid": made.uid(), "controller": true,
        });
        let map: ConfigMap = serde_json::from_value(json!({
            "metadata": { "name": format!("spark-drv-{name}-conf-map"), "ownerReferences": [owner] },
            "immutable": true, "data": { "spark.properties": "spark.app.id=x" },
        }))?;
        self.api().create(&post, &map).await?;
        for (service, owner, labels) in [
            (
                format!("{name}-0123456789abcdef-driver-svc"),
                &owner,
                json!({ "spark-app-selector": SPARK_ID }),
            ),
            (
                format!("{name}-ui-svc"),
                &app,
                json!({ "sparkoperator.k8s.io/app-name": name }),
            ),
        ] {
            let service: Service = serde_json::from_value(json!({
                "metadata": { "name": service, "ownerReferences": [owner], "labels": labels },
                "spec": { "ports": [{ "name": "spark-driver-ui-port", "port": 4040 }], "selector": labels },
            }))?;
            self.api().create(&post, &service).await?;
        }
        match phase {
            "Pending" => Ok(()),
            "Running" => self.runs(&driver).await,
            "Succeeded" => self.ends(&driver, "driver", 0, "").await,
            _ => self.ends(&driver, "driver", 1, "").await,
        }
    }
}

#[tokio::test]
async fn i_42_what_the_published_operator_leaves_goes_on_in_every_state_and_nothing_is_submitted_twice()
-> Result<()> {
    let Some(stage) = Stage::open("spark-takeover").await? else {
        return Ok(());
    };
    stage.operator.lock().await.kill()?;
    let all = all();
    for (number, left) in all.iter().enumerate() {
        let name = left.name(number);
        left.store(&stage, &name).await.context(name)?;
    }
    let since = stage.control.audit()?.mark().await?;
    stage.operator.lock().await.restart().await?;
    for (number, left) in all.iter().enumerate() {
        let name = left.name(number);
        let app = stage.until_one(&name, &left.becomes).await?;
        let status = app.status.context("no status")?;
        let attempts = (
            status.submission_attempts.unwrap_or(0),
            status.execution_attempts.unwrap_or(0),
        );
        ensure!(attempts == left.attempts, "{name}: {status:?}");
        let same = status.submission_id.as_deref() == Some(SUBMISSION);
        ensure!(same == (left.drivers == 0), "{name}: {status:?}");
    }
    // After a restart, finished applications stay unchanged.
    stage.operator.lock().await.kill()?;
    stage.operator.lock().await.restart().await?;
    // A new application is reconciled last.
    stage.apply(&pi()).await?;
    stage.until(State::Submitted).await?;
    let wrote = stage.wrote(since).await?;
    for (number, left) in all.iter().enumerate() {
        let name = left.name(number);
        let its = |e: &&Entry| e.name == name || e.name.starts_with(&format!("{name}-"));
        let of: Vec<&Entry> = wrote.iter().filter(its).collect();
        let driver = |e: &&&Entry| e.resource == "pods" && e.verb == "create" && e.code == 201;
        let drivers = of.iter().filter(driver).count();
        ensure!(drivers == left.drivers, "{name}: {of:?}");
        if ["COMPLETED", "FAILED"].contains(&left.state) {
            ensure!(of.is_empty(), "{name} has ended, and is written to: {of:?}");
        }
    }
    // The other operator's objects lack our labels and some times, so its violations don't count.
    stage.auditor.until_settled().await?;
    stage.operator.lock().await.assert_no_panic()
}

#[tokio::test]
async fn an_edit_of_what_the_published_operator_ended_begins_anew_if_the_operator_sees_it()
-> Result<()> {
    let Some(stage) = Stage::open("spark-taken-edit").await? else {
        return Ok(());
    };
    stage.operator.lock().await.kill()?;
    let ended = Left {
        status: json!({ "terminationTime": "2026-05-28T20:26:30Z" }),
        ..left("COMPLETED", Some("Succeeded"), State::Completed, 0, (1, 1))
    };
    for name in ["seen", "unseen"] {
        ended.store(&stage, name).await?;
    }
    let apps = stage.api::<SparkApplication>();
    let edit = Patch::Merge(json!({ "spec": { "arguments": ["10"] } }));
    apps.patch("unseen", &PatchParams::default(), &edit).await?;
    stage.operator.lock().await.restart().await?;
    // A new application is reconciled last.
    stage.apply(&pi()).await?;
    stage.until(State::Submitted).await?;
    apps.patch("seen", &PatchParams::default(), &edit).await?;
    let again = stage.until_one("seen", &State::Submitted).await?;
    let again = again.status.context("no status")?.submission_id;
    ensure!(
        again.as_deref().is_some_and(|id| id != SUBMISSION),
        "{again:?}"
    );
    let left = apps.get("unseen").await?.status.context("no status")?;
    ensure!(
        left.submission_id.as_deref() == Some(SUBMISSION),
        "{left:?}"
    );
    stage.auditor.until_settled().await?;
    stage.operator.lock().await.assert_no_panic()
}
