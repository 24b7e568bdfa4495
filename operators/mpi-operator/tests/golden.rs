//! The published example, field by field, written by hand from the contract.

use k8s_openapi::api::core::v1::Secret;
use serde_json::{Value, json};

use mpi_operator::common::{Common, Gate};
use mpi_operator::keys::KeyPair;
use mpi_operator::{MPIJob, Setup, objects, pods};
use training_core::Attempt;
use training_core::pod::owner;
use training_core::restart::RestartScope;

fn pi() -> Value {
    let template = |container: Value| json!({ "spec": { "containers": [container] } });
    json!({
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": { "name": "pi", "namespace": "default", "uid": "11111111-1111-4111-8111-111111111111" },
        "spec": {
            "slotsPerWorker": 1,
            "runPolicy": { "cleanPodPolicy": "Running", "ttlSecondsAfterFinished": 60 },
            "mpiReplicaSpecs": {
                "Launcher": {
                    "replicas": 1,
                    "template": template(json!({
                        "name": "mpi-launcher", "image": "example/pi",
                        "command": ["mpirun", "--allow-run-as-root"], "args": ["-n", "2", "/opt/pi"],
                    })),
                },
                "Worker": {
                    "replicas": 2,
                    "template": template(json!({ "name": "mpi-worker", "image": "example/pi" })),
                },
            },
        },
    })
}

fn typed(job: Value) -> MPIJob {
    serde_json::from_value(job).unwrap()
}

/// A job's objects: Services, ConfigMap, Secret, workers, launcher.
struct Made {
    services: Vec<Value>,
    config: Value,
    secret: Value,
    workers: Vec<Value>,
    launcher: Value,
}

fn made(job: &MPIJob, domain: &str) -> Made {
    with_gate(job, domain, None)
}

fn with_gate(job: &MPIJob, domain: &str, gate: Option<Gate<'_>>) -> Made {
    let setup = Setup::of(job).unwrap();
    let secret = mpi_operator::names::secret(setup.name, 0);
    let cx = Common {
        setup: &setup,
        owner: owner(job),
        secret: &secret,
        domain,
        gate,
        scope: RestartScope::default(),
    };
    let json = |object: &dyn erased::Erased| object.json();
    let keys = KeyPair::generate().unwrap();
    let suspended = job.spec.run_policy.suspend == Some(true);
    let more = objects::launcher_service(&cx);
    let workers = (0..setup.worker_count())
        .map(|at| json(&pods::worker(&cx, at, Attempt::default()).unwrap().made));
    Made {
        services: std::iter::once(objects::service(&cx))
            .chain(more)
            .map(|s| json(&s))
            .collect(),
        config: json(&objects::config(&cx, [])),
        secret: json(&Secret {
            data: Some(keys.secret_data()),
            ..objects::secret(&cx)
        }),
        workers: workers.collect(),
        launcher: json(
            &objects::launcher_job(&cx, &job.spec.run_policy, suspended)
                .unwrap()
                .made,
        ),
    }
}

/// Object-safe serialisation, so that one closure serves all objects.
mod erased {
    use serde::Serialize;
    use serde_json::Value;

    pub trait Erased {
        fn json(&self) -> Value;
    }

    impl<T: Serialize> Erased for T {
        fn json(&self) -> Value {
            serde_json::to_value(self).unwrap()
        }
    }
}

fn owned(name: &str, labels: impl Into<Value>) -> Value {
    json!({
        "name": name, "namespace": "default", "labels": labels.into(),
        "ownerReferences": [{
            "apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "name": "pi",
            "uid": "11111111-1111-4111-8111-111111111111", "controller": true, "blockOwnerDeletion": true,
        }],
    })
}

