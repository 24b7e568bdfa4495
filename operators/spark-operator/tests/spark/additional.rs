//! Objects that are created on demand in addition to the pod: Ingresses, pod groups, metrics.

use serde_json::{Value, json};
use spark_operator::submission::web::ui_address;
use spark_operator::submission::{BatchSettings, Settings, Submission, Switch, WebSettings};

use crate::scene::{
    self, APP_ID, container, json as to_json, names, refused, submitted, template, try_submit, with,
};

fn web(url: &str) -> Settings {
    Settings {
        web: WebSettings {
            url_format: url.to_owned(),
            ingress_class: "nginx".to_owned(),
            annotations: [("from".to_owned(), "operator".to_owned())].into(),
            ..WebSettings::default()
        },
        ..Settings::default()
    }
}

fn made(fields: &[(&str, Value)], settings: &Settings) -> Submission {
    try_submit(&with(fields), settings).unwrap()
}

#[test]
fn the_service_of_the_ui_follows_its_options() {
    let port = |fields: &[(&str, Value)]| {
        let service = to_json(&made(fields, &Settings::default()).ui_service);
        let port = &service["spec"]["ports"][0];
        (
            port["port"].as_i64().unwrap(),
            port["targetPort"].as_i64().unwrap(),
        )
    };
    let ui = |port: &str| json!({ "spark.ui.port": port });
    assert_eq!(port(&[]), (4040, 4040));
    assert_eq!(port(&[("sparkConf", ui("4555"))]), (4555, 4555));
    assert_eq!(
        port(&[("sparkConf", ui("4555")), ("sparkUIOptions", json!({}))]),
        (4040, 4555)
    );
    assert_eq!(
        port(&[("sparkUIOptions", json!({ "servicePort": 80 }))]),
        (80, 4040)
    );
    // The operator's default applies if the application doesn't set the port.
    let mut all = web("h");
    all.defaults = [("spark.ui.port".to_owned(), "4666".to_owned())].into();
    for (fields, expected) in [(vec![], 4666), (vec![("sparkConf", ui("4555"))], 4555)] {
        let made = made(&fields, &all);
        let port = to_json(&made.ui_service)["spec"]["ports"][0].clone();
        assert_eq!(
            (&port["port"], &port["targetPort"]),
            (&json!(expected), &json!(expected))
        );
        let ingress = to_json(&made.ui_ingress);
        let backend = &ingress["spec"]["rules"][0]["http"]["paths"][0]["backend"];
        assert_eq!(backend["service"]["port"]["number"], expected);
        assert_eq!(made.properties["spark.ui.port"], expected.to_string());
    }
    let options = json!({
        "servicePortName": "ui", "serviceType": "NodePort", "serviceAnnotations": { "a": "b" }, "serviceLabels": { "c": "d" },
    });
    let service = to_json(&made(&[("sparkUIOptions", options)], &Settings::default()).ui_service);
    assert_eq!(
        (
            &service["spec"]["type"],
            &service["spec"]["ports"][0]["name"]
        ),
        (&json!("NodePort"), &json!("ui"))
    );
    assert_eq!(service["metadata"]["annotations"], json!({ "a": "b" }));
    assert_eq!(service["metadata"]["labels"]["c"], "d");
    assert_eq!(
        service["metadata"]["labels"]["sparkoperator.k8s.io/submission-id"],
        scene::SID
    );
    let mut off = Settings::default();
    off.web.service = Switch::Off;
    assert!(made(&[], &off).ui_service.is_none());
    assert_eq!(ui_address("10.0.0.7", 4040), "10.0.0.7:4040");
}

#[test]
fn an_ingress_with_a_path_is_rewritten_and_spark_is_told() {
    let made = made(
        &[],
        &web("https://spark.example/{{$appNamespace}}/{{ $appName }}/{{$appId}}"),
    );
    let path = format!("/default/spark-pi/{APP_ID}");
    assert_eq!(made.ui_url, Some(format!("https://spark.example{path}")));
    let ingress = to_json(&made.ui_ingress);
    assert_eq!(ingress["metadata"]["name"], "spark-pi-ui-ingress");
    let annotations =
        json!({ "from": "operator", "nginx.ingress.kubernetes.io/rewrite-target": "/$2" });
    assert_eq!(ingress["metadata"]["annotations"], annotations);
    assert_eq!(
        ingress["spec"],
        json!({
            "ingressClassName": "nginx",
            "rules": [{
                "host": "spark.example",
                "http": { "paths": [{
                    "path": format!("{path}(/|$)(.*)"), "pathType": "ImplementationSpecific",
                    "backend": { "service": { "name": "spark-pi-ui-svc", "port": { "number": 4040 } } },
                }] },
            }],
        })
    );
    assert_eq!(made.properties["spark.ui.proxyBase"], path);
    assert_eq!(made.properties["spark.ui.proxyRedirectUri"], "/");
}

