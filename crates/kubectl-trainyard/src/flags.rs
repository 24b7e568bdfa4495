//! The flags of an operator: of the shipped Deployment, or of one in a cluster.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail};
use clap::{CommandFactory as _, Parser as _};
use jax_operator::JAX;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Container, PodSpec};
use kube::ResourceExt as _;
use training_core::Provider;
use training_runtime::cli;
use training_runtime::entry::{self, NoArgs};

use crate::cli::{OperatorFlags, Target};
use crate::cluster::{Cluster, explain};
use crate::kinds::Kind;

/// The namespace of the shipped manifests.
const NAMESPACE: &str = "trainyard-system";
/// The Deployments of the shipped manifests.
const DEPLOYMENTS: [&str; 7] = [
    include_str!("../../../manifests/pytorch-operator/deployment.yaml"),
    include_str!("../../../manifests/tf-operator/deployment.yaml"),
    include_str!("../../../manifests/xgboost-operator/deployment.yaml"),
    include_str!("../../../manifests/jax-operator/deployment.yaml"),
    include_str!("../../../manifests/paddle-operator/deployment.yaml"),
    include_str!("../../../manifests/mpi-operator/deployment.yaml"),
    include_str!("../../../manifests/spark-operator/deployment.yaml"),
];
/// The `ConfigMap`s that they mount.
const CONFIGS: [&str; 1] = [include_str!(
    "../../../manifests/pytorch-operator/config.yaml"
)];

/// The command line of an operator, and the files that it may read.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    words: Vec<OsString>,
    files: BTreeMap<String, String>,
}

impl Flags {
    /// Returns the flags of a kind's operator as the command line asks for them.
    pub async fn of(kind: &Kind, given: &OperatorFlags, target: &Target) -> Result<Self> {
        let Some(deployment) = &given.operator_deployment else {
            return Self::shipped(kind, given.operator_flags.as_deref().unwrap_or_default());
        };
        let (namespace, name) = deployment
            .split_once('/')
            .unwrap_or((NAMESPACE, deployment.as_str()));
        let mut cluster = Cluster::connect(target).await?;
        namespace.clone_into(&mut cluster.namespace);
        let found = cluster.api::<Deployment>().get(name).await;
        let found = found.map_err(explain)?;
        let configs = cluster.api::<ConfigMap>();
        let mut flags = Self::of_deployment(kind.operator, &found)?;
        for (directory, config) in mounts(&found) {
            let config = configs.get(&config).await.map_err(explain)?;
            flags.mount(&directory, config);
        }
        Ok(flags)
    }

    /// Returns the flags of the shipped Deployment and others, which replace the same ones.
    pub fn shipped(kind: &Kind, others: &str) -> Result<Self> {
        let deployment = shipped(kind.operator)?;
        let mut flags = Self::of_deployment(kind.operator, &deployment)?;
        for (directory, name) in mounts(&deployment) {
            for text in CONFIGS {
                let config: ConfigMap = serde_saphyr::from_str(text)?;
                if config.metadata.name.as_ref() == Some(&name) {
                    flags.mount(&directory, config);
                }
            }
        }
        let others = shlex::split(others)
            .context("--operator-flags has a quote without an end: close it")?;
        // The first word counts as the program's name.
        let others = std::iter::once(String::new()).chain(others);
        let mut others = cli::normalise_args(others.map(Into::into));
        others.remove(0);
        let names: Vec<String> = others.iter().filter_map(name_of).collect();
        let replaced = |word: &OsString| names.iter().any(|name| cli::is_flag(word, name));
        flags.words.retain(|word| !replaced(word));
        flags.words.extend(others);
        Ok(flags)
    }

    /// Reads the command line of a Deployment. Variables of its container become flags.
    pub fn of_deployment(operator: &str, deployment: &Deployment) -> Result<Self> {
        let container = pod(deployment).and_then(|pod| container_of(operator, pod));
        let container = container.with_context(|| {
            let name = deployment.metadata.name.as_deref().unwrap_or_default();
            format!("Deployment {name} has no container: it is not that of {operator}")
        })?;
        let command = container.command.iter().flatten().skip(1);
        let words = command.chain(container.args.iter().flatten());
        let words = std::iter::once(operator).chain(words.map(String::as_str));
        let mut words = cli::normalise_args(words.map(Into::into));
        let command = command_of(operator);
        for variable in container.env.iter().flatten() {
            let Some(value) = &variable.value else {
                continue;
            };
            let mut all = command.get_arguments();
            let argument = all.find(|a| a.get_env().is_some_and(|env| *env == *variable.name));
            let Some(long) = argument.and_then(clap::Arg::get_long) else {
                continue;
            };
            let flag = format!("--{long}");
            if !words.iter().any(|word| cli::is_flag(word, &flag)) {
                words.push(format!("{flag}={value}").into());
            }
        }
        Ok(Self {
            words,
            files: BTreeMap::new(),
        })
    }

