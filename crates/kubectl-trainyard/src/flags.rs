//! The flags of an operator: of the shipped Deployment, or of one in a cluster.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use clap::builder::Resettable;
use clap::{CommandFactory, FromArgMatches};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Container, EnvVar, PodSpec, Volume};
use kube::ResourceExt as _;
use serde::de::DeserializeOwned;
use serde_json::Value;
use training_core::Provider;
use training_runtime::entry::{self, NoArgs};
use training_runtime::{RuntimeArgs, cli};

use crate::cli::{OperatorFlags, Target};
use crate::cluster::{Cluster, explain};
use crate::kinds::Kind;

/// The namespace of the shipped manifests.
const NAMESPACE: &str = "trainyard-system";
/// The `ConfigMap`s that the Deployments of the shipped manifests mount.
const CONFIGS: [&str; 1] = [include_str!(
    "../../../manifests/pytorch-operator/config.yaml"
)];

/// An operator.
#[derive(Clone, Copy, Debug)]
pub struct Operator {
    /// The name of its program, Deployment and image.
    pub name: &'static str,
    /// Its Deployment in the shipped manifests.
    deployment: &'static str,
    command: fn() -> clap::Command,
    settings: fn(&Flags) -> Result<Settings>,
}

impl Operator {
    /// Returns an operator with this command line.
    pub fn of<C: OperatorCli>(name: &'static str, deployment: &'static str) -> Self {
        Self {
            name,
            deployment,
            command: C::command,
            settings: |flags| Ok(flags.parse::<C>()?.settings()),
        }
    }

    /// Returns its settings from its Deployment.
    pub fn settings(&self, deployment: &Deployment) -> Result<Settings> {
        (self.settings)(&Flags::of_deployment(self, deployment)?)
    }

    /// Returns true if a Deployment with the labels of the shipped manifests runs it.
    pub fn is_run_by(&self, deployment: &Deployment) -> bool {
        is_ours(deployment) && label(deployment, "app.kubernetes.io/name") == Some(self.name)
    }
}

/// The command line of an operator.
pub trait OperatorCli: CommandFactory + FromArgMatches {
    /// Translates published flags into the operator's own.
    fn translated(words: Vec<OsString>) -> Vec<OsString> {
        words
    }

    /// Returns what the operator does by its flags.
    fn settings(&self) -> Settings;
}

impl OperatorCli for entry::Cli<NoArgs> {
    fn settings(&self) -> Settings {
        Settings::of(Some(self.jobs.gang()), &self.runtime)
    }
}

impl OperatorCli for pytorch_operator::args::Cli {
    fn settings(&self) -> Settings {
        Settings::of(Some(self.jobs.gang()), &self.runtime)
    }
}

impl OperatorCli for mpi_operator::args::Cli {
    fn translated(words: Vec<OsString>) -> Vec<OsString> {
        mpi_operator::args::translated(words, None)
    }

    fn settings(&self) -> Settings {
        Settings::of(Some(self.jobs.gang()), &self.runtime)
    }
}

impl OperatorCli for spark_operator::args::Cli {
    fn translated(words: Vec<OsString>) -> Vec<OsString> {
        spark_operator::args::translated(words.into_iter())
    }

    fn settings(&self) -> Settings {
        Settings::of(None, &self.runtime)
    }
}

/// What an operator does by its flags.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Who schedules its gangs; `None` if its jobs say.
    pub gang: Option<Provider>,
    /// The namespaces that it serves; empty for all.
    pub namespaces: Vec<String>,
}

impl Settings {
    fn of(gang: Option<Provider>, runtime: &RuntimeArgs) -> Self {
        Self {
            gang,
            namespaces: runtime.namespaces(),
        }
    }
}

