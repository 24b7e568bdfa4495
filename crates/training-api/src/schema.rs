//! The parts of a CRD that a derive can't express: embedded Kubernetes types, bounds of numbers, and validation rules that the
//! kinds share.
//!
//! - [`finish`] turns a derived CRD into the installed one
//! - the functions that return a [`Rule`] are attached to fields with `#[x_kube(validation = …)]`
//!
//! ```
//! use kube::{CustomResource, CustomResourceExt, KubeSchema};
//! use serde::{Deserialize, Serialize};
//! use training_api::{ReplicaSpecs, schema};
//!
//! #[derive(CustomResource, KubeSchema, Clone, Debug, Serialize, Deserialize)]
//! #[kube(group = "example.com", version = "v1", kind = "ToyJob", namespaced)]
//! #[kube(validation = schema::name_is_dns_label())]
//! #[kube(validation = schema::replica_names_fit("toyReplicaSpecs", "Worker"))]
//! #[serde(rename_all = "camelCase")]
//! struct ToyJobSpec {
//!     #[x_kube(validation = schema::replica_types_are(&["Worker"]))]
//!     toy_replica_specs: ReplicaSpecs,
//! }
//!
//! let crd = schema::finish(&ToyJob::crd(), "toyReplicaSpecs", Some("toy"))?;
//! assert!(serde_json::to_string(&crd)?.len() < 100_000);
//! # Ok::<(), serde_json::Error>(())
//! ```
//!
//! Rules are attached as low in the schema as possible, so that a change elsewhere doesn't touch their value: the API server
//! tolerates an old violation while that value is unchanged (Kubernetes 1.30 and newer). Only so can the operator write the status
//! of objects that were stored before a rule existed. This never applies to rules on the root object, because every write changes
//! the root. Such rules themselves tolerate what was already there.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::{Message, Reason, Rule};
use serde_json::{Map, Value, json};

/// The `kubectl get` category of all Trainyard kinds.
pub const CATEGORY: &str = "trainyard";

/// The maximum number of containers per pod template. Kubernetes has no such limit, but the cost estimate of rules over a list needs one.
/// It is far above what a pod can run.
pub const MAX_CONTAINERS: usize = 512;

/// The maximum number of volumes per pod template. Kubernetes has no such limit; no pod with so many has ever run.
pub const MAX_VOLUMES: usize = 512;

/// The maximum number of variables per container. More don't fit into Linux's limit for starting a process.
pub const MAX_ENV: usize = 10_000;

/// The maximum number of replica types per job, for the same reason. No kind has more than five.
pub const MAX_REPLICA_TYPES: usize = 8;

/// The pattern of quantities in generated CRDs.
pub const QUANTITY: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// The pattern of variable names: printable ASCII without `=`, as the API server accepts in pods.
pub const ENV_NAME: &str = "^[ -<>-~]+$";

/// The pattern of port names.
pub const PORT_NAME: &str = "^([a-z0-9]([a-z0-9-]*[a-z0-9])?)?$";

/// The pattern of timestamps that Trainyard's types can read. The `date-time` format alone also admits offsets of 99 hours.
pub const TIMESTAMP: &str = r"^([0-8][0-9]{3}|9[0-8][0-9]{2})-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$";

/// Lists in a pod template that several appliers can share, with the keys of their elements.
///
/// Source: the list-type markers of Kubernetes 1.37.
const LIST_MAPS: &[(&str, &[&str])] = &[
    ("claims", &["name"]),
    ("containers", &["name"]),
    ("env", &["name"]),
    ("ephemeralContainers", &["name"]),
    ("evictionResponders", &["name"]),
    ("hostAliases", &["ip"]),
    ("imagePullSecrets", &["name"]),
    ("initContainers", &["name"]),
    ("ports", &["containerPort", "protocol"]),
    ("resourceClaims", &["name"]),
    ("schedulingGates", &["name"]),
    (
        "topologySpreadConstraints",
        &["topologyKey", "whenUnsatisfiable"],
    ),
    ("volumeDevices", &["devicePath"]),
    ("volumeMounts", &["mountPath"]),
    ("volumes", &["name"]),
];

