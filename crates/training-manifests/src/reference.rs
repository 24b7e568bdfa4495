//! Generates the documents in `docs/reference`: fields from the schema, labels from the constants, events from the catalogue,
//! flags and metrics from the binary's definitions.

mod flags;
pub(crate) mod metrics;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use serde_json::Value;
use spark_operator::label as spark;
use training_api::labels;
use training_core::grants::{self, Grant};
use training_core::reasons;

use crate::chart::values;
use crate::operator::{Kind, Operator};

/// The first line of every generated document.
pub const HEADER: &str = "<!-- Generated from the types by `cargo run -p training-manifests -- generate`; don't edit. -->\n\n";

/// Returns every reference document, by path.
///
/// # Errors
/// If a metric can't be shown.
pub fn files(operators: &[Operator]) -> anyhow::Result<BTreeMap<PathBuf, String>> {
    let directory = PathBuf::from("docs/reference");
    let mut files = BTreeMap::new();
    for operator in operators {
        for kind in &operator.kinds {
            let name = format!("{}-api.md", kind.name.to_lowercase());
            files.insert(directory.join(name), api(operator, kind));
        }
        let name = format!("{}-flags.md", operator.name);
        files.insert(
            directory.join(name),
            flags::page(operator.name, &operator.command),
        );
    }
    files.insert(directory.join("labels.md"), labels_page(operators));
    files.insert(directory.join("events.md"), events());
    files.insert(directory.join("rights.md"), rights(operators));
    files.insert(directory.join("metrics.md"), metrics::page()?);
    let values = values::page(operators, HEADER)?;
    files.insert(directory.join("helm-values.md"), values);
    Ok(files)
}

fn api(operator: &Operator, kind: &Kind) -> String {
    let name = match operator.replicas {
        Some(_) => {
            "The name is a DNS-1035 label; with the replica type and index appended it has at most 63 characters. Fields below `template`, \
             `metrics`, `minResources` and `labelSelector` have Kubernetes' own types; its reference describes them."
        }
        None => {
            "The name is a DNS-1035 label. `template` and other fields that a pod has as well have Kubernetes' own types; its \
             reference describes them."
        }
    };
    let mut page = format!(
        "{HEADER}# {kind}\n\n`apiVersion: {group}/{version}`, `kind: {kind}`. {name}\n\n",
        kind = kind.name,
        group = kind.group,
        version = kind.version,
    );
    let schema = kind
        .crd
        .pointer("/spec/versions/0/schema/openAPIV3Schema")
        .unwrap_or(&Value::Null);
    for part in ["spec", "status"] {
        let Some(part_schema) = schema.pointer(&format!("/properties/{part}")) else {
            continue;
        };
        let _ = write!(
            page,
            "## `{part}`\n\n| Field | Type | Meaning |\n| --- | --- | --- |\n"
        );
        fields(part_schema, part, &mut page);
        page.push('\n');
    }
    page.push_str("## What is refused\n\nThe API server enforces types, bounds, required fields and these rules. It refuses invalid objects with 422.\n\n| Where | Rule |\n| --- | --- |\n");
    rules(schema, "", &mut page);
    page
}

fn fields(schema: &Value, path: &str, page: &mut String) {
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    for (name, field) in children(schema) {
        let path = format!("{path}.{name}");
        let description = field
            .get("description")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let mark = if required.contains(&name) {
            " (required)"
        } else {
            ""
        };
        let _ = writeln!(
            page,
            "| `{path}` | {}{mark} | {} |",
            type_of(field),
            description.replace("\n\n", "<br>").replace('|', "\\|")
        );
        if is_embedded(name) {
            continue;
        }
        fields(field, &path, page);
        for (key, suffix) in [("items", "[]"), ("additionalProperties", ".*")] {
            if let Some(child) = field.get(key) {
                fields(child, &format!("{path}{suffix}"), page);
            }
        }
    }
}

/// Returns whether a field has one of Kubernetes' own types, which Kubernetes' reference describes.
fn is_embedded(name: &str) -> bool {
    matches!(
        name,
        "template" | "metrics" | "labelSelector" | "minResources"
    )
}

