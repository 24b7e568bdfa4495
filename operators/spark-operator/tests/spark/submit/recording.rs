//! Applications to compare with `spark-submit`, and normalized objects.
//!
//! The tests that record and those that compare both use this, so that both sides are normalized in the same way: additions of an
//! API server are dropped, random parts are replaced by their kind, and lists of named elements become maps.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

/// The Spark versions whose `spark-submit` is recorded, newest first.
pub const VERSIONS: [&str; 2] = ["4.0.1", "3.5.9"];
/// The id of all submissions here.
pub const SUBMISSION: &str = "0f1e2d3c-4b5a-8697-8899-aabbccddeeff";
/// The uid of all applications here.
pub const UID: &str = "11111111-1111-4111-8111-111111111111";
/// The API server's address in recordings.
pub const MASTER: &str = "k8s://https://api-server:443";

/// An application of the matrix.
#[derive(Debug)]
pub struct Entry {
    /// The name of its file.
    pub name: String,
    /// The file.
    pub json: Value,
}

impl Entry {
    /// Returns the application, with this version of Spark.
    pub fn application(&self, version: &str) -> Value {
        let mut metadata = self.json["metadata"].clone();
        metadata["namespace"] = json!("default");
        metadata["uid"] = json!(UID);
        let mut spec = self.json["spec"].clone();
        spec["sparkVersion"] = json!(version);
        json!({
            "apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication",
            "metadata": metadata, "spec": spec,
        })
    }

    /// A name for `spark-submit` that no application may have.
    pub fn named(&self) -> Option<&str> {
        self.json["named"].as_str()
    }
}

/// The directory of applications and recordings, in the workspace at `root`.
pub fn directory(root: &Path) -> PathBuf {
    root.join("operators/spark-operator/tests/data/submit")
}