fn key_volume(mode: Value) -> Value {
    let mut volume = json!({
        "name": "ssh-auth",
        "secret": {
            "secretName": "pi-ssh",
            "items": [
                { "key": "ssh-privatekey", "path": "id_rsa" },
                { "key": "ssh-publickey", "path": "id_rsa.pub" },
                { "key": "ssh-publickey", "path": "authorized_keys" },
            ],
        },
    });
    if !mode.is_null() {
        volume["secret"]["defaultMode"] = mode;
    }
    volume
}

fn env(vars: &[(&str, &str)]) -> Value {
    vars.iter()
        .map(|(name, value)| json!({ "name": name, "value": value }))
        .collect()
}

const OPENMPI: [(&str, &str); 5] = [
    ("K_MPI_JOB_ROLE", "launcher"),
    ("OMPI_MCA_orte_keep_fqdn_hostnames", "true"),
    ("OMPI_MCA_orte_default_hostfile", "/etc/mpi/hostfile"),
    ("OMPI_MCA_plm_rsh_args", "-o ConnectionAttempts=10"),
    ("OMPI_MCA_orte_set_default_slots", "1"),
];
const PRTE: [(&str, &str); 2] = [
    ("PRTE_MCA_prte_default_hostfile", "/etc/mpi/hostfile"),
    ("PRTE_MCA_plm_ssh_args", "-o ConnectionAttempts=10"),
];
const NVIDIA: [(&str, &str); 2] = [
    ("NVIDIA_VISIBLE_DEVICES", ""),
    ("NVIDIA_DRIVER_CAPABILITIES", ""),
];

fn vars(parts: &[&[(&str, &str)]]) -> Value {
    env(&parts.concat())
}

/// Removes the fields that we add to the published objects: nothing else differs.
fn without_ours(mut launcher_or_pod: Value, pointer: &str) -> Value {
    let spec = launcher_or_pod.pointer_mut(pointer).unwrap();
    for container in spec["containers"].as_array_mut().unwrap() {
        container
            .as_object_mut()
            .unwrap()
            .remove("terminationMessagePolicy");
    }
    let meta = launcher_or_pod["metadata"].as_object_mut().unwrap();
    if let Some(Value::Object(annotations)) = meta.get_mut("annotations") {
        annotations.remove("trainyard.dev/attempt");
        if annotations.is_empty() {
            meta.remove("annotations");
        }
    }
    launcher_or_pod
}

const SELECTOR: fn() -> Value = || {
    json!({
        "training.kubeflow.org/operator-name": "mpi-operator",
        "training.kubeflow.org/job-name": "pi",
    })
};

#[test]
fn the_service_the_config_map_and_the_secret_are_the_published_ones() {
    let made = made(&typed(pi()), "");
    let app = json!({ "app": "pi" });
    assert_eq!(
        made.services,
        [json!({
            "apiVersion": "v1", "kind": "Service", "metadata": owned("pi", app.clone()),
            "spec": { "clusterIP": "None", "selector": SELECTOR(), "publishNotReadyAddresses": false },
        })]
    );
    assert_eq!(
        made.config,
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": owned("pi-config", app.clone()),
            "data": {
                "hostfile": "pi-worker-0.pi.default.svc slots=1\npi-worker-1.pi.default.svc slots=1\n",
                "discover_hosts.sh": "#!/bin/sh\n",
            },
        })
    );
    let mut secret = made.secret;
    let data = secret.as_object_mut().unwrap().remove("data").unwrap();
    let keys: Vec<_> = data.as_object().unwrap().keys().cloned().collect();
    assert_eq!(keys, ["ssh-privatekey", "ssh-publickey"]);
    assert_eq!(
        secret,
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": owned("pi-ssh", app),
            "type": "kubernetes.io/ssh-auth",
        })
    );
}

