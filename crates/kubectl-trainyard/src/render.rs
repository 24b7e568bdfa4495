//! Renders the objects that an operator would create for a manifest, from the operator's own plan. Needs no cluster.
//!
//! A plan that waits for objects that it created runs again and observes them.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail};
use k8s_openapi::jiff::Timestamp;
use mpi_operator::Mpi;
use pytorch_operator::PyTorch;
use pytorch_operator::init::{DEFAULT_TRIES, InitContainer};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use spark_operator::course::seen::Seen;
use spark_operator::course::step::Step as SparkStep;
use spark_operator::course::{self, PlanInput, Rules};
use spark_operator::{Settings, SparkApplication, digest};
use training_api::ConditionType;
use training_core::{
    JobState, Lifecycle, Note, Object, ObjectView, Observed, Severity, Step, Stored as _,
    TrainingJob as _, Uid, plan,
};
use training_runtime::feed::{self, slim};
use training_runtime::frame::now;

use crate::kinds::{self, Shape};
use crate::out::{self, Format};
use crate::{defaults, run};

/// The maximum number of times to run a plan. An MPIJob's plan creates objects in two of them.
const MAX_ROUNDS: u32 = 4;
/// The exit code if the operator would reject the job.
const REFUSED: u8 = 1;
/// The uid of the job, which has none before it is stored.
const UID: &str = "00000000-0000-0000-0000-000000000000";
/// The ConfigMap that the shipped operator mounts, with the init container of workers.
const CONFIG: &str = include_str!("../../../manifests/pytorch-operator/config.yaml");

/// The result of rendering a manifest.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rendered {
    /// The objects that the operator would create, in order.
    pub objects: Vec<Value>,
    /// The events that it would record.
    pub notes: Vec<Note>,
    /// Why it would reject the job.
    pub refused: Option<String>,
}

impl Rendered {
    /// Prints the warnings and the reason for a rejection on standard error.
    pub fn print_notes(&self) {
        for note in &self.notes {
            if note.severity == Severity::Warning {
                out::note(&format!("warning: {}: {}", note.reason, note.message));
            }
        }
        if let Some(refused) = &self.refused {
            out::note(&format!("refused: {refused}"));
        }
    }
}

/// Prints the objects for the job of a file and returns the exit code.
pub fn print(path: &Path, namespace: Option<&str>, format: Format) -> Result<u8> {
    let manifest = run::manifest(path)?;
    let namespace = run::namespace(&manifest, namespace)?;
    let rendered = of(manifest, namespace.as_deref().unwrap_or("default"), now())?;
    rendered.print_notes();
    if rendered.refused.is_some() {
        return Ok(REFUSED);
    }
    match format {
        Format::Json => {
            let list = json!({ "apiVersion": "v1", "kind": "List", "items": rendered.objects });
            out::print_data(&list, format)?;
        }
        Format::Yaml => {
            for object in &rendered.objects {
                out::print(&[out::Line::plain("---".to_owned())])?;
                out::print_data(object, format)?;
            }
        }
    }
    Ok(0)
}

/// Renders a manifest in a namespace.
pub fn of(manifest: Value, namespace: &str, now: Timestamp) -> Result<Rendered> {
    let kind = kinds::of_manifest(&manifest)?;
    let mut stored = defaults::stored(&kind, manifest)?;
    let name = stored["metadata"]["name"].as_str().unwrap_or_default();
    if name.is_empty() {
        bail!("the manifest has no metadata.name");
    }
    let meta = [
        ("namespace", json!(namespace)),
        ("uid", json!(UID)),
        ("generation", json!(1)),
        ("resourceVersion", json!("1")),
    ];
    for (field, value) in meta {
        stored["metadata"][field] = value;
    }
    match kind.shape {
        Shape::Replicas(replicas) => (replicas.render)(stored, now),
        Shape::Application => application(stored, now),
        Shape::Schedule => bail!(
            "a ScheduledSparkApplication creates SparkApplications: render its spec.template as a SparkApplication"
        ),
    }
}

fn typed<T: DeserializeOwned>(stored: Value) -> Result<T> {
    serde_json::from_value(stored).map_err(|e| anyhow!("the manifest can't be read: {e}"))
}

fn image(operator: &str) -> String {
    format!("trainyard/{operator}:{}", env!("CARGO_PKG_VERSION"))
}

/// Renders a PyTorchJob with the shipped configuration.
pub fn pytorch(stored: Value, now: Timestamp) -> Result<Rendered> {
    let config: Value = serde_saphyr::from_str(CONFIG)?;
    let files = config["data"]
        .as_object()
        .context("the shipped configuration is empty")?;
    let template = files.values().find_map(Value::as_str);
    let init = InitContainer::new(&image("pytorch-operator"), DEFAULT_TRIES, template)?;
    training(&PyTorch { init }, stored, now)
}

/// Renders an MPIJob with the shipped configuration.
pub fn mpi(stored: Value, now: Timestamp) -> Result<Rendered> {
    let mpi = Mpi {
        gate_image: Some(image("mpi-operator")),
        ..Mpi::default()
    };
    training(&mpi, stored, now)
}