/// Reads all applications, sorted by name.
pub fn entries(directory: &Path) -> io::Result<Vec<Entry>> {
    let mut all = Vec::new();
    for file in fs::read_dir(directory.join("applications"))? {
        let path = file?.path();
        let name = path.file_stem().unwrap_or_default();
        all.push(Entry {
            name: name.to_string_lossy().into_owned(),
            json: read(&path)?,
        });
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

/// The path of one recording.
pub fn path(directory: &Path, version: &str, name: &str) -> PathBuf {
    directory.join(version).join(format!("{name}.json"))
}

/// Reads a file.
pub fn read(path: &Path) -> io::Result<Value> {
    let at = |why: String| io::Error::other(format!("{}: {why}", path.display()));
    let text = fs::read_to_string(path).map_err(|e| at(e.to_string()))?;
    serde_json::from_str(&text).map_err(|e| at(e.to_string()))
}

/// Returns all normalized objects of a run, by role. `None` if two have the same role.
pub fn collected(all: &[Value]) -> Option<Map<String, Value>> {
    let mut out = Map::new();
    for object in all {
        if out.insert(role(object), plain(object)).is_some() {
            return None;
        }
    }
    // The number in a claim's name follows the order of volumes, which is not guaranteed.
    let volumes = out.get("driver").map(|pod| pod["spec"]["volumes"].clone());
    let volumes = volumes.as_ref().and_then(Value::as_object);
    for (volume, source) in volumes.into_iter().flatten() {
        let claim = &source["persistentVolumeClaim"]["claimName"];
        let claim = claim.as_str().unwrap_or_default();
        if let Some(object) = out.remove(&format!("claim {claim}")) {
            out.insert(format!("claim for {volume}"), object);
        }
    }
    Some(out)
}

/// The role of an object.
fn role(object: &Value) -> String {
    let data = &object["data"];
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    match object["kind"].as_str().unwrap_or_default() {
        "Pod" => {
            let role = object["metadata"]["labels"]["spark-role"].as_str();
            role.unwrap_or("driver").to_owned()
        }
        "Service" => "service".to_owned(),
        "ConfigMap" if !data["spark.properties"].is_null() => "properties".to_owned(),
        "ConfigMap" if !data["podspec-configmap-key"].is_null() => "template".to_owned(),
        "PersistentVolumeClaim" => format!("claim {}", masked(name)),
        kind => format!("{kind} {}", masked(name)),
    }
}

/// Normalizes an object.
fn plain(object: &Value) -> Value {
    let mut out = object.clone();
    metadata(&mut out["metadata"]);
    match object["kind"].as_str().unwrap_or_default() {
        "Pod" => pod(&mut out["spec"]),
        "Service" => service(&mut out["spec"]),
        "PersistentVolumeClaim" => {
            default(&mut out["spec"], "volumeMode", &json!("Filesystem"));
            amounts(&mut out["spec"]["resources"]["requests"]);
        }
        _ => data(&mut out["data"]),
    }
    if let Some(map) = out.as_object_mut() {
        for key in ["apiVersion", "kind", "status"] {
            map.remove(key);
        }
    }
    mask(&mut out);
    let _ = prune(&mut out);
    out
}

fn metadata(of: &mut Value) {
    let Some(map) = of.as_object_mut() else {
        return;
    };
    for key in [
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "managedFields",
        "generation",
        "selfLink",
        "finalizers",
    ] {
        map.remove(key);
    }
    for owner in array(map.get_mut("ownerReferences")) {
        remove(owner, "uid");
    }
}

/// Removes a field if it has its default.
fn default(of: &mut Value, key: &str, value: &Value) {
    if of.get(key) == Some(value) {
        remove(of, key);
    }
}

fn remove(of: &mut Value, key: &str) {
    if let Some(map) = of.as_object_mut() {
        map.remove(key);
    }
}

fn array(of: Option<&mut Value>) -> impl Iterator<Item = &mut Value> {
    of.and_then(Value::as_array_mut).into_iter().flatten()
}

/// Additions of admission to pods, other than defaults of fields.
const ADMITTED_VOLUME: &str = "kube-api-access-";
const ADMITTED_TOLERATIONS: [&str; 2] = [
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
];

fn pod(spec: &mut Value) {
    for (key, value) in [
        ("dnsPolicy", json!("ClusterFirst")),
        ("terminationGracePeriodSeconds", json!(30)),
        ("schedulerName", json!("default-scheduler")),
        ("securityContext", json!({})),
        ("enableServiceLinks", json!(true)),
        ("priority", json!(0)),
        ("preemptionPolicy", json!("PreemptLowerPriority")),
        ("serviceAccount", json!("default")),
        ("serviceAccountName", json!("default")),
    ] {
        default(spec, key, &value);
    }
    // Each follows from the other.
    if spec["serviceAccount"] == spec["serviceAccountName"] {
        remove(spec, "serviceAccount");
    }
    if !spec["priorityClassName"].is_null() {
        remove(spec, "priority");
    }
    if let Some(tolerations) = spec.get_mut("tolerations").and_then(Value::as_array_mut) {
        tolerations.retain(|t| {
            let key = t["key"].as_str().unwrap_or_default();
            !(ADMITTED_TOLERATIONS.contains(&key) && t["tolerationSeconds"] == 300)
        });
    }
    if let Some(volumes) = spec.get_mut("volumes").and_then(Value::as_array_mut) {
        let name = |v: &Value| v["name"].as_str().unwrap_or_default().to_owned();
        volumes.retain(|v| !name(v).starts_with(ADMITTED_VOLUME));
        volumes.iter_mut().for_each(volume);
    }
    for key in ["containers", "initContainers"] {
        for container in array(spec.get_mut(key)) {
            settle(container);
        }
    }
    for key in ["containers", "initContainers", "volumes"] {
        by_name(spec, key, "name");
    }
    shuffled(spec);
}

/// Replaces the names of scratch directories, which Spark shuffles.
fn shuffled(spec: &mut Value) {
    let Value::Object(volumes) = spec["volumes"].clone() else {
        return;
    };
    let is_scratch = |name: &str| name.starts_with("spark-local-dir-");
    let sources = volumes.iter().filter(|(name, _)| is_scratch(name));
    let mut sources = sources.map(|(_, source)| source);
    let first = sources.next();
    let are_alike = sources.all(|source| Some(source) == first);
    for (_, container) in spec["containers"].as_object_mut().into_iter().flatten() {
        if let Some(Value::String(dirs)) = container.pointer_mut("/env/SPARK_LOCAL_DIRS/value") {
            let mut all: Vec<&str> = dirs.split(',').collect();
            all.sort_unstable();
            *dirs = all.join(",");
        }
        let mounts = container["volumeMounts"].as_object_mut();
        let scratch = mounts.into_iter().flatten().filter(|(_, mount)| {
            let name = mount["name"].as_str().unwrap_or_default();
            are_alike && is_scratch(name)
        });
        for (at, (_, mount)) in scratch.enumerate() {
            mount["name"] = json!(format!("spark-local-dir-{}", at + 1));
        }
    }
}

fn volume(volume: &mut Value) {
    for kind in ["configMap", "secret"] {
        if let Some(source) = volume.get_mut(kind) {
            default(source, "defaultMode", &json!(420));
        }
    }
    if let Some(source) = volume.get_mut("hostPath") {
        default(source, "type", &json!(""));
    }
    if let Some(source) = volume.get_mut("emptyDir") {
        if let Some(Value::String(size)) = source.get_mut("sizeLimit") {
            *size = amount(size);
        }
        // An empty source would be dropped.
        source["is"] = json!("emptyDir");
    }
}

fn settle(container: &mut Value) {
    default(
        container,
        "terminationMessagePath",
        &json!("/dev/termination-log"),
    );
    default(container, "terminationMessagePolicy", &json!("File"));
    let image = container["image"].as_str().unwrap_or_default();
    let last = image.rsplit('/').next().unwrap_or_default();
    let late = last.ends_with(":latest") || !last.contains(':');
    if container["imagePullPolicy"].is_null() && !image.is_empty() {
        container["imagePullPolicy"] = json!(if late { "Always" } else { "IfNotPresent" });
    }
    for variable in array(container.get_mut("env")) {
        default(variable, "value", &json!(""));
        let field = variable.pointer_mut("/valueFrom/fieldRef");
        if let Some(field) = field {
            default(field, "apiVersion", &json!("v1"));
        }
    }
    for port in array(container.get_mut("ports")) {
        default(port, "protocol", &json!("TCP"));
    }
    let mounts = container.get_mut("volumeMounts");
    if let Some(mounts) = mounts.and_then(Value::as_array_mut) {
        let name = |v: &Value| v["name"].as_str().unwrap_or_default().to_owned();
        mounts.retain(|mount| !name(mount).starts_with(ADMITTED_VOLUME));
    }
    if let Some(resources) = container.get_mut("resources") {
        for key in ["limits", "requests"] {
            amounts(&mut resources[key]);
        }
        // A limit without a request implies the request.
        let limits = resources["limits"].as_object().cloned();
        for (name, limit) in limits.into_iter().flatten() {
            if resources["requests"][&name].is_null() {
                resources["requests"][&name] = limit;
            }
        }
    }
    by_name(container, "env", "name");
    by_name(container, "ports", "name");
    by_name(container, "volumeMounts", "mountPath");
}

fn service(spec: &mut Value) {
    remove(spec, "clusterIPs");
    for (key, value) in [
        ("internalTrafficPolicy", json!("Cluster")),
        ("sessionAffinity", json!("None")),
        ("type", json!("ClusterIP")),
        ("publishNotReadyAddresses", json!(false)),
    ] {
        default(spec, key, &value);
    }
    for port in array(spec.get_mut("ports")) {
        default(port, "protocol", &json!("TCP"));
    }
    by_name(spec, "ports", "name");
}

/// Turns a list into a map by one of its fields. Further elements of the same name get a number. The order of containers matters,
/// and is kept separately.
fn by_name(of: &mut Value, list: &str, field: &str) {
    let Some(items) = of.get(list).and_then(Value::as_array).cloned() else {
        return;
    };
    let (mut map, mut order) = (Map::new(), Vec::new());
    for mut item in items {
        let name = item[field].as_str().unwrap_or_default().to_owned();
        remove(&mut item, field);
        let again = (2..).map(|n| format!("{name} ({n})"));
        let free = std::iter::once(name.clone())
            .chain(again)
            .find(|key| !map.contains_key(key));
        order.push(json!(name));
        if item == json!({}) {
            item = json!({ "is": name });
        }
        map.insert(free.unwrap_or(name), item);
    }
    if list == "containers" {
        of["order of containers"] = json!(order);
    }
    of[list] = Value::Object(map);
}

fn amounts(of: &mut Value) {
    for (_, value) in of.as_object_mut().into_iter().flatten() {
        let text = match *value {
            Value::String(ref text) => amount(text),
            ref other => amount(&other.to_string()),
        };
        *value = json!(text);
    }
}

/// Formats an amount as the API server does: in the largest unit that divides it.
fn amount(text: &str) -> String {
    let end = text.find(|c: char| !c.is_ascii_digit());
    let (number, unit) = text.split_at(end.unwrap_or(text.len()));
    let Ok(mut number) = number.parse::<u128>() else {
        return text.to_owned();
    };
    let (step, units): (u128, &[&str]) = match unit {
        "m" | "" => (1000, &["m", ""]),
        _ => (1024, &["Ki", "Mi", "Gi", "Ti", "Pi"]),
    };
    let Some(mut at) = units.iter().position(|u| *u == unit) else {
        return text.to_owned();
    };
    while at + 1 < units.len() && number > 0 && number % step == 0 {
        (number, at) = (number / step, at + 1);
    }
    format!("{number}{}", units[at])
}

/// Splits properties into lines, as written in the file, and parses the template.
fn data(data: &mut Value) {
    if let Some(text) = data["spark.properties"].as_str() {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let pairs = lines.map(|line| {
            let (key, value) = split(line);
            (key.to_owned(), json!(value))
        });
        data["spark.properties"] = Value::Object(pairs.collect());
    }
    let key = "podspec-configmap-key";
    if let Some(text) = data[key].as_str() {
        let mut template: Value = serde_json::from_str(text).unwrap_or_else(|_| json!(text));
        if !template["spec"].is_null() {
            metadata(&mut template["metadata"]);
            pod(&mut template["spec"]);
        }
        data[key] = template;
    }
}

/// Splits a line into key and value, without unescaping them.
fn split(line: &str) -> (&str, &str) {
    let mut escaped = false;
    for (at, c) in line.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '=' => return (&line[..at], &line[at + 1..]),
            _ => {}
        }
    }
    (line, "")
}

