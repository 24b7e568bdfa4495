//! The driver's pod beyond the published example.

use serde_json::{Value, json};
use spark_operator::submission::{Settings, Submission, Switch};

use crate::scene::{
    APP_ID, SID, container, env, json as to_json, names, submitted, try_submit, with,
};

fn conf(pairs: &[(&str, &str)]) -> (&'static str, Value) {
    let pairs = pairs.iter().map(|(k, v)| ((*k).to_owned(), json!(v)));
    ("sparkConf", Value::Object(pairs.collect()))
}

fn ports(list: &Value, number: &str) -> Vec<i64> {
    let list = list.as_array().unwrap();
    list.iter().map(|p| p[number].as_i64().unwrap()).collect()
}

#[test]
fn ports_follow_the_properties_as_spark_reads_them() {
    let made = submitted(&with(&[conf(&[
        ("spark.driver.port", "1234"),
        ("spark.ui.port", "3456"),
        ("spark.blockManager.port", "2345"),
    ])]));
    assert_eq!(
        ports(&container(&made)["ports"], "containerPort"),
        [1234, 2345, 3456]
    );
    // The Service ignores the shared key.
    assert_eq!(
        ports(&to_json(&made.driver_service)["spec"]["ports"], "port"),
        [1234, 7079, 3456]
    );
    assert_eq!(made.properties["spark.driver.blockManager.port"], "7079");
    assert_eq!(made.properties["spark.driver.port"], "1234");

    let made = submitted(&with(&[conf(&[
        ("spark.driver.blockManager.port", "2346"),
        ("spark.ui.enabled", "false"),
    ])]));
    assert_eq!(
        ports(&container(&made)["ports"], "containerPort"),
        [7078, 2346, 4040]
    );
    assert_eq!(
        ports(&to_json(&made.driver_service)["spec"]["ports"], "port"),
        [7078, 2346, 4040]
    );
}

#[test]
fn newer_versions_have_more() {
    for (version, connect, protocol, unready, escalation) in [
        ("3.5.9", false, false, false, false),
        ("4.0.5", false, false, false, false),
        ("4.1.4", true, false, false, false),
        ("4.2.1", true, true, false, false),
        ("4.3.0", true, true, true, true),
        ("odd", false, false, false, false),
    ] {
        let made = submitted(&with(&[("sparkVersion", json!(version))]));
        let main = container(&made);
        let service = to_json(&made.driver_service)["spec"].clone();
        assert_eq!(
            names(&main["ports"]).contains(&"spark-connect".to_owned()),
            connect,
            "{version}"
        );
        assert_eq!(
            names(&service["ports"]).contains(&"spark-connect".to_owned()),
            connect,
            "{version}"
        );
        let found = &service["ports"][3]["appProtocol"];
        assert_eq!(*found == "grpc", protocol, "{version}");
        assert_eq!(
            service["publishNotReadyAddresses"] == false,
            unready,
            "{version}"
        );
        let found = &main["securityContext"]["allowPrivilegeEscalation"];
        assert_eq!(*found == false, escalation, "{version}");
    }
}

#[test]
fn a_placeholder_of_the_application_s_id_is_replaced() {
    let fields = |version: &str| {
        submitted(&with(&[
            ("sparkVersion", json!(version)),
            ("driver/labels", json!({ "run": "{{APP_ID}}" })),
            (
                "driver/annotations",
                json!({ "run": "{{APP_ID}}-{{EXECUTOR_ID}}x" }),
            ),
            (
                "driver/serviceLabels",
                json!({ "run": "{{APP_ID}}", "sparkoperator.k8s.io/submission-id": "x" }),
            ),
        ]))
    };
    let new = to_json(&fields("4.0.5").driver);
    assert_eq!(new["metadata"]["labels"]["run"], APP_ID);
    assert_eq!(new["metadata"]["annotations"]["run"], format!("{APP_ID}-x"));
    let old = fields("3.5.9");
    assert_eq!(to_json(&old.driver)["metadata"]["labels"]["run"], APP_ID);
    let service = to_json(&old.driver_service)["metadata"]["labels"].clone();
    assert_eq!(service["run"], "{{APP_ID}}");
    assert_ne!(service["sparkoperator.k8s.io/submission-id"], "x");
}