/// Objects in a pod template that one applier owns as a whole. Source: as for the lists.
const ATOMIC: &[&str] = &[
    "configMapKeyRef",
    "dataSource",
    "fieldRef",
    "fileKeyRef",
    "labelSelector",
    "namespaceSelector",
    "nodePublishSecretRef",
    "nodeSelector",
    "preference",
    "resourceFieldRef",
    "secretKeyRef",
    "selector",
];

/// Fields with Kubernetes types, which Kubernetes' own reference describes. Only the field itself keeps its description.
const EMBEDDED: &[&str] = &["labelSelector", "metrics", "minResources", "template"];

/// Finishes a derived CRD. `replica_map` is the field of the spec with the replica specs; `container` is the name of the container
/// that every pod must have, if the kind requires one.
///
/// - Adds the `kubectl get` columns of all kinds.
/// - Removes `nullable`: the API server then drops an explicit `null`, as with the published CRDs.
/// - Adds the bounds of 32-bit integers, so that every stored value can be read back.
/// - Removes the descriptions in pod templates (300 KB), which keeps the CRD small enough for plain `kubectl apply`. Adds the
///   markers with which several appliers can share a template, and the rules for every pod template.
///
/// # Errors
/// Never, for a CRD that `kube` derived: the schema is converted to JSON and back.
pub fn finish(
    crd: &CustomResourceDefinition,
    replica_map: &str,
    container: Option<&str>,
) -> Result<CustomResourceDefinition, serde_json::Error> {
    let mut crd = serde_json::to_value(crd)?;
    crd["spec"]["names"]["categories"] = json!([CATEGORY]);
    if let Some(versions) = crd
        .pointer_mut("/spec/versions")
        .and_then(Value::as_array_mut)
    {
        for version in versions {
            set(version, "additionalPrinterColumns", columns());
            let Some(schema) = version.pointer_mut("/schema/openAPIV3Schema") else {
                continue;
            };
            everywhere(None, schema);
            // Rules may refer to the name only if the schema declares it.
            if let Some(Value::Object(root)) = schema.get_mut("properties") {
                let name = json!({ "name": { "type": "string" } });
                root.insert(
                    "metadata".into(),
                    json!({ "type": "object", "properties": name }),
                );
            }
            // These belong to kinds whose jobs have more than replicas.
            if let Some(Value::Object(status)) = schema.pointer_mut("/properties/status/properties")
            {
                status.remove(MADE_ONCE);
                status.remove(WORKER_SELECTOR);
            }
            let map = format!("/properties/spec/properties/{replica_map}");
            if let Some(map) = schema.pointer_mut(&map) {
                set(map, "minProperties", 1.into());
                set(map, "maxProperties", MAX_REPLICA_TYPES.into());
                if let Some(replica) = map.get_mut("additionalProperties") {
                    require(replica, "template");
                    if let Some(container) = container {
                        let rule = serde_json::to_value(has_container(container))?;
                        set(replica, "x-kubernetes-validations", json!([rule]));
                    }
                    if let Some(template) = replica.pointer_mut("/properties/template") {
                        pod_template(template);
                    }
                }
            }
        }
    }
    serde_json::from_value(crd)
}

const MADE_ONCE: &str = "madeOnce";
const WORKER_SELECTOR: &str = "workerSelector";

/// Restores the status fields that [`finish`] removes, for kinds whose jobs have more than replicas.
pub fn with_fields_of_launchers(crd: &mut Value) {
    let versions = crd
        .pointer_mut("/spec/versions")
        .and_then(Value::as_array_mut);
    for version in versions.into_iter().flatten() {
        let at = "/schema/openAPIV3Schema/properties/status/properties";
        if let Some(status) = version.pointer_mut(at) {
            let text = "Objects that are created once for the job and never again: the name or uid by purpose.";
            let field = json!({
                "type": "object", "additionalProperties": { "type": "string" }, "description": text,
            });
            set(status, MADE_ONCE, field);
            let text = "Label selector of the workers, for the scale subresource.";
            let field = json!({ "type": "string", "description": text });
            set(status, WORKER_SELECTOR, field);
        }
    }
}

