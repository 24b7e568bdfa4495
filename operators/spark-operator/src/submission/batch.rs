//! Batch schedulers: Volcano, YuniKorn, and schedulers with the coscheduling plugin.
//!
//! Source: the published behaviour. A group's minimum resources are the sum of its pods' requests.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Affinity, Toleration};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde_json::{Value, json};
use training_core::SpecError;
use training_core::quantity::{Amount, Amounts, add};

use super::cx::{Cx, Refusal};
use super::object;
use super::properties::{Properties, list};
use crate::api::Role;
use crate::defaults;
use crate::memory::{field, quantity};
use crate::names;

/// The annotation by which Volcano finds the group of a pod.
pub const VOLCANO_GROUP: &str = training_api::labels::VOLCANO_GROUP;
/// The label by which the coscheduling plugin finds the group of a pod.
pub const PLUGIN_GROUP: &str = training_api::labels::PLUGINS_GROUP;
/// Spark's own Volcano integration.
const VOLCANO_STEP: &str = "org.apache.spark.deploy.k8s.features.VolcanoFeatureStep";
const TASK_GROUP: &str = "yunikorn.apache.org/task-group-name";
const TASK_GROUPS: &str = "yunikorn.apache.org/task-groups";
/// Spark's default number of executors. Source: Spark.
const EXECUTORS: i64 = 2;

/// A pod group: pods to start together.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodGroup {
    /// `scheduling.volcano.sh/v1beta1` or `scheduling.x-k8s.io/v1alpha1`.
    pub api_version: String,
    /// `PodGroup`.
    pub kind: String,
    /// Its metadata.
    pub metadata: ObjectMeta,
    /// Its spec.
    pub spec: Value,
}

/// The additions of a batch scheduler to an application.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SchedulerSettings {
    /// The batch scheduler, if the operator supports it.
    pub name: Option<String>,
    /// The pods' scheduler name. Set even if batch schedulers are off, as published.
    pub scheduler_name: Option<String>,
    /// Groups to create.
    pub groups: Vec<PodGroup>,
    properties: Properties,
}

impl SchedulerSettings {
    /// Adds the scheduler's labels and annotations to the properties.
    pub fn apply(&self, properties: &mut Properties) {
        properties.extend(self.properties.clone());
    }

    fn set(&mut self, role: Role, what: &str, key: &str, value: impl Into<String>) {
        let key = format!("spark.kubernetes.{}.{what}.{key}", role.as_str());
        self.properties.insert(key, value.into());
    }
}

const ROLES: [Role; 2] = [Role::Driver, Role::Executor];

/// Returns the additions of the application's batch scheduler.
///
/// # Errors
/// If the operator doesn't support it, or a request of its pods is not a valid quantity.
pub fn scheduler_settings(
    cx: &Cx<'_>,
    properties: &Properties,
) -> Result<SchedulerSettings, Refusal> {
    let settings = &cx.inputs.settings.batch;
    let own = cx.spec.batch_scheduler.as_deref().filter(|n| !n.is_empty());
    let default = Some(settings.default.as_str()).filter(|n| !n.is_empty());
    if !settings.enabled.is_on() {
        return Ok(SchedulerSettings {
            scheduler_name: own.map(str::to_owned),
            ..SchedulerSettings::default()
        });
    }
    let Some(name) = own.or(default) else {
        return Ok(SchedulerSettings::default());
    };
    let mut out = SchedulerSettings {
        name: Some(name.to_owned()),
        scheduler_name: Some(name.to_owned()),
        ..SchedulerSettings::default()
    };
    match name {
        "volcano" => volcano(cx, properties, &mut out)?,
        "yunikorn" => yunikorn(cx, properties, &mut out)?,
        _ if settings.kube_schedulers.iter().any(|known| known == name) => {
            let group = names::with_suffix(cx.name, "pg");
            for role in ROLES {
                out.set(role, "label", PLUGIN_GROUP, &group);
            }
            let needs = needs(cx, properties)?;
            let spec = json!({ "minMember": 1, "minResources": needs });
            out.groups.push(group_object(
                cx,
                "scheduling.x-k8s.io/v1alpha1",
                group,
                spec,
            ));
        }
        _ => {
            let mut known = vec!["volcano", "yunikorn"];
            known.extend(settings.kube_schedulers.iter().map(String::as_str));
            let why = format!(
                "failed to get scheduler {name}: the operator serves {}; name one of them, or none",
                known.join(", ")
            );
            return Err(Refusal::Scheduler(SpecError::new(
                "spec.batchScheduler",
                why,
            )));
        }
    }
    Ok(out)
}

