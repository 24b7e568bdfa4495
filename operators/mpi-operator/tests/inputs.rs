//! Inputs of an `MPIJob`: how the operator validates what passes the API server, and what input must not cause.

use crate::scene::job;
use mpi_operator::{MPIJob, Mpi};
use serde_json::{Value, json};
use training_core::{Availabilities, Provider, Step};
use training_testkit::builders::MPI;
use training_testkit::hostile::{self, HOSTILE};
use training_testkit::scene::Scene;
use training_testkit::validation::{MPI_VERSIONS, Row, Table};
use training_testkit::world::World;

/// Refused rows that the types can't decode: the operator skips the job with a Warning.
const SET_ASIDE: &[&str] = &[
    "B-001 ",
    "B-002 ",
    "B-003 ",
    "B-005 ",
    "B-007 ",
    "B-008 a replica map that is ",
    "B-020 ",
    "a number within the template beyond 32 bits",
    "a probe's port beyond 32 bits",
    "B-069 slots that are a string",
];
/// Refused rows whose stored object is valid: changes, and jobs of another manager.
const ELSEWHERE: &[&str] = &["B-092 managed by ", "B-148 "];
/// Rows that the API server refuses with rules or messages of its own.
const OTHER_WORDS: &[&str] = &[
    "B-008 an empty replica map",
    "B-009 the only replica spec is null",
    "B-035 ",
    "B-057 no launcher",
    "B-080 a restart policy that is none",
    "B-180 ",
    "B-181 ",
];

fn is_of(row: &Row, names: &[&str]) -> bool {
    names.iter().any(|name| row.name.starts_with(name))
}

/// Returns the message with which the operator fails the job at its first reconcile, if it does.
fn ends(job: MPIJob) -> Option<String> {
    let mut world = World::new(Mpi::default(), job);
    world.reconcile();
    let last = world.status().conditions.pop()?;
    let invalid = last.type_ == "Failed" && last.reason.as_deref() == Some("InvalidSpec");
    if invalid {
        assert_eq!(world.writes, ["status"], "one write, no pod");
    }
    invalid.then(|| last.message.unwrap_or_default())
}

/// Normalises `map.Key` and `map[Key]`: the API server's spelling depends on the part that refuses.
fn same_slot(path: &str) -> String {
    path.replace(['[', ']'], ".")
        .replace("..", ".")
        .trim_end_matches('.')
        .to_owned()
}

fn judge(table: &Table, row: &Row, version: &str) -> Result<(), String> {
    let mut stored = table.stored(row, &MPI).unwrap();
    // The CRD's default.
    if stored["spec"].is_object() {
        stored["spec"]["submittedAs"] = json!(version);
    }
    let verdict = match serde_json::from_value::<MPIJob>(stored) {
        Ok(job) => Ok(ends(job)),
        Err(error) => Err(error.to_string()),
    };
    match (&row.refused, verdict) {
        (None, Ok(None)) => Ok(()),
        (Some(_), Ok(None)) if is_of(row, ELSEWHERE) => Ok(()),
        (Some(_), Err(_)) if is_of(row, SET_ASIDE) => Ok(()),
        (Some(refused), Ok(Some(said))) if !is_of(row, ELSEWHERE) && !is_of(row, SET_ASIDE) => {
            let (field, problem) = said.split_once(": ").unwrap_or((&said, ""));
            // A rule over all roles names their map, the operator the role.
            let same = same_slot(field).starts_with(&same_slot(&refused.field));
            let words = problem.contains(&refused.text) || is_of(row, OTHER_WORDS);
            let otherwise = format!(
                "{} {}, but the operator says {said}",
                refused.field, refused.text
            );
            (same && words).then_some(()).ok_or(otherwise)
        }
        (_, verdict) => Err(format!("{verdict:?}")),
    }
}

#[test]
fn i_43_the_operator_judges_every_row_as_the_crd_does_in_both_versions() {
    for version in MPI_VERSIONS {
        let table = Table::mpi(version).unwrap();
        let wrong = |row: &Row| {
            let error = judge(&table, row, version).err()?;
            Some(format!("{version}, {}: {error}", row.name))
        };
        let wrong: Vec<String> = table.rows.iter().filter_map(wrong).collect();
        assert!(
            wrong.is_empty(),
            "{} rows:\n{}",
            wrong.len(),
            wrong.join("\n")
        );
        let refused = table.rows.iter().filter(|r| r.refused.is_some()).count();
        assert!(refused > 60, "the table has {refused} refused rows");
        for name in SET_ASIDE.iter().chain(ELSEWHERE).chain(OTHER_WORDS) {
            let there = table.rows.iter().any(|row| row.name.starts_with(name));
            assert!(there, "{version}: no row is called {name}");
        }
    }
}

