//! Malicious or unusual input in applications.

use k8s_openapi::jiff::Timestamp;
use k8s_openapi::jiff::tz::TimeZone;
use proptest::prelude::*;
use serde_json::{Value, json};
use spark_operator::cron::Schedule;
use spark_operator::memory::{self, Bare};
use spark_operator::submission::{Settings, Submission};
use spark_operator::version::SparkVersion;
use training_testkit::hostile::{self, HOSTILE};

use crate::laws::load;
use crate::scene::{json, refused, submitted, template, try_submit, with};

/// All objects of an application except free text: properties, and the template of executors.
fn made(submission: &Submission) -> Vec<Value> {
    let mut all = vec![
        json(&submission.driver),
        json(&submission.driver_service),
        json(&submission.metrics),
        json(&submission.ui_service),
        json(&submission.ui_ingress),
        json(&submission.claims),
        json(&submission.network_policy),
        json(&submission.disruption_budget),
        json(&submission.groups),
        template(submission),
    ];
    let ingresses = submission.driver_ingresses.iter();
    all.extend(ingresses.map(|(service, ingress)| json!([json(service), json(ingress)])));
    all
}

#[test]
fn mt_03_mt_04_what_is_made_is_in_the_applications_namespace_and_belongs_to_it_alone() {
    let foreign = json!([{ "apiVersion": "v1", "kind": "Namespace", "name": "other", "uid": "u", "controller": true }]);
    let metadata = json!({ "namespace": "other", "name": "mine", "ownerReferences": foreign, "finalizers": ["e.com/f"] });
    let pod = json!({ "metadata": metadata, "spec": { "containers": [] } });
    let submission = submitted(&with(&[
        ("driver/template", pod.clone()),
        ("executor/template", pod),
    ]));
    for object in made(&submission) {
        let metadata = &object["metadata"];
        if metadata.is_null() {
            continue;
        }
        let namespace = &metadata["namespace"];
        assert!(namespace.is_null() || namespace == "default", "{object}");
        assert_eq!(metadata.get("finalizers"), None, "{object}");
        for owner in metadata["ownerReferences"].as_array().into_iter().flatten() {
            assert_eq!(owner["kind"], "SparkApplication", "{object}");
        }
    }
    let driver = json(&submission.driver);
    assert_eq!(driver["metadata"]["namespace"], "default");
    let owners = driver["metadata"]["ownerReferences"].as_array().unwrap();
    assert_eq!(owners.len(), 1);
}

#[test]
fn mt_06_mt_11_mt_12_priority_account_and_tokens_are_passed_on_as_to_any_pod() {
    let volume = json!([{ "name": "token", "projected": { "sources": [
        { "serviceAccountToken": { "audience": "https://kubernetes.default.svc", "path": "token" } }] } }]);
    let submission = submitted(&with(&[
        ("driver/priorityClassName", json!("system-node-critical")),
        ("driver/serviceAccount", json!("powerful")),
        (
            "driver/volumeMounts",
            json!([{ "name": "token", "mountPath": "/t" }]),
        ),
        ("volumes", volume),
    ]));
    let spec = &json(&submission.driver)["spec"];
    assert_eq!(spec["priorityClassName"], "system-node-critical");
    assert_eq!(spec["serviceAccountName"], "powerful");
    let volumes = spec["volumes"].as_array().unwrap();
    let projected = volumes.iter().filter(|v| v["projected"].is_object());
    assert_eq!(projected.count(), 1, "the user's own and no other");
}