#[test]
fn the_environment_is_in_spark_s_order() {
    let made = submitted(&with(&[
        ("mainApplicationFile", json!("local:///main.py")),
        ("proxyUser", json!("alice")),
        ("driver/envVars", json!({ "B": "2", "A": "1" })),
        (
            "driver/envSecretKeyRefs",
            json!({ "S": { "name": "s", "key": "k" } }),
        ),
        (
            "driver/env",
            json!([{ "name": "LAST", "value": "x" }, { "name": "SPARK_USER", "value": "mine" }]),
        ),
        (
            "driver/template",
            json!({ "spec": { "containers": [{ "name": "spark-kubernetes-driver", "env": [{ "name": "FIRST", "value": "y" }] }] } }),
        ),
        ("sparkConfigMap", json!("files")),
        ("hadoopConfigMap", json!("hadoop")),
        conf(&[
            ("spark.pyspark.python", "/py"),
            ("spark.kubernetes.hadoop.configMapName", "hc"),
            ("spark.kubernetes.kerberos.tokenSecret.name", "ts"),
            ("spark.kubernetes.kerberos.tokenSecret.itemKey", "ik"),
        ]),
    ]));
    let main = container(&made);
    let found = env(&main);
    let order: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
    let expected = [
        "FIRST",
        "SPARK_USER",
        "SPARK_APPLICATION_ID",
        "A",
        "B",
        "SPARK_DRIVER_BIND_ADDRESS",
        "S",
        "PYSPARK_PYTHON",
        "PYSPARK_DRIVER_PYTHON",
        "HADOOP_CONF_DIR",
        "HADOOP_TOKEN_FILE_LOCATION",
        "SPARK_LOCAL_DIRS",
        "SPARK_CONF_DIR",
        "LAST",
        "SPARK_USER",
        "HADOOP_CONF_DIR",
        "SPARK_CONF_DIR",
    ];
    assert_eq!(order, expected);
    let value = |at: usize| found[at].1.clone();
    assert_eq!((value(1), value(14)), (json!("alice"), json!("mine")));
    assert_eq!(
        value(6),
        json!({ "secretKeyRef": { "name": "s", "key": "k" } })
    );
    assert_eq!((value(7), value(8)), (json!("/py"), json!("/py")));
    assert_eq!(value(9), "/opt/hadoop/conf");
    assert_eq!(value(10), "/mnt/secrets/hadoop-credentials/ik");
    assert_eq!(
        (value(15), value(16)),
        (json!("/etc/hadoop/conf"), json!("/etc/spark/conf"))
    );
    assert_eq!(
        main["args"],
        json!([
            "driver",
            "--proxy-user",
            "alice",
            "--properties-file",
            "/opt/spark/conf/spark.properties",
            "--class",
            "org.apache.spark.deploy.PythonRunner",
            "local:///main.py",
        ])
    );
    assert_eq!(
        made.properties["spark.kubernetes.executor.hadoopConfigMapName"],
        "hc"
    );
}

#[test]
fn volumes_and_mounts_are_in_spark_s_order() {
    let made = submitted(&with(&[
        (
            "driver/secrets",
            json!([{ "name": "s", "path": "/s", "secretType": "Generic" }]),
        ),
        (
            "driver/configMaps",
            json!([{ "name": "m.x", "path": "/m" }]),
        ),
        (
            "volumes",
            json!([{ "name": "data", "emptyDir": {} }, { "name": "unused", "emptyDir": {} }]),
        ),
        (
            "driver/volumeMounts",
            json!([
                { "name": "data", "mountPath": "/a", "subPath": "1" }, { "name": "data", "mountPath": "/b", "subPath": "2" },
            ]),
        ),
        (
            "driver/template",
            json!({ "spec": {
            "volumes": [{ "name": "own", "emptyDir": {} }],
            "containers": [{ "name": "spark-kubernetes-driver", "volumeMounts": [{ "name": "own", "mountPath": "/own" }] }],
        } }),
        ),
        conf(&[
            (
                "spark.kubernetes.driver.volumes.hostPath.host.mount.path",
                "/host",
            ),
            (
                "spark.kubernetes.driver.volumes.hostPath.host.options.path",
                "/var",
            ),
            (
                "spark.kubernetes.driver.volumes.emptyDir.empty.mount.path",
                "/empty",
            ),
            ("spark.kubernetes.hadoop.configMapName", "hc"),
            ("spark.kubernetes.kerberos.krb5.configMapName", "kc"),
            ("spark.kubernetes.kerberos.tokenSecret.name", "ts"),
            ("spark.kubernetes.kerberos.tokenSecret.itemKey", "ik"),
        ]),
    ]));
    let pod = to_json(&made.driver);
    let volumes = names(&pod["spec"]["volumes"]);
    let expected = [
        "own",
        "s-volume",
        "empty",
        "host",
        "hadoop-properties",
        "krb5-file",
        "hadoop-secret",
        "pod-template-volume",
        "spark-local-dir-1",
        "spark-conf-volume-driver",
    ];
    assert_eq!(volumes[..10], expected);
    let of_map = volumes[10].clone();
    assert!(
        of_map.starts_with("m-x-") && of_map.ends_with("-vol"),
        "{of_map}"
    );
    assert_eq!(volumes[11..], ["data"]);
    let mounts = names(&container(&made)["volumeMounts"]);
    assert_eq!(mounts[..10], expected);
    assert_eq!(mounts[10..], [of_map, "data".to_owned(), "data".to_owned()]);
}