/// Every object created for a job until it settles, as the operator sends it.
fn made(mut world: World<Mpi>) -> Vec<Value> {
    let mut made = Vec::new();
    for _ in 0..8 {
        world.view_all();
        for step in world.plan().steps {
            made.push(match step {
                Step::CreatePod(pod) => json!(pod),
                Step::CreateObject(object) => json!(object),
                other => panic!("{other:?}"),
            });
        }
        world.reconcile();
    }
    made
}

fn made_for(change: impl FnOnce(&mut Value)) -> Vec<Value> {
    let mpi = Mpi {
        gate_image: Some("gate:1".to_owned()),
        ..Mpi::default()
    };
    made(World::new(mpi, job(change)))
}

fn of_kind<'a>(made: &'a [Value], kind: &str) -> Vec<&'a Value> {
    made.iter().filter(|o| o["kind"] == kind).collect()
}

fn templates(job: &mut Value) -> [&mut Value; 2] {
    let roles = job["spec"]["mpiReplicaSpecs"].as_object_mut().unwrap();
    let mut roles = roles.values_mut().map(|role| &mut role["template"]);
    [roles.next().unwrap(), roles.next().unwrap()]
}

/// Events of a job that an operator with this gang scheduler sees for the first time.
fn told(provider: Provider, change: impl FnOnce(&mut Value)) -> String {
    let mut world = World::new(Mpi::default(), job(change));
    world.gang.provider = provider;
    world.gang.offers = Availabilities::all();
    world.settle();
    world.events().join("\n")
}

#[test]
fn b_095_b_096_b_124_settings_that_get_in_the_way_of_a_gang_are_warned_of() {
    let policy = json!({"scheduleTimeoutSeconds": 100});
    let timeout = |job: &mut Value| {
        job["spec"]["runPolicy"] = json!({"schedulingPolicy": policy, "activeDeadlineSeconds": 99});
    };
    let said = told(Provider::Volcano, timeout);
    assert!(
        said.contains("longer than activeDeadlineSeconds, 99"),
        "{said}"
    );
    let said = told(Provider::None, timeout);
    assert!(
        said.contains("Warning SettingIgnored: spec.runPolicy.schedulingPolicy"),
        "{said}"
    );
    let worker = |field: &'static str| {
        move |job: &mut Value| {
            job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"][field] = json!("theirs");
        }
    };
    let said = told(Provider::Volcano, worker("nodeName"));
    assert!(
        said.contains("nodeName: no scheduler sees these pods"),
        "{said}"
    );
    let said = told(Provider::Volcano, worker("schedulerName"));
    assert!(
        said.contains("a template's own schedulerName has no effect"),
        "{said}"
    );
    let said = told(Provider::Volcano, |_| ());
    assert!(!said.contains("Warning"), "{said}");
}

#[test]
fn b_127_hosts_have_the_names_that_the_host_file_lists_whatever_the_template_says() {
    let made = made_for(|job| {
        for template in templates(job) {
            template["spec"]["hostname"] = json!("mine");
            template["spec"]["subdomain"] = json!("theirs");
            template["spec"]["hostnameOverride"] = json!("other");
        }
    });
    let pods = of_kind(&made, "Pod");
    assert_eq!(pods.len(), 2);
    let launcher = &of_kind(&made, "Job")[0]["spec"]["template"];
    for (name, pod) in [
        ("pi-worker-0", pods[0]),
        ("pi-worker-1", pods[1]),
        ("pi-launcher", launcher),
    ] {
        assert_eq!(pod["spec"]["hostname"], name);
        assert_eq!(pod["spec"]["subdomain"], "pi", "{name}");
        assert_eq!(pod["spec"].get("hostnameOverride"), None, "{name}");
    }
}

#[test]
fn mt_03_mt_04_what_is_made_is_in_the_jobs_namespace_and_belongs_to_the_job_alone() {
    let made = made_for(|job| {
        for template in templates(job) {
            template["metadata"] = json!({
                "namespace": "other", "name": "mine",
                "ownerReferences": [{"apiVersion": "v1", "kind": "Namespace", "name": "other", "uid": "u"}],
            });
        }
    });
    assert_eq!(made.len(), 6, "{made:#?}");
    for object in &made {
        assert_eq!(object["metadata"]["namespace"], "ns1", "{object}");
        let owners = object["metadata"]["ownerReferences"].as_array().unwrap();
        assert_eq!(owners.len(), 1, "{object}");
        assert_eq!(owners[0]["kind"], "MPIJob");
    }
    let inner = &of_kind(&made, "Job")[0]["spec"]["template"]["metadata"];
    assert_eq!(
        (inner.get("namespace"), inner.get("ownerReferences")),
        (None, None),
        "{inner}"
    );
}

