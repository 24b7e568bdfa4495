//! Defaults, and validation errors.

use serde_json::{Value, json};

use mpi_operator::api::Origin;
use mpi_operator::setup::Implementation;
use mpi_operator::{MPIJob, Setup};
use training_api::RestartPolicy;

fn job(name: &str, spec: impl Into<Value>) -> MPIJob {
    let spec: Value = spec.into();
    serde_json::from_value(json!({
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": { "name": name, "namespace": "default" },
        "spec": spec,
    }))
    .unwrap()
}

fn template() -> Value {
    json!({ "spec": { "containers": [{ "name": "any", "image": "any" }] } })
}

fn roles(launcher: Value, worker: Value) -> Value {
    let mut map = json!({});
    for (key, mut role) in [("Launcher", launcher), ("Worker", worker)] {
        if !role.is_null() {
            if role.get("template").is_none() {
                role["template"] = template();
            }
            map[key] = role;
        }
    }
    json!({ "mpiReplicaSpecs": map })
}

fn refusal(job: &MPIJob) -> String {
    Setup::of(job).unwrap_err().to_string()
}

#[test]
fn an_empty_job_gets_the_published_defaults() {
    let job = job("pi", roles(json!({}), json!({ "replicas": 2 })));
    let setup = Setup::of(&job).unwrap();
    assert_eq!(
        (setup.slots, setup.key_path, setup.implementation),
        (1, "/root/.ssh", Implementation::OpenMpi)
    );
    assert!(!setup.waits_for_workers && !setup.launcher_works);
    assert_eq!(
        (setup.launcher.replicas, setup.launcher.restart),
        (1, RestartPolicy::OnFailure)
    );
    let workers = setup.workers.unwrap();
    assert_eq!(
        (workers.replicas, workers.restart),
        (2, RestartPolicy::Never)
    );
}

#[test]
fn explicit_values_are_kept() {
    for (word, implementation) in [
        ("OpenMPI", Implementation::OpenMpi),
        ("Intel", Implementation::Intel),
        ("MPICH", Implementation::Mpich),
    ] {
        let mut spec = roles(
            json!({ "restartPolicy": "Never" }),
            json!({ "replicas": 3, "restartPolicy": "OnFailure" }),
        );
        spec["mpiImplementation"] = json!(word);
        spec["slotsPerWorker"] = json!(8);
        spec["sshAuthMountPath"] = json!("/home/mpiuser/.ssh");
        spec["runLauncherAsWorker"] = json!(true);
        let job = job("pi", spec);
        let setup = Setup::of(&job).unwrap();
        assert_eq!(setup.implementation, implementation);
        assert_eq!((setup.slots, setup.key_path), (8, "/home/mpiuser/.ssh"));
        assert!(setup.launcher_works);
        assert_eq!(setup.launcher.restart, RestartPolicy::Never);
        assert_eq!(setup.workers.unwrap().restart, RestartPolicy::OnFailure);
    }
}

#[test]
fn b_058_a_job_without_workers_runs() {
    let mut spec = roles(json!({}), Value::Null);
    spec["runLauncherAsWorker"] = json!(true);
    let job = job("pi", spec);
    let setup = Setup::of(&job).unwrap();
    assert_eq!((setup.worker_count(), setup.launcher_works), (0, true));
}

#[test]
fn b_183_a_policy_of_creation_that_nobody_published_waits_and_is_told() {
    for (word, waits, odd) in [
        ("AtStartup", false, false),
        ("WaitForWorkersReady", true, false),
        ("atStartup", true, true),
        ("", true, true),
    ] {
        let mut spec = roles(json!({}), json!({ "replicas": 1 }));
        spec["launcherCreationPolicy"] = json!(word);
        let job = job("pi", spec);
        assert_eq!(Setup::of(&job).unwrap().waits_for_workers, waits, "{word}");
        assert_eq!(Setup::policy_is_odd(&job), odd, "{word}");
    }
}

#[test]
fn b_057_launcher_and_workers_are_counted() {
    let cases = [
        (
            roles(Value::Null, json!({ "replicas": 1 })),
            "spec.mpiReplicaSpecs[Launcher]",
        ),
        (
            roles(json!({ "replicas": 2 }), Value::Null),
            "spec.mpiReplicaSpecs[Launcher].replicas",
        ),
        (
            roles(json!({}), json!({ "replicas": 0 })),
            "spec.mpiReplicaSpecs[Worker].replicas",
        ),
        (
            roles(json!({}), json!({})),
            "spec.mpiReplicaSpecs[Worker].replicas",
        ),
        (
            roles(json!({}), json!({ "replicas": -1 })),
            "spec.mpiReplicaSpecs[Worker].replicas",
        ),
        (
            roles(json!({}), json!({ "template": {} })),
            "spec.mpiReplicaSpecs[Worker].replicas",
        ),
    ];
    for (spec, field) in cases {
        let said = refusal(&job("pi", spec.clone()));
        assert!(said.starts_with(field), "{said} for {spec}");
    }
}

