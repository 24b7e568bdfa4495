//! Templates of the request bodies for one job: the floor client sends exactly the operator's bodies.
//!
//! They come from the operator's own plan for a job whose name, uid and times are placeholders. Planning happens once; for each
//! job the floor client only fills templates.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::jiff::Timestamp;
use mpi_operator::Mpi;
use mpi_operator::args::OWN_IMAGE;
use pytorch_operator::PyTorch;
use serde_json::{Value, json};
use tf_operator::TensorFlow;
use training_core::object::{SecretGenerator, config_digest};
use training_core::{
    BatchEnd, Framework as _, Lifecycle, Object, ObjectKind, ObjectView, Observed, Plan, Step,
    Stored as _, TrainingJob, Uid, plan,
};
use training_runtime::feed;
use training_runtime::feed::slim::{Roles, batch_pod_view, pod_view, service_view};
use training_testkit::builders::Kind;
use xgboost_operator::XGBoost;

use crate::drive::{pod_of, status as phase};
use crate::http::{BATCH, CORE};
use crate::kind;
use crate::template::Template;

/// The number of pods of one job: a leading replica and three workers.
pub const PODS: usize = 4;
/// The minimum number of requests for a job's life cycle. For the first three kinds: four pods, four services, three statuses. For
/// `MPIJob`: three pods and a Job, a service, a config map and a secret, three statuses, and an update of the config map.
pub const LEAST: usize = 11;
/// An upper bound for the plans until a job has all of its objects.
const TURNS: usize = 4;

const NAME: &str = "placeholder-job";
const NAMESPACE: &str = "placeholder-namespace";
const UID: &str = "11111111-2222-3333-4444-555555555555";
const VERSION: &str = "placeholder-version";
const TIME: &str = "2001-02-03T04:05:06Z";
const LAUNCHER: &str = "99999999-8888-7777-6666-555555555555";
/// Includes its quotes, because an object replaces it.
const DATA: &str = "\"placeholder-data\"";

/// The values of a template's placeholders. Unknown or unused values may be arbitrary.
#[derive(Clone, Copy, Debug, Default)]
pub struct Values<'a> {
    /// The job's name.
    pub name: &'a str,
    /// The job's namespace.
    pub namespace: &'a str,
    /// The job's uid; in an update of another object, that object's.
    pub uid: &'a str,
    /// The resource version of the same object.
    pub version: &'a str,
    /// The current second.
    pub time: &'a str,
    /// The uid of the launcher's Job.
    pub launcher: &'a str,
    /// A secret's data, as JSON.
    pub data: &'a str,
}

/// All placeholders, in the order of [`Values::in_order`].
const MARKS: [&str; 7] = [NAME, NAMESPACE, UID, VERSION, TIME, LAUNCHER, DATA];

impl<'a> Values<'a> {
    /// Returns the arguments of [`Template::fill`].
    pub fn in_order(&self) -> [&'a str; 7] {
        [
            self.name,
            self.namespace,
            self.uid,
            self.version,
            self.time,
            self.launcher,
            self.data,
        ]
    }
}

fn template(text: &str) -> Template {
    Template::parse(text, &MARKS)
}

/// A type of a job's objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// A pod.
    Pod,
    /// A service.
    Service,
    /// A config map.
    ConfigMap,
    /// A secret.
    Secret,
    /// A `batch/v1` Job.
    Job,
}

impl Resource {
    /// Returns the path of a namespace's objects.
    pub fn path(self, namespace: &str) -> String {
        let (api, plural) = match self {
            Self::Pod => (CORE, "pods"),
            Self::Service => (CORE, "services"),
            Self::ConfigMap => (CORE, "configmaps"),
            Self::Secret => (CORE, "secrets"),
            Self::Job => (BATCH, "jobs"),
        };
        format!("{api}/namespaces/{namespace}/{plural}")
    }
}

/// An object of a job with its request body.
#[derive(Clone, Debug)]
pub struct Part {
    /// Its type.
    pub resource: Resource,
    /// The suffix of its name after the job's name.
    pub suffix: String,
    /// The whole object, or its update.
    pub body: Template,
}

impl Part {
    fn of(resource: Resource, name: &str, body: &Value) -> Result<Self> {
        let suffix = name
            .strip_prefix(NAME)
            .context("an object under another name")?;
        Ok(Self {
            resource,
            suffix: suffix.to_owned(),
            body: template(&body.to_string()),
        })
    }
}

/// All request bodies for one job.
#[derive(Clone, Debug)]
pub struct Bodies {
    /// The objects of a new job, in rounds: pods come after the objects that they mount.
    pub births: Vec<Vec<Part>>,
    /// Further updates when all pods run.
    pub changes: Vec<Part>,
    /// The status `Created`.
    pub created: Template,
    /// The status when all pods run.
    pub running: Template,
    /// The status when the deciding replica has succeeded.
    pub succeeded: Template,
    /// The complete final status, for jobs that are created as finished.
    pub finished: Template,
    /// Generates the data of a job's secret.
    pub fresh: Option<SecretGenerator>,
}

