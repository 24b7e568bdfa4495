//! `mpi-operator`: the operator, and the helper that the launcher's init container runs.

use mpi_operator::args::{self, Command, NAMESPACE};
use mpi_operator::gate;
use training_runtime::{Training, entry};

fn main() -> anyhow::Result<()> {
    let cli = args::parse(std::env::args_os(), std::env::var_os(NAMESPACE));
    if let Some(Command::WaitForHosts(args)) = cli.command {
        return entry::block_on(async move {
            let given_up = gate::wait(&args).await?;
            gate::report(&args.report, &given_up);
            Ok(())
        });
    }
    let operator = Training {
        framework: cli.framework(),
        args: cli.jobs,
    };
    entry::serve(operator, cli.runtime)
}
