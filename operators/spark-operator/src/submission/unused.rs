//! Finds fields that are accepted and have no effect, in this application or with the operator's flags. One event names them all.
//!
//! [`check`](super::check) reports those whose event says how to get the effect.

use training_core::Note;

use super::cx::Cx;
use super::properties::Properties;
use super::template::spark_container;
use crate::api::{
    BatchSchedulerOptions, DynamicAllocation, Role, SparkUiOptions, template::Template,
};
use crate::label;
use crate::memory::Language;

const ROLES: [Role; 2] = [Role::Driver, Role::Executor];

/// A field, why it has no effect, and whether that is so.
type Row = (&'static str, &'static str, bool);

/// Returns events about fields without effect. Expects the properties that the application requests, and the scheduler that the
/// batch scheduler sets.
pub fn notes(cx: &Cx<'_>, properties: &Properties, scheduler_name: Option<&str>) -> Vec<Note> {
    let mut notes = Vec::new();
    let mut unused = Vec::new();
    let rows = [
        web(cx),
        batch(cx, scheduler_name),
        restarts(cx),
        others(cx, properties),
    ];
    for (field, why, is_unused) in rows.into_iter().flatten() {
        if is_unused {
            unused.push(format!("{field} ({why})"));
        }
    }
    unused.extend(volumes(cx));
    let mut unread = Vec::new();
    for role in ROLES {
        let Some(template) = &cx.spec.role(role).template else {
            continue;
        };
        let path = format!("spec.{}.template", role.as_str());
        unused.extend(replaced(template, &path, role));
        for field in template.unread(&path) {
            match ignored_metadata(&path, &field) {
                Some(text) => notes.push(ignored(text)),
                None => unread.push(field),
            }
        }
    }
    if !unread.is_empty() {
        notes.push(ignored(format!(
            "pods have no such fields here, and they have no effect; remove them, or set them where pods have them: {}",
            unread.join(", ")
        )));
    }
    if !unused.is_empty() {
        notes.push(ignored(format!(
            "fields without effect: {}",
            unused.join(", ")
        )));
    }
    notes
}

fn ignored(text: String) -> Note {
    Note::warning("SettingIgnored", text)
}

/// What only the operator and Spark set on pods.
fn ignored_metadata(template: &str, field: &str) -> Option<String> {
    let why = match field.strip_prefix(template)? {
        ".metadata.finalizers" => {
            "they would block the replacement of a deleted pod until they are removed"
        }
        ".metadata.ownerReferences" => "a pod belongs to its application, and goes with it",
        _ => return None,
    };
    Some(format!("{field} are ignored: {why}"))
}

fn web(cx: &Cx<'_>) -> Vec<Row> {
    let Some(options) = &cx.spec.spark_ui_options else {
        return Vec::new();
    };
    let web = &cx.inputs.settings.web;
    let has_service = web.service.is_on();
    let no_ingress = has_service && web.url_format.is_empty();
    let without = "web UIs have no Ingress without --ingress-url-format";
    vec![
        (
            "spec.sparkUIOptions",
            "the operator runs with --enable-ui-service=false",
            !has_service && *options != SparkUiOptions::default(),
        ),
        (
            "spec.sparkUIOptions.ingressAnnotations",
            without,
            no_ingress && !options.ingress_annotations.is_empty(),
        ),
        (
            "spec.sparkUIOptions.ingressTLS",
            without,
            no_ingress && !options.ingress_tls.is_empty(),
        ),
    ]
}

fn batch(cx: &Cx<'_>, scheduler_name: Option<&str>) -> Vec<Row> {
    let batch = &cx.inputs.settings.batch;
    let name = scheduler_name.filter(|_| batch.enabled.is_on());
    let options = cx.spec.batch_scheduler_options.clone().unwrap_or_default();
    let has_options = options != BatchSchedulerOptions::default();
    let is_other = |known: &[&str]| name.is_some_and(|name| !known.contains(&name));
    let class = options.priority_class_name.as_ref();
    let replaced = |role: Role| {
        let own = cx.spec.role(role).scheduler_name.as_deref();
        let own = own.filter(|own| !own.is_empty());
        own.is_some() && scheduler_name.is_some() && own != scheduler_name
    };
    vec![
        (
            "spec.batchSchedulerOptions",
            "the operator runs without --enable-batch-scheduler, or the application has no batch scheduler",
            has_options && name.is_none(),
        ),
        (
            "spec.batchSchedulerOptions.queue",
            "only volcano and yunikorn have queues",
            options.queue.is_some() && is_other(&["volcano", "yunikorn"]),
        ),
        (
            "spec.batchSchedulerOptions.priorityClassName",
            "only groups of volcano have it",
            class.is_some() && is_other(&["volcano"]),
        ),
        (
            "spec.batchSchedulerOptions.resources",
            "only groups of volcano have it",
            !options.resources.is_empty() && is_other(&["volcano"]),
        ),
        (
            "spec.driver.schedulerName",
            "the batch scheduler replaces it",
            replaced(Role::Driver),
        ),
        (
            "spec.executor.schedulerName",
            "the batch scheduler replaces it",
            replaced(Role::Executor),
        ),
    ]
}