fn type_of(field: &Value) -> String {
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let base = match text(field, "type").as_deref() {
        Some("array") => format!(
            "list of {}",
            field.get("items").map(type_of).unwrap_or_default()
        ),
        Some("object") => match field.get("additionalProperties") {
            Some(value) => format!("map of {}", type_of(value)),
            None => "object".to_owned(),
        },
        Some("string") if text(field, "format").as_deref() == Some("date-time") => {
            "time".to_owned()
        }
        Some(other) => text(field, "format").unwrap_or_else(|| other.to_owned()),
        None => "quantity".to_owned(),
    };
    let mut details = Vec::new();
    if let Some(values) = field.get("enum").and_then(Value::as_array) {
        let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
        details.push(values.join(", "));
    }
    for (key, sign) in [("minimum", "≥"), ("maximum", "≤")] {
        // Omits the bounds of the type itself.
        let own = [f64::from(i32::MIN), f64::from(i32::MAX)];
        if let Some(bound) = field.get(key).and_then(Value::as_f64)
            && !own.contains(&bound)
        {
            details.push(format!("{sign} {bound}"));
        }
    }
    if let Some(default) = field.get("default") {
        details.push(format!("default `{default}`"));
    }
    if details.is_empty() {
        base
    } else {
        format!("{base}, {}", details.join(", "))
    }
}

fn rules(schema: &Value, path: &str, page: &mut String) {
    for rule in schema
        .get("x-kubernetes-validations")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let text = |key: &str| rule.get(key).and_then(Value::as_str).unwrap_or_default();
        let place = format!("{path}{}", text("fieldPath"));
        let message = match text("message") {
            "" => {
                "The name leaves room for its suffixes; the error message says how many characters it may have."
            }
            message => message,
        };
        let _ = writeln!(page, "| `{}` | {message} |", place.trim_start_matches('.'));
    }
    for (name, field) in children(schema) {
        if !is_embedded(name) {
            rules(field, &format!("{path}.{name}"), page);
        }
    }
    if let Some(child) = schema.get("additionalProperties") {
        rules(child, &format!("{path}.*"), page);
    }
}

/// Returns the properties in alphabetical order, independent of the map's order.
fn children(schema: &Value) -> Vec<(&str, &Value)> {
    let mut children: Vec<_> = schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(name, field)| (name.as_str(), field))
        .collect();
    children.sort_by_key(|(name, _)| *name);
    children
}

/// The keys of applications, their objects and their pods.
const SPARK_LABELS: [(&str, &str, &str, &str); 13] = [
    (
        spark::APP_NAME,
        "label",
        "all objects of an application",
        "The application's name",
    ),
    (
        spark::LAUNCHED_BY,
        "label",
        "drivers, executors",
        "`true`: the operator watches pods with it",
    ),
    (
        spark::MUTATED_BY,
        "label",
        "drivers, executors whose role has an empty template or none",
        "`true`",
    ),
    (
        spark::SUBMISSION_ID,
        "label",
        "all objects of a run",
        "The submission that created it, as in `status.submissionID`",
    ),
    (
        spark::CREATED_BY,
        "label",
        "objects of the operator other than pods",
        "`true`",
    ),
    (
        spark::SCHEDULED_APP_NAME,
        "label",
        "applications of a schedule",
        "The schedule's name",
    ),
    (
        spark::APP_SELECTOR,
        "label",
        "drivers, executors, and other objects of a run",
        "Spark's application id of the run",
    ),
    (
        spark::ROLE,
        "label",
        "drivers, executors",
        "`driver` or `executor`",
    ),
    (
        spark::VERSION,
        "label",
        "drivers, executors",
        "The version of Spark",
    ),
    (
        spark::SPEC_DIGEST,
        "annotation",
        "drivers",
        "A digest of the spec that the driver was created from",
    ),
    (
        spark::GENERATION,
        "annotation",
        "drivers",
        "The generation of that spec",
    ),
    (
        spark::CONTAINER,
        "annotation",
        "drivers and executors whose template has a container of another name",
        "The container that runs Spark: it decides the pod's result",
    ),
    (
        spark::MEMORY_LIMIT,
        "annotation",
        "executors, with `--memory-limit-policy`",
        "The memory limit that the admission policy sets",
    ),
];

