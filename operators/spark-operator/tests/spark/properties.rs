//! Translation of a spec to Spark properties.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use spark_operator::submission::Settings;

use crate::scene::{self, json as to_json, set, submitted, try_submit, with};

fn properties(fields: &[(&str, Value)]) -> BTreeMap<String, String> {
    submitted(&with(fields)).properties
}

/// Asserts that a spec with one field yields one property.
fn becomes(rows: &[(&str, Value, &str, &str)]) {
    for (field, value, key, expected) in rows {
        let found = properties(&[(field, value.clone())]);
        let found = found.get(*key).map(String::as_str);
        assert_eq!(found, Some(*expected), "{field} {key}");
    }
}

#[test]
fn a_keytab_in_the_driver_is_left_to_the_driver() {
    for key in ["spark.kerberos.keytab", "spark.yarn.keytab"] {
        for keytab in ["local:///etc/key/tab", "local:/etc/key/tab"] {
            let conf = json!({ key: keytab, "spark.kerberos.principal": "pi@EXAMPLE.ORG" });
            let made = submitted(&with(&[("sparkConf", conf)]));
            assert_eq!(made.properties[key], keytab);
        }
    }
}

#[test]
fn every_field_of_both_has_its_property() {
    becomes(&[
        (
            "imagePullPolicy",
            json!("Always"),
            "spark.kubernetes.container.image.pullPolicy",
            "Always",
        ),
        (
            "imagePullSecrets",
            json!(["a", "b"]),
            "spark.kubernetes.container.image.pullSecrets",
            "a,b",
        ),
        (
            "pythonVersion",
            json!("3"),
            "spark.kubernetes.pyspark.pythonVersion",
            "3",
        ),
        (
            "memoryOverheadFactor",
            json!("0.25"),
            "spark.kubernetes.memoryOverheadFactor",
            "0.25",
        ),
        ("sparkConf", json!({ "spark.x": "y" }), "spark.x", "y"),
        (
            "hadoopConf",
            json!({ "fs.a": "b" }),
            "spark.hadoop.fs.a",
            "b",
        ),
        (
            "hadoopConf",
            json!({ "spark.hadoop.a": "b" }),
            "spark.hadoop.spark.hadoop.a",
            "b",
        ),
        (
            "nodeSelector",
            json!({ "disk": "ssd" }),
            "spark.kubernetes.node.selector.disk",
            "ssd",
        ),
    ]);
}

#[test]
fn every_field_of_the_driver_has_its_property() {
    becomes(&[
        (
            "driver/coreRequest",
            json!("500m"),
            "spark.kubernetes.driver.request.cores",
            "500m",
        ),
        (
            "driver/coreLimit",
            json!("1200m"),
            "spark.kubernetes.driver.limit.cores",
            "1200m",
        ),
        ("driver/cores", json!(3), "spark.driver.cores", "3"),
        ("driver/memory", json!("3g"), "spark.driver.memory", "3g"),
        (
            "driver/memoryOverhead",
            json!("1g"),
            "spark.driver.memoryOverhead",
            "1g",
        ),
        (
            "driver/image",
            json!("own"),
            "spark.kubernetes.driver.container.image",
            "own",
        ),
        (
            "driver/javaOptions",
            json!("-Da=b"),
            "spark.driver.extraJavaOptions",
            "-Da=b",
        ),
        (
            "driver/kubernetesMaster",
            json!("k8s://x"),
            "spark.kubernetes.driver.master",
            "k8s://x",
        ),
        (
            "driver/serviceAccount",
            json!("sa"),
            "spark.kubernetes.authenticate.driver.serviceAccountName",
            "sa",
        ),
        (
            "driver/annotations",
            json!({ "a": "b" }),
            "spark.kubernetes.driver.annotation.a",
            "b",
        ),
        (
            "driver/serviceLabels",
            json!({ "a": "b" }),
            "spark.kubernetes.driver.service.label.a",
            "b",
        ),
        (
            "driver/serviceAnnotations",
            json!({ "a": "b" }),
            "spark.kubernetes.driver.service.annotation.a",
            "b",
        ),
        (
            "driver/envVars",
            json!({ "A": "b" }),
            "spark.kubernetes.driverEnv.A",
            "b",
        ),
        (
            "driver/envSecretKeyRefs",
            json!({ "A": { "name": "s", "key": "k" } }),
            "spark.kubernetes.driver.secretKeyRef.A",
            "s:k",
        ),
        (
            "driver/podName",
            json!("own"),
            "spark.kubernetes.driver.pod.name",
            "own",
        ),
    ]);
}