    /// Adds the files of a `ConfigMap` that is mounted at a directory.
    pub fn mount(&mut self, directory: &str, config: ConfigMap) {
        for (file, text) in config.data.into_iter().flatten() {
            self.files.insert(format!("{directory}/{file}"), text);
        }
    }

    /// Parses the flags.
    pub fn parse<C>(
        &self,
        parse: impl FnOnce(std::vec::IntoIter<OsString>) -> Result<C, clap::Error>,
    ) -> Result<C> {
        parse(self.words.clone().into_iter()).map_err(|error| {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            anyhow!(
                "invalid operator flags: {}",
                line.trim_start_matches("error: ")
            )
        })
    }

    /// Returns the text of a file of the operator: from its `ConfigMap`s, or from this machine. `None` if there is no such file.
    pub fn file(&self, path: &Path) -> Result<Option<String>> {
        if let Some(text) = self.files.get(&*path.to_string_lossy()) {
            return Ok(Some(text.clone()));
        }
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => bail!("{}: {error}", path.display()),
        }
    }
}

/// Returns the Deployment of the shipped manifests.
fn shipped(operator: &str) -> Result<Deployment> {
    for text in DEPLOYMENTS {
        let deployment: Deployment = serde_saphyr::from_str(text)?;
        if deployment.metadata.name.as_deref() == Some(operator) {
            return Ok(deployment);
        }
    }
    bail!("{operator} has no manifests")
}

/// Returns the arguments of an operator.
fn command_of(operator: &str) -> clap::Command {
    match operator {
        "pytorch-operator" => pytorch_operator::args::Cli::command(),
        "mpi-operator" => mpi_operator::args::Cli::command(),
        "spark-operator" => spark_operator::args::Cli::command(),
        _ => entry::Cli::<NoArgs>::command(),
    }
}

/// Returns true if a Deployment has the labels of the shipped manifests.
pub fn is_ours(deployment: &Deployment) -> bool {
    label(deployment, "app.kubernetes.io/part-of") == Some("trainyard")
}

/// Returns true if a Deployment with the labels of the shipped manifests runs this operator.
pub fn runs(operator: &str, deployment: &Deployment) -> bool {
    is_ours(deployment) && label(deployment, "app.kubernetes.io/name") == Some(operator)
}

fn label<'a>(deployment: &'a Deployment, key: &str) -> Option<&'a str> {
    deployment.labels().get(key).map(String::as_str)
}

/// Returns the containers of a Deployment's pods.
pub fn containers(deployment: &Deployment) -> impl Iterator<Item = &Container> {
    pod(deployment).into_iter().flat_map(|pod| &pod.containers)
}

/// Returns the gang scheduler of an operator's Deployment; `None` if jobs of the kind name theirs.
pub fn gang(kind: &Kind, deployment: &Deployment) -> Result<Option<Provider>> {
    let flags = Flags::of_deployment(kind.operator, deployment)?;
    let jobs = match kind.operator {
        "pytorch-operator" => {
            flags
                .parse(pytorch_operator::args::Cli::try_parse_from)?
                .jobs
        }
        "mpi-operator" => {
            flags
                .parse(|words| mpi_operator::args::Cli::of(words, None))?
                .jobs
        }
        "spark-operator" => return Ok(None),
        _ => {
            flags
                .parse(|words| entry::parse::<JAX, NoArgs>("", words))?
                .jobs
        }
    };
    Ok(Some(jobs.gang()))
}

fn pod(deployment: &Deployment) -> Option<&PodSpec> {
    deployment.spec.template.spec.as_ref()
}

/// Returns the operator's container: the one that runs its program, otherwise the first one.
fn container_of<'a>(operator: &str, pod: &'a PodSpec) -> Option<&'a Container> {
    let runs = |c: &&Container| {
        let program = c.command.iter().flatten().next();
        program.is_some_and(|program| program.ends_with(operator))
    };
    pod.containers.iter().find(runs).or(pod.containers.first())
}

/// Returns the directories at which a Deployment's containers mount `ConfigMap`s, and their names.
pub fn mounts(deployment: &Deployment) -> Vec<(String, String)> {
    let Some(pod) = pod(deployment) else {
        return Vec::new();
    };
    let config = |volume: &str| {
        let mut volumes = pod.volumes.iter().flatten();
        let volume = volumes.find(|v| v.name == volume)?;
        Some(volume.config_map.as_ref()?.name.clone())
    };
    let all = pod.containers.iter().flat_map(|c| &c.volume_mounts);
    all.flatten()
        .filter_map(|mount| Some((mount.mount_path.clone(), config(&mount.name)?)))
        .collect()
}

/// Returns the name of a flag with its dashes.
fn name_of(word: &OsString) -> Option<String> {
    let word = word.to_string_lossy();
    let name = word.split('=').next().unwrap_or_default();
    name.starts_with("--").then(|| name.to_owned())
}
