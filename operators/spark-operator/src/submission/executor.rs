//! The pod template of executors, and the properties that complement it.
//!
//! Spark applies its own settings over the template: its environment variables come last and win, and so do its scheduler, its
//! node selector and, since 4.1, its grace period. The spec must override them, so it is also written to Spark's own properties.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{ConfigMap, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use training_core::Note;

use super::conf::env_prefix;
use super::cx::Cx;
use super::object::{self, TEMPLATE_KEY};
use super::overlay;
use super::properties::{Properties, below};
use super::template::Base;
use crate::api::Role;
use crate::digest::SpecDigest;
use crate::version::is_before;
use crate::{label, memory};

/// The default grace period of executors. Units: seconds. Source: Kubernetes, and Spark since 4.1.
const GRACE: i64 = 30;

/// Variables that Spark sets before `spark.executorEnv.*`, which therefore overrides them.
const BEFORE: [&str; 8] = [
    "SPARK_APPLICATION_ID",
    "SPARK_CONF_DIR",
    "SPARK_DRIVER_URL",
    "SPARK_EXECUTOR_CORES",
    "SPARK_EXECUTOR_ID",
    "SPARK_EXECUTOR_MEMORY",
    "SPARK_RESOURCE_PROFILE_ID",
    "SPARK_USER",
];
/// Variables that Spark sets after it, which nothing overrides.
const AFTER: [&str; 3] = [
    "SPARK_EXECUTOR_POD_IP",
    "SPARK_EXECUTOR_POD_NAME",
    "SPARK_LOCAL_DIRS",
];

/// Sets properties for settings that the template can't express.
pub fn adjust(
    cx: &Cx<'_>,
    properties: &mut Properties,
    scheduler_name: Option<&str>,
    notes: &mut Vec<Note>,
) {
    grace_period(cx, properties);
    escalation(cx, properties);
    environment(cx, properties, notes);
    placement(cx, properties, scheduler_name);
    lost(cx, properties, notes);
}

fn grace_period(cx: &Cx<'_>, properties: &mut Properties) {
    let executor = &cx.spec.executor.pod;
    let key = "spark.kubernetes.executor.terminationGracePeriodSeconds".to_owned();
    if let Some(seconds) = executor.termination_grace_period_seconds {
        properties.insert(key, format!("{seconds}s"));
        return;
    }
    let template = executor.template.as_deref().and_then(|t| t.spec.as_ref());
    let seconds = template.and_then(|t| t.termination_grace_period_seconds);
    let seconds = seconds.unwrap_or(GRACE);
    properties
        .entry(key)
        .or_insert_with(|| format!("{seconds}s"));
}

/// Since 4.3, Spark sets this itself, and disallows escalation unless the security context sets it.
fn escalation(cx: &Cx<'_>, properties: &mut Properties) {
    let context = cx.spec.executor.pod.security_context.as_ref();
    let allowed = context.and_then(|c| c.allow_privilege_escalation);
    if let Some(allowed) = allowed.filter(|_| cx.version.at_least(4, 3)) {
        let key = "spark.kubernetes.executor.securityContext.allowPrivilegeEscalation";
        properties.insert(key.to_owned(), allowed.to_string());
    }
}

fn placement(cx: &Cx<'_>, properties: &mut Properties, scheduler_name: Option<&str>) {
    let own = "spark.kubernetes.executor.scheduler.name";
    let said =
        properties.contains_key(own) || properties.contains_key("spark.kubernetes.scheduler.name");
    let name = overlay::scheduler(cx, Role::Executor, scheduler_name);
    if let Some(name) = name.filter(|_| said) {
        properties.insert(own.to_owned(), name.to_owned());
    }
    let own = "spark.kubernetes.executor.node.selector.";
    let mut said = below(properties, "spark.kubernetes.node.selector.");
    said.extend(below(properties, own));
    for (key, value) in &cx.spec.executor.pod.node_selector {
        if said.contains_key(key) {
            properties.insert(format!("{own}{key}"), value.clone());
        }
    }
}

/// Makes the variables of the spec and of its ConfigMaps override Spark's.
fn environment(cx: &Cx<'_>, properties: &mut Properties, notes: &mut Vec<Note>) {
    let prefix = env_prefix(Role::Executor);
    let hadoop = properties.contains_key("spark.kubernetes.hadoop.configMapName");
    let mut all = cx.spec.executor.pod.env.clone();
    all.extend(overlay::conf_dirs(cx));
    // The last variable of a name wins.
    let mut seen = BTreeSet::new();
    for variable in all.iter().rev() {
        let name = variable.name.as_str();
        if !seen.insert(name) {
            continue;
        }
        let key = format!("{prefix}{name}");
        let before = BEFORE.contains(&name);
        let after = AFTER.contains(&name)
            || name.starts_with("SPARK_JAVA_OPT_")
            || hadoop && name == "HADOOP_CONF_DIR";
        if after || before && variable.value_from.is_some() {
            let text = format!(
                "spec.executor: the variable {name} has no effect, because Spark sets it on executors itself"
            );
            notes.push(Note::warning("SettingIgnored", text));
            continue;
        }
        properties.remove(&format!("spark.kubernetes.executor.secretKeyRef.{name}"));
        if variable.value_from.is_some() {
            // Without Spark's variable, only the template's remains.
            properties.remove(&key);
        } else if before || properties.contains_key(&key) {
            properties.insert(key, variable.value.clone().unwrap_or_default());
        }
    }
}

