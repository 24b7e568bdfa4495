//! What run policies and pod templates mean where a Job runs the launcher: deadlines, the container that counts, and what of a
//! template has no effect.

use crate::scene::{KindWorld, Scene, give_up, give_up_at_limit, job, pi};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use mpi_operator::Mpi;
use serde_json::{Value, json};
use training_core::{BatchEnd, ObjectKind, PodPhase, PodView, Trouble};
use training_testkit::validation::MPI_VERSIONS;
use training_testkit::world::World;

const LAUNCHER: &str = "pi-launcher";
const WORKER: &str = "pi-worker-0";
const ROLES: [&str; 2] = ["Launcher", "Worker"];

/// A job of this version of the API, changed.
fn of(version: &str, change: impl FnOnce(&mut Value)) -> KindWorld {
    let job = job(|job| {
        job["spec"]["submittedAs"] = json!(version);
        change(job);
    });
    World::new(Mpi::default(), job)
}

/// Changes the templates of both roles.
fn templates(job: &mut Value, change: impl Fn(&mut Value)) {
    for role in ROLES {
        change(&mut job["spec"]["mpiReplicaSpecs"][role]["template"]);
    }
}

/// What a job's pods are made from, by name: its workers' own, and the template of the launcher's Job.
fn pods(mut world: KindWorld) -> Vec<(String, Value)> {
    let made = crate::taken::made(&mut world);
    let objects = made.iter().map(crate::taken::object);
    let pods = objects.filter_map(|object| {
        let name = object["metadata"]["name"].as_str()?.to_owned();
        match object["kind"].as_str()? {
            "Pod" => Some((name, object)),
            "Job" => Some((name, object["spec"]["template"].clone())),
            _ => None,
        }
    });
    let pods: Vec<_> = pods.collect();
    let names: Vec<&str> = pods.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, [WORKER, "pi-worker-1", LAUNCHER]);
    pods
}

fn condition(world: &KindWorld, type_: &str) -> (String, String) {
    let all = world.status().conditions.into_iter();
    let mut of_type = all.filter(|c| c.type_ == type_ && c.status == "True");
    let found = of_type.next().unwrap_or_else(|| panic!("not {type_}"));
    (
        found.reason.unwrap_or_default(),
        found.message.unwrap_or_default(),
    )
}

#[test]
fn b_038_b_039_names_owners_finalizers_and_our_labels_in_a_template_have_no_effect_and_are_told() {
    let own = json!({
        "name": "mine", "namespace": "other", "finalizers": ["e.com/f"],
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}],
        "labels": {
            "training.kubeflow.org/operator-name": "x", "training.kubeflow.org/job-name": "x",
            "training.kubeflow.org/replica-type": "x", "training.kubeflow.org/replica-index": "9",
            "training.kubeflow.org/job-role": "x", "team": "a",
        },
        "annotations": {"note": "b"},
    });
    let theirs = json!({"labels": {"team": "a"}, "annotations": {"note": "b"}});
    for version in MPI_VERSIONS {
        let with = |metadata: &Value| {
            of(version, |job| {
                templates(job, |template| template["metadata"] = metadata.clone());
            })
        };
        assert_eq!(pods(with(&own)), pods(with(&theirs)), "{version}");
        let mut world = with(&own);
        world.settle();
        let told = world.events();
        for role in ROLES {
            for ignored in [
                "labels: training.kubeflow.org/operator-name is the operator's own",
                "labels: training.kubeflow.org/job-role is the operator's own",
                ": pods get their names from the job",
                "finalizers are ignored",
            ] {
                let path = format!("spec.mpiReplicaSpecs[{role}].template.metadata");
                let is_it = |e: &&String| {
                    e.starts_with(&format!("Warning SettingIgnored: {path}")) && e.contains(ignored)
                };
                let times = told.iter().filter(is_it).count();
                assert_eq!(times, 1, "{version} {role} {ignored}: {told:#?}");
            }
        }
    }
}

