//! The real `spark-submit` against a real API server: its objects must equal the recordings with which our own submission is compared.
//!
//! `make spark-recordings` makes all recordings again.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use e2e::peers::compare::{differences, judge};
use e2e::peers::drivers::Drivers;
use e2e::peers::history::Stage as Step;
use e2e::peers::{
    EXECUTORS, Stages, distinct, executors, executors_recording, lives, options, ours, recorded,
};
use e2e::submit::recording::{Entry, MASTER, SUBMISSION, VERSIONS, masked};
use e2e::submit::sandbox::{Ended, Sandbox};
use e2e::submit::{IMAGE, SPARK_SUBMIT, arguments, recording, server};
use k8s_openapi::api::core::v1::{
    ConfigMap, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount,
};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::{Client, Resource, ResourceExt as _};
use serde_json::{Map, Value, json};
use training_testkit::builders::SPARK;
use training_testkit::control_plane::{ADMIN, ControlPlane, Options, workspace};
use training_testkit::is_deep;
use training_testkit::operator::OperatorProcess;

/// The images by Spark version.
const IMAGES: [(&str, &str); 2] = [(VERSIONS[0], IMAGE), (VERSIONS[1], "trainyard/spark35:1")];
/// The applications that every test run submits: together they cover most features.
const LIVE: [&str; 5] = [
    "local-dirs-volumes",
    "python",
    "secrets",
    "template-driver",
    "volumes-driver",
];

/// The Go operator's applications without executors: the first's driver ends, because it names a Secret without a key, and the others
/// can't be submitted.
const WITHOUT_EXECUTORS: [&str; 3] = ["m-7daa6a71", "m-94c66f09", "m-be13a54a"];

/// Makes recordings instead of comparing: of the applications and versions named here, or of all.
const RECORD: &str = "TRAINYARD_RECORD";

/// An API server for this test alone: objects stay as `spark-submit` created them.
struct Stage {
    control: ControlPlane,
    client: Client,
    master: String,
}