#[test]
fn an_ingress_without_a_path_is_plain() {
    for url in ["{{$appName}}.example", "{{$appName}}.example/"] {
        let made = made(&[], &web(url));
        assert!(made.ui_url.unwrap().starts_with("http://spark-pi.example"));
        let ingress = to_json(&made.ui_ingress);
        assert_eq!(
            ingress["metadata"]["annotations"],
            json!({ "from": "operator" })
        );
        assert!(!made.properties.contains_key("spark.ui.proxyBase"), "{url}");
    }
    let made = made(
        &[("sparkConf", json!({ "spark.ui.proxyBase": "/mine" }))],
        &web("x/y"),
    );
    assert_eq!(made.properties["spark.ui.proxyBase"], "/mine");
}

#[test]
fn an_application_s_own_annotations_and_tls_replace_the_operator_s() {
    let options = json!({ "ingressAnnotations": { "own": "1" }, "ingressTLS": [{ "hosts": ["h"], "secretName": "s" }] });
    let ingress = to_json(&made(&[("sparkUIOptions", options)], &web("h")).ui_ingress);
    assert_eq!(ingress["metadata"]["annotations"], json!({ "own": "1" }));
    assert_eq!(
        ingress["spec"]["tls"],
        json!([{ "hosts": ["h"], "secretName": "s" }])
    );
}

#[test]
fn more_doors_of_a_driver() {
    let options = json!([
        { "servicePort": 8081, "servicePortName": "api", "ingressURLFormat": "h.example/{{$appName}}", "serviceType": "LoadBalancer" },
        { "servicePort": 8082, "servicePortName": "", "ingressURLFormat": "g.example" },
    ]);
    let made = made(&[("driverIngressOptions", options)], &web(""));
    assert!(made.ui_ingress.is_none());
    let all: Vec<(Value, Value)> = made
        .driver_ingresses
        .iter()
        .map(|(s, i)| (to_json(s), to_json(i)))
        .collect();
    let (service, ingress) = &all[0];
    assert_eq!(service["metadata"]["name"], "spark-pi-driver-8081");
    assert_eq!(service["spec"]["type"], "LoadBalancer");
    assert_eq!(service["spec"]["selector"]["spark-role"], "driver");
    assert_eq!(ingress["metadata"]["name"], "spark-pi-ing-8081");
    let path = &ingress["spec"]["rules"][0]["http"]["paths"][0];
    assert_eq!(path["path"], "/spark-pi(/|$)(.*)");
    assert_eq!(
        path["backend"]["service"],
        json!({ "name": "spark-pi-driver-8081", "port": { "number": 8081 } })
    );
    assert_eq!(all[1].0["spec"]["ports"][0]["name"], "driver-ing-8082");
}

#[test]
fn a_driver_is_protected_where_both_sides_ask_for_it() {
    let asked = [
        ("driverPodDisruptionBudget", json!(true)),
        ("driver/podName", json!("mine")),
    ];
    let on = Settings {
        disruption_budget: Switch::On,
        ..Settings::default()
    };
    assert!(
        made(&asked, &Settings::default())
            .disruption_budget
            .is_none()
    );
    assert!(made(&[], &on).disruption_budget.is_none());
    let budget = to_json(&made(&asked, &on).disruption_budget);
    assert_eq!(budget["metadata"]["name"], "mine");
    assert_eq!(
        budget["metadata"]["labels"]["sparkoperator.k8s.io/launched-by-spark-operator"],
        "true"
    );
    assert_eq!(
        budget["spec"],
        json!({
            "minAvailable": 1,
            "selector": { "matchLabels": { "sparkoperator.k8s.io/app-name": "spark-pi", "spark-role": "driver" } },
        })
    );
}

fn batch(default: &str) -> Settings {
    Settings {
        batch: BatchSettings {
            enabled: Switch::On,
            default: default.to_owned(),
            kube_schedulers: vec!["plugins".to_owned()],
        },
        ..Settings::default()
    }
}

