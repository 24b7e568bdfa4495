//! Specs that are refused, with the field and the remedy.

use serde_json::{Value, json};
use spark_operator::api::rule::DENIED_CONF;
use spark_operator::submission::{DriverIngress, IngressLimits, Settings, Switch};

use crate::scene::{refused, set, submitted, try_submit, with};

const WORDS: &str = "failed to submit spark application: failed to run spark-submit: ";

/// Asserts that a spec with one field is refused with this text.
fn is_refused(rows: &[(&str, Value, &str)]) {
    for (field, value, expected) in rows {
        let text = refused(&with(&[(field, value.clone())]));
        let text = text.strip_prefix(WORDS).unwrap_or_else(|| panic!("{text}"));
        assert!(text.contains(expected), "{field}: {text}");
    }
}

fn conf(key: &str, value: &str) -> Value {
    json!({ key: value })
}

#[test]
fn what_needs_the_machine_of_spark_submit_is_refused() {
    let upload = "Please specify spark.kubernetes.file.upload.path property";
    is_refused(&[
        ("mode", json!("client"), "spec.mode: \"client\""),
        ("mainApplicationFile", json!("file:///a.jar"), upload),
        (
            "mainApplicationFile",
            json!("/a.jar"),
            "spec.mainApplicationFile: \"/a.jar\"",
        ),
        ("mainApplicationFile", json!("a.py"), upload),
        (
            "deps/jars",
            json!(["http://x", "lib/a.jar"]),
            "spec.deps.jars (spark.jars): \"lib/a.jar\"",
        ),
        ("deps/files", json!(["file:/etc/x"]), "spec.deps.files"),
        ("deps/pyFiles", json!(["x.zip"]), "spec.deps.pyFiles"),
        ("deps/archives", json!(["x.tgz"]), "spec.deps.archives"),
        ("sparkConf", conf("spark.jars", "/x.jar"), upload),
        (
            "sparkConf",
            conf("spark.kerberos.keytab", "/k"),
            "spec.sparkConf[spark.kerberos.keytab]",
        ),
        (
            "sparkConf",
            conf("spark.kerberos.keytab", "file:///k"),
            "as local:///path",
        ),
        (
            "sparkConf",
            conf("spark.yarn.keytab", "local:k"),
            "as local:///path",
        ),
        (
            "sparkConf",
            conf("spark.kubernetes.kerberos.krb5.path", "local:///k"),
            "Secret or ConfigMap",
        ),
        (
            "sparkConf",
            conf("spark.kubernetes.kerberos.krb5.path", "/k"),
            "Secret or ConfigMap",
        ),
        (
            "sparkConf",
            conf("spark.kubernetes.authenticate.driver.caCertFile", "/k"),
            "spec.driver.serviceAccount",
        ),
        (
            "sparkConf",
            conf("spark.kubernetes.driver.pod.featureSteps", "a.B"),
            "a.B is a class",
        ),
        ("mainClass", Value::Null, "Please specify one with --class"),
        ("mainClass", json!(""), "spec.mainClass"),
    ]);
    for fine in [
        "s3a://b/a.jar",
        "hdfs://h/a.jar",
        "https://x/a.jar",
        "local:/a.jar",
        "gs://b/*.jar",
    ] {
        submitted(&with(&[("mainApplicationFile", json!(fine))]));
        submitted(&with(&[("deps/jars", json!([fine]))]));
    }
    // Scripts need no class.
    submitted(&with(&[
        ("mainApplicationFile", json!("local:///a.py")),
        ("mainClass", Value::Null),
    ]));
}