fn mask(value: &mut Value) {
    match value {
        Value::String(text) => *text = masked(text),
        Value::Array(items) => items.iter_mut().for_each(mask),
        Value::Object(map) => {
            let keys: Vec<String> = map.keys().cloned().collect();
            for key in keys {
                let Some(mut item) = map.remove(&key) else {
                    continue;
                };
                mask(&mut item);
                map.insert(masked(&key), item);
            }
            if let Some(time) = map.get_mut("spark.app.submitTime") {
                // A recent time; an application may have set another.
                if time.as_str().is_some_and(|t| t.len() == 13) {
                    *time = json!("TIME");
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Replaces random parts by their kind: `RUN` for the digits of a run's id, `UNIQUE` for those of a name, `DIRECTORY` for a UUID
/// in a path.
pub fn masked(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let word = rest.find(|c: char| !c.is_ascii_alphanumeric());
        let word = &rest[..word.unwrap_or(rest.len())];
        let is_hex = word
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if out.ends_with("/spark-") && rest.len() >= 36 && word.len() == 8 && is_hex {
            out.push_str("DIRECTORY");
            rest = &rest[36..];
            continue;
        }
        out.push_str(match word.len() {
            32 if is_hex => "RUN",
            16 if is_hex => "UNIQUE",
            _ => word,
        });
        rest = &rest[word.len()..];
        if let Some(c) = rest.chars().next() {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    out
}

/// Drops empty values. True if nothing remains.
fn prune(value: &mut Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => {
            for item in items.iter_mut() {
                let _ = prune(item);
            }
            items.is_empty()
        }
        Value::Object(map) => {
            map.retain(|_, item| !prune(item));
            map.is_empty()
        }
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// One difference between two values.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The path from the object's role on.
    pub path: String,
    /// The value of `spark-submit`.
    pub spark: Option<Value>,
    /// Our value.
    pub here: Option<Value>,
}

/// Returns all differences between two values.
pub fn differences(path: &str, spark: Option<&Value>, here: Option<&Value>) -> Vec<Difference> {
    match (spark, here) {
        (Some(a), Some(b)) if a == b => Vec::new(),
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            let keys: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            let at = |key: &String| differences(&format!("{path}/{key}"), a.get(key), b.get(key));
            keys.into_iter().flat_map(at).collect()
        }
        // In labels and other maps, each key is a difference of its own.
        (None, Some(Value::Object(one))) | (Some(Value::Object(one)), None) if is_map(path) => {
            let side =
                |there: Option<&Value>, key: &String| there.and_then(|v| v.get(key)).cloned();
            let at = |key: &String| Difference {
                path: format!("{path}/{key}"),
                spark: side(spark, key),
                here: side(here, key),
            };
            one.keys().map(at).collect()
        }
        _ => vec![Difference {
            path: path.to_owned(),
            spark: spark.cloned(),
            here: here.cloned(),
        }],
    }
}

fn is_map(path: &str) -> bool {
    [
        "/annotations",
        "/env",
        "/labels",
        "/nodeSelector",
        "/ports",
        "/volumeMounts",
        "/volumes",
    ]
    .iter()
    .any(|end| path.ends_with(end))
}
