//! The published example, object by object. Written by hand from the contract; our additions are marked.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use spark_operator::names;

use crate::scene::{APP_ID, SID, UID, application, json as to_json, submitted, template, typed};

fn pi() -> Value {
    let security = json!({
        "capabilities": { "drop": ["ALL"] }, "runAsGroup": 185, "runAsUser": 185, "runAsNonRoot": true,
        "allowPrivilegeEscalation": false, "seccompProfile": { "type": "RuntimeDefault" },
    });
    application(&json!({
        "type": "Scala",
        "mode": "cluster",
        "image": "docker.io/apache/spark:4.0.4",
        "imagePullPolicy": "IfNotPresent",
        "mainClass": "org.apache.spark.examples.SparkPi",
        "mainApplicationFile": "local:///opt/spark/examples/jars/spark-examples.jar",
        "arguments": ["5000"],
        "sparkVersion": "4.0.4",
        "restartPolicy": { "type": "Never" },
        "driver": {
            "labels": { "version": "4.0.0" }, "cores": 1, "memory": "512m",
            "serviceAccount": "spark-operator-spark", "securityContext": security,
        },
        "executor": {
            "labels": { "version": "4.0.0" }, "instances": 1, "cores": 1, "memory": "512m",
            "securityContext": security,
        },
    }))
}

fn prefix() -> String {
    format!("spark-pi-{}", names::unique(SID, "prefix"))
}

fn scratch() -> String {
    format!("/var/data/spark-{}", names::scratch(SID))
}

fn owner() -> Value {
    json!([{
        "apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication", "name": "spark-pi", "uid": UID,
        "controller": true, "blockOwnerDeletion": true,
    }])
}

/// The driver's labels from Spark and the published operator.
fn driver_labels() -> Value {
    json!({
        "spark-app-selector": APP_ID,
        "spark-role": "driver",
        "spark-app-name": "spark-pi",
        // The application's version; spark-submit writes its own.
        "spark-version": "4.0.4",
        "version": "4.0.0",
        "sparkoperator.k8s.io/app-name": "spark-pi",
        "sparkoperator.k8s.io/launched-by-spark-operator": "true",
        "sparkoperator.k8s.io/mutated-by-spark-operator": "true",
        "sparkoperator.k8s.io/submission-id": SID,
    })
}

/// The labels of all objects other than pods. Ours: they identify the objects of a run.
fn our_labels() -> Value {
    json!({
        "sparkoperator.k8s.io/app-name": "spark-pi",
        "sparkoperator.k8s.io/submission-id": SID,
        "sparkoperator.k8s.io/created-by-spark-operator": "true",
    })
}

#[test]
fn i_11_the_driver_s_pod() {
    let made = submitted(&pi());
    let conf = made.conf.metadata.name.clone().unwrap();
    let security = pi()["spec"]["driver"]["securityContext"].clone();
    let expected = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "spark-pi-driver",
            "namespace": "default",
            "labels": driver_labels(),
            // Ours: the digest and generation of the driver's spec.
            "annotations": { "trainyard.dev/generation": "1", "trainyard.dev/spec-digest": "1-0123" },
            "ownerReferences": owner(),
        },
        "spec": {
            "restartPolicy": "Never",
            "serviceAccount": "spark-operator-spark",
            "serviceAccountName": "spark-operator-spark",
            "containers": [{
                "name": "spark-kubernetes-driver",
                "image": "docker.io/apache/spark:4.0.4",
                "imagePullPolicy": "IfNotPresent",
                "args": [
                    "driver", "--properties-file", "/opt/spark/conf/spark.properties",
                    "--class", "org.apache.spark.examples.SparkPi",
                    "local:///opt/spark/examples/jars/spark-examples.jar", "5000",
                ],
                "env": [
                    { "name": "SPARK_USER", "value": "spark" },
                    { "name": "SPARK_APPLICATION_ID", "value": APP_ID },
                    {
                        "name": "SPARK_DRIVER_BIND_ADDRESS",
                        "valueFrom": { "fieldRef": { "apiVersion": "v1", "fieldPath": "status.podIP" } },
                    },
                    { "name": "SPARK_LOCAL_DIRS", "value": scratch() },
                    { "name": "SPARK_CONF_DIR", "value": "/opt/spark/conf" },
                ],
                "ports": [
                    { "name": "driver-rpc-port", "containerPort": 7078, "protocol": "TCP" },
                    { "name": "blockmanager", "containerPort": 7079, "protocol": "TCP" },
                    { "name": "spark-ui", "containerPort": 4040, "protocol": "TCP" },
                ],
                "resources": {
                    "requests": { "cpu": "1", "memory": "896Mi" },
                    "limits": { "memory": "896Mi" },
                },
                "volumeMounts": [
                    { "name": "pod-template-volume", "mountPath": "/opt/spark/pod-template" },
                    { "name": "spark-local-dir-1", "mountPath": scratch() },
                    { "name": "spark-conf-volume-driver", "mountPath": "/opt/spark/conf" },
                ],
                "securityContext": security,
                // Ours: the last output of a failed driver goes to the status.
                "terminationMessagePolicy": "FallbackToLogsOnError",
            }],
            "volumes": [
                {
                    "name": "pod-template-volume",
                    "configMap": {
                        "name": format!("{}-driver-podspec-conf-map", prefix()),
                        "items": [{ "key": "podspec-configmap-key", "path": "pod-spec-template.yml" }],
                    },
                },
                { "name": "spark-local-dir-1", "emptyDir": {} },
                {
                    "name": "spark-conf-volume-driver",
                    "configMap": {
                        "name": conf,
                        "items": [{ "key": "spark.properties", "path": "spark.properties", "mode": 420 }],
                    },
                },
            ],
        },
    });
    assert_eq!(to_json(&made.driver), expected);
}