#[test]
fn denied_properties_are_refused_in_the_published_words() {
    for (keys, why) in DENIED_CONF {
        for key in keys {
            let text = refused(&with(&[("sparkConf", conf(key, "x"))]));
            let expected = format!("sparkConf key \"{key}\" is not allowed: {why}");
            assert!(text.ends_with(&expected), "{text}");
        }
    }
    let text = refused(&with(&[(
        "sparkConf",
        conf("spark.kubernetes.namespace", "other"),
    )]));
    assert!(
        text.ends_with("must equal the application namespace \"default\", got \"other\""),
        "{text}"
    );
    let fine = json!({ "spark.kubernetes.namespace": "default", "spark.executor.memory": "1g", "spark.sql.shuffle.partitions": "1" });
    submitted(&with(&[("sparkConf", fine)]));
}

#[test]
fn what_spark_refuses_is_refused() {
    is_refused(&[
        (
            "image",
            Value::Null,
            "Must specify the driver container image",
        ),
        ("image", json!(""), "spec.image"),
        ("driver/memory", json!("1.5g"), "spec.driver.memory"),
        ("driver/memory", json!("1Gi"), "must be a positive number"),
        ("executor/memory", json!("lots"), "spec.executor.memory"),
        (
            "driver/coreRequest",
            json!("half"),
            "spec.driver.coreRequest",
        ),
        ("driver/coreLimit", json!("half"), "spec.driver.coreLimit"),
        (
            "driver/memoryLimit",
            json!("half"),
            "spec.driver.memoryLimit",
        ),
        (
            "memoryOverheadFactor",
            json!("much"),
            "spec.memoryOverheadFactor",
        ),
    ]);
}

#[test]
fn classes_that_spark_runs_only_where_they_are_submitted_are_refused() {
    let hive = "org.apache.spark.sql.hive.thriftserver";
    is_refused(&[
        (
            "mainClass",
            json!(format!("{hive}.SparkSQLCLIDriver")),
            "spec.mainClass: Cluster deploy mode is not applicable to Spark SQL shell",
        ),
        (
            "mainClass",
            json!(format!("{hive}.HiveThriftServer2")),
            "is not applicable to Spark Thrift server",
        ),
        (
            "mainClass",
            json!("org.apache.spark.sql.connect.service.SparkConnectServer"),
            "is not applicable to Spark Connect server",
        ),
    ]);
}

#[test]
fn a_reference_to_a_secret_has_a_name_and_a_key() {
    let key = "spark.kubernetes.driver.secretKeyRef.PASSWORD";
    for reference in ["db", "db:", "db:a:b", ""] {
        let text = refused(&with(&[("sparkConf", conf(key, reference))]));
        assert!(text.contains("in the form name:key"), "{text}");
    }
    submitted(&with(&[("sparkConf", conf(key, "db:password"))]));
    // The driver reads the references of executors, when it creates one.
    let key = "spark.kubernetes.executor.secretKeyRef.PASSWORD";
    submitted(&with(&[("sparkConf", conf(key, "db"))]));
}