/// The flags of an operator, and its files.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// The operator's name first.
    words: Vec<OsString>,
    files: BTreeMap<String, String>,
    /// Other files are those of this machine.
    local: bool,
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
        let mut flags = Self::of_deployment(&kind.operator, &found)?;
        for mount in mounts(&found) {
            // The kubelet starts no container without one that is not optional.
            if let Some(config) = configs.get_opt(&mount.config).await.map_err(explain)? {
                flags.add(&mount, config);
            }
        }
        Ok(flags)
    }

    /// Returns the flags of the shipped Deployment and others, which replace the same ones.
    pub fn shipped(kind: &Kind, others: &str) -> Result<Self> {
        let deployment: Deployment = parsed(kind.operator.deployment)?;
        let mut flags = Self::of_deployment(&kind.operator, &deployment)?;
        flags.local = true;
        for mount in mounts(&deployment) {
            for text in CONFIGS {
                let config: ConfigMap = parsed(text)?;
                if config.metadata.name.as_ref() == Some(&mount.config) {
                    flags.add(&mount, config);
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
    pub fn of_deployment(operator: &Operator, deployment: &Deployment) -> Result<Self> {
        let name = deployment.name_any();
        let container = pod(deployment).and_then(|pod| container_of(operator.name, pod));
        let Some(container) = container else {
            let operator = operator.name;
            bail!("Deployment {name} does not run {operator}: name that of {operator}");
        };
        let variables = variables(deployment, container);
        let command = container.command.iter().flatten().skip(1);
        let words = command.chain(container.args.iter().flatten());
        let words = words.map(|word| expanded(word, &variables));
        let words = std::iter::once(operator.name.to_owned()).chain(words);
        let mut words = cli::normalise_args(words.map(Into::into));
        let command = (operator.command)();
        for (variable, value) in &variables {
            let mut all = command.get_arguments();
            let argument = all.find(|a| a.get_env().is_some_and(|env| *env == **variable));
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
            ..Self::default()
        })
    }

    /// Adds the files of a mounted `ConfigMap`.
    pub fn add(&mut self, mount: &Mount, config: ConfigMap) {
        for (key, text) in config.data.into_iter().flatten() {
            let file = match &mount.keys {
                Some(keys) => keys.get(&key).cloned(),
                None => Some(key),
            };
            let Some(file) = file else { continue };
            let path = match &mount.sub_path {
                Some(sub_path) if *sub_path == file => mount.path.clone(),
                Some(_) => continue,
                None => format!("{}/{file}", mount.path),
            };
            self.files.insert(path, text);
        }
    }

    /// Parses the flags. Variables of this process don't count.
    pub fn parse<C: OperatorCli>(&self) -> Result<C> {
        let words = C::translated(self.words.clone());
        let command = C::command().mut_args(|argument| argument.env(Resettable::Reset));
        let parsed = command.try_get_matches_from(words);
        let parsed = parsed.and_then(|mut matches| C::from_arg_matches_mut(&mut matches));
        match parsed {
            Ok(parsed) => Ok(parsed),
            Err(error) => {
                let text = error.to_string();
                let line = text.lines().next().unwrap_or_default();
                bail!(
                    "invalid operator flags: {}",
                    line.trim_start_matches("error: ")
                )
            }
        }
    }

    /// Returns the text of a file of the operator. `None` if there is no such file.
    pub fn file(&self, path: &Path) -> Result<Option<String>> {
        if let Some(text) = self.files.get(&*path.to_string_lossy()) {
            return Ok(Some(text.clone()));
        }
        if !self.local {
            return Ok(None);
        }
        pytorch_operator::args::template(path)
    }
}

/// Parses YAML. It is read as a JSON value first: to decode the types from YAML as well would take half a megabyte of code.
fn parsed<T: DeserializeOwned>(text: &str) -> Result<T> {
    let value: Value = serde_saphyr::from_str(text)?;
    Ok(serde_json::from_value(value)?)
}

/// Returns true if a Deployment has the labels of the shipped manifests.
pub fn is_ours(deployment: &Deployment) -> bool {
    label(deployment, "app.kubernetes.io/part-of") == Some("trainyard")
}

fn label<'a>(deployment: &'a Deployment, key: &str) -> Option<&'a str> {
    deployment.labels().get(key).map(String::as_str)
}

/// Returns the containers of a Deployment's pods.
pub fn containers(deployment: &Deployment) -> impl Iterator<Item = &Container> {
    pod(deployment).into_iter().flat_map(|pod| &pod.containers)
}

fn pod(deployment: &Deployment) -> Option<&PodSpec> {
    deployment.spec.template.spec.as_ref()
}

/// Returns the operator's container: the one that runs its program, otherwise the first one that names no program.
fn container_of<'a>(operator: &str, pod: &'a PodSpec) -> Option<&'a Container> {
    let program = |c: &'a Container| c.command.iter().flatten().next();
    let runs = |c: &&'a Container| program(c).is_some_and(|program| program.ends_with(operator));
    let mut all = pod.containers.iter();
    all.find(runs)
        .or_else(|| pod.containers.iter().find(|c| program(c).is_none()))
}

/// Returns the variables of a container with their values, as far as the Deployment tells them.
fn variables(deployment: &Deployment, container: &Container) -> BTreeMap<String, String> {
    let value = |variable: &EnvVar| {
        let field = variable.value_from.as_ref().and_then(|from| {
            let path = &from.field_ref.as_ref()?.field_path;
            match path.as_str() {
                "metadata.namespace" => deployment.namespace(),
                "metadata.name" => Some(deployment.name_any()),
                _ => None,
            }
        });
        variable.value.clone().or(field)
    };
    let all = container.env.iter().flatten();
    all.filter_map(|variable| Some((variable.name.clone(), value(variable)?)))
        .collect()
}

/// Replaces `$(NAME)`, as the kubelet does.
fn expanded(word: &str, variables: &BTreeMap<String, String>) -> String {
    let mut word = word.to_owned();
    for (name, value) in variables {
        word = word.replace(&format!("$({name})"), value);
    }
    word
}

/// A `ConfigMap` that a container mounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The directory, or the file if there is a `sub_path`.
    pub path: String,
    /// The one file that is mounted.
    pub sub_path: Option<String>,
    /// The name of the `ConfigMap`.
    pub config: String,
    /// The files of its keys, if not all keys are files of their names.
    pub keys: Option<BTreeMap<String, String>>,
}

/// Returns the `ConfigMap`s that the containers of a Deployment mount.
pub fn mounts(deployment: &Deployment) -> Vec<Mount> {
    let volumes: Vec<&Volume> = pod(deployment)
        .into_iter()
        .flat_map(|pod| pod.volumes.iter().flatten())
        .collect();
    let all = containers(deployment).flat_map(|c| c.volume_mounts.iter().flatten());
    all.filter_map(|mount| {
        let volume = volumes.iter().find(|volume| volume.name == mount.name)?;
        let config = volume.config_map.as_ref()?;
        let items = config.items.as_ref();
        let keys = items.map(|items| {
            let item = items.iter().map(|i| (i.key.clone(), i.path.clone()));
            item.collect()
        });
        Some(Mount {
            path: mount.mount_path.clone(),
            sub_path: mount.sub_path.clone(),
            config: config.name.clone(),
            keys,
        })
    })
    .collect()
}

/// Returns the name of a flag with its dashes.
fn name_of(word: &OsString) -> Option<String> {
    let word = word.to_string_lossy();
    let name = word.split('=').next().unwrap_or_default();
    name.starts_with("--").then(|| name.to_owned())
}