impl Bodies {
    /// Gets the bodies from the plan of the kind's operator with default settings.
    pub fn new(kind: &Kind) -> Result<Self> {
        match kind.operator {
            PyTorch::OPERATOR => Self::of(kind, &PyTorch::default()),
            TensorFlow::OPERATOR => Self::of(kind, &TensorFlow::default()),
            XGBoost::OPERATOR => Self::of(kind, &XGBoost),
            Mpi::OPERATOR => {
                let gate_image = Some(OWN_IMAGE.to_owned());
                let mpi = Mpi {
                    gate_image,
                    ..Mpi::default()
                };
                Self::of(kind, &mpi)
            }
            other => bail!("the plan of {other} is not known here"),
        }
    }

    fn of<F: Lifecycle>(kind: &Kind, framework: &F) -> Result<Self> {
        let mut manifest = manifest(kind, NAME);
        manifest["metadata"] = json!({
            "name": NAME, "namespace": NAMESPACE, "uid": UID, "resourceVersion": "1", "generation": 1,
            "creationTimestamp": TIME,
        });
        let mut job: F::Job = serde_json::from_value(manifest)?;
        let now: Timestamp = TIME.parse()?;
        let decide = |job: &F::Job, observed: &Observed| plan(framework, job, observed, now);

        let mut stored = Stored::default();
        let (mut births, mut created) = (Vec::new(), None);
        for _ in 0..TURNS {
            let next = decide(&job, &stored.observed::<F>("", now)?);
            if next.steps.is_empty() {
                break;
            }
            let made = next.steps.iter().map(|step| stored.make(step));
            births.push(made.collect::<Result<Vec<Part>>>()?);
            if next.status.is_some() {
                created = Some(status(&mut job, next)?);
            }
        }
        let created = created.context("a new job without a status")?;

        let mut running = decide(&job, &stored.observed::<F>("Running", now)?);
        let steps = std::mem::take(&mut running.steps);
        let changes = steps.iter().map(|step| stored.change(step));
        let changes = changes.collect::<Result<Vec<Part>>>()?;
        let running = status(&mut job, running)?;
        let succeeded = decide(&job, &stored.observed::<F>("Succeeded", now)?);
        ensure!(succeeded.steps.is_empty(), "{:?}", succeeded.steps);
        let succeeded = status(&mut job, succeeded)?;

        let parts = births.iter().map(Vec::len).sum::<usize>();
        ensure!(
            parts + changes.len() + 3 == LEAST,
            "not the job that we count with: {births:?}, {changes:?}"
        );
        let finished = json!({"status": job.status()});
        Ok(Self {
            births,
            changes,
            created,
            running,
            succeeded,
            finished: template(&finished.to_string()),
            fresh: F::SECRET_GENERATOR,
        })
    }
}

/// Returns the patch of a plan's status, as the executor writes it, and applies it to the job.
fn status<J: TrainingJob>(job: &mut J, plan: Plan<J::Status>) -> Result<Template> {
    let write = plan
        .status
        .context("a step of a job's life without a status")?;
    job.set_status(write.next);
    let body = json!({"metadata": {"uid": UID, "resourceVersion": VERSION}, "status": write.patch});
    Ok(template(&body.to_string()))
}

/// The job's created objects, as the API server would store them.
#[derive(Default)]
struct Stored {
    pods: Vec<Value>,
    services: Vec<Value>,
    launcher: Option<Value>,
    others: Observed,
}

impl Stored {
    /// Creates the object of a step.
    fn make(&mut self, step: &Step) -> Result<Part> {
        match step {
            Step::CreatePod(pod) => keep(&mut self.pods, Resource::Pod, pod),
            Step::CreateService(service) => keep(&mut self.services, Resource::Service, service),
            Step::CreateObject(object) => self.make_other(object),
            other => bail!("a new job begins with {other:?}"),
        }
    }

    fn make_other(&mut self, object: &Object) -> Result<Part> {
        let name = object.name();
        let mut body = serde_json::to_value(object)?;
        let resource = match object {
            Object::Service(_) => Resource::Service,
            Object::ConfigMap(_) => Resource::ConfigMap,
            Object::Job(_) => Resource::Job,
            Object::Secret(_) => Resource::Secret,
        };
        match resource {
            Resource::Secret => {
                body["data"] = serde_json::from_str(DATA)?;
                self.others.secret.made = Some(name.as_str().into());
            }
            Resource::Job => self.launcher = Some(stored(&body, LAUNCHER)),
            Resource::Pod | Resource::Service | Resource::ConfigMap => {}
        }
        let uid = Uid::parse(LAUNCHER).context("an odd uid")?;
        let view = ObjectView::made(object, uid, 1);
        self.others.objects.extend(view);
        Part::of(resource, &name, &body)
    }