fn restarts(cx: &Cx<'_>) -> Vec<Row> {
    // The spec with defaults has intervals that nobody wrote.
    let Some(policy) = &cx.app.spec.restart_policy else {
        return Vec::new();
    };
    let type_ = policy.type_.as_deref().filter(|type_| !type_.is_empty());
    let type_ = type_.unwrap_or("Never");
    let unlimited = type_ != "OnFailure";
    let never = type_ == "Never";
    let some = |retries: Option<i32>| retries.is_some_and(|n| n > 0);
    let only = "only with the type OnFailure";
    let not = "not with the type Never";
    vec![
        (
            "spec.restartPolicy.onFailureRetries",
            only,
            unlimited && some(policy.on_failure_retries),
        ),
        (
            "spec.restartPolicy.onSubmissionFailureRetries",
            only,
            unlimited && some(policy.on_submission_failure_retries),
        ),
        (
            "spec.restartPolicy.onFailureRetryInterval",
            not,
            never && policy.on_failure_retry_interval.is_some(),
        ),
        (
            "spec.restartPolicy.onSubmissionFailureRetryInterval",
            not,
            never && policy.on_submission_failure_retry_interval.is_some(),
        ),
    ]
}

fn others(cx: &Cx<'_>, properties: &Properties) -> Vec<Row> {
    let spec = cx.spec;
    let given = |text: Option<&String>| text.is_some_and(|text| !text.is_empty());
    let allocation = spec.dynamic_allocation.clone().unwrap_or_default();
    let is_off = allocation.enabled != Some(true);
    let bounds = DynamicAllocation {
        enabled: None,
        ..allocation
    };
    let deps = spec.deps.clone().unwrap_or_default();
    let has_packages = properties.contains_key("spark.jars.packages");
    let monitoring = spec.monitoring.clone().unwrap_or_default();
    let exporter = monitoring.prometheus.unwrap_or_default();
    vec![
        (
            "spec.mainClass",
            "only a jar has one",
            cx.language != Language::Jvm && given(spec.main_class.as_ref()),
        ),
        (
            "spec.driverPodDisruptionBudget",
            "the operator runs without --enable-driver-pdb",
            spec.driver_pod_disruption_budget == Some(true)
                && !cx.inputs.settings.disruption_budget.is_on(),
        ),
        (
            "spec.dynamicAllocation",
            "not without enabled: true",
            is_off && bounds != DynamicAllocation::default(),
        ),
        (
            "spec.deps.excludePackages",
            "there are no packages",
            !has_packages && !deps.exclude_packages.is_empty(),
        ),
        (
            "spec.deps.repositories",
            "there are no packages",
            !has_packages && !deps.repositories.is_empty(),
        ),
        (
            "spec.monitoring.metricsProperties",
            "metricsPropertiesFile replaces it",
            given(monitoring.metrics_properties.as_ref())
                && given(monitoring.metrics_properties_file.as_ref()),
        ),
        (
            "spec.monitoring.prometheus.configuration",
            "configFile replaces it",
            given(exporter.configuration.as_ref()) && given(exporter.config_file.as_ref()),
        ),
    ]
}

/// Names volumes that neither role mounts: they are in no pod.
fn volumes(cx: &Cx<'_>) -> Vec<String> {
    let is_mounted = |name: &str| {
        let mut mounts = ROLES
            .into_iter()
            .flat_map(|role| &cx.spec.role(role).volume_mounts);
        mounts.any(|mount| mount.name == name)
    };
    let all = cx.spec.volumes.iter().enumerate();
    let unused = all.filter(|(_, volume)| !is_mounted(&volume.name));
    unused
        .map(|(at, _)| {
            format!("spec.volumes[{at}] (no volumeMounts of driver or executor name it)")
        })
        .collect()
}

/// Names fields of a template whose values Spark or the operator replaces.
fn replaced(template: &Template, path: &str, role: Role) -> Vec<String> {
    let mut all = Vec::new();
    let mut say = |field: String, why: &str| all.push(format!("{path}.{field} ({why})"));
    if let Some(metadata) = &template.metadata {
        if metadata.name.is_some() {
            say("metadata.name".to_owned(), "Spark names its pods");
        }
        if metadata.namespace.is_some() {
            let why = "pods are in the application's namespace";
            say("metadata.namespace".to_owned(), why);
        }
        for (key, _) in metadata.labels.iter().flatten() {
            if key.starts_with(label::OURS) {
                let why = "the operator sets such labels";
                say(format!("metadata.labels[{key}]"), why);
            }
        }
    }
    let Some(spec) = &template.spec else {
        return all;
    };
    if spec.restart_policy.as_ref().is_some_and(|p| p != "Never") {
        let why = "restartPolicy of the application decides";
        say("spec.restartPolicy".to_owned(), why);
    }
    if let Some(at) = spark_container(&spec.containers, role) {
        let container = &spec.containers[at];
        let field = format!("spec.containers[{at}]");
        if container.image.is_some() {
            say(
                format!("{field}.image"),
                "the image of the application or the role replaces it",
            );
        }
        let requests = container
            .resources
            .as_ref()
            .and_then(|r| r.requests.as_ref());
        for name in ["cpu", "memory"] {
            if requests.is_some_and(|requests| requests.contains_key(name)) {
                let why = "cores and memory of the role replace it";
                say(format!("{field}.resources.requests.{name}"), why);
            }
        }
    }
    all
}