#[test]
fn volumes_of_all_types_can_be_asked_for_by_properties() {
    let key =
        |kind: &str, rest: &str| format!("spark.kubernetes.driver.volumes.{kind}.v{kind}.{rest}");
    let mut pairs: Vec<(String, &str)> = vec![
        (key("emptyDir", "options.sizeLimit"), "1Gi"),
        (key("hostPath", "options.path"), "/h"),
        (key("hostPath", "options.type"), "Directory"),
        (key("nfs", "options.path"), "/n"),
        (key("nfs", "options.server"), "srv"),
        (key("nfs", "options.readOnly"), "true"),
        (key("persistentVolumeClaim", "options.claimName"), "claim"),
        (key("persistentVolumeClaim", "mount.readOnly"), "true"),
        (key("emptyDir", "mount.subPathExpr"), "$(A)"),
    ];
    for kind in ["emptyDir", "hostPath", "nfs", "persistentVolumeClaim"] {
        pairs.push((key(kind, "mount.path"), "/mnt"));
    }
    let pairs: Vec<(&str, &str)> = pairs.iter().map(|(k, v)| (k.as_str(), *v)).collect();
    let made = submitted(&with(&[conf(&pairs)]));
    let pod = to_json(&made.driver);
    let expected = json!([
        { "name": "vemptyDir", "emptyDir": { "sizeLimit": "1Gi" } },
        { "name": "vhostPath", "hostPath": { "path": "/h", "type": "Directory" } },
        // Spark ignores an option here.
        { "name": "vnfs", "nfs": { "path": "/n", "server": "srv" } },
        { "name": "vpersistentVolumeClaim", "persistentVolumeClaim": { "claimName": "claim", "readOnly": true } },
    ]);
    assert_eq!(
        json!(pod["spec"]["volumes"].as_array().unwrap()[..4]),
        expected
    );
    let mounts = container(&made)["volumeMounts"].clone();
    assert_eq!(
        mounts[0],
        json!({ "name": "vemptyDir", "mountPath": "/mnt", "subPathExpr": "$(A)" })
    );
    assert_eq!(mounts[3]["readOnly"], true);
    let old = submitted(&with(&[("sparkVersion", json!("3.5.9")), conf(&pairs)]));
    assert_eq!(
        container(&old)["volumeMounts"][0],
        mounts[0],
        "as with the Spark 4 that the published operator submits with"
    );
    assert_eq!(
        to_json(&old.driver)["spec"]["volumes"],
        pod["spec"]["volumes"]
    );
}