/// As published, an application may request these types; none of them gives a Service an address of the user's choice.
#[test]
fn mt_07_services_have_no_address_of_the_users_choice() {
    for kind in ["ExternalName", "externalIPs", "None", "x"] {
        let options = json!({ "serviceType": kind });
        let said = refused(&with(&[("sparkUIOptions", options)]));
        assert!(said.contains("spec.sparkUIOptions.serviceType"), "{said}");
    }
    let annotations = json!({ "externalIPs": "1.2.3.4" });
    for kind in ["ClusterIP", "NodePort", "LoadBalancer"] {
        let options = json!({ "serviceType": kind, "serviceAnnotations": annotations, "serviceLabels": annotations });
        let submission = submitted(&with(&[("sparkUIOptions", options)]));
        for service in [
            json(&submission.ui_service),
            json(&submission.driver_service),
        ] {
            for field in [
                "externalIPs",
                "externalName",
                "loadBalancerIP",
                "loadBalancerSourceRanges",
            ] {
                assert_eq!(service["spec"].get(field), None, "{service}");
            }
        }
        let driver = json(&submission.driver_service);
        assert_eq!(driver["spec"]["clusterIP"], "None");
    }
}

#[test]
fn mt_08_snippets_of_ingresses_are_refused_and_hosts_are_the_administrators() {
    let snippet = "nginx.ingress.kubernetes.io/configuration-snippet";
    let options = json!({ "ingressAnnotations": { snippet: "return 200;" } });
    let said = refused(&with(&[("sparkUIOptions", options.clone())]));
    assert!(said.contains(snippet), "{said}");
    let ingress = json!([{ "servicePort": 1, "servicePortName": "p", "ingressURLFormat": "h", "ingressAnnotations": { snippet: "x" } }]);
    let said = refused(&with(&[("driverIngressOptions", ingress)]));
    assert!(said.contains(snippet), "{said}");
    // By default, the web UI has no Ingress.
    let submission = submitted(&with(&[]));
    assert!(submission.ui_ingress.is_none() && submission.driver_ingresses.is_empty());
}

/// An application with this text in every free-text field.
fn hostile(text: &str) -> Value {
    let pod = |role: &str| {
        json!({
            "env": [{ "name": "MINE", "value": text }], "envVars": { "OTHER": text },
            "annotations": { "mine": text }, "labels": { "mine": text }, "javaOptions": text,
            "schedulerName": text, "priorityClassName": text, "nodeSelector": { "a": text },
            "configMaps": [{ "name": format!("{role}-config"), "path": text }],
            "sidecars": [{ "name": "s", "image": text, "command": [text], "args": [text] }],
            "initContainers": [{ "name": "i", "image": text, "command": [text], "args": [text] }],
        })
    };
    with(&[
        ("driver", pod("driver")),
        ("executor", pod("executor")),
        ("arguments", json!([text, "--conf", text])),
        (
            "sparkConf",
            json!({ "spark.my.setting": text, "spark.executorEnv.X": text }),
        ),
        ("hadoopConf", json!({ "my.setting": text })),
        ("proxyUser", json!(text)),
        ("mainClass", json!(text)),
    ])
}

#[test]
fn mt_20_mt_21_mt_22_no_text_of_a_users_becomes_a_part_of_another_text() {
    for text in HOSTILE {
        let submission = try_submit(&hostile(text), &Settings::default()).unwrap();
        let places = hostile::places(&made(&submission), text);
        assert!(places.iter().any(|p| p.path.contains("args")), "{text:?}");
        let parts: Vec<_> = places.iter().filter(|p| !p.whole).collect();
        assert!(parts.is_empty(), "{text:?}: {parts:?}");
        // The properties file contains exactly the input.
        let data = submission.conf.data.as_ref().unwrap();
        let file = load(&data["spark.properties"]);
        assert_eq!(file["spark.my.setting"], text);
        assert_eq!(file["spark.hadoop.my.setting"], text);
        assert_eq!(file, submission.properties, "{text:?}");
    }
}

