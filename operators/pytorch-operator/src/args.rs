//! The binary's arguments. They are in the library so that documentation can be generated from them.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Parser;
use training_runtime::{JobArgs, RuntimeArgs, wait};

use crate::PyTorch;
use crate::init::{DEFAULT_IMAGE, DEFAULT_TRIES, InitContainer};

/// The help heading of these flags. Without it, they would appear under the previous heading.
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
    /// A subcommand to run instead of the operator.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// The arguments of operators whose jobs consist of replicas.
    #[command(flatten)]
    pub jobs: JobArgs,

    /// The arguments of all operators.
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

impl Cli {
    /// Returns the framework. `template` is the text of the init container's template file, `None` if there is no such file.
    ///
    /// # Errors
    /// If the template is invalid. Names the file.
    pub fn framework(&self, template: Option<&str>) -> anyhow::Result<PyTorch> {
        let init = InitContainer::new(
            &self.pytorch_init_container_image,
            self.pytorch_init_container_max_tries,
            template,
        );
        let file = self.pytorch_init_container_template_file.display();
        Ok(PyTorch {
            init: init.with_context(|| file.to_string())?,
        })
    }
}

/// Reads the init container's template file; `None` if it doesn't exist.
///
/// # Errors
/// If the file can't be read. Names it.
pub fn template(file: &Path) -> anyhow::Result<Option<String>> {
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("read {}", file.display())),
    }
}

/// The subcommands of the binary.
#[derive(clap::Subcommand, Debug)]
pub enum Command {
    /// Waits until a host name resolves; the init container of workers
    WaitForHost(wait::WaitArgs),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_fit_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_published_flags_are_accepted_in_both_spellings() {
        for dashes in ["-", "--"] {
            let args = [
                "pytorch-operator".to_owned(),
                // The Deployment may have the flag already: the last value counts.
                format!("{dashes}pytorch-init-container-image=former"),
                format!("{dashes}pytorch-init-container-image=img"),
                format!("{dashes}pytorch-init-container-max-tries=3"),
                format!("{dashes}pytorch-init-container-template-file=/x"),
                format!("{dashes}leader-elect=true"),
            ];
            let cli = Cli::parse_from(training_runtime::cli::normalise_args(
                args.into_iter().map(Into::into),
            ));
            assert_eq!(cli.pytorch_init_container_image, "img");
            assert!(cli.runtime.leader_elect);
        }
    }
}