    /// Applies an update of a created object.
    fn change(&mut self, step: &Step) -> Result<Part> {
        let Step::ChangeObject {
            kind: ObjectKind::ConfigMap,
            name,
            subresource: None,
            patch,
        } = step
        else {
            bail!("a running job goes on with {step:?}");
        };
        let data: BTreeMap<String, String> = serde_json::from_value(patch["data"].clone())?;
        let mut all = self.others.objects.iter_mut();
        let view = all.find(|o| o.kind == ObjectKind::ConfigMap && *o.name == **name);
        view.context("a change of what is not there")?.digest = Some(config_digest(Some(&data)));
        let mut body = (**patch).clone();
        body["metadata"] = json!({"uid": UID, "resourceVersion": VERSION});
        Part::of(Resource::ConfigMap, name, &body)
    }

    /// Returns the operator's observed state, with all pods in one phase or not scheduled. Workers of a launcher run until they
    /// are deleted.
    fn observed<F: Lifecycle>(&self, word: &str, now: Timestamp) -> Result<Observed> {
        let (owner_kind, mut roles) = (feed::owner_kind::<F>(), Roles::default());
        let mut observed = self.others.clone();
        let put = |pod: &Value, word: &str| -> Result<_> {
            let mut pod = pod.clone();
            if !word.is_empty() {
                let told: Value = serde_json::from_str(&phase(F::CONTAINER, "", word, 0))?;
                pod["status"] = told["status"].clone();
            }
            Ok(serde_json::from_value(pod)?)
        };
        let serving = if self.launcher.is_some() && word == "Succeeded" {
            "Running"
        } else {
            word
        };
        for pod in &self.pods {
            let view = pod_view(&put(pod, serving)?, owner_kind, &mut roles);
            observed
                .pods
                .push(view.context("a pod that is not the operator's")?.view);
        }
        for service in &self.services {
            let service = serde_json::from_value(service.clone())?;
            let view = service_view(&service, owner_kind, &mut roles);
            observed
                .services
                .push(view.context("a service that is not the operator's")?.view);
        }
        if let Some(launcher) = &self.launcher {
            let pod = stored(&pod_of(launcher), "00000000-0000-0000-0000-000000000000");
            let view = batch_pod_view(&put(&pod, word)?, owner_kind, &mut roles);
            observed
                .batch_pods
                .push(view.context("a pod that is not the launcher's")?.view);
            for batch in observed.objects.iter_mut().filter_map(|o| o.batch.as_mut()) {
                batch.started = !word.is_empty();
                batch.end = (word == "Succeeded").then_some(BatchEnd::Complete { at: Some(now) });
            }
        }
        Ok(observed)
    }
}

/// Stores a replica's object in the list of its type.
fn keep(all: &mut Vec<Value>, resource: Resource, object: &impl serde::Serialize) -> Result<Part> {
    let body = serde_json::to_value(object)?;
    let number = all.len() + 1;
    all.push(stored(
        &body,
        &format!("{number:08}-0000-0000-0000-000000000000"),
    ));
    let name = body["metadata"]["name"].as_str().unwrap_or_default();
    Part::of(resource, name, &body)
}

/// Returns an object as the API server would store it.
fn stored(object: &Value, uid: &str) -> Value {
    let mut object = object.clone();
    object["metadata"]["uid"] = json!(uid);
    object["metadata"]["resourceVersion"] = json!("1");
    object
}

/// Returns the measured job: a leading replica and three workers, with a template as users write them.
pub fn manifest(kind: &Kind, name: &str) -> Value {
    let role = |replicas: u32| {
        json!({
            "replicas": replicas,
            "restartPolicy": "OnFailure",
            "template": {
                "metadata": { "labels": { "team": "bench" } },
                "spec": {
                    "containers": [{
                        "name": kind::container(kind),
                        // Never pulled: no container runs here.
                        "image": "trainyard.test/train:1",
                        "command": ["python", "/opt/train.py"],
                        "args": ["--epochs=10", "--batch-size=64", "--data=/data"],
                        "env": [
                            { "name": "NCCL_DEBUG", "value": "WARN" },
                            { "name": "OMP_NUM_THREADS", "value": "4" },
                        ],
                        "resources": {
                            "requests": { "cpu": "500m", "memory": "1Gi" },
                            "limits": { "memory": "2Gi" },
                        },
                        "volumeMounts": [
                            { "name": "shm", "mountPath": "/dev/shm" },
                            { "name": "data", "mountPath": "/data" },
                        ],
                    }],
                    "volumes": [
                        { "name": "shm", "emptyDir": { "medium": "Memory" } },
                        { "name": "data", "emptyDir": {} },
                    ],
                },
            },
        })
    };
    json!({
        "apiVersion": format!("kubeflow.org/{}", kind.version),
        "kind": kind.name,
        "metadata": { "name": name },
        "spec": { kind.replica_map: { kind::leader(kind): role(1), "Worker": role(3) } },
    })
}

