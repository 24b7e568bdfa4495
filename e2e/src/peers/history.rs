//! What an operator makes of a job: its objects, its status and its events after each act, without values that change from run to run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use aho_corasick::{AhoCorasick, MatchKind};
use anyhow::{Context as _, Result, ensure};
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep};
use training_testkit::SPARK_APP_NAME;
use training_testkit::builders::{Kind, SPARK};

use crate::submit::recording;

/// The kinds of objects that operators create. The API server may lack some.
const CHILDREN: [(&str, &str, &str); 14] = [
    ("", "v1", "Pod"),
    ("", "v1", "Service"),
    ("", "v1", "ConfigMap"),
    ("", "v1", "Secret"),
    ("", "v1", "ServiceAccount"),
    ("", "v1", "PersistentVolumeClaim"),
    ("batch", "v1", "Job"),
    ("autoscaling", "v2", "HorizontalPodAutoscaler"),
    ("networking.k8s.io", "v1", "Ingress"),
    ("policy", "v1", "PodDisruptionBudget"),
    ("rbac.authorization.k8s.io", "v1", "Role"),
    ("rbac.authorization.k8s.io", "v1", "RoleBinding"),
    ("scheduling.volcano.sh", "v1beta1", "PodGroup"),
    ("scheduling.x-k8s.io", "v1alpha1", "PodGroup"),
];
/// The sources of events that aren't an operator's.
const OTHERS: [&str; 5] = [
    "ipallocator-repair-controller",
    "persistentvolume-controller",
    "job-controller",
    "horizontal-pod-autoscaler",
    "controllermanager",
];
/// Metadata that the API server sets.
const SET: [&str; 7] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "generation",
    "managedFields",
    "namespace",
    "selfLink",
];
/// An operator is at rest when nothing has changed for this long.
const QUIET: Duration = Duration::from_millis(2_500);
/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(500);
/// A job that changed in this many looks in a row counts as restless.
const RESTLESS: u32 = 40;
/// The longest wait for rest.
const LIMIT: Duration = Duration::from_mins(10);
/// The label with the submission of an application's pods.
const SUBMISSION: &str = "sparkoperator.k8s.io/submission-id";
/// The API server's port in the properties of an application as JSON and in errors, and the addresses of Services.
const ADDRESSES: [(&str, &str); 3] = [
    (r"127.0.0.1\\:", "PORT"),
    ("127.0.0.1:", "PORT"),
    ("10.96.", "ADDRESS"),
];
/// What the Spark operator says before the output of `spark-submit`.
const SUBMIT_FAILED: &str = "failed to run spark-submit: failed to run spark-submit: ";
/// The beginning of an exception that ends a program.
const EXCEPTION: &str = "Exception in thread";
/// The name under which a history holds the job itself.
pub const JOB: &str = "job";

/// All jobs' stages, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History(pub BTreeMap<String, Vec<Stage>>);

/// What changed by an act.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    /// What happened.
    pub act: String,
    /// New and changed objects by kind and name; `null` for one that is gone.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub objects: BTreeMap<String, Value>,
    /// Objects that were deleted and created again under the same name.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub recreated: BTreeSet<String>,
    /// New events.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub events: BTreeSet<String>,
    /// The API server's answer to a refused job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// The operator never came to rest. The other fields are empty.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restless: bool,
}

impl Stage {
    /// The only stage of a job that the API server refused.
    pub fn refused(why: &str) -> Self {
        Self {
            act: "created".to_owned(),
            refused: Some(why.to_owned()),
            ..Self::default()
        }
    }

    /// The last stage of a job that never comes to rest.
    pub fn restless(act: &str) -> Self {
        Self {
            act: act.to_owned(),
            restless: true,
            ..Self::default()
        }
    }
}

impl History {
    /// Adds a job's next stage.
    pub fn add(&mut self, job: &str, stage: Stage) {
        self.0.entry(job.to_owned()).or_default().push(stage);
    }

