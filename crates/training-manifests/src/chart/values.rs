//! The values of an operator's chart.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use schemars::{JsonSchema, schema_for};
use serde::Serialize;
use serde_json::{Value, json};

use super::template::Condition;
use crate::install::{self, Scope};
use crate::operator::Operator;
use crate::{bundle, yaml};

/// The values of an operator's chart. The defaults give the objects of the kustomization.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Values {
    /// Values of all charts.
    pub global: Global,
    /// Whether the chart of all operators installs it; has no other effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// The operator's image.
    pub image: Image,
    /// The replicas of the operator. One of them leads. With more than one, a PodDisruptionBudget and an anti-affinity are added.
    #[schemars(range(min = 0))]
    pub replicas: u32,
    /// The namespaces to serve; empty for all.
    pub namespaces: BTreeSet<Namespace>,
    /// Who schedules the pods of a job together; empty for the flag's default. The rights for it are added.
    pub gang: Gang,
    /// Former gang schedulers that jobs still run under: their rights are kept.
    pub gang_rights: BTreeSet<GangRights>,
    /// Flags of the operator without dashes, such as log-filter: debug. A list repeats the flag.
    pub flags: BTreeMap<String, Flag>,
    /// Environment variables of the operator.
    pub env: Vec<Value>,
    /// Volumes of the operator's pods, such as a `ConfigMap` with certificates.
    pub volumes: Vec<Value>,
    /// Mounts of these volumes in the operator's container.
    pub volume_mounts: Vec<Value>,
    /// Rights and policies for optional features, which also need their flags.
    pub options: BTreeMap<String, bool>,
    /// The namespaces in which the account of drivers is created. An uninstall keeps it, because running drivers need it.
    pub job_namespaces: BTreeSet<Namespace>,
    /// Annotations of the account of drivers, such as those of a cloud's workload identity.
    pub job_account_annotations: BTreeMap<String, String>,
    /// Requests and limits of the operator.
    pub resources: Value,
    /// Node labels that the operator's pods need.
    pub node_selector: BTreeMap<String, String>,
    /// Tolerations of the operator's pods.
    pub tolerations: Vec<Value>,
    /// The affinity of the operator's pods, in place of the anti-affinity.
    pub affinity: serde_json::Map<String, Value>,
    /// Topology spread constraints of the operator's pods.
    pub topology_spread_constraints: Vec<Value>,
    /// The `PriorityClass` of the operator's pods.
    pub priority_class_name: String,
    /// Annotations of the operator's pods.
    pub pod_annotations: BTreeMap<String, String>,
    /// More labels of the operator's pods.
    pub pod_labels: BTreeMap<String, String>,
    /// The security context of the operator's pods.
    pub pod_security_context: Value,
    /// The security context of the operator's container.
    pub security_context: Value,
    /// The NetworkPolicy of the operator's pods.
    pub network_policy: NetworkPolicy,
    /// A `ServiceMonitor` of the Prometheus operator.
    pub service_monitor: ServiceMonitor,
    /// Roles of users, which are aggregated to admin, edit and view.
    pub user_roles: bool,
    /// Warnings about jobs at submission.
    pub admission_policy: bool,
    /// The policy that keeps the operator out of kube-* namespaces and its own.
    pub guard_policy: bool,
}

/// A namespace's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
pub struct Namespace(#[schemars(regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))] String);

/// An IP range.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Cidr(#[schemars(regex(pattern = r"^[0-9a-fA-F.:]+/[0-9]+$"))] String);

/// Values of all charts.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Global {
    /// The registry of all images, such as registry.example.com/ml.
    pub image_registry: String,
    /// The tag of all images; empty for the chart's appVersion.
    pub image_tag: String,
    /// Secrets for pulling images.
    pub image_pull_secrets: Vec<PullSecret>,
}

/// A secret for pulling images.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum PullSecret {
    /// Its name.
    Name(String),
    /// A reference, as in pods.
    Reference {
        /// Its name.
        name: String,
    },
}