fn labels_page(operators: &[Operator]) -> String {
    let controllers: Vec<String> = operators
        .iter()
        .filter_map(|o| Some((o.replicas?.controller, &o.main().name)))
        .map(|(controller, kind)| format!("`{controller}` ({kind})"))
        .collect();
    let rows = [
        (
            labels::OPERATOR_NAME,
            "label",
            "pods, services",
            format!("The controller: {}", controllers.join(", ")),
        ),
        (
            labels::JOB_NAME,
            "label",
            "pods, services",
            "The job's name".to_owned(),
        ),
        (
            labels::REPLICA_TYPE,
            "label",
            "pods, services",
            "The replica type in lower case".to_owned(),
        ),
        (
            labels::REPLICA_INDEX,
            "label",
            "pods, services",
            "The index within the replica type, from 0".to_owned(),
        ),
        (
            labels::JOB_ROLE,
            "label",
            "one pod of a job",
            format!(
                "`{}`: the job's main log and metrics",
                labels::JOB_ROLE_MASTER
            ),
        ),
        (
            labels::ATTEMPT,
            "annotation",
            "pods",
            "The pod's attempt, `<gang>.<replica>`; without the annotation `0.0`".to_owned(),
        ),
        (
            labels::RESTART_SCOPE,
            "annotation",
            "jobs; you set it",
            "The unit of restarts after a failure: `Replica` (default) or `Gang`".to_owned(),
        ),
        (
            labels::RESTART_REQUEST,
            "annotation",
            "jobs and SparkApplications; you set it",
            "A new value restarts all pods of a running job together, once; for instance the time"
                .to_owned(),
        ),
    ];
    let mut page = format!(
        "{HEADER}# Labels and annotations\n\nTools read these keys literally, so they never change.\n\n| Key | | On | Value |\n| --- | --- | --- | --- |\n"
    );
    for (key, sort, on, value) in rows {
        let _ = writeln!(page, "| `{key}` | {sort} | {on} | {value} |");
    }
    page.push_str("\n## Spark\n\n| Key | | On | Value |\n| --- | --- | --- | --- |\n");
    for (key, sort, on, value) in SPARK_LABELS {
        let _ = writeln!(page, "| `{key}` | {sort} | {on} | {value} |");
    }
    page
}

fn events() -> String {
    let mut page = format!(
        "{HEADER}# Events\n\nTrainyard's own reasons. A job also has the published ones, some of them built from the kind's name: \
         `PyTorchJobSucceeded`, `SuccessfulCreatePod` and so on.\n\n| Reason | Severity | Meaning | What to do |\n| --- | --- | --- | --- |\n"
    );
    for entry in reasons::catalogue() {
        let _ = writeln!(
            page,
            "| `{}` | {} | {} | {} |",
            entry.reason,
            entry.severity.as_str(),
            entry.meaning,
            entry.hint
        );
    }
    page
}

fn rights(operators: &[Operator]) -> String {
    let mut page = format!(
        "{HEADER}# Rights\n\nThe rights of each operator, with reasons. In a cluster-wide install the rights on jobs, pods and services apply to \
         every namespace, in a namespaced install only to the operator's own.\n"
    );
    for operator in operators {
        let _ = write!(
            page,
            "\n## {}\n\n| Resource | Verbs | Where | Why |\n| --- | --- | --- | --- |\n",
            operator.name
        );
        let mut row = |group: &str, resource: &str, verbs: &[&str], place: &str, why: &str| {
            let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            let dot = if group.is_empty() { "" } else { "." };
            let slash = if subresource.is_empty() { "" } else { "/" };
            let _ = writeln!(
                page,
                "| `{resource}{dot}{group}{slash}{subresource}` | {} | {place} | {why} |",
                verbs.join(", ")
            );
        };
        let jobs = "jobs' namespaces";
        for kind in &operator.kinds {
            let (group, plural) = (&kind.group, &kind.plural);
            row(group, plural, kind.verbs, jobs, kind.why);
            row(
                group,
                &format!("{plural}/status"),
                grants::OWN_STATUS,
                jobs,
                "The operator reports, and stores its state, in the status only.",
            );
            row(
                group,
                &format!("{plural}/finalizers"),
                grants::OWN_FINALIZERS,
                jobs,
                "Owner references with `blockOwnerDeletion` need it if that admission check is on.",
            );
        }
        let mut all = |grants: &mut dyn Iterator<Item = &Grant>, place: &str| {
            for grant in grants {
                for resource in grant.resources {
                    row(grant.group, resource, grant.verbs, place, grant.why);
                }
            }
        };
        all(&mut operator.rights.iter().copied(), jobs);
        all(&mut grants::OWN_NAMESPACE.iter(), "its own namespace");
    }
    page.push_str(
        "\nThese are all rights of an operator's token. Creating pods is the strongest: a pod can use every \
         ServiceAccount, Secret and volume of its namespace. If that is too much, install the operator per namespace.\n",
    );
    page
}