#[test]
fn properties_that_spark_refuses_are_refused() {
    is_refused(&[
        (
            "sparkConf",
            conf("spark.driver.bindAddress", "x"),
            "spark.driver.bindAddress is not supported in Kubernetes mode",
        ),
        (
            "sparkConf",
            conf("spark.driver.port", "x"),
            "spec.sparkConf[spark.driver.port]",
        ),
        (
            "sparkConf",
            conf("spark.executor.cores", "0"),
            "positive number",
        ),
        (
            "sparkConf",
            conf("spark.executor.instances", "-1"),
            "positive number",
        ),
        (
            "sparkConf",
            conf("spark.driver.resource.gpu.amount", "1"),
            "spark.driver.resource.gpu.vendor",
        ),
        (
            "sparkConf",
            conf("spark.kubernetes.driver.volumes.cephfs.a.mount.path", "/a"),
            "emptyDir, hostPath",
        ),
        (
            "sparkConf",
            conf(
                "spark.kubernetes.executor.volumes.cephfs.a.mount.path",
                "/a",
            ),
            "spec.executor.volumeMounts",
        ),
        (
            "sparkConf",
            conf(
                "spark.kubernetes.driver.volumes.emptyDir.a.options.medium",
                "Memory",
            ),
            "mount.path",
        ),
        (
            "sparkConf",
            conf("spark.kubernetes.kerberos.tokenSecret.name", "x"),
            "tokenSecret.itemKey",
        ),
        (
            "driver/labels",
            json!({ "spark-role": "x" }),
            "Label with key spark-role is not allowed as it is reserved",
        ),
        (
            "executor/labels",
            json!({ "spark-exec-id": "x" }),
            "spec.executor.labels[spark-exec-id]",
        ),
        (
            "driver/volumeMounts",
            json!([{ "name": "spark-local-dir-1", "mountPath": "/a" }]),
            "volume spark-local-dir-1 not found",
        ),
    ]);
    let odd = with(&[
        (
            "volumes",
            json!([{ "name": "spark-local-dir-1", "configMap": { "name": "x" } }]),
        ),
        (
            "executor/volumeMounts",
            json!([{ "name": "spark-local-dir-1", "mountPath": "/a" }]),
        ),
    ]);
    assert!(
        refused(&odd).contains("unsupported volume type"),
        "{}",
        refused(&odd)
    );
    let both = |key: &str| format!("spark.kubernetes.driver.volumes.emptyDir.a.mount.{key}");
    let both = json!({ both("path"): "/a", both("subPath"): "x", both("subPathExpr"): "y" });
    assert!(refused(&with(&[("sparkConf", both)])).contains("beside mount.subPath"));
}

#[test]
fn an_application_that_adds_executors_itself_may_start_with_none() {
    let none = conf("spark.executor.instances", "0");
    assert!(refused(&with(&[("sparkConf", none.clone())])).contains("positive number"));
    submitted(&with(&[
        ("sparkConf", none),
        ("dynamicAllocation", json!({ "enabled": true })),
    ]));
}

#[test]
fn what_a_webhook_refused_is_refused_here_too() {
    let ingress = |port: Value, url: &str| json!({ "servicePort": port, "servicePortName": "p", "ingressURLFormat": url });
    is_refused(&[
        (
            "driverIngressOptions",
            json!([ingress(Value::Null, "u")]),
            "DriverIngressOptions has nill ServicePort",
        ),
        (
            "driverIngressOptions",
            json!([ingress(json!(1), "u"), ingress(json!(1), "v")]),
            "spec.driverIngressOptions[1].servicePort: DriverIngressOptions has duplicate ServicePort: 1",
        ),
        (
            "driverIngressOptions",
            json!([ingress(json!(1), "")]),
            "DriverIngressOptions has empty IngressURLFormat",
        ),
        (
            "driverIngressOptions",
            json!([ingress(json!(1), "u"), ingress(json!(2), "u")]),
            "DriverIngressOptions has duplicate IngressURLFormat: u",
        ),
    ]);
    for role in ["driver", "executor"] {
        let app = with(&[
            ("nodeSelector", json!({ "a": "b" })),
            (&format!("{role}/nodeSelector"), json!({ "c": "d" })),
        ]);
        let text = refused(&app);
        assert!(
            text.contains(
                "node selector cannot be defined at both SparkApplication and Driver/Executor"
            ),
            "{text}"
        );
        let app = with(&[
            ("sparkVersion", json!("2.4.8")),
            (
                &format!("{role}/template"),
                json!({ "spec": { "priority": 1 } }),
            ),
        ]);
        let text = refused(&app);
        assert!(
            text.contains("pod template feature requires Spark version 3.0.0 or higher"),
            "{text}"
        );
    }
    for name in ["Upper", "1digit", "dot.ted", "end-", &"a".repeat(64), ""] {
        let mut app = with(&[]);
        set(&mut app, "metadata/name", json!(name));
        let text = refused(&app);
        assert!(
            text.contains(&format!("invalid SparkApplication name \"{name}\"")),
            "{text}"
        );
    }
    let mut app = with(&[]);
    set(&mut app, "metadata/name", json!("a".repeat(63)));
    submitted(&app);
}

