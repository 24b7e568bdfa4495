//! The Spark properties of a submission.
//!
//! Source: the arguments that the published operator passes to `spark-submit`, and their result. If a key is set twice, the later
//! value wins, so the order of the groups is part of the contract.

use std::fmt::Display;

use k8s_openapi::api::core::v1::{Volume, VolumeMount};
use serde_json::Value;
use training_core::{Note, SpecError};

use super::cx::Cx;
use super::properties::{
    INTERNAL, LOCAL_DIR, POD_NAME, Ports, Properties, SUBMIT_TIME, TEMPLATE_DIR, TEMPLATE_FILE,
    list,
};
use super::{metrics, web};
use crate::api::{NameKey, Role, SecretInfo, SparkApplicationSpec, SparkPodSpec};
use crate::memory::{Language, java_double};
use crate::{label, names, version};

fn set(to: &mut Properties, key: impl Into<String>, value: impl Display) {
    to.insert(key.into(), value.to_string());
}

fn set_some(to: &mut Properties, key: &str, value: Option<&(impl Display + ?Sized)>) {
    if let Some(value) = value {
        set(to, key, value);
    }
}

fn set_text(to: &mut Properties, key: &str, value: Option<&String>) {
    set_some(to, key, value.filter(|text| !text.is_empty()));
}

fn set_list(to: &mut Properties, key: &str, list: &[String]) {
    if !list.is_empty() {
        set(to, key, list.join(","));
    }
}

/// Returns the properties that the application requests, in the published order.
///
/// # Errors
/// A scratch volume that can't be mounted.
pub fn requested(cx: &Cx<'_>, notes: &mut Vec<Note>) -> Result<Properties, SpecError> {
    let spec = cx.spec;
    let mut out = Properties::new();
    let to = &mut out;
    for (key, value) in &cx.inputs.settings.defaults {
        set(to, key, value);
    }
    set(to, "spark.kubernetes.namespace", cx.namespace);
    set_text(to, "spark.kubernetes.container.image", spec.image.as_ref());
    let policy = spec.image_pull_policy.as_ref();
    set_text(to, "spark.kubernetes.container.image.pullPolicy", policy);
    let secrets = "spark.kubernetes.container.image.pullSecrets";
    set_list(to, secrets, &spec.image_pull_secrets);
    let python = spec.python_version.as_ref();
    set_text(to, "spark.kubernetes.pyspark.pythonVersion", python);
    let factor = spec.memory_overhead_factor.as_ref();
    set_text(to, "spark.kubernetes.memoryOverheadFactor", factor);
    set(to, "spark.kubernetes.submission.waitAppCompletion", "false");
    for (key, value) in spec.spark_conf.iter().filter(|(key, _)| *key != POD_NAME) {
        set(to, key, value);
    }
    metrics::properties(cx, to);
    web::properties(cx, to);
    for (key, value) in &spec.hadoop_conf {
        set(to, format!("spark.hadoop.{key}"), value);
    }
    set(to, POD_NAME, driver_pod_name(cx.name, spec));
    driver(cx, to);
    local_volumes(cx, Role::Driver, to)?;
    executor(cx, to);
    local_volumes(cx, Role::Executor, to)?;
    for (key, value) in &spec.node_selector {
        set(to, format!("spark.kubernetes.node.selector.{key}"), value);
    }
    dynamic_allocation(cx, to);
    for role in [Role::Driver, Role::Executor] {
        let (word, id) = (role.as_str(), cx.inputs.submission_id);
        let key = format!("spark.kubernetes.{word}.podTemplateFile");
        // The driver's entry is the published path; nothing reads it.
        set(to, key, format!("/tmp/spark/{id}/{word}-pod-template.yaml"));
        let key = format!("spark.kubernetes.{word}.podTemplateContainerName");
        set(to, key, role.container());
    }
    dependencies(cx, to);
    let odd: Vec<String> = to
        .keys()
        .filter(|key| !key.starts_with("spark."))
        .cloned()
        .collect();
    for key in odd {
        to.remove(&key);
        let text = format!(
            "spec.sparkConf[{key}] has no effect: Spark's own properties start with \"spark.\""
        );
        notes.push(Note::warning("SettingIgnored", text));
    }
    Ok(out)
}