#[test]
fn i_11_a_worker_is_the_published_one_but_for_what_is_listed() {
    let made = made(&typed(pi()), "");
    let worker = without_ours(made.workers[0].clone(), "/spec");
    let mut labels = SELECTOR();
    labels["training.kubeflow.org/job-role"] = json!("worker");
    labels["training.kubeflow.org/replica-index"] = json!("0");
    assert_eq!(
        worker,
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": owned("pi-worker-0", labels),
            "spec": {
                "hostname": "pi-worker-0",
                "subdomain": "pi",
                "dnsConfig": { "searches": ["pi.default.svc.cluster.local"] },
                "restartPolicy": "Never",
                "containers": [{
                    "name": "mpi-worker", "image": "example/pi",
                    "command": ["/usr/sbin/sshd", "-De"],
                    "env": env(&[("K_MPI_JOB_ROLE", "worker")]),
                    "volumeMounts": [{ "name": "ssh-auth", "mountPath": "/root/.ssh" }],
                }],
                "volumes": [key_volume(json!(0o600))],
            },
        })
    );
    let index = &made.workers[1]["metadata"]["labels"]["training.kubeflow.org/replica-index"];
    assert_eq!(index, "1");
    assert_eq!(
        made.workers[1]["metadata"]["annotations"],
        json!({ "trainyard.dev/attempt": "0.0" })
    );
}

#[test]
fn i_11_the_launcher_is_the_published_job_but_for_what_is_listed() {
    let made = made(&typed(pi()), "");
    let mut labels = SELECTOR();
    labels["training.kubeflow.org/job-role"] = json!("launcher");
    assert_eq!(
        without_ours(made.launcher, "/spec/template/spec"),
        json!({
            "apiVersion": "batch/v1", "kind": "Job", "metadata": owned("pi-launcher", json!({ "app": "pi" })),
            "spec": {
                "ttlSecondsAfterFinished": 60,
                "podReplacementPolicy": "Failed",
                "template": {
                    "metadata": { "labels": labels },
                    "spec": {
                        "hostname": "pi-launcher",
                        "subdomain": "pi",
                        "restartPolicy": "OnFailure",
                        "containers": [{
                            "name": "mpi-launcher", "image": "example/pi",
                            "command": ["mpirun", "--allow-run-as-root"], "args": ["-n", "2", "/opt/pi"],
                            "env": vars(&[&OPENMPI, &PRTE, &NVIDIA]),
                            "volumeMounts": [
                                { "name": "ssh-auth", "mountPath": "/root/.ssh" },
                                { "name": "mpi-job-config", "mountPath": "/etc/mpi" },
                            ],
                        }],
                        "volumes": [
                            key_volume(json!(0o600)),
                            {
                                "name": "mpi-job-config",
                                "configMap": { "name": "pi-config", "items": [
                                    { "key": "hostfile", "path": "hostfile", "mode": 0o444 },
                                    { "key": "discover_hosts.sh", "path": "discover_hosts.sh", "mode": 0o555 },
                                ] },
                            },
                        ],
                    },
                },
            },
        })
    );
}

#[test]
fn i_09_the_other_implementations_have_their_own_variables_and_lines() {
    for (word, vars_of_it) in [
        (
            "Intel",
            vars(&[
                &[
                    ("K_MPI_JOB_ROLE", "launcher"),
                    ("I_MPI_HYDRA_HOST_FILE", "/etc/mpi/hostfile"),
                    (
                        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS",
                        "-o ConnectionAttempts=10",
                    ),
                    ("I_MPI_PERHOST", "1"),
                ],
                &NVIDIA,
            ]),
        ),
        (
            "MPICH",
            vars(&[
                &[
                    ("K_MPI_JOB_ROLE", "launcher"),
                    ("HYDRA_HOST_FILE", "/etc/mpi/hostfile"),
                    ("HYDRA_LAUNCH_EXTRA_ARGS", "-o ConnectionAttempts=10"),
                    ("HYDRA_LAUNCHER_EXTRA_ARGS", "-o ConnectionAttempts=10"),
                ],
                &NVIDIA,
            ]),
        ),
    ] {
        let mut job = pi();
        job["spec"]["mpiImplementation"] = json!(word);
        let made = made(&typed(job), "");
        assert_eq!(
            made.launcher["spec"]["template"]["spec"]["containers"][0]["env"], vars_of_it,
            "{word}"
        );
        assert_eq!(
            made.config["data"]["hostfile"],
            "pi-worker-0.pi.default.svc:1\npi-worker-1.pi.default.svc:1\n"
        );
        // Hydra's proxies find their launcher by it.
        let mut to_launcher = SELECTOR();
        to_launcher["training.kubeflow.org/job-role"] = json!("launcher");
        assert_eq!(
            made.services[1]["spec"],
            json!({ "clusterIP": "None", "selector": to_launcher, "publishNotReadyAddresses": true })
        );
        assert_eq!(made.services[1]["metadata"]["name"], "pi-launcher");
    }
}