    /// Returns the history as JSON with one line per object, so that changes are easy to read.
    pub fn to_text(&self) -> Result<String> {
        let mut out = String::from("{\n");
        for (at, (job, stages)) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { ",\n" };
            write!(out, "{comma}{}: [", json!(job))?;
            for (at, stage) in stages.iter().enumerate() {
                let comma = if at == 0 { "" } else { "," };
                write!(out, "{comma}\n {{\"act\": {}", json!(stage.act))?;
                if let Some(refused) = &stage.refused {
                    write!(out, ",\n  \"refused\": {}", json!(refused))?;
                }
                if stage.restless {
                    out.push_str(",\n  \"restless\": true");
                }
                if !stage.objects.is_empty() {
                    let lines = stage.objects.iter();
                    let lines: Vec<String> = lines
                        .map(|(name, object)| format!("   {}: {object}", json!(name)))
                        .collect();
                    write!(out, ",\n  \"objects\": {{\n{}}}", lines.join(",\n"))?;
                }
                if !stage.recreated.is_empty() {
                    write!(out, ",\n  \"recreated\": {}", json!(stage.recreated))?;
                }
                if !stage.events.is_empty() {
                    let lines = stage.events.iter();
                    let lines: Vec<String> =
                        lines.map(|event| format!("   {}", json!(event))).collect();
                    write!(out, ",\n  \"events\": [\n{}]", lines.join(",\n"))?;
                }
                out.push('}');
            }
            out.push(']');
        }
        out.push_str("\n}\n");
        Ok(out)
    }
}

/// Watches a namespace for the objects of some jobs.
pub struct Recorder {
    client: Client,
    namespace: String,
    jobs: ApiResource,
    kinds: Vec<ApiResource>,
    /// Longest first: an object belongs to the job with the longest name that begins its own.
    names: Vec<String>,
    restless: BTreeSet<String>,
    /// The objects and events at rest, by job.
    now: BTreeMap<String, Found>,
    /// The same at the last stage.
    told: BTreeMap<String, Found>,
}

/// What there is of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Found {
    /// Uid and contents by kind and name.
    objects: BTreeMap<String, (String, Value)>,
    events: BTreeSet<String>,
}

/// How often a job's objects change.
struct Pace {
    /// The time of the last change.
    since: Instant,
    versions: BTreeSet<String>,
    /// The number of looks in a row that found a change.
    changes: u32,
}

impl Pace {
    fn new(now: Instant) -> Self {
        Self {
            since: now,
            versions: BTreeSet::new(),
            changes: 0,
        }
    }

    fn saw(&mut self, versions: BTreeSet<String>, now: Instant) {
        if self.versions == versions {
            self.changes = 0;
        } else {
            (self.since, self.versions) = (now, versions);
            self.changes += 1;
        }
    }
}

impl Recorder {
    /// Records these jobs of a kind.
    pub fn new(client: &Client, namespace: &str, kind: &Kind, mut names: Vec<String>) -> Self {
        names.sort_by_key(|name| std::cmp::Reverse(name.len()));
        Self {
            client: client.clone(),
            namespace: namespace.to_owned(),
            jobs: kind.resource(),
            kinds: Vec::new(),
            names,
            restless: BTreeSet::new(),
            now: BTreeMap::new(),
            told: BTreeMap::new(),
        }
    }

    /// Waits until nothing has changed for some time. Returns the jobs for which that doesn't happen, and records them no longer.
    pub async fn until_settled(&mut self) -> Result<Vec<String>> {
        if self.kinds.is_empty() {
            self.kinds = self.served().await?;
        }
        let end = Instant::now() + LIMIT;
        let mut all: BTreeMap<String, Pace> = BTreeMap::new();
        loop {
            let (found, versions) = self.read().await?;
            let now = Instant::now();
            for name in self
                .names
                .iter()
                .filter(|name| !self.restless.contains(*name))
            {
                let seen = versions.get(name).cloned().unwrap_or_default();
                let pace = all.entry(name.clone()).or_insert(Pace::new(now));
                pace.saw(seen, now);
            }
            let moving = all.iter().filter(|(_, pace)| now - pace.since < QUIET);
            let moving: Vec<(&String, &Pace)> = moving.collect();
            if moving.iter().all(|(_, pace)| pace.changes >= RESTLESS) {
                let restless: Vec<String> =
                    moving.iter().map(|(name, _)| (*name).clone()).collect();
                self.now = found;
                self.restless.extend(restless.iter().cloned());
                return Ok(restless);
            }
            ensure!(now < end, "no rest within {LIMIT:?}");
            sleep(PAUSE).await;
        }
    }