/// The `kubectl get` columns, in order.
fn columns() -> Value {
    let column = |name: &str, type_: &str, path: &str| json!({ "name": name, "type": type_, "jsonPath": path });
    let state = ".status.conditions[-1:]";
    let mut reason = column("Reason", "string", &format!("{state}.reason"));
    // Shown with `-o wide`.
    set(&mut reason, "priority", 1.into());
    json!([
        column("State", "string", &format!("{state}.type")),
        column("Ready", "string", ".status.ready"),
        column("Restarts", "integer", ".status.restarts"),
        column("Waiting", "string", ".status.waiting"),
        column("Age", "date", ".metadata.creationTimestamp"),
        reason,
    ])
}

/// Adapts a derived schema to the API server and to what Trainyard's types can read: nothing is nullable, numbers have bounds,
/// quantities and times have patterns, and descriptions have one line per paragraph. [`finish`] does this for kinds with replica
/// specs.
pub fn tidy(schema: &mut Value) {
    everywhere(None, schema);
}

fn everywhere(name: Option<&str>, schema: &mut Value) {
    if let Some(object) = schema.as_object_mut() {
        object.remove("nullable");
        if let Some(Value::String(text)) = object.get_mut("description") {
            // Doc comments are wrapped for editors.
            *text = text
                .split("\n\n")
                .map(|p| p.replace('\n', " "))
                .collect::<Vec<_>>()
                .join("\n\n");
        }
        let int_or_string = object.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true));
        let format = object
            .get("format")
            .and_then(Value::as_str)
            .map(str::to_owned);
        if format.as_deref() == Some("int32") || (int_or_string && name == Some("port")) {
            object.entry("minimum").or_insert(i32::MIN.into());
            object.entry("maximum").or_insert(i32::MAX.into());
        }
        if format.as_deref() == Some("date-time") {
            object.insert("pattern".into(), TIMESTAMP.into());
        }
        if int_or_string {
            object.insert(
                "anyOf".into(),
                json!([{ "type": "integer" }, { "type": "string" }]),
            );
            // Only ports are such values without being quantities.
            if name != Some("port") {
                object.insert("pattern".into(), QUANTITY.into());
            }
        }
    }
    if name.is_some_and(|name| EMBEDDED.contains(&name)) {
        strip_descriptions(schema);
    }
    each_child(schema, everywhere);
}

/// Calls `f` with the schema of each direct child, and with the property's name if there is one.
fn each_child(schema: &mut Value, mut f: impl FnMut(Option<&str>, &mut Value)) {
    let Some(object) = schema.as_object_mut() else {
        return;
    };
    if let Some(Value::Object(properties)) = object.get_mut("properties") {
        for (name, property) in properties {
            f(Some(name), property);
        }
    }
    for key in ["items", "additionalProperties"] {
        if let Some(child) = object.get_mut(key) {
            f(None, child);
        }
    }
}

/// Removes all descriptions below `schema`, but not its own.
pub fn strip_descriptions(schema: &mut Value) {
    each_child(schema, |_, child| {
        if let Some(object) = child.as_object_mut() {
            object.remove("description");
        }
        strip_descriptions(child);
    });
}

/// Bounds the lists by which an object's text makes pods take much memory.
pub fn bound_lists(schema: &mut Value) {
    each_child(schema, |name, child| {
        let most = match name {
            Some("containers" | "ephemeralContainers" | "initContainers" | "sidecars") => {
                Some(MAX_CONTAINERS)
            }
            Some("env") => Some(MAX_ENV),
            Some("volumes") => Some(MAX_VOLUMES),
            _ => None,
        };
        if let Some(most) = most.filter(|_| child["type"] == "array") {
            set(child, "maxItems", most.into());
        }
        bound_lists(child);
    });
}

