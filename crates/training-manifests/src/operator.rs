//! The data of each operator for its manifests and documents.

use anyhow::Context;
use clap::CommandFactory as _;
use jax_operator::JAX;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use mpi_operator::Mpi;
use paddle_operator::Paddle;
use pytorch_operator::{PyTorch, api, args};
use serde_json::{Value, json};
use tf_operator::TensorFlow;
use training_core::framework::Framework;
use training_core::gang;
use training_core::grants::{self, Grant};
use training_runtime::entry::{self, NoArgs};
use xgboost_operator::XGBoost;

use crate::admission::{self, Check, Checks};
use crate::strict;

/// The namespace of the operators.
pub const NAMESPACE: &str = "trainyard-system";
/// The directory of the init container's template, as published.
const CONFIG_DIRECTORY: &str = "/etc/config";

/// One operator.
#[derive(Clone, Debug)]
pub struct Operator {
    /// The name of the Deployment, its other objects and the binary: `pytorch-operator`.
    pub name: &'static str,
    /// The kinds that it serves, the main one first.
    pub kinds: Vec<Kind>,
    /// The data of kinds with replicas; `None` for other kinds.
    pub replicas: Option<Replicas>,
    /// Its rights in the jobs' namespaces, except those on its own kinds.
    pub rights: Vec<&'static Grant>,
    /// Rights for optional features, each in a separate file: the path without extension, and the rights.
    pub options: Vec<(String, Vec<&'static Grant>)>,
    /// Cluster policies for optional features, each in a separate file.
    pub policies: Vec<Policy>,
    /// The name and rights of the account of jobs' own pods, if they use the API server.
    pub account: Option<(&'static str, &'static [Grant])>,
    /// The Deployment's flags in addition to those of every operator.
    pub args: Vec<Argument>,
    /// A `ConfigMap` that is mounted into the operator.
    pub config: Option<Config>,
    /// The binary's flags.
    pub command: clap::Command,
}

/// A file of policies: its path without extension, and the function that creates its objects.
pub type Policy = (&'static str, fn(&Operator) -> Vec<Value>);

/// Every operator's policy of strict mode.
const STRICT: Policy = ("options/strict", strict::policies);

/// A kind that an operator serves.
#[derive(Clone, Debug)]
pub struct Kind {
    /// The kind: `PyTorchJob`.
    pub name: String,
    /// Its API group.
    pub group: String,
    /// Its API version.
    pub version: String,
    /// Its plural.
    pub plural: String,
    /// The CRD.
    pub crd: Value,
    /// The operator's verbs on it.
    pub verbs: &'static [&'static str],
    /// The reason for these verbs.
    pub why: &'static str,
    /// The checks at admission.
    pub checks: Checks,
}

impl Kind {
    /// Reads a kind from its CRD.
    ///
    /// # Errors
    /// If the CRD has no version, or can't be written as JSON.
    pub fn of(
        crd: &CustomResourceDefinition,
        verbs: &'static [&'static str],
        why: &'static str,
    ) -> anyhow::Result<Self> {
        let spec = &crd.spec;
        let version = spec.versions.first().context("the CRD has no version")?;
        Ok(Self {
            name: spec.names.kind.clone(),
            group: spec.group.clone(),
            version: version.name.clone(),
            plural: spec.names.plural.clone(),
            crd: serde_json::to_value(crd)?,
            verbs,
            why,
            checks: Checks::default(),
        })
    }

    /// Sets the checks at admission.
    #[must_use]
    pub fn checked(self, checks: Checks) -> Self {
        Self { checks, ..self }
    }
}

/// The data of a kind with replicas.
#[derive(Clone, Copy, Debug)]
pub struct Replicas {
    /// The field of the spec that holds the replica specs.
    pub map: &'static str,
    /// The published controller name.
    pub controller: &'static str,
}

/// A flag in the Deployment.
#[derive(Clone, Debug)]
pub enum Argument {
    /// A flag with the operator's own image as its value.
    OwnImage(&'static str),
}

/// Files for the operator.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the `ConfigMap`.
    pub name: &'static str,
    /// The mount path.
    pub path: &'static str,
    /// Name and content of the one file.
    pub file: (&'static str, Value),
}

impl Operator {
    /// Returns the kind that it is named after.
    ///
    /// # Panics
    /// If it serves none, which would be a defect of this crate.
    pub fn main(&self) -> &Kind {
        &self.kinds[0]
    }

    fn warn(&mut self, more: Vec<Check>) {
        self.kinds[0].checks.warnings.extend(more);
    }

    /// Returns the released image.
    pub fn image(&self) -> String {
        let (repository, tag) = self.image_parts();
        format!("{repository}:{tag}")
    }

