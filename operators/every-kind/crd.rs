//! The custom resource as users and tools see it: fields, defaults, rules, size.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use serde_json::{Value, json};
use training_testkit::validation::{Refused, Table};

use crate::scene::{self, FIELDS, KIND, Resource};

fn table() -> Table {
    Table::read(&KIND).unwrap()
}

/// Cached, because it is slow to build without optimisation.
fn crd() -> Value {
    static CRD: LazyLock<Value> =
        LazyLock::new(|| serde_json::to_value(scene::crd().unwrap()).unwrap());
    CRD.clone()
}

fn schema() -> Value {
    crd()
        .pointer("/spec/versions/0/schema/openAPIV3Schema")
        .unwrap()
        .clone()
}

/// Visits every schema within a schema, with its path.
fn walk(path: &str, schema: &Value, visit: &mut impl FnMut(&str, &Value)) {
    visit(path, schema);
    for (name, child) in schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        walk(&format!("{path}.{name}"), child, visit);
    }
    for (key, suffix) in [("items", "[]"), ("additionalProperties", ".*")] {
        if let Some(child) = schema.get(key) {
            walk(&format!("{path}{suffix}"), child, visit);
        }
    }
}

#[test]
fn the_crd_is_small_enough_for_plain_kubectl_apply() {
    // The annotation of client-side apply must fit into 262,144 bytes, the limit for all annotations together.
    let size = serde_json::to_string(&crd()).unwrap().len();
    assert!(size < 200_000, "{size} bytes");
}

#[test]
fn mt_33_the_lists_of_a_template_are_bounded() {
    let mut bounds = BTreeMap::new();
    walk("", &schema(), &mut |path, schema| {
        let list = path.split_once(".template.spec.").map(|(_, list)| list);
        if let (Some(list), Some(most)) = (list, schema["maxItems"].as_u64()) {
            bounds.insert(list.to_owned(), most);
        }
    });
    let expected = [
        ("containers", 512),
        ("containers[].env", 10_000),
        ("ephemeralContainers", 512),
        ("ephemeralContainers[].env", 10_000),
        ("initContainers", 512),
        ("initContainers[].env", 10_000),
        ("volumes", 512),
    ];
    assert_eq!(
        bounds,
        expected.map(|(list, most)| (list.to_owned(), most)).into()
    );
}