fn pod_template(template: &mut Value) {
    pod_markers(None, template);
    bound_lists(template);
    require(template, "spec");
    let ports = json!({ "minimum": 1, "maximum": 65535 });
    for list in ["containers", "initContainers"] {
        let Some(list) = template.pointer_mut(&format!("/properties/spec/properties/{list}"))
        else {
            continue;
        };
        if let Some(name) = list.pointer_mut("/items/properties/name") {
            set(name, "minLength", 1.into());
            set(name, "maxLength", 63.into());
        }
        if let Some(name) = list.pointer_mut("/items/properties/env/items/properties/name") {
            set(name, "minLength", 1.into());
            set(name, "pattern", ENV_NAME.into());
        }
        if let Some(port) = list.pointer_mut("/items/properties/ports/items/properties") {
            if let Some(number) = port.get_mut("containerPort") {
                extend(number, &ports);
            }
            if let Some(name) = port.get_mut("name") {
                set(name, "maxLength", 15.into());
                set(name, "pattern", PORT_NAME.into());
            }
        }
    }
    if let Some(containers) = template.pointer_mut("/properties/spec/properties/containers") {
        set(containers, "minItems", 1.into());
        if let Some(container) = containers.get_mut("items") {
            require(container, "image");
            if let Some(image) = container.pointer_mut("/properties/image") {
                set(image, "minLength", 1.into());
            }
        }
    }
}

fn pod_markers(name: Option<&str>, schema: &mut Value) {
    if name == Some("metadata") {
        *schema = embedded_metadata();
        return;
    }
    if let Some(name) = name {
        let is_list = schema.get("type").and_then(Value::as_str) == Some("array");
        if is_list && let Some((_, keys)) = LIST_MAPS.iter().find(|(list, _)| *list == name) {
            set(schema, "x-kubernetes-list-type", "map".into());
            set(schema, "x-kubernetes-list-map-keys", json!(keys));
            // A key must be present: required, or with a default.
            if name == "imagePullSecrets"
                && let Some(key) = schema.pointer_mut("/items/properties/name")
            {
                set(key, "default", "".into());
            }
        }
        if !is_list && (ATOMIC.contains(&name) || name.ends_with("ecretRef")) {
            set(schema, "x-kubernetes-map-type", "atomic".into());
        }
        if name == "ports"
            && let Some(protocol) = schema.pointer_mut("/items/properties/protocol")
        {
            set(protocol, "default", "TCP".into());
        }
    }
    each_child(schema, pod_markers);
}

/// For a replica spec of any type: its pods have a container of this name.
///
/// The schema requires containers, but a rule that fails without them would reject every write to objects that were stored before:
/// the API server tolerates old violations, not errors.
fn has_container(container: &str) -> Rule {
    rule(
        format!(
            "!has(self.template) || !has(self.template.spec) || !has(self.template.spec.containers) || \
             self.template.spec.containers.exists(c, c.name == '{container}')"
        ),
        format!("must have at least one container with name {container}"),
        Reason::FieldValueRequired,
    )
    .field_path(".template.spec.containers")
}

/// The metadata fields of a template, as in the published CRDs.
fn embedded_metadata() -> Value {
    let strings = json!({ "type": "object", "additionalProperties": { "type": "string" } });
    json!({
        "type": "object",
        "properties": {
            "annotations": strings,
            "finalizers": { "type": "array", "items": { "type": "string" } },
            "labels": strings,
            "name": { "type": "string" },
            "namespace": { "type": "string" },
        },
    })
}

fn set(schema: &mut Value, key: &str, value: Value) {
    if let Some(object) = schema.as_object_mut() {
        object.insert(key.into(), value);
    }
}

fn extend(schema: &mut Value, with: &Value) {
    for (key, value) in with.as_object().unwrap_or(&Map::new()) {
        set(schema, key, value.clone());
    }
}

