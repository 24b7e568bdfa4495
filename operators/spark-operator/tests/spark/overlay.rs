//! The spec of a role beyond Spark's properties: on the driver's pod, and in the template of executors.

use serde_json::{Value, json};
use spark_operator::api::Role;
use spark_operator::submission::{Settings, Switch};

use crate::scene::{container, env, json as to_json, names, submitted, template, try_submit, with};

const ROLES: [Role; 2] = [Role::Driver, Role::Executor];

/// Returns the pod spec and the Spark container of a role with these fields.
fn made(role: Role, fields: &Value) -> (Value, Value) {
    let path = role.as_str();
    let made = submitted(&with(&[(path, fields.clone())]));
    match role {
        Role::Driver => (to_json(&made.driver)["spec"].clone(), container(&made)),
        Role::Executor => {
            let spec = template(&made)["spec"].clone();
            let main = spec["containers"][0].clone();
            assert_eq!(main["name"], "spark-kubernetes-executor");
            (spec, main)
        }
    }
}

fn last(list: &Value) -> Value {
    list.as_array().unwrap().last().unwrap().clone()
}

#[test]
fn settings_of_the_pod_reach_both_roles() {
    let template = json!({ "spec": {
        "priority": 5, "preemptionPolicy": "Never", "affinity": { "nodeAffinity": {} },
        "tolerations": [{ "key": "old" }], "nodeSelector": { "a": "old", "b": "old" },
        "hostAliases": [{ "ip": "1.1.1.1" }], "securityContext": { "runAsUser": 1 }, "dnsConfig": { "searches": ["x"] },
        "terminationGracePeriodSeconds": 1,
    } });
    for role in ROLES {
        let (pod, _) = made(
            role,
            &json!({
                "template": template, "priorityClassName": "high", "schedulerName": "own", "hostNetwork": true,
                "affinity": { "podAffinity": {} }, "tolerations": [{ "key": "new" }], "nodeSelector": { "a": "new" },
                "hostAliases": [{ "ip": "2.2.2.2" }], "podSecurityContext": { "fsGroup": 2 }, "dnsConfig": { "nameservers": ["9.9.9.9"] },
                "terminationGracePeriodSeconds": 77, "shareProcessNamespace": true,
            }),
        );
        assert_eq!(pod["priorityClassName"], "high");
        assert_eq!(
            (&pod["priority"], &pod["preemptionPolicy"]),
            (&Value::Null, &Value::Null)
        );
        assert_eq!(pod["schedulerName"], "own");
        assert_eq!(
            (&pod["hostNetwork"], &pod["dnsPolicy"]),
            (&json!(true), &json!("ClusterFirstWithHostNet"))
        );
        assert_eq!(pod["affinity"], json!({ "podAffinity": {} }), "replaced");
        assert_eq!(
            pod["tolerations"],
            json!([{ "key": "old" }, { "key": "new" }]),
            "appended"
        );
        assert_eq!(
            pod["nodeSelector"],
            json!({ "a": "new", "b": "old" }),
            "merged"
        );
        assert_eq!(
            pod["hostAliases"],
            json!([{ "ip": "1.1.1.1" }, { "ip": "2.2.2.2" }])
        );
        assert_eq!(pod["securityContext"], json!({ "fsGroup": 2 }), "replaced");
        assert_eq!(
            pod["dnsConfig"],
            json!({ "nameservers": ["9.9.9.9"] }),
            "replaced"
        );
        assert_eq!(pod["terminationGracePeriodSeconds"], 77);
        assert_eq!(pod["shareProcessNamespace"], true);
    }
}

