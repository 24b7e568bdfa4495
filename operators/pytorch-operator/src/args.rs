//! The binary's arguments. They are here, and not in the binary, so that documents are generated from them.

use std::path::PathBuf;

use clap::Parser;
use training_runtime::{JobArgs, RuntimeArgs, wait};

use crate::init::{DEFAULT_IMAGE, DEFAULT_TRIES};

/// What these flags stand under in the help; without it they would stand under the heading before them.
const INIT: &str = "Init container of workers";

/// Runs PyTorchJobs (kubeflow.org/v1)
#[derive(Parser, Debug)]
#[command(
    name = "pytorch-operator",
    version,
    about,
    args_conflicts_with_subcommands = true
)]
pub struct Cli {
    /// Something else than to run the operator.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// What operators understand whose jobs are made of replicas.
    #[command(flatten)]
    pub jobs: JobArgs,

    /// What every operator understands.
    #[command(flatten)]
    pub runtime: RuntimeArgs,

    /// Image of the init container that makes workers wait for their master
    #[arg(
        long,
        env = "TRAINYARD_PYTORCH_INIT_CONTAINER_IMAGE",
        default_value = DEFAULT_IMAGE,
        help_heading = INIT
    )]
    pub pytorch_init_container_image: String,

    /// File with the init container's template, a YAML list of containers; a file that is absent means the built-in one
    #[arg(
        long,
        env = "TRAINYARD_PYTORCH_INIT_CONTAINER_TEMPLATE_FILE",
        default_value = "/etc/config/initContainer.yaml",
        help_heading = INIT
    )]
    pub pytorch_init_container_template_file: PathBuf,

    /// How often the init container looks for the master, two seconds apart
    #[arg(
        long,
        env = "TRAINYARD_PYTORCH_INIT_CONTAINER_MAX_TRIES",
        default_value_t = DEFAULT_TRIES,
        help_heading = INIT
    )]
    pub pytorch_init_container_max_tries: u32,
}

/// What the binary does beside running the operator.
#[derive(clap::Subcommand, Debug)]
pub enum Command {
    /// Waits until a host name resolves; the init container of workers
    WaitForHost(wait::WaitArgs),
}