#[test]
fn a_claim_on_demand_is_made_for_the_driver() {
    let prefix = "spark.kubernetes.driver.volumes.persistentVolumeClaim.data.";
    let of = |version: &str, legacy: &str| {
        let pairs = [
            (format!("{prefix}options.claimName"), "OnDemand"),
            (format!("{prefix}options.storageClass"), "fast"),
            (format!("{prefix}options.sizeLimit"), "10Gi"),
            (format!("{prefix}mount.path"), "/data"),
            (
                "spark.kubernetes.legacy.useReadWriteOnceAccessMode".to_owned(),
                legacy,
            ),
        ];
        let pairs: Vec<(&str, &str)> = pairs.iter().map(|(k, v)| (k.as_str(), *v)).collect();
        submitted(&with(&[("sparkVersion", json!(version)), conf(&pairs)]))
    };
    let made = of("4.0.5", "false");
    let claim = to_json(&made.claims[0]);
    let name = claim["metadata"]["name"].as_str().unwrap();
    assert!(
        name.starts_with("spark-pi-") && name.ends_with("-driver-pvc-0"),
        "{name}"
    );
    assert_eq!(claim["metadata"]["labels"]["spark-app-selector"], APP_ID);
    assert_eq!(
        claim["spec"],
        json!({
            "accessModes": ["ReadWriteOncePod"], "storageClassName": "fast",
            "resources": { "requests": { "storage": "10Gi" } },
        })
    );
    let pod = to_json(&made.driver);
    assert_eq!(
        pod["spec"]["volumes"][0]["persistentVolumeClaim"],
        json!({ "claimName": name })
    );
    for (version, legacy, mode) in [
        ("3.5.9", "false", "ReadWriteOncePod"),
        ("3.5.9", "true", "ReadWriteOnce"),
        ("4.0.5", "true", "ReadWriteOnce"),
    ] {
        let claim = to_json(&of(version, legacy).claims[0]);
        assert_eq!(claim["spec"]["accessModes"], json!([mode]), "{version}");
    }
}

#[test]
fn a_class_and_a_size_make_a_claim_of_any_name_with_its_labels_and_annotations() {
    let of = |more: &[(&str, &str)]| {
        let prefix = "spark.kubernetes.driver.volumes.persistentVolumeClaim.data.";
        let mut pairs = vec![(format!("{prefix}mount.path"), "/data")];
        pairs.extend(more.iter().map(|(k, v)| (format!("{prefix}{k}"), *v)));
        let pairs: Vec<(&str, &str)> = pairs.iter().map(|(k, v)| (k.as_str(), *v)).collect();
        submitted(&with(&[conf(&pairs)]))
    };
    let volume = |made: &Submission| {
        let pod = to_json(&made.driver);
        let name = &pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"];
        name.as_str().unwrap().to_owned()
    };
    let what = [
        ("options.storageClass", "fast"),
        ("options.sizeLimit", "1Gi"),
    ];
    let named = [&[("options.claimName", "shared")], &what[..]].concat();
    let marks = [
        ("label.example.org/team", "a"),
        ("label.sparkoperator.k8s.io/submission-id", "x"),
        ("annotation.example.org/note", "b"),
    ];
    let made = of(&[&named[..], &marks].concat());
    let claim = to_json(&made.claims[0]);
    assert_eq!(
        (volume(&made).as_str(), &claim["metadata"]["name"]),
        ("shared", &json!("shared"))
    );
    let labels = &claim["metadata"]["labels"];
    assert_eq!(labels["example.org/team"], "a");
    assert_eq!(labels["sparkoperator.k8s.io/submission-id"], SID);
    assert_eq!(
        claim["metadata"]["annotations"],
        json!({ "example.org/note": "b" })
    );
    // If one is missing, the claim is an existing one.
    for some in [&named[..1], &named[..2]] {
        let made = of(some);
        assert_eq!((volume(&made).as_str(), made.claims.len()), ("shared", 0));
    }
    // The word may be part of a name.
    let made = of(&[&[("options.claimName", "OnDemand-x")], &what[..]].concat());
    assert!(
        volume(&made).ends_with("-driver-pvc-0-x"),
        "{}",
        volume(&made)
    );
    assert_eq!(to_json(&made.claims[0])["metadata"]["name"], volume(&made));
}