#[test]
fn settings_of_the_container_reach_both_roles() {
    for role in ROLES {
        let name = role.container();
        let (_, main) = made(
            role,
            &json!({
                "template": { "spec": { "containers": [{
                    "name": name, "securityContext": { "runAsUser": 1 }, "lifecycle": { "postStart": {} },
                }] } },
                "env": [{ "name": "A", "value": "1" }], "envFrom": [{ "secretRef": { "name": "s" } }],
                "ports": [{ "name": "debug", "protocol": "TCP", "containerPort": 5005 }],
                "gpu": { "name": "nvidia.com/gpu", "quantity": 2 },
                "securityContext": { "runAsGroup": 2 }, "lifecycle": { "preStop": {} },
            }),
        );
        assert_eq!(last(&main["env"]), json!({ "name": "A", "value": "1" }));
        assert_eq!(main["envFrom"], json!([{ "secretRef": { "name": "s" } }]));
        assert_eq!(
            last(&main["ports"]),
            json!({ "name": "debug", "protocol": "TCP", "containerPort": 5005 })
        );
        assert_eq!(main["resources"]["limits"]["nvidia.com/gpu"], "2");
        assert_eq!(
            main["securityContext"],
            json!({ "runAsGroup": 2 }),
            "replaced"
        );
        assert_eq!(main["lifecycle"], json!({ "preStop": {} }), "replaced");
    }
}

#[test]
fn a_role_gets_only_what_is_its_own() {
    let made = submitted(&with(&[(
        "driver/env",
        json!([{ "name": "D", "value": "1" }]),
    )]));
    assert_eq!(template(&made)["spec"]["containers"][0]["env"], Value::Null);
    let made = submitted(&with(&[(
        "executor/env",
        json!([{ "name": "E", "value": "1" }]),
    )]));
    assert!(env(&container(&made)).iter().all(|(name, _)| name != "E"));
    for flag in [json!(false), Value::Null] {
        let made = submitted(&with(&[("driver/hostNetwork", flag)]));
        assert_eq!(to_json(&made.driver)["spec"]["dnsPolicy"], Value::Null);
    }
}

#[test]
fn odd_accelerators_are_ignored_and_told() {
    for gpu in [
        json!({ "name": "", "quantity": 1 }),
        json!({ "name": "x/y", "quantity": 0 }),
    ] {
        let made = submitted(&with(&[("driver/gpu", gpu)]));
        assert_eq!(
            container(&made)["resources"]["limits"],
            json!({ "memory": "1408Mi" })
        );
        assert!(
            made.notes
                .iter()
                .any(|n| n.message.starts_with("spec.driver.gpu")),
            "{:?}",
            made.notes
        );
    }
}

#[test]
fn a_memory_limit_is_set_on_drivers_and_needs_a_policy_for_executors() {
    let app = with(&[
        ("driver/memoryLimit", json!("3g")),
        ("executor/memoryLimit", json!("3g")),
    ]);
    let made = submitted(&app);
    let resources = container(&made)["resources"].clone();
    assert_eq!(resources["limits"]["memory"], "3Gi");
    assert_eq!(resources["requests"]["memory"], "1408Mi");
    assert!(
        made.notes
            .iter()
            .any(|n| n.message.starts_with("spec.executor.memoryLimit"))
    );
    let settings = Settings {
        memory_limit_policy: Switch::On,
        ..Settings::default()
    };
    assert_eq!(try_submit(&app, &settings).unwrap().notes, []);
}

#[test]
fn sidecars_come_once() {
    let side = json!({ "name": "side", "image": "i:1" });
    let other = json!({ "name": "side", "image": "i:2" });
    for role in ROLES {
        let (pod, _) = made(
            role,
            &json!({
                "template": { "spec": { "containers": [{ "name": role.container() }, side], "initContainers": [side] } },
                "sidecars": [side, other], "initContainers": [side, other],
            }),
        );
        let all = names(&pod["containers"]);
        assert_eq!(all.iter().filter(|n| *n == "side").count(), 2, "{all:?}");
        assert_eq!(names(&pod["initContainers"]), ["side", "side"]);
    }
}

