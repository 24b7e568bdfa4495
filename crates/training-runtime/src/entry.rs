//! The entry point of every operator's process.
//!
//! ```text
//! fn main() -> anyhow::Result<()> {
//!     training_runtime::entry::main(ABOUT, |_: NoArgs, _| Ok(Toy))
//! }
//! ```

use anyhow::Context as _;
use clap::{Args, CommandFactory, FromArgMatches, Parser};
use training_core::Lifecycle;

use crate::cli::{JobArgs, PyTorchInertArgs, RuntimeArgs, normalise_args};
use crate::run::Operator;
use crate::training::Training;

/// The arguments of an operator: the common ones and those of its framework.
#[derive(Parser, Debug)]
pub struct Cli<A: Args> {
    /// The arguments of operators whose jobs consist of replicas.
    #[command(flatten)]
    pub jobs: JobArgs,
    /// The arguments of every operator.
    #[command(flatten)]
    pub runtime: RuntimeArgs,
    /// The arguments of this operator alone.
    #[command(flatten)]
    pub own: A,
}

/// No arguments beyond the common ones.
#[derive(Args, Clone, Debug, Default)]
pub struct NoArgs {
    #[command(flatten)]
    inert: PyTorchInertArgs,
}

/// Returns an operator's command line, as its help shows it.
pub fn command<F: Lifecycle, A: Args>(about: &'static str) -> clap::Command {
    Cli::<A>::command()
        .name(F::OPERATOR)
        .version(env!("CARGO_PKG_VERSION"))
        .about(about)
}

/// Parses arguments, the program's name first. Exits the process if they are invalid or ask for help.
pub fn parse<F: Lifecycle, A: Args>(
    about: &'static str,
    args: impl IntoIterator<Item = std::ffi::OsString>,
) -> Cli<A> {
    let mut matches = command::<F, A>(about).get_matches_from(normalise_args(args.into_iter()));
    Cli::from_arg_matches_mut(&mut matches).unwrap_or_else(|error| error.exit())
}

/// Builds a framework from the arguments and runs its operator until the process is asked to stop.
///
/// # Errors
/// If the framework can't be made, or as [`crate::run()`].
pub fn main<F: Lifecycle + Clone, A: Args>(
    about: &'static str,
    framework: impl FnOnce(A, &JobArgs) -> anyhow::Result<F>,
) -> anyhow::Result<()> {
    let cli = parse::<F, A>(about, std::env::args_os());
    let framework = framework(cli.own, &cli.jobs)?;
    let args = cli.jobs;
    serve(Training { framework, args }, cli.runtime)
}

/// Runs an operator until the process is asked to stop.
///
/// # Errors
/// As [`crate::run()`].
pub fn serve<O: Operator>(operator: O, args: RuntimeArgs) -> anyhow::Result<()> {
    // A task of its own, because every wake-up of the future that the runtime started with costs a system call.
    block_on(async {
        tokio::spawn(crate::run(operator, args))
            .await
            .context("the operator's task")?
    })
}

/// Runs a future to completion on one thread.
///
/// # Errors
/// Returns the future's error, or an error if the runtime can't be built.
pub fn block_on(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("a runtime")?
        .block_on(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_of_a_repeated_flag_counts() {
        let args = [
            "operator",
            "--leader-elect",
            "--leader-elect=false",
            "--namespace=a",
            "--namespace=b",
        ];
        let cli = Cli::<NoArgs>::try_parse_from(args).unwrap();
        assert!(!cli.runtime.leader_elect);
        assert_eq!(cli.runtime.namespaces(), ["a", "b"], "lists add up");
    }
}