/// The arguments that the published operator passes to spark-submit.
fn arguments() -> Vec<(&'static str, String)> {
    let driver_file = format!("/tmp/spark/{SID}/driver-pod-template.yaml");
    let sid = SID;
    let rows = [
        // The arguments that the published operator passes to spark-submit.
        ("spark.kubernetes.namespace", "default"),
        (
            "spark.kubernetes.container.image",
            "docker.io/apache/spark:4.0.4",
        ),
        (
            "spark.kubernetes.container.image.pullPolicy",
            "IfNotPresent",
        ),
        ("spark.kubernetes.submission.waitAppCompletion", "false"),
        ("spark.kubernetes.driver.pod.name", "spark-pi-driver"),
        (
            "spark.kubernetes.driver.label.sparkoperator.k8s.io/app-name",
            "spark-pi",
        ),
        (
            "spark.kubernetes.driver.label.sparkoperator.k8s.io/launched-by-spark-operator",
            "true",
        ),
        (
            "spark.kubernetes.driver.label.sparkoperator.k8s.io/mutated-by-spark-operator",
            "true",
        ),
        (
            "spark.kubernetes.driver.label.sparkoperator.k8s.io/submission-id",
            sid,
        ),
        (
            "spark.kubernetes.driver.container.image",
            "docker.io/apache/spark:4.0.4",
        ),
        ("spark.driver.cores", "1"),
        ("spark.driver.memory", "512m"),
        (
            "spark.kubernetes.authenticate.driver.serviceAccountName",
            "spark-operator-spark",
        ),
        ("spark.kubernetes.driver.label.version", "4.0.0"),
        (
            "spark.kubernetes.executor.label.sparkoperator.k8s.io/app-name",
            "spark-pi",
        ),
        (
            "spark.kubernetes.executor.label.sparkoperator.k8s.io/launched-by-spark-operator",
            "true",
        ),
        (
            "spark.kubernetes.executor.label.sparkoperator.k8s.io/mutated-by-spark-operator",
            "true",
        ),
        (
            "spark.kubernetes.executor.label.sparkoperator.k8s.io/submission-id",
            sid,
        ),
        ("spark.executor.instances", "1"),
        (
            "spark.kubernetes.executor.container.image",
            "docker.io/apache/spark:4.0.4",
        ),
        ("spark.executor.cores", "1"),
        ("spark.executor.memory", "512m"),
        ("spark.kubernetes.executor.label.version", "4.0.0"),
        ("spark.kubernetes.driver.podTemplateFile", &driver_file),
        (
            "spark.kubernetes.driver.podTemplateContainerName",
            "spark-kubernetes-driver",
        ),
        (
            "spark.kubernetes.executor.podTemplateContainerName",
            "spark-kubernetes-executor",
        ),
    ];
    rows.map(|(key, value)| (key, value.to_owned())).into()
}

/// Properties that spark-submit adds, and, last, ours.
fn added() -> Vec<(&'static str, String)> {
    let service = format!("{}-driver-svc.default.svc", prefix());
    let jar = "local:///opt/spark/examples/jars/spark-examples.jar";
    let rows = [
        // Properties that spark-submit adds.
        (
            "spark.kubernetes.executor.podTemplateFile",
            "/opt/spark/pod-template/pod-spec-template.yml",
        ),
        ("spark.app.id", APP_ID),
        ("spark.app.name", "spark-pi"),
        ("spark.app.submitTime", "1755000000123"),
        ("spark.master", "k8s://https://kubernetes.default.svc:443"),
        ("spark.submit.deployMode", "cluster"),
        ("spark.submit.pyFiles", ""),
        ("spark.jars", jar),
        ("spark.driver.host", &service),
        ("spark.driver.port", "7078"),
        ("spark.driver.blockManager.port", "7079"),
        ("spark.kubernetes.submitInDriver", "true"),
        ("spark.kubernetes.resource.type", "java"),
        ("spark.kubernetes.memoryOverheadFactor", "0.1"),
        // Ours: settings that a webhook would make on executors.
        (
            "spark.kubernetes.executor.terminationGracePeriodSeconds",
            "30s",
        ),
    ];
    rows.map(|(key, value)| (key, value.to_owned())).into()
}

