//! The CRDs as installed.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use spark_operator::api::rule::DENIED_CONF;
use spark_operator::api::template::METADATA;
use spark_operator::digest::DEFAULTS;

use super::{APPLICATION, SCHEDULED, schema};

fn spec() -> &'static Value {
    &schema(&APPLICATION)["spec"]["properties"]
}

#[test]
fn the_names_are_the_published_ones() {
    let told = |crd: &Value| {
        let names = &crd["spec"]["names"];
        json!([
            crd["metadata"]["name"],
            names["kind"],
            names["plural"],
            names["singular"],
            names["shortNames"],
            names["categories"],
            crd["spec"]["scope"],
            crd["spec"]["conversion"],
        ])
    };
    let expected = json!([
        "sparkapplications.sparkoperator.k8s.io",
        "SparkApplication",
        "sparkapplications",
        "sparkapplication",
        ["sparkapp"],
        ["spark", "trainyard"],
        "Namespaced",
        null,
    ]);
    assert_eq!(told(&APPLICATION), expected);
    let expected = json!([
        "scheduledsparkapplications.sparkoperator.k8s.io",
        "ScheduledSparkApplication",
        "scheduledsparkapplications",
        "scheduledsparkapplication",
        ["scheduledsparkapp"],
        ["spark", "trainyard"],
        "Namespaced",
        null,
    ]);
    assert_eq!(told(&SCHEDULED), expected);
    for crd in [&*APPLICATION, &*SCHEDULED] {
        let versions = crd["spec"]["versions"].as_array().unwrap();
        let [version] = versions.as_slice() else {
            panic!("one version")
        };
        assert_eq!(version["name"], "v1beta2");
        assert_eq!(
            (&version["served"], &version["storage"]),
            (&json!(true), &json!(true))
        );
        assert_eq!(version["subresources"], json!({ "status": {} }));
        // The API server refuses a group under k8s.io without this.
        let approved = &crd["metadata"]["annotations"]["api-approved.kubernetes.io"];
        assert_eq!(
            *approved,
            "https://github.com/kubeflow/spark-operator/pull/1298"
        );
    }
}

#[test]
fn the_columns_are_the_published_ones() {
    let columns = |crd: &Value| -> Vec<[String; 3]> {
        let list = crd["spec"]["versions"][0]["additionalPrinterColumns"]
            .as_array()
            .unwrap();
        let text = |v: &Value| v.as_str().unwrap().to_owned();
        list.iter()
            .map(|c| [text(&c["name"]), text(&c["jsonPath"]), text(&c["type"])])
            .collect()
    };
    let expected = [
        ["Suspend", ".spec.suspend", "boolean"],
        ["Status", ".status.applicationState.state", "string"],
        ["Attempts", ".status.executionAttempts", "string"],
        ["Start", ".status.lastSubmissionAttemptTime", "string"],
        ["Finish", ".status.terminationTime", "string"],
        ["Waiting", ".status.waiting", "string"],
        ["Age", ".metadata.creationTimestamp", "date"],
    ];
    assert_eq!(
        columns(&APPLICATION),
        expected.map(|c| c.map(str::to_owned))
    );
    let expected = [
        ["Schedule", ".spec.schedule", "string"],
        ["TimeZone", ".spec.timeZone", "string"],
        ["Suspend", ".spec.suspend", "string"],
        ["Last Run", ".status.lastRun", "date"],
        ["Last Run Name", ".status.lastRunName", "string"],
        ["Age", ".metadata.creationTimestamp", "date"],
    ];
    assert_eq!(columns(&SCHEDULED), expected.map(|c| c.map(str::to_owned)));
}

#[test]
fn they_are_small_enough_for_plain_apply() {
    for crd in [&*APPLICATION, &*SCHEDULED] {
        // kubectl apply keeps a copy in an annotation, and all annotations together have at most 262144 bytes. The CRD contains
        // two pod templates and four lists of containers.
        let size = serde_json::to_string(crd).unwrap().len();
        assert!((150_000..245_000).contains(&size), "{size}");
    }
}

