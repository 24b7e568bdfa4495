//! `pytorch-operator`: the operator, and the small helper that its init container runs.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Parser;
use pytorch_operator::PyTorch;
use pytorch_operator::init::{DEFAULT_IMAGE, DEFAULT_TRIES, InitContainer};
use training_runtime::{RuntimeArgs, cli, wait};

/// Runs PyTorchJobs (kubeflow.org/v1)
#[derive(Parser, Debug)]
#[command(
    name = "pytorch-operator",
    version,
    about,
    args_conflicts_with_subcommands = true
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    runtime: RuntimeArgs,

    /// Image of the init container that makes workers wait for their master
    #[arg(long, env = "TRAINYARD_PYTORCH_INIT_CONTAINER_IMAGE", default_value = DEFAULT_IMAGE)]
    pytorch_init_container_image: String,

    /// File with the init container's template, a YAML list of containers; a file that is absent means the built-in one
    #[arg(
        long,
        env = "TRAINYARD_PYTORCH_INIT_CONTAINER_TEMPLATE_FILE",
        default_value = "/etc/config/initContainer.yaml"
    )]
    pytorch_init_container_template_file: PathBuf,

    /// How often the init container looks for the master, two seconds apart
    #[arg(long, env = "TRAINYARD_PYTORCH_INIT_CONTAINER_MAX_TRIES", default_value_t = DEFAULT_TRIES)]
    pytorch_init_container_max_tries: u32,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Waits until a host name resolves; the init container of workers
    WaitForHost(wait::WaitArgs),
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let cli = Cli::parse_from(cli::normalise_args(std::env::args_os()));
    if let Some(Command::WaitForHost(args)) = cli.command {
        return wait::for_host(&args).await;
    }
    let template = template(&cli.pytorch_init_container_template_file)?;
    let init = InitContainer::new(
        cli.pytorch_init_container_image,
        cli.pytorch_init_container_max_tries,
        template.as_deref(),
    )
    .with_context(|| format!("{}", cli.pytorch_init_container_template_file.display()))?;
    training_runtime::run(PyTorch { init }, cli.runtime).await
}

/// The template's text, or nothing where there is no such file.
fn template(file: &Path) -> anyhow::Result<Option<String>> {
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("read {}", file.display())),
    }
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
                format!("{dashes}pytorch-init-container-image=img"),
                format!("{dashes}pytorch-init-container-max-tries=3"),
                format!("{dashes}pytorch-init-container-template-file=/x"),
                format!("{dashes}leader-elect=true"),
            ];
            let cli = Cli::parse_from(cli::normalise_args(args.into_iter().map(Into::into)));
            assert_eq!(cli.pytorch_init_container_image, "img");
            assert!(cli.runtime.leader_elect);
        }
    }
}