#[test]
fn mt_06_mt_11_mt_12_priority_account_and_tokens_are_passed_on_as_to_any_pod() {
    let token = json!({"name": "token", "projected": {"sources": [
        {"serviceAccountToken": {"audience": "https://kubernetes.default.svc", "path": "token"}}]}});
    let made = made_for(|job| {
        for template in templates(job) {
            template["spec"]["priorityClassName"] = json!("system-node-critical");
            template["spec"]["serviceAccountName"] = json!("powerful");
            template["spec"]["volumes"] = json!([token]);
        }
    });
    let launcher = &of_kind(&made, "Job")[0]["spec"]["template"];
    for pod in of_kind(&made, "Pod").into_iter().chain([launcher]) {
        assert_eq!(pod["spec"]["priorityClassName"], "system-node-critical");
        assert_eq!(pod["spec"]["serviceAccountName"], "powerful");
        let volumes = pod["spec"]["volumes"].as_array().unwrap();
        let projected: Vec<_> = volumes
            .iter()
            .filter(|v| v["projected"].is_object())
            .collect();
        assert_eq!(projected, [&token], "only the user's own");
    }
}

#[test]
fn mt_06_strict_mode_runs_no_launcher_with_a_priority_class_of_the_system() {
    for role in ["Launcher", "Worker"] {
        let path = format!("/spec/mpiReplicaSpecs/{role}/template/spec/priorityClassName");
        let mut world = crate::scene::world(crate::scene::pi(1).set(&path, "system-node-critical"));
        world.rules.strict = true;
        world.settle();
        assert_eq!(world.pod_names(), Vec::<String>::new(), "{role}");
        let status = world.status_json().to_string();
        let field = format!("spec.mpiReplicaSpecs[{role}].template.spec.priorityClassName");
        assert!(
            status.contains(&field) && status.contains("--strict"),
            "{status}"
        );
    }
}

#[test]
fn mt_07_services_have_no_address() {
    let made = made_for(|job| job["spec"]["mpiImplementation"] = json!("Intel"));
    let services = of_kind(&made, "Service");
    assert_eq!(services.len(), 2);
    for service in services {
        assert_eq!(service["spec"]["clusterIP"], "None");
        for field in ["type", "externalIPs", "externalName", "loadBalancerIP"] {
            assert_eq!(service["spec"].get(field), None, "{service}");
        }
    }
}

#[test]
fn mt_13_the_launchers_gate_has_no_token() {
    let made = made_for(|_| ());
    let pod = &of_kind(&made, "Job")[0]["spec"]["template"]["spec"];
    let gate = &pod["initContainers"][0];
    assert_eq!(gate["image"], "gate:1");
    let mounts = gate["volumeMounts"].as_array().unwrap();
    let at_token = |m: &&Value| m["mountPath"] == "/var/run/secrets/kubernetes.io/serviceaccount";
    let over = mounts.iter().find(at_token).unwrap();
    let volumes = pod["volumes"].as_array().unwrap();
    let volume = volumes.iter().find(|v| v["name"] == over["name"]).unwrap();
    assert_eq!(
        volume["emptyDir"],
        json!({}),
        "an empty directory where a token would be"
    );
    for mount in mounts {
        let volume = volumes.iter().find(|v| v["name"] == mount["name"]).unwrap();
        assert!(
            volume["secret"].is_null() && volume["projected"].is_null(),
            "{volume}"
        );
    }
}

/// A job with this text in every free-text field.
fn hostile(text: &str) -> impl FnOnce(&mut Value) {
    let text = text.to_owned();
    move |job| {
        for template in templates(job) {
            let container = json!({
                "name": "any", "image": text, "command": ["/usr/sbin/sshd", text], "args": [text, text], "workingDir": text,
                "env": [{"name": "MINE", "value": text}], "envFrom": [{"configMapRef": {"name": text}}],
                "volumeMounts": [{"name": "a", "mountPath": text, "subPathExpr": text}],
            });
            *template = json!({
                "metadata": {"annotations": {"mine": text}, "labels": {"mine": text}},
                "spec": {
                    "containers": [container], "volumes": [{"name": "a", "configMap": {"name": text}}],
                    "serviceAccountName": text, "nodeName": text, "schedulerName": text, "priorityClassName": text,
                },
            });
        }
        job["metadata"]["annotations"] = json!({"mine": text, "trainyard.dev/ssh-port": text, "trainyard.dev/launcher-gate": text});
        job["metadata"]["labels"] = json!({"mine": text});
        job["spec"]["sshAuthMountPath"] = json!(format!("/{text}"));
        job["spec"]["launcherCreationPolicy"] = json!("AtStartup");
        job["spec"]["cleanPodPolicy"] = json!(text);
        job["spec"]["mainContainer"] = json!(text);
        job["spec"]["runPolicy"] =
            json!({"schedulingPolicy": {"queue": text, "priorityClass": text}});
    }
}