#[test]
fn a_restart_policy_in_the_launchers_template_gets_the_published_warning_of_its_version() {
    for (version, reason, is_replaced) in [
        (
            "v1",
            "SettedPodTemplateRestartPolicy",
            "will be overwritten",
        ),
        ("v2beta1", "SetPodTemplateRestartPolicy", "overridden"),
    ] {
        let mut world = of(version, |job| {
            templates(job, |template| {
                template["spec"]["restartPolicy"] = json!("Never");
            });
        });
        world.settle();
        let mut events = world.events();
        events.retain(|event| event.contains("PodTemplateRestartPolicy"));
        let warning = format!(
            "Warning {reason}: Restart policy in pod template {is_replaced} by restart policy in replica spec"
        );
        assert_eq!(events, [warning], "{version}");
    }
}

#[test]
fn edited_limits_apply_to_a_running_launcher() {
    for version in MPI_VERSIONS {
        let mut world = of(version, |job| {
            job["spec"]["runPolicy"] = json!({"activeDeadlineSeconds": 60});
        })
        .started();
        let limits = |world: &KindWorld| {
            let job = world.object(ObjectKind::Job, LAUNCHER).unwrap();
            json!([
                job["spec"]["activeDeadlineSeconds"],
                job["spec"]["backoffLimit"]
            ])
        };
        let before = limits(&world);
        assert_eq!(before[0], 60, "{version}");
        for (policy, expected) in [
            (
                json!({"activeDeadlineSeconds": 600, "backoffLimit": 3}),
                json!([600, 3]),
            ),
            (json!({"backoffLimit": 3}), json!([null, 3])),
            (json!({}), json!([null, 3])),
        ] {
            world.set("/spec/runPolicy", policy.clone());
            world.writes.clear();
            world.settle();
            assert_eq!(limits(&world), expected, "{version} {policy}");
            let changes = world.writes.iter().filter(|w| w.starts_with("change Job"));
            let expected = usize::from(policy != json!({}));
            assert_eq!(
                changes.count(),
                expected,
                "{version} {policy}: {:?}",
                world.writes
            );
        }
        // An ended Job stays as it is.
        world.complete_batch(LAUNCHER);
        world.settle();
        world.set("/spec/runPolicy", json!({"activeDeadlineSeconds": 5}));
        world.settle();
        assert_eq!(limits(&world), json!([null, 3]), "{version}");
    }
}

/// The controller of Jobs ends the launcher's Job if its deadline is over. True if it is.
fn deadline_strikes(world: &mut KindWorld, started: Timestamp) -> bool {
    let job = world.object(ObjectKind::Job, LAUNCHER).unwrap();
    let deadline = job["spec"]["activeDeadlineSeconds"].as_i64();
    let over = deadline.is_some_and(|most| (world.now - started).get_seconds() >= most);
    if over {
        world.lose_living_batch_pods();
        let text = "Job was active longer than specified deadline";
        give_up(world, "DeadlineExceeded", text);
    }
    over
}

#[test]
fn b_088_a_quiet_job_ends_at_its_deadline_which_is_that_of_the_launchers_job() {
    for version in MPI_VERSIONS {
        for readable in [true, false] {
            let mut world = of(version, |job| {
                job["spec"]["runPolicy"] =
                    json!({"activeDeadlineSeconds": 60, "cleanPodPolicy": "Running"});
            })
            .started();
            let started = world.now;
            if !readable {
                world.set("/spec/slotsPerWorker", json!(-1));
                world.settle();
                assert_eq!(condition(&world, "Stalled").0, "InvalidSpec");
            }
            world.tick(59);
            assert!(!deadline_strikes(&mut world, started));
            assert!(world.plan().is_idle());
            world.tick(1);
            assert!(deadline_strikes(&mut world, started));
            world.settle();
            let (reason, message) = condition(&world, "Failed");
            assert_eq!(reason, "DeadlineExceeded", "{version}");
            assert_eq!(message, "Job was active longer than specified deadline");
            assert_eq!(world.durable_state().completed, Some(world.now));
            assert!(world.pods().all(|(_, p)| p.terminating), "{version}");
        }
    }
}

