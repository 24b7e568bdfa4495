//! What is written for one job, as templates: the floor client sends the very bodies that the operator sends.
//!
//! They come from the operator's own plan for a job whose name, uid and times are placeholders. Planning happens once; for each
//! job the floor client only puts texts together.

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use k8s_openapi::jiff::Timestamp;
use pytorch_operator::PyTorch;
use serde_json::{Value, json};
use tf_operator::TensorFlow;
use training_core::{Framework, Observed, Plan, Step, TrainingJob, plan};
use training_runtime::feed;
use training_runtime::feed::slim::{Roles, pod_view, service_view};
use training_testkit::builders::Kind;
use xgboost_operator::XGBoost;

use crate::drive::status as phase;

/// Pods of one job: a master and three workers.
pub const PODS: usize = 4;

const NAME: &str = "placeholder-job";
const NAMESPACE: &str = "placeholder-namespace";
const UID: &str = "11111111-2222-3333-4444-555555555555";
const VERSION: &str = "placeholder-version";
const TIME: &str = "2001-02-03T04:05:06Z";

/// What stands in the gaps of a template.
#[derive(Clone, Copy, Debug)]
pub struct Gaps<'a> {
    /// The job's name.
    pub name: &'a str,
    /// The job's namespace.
    pub namespace: &'a str,
    /// The job's uid.
    pub uid: &'a str,
    /// The job's resource version; where it isn't known, anything.
    pub version: &'a str,
    /// The present second.
    pub time: &'a str,
}

/// A text with gaps.
#[derive(Clone, Debug)]
pub struct Template(Vec<Piece>);

#[derive(Clone, Debug, PartialEq)]
enum Piece {
    Text(String),
    Gap(Gap),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Gap {
    Name,
    Namespace,
    Uid,
    Version,
    Time,
}

impl Template {
    /// Finds the placeholders in a text.
    pub fn parse(text: &str) -> Self {
        const GAPS: [(&str, Gap); 5] = [
            (NAME, Gap::Name),
            (NAMESPACE, Gap::Namespace),
            (UID, Gap::Uid),
            (VERSION, Gap::Version),
            (TIME, Gap::Time),
        ];
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((at, length, gap)) = GAPS
            .iter()
            .filter_map(|(mark, gap)| Some((rest.find(mark)?, mark.len(), *gap)))
            .min_by_key(|(at, ..)| *at)
        {
            pieces.push(Piece::Text(rest[..at].to_owned()));
            pieces.push(Piece::Gap(gap));
            rest = &rest[at + length..];
        }
        pieces.push(Piece::Text(rest.to_owned()));
        Self(pieces)
    }

    /// The text with its gaps filled.
    pub fn fill(&self, gaps: &Gaps<'_>) -> String {
        let mut text = String::with_capacity(4096);
        for piece in &self.0 {
            text.push_str(match piece {
                Piece::Text(text) => text,
                Piece::Gap(Gap::Name) => gaps.name,
                Piece::Gap(Gap::Namespace) => gaps.namespace,
                Piece::Gap(Gap::Uid) => gaps.uid,
                Piece::Gap(Gap::Version) => gaps.version,
                Piece::Gap(Gap::Time) => gaps.time,
            });
        }
        text
    }

    /// The filled text as a request's body.
    pub fn body(&self, gaps: &Gaps<'_>) -> Bytes {
        self.fill(gaps).into()
    }
}

/// Everything that is written for one job.
#[derive(Clone, Debug)]
pub struct Bodies {
    /// The pods, by what follows the job's name in theirs.
    pub pods: Vec<(String, Template)>,
    /// The services.
    pub services: Vec<Template>,
    /// The first status: the job is known.
    pub created: Template,
    /// All pods run.
    pub running: Template,
    /// The master has succeeded.
    pub succeeded: Template,
    /// The final status whole, for jobs that are made finished.
    pub finished: Template,
}

impl Bodies {
    /// Asks the plan of the kind's operator.
    pub fn new(kind: &Kind) -> Result<Self> {
        match kind.operator {
            PyTorch::OPERATOR => Self::of::<PyTorch>(kind),
            TensorFlow::OPERATOR => Self::of::<TensorFlow>(kind),
            XGBoost::OPERATOR => Self::of::<XGBoost>(kind),
            other => bail!("the plan of {other} is not known here"),
        }
    }