#[test]
fn kubectl_is_told_which_container_of_an_executor_is_spark_s() {
    let key = "kubectl.kubernetes.io/default-container";
    let made = submitted(&with(&[(
        "executor/sidecars",
        json!([{ "name": "s", "image": "i" }]),
    )]));
    assert_eq!(
        template(&made)["metadata"]["annotations"][key],
        "spark-kubernetes-executor"
    );
    assert_eq!(
        names(&template(&made)["spec"]["containers"]),
        ["spark-kubernetes-executor", "s"]
    );
    assert_eq!(
        template(&submitted(&with(&[])))["metadata"]["annotations"],
        Value::Null
    );
}

#[test]
fn config_maps_of_spark_and_hadoop_are_mounted_read_only() {
    let made = submitted(&with(&[
        ("sparkConfigMap", json!("sc")),
        ("hadoopConfigMap", json!("hc")),
        (
            "driver/configMaps",
            json!([{ "name": "mine", "path": "/mine" }]),
        ),
    ]));
    let executor = template(&made)["spec"].clone();
    let driver = to_json(&made.driver)["spec"].clone();
    for (pod, main) in [
        (&driver, container(&made)),
        (&executor, executor["containers"][0].clone()),
    ] {
        for (name, map, path) in [
            ("hadoop-configmap-volume", "hc", "/etc/hadoop/conf"),
            ("spark-configmap-volume", "sc", "/etc/spark/conf"),
        ] {
            let volume = json!({ "name": name, "configMap": { "name": map } });
            assert!(
                pod["volumes"].as_array().unwrap().contains(&volume),
                "{pod}"
            );
            let mount = json!({ "name": name, "mountPath": path, "readOnly": true });
            assert!(
                main["volumeMounts"].as_array().unwrap().contains(&mount),
                "{main}"
            );
        }
        let env = env(&main);
        assert!(env.contains(&("HADOOP_CONF_DIR".to_owned(), json!("/etc/hadoop/conf"))));
        assert_eq!(
            env.iter().rfind(|(n, _)| n == "SPARK_CONF_DIR").unwrap().1,
            "/etc/spark/conf"
        );
    }
    assert!(names(&driver["volumes"]).contains(&"mine-vol".to_owned()));
    assert!(!names(&executor["volumes"]).contains(&"mine-vol".to_owned()));
    // Spark's own variable would come after the template's.
    assert_eq!(
        made.properties["spark.executorEnv.SPARK_CONF_DIR"],
        "/etc/spark/conf"
    );
}

#[test]
fn a_mount_of_no_volume_is_told() {
    let made = submitted(&with(&[(
        "executor/volumeMounts",
        json!([{ "name": "lost", "mountPath": "/x" }]),
    )]));
    assert_eq!(
        template(&made)["spec"]["containers"][0]["volumeMounts"],
        Value::Null
    );
    assert!(
        made.notes[0].message.contains("there is no volume lost"),
        "{:?}",
        made.notes
    );
}

#[test]
fn the_spec_s_variables_win_over_spark_s_on_executors() {
    let secret = json!({ "secretKeyRef": { "name": "n", "key": "k" } });
    let made = submitted(&with(&[
        (
            "executor/env",
            json!([
                { "name": "PLAIN", "value": "1" },
                { "name": "SPARK_USER", "value": "me" },
                { "name": "BOTH", "value": "spec" },
                { "name": "REF", "valueFrom": secret },
                { "name": "SECRET", "value": "spec" },
                { "name": "SPARK_LOCAL_DIRS", "value": "/x" },
                { "name": "SPARK_CONF_DIR", "valueFrom": secret },
                { "name": "TWICE", "value": "1" }, { "name": "TWICE", "value": "2" },
            ]),
        ),
        (
            "executor/envVars",
            json!({ "BOTH": "vars", "REF": "vars", "TWICE": "vars" }),
        ),
        (
            "executor/envSecretKeyRefs",
            json!({ "SECRET": { "name": "s", "key": "k" } }),
        ),
    ]));
    let said = |name: &str| {
        made.properties
            .get(&format!("spark.executorEnv.{name}"))
            .map(String::as_str)
    };
    assert_eq!(said("PLAIN"), None, "the template's is the only one");
    assert_eq!(said("SPARK_USER"), Some("me"));
    assert_eq!(said("BOTH"), Some("spec"));
    assert_eq!(said("REF"), None, "the template's is the only one");
    assert_eq!(said("TWICE"), Some("2"));
    assert!(
        !made
            .properties
            .contains_key("spark.kubernetes.executor.secretKeyRef.SECRET")
    );
    let told: Vec<&str> = made.notes.iter().map(|n| n.message.as_str()).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(
        told.iter().any(|t| t.contains("SPARK_LOCAL_DIRS"))
            && told.iter().any(|t| t.contains("SPARK_CONF_DIR"))
    );
}