/// The operator's image.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Image {
    /// The image's name.
    pub repository: String,
    /// The image's tag; empty for `global.imageTag`.
    pub tag: String,
    /// The image's digest, in place of the tag.
    pub digest: String,
    /// When the image is pulled.
    pub pull_policy: PullPolicy,
}

/// When an image is pulled.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub enum PullPolicy {
    /// For every container.
    Always,
    /// Unless the node has it.
    IfNotPresent,
    /// Not at all.
    Never,
}

/// Who schedules the pods of a job together.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Gang {
    /// The operator's default.
    #[serde(rename = "")]
    Unset,
    /// Nobody.
    None,
    /// Kubernetes' own scheduler.
    Native,
    /// Volcano.
    Volcano,
    /// The coscheduling plugin.
    SchedulerPlugins,
    /// Kueue.
    Kueue,
}

/// A gang scheduler that needs rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GangRights {
    /// Kubernetes' own scheduler.
    Native,
    /// Volcano.
    Volcano,
    /// The coscheduling plugin.
    SchedulerPlugins,
}

/// The value of a flag.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Flag {
    /// Values of a flag that is repeated.
    List(Vec<String>),
    /// A switch.
    Bool(bool),
    /// A number.
    Number(i64),
    /// A text.
    Text(String),
}

/// The NetworkPolicy of the operator's pods.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkPolicy {
    /// Creates a `NetworkPolicy` for the operator's pods.
    pub enabled: bool,
    /// The addresses of the API servers and of their Service, as CIDRs; empty for any. Both are necessary.
    pub api_servers: Vec<Cidr>,
    /// More egress rules, such as for a collector of traces.
    pub extra_egress: Vec<Value>,
}

/// A `ServiceMonitor` of the Prometheus operator.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceMonitor {
    /// Creates a `ServiceMonitor` for the Prometheus operator.
    pub enabled: bool,
    /// The scrape interval.
    pub interval: String,
    /// Labels of the `ServiceMonitor`, by which a Prometheus selects it.
    pub labels: BTreeMap<String, String>,
}

impl Values {
    /// Returns the defaults for an operator.
    fn of(operator: &Operator) -> Self {
        let deployment = install::deployment(operator, Scope::Cluster);
        let pod = deployment["spec"]["template"]["spec"].clone();
        let container = pod["containers"][0].clone();
        let (repository, _) = operator.image_parts();
        Self {
            global: Global::default(),
            enabled: None,
            image: Image {
                repository,
                tag: String::new(),
                digest: String::new(),
                pull_policy: PullPolicy::IfNotPresent,
            },
            replicas: 1,
            namespaces: BTreeSet::new(),
            gang: Gang::Unset,
            gang_rights: BTreeSet::new(),
            flags: BTreeMap::new(),
            env: Vec::new(),
            volumes: Vec::new(),
            volume_mounts: Vec::new(),
            options: options(operator).map(|name| (name, false)).collect(),
            job_namespaces: BTreeSet::new(),
            job_account_annotations: BTreeMap::new(),
            resources: container["resources"].clone(),
            node_selector: BTreeMap::new(),
            tolerations: Vec::new(),
            affinity: serde_json::Map::new(),
            topology_spread_constraints: Vec::new(),
            priority_class_name: String::new(),
            pod_annotations: BTreeMap::new(),
            pod_labels: BTreeMap::new(),
            pod_security_context: pod["securityContext"].clone(),
            security_context: container["securityContext"].clone(),
            network_policy: NetworkPolicy {
                enabled: true,
                api_servers: Vec::new(),
                extra_egress: Vec::new(),
            },
            service_monitor: ServiceMonitor {
                enabled: false,
                interval: "30s".to_owned(),
                labels: BTreeMap::new(),
            },
            user_roles: true,
            admission_policy: true,
            guard_policy: true,
        }
    }
}

/// The directory of the files for gang schedulers.
const GANG: &str = "gang/";

