//! The command line and files that the published operator generates for an application.
//!
//! Source: the published mapping of fields to arguments. This code is independent of our own submission: it reads the application
//! as JSON, and implements only the contract.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

/// The input of `spark-submit`.
#[derive(Debug)]
pub struct Submission {
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Required files, by path.
    pub files: BTreeMap<String, String>,
}

const LOCAL_DIR: &str = "spark-local-dir-";
const POD_NAME: &str = "spark.kubernetes.driver.pod.name";

/// The arguments, one group after the other. For duplicate keys, the last one wins.
struct Line(Vec<String>);

impl Line {
    fn flag(&mut self, flag: &str, value: &str) {
        self.0.extend([flag.to_owned(), value.to_owned()]);
    }

    fn conf(&mut self, key: &str, value: impl std::fmt::Display) {
        self.0
            .extend(["--conf".to_owned(), format!("{key}={value}")]);
    }

    /// Adds a scalar if it is set.
    fn set(&mut self, key: &str, value: &Value) {
        match value {
            Value::Null | Value::Array(_) | Value::Object(_) => {}
            Value::String(text) => self.conf(key, text),
            Value::Bool(_) | Value::Number(_) => self.conf(key, value),
        }
    }

    /// Adds a text if it isn't empty.
    fn text(&mut self, key: &str, value: &Value) {
        if let Some(text) = value.as_str().filter(|t| !t.is_empty()) {
            self.conf(key, text);
        }
    }

    /// Adds one property for each entry of a map.
    fn map(&mut self, prefix: &str, map: &Value) {
        for (key, value) in map.as_object().into_iter().flatten() {
            self.set(&format!("{prefix}{key}"), value);
        }
    }
}

/// Applies the defaults of the defaulting webhook.
fn defaulted(application: &Value) -> Value {
    let mut spec = application["spec"].clone();
    let conf = spec["sparkConf"].clone();
    let dynamic = spec["dynamicAllocation"]["enabled"] == true;
    for (role, field, value) in [
        ("driver", "cores", json!(1)),
        ("driver", "memory", json!("1g")),
        ("executor", "cores", json!(1)),
        ("executor", "memory", json!("1g")),
        ("executor", "instances", json!(1)),
    ] {
        let said = !conf[format!("spark.{role}.{field}")].is_null();
        let unused = field == "instances" && dynamic;
        if spec[role][field].is_null() && !said && !unused {
            spec[role][field] = value;
        }
    }
    if dynamic && spec["dynamicAllocation"]["shuffleTrackingEnabled"].is_null() {
        spec["dynamicAllocation"]["shuffleTrackingEnabled"] = json!(true);
    }
    spec
}

fn list(value: &Value) -> Vec<&str> {
    let items = value.as_array().into_iter().flatten();
    items.filter_map(Value::as_str).collect()
}