#[test]
fn a_template_is_merged_as_spark_merges_it() {
    let template = json!({
        "metadata": {
            "name": "gone", "namespace": "gone", "labels": { "spark-role": "gone", "kept": "1", "sparkoperator.k8s.io/x": "gone" },
            "annotations": { "a": "template", "b": "template" },
            "finalizers": ["gone.example/x"],
            "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": "gone", "uid": "u" }],
        },
        "spec": {
            "restartPolicy": "Always", "serviceAccountName": "own", "schedulerName": "own", "priority": 3,
            "nodeSelector": { "a": "template", "b": "template" },
            "imagePullSecrets": [{ "name": "one" }],
            "tolerations": [{ "key": "t" }],
            "schedulingGates": [{ "name": "hold" }],
            "containers": [
                { "name": "log", "image": "log" },
                {
                    "name": "spark-kubernetes-driver", "image": "gone", "command": ["/tini"],
                    "resources": { "limits": { "cpu": "9", "memory": "1", "example.com/x": "1" }, "requests": { "cpu": "9" } },
                    "securityContext": { "runAsUser": 7 }, "ports": [{ "containerPort": 1 }],
                    "terminationMessagePolicy": "File",
                },
                { "name": "proxy", "image": "proxy" },
            ],
        },
    });
    let made = submitted(&with(&[
        ("driver/template", template),
        ("imagePullSecrets", json!(["two"])),
        ("driver/annotations", json!({ "a": "spec" })),
        ("nodeSelector", json!({ "a": "app" })),
    ]));
    let pod = to_json(&made.driver);
    assert_eq!(pod["metadata"]["name"], "spark-pi-driver");
    assert_eq!(pod["metadata"]["namespace"], "default");
    let labels = &pod["metadata"]["labels"];
    assert_eq!(
        (&labels["spark-role"], &labels["kept"]),
        (&json!("driver"), &json!("1"))
    );
    assert_eq!(labels["sparkoperator.k8s.io/x"], Value::Null);
    assert_eq!(
        labels["sparkoperator.k8s.io/mutated-by-spark-operator"],
        Value::Null,
        "a template says something"
    );
    let annotations = &pod["metadata"]["annotations"];
    assert_eq!(
        (&annotations["a"], &annotations["b"]),
        (&json!("spec"), &json!("template"))
    );
    assert_eq!(pod["metadata"]["finalizers"], Value::Null);
    assert_eq!(
        pod["metadata"]["ownerReferences"].as_array().unwrap().len(),
        1
    );
    let spec = &pod["spec"];
    assert_eq!(spec["restartPolicy"], "Never");
    assert_eq!(
        (&spec["serviceAccountName"], &spec["schedulerName"]),
        (&json!("own"), &json!("own"))
    );
    assert_eq!(spec["nodeSelector"], json!({ "a": "app", "b": "template" }));
    assert_eq!(names(&spec["imagePullSecrets"]), ["one", "two"]);
    assert_eq!(spec["schedulingGates"], json!([{ "name": "hold" }]));
    assert_eq!(
        (&spec["tolerations"], &spec["priority"]),
        (&json!([{ "key": "t" }]), &json!(3))
    );
    assert_eq!(
        names(&spec["containers"]),
        ["log", "proxy", "spark-kubernetes-driver"]
    );
    let main = container(&made);
    assert_eq!(
        (&main["image"], &main["command"]),
        (&json!("example/spark"), &json!(["/tini"]))
    );
    let expected = json!({
        "limits": { "cpu": "9", "memory": "1408Mi", "example.com/x": "1" }, "requests": { "cpu": "1", "memory": "1408Mi" },
    });
    assert_eq!(main["resources"], expected);
    assert_eq!(main["securityContext"], json!({ "runAsUser": 7 }));
    assert_eq!(main["ports"][0], json!({ "containerPort": 1 }));
    assert_eq!(main["terminationMessagePolicy"], "File");
}

#[test]
fn without_a_container_of_the_name_the_first_is_spark_s_and_keeps_its_own() {
    let of = |containers: Value| {
        let made = submitted(&with(&[(
            "driver/template",
            json!({ "spec": { "containers": containers } }),
        )]));
        let driver = to_json(&made.driver);
        let spark = &driver["metadata"]["annotations"]["trainyard.dev/spark-container"];
        (names(&driver["spec"]["containers"]), spark.clone())
    };
    let (names, spark) = of(json!([{ "name": "mine" }, { "name": "log" }]));
    assert_eq!(names, ["log", "mine"]);
    assert_eq!(spark, "mine", "its end is the run's");
    for unnamed in [json!([{}]), json!([])] {
        let (names, spark) = of(unnamed);
        assert_eq!(names, ["spark-kubernetes-driver"]);
        assert_eq!(spark, Value::Null);
    }
}

