//! Executors' pods: our driver creates the same ones as a driver of the real `spark-submit`.
//!
//! Both drivers run, each in a namespace of its own. The other side gets as a template what the published operator's webhook adds to
//! pods.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use e2e::pods::spark::{APP_NAME, ChangeLog, Entry, SUBMISSION};
use e2e::pods::{Site, Weight, eventually};
use e2e::read;
use e2e::submit::recording::{self, Difference};
use e2e::submit::sandbox::Sandbox;
use e2e::submit::{IMAGE, arguments, recording::SUBMISSION as THEIRS};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use training_testkit::control_plane::workspace;
use training_testkit::manifest;
use training_testkit::wait::Seen;

use super::is_deep;

/// Compared in every run, because its fields use all ways: property, template and both.
const ALWAYS: &str = "containers";

/// The known differences, and why. Each is the end of a path.
const LISTED: [(&str, &str); 2] = [
    (
        "/env/SPARK_USER/value",
        "`spark-submit` writes the user that it runs as; here nothing runs that has one.",
    ),
    (
        "/annotations/kubectl.kubernetes.io/default-container",
        "Spark puts its container behind those of the template, and `kubectl logs` would take the first.",
    ),
];
/// Variables that differ for each driver.
const OWN: [&str; 2] = ["SPARK_DRIVER_POD_IP", "_SPARK_AUTH_SECRET"];

/// One application, and what both sides need.
struct Case {
    application: Value,
    /// The other side's executor template, if it isn't the application's own.
    template: Option<Value>,
    others: Vec<Value>,
}

impl Case {
    fn read(path: &Path) -> Result<Self> {
        let (mut application, mut template, mut others) = (None, None, Vec::new());
        for mut object in manifest::documents(path)? {
            match object["kind"].as_str() {
                Some("SparkApplication") => application = Some(object),
                Some("PodTemplate") => template = Some(object["template"].take()),
                _ => others.push(object),
            }
        }
        let application = application.context("no application")?;
        Ok(Self {
            application,
            template,
            others,
        })
    }

    fn name(&self) -> String {
        read::name(&self.application)
    }

    /// The application as the other side submits it, with an owner there that our operator doesn't know.
    fn theirs(&self, namespace: &str, owner: &ConfigMap) -> Value {
        let mut application = self.application.clone();
        application["apiVersion"] = json!("v1");
        application["kind"] = json!("ConfigMap");
        application["metadata"]["namespace"] = json!(namespace);
        application["metadata"]["uid"] = json!(owner.uid());
        if let Some(template) = &self.template {
            let mut template = template.clone();
            let key = "sparkoperator.k8s.io/mutated-by-spark-operator";
            template["metadata"]["labels"][key] = json!("true");
            application["spec"]["executor"]["template"] = template;
        }
        application
    }
}

/// The first executor that an application's driver creates, in its first stored version.
async fn first_executor(changes: &ChangeLog, site: &Site, app: &str) -> Result<Value> {
    eventually(&format!("an executor of {app}"), async || {
        let entries = changes.entries();
        let label = |entry: &Entry, key: &str| entry.object["metadata"]["labels"][key].clone();
        let of = entries.iter().filter(|entry| label(entry, APP_NAME) == app);
        let of: Vec<&Entry> = of.collect();
        let first = of.iter().find(|entry| label(entry, "spark-exec-id") == "1");
        if let Some(first) = first {
            return Ok(Seen::Yes(first.object.clone()));
        }
        let failed = of.iter().find(|e| e.object["status"]["phase"] == "Failed");
        let said = match failed {
            Some(failed) => site.log(&failed.name).await.unwrap_or_default(),
            None => format!("{} changes", of.len()),
        };
        Ok(Seen::NotYet(said))
    })
    .await
}

/// A pod in comparable form, with the differences between any two runs normalized.
fn plain(pod: &Value, site: &Site) -> Result<Value> {
    let id = pod["metadata"]["labels"][SUBMISSION].as_str();
    let text = pod.to_string();
    let text = text.replace(id.context("no id")?, THEIRS);
    let mut pod: Value = serde_json::from_str(&text.replace(&site.namespace, "NAMESPACE"))?;
    pod["kind"] = json!("Pod");
    pod["spec"]["nodeName"] = Value::Null;
    let owners = pod.pointer_mut("/metadata/ownerReferences");
    for owner in owners.and_then(Value::as_array_mut).into_iter().flatten() {
        if owner["kind"] == "ConfigMap" {
            owner["kind"] = json!("SparkApplication");
            owner["apiVersion"] = json!("sparkoperator.k8s.io/v1beta2");
        }
    }
    let containers = pod.pointer_mut("/spec/containers");
    for container in containers
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        settle(&mut container["env"]);
    }
    let mut all = recording::collected(&[pod]).context("two pods")?;
    all.remove("executor").context("no executor")
}