/// Returns the submission of an application, with this master and submission id.
pub fn submission(application: &Value, named: &str, master: &str, id: &str) -> Result<Submission> {
    let spec = &defaulted(application);
    let metadata = &application["metadata"];
    let name = metadata["name"].as_str().context("no name")?;
    let mut line = Line(Vec::new());
    line.flag("--master", master);
    line.flag("--deploy-mode", "cluster");
    if let Some(class) = spec["mainClass"].as_str().filter(|c| !c.is_empty()) {
        line.flag("--class", class);
    }
    line.flag("--name", named);
    for (flag, field) in [
        ("--jars", "jars"),
        ("--packages", "packages"),
        ("--exclude-packages", "excludePackages"),
        ("--repositories", "repositories"),
        ("--py-files", "pyFiles"),
        ("--files", "files"),
        ("--archives", "archives"),
    ] {
        let items = list(&spec["deps"][field]);
        if !items.is_empty() {
            line.flag(flag, &items.join(","));
        }
    }
    line.set("spark.kubernetes.namespace", &metadata["namespace"]);
    line.text("spark.kubernetes.container.image", &spec["image"]);
    let policy = "spark.kubernetes.container.image.pullPolicy";
    line.text(policy, &spec["imagePullPolicy"]);
    let secrets = list(&spec["imagePullSecrets"]);
    if !secrets.is_empty() {
        let key = "spark.kubernetes.container.image.pullSecrets";
        line.conf(key, secrets.join(","));
    }
    let python = "spark.kubernetes.pyspark.pythonVersion";
    line.text(python, &spec["pythonVersion"]);
    let factor = "spark.kubernetes.memoryOverheadFactor";
    line.text(factor, &spec["memoryOverheadFactor"]);
    line.conf("spark.kubernetes.submission.waitAppCompletion", "false");
    for (key, value) in spec["sparkConf"].as_object().into_iter().flatten() {
        if key != POD_NAME {
            line.set(key, value);
        }
    }
    line.map("spark.hadoop.", &spec["hadoopConf"]);
    let pod = [&spec["driver"]["podName"], &spec["sparkConf"][POD_NAME]];
    let pod = pod
        .iter()
        .find_map(|v| v.as_str().filter(|t| !t.is_empty()));
    line.conf(
        POD_NAME,
        pod.map_or_else(|| format!("{name}-driver"), str::to_owned),
    );
    for role in ["driver", "executor"] {
        role_conf(&mut line, application, spec, role, id);
        local_volumes(&mut line, spec, role)?;
    }
    line.map("spark.kubernetes.node.selector.", &spec["nodeSelector"]);
    dynamic_allocation(&mut line, &spec["dynamicAllocation"]);
    let mut files = BTreeMap::new();
    for role in ["driver", "executor"] {
        let path = format!("/tmp/spark/{id}/{role}-pod-template.yaml");
        line.conf(&format!("spark.kubernetes.{role}.podTemplateFile"), &path);
        line.conf(
            &format!("spark.kubernetes.{role}.podTemplateContainerName"),
            format!("spark-kubernetes-{role}"),
        );
        let template = template(application, role);
        files.insert(path, serde_json::to_string_pretty(&template)?);
    }
    if let Some(user) = spec["proxyUser"].as_str().filter(|u| !u.is_empty()) {
        line.flag("--proxy-user", user);
    }
    let main = spec["mainApplicationFile"].as_str();
    line.0.extend(main.map(str::to_owned));
    line.0
        .extend(list(&spec["arguments"]).into_iter().map(str::to_owned));
    Ok(Submission {
        arguments: line.0,
        files,
    })
}

fn role_conf(line: &mut Line, application: &Value, spec: &Value, role: &str, id: &str) {
    let of = &spec[role];
    let kubernetes = |key: &str| format!("spark.kubernetes.{role}.{key}");
    let label = |key: &str| kubernetes(&format!("label.{key}"));
    let name = &application["metadata"]["name"];
    line.set(&label("sparkoperator.k8s.io/app-name"), name);
    line.conf(
        &label("sparkoperator.k8s.io/launched-by-spark-operator"),
        true,
    );
    if of["template"].is_null() {
        let mutated = "sparkoperator.k8s.io/mutated-by-spark-operator";
        line.conf(&label(mutated), true);
    }
    line.conf(&label("sparkoperator.k8s.io/submission-id"), id);
    if role == "executor" {
        line.set("spark.executor.instances", &of["instances"]);
    }
    let image = of["image"].as_str().filter(|i| !i.is_empty());
    let image = image.or(spec["image"].as_str().filter(|i| !i.is_empty()));
    line.set(&kubernetes("container.image"), &json!(image));
    line.set(&format!("spark.{role}.cores"), &of["cores"]);
    line.set(&kubernetes("request.cores"), &of["coreRequest"]);
    line.set(&kubernetes("limit.cores"), &of["coreLimit"]);
    line.set(&format!("spark.{role}.memory"), &of["memory"]);
    let overhead = format!("spark.{role}.memoryOverhead");
    line.set(&overhead, &of["memoryOverhead"]);
    let account = format!("spark.kubernetes.authenticate.{role}.serviceAccountName");
    line.set(&account, &of["serviceAccount"]);
    let options = format!("spark.{role}.extraJavaOptions");
    line.set(&options, &of["javaOptions"]);
    if role == "driver" {
        line.set("spark.kubernetes.driver.master", &of["kubernetesMaster"]);
    } else {
        line.set(
            &kubernetes("deleteOnTermination"),
            &of["deleteOnTermination"],
        );
    }
    let labels = application["metadata"]["labels"].as_object();
    for (key, value) in labels.into_iter().flatten() {
        if !key.starts_with("kueue.x-k8s.io/") {
            line.set(&label(key), value);
        }
    }
    line.map(&label(""), &of["labels"]);
    line.map(&kubernetes("annotation."), &of["annotations"]);
    if role == "driver" {
        line.map(&kubernetes("service.label."), &of["serviceLabels"]);
        let annotations = &of["serviceAnnotations"];
        line.map(&kubernetes("service.annotation."), annotations);
    }
    for (key, at) in of["envSecretKeyRefs"].as_object().into_iter().flatten() {
        let (name, item) = (at["name"].as_str(), at["key"].as_str());
        let value = format!("{}:{}", name.unwrap_or_default(), item.unwrap_or_default());
        line.conf(&kubernetes(&format!("secretKeyRef.{key}")), value);
    }
    let env = if role == "driver" {
        "spark.kubernetes.driverEnv."
    } else {
        "spark.executorEnv."
    };
    line.map(env, &of["envVars"]);
    for secret in of["secrets"].as_array().into_iter().flatten() {
        let name = secret["name"].as_str().unwrap_or_default();
        let path = secret["path"].as_str().unwrap_or_default();
        line.conf(&kubernetes(&format!("secrets.{name}")), path);
        if secret["secretType"] == "GCPServiceAccount" {
            let key = format!("{env}GOOGLE_APPLICATION_CREDENTIALS");
            line.conf(&key, format!("{path}/key.json"));
        } else if secret["secretType"] == "HadoopDelegationToken" {
            let key = format!("{env}HADOOP_TOKEN_FILE_LOCATION");
            line.conf(&key, format!("{path}/hadoop.token"));
        }
    }
}