    /// The next stage of this job begins with what there is now.
    pub fn keep(&mut self, job: &str) {
        let now = self.now.get(job).cloned().unwrap_or_default();
        self.told.insert(job.to_owned(), now);
    }

    /// Returns what changed since the last stage of a job.
    pub fn stage(&self, job: &str, act: &str) -> Stage {
        let none = Found::default();
        let now = self.now.get(job).unwrap_or(&none);
        let told = self.told.get(job).unwrap_or(&none);
        let mut stage = Stage {
            act: act.to_owned(),
            ..Stage::default()
        };
        for (name, (uid, object)) in &now.objects {
            let was = told.objects.get(name);
            if was.is_some_and(|(old, _)| old != uid) {
                stage.recreated.insert(name.clone());
            }
            if was.is_none_or(|(_, old)| old != object) {
                stage.objects.insert(name.clone(), object.clone());
            }
        }
        for name in told.objects.keys() {
            if !now.objects.contains_key(name) {
                stage.objects.insert(name.clone(), Value::Null);
            }
        }
        stage.events = now.events.difference(&told.events).cloned().collect();
        stage
    }

    /// Returns the kinds of objects that the API server knows.
    async fn served(&self) -> Result<Vec<ApiResource>> {
        let mut served = Vec::new();
        for (group, version, kind) in CHILDREN {
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
            match self
                .api(&resource)
                .list(&ListParams::default().limit(1))
                .await
            {
                Ok(_) => served.push(resource),
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(served)
    }

    fn api(&self, resource: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, resource)
    }

    /// Returns what there is of each job, and the versions of all of that.
    async fn read(&self) -> Result<(BTreeMap<String, Found>, BTreeMap<String, BTreeSet<String>>)> {
        let mut all: Vec<(String, Value)> = Vec::new();
        for resource in self.kinds.iter().chain([&self.jobs]) {
            for object in self.api(resource).list(&ListParams::default()).await? {
                all.push((resource.kind.clone(), serde_json::to_value(object)?));
            }
        }
        let events = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Event"));
        let mut told = Vec::new();
        for event in self.api(&events).list(&ListParams::default()).await? {
            told.push(serde_json::to_value(event)?);
        }
        let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let owned = all
            .iter()
            .map(|(_, object)| (self.owner(object, &all), object));
        let about = told
            .iter()
            .map(|e| (self.of(text(&e["involvedObject"]["name"])), e));
        for (job, object) in owned.chain(about) {
            if let Some(job) = job {
                let metadata = &object["metadata"];
                let version = format!("{} {}", metadata["uid"], metadata["resourceVersion"]);
                versions.entry(job.to_owned()).or_default().insert(version);
            }
        }
        let masks = self.masks(&all)?;
        let mut found: BTreeMap<String, Found> = BTreeMap::new();
        for (kind, object) in &all {
            let name = text(&object["metadata"]["name"]);
            let Some(job) = self.owner(object, &all) else {
                continue;
            };
            let key = if *kind == self.jobs.kind {
                JOB.to_owned()
            } else {
                format!("{kind} {}", self.masked(name, &masks))
            };
            let uid = text(&object["metadata"]["uid"]).to_owned();
            let plain = plain(kind, &self.jobs.kind, object);
            let plain = serde_json::from_str(&self.masked(&plain.to_string(), &masks))?;
            let found = found.entry(job.to_owned()).or_default();
            found.objects.insert(key, (uid, plain));
        }
        for event in &told {
            let about = &event["involvedObject"];
            let from = match text(&event["reportingComponent"]) {
                "" => text(&event["source"]["component"]),
                from => from,
            };
            let Some(job) = self.of(text(&about["name"])) else {
                continue;
            };
            // Go operators try to create and delete again what they don't see yet.
            let message = text(&event["message"]);
            let again = text(&event["reason"]).starts_with("Failed")
                && (message.ends_with("already exists") || message.ends_with("not found"));
            if OTHERS.contains(&from) || again {
                continue;
            }
            let line = format!(
                "{} {} {} {}: {}",
                text(&event["type"]),
                text(&event["reason"]),
                text(&about["kind"]),
                text(&about["name"]),
                without_output(message)
            );
            let found = found.entry(job.to_owned()).or_default();
            found.events.insert(self.masked(&line, &masks));
        }
        Ok((found, versions))
    }

    /// Returns the job of the object with this name.
    fn of(&self, name: &str) -> Option<&str> {
        let names = self.names.iter().map(String::as_str);
        names.into_iter().find(|job| {
            let rest = name.strip_prefix(job);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '.']))
        })
    }

    /// Returns the job that an object belongs to. Names of an application's objects don't always begin with its own: they belong to
    /// it, or to its driver, by their label or owner.
    fn owner(&self, object: &Value, all: &[(String, Value)]) -> Option<&str> {
        let metadata = &object["metadata"];
        let named = [&metadata["name"], &metadata["labels"][SPARK_APP_NAME]];
        if let Some(job) = named.into_iter().find_map(|name| self.of(text(name))) {
            return Some(job);
        }
        let owners = metadata["ownerReferences"].as_array().into_iter().flatten();
        let owners: Vec<&Value> = owners.map(|owner| &owner["uid"]).collect();
        let is_owner = |object: &Value| owners.contains(&&object["metadata"]["uid"]);
        let (_, owner) = all.iter().find(|(_, object)| is_owner(object))?;
        self.owner(owner, all)
    }

    fn masked(&self, from: &str, masks: &Masks) -> String {
        let mut out = masks.texts.replace_all(from, &masks.masks);
        if self.jobs.kind == SPARK.name {
            out = recording::masked(&out);
            for (before, mask) in ADDRESSES {
                out = with_masked_numbers(&out, before, mask);
            }
        }
        out
    }

    /// Returns the texts that differ between runs.
    fn masks(&self, all: &[(String, Value)]) -> Result<Masks> {
        let mut masks = vec![(self.namespace.as_str(), "NAMESPACE".to_owned())];
        for (_, object) in all {
            let metadata = &object["metadata"];
            masks.push((text(&metadata["uid"]), "UID".to_owned()));
            let submissions = [
                &metadata["labels"][SUBMISSION],
                &object["status"]["submissionID"],
            ];
            for submission in submissions.iter().filter_map(|id| id.as_str()) {
                masks.push((submission, "SUBMISSION".to_owned()));
            }
            if let Some(prefix) = metadata["generateName"].as_str() {
                masks.push((text(&metadata["name"]), format!("{prefix}…")));
            }
        }
        masks.retain(|(text, _)| !text.is_empty());
        let (texts, masks): (Vec<&str>, Vec<String>) = masks.into_iter().unzip();
        let texts = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(texts)?;
        Ok(Masks { texts, masks })
    }
}