#[test]
fn the_properties() {
    let expected = arguments().into_iter().chain(added());
    let expected: BTreeMap<String, String> = expected
        .map(|(key, value)| (key.to_owned(), value))
        .collect();
    assert_eq!(submitted(&pi()).properties, expected);
}

#[test]
fn the_config_map_of_the_properties() {
    let made = submitted(&pi());
    let conf = to_json(&made.conf);
    let name = conf["metadata"]["name"].as_str().unwrap();
    let middle = name
        .strip_prefix("spark-drv-")
        .and_then(|n| n.strip_suffix("-conf-map"))
        .unwrap();
    assert!(
        middle.len() == 16 && middle.bytes().all(|b| b.is_ascii_hexdigit()),
        "{name}"
    );
    assert_eq!(conf["metadata"]["labels"], our_labels());
    assert_eq!(conf["metadata"]["ownerReferences"], owner());
    assert_eq!(conf["immutable"], true);
    let data = conf["data"].as_object().unwrap();
    assert_eq!(
        data.keys().collect::<Vec<_>>(),
        ["spark.kubernetes.namespace", "spark.properties"]
    );
    assert_eq!(data["spark.kubernetes.namespace"], "default");
    let text = data["spark.properties"].as_str().unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), made.properties.len() + 2);
    assert!(lines[0].starts_with("# ") && lines[1].starts_with("# "));
    assert!(
        lines.contains(&r"spark.master=k8s\://https\://kubernetes.default.svc\:443"),
        "{text}"
    );
    assert!(lines.contains(&r"spark.jars=local\:///opt/spark/examples/jars/spark-examples.jar"));
    assert!(lines.contains(&"spark.submit.pyFiles="));
}

#[test]
fn an_immutable_config_map_is_named_after_what_it_holds() {
    let name = |app: &Value| submitted(app).conf.metadata.name;
    assert_eq!(name(&pi()), name(&pi()));
    let mut other = pi();
    other["spec"]["sparkConf"] = json!({ "spark.x": "1" });
    assert_ne!(name(&pi()), name(&other));
}

#[test]
fn the_driver_s_service() {
    let made = submitted(&pi());
    let mut labels = our_labels();
    labels["spark-app-selector"] = json!(APP_ID);
    let port = |name: &str, port: u16| json!({ "name": name, "port": port, "targetPort": port, "protocol": "TCP" });
    let expected = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": format!("{}-driver-svc", prefix()), "namespace": "default",
            "labels": labels, "ownerReferences": owner(),
        },
        "spec": {
            "clusterIP": "None",
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "selector": driver_labels(),
            "ports": [port("driver-rpc-port", 7078), port("blockmanager", 7079), port("spark-ui", 4040)],
        },
    });
    assert_eq!(to_json(&made.driver_service), expected);
}

#[test]
fn the_template_of_executors() {
    let made = submitted(&pi());
    let config = to_json(&made.executor_template);
    assert_eq!(
        config["metadata"]["name"],
        format!("{}-driver-podspec-conf-map", prefix())
    );
    assert_eq!(config["metadata"]["ownerReferences"], owner());
    assert_eq!(
        config["immutable"],
        Value::Null,
        "executors to come follow it"
    );
    let mut reference = owner()[0].clone();
    reference
        .as_object_mut()
        .unwrap()
        .retain(|key, _| !key.contains("ontroller") && key != "blockOwnerDeletion");
    let expected = json!({
        "metadata": { "ownerReferences": [reference] },
        "spec": {
            "containers": [{
                "name": "spark-kubernetes-executor",
                "securityContext": pi()["spec"]["executor"]["securityContext"],
            }],
        },
    });
    assert_eq!(template(&made), expected);
}

#[test]
fn the_service_of_the_web_ui() {
    let made = submitted(&pi());
    let expected = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": "spark-pi-ui-svc", "namespace": "default", "labels": our_labels(), "ownerReferences": owner(),
        },
        "spec": {
            "type": "ClusterIP",
            "selector": { "sparkoperator.k8s.io/app-name": "spark-pi", "spark-role": "driver" },
            "ports": [{ "name": "spark-driver-ui-port", "port": 4040, "targetPort": 4040, "protocol": "TCP" }],
        },
    });
    assert_eq!(to_json(&made.ui_service), expected);
}

#[test]
fn nothing_else_is_made_and_nothing_is_to_be_said() {
    let made = submitted(&pi());
    assert_eq!(made.app_id, APP_ID);
    assert!(made.metrics.is_none() && made.ui_ingress.is_none() && made.ui_url.is_none());
    assert!(made.driver_ingresses.is_empty() && made.claims.is_empty() && made.groups.is_empty());
    assert!(made.network_policy.is_none());
    assert_eq!(made.batch_scheduler, None);
    assert_eq!(made.notes, []);
}

#[test]
fn the_same_submission_makes_the_same_objects() {
    let (a, b) = (submitted(&pi()), submitted(&pi()));
    assert_eq!(a, b);
    // The typed application is unchanged.
    assert_eq!(to_json(&typed(&pi()))["spec"], pi()["spec"]);
}