#[test]
fn what_executors_lose_to_spark_is_told() {
    let hook = json!({ "preStop": { "exec": { "command": ["true"] } } });
    let ports = json!([{ "name": "web", "protocol": "TCP", "containerPort": 8080 }]);
    let env = json!([
        { "name": "A", "value": "plain" },
        { "name": "OF_THE_TEMPLATE", "value": "$(A)" },
        { "name": "OF_NOBODY", "value": "$(B) $$(SPARK_EXECUTOR_ID) $(" },
        { "name": "OF_SPARK", "value": "x-$(A)-$(SPARK_EXECUTOR_ID)" },
        { "name": "OF_VARS", "value": "$(VARS)" },
        { "name": "SPARK_USER", "value": "$(SPARK_EXECUTOR_ID)" },
    ]);
    let told = |version: &str, decommission: &str| {
        let made = submitted(&with(&[
            ("sparkVersion", json!(version)),
            (
                "sparkConf",
                json!({ "spark.decommission.enabled": decommission }),
            ),
            ("executor/lifecycle", hook.clone()),
            ("executor/ports", ports.clone()),
            ("executor/env", env.clone()),
            ("executor/envVars", json!({ "VARS": "v" })),
        ]));
        let notes = made.notes.into_iter();
        notes.map(|n| n.message).collect::<Vec<_>>()
    };
    let variables = told("3.5.9", "false");
    let [spark, vars] = &variables[..] else {
        panic!("{variables:?}");
    };
    assert_eq!(
        spark,
        "spec.executor: the variable OF_SPARK keeps $(SPARK_EXECUTOR_ID) as it is written, because Spark sets \
         SPARK_EXECUTOR_ID behind it on executors; read SPARK_EXECUTOR_ID in the program"
    );
    assert!(
        vars.contains("the variable OF_VARS keeps $(VARS)"),
        "{vars}"
    );
    let has = |told: &[String], field: &str| told.iter().any(|t| t.starts_with(field));
    for (version, decommission, lifecycle, ports) in [
        ("3.5.9", "true", true, false),
        ("4.0.5", " True", true, false),
        ("3.3.4", "false", false, true),
        ("3.4.0", "false", false, false),
        ("odd", "false", false, false),
    ] {
        let told = told(version, decommission);
        assert_eq!(has(&told, "spec.executor.lifecycle"), lifecycle, "{told:?}");
        assert_eq!(
            has(&told, "spec.executor.ports"),
            ports,
            "{version} {told:?}"
        );
    }
}

#[test]
fn the_directories_of_config_maps_win_over_variables_of_the_same_name() {
    let own = json!([{ "name": "SPARK_CONF_DIR", "value": "/mine" }]);
    let made = submitted(&with(&[
        ("sparkConfigMap", json!("sc")),
        ("hadoopConfigMap", json!("hc")),
        ("executor/env", own),
        ("executor/envVars", json!({ "HADOOP_CONF_DIR": "/mine" })),
    ]));
    assert_eq!(
        made.properties["spark.executorEnv.SPARK_CONF_DIR"],
        "/etc/spark/conf"
    );
    assert_eq!(
        made.properties["spark.executorEnv.HADOOP_CONF_DIR"],
        "/etc/hadoop/conf"
    );
}