/// Texts that differ between runs, and their replacements. A run has hundreds of them, so one search finds all.
struct Masks {
    texts: AhoCorasick,
    masks: Vec<String>,
}

/// Replaces the digits and dots that follow `before`.
fn with_masked_numbers(text: &str, before: &str, mask: &str) -> String {
    let mut parts = text.split(before);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        out.push_str(before);
        out.push_str(mask);
        out.push_str(rest);
    }
    out
}

/// Returns what the Spark operator says of a submission. Of the output of `spark-submit`, only the exception stays.
fn without_output(text: &str) -> String {
    let Some((before, output)) = text.split_once(SUBMIT_FAILED) else {
        return text.to_owned();
    };
    let exception = output.find(EXCEPTION).map_or("", |at| &output[at..]);
    let exception = exception.lines().next().unwrap_or_default();
    format!("{before}{SUBMIT_FAILED}{exception}")
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns an object without what the API server, the scheduler, the kubelet and the controllers set.
fn plain(kind: &str, jobs: &str, object: &Value) -> Value {
    let mut object = object.clone();
    let Some(fields) = object.as_object_mut() else {
        return object;
    };
    for field in ["apiVersion", "kind"] {
        fields.remove(field);
    }
    if let Some(metadata) = fields.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in SET {
            metadata.remove(field);
        }
        if metadata.contains_key("generateName") {
            metadata.remove("name");
        }
    }
    if kind == jobs {
        fields.remove("spec");
        let mut status = fields.remove("status").unwrap_or_default();
        if let Some(Value::String(error)) = status.pointer_mut("/applicationState/errorMessage") {
            *error = without_output(error);
        }
        fields.insert("status".to_owned(), timeless(status));
        return object;
    }
    fields.remove("status");
    if jobs == SPARK.name {
        return timeless(of_spark(kind, object));
    }
    match kind {
        "Pod" => {
            if let Some(spec) = fields.get_mut("spec").and_then(Value::as_object_mut) {
                spec.remove("nodeName");
            }
            without_defaults(&mut object);
        }
        "Service" => {
            if let Some(spec) = fields.get_mut("spec").and_then(Value::as_object_mut) {
                hide_addresses(spec);
            }
        }
        "Secret" => {
            if let Some(data) = fields.get_mut("data").and_then(Value::as_object_mut) {
                data.values_mut().for_each(|value| *value = json!("…"));
            }
        }
        _ => {}
    }
    timeless(object)
}