#[test]
fn mt_07_mt_08_nothing_is_opened_to_the_outside_but_what_may_be() {
    let ingress = |more: &str, value: Value| {
        let mut one = json!({ "servicePort": 1, "servicePortName": "p", "ingressURLFormat": "u" });
        one[more] = value;
        json!([one])
    };
    let snippet = json!({ "nginx.ingress.kubernetes.io/server-snippet": "x" });
    is_refused(&[
        (
            "sparkUIOptions",
            json!({ "serviceType": "ExternalName" }),
            "spec.sparkUIOptions.serviceType",
        ),
        (
            "driverIngressOptions",
            ingress("serviceType", json!("ExternalName")),
            "spec.driverIngressOptions[0].serviceType",
        ),
        (
            "sparkUIOptions",
            json!({ "ingressAnnotations": snippet }),
            "configures the ingress controller itself",
        ),
        (
            "driverIngressOptions",
            ingress("ingressAnnotations", snippet),
            "server-snippet",
        ),
    ]);
    for fine in ["ClusterIP", "NodePort", "LoadBalancer"] {
        submitted(&with(&[("sparkUIOptions", json!({ "serviceType": fine }))]));
    }
    let strict = Settings {
        driver_ingress: DriverIngress::Refused,
        ..Settings::default()
    };
    let app = with(&[(
        "driverIngressOptions",
        ingress("serviceType", json!("ClusterIP")),
    )]);
    let text = try_submit(&app, &strict).unwrap_err().to_string();
    assert!(text.contains("spec.driverIngressOptions: "), "{text}");
    submitted(&app);
}

#[test]
fn more_properties_than_a_config_map_holds_are_refused() {
    let app = with(&[("sparkConf", conf("spark.x", &"y".repeat(1 << 20)))]);
    assert!(
        refused(&app).contains("a ConfigMap holds 1048576"),
        "{}",
        refused(&app).len()
    );
}

#[test]
fn what_has_no_effect_is_told() {
    for (field, value, expected) in [
        (
            "failureRetries",
            json!(1),
            "spec.restartPolicy.onFailureRetries",
        ),
        (
            "retryInterval",
            json!(1),
            "spec.restartPolicy.onFailureRetryInterval",
        ),
        ("sparkVersion", json!("latest"), "is no version"),
        (
            "monitoring",
            json!({ "exposeDriverMetrics": true, "exposeExecutorMetrics": true }),
            "spec.monitoring.prometheus",
        ),
        (
            "batchScheduler",
            json!("volcano"),
            "batch schedulers are not enabled",
        ),
        (
            "sparkConf",
            conf("spark.kubernetes.file.upload.path", "s3a://x"),
            "no spark-submit runs",
        ),
        (
            "sparkConf",
            conf("spark.kubernetes.driver.podTemplateFile", "x"),
            "use spec.driver.template",
        ),
        (
            "sparkConf",
            conf("spark.kubernetes.authenticate.submission.oauthToken", "x"),
            "no spark-submit runs",
        ),
        (
            "sparkConf",
            conf("spark.kubernetes.driver.pod.excludedFeatureSteps", "a.B"),
            "NetworkPolicy",
        ),
    ] {
        let notes = submitted(&with(&[(field, value)])).notes;
        let [note] = notes.as_slice() else {
            panic!("{field}: {notes:?}")
        };
        assert_eq!(note.reason, "SettingIgnored");
        assert!(note.message.contains(expected), "{field}: {}", note.message);
    }
    let new = with(&[
        ("sparkVersion", json!("4.1.0")),
        ("pythonVersion", json!("3")),
    ]);
    assert!(
        submitted(&new).notes[0]
            .message
            .contains("spec.pythonVersion")
    );
}