/// Numbered variables contain Java's options in the order of a hash table; and some variables always differ.
fn settle(env: &mut Value) {
    let is_option = |variable: &Value| {
        let name = variable["name"].as_str().unwrap_or_default();
        name.starts_with("SPARK_JAVA_OPT_")
    };
    let Some(variables) = env.as_array_mut() else {
        return;
    };
    let mut values: Vec<String> = Vec::new();
    for variable in variables.iter().filter(|v| is_option(v)) {
        let value = variable["value"].as_str().unwrap_or_default();
        values.push(value.to_owned());
    }
    values.sort_unstable();
    variables.retain(|variable| !is_option(variable));
    for variable in variables.iter_mut() {
        let name = variable["name"].as_str().unwrap_or_default();
        if OWN.contains(&name) {
            variable["value"] = json!("of the driver");
        }
    }
    let sorted = values.into_iter().enumerate();
    variables.extend(
        sorted.map(|(at, value)| json!({ "name": format!("SPARK_JAVA_OPT_{at}"), "value": value })),
    );
}

/// Runs `spark-submit` with a case and the namespace's kubeconfig.
fn submit(sandbox: &mut Sandbox, application: &Value) -> Result<()> {
    let kubeconfig = std::env::var("TRAINYARD_PODS_KUBECONFIG")?;
    let kubeconfig = std::fs::read_to_string(kubeconfig)?;
    let parsed: kube::config::Kubeconfig = serde_saphyr::from_str(&kubeconfig)?;
    let cluster = parsed.clusters.first().and_then(|c| c.cluster.as_ref());
    let server = cluster.and_then(|c| c.server.as_ref());
    let master = format!("k8s://{}", server.context("no server")?);
    let name = read::name(application);
    let made = arguments::submission(application, &name, &master, THEIRS)?;
    let mut command = vec!["/opt/spark/bin/spark-submit".to_owned()];
    command.extend(made.arguments);
    let mut files = made.files;
    files.insert("/root/.kube/config".to_owned(), kubeconfig);
    let ended = sandbox.run(&command, &files)?;
    ensure!(ended.code == 0, "{}", ended.output);
    Ok(())
}

/// All differences between the executors of a case.
async fn differences(case: &Case, ours: &Site, theirs: &Site) -> Result<Vec<Difference>> {
    manifest::apply(&ours.client, case.others.clone()).await?;
    let changes = (ChangeLog::of(ours), ChangeLog::of(theirs));
    ours.jobs.create(&case.application).await?;
    let owner: ConfigMap = serde_json::from_value(json!({ "metadata": { "name": case.name() } }))?;
    let owner = Api::<ConfigMap>::namespaced(theirs.client.clone(), &theirs.namespace)
        .create(&PostParams::default(), &owner)
        .await?;
    let application = case.theirs(&theirs.namespace, &owner);
    let submitted = tokio::task::spawn_blocking(move || {
        let mut sandbox = Sandbox::open(IMAGE)?;
        submit(&mut sandbox, &application)
    });
    submitted.await??;
    let spark = plain(
        &first_executor(&changes.1, theirs, &case.name()).await?,
        theirs,
    )?;
    let here = plain(&first_executor(&changes.0, ours, &case.name()).await?, ours)?;
    for other in &case.others {
        let (kind, name) = (other["kind"].as_str(), read::name(other));
        ours.kubectl(&["delete", kind.unwrap_or_default(), &name])?;
    }
    // Deletes it, because the next drivers need the room.
    ours.jobs.delete(&case.name()).await?;
    let driver = format!("{}-driver", case.name());
    theirs.kubectl(&["delete", "pod", &driver, "--wait=false"])?;
    Ok(recording::differences(
        "executor",
        Some(&spark),
        Some(&here),
    ))
}

#[tokio::test]
async fn executors_are_those_that_a_driver_of_spark_submit_makes() -> Result<()> {
    let directory = workspace().join("e2e/tests/pods_spark/executors");
    let mut cases = BTreeMap::new();
    for path in manifest::files(&directory)? {
        let case = Case::read(&path)?;
        cases.insert(case.name(), case);
    }
    ensure!(cases.len() >= 5, "{}", cases.len());
    let ours = Site::spark("spark-ours", Weight::Heavy).await?;
    // Drivers of the other side are as heavy; they take turns with ours.
    let theirs = Site::spark("spark-theirs", Weight::Light).await?;
    let (mut unlisted, mut met, mut compared) = (Vec::new(), BTreeSet::new(), 0);
    for (name, case) in &cases {
        if name != ALWAYS && !is_deep() {
            continue;
        }
        compared += 1;
        let found = differences(case, &ours, &theirs).await;
        for difference in found.with_context(|| name.clone())? {
            let listed = LISTED
                .iter()
                .find(|(end, _)| difference.path.ends_with(end));
            match listed {
                Some((end, _)) => _ = met.insert(*end),
                None => unlisted.push(format!("{name}: {difference:?}")),
            }
        }
    }
    ensure!(unlisted.is_empty(), "{}", unlisted.join("\n"));
    ensure!(met.len() == LISTED.len(), "not there any more: {met:?}");
    theirs.finish("the other side").await?;
    ours.finish(&format!("executors of {compared} applications"))
        .await
}