/// The fields of a spec.
const SPEC: [&str; 33] = [
    "suspend",
    "type",
    "sparkVersion",
    "mode",
    "proxyUser",
    "image",
    "imagePullPolicy",
    "imagePullSecrets",
    "mainClass",
    "mainApplicationFile",
    "arguments",
    "sparkConf",
    "hadoopConf",
    "sparkConfigMap",
    "hadoopConfigMap",
    "volumes",
    "driver",
    "executor",
    "deps",
    "restartPolicy",
    "nodeSelector",
    "failureRetries",
    "retryInterval",
    "pythonVersion",
    "memoryOverheadFactor",
    "monitoring",
    "batchScheduler",
    "batchSchedulerOptions",
    "timeToLiveSeconds",
    "sparkUIOptions",
    "driverIngressOptions",
    "dynamicAllocation",
    "driverPodDisruptionBudget",
];

/// The fields that driver and executor have in common.
const BOTH: [&str; 36] = [
    "template",
    "cores",
    "coreLimit",
    "memory",
    "memoryLimit",
    "memoryOverhead",
    "gpu",
    "image",
    "configMaps",
    "secrets",
    "env",
    "envVars",
    "envFrom",
    "envSecretKeyRefs",
    "labels",
    "annotations",
    "volumeMounts",
    "affinity",
    "tolerations",
    "podSecurityContext",
    "securityContext",
    "schedulerName",
    "sidecars",
    "initContainers",
    "hostNetwork",
    "nodeSelector",
    "dnsConfig",
    "terminationGracePeriodSeconds",
    "serviceAccount",
    "hostAliases",
    "shareProcessNamespace",
    "coreRequest",
    "javaOptions",
    "lifecycle",
    "ports",
    "priorityClassName",
];

fn fields(schema: &Value) -> Vec<String> {
    schema["properties"]
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect()
}

fn in_order<'a>(names: impl IntoIterator<Item = &'a &'a str>) -> Vec<&'a str> {
    let mut names: Vec<&str> = names.into_iter().copied().collect();
    names.sort_unstable();
    names
}

#[test]
fn every_published_field_is_there_and_described() {
    assert_eq!(fields(&schema(&APPLICATION)["spec"]), in_order(&SPEC));
    for (role, own) in [
        (
            "driver",
            &[
                "podName",
                "kubernetesMaster",
                "serviceAnnotations",
                "serviceLabels",
            ][..],
        ),
        ("executor", &["instances", "deleteOnTermination"][..]),
    ] {
        assert_eq!(
            fields(&spec()[role]),
            in_order(BOTH.iter().chain(own)),
            "{role}"
        );
    }
    for (name, field) in spec().as_object().unwrap() {
        assert!(field["description"].is_string(), "{name}");
    }
    let status = fields(&schema(&APPLICATION)["status"]);
    for field in [
        "sparkApplicationId",
        "submissionID",
        "lastSubmissionAttemptTime",
        "terminationTime",
        "driverInfo",
        "applicationState",
        "executorState",
        "executionAttempts",
        "submissionAttempts",
    ] {
        assert!(status.iter().any(|f| f == field), "{field}");
    }
}

#[test]
fn a_schedule_has_the_whole_spec_of_an_application() {
    let expected = [
        "concurrencyPolicy",
        "failedRunHistoryLimit",
        "schedule",
        "successfulRunHistoryLimit",
        "suspend",
        "template",
        "timeZone",
    ];
    let scheduled = &schema(&SCHEDULED)["spec"];
    assert_eq!(fields(scheduled), expected);
    let template = &scheduled["properties"]["template"];
    assert_eq!(fields(template), in_order(&SPEC));
    let rules = |spec: &Value| spec["properties"]["sparkConf"]["x-kubernetes-validations"].clone();
    assert!(rules(template).is_array());
    assert_eq!(rules(template), rules(&schema(&APPLICATION)["spec"]));
}