#[test]
fn a_launcher_that_works_is_host_0_and_the_workers_follow() {
    let mut job = pi();
    job["spec"]["runLauncherAsWorker"] = json!(true);
    let made = made(&typed(job), "");
    let index = |object: &Value| {
        object["metadata"]["labels"]["training.kubeflow.org/replica-index"].clone()
    };
    let template = &made.launcher["spec"]["template"];
    assert_eq!(index(template), "0");
    assert_eq!(index(&made.workers[0]), "1");
    assert_eq!(index(&made.workers[1]), "2");
    assert_eq!(made.workers[0]["metadata"]["name"], "pi-worker-0");
    assert_eq!(
        template["spec"]["containers"][0]["env"],
        vars(&[&OPENMPI, &PRTE])
    );
    assert_eq!(made.services[0]["spec"]["publishNotReadyAddresses"], true);
    let hosts = made.config["data"]["hostfile"].as_str().unwrap();
    assert!(
        hosts.starts_with("pi-launcher.pi.default.svc slots=1\n"),
        "{hosts}"
    );
}

#[test]
fn what_the_user_wrote_comes_first_and_the_second_container_is_left_alone() {
    let mut job = pi();
    let spec = job["spec"].as_object_mut().unwrap();
    spec.insert("mpiImplementation".into(), json!("Intel"));
    spec.insert("slotsPerWorker".into(), json!(5));
    spec.insert("sshAuthMountPath".into(), json!("/home/mpiuser/.ssh"));
    spec.insert(
        "runPolicy".into(),
        json!({ "ttlSecondsAfterFinished": 1, "activeDeadlineSeconds": 2, "backoffLimit": 3, "suspend": true }),
    );
    for role in ["Launcher", "Worker"] {
        let pod = &mut job["spec"]["mpiReplicaSpecs"][role]["template"];
        pod["metadata"] =
            json!({ "labels": { "foo": "bar" }, "annotations": { "a": "b" }, "name": "dropped" });
        pod["spec"]["hostNetwork"] = json!(true);
        pod["spec"]["volumes"] = json!([{ "name": "own", "emptyDir": {} }]);
        let containers = pod["spec"]["containers"].as_array_mut().unwrap();
        containers[0]["env"] = json!([{ "name": "FOO", "value": "bar" }]);
        containers[0]["volumeMounts"] = json!([{ "name": "own", "mountPath": "/own" }]);
        containers[0]["command"] = json!(["/entrypoint.sh"]);
        containers.push(json!({ "name": "side", "image": "side" }));
    }
    let made = made(&typed(job), "");
    let job = &made.launcher["spec"];
    assert_eq!(
        (
            &job["ttlSecondsAfterFinished"],
            &job["activeDeadlineSeconds"],
            &job["backoffLimit"],
            &job["suspend"]
        ),
        (&json!(1), &json!(2), &json!(3), &json!(true))
    );
    for pod in [&job["template"], &made.workers[0]] {
        let (meta, spec) = (&pod["metadata"], &pod["spec"]);
        assert_eq!(meta["labels"]["foo"], "bar");
        assert_eq!(meta["annotations"]["a"], "b");
        assert_ne!(meta["name"], "dropped");
        assert_eq!(spec["dnsPolicy"], "ClusterFirstWithHostNet");
        let main = &spec["containers"][0];
        assert_eq!(main["env"][0]["name"], "FOO");
        assert_eq!(main["env"][1]["name"], "K_MPI_JOB_ROLE");
        assert_eq!(main["command"], json!(["/entrypoint.sh"]));
        assert_eq!(
            main["volumeMounts"][1],
            json!({ "name": "ssh-auth", "mountPath": "/home/mpiuser/.ssh" })
        );
        assert_eq!(
            spec["containers"][1],
            json!({ "name": "side", "image": "side" })
        );
        assert_eq!(spec["volumes"][0]["name"], "own");
        assert_eq!(spec["volumes"][1], key_volume(Value::Null));
    }
    let env = &job["template"]["spec"]["containers"][0]["env"];
    assert!(
        env.as_array()
            .unwrap()
            .contains(&json!({ "name": "I_MPI_PERHOST", "value": "5" }))
    );
}