#[test]
fn b_082_v2beta1_has_two_restart_policies() {
    for word in ["Always", "ExitCode", "never"] {
        let spec = roles(json!({ "restartPolicy": word }), Value::Null);
        let said = refusal(&job("pi", spec));
        assert!(
            said.starts_with("spec.mpiReplicaSpecs[Launcher].restartPolicy"),
            "{said}"
        );
        assert!(said.contains("\"Never\", \"OnFailure\""), "{said}");
    }
}

#[test]
fn an_implementation_that_nobody_published_is_refused() {
    let mut spec = roles(json!({}), Value::Null);
    spec["mpiImplementation"] = json!("MVAPICH");
    let said = refusal(&job("pi", spec));
    assert!(said.starts_with("spec.mpiImplementation"), "{said}");
}

#[test]
fn b_181_keys_need_a_directory_of_their_own() {
    for path in ["", "keys", "/", "//"] {
        let mut spec = roles(json!({}), Value::Null);
        spec["sshAuthMountPath"] = json!(path);
        let said = refusal(&job("pi", spec));
        assert!(said.starts_with("spec.sshAuthMountPath"), "{path}: {said}");
    }
    let with = |role: &str, key: &str, value: Value| {
        let mut spec = roles(json!({}), json!({ "replicas": 1 }));
        let pod = &mut spec["mpiReplicaSpecs"][role]["template"]["spec"];
        match key {
            "volumes" => pod["volumes"] = value,
            _ => pod["containers"][0]["volumeMounts"] = value,
        }
        job("pi", spec)
    };
    let mount = |path: &str| json!([{ "name": "own", "mountPath": path }]);
    for (role, taken) in [
        ("Worker", "/root/.ssh"),
        ("Launcher", "/root/.ssh"),
        ("Launcher", "/etc/mpi"),
    ] {
        let said = refusal(&with(role, "mounts", mount(taken)));
        let field = format!(
            "spec.mpiReplicaSpecs[{role}].template.spec.containers[0].volumeMounts[0].mountPath"
        );
        assert!(said.starts_with(&field), "{said}");
    }
    assert!(Setup::of(&with("Worker", "mounts", mount("/etc/mpi"))).is_ok());
    let volume = |name: &str| json!([{ "name": name, "emptyDir": {} }]);
    for (role, taken) in [("Worker", "ssh-auth"), ("Launcher", "mpi-job-config")] {
        let said = refusal(&with(role, "volumes", volume(taken)));
        let field = format!("spec.mpiReplicaSpecs[{role}].template.spec.volumes[0].name");
        assert!(said.starts_with(&field), "{said}");
    }
}

#[test]
fn names_of_hosts_are_labels_of_63_characters() {
    let workers = |n: u32| roles(json!({}), json!({ "replicas": n }));
    let long = "a".repeat(54);
    assert!(Setup::of(&job(&long, workers(10))).is_ok());
    let said = refusal(&job(&long, workers(1000)));
    assert!(
        said.starts_with("metadata.name") && said.contains("at most 52"),
        "{said}"
    );
    assert!(
        refusal(&job(&"a".repeat(55), roles(json!({}), Value::Null))).starts_with("metadata.name")
    );
    for name in ["1-foo", "a.b", "Upper"] {
        assert!(
            refusal(&job(name, workers(1))).starts_with("metadata.name"),
            "{name}"
        );
    }
}

#[test]
fn jobs_of_v1_mean_what_they_meant_there() {
    let v1 = |mut spec: Value| {
        spec["submittedAs"] = json!("v1");
        job("pi", spec)
    };
    let none = v1(roles(json!({}), json!({})));
    let setup = Setup::of(&none).unwrap();
    assert_eq!(setup.origin, Origin::V1);
    assert_eq!(setup.worker_count(), 0);
    assert_eq!(setup.launcher.restart, RestartPolicy::Never);
    for word in ["Always", "OnFailure", "Never", "ExitCode"] {
        let job = v1(roles(json!({ "restartPolicy": word }), Value::Null));
        assert!(Setup::of(&job).is_ok(), "{word}");
    }
    let mut gpus = roles(json!({}), json!({ "replicas": 1 }));
    gpus["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]["resources"] =
        json!({ "limits": { "nvidia.com/gpu": 1 } });
    assert!(Setup::of(&v1(gpus.clone())).unwrap().launcher_works);
    assert!(!Setup::of(&job("pi", gpus)).unwrap().launcher_works);
    let mut odd = roles(json!({}), Value::Null);
    odd["mpiReplicaSpecs"]["Chief"] = json!({ "template": template() });
    assert!(refusal(&v1(odd.clone())).starts_with("spec.mpiReplicaSpecs"));
    assert_eq!(
        Setup::of(&job("pi", odd)).unwrap().unknown,
        ["Chief"],
        "ignored, as published"
    );
}
