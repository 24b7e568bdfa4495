//! What one operator is, as far as its manifests and documents are concerned.

use anyhow::Context;
use clap::CommandFactory as _;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use mpi_operator::Mpi;
use pytorch_operator::{PyTorch, api, args};
use serde_json::{Value, json};
use tf_operator::TensorFlow;
use training_core::framework::Framework;
use training_core::grants::Grant;
use training_runtime::entry::{self, NoArgs};
use xgboost_operator::XGBoost;

use crate::admission::{self, Warning};

/// The namespace of the operators.
pub const NAMESPACE: &str = "trainyard-system";
/// The directory of the init container's template, as published.
const CONFIG_DIRECTORY: &str = "/etc/config";

/// One operator.
#[derive(Clone, Debug)]
pub struct Operator {
    /// Name of the Deployment and of everything around it, also of the binary: `pytorch-operator`.
    pub name: &'static str,
    /// The kind: `PyTorchJob`.
    pub kind: String,
    /// Its API group.
    pub group: String,
    /// Its API version.
    pub version: String,
    /// Its plural.
    pub plural: String,
    /// The CRD.
    pub crd: Value,
    /// The field of the spec that holds the replica specs.
    pub replica_map: &'static str,
    /// The published controller name.
    pub controller: &'static str,
    /// Rights beyond those that every operator needs.
    pub grants: &'static [Grant],
    /// Flags of the binary beyond those that every operator gets.
    pub args: Vec<Argument>,
    /// A `ConfigMap` that is mounted into the operator.
    pub config: Option<Config>,
    /// Warnings at admission.
    pub warnings: Vec<Warning>,
    /// The binary's flags.
    pub command: clap::Command,
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
    /// Where it is mounted.
    pub path: &'static str,
    /// Name and content of the one file.
    pub file: (&'static str, Value),
}

impl Operator {
    /// The image, as released.
    pub fn image(&self) -> String {
        format!("trainyard/{}:{}", self.name, env!("CARGO_PKG_VERSION"))
    }
}

/// Every operator.
///
/// # Errors
/// If a CRD can't be written as JSON.
pub fn all() -> anyhow::Result<Vec<Operator>> {
    Ok(vec![pytorch()?, tensorflow()?, xgboost()?, mpi()?])
}

fn pytorch() -> anyhow::Result<Operator> {
    let mut operator = of(&PyTorch::default(), &api::crd()?, args::Cli::command())?;
    operator.args = vec![Argument::OwnImage("--pytorch-init-container-image")];
    operator.config = Some(Config {
        name: "pytorch-operator-init-container",
        path: CONFIG_DIRECTORY,
        file: ("initContainer.yaml", init_container()),
    });
    operator.warnings.extend(admission::pytorch());
    Ok(operator)
}

fn tensorflow() -> anyhow::Result<Operator> {
    let command = entry::command::<TensorFlow, NoArgs>(tf_operator::ABOUT);
    let mut operator = of(&TensorFlow::default(), &tf_operator::api::crd()?, command)?;
    operator.warnings.extend(admission::tensorflow());
    Ok(operator)
}

fn xgboost() -> anyhow::Result<Operator> {
    let command = entry::command::<XGBoost, NoArgs>(xgboost_operator::ABOUT);
    of(&XGBoost, &xgboost_operator::api::crd()?, command)
}

fn mpi() -> anyhow::Result<Operator> {
    let mut operator = of(
        &Mpi::default(),
        &mpi_operator::api::crd()?,
        mpi_operator::args::Cli::command(),
    )?;
    operator.args = vec![Argument::OwnImage("--launcher-gate-image")];
    Ok(operator)
}

/// An operator with nothing but what all have.
fn of<F: Framework>(
    framework: &F,
    crd: &CustomResourceDefinition,
    command: clap::Command,
) -> anyhow::Result<Operator> {
    let spec = &crd.spec;
    let version = spec.versions.first().context("the CRD has no version")?;
    Ok(Operator {
        name: F::OPERATOR,
        kind: spec.names.kind.clone(),
        group: spec.group.clone(),
        version: version.name.clone(),
        plural: spec.names.plural.clone(),
        crd: serde_json::to_value(crd)?,
        replica_map: F::REPLICAS.field,
        controller: F::CONTROLLER,
        grants: framework.grants(),
        args: Vec::new(),
        config: None,
        warnings: admission::shared(F::REPLICAS.field),
        command,
    })
}

/// The init container of workers. It is the operator's own image, because that one is on the node's registry anyway and runs
/// where Pod Security is `restricted`.
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