#[test]
fn b_094_times_in_the_future_are_waited_for() {
    let ahead = |world: &KindWorld| world.now + SignedDuration::from_secs(30);
    let waits = |world: &mut KindWorld| {
        world.view_all();
        (world.plan().requeue_at.unwrap() - world.now).get_seconds()
    };
    // The clock of the controller of Jobs is ahead when a Job ends.
    let ttl = |job: &mut Value| {
        job["spec"]["runPolicy"]["ttlSecondsAfterFinished"] = json!(60);
    };
    let mut world = of("v2beta1", ttl).started();
    let at = Some(ahead(&world));
    world.change_batch(LAUNCHER, |b| b.end = Some(BatchEnd::Complete { at }));
    world.settle();
    assert_eq!(world.durable_state().completed, at);
    assert_eq!(waits(&mut world), 91);
    world.tick(90);
    world.settle();
    assert_eq!(world.object_names().len(), 4);
    world.tick(1);
    world.settle();
    assert_eq!(world.object_names(), ["Secret pi-ssh"]);
    // And when it begins, with a pod that doesn't come.
    let mut world = of("v2beta1", |_| ());
    world.settle();
    world.run_all();
    let since = Some(ahead(&world));
    world.change_batch(LAUNCHER, |b| (b.started, b.since) = (true, since));
    world.settle();
    assert_eq!(world.conditions(), ["Created=True"]);
    assert_eq!(waits(&mut world), 60);
}

#[test]
fn b_116_the_users_variables_come_before_ours_and_may_refer_to_them() {
    let text = "$(K_MPI_JOB_ROLE)";
    for version in MPI_VERSIONS {
        let made = pods(of(version, |job| {
            templates(job, |template| {
                let main = &mut template["spec"]["containers"][0];
                main["command"] = json!(["run"]);
                main["args"] = json!([text]);
                main["env"] = json!([
                    {"name": "MINE", "value": text},
                    {"name": "K_MPI_JOB_ROLE", "value": "mine"},
                ]);
            });
        }));
        for (name, pod) in made {
            let main = &pod["spec"]["containers"][0];
            let env = main["env"].as_array().unwrap();
            assert_eq!(env[0], json!({"name": "MINE", "value": text}), "{name}");
            let role = if name == LAUNCHER {
                "launcher"
            } else {
                "worker"
            };
            let ours: Vec<&Value> = env
                .iter()
                .filter(|e| e["name"] == "K_MPI_JOB_ROLE")
                .collect();
            let expected = json!({"name": "K_MPI_JOB_ROLE", "value": role});
            assert_eq!(ours, [&expected], "{name}: once");
            assert_eq!(
                main["args"],
                json!([text]),
                "{name}: the kubelet fills it in"
            );
        }
    }
}

#[test]
fn b_126_the_launchers_main_container_decides_whatever_sidecars_do() {
    let sidecar = json!({"name": "sidecar", "image": "any"});
    let main = json!({"name": "main", "image": "any"});
    let mut world = of("v1", |job| {
        job["spec"]["mainContainer"] = json!("main");
        let launcher = &mut job["spec"]["mpiReplicaSpecs"]["Launcher"];
        launcher["restartPolicy"] = json!("ExitCode");
        launcher["template"]["spec"]["containers"] = json!([sidecar, main]);
    });
    world.settle();
    let job = world.object(ObjectKind::Job, LAUNCHER).unwrap();
    let rules = job["spec"]["podFailurePolicy"]["rules"].as_array().unwrap();
    let fails: Vec<&Value> = rules.iter().filter(|r| r["action"] == "FailJob").collect();
    assert_eq!(fails.len(), 1, "{rules:?}");
    assert_eq!(fails[0]["onExitCodes"]["containerName"], "main");
}

#[test]
fn f_60_the_job_of_a_v1_launcher_ignores_disruptions_except_with_on_failure() {
    for (version, policy, ignores) in [
        ("v1", "Never", true),
        ("v1", "ExitCode", true),
        ("v1", "OnFailure", false),
        // The published Job has no such policy.
        ("v2beta1", "Never", false),
    ] {
        let mut world = of(version, |job| {
            job["spec"]["mpiReplicaSpecs"]["Launcher"]["restartPolicy"] = json!(policy);
        });
        world.settle();
        let job = world.object(ObjectKind::Job, LAUNCHER).unwrap();
        let first = &job["spec"]["podFailurePolicy"]["rules"][0];
        let pattern = json!([{"type": "DisruptionTarget", "status": "True"}]);
        let ignored = first["action"] == "Ignore" && first["onPodConditions"] == pattern;
        assert_eq!(ignored, ignores, "{version} {policy}: {first}");
    }
}

