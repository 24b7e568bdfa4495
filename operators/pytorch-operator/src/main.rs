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
            let cli = Cli::parse_from(cli::normalise_args(args.into_iter().map(Into::into)));
            assert_eq!(cli.pytorch_init_container_image, "img");
            assert!(cli.runtime.leader_elect);
        }
    }
}