/// Returns the current second in the API's format.
pub fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::KINDS;

    /// The kinds that have replicas.
    fn kinds() -> impl Iterator<Item = Kind> {
        KINDS.into_iter().filter(|kind| !kind::submits(kind))
    }

    const VALUES: Values<'static> = Values {
        name: "j1",
        namespace: "ns",
        uid: "22222222-2222-3333-4444-555555555555",
        version: "77",
        time: "2026-01-01T00:00:00Z",
        launcher: "33333333-2222-3333-4444-555555555555",
        data: "{}",
    };

    #[test]
    fn every_placeholder_of_every_body_is_filled() {
        for bodies in kinds().map(|kind| Bodies::new(&kind).unwrap()) {
            let parts = bodies.births.iter().flatten().chain(&bodies.changes);
            let all = parts.map(|part| &part.body).chain([
                &bodies.created,
                &bodies.running,
                &bodies.succeeded,
                &bodies.finished,
            ]);
            for template in all {
                let text = template.fill(&VALUES.in_order());
                for mark in [NAME, NAMESPACE, UID, VERSION, TIME, LAUNCHER, DATA] {
                    assert!(!text.contains(mark), "{mark} in {text}");
                }
                serde_json::from_str::<Value>(&text).unwrap();
            }
        }
    }

    /// Returns the objects of each round, by type and name.
    fn births(kind: &Kind) -> Vec<Vec<(Resource, String)>> {
        let turns = Bodies::new(kind).unwrap().births.into_iter();
        let named = |parts: Vec<Part>| {
            let mut named: Vec<_> = parts.into_iter().map(|p| (p.resource, p.suffix)).collect();
            named.sort_by_key(|(resource, suffix)| (format!("{resource:?}"), suffix.clone()));
            named
        };
        turns.map(named).collect()
    }

    #[test]
    fn a_job_has_four_pods_and_four_services_that_are_made_at_once() {
        for kind in kinds().filter(|kind| !kind::launches(kind)) {
            let replicas = ["-master-0", "-worker-0", "-worker-1", "-worker-2"];
            let of = |resource| replicas.map(|suffix| (resource, suffix.to_owned()));
            let all = [of(Resource::Pod), of(Resource::Service)].concat();
            assert_eq!(births(&kind), [all], "{}", kind.name);
        }
    }

    #[test]
    fn workers_and_launcher_come_after_what_they_mount_and_the_hosts_are_told_once() {
        let kind = kind::named("mpi").unwrap();
        let of = |resource, suffix: &str| (resource, suffix.to_owned());
        let mounted = vec![
            of(Resource::ConfigMap, "-config"),
            of(Resource::Secret, "-ssh"),
            of(Resource::Service, ""),
        ];
        let hosts = vec![
            of(Resource::Job, "-launcher"),
            of(Resource::Pod, "-worker-0"),
            of(Resource::Pod, "-worker-1"),
            of(Resource::Pod, "-worker-2"),
        ];
        assert_eq!(births(&kind), [mounted, hosts]);
        let bodies = Bodies::new(&kind).unwrap();
        let [change] = &bodies.changes[..] else {
            panic!("{:?}", bodies.changes)
        };
        let told = change.body.fill(&VALUES.in_order());
        let hosts = (0..3).map(|i| format!("echo j1-worker-{i}.j1.ns.svc"));
        assert!(hosts.into_iter().all(|host| told.contains(&host)), "{told}");
        assert!(
            bodies
                .running
                .fill(&VALUES.in_order())
                .contains(VALUES.launcher)
        );
        let keys = bodies.fresh.unwrap()().unwrap();
        assert_eq!(keys.len(), 2);
    }

    #[test]
    fn a_job_of_any_kind_has_three_different_statuses() {
        for kind in kinds() {
            let bodies = Bodies::new(&kind).unwrap();
            let said = |template: &Template, reason: &str| {
                template
                    .fill(&VALUES.in_order())
                    .contains(&format!("{}{reason}", kind.name))
            };
            assert!(said(&bodies.created, "Created"));
            assert!(said(&bodies.running, "Running"));
            assert!(said(&bodies.succeeded, "Succeeded"));
            assert!(
                bodies
                    .finished
                    .fill(&VALUES.in_order())
                    .contains("completionTime")
            );
        }
    }
}