#[test]
fn the_cluster_domain_completes_names_also_where_workers_search() {
    let made = made(&typed(pi()), "example.org");
    assert_eq!(
        made.config["data"]["hostfile"],
        "pi-worker-0.pi.default.svc.example.org slots=1\npi-worker-1.pi.default.svc.example.org slots=1\n"
    );
    assert_eq!(
        made.workers[0]["spec"]["dnsConfig"]["searches"],
        json!(["pi.default.svc.example.org"])
    );
}

#[test]
fn b_186_keys_are_as_narrow_as_their_reader_allows() {
    let mode = |path: &str, pod: Value, container: Value| {
        let mut job = pi();
        job["spec"]["sshAuthMountPath"] = json!(path);
        let spec = &mut job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"];
        spec["securityContext"] = pod;
        spec["containers"][0]["securityContext"] = container;
        made(&typed(job), "").workers[0]["spec"]["volumes"][0]["secret"]["defaultMode"].clone()
    };
    let (root, home) = ("/root/.ssh", "/home/me/.ssh");
    let no = || json!({});
    assert_eq!(mode(root, no(), no()), 0o600, "as published");
    assert_eq!(mode("/root/.ssh/", no(), no()), Value::Null, "as published");
    assert_eq!(mode(home, no(), no()), Value::Null, "as published");
    assert_eq!(
        mode(home, json!({ "runAsUser": 0 }), no()),
        Value::Null,
        "ranks may run as another user than the server"
    );
    assert_eq!(mode("/root/keys", json!({ "runAsUser": 0 }), no()), 0o600);
    assert_eq!(
        mode(
            root,
            json!({ "runAsUser": 0 }),
            json!({ "runAsUser": 1000 })
        ),
        Value::Null
    );
    assert_eq!(mode(root, no(), json!({ "runAsUser": 1000 })), Value::Null);
    assert_eq!(
        mode(root, json!({ "runAsNonRoot": true }), no()),
        Value::Null
    );
    assert_eq!(
        mode(home, json!({ "runAsUser": 1000, "fsGroup": 1000 }), no()),
        0o440
    );
    assert_eq!(
        mode(root, json!({ "runAsUser": 0, "fsGroup": 1000 }), no()),
        0o600
    );
}