#[test]
fn a_template_that_says_nothing_counts_as_none() {
    let label = "sparkoperator.k8s.io/mutated-by-spark-operator";
    for (template, says_nothing) in [
        (json!({}), true),
        (
            json!({ "metadata": { "labels": {} }, "spec": { "containers": [{ "name": "x" }] } }),
            true,
        ),
        (
            json!({ "spec": { "schedulingGates": [{ "name": "queue" }] } }),
            true,
        ),
        (
            json!({ "spec": { "containers": [{ "name": "x", "image": "y" }] } }),
            false,
        ),
        (json!({ "metadata": { "labels": { "a": "b" } } }), false),
        (json!({ "spec": { "priority": 1 } }), false),
        // As written by clients that set every field.
        (
            json!({ "metadata": { "annotations": {} }, "spec": {
                "nodeSelector": {}, "containers": [{ "name": "x", "resources": {} }],
            } }),
            true,
        ),
    ] {
        let fields = [
            ("driver/template", template.clone()),
            ("sparkVersion", json!("4.0.5")),
        ];
        let labels = to_json(&submitted(&with(&fields)).driver)["metadata"]["labels"].clone();
        assert_eq!(labels[label] == "true", says_nothing, "{template}");
        // For a version without templates, only empty templates are accepted.
        let fields = [
            ("driver/template", template.clone()),
            ("sparkVersion", json!("latest")),
        ];
        let made = try_submit(&with(&fields), &Settings::default());
        assert_eq!(made.is_ok(), says_nothing, "{template}");
    }
}

#[test]
fn more_is_asked_for_by_properties() {
    let made = submitted(&with(&[conf(&[
        ("spark.driver.resource.gpu.amount", "2"),
        ("spark.driver.resource.gpu.vendor", "nvidia.com"),
        ("spark.driver.resource.gpu.discoveryScript", "/x"),
        ("spark.kubernetes.driver.node.selector.a", "driver"),
        ("spark.kubernetes.node.selector.a", "both"),
        ("spark.kubernetes.node.selector.b", "both"),
        ("spark.kubernetes.scheduler.name", "shared"),
        ("spark.kubernetes.driver.scheduler.name", "own"),
        ("spark.local.dir", "/one,/two"),
        ("spark.kubernetes.local.dirs.tmpfs", "true"),
        ("spark.kubernetes.driver.service.ipFamilies", "IPv6,IPv4"),
        (
            "spark.kubernetes.driver.service.ipFamilyPolicy",
            "PreferDualStack",
        ),
    ])]));
    let pod = to_json(&made.driver);
    let main = container(&made);
    assert_eq!(main["resources"]["limits"]["nvidia.com/gpu"], "2");
    assert_eq!(
        pod["spec"]["nodeSelector"],
        json!({ "a": "driver", "b": "both" })
    );
    assert_eq!(pod["spec"]["schedulerName"], "own");
    let dirs: Vec<Value> = pod["spec"]["volumes"].as_array().unwrap()[1..3].to_vec();
    assert_eq!(
        dirs[1],
        json!({ "name": "spark-local-dir-2", "emptyDir": { "medium": "Memory" } })
    );
    assert_eq!(main["volumeMounts"][2]["mountPath"], "/two");
    let service = to_json(&made.driver_service);
    assert_eq!(service["spec"]["ipFamilies"], json!(["IPv6", "IPv4"]));
    assert_eq!(service["spec"]["ipFamilyPolicy"], "PreferDualStack");
}

#[test]
fn executors_get_a_network_policy_only_where_it_is_asked_for() {
    let settings = Settings {
        network_policy: Switch::On,
        ..Settings::default()
    };
    let of = |version: &str, steps: &str| {
        let key = "spark.kubernetes.driver.pod.excludedFeatureSteps";
        let app = with(&[("sparkVersion", json!(version)), conf(&[(key, steps)])]);
        try_submit(&app, &settings).unwrap().network_policy
    };
    assert!(of("4.1.4", "").is_none());
    assert!(
        of(
            "4.2.1",
            "org.apache.spark.deploy.k8s.features.NetworkPolicyFeatureStep"
        )
        .is_none()
    );
    let policy = to_json(&of("4.2.1", "").unwrap());
    assert_eq!(
        policy["spec"],
        json!({
            "podSelector": { "matchLabels": { "spark-role": "executor", "spark-app-selector": APP_ID } },
            "ingress": [{ "from": [{ "podSelector": { "matchLabels": { "spark-app-selector": APP_ID } } }] }],
        })
    );
    assert!(
        submitted(&with(&[("sparkVersion", json!("4.2.1"))]))
            .network_policy
            .is_none()
    );
}

#[test]
fn a_driver_s_last_words_can_be_left_alone() {
    let settings = Settings {
        last_words: Switch::Off,
        ..Settings::default()
    };
    let made = try_submit(&with(&[]), &settings).unwrap();
    assert_eq!(container(&made)["terminationMessagePolicy"], Value::Null);
}
