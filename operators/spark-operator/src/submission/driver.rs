//! The driver's pod.
//!
//! Source: Spark on Kubernetes for everything up to [`overlay`].

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, EnvVar, EnvVarSource, LocalObjectReference, ObjectFieldSelector, Pod,
    PodSpec, ResourceRequirements, SecretKeySelector, SecurityContext, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use training_api::labels::RESTART_REQUEST;
use training_core::{Note, SpecError};

use super::conf;
use super::cx::Cx;
use super::object::{self, PROPERTIES_FILE};
use super::overlay;
use super::properties::{CONF_DIR, INTERNAL, POD_NAME, Ports, Properties, below, list};
use super::template::Base;
use super::volume::{self, Volumes};
use crate::api::Role;
use crate::label;
use crate::memory::{Language, field, quantity};

/// The parts of the pod that are computed elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// All properties.
    pub properties: &'a Properties,
    /// The ports that the properties request.
    pub ports: Ports,
    /// The volumes that the properties request.
    pub volumes: &'a Volumes,
    /// The name of the ConfigMap of the properties.
    pub conf: &'a str,
    /// The batch scheduler's name.
    pub scheduler_name: Option<&'a str>,
}

/// Builds the driver's pod.
///
/// # Errors
/// A memory or CPU value that is not a valid quantity.
pub fn pod(cx: &Cx<'_>, parts: &Parts<'_>, notes: &mut Vec<Note>) -> Result<Pod, SpecError> {
    let Base {
        mut labels,
        mut annotations,
        mut spec,
        mut container,
    } = Base::of(cx.spec.driver.pod.template.as_deref(), Role::Driver);
    let properties = parts.properties;
    labels.extend(object::driver_labels(cx, properties));
    let own = below(properties, "spark.kubernetes.driver.annotation.");
    annotations.extend(own.into_iter().map(|(key, value)| {
        let value = value
            .replace("{{APP_ID}}", cx.app_id)
            .replace("{{EXECUTOR_ID}}", "");
        (key, value)
    }));
    placement(properties, &mut spec);
    apply_settings(cx, parts, &mut container)?;
    mounts(cx, parts, &mut spec, &mut container);
    escalation(cx, properties, &mut container);
    overlay::apply(
        cx,
        Role::Driver,
        parts.scheduler_name,
        &mut spec,
        &mut container,
    );
    overlay::memory_limit(&cx.spec.driver.pod, Role::Driver, &mut container)?;
    if cx.inputs.settings.last_words.is_on() {
        let policy = &mut container.termination_message_policy;
        policy.get_or_insert_with(|| "FallbackToLogsOnError".to_owned());
    }
    if container
        .args
        .as_ref()
        .is_some_and(|args| args.first().is_some_and(|a| a != "driver"))
    {
        let text = "spec.driver.template: args of the Spark container come before Spark's own, and the image may not understand them";
        notes.push(Note::warning("SettingIgnored", text));
    }
    if container.name != Role::Driver.container() {
        annotations.insert(label::CONTAINER.to_owned(), container.name.clone());
    }
    spec.containers.push(container);
    overlay::add_containers(&mut spec.containers, &cx.spec.driver.pod.sidecars);
    annotations.insert(
        label::SPEC_DIGEST.to_owned(),
        cx.inputs.spec_digest.to_owned(),
    );
    if let Some(generation) = cx.app.metadata.generation {
        annotations.insert(label::GENERATION.to_owned(), generation.to_string());
    }
    if let Some(request) = label::restart_request(cx.app) {
        annotations.insert(RESTART_REQUEST.to_owned(), request);
    }
    Ok(Pod {
        metadata: ObjectMeta {
            name: properties.get(POD_NAME).cloned(),
            namespace: Some(cx.namespace.to_owned()),
            labels: Some(labels),
            annotations: Some(annotations),
            owner_references: Some(vec![object::owner(cx)]),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    })
}

/// Applies Spark's pod settings.
fn placement(properties: &Properties, spec: &mut PodSpec) {
    spec.restart_policy = Some("Never".to_owned());
    let account = "spark.kubernetes.authenticate.driver.serviceAccountName";
    if let Some(account) = properties.get(account) {
        spec.service_account = Some(account.clone());
        spec.service_account_name = Some(account.clone());
    }
    let mut selector = below(properties, "spark.kubernetes.node.selector.");
    selector.extend(below(properties, "spark.kubernetes.driver.node.selector."));
    if !selector.is_empty() {
        spec.node_selector.get_or_insert_default().extend(selector);
    }
    let own = properties.get("spark.kubernetes.driver.scheduler.name");
    let shared = properties.get("spark.kubernetes.scheduler.name");
    if let Some(name) = own.or(shared) {
        spec.scheduler_name = Some(name.clone());
    }
    let secrets = properties.get("spark.kubernetes.container.image.pullSecrets");
    for name in secrets.into_iter().flat_map(|secrets| list(secrets)) {
        let name = name.to_owned();
        spec.image_pull_secrets
            .get_or_insert_default()
            .push(LocalObjectReference { name });
    }
}

/// Applies Spark's container settings.
fn apply_settings(
    cx: &Cx<'_>,
    parts: &Parts<'_>,
    container: &mut Container,
) -> Result<(), SpecError> {
    let properties = parts.properties;
    let own = properties.get("spark.kubernetes.driver.container.image");
    let shared = properties.get("spark.kubernetes.container.image");
    container.image = own.or(shared).cloned();
    let policy = properties.get("spark.kubernetes.container.image.pullPolicy");
    container.image_pull_policy = Some(policy.map_or("IfNotPresent", String::as_str).to_owned());
    container.args.get_or_insert_default().extend(args(cx));
    let port = |name: &str, number: i32| ContainerPort {
        name: Some(name.to_owned()),
        container_port: number,
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    };
    let open = container.ports.get_or_insert_default();
    open.push(port("driver-rpc-port", parts.ports.rpc));
    open.push(port("blockmanager", parts.ports.block_manager));
    open.push(port("spark-ui", parts.ports.ui));
    open.extend(
        parts
            .ports
            .connect
            .map(|number| port("spark-connect", number)),
    );
    resources(cx, properties, container)?;
    env(cx, properties, container.env.get_or_insert_default());
    Ok(())
}

fn args(cx: &Cx<'_>) -> Vec<String> {
    let spec = cx.spec;
    let mut out = vec!["driver".to_owned()];
    if let Some(user) = spec.proxy_user.as_ref().filter(|u| !u.is_empty()) {
        out.extend(["--proxy-user".to_owned(), user.clone()]);
    }
    let file = format!("{CONF_DIR}/{PROPERTIES_FILE}");
    out.extend(["--properties-file".to_owned(), file, "--class".to_owned()]);
    out.push(match cx.language {
        Language::Jvm => spec.main_class.clone().unwrap_or_default(),
        Language::Python => "org.apache.spark.deploy.PythonRunner".to_owned(),
        Language::R => "org.apache.spark.deploy.RRunner".to_owned(),
    });
    let main = Some(spec.main_application_file.as_str()).filter(|m| !m.is_empty());
    out.push(main.unwrap_or(INTERNAL).to_owned());
    out.extend(spec.arguments.iter().cloned());
    out
}

/// Returns the quantity in a property.
fn cores(properties: &Properties, key: &str) -> Result<Option<Quantity>, SpecError> {
    let Some(text) = properties.get(key) else {
        return Ok(None);
    };
    quantity(text).map_err(|why| SpecError::new(field(key), why))?;
    Ok(Some(Quantity(text.clone())))
}

fn resources(
    cx: &Cx<'_>,
    properties: &Properties,
    container: &mut Container,
) -> Result<(), SpecError> {
    let memory = Quantity(format!("{}Mi", cx.memory(properties).driver()?));
    let request = cores(properties, "spark.kubernetes.driver.request.cores")?;
    let request = match request {
        Some(request) => request,
        None => {
            cores(properties, "spark.driver.cores")?.unwrap_or_else(|| Quantity("1".to_owned()))
        }
    };
    let limit = cores(properties, "spark.kubernetes.driver.limit.cores")?;
    let resources = container
        .resources
        .get_or_insert_with(ResourceRequirements::default);
    let requests = resources.requests.get_or_insert_default();
    requests.insert("cpu".to_owned(), request);
    requests.insert("memory".to_owned(), memory.clone());
    let limits = resources.limits.get_or_insert_default();
    limits.insert("memory".to_owned(), memory);
    if let Some(limit) = limit {
        limits.insert("cpu".to_owned(), limit);
    }
    limits.extend(accelerators(properties)?);
    Ok(())
}

/// Returns the extended resources that properties request: `<vendor>/<resource>`.
fn accelerators(properties: &Properties) -> Result<BTreeMap<String, Quantity>, SpecError> {
    let prefix = "spark.driver.resource.";
    let mut out = BTreeMap::new();
    let asked = below(properties, prefix);
    for (name, amount) in &asked {
        let Some(name) = name.strip_suffix(".amount") else {
            continue;
        };
        let Some(vendor) = asked.get(&format!("{name}.vendor")) else {
            let key = format!("spec.sparkConf[{prefix}{name}.vendor]");
            return Err(SpecError::new(
                key,
                "is required for a resource on Kubernetes, e.g. nvidia.com",
            ));
        };
        let field = || format!("spec.sparkConf[{prefix}{name}.amount]");
        quantity(amount).map_err(|why| SpecError::new(field(), why))?;
        out.insert(format!("{vendor}/{name}"), Quantity(amount.clone()));
    }
    Ok(out)
}

fn env(cx: &Cx<'_>, properties: &Properties, to: &mut Vec<EnvVar>) {
    let from = |name: &str, value_from: EnvVarSource| EnvVar {
        name: name.to_owned(),
        value: None,
        value_from: Some(value_from),
    };
    let literal = |name: &str, value: &str| EnvVar {
        name: name.to_owned(),
        value: Some(value.to_owned()),
        value_from: None,
    };
    let user = cx.spec.proxy_user.as_deref().filter(|u| !u.is_empty());
    to.push(literal("SPARK_USER", user.unwrap_or("spark")));
    to.push(literal("SPARK_APPLICATION_ID", cx.app_id));
    for (name, value) in below(properties, conf::env_prefix(Role::Driver)) {
        to.push(literal(&name, &value));
    }
    to.push(from(
        "SPARK_DRIVER_BIND_ADDRESS",
        EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                api_version: Some("v1".to_owned()),
                field_path: "status.podIP".to_owned(),
            }),
            ..EnvVarSource::default()
        },
    ));
    for (name, reference) in below(properties, "spark.kubernetes.driver.secretKeyRef.") {
        let (secret, key) = reference.split_once(':').unwrap_or((&reference, ""));
        to.push(from(
            &name,
            EnvVarSource {
                secret_key_ref: Some(SecretKeySelector {
                    name: secret.to_owned(),
                    key: key.to_owned(),
                    optional: None,
                }),
                ..EnvVarSource::default()
            },
        ));
    }
    if cx.language == Language::Python {
        let python = properties.get("spark.pyspark.python");
        let own = properties.get("spark.pyspark.driver.python").or(python);
        to.extend(python.map(|p| literal("PYSPARK_PYTHON", p)));
        to.extend(own.map(|p| literal("PYSPARK_DRIVER_PYTHON", p)));
    }
    if properties.contains_key("spark.kubernetes.hadoop.configMapName") {
        to.push(literal("HADOOP_CONF_DIR", volume::HADOOP_CONF));
    }
    // Both properties are set: the volume was built.
    if let Ok(Some((_, item))) = volume::token_secret(properties) {
        let path = format!("{}/{item}", volume::HADOOP_TOKENS);
        to.push(literal("HADOOP_TOKEN_FILE_LOCATION", &path));
    }
}

