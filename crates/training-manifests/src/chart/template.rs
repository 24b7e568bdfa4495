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
/// Before a value whose items are added to a list.
const ITEMS: &str = "__items_";
/// Before the name of a value whose entries are added to a map.
const MAP: &str = "__map_";
/// Before an argument that the value `flags` overrides.
const ARGUMENT: &str = "__argument_";

/// The policy refuses what the operator writes in its own namespace and in kube-*.
const GUARD: &str = "\
{{- if .Values.guardPolicy }}
{{- if or (eq .Release.Namespace \"default\") (hasPrefix \"kube-\" .Release.Namespace) }}
{{- fail \"the operators need a namespace without jobs: install with -n trainyard-system, or set guardPolicy=false\" }}
{{- end }}";

/// When a template gives objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Always.
    Always,
    /// If this value is true.
    Value(&'static str),
    /// If the operator is kept out of the namespaces that it must not write in.
    Guard,
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
            Self::Gang(name) => format!(
                "{{{{- if or (eq .Values.gang \"{name}\") (has \"{name}\" .Values.gangRights) }}}}"
            ),
            Self::Guard => GUARD.to_owned(),
            Self::Kind(name) => format!("{{{{- if .Values.kinds.{name} }}}}"),
            Self::SeveralReplicas => "{{- if gt (int .Values.replicas) 1 }}".to_owned(),
            Self::EachJobNamespace => "{{- range .Values.jobNamespaces }}\n---".to_owned(),
        })
    }
}

/// Puts placeholders for values into the objects of a file.
pub fn placed(file: &str, mut objects: Vec<Value>) -> Vec<Value> {
    if file == "network-policy.yaml" {
        let egress = &mut objects[0]["spec"]["egress"];
        egress[0]["to"] = "__api_servers__".into();
        if let Some(rules) = egress.as_array_mut() {
            rules.push(format!("{ITEMS}networkPolicy.extraEgress__").into());
        }
    }
    if file != "deployment.yaml" {
        return objects;
    }
    let spec = &mut objects[0]["spec"];
    spec["replicas"] = format!("{JSON}replicas__").into();
    let metadata = &mut spec["template"]["metadata"];
    metadata["annotations"] = format!("{OPTIONAL}podAnnotations__").into();
    metadata["labels"][format!("{MAP}podLabels__")] = "".into();
    let pod = &mut spec["template"]["spec"];
    for key in [
        "nodeSelector",
        "tolerations",
        "topologySpreadConstraints",
        "priorityClassName",
    ] {
        pod[key] = format!("{OPTIONAL}{key}__").into();
    }
    pod["securityContext"] = format!("{JSON}podSecurityContext__").into();
    pod["affinity"] = "__affinity__".into();
    pod["imagePullSecrets"] = "__pull_secrets__".into();
    add_items(&mut pod["volumes"], "volumes");
    let container = &mut pod["containers"][0];
    add_items(&mut container["volumeMounts"], "volumeMounts");
    container["resources"] = format!("{JSON}resources__").into();
    container["imagePullPolicy"] = format!("{JSON}image.pullPolicy__").into();
    container["securityContext"] = format!("{JSON}securityContext__").into();
    for argument in container["args"].as_array_mut().into_iter().flatten() {
        let text = argument.as_str().unwrap_or_default();
        *argument = format!("{ARGUMENT}{}__", text.trim_start_matches('-')).into();
    }
    if let Some(list) = container["args"].as_array_mut() {
        list.push("__args__".into());
    }
    add_items(&mut container["env"], "env");
    objects
}

/// Adds the items of a value to a list, or makes them the list.
fn add_items(list: &mut Value, value: &str) {
    match list.as_array_mut() {
        Some(items) => items.push(format!("{ITEMS}{value}__").into()),
        None => *list = format!("{OPTIONAL}{value}__").into(),
    }
}

/// Moves objects from their namespace to the namespace of jobs.
pub fn of_job_namespace(mut objects: Vec<Value>) -> Vec<Value> {
    for object in &mut objects {
        let is_account = object["kind"] == "ServiceAccount";
        let metadata = &mut object["metadata"];
        metadata["namespace"] = JOBS.into();
        // Running drivers need them.
        metadata["annotations"]["helm.sh/resource-policy"] = "keep".into();
        if is_account {
            metadata["annotations"][format!("{MAP}jobAccountAnnotations__")] = "".into();
        }
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
    let image = format!("{{{{ include \"{}.image\" . | quote }}}}", operator.name);
    let line = line
        .replace(&format!(": {HERE}"), ": {{ .Release.Namespace | quote }}")
        .replace(HERE, "{{ .Release.Namespace }}")
        .replace(IMAGE, &image)
        .replace(JOBS, "{{ . | quote }}")
        .replace(
            "__interval__",
            "{{ .Values.serviceMonitor.interval | quote }}",
        );
    let content = line.trim_start();
    let indent = line.strip_suffix(content).unwrap_or_default();
    match of_key(content).or_else(|| of_item(operator, content)) {
        Some(lines) => {
            let lines = lines.iter().map(|line| format!("{indent}{line}"));
            lines.collect::<Vec<_>>().join("\n")
        }
        None => line,
    }
}

/// Returns the lines for the placeholder in a key or in its value.
fn of_key(content: &str) -> Option<Vec<String>> {
    let (key, value) = content.split_once(": ")?;
    let placeholder = |text: &str, prefix| {
        let value = text.strip_prefix(prefix)?.strip_suffix("__")?;
        Some(value.to_owned())
    };
    if let Some(value) = placeholder(value, JSON) {
        return Some(vec![format!("{key}: {{{{ toJson .Values.{value} }}}}")]);
    }
    if let Some(value) = placeholder(value, OPTIONAL) {
        return Some(vec![
            format!("{{{{- with .Values.{value} }}}}"),
            format!("{key}: {{{{ toJson . }}}}"),
            "{{- end }}".to_owned(),
        ]);
    }
    let value = placeholder(key, MAP)?;
    Some(vec![
        // In a range, the dot is an item.
        format!("{{{{- range $name, $value := $.Values.{value} }}}}"),
        "{{ $name | quote }}: {{ $value | quote }}".to_owned(),
        "{{- end }}".to_owned(),
    ])
}

/// Returns the lines for a placeholder that has lines of its own.
fn of_item(operator: &Operator, content: &str) -> Option<Vec<String>> {
    if let Some(argument) = content.strip_prefix(&format!("- {ARGUMENT}")) {
        return Some(argument_lines(operator, argument.trim_end_matches("__")));
    }
    if let Some(value) = content.strip_prefix(&format!("- {ITEMS}")) {
        return Some(vec![
            format!("{{{{- range .Values.{} }}}}", value.trim_end_matches("__")),
            "- {{ toJson . }}".to_owned(),
            "{{- end }}".to_owned(),
        ]);
    }
    let lines: &[&str] = match content {
        "affinity: __affinity__" => return Some(affinity(operator)),
        "- __args__" if operator.replicas.is_some() => &[
            "{{- with .Values.gang }}",
            "- {{ printf \"--gang=%s\" . | quote }}",
            "{{- end }}",
            NAMESPACES,
            FLAGS,
        ],
        "- __args__" => &[NAMESPACES, FLAGS],
        "imagePullSecrets: __pull_secrets__" => &[
            "{{- with .Values.global.imagePullSecrets }}",
            "imagePullSecrets:",
            "{{- range . }}",
            "{{- if kindIs \"map\" . }}",
            "- name: {{ .name | quote }}",
            "{{- else }}",
            "- name: {{ . | quote }}",
            "{{- end }}",
            "{{- end }}",
            "{{- end }}",
        ],
        "to: __api_servers__" => &[
            "{{- with .Values.networkPolicy.apiServers }}",
            "to:",
            "{{- range . }}",
            "- ipBlock:",
            "    cidr: {{ . | quote }}",
            "{{- end }}",
            "{{- end }}",
        ],
        _ => return None,
    };
    let lines = lines.iter().flat_map(|lines| lines.lines());
    Some(lines.map(str::to_owned).collect())
}

/// Gives the flag for the namespaces.
const NAMESPACES: &str = "\
{{- with .Values.namespaces }}
- {{ printf \"--namespace=%s\" (join \",\" .) | quote }}
{{- end }}";

/// Gives the other flags. Numbers are floats in templates.
const FLAGS: &str = "\
{{- range $name, $value := .Values.flags }}
{{- range (kindIs \"slice\" $value | ternary $value (list $value)) }}
- {{ printf \"--%s=%v\" $name (kindIs \"float64\" . | ternary (int64 .) .) | quote }}
{{- end }}
{{- end }}";

/// Returns the lines of the affinity, which spreads several replicas.
fn affinity(operator: &Operator) -> Vec<String> {
    let term = json!({
        "labelSelector": { "matchLabels": { "app.kubernetes.io/name": operator.name } },
        "topologyKey": "kubernetes.io/hostname",
    });
    let preferred = json!([{ "weight": 100, "podAffinityTerm": term }]);
    let spread = json!({ "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": preferred } });
    // Two braces would end an expression.
    let spread = spread.to_string().replace('}', "} ");
    vec![
        "{{- if .Values.affinity }}".to_owned(),
        "affinity: {{ toJson .Values.affinity }}".to_owned(),
        "{{- else if gt (int .Values.replicas) 1 }}".to_owned(),
        format!("affinity: {}", spread.trim_end()),
        "{{- end }}".to_owned(),
    ]
}

/// Returns the lines of an argument of the manifests, which is a switch or repeats the image.
fn argument_lines(operator: &Operator, argument: &str) -> Vec<String> {
    let (flag, text) = match argument.split_once('=') {
        Some((flag, _)) => (
            flag,
            format!(
                "printf \"--{flag}=%s\" (include \"{}.image\" .)",
                operator.name
            ),
        ),
        None => (argument, format!("\"--{argument}\"")),
    };
    vec![
        format!("{{{{- if not (hasKey .Values.flags \"{flag}\") }}}}"),
        format!("- {{{{ {text} | quote }}}}"),
        "{{- end }}".to_owned(),
    ]
}

/// Returns the file of named templates.
pub fn helpers(operator: &Operator) -> String {
    format!(
        "{{{{- define \"{}.image\" -}}}}\n\
         {{{{- with .Values.global.imageRegistry }}}}{{{{ trimSuffix \"/\" . }}}}/{{{{ end -}}}}\n\
         {{{{ .Values.image.repository }}}}\n\
         {{{{- if .Values.image.digest }}}}@{{{{ .Values.image.digest }}}}\n\
         {{{{- else }}}}:{{{{ .Values.image.tag | default .Values.global.imageTag | default .Chart.AppVersion }}}}{{{{ end }}}}\n\
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