#[test]
fn bounds_of_dynamic_allocation_leave_a_number_of_executors() {
    let bounds = |min: i32, max: i32, first: i32| {
        with(&[(
            "dynamicAllocation",
            json!({ "enabled": true, "minExecutors": min, "maxExecutors": max, "initialExecutors": first }),
        )])
    };
    for none in [bounds(3, 2, 3), bounds(0, 0, 0)] {
        let text = refused(&none);
        assert!(
            text.contains("spec.dynamicAllocation.maxExecutors"),
            "{text}"
        );
    }
    assert_eq!(submitted(&bounds(1, 3, 2)).notes, []);
    for outside in [bounds(2, 3, 1), bounds(1, 2, 3)] {
        let notes = submitted(&outside).notes;
        assert!(notes[0].message.contains("initialExecutors"), "{notes:?}");
    }
}

/// Returns a driver's Ingress with these fields.
fn door(fields: &[(&str, Value)]) -> Value {
    let mut one = json!({
        "servicePort": 1, "servicePortName": "p", "ingressURLFormat": "{{$appName}}.spark.example.com",
    });
    for (field, value) in fields {
        one[field] = value.clone();
    }
    json!([one])
}

fn annotated(key: &str, value: &str) -> Value {
    door(&[("ingressAnnotations", json!({ key: value }))])
}

#[test]
fn mt_08_an_annotation_with_snippet_anywhere_in_its_key_is_refused() {
    for key in [
        "nginx.ingress.kubernetes.io/server-snippet",
        "nginx.ingress.kubernetes.io/Configuration-Snippet",
        "nginx.org/server-snippets",
        "nginx.org/location-snippets",
        "snippets.example.com/any",
    ] {
        let options = json!({ "ingressAnnotations": { key: "x" } });
        let field = format!("ingressAnnotations[{key}]: ");
        is_refused(&[
            (
                "sparkUIOptions",
                options,
                &format!("spec.sparkUIOptions.{field}"),
            ),
            (
                "driverIngressOptions",
                annotated(key, "x"),
                &format!("spec.driverIngressOptions[0].{field}"),
            ),
        ]);
    }
    let fine = annotated("nginx.ingress.kubernetes.io/proxy-body-size", "8m");
    submitted(&with(&[("driverIngressOptions", fine)]));
}

fn limited(to: IngressLimits) -> Settings {
    Settings {
        ingress_limits: to,
        ..Settings::default()
    }
}

fn words(all: &[&str]) -> Vec<String> {
    all.iter().map(|word| (*word).to_owned()).collect()
}