/// Returns the name of the driver's pod for an application with this name and spec.
pub fn driver_pod_name(application: &str, spec: &SparkApplicationSpec) -> String {
    let own = spec.driver.pod_name.as_ref().filter(|n| !n.is_empty());
    let said = spec.spark_conf.get(POD_NAME).filter(|n| !n.is_empty());
    own.or(said)
        .map_or_else(|| format!("{application}-driver"), Clone::clone)
}

/// Sets the labels that identify pods. They override all other settings.
fn own_labels(cx: &Cx<'_>, role: Role, to: &mut Properties) {
    let mut own = |key: &str, value: &str| {
        set(
            to,
            format!("spark.kubernetes.{}.label.{key}", role.as_str()),
            value,
        );
    };
    own(label::APP_NAME, cx.name);
    own(label::LAUNCHED_BY, "true");
    own(label::SUBMISSION_ID, cx.inputs.submission_id);
    if !says_more(cx.spec.role(role)) || !version::has_templates(&cx.spec.spark_version) {
        own(label::MUTATED_BY, "true");
    }
}

/// True if a role has a template with content. Container names and scheduling gates alone don't count: queueing tools add such
/// templates, with empty objects for the rest.
pub fn says_more(role: &SparkPodSpec) -> bool {
    let Some(template) = role.template.as_deref() else {
        return false;
    };
    let mut template = template.clone();
    if let Some(spec) = template.spec.as_mut() {
        spec.scheduling_gates = None;
        for container in &mut spec.containers {
            container.name.clear();
        }
    }
    let meta = template.metadata.take().unwrap_or_default();
    let said = serde_json::json!([meta.labels, meta.annotations, template.spec]);
    !is_empty(&said)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.iter().all(is_empty),
        Value::Object(fields) => fields.values().all(is_empty),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

fn common(cx: &Cx<'_>, role: Role, to: &mut Properties) {
    let (spec, word) = (cx.spec.role(role), role.as_str());
    let kubernetes = |key: &str| format!("spark.kubernetes.{word}.{key}");
    let image = spec.image.as_ref().filter(|i| !i.is_empty());
    set_text(
        to,
        &kubernetes("container.image"),
        image.or(cx.spec.image.as_ref()),
    );
    set_some(to, &format!("spark.{word}.cores"), spec.cores.as_ref());
    set_some(to, &kubernetes("limit.cores"), spec.core_limit.as_ref());
    set_some(to, &format!("spark.{word}.memory"), spec.memory.as_ref());
    let overhead = format!("spark.{word}.memoryOverhead");
    set_some(to, &overhead, spec.memory_overhead.as_ref());
    let account = format!("spark.kubernetes.authenticate.{word}.serviceAccountName");
    set_some(to, &account, spec.service_account.as_ref());
    let labels = cx.app.metadata.labels.iter().flatten();
    for (key, value) in labels.filter(|(key, _)| !key.starts_with(label::KUEUE)) {
        set(to, kubernetes(&format!("label.{key}")), value);
    }
    for (key, value) in &spec.labels {
        set(to, kubernetes(&format!("label.{key}")), value);
    }
    for (key, value) in metrics::annotations(cx, role)
        .iter()
        .chain(&spec.annotations)
    {
        set(to, kubernetes(&format!("annotation.{key}")), value);
    }
    for (key, NameKey { name, key: at }) in &spec.env_secret_key_refs {
        set(
            to,
            kubernetes(&format!("secretKeyRef.{key}")),
            format_args!("{name}:{at}"),
        );
    }
    let env = env_prefix(role);
    for (key, value) in &spec.env_vars {
        set(to, format!("{env}{key}"), value);
    }
    for SecretInfo {
        name,
        path,
        secret_type,
    } in &spec.secrets
    {
        set(to, kubernetes(&format!("secrets.{name}")), path);
        match secret_type.as_str() {
            "GCPServiceAccount" => {
                let key = format!("{env}GOOGLE_APPLICATION_CREDENTIALS");
                set(to, key, format_args!("{path}/key.json"));
            }
            "HadoopDelegationToken" => {
                let key = format!("{env}HADOOP_TOKEN_FILE_LOCATION");
                set(to, key, format_args!("{path}/hadoop.token"));
            }
            _ => {}
        }
    }
    own_labels(cx, role, to);
}

/// The prefix of a role's environment variables among the properties.
pub fn env_prefix(role: Role) -> &'static str {
    match role {
        Role::Driver => "spark.kubernetes.driverEnv.",
        Role::Executor => "spark.executorEnv.",
    }
}