fn require(schema: &mut Value, field: &str) {
    let Some(object) = schema.as_object_mut() else {
        return;
    };
    let required = object.entry("required").or_insert_with(|| json!([]));
    if let Some(required) = required.as_array_mut()
        && !required.iter().any(|r| r == field)
    {
        required.push(field.into());
        required.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
    }
}

fn rule(rule: impl Into<String>, message: impl Into<String>, reason: Reason) -> Rule {
    Rule::new(rule)
        .message(Message::Message(message.into()))
        .reason(reason)
}

/// For the root: the job's name is a DNS label that starts with a letter, because its Services' names start with it.
pub fn name_is_dns_label() -> Rule {
    rule(
        "oldSelf.hasValue() || self.metadata.name.matches('^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$')",
        "metadata.name must be a DNS-1035 label: at most 63 lower-case letters, digits and '-', starting with a letter and \
         ending with a letter or digit",
        Reason::FieldValueInvalid,
    )
    .field_path(".metadata.name")
    .optional_old_self(true)
}

/// For the root: `<job>-<replica type>-<highest index>` fits into 63 characters, the limit for names of Services and host names. An
/// existing job is exempt while its number of replicas doesn't change.
pub fn replica_names_fit(replica_map: &str, type_: &str) -> Rule {
    let map = format!("self.spec.{replica_map}");
    let count = format!("{map}['{type_}'].?replicas.orValue(1)");
    let old = format!("oldSelf.?spec.?{replica_map}[?'{type_}']");
    // The room for the job's name besides two hyphens, the replica type and the digits of the index. The text is chosen among
    // constants, because the API server can't bound the cost of a concatenated one.
    let room = |digits: usize| (61_usize.saturating_sub(type_.len() + digits)).to_string();
    let limits: Vec<String> = (1..10)
        .map(|digits| {
            format!(
                "{count} <= {} ? '{}' : ",
                10_u64.pow(digits),
                room(digits as usize)
            )
        })
        .collect();
    let limit = limits.concat();
    let type_lower = type_.to_ascii_lowercase();
    Rule::new(format!(
        "!has(self.spec) || !has({map}) || !('{type_}' in {map}) || \
         self.metadata.name.size() + string({count} > 1 ? {count} - 1 : 0).size() <= {} || \
         ({old}.hasValue() && {old}.?replicas.orValue(1) == {count})",
        room(0)
    ))
    .message(Message::Expression(format!(
        "'metadata.name may have at most ' + ({limit}'{}') + ' characters with this number of replicas, because \
         <metadata.name>-{type_lower}-<index> names pods and services and may have 63'",
        room(10)
    )))
    .reason(Reason::FieldValueInvalid)
    .field_path(".metadata.name")
    .optional_old_self(true)
}

/// The message of [`replica_types_are`].
pub fn only_types(types: &[&str]) -> String {
    let names: Vec<String> = types.iter().map(|t| format!("\"{t}\"")).collect();
    let names = names.join(", ");
    format!("unsupported replica type; supported values, spelled exactly so: {names}")
}

/// The rule for replica types of kinds that accept any.
pub const ODD_REPLICA_TYPE: &str =
    "a replica type has letters, digits and '-' inside, because it is a part of the names of pods";
/// The message for two replica types that differ only in case.
pub const SAME_REPLICA_TYPE: &str = "replica types that differ in capitals only are the same one";

/// For the map of replica specs: only these replica types, spelled exactly so.
pub fn replica_types_are(types: &[&str]) -> Rule {
    let list: Vec<String> = types.iter().map(|t| format!("'{t}'")).collect();
    rule(
        format!("self.all(t, t in [{}])", list.join(", ")),
        only_types(types),
        Reason::FieldValueInvalid,
    )
}

/// For the map of replica specs: any replica type that is valid in a pod's name.
pub fn replica_types_name_pods() -> Rule {
    rule(
        "self.all(t, t.matches('^[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?$'))",
        ODD_REPLICA_TYPE,
        Reason::FieldValueInvalid,
    )
}