#[test]
fn the_kind_has_the_published_identity() {
    let crd = crd();
    let spec = &crd["spec"];
    assert_eq!(
        crd["metadata"]["name"],
        format!("{}.kubeflow.org", KIND.plural)
    );
    assert_eq!(spec["scope"], "Namespaced");
    assert_eq!(
        spec["names"],
        json!({
            "kind": KIND.name, "plural": KIND.plural, "singular": KIND.name.to_lowercase(),
            "shortNames": [scene::SHORT_NAME], "categories": ["trainyard"],
        })
    );
    let version = &spec["versions"][0];
    assert_eq!(spec["versions"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&version["name"], &version["served"], &version["storage"]),
        (&json!("v1"), &json!(true), &json!(true))
    );
    let scale = json!({
        "specReplicasPath": format!(".spec.{}.Worker.replicas", KIND.replica_map),
        "statusReplicasPath": ".status.replicaStatuses.Worker.active",
        "labelSelectorPath": ".status.replicaStatuses.Worker.selector",
    });
    // As published.
    let scales = ["PyTorchJob", "PaddleJob", "JAXJob"].contains(&KIND.name);
    let subresources = if scales {
        json!({ "status": {}, "scale": scale })
    } else {
        json!({ "status": {} })
    };
    assert_eq!(version["subresources"], subresources);
    let columns: Vec<&str> = version["additionalPrinterColumns"]
        .as_array()
        .unwrap()
        .iter()
        .map(|column| column["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        columns,
        ["State", "Ready", "Restarts", "Waiting", "Age", "Reason"]
    );
}

#[test]
fn the_fields_are_the_published_ones_and_ours() {
    let published = [
        "spec.runPolicy.activeDeadlineSeconds",
        "spec.runPolicy.backoffLimit",
        "spec.runPolicy.cleanPodPolicy",
        "spec.runPolicy.managedBy",
        "spec.runPolicy.schedulingPolicy.minAvailable",
        "spec.runPolicy.schedulingPolicy.minResources",
        "spec.runPolicy.schedulingPolicy.priorityClass",
        "spec.runPolicy.schedulingPolicy.queue",
        "spec.runPolicy.schedulingPolicy.scheduleTimeoutSeconds",
        "spec.runPolicy.suspend",
        "spec.runPolicy.ttlSecondsAfterFinished",
        "status.completionTime",
        "status.conditions[].lastTransitionTime",
        "status.conditions[].lastUpdateTime",
        "status.conditions[].message",
        "status.conditions[].reason",
        "status.conditions[].status",
        "status.conditions[].type",
        "status.lastReconcileTime",
        "status.replicaStatuses.*.active",
        "status.replicaStatuses.*.failed",
        "status.replicaStatuses.*.labelSelector",
        "status.replicaStatuses.*.selector",
        "status.replicaStatuses.*.succeeded",
        "status.startTime",
    ];
    let ours = [
        "status.attempt",
        "status.containerRestarts",
        "status.countedFailures",
        "status.finishedIndices",
        "status.madeFrom",
        "status.gangRestart",
        "status.gangScheduler",
        "status.lastFailure",
        "status.observedGeneration",
        "status.ready",
        "status.replicaAttempts",
        "status.restarts",
        "status.waiting",
    ];
    let ends = ["template", "metrics", "labelSelector", "minResources"];
    let mut fields = BTreeSet::new();
    for part in ["spec", "status"] {
        walk(part, &schema()["properties"][part], &mut |path, schema| {
            let leaf = schema.get("properties").is_none()
                && !["items", "additionalProperties"].iter().any(|key| {
                    schema
                        .get(key)
                        .is_some_and(|child| child.get("properties").is_some())
                });
            let below_an_end = ends.iter().any(|end| {
                path.contains(&format!(".{end}.")) || path.contains(&format!(".{end}["))
            });
            let is_end = ends.iter().any(|end| path.ends_with(&format!(".{end}")));
            if !below_an_end && (leaf || is_end) && !path.ends_with(".*") && !path.ends_with("[]") {
                let own = ours
                    .iter()
                    .find(|own| path.starts_with(&format!("{own}.")) || path == **own);
                fields.insert(own.map_or_else(|| path.to_owned(), |own| (*own).to_owned()));
            }
        });
    }
    let replicas = ["replicas", "restartPolicy", "template"]
        .map(|field| format!("spec.{}.*.{field}", KIND.replica_map));
    let all = published.iter().chain(&ours).chain(FIELDS);
    let expected: BTreeSet<String> = all.map(|f| (*f).to_owned()).chain(replicas).collect();
    assert_eq!(fields, expected);
}

#[test]
fn the_schema_is_structural_without_surprises() {
    walk("", &schema(), &mut |path, schema| {
        for key in [
            "$ref",
            "nullable",
            "x-kubernetes-preserve-unknown-fields",
            "allOf",
            "oneOf",
        ] {
            assert!(schema.get(key).is_none(), "{path} has {key}");
        }
        let quantity_or_port = schema.get("x-kubernetes-int-or-string").is_some();
        assert_ne!(
            schema.get("type").is_some(),
            quantity_or_port,
            "{path} has no type or two types"
        );
        if schema["format"] == "int32" {
            assert!(
                schema.get("minimum").is_some() && schema.get("maximum").is_some(),
                "{path}"
            );
        }
        if schema["x-kubernetes-list-type"] == "map" {
            for key in schema["x-kubernetes-list-map-keys"].as_array().unwrap() {
                let item = &schema["items"];
                let required = item["required"]
                    .as_array()
                    .is_some_and(|list| list.contains(key));
                let default = item["properties"][key.as_str().unwrap()]
                    .get("default")
                    .is_some();
                assert!(required || default, "{path}: key {key}");
            }
        }
    });
}

#[test]
fn templates_carry_no_descriptions_and_only_the_metadata_of_pods() {
    let schema = schema();
    let template = schema
        .pointer(&format!(
            "/properties/spec/properties/{}/additionalProperties/properties/template",
            KIND.replica_map
        ))
        .unwrap();
    let mut described = 0;
    walk("", template, &mut |_, schema| {
        described += usize::from(schema.get("description").is_some());
    });
    assert_eq!(described, 1, "only the template itself");
    let metadata: Vec<&String> = template["properties"]["metadata"]["properties"]
        .as_object()
        .unwrap()
        .keys()
        .collect();
    assert_eq!(
        metadata,
        ["annotations", "finalizers", "labels", "name", "namespace"]
    );
}

#[test]
fn only_these_fields_have_defaults() {
    let mut defaults = BTreeMap::new();
    walk("", &schema(), &mut |path, schema| {
        if let Some(default) = schema.get("default") {
            defaults.insert(
                path.rsplit_once("Specs.*")
                    .map_or(path, |(_, rest)| rest)
                    .to_owned(),
                default.clone(),
            );
        }
    });
    let spec = ".template.spec";
    let protocol = |list: &str| (format!("{spec}.{list}[].ports[].protocol"), json!("TCP"));
    let expected = BTreeMap::from([
        (".spec.runPolicy".to_owned(), json!({})),
        (".spec.runPolicy.suspend".to_owned(), json!(false)),
        protocol("containers"),
        protocol("initContainers"),
        protocol("ephemeralContainers"),
        (format!("{spec}.imagePullSecrets[].name"), json!("")),
    ]);
    assert_eq!(defaults, expected);
}

#[test]
fn an_absent_suspend_stays_absent_in_memory() {
    let job = json!({ "metadata": { "name": "job" }, "spec": { KIND.replica_map: {} } });
    let job: Resource = serde_json::from_value(job).unwrap();
    assert_eq!(job.spec.run_policy.suspend, None);
}

#[test]
fn every_rule_has_an_object_that_breaks_it() {
    let table = table();
    let refusals: Vec<&Refused> = table
        .rows
        .iter()
        .filter_map(|row| row.refused.as_ref())
        .collect();
    let mut rules = 0;
    walk("", &schema(), &mut |path, schema| {
        for rule in schema["x-kubernetes-validations"]
            .as_array()
            .into_iter()
            .flatten()
        {
            rules += 1;
            let field = format!("{path}{}", rule["fieldPath"].as_str().unwrap_or_default());
            let field = field
                .trim_start_matches('.')
                .replace("['", "[")
                .replace("']", "]");
            let broken = refusals.iter().any(|refused| {
                same_slot(&refused.field, &field)
                    && if let Some(message) = rule["message"].as_str() {
                        message.contains(&refused.text)
                    } else {
                        let expression = rule["messageExpression"].as_str().unwrap();
                        let reason = expression.split("because ").nth(1).unwrap();
                        refused.text.starts_with("at most") || reason.starts_with(&refused.text)
                    }
            });
            assert!(broken, "no row breaks {field}: {}", rule["rule"]);
        }
    });
    assert!(rules >= 6, "only {rules} rules were found");
}

/// Returns true if they name the same field. A rule below the map of replica types applies to each type.
fn same_slot(refused: &str, rule: &str) -> bool {
    let Some((map, rest)) = rule.split_once(".*") else {
        return refused == rule;
    };
    let within = refused.strip_prefix(map).and_then(|r| r.split_once(']'));
    within.is_some_and(|(_, below)| below == rest)
}

#[test]
fn rows_have_names_of_their_own_and_a_whole_object() {
    let table = table();
    let mut names = BTreeSet::new();
    for row in &table.rows {
        assert!(names.insert(&row.name), "twice: {}", row.name);
        assert!(
            row.patch.is_some() != row.object.is_some(),
            "{}: needs either patch or object",
            row.name
        );
        assert!(
            row.update.is_none() || row.scale.is_none(),
            "{}: has update and scale",
            row.name
        );
    }
}

#[test]
fn what_is_accepted_can_be_read() {
    let table = table();
    for row in table.rows {
        // With a second request, that one is refused.
        if row.refused.is_some() && row.update.is_none() && row.scale.is_none() {
            continue;
        }
        let mut object = row.object.unwrap_or_else(|| table.valid.clone());
        for patch in [&row.patch, &row.update].into_iter().flatten() {
            object = training_core::patch::apply(&object, patch);
        }
        let read = serde_json::from_value::<Resource>(drop_nulls(object));
        assert!(read.is_ok(), "{}: {}", row.name, read.unwrap_err());
    }
}

/// Drops nulls, as the API server does for fields that are not nullable.
fn drop_nulls(value: Value) -> Value {
    match value {
        Value::Object(object) => object
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key, drop_nulls(value)))
            .collect(),
        Value::Array(items) => items.into_iter().map(drop_nulls).collect(),
        other => other,
    }
}
