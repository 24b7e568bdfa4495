//! Turns objects into Helm templates. Objects hold placeholders, because expressions are no YAML; [`render`] writes the objects as
//! YAML and puts the expressions in.

use serde_json::{Value, json};

use crate::operator::{NAMESPACE, Operator};
use crate::yaml;

/// Stands for the namespace of the release.
const HERE: &str = "__namespace__";
/// Stands for the operator's image.
const IMAGE: &str = "__image__";
/// Stands for the namespace of jobs, in [`Condition::EachJobNamespace`].
const JOBS: &str = "__job_namespace__";
/// Before a value that is written as JSON: `__json_resources__`.
const JSON: &str = "__json_";
/// Before a value whose key is left out if it is empty.
const OPTIONAL: &str = "__optional_";

/// When a template gives objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Always.
    Always,
    /// If this value is true.
    Value(&'static str),
    /// If this option is true.
    Option(String),
    /// If this is the gang scheduler.
    Gang(String),
    /// If this kind is installed.
    Kind(String),
    /// If the operator has more than one replica.
    SeveralReplicas,
    /// Once for each namespace of jobs.
    EachJobNamespace,
}

impl Condition {
    /// Returns the first line of the template.
    fn begin(&self) -> Option<String> {
        Some(match self {
            Self::Always => return None,
            Self::Value(name) => format!("{{{{- if .Values.{name} }}}}"),
            Self::Option(name) => format!("{{{{- if .Values.options.{name} }}}}"),
            Self::Gang(name) => format!("{{{{- if eq .Values.gang \"{name}\" }}}}"),
            Self::Kind(name) => format!("{{{{- if .Values.kinds.{name} }}}}"),
            Self::SeveralReplicas => "{{- if gt (int .Values.replicas) 1 }}".to_owned(),
            Self::EachJobNamespace => "{{- range .Values.jobNamespaces }}\n---".to_owned(),
        })
    }
}

/// Puts placeholders for values into the objects of a file.
pub fn placed(file: &str, mut objects: Vec<Value>) -> Vec<Value> {
    if file == "network-policy.yaml" {
        objects[0]["spec"]["egress"][0]["to"] = "__api_servers__".into();
    }
    if file != "deployment.yaml" {
        return objects;
    }
    let spec = &mut objects[0]["spec"];
    spec["replicas"] = format!("{JSON}replicas__").into();
    spec["template"]["metadata"]["annotations"] = format!("{OPTIONAL}podAnnotations__").into();
    let pod = &mut spec["template"]["spec"];
    for key in [
        "nodeSelector",
        "tolerations",
        "topologySpreadConstraints",
        "priorityClassName",
    ] {
        pod[key] = format!("{OPTIONAL}{key}__").into();
    }
    pod["affinity"] = "__affinity__".into();
    pod["imagePullSecrets"] = "__pull_secrets__".into();
    let container = &mut pod["containers"][0];
    container["resources"] = format!("{JSON}resources__").into();
    container["imagePullPolicy"] = format!("{JSON}image.pullPolicy__").into();
    for (key, placeholder) in [("args", "__args__"), ("env", "__env__")] {
        if let Some(list) = container[key].as_array_mut() {
            list.push(placeholder.into());
        }
    }
    objects
}

/// Moves objects from their namespace to the namespace of jobs.
pub fn of_job_namespace(mut objects: Vec<Value>) -> Vec<Value> {
    for object in &mut objects {
        object["metadata"]["namespace"] = JOBS.into();
        let subjects = object.get_mut("subjects").and_then(Value::as_array_mut);
        for subject in subjects.into_iter().flatten() {
            subject["namespace"] = JOBS.into();
        }
    }
    objects
}

/// Writes objects as a template.
///
/// # Errors
/// If an object can't be written as YAML.
pub fn render(
    operator: &Operator,
    condition: &Condition,
    objects: &[Value],
) -> anyhow::Result<String> {
    let mut objects = objects.to_vec();
    for object in &mut objects {
        replace(object, NAMESPACE, HERE);
        replace(object, &operator.image(), IMAGE);
    }
    let text = yaml::documents(&objects)?;
    let (header, body) = text.split_at(yaml::HEADER.len());
    // Braces of the objects are no expressions.
    let body = body.replace("{{", "{{ \"{{\" }}");
    let mut lines = vec![header.trim_end().to_owned()];
    lines.extend(condition.begin());
    lines.extend(body.lines().map(|line| expressions(operator, line)));
    if *condition != Condition::Always {
        lines.push("{{- end }}".to_owned());
    }
    Ok(lines.join("\n") + "\n")
}

/// Replaces a text in all strings.
fn replace(value: &mut Value, from: &str, to: &str) {
    match value {
        Value::String(text) if text.contains(from) => *text = text.replace(from, to),
        Value::Array(items) => items.iter_mut().for_each(|item| replace(item, from, to)),
        Value::Object(object) => object
            .values_mut()
            .for_each(|value| replace(value, from, to)),
        _ => {}
    }
}