#[test]
fn the_grace_period_of_executors_is_always_said() {
    let key = "spark.kubernetes.executor.terminationGracePeriodSeconds";
    let in_template = json!({ "spec": { "terminationGracePeriodSeconds": 11 } });
    let conf = json!({ key: "22s" });
    for (fields, expected) in [
        (vec![], "30s"),
        (vec![("executor/template", in_template.clone())], "11s"),
        (
            vec![
                ("sparkConf", conf.clone()),
                ("executor/template", in_template),
            ],
            "22s",
        ),
        (
            vec![
                ("sparkConf", conf),
                ("executor/terminationGracePeriodSeconds", json!(33)),
            ],
            "33s",
        ),
    ] {
        assert_eq!(submitted(&with(&fields)).properties[key], expected);
    }
}

#[test]
fn what_spark_would_put_on_top_of_the_template_is_said_in_its_properties() {
    let conf = json!({
        "spark.kubernetes.scheduler.name": "conf", "spark.kubernetes.node.selector.a": "conf",
    });
    let made = submitted(&with(&[
        ("sparkVersion", json!("4.3.0")),
        ("sparkConf", conf),
        ("executor/schedulerName", json!("own")),
        ("executor/nodeSelector", json!({ "a": "own", "b": "own" })),
        (
            "executor/securityContext",
            json!({ "allowPrivilegeEscalation": true }),
        ),
    ]));
    let of = |key: &str| made.properties.get(key).map(String::as_str);
    assert_eq!(of("spark.kubernetes.executor.scheduler.name"), Some("own"));
    assert_eq!(of("spark.kubernetes.executor.node.selector.a"), Some("own"));
    assert_eq!(of("spark.kubernetes.executor.node.selector.b"), None);
    assert_eq!(
        of("spark.kubernetes.executor.securityContext.allowPrivilegeEscalation"),
        Some("true")
    );
}

#[test]
fn mt_04_the_template_of_executors_keeps_what_the_user_wrote_but_for_owners() {
    let own = json!({
        "metadata": {
            "labels": { "a": "b", "sparkoperator.k8s.io/app-name": "evil" }, "finalizers": ["x.example/y"],
            "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u" }],
        },
        "spec": { "containers": [{ "name": "log" }, { "name": "spark-kubernetes-executor", "command": ["c"] }], "priority": 1 },
    });
    let made = submitted(&with(&[("executor/template", own)]));
    let found = template(&made);
    assert_eq!(found["metadata"]["labels"], json!({ "a": "b" }));
    assert_eq!(found["metadata"]["finalizers"], Value::Null);
    assert_eq!(names(&found["metadata"]["ownerReferences"]), ["spark-pi"]);
    assert_eq!(
        names(&found["spec"]["containers"]),
        ["spark-kubernetes-executor", "log"]
    );
    assert_eq!(found["spec"]["containers"][0]["command"], json!(["c"]));
    assert_eq!(found["spec"]["priority"], 1);
}

#[test]
fn executors_carry_the_limit_that_a_policy_is_to_give_them() {
    let app = with(&[("executor/memoryLimit", json!("2g"))]);
    let carried = |switch: Switch| {
        let settings = Settings {
            memory_limit_policy: switch,
            ..Settings::default()
        };
        let made = try_submit(&app, &settings).unwrap();
        template(&made)["metadata"]["annotations"]["trainyard.dev/executor-memory-limit"].clone()
    };
    assert_eq!(carried(Switch::On), "2Gi");
    assert_eq!(carried(Switch::Off), Value::Null);
    let on = Settings {
        memory_limit_policy: Switch::On,
        ..Settings::default()
    };
    let odd = |limit: &str| try_submit(&with(&[("executor/memoryLimit", json!(limit))]), &on);
    let text = odd("half").unwrap_err().to_string();
    assert!(text.contains("spec.executor.memoryLimit"), "{text}");
    assert!(odd("").is_ok());
}
