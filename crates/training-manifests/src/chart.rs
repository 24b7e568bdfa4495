//! Generates the Helm charts: one per operator, one for the CRDs, and `trainyard` with all operators. They have the objects of the
//! kustomizations, with placeholders for values.
//!
//! - [`template`]: placeholders and their expressions; [`values`]: the values, their defaults and their schema

pub mod template;
pub mod values;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::bundle;
use crate::install;
use crate::operator::Operator;
use crate::rights;
use crate::yaml;

use self::template::{Condition, render};

/// The oldest Kubernetes that has all that the CRDs and policies use.
const KUBERNETES: &str = ">=1.30.0-0";
/// What an install of all operators prints.
const NOTES: &str = "\
The operators run in namespace {{ .Release.Namespace }}:

  kubectl -n {{ .Release.Namespace }} get deployments

The chart trainyard-crds has the CustomResourceDefinitions. An uninstall of this chart touches no job.
";
/// What [`bundle::of_cluster`] calls the file of CRDs.
const CRDS: &str = "crd.yaml";

type Files = BTreeMap<PathBuf, String>;

/// Returns the files of all charts, by path relative to their directory.
///
/// # Errors
/// If an object can't be written as YAML.
pub fn files(operators: &[Operator]) -> anyhow::Result<Files> {
    let mut files = Files::new();
    for operator in operators {
        let chart = of_operator(operator)?;
        add(&mut files, &inside(operator), chart.clone());
        add(&mut files, Path::new(operator.name), chart);
    }
    add(&mut files, Path::new("trainyard-crds"), crds(operators)?);
    add(&mut files, Path::new("trainyard"), all(operators)?);
    Ok(files)
}

fn add(files: &mut Files, directory: &Path, chart: Files) {
    let chart = chart.into_iter();
    files.extend(chart.map(|(path, text)| (directory.join(path), text)));
}

/// Returns the directory of an operator's chart in the chart of all operators.
fn inside(operator: &Operator) -> PathBuf {
    Path::new("trainyard/charts").join(operator.name)
}

/// Returns an operator's name in the value `kinds`: `pytorch`.
fn short(operator: &Operator) -> &str {
    operator.name.trim_end_matches("-operator")
}

/// Returns the default of the value `kinds`.
fn kinds(operators: &[Operator]) -> serde_json::Map<String, Value> {
    let names = operators.iter().map(short);
    names.map(|name| (name.to_owned(), true.into())).collect()
}

fn metadata(name: &str, description: &str, more: &Value) -> anyhow::Result<String> {
    let version = env!("CARGO_PKG_VERSION");
    let mut chart = json!({
        "apiVersion": "v2",
        "name": name,
        "description": description,
        "type": "application",
        "version": version,
        "appVersion": version,
        "kubeVersion": KUBERNETES,
    });
    if let Value::Object(more) = more {
        for (key, value) in more {
            chart[key] = value.clone();
        }
    }
    yaml::documents(&[chart])
}

fn of_operator(operator: &Operator) -> anyhow::Result<Files> {
    let kinds: Vec<&str> = operator.kinds.iter().map(|kind| &*kind.name).collect();
    let description = format!("An operator for {}", kinds.join(" and "));
    let mut files = Files::from([
        (
            "Chart.yaml".into(),
            metadata(operator.name, &description, &Value::Null)?,
        ),
        ("values.yaml".into(), values::text(operator)?),
        ("values.schema.json".into(), values::schema_text(operator)?),
        ("templates/_helpers.tpl".into(), template::helpers(operator)),
        ("templates/NOTES.txt".into(), template::notes(operator)),
    ]);
    let mut template = |name: &str, condition: Condition, objects: &[Value]| {
        let text = render(operator, &condition, objects)?;
        files.insert(Path::new("templates").join(name), text);
        anyhow::Ok(())
    };
    for (name, objects) in bundle::of_cluster(operator)? {
        let condition = match name {
            CRDS => continue,
            "network-policy.yaml" => Condition::Value("networkPolicy.enabled"),
            "user-roles.yaml" => Condition::Value("userRoles"),
            "admission-policy.yaml" => Condition::Value("admissionPolicy"),
            "guard-policy.yaml" => Condition::Guard,
            _ => Condition::Always,
        };
        template(name, condition, &template::placed(name, objects))?;
    }
    for option in bundle::of_options(operator, install::Scope::Cluster) {
        let (file, objects) = option;
        let name = format!("{}.yaml", file.replace('/', "-"));
        template(&name, values::condition(&file), &objects)?;
    }
    let accounts = rights::of_job_pods(operator);
    if !accounts.is_empty() {
        let accounts = template::of_job_namespace(accounts);
        template("jobs.yaml", Condition::EachJobNamespace, &accounts)?;
    }
    let several = Condition::SeveralReplicas;
    template("disruption-budget.yaml", several, &[budget(operator)])?;
    let monitor = Condition::Value("serviceMonitor.enabled");
    template("service-monitor.yaml", monitor, &[monitor_of(operator)])?;
    Ok(files)
}