/// Renders a job whose operator has no configuration.
pub fn plain<F: Lifecycle + Default>(stored: Value, now: Timestamp) -> Result<Rendered> {
    training(&F::default(), stored, now)
}

fn training<F: Lifecycle>(framework: &F, stored: Value, now: Timestamp) -> Result<Rendered> {
    let mut job: F::Job = typed(stored)?;
    if training_core::is_managed_elsewhere::<F>(&job) {
        bail!(
            "spec.runPolicy.managedBy names another controller: the operator would create nothing"
        );
    }
    let mut created = Created::default();
    let mut rendered = Rendered::default();
    for _ in 0..MAX_ROUNDS {
        let next = plan(framework, &job, &created.observed, now);
        rendered.notes.extend(next.notes);
        let before = rendered.objects.len();
        for step in next.steps {
            if let Some(object) = created.create::<F>(step)? {
                rendered.objects.push(object);
            }
        }
        let changed = next.status.is_some() || rendered.objects.len() > before;
        if let Some(write) = next.status {
            job.set_status(write.next);
        }
        if !changed {
            break;
        }
    }
    let memory = job
        .status()
        .map(JobState::durable_state)
        .unwrap_or_default();
    let failed = memory
        .conditions
        .iter()
        .find(|c| c.holds(ConditionType::Failed));
    rendered.refused = failed.map(|c| c.message.clone().unwrap_or_default());
    if memory.holds(ConditionType::Suspended) {
        let text = "the job is suspended: the operator creates nothing until it is resumed";
        rendered.notes.push(Note::warning("Suspended", text));
    }
    Ok(rendered)
}

/// The objects created so far, as the operator would observe them.
#[derive(Default)]
struct Created {
    observed: Observed,
    roles: slim::Roles,
    count: u32,
}

impl Created {
    /// Simulates a step. Returns the object that it creates, if any.
    fn create<F: Lifecycle>(&mut self, step: Step) -> Result<Option<Value>> {
        self.count += 1;
        let uid = format!("{:08}-0000-0000-0000-000000000000", self.count);
        let parent = feed::parent::<F>();
        Ok(match step {
            Step::CreatePod(pod) => {
                let view = slim::pod_view(&stored(&*pod, &uid)?, parent, &mut self.roles);
                self.observed.pods.extend(view.map(|owned| owned.view));
                Some(json!(pod))
            }
            Step::CreateService(service) => {
                let view = slim::service_view(&stored(&*service, &uid)?, parent, &mut self.roles);
                self.observed.services.extend(view.map(|owned| owned.view));
                Some(json!(service))
            }
            Step::CreateObject(object) => {
                if let Object::Secret(secret) = &*object {
                    let name = secret.metadata.name.clone().unwrap_or_default();
                    self.observed.secret.made = Some(name.into());
                }
                let uid = Uid::parse(&uid).unwrap_or_default();
                self.observed
                    .objects
                    .extend(ObjectView::made(&object, uid, 1));
                Some(json!(object))
            }
            Step::CreateAutoscaler(autoscaler) => {
                // The plan does not create it again while its existence is unknown.
                self.observed.autoscaler_unknown = true;
                Some(json!(autoscaler))
            }
            Step::CreateGroup { object, .. } => Some(*object),
            // These steps need objects that do not exist here.
            Step::LookUpGroup { .. }
            | Step::RecreateSecret(_)
            | Step::ChangeAutoscaler { .. }
            | Step::ChangeGroup { .. }
            | Step::ChangeObject { .. }
            | Step::DeletePod { .. }
            | Step::DeleteService { .. }
            | Step::DeleteAutoscaler { .. }
            | Step::DeleteGroup { .. }
            | Step::DeleteObject { .. }
            | Step::DeleteJob => None,
        })
    }
}

/// Converts an object to the form in which the operator would observe it.
fn stored<T: DeserializeOwned>(object: &impl Serialize, uid: &str) -> Result<T> {
    let mut object = serde_json::to_value(object)?;
    object["metadata"]["uid"] = json!(uid);
    object["metadata"]["resourceVersion"] = json!("1");
    Ok(serde_json::from_value(object)?)
}

/// Renders a SparkApplication with the default settings.
fn application(stored: Value, now: Timestamp) -> Result<Rendered> {
    let digest = digest::spec_digest(&stored["spec"]);
    let app: SparkApplication = typed(stored)?;
    let next = course::plan(PlanInput {
        app: &app,
        digest: &digest,
        seen: &Seen::default(),
        settings: &Settings::default(),
        rules: &Rules::default(),
        now,
    });
    let objects = next.steps.into_iter().filter_map(|step| match step {
        SparkStep::Make(make) | SparkStep::CreateOptional(make) => Some(json!(make)),
        SparkStep::CreateDriver(driver) => Some(json!(driver)),
        SparkStep::Change { .. }
        | SparkStep::DeletePod { .. }
        | SparkStep::Delete { .. }
        | SparkStep::DeleteApplication => None,
    });
    let status = next.status.map(|write| write.next.application_state);
    Ok(Rendered {
        objects: objects.collect(),
        notes: next.notes,
        refused: status.and_then(|state| state.error_message),
    })
}