#[test]
fn the_unconditional_defaults_are_in_the_schema() {
    for spec in [
        spec(),
        &schema(&SCHEDULED)["spec"]["properties"]["template"]["properties"],
    ] {
        assert_eq!(spec["mode"]["default"], "cluster");
        assert_eq!(
            spec["mode"]["enum"],
            json!(["cluster"]),
            "a driver in the operator is not served"
        );
        assert_eq!(spec["type"]["default"], "Scala");
        assert_eq!(
            spec["type"]["enum"],
            json!(["Java", "Python", "Scala", "R"])
        );
        let policy = &spec["restartPolicy"];
        assert_eq!(policy["default"], json!({ "type": "Never" }));
        assert_eq!(policy["properties"]["type"]["default"], "Never");
        assert_eq!(
            policy["properties"]["type"]["enum"],
            json!(["Never", "Always", "OnFailure"])
        );
        // The schema can't express conditional defaults.
        for (role, field) in [
            ("driver", "cores"),
            ("executor", "instances"),
            ("executor", "memory"),
        ] {
            assert_eq!(
                spec[role]["properties"][field]["default"],
                Value::Null,
                "{role} {field}"
            );
        }
    }
}

#[test]
fn what_is_required_is_what_was_required() {
    let crd = schema(&APPLICATION);
    // `type` has a default.
    let expected = json!(["driver", "executor", "mainApplicationFile", "sparkVersion"]);
    assert_eq!(sorted(&crd["spec"]["required"]), expected);
    assert_eq!(crd["status"]["required"], Value::Null);
    assert_eq!(spec()["driver"]["required"], Value::Null);
    let ports = &spec()["driver"]["properties"]["ports"]["items"]["required"];
    assert_eq!(sorted(ports), json!(["containerPort", "name", "protocol"]));
    let monitoring = &spec()["monitoring"];
    assert_eq!(
        sorted(&monitoring["required"]),
        json!(["exposeDriverMetrics", "exposeExecutorMetrics"])
    );
}

fn sorted(list: &Value) -> Value {
    let mut list: Vec<String> = serde_json::from_value(list.clone()).unwrap();
    list.sort_unstable();
    json!(list)
}

/// Calls `f` with every schema.
fn walk(path: &str, schema: &Value, f: &mut impl FnMut(&str, &Value)) {
    f(path, schema);
    for (name, child) in schema["properties"].as_object().into_iter().flatten() {
        walk(&format!("{path}.{name}"), child, f);
    }
    for key in ["items", "additionalProperties"] {
        if schema[key].is_object() {
            walk(&format!("{path}.{key}"), &schema[key], f);
        }
    }
}

#[test]
fn a_template_is_a_whole_pod_template_in_which_nothing_is_required_and_everything_is_accepted() {
    for role in ["driver", "executor"] {
        let template = &spec()[role]["properties"]["template"];
        let mut count = 0;
        walk(role, template, &mut |path, schema| {
            count += 1;
            assert_eq!(schema["required"], Value::Null, "{path}");
            assert_eq!(schema["x-kubernetes-list-map-keys"], Value::Null, "{path}");
            let takes_unknown =
                schema["type"] == "object" && schema["additionalProperties"].is_null();
            let told = schema["x-kubernetes-preserve-unknown-fields"] == true;
            assert_eq!(told, takes_unknown, "{path}");
        });
        assert_eq!(fields(&template["properties"]["metadata"]), METADATA);
        assert!(count > 500, "{count}");
        let container = &template["properties"]["spec"]["properties"]["containers"]["items"];
        assert_eq!(container["properties"]["image"]["type"], "string");
    }
    // A sidecar needs a name, as in Kubernetes, and has no unknown fields, as published.
    let sidecar = &spec()["driver"]["properties"]["sidecars"]["items"];
    assert_eq!(sidecar["required"], json!(["name"]));
    walk("sidecar", sidecar, &mut |path, schema| {
        let unknown = &schema["x-kubernetes-preserve-unknown-fields"];
        assert_eq!(*unknown, Value::Null, "{path}");
    });
}

#[test]
fn only_times_that_the_existing_operator_writes_as_null_may_be_null() {
    let mut nullable = Vec::new();
    for crd in [&*APPLICATION, &*SCHEDULED] {
        let root = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        walk("", root, &mut |path, schema| {
            if schema["nullable"] == true {
                nullable.push(path.to_owned());
            }
        });
    }
    let expected = [
        ".status.lastSubmissionAttemptTime",
        ".status.terminationTime",
        ".status.lastRun",
        ".status.nextRun",
    ];
    assert_eq!(nullable, expected);
}

