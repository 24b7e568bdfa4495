//! `pytorch-operator`: the operator, and the helper that its init container runs.

use clap::Parser;
use pytorch_operator::args::{Cli, Command, template};
use training_runtime::{Training, cli, entry, wait};

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse_from(cli::normalise_args(std::env::args_os()));
    if let Some(Command::WaitForHost(args)) = cli.command {
        return entry::block_on(wait::for_host(&args));
    }
    let template = template(&cli.pytorch_init_container_template_file)?;
    let operator = Training {
        framework: cli.framework(template.as_deref())?,
        args: cli.jobs,
    };
    entry::serve(operator, cli.runtime)
}