/// Returns the names of an operator's options.
fn options(operator: &Operator) -> impl Iterator<Item = String> {
    let files = bundle::of_options(operator, Scope::Cluster).into_iter();
    let files = files.filter(|(file, _)| !file.starts_with(GANG));
    files.map(|(file, _)| option_name(&file))
}

/// Returns the name of an option by its file: `lostPods` for `options/lost-pods`.
fn option_name(file: &str) -> String {
    let words = file.trim_start_matches("options/").split(['/', '-']);
    let mut name = String::new();
    for (at, word) in words.enumerate() {
        let (first, rest) = word.split_at(usize::from(at > 0 && !word.is_empty()));
        name.push_str(&first.to_ascii_uppercase());
        name.push_str(rest);
    }
    name
}

/// Returns the condition under which an option's file is installed.
pub fn condition(file: &str) -> Condition {
    match file.strip_prefix(GANG) {
        Some(provider) => Condition::Gang(provider.to_owned()),
        None => Condition::Option(option_name(file)),
    }
}

/// Removes the values that an operator doesn't have.
fn restrict(operator: &Operator, values: &mut serde_json::Map<String, Value>) {
    if operator.replicas.is_none() {
        values.remove("gang");
        values.remove("gangRights");
    }
    if operator.account.is_none() {
        values.remove("jobNamespaces");
        values.remove("jobAccountAnnotations");
    }
}

/// Returns the schema of an operator's values.
fn schema(operator: &Operator) -> Value {
    let mut schema = schema_for!(Values).to_value();
    let options: serde_json::Map<String, Value> = options(operator)
        .map(|name| (name, json!({ "type": "boolean" })))
        .collect();
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        restrict(operator, properties);
        properties["options"]["properties"] = options.into();
        properties["options"]["additionalProperties"] = false.into();
        let flag = properties["flags"]["additionalProperties"].clone();
        let flags = flags(operator).map(|name| (name, flag.clone()));
        properties["flags"]["properties"] = flags.collect::<serde_json::Map<_, _>>().into();
        properties["flags"]["additionalProperties"] = false.into();
    }
    // Every value has a default.
    without_required(&mut schema);
    schema
}

/// Returns the flags that [`Values::flags`] may have: all but those with a value of their own.
fn flags(operator: &Operator) -> impl Iterator<Item = String> {
    let own = |name: &&str| !["gang", "namespace", "help", "version"].contains(name);
    let all = operator.command.get_arguments().flat_map(|argument| {
        let aliases = argument.get_visible_aliases().unwrap_or_default();
        argument.get_long().into_iter().chain(aliases)
    });
    all.filter(own).map(str::to_owned)
}

/// Returns the schema of a chart that has operators' charts, or the CRDs of their kinds.
///
/// # Errors
/// If it can't be written.
pub fn schema_of_kinds(kinds: &[&str], charts: &[&str]) -> anyhow::Result<String> {
    let booleans = kinds
        .iter()
        .map(|kind| ((*kind).to_owned(), json!({ "type": "boolean" })));
    let booleans: serde_json::Map<String, Value> = booleans.collect();
    let mut properties = json!({
        "enabled": { "type": "boolean" },
        "global": { "type": "object" },
        "kinds": { "type": "object", "properties": booleans, "additionalProperties": false },
    });
    for chart in charts {
        properties[chart] = json!({ "type": "object" });
    }
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object", "properties": properties, "additionalProperties": false,
    });
    Ok(serde_json::to_string_pretty(&schema)? + "\n")
}

fn without_required(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            object.retain(|key, value| key != "required" || !value.is_array());
            object.values_mut().for_each(without_required);
        }
        Value::Array(items) => items.iter_mut().for_each(without_required),
        _ => {}
    }
}

/// Returns `values.schema.json`.
///
/// # Errors
/// If it can't be written.
pub fn schema_text(operator: &Operator) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(&schema(operator))? + "\n")
}