impl Stage {
    /// `None` on a cluster with a kubelet of its own.
    async fn open() -> Result<Option<Self>> {
        let control = ControlPlane::start(Options::default()).await?;
        if !control.can().play_kubelet {
            e2e::skip("this cluster has a kubelet of its own");
            return Ok(None);
        }
        let client = control.client(ADMIN).await?;
        let kubeconfig = std::fs::read_to_string(control.kubeconfig(ADMIN).await?)?;
        let server = server(&kubeconfig)?;
        let stage = Self {
            control,
            client,
            master: format!("k8s://{server}"),
        };
        for account in [
            "default",
            "spark-operator-spark",
            "for-driver",
            "of-template",
        ] {
            let account: ServiceAccount =
                serde_json::from_value(json!({ "metadata": { "name": account } }))?;
            let _ = stage.api().create(&PostParams::default(), &account).await;
        }
        Ok(Some(stage))
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), "default")
    }

    /// Moves the pod and its dependents from the API server to `to`.
    async fn taken<K>(&self, uid: &str, to: &mut Vec<Value>) -> Result<()>
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
            + Clone
            + serde::de::DeserializeOwned
            + serde::Serialize
            + std::fmt::Debug,
    {
        for object in self.api::<K>().list(&ListParams::default()).await? {
            let owned = object.owner_references().iter().any(|o| o.uid == uid);
            if !owned && object.uid().as_deref() != Some(uid) {
                continue;
            }
            let now = DeleteParams::default().grace_period(0);
            self.api::<K>().delete(&object.name_any(), &now).await?;
            let mut object = serde_json::to_value(object)?;
            object["kind"] = json!(K::kind(&()));
            to.push(object);
        }
        Ok(())
    }

    /// Submits an application, and returns the result as a recording.
    async fn record(&self, sandbox: &mut Sandbox, entry: &Entry, version: &str) -> Result<Value> {
        let application = entry.application(version);
        let name = application["metadata"]["name"].as_str();
        let name = entry.named().or(name).context("no name")?;
        let made = arguments::submission(&application, name, &self.master, SUBMISSION)?;
        let mut command = vec![SPARK_SUBMIT.to_owned()];
        command.extend(made.arguments.iter().cloned());
        let mut files = made.files;
        let kubeconfig = self.control.kubeconfig(ADMIN).await?;
        files.insert(
            "/root/.kube/config".to_owned(),
            std::fs::read_to_string(kubeconfig)?,
        );
        let ended = sandbox.run(&command, &files)?;
        let arguments = made.arguments.iter().map(|a| self.neutral(a));
        let mut out = json!({ "arguments": arguments.collect::<Vec<_>>() });
        let pods = self.api::<Pod>().list(&ListParams::default()).await?;
        ensure!(pods.items.len() < 2, "pods of earlier submissions are left");
        if ended.code != 0 {
            ensure!(pods.items.is_empty(), "{}", ended.output);
            out["refused"] = json!(self.neutral(&why(&ended)));
            return Ok(out);
        }
        let uid = pods.items.first().and_then(kube::ResourceExt::uid);
        let uid = uid.with_context(|| ended.output.clone())?;
        let mut all = Vec::new();
        self.taken::<ConfigMap>(&uid, &mut all).await?;
        self.taken::<NetworkPolicy>(&uid, &mut all).await?;
        self.taken::<PersistentVolumeClaim>(&uid, &mut all).await?;
        self.taken::<Secret>(&uid, &mut all).await?;
        self.taken::<Service>(&uid, &mut all).await?;
        self.taken::<Pod>(&uid, &mut all).await?;
        let objects = recording::collected(&all).context("two objects for the same")?;
        let mut objects = Value::Object(objects);
        self.neutralise(&mut objects);
        out["objects"] = objects;
        Ok(out)
    }

    /// Replaces this API server's address in a text.
    fn neutral(&self, text: &str) -> String {
        let escaped = |text: &str| text.replace(':', "\\:");
        let scheme = |text: &str| text.trim_start_matches("k8s://").to_owned();
        let (own, neutral) = (scheme(&self.master), scheme(MASTER));
        text.replace(&own, &neutral)
            .replace(&escaped(&own), &escaped(&neutral))
    }

    fn neutralise(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.neutral(text),
            Value::Array(items) => items.iter_mut().for_each(|i| self.neutralise(i)),
            Value::Object(map) => map.values_mut().for_each(|v| self.neutralise(v)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// The line with the error.
fn why(ended: &Ended) -> String {
    let lines = || ended.output.lines().map(str::trim);
    let cause = lines().rfind(|line| line.starts_with("Caused by: "));
    let thrown = lines().find(|line| line.starts_with("Exception in thread"));
    let said = lines().find(|line| line.contains("Error: ") || line.contains("ERROR "));
    let other = || lines().find(|line| !line.contains(" WARN ") && !line.contains("WARNING"));
    let line = cause.or(thrown).or(said).or_else(other);
    // The message contains the API server's answer twice.
    let line = line.unwrap_or_default();
    masked(line.split(" Received status: ").next().unwrap_or(line))
}

fn write(path: &Path, value: &Value) -> Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    std::fs::write(path, serde_json::to_string_pretty(value)? + "\n")?;
    Ok(())
}

#[tokio::test]
async fn spark_submit_makes_what_is_recorded() -> Result<()> {
    let Some(stage) = Stage::open().await? else {
        return Ok(());
    };
    if let Ok(only) = std::env::var(RECORD) {
        return record(&stage, &only).await;
    }
    let directory = recording::directory(&workspace());
    let (version, image) = IMAGES[0];
    let mut sandbox = Sandbox::open(image)?;
    let entries = recording::entries(&directory)?;
    let entries: BTreeMap<&str, &Entry> = entries.iter().map(|e| (e.name.as_str(), e)).collect();
    for name in LIVE {
        let entry = entries.get(name).context(name)?;
        let now = stage.record(&mut sandbox, entry, version).await?;
        let then = recording::read(&recording::path(&directory, version, name))?;
        let differing = recording::differences(name, Some(&then), Some(&now));
        ensure!(differing.is_empty(), "{differing:#?}");
    }
    Ok(())
}

/// Makes all recordings again, or those of the named applications and versions.
async fn record(stage: &Stage, only: &str) -> Result<()> {
    let directory = recording::directory(&workspace());
    let only: Vec<&str> = only.split_whitespace().collect();
    let mut provenance = Map::new();
    let wanted = |word: &str, all: &[&str]| {
        let some: Vec<&&str> = only.iter().filter(|w| all.contains(w)).collect();
        some.is_empty() || some.contains(&&word)
    };
    let versions = IMAGES.map(|(version, _)| version);
    let entries = recording::entries(&directory)?;
    let names: Vec<&str> = entries.iter().map(|e| e.name.as_str()).collect();
    for (version, image) in IMAGES {
        if !wanted(version, &versions) {
            continue;
        }
        let mut sandbox = Sandbox::open(image)?;
        let java = sandbox.run(&["java", "-version"].map(str::to_owned), &BTreeMap::new())?;
        let server = stage.client.apiserver_version().await?;
        let java = java.output.lines().find(|l| l.contains("version"));
        let how = json!({
            "image": image, "java": java, "kubernetes": server.git_version, "made": "make spark-recordings",
        });
        provenance.insert(version.to_owned(), how);
        for entry in entries.iter().filter(|e| wanted(&e.name, &names)) {
            let recorded = stage.record(&mut sandbox, entry, version).await;
            let recorded = recorded.with_context(|| entry.name.clone())?;
            let said = recorded["refused"].as_str().unwrap_or("made");
            eprintln!("{version} {}: {said}", entry.name);
            write(
                &recording::path(&directory, version, &entry.name),
                &recorded,
            )?;
        }
    }
    if !only.is_empty() {
        return Ok(());
    }
    let path = directory.join("provenance.json");
    write(&path, &Value::Object(provenance))
}

/// Spark's real driver creates executors for applications that our operator submits. The Go operator's recorded executors have also
/// been through its webhook.
#[tokio::test]
async fn executors_are_those_of_the_go_operator() -> Result<()> {
    let mut rules = training_manifests::differences::read(&workspace())?;
    rules.retain(|rule| rule.kinds == [EXECUTORS]);
    let control = ControlPlane::start(options()).await?;
    if !control.can().play_kubelet {
        e2e::skip("this cluster has a kubelet of its own");
        return Ok(());
    }
    control.install(SPARK.operator).await?;
    let mut stages = Stages::on(&control, SPARK).await?;
    stages.drivers = Some(Drivers::open(&control).await?);
    let operator =
        OperatorProcess::start(ours(&control, &SPARK, stages.namespace()).await?).await?;
    let mut go = recorded(&executors_recording())?;
    let mut lives = lives::with_executors()?;
    for life in &lives {
        let name = life.name();
        ensure!(go.0.contains_key(name), "{name}: run make peer-recordings");
    }
    if !is_deep() {
        // Each takes a JVM.
        let distinct = distinct(&go)?;
        go.0.retain(|name, _| distinct.contains(name));
    }
    let is_empty = |stages: &[Step]| stages.iter().all(|stage| stage.objects.is_empty());
    let without = go.0.iter().filter(|(_, stages)| is_empty(stages));
    let without: Vec<&String> = without.map(|(name, _)| name).collect();
    ensure!(without == WITHOUT_EXECUTORS, "no executors: {without:?}");
    lives.retain(|life| go.0.contains_key(life.name()));
    // An operator on a busy machine may not have submitted everything at the first rest.
    let has_driver = |_: &str, steps: &[Step]| {
        let objects = steps.iter().flat_map(|step| step.objects.keys());
        objects.into_iter().any(|key| key.starts_with("Pod "))
    };
    let history = stages.play(&lives, async |_| Ok(()), has_driver);
    let history = history.await.with_context(|| operator.log_tail())?;
    let found = differences(&go, &executors(history));
    judge(&rules, &[(EXECUTORS.to_owned(), found)].into())
}