#[test]
fn volcano_gets_a_group_of_what_the_pods_ask_for() {
    let fields = [
        ("batchScheduler", json!("volcano")),
        ("driver/memory", json!("512m")),
        ("driver/coreRequest", json!("500m")),
        ("executor/instances", json!(3)),
        ("executor/memory", json!("1g")),
        (
            "batchSchedulerOptions",
            json!({ "queue": "q", "priorityClassName": "high" }),
        ),
    ];
    let out = made(&fields, &batch(""));
    let group = to_json(&out.groups[0]);
    assert_eq!(
        (&group["apiVersion"], &group["kind"]),
        (&json!("scheduling.volcano.sh/v1beta1"), &json!("PodGroup"))
    );
    assert_eq!(group["metadata"]["name"], "spark-spark-pi-pg");
    // 896 + 3 × 1408 MiB.
    let needs = json!({ "cpu": "3500m", "memory": "5Gi" });
    assert_eq!(
        group["spec"],
        json!({ "minMember": 1, "minResources": needs, "queue": "q", "priorityClassName": "high" })
    );
    assert_eq!(out.batch_scheduler.as_deref(), Some("volcano"));
    let pod = to_json(&out.driver);
    assert_eq!(
        pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"],
        "spark-spark-pi-pg"
    );
    assert_eq!(pod["spec"]["schedulerName"], "volcano");
    assert_eq!(template(&out)["spec"]["schedulerName"], "volcano");
    let key = "spark.kubernetes.executor.annotation.scheduling.k8s.io/group-name";
    assert_eq!(out.properties[key], "spark-spark-pi-pg");
    let own = json!({ "resources": { "cpu": "7" } });
    let out = made(
        &[
            ("batchScheduler", json!("volcano")),
            ("batchSchedulerOptions", own),
        ],
        &batch(""),
    );
    assert_eq!(
        to_json(&out.groups[0])["spec"]["minResources"],
        json!({ "cpu": "7" })
    );
    let mine = json!({ "scheduling.k8s.io/group-name": "mine" });
    let out = made(
        &[
            ("batchScheduler", json!("volcano")),
            ("driver/annotations", mine),
        ],
        &batch(""),
    );
    assert!(out.groups.is_empty());
    assert_eq!(
        to_json(&out.driver)["metadata"]["annotations"]["scheduling.k8s.io/group-name"],
        "mine"
    );
}

#[test]
fn with_dynamic_allocation_a_group_counts_the_first_executors() {
    let dynamic =
        json!({ "enabled": true, "initialExecutors": 2, "minExecutors": 4, "maxExecutors": 9 });
    let fields = [
        ("batchScheduler", json!("volcano")),
        ("dynamicAllocation", dynamic),
    ];
    let group = to_json(&made(&fields, &batch("")).groups[0]);
    assert_eq!(group["spec"]["minResources"]["cpu"], "5");
}

#[test]
fn yunikorn_is_told_by_annotations() {
    let fields = [
        ("batchScheduler", json!("yunikorn")),
        ("mainApplicationFile", json!("local:///a.py")),
        ("executor/instances", json!(2)),
        ("executor/nodeSelector", json!({ "b": "2" })),
        ("driver/tolerations", json!([{ "key": "t" }])),
        ("driver/labels", json!({ "team": "x" })),
        ("batchSchedulerOptions", json!({ "queue": "root.q" })),
        (
            "sparkConf",
            json!({
                "spark.executor.pyspark.memory": "500m", "spark.memory.offHeap.enabled": "true", "spark.memory.offHeap.size": "100m",
            }),
        ),
    ];
    let out = made(&fields, &batch(""));
    assert!(out.groups.is_empty());
    let pod = to_json(&out.driver);
    let annotations = &pod["metadata"]["annotations"];
    assert_eq!(
        annotations["yunikorn.apache.org/task-group-name"],
        "spark-driver"
    );
    let groups: Value = serde_json::from_str(
        annotations["yunikorn.apache.org/task-groups"]
            .as_str()
            .unwrap(),
    )
    .unwrap();
    assert_eq!(
        groups,
        json!([
            {
                "name": "spark-driver", "minMember": 1, "minResource": { "cpu": "1", "memory": "1433Mi" },
                "tolerations": [{ "key": "t" }], "labels": { "team": "x" },
            },
            {
                // 1024 + 409 + 500 + 100 MiB.
                "name": "spark-executor", "minMember": 2, "minResource": { "cpu": "1", "memory": "2033Mi" },
                "nodeSelector": { "b": "2" },
            },
        ])
    );
    assert_eq!(pod["metadata"]["labels"]["queue"], "root.q");
    assert_eq!(
        out.properties["spark.kubernetes.executor.label.queue"],
        "root.q"
    );
    let key = "spark.kubernetes.executor.annotation.yunikorn.apache.org/task-group-name";
    assert_eq!(out.properties[key], "spark-executor");
    assert_eq!(pod["spec"]["schedulerName"], "yunikorn");
}