/// Returns `values.yaml`, with the descriptions of the schema as comments.
///
/// # Errors
/// If it can't be written.
pub fn text(operator: &Operator) -> anyhow::Result<String> {
    let mut text = yaml::HEADER.to_owned();
    let mut parent = String::new();
    for Row {
        name,
        value,
        description,
    } in rows(operator)?
    {
        let description = description.replace('`', "");
        let (outer, key) = name.rsplit_once('.').unwrap_or(("", &name));
        let indent = if outer.is_empty() { "" } else { "  " };
        if outer.is_empty() || outer != parent {
            text.push('\n');
        }
        if !outer.is_empty() && outer != parent {
            let _ = writeln!(text, "{outer}:");
        }
        outer.clone_into(&mut parent);
        let entry = yaml::document(&json!({ key: value }))?;
        let lines: Vec<String> = entry
            .lines()
            .map(|line| format!("{indent}{line}"))
            .collect();
        let _ = writeln!(text, "{indent}# {description}\n{}", lines.join("\n"));
    }
    Ok(text)
}

/// A value in documents.
struct Row {
    /// Its name: `image.tag`.
    name: String,
    /// Its default.
    value: Value,
    /// Its description.
    description: String,
}

/// Returns the values, by name.
fn rows(operator: &Operator) -> anyhow::Result<Vec<Row>> {
    let Value::Object(mut values) = serde_json::to_value(Values::of(operator))? else {
        anyhow::bail!("the values are no object");
    };
    restrict(operator, &mut values);
    let schema = schema(operator);
    let mut rows = Vec::new();
    for (name, value) in values {
        let property = &schema["properties"][&name];
        let reference = property["$ref"].as_str().unwrap_or_default();
        let definition = schema.pointer(reference.trim_start_matches('#'));
        let inner = definition.and_then(|definition| definition["properties"].as_object());
        match (inner, value) {
            (Some(inner), Value::Object(values)) if !reference.is_empty() => {
                rows.extend(values.into_iter().map(|(key, value)| Row {
                    description: description(&inner[&key]),
                    name: format!("{name}.{key}"),
                    value,
                }));
            }
            (_, value) => rows.push(Row {
                description: description(property),
                name,
                value,
            }),
        }
    }
    Ok(rows)
}

fn description(property: &Value) -> String {
    let text = property["description"].as_str().unwrap_or_default();
    text.replace('\n', " ")
}

/// Returns the reference document of the charts' values.
///
/// # Errors
/// If a value can't be written.
pub fn page(operators: &[Operator], header: &str) -> anyhow::Result<String> {
    let mut page = format!("{header}# Values of the Helm charts\n\n");
    page.push_str(
        "Every operator's chart has these. [Install](../install.md#with-helm) explains the charts.\n\n\
         | Value | Default | Meaning |\n| --- | --- | --- |\n",
    );
    let mut all: BTreeMap<String, (String, Vec<&str>)> = BTreeMap::new();
    for operator in operators {
        for Row {
            name,
            value,
            description,
        } in rows(operator)?
        {
            let value = match name.as_str() {
                // Depends on the operator.
                "options" => "all `false`".to_owned(),
                _ => format!("`{}`", value.to_string().replace(operator.name, "OPERATOR")),
            };
            let row = format!("{value} | {description}");
            all.entry(name)
                .or_insert((row, Vec::new()))
                .1
                .push(operator.name);
        }
    }
    for (name, (row, of)) in all {
        let restriction = match of.as_slice() {
            [only] => format!(" Only {only}."),
            _ if of.len() == operators.len() => String::new(),
            _ => " Not spark-operator.".to_owned(),
        };
        let _ = writeln!(page, "| `{name}` | {row}{restriction} |");
    }
    page.push_str("\n| Operator | `options` |\n| --- | --- |\n");
    for operator in operators {
        let names: Vec<String> = options(operator).map(|name| format!("`{name}`")).collect();
        let _ = writeln!(page, "| {} | {} |", operator.name, names.join(", "));
    }
    Ok(page)
}