    fn of<F: Framework + Default>(kind: &Kind) -> Result<Self> {
        let mut manifest = manifest(kind, NAME);
        manifest["metadata"] = json!({
            "name": NAME, "namespace": NAMESPACE, "uid": UID, "resourceVersion": "1", "generation": 1,
            "creationTimestamp": TIME,
        });
        let mut job: F::Job = serde_json::from_value(manifest)?;
        let now: Timestamp = TIME.parse()?;
        let decide = |job: &F::Job, seen: &Observed| plan(&F::default(), job, seen, now);

        let first = decide(&job, &Observed::default());
        let (mut pods, mut services) = (Vec::new(), Vec::new());
        let (mut made_pods, mut made_services) = (Vec::new(), Vec::new());
        for step in &first.steps {
            match step {
                Step::CreatePod(pod) => {
                    let name = pod.metadata.name.as_deref().unwrap_or_default();
                    let suffix = name
                        .strip_prefix(NAME)
                        .context("a pod under another name")?;
                    pods.push((
                        suffix.to_owned(),
                        Template::parse(&serde_json::to_string(pod)?),
                    ));
                    made_pods.push(stored(pod, pods.len())?);
                }
                Step::CreateService(service) => {
                    services.push(Template::parse(&serde_json::to_string(service)?));
                    made_services.push(stored(service, services.len())?);
                }
                other => anyhow::bail!("a new job begins with {other:?}"),
            }
        }
        ensure!(
            pods.len() == PODS && services.len() == PODS,
            "not the job that we count with"
        );
        let created = status(&mut job, first)?;
        let running = decide(&job, &seen::<F>(&made_pods, &made_services, "Running")?);
        let running = status(&mut job, running)?;
        let succeeded = decide(&job, &seen::<F>(&made_pods, &made_services, "Succeeded")?);
        let succeeded = status(&mut job, succeeded)?;
        let finished = json!({"status": job.status()});
        Ok(Self {
            pods,
            services,
            created,
            running,
            succeeded,
            finished: Template::parse(&finished.to_string()),
        })
    }
}

/// The patch of a plan's status, as the executor writes it; the job becomes what it then is.
fn status<J: TrainingJob>(job: &mut J, plan: Plan<J::Status>) -> Result<Template> {
    let write = plan
        .status
        .context("a step of a job's life without a status")?;
    job.set_status(write.next);
    let body = json!({"metadata": {"uid": UID, "resourceVersion": VERSION}, "status": write.patch});
    Ok(Template::parse(&body.to_string()))
}

/// An object as the API server would store it.
fn stored(object: &impl serde::Serialize, number: usize) -> Result<Value> {
    let mut object = serde_json::to_value(object)?;
    object["metadata"]["uid"] = json!(format!("{number:08}-0000-0000-0000-000000000000"));
    object["metadata"]["resourceVersion"] = json!("1");
    Ok(object)
}

/// What the operator would see, with all pods in one phase.
fn seen<F: Framework>(pods: &[Value], services: &[Value], word: &str) -> Result<Observed> {
    let (parent, mut roles) = (feed::parent::<F>(), Roles::default());
    let mut seen = Observed::default();
    for pod in pods {
        let mut pod = pod.clone();
        let told: Value = serde_json::from_str(&phase(F::CONTAINER, "", word, 0))?;
        pod["status"] = told["status"].clone();
        let pod = pod_view(&serde_json::from_value(pod)?, parent, &mut roles);
        seen.pods
            .push(pod.context("a pod that is not the operator's")?.view);
    }
    for service in services {
        let service = service_view(
            &serde_json::from_value(service.clone())?,
            parent,
            &mut roles,
        );
        seen.services.push(
            service
                .context("a service that is not the operator's")?
                .view,
        );
    }
    Ok(seen)
}

/// The job that everything is measured with: a master and three workers, with a template as users write them.
pub fn manifest(kind: &Kind, name: &str) -> Value {
    let role = |replicas: u32| {
        json!({
            "replicas": replicas,
            "restartPolicy": "OnFailure",
            "template": {
                "metadata": { "labels": { "team": "bench" } },
                "spec": {
                    "containers": [{
                        "name": kind.container,
                        // Never pulled: nothing here runs a container.
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
        "apiVersion": "kubeflow.org/v1",
        "kind": kind.name,
        "metadata": { "name": name },
        "spec": { kind.replica_map: { "Master": role(1), "Worker": role(3) } },
    })
}

/// The present second as the API writes it.
pub fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use training_testkit::builders::KINDS;

    use super::*;

    const GAPS: Gaps<'static> = Gaps {
        name: "j1",
        namespace: "ns",
        uid: "22222222-2222-3333-4444-555555555555",
        version: "77",
        time: "2026-01-01T00:00:00Z",
    };

    #[test]
    fn every_placeholder_of_every_body_is_filled() {
        for bodies in KINDS.map(|kind| Bodies::new(&kind).unwrap()) {
            let pods = bodies.pods.iter().map(|(_, template)| template);
            let all = pods.chain(&bodies.services).chain([
                &bodies.created,
                &bodies.running,
                &bodies.succeeded,
                &bodies.finished,
            ]);
            for template in all {
                let text = template.fill(&GAPS);
                for mark in [NAME, NAMESPACE, UID, VERSION, TIME] {
                    assert!(!text.contains(mark), "{mark} in {text}");
                }
                serde_json::from_str::<Value>(&text).unwrap();
            }
        }
    }

    #[test]
    fn a_job_of_any_kind_has_four_pods_four_services_and_three_different_statuses() {
        for kind in KINDS {
            let bodies = Bodies::new(&kind).unwrap();
            let names: Vec<&str> = bodies
                .pods
                .iter()
                .map(|(suffix, _)| suffix.as_str())
                .collect();
            assert_eq!(names, ["-master-0", "-worker-0", "-worker-1", "-worker-2"]);
            assert_eq!(bodies.services.len(), 4);
            let said = |template: &Template, reason: &str| {
                template
                    .fill(&GAPS)
                    .contains(&format!("{}{reason}", kind.name))
            };
            assert!(said(&bodies.created, "Created"));
            assert!(said(&bodies.running, "Running"));
            assert!(said(&bodies.succeeded, "Succeeded"));
            assert!(bodies.finished.fill(&GAPS).contains("completionTime"));
        }
    }
}