fn driver(cx: &Cx<'_>, to: &mut Properties) {
    let driver = &cx.spec.driver;
    common(cx, Role::Driver, to);
    let request = "spark.kubernetes.driver.request.cores";
    set_some(to, request, driver.core_request.as_ref());
    let options = metrics::java_options(cx, Role::Driver, driver.java_options.as_deref());
    set_some(to, "spark.driver.extraJavaOptions", options.as_ref());
    let master = "spark.kubernetes.driver.master";
    set_some(to, master, driver.kubernetes_master.as_ref());
    for (key, value) in &driver.service_labels {
        set(
            to,
            format!("spark.kubernetes.driver.service.label.{key}"),
            value,
        );
    }
    for (key, value) in &driver.service_annotations {
        set(
            to,
            format!("spark.kubernetes.driver.service.annotation.{key}"),
            value,
        );
    }
}

fn executor(cx: &Cx<'_>, to: &mut Properties) {
    let executor = &cx.spec.executor;
    common(cx, Role::Executor, to);
    set_some(to, "spark.executor.instances", executor.instances.as_ref());
    let request = "spark.kubernetes.executor.request.cores";
    set_some(to, request, executor.core_request.as_ref());
    let delete = "spark.kubernetes.executor.deleteOnTermination";
    set_some(to, delete, executor.delete_on_termination.as_ref());
    let options = metrics::java_options(cx, Role::Executor, executor.java_options.as_deref());
    set_some(to, "spark.executor.extraJavaOptions", options.as_ref());
}

fn dynamic_allocation(cx: &Cx<'_>, to: &mut Properties) {
    let Some(block) = cx
        .spec
        .dynamic_allocation
        .as_ref()
        .filter(|d| d.enabled == Some(true))
    else {
        return;
    };
    let key = |name: &str| format!("spark.dynamicAllocation.{name}");
    set(to, key("enabled"), true);
    set_some(
        to,
        &key("initialExecutors"),
        block.initial_executors.as_ref(),
    );
    set_some(to, &key("minExecutors"), block.min_executors.as_ref());
    set_some(to, &key("maxExecutors"), block.max_executors.as_ref());
    let tracking = block.shuffle_tracking_enabled.unwrap_or(true);
    set(to, key("shuffleTracking.enabled"), tracking);
    let timeout = block.shuffle_tracking_timeout.as_ref();
    set_some(to, &key("shuffleTracking.timeout"), timeout);
}

/// Sets the properties of scratch volumes, which Spark mounts itself.
fn local_volumes(cx: &Cx<'_>, role: Role, to: &mut Properties) -> Result<(), SpecError> {
    let mounts = cx.spec.role(role).volume_mounts.iter().enumerate();
    for (at, mount) in mounts.filter(|(_, mount)| mount.name.starts_with(LOCAL_DIR)) {
        let field = || format!("spec.{}.volumeMounts[{at}].name", role.as_str());
        let volume = cx.spec.volumes.iter().find(|v| v.name == mount.name);
        let Some(volume) = volume else {
            let why = format!("volume {} not found; add it to spec.volumes", mount.name);
            return Err(SpecError::new(field(), why));
        };
        let Some((kind, options)) = local_volume(volume) else {
            let why = format!(
                "unsupported volume type of {}: Spark's scratch data can be kept on emptyDir, hostPath, nfs or persistentVolumeClaim",
                mount.name
            );
            return Err(SpecError::new(field(), why));
        };
        let key = format!(
            "spark.kubernetes.{}.volumes.{kind}.{}",
            role.as_str(),
            mount.name
        );
        mounted(mount, &key, to);
        for (option, value) in options {
            set(to, format!("{key}.options.{option}"), value);
        }
    }
    Ok(())
}

fn mounted(mount: &VolumeMount, key: &str, to: &mut Properties) {
    if !mount.mount_path.is_empty() {
        set(to, format!("{key}.mount.path"), &mount.mount_path);
    }
    let sub_path = mount.sub_path.as_ref();
    set_text(to, &format!("{key}.mount.subPath"), sub_path);
    if mount.read_only == Some(true) {
        set(to, format!("{key}.mount.readOnly"), true);
    }
}