fn group_object(cx: &Cx<'_>, api_version: &str, name: String, spec: Value) -> PodGroup {
    PodGroup {
        api_version: api_version.to_owned(),
        kind: "PodGroup".to_owned(),
        metadata: object::metadata(cx, name),
        spec,
    }
}

fn volcano(
    cx: &Cx<'_>,
    properties: &Properties,
    out: &mut SchedulerSettings,
) -> Result<(), SpecError> {
    // Whoever names a group has created one.
    let has_group = |role: Role| cx.spec.role(role).annotations.contains_key(VOLCANO_GROUP);
    if ROLES.into_iter().any(has_group) {
        return Ok(());
    }
    let name = format!("spark-{}-pg", cx.name);
    for role in ROLES {
        out.set(role, "annotation", VOLCANO_GROUP, &name);
    }
    let options = cx.spec.batch_scheduler_options.clone().unwrap_or_default();
    let needs = if options.resources.is_empty() {
        needs(cx, properties)?
    } else {
        options.resources
    };
    let mut spec = json!({ "minMember": 1, "minResources": needs });
    for (key, value) in [
        ("queue", options.queue),
        ("priorityClassName", options.priority_class_name),
    ] {
        if let Some(value) = value.filter(|v| !v.is_empty()) {
            spec[key] = json!(value);
        }
    }
    out.groups.push(group_object(
        cx,
        "scheduling.volcano.sh/v1beta1",
        name,
        spec,
    ));
    Ok(())
}

/// YuniKorn's task group: pods of one role.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TaskGroup<'a> {
    name: &'a str,
    min_member: i64,
    min_resource: BTreeMap<&'static str, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    node_selector: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    tolerations: &'a [Toleration],
    #[serde(skip_serializing_if = "Option::is_none")]
    affinity: Option<&'a Affinity>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: &'a BTreeMap<String, String>,
}

fn yunikorn(
    cx: &Cx<'_>,
    properties: &Properties,
    out: &mut SchedulerSettings,
) -> Result<(), SpecError> {
    let count = executors(cx, properties);
    let mut groups = Vec::new();
    for (role, name, members) in [
        (Role::Driver, "spark-driver", 1),
        (Role::Executor, "spark-executor", count),
    ] {
        out.set(role, "annotation", TASK_GROUP, name);
        let spec = cx.spec.role(role);
        let mut node_selector = cx.spec.node_selector.clone();
        node_selector.extend(spec.node_selector.clone());
        if members > 0 {
            groups.push(TaskGroup {
                name,
                min_member: members,
                min_resource: [
                    ("cpu", cpu(role, properties).to_owned()),
                    ("memory", format!("{}Mi", memory(cx, role, properties)?)),
                ]
                .into(),
                node_selector,
                tolerations: &spec.tolerations,
                affinity: spec.affinity.as_ref(),
                labels: &spec.labels,
            });
        }
    }
    let groups = serde_json::to_string(&groups).unwrap_or_default();
    out.set(Role::Driver, "annotation", TASK_GROUPS, groups);
    let options = cx.spec.batch_scheduler_options.as_ref();
    let queue = options
        .and_then(|o| o.queue.as_ref())
        .filter(|q| !q.is_empty());
    for role in ROLES.into_iter().filter(|_| queue.is_some()) {
        out.set(role, "label", "queue", queue.cloned().unwrap_or_default());
    }
    Ok(())
}

