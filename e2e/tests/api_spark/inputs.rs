//! Odd applications: invalid ones with the refusal's author and message, and those that run nevertheless.

use k8s_openapi::api::core::v1::Event;
use k8s_openapi::jiff::Timestamp;
use spark_operator::submission::{Inputs, Settings, Submission, submit};

use super::*;

/// What happens to an application.
enum Verdict {
    /// The API server refuses it with this message.
    Refused(&'static str),
    /// It is stored, and fails without a driver, with this message in its status.
    Fails(&'static str),
    /// It is submitted with this warning.
    Warned(&'static str),
    /// It is submitted.
    Runs,
}
use Verdict::{Fails, Refused, Runs, Warned};

type Row = (&'static str, Value, Verdict);

fn conf(key: &str, value: &str) -> Value {
    json!({ "sparkConf": { key: value } })
}

/// Rows by test id; an application's name contains its row's number.
fn rows() -> Vec<Row> {
    let mut rows = denied();
    rows.extend(of_the_submitting_machine());
    rows.extend(numbers());
    rows.extend(placed());
    rows
}

fn denied() -> Vec<Row> {
    let of = |key: &str, why| ("b-160", conf(key, "x"), Refused(why));
    vec![
        of(
            "spark.kubernetes.authenticate.driver.serviceAccountName",
            "configure the service account via the CRD spec instead",
        ),
        of(
            "spark.kubernetes.authenticate.oauthToken",
            "authentication credentials are managed by the operator",
        ),
        of(
            "spark.kubernetes.authenticate.executor.oauthTokenFile",
            "authentication credentials are managed by the operator",
        ),
        of("spark.master", "this value is managed by the operator"),
        of(
            "spark.kubernetes.executor.container.image",
            "use the image field on the CRD instead",
        ),
        (
            "b-161",
            conf("spark.kubernetes.namespace", "kube-system"),
            Refused("must equal the application namespace"),
        ),
        (
            "mt-02",
            conf(
                "spark.kubernetes.authenticate.executor.serviceAccountName",
                "another",
            ),
            Refused("configure the service account via the CRD spec instead"),
        ),
        (
            "mt-02",
            conf("spark.kubernetes.driver.master", "k8s://elsewhere"),
            Refused("this value is managed by the operator"),
        ),
        ("b-163", json!({ "type": "Cobol" }), Refused("spec.type")),
        ("b-163", json!({ "mode": "client" }), Refused("spec.mode")),
        ("b-163", json!({ "mode": "clusters" }), Refused("spec.mode")),
        ("b-168", json!({ "proxyUser": "somebody" }), Runs),
    ]
}

fn of_the_submitting_machine() -> Vec<Row> {
    vec![
        (
            "b-162",
            conf("spark.kubernetes.driver.podTemplateFile", "/etc/passwd"),
            Warned("spec.sparkConf[spark.kubernetes.driver.podTemplateFile] has no effect"),
        ),
        (
            "b-162",
            conf(
                "spark.kubernetes.authenticate.submission.caCertFile",
                "/etc/passwd",
            ),
            Warned("no spark-submit runs"),
        ),
        (
            "b-162",
            conf("spark.kubernetes.file.upload.path", "s3a://x"),
            Warned("no spark-submit runs"),
        ),
        ("b-162", conf("spark.jars.ivySettings", "/etc/passwd"), Runs),
        (
            "b-162",
            conf(
                "spark.kubernetes.driver.pod.featureSteps",
                "org.example.Step",
            ),
            Fails("spec.sparkConf[spark.kubernetes.driver.pod.featureSteps]"),
        ),
        (
            "b-162",
            conf(
                "spark.kubernetes.authenticate.driver.caCertFile",
                "/etc/passwd",
            ),
            Fails("let the driver use its ServiceAccount"),
        ),
        (
            "b-162",
            conf("spark.kerberos.keytab", "/etc/krb5.keytab"),
            Fails("spec.sparkConf[spark.kerberos.keytab]"),
        ),
        (
            "b-162",
            json!({ "mainApplicationFile": "/etc/passwd" }),
            Fails("spec.mainApplicationFile"),
        ),
        (
            "b-164",
            json!({ "type": "Java", "mainApplicationFile": "local:///a.jar" }),
            Fails("spec.mainClass"),
        ),
        (
            "b-164",
            json!({ "mainApplicationFile": null }),
            Refused("spec.mainApplicationFile: Required value"),
        ),
        (
            "b-165",
            json!({ "mainApplicationFile": "--conf" }),
            Fails("spec.mainApplicationFile"),
        ),
        (
            "b-165",
            json!({ "arguments": ["--conf", "spark.master=x", "; id", "$(id)", "two\nlines", "$(SPARK_USER)"] }),
            Runs,
        ),
    ]
}

fn numbers() -> Vec<Row> {
    let driver = |field: &str, value: Value| json!({ "driver": { field: value } });
    let executor = |field: &str, value: Value| json!({ "executor": { field: value } });
    let dynamic = |min: i32, max: i32, first: i32| json!({ "dynamicAllocation": { "enabled": true, "minExecutors": min, "maxExecutors": max, "initialExecutors": first } });
    vec![
        (
            "b-166",
            driver("memory", json!("1.5x")),
            Fails("spec.driver.memory"),
        ),
        (
            "b-166",
            executor("memory", json!("-1g")),
            Fails("spec.executor.memory"),
        ),
        (
            "b-166",
            driver("memory", json!("0")),
            Fails("spec.driver.memory"),
        ),
        (
            "b-166",
            driver("cores", json!(0)),
            Refused("spec.driver.cores"),
        ),
        (
            "b-166",
            driver("coreLimit", json!("half")),
            Fails("spec.driver.coreLimit"),
        ),
        (
            "b-167",
            executor("instances", json!(-1)),
            Refused("spec.executor.instances"),
        ),
        (
            "b-167",
            dynamic(3, 2, 2),
            Fails("spec.dynamicAllocation.maxExecutors"),
        ),
        (
            "b-167",
            dynamic(1, 2, 3),
            Warned("spec.dynamicAllocation.initialExecutors"),
        ),
        (
            "b-174",
            json!({ "restartPolicy": { "type": "OnFailure", "onFailureRetries": -1 } }),
            Refused("onFailureRetries"),
        ),
        (
            "b-099",
            json!({ "restartPolicy": { "type": "OnFailure", "onFailureRetries": 1, "onFailureRetryInterval": 0 } }),
            Refused("onFailureRetryInterval"),
        ),
        (
            "b-099",
            json!({ "restartPolicy": { "type": "OnFailure", "onFailureRetries": 1, "onFailureRetryInterval": 315_360_000 } }),
            Runs,
        ),
    ]
}

fn placed() -> Vec<Row> {
    let ingress = |list: Value| json!({ "driverIngressOptions": list });
    let one = |port: Value, url: &str| json!({ "servicePort": port, "servicePortName": "p", "ingressURLFormat": url });
    let template = json!({ "template": { "spec": { "priority": 1 } } });
    let long = "a".repeat(253);
    vec![
        (
            "b-169",
            json!({ "nodeSelector": { "a": "b" }, "driver": { "nodeSelector": { "c": "d" } } }),
            Refused("node selector cannot be defined at both SparkApplication and Driver/Executor"),
        ),
        (
            "b-169",
            ingress(json!([one(json!(null), "u")])),
            Refused("DriverIngressOptions has nill ServicePort"),
        ),
        (
            "b-169",
            ingress(json!([one(json!(1), "u"), one(json!(1), "v")])),
            Refused("DriverIngressOptions has duplicate ServicePort"),
        ),
        (
            "b-169",
            ingress(json!([one(json!(1), "u"), one(json!(2), "u")])),
            Refused("DriverIngressOptions has duplicate IngressURLFormat"),
        ),
        (
            "b-170",
            json!({ "sparkVersion": "2.4.8", "driver": template }),
            Fails("pod template feature requires Spark version 3.0.0 or higher"),
        ),
        (
            "b-170",
            json!({ "sparkVersion": "latest" }),
            Warned("is no version"),
        ),
        (
            "b-170",
            json!({ "sparkVersion": "" }),
            Warned("is no version"),
        ),
        (
            "b-171",
            json!({ "driver": { "configMaps": [{ "name": "dots.and-digits.1", "path": "/a" }] } }),
            Runs,
        ),
        (
            "b-171",
            json!({ "driver": { "configMaps": [{ "name": long, "path": "/a" }] } }),
            Runs,
        ),
    ]
}

/// `pi` with these fields; those of a role are merged into its own.
fn odd(name: &str, change: &Value) -> Value {
    let mut app = pi();
    app["metadata"]["name"] = json!(name);
    for (key, value) in change.as_object().into_iter().flatten() {
        if let Some(role) = value
            .as_object()
            .filter(|_| ["driver", "executor"].contains(&key.as_str()))
        {
            for (field, value) in role {
                app["spec"][key][field] = value.clone();
            }
        } else {
            app["spec"][key] = value.clone();
        }
    }
    app
}

impl Stage {
    /// Stores it as raw JSON, because our types can't hold it. `None` if it is stored, otherwise the API server's message.
    async fn refuses(&self, app: &Value) -> Result<Option<String>> {
        let path = format!(
            "/apis/sparkoperator.k8s.io/v1beta2/namespaces/{}/sparkapplications",
            self.name()
        );
        let request = http::Request::post(path)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(serde_json::to_vec(app)?)?;
        match self.client.request::<Value>(request).await {
            Ok(_) => Ok(None),
            Err(kube::Error::Api(status)) if (400..500).contains(&status.code) => {
                Ok(Some(status.message))
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn verdict(&self, name: &str, verdict: &Verdict) -> Result<()> {
        let (state, text) = match verdict {
            Refused(_) => return Ok(()),
            Fails(text) => (State::Failed, Some(*text)),
            Warned(_) | Runs => (State::Submitted, None),
        };
        let app = self.until_one(name, &state).await?;
        let status = app.status.context("no status")?.application_state;
        let said = status.error_message.unwrap_or_default();
        ensure!(said.contains(text.unwrap_or_default()), "{name}: {said}");
        let driver = self.api::<Pod>().get_opt(&format!("{name}-driver")).await?;
        ensure!(
            driver.is_some() == (state == State::Submitted),
            "{name}: {driver:?}"
        );
        if let Warned(text) = verdict {
            self.until_told(name, text).await?;
        }
        Ok(())
    }

    async fn until_told(&self, name: &str, text: &str) -> Result<()> {
        eventually(&format!("a warning {text}: {name}"), HANG, async || {
            let all = ListParams::default().fields(&format!("involvedObject.name={name}"));
            let events = self.api::<Event>().list(&all).await?.items;
            let texts: Vec<String> = events.into_iter().filter_map(|e| e.message).collect();
            let told = texts.iter().any(|said| said.contains(text));
            Ok(if told {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{texts:?}"))
            })
        })
        .await
    }
}

#[tokio::test]
async fn mt_02_b_099_b_160_b_161_b_162_b_163_b_164_b_165_b_166_b_167_b_168_b_169_b_170_b_171_b_174_what_can_not_run_is_told_by_its_field()
-> Result<()> {
    let Some(stage) = Stage::open("spark-inputs").await? else {
        return Ok(());
    };
    // The API server reads new policies a moment after they are stored.
    let elsewhere = odd(
        "policies-hold",
        &conf("spark.kubernetes.namespace", "other"),
    );
    eventually("the policies to hold", HANG, async || {
        let said = stage.refuses(&elsewhere).await?;
        if said.is_none() {
            stage
                .api::<SparkApplication>()
                .delete("policies-hold", &DeleteParams::default())
                .await?;
        }
        Ok(said.map_or(Seen::NotYet("stored".to_owned()), |_| Seen::Yes(())))
    })
    .await?;
    let (rows, mut wrong) = (rows(), Vec::new());
    let named = |(number, row): (usize, &Row)| format!("{}-{number}", row.0);
    for (number, row) in rows.iter().enumerate() {
        let name = named((number, row));
        let said = stage.refuses(&odd(&name, &row.1)).await?;
        let fine = match (&row.2, &said) {
            (Refused(text), Some(said)) => said.contains(text),
            (Refused(_), None) | (_, Some(_)) => false,
            (_, None) => true,
        };
        if !fine {
            wrong.push(format!("{name} {}: {said:?}", row.1));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    for (number, row) in rows.iter().enumerate() {
        if let Err(error) = stage.verdict(&named((number, row)), &row.2).await {
            wrong.push(format!("{error:#}"));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    stage.assert_clean().await
}

/// The CRD refuses these, and the operator doesn't check them: the type follows from the file, and negative retries count as none.
const NOT_LOOKED_AT: [&str; 3] = [
    r#"{"type":"Cobol"}"#,
    r#"{"restartPolicy":{"onFailureRetries":-1,"type":"OnFailure"}}"#,
    r#"{"restartPolicy":{"onFailureRetries":1,"onFailureRetryInterval":0,"type":"OnFailure"}}"#,
];

/// The operator's verdict agrees with the API server's.
#[test]
fn i_43_the_operator_judges_every_row_as_the_api_server_does() -> Result<()> {
    let mut wrong = Vec::new();
    let (mut refused, mut aside, mut not_looked_at) = (0, 0, 0);
    for (number, (id, change, verdict)) in rows().iter().enumerate() {
        let mut app = odd("pi", change);
        app["metadata"]["namespace"] = json!("default");
        app["metadata"]["uid"] = json!("11111111-1111-4111-8111-111111111111");
        // The API server drops null fields.
        if let Some(spec) = app["spec"].as_object_mut() {
            spec.retain(|_, value| !value.is_null());
        }
        let said = if let Ok(app) = serde_json::from_value::<SparkApplication>(app) {
            submitted(&app).err()
        } else {
            aside += 1;
            Some("set aside".to_owned())
        };
        let fine = match (verdict, &said) {
            (Refused(text) | Fails(text), Some(said)) => {
                refused += 1;
                said == "set aside" || said.contains(text)
            }
            (Warned(_) | Runs, None) => true,
            (Refused(_), None) => {
                not_looked_at += 1;
                NOT_LOOKED_AT.contains(&change.to_string().as_str())
            }
            _ => false,
        };
        if !fine {
            wrong.push(format!("{id}-{number} {change}: {said:?}"));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    ensure!(
        refused > 25 && aside < 3,
        "{refused} refused, {aside} aside"
    );
    ensure!(not_looked_at == NOT_LOOKED_AT.len(), "{not_looked_at}");
    Ok(())
}

/// The submission of an application, or the reason for its refusal.
fn submitted(app: &SparkApplication) -> Result<Submission, String> {
    let inputs = Inputs {
        submission_id: "0f1e2d3c-4b5a-8697-8899-aabbccddeeff",
        submitted_at: Timestamp::UNIX_EPOCH,
        spec_digest: "1-0123",
        settings: &Settings::default(),
    };
    submit(app, inputs).map_err(|refusal| refusal.to_string())
}

#[tokio::test]
async fn b_165_arguments_are_passed_on_as_they_are() -> Result<()> {
    let Some(stage) = Stage::open("spark-arguments").await? else {
        return Ok(());
    };
    let odd = [
        "--conf",
        "spark.master=x",
        "; id",
        "$(id)",
        "two\nlines",
        "--class",
        "\"quoted\"",
    ];
    let mut app = pi();
    app["spec"]["arguments"] = json!(odd);
    stage.apply(&app).await?;
    let driver = stage.driver().await?;
    let args = driver
        .spec
        .and_then(|s| s.containers[0].args.clone())
        .context("no arguments")?;
    ensure!(args.ends_with(&odd.map(str::to_owned)), "{args:?}");
    ensure!(
        args[..args.len() - odd.len()]
            .iter()
            .all(|a| !a.starts_with("--conf")),
        "{args:?}"
    );
    stage.assert_clean().await
}