#[test]
fn every_field_of_executors_has_its_property() {
    becomes(&[
        (
            "executor/instances",
            json!(4),
            "spark.executor.instances",
            "4",
        ),
        ("executor/cores", json!(2), "spark.executor.cores", "2"),
        (
            "executor/coreRequest",
            json!("250m"),
            "spark.kubernetes.executor.request.cores",
            "250m",
        ),
        (
            "executor/coreLimit",
            json!("2"),
            "spark.kubernetes.executor.limit.cores",
            "2",
        ),
        (
            "executor/memory",
            json!("2g"),
            "spark.executor.memory",
            "2g",
        ),
        (
            "executor/memoryOverhead",
            json!("512"),
            "spark.executor.memoryOverhead",
            "512",
        ),
        (
            "executor/serviceAccount",
            json!("sa"),
            "spark.kubernetes.authenticate.executor.serviceAccountName",
            "sa",
        ),
        (
            "executor/deleteOnTermination",
            json!(false),
            "spark.kubernetes.executor.deleteOnTermination",
            "false",
        ),
        (
            "executor/javaOptions",
            json!("-Dx"),
            "spark.executor.extraJavaOptions",
            "-Dx",
        ),
        (
            "executor/envVars",
            json!({ "A": "b" }),
            "spark.executorEnv.A",
            "b",
        ),
        (
            "executor/image",
            json!("own"),
            "spark.kubernetes.executor.container.image",
            "own",
        ),
        (
            "executor/annotations",
            json!({ "a": "b" }),
            "spark.kubernetes.executor.annotation.a",
            "b",
        ),
    ]);
}

#[test]
fn every_dependency_has_its_property() {
    becomes(&[
        (
            "deps/jars",
            json!(["http://a", "local:///b"]),
            "spark.jars",
            "http://a,local:///b,local:///main.jar",
        ),
        ("deps/files", json!(["s3a://f"]), "spark.files", "s3a://f"),
        (
            "deps/pyFiles",
            json!(["http://p.zip"]),
            "spark.submit.pyFiles",
            "http://p.zip",
        ),
        (
            "deps/archives",
            json!(["hdfs://h/a.tgz#x"]),
            "spark.archives",
            "hdfs://h/a.tgz#x",
        ),
        (
            "deps/packages",
            json!(["g:a:1", "g:b:2"]),
            "spark.jars.packages",
            "g:a:1,g:b:2",
        ),
        (
            "deps/excludePackages",
            json!(["g:c"]),
            "spark.jars.excludes",
            "g:c",
        ),
        (
            "deps/repositories",
            json!(["http://r"]),
            "spark.jars.repositories",
            "http://r",
        ),
    ]);
}

#[test]
fn a_secret_is_mounted_and_some_set_a_variable() {
    let secret = |type_: &str| json!([{ "name": "s", "path": "/mnt/s", "secretType": type_ }]);
    let gcp = ("GOOGLE_APPLICATION_CREDENTIALS", "/mnt/s/key.json");
    let hadoop = ("HADOOP_TOKEN_FILE_LOCATION", "/mnt/s/hadoop.token");
    for (role, env) in [
        ("driver", "spark.kubernetes.driverEnv."),
        ("executor", "spark.executorEnv."),
    ] {
        for (type_, variable) in [
            ("GCPServiceAccount", Some(gcp)),
            ("HadoopDelegationToken", Some(hadoop)),
            ("Generic", None),
        ] {
            let all = properties(&[(&format!("{role}/secrets"), secret(type_))]);
            assert_eq!(all[&format!("spark.kubernetes.{role}.secrets.s")], "/mnt/s");
            for (name, path) in [gcp, hadoop] {
                let found = all.get(&format!("{env}{name}")).map(String::as_str);
                let expected = variable.filter(|(n, _)| *n == name).map(|_| path);
                assert_eq!(found, expected, "{role} {type_} {name}");
            }
        }
    }
}