#[test]
fn mt_20_mt_21_mt_22_no_text_of_a_users_becomes_a_part_of_another_text() {
    for text in HOSTILE {
        let made = made_for(hostile(text));
        assert_eq!(made.len(), 6, "{text:?}");
        let places = hostile::places(&made, text);
        assert!(places.iter().any(|p| p.path.contains("args")), "{text:?}");
        // The directory of the keys is an absolute path, so it gets a slash here.
        let parts: Vec<_> = places
            .iter()
            .filter(|p| !p.whole && !p.path.ends_with(".mountPath"))
            .collect();
        assert!(parts.is_empty(), "{text:?}: {parts:?}");
        let own = [
            &of_kind(&made, "Job")[0]["spec"]["template"]["spec"]["initContainers"],
            &of_kind(&made, "ConfigMap")[0]["data"],
        ];
        let places = hostile::places(&own.map(Value::clone), text);
        assert!(places.is_empty(), "{text:?}: {places:?}");
    }
}

#[test]
fn mt_22_scripts_of_hosts_have_nothing_but_names() {
    let made = made_for(|job| job["spec"]["submittedAs"] = json!("v1"));
    let data = of_kind(&made, "ConfigMap")[0]["data"]
        .as_object()
        .unwrap()
        .clone();
    for (file, text) in data {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || " .-=:\n".contains(c);
        let text = text.as_str().unwrap().replace("#!/bin/sh\n", "");
        assert!(text.chars().all(plain), "{file}: {text:?}");
    }
}

#[test]
fn mt_27_selectors_are_the_operators_own() {
    let labels = json!({
        "training.kubeflow.org/operator-name": "another", "training.kubeflow.org/job-name": "another",
        "training.kubeflow.org/job-role": "another", "training.kubeflow.org/replica-index": "7",
    });
    let plain = made_for(|_| ());
    let changed = made_for(|job| {
        job["metadata"]["labels"] = labels.clone();
        for template in templates(job) {
            template["metadata"] = json!({"labels": labels});
        }
    });
    for (plain, changed) in plain.iter().zip(&changed) {
        assert_eq!(plain["metadata"]["labels"], changed["metadata"]["labels"]);
        assert_eq!(plain["spec"]["selector"], changed["spec"]["selector"]);
        assert_eq!(
            plain["spec"]["template"]["metadata"]["labels"],
            changed["spec"]["template"]["metadata"]["labels"]
        );
    }
}

#[test]
fn mt_50_nothing_but_fixed_kinds_of_derived_names_is_made() {
    let made = made_for(hostile("x"));
    let mut names: Vec<String> = made.iter().map(training_testkit::scene::title).collect();
    names.sort_unstable();
    let expected = [
        "ConfigMap pi-config",
        "Job pi-launcher",
        "Pod pi-worker-0",
        "Pod pi-worker-1",
        "Secret pi-ssh",
        "Service pi",
    ];
    assert_eq!(names, expected);
}

#[test]
fn mt_55_no_annotation_of_a_job_changes_what_its_pods_may_do() {
    let annotations = json!({
        "trainyard.dev/restart-scope": "Gang", "trainyard.dev/attempt": "7.7", "trainyard.dev/policy": "x",
        "trainyard.dev/stop": "x", "trainyard.dev/unknown": "true", "scheduling.volcano.sh/queue-name": "q",
    });
    let plain = made_for(|_| ());
    assert_eq!(
        plain,
        made_for(|job| job["metadata"]["annotations"] = annotations)
    );
    // Valid values decide where the gate connects, or disable it.
    let port =
        made_for(|job| job["metadata"]["annotations"] = json!({"trainyard.dev/ssh-port": "7"}));
    let off = made_for(|job| {
        job["metadata"]["annotations"] = json!({"trainyard.dev/launcher-gate": "false"});
    });
    let without_gate = |made: &[Value]| {
        let mut job = of_kind(made, "Job")[0].clone();
        let pod = job["spec"]["template"]["spec"].as_object_mut().unwrap();
        pod.remove("initContainers");
        let volumes = pod["volumes"].as_array_mut().unwrap();
        volumes.retain(|v| v["name"] != "trainyard-wait-for-hosts");
        job
    };
    assert_eq!(without_gate(&plain), without_gate(&port));
    assert_eq!(without_gate(&plain), without_gate(&off));
}