#[test]
fn mt_27_labels_by_which_pods_are_found_are_the_operators_own() {
    for key in ["spark-role", "spark-app-selector"] {
        let said = refused(&with(&[("driver/labels", json!({ key: "another" }))]));
        assert!(
            said.contains(&format!("spec.driver.labels[{key}]")),
            "{said}"
        );
    }
    let labels = json!({ "sparkoperator.k8s.io/app-name": "another", "sparkoperator.k8s.io/submission-id": "x" });
    let plain = submitted(&with(&[]));
    let changed = submitted(&with(&[
        ("driver/labels", labels.clone()),
        ("executor/labels", labels),
    ]));
    let driver = json(&plain.driver);
    let labels = driver["metadata"]["labels"].as_object().unwrap();
    assert!(labels.contains_key("sparkoperator.k8s.io/submission-id"));
    for (key, value) in labels {
        let changed = json(&changed.driver);
        assert_eq!(changed["metadata"]["labels"][key], *value, "{key}");
    }
    // Spark sets the labels of executors, from properties.
    let own = |s: &Submission| {
        let properties = s.properties.clone().into_iter();
        let own = properties.filter(|(key, _)| key.contains(".label.sparkoperator.k8s.io/"));
        own.collect::<Vec<_>>()
    };
    assert!(!own(&plain).is_empty());
    assert_eq!(own(&plain), own(&changed));
    let selector = |s: &Submission| json(&s.driver_service)["spec"]["selector"].clone();
    assert_eq!(selector(&plain), selector(&changed));
}

#[test]
fn mt_55_no_annotation_of_an_application_changes_what_is_made_for_it() {
    let plain = with(&[]);
    let mut changed = plain.clone();
    changed["metadata"]["annotations"] = json!({
        "trainyard.dev/policy": "x", "trainyard.dev/stop": "x", "trainyard.dev/unknown": "true",
        "sparkoperator.k8s.io/service-account": "powerful", "trainyard.dev/restart-scope": "Gang",
    });
    assert_eq!(made(&submitted(&plain)), made(&submitted(&changed)));
}

proptest! {
    /// Any input is read to its end, and the search for the next time ends at the horizon.
    #[test]
    fn mt_26_odd_schedules_amounts_and_versions_are_read_to_their_end(text in "(@every |CRON_TZ=[A-Z/]{0,8} )?[0-9*/,?LW#@ a-z-]{0,40}", any in "\\PC{0,40}") {
        for text in [&text, &any] {
            if let Ok(schedule) = Schedule::parse(text, &TimeZone::UTC, &TimeZone::UTC) {
                let _ = schedule.next(Timestamp::MAX);
                let _ = schedule.next(Timestamp::UNIX_EPOCH);
                let _ = schedule.least_pause();
            }
            let version = SparkVersion::parse(text);
            let _ = memory::bytes(text, Bare::MiB, version);
            let _ = memory::mebibytes(text, version);
            let _ = memory::limit(text);
            let _ = memory::quantity(text);
        }
    }
}

#[test]
fn mt_26_known_extremes_are_read_to_their_end() {
    let long = "1".repeat(4096);
    let list = vec!["0-59/1"; 4096].join(",");
    for text in [
        "9223372036854775807t",
        "18446744073709551616",
        "1e999999999",
        "-9223372036854775808",
        "@every 9223372036854775807h",
        "0 0 30 2 *",
        "*/0 * * * *",
        "59-0 * * * *",
        "* * * * 7",
        long.as_str(),
        list.as_str(),
    ] {
        let version = SparkVersion::parse(text);
        let _ = memory::bytes(text, Bare::Byte, version);
        let _ = memory::quantity(text);
        let _ = memory::limit(text);
        if let Ok(schedule) = Schedule::parse(text, &TimeZone::UTC, &TimeZone::UTC) {
            let _ = schedule.next(Timestamp::UNIX_EPOCH);
        }
    }
    // A schedule with an impossible date has no next time.
    let never = Schedule::parse("0 0 30 2 *", &TimeZone::UTC, &TimeZone::UTC).unwrap();
    assert_eq!(never.next(Timestamp::UNIX_EPOCH), None);
}