/// Returns a volume's type as Spark names it, with its options.
fn local_volume(volume: &Volume) -> Option<(&'static str, Vec<(&'static str, String)>)> {
    let mut options = Vec::new();
    let mut option = |name: &'static str, value: Option<&String>| {
        if let Some(value) = value.filter(|v| !v.is_empty()) {
            options.push((name, value.clone()));
        }
    };
    let read_only = "true".to_owned();
    let read_only = |flag: Option<bool>| (flag == Some(true)).then_some(&read_only);
    let kind = if let Some(dir) = &volume.empty_dir {
        option("sizeLimit", dir.size_limit.as_ref().map(|q| &q.0));
        option("medium", dir.medium.as_ref());
        "emptyDir"
    } else if let Some(host) = &volume.host_path {
        option("path", Some(&host.path));
        option("type", host.type_.as_ref());
        "hostPath"
    } else if let Some(nfs) = &volume.nfs {
        option("path", Some(&nfs.path));
        option("server", Some(&nfs.server));
        option("readOnly", read_only(nfs.read_only));
        "nfs"
    } else if let Some(claim) = &volume.persistent_volume_claim {
        option("claimName", Some(&claim.claim_name));
        option("readOnly", read_only(claim.read_only));
        "persistentVolumeClaim"
    } else {
        return None;
    };
    Some((kind, options))
}

/// Sets what `spark-submit` takes as separate flags, which override properties.
fn dependencies(cx: &Cx<'_>, to: &mut Properties) {
    set(to, "spark.app.name", cx.name);
    let Some(deps) = &cx.spec.deps else {
        return;
    };
    set_list(to, "spark.jars", &deps.jars);
    set_list(to, "spark.jars.packages", &deps.packages);
    set_list(to, "spark.jars.excludes", &deps.exclude_packages);
    set_list(to, "spark.jars.repositories", &deps.repositories);
    set_list(to, "spark.submit.pyFiles", &deps.py_files);
    set_list(to, "spark.files", &deps.files);
    set_list(to, "spark.archives", &deps.archives);
}

/// Adds the properties that `spark-submit` adds; returns the ports requested before.
///
/// # Errors
/// A factor or a port that is not a number.
pub fn complete(cx: &Cx<'_>, to: &mut Properties) -> Result<Ports, SpecError> {
    set(to, "spark.app.id", cx.app_id);
    let at = cx.inputs.submitted_at.as_millisecond();
    to.entry(SUBMIT_TIME.to_owned()).or_insert(at.to_string());
    set(to, "spark.master", &cx.inputs.settings.master);
    set(to, "spark.submit.deployMode", "cluster");
    set(to, "spark.kubernetes.submitInDriver", true);
    set(to, "spark.kubernetes.resource.type", cx.language.as_str());
    let factor = java_double(cx.memory(to).shared_factor()?);
    set(to, "spark.kubernetes.memoryOverheadFactor", factor);
    let service = names::driver_service(cx.prefix, cx.inputs.submission_id);
    set(
        to,
        "spark.driver.host",
        format_args!("{service}.{}.svc", cx.namespace),
    );
    let ports = Ports::of(cx, to)?;
    set(to, "spark.driver.port", ports.rpc);
    set(
        to,
        "spark.driver.blockManager.port",
        ports.block_manager_of_service,
    );
    to.entry("spark.submit.pyFiles".to_owned()).or_default();
    if cx.language == Language::Jvm {
        let main = Some(cx.spec.main_application_file.as_str());
        let jars = to.get("spark.jars").map(String::as_str).unwrap_or_default();
        let all: Vec<&str> = list(jars).chain(main.filter(|m| *m != INTERNAL)).collect();
        let all = all.join(",");
        set(to, "spark.jars", all);
    }
    let file = "spark.kubernetes.executor.podTemplateFile";
    set(to, file, format_args!("{TEMPLATE_DIR}/{TEMPLATE_FILE}"));
    if let Some(name) = to.get("spark.kubernetes.hadoop.configMapName").cloned() {
        set(to, "spark.kubernetes.executor.hadoopConfigMapName", name);
    }
    Ok(ports)
}