/// Returns the initial number of executors.
pub fn executors(cx: &Cx<'_>, properties: &Properties) -> i64 {
    let number = |key: &str| {
        properties
            .get(key)
            .and_then(|n| n.trim().parse::<i64>().ok())
    };
    let instances = number("spark.executor.instances");
    if !defaults::allocates_dynamically(cx.spec) {
        return instances.unwrap_or(EXECUTORS);
    }
    let key = |name: &str| number(&format!("spark.dynamicAllocation.{name}"));
    let all = [instances, key("initialExecutors"), key("minExecutors")];
    all.into_iter().flatten().fold(0, i64::max)
}

fn cpu_key(role: Role, properties: &Properties) -> String {
    let own = format!("spark.kubernetes.{}.request.cores", role.as_str());
    if properties.contains_key(&own) {
        return own;
    }
    format!("spark.{}.cores", role.as_str())
}

fn cpu(role: Role, properties: &Properties) -> &str {
    let text = properties.get(&cpu_key(role, properties));
    text.map_or("1", String::as_str)
}

fn memory(cx: &Cx<'_>, role: Role, properties: &Properties) -> Result<i64, SpecError> {
    let memory = cx.memory(properties);
    match role {
        Role::Driver => memory.driver(),
        Role::Executor => memory.executor(),
    }
}

/// Returns the sum of the requests of driver and executors.
fn needs(cx: &Cx<'_>, properties: &Properties) -> Result<BTreeMap<String, Quantity>, SpecError> {
    let count = u32::try_from(executors(cx, properties)).unwrap_or(0);
    let mut sum = Amounts::new();
    for (role, count) in [(Role::Driver, 1), (Role::Executor, count)] {
        let text = cpu(role, properties);
        let cpu =
            quantity(text).map_err(|why| SpecError::new(field(&cpu_key(role, properties)), why))?;
        let mib = memory(cx, role, properties)?;
        let memory = Amount::parse(&format!("{mib}Mi")).unwrap_or_default();
        let one = [("cpu", cpu), ("memory", memory)];
        let one = one.map(|(name, amount)| (name.to_owned(), amount)).into();
        add(&mut sum, &one, count);
    }
    let sum = sum.into_iter();
    Ok(sum
        .map(|(name, amount)| (name, amount.to_quantity()))
        .collect())
}

/// Does the driver's part of Spark's Volcano step, if the application names it: a group, and its annotation. The driver does the
/// part of the executors.
///
/// # Errors
/// Any other step: steps are Java classes, and the operator can't run them.
pub fn volcano_step(
    cx: &Cx<'_>,
    properties: &mut Properties,
) -> Result<Option<PodGroup>, SpecError> {
    let key = "spark.kubernetes.driver.pod.featureSteps";
    let Some(steps) = properties.get(key) else {
        return Ok(None);
    };
    if let Some(other) = list(steps).find(|step| *step != VOLCANO_STEP) {
        let why = format!(
            "{other} is a class that spark-submit would run, and the operator runs none; only {VOLCANO_STEP} is known. Say what it \
             does in spec.driver.template"
        );
        return Err(SpecError::new(format!("spec.sparkConf[{key}]"), why));
    }
    if list(steps).next().is_none() {
        return Ok(None);
    }
    let file = "spark.kubernetes.scheduler.volcano.podGroupTemplateFile";
    if properties.contains_key(file) {
        let why = "is a file of the machine that runs spark-submit, and there is none; use spec.batchScheduler: volcano with \
                   spec.batchSchedulerOptions";
        return Err(SpecError::new(format!("spec.sparkConf[{file}]"), why));
    }
    let name = format!("{}-podgroup", cx.app_id);
    let annotation = format!("spark.kubernetes.driver.annotation.{VOLCANO_GROUP}");
    properties.insert(annotation, name.clone());
    Ok(Some(group_object(
        cx,
        "scheduling.volcano.sh/v1beta1",
        name,
        json!({}),
    )))
}