/// Mounts Spark's volumes, and sets the variables that name their paths.
fn mounts(cx: &Cx<'_>, parts: &Parts<'_>, spec: &mut PodSpec, container: &mut Container) {
    let volumes = spec.volumes.get_or_insert_default();
    let mounts = container.volume_mounts.get_or_insert_default();
    let mut add = |all: Vec<(Volume, VolumeMount)>, mounts: &mut Vec<VolumeMount>| {
        for (volume, mount) in all {
            volumes.push(volume);
            mounts.push(mount);
        }
    };
    add(parts.volumes.asked.clone(), mounts);
    add(parts.volumes.hadoop.clone(), mounts);
    add(vec![volume::template(cx)], mounts);
    let scratch = volume::scratch(cx, parts.properties, mounts);
    add(scratch.volumes, mounts);
    add(vec![volume::conf(parts.conf)], mounts);
    let env = container.env.get_or_insert_default();
    for (name, value) in [
        ("SPARK_LOCAL_DIRS", scratch.dirs),
        ("SPARK_CONF_DIR", CONF_DIR.to_owned()),
    ] {
        env.push(EnvVar {
            name: name.to_owned(),
            value: Some(value),
            value_from: None,
        });
    }
}

/// Since 4.3, Spark disallows privilege escalation by default.
fn escalation(cx: &Cx<'_>, properties: &Properties, container: &mut Container) {
    if !cx.version.at_least(4, 3) {
        return;
    }
    let own = properties.get("spark.kubernetes.driver.securityContext.allowPrivilegeEscalation");
    let shared = properties.get("spark.kubernetes.securityContext.allowPrivilegeEscalation");
    let allowed = own
        .or(shared)
        .is_some_and(|flag| flag.trim().eq_ignore_ascii_case("true"));
    let context = container
        .security_context
        .get_or_insert_with(SecurityContext::default);
    context.allow_privilege_escalation = Some(allowed);
}