#[test]
fn a_scheduler_with_the_coscheduling_plugin_gets_a_group_by_label() {
    let out = made(&[("executor/instances", json!(1))], &batch("plugins"));
    let group = to_json(&out.groups[0]);
    assert_eq!(group["apiVersion"], "scheduling.x-k8s.io/v1alpha1");
    assert_eq!(group["metadata"]["name"], "spark-pi-pg");
    assert_eq!(
        group["spec"],
        json!({ "minMember": 1, "minResources": { "cpu": "2", "memory": "2816Mi" } })
    );
    for role in ["driver", "executor"] {
        let key = format!("spark.kubernetes.{role}.label.scheduling.x-k8s.io/pod-group");
        assert_eq!(out.properties[&key], "spark-pi-pg");
    }
    // The operator's default counts as the application's choice.
    assert_eq!(to_json(&out.driver)["spec"]["schedulerName"], "plugins");
}

#[test]
fn a_scheduler_that_nobody_serves_is_refused() {
    let app = with(&[("batchScheduler", json!("odd"))]);
    let text = try_submit(&app, &batch("")).unwrap_err().to_string();
    let words =
        "failed to submit spark application: failed during batch scheduler setup or check: ";
    assert!(
        text.starts_with(words) && text.contains("failed to get scheduler odd"),
        "{text}"
    );
    assert!(text.contains("volcano, yunikorn, plugins"), "{text}");
    // With batch schedulers off, the name is an ordinary scheduler's.
    let out = submitted(&app);
    assert_eq!(to_json(&out.driver)["spec"]["schedulerName"], "odd");
    assert_eq!(out.batch_scheduler, None);
}

#[test]
fn spark_s_own_step_for_volcano_is_done_for_it() {
    let step = "org.apache.spark.deploy.k8s.features.VolcanoFeatureStep";
    let mut conf = json!({ "spark.kubernetes.driver.pod.featureSteps": step, "spark.kubernetes.executor.pod.featureSteps": step });
    let out = submitted(&with(&[("sparkConf", conf.clone())]));
    let group = to_json(&out.groups[0]);
    assert_eq!(group["metadata"]["name"], format!("{APP_ID}-podgroup"));
    let annotations = &to_json(&out.driver)["metadata"]["annotations"];
    assert_eq!(
        annotations["scheduling.k8s.io/group-name"],
        format!("{APP_ID}-podgroup")
    );
    // Executors get their annotation from the step itself, in the driver.
    assert_eq!(
        out.properties["spark.kubernetes.executor.pod.featureSteps"],
        step
    );
    conf["spark.kubernetes.scheduler.volcano.podGroupTemplateFile"] = json!("/x.yaml");
    assert!(refused(&with(&[("sparkConf", conf)])).contains("spec.batchSchedulerOptions"));
}

fn monitoring(more: &[(&str, Value)]) -> Value {
    let mut out = json!({
        "exposeDriverMetrics": true, "exposeExecutorMetrics": true, "prometheus": { "jmxExporterJar": "/jmx.jar" },
    });
    for (path, value) in more {
        scene::set(&mut out, path, value.clone());
    }
    out
}