#[test]
fn dynamic_allocation_is_said_only_when_it_is_on() {
    let on = json!({
        "enabled": true, "initialExecutors": 1, "minExecutors": 0, "maxExecutors": 5, "shuffleTrackingTimeout": 60000,
    });
    let found: Vec<(String, String)> = properties(&[("dynamicAllocation", on)])
        .into_iter()
        .filter(|(key, _)| {
            key.starts_with("spark.dynamicAllocation") || key == "spark.executor.instances"
        })
        .collect();
    let expected = [
        ("spark.dynamicAllocation.enabled", "true"),
        ("spark.dynamicAllocation.initialExecutors", "1"),
        ("spark.dynamicAllocation.maxExecutors", "5"),
        ("spark.dynamicAllocation.minExecutors", "0"),
        ("spark.dynamicAllocation.shuffleTracking.enabled", "true"),
        ("spark.dynamicAllocation.shuffleTracking.timeout", "60000"),
    ];
    assert_eq!(found, expected.map(|(k, v)| (k.to_owned(), v.to_owned())));
    let off = properties(&[(
        "dynamicAllocation",
        json!({ "enabled": false, "maxExecutors": 5 }),
    )]);
    assert!(
        off.keys()
            .all(|key| !key.starts_with("spark.dynamicAllocation"))
    );
}

#[test]
fn labels_of_the_application_reach_both_roles_but_for_those_of_queues() {
    let mut app = with(&[(
        "driver/labels",
        json!({ "team": "b", "sparkoperator.k8s.io/app-name": "evil" }),
    )]);
    set(
        &mut app,
        "metadata/labels",
        json!({ "team": "a", "kueue.x-k8s.io/queue-name": "q" }),
    );
    let all = submitted(&app).properties;
    assert_eq!(all["spark.kubernetes.driver.label.team"], "b");
    assert_eq!(all["spark.kubernetes.executor.label.team"], "a");
    assert!(all.keys().all(|key| !key.contains("kueue")), "{all:?}");
    // Applications can't override the operator's own labels.
    assert_eq!(
        all["spark.kubernetes.driver.label.sparkoperator.k8s.io/app-name"],
        "spark-pi"
    );
}

#[test]
fn the_later_group_wins() {
    let conf = json!({
        "spark.kubernetes.memoryOverheadFactor": "0.5",
        "spark.driver.memory": "9g",
        "spark.hadoop.a": "conf",
        "spark.app.name": "other",
        "spark.jars": "http://ignored",
        "spark.kubernetes.driver.pod.name": "from-conf",
        "spark.app.id": "mine",
        "spark.driver.host": "mine",
    });
    let made = submitted(&with(&[
        ("sparkConf", conf),
        ("memoryOverheadFactor", json!("0.3")),
        ("hadoopConf", json!({ "a": "hadoop" })),
        ("driver/memory", json!("2g")),
        ("deps/jars", json!(["http://jar"])),
    ]));
    let all = &made.properties;
    for (key, expected) in [
        ("spark.kubernetes.memoryOverheadFactor", "0.5"),
        ("spark.driver.memory", "2g"),
        ("spark.hadoop.a", "hadoop"),
        ("spark.app.name", "spark-pi"),
        ("spark.jars", "http://jar,local:///main.jar"),
        ("spark.kubernetes.driver.pod.name", "from-conf"),
    ] {
        assert_eq!(all[key], expected, "{key}");
    }
    assert_eq!(all["spark.app.id"], scene::APP_ID);
    assert!(all["spark.driver.host"].ends_with("-driver-svc.default.svc"));
    let told: Vec<&str> = made.notes.iter().map(|n| n.message.as_str()).collect();
    for key in ["spark.app.name", "spark.app.id", "spark.driver.host"] {
        assert!(
            told.iter().any(|text| text.contains(&format!("[{key}]"))),
            "{key}: {told:?}"
        );
    }
}

#[test]
fn properties_for_all_applications_are_the_weakest() {
    let settings = Settings {
        defaults: [
            ("spark.kubernetes.driver.request.cores", "100m"),
            ("spark.driver.memory", "2g"),
            ("spark.x", "operator"),
            ("other.x", "dropped"),
        ]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .into(),
        ..Settings::default()
    };
    let app = with(&[("sparkConf", json!({ "spark.x": "user" }))]);
    let made = try_submit(&app, &settings).unwrap();
    assert_eq!(made.properties["spark.x"], "user");
    let resources = &scene::container(&made)["resources"];
    assert_eq!(
        resources["requests"],
        json!({ "cpu": "100m", "memory": "2432Mi" })
    );
    assert!(!made.properties.contains_key("other.x"));
    let named = with(&[("driver/coreRequest", json!("2"))]);
    let made = try_submit(&named, &settings).unwrap();
    assert_eq!(scene::container(&made)["resources"]["requests"]["cpu"], "2");
}

