//! The kinds of jobs, from the operators' types.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use jax_operator::JAX;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::jiff::Timestamp;
use kube::core::ApiResource;
use mpi_operator::Mpi;
use paddle_operator::Paddle;
use pytorch_operator::PyTorch;
use serde_json::Value;
use spark_operator::{ScheduledSparkApplication, SparkApplication, api, controllers::Spark};
use tf_operator::TensorFlow;
use training_core::{DurableState, Framework, TrainingJob as _};
use training_runtime::entry::{self, NoArgs};
use training_runtime::run::Operator as _;
use xgboost_operator::XGBoost;

use crate::flags::{Flags, Operator, OperatorCli};
use crate::render::{self, Rendered};

/// The Deployment of an operator in the shipped manifests.
macro_rules! shipped {
    ($operator:literal) => {
        include_str!(concat!(
            "../../../manifests/",
            $operator,
            "/deployment.yaml"
        ))
    };
}

/// The command line of an operator without flags of its own.
type Plain = entry::Cli<NoArgs>;

/// Builds the CRD of a kind.
type Definition = fn() -> Result<CustomResourceDefinition, serde_json::Error>;

/// Renders the objects that the operator, with these flags, would create for a stored job.
type Renderer = fn(Value, &Flags, Timestamp) -> Result<Rendered>;

/// A kind of job.
#[derive(Clone, Debug)]
pub struct Kind {
    /// Its API resource.
    pub resource: ApiResource,
    /// Its CRD.
    pub definition: Definition,
    /// Its operator.
    pub operator: Operator,
    /// The structure of its jobs.
    pub shape: Shape,
}

/// The structure of a kind's jobs.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// Replica specs, as in a `PyTorchJob`.
    Replicas(Replicas),
    /// A `SparkApplication`: a driver and executors.
    Application,
    /// A `ScheduledSparkApplication`.
    Schedule,
}

/// The properties of a kind with replica specs.
#[derive(Clone, Copy, Debug)]
pub struct Replicas {
    /// The name of the main container; empty if it is the first container.
    pub container: &'static str,
    /// The values of `managedBy` for which its operator reconciles a job.
    pub managers: &'static [&'static str],
    /// Reinterprets a status that another operator wrote.
    pub reread: fn(&mut DurableState),
    /// Renders a manifest as its operator would.
    pub render: Renderer,
}

/// All kinds.
pub fn all() -> Vec<Kind> {
    let spark = Operator::of::<spark_operator::args::Cli>(Spark::NAME, shipped!("spark-operator"));
    vec![
        training::<PyTorch, pytorch_operator::args::Cli>(
            pytorch_operator::api::crd,
            render::pytorch,
            shipped!("pytorch-operator"),
        ),
        training::<TensorFlow, Plain>(
            tf_operator::api::crd,
            render::tensorflow,
            shipped!("tf-operator"),
        ),
        training::<XGBoost, Plain>(
            xgboost_operator::api::crd,
            render::plain::<XGBoost>,
            shipped!("xgboost-operator"),
        ),
        training::<JAX, Plain>(
            jax_operator::api::crd,
            render::plain::<JAX>,
            shipped!("jax-operator"),
        ),
        training::<Paddle, Plain>(
            paddle_operator::api::crd,
            render::plain::<Paddle>,
            shipped!("paddle-operator"),
        ),
        training::<Mpi, mpi_operator::args::Cli>(
            mpi_operator::api::crd,
            render::mpi,
            shipped!("mpi-operator"),
        ),
        Kind {
            resource: ApiResource::erase::<SparkApplication>(&()),
            definition: api::application_crd,
            operator: spark,
            shape: Shape::Application,
        },
        Kind {
            resource: ApiResource::erase::<ScheduledSparkApplication>(&()),
            definition: api::scheduled_crd,
            operator: spark,
            shape: Shape::Schedule,
        },
    ]
}

/// Builds the entry of a kind with replica specs, whose operator has the command line `C`.
fn training<F: Framework + Default, C: OperatorCli>(
    definition: Definition,
    render: Renderer,
    deployment: &'static str,
) -> Kind {
    Kind {
        resource: ApiResource::erase::<F::Job>(&()),
        definition,
        operator: Operator::of::<C>(F::OPERATOR, deployment),
        shape: Shape::Replicas(Replicas {
            container: F::CONTAINER,
            managers: F::MANAGED_BY,
            reread: F::Job::reread,
            render,
        }),
    }
}

impl Kind {
    /// The name, such as `PyTorchJob`.
    pub fn name(&self) -> &str {
        &self.resource.kind
    }