/// For the map of replica specs: no replica type occurs twice in different spellings.
pub fn replica_types_differ() -> Rule {
    rule(
        "self.all(t, !self.exists(o, o != t && o.lowerAscii() == t.lowerAscii()))",
        SAME_REPLICA_TYPE,
        Reason::FieldValueInvalid,
    )
}

/// For the root: [`replica_names_fit`] for replica types other than these.
pub fn other_names_fit(replica_map: &str, types: &[&str]) -> Rule {
    let map = format!("self.spec.{replica_map}");
    let known: Vec<String> = types.iter().map(|t| format!("'{t}'")).collect();
    let count = format!("{map}[t].?replicas.orValue(1)");
    let old = format!("oldSelf.?spec.?{replica_map}[?t]");
    Rule::new(format!(
        "!has(self.spec) || !has({map}) || {map}.all(t, t in [{}] || \
         self.metadata.name.size() + t.size() + string({count} > 1 ? {count} - 1 : 0).size() <= 61 || \
         ({old}.hasValue() && {old}.?replicas.orValue(1) == {count}))",
        known.join(", ")
    ))
    .message(
        "metadata.name is too long for one of the replica types, because <metadata.name>-<replica type>-<index> names pods and \
         services and may have 63 characters",
    )
    .reason(Reason::FieldValueInvalid)
    .field_path(".metadata.name")
    .optional_old_self(true)
}

/// For a spec: the job has replica type `type_`.
pub fn has_type(replica_map: &str, type_: &str) -> Rule {
    rule(
        format!("'{type_}' in self.{replica_map}"),
        "must be present",
        Reason::FieldValueRequired,
    )
    .field_path(format!(".{replica_map}['{type_}']"))
}

/// For a spec: replica type `type_`, if present, has one pod.
pub fn has_one(replica_map: &str, type_: &str) -> Rule {
    let path = format!("{replica_map}['{type_}'].replicas");
    rule(
        format!("!('{type_}' in self.{replica_map}) || !has(self.{path}) || self.{path} == 1"),
        "must be 1",
        Reason::FieldValueForbidden,
    )
    .field_path(format!(".{path}"))
}

/// For a spec: replica type `type_`, if present, has at least one pod.
pub fn has_some(replica_map: &str, type_: &str) -> Rule {
    let path = format!("{replica_map}['{type_}'].replicas");
    rule(
        format!("!('{type_}' in self.{replica_map}) || !has(self.{path}) || self.{path} >= 1"),
        "must be at least 1",
        Reason::FieldValueForbidden,
    )
    .field_path(format!(".{path}"))
}

/// CEL, for a spec: true if the replica type has no containers to check.
///
/// The schema requires them, but a rule that fails without them would reject every write to objects that were stored before: the
/// API server tolerates old violations, not errors.
pub fn no_containers(replica_map: &str, type_: &str) -> String {
    let replica = format!("self.{replica_map}['{type_}']");
    format!(
        "!('{type_}' in self.{replica_map}) || !has({replica}.template) || \
         !has({replica}.template.spec) || !has({replica}.template.spec.containers)"
    )
}

/// For a spec: `runPolicy.managedBy` is immutable, including its presence and that of its parent.
pub fn managed_by_stays() -> Rule {
    let of =
        |object: &str| format!("(has({object}.runPolicy) && has({object}.runPolicy.managedBy))");
    let (new, old) = (of("self"), of("oldSelf"));
    rule(
        format!(
            "{new} == {old} && (!{new} || self.runPolicy.managedBy == oldSelf.runPolicy.managedBy)"
        ),
        "spec.runPolicy.managedBy is immutable",
        Reason::FieldValueForbidden,
    )
    .field_path(".runPolicy.managedBy")
}

/// For `runPolicy.schedulingPolicy.queue`: it is immutable. The message is the published one.
pub fn queue_stays() -> Rule {
    Rule::new("self == oldSelf")
        .message("spec.runPolicy.schedulingPolicy.queue is immutable")
        .reason(Reason::FieldValueInvalid)
}