/// Returns a budget that keeps all but one replica.
fn budget(operator: &Operator) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": install::metadata(operator, install::Scope::Cluster, operator.name),
        "spec": {
            "maxUnavailable": 1,
            "selector": { "matchLabels": { "app.kubernetes.io/name": operator.name } },
        },
    })
}

/// Returns the Prometheus operator's object for the metrics Service.
fn monitor_of(operator: &Operator) -> Value {
    let mut metadata = install::metadata(operator, install::Scope::Cluster, operator.name);
    metadata["labels"]["__map_serviceMonitor.labels__"] = "".into();
    json!({
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": metadata,
        "spec": {
            "endpoints": [{ "port": "metrics", "interval": "__interval__" }],
            "selector": { "matchLabels": install::labels(operator) },
        },
    })
}

fn crds(operators: &[Operator]) -> anyhow::Result<Files> {
    let description = "The CustomResourceDefinitions of all kinds. An uninstall keeps them, because deleting one deletes every job of its kind";
    let mut files = Files::from([(
        PathBuf::from("Chart.yaml"),
        metadata("trainyard-crds", description, &Value::Null)?,
    )]);
    for operator in operators {
        let crds = operator.kinds.iter().map(|kind| {
            let mut crd = kind.crd.clone();
            crd["metadata"]["annotations"]["helm.sh/resource-policy"] = "keep".into();
            crd
        });
        let crds: Vec<Value> = crds.collect();
        let name = format!("templates/{}.yaml", operator.name);
        let condition = Condition::Kind(short(operator).to_owned());
        files.insert(name.into(), render(operator, &condition, &crds)?);
    }
    let values = json!({ "kinds": kinds(operators) });
    files.insert("values.yaml".into(), yaml::documents(&[values])?);
    let names: Vec<&str> = operators.iter().map(short).collect();
    let schema = values::schema_of_kinds(&names, &[])?;
    files.insert("values.schema.json".into(), schema);
    Ok(files)
}

/// Returns the chart with the operators' charts as dependencies.
fn all(operators: &[Operator]) -> anyhow::Result<Files> {
    let dependencies: Vec<Value> = operators
        .iter()
        .map(|operator| {
            json!({
                "name": operator.name,
                "version": env!("CARGO_PKG_VERSION"),
                "condition": format!("kinds.{}", short(operator)),
            })
        })
        .collect();
    let names: Vec<&str> = operators.iter().map(short).collect();
    let charts: Vec<&str> = operators.iter().map(|operator| operator.name).collect();
    let values = json!({ "kinds": kinds(operators), "global": values::Global::default() });
    let comment = "# The operators to install, and values for all of them. Values of one are below its name: pytorch-operator.replicas.\n";
    let mut text = yaml::documents(&[values])?;
    text.insert_str(yaml::HEADER.len(), comment);
    Ok(Files::from([
        (
            PathBuf::from("Chart.yaml"),
            metadata(
                "trainyard",
                "All operators, each of which can be left out",
                &json!({ "dependencies": dependencies }),
            )?,
        ),
        ("values.yaml".into(), text),
        (
            "values.schema.json".into(),
            values::schema_of_kinds(&names, &charts)?,
        ),
        ("templates/NOTES.txt".into(), NOTES.to_owned()),
    ]))
}

/// Writes all charts below a directory.
///
/// # Errors
/// If a file can't be written.
pub fn write(directory: &Path, operators: &[Operator]) -> anyhow::Result<()> {
    crate::write_all(directory, &files(operators)?)
}