#[test]
fn a_job_of_v1_runs_with_images_that_were_made_without_ssh_in_mind() {
    let mut job = pi();
    job["spec"]["submittedAs"] = json!("v1");
    let worker = "/spec/mpiReplicaSpecs/Worker/template/spec/containers/0";
    job.pointer_mut(worker).unwrap()["args"] = json!(["sleep", "1"]);
    let server = json!(["/usr/sbin/sshd", "-De", "-o", "StrictModes=no"]);
    for implementation in ["OpenMPI", "Intel", "MPICH"] {
        job["spec"]["mpiImplementation"] = json!(implementation);
        let made = made(&typed(job.clone()), "");
        let container = &made.workers[0]["spec"]["containers"][0];
        assert_eq!(container["command"], server);
        assert_eq!(container["args"], Value::Null);
        let env = &made.launcher["spec"]["template"]["spec"]["containers"][0]["env"];
        let ssh =
            "-o ConnectionAttempts=10 -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null";
        let given = env.as_array().unwrap().iter();
        let given = given.filter(|v| v["value"].as_str().is_some_and(|t| t.starts_with("-o ")));
        let given: Vec<&Value> = given.map(|v| &v["value"]).collect();
        assert!(
            !given.is_empty() && given.iter().all(|v| **v == json!(ssh)),
            "{given:?}"
        );
    }
    // The user's own command stays, with its arguments.
    job.pointer_mut(worker).unwrap()["command"] = json!(["run"]);
    let made = made(&typed(job), "");
    let container = &made.workers[0]["spec"]["containers"][0];
    assert_eq!(
        (&container["command"], &container["args"]),
        (&json!(["run"]), &json!(["sleep", "1"]))
    );
}

#[test]
fn what_users_set_for_open_mpi_5_and_hydra_stays() {
    for (implementation, name) in [
        ("OpenMPI", "PRTE_MCA_prte_default_hostfile"),
        ("OpenMPI", "PRTE_MCA_plm_ssh_args"),
        ("MPICH", "HYDRA_LAUNCHER_EXTRA_ARGS"),
    ] {
        let mut job = pi();
        job["spec"]["mpiImplementation"] = json!(implementation);
        let launcher = "/spec/mpiReplicaSpecs/Launcher/template/spec/containers/0";
        job.pointer_mut(launcher).unwrap()["env"] = json!([{ "name": name, "value": "mine" }]);
        let made = made(&typed(job), "");
        let env = &made.launcher["spec"]["template"]["spec"]["containers"][0]["env"];
        let env = env.as_array().unwrap().iter();
        let own: Vec<&Value> = env
            .filter(|v| v["name"] == name)
            .map(|v| &v["value"])
            .collect();
        assert_eq!(own, [&json!("mine")]);
    }
}

#[test]
fn only_v1_takes_a_clean_up_policy_that_nobody_published() {
    for (origin, word, taken) in [
        ("v2beta1", "Running", true),
        ("v2beta1", "Sometimes", false),
        ("v2beta1", "", false),
        ("v1", "Sometimes", true),
    ] {
        let mut job = pi();
        job["spec"]["submittedAs"] = json!(origin);
        job["spec"]["runPolicy"] = json!({ "cleanPodPolicy": word });
        let job = typed(job);
        let refused = Setup::of(&job).err().map(|e| e.to_string());
        assert_eq!(refused.is_none(), taken, "{origin} {word}: {refused:?}");
        let field = "spec.runPolicy.cleanPodPolicy: ";
        assert!(refused.is_none_or(|said| said.starts_with(field)));
    }
}

fn gate(job: &Value) -> Made {
    let gate = Gate {
        image: "ours",
        port: None,
    };
    with_gate(&typed(job.clone()), "", Some(gate))
}