#[test]
fn what_is_no_property_of_spark_is_left_out_and_told() {
    let made = submitted(&with(&[("sparkConf", json!({ "fs.x": "y" }))]));
    assert!(!made.properties.contains_key("fs.x"));
    assert!(
        made.notes[0]
            .message
            .starts_with("spec.sparkConf[fs.x] has no effect"),
        "{:?}",
        made.notes
    );
}

#[test]
fn the_main_jar_is_one_of_the_jars_but_a_script_is_not() {
    for (main, jars, kind, factor) in [
        (
            "local:///main.jar",
            Some("local:///main.jar"),
            "java",
            "0.1",
        ),
        ("local:///main.py", None, "python", "0.4"),
        ("local:///main.R", None, "r", "0.4"),
        ("local:///main.r", None, "r", "0.4"),
        ("spark-internal", Some(""), "java", "0.1"),
    ] {
        let all = properties(&[("mainApplicationFile", json!(main))]);
        assert_eq!(all.get("spark.jars").map(String::as_str), jars, "{main}");
        assert_eq!(all["spark.kubernetes.resource.type"], kind);
        assert_eq!(all["spark.kubernetes.memoryOverheadFactor"], factor);
        assert_eq!(all["spark.submit.pyFiles"], "");
    }
}

#[test]
fn scratch_volumes_are_spark_s_own() {
    let volumes = json!([
        { "name": "spark-local-dir-a", "emptyDir": { "sizeLimit": "5Gi", "medium": "Memory" } },
        { "name": "spark-local-dir-b", "hostPath": { "path": "/mnt", "type": "Directory" } },
        { "name": "spark-local-dir-c", "nfs": { "path": "/x", "server": "nfs", "readOnly": true } },
        { "name": "spark-local-dir-d", "persistentVolumeClaim": { "claimName": "c" } },
        { "name": "data", "emptyDir": {} },
    ]);
    let mount = |name: &str| json!({ "name": name, "mountPath": format!("/tmp/{name}") });
    let mut mounts = json!(["a", "b", "c", "d"].map(|n| mount(&format!("spark-local-dir-{n}"))));
    mounts.as_array_mut().unwrap().push(mount("data"));
    mounts[0]["subPath"] = json!("sub");
    mounts[0]["readOnly"] = json!(true);
    let made = submitted(&with(&[
        ("volumes", volumes),
        ("driver/volumeMounts", mounts.clone()),
        ("executor/volumeMounts", mounts),
    ]));
    for role in ["driver", "executor"] {
        let prefix = format!("spark.kubernetes.{role}.volumes.");
        let found: Vec<String> = made
            .properties
            .iter()
            .filter_map(|(key, value)| Some(format!("{}={value}", key.strip_prefix(&prefix)?)))
            .map(|line| line.replace("spark-local-dir-", ""))
            .collect();
        let expected = [
            "emptyDir.a.mount.path=/tmp/a",
            "emptyDir.a.mount.readOnly=true",
            "emptyDir.a.mount.subPath=sub",
            "emptyDir.a.options.medium=Memory",
            "emptyDir.a.options.sizeLimit=5Gi",
            "hostPath.b.mount.path=/tmp/b",
            "hostPath.b.options.path=/mnt",
            "hostPath.b.options.type=Directory",
            "nfs.c.mount.path=/tmp/c",
            "nfs.c.options.path=/x",
            "nfs.c.options.readOnly=true",
            "nfs.c.options.server=nfs",
            "persistentVolumeClaim.d.mount.path=/tmp/d",
            "persistentVolumeClaim.d.options.claimName=c",
        ];
        assert_eq!(found, expected, "{role}");
    }
    let dirs = scene::env(&scene::container(&made));
    let (_, dirs) = dirs
        .iter()
        .find(|(name, _)| name == "SPARK_LOCAL_DIRS")
        .unwrap();
    let expected = ["a", "b", "c", "d"]
        .map(|n| format!("/tmp/spark-local-dir-{n}"))
        .join(",");
    assert_eq!(*dirs, expected);
    let pod = to_json(&made.driver);
    let medium = pod["spec"]["volumes"]
        .as_array()
        .unwrap()
        .iter()
        .find(|v| v["name"] == "spark-local-dir-a");
    assert_eq!(medium.unwrap()["emptyDir"]["medium"], "Memory");
}