/// Returns an object of an application in the form in which submissions are compared.
fn of_spark(kind: &str, mut object: Value) -> Value {
    if let Some(spec) = object["spec"].as_object_mut() {
        spec.remove("nodeName");
        hide_addresses(spec);
    }
    object["kind"] = json!(kind);
    // YAML by the Go operator, JSON by ours.
    if let Some(Value::String(template)) = object.pointer_mut("/data/podspec-configmap-key") {
        let read: Option<Value> = serde_saphyr::from_str(template).ok();
        *template = read.map_or_else(|| template.clone(), |read| read.to_string());
    }
    let plain = recording::collected(&[object]).unwrap_or_default();
    plain.into_values().next().unwrap_or_default()
}

/// Removes what the API server adds to every pod.
fn without_defaults(value: &mut Value) {
    let added = |key: &str, value: &Value| match key {
        "terminationMessagePath" => *value == "/dev/termination-log",
        "terminationMessagePolicy" => *value == "File",
        "dnsPolicy" => *value == "ClusterFirst",
        "terminationGracePeriodSeconds" => *value == 30,
        "enableServiceLinks" => *value == true,
        "preemptionPolicy" => *value == "PreemptLowerPriority",
        "priority" => *value == 0,
        "protocol" => *value == "TCP",
        "serviceAccount" => true,
        "resources" | "securityContext" => *value == json!({}),
        "tolerations" | "volumes" | "volumeMounts" => *value == json!([]),
        _ => false,
    };
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(without_defaults);
            fields.retain(|key, value| !added(key, value));
        }
        Value::Array(elements) => {
            elements.retain(|element| {
                let taint = text(&element["key"]).starts_with("node.kubernetes.io/")
                    && element["tolerationSeconds"] == 300;
                !taint && !text(&element["name"]).starts_with("kube-api-access-")
            });
            elements.iter_mut().for_each(without_defaults);
        }
        _ => {}
    }
}

fn hide_addresses(spec: &mut Map<String, Value>) {
    if spec.get("clusterIP").is_none_or(|ip| ip != "None") {
        spec.remove("clusterIP");
        spec.remove("clusterIPs");
    }
}

/// Masks times.
fn timeless(value: Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .into_iter()
            .map(|(key, value)| {
                let time = key.ends_with("Time") || key == "time" || key == "deletionTimestamp";
                let time = time && value.is_string();
                (key, if time { json!("TIME") } else { timeless(value) })
            })
            .collect(),
        Value::Array(values) => values.into_iter().map(timeless).collect(),
        other => other,
    }
}

/// Reads a recorded history.
pub fn read(text: &str) -> Result<History> {
    serde_json::from_str(text).context("the recording is no history")
}