#[test]
fn with_the_gate_the_launcher_has_the_gate_more_and_nothing_else() {
    let mut job = pi();
    let spec = &mut job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"];
    spec["initContainers"] = json!([{ "name": "own", "image": "own" }]);
    spec["containers"][0]["resources"] = json!({
        "requests": { "cpu": "100m", "memory": "64Mi", "nvidia.com/gpu": 1 },
        "limits": { "memory": "128Mi" },
    });
    let (without, with) = (made(&typed(job.clone()), ""), gate(&job));
    assert_eq!(with.workers, without.workers);
    let mut launcher = with.launcher;
    let pod = &mut launcher["spec"]["template"]["spec"];
    let added = pod["initContainers"].as_array_mut().unwrap().pop().unwrap();
    let volume = pod["volumes"].as_array_mut().unwrap().pop().unwrap();
    assert_eq!(launcher, without.launcher);
    assert_eq!(
        volume,
        json!({ "name": "trainyard-wait-for-hosts", "emptyDir": {} })
    );
    assert_eq!(
        added,
        json!({
            "name": "trainyard-wait-for-hosts",
            "image": "ours",
            "imagePullPolicy": "IfNotPresent",
            "command": ["/mpi-operator", "wait-for-hosts"],
            "args": ["--own=pi-launcher.pi.default.svc", "--port=22", "--port=2222"],
            "resources": {
                "requests": { "cpu": "100m", "memory": "64Mi" },
                "limits": { "memory": "128Mi" },
            },
            "securityContext": {
                "allowPrivilegeEscalation": false,
                "capabilities": { "drop": ["ALL"] },
                "runAsNonRoot": true,
                "runAsUser": 65532,
                "seccompProfile": { "type": "RuntimeDefault" },
            },
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [
                { "name": "mpi-job-config", "mountPath": "/etc/mpi" },
                { "name": "trainyard-wait-for-hosts", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount" },
            ],
        })
    );
}

#[test]
fn the_gate_waits_for_what_the_implementation_and_the_launcher_need() {
    let args = |job: &Value| {
        let launcher = gate(job).launcher;
        launcher["spec"]["template"]["spec"]["initContainers"][0]["args"].clone()
    };
    let mut hydra = pi();
    hydra["spec"]["mpiImplementation"] = json!("MPICH");
    assert!(
        args(&hydra)
            .as_array()
            .unwrap()
            .contains(&json!("--resolves=pi-launcher.default.svc"))
    );
    let mut elastic = pi();
    elastic["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]["args"] =
        json!(["--host-discovery-script", "/etc/mpi/discover_hosts.sh"]);
    assert!(args(&elastic).as_array().unwrap().contains(&json!("--any")));
    let mut alone = pi();
    alone["spec"]["mpiReplicaSpecs"]
        .as_object_mut()
        .unwrap()
        .remove("Worker");
    assert_eq!(args(&alone), Value::Null);
}

#[test]
fn a_job_of_v1_can_name_its_main_container_and_others_cant() {
    let with = |origin: &str| {
        let mut job = pi();
        job["spec"]["submittedAs"] = json!(origin);
        job["spec"]["mainContainer"] = json!("main");
        for role in ["Launcher", "Worker"] {
            let spec = &mut job["spec"]["mpiReplicaSpecs"][role]["template"]["spec"];
            spec["containers"] = json!([
                { "name": "side", "image": "side" },
                { "name": "main", "image": "main", "env": [{ "name": "A", "value": "1" }] },
            ]);
        }
        let made = made(&typed(job), "");
        [
            made.launcher["spec"]["template"]["spec"]["containers"].clone(),
            made.workers[0]["spec"]["containers"].clone(),
        ]
    };
    for (origin, main, other) in [("v1", 1, 0), ("v2beta1", 0, 1)] {
        for containers in with(origin) {
            let role = containers[main]["env"].as_array().unwrap();
            assert!(
                role.iter().any(|v| v["name"] == "K_MPI_JOB_ROLE"),
                "{origin}"
            );
            assert_eq!(containers[main]["volumeMounts"][0]["name"], "ssh-auth");
            assert_eq!(containers[other]["volumeMounts"], Value::Null);
        }
        let [_, worker] = with(origin);
        let command = worker[main]["command"].as_array().unwrap();
        assert_eq!(command[..2], [json!("/usr/sbin/sshd"), json!("-De")]);
        assert_eq!(worker[other]["command"], Value::Null);
    }
}