/// Tries an application with one field; `refused` lists all parts of the expected refusal.
fn tries(settings: &Settings, field: &str, value: Value, refused: &[&str]) {
    let app = with(&[(field, value)]);
    let answer = try_submit(&app, settings).map(drop);
    match (answer, refused) {
        (Ok(()), []) => {}
        (Err(text), [_, ..]) => {
            let text = text.to_string();
            for part in refused {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
        (answer, _) => panic!("{app}: {answer:?}"),
    }
}

#[test]
fn mt_08_hosts_of_ingresses_are_those_that_the_administrator_allows() {
    let flag = "--ingress-allowed-host-suffixes=.spark.example.com,Other.example.com";
    let settings = limited(IngressLimits {
        host_suffixes: words(&[".spark.example.com", "Other.example.com"]),
        ..IngressLimits::default()
    });
    let field = "spec.driverIngressOptions[0].ingressURLFormat: ";
    for (url, host) in [
        ("{{$appName}}.spark.example.com/path", None),
        ("https://spark.example.com", None),
        ("a.OTHER.example.com", None),
        ("evilspark.example.com", Some("\"evilspark.example.com\"")),
        (
            "spark.example.com.evil.org",
            Some("\"spark.example.com.evil.org\""),
        ),
        ("example.com", Some("\"example.com\"")),
        ("*.example.com", Some("\"*.example.com\"")),
        ("/everywhere", Some("every host")),
    ] {
        let refused: Vec<&str> = host
            .into_iter()
            .flat_map(|host| [field, host, flag])
            .collect();
        let value = door(&[("ingressURLFormat", json!(url))]);
        tries(&settings, "driverIngressOptions", value.clone(), &refused);
        tries(&Settings::default(), "driverIngressOptions", value, &[]);
    }
    let tls = |host: &str| json!([{ "hosts": ["a.spark.example.com", host], "secretName": "s" }]);
    let evil = "ingressTLS[0].hosts[1]: the host \"evil.org\"";
    for (host, refused) in [
        ("*.spark.example.com", &[][..]),
        ("evil.org", &[evil, flag]),
    ] {
        let value = door(&[("ingressTLS", tls(host))]);
        tries(&settings, "driverIngressOptions", value, refused);
        tries(
            &settings,
            "sparkUIOptions",
            json!({ "ingressTLS": tls(host) }),
            refused,
        );
    }
}

#[test]
fn mt_08_classes_and_annotations_are_those_that_the_administrator_allows() {
    let class = "kubernetes.io/ingress.class";
    let key = "nginx.ingress.kubernetes.io/proxy-body-size";
    let classes = limited(IngressLimits {
        classes: words(&["internal"]),
        ..IngressLimits::default()
    });
    let keys = limited(IngressLimits {
        annotations: words(&["nginx.ingress.kubernetes.io/proxy-*", "example.com/", "one"]),
        ..IngressLimits::default()
    });
    let both = limited(IngressLimits {
        classes: words(&["internal"]),
        annotations: words(&["one"]),
        ..IngressLimits::default()
    });
    let of_class = [
        "--ingress-allowed-classes=internal",
        "the class \"public\"",
        class,
    ];
    let of_keys = "--ingress-allowed-annotations=";
    for (settings, key, value, refused) in [
        (&classes, class, "internal", &[][..]),
        (&classes, class, "public", &of_class),
        (&classes, key, "8m", &[]),
        (&keys, key, "8m", &[]),
        (&keys, "example.com/any", "x", &[]),
        (&keys, "one", "x", &[]),
        (&keys, "one-more", "x", &[of_keys, "one-more", "\"x\""]),
        (
            &keys,
            "nginx.ingress.kubernetes.io/auth-url",
            "u",
            &[of_keys, "auth-url"],
        ),
        (&keys, class, "internal", &[of_keys, class]),
        (&both, class, "internal", &[]),
        (&both, class, "public", &of_class),
        (&both, key, "8m", &[of_keys]),
    ] {
        tries(
            settings,
            "driverIngressOptions",
            annotated(key, value),
            refused,
        );
        let ui = json!({ "ingressAnnotations": { key: value } });
        tries(settings, "sparkUIOptions", ui, refused);
    }
}

#[test]
fn mt_06_mt_08_strict_mode_allows_neither_ingresses_nor_priority_classes_of_the_system() {
    let strict = Settings {
        strict: Switch::On,
        ..Settings::default()
    };
    let field = "spec.driverIngressOptions: ";
    tries(
        &strict,
        "driverIngressOptions",
        door(&[]),
        &[field, "--strict"],
    );
    let class = "system-cluster-critical";
    let template = json!({ "spec": { "containers": [], "priorityClassName": class } });
    for (path, value, field) in [
        (
            "driver/priorityClassName",
            json!(class),
            "spec.driver.priorityClassName: ",
        ),
        (
            "executor/priorityClassName",
            json!(class),
            "spec.executor.priorityClassName: ",
        ),
        (
            "executor/template",
            template,
            "spec.executor.template.spec.priorityClassName: ",
        ),
        (
            "batchSchedulerOptions",
            json!({ "priorityClassName": class }),
            "spec.batchSchedulerOptions.priorityClassName: ",
        ),
    ] {
        tries(&Settings::default(), path, value.clone(), &[]);
        tries(&strict, path, value, &[field, class, "--strict"]);
    }
    tries(&strict, "driver/priorityClassName", json!("high"), &[]);
}