fn local_volumes(line: &mut Line, spec: &Value, role: &str) -> Result<()> {
    for mount in spec[role]["volumeMounts"].as_array().into_iter().flatten() {
        let name = mount["name"].as_str().unwrap_or_default();
        if !name.starts_with(LOCAL_DIR) {
            continue;
        }
        let volumes = spec["volumes"].as_array().into_iter().flatten();
        let volume = volumes.into_iter().find(|v| v["name"] == name);
        let volume = volume.with_context(|| format!("volume {name} not found"))?;
        let kinds = ["emptyDir", "hostPath", "nfs", "persistentVolumeClaim"];
        let Some(kind) = kinds.iter().find(|kind| !volume[**kind].is_null()) else {
            bail!("unsupported volume type of {name}");
        };
        let key = format!("spark.kubernetes.{role}.volumes.{kind}.{name}");
        line.text(&format!("{key}.mount.path"), &mount["mountPath"]);
        line.text(&format!("{key}.mount.subPath"), &mount["subPath"]);
        if mount["readOnly"] == true {
            line.conf(&format!("{key}.mount.readOnly"), true);
        }
        for (option, value) in volume[*kind].as_object().into_iter().flatten() {
            if *value != false {
                line.set(&format!("{key}.options.{option}"), value);
            }
        }
    }
    Ok(())
}

fn dynamic_allocation(line: &mut Line, block: &Value) {
    if block["enabled"] != true {
        return;
    }
    let key = |name: &str| format!("spark.dynamicAllocation.{name}");
    line.conf(&key("enabled"), true);
    for name in ["initialExecutors", "minExecutors", "maxExecutors"] {
        line.set(&key(name), &block[name]);
    }
    let tracking = &block["shuffleTrackingEnabled"];
    line.set(&key("shuffleTracking.enabled"), tracking);
    let timeout = &block["shuffleTrackingTimeout"];
    line.set(&key("shuffleTracking.timeout"), timeout);
}

/// Returns the role's own template, else an empty one, with the application as an owner.
fn template(application: &Value, role: &str) -> Value {
    let own = &application["spec"][role]["template"];
    let mut template = if own.is_null() {
        json!({ "spec": { "containers": [{ "name": format!("spark-kubernetes-{role}") }] } })
    } else {
        own.clone()
    };
    // The list of containers is written even if it is empty.
    if template["spec"]["containers"].is_null() {
        template["spec"]["containers"] = json!([]);
    }
    let mut owner = json!({
        "apiVersion": application["apiVersion"], "kind": application["kind"],
        "name": application["metadata"]["name"], "uid": application["metadata"]["uid"],
    });
    if role == "driver" {
        owner["controller"] = json!(true);
        owner["blockOwnerDeletion"] = json!(true);
    }
    let owners = &mut template["metadata"]["ownerReferences"];
    match owners.as_array_mut() {
        Some(owners) => owners.push(owner),
        None => *owners = json!([owner]),
    }
    template
}