/// Reports settings that Spark silently drops from the template and that no property can restore.
fn lost(cx: &Cx<'_>, properties: &Properties, notes: &mut Vec<Note>) {
    let executor = &cx.spec.executor;
    let mut tell = |text: String| notes.push(Note::warning("SettingIgnored", text));
    let decommission = properties.get("spark.decommission.enabled");
    let decommission = decommission.is_some_and(|flag| flag.trim().eq_ignore_ascii_case("true"));
    if decommission && executor.lifecycle.is_some() {
        tell(
            "spec.executor.lifecycle has no effect, because with spark.decommission.enabled Spark sets a preStop hook of its own on executors"
                .to_owned(),
        );
    }
    if !executor.ports.is_empty() && is_before(&cx.spec.spark_version, 3, 4) {
        tell("spec.executor.ports has no effect, because Spark before 3.4 sets an executor's ports itself".to_owned());
    }
    let prefix = env_prefix(Role::Executor);
    let spark_sets = |name: &str| {
        let own = BEFORE.contains(&name) || AFTER.contains(&name);
        own || name.starts_with("SPARK_JAVA_OPT_")
            || properties.contains_key(&format!("{prefix}{name}"))
    };
    let mut before = BTreeSet::new();
    for variable in &executor.pod.env {
        let name = variable.name.as_str();
        // A variable in Spark's properties is among Spark's own.
        let among_sparks = properties.contains_key(&format!("{prefix}{name}"));
        let value = variable.value.as_deref().unwrap_or_default();
        let mut lost = references(value).filter(|of| !before.contains(of) && spark_sets(of));
        if let Some(of) = lost.next().filter(|_| !among_sparks) {
            tell(format!(
                "spec.executor: the variable {name} keeps $({of}) as it is written, because Spark sets {of} behind it on executors; read {of} in the program"
            ));
        }
        before.insert(name);
    }
}

/// Returns the names in `$(NAME)`. `$$` escapes `$`.
fn references(value: &str) -> impl Iterator<Item = &str> {
    let mut rest = value;
    std::iter::from_fn(move || {
        loop {
            let (_, after) = rest.split_once('$')?;
            if let Some(escaped) = after.strip_prefix('$') {
                rest = escaped;
                continue;
            }
            rest = after;
            if let Some((name, behind)) = after.strip_prefix('(').and_then(|a| a.split_once(')')) {
                rest = behind;
                return Some(name);
            }
        }
    })
}

/// Builds the pod template of executors.
pub fn template(cx: &Cx<'_>, scheduler_name: Option<&str>) -> PodTemplateSpec {
    let Base {
        labels,
        mut annotations,
        mut spec,
        mut container,
    } = Base::of(cx.spec.executor.pod.template.as_deref(), Role::Executor);
    overlay::apply(
        cx,
        Role::Executor,
        scheduler_name,
        &mut spec,
        &mut container,
    );
    let name = container.name.clone();
    if name != Role::Executor.container() {
        annotations.insert(label::CONTAINER.to_owned(), name.clone());
    }
    // Spark takes the first container, whatever its name.
    spec.containers.insert(0, container);
    overlay::add_containers(&mut spec.containers, &cx.spec.executor.pod.sidecars);
    if spec.containers.len() > 1 {
        // Spark moves its own container behind the others.
        annotations
            .entry(label::DEFAULT_CONTAINER.to_owned())
            .or_insert(name);
    }
    if let Some(limit) = memory_limit(cx) {
        annotations.insert(label::MEMORY_LIMIT.to_owned(), limit);
    }
    let owner = OwnerReference {
        controller: None,
        block_owner_deletion: None,
        ..object::owner(cx)
    };
    PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(labels).filter(|l| !l.is_empty()),
            annotations: Some(annotations).filter(|a| !a.is_empty()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        }),
        spec: Some(spec),
    }
}

/// The memory limit that the admission policy sets in place of Spark's, if any.
fn memory_limit(cx: &Cx<'_>) -> Option<String> {
    let said = cx.spec.executor.pod.memory_limit.as_deref();
    let said = said.filter(|_| cx.inputs.settings.memory_limit_policy.is_on())?;
    memory::limit(said).ok()
}

/// Builds the ConfigMap of the template. It is mutable: the driver reads it for every executor.
///
/// The text is JSON, which every YAML parser reads the same way, whatever its YAML version.
pub fn config_map(cx: &Cx<'_>, scheduler_name: Option<&str>) -> ConfigMap {
    let template = template(cx, scheduler_name);
    // Kubernetes' own types always serialize.
    let text = serde_json::to_string_pretty(&template).unwrap_or_default();
    let mut metadata = object::metadata(cx, object::template_name(cx));
    let digest = SpecDigest::parse(cx.inputs.spec_digest);
    let placement = digest.map(|d| d.placement().to_owned());
    if let Some(placement) = placement.filter(|p| !p.is_empty()) {
        metadata.annotations = Some([(label::PLACEMENT.to_owned(), placement)].into());
    }
    ConfigMap {
        metadata,
        data: Some([(TEMPLATE_KEY.to_owned(), text)].into()),
        ..ConfigMap::default()
    }
}