/// Replaces the placeholders of a line.
fn expressions(operator: &Operator, line: &str) -> String {
    let name = operator.name;
    let line = line
        .replace(HERE, "{{ .Release.Namespace }}")
        .replace(IMAGE, &format!("{{{{ include \"{name}.image\" . }}}}"))
        .replace(JOBS, "{{ . }}")
        .replace("__interval__", "{{ .Values.serviceMonitor.interval }}");
    let start = line.len() - line.trim_start().len();
    let (indent, content) = line.split_at(start);
    let block = |lines: &[String]| {
        let lines: Vec<String> = lines.iter().map(|line| format!("{indent}{line}")).collect();
        lines.join("\n")
    };
    let text = |lines: &[&str]| {
        let lines: Vec<String> = lines.iter().map(|&line| line.to_owned()).collect();
        block(&lines)
    };
    if let Some((key, value)) = content.split_once(": ") {
        let placeholder = |prefix| value.strip_prefix(prefix)?.strip_suffix("__");
        if let Some(value) = placeholder(JSON) {
            return format!("{indent}{key}: {{{{ toJson .Values.{value} }}}}");
        }
        if let Some(value) = placeholder(OPTIONAL) {
            return block(&[
                format!("{{{{- with .Values.{value} }}}}"),
                format!("{key}: {{{{ toJson . }}}}"),
                "{{- end }}".to_owned(),
            ]);
        }
    }
    match content {
        "affinity: __affinity__" => {
            let term = json!({
                "labelSelector": { "matchLabels": { "app.kubernetes.io/name": name } },
                "topologyKey": "kubernetes.io/hostname",
            });
            let preferred = json!([{ "weight": 100, "podAffinityTerm": term }]);
            let spread = json!({ "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": preferred } });
            block(&[
                "{{- if .Values.affinity }}".to_owned(),
                "affinity: {{ toJson .Values.affinity }}".to_owned(),
                "{{- else if gt (int .Values.replicas) 1 }}".to_owned(),
                // A space between braces, which would begin or end an expression.
                format!(
                    "affinity: {}",
                    spread.to_string().replace("}}", "} }").replace("}}", "} }")
                ),
                "{{- end }}".to_owned(),
            ])
        }
        "imagePullSecrets: __pull_secrets__" => text(&[
            "{{- with .Values.global.imagePullSecrets }}",
            "imagePullSecrets:",
            "{{- range . }}",
            "- name: {{ . | quote }}",
            "{{- end }}",
            "{{- end }}",
        ]),
        "to: __api_servers__" => text(&[
            "{{- with .Values.networkPolicy.apiServers }}",
            "to:",
            "{{- range . }}",
            "- ipBlock:",
            "    cidr: {{ . | quote }}",
            "{{- end }}",
            "{{- end }}",
        ]),
        "- __args__" => {
            let mut lines = Vec::new();
            if operator.replicas.is_some() {
                lines.extend(["{{- with .Values.gang }}", "- --gang={{ . }}", "{{- end }}"]);
            }
            lines.extend([
                "{{- with .Values.namespaces }}",
                "- --namespace={{ join \",\" . }}",
                "{{- end }}",
                // Numbers are floats in templates.
                "{{- range $name, $value := .Values.flags }}",
                "- {{ printf \"--%s=%v\" $name (kindIs \"float64\" $value | ternary (int64 $value) $value) | quote }}",
                "{{- end }}",
            ]);
            text(&lines)
        }
        "__labels__: \"\"" => text(&[
            "{{- range $name, $value := .Values.serviceMonitor.labels }}",
            "{{ $name }}: {{ $value | quote }}",
            "{{- end }}",
        ]),
        "- __env__" => text(&["{{- range .Values.env }}", "- {{ toJson . }}", "{{- end }}"]),
        _ => line,
    }
}

/// Returns the file of named templates.
pub fn helpers(operator: &Operator) -> String {
    format!(
        "{{{{- define \"{}.image\" -}}}}\n\
         {{{{- with .Values.global.imageRegistry }}}}{{{{ . }}}}/{{{{ end -}}}}\n\
         {{{{ .Values.image.repository }}}}:{{{{ .Values.image.tag | default .Chart.AppVersion }}}}\n\
         {{{{- end -}}}}\n",
        operator.name
    )
}

/// Returns what an install prints.
pub fn notes(operator: &Operator) -> String {
    let kind = &operator.main();
    format!(
        "{name} serves {kinds}:\n\n  \
         kubectl -n {{{{ .Release.Namespace }}}} rollout status deployment/{name}\n  \
         kubectl get {plural}.{group} -A\n\n\
         The chart trainyard-crds has the CustomResourceDefinitions. An uninstall of this chart touches no job.\n",
        name = operator.name,
        kinds = operator
            .kinds
            .iter()
            .map(|kind| &*kind.name)
            .collect::<Vec<_>>()
            .join(" and "),
        plural = kind.plural,
        group = kind.group,
    )
}
