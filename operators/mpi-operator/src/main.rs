//! `mpi-operator`: the operator, and the helper that the launcher's init container runs.

use mpi_operator::args::{self, Command, NAMESPACE};
use mpi_operator::{Mpi, gate};
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
    let mpi = Mpi {
        domain: cli.jobs.cluster_domain().unwrap_or_default().to_owned(),
        gate_image: cli.launcher_gate.then_some(cli.launcher_gate_image),
        ttl_deletes_job: cli.ttl_deletes_job,
    };
    let operator = Training {
        framework: mpi,
        args: cli.jobs,
    };
    entry::serve(operator, cli.runtime)
}