    /// Returns the released image's name and tag.
    pub fn image_parts(&self) -> (String, &'static str) {
        (
            format!("trainyard/{}", self.name),
            env!("CARGO_PKG_VERSION"),
        )
    }
}

/// Returns every operator.
///
/// # Errors
/// If a CRD can't be written as JSON.
pub fn all() -> anyhow::Result<Vec<Operator>> {
    Ok(vec![
        pytorch()?,
        tensorflow()?,
        xgboost()?,
        paddle()?,
        jax()?,
        mpi()?,
        spark()?,
    ])
}

fn pytorch() -> anyhow::Result<Operator> {
    let mut operator = of(&PyTorch::default(), &api::crd()?, args::Cli::command())?;
    operator.args = vec![Argument::OwnImage("--pytorch-init-container-image")];
    operator.config = Some(Config {
        name: "pytorch-operator-init-container",
        path: CONFIG_DIRECTORY,
        file: ("initContainer.yaml", init_container()),
    });
    operator.warn(admission::pytorch());
    Ok(operator)
}

fn tensorflow() -> anyhow::Result<Operator> {
    let command = entry::command::<TensorFlow, NoArgs>(tf_operator::ABOUT);
    let mut operator = of(&TensorFlow::default(), &tf_operator::api::crd()?, command)?;
    operator.warn(admission::tensorflow());
    Ok(operator)
}

fn xgboost() -> anyhow::Result<Operator> {
    let command = entry::command::<XGBoost, NoArgs>(xgboost_operator::ABOUT);
    of(&XGBoost, &xgboost_operator::api::crd()?, command)
}

fn paddle() -> anyhow::Result<Operator> {
    let command = entry::command::<Paddle, NoArgs>(paddle_operator::ABOUT);
    of(&Paddle, &paddle_operator::api::crd()?, command)
}

fn jax() -> anyhow::Result<Operator> {
    let command = entry::command::<JAX, NoArgs>(jax_operator::ABOUT);
    of(&JAX, &jax_operator::api::crd()?, command)
}

fn mpi() -> anyhow::Result<Operator> {
    let mut operator = of(
        &Mpi::default(),
        &mpi_operator::api::crd()?,
        mpi_operator::args::Cli::command(),
    )?;
    operator.args = vec![Argument::OwnImage("--launcher-gate-image")];
    operator.warn(admission::mpi());
    let lost = mpi_operator::framework::LOST_PODS.iter().collect();
    operator
        .options
        .push(("options/lost-pods".to_owned(), lost));
    Ok(operator)
}

/// Returns an operator with the common data.
fn of<F: Framework>(
    framework: &F,
    crd: &CustomResourceDefinition,
    command: clap::Command,
) -> anyhow::Result<Operator> {
    let why = "It sees jobs, and deletes those whose time to live is over.";
    let options = gang::all_grants().into_iter();
    let options = options.map(|(provider, grants)| {
        let grants = grants.iter().collect();
        (format!("gang/{provider}"), grants)
    });
    let checks = Checks {
        warnings: admission::shared(F::REPLICAS.field),
        ..Checks::default()
    };
    Ok(Operator {
        name: F::OPERATOR,
        kinds: vec![Kind::of(crd, grants::OWN_KIND, why)?.checked(checks)],
        replicas: Some(Replicas {
            map: F::REPLICAS.field,
            controller: F::CONTROLLER,
        }),
        rights: grants::REPLICAS.iter().chain(framework.grants()).collect(),
        options: options.collect(),
        policies: vec![STRICT],
        account: None,
        args: Vec::new(),
        config: None,
        command,
    })
}

fn spark() -> anyhow::Result<Operator> {
    let rows = spark_operator::grants::OPTIONS.iter();
    let options = rows.map(|(file, grants)| ((*file).to_owned(), grants.iter().collect()));
    Ok(Operator {
        name: "spark-operator",
        kinds: vec![
            Kind::of(
                &spark_operator::api::application_crd()?,
                spark_operator::grants::APPLICATIONS,
                "It sees applications, makes and removes those of schedules, and deletes those whose time to live is over.",
            )?
            .checked(admission::spark("SparkApplication", "spec")),
            Kind::of(
                &spark_operator::api::scheduled_crd()?,
                spark_operator::grants::SCHEDULES,
                "It sees schedules.",
            )?
            .checked(admission::spark(
                "ScheduledSparkApplication",
                "spec.template",
            )),
        ],
        replicas: None,
        rights: spark_operator::grants::RUNS.iter().collect(),
        options: options.collect(),
        policies: vec![
            (
                "options/executor-memory-limit",
                admission::executor_memory_limit,
            ),
            ("options/defaults", admission::stored_defaults),
            STRICT,
        ],
        account: Some(("spark-operator-spark", spark_operator::grants::DRIVERS)),
        args: Vec::new(),
        config: None,
        command: spark_operator::args::Cli::command(),
    })
}

/// Returns the init container of workers. It uses the operator's own image, because that is in the cluster's registry anyway and
/// passes Pod Security `restricted`.
fn init_container() -> Value {
    json!([{
        "name": api::INIT_CONTAINER,
        "image": "{{.InitContainerImage}}",
        "imagePullPolicy": "IfNotPresent",
        "command": ["/pytorch-operator", "wait-for-host", "--tries", "{{.MaxTries}}", "{{.MasterAddr}}"],
        "resources": {
            "limits": { "cpu": "100m", "memory": "20Mi" },
            "requests": { "cpu": "50m", "memory": "10Mi" },
        },
        "securityContext": crate::install::restricted(),
    }])
}