#[test]
fn what_a_webhook_refused_the_api_server_refuses() {
    let conf = &spec()["sparkConf"]["x-kubernetes-validations"][0];
    let (rule, message) = (
        conf["rule"].as_str().unwrap(),
        conf["messageExpression"].as_str().unwrap(),
    );
    let mut keys = 0;
    for (group, why) in DENIED_CONF {
        assert!(message.contains(&format!("is not allowed: {why}")), "{why}");
        for key in group {
            keys += 1;
            assert!(rule.contains(&format!("'{key}'")), "{key}");
        }
    }
    assert_eq!(keys, 13);
    let told = |schema: &Value| -> Vec<String> {
        let rules = schema["x-kubernetes-validations"].as_array().unwrap();
        rules
            .iter()
            .map(|r| r["message"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(
        told(&spec()["driverIngressOptions"]),
        [
            "DriverIngressOptions has nill ServicePort",
            "DriverIngressOptions has duplicate ServicePort",
            "DriverIngressOptions has empty IngressURLFormat",
            "DriverIngressOptions has duplicate IngressURLFormat",
        ]
    );
    // The API server limits the cost of rules, so it needs the maximum length of the list.
    let options = &spec()["driverIngressOptions"];
    assert_eq!(options["maxItems"], 64);
    assert_eq!(
        options["items"]["properties"]["ingressURLFormat"]["maxLength"],
        1024
    );
    let selectors = "node selector cannot be defined at both SparkApplication and Driver/Executor";
    assert_eq!(told(&schema(&APPLICATION)["spec"]), [selectors]);
}

/// Returns the bounds of the lists below `schema`, by path.
fn bounds(path: &str, schema: &Value, all: &mut BTreeMap<String, u64>) {
    if let Some(most) = schema["maxItems"].as_u64() {
        all.insert(path.to_owned(), most);
    }
    for (name, child) in schema["properties"].as_object().into_iter().flatten() {
        bounds(&format!("{path}.{name}"), child, all);
    }
    if schema["items"].is_object() {
        bounds(&format!("{path}[]"), &schema["items"], all);
    }
}

#[test]
fn mt_33_the_lists_of_pods_are_bounded() {
    let mut all = BTreeMap::new();
    bounds("", &schema(&APPLICATION)["spec"], &mut all);
    let mut expected = BTreeMap::from([
        (".driverIngressOptions".to_owned(), 64),
        (".volumes".to_owned(), 512),
    ]);
    for role in [".driver", ".executor"] {
        expected.insert(format!("{role}.env"), 10_000);
        expected.insert(format!("{role}.template.spec.volumes"), 512);
        for list in [
            "initContainers",
            "sidecars",
            "template.spec.containers",
            "template.spec.initContainers",
        ] {
            expected.insert(format!("{role}.{list}"), 512);
            expected.insert(format!("{role}.{list}[].env"), 10_000);
        }
    }
    assert_eq!(all, expected);
}

/// Returns the schema's defaults, with their paths.
fn defaults(path: &mut Vec<String>, schema: &Value, all: &mut Vec<(Vec<String>, Value)>) {
    for (name, child) in schema["properties"].as_object().into_iter().flatten() {
        path.push(name.clone());
        // An object's default only makes the defaults of its fields apply.
        if let Some(default) = child.get("default").filter(|d| !d.is_object()) {
            all.push((path.clone(), default.clone()));
        }
        defaults(path, child, all);
        path.pop();
    }
}

#[test]
fn the_digest_of_a_spec_knows_all_defaults_of_the_schema() {
    let mut found = Vec::new();
    defaults(&mut Vec::new(), &schema(&APPLICATION)["spec"], &mut found);
    let mut known: Vec<_> = DEFAULTS
        .iter()
        .map(|(path, value)| (path.iter().map(|p| (*p).to_owned()).collect(), json!(value)))
        .collect();
    found.sort_by(|a: &(Vec<String>, _), b| a.0.cmp(&b.0));
    known.sort_by(|a: &(Vec<String>, _), b| a.0.cmp(&b.0));
    assert_eq!(found, known);
}