#[test]
fn metrics_are_set_up_on_both_roles() {
    let fields = [
        ("monitoring", monitoring(&[])),
        ("driver/javaOptions", json!("-Dmine")),
        ("sparkConf", json!({ "spark.metrics.conf": "gone" })),
    ];
    let out = made(&fields, &Settings::default());
    let config = to_json(&out.metrics);
    assert_eq!(config["metadata"]["name"], "spark-pi-prom-conf");
    assert_eq!(
        config["metadata"]["labels"]["sparkoperator.k8s.io/created-by-spark-operator"],
        "true"
    );
    let data = config["data"].as_object().unwrap();
    assert_eq!(
        data.keys().collect::<Vec<_>>(),
        ["metrics.properties", "prometheus.yaml"]
    );
    assert_eq!(
        data["metrics.properties"].as_str().unwrap().lines().count(),
        3
    );
    let agent = "-javaagent:/jmx.jar=8090:/etc/metrics/conf/prometheus.yaml";
    assert_eq!(
        out.properties["spark.driver.extraJavaOptions"],
        format!("-Dmine {agent}")
    );
    assert_eq!(out.properties["spark.executor.extraJavaOptions"], agent);
    assert_eq!(
        out.properties["spark.metrics.namespace"],
        "default.spark-pi"
    );
    assert_eq!(
        out.properties["spark.metrics.conf"],
        "/etc/metrics/conf/metrics.properties"
    );
    for role in ["driver", "executor"] {
        for (key, value) in [("scrape", "true"), ("port", "8090"), ("path", "/metrics")] {
            let key = format!("spark.kubernetes.{role}.annotation.prometheus.io/{key}");
            assert_eq!(out.properties[&key], value);
        }
    }
    let executor = template(&out)["spec"].clone();
    for (pod, main) in [
        (&to_json(&out.driver)["spec"], container(&out)),
        (&executor, executor["containers"][0].clone()),
    ] {
        assert!(names(&pod["volumes"]).contains(&"spark-pi-prom-conf-vol".to_owned()));
        let mount = json!({ "name": "spark-pi-prom-conf-vol", "mountPath": "/etc/metrics/conf", "readOnly": true });
        assert!(main["volumeMounts"].as_array().unwrap().contains(&mount));
        let port = json!({ "name": "jmx-exporter", "containerPort": 8090, "protocol": "TCP" });
        assert!(main["ports"].as_array().unwrap().contains(&port));
    }
}

#[test]
fn files_of_the_image_replace_those_of_the_config_map_one_by_one() {
    for (more, keys, agent) in [
        (
            vec![("metricsPropertiesFile", json!("/m"))],
            Some(vec!["prometheus.yaml"]),
            "/etc/metrics/conf/prometheus.yaml",
        ),
        (
            vec![("prometheus/configFile", json!("/p"))],
            Some(vec!["metrics.properties"]),
            "/p",
        ),
        (
            vec![
                ("metricsPropertiesFile", json!("/m")),
                ("prometheus/configFile", json!("/p")),
            ],
            None,
            "/p",
        ),
    ] {
        let out = made(&[("monitoring", monitoring(&more))], &Settings::default());
        let found = out
            .metrics
            .and_then(|c| c.data)
            .map(|d| d.into_keys().collect::<Vec<_>>());
        assert_eq!(
            found,
            keys.map(|k| k.into_iter().map(str::to_owned).collect()),
            "{more:?}"
        );
        assert!(out.properties["spark.driver.extraJavaOptions"].ends_with(agent));
    }
    let off = [
        ("exposeExecutorMetrics", json!(false)),
        ("prometheus/port", json!(9000)),
        ("prometheus/portName", json!("m")),
    ];
    let out = made(&[("monitoring", monitoring(&off))], &Settings::default());
    assert!(
        !out.properties
            .contains_key("spark.executor.extraJavaOptions")
    );
    assert_eq!(template(&out)["spec"]["volumes"], Value::Null);
    assert!(out.properties["spark.driver.extraJavaOptions"].contains("=9000:"));
    assert!(names(&container(&out)["ports"]).contains(&"m".to_owned()));
}

#[test]
fn the_exporter_s_rules_name_the_published_metrics() {
    let out = made(&[("monitoring", monitoring(&[]))], &Settings::default());
    let text = out.metrics.unwrap().data.unwrap()["prometheus.yaml"].clone();
    assert_eq!(text.matches("- pattern: ").count(), 13);
    for (name, type_) in [
        ("spark_driver_$3_$4", "GAUGE"),
        ("spark_streaming_driver_$4", "GAUGE"),
        ("spark_executor_$4_count", "COUNTER"),
        ("spark_executor_$4_$5", "GAUGE"),
        ("spark_driver_LiveListenerBus_$3_count", "COUNTER"),
    ] {
        assert!(
            text.contains(&format!("    name: {name}\n    type: {type_}\n")),
            "{name}"
        );
    }
    assert_eq!(text.matches("executor_id: \"$3\"").count(), 5);
    assert!(text.contains(r"metrics<name=(\S+)\.(\S+)\.driver\.(BlockManager|DAGScheduler|jvm)\.(\S+)(?:, type=\S+)?><>Value"));
}
