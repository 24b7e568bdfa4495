//! The two published examples in full: a job of one Master and two Workers, and an elastic one of Workers only. Every label, every
//! variable in order, every port, and the status at each point of the life cycle, written by hand.

use crate::scene::{KindWorld, Scene, el, pt, typed, world};
use pytorch_operator::PyTorch;
use serde_json::{Value, json};
use training_testkit::builders::Job;
use training_testkit::scene::{first_objects, title};
use training_testkit::world::Move;

const L: &str = "training.kubeflow.org";

/// Returns the objects that the first plan creates, in order, each with its `Kind name`.
fn objects(job: Job) -> Vec<(String, Value)> {
    let objects = first_objects(&PyTorch::default(), &typed(job));
    objects.into_iter().map(|o| (title(&o), o)).collect()
}

fn labels(job: &str, role: &str, index: &str) -> Value {
    json!({
        format!("{L}/operator-name"): "pytorchjob-controller",
        format!("{L}/job-name"): job,
        format!("{L}/replica-type"): role,
        format!("{L}/replica-index"): index,
    })
}

fn metadata(job: &str, role: &str, index: &str) -> Value {
    json!({
        "name": format!("{job}-{role}-{index}"), "namespace": "ns1", "labels": labels(job, role, index),
        "ownerReferences": [{
            "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": job,
            "uid": "00000000-0000-0000-0000-000000000007", "controller": true, "blockOwnerDeletion": true,
        }],
    })
}

/// One replica's pod, without the init container.
fn pod(job: &str, role: &str, index: &str, is_master: bool, env: &[(&str, &str)]) -> Value {
    let mut metadata = metadata(job, role, index);
    metadata["annotations"] = json!({"trainyard.dev/attempt": "0.0"});
    if is_master {
        metadata["labels"][format!("{L}/job-role")] = json!("master");
    }
    let env: Vec<Value> = env
        .iter()
        .map(|(n, v)| json!({"name": n, "value": v}))
        .collect();
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
        "spec": {
            "restartPolicy": "OnFailure",
            "containers": [{
                "name": "pytorch", "image": "trainyard.test/train:1", "env": env,
                "ports": [{"name": "pytorchjob-port", "containerPort": 23456}],
                "terminationMessagePolicy": "FallbackToLogsOnError",
            }],
        },
    })
}

fn service(job: &str, role: &str, index: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata(job, role, index),
        "spec": {
            "clusterIP": "None", "publishNotReadyAddresses": true, "selector": labels(job, role, index),
            "ports": [{"name": "pytorchjob-port", "port": 23456}],
        },
    })
}

/// Removes a pod's init container and returns its name and the host that it waits for.
fn init_of(pod: &mut Value) -> Option<(String, String)> {
    let init = pod["spec"]
        .as_object_mut()
        .unwrap()
        .remove("initContainers")?;
    let [init] = init.as_array().unwrap().as_slice() else {
        panic!("{init:#}")
    };
    // The command: a shell and its flag, the script, and the host as its argument.
    let text = |v: &Value| v.as_str().unwrap().to_owned();
    Some((text(&init["name"]), text(&init["command"][3])))
}

/// Checks the six objects of the example `pt` with this many processes per node.
fn check_pt(job: Job, nproc: &str, world_size: &str) {
    let mut made = objects(job);
    let names: Vec<&str> = made.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "Service pt-master-0",
            "Pod pt-master-0",
            "Service pt-worker-0",
            "Pod pt-worker-0",
            "Service pt-worker-1",
            "Pod pt-worker-1",
        ]
    );
    let replicas = [
        ("master", "0", "0"),
        ("worker", "0", "1"),
        ("worker", "1", "2"),
    ];
    for (pair, (role, index, rank)) in made.chunks_mut(2).zip(replicas) {
        assert_eq!(pair[0].1, service("pt", role, index));
        let env = [
            ("PYTHONUNBUFFERED", "1"),
            ("MASTER_PORT", "23456"),
            ("PET_MASTER_PORT", "23456"),
            ("MASTER_ADDR", "pt-master-0"),
            ("PET_MASTER_ADDR", "pt-master-0"),
            ("WORLD_SIZE", world_size),
            ("RANK", rank),
            ("PET_NODE_RANK", rank),
            ("PET_NPROC_PER_NODE", nproc),
            ("PET_NNODES", "3"),
        ];
        let waits = init_of(&mut pair[1].1);
        let expected =
            (role == "worker").then(|| ("init-pytorch".to_owned(), "pt-master-0".to_owned()));
        assert_eq!(waits, expected, "{role}");
        assert_eq!(pair[1].1, pod("pt", role, index, role == "master", &env));
    }
}

#[test]
fn golden_the_objects_of_a_master_and_two_workers_are_these_six() {
    check_pt(pt(2), "auto", "3");
}

#[test]
fn golden_four_processes_per_node_change_two_variables_only() {
    check_pt(pt(2).set("/spec/nprocPerNode", "4"), "4", "12");
}

