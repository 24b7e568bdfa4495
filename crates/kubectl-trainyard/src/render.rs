//! Renders the objects that an operator would create for a manifest, from the operator's own plan. Needs no cluster.
//!
//! A plan that waits for objects that it created runs again and observes them.

use std::path::Path;

use anyhow::{Result, anyhow, bail};
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use spark_operator::lifecycle::observed::Observed as ObservedApplication;
use spark_operator::lifecycle::step::Step as SparkStep;
use spark_operator::lifecycle::{self, PlanInput};
use spark_operator::{SparkApplication, digest};
use tf_operator::TensorFlow;
use training_api::ConditionType;
use training_core::provider::Setting;
use training_core::{
    Availabilities, Group, JobState, Lifecycle, Note, Object, ObjectView, Observed, Provider,
    Rules, Severity, Step, Stored as _, Uid, plan,
};
use training_runtime::entry::{self, NoArgs};
use training_runtime::feed::{self, slim};
use training_runtime::frame::now;
use training_runtime::{JobArgs, RuntimeArgs};

use crate::cli::{OperatorFlags, Target};
use crate::flags::Flags;
use crate::kinds::{self, Shape};
use crate::out::{self, Format};
use crate::{defaults, run};

/// The maximum number of times to run a plan. An MPIJob's plan creates objects in two of them, and its gang's groups in two others.
const MAX_ROUNDS: u32 = 8;
/// The exit code if the operator would reject the job.
const REFUSED: u8 = 1;
/// The uid of a job that is not stored.
const UID: &str = "00000000-0000-0000-0000-000000000000";

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
pub async fn print(
    target: &Target,
    path: &Path,
    operator: &OperatorFlags,
    format: Format,
) -> Result<u8> {
    let manifest = run::manifest(path)?;
    let namespace = run::namespace(&manifest, target.namespace.as_deref())?;
    let namespace = namespace.as_deref().unwrap_or("default");
    let flags = Flags::of(&kinds::of_manifest(&manifest)?, operator, target).await?;
    let rendered = of(manifest, namespace, &flags, now())?;
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
pub fn of(manifest: Value, namespace: &str, flags: &Flags, now: Timestamp) -> Result<Rendered> {
    let kind = kinds::of_manifest(&manifest)?;
    let mut stored = defaults::stored(&kind, manifest)?;
    let name = stored["metadata"]["name"].as_str().unwrap_or_default();
    if name.is_empty() {
        bail!("the manifest has no metadata.name");
    }
    if let Some(fields) = stored.as_object_mut() {
        // The manifest may be that of a stored job.
        fields.remove("status");
    }
    let metadata = &mut stored["metadata"];
    if !metadata["uid"].is_string() {
        metadata["uid"] = json!(UID);
    }
    metadata["namespace"] = json!(namespace);
    metadata["generation"] = json!(1);
    metadata["resourceVersion"] = json!("1");
    match kind.shape {
        Shape::Replicas(replicas) => (replicas.render)(stored, flags, now),
        Shape::Application => application(stored, flags, now),
        Shape::Schedule => bail!(
            "a ScheduledSparkApplication creates SparkApplications: render its spec.template as a SparkApplication"
        ),
    }
}

fn typed<T: DeserializeOwned>(stored: Value) -> Result<T> {
    serde_json::from_value(stored).map_err(|e| anyhow!("the manifest can't be read: {e}"))
}

/// Renders a `PyTorchJob`.
pub fn pytorch(stored: Value, flags: &Flags, now: Timestamp) -> Result<Rendered> {
    let cli: pytorch_operator::args::Cli = flags.parse()?;
    let template = flags.file(&cli.pytorch_init_container_template_file)?;
    let framework = cli.framework(template.as_deref())?;
    training(&framework, (&cli.jobs, &cli.runtime), stored, now)
}

/// Renders an `MPIJob`.
pub fn mpi(stored: Value, flags: &Flags, now: Timestamp) -> Result<Rendered> {
    let cli: mpi_operator::args::Cli = flags.parse()?;
    training(&cli.framework(), (&cli.jobs, &cli.runtime), stored, now)
}

/// Renders a `TFJob`.
pub fn tensorflow(stored: Value, flags: &Flags, now: Timestamp) -> Result<Rendered> {
    let cli: entry::Cli<NoArgs> = flags.parse()?;
    let framework = TensorFlow {
        cluster_domain: cli.jobs.cluster_domain().map(str::to_owned),
    };
    training(&framework, (&cli.jobs, &cli.runtime), stored, now)
}

/// Renders a job whose framework has no settings.
pub fn plain<F: Lifecycle + Default>(
    stored: Value,
    flags: &Flags,
    now: Timestamp,
) -> Result<Rendered> {
    let cli: entry::Cli<NoArgs> = flags.parse()?;
    training(&F::default(), (&cli.jobs, &cli.runtime), stored, now)
}

fn training<F: Lifecycle>(
    framework: &F,
    (args, runtime): (&JobArgs, &RuntimeArgs),
    stored: Value,
    now: Timestamp,
) -> Result<Rendered> {
    args.validate()?;
    let mut job: F::Job = typed(stored)?;
    if training_core::is_managed_elsewhere::<F>(&job) {
        bail!(
            "spec.runPolicy.managedBy names another controller: the operator would create nothing"
        );
    }
    let mut created = Created::default();
    created.observed.rules = Rules {
        strict: runtime.strict,
        ..args.rules()
    };
    created.observed.gang = Setting {
        provider: args.gang(),
        offers: Availabilities::all(),
        kueue: Some(args.gang() == Provider::Kueue),
    };
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
    let state = job
        .status()
        .map(JobState::durable_state)
        .unwrap_or_default();
    let failed = state
        .conditions
        .iter()
        .find(|c| c.holds(ConditionType::Failed));
    rendered.refused = failed.map(|c| c.message.clone().unwrap_or_default());
    if state.holds(ConditionType::Suspended) {
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
        let owner_kind = feed::owner_kind::<F>();
        Ok(match step {
            Step::CreatePod(pod) => {
                let view = slim::pod_view(&stored(&*pod, &uid)?, owner_kind, &mut self.roles);
                self.observed.pods.extend(view.map(|owned| owned.view));
                Some(json!(pod))
            }
            Step::CreateService(service) => {
                let view =
                    slim::service_view(&stored(&*service, &uid)?, owner_kind, &mut self.roles);
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
            Step::CreateGroup { kind, object, .. } => {
                let mut seen: Value = stored(&object, &uid)?;
                // The scheduler admits the group.
                seen["status"]["phase"] = json!("Inqueue");
                let seen: Group = serde_json::from_value(seen)?;
                let view = feed::group::seen_view(&seen, kind, owner_kind);
                self.observed.groups.extend(view);
                Some(*object)
            }
            Step::LookUpGroup { kind, .. } => {
                self.observed.sought.push(kind);
                None
            }
            // These steps need objects that do not exist here.
            Step::RecreateSecret(_)
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

/// Renders a `SparkApplication`.
fn application(stored: Value, flags: &Flags, now: Timestamp) -> Result<Rendered> {
    let operator = flags.parse::<spark_operator::args::Cli>()?.operator()?;
    let digest = digest::spec_digest(&stored["spec"]);
    let app: SparkApplication = typed(stored)?;
    let next = lifecycle::plan(PlanInput {
        app: &app,
        digest: &digest,
        observed: &ObservedApplication::default(),
        settings: &operator.settings,
        rules: &operator.rules,
        now,
    });
    let objects = next.steps.into_iter().filter_map(|step| match step {
        SparkStep::Create(new) | SparkStep::CreateOptional(new) => Some(json!(new)),
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