    /// True if a word of the command line names this kind: `PyTorchJob`, `pytorchjobs`, `pytorchjobs.kubeflow.org`.
    fn matches(&self, word: &str) -> bool {
        let word = word.to_ascii_lowercase();
        let group = format!(".{}", self.resource.group);
        let word = word.strip_suffix(&group).unwrap_or(&word);
        word == self.resource.plural || word == self.name().to_ascii_lowercase()
    }

    /// Returns its resource in the versions that are not the preferred one.
    pub fn other_versions(&self) -> Vec<ApiResource> {
        let versions = (self.definition)().map(|definition| definition.spec.versions);
        let others = versions.unwrap_or_default().into_iter();
        let others = others.filter(|version| version.name != self.resource.version);
        others
            .map(|version| ApiResource {
                api_version: format!("{}/{}", self.resource.group, version.name),
                version: version.name,
                ..self.resource.clone()
            })
            .collect()
    }

    /// Returns the label of pods with the name of their job.
    fn pod_label(&self) -> &'static str {
        match self.shape {
            Shape::Replicas(_) => training_api::labels::JOB_NAME,
            Shape::Application | Shape::Schedule => spark_operator::label::APP_NAME,
        }
    }

    /// Returns the label selector for the pods of a job.
    pub fn pod_selector(&self, job: &str) -> String {
        format!("{}={job}", self.pod_label())
    }

    /// Returns the part of the spec that suspends or resumes a job.
    pub fn suspend_patch(&self, suspend: bool) -> Value {
        let field = serde_json::json!({ "suspend": suspend });
        match self.shape {
            Shape::Replicas(_) => serde_json::json!({ "runPolicy": field }),
            Shape::Application | Shape::Schedule => field,
        }
    }
}

/// Returns the labels of pods with the names of their jobs, of all kinds.
pub fn pod_labels() -> BTreeSet<&'static str> {
    all().iter().map(Kind::pod_label).collect()
}

/// Parses `NAME` or `KIND/NAME`. Without a kind, returns all kinds.
pub fn resolve(word: &str) -> Result<(Vec<Kind>, &str)> {
    let mut kinds = all();
    let Some((kind, name)) = word.split_once('/') else {
        return Ok((kinds, word));
    };
    let known: Vec<String> = kinds
        .iter()
        .map(|k| k.name().to_ascii_lowercase())
        .collect();
    kinds.retain(|k| k.matches(kind));
    if kinds.is_empty() {
        bail!("unknown job kind {kind}: use one of {}", known.join(", "));
    }
    Ok((kinds, name))
}

/// Returns the kind of a manifest, in the manifest's API version: `MPIJob` has two.
pub fn of_manifest(manifest: &Value) -> Result<Kind> {
    let text = |key: &str| manifest[key].as_str().unwrap_or_default();
    let (version, kind) = (text("apiVersion"), text("kind"));
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let mut kinds = all().into_iter();
    match kinds.find(|k| k.name() == kind && k.resource.group == group) {
        Some(mut found) => {
            let own = version.split_once('/').map_or("", |(_, own)| own);
            version.clone_into(&mut found.resource.api_version);
            own.clone_into(&mut found.resource.version);
            Ok(found)
        }
        None => bail!("{version} {kind} is not a Trainyard job: check apiVersion and kind"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kinds_are_those_of_the_registry() {
        let registry = training_manifests::operator::all().unwrap();
        let mut registered: Vec<_> = registry
            .iter()
            .flat_map(|operator| &operator.kinds)
            .map(|k| (k.name.clone(), k.group.clone(), k.plural.clone()))
            .collect();
        let mut known: Vec<_> = all()
            .into_iter()
            .map(|k| (k.resource.kind, k.resource.group, k.resource.plural))
            .collect();
        registered.sort();
        known.sort();
        assert_eq!(known, registered);
    }

    #[test]
    fn a_kind_is_resolved_by_kind_plural_and_full_name() {
        for word in ["PyTorchJob", "pytorchjobs", "PYTORCHJOBS.kubeflow.org"] {
            let named = format!("{word}/ddp");
            let (kinds, name) = resolve(&named).unwrap();
            assert_eq!(
                (kinds.len(), kinds[0].name(), name),
                (1, "PyTorchJob", "ddp")
            );
        }
        assert_eq!(resolve("ddp").unwrap().0.len(), all().len());
        let error = resolve("pod/ddp").unwrap_err().to_string();
        assert!(
            error.starts_with("unknown job kind pod: use one of pytorchjob, "),
            "{error}"
        );
    }

    #[test]
    fn a_manifest_of_another_group_is_rejected() {
        let of = |version: &str, kind: &str| {
            of_manifest(&serde_json::json!({ "apiVersion": version, "kind": kind }))
        };
        assert_eq!(
            of("kubeflow.org/v1", "MPIJob").unwrap().resource.version,
            "v1"
        );
        assert!(of("example.com/v1", "MPIJob").is_err());
        assert!(of("v1", "Pod").is_err());
    }
}