#[test]
fn b_126_the_launchers_end_wins_over_that_of_a_worker_in_the_same_snapshot() {
    for (version, policy) in [("v2beta1", "Never"), ("v1", "Never"), ("v1", "ExitCode")] {
        let started = || {
            let world = of(version, |job| {
                job["spec"]["mpiReplicaSpecs"]["Worker"]["restartPolicy"] = json!(policy);
            });
            world.started()
        };
        let mut world = started();
        world.fail(WORKER, 1);
        world.complete_batch(LAUNCHER);
        world.settle();
        let last = world.conditions().pop().unwrap();
        assert_eq!(last, "Succeeded=True", "{version} {policy}");
        // Workers that end well end nothing.
        let mut world = started();
        world.finish(WORKER);
        world.finish("pi-worker-1");
        world.settle();
        assert!(!world.durable_state().is_finished(), "{version} {policy}");
    }
}

/// A pod is over its own deadline.
fn is_too_late(pod: &mut PodView) {
    (pod.phase, pod.ready) = (PodPhase::Failed, false);
    pod.trouble = Some(Box::new(Trouble {
        reason: "DeadlineExceeded".to_owned(),
        message: "Pod was active on the node longer than the specified deadline".to_owned(),
        ..Trouble::default()
    }));
}

#[test]
fn b_129_a_deadline_within_a_template_is_its_pods_and_the_job_shows_it_as_the_reason() {
    let timed = || {
        of("v2beta1", |job| {
            templates(job, |template| {
                template["spec"]["activeDeadlineSeconds"] = json!(60);
            });
        })
    };
    for (name, pod) in pods(timed()) {
        assert_eq!(pod["spec"]["activeDeadlineSeconds"], 60, "{name}");
    }
    let mut world = timed().started();
    let job = world.object(ObjectKind::Job, LAUNCHER).unwrap();
    assert_eq!(job["spec"].get("activeDeadlineSeconds"), None);
    let shown = |world: &KindWorld| {
        let failure = world.status().last_failure.unwrap();
        (failure.pod, failure.reason.unwrap_or_default())
    };
    let late = "DeadlineExceeded".to_owned();
    // A worker is made again, and the job goes on.
    world.change(WORKER, is_too_late);
    world.settle();
    assert_eq!(shown(&world), (WORKER.to_owned(), late.clone()));
    assert_eq!(world.pod(WORKER).unwrap().phase, PodPhase::Pending);
    assert_eq!(world.conditions(), ["Created=True", "Running=True"]);
    // A launcher is tried again by its Job, as often as that may.
    let pod = world.batch_pods().next().unwrap().0.to_owned();
    world.change_batch_pod(is_too_late);
    world.change_batch(LAUNCHER, |b| b.failed = 1);
    world.settle();
    assert!(!world.durable_state().is_finished());
    give_up_at_limit(&mut world);
    world.settle();
    let (reason, _) = condition(&world, "Failed");
    assert_eq!(reason, "BackoffLimitExceeded/DeadlineExceeded");
    assert_eq!(shown(&world), (pod, late));
}

#[test]
fn b_143_workers_that_are_added_get_pods_and_stand_in_the_host_file() {
    let mut world = crate::scene::world(pi(2).without("Worker")).started();
    assert_eq!(world.conditions(), ["Created=True", "Running=True"]);
    let worker = pi(2).build()["spec"]["mpiReplicaSpecs"]["Worker"].clone();
    world.edit(|job| job["spec"]["mpiReplicaSpecs"]["Worker"] = worker);
    world.writes.clear();
    world.settle();
    let made: Vec<&String> = world
        .writes
        .iter()
        .filter(|w| w.starts_with("create"))
        .collect();
    assert_eq!(made, ["create pod pi-worker-0", "create pod pi-worker-1"]);
    assert!(world.writes.iter().all(|w| !w.starts_with("delete")));
    let config = world.object(ObjectKind::ConfigMap, "pi-config").unwrap();
    let hosts = config["data"]["hostfile"].as_str().unwrap();
    assert_eq!(
        hosts,
        "pi-worker-0.pi.ns1.svc slots=1\npi-worker-1.pi.ns1.svc slots=1\n"
    );
}