#[test]
fn golden_the_objects_of_an_elastic_job_are_these_four() {
    let policy =
        json!({"minReplicas": 1, "maxReplicas": 3, "maxRestarts": 5, "rdzvBackend": "c10d"});
    let made = objects(el(2, policy));
    let env = [
        ("PYTHONUNBUFFERED", "1"),
        ("PET_NPROC_PER_NODE", "auto"),
        ("PET_RDZV_ENDPOINT", "el-worker-0:23456"),
        ("PET_RDZV_BACKEND", "c10d"),
        ("PET_NNODES", "1:3"),
        ("PET_MAX_RESTARTS", "5"),
    ];
    let expected = [
        (
            "Service el-worker-0".to_owned(),
            service("el", "worker", "0"),
        ),
        (
            "Pod el-worker-0".to_owned(),
            pod("el", "worker", "0", true, &env),
        ),
        (
            "Service el-worker-1".to_owned(),
            service("el", "worker", "1"),
        ),
        (
            "Pod el-worker-1".to_owned(),
            pod("el", "worker", "1", false, &env),
        ),
    ];
    assert_eq!(made, expected);
}

/// The status of a job at several points, without Trainyard's additions: `ready`, `restarts`, `finishedIndices`.
struct Moments {
    world: KindWorld,
    job: &'static str,
    /// The job's name as its messages spell it.
    called: &'static str,
    conditions: Vec<Value>,
}

impl Moments {
    fn begin(job: &'static str, called: &'static str, built: Job) -> Self {
        let mut world = world(built);
        world.settle();
        let mut moments = Self {
            world,
            job,
            called,
            conditions: Vec::new(),
        };
        // The message of the first condition always has the short name.
        let message = format!("PyTorchJob {job} is created.");
        moments.condition("Created", &message);
        moments
    }

    fn condition(&mut self, type_: &str, message: &str) {
        let now = self.world.now.to_string();
        self.conditions.push(json!({
            "type": type_, "status": "True", "reason": format!("PyTorchJob{type_}"), "message": message,
            "lastUpdateTime": now, "lastTransitionTime": now,
        }));
    }

    fn runs(&mut self) {
        let message = format!("PyTorchJob {} is running.", self.called);
        self.condition("Running", &message);
    }

    fn succeeds(&mut self, message: &str) {
        let now = self.world.now.to_string();
        let running = self.conditions.last_mut().unwrap();
        running["status"] = json!("False");
        running["lastTransitionTime"] = json!(now);
        self.condition("Succeeded", message);
    }

    fn expect(&self, counts: &[(&str, Value)], times: Value) {
        let mut status = self.world.status_json();
        for ours in [
            "observedGeneration",
            "ready",
            "restarts",
            "finishedIndices",
            "madeFrom",
        ] {
            status.as_object_mut().unwrap().remove(ours);
        }
        let mut golden = times;
        golden["conditions"] = json!(self.conditions);
        golden["replicaStatuses"] = json!({});
        for (role, count) in counts {
            let mut count = count.clone();
            count["selector"] = json!(format!(
                "{L}/job-name={},{L}/operator-name=pytorchjob-controller,{L}/replica-type={}",
                self.job,
                role.to_lowercase()
            ));
            golden["replicaStatuses"][*role] = count;
        }
        assert_eq!(status, golden);
    }
}

#[test]
fn golden_the_status_of_a_master_and_two_workers_at_every_moment() {
    let mut m = Moments::begin("pt", "pt", pt(2));
    let start = m.world.now.to_string();
    let none = json!({});
    m.expect(
        &[("Master", none.clone()), ("Worker", none)],
        json!({"startTime": start}),
    );

    m.world.tick(5);
    m.world.run_all();
    m.world.settle();
    m.runs();
    m.expect(
        &[
            ("Master", json!({"active": 1})),
            ("Worker", json!({"active": 2})),
        ],
        json!({"startTime": start}),
    );

    m.world.tick(5);
    m.world.finish("pt-master-0");
    m.world.settle();
    m.succeeds("PyTorchJob pt is successfully completed.");
    let end = m.world.now.to_string();
    m.expect(
        &[
            ("Master", json!({"succeeded": 1})),
            ("Worker", json!({"succeeded": 2})),
        ],
        json!({"startTime": start, "completionTime": end}),
    );

    // Later events of the workers don't change the status.
    m.world.tick(5);
    m.world.fail("pt-worker-0", 1);
    m.world.happen(Move::Vanish(2));
    m.world.settle();
    m.expect(
        &[
            ("Master", json!({"succeeded": 1})),
            ("Worker", json!({"succeeded": 2})),
        ],
        json!({"startTime": start, "completionTime": end}),
    );
}

#[test]
fn golden_the_status_of_an_elastic_job_at_every_moment() {
    let policy =
        json!({"minReplicas": 1, "maxReplicas": 3, "maxRestarts": 5, "rdzvBackend": "c10d"});
    let mut m = Moments::begin("el", "ns1/el", el(2, policy));
    let start = m.world.now.to_string();
    m.expect(&[("Worker", json!({}))], json!({"startTime": start}));

    m.world.tick(5);
    m.world.run_all();
    m.world.settle();
    m.runs();
    m.expect(
        &[("Worker", json!({"active": 2}))],
        json!({"startTime": start}),
    );

    m.world.tick(5);
    m.world.finish("el-worker-0");
    m.world.settle();
    m.succeeds("PyTorchJob ns1/el successfully completed.");
    let end = m.world.now.to_string();
    m.expect(
        &[("Worker", json!({"succeeded": 2}))],
        json!({"startTime": start, "completionTime": end}),
    );
}
